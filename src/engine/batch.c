/* SPDX-License-Identifier: MIT */
/*
 * The rows of a step are laid out part after part. A part has logits of its last row, of all its
 * rows, or none. Adjacent rows with logits (decoding) are computed by one matmul.
 */
#include "src/engine/batch.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/session/session_internal.h"
#include "src/forward/mtp.h"

#include <stdlib.h>
#include <string.h>

uint32_t batch_max_rows(const struct engine *g)
{
	return g->chunk;
}

uint32_t batch_decode_rows(const struct engine *g)
{
	return MIN(g->chunk, (uint32_t)engine_last(g)->backend->ops->decode_rows);
}

/* How many of its last rows have their logits computed. */
static uint32_t part_rows(const struct batch_part *p)
{
	return p->verify ? p->n : p->logits;
}

static int check_parts(
	const struct batch_part *parts, uint32_t n_parts, uint32_t *rows, struct err *e)
{
	const struct engine *g = parts[0].session->g;
	uint64_t sum = 0;
	for (uint32_t i = 0; i < n_parts; i++) {
		const struct batch_part *p = &parts[i];
		if (p->session->g != g || !p->n)
			bug("batch part %u of another engine or without tokens", i);
		int rc = session_check(p->session, p->tokens, p->n, (uint64_t)p->session->length + p->n, e);
		if (rc)
			return rc;
		if (!session_row_buffer(p->session, part_rows(p), e))
			return ERR_MEMORY;
		sum += p->n;
	}
	if (sum > g->chunk)
		bug("a batch of %llu rows, at most %u", (unsigned long long)sum, g->chunk);
	*rows = (uint32_t)sum;
	return 0;
}

/* Draws from the `rows` logits of parts [first, end), which are in ws.logits in this order, and
 * copies them to their sessions. stay: the logits of parts that draw are left on the device. Waits
 * once. */
static int batch_take_logits(const struct batch_part *parts, uint32_t first, uint32_t end,
	uint32_t rows, bool stay, struct err *e)
{
	const struct engine *g = parts[first].session->g;
	const struct workspace *ws = &engine_last(g)->model.ws;
	struct backend *b = engine_last(g)->backend;
	size_t n_vocab = g->config.n_vocab;
	struct draw_request requests[MAX(rows, 1u)];
	uint32_t at = 0;
	bool draws = false;
	for (uint32_t i = first; i < end; i++) {
		struct session *s = parts[i].session;
		uint32_t n = part_rows(&parts[i]);
		for (uint32_t k = 0; k < n; k++)
			requests[at + k] = parts[i].draws ? parts[i].draws[k] : (struct draw_request){0};
		draws |= n && parts[i].draws;
		s->device_serial = stay && parts[i].draws ? ws->logits_serial : 0;
		s->device_row = at;
		if (n && !s->device_serial)
			b->ops->copy(b, session_row_buffer(s, n, e), ws->logits + at * n_vocab,
				n * n_vocab * sizeof(float));
		at += n;
	}
	if (draws)
		b->ops->draw(b, ws->logits, (int64_t)n_vocab, g->n_valid, requests, (int)rows, ws->drawn);
	int rc = b->ops->wait(b, e);
	at = 0;
	for (uint32_t i = first; !rc && i < end; at += part_rows(&parts[i++]))
		if (parts[i].draws)
			memcpy(parts[i].drawn, ws->drawn + at, part_rows(&parts[i]) * sizeof *ws->drawn);
	return rc;
}

/* Logits of all parts that want them. */
static int batch_logits(const struct batch_part *parts, uint32_t n_parts, struct err *e)
{
	struct model *m = &engine_last(parts[0].session->g)->model;
	struct backend *b = m->backend;
	size_t n_embd = m->config.n_embd, n_vocab = m->config.n_vocab;
	uint32_t row = 0, taken = 0, rows = 0; /* rows of ws.logits, of parts [taken, i) */
	m->ws.logits_serial++;
	for (uint32_t i = 0; i < n_parts;) {
		uint32_t n = part_rows(&parts[i]);
		if (rows + n > m->ws.logit_rows) {
			int rc = batch_take_logits(parts, taken, i, rows, false, e);
			if (rc)
				return rc;
			taken = i;
			rows = 0;
		}
		row += parts[i++].n;
		if (!n)
			continue;
		for (; i < n_parts && part_rows(&parts[i]) == parts[i].n &&
			   rows + n + parts[i].n <= m->ws.logit_rows;
			 n += parts[i++].n)
			row += parts[i].n;
		b->ops->matmul(b,
			&(struct matmul){.w = m->weights.head, .y = m->ws.logits + rows * n_vocab}, 1,
			m->ws.hidden + (row - n) * n_embd, (int)n);
		rows += n;
	}
	return rows ? batch_take_logits(parts, taken, n_parts, rows, true, e) : 0;
}

/* The step is computed: the timelines grow. */
static void batch_advance(const struct batch_part *parts, uint32_t n_parts,
	const struct forward_rows *rows, const int32_t *states)
{
	struct engine *g = parts[0].session->g;
	struct stage *last = engine_last(g);
	if (last->model.has_mtp)
		mtp_append(&last->model, &last->kv, rows, states);
	uint32_t row = 0;
	for (uint32_t i = 0; i < n_parts; row += parts[i++].n) {
		struct session *s = parts[i].session;
		memcpy(s->tokens + s->length, parts[i].tokens, parts[i].n * sizeof *s->tokens);
		session_advance(s, parts[i].n, row, part_rows(&parts[i]), s->mtp);
	}
	for (uint32_t i = 0; i < n_parts; i++) {
		const struct batch_part *p = &parts[i];
		bool finite = true;
		if (!p->draws)
			session_check_finite(p->session, NULL);
		for (uint32_t k = 0; p->draws && k < part_rows(p); k++)
			finite &= p->drawn[k].finite;
		if (!finite)
			session_rewind(p->session, 0);
	}
}

int batch_step(const struct batch_part *parts, uint32_t n_parts, const struct batch_watch *watch,
	struct err *e)
{
	if (!n_parts)
		return 0;
	struct engine *g = parts[0].session->g;
	uint32_t rows = 0, r = 0, first_hidden;
	int rc = check_parts(parts, n_parts, &rows, e);
	if (rc)
		return rc;
	/* four numbers and a flag a row */
	int32_t *ids = mem_try_new(5 * (size_t)rows, sizeof *ids);
	if (!ids)
		return err_set(e, ERR_MEMORY, "no memory for the token ids of %u rows", rows);
	int32_t *pos = ids + rows, *base = pos + rows, *states = base + rows;
	bool *draft = (bool *)(states + rows), any_draft = false, long_prompt = false;
	first_hidden = rows;
	for (uint32_t i = 0; i < n_parts; i++) {
		struct session *s = parts[i].session;
		const struct batch_part *p = &parts[i];
		session_fill_mtp_rows(s);
		session_expect_token(s, p->tokens[0]);
		if (session_mtp_states(s, p->n, r, states + r))
			first_hidden = MIN(first_hidden, r);
		else if (part_rows(p))
			first_hidden = MIN(first_hidden, r + p->n - part_rows(p));
		for (uint32_t k = 0; k < p->n; k++, r++) {
			ids[r] = p->tokens[k];
			pos[r] = (int32_t)(s->length + k);
			base[r] = s->base;
			draft[r] = p->verify && k;
			any_draft |= draft[r];
		}
		long_prompt |= p->prompt >= LONG_PROMPT;
		session_drop_logits(s);
	}
	g->n_steps++;
	struct forward_rows f = {.n = rows,
		.tokens = ids,
		.pos = pos,
		.base = base,
		.draft = any_draft ? draft : NULL,
		.long_prompt = long_prompt,
		.cancel = watch ? watch->cancel : NULL,
		.on_layer = watch ? watch->on_layer : NULL,
		.user = watch ? watch->user : NULL};
	if (!(rc = engine_forward(g, &f, first_hidden, e)) && !(rc = batch_logits(parts, n_parts, e)) &&
		!(rc = gguf_check_lost(g->gguf, e)))
		batch_advance(parts, n_parts, &f, states);
	free(ids);
	return rc;
}

int batch_mtp_draft(const struct batch_draft *drafts, uint32_t n, struct err *e)
{
	for (uint32_t i = 0; i < n; i++) {
		int rc = session_check_draft(drafts[i].session, drafts[i].next, drafts[i].k, e);
		if (rc)
			return rc;
	}
	for (uint32_t at = 0, part; at < n; at += part) {
		struct engine *g = drafts[0].session->g;
		struct stage *last = engine_last(g);
		part = MIN(n - at, last->model.ws.draft_rows);
		struct mtp_sequence sequences[part];
		for (uint32_t i = 0; i < part; i++) {
			const struct batch_draft *d = &drafts[at + i];
			session_mtp_sequence(d->session, &sequences[i]);
			sequences[i].next = d->next;
			sequences[i].n_drafts = d->k;
			sequences[i].choose = d->choose;
			sequences[i].user = d->user;
			sequences[i].ids = d->ids;
			sequences[i].logits = d->logits;
			session_drafted(d->session);
		}
		int rc = mtp_draft(&last->model, &last->kv, sequences, part, g->n_valid, e);
		if (rc)
			return rc;
	}
	return 0;
}

int batch_copy_prefix(struct session *to, const struct session *from, uint32_t n, struct err *e)
{
	struct engine *g = to->g;
	if (to == from || from->g != g || n > from->length)
		bug("copy of %u tokens between unfit sessions", n);
	session_rewind(to, 0);
	session_drop_logits(to);
	const uint32_t mtp = n && to->mtp ? MIN(from->mtp_rows, n - 1) : 0;
	memcpy(to->tokens, from->tokens, n * sizeof *to->tokens);
	int rc = engine_copy_rows(g, (uint32_t)to->base, (uint32_t)from->base, n, mtp, e);
	if (rc)
		return rc;
	to->length = n;
	to->mtp_rows = mtp;
	to->mtp_filled = MIN(from->mtp_filled, mtp);
	return 0;
}
