/* SPDX-License-Identifier: MIT */
/*
 * fetch_rows from host memory: every row that is selected arrives, nothing else is written, on the
 * CPU and on a card when one answers. Latents of several rows of a step that select the same
 * positions, sequences that lie apart, rows of odd sizes.
 */
#include "kernels/backend.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

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
