/* SPDX-License-Identifier: MIT */
/*
 * The squared error of each column is weighed by the first of these that applies:
 * - the imatrix;
 * - with error feedback, and for IQ2_XXS (computed by the quantizer), the column's sum of squares;
 * - the weights that the type itself defines.
 */
#include "tools/convert/convert_quantise.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOMENT_ROWS 64 /* rows whose moments are added at a time */
/* Trust in the correlations of a matrix's own columns, in place of its inputs'. Chosen by KL of
 * IQ2_XXS on the pocket model: 0.0120 with 0.3, 0.0131 with 0.5, 0.0132 with 0.7. */
#define OWN_COLUMNS_TRUST 0.3f
/* Q4_K, Q5_K and Q6_K multiply the trust in moments of inputs by this. Rows whose inputs are unlike
 * those of the moments lose by error feedback, and at these types a few rows are most of the KL.
 * With all of the trust it is 0.87, 1.03, 1.31 of llama-quantize's, with 0.6 of it 0.81, 0.80, 0.80
 * (tests/bench/results/convert.md). */
#define FINE_TYPES_TRUST 0.6f

/* The largest rows, and the most blocks of columns of a row with error feedback. */
struct row_most {
	uint64_t cols, blocks;
};

static struct row_most measure_rows(const struct convert_choices *c)
{
	struct row_most most = {0};
	for (size_t i = 0; i < c->plan->n_tensors; i++) {
		const uint64_t n = c->plan->tensors[i].src_cols;
		most.cols = MAX(most.cols, n);
		if (c->feedback[i])
			most.blocks = MAX(most.blocks, n / FEEDBACK_COLUMNS);
	}
	return most;
}

uint64_t convert_context_bytes(const struct convert_choices *c)
{
	const struct row_most most = measure_rows(c);
	return (2u << 20) + most.cols * 4 * sizeof(float) +
		   most.blocks * (FEEDBACK_MOMENTS * sizeof(float) + sizeof(struct quant_feedback) +
							 MOMENT_ROWS * FEEDBACK_COLUMNS * sizeof(float));
}

int convert_context_init(struct convert_context *c, const struct convert_choices *choices,
	struct quantizer *quantizer, struct err *e)
{
	const struct row_most most = measure_rows(choices);
	*c = (struct convert_context){.choices = choices, .quantizer = quantizer};
	c->importance = mem_try_new(most.cols, sizeof *c->importance);
	c->moments = mem_try_new(most.blocks, FEEDBACK_MOMENTS * sizeof *c->moments);
	c->values = mem_try_new(MOMENT_ROWS * most.blocks, FEEDBACK_COLUMNS * sizeof *c->values);
	c->row = mem_try_new(MOMENT_ROWS, sizeof *c->row);
	c->feedback = mem_try_new(most.blocks, sizeof *c->feedback);
	c->work = mem_try_new(FEEDBACK_COLUMNS * FEEDBACK_COLUMNS, sizeof *c->work);
	if (!c->importance || !c->row || !c->work || !c->moments || !c->values || !c->feedback)
		return err_set(e, ERR_MEMORY, "no memory for rows of %" PRIu64 " values", most.cols);
	return 0;
}

void convert_context_fini(struct convert_context *c)
{
	if (c->quantizer)
		c->quantizer->ops->close(c->quantizer);
	free(c->importance);
	free(c->moments);
	free(c->values);
	free(c->row);
	free(c->feedback);
	free(c->work);
}

bool convert_source_type(const struct safetensors_tensor *t, enum dtype *out)
{
	*out = t->dtype == ST_F32    ? DTYPE_F32
		   : t->dtype == ST_F16  ? DTYPE_F16
		   : t->dtype == ST_BF16 ? DTYPE_BF16
								 : DTYPE_F8_E4M3;
	return t->dtype == ST_F32 || t->dtype == ST_F16 || t->dtype == ST_BF16 ||
		   t->dtype == ST_F8_E4M3;
}

bool convert_can_quantise(
	const struct convert_choices *c, const struct quantizer *q, const struct convert_unit *u)
{
	static const struct quant_feedback some;
	const struct convert_tensor *t = &c->plan->tensors[u->tensor];
	struct quantize_task task = {.type = t->type,
		.transposed = t->transposed,
		.feedback = c->feedback[u->tensor] ? &some : NULL};
	return (u->row1 - u->row0) * t->src_cols <= CONVERT_UNIT_VALUES &&
		   convert_source_type(t->slabs[u->slab].src, &task.source.type) && q->ops->supports(&task);
}

/* Second moments of the matrix's own columns. */
static void column_moments(struct convert_context *c, const struct raw_matrix *m)
{
	const uint64_t n = m->cols / FEEDBACK_COLUMNS;
	memset(c->moments, 0, n * FEEDBACK_MOMENTS * sizeof *c->moments);
	for (uint64_t row = 0, end; row < m->rows; row = end) {
		end = MIN(m->rows, row + MOMENT_ROWS);
		raw_matrix_rows(m, row, end, c->values);
		for (uint64_t r = 0; r < end - row; r++)
			c->row[r] = c->values + r * m->cols;
		for (uint64_t i = 0; i < n; i++)
			quant_feedback_add_rows(
				c->moments + i * FEEDBACK_MOMENTS, c->row, end - row, i * FEEDBACK_COLUMNS);
	}
}

/* The energy of each column, the diagonal of its moments, as its importance: importance[cols]. */
static void moments_importance(const float *moments, uint64_t cols, float *importance)
{
	for (uint64_t i = 0; i < cols; i += FEEDBACK_COLUMNS)
		for (uint64_t c = 0; c < FEEDBACK_COLUMNS; moments += FEEDBACK_COLUMNS - c++)
			importance[i + c] = moments[0];
}

/* Computes c->feedback, the factors of each block of columns, from the moments of the matrix's
 * inputs where the imatrix has them, else from those of its own columns. has_importance:
 * c->importance is filled; else it becomes the energy of the columns. */
static int make_feedback(struct convert_context *c, const struct convert_unit *u,
	const struct raw_matrix *m, bool has_importance, struct err *e)
{
	const struct convert_tensor *t = &c->choices->plan->tensors[u->tensor];
	const struct imatrix_file *imatrix = c->choices->imatrix;
	float trust = OWN_COLUMNS_TRUST;
	if (!has_importance || !imatrix ||
		!imatrix_file_moments(imatrix, t->name, u->slab, m->cols, c->moments, &trust)) {
		column_moments(c, m);
	} else {
		int code = imatrix_file_check_lost(imatrix, e);
		if (code)
			return code;
		if (t->type == DTYPE_Q4_K || t->type == DTYPE_Q5_K || t->type == DTYPE_Q6_K)
			trust *= FINE_TYPES_TRUST;
	}
	if (!has_importance)
		moments_importance(c->moments, m->cols, c->importance);
	for (uint64_t i = 0; i < m->cols / FEEDBACK_COLUMNS; i++) {
		const bool definite =
			quant_feedback_make(&c->feedback[i], c->moments + i * FEEDBACK_MOMENTS,
				c->importance + i * FEEDBACK_COLUMNS, trust, c->work);
		c->counts.blocks++;
		c->counts.not_definite += !definite;
		c->counts.uncorrelated += definite && !c->feedback[i].correlated;
	}
	return 0;
}

int convert_quantise(struct convert_context *c, const struct convert_unit *u,
	const struct raw_matrix *m, void *packed, bool (*cancelled)(void *user), void *user,
	uint64_t *not_finite, struct err *e)
{
	const struct convert_tensor *t = &c->choices->plan->tensors[u->tensor];
	const struct imatrix_file *imatrix = c->choices->imatrix;
	struct quantize_task task = {.source = *m,
		.type = t->type,
		.transposed = t->transposed,
		.packed = packed,
		.cancelled = cancelled,
		.user = user};
	int code = 0;
	if (c->choices->has_importance[u->tensor] && !t->transposed) {
		if (imatrix_file_get(imatrix, t->name, u->slab, m->cols, c->importance))
			task.importance = c->importance;
		if ((code = imatrix_file_check_lost(imatrix, e)))
			return code;
	}
	if (c->choices->feedback[u->tensor]) {
		if ((code = make_feedback(c, u, m, task.importance != NULL, e)))
			return code;
		task.importance = c->importance;
		task.feedback = c->feedback;
	}
	task.energy = !task.importance && t->type == DTYPE_IQ2_XXS;
	return c->quantizer->ops->run(c->quantizer, &task, not_finite, e);
}
