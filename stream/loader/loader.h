/* SPDX-License-Identifier: MIT */
/*
 * The streaming expert source: experts come from disk through a budgeted cache of two tiers.
 *
 *   compute thread              lock            I/O thread
 *   acquire: cache_acquire,      |    queue      gives loads and demotions to the transfer,
 *     queues loads --------------|------------>  which calls loader_transfer_done:
 *   wait_ready  <----------------|------------   cache_commit or cache_abort, signal
 *   prefetch, read_ahead --------|------------>  reserves slots for them when no demand waits
 *
 * Contract, beside that of expert_source.h:
 *   - A slot becomes READY under the lock, after its last byte has arrived. acquire and wait_ready
 *     look at it under the lock: an expert that they call ready is complete.
 *   - A slot is reused only when it has no pins: bytes in use never change.
 *   - The compute thread decides what a demand evicts, in the order of the model's requests.
 *   - The I/O thread evicts for read-ahead, and cold experts for prefetches and the low watermark.
 *   - Without prefetch and warm-up, and without experts that the processor computes
 *     (expert_ref.host_ns; that choice depends on measured times), a simulated cache
 *     (cache/trace/sim.h) sees the same sequence of accesses and counts the same hits (cache.h:
 *     Deferred accounting).
 *   - An expert that the processor computes is pinned in its slot of the second tier until release.
 *     After that it is promoted when the link has a gap, if a slot of the first tier is free or a
 *     cold expert of lower value can be evicted.
 *   - Prefetched experts take free or cold slots only, those of the warm-up free slots only.
 *   - In builds with LOADER_POISON every slot is filled with READER_POISON before it is loaded.
 *
 * One expert from router to slot and back, streamed to a card:
 *    1  the router gives the top-k expert ids       ffn_forward (src/forward/ffn.c)
 *    2  the host polls for the ids                  moe_experts_request (src/forward/moe/moe.c)
 *    3  the model asks its source                   group_request (src/forward/moe/moe.c)
 *    4  the source asks the cache                   loader_acquire (loader_acquire.c)
 *    5  slot and plan are decided; READY: go to 14  cache_acquire (cache/cache_acquire.c)
 *    6  the plan is queued                          loader_queue_plan (loader_queue.c)
 *    7  the I/O thread takes what is next           loader_next_work (loader_queue.c)
 *    8  and gives it to the transfer                give_to_transfer (loader_io.c)
 *    9  a chunk is read into a staging buffer, or   start_read (card_transfer.c)
 *       into tier 1 if it stays there, too
 *   10  and copied to the slot on the card          card_read_done (card_transfer.c)
 *   11  the fence of the last copy ends the load    poll_copies (card_transfer.c)
 *       if its bytes are those of the check values  judge_load (card_transfer.c)
 *   12  the slot is published                       loader_transfer_done (loader_io.c)
 *   13  the waiting model finds it ready            loader_wait_ready (loader_acquire.c)
 *   14  the views of the ref point into the slot    set_views (loader_acquire.c)
 *   15  the kernel is given the views               group_enqueue_ready (src/forward/moe/moe.c)
 *   16  the next layer's ids are there: released    unpin_all (src/forward/moe/moe.c)
 *   17  the slot loses its pin                      loader_release (loader_acquire.c)
 *   18  later the expert becomes a victim           cache_slot_alloc (cache/cache_evict.c)
 *   19  its bytes are copied to device staging      card_demote (card_transfer.c)
 *   20  and leave for tier 1, in a gap              start_demotions (card_transfer.c)
 */
#ifndef GLM_STREAM_LOADER_H
#define GLM_STREAM_LOADER_H

#include "cache/trace/expert_profile.h"
#include "kernels/backend.h"
#include "kernels/copier.h"
#include "src/base/host/numa.h"
#include "src/format/gguf.h"
#include "stream/check/expert_check.h"
#include "stream/expert_source.h"
#include "stream/reader/reader.h"

/* On a card tier 0 is one allocation there, tier 1 is pinned host memory, and reads pass through
 * staging buffers or tier 1 (card_transfer.h). Otherwise both tiers are memory that reads land in
 * directly.
 */
struct loader_options {
	const struct gguf *file; /* must outlive the source */
	struct backend *backend; /* tier 0 is allocated from it */
	struct copier *copier;   /* lent, for tests; NULL: the backend's, if it has one */
	int n_layers;            /* of the model, those without experts included */
	/* Only experts of layers [first_layer, end_layer) are streamed; end_layer 0: of all. */
	int first_layer, end_layer;
	int n_used;                   /* experts a token uses in a layer */
	uint64_t tier_bytes[2];       /* budgets of the two tiers; the second may be 0 */
	const char *policy;           /* "lru", "lfu", "sieve"; NULL: POLICY_DEFAULT */
	int lookahead;                /* layers; 0: no prefetch */
	struct reader_options reader; /* loader_open sets `staged` if experts go to a card */
	/* On a card: bytes of the second tier that are pinned at a time, a multiple of the page size
	 * (0: 256 MiB); bytes of a chunk of a demotion that waits for a gap (0: 2.5 MiB). */
	size_t pin_step_bytes, demotion_chunk_bytes;
	const struct check_values *check_values; /* of `file`, outlive the source; NULL: none */
	enum check_mode check_mode; /* CHECK_OFF takes fewer staging buffers, also without values */
	int check_threads; /* that compare, 4 at most; 0: by the number of cores; -1: the I/O thread */
	/* Other paths with the same content as the (single) model file. */
	const char *const *replicas;
	unsigned n_replicas;
	/* Lent for loader_open: the memory of tiers that the host reaches is divided among these, each
	 * slot on one (expert_ref.node). NULL, fewer than two: it is not. */
	const struct numa_nodes *nodes;
};

/* What a source with these options takes, and what other budgets would be. */
struct loader_plan {
	uint64_t tier_bytes[2];     /* memory that loader_open takes: at most the budget */
	uint64_t floor_bytes;       /* the smallest first tier that works (cache_floor_bytes) */
	uint64_t working_set_bytes; /* one that holds all experts of a token */
	uint64_t everything_bytes;  /* a first tier in which every expert fits */
	int n_prefill_slots;
	int n_slots;                   /* of both tiers */
	int n_fit[2];                  /* experts of an average size that fit a tier */
	int n_experts;                 /* of all layers */
	bool on_card;                  /* experts go to a card; tier 1 is pinned. Taken in addition: */
	uint64_t device_staging_bytes; /* on the card */
	uint64_t host_staging_bytes;   /* pinned, on the host */
};

/* Computes the plan without taking memory. The files are opened and closed again. Errors: as
 * loader_open; ERR_MEMORY when the first tier is below the floor (loader_refuse_budget). */
int loader_plan(const struct loader_options *o, struct loader_plan *plan, struct err *e);
/* Sets and returns ERR_MEMORY for a first tier of `bytes`. The sentence names the floor, rounded up
 * so that a budget of that number works. */
int loader_refuse_budget(uint64_t bytes, uint64_t floor_bytes, struct err *e);

/* Opens the reader that loader_open would open, to measure it: the files of the model in order,
 * replicas behind them. */
int loader_open_reader(const struct loader_options *o, struct reader **out, struct err *e);

/* Opens files, takes memory, starts the I/O thread. Close with ops->close: it cancels reads that
 * can be cancelled, waits for the others and for copies, and frees. Errors: ERR_USAGE, ERR_INPUT,
 * ERR_MEMORY, ERR_RUN (the card), or -errno; *out is NULL then. */
int loader_open(const struct loader_options *o, struct expert_source **out, struct err *e);

/* On a card the second tier is pinned step by step, in a thread of its own. These steps are pinned:
 * - the first one, after loader_open;
 * - some ahead of demotions;
 * - one more after each layer of a prompt in which a read found no free slot;
 * - from this call on all others, with pauses. Call it when the drive has nothing more urgent to
 *   do.
 * The tier is used as far as it is pinned. Only the warm-up waits for more. An expert whose
 * demotion finds no room leaves the cache (cache_limit_tier1). When the system refuses to pin a
 * step, a warning says so, the tier stays as it is, and expert_stats.ram_refused_bytes has the
 * rest. */
void loader_pin_in_background(struct expert_source *s);

/* Of a source made by loader_open. */
const char *loader_reader_name(const struct expert_source *s); /* "uring", "threads" */

/* Where an expert is. For one that is in two places the greater value holds. */
enum loader_residency {
	LOADER_NO_EXPERT, /* the layer has none */
	LOADER_ON_DISK,
	LOADER_IN_RAM,
	LOADER_LOADING, /* its bytes are coming into the first tier */
	LOADER_IN_VRAM,
};
/* Sets the rows of the streamed layers in map[n_layers][n_experts] to enum loader_residency, and
 * *stats to the figures of the same moment. Either may be NULL. Any thread. It holds the loader's
 * lock while it looks at every slot once. */
void loader_residency_map(struct expert_source *s, uint8_t *map, struct expert_stats *stats);

/* Warm-up: loads the given experts, best first, with the lowest priority of all loads: into free
 * slots of the first tier, and when that is full into free slots of the second. With a card the
 * second tier is used as far as it is pinned (loader_pin_in_background). An expert that finds no
 * slot is left out, except while slots are still to come: in a prompt, which has borrowed some, it
 * is loaded when they are back. Returns at once. Experts that do not exist are ignored. An acquire
 * of an expert in flight raises its load to demand priority. A prompt that reads one of the experts
 * for the first tier leaves it there, so that it need not be read again. With a card, what a prompt
 * reads for other use also stays in free slots of the second tier as far as that is pinned, experts
 * of the warm-up first (cache_keep_reads); where none is free, the next layer of the prompt
 * requests that one more step is pinned. */
void loader_warm(struct expert_source *s, const struct profile_key *keys, size_t n);

#endif
