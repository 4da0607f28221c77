/* SPDX-License-Identifier: MIT */
/*
 * Private to the quantisers: a block is quantised with error feedback (feedback.h), one group of
 * eight columns after the other.
 *
 *     feedback_begin(&r, feedback, b);
 *     for each pass, with a scale d:
 *         feedback_restart(&r, b);
 *         for each group i, in order:
 *             y = feedback_codes(&r, i, ...);    or other values y for the targets r.t[i], and
 *                                                r.miss[i] = feedback_miss(f, i, r.t[i] - y)
 *             feedback_take(&r, b, i, y);
 *         sums = feedback_sums(&r);              the error of the pass, and better factors of d
 */
#ifndef GLM_QUANT_QUANT_FEEDBACK_H
#define GLM_QUANT_QUANT_FEEDBACK_H

#include "src/quant/feedback.h"
#include "src/quant/search/quant_block.h"

#define FEEDBACK_PASSES 3

struct feedback_run {
	const struct quant_feedback *f;
	v8 t[FEEDBACK_GROUPS];     /* targets: x plus what the errors of earlier groups add */
	v8 miss[FEEDBACK_GROUPS];  /* U' e, e = x less the decoded values; of groups that are done */
	v8 white[FEEDBACK_GROUPS]; /* U' x */
	v8 weight[FEEDBACK_GROUPS], joint[FEEDBACK_GROUPS]; /* copies of f's */
};

QUANT_INLINE v8 feedback_load(const float *p)
{
	v8 v;
	memcpy(&v, p, sizeof v);
	return v;
}

/* Adds to the targets t of later groups their share of the errors e of group i. */
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

/* Group i of U' e, given that the group's decoded values are its targets less v. */
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

/* Chooses the codes of group i, one column after the other, where code c means a c - min, and sets
 * r->miss[i]. Returns the decoded values. */
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

/* The values of group i of block b are now y: moves the targets of later groups. */
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
