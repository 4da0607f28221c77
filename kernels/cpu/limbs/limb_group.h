/* SPDX-License-Identifier: MIT */
/*
 * What the vector versions have in common: a task is computed in groups of LIMB_ROWS weight rows,
 * which are prefetched group by group.
 */
#ifndef GLM_KERNELS_LIMB_GROUP_H
#define GLM_KERNELS_LIMB_GROUP_H

#include "kernels/cpu/cpu_inline.h"
#include "kernels/cpu/limbs/limb_rows.h"
#include "src/base/num.h"

#include <immintrin.h>

/* Up to LIMB_ROWS rows of a task. */
struct limb_group {
	enum dtype type;
	const uint8_t *w;
	size_t row_bytes;
	int n_rows, n_x, n_parts;
	int64_t n_in;
	const struct limb_block *const *x;
	size_t ahead; /* bytes from a row to the same row of the next group; 0: there is none */
	bool cold;    /* the first group: no group before has prefetched it */
};

static inline struct limb_group limb_group_of(const struct limb_task *t, int64_t first)
{
	return (struct limb_group){.type = t->type,
		.w = t->w + (size_t)first * t->row_bytes,
		.row_bytes = t->row_bytes,
		.n_rows = (int)MIN(t->n_rows - first, LIMB_ROWS),
		.n_x = t->n_x,
		.n_parts = t->n_parts,
		.n_in = t->n_in,
		.x = t->x,
		.ahead = first + LIMB_ROWS < t->n_rows ? LIMB_ROWS * t->row_bytes : 0,
		.cold = first == 0};
}

/* Weight rows are read once, but the hardware prefetcher sees LIMB_ROWS streams and restarts at
 * every page. So for each super-block multiplied, the same super-block of the row `ahead` is
 * prefetched, and in `cold` rows the one PREFETCH_BLOCKS further on in the row. */
#define PREFETCH_BLOCKS 6

/* An address as a number: past the end of the matrix, no pointer may be formed. */
ALWAYS_INLINE void prefetch_lines(uintptr_t at, int bytes)
{
	for (int i = 0; i < bytes; i += 64)
		_mm_prefetch((const char *)(at + (uintptr_t)i), _MM_HINT_T0);
}

ALWAYS_INLINE void prefetch_super_block(const struct limb_group *t, const uint8_t *p, int bytes)
{
	if (t->ahead)
		prefetch_lines((uintptr_t)p + t->ahead, bytes);
	if (t->cold)
		prefetch_lines((uintptr_t)p + (uintptr_t)(PREFETCH_BLOCKS * bytes), bytes);
}

#endif
