/* SPDX-License-Identifier: MIT */
/* The frame of the model: workspace, launches, layer loop, head. */
#include "src/model/forward.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of logits computed at once; bounds the workspace for large vocabularies. */
#define LOGIT_ROWS 32

/* Layers of a launch at most. Between two launches the device rests for about two microseconds; the
 * host enqueues one while the experts before it are computed, so it must not take longer than they
 * do. */
#define SEGMENT_LAYERS 16

/* Cuts consecutive pieces out of an allocation; with a NULL base it only adds up. */
struct cutter {
	uint8_t *base;
	size_t used;
};

static void *cut(struct cutter *k, size_t n, size_t size)
{
	void *p = k->base ? k->base + k->used : NULL;
	k->used = num_align_up(k->used + n * size, 256);
	return p;
}

static void workspace_cut(struct workspace *ws, const struct model_config *c, bool with_mtp,
	struct cutter *device, struct cutter *shared)
{
	size_t r = ws->max_rows, f = sizeof(float), i = sizeof(int32_t);
	size_t width = config_cache_width(c), ff = MAX(c->n_dense ? c->ff_dense : 0, c->ff_shared);
	ws->logit_rows = MIN(ws->max_rows, LOGIT_ROWS);
	size_t few = lookahead_rows(ws);
	ws->expert_ids = cut(shared, r * c->n_used, sizeof(uint64_t));
	ws->predicted_ids = cut(shared, 2 * LOOKAHEAD_MAX * few * c->n_used, sizeof(uint64_t));
	ws->step = cut(device, 3 * r, i);
	ws->cos_sin = cut(device, r * c->head_rope, f);
	ws->x = cut(device, r * c->n_embd, f);
	ws->h = cut(device, r * c->n_embd, f);
	ws->q_latent = cut(device, r * c->q_rank, f);
	ws->kv = cut(device, r * width, f);
	ws->index_q = cut(device, r * c->index_heads * c->index_dim, f);
	ws->index_k = cut(device, r * c->index_dim, f);
	ws->index_w = cut(device, r * c->index_heads, f);
	ws->sel = cut(device, r * c->index_top_k, i);
	ws->n_sel = cut(device, r, i);
	ws->router = cut(device, r * c->n_experts, f);
	ws->route_weights = cut(device, r * c->n_used, f);
	ws->shared_out = cut(device, r * c->n_embd, f);
	ws->predicted_h = cut(device, LOOKAHEAD_MAX * few * c->n_embd, f);
	ws->predicted_logits = cut(device, LOOKAHEAD_MAX * few * c->n_experts, f);
	ws->hidden = cut(device, r * c->n_embd, f);
	ws->logits = cut(device, (size_t)ws->logit_rows * c->n_vocab, f);
	if (with_mtp)
		ws->mtp_in = cut(device, r * 2 * c->n_embd, f);
	/* attention and network take turns, and so do the heads' queries and what they answer: the same
	 * memory */
	struct cutter network = *device;
	ws->q = ws->o = cut(device, r * c->n_heads * MAX(config_head_qk(c), c->head_value), f);
	ws->q_abs = cut(device, r * c->n_heads * width, f);
	ws->z = cut(device, r * c->n_heads * c->kv_rank, f);
	ws->gate = cut(&network, r * ff, f);
	ws->up = cut(&network, r * ff, f);
	ws->expert_out = cut(&network, r * c->n_used * c->n_embd, f);
	device->used = MAX(device->used, network.used);
}

size_t model_workspace_bytes(const struct model_config *c, bool with_mtp, uint32_t max_rows)
{
	struct workspace ws = {.max_rows = max_rows};
	struct cutter device = {0}, shared = {0};
	workspace_cut(&ws, c, with_mtp, &device, &shared);
	return device.used + shared.used;
}

static int workspace_init(struct workspace *ws, const struct model_config *c, bool with_mtp,
	uint32_t max_rows, struct backend *b, struct err *e)
{
	*ws = (struct workspace){.max_rows = max_rows};
	struct cutter device = {0}, shared = {0};
	workspace_cut(ws, c, with_mtp, &device, &shared);
	ws->device_bytes = device.used;
	ws->shared_bytes = shared.used;
	int rc;
	if ((rc = b->ops->alloc(b, MEM_DEVICE, device.used, &ws->device, e)) ||
		(rc = b->ops->alloc(b, MEM_SHARED, shared.used, &ws->shared, e))) {
		err_prefix(e, "workspace of %u rows", max_rows);
		return rc;
	}
	device = (struct cutter){.base = ws->device};
	shared = (struct cutter){.base = ws->shared};
	memset(ws->shared, 0, ws->shared_bytes);
	workspace_cut(ws, c, with_mtp, &device, &shared);
	return 0;
}

/* f_i = base^(-2i / dim), every step in float32 as the reference engines do (specification 2.2). */
static int inv_freq_init(struct model *m, struct err *e)
{
	uint32_t n = m->config.head_rope / 2;
	struct backend *b = m->backend;
	int rc = b->ops->alloc(b, MEM_DEVICE, n * sizeof(float), (void **)&m->inv_freq, e);
	if (rc)
		return rc;
	float *f = NEW_ARRAY(float, n);
	for (uint32_t i = 0; i < n; i++)
		f[i] = 1.0f / powf(m->config.rope_base, (float)(2 * i) / (float)m->config.head_rope);
	b->ops->upload(b, m->inv_freq, f, n * sizeof *f);
	free(f);
	return 0;
}

int model_init(struct model *m, const struct model_config *c, struct model_weights *w,
	bool with_mtp, struct backend *b, struct expert_source *source, uint32_t max_rows,
	struct err *e)
{
	*m = (struct model){.config = *c, .weights = *w, .backend = b, .source = source};
	*w = (struct model_weights){0};
	m->has_mtp = with_mtp && c->n_mtp;
	m->step_host = mem_try_new(3 * (size_t)max_rows, sizeof *m->step_host);
	int rc = m->step_host ? moe_plan_init(&m->plan, c, max_rows) : ERR_MEMORY;
	if (rc)
		err_set(e, rc, "no memory for the expert plan of %u rows", max_rows);
	if (rc || (rc = inv_freq_init(m, e)) ||
		(rc = workspace_init(&m->ws, c, m->has_mtp, max_rows, b, e)))
		model_fini(m);
	return rc;
}

void model_fini(struct model *m)
{
	struct backend *b = m->backend;
	if (!b)
		return;
	if (m->plan.refs)
		moe_drain(m, NULL);
	b->ops->graph_drop(b);
	b->ops->free(b, MEM_DEVICE, m->ws.device, m->ws.device_bytes);
	b->ops->free(b, MEM_SHARED, m->ws.shared, m->ws.shared_bytes);
	b->ops->free(b, MEM_DEVICE, m->inv_freq, m->config.head_rope / 2 * sizeof(float));
	moe_plan_fini(&m->plan);
	free(m->step_host);
	weights_free(&m->weights, b);
	*m = (struct model){0};
}

static int compare_u16(const void *a, const void *b)
{
	return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

/* Copies what the taps ask for after a layer; waits for the layer, so only parity runs pay. */
static int tap_layer(
	struct model *m, const struct forward_rows *rows, uint32_t layer, struct err *e)
{
	const struct model_config *c = &m->config;
	struct forward_taps *t = rows->taps;
	struct backend *b = m->backend;
	size_t last = rows->n - 1;
	int rc = 0;
	if (t->resid_last)
		rc = b->ops->download(b, t->resid_last + (size_t)layer * c->n_embd,
			m->ws.x + last * c->n_embd, c->n_embd * sizeof(float), e);
	if (!rc && t->router && config_is_moe(c, layer)) {
		uint32_t moe = layer - c->n_dense, n_moe = config_n_moe(c);
		for (uint32_t r = 0; r < rows->n; r++) {
			uint16_t *to = t->router + ((size_t)r * n_moe + moe) * c->n_used;
			for (uint32_t k = 0; k < c->n_used; k++)
				to[k] = (uint16_t)m->plan.ids[(size_t)r * c->n_used + k];
			qsort(to, c->n_used, sizeof *to, compare_u16);
		}
	}
	if (!rc && t->index_last && t->n_index_last) {
		t->n_index_last[layer] = 0;
		if (c->index_full[layer]) {
			rc = b->ops->download(
				b, &t->n_index_last[layer], m->ws.n_sel + last, sizeof(int32_t), e);
			if (!rc)
				rc = b->ops->download(b, t->index_last + (size_t)layer * c->index_top_k,
					m->ws.sel + last * c->index_top_k, c->index_top_k * sizeof(int32_t), e);
		}
	}
	return rc;
}

/* The least power of two above max_pos, less one: grids and scratch of ops are made for it, and a
 * recorded stretch serves until the next. Ops look at pos[r] for what there is to do. */
static int32_t round_max_pos(int32_t max_pos)
{
	int32_t most = 255;
	while (most < max_pos && most < INT32_MAX / 2)
		most = 2 * most + 1;
	return MAX(most, max_pos);
}

struct batch step_begin(
	struct model *m, int n, const int32_t *tokens, const int32_t *pos, const int32_t *base)
{
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	if (n < 1 || (uint32_t)n > ws->max_rows)
		bug("a step of %d rows, the workspace has %u", n, ws->max_rows);
	size_t bytes = (size_t)n * sizeof(int32_t);
	memcpy(m->step_host, tokens, bytes);
	memcpy(m->step_host + n, pos, bytes);
	memcpy(m->step_host + 2 * n, base, bytes);
	ws->tokens = ws->step;
	ws->pos = ws->step + n;
	ws->base = ws->step + 2 * n;
	b->ops->upload(b, ws->step, m->step_host, 3 * bytes);
	struct batch batch = {.n = n, .pos = ws->pos, .base = ws->base};
	for (int r = 0; r < n; r++)
		batch.max_pos = MAX(batch.max_pos, pos[r]);
	if (n <= GRAPH_ROWS)
		batch.max_pos = round_max_pos(batch.max_pos);
	return batch;
}

enum graph_calls segment_begin(
	struct model *m, struct kv_cache *kv, uint32_t first, const struct batch *rows, uint32_t what)
{
	struct backend *b = m->backend;
	if (!m->capture)
		return GRAPH_RUNS;
	if (m->captured_kv != kv->arena)
		b->ops->graph_drop(b);
	m->captured_kv = kv->arena;
	uint64_t key = (uint64_t)first << 40 | (uint64_t)rows->n << 36 | (uint64_t)what << 32 |
				   (uint32_t)rows->max_pos;
	return b->ops->graph_begin(b, key);
}

/* The step in hand */
struct forward_step {
	struct kv_cache *kv;
	const struct forward_rows *rows;
	const struct batch *batch;
	uint32_t n_hidden;                  /* of the last rows, to ws.hidden */
	void (*on_device_busy)(void *user); /* NULL: has been called */
};

/* Enqueues layer `layer` up to its experts, with what is left of the layer before it; behind the
 * last one the final norm. */
static void run_layer(struct model *m, const struct forward_step *s, uint32_t layer)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	bool end = layer == c->n_layers,
		 combine = layer && config_is_moe(c, layer - 1) && !s->rows->taps;
	if (!layer) {
		b->ops->rope_angles(b, s->batch, m->inv_freq, (int)c->head_rope, ws->cos_sin);
		b->ops->embed(b, m->weights.embed, ws->tokens, s->batch->n, ws->x);
	}
	if (combine && end) {
		moe_combine(m, s->batch, NULL);
	} else if (combine) {
		struct norm norm = attention_input_norm(m, layer);
		moe_combine(m, s->batch, &norm);
	}
	if (!end) {
		attention_forward(m, s->kv, layer, s->batch, combine);
		ffn_forward(m, layer, s->batch);
	} else if (s->n_hidden) {
		size_t at = (size_t)(s->rows->n - s->n_hidden) * c->n_embd;
		b->ops->rms_norm(b, ws->x + at, c->n_embd,
			&(struct norm){m->weights.output_norm, ws->hidden + at}, 1, c->rms_eps,
			(int)s->n_hidden, (int)c->n_embd, c->n_embd);
	}
}

/* What the host has to do with a layer when the device has got it; ticket: of its mark, if it has
 * one. */
static int serve_layer(
	struct model *m, struct forward_step *s, uint32_t layer, uint64_t ticket, struct err *e)
{
	const struct forward_rows *rows = s->rows;
	bool moe = config_is_moe(&m->config, layer);
	int rc = 0;
	if (!moe) {
		lookahead_enqueued(m, layer, ticket, s->batch->n);
		if (!m->backend->ops->deferred)
			rc = lookahead_prefetch(m, layer, e);
	} else {
		if (s->on_device_busy)
			s->on_device_busy(rows->user);
		s->on_device_busy = NULL;
		rc = moe_run_experts(m, layer, ticket, s->batch, e);
	}
	if (rc || !rows->taps)
		return rc;
	if (moe)
		moe_combine(m, s->batch, NULL);
	return tap_layer(m, rows, layer, e);
}

/* Where a launch that begins with layer `first` ends; the end of the step counts as a layer. */
static uint32_t segment_end(const struct model *m, const struct forward_step *s, uint32_t first)
{
	uint32_t n = m->config.n_layers;
	for (uint32_t layer = first; layer < n; layer++)
		if (!layer /* the device begins with it while the host launches the rest */ ||
			s->rows->taps || layer + 1 - first == SEGMENT_LAYERS ||
			(config_is_moe(&m->config, layer) && !moe_deferred(m, layer, s->batch->n)))
			return layer + 1;
	return n + 1;
}

/* Layers first .. end - 1: launched all at once, or, where nothing has been recorded yet, one after
 * the other as the host gets to them. */
static int segment_run(
	struct model *m, struct forward_step *s, uint32_t first, uint32_t end, struct err *e)
{
	const struct model_config *c = &m->config;
	struct backend *b = m->backend;
	atomic_bool *cancel = s->rows->cancel;
	uint64_t ticket = b->marks;
	enum graph_calls calls =
		segment_begin(m, s->kv, first, s->batch, end > c->n_layers ? s->n_hidden : 0);
	if (calls == GRAPH_RECORDS) {
		for (uint32_t layer = first; layer < end; layer++)
			run_layer(m, s, layer);
		b->ops->graph_end(b);
	}
	for (uint32_t layer = first; layer < end; layer++) {
		if (layer < c->n_layers && cancel && atomic_load_explicit(cancel, memory_order_relaxed))
			return err_set(e, ERR_INTERRUPTED, "interrupted");
		if (calls == GRAPH_RUNS)
			run_layer(m, s, layer);
		if (layer == c->n_layers)
			break;
		bool marks = config_is_moe(c, layer) || lookahead_reach(m, layer, s->batch->n);
		ticket = calls == GRAPH_RUNS ? b->marks : ticket + marks;
		int rc = serve_layer(m, s, layer, ticket, e);
		if (rc)
			return rc;
	}
	return 0;
}

static int run_layers(struct model *m, struct forward_step *s, struct err *e)
{
	for (uint32_t first = 0, end; first <= m->config.n_layers; first = end) {
		end = segment_end(m, s, first);
		int rc = segment_run(m, s, first, end, e);
		if (rc)
			return rc;
	}
	if (s->on_device_busy)
		s->on_device_busy(s->rows->user);
	return 0;
}

int model_forward(struct model *m, struct kv_cache *kv, const struct forward_rows *rows,
	uint32_t first_hidden, struct err *e)
{
	m->capture = rows->n <= GRAPH_ROWS && !rows->taps;
	m->source->cancel = rows->cancel;
	struct batch batch = step_begin(m, (int)rows->n, rows->tokens, rows->pos, rows->base);
	if (m->source->ops->step)
		m->source->ops->step(m->source, moe_use(batch.n), batch.n, rows->pos[0]);
	struct forward_step s = {.kv = kv,
		.rows = rows,
		.batch = &batch,
		.n_hidden = first_hidden < rows->n ? rows->n - first_hidden : 0,
		.on_device_busy = rows->on_device_busy};
	int rc = run_layers(m, &s, e);
	if (rc)
		moe_drain(m, NULL);
	else if (first_hidden >= rows->n)
		rc = moe_drain(m, e);
	return rc;
}

int model_logits(struct model *m, const float *hidden, uint32_t n, float *out, struct err *e)
{
	const struct model_config *c = &m->config;
	struct backend *b = m->backend;
	for (uint32_t at = 0; at < n;) {
		uint32_t rows = MIN(n - at, m->ws.logit_rows);
		b->ops->matmul(b, &(struct matmul){.w = m->weights.head, .y = m->ws.logits}, 1,
			hidden + (size_t)at * c->n_embd, (int)rows);
		int rc = b->ops->download(b, out + (size_t)at * c->n_vocab, m->ws.logits,
			(size_t)rows * c->n_vocab * sizeof(float), e);
		if (rc)
			return rc;
		at += rows;
	}
	return moe_drain(m, e); /* nothing runs any more: gives back the pins of the last layer */
}
