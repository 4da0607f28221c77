/* SPDX-License-Identifier: MIT */
/*
 * The rows of a step are laid out part after part. Logits are wanted of the last row of some parts.
 * Where these rows are neighbours (decoding: one row each) one product computes them all.
 */
#include "src/engine/batch.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/sampler.h"
#include "src/engine/session_internal.h"
#include "src/forward/forward.h"

#include <stdlib.h>
#include <string.h>

uint32_t batch_max_rows(const struct engine *g)
{
	return g->chunk;
}

static int check_parts(
	const struct batch_part *parts, uint32_t n_parts, uint32_t *rows, struct err *e)
{
	const struct engine *g = parts[0].session->g;
	uint64_t sum = 0;
	for (uint32_t i = 0; i < n_parts; i++) {
		const struct batch_part *p = &parts[i];
		if (p->session->g != g || p->session->mtp || !p->n)
			bug("batch part %u of another engine, with MTP or without tokens", i);
		int rc = session_check(p->session, p->tokens, p->n, (uint64_t)p->session->length + p->n, e);
		if (rc)
			return rc;
		sum += p->n;
	}
	if (sum > g->chunk)
		bug("a batch of %llu rows, at most %u", (unsigned long long)sum, g->chunk);
	*rows = (uint32_t)sum;
	return 0;
}

/* Logits of all parts that want them, into their sessions. */
static int batch_logits(const struct batch_part *parts, uint32_t n_parts, struct err *e)
{
	struct model *m = &parts[0].session->g->model;
	struct backend *b = m->backend;
	size_t n_embd = m->config.n_embd, n_vocab = m->config.n_vocab;
	uint32_t row = 0;
	for (uint32_t i = 0; i < n_parts;) {
		uint32_t first = i, n = 0;
		row += parts[i++].n;
		if (!parts[first].logits)
			continue;
		for (n = 1; i < n_parts && n < m->ws.logit_rows && parts[i].logits && parts[i].n == 1; n++)
			row += parts[i++].n;
		b->ops->matmul(b, &(struct matmul){.w = m->weights.head, .y = m->ws.logits}, 1,
			m->ws.hidden + (row - n) * n_embd, (int)n);
		for (uint32_t k = 0; k < n; k++) {
			int rc = b->ops->download(b, parts[first + k].session->logits,
				m->ws.logits + k * n_vocab, n_vocab * sizeof(float), e);
			if (rc)
				return rc;
		}
	}
	return 0;
}

int batch_step(const struct batch_part *parts, uint32_t n_parts, atomic_bool *cancel, struct err *e)
{
	if (!n_parts)
		return 0;
	struct engine *g = parts[0].session->g;
	uint32_t rows = 0, r = 0, first_hidden;
	int rc = check_parts(parts, n_parts, &rows, e);
	if (rc)
		return rc;
	int32_t *ids = NEW_ARRAY(int32_t, 3 * (size_t)rows), *pos = ids + rows, *base = pos + rows;
	first_hidden = rows;
	for (uint32_t i = 0; i < n_parts; i++) {
		struct session *s = parts[i].session;
		if (parts[i].logits)
			first_hidden = MIN(first_hidden, r + parts[i].n - 1);
		for (uint32_t k = 0; k < parts[i].n; k++, r++) {
			ids[r] = parts[i].tokens[k];
			pos[r] = (int32_t)(s->length + k);
			base[r] = s->base;
		}
		s->has_logits = false;
	}
	struct forward_rows f = {.n = rows, .tokens = ids, .pos = pos, .base = base, .cancel = cancel};
	if (!(rc = model_forward(&g->model, &g->kv, &f, first_hidden, e)) &&
		!(rc = batch_logits(parts, n_parts, e)))
		rc = gguf_check_lost(g->gguf, e);
	for (uint32_t i = 0; !rc && i < n_parts; i++) {
		struct session *s = parts[i].session;
		memcpy(s->tokens + s->length, parts[i].tokens, parts[i].n * sizeof *s->tokens);
		s->length += parts[i].n;
		s->has_logits = parts[i].logits;
		s->has_hidden = false;
		if (s->has_logits && !sampler_all_finite(s->logits, g->n_valid))
			session_not_finite(s, NULL);
	}
	free(ids);
	return rc;
}

static void copy_cache_rows(
	struct backend *b, const struct cache_view *v, int32_t to, int32_t from, uint32_t n)
{
	if (!v->data)
		return;
	size_t row = (size_t)v->width * (v->type == DTYPE_F32 ? 4 : 2);
	b->ops->copy(b, (uint8_t *)v->data + (size_t)to * row,
		(const uint8_t *)v->data + (size_t)from * row, n * row);
}

int batch_copy_prefix(struct session *to, const struct session *from, uint32_t n, struct err *e)
{
	struct engine *g = to->g;
	if (to == from || from->g != g || n > from->length || to->mtp)
		bug("copy of %u tokens between unfit sessions", n);
	for (uint32_t i = 0; n && i < g->model.config.n_layers; i++) {
		copy_cache_rows(g->backend, &g->kv.latent[i], to->base, from->base, n);
		copy_cache_rows(g->backend, &g->kv.index_key[i], to->base, from->base, n);
	}
	memcpy(to->tokens, from->tokens, n * sizeof *to->tokens);
	to->length = n;
	to->has_logits = to->has_hidden = false;
	int rc = g->backend->ops->wait(g->backend, e);
	if (rc)
		to->length = 0;
	return rc;
}
