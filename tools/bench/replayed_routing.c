/* SPDX-License-Identifier: MIT */
/*
 * Ids are translated on the way to the inner source and back on return. The model keeps its own
 * ids, by which it finds rows and weights, and gets views of other experts. The translation of a
 * layer is kept until the layer's next acquire, because release may come much later.
 *
 * Each stage of an engine has a source of its own. Each source sees every step and counts its
 * position in the trace for itself, so all have the same one. They share the trace and the allowed
 * experts, which no step changes.
 */
#include "tools/bench/replayed_routing.h"

#include "cache/trace/trace.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISTANCES  4 /* predictions for more layers ahead are dropped */
#define NO_EXPERTS UINT32_MAX

/* The decode steps of a trace, of one token each. */
struct recorded_routing {
	uint32_t n_tokens, n_moe, k; /* n_moe: layers with experts of the trace */
	uint16_t *ids;               /* [n_tokens][n_moe][k] */
	uint16_t *predicted;         /* [n_tokens][DISTANCES][n_moe][k] */
	uint8_t *n_predicted;        /* [n_tokens][DISTANCES][n_moe] how many of them are there */
};

/* The source of one stage. */
struct replayed_source {
	struct expert_source base; /* first: the two pointers are cast */
	struct expert_source *inner;
	const struct replayed_routing *of;
	struct replayed_source *next; /* in `of` */
	uint32_t token, rows; /* the step begins with this token of the trace and has so many rows */
	uint32_t kept;        /* of which so many count, and are passed in the trace */
	uint32_t next_kept;   /* the same of the coming step; 0: all */
	uint32_t n_drafted;   /* steps of the MTP layer since the step */
	int32_t *map;         /* [n_layers + 1][n_experts] router's id -> expert that stands for it */
	int layer;            /* the current one, acquired in one or several groups; -1: none */
	int32_t *order;       /* [n_order] its experts, best first, each once; room for n_experts */
	bool *seen;           /* [n_experts] stands in `order` */
	uint32_t n_order, n_taken; /* of which acquired */
	int prefetch_layer, prefetch_distance;
	uint32_t prefetch_row; /* of the next prefetch for that layer and distance */
};

struct replayed_routing {
	struct replayed_routing_options o;
	struct recorded_routing trace;
	bool far;         /* rows that do not count use tokens half a trace further */
	int32_t *allowed; /* [n_layers + 1][n_experts] all experts, those that may be acquired first */
	uint32_t *n_allowed; /* [n_layers + 1] how many these are */
	struct replayed_source *sources;
};

static struct replayed_source *replayed_of(struct expert_source *s)
{
	return (struct replayed_source *)s;
}

/* ---- the trace ---- */

static void recorded_fini(struct recorded_routing *p)
{
	free(p->ids);
	free(p->predicted);
	free(p->n_predicted);
}

static uint16_t *recorded_ids(const struct recorded_routing *p, uint32_t token, uint32_t moe)
{
	return p->ids + ((size_t)token * p->n_moe + moe) * p->k;
}

static size_t prediction_at(
	const struct recorded_routing *p, uint32_t token, uint32_t distance, uint32_t moe)
{
	return ((size_t)token * DISTANCES + distance - 1) * p->n_moe + moe;
}

/* Fills p from the steps of one decoded token that name top_k experts in every layer but perhaps
 * the last (MTP). */
static void recorded_collect(
	struct recorded_routing *p, const struct trace *t, const uint32_t *moe_of)
{
	bool open = false;
	uint32_t filled = 0;
	for (size_t i = 0; i <= t->n_events; i++) {
		const struct trace_event *v = &t->events[i];
		if (i == t->n_events || v->kind == TRACE_STEP) {
			if (open && filled + 1 >= p->n_moe && filled)
				p->n_tokens++;
			if (i == t->n_events)
				break;
			open = v->use == CACHE_DECODE && v->n == 1;
			filled = 0;
			memset(p->n_predicted + prediction_at(p, p->n_tokens, 1, 0), 0,
				(size_t)DISTANCES * p->n_moe);
		} else if (!open || v->kind == TRACE_WAIT || moe_of[v->layer] == NO_EXPERTS) {
			continue;
		} else if (v->kind == TRACE_ACCESS && v->n == p->k) {
			memcpy(recorded_ids(p, p->n_tokens, moe_of[v->layer]), t->ids + v->value,
				p->k * sizeof *p->ids);
			filled++;
		} else if (v->kind == TRACE_PREDICTION && v->distance <= DISTANCES) {
			size_t at = prediction_at(p, p->n_tokens, v->distance, moe_of[v->layer]);
			p->n_predicted[at] = (uint8_t)MIN(v->n, p->k);
			memcpy(p->predicted + at * p->k, t->ids + v->value,
				p->n_predicted[at] * sizeof *p->predicted);
		}
	}
}

static int recorded_read(struct recorded_routing *p, const char *path, struct err *e)
{
	struct trace t = {0};
	uint64_t steps = 0;
	int rc = trace_open(path, &t, e);
	if (rc)
		return rc;
	uint32_t *moe_of = NEW_ARRAY(uint32_t, t.model.n_layers);
	for (uint32_t l = 0; l < t.model.n_layers; l++) {
		bool has = t.model.expert_bytes[l] > 0;
		moe_of[l] = has ? p->n_moe : NO_EXPERTS;
		p->n_moe += has;
	}
	for (size_t i = 0; i < t.n_events; i++)
		steps += t.events[i].kind == TRACE_STEP;
	steps++; /* room for one that is dropped at its end */
	p->k = MIN(t.model.top_k, 255u);
	size_t values = (size_t)p->n_moe * p->k;
	p->ids = mem_try_new(steps * values, sizeof *p->ids);
	p->predicted = mem_try_new(steps * values * DISTANCES, sizeof *p->predicted);
	p->n_predicted = mem_try_new(steps * p->n_moe * DISTANCES, 1);
	if (!p->ids || !p->predicted || !p->n_predicted)
		rc = err_set(
			e, ERR_MEMORY, "%s: no memory for its %llu steps", path, (unsigned long long)steps);
	else
		recorded_collect(p, &t, moe_of);
	if (!rc && !p->n_tokens)
		rc = err_set(e, ERR_INPUT, "%s: has no steps of one decoded token to replay", path);
	if (t.ends_early)
		log_warn("%s: %s", path, t.note);
	free(moe_of);
	trace_fini(&t);
	return rc;
}

/* ---- translation of ids ---- */

/* The experts of a layer, those that may be acquired first. */
static int32_t *allowed_experts(const struct replayed_routing *r, uint32_t layer)
{
	return r->allowed + (size_t)layer * r->o.n_experts;
}

/* Appends to the order of the current layer: `id` folded into the allowed experts, or the next one
 * that has not been taken. */
static void append_expert(struct replayed_source *r, uint32_t id)
{
	uint32_t layer = (uint32_t)r->layer, reach = r->of->n_allowed[layer];
	uint32_t most = r->n_order < reach ? reach : r->of->o.n_experts, i = id % most;
	while (r->seen[allowed_experts(r->of, layer)[i]])
		i = (i + 1) % most;
	int32_t expert = allowed_experts(r->of, layer)[i];
	r->seen[expert] = true;
	r->order[r->n_order++] = expert;
}

/* The token of the trace that a row of the step stands for. */
static uint32_t token_of_row(const struct replayed_source *r, uint32_t row)
{
	const uint32_t n = r->of->trace.n_tokens;
	return (r->token + row + (r->of->far && row >= r->kept ? n / 2 : 0)) % n;
}

static bool named_before(const struct replayed_source *of, uint32_t moe, uint32_t row, uint16_t id)
{
	const struct recorded_routing *p = &of->of->trace;
	for (uint32_t r = 0; r < row; r++) {
		const uint16_t *ids = recorded_ids(p, token_of_row(of, r), moe);
		for (uint32_t i = 0; i < p->k; i++)
			if (ids[i] == id)
				return true;
	}
	return false;
}

/* Begins a layer: the distinct expert ids that the trace has for the tokens of the step, in order.
 */
static void order_layer(struct replayed_source *r, int layer)
{
	const struct recorded_routing *p = &r->of->trace;
	r->layer = layer;
	r->n_order = r->n_taken = 0;
	memset(r->seen, 0, r->of->o.n_experts * sizeof *r->seen);
	for (uint32_t row = 0; p->n_tokens && row < r->rows; row++) {
		uint32_t moe = ((uint32_t)layer - r->of->o.n_dense) % p->n_moe;
		const uint16_t *ids = recorded_ids(p, token_of_row(r, row), moe);
		for (uint32_t i = 0; i < MIN(p->k, r->of->o.n_used) && r->n_order < r->of->o.n_experts; i++)
			if (!named_before(r, moe, row, ids[i]))
				append_expert(r, ids[i]);
	}
}

/* The same for one step of the MTP layer, which is one row. */
static void order_draft(struct replayed_source *r, int layer)
{
	const struct recorded_routing *p = &r->of->trace;
	r->layer = layer;
	r->n_order = r->n_taken = 0;
	memset(r->seen, 0, r->of->o.n_experts * sizeof *r->seen);
	if (!p->n_tokens)
		return;
	uint32_t token = (r->token + r->kept + r->n_drafted++) % p->n_tokens;
	const uint16_t *ids = recorded_ids(p, token, ((uint32_t)layer - r->of->o.n_dense) % p->n_moe);
	for (uint32_t i = 0; i < MIN(p->k, r->of->o.n_used); i++)
		append_expert(r, ids[i]);
}

/* The expert that stands for the router's next one. Beyond those of the trace: any other. */
static int32_t next_expert(struct replayed_source *r, int32_t id)
{
	if (r->n_taken == r->n_order)
		append_expert(r, r->of->trace.n_tokens ? r->n_order : (uint32_t)id);
	return r->order[r->n_taken++];
}

static bool is_replayed(const struct replayed_source *r, int layer)
{
	return layer >= (int)r->of->o.n_dense && layer <= (int)r->of->o.n_layers;
}

static void to_inner_ids(struct replayed_source *r, int layer, struct expert_ref *refs, int n)
{
	const int32_t *map = r->map + (size_t)layer * r->of->o.n_experts;
	for (int i = 0; i < n; i++)
		refs[i].id = map[refs[i].id];
}

/* Calls the inner source with its ids; refs has the model's again on return, after errors too. */
static int call_with_inner_ids(struct replayed_source *r, int layer, struct expert_ref *refs, int n,
	struct err *e,
	int (*call)(
		struct expert_source *inner, int layer, struct expert_ref *refs, int n, struct err *e))
{
	int32_t own[64], *ids = n <= (int)ARRAY_LEN(own) ? own : NEW_ARRAY(int32_t, (size_t)n);
	for (int i = 0; i < n; i++)
		ids[i] = refs[i].id;
	to_inner_ids(r, layer, refs, n);
	int rc = call(r->inner, layer, refs, n, e);
	for (int i = 0; i < n; i++)
		refs[i].id = ids[i];
	if (ids != own)
		free(ids);
	r->base.stats = r->inner->stats;
	return rc;
}

static int inner_acquire(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	return s->ops->acquire(s, layer, EXPERT_DECODE, refs, n, e);
}

static int inner_release(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	(void)e;
	s->ops->release(s, layer, refs, n);
	return 0;
}

static void replayed_step(struct expert_source *s, enum expert_use use, int rows, int position)
{
	struct replayed_source *r = replayed_of(s);
	if (use == EXPERT_DECODE) {
		r->token += r->kept; /* those of the step before */
		r->rows = (uint32_t)rows;
		r->kept = r->next_kept ? MIN(r->next_kept, r->rows) : r->rows;
		r->next_kept = r->n_drafted = 0;
		r->layer = r->prefetch_layer = -1;
	}
	if (r->inner->ops->step)
		r->inner->ops->step(r->inner, use, rows, position);
}

static int replayed_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	struct replayed_source *r = replayed_of(s);
	r->inner->cancel = s->cancel;
	if (!is_replayed(r, layer)) {
		int rc = r->inner->ops->acquire(r->inner, layer, use, refs, n, e);
		s->stats = r->inner->stats;
		return rc;
	}
	int32_t *map = r->map + (size_t)layer * r->of->o.n_experts;
	if (use == EXPERT_PREFILL) {
		for (int i = 0; i < n; i++)
			map[refs[i].id] = refs[i].id;
		int rc = r->inner->ops->acquire(r->inner, layer, use, refs, n, e);
		s->stats = r->inner->stats;
		return rc;
	}
	bool draft =
		layer == (int)r->of->o.n_layers; /* one row: a step is over when it has its experts */
	if (draft && (layer != r->layer || r->n_taken >= r->of->o.n_used))
		order_draft(r, layer);
	else if (layer != r->layer)
		order_layer(r, layer);
	for (int i = 0; i < n; i++)
		map[refs[i].id] = next_expert(r, refs[i].id);
	return call_with_inner_ids(r, layer, refs, n, e, inner_acquire);
}

static int replayed_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct replayed_source *r = replayed_of(s);
	if (is_replayed(r, layer))
		return call_with_inner_ids(r, layer, refs, n, e, r->inner->ops->wait_ready);
	int rc = r->inner->ops->wait_ready(r->inner, layer, refs, n, e);
	s->stats = r->inner->stats;
	return rc;
}

static int replayed_poll_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	struct replayed_source *r = replayed_of(s);
	if (is_replayed(r, layer))
		return call_with_inner_ids(r, layer, refs, n, e, r->inner->ops->poll_ready);
	int rc = r->inner->ops->poll_ready(r->inner, layer, refs, n, e);
	s->stats = r->inner->stats;
	return rc;
}

static void replayed_release(
	struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	struct replayed_source *r = replayed_of(s);
	if (!is_replayed(r, layer)) {
		r->inner->ops->release(r->inner, layer, refs, n);
		s->stats = r->inner->stats;
		return;
	}
	struct expert_ref few[64],
		*own = n <= (int)ARRAY_LEN(few) ? few : NEW_ARRAY(struct expert_ref, (size_t)n);
	memcpy(own, refs, (size_t)n * sizeof *own);
	call_with_inner_ids(r, layer, own, n, NULL, inner_release);
	if (own != few)
		free(own);
}

/* The model's prediction is dropped; the trace's takes its place, at the same time. */
static void replayed_prefetch(
	struct expert_source *s, int layer, const int32_t *ids, int n, int distance)
{
	struct replayed_source *r = replayed_of(s);
	const struct recorded_routing *p = &r->of->trace;
	int32_t named[255];
	if (!r->inner->ops->prefetch)
		return;
	if (!is_replayed(r, layer)) {
		r->inner->ops->prefetch(r->inner, layer, ids, n, distance);
		return;
	}
	if (!p->n_tokens || distance < 1 || distance > DISTANCES)
		return;
	r->prefetch_row =
		layer == r->prefetch_layer && distance == r->prefetch_distance ? r->prefetch_row + 1 : 0;
	r->prefetch_layer = layer;
	r->prefetch_distance = distance;
	uint32_t moe = ((uint32_t)layer - r->of->o.n_dense) % p->n_moe;
	size_t at = prediction_at(p, token_of_row(r, r->prefetch_row), (uint32_t)distance, moe);
	for (uint32_t i = 0; i < p->n_predicted[at]; i++)
		named[i] = allowed_experts(
			r->of, (uint32_t)layer)[p->predicted[at * p->k + i] % r->of->n_allowed[layer]];
	if (p->n_predicted[at])
		r->inner->ops->prefetch(r->inner, layer, named, p->n_predicted[at], distance);
}

static void replayed_keep_rows(struct expert_source *s, int first, int n)
{
	struct replayed_source *r = replayed_of(s);
	if (r->inner->ops->keep_rows)
		r->inner->ops->keep_rows(r->inner, first, n);
}

static void replayed_read_ahead(struct expert_source *s, int layer, const int32_t *ids, int n)
{
	struct replayed_source *r = replayed_of(s);
	if (r->inner->ops->read_ahead)
		r->inner->ops->read_ahead(r->inner, layer, ids, n);
}

static void replayed_close(struct expert_source *s)
{
	struct replayed_source *r = replayed_of(s);
	r->inner->ops->close(r->inner);
	r->inner = NULL;
}

static const struct expert_source_ops replayed_ops = {
	.name = "replayed",
	.close = replayed_close,
	.step = replayed_step,
	.acquire = replayed_acquire,
	.wait_ready = replayed_wait_ready,
	.poll_ready = replayed_poll_ready,
	.release = replayed_release,
	.prefetch = replayed_prefetch,
	.keep_rows = replayed_keep_rows,
	.read_ahead = replayed_read_ahead,
};

/* ---- all sources ---- */

static void log_routing(const struct replayed_routing *r)
{
	const struct recorded_routing *p = &r->trace;
	char confined[96] = "", layers[64] = "";
	if (r->o.confine)
		snprintf(confined, sizeof confined, ", confined to the first %u of %u experts of a layer",
			r->o.confine, r->o.n_experts);
	if (p->n_moe != r->o.n_layers - r->o.n_dense)
		snprintf(
			layers, sizeof layers, " of %u layers for %u", p->n_moe, r->o.n_layers - r->o.n_dense);
	if (p->n_tokens)
		log_info("routing: replayed, not the model's: %u tokens of %s%s%s", p->n_tokens, r->o.path,
			layers, confined);
	else
		log_info("routing: the model's%s", confined);
}

int replayed_routing_new(
	const struct replayed_routing_options *o, struct replayed_routing **out, struct err *e)
{
	*out = NULL;
	int rc = 0;
	if (o->confine && (o->confine < o->n_used || o->confine > o->n_experts))
		return err_set(e, ERR_USAGE, "routing cannot be confined to %u experts, %u to %u expected",
			o->confine, o->n_used, o->n_experts);
	struct replayed_routing *r = NEW(struct replayed_routing);
	r->o = *o;
	if (o->path && (rc = recorded_read(&r->trace, o->path, e))) {
		replayed_routing_free(r);
		return rc;
	}
	size_t n = ((size_t)o->n_layers + 1) * o->n_experts; /* the MTP layer is the last one */
	r->allowed = NEW_ARRAY(int32_t, n);
	r->n_allowed = NEW_ARRAY(uint32_t, o->n_layers + 1);
	for (size_t i = 0; i < n; i++)
		r->allowed[i] = (int32_t)(i % o->n_experts);
	for (uint32_t l = 0; l <= o->n_layers; l++)
		r->n_allowed[l] = o->confine ? o->confine : o->n_experts;
	log_routing(r);
	r->o.path = NULL; /* borrowed */
	*out = r;
	return 0;
}

struct expert_source *replayed_routing_wrap(struct replayed_routing *r, struct expert_source *inner)
{
	struct replayed_source *s = NEW(struct replayed_source);
	const size_t n = ((size_t)r->o.n_layers + 1) * r->o.n_experts;
	s->base = (struct expert_source){
		.ops = &replayed_ops,
		.max_pinned = {inner->max_pinned[0], inner->max_pinned[1]},
		.lookahead = inner->lookahead,
	};
	s->inner = inner;
	s->of = r;
	s->layer = -1;
	s->map = NEW_ARRAY(int32_t, n);
	for (size_t i = 0; i < n; i++)
		s->map[i] = (int32_t)(i % r->o.n_experts);
	s->order = NEW_ARRAY(int32_t, r->o.n_experts);
	s->seen = NEW_ARRAY(bool, r->o.n_experts);
	s->next = r->sources;
	r->sources = s;
	return &s->base;
}

void replayed_routing_free(struct replayed_routing *r)
{
	if (!r)
		return;
	for (struct replayed_source *s = r->sources, *next; s; s = next) {
		if (s->inner)
			bug("a source of replayed routing is still open");
		next = s->next;
		free(s->map);
		free(s->order);
		free(s->seen);
		free(s);
	}
	recorded_fini(&r->trace);
	free(r->allowed);
	free(r->n_allowed);
	free(r);
}

void replayed_routing_confine(
	struct replayed_routing *r, uint32_t layer, const int32_t *ids, uint32_t n)
{
	if (layer > r->o.n_layers || n > r->o.n_experts || (n && n < r->o.n_used))
		bug("routing cannot be confined to %u experts of layer %u", n, layer);
	int32_t *all = allowed_experts(r, layer);
	bool *named = NEW_ARRAY(bool, r->o.n_experts);
	uint32_t used = 0;
	for (; used < n; used++) {
		all[used] = ids[used];
		named[ids[used]] = true;
	}
	for (uint32_t i = 0; i < r->o.n_experts; i++)
		if (!named[i])
			all[used++] = (int32_t)i;
	free(named);
	r->n_allowed[layer] = n ? n : r->o.n_experts;
	for (struct replayed_source *s = r->sources; s; s = s->next)
		s->layer = -1;
}

void replayed_routing_keep(struct replayed_routing *r, uint32_t kept, bool far)
{
	r->far = far;
	for (struct replayed_source *s = r->sources; s; s = s->next)
		s->next_kept = kept;
}
