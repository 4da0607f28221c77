/* SPDX-License-Identifier: MIT */
/* Prompt in, tokens out. */
#include "src/engine/generate.h"

#include "src/base/host/clock.h"
#include "src/base/num.h"
#include "src/engine/batch.h"

#include <string.h>

uint64_t generate_hash(uint64_t hash, const float *logits, size_t n)
{
	/* eight hashes in turn: a single one would wait for its own multiplication */
	const uint64_t prime = 0x100000001b3u;
	uint64_t lane[8];
	for (size_t k = 0; k < 8; k++)
		lane[k] = (hash ^ k) * prime;
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		uint64_t pair[4]; /* two words each, wherever they lie */
		memcpy(pair, logits + i, sizeof pair);
#pragma GCC unroll 4
		for (size_t k = 0; k < 4; k++) {
			lane[2 * k] = (lane[2 * k] ^ (uint32_t)pair[k]) * prime;
			lane[2 * k + 1] = (lane[2 * k + 1] ^ pair[k] >> 32) * prime;
		}
	}
	for (; i < n; i++) {
		uint32_t word;
		memcpy(&word, logits + i, sizeof word);
		lane[i % 8] = (lane[i % 8] ^ word) * prime;
	}
	for (size_t k = 0; k < 8; k++)
		hash = (hash ^ lane[k]) * prime;
	return hash;
}

bool generate_ends(const struct engine *g, int32_t id, uint32_t position, uint32_t n_given,
	uint32_t max_new, bool ignore_stop, enum generate_stop *stop)
{
	if (!ignore_stop && tokenizer_is_stop(engine_tokenizer(g), id))
		*stop = GENERATE_STOP_TOKEN;
	else if (n_given + 1 >= max_new)
		*stop = GENERATE_LIMIT;
	else if (position >= engine_context(g))
		*stop = GENERATE_CONTEXT_FULL;
	else
		return false;
	return true;
}

/* An answer in the making. */
struct decode {
	struct session *session;
	const struct engine *engine;
	const struct generate_options *options;
	struct sampler *sampler;
	struct generate_result *result;
	struct session_watch watch;
	uint32_t position; /* of the next token to draw */
	/* Of the last step; drawn: what the device drew from its rows, if draws_on_device. */
	struct draw_request requests[SESSION_ROWS_MAX];
	struct draw_result drawn[SESSION_ROWS_MAX];
	bool draws_on_device;
	/* Rows whose logits are not in the hash yet: they are hashed while the device computes the next
	 * step. */
	const float *unhashed[SESSION_ROWS_MAX];
	uint32_t n_unhashed;
	bool ends;
};

static void hash_now(void *user)
{
	struct decode *d = user;
	uint64_t *hash = &d->result->logits_hash;
	for (uint32_t i = 0; i < d->n_unhashed; i++)
		*hash = generate_hash(*hash, d->unhashed[i], engine_config(d->engine)->n_vocab);
	d->n_unhashed = 0;
}

static bool is_cancelled(const struct decode *d)
{
	return d->watch.cancel && atomic_load_explicit(d->watch.cancel, memory_order_relaxed);
}

/* The next token, from `row` of the last step: what the device drew if that is the final draw, else
 * the host draws. */
static int32_t draw_token(struct decode *d, uint32_t row, const float *logits)
{
	const struct sampler_filter *f = d->options->filter;
	const struct draw_result *drawn = &d->drawn[row];
	const int32_t n_valid = engine_n_valid(d->engine);
	if (d->draws_on_device && sampler_accepts(d->sampler, n_valid, d->position, drawn) &&
		(!f || !f->allows || f->allows(f->user, drawn->id)))
		return drawn->id;
	return sampler_draw(d->sampler, logits, n_valid, f, d->position);
}

/* Draws the next token from `row` of the last step and gives it out. */
static int32_t decode_token(struct decode *d, uint32_t row)
{
	const struct generate_options *o = d->options;
	struct generate_result *r = d->result;
	const float *logits = session_row_logits(d->session, row);
	d->unhashed[d->n_unhashed++] = logits;
	int32_t id = draw_token(d, row, logits);
	d->ends = generate_ends(
		d->engine, id, d->position, r->new_tokens, o->max_new, o->ignore_stop, &r->stop);
	d->position++;
	if (o->drafts)
		drafts_push(o->drafts, id);
	if (d->ends && r->stop == GENERATE_STOP_TOKEN) {
		r->stop_token = id;
		return id;
	}
	r->new_tokens++;
	if (o->on_token && !o->on_token(o->user, id)) {
		r->stop = GENERATE_CANCELLED;
		d->watch.cancel = NULL; /* this token is still computed */
		d->ends = true;
	} else if (o->complete && o->complete(o->user)) {
		r->stop = GENERATE_COMPLETE;
		d->ends = true;
	}
	if (sampler_adjusts(d->sampler))
		sampler_note(d->sampler, id, false);
	return id;
}

/* Most rows of the next step: one for the token just drawn, and one for each token that the answer
 * may still have. Not more than a step has whose rows have the bits of single rows. */
static uint32_t decode_rows_max(const struct decode *d)
{
	uint32_t rows = MIN(SESSION_ROWS_MAX, batch_decode_rows(d->engine));
	uint32_t left = d->options->max_new - d->result->new_tokens;
	rows = MIN(rows, engine_context(d->engine) - (d->position - 1));
	return MIN(rows, (uint64_t)left + 1);
}

/* Computes these rows. The device draws from them, unless penalties, biases or banned ids change
 * the logits first. */
static int decode_rows(struct decode *d, const int32_t *tokens, uint32_t n, struct err *e)
{
	const struct sampler_filter *f = d->options->filter;
	const struct session_draws draws = {d->requests, d->drawn};
	d->draws_on_device = !sampler_adjusts(d->sampler) && !(f && f->n_banned);
	for (uint32_t i = 0; i < n; i++)
		d->requests[i] = sampler_request(d->sampler, d->position + i);
	return session_verify(d->session, tokens, n, d->draws_on_device ? &draws : NULL, &d->watch, e);
}

/* Computes tokens[0], which was drawn last, and drafts behind it, which it puts into
 * tokens[1 .. SESSION_ROWS_MAX). *n: out, rows of the step; *ns: out, its time by drafter_clock.
 * The logits drawn from so far are hashed in any case, while the device computes if it does. */
static int decode_step(struct decode *d, int32_t *tokens, uint32_t *n, uint64_t *ns, struct err *e)
{
	struct draft_timeline *drafts = d->options->drafts;
	int rc = 0;
	*n = 1;
	if (is_cancelled(d)) {
		rc = ERR_INTERRUPTED;
	} else if (d->position <= engine_context(d->engine)) {
		if (drafts && !d->ends) {
			rc = drafts_propose(drafts->drafter, &drafts, 1, decode_rows_max(d), e);
			memcpy(tokens + 1, drafts->ids, drafts->n * sizeof *tokens);
			*n += drafts->n;
		}
		uint64_t start = drafts ? drafter_clock(drafts->drafter) : 0;
		if (!rc)
			rc = decode_rows(d, tokens, *n, e);
		*ns = drafts ? drafter_clock(drafts->drafter) - start : 0;
	}
	hash_now(d);
	return rc;
}

/* The decode loop; the session stands at the end of the prompt with its logits. */
static int decode_tokens(struct decode *d, struct err *e)
{
	struct draft_timeline *drafts = d->options->drafts;
	int32_t tokens[SESSION_ROWS_MAX]; /* of the last step: a token that was drawn, and drafts */
	uint32_t n = 1;
	uint64_t ns = 0;
	for (bool first = true; !d->ends; first = false) {
		uint32_t row = 0;
		bool right; /* the next row's draft is the token drawn, which is computed already then */
		do {
			tokens[0] = decode_token(d, row++);
			right = row < n && tokens[row] == tokens[0] && !is_cancelled(d);
		} while (right && !d->ends);
		if (drafts && !first)
			drafts_computed(drafts->drafter, &drafts, 1, ns);
		if (n > 1)
			session_keep_rows(d->session, row + right);
		if (right) { /* the answer ends with a token that is computed already */
			hash_now(d);
			return 0;
		}
		int rc = decode_step(d, tokens, &n, &ns, e);
		if (rc == ERR_INTERRUPTED) {
			d->result->stop = GENERATE_CANCELLED;
			d->result->stop_token = -1;
			d->ends = true;
		} else if (rc) {
			return rc;
		}
	}
	return 0;
}

int generate(struct session *s, const int32_t *prompt, uint32_t n, const struct generate_options *o,
	struct generate_result *r, struct err *e)
{
	*r = (struct generate_result){
		.stop = GENERATE_LIMIT,
		.stop_token = -1,
		.prompt_tokens = n,
		.logits_hash = GENERATE_HASH_START,
	};
	uint64_t start = clock_ns();
	int rc = session_sync(s, prompt, n, &o->watch, &r->reused_tokens, e);
	uint64_t prefilled = clock_ns();
	r->prefill_ns = prefilled - start;
	if (rc)
		return rc;
	struct sampler sampler;
	sampler_init(&sampler, &o->sampler);
	for (uint32_t i = 0; i < n && sampler_adjusts(&sampler); i++)
		sampler_note(&sampler, prompt[i], true);
	struct decode d = {.session = s,
		.engine = session_engine(s),
		.options = o,
		.sampler = &sampler,
		.result = r,
		.watch = {.cancel = o->watch.cancel, .on_device_busy = hash_now, .user = &d},
		.position = n,
		.ends = !o->max_new};
	struct draft_stats before = {0};
	if (o->drafts) {
		before = drafter_stats(o->drafts->drafter);
		drafts_begin(o->drafts, prompt, n, &sampler);
	}
	rc = decode_tokens(&d, e);
	if (o->drafts)
		r->drafts = draft_stats_between(before, drafter_stats(o->drafts->drafter));
	sampler_fini(&sampler);
	r->decode_ns = clock_ns() - prefilled;
	return rc;
}
