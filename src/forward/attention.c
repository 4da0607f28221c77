/* SPDX-License-Identifier: MIT */
/*
 * Multi-head latent attention in its absorbed form with the DSA indexer and IndexShare
 * (specification 2.3 to 2.6). The cached row [latent | rotated key] is key (whole) and value (its
 * first part) for all heads. A full layer scores every position and keeps its selection in ws.sel;
 * the shared layers above it attend over the same positions. Latents in host memory or in 8 bits
 * are fetched by selection, layer by layer (kv_cache.h).
 */
#include "src/forward/attention.h"

#include "src/forward/model.h"

#include <math.h>

static struct rope step_rope(const struct model *m)
{
	return (struct rope){.cos_sin = m->ws.cos_sin, .dim = (int)m->config.head_rope};
}

struct norm attention_input_norm(const struct model *m, uint32_t layer)
{
	return (struct norm){.gain = m->weights.layers[layer].attn_norm, .out = m->ws.h};
}

static void norm_input(struct model *m, uint32_t layer, const struct batch *rows)
{
	struct norm norm = attention_input_norm(m, layer);
	int n = (int)m->config.n_embd;
	m->backend->ops->rms_norm(m->backend, m->ws.x, n, &norm, 1, m->config.rms_eps, rows->n, n, n);
}

/* ws.h -> cache rows; with a query also ws.q, and if positions are to be scored ws.index_q and
 * ws.index_w. */
static void project_latents(struct model *m, struct kv_cache *kv, uint32_t layer,
	const struct batch *rows, bool query, bool scored)
{
	const struct model_config *c = &m->config;
	const struct layer_weights *w = &m->weights.layers[layer];
	struct workspace *ws = &m->ws;
	struct rope rope = step_rope(m);
	bool full = c->index_full[layer], in_8_bits = kv->latent[layer].type == DTYPE_F8_E4M3;
	struct matmul in[4], out[] = {{.w = w->q_b, .y = ws->q}, {.w = w->index_q, .y = ws->index_q}};
	int n_in = 0;
	if (query)
		in[n_in++] = (struct matmul){.w = w->q_a, .y = ws->q_latent};
	in[n_in++] = (struct matmul){.w = w->kv_a, .y = ws->kv};
	if (full)
		in[n_in++] = (struct matmul){.w = w->index_k, .y = ws->index_k};
	if (scored)
		in[n_in++] = (struct matmul){.w = w->index_proj, .y = ws->index_w};
	struct latents a = {
		.in = in,
		.n_in = n_in,
		.x = ws->h,
		.q = query ? ws->q_latent : NULL,
		.q_gain = w->q_a_norm,
		.n_q = (int)c->q_rank,
		.kv = ws->kv,
		.kv_gain = w->kv_a_norm,
		.n_kv = (int)c->kv_rank,
		.eps = c->latent_eps,
		.kv_cache = in_8_bits ? kv->fetched : kv->latent[layer],
		.out = out,
		.n_out = query ? 1 + (int)scored : 0,
	};
	if (full) {
		a.key = ws->index_k;
		a.key_gain = w->index_k_gain;
		a.key_bias = w->index_k_bias;
		a.key_eps = c->index_eps;
		a.key_cache = kv->index_key[layer];
	}
	m->backend->ops->latents(m->backend, rows, &rope, &a);
	if (in_8_bits)
		m->backend->ops->store_rows(
			m->backend, rows, &kv->fetched, &kv->latent[layer], (int)c->kv_rank);
}

/* Renews ws.sel and ws.n_sel from ws.index_q and ws.index_w; without scores: every position is
 * chosen. */
static void select_positions(
	struct model *m, struct kv_cache *kv, uint32_t layer, const struct batch *rows, bool scored)
{
	const struct model_config *c = &m->config;
	struct backend *b = m->backend;
	struct rope rope = step_rope(m);
	if (scored)
		b->ops->rope(b, &rope, m->ws.index_q, c->index_dim, m->ws.index_q, c->index_dim, rows->n,
			(int)c->index_heads);
	struct index_select a = {
		.n_heads = (int)c->index_heads,
		.head_dim = (int)c->index_dim,
		.top_k = (int)c->index_top_k,
		.q = m->ws.index_q,
		.weight = m->ws.index_w,
		.keys = kv->index_key[layer],
		.sel = m->ws.sel,
		.n_sel = m->ws.n_sel,
	};
	b->ops->index_select(b, rows, &a);
}

/* The cache in which attention finds the positions of a's selection. */
static struct cache_view latents_to_read(struct model *m, const struct kv_cache *kv, uint32_t layer,
	const struct batch *rows, const struct attend *a)
{
	if (!kv->fetched.data)
		return kv->latent[layer];
	struct fetch_rows f = {.from = kv->latent[layer],
		.to = kv->fetched,
		.n_value = (int)m->config.kv_rank,
		.capacity = kv->capacity,
		.sel = a->sel,
		.n_sel = a->n_sel,
		.sel_stride = a->sel_stride};
	m->backend->ops->fetch_rows(m->backend, rows, &f);
	return kv->fetched;
}

void attention_forward(struct model *m, struct kv_cache *kv, uint32_t layer,
	const struct batch *rows, bool normed, bool draft_sel)
{
	const struct model_config *c = &m->config;
	const struct layer_weights *w = &m->weights.layers[layer];
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	/* while all positions fit into the selection no scores are needed, only keys for later */
	bool selects = c->index_full[layer] && !draft_sel,
		 scored = selects && rows->max_pos >= (int64_t)c->index_top_k;
	int64_t head_qk = config_head_qk(c), width = config_cache_width(c);

	if (!normed)
		norm_input(m, layer, rows);
	project_latents(m, kv, layer, rows, true, scored);
	if (selects)
		select_positions(m, kv, layer, rows, scored);

	/* the absorbed query: K_n^T q_nope beside the rotated part */
	struct mla a = {0};
	a.absorb = (struct stacked_matmul){
		.w = w->k_b, .x = ws->q, .x_stride = head_qk, .y = ws->q_abs, .y_stride = width};
	a.attend = (struct attend){
		.n_heads = (int)c->n_heads,
		.n_value = (int)c->kv_rank,
		.scale = 1.0f / sqrtf((float)head_qk),
		.q = ws->q_abs,
		.rotate = ws->q + c->head_nope,
		.rotate_stride = head_qk,
		.rope = step_rope(m),
		.sel = draft_sel ? ws->draft_sel : ws->sel,
		.n_sel = draft_sel ? ws->draft_n_sel : ws->n_sel,
		.sel_stride = draft_sel ? ws->draft_sel_stride : (int)c->index_top_k,
		.out = ws->z,
	};
	a.attend.cache = latents_to_read(m, kv, layer, rows, &a.attend);
	a.expand = (struct stacked_matmul){
		.w = w->v_b, .x = ws->z, .x_stride = c->kv_rank, .y = ws->o, .y_stride = c->head_value};
	a.out = &(struct matmul){.w = w->attn_out, .y = ws->x, .add = true};
	b->ops->mla(b, rows, &a);
}

void attention_append(
	struct model *m, struct kv_cache *kv, uint32_t layer, const struct batch *rows)
{
	norm_input(m, layer, rows);
	project_latents(m, kv, layer, rows, false, false);
}
