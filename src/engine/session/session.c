/* SPDX-License-Identifier: MIT */
/* One timeline: tokens on the host, caches in the engine's pool, logits of the last step. */
#include "src/engine/session/session.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/draw/draw.h"
#include "src/engine/batch.h"
#include "src/engine/sampler.h"
#include "src/engine/session/session_internal.h"
#include "src/forward/forward.h"
#include "src/forward/mtp.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(SESSION_ROWS_MAX == VERIFY_ROWS, "the model keeps the states of as many rows");

static size_t logits_bytes(const struct engine *g)
{
	return g->config.n_vocab * sizeof(float);
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
	s->states = mem_try_new(g->chunk, sizeof *s->states);
	g->taken[slot] = true;
	if (!s->tokens || !s->pos || !s->bases || !s->states) {
		session_free(s);
		return err_set(e, ERR_MEMORY, "no memory for a session of %u tokens", g->context);
	}
	struct backend *b = engine_last(g)->backend;
	int rc = b->ops->alloc(b, MEM_SHARED, logits_bytes(g), (void **)&s->logits, e);
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
	struct backend *b = engine_last(s->g)->backend;
	s->g->taken[s->slot] = false;
	free(s->tokens);
	b->ops->free(b, MEM_SHARED, s->logits, logits_bytes(s->g));
	b->ops->free(b, MEM_SHARED, s->rows, SESSION_ROWS_MAX * logits_bytes(s->g));
	free(s->pos);
	free(s->bases);
	free(s->states);
	free(s);
}

struct engine *session_engine(const struct session *s)
{
	return s->g;
}

int session_enable_mtp(struct session *s, struct err *e)
{
	if (!engine_has_mtp(s->g))
		return err_set(e, ERR_INPUT, "the model has no MTP layer (or it was not loaded)");
	s->mtp = true;
	return 0;
}

static int check_token_ids(
	const struct session *s, const int32_t *tokens, uint32_t n, struct err *e)
{
	int32_t n_vocab = (int32_t)s->g->config.n_vocab;
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
	if (s->g->context < s->g->config.n_context)
		err_hint(e, "a larger -c takes more, up to the model's %u", s->g->config.n_context);
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
	const struct model_config *c = &s->g->config;
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

/* ---- a step ---- */

/* Reports to the expert sources how many rows of the last verification are kept: once, and only
 * before the engine's next step, because a source knows the rows of one step. */
static void settle_rows(struct session *s, uint32_t n_keep)
{
	const struct engine *g = s->g;
	const bool due = s->step_number && s->step_number == g->n_steps;
	if (due)
		engine_keep_rows(s->g, s->first_row, n_keep);
	s->step_number = 0;
}

void session_expect_token(struct session *s, int32_t token)
{
	uint32_t n = s->length;
	settle_rows(s, s->n_rows);
	if (n && s->mtp_rows >= n && (s->has_state || s->tokens[n] != token))
		s->mtp_rows = n - 1;
}

float *session_row_buffer(struct session *s, uint32_t n, struct err *e)
{
	struct backend *b = engine_last(s->g)->backend;
	size_t bytes = SESSION_ROWS_MAX * logits_bytes(s->g);
	if (n > SESSION_ROWS_MAX)
		bug("logits of %u rows, at most %d are kept", n, SESSION_ROWS_MAX);
	if (n <= 1)
		return s->logits;
	if (!s->rows && b->ops->alloc(b, MEM_SHARED, bytes, (void **)&s->rows, e)) {
		err_prefix(e, "logits of %d rows", SESSION_ROWS_MAX);
		return NULL;
	}
	return s->rows;
}

void session_drop_logits(struct session *s)
{
	s->n_rows = 0;
	s->device_serial = 0;
}

int session_fetch_logits(struct session *s, struct err *e)
{
	const struct model *m = &engine_last(s->g)->model;
	size_t n_vocab = m->config.n_vocab;
	if (!s->device_serial || !s->n_rows)
		return 0;
	if (s->device_serial != m->ws.logits_serial)
		bug("the logits of a session were overwritten before they were fetched");
	int rc = m->backend->ops->download(m->backend, s->of_several ? s->rows : s->logits,
		m->ws.logits + s->device_row * n_vocab, s->n_rows * n_vocab * sizeof(float), e);
	if (!rc)
		s->device_serial = 0;
	return rc;
}

bool session_has_mtp_rows(const struct session *s, uint32_t first, uint32_t n)
{
	return s->mtp && s->mtp_rows + 1 >= n && (first ? first - 1 : 0) >= s->mtp_filled;
}

void session_fill_mtp_rows(struct session *s)
{
	if (!s->mtp || s->mtp_rows + 1 >= s->length)
		return;
	struct engine *g = s->g;
	struct stage *last = engine_last(g);
	last->backend->ops->recover(last->backend); /* of an earlier step */
	for (uint32_t row = s->mtp_rows, n; row + 1 < s->length; row += n) {
		n = MIN(s->length - 1 - row, g->chunk);
		for (uint32_t i = 0; i < n; i++) {
			s->pos[i] = (int32_t)(row + 1 + i);
			s->bases[i] = s->base;
		}
		mtp_append_tokens(&last->model, &last->kv,
			&(struct forward_rows){
				.n = n, .tokens = s->tokens + row + 1, .pos = s->pos, .base = s->bases});
	}
	if (!engine_drafts_lack_memory(g))
		s->mtp_rows = s->mtp_filled = s->length - 1;
}

bool session_appends_mtp(const struct session *s)
{
	return s->mtp && s->mtp_rows + 1 >= s->length;
}

bool session_mtp_states(const struct session *s, uint32_t n, uint32_t first, int32_t *states)
{
	const struct workspace *ws = &engine_last(s->g)->model.ws;
	for (uint32_t i = 0; i < n; i++)
		states[i] = MTP_NO_PAIR;
	if (!session_appends_mtp(s))
		return false;
	for (uint32_t i = 1; i < n; i++)
		states[i] = (int32_t)(first + i - 1);
	if (!s->length)
		return true; /* no position before the first one */
	if (s->has_state)
		states[0] = (int32_t)workspace_state_row(ws, s->slot, s->last_state);
	else if (s->mtp_rows < s->length)
		states[0] = (int32_t)workspace_zero_row(ws);
	return true;
}

void session_advance(struct session *s, uint32_t n, uint32_t first, uint32_t n_rows, bool appended)
{
	uint32_t states = MAX(n_rows, 1);
	s->length += n;
	s->n_rows = n_rows;
	s->of_several = n_rows > 1;
	s->step_number = n_rows > 1 ? s->g->n_steps : 0;
	s->first_row = first + n - n_rows;
	s->has_state = false;
	s->last_state = states - 1;
	if (appended) {
		mtp_keep_states(&engine_last(s->g)->model, first + n - states, states, s->slot);
		s->has_state = !engine_drafts_lack_memory(s->g);
		s->mtp_rows = s->length - 1;
	}
}

int session_not_finite(const struct session *s, uint32_t n, struct err *e)
{
	if (gguf_check_lost_now(s->g->gguf, e))
		return ERR_RUN;
	return err_set(e, ERR_RUN,
		"the logits behind token %u are not finite: the weights or the caches are damaged", n);
}

int session_check_finite(struct session *s, const struct draw_result *drawn, struct err *e)
{
	uint32_t length = s->length, n = s->n_rows;
	for (uint32_t r = 0; r < n; r++)
		if (!(drawn ? drawn[r].finite
					: sampler_all_finite(session_row_logits(s, r), s->g->n_valid))) {
			session_rewind(s, 0); /* the caches may hold what the logits were made from */
			return session_not_finite(s, length - n + r + 1, e);
		}
	return 0;
}

/* A chunk of n of `total` tokens, of which `done` are computed. */
struct session_chunk {
	const struct session_watch *watch; /* NULL: none */
	const struct session_draws *draws; /* from the rows whose logits are kept; NULL: none */
	uint32_t n, done, total;
};

static void chunk_device_busy(void *user)
{
	const struct session_watch *watch = ((const struct session_chunk *)user)->watch;
	watch->on_device_busy(watch->user);
}

/* The last layer is not reported here: `progress` reports the whole chunk. */
static void chunk_layer(void *user, uint32_t layers, uint32_t n_layers)
{
	const struct session_chunk *c = user;
	if (layers < n_layers)
		c->watch->partial(
			c->watch->user, c->done + (uint32_t)((uint64_t)c->n * layers / n_layers), c->total);
}

/* Logits of the n_rows last of n rows to `kept`, and draws from them. */
static int step_draw(const struct session *s, const struct session_draws *draws, uint32_t n,
	uint32_t n_rows, float *kept, struct err *e)
{
	struct model *m = &engine_last(s->g)->model;
	const float *hidden = m->ws.hidden + (n - n_rows) * m->config.n_embd;
	int rc = model_draw(m, hidden, n_rows, draws->requests, s->g->n_valid, kept, e);
	if (!rc)
		memcpy(draws->results, m->ws.drawn, n_rows * sizeof *draws->results);
	return rc;
}

/* Computes one chunk, the tokens at s->tokens[length ..). rows: [n][vocab] or NULL; n_rows: keep
 * the logits of so many of its last rows. */
static int session_step(
	struct session *s, struct session_chunk *chunk, float *rows, uint32_t n_rows, struct err *e)
{
	const struct session_watch *watch = chunk->watch;
	uint32_t n = chunk->n;
	struct stage *last = engine_last(s->g);
	struct model *m = &last->model;
	size_t n_embd = m->config.n_embd, n_vocab = m->config.n_vocab;
	session_fill_mtp_rows(s);
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
		/* who asks for chunks that short wants the steps of decoding: to record their routing */
		.long_prompt = chunk->total >= LONG_PROMPT && s->g->chunk >= PREFILL_ROWS,
		.cancel = watch ? watch->cancel : NULL,
		.on_layer = watch && watch->partial ? chunk_layer : NULL,
		.on_device_busy = watch && watch->on_device_busy && !chunk->done ? chunk_device_busy : NULL,
		.user = chunk,
	};
	if (s->taps) {
		taps = session_step_taps(s, n);
		f.taps = &taps;
	}
	static const bool draft[SESSION_ROWS_MAX] = {false, true, true, true, true, true, true, true};
	if (n_rows > 1)
		f.draft = draft;
	s->g->n_steps++;
	float *kept = session_row_buffer(s, n_rows, e);
	if (!kept)
		return ERR_MEMORY;
	bool append = session_mtp_states(s, n, 0, s->states);
	session_drop_logits(s);
	int rc = engine_forward(s->g, &f, rows || append ? 0 : n - n_rows, e);
	if (rc)
		return rc;
	if (rows)
		rc = model_logits(m, m->ws.hidden, n, rows, e);
	else if (chunk->draws)
		rc = step_draw(s, chunk->draws, n, n_rows, kept, e);
	else if (n_rows)
		rc = model_logits(m, m->ws.hidden + (n - n_rows) * n_embd, n_rows, kept, e);
	if (rc)
		return rc;
	if ((rc = gguf_check_lost(s->g->gguf, e)))
		return rc;
	if (rows && n_rows)
		memcpy(kept, rows + (n - n_rows) * n_vocab, n_rows * n_vocab * sizeof *rows);
	engine_last_stage_done(s->g);
	if (append) {
		mtp_append(m, &last->kv, &f, s->states);
		append = !engine_drafts_lack_memory(s->g);
	}
	session_advance(s, n, 0, n_rows, append);
	return rows ? 0 : session_check_finite(s, chunk->draws ? chunk->draws->results : NULL, e);
}

int session_extend(struct session *s, const int32_t *tokens, uint32_t n, float *rows,
	const struct session_watch *watch, struct err *e)
{
	int rc;
	if ((rc = session_check(s, tokens, n, (uint64_t)s->length + n, e)))
		return rc;
	if (!n)
		return 0;
	if (!rows && session_chunk_rows(s->g, n) < n && session_pipelines_chunks(s))
		return session_extend_in_flight(s, tokens, n, watch, e);
	session_expect_token(s, tokens[0]);
	memcpy(s->tokens + s->length, tokens, n * sizeof *tokens);
	struct session_chunk c = {.watch = watch, .total = n};
	while (c.done < n) {
		c.n = session_chunk_rows(s->g, n - c.done);
		float *out = rows ? rows + (size_t)c.done * s->g->config.n_vocab : NULL;
		if ((rc = session_step(s, &c, out, c.done + c.n == n, e)))
			return rc;
		c.done += c.n;
		if (watch && watch->progress)
			watch->progress(watch->user, c.done, n);
	}
	return 0;
}

int session_verify(struct session *s, const int32_t *tokens, uint32_t n,
	const struct session_draws *draws, const struct session_watch *watch, struct err *e)
{
	int rc;
	if (!n || n > SESSION_ROWS_MAX)
		bug("a verification of %u rows, at most %d", n, SESSION_ROWS_MAX);
	if (n > s->g->chunk)
		return err_set(
			e, ERR_INPUT, "a verification of %u rows, steps have at most %u", n, s->g->chunk);
	if ((rc = session_check(s, tokens, n, (uint64_t)s->length + n, e)))
		return rc;
	session_expect_token(s, tokens[0]);
	memcpy(s->tokens + s->length, tokens, n * sizeof *tokens);
	struct session_chunk c = {.watch = watch, .draws = draws, .n = n, .total = n};
	return session_step(s, &c, NULL, n, e);
}

void session_keep_rows(struct session *s, uint32_t n_keep)
{
	if (!n_keep || n_keep > s->n_rows)
		bug("%u rows to keep of %u", n_keep, s->n_rows);
	uint32_t dropped = s->n_rows - n_keep;
	settle_rows(s, n_keep);
	s->length -= dropped;
	s->mtp_rows = MIN(s->mtp_rows, s->length);
	s->n_rows = n_keep;
	s->last_state -= dropped;
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
	if (same == n && !(s->length == n && session_logits(s)))
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
	s->mtp_rows = MIN(s->mtp_rows, n);
	s->mtp_filled = MIN(s->mtp_filled, n);
	session_drop_logits(s);
	s->has_state = false;
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

const float *session_row_logits(const struct session *s, uint32_t row)
{
	if (row >= s->n_rows || s->device_serial)
		return NULL;
	return s->of_several ? s->rows + (size_t)row * s->g->config.n_vocab : s->logits;
}

const float *session_logits(const struct session *s)
{
	return s->n_rows ? session_row_logits(s, s->n_rows - 1) : NULL;
}

/* ---- drafts ---- */

bool session_can_draft(const struct session *s)
{
	return s->has_state;
}

int session_check_draft(const struct session *s, int32_t next, uint32_t k, struct err *e)
{
	if (!session_can_draft(s))
		return err_set(
			e, ERR_RUN, "drafts need session_enable_mtp, and a last position computed since");
	if (!k || k > SESSION_DRAFTS_MAX)
		return err_set(e, ERR_INPUT, "%u drafts, expected 1 to %d", k, SESSION_DRAFTS_MAX);
	int rc = check_token_ids(s, &next, 1, e);
	return rc ? rc : check_length(s, (uint64_t)s->length + k - 1, e);
}

void session_mtp_sequence(const struct session *s, struct mtp_sequence *out)
{
	*out = (struct mtp_sequence){
		.state = workspace_state_row(&engine_last(s->g)->model.ws, s->slot, s->last_state),
		.pos = (int32_t)s->length - 1,
		.base = s->base,
	};
}

void session_drafted(struct session *s)
{
	s->mtp_rows = MIN(s->mtp_rows, s->length - 1);
}

int session_mtp_draft(
	struct session *s, int32_t next, uint32_t k, int32_t *ids, float *logits, struct err *e)
{
	int rc = session_check_draft(s, next, k, e);
	if (rc)
		return rc;
	struct mtp_sequence q;
	session_mtp_sequence(s, &q);
	q.next = next;
	q.n_drafts = k;
	q.ids = ids;
	q.logits = logits;
	session_drafted(s);
	struct stage *last = engine_last(s->g);
	return mtp_draft(&last->model, &last->kv, &q, 1, s->g->n_valid, e);
}

void session_set_taps(struct session *s, struct session_taps *taps)
{
	s->taps = taps;
	s->tap_rows = 0;
}
