/* SPDX-License-Identifier: MIT */
/*
 * The streaming expert source: experts come from disk through a budgeted cache.
 *
 *   compute thread           lock            I/O thread
 *   acquire: cache_access,    |   commands    copies between tiers, submits reads,
 *     reserve, pin  ----------|------------>  reaps completions,
 *   await  <------------------|-----------   commit / abort, signal
 *   hint, announce  ----------|---- wants ->  reserves and reads ahead when no demand waits
 *
 * The one lock guards the cache, the command queue, the wants and the fills; it is never held while
 * waiting for a disk or copying bytes. A slot is published (READY) under the lock after its last
 * byte has landed, and acquire and await look under the lock: what they call ready is complete. A
 * slot is given out again only when nobody pins it, so bytes in use never change. In builds with
 * LOADER_POISON every slot is filled with READER_POISON before it is read into.
 *
 * The compute thread decides what is evicted, in the order in which the model asks, so that a
 * simulated cache (cache/trace/sim.h) sees the same sequence and counts the same hits. Prefetched
 * experts take free or cold slots only.
 */
#ifndef GLM_STREAM_LOADER_H
#define GLM_STREAM_LOADER_H

#include "cache/cache.h"
#include "cache/trace/profile.h"
#include "kernels/backend.h"
#include "kernels/copier.h"
#include "src/format/gguf.h"
#include "stream/expert_source.h"
#include "stream/reader/reader.h"

/*
 * On a card: tier 0 is one allocation there, tier 1 is pinned host memory, reads land in pinned
 * bounce buffers and are copied on piece by piece (loader_card.c). Otherwise both tiers are memory
 * that reads land in directly.
 */
struct loader_options {
	const struct gguf *file; /* must outlive the source */
	struct backend *backend; /* tier 0 is allocated from it */
	struct copier *copier;   /* lent: takes the place of the backend's, for tests; NULL: the
								backend's, if it has one */
	int n_layers;            /* of the model, those without experts included */
	int n_used;              /* experts a token uses in a layer */
	uint64_t tier_bytes[2];  /* budgets of the two tiers; the second may be 0 */
	const char *policy;      /* "lru", "lfu", "sieve"; NULL: POLICY_DEFAULT */
	int lookahead;           /* layers; 0: no prefetch */
	struct reader_options reader;
	size_t pin_step_bytes; /* on a card, bytes of the second tier pinned at a time, a multiple of
						the page size; 0: 256 MiB */
	size_t demotion_chunk_bytes; /* on a card, bytes of a piece of a demotion that waits for a gap;
									0: 2.5 MiB */
	const char *const
		*replicas; /* [n_replicas] other paths with the same content as the (single) model file */
	unsigned n_replicas;
};

/* What the budgets come to; for the printed plan. */
struct loader_plan {
	uint64_t tier_bytes[2]; /* memory that will really be taken: at most the budget */
	uint64_t
		floor_bytes; /* the smallest first tier that works: one token's working set and staging */
	uint64_t everything_bytes; /* a first tier in which every expert fits */
	int n_prefill_slots;
	int n_slots;
	bool on_card;                  /* tier 1 is pinned host memory, and in addition are taken: */
	uint64_t device_staging_bytes; /* on the card */
	uint64_t host_staging_bytes;   /* pinned, on the host */
};

/* Computes the plan without taking memory. ERR_MEMORY, with the smallest budget that works in the
 * sentence, when the first tier is below the floor. The files are opened and closed again. */
int loader_plan(const struct loader_options *o, struct loader_plan *plan, struct err *e);

/* The reader that loader_open opens: the files of the model in order, replicas behind them. For
 * measuring. */
int loader_open_reader(const struct loader_options *o, struct reader **out, struct err *e);

/* Opens files, takes memory, starts the I/O thread. Close with ops->close: cancels what is under
 * way, waits for it, frees. */
int loader_open(const struct loader_options *o, struct expert_source **out, struct err *e);

/* On a card the second tier is pinned step by step, beside everything else: the first step after
 * loader_open, those that demotions come to when they do, and all others, with pauses, from
 * loader_pin_in_background on: call it when the drive has nothing more urgent to do. Only demotions
 * wait for it. A refusal fails every acquire from then on, with its sentence. */
void loader_pin_in_background(struct expert_source *s);
/* Waits until all of it is pinned. 0, or ERR_MEMORY: refused. */
int loader_wait_pinned(struct expert_source *s, struct err *e);

/* Of a source made by loader_open. */
const char *loader_reader_name(const struct expert_source *s); /* "uring", "threads" */
struct cache_stats loader_cache_stats(struct expert_source *s);
/* Part of each hint that is taken at present, 0.125 to 1: how far prefetching has throttled itself.
 */
double loader_prefetch_share(struct expert_source *s);
/* How many experts of a layer stand in each tier now. */
void loader_layer_resident(struct expert_source *s, int layer, int n[2]);
/* Where an expert stands; an expert on its way from one place to another stands where the greater
 * number says. */
enum loader_residency {
	LOADER_NO_EXPERT, /* the layer has none */
	LOADER_ON_DISK,
	LOADER_IN_RAM,
	LOADER_LOADING, /* its bytes are coming into the first tier */
	LOADER_IN_VRAM,
};
/* Fills map[n_layers][n_experts] with places, as of one moment, and *stats with the figures of that
 * moment. Either may be NULL. Any thread may call it; the lock is held for as long as it takes to
 * look at every slot once. */
void loader_residency_map(struct expert_source *s, uint8_t *map, struct expert_stats *stats);
/* Reads the given experts into the first tier while there is free room, best first, before anything
 * is asked for. Returns at once; the reading goes on beside the computation. Ids that do not exist
 * are ignored. */
void loader_warm(struct expert_source *s, const struct profile_key *keys, size_t n);

#endif
