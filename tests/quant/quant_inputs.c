/* SPDX-License-Identifier: MIT */
#include "tests/quant/quant_inputs.h"

#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/rng.h"
#include "src/quant/feedback.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

const enum dtype quant_card_types[QUANT_CARD_TYPES] = {DTYPE_Q2_K, DTYPE_IQ2_XXS, DTYPE_Q3_K,
	DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_Q8_0, DTYPE_Q4_0};

const char *quant_input_name(enum quant_input input)
{
	static const char *const names[QUANT_INPUTS] = {
		"gauss", "heavy tails", "sparse", "constant", "extremes"};
	return names[input];
}

static double input_gauss(struct rng *r)
{
	return sqrt(-2 * log(1 - rng_unit(r))) * cos(2 * M_PI * rng_unit(r));
}

static float input_value(enum quant_input input, uint64_t i, struct rng *r)
{
	const double g = input_gauss(r), u = rng_unit(r);
	double sum = 0;
	switch (input) {
	case QUANT_HEAVY:
		for (int k = 0; k < 4; k++) {
			const double v = input_gauss(r);
			sum += v * v;
		}
		return (float)(0.02 * g / sqrt(sum / 4));
	case QUANT_SPARSE: /* blocks of zeros, sub-blocks of zeros, single values */
		return i / 256 % 3 == 0 || i / 16 % 5 < 2 || u < 0.7 ? 0 : (float)(0.02 * g);
	case QUANT_CONSTANT:
		return (float)((double)(i / 256 % 7) - 3) * 0.013f;
	case QUANT_EXTREMES: /* one magnitude a block */
		return (float)ldexp(g, (int)(i / 256 * 23 % 270) - 148);
	default:
		return (float)(0.02 * g);
	}
}

static void store_value(enum dtype type, void *values, uint64_t i, float v)
{
	v = v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
	if (type == DTYPE_F32) {
		((float *)values)[i] = v;
	} else if (type == DTYPE_F16) {
		((uint16_t *)values)[i] = f32_to_f16(v > 65504 ? 65504 : v < -65504 ? -65504 : v);
	} else if (type == DTYPE_BF16) {
		const uint16_t h = f32_to_bf16(v);
		((uint16_t *)values)[i] = (h & 0x7fff) == 0x7f80 ? (uint16_t)(h - 1) : h;
	} else { /* any finite E4M3 value will do */
		const uint32_t bits = f32_bits(v);
		const uint8_t b = (uint8_t)(bits >> 24 | (bits >> 13 & 15));
		((uint8_t *)values)[i] = (b & 127) == 127 ? (uint8_t)(b - 1) : b;
	}
}

void quant_matrix_init(struct quant_matrix *q, enum dtype type, uint64_t rows, uint64_t cols,
	enum quant_input input, uint64_t seed)
{
	struct rng r = {seed};
	const uint64_t bands = (rows + 2 * DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK,
				   n = bands * ((cols + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK);
	*q = (struct quant_matrix){.values = mem_new(rows * cols, dtype_info(type)->block_bytes),
		.scales = NEW_ARRAY(float, n),
		.importance = NEW_ARRAY(float, cols)};
	for (uint64_t i = 0; i < rows * cols; i++)
		store_value(type, q->values, i, input_value(input, i, &r));
	for (uint64_t i = 0; i < n; i++)
		q->scales[i] = (float)(0.001 * (1 + rng_unit(&r)));
	for (uint64_t c = 0; c < cols; c++) /* the first block has none: the default counts */
		q->importance[c] = c < 256 || c % 37 == 0 ? 0 : (float)exp(2 * input_gauss(&r));
	q->m = (struct raw_matrix){.type = type, .rows = rows, .cols = cols, .values = q->values};
	if (type == DTYPE_F8_E4M3) {
		q->m.scales = q->scales;
		q->m.first_row = 64;
	}
}

void quant_matrix_fini(struct quant_matrix *q)
{
	free(q->values);
	free(q->scales);
	free(q->importance);
}

/* Inputs of a block of columns: each is a mix of its neighbour and something new. */
static void add_inputs(float *moments, bool correlated, struct rng *r)
{
	float x[FEEDBACK_COLUMNS];
	const float *row = x;
	for (int k = 0; k < (correlated ? 300 : 0); k++) {
		for (int i = 0; i < FEEDBACK_COLUMNS; i++)
			x[i] = (float)input_gauss(r) + (i ? 0.7f * x[i - 1] : 0);
		quant_feedback_add_rows(moments, &row, 1, 0);
	}
}

struct quant_feedback *quant_inputs_feedback(uint64_t cols, const float *importance, float *used)
{
	const uint64_t n = cols / FEEDBACK_COLUMNS;
	struct quant_feedback *f = NEW_ARRAY(struct quant_feedback, n);
	double *work = NEW_ARRAY(double, FEEDBACK_COLUMNS *FEEDBACK_COLUMNS);
	struct rng r = {17};
	for (uint64_t c = 0; c < cols; c++)
		used[c] = importance ? importance[c] : (float)(1 + rng_unit(&r));
	for (uint64_t i = 0; i < n; i++) {
		float *moments = NEW_ARRAY(float, FEEDBACK_MOMENTS);
		add_inputs(moments, i + 1 < n, &r);
		quant_feedback_make(&f[i], moments, used + i * FEEDBACK_COLUMNS, 0.5f, work);
		free(moments);
	}
	free(work);
	return f;
}
