/* SPDX-License-Identifier: MIT */
/*
 * Two cards of this machine, measured: how fast their memory is reached from each other. A card may
 * be paired with itself.
 *
 * Order of use: peer_pair_open, peer_pair_access, peer_pair_run for each kind, peer_pair_close. One
 * thread calls these. No backend is needed, and none should compute meanwhile.
 */
#ifndef GLM_KERNELS_PEER_H
#define GLM_KERNELS_PEER_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PEER_COPY_BYTES ((size_t)256 << 20)
#define PEER_HAND_BYTES ((size_t)24576) /* a row of 6,144 floats */
#define PEER_HANDS      400             /* hand-overs of a run, half of them each way */

enum peer_kind {
	PEER_COPY,        /* PEER_COPY_BYTES from the first to the second card, by a copy engine */
	PEER_COPY_BACK,   /* ... and from the second to the first */
	PEER_COPY_BOTH,   /* both at once: twice as many bytes */
	PEER_HAND_COPY,   /* PEER_HANDS of a row: a copy, an event, the other stream waits for it */
	PEER_HAND_KERNEL, /* the same with a kernel that stores into the other card: needs access */
	PEER_HAND_FLAGS,  /* running kernels store flag-in-data words and poll: needs access */
	PEER_HAND_HOST,   /* through pinned memory; the host waits in between */
	PEER_ALL_REDUCE,  /* PEER_HANDS sums of a row over both cards, by NCCL: two cards only */
	PEER_KINDS
};

struct peer_pair;

/* Takes 512 MiB of each card. ERR_RUN: no such card, or built without CUDA, in one sentence;
 * ERR_MEMORY. */
int peer_pair_open(uint32_t first, uint32_t second, struct peer_pair **out, struct err *e);
void peer_pair_close(struct peer_pair *p); /* NULL is fine */

const char *peer_pair_card(const struct peer_pair *p, int which); /* "NVIDIA H200"; 0, 1 */

/* Whether kernels of card `which` (0, 1) reach the memory of the other one. */
bool peer_pair_access(const struct peer_pair *p, int which);

/* Why this kind cannot be measured; NULL: it can. Of NCCL: loads it. */
const char *peer_pair_lacks(struct peer_pair *p, enum peer_kind kind);

/* One run; returns when it has ended. The first run of a kind takes longer. */
int peer_pair_run(struct peer_pair *p, enum peer_kind kind, struct err *e);

#endif
