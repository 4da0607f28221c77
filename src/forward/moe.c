/* SPDX-License-Identifier: MIT */
/*
 * Feed-forward stages (specification 2.7). The experts of a layer are asked of the source in groups
 * no larger than it can pin (prefill: in ascending id order, the order of the file); whatever is
 * ready is computed while the rest is on its way. A product's place (row, rank) does not depend on
 * when it was computed, and moe_combine adds the places in rank order: the result is the same for
 * every order of arrival.
 *
 * The host only waits for the router's picks, while the device has the shared expert to do, and for
 * marks. Experts stay pinned until a later mark shows that the device is past them: that of the
 * next layer's router, or the one behind the next group.
 */
#include "src/model/forward.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

#define GROUP_LEAST 8 /* experts that fill a card together */

int moe_plan_init(struct moe_plan *p, const struct model_config *c, uint32_t max_rows)
{
	*p = (struct moe_plan){
		.first = NEW_ARRAY(int32_t, c->n_experts + 1),
		.token_slots = mem_try_new((size_t)max_rows * c->n_used, sizeof(int32_t)),
		.refs = NEW_ARRAY(struct expert_ref, c->n_experts),
		.jobs = NEW_ARRAY(struct expert_job, c->n_experts),
		.done = NEW_ARRAY(bool, c->n_experts),
		.read_ahead = NEW_ARRAY(int32_t, c->n_experts),
		.ids = mem_try_new((size_t)max_rows * c->n_used, sizeof(int32_t)),
	};
	return p->token_slots && p->ids ? 0 : ERR_MEMORY;
}

void moe_plan_fini(struct moe_plan *p)
{
	free(p->first);
	free(p->token_slots);
	free(p->refs);
	free(p->jobs);
	free(p->done);
	free(p->read_ahead);
	free(p->ids);
	*p = (struct moe_plan){0};
}

/* Groups the places of ids [n_places] by expert and lists the distinct experts in refs: for decode
 * in the order of their first place (row, then rank: the order in which a trace lists them, so that
 * a simulated cache sees what the live one does), for prefill ascending (the order of the file).
 * Returns how many. */
static int group_by_expert(
	struct moe_plan *p, uint32_t n_experts, enum expert_use use, const int32_t *ids, int n_places)
{
	for (uint32_t i = 0; i <= n_experts; i++)
		p->first[i] = 0;
	int n = 0;
	for (int i = 0; i < n_places; i++)
		if (!p->first[ids[i] + 1]++ && use == EXPERT_DECODE)
			p->refs[n++] = (struct expert_ref){.id = ids[i]};
	for (uint32_t i = 0; i < n_experts; i++) {
		if (p->first[i + 1] && use == EXPERT_PREFILL)
			p->refs[n++] = (struct expert_ref){.id = (int32_t)i};
		p->first[i + 1] += p->first[i];
	}
	/* first[i] now begins expert i; filling moves it to the end of its group, which is the begin of
	 * the next */
	for (int i = 0; i < n_places; i++)
		p->token_slots[p->first[ids[i]]++] = i;
	for (uint32_t i = n_experts; i > 0; i--)
		p->first[i] = p->first[i - 1];
	p->first[0] = 0;
	return n;
}

/* Computes every ref of the group that is ready and not yet done. */
static void run_ready(
	struct model *m, struct moe_plan *p, struct expert_ref *refs, bool *done, int n, int rows)
{
	int n_jobs = 0;
	for (int i = 0; i < n; i++) {
		if (done[i] || !refs[i].ready)
			continue;
		done[i] = true;
		int32_t at = p->first[refs[i].id];
		p->jobs[n_jobs++] = (struct expert_job){
			.gate = refs[i].gate,
			.up = refs[i].up,
			.down = refs[i].down,
			.places = p->token_slots + at,
			.n_places = p->first[refs[i].id + 1] - at,
		};
	}
	if (n_jobs)
		m->backend->ops->expert_ffn(
			m->backend, m->ws.h, p->jobs, n_jobs, rows, (int)m->config.n_used, m->ws.expert_out);
}

/* down(silu(gate h) * up h): the dense network, and the shared expert. */
static void swiglu_network(
	struct model *m, const struct layer_weights *w, const struct batch *rows, float *y, bool add)
{
	struct workspace *ws = &m->ws;
	struct ffn a = {.gate = w->gate,
		.up = w->up,
		.down = w->down,
		.x = ws->h,
		.y = y,
		.add = add,
		.hidden = ws->gate,
		.spare = ws->up};
	m->backend->ops->ffn(m->backend, &a, rows->n);
}

/* Tells the source the order of a prefill layer, and that the next one will want all of its
 * experts: a chunk of rows touches nearly every expert, so that the disk need not pause at the
 * layer's border. */
static void announce(struct model *m, uint32_t layer, int n)
{
	struct expert_source *s = m->source;
	if (!s->ops->read_ahead)
		return;
	int32_t *ids = m->plan.read_ahead;
	for (int i = 0; i < n; i++)
		ids[i] = m->plan.refs[i].id;
	s->ops->read_ahead(s, (int)layer, ids, n);
	uint32_t next = layer + 1;
	if (next >= m->config.n_layers || 4 * (uint32_t)n < 3 * m->config.n_experts)
		return;
	for (uint32_t i = 0; i < m->config.n_experts; i++)
		ids[i] = (int32_t)i;
	s->ops->read_ahead(s, (int)next, ids, (int)m->config.n_experts);
}

/* The routers of the layers layer + first to layer + reach, each on the stream as it is now: 0 is
 * the layer's own and leaves its normed input in ws.h, the others guess. Then a mark. */
static void run_routers(
	struct model *m, uint32_t layer, uint32_t first, uint32_t reach, const struct batch *rows)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct route routes[1 + LOOKAHEAD_MAX];
	size_t few = lookahead_rows(ws);
	int n = 0;
	for (uint32_t d = first; d <= reach; d++) {
		const struct layer_weights *w = &m->weights.layers[layer + d];
		routes[n++] = (struct route){
			.n_experts = (int)c->n_experts,
			.n_used = (int)c->n_used,
			.n_group = (int)c->n_group,
			.n_group_used = (int)c->n_group_used,
			.normalise = c->norm_weights,
			.scale = c->weights_scale,
			.x = ws->x,
			.gain = w->ffn_norm,
			.eps = c->rms_eps,
			.w = w->router,
			.h = d ? ws->predicted_h + (d - 1) * few * c->n_embd : ws->h,
			.logits = d ? ws->predicted_logits + (d - 1) * few * c->n_experts : ws->router,
			.bias = w->router_bias,
			.picks = d ? lookahead_expert_ids(m, layer, d) : ws->expert_ids,
			.weights = d ? NULL : ws->route_weights,
		};
	}
	m->backend->ops->route(m->backend, routes, n, rows->n);
}

void shared_expert_run(struct model *m, uint32_t layer, const struct batch *rows)
{
	const struct layer_weights *w = &m->weights.layers[layer];
	swiglu_network(m, w, rows, m->ws.shared_out, false);
}

static struct weight shape_of(const struct gguf_tensor *t)
{
	return expert_shape(t->type, t->ne[0], t->ne[1], t->ne[2], t->bytes);
}

static struct expert_job expert_shapes(const struct model *m, uint32_t layer)
{
	const struct expert_tensors *t = &m->weights.experts[layer];
	return (struct expert_job){
		.gate = shape_of(t->gate), .up = shape_of(t->up), .down = shape_of(t->down)};
}

bool moe_deferred(const struct model *m, uint32_t layer, int rows)
{
	struct backend *b = m->backend;
	int n_used = (int)m->config.n_used;
	if (!m->capture || rows > 1 || !b->ops->can_await ||
		!m->weights.layers[layer].experts_aligned || m->source->max_pinned[moe_use(rows)] < n_used)
		return false;
	struct expert_job like = expert_shapes(m, layer);
	return b->ops->can_await(b, &like, n_used);
}

void ffn_forward(struct model *m, uint32_t layer, const struct batch *rows)
{
	const struct model_config *c = &m->config;
	const struct layer_weights *w = &m->weights.layers[layer];
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	uint32_t reach = lookahead_reach(m, layer, rows->n);
	if (config_is_moe(c, layer)) {
		run_routers(m, layer, 0, reach, rows);
		if (b->ops->deferred)
			shared_expert_run(m, layer, rows);
		if (moe_deferred(m, layer, rows->n)) {
			struct expert_job like = expert_shapes(m, layer);
			b->ops->experts_await(b, ws->h, &like, (int)c->n_used, ws->expert_out);
		}
		return;
	}
	b->ops->rms_norm(b, ws->x, c->n_embd, &(struct norm){w->ffn_norm, ws->h}, 1, c->rms_eps,
		rows->n, (int)c->n_embd, c->n_embd);
	swiglu_network(m, w, rows, ws->x, true);
	if (reach)
		run_routers(m, layer, 1, reach, rows);
}

/* ---- experts ---- */

/* Gives back the pins of refs[0 .. end): the device has passed them. */
static void release_to(struct model *m, int end)
{
	struct moe_plan *p = &m->plan;
	if (end > p->first_pinned)
		m->source->ops->release(
			m->source, (int)p->pinned_layer, p->refs + p->first_pinned, end - p->first_pinned);
	p->first_pinned = MAX(p->first_pinned, end);
}

/* Releases the groups that the device has passed; waits for the oldest ones as long as more than
 * `most` refs would stay pinned. */
static int release_passed(struct model *m, int most, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct backend *b = m->backend;
	while (p->n_groups) {
		const struct moe_group *old = &p->groups[p->first_group];
		int rc = 0;
		if (p->end_pinned - p->first_pinned > most)
			rc = b->ops->wait_mark(b, old->mark, e);
		else if (!b->ops->reached(b, old->mark))
			break;
		if (rc)
			return rc;
		release_to(m, old->end);
		p->first_group = (p->first_group + 1) % MOE_GROUPS;
		p->n_groups--;
	}
	return 0;
}

/* refs[first .. first + n): acquires them, enqueues what is ready and the rest as it comes: all at
 * once if the device still has earlier groups to compute, for a call with several experts takes
 * hardly longer than one with a single one. */
static int run_group(struct model *m, uint32_t layer, enum expert_use use, int first, int n,
	const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct expert_source *s = m->source;
	struct expert_ref *refs = p->refs + first;
	bool *done = p->done + first;
	for (int i = 0; i < n; i++)
		done[i] = false;
	int missing = s->ops->acquire(s, (int)layer, use, refs, n, e);
	if (missing < 0)
		return missing;
	p->end_pinned = first + n;
	if (!first && !m->backend->ops->deferred) /* computed while the drive reads */
		shared_expert_run(m, layer, rows);
	if (!missing || !p->n_groups)
		run_ready(m, p, refs, done, n, rows->n);
	int rc = lookahead_prefetch(m, layer, e);
	if (rc)
		return rc;
	while (missing > 0) {
		missing = s->ops->wait_ready(s, (int)layer, refs, n, e);
		if (missing >= 0 && (rc = release_passed(m, INT32_MAX, e)))
			return rc;
		if (!missing || (missing > 0 && !p->n_groups))
			run_ready(m, p, refs, done, n, rows->n);
	}
	return missing;
}

/* All groups of a layer. At most two windows are pinned at a time. A prompt's windows are several
 * groups, and the last one is marked as well: what the device has passed makes room for what is
 * read ahead. */
static int run_groups(struct model *m, uint32_t layer, enum expert_use use, int n,
	const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct backend *b = m->backend;
	bool ahead = use == EXPERT_PREFILL && b->ops->deferred;
	int window = MIN(m->source->max_pinned[use], n), most = window, group, rc;
	if (ahead)
		most = MAX((2 * window + MOE_GROUPS - 1) / MOE_GROUPS, MIN(window, GROUP_LEAST));
	for (int at = 0; at < n; at += group) {
		group = MIN(n - at, most);
		if ((rc = release_passed(m, 2 * window - group, e)) ||
			(rc = run_group(m, layer, use, at, group, rows, e)))
			return rc;
		if (ahead || at + group < n)
			p->groups[(p->first_group + p->n_groups++) % MOE_GROUPS] =
				(struct moe_group){.mark = b->ops->mark(b), .end = at + group};
	}
	return 0;
}

int moe_run_experts(
	struct model *m, uint32_t layer, uint64_t routed, const struct batch *rows, struct err *e)
{
	struct moe_plan *p = &m->plan;
	struct backend *b = m->backend;
	lookahead_enqueued(m, layer, routed, rows->n);
	int n_places = rows->n * (int)m->config.n_used,
		rc = layer ? lookahead_prefetch(m, layer - 1, e) : 0;
	if (rc || (rc = release_passed(m, 0, e)) ||
		(rc = b->ops->wait_picks(b, routed, m->ws.expert_ids, n_places, p->ids, e)))
		return rc;
	release_to(m, p->end_pinned);
	p->first_pinned = p->end_pinned = p->n_groups = 0;
	p->pinned_layer = layer;

	enum expert_use use = moe_use(rows->n);
	int n = group_by_expert(p, m->config.n_experts, use, p->ids, n_places);
	m->expert_uses += (uint64_t)n_places;
	if (use == EXPERT_PREFILL)
		announce(m, layer, n);
	return run_groups(m, layer, use, n, rows, e);
}

void moe_combine(struct model *m, const struct batch *rows, const struct norm *next)
{
	struct workspace *ws = &m->ws;
	m->backend->ops->moe_combine(m->backend, ws->expert_out, ws->route_weights,
		(int)m->config.n_used, ws->shared_out, rows->n, (int)m->config.n_embd, ws->x, next,
		m->config.rms_eps);
}

int moe_drain(struct model *m, struct err *e)
{
	struct moe_plan *p = &m->plan;
	int rc = m->backend->ops->wait(m->backend, e);
	release_to(m, p->end_pinned);
	p->first_pinned = p->end_pinned = p->n_groups = 0;
	m->predictions[0].ticket = m->predictions[1].ticket = 0;
	return rc;
}
