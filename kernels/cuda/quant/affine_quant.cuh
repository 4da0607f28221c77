/* SPDX-License-Identifier: MIT */
/*
 * Q2_K, Q4_K, Q5_K for the card: the search of src/quant/search/quantize_k.h, which explains the
 * algorithm; one thread for each sub-block. Functions are named as there.
 */
#ifndef GLM_KERNELS_CUDA_AFFINE_QUANT_CUH
#define GLM_KERNELS_CUDA_AFFINE_QUANT_CUH

#include "kernels/cuda/quant/quant_team.cuh"

#include "src/quant/k_scales.h"

#define AFFINE_ROUNDS 4
#define AFFINE_VALUES 32 /* most of a sub-block */

/* A type, as struct affine of quantize_k.h. Constants: loops over a sub-block unroll. */
struct affine_type {
	int n_sub, n_vec;      /* sub-blocks in a block, vectors of eight in a sub-block */
	float top;             /* largest code */
	int s_top;             /* largest integer scale and minimum */
	int radius;            /* of the lattice search */
	float growth;          /* most of team_growth; 0: d and dmin do not grow */
	float feedback_growth; /* most of feedback_growth */
	enum team_weighting how;
};

/* d and dmin as they are stored, rounded to halves: bits, and values in the block's unit. */
struct affine_scales {
	float d, dmin;
	uint16_t d_bits, dmin_bits;
};

/* Squared error of a sub-block with the best codes for weight = a code - b. */
QUANT_FN float affine_error(
	const float *x, const float *w, const struct affine_type *p, float a, float b)
{
	const float inverse = a > 0 ? 1 / a : 0;
	float sum[8] = {0};
	QUANT_UNROLL
	for (int i = 0; i < 8 * p->n_vec; i++) {
		const float t = x[i] + b, r = t - quant_code(t * inverse, 0, p->top) * a;
		sum[i % 8] += r * r * w[i];
	}
	return lanes_sum(sum);
}

/* Least squares for *a and *b with the codes that they give; they stay where that does not help. */
QUANT_FN void affine_refit(
	const float *x, const float *w, const struct affine_type *p, float *a, float *b)
{
	const float inverse = *a > 0 ? 1 / *a : 0;
	float w_[8] = {0}, wx_[8] = {0}, wq_[8] = {0}, wqq_[8] = {0}, wqx_[8] = {0};
	QUANT_UNROLL
	for (int i = 0; i < 8 * p->n_vec; i++) {
		const float q = quant_code((x[i] + *b) * inverse, 0, p->top), wq = w[i] * q;
		w_[i % 8] += w[i];
		wx_[i % 8] += w[i] * x[i];
		wq_[i % 8] += wq;
		wqq_[i % 8] += wq * q;
		wqx_[i % 8] += wq * x[i];
	}
	const float s = lanes_sum(w_), sx = lanes_sum(wx_), sq = lanes_sum(wq_), sqq = lanes_sum(wqq_),
				sqx = lanes_sum(wqx_);
	const float det = s * sqq - sq * sq;
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

/* The best real pair of a sub-block, among refits of 25 pairs around its range. */
QUANT_FN void affine_search(
	const float *x, const float *w, const struct affine_type *p, float *best_a, float *best_b)
{
	float low = 0, high = x[0], best = INFINITY;
	QUANT_UNROLL
	for (int i = 0; i < 8 * p->n_vec; i++) {
		low = x[i] < low ? x[i] : low;
		high = x[i] > high ? x[i] : high;
	}
	const float step = (high - low) / p->top;
	*best_a = 0;
	*best_b = -low;
	if (!(step > 1e-9f))
		return;
	for (int i = -1; i < 4; i++)
		for (int j = -1; j < 4; j++) {
			const float lo = low + step * 0.25f * (float)i, hi = high - step * 0.25f * (float)j;
			float b = lo < 0 ? -lo : 0, a = (hi + b) / p->top;
			affine_refit(x, w, p, &a, &b);
			const float e = affine_error(x, w, p, a, b);
			if (e < best) {
				best = e;
				*best_a = a;
				*best_b = b;
			}
		}
}

/* Given d and dmin, the best integers near a / d and b / dmin; returns their error. */
QUANT_FN float affine_lattice(const float *x, const float *w, const struct affine_type *p, float d,
	float dmin, float a, float b, int8_t *s_out, int8_t *m_out)
{
	const float s_real = d > 0 ? a / d : 0, m_real = dmin > 0 ? b / dmin : 0,
				limit = (float)p->s_top;
	const int s0 = (int)((s_real < limit ? s_real : limit) + 0.5f),
			  m0 = (int)((m_real < limit ? m_real : limit) + 0.5f);
	float best = INFINITY;
	for (int s = s0 - p->radius; s <= s0 + p->radius; s++)
		for (int m = m0 - p->radius; m <= m0 + p->radius; m++) {
			if (s < 0 || s > p->s_top || m < 0 || m > p->s_top)
				continue;
			const float e = affine_error(x, w, p, d * (float)s, dmin * (float)m);
			if (e < best) {
				best = e;
				*s_out = (int8_t)s;
				*m_out = (int8_t)m;
			}
		}
	return best;
}

/* Loads sub-block j to registers of the calling thread. */
QUANT_FN void affine_take(
	const struct quant_state *s, const struct affine_type *p, int j, float *x, float *w)
{
	QUANT_UNROLL
	for (int i = 0; i < 8 * p->n_vec; i++) {
		x[i] = s->x[8 * p->n_vec * j + i];
		w[i] = s->w[8 * p->n_vec * j + i];
	}
}

/* Codes times s->s for all weights, in s->u. */
QUANT_FN void affine_units(struct quant_state *s, struct quant_team t, const struct affine_type *p,
	const struct affine_scales *f)
{
	for (int i = t.lane; i < BLOCK_BIG; i += t.size) {
		const int j = i / (8 * p->n_vec);
		const float scale = s->s[j], a = f->d * scale, min = f->dmin * (float)s->m[j],
					inverse = a > 0 ? 1 / a : 0;
		s->u[i] = quant_code((s->x[i] + min) * inverse, 0, p->top) * scale;
	}
	team_sync(t);
}

/* Least squares for d and dmin, with the codes and integers of this round. */
QUANT_FN void affine_block_refit(struct quant_state *s, struct quant_team t,
	const struct affine_type *p, const struct affine_scales *f, float *d, float *dmin)
{
	affine_units(s, t, p, f);
	for (int c = t.lane; c < 40; c += t.size) { /* uu, uv, vv, ux, vx; eight lanes each */
		const int which = c / 8, l = c % 8;
		float sum = 0;
		for (int i = l; i < BLOCK_BIG; i += 8) {
			const float m = s->m[i / (8 * p->n_vec)], u = s->u[i];
			const float left = which == 2 || which == 4 ? m : u, right = which == 0  ? u
																		 : which < 3 ? m
																					 : s->x[i];
			sum += s->w[i] * left * right;
		}
		s->sums[which][l] = sum;
	}
	team_sync(t);
	const double uu = lanes_sum(s->sums[0]), uv = lanes_sum(s->sums[1]), vv = lanes_sum(s->sums[2]),
				 ux = lanes_sum(s->sums[3]), vx = lanes_sum(s->sums[4]);
	const double det = uu * vv - uv * uv;
	*d = f->d;
	*dmin = f->dmin;
	if (det > 1e-6 * uu * vv) {
		const float d1 = (float)((vv * ux - uv * vx) / det),
					m1 = (float)((uv * ux - uu * vx) / det);
		if (d1 > 0 && m1 >= 0) {
			*d = d1;
			*dmin = m1;
		}
	} else if (uu > 0 && ux > 0 && vv == 0) {
		*d = (float)(ux / uu);
	}
	team_sync(t);
}

/* Leaves the best integers in best_s and best_m. */
QUANT_FN void affine_block(struct quant_state *s, struct quant_team t, const struct affine_type *p,
	int exponent, struct affine_scales *best)
{
	float x[AFFINE_VALUES], w[AFFINE_VALUES], a_top = 0, min_top = 0, best_error = INFINITY;
	for (int j = t.lane; j < p->n_sub; j += t.size) {
		affine_take(s, p, j, x, w);
		affine_search(x, w, p, &s->a[j], &s->b[j]);
		s->best_s[j] = s->best_m[j] = 0;
	}
	team_sync(t);
	for (int j = 0; j < p->n_sub; j++) {
		a_top = s->a[j] > a_top ? s->a[j] : a_top;
		min_top = s->b[j] > min_top ? s->b[j] : min_top;
	}
	float d = a_top / (float)p->s_top, dmin = min_top / (float)p->s_top;
	best->d = best->dmin = 0;
	best->d_bits = best->dmin_bits = 0;
	for (int round = 0; round < AFFINE_ROUNDS; round++) {
		struct affine_scales f;
		float error = 0;
		f.d = quant_scale(exponent, d, &f.d_bits);
		f.dmin = quant_scale(exponent, dmin, &f.dmin_bits);
		for (int j = t.lane; j < p->n_sub; j += t.size) {
			affine_take(s, p, j, x, w);
			s->error[j] =
				affine_lattice(x, w, p, f.d, f.dmin, s->a[j], s->b[j], &s->s[j], &s->m[j]);
		}
		team_sync(t);
		for (int j = 0; j < p->n_sub; j++)
			error += s->error[j];
		if (error < best_error) {
			best_error = error;
			*best = f;
			for (int j = t.lane; j < p->n_sub; j += t.size) {
				s->best_s[j] = s->s[j];
				s->best_m[j] = s->m[j];
			}
		}
		affine_block_refit(s, t, p, &f, &d, &dmin);
		if (d == f.d && dmin == f.dmin)
			break;
	}
	team_sync(t);
}

/* Codes in s->q for the best integers; then d and dmin grow, if the type asks for it. */
QUANT_FN void affine_finish(struct quant_state *s, struct quant_team t, const struct affine_type *p,
	int exponent, struct affine_scales *f)
{
	for (int i = t.lane; i < BLOCK_BIG; i += t.size) {
		const int j = i / (8 * p->n_vec);
		const float a = f->d * (float)s->best_s[j], min = f->dmin * (float)s->best_m[j],
					inverse = a > 0 ? 1 / a : 0,
					code = quant_code((s->x[i] + min) * inverse, 0, p->top);
		s->q[i] = (uint8_t)code;
		s->u[i] = s->w[i] * s->x[i] * (code * a - min);
	}
	team_sync(t);
	if (!(p->growth > 0))
		return;
	const float factor = team_growth(s, t, team_sum(s, t, BLOCK_BIG), p->growth);
	f->d = quant_scale(exponent, f->d * factor, &f->d_bits);
	f->dmin = quant_scale(exponent, f->dmin * factor, &f->dmin_bits);
}

/* Encodes the block at (row, col): codes in s->q, integers in best_s and best_m, scales in *f. A
 * block of zeros gets zeros. */
QUANT_FN void affine_encode(struct quant_state *s, struct quant_team t, const struct affine_type *p,
	const struct raw_matrix *m, uint64_t row, uint64_t col, const float *importance,
	struct plain_fit *fit, struct affine_scales *f)
{
	int exponent;
	if (quant_load(s, t, m, row, col, importance, p->how, &exponent)) {
		affine_block(s, t, p, exponent, f);
		store_fit(s, t, fit, f->d, f->dmin, exponent);
		affine_finish(s, t, p, exponent, f);
		return;
	}
	store_no_fit(t, fit);
	f->d = f->dmin = 0;
	f->d_bits = f->dmin_bits = 0;
	for (int j = t.lane; j < 16; j += t.size)
		s->best_s[j] = s->best_m[j] = 0;
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		s->q[i] = 0;
	team_sync(t);
}

/* The parameters of encode_q2_k, encode_q4_k and encode_q5_k. */
#define AFFINE_Q2_K                                                                                \
	{                                                                                              \
		16, 2, 3, 15, 1, 0.04f, 0.02f, TEAM_DAMPED                                                 \
	}
#define AFFINE_Q4_K                                                                                \
	{                                                                                              \
		8, 4, 15, 63, 2, 0, 0, TEAM_EVEN                                                           \
	}
#define AFFINE_Q5_K                                                                                \
	{                                                                                              \
		8, 4, 31, 63, 2, 0, 0, TEAM_EVEN                                                           \
	}

QUANT_FN void affine_store_q2_k(const struct quant_state *s, struct quant_team t,
	const struct affine_scales *f, struct block_q2_k *out)
{
	for (int j = t.lane; j < 16; j += t.size)
		out->sc[j] = (uint8_t)(s->best_s[j] | s->best_m[j] << 4);
	for (int k = t.lane; k < 64; k += t.size) {
		const uint8_t *q = s->q + k / 32 * 128 + k % 32;
		out->q[k] = (uint8_t)(q[0] | q[32] << 2 | q[64] << 4 | q[96] << 6);
	}
	if (!t.lane) {
		out->d = f->d_bits;
		out->dmin = f->dmin_bits;
	}
}

QUANT_FN void team_encode_q2_k(struct quant_state *s, struct quant_team t,
	const struct raw_matrix *m, uint64_t row, uint64_t col, const float *importance,
	struct plain_fit *fit, struct block_q2_k *out)
{
	const struct affine_type p = AFFINE_Q2_K;
	struct affine_scales f;
	affine_encode(s, t, &p, m, row, col, importance, fit, &f);
	affine_store_q2_k(s, t, &f, out);
}

/* Packs the 6-bit scales and minima of Q4_K and Q5_K. By one thread. */
QUANT_FN void affine_pack6(const struct quant_state *s, uint8_t *sc)
{
	k_pack6(sc, (const uint8_t *)s->best_s, (const uint8_t *)s->best_m);
}

/* Byte k of the nibbles of Q4_K and Q5_K. */
QUANT_FN uint8_t affine_nibbles(const struct quant_state *s, int k)
{
	const uint8_t *q = s->q + k / 32 * 64 + k % 32;
	return (uint8_t)((q[0] & 15) | (q[32] & 15) << 4);
}

QUANT_FN void affine_store_q4_k(const struct quant_state *s, struct quant_team t,
	const struct affine_scales *f, struct block_q4_k *out)
{
	for (int k = t.lane; k < 128; k += t.size)
		out->q[k] = affine_nibbles(s, k);
	if (!t.lane) {
		affine_pack6(s, out->sc);
		out->d = f->d_bits;
		out->dmin = f->dmin_bits;
	}
}

QUANT_FN void team_encode_q4_k(struct quant_state *s, struct quant_team t,
	const struct raw_matrix *m, uint64_t row, uint64_t col, const float *importance,
	struct plain_fit *fit, struct block_q4_k *out)
{
	const struct affine_type p = AFFINE_Q4_K;
	struct affine_scales f;
	affine_encode(s, t, &p, m, row, col, importance, fit, &f);
	affine_store_q4_k(s, t, &f, out);
}

QUANT_FN void affine_store_q5_k(const struct quant_state *s, struct quant_team t,
	const struct affine_scales *f, struct block_q5_k *out)
{
	for (int k = t.lane; k < 128; k += t.size)
		out->q[k] = affine_nibbles(s, k);
	for (int l = t.lane; l < 32; l += t.size) {
		uint8_t high = 0;
		for (int k = 0; k < 8; k++)
			high |= (uint8_t)(s->q[32 * k + l] >> 4 << k);
		out->high[l] = high;
	}
	if (!t.lane) {
		affine_pack6(s, out->sc);
		out->d = f->d_bits;
		out->dmin = f->dmin_bits;
	}
}

QUANT_FN void team_encode_q5_k(struct quant_state *s, struct quant_team t,
	const struct raw_matrix *m, uint64_t row, uint64_t col, const float *importance,
	struct plain_fit *fit, struct block_q5_k *out)
{
	const struct affine_type p = AFFINE_Q5_K;
	struct affine_scales f;
	affine_encode(s, t, &p, m, row, col, importance, fit, &f);
	affine_store_q5_k(s, t, &f, out);
}

#endif
