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
#include "src/quant/quantize_rows.h"

#include "src/quant/k_scales.h"
#include "src/quant/quant_feedback.h"

#define ROUNDS 4 /* of steps 3 and 4 */

struct affine {
	int n_sub, n_vec;      /* sub-blocks in a block, vectors of eight in a sub-block */
	float top;             /* largest code */
	int s_top;             /* largest integer scale and minimum */
	int radius;            /* of the lattice search */
	float growth;          /* most of quant_block_growth */
	float feedback_growth; /* most of feedback_growth */
};

struct affine_fit {
	uint8_t s[16], m[16];
	float d, dmin;
	uint16_t d_bits, dmin_bits;
	float error;
};

/* Squared error with the best codes for x = a q - b. */
QUANT_INLINE float affine_error(const v8 *x, const v8 *w, int n_vec, float a, float b, float top)
{
	float inverse = a > 0 ? 1 / a : 0;
	v8 sum = {0};
	for (int i = 0; i < n_vec; i++) {
		v8 t = x[i] + b, r = t - v8_code(t * inverse, 0, top) * a;
		sum += r * r * w[i];
	}
	return v8_sum(sum);
}

/* One step of alternating least squares: codes for (a, b), then the best (a, b >= 0) for these
 * codes. */
QUANT_INLINE void affine_refit(const v8 *x, const v8 *w, int n_vec, float top, float *a, float *b)
{
	float inverse = *a > 0 ? 1 / *a : 0;
	v8 w_ = {0}, wx_ = {0}, wq_ = {0}, wqq_ = {0}, wqx_ = {0};
	for (int i = 0; i < n_vec; i++) {
		v8 q = v8_code((x[i] + *b) * inverse, 0, top), wq = w[i] * q;
		w_ += w[i];
		wx_ += w[i] * x[i];
		wq_ += wq;
		wqq_ += wq * q;
		wqx_ += wq * x[i];
	}
	float s = v8_sum(w_), sx = v8_sum(wx_), sq = v8_sum(wq_), sqq = v8_sum(wqq_),
		  sqx = v8_sum(wqx_);
	float det = s * sqq - sq * sq;
	if (det > 1e-6f * s * sqq) {
		float a1 = (s * sqx - sq * sx) / det, b1 = (sq * sqx - sqq * sx) / det;
		if (b1 < 0) {
			b1 = 0;
			a1 = sqx / sqq;
		}
		if (a1 > 0) {
			*a = a1;
			*b = b1;
		}
	}
}

/* Real-valued optimum of one sub-block. */
QUANT_INLINE void affine_search(
	const v8 *x, const v8 *w, int n_vec, float top, float *best_a, float *best_b)
{
	v8 low8 = {0}, high8 = x[0];
	for (int i = 0; i < n_vec; i++) {
		low8 = v8_min(low8, x[i]);
		high8 = v8_max(high8, x[i]);
	}
	float low = 0, high = high8[0];
	for (int i = 0; i < 8; i++) {
		low = low8[i] < low ? low8[i] : low;
		high = high8[i] > high ? high8[i] : high;
	}
	float best = INFINITY, step = (high - low) / top;
	*best_a = 0;
	*best_b = -low;
	if (!(step > 1e-9f))
		return;
	for (int i = -1; i < 4; i++)
		for (int j = -1; j < 4; j++) {
			float lo = low + step * 0.25f * (float)i, hi = high - step * 0.25f * (float)j;
			float b = lo < 0 ? -lo : 0, a = (hi + b) / top;
			affine_refit(x, w, n_vec, top, &a, &b);
			float e = affine_error(x, w, n_vec, a, b, top);
			if (e < best) {
				best = e;
				*best_a = a;
				*best_b = b;
			}
		}
}

/* Given d and dmin, the best (s, m) near the given real pair. */
QUANT_INLINE float affine_lattice(const v8 *x, const v8 *w, const struct affine *p, float d,
	float dmin, float a, float b, uint8_t *s_out, uint8_t *m_out)
{
	float s_real = d > 0 ? a / d : 0, m_real = dmin > 0 ? b / dmin : 0, limit = (float)p->s_top;
	int s0 = (int)((s_real < limit ? s_real : limit) + 0.5f),
		m0 = (int)((m_real < limit ? m_real : limit) + 0.5f);
	float best = INFINITY;
	for (int s = s0 - p->radius; s <= s0 + p->radius; s++)
		for (int m = m0 - p->radius; m <= m0 + p->radius; m++) {
			if (s < 0 || s > p->s_top || m < 0 || m > p->s_top)
				continue;
			float e = affine_error(x, w, p->n_vec, d * (float)s, dmin * (float)m, p->top);
			if (e < best) {
				best = e;
				*s_out = (uint8_t)s;
				*m_out = (uint8_t)m;
			}
		}
	return best;
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
	float a[16], min[16], a_top = 0, min_top = 0;
	for (int j = 0; j < p->n_sub; j++) {
		affine_search(b->x + j * p->n_vec, b->w + j * p->n_vec, p->n_vec, p->top, &a[j], &min[j]);
		a_top = a[j] > a_top ? a[j] : a_top;
		min_top = min[j] > min_top ? min[j] : min_top;
	}
	*best = (struct affine_fit){.error = INFINITY};
	float d = a_top / (float)p->s_top, dmin = min_top / (float)p->s_top;
	for (int round = 0; round < ROUNDS; round++) {
		struct affine_fit f;
		f.d = quant_block_scale(b, d, &f.d_bits);
		f.dmin = quant_block_scale(b, dmin, &f.dmin_bits);
		f.error = 0;
		for (int j = 0; j < p->n_sub; j++) {
			const v8 *x = b->x + j * p->n_vec, *w = b->w + j * p->n_vec;
			f.error += affine_lattice(x, w, p, f.d, f.dmin, a[j], min[j], &f.s[j], &f.m[j]);
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
		const v8 *t = r->t + j * p->n_vec, *w = r->weight + j * p->n_vec;
		float a = f->d * (float)f->s[j], min = f->dmin * (float)f->m[j];
		affine_refit(t, w, p->n_vec, p->top, &a, &min);
		affine_lattice(t, w, p, f->d, f->dmin, a, min, &f->s[j], &f->m[j]);
		a = f->d * (float)f->s[j], min = f->dmin * (float)f->m[j];
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
	const struct affine p = {16, 2, 3, 15, 1, 0.04f, 0.02f};
	struct affine_fit f;
	uint8_t q[BLOCK_BIG];
	memset(out, 0, sizeof *out);
	if (!affine_encode(src, importance, feedback, QUANT_DAMPED, &p, &f, q))
		return;
	out->d = f.d_bits;
	out->dmin = f.dmin_bits;
	for (int j = 0; j < 16; j++)
		out->sc[j] = (uint8_t)(f.s[j] | f.m[j] << 4);
	for (int i = 0; i < BLOCK_BIG; i++)
		out->q[i / 128 * 32 + i % 32] |= (uint8_t)(q[i] << i % 128 / 32 * 2);
}

QUANT_INLINE void encode_q4_k(const float *src, struct block_q4_k *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct affine p = {8, 4, 15, 63, 2, 0, 0};
	struct affine_fit f;
	uint8_t q[BLOCK_BIG];
	memset(out, 0, sizeof *out);
	if (!affine_encode(src, importance, feedback, QUANT_EVEN, &p, &f, q))
		return;
	out->d = f.d_bits;
	out->dmin = f.dmin_bits;
	k_pack6(out->sc, f.s, f.m);
	for (int i = 0; i < BLOCK_BIG; i++)
		out->q[i / 64 * 32 + i % 32] |= (uint8_t)(q[i] << i / 32 % 2 * 4);
}

QUANT_INLINE void encode_q5_k(const float *src, struct block_q5_k *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct affine p = {8, 4, 31, 63, 2, 0, 0};
	struct affine_fit f;
	uint8_t q[BLOCK_BIG];
	memset(out, 0, sizeof *out);
	if (!affine_encode(src, importance, feedback, QUANT_EVEN, &p, &f, q))
		return;
	out->d = f.d_bits;
	out->dmin = f.dmin_bits;
	k_pack6(out->sc, f.s, f.m);
	for (int i = 0; i < BLOCK_BIG; i++) {
		out->q[i / 64 * 32 + i % 32] |= (uint8_t)((q[i] & 15) << i / 32 % 2 * 4);
		out->high[i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
	}
}

QUANT_ROW(quantize_row_q2_k, encode_q2_k, struct block_q2_k, BLOCK_BIG)
QUANT_ROW(quantize_row_q4_k, encode_q4_k, struct block_q4_k, BLOCK_BIG)
QUANT_ROW(quantize_row_q5_k, encode_q5_k, struct block_q5_k, BLOCK_BIG)
