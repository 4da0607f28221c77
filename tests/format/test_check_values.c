/* SPDX-License-Identifier: MIT */
/* Check values: of which bytes, through the writer and back, resumed, and in a file beside a model
 * that they are or are not of. */
#include "src/format/check_values.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/xxh3/xxh3.h"
#include "src/format/gguf_write.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_EXPERTS 3

static void expect_ok(int code, const struct err *e)
{
	if (code)
		fail_msg("code %d: %s", code, e->text);
}

/* ---- the function ---- */

uint64_t xxh3_of_any(const void *p, size_t n); /* not public: without AVX2 */

static void test_xxh3(void **state)
{
	(void)state;
	static uint8_t bytes[10000];
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 7 + (i >> 8));
	/* by another implementation: the Python package xxhash 4.1.0 */
	assert_true(xxh3_of("", 0) == 0x2d06800538d394c2u);
	assert_true(xxh3_of("glmstream", 9) == 0x85719bdb9361b136u);
	assert_true(xxh3_of(bytes, sizeof bytes) == 0x449be64314e0ce06u);
	struct xxh3 *h = xxh3_new();
	for (size_t n = 0; n < sizeof bytes; n += 1 + n / 3) {
		assert_true(xxh3_of(bytes, n) == xxh3_of_any(bytes, n));
		for (size_t step = 1; step < 3000; step = step * 3 + 1) {
			xxh3_begin(h);
			for (size_t at = 0; at < n; at += step)
				xxh3_add(h, bytes + at, MIN(step, n - at));
			assert_true(xxh3_value(h) == xxh3_of(bytes, n));
		}
	}
	xxh3_free(h);
}

/* ---- models ---- */

static const struct {
	const char *name;
	uint32_t n_dims;
	uint64_t ne[4];
} shapes[] = {
	{"token_embd.weight", 2, {8, 5}},
	{"blk.1.ffn_gate_exps.weight", 3, {16, 4, N_EXPERTS}},
	{"blk.1.ffn_up_exps.weight", 3, {16, 4, N_EXPERTS}},
	{"blk.1.ffn_down_exps.weight", 3, {4, 16, N_EXPERTS}},
	{"blk.1.attn_k_b.weight", 3, {4, 2, 2}}, /* no experts: one range */
	{"output_norm.weight", 1, {7}},
};
#define N_RANGES (3 + 3 * N_EXPERTS)

static uint8_t content(size_t i, uint64_t k, uint8_t seed)
{
	return (uint8_t)(i * 37 + k * 11 + (k >> 8) + seed);
}

static struct gguf_writer *new_writer(uint64_t split_bytes, size_t share)
{
	struct err e = {0};
	struct gguf_writer *w =
		gguf_writer_new(&(struct gguf_write_options){.alignment = 64, .split_bytes = split_bytes});
	gguf_writer_add_check_values(w);
	gguf_writer_set_u32(w, "k.u32", 7);
	if (share)
		gguf_writer_set_u32(w, GGUF_SHARED_DATA_KEY, 1);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		expect_ok(gguf_writer_add_tensor(
					  w, shapes[i].name, DTYPE_F32, shapes[i].n_dims, shapes[i].ne, NULL, &e),
			&e);
		if (share && i == share)
			gguf_writer_share_tensor(w, i, i - 1);
	}
	expect_ok(gguf_writer_plan(w, &e), &e);
	return w;
}

static void write_and_seal(struct gguf_writer *w, size_t i, uint8_t seed)
{
	struct err e = {0};
	uint64_t bytes;
	gguf_writer_place(w, i, NULL, NULL, &bytes);
	uint8_t *data = NEW_ARRAY(uint8_t, bytes);
	for (uint64_t k = 0; k < bytes; k++)
		data[k] = content(i, k, seed);
	expect_ok(gguf_writer_write(w, i, 0, data, bytes, &e), &e);
	expect_ok(gguf_writer_seal(w, i, &e), &e);
	free(data);
}

/* A model of these shapes under this name; share: a tensor that stands where the one before does,
 * or 0. */
static void write_model(const char *name, uint64_t split_bytes, size_t share, uint8_t seed)
{
	struct err e = {0};
	struct gguf_writer *w = new_writer(split_bytes, share);
	expect_ok(gguf_writer_create(w, temp_dir_path(name), false, &e), &e);
	for (size_t i = ARRAY_LEN(shapes); i-- > 0;)
		if (!share || i != share)
			write_and_seal(w, i, seed);
	if (share)
		expect_ok(gguf_writer_seal(w, share, &e), &e);
	expect_ok(gguf_writer_commit(w, &e), &e);
	gguf_writer_free(w);
}

static struct gguf *open_model(const char *name)
{
	struct err e = {0};
	struct gguf *g;
	expect_ok(gguf_open(temp_dir_path(name), &g, &e), &e);
	return g;
}

/* Every value is that of the bytes of its range. */
static void check_against_bytes(const struct gguf *g, const struct check_values *v)
{
	assert_non_null(v);
	assert_int_equal(check_map_n(&v->map), N_RANGES);
	for (uint64_t i = 0; i < N_RANGES; i++) {
		const struct check_range r = check_map_range(&v->map, i);
		assert_true(v->values[i] == xxh3_of(r.run.data, r.run.bytes));
		assert_true(check_value(v, r.tensor, r.expert) == v->values[i]);
	}
	const struct gguf_tensor *up = gguf_find_tensor(g, "blk.1.ffn_up_exps.weight");
	char text[CHECK_RANGE_TEXT], expected[CHECK_RANGE_TEXT];
	snprintf(expected, sizeof expected,
		"blk.1.ffn_up_exps.weight, expert 2 (256 bytes at offset %llu)",
		(unsigned long long)up->offset + 512);
	assert_string_equal(check_range_text(&v->map, 1 + N_EXPERTS + 2, text), expected);
}

static void test_key(void **state)
{
	(void)state;
	static const struct {
		const char *name, *open;
		uint64_t split;
		size_t share;
	} cases[] = {{"a.gguf", "a.gguf", 0, 0}, {"s.gguf", "s-00001-of-00005.gguf", 900, 0},
		{"shared.gguf", "shared.gguf", 0, 2}};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct err e = {0};
		struct check_values *v;
		write_model(cases[i].name, cases[i].split, cases[i].share, 0);
		struct gguf *g = open_model(cases[i].open);
		expect_ok(check_values_open(g, &v, &e), &e);
		check_against_bytes(g, v);
		assert_false(v->beside);
		check_values_free(v);
		gguf_close(g);
	}
}

/* A run that was killed after some tensors: their values are kept, and the file comes out the same.
 */
static void test_resumed(void **state)
{
	(void)state;
	struct err e = {0};
	write_model("whole.gguf", 0, 0, 0);
	struct gguf_writer *w = new_writer(0, 0);
	expect_ok(gguf_writer_create(w, temp_dir_path("r.gguf"), false, &e), &e);
	for (size_t i = 0; i < 3; i++)
		write_and_seal(w, i, 0);
	gguf_writer_free(w);
	w = new_writer(0, 0);
	expect_ok(gguf_writer_create(w, temp_dir_path("r.gguf"), true, &e), &e);
	for (size_t i = 3; i < ARRAY_LEN(shapes); i++)
		write_and_seal(w, i, 0);
	expect_ok(gguf_writer_commit(w, &e), &e);
	gguf_writer_free(w);
	struct gguf *a = open_model("whole.gguf"), *b = open_model("r.gguf");
	assert_int_equal(a->files[0].size, b->files[0].size);
	assert_memory_equal(a->files[0].map.data, b->files[0].map.data, a->files[0].size);
	gguf_close(a);
	gguf_close(b);
}

/* ---- keys that are wrong ---- */

static uint8_t *find_bytes(uint8_t *d, size_t n, const char *text)
{
	uint8_t *at = memmem(d, n, text, strlen(text));
	assert_non_null(at);
	return at;
}

static void test_wrong_keys(void **state)
{
	(void)state;
	struct err e = {0};
	struct check_values *v;
	write_model("k.gguf", 0, 0, 0);
	struct gguf *whole = open_model("k.gguf"), *g;
	const size_t n = whole->files[0].size;
	uint8_t *copy = NEW_ARRAY(uint8_t, n);
	log_set_level(LOG_QUIET);
	/* a program has renamed a tensor and kept the values */
	memcpy(copy, whole->files[0].map.data, n);
	*find_bytes(copy, n, "output_norm") = 'O';
	expect_ok(gguf_parse(copy, n, "renamed", &g, &e), &e);
	expect_ok(check_values_open(g, &v, &e), &e);
	assert_null(v);
	gguf_close(g);
	/* another type of key */
	memcpy(copy, whole->files[0].map.data, n);
	uint8_t *at = find_bytes(copy, n, CHECK_VALUES_KEY) + strlen(CHECK_VALUES_KEY);
	store_u32(at + 4, GGUF_I64);
	expect_ok(gguf_parse(copy, n, "typed", &g, &e), &e);
	assert_int_equal(check_values_open(g, &v, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "typed: key " CHECK_VALUES_KEY));
	assert_null(v);
	gguf_close(g);
	log_set_level(LOG_INFO);
	free(copy);
	gguf_close(whole);
}

/* A key of the right table with too few values. */
static void test_short_key(void **state)
{
	(void)state;
	struct err e = {0};
	struct check_values *v;
	struct gguf_writer *w = gguf_writer_new(NULL);
	const uint64_t ne[4] = {7, 1, 1, 1};
	expect_ok(gguf_writer_add_tensor(w, "a", DTYPE_F32, 1, ne, NULL, &e), &e);
	expect_ok(gguf_writer_add_tensor(w, "b", DTYPE_F32, 1, ne, NULL, &e), &e);
	gguf_writer_add_check_values(w);
	expect_ok(gguf_writer_plan(w, &e), &e);
	size_t n;
	const uint8_t *header = gguf_writer_header(w, 0, &n);
	/* the last of the two values becomes the beginning of the tensor table */
	const size_t whole = gguf_writer_part(w, 0).file_bytes;
	uint8_t *d = NEW_ARRAY(uint8_t, whole);
	memcpy(d, header, n);
	uint8_t *count = find_bytes(d, n, CHECK_VALUES_KEY) + strlen(CHECK_VALUES_KEY) + 8;
	assert_int_equal(load_u64(count), 3);
	store_u64(count, 2);
	uint8_t *last = count + 8 + 16;
	memmove(last, last + 8, (size_t)(d + n - last - 8));
	struct gguf *g;
	expect_ok(gguf_parse(d, whole, "short", &g, &e), &e);
	assert_int_equal(check_values_open(g, &v, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "has 1 check values, 2 expected"));
	gguf_close(g);
	free(d);
	gguf_writer_free(w);
}

/* ---- the file beside a model ---- */

static uint8_t *read_all(const char *path, size_t *n)
{
	uint8_t *d = NEW_ARRAY(uint8_t, 1 << 16);
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	*n = fread(d, 1, 1 << 16, f);
	fclose(f);
	return d;
}

static void test_beside(void **state)
{
	(void)state;
	struct err e = {0};
	struct check_values *v, *again;
	write_model("m.gguf", 0, 0, 0);
	struct gguf *g = open_model("m.gguf");
	expect_ok(check_values_open(g, &v, &e), &e);
	char *path = check_values_path(g);
	assert_string_equal(path, temp_dir_path("m.gguf.xxh3"));
	v->values[2] ^= 1; /* to tell it from the key */
	expect_ok(check_values_write(&v->map, v->values, path, false, &e), &e);
	expect_ok(check_values_open(g, &again, &e), &e);
	assert_true(again->beside);
	assert_memory_equal(again->values, v->values, N_RANGES * 8);
	check_values_free(again);
	/* one of its kind is replaced, another file is not */
	expect_ok(check_values_write(&v->map, v->values, path, false, &e), &e);
	size_t n;
	uint8_t *d = read_all(path, &n);
	FILE *f = fopen(path, "wb");
	fputs("a text", f);
	fclose(f);
	assert_int_equal(check_values_write(&v->map, v->values, path, false, &e), ERR_INPUT);
	assert_int_equal(check_values_open(g, &again, &e), ERR_INPUT);
	assert_null(again);
	expect_ok(check_values_write(&v->map, v->values, path, true, &e), &e);
	unlink(path);
	/* every byte counts, and so does the length */
	for (size_t i = 0; i < n; i++) {
		d[i] ^= 4;
		assert_int_equal(check_values_parse(g, d, n, "x", &again, &e), ERR_INPUT);
		assert_true(e.text[0] && !again);
		d[i] ^= 4;
		assert_int_equal(check_values_parse(g, d, i, "x", &again, &e), ERR_INPUT);
	}
	d = mem_grow(d, n + 1, 1);
	assert_int_equal(check_values_parse(g, d, n + 1, "x", &again, &e), ERR_INPUT);
	expect_ok(check_values_parse(g, d, n, "x", &again, &e), &e);
	check_values_free(again);
	/* a model of the same table and size with another header: its own values differ */
	write_model("other.gguf", 0, 0, 1);
	struct gguf *other = open_model("other.gguf");
	assert_int_equal(other->files[0].size, g->files[0].size);
	assert_int_equal(check_values_parse(other, d, n, "x", &again, &e), ERR_INPUT);
	assert_string_equal(e.text, "x: its check values are of another model");
	gguf_close(other);
	free(d);
	free(path);
	check_values_free(v);
	gguf_close(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_xxh3),
		cmocka_unit_test(test_key),
		cmocka_unit_test(test_resumed),
		cmocka_unit_test(test_wrong_keys),
		cmocka_unit_test(test_short_key),
		cmocka_unit_test(test_beside),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
