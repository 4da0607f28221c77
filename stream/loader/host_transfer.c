/* SPDX-License-Identifier: MIT */
/*
 * The tag of a read is its slot and its number in the plan. A load from a file is over when its
 * last read has completed, also when an earlier one failed: until then somebody may write to the
 * slot.
 *
 * The check pool compares the bytes of each read with check values as soon as the read is complete.
 * A checked read is over when its check is.
 */
#include "stream/loader/host_transfer.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/xxh3/xxh3.h"

#include <stdlib.h>
#include <string.h>

#define NONE (-1)

/* The check of the bytes of one read. */
struct host_check {
	struct check_task task; /* first: the pointers are exchanged */
	const struct host_transfer *h;
	int32_t slot;
	unsigned read;                /* its number in the plan */
	unsigned n_wrong, wrong_span; /* how many spans differ; the first of them, */
	uint64_t wrong_value;         /* ... and its value */
};

/* The load into one slot. */
struct host_load {
	struct transfer_request q;
	unsigned reads_left; /* to be read, or to be hashed */
	uint64_t bytes_read;
	struct err *failure; /* of the first read that failed */
	/* of a load that is checked */
	bool checked, reread;
	unsigned n_wrong, wrong_span; /* as in host_check, of all reads */
	uint64_t wrong_value;
	int32_t next_reread; /* slot, in host_transfer.rereads */
};

struct host_transfer {
	struct transfer base;                      /* first: the pointers are exchanged */
	struct host_load *loads;                   /* [n_slots] */
	struct host_check (*checks)[EXTENT_PARTS]; /* [n_slots]; NULL: nothing is compared */
	int32_t rereads;                           /* slots whose loads are to begin again; NONE */
};

static struct host_transfer *host_of(struct transfer *t)
{
	return (struct host_transfer *)t;
}

static struct extent_plan plan_of(const struct transfer *t, const struct transfer_request *q)
{
	struct extent_plan p;
	if (extent_plan(t->config.table, (uint32_t)q->layer, (uint32_t)q->expert, &p))
		bug("no extents for expert %d of layer %d", q->expert, q->layer);
	return p;
}

/* Compares the parts of the expert that a read has brought. In a thread of the pool. */
static void host_hash_read(struct check_task *task)
{
	struct host_check *k = (struct host_check *)task;
	const struct transfer *t = &k->h->base;
	const struct transfer_request *q = &k->h->loads[k->slot].q;
	struct checked_span spans[EXTENT_PARTS];
	const struct extent_plan p = plan_of(t, q);
	const struct extent_read *r = &p.reads[k->read];
	const unsigned n = expert_check_spans(t->config.check, &p, q->layer, q->expert, spans);
	for (unsigned i = 0; i < n; i++) {
		if (spans[i].begin < r->dst_offset || spans[i].begin >= r->dst_offset + r->bytes)
			continue;
		const uint64_t found = xxh3_of(q->dst + spans[i].begin, spans[i].end - spans[i].begin);
		if (found != spans[i].expected && !k->n_wrong++) {
			k->wrong_span = i;
			k->wrong_value = found;
		}
	}
}

static void host_post_check(struct transfer *t, int32_t slot, unsigned read)
{
	struct host_check *k = &host_of(t)->checks[slot][read];
	*k = (struct host_check){
		.task.hash = host_hash_read, .h = host_of(t), .slot = slot, .read = read};
	check_pool_post(t->config.check_pool, check_pool_next_thread(t->config.check_pool), &k->task);
}

/* All reads of a checked load have succeeded and were hashed. False: the bytes were wrong for the
 * first time, and the load is queued to be read again. */
static bool host_judge_load(struct transfer *t, struct host_load *x)
{
	struct host_transfer *h = host_of(t);
	struct expert_check *c = t->config.check;
	const struct transfer_request *q = &x->q;
	c->figures.checked += !x->reread;
	if (!x->n_wrong) {
		expert_check_passed(c, q->layer, q->expert);
		return true;
	}
	const struct extent_plan p = plan_of(t, q);
	if (!x->reread) {
		transfer_prepare_reread(t, &p);
		x->reread = true;
		x->next_reread = h->rereads;
		h->rereads = q->slot;
		return false;
	}
	c->figures.wrong++;
	struct err why = {0};
	expert_check_err(c, &p, q->layer, q->expert, x->wrong_span, x->wrong_value, &why);
	transfer_keep_failure(&x->failure, &why);
	return true;
}

/* A read is over. The last one reports the slot. */
static void host_part_done(struct transfer *t, int32_t slot)
{
	struct host_load *x = &host_of(t)->loads[slot];
	if (--x->reads_left || (x->checked && !x->failure && !host_judge_load(t, x)))
		return;
	t->config.done(t->config.arg, slot, x->bytes_read, x->failure);
	transfer_drop_failure(&x->failure);
}

static void host_read_done(struct transfer *t, const struct reader_completion *c)
{
	const int32_t slot = (int32_t)(c->tag / EXTENT_PARTS);
	struct host_load *x = &host_of(t)->loads[slot];
	if (c->code) {
		struct err why = {0};
		reader_completion_err(t->config.reader, c, &why);
		transfer_keep_failure(&x->failure, &why);
	}
	if (x->checked && !x->failure)
		host_post_check(t, slot, (unsigned)(c->tag % EXTENT_PARTS));
	else
		host_part_done(t, slot);
}

/* Ends the checks of reads whose bytes were hashed. */
static bool host_poll_checks(struct transfer *t)
{
	bool any = false;
	for (struct check_task *task; (task = check_pool_take(t->config.check_pool)); any = true) {
		const struct host_check *k = (struct host_check *)task;
		struct host_load *x = &host_of(t)->loads[k->slot];
		t->config.check->figures.ns += k->task.ns;
		if (k->n_wrong && !x->n_wrong) {
			x->wrong_span = k->wrong_span;
			x->wrong_value = k->wrong_value;
		}
		x->n_wrong += k->n_wrong;
		host_part_done(t, k->slot);
	}
	return any;
}

/* Submits the reads of a load from a file. */
static void host_submit_reads(struct transfer *t, int32_t slot)
{
	struct host_load *x = &host_of(t)->loads[slot];
	const struct transfer_request q = x->q;
	const struct extent_plan p = plan_of(t, &q);
	x->reads_left = p.n_reads;
	x->bytes_read += p.read_bytes;
	x->n_wrong = 0;
#ifdef LOADER_POISON
	memset(q.dst, READER_POISON, p.dst_bytes);
#endif
	for (unsigned i = 0; i < p.n_reads; i++) {
		struct reader_request r = {
			.file = p.reads[i].file,
			.offset = p.reads[i].offset,
			.bytes = p.reads[i].bytes,
			.need = p.reads[i].need,
			.dst = q.dst + p.reads[i].dst_offset,
			.tag = (uint64_t)slot * EXTENT_PARTS + i,
			/* a reread is late, and a demand may wait for it by now */
			.urgent = q.priority == TRANSFER_DEMAND || x->reread,
		};
		int rc;
		while ((rc = reader_submit(t->config.reader, &r)) == READER_BUSY)
			transfer_reap(t, 1, -1);
		if (rc)
			bug("the reader refused expert %d of layer %d: code %d", q.expert, q.layer, rc);
	}
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
	struct host_load *x = &host_of(t)->loads[q->slot];
	*x = (struct host_load){
		.q = *q, .checked = expert_check_due(t->config.check, q->layer, q->expert)};
	host_submit_reads(t, q->slot);
}

static bool host_can_demote(struct transfer *t, const struct transfer_request *q)
{
	(void)t;
	(void)q;
	return true;
}

static void host_boost(struct transfer *t, int32_t slot)
{
	(void)t;
	(void)slot; /* not called: without a card the loader queues no boosts */
}

static bool host_run(struct transfer *t)
{
	struct host_transfer *h = host_of(t);
	const bool any = host_poll_checks(t) || h->rereads != NONE;
	while (h->rereads != NONE) {
		const int32_t slot = h->rereads;
		h->rereads = h->loads[slot].next_reread;
		host_submit_reads(t, slot);
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
	for (int i = 0; h->loads && i < t->config.n_slots; i++)
		transfer_drop_failure(&h->loads[i].failure);
	free(h->loads);
	free(h->checks);
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
		h->checks = mem_try_new(n_slots, sizeof *h->checks);
	if (h->loads && (h->checks || !config->check->values))
		return &h->base;
	host_close(&h->base);
	return NULL;
}
