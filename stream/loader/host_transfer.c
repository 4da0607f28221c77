/* SPDX-License-Identifier: MIT */
/*
 * Loads and demotions where the host reaches both tiers: reads go straight into the slot, and a
 * copy between the tiers is a memcpy within the call.
 *
 * A load from a file consists of parts: chunks being read, and hashes of chunks. The load ends when
 * its last part ends, also when one has failed: until then the reader may write to the slot.
 *
 * A load that is not checked has one chunk for each read of its plan. The reads of a load that is
 * checked are cut into chunks of about a slice of the reader. One thread of the check pool hashes
 * the chunks of a read in the order of their offsets, while later ones are still being read: at the
 * end of a load only the hash of the last chunk is left (load_check.h). Chunks complete in any
 * order, so one may have to wait for an earlier one of its read.
 */
#include "stream/loader/host_transfer.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

#define NONE        (-1)
#define CHUNKS_MAX  64u /* of a read */
#define CHUNK_ALIGN 4096u

/* The tag of a request of the reader: the chunk's number in its read, and slot and read. */
#define TAG_OF(slot, read, chunk)                                                                  \
	((uint64_t)(chunk) << 48 | ((uint64_t)(slot)*EXTENT_PARTS + (read)))
#define TAG_CHUNK(tag) ((unsigned)((tag) >> 48))
#define TAG_PLACE(tag) ((tag) & (((uint64_t)1 << 48) - 1))

/* A read of a load that is checked. */
struct host_read {
	struct check_task task; /* first: the pointers are exchanged; adds memory[bytes] to `run` */
	struct span_check *run;
	const uint8_t *memory; /* [bytes], from `at` on in the slot */
	uint64_t at, bytes;
	int32_t slot;
	bool hashing;       /* the check pool has the task */
	uint64_t completed; /* bit c: chunk c has been read */
	unsigned read;      /* its number in the plan */
};

/* The load into one slot. */
struct host_load {
	struct transfer_request q;
	unsigned parts_left; /* chunks being read, tasks of the check pool, host_submit_reads itself */
	uint64_t bytes_read;
	struct err *failure;      /* of the first part that failed */
	struct load_check *check; /* NULL: nothing is compared */
	uint64_t slice_bytes;     /* of a load that is checked: least bytes of a chunk */
	bool reread;
	int32_t next_reread; /* slot, in host_transfer.rereads */
};

struct host_transfer {
	struct transfer base;                    /* first: the pointers are exchanged */
	struct host_load *loads;                 /* [n_slots] */
	struct host_read (*reads)[EXTENT_PARTS]; /* [n_slots]; NULL: nothing is compared */
	struct load_check_pool checks;
	int32_t rereads; /* slots whose loads are to begin again; NONE */
};

static struct host_transfer *host_of(struct transfer *t)
{
	return (struct host_transfer *)t;
}

/* ---- chunks ---- */

/* Chunks of a read are of this length; the last one is up to twice as long. */
static uint64_t chunk_bytes(const struct host_load *x, const struct extent_read *r)
{
	return MAX(x->slice_bytes, num_align_up(r->bytes / CHUNKS_MAX, CHUNK_ALIGN));
}

static unsigned count_chunks(const struct host_load *x, const struct extent_read *r)
{
	return x->check ? (unsigned)MAX(r->bytes / chunk_bytes(x, r), 1) : 1;
}

/* ---- check values ---- */

/* In a thread of the pool. */
static void host_hash_chunks(struct check_task *task)
{
	const struct host_read *k = (struct host_read *)task;
	span_check_add(k->run, k->at, k->memory, k->bytes);
}

/* Posts the completed chunks of a read that are next in order, as one task. */
static void host_post_chunks(struct host_transfer *h, struct host_read *k)
{
	struct host_load *x = &h->loads[k->slot];
	struct read_check *c = &x->check->reads[k->read];
	const struct extent_plan p = transfer_plan(&h->base, &x->q);
	const struct extent_read *r = &p.reads[k->read];
	const unsigned n = count_chunks(x, r), first = c->next_chunk;
	if (k->hashing || x->failure)
		return;
	while (c->next_chunk < n && k->completed >> c->next_chunk & 1)
		c->next_chunk++;
	if (c->next_chunk == first)
		return;
	const uint64_t from = first * chunk_bytes(x, r);
	k->run = &c->run;
	k->at = r->dst_offset + from;
	k->bytes = (c->next_chunk == n ? r->bytes : c->next_chunk * chunk_bytes(x, r)) - from;
	k->memory = x->q.dst + k->at;
	k->hashing = true;
	k->task.hash = host_hash_chunks;
	x->parts_left++;
	check_pool_post(h->base.config.check_pool, c->thread, &k->task);
}

/* All parts of a checked load have succeeded. False: the bytes were wrong for the first time, and
 * the load is queued to be read again. */
static bool host_judge_load(struct transfer *t, struct host_load *x)
{
	struct host_transfer *h = host_of(t);
	if (transfer_judge_load(t, &x->q, x->check, x->reread, &x->failure))
		return true;
	x->reread = true;
	x->next_reread = h->rereads;
	h->rereads = x->q.slot;
	return false;
}

/* A part has ended. After the last one `done` is called. */
static void host_part_done(struct transfer *t, int32_t slot)
{
	struct host_transfer *h = host_of(t);
	struct host_load *x = &h->loads[slot];
	if (--x->parts_left || (x->check && !x->failure && !host_judge_load(t, x)))
		return;
	load_check_release(&h->checks, x->check);
	x->check = NULL;
	t->config.done(t->config.arg, slot, x->bytes_read, x->failure);
	transfer_drop_failure(&x->failure);
}

static void host_read_done(struct transfer *t, const struct reader_completion *c)
{
	struct host_transfer *h = host_of(t);
	const int32_t slot = (int32_t)(TAG_PLACE(c->tag) / EXTENT_PARTS);
	struct host_load *x = &h->loads[slot];
	if (c->code) {
		struct err why = {0};
		reader_completion_err(t->config.reader, c, &why);
		transfer_keep_failure(&x->failure, &why);
	} else if (x->check) {
		struct host_read *k = &h->reads[slot][TAG_PLACE(c->tag) % EXTENT_PARTS];
		k->completed |= (uint64_t)1 << TAG_CHUNK(c->tag);
		host_post_chunks(h, k);
	}
	host_part_done(t, slot);
}

/* Ends the tasks of chunks that were hashed. */
static bool host_poll_checks(struct transfer *t)
{
	bool any = false;
	for (struct check_task *task; (task = check_pool_take(t->config.check_pool)); any = true) {
		struct host_read *k = (struct host_read *)task;
		t->config.check->figures.ns += k->task.ns;
		k->hashing = false;
		host_post_chunks(host_of(t), k);
		host_part_done(t, k->slot);
	}
	return any;
}

/* ---- loads ---- */

/* For a load that is due for a check. Without memory for it the load fails. */
static void host_acquire_check(struct transfer *t, struct host_load *x, const struct extent_plan *p)
{
	struct host_transfer *h = host_of(t);
	if (!(x->check = transfer_acquire_check(t, &h->checks, &x->q, &x->failure)))
		return;
	x->slice_bytes = num_align_up(reader_setting(t->config.reader).slice_bytes, CHUNK_ALIGN);
	for (unsigned i = 0; i < p->n_reads; i++)
		h->reads[x->q.slot][i] = (struct host_read){.slot = x->q.slot, .read = i};
}

static void host_submit_chunk(struct transfer *t, const struct host_load *x,
	const struct extent_read *r, unsigned read, unsigned chunk, unsigned n_chunks)
{
	const uint64_t from = chunk ? chunk * chunk_bytes(x, r) : 0;
	const bool last = chunk + 1 == n_chunks;
	const struct reader_request request = {
		.file = r->file,
		.offset = r->offset + from,
		.bytes = last ? r->bytes - from : chunk_bytes(x, r),
		.need = last && r->need ? r->need - from : 0,
		.dst = x->q.dst + r->dst_offset + from,
		.tag = TAG_OF(x->q.slot, read, chunk),
		/* a reread is late, and a demand may wait for it by now */
		.urgent = x->q.priority == TRANSFER_DEMAND || x->reread,
	};
	int rc;
	while ((rc = reader_submit(t->config.reader, &request)) == READER_BUSY)
		transfer_reap(t, 1, -1);
	if (rc)
		bug("the reader refused expert %d of layer %d: code %d", x->q.expert, x->q.layer, rc);
}

/* Submits the reads of a load from a file. */
static void host_submit_reads(struct transfer *t, int32_t slot, bool check)
{
	struct host_load *x = &host_of(t)->loads[slot];
	const struct extent_plan p = transfer_plan(t, &x->q);
	unsigned n_chunks[EXTENT_PARTS];
	x->bytes_read += p.read_bytes;
	x->parts_left = 1; /* this call, which may take completions */
	if (check)
		host_acquire_check(t, x, &p);
	for (unsigned i = 0; i < p.n_reads; i++)
		x->parts_left += n_chunks[i] = count_chunks(x, &p.reads[i]);
#ifdef LOADER_POISON
	memset(x->q.dst, READER_POISON, p.dst_bytes);
#endif
	for (unsigned i = 0; i < p.n_reads; i++)
		for (unsigned c = 0; c < n_chunks[i]; c++)
			host_submit_chunk(t, x, &p.reads[i], i, c, n_chunks[i]);
	host_part_done(t, slot);
}

static void host_copy(struct transfer *t, const struct transfer_request *q)
{
	memcpy(q->dst, q->src, q->bytes);
	t->config.done(t->config.arg, q->slot, 0, NULL);
}

static void host_load(struct transfer *t, const struct transfer_request *q)
{
	if (q->src) {
		host_copy(t, q);
		return;
	}
	host_of(t)->loads[q->slot] = (struct host_load){.q = *q};
	host_submit_reads(t, q->slot, expert_check_due(t->config.check, q->layer, q->expert));
}

static bool host_can_demote(struct transfer *t)
{
	(void)t;
	return true;
}

static bool tag_names_slot(const void *slot, uint64_t tag)
{
	return TAG_PLACE(tag) / EXTENT_PARTS == (uint64_t) * (const int32_t *)slot;
}

static void host_boost(struct transfer *t, int32_t slot)
{
	reader_boost(t->config.reader, tag_names_slot, &slot);
}

static bool host_run(struct transfer *t)
{
	struct host_transfer *h = host_of(t);
	const bool any = host_poll_checks(t) || h->rereads != NONE;
	while (h->rereads != NONE) {
		const int32_t slot = h->rereads;
		h->rereads = h->loads[slot].next_reread;
		load_check_release(&h->checks, h->loads[slot].check);
		host_submit_reads(t, slot, true);
	}
	return any;
}

static bool host_copying(const struct transfer *t)
{
	(void)t;
	return false;
}

static void host_nothing(struct transfer *t)
{
	(void)t;
}

static void host_close(struct transfer *t)
{
	struct host_transfer *h = host_of(t);
	for (int i = 0; h->loads && i < t->config.n_slots; i++) {
		transfer_drop_failure(&h->loads[i].failure);
		load_check_release(&h->checks, h->loads[i].check);
	}
	load_check_pool_fini(&h->checks);
	free(h->loads);
	free(h->reads);
	free(h);
}

static const struct transfer_ops host_ops = {
	.close = host_close,
	.attach = host_nothing,
	.load = host_load,
	.can_demote = host_can_demote,
	.demote = host_copy,
	.boost = host_boost,
	.read_done = host_read_done,
	.run = host_run,
	.copying = host_copying,
	.drain = host_nothing,
};

struct transfer *host_transfer_open(const struct transfer_config *config)
{
	struct host_transfer *h = NEW(struct host_transfer);
	h->base.ops = &host_ops;
	h->base.config = *config;
	h->rereads = NONE;
	const size_t n_slots = (size_t)config->n_slots;
	h->loads = mem_try_new(n_slots, sizeof *h->loads);
	if (config->check->values)
		h->reads = mem_try_new(n_slots, sizeof *h->reads);
	if (h->loads && (h->reads || !config->check->values))
		return &h->base;
	host_close(&h->base);
	return NULL;
}
