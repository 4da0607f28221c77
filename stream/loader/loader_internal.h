/* SPDX-License-Identifier: MIT */
/* The inside of the loader, for loader.c (open, close), loader_demand.c (compute side), loader_io.c
 * (I/O thread) and loader_card.c (its way to a card). */
#ifndef GLM_STREAM_LOADER_INTERNAL_H
#define GLM_STREAM_LOADER_INTERNAL_H

#include "cache/cache_steps.h" /* until the loader calls cache_acquire */
#include "stream/extent.h"
#include "stream/loader/loader.h"
#include "stream/pinned.h"

#include "src/base/clock.h"

#include <pthread.h>
#include <stdatomic.h>

/* Work that the I/O thread must do in the order in which it was decided: empty a slot, then fill
 * it. */
struct command {
	enum { COMMAND_MOVE, COMMAND_FILL, COMMAND_URGE } kind;
	int32_t slot; /* MOVE: the target; FILL: the slot to fill; URGE: one whose filling somebody
					 waits for now */
	int32_t layer, expert;
	uint64_t from_offset, to_offset, bytes; /* MOVE: tier 0 -> tier 1 */
	int32_t source;                         /* FILL: tier 1 slot that holds the bytes, -1: disk */
};

/* One per slot; guarded by the lock unless marked. */
struct fill {
	uint64_t
		serial; /* identifies this filling: a slot that was given out again has another number */
	int reads_left; /* I/O thread only: reads, or pieces on a card's way, that are under way */
	int code;       /* I/O thread only: first failure, and where */
	struct reader_completion failure_at;
	bool copy_failed;   /* I/O thread only: the failure is a copy's, not a read's */
	uint64_t bytes;     /* I/O thread only: read from disk by this filling */
	bool wanted;        /* somebody acquired it: counted in n_wanted, its failure is reported */
	bool prefetch;      /* started by a hint: counted in n_prefetch, */
	bool from_ram;      /* ... and in n_prefetch_ram: the bytes come from tier 1 */
	bool ahead;         /* staging: one pin is held by the announcement */
	uint16_t drop_pins; /* pins to give back once the bytes have landed */
};

/* The matrices of a layer's experts in their slots; `data` is empty. */
struct layer_views {
	struct weight w[EXTENT_PARTS];
	uint64_t offset[EXTENT_PARTS]; /* in the slot, */
	bool same;                     /* ... of every expert; false: ask extent_plan */
};

/* A call that the cache is owed. */
struct owed {
	enum { OWED_ACCESS, OWED_SPARE, OWED_HINT } kind;
	int32_t layer, expert;
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

/* Time during which at least one thing was under way. */
struct loader_busy {
	bool on;
	uint64_t since_ns, ns;
};

/* What went over the wires, counted by the I/O thread. */
struct loader_io {
	struct loader_busy disk_busy, in_busy, out_busy;
	uint64_t bytes_in, bytes_out; /* to the card, from the card */
};

/* What a card needs beside the tiers; all zero: the host reaches the backend's memory. */
struct loader_geometry {
	uint64_t slot_bytes;         /* of the largest expert */
	uint64_t piece_bytes;        /* a bounce buffer: pinned host memory that a read lands in */
	unsigned n_pieces;           /* of them */
	uint64_t host_staging_bytes; /* all of them */
	uint64_t
		device_staging_bytes; /* on the card: room for experts on their way to the second tier */
};

/* A card computes a layer in a fraction of a millisecond, and a drive reads an expert in several:
 * while demands come from the drive every few layers it is the limit, a guess can hide next to
 * nothing, and a wrong one delays what is wanted. So guesses are read from it when no demand was
 * for so many layers. (On the CPU a layer takes as long as its reads: no such rule.) */
#define LOADER_REST 8

struct card;

struct loader {
	struct expert_source base; /* first: the pointers are exchanged */
	/* constant after open */
	struct backend *backend;
	struct extent_table *table;
	int n_layers, n_experts, n_staging, n_slots;
	uint8_t *arena[2];
	size_t arena_bytes[2];
	struct layer_views *views; /* [n_layers] */
	unsigned most_prefetch;    /* prefetched experts under way at a time */
	pthread_t thread;
	bool thread_started;
	struct reader *reader; /* the I/O thread's, once it runs (reader_wake excepted) */
	struct card *card;     /* NULL: slots are read into directly. The I/O thread's, once it runs */
	struct loader_io io_now; /* the I/O thread's */
	atomic_bool poked;  /* something was queued or came free: set by loader_poke, cleared by the I/O
						   thread */
	atomic_bool asleep; /* the I/O thread, until reader_wake */
	atomic_bool
		hurry; /* a prompt runs, or the compute thread waits for room: demotions wait for no gap */
	atomic_uint n_landed; /* counts what was committed or aborted, for a wait without the lock */

	/* guarded by lock */
	pthread_mutex_t lock;
	pthread_cond_t landed; /* something was committed or aborted */
	struct cache *cache;
	struct fill *fills; /* [n_slots] */
	uint64_t serial;
	struct command *commands; /* ring of cap_commands */
	size_t cap_commands, first_command, n_commands;
	unsigned n_under_way;                          /* moves and fills decided and not yet landed */
	unsigned n_wanted, n_prefetch, n_prefetch_ram; /* fills under way */
	uint64_t bytes_read;
	struct loader_io io; /* io_now when something was last committed or aborted */
	struct owed
		*owed; /* [cap_owed] what the cache has yet to be told, in order: see loader_account */
	size_t cap_owed, n_owed;
	bool account; /* whoever waits for the compute thread's answer has it: the I/O thread may do it
				   */
	uint64_t moment;     /* layers acquired so far: the clock of hints */
	uint64_t drive_free; /* moment from which on the drive is taken to have time for guesses, see
							LOADER_REST */
	struct want wants[LOADER_WANTS_MAX];
	int n_wants;
	struct announcement ahead[2]; /* this layer and the next */
	struct profile_key *warm; /* [n_warm] read when nothing else is to be done, from next_warm on */
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
void loader_enqueue(struct loader *l, const struct cache_plan *plan, int layer, int expert,
	bool wanted, bool prefetch);

/* Tells the cache what acquires and hints have said, and keeps slots spare: what their answers need
 * not wait for. The I/O thread does it when it has nothing else to do; the compute thread before it
 * decides anything, so without guesses the cache hears of everything in the same order always.
 * Caller holds the lock. */
void loader_account(struct loader *l);

/* Unpins now, or when the bytes have landed. Caller holds the lock. */
void loader_unpin(struct loader *l, int32_t slot);

/* ---- loader_io.c ---- */
void *loader_io_main(void *loader);

/* Tells the I/O thread to look at the queues. Any thread. */
void loader_poke(struct loader *l);

/* The end of a filling or move; the second form makes the sentence from the read that failed, or
 * from the copy's. */
void loader_finish(struct loader *l, int32_t slot, const struct err *failure);
void loader_finish_failed(struct loader *l, int32_t slot, const struct err *copy);

static inline void loader_busy(struct loader_busy *b, bool on)
{
	if (b->on == on)
		return;
	uint64_t now = clock_ns();
	if (on)
		b->since_ns = now;
	else
		b->ns += now - b->since_ns;
	b->on = on;
}

/* ---- loader_card.c ---- */

/* 1 and what streaming to the card takes, or 0 when there is no card. */
int loader_geometry(const struct loader_options *o, const struct extent_table *t,
	const struct reader *r, struct loader_geometry *g);
/* Takes tier 0 and parking on the card, the bounce buffers, and begins to take tier 1. What is half
 * open is closed by loader_card_close. */
int loader_card_open(struct loader *l, const struct loader_options *o,
	const struct loader_geometry *g, struct err *e);
/* Waits until tier 1 is pinned. */
int loader_card_settle(struct loader *l, struct err *e);
/* ERR_MEMORY with the sentence when the second tier could not be pinned, else 0; never waits. */
int loader_card_refused(const struct loader *l, struct err *e);
void loader_card_go_on(struct loader *l); /* pins tier 1 at leisure */
void loader_card_stop(struct loader *l);  /* gives up pinning: before the reader is closed */
void loader_card_close(struct loader *l); /* after the reader */

/* The I/O thread: once, before all else; at the end, when no read is pending. */
void loader_card_attach(struct loader *l);
void loader_card_drain(struct loader *l);
/* Queues a filling of `bytes` at dst from disk, or from tier 1. */
void loader_card_fill(struct loader *l, const struct command *command, uint8_t *dst,
	const uint8_t *from, uint64_t bytes, bool urgent);
/* What is left of a queued filling goes before guesses from now on, and a demotion to this slot
 * before others, at once. */
void loader_card_urge(struct loader *l, int32_t slot);
/* Is there room to take this victim's bytes aside now, and is the place that they go to pinned? */
bool loader_card_can_move(struct loader *l, const struct command *command);
void loader_card_move(struct loader *l, const struct command *command);
/* A read that loader_card_run has submitted. */
void loader_card_landed(struct loader *l, const struct reader_completion *done);
/* Looks after copies and starts pieces; false: nothing moved. */
bool loader_card_run(struct loader *l);
bool loader_card_copying(const struct loader *l);

/* ---- loader.c ---- */
void loader_close(struct expert_source *s);

#endif
