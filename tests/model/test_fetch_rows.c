/* SPDX-License-Identifier: MIT */
/*
 * fetch_rows from host memory: every row that is selected arrives, nothing else is written, on the
 * CPU and on a card when one answers. Latents of several rows of a step that select the same
 * positions, sequences that lie apart, rows of odd sizes. store_rows and fetch_rows in 8 bits,
 * against the nearest of all codes.
 */
#include "kernels/backend.h"
#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SEQUENCES 3
#define TOP_K     150

struct fetch_case {
	int rows, positions, width;
	enum dtype type;
};

static struct backend *b;

static void *device_copy(const void *from, size_t bytes)
{
	struct err e = {0};
	void *p;
	if (b->ops->alloc(b, MEM_DEVICE, bytes, &p, &e))
		fail_msg("%s", e.text);
	b->ops->upload(b, p, from, bytes);
	return p;
}

/* Ascending positions of 0 .. pos, so that neighbours have most of them in common. */
static int choose(struct rng *r, int pos, int32_t *sel)
{
	int n = 0;
	for (int t = 0; t <= pos && n < TOP_K; t++)
		if (t == pos || rng_below(r, 3))
			sel[n++] = t;
	return n;
}

static void check_case(const struct fetch_case *c)
{
	struct err e = {0};
	struct rng rng = {(uint64_t)c->rows * 1000 + (uint64_t)c->width};
	const size_t row = (size_t)c->width * (c->type == DTYPE_F16 ? 2 : 4),
				 capacity = (size_t)SEQUENCES * (size_t)c->positions, bytes = capacity * row,
				 lists = (size_t)c->rows * TOP_K * sizeof(int32_t),
				 ints = (size_t)c->rows * sizeof(int32_t);
	int32_t *pos = mem_new(4, ints), *base = pos + c->rows, *n_sel = base + c->rows,
			*sel = mem_new(1, lists);
	uint8_t *from, *want = mem_new(bytes, 1), *got = mem_new(bytes, 1);
	if (b->ops->alloc(b, MEM_HOST, bytes, (void **)&from, &e))
		fail_msg("%s", e.text);
	for (size_t i = 0; i < bytes; i++)
		from[i] = (uint8_t)rng_u64(&rng);
	memset(want, 0x5a, bytes);
	struct batch rows = {.n = c->rows};
	for (int i = 0; i < c->rows; i++) {
		pos[i] = (int32_t)rng_below(&rng, (uint32_t)c->positions);
		base[i] = (int32_t)(SEQUENCES - 1 - i % SEQUENCES) * c->positions;
		n_sel[i] = choose(&rng, pos[i], sel + (size_t)i * TOP_K);
		rows.max_pos = MAX(rows.max_pos, pos[i]);
		for (int k = 0; k < n_sel[i]; k++) {
			size_t at = (size_t)(base[i] + sel[(size_t)i * TOP_K + (size_t)k]) * row;
			memcpy(want + at, from + at, row);
		}
	}
	memset(got, 0x5a, bytes);
	void *to = device_copy(got, bytes);
	struct fetch_rows a = {.from = {from, c->type, c->width},
		.to = {to, c->type, c->width},
		.capacity = (int64_t)capacity,
		.sel = device_copy(sel, lists),
		.n_sel = device_copy(n_sel, ints),
		.sel_stride = TOP_K};
	rows.pos = device_copy(pos, ints);
	rows.base = device_copy(base, ints);
	b->ops->fetch_rows(b, &rows, &a);
	if (b->ops->download(b, got, to, bytes, &e))
		fail_msg("%s", e.text);
	for (size_t i = 0; i < bytes; i++)
		if (got[i] != want[i])
			fail_msg("%d rows of %d values: byte %zu of cache row %zu is %02x, expected %02x",
				c->rows, c->width, i % row, i / row, got[i], want[i]);
	b->ops->free(b, MEM_DEVICE, to, bytes);
	b->ops->free(b, MEM_DEVICE, (void *)a.sel, lists);
	b->ops->free(b, MEM_DEVICE, (void *)a.n_sel, ints);
	b->ops->free(b, MEM_DEVICE, (void *)rows.pos, ints);
	b->ops->free(b, MEM_DEVICE, (void *)rows.base, ints);
	b->ops->free(b, MEM_HOST, from, bytes);
	free(pos);
	free(sel);
	free(want);
	free(got);
}

static void test_cases(void **state)
{
	(void)state;
	static const struct fetch_case cases[] = {
		{1, 700, 576, DTYPE_F16},
		{1, 90, 576, DTYPE_F32},
		{4, 700, 576, DTYPE_F16},
		{9, 333, 35, DTYPE_F16},
		{2, 333, 35, DTYPE_F32},
		{200, 500, 576, DTYPE_F16},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		check_case(&cases[i]);
}

/* What is left of value v of a block with this scale: the nearest code, of two the even one. */
static uint16_t through_8_bits(float v, float scale)
{
	int best = 0;
	if (!(scale > 0))
		return 0;
	const double want = (double)(v / scale);
	for (int code = 0; code < 256; code++) {
		const double off = fabs((double)f8_e4m3_to_f32((uint8_t)code) - want),
					 least = fabs((double)f8_e4m3_to_f32((uint8_t)best) - want);
		if (off < least || (off == least && !(code & 1) && (best & 1)))
			best = code;
	}
	if (want < 0 || (want == 0 && signbit(want))) /* zero has a sign */
		best |= 0x80;
	return f32_to_f16(f8_e4m3_to_f32((uint8_t)best) * scale);
}

/* A step of `rows` rows with n_value values in 8 bits and `rest` of 16, each row selecting itself.
 */
static void check_8_bits(int n_rows, int n_value, int rest)
{
	struct err e = {0};
	struct rng rng = {(uint64_t)n_value};
	const int width = n_value + rest;
	const size_t row = cache_f8_row_bytes(width, n_value), capacity = (size_t)n_rows + 5,
				 halves = capacity * (size_t)width, ints = (size_t)n_rows * sizeof(int32_t);
	uint16_t *from = mem_new(halves, sizeof *from), *got = mem_new(halves, sizeof *got);
	int32_t *pos = mem_new(4, ints), *base = pos + n_rows, *one = base + n_rows;
	for (size_t i = 0; i < halves; i++) {
		float v = (float)(2 * rng_unit(&rng) - 1) * powf(2, (float)(int)rng_below(&rng, 24) - 16);
		if (i / CACHE_F8_BLOCK % 5 == 4) /* a block of zeros now and then */
			v = 0;
		from[i] = f32_to_f16(v);
	}
	for (int r = 0; r < n_rows; r++) {
		pos[r] = r / 2 + r % 2 * (n_rows / 2 + 1); /* two sequences in turns */
		base[r] = r % 2 ? 3 : 0;
		pos[r] -= base[r] > pos[r] ? 0 : base[r];
		one[r] = 1;
	}
	void *packed;
	if (b->ops->alloc(b, MEM_HOST, capacity * row, &packed, &e))
		fail_msg("%s", e.text);
	struct batch rows = {
		.n = n_rows, .pos = device_copy(pos, ints), .base = device_copy(base, ints)};
	for (int r = 0; r < n_rows; r++)
		rows.max_pos = MAX(rows.max_pos, pos[r]);
	struct cache_view in = {device_copy(from, halves * 2), DTYPE_F16, width},
					  out = {device_copy(got, halves * 2), DTYPE_F16, width},
					  middle = {packed, DTYPE_F8_E4M3, width};
	b->ops->store_rows(b, &rows, &in, &middle, n_value);
	struct fetch_rows a = {.from = middle,
		.to = out,
		.n_value = n_value,
		.capacity = (int64_t)capacity,
		.sel = rows.pos,
		.n_sel = device_copy(one, ints),
		.sel_stride = 1};
	b->ops->fetch_rows(b, &rows, &a);
	if (b->ops->download(b, got, out.data, halves * 2, &e))
		fail_msg("%s", e.text);
	for (int r = 0; r < n_rows; r++) {
		const size_t at = (size_t)(base[r] + pos[r]) * (size_t)width;
		for (int i = 0; i < width; i++) {
			float most = 0;
			for (int k = 0; k < CACHE_F8_BLOCK && i < n_value; k++)
				most = fmaxf(most,
					fabsf(
						f16_to_f32(from[at + (size_t)(i / CACHE_F8_BLOCK * CACHE_F8_BLOCK + k)])));
			const uint16_t value = from[at + (size_t)i],
						   want =
							   i < n_value ? through_8_bits(f16_to_f32(value), most / 448) : value;
			if (got[at + (size_t)i] != want)
				fail_msg("row %d, value %d: %04x became %04x, expected %04x", r, i, value,
					got[at + (size_t)i], want);
		}
	}
	b->ops->free(b, MEM_HOST, packed, capacity * row);
	b->ops->free(b, MEM_DEVICE, in.data, halves * 2);
	b->ops->free(b, MEM_DEVICE, out.data, halves * 2);
	b->ops->free(b, MEM_DEVICE, (void *)a.n_sel, ints);
	b->ops->free(b, MEM_DEVICE, (void *)rows.pos, ints);
	b->ops->free(b, MEM_DEVICE, (void *)rows.base, ints);
	free(from);
	free(got);
	free(pos);
}

static void test_8_bits(void **state)
{
	(void)state;
	check_8_bits(1, 512, 64);
	check_8_bits(7, 256, 32);
	check_8_bits(90, 512, 64);
}

/* What an op writes through the link the host reads, and what the host writes the op reads. */
static void test_host_memory(void **state)
{
	(void)state;
	enum { N = 1000003 };
	struct err e = {0};
	uint8_t *host, *back = mem_new(N, 1);
	void *device;
	assert_int_equal(b->ops->alloc(b, MEM_HOST, N, (void **)&host, &e), 0);
	assert_int_equal(b->ops->alloc(b, MEM_DEVICE, N, &device, &e), 0);
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < N; i++)
			back[i] = (uint8_t)(i * 31 + i / 251 + (size_t)round);
		b->ops->upload(b, device, back, N);
		b->ops->copy(b, host, device, N);
		assert_int_equal(b->ops->wait(b, &e), 0);
		assert_memory_equal(host, back, N);
		memset(host, round, N);
		b->ops->copy(b, device, host, N);
		assert_int_equal(b->ops->download(b, back, device, N, &e), 0);
		assert_memory_equal(host, back, N);
	}
	b->ops->free(b, MEM_HOST, host, N);
	b->ops->free(b, MEM_DEVICE, device, N);
	free(back);
}

int main(void)
{
	static const char *const names[] = {"cpu", "cuda"};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cases),
		cmocka_unit_test(test_8_bits),
		cmocka_unit_test(test_host_memory),
	};
	int failed = 0;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct err e = {0};
		struct backend_options options = {.name = names[i], .threads = 2};
		if (backend_open(&options, &b, &e)) {
			printf("%s: skipped: %s\n", names[i], e.text);
			continue;
		}
		failed += cmocka_run_group_tests_name(names[i], tests, NULL, NULL);
		b->ops->close(b);
	}
	return failed;
}
