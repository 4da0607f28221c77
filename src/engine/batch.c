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
#include "src/engine/stages/micro_batches.h"
#include "src/engine/stages/pipeline.h"
#include "src/forward/mtp.h"

#include <stdlib.h>
#include <string.h>

#define BATCH_FLIGHT_ROWS 64 /* of a step that is cut into micro-batches, at most */

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
		const uint64_t length = (uint64_t)p->session->length + p->session->ahead + p->n;
		int rc = session_check(p->session, p->tokens, p->n, length, e);
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

/* Logits of all parts that want them; stay: those of parts that draw may stay on the device. */
static int batch_logits(const struct batch_part *parts, uint32_t n_parts, bool stay, struct err *e)
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
	return rows ? batch_take_logits(parts, taken, n_parts, rows, stay, e) : 0;
}

/* The step is computed: the timelines grow. */
static void batch_advance(const struct batch_part *parts, uint32_t n_parts,
	const struct forward_rows *rows, const int32_t *states)
{
	struct engine *g = parts[0].session->g;
	struct stage *last = engine_last(g);
	bool appended = last->model.has_mtp;
	if (appended) {
		mtp_append(&last->model, &last->kv, rows, states);
		appended = !engine_drafts_lack_memory(g);
	}
	uint32_t row = 0;
	for (uint32_t i = 0; i < n_parts; row += parts[i++].n) {
		struct session *s = parts[i].session;
		memcpy(s->tokens + s->length, parts[i].tokens, parts[i].n * sizeof *s->tokens);
		session_advance(
			s, parts[i].n, row, part_rows(&parts[i]), appended && session_appends_mtp(s));
	}
	for (uint32_t i = 0; i < n_parts; i++) {
		const struct batch_part *p = &parts[i];
		const bool finite = !session_check_finite(p->session, p->draws ? p->drawn : NULL, NULL);
		p->session->broken = !finite && p->session->ahead;
	}
}

/* ---- a step, and its parts ---- */

struct batch_run {
	struct batch_part *parts; /* [n_parts] */
	uint32_t n_parts;
	struct forward_rows rows;
	int32_t *numbers; /* one allocation: token ids, positions, cache rows, states, draft flags */
	int32_t *states;  /* [rows] where the MTP pair of each row is (mtp_append) */
	uint32_t first_hidden;
	struct micro_batch *flight; /* NULL: computed as a whole */
};

static void run_fini(struct batch_run *r)
{
	free(r->numbers);
	free(r->parts);
}

/* Lays the rows out. Afterwards the sessions have no logits; run_prepare follows. */
static int run_init(struct batch_run *r, const struct batch_part *parts, uint32_t n_parts,
	const struct batch_watch *watch, struct err *e)
{
	uint32_t rows = 0;
	int rc = check_parts(parts, n_parts, &rows, e);
	if (rc)
		return rc;
	/* four numbers and a flag a row */
	int32_t *ids = mem_try_new(5 * (size_t)rows, sizeof *ids);
	*r = (struct batch_run){.parts = mem_try_new(n_parts, sizeof *parts),
		.n_parts = n_parts,
		.numbers = ids,
		.first_hidden = rows};
	if (!ids || !r->parts) {
		run_fini(r);
		err_set(e, ERR_MEMORY, "no memory for the token ids of %u rows", rows);
		return ERR_MEMORY;
	}
	memcpy(r->parts, parts, n_parts * sizeof *parts);
	int32_t *pos = ids + rows, *base = pos + rows;
	r->states = base + rows;
	bool *draft = (bool *)(r->states + rows), any_draft = false, long_prompt = false,
		 answers = rows <= ANSWER_ROWS;
	for (uint32_t i = 0, at = 0; i < n_parts; i++) {
		struct session *s = parts[i].session;
		const struct batch_part *p = &parts[i];
		if (!s->ahead)
			session_expect_token(s, p->tokens[0]);
		for (uint32_t k = 0; k < p->n; k++, at++) {
			ids[at] = p->tokens[k];
			pos[at] = (int32_t)(s->length + s->ahead + k);
			base[at] = s->base;
			draft[at] = p->verify && k;
			any_draft |= draft[at];
		}
		long_prompt |= p->prompt >= LONG_PROMPT && s->g->chunk >= PREFILL_ROWS;
		answers &= !p->prompt && (p->n == 1 || p->verify);
		session_drop_logits(s);
	}
	parts->session->g->n_steps++;
	r->rows = (struct forward_rows){.n = rows,
		.tokens = ids,
		.pos = pos,
		.base = base,
		.draft = any_draft ? draft : NULL,
		.long_prompt = long_prompt,
		.answers = answers,
		.cancel = watch ? watch->cancel : NULL,
		.on_layer = watch ? watch->on_layer : NULL,
		.user = watch ? watch->user : NULL};
	return 0;
}

/* Called before the last stage computes, once all earlier steps of the same sessions have ended. */
static void run_prepare(struct batch_run *r)
{
	r->first_hidden = r->rows.n;
	for (uint32_t i = 0, at = 0; i < r->n_parts; at += r->parts[i++].n) {
		const struct batch_part *p = &r->parts[i];
		session_fill_mtp_rows(p->session);
		if (session_mtp_states(p->session, p->n, at, r->states + at))
			r->first_hidden = MIN(r->first_hidden, at);
		else if (part_rows(p))
			r->first_hidden = MIN(r->first_hidden, at + p->n - part_rows(p));
	}
}

/* Called when the hidden states are there: computes logits and draws, advances the sessions. */
static int run_finish(struct batch_run *r, bool stay, struct err *e)
{
	struct engine *g = r->parts->session->g;
	int rc = batch_logits(r->parts, r->n_parts, stay, e);
	engine_last_stage_done(g);
	if (rc || (rc = gguf_check_lost(g->gguf, e)))
		return rc;
	batch_advance(r->parts, r->n_parts, &r->rows, r->states);
	for (uint32_t i = 0; i < r->n_parts && r->flight; i++)
		r->parts[i].session->step_number = 0; /* later steps were begun: nothing to be reported */
	return 0;
}

static int step_as_a_whole(const struct batch_part *parts, uint32_t n_parts,
	const struct batch_watch *watch, struct err *e)
{
	struct batch_run r;
	int rc = run_init(&r, parts, n_parts, watch, e);
	if (rc)
		return rc;
	run_prepare(&r);
	if (!(rc = engine_forward(parts->session->g, &r.rows, r.first_hidden, e)))
		rc = run_finish(&r, true, e);
	if (rc == ERR_MEMORY)
		engine_recover(parts->session->g);
	run_fini(&r);
	return rc;
}

/* ---- in flight ---- */

uint32_t batch_depth(const struct engine *g)
{
	return pipeline_depth(g);
}

uint32_t batch_micro_batches(const struct engine *g, uint32_t answers, uint32_t rows)
{
	const uint32_t depth = pipeline_depth(g);
	return depth > 1 ? micro_batches_count(answers, rows, depth, batch_decode_rows(g)) : 1;
}

uint32_t batch_micro_batch_size(
	const struct engine *g, const uint32_t *rows, uint32_t n, uint32_t all_rows, uint32_t count)
{
	return micro_batches_take(rows, n, all_rows, count, batch_decode_rows(g));
}

int batch_begin(const struct batch_part *parts, uint32_t n_parts, const struct batch_watch *watch,
	struct batch_run **out, struct err *e)
{
	struct batch_run *r = mem_try_new(1, sizeof *r);
	*out = NULL;
	if (!r)
		return err_set(e, ERR_MEMORY, "no memory for a micro-batch");
	int rc = run_init(r, parts, n_parts, watch, e);
	if (rc) {
		free(r);
		return rc;
	}
	/* a source knows the rows of one step only, so nothing is reported of which are kept
	 * (keep_rows) */
	r->rows.draft = NULL;
	rc = pipeline_begin(parts->session->g->pipeline, &r->rows, &r->flight, e);
	if (rc) {
		run_fini(r);
		free(r);
		return rc;
	}
	for (uint32_t i = 0; i < n_parts; i++)
		parts[i].session->ahead += parts[i].n;
	*out = r;
	return 0;
}

/* Takes the rows of a step off `ahead` of its sessions. True: an earlier step of one of them
 * failed. */
static bool run_is_broken(const struct batch_run *r)
{
	bool broken = false;
	for (uint32_t i = 0; i < r->n_parts; i++) {
		r->parts[i].session->ahead -= r->parts[i].n;
		broken |= r->parts[i].session->broken;
	}
	return broken;
}

static int end_run(struct batch_run *r, bool stay, struct err *e)
{
	struct stage_pipeline *p = r->parts->session->g->pipeline;
	int rc;
	if (run_is_broken(r)) {
		pipeline_drop(p, r->flight);
		rc = err_set(e, ERR_RUN, "an earlier step of the same prompt failed");
	} else {
		run_prepare(r);
		rc = engine_blame_file(
			r->parts->session->g, pipeline_end(p, r->flight, r->first_hidden, e), e);
		if (!rc)
			rc = run_finish(r, stay, e);
	}
	for (uint32_t i = 0; i < r->n_parts && rc; i++)
		r->parts[i].session->broken = r->parts[i].session->ahead > 0;
	if (rc == ERR_MEMORY)
		engine_recover(r->parts->session->g);
	pipeline_idle(p);
	run_fini(r);
	free(r);
	return rc;
}

int batch_end(struct batch_run *run, struct err *e)
{
	return end_run(run, true, e);
}

/* In how many micro-batches a step is computed. */
static uint32_t count_micro_batches(
	const struct batch_part *parts, uint32_t n_parts, const struct batch_watch *watch)
{
	const struct engine *g = parts->session->g;
	uint32_t rows = 0;
	if ((watch && watch->on_layer) || pipeline_in_flight(g->pipeline))
		return 1;
	for (uint32_t i = 0; i < n_parts; rows += parts[i++].n)
		if (parts[i].prompt || parts[i].n > MIN(SESSION_ROWS_MAX, batch_decode_rows(g)))
			return 1;
	return rows <= BATCH_FLIGHT_ROWS ? batch_micro_batches(g, n_parts, rows) : 1;
}

/* An error takes back what has grown. */
static int step_in_flight(const struct batch_part *parts, uint32_t n_parts, uint32_t count,
	const struct batch_watch *watch, struct err *e)
{
	struct batch_run *runs[BATCH_FLIGHT_ROWS];
	uint32_t rows[BATCH_FLIGHT_ROWS], lengths[BATCH_FLIGHT_ROWS], all_rows = 0, n_runs = 0, n;
	int rc = check_parts(parts, n_parts, &all_rows, e);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n_parts; i++) {
		rows[i] = parts[i].n;
		lengths[i] = session_length(parts[i].session);
	}
	for (uint32_t i = 0; i < n_parts && !rc; i += n, n_runs += !rc) {
		n = batch_micro_batch_size(parts->session->g, rows + i, n_parts - i, all_rows, count);
		rc = batch_begin(parts + i, n, watch, &runs[n_runs], e);
	}
	for (uint32_t i = 0; i < n_runs; i++) {
		/* the logits of the last one alone stay on the device */
		int failed = end_run(runs[i], i + 1 == n_runs, rc ? NULL : e);
		rc = rc ? rc : failed;
	}
	for (uint32_t i = 0; i < n_parts && rc; i++) {
		struct session *s = parts[i].session;
		session_rewind(s, MIN(lengths[i], s->length));
		session_drop_logits(s);
	}
	return rc;
}

int batch_step(const struct batch_part *parts, uint32_t n_parts, const struct batch_watch *watch,
	struct err *e)
{
	if (!n_parts)
		return 0;
	const uint32_t count = count_micro_batches(parts, n_parts, watch);
	return count > 1 ? step_in_flight(parts, n_parts, count, watch, e)
					 : step_as_a_whole(parts, n_parts, watch, e);
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
			sequences[i].draws = d->draws;
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
