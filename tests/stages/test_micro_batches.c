/* SPDX-License-Identifier: MIT */
/*
 * Micro-batches in flight through several stages: each row has the bits of a step of its own on one
 * stage, whatever is in flight with it, ends, is cancelled or fails meanwhile. Stages compute at
 * the same time. All stages are on card 0 of the CPU backend, or of the one that GLM_BACKEND names;
 * GLM_CARDS names other cards, stage by stage.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/batch.h"
#include "src/engine/engine_internal.h"
#include "src/engine/generate.h"
#include "src/engine/stages/micro_batches.h"
#include "src/engine/stages/pipeline.h"
#include "tests/stream/loader_help.h"
#include "tests/support/engine_help.h"
#include "tests/support/slow_build.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define ANSWERS  IF_SLOW_BUILD(22, 64)
#define N_PROMPT 3 /* tokens, different ones for each answer */
#define STEPS    IF_SLOW_BUILD(2, 3)

static int32_t ids[ANSWERS + N_PROMPT + STEPS]; /* answer i has those from i on */
static uint64_t want[ANSWERS][STEPS];           /* hashes behind each step */
static const uint32_t two[] = {4}, three[] = {1, 5};

static struct engine_options stage_options(uint32_t n, const uint32_t *cuts)
{
	return (struct engine_options){.model_path = MODEL,
		.backend = getenv("GLM_BACKEND") ? getenv("GLM_BACKEND") : "cpu",
		.threads = 1,
		.context = 64,
		.sessions = ANSWERS,
		.chunk = 96,
		.cards = stage_cards(n),
		.n_cards = n,
		.cuts = cuts};
}

/* An engine with the prompts of the first `n` answers. */
struct answers {
	struct engine *g;
	uint32_t n;
	struct session *s[ANSWERS];
	uint32_t done[ANSWERS]; /* steps */
	struct batch_part parts[ANSWERS];
};

static void ok(int rc, const struct err *e)
{
	if (rc)
		fail_msg("%s", e->text);
}

static struct answers *answers_open(const struct engine_options *o, uint32_t n)
{
	skip_unless_stages_overlap(MAX(o->n_cards, 1u));
	struct answers *a = NEW(struct answers);
	struct err e = {0};
	a->g = engine_of(o);
	a->n = n;
	for (uint32_t i = 0; i < n; i++) {
		a->s[i] = session_of(a->g, false);
		ok(session_sync(a->s[i], ids + i, N_PROMPT, NULL, NULL, &e), &e);
	}
	return a;
}

static void answers_rewind(struct answers *a)
{
	for (uint32_t i = 0; i < a->n; i++) {
		session_rewind(a->s[i], MIN(N_PROMPT, session_length(a->s[i])));
		a->done[i] = 0;
	}
}

static void answers_close(struct answers *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		session_free(a->s[i]);
	assert_int_equal(engine_close(a->g, NULL), 0);
	free(a);
}

static struct batch_part part_of(const struct answers *a, uint32_t i)
{
	return (struct batch_part){
		.session = a->s[i], .tokens = ids + i + N_PROMPT + a->done[i], .n = 1, .logits = true};
}

/* The step of answer i has ended: its row is right. */
static void check_answer(struct answers *a, uint32_t i)
{
	assert_int_equal(session_length(a->s[i]), N_PROMPT + a->done[i] + 1);
	if (logits_hash(a->s[i]) != want[i][a->done[i]])
		fail_msg("answer %u, step %u: other logits", i, a->done[i]);
	a->done[i]++;
}

static int micro_setup(void **state)
{
	struct rng r = {78};
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		ids[i] = (int32_t)rng_below(&r, 8000);
	int rc = source_setup(state);
	struct engine_options o = stage_options(1, NULL);
	struct answers *a = answers_open(&o, ANSWERS);
	struct err e = {0};
	for (uint32_t i = 0; i < ANSWERS; i++)
		for (uint32_t k = 0; k < STEPS; k++, a->done[i]++) {
			struct batch_part p = part_of(a, i);
			ok(batch_step(&p, 1, NULL, &e), &e);
			want[i][k] = logits_hash(a->s[i]);
		}
	assert_int_equal(batch_micro_batches(a->g, 8, 8), 1); /* one stage */
	answers_close(a);
	return rc;
}

/* ---- the cut ---- */

static void test_cut(void **state)
{
	(void)state;
	uint32_t rows[64];
	assert_int_equal(micro_batches_count(64, 64, 2, 16), 4); /* as inspect forecasts it */
	assert_int_equal(micro_batches_count(64, 64, 8, 16), 8);
	assert_int_equal(micro_batches_count(1, 8, 4, 16), 1);
	assert_int_equal(micro_batches_count(64, 64, 1, UINT32_MAX), 1);
	for (uint32_t n = 1; n <= 64; n++)
		for (uint32_t stages = 1; stages <= 9; stages++)
			for (uint32_t most = 8; most <= 64; most += 8)
				for (uint32_t drafts = 0; drafts < 2; drafts++) {
					uint32_t all = 0, n_batches = 0, least = UINT32_MAX, largest = 0;
					for (uint32_t i = 0; i < n; i++)
						all += rows[i] = drafts ? 1 + i % 3 : 1;
					const uint32_t count = micro_batches_count(n, all, stages, most);
					assert_in_range(count, 1, n);
					assert_true(count >= MIN(stages, n));
					uint32_t left = all;
					for (uint32_t i = 0, k; i < n; i += k, n_batches++) {
						k = micro_batches_take(rows + i, n - i, all, count, most);
						uint32_t sum = 0;
						for (uint32_t j = i; j < i + k; j++)
							sum += rows[j];
						assert_true(k && i + k <= n && sum <= most);
						left -= sum;
						least = left ? MIN(least, sum) : least;
						largest = MAX(largest, sum);
					}
					assert_int_equal(left, 0);
					if (drafts)
						continue;
					assert_true(n_batches <= count); /* of equal size but for the last one */
					assert_true(n_batches == 1 || least == largest);
				}
}

/* ---- the same bits ---- */

/* Steps of the first n answers, each a call. */
static void check_steps(struct answers *a, uint32_t n)
{
	struct err e = {0};
	answers_rewind(a);
	for (uint32_t k = 0; k < STEPS - 1; k++) {
		for (uint32_t i = 0; i < n; i++)
			a->parts[i] = part_of(a, i);
		ok(batch_step(a->parts, n, NULL, &e), &e);
		for (uint32_t i = 0; i < n; i++)
			check_answer(a, i);
	}
}

struct flying {
	uint32_t answers[ANSWERS], n;
	struct batch_part parts[ANSWERS];
	struct batch_run *run;
};

/* The first n answers as a server computes them: as soon as a step has ended its answers are in the
 * next one. Answer i ends after 1 to STEPS steps, so micro-batches change. Returns how many were in
 * flight at most. */
static uint32_t check_in_flight(struct answers *a, uint32_t n)
{
	struct flying *flying = NEW_ARRAY(struct flying, ANSWERS);
	bool flies[ANSWERS] = {false};
	uint32_t first = 0, n_flying = 0, most = 0, ones[ANSWERS];
	struct err e = {0};
	answers_rewind(a);
	for (;;) {
		uint32_t ready[ANSWERS], n_ready = 0, live = 0;
		for (uint32_t i = 0; i < n; i++) {
			const bool lives = a->done[i] < 1 + i % STEPS;
			live += lives;
			ones[i] = 1;
			if (lives && !flies[i])
				ready[n_ready++] = i;
		}
		if (!live)
			break;
		const uint32_t count = batch_micro_batches(a->g, live, live);
		struct flying *f = &flying[(first + n_flying) % ANSWERS];
		if (n_ready && n_flying < count) {
			f->n = batch_micro_batch_size(a->g, ones, n_ready, live, count);
			for (uint32_t k = 0; k < f->n; k++) {
				f->answers[k] = ready[k];
				f->parts[k] = part_of(a, ready[k]);
				flies[ready[k]] = true;
			}
			ok(batch_begin(f->parts, f->n, NULL, &f->run, &e), &e);
			most = MAX(most, ++n_flying);
			continue;
		}
		f = &flying[first];
		ok(batch_end(f->run, &e), &e);
		for (uint32_t k = 0; k < f->n; k++) {
			flies[f->answers[k]] = false;
			check_answer(a, f->answers[k]);
		}
		first = (first + 1) % ANSWERS;
		n_flying--;
	}
	free(flying);
	return most;
}

static void test_bits_in_flight(void **state)
{
	(void)state;
	struct engine_options o = stage_options(2, two);
	struct answers *a = answers_open(&o, IF_SLOW_BUILD(7, ANSWERS));
	struct engine_overlap overlap;
	static const uint32_t sizes[] = {1, 2, 3, 7, 16, 17, ANSWERS};
	for (size_t i = 0; i < IF_SLOW_BUILD(4, ARRAY_LEN(sizes)); i++) {
		check_steps(a, sizes[i]);
		assert_true(check_in_flight(a, sizes[i]) >= MIN(sizes[i], 2));
	}
	engine_overlap(a->g, &overlap);
	assert_int_equal(overlap.n_stages, 2);
	assert_true(overlap.micro_batches > 2 * IF_SLOW_BUILD(4, ARRAY_LEN(sizes)));
	assert_int_equal(
		overlap.at_once_ns[0] + overlap.at_once_ns[1] + overlap.at_once_ns[2], overlap.flight_ns);
	assert_int_equal(overlap.at_once_ns[1] + 2 * overlap.at_once_ns[2], overlap.computing_ns);
	answers_close(a);
	o = stage_options(3, three); /* streamed: each stage has a cache */
	o.cache_bytes = budget(0.8);
	o.lookahead = 1;
	a = answers_open(&o, 13);
	check_steps(a, 10);
	assert_int_equal(check_in_flight(a, 13), 3);
	answers_close(a);
}

/* ---- what comes between, ends and fails ---- */

/* Begins the steps of answers 0 and 1, 2 and 3, ... */
static void begin_pairs(
	struct answers *a, uint32_t n, const struct batch_watch *watch, struct batch_run **runs)
{
	struct err e = {0};
	for (uint32_t i = 0; i < n; i++) {
		a->parts[2 * i] = part_of(a, 2 * i);
		a->parts[2 * i + 1] = part_of(a, 2 * i + 1);
		ok(batch_begin(a->parts + 2 * i, 2, watch, &runs[i], &e), &e);
	}
}

static void end_pairs(struct answers *a, uint32_t n, struct batch_run **runs)
{
	struct err e = {0};
	for (uint32_t i = 0; i < n; i++) {
		ok(batch_end(runs[i], &e), &e);
		check_answer(a, 2 * i);
		check_answer(a, 2 * i + 1);
	}
}

/* Prompts, copies, steps and figures while others are in flight. */
static void test_between(void **state)
{
	(void)state;
	struct engine_options o = stage_options(3, three);
	struct answers *a = answers_open(&o, 22);
	struct batch_run *runs[3];
	struct err e = {0};
	begin_pairs(a, 3, NULL, runs);
	ok(session_sync(a->s[10], ids + 11, N_PROMPT, NULL, NULL, &e), &e);
	ok(batch_copy_prefix(a->s[12], a->s[10], N_PROMPT, &e), &e);
	assert_true(engine_expert_stats(a->g).hit_vram > 0);
	assert_false(engine_has_failed(a->g));
	a->parts[20] = part_of(a, 20);
	a->parts[21] = part_of(a, 21);
	ok(batch_step(a->parts + 20, 2, NULL, &e), &e);
	check_answer(a, 20);
	check_answer(a, 21);
	end_pairs(a, 3, runs);
	ok(session_extend(a->s[12], ids + 11 + N_PROMPT, 1, NULL, NULL, &e), &e);
	assert_true(logits_hash(a->s[12]) == want[11][0]);
	answers_close(a);
}

static void test_cancel_in_flight(void **state)
{
	(void)state;
	struct engine_options o = stage_options(2, two);
	struct answers *a = answers_open(&o, 7);
	struct batch_run *runs[4];
	struct err e = {0};
	atomic_bool cancel = false;
	const struct batch_watch watch = {.cancel = &cancel};
	begin_pairs(a, 3, &watch, runs);
	a->parts[6] = part_of(a, 6);
	ok(batch_begin(a->parts + 6, 1, NULL, &runs[3], &e), &e); /* of somebody else */
	ok(batch_end(runs[0], &e), &e);
	check_answer(a, 0);
	check_answer(a, 1);
	atomic_store(&cancel, true);
	for (uint32_t i = 1; i < 3; i++) {
		assert_int_equal(batch_end(runs[i], &e), ERR_INTERRUPTED);
		for (uint32_t k = 2 * i; k < 2 * i + 2; k++) {
			assert_int_equal(session_length(a->s[k]), N_PROMPT);
			assert_null(session_logits(a->s[k]));
		}
	}
	ok(batch_end(runs[3], &e), &e);
	check_answer(a, 6);
	assert_int_equal(batch_step(a->parts, 6, &watch, &e), ERR_INTERRUPTED);
	answers_rewind(a);
	begin_pairs(a, 3, NULL, runs);
	end_pairs(a, 3, runs);
	answers_close(a);
}

/* The ops of a stage with a first op of a step that does more. */
static struct faulty {
	struct backend_ops ops;
	const struct backend_ops *real;
	struct backend *b;
	uint32_t calls, fails_at; /* 0: never */
	int code;
} faulty;

static void faulty_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin)
{
	faulty.real->rope_angles(b, rows, inv_freq, dim, cos_sin);
	if (++faulty.calls == faulty.fails_at)
		err_set(&b->failure, faulty.code, "failed on purpose");
}

static void faulty_begin(struct backend *b, uint32_t fails_at, int code)
{
	faulty =
		(struct faulty){.ops = *b->ops, .real = b->ops, .b = b, .fails_at = fails_at, .code = code};
	faulty.ops.rope_angles = faulty_rope_angles;
	b->ops = &faulty.ops;
}

static void faulty_end(void)
{
	faulty.b->ops = faulty.real;
	/* as for want of memory: a card counts the ops that were left out */
	faulty.b->failure.code = ERR_MEMORY;
	if (faulty.b->ops->recover)
		faulty.b->ops->recover(faulty.b);
	faulty.b->failure = (struct err){0};
}

/* A stage whose device fails with the second of four micro-batches: the error reaches this one and
 * those behind it, each ends, and no timeline has grown. */
static void test_failing_stage(void **state)
{
	(void)state;
	struct engine_options o = stage_options(3, three);
	o.no_graphs = true; /* a graph that is replayed makes no calls, so none would fail */
	struct answers *a = answers_open(&o, 9);
	struct batch_run *runs[4];
	for (uint32_t stage = 0; stage < 3; stage++) {
		struct err e = {0};
		answers_rewind(a);
		faulty_begin(a->g->stages[stage].backend, 2, ERR_RUN);
		begin_pairs(a, 4, NULL, runs);
		for (uint32_t i = 0; i < 4; i++) {
			const int rc = batch_end(runs[i], &e);
			assert_int_equal(rc, i ? ERR_RUN : 0);
			assert_true(!i || strstr(e.text, "on purpose"));
			assert_int_equal(session_length(a->s[2 * i]), N_PROMPT + !i);
		}
		faulty_end();
		assert_false(engine_has_failed(a->g));
		/* as one call: nothing has grown, the first micro-batch neither */
		answers_rewind(a);
		faulty_begin(a->g->stages[stage].backend, 2, ERR_RUN);
		for (uint32_t i = 0; i < 9; i++)
			a->parts[i] = part_of(a, i);
		assert_int_equal(batch_step(a->parts, 9, NULL, &e), ERR_RUN);
		faulty_end();
		for (uint32_t i = 0; i < 9; i++) {
			assert_int_equal(session_length(a->s[i]), N_PROMPT);
			assert_null(session_logits(a->s[i]));
		}
		check_steps(a, 9);
	}
	answers_close(a);
}

/* A micro-batch for which a stage has no memory fails alone: those that are in flight behind it
 * compute. */
static void test_no_memory_in_flight(void **state)
{
	(void)state;
	struct engine_options o = stage_options(3, three);
	o.no_graphs = true;
	struct answers *a = answers_open(&o, 8);
	struct batch_run *runs[4];
	for (uint32_t stage = 0; stage < 3; stage++) {
		struct err e = {0};
		answers_rewind(a);
		faulty_begin(a->g->stages[stage].backend, 2, ERR_MEMORY);
		begin_pairs(a, 4, NULL, runs);
		for (uint32_t i = 0; i < 4; i++) {
			assert_int_equal(batch_end(runs[i], &e), i == 1 ? ERR_MEMORY : 0);
			for (uint32_t k = 2 * i; k < 2 * i + 2 && i != 1; k++)
				check_answer(a, k);
		}
		faulty_end();
	}
	answers_close(a);
}

/* ---- allocations that fail ---- */

static uint32_t fails_in; /* the allocation that fails, counted down; 0: none */

typedef void *try_new_fn(size_t n, size_t size);
try_new_fn __real_mem_try_new, __wrap_mem_try_new;

void *__wrap_mem_try_new(size_t n, size_t size)
{
	return fails_in && !--fails_in ? NULL : __real_mem_try_new(n, size);
}

/* Whichever allocation of a micro-batch fails, it is not in flight, and can be tried again. */
static void test_no_memory_to_begin(void **state)
{
	(void)state;
	struct engine_options o = stage_options(2, two);
	struct answers *a = answers_open(&o, 1);
	struct batch_part p = part_of(a, 0);
	struct batch_run *run;
	struct err e = {0};
	uint32_t n_failed = 0;
	for (int rc = ERR_MEMORY; rc; n_failed += rc != 0) {
		fails_in = n_failed + 1;
		rc = batch_begin(&p, 1, NULL, &run, &e);
		fails_in = 0;
		assert_true(!rc || (rc == ERR_MEMORY && !run));
		assert_int_equal(session_length(a->s[0]), N_PROMPT);
	}
	assert_int_equal(n_failed, 5); /* step, ids, parts, micro-batch, threads */
	ok(batch_end(run, &e), &e);
	check_answer(a, 0);
	answers_close(a);
}

static int faulty_wait(struct backend *b, struct err *e)
{
	int rc = faulty.real->wait(b, e);
	if (!rc && ++faulty.calls == faulty.fails_at)
		rc = err_set(&b->failure, ERR_RUN, "failed late, on purpose");
	if (rc && e)
		*e = b->failure;
	return rc;
}

/* A row passes through the stages without a wait of the host, so a fault of an earlier device may
 * show when the last one has computed already: it is the failure of the step all the same. */
static void test_late_failure(void **state)
{
	(void)state;
	struct engine_options o = stage_options(3, three);
	struct answers *a = answers_open(&o, 1);
	struct batch_part p = part_of(a, 0);
	for (uint32_t stage = 0; stage < 2; stage++) {
		struct err e = {0};
		faulty_begin(a->g->stages[stage].backend, 1, ERR_RUN);
		faulty.ops.rope_angles = faulty.real->rope_angles;
		faulty.ops.wait = faulty_wait;
		assert_int_equal(batch_step(&p, 1, NULL, &e), ERR_RUN);
		assert_non_null(strstr(e.text, "failed late"));
		assert_int_equal(session_length(a->s[0]), N_PROMPT);
		assert_null(session_logits(a->s[0]));
		faulty_end();
		check_steps(a, 1);
		answers_rewind(a);
	}
	answers_close(a);
}

/* ---- drafts ---- */

/* Two rounds of drafts and their verification for answer i of `a`, in steps: `round` 0 begins. */
struct drafted {
	int32_t tokens[3]; /* the next one and two drafts */
	struct batch_part part;
	uint64_t hash;
};

static void drafted_begin(struct answers *a, struct drafted *d, uint32_t i)
{
	struct err e = {0};
	d->tokens[0] = ids[i];
	ok(batch_mtp_draft(
		   &(struct batch_draft){.session = a->s[i], .next = ids[i], .k = 2, .ids = d->tokens + 1},
		   1, &e),
		&e);
	d->part = (struct batch_part){
		.session = a->s[i], .tokens = d->tokens, .n = 3, .logits = true, .verify = true};
}

static void drafted_end(struct answers *a, struct drafted *d, uint32_t i)
{
	for (uint32_t r = 0; r < 3; r++)
		d->hash =
			generate_hash(d->hash, session_row_logits(a->s[i], r), engine_config(a->g)->n_vocab);
	d->hash = d->hash * 31 + (uint64_t)d->tokens[2];
	session_keep_rows(a->s[i], 1 + i % 3);
}

/* hashes [6] of answers with drafts, in flight or not. */
static void drafted_hashes(uint32_t n_stages, const uint32_t *cuts, uint64_t *hashes)
{
	enum { N = 6, ROUNDS = 3 };
	struct engine_options o = stage_options(n_stages, cuts);
	struct answers *a = NEW(struct answers);
	struct drafted d[N] = {0};
	struct batch_run *runs[N] = {NULL};
	struct err e = {0};
	a->g = engine_of(&o);
	for (uint32_t i = 0; i < N; i++) {
		a->s[i] = session_of(a->g, true);
		ok(session_sync(a->s[i], ids + i, N_PROMPT, NULL, NULL, &e), &e);
	}
	for (uint32_t k = 0; k <= ROUNDS; k++)
		for (uint32_t i = 0; i < N; i++) {
			if (runs[i]) {
				ok(batch_end(runs[i], &e), &e);
				drafted_end(a, &d[i], i);
				runs[i] = NULL;
			}
			if (k == ROUNDS)
				continue;
			drafted_begin(a, &d[i], i);
			if (n_stages > 1) {
				ok(batch_begin(&d[i].part, 1, NULL, &runs[i], &e), &e);
			} else {
				ok(batch_step(&d[i].part, 1, NULL, &e), &e);
				drafted_end(a, &d[i], i);
			}
		}
	for (uint32_t i = 0; i < N; i++) {
		hashes[i] = d[i].hash;
		session_free(a->s[i]);
	}
	assert_int_equal(engine_close(a->g, NULL), 0);
	free(a);
}

static void test_drafts(void **state)
{
	(void)state;
	uint64_t one[6], many[6];
	skip_unless_stages_overlap(3);
	drafted_hashes(1, NULL, one);
	drafted_hashes(3, three, many);
	assert_memory_equal(one, many, sizeof one);
}

/* ---- at the same time ---- */

/* The second micro-batch is held in stage 0, and the first one in stage 1, until both are there. */
static struct meeting {
	struct backend_ops ops;
	const struct backend_ops *real;
	struct backend *stages[2];
	pthread_mutex_t lock;
	pthread_cond_t came;
	uint32_t calls[2];
	bool missed;                    /* one of them has waited for nothing */
	bool takes_signals, misses_own; /* the thread of stage 0: SIGINT, SIGBUS of a lost file */
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER};

static void meeting_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin)
{
	struct meeting *m = &meeting;
	const int me = b == m->stages[1];
	m->real->rope_angles(b, rows, inv_freq, dim, cos_sin);
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	sigset_t blocked;
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	pthread_mutex_lock(&m->lock);
	m->takes_signals |= !me && !sigismember(&blocked, SIGINT);
	m->misses_own |= !me && sigismember(&blocked, SIGBUS);
	m->calls[me]++;
	pthread_cond_broadcast(&m->came);
	while (m->calls[me] == (me ? 1 : 2) && !m->missed && m->calls[!me] < (me ? 2 : 1))
		m->missed = pthread_cond_timedwait(&m->came, &m->lock, &until) != 0;
	pthread_mutex_unlock(&m->lock);
}

static void test_stages_overlap(void **state)
{
	(void)state;
	struct engine_options o = stage_options(2, two);
	struct answers *a = answers_open(&o, 4);
	struct engine_overlap overlap;
	const struct backend_ops *own[2];
	struct err e = {0};
	meeting.real = a->g->stages[0].backend->ops;
	meeting.ops = *meeting.real;
	meeting.ops.rope_angles = meeting_rope_angles;
	for (int i = 0; i < 2; i++) {
		meeting.stages[i] = a->g->stages[i].backend;
		own[i] = meeting.stages[i]->ops; /* a table of this backend alone */
		meeting.stages[i]->ops = &meeting.ops;
	}
	for (uint32_t i = 0; i < 4; i++)
		a->parts[i] = part_of(a, i);
	ok(batch_step(a->parts, 4, NULL, &e), &e);
	assert_false(meeting.missed);
	assert_false(meeting.takes_signals);
	assert_false(meeting.misses_own);
	assert_int_equal(meeting.calls[0], 2);
	for (uint32_t i = 0; i < 4; i++)
		check_answer(a, i);
	engine_overlap(a->g, &overlap);
	assert_true(overlap.at_once_ns[2] > 0);
	for (int i = 0; i < 2; i++)
		meeting.stages[i]->ops = own[i];
	answers_close(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_stages_overlap),
		cmocka_unit_test(test_bits_in_flight),
		cmocka_unit_test(test_between),
		cmocka_unit_test(test_cancel_in_flight),
		cmocka_unit_test(test_failing_stage),
		cmocka_unit_test(test_no_memory_in_flight),
		cmocka_unit_test(test_no_memory_to_begin),
		cmocka_unit_test(test_late_failure),
		cmocka_unit_test(test_drafts),
	};
	return cmocka_run_group_tests(tests, micro_setup, source_teardown);
}
