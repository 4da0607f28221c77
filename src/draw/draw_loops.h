/* SPDX-License-Identifier: MIT */
/*
 * Private to src/draw: the loops over all logits of a row, compiled once per instruction set
 * (draw_loops_body.h). All give the same results.
 */
#ifndef GLM_DRAW_LOOPS_H
#define GLM_DRAW_LOOPS_H

#include "src/draw/draw.h"

#define DRAW_BUCKETS_LN2 64 /* buckets for each factor of 2 in probability */
#define DRAW_BUCKETS     (60 * DRAW_BUCKETS_LN2 + 1)

struct draw_loops {
	/* maxima[b] of each DRAW_BLOCK of x [n]; returns whether all are finite. */
	bool (*maxima)(const float *x, size_t n, float *maxima);
	/* Adds to before->mass the units of those not below `least`, to all->mass those of all. */
	void (*sum)(const float *x, size_t n, float least, float top, float scale,
		struct draw_sum *before, struct draw_sum *all);
	size_t (*count)(const float *x, size_t n, float least); /* those not below `least` */
	/* out [n] = draw_units of each */
	void (*units)(const float *x, size_t n, float top, float scale, uint64_t *out);
	/* out [n]: 0 .. DRAW_BUCKETS - 1 by the distance from top; a larger logit has no larger one. */
	void (*buckets)(const float *x, size_t n, float top, float scale, int32_t *out);
	/* out [DRAW_BLOCK] = the words of the ids from `first` on, a multiple of DRAW_BLOCK
	 * (draw_id_words). */
	void (*id_words)(const struct draw_noise *noise, uint32_t first, uint32_t *out);
};

/* NULL on machines without the instruction set. */
extern const struct draw_loops *const draw_loops_c, *const draw_loops_avx2,
														*const draw_loops_avx512;

/* How many logits the block has that begins at id `first`. */
static inline size_t draw_block_size(const struct draw_row *row, size_t first)
{
	size_t left = (size_t)row->n - first;
	return left < DRAW_BLOCK ? left : DRAW_BLOCK;
}

/* Adds the masses of draw_before that one block has. */
void draw_mass_in_block(const float *logits, const struct draw_row *row, float scale, int32_t id,
	size_t block, struct draw_sum *before, struct draw_sum *all);

/* The fastest that this machine has, or the level-th after it; NULL: no such. Tests compare them.
 */
const struct draw_loops *draw_loops_available(int level);

#endif
