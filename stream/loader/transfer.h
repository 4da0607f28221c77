/* SPDX-License-Identifier: MIT */
/*
 * Moves the bytes of experts between files and the two tiers of slots:
 *
 *     load      file or slot of tier 1 --> slot of tier 0
 *     load      file                   --> slot of tier 1 (to_tier1)
 *     load      file --> slot of tier 1 (keep) --> slot of tier 0, with a card only
 *     demotion  slot of tier 0         --> slot of tier 1
 *
 * A struct transfer does all of this for one source; a single one is called a load or a demotion.
 * It knows slots by number and address, and nothing of the cache, of policies and of waiting
 * threads. Two implementations: host_transfer.c, where the host reaches both tiers, and
 * card_transfer.c, where tier 0 is a card's memory.
 *
 * In order of use:
 *   1. host_transfer_open or card_transfer_open
 *   2. ops->attach, by the thread that makes all further calls except ops->close
 *   3. ops->load, ops->boost, and ops->demote if ops->can_demote is true, in the order in which the
 *      cache decides; ops->run and transfer_reap while anything is in flight
 *   4. reader_drain, ops->drain and ops->close: `done` is not called for loads and demotions that
 *      are still in flight
 *
 * Contract:
 *   - At most one load or demotion is in flight into a slot.
 *   - With a card the slots of tier 1 in requests lie within what is pinned of it.
 *   - A demotion moves the bytes that its source slot holds when ops->demote is called. A load into
 *     that slot may be given next: it is ordered behind the copy of the old bytes.
 *   - A load from a file whose expert is due for a check (expert_check.h) succeeds only if its
 *     bytes match the check values. If they do not, the expert is read again once, past the page
 *     cache; if they are wrong again, the load fails.
 *   - `done` is called once for each load and demotion that ends before step 4, by the thread of
 *     step 2, from within these calls. From then on nothing writes to the slot. failure NULL: the
 *     slot holds its bytes; else the error, lent for the call. bytes_read: from files.
 */
#ifndef GLM_STREAM_TRANSFER_H
#define GLM_STREAM_TRANSFER_H

#include "stream/check/check_pool.h"
#include "stream/check/expert_check.h"
#include "stream/extent.h"
#include "stream/loader/load_check.h"
#include "stream/reader/reader.h"

#include "src/base/host/clock.h"

#include <stdatomic.h>

/*
 * Priorities, highest first. Two functions apply them:
 *   - loader_next_work (loader_queue.c), under the loader's lock, chooses the expert that the
 *     transfer gets next. Boosts go first, then the loads and demotions that the cache has
 *     decided, in their order, since a slot is emptied before it is filled. Read-ahead, prefetch
 *     and warm-up get a slot only when nothing decided is left, in the order of this list.
 *   - start_next (card_transfer.c), without the lock, chooses the chunk that starts next. It goes
 *     through the list once for loads from tier 1, which need the link only, and once for loads
 *     from files; demotions come last. So a prefetch from tier 1 may start before a demand's read.
 *
 * The reader below knows urgent requests (of demands) and others.
 */
enum transfer_priority {
	TRANSFER_DEMAND,     /* the compute thread waits for the expert, or is about to */
	TRANSFER_READ_AHEAD, /* prefill: the experts of this layer and the next, in order of use */
	TRANSFER_PREFETCH,   /* decode: predicted experts */
	TRANSFER_WARM,       /* experts of an earlier run's profile */
	TRANSFER_DEMOTION,   /* waits for a gap on the link: the bytes are not needed in tier 1 yet */
};
#define TRANSFER_LOAD_PRIORITIES TRANSFER_DEMOTION /* a load has a priority below this */

struct transfer_request {
	int32_t slot;          /* that is filled */
	int32_t layer, expert; /* whose bytes are moved */
	enum transfer_priority priority;
	const uint8_t *src; /* load: in tier 1, or NULL: its file; demotion: in tier 0 */
	uint8_t *dst;
	bool to_tier1;  /* load: dst is in tier 1, and src is NULL */
	uint8_t *keep;  /* load from a file to a card: pinned memory of tier 1 [bytes] that the file is
					 * read to in place of staging buffers, and that holds the bytes when the load
					 * ends; NULL: none */
	uint64_t bytes; /* of a slot of this expert */
};

/* Time during which something was in flight. */
struct busy_clock {
	bool busy;
	uint64_t since_ns; /* while busy: since when */
	uint64_t ns;       /* of the busy intervals that have ended */
};

struct transfer_traffic {
	struct busy_clock disk, in, out;
	uint64_t bytes_in, bytes_out; /* to the card, from the card */
	struct check_figures checks;  /* of experts read from files */
	struct reader_setting setting;
};

typedef void transfer_done_fn(
	void *arg, int32_t slot, uint64_t bytes_read, const struct err *failure);

struct transfer;

struct transfer_ops {
	void (*close)(struct transfer *t);  /* frees it; nothing is in flight */
	void (*attach)(struct transfer *t); /* the calling thread makes the calls from now on */
	void (*load)(struct transfer *t, const struct transfer_request *q);
	bool (*can_demote)(struct transfer *t); /* whether `demote` may be called now */
	void (*demote)(struct transfer *t, const struct transfer_request *q);
	/* Makes the load or demotion into this slot a demand. No effect when it has ended. */
	void (*boost)(struct transfer *t, int32_t slot);
	void (*read_done)(struct transfer *t, const struct reader_completion *c); /* transfer_reap */
	/* Polls copies and checks, and starts what can be started. False: nothing changed. */
	bool (*run)(struct transfer *t);
	bool (*copying)(const struct transfer *t); /* copies are in flight, or demotions staged */
	void (*drain)(struct transfer *t);         /* waits: no copy touches memory afterwards */
};

/* What both implementations are given. */
struct transfer_config {
	struct reader *reader;            /* lent; its reads are the transfer's */
	const struct extent_table *table; /* lent */
	struct expert_check *check;       /* lent, the transfer's while it is open */
	struct check_pool *check_pool;    /* lent, closed before the transfer */
	int n_slots;
	transfer_done_fn *done;
	void *arg;
};

/* Implementations put this first in their own struct. Everything belongs to the calling thread,
 * except under_pressure. */
struct transfer {
	const struct transfer_ops *ops;
	struct transfer_config config;
	struct transfer_traffic traffic;
	atomic_bool under_pressure; /* demotions do not wait for a gap; any thread may set it */
};

/* Hands up to a batch of completed reads to the implementation. Waits until `min` are there or
 * timeout_ms have passed, as reader_reap does. Returns their number. */
int transfer_reap(struct transfer *t, unsigned min, int timeout_ms);
/* Starts queued reads, without waiting. */
void transfer_flush_reads(struct transfer *t);
/* The reads of a load from a file; the expert exists (else bug()). */
struct extent_plan transfer_plan(const struct transfer *t, const struct transfer_request *q);
/* A load_check for a load from a file that is due for a check. NULL: no memory, and *failure says
 * so (transfer_keep_failure). */
struct load_check *transfer_acquire_check(struct transfer *t, struct load_check_pool *p,
	const struct transfer_request *q, struct err **failure);
/* The verdict on a load, all chunks of which were hashed; reread: it has been read twice. Counts it
 * in the figures. True: the load has ended; if its bytes were wrong twice, *failure is set. False:
 * they were wrong for the first time and have been dropped from the page cache, so that the second
 * read, which the caller starts, comes from the drive. */
bool transfer_judge_load(struct transfer *t, const struct transfer_request *q,
	const struct load_check *check, bool reread, struct err **failure);
/* Keeps a copy of *e as the error of a load or demotion, unless *failure is set: the first one
 * counts. Without memory for it, a constant error is kept that says so. */
void transfer_keep_failure(struct err **failure, const struct err *e);
void transfer_drop_failure(struct err **failure); /* sets it to NULL */
/* The figures up to now, running times included. */
struct transfer_traffic transfer_traffic_now(const struct transfer *t);

static inline void busy_clock_set(struct busy_clock *c, bool busy)
{
	if (c->busy == busy)
		return;
	uint64_t now = clock_ns();
	if (busy)
		c->since_ns = now;
	else
		c->ns += now - c->since_ns;
	c->busy = busy;
}

#endif
