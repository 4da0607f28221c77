/* SPDX-License-Identifier: MIT */
/*
 * The float half of the contract (points 3 and 4 of kernels/expert_arithmetic.h) for the vector
 * versions: the 16 lanes of a vector are 16 weight rows. limb_rows_avx2.c and limb_rows_vnni.c
 * include this header, so each compiles its own copy. Each defines
 *
 *     static void super_block_sums(const struct limb_group *t, const uint8_t *w, int64_t block,
 *         int steps, struct limb_sums *s)
 *
 * which fills *s for one super-block of a group of rows. `w`: the super-block of row 0; block: its
 * number; steps: blocks of 32 values that the row still has, at most 8.
 */
#ifndef GLM_KERNELS_LIMB_FLOATS_H
#define GLM_KERNELS_LIMB_FLOATS_H

#include "kernels/cpu/limbs/limb_group.h"
#include "src/base/num.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

/* Exact sums of one super-block. Q8_0 has one `whole` and one `unit` per step, the others only the
 * first. Units and minima are halves. */
struct limb_sums {
	_Alignas(64) int32_t whole[LIMB_STEPS][LIMB_X][EXPERT_LIMBS][LIMB_ROWS];
	int32_t least[LIMB_X][EXPERT_LIMBS][LIMB_ROWS];
	uint16_t unit[LIMB_STEPS][LIMB_ROWS], minimum[LIMB_ROWS];
};

static void super_block_sums(
	const struct limb_group *t, const uint8_t *w, int64_t block, int steps, struct limb_sums *s);

ALWAYS_INLINE void halves_to_floats(const uint16_t *half, float *out)
{
	for (int i = 0; i < LIMB_ROWS; i += 8)
		_mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + i))));
}

/* sum[x][limb][row] += this super-block */
ALWAYS_INLINE void add_super_block(const struct limb_group *t, const struct limb_sums *s,
	int64_t block, int steps, float sum[][EXPERT_LIMBS][LIMB_ROWS])
{
	const bool codebook = t->type == DTYPE_IQ2_XXS || t->type == DTYPE_IQ2_XS,
			   minima = t->type == DTYPE_Q2_K || t->type == DTYPE_Q4_K;
	float unit[LIMB_STEPS][LIMB_ROWS], minimum[LIMB_ROWS];
	if (t->type != DTYPE_Q8_0)
		steps = 1;
	for (int step = 0; step < steps; step++)
		halves_to_floats(s->unit[step], unit[step]);
	if (codebook)
		for (int r = 0; r < LIMB_ROWS; r++)
			unit[0][r] *= 0.125f;
	if (minima)
		halves_to_floats(s->minimum, minimum);
	for (int i = 0; i < t->n_x; i++) {
		float x_scale = t->x[i][block].scale;
		for (int k = 0; k < EXPERT_LIMBS; k++) {
			float v[LIMB_ROWS];
			if (t->type == DTYPE_Q8_0) {
				memset(v, 0, sizeof v);
				for (int step = 0; step < steps; step++)
					for (int r = 0; r < LIMB_ROWS; r++)
						v[r] = fmaf(unit[step][r], (float)s->whole[step][i][k][r], v[r]);
			} else {
				for (int r = 0; r < LIMB_ROWS; r++)
					v[r] = unit[0][r] * (float)s->whole[0][i][k][r];
				for (int r = 0; minima && r < LIMB_ROWS; r++)
					v[r] = fmaf(-minimum[r], (float)s->least[i][k][r], v[r]);
			}
			for (int r = 0; r < LIMB_ROWS; r++)
				sum[i][k][r] = fmaf(x_scale, v[r], sum[i][k][r]);
		}
	}
}

static void group_multiply(const struct limb_group *t, float *out, int64_t out_stride)
{
	const struct dtype_info *info = dtype_info(t->type);
	const size_t super_block_bytes = 256 / info->block_values * info->block_bytes;
	const int64_t n_blocks = limb_x_blocks(t->n_in);
	const int chunk = expert_chunk(t->type);
	struct limb_sums s;
	float sum[EXPERT_SPLIT_MAX][LIMB_X][EXPERT_LIMBS][LIMB_ROWS];
	for (int p = 0; p < t->n_parts; p++)
		memset(sum[p], 0, (size_t)t->n_x * sizeof sum[p][0]);
	if (t->n_rows < LIMB_ROWS) /* rows that the task does not have take part in the float steps */
		memset(&s, 0, sizeof s);
	for (int64_t b = 0; b < n_blocks; b++) {
		int steps = (int)MIN((t->n_in - 256 * b) / 32, LIMB_STEPS);
		super_block_sums(t, t->w + (size_t)b * super_block_bytes, b, steps, &s);
		add_super_block(t, &s, b, steps, sum[b / chunk % t->n_parts]);
	}
	for (int i = 0; i < t->n_x; i++) {
		float y[LIMB_ROWS] = {0};
		for (int p = 0; p < t->n_parts; p++)
			for (int r = 0; r < LIMB_ROWS; r++)
				y[r] +=
					fmaf(65536.0f, sum[p][i][0][r], fmaf(256.0f, sum[p][i][1][r], sum[p][i][2][r]));
		memcpy(out + i * out_stride, y, (size_t)t->n_rows * sizeof *y);
	}
}

static void vector_multiply(const struct limb_task *t)
{
	for (int64_t first = 0; first < t->n_rows; first += LIMB_ROWS) {
		const struct limb_group g = limb_group_of(t, first);
		group_multiply(&g, t->out + first, t->out_stride);
	}
}

#endif
