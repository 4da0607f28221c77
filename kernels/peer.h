/* SPDX-License-Identifier: MIT */
/*
 * Transfers between two cards of this machine, for a benchmark: the caller times peer_pair_run. A
 * card may be paired with itself.
 *
 * Order of use: peer_pair_open; for each kind peer_pair_lacks and, if that is NULL, peer_pair_run
 * once to warm up and then timed; peer_pair_close. One thread calls these. No backend is needed;
 * one that computes meanwhile distorts the times.
 */
#ifndef GLM_KERNELS_PEER_H
#define GLM_KERNELS_PEER_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PEER_COPY_BYTES ((size_t)256 << 20)
#define PEER_HAND_BYTES ((size_t)24576) /* a row of 6,144 floats */
#define PEER_HANDS      400             /* hand-overs of a row in a run, half of them each way */

enum peer_kind {
	PEER_COPY,      /* PEER_COPY_BYTES from the first to the second card, by a copy engine */
	PEER_COPY_BACK, /* ... and from the second to the first */
	PEER_COPY_BOTH, /* both at once: twice as many bytes */
	/* PEER_HANDS hand-overs, each of which waits for the one before: */
	PEER_HAND_COPY,   /* by a copy and an event that the other card's stream waits for */
	PEER_HAND_KERNEL, /* by a kernel that stores into the other card, and an event: needs access */
	PEER_HAND_FLAGS,  /* by running kernels that store flag-in-data words and poll: needs access */
	PEER_HAND_HOST,   /* by two copies through pinned memory; the host waits for each */
	PEER_ALL_REDUCE,  /* PEER_HANDS all-reduces of a row of floats, by NCCL: two different cards */
	PEER_KINDS
};

struct peer_pair;

/* Takes 2 * PEER_COPY_BYTES of each card until peer_pair_close. ERR_RUN: no card answers, or the
 * program has no CUDA; ERR_USAGE: there is no such card; ERR_MEMORY. */
int peer_pair_open(uint32_t first, uint32_t second, struct peer_pair **out, struct err *e);
void peer_pair_close(struct peer_pair *p); /* NULL is fine */

/* Name of the card `which` (0: first, 1: second), "NVIDIA H200". Valid until peer_pair_close. */
const char *peer_pair_card(const struct peer_pair *p, int which);

/* Can kernels of the card `which` access the memory of the other one (peer access)? */
bool peer_pair_access(const struct peer_pair *p, int which);

/* The reason why this kind cannot be run, as a clause; NULL: it can. PEER_ALL_REDUCE: loads NCCL
 * and opens its communicators. */
const char *peer_pair_lacks(struct peer_pair *p, enum peer_kind kind);

/* Does the transfers of one kind; returns when both cards have finished. The first run of a kind
 * takes longer. ERR_RUN, ERR_MEMORY. */
int peer_pair_run(struct peer_pair *p, enum peer_kind kind, struct err *e);

#endif
