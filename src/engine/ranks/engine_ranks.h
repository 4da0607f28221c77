/* SPDX-License-Identifier: MIT */
/*
 * An engine that is one of several ranks (rank_protocol.h): how they open together, and the
 * commands that rank 0 gives. What the other ranks do with them: rank_worker.h.
 *
 * Order of use (engine.c): engine_ranks_handshake, engine_ranks_cut, engine_ranks_limits,
 * engine_ranks_ready; then rank 0 gives commands; engine_ranks_stop, engine_ranks_take_counts,
 * engine_ranks_free. Functions return ERR_RUN with the sentence of a lost rank, besides what they
 * name.
 */
#ifndef GLM_ENGINE_ENGINE_RANKS_H
#define GLM_ENGINE_ENGINE_RANKS_H

#include "src/engine/engine_internal.h"
#include "src/engine/ranks/rank_protocol.h"

struct engine_ranks {
	struct ranks *ranks;
	struct rank_cuts cuts;
	struct stage_link *in, *out;  /* from the rank before, to the next; NULL: none */
	struct rank_figures *figures; /* rank 0: [count] */
	bool counts;                  /* rank 0 keeps a profile */
	bool streaming;               /* some rank streams its experts */
	bool ready;                   /* rank 0: the workers take commands */
	struct profile_key *warm;     /* [n_warm] given before that */
	size_t n_warm;
	uint8_t *message; /* [capacity] of a command or an answer; engine_ranks_reserve */
	size_t capacity;
	bool counts_time;      /* worker: the step in hand is of a micro-batch */
	uint64_t computing_ns; /* worker: these, without waiting for rows */
};

/* Places of ranks in the order of the layers: 1, ..., count - 1, 0. */
static inline uint32_t rank_place(const struct ranks *r, uint32_t rank)
{
	return rank ? rank - 1 : ranks_count(r) - 1;
}
static inline uint32_t rank_at(const struct ranks *r, uint32_t place)
{
	return place + 1 < ranks_count(r) ? place + 1 : 0;
}

/* rc, *e: how opening the file went. Compares what must be the same. ERR_USAGE: an option that
 * takes one rank, a card that two ranks take by accident (rank_cards.h); ERR_RUN: ranks that
 * differ. Sets g->ranks. */
int engine_ranks_handshake(struct engine *g, const struct engine_options *o, int rc, struct err *e);
/* Shares the layers out: sets cuts. whole: all weights, bound, with the MTP layer's if mtp.
 * ERR_USAGE: more stages than layers. */
int engine_ranks_cut(struct engine *g, const struct rank_room *mine, bool mtp,
	const struct model_weights *whole, struct err *e);
/* *limits: of this rank, then of all: the least context and chunk, and whether any streams. Sets
 * k->streaming. */
int engine_ranks_limits(struct engine_ranks *k, struct rank_limits *limits, struct err *e);
/* rc, *e: how loading went. mine: of this rank. Opens the links; rank 0 prints the plan, and adds
 * the figures of the others to g->cache. */
int engine_ranks_ready(struct engine *g, const struct rank_figures *mine, int rc, struct err *e);

/* Allocates the message, as long as any command and any answer: no later call needs memory for one.
 * Called by engine_ranks_ready, with g->cache and g->chunk set. ERR_MEMORY. */
int engine_ranks_reserve(struct engine *g, struct err *e);

/* ---- commands of rank 0 ---- */

/* Sends the rows of a step to all other ranks, which begin to compute it. */
int engine_ranks_step(struct engine_ranks *k, const struct forward_rows *rows, struct err *e);

/* The same without waiting for the messages; *sent (may be NULL at first) keeps the command until
 * engine_ranks_posted_end, which is called once the rows have come back, and is then used again.
 * ERR_MEMORY: nothing was sent. */
struct rank_posted;
int engine_ranks_post_step(struct engine_ranks *k, const struct forward_rows *rows,
	struct rank_posted **sent, struct err *e);
int engine_ranks_posted_end(struct engine_ranks *k, struct rank_posted *sent, struct err *e);
/* Nothing is freed when a rank is lost. Both pointers may be NULL. */
void engine_ranks_posted_free(struct engine_ranks *k, struct rank_posted *sent);

/* Time that the workers have computed rows of micro-batches. */
uint64_t engine_ranks_computing_ns(struct engine_ranks *k);

/* Does another rank have this layer? */
bool engine_ranks_has(const struct engine_ranks *k, uint32_t layer);

/* Rows of a cache of another rank's layer, to or from `data` [n][row_bytes]. Reading returns the
 * other rank's failure too. Writing does not wait for the other rank; one that fails to write is
 * lost (rank_worker.h). */
int engine_ranks_read_rows(struct engine_ranks *k, const struct rank_command *which,
	size_t row_bytes, void *data, struct err *e);
int engine_ranks_write_rows(struct engine_ranks *k, const struct rank_command *which,
	size_t row_bytes, const void *data, struct err *e);

/* A command to every other rank. Nothing is done before `ready`, and when a rank is lost: the next
 * step says so. */
void engine_ranks_command(struct engine_ranks *k, const struct rank_command *c);
/* engine_cache_warm on every other rank. Keys that are given before `ready` are kept until then. */
void engine_ranks_warm(struct engine_ranks *k, const struct profile_key *keys, size_t n);
/* Asks all other ranks for their statistics. Adds those of experts to *experts; writes those of
 * their stages to stages[0 ..], in the order of the layers (the stages of rank 0 are the last).
 * Either may be NULL. */
void engine_ranks_stats(
	struct engine_ranks *k, struct expert_stats *experts, struct engine_stage_usage *stages);
/* Any thread: adds the latest known statistics and places of the other ranks. */
void engine_ranks_snapshot(const struct engine *g, struct expert_stats *experts, uint8_t *places);

/* The end: the others stop and close their stages. No command may follow. */
void engine_ranks_stop(struct engine_ranks *k);
/* Adds their counts to g->profile. False: those of a rank are missing, so the profile must not be
 * kept. After the stages here were stopped: they count until then. */
bool engine_ranks_take_counts(struct engine *g);
void engine_ranks_free(struct engine_ranks *k); /* NULL is fine */

#endif
