/* SPDX-License-Identifier: MIT */
/*
 * Q2_K, Q4_K, Q5_K: x is stored as d * s * q - dmin * m with one integer scale s and one integer
 * minimum m per sub-block, one pair of halves d, dmin per block of 256.
 *
 * Objective: the squared error of the decoded weights, columns weighted by `importance`, or without
 * it as enum quant_weighting says.
 *
 * Search:
 *   1. Each sub-block: 25 ways to cut or widen its range, one step of least squares each, the best
 *      real pair (a, b).
 *   2. d and dmin, so that the largest a and b take the last integer.
 *   3. Each sub-block: the best (s, m) in a square around (a / d, b / dmin), judged by the error of
 *      the codes that follow. Most of the gain over rounding is here: the error as a function of
 *      (s, m) is jagged.
 *   4. Codes, s and m fixed: least squares for d and dmin over the block, then 3 again.
 *   5. Q2_K: codes, s and m fixed: d and dmin grow (quant_block_growth).
 * Every error is computed with d and dmin as the halves that will be stored. More starting values
 * of d and dmin, or wider squares, gain 0.3 % of the error at a fraction of the speed.
 */
#ifndef GLM_QUANT_QUANTIZE_K_H
#define GLM_QUANT_QUANTIZE_K_H

#include "src/quant/k_scales.h"
#include "src/quant/search/quant_feedback.h"
#include "src/quant/search/quant_lanes.h"

#define AFFINE_ROUNDS 4 /* of steps 3 and 4 */

struct affine {
	int n_sub, n_vec;      /* sub-blocks in a block, vectors of eight in a sub-block */
	float top;             /* largest code */
	int s_top;             /* largest integer scale and minimum */
	int radius;            /* of the search for s and m: that far from the nearest integers */
	float growth;          /* most of quant_block_growth */
	float feedback_growth; /* most of feedback_growth */
};

struct affine_fit {
	uint8_t s[16], m[16];
	float d, dmin;
	uint16_t d_bits, dmin_bits;
	float error;
};

/* The error of weight i for x = a q - b. */
QUANT_INLINE v8 affine_error_of(int i, const struct lanes *s, v8 a, v8 b, v8 inverse, float top)
{
	const v8 t = s->x[i] + b, r = t - v8_code(t * inverse, 0, top) * a;
	return r * r * s->w[i];
}

/* Squared error with the best codes for x = a q - b. */
QUANT_INLINE v8 affine_error(const struct lanes *s, int n_vec, v8 a, v8 b, float top)
{
	const v8 inverse = v8_inverse(a > 0, a);
	return LANES_SUM(v8, v8_add, affine_error_of, n_vec, s, a, b, inverse, top);
}

struct affine_sums {
	v8 q, qq, qx;
};

QUANT_INLINE struct affine_sums affine_sums_add(struct affine_sums a, struct affine_sums b)
{
	return (struct affine_sums){a.q + b.q, a.qq + b.qq, a.qx + b.qx};
}

QUANT_INLINE struct affine_sums affine_sums_of(
	int i, const struct lanes *s, v8 b, v8 inverse, float top)
{
	const v8 q = v8_code((s->x[i] + b) * inverse, 0, top), wq = s->w[i] * q;
	return (struct affine_sums){wq, wq * q, wq * s->x[i]};
}

/* Sums of w and w x. */
struct affine_size {
	v8 w, x;
};

QUANT_INLINE struct affine_size affine_size_add(struct affine_size a, struct affine_size b)
{
	return (struct affine_size){a.w + b.w, a.x + b.x};
}

QUANT_INLINE struct affine_size affine_size_of(int i, const struct lanes *s)
{
	return (struct affine_size){s->w[i], s->w[i] * s->x[i]};
}

QUANT_INLINE struct affine_size affine_size(const struct lanes *s, int n_vec)
{
	return LANES_SUM(struct affine_size, affine_size_add, affine_size_of, n_vec, s);
}

/* One step of alternating least squares: codes for (a, b), then the best (a, b >= 0) for these
 * codes. */
QUANT_INLINE void affine_refit(
	const struct lanes *s, int n_vec, const struct affine_size *size, float top, v8 *a, v8 *b)
{
	const v8 inverse = v8_inverse(*a > 0, *a);
	const struct affine_sums sum =
		LANES_SUM(struct affine_sums, affine_sums_add, affine_sums_of, n_vec, s, *b, inverse, top);
	const v8 det = size->w * sum.qq - sum.q * sum.q;
	const v8 a1 = (size->w * sum.qx - sum.q * size->x) / det,
			 b1 = (sum.q * sum.qx - sum.qq * size->x) / det;
	const v8i negative = b1 < 0;
	const v8 a2 = v8_select(negative, sum.qx / sum.qq, a1);
	const v8i take = (det > 1e-6f * size->w * sum.qq) & (a2 > 0);
	*a = v8_select(take, a2, *a);
	*b = v8_select(take, v8_select(negative, v8_set(0), b1), *b);
}

/* Real-valued optimum of eight sub-blocks. */
QUANT_INLINE void affine_search(const struct lanes *s, int n_vec, float top, v8 *best_a, v8 *best_b)
{
	v8 low = v8_min(v8_set(0), s->x[0]), high = s->x[0];
	for (int i = 1; i < 8 * n_vec; i++) {
		low = v8_min(low, s->x[i]);
		high = v8_max(high, s->x[i]);
	}
	const struct affine_size size = affine_size(s, n_vec);
	const v8 step = (high - low) / top;
	const v8i wide = step > 1e-9f;
	v8 best = v8_set(INFINITY);
	*best_a = v8_set(0);
	*best_b = -low;
	for (int i = -1; i < 4; i++)
		for (int j = -1; j < 4; j++) {
			const v8 lo = low + step * 0.25f * (float)i, hi = high - step * 0.25f * (float)j;
			v8 b = v8_select(lo < 0, -lo, v8_set(0)), a = (hi + b) / top;
			affine_refit(s, n_vec, &size, top, &a, &b);
			const v8 e = affine_error(s, n_vec, a, b, top);
			const v8i less = (e < best) & wide;
			best = v8_select(less, e, best);
			*best_a = v8_select(less, a, *best_a);
			*best_b = v8_select(less, b, *best_b);
		}
}

/* The integers that are nearest to v / unit. */
QUANT_INLINE v8 affine_center(const struct affine *p, v8 v, float unit)
{
	const v8 real = unit > 0 ? v / unit : v8_set(0);
	return __builtin_convertvector(
		__builtin_convertvector(v8_min(real, v8_set((float)p->s_top)) + 0.5f, v8i), v8);
}

/* Error of the integers s and m; infinite for those out of range. */
QUANT_INLINE v8 affine_lattice_error(
	const struct lanes *b, const struct affine *p, float d, float dmin, v8 s, v8 m)
{
	const float limit = (float)p->s_top;
	const v8i valid = (s >= 0) & (s <= limit) & (m >= 0) & (m <= limit);
	return v8_select(valid, affine_error(b, p->n_vec, d * s, dmin * m, p->top), v8_set(INFINITY));
}

/* Given d and dmin, the best (s, m) near the given real pairs. */
QUANT_INLINE v8 affine_lattice(const struct lanes *x, const struct affine *p, float d, float dmin,
	v8 a, v8 b, uint8_t s_out[LANES], uint8_t m_out[LANES])
{
	const v8 s0 = affine_center(p, a, d), m0 = affine_center(p, b, dmin);
	v8 least = v8_set(INFINITY), best_s = s0, best_m = m0;
	for (int i = -p->radius; i <= p->radius; i++)
		for (int j = -p->radius; j <= p->radius; j++) {
			const v8 s = s0 + (float)i, m = m0 + (float)j;
			const v8 e = affine_lattice_error(x, p, d, dmin, s, m);
			const v8i less = e < least;
			least = v8_select(less, e, least);
			best_s = v8_select(less, s, best_s);
			best_m = v8_select(less, m, best_m);
		}
	for (int l = 0; l < LANES; l++) {
		s_out[l] = (uint8_t)best_s[l];
		m_out[l] = (uint8_t)best_m[l];
	}
	return least;
}

/* The same for the one sub-block that is in all lanes of x: eight pairs at a time. */
QUANT_INLINE void affine_lattice_one(const struct lanes *x, const struct affine *p, float d,
	float dmin, v8 a, v8 b, uint8_t *s_out, uint8_t *m_out)
{
	const v8 s0 = affine_center(p, a, d), m0 = affine_center(p, b, dmin);
	const int side = 2 * p->radius + 1;
	float least = INFINITY;
	for (int i = 0; i < side * side; i += LANES) {
		v8 s, m;
		for (int l = 0; l < LANES; l++) { /* behind the last pair: out of range */
			s[l] = (float)((i + l) / side - p->radius) + (i + l < side * side ? 0 : NAN);
			m[l] = (float)((i + l) % side - p->radius);
		}
		s += s0;
		m += m0;
		const v8 e = affine_lattice_error(x, p, d, dmin, s, m);
		const int l = lanes_least(e);
		if (e[l] < least) {
			least = e[l];
			*s_out = (uint8_t)s[l];
			*m_out = (uint8_t)m[l];
		}
	}
}

/* Codes and scales fixed: least squares for d and dmin over the block. */
QUANT_INLINE void affine_block_refit(const struct quant_block *b, const struct affine *p,
	const struct affine_fit *f, float *d, float *dmin)
{
	v8 uu_ = {0}, uv_ = {0}, vv_ = {0}, ux_ = {0}, vx_ = {0};
	for (int j = 0; j < p->n_sub; j++) {
		float s = f->s[j], m = f->m[j], a = f->d * s, min = f->dmin * m,
			  inverse = a > 0 ? 1 / a : 0;
		for (int i = j * p->n_vec; i < (j + 1) * p->n_vec; i++) {
			v8 u = v8_code((b->x[i] + min) * inverse, 0, p->top) * s, wu = b->w[i] * u,
			   wv = b->w[i] * m;
			uu_ += wu * u;
			uv_ += wu * m;
			vv_ += wv * m;
			ux_ += wu * b->x[i];
			vx_ += wv * b->x[i];
		}
	}
	double uu = v8_sum(uu_), uv = v8_sum(uv_), vv = v8_sum(vv_), ux = v8_sum(ux_), vx = v8_sum(vx_);
	double det = uu * vv - uv * uv;
	*d = f->d;
	*dmin = f->dmin;
	if (det > 1e-6 * uu * vv) {
		float d1 = (float)((vv * ux - uv * vx) / det), m1 = (float)((uv * ux - uu * vx) / det);
		if (d1 > 0 && m1 >= 0) {
			*d = d1;
			*dmin = m1;
		}
	} else if (uu > 0 && ux > 0 && vv == 0) {
		*d = (float)(ux / uu);
	}
}

QUANT_INLINE void affine_block(
	const struct quant_block *b, const struct affine *p, struct affine_fit *best)
{
	struct lanes lanes[16 / LANES];
	v8 a[16 / LANES], min[16 / LANES];
	float a_top = 0, min_top = 0;
	for (int g = 0; g < p->n_sub / LANES; g++) {
		const int first = g * LANES * p->n_vec;
		lanes_load(&lanes[g], b->x + first, b->w + first, p->n_vec);
		affine_search(&lanes[g], p->n_vec, p->top, &a[g], &min[g]);
		for (int l = 0; l < LANES; l++) {
			a_top = a[g][l] > a_top ? a[g][l] : a_top;
			min_top = min[g][l] > min_top ? min[g][l] : min_top;
		}
	}
	*best = (struct affine_fit){.error = INFINITY};
	float d = a_top / (float)p->s_top, dmin = min_top / (float)p->s_top;
	for (int round = 0; round < AFFINE_ROUNDS; round++) {
		struct affine_fit f;
		f.d = quant_block_scale(b, d, &f.d_bits);
		f.dmin = quant_block_scale(b, dmin, &f.dmin_bits);
		f.error = 0;
		for (int g = 0; g < p->n_sub / LANES; g++) {
			const v8 e = affine_lattice(
				&lanes[g], p, f.d, f.dmin, a[g], min[g], f.s + g * LANES, f.m + g * LANES);
			for (int l = 0; l < LANES; l++)
				f.error += e[l];
		}
		if (f.error < best->error)
			*best = f;
		affine_block_refit(b, p, &f, &d, &dmin);
		if (d == f.d && dmin == f.dmin)
			break;
	}
}

QUANT_INLINE void affine_codes(
	const struct quant_block *b, const struct affine *p, const struct affine_fit *f, uint8_t *q)
{
	for (int j = 0; j < p->n_sub; j++) {
		float a = f->d * (float)f->s[j], min = f->dmin * (float)f->m[j],
			  inverse = a > 0 ? 1 / a : 0;
		for (int i = j * p->n_vec; i < (j + 1) * p->n_vec; i++) {
			v8 c = v8_code((b->x[i] + min) * inverse, 0, p->top);
			for (int l = 0; l < 8; l++)
				q[8 * i + l] = (uint8_t)c[l];
		}
	}
}

/* Codes and integers stay; d and dmin grow against the shrinkage of least squares. */
QUANT_INLINE void affine_grow(
	const struct quant_block *b, const struct affine *p, struct affine_fit *f)
{
	v8 xy = {0};
	for (int j = 0; j < p->n_sub; j++) {
		float a = f->d * (float)f->s[j], min = f->dmin * (float)f->m[j],
			  inverse = a > 0 ? 1 / a : 0;
		for (int i = j * p->n_vec; i < (j + 1) * p->n_vec; i++)
			xy += b->w[i] * b->x[i] * (v8_code((b->x[i] + min) * inverse, 0, p->top) * a - min);
	}
	float factor = quant_block_growth(b, v8_sum(xy), p->growth);
	f->d = quant_block_scale(b, f->d * factor, &f->d_bits);
	f->dmin = quant_block_scale(b, f->dmin * factor, &f->dmin_bits);
}

/* d and dmin given: integers and codes of all sub-blocks, each for what the errors before it have
 * made of its weights. */
QUANT_INLINE void affine_feedback_pass(struct feedback_run *r, const struct quant_block *b,
	const struct affine *p, struct affine_fit *f, uint8_t *q)
{
	feedback_restart(r, b);
	for (int j = 0; j < p->n_sub; j++) {
		struct lanes one;
		lanes_spread(&one, r->t + j * p->n_vec, r->weight + j * p->n_vec, p->n_vec);
		const struct affine_size size = affine_size(&one, p->n_vec);
		v8 real_a = v8_set(f->d * (float)f->s[j]), real_min = v8_set(f->dmin * (float)f->m[j]);
		affine_refit(&one, p->n_vec, &size, p->top, &real_a, &real_min);
		affine_lattice_one(&one, p, f->d, f->dmin, real_a, real_min, &f->s[j], &f->m[j]);
		const float a = f->d * (float)f->s[j], min = f->dmin * (float)f->m[j];
		for (int i = j * p->n_vec; i < (j + 1) * p->n_vec; i++) {
			v8 c;
			feedback_take(r, b, i, feedback_codes(r, i, a, min, 0, p->top, &c));
			for (int l = 0; l < 8; l++)
				q[8 * i + l] = (uint8_t)c[l];
		}
	}
}

/* *f is the plain fit; it becomes the one with error feedback. */
QUANT_INLINE void affine_feedback(const struct quant_block *b, const struct affine *p,
	const struct quant_feedback *feedback, struct affine_fit *f, uint8_t *q)
{
	struct feedback_run r;
	struct affine_fit now = *f;
	uint8_t codes[BLOCK_BIG];
	float factor = 1;
	feedback_begin(&r, feedback, b);
	f->error = INFINITY;
	for (int pass = 0; pass < FEEDBACK_PASSES; pass++) {
		affine_feedback_pass(&r, b, p, &now, codes);
		struct feedback_sums sums = feedback_sums(&r);
		if (sums.error < f->error) {
			*f = now;
			f->error = sums.error;
			memcpy(q, codes, sizeof codes);
			factor = feedback_growth(&sums, p->feedback_growth);
		}
		now.d = quant_block_scale(b, now.d * sums.least, &now.d_bits);
		now.dmin = quant_block_scale(b, now.dmin * sums.least, &now.dmin_bits);
	}
	f->d = quant_block_scale(b, f->d * factor, &f->d_bits);
	f->dmin = quant_block_scale(b, f->dmin * factor, &f->dmin_bits);
}

/* A block's fit and the codes q [BLOCK_BIG] in it. False for a block of zeros. */
QUANT_INLINE int affine_encode(const float *src, const float *importance,
	const struct quant_feedback *feedback, enum quant_weighting how, const struct affine *p,
	struct affine_fit *f, uint8_t *q)
{
	struct quant_block b;
	if (!quant_block_load(&b, src, importance, how, BLOCK_BIG))
		return 0;
	affine_block(&b, p, f);
	if (feedback && feedback->correlated) {
		affine_feedback(&b, p, feedback, f, q);
		return 1;
	}
	affine_codes(&b, p, f, q);
	if (p->growth > 0)
		affine_grow(&b, p, f);
	return 1;
}

QUANT_INLINE void encode_q2_k(const float *src, struct block_q2_k *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct affine p = {.n_sub = 16,
		.n_vec = 2,
		.top = 3,
		.s_top = 15,
		.radius = 1,
		.growth = 0.04f,
		.feedback_growth = 0.02f};
	struct affine_fit f;
	uint8_t q[BLOCK_BIG];
	memset(out, 0, sizeof *out);
	if (!affine_encode(src, importance, feedback, QUANT_DAMPED, &p, &f, q))
		return;
	out->d = f.d_bits;
	out->dmin = f.dmin_bits;
	for (int j = 0; j < 16; j++)
		out->sc[j] = (uint8_t)(f.s[j] | f.m[j] << 4);
	for (int k = 0; k < 8; k++)
		for (int l = 0; l < 32; l++)
			out->q[k / 4 * 32 + l] |= (uint8_t)(q[32 * k + l] << k % 4 * 2);
}

QUANT_INLINE void encode_q4_k(const float *src, struct block_q4_k *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct affine p = {.n_sub = 8, .n_vec = 4, .top = 15, .s_top = 63, .radius = 2};
	struct affine_fit f;
	uint8_t q[BLOCK_BIG];
	memset(out, 0, sizeof *out);
	if (!affine_encode(src, importance, feedback, QUANT_EVEN, &p, &f, q))
		return;
	out->d = f.d_bits;
	out->dmin = f.dmin_bits;
	k_pack6(out->sc, f.s, f.m);
	for (int k = 0; k < 8; k++)
		for (int l = 0; l < 32; l++)
			out->q[k / 2 * 32 + l] |= (uint8_t)(q[32 * k + l] << k % 2 * 4);
}

QUANT_INLINE void encode_q5_k(const float *src, struct block_q5_k *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct affine p = {.n_sub = 8, .n_vec = 4, .top = 31, .s_top = 63, .radius = 2};
	struct affine_fit f;
	uint8_t q[BLOCK_BIG];
	memset(out, 0, sizeof *out);
	if (!affine_encode(src, importance, feedback, QUANT_EVEN, &p, &f, q))
		return;
	out->d = f.d_bits;
	out->dmin = f.dmin_bits;
	k_pack6(out->sc, f.s, f.m);
	for (int k = 0; k < 8; k++)
		for (int l = 0; l < 32; l++) {
			out->q[k / 2 * 32 + l] |= (uint8_t)((q[32 * k + l] & 15) << k % 2 * 4);
			out->high[l] |= (uint8_t)(q[32 * k + l] >> 4 << k);
		}
}

QUANT_ROW(quantize_row_q2_k, encode_q2_k, struct block_q2_k, BLOCK_BIG)
QUANT_ROW(quantize_row_q4_k, encode_q4_k, struct block_q4_k, BLOCK_BIG)
QUANT_ROW(quantize_row_q5_k, encode_q5_k, struct block_q5_k, BLOCK_BIG)

#endif
