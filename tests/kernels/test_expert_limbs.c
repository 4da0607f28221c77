/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of kernels/expert_arithmetic.h on the processor: the plain C version against the
 * formula in double precision, the vector versions against the plain C one bit by bit; expert_ffn
 * made of it (limb_experts.h) against its formula and the CPU backend's own op.
 */
#include "kernels/cpu/cpu_internal.h"
#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/dequant.h"
#include "tests/kernels/limb_backend.h"
#include "tests/kernels/op_inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum dtype types[] = {
	DTYPE_IQ2_XXS, DTYPE_IQ2_XS, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q8_0};

#define ROWS_MAX (2 * LIMB_ROWS + 5)

/* A task with its memory: weights of random bits, rows of x with outliers. */
struct limb_case {
	struct limb_task task;
	uint8_t *w;
	float *x; /* [n_x][n_in] */
	struct limb_block *blocks;
	float out[LIMB_X][ROWS_MAX];
};

static void limb_case_new(struct limb_case *p, enum dtype type, int64_t n_in, int n_rows, int n_x,
	int64_t split_rows, uint64_t seed)
{
	uint64_t row_bytes;
	assert_true(dtype_row_bytes(type, (uint64_t)n_in, &row_bytes));
	size_t blocks = (size_t)limb_x_blocks(n_in), n_values = (size_t)n_x * (size_t)n_in;
	*p = (struct limb_case){.task = {.type = type,
								.row_bytes = row_bytes + 2, /* rows need not touch */
								.n_rows = n_rows,
								.n_x = n_x,
								.n_in = n_in,
								.n_parts = expert_split(type, n_in, split_rows)}};
	/* the last row ends where the memory does, so that a sanitizer sees reads past it */
	size_t bytes = (size_t)(n_rows - 1) * p->task.row_bytes + row_bytes;
	p->w = NEW_ARRAY(uint8_t, bytes);
	for (int r = 0; r < n_rows; r++)
		op_random_blocks(seed, r, type, p->w + (size_t)r * p->task.row_bytes, (size_t)row_bytes);
	p->x = NEW_ARRAY(float, n_values);
	op_random(seed, 100, p->x, n_values);
	p->blocks = aligned_alloc(64, blocks * (size_t)n_x * sizeof *p->blocks);
	assert_non_null(p->blocks);
	p->task.w = p->w;
	p->task.out = p->out[0];
	p->task.out_stride = ROWS_MAX;
}

static void limb_case_run(struct limb_case *p, const struct limb_isa *isa)
{
	int64_t blocks = limb_x_blocks(p->task.n_in);
	for (int i = 0; i < p->task.n_x; i++) {
		struct limb_block *b = p->blocks + i * blocks;
		isa->split(p->task.type, p->x + i * p->task.n_in, p->task.n_in, b);
		p->task.x[i] = b;
	}
	for (int i = 0; i < LIMB_X; i++)
		for (int r = 0; r < ROWS_MAX; r++)
			p->out[i][r] = NAN;
	int8_t *panel = NULL;
	if (isa->gather) {
		p->task.panel = panel = aligned_alloc(64, limb_panel_bytes(p->task.n_x, p->task.n_in));
		assert_non_null(panel);
		isa->gather(&p->task, panel);
	}
	isa->multiply(&p->task);
	free(panel);
}

static void limb_case_free(struct limb_case *p)
{
	free(p->w);
	free(p->x);
	free(p->blocks);
}

/* Equal bits; any NaN equals any other. */
static bool same_bits(float a, float b)
{
	return isnan(a) ? isnan(b) : f32_bits(a) == f32_bits(b);
}

static int64_t values_of(enum dtype type, int64_t n_in)
{
	int64_t block = (int64_t)dtype_info(type)->block_values;
	return (n_in + block - 1) / block * block;
}

/* ---- the plain C version ---- */

/* The tolerance is 2 units. A unit is 2^-24 times the sum of |w| times the largest |x| of the
 * super-block. */
static void test_against_doubles(void **state)
{
	(void)state;
	static const int64_t widths[] = {32, 256, 800, 2048, 6144};
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t n = 0; n < ARRAY_LEN(widths); n++) {
			struct limb_case p;
			int64_t n_in = values_of(types[t], widths[n]);
			limb_case_new(&p, types[t], n_in, 5, 3, 2048, t * 10 + n);
			limb_case_run(&p, limb_isa_c);
			float *w = NEW_ARRAY(float, (size_t)n_in);
			double worst = 0;
			for (int r = 0; r < p.task.n_rows; r++) {
				dequant_row(types[t], p.w + (size_t)r * p.task.row_bytes, w, (size_t)n_in);
				for (int i = 0; i < p.task.n_x; i++) {
					const float *x = p.x + i * n_in;
					double value = 0, scale = 0;
					for (int64_t b = 0; b < n_in; b += 256) {
						int64_t end = MIN(b + 256, n_in);
						double most = 0;
						for (int64_t k = b; k < end; k++)
							most = fmax(most, fabs((double)x[k]));
						for (int64_t k = b; k < end; k++) {
							value += (double)w[k] * (double)x[k];
							scale += fabs((double)w[k]) * most;
						}
					}
					double off = fabs((double)p.out[i][r] - value), unit = 0x1p-24 * scale;
					if (!(off <= 2 * unit))
						fail_msg("%s, %lld values: row %d of x %d is %.9g, not %.9g (%.3g units)",
							dtype_name(types[t]), (long long)n_in, r, i, (double)p.out[i][r], value,
							off / unit);
					worst = fmax(worst, off / unit);
				}
			}
			print_message("%-8s %5lld values: worst %.3f of 2 units\n", dtype_name(types[t]),
				(long long)n_in, worst);
			free(w);
			limb_case_free(&p);
		}
}

/* The vector versions split x into the same limbs. */
static void check_split_levels(enum dtype type, const float *x, const struct limb_block *want)
{
	struct limb_block *got = aligned_alloc(64, sizeof *got);
	assert_non_null(got);
	for (int level = 0; limb_isa_available(level); level++) {
		memset(got, 0x5a, sizeof *got);
		limb_isa_available(level)->split(type, x, 256, got);
		assert_memory_equal(got->limb, want->limb, sizeof got->limb);
		assert_memory_equal(got->sum, want->sum, sizeof got->sum);
		assert_true(same_bits(got->scale, want->scale));
		if (type == DTYPE_IQ2_XXS || type == DTYPE_IQ2_XS)
			assert_memory_equal(got->start, want->start, sizeof got->start);
	}
	free(got);
}

/* Limbs and scales as the contract says, also of values that have none. */
static void test_limbs(void **state)
{
	(void)state;
	float x[256];
	struct limb_block *b = aligned_alloc(64, sizeof *b);
	assert_non_null(b);
	for (int kind = 0; kind < 6; kind++) {
		op_random(7, kind, x, 256);
		if (kind == 1)
			x[17] = INFINITY;
		else if (kind == 2)
			x[200] = NAN;
		for (int i = 0; i < 256 && kind >= 3; i++)
			x[i] *= kind == 3 ? 0x1p-110f : kind == 4 ? 0x1p90f : 0;
		if (kind == 5)
			x[3] = -1, x[4] = 1, x[5] = 0x1p-23f;
		for (size_t t = 0; t < ARRAY_LEN(types); t++) {
			limb_isa_c->split(types[t], x, 256, b);
			check_split_levels(types[t], x, b);
			bool seen[256] = {false};
			for (int i = 0; i < 256; i++) {
				int place = limb_place(types[t], i);
				assert_in_range(place, 0, 255);
				assert_false(seen[place]);
				seen[place] = true;
				int32_t n = b->limb[0][place] * 65536 + b->limb[1][place] * 256 + b->limb[2][place];
				if (kind >= 1 && kind <= 3)
					assert_int_equal(n, 0);
				else if (!(fabs((double)n * (double)b->scale - (double)x[i]) <=
							 (0.5 + 0x1p-22 * abs(n)) * (double)b->scale)) /* inv is rounded */
					fail_msg("value %d of kind %d: %d * %g is not %g", i, kind, n, (double)b->scale,
						(double)x[i]);
			}
			for (int k = 0; k < EXPERT_LIMBS; k++)
				for (int g = 0; g < 16; g++) {
					int sum = 0;
					for (int i = 16 * g; i < 16 * g + 16; i++)
						sum += b->limb[k][limb_place(types[t], i)];
					assert_int_equal(sum, b->sum[k][g]);
				}
			if (kind == 1)
				assert_true(isinf(b->scale));
			else if (kind == 2)
				assert_true(isnan(b->scale));
			else if (kind == 3)
				assert_true(f32_bits(b->scale) == 0);
			if (kind == 5) { /* the extremes: 127 * 65536 and, of a tie, the even neighbour */
				assert_int_equal(b->limb[0][limb_place(types[t], 3)], -127);
				assert_int_equal(b->limb[0][limb_place(types[t], 4)], 127);
				assert_int_equal(b->limb[2][limb_place(types[t], 5)], 1);
			}
		}
	}
	free(b);
}

/* The split that the card takes for GLM-5.2's shapes (8 experts a token) and for small ones. */
static void test_split(void **state)
{
	(void)state;
	static const struct {
		enum dtype type;
		int64_t n_in, n_out;
		int split;
	} want[] = {
		{DTYPE_IQ2_XXS, 6144, 2048, 2},
		{DTYPE_IQ2_XXS, 2048, 6144, 1},
		{DTYPE_Q2_K, 6144, 2048, 2},
		{DTYPE_Q4_K, 6144, 2048, 4},
		{DTYPE_Q3_K, 2048, 6144, 2},
		{DTYPE_Q8_0, 6144, 2048, 8},
		{DTYPE_Q8_0, 2048, 6144, 4},
		{DTYPE_Q8_0, 2048, 128, 8},
		{DTYPE_IQ2_XXS, 2048, 64, 2},
		{DTYPE_IQ2_XXS, 4096, 64, 4},
		{DTYPE_IQ2_XXS, 256, 256, 1},
	};
	for (size_t i = 0; i < ARRAY_LEN(want); i++)
		if (expert_split(want[i].type, want[i].n_in, want[i].n_out * 8) != want[i].split)
			fail_msg("%s %lld>%lld: %d parts, not %d", dtype_name(want[i].type),
				(long long)want[i].n_in, (long long)want[i].n_out,
				expert_split(want[i].type, want[i].n_in, want[i].n_out * 8), want[i].split);
}

/* ---- the vector versions ---- */

static void compare_levels(struct limb_case *p, const char *what)
{
	float want[LIMB_X][ROWS_MAX];
	limb_case_run(p, limb_isa_c);
	memcpy(want, p->out, sizeof want);
	for (int level = 0; limb_isa_available(level); level++) {
		const struct limb_isa *isa = limb_isa_available(level);
		limb_case_run(p, isa);
		for (int i = 0; i < p->task.n_x; i++)
			for (int r = 0; r < p->task.n_rows; r++)
				if (!same_bits(want[i][r], p->out[i][r]))
					fail_msg("%s, %s, %lld values, %s: row %d of %d, x %d of %d: %.9g, not %.9g",
						isa->name, dtype_name(p->task.type), (long long)p->task.n_in, what, r,
						(int)p->task.n_rows, i, p->task.n_x, (double)p->out[i][r],
						(double)want[i][r]);
	}
}

static void test_levels(void **state)
{
	(void)state;
	static const int64_t widths[] = {32, 256, 1376, 2048, 6144};
	for (int level = 0; limb_isa_available(level); level++)
		print_message("level %d: %s\n", level, limb_isa_available(level)->name);
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t n = 0; n < ARRAY_LEN(widths); n++)
			for (int n_x = 1; n_x <= LIMB_X; n_x++) {
				struct limb_case p;
				int rows = n_x % 3 == 1 ? LIMB_ROWS : n_x % 3 == 2 ? ROWS_MAX : n_x + 3;
				limb_case_new(&p, types[t], values_of(types[t], widths[n]), rows, n_x,
					n_x % 2 ? 1 : 100000, 1000 * t + 10 * n + (uint64_t)n_x);
				compare_levels(&p, "random");
				limb_case_free(&p);
			}
}

/* Where a block has its scale (for two halves its minimum follows). */
static size_t scale_at(enum dtype type)
{
	return type == DTYPE_Q2_K ? 80 : type == DTYPE_Q3_K ? 108 : type == DTYPE_Q6_K ? 208 : 0;
}

static void put_half(uint8_t *p, unsigned half)
{
	p[0] = (uint8_t)half;
	p[1] = (uint8_t)(half >> 8);
}

static size_t block_halves(enum dtype type)
{
	return type == DTYPE_Q2_K || type == DTYPE_Q4_K ? 2 : 1;
}

/* Every byte of the blocks at its extremes, limbs at theirs: no sum may saturate or overflow. */
static void test_extremes(void **state)
{
	(void)state;
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (int kind = 0; kind < 8; kind++) {
			struct limb_case p;
			limb_case_new(&p, types[t], 512, LIMB_ROWS, 4, 1, 77 + (uint64_t)kind);
			const struct dtype_info *info = dtype_info(types[t]);
			size_t row_bytes = 512 / info->block_values * info->block_bytes;
			struct rng random = {(uint64_t)kind};
			for (int r = 0; r < LIMB_ROWS; r++)
				for (size_t i = 0; i < row_bytes; i++) {
					bool last = kind & 1 ? rng_below(&random, 2) : r & 1;
					p.w[(size_t)r * p.task.row_bytes + i] = last ? 0xff : kind & 2 ? 0x80 : 0;
				}
			/* halves that are no NaN: 0x3c00 at the places of scales and minima */
			for (int r = 0; r < LIMB_ROWS; r++)
				for (size_t b = 0; b < row_bytes; b += info->block_bytes) {
					uint8_t *block = p.w + (size_t)r * p.task.row_bytes + b;
					for (size_t h = 0; h < block_halves(types[t]); h++)
						put_half(block + scale_at(types[t]) + 2 * h, 0x3c00);
				}
			/* n and its limbs: -8290432 = (-126, -128, -128), 32639 = (0, 127, 127), -32896 = (0,
			 * -128, -128) */
			for (int i = 0; i < 4 * 512; i++)
				p.x[i] = i % 256 == 9 ? 8323072.0f
						 : kind & 4   ? -8290432.0f + (float)(i % 3)
						 : i & 1      ? 32639.0f
									  : -32896.0f;
			compare_levels(&p, "extremes");
			limb_case_free(&p);
		}
}

/* Infinities and NaN in x: every output of the row is NaN, the other rows are finite. */
static void test_x_not_finite(void **state)
{
	(void)state;
	static const float bad[] = {INFINITY, -INFINITY, NAN};
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
			struct limb_case p;
			limb_case_new(&p, types[t], 768, 7, 3, 1, t);
			p.x[768 + 300] = bad[k];
			compare_levels(&p, "x not finite");
			limb_case_run(&p, limb_isa_available(0));
			for (int r = 0; r < 7; r++) {
				assert_true(isnan(p.out[1][r]));
				assert_false(isnan(p.out[0][r]) || isnan(p.out[2][r]));
			}
			limb_case_free(&p);
		}
}

/* Infinities and NaN in a scale or a minimum of a weight row: its outputs are not finite, with the
 * same bits for all instruction sets; the outputs of the other rows are finite. In the second task
 * the damaged row lies just behind the last one. The last super-block of Q8_0 has one step, so the
 * damaged one before it leaves its scales in the unused places. */
static void test_scale_not_finite(void **state)
{
	(void)state;
	static const unsigned bad[] = {0x7c00, 0xfc00, 0x7e00};
	enum { BAD_ROW = 9 };
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t k = 0; k < ARRAY_LEN(bad) * block_halves(types[t]); k++) {
			struct limb_case p;
			limb_case_new(&p, types[t], values_of(types[t], 800), LIMB_ROWS, 3, 1, 500 + t);
			const struct dtype_info *info = dtype_info(types[t]);
			/* super-block 2; of Q8_0 its step 5 */
			size_t block = types[t] == DTYPE_Q8_0 ? 2 * 8 + 5 : 2;
			put_half(p.w + BAD_ROW * p.task.row_bytes + block * info->block_bytes +
						 scale_at(types[t]) + 2 * (k / ARRAY_LEN(bad)),
				bad[k % ARRAY_LEN(bad)]);
			for (int rows = LIMB_ROWS; rows >= BAD_ROW; rows -= LIMB_ROWS - BAD_ROW) {
				p.task.n_rows = rows;
				compare_levels(&p, "scale not finite");
				limb_case_run(&p, limb_isa_available(0));
				for (int i = 0; i < p.task.n_x; i++)
					for (int r = 0; r < rows; r++)
						assert_int_equal(isfinite(p.out[i][r]) != 0, r != BAD_ROW);
			}
			limb_case_free(&p);
		}
}

/* ---- expert_ffn ---- */

/* Float roundings relative to the magnitude that the formula reports, and the normalised error
 * between the two ops: as test_backend_parity allows the card. */
#define TOLERANCE_PACKED 64.0
#define ERROR            1e-5

#define GATE_AND_UP(gate, up)                                                                      \
	{                                                                                              \
		.name = #gate " " #up, .op = OP_EXPERT_FFN, .type = DTYPE_##gate, .up_type = DTYPE_##up,   \
		.rows = 5, .n_in = 1536, .n_out = 256, .heads = 4, .n_used = 3                             \
	}

static const struct op_case large[] = {
	{.name = "full IQ2_XXS",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_IQ2_XXS,
		.rows = 1,
		.n_in = 6144,
		.n_out = 256,
		.heads = 3,
		.n_used = 2},
	{.name = "twenty slots Q3_K",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_Q3_K,
		.rows = 20,
		.n_in = 512,
		.n_out = 768,
		.heads = 2,
		.n_used = 1},
	{.name = "odd Q8_0",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_Q8_0,
		.rows = 5,
		.n_in = 1376,
		.n_out = 416,
		.heads = 4,
		.n_used = 3},
	GATE_AND_UP(IQ2_XXS, Q2_K),
	GATE_AND_UP(Q3_K, IQ2_XS),
	GATE_AND_UP(Q8_0, Q4_K),
	GATE_AND_UP(Q4_K, Q6_K),
};

static const struct op_case *case_at(int i)
{
	return i < op_cases_n                           ? &op_cases[i]
		   : i < op_cases_n + (int)ARRAY_LEN(large) ? &large[i - op_cases_n]
													: NULL;
}

static void test_op(void **state)
{
	(void)state;
	struct err e = {0};
	struct backend_options options = {.name = "cpu", .threads = 2};
	struct backend *limbs = limb_backend_open(0, 2), *floats;
	assert_non_null(limbs);
	assert_int_equal(backend_open(&options, &floats, &e), 0);
	int n_cases = 0;
	for (int i = 0; case_at(i); i++) {
		const struct op_case *c = case_at(i);
		if (!limb_backend_covers(c))
			continue;
		n_cases++;
		size_t n = (size_t)c->rows * (size_t)op_case_width(c);
		float *got = op_case_run(limbs, c, 0, c->rows), *other = op_case_run(floats, c, 0, c->rows);
		double *value = NEW_ARRAY(double, n), *scale = NEW_ARRAY(double, n);
		double worst[2] = {0}, diff = 0, norm = 0;
		op_case_reference(c, value, scale);
		for (size_t k = 0; k < n; k++) {
			double unit = 0x1p-24 * scale[k], off = fabs((double)got[k] - value[k]),
				   between = (double)got[k] - (double)other[k];
			if (!(off <= TOLERANCE_PACKED * unit))
				fail_msg("%s: value %zu is %.9g, the formula gives %.9g (%.3g units)", c->name, k,
					(double)got[k], value[k], off / unit);
			worst[0] = fmax(worst[0], off / unit);
			worst[1] = fmax(worst[1], fabs((double)other[k] - value[k]) / unit);
			diff += between * between;
			norm += (double)other[k] * (double)other[k];
		}
		print_message("%-18s worst %.2f units, the op of floats %.2f; between them %.1e\n", c->name,
			worst[0], worst[1], sqrt(diff / norm));
		if (!(diff <= ERROR * ERROR * norm))
			fail_msg("%s: normalised error %.3e", c->name, sqrt(diff / norm));
		free(got);
		free(other);
		free(value);
		free(scale);
	}
	assert_true(n_cases >= 2 * (int)ARRAY_LEN(types) + (int)ARRAY_LEN(large));
	limbs->ops->close(limbs);
	floats->ops->close(floats);
}

/* A row's bits depend neither on the batch nor on threads nor on the instruction set. */
static void test_op_bits(void **state)
{
	(void)state;
	struct backend *b = limb_backend_open(0, 1), *other;
	assert_non_null(b);
	for (int i = 0; case_at(i); i++) {
		const struct op_case *c = case_at(i);
		if (!limb_backend_covers(c))
			continue;
		size_t width = (size_t)op_case_width(c);
		float *whole = op_case_run(b, c, 0, c->rows);
		for (int r = 0; r < c->rows && r < 2; r++) {
			float *one = op_case_run(b, c, r, 1);
			op_case_same_bits(c, "alone", whole + (size_t)r * width, one, width);
			free(one);
		}
		for (int level = 0; (other = limb_backend_open(level, 3)); level++) {
			float *again = op_case_run(other, c, 0, c->rows);
			op_case_same_bits(c, backend_describe(other), whole, again, (size_t)c->rows * width);
			free(again);
			other->ops->close(other);
		}
		free(whole);
	}
	b->ops->close(b);
}

static atomic_bool interrupt;
static atomic_int calls_left;

static void interrupting_swiglu(const float *gate, const float *up, size_t n, float *out)
{
	cpu_isa_c->swiglu(gate, up, n, out);
	if (atomic_fetch_sub(&calls_left, 1) == 1)
		atomic_store(&interrupt, true);
}

/* A flag that becomes true amid gate and up is ERR_INTERRUPTED, and no row of out is written. */
static void test_interrupted(void **state)
{
	(void)state;
	static const struct op_case c = {
		.name = "interrupted", .op = OP_EXPERT_FFN, .type = DTYPE_Q3_K, .n_in = 256, .n_out = 1024};
	enum { ROWS = 3, USED = 2, N = ROWS * USED * 256 };
	static const int32_t slots[2][ROWS] = {{0, 2, 4}, {1, 3, 5}};
	float out[N], want[N];
	for (int threads = 1; threads <= 3; threads++) {
		struct op_pool p = {.seed = 3};
		struct backend *b = limb_backend_open(0, threads);
		assert_non_null(b);
		const float *x = op_floats(&p, 1, ROWS * 256);
		struct expert_job jobs[2];
		for (int j = 0; j < 2; j++) {
			struct weight w[3];
			op_expert_weights(&p, &c, j, w);
			jobs[j] = (struct expert_job){.gate = w[0],
				.up = w[1],
				.down = w[2],
				.token_slots = slots[j],
				.n_token_slots = ROWS};
		}
		struct cpu_isa isa = *cpu_of(b)->isa;
		isa.swiglu = interrupting_swiglu;
		cpu_of(b)->isa = &isa;
		for (int at = 1; at <= 6; at += 2) { /* of two jobs and three rows */
			for (int i = 0; i < N; i++)
				out[i] = NAN;
			atomic_store(&calls_left, at);
			atomic_store(&interrupt, false);
			b->ops->set_cancel(b, &interrupt);
			b->ops->expert_ffn(b, x, jobs, 2, ROWS, USED, out);
			assert_int_equal(b->failure.code, ERR_INTERRUPTED);
			for (int i = 0; i < N; i++)
				assert_true(isnan(out[i]));
			b->ops->set_cancel(b, NULL); /* takes the failure back */
			b->ops->expert_ffn(b, x, jobs, 2, ROWS, USED, out);
			assert_int_equal(b->failure.code, 0);
			if (threads == 1 && at == 1)
				memcpy(want, out, sizeof want);
			assert_memory_equal(out, want, sizeof want);
		}
		b->ops->close(b);
		op_pool_free(&p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limbs),
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_against_doubles),
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_x_not_finite),
		cmocka_unit_test(test_scale_not_finite),
		cmocka_unit_test(test_op),
		cmocka_unit_test(test_op_bits),
		cmocka_unit_test(test_interrupted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
