/* SPDX-License-Identifier: MIT */
#include "stream/access_recorder.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

struct access_recorder {
	struct expert_source base; /* first: the pointers are exchanged */
	struct expert_source *inner;
	struct profile *profile;
	struct trace_writer *trace;
	bool with_steps;
	int32_t *ids;   /* [n_experts] scratch of an acquire */
	uint8_t *tiers; /* [n_experts] */
};

static struct access_recorder *recorder_of(struct expert_source *s)
{
	return (struct access_recorder *)s;
}

static void recorder_step(struct expert_source *s, enum expert_use use, int rows, int position)
{
	struct access_recorder *r = recorder_of(s);
	if (r->trace && r->with_steps)
		trace_write_step(
			r->trace, use == EXPERT_PREFILL ? CACHE_PREFILL : CACHE_DECODE, rows, position);
	if (r->inner->ops->step)
		r->inner->ops->step(r->inner, use, rows, position);
}

static void record_access(
	struct access_recorder *r, int layer, enum expert_use use, const struct expert_ref *refs, int n)
{
	static const uint8_t tier[] = {
		[EXPERT_VRAM] = TRACE_VRAM, [EXPERT_RAM] = TRACE_RAM, [EXPERT_DISK] = TRACE_DISK};
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

/* What the inner source has waited since its wait_ns was `before`. */
static void record_wait(struct access_recorder *r, int layer, uint64_t before)
{
	if (r->trace && r->inner->stats.wait_ns > before)
		trace_write_wait(r->trace, layer, r->inner->stats.wait_ns - before);
}

static int recorder_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	struct access_recorder *r = recorder_of(s);
	const uint64_t before = r->inner->stats.wait_ns;
	r->inner->cancel = s->cancel;
	int rc = r->inner->ops->acquire(r->inner, layer, use, refs, n, e);
	if (rc >= 0)
		record_access(r, layer, use, refs, n);
	record_wait(r, layer, before);
	s->stats = r->inner->stats;
	return rc;
}

static int recorder_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct access_recorder *r = recorder_of(s);
	const uint64_t before = r->inner->stats.wait_ns;
	int rc = r->inner->ops->wait_ready(r->inner, layer, refs, n, e);
	record_wait(r, layer, before);
	s->stats = r->inner->stats;
	return rc;
}

static int recorder_poll_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct access_recorder *r = recorder_of(s);
	int rc = r->inner->ops->poll_ready(r->inner, layer, refs, n, e);
	s->stats = r->inner->stats;
	return rc;
}

static void recorder_release(
	struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	struct access_recorder *r = recorder_of(s);
	r->inner->ops->release(r->inner, layer, refs, n);
	s->stats = r->inner->stats;
}

static void recorder_prefetch(
	struct expert_source *s, int layer, const int32_t *ids, int n, int distance)
{
	struct access_recorder *r = recorder_of(s);
	if (r->trace)
		trace_write_prediction(r->trace, layer, distance, ids, n);
	if (r->inner->ops->prefetch && distance <= r->inner->lookahead)
		r->inner->ops->prefetch(r->inner, layer, ids, n, distance);
}

static void recorder_keep_rows(struct expert_source *s, int first, int n)
{
	struct access_recorder *r = recorder_of(s);
	if (r->inner->ops->keep_rows)
		r->inner->ops->keep_rows(r->inner, first, n);
}

static void recorder_read_ahead(struct expert_source *s, int layer, const int32_t *ids, int n)
{
	struct access_recorder *r = recorder_of(s);
	if (r->inner->ops->read_ahead)
		r->inner->ops->read_ahead(r->inner, layer, ids, n);
}

static void recorder_close(struct expert_source *s)
{
	struct access_recorder *r = recorder_of(s);
	r->inner->ops->close(r->inner);
	free(r->ids);
	free(r->tiers);
	free(r);
}

static const struct expert_source_ops recorder_ops = {
	.name = "recorder",
	.close = recorder_close,
	.step = recorder_step,
	.acquire = recorder_acquire,
	.wait_ready = recorder_wait_ready,
	.poll_ready = recorder_poll_ready,
	.release = recorder_release,
	.prefetch = recorder_prefetch,
	.keep_rows = recorder_keep_rows,
	.read_ahead = recorder_read_ahead,
};

struct expert_source *access_recorder_open(struct expert_source *inner, struct profile *profile,
	struct trace_writer *trace, uint32_t n_experts, int lookahead, bool with_steps)
{
	struct access_recorder *r = NEW(struct access_recorder);
	r->base = (struct expert_source){
		.ops = &recorder_ops,
		.max_pinned = {inner->max_pinned[0], inner->max_pinned[1]},
		.lookahead = MAX(lookahead, inner->lookahead),
	};
	r->inner = inner;
	r->profile = profile;
	r->trace = trace;
	r->with_steps = with_steps;
	r->ids = NEW_ARRAY(int32_t, n_experts);
	r->tiers = NEW_ARRAY(uint8_t, n_experts);
	return &r->base;
}
