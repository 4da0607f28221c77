/* SPDX-License-Identifier: MIT */
/*
 * Verification and drafts on the pocket model. Rows of a verification have the bits of single
 * steps; what is kept of them is as good as if the rest had never been computed; drafts of several
 * sessions together are those of each alone; no draft reads a cache row that nobody wrote.
 *
 * GLM_BACKEND=cuda runs the same on a card.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/batch.h"
#include "src/engine/engine_internal.h"
#include "src/engine/generate.h"
#include "src/engine/session/session_file.h"
#include "src/engine/session/session_image.h"
#include "tests/support/engine_help.h"
#include "tests/support/lazy_device.h"
#include "tests/support/slow_build.h"
#include "tests/support/temp_dir.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MODEL   "tools/pocket/pocket.gguf"
#define N_TEXT  200
#define N_DRAFT 4

static int32_t text[N_TEXT];
static const char *backend = "cpu";

static int verify_setup(void **state)
{
	if (getenv("GLM_BACKEND"))
		backend = getenv("GLM_BACKEND");
	struct rng r = {31};
	for (int i = 0; i < N_TEXT; i++)
		text[i] = (int32_t)rng_below(&r, 8000);
	return temp_dir_make(state);
}

/* An engine whose caches hold NaN wherever nothing has been written. */
static struct engine *poisoned_engine(uint32_t sessions, uint64_t cache_bytes)
{
	struct engine_options o = {.model_path = MODEL,
		.backend = backend,
		.context = 256,
		.chunk = 96,
		.sessions = sessions,
		.cache_bytes = cache_bytes};
	struct engine *g = engine_of(&o);
	uint8_t *nan = NEW_ARRAY(uint8_t, g->stages->kv.bytes.device);
	memset(nan, 0xff, g->stages->kv.bytes.device);
	g->stages->backend->ops->upload(
		g->stages->backend, g->stages->kv.arena, nan, g->stages->kv.bytes.device);
	free(nan);
	return g;
}

static void ok(int rc, const struct err *e)
{
	if (rc)
		fail_msg("%s", e->text);
}

static uint64_t row_hash(const struct session *s, uint32_t row)
{
	assert_non_null(session_row_logits(s, row));
	return generate_hash(
		GENERATE_HASH_START, session_row_logits(s, row), engine_config(session_engine(s))->n_vocab);
}

/* Drafts, all of them finite: ids and a hash over their logits. */
struct round {
	int32_t ids[SESSION_DRAFTS_MAX];
	uint64_t hash;
};

static struct round round_hash(
	struct session *s, const float *logits, const int32_t *ids, uint32_t k)
{
	struct round r = {.hash = GENERATE_HASH_START};
	size_t n = k * (size_t)engine_config(session_engine(s))->n_vocab;
	memcpy(r.ids, ids, k * sizeof *ids);
	for (size_t i = 0; i < n; i++)
		if (!isfinite(logits[i]))
			fail_msg("draft %zu has logits that are not finite", i / (n / k));
	r.hash = generate_hash(r.hash, logits, n);
	return r;
}

static struct round round_of(struct session *s, int32_t next, uint32_t k)
{
	struct err e = {0};
	int32_t ids[SESSION_DRAFTS_MAX];
	float *logits = NEW_ARRAY(float, k *(size_t)engine_config(session_engine(s))->n_vocab);
	assert_true(session_can_draft(s));
	ok(session_mtp_draft(s, next, k, ids, logits, &e), &e);
	struct round r = round_hash(s, logits, ids, k);
	free(logits);
	return r;
}

static void assert_same_round(const struct round *a, const struct round *b, uint32_t k)
{
	assert_memory_equal(a->ids, b->ids, k * sizeof *a->ids);
	assert_true(a->hash == b->hash);
}

/* Every number of rows behind prompts that end before, at and behind index_topk (128), with the
 * experts mapped and in caches that hold a few of them or most. */
static void test_rows_are_single_steps(void **state)
{
	(void)state;
	static const uint64_t budgets[] = {0, 2000000, 8000000};
	static const uint32_t prompts[] = {1, 100, 124, 128, 170};
	struct err e = {0};
	uint64_t want[ARRAY_LEN(prompts)][SESSION_ROWS_MAX];
	for (size_t b = 0; b < IF_SLOW_BUILD(2, ARRAY_LEN(budgets)); b++) {
		struct engine *g = poisoned_engine(1, budgets[b]);
		struct session *s = session_of(g, true);
		for (size_t p = 0; p < ARRAY_LEN(prompts); p += IF_SLOW_BUILD(2, b ? 2 : 1)) {
			uint32_t at = prompts[p];
			for (uint32_t n = 0; n <= SESSION_ROWS_MAX; n++) { /* 0: one by one */
				session_rewind(s, n ? at : 0);
				if (!n)
					ok(session_sync(s, text, at, NULL, NULL, &e), &e);
				for (uint32_t i = 0; i < SESSION_ROWS_MAX && !n; i++) {
					ok(session_extend(s, text + at + i, 1, NULL, NULL, &e), &e);
					if (b)
						assert_true(want[p][i] == logits_hash(s));
					want[p][i] = logits_hash(s);
				}
				if (!n)
					continue;
				ok(session_verify(s, text + at, n, NULL, NULL, &e), &e);
				for (uint32_t i = 0; i < n; i++)
					assert_true(row_hash(s, i) == want[p][i]);
				assert_true(logits_hash(s) == want[p][n - 1]);
				assert_null(session_row_logits(s, n));
			}
		}
		session_free(s);
		engine_close(g, NULL);
	}
}

/* Makes s the first n tokens: a prompt, then one by one. A card computes a row in another way in
 * steps of many rows (kernels/backend.h: Numbers), so equal bits need the same kind of step. */
static void extend_one_by_one(
	struct session *s, const int32_t *tokens, uint32_t n_prompt, uint32_t n)
{
	struct err e = {0};
	session_rewind(s, 0);
	ok(session_sync(s, tokens, n_prompt, NULL, NULL, &e), &e);
	for (uint32_t i = n_prompt; i < n; i++)
		ok(session_extend(s, tokens + i, 1, NULL, NULL, &e), &e);
}

static void test_kept_rows(void **state)
{
	(void)state;
	static const uint32_t prompts[] = {60, 122, 127, 160};
	struct engine *g = poisoned_engine(2, 0);
	struct session *s = session_of(g, true), *fresh = session_of(g, true);
	struct err e = {0};
	for (size_t p = 0; p < ARRAY_LEN(prompts); p += IF_SLOW_BUILD(2, 1)) {
		for (uint32_t keep = 1; keep <= 6; keep += IF_SLOW_BUILD(2, 1)) {
			uint32_t at = prompts[p], length = at + keep;
			session_rewind(s, 0);
			ok(session_sync(s, text, at, NULL, NULL, &e), &e);
			round_of(s, text[at], 5); /* its scratch rows must not matter */
			int32_t tokens[6];        /* the last ones are refused: other text follows */
			for (uint32_t i = 0; i < 6; i++)
				tokens[i] = i < keep ? text[at + i] : (text[at + i] + 1) % 8000;
			ok(session_verify(s, tokens, 6, NULL, NULL, &e), &e);
			session_keep_rows(s, keep);
			assert_int_equal(session_length(s), length);
			assert_null(session_row_logits(s, keep));

			extend_one_by_one(fresh, text, at, length);
			assert_true(logits_hash(s) == logits_hash(fresh));
			for (int again = 0; again < 3; again++) { /* and on, through the next steps */
				struct round a = round_of(s, text[length], N_DRAFT),
							 b = round_of(fresh, text[length], N_DRAFT);
				assert_same_round(&a, &b, N_DRAFT);
				ok(session_verify(s, text + length, 3, NULL, NULL, &e), &e);
				session_keep_rows(s, 2);
				session_keep_rows(s, 1); /* by and by */
				ok(session_extend(fresh, text + length, 1, NULL, NULL, &e), &e);
				assert_true(logits_hash(s) == logits_hash(fresh));
				length++;
			}
		}
	}
	session_free(s);
	session_free(fresh);
	engine_close(g, NULL);
}

/* k drafts begin with the drafts of every smaller k, and step j is what a sequence that really goes
 * on computes while everything is selected. */
static void test_recursion(void **state)
{
	(void)state;
	struct engine *g = poisoned_engine(1, 0);
	struct session *s = session_of(g, true);
	struct err e = {0};
	for (uint32_t at = 20; at <= 180; at += 40) {
		session_rewind(s, 0);
		ok(session_sync(s, text, at, NULL, NULL, &e), &e);
		struct round all = round_of(s, 42, SESSION_DRAFTS_MAX);
		for (uint32_t k = 1; k < SESSION_DRAFTS_MAX; k++) {
			struct round some = round_of(s, 42, k);
			assert_memory_equal(some.ids, all.ids, k * sizeof *all.ids);
		}
		struct round again = round_of(s, 42, SESSION_DRAFTS_MAX);
		assert_same_round(&again, &all, SESSION_DRAFTS_MAX);
	}
	int32_t id;
	assert_int_equal(session_mtp_draft(s, 42, 0, &id, NULL, &e), ERR_INPUT);
	assert_int_equal(session_mtp_draft(s, 42, SESSION_DRAFTS_MAX + 1, &id, NULL, &e), ERR_INPUT);
	assert_int_equal(session_mtp_draft(s, 8192, 1, &id, NULL, &e), ERR_INPUT);
	int32_t rest[256] = {0};
	ok(session_extend(s, rest, 256 - 180, NULL, NULL, &e), &e); /* the context is full */
	round_of(s, 42, 1);
	assert_int_equal(session_mtp_draft(s, 42, 2, &id, NULL, &e), ERR_INPUT);
	assert_int_equal(session_verify(s, rest, 1, NULL, NULL, &e), ERR_INPUT);
	session_free(s);
	engine_close(g, NULL);
}

static int32_t choose_second(
	void *user, const struct draw_result *drawn, const float *logits, uint32_t step)
{
	if (!logits)
		return BATCH_WANTS_LOGITS;
	assert_int_equal(step, (*(uint32_t *)user)++);
	assert_int_equal(drawn->best, drawn->id); /* no request: the likeliest */
	int32_t best = 0, second = 1;
	for (int32_t i = 1; i < 8000; i++) {
		if (logits[i] > logits[best]) {
			second = best;
			best = i;
		} else if (i != best && logits[i] > logits[second]) {
			second = i;
		}
	}
	return second;
}

/* Five timelines that draft and verify in common steps, with different k and n, against each one
 * alone. One of them is without MTP. */
static void test_together(void **state)
{
	(void)state;
	enum { N = 5 };
	static const uint32_t start[N] = {3, 77, 121, 140, 50}, drafts[N] = {4, 1, 7, 3, 0};
	struct engine *g = poisoned_engine(N + 1, 3000000);
	struct session *s[N], *alone = session_of(g, true);
	struct err e = {0};
	uint32_t n_vocab = engine_config(g)->n_vocab, length[N];
	float *logits = NEW_ARRAY(float, (size_t)N *SESSION_DRAFTS_MAX *n_vocab);
	for (int i = 0; i < N; i++) {
		s[i] = session_of(g, i < N - 1);
		length[i] = start[i];
		ok(session_sync(s[i], text + i, start[i], NULL, NULL, &e), &e);
	}
	for (uint32_t step = 0; step < 4; step++) {
		struct batch_draft d[N];
		struct batch_part parts[N];
		int32_t ids[N][SESSION_DRAFTS_MAX], tokens[N][SESSION_ROWS_MAX];
		for (int i = 0; i < N - 1; i++)
			d[i] = (struct batch_draft){.session = s[i],
				.next = text[i + (int)length[i]],
				.k = drafts[i],
				.ids = ids[i],
				.logits = logits + (size_t)i * SESSION_DRAFTS_MAX * n_vocab};
		ok(batch_mtp_draft(d, N - 1, &e), &e);
		uint32_t left = batch_decode_rows(g); /* as many rows as have the bits of single ones */
		for (int i = 0; i < N; i++) {
			uint32_t n =
				MIN((uint32_t)(i + (int)step) % SESSION_ROWS_MAX + 1, left - (uint32_t)(N - 1 - i));
			left -= n;
			for (uint32_t k = 0; k < n; k++) /* the first rows are true */
				tokens[i][k] = text[i + (int)(length[i] + k)] + (k > 2);
			parts[i] =
				(struct batch_part){.session = s[i], .tokens = tokens[i], .n = n, .verify = true};
		}
		ok(batch_step(parts, N, NULL, &e), &e);
		for (int i = 0; i < N; i++) {
			uint32_t keep = MIN(parts[i].n, 3);
			extend_one_by_one(alone, text + i, start[i], length[i]);
			if (i < N - 1) {
				struct round a = round_of(alone, d[i].next, drafts[i]),
							 b = round_hash(s[i], d[i].logits, ids[i], drafts[i]);
				assert_same_round(&a, &b, drafts[i]);
			}
			for (uint32_t k = 0; k < parts[i].n; k++) {
				ok(session_extend(alone, &tokens[i][k], 1, NULL, NULL, &e), &e);
				assert_true(logits_hash(alone) == row_hash(s[i], k));
			}
			session_keep_rows(s[i], keep);
			length[i] += keep;
			assert_int_equal(session_length(s[i]), length[i]);
		}
	}
	/* a chooser of the caller's: the recursion goes on with what it says */
	uint32_t calls = 0;
	int32_t chosen[3], first;
	struct batch_draft d = {.session = s[0],
		.next = 42,
		.k = 3,
		.ids = chosen,
		.choose = choose_second,
		.user = &calls};
	ok(batch_mtp_draft(&d, 1, &e), &e);
	assert_int_equal(calls, 3);
	ok(session_mtp_draft(s[0], 42, 1, &first, NULL, &e), &e);
	assert_int_not_equal(chosen[0], first);
	d = (struct batch_draft){.session = s[N - 1], .next = 42, .k = 1, .ids = chosen};
	assert_int_equal(batch_mtp_draft(&d, 1, &e), ERR_RUN); /* without MTP */
	for (int i = 0; i < N; i++)
		session_free(s[i]);
	session_free(alone);
	free(logits);
	engine_close(g, NULL);
}

/* A prompt's numbers do not depend on the size of a chunk, also if the last chunk has few rows. */
static void test_chunks(void **state)
{
	(void)state;
	static const uint32_t chunks[] = {256, 190, 180, 140};
	struct err e = {0};
	uint64_t want = 0;
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		struct engine_options o = {
			.model_path = MODEL, .backend = backend, .context = 256, .chunk = chunks[i]};
		struct engine *g = engine_of(&o);
		struct session *s = session_of(g, false);
		ok(session_sync(s, text, N_TEXT, NULL, NULL, &e), &e);
		want = i ? want : logits_hash(s);
		assert_true(logits_hash(s) == want);
		session_free(s);
		engine_close(g, NULL);
	}
}

/* The cosine between drafts on two timelines of the same tokens. */
static double round_cosine(struct session *a, struct session *b)
{
	uint32_t n = engine_config(session_engine(a))->n_vocab;
	float *x = NEW_ARRAY(float, n), *y = NEW_ARRAY(float, n);
	draft_of(a, 42, x);
	draft_of(b, 42, y);
	double xy = 0, xx = 0, yy = 0;
	for (uint32_t i = 0; i < n; i++) {
		xy += (double)x[i] * y[i];
		xx += (double)x[i] * x[i];
		yy += (double)y[i] * y[i];
	}
	free(x);
	free(y);
	return xy / sqrt(xx * yy);
}

/* Ways to a timeline that lose the state of its last position: the row between is made without it,
 * never left as it was. All tokens are the same in the end, and so are the logits. */
static void test_lost_state(void **state)
{
	(void)state;
	struct engine *g = poisoned_engine(3, 0);
	struct session *fresh = session_of(g, true), *s = session_of(g, true),
				   *from = session_of(g, true);
	struct err e = {0};
	int32_t other = (text[100] + 1) % 8000;
	const char *path = temp_dir_path("lost.session");
	ok(session_sync(fresh, text, 100, NULL, NULL, &e), &e); /* in the steps of the others */
	ok(session_extend(fresh, text + 100, 50, NULL, NULL, &e), &e);
	for (int way = 0; way < 5; way++) {
		struct session_image *image;
		session_rewind(s, 0);
		session_rewind(from, 0);
		ok(session_sync(way < 2 ? s : from, text, 100, NULL, NULL, &e), &e);
		if (way == 0) { /* another branch, and back */
			ok(session_extend(s, &other, 1, NULL, NULL, &e), &e);
			session_rewind(s, 100);
		} else if (way == 1) { /* the same branch: nothing is lost */
			ok(session_extend(s, text + 100, 30, NULL, NULL, &e), &e);
			session_rewind(s, 100);
		} else if (way == 2) { /* a copy */
			ok(batch_copy_prefix(s, from, 100, &e), &e);
		} else if (way == 3) { /* an image, while both sessions serve others */
			ok(session_image_take(from, &image, &e), &e);
			ok(session_sync(from, &other, 1, NULL, NULL, &e), &e);
			ok(session_sync(s, text + 50, 120, NULL, NULL, &e), &e);
			ok(session_image_restore(s, image, &e), &e);
			session_image_free(image);
			assert_memory_equal(session_tokens(s), text, 100 * sizeof *text);
		} else { /* a file */
			ok(session_file_save(from, 100, path, false, NULL, 0, NULL, &e), &e);
			ok(session_file_load(s, path, NULL, NULL, &e), &e);
		}
		assert_false(session_can_draft(s));
		ok(session_extend(s, text + 100, 50, NULL, NULL, &e), &e);
		assert_true(logits_hash(s) == logits_hash(fresh));
		round_of(s, 42, N_DRAFT);
		double cosine = round_cosine(s, fresh);
		print_message("way %d: cosine of drafts %.6f\n", way, cosine);
		assert_true(way == 1 ? cosine > 0.9999999 : cosine > 0.98);
	}
	/* rows that are missing: a timeline of a session without MTP, a file without its rows */
	for (int way = 0; way < 2; way++) {
		struct session *plain;
		session_free(from);
		from = plain = session_of(g, false);
		ok(session_sync(plain, text, 100, NULL, NULL, &e), &e);
		session_rewind(s, 0);
		if (way)
			ok(batch_copy_prefix(s, plain, 100, &e), &e);
		else
			ok(session_file_save(plain, 100, path, true, NULL, 0, NULL, &e), &e);
		if (!way)
			ok(session_file_load(s, path, NULL, NULL, &e), &e);
		assert_false(session_can_draft(s));
		ok(session_extend(s, text + 100, 50, NULL, NULL, &e), &e);
		assert_true(logits_hash(s) == logits_hash(fresh));
		round_of(s, 42, N_DRAFT);
		double cosine = round_cosine(s, fresh);
		print_message(
			"%s without MTP rows: cosine of drafts %.6f\n", way ? "copy" : "file", cosine);
		assert_true(cosine > 0.9);
		/* they are not kept as if they were made from states */
		struct session_file_info info;
		ok(session_file_save(s, 150, path, true, NULL, 0, &info, &e), &e);
		assert_true(info.bytes < session_file_bytes(s, 150, 0) - 20000);
		session_rewind(s, 0);
		ok(session_sync(s, text, 100, NULL, NULL, &e), &e); /* in fresh's steps */
		ok(session_extend(s, text + 100, 50, NULL, NULL, &e), &e);
		struct round a = round_of(s, 42, N_DRAFT), b = round_of(fresh, 42, N_DRAFT);
		assert_same_round(&a, &b, N_DRAFT);
	}
	session_free(from);
	session_free(s);
	session_free(fresh);
	engine_close(g, NULL);
}

/* An expert source that passes everything on and notes which rows want the experts of one layer,
 * and which rows are kept. */
static struct spy {
	struct expert_source base; /* first: the two pointers are cast */
	struct expert_source *inner;
	int n_refs, id[CONFIG_MAX_EXPERTS];
	enum expert_use use;      /* of the latest step */
	enum expert_use acquired; /* how experts were acquired last */
	int n_pinned;
	uint64_t draft_rows[CONFIG_MAX_EXPERTS];
	int n_keeps, first, n;
} * spy;

static void spy_close(struct expert_source *s)
{
	(void)s;
	spy->inner->ops->close(spy->inner);
	free(spy);
}

static int spy_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	(void)s;
	for (int i = 0; layer == 3 && i < n; i++) {
		spy->draft_rows[spy->n_refs] = refs[i].draft_rows;
		spy->id[spy->n_refs++] = refs[i].id;
	}
	spy->acquired = use;
	int rc = spy->inner->ops->acquire(spy->inner, layer, use, refs, n, e);
	spy->n_pinned += rc < 0 ? 0 : n;
	return rc;
}

static int spy_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	(void)s;
	return spy->inner->ops->wait_ready(spy->inner, layer, refs, n, e);
}

static void spy_release(struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	(void)s;
	spy->n_pinned -= n;
	spy->inner->ops->release(spy->inner, layer, refs, n);
}

static void spy_keep_rows(struct expert_source *s, int first, int n)
{
	(void)s;
	spy->n_keeps++;
	spy->first = first;
	spy->n = n;
	if (spy->inner->ops->keep_rows)
		spy->inner->ops->keep_rows(spy->inner, first, n);
}

static void spy_step(struct expert_source *s, enum expert_use use, int rows, int position)
{
	(void)s;
	spy->n_refs = 0;
	spy->use = use;
	if (spy->inner->ops->step)
		spy->inner->ops->step(spy->inner, use, rows, position);
}

static int spy_wrap(void *user, const struct model_config *c, struct expert_source *inner,
	struct expert_source **out, struct err *e)
{
	static const struct expert_source_ops ops = {.name = "spy",
		.close = spy_close,
		.acquire = spy_acquire,
		.wait_ready = spy_wait_ready,
		.release = spy_release,
		.keep_rows = spy_keep_rows,
		.step = spy_step};
	(void)user, (void)c, (void)e;
	spy = NEW(struct spy);
	spy->base = (struct expert_source){
		.ops = &ops, .max_pinned = {inner->max_pinned[0], inner->max_pinned[1]}};
	spy->inner = inner;
	*out = &spy->base;
	return 0;
}

/* A step of many answers, and a round of their drafts, uses the cache as those of one do; a step of
 * as many rows of a prompt does not. */
static void test_many_answers(void **state)
{
	(void)state;
	enum { N = 40 };
	struct engine_options o = {.model_path = MODEL,
		.backend = backend,
		.context = 64,
		.sessions = N,
		.cache_bytes = 4000000,
		.wrap_source = spy_wrap};
	struct engine *g = engine_of(&o);
	struct batch_part parts[N];
	struct batch_draft drafts[N];
	int32_t ids[N];
	struct err e = {0};
	for (int i = 0; i < N; i++) {
		parts[i] = (struct batch_part){
			.session = session_of(g, true), .tokens = text + i, .n = 1, .logits = true};
		drafts[i] = (struct batch_draft){
			.session = parts[i].session, .next = text[i + 1], .k = 1, .ids = ids + i};
	}
	for (int step = 0; step < 2; step++)
		ok(batch_step(parts, N, NULL, &e), &e);
	assert_int_equal(spy->use, EXPERT_DECODE);
	ok(batch_mtp_draft(drafts, N, &e), &e);
	assert_int_equal(spy->acquired, EXPERT_DECODE);
	ok(session_extend(parts[0].session, text, N, NULL, NULL, &e), &e);
	assert_int_equal(spy->use, EXPERT_PREFILL);
	parts[1].prompt = N;
	ok(batch_step(parts, N, NULL, &e), &e);
	assert_int_equal(spy->use, EXPERT_PREFILL);
	assert_int_equal(spy->acquired, EXPERT_PREFILL);
	for (int i = 0; i < N; i++)
		session_free(parts[i].session);
	engine_close(g, NULL);
}

/* ---- ops that fail ---- */

static const struct backend_ops *real_ops;
static int ops_left = -1; /* the op after so many fails; negative: none does */

static void count_op(struct backend *b)
{
	if (ops_left >= 0 && !ops_left--)
		err_set(&b->failure, ERR_MEMORY, "failed on purpose");
}

static int failing_download(
	struct backend *b, void *dst, const void *src, size_t bytes, struct err *e)
{
	count_op(b);
	return real_ops->download(b, dst, src, bytes, e);
}

static void failing_matmul(
	struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	count_op(b);
	real_ops->matmul(b, parts, n_parts, x, rows);
}

static void failing_mla(struct backend *b, const struct batch *rows, const struct mla *a)
{
	count_op(b);
	real_ops->mla(b, rows, a);
}

static void failing_experts(struct backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out)
{
	count_op(b);
	real_ops->expert_ffn(b, x, jobs, n_jobs, rows, n_used, out);
}

/* What a memory failure of each of these ops leaves: no pinned expert, and the same logits. */
static void check_failed_ops(bool late, uint64_t *want)
{
	struct engine_options o = {.model_path = MODEL,
		.backend = backend,
		.context = 64,
		.threads = 1,
		.cache_bytes = 4000000,
		.wrap_source = spy_wrap};
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, true);
	struct backend *b = g->stages->backend;
	struct err e = {0};
	real_ops = b->ops;
	struct backend_ops failing = *real_ops;
	failing.download = failing_download;
	failing.matmul = failing_matmul;
	failing.mla = failing_mla;
	failing.expert_ffn = failing_experts;
	b->ops = &failing;
	if (late)
		lazy_device_start(b, true, 1);
	ops_left = -1;
	for (int at = -1; at < 0 || ops_left < 0; at += at < 0 ? 1 : IF_SLOW_BUILD(7, 1)) {
		int32_t ids[2];
		session_rewind(s, 0);
		ok(session_sync(s, text, 2, NULL, NULL, &e), &e);
		ops_left = at;
		for (int step = 0; step < 4;) {
			step += step == 2 && !session_can_draft(s); /* what failed was the MTP rows */
			int rc = step < 2    ? session_extend(s, text + 2 + step, 1, NULL, NULL, &e)
					 : step == 2 ? session_mtp_draft(s, text[4], 2, ids, NULL, &e)
								 : session_verify(s, text + 4, 2, NULL, NULL, &e);
			assert_true(!rc || rc == ERR_MEMORY);
			assert_true(!rc || !spy->n_pinned);
			step += !rc;
			engine_recover(g);
		}
		assert_int_equal(session_length(s), 6);
		*want = *want ? *want : logits_hash(s);
		assert_true(logits_hash(s) == *want);
	}
	ops_left = -1;
	session_free(s);
	engine_close(g, NULL);
}

static void test_failed_ops(void **state)
{
	(void)state;
	uint64_t want = 0;
	check_failed_ops(false, &want);
	if (strcmp(backend, "cpu"))
		return;
	check_failed_ops(true, &want);
	assert_true(lazy_counts.posted_first > 0 && lazy_counts.given_up > 0);
}

static const void *pair_weights; /* of the product that each row of the MTP layer begins with */

static void failing_pairs(
	struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	if (parts->w.data == pair_weights)
		count_op(b);
	if (!b->failure.code)
		real_ops->matmul(b, parts, n_parts, x, rows);
}

/* No memory for MTP rows, then for making them anew: drafts read rows that were written. */
static void test_rows_without_memory(void **state)
{
	(void)state;
	struct engine *g = poisoned_engine(1, 0);
	struct session *s = session_of(g, true);
	struct backend *b = g->stages->backend;
	struct err e = {0};
	real_ops = b->ops;
	struct backend_ops failing = *real_ops;
	failing.matmul = failing_pairs;
	b->ops = &failing;
	pair_weights = g->stages->model.weights.eh_proj.data;
	for (int batched = 0; batched < 2; batched++) {
		session_rewind(s, 0);
		for (uint32_t at = 0; at < 12; at += 3) {
			const struct batch_part part = {
				.session = s, .tokens = text + at, .n = 3, .logits = true};
			ops_left = at % 9 ? 0 : -1;
			ok(batched ? batch_step(&part, 1, NULL, &e)
					   : session_extend(s, part.tokens, 3, NULL, NULL, &e),
				&e);
			assert_true(ops_left < 0 && !b->failure.code);
			assert_int_equal(session_can_draft(s), !(at % 9));
		}
		round_of(s, text[12], N_DRAFT);
	}
	b->ops = real_ops;
	session_free(s);
	engine_close(g, NULL);
}

/* The refs of the layer in steps of single tokens, and in one verification: first those of the
 * first row, then those that only rows behind it want, each with all such rows. */
static void test_draft_rows(void **state)
{
	(void)state;
	enum { VERIFIED = SESSION_ROWS_MAX };
	struct engine_options o = {.model_path = MODEL,
		.backend = backend,
		.context = 256,
		.sessions = 2,
		.cache_bytes = 4000000,
		.wrap_source = spy_wrap};
	struct engine *g = engine_of(&o);
	int n_used = (int)engine_config(g)->n_used, by_row[VERIFIED][CONFIG_MAX_USED];
	struct session *a = session_of(g, false), *b = session_of(g, false);
	struct err e = {0};
	ok(session_sync(a, text, 40, NULL, NULL, &e), &e);
	for (int r = 0; r < VERIFIED; r++) {
		ok(session_extend(a, text + 40 + r, 1, NULL, NULL, &e), &e);
		assert_int_equal(spy->n_refs, n_used);
		for (int i = 0; i < n_used; i++) {
			assert_int_equal(spy->draft_rows[i], 0);
			by_row[r][i] = spy->id[i];
		}
	}
	assert_int_equal(spy->n_keeps, 0);
	session_rewind(a, 40);
	ok(session_verify(a, text + 40, VERIFIED, NULL, NULL, &e), &e);
	int at = 0, several = 0;
	for (int r = 0; r < VERIFIED; r++)
		for (int i = 0; i < n_used; i++) {
			uint64_t rows = 0; /* that want it */
			for (int k = 0; k < VERIFIED * n_used; k++)
				if (by_row[k / n_used][k % n_used] == by_row[r][i])
					rows |= UINT64_C(1) << k / n_used;
			if (rows & ((UINT64_C(1) << r) - 1)) /* listed for a row before */
				continue;
			several += r && rows != UINT64_C(1) << r;
			assert_int_equal(spy->id[at], by_row[r][i]);
			assert_int_equal(spy->draft_rows[at++], r ? rows : 0);
		}
	assert_int_equal(spy->n_refs, at);
	assert_true(at > n_used && several > 0); /* else the text tests too little */
	session_keep_rows(a, 3);
	session_keep_rows(a, 2); /* reported once */
	assert_true(spy->n_keeps == 1 && spy->first == 0 && spy->n == 3);
	/* two timelines: the single row of the second comes before the drafts of the first. Not to say
	 * what is kept means all of it */
	ok(session_sync(b, text + 100, 20, NULL, NULL, &e), &e);
	struct batch_part parts[] = {{.session = a, .tokens = text + 42, .n = 3, .verify = true},
		{.session = b, .tokens = text + 120, .n = 2, .verify = true}};
	ok(batch_step(parts, 2, NULL, &e), &e);
	int certain = 0;
	while (certain < spy->n_refs && !spy->draft_rows[certain])
		certain++;
	assert_true(certain >= n_used && certain <= 2 * n_used);
	for (int i = certain; i < spy->n_refs; i++)
		assert_true(spy->draft_rows[i] && !(spy->draft_rows[i] & ~UINT64_C(0x16)));
	session_keep_rows(b, 1);
	assert_true(spy->n_keeps == 2 && spy->first == 3 && spy->n == 1);
	ok(session_extend(a, text + 45, 1, NULL, NULL, &e), &e);
	assert_true(spy->n_keeps == 3 && spy->first == 0 && spy->n == 3);
	session_free(a);
	session_free(b);
	engine_close(g, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_are_single_steps),
		cmocka_unit_test(test_kept_rows),
		cmocka_unit_test(test_recursion),
		cmocka_unit_test(test_together),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_lost_state),
		cmocka_unit_test(test_draft_rows),
		cmocka_unit_test(test_failed_ops),
		cmocka_unit_test(test_rows_without_memory),
		cmocka_unit_test(test_many_answers),
	};
	return cmocka_run_group_tests(tests, verify_setup, temp_dir_drop);
}
