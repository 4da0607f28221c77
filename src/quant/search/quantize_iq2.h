/* SPDX-License-Identifier: MIT */
/*
 * IQ2_XXS: 8 weights take one of 256 rows of magnitudes and 7 sign bits (the number of minus signs
 * is even), 32 weights a scale dl = d * (0.5 + s) / 4 with s = 0 .. 15, 256 weights one half d.
 *
 * Objective: squared error of the decoded weights, columns weighted by `importance`, equal without
 * it.
 *
 * For a row of magnitudes g and a scale dl the error is, with each weight's own sign,
 *     sum w (|x| - dl g)^2 = const - 2 dl sum w |x| g + dl^2 sum w g^2.
 * When the number of minus signs is odd, one sign must be wrong. It is the one with the least
 * w |x| g, which adds 4 dl min(w |x| g). So with
 *     P = sum w |x| g - 2 min(w |x| g) [odd],     B = sum w g^2
 * the error of every row at every scale is dl^2 B - 2 dl P. P and B are computed once for the 256
 * rows; the exact best row at any scale then costs one multiply-add per row, and the search over
 * scales can be wide:
 *   1. Each 32 weights: the best real dl among points around their mean size, improved by
 *      dl = sum P / sum B.
 *   2. d: several candidates that put the largest dl near the top of s; for each, the best s near
 *      4 dl / d - 0.5.
 *   3. Least squares for d with rows and s fixed, then s again, until the error stops falling.
 *   4. Rows and s fixed: d grows (quant_block_growth).
 */
#ifndef GLM_QUANT_QUANTIZE_IQ2_H
#define GLM_QUANT_QUANTIZE_IQ2_H

#include "src/base/num.h"
#include "src/quant/iq_grids.h"
#include "src/quant/search/quant_feedback.h"

#define IQ2_ROWS            256 /* of the codebook */
#define IQ2_PARTS           32  /* groups of 8 weights in a block */
#define IQ2_POINTS          12  /* real scales tried per 32 weights */
#define IQ2_CANDIDATES      6   /* values of d tried */
#define IQ2_RADIUS          1
#define IQ2_ROUNDS_MAX      4     /* of least squares for d */
#define IQ2_GROWTH          0.08f /* most of quant_block_growth */
#define IQ2_FEEDBACK_RADIUS 2
#define IQ2_FEEDBACK_GROWTH 0.04f /* most of feedback_growth */

/* The codebook as floats, one vector per eight rows and column. */
struct iq2_grid {
	v8 g[8][IQ2_ROWS / 8];
};

/* P and B of every row for 8 weights. */
struct iq2_part {
	v8 p[IQ2_ROWS / 8], b[IQ2_ROWS / 8];
};

struct iq2_fit {
	float d, error;
	uint16_t bits;
	uint8_t s[8];
};

QUANT_INLINE void iq2_grid_load(struct iq2_grid *grid)
{
	for (int i = 0; i < IQ2_ROWS; i++)
		for (int j = 0; j < 8; j++)
			grid->g[j][i / 8][i % 8] = (float)(iq2xxs_grid[i] >> 8 * j & 255);
}

QUANT_INLINE void iq2_part_load(struct iq2_part *part, const struct iq2_grid *grid, v8 x, v8 w)
{
	v8 wx = w * v8_abs(x);
	int minus = 0;
	for (int j = 0; j < 8; j++)
		minus += x[j] < 0;
	float penalty = minus & 1 ? 2 : 0;
	for (int i = 0; i < IQ2_ROWS / 8; i++) {
		v8 p = grid->g[0][i] * wx[0], b = grid->g[0][i] * grid->g[0][i] * w[0], least = p;
		for (int j = 1; j < 8; j++) {
			v8 g = grid->g[j][i], t = g * wx[j];
			p += t;
			b += g * g * w[j];
			least = v8_min(least, t);
		}
		part->p[i] = p - least * penalty;
		part->b[i] = b;
	}
}

/* Error less the constant of the best row at scale dl. */
QUANT_INLINE float iq2_part_error(const struct iq2_part *part, float dl)
{
	float twice = 2 * dl, square = dl * dl;
	v8 best = part->b[0] * square - part->p[0] * twice;
	for (int i = 1; i < IQ2_ROWS / 8; i++)
		best = v8_min(best, part->b[i] * square - part->p[i] * twice);
	float least = best[0];
	for (int i = 1; i < 8; i++)
		least = best[i] < least ? best[i] : least;
	return least;
}

/* The best row itself; ties go to the lowest index of the lowest lane. */
QUANT_INLINE int iq2_part_row(const struct iq2_part *part, float dl)
{
	float twice = 2 * dl, square = dl * dl;
	v8 best = part->b[0] * square - part->p[0] * twice;
	v8i row = {0};
	for (int i = 1; i < IQ2_ROWS / 8; i++) {
		v8 e = part->b[i] * square - part->p[i] * twice;
		v8i less = e < best;
		best = v8_select(less, e, best);
		row = (less & i) | (~less & row);
	}
	int lane = 0;
	for (int i = 1; i < 8; i++)
		lane = best[i] < best[lane] ? i : lane;
	return row[lane] * 8 + lane;
}

QUANT_INLINE float iq2_group_error(const struct iq2_part *part, float dl)
{
	return (iq2_part_error(part, dl) + iq2_part_error(part + 1, dl)) +
		   (iq2_part_error(part + 2, dl) + iq2_part_error(part + 3, dl));
}

/* Adds P and B of the rows chosen at scale dl by the four parts of a group. */
QUANT_INLINE void iq2_group_sums(const struct iq2_part *part, float dl, float *p, float *b)
{
	*p = *b = 0;
	for (int j = 0; j < 4; j++) {
		int row = iq2_part_row(part + j, dl);
		*p += part[j].p[row / 8][row % 8];
		*b += part[j].b[row / 8][row % 8];
	}
}

/* Real dl of least error for 32 weights. */
QUANT_INLINE float iq2_group_scale(const struct iq2_part *part, const v8 *x, const v8 *w)
{
	v8 xx = {0}, ww = {0};
	for (int i = 0; i < 4; i++) {
		xx += w[i] * x[i] * x[i];
		ww += w[i];
	}
	/* the codebook's root mean square is about 22; the error is flat around the best scale */
	float size = sqrtf(v8_sum(xx) / v8_sum(ww)) / 22, best = 0, best_dl = 0;
	for (int i = 0; i < IQ2_POINTS; i++) {
		float dl = size * (0.55f + 0.9f / IQ2_POINTS * (float)i), e = iq2_group_error(part, dl);
		if (e < best) {
			best = e;
			best_dl = dl;
		}
	}
	float p, b;
	iq2_group_sums(part, best_dl, &p, &b);
	return p > 0 ? p / b : best_dl;
}

/* Rounds d to a half and finds the best s of each group near its real scale. */
QUANT_INLINE void iq2_fit_scales(const struct quant_block *b, const struct iq2_part *parts,
	const float *dl, float d, struct iq2_fit *f)
{
	f->d = quant_block_scale(b, d, &f->bits);
	f->error = 0;
	for (int k = 0; k < 8; k++) {
		float ratio = f->d > 0 ? 4 * dl[k] / f->d : 0, least = INFINITY;
		int center = ratio < 15 ? (int)ratio : 15;
		for (int s = center - IQ2_RADIUS; s <= center + IQ2_RADIUS; s++) {
			if (s < 0 || s > 15)
				continue;
			float e = iq2_group_error(parts + 4 * k, f->d * (0.5f + (float)s) * 0.25f);
			if (e < least) {
				least = e;
				f->s[k] = (uint8_t)s;
			}
		}
		f->error += least;
	}
}

QUANT_INLINE void iq2_block_search(
	const struct quant_block *b, const struct iq2_part *parts, struct iq2_fit *best)
{
	float dl[8], top = 0;
	for (int k = 0; k < 8; k++) {
		dl[k] = iq2_group_scale(parts + 4 * k, b->x + 4 * k, b->w + 4 * k);
		top = dl[k] > top ? dl[k] : top;
	}
	*best = (struct iq2_fit){.error = INFINITY};
	for (int i = 0; i < IQ2_CANDIDATES; i++) {
		struct iq2_fit f;
		iq2_fit_scales(b, parts, dl, 4 * top / (15.5f - 0.75f * (float)i), &f);
		if (f.error < best->error)
			*best = f;
	}
	for (int round = 0; round < IQ2_ROUNDS_MAX; round++) {
		float sp = 0, sb = 0;
		for (int k = 0; k < 8; k++) {
			float unit = (0.5f + (float)best->s[k]) * 0.25f, p, q;
			iq2_group_sums(parts + 4 * k, best->d * unit, &p, &q);
			sp += unit * p;
			sb += unit * unit * q;
		}
		struct iq2_fit f;
		iq2_fit_scales(b, parts, dl, sp > 0 ? sp / sb : best->d, &f);
		if (!(f.error < best->error))
			break;
		*best = f;
	}
}

/* Rows and s stay; d grows against the shrinkage of least squares. */
QUANT_INLINE void iq2_block_grow(
	const struct quant_block *b, const struct iq2_part *parts, struct iq2_fit *f)
{
	float xy = 0, p, q;
	for (int k = 0; k < 8; k++) {
		float dl = f->d * (0.5f + (float)f->s[k]) * 0.25f;
		iq2_group_sums(parts + 4 * k, dl, &p, &q);
		xy += dl * p;
	}
	quant_block_scale(b, f->d * quant_block_growth(b, xy, IQ2_GROWTH), &f->bits);
}

/* Sign index of 8 weights for the chosen row: with an odd number of minus signs, the cheapest one
 * is turned over. */
QUANT_INLINE uint32_t iq2_signs(v8 x, v8 w, uint64_t row)
{
	uint32_t minus = 0;
	int cheapest = 0;
	float least = INFINITY;
	for (int j = 0; j < 8; j++) {
		minus |= (uint32_t)(x[j] < 0) << j;
		float cost = w[j] * fabsf(x[j]) * (float)(row >> 8 * j & 255);
		if (cost < least) {
			least = cost;
			cheapest = j;
		}
	}
	if (__builtin_parity(minus))
		minus ^= 1u << cheapest;
	return minus & 127;
}

/* 32 weights as stored, with s given: rows and signs. */
struct iq2_codes {
	uint32_t rows, signs;
};

/* d given: s, rows and signs of all groups, each for what the errors before it have made of its
 * weights. A row of magnitudes is chosen for eight columns at once, with the `joint` weights. */
QUANT_INLINE void iq2_feedback_pass(struct feedback_run *r, const struct quant_block *b,
	const struct iq2_grid *grid, struct iq2_fit *f, struct iq2_codes *codes)
{
	feedback_restart(r, b);
	for (int k = 0; k < 8; k++) {
		struct iq2_part parts[4];
		float least = INFINITY;
		int center = f->s[k];
		for (int j = 0; j < 4; j++)
			iq2_part_load(&parts[j], grid, r->t[4 * k + j], r->joint[4 * k + j]);
		for (int s = center - IQ2_FEEDBACK_RADIUS; s <= center + IQ2_FEEDBACK_RADIUS; s++) {
			if (s < 0 || s > 15)
				continue;
			float e = iq2_group_error(parts, f->d * (0.5f + (float)s) * 0.25f);
			if (e < least) {
				least = e;
				f->s[k] = (uint8_t)s;
			}
		}
		float dl = f->d * (0.5f + (float)f->s[k]) * 0.25f;
		codes[k] = (struct iq2_codes){0};
		for (int j = 0; j < 4; j++) {
			int i = 4 * k + j;
			if (j > 0) /* the first group's target is still the same */
				iq2_part_load(&parts[j], grid, r->t[i], r->joint[i]);
			int row = iq2_part_row(&parts[j], dl);
			uint32_t signs = iq2_signs(r->t[i], r->joint[i], iq2xxs_grid[row]);
			codes[k].rows |= (uint32_t)row << 8 * j;
			codes[k].signs |= signs << 7 * j;
			signs |= (uint32_t)__builtin_parity(signs) << 7;
			v8 y;
			for (int l = 0; l < 8; l++) {
				float g = dl * (float)(iq2xxs_grid[row] >> 8 * l & 255);
				y[l] = signs >> l & 1 ? -g : g;
			}
			r->miss[i] = feedback_miss(r->f, i, r->t[i] - y);
			feedback_take(r, b, i, y);
		}
	}
}

/* *f is the plain fit; it becomes the one with error feedback. */
QUANT_INLINE void iq2_feedback(const struct quant_block *b, const struct iq2_grid *grid,
	const struct quant_feedback *feedback, struct iq2_fit *f, struct iq2_codes *codes)
{
	struct feedback_run r;
	struct iq2_fit now = *f;
	struct iq2_codes now_codes[8];
	float factor = 1;
	feedback_begin(&r, feedback, b);
	f->error = INFINITY;
	for (int pass = 0; pass < FEEDBACK_PASSES; pass++) {
		iq2_feedback_pass(&r, b, grid, &now, now_codes);
		struct feedback_sums sums = feedback_sums(&r);
		if (sums.error < f->error) {
			*f = now;
			f->error = sums.error;
			memcpy(codes, now_codes, sizeof now_codes);
			factor = feedback_growth(&sums, IQ2_FEEDBACK_GROWTH);
		}
		now.d = quant_block_scale(b, now.d * sums.least, &now.bits);
	}
	f->d = quant_block_scale(b, f->d * factor, &f->bits);
}

QUANT_INLINE void iq2_codes(const struct quant_block *b, const struct iq2_part *parts,
	const struct iq2_fit *f, struct iq2_codes *codes)
{
	for (int k = 0; k < 8; k++) {
		float dl = f->d * (0.5f + (float)f->s[k]) * 0.25f;
		codes[k] = (struct iq2_codes){0};
		for (int j = 0; j < 4; j++) {
			int i = 4 * k + j, row = iq2_part_row(&parts[i], dl);
			codes[k].rows |= (uint32_t)row << 8 * j;
			codes[k].signs |= iq2_signs(b->x[i], b->w[i], iq2xxs_grid[row]) << 7 * j;
		}
	}
}

QUANT_INLINE void encode_iq2_xxs(const float *src, struct block_iq2_xxs *out,
	const float *importance, const struct quant_feedback *feedback, const struct iq2_grid *grid)
{
	struct quant_block b;
	struct iq2_part parts[IQ2_PARTS];
	struct iq2_codes codes[8];
	struct iq2_fit f;
	memset(out, 0, sizeof *out);
	if (!quant_block_load(&b, src, importance, QUANT_EVEN, BLOCK_BIG))
		return;
	for (int i = 0; i < IQ2_PARTS; i++)
		iq2_part_load(&parts[i], grid, b.x[i], b.w[i]);
	iq2_block_search(&b, parts, &f);
	if (feedback && feedback->correlated) {
		iq2_feedback(&b, grid, feedback, &f, codes);
	} else {
		iq2_block_grow(&b, parts, &f);
		iq2_codes(&b, parts, &f, codes);
	}
	out->d = f.bits;
	for (int k = 0; k < 8; k++) {
		store_u32(out->q + 4 * k, codes[k].rows);
		store_u32(out->q + 4 * k + 2, codes[k].signs | (uint32_t)f.s[k] << 28);
	}
}

static void quantize_row_iq2_xxs(const float *src, void *dst, size_t n, const float *importance,
	const struct quant_feedback *feedback)
{
	struct iq2_grid grid;
	iq2_grid_load(&grid);
	for (size_t i = 0; i < n / BLOCK_BIG; i++) {
		struct block_iq2_xxs b;
		encode_iq2_xxs(src + i * BLOCK_BIG, &b, importance ? importance + i * BLOCK_BIG : NULL,
			feedback ? feedback + i : NULL, &grid);
		memcpy((uint8_t *)dst + i * sizeof b, &b, sizeof b);
	}
}

#endif
