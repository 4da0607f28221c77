/* SPDX-License-Identifier: MIT */
/* The CPU backend: every op against its formula; and the promise that a row's bits do not depend on
 * the batch it is in, on the threads or on the instruction set. */
#include "kernels/backend.h"
#include "kernels/cpu/cpu_dot.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/usage.h"
#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/dequant.h"
#include "tests/kernels/op_cases.h"
#include "tests/support/slow_build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Float roundings that an error may amount to, relative to the magnitude the formula reports. The
 * longest dots of the list have 1024 steps in each of 16 sums; their errors add up like a random
 * walk. */
#define TOLERANCE 16.0

#define LEVELS_MAX 8 /* of instruction sets */

static struct backend *open_backend(int level, int threads)
{
	struct backend *b;
	struct err e = {0};
	struct backend_options options = {.name = "cpu", .threads = threads};
	if (cpu_backend_open_level(&options, level, &b, &e))
		fail_msg("%s", e.text);
	return b;
}

/* ---- against the formulas ---- */

/* Each selected score is at least as good as each that was left out, but for rounding errors; order
 * and count are exact. */
static void check_selection(const struct op_case *c, const float *out)
{
	for (int r = 0; r < c->rows; r++, out += c->top_k + 1) {
		double *score = NEW_ARRAY(double, (size_t)c->far + 1),
			   *scale = NEW_ARRAY(double, (size_t)c->far + 1);
		int n = op_case_scores(c, r, score, scale), want = MIN(n, c->top_k);
		bool *in = NEW_ARRAY(bool, (size_t)n);
		assert_int_equal((int)out[c->top_k], want);
		for (int i = 0; i < want; i++) {
			assert_true(out[i] >= 0 && out[i] < n && (!i || out[i] > out[i - 1]));
			in[(int)out[i]] = true;
		}
		int worst = -1;
		for (int t = 0; t < n; t++)
			if (in[t] && (worst < 0 || score[t] < score[worst]))
				worst = t;
		for (int t = 0; t < n; t++) {
			if (in[t])
				continue;
			double room = c->whole ? 0 : TOLERANCE * 0x1p-24 * (scale[t] + scale[worst]);
			if (score[t] > score[worst] + room)
				fail_msg("%s: row %d leaves out %d (%g), takes %d (%g)", c->name, r, t, score[t],
					worst, score[worst]);
		}
		/* whole numbers: scores are exact, so of equal ones the lower positions must have been
		 * taken */
		for (int t = 0; c->whole && t < n; t++)
			for (int u = t + 1; u < n; u++)
				if (score[t] == score[u] && in[u] && !in[t])
					fail_msg("%s: row %d takes %d before its equal %d", c->name, r, u, t);
		free(score);
		free(scale);
		free(in);
	}
}

static void test_formulas(void **state)
{
	(void)state;
	double worst[OP_LIMIT] = {0};
	struct backend *b = open_backend(0, 2);
	for (int i = 0; i < op_cases_n; i++) {
		const struct op_case *c = &op_cases[i];
		size_t n = (size_t)c->rows * (size_t)op_case_width(c);
		float *out = op_case_run(b, c, 0, c->rows);
		if (c->op == OP_INDEX_SELECT) {
			check_selection(c, out);
			free(out);
			continue;
		}
		double *value = NEW_ARRAY(double, n), *scale = NEW_ARRAY(double, n);
		op_case_reference(c, value, scale);
		for (size_t k = 0; k < n; k++) {
			double error = fabs((double)out[k] - value[k]), unit = 0x1p-24 * scale[k];
			if (!(error <= TOLERANCE * unit))
				fail_msg("%s, %s: value %zu is %.9g, the formula gives %.9g (%.3g units)",
					op_names[c->op], c->name, k, (double)out[k], value[k], error / unit);
			if (error > worst[c->op] * unit)
				worst[c->op] = error / unit;
		}
		free(out);
		free(value);
		free(scale);
	}
	b->ops->close(b);
	for (int op = 0; op < OP_LIMIT; op++)
		print_message("%-16s worst error %.2f units of 2^-24\n", op_names[op], worst[op]);
}

/* ---- same bits ---- */

/* One row at a time, and the rows in two unequal parts, give what the whole batch gives. */
static void test_rows_are_independent(void **state)
{
	(void)state;
	struct backend *b = open_backend(0, 1);
	for (int i = 0; i < op_cases_n; i++) {
		const struct op_case *c = &op_cases[i];
		size_t width = (size_t)op_case_width(c);
		float *whole = op_case_run(b, c, 0, c->rows);
		for (int r = 0; r < c->rows && r < IF_SLOW_BUILD(2, 3); r++) {
			float *one = op_case_run(b, c, r, 1);
			op_case_same_bits(c, "alone", whole + (size_t)r * width, one, width);
			free(one);
		}
		int half = c->rows / 3;
		float *rest = op_case_run(b, c, half, c->rows - half);
		op_case_same_bits(c, "in another batch", whole + (size_t)half * width, rest,
			(size_t)(c->rows - half) * width);
		free(rest);
		free(whole);
	}
	b->ops->close(b);
}

static void test_threads_do_not_matter(void **state)
{
	(void)state;
	struct backend *one = open_backend(0, 1), *two = open_backend(0, 2), *five = open_backend(0, 5);
	struct backend *const more[] = {five, two};
	for (int i = 0; i < op_cases_n; i++) {
		const struct op_case *c = &op_cases[i];
		float *a = op_case_run(one, c, 0, c->rows);
		for (size_t k = 0; k < IF_SLOW_BUILD(1, ARRAY_LEN(more)); k++) {
			float *b = op_case_run(more[k], c, 0, c->rows);
			op_case_same_bits(
				c, "with more threads", a, b, (size_t)c->rows * (size_t)op_case_width(c));
			free(b);
		}
		free(a);
	}
	one->ops->close(one);
	two->ops->close(two);
	five->ops->close(five);
}

static void test_instruction_sets_agree(void **state)
{
	(void)state;
	struct backend *levels[LEVELS_MAX] = {open_backend(0, 1)};
	int n = 1;
	for (; cpu_isa_available(n); n++) {
		assert_in_range(n, 0, LEVELS_MAX - 1);
		levels[n] = open_backend(n, 1);
	}
	for (int i = 0; i < op_cases_n; i++) {
		const struct op_case *c = &op_cases[i];
		float *a = op_case_run(levels[0], c, 0, c->rows);
		for (int level = 1; level < n; level++) {
			float *b = op_case_run(levels[level], c, 0, c->rows);
			op_case_same_bits(c, backend_describe(levels[level]), a, b,
				(size_t)c->rows * (size_t)op_case_width(c));
			free(b);
		}
		free(a);
	}
	for (int level = 0; level < n; level++)
		levels[level]->ops->close(levels[level]);
}

/* dot of cpu_dot.h, written down once more */
static float plain_dot(const float *w, const float *x, size_t n)
{
	float acc[DOT_LANES] = {0};
	for (size_t k = 0; k < n; k++)
		acc[k % DOT_LANES] = fmaf(w[k], x[k], acc[k % DOT_LANES]);
	for (int step = 8; step; step /= 2)
		for (int j = 0; j < step; j++)
			acc[j] += acc[j + step];
	return acc[0];
}

static void check_equal(const struct cpu_isa *isa, const char *type, const char *what,
	const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (f32_bits(want[i]) != f32_bits(got[i]) && !(isnan(want[i]) && isnan(got[i])))
			fail_msg("%s, %s: %s %zu is %.9g, must be %.9g", isa->name, type, what, i,
				(double)got[i], (double)want[i]);
}

/* Every type's decoder and matvec below the ops, on buffers that end where the data ends, at odd
 * addresses, on blocks of every bit pattern (infinite and NaN scales too). */
static void test_packed_rows_are_exact(void **state)
{
	(void)state;
	enum { ROWS = 7, BLOCKS = 9 };
	for (int wild = 0; wild < 2; wild++)
		for (int type = 0; type < DTYPE_LIMIT; type++) {
			const struct dtype_info *info = dtype_info((uint32_t)type);
			if (!info)
				continue;
			size_t blocks = info->block_values == 1 ? 16 * BLOCKS + 5 : BLOCKS;
			size_t n = blocks * info->block_values, row = blocks * info->block_bytes;
			uint8_t *packed = NEW_ARRAY(uint8_t, ROWS * row + 1);
			float *want = NEW_ARRAY(float, ROWS *n), *got = NEW_ARRAY(float, ROWS *n);
			float *x = NEW_ARRAY(float, GEMV_ROWS_MAX *n), y[GEMV_ROWS_MAX][ROWS],
				  y_want[GEMV_ROWS_MAX][ROWS], dots[GEMV_ROWS_MAX][ROWS];
			const struct cpu_isa *isa;
			const float *in[GEMV_ROWS_MAX];
			float *out[GEMV_ROWS_MAX];
			for (size_t j = 0; j < GEMV_ROWS_MAX; j++) {
				in[j] = x + j * n;
				out[j] = y[j];
			}
			struct rng r = {(uint64_t)type + 5};
			op_random(3, type, x, GEMV_ROWS_MAX * n);
			op_random_blocks(77, type, (enum dtype)type, packed + 1, ROWS * row);
			for (size_t i = 0; wild && i < ROWS * row; i++)
				packed[i + 1] = (uint8_t)(rng_u64(&r) >> 56);
			dequant_row((enum dtype)type, packed + 1, want, ROWS * n);
			for (int level = 0; (isa = cpu_isa_available(level)); level++) {
				isa->decode((enum dtype)type, packed + 1, got, ROWS * n);
				check_equal(isa, info->name, "weight", got, want, ROWS * n);
			}
			for (int i = 0; i < GEMV_ROWS_MAX * ROWS; i++)
				dots[i / ROWS][i % ROWS] =
					plain_dot(want + (size_t)(i % ROWS) * n, in[i / ROWS], n);
			for (int n_x = 1; n_x <= GEMV_ROWS_MAX; n_x++)
				for (int add = IF_SLOW_BUILD(n_x % 2, 0); add < 2; add += IF_SLOW_BUILD(2, 1)) {
					for (int i = 0; i < n_x * ROWS; i++) {
						const int j = i / ROWS, row_w = i % ROWS;
						y_want[j][row_w] = dots[j][row_w] + (add ? 0.25f * (float)i : 0);
					}
					for (int level = 0; (isa = cpu_isa_available(level)); level++) {
						for (int i = 0; i < n_x * ROWS; i++)
							y[i / ROWS][i % ROWS] = 0.25f * (float)i;
						isa->matvec((enum dtype)type, packed + 1, row, n, in, n_x, ROWS, out, add);
						check_equal(isa, info->name, "dot", y[0], y_want[0], (size_t)n_x * ROWS);
					}
				}
			free(packed);
			free(want);
			free(got);
			free(x);
		}
}

/* Products of weights with block scales: every weight is value times scale, rounded once, whatever
 * the number of rows and the edges of the blocks, at odd addresses. */
static void test_scaled_products_are_exact(void **state)
{
	(void)state;
	enum { N_OUT = 300, ROWS = 9 };
	static const int64_t widths[] = {1, 127, 128, 417, 1600};
	for (size_t k = 0; k < ARRAY_LEN(widths); k++) {
		const size_t n = (size_t)widths[k], blocks = (n + 127) / 128;
		const size_t n_scales = (N_OUT + 127) / 128 * blocks;
		uint8_t *values = NEW_ARRAY(uint8_t, N_OUT * n + 1);
		uint8_t *scales = NEW_ARRAY(uint8_t, n_scales * sizeof(float) + 1);
		float *f = NEW_ARRAY(float, n_scales), *w = NEW_ARRAY(float, N_OUT *n);
		float *x = NEW_ARRAY(float, ROWS *n), y[ROWS * N_OUT], want[ROWS * N_OUT];
		struct rng r = {(uint64_t)k + 3};
		op_random(3, 1, x, ROWS * n);
		op_random(5, 2, f, n_scales);
		memcpy(scales + 1, f, n_scales * sizeof *f);
		for (size_t i = 0; i < N_OUT * n; i++) {
			uint8_t v = (uint8_t)(rng_u64(&r) >> 56);
			values[i + 1] = (v & 0x7f) == 0x7f ? 0 : v;
			w[i] = f8_e4m3_to_f32(values[i + 1]) * f[i / n / 128 * blocks + i % n / 128];
		}
		struct matmul part = {.w = {.data = values + 1,
								  .type = DTYPE_F8_E4M3,
								  .n_in = widths[k],
								  .n_out = N_OUT,
								  .n_stack = 1,
								  .row_bytes = n,
								  .stack_bytes = N_OUT * n,
								  .scales = scales + 1},
			.y = y};
		for (int i = 0; i < ROWS * N_OUT; i++)
			want[i] = plain_dot(w + (size_t)(i % N_OUT) * n, x + (size_t)(i / N_OUT) * n, n);
		for (int level = 0; cpu_isa_available(level); level++) {
			struct backend *b = open_backend(level, 2);
			for (int rows = 1; rows <= ROWS; rows += 4) {
				b->ops->matmul(b, &part, 1, x, rows);
				check_equal(cpu_isa_available(level), "F8_E4M3", "scaled dot", y, want,
					(size_t)rows * N_OUT);
			}
			b->ops->close(b);
		}
		free(values);
		free(scales);
		free(f);
		free(w);
		free(x);
	}
}

/* The sigmoid (its exponential, a sum, a quotient) over the whole range, and the same in every
 * instruction set. Results below 2^-127 may be 0. */
static void test_exponential(void **state)
{
	(void)state;
	double worst = 0;
	enum { N = 1 << 14 };
	static float x[N], y[N], z[N];
	for (int part = 0; part < 16; part += IF_SLOW_BUILD(3, 1)) {
		for (int i = 0; i < N; i++)
			x[i] = (float)((part * N + i) / (16.0 * N) * 220 - 110);
		if (!part)
			x[0] = -INFINITY, x[1] = INFINITY, x[2] = NAN, x[3] = -0.0f;
		cpu_isa_c->sigmoid(x, N, y);
		for (int level = 0; cpu_isa_available(level); level++) {
			cpu_isa_available(level)->sigmoid(x, N, z);
			for (int i = 0; i < N; i++)
				assert_true(f32_bits(y[i]) == f32_bits(z[i]) || (isnan(y[i]) && isnan(z[i])));
		}
		for (int i = 0; i < N; i++) {
			double v = 1 / (1 + exp(-(double)x[i])),
				   error = fabs((double)y[i] - v) / (v * 0x1p-23 + 0x1p-127);
			if (isnan(x[i]) ? !isnan(y[i]) : error > 2.5)
				fail_msg("sigmoid(%g) = %.9g, must be %.9g", (double)x[i], (double)y[i], v);
			worst = fmax(worst, isnan(error) ? 0 : error);
		}
	}
	print_message("sigmoid: worst error %.2f units in the last place\n", worst);
}

/* ---- what ops do with failures and odd values ---- */

static void test_failure_is_kept(void **state)
{
	(void)state;
	struct backend *b = open_backend(0, 1);
	struct err e = {0};
	void *p = NULL;
	assert_int_equal(b->ops->alloc(b, MEM_DEVICE, (size_t)1 << 60, &p, &e), ERR_MEMORY);
	assert_null(p);
	assert_int_equal(b->failure.code, 0); /* alloc reports itself and leaves the backend usable */
	float x[4] = {1, 2, 3, 4}, up[4] = {1, 1, 1, 1}, y[4] = {0};
	err_set(&b->failure, ERR_RUN, "made up");
	b->ops->swiglu(b, x, up, 4, y);
	assert_true(y[0] == 0);
	memset(&e, 0, sizeof e);
	assert_int_equal(b->ops->download(b, y, x, sizeof x, &e), ERR_RUN);
	assert_string_equal(e.text, "made up");
	assert_true(y[3] == 0);
	assert_int_equal(b->ops->wait(b, NULL), ERR_RUN);
	b->ops->close(b);
}

static void test_nan_scores_come_last(void **state)
{
	(void)state;
	struct backend *b = open_backend(0, 1);
	enum { N = 40, DIM = 16 };
	float keys[N * DIM] = {0}, q[DIM] = {1},
				   weight[1] = {-1}; /* negative scores, so that NaN could pass for the best */
	for (int t = 0; t < N; t++)
		keys[t * DIM] = t % 4 == 1 ? NAN : (float)t;
	int32_t pos = N - 1, base = 0, sel[30], n_sel;
	struct batch rows = {1, &pos, &base, pos};
	struct index_select a = {1, DIM, 30, q, weight, {keys, DTYPE_F32, DIM}, sel, &n_sel};
	b->ops->index_select(b, &rows, &a);
	assert_int_equal(n_sel, 30);
	for (int i = 0; i < 30; i++)
		assert_int_equal(sel[i], i / 3 * 4 + (i % 3 ? i % 3 + 1 : 0));
	float logits[6] = {NAN, 1, NAN, 2, NAN, NAN}, bias[6] = {0}, weights[4];
	uint64_t expert_ids[4];
	int32_t ids[4];
	struct route r = {.n_experts = 6,
		.n_used = 4,
		.n_group = 1,
		.n_group_used = 1,
		.normalise = true,
		.scale = 1,
		.logits = logits,
		.bias = bias,
		.expert_ids = expert_ids,
		.weights = weights};
	b->ops->route(b, &r, 1, 1);
	assert_int_equal(b->ops->wait_expert_ids(b, b->fence_value, expert_ids, 4, ids, NULL), 0);
	assert_int_equal(ids[0], 3);
	assert_int_equal(ids[1], 1);
	assert_int_equal(ids[2], 0);
	assert_int_equal(ids[3], 2);
	b->ops->close(b);
}

static void test_open(void **state)
{
	(void)state;
	struct backend *b;
	struct err e = {0};
	struct backend_options options = {.name = "gpu9"};
	assert_int_equal(backend_open(&options, &b, &e), ERR_USAGE);
	assert_null(b);
	assert_non_null(strstr(e.text, "gpu9"));
	options = (struct backend_options){.name = "cpu", .threads = -1};
	assert_int_equal(backend_open(&options, &b, &e), ERR_USAGE);
	options.threads = 3;
	assert_int_equal(backend_open(&options, &b, &e), 0);
	assert_string_equal(b->ops->name, "cpu");
	assert_non_null(strstr(backend_describe(b), "3 threads"));
	assert_true(b->ops->free_bytes(b) > 0);
	void *p = NULL;
	assert_int_equal(b->ops->alloc(b, MEM_SHARED, 12345, &p, &e), 0);
	assert_int_equal((uintptr_t)p % 4096, 0);
	b->ops->free(b, MEM_SHARED, p, 12345);
	b->ops->free(b, MEM_DEVICE, NULL, 0);
	b->ops->close(b);
}

/* The times of profile events are a part of the waits, whatever an event between empty segments
 * takes. */
static void test_usage_notes(void **state)
{
	(void)state;
	struct backend_usage from = {0}, to = {.event_gap_ns = 3900};
	from.n_intervals[USAGE_EXPERTS] = 25;
	from.idle_ns[USAGE_EXPERTS] = 1000;
	to.n_intervals[USAGE_EXPERTS] = 100;
	to.idle_ns[USAGE_EXPERTS] =
		1000 + 139000; /* 1.85 us each: less than a note between empty ones */
	to.n_intervals[USAGE_GRAPH] = 10;
	to.idle_ns[USAGE_GRAPH] = 500000;
	assert_true(usage_event_overhead_ns(&from, &to, USAGE_EXPERTS) == 139000);
	assert_true(usage_event_overhead_ns(&from, &to, USAGE_GRAPH) == 39000);
	assert_true(usage_event_overhead_ns(&from, &to, USAGE_OTHER) == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_packed_rows_are_exact),
		cmocka_unit_test(test_scaled_products_are_exact),
		cmocka_unit_test(test_exponential),
		cmocka_unit_test(test_formulas),
		cmocka_unit_test(test_rows_are_independent),
		cmocka_unit_test(test_threads_do_not_matter),
		cmocka_unit_test(test_instruction_sets_agree),
		cmocka_unit_test(test_failure_is_kept),
		cmocka_unit_test(test_nan_scores_come_last),
		cmocka_unit_test(test_usage_notes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
