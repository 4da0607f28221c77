/* SPDX-License-Identifier: MIT */
/*
 * The inside of the loader:
 *
 *   loader.c          plan, open, close, questions
 *   loader_acquire.c  the compute thread: the operations of an expert_source
 *   loader_queue.c    the work of the I/O thread, and which is next
 *   loader_io.c       the I/O thread: gives work to the transfer, publishes completed slots
 *
 * The fields of struct loader are grouped by who may touch them. The bytes themselves are moved by
 * a transfer (transfer.h), which belongs to the I/O thread.
 */
#ifndef GLM_STREAM_LOADER_INTERNAL_H
#define GLM_STREAM_LOADER_INTERNAL_H

#include "cache/cache.h"
#include "stream/extent.h"
#include "stream/loader/card_memory.h"
#include "stream/loader/loader.h"
#include "stream/loader/transfer.h"
#include "stream/miss_split.h"

#include <pthread.h>
#include <stdatomic.h>

/* With a card, prefetches are read from the drive only when it has read no demand for this many
 * layers. A card computes a layer in a fraction of a millisecond, and a drive reads an expert in
 * several. While the drive reads demands every few layers, it is the limit: a prefetch hides next
 * to nothing, and a useless one delays a demand. (On the CPU a layer takes as long as its reads: no
 * such rule.) */
#define LOADER_DRIVE_IDLE_LAYERS 8
/* Prefetches in flight to a card from tier 1. The others stay requests. If their layer runs first,
 * a request has cost nothing, and the expert becomes a demand, which goes first. */
#define LOADER_TIER1_PREFETCH_MAX 1
#define LOADER_PREFETCH_REQUESTS  1024
/* Experts that the processor has computed and that wait to be promoted: the latest. */
#define LOADER_PROMOTIONS 64
#define LOADER_FAILURES   64

/* The matrices of a layer's experts in their slots; `data` is empty. */
struct layer_views {
	struct weight w[EXTENT_MATRICES];
	bool scaled[EXTENT_MATRICES];
	uint64_t offset[EXTENT_PARTS]; /* in the slot, */
	bool same;                     /* ... of every expert; false: ask extent_plan */
};

/* The load or demotion that was decided for a slot and has not completed. */
struct slot_work {
	enum transfer_priority priority; /* the present one; DEMAND: counted in n_demands */
	bool prefetched;                 /* counted in n_prefetches */
	bool from_tier1;                 /* a load from tier 1; if prefetched, in n_tier1_prefetches */
	bool boost_queued;               /* the slot is in work_queue.boosted */
	uint64_t link_bytes;             /* counted in loader_shared.link_bytes */
};

/* A load that failed. */
struct load_failure {
	uint64_t load_id; /* as in struct cache_slot */
	struct err err;
};

/* Work of the I/O thread. Boosts go first; demotions and loads keep the order in which the cache
 * decided them. */
enum work_kind {
	WORK_BOOST, /* a load or demotion that is in flight becomes a demand */
	WORK_DEMOTE,
	WORK_LOAD,
};

struct work {
	enum work_kind kind;
	struct transfer_request request; /* BOOST: the slot only */
};

/* A predicted expert that has no slot yet. */
struct prefetch_request {
	uint64_t due; /* layer_clock at which its layer runs */
	int16_t layer, expert;
};

/* Experts of one layer that prefill will acquire, in this order. */
struct read_ahead_list {
	int layer; /* -1: none */
	int n, next;
	int32_t *ids; /* [n_experts] */
};

struct work_queue {
	/* Loads and demotions that the cache has decided, to be carried out in this order: a slot is
	 * emptied before it is filled. A ring; a slot is in it at most once. */
	struct work *decided; /* [cap] */
	size_t cap, first, n;
	int32_t *boosted; /* [cap] slots */
	size_t n_boosted;
	/* Requests without slots. */
	struct read_ahead_list read_ahead[2];                       /* this layer and the next */
	struct prefetch_request prefetch[LOADER_PREFETCH_REQUESTS]; /* by `due`, then oldest first */
	int n_prefetch;
	struct profile_key promote[LOADER_PROMOTIONS]; /* oldest first */
	int n_promote;
	struct profile_key *warm; /* [n_warm]; those from next_warm on are left */
	size_t n_warm, next_warm;
};

/* Guarded by lock. It is held for microseconds, never while waiting for a disk or copying bytes. */
struct loader_shared {
	pthread_mutex_t lock;
	pthread_cond_t completed; /* something was committed or aborted */
	struct cache *cache;
	struct slot_work *slot_work; /* [n_slots] */
	/* provisional refs of the step; the compute thread's */
	struct draft_use {
		int layer, expert;
		uint64_t rows; /* as expert_ref.draft_rows; 0: counted as used */
	} * draft_uses;    /* [n_draft_uses] */
	size_t n_draft_uses, cap_draft_uses;
	struct work_queue queue;
	unsigned n_in_flight; /* loads and demotions decided and not completed */
	unsigned n_demands, n_prefetches, n_tier1_prefetches; /* of them */
	/* bytes of loads from tier 1 that were decided and have not completed: [0] of demands, [1] of
	 * others */
	uint64_t link_bytes[2];
	uint64_t n_on_host;      /* experts that the processor was given to compute */
	uint64_t bytes_promoted; /* of promotions decided after the processor computed the expert */
	bool flush_due;          /* the I/O thread may carry out the deferred access accounting: the
							  * compute thread's request has been answered */
	bool in_prompt;          /* the last step or acquire was of a prompt, which borrows slots */
	int layer;               /* acquired last in this step; -1: none */
	uint64_t layer_clock; /* layers acquired so far; the steps of a round of drafts count as one */
	uint64_t drive_idle_from; /* layer_clock from which on prefetches may be read from the drive */
	uint64_t bytes_read;
	struct transfer_traffic traffic; /* when something was last committed or aborted */
	struct load_failure failures[LOADER_FAILURES]; /* the latest */
	uint64_t n_failures;                           /* ever; failure i is at i % LOADER_FAILURES */
	/* Throttle: the part of each list of predicted experts that is requested, and the counters of
	 * the cache when it was last set (loader_judge_prefetch) */
	double prefetch_share;
	uint64_t judged_used, judged_wasted;
	uint64_t keeps_refused; /* cache_stats.keeps_refused at the last request to pin more */
	bool quit;
};

/* Any thread. */
struct loader_signals {
	atomic_bool work_pending; /* set by loader_wake, cleared by the I/O thread */
	atomic_bool sleeping;     /* the I/O thread, until reader_wake */
	atomic_uint n_completed;  /* counts commits and aborts, for a wait without the lock */
};

struct loader {
	struct expert_source base; /* first: the pointers are exchanged. stats: see copy_stats */
	/* constant after open */
	struct backend *backend;
	struct reader *reader; /* owned by the I/O thread once it runs; reader_wake: any thread */
	struct extent_table *table;
	struct expert_check check;     /* owned by the transfer once it is open */
	struct check_pool *check_pool; /* as `check` */
	struct card_memory *card;      /* NULL: the host reaches the first tier */
	struct transfer *transfer;     /* owned by the I/O thread once it runs; under_pressure: any */
	int n_layers, n_experts, n_slots;
	int first_layer, end_layer; /* that are streamed, those without experts included */
	uint8_t *tier_memory[2];
	size_t tier_memory_bytes[2];
	struct numa_division division[2]; /* of tier_memory; zero: its nodes are not known */
	struct layer_views *views;        /* [n_layers] */
	unsigned prefetches_max;          /* from disk, in flight */
	pthread_t thread;
	bool thread_started;
	/* the compute thread's */
	struct cache_ref *refs;    /* [n_experts] scratch of a call */
	struct miss *misses;       /* [n_experts] as well */
	unsigned polled_completed; /* signals.n_completed at the last poll_ready that took the lock */

	struct loader_signals signals;
	struct loader_shared shared;
};

static inline struct loader *loader_of(struct expert_source *s)
{
	return (struct loader *)s;
}

/* As expert_stats.ram_refused_bytes, now. Any thread. */
static inline uint64_t loader_ram_refused_bytes(const struct loader *l)
{
	return l->card ? card_memory_refused_bytes(l->card) : 0;
}

/* ---- loader_acquire.c ---- */
extern const struct expert_source_ops loader_ops;

/* ---- loader_queue.c: the caller holds the lock ---- */

int loader_queue_init(struct loader *l); /* 0, or ERR_MEMORY */
void loader_queue_free(struct loader *l);
/* Queues the transfers of a plan; its loads have this priority. */
void loader_queue_plan(
	struct loader *l, const struct cache_plan *plan, enum transfer_priority priority);
/* Which of loader_shared.link_bytes a load from tier 1 is counted in. */
static inline uint64_t *loader_link_bytes(struct loader_shared *s, const struct slot_work *x)
{
	return &s->link_bytes[x->priority != TRANSFER_DEMAND];
}
/* Makes the load or demotion in flight into this slot a demand. No effect when there is none, or
 * the slot is -1. */
void loader_queue_boost(struct loader *l, int32_t slot);
/* Requests prefetches of a layer that runs at layer_clock `due`. Drops what exceeds
 * LOADER_PREFETCH_REQUESTS. */
void loader_queue_prefetch(struct loader *l, int layer, const int32_t *ids, int n, uint64_t due);
/* Requests the promotion of an expert that the processor has computed in tier 1. Of more than
 * LOADER_PROMOTIONS the oldest is dropped. */
void loader_queue_promotion(struct loader *l, int layer, int expert);
/* Drops prefetch requests of layers that have begun: the expert is a demand by now, or the
 * prediction was wrong. */
void loader_queue_drop_stale(struct loader *l);
/* Replaces the read-ahead list of this layer, or if it has none that of the lower layer of the two.
 */
void loader_queue_read_ahead(struct loader *l, int layer, const int32_t *ids, int n);
/* Drops both read-ahead lists and their pins. False: both were empty. */
bool loader_queue_clear_read_ahead(struct loader *l);
/* Carries out the deferred access accounting and queues its demotions. True: there were some. */
bool loader_flush_accesses(struct loader *l);
/* Sets prefetch_share by the useful share of the latest prefetched experts. */
void loader_judge_prefetch(struct loader *l);
/* With a card: the cache gives out slots of tier 1 as far as it is pinned now. */
void loader_limit_tier1(struct loader *l);
/* Takes the next work of the I/O thread from the queue. False: none can be done now. */
bool loader_next_work(struct loader *l, struct work *w);

/* ---- loader_io.c ---- */

void *loader_io_main(void *loader);
/* The transfer's done callback. Takes the lock. */
void loader_transfer_done(
	void *loader, int32_t slot, uint64_t bytes_read, const struct err *failure);
/* Tells the I/O thread to look at the queue. Any thread. */
void loader_wake(struct loader *l);

/* ---- loader.c ---- */
void loader_close(struct expert_source *s);

#endif
