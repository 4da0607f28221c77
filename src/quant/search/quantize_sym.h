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
#ifndef GLM_QUANT_QUANTIZE_SYM_H
#define GLM_QUANT_QUANTIZE_SYM_H

#include "src/quant/k_scales.h"
#include "src/quant/search/quant_feedback.h"
#include "src/quant/search/quant_lanes.h"

struct sym {
	float low, high;  /* range of the codes */
	int n_candidates; /* scales tried on either side */
	/* Candidates put the largest weight on the codes high + first .. high + first + spread. */
	float first, spread;
	int s_low, s_high;     /* range of the integer scales */
	int radius;            /* of the search for s: that far from the nearest integer */
	float growth;          /* most of quant_block_growth */
	float feedback_growth; /* most of feedback_growth */
};

#define SYM_ROUNDS 4

QUANT_INLINE v8 sym_error_of(int i, const struct lanes *b, v8 a, v8 inverse, const struct sym *p)
{
	const v8 r = b->x[i] - v8_code(b->x[i] * inverse, p->low, p->high) * a;
	return r * r * b->w[i];
}

/* Squared error with the best codes for scale a. */
QUANT_INLINE v8 sym_error(const struct lanes *b, int n_vec, v8 a, const struct sym *p)
{
	const v8 inverse = v8_inverse(a != 0, a);
	return LANES_SUM(v8, v8_add, sym_error_of, n_vec, b, a, inverse, p);
}

struct sym_sums {
	v8 qq, qx;
};

QUANT_INLINE struct sym_sums sym_sums_add(struct sym_sums a, struct sym_sums b)
{
	return (struct sym_sums){a.qq + b.qq, a.qx + b.qx};
}

QUANT_INLINE struct sym_sums sym_sums_of(
	int i, const struct lanes *b, v8 inverse, const struct sym *p)
{
	const v8 q = v8_code(b->x[i] * inverse, p->low, p->high), wq = b->w[i] * q;
	return (struct sym_sums){wq * q, wq * b->x[i]};
}

/* The best scale for the codes that scale a would give. */
QUANT_INLINE v8 sym_refit(const struct lanes *b, int n_vec, v8 a, const struct sym *p)
{
	const v8 inverse = 1 / a;
	const struct sym_sums sum =
		LANES_SUM(struct sym_sums, sym_sums_add, sym_sums_of, n_vec, b, inverse, p);
	return (v8)((v8i)(sum.qx / sum.qq) & (sum.qq > 0));
}

/* Candidate i of 2 * n_candidates: the code that the largest weight takes, for d of either sign. */
QUANT_INLINE float sym_candidate(int i, const struct sym *p)
{
	const float code = p->high + p->first + p->spread * (float)(i / 2) / (float)p->n_candidates;
	return i & 1 ? -code : code;
}

QUANT_INLINE v8 sym_top(const struct lanes *b, int n_vec)
{
	v8 top = {0};
	for (int i = 0; i < 8 * n_vec; i++)
		top = v8_max(top, v8_abs(b->x[i]));
	return top;
}

/* Two levels: the scale with the least error for each of eight sub-blocks. */
QUANT_INLINE v8 sym_search(const struct lanes *b, const struct sym *p)
{
	const v8 top = sym_top(b, 2);
	v8 best_a = {0}, best = v8_set(INFINITY);
	for (int i = 0; i < 2 * p->n_candidates; i++) {
		const v8 a = sym_refit(b, 2, top / sym_candidate(i, p), p), e = sym_error(b, 2, a, p);
		const v8i less = e < best;
		best = v8_select(less, e, best);
		best_a = v8_select(less, a, best_a);
	}
	return v8_select(top > 1e-12f, best_a, v8_set(0));
}

/* One scale: that of a block, and its bits as a half. Eight candidates at a time. */
QUANT_INLINE float sym_search_stored(
	const struct quant_block *b, const struct sym *p, uint16_t *bits)
{
	struct lanes one;
	lanes_spread(&one, b->x, b->w, 4);
	const v8 top = sym_top(&one, 4);
	float best_a = 0, best = INFINITY;
	*bits = 0;
	if (!(top[0] > 1e-12f))
		return 0;
	for (int i = 0; i < 2 * p->n_candidates; i += LANES) {
		uint16_t half[LANES];
		v8 code;
		for (int l = 0; l < LANES; l++)
			code[l] = sym_candidate(i + l, p);
		v8 a = sym_refit(&one, 4, top / code, p);
		for (int l = 0; l < LANES; l++)
			a[l] = quant_block_scale(b, a[l], &half[l]);
		const v8 e = sym_error(&one, 4, a, p);
		const int l = lanes_least(e);
		if (e[l] < best) {
			best = e[l];
			best_a = a[l];
			*bits = half[l];
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

/* The integer scales that are nearest to a / d. */
QUANT_INLINE v8 sym_center(const struct sym *p, float d, v8 a)
{
	const v8 ratio = d != 0 ? a / d : v8_set(0);
	return v8_code(ratio, (float)p->s_low, (float)p->s_high);
}

/* Error of integer scale s; infinite for one out of range. */
QUANT_INLINE v8 sym_lattice_error(const struct lanes *b, const struct sym *p, float d, v8 s)
{
	const v8i valid = (s >= (float)p->s_low) & (s <= (float)p->s_high);
	return v8_select(valid, sym_error(b, 2, d * s, p), v8_set(INFINITY));
}

/* Given d, the integer scales near a / d with the least error, which is returned. */
QUANT_INLINE v8 sym_lattice(
	const struct lanes *b, const struct sym *p, float d, v8 a, int8_t s[LANES])
{
	const v8 center = sym_center(p, d, a);
	v8 best = {0}, least = v8_set(INFINITY);
	for (int t = -p->radius; t <= p->radius; t++) {
		const v8 at = center + (float)t, e = sym_lattice_error(b, p, d, at);
		const v8i less = e < least;
		least = v8_select(less, e, least);
		best = v8_select(less, at, best);
	}
	for (int l = 0; l < LANES; l++)
		s[l] = (int8_t)best[l];
	return least;
}

/* The same for the one sub-block that is in all lanes of b; its radius is at most 3. */
QUANT_INLINE int8_t sym_lattice_one(const struct lanes *b, const struct sym *p, float d, v8 a)
{
	const v8 offset = {0, 1, 2, 3, 4, 5, 6, 7};
	const v8 at = sym_center(p, d, a) + (offset - (float)p->radius);
	v8 e = sym_lattice_error(b, p, d, at);
	e = v8_select(offset <= (float)(2 * p->radius), e, v8_set(INFINITY));
	const int l = lanes_least(e);
	return e[l] < INFINITY ? (int8_t)at[l] : 0;
}

/* d given: integer scales and codes of all sub-blocks, each for what the errors before it have made
 * of its weights. */
QUANT_INLINE void sym_feedback_pass(struct feedback_run *r, const struct quant_block *b,
	const struct sym *p, float d, int8_t *s, int8_t *q)
{
	feedback_restart(r, b);
	for (int j = 0; j < 16; j++) {
		struct lanes one;
		lanes_spread(&one, r->t + 2 * j, r->weight + 2 * j, 2);
		v8 scale = v8_set(d * (float)s[j]);
		if (scale[0] != 0)
			scale = sym_refit(&one, 2, scale, p);
		s[j] = sym_lattice_one(&one, p, d, scale);
		float a = d * (float)s[j];
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

/* Integer scales s and the codes that follow from them and d stay: least squares for d. */
QUANT_INLINE float sym_block_refit(
	const struct quant_block *b, const struct sym *p, const int8_t s[16], float d)
{
	v8 uu = {0}, ux = {0};
	for (int j = 0; j < 16; j++) {
		const v8 *x = b->x + 2 * j, *w = b->w + 2 * j;
		float scale = d * (float)s[j], inverse = scale != 0 ? 1 / scale : 0;
		for (int i = 0; i < 2; i++) {
			v8 u = v8_code(x[i] * inverse, p->low, p->high) * (float)s[j], wu = w[i] * u;
			uu += wu * u;
			ux += wu * x[i];
		}
	}
	float sum = v8_sum(uu);
	return sum > 0 ? v8_sum(ux) / sum : d;
}

/* Two levels: fills s[16] and the codes q[256]; returns the bits of d. */
QUANT_INLINE uint16_t sym_block(const struct quant_block *b, const struct sym *p,
	const struct quant_feedback *feedback, int8_t *best_s, int8_t *q)
{
	struct lanes lanes[16 / LANES];
	v8 a[16 / LANES];
	float top = 0, best = INFINITY, best_d = 0;
	uint16_t best_bits = 0;
	for (int g = 0; g < 16 / LANES; g++) {
		lanes_load(&lanes[g], b->x + 2 * LANES * g, b->w + 2 * LANES * g, 2);
		a[g] = sym_search(&lanes[g], p);
		for (int l = 0; l < LANES; l++)
			top = fabsf(a[g][l]) > fabsf(top) ? a[g][l] : top;
	}
	memset(best_s, 0, 16);
	float d = top / (float)p->s_low;
	for (int round = 0; round < SYM_ROUNDS; round++) {
		int8_t s[16];
		uint16_t bits;
		float error = 0, stored = quant_block_scale(b, d, &bits);
		for (int g = 0; g < 16 / LANES; g++) {
			const v8 e = sym_lattice(&lanes[g], p, stored, a[g], s + LANES * g);
			for (int l = 0; l < LANES; l++)
				error += e[l];
		}
		if (!(error < best))
			break;
		best = error;
		best_d = stored;
		best_bits = bits;
		memcpy(best_s, s, 16);
		d = sym_block_refit(b, p, s, stored);
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
	float d = sym_search_stored(&b, &p, &out->d);
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
		float d = sym_search_stored(&b, &p, &out->d);
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
	for (int k = 0; k < 8; k++)
		for (int l = 0; l < 32; l++) {
			const int c = q[32 * k + l] + 4;
			out->q[k / 4 * 32 + l] |= (uint8_t)((c & 3) << k % 4 * 2);
			out->high[l] |= (uint8_t)(c >> 2 << k);
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
	for (int k = 0; k < 8; k++)
		for (int l = 0; l < 32; l++) {
			const int c = q[32 * k + l] + 32;
			out->q[k / 4 * 64 + k % 2 * 32 + l] |= (uint8_t)((c & 15) << (k & 2) * 2);
			out->high[k / 4 * 32 + l] |= (uint8_t)(c >> 4 << k % 4 * 2);
		}
}

QUANT_ROW(quantize_row_q8_0, encode_q8_0, struct block_q8_0, BLOCK_SMALL)
QUANT_ROW(quantize_row_q4_0, encode_q4_0, struct block_q4_0, BLOCK_SMALL)
QUANT_ROW(quantize_row_q3_k, encode_q3_k, struct block_q3_k, BLOCK_BIG)
QUANT_ROW(quantize_row_q6_k, encode_q6_k, struct block_q6_k, BLOCK_BIG)

#endif
