/* SPDX-License-Identifier: MIT */
/*
 * Error feedback for the card: src/quant/search/quant_feedback.h and the feedback passes of the
 * quantisers, which explain it. Functions are named as in src/quant.
 *
 * A warp quantises a block of 256 columns of one row. Its groups of eight columns are chosen one
 * after the other, by all lanes with the same result; the targets of the later groups are updated
 * by all lanes in parallel. A block begins with the fit that plain quantising has left, and its
 * bytes are overwritten.
 */
#ifndef GLM_KERNELS_CUDA_FEEDBACK_QUANT_CUH
#define GLM_KERNELS_CUDA_FEEDBACK_QUANT_CUH

#include "kernels/cuda/quant/affine_quant.cuh"
#include "kernels/cuda/quant/iq2_quant.cuh"
#include "kernels/cuda/quant/sym_quant.cuh"

#ifdef __cplusplus
extern "C" {
#endif
#include "src/quant/feedback.h"
#ifdef __cplusplus
}
#endif

#define TEAM_FEEDBACK_PASSES 3

/* In shared memory, one for each warp. */
struct feedback_state {
	float x[BLOCK_BIG]; /* the block, scaled as by quant_load */
	/* as in struct feedback_run (src/quant/search/quant_feedback.h): targets, U' e, U' x */
	float t[BLOCK_BIG], miss[BLOCK_BIG], white[BLOCK_BIG];
	struct quant_state best; /* q, best_s and best_m: what is packed */
	uint8_t q[BLOCK_BIG];
	int8_t s[16], m[16];
	uint32_t rows[8], signs[8], best_rows[8], best_signs[8];
};

struct team_feedback_sums {
	float error, least, even;
};

/* Moves the targets of the groups behind group i by its errors e. Begins and ends with a barrier of
 * the team. */
QUANT_FN void feedback_spread(struct feedback_state *st, struct quant_team t,
	const struct quant_feedback *f, int i, const float *e)
{
	team_sync(t);
	for (int c = 8 * (i + 1) + t.lane; c < BLOCK_BIG; c += t.size) {
		float sum = st->t[c];
		QUANT_UNROLL
		for (int j = 0; j < 8; j++)
			sum += f->between[i][c / 8][j][c % 8] * e[j];
		st->t[c] = sum;
	}
	team_sync(t);
}

/* Of lane l of group i. */
QUANT_FN float feedback_miss(const struct quant_feedback *f, int i, const float *v, int l)
{
	float w = v[l];
	for (int j = 0; j < 7; j++)
		w += f->within[8 * i + j][l] * v[j];
	return w;
}

QUANT_FN void feedback_restart(struct feedback_state *st, struct quant_team t)
{
	team_sync(t);
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		st->t[i] = st->x[i];
	team_sync(t);
}

/* x: the values of the block, scaled as quant_load has scaled them. */
QUANT_FN void feedback_begin(struct feedback_state *st, struct quant_team t,
	const struct quant_feedback *f, const struct raw_matrix *m, uint64_t row, uint64_t col,
	int exponent)
{
	const float scale1 = ldexpf(1, -exponent / 2), scale2 = ldexpf(1, -exponent - -exponent / 2);
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		st->x[i] = source_value(m, row, col + (uint64_t)i) * scale1 * scale2;
	feedback_restart(st, t);
	for (int i = 0; i < FEEDBACK_GROUPS; i++) {
		for (int l = t.lane; l < 8; l += t.size)
			st->white[8 * i + l] = feedback_miss(f, i, st->t + 8 * i, l);
		feedback_spread(st, t, f, i, st->x + 8 * i);
	}
}

/* Chooses the codes of group i, code c having the value a c - min, and stores c - low in st->q.
 * Then updates the targets of later groups. */
QUANT_FN void feedback_codes(struct feedback_state *st, struct quant_team t,
	const struct quant_feedback *f, int i, float a, float min, float low, float high)
{
	const float inverse = a != 0 ? 1 / a : 0;
	float target[8], y[8], e[8];
	QUANT_UNROLL
	for (int l = 0; l < 8; l++)
		target[l] = st->t[8 * i + l];
	QUANT_UNROLL
	for (int l = 0; l < 8; l++) {
		const float c = quant_code((target[l] + min) * inverse, low, high);
		y[l] = c * a - min;
		const float miss = st->t[8 * i + l] - y[l];
		QUANT_UNROLL
		for (int k = 0; k < 8; k++)
			target[k] += f->within[8 * i + l][k] * miss;
		if (!t.lane)
			st->q[8 * i + l] = (uint8_t)(c - low);
	}
	QUANT_UNROLL
	for (int l = 0; l < 8; l++) {
		e[l] = st->x[8 * i + l] - y[l];
		if (!t.lane)
			st->miss[8 * i + l] = target[l] - y[l];
	}
	feedback_spread(st, t, f, i, e);
}

QUANT_FN struct team_feedback_sums feedback_sums(
	const struct feedback_state *st, const struct quant_feedback *f)
{
	float ee[8] = {0}, xx[8] = {0}, xy[8] = {0}, yy[8] = {0};
	for (int i = 0; i < FEEDBACK_GROUPS; i++) {
		QUANT_UNROLL
		for (int l = 0; l < 8; l++) {
			const float x = st->white[8 * i + l], e = st->miss[8 * i + l], y = x - e,
						w = f->weight[8 * i + l], wy = w * y;
			ee[l] += w * e * e;
			xx[l] += w * x * x;
			xy[l] += wy * x;
			yy[l] += wy * y;
		}
	}
	const float a = lanes_sum(xy), b = lanes_sum(yy);
	struct team_feedback_sums sums = {lanes_sum(ee), 1, 1};
	if (a > 0 && b > 0) {
		sums.least = a / b;
		sums.even = lanes_sum(xx) / a;
	}
	return sums;
}

QUANT_FN float feedback_growth(const struct team_feedback_sums *s, float most)
{
	const float grown = s->least * (1 + most);
	return s->even > s->least ? s->even < grown ? s->even : grown : s->least;
}

/* Keeps the codes and integers of this pass as the best so far. */
QUANT_FN void feedback_keep(struct feedback_state *st, struct quant_team t)
{
	team_sync(t);
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		st->best.q[i] = st->q[i];
	for (int j = t.lane; j < 16; j += t.size) {
		st->best.best_s[j] = st->s[j];
		st->best.best_m[j] = st->m[j];
	}
	for (int k = t.lane; k < 8; k += t.size) {
		st->best_rows[k] = st->rows[k];
		st->best_signs[k] = st->signs[k];
	}
	team_sync(t);
}

/* The integers of the plain fit. */
QUANT_FN void feedback_take_fit(
	struct feedback_state *st, struct quant_team t, const struct plain_fit *fit)
{
	for (int j = t.lane; j < 16; j += t.size) {
		st->s[j] = fit->s[j];
		st->m[j] = fit->m[j];
	}
	team_sync(t);
}

/* ---- Q2_K, Q4_K, Q5_K ---- */

QUANT_FN void affine_feedback_pass(struct feedback_state *st, struct quant_team t,
	const struct affine_type *p, const struct quant_feedback *f, const struct affine_scales *now)
{
	feedback_restart(st, t);
	for (int j = 0; j < p->n_sub; j++) {
		const int at = 8 * p->n_vec * j;
		float x[AFFINE_VALUES], w[AFFINE_VALUES];
		QUANT_UNROLL
		for (int i = 0; i < 8 * p->n_vec; i++) {
			x[i] = st->t[at + i];
			w[i] = f->weight[at + i];
		}
		int8_t s = st->s[j], m = st->m[j];
		float a = now->d * (float)s, min = now->dmin * (float)m;
		affine_refit(x, w, p, &a, &min);
		affine_lattice(x, w, p, now->d, now->dmin, a, min, &s, &m);
		team_sync(t);
		if (!t.lane) {
			st->s[j] = s;
			st->m[j] = m;
		}
		a = now->d * (float)s;
		min = now->dmin * (float)m;
		for (int i = p->n_vec * j; i < p->n_vec * (j + 1); i++)
			feedback_codes(st, t, f, i, a, min, 0, p->top);
	}
	team_sync(t);
}

QUANT_FN void affine_feedback(struct feedback_state *st, struct quant_team t,
	const struct affine_type *p, const struct quant_feedback *f, const struct plain_fit *fit,
	struct affine_scales *out)
{
	struct affine_scales now = {fit->d, fit->dmin, 0, 0};
	float best = INFINITY, factor = 1;
	feedback_take_fit(st, t, fit);
	*out = now;
	for (int pass = 0; pass < TEAM_FEEDBACK_PASSES; pass++) {
		affine_feedback_pass(st, t, p, f, &now);
		const struct team_feedback_sums sums = feedback_sums(st, f);
		if (sums.error < best) {
			best = sums.error;
			*out = now;
			feedback_keep(st, t);
			factor = feedback_growth(&sums, p->feedback_growth);
		}
		now.d = quant_scale(fit->exponent, now.d * sums.least, &now.d_bits);
		now.dmin = quant_scale(fit->exponent, now.dmin * sums.least, &now.dmin_bits);
	}
	out->d = quant_scale(fit->exponent, out->d * factor, &out->d_bits);
	out->dmin = quant_scale(fit->exponent, out->dmin * factor, &out->dmin_bits);
}

/* ---- Q3_K, Q6_K ---- */

QUANT_FN void sym_feedback_pass(struct feedback_state *st, struct quant_team t,
	const struct sym_type *p, const struct quant_feedback *f, float d)
{
	feedback_restart(st, t);
	for (int j = 0; j < 16; j++) {
		float x[16], w[16], a = d * (float)st->s[j];
		int8_t s;
		QUANT_UNROLL
		for (int i = 0; i < 16; i++) {
			x[i] = st->t[16 * j + i];
			w[i] = f->weight[16 * j + i];
		}
		if (a != 0)
			a = sym_refit(x, w, 16, a, p);
		sym_lattice(x, w, p, d, a, &s);
		team_sync(t);
		if (!t.lane)
			st->s[j] = s;
		for (int i = 2 * j; i < 2 * j + 2; i++)
			feedback_codes(st, t, f, i, d * (float)s, 0, p->low, p->high);
	}
	team_sync(t);
}

/* Returns the bits of d. */
QUANT_FN uint16_t sym_feedback(struct feedback_state *st, struct quant_team t,
	const struct sym_type *p, const struct quant_feedback *f, const struct plain_fit *fit)
{
	float d = fit->d, best = INFINITY, best_d = d;
	uint16_t bits;
	feedback_take_fit(st, t, fit);
	for (int pass = 0; pass < TEAM_FEEDBACK_PASSES; pass++) {
		sym_feedback_pass(st, t, p, f, d);
		const struct team_feedback_sums sums = feedback_sums(st, f);
		if (sums.error < best) {
			best = sums.error;
			best_d = d * feedback_growth(&sums, p->feedback_growth);
			feedback_keep(st, t);
		}
		d = quant_scale(fit->exponent, d * sums.least, &bits);
	}
	quant_scale(fit->exponent, best_d, &bits);
	return bits;
}

/* ---- IQ2_XXS ---- */

#define IQ2_FEEDBACK_RADIUS 2
#define IQ2_FEEDBACK_GROWTH 0.04f

/* Gives group i of eight weights a row of the codebook: sets its misses, updates the targets of
 * later groups, and returns its sign index. */
QUANT_FN uint32_t iq2_feedback_take(struct feedback_state *st, struct quant_team t,
	const struct quant_feedback *f, int i, uint64_t row, float dl)
{
	const uint32_t index = iq2_signs(st->t + 8 * i, f->joint + 8 * i, row);
	uint32_t odd = index ^ index >> 4;
	odd ^= odd >> 2;
	odd ^= odd >> 1;
	const uint32_t signs = index | (odd & 1) << 7;
	float v[8], e[8];
	QUANT_UNROLL
	for (int l = 0; l < 8; l++) {
		const float g = dl * (float)(uint8_t)(row >> 8 * l), y = signs >> l & 1 ? -g : g;
		v[l] = st->t[8 * i + l] - y;
		e[l] = st->x[8 * i + l] - y;
	}
	team_sync(t);
	for (int l = t.lane; l < 8; l += t.size)
		st->miss[8 * i + l] = feedback_miss(f, i, v, l);
	feedback_spread(st, t, f, i, e);
	return index;
}

QUANT_FN void iq2_feedback_pass(struct feedback_state *st, struct quant_team t,
	const uint64_t *grid, const uint64_t *codebook, const struct quant_feedback *f, float d)
{
	feedback_restart(st, t);
	for (int k = 0; k < 8; k++) {
		struct iq2_rows rows;
		float least = INFINITY;
		const int center = st->s[k];
		int best_s = center;
		iq2_load(&rows, grid, st->t + 32 * k, f->joint + 32 * k);
		for (int s = center - IQ2_FEEDBACK_RADIUS; s <= center + IQ2_FEEDBACK_RADIUS; s++) {
			if (s < 0 || s > 15)
				continue;
			const float e = iq2_group_error(&rows, d * (0.5f + (float)s) * 0.25f);
			if (e < least) {
				least = e;
				best_s = s;
			}
		}
		const float dl = d * (0.5f + (float)best_s) * 0.25f;
		uint32_t chosen = 0, signs = 0;
		QUANT_UNROLL
		for (int j = 0; j < 4; j++) {
			if (j > 0) /* the targets of later parts have moved */
				iq2_load(&rows, grid, st->t + 32 * k, f->joint + 32 * k);
			const int row = iq2_part_row(&rows, t.lane, j, dl).row;
			chosen |= (uint32_t)row << 8 * j;
			signs |= iq2_feedback_take(st, t, f, 4 * k + j, codebook[row], dl) << 7 * j;
		}
		if (!t.lane) {
			st->s[k] = (int8_t)best_s;
			st->rows[k] = chosen;
			st->signs[k] = signs;
		}
		team_sync(t);
	}
}

/* Returns the bits of d. */
QUANT_FN uint16_t iq2_feedback(struct feedback_state *st, struct quant_team t,
	const uint64_t *codebook, const struct quant_feedback *f, const struct plain_fit *fit)
{
	float d = fit->d, best = INFINITY, best_d = d, factor = 1;
	uint16_t bits;
	uint64_t grid[IQ2_ROWS];
	QUANT_UNROLL
	for (int k = 0; k < IQ2_ROWS; k++)
		grid[k] = codebook[k * IQ2_LANES + t.lane];
	feedback_take_fit(st, t, fit);
	for (int pass = 0; pass < TEAM_FEEDBACK_PASSES; pass++) {
		iq2_feedback_pass(st, t, grid, codebook, f, d);
		const struct team_feedback_sums sums = feedback_sums(st, f);
		if (sums.error < best) {
			best = sums.error;
			best_d = d;
			feedback_keep(st, t);
			factor = feedback_growth(&sums, IQ2_FEEDBACK_GROWTH);
		}
		d = quant_scale(fit->exponent, d * sums.least, &bits);
	}
	quant_scale(fit->exponent, best_d * factor, &bits);
	return bits;
}

/* ---- a block of a type; not called for blocks of zeros or without correlations ---- */

#define FEEDBACK_PARAMETERS                                                                        \
	struct feedback_state *st, struct quant_team t, const struct raw_matrix *m, uint64_t row,      \
		uint64_t col, const struct quant_feedback *f, const struct plain_fit *fit

QUANT_FN void team_feedback_q2_k(FEEDBACK_PARAMETERS, struct block_q2_k *out)
{
	const struct affine_type p = AFFINE_Q2_K;
	struct affine_scales scales;
	feedback_begin(st, t, f, m, row, col, fit->exponent);
	affine_feedback(st, t, &p, f, fit, &scales);
	affine_store_q2_k(&st->best, t, &scales, out);
}

QUANT_FN void team_feedback_q4_k(FEEDBACK_PARAMETERS, struct block_q4_k *out)
{
	const struct affine_type p = AFFINE_Q4_K;
	struct affine_scales scales;
	feedback_begin(st, t, f, m, row, col, fit->exponent);
	affine_feedback(st, t, &p, f, fit, &scales);
	affine_store_q4_k(&st->best, t, &scales, out);
}

QUANT_FN void team_feedback_q5_k(FEEDBACK_PARAMETERS, struct block_q5_k *out)
{
	const struct affine_type p = AFFINE_Q5_K;
	struct affine_scales scales;
	feedback_begin(st, t, f, m, row, col, fit->exponent);
	affine_feedback(st, t, &p, f, fit, &scales);
	affine_store_q5_k(&st->best, t, &scales, out);
}

QUANT_FN void team_feedback_q3_k(FEEDBACK_PARAMETERS, struct block_q3_k *out)
{
	const struct sym_type p = SYM_Q3_K;
	feedback_begin(st, t, f, m, row, col, fit->exponent);
	const uint16_t d = sym_feedback(st, t, &p, f, fit);
	sym_store_q3_k(&st->best, t, d, out);
}

QUANT_FN void team_feedback_q6_k(FEEDBACK_PARAMETERS, struct block_q6_k *out)
{
	const struct sym_type p = SYM_Q6_K;
	feedback_begin(st, t, f, m, row, col, fit->exponent);
	const uint16_t d = sym_feedback(st, t, &p, f, fit);
	sym_store_q6_k(&st->best, t, d, out);
}

QUANT_FN void team_feedback_iq2_xxs(
	FEEDBACK_PARAMETERS, const uint64_t *codebook, struct block_iq2_xxs *out)
{
	feedback_begin(st, t, f, m, row, col, fit->exponent);
	const uint16_t d = iq2_feedback(st, t, codebook, f, fit);
	for (int k = t.lane; k < 8; k += t.size) {
		const uint32_t signs = st->best_signs[k] | (uint32_t)st->best.best_s[k] << 28;
		out->q[4 * k] = (uint16_t)st->best_rows[k];
		out->q[4 * k + 1] = (uint16_t)(st->best_rows[k] >> 16);
		out->q[4 * k + 2] = (uint16_t)signs;
		out->q[4 * k + 3] = (uint16_t)(signs >> 16);
	}
	if (!t.lane)
		out->d = d;
}

#endif
