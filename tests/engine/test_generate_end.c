/* SPDX-License-Identifier: MIT */
/*
 * How an answer ends, on the pocket model: by a stop token, by the limit of new tokens or by the
 * context, and when two of these fall together. test_serve_scheduler.c holds the server to the same
 * table.
 */
#include "src/engine/generate.h"
#include "src/text/vocab.h"
#include "tests/support/engine_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A greedy answer of 21 tokens and a stop token. */
static const char prompt_text[] = "[gMASK]<sop><|user|>Define river.<|assistant|><think></think>";

static struct token_ids prompt;
static int32_t answer[64];
static uint32_t n_answer;

static bool on_token(void *user, int32_t id)
{
	struct token_ids *given = user;
	assert_int_equal(token_ids_push(given, id), 0);
	return true;
}

static struct engine *generate_end_open_engine(uint32_t context)
{
	struct engine_options o = {
		.model_path = "tools/pocket/pocket.gguf", .backend = "cpu", .context = context};
	return engine_of(&o);
}

static struct generate_result generate_end_run(
	struct engine *g, uint32_t max_new, bool ignore_stop, struct token_ids *given)
{
	struct err e = {0};
	struct generate_result r;
	struct session *s = session_of(g, false);
	const struct generate_options o = {.max_new = max_new,
		.sampler = {.top_p = 1},
		.ignore_stop = ignore_stop,
		.on_token = on_token,
		.user = given};
	given->n = 0;
	assert_int_equal(generate(s, prompt.data, (uint32_t)prompt.n, &o, &r, &e), 0);
	assert_int_equal(r.new_tokens, given->n);
	/* every token that was sampled is on the timeline, as far as there is room */
	uint32_t sampled = (uint32_t)prompt.n + r.new_tokens + (r.stop == GENERATE_STOP_TOKEN);
	uint32_t room = engine_context(g);
	assert_int_equal(session_length(s), sampled < room ? sampled : room);
	session_free(s);
	return r;
}

static int generate_end_setup(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine *g = generate_end_open_engine(512);
	struct token_ids given = {0};
	assert_int_equal(tokenizer_encode(engine_tokenizer(g), prompt_text, strlen(prompt_text),
						 TOKENIZER_PARSE_ADDED, &prompt, &e),
		0);
	struct generate_result r = generate_end_run(g, 60, false, &given);
	assert_int_equal(r.stop, GENERATE_STOP_TOKEN);
	assert_true(tokenizer_is_stop(engine_tokenizer(g), r.stop_token));
	n_answer = r.new_tokens;
	assert_in_range(n_answer, 4, 59);
	memcpy(answer, given.data, n_answer * sizeof *answer);
	token_ids_free(&given);
	return engine_close(g, NULL);
}

static int generate_end_teardown(void **state)
{
	(void)state;
	token_ids_free(&prompt);
	return 0;
}

static void test_ends(void **state)
{
	(void)state;
	const uint32_t n = n_answer, end = (uint32_t)prompt.n + n;
	const struct {
		uint32_t context, max_new;
		bool ignore_stop;
		enum generate_stop stop;
		uint32_t given;
	} cases[] = {
		{end + 1, 60, false, GENERATE_STOP_TOKEN, n},
		{end, 60, false, GENERATE_STOP_TOKEN, n},       /* the stop token finds no room */
		{end - 1, 60, false, GENERATE_CONTEXT_FULL, n}, /* the last ordinary one finds none */
		{end - 2, 60, false, GENERATE_CONTEXT_FULL, n - 1},
		{end, 60, true, GENERATE_CONTEXT_FULL, n + 1}, /* a stop token is an ordinary one */
		{end + 1, n, false, GENERATE_LIMIT, n},        /* the stop token is not sampled */
		{end, n, false, GENERATE_LIMIT, n},
		{end - 1, n, false, GENERATE_LIMIT, n}, /* limit and context fall together */
		{end + 1, n + 1, false, GENERATE_STOP_TOKEN, n},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct engine *g = generate_end_open_engine(cases[i].context);
		struct token_ids given = {0};
		struct generate_result r =
			generate_end_run(g, cases[i].max_new, cases[i].ignore_stop, &given);
		if (r.stop != cases[i].stop || r.new_tokens != cases[i].given)
			fail_msg("case %zu: end %d after %u tokens, expected %d after %u", i, (int)r.stop,
				r.new_tokens, (int)cases[i].stop, cases[i].given);
		assert_int_equal(r.stop_token >= 0, r.stop == GENERATE_STOP_TOKEN);
		assert_memory_equal(
			given.data, answer, (r.new_tokens < n ? r.new_tokens : n) * sizeof *answer);
		token_ids_free(&given);
		engine_close(g, NULL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ends),
	};
	return cmocka_run_group_tests(tests, generate_end_setup, generate_end_teardown);
}
