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
	/* Adds the units of all x [n] to all->mass, and of those >= least to before->mass. */
	void (*sum)(const float *x, size_t n, float least, float top, float scale,
		struct draw_sum *before, struct draw_sum *all);
	size_t (*count)(const float *x, size_t n, float least); /* how many are >= least */
	/* out [n] = draw_units of each */
	void (*units)(const float *x, size_t n, float top, float scale, uint64_t *out);
	/* out [n]: the bucket of each, 0 .. DRAW_BUCKETS - 1, by its distance from top. Of two logits
	 * the larger one has the same bucket or a lower one. */
	void (*buckets)(const float *x, size_t n, float top, float scale, int32_t *out);
	/* out [DRAW_BLOCK] = the words (draw_id_words) of ids first, first + 1, ...; first is a
	 * multiple of DRAW_BLOCK. */
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

/* The part of draw_before's masses that block number `block` has, added to *before and *all. */
void draw_mass_in_block(const float *logits, const struct draw_row *row, float scale, int32_t id,
	size_t block, struct draw_sum *before, struct draw_sum *all);

/* The fastest that this machine has, or the level-th after it; NULL: no such. Tests compare them.
 */
const struct draw_loops *draw_loops_available(int level);

#endif
