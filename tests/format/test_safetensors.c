/* SPDX-License-Identifier: MIT */
/* Safetensors: headers accepted and refused, shards by index and without, reading every float
 * format, FP8 block scales with ragged edges against an obvious computation. */
#include "src/format/safetensors.h"

#include "src/base/buf.h"
#include "src/base/half.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void put_file(struct buf *b, const char *json, size_t data_bytes)
{
	uint64_t n = strlen(json);
	buf_append(b, &n, 8);
	buf_puts(b, json);
	for (size_t i = 0; i < data_bytes; i++)
		buf_putc(b, (char)(i * 7 + 1));
}

/* On an exact heap copy, so that the sanitizer sees one byte too many. */
static int parse_bytes(const char *json, size_t data_bytes, struct safetensors **st, struct err *e)
{
	struct buf b = {0};
	put_file(&b, json, data_bytes);
	uint8_t *copy = malloc(b.len);
	memcpy(copy, b.data, b.len);
	*e = (struct err){0};
	int code = safetensors_parse(copy, b.len, b.len, "t.safetensors", st, e);
	free(copy);
	buf_free(&b);
	return code;
}

static void refuse(const char *json, size_t data_bytes, const char *word)
{
	struct safetensors *st;
	struct err e;
	int code = parse_bytes(json, data_bytes, &st, &e);
	if (code != ERR_INPUT || !strstr(e.text, word))
		fail_msg("%s: code %d, text \"%s\", expected \"%s\"", json, code, e.text, word);
	assert_null(st);
}

#define ONE(dtype, shape, span)                                                                    \
	"{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" span "}}"

static void test_good(void **state)
{
	(void)state;
	struct safetensors *st;
	struct err e;
	static const char json[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
		"\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
		"\"z\":{\"dtype\":\"F8_E4M3\",\"shape\":[0,5],\"data_offsets\":[16,16]},"
		"\"c\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[16,24]}}   ";
	assert_int_equal(parse_bytes(json, 24, &st, &e), 0);
	assert_int_equal(st->n_tensors, 4);
	assert_true(st->tensor_bytes == 24);
	assert_string_equal(st->tensors[0].name, "a");
	const struct safetensors_tensor *b = safetensors_find(st, "b");
	assert_true(b && b->dtype == ST_BF16 && b->n_dims == 2 && b->shape[0] == 2 &&
				b->shape[1] == 3 && b->bytes == 12);
	assert_true(b->offset == 8 + strlen(json) + 4);
	assert_true(safetensors_rows(b) == 2 && safetensors_cols(b) == 3);
	assert_true(safetensors_rows(safetensors_find(st, "a")) == 1 &&
				safetensors_cols(safetensors_find(st, "a")) == 1);
	char text[SAFETENSORS_SHAPE_MAX];
	assert_string_equal(safetensors_shape_text(b, text), "[2, 3]");
	assert_null(safetensors_find(st, "__metadata__"));
	assert_null(safetensors_find(st, ""));
	safetensors_close(st);
	assert_int_equal(parse_bytes("{}", 0, &st, &e), 0);
	assert_int_equal(st->n_tensors, 0);
	safetensors_close(st);
	safetensors_close(NULL);
}

static void test_safetensors_refused(void **state)
{
	(void)state;
	refuse("", 0, "does not begin with '{'");
	refuse(" {}", 0, "does not begin with '{'");
	refuse("[]", 0, "does not begin with '{'");
	refuse("{\"w\":", 0, "not valid JSON");
	refuse("{} x", 0, "not valid JSON");
	refuse("{\"w\":1}", 0, "w: an object of dtype, shape and data_offsets");
	refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "w: an object of dtype");
	refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":0}}", 4,
		"w: an object of dtype");
	refuse(ONE("F33", "[1]", "[0,4]"), 4, "w: dtype F33 is not supported");
	refuse(ONE("F32", "[-1]", "[0,4]"), 4, "w: shape[0] is not a count");
	refuse(ONE("F32", "[1.0]", "[0,4]"), 4, "w: shape[0] is not a count");
	refuse(ONE("F32", "[\"1\"]", "[0,4]"), 4, "w: shape[0] is not a count");
	refuse(ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions, at most 8");
	refuse(ONE("F32", "[4294967296,4294967296]", "[0,0]"), 0, "product of its shape is too large");
	refuse(ONE("F32", "[9223372036854775807]", "[0,4]"), 4, "product of its shape is too large");
	refuse(ONE("F32", "[99999999999999999999]", "[0,4]"), 4, "not valid JSON");
	refuse(ONE("F32", "[1]", "[0]"), 4, "data_offsets is not");
	refuse(ONE("F32", "[1]", "[4,0]"), 4, "data_offsets is not");
	refuse(ONE("F32", "[1]", "[-4,0]"), 4, "data_offsets is not");
	refuse(ONE("F32", "[2]", "[0,4]"), 4, "data_offsets span 4 bytes, but [2] of F32 takes 8");
	refuse(ONE("F32", "[1]", "[0,4]"), 3, "the file is incomplete");
	refuse(ONE("F32", "[1]", "[0,4]"), 5, "describes only");
	refuse(ONE("F32", "[1]", "[4,8]"), 8, "4 bytes before tensor w belong to no tensor");
	refuse(
		ONE("F32", "[1]", "[9223372036854775803,9223372036854775807]"), 8, "belong to no tensor");
	refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		   "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
		6, "tensors a and b overlap");
	refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		   "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
		4, "duplicate");
	refuse("{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor's name");
	refuse(
		"{\"a\\n\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor's name");
	refuse("{\"__metadata__\":{\"x\":1}}", 0, "__metadata__ is not an object of strings");

	struct buf deep = {0};
	buf_puts(&deep, "{\"w\":");
	for (int i = 0; i < 100000; i++)
		buf_putc(&deep, '[');
	refuse(deep.data, 0, "not valid JSON");
	buf_free(&deep);

	struct safetensors *st;
	struct err e = {0};
	uint8_t head[16] = {0};
	assert_int_equal(safetensors_parse(head, 7, 7, "t", &st, &e), ERR_INPUT);
	assert_int_equal(safetensors_parse(head, 8, 8, "t", &st, &e), ERR_INPUT); /* N = 0 */
	store_u64(head, 100000001);
	assert_int_equal(safetensors_parse(head, 16, 1ull << 40, "t", &st, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "at most 100000000"));
	store_u64(head, 9);
	assert_int_equal(safetensors_parse(head, 16, 16, "t", &st, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "but the file has only 16"));
	assert_int_equal(safetensors_parse(head, 16, 17, "t", &st, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "beyond the bytes at hand"));
}

/* ---- files ---- */

static void save(const char *name, const void *p, size_t n)
{
	FILE *f = fopen(temp_dir_path(name), "wb");
	assert_non_null(f);
	if (n)
		assert_int_equal(fwrite(p, 1, n, f), n);
	fclose(f);
}

static void save_shard(const char *name, const char *json, size_t data_bytes)
{
	struct buf b = {0};
	put_file(&b, json, data_bytes);
	save(name, b.data, b.len);
	buf_free(&b);
}

static void open_refused(const char *name, const char *word)
{
	struct safetensors *st;
	struct err e = {0};
	int code = safetensors_open(temp_dir_path(name), &st, &e);
	if (code != ERR_INPUT || !strstr(e.text, word) || !strstr(e.text, temp_dir()))
		fail_msg("code %d, text \"%s\", expected \"%s\"", code, e.text, word);
	assert_null(st);
}

#define U8(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"

static void write_index(const char *weight_map)
{
	char text[600];
	snprintf(
		text, sizeof text, "{\"metadata\":{\"total_size\":8},\"weight_map\":{%s}}", weight_map);
	save("d/model.safetensors.index.json", text, strlen(text));
}

static void test_directory(void **state)
{
	(void)state;
	struct safetensors *st;
	struct err e = {0};
	mkdir(temp_dir_path("d"), 0777);
	open_refused("absent", "No such file");
	open_refused("d", "holds no *.safetensors file");
	save_shard("d/b.safetensors", U8("two"), 4);
	save_shard("d/a.safetensors", U8("one"), 4);
	save("d/.c.safetensors", "x", 1);
	assert_int_equal(safetensors_open(temp_dir_path("d"), &st, &e), 0);
	assert_true(st->n_files == 2 && st->n_tensors == 2 && safetensors_find(st, "two")->file == 1);
	uint8_t raw[4];
	assert_int_equal(safetensors_read(st, safetensors_find(st, "two"), 1, raw, 3, &e), 0);
	assert_true(raw[0] == 8 && raw[1] == 15 && raw[2] == 22);
	safetensors_close(st);
	save_shard("d/b.safetensors", U8("one"), 4);
	open_refused("d", "tensor one is also in");
	assert_int_equal(safetensors_open(temp_dir_path("d/a.safetensors"), &st, &e), 0);
	safetensors_close(st);

	/* an index decides which copy counts and which files belong */
	write_index("\"one\":\"b.safetensors\"");
	assert_int_equal(safetensors_open(temp_dir_path("d"), &st, &e), 0);
	assert_true(st->n_files == 1 && st->n_tensors == 1 && st->tensor_bytes == 4);
	safetensors_close(st);
	write_index(
		"\"one\":\"b.safetensors\",\"two\":\"x1.safetensors\",\"three\":\"x2.safetensors\"");
	open_refused("d", "2 of the 3 files in model.safetensors.index.json are missing: "
					  "x1.safetensors, x2.safetensors");
	write_index("\"one\":\"b.safetensors\",\"two\":\"a.safetensors\"");
	open_refused("d", "tensor two is not in a.safetensors");
	write_index("\"one\":\"../b.safetensors\"");
	open_refused("d", "not the name of a file beside the index");
	write_index("\"one\":7");
	open_refused("d", "not a string");
	write_index("");
	open_refused("d", "has no weight_map");
	write_index("\"one\":");
	open_refused("d", "not valid JSON");
	unlink(temp_dir_path("d/model.safetensors.index.json"));
	save_shard("d/model.safetensors", U8("single"), 4);
	assert_int_equal(safetensors_open(temp_dir_path("d"), &st, &e), 0);
	assert_true(st->n_tensors == 1 && safetensors_find(st, "single"));
	safetensors_close(st);
	save("d/model.safetensors", "1234567", 7);
	open_refused("d", "too few for a safetensors file");
	save_shard("d/model.safetensors", U8("single"), 3);
	open_refused("d", "the file is incomplete");
	unlink(temp_dir_path("d/model.safetensors"));
	mkdir(temp_dir_path("d/model.safetensors"), 0777);
	open_refused("d", "is not a regular file");
}

static void test_float_formats(void **state)
{
	(void)state;
	struct safetensors *st;
	struct err e = {0};
	struct buf b = {0};
	char json[600];
	enum { N = 70000 }; /* more than one chunk of every width */
	snprintf(json, sizeof json,
		"{\"f32\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
		"\"f16\":{\"dtype\":\"F16\",\"shape\":[%d,2],\"data_offsets\":[%d,%d]},"
		"\"bf16\":{\"dtype\":\"BF16\",\"shape\":[%d,2],\"data_offsets\":[%d,%d]},"
		"\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[%d],\"data_offsets\":[%d,%d]},"
		"\"i8\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[%d,%d]}}",
		N, 4 * N, N / 2, 4 * N, 6 * N, N / 2, 6 * N, 8 * N, N, 8 * N, 9 * N, 9 * N, 9 * N + 1);
	put_file(&b, json, 9 * N + 1);
	save("f.safetensors", b.data, b.len);
	const uint8_t *data = (const uint8_t *)b.data + 8 + strlen(json);
	assert_int_equal(safetensors_open(temp_dir_path("f.safetensors"), &st, &e), 0);
	float *out = malloc((size_t)N * 4);
	assert_int_equal(safetensors_read_f32(st, safetensors_find(st, "f32"), NULL, 0, 1, out, &e), 0);
	assert_memory_equal(out, data, (size_t)N * 4);
	assert_int_equal(
		safetensors_read_f32(st, safetensors_find(st, "f16"), NULL, 10, N / 2, out, &e), 0);
	for (int i = 0; i < N - 20; i++)
		assert_true(
			f32_bits(out[i]) == f32_bits(f16_to_f32(load_u16(data + 4 * N + 2 * (i + 20)))));
	assert_int_equal(
		safetensors_read_f32(st, safetensors_find(st, "bf16"), NULL, 0, N / 2, out, &e), 0);
	for (int i = 0; i < N; i++)
		assert_true(f32_bits(out[i]) == f32_bits(bf16_to_f32(load_u16(data + 6 * N + 2 * i))));
	assert_int_equal(safetensors_read_f32(st, safetensors_find(st, "f8"), NULL, 0, 1, out, &e), 0);
	for (int i = 0; i < N; i++)
		assert_true(f32_bits(out[i]) == f32_bits(f8_e4m3_to_f32(data[8 * N + i])));
	assert_int_equal(
		safetensors_read_f32(st, safetensors_find(st, "i8"), NULL, 0, 1, out, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "i8: dtype I8 cannot be read as float"));
	/* a file that shrinks while it is open */
	assert_int_equal(truncate(temp_dir_path("f.safetensors"), (off_t)(8 + strlen(json) + 100)), 0);
	assert_int_equal(
		safetensors_read_f32(st, safetensors_find(st, "f32"), NULL, 0, 1, out, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "it has become shorter"));
	free(out);
	safetensors_close(st);
	buf_free(&b);
}

/* Every tensor of several sizes, at offsets that are no multiple of the unit, with O_DIRECT and
 * without; and a file that has become shorter. */
static void check_direct(bool direct)
{
	enum { N = 70001 };
	struct safetensors *st;
	struct err e = {0};
	struct buf b = {0};
	char json[200];
	const void *data;
	uint8_t *raw = malloc(N);
	snprintf(json, sizeof json,
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[5000],\"data_offsets\":[0,5000]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[5000,%d]}}",
		N - 5000, N);
	put_file(&b, json, N);
	save("direct.safetensors", b.data, b.len);
	assert_int_equal(safetensors_open(temp_dir_path("direct.safetensors"), &st, &e), 0);
	if (direct && safetensors_open_direct(st) != 1)
		print_message("no O_DIRECT here: read through the page cache\n");
	void *buffer = aligned_alloc(SAFETENSORS_DIRECT_UNIT, N / 4096 * 4096 + 4096 + 8192);
	for (size_t i = 0; i < st->n_tensors; i++)
		for (uint64_t at = 0; at < st->tensors[i].bytes; at += 3011) {
			const struct safetensors_tensor *t = &st->tensors[i];
			const size_t n = (size_t)(t->bytes - at);
			assert_int_equal(safetensors_read(st, t, at, raw, n, &e), 0);
			assert_int_equal(safetensors_read_direct(st, t, at, buffer, n, &data, &e), 0);
			assert_memory_equal(raw, data, n);
		}
	const struct safetensors_tensor *last = safetensors_find(st, "b");
	assert_int_equal(truncate(temp_dir_path("direct.safetensors"), 40000), 0);
	assert_int_equal(
		safetensors_read_direct(st, last, 0, buffer, (size_t)last->bytes, &data, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "it has become shorter"));
	free(buffer);
	free(raw);
	safetensors_close(st);
	buf_free(&b);
}

static void test_direct(void **state)
{
	(void)state;
	check_direct(false);
	check_direct(true);
}

/* FP8 with block scales: [E, rows, cols], edges ragged on both sides, every row range. */
static void check_fp8(int n_mats, int rows, int cols, const char *scale_dtype)
{
	struct safetensors *st;
	struct err e = {0};
	struct rng r = {(uint64_t)rows * 1000 + (uint64_t)cols};
	int sr = (rows + 127) / 128, sc = (cols + 127) / 128, each = strcmp(scale_dtype, "F32") ? 2 : 4;
	int n = n_mats * rows * cols, ns = n_mats * sr * sc;
	char json[600];
	char stack[32] = ""; /* the leading dimension of a stack of matrices */
	if (n_mats > 1)
		snprintf(stack, sizeof stack, "%d,", n_mats);
	snprintf(json, sizeof json,
		"{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[%s%d,%d],\"data_offsets\":[0,%d]},"
		"\"s\":{\"dtype\":\"%s\",\"shape\":[%s%d,%d],\"data_offsets\":[%d,%d]}}",
		stack, rows, cols, n, scale_dtype, stack, sr, sc, n, n + ns * each);
	struct buf b = {0};
	put_file(&b, json, 0);
	uint8_t *w = malloc((size_t)n);
	float *s = malloc((size_t)ns * 4), *out = malloc((size_t)n * 4);
	for (int i = 0; i < n; i++) {
		w[i] = (uint8_t)rng_below(&r, 256);
		w[i] = (w[i] & 0x7f) == 0x7f ? 0x7e : w[i];
	}
	buf_append(&b, w, (size_t)n);
	for (int i = 0; i < ns; i++) {
		s[i] = (float)rng_unit(&r) * 0.01f;
		uint16_t half = f32_to_bf16(s[i]);
		if (each == 2)
			s[i] = bf16_to_f32(half);
		buf_append(&b, each == 2 ? (void *)&half : (void *)&s[i], (size_t)each);
	}
	save("q.safetensors", b.data, b.len);
	assert_int_equal(safetensors_open(temp_dir_path("q.safetensors"), &st, &e), 0);
	const struct safetensors_tensor *tw = safetensors_find(st, "w"),
									*ts = safetensors_find(st, "s");
	int total = n_mats * rows;
	for (int k = 0; k < 30; k++) {
		int r0 = k ? (int)rng_below(&r, (uint32_t)total) : 0,
			r1 = k ? r0 + (int)rng_below(&r, (uint32_t)(total - r0) + 1) : total;
		if (safetensors_read_f32(st, tw, ts, (uint64_t)r0, (uint64_t)r1, out, &e))
			fail_msg("%s", e.text);
		for (int row = r0; row < r1; row++)
			for (int c = 0; c < cols; c++) {
				int m = row / rows, in = row % rows;
				float want =
					f8_e4m3_to_f32(w[row * cols + c]) * s[(m * sr + in / 128) * sc + c / 128];
				if (f32_bits(want) != f32_bits(out[(row - r0) * cols + c]))
					fail_msg("%dx%dx%d: row %d column %d", n_mats, rows, cols, row, c);
			}
	}
	assert_int_equal(safetensors_check_scale(st, ts, tw, &e), ERR_INPUT);
	safetensors_close(st);
	buf_free(&b);
	free(w);
	free(s);
	free(out);
}

static void test_fp8_scales(void **state)
{
	(void)state;
	check_fp8(1, 128, 128, "F32");
	check_fp8(1, 1, 1, "F32");
	check_fp8(1, 576, 300, "F32");
	check_fp8(1, 129, 127, "BF16");
	check_fp8(3, 200, 130, "F32");
	check_fp8(2, 3, 66000, "F32"); /* more columns than scales held at once */
}

static void test_scale_shape(void **state)
{
	(void)state;
	struct safetensors *st;
	struct err e;
	assert_int_equal(
		parse_bytes("{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[129,2],\"data_offsets\":[0,258]},"
					"\"bad\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[258,262]},"
					"\"int\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[262,270]},"
					"\"good\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[270,278]},"
					"\"v\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[278,282]}}",
			282, &st, &e),
		0);
	const struct safetensors_tensor *w = safetensors_find(st, "w");
	assert_int_equal(safetensors_check_scale(st, w, safetensors_find(st, "good"), &e), 0);
	assert_int_equal(safetensors_check_scale(st, w, safetensors_find(st, "bad"), &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "bad: its shape is [1, 1], but [2, 1] is expected"));
	assert_int_equal(safetensors_check_scale(st, w, safetensors_find(st, "int"), &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "int: its dtype is I32"));
	assert_int_equal(safetensors_check_scale(st, safetensors_find(st, "v"), w, &e), ERR_INPUT);
	safetensors_close(st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_safetensors_refused),
		cmocka_unit_test(test_directory),
		cmocka_unit_test(test_float_formats),
		cmocka_unit_test(test_direct),
		cmocka_unit_test(test_fp8_scales),
		cmocka_unit_test(test_scale_shape),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
