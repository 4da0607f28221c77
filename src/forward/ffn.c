/* SPDX-License-Identifier: MIT */
#include "src/forward/ffn.h"

#include "src/forward/model.h"
#include "src/forward/moe/lookahead.h"

/* down(silu(gate h) * up h): the dense network, and the shared expert. */
static void gated_network(
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
		.scratch = ws->up};
	m->backend->ops->ffn(m->backend, &a, rows->n);
}

void shared_expert_run(struct model *m, uint32_t layer, const struct batch *rows)
{
	gated_network(m, &m->weights.layers[layer], rows, m->ws.shared_out, false);
}

static struct weight stack_shape(const struct gguf_tensor *t)
{
	return expert_shape(t->type, t->ne[0], t->ne[1], t->ne[2], gguf_values_bytes(t));
}

struct expert_job expert_job_shape(const struct model *m, uint32_t layer)
{
	const struct expert_tensors *t = &m->weights.experts[layer];
	return (struct expert_job){
		.gate = stack_shape(t->gate), .up = stack_shape(t->up), .down = stack_shape(t->down)};
}

bool moe_deferred(const struct model *m, uint32_t layer, int rows)
{
	struct backend *b = m->backend;
	int n_used = (int)m->config.n_used;
	if (!m->capture || m->observation || rows > 1 || !b->ops->can_defer_experts ||
		!m->weights.layers[layer].experts_aligned ||
		m->source->max_pinned[moe_step_use(m, rows)] < n_used)
		return false;
	struct expert_job shape = expert_job_shape(m, layer);
	return b->ops->can_defer_experts(b, &shape, n_used);
}

struct route moe_route(const struct model *m, uint32_t layer)
{
	const struct model_config *c = &m->config;
	const struct layer_weights *w = &m->weights.layers[layer];
	return (struct route){
		.n_experts = (int)c->n_experts,
		.n_used = (int)c->n_used,
		.n_group = (int)c->n_group,
		.n_group_used = (int)c->n_group_used,
		.normalise = c->norm_weights,
		.scale = c->weights_scale,
		.x = m->ws.x,
		.gain = w->ffn_norm,
		.eps = c->rms_eps,
		.w = w->router,
		.bias = w->router_bias,
	};
}

void ffn_forward(struct model *m, uint32_t layer, const struct batch *rows)
{
	const struct model_config *c = &m->config;
	const struct layer_weights *w = &m->weights.layers[layer];
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	bool moe = config_is_moe(c, layer);
	struct route routes[1 + LOOKAHEAD_MAX];
	int n_routes = 0;
	if (!moe) {
		b->ops->rms_norm(b, ws->x, c->n_embd, &(struct norm){w->ffn_norm, ws->h}, 1, c->rms_eps,
			rows->n, (int)c->n_embd, c->n_embd);
		gated_network(m, w, rows, ws->x, true);
	} else {
		struct route *own = &routes[n_routes++];
		*own = moe_route(m, layer);
		own->h = ws->h;
		own->logits = ws->router;
		own->expert_ids = ws->expert_ids;
		own->weights = ws->route_weights;
		own->h_words = host_experts_words(m->host, rows->n);
	}
	n_routes += lookahead_routes(m, layer, rows->n, routes + n_routes);
	if (n_routes)
		b->ops->route(b, routes, n_routes, rows->n);
	if (!moe)
		return;
	if (b->ops->async) /* else it is computed while the drive reads: see moe_experts_request */
		shared_expert_run(m, layer, rows);
	if (moe_deferred(m, layer, rows->n)) {
		struct expert_job shape = expert_job_shape(m, layer);
		b->ops->experts_deferred(b, ws->h, &shape, (int)c->n_used, ws->expert_out);
	}
}

void moe_combine(struct model *m, const struct batch *rows, const struct norm *next)
{
	struct workspace *ws = &m->ws;
	m->backend->ops->moe_combine(m->backend, ws->expert_out, ws->route_weights,
		(int)m->config.n_used, ws->shared_out, rows->n, (int)m->config.n_embd, ws->x, next,
		m->config.rms_eps);
}
