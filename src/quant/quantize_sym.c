/* SPDX-License-Identifier: MIT */
/*
 * The types without minima.
 *   Q8_0, Q4_0: x = d q, one half d per 32 weights
 *   Q3_K, Q6_K: x = d s q, one integer scale s per 16 weights and one half d per 256
 *
 * Objective: the weighted squared error of the decoded weights, columns weighted by `importance`,
 * or without it as enum quant_weighting says.
 *
 * For a fixed scale the best codes are the nearest ones, so only the scale is searched. The error
 * as a function of it is jagged: in 32 weights the best of a few dozen scales has three quarters of
 * the squared error of the simple choice max / 127. Hence candidates first, least squares second:
 *   - One scale: 2 x n_candidates values around "the largest weight takes the last code", for both
 *     signs of d, because the codes have one value more below zero. Each is improved by one step of
 *     least squares for its codes.
 *   - Two levels: the same search gives each sub-block its real scale a; d is fitted so that the
 *     largest |a| takes the last integer. Then, in turns, the best integer s near a / d for each
 *     sub-block, and least squares for d with codes and s fixed, until the error stops falling.
 *     Q3_K: d grows after that (quant_block_growth).
 * Every error is computed with d as the half that will be stored.
 */
#include "src/quant/quantize_rows.h"

#include "src/quant/k_scales.h"
#include "src/quant/quant_feedback.h"

struct sym {
	float low, high;  /* range of the codes */
	int n_candidates; /* scales tried on either side */
	float first,
		spread; /* the candidates use the codes up to high + first .. high + first + spread */
	int s_low, s_high;     /* range of the integer scales */
	int radius;            /* of the search for s */
	float growth;          /* most of quant_block_growth */
	float feedback_growth; /* most of feedback_growth */
};

#define ROUNDS_MAX 4

QUANT_INLINE float sym_error(const v8 *x, const v8 *w, int n_vec, float a, const struct sym *p)
{
	float inverse = a != 0 ? 1 / a : 0;
	v8 sum = {0};
	for (int i = 0; i < n_vec; i++) {
		v8 r = x[i] - v8_code(x[i] * inverse, p->low, p->high) * a;
		sum += r * r * w[i];
	}
	return v8_sum(sum);
}

/* The best scale for the codes that scale a would give. */
QUANT_INLINE float sym_refit(const v8 *x, const v8 *w, int n_vec, float a, const struct sym *p)
{
	float inverse = 1 / a;
	v8 qq = {0}, qx = {0};
	for (int i = 0; i < n_vec; i++) {
		v8 q = v8_code(x[i] * inverse, p->low, p->high), wq = w[i] * q;
		qq += wq * q;
		qx += wq * x[i];
	}
	float sum = v8_sum(qq);
	return sum > 0 ? v8_sum(qx) / sum : 0;
}

/* Scale with the least error; `stored`: rounded to a half, its bits in *bits (else bits may be
 * NULL). */
QUANT_INLINE float sym_search(
	const struct quant_block *b, int at, int n_vec, const struct sym *p, int stored, uint16_t *bits)
{
	const v8 *x = b->x + at, *w = b->w + at;
	v8 top8 = {0};
	for (int i = 0; i < n_vec; i++)
		top8 = v8_max(top8, v8_abs(x[i]));
	float top = 0, best_a = 0, best = INFINITY;
	for (int i = 0; i < 8; i++)
		top = top8[i] > top ? top8[i] : top;
	if (stored)
		*bits = 0;
	if (!(top > 1e-12f))
		return 0;
	for (int i = 0; i < 2 * p->n_candidates; i++) {
		float code = p->high + p->first + p->spread * (float)(i / 2) / (float)p->n_candidates;
		float a = sym_refit(x, w, n_vec, (i & 1 ? -top : top) / code, p);
		uint16_t h = 0;
		if (stored)
			a = quant_block_scale(b, a, &h);
		float e = sym_error(x, w, n_vec, a, p);
		if (e < best) {
			best = e;
			best_a = a;
			if (stored)
				*bits = h;
		}
	}
	return best_a;
}

QUANT_INLINE void sym_codes(const v8 *x, int n_vec, float a, const struct sym *p, int8_t *q)
{
	float inverse = a != 0 ? 1 / a : 0;
	for (int i = 0; i < n_vec; i++) {
		v8 c = v8_code(x[i] * inverse, p->low, p->high);
		for (int l = 0; l < 8; l++)
			q[8 * i + l] = (int8_t)c[l];
	}
}

/* Codes and integer scales stay; d grows against the shrinkage of least squares. Its bits. */
QUANT_INLINE uint16_t sym_grow(
	const struct quant_block *b, const struct sym *p, const int8_t *s, float d)
{
	v8 xy = {0};
	for (int i = 0; i < BLOCK_BIG / 8; i++) {
		float a = d * (float)s[i / 2], inverse = a != 0 ? 1 / a : 0;
		xy += b->w[i] * b->x[i] * v8_code(b->x[i] * inverse, p->low, p->high) * a;
	}
	uint16_t bits;
	quant_block_scale(b, d * quant_block_growth(b, v8_sum(xy), p->growth), &bits);
	return bits;
}

/* Given d, the integer scale s near a / d with the least error, which is returned. */
QUANT_INLINE float sym_lattice(
	const v8 *x, const v8 *w, const struct sym *p, float d, float a, int8_t *s)
{
	float ratio = d != 0 ? a / d : 0, least = INFINITY;
	int center = (int)lrintf(ratio < (float)p->s_low    ? (float)p->s_low
							 : ratio > (float)p->s_high ? (float)p->s_high
														: ratio);
	*s = 0;
	for (int t = center - p->radius; t <= center + p->radius; t++) {
		if (t < p->s_low || t > p->s_high)
			continue;
		float e = sym_error(x, w, 2, d * (float)t, p);
		if (e < least) {
			least = e;
			*s = (int8_t)t;
		}
	}
	return least;
}

/* d given: integer scales and codes of all sub-blocks, each for what the errors before it have made
 * of its weights. */
QUANT_INLINE void sym_feedback_pass(struct feedback_run *r, const struct quant_block *b,
	const struct sym *p, float d, int8_t *s, int8_t *q)
{
	feedback_restart(r, b);
	for (int j = 0; j < 16; j++) {
		const v8 *t = r->t + 2 * j, *w = r->weight + 2 * j;
		float a = d * (float)s[j];
		if (a != 0)
			a = sym_refit(t, w, 2, a, p);
		sym_lattice(t, w, p, d, a, &s[j]);
		a = d * (float)s[j];
		for (int i = 2 * j; i < 2 * j + 2; i++) {
			v8 c;
			feedback_take(r, b, i, feedback_codes(r, i, a, 0, p->low, p->high, &c));
			for (int l = 0; l < 8; l++)
				q[8 * i + l] = (int8_t)c[l];
		}
	}
}

/* s and d are the plain fit's; s and q become those with error feedback. Returns the bits of d. */
QUANT_INLINE uint16_t sym_feedback(const struct quant_block *b, const struct sym *p,
	const struct quant_feedback *feedback, float d, int8_t *best_s, int8_t *q)
{
	struct feedback_run r;
	int8_t s[16], codes[BLOCK_BIG];
	float best = INFINITY, best_d = d;
	uint16_t bits;
	memcpy(s, best_s, sizeof s);
	feedback_begin(&r, feedback, b);
	for (int pass = 0; pass < FEEDBACK_PASSES; pass++) {
		sym_feedback_pass(&r, b, p, d, s, codes);
		struct feedback_sums sums = feedback_sums(&r);
		if (sums.error < best) {
			best = sums.error;
			best_d = d * feedback_growth(&sums, p->feedback_growth);
			memcpy(best_s, s, sizeof s);
			memcpy(q, codes, sizeof codes);
		}
		d = quant_block_scale(b, d * sums.least, &bits);
	}
	quant_block_scale(b, best_d, &bits);
	return bits;
}

/* Two levels: fills s[16] and the codes q[256]; returns the bits of d. */
QUANT_INLINE uint16_t sym_block(const struct quant_block *b, const struct sym *p,
	const struct quant_feedback *feedback, int8_t *best_s, int8_t *q)
{
	float a[16], top = 0, best = INFINITY, best_d = 0;
	uint16_t best_bits = 0;
	for (int j = 0; j < 16; j++) {
		a[j] = sym_search(b, 2 * j, 2, p, 0, NULL);
		top = fabsf(a[j]) > fabsf(top) ? a[j] : top;
	}
	memset(best_s, 0, 16);
	float d = top / (float)p->s_low;
	for (int round = 0; round < ROUNDS_MAX; round++) {
		int8_t s[16];
		uint16_t bits;
		float error = 0, stored = quant_block_scale(b, d, &bits);
		v8 uu = {0}, ux = {0};
		for (int j = 0; j < 16; j++) {
			const v8 *x = b->x + 2 * j, *w = b->w + 2 * j;
			error += sym_lattice(x, w, p, stored, a[j], &s[j]);
			float scale = stored * (float)s[j], inverse = scale != 0 ? 1 / scale : 0;
			for (int i = 0; i < 2; i++) {
				v8 u = v8_code(x[i] * inverse, p->low, p->high) * (float)s[j], wu = w[i] * u;
				uu += wu * u;
				ux += wu * x[i];
			}
		}
		if (!(error < best))
			break;
		best = error;
		best_d = stored;
		best_bits = bits;
		memcpy(best_s, s, 16);
		float sum = v8_sum(uu);
		d = sum > 0 ? v8_sum(ux) / sum : stored;
	}
	if (feedback && feedback->correlated)
		return sym_feedback(b, p, feedback, best_d, best_s, q);
	for (int j = 0; j < 16; j++)
		sym_codes(b->x + 2 * j, 2, best_d * (float)best_s[j], p, q + 16 * j);
	return p->growth > 0 ? sym_grow(b, p, best_s, best_d) : best_bits;
}

QUANT_INLINE void encode_q8_0(const float *src, struct block_q8_0 *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct sym p = {.low = -128, .high = 127, .n_candidates = 16, .first = 1, .spread = -16};
	struct quant_block b;
	(void)feedback;
	memset(out, 0, sizeof *out);
	if (!quant_block_load(&b, src, importance, QUANT_MAGNITUDE, BLOCK_SMALL))
		return;
	float d = sym_search(&b, 0, 4, &p, 1, &out->d);
	sym_codes(b.x, 4, d, &p, out->q);
}

QUANT_INLINE void encode_q4_0(const float *src, struct block_q4_0 *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct sym p = {.low = -8, .high = 7, .n_candidates = 12, .first = -1, .spread = 3};
	struct quant_block b;
	int8_t q[BLOCK_SMALL] = {0};
	(void)feedback;
	memset(out, 0, sizeof *out);
	if (quant_block_load(&b, src, importance, QUANT_EVEN, BLOCK_SMALL)) {
		float d = sym_search(&b, 0, 4, &p, 1, &out->d);
		sym_codes(b.x, 4, d, &p, q);
	}
	for (int i = 0; i < 16; i++)
		out->q[i] = (uint8_t)((q[i] + 8) | (q[i + 16] + 8) << 4);
}

QUANT_INLINE void encode_q3_k(const float *src, struct block_q3_k *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct sym p = {.low = -4,
		.high = 3,
		.n_candidates = 8,
		.first = -1,
		.spread = 3,
		.s_low = -32,
		.s_high = 31,
		.radius = 2,
		.growth = 0.015f,
		.feedback_growth = 0.01f};
	struct quant_block b;
	int8_t q[BLOCK_BIG] = {0}, s[16] = {0};
	memset(out, 0, sizeof *out);
	if (quant_block_load(&b, src, importance, QUANT_EVEN, BLOCK_BIG))
		out->d = sym_block(&b, &p, feedback, s, q);
	k_pack6_signed(out->sc, s);
	for (int i = 0; i < BLOCK_BIG; i++) {
		int c = q[i] + 4;
		out->q[i / 128 * 32 + i % 32] |= (uint8_t)((c & 3) << i % 128 / 32 * 2);
		out->high[i % 32] |= (uint8_t)(c >> 2 << i / 32);
	}
}

QUANT_INLINE void encode_q6_k(const float *src, struct block_q6_k *out, const float *importance,
	const struct quant_feedback *feedback)
{
	const struct sym p = {.low = -32,
		.high = 31,
		.n_candidates = 8,
		.first = 1,
		.spread = -6,
		.s_low = -128,
		.s_high = 127,
		.radius = 3};
	struct quant_block b;
	int8_t q[BLOCK_BIG] = {0};
	memset(out, 0, sizeof *out);
	if (quant_block_load(&b, src, importance, QUANT_EVEN, BLOCK_BIG))
		out->d = sym_block(&b, &p, feedback, out->sc, q);
	for (int i = 0; i < BLOCK_BIG; i++) {
		int c = q[i] + 32, h = i / 128, g = i % 128 / 32, l = i % 32;
		out->q[64 * h + 32 * (g & 1) + l] |= (uint8_t)((c & 15) << (g & 2) * 2);
		out->high[32 * h + l] |= (uint8_t)(c >> 4 << 2 * g);
	}
}

QUANT_ROW(quantize_row_q8_0, encode_q8_0, struct block_q8_0, BLOCK_SMALL)
QUANT_ROW(quantize_row_q4_0, encode_q4_0, struct block_q4_0, BLOCK_SMALL)
QUANT_ROW(quantize_row_q3_k, encode_q3_k, struct block_q3_k, BLOCK_BIG)
QUANT_ROW(quantize_row_q6_k, encode_q6_k, struct block_q6_k, BLOCK_BIG)
