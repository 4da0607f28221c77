/* SPDX-License-Identifier: MIT */
/*
 * Private to the quantisers: rounding a block with error feedback (feedback.h), group of eight
 * columns by group.
 *
 * A type's pass over a block, with its scale d given:
 *     feedback_begin once; for each pass feedback_restart, and for each group i: choose codes for
 *     the targets t[i], feedback_codes or feedback_miss, feedback_take.
 *     feedback_sums then says how good the pass was, and which factor of d would make it better.
 */
#ifndef GLM_QUANT_QUANT_FEEDBACK_H
#define GLM_QUANT_QUANT_FEEDBACK_H

#include "src/quant/feedback.h"
#include "src/quant/search/quant_block.h"

#define FEEDBACK_PASSES 3

struct feedback_run {
	const struct quant_feedback *f;
	v8 t[FEEDBACK_GROUPS];     /* targets */
	v8 miss[FEEDBACK_GROUPS];  /* U' e of the groups that are done */
	v8 white[FEEDBACK_GROUPS]; /* U' x */
	v8 weight[FEEDBACK_GROUPS], joint[FEEDBACK_GROUPS];
};

QUANT_INLINE v8 feedback_load(const float *p)
{
	v8 v;
	memcpy(&v, p, sizeof v);
	return v;
}

/* Errors e of group i move the targets of the groups behind it. */
QUANT_INLINE void feedback_spread(const struct quant_feedback *f, int i, v8 e, v8 *t)
{
	for (int k = i + 1; k < FEEDBACK_GROUPS; k++) {
		const float *c = f->between[i][k][0];
		v8 sum = t[k];
		for (int j = 0; j < 8; j++)
			sum += feedback_load(c + 8 * j) * e[j];
		t[k] = sum;
	}
}

/* What a group's targets are missed by in terms of U, given that they are missed by v. */
QUANT_INLINE v8 feedback_miss(const struct quant_feedback *f, int i, v8 v)
{
	v8 w = v;
	for (int j = 0; j < 7; j++)
		w += feedback_load(f->within[8 * i + j]) * v[j];
	return w;
}

QUANT_INLINE void feedback_begin(
	struct feedback_run *r, const struct quant_feedback *f, const struct quant_block *b)
{
	r->f = f;
	memcpy(r->weight, f->weight, sizeof r->weight);
	memcpy(r->joint, f->joint, sizeof r->joint);
	memcpy(r->t, b->x, sizeof r->t);
	for (int i = 0; i < FEEDBACK_GROUPS; i++) {
		r->white[i] = feedback_miss(f, i, r->t[i]);
		feedback_spread(f, i, b->x[i], r->t);
	}
}

QUANT_INLINE void feedback_restart(struct feedback_run *r, const struct quant_block *b)
{
	memcpy(r->t, b->x, sizeof r->t);
}

/* Codes of group i, one column after the other, where code c means a c - min. Returns the decoded
 * values. */
QUANT_INLINE v8 feedback_codes(
	struct feedback_run *r, int i, float a, float min, float low, float high, v8 *codes)
{
	float inverse = a != 0 ? 1 / a : 0;
	v8 target = r->t[i], c = {0};
	for (int l = 0; l < 8; l++) {
		c[l] = v8_code((target + min) * inverse, low, high)[l];
		float miss = r->t[i][l] - (c[l] * a - min);
		target += feedback_load(r->f->within[8 * i + l]) * miss;
	}
	v8 y = c * a - min;
	*codes = c;
	r->miss[i] = target - y;
	return y;
}

/* Group i of block b has become y. */
QUANT_INLINE void feedback_take(struct feedback_run *r, const struct quant_block *b, int i, v8 y)
{
	feedback_spread(r->f, i, b->x[i] - y, r->t);
}

/* Of a pass: e' H e; the factor of d (and dmin) that makes it least; and the factor that keeps the
 * block's size, <x, y> = <x, x> under H. 1 where there is none. */
struct feedback_sums {
	float error, least, even;
};

QUANT_INLINE struct feedback_sums feedback_sums(const struct feedback_run *r)
{
	v8 ee = {0}, xx = {0}, xy = {0}, yy = {0};
	for (int i = 0; i < FEEDBACK_GROUPS; i++) {
		v8 x = r->white[i], e = r->miss[i], y = x - e, wy = r->weight[i] * y;
		ee += r->weight[i] * e * e;
		xx += r->weight[i] * x * x;
		xy += wy * x;
		yy += wy * y;
	}
	float a = v8_sum(xy), b = v8_sum(yy);
	if (!(a > 0 && b > 0))
		return (struct feedback_sums){v8_sum(ee), 1, 1};
	return (struct feedback_sums){v8_sum(ee), a / b, v8_sum(xx) / a};
}

/* The factor of d for what is stored: least squares, then growth against its shrinkage, as
 * quant_block_growth explains. */
QUANT_INLINE float feedback_growth(const struct feedback_sums *s, float most)
{
	float grown = s->least * (1 + most);
	return s->even > s->least ? s->even < grown ? s->even : grown : s->least;
}

#endif
