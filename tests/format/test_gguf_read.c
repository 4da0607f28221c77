/* SPDX-License-Identifier: MIT */
/* The GGUF reader on hand-made bytes: good files, files cut at every byte, lying counts, split
 * sets. Every refusal must name what it found, so most cases check for a word of the sentence. */
#include "src/format/gguf.h"

#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/base/mem.h"
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

/* ---- making files ---- */

static void put_u16(struct buf *b, uint16_t v)
{
	buf_append(b, &v, sizeof v);
}

static void gguf_read_put_u32(struct buf *b, uint32_t v)
{
	buf_append(b, &v, sizeof v);
}

static void put_u64(struct buf *b, uint64_t v)
{
	buf_append(b, &v, sizeof v);
}

static void put_str(struct buf *b, const char *s)
{
	put_u64(b, strlen(s));
	buf_puts(b, s);
}

static void put_header(struct buf *b, uint64_t n_tensors, uint64_t n_kvs)
{
	buf_puts(b, "GGUF");
	gguf_read_put_u32(b, 3);
	put_u64(b, n_tensors);
	put_u64(b, n_kvs);
}

static void put_key(struct buf *b, const char *key, uint32_t type)
{
	put_str(b, key);
	gguf_read_put_u32(b, type);
}

static void put_kv_u32(struct buf *b, const char *key, uint32_t v)
{
	put_key(b, key, GGUF_U32);
	gguf_read_put_u32(b, v);
}

static void put_tensor(struct buf *b, const char *name, uint32_t type, uint64_t offset,
	uint32_t n_dims, const uint64_t *ne)
{
	put_str(b, name);
	gguf_read_put_u32(b, n_dims);
	for (uint32_t d = 0; d < n_dims; d++)
		put_u64(b, ne[d]);
	gguf_read_put_u32(b, type);
	put_u64(b, offset);
}

static void pad_to(struct buf *b, uint64_t align)
{
	while (b->len % align)
		buf_putc(b, 0);
}

static void put_zeros(struct buf *b, size_t n)
{
	while (n--)
		buf_putc(b, 0);
}

/* The parser must not read one byte too many, so every case runs on a heap copy of the exact size.
 */
static int gguf_read_parse(const struct buf *b, struct gguf **g, struct err *e)
{
	static uint8_t *copy; /* lives until the next call: the result points into it */
	free(copy);
	copy = malloc(b->len ? b->len : 1);
	memcpy(copy, b->data, b->len);
	*e = (struct err){0};
	return gguf_parse(copy, b->len, "t.gguf", g, e);
}

static void refuse(struct buf *b, const char *word)
{
	struct gguf *g;
	struct err e;
	int code = gguf_read_parse(b, &g, &e);
	if (code != ERR_INPUT || !strstr(e.text, word) || strncmp(e.text, "t.gguf: ", 8))
		fail_msg("code %d, text \"%s\", expected \"%s\"", code, e.text, word);
	assert_null(g);
	buf_free(b);
}

/* The call fails and its sentence contains the text. */
#define EXPECT_ERR(call, want)                                                                     \
	do {                                                                                           \
		e = (struct err){0};                                                                       \
		assert_int_equal(call, ERR_INPUT);                                                         \
		if (!strstr(e.text, want))                                                                 \
			fail_msg("\"%s\" instead of \"%s\"", e.text, want);                                    \
	} while (0)

/* Every value type once, two tensors. */
static void put_good(struct buf *b)
{
	put_header(b, 2, 21);
	put_key(b, "a.u8", GGUF_U8), buf_putc(b, (char)200);
	put_key(b, "a.i8", GGUF_I8), buf_putc(b, (char)-3);
	put_key(b, "a.u16", GGUF_U16), put_u16(b, 60000);
	put_key(b, "a.i16", GGUF_I16), put_u16(b, (uint16_t)-2);
	put_kv_u32(b, "a.u32", 4000000000u);
	put_key(b, "a.i32", GGUF_I32), gguf_read_put_u32(b, (uint32_t)-7);
	put_key(b, "a.i32p", GGUF_I32), gguf_read_put_u32(b, 7);
	put_key(b, "a.f32", GGUF_F32), gguf_read_put_u32(b, 0x3fc00000);
	put_key(b, "a.f64", GGUF_F64), put_u64(b, 0x4004000000000000);
	put_key(b, "a.f64big", GGUF_F64), put_u64(b, 0x7fe0000000000000);
	put_key(b, "a.bool", GGUF_BOOL), buf_putc(b, 1);
	put_key(b, "a.str", GGUF_STRING), put_str(b, "hello");
	put_key(b, "a.empty", GGUF_STRING), put_str(b, "");
	put_key(b, "a.u64", GGUF_U64), put_u64(b, UINT64_MAX);
	put_key(b, "a.i64", GGUF_I64), put_u64(b, 5);
	put_key(b, "a.strs", GGUF_ARRAY), gguf_read_put_u32(b, GGUF_STRING), put_u64(b, 3),
		put_str(b, "x"), put_str(b, ""), put_str(b, "yz");
	put_key(b, "a.bools", GGUF_ARRAY), gguf_read_put_u32(b, GGUF_BOOL), put_u64(b, 2),
		buf_putc(b, 1), buf_putc(b, 0);
	put_key(b, "a.ints", GGUF_ARRAY), gguf_read_put_u32(b, GGUF_I32), put_u64(b, 2),
		gguf_read_put_u32(b, 9), gguf_read_put_u32(b, (uint32_t)-9);
	put_key(b, "a.floats", GGUF_ARRAY), gguf_read_put_u32(b, GGUF_F32), put_u64(b, 1),
		gguf_read_put_u32(b, 0x40000000);
	put_key(b, "a.none", GGUF_ARRAY), gguf_read_put_u32(b, GGUF_U32), put_u64(b, 0);
	put_kv_u32(b, "general.alignment", 64);
	put_tensor(b, "w.q8", DTYPE_Q8_0, 64, 3, (uint64_t[]){64, 2, 3});
	put_tensor(b, "b.f32", DTYPE_F32, 0, 1, (uint64_t[]){5});
	pad_to(b, 64);
	put_zeros(b, 64 + 68 * 6 - 1);
	buf_putc(b, 42);
}

/* ---- tests ---- */

static void test_good(void **state)
{
	(void)state;
	struct buf b = {0};
	struct gguf *g;
	struct err e;
	put_good(&b);
	assert_int_equal(gguf_read_parse(&b, &g, &e), 0);
	assert_int_equal(g->n_kvs, 21);
	assert_int_equal(g->n_tensors, 2);
	assert_int_equal(g->n_files, 1);
	assert_string_equal(g->files[0].path, "t.gguf");
	assert_int_equal(g->files[0].alignment, 64);
	assert_string_equal(g->kvs[0].key, "a.u8"); /* file order */

	uint32_t u;
	uint64_t u64;
	float f;
	bool t = false;
	struct gguf_str s;
	struct gguf_array a;
	assert_int_equal(gguf_get_u32(g, "a.u8", &u, &e), 0), assert_int_equal(u, 200);
	assert_int_equal(gguf_get_u32(g, "a.u16", &u, &e), 0), assert_int_equal(u, 60000);
	assert_int_equal(gguf_get_u32(g, "a.u32", &u, &e), 0), assert_int_equal(u, 4000000000u);
	assert_int_equal(gguf_get_u32(g, "a.i32p", &u, &e), 0), assert_int_equal(u, 7);
	assert_int_equal(gguf_get_u32(g, "a.i64", &u, &e), 0), assert_int_equal(u, 5);
	assert_int_equal(gguf_get_u64(g, "a.u64", &u64, &e), 0), assert_true(u64 == UINT64_MAX);
	assert_int_equal(gguf_get_f32(g, "a.f32", &f, &e), 0), assert_true(f == 1.5f);
	assert_int_equal(gguf_get_f32(g, "a.f64", &f, &e), 0), assert_true(f == 2.5f);
	assert_int_equal(gguf_get_bool(g, "a.bool", &t, &e), 0), assert_true(t);
	assert_int_equal(gguf_get_str(g, "a.str", &s, &e), 0),
		assert_true(s.len == 5 && !memcmp(s.ptr, "hello", 5));
	assert_int_equal(gguf_get_str(g, "a.empty", &s, &e), 0), assert_true(s.len == 0);
	assert_int_equal(gguf_get_strs(g, "a.strs", &a, &e), 0);
	assert_true(
		a.n == 3 && a.strings[1].len == 0 && a.strings[2].len == 2 && a.strings[2].ptr[1] == 'z');
	assert_int_equal(gguf_get_ints(g, "a.bools", &a, &e), 0);
	assert_true(a.n == 2 && gguf_array_i64(&a, 0) == 1 && gguf_array_i64(&a, 1) == 0);
	assert_int_equal(gguf_get_ints(g, "a.ints", &a, &e), 0),
		assert_true(gguf_array_i64(&a, 1) == -9);
	assert_true(gguf_array_f64(&gguf_find(g, "a.floats")->value, 0) == 2.0);
	assert_int_equal(gguf_get_ints(g, "a.none", &a, &e), 0), assert_true(a.n == 0);
	assert_int_equal(gguf_get_u32_or(g, "absent", 17, &u, &e), 0), assert_int_equal(u, 17);
	assert_int_equal(gguf_get_u32_or(g, "a.u8", 17, &u, &e), 0), assert_int_equal(u, 200);
	assert_int_equal(gguf_get_f32_or(g, "absent", 0.5f, &f, &e), 0), assert_true(f == 0.5f);
	assert_int_equal(gguf_get_bool_or(g, "absent", true, &t, &e), 0), assert_true(t);

	EXPECT_ERR(gguf_get_u32(g, "absent", &u, &e), "t.gguf: key absent is missing");
	EXPECT_ERR(
		gguf_get_u32(g, "a.i32", &u, &e), "t.gguf: key a.i32 is -7, 0 to 4294967295 expected");
	EXPECT_ERR(gguf_get_u32(g, "a.u64", &u, &e),
		"t.gguf: key a.u64 is 18446744073709551615, at most 4294967295 expected");
	EXPECT_ERR(gguf_get_u32(g, "a.str", &u, &e),
		"t.gguf: key a.str has type string, a whole number expected");
	EXPECT_ERR(gguf_get_u32_or(g, "a.f32", 1, &u, &e),
		"t.gguf: key a.f32 has type f32, a whole number expected");
	EXPECT_ERR(gguf_get_f32(g, "a.u8", &f, &e), "t.gguf: key a.u8 has type u8, a float expected");
	EXPECT_ERR(gguf_get_f32(g, "a.f64big", &f, &e), "a finite float expected");
	EXPECT_ERR(gguf_get_bool(g, "a.u8", &t, &e), "t.gguf: key a.u8 has type u8, a bool expected");
	EXPECT_ERR(gguf_get_str(g, "a.strs", &s, &e),
		"t.gguf: key a.strs is an array of string, a string expected");
	EXPECT_ERR(gguf_get_strs(g, "a.ints", &a, &e),
		"t.gguf: key a.ints is an array of i32, an array of strings expected");
	EXPECT_ERR(gguf_get_ints(g, "a.u8", &a, &e),
		"t.gguf: key a.u8 has type u8, an array of whole numbers or bools expected");

	const struct gguf_tensor *w = gguf_find_tensor(g, "w.q8");
	assert_ptr_equal(w, &g->tensors[0]);
	assert_int_equal(w->type, DTYPE_Q8_0);
	assert_true(
		w->n_dims == 3 && w->ne[0] == 64 && w->ne[1] == 2 && w->ne[2] == 3 && w->ne[3] == 1);
	assert_true(w->bytes == 68 * 6 && w->file == 0 && w->offset == g->files[0].data_offset + 64);
	assert_int_equal(w->data[w->bytes - 1], 42);
	char shape[GGUF_SHAPE_MAX];
	assert_string_equal(gguf_shape_text(w, shape), "{64, 2, 3}");
	assert_true(g->tensor_bytes == 68 * 6 + 20);
	assert_null(gguf_find_tensor(g, "w.q"));
	assert_null(gguf_need_tensor(g, "w.q", &e));
	assert_string_equal(e.text, "t.gguf: tensor w.q is missing");
	g->folder = "dir"; /* of a checkpoint: its first file has nothing to do with keys */
	EXPECT_ERR(gguf_get_u32(g, "absent", &u, &e), "dir: key absent is missing");
	EXPECT_ERR(gguf_get_str(g, "a.strs", &s, &e), "dir: key a.strs is an array of string");
	EXPECT_ERR(gguf_get_u32(g, "a.f32", &u, &e), "dir: key a.f32 has type f32");
	assert_null(gguf_need_tensor(g, "w.q", &e));
	assert_string_equal(e.text, "dir: tensor w.q is missing");
	g->folder = NULL;
	gguf_close(g);
	buf_free(&b);
}

/* Whatever is cut off, the file is refused (the last byte belongs to a tensor). */
static void test_truncated_at_every_byte(void **state)
{
	(void)state;
	struct buf b = {0};
	struct gguf *g;
	struct err e;
	put_good(&b);
	size_t full = b.len;
	for (size_t n = 0; n < full; n++) {
		b.len = n;
		if (gguf_read_parse(&b, &g, &e) != ERR_INPUT || !e.text[0])
			fail_msg("%zu of %zu bytes were accepted", n, full);
	}
	buf_free(&b);
}

/* One byte changed anywhere: accepted or refused, never a crash (run under the sanitizers). */
static void test_flipped_bytes(void **state)
{
	(void)state;
	struct buf b = {0};
	struct gguf *g;
	struct err e;
	struct rng r = {12};
	put_good(&b);
	size_t header = b.len - 6 * 68 - 64;
	for (size_t i = 0; i < header; i++) {
		char keep = b.data[i];
		for (int k = 0; k < 6; k++) {
			b.data[i] = (char)rng_u64(&r);
			if (!gguf_read_parse(&b, &g, &e))
				gguf_close(g);
		}
		b.data[i] = keep;
	}
	buf_free(&b);
}

static void test_header(void **state)
{
	(void)state;
	struct buf b = {0};
	buf_puts(&b, "GGML"), gguf_read_put_u32(&b, 3), put_u64(&b, 0), put_u64(&b, 0);
	refuse(&b, "is not a GGUF file");
	buf_puts(&b, "GGUF"), gguf_read_put_u32(&b, 2), put_u64(&b, 0), put_u64(&b, 0);
	refuse(&b, "version 2 found, 3 expected");
	buf_puts(&b, "GGUF"), gguf_read_put_u32(&b, 0x03000000), put_u64(&b, 0), put_u64(&b, 0);
	refuse(&b, "big-endian");
	put_header(&b, 1, 0);
	refuse(&b, "1 tensors announced");
	put_header(&b, UINT64_MAX, 0);
	refuse(&b, "18446744073709551615 tensors announced");
	put_header(&b, 0, UINT64_MAX / 16);
	refuse(&b, "keys announced");
}

static void test_keys(void **state)
{
	(void)state;
	struct buf b = {0};
	put_header(&b, 0, 1), put_u64(&b, 0), put_zeros(&b, 20);
	refuse(&b, "has 0 bytes");
	put_header(&b, 0, 1), put_u64(&b, 256), put_zeros(&b, 300);
	refuse(&b, "has 256 bytes, 1 to 255 expected");
	put_header(&b, 0, 1), put_u64(&b, UINT64_MAX), put_zeros(&b, 300);
	refuse(&b, "file ends inside key");
	put_header(&b, 0, 1), put_u64(&b, 3), buf_append(&b, "a\0b", 3), put_zeros(&b, 20);
	refuse(&b, "control byte 0x00");
	put_header(&b, 0, 1),
		put_key(&b,
			"a\xc2\x9b"
			"31m",
			GGUF_U32),
		put_zeros(&b, 20);
	refuse(&b, "(\"a?31m\") contains a control character");
	put_header(&b, 0, 1),
		put_key(&b,
			"a\xe2\x80\xae"
			"b",
			GGUF_U32),
		put_zeros(&b, 20);
	refuse(&b, "(\"a?b\") contains a control character");
	put_header(&b, 0, 1), put_key(&b, "a\xff", GGUF_U32), put_zeros(&b, 20);
	refuse(&b, "or is not UTF-8");
	put_header(&b, 0, 1), put_key(&b, "k", 13), put_zeros(&b, 20);
	refuse(&b, "key k: unknown value type 13");
	put_header(&b, 0, 1), put_key(&b, "k", GGUF_BOOL), buf_putc(&b, 2);
	refuse(&b, "key k: 2 found where a bool");
	put_header(&b, 0, 2), put_kv_u32(&b, "k", 1), put_kv_u32(&b, "k", 1);
	refuse(&b, "key k occurs twice");
	put_header(&b, 0, 1), put_key(&b, "k", GGUF_ARRAY), gguf_read_put_u32(&b, GGUF_ARRAY),
		put_u64(&b, 1), put_zeros(&b, 30);
	refuse(&b, "key k: an array of arrays");
	put_header(&b, 0, 1), put_key(&b, "k", GGUF_ARRAY), gguf_read_put_u32(&b, 77), put_u64(&b, 1),
		put_zeros(&b, 30);
	refuse(&b, "key k: unknown value type 77");
	put_header(&b, 0, 1), put_key(&b, "k", GGUF_ARRAY), gguf_read_put_u32(&b, GGUF_STRING),
		put_u64(&b, UINT64_MAX / 8), put_zeros(&b, 30);
	refuse(&b, "strings announced");
	put_header(&b, 0, 1), put_key(&b, "k", GGUF_ARRAY), gguf_read_put_u32(&b, GGUF_F64),
		put_u64(&b, UINT64_MAX / 8 + 1), put_zeros(&b, 30);
	refuse(&b, "elements of type f64 announced");
	put_header(&b, 0, 1), put_key(&b, "k", GGUF_STRING), put_u64(&b, UINT64_MAX - 3),
		put_zeros(&b, 30);
	refuse(&b, "file ends inside the value of key k");
	for (size_t i = 0; i < 4; i++) {
		static const uint32_t bad[] = {0, 24, 33, 0x80000000u};
		put_header(&b, 0, 1), put_kv_u32(&b, "general.alignment", bad[i]);
		refuse(&b, "a power of two");
	}
	put_header(&b, 0, 1), put_key(&b, "general.alignment", GGUF_STRING), put_str(&b, "32");
	refuse(&b, "has type string, a whole number expected");
}

static void one_tensor(
	struct buf *b, uint32_t type, uint64_t offset, uint32_t n_dims, const uint64_t *ne)
{
	put_header(b, 1, 0);
	put_tensor(b, "w", type, offset, n_dims, ne);
	pad_to(b, 32);
	put_zeros(b, 4096);
}

static void test_tensors(void **state)
{
	(void)state;
	struct buf b = {0};
	const uint64_t k256[] = {256, 1, 1, 1, 1};
	one_tensor(&b, DTYPE_F32, 0, 0, k256);
	refuse(&b, "tensor w: 0 dimensions found");
	one_tensor(&b, DTYPE_F32, 0, 5, k256);
	refuse(&b, "tensor w: 5 dimensions found");
	one_tensor(&b, DTYPE_F32, 0, 2, (uint64_t[]){256, 0});
	refuse(&b, "tensor w: dimension 1 is 0");
	one_tensor(&b, DTYPE_F32, 0, 2, (uint64_t[]){1ull << 32, 1ull << 32});
	refuse(&b, "tensor w: the product of its dimensions is too large");
	one_tensor(&b, DTYPE_F32, 0, 4, (uint64_t[]){1, UINT64_MAX, 3, 5});
	refuse(&b, "product of its dimensions");
	one_tensor(&b, DTYPE_F32, 0, 1, (uint64_t[]){1ull << 62});
	refuse(&b, "tensor w: its size in bytes is too large");
	one_tensor(&b, 31, 0, 1, k256);
	refuse(&b, "tensor w: type 31 is not supported");
	one_tensor(&b, 4, 0, 1, k256);
	refuse(&b, "tensor w: type 4 is not supported");
	one_tensor(&b, UINT32_MAX, 0, 1, k256);
	refuse(&b, "type 4294967295 is not supported");
	one_tensor(&b, DTYPE_Q4_K, 0, 2, (uint64_t[]){192, 4});
	refuse(&b, "rows of 192 values, but type Q4_K is stored in blocks of 256");
	one_tensor(&b, DTYPE_F32, 16, 1, k256);
	refuse(&b, "offset 16 is not a multiple of the alignment 32");
	one_tensor(&b, DTYPE_F32, 3104, 1, k256);
	refuse(&b, "reach beyond the end of the file");
	one_tensor(&b, DTYPE_F32, UINT64_MAX - 31, 1, k256);
	refuse(&b, "reach beyond the end of the file");
	one_tensor(&b, DTYPE_F32, 0, 2, (uint64_t[]){256, 5});
	refuse(&b, "reach beyond the end of the file");

	put_header(&b, 2, 0), put_tensor(&b, "v", DTYPE_F32, 32, 1, (uint64_t[]){9});
	put_tensor(&b, "w", DTYPE_F32, 64, 1, k256), pad_to(&b, 32), put_zeros(&b, 4096);
	refuse(&b, "tensors v and w overlap");
	put_header(&b, 2, 0), put_tensor(&b, "w", DTYPE_F32, 2048, 1, k256);
	put_tensor(&b, "v", DTYPE_F32, 2048, 1, k256), pad_to(&b, 32), put_zeros(&b, 4096);
	refuse(&b, "overlap");
	put_header(&b, 2, 0), put_tensor(&b, "w", DTYPE_F32, 1024, 1, k256);
	put_tensor(&b, "w", DTYPE_F32, 2048, 1, k256), pad_to(&b, 32), put_zeros(&b, 4096);
	refuse(&b, "tensor w occurs twice");
}

/* A file whose general.alignment is 4096 and whose data, `first` bytes and then 256 floats, lie at
 * multiples of 32 and end `more` bytes behind the last tensor. */
static void put_padded_to_default(struct buf *b, uint64_t first, uint64_t more)
{
	buf_clear(b);
	put_header(b, 2, 1), put_kv_u32(b, "general.alignment", 4096);
	put_tensor(b, "v", DTYPE_F32, 0, 1, (uint64_t[]){first / 4});
	put_tensor(b, "w", DTYPE_F32, (first + 31) / 32 * 32, 1, (uint64_t[]){256});
	pad_to(b, 32);
	buf_puts(b, "abcd");
	put_zeros(b, (first + 31) / 32 * 32 + 1024 - 4 + more);
}

/* What llama-quantize makes of a file of ours. */
static void test_padded_to_default(void **state)
{
	(void)state;
	struct buf b = {0};
	struct gguf *g;
	struct err e;
	log_set_level(LOG_QUIET);
	/* the second offset is no multiple of 4096; it is, and the size tells */
	for (uint64_t first = 1028; first <= 4096; first += 3068) {
		put_padded_to_default(&b, first, 0);
		assert_int_equal(gguf_read_parse(&b, &g, &e), 0);
		assert_int_equal(g->files[0].alignment, 32);
		const struct gguf_tensor *v = gguf_find_tensor(g, "v"), *w = gguf_find_tensor(g, "w");
		assert_memory_equal(v->data, "abcd", 4);
		assert_int_equal(w->offset - v->offset, (first + 31) / 32 * 32);
		assert_int_equal(w->offset + w->bytes, b.len);
		gguf_close(g);
	}
	put_padded_to_default(&b, 1028, 0);
	b.len -= 1;
	refuse(&b, "reach beyond the end of the file");
	put_padded_to_default(&b, 1028, 8192);
	refuse(&b, "offset 1056 is not a multiple of the alignment 4096");
	put_padded_to_default(&b, 4096, 32);
	refuse(&b, "reach beyond the end of the file");
	log_set_level(LOG_INFO);
}

/* A table of a real file's size: parsed in one go, every name found. */
static void test_many(void **state)
{
	(void)state;
	enum { N = 2000, WORDS = 160000 };
	struct buf b = {0};
	struct gguf *g;
	struct err e;
	put_header(&b, N, 1);
	put_key(&b, "tokenizer.ggml.tokens", GGUF_ARRAY), gguf_read_put_u32(&b, GGUF_STRING),
		put_u64(&b, WORDS);
	char word[32];
	for (int i = 0; i < WORDS; i++)
		sprintf(word, "w%d", i), put_str(&b, word);
	for (int i = 0; i < N; i++)
		sprintf(word, "blk.%d.x", i * 7919 % N),
			put_tensor(&b, word, DTYPE_F32, (uint64_t)i * 32, 1, (uint64_t[]){8});
	pad_to(&b, 32), put_zeros(&b, N * 32);
	assert_int_equal(gguf_read_parse(&b, &g, &e), 0);
	for (int i = 0; i < N; i++) {
		sprintf(word, "blk.%d.x", i * 7919 % N);
		assert_ptr_equal(gguf_find_tensor(g, word), &g->tensors[i]);
	}
	struct gguf_array a;
	assert_int_equal(gguf_get_strs(g, "tokenizer.ggml.tokens", &a, &e), 0);
	assert_true(a.n == WORDS && a.strings[WORDS - 1].len == 7 &&
				!memcmp(a.strings[WORDS - 1].ptr, "w159999", 7));
	gguf_close(g);
	buf_free(&b);
}

/* ---- files and split sets ---- */

static void save(const char *name, struct buf *b)
{
	FILE *f = fopen(temp_dir_path(name), "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(buf_str(b), 1, b->len, f), b->len);
	fclose(f);
	buf_free(b);
}

static void save_part(const char *file, int no, int count, int total, const char *tensor)
{
	struct buf b = {0};
	put_header(&b, tensor ? 1 : 0, total >= 0 ? 4 : 3);
	put_key(&b, "split.no", GGUF_U16), put_u16(&b, (uint16_t)no);
	put_key(&b, "split.count", GGUF_U16), put_u16(&b, (uint16_t)count);
	if (total >= 0)
		put_key(&b, "split.tensors.count", GGUF_I32), gguf_read_put_u32(&b, (uint32_t)total);
	put_kv_u32(&b, "only.here", (uint32_t)no);
	if (tensor)
		put_tensor(&b, tensor, DTYPE_F32, 0, 1, (uint64_t[]){8});
	pad_to(&b, 32);
	put_zeros(&b, 31), buf_putc(&b, (char)(100 + no));
	save(file, &b);
}

static void open_refused(const char *name, const char *word)
{
	struct err e = {0};
	struct gguf *g;
	int code = gguf_open(temp_dir_path(name), &g, &e);
	if (code != ERR_INPUT || !strstr(e.text, word) || !strstr(e.text, temp_dir()))
		fail_msg("code %d, text \"%s\", expected \"%s\"", code, e.text, word);
	assert_null(g);
}

static void test_split(void **state)
{
	(void)state;
	struct err e = {0};
	struct gguf *g;
	save_part("m-00001-of-00003.gguf", 0, 3, 2, NULL);
	save_part("m-00002-of-00003.gguf", 1, 3, 2, "one");
	save_part("m-00003-of-00003.gguf", 2, 3, 2, "two");
	assert_int_equal(gguf_open(temp_dir_path("m-00001-of-00003.gguf"), &g, &e), 0);
	assert_int_equal(g->n_files, 3);
	assert_int_equal(g->n_tensors, 2);
	const struct gguf_tensor *two = gguf_find_tensor(g, "two");
	assert_true(two && two->file == 2 && two->data[31] == 102);
	assert_string_equal(g->files[2].path, temp_dir_path("m-00003-of-00003.gguf"));
	assert_true(two->offset == g->files[2].data_offset);
	uint32_t v = 9;
	assert_int_equal(gguf_get_u32(g, "only.here", &v, &e), 0);
	assert_int_equal(v, 0);
	gguf_close(g);

	open_refused("m-00002-of-00003.gguf", "is part 2 of 3");
	save_part("m-00003-of-00003.gguf", 2, 3, 2, "one");
	open_refused("m-00001-of-00003.gguf", "tensor one occurs also in");
	save_part("m-00003-of-00003.gguf", 1, 3, 2, "two");
	open_refused("m-00001-of-00003.gguf", "its keys say part 2 of 3, part 3 of 3 is expected");
	save_part("m-00003-of-00003.gguf", 2, 4, 2, "two");
	open_refused("m-00001-of-00003.gguf", "its keys say part 3 of 4");
	save_part("m-00003-of-00003.gguf", 2, 3, 5, "two");
	open_refused("m-00001-of-00003.gguf", "do not belong together");
	save_part("m-00003-of-00003.gguf", 2, 3, 2, NULL);
	open_refused("m-00001-of-00003.gguf", "split.tensors.count is 2, but the parts hold 1");
	unlink(temp_dir_path("m-00003-of-00003.gguf"));
	open_refused("m-00001-of-00003.gguf", "1 of its 3 parts is missing: m-00003-of-00003.gguf");
	unlink(temp_dir_path("m-00002-of-00003.gguf"));
	open_refused("m-00001-of-00003.gguf",
		"2 of its 3 parts are missing: m-00002-of-00003.gguf, m-00003-of-00003.gguf");
	save_part("wrong.gguf", 0, 3, 2, NULL);
	open_refused("wrong.gguf", "its name must end in -00001-of-00003.gguf");
	save_part("n-00001-of-00004.gguf", 0, 3, 2, NULL);
	open_refused("n-00001-of-00004.gguf", "its name must end in -00001-of-00003.gguf");
	save_part("p-00001-of-60000.gguf", 0, 60000, 2, NULL);
	open_refused("p-00001-of-60000.gguf", "59999 of its 60000 parts are missing");

	/* one part of one, and no total */
	save_part("single.gguf", 0, 1, -1, "one");
	assert_int_equal(gguf_open(temp_dir_path("single.gguf"), &g, &e), 0);
	gguf_close(g);
}

static void test_open(void **state)
{
	(void)state;
	struct buf b = {0};
	open_refused("absent.gguf", "No such file");
	open_refused("", "is a directory");
	save("empty.gguf", &b);
	open_refused("empty.gguf", "the file is empty");
	assert_int_equal(mkfifo(temp_dir_path("pipe"), 0600), 0);
	open_refused("pipe", "is not a regular file");
	struct gguf *g;
	struct err e = {0};
	assert_int_equal(gguf_open(temp_dir_path(""), &g, &e), ERR_INPUT);
	assert_non_null(strstr(e.hint, "glmstream convert"));
	put_good(&b);
	save("good.gguf", &b);
	assert_int_equal(gguf_open(temp_dir_path("good.gguf"), &g, &e), 0);
	assert_int_equal(gguf_find_tensor(g, "w.q8")->data[68 * 6 - 1], 42);
	gguf_close(g);
	gguf_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_truncated_at_every_byte),
		cmocka_unit_test(test_flipped_bytes),
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_padded_to_default),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_open),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
