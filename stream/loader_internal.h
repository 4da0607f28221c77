/* SPDX-License-Identifier: MIT */
/* The inside of the loader, for loader.c (open, close), loader_demand.c (compute side) and loader_io.c (I/O thread). */
#ifndef GLM_STREAM_LOADER_INTERNAL_H
#define GLM_STREAM_LOADER_INTERNAL_H

#include "stream/extent.h"
#include "stream/loader.h"

#include <pthread.h>

/* Work that the I/O thread must do in the order in which it was decided: empty a slot, then fill it. */
struct command {
	enum { COMMAND_MOVE, COMMAND_FILL } kind;
	int32_t slot; /* MOVE: the target; FILL: the slot to fill */
	int32_t layer, expert;
	uint64_t from_offset, to_offset, bytes; /* MOVE: tier 0 -> tier 1 */
	int32_t source;                         /* FILL: tier 1 slot that holds the bytes, -1: disk */
};

/* One per slot; guarded by the lock unless marked. */
struct fill {
	uint64_t serial; /* identifies this filling: a slot that was given out again has another number */
	int reads_left;  /* I/O thread only */
	int code;        /* I/O thread only: first failure, and where */
	struct reader_completion failure_at;
	uint64_t bytes;     /* I/O thread only: read from disk by this filling */
	bool wanted;        /* somebody acquired it: counted in n_wanted, its failure is reported */
	bool prefetch;      /* started by a hint: counted in n_prefetch */
	bool ahead;         /* staging: one pin is held by the announcement */
	uint16_t drop_pins; /* pins to give back once the bytes have landed */
};

/* A hint that has not been started. */
struct want {
	uint64_t due; /* moment (see loader.moment) at which its layer runs */
	int16_t layer, expert;
};

/* Announced prefill experts of one layer. */
struct announcement {
	int layer; /* -1: none */
	int n, next;
	int32_t *ids; /* [n_experts] */
};

#define LOADER_WANTS_MAX    1024
#define LOADER_FAILURES_MAX 64

/* A filling that failed; the latest LOADER_FAILURES_MAX are kept for whoever asks. */
struct failure {
	uint64_t serial;
	struct err err;
};

struct loader {
	struct expert_source base; /* first: the pointers are exchanged */
	/* constant after open */
	struct backend *backend;
	struct extent_table *table;
	int n_layers, n_experts, n_staging, n_slots;
	uint8_t *arena[2];
	size_t arena_bytes[2];
	unsigned most_prefetch; /* prefetched experts under way at a time */
	pthread_t thread;
	bool thread_started;
	struct reader *reader; /* the I/O thread's, once it runs (reader_wake excepted) */

	/* guarded by lock */
	pthread_mutex_t lock;
	pthread_cond_t landed; /* something was committed or aborted */
	struct cache *cache;
	struct fill *fills; /* [n_slots] */
	uint64_t serial;
	struct command *commands; /* ring of cap_commands */
	size_t cap_commands, first_command, n_commands;
	unsigned n_under_way;          /* moves and fills decided and not yet landed */
	unsigned n_wanted, n_prefetch; /* fills under way */
	uint64_t bytes_read;
	uint64_t moment; /* layers acquired so far: the clock of hints */
	struct want wants[LOADER_WANTS_MAX];
	int n_wants;
	struct announcement ahead[2]; /* this layer and the next */
	struct profile_key *warm;     /* [n_warm] read when nothing else is to be done, from next_warm on */
	size_t n_warm, next_warm;
	struct failure failures[LOADER_FAILURES_MAX];
	uint64_t n_failures; /* ever; failure i stands at i % LOADER_FAILURES_MAX */
	double hint_share;   /* part of each hint that is taken: the self-throttle */
	uint64_t judged_used, judged_wasted;
	bool quit;
};

static inline struct loader *loader_of(struct expert_source *s)
{
	return (struct loader *)s;
}

static inline uint8_t *loader_slot_memory(const struct loader *l, struct cache_slot s)
{
	return l->arena[s.tier] + s.offset;
}

/* ---- loader_demand.c ---- */
extern const struct expert_source_ops loader_ops;

/* Queues what a plan of cache_reserve asks for. Caller holds the lock. */
void loader_enqueue(
	struct loader *l, const struct cache_plan *plan, int layer, int expert, bool wanted, bool prefetch);

/* Unpins now, or when the bytes have landed. Caller holds the lock. */
void loader_unpin(struct loader *l, int32_t slot);

/* ---- loader_io.c ---- */
void *loader_io_main(void *loader);

/* ---- loader.c ---- */
void loader_close(struct expert_source *s);

#endif
