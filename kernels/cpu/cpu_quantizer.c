/* SPDX-License-Identifier: MIT */
/*
 * The CPU's quantizer: rows become floats block by block (QUANT_VALUES), so a task holds little
 * beside its source, and reading a matrix again for the energy of its columns costs no I/O.
 */
#include "kernels/quantizer.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "src/quant/quantize.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUANT_VALUES (1u << 18) /* floats of a block, unless one row has more */

struct cpu_quantizer {
	struct quantizer base;
	float *rows, *turned, *weights; /* they grow */
	double *energy;
	uint64_t n_rows, n_turned, n_cols; /* values they hold */
};

static int grow_buffers(struct cpu_quantizer *q, const struct quantize_task *t, struct err *e)
{
	const uint64_t cols = t->source.cols, all = t->source.rows * cols,
				   rows = t->transposed ? all : MAX(cols, MIN(all, QUANT_VALUES)),
				   turned = t->transposed ? all : 0;
	if (rows > q->n_rows) {
		free(q->rows);
		q->rows = mem_try_new(rows, sizeof *q->rows);
		q->n_rows = q->rows ? rows : 0;
	}
	if (turned > q->n_turned) {
		free(q->turned);
		q->turned = mem_try_new(turned, sizeof *q->turned);
		q->n_turned = q->turned ? turned : 0;
	}
	if (cols > q->n_cols) {
		free(q->weights);
		free(q->energy);
		q->weights = mem_try_new(cols, sizeof *q->weights);
		q->energy = mem_try_new(cols, sizeof *q->energy);
		q->n_cols = q->weights && q->energy ? cols : 0;
	}
	if (q->n_rows < rows || q->n_turned < turned || q->n_cols < cols)
		return err_set(e, ERR_MEMORY, "no memory for rows of %" PRIu64 " values", cols);
	return 0;
}

static uint64_t first_not_finite(const float *v, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (!isfinite(v[i]))
			return i;
	return QUANTIZE_ALL_FINITE;
}

static uint64_t rows_at_once(const struct quantize_task *t)
{
	return MAX(1, QUANT_VALUES / t->source.cols);
}

/* Rows [row, end) as floats; false: one of them is not finite. */
static bool load_rows(struct cpu_quantizer *q, const struct quantize_task *t, uint64_t row,
	uint64_t end, uint64_t *not_finite)
{
	raw_matrix_rows(&t->source, row, end, q->rows);
	const uint64_t bad = first_not_finite(q->rows, (end - row) * t->source.cols);
	if (bad == QUANTIZE_ALL_FINITE)
		return true;
	*not_finite = row * t->source.cols + bad;
	return false;
}

static bool is_cancelled(const struct quantize_task *t)
{
	return t->cancelled && t->cancelled(t->user);
}

/* Mean square of each column. Rows are added in order, so the sum is the same in every run. */
static int column_energy(
	struct cpu_quantizer *q, const struct quantize_task *t, uint64_t *not_finite, struct err *e)
{
	const uint64_t rows = t->source.rows, cols = t->source.cols;
	memset(q->energy, 0, cols * sizeof *q->energy);
	for (uint64_t row = 0, end; row < rows; row = end) {
		end = MIN(rows, row + rows_at_once(t));
		if (is_cancelled(t))
			return err_set(e, ERR_INTERRUPTED, "interrupted");
		if (!load_rows(q, t, row, end, not_finite))
			return 0;
		for (uint64_t r = 0; r < end - row; r++)
			for (uint64_t c = 0; c < cols; c++) {
				const double v = q->rows[r * cols + c];
				q->energy[c] += v * v;
			}
	}
	for (uint64_t c = 0; c < cols; c++)
		q->weights[c] = (float)(q->energy[c] / (double)rows);
	return 0;
}

static void quantize_rows(const struct quantize_task *t, const float *rows, uint64_t n,
	uint64_t cols, const float *weights, uint8_t *out)
{
	uint64_t bytes = 0;
	dtype_row_bytes(t->type, cols, &bytes);
	for (uint64_t r = 0; r < n; r++, rows += cols, out += bytes) {
		if (t->feedback)
			quantize_row_feedback(t->type, rows, out, cols, weights, t->feedback);
		else
			quantize_row(t->type, rows, out, cols, weights);
	}
}

static int run_transposed(
	struct cpu_quantizer *q, const struct quantize_task *t, uint64_t *not_finite)
{
	const uint64_t rows = t->source.rows, cols = t->source.cols;
	if (!load_rows(q, t, 0, rows, not_finite))
		return 0;
	for (uint64_t c = 0; c < cols; c++)
		for (uint64_t r = 0; r < rows; r++)
			q->turned[c * rows + r] = q->rows[r * cols + c];
	quantize_rows(t, q->turned, cols, rows, NULL, t->packed);
	return 0;
}

static int cpu_run(
	struct quantizer *base, const struct quantize_task *t, uint64_t *not_finite, struct err *e)
{
	struct cpu_quantizer *q = (struct cpu_quantizer *)base;
	const float *weights = t->importance;
	uint64_t bytes = 0;
	int code = grow_buffers(q, t, e);
	*not_finite = QUANTIZE_ALL_FINITE;
	if (code)
		return code;
	if (t->transposed)
		return run_transposed(q, t, not_finite);
	if (t->energy) {
		if ((code = column_energy(q, t, not_finite, e)) || *not_finite != QUANTIZE_ALL_FINITE)
			return code;
		weights = q->weights;
	}
	dtype_row_bytes(t->type, t->source.cols, &bytes);
	for (uint64_t row = 0, end; row < t->source.rows; row = end) {
		end = MIN(t->source.rows, row + rows_at_once(t));
		if (is_cancelled(t))
			return err_set(e, ERR_INTERRUPTED, "interrupted");
		if (!load_rows(q, t, row, end, not_finite))
			return 0;
		quantize_rows(
			t, q->rows, end - row, t->source.cols, weights, (uint8_t *)t->packed + row * bytes);
	}
	return 0;
}

static bool cpu_supports(const struct quantize_task *t)
{
	return quantize_supported(t->type) && raw_matrix_supported(t->source.type);
}

static void *cpu_host_alloc(struct quantizer *q, size_t bytes)
{
	(void)q;
	return bytes > SIZE_MAX - 4096 ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}

static void cpu_host_free(struct quantizer *q, void *p, size_t bytes)
{
	(void)q, (void)bytes;
	free(p);
}

static size_t cpu_card_bytes(const struct quantizer *q)
{
	(void)q;
	return 0;
}

static void cpu_close(struct quantizer *base)
{
	struct cpu_quantizer *q = (struct cpu_quantizer *)base;
	free(q->rows);
	free(q->turned);
	free(q->weights);
	free(q->energy);
	free(q);
}

int quantizer_cpu_open(struct quantizer **out, struct err *e)
{
	static const struct quantizer_ops ops = {.name = "cpu",
		.supports = cpu_supports,
		.run = cpu_run,
		.host_alloc = cpu_host_alloc,
		.host_free = cpu_host_free,
		.card_bytes = cpu_card_bytes,
		.close = cpu_close};
	struct cpu_quantizer *q = mem_try_new(1, sizeof *q);
	*out = NULL;
	if (!q)
		return err_set(e, ERR_MEMORY, "no memory for a quantizer");
	q->base.ops = &ops;
	*out = &q->base;
	return 0;
}
