/* SPDX-License-Identifier: MIT */
/*
 * What the answers to one request share: trees of tools, schemas, prompts. Two clients at a time
 * ask for several answers each with the same tools; some answers are cancelled while the others go
 * on, one client leaves. Nothing is copied, nothing is freed early or kept (SAN=address), no two
 * threads touch it unguarded (SAN=thread), and who stays gets what it gets alone.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/api.h"
#include "src/serve/budget.h"
#include "src/text/json_text.h"
#include "tests/support/engine_help.h"

#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define N_ANSWERS 4
#ifdef __SANITIZE_THREAD__ /* which computes slowly */
#define ROUNDS 1
#else
#define ROUNDS 2
#endif
#define PATIENCE 600

static struct engine *g;
static struct metrics *metrics;
static struct scheduler *scheduler;
static struct request_model model;
static struct budget budget = {.limit = 64 << 20};

/* Strict: each argument's schema is compiled once and shared too. */
static const char body[] =
	"{\"messages\":[{\"role\":\"user\",\"content\":\"Paris?\"}],\"n\":4,\"seed\":11,"
	"\"max_completion_tokens\":28,\"temperature\":1,\"reasoning_effort\":\"none\","
	"\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{"
	"\"name\":\"weather\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{"
	"\"unit\":{\"enum\":[\"C\",\"F\"]},\"days\":{\"type\":\"integer\",\"minimum\":1,"
	"\"maximum\":9}},\"required\":[\"unit\",\"days\"],\"additionalProperties\":false}}}]}";

static int job_shared_setup(void **state)
{
	struct err e = {0};
	const struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.context = 320,
		.chunk = 64,
		.sessions = 5,
		.no_mtp = true};
	const struct scheduler_options s = {.n_sessions = 5, .queue_limit = 4 * N_ANSWERS};
	(void)state;
	g = engine_of(&o);
	metrics = metrics_new();
	if (scheduler_open(g, &s, metrics, &scheduler, &e))
		fail_msg("%s", e.text);
	model = (struct request_model){.tokenizer = engine_tokenizer(g),
		.name = "pocket",
		.longest = 128,
		.context = 320,
		.sampling = {.temperature = 1, .top_p = 0.95f},
		.tokens = token_trie_new(engine_tokenizer(g)),
		.budget = &budget};
	return 0;
}

static int job_shared_teardown(void **state)
{
	(void)state;
	scheduler_close(scheduler);
	metrics_free(metrics);
	token_trie_free((struct token_trie *)(uintptr_t)model.tokens);
	return engine_close(g, NULL);
}

/* One client's request. Faults are counted, not asserted: cmocka's jumps belong to one thread. */
struct client_run {
	unsigned cancel; /* bit i: answer i is cancelled once something of it has come */
	bool leaves;     /* after the first pieces of each answer */
	struct buf arguments[N_ANSWERS];
	enum job_finish finish[N_ANSWERS];
	unsigned n_ended, faults;
};

static void check_shared(struct client_run *c, const struct request *q, const struct reply *r)
{
	for (uint32_t i = 0; i < r->n_answers; i++) {
		const struct job *j = r->answers[i].job;
		if (j->shared != q->shared || j->options.tools != q->shared->output.tools ||
			j->options.strict != q->shared->output.strict ||
			j->prompt.data != q->shared->prompts[0].data)
			c->faults++; /* a copy */
	}
}

static void take_events(struct client_run *c, struct reply *r)
{
	time_t start = time(NULL);
	unsigned n_begun = 0;
	while (r->n_ended < r->n_answers && !(c->leaves && n_begun >= r->n_answers)) {
		struct reply_answer *a = NULL;
		struct job_event *v = reply_next(r, 1000, &a);
		if (time(NULL) - start > PATIENCE) {
			c->faults++;
			break;
		}
		if (!v)
			continue;
		n_begun += v->kind == JOB_CALL;
		if (v->kind == JOB_CALL && strcmp(buf_str(&v->text), "weather") != 0)
			c->faults++;
		if (v->kind == JOB_CALL && (c->cancel >> a->index & 1))
			atomic_store(&a->job->cancel, true);
		c->faults += v->kind == JOB_ERROR;
		job_event_free(v);
	}
}

static void *client_main(void *arg)
{
	struct client_run *c = arg;
	struct request q;
	struct request_error e = {0};
	struct reply r = {0};
	if (api_parse(&api_chat, &model, body, strlen(body), &q, &e) ||
		reply_begin(&r, &q, scheduler, "call_", &e)) {
		c->faults++;
	} else {
		check_shared(c, &q, &r);
		take_events(c, &r);
		c->n_ended = r.n_ended;
		for (uint32_t i = 0; i < r.n_answers; i++) {
			c->finish[i] = r.answers[i].finish;
			if (r.answers[i].n_calls)
				buf_append(&c->arguments[i], r.answers[i].calls[0].arguments.data,
					r.answers[i].calls[0].arguments.len);
		}
	}
	reply_end(&r);
	request_fini(&q);
	return NULL;
}

static void client_run_free(struct client_run *c)
{
	for (size_t i = 0; i < N_ANSWERS; i++)
		buf_free(&c->arguments[i]);
}

/* Jobs that were cancelled are let go by the compute thread a little later. */
static void expect_nothing_held(void)
{
	for (int i = 0; i < PATIENCE * 10 && atomic_load(&budget.held); i++)
		nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	assert_int_equal(atomic_load(&budget.held), 0);
}

static void test_cancelled_among_others(void **state)
{
	(void)state;
	struct client_run alone = {0};
	client_main(&alone);
	assert_int_equal(alone.faults, 0);
	assert_int_equal(alone.n_ended, N_ANSWERS);
	for (int i = 0; i < N_ANSWERS; i++)
		assert_non_null(strstr(buf_str(&alone.arguments[i]), "\"unit\""));
	expect_nothing_held();
	/* once more where a client was held up until its answers had ended */
	for (int round = 0, tries = 0; round < ROUNDS; tries++) {
		struct client_run c[2] = {{.cancel = 5u << round}, {.leaves = true}};
		pthread_t threads[2];
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, client_main, &c[i]), 0);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		assert_int_equal(c[0].faults + c[1].faults, 0);
		assert_int_equal(c[0].n_ended, N_ANSWERS);
		unsigned n_cancelled = 0;
		for (int i = 0; i < N_ANSWERS; i++) {
			bool cancelled = c[0].finish[i] == JOB_CANCELLED;
			n_cancelled += cancelled;
			assert_true(!cancelled || (c[0].cancel >> i & 1));
			if (!cancelled)
				assert_string_equal(buf_str(&c[0].arguments[i]), buf_str(&alone.arguments[i]));
		}
		assert_true(n_cancelled > 0 || tries < 20 * ROUNDS);
		round += n_cancelled > 0;
		expect_nothing_held();
		client_run_free(&c[0]);
		client_run_free(&c[1]);
	}
	client_run_free(&alone);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_cancelled_among_others)};
	return cmocka_run_group_tests(tests, job_shared_setup, job_shared_teardown);
}
