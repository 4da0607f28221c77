/* SPDX-License-Identifier: MIT */
/*
 * dtype.h and dequant.h: golden blocks bit for bit (tests/data/quant/quant_golden.jsonl: random
 * blocks decoded by ggml's reference functions), rows of several blocks at odd addresses, bounds of
 * the destination, row sizes, names, codebooks.
 */
#include "src/quant/dequant.h"

#include "src/base/half.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/blocks.h"
#include "src/quant/iq_grids.h"
#include "src/quant/k_scales.h"

#include <jansson.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define GOLDEN "tests/data/quant/quant_golden.jsonl"

static unsigned hex_digit(char c)
{
	return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static size_t hex_bytes(const char *hex, uint8_t *out, size_t max)
{
	size_t n = strlen(hex) / 2;
	assert_true(strlen(hex) % 2 == 0 && n <= max);
	for (size_t i = 0; i < n; i++)
		out[i] = (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
	return n;
}

struct golden {
	enum dtype type;
	size_t n, bytes;
	uint8_t block[256];
	uint32_t want[256]; /* bits of the floats */
};

/* Reads the next line; false at the end of the file. */
static bool golden_next(FILE *f, struct golden *g)
{
	static char line[8192];
	if (!fgets(line, sizeof line, f))
		return false;
	const char *type, *block_hex, *f32_hex;
	int id, weights, bytes;
	json_t *o = json_loads(line, 0, NULL);
	assert_non_null(o);
	assert_int_equal(
		json_unpack(o, "{s:s, s:i, s:i, s:i, s:s, s:s}", "type", &type, "ggml_id", &id, "weights",
			&weights, "bytes", &bytes, "block_hex", &block_hex, "f32_hex", &f32_hex),
		0);
	assert_true(dtype_from_name(type, &g->type));
	assert_int_equal(g->type, id);
	g->n = (size_t)weights;
	g->bytes = hex_bytes(block_hex, g->block, sizeof g->block);
	assert_int_equal(g->bytes, bytes);
	uint8_t raw[1024];
	assert_int_equal(hex_bytes(f32_hex, raw, sizeof raw), 4 * g->n);
	for (size_t i = 0; i < g->n; i++)
		g->want[i] = (uint32_t)raw[4 * i] << 24 | (uint32_t)raw[4 * i + 1] << 16 |
					 (uint32_t)raw[4 * i + 2] << 8 | raw[4 * i + 3];
	json_decref(o);
	return true;
}

static void test_golden(void **state)
{
	(void)state;
	FILE *f = fopen(GOLDEN, "r");
	assert_non_null(f);
	struct golden g;
	int seen[DTYPE_LIMIT] = {0};
	while (golden_next(f, &g)) {
		uint64_t bytes;
		assert_true(dtype_row_bytes(g.type, g.n, &bytes) && bytes == g.bytes);
		float got[256];
		dequant_row(g.type, g.block, got, g.n);
		for (size_t i = 0; i < g.n; i++)
			if (f32_bits(got[i]) != g.want[i])
				fail_msg("%s block %d weight %zu: %.9g, expected %.9g", dtype_name(g.type),
					seen[g.type], i, (double)got[i], (double)f32_from_bits(g.want[i]));
		seen[g.type]++;
	}
	fclose(f);
	for (uint32_t t = 0; t < DTYPE_GGUF_LIMIT; t++) /* a golden block for every type but F32 */
		assert_true(!dtype_info(t) || t == DTYPE_F32 ? seen[t] == 0 : seen[t] >= 3);
}

/* A row made of all golden blocks of a type, at every address modulo 4, inside guard values. */
static void test_rows(void **state)
{
	(void)state;
	for (uint32_t t = 0; t < DTYPE_LIMIT; t++) {
		if (!dtype_info(t))
			continue;
		FILE *f = fopen(GOLDEN, "r");
		assert_non_null(f);
		struct golden g;
		static uint8_t row[4096];
		static uint32_t want[4096];
		size_t n = 0, bytes = 0;
		while (golden_next(f, &g)) {
			if (g.type != t)
				continue;
			memcpy(row + bytes, g.block, g.bytes);
			memcpy(want + n, g.want, 4 * g.n);
			n += g.n;
			bytes += g.bytes;
		}
		fclose(f);
		if (t == DTYPE_F32) /* no golden blocks: any bits are themselves */
			for (; n < 40; n++, bytes += 4) {
				want[n] = 0x3f800000u + (uint32_t)n * 12345;
				store_u32(row + bytes, want[n]);
			}
		for (size_t offset = 0; offset < 4; offset++) {
			uint8_t *src =
				malloc(bytes + offset); /* exact size: a sanitizer sees any read past the row */
			float *dst = malloc((n + 2) * sizeof *dst);
			memcpy(src + offset, row, bytes);
			dst[0] = dst[n + 1] = 12345.0f;
			dequant_row((enum dtype)t, src + offset, dst + 1, n);
			assert_memory_equal(dst + 1, want, 4 * n);
			assert_true(dst[0] == 12345.0f && dst[n + 1] == 12345.0f);
			dequant_row((enum dtype)t, src + offset, dst + n + 1, 0);
			assert_true(dst[n + 1] == 12345.0f);
			free(src);
			free(dst);
		}
	}
}

/* Every bit pattern is accepted: random bytes, NaN and infinite scales included (a sanitizer checks
 * the table indices). */
static void test_any_bits(void **state)
{
	(void)state;
	struct rng r = {7};
	for (uint32_t t = 0; t < DTYPE_LIMIT; t++)
		for (int round = 0; dtype_info(t) && round < 500; round++) {
			uint8_t block[256];
			float dst[256];
			for (size_t i = 0; i < sizeof block; i += 8)
				store_u64(block + i, round ? rng_u64(&r) : ~(uint64_t)0);
			dequant_row((enum dtype)t, block, dst, dtype_info(t)->block_values);
		}
}

static void test_types(void **state)
{
	(void)state;
	assert_null(dtype_gguf_info(DTYPE_F8_E4M3)); /* the only one that no GGUF has */
	for (uint32_t id = 0; id < DTYPE_F8_E4M3; id++)
		assert_ptr_equal(dtype_gguf_info(id), dtype_info(id));
	static const struct {
		const char *name;
		uint32_t id, values, bytes;
	} want[] = {
		{"F32", 0, 1, 4},
		{"F16", 1, 1, 2},
		{"Q4_0", 2, 32, 18},
		{"Q4_1", 3, 32, 20},
		{"Q5_0", 6, 32, 22},
		{"Q5_1", 7, 32, 24},
		{"Q8_0", 8, 32, 34},
		{"Q2_K", 10, 256, 84},
		{"Q3_K", 11, 256, 110},
		{"Q4_K", 12, 256, 144},
		{"Q5_K", 13, 256, 176},
		{"Q6_K", 14, 256, 210},
		{"IQ2_XXS", 16, 256, 66},
		{"IQ2_XS", 17, 256, 74},
		{"IQ3_XXS", 18, 256, 98},
		{"IQ1_S", 19, 256, 50},
		{"IQ4_NL", 20, 32, 18},
		{"IQ3_S", 21, 256, 110},
		{"IQ2_S", 22, 256, 82},
		{"IQ4_XS", 23, 256, 136},
		{"IQ1_M", 29, 256, 56},
		{"BF16", 30, 1, 2},
		{"TQ1_0", 34, 256, 54},
		{"TQ2_0", 35, 256, 66},
		{"MXFP4", 39, 32, 17},
		{"NVFP4", 40, 64, 36},
		{"Q1_0", 41, 128, 18},
		{"Q2_0", 42, 64, 18},
	};
	size_t known = 0;
	for (uint32_t id = 0; id < 64; id++)
		known += dtype_info(id) != NULL;
	assert_int_equal(known, ARRAY_LEN(want));
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		const struct dtype_info *info = dtype_info(want[i].id);
		assert_non_null(info);
		assert_string_equal(info->name, want[i].name);
		assert_string_equal(dtype_name(want[i].id), want[i].name);
		assert_int_equal(info->block_values, want[i].values);
		assert_int_equal(info->block_bytes, want[i].bytes);
		enum dtype type;
		assert_true(dtype_from_name(want[i].name, &type) && type == want[i].id);
		uint64_t bytes;
		assert_true(dtype_row_bytes(type, 6144, &bytes));
		assert_int_equal(bytes, 6144 / want[i].values * want[i].bytes);
		assert_true(dtype_row_bytes(type, 0, &bytes) && bytes == 0);
		if (want[i].values > 1)
			assert_false(dtype_row_bytes(type, want[i].values + 1, &bytes));
		if (want[i].bytes > want[i].values)
			assert_false(dtype_row_bytes(type, UINT64_MAX - want[i].values + 1, &bytes));
	}
	enum dtype type;
	assert_true(dtype_from_name("q4_k", &type) && type == DTYPE_Q4_K);
	assert_false(dtype_from_name("Q4", &type) || dtype_from_name("", &type) ||
				 dtype_from_name("Q4_KX", &type));
	assert_null(dtype_info(DTYPE_LIMIT));
	assert_null(dtype_info(UINT32_MAX));
	assert_string_equal(dtype_name(4), "type 4");
	assert_string_equal(dtype_name(UINT32_MAX), "type 4294967295");
	uint64_t bytes;
	assert_false(
		dtype_row_bytes((enum dtype)4, 32, &bytes) || dtype_row_bytes((enum dtype)99, 32, &bytes));
}

/* The facts that encoders and kernels rely on. */
static void test_codebooks(void **state)
{
	(void)state;
	const struct {
		const uint64_t *rows;
		int n;
	} two_bit[] = {{iq2xxs_grid, 256}, {iq2xs_grid, 512}, {iq2s_grid, 1024}};
	for (size_t t = 0; t < ARRAY_LEN(two_bit); t++)
		for (int i = 0; i < two_bit[t].n; i++)
			for (int j = 0; j < 8; j++) {
				uint64_t v = two_bit[t].rows[i] >> 8 * j & 255;
				assert_true(v == 8 || v == 25 || v == 43);
			}
	for (int i = 0; i < 2048; i++)
		for (int j = 0; j < 8; j++)
			assert_true((iq1s_grid[i] >> 2 * j & 3) < 3);
	for (unsigned i = 0; i < 128; i++) {
		assert_int_equal(iq_signs[i], i | (unsigned)__builtin_parity(i) << 7);
		for (int j = 0; j < 8; j++)
			assert_int_equal(iq_sign_masks[i] >> 8 * j & 255, iq_signs[i] >> j & 1 ? 255 : 0);
	}
}

static void test_packed_scales(void **state)
{
	(void)state;
	struct rng r = {11};
	for (int round = 0; round < 1000; round++) {
		uint8_t scale[8], min[8], sc[12];
		int8_t wide[16];
		for (int i = 0; i < 8; i++) {
			scale[i] = (uint8_t)rng_below(&r, 64);
			min[i] = (uint8_t)rng_below(&r, 64);
		}
		k_pack6(sc, scale, min);
		for (int i = 0; i < 8; i++)
			assert_true(k_scale6(sc, i) == scale[i] && k_min6(sc, i) == min[i]);
		for (int i = 0; i < 16; i++)
			wide[i] = (int8_t)((int)rng_below(&r, 64) - 32);
		k_pack6_signed(sc, wide);
		for (int i = 0; i < 16; i++)
			assert_int_equal(k_scale6_signed(sc, i), wide[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_any_bits),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_codebooks),
		cmocka_unit_test(test_packed_scales),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
