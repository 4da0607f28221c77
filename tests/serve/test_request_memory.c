/* SPDX-License-Identifier: MIT */
/* What a request counts for the budget is at least what it takes of the allocator: with a kept
 * response in front, and on the paths that turn text into tokens and back. */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/gguf.h"
#include "src/serve/api/api.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LIMIT ((size_t)256 << 20)
#define ID    "resp_000000000000000000000000"

static struct gguf *file;
static struct tokenizer *tokenizer;
static struct budget budget;
static struct request_model model;

static int memory_setup(void **state)
{
	(void)state;
	struct err e = {0};
	if (gguf_open("tools/pocket/pocket.gguf", &file, &e) ||
		tokenizer_from_gguf(file, &tokenizer, &e) ||
		response_store_open(NULL, LIMIT, &model.responses, &e))
		fail_msg("%s", e.text);
	model.tokenizer = tokenizer;
	model.name = "pocket";
	model.longest = 128;
	model.context = 1 << 20;
	model.budget = &budget;
	return 0;
}

static int memory_teardown(void **state)
{
	(void)state;
	response_store_close(model.responses);
	tokenizer_free(tokenizer);
	gguf_close(file);
	return 0;
}

static void budget_clear(size_t limit)
{
	assert_int_equal(atomic_load(&budget.held), 0);
	budget = (struct budget){.limit = limit};
}

/* Bytes that are allocated now. */
static size_t allocated(void)
{
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
	struct mallinfo2 m = mallinfo2();
	return m.uordblks + m.hblkhd;
#else
	return 0;
#endif
}

/* Items with many values and no text: ten times as large as a tree. */
static void keep_items(size_t n)
{
	struct buf items = {0}, response = {0};
	buf_puts(&items, "[{\"role\":\"user\",\"content\":[");
	for (size_t i = 0; i < n; i++)
		buf_puts(&items, "{\"type\":\"input_text\",\"text\":\"\"},");
	buf_puts(&items, "{\"type\":\"input_text\",\"text\":\"a\"}]}]");
	buf_puts(&response, "{\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"content\":["
						"{\"type\":\"output_text\",\"text\":\"b\"}]}]}");
	response_store_put(model.responses, ID, &response, &items);
	buf_free(&items);
	buf_free(&response);
}

static void test_previous(void **state)
{
	(void)state;
	static const char body[] = "{\"input\":\"q\",\"previous_response_id\":\"" ID "\"}";
	struct request r;
	struct request_error e = {0};
	keep_items(20000);
	budget_clear(LIMIT);
	size_t before = allocated();
	if (api_parse(&api_responses, &model, body, strlen(body), &r, &e))
		fail_msg("%s", e.message);
	assert_true(atomic_load(&budget.held) >= allocated() - before);
	request_fini(&r);
	budget_clear(16 << 20);
	assert_int_equal(api_parse(&api_responses, &model, body, strlen(body), &r, &e), -1);
	assert_int_equal(e.status, 413);
	request_fini(&r);
	budget_clear(LIMIT);
	budget_hold(&(struct budget_part){.budget = &budget}, LIMIT / 2); /* others' */
	assert_int_equal(
		budget_hold(&(struct budget_part){.budget = &budget}, LIMIT / 2), BUDGET_TAKEN);
	assert_int_equal(api_parse(&api_responses, &model, body, strlen(body), &r, &e), -1);
	assert_int_equal(e.status, 429);
	request_fini(&r);
	struct buf out = {0};
	assert_int_equal(api_responses_get(&model, ID, &out, &e), -1);
	assert_int_equal(e.status, 429);
	assert_int_equal(api_responses_items(&model, ID, NULL, NULL, NULL, &out, &e), -1);
	assert_int_equal(e.status, 429);
	atomic_store(&budget.held, 0);
	assert_int_equal(api_responses_items(&model, ID, NULL, NULL, NULL, &out, &e), 0);
	assert_true(atomic_load(&budget.peak) >= LIMIT);
	buf_free(&out);
}

/* A reference to an item holds what its response takes; the conversation is not read. */
static void test_references(void **state)
{
	(void)state;
	enum { LETTERS = 1 << 20 };
	static const char body[] = "{\"input\":[{\"type\":\"item_reference\",\"id\":\""
							   "msg_000000000000000000000000_1\"}]}";
	struct buf large = {0}, small = {0};
	struct request_error e = {0};
	buf_puts(&large, "[{\"role\":\"user\",\"content\":\"");
	for (size_t i = 0; i < LETTERS; i++)
		buf_putc(&large, 'a');
	buf_puts(&large, "\"}");
	buf_puts(&small, ",{\"type\":\"message\",\"id\":\"msg_000000000000000000000000_1\","
					 "\"role\":\"assistant\",\"content\":\"b\"}]");
	for (int k = 0; k < 2; k++) { /* the large text: in the conversation, or in the response */
		struct buf response = {0}, items = {0};
		struct request r;
		buf_printf(&response, "{\"output\":%s%s}", k ? buf_str(&large) : "[{}", buf_str(&small));
		buf_printf(&items, "%s]", k ? "[" : buf_str(&large));
		response_store_put(model.responses, ID, &response, &items);
		budget_clear(LIMIT);
		if (api_parse(&api_responses, &model, body, strlen(body), &r, &e))
			fail_msg("%s", e.message);
		assert_true(k || atomic_load(&budget.peak) < LETTERS);
		assert_true(atomic_load(&budget.held) < 3 * LETTERS); /* its tree */
		request_fini(&r);
		buf_free(&response);
		buf_free(&items);
	}
	buf_free(&large);
	buf_free(&small);
}

typedef int token_fn(const struct request_model *model, const char *body, size_t len,
	struct buf *out, struct request_error *e);

static void expect_counted(token_fn *path, const struct buf *body)
{
	struct buf out = {0};
	struct request_error e = {0};
	budget_clear(LIMIT);
	if (path(&model, buf_str(body), body->len, &out, &e))
		fail_msg("%s", e.message);
	/* tree and answer at least: the rest is free again */
	assert_true(atomic_load(&budget.peak) >= out.cap + body->len);
	buf_free(&out);
	budget_clear(atomic_load(&budget.peak)); /* one request may hold half */
	assert_int_equal(path(&model, buf_str(body), body->len, &out, &e), -1);
	assert_int_equal(e.status, 413);
	assert_non_null(strstr(e.message, "MiB of memory"));
	buf_free(&out);
}

/* Tokens of one letter: the text of their numbers is several times as long. */
static void test_tokens(void **state)
{
	(void)state;
	static const char *const ends[] = {"\"}", "\",\"with_pieces\":true}"};
	for (size_t k = 0; k < ARRAY_LEN(ends); k++) {
		struct buf body = {0};
		buf_puts(&body, "{\"content\":\"");
		for (int i = 0; i < 100000; i++)
			buf_puts(&body, "q ");
		buf_puts(&body, ends[k]);
		expect_counted(api_tokenize, &body);
		buf_free(&body);
	}
	struct buf body = {0};
	buf_puts(&body, "{\"tokens\":[0");
	for (int i = 0; i < 100000; i++)
		buf_puts(&body, ",5000");
	buf_puts(&body, "]}");
	expect_counted(api_detokenize, &body);
	buf_clear(&body);
	buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 100000; i++)
		buf_puts(&body, "\\u0001");
	buf_puts(&body, "\"}]}");
	expect_counted(api_apply_template, &body);
	buf_free(&body);
}

/* Text prompts are held as tokens until they are read: a letter has a few bytes then. */
static void test_text_prompts(void **state)
{
	(void)state;
	struct buf body = {0};
	struct request r;
	struct request_error e = {0};
	buf_puts(&body, "{\"prompt\":[");
	for (int k = 0; k < 4; k++) {
		buf_puts(&body, k ? ",\"" : "\"");
		for (int i = 0; i < 100000; i++)
			buf_puts(&body, "q ");
		buf_puts(&body, "\"");
	}
	buf_puts(&body, "]}");
	budget_clear(LIMIT);
	size_t before = allocated();
	if (api_parse(&api_completions, &model, buf_str(&body), body.len, &r, &e))
		fail_msg("%s", e.message);
	assert_true(atomic_load(&budget.held) >= allocated() - before);
	assert_true(atomic_load(&budget.held) <= 10 * body.len);
	request_fini(&r);
	budget_clear(2 * atomic_load(&budget.peak) - 2); /* one request may hold half */
	assert_int_equal(api_parse(&api_completions, &model, buf_str(&body), body.len, &r, &e), -1);
	assert_int_equal(e.status, 413);
	request_fini(&r);
	buf_free(&body);
}

/* A run of letters is one piece: what tokenizing takes for it counts while it lasts. */
static void test_long_pieces(void **state)
{
	(void)state;
	enum { LETTERS = 1000000, PIECE = 24 * LETTERS };
	static const struct {
		const struct api *api;
		const char *begin, *end;
	} bodies[] = {{&api_completions, "{\"prompt\":\"", "\"}"},
		{&api_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"}};
	for (size_t k = 0; k < ARRAY_LEN(bodies); k++) {
		struct buf body = {0};
		struct request r;
		struct request_error e = {0};
		buf_puts(&body, bodies[k].begin);
		for (int i = 0; i < LETTERS; i++)
			buf_putc(&body, 'q');
		buf_puts(&body, bodies[k].end);
		budget_clear(LIMIT);
		if (api_parse(bodies[k].api, &model, buf_str(&body), body.len, &r, &e))
			fail_msg("%s", e.message);
		assert_true(atomic_load(&budget.peak) >= PIECE);
		assert_true(atomic_load(&budget.held) < PIECE / 2);
		request_fini(&r);
		budget_clear(2 * PIECE); /* one request may hold half */
		assert_int_equal(api_parse(bodies[k].api, &model, buf_str(&body), body.len, &r, &e), -1);
		assert_int_equal(e.status, 413);
		request_fini(&r);
		buf_free(&body);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_previous),
		cmocka_unit_test(test_references),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_text_prompts),
		cmocka_unit_test(test_long_pieces),
	};
	return cmocka_run_group_tests(tests, memory_setup, memory_teardown);
}
