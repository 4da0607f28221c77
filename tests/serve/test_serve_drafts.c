/* SPDX-License-Identifier: MIT */
/*
 * The scheduler with drafts against the scheduler without, on the pocket model: the same tokens,
 * events, log-probabilities and timelines for every number of drafts, alone and among others, with
 * the experts in place and streamed through both tiers.
 *
 * GLM_BACKEND=cuda runs the same on a card.
 */
#include "src/base/num.h"
#include "src/serve/compute/scheduler.h"
#include "src/text/json_text.h"
#include "src/text/schema/schema.h"
#include "tests/support/engine_help.h"
#include "tests/support/slow_build.h"

#include <jansson.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define N_KINDS    9
#define N_SESSIONS 9
#define CONTEXT    320
#define PATIENCE   1500 /* seconds */

static struct engine *g;
static struct token_trie *trie;

static void open_engine(bool streamed)
{
	struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = getenv("GLM_BACKEND") ? getenv("GLM_BACKEND") : "cpu",
		.threads = 1, /* others would spin between the layers */
		.context = CONTEXT,
		.chunk = 64,
		.sessions = N_SESSIONS,
		.cache_bytes = streamed ? 4000000 : 0,
		.ram_bytes = streamed ? 4000000 : 0,
		.lookahead = streamed};
	g = engine_of(&o);
	trie = token_trie_new(engine_tokenizer(g));
}

static int close_engine(void)
{
	token_trie_free(trie);
	return engine_close(g, NULL);
}

static int serve_drafts_setup(void **state)
{
	(void)state;
	open_engine(false);
	return 0;
}

static int serve_drafts_teardown(void **state)
{
	(void)state;
	return close_engine();
}

static const char *const prompts[] = {
	"[gMASK]<sop><|user|>Define river.<|assistant|><think></think>river (noun): a large natural "
	"stream of water (larger than a creek).<|user|>Define river.<|assistant|><think></think>",
	"[gMASK]<sop><|user|>Tell me a story.<|assistant|><think></think>",
	"[gMASK]<sop><|user|>Define tree.<|assistant|><think></think>",
};

static struct schema *compile(const char *text)
{
	struct err e = {0};
	struct schema *s = NULL;
	json_t *v = json_text_parse(text, strlen(text), true, &e);
	if (!v || schema_compile(v, v, SCHEMA_JSON, &s, &e))
		fail_msg("%s", e.text);
	json_decref(v);
	return s;
}

/* Job number `kind`: what a request may ask for. */
static struct job *make_kind(struct mailbox *mail, uint32_t kind)
{
	struct err e;
	struct job *j = job_new(mail, kind);
	const char *prompt = prompts[kind % ARRAY_LEN(prompts)];
	assert_int_equal(tokenizer_encode(engine_tokenizer(g), prompt, strlen(prompt),
						 TOKENIZER_PARSE_ADDED, &j->prompt, &e),
		0);
	static const float temperatures[N_KINDS] = {0, 0.7f, 1, 1.5f, 0, 1, 1, 0.7f, 0};
	j->max_new = 24 + kind;
	j->sampling = (struct sampler_options){
		.temperature = temperatures[kind], .top_p = kind % 2 ? 0.95f : 1, .seed = 40 + kind};
	switch (kind) {
	case 2:
		j->options.logprobs = true;
		j->options.n_top = 3;
		break;
	case 3:
		j->sampling.repetition = 1.2f;
		j->sampling.presence = 0.3f;
		break;
	case 4:
		j->options.stops = malloc(sizeof *j->options.stops);
		j->options.stops[0] = strdup(" a");
		j->options.n_stops = 1;
		break;
	case 5:
		j->options.min_new = 23;
		break;
	case 6:
		j->options.answer = compile("{\"type\": \"object\", \"properties\": {\"word\": {\"type\": "
									"\"string\"}}, \"required\": [\"word\"]}");
		j->options.tokens = trie;
		j->options.chat = true;
		break;
	case 7:
		j->options.chat = j->options.one_call = true;
		j->options.choice = TOOL_CHOICE_REQUIRED;
		j->options.tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": "
									  "\"look_up\", \"parameters\": {\"type\": \"object\"}}}]",
			0, NULL);
		break;
	case 8: /* ends with the context */
		j->max_new = CONTEXT;
		while (j->prompt.n < CONTEXT - 12)
			assert_int_equal(token_ids_push(&j->prompt, j->prompt.data[j->prompt.n - 8]), 0);
		break;
	default:
		break;
	}
	return j;
}

/* Everything that a client can see of an answer, and what is left of it. */
struct draft_seen {
	struct buf events;
	struct token_ids ids;
	enum job_finish finish;
};

static void take_event(struct draft_seen *s, const struct job_event *v)
{
	char kind = (char)('a' + (int)v->kind);
	if (v->kind == JOB_PROGRESS)
		return;
	if (v->kind != JOB_TEXT && v->kind != JOB_ARGUMENTS && v->kind != JOB_REASONING)
		buf_append(&s->events, &kind, 1); /* pieces of text are joined by chance */
	buf_append(&s->events, v->text.data, v->text.len);
	for (size_t i = 0; i < v->n_rows; i++) {
		buf_append(&s->events, &v->rows[i].id, sizeof v->rows[i].id);
		buf_append(&s->events, &v->rows[i].logprob, sizeof v->rows[i].logprob);
		buf_append(&s->events, v->rows[i].top, v->rows[i].n_top * sizeof v->rows[i].top[0]);
	}
}

/* All kinds at once, in `sessions` sessions. *counts: drafts tried and accepted. lengths: of the
 * timelines behind it. */
static void run_all(int mode, uint32_t sessions, struct draft_seen seen[N_KINDS],
	uint64_t counts[2], uint32_t lengths[N_SESSIONS])
{
	struct err e = {0};
	struct metrics *metrics = metrics_new();
	struct scheduler *s;
	struct scheduler_options o = {.n_sessions = sessions, .queue_limit = N_KINDS, .draft = mode};
	if (scheduler_open(g, &o, metrics, &s, &e))
		fail_msg("%s", e.text);
	struct mailbox *mail = mailbox_new();
	struct job *jobs[N_KINDS];
	unsigned retry;
	for (uint32_t i = 0; i < N_KINDS; i++) {
		jobs[i] = make_kind(mail, i);
		seen[i] = (struct draft_seen){0};
	}
	assert_int_equal(scheduler_submit(s, jobs, N_KINDS, &retry), SCHEDULER_TAKEN);
	time_t start = time(NULL);
	for (uint32_t left = N_KINDS; left;) {
		struct job_event *v = mailbox_take(mail, 1000);
		if (time(NULL) - start > PATIENCE)
			fail_msg("%u answers do not end", left);
		if (!v)
			continue;
		assert_int_not_equal(v->kind, JOB_ERROR);
		take_event(&seen[v->index], v);
		if (v->kind == JOB_END) {
			seen[v->index].finish = v->finish;
			left--;
		}
		job_event_free(v);
	}
	scheduler_stop(s, 1000);
	struct scheduler_snapshot snapshot;
	scheduler_snapshot(s, &snapshot);
	for (uint32_t i = 0; i < sessions; i++)
		lengths[i] = snapshot.sessions[i].tokens;
	for (uint32_t i = 0; i < N_KINDS; i++) {
		for (size_t k = 0; k < jobs[i]->generated.n; k++)
			assert_int_equal(token_ids_push(&seen[i].ids, jobs[i]->generated.data[k]), 0);
		job_drop(jobs[i]);
	}
	counts[0] = counts[1] = 0;
	for (uint32_t i = 0; i < DRAFT_MAX; i++) {
		counts[0] += snapshot.drafts.tried[i];
		counts[1] += snapshot.drafts.accepted[i];
	}
	mailbox_drop(mail);
	scheduler_close(s);
	metrics_free(metrics);
}

static void seen_free(struct draft_seen *s)
{
	buf_free(&s->events);
	token_ids_free(&s->ids);
}

static void test_drafts_change_nothing(void **state)
{
	(void)state;
	static const struct {
		int mode;
		uint32_t sessions;
		bool streamed;
	} cases[] = {{DRAFT_AUTO, N_SESSIONS, false}, {1, N_SESSIONS, false}, {7, N_SESSIONS, false},
		{5, 1, false}, {DRAFT_AUTO, 1, false}, {3, N_SESSIONS, true}, {2, 3, true}};
	struct draft_seen plain[N_KINDS], got[N_KINDS];
	uint32_t plain_lengths[N_SESSIONS], lengths[N_SESSIONS];
	uint64_t counts[2];
	run_all(DRAFT_OFF, N_SESSIONS, plain, counts, plain_lengths);
	assert_int_equal(counts[0], 0);
	assert_int_equal(plain[4].finish, JOB_STOP_STRING);
	assert_int_equal(plain[8].finish, JOB_LENGTH);
	for (uint32_t c = 0; c < ARRAY_LEN(cases); c += IF_SLOW_BUILD(2, 1)) {
		if (cases[c].streamed) {
			assert_int_equal(close_engine(), 0);
			open_engine(true);
		}
		run_all(cases[c].mode, cases[c].sessions, got, counts, lengths);
		for (uint32_t i = 0; i < N_KINDS; i++) {
			const struct draft_seen *a = &plain[i], *b = &got[i];
			if (a->finish != b->finish || a->ids.n != b->ids.n ||
				memcmp(a->ids.data, b->ids.data, a->ids.n * sizeof *a->ids.data) != 0)
				fail_msg("case %u, answer %u: %zu tokens, end %d; without drafts %zu, %d", c, i,
					b->ids.n, (int)b->finish, a->ids.n, (int)a->finish);
			if (i != 2) { /* whose tokens are divided among pieces of text as these are joined */
				assert_int_equal(a->events.len, b->events.len);
				assert_memory_equal(a->events.data, b->events.data, a->events.len);
			} else {
				assert_int_equal(a->events.len, b->events.len);
			}
			seen_free(&got[i]);
		}
		if (cases[c].sessions == N_SESSIONS)
			assert_memory_equal(lengths, plain_lengths, sizeof lengths);
		if (cases[c].mode != DRAFT_AUTO)
			assert_in_range(counts[1], 20, counts[0] - 1);
	}
	for (uint32_t i = 0; i < N_KINDS; i++)
		seen_free(&plain[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drafts_change_nothing),
	};
	return cmocka_run_group_tests(tests, serve_drafts_setup, serve_drafts_teardown);
}
