/* SPDX-License-Identifier: MIT */
/* The loop over layers, segment by segment, and the head. segment.h has the picture. */
#include "src/forward/forward.h"

#include "src/base/log.h"
#include "src/base/num.h"
#include "src/forward/attention.h"
#include "src/forward/ffn.h"
#include "src/forward/observe.h"
#include "src/forward/segment.h"

#include <stdlib.h>

/* Layers of a segment at most. The device rests for about two microseconds between two segments.
 * The host enqueues one while the experts before it are computed, and must not take longer. */
#define SEGMENT_LAYERS 16

static int compare_u16(const void *a, const void *b)
{
	return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

/* Copies what the taps want after a layer; waits for the device. */
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

struct forward_step {
	struct kv_cache *kv;
	const struct forward_rows *rows;
	const struct batch *batch;
	uint32_t n_hidden;                  /* so many of the last rows go to ws.hidden */
	void (*on_device_busy)(void *user); /* NULL: has been called */
};

/* Enqueues a layer up to its experts, beginning with moe_combine of the layer before. Layer
 * end_layer is the end of the step: the final norm, if hidden states are wanted. */
static void enqueue_layer(struct model *m, const struct forward_step *s, uint32_t layer)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	bool begin = layer == c->first_layer, end = layer == c->end_layer,
		 combine = !begin && config_is_moe(c, layer - 1) && !s->rows->taps;
	if (begin)
		b->ops->rope_angles(b, s->batch, m->inv_freq, (int)c->head_rope, ws->cos_sin);
	if (!layer)
		b->ops->embed(b, ws->embed, ws->tokens, s->batch->n, ws->x);
	if (combine && end) {
		moe_combine(m, s->batch, NULL);
	} else if (combine) {
		struct norm norm = attention_input_norm(m, layer);
		moe_combine(m, s->batch, &norm);
	}
	if (!end) {
		attention_forward(m, s->kv, layer, s->batch, combine, false);
		ffn_forward(m, layer, s->batch);
	} else if (s->n_hidden) {
		size_t at = (size_t)(s->rows->n - s->n_hidden) * c->n_embd;
		b->ops->rms_norm(b, ws->x + at, c->n_embd,
			&(struct norm){m->weights.output_norm, ws->hidden + at}, 1, c->rms_eps,
			(int)s->n_hidden, (int)c->n_embd, c->n_embd);
	}
}

/* The host's part of a layer whose ops have been enqueued. fence: of its routers, if it has some.
 */
static int serve_layer(
	struct model *m, struct forward_step *s, uint32_t layer, uint64_t fence, struct err *e)
{
	const struct forward_rows *rows = s->rows;
	bool moe = config_is_moe(&m->config, layer);
	int rc;
	if (moe && s->on_device_busy) {
		s->on_device_busy(rows->user);
		s->on_device_busy = NULL;
	}
	if ((rc = lookahead_prefetch(m, e))) /* of the dense layer before */
		return rc;
	if (moe && (rc = moe_experts_request(m, layer, fence, s->batch, e)))
		return rc;
	lookahead_enqueued(m, layer, fence, s->batch->n);
	/* after the demand; after a dense layer the host must not wait for an asynchronous device */
	if ((moe || !m->backend->ops->async) && (rc = lookahead_prefetch(m, e)))
		return rc;
	if (moe && (rc = moe_experts_complete(m, s->batch, e)))
		return rc;
	if (!rows->taps)
		return 0;
	if (moe)
		moe_combine(m, s->batch, NULL);
	return tap_layer(m, rows, layer, e);
}

/* The end of the segment that begins with layer `first`: one past its last layer. */
static uint32_t segment_end(const struct model *m, const struct forward_step *s, uint32_t first)
{
	uint32_t n = m->config.end_layer;
	for (uint32_t layer = first; layer < n; layer++) {
		/* the first layer: the device computes it while the host launches the rest */
		bool alone = layer == m->config.first_layer;
		if (alone || s->rows->taps || layer + 1 - first == SEGMENT_LAYERS ||
			(config_is_moe(&m->config, layer) && !moe_deferred(m, layer, s->batch->n)))
			return layer + 1;
	}
	return n + 1;
}

static bool has_routers(const struct model *m, const struct forward_step *s, uint32_t layer)
{
	return config_is_moe(&m->config, layer) || lookahead_reach(m, layer, s->batch->n);
}

/* Layers first .. end - 1. A captured segment is launched as a whole, else each layer is enqueued
 * when the host gets to it; in both cases the host then serves layer after layer. */
static int segment_run(
	struct model *m, struct forward_step *s, uint32_t first, uint32_t end, struct err *e)
{
	const struct model_config *c = &m->config;
	struct backend *b = m->backend;
	atomic_bool *cancel = s->rows->cancel;
	uint64_t fence = b->fence_value;
	enum segment_mode calls =
		segment_begin(m, s->kv, first, s->batch, end > c->end_layer ? s->n_hidden : 0);
	if (calls == SEGMENT_CAPTURE) {
		for (uint32_t layer = first; layer < end; layer++)
			enqueue_layer(m, s, layer);
		b->ops->segment_end(b);
	}
	for (uint32_t layer = first; layer < end; layer++) {
		if (layer < c->end_layer && cancel && atomic_load_explicit(cancel, memory_order_relaxed))
			return err_set(e, ERR_INTERRUPTED, "interrupted");
		if (calls == SEGMENT_EAGER)
			enqueue_layer(m, s, layer);
		if (layer == c->end_layer)
			break;
		/* a launched segment has one fence for each layer with routers */
		fence = calls == SEGMENT_EAGER ? b->fence_value : fence + has_routers(m, s, layer);
		int rc = serve_layer(m, s, layer, fence, e);
		if (rc)
			return rc;
		if (s->rows->on_layer)
			s->rows->on_layer(s->rows->user, layer + 1, c->n_layers);
	}
	return 0;
}

static int run_segments(struct model *m, struct forward_step *s, struct err *e)
{
	const struct model_config *c = &m->config;
	/* after a dense layer, if no hidden states are wanted, the end of the step enqueues nothing */
	bool end_has_ops = s->n_hidden || (config_is_moe(c, c->end_layer - 1) && !s->rows->taps);
	for (uint32_t first = c->first_layer, end; first < c->end_layer + end_has_ops; first = end) {
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
	m->capture = !rows->taps && !rows->long_prompt && step_counts_add(&m->counts, rows->n);
	const bool observe_end = m->observation && config_has_end(&m->config);
	struct backend *b = m->backend;
	m->source->cancel = rows->cancel;
	if (b->ops->set_cancel)
		b->ops->set_cancel(b, rows->cancel);
	m->plan.draft = rows->draft;
	m->plan.long_prompt = rows->long_prompt;
	m->plan.answers = rows->answers;
	struct batch batch = step_begin(m, (int)rows->n, rows->tokens, rows->pos, rows->base);
	if (m->source->ops->step)
		m->source->ops->step(m->source, moe_step_use(m, batch.n), batch.n, rows->pos[0]);
	struct forward_step s = {.kv = kv,
		.rows = rows,
		.batch = &batch,
		.n_hidden = observe_end              ? rows->n
					: first_hidden < rows->n ? rows->n - first_hidden
											 : 0,
		.on_device_busy = rows->on_device_busy};
	int rc = run_segments(m, &s, e);
	if (!rc && b->failure.code == ERR_INTERRUPTED)
		rc = err_set(e, ERR_INTERRUPTED, "interrupted");
	if (!rc && observe_end)
		rc = model_observe_hidden(m, rows->n, e);
	if (rc)
		moe_drain(m, NULL);
	else if (first_hidden >= rows->n && !rows->hands_over)
		rc = moe_drain(m, e);
	m->source->cancel = NULL; /* the flag was lent for this call */
	if (b->ops->set_cancel)
		b->ops->set_cancel(b, NULL);
	m->plan.draft = NULL;
	m->plan.long_prompt = m->plan.answers = false;
	return rc;
}

int model_logits(struct model *m, const float *hidden, uint32_t n, float *out, struct err *e)
{
	const struct model_config *c = &m->config;
	struct backend *b = m->backend;
	int rc = 0;
	m->ws.logits_serial++;
	for (uint32_t at = 0, rows; at < n && !rc; at += rows) {
		rows = MIN(n - at, m->ws.logit_rows);
		b->ops->matmul(b, &(struct matmul){.w = m->weights.head, .y = m->ws.logits}, 1,
			hidden + (size_t)at * c->n_embd, (int)rows);
		rc = b->ops->download(b, out + (size_t)at * c->n_vocab, m->ws.logits,
			(size_t)rows * c->n_vocab * sizeof(float), e);
	}
	int drained = moe_drain(m, rc ? NULL : e); /* gives back the pins of the last layer */
	return rc ? rc : drained;
}

int model_draw(struct model *m, const float *hidden, uint32_t n,
	const struct draw_request *requests, int32_t n_valid, float *copy, struct err *e)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	if (n > ws->logit_rows)
		bug("draws from %u rows, at most %u", n, ws->logit_rows);
	ws->logits_serial++;
	b->ops->matmul(b, &(struct matmul){.w = m->weights.head, .y = ws->logits}, 1, hidden, (int)n);
	if (copy)
		b->ops->copy(b, copy, ws->logits, (size_t)n * c->n_vocab * sizeof *copy);
	b->ops->draw(b, ws->logits, (int64_t)c->n_vocab, n_valid, requests, (int)n, ws->drawn);
	return moe_drain(m, e);
}
