/* SPDX-License-Identifier: MIT */
/*
 * The CUDA backend against the CPU backend, op by op, and against the formulas; and the promise
 * that a row's bits do not depend on the batch. Exits with 77 where no device answers.
 *
 *   test_backend_parity           every case of op_cases.c and the large ones below
 *   test_backend_parity small     without the large ones (for memory checkers)
 *   test_backend_parity brief     and deferred kernels in fewer steps (for racecheck, where a
 *                                 launch of experts takes 2 s)
 *   test_backend_parity [small|brief] PATTERN   tests whose names match, with * and ?
 *
 * What passes: every value within TOLERANCE float roundings of the formula, in units of the
 * magnitude that the formula reports (the same bound that test_backend_cpu holds the CPU to), and
 * the whole output within ERROR of the CPU's, as |cuda - cpu| / |cpu| over all values of a case.
 * float32 sums of n terms in another order differ by about 2^-24 sqrt(n); the bound leaves room for
 * n = 16384, for cancellation and for halves that round the other way. Products of packed weights
 * have TOLERANCE_PACKED: there x is rounded to whole numbers first. Prompts are computed in two
 * passes; test_prompt_passes.c has one pass. embed, rope and route are computed step by step as the
 * CPU does: they must be equal.
 */
#include "kernels/backend.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/card/deferred_cases.h"
#include "tests/kernels/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define TOLERANCE 16.0
#define FEW_ROWS  64 /* cuda_ops.decode_rows */
#define TOLERANCE_PACKED                                                                           \
	64.0 /* products of packed weights: x is rounded at 2^-24 of the largest of 256 neighbours */
#define ERROR 1e-5
#define ERROR_HALF                                                                                 \
	1e-4 /* where the output is stored as halves: a few values in thousands round the other way */

/* index_select of 2,048 positions */
#define SELECT(label, cache_type, n, n_heads, width, last, exact)                                  \
	{                                                                                              \
		.name = label, .op = OP_INDEX_SELECT, .type = DTYPE_##cache_type, .rows = n,               \
		.heads = n_heads, .dim = width, .top_k = 2048, .far = last, .whole = exact                 \
	}

/* Shapes of GLM-5.2 that would keep the CPU's own tests busy for too long; the formula is not
 * asked. */
static const struct op_case large[] = {
	{.name = "q_a 6144x2048 Q8_0",
		.op = OP_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 2,
		.n_in = 6144,
		.n_out = 2048},
	/* steps of many sessions: groups of rows, several launches, a last item that is not full */
	{.name = "17 rows Q8_0",
		.op = OP_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 17,
		.n_in = 6144,
		.n_out = 576},
	{.name = "33 rows Q8_0",
		.op = OP_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 33,
		.n_in = 16384,
		.n_out = 3000},
	{.name = "64 rows Q8_0",
		.op = OP_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 64,
		.n_in = 6144,
		.n_out = 20005},
	{.name = "24 rows Q4_K",
		.op = OP_MATMUL,
		.type = DTYPE_Q4_K,
		.rows = 24,
		.n_in = 2048,
		.n_out = 5000},
	{.name = "64 rows Q4_K",
		.op = OP_MATMUL,
		.type = DTYPE_Q4_K,
		.rows = 64,
		.n_in = 6144,
		.n_out = 2048},
	{.name = "15 rows Q8_0",
		.op = OP_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 15,
		.n_in = 12288,
		.n_out = 6144},
	{.name = "7 rows Q8_0",
		.op = OP_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 7,
		.n_in = 2048,
		.n_out = 16384},
	{.name = "k_b, 64 rows Q8_0",
		.op = OP_STACKED_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 64,
		.n_in = 192,
		.n_out = 512,
		.heads = 64},
	{.name = "v_b, 33 rows Q8_0",
		.op = OP_STACKED_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 33,
		.n_in = 512,
		.n_out = 256,
		.heads = 64},
	{.name = "40 rows, added Q8_0",
		.op = OP_FFN,
		.type = DTYPE_Q8_0,
		.rows = 40,
		.n_in = 6144,
		.n_out = 2048},
	{.name = "50 rows IQ2_XXS",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_IQ2_XXS,
		.rows = 50,
		.n_in = 2048,
		.n_out = 2048,
		.heads = 16,
		.n_used = 6},
	{.name = "34 rows Q2_K",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_Q2_K,
		.rows = 34,
		.n_in = 3072,
		.n_out = 2048,
		.heads = 20,
		.n_used = 4},
	{.name = "q_b 2048x16384 Q4_K",
		.op = OP_MATMUL,
		.type = DTYPE_Q4_K,
		.rows = 1,
		.n_in = 2048,
		.n_out = 16384},
	{.name = "o 16384x6144 Q4_K",
		.op = OP_MATMUL,
		.type = DTYPE_Q4_K,
		.rows = 1,
		.n_in = 16384,
		.n_out = 6144},
	{.name = "down 2048x6144 Q4_K",
		.op = OP_MATMUL,
		.type = DTYPE_Q4_K,
		.rows = 3,
		.n_in = 2048,
		.n_out = 6144},
	{.name = "shared 6144x2048 Q8_0",
		.op = OP_FFN,
		.type = DTYPE_Q8_0,
		.rows = 3,
		.n_in = 6144,
		.n_out = 2048,
		.plain = true},
	{.name = "shared, added Q8_0",
		.op = OP_FFN,
		.type = DTYPE_Q8_0,
		.rows = 2,
		.n_in = 6144,
		.n_out = 2048},
	{.name = "full layer Q8_0",
		.op = OP_QUERY,
		.type = DTYPE_Q8_0,
		.rows = 3,
		.n_in = 6144,
		.n_out = 2048,
		.n_value = 512,
		.dim = 64,
		.heads = 128,
		.top_k = 16384,
		.n_used = 32,
		.plain = true,
		.far = 40},
	{.name = "full layer, 2 rows Q8_0",
		.op = OP_QUERY,
		.type = DTYPE_Q8_0,
		.rows = 2,
		.n_in = 6144,
		.n_out = 2048,
		.n_value = 512,
		.dim = 64,
		.heads = 128,
		.top_k = 16384,
		.n_used = 32,
		.far = 40},
	{.name = "shared layer, 4 rows Q8_0",
		.op = OP_QUERY,
		.type = DTYPE_Q8_0,
		.rows = 4,
		.n_in = 6144,
		.n_out = 2048,
		.n_value = 512,
		.dim = 64,
		.top_k = 16384,
		.far = 40},
	{.name = "full layer, 5 rows Q8_0",
		.op = OP_QUERY,
		.type = DTYPE_Q8_0,
		.rows = 5,
		.n_in = 4096,
		.n_out = 2048,
		.n_value = 512,
		.dim = 64,
		.heads = 128,
		.top_k = 8192,
		.n_used = 32,
		.far = 40},
	{.name = "shared layer, 8 rows Q8_0",
		.op = OP_QUERY,
		.type = DTYPE_Q8_0,
		.rows = 8,
		.n_in = 6144,
		.n_out = 2048,
		.n_value = 512,
		.dim = 64,
		.top_k = 16384,
		.far = 40},
	{.name = "shared layer, 9 rows Q4_K",
		.op = OP_QUERY,
		.type = DTYPE_Q4_K,
		.rows = 9,
		.n_in = 6144,
		.n_out = 2048,
		.n_value = 512,
		.dim = 64,
		.top_k = 16384,
		.far = 40},
	{.name = "shared layer Q4_K",
		.op = OP_QUERY,
		.type = DTYPE_Q4_K,
		.rows = 3,
		.n_in = 6144,
		.n_out = 2048,
		.n_value = 512,
		.dim = 64,
		.top_k = 16384,
		.far = 40},
	{.name = "chunk Q8_0",
		.op = OP_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 67,
		.n_in = 6144,
		.n_out = 576},
	{.name = "chunk Q4_K",
		.op = OP_MATMUL,
		.type = DTYPE_Q4_K,
		.rows = 130,
		.n_in = 6144,
		.n_out = 600},
	{.name = "chunk Q2_K",
		.op = OP_MATMUL,
		.type = DTYPE_Q2_K,
		.rows = 33,
		.n_in = 2048,
		.n_out = 1000},
	{.name = "chunk BF16",
		.op = OP_MATMUL,
		.type = DTYPE_BF16,
		.rows = 200,
		.n_in = 6144,
		.n_out = 257},
	{.name = "chunk F32",
		.op = OP_MATMUL,
		.type = DTYPE_F32,
		.rows = 65,
		.n_in = 6144,
		.n_out = 256},
	{.name = "chunk k_b Q8_0",
		.op = OP_STACKED_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 70,
		.n_in = 192,
		.n_out = 512,
		.heads = 64},
	{.name = "chunk attend",
		.op = OP_ATTEND,
		.type = DTYPE_F16,
		.rows = 40,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 2048,
		.far = 4000},
	{.name = "chunk index",
		.op = OP_INDEX_SELECT,
		.type = DTYPE_F16,
		.rows = 40,
		.heads = 32,
		.dim = 128,
		.top_k = 2048,
		.far = 9000},
	{.name = "chunk Q2_K",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_Q2_K,
		.rows = 64,
		.n_in = 2048,
		.n_out = 512,
		.heads = 8,
		.n_used = 5},
	{.name = "router F32",
		.op = OP_MATMUL,
		.type = DTYPE_F32,
		.rows = 3,
		.n_in = 6144,
		.n_out = 256},
	{.name = "k_b Q8_0",
		.op = OP_STACKED_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 2,
		.n_in = 192,
		.n_out = 512,
		.heads = 64},
	{.name = "v_b Q8_0",
		.op = OP_STACKED_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 2,
		.n_in = 512,
		.n_out = 256,
		.heads = 64},
	{.name = "2048 positions F16",
		.op = OP_ATTEND,
		.type = DTYPE_F16,
		.rows = 3,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 2048,
		.far = 6000},
	{.name = "2048 positions F32",
		.op = OP_ATTEND,
		.type = DTYPE_F32,
		.rows = 2,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 2048,
		.far = 6000},
	{.name = "1 position",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 2,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 1,
		.n_used = 4224,
		.far = 300},
	{.name = "63 positions",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 2,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 63,
		.n_used = 32,
		.far = 300},
	{.name = "64 positions",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 2,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 64,
		.far = 63},
	{.name = "65 positions",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 2,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 65,
		.n_used = 6144,
		.far = 64},
	{.name = "500 positions",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 2,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 500,
		.n_used = 4256,
		.far = 3000},
	{.name = "2048 positions",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 3,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 2048,
		.n_used = 4240,
		.far = 6000},
	{.name = "all of 2048",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 2,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 2048,
		.n_used = 1024,
		.far = 2047},
	{.name = "4 rows",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 4,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 1500,
		.n_used = 6144,
		.far = 3000},
	{.name = "7 rows",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 7,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 1024,
		.n_used = 6144,
		.far = 1023},
	{.name = "5 rows", /* as many as one launch takes, with all segments */
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 5,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 2048,
		.far = 6000},
	{.name = "4096 positions",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 2,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 4096,
		.n_used = 64,
		.far = 6000},
	{.name = "chunk",
		.op = OP_MLA,
		.type = DTYPE_F16,
		.rows = 18,
		.n_in = 192,
		.n_out = 256,
		.heads = 64,
		.dim = 64,
		.n_value = 512,
		.top_k = 300,
		.n_used = 40,
		.far = 900},
	SELECT("32K F16", F16, 3, 32, 128, 32767, false),
	SELECT("128K ties", F16, 1, 16, 64, 131070, true),
	SELECT("1M F16", F16, 1, 32, 128, 1048575, false),
	SELECT("1M ties", F16, 1, 16, 64, 1048575, true),
	SELECT("600K F16", F16, 2, 8, 64, 600000, false),
	SELECT("400K F32", F32, 1, 4, 64, 400000, false),
	{.name = "full Q2_K",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_Q2_K,
		.rows = 1,
		.n_in = 6144,
		.n_out = 2048,
		.heads = 8,
		.n_used = 8},
	{.name = "full IQ2_XXS",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_IQ2_XXS,
		.rows = 2,
		.n_in = 6144,
		.n_out = 2048,
		.heads = 8,
		.n_used = 8},
	/* experts of one place and of several; the last stages of their rows are not full */
	{.name = "tails IQ2_XXS",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_IQ2_XXS,
		.rows = 3,
		.n_in = 2048,
		.n_out = 2048,
		.heads = 16,
		.n_used = 4},
	/* experts of one slot to more than one launch takes */
	{.name = "slots IQ2_XXS",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_IQ2_XXS,
		.rows = 6,
		.n_in = 2048,
		.n_out = 2048,
		.heads = 12,
		.n_used = 8},
	{.name = "tails Q2_K",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_Q2_K,
		.rows = 3,
		.n_in = 3072,
		.n_out = 2048,
		.heads = 16,
		.n_used = 4},
};

static struct backend *cpu, *cuda;
static bool small, brief;

static void check_case(const struct op_case *c, bool formula)
{
	size_t n = (size_t)c->rows * (size_t)op_case_width(c);
	float *want = op_case_run(cpu, c, 0, c->rows), *got = op_case_run(cuda, c, 0, c->rows);
	if (c->op == OP_INDEX_SELECT) {
		op_case_check_selection(c, want, got, TOLERANCE);
		free(want);
		free(got);
		return;
	}
	double diff = 0, norm = 0, worst = 0;
	for (size_t i = 0; i < n; i++) {
		double d = (double)got[i] - (double)want[i];
		diff += d * d;
		norm += (double)want[i] * (double)want[i];
	}
	double error = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
	bool exact = c->op == OP_EMBED || c->op == OP_ROPE || c->op == OP_ROUTE;
	bool product = c->op == OP_MATMUL || c->op == OP_STACKED_MATMUL || c->op == OP_FFN ||
				   c->op == OP_EXPERT_FFN || c->op == OP_MLA || c->op == OP_QUERY;
	bool packed = c->type != DTYPE_F32 && c->type != DTYPE_F16 && c->type != DTYPE_BF16;
	double tolerance = product && packed ? TOLERANCE_PACKED : TOLERANCE;
	bool halves = c->type == DTYPE_F16 && c->op == OP_LATENTS;
	double limit = exact ? 0 : halves ? ERROR_HALF : ERROR;
	if (formula) {
		double *value = NEW_ARRAY(double, n), *scale = NEW_ARRAY(double, n);
		op_case_reference(c, value, scale);
		for (size_t i = 0; i < n; i++) {
			double off = fabs((double)got[i] - value[i]), unit = 0x1p-24 * scale[i];
			if (!(off <= tolerance * unit))
				fail_msg(
					"%s, %s: value %zu is %.9g, the formula gives %.9g (%.3g units), the CPU %.9g",
					op_names[c->op], c->name, i, (double)got[i], value[i], off / unit,
					(double)want[i]);
			if (off > worst * unit)
				worst = off / unit;
		}
		free(value);
		free(scale);
	}
	print_message("%-16s %-22s error %.2e of %.0e, worst value %.2f units of 2^-24\n",
		op_names[c->op], c->name, error, limit, worst);
	if (!(error <= limit))
		fail_msg("%s, %s: normalised error %.3e", op_names[c->op], c->name, error);
	free(want);
	free(got);
}

/* A case of several rows within FEW_ROWS, which with FEW_ROWS more is computed in the other way */
static bool in_both_ways(const struct op_case *c)
{
	return c->rows > 16 && c->rows <= FEW_ROWS;
}

static void test_every_case(void **state)
{
	(void)state;
	for (int i = 0; i < op_cases_n; i++) {
		check_case(&op_cases[i], true);
		struct op_case more = op_cases[i];
		more.rows += FEW_ROWS;
		if (in_both_ways(&op_cases[i]))
			check_case(&more, true);
	}
}

static void test_large_cases(void **state)
{
	(void)state;
	for (size_t i = 0; !small && i < ARRAY_LEN(large); i++)
		check_case(&large[i], false);
}

/* Steps of at most FEW_ROWS rows and larger ones are two ways; within each a row's bits are the
 * same. */
static void check_rows(const struct op_case *c)
{
	size_t width = (size_t)op_case_width(c);
	float *whole = op_case_run(cuda, c, 0, c->rows);
	for (int r = 0; r < c->rows && c->rows <= FEW_ROWS; r++) {
		if (r >= 3 && r < c->rows - 2) /* the first rows and the last */
			continue;
		float *one = op_case_run(cuda, c, r, 1);
		op_case_same_bits(c, "alone", whole + (size_t)r * width, one, width);
		free(one);
	}
	int some = c->rows / 3;
	if (c->rows > FEW_ROWS && c->rows - some <= FEW_ROWS)
		some = c->rows - FEW_ROWS - 1;
	float *rest = op_case_run(cuda, c, some, c->rows - some);
	op_case_same_bits(c, "in another batch", whole + (size_t)some * width, rest,
		(size_t)(c->rows - some) * width);
	free(rest);
	free(whole);
}

static void test_rows_are_independent(void **state)
{
	(void)state;
	for (int i = 0; i < op_cases_n; i++) {
		check_rows(&op_cases[i]);
		struct op_case more = op_cases[i];
		more.rows += FEW_ROWS;
		if (in_both_ways(&op_cases[i]))
			check_rows(&more);
	}
	for (size_t i = 0; !small && i < ARRAY_LEN(large); i++)
		if (large[i].rows > 1)
			check_rows(&large[i]);
}

/* Uploads of every size class, through the ring of stages, must arrive; downloads and copies must
 * bring them back. */
static void test_copies(void **state)
{
	(void)state;
	static const size_t sizes[] = {
		1, 7, 1024, 1025, 70001, (size_t)4 << 20, ((size_t)37 << 20) + 3};
	for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
		for (int kind = MEM_DEVICE; kind <= MEM_SHARED; kind++) {
			struct err e = {0};
			uint8_t *host = NEW_ARRAY(uint8_t, sizes[s]), *back = NEW_ARRAY(uint8_t, sizes[s]);
			void *a = NULL, *b = NULL;
			for (size_t i = 0; i < sizes[s]; i++)
				host[i] = (uint8_t)(i * 31 + i / 251 + s);
			assert_int_equal(cuda->ops->alloc(cuda, (enum mem_kind)kind, sizes[s], &a, &e), 0);
			assert_int_equal(cuda->ops->alloc(cuda, MEM_DEVICE, sizes[s], &b, &e), 0);
			cuda->ops->upload(cuda, a, host, sizes[s]);
			memset(host, 0x55, sizes[s]); /* src may be reused at once */
			cuda->ops->copy(cuda, b, a, sizes[s]);
			assert_int_equal(cuda->ops->download(cuda, back, b, sizes[s], &e), 0);
			for (size_t i = 0; i < sizes[s]; i++)
				if (back[i] != (uint8_t)(i * 31 + i / 251 + s))
					fail_msg("upload of %zu bytes: byte %zu is wrong", sizes[s], i);
			if (kind == MEM_SHARED)
				for (size_t i = 0; i < sizes[s]; i++)
					assert_int_equal(((uint8_t *)a)[i], back[i]);
			cuda->ops->free(cuda, (enum mem_kind)kind, a, sizes[s]);
			cuda->ops->free(cuda, MEM_DEVICE, b, sizes[s]);
			free(host);
			free(back);
		}
}

static void test_deferred(void **state)
{
	(void)state;
	deferred_case(cuda, DTYPE_IQ2_XXS, 2048, 2048, brief);
	if (small)
		return;
	deferred_case(cuda, DTYPE_Q2_K, 2048, 2048, brief);
	deferred_case(cuda, DTYPE_IQ2_XXS, 6144, 2048, brief);
	deferred_case(cuda, DTYPE_Q2_K, 6144, 2048, brief);
	deferred_case(cuda, DTYPE_Q4_K, 512, 256, brief); /* not by words */
}

static void test_failures(void **state)
{
	(void)state;
	struct err e = {0};
	struct backend_options options = {.name = "cuda"};
	struct backend *b;
	assert_int_equal(backend_open(&options, &b, &e), 0);
	void *p = NULL;
	assert_int_equal(b->ops->alloc(b, MEM_DEVICE, (size_t)1 << 50, &p, &e), ERR_MEMORY);
	assert_null(p);
	assert_int_equal(b->failure.code, 0); /* alloc reports itself and leaves the backend usable */
	assert_int_equal(b->ops->wait(b, &e), 0);
	assert_true(b->ops->free_bytes(b) > 0);
	deferred_lost_case(b);
	b->failure = (struct err){0};
	err_set(&b->failure, ERR_RUN, "made up");
	float x[4] = {1, 2, 3, 4};
	b->ops->swiglu(b, NULL, NULL, 4, NULL); /* would fault */
	assert_int_equal(b->ops->download(b, x, x, sizeof x, &e), ERR_RUN);
	assert_string_equal(e.text, "made up");
	assert_int_equal(b->ops->wait(b, NULL), ERR_RUN);
	b->ops->close(b);
}

/* A card has the same UUID each time it is opened, the processor none. */
static void test_uuid(void **state)
{
	(void)state;
	static const uint8_t none[BACKEND_UUID_BYTES];
	struct err e = {0};
	struct backend_options options = {.name = "cuda"};
	struct backend *again;
	assert_int_equal(backend_open(&options, &again, &e), 0);
	assert_memory_equal(cuda->uuid, again->uuid, sizeof none);
	assert_memory_not_equal(cuda->uuid, none, sizeof none);
	assert_memory_equal(cpu->uuid, none, sizeof none);
	again->ops->close(again);
}

int main(int argc, char **argv)
{
	struct err e = {0};
	struct backend_options options = {.name = "cuda", .exact_prompts = true};
	brief = argc > 1 && !strcmp(argv[1], "brief");
	small = brief || (argc > 1 && !strcmp(argv[1], "small"));
	if (argc > 1 + small)
		cmocka_set_test_filter(argv[1 + small]);
	if (backend_open(&options, &cuda, &e)) {
		printf("skipped: %s\n", e.text);
		return 77;
	}
	options.name = "cpu";
	if (backend_open(&options, &cpu, &e)) {
		fprintf(stderr, "%s\n", e.text);
		return 1;
	}
	print_message("%s against %s\n", backend_describe(cuda), backend_describe(cpu));
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_uuid),
		cmocka_unit_test(test_deferred),
		cmocka_unit_test(test_every_case),
		cmocka_unit_test(test_large_cases),
		cmocka_unit_test(test_rows_are_independent),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	cuda->ops->close(cuda);
	cpu->ops->close(cpu);
	return rc;
}
