/* SPDX-License-Identifier: MIT */
/*
 * The next-token-prediction layer (specification 2.8), stored as the layer after the trunk. Its
 * input for the pair (H_i, t_{i+1}) is eh_proj [RMS(embed t_{i+1}, enorm); RMS(H_i, hnorm)], H
 * taken after the final norm; its attention has caches of its own. A pair that lies inside known
 * text needs only its cache row, which is a projection of that input: no attention and no expert is
 * computed for it. Only a draft runs the whole layer, for one row.
 */
#include "src/forward/mtp.h"

#include "src/forward/attention.h"
#include "src/forward/segment.h"

/* ws.mtp_in[at ..) = the eh_proj input of n pairs: `tokens` with the rows from `hidden` on.
 * tokens: of ws.tokens, rows of ws.embed. */
static void project_pairs(
	struct model *m, const int32_t *tokens, const float *hidden, int at, int n)
{
	const struct model_config *c = &m->config;
	const struct model_weights *w = &m->weights;
	struct backend *b = m->backend;
	int64_t n_embd = c->n_embd;
	float *in = m->ws.mtp_in + at * 2 * n_embd;
	/* the embedding half is normed in place of its own output, the stride skips the hidden half */
	b->ops->embed(b, m->ws.embed, tokens, n, m->ws.h);
	b->ops->rms_norm(b, m->ws.h, n_embd, &(struct norm){w->enorm, in}, 1, c->rms_eps, n,
		(int)n_embd, 2 * n_embd);
	b->ops->rms_norm(b, hidden, n_embd, &(struct norm){w->hnorm, in + n_embd}, 1, c->rms_eps, n,
		(int)n_embd, 2 * n_embd);
}

void mtp_append(
	struct model *m, struct kv_cache *kv, const struct forward_rows *rows, const float *before)
{
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	/* pair of row r: the token of row r with the hidden state before it; it stands at position pos
	 * - 1 */
	bool has_before = before && rows->pos[0] > 0;
	int n = (int)rows->n - (has_before ? 0 : 1);
	if (n < 1)
		return;
	if (has_before)
		project_pairs(m, ws->tokens, before, 0, 1);
	if (rows->n > 1)
		project_pairs(m, ws->tokens + 1, ws->hidden, has_before ? 1 : 0, (int)rows->n - 1);
	b->ops->matmul(b, &(struct matmul){.w = m->weights.eh_proj, .y = ws->x}, 1, ws->mtp_in, n);

	int32_t first = has_before ? rows->pos[0] - 1 : rows->pos[0];
	int32_t *pos = (int32_t *)(void *)m->step_host;
	for (int r = 0; r < n; r++)
		pos[r] = first + r;
	b->ops->upload(
		b, ws->pos, pos, (size_t)n * sizeof(int32_t)); /* the trunk needs its own no more */
	struct batch batch = {.n = n, .pos = ws->pos, .base = ws->base, .max_pos = first + n - 1};
	b->ops->rope_angles(b, &batch, m->inv_freq, (int)m->config.head_rope, ws->cos_sin);
	attention_append(m, kv, m->config.n_layers, &batch);
}

int mtp_draft(struct model *m, struct kv_cache *kv, const float *before, int32_t next, int32_t pos,
	int32_t base, float *out, struct err *e)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	struct batch batch = step_begin(m, 1, &next, &pos, &base);
	b->ops->rope_angles(b, &batch, m->inv_freq, (int)c->head_rope, ws->cos_sin);
	project_pairs(m, ws->tokens, before, 0, 1);
	m->capture = true;
	enum segment_mode calls = segment_begin(m, kv, c->n_layers + 1, &batch, 0);
	if (calls != SEGMENT_REPLAYED) {
		b->ops->matmul(b, &(struct matmul){.w = m->weights.eh_proj, .y = ws->x}, 1, ws->mtp_in, 1);
		attention_forward(m, kv, c->n_layers, &batch, false);
		ffn_forward(m, c->n_layers, &batch);
	}
	if (calls == SEGMENT_CAPTURE)
		b->ops->segment_end(b);
	int rc = moe_experts_request(m, c->n_layers, b->fence_value, &batch, e);
	if (!rc)
		rc = moe_experts_complete(m, &batch, e);
	if (rc) {
		moe_drain(m, NULL);
		return rc;
	}
	moe_combine(m, &batch, NULL);
	b->ops->rms_norm(b, ws->x, c->n_embd, &(struct norm){m->weights.head_norm, ws->hidden}, 1,
		c->rms_eps, 1, (int)c->n_embd, c->n_embd);
	return model_logits(m, ws->hidden, 1, out, e);
}
