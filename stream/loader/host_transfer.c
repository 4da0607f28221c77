/* SPDX-License-Identifier: MIT */
/* The tag of a read is its slot. A load from a file is over when its last read has completed, also
 * when an earlier one failed: until then somebody may write to the slot. */
#include "stream/loader/host_transfer.h"

#include "src/base/log.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The load into one slot. */
struct host_load {
	unsigned reads_left;
	uint64_t bytes_read;
	struct err *failure; /* of the first read that failed */
};

struct host_transfer {
	struct transfer base;    /* first: the pointers are exchanged */
	struct host_load *loads; /* [n_slots] */
};

static struct host_transfer *host_of(struct transfer *t)
{
	return (struct host_transfer *)t;
}

static void host_read_done(struct transfer *t, const struct reader_completion *c)
{
	const int32_t slot = (int32_t)c->tag;
	struct host_load *x = &host_of(t)->loads[slot];
	if (c->code && !x->failure) {
		x->failure = NEW(struct err);
		reader_completion_err(t->config.reader, c, x->failure);
	}
	if (--x->reads_left)
		return;
	t->config.done(t->config.arg, slot, x->bytes_read, x->failure);
	free(x->failure);
	x->failure = NULL;
}

/* Submits the reads of a load from a file. */
static void host_submit_reads(struct transfer *t, const struct transfer_request *q)
{
	struct host_load *x = &host_of(t)->loads[q->slot];
	struct extent_plan p;
	if (extent_plan(t->config.table, (uint32_t)q->layer, (uint32_t)q->expert, &p))
		bug("no extents for expert %d of layer %d", q->expert, q->layer);
	x->reads_left = p.n_reads;
	x->bytes_read = p.read_bytes;
#ifdef LOADER_POISON
	memset(q->dst, READER_POISON, p.dst_bytes);
#endif
	for (unsigned i = 0; i < p.n_reads; i++) {
		struct reader_request r = {
			.file = p.reads[i].file,
			.offset = p.reads[i].offset,
			.bytes = p.reads[i].bytes,
			.need = p.reads[i].need,
			.dst = q->dst + p.reads[i].dst_offset,
			.tag = (uint64_t)q->slot,
			.urgent = q->priority == TRANSFER_DEMAND,
		};
		int rc;
		while ((rc = reader_submit(t->config.reader, &r)) == READER_BUSY)
			transfer_reap(t, 1, -1);
		if (rc)
			bug("the reader refused expert %d of layer %d: code %d", q->expert, q->layer, rc);
	}
}

static void host_copy(struct transfer *t, const struct transfer_request *q)
{
	memcpy(q->dst, q->src, q->bytes);
	t->config.done(t->config.arg, q->slot, 0, NULL);
}

static void host_load(struct transfer *t, const struct transfer_request *q)
{
	if (q->src)
		host_copy(t, q);
	else
		host_submit_reads(t, q);
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
	(void)t;
	return false;
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
	for (int i = 0; i < t->config.n_slots; i++)
		free(h->loads[i].failure);
	free(h->loads);
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
	h->loads = mem_try_new((size_t)config->n_slots, sizeof *h->loads);
	if (h->loads)
		return &h->base;
	free(h);
	return NULL;
}
