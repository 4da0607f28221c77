/* SPDX-License-Identifier: MIT */
/* One timeline: tokens on the host, caches in the engine's pool, logits of the last position. */
#include "src/engine/session.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/sampler.h"
#include "src/engine/session_internal.h"
#include "src/forward/forward.h"
#include "src/forward/mtp.h"

#include <stdlib.h>
#include <string.h>

static size_t logits_bytes(const struct engine *g)
{
	return g->model.config.n_vocab * sizeof(float);
}

int session_new(struct engine *g, struct session **out, struct err *e)
{
	*out = NULL;
	uint32_t slot = 0;
	while (slot < g->n_sessions && g->taken[slot])
		slot++;
	if (slot == g->n_sessions)
		return err_set(e, ERR_MEMORY, "all %u sessions are in use", g->n_sessions);
	struct session *s = NEW(struct session);
	s->g = g;
	s->slot = slot;
	s->base = (int32_t)(slot * g->context);
	s->tokens = mem_try_new(g->context, sizeof *s->tokens);
	s->pos = mem_try_new(g->chunk, sizeof *s->pos);
	s->bases = mem_try_new(g->chunk, sizeof *s->bases);
	g->taken[slot] = true;
	if (!s->tokens || !s->pos || !s->bases) {
		session_free(s);
		return err_set(e, ERR_MEMORY, "no memory for a session of %u tokens", g->context);
	}
	int rc =
		g->backend->ops->alloc(g->backend, MEM_SHARED, logits_bytes(g), (void **)&s->logits, e);
	if (rc) {
		session_free(s);
		return rc;
	}
	*out = s;
	return 0;
}

void session_free(struct session *s)
{
	if (!s)
		return;
	struct backend *b = s->g->backend;
	b->ops->free(b, MEM_DEVICE, s->hidden, s->g->model.config.n_embd * sizeof(float));
	s->g->taken[s->slot] = false;
	free(s->tokens);
	b->ops->free(b, MEM_SHARED, s->logits, logits_bytes(s->g));
	free(s->pos);
	free(s->bases);
	free(s);
}

struct engine *session_engine(const struct session *s)
{
	return s->g;
}

int session_enable_mtp(struct session *s, struct err *e)
{
	struct backend *b = s->g->backend;
	if (!s->g->model.has_mtp)
		return err_set(e, ERR_INPUT, "the model has no MTP layer (or it was not loaded)");
	if (s->length)
		bug("MTP enabled after %u tokens", s->length);
	if (s->mtp)
		return 0;
	int rc = b->ops->alloc(
		b, MEM_DEVICE, s->g->model.config.n_embd * sizeof(float), (void **)&s->hidden, e);
	s->mtp = rc == 0;
	return rc;
}

static int check_token_ids(
	const struct session *s, const int32_t *tokens, uint32_t n, struct err *e)
{
	int32_t n_vocab = (int32_t)s->g->model.config.n_vocab;
	for (uint32_t i = 0; i < n; i++)
		if (tokens[i] < 0 || tokens[i] >= n_vocab)
			return err_set(
				e, ERR_INPUT, "token %u has id %d, expected 0 to %d", i, tokens[i], n_vocab - 1);
	return 0;
}

static int check_length(const struct session *s, uint64_t length, struct err *e)
{
	if (length <= s->g->context)
		return 0;
	err_set(e, ERR_INPUT, "%llu tokens do not fit the context of %u", (unsigned long long)length,
		s->g->context);
	if (s->g->context < s->g->model.config.n_context)
		err_hint(e, "a larger -c takes more, up to the model's %u", s->g->model.config.n_context);
	return ERR_INPUT;
}

int session_check(
	const struct session *s, const int32_t *tokens, uint32_t n, uint64_t length, struct err *e)
{
	int rc = check_token_ids(s, tokens, n, e);
	return rc ? rc : check_length(s, length, e);
}

static struct forward_taps session_step_taps(struct session *s, uint32_t n)
{
	const struct model_config *c = &s->g->model.config;
	struct session_taps *t = s->taps;
	bool room = t->router && s->tap_rows + n <= t->router_rows;
	struct forward_taps f = {
		.resid_last = t->resid_last,
		.router = room ? t->router + (size_t)s->tap_rows * config_n_moe(c) * c->n_used : NULL,
		.index_last = t->index_last,
		.n_index_last = t->n_index_last,
	};
	s->tap_rows += n;
	return f;
}

int session_not_finite(struct session *s, struct err *e)
{
	uint32_t length = s->length;
	session_rewind(s, 0); /* the caches may hold what the logits were made from */
	return err_set(e, ERR_RUN,
		"the logits behind token %u are not finite: the weights or the caches are damaged", length);
}

/* Computes one chunk, the tokens at s->tokens[length ..). rows: [n][vocab] or NULL; last: keep the
 * logits of its last row. */
static int session_step(struct session *s, uint32_t n, float *rows, bool last,
	const struct session_watch *watch, struct err *e)
{
	struct model *m = &s->g->model;
	size_t n_embd = m->config.n_embd, n_vocab = m->config.n_vocab;
	for (uint32_t i = 0; i < n; i++) {
		s->pos[i] = (int32_t)(s->length + i);
		s->bases[i] = s->base;
	}
	struct forward_taps taps;
	struct forward_rows f = {
		.n = n,
		.tokens = s->tokens + s->length,
		.pos = s->pos,
		.base = s->bases,
		.cancel = watch ? watch->cancel : NULL,
		.on_device_busy = watch ? watch->on_device_busy : NULL,
		.user = watch ? watch->user : NULL,
	};
	if (s->taps) {
		taps = session_step_taps(s, n);
		f.taps = &taps;
	}
	s->has_logits = false;
	uint32_t first_hidden = rows || s->mtp ? 0 : last ? n - 1 : n;
	int rc = model_forward(m, &s->g->kv, &f, first_hidden, e);
	if (rc)
		return rc;
	if (rows)
		rc = model_logits(m, m->ws.hidden, n, rows, e);
	else if (last)
		rc = model_logits(m, m->ws.hidden + (n - 1) * n_embd, 1, s->logits, e);
	if (rc)
		return rc;
	if ((rc = gguf_check_lost(s->g->gguf, e)))
		return rc;
	if (last && !rows && !sampler_all_finite(s->logits, s->g->n_valid))
		return session_not_finite(s, e);
	if (rows && last)
		memcpy(s->logits, rows + (n - 1) * n_vocab, n_vocab * sizeof *rows);
	if (s->mtp) {
		mtp_append(m, &s->g->kv, &f, s->has_hidden ? s->hidden : NULL);
		s->g->backend->ops->copy(
			s->g->backend, s->hidden, m->ws.hidden + (n - 1) * n_embd, n_embd * sizeof(float));
	}
	s->length += n;
	s->has_hidden = s->mtp;
	s->has_logits = last;
	return s->mtp ? s->g->backend->ops->wait(s->g->backend, e) : 0;
}

int session_extend(struct session *s, const int32_t *tokens, uint32_t n, float *rows,
	const struct session_watch *watch, struct err *e)
{
	int rc;
	if ((rc = session_check(s, tokens, n, (uint64_t)s->length + n, e)))
		return rc;
	if (!n)
		return 0;
	if (s->mtp && s->length && !s->has_hidden) {
		/* The pair of the last position needs its hidden state: that position is computed again.
		 * The pair before it is in the cache. */
		s->length--;
		if ((rc = session_step(s, 1, NULL, false, watch, e)))
			return rc;
	}
	memcpy(s->tokens + s->length, tokens, n * sizeof *tokens);
	for (uint32_t done = 0; done < n;) {
		uint32_t part = MIN(n - done, s->g->chunk);
		float *out = rows ? rows + (size_t)done * s->g->model.config.n_vocab : NULL;
		if ((rc = session_step(s, part, out, done + part == n, watch, e)))
			return rc;
		done += part;
		if (watch && watch->progress)
			watch->progress(watch->user, done, n);
	}
	return 0;
}

int session_sync(struct session *s, const int32_t *tokens, uint32_t n,
	const struct session_watch *watch, uint32_t *n_reused, struct err *e)
{
	int rc;
	if (!n)
		return err_set(e, ERR_INPUT, "the prompt has no tokens");
	if ((rc = session_check(s, tokens, n, n, e)))
		return rc;
	uint32_t same = session_common_prefix(s, tokens, n);
	if (same == n && !(s->length == n && s->has_logits))
		same = n - 1; /* the logits of the last token are wanted */
	session_rewind(s, same);
	if (n_reused)
		*n_reused = same;
	return session_extend(s, tokens + same, n - same, NULL, watch, e);
}

void session_rewind(struct session *s, uint32_t n)
{
	if (n > s->length)
		bug("rewind to %u of %u tokens", n, s->length);
	if (n == s->length)
		return;
	s->length = n;
	s->has_logits = false;
	s->has_hidden = false;
}

uint32_t session_common_prefix(const struct session *s, const int32_t *tokens, uint32_t n)
{
	uint32_t same = 0, limit = MIN(n, s->length);
	while (same < limit && s->tokens[same] == tokens[same])
		same++;
	return same;
}

uint32_t session_length(const struct session *s)
{
	return s->length;
}

const int32_t *session_tokens(const struct session *s)
{
	return s->tokens;
}

const float *session_logits(const struct session *s)
{
	return s->has_logits ? s->logits : NULL;
}

int session_mtp_logits(struct session *s, int32_t next, float *logits, struct err *e)
{
	if (!s->mtp || !s->has_hidden)
		return err_set(
			e, ERR_RUN, "MTP logits need session_enable_mtp and a computed last position");
	int rc = check_token_ids(s, &next, 1, e);
	if (rc)
		return rc;
	return mtp_draft(
		&s->g->model, &s->g->kv, s->hidden, next, (int32_t)s->length - 1, s->base, logits, e);
}

void session_set_taps(struct session *s, struct session_taps *taps)
{
	s->taps = taps;
	s->tap_rows = 0;
}
