/* SPDX-License-Identifier: MIT */
/* Everything is passed on; see source_record.h for what is noted on the way. */
#include "stream/source_record.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

struct source_record {
	struct expert_source base; /* first: the pointers are exchanged */
	struct expert_source *inner;
	struct profile *profile;
	struct trace_writer *trace;
	int32_t *ids;   /* [capacity] scratch of one acquire */
	uint8_t *tiers; /* [capacity] */
	int capacity;
};

static struct source_record *record_of(struct expert_source *s)
{
	return (struct source_record *)s;
}

static void record_step(struct expert_source *s, enum expert_use use, int rows, int position)
{
	struct source_record *r = record_of(s);
	if (r->trace)
		trace_write_step(
			r->trace, use == EXPERT_PREFILL ? CACHE_PREFILL : CACHE_DECODE, rows, position);
	if (r->inner->ops->step)
		r->inner->ops->step(r->inner, use, rows, position);
}

static void note(
	struct source_record *r, int layer, enum expert_use use, const struct expert_ref *refs, int n)
{
	static const uint8_t tier[] = {
		[EXPERT_VRAM] = TRACE_VRAM, [EXPERT_RAM] = TRACE_RAM, [EXPERT_DISK] = TRACE_DISK};
	if (n > r->capacity) {
		r->capacity = n;
		r->ids = mem_grow(r->ids, (size_t)n, sizeof *r->ids);
		r->tiers = mem_grow(r->tiers, (size_t)n, sizeof *r->tiers);
	}
	for (int i = 0; i < n; i++) {
		r->ids[i] = refs[i].id;
		r->tiers[i] = tier[refs[i].tier];
		if (r->profile)
			profile_count(r->profile, layer, refs[i].id);
	}
	if (r->trace)
		trace_write_access(r->trace, use == EXPERT_PREFILL ? CACHE_PREFILL : CACHE_DECODE, layer,
			r->ids, r->tiers, n);
}

static int record_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	struct source_record *r = record_of(s);
	r->inner->cancel = s->cancel;
	int rc = r->inner->ops->acquire(r->inner, layer, use, refs, n, e);
	if (rc >= 0)
		note(r, layer, use, refs, n);
	s->stats = r->inner->stats;
	return rc;
}

static int record_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct source_record *r = record_of(s);
	uint64_t before = r->inner->stats.wait_ns;
	int rc = r->inner->ops->wait_ready(r->inner, layer, refs, n, e);
	if (r->trace && r->inner->stats.wait_ns > before)
		trace_write_wait(r->trace, layer, r->inner->stats.wait_ns - before);
	s->stats = r->inner->stats;
	return rc;
}

static void record_release(struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	struct source_record *r = record_of(s);
	r->inner->ops->release(r->inner, layer, refs, n);
	s->stats = r->inner->stats;
}

static void record_prefetch(
	struct expert_source *s, int layer, const int32_t *ids, int n, int distance)
{
	struct source_record *r = record_of(s);
	if (r->trace)
		trace_write_prediction(r->trace, layer, distance, ids, n);
	if (r->inner->ops->prefetch && distance <= r->inner->lookahead)
		r->inner->ops->prefetch(r->inner, layer, ids, n, distance);
}

static void record_read_ahead(struct expert_source *s, int layer, const int32_t *ids, int n)
{
	struct source_record *r = record_of(s);
	if (r->inner->ops->read_ahead)
		r->inner->ops->read_ahead(r->inner, layer, ids, n);
}

static void record_close(struct expert_source *s)
{
	struct source_record *r = record_of(s);
	r->inner->ops->close(r->inner);
	free(r->ids);
	free(r->tiers);
	free(r);
}

static const struct expert_source_ops record_ops = {
	.name = "record",
	.close = record_close,
	.step = record_step,
	.acquire = record_acquire,
	.wait_ready = record_wait_ready,
	.release = record_release,
	.prefetch = record_prefetch,
	.read_ahead = record_read_ahead,
};

struct expert_source *source_record_open(
	struct expert_source *inner, struct profile *profile, struct trace_writer *trace, int lookahead)
{
	struct source_record *r = NEW(struct source_record);
	r->base = (struct expert_source){
		.ops = &record_ops,
		.max_pinned = {inner->max_pinned[0], inner->max_pinned[1]},
		.lookahead = MAX(lookahead, inner->lookahead),
	};
	r->inner = inner;
	r->profile = profile;
	r->trace = trace;
	return &r->base;
}

struct expert_source *source_record_inner(struct expert_source *s)
{
	return record_of(s)->inner;
}
