/* SPDX-License-Identifier: MIT */
/*
 * The random numbers with which a token is drawn, and the arithmetic of the draw. For C and CUDA C:
 * the host and the card get the same bits.
 *
 * Gumbel-max: the token at a position is the id with the largest
 *      score(id) = logit[id] / temperature + G(seed, position, id),
 * where the G are independent Gumbel variables. That id has the distribution softmax(logits /
 * temperature). Among any set of ids the largest score has the distribution restricted to the set.
 *
 * G = -ln E with E exponential. E is made in two levels, so that one number bounds all E of a block
 * of DRAW_BLOCK ids. The smallest of n exponentials is exponential with rate n and is at each of
 * the n places with the same probability. What the others exceed it by is exponential again,
 * because exponentials have no memory. So
 *      E[the id of a block that has the least] = least
 *      E[any other id of the block]            = least + exponential(word of the id)
 * with least = exponential(word of the block) / DRAW_BLOCK, at a uniform place.
 *
 * The words are those of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
 * easy as 1, 2, 3", 2011), which passes BigCrush. Key: the seed. Counter: index, position, level.
 * There is no state: a token's number depends on seed, position and id alone.
 *
 * Same bits: only operations that IEEE 754 rounds exactly, none of them fused (the host is compiled
 * with -ffp-contract=off, the card has draw_mul_add).
 */
#ifndef GLM_DRAW_NOISE_H
#define GLM_DRAW_NOISE_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define DRAW_FN static __host__ __device__ inline
#else
#define DRAW_FN static inline
#endif

#define DRAW_BLOCK 128 /* ids */

/* Units of mass: the largest logit has exp(0) = 2^DRAW_UNIT_BITS. Sums of integers are the same in
 * every order. Those of fewer than 2^24 ids fit in 64 bits. */
#define DRAW_UNIT_BITS 40

/* What a row of logits is drawn with. */
struct draw_noise {
	uint64_t seed;
	uint32_t position; /* of the token to be drawn, in its timeline */
};

struct draw_words {
	uint32_t w[4];
};

DRAW_FN struct draw_words draw_philox(struct draw_words c, uint64_t key)
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)c.w[0] * 0xd2511f53u, b = (uint64_t)c.w[2] * 0xcd9e8d57u;
		struct draw_words next = {{(uint32_t)(b >> 32) ^ c.w[1] ^ k0, (uint32_t)b,
			(uint32_t)(a >> 32) ^ c.w[3] ^ k1, (uint32_t)a}};
		c = next;
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	return c;
}

/* The words of blocks 2 i and 2 i + 1. Words 2 k and 2 k + 1 belong to block 2 i + k: one for the
 * value of its least exponential, one for its place. */
DRAW_FN struct draw_words draw_block_words(const struct draw_noise *n, uint32_t i)
{
	struct draw_words c = {{i, n->position, 0, 0}};
	return draw_philox(c, n->seed);
}

/* The words of ids 4 i .. 4 i + 3. Word k belongs to id 4 i + k. */
DRAW_FN struct draw_words draw_id_words(const struct draw_noise *n, uint32_t i)
{
	struct draw_words c = {{i, n->position, 1, 0}};
	return draw_philox(c, n->seed);
}

DRAW_FN float draw_mul_add(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
	return __fadd_rn(__fmul_rn(a, b), c);
#else
	return a * b + c;
#endif
}

DRAW_FN float draw_mul(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fmul_rn(a, b);
#else
	return a * b;
#endif
}

/* ln(2^e (1 + t)) for 1 + t between sqrt(1/2) and sqrt(2); at e = 0 to 1e-7 of it, else to 1e-7
 * times |e| + 1. Interpolates (ln(1 + t) - t + t^2 / 2) / t^3 at Chebyshev's points. */
DRAW_FN float draw_ln_of(float t, int e)
{
	float q = -0.0790274367f, z = t * t;
	q = draw_mul_add(q, t, 0.126223192f);
	q = draw_mul_add(q, t, -0.129981831f);
	q = draw_mul_add(q, t, 0.142144963f);
	q = draw_mul_add(q, t, -0.166412815f);
	q = draw_mul_add(q, t, 0.200010449f);
	q = draw_mul_add(q, t, -0.25000307f);
	q = draw_mul_add(q, t, 0.333333313f);
	q = draw_mul_add(draw_mul_add(q, t, -0.5f), z, t);
	return draw_mul_add((float)e, 0.693147182f, q);
}

/* ln x of a normal x > 0 */
DRAW_FN float draw_ln(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof u);
	int32_t e = ((int32_t)u - 0x3f3504f3) >> 23; /* so that the rest begins at sqrt(1/2) */
	u -= (uint32_t)e << 23;
	memcpy(&x, &u, sizeof x);
	return draw_ln_of(x - 1.0f, e);
}

/* -ln(1 - v), v = (w + 1/2) / 2^32: exponential with mean 1, > 0; grows with w, but for rounding.
 */
DRAW_FN float draw_exponential(uint32_t w)
{
	if (w < 0x40000000)
		return -draw_ln_of(draw_mul_add((float)w, -0x1p-32f, -0x1p-33f), 0);
	return -draw_ln(draw_mul_add((float)~w, 0x1p-32f, 0x1p-33f));
}

/* The least E of a block, from its first word. */
DRAW_FN float draw_block_least(uint32_t w0)
{
	return draw_exponential(w0) * (1.0f / DRAW_BLOCK);
}

/* The place in the block, 0 .. DRAW_BLOCK - 1, of the id that has it, from the second word. */
DRAW_FN uint32_t draw_block_at(uint32_t w1)
{
	return (uint32_t)((uint64_t)w1 * DRAW_BLOCK >> 32);
}

/* The score of a logit with the exponential e; inv_t = 1 / temperature. */
DRAW_FN double draw_score(float logit, double inv_t, float e)
{
#ifdef __CUDA_ARCH__
	return __dadd_rn(__dmul_rn((double)logit, inv_t), -(double)draw_ln(e));
#else
	return (double)logit * inv_t - (double)draw_ln(e);
#endif
}

/* log2 of the ratio of the probability of `top` to that of a logit <= top; at most, and for
 * NaN, 60. scale: draw_unit_scale. */
DRAW_FN float draw_halvings(float logit, float top, float scale)
{
	float below = draw_mul(top - logit, scale);
	int32_t bits;
	memcpy(&bits, &below, sizeof bits);
	bits &= 0x7fffffff;
	bits = bits < 0x42700000 ? bits : 0x42700000;
	memcpy(&below, &bits, sizeof below);
	return below;
}

/* exp((logit - top) * inv_t) of a logit <= top in units of 2^-DRAW_UNIT_BITS, rounded down; its
 * relative error before rounding is 3e-7. NaN: 0. scale: draw_unit_scale. */
DRAW_FN uint64_t draw_units(float logit, float top, float scale)
{
	float below = draw_halvings(logit, top, scale);
	int32_t whole = (int32_t)(below + 0.5f);
	float f = (float)whole - below, p = 0.000154614449f;
	p = draw_mul_add(p, f, 0.0013400428f);
	p = draw_mul_add(p, f, 0.00961805694f);
	p = draw_mul_add(p, f, 0.0555032715f);
	p = draw_mul_add(p, f, 0.240226507f);
	p = draw_mul_add(p, f, 0.693147182f);
	p = draw_mul_add(p, f, 1.0f);
	uint64_t m = (uint64_t)(uint32_t)(int32_t)(p * 0x1p24f); /* exact */
	return (m << (DRAW_UNIT_BITS - 24)) >> (uint32_t)whole;
}

/* Halvings (draw_halvings) for each 1.0 of difference between logits. */
DRAW_FN float draw_unit_scale(double inv_t)
{
	return (float)(inv_t * 1.4426950408889634);
}

#endif
