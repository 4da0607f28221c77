/* SPDX-License-Identifier: MIT */
/*
 * The next-token-prediction layer (specification 2.8), stored as the layer after the trunk. Its
 * input for the pair (H_i, t_{i+1}) is eh_proj [RMS(embed t_{i+1}, enorm); RMS(H_i, hnorm)], H
 * taken after the final norm; its attention has caches of its own. A pair that lies inside known
 * text needs only its cache row, which is a projection of that input: no attention and no expert is
 * computed for it. Only a draft runs the whole layer.
 */
#include "src/forward/mtp.h"

#include "src/base/log.h"
#include "src/base/num.h"
#include "src/forward/attention.h"
#include "src/forward/ffn.h"
#include "src/forward/segment.h"

#include <string.h>

/* ws.mtp_in = the input of eh_proj for n pairs. In: ws.h, the embeddings of their tokens;
 * ws.tokens, the rows of ws.hidden with their hidden states. ws.h is undefined afterwards. */
static void project_pairs(struct model *m, int n)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	int n_embd = (int)c->n_embd;
	size_t row = c->n_embd * sizeof(float);
	struct weight states = {.data = ws->hidden,
		.type = DTYPE_F32,
		.n_in = n_embd,
		.n_out = (int64_t)workspace_zero_row(ws) + 1,
		.n_stack = 1,
		.row_bytes = row,
		.stack_bytes = (workspace_zero_row(ws) + 1) * row};
	b->ops->rms_norm(b, ws->h, n_embd, &(struct norm){m->weights.enorm, ws->mtp_in}, 1, c->rms_eps,
		n, n_embd, 2 * n_embd);
	b->ops->embed(b, states, ws->tokens, n, ws->h); /* gathers rows, as of a table of embeddings */
	b->ops->rms_norm(b, ws->h, n_embd, &(struct norm){m->weights.hnorm, ws->mtp_in + n_embd}, 1,
		c->rms_eps, n, n_embd, 2 * n_embd);
}

/* ws.x = eh_proj ws.mtp_in */
static void project_input(struct model *m, int n)
{
	m->backend->ops->matmul(
		m->backend, &(struct matmul){.w = m->weights.eh_proj, .y = m->ws.x}, 1, m->ws.mtp_in, n);
}

/* Lists the pairs of a step of rows->n rows in step_host, at the offsets of such a step (states 0,
 * positions rows->n, first cache rows 2 rows->n), of which the first pairs->n are filled. A state
 * is a row of ws.hidden, in place of a token. Enqueues the embeddings of their tokens to ws.h, by
 * an op for each run of neighbouring rows. n and max_pos of *pairs: out.
 */
static void list_pairs(
	struct model *m, const struct forward_rows *rows, const int32_t *states, struct batch *pairs)
{
	const struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	int32_t *state = (int32_t *)(void *)m->step_host, *pos = state + rows->n, *base = pos + rows->n;
	int n = 0;
	for (uint32_t r = 0; r < rows->n; r++) {
		const uint32_t first = r;
		float *h = ws->h + (size_t)n * m->config.n_embd;
		for (; r < rows->n && states[r] != MTP_NO_PAIR; r++, n++) {
			state[n] = states[r];
			pos[n] = rows->pos[r] - 1;
			base[n] = rows->base[r];
			pairs->max_pos = MAX(pairs->max_pos, pos[n]);
		}
		if (r > first)
			b->ops->embed(b, ws->embed, ws->tokens + first, (int)(r - first), h);
		/* row r, if there is one, has no pair */
	}
	pairs->n = n;
}

void mtp_append(
	struct model *m, struct kv_cache *kv, const struct forward_rows *rows, const int32_t *states)
{
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	struct batch pairs = {.pos = ws->pos, .base = ws->base};
	list_pairs(m, rows, states, &pairs);
	if (!pairs.n)
		return;
	/* from here on ws.tokens, ws.pos and ws.base are those of the pairs */
	b->ops->upload(b, ws->step, m->step_host, 3 * (size_t)rows->n * sizeof(int32_t));
	project_pairs(m, pairs.n);
	project_input(m, pairs.n);
	b->ops->rope_angles(b, &pairs, m->inv_freq, (int)m->config.head_rope, ws->cos_sin);
	attention_append(m, kv, m->config.n_layers, &pairs);
}

void mtp_append_tokens(struct model *m, struct kv_cache *kv, const struct forward_rows *rows)
{
	int32_t states[rows->n];
	for (uint32_t r = 0; r < rows->n; r++)
		states[r] = (int32_t)workspace_zero_row(&m->ws);
	step_begin(m, (int)rows->n, rows->tokens, rows->pos, rows->base);
	mtp_append(m, kv, rows, states);
}

void mtp_keep_states(struct model *m, uint32_t first, uint32_t n, uint32_t session)
{
	size_t n_embd = m->config.n_embd;
	m->backend->ops->copy(m->backend,
		m->ws.hidden + workspace_state_row(&m->ws, session, 0) * n_embd,
		m->ws.hidden + first * n_embd, n * n_embd * sizeof(float));
}

/* One round. Sequences are sorted by n_drafts, most first, and row r of every step is sequence r.
 * So the rows of a step are the first rows of the step before. */
struct draft_round {
	const struct mtp_sequence **sequence; /* [n] */
	uint32_t n;
	int32_t *token, *pos, *base, *state; /* [n] of the step; state: row of ws.hidden */
	int32_t *n_sel;                      /* [n] positions of ws.draft_sel for the step */
	/* a position is beyond index_topk: steps 1 and later use the selection of step 0 */
	bool shares;
	int32_t n_valid;
};

/* After step 0: ws.draft_sel = the selection of each row, followed by the round's own positions
 * pos + 1, pos + 2, ...; n_sel: of the selection alone, all positions or index_topk of them. */
static void share_selection(struct model *m, const struct draft_round *d)
{
	const struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	for (uint32_t r = 0; r < d->n && d->sequence[r]->n_drafts > 1; r++) {
		int32_t own[DRAFTS_MAX], pos = d->sequence[r]->pos;
		int32_t *sel = ws->draft_sel + (size_t)r * (size_t)ws->draft_sel_stride;
		d->n_sel[r] = MIN((int32_t)m->config.index_top_k, pos + 1);
		for (int32_t i = 0; i < DRAFTS_MAX; i++)
			own[i] = pos + 1 + i;
		b->ops->copy(
			b, sel, ws->sel + (size_t)r * m->config.index_top_k, (size_t)d->n_sel[r] * sizeof *sel);
		b->ops->upload(b, sel + d->n_sel[r], own, sizeof own);
	}
}

/* Computes step j of the first n rows; leaves their output in ws.hidden. Errors: the device is idle
 * then. */
static int draft_step(struct model *m, struct kv_cache *kv, const struct draft_round *d, uint32_t j,
	uint32_t n, struct err *e)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	bool shared = d->shares && j;
	m->capture = n <= GRAPH_ROWS_FEW;
	struct batch batch = step_begin(m, (int)n, d->token, d->pos, d->base);
	b->ops->rope_angles(b, &batch, m->inv_freq, (int)c->head_rope, ws->cos_sin);
	b->ops->embed(b, ws->embed, ws->tokens, (int)n, ws->h);
	b->ops->upload(b, ws->tokens, d->state, n * sizeof *d->state);
	if (shared)
		b->ops->upload(b, ws->draft_n_sel, d->n_sel, n * sizeof *d->n_sel);
	project_pairs(m, (int)n);
	enum segment_mode calls = segment_begin(m, kv, c->n_layers + 1, &batch, shared);
	if (calls != SEGMENT_REPLAYED) {
		project_input(m, (int)n);
		attention_forward(m, kv, c->n_layers, &batch, false, shared);
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
		c->rms_eps, (int)n, (int)c->n_embd, c->n_embd);
	return 0;
}

/* The draft of step j of a sequence, whose logits are row `row` of ws.logits. */
static int choose_draft(
	struct model *m, const struct mtp_sequence *s, uint32_t j, uint32_t row, struct err *e)
{
	const struct workspace *ws = &m->ws;
	const size_t n_vocab = m->config.n_vocab, bytes = n_vocab * sizeof(float);
	const struct draw_result *drawn = &ws->drawn[row];
	float *logits = s->logits ? s->logits + j * n_vocab : ws->draft_logits;
	int32_t id = s->choose ? s->choose(s->user, drawn, NULL, j) : drawn->id;
	if (s->logits || id == MTP_WANTS_LOGITS) {
		int rc =
			m->backend->ops->download(m->backend, logits, ws->logits + row * n_vocab, bytes, e);
		if (rc)
			return rc;
	}
	s->ids[j] = id == MTP_WANTS_LOGITS ? s->choose(s->user, drawn, logits, j) : id;
	return 0;
}

/* The drafts of step j, from the output of the first n rows. */
static int choose_drafts(
	struct model *m, const struct draft_round *d, uint32_t j, uint32_t n, struct err *e)
{
	const struct workspace *ws = &m->ws;
	struct draw_request requests[ws->logit_rows];
	for (uint32_t at = 0, rows; at < n; at += rows) {
		rows = MIN(n - at, ws->logit_rows);
		for (uint32_t r = 0; r < rows; r++) {
			const struct draw_request *draws = d->sequence[at + r]->draws;
			requests[r] = draws ? draws[j] : (struct draw_request){0};
		}
		int rc = model_draw(
			m, ws->hidden + (size_t)at * m->config.n_embd, rows, requests, d->n_valid, NULL, e);
		for (uint32_t r = 0; r < rows && !rc; r++)
			rc = choose_draft(m, d->sequence[at + r], j, r, e);
		if (rc)
			return rc;
	}
	return 0;
}

int mtp_draft(struct model *m, struct kv_cache *kv, const struct mtp_sequence *sequences,
	uint32_t n, int32_t n_valid, struct err *e)
{
	if (!n || n > m->ws.draft_rows)
		bug("drafts of %u sequences, at most %u", n, m->ws.draft_rows);
	const struct mtp_sequence *order[n];
	int32_t scratch[5 * n];
	struct draft_round d = {.sequence = order,
		.n = n,
		.token = scratch,
		.pos = scratch + n,
		.base = scratch + 2 * n,
		.state = scratch + 3 * n,
		.n_sel = scratch + 4 * n,
		.n_valid = n_valid};
	uint32_t filled = 0, most = 0;
	for (uint32_t k = DRAFTS_MAX; k; k--)
		for (uint32_t i = 0; i < n; i++)
			if (sequences[i].n_drafts == k)
				order[filled++] = &sequences[i];
	if (filled != n)
		bug("a sequence that wants no draft, or more than %d", DRAFTS_MAX);
	most = order[0]->n_drafts;
	for (uint32_t r = 0; r < n; r++) {
		const struct mtp_sequence *s = order[r];
		d.token[r] = s->next;
		d.base[r] = s->base;
		d.state[r] = (int32_t)s->state;
		d.shares |=
			s->n_drafts > 1 && s->pos + (int32_t)s->n_drafts > (int32_t)m->config.index_top_k;
	}
	int rc = 0;
	m->plan.answers = n <= ANSWER_ROWS;
	for (uint32_t j = 0, rows = n; j < most; j++) {
		while (order[rows - 1]->n_drafts <= j)
			rows--;
		for (uint32_t r = 0; r < rows; r++) {
			d.pos[r] = order[r]->pos + (int32_t)j;
			if (j) {
				d.token[r] = order[r]->ids[j - 1];
				d.state[r] = (int32_t)r;
				if (d.shares)
					d.n_sel[r]++;
			}
		}
		if ((rc = draft_step(m, kv, &d, j, rows, e)) || (rc = choose_drafts(m, &d, j, rows, e)))
			break;
		if (!j && d.shares)
			share_selection(m, &d);
	}
	m->plan.answers = false;
	return rc;
}
