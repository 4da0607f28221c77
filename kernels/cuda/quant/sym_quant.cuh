/* SPDX-License-Identifier: MIT */
/*
 * Q3_K, Q6_K, Q8_0 and Q4_0 for the card: the search of src/quant/search/quantize_sym.h, which
 * explains the algorithm. A thread quantises a sub-block of Q3_K or Q6_K, or a whole block of 32
 * weights of Q8_0 or Q4_0. Functions are named as there.
 */
#ifndef GLM_KERNELS_CUDA_SYM_QUANT_CUH
#define GLM_KERNELS_CUDA_SYM_QUANT_CUH

#include "kernels/cuda/quant/quant_team.cuh"

#include "src/quant/k_scales.h"

#define SYM_ROUNDS 4

/* A type, as struct sym of quantize_sym.h. */
struct sym_type {
	float low, high;  /* range of the codes */
	int n_candidates; /* scales tried on either side */
	/* the candidates are the scales with which the largest value gets the codes from high + first
	 * to high + first + spread; spread may be negative */
	float first, spread;
	int s_low, s_high;     /* range of the integer scales; Q8_0 and Q4_0 have none */
	int radius;            /* of the search for s */
	float growth;          /* most of team_growth; 0: d does not grow */
	float feedback_growth; /* most of feedback_growth */
};

/* Squared error of n values with the best codes for scale a. */
QUANT_FN float sym_error(const float *x, const float *w, int n, float a, const struct sym_type *p)
{
	const float inverse = a != 0 ? 1 / a : 0;
	float sum[8] = {0};
	QUANT_UNROLL
	for (int i = 0; i < n; i++) {
		const float r = x[i] - quant_code(x[i] * inverse, p->low, p->high) * a;
		sum[i % 8] += r * r * w[i];
	}
	return lanes_sum(sum);
}

/* Least squares for the scale, with the codes that scale a gives. */
QUANT_FN float sym_refit(const float *x, const float *w, int n, float a, const struct sym_type *p)
{
	const float inverse = 1 / a;
	float qq[8] = {0}, qx[8] = {0};
	QUANT_UNROLL
	for (int i = 0; i < n; i++) {
		const float q = quant_code(x[i] * inverse, p->low, p->high), wq = w[i] * q;
		qq[i % 8] += wq * q;
		qx[i % 8] += wq * x[i];
	}
	const float sum = lanes_sum(qq);
	return sum > 0 ? lanes_sum(qx) / sum : 0;
}

/* Returns the best scale. bits not NULL: the scale is rounded to a half, and *bits are its bits. */
QUANT_FN float sym_search(
	const float *x, const float *w, int n, const struct sym_type *p, int exponent, uint16_t *bits)
{
	float top = 0, best_a = 0, best = INFINITY;
	QUANT_UNROLL
	for (int i = 0; i < n; i++)
		top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
	if (bits)
		*bits = 0;
	if (!(top > 1e-12f))
		return 0;
	for (int i = 0; i < 2 * p->n_candidates; i++) {
		const float code = p->high + p->first + p->spread * (float)(i / 2) / (float)p->n_candidates;
		float a = sym_refit(x, w, n, (i & 1 ? -top : top) / code, p);
		uint16_t h = 0;
		if (bits)
			a = quant_scale(exponent, a, &h);
		const float e = sym_error(x, w, n, a, p);
		if (e < best) {
			best = e;
			best_a = a;
			if (bits)
				*bits = h;
		}
	}
	return best_a;
}

/* Given d, the best integer scale near a / d to *s; returns its error. */
QUANT_FN float sym_lattice(
	const float *x, const float *w, const struct sym_type *p, float d, float a, int8_t *s)
{
	const float ratio = d != 0 ? a / d : 0;
	const int center = (int)lrintf(ratio < (float)p->s_low    ? (float)p->s_low
								   : ratio > (float)p->s_high ? (float)p->s_high
															  : ratio);
	float least = INFINITY;
	*s = 0;
	for (int k = center - p->radius; k <= center + p->radius; k++) {
		if (k < p->s_low || k > p->s_high)
			continue;
		const float e = sym_error(x, w, 16, d * (float)k, p);
		if (e < least) {
			least = e;
			*s = (int8_t)k;
		}
	}
	return least;
}

/* Loads sub-block j to registers of the calling thread. */
QUANT_FN void sym_take(const struct quant_state *s, int j, float *x, float *w)
{
	QUANT_UNROLL
	for (int i = 0; i < 16; i++) {
		x[i] = s->x[16 * j + i];
		w[i] = s->w[16 * j + i];
	}
}

/* Least squares for d, with the codes and integers of this round. */
QUANT_FN float sym_block_refit(
	struct quant_state *s, struct quant_team t, const struct sym_type *p, float stored)
{
	for (int i = t.lane; i < BLOCK_BIG; i += t.size) {
		const float k = s->s[i / 16], scale = stored * k, inverse = scale != 0 ? 1 / scale : 0;
		s->u[i] = quant_code(s->x[i] * inverse, p->low, p->high) * k;
	}
	team_sync(t);
	for (int c = t.lane; c < 16; c += t.size) {
		float sum = 0;
		for (int i = c % 8; i < BLOCK_BIG; i += 8)
			sum += s->w[i] * s->u[i] * (c < 8 ? s->u[i] : s->x[i]);
		s->sums[c / 8][c % 8] = sum;
	}
	team_sync(t);
	const float uu = lanes_sum(s->sums[0]), ux = lanes_sum(s->sums[1]);
	team_sync(t);
	return uu > 0 ? ux / uu : stored;
}

/* The best integers in best_s, codes less p->low in q; returns the bits of d. */
QUANT_FN uint16_t sym_block(struct quant_state *s, struct quant_team t, const struct sym_type *p,
	int exponent, struct plain_fit *fit)
{
	float x[16], w[16], top = 0, best = INFINITY, best_d = 0;
	uint16_t best_bits = 0;
	for (int j = t.lane; j < 16; j += t.size) {
		sym_take(s, j, x, w);
		s->a[j] = sym_search(x, w, 16, p, exponent, NULL);
		s->best_s[j] = 0;
	}
	team_sync(t);
	for (int j = 0; j < 16; j++)
		top = fabsf(s->a[j]) > fabsf(top) ? s->a[j] : top;
	float d = top / (float)p->s_low;
	for (int round = 0; round < SYM_ROUNDS; round++) {
		uint16_t bits;
		float error = 0;
		const float stored = quant_scale(exponent, d, &bits);
		for (int j = t.lane; j < 16; j += t.size) {
			sym_take(s, j, x, w);
			s->error[j] = sym_lattice(x, w, p, stored, s->a[j], &s->s[j]);
		}
		team_sync(t);
		for (int j = 0; j < 16; j++)
			error += s->error[j];
		if (!(error < best))
			break;
		best = error;
		best_d = stored;
		best_bits = bits;
		for (int j = t.lane; j < 16; j += t.size)
			s->best_s[j] = s->s[j];
		d = sym_block_refit(s, t, p, stored);
	}
	team_sync(t);
	store_fit(s, t, fit, best_d, 0, exponent);
	for (int i = t.lane; i < BLOCK_BIG; i += t.size) {
		const float a = best_d * (float)s->best_s[i / 16], inverse = a != 0 ? 1 / a : 0,
					code = quant_code(s->x[i] * inverse, p->low, p->high);
		s->q[i] = (uint8_t)(code - p->low);
		s->u[i] = s->w[i] * s->x[i] * code * a;
	}
	team_sync(t);
	if (p->growth > 0) {
		const float xy = team_sum(s, t, BLOCK_BIG);
		quant_scale(exponent, best_d * team_growth(s, t, xy, p->growth), &best_bits);
	}
	return best_bits;
}

/* As sym_block, from the source; a block of zeros has codes of value 0. */
QUANT_FN uint16_t sym_encode(struct quant_state *s, struct quant_team t, const struct sym_type *p,
	const struct raw_matrix *m, uint64_t row, uint64_t col, const float *importance,
	struct plain_fit *fit)
{
	int exponent;
	if (quant_load(s, t, m, row, col, importance, TEAM_EVEN, &exponent))
		return sym_block(s, t, p, exponent, fit);
	store_no_fit(t, fit);
	for (int j = t.lane; j < 16; j += t.size)
		s->best_s[j] = 0;
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		s->q[i] = (uint8_t)-p->low;
	team_sync(t);
	return 0;
}

/* The parameters of encode_q3_k, encode_q6_k, encode_q8_0 and encode_q4_0. */
#define SYM_Q3_K                                                                                   \
	{                                                                                              \
		-4, 3, 8, -1, 3, -32, 31, 2, 0.015f, 0.01f                                                 \
	}
#define SYM_Q6_K                                                                                   \
	{                                                                                              \
		-32, 31, 8, 1, -6, -128, 127, 3, 0, 0                                                      \
	}
#define SYM_Q8_0                                                                                   \
	{                                                                                              \
		-128, 127, 16, 1, -16, 0, 0, 0, 0, 0                                                       \
	}
#define SYM_Q4_0                                                                                   \
	{                                                                                              \
		-8, 7, 12, -1, 3, 0, 0, 0, 0, 0                                                            \
	}

QUANT_FN void sym_store_q3_k(
	const struct quant_state *s, struct quant_team t, uint16_t d, struct block_q3_k *out)
{
	for (int k = t.lane; k < 64; k += t.size) {
		const uint8_t *q = s->q + k / 32 * 128 + k % 32;
		out->q[k] = (uint8_t)((q[0] & 3) | (q[32] & 3) << 2 | (q[64] & 3) << 4 | (q[96] & 3) << 6);
	}
	for (int l = t.lane; l < 32; l += t.size) {
		uint8_t high = 0;
		for (int k = 0; k < 8; k++)
			high |= (uint8_t)(s->q[32 * k + l] >> 2 << k);
		out->high[l] = high;
	}
	if (!t.lane) {
		k_pack6_signed(out->sc, s->best_s);
		out->d = d;
	}
}

QUANT_FN void team_encode_q3_k(struct quant_state *s, struct quant_team t,
	const struct raw_matrix *m, uint64_t row, uint64_t col, const float *importance,
	struct plain_fit *fit, struct block_q3_k *out)
{
	const struct sym_type p = SYM_Q3_K;
	sym_store_q3_k(s, t, sym_encode(s, t, &p, m, row, col, importance, fit), out);
}

QUANT_FN void sym_store_q6_k(
	const struct quant_state *s, struct quant_team t, uint16_t d, struct block_q6_k *out)
{
	for (int k = t.lane; k < 128; k += t.size) { /* group g % 2 of half h in the low nibbles */
		const uint8_t *q = s->q + k / 64 * 128 + k % 64;
		out->q[k] = (uint8_t)((q[0] & 15) | (q[64] & 15) << 4);
	}
	for (int k = t.lane; k < 64; k += t.size) {
		const uint8_t *q = s->q + k / 32 * 128 + k % 32;
		out->high[k] = (uint8_t)(q[0] >> 4 | q[32] >> 4 << 2 | q[64] >> 4 << 4 | q[96] >> 4 << 6);
	}
	for (int j = t.lane; j < 16; j += t.size)
		out->sc[j] = s->best_s[j];
	if (!t.lane)
		out->d = d;
}

QUANT_FN void team_encode_q6_k(struct quant_state *s, struct quant_team t,
	const struct raw_matrix *m, uint64_t row, uint64_t col, const float *importance,
	struct plain_fit *fit, struct block_q6_k *out)
{
	const struct sym_type p = SYM_Q6_K;
	sym_store_q6_k(s, t, sym_encode(s, t, &p, m, row, col, importance, fit), out);
}

/* ---- blocks of 32, a thread each ---- */

/* As quant_block_load of 32 values; x and w in registers. */
QUANT_FN bool small_load(const struct raw_matrix *m, uint64_t row, uint64_t col,
	const float *importance, enum team_weighting how, float *x, float *w, int *exponent)
{
	float top = 0, sum[8] = {0}, mean = 0;
	QUANT_UNROLL
	for (int i = 0; i < BLOCK_SMALL; i++) {
		x[i] = source_value(m, row, col + (uint64_t)i);
		top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
	}
	if (!(top > 0))
		return false;
	frexpf(top, exponent);
	const float scale1 = ldexpf(1, -*exponent / 2), scale2 = ldexpf(1, -*exponent - -*exponent / 2);
	QUANT_UNROLL
	for (int i = 0; i < BLOCK_SMALL; i++)
		x[i] = x[i] * scale1 * scale2;
	if (importance) {
		QUANT_UNROLL
		for (int i = 0; i < BLOCK_SMALL; i++)
			sum[i % 8] += w[i] = importance[i];
		mean = lanes_sum(sum) / (float)BLOCK_SMALL;
	}
	if (mean > 0x1p-100f && mean < 0x1p100f) {
		const float factor = 1 / mean;
		QUANT_UNROLL
		for (int i = 0; i < BLOCK_SMALL; i++)
			w[i] = w[i] * factor + 1e-5f;
		return true;
	}
	float square = 0, total = 0, e[8];
	QUANT_UNROLL
	for (int i = 0; i < BLOCK_SMALL; i++) {
		e[i % 8] = x[i] * x[i];
		if (i % 8 == 7)
			square += lanes_sum(e);
	}
	QUANT_UNROLL
	for (int i = 0; i < BLOCK_SMALL; i++) {
		e[i % 8] = w[i] = default_weight(how, x[i], square / (float)BLOCK_SMALL);
		if (i % 8 == 7)
			total += lanes_sum(e);
	}
	const float factor = (float)BLOCK_SMALL / total;
	QUANT_UNROLL
	for (int i = 0; i < BLOCK_SMALL; i++)
		w[i] = w[i] * factor;
	return true;
}

QUANT_FN void encode_small_q8_0(const struct raw_matrix *m, uint64_t row, uint64_t col,
	const float *importance, struct block_q8_0 *out)
{
	const struct sym_type p = SYM_Q8_0;
	float x[BLOCK_SMALL], w[BLOCK_SMALL], d = 0;
	uint16_t bits = 0;
	int exponent;
	if (small_load(m, row, col, importance, TEAM_MAGNITUDE, x, w, &exponent))
		d = sym_search(x, w, BLOCK_SMALL, &p, exponent, &bits);
	const float inverse = d != 0 ? 1 / d : 0;
	QUANT_UNROLL
	for (int i = 0; i < BLOCK_SMALL; i++)
		out->q[i] = (int8_t)quant_code(x[i] * inverse, p.low, p.high);
	out->d = bits;
}

QUANT_FN void encode_small_q4_0(const struct raw_matrix *m, uint64_t row, uint64_t col,
	const float *importance, struct block_q4_0 *out)
{
	const struct sym_type p = SYM_Q4_0;
	float x[BLOCK_SMALL], w[BLOCK_SMALL], d = 0;
	uint16_t bits = 0;
	int exponent;
	if (small_load(m, row, col, importance, TEAM_EVEN, x, w, &exponent))
		d = sym_search(x, w, BLOCK_SMALL, &p, exponent, &bits);
	const float inverse = d != 0 ? 1 / d : 0;
	QUANT_UNROLL
	for (int i = 0; i < BLOCK_SMALL / 2; i++) {
		const int low = (int)quant_code(x[i] * inverse, p.low, p.high) + 8,
				  high = (int)quant_code(x[i + 16] * inverse, p.low, p.high) + 8;
		out->q[i] = (uint8_t)(low | high << 4);
	}
	out->d = bits;
}

#endif
