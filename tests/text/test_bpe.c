/* SPDX-License-Identifier: MIT */
/*
 * Merging and the vocabulary tables against slow obvious versions, over random small vocabularies:
 * explicit merge lists and ranks by id, pieces below and above the border between the two
 * algorithms. And what a vocabulary refuses.
 */
#include "src/text/bpe.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_TOKENS 700

/* A vocabulary of the 256 bytes and random joins of earlier tokens over few letters; merge i made
 * token 256 + i. */
struct toy {
	uint32_t n;
	char text[MAX_TOKENS][64];
	struct text_span spans[MAX_TOKENS];
	struct buf merge_text[MAX_TOKENS];
	struct text_span merges[MAX_TOKENS];
	int32_t left[MAX_TOKENS], right[MAX_TOKENS];
	uint32_t n_merges;
};

static void toy_make(struct toy *t, struct rng *r, unsigned letters)
{
	memset(t, 0, sizeof *t);
	for (unsigned i = 0; i < 256; i++) {
		t->text[i][0] = (char)i;
		t->spans[i] = (struct text_span){t->text[i], 1};
	}
	t->n = 256;
	while (t->n < MAX_TOKENS) {
		uint32_t parts[2];
		for (int k = 0; k < 2; k++) {
			uint32_t grown = t->n - 256, pick = rng_below(r, letters + grown);
			parts[k] = pick < letters ? 'a' + pick : 256 + pick - letters;
		}
		struct text_span a = t->spans[parts[0]], b = t->spans[parts[1]];
		if (a.len + b.len > 20)
			continue;
		char *at = t->text[t->n];
		memcpy(at, a.data, a.len);
		memcpy(at + a.len, b.data, b.len);
		struct text_span s = {at, a.len + b.len};
		bool known = false;
		for (uint32_t i = 256; i < t->n && !known; i++)
			known = t->spans[i].len == s.len && !memcmp(t->spans[i].data, s.data, s.len);
		if (known)
			continue;
		struct buf *m = &t->merge_text[t->n_merges];
		vocab_spell(a.data, a.len, m);
		buf_putc(m, ' ');
		vocab_spell(b.data, b.len, m);
		t->merges[t->n_merges] = (struct text_span){m->data, m->len};
		t->left[t->n_merges] = (int32_t)parts[0];
		t->right[t->n_merges++] = (int32_t)parts[1];
		t->spans[t->n++] = s;
	}
}

static void toy_free(struct toy *t)
{
	for (uint32_t i = 0; i < t->n_merges; i++)
		buf_free(&t->merge_text[i]);
}

static int32_t toy_find(const struct toy *t, const char *p, size_t n)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->spans[i].len == n && !memcmp(t->spans[i].data, p, n))
			return (int32_t)i;
	return -1;
}

/* By the book: look at all adjacent pairs, join the leftmost of the lowest rank, again. */
static size_t slow(const struct toy *t, bool by_ids, const char *piece, size_t n, int32_t *id)
{
	for (size_t i = 0; i < n; i++)
		id[i] = (unsigned char)piece[i];
	for (;;) {
		uint32_t best = UINT32_MAX;
		size_t at = 0;
		int32_t result = -1;
		for (size_t i = 0; i + 1 < n; i++) {
			if (by_ids) {
				char joined[160];
				struct text_span a = t->spans[id[i]], b = t->spans[id[i + 1]];
				memcpy(joined, a.data, a.len);
				memcpy(joined + a.len, b.data, b.len);
				int32_t r = toy_find(t, joined, a.len + b.len);
				if (r >= 0 && (uint32_t)r < best) {
					best = (uint32_t)r;
					at = i;
					result = r;
				}
			} else {
				for (uint32_t m = 0; m < t->n_merges && m < best; m++)
					if (t->left[m] == id[i] && t->right[m] == id[i + 1]) {
						best = m;
						at = i;
						result = 256 + (int32_t)m;
					}
			}
		}
		if (best == UINT32_MAX)
			return n;
		id[at] = result;
		memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
		n--;
	}
}

static void test_against_slow(void **state)
{
	(void)state;
	struct rng r = {20260620};
	for (int round = 0; round < 12; round++) {
		unsigned letters = 2 + rng_below(&r, 3);
		bool by_ids = round % 2, whole = round % 3 == 0;
		struct toy *t = NEW(struct toy);
		toy_make(t, &r, letters);
		struct vocab v;
		struct bpe b;
		struct err e = {0};
		assert_int_equal(vocab_init(&v, t->spans, NULL, t->n, VOCAB_RAW, &e), 0);
		int rc = by_ids ? bpe_init_ids(&b, &v, whole, &e)
						: bpe_init_merges(&b, &v, t->merges, t->n_merges, whole, &e);
		if (rc)
			fail_msg("%s", e.text);
		struct bpe_work w = {0};
		for (int i = 0; i < 320; i++) {
			char piece[300];
			int32_t want[300];
			size_t n = i < 300 ? rng_below(&r, 60) : rng_below(&r, 300), n_want;
			unsigned use = rng_below(&r, 4) ? letters : 1;
			for (size_t k = 0; k < n; k++)
				piece[k] = (char)(rng_below(&r, 30) ? 'a' + (char)rng_below(&r, use)
													: (char)rng_below(&r, 256));
			int32_t known = whole ? toy_find(t, piece, n) : -1;
			if (known >= 0) {
				want[0] = known;
				n_want = 1;
			} else {
				n_want = n ? slow(t, by_ids, piece, n, want) : 0;
			}
			struct token_ids got = {0};
			assert_int_equal(bpe_encode(&b, &w, piece, n, &got), 0);
			assert_int_equal(got.n, n_want);
			if (n_want)
				assert_memory_equal(got.data, want, n_want * sizeof *want);
			token_ids_free(&got);
		}
		bpe_work_fini(&w);
		bpe_fini(&b);
		vocab_fini(&v);
		toy_free(t);
		free(t);
	}
}

/* Every token is found under its bytes and its spelling, nothing else is. */
static void test_lookup(void **state)
{
	(void)state;
	struct rng r = {7};
	struct toy *t = NEW(struct toy);
	toy_make(t, &r, 3);
	struct vocab v, spelled;
	struct text_span spans[MAX_TOKENS];
	struct buf texts[MAX_TOKENS] = {{0}};
	for (uint32_t i = 0; i < t->n; i++) {
		vocab_spell(t->spans[i].data, t->spans[i].len, &texts[i]);
		spans[i] = (struct text_span){texts[i].data, texts[i].len};
	}
	assert_int_equal(vocab_init(&v, t->spans, NULL, t->n, VOCAB_RAW, NULL), 0);
	assert_int_equal(vocab_init(&spelled, spans, NULL, t->n, VOCAB_GPT2, NULL), 0);
	for (uint32_t i = 0; i < t->n; i++) {
		assert_int_equal(vocab_find(&v, t->spans[i].data, t->spans[i].len), i);
		assert_int_equal(vocab_find(&spelled, t->spans[i].data, t->spans[i].len), i);
		struct text_span a = vocab_text(&v, (int32_t)i);
		assert_int_equal(a.len, t->spans[i].len);
		assert_memory_equal(a.data, t->spans[i].data, a.len);
	}
	for (int i = 0; i < 5000; i++) {
		char p[12];
		size_t n = 1 + rng_below(&r, sizeof p);
		for (size_t k = 0; k < n; k++)
			p[k] = (char)('a' + rng_below(&r, 4));
		assert_int_equal(vocab_find(&v, p, n), toy_find(t, p, n));
	}
	for (uint32_t i = 0; i < t->n; i++)
		buf_free(&texts[i]);
	vocab_fini(&v);
	vocab_fini(&spelled);
	toy_free(t);
	free(t);
}

#define ADDED 7

/* Bytes, then the added tokens of `text` with the given types. */
static int make(struct vocab *v, const char *const *text, const uint8_t *type, size_t n,
	enum vocab_spelling spelling, struct err *e)
{
	static char bytes[256];
	struct text_span spans[256 + 16];
	struct buf spelled[256] = {{0}};
	uint8_t types[256 + 16];
	for (unsigned i = 0; i < 256; i++) {
		bytes[i] = (char)i;
		vocab_spell(&bytes[i], 1, &spelled[i]);
		spans[i] = spelling == VOCAB_RAW ? (struct text_span){&bytes[i], 1}
										 : (struct text_span){spelled[i].data, spelled[i].len};
		types[i] = TOKEN_NORMAL;
	}
	for (size_t i = 0; i < n; i++) {
		spans[256 + i] = (struct text_span){text[i], strlen(text[i])};
		types[256 + i] = type[i];
	}
	int rc = vocab_init(v, spans, types, (uint32_t)(256 + n), spelling, e);
	for (unsigned i = 0; i < 256; i++)
		buf_free(&spelled[i]);
	return rc;
}

static void test_longest_added_token_wins(void **state)
{
	(void)state;
	static const char *const text[ADDED] = {"<a", "<", "<ab>", "<ab>c", "zz", "z", "<b"};
	static const uint8_t type[ADDED] = {3, 4, 3, 4, 5, 4, 3};
	static const struct {
		const char *at;
		int32_t id;
		size_t len;
	} cases[] = {{"<", 257, 1}, {"<a", 256, 2}, {"<ab", 256, 2}, {"<ab>", 258, 4},
		{"<ab>cd", 259, 5}, {"<b", 262, 2}, {"<c", 257, 1}, {"zz", 261, 1}, {"y<", -1, 0},
		{"", -1, 0}};
	struct vocab v;
	assert_int_equal(make(&v, text, type, ADDED, VOCAB_RAW, NULL), 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		size_t len = 0;
		assert_int_equal(
			vocab_match_added(&v, cases[i].at, strlen(cases[i].at), &len), cases[i].id);
		if (cases[i].id >= 0)
			assert_int_equal(len, cases[i].len);
	}
	assert_int_equal(vocab_find_added(&v, "<ab>"), 258);
	assert_int_equal(vocab_find_added(&v, "zz"), -1); /* a padding row */
	assert_int_equal(vocab_text(&v, 260).len, 0);
	vocab_fini(&v);
}

static void test_bpe_refusals(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint8_t type;
		enum vocab_spelling spelling;
		const char *want;
	} cases[] = {
		{"a", 1, VOCAB_RAW, "token 256 has the same bytes as token 97"},
		{"", 1, VOCAB_RAW, "token 256 is empty"}, {"", 3, VOCAB_RAW, "added token 256 is empty"},
		{"\xff", 3, VOCAB_RAW, "added token 256 is not valid UTF-8"},
		{"x", 6, VOCAB_RAW, "token 256 has type 6"}, {"x", 0, VOCAB_RAW, "token 256 has type 0"},
		{"a b", 1, VOCAB_GPT2, "token 256 \"a b\" is not in byte-level spelling"},
		{"\xe4\xbd\xa0", 1, VOCAB_GPT2, "is not in byte-level spelling"},
		{"\xc4", 1, VOCAB_GPT2, "is not in byte-level spelling"},
		{"\xc5\x84", 1, VOCAB_GPT2, "is not in byte-level spelling"}, /* U+0144: one too far */
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct vocab v;
		struct err e = {0};
		assert_int_equal(
			make(&v, &cases[i].text, &cases[i].type, 1, cases[i].spelling, &e), ERR_INPUT);
		if (!strstr(e.text, cases[i].want))
			fail_msg("case %zu: %s", i, e.text);
		assert_null(v.bytes);
	}
	static const char *const twins[2] = {"<x>", "<x>"};
	static const uint8_t types[2] = {3, 4};
	struct vocab v;
	struct err e = {0};
	assert_int_equal(make(&v, twins, types, 2, VOCAB_RAW, &e), ERR_INPUT);
	assert_string_equal(e.text, "added tokens 256 and 257 have the same text");
	struct text_span one = {"a", 1};
	assert_int_equal(vocab_init(&v, &one, NULL, 1, VOCAB_RAW, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "no token for byte 0x00"));
	assert_int_equal(vocab_init(&v, NULL, NULL, 0, VOCAB_RAW, &e), ERR_INPUT);

	static const char *const merges[] = {
		"a", "a ", " a", "a b c", "a b", "ab c", "a\xe4\xbd\xa0 b"};
	assert_int_equal(make(&v, NULL, NULL, 0, VOCAB_RAW, &e), 0);
	for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) {
		struct text_span m = {merges[i], strlen(merges[i])};
		struct bpe b;
		assert_int_equal(bpe_init_merges(&b, &v, &m, 1, true, &e), ERR_INPUT);
		assert_null(b.pairs);
	}
	vocab_fini(&v);
	static char longest[50001];
	memset(longest, 'a', sizeof longest - 1);
	assert_int_equal(
		make(&v, (const char *const[]){longest}, (uint8_t[]){TOKEN_NORMAL}, 1, VOCAB_RAW, &e), 0);
	struct bpe b;
	assert_int_equal(bpe_init_ids(&b, &v, true, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "too long"));
	assert_null(b.pairs);
	vocab_fini(&v);
}

/* A piece of 300,000 bytes: the heap's path in linear-logarithmic time. */
static void test_long_piece(void **state)
{
	(void)state;
	struct rng r = {3};
	struct toy *t = NEW(struct toy);
	toy_make(t, &r, 2);
	struct vocab v;
	struct bpe b;
	assert_int_equal(vocab_init(&v, t->spans, NULL, t->n, VOCAB_RAW, NULL), 0);
	assert_int_equal(bpe_init_ids(&b, &v, true, NULL), 0);
	size_t n = 300000;
	char *piece = malloc(n);
	struct bpe_work w = {0};
	for (int kind = 0; kind < 2; kind++) {
		for (size_t i = 0; i < n; i++)
			piece[i] = (char)('a' + (kind ? (int)rng_below(&r, 2) : 0));
		struct token_ids ids = {0};
		assert_int_equal(bpe_encode(&b, &w, piece, n, &ids), 0);
		size_t at = 0;
		for (size_t i = 0; i < ids.n; i++) {
			struct text_span s = vocab_text(&v, ids.data[i]);
			assert_true(at + s.len <= n);
			assert_memory_equal(piece + at, s.data, s.len);
			at += s.len;
			if (i) /* nothing is left to merge */
				assert_true(i == 0 || s.len + vocab_text(&v, ids.data[i - 1]).len > 20 ||
							vocab_find(&v, piece + at - s.len - vocab_text(&v, ids.data[i - 1]).len,
								s.len + vocab_text(&v, ids.data[i - 1]).len) < 0);
		}
		assert_int_equal(at, n);
		token_ids_free(&ids);
	}
	bpe_work_fini(&w);
	free(piece);
	bpe_fini(&b);
	vocab_fini(&v);
	toy_free(t);
	free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_slow),
		cmocka_unit_test(test_lookup),
		cmocka_unit_test(test_longest_added_token_wins),
		cmocka_unit_test(test_bpe_refusals),
		cmocka_unit_test(test_long_piece),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
