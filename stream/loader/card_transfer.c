/* SPDX-License-Identifier: MIT */
/*
 * One slot_transfer per slot counts the parts that are left: chunks being read, copies in flight,
 * chunks to be compared with check values, and the queue entry itself as long as not all chunks
 * were started. When the last part ends, `done` is called. Until then a read or copy may write to
 * the slot, also after a failure.
 *
 * Check values are compared by the check pool while the chunks are copied to the card: a chunk
 * stays in its staging buffer until it is copied and hashed. One thread of the pool hashes all
 * chunks of a read of the plan, in the order of their offsets; the reads of a load are hashed side
 * by side (load_check.h). Chunks come in any order, so one may have to wait for an earlier one of
 * its read before it is posted.
 *
 * A load into tier 1 (to_tier1) reads its chunks into the slot itself. Each takes a staging buffer
 * all the same, whose memory is not used: buffers bound the number of chunks being read. So does a
 * load that keeps its bytes in tier 1 (keep): its chunks are copied to the card from there.
 *
 * Everything here belongs to the thread that called attach, except in open and close. While a chunk
 * is hashed, its read's check belongs to the pool's thread, which also reads the buffer.
 */
#include "stream/loader/card_transfer.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "stream/loader/copy_ring.h"

#include <stdlib.h>
#include <string.h>

/* A load from tier 1 that is no demand moves in equal chunks of at most TIER1_CHUNK_BYTES, of which
 * TIER1_CHUNKS_MAX are in flight: a demand waits for these at most. An expert of GLM-5.2 in 2-bit
 * types (9.7 MB) is one chunk; chunks of 3 MB were no faster (tests/bench/results/tried.md). */
#define TIER1_CHUNK_BYTES ((uint64_t)16 << 20)
#define TIER1_CHUNKS_MAX  2
/* At most STAGED_WAITING_MAX staged demotions wait for gaps. In a gap one chunk of
 * DEMOTION_CHUNK_BYTES is copied, which takes 50 us. A demotion that does not wait is copied whole,
 * with DEMOTIONS_IN_FLIGHT copies in flight so that the link is never idle between them. */
#define STAGED_WAITING_MAX   7
#define DEMOTION_CHUNK_BYTES ((size_t)5 << 19)
#define DEMOTIONS_IN_FLIGHT  2
/* Reads of predicted experts in flight: nearly enough to keep a drive busy, and few enough that a
 * demand does not wait long behind them. */
#define PREDICTED_READS_MAX 6
/* A demotion requests that so many steps of tier 1 behind the last used slot are pinned, at least
 * the bytes of a slot. */
#define PIN_AHEAD_STEPS 8

#define NONE (-1)

/* Loads from files and from tier 1 have queues of their own, so that neither waits for the other.
 */
enum load_source { FROM_FILE, FROM_TIER1, LOAD_SOURCES };

/* The load or demotion into one slot. */
struct slot_transfer {
	unsigned parts_left;
	uint64_t bytes_read; /* from its file */
	struct err *failure; /* of its first part that failed; NULL: none */
	/* of a load */
	struct transfer_request q; /* the priority is the present one */
	enum copy_stream stream;   /* of all its copies */
	int32_t next;              /* slot, in its queue */
	unsigned next_read;        /* from a file: read of the plan that the next chunk is of */
	uint64_t next_at;          /* offset of the next chunk in that read; from tier 1: in the slot */
	struct load_check *check;  /* NULL: its bytes are not compared */
	bool reread;               /* its bytes were wrong, and it has begun again */
};

/* Slots whose loads have chunks left to start, in the order in which they were given. */
struct slot_queue {
	int32_t head, tail;
};

/* A staging buffer on the host. */
struct buffer {
	struct check_task task; /* first: the pointers are exchanged; adds memory[bytes] to `run` */
	struct span_check *run;
	const uint8_t *memory;
	uint64_t bytes;
	int32_t next_free;
	int32_t slot; /* the chunk in it belongs to */
	uint64_t dst_offset;
	bool demand, predicted; /* how its read is counted */
	unsigned read, chunk;   /* the read of the plan, and the chunk's number in it */
	unsigned holders;       /* reference count: the copy and the check */
	bool waits;             /* the chunk was read and is not posted to the check pool yet */
};

/* A demotion in a device staging slot with chunks left to start. */
struct staged {
	int32_t slot, staging_slot;
	bool demand;
	uint64_t staging_fence;
	uint8_t *dst;
	uint64_t bytes, next_at;
};

struct card_transfer {
	struct transfer base; /* first: the pointers are exchanged */
	struct card_memory *memory;
	uint64_t demotion_chunk_bytes;
	struct slot_transfer *slots; /* [n_slots] */
	/* loads with chunks left to start */
	struct slot_queue queues[LOAD_SOURCES][TRANSFER_LOAD_PRIORITIES];
	struct buffer *buffers; /* [n_buffers] */
	int32_t free_buffer;
	unsigned n_free_buffers;
	struct load_check_pool checks;
	unsigned n_demand_reads, n_other_reads; /* chunks being read */
	unsigned n_predicted_reads;             /* of the latter: of predicted experts */
	unsigned n_tier1_chunks;                /* in flight in the stream COPY_AHEAD */
	/* copies in flight */
	struct copy_ring in, ahead, out;
	/* demotions with chunks left to start, in the order in which they leave */
	struct staged staged[DEVICE_STAGING_SLOTS];
	unsigned n_staged;
	int32_t free_staging[DEVICE_STAGING_SLOTS];
	unsigned n_free_staging;
	size_t tier1_used; /* bytes of tier 1 up to the end of the last slot that was ever filled, if
						* that is of the largest size */
};

static struct card_transfer *card_of(struct transfer *t)
{
	return (struct card_transfer *)t;
}

/* ---- parts of a load or demotion ---- */

static void copy_in(struct card_transfer *t, int32_t slot, uint64_t dst_offset, const uint8_t *src,
	uint64_t bytes, enum copy_release release, int32_t released);
static struct slot_queue *queue_of(struct card_transfer *t, const struct slot_transfer *x);
static void queue_push(struct card_transfer *t, struct slot_queue *q, int32_t slot);

static void copy_failed(struct slot_transfer *x, const struct err *e)
{
	struct err why = *e;
	err_prefix(&why, "copy to or from the card");
	transfer_keep_failure(&x->failure, &why);
}

static void read_failed(
	struct slot_transfer *x, const struct reader *r, const struct reader_completion *c)
{
	struct err why = {0};
	reader_completion_err(r, c, &why);
	transfer_keep_failure(&x->failure, &why);
}

/* The slot of tier 1 at `slot` is about to be filled. */
static void note_tier1_use(struct card_transfer *t, const uint8_t *slot)
{
	const size_t at = (size_t)(slot - t->memory->tier1.base);
	t->tier1_used = MAX(t->tier1_used, at + (size_t)t->memory->plan.slot_bytes);
}

/* Requests that tier 1 is pinned so far that the slots behind the last used one can be filled. */
static void request_more_tier1(const struct card_transfer *t)
{
	struct pinned *tier1 = &t->memory->tier1;
	pinned_request(tier1,
		t->tier1_used + MAX(PIN_AHEAD_STEPS * tier1->step, (size_t)t->memory->plan.slot_bytes));
}

/* Puts a load into its queue, from its first byte on. */
static void begin_load(
	struct card_transfer *t, const struct transfer_request *q, bool reread, uint64_t bytes_read)
{
	struct slot_transfer *x = &t->slots[q->slot];
	*x = (struct slot_transfer){
		.parts_left = 1, /* the queue entry */
		.q = *q,
		.stream = q->priority == TRANSFER_DEMAND ? COPY_IN : COPY_AHEAD,
		.reread = reread,
		.bytes_read = bytes_read,
	};
	if (q->to_tier1 || q->keep)
		note_tier1_use(t, q->to_tier1 ? q->dst : q->keep);
	if (!q->src && expert_check_due(t->base.config.check, q->layer, q->expert))
		x->check = transfer_acquire_check(&t->base, &t->checks, q, &x->failure);
#ifdef LOADER_POISON
	if (q->keep)
		memset(q->keep, READER_POISON, q->bytes);
	x->parts_left++;
	if (q->to_tier1) {
		memset(q->dst, READER_POISON, q->bytes);
		x->parts_left--;
	} else {
		copy_in(t, q->slot, 0, t->memory->poison, q->bytes, RELEASE_NOTHING, NONE);
	}
#endif
	queue_push(t, queue_of(t, x), q->slot);
}

/* All chunks of a checked load were copied and hashed. False: the bytes were wrong for the first
 * time and the load was queued again. */
static bool judge_load(struct card_transfer *t, struct slot_transfer *x)
{
	const struct transfer_request q = x->q;
	if (transfer_judge_load(&t->base, &q, x->check, x->reread, &x->failure))
		return true;
	load_check_release(&t->checks, x->check);
	begin_load(t, &q, true, x->bytes_read);
	return false;
}

/* The last part reports the slot. */
static void part_done(struct card_transfer *t, int32_t slot)
{
	struct slot_transfer *x = &t->slots[slot];
	if (--x->parts_left || (x->check && !x->failure && !judge_load(t, x)))
		return;
	load_check_release(&t->checks, x->check);
	x->check = NULL;
	struct err *failure = x->failure;
	x->failure = NULL;
	t->base.config.done(t->base.config.arg, slot, x->bytes_read, failure);
	transfer_drop_failure(&failure);
}

/* ---- staging buffers ---- */

static void buffer_release(struct card_transfer *t, int32_t buffer)
{
	t->buffers[buffer].next_free = t->free_buffer;
	t->free_buffer = buffer;
	t->n_free_buffers++;
}

static int32_t buffer_acquire(struct card_transfer *t)
{
	int32_t buffer = t->free_buffer;
	t->free_buffer = t->buffers[buffer].next_free;
	t->n_free_buffers--;
	return buffer;
}

static uint8_t *buffer_memory(const struct card_transfer *t, int32_t buffer)
{
	return t->memory->host_staging.base + (uint64_t)buffer * t->memory->plan.buffer_bytes;
}

/* Where the bytes of a chunk are read to: into tier 1 itself, or into the buffer's memory.
 * dst_offset: of the chunk in its slot. */
static uint8_t *chunk_memory(const struct card_transfer *t, const struct transfer_request *q,
	int32_t buffer, uint64_t dst_offset)
{
	uint8_t *in_tier1 = q->to_tier1 ? q->dst : q->keep;
	return in_tier1 ? in_tier1 + dst_offset : buffer_memory(t, buffer);
}

/* Drops one reference: the copy or the check of the chunk has ended. */
static void buffer_unref(struct card_transfer *t, int32_t buffer)
{
	if (!--t->buffers[buffer].holders)
		buffer_release(t, buffer);
}

/* A load has failed. Its chunks that wait to be hashed never will be, since an earlier chunk is
 * missing: releases them. The caller still holds a part, so the load does not end in here. */
static void drop_waiting_chunks(struct card_transfer *t, int32_t slot)
{
	for (unsigned i = 0; t->slots[slot].check && i < t->memory->plan.n_buffers; i++) {
		struct buffer *b = &t->buffers[i];
		if (!b->waits || b->slot != slot)
			continue;
		b->waits = false;
		buffer_unref(t, (int32_t)i);
		part_done(t, slot);
	}
}

/* ---- copies in flight ---- */

/* A copy between the card and the host, in parts where a step of the pinned memory ends. */
static void copy_in_parts(struct card_transfer *t, enum copy_stream stream, uint8_t *dst,
	const uint8_t *src, uint64_t bytes)
{
	struct copier *x = t->memory->copier;
	for (uint64_t n; bytes; dst += n, src += n, bytes -= n) {
		n = pinned_contiguous_bytes(&t->memory->tier1, stream == COPY_OUT ? dst : src, bytes);
		x->ops->copy(x, stream, dst, src, n);
	}
}

/* Copies a chunk of a load into its slot. */
static void copy_in(struct card_transfer *t, int32_t slot, uint64_t dst_offset, const uint8_t *src,
	uint64_t bytes, enum copy_release release, int32_t released)
{
	const struct slot_transfer *x = &t->slots[slot];
	struct copier *copier = t->memory->copier;
	copy_in_parts(t, x->stream, x->q.dst + dst_offset, src, bytes);
	t->base.traffic.bytes_in += bytes;
	copy_ring_push(x->stream == COPY_IN ? &t->in : &t->ahead,
		(struct copy){.fence = copier->ops->fence(copier, x->stream),
			.slot = slot,
			.release = release,
			.released = released});
}

/* As copier_ops.fence_status. A demotion copies from the staging slot, not from the slot: both
 * copies must have succeeded. */
static int copy_poll(struct copier *x, const struct copy *c, struct err *e)
{
	int rc = x->ops->fence_status(x, c->fence, e);
	return rc > 0 && c->staging_fence ? x->ops->fence_status(x, c->staging_fence, e) : rc;
}

static bool poll_copies(struct card_transfer *t, struct copy_ring *q)
{
	if (!q->n)
		return false;
	struct err e = {0};
	bool any = false;
	for (; q->n; any = true) {
		int rc = copy_poll(t->memory->copier, &q->ring[q->first], &e);
		if (!rc)
			break;
		struct copy c = copy_ring_pop(q);
		if (rc < 0)
			copy_failed(&t->slots[c.slot], &e);
		t->n_tier1_chunks -= c.release == RELEASE_TIER1_CHUNK && q == &t->ahead;
		if (c.release == RELEASE_STAGING_SLOT)
			t->free_staging[t->n_free_staging++] = c.released;
		else if (c.release == RELEASE_BUFFER)
			buffer_unref(t, c.released);
		if (rc < 0)
			drop_waiting_chunks(t, c.slot);
		part_done(t, c.slot);
	}
	return any;
}

/* ---- check values ---- */

/* In a thread of the pool. */
static void hash_chunk(struct check_task *task)
{
	const struct buffer *b = (struct buffer *)task;
	span_check_add(b->run, b->dst_offset, b->memory, b->bytes);
}

/* Posts the chunks of a read to the check pool, in order, up to the first that has not come. */
static void post_chunks_to_check(struct card_transfer *t, int32_t slot, unsigned read)
{
	struct read_check *k = &t->slots[slot].check->reads[read];
	for (unsigned i = 0; i < t->memory->plan.n_buffers; i++) {
		struct buffer *b = &t->buffers[i];
		if (!b->waits || b->slot != slot || b->read != read || b->chunk != k->next_chunk)
			continue;
		b->waits = false;
		b->task.hash = hash_chunk;
		b->run = &k->run;
		b->memory = chunk_memory(t, &t->slots[slot].q, (int32_t)i, b->dst_offset);
		check_pool_post(t->base.config.check_pool, k->thread, &b->task);
		k->next_chunk++;
		i = UINT32_MAX; /* the next one may be in any buffer */
	}
}

/* Ends the checks of chunks that were hashed. */
static bool poll_checks(struct card_transfer *t)
{
	bool any = false;
	for (struct check_task *k; (k = check_pool_take(t->base.config.check_pool)); any = true) {
		const struct buffer *b = (struct buffer *)k;
		const int32_t slot = b->slot;
		t->base.config.check->figures.ns += k->ns;
		buffer_unref(t, (int32_t)(b - t->buffers));
		part_done(t, slot);
	}
	return any;
}

/* ---- reads that have ended ---- */

static void card_read_done(struct transfer *base, const struct reader_completion *c)
{
	struct card_transfer *t = card_of(base);
	int32_t buffer = (int32_t)c->tag;
	const struct buffer b = t->buffers[buffer];
	struct slot_transfer *x = &t->slots[b.slot];
	t->n_predicted_reads -= b.predicted;
	*(b.demand ? &t->n_demand_reads : &t->n_other_reads) -= 1;
	if (c->code)
		read_failed(x, base->config.reader, c);
	if (x->failure) {
		drop_waiting_chunks(t, b.slot);
		buffer_release(t, buffer);
		part_done(t, b.slot);
		return;
	}
	t->buffers[buffer].holders = 1 + !!x->check;
	t->buffers[buffer].waits = x->check != NULL;
	t->buffers[buffer].bytes = c->bytes;
	x->parts_left += !!x->check;
	if (!x->q.to_tier1)
		copy_in(t, b.slot, b.dst_offset, chunk_memory(t, &x->q, buffer, b.dst_offset), c->bytes,
			RELEASE_BUFFER, buffer);
	if (x->check)
		post_chunks_to_check(t, b.slot, b.read);
	if (x->q.to_tier1) { /* the read has put it into its slot */
		buffer_unref(t, buffer);
		part_done(t, b.slot);
	}
}

/* ---- queues of loads ---- */

static struct slot_queue *queue_of(struct card_transfer *t, const struct slot_transfer *x)
{
	return &t->queues[x->q.src ? FROM_TIER1 : FROM_FILE][x->q.priority];
}

static void queue_push(struct card_transfer *t, struct slot_queue *q, int32_t slot)
{
	t->slots[slot].next = NONE;
	if (q->head == NONE)
		q->head = slot;
	else
		t->slots[q->tail].next = slot;
	q->tail = slot;
}

/* False: it is not in this queue. */
static bool queue_remove(struct card_transfer *t, struct slot_queue *q, int32_t slot)
{
	int32_t before = NONE, at = q->head;
	for (; at != NONE && at != slot; at = t->slots[at].next)
		before = at;
	if (at == NONE)
		return false;
	if (before == NONE)
		q->head = t->slots[at].next;
	else
		t->slots[before].next = t->slots[at].next;
	if (q->tail == at)
		q->tail = before;
	return true;
}

static void card_load(struct transfer *base, const struct transfer_request *q)
{
	begin_load(card_of(base), q, false, 0);
}

/* ---- starting chunks ---- */

enum start_result { START_BLOCKED, START_MORE, START_LAST };

/* The next chunk of a load from tier 1. */
static enum start_result start_tier1_chunk(struct card_transfer *t, int32_t slot)
{
	struct slot_transfer *x = &t->slots[slot];
	const uint64_t bytes = x->q.bytes;
	const bool demand = x->q.priority == TRANSFER_DEMAND;
	if (!demand && t->n_tier1_chunks >= TIER1_CHUNKS_MAX)
		return START_BLOCKED;
	uint64_t chunk =
		num_align_up(bytes / ((bytes + TIER1_CHUNK_BYTES - 1) / TIER1_CHUNK_BYTES), 4096);
	uint64_t n = demand ? bytes - x->next_at : MIN(bytes - x->next_at, chunk);
	x->parts_left++;
	t->n_tier1_chunks += x->stream == COPY_AHEAD;
	copy_in(t, slot, x->next_at, x->q.src + x->next_at, n, RELEASE_TIER1_CHUNK, NONE);
	x->next_at += n;
	return x->next_at == bytes ? START_LAST : START_MORE;
}

/* Whether a staging buffer and a place at the drive may be taken. */
static bool may_read(const struct card_transfer *t, enum transfer_priority priority)
{
	const unsigned reads_max = reader_useful_depth(t->base.config.reader);
	if (priority == TRANSFER_DEMAND)
		return t->n_free_buffers && t->n_demand_reads < reads_max;
	return t->n_free_buffers > t->memory->plan.n_buffers / 3 &&
		   t->n_demand_reads + t->n_other_reads < reads_max &&
		   (priority < TRANSFER_PREFETCH || t->n_predicted_reads < PREDICTED_READS_MAX);
}

/* The next chunk of a load from a file. */
static enum start_result start_read(struct card_transfer *t, int32_t slot)
{
	struct slot_transfer *x = &t->slots[slot];
	struct reader *reader = t->base.config.reader;
	if (!may_read(t, x->q.priority))
		return START_BLOCKED;
	const struct extent_plan p = transfer_plan(&t->base, &x->q);
	const struct extent_read *r = &p.reads[x->next_read];
	uint64_t step = reader_slice_step(r->bytes, reader_staging_bytes(reader)),
			 n = MIN(step, r->bytes - x->next_at);
	const bool demand = x->q.priority == TRANSFER_DEMAND,
			   predicted = x->q.priority >= TRANSFER_PREFETCH;
	int32_t buffer = buffer_acquire(t);
	struct reader_request q = {
		.file = r->file,
		.offset = r->offset + x->next_at,
		.bytes = n,
		.need = MIN(n, r->need - x->next_at),
		.dst = chunk_memory(t, &x->q, buffer, r->dst_offset + x->next_at),
		.tag = (uint64_t)buffer,
		.urgent = demand,
	};
	int rc = reader_submit(reader, &q);
	if (rc) {
		buffer_release(t, buffer);
		if (rc != READER_BUSY)
			bug("the reader refused expert %d of layer %d: code %d", x->q.expert, x->q.layer, rc);
		return START_BLOCKED;
	}
	t->buffers[buffer] = (struct buffer){.slot = slot,
		.dst_offset = r->dst_offset + x->next_at,
		.demand = demand,
		.predicted = predicted,
		.read = x->next_read,
		.chunk = (unsigned)(x->next_at / step)};
	t->n_predicted_reads += predicted;
	*(demand ? &t->n_demand_reads : &t->n_other_reads) += 1;
	x->parts_left++;
	x->bytes_read += n;
	x->next_at += step;
	if (x->next_at >= r->need) {
		x->next_at = 0;
		x->next_read++;
	}
	return x->next_read == p.n_reads ? START_LAST : START_MORE;
}

/* Starts chunks of the queue's loads, in order, as far as there is room. */
static bool start_loads(struct card_transfer *t, struct slot_queue *q)
{
	bool any = false;
	while (q->head != NONE) {
		int32_t slot = q->head;
		const struct slot_transfer *x = &t->slots[slot];
		enum start_result rc = x->failure ? START_LAST /* no more of it is started */
							   : x->q.src ? start_tier1_chunk(t, slot)
										  : start_read(t, slot);
		if (rc == START_BLOCKED)
			break;
		any = true;
		if (rc == START_MORE)
			continue;
		q->head = x->next;
		part_done(t, slot);
	}
	return any;
}

/* Starts copies of staged demotions to the host, as far as they may start now. */
static bool start_demotions(struct card_transfer *t)
{
	struct copier *x = t->memory->copier;
	bool any = false, pressure = atomic_load(&t->base.under_pressure);
	for (; t->n_staged; any = true) {
		struct staged *d = &t->staged[0];
		bool now = pressure || d->demand || t->n_staged > STAGED_WAITING_MAX;
		bool gap = !t->in.n && !t->ahead.n && !t->out.n;
		if (now ? t->out.n >= DEMOTIONS_IN_FLIGHT : !gap)
			break;
		const uint64_t left = d->bytes - d->next_at;
		const bool last = now || left <= t->demotion_chunk_bytes;
		const uint64_t n = last ? left : t->demotion_chunk_bytes;
		copy_in_parts(t, COPY_OUT, d->dst + d->next_at,
			t->memory->device_staging + (uint64_t)d->staging_slot * t->memory->plan.slot_bytes +
				d->next_at,
			n);
		t->base.traffic.bytes_out += n;
		copy_ring_push(&t->out, (struct copy){.fence = x->ops->fence(x, COPY_OUT),
									.staging_fence = d->staging_fence,
									.slot = d->slot,
									.release = last ? RELEASE_STAGING_SLOT : RELEASE_NOTHING,
									.released = d->staging_slot});
		d->next_at += n;
		if (last)
			memmove(&t->staged[0], &t->staged[1], --t->n_staged * sizeof *d);
		else
			t->slots[d->slot].parts_left++;
	}
	return any;
}

/* Starts what drive and link can take: loads by priority, those from tier 1 before those from files
 * since they need the link only; then demotions. */
static bool start_next(struct card_transfer *t)
{
	bool any = false;
	for (int source = LOAD_SOURCES - 1; source >= 0; source--)
		for (int priority = 0; priority < TRANSFER_LOAD_PRIORITIES; priority++)
			any |= start_loads(t, &t->queues[source][priority]);
	return any | start_demotions(t);
}

static bool card_run(struct transfer *base)
{
	struct card_transfer *t = card_of(base);
	bool any = poll_copies(t, &t->in);
	any |= poll_copies(t, &t->ahead);
	any |= poll_copies(t, &t->out);
	any |= poll_checks(t);
	any |= start_next(t);
	busy_clock_set(&base->traffic.in, t->in.n + t->ahead.n > 0);
	busy_clock_set(&base->traffic.out, t->out.n > 0);
	return any;
}

static bool card_copying(const struct transfer *base)
{
	const struct card_transfer *t = (const struct card_transfer *)base;
	return t->in.n || t->ahead.n || t->out.n || t->n_staged;
}

/* ---- demotions ---- */

static bool card_can_demote(struct transfer *base)
{
	return card_of(base)->n_free_staging > 0;
}

/* Moves a staged demotion to the front and makes it a demand. False: none is staged for this slot.
 */
static bool boost_staged(struct card_transfer *t, int32_t slot)
{
	unsigned i = 0;
	while (i < t->n_staged && t->staged[i].slot != slot)
		i++;
	if (i == t->n_staged)
		return false;
	struct staged d = t->staged[i];
	d.demand = true;
	memmove(&t->staged[1], &t->staged[0], i * sizeof d);
	t->staged[0] = d;
	return true;
}

static void card_demote(struct transfer *base, const struct transfer_request *q)
{
	struct card_transfer *t = card_of(base);
	struct copier *x = t->memory->copier;
	t->slots[q->slot] = (struct slot_transfer){.parts_left = 1}; /* the last chunk out */
	note_tier1_use(t, q->dst);
	request_more_tier1(t);
	int32_t staging_slot = t->free_staging[--t->n_free_staging];
	uint8_t *staging =
		t->memory->device_staging + (uint64_t)staging_slot * t->memory->plan.slot_bytes;
	x->ops->copy(x, COPY_WITHIN, staging, q->src, q->bytes);
	uint64_t fence = x->ops->fence(x, COPY_WITHIN);
	x->ops->stream_wait(x, COPY_IN, fence); /* later loads into q->src come behind the copy */
	x->ops->stream_wait(x, COPY_AHEAD, fence);
	x->ops->stream_wait(x, COPY_OUT, fence);
	t->staged[t->n_staged++] = (struct staged){.slot = q->slot,
		.staging_slot = staging_slot,
		.staging_fence = fence,
		.dst = q->dst,
		.bytes = q->bytes};
	if (q->priority == TRANSFER_DEMAND)
		boost_staged(t, q->slot);
}

static void card_boost(struct transfer *base, int32_t slot)
{
	struct card_transfer *t = card_of(base);
	struct slot_transfer *x = &t->slots[slot];
	if (boost_staged(t, slot) || x->q.priority == TRANSFER_DEMAND ||
		!queue_remove(t, queue_of(t, x), slot))
		return; /* a demand already, or all its chunks have started */
	x->q.priority = TRANSFER_DEMAND;
	queue_push(t, queue_of(t, x), slot);
}

/* ---- life ---- */

static void card_attach(struct transfer *t)
{
	struct copier *x = card_of(t)->memory->copier;
	x->ops->attach(x);
}

static void card_drain(struct transfer *t)
{
	struct copier *x = card_of(t)->memory->copier;
	x->ops->drain(x);
}

static void card_close(struct transfer *base)
{
	struct card_transfer *t = card_of(base);
	for (int i = 0; t->slots && i < base->config.n_slots; i++) {
		transfer_drop_failure(&t->slots[i].failure);
		load_check_release(&t->checks, t->slots[i].check);
	}
	load_check_pool_fini(&t->checks);
	free(t->slots);
	free(t->buffers);
	free(t->in.ring);
	free(t->ahead.ring);
	free(t->out.ring);
	free(t);
}

static const struct transfer_ops card_ops = {
	.close = card_close,
	.attach = card_attach,
	.load = card_load,
	.can_demote = card_can_demote,
	.demote = card_demote,
	.boost = card_boost,
	.read_done = card_read_done,
	.run = card_run,
	.copying = card_copying,
	.drain = card_drain,
};

struct transfer *card_transfer_open(
	const struct transfer_config *config, struct card_memory *memory, size_t demotion_chunk_bytes)
{
	struct card_transfer *t = NEW(struct card_transfer);
	const unsigned n_buffers = memory->plan.n_buffers;
	const size_t n_slots = (size_t)config->n_slots;
	t->base.ops = &card_ops;
	t->base.config = *config;
	t->memory = memory;
	t->demotion_chunk_bytes = demotion_chunk_bytes ? demotion_chunk_bytes : DEMOTION_CHUNK_BYTES;
	t->slots = mem_try_new(n_slots, sizeof *t->slots);
	t->buffers = mem_try_new(n_buffers, sizeof *t->buffers);
	if (!t->slots || !t->buffers || !copy_ring_init(&t->in, n_buffers + 2 * n_slots) ||
		!copy_ring_init(&t->ahead, n_buffers + TIER1_CHUNKS_MAX + n_slots) ||
		!copy_ring_init(&t->out, DEMOTIONS_IN_FLIGHT)) {
		card_close(&t->base);
		return NULL;
	}
	reader_register(config->reader, memory->host_staging.base, memory->host_staging.bytes);
	t->free_buffer = NONE;
	for (unsigned i = n_buffers; i-- > 0;)
		buffer_release(t, (int32_t)i);
	for (int32_t i = DEVICE_STAGING_SLOTS; i-- > 0;)
		t->free_staging[t->n_free_staging++] = i;
	for (int source = 0; source < LOAD_SOURCES; source++)
		for (int priority = 0; priority < TRANSFER_LOAD_PRIORITIES; priority++)
			t->queues[source][priority].head = NONE;
	return &t->base;
}
