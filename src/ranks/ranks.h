/* SPDX-License-Identifier: MIT */
/*
 * Ranks: the processes that mpirun started together, on one host or on several. This module moves
 * bytes between them and notices when one is lost; it knows nothing of models. What the messages
 * mean: src/engine/ranks/rank_protocol.h.
 *
 * Order of use: ranks_open; ranks_send, ranks_receive, ranks_agree, ranks_gather, ranks_broadcast;
 * ranks_close.
 *
 * What the ranks send each other
 * - Messages. Between two ranks they arrive in the order in which they were sent. Whoever waits
 *   polls and sleeps, so that ranks of one host leave each other the cores.
 * - Heartbeats. A thread of each rank sends every other rank at least two a second, with a state:
 *     alive     and, to rank 0, the latest status (ranks_publish)
 *     done      this rank has ended in order and waits for the others
 *     left      this rank has ended with an error: its sentence and code
 *     lost      another rank is lost: which one, and why
 *
 * How they end
 * - In order: each rank sends "done" and waits until all have, as long as that takes. Then MPI
 *   ends; if that takes more than 9 s, the process ends with status 1.
 * - A rank is lost when it has sent no heartbeat for 7 s (it hangs, its host cannot be reached), or
 *   has left. Then every call fails with the sentence that names it. A process that has not ended
 *   by itself 1 s later is ended, after the sentence was written.
 * - A rank that leaves with bad usage, bad input or out of memory gives its exit status to the
 *   others, so that mpirun's status does not depend on who ends first. In all other cases a process
 *   that ends because of another one ends with status 1.
 * - A rank that leaves prints its own error, unless a lower rank has left with the same one.
 * - While MPI itself starts nothing is known of the others: after 120 s all ranks end, and none can
 *   be named.
 * - A rank that dies by a signal: mpirun notices first, names it and ends all others. The status of
 *   mpirun is 128 plus the signal's number; no rank can change that.
 *
 * Threads: one thread at a time calls these. Any thread may call ranks_me, ranks_count, ranks_name,
 * ranks_check and ranks_status.
 */
#ifndef GLM_RANKS_RANKS_H
#define GLM_RANKS_RANKS_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ranks;

#define RANKS_MAX          64
#define RANKS_STATUS_BYTES (4u << 20) /* a status, at most */

/* Has mpirun started several processes? Looks at the environment only. */
bool ranks_wanted(void);

/* Starts MPI and the heartbeats; once in a process.
 * - ERR_USAGE: a build without MPI, more than RANKS_MAX ranks. ERR_MEMORY, ERR_RUN.
 * - *out is NULL after an error before the heartbeats have started. After a later one (a rank was
 *   lost at once) it is set, as ranks_here is, and ranks_close follows. */
int ranks_open(struct ranks **out, struct err *e);

/* What ranks_open gave, until ranks_close; NULL: nothing. */
struct ranks *ranks_here(void);

/* Is this process a worker: one of several, and another than rank 0? It has no input, no output but
 * messages, and no files of its own but those of the model. */
bool ranks_is_worker(void);

uint32_t ranks_me(const struct ranks *r);
uint32_t ranks_count(const struct ranks *r);
uint32_t ranks_on_host(const struct ranks *r); /* ranks on this host, this one included */
const char *ranks_name(const struct ranks *r, uint32_t rank); /* "rank 1 (host)" */

/* Sends bytes (at most INT32_MAX) and returns when they may be changed. ERR_RUN: a rank is lost;
 * then MPI may still read and write what this and ranks_receive were given: it is never freed. */
int ranks_send(struct ranks *r, uint32_t to, const void *data, size_t bytes, struct err *e);
/* ranks_send in two parts: the bytes are MPI's until ranks_posted_wait has returned 0. Whoever is
 * to receive them may be about to send something itself. *out is freed by ranks_posted_wait. */
struct ranks_posted;
int ranks_post(struct ranks *r, uint32_t to, const void *data, size_t bytes,
	struct ranks_posted **out, struct err *e);
int ranks_posted_wait(struct ranks *r, struct ranks_posted *posted, struct err *e);
/* The next message of `from`; *bytes (may be NULL): its length. Waits as long as all ranks are
 * there. ERR_RUN: a rank is lost. A message longer than `capacity` makes `from` a lost rank. */
int ranks_receive(
	struct ranks *r, uint32_t from, void *data, size_t capacity, size_t *bytes, struct err *e);

/* A struct err that another rank sent: ended, and with nothing in it that acts on a terminal. */
struct err ranks_received_error(const void *bytes);

/* ---- calls that every rank makes at the same point ---- */

/* all (rank 0 only): [count] of `bytes` each, by rank. */
int ranks_gather(struct ranks *r, const void *mine, size_t bytes, void *all, struct err *e);
/* data: of rank 0, then of all. */
int ranks_broadcast(struct ranks *r, void *data, size_t bytes, struct err *e);
/* rc, *e: how something went here. 0 when it went well on all ranks; else the same error on all:
 * that of the lowest rank, whose name stands before it. They end then, in order. */
int ranks_agree(struct ranks *r, int rc, struct err *e);

/* All ranks know that this one ends now: whatever the status, it has ended in order. */
void ranks_set_orderly(struct ranks *r);
bool ranks_is_orderly(const struct ranks *r);

/* Fails with the sentence when a rank is lost. Any thread. */
int ranks_check(const struct ranks *r, struct err *e);

/* Sets a callback for the loss of a rank. The thread of the heartbeats calls it once, also if the
 * rank was lost before, with the sentence of ranks_check, which stays valid. It must return at
 * once and call nothing of this module. NULL removes it; no call is running when this returns. */
void ranks_on_loss(struct ranks *r, void (*lost)(void *user, const char *sentence), void *user);

/* Has a lower rank left with this very error? Then that one prints it. Only after a ranks_close
 * that has set *abrupt. */
bool ranks_error_is_known(const struct ranks *r, const struct err *e);

/* ---- a status for rank 0 ---- */

/* Every heartbeat to rank 0 carries what `fill` writes to out [bytes <= RANKS_STATUS_BYTES]. The
 * thread of the heartbeats calls fill, and no more once a call with NULL has returned. fill calls
 * nothing of this module. */
void ranks_publish(struct ranks *r, size_t bytes, void (*fill)(void *user, void *out), void *user);
/* Rank 0: the latest status of a rank. False: none of so many bytes has come yet. */
bool ranks_status(struct ranks *r, uint32_t rank, void *out, size_t bytes);

/* The process ends with rc and *e (not NULL). Waits for the others if that is in order, else tells
 * them why.
 * - Returns rc. If a rank is lost and rc is 0 or interrupted, *e becomes the sentence of the loss.
 * If *e has that sentence, returns the code of the loss.
 * - *abrupt: MPI has not ended. The process should end by _exit, and r stays valid until then.
 *   Else r is freed.
 * - r NULL: returns rc; *abrupt is false. */
int ranks_close(struct ranks *r, int rc, bool *abrupt, struct err *e);

#endif
