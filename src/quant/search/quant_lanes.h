/* SPDX-License-Identifier: MIT */
/*
 * Private to the quantisers: eight searches at once, one in each lane of a vector. A lane holds a
 * sub-block of its own (lanes_load), or all lanes hold one sub-block and each tries another
 * candidate (lanes_spread).
 *
 * Each lane computes what v8_sum over the vectors of one sub-block would: element i of a sub-block
 * is added to partial sum i % 8, and LANES_SUM adds the partial sums in the order of v8_sum. So
 * the bytes do not depend on how many searches run at once, and no sum crosses lanes.
 */
#ifndef GLM_QUANT_QUANT_LANES_H
#define GLM_QUANT_QUANT_LANES_H

#include "src/quant/search/quant_block.h"

#define LANES     8
#define LANES_MAX 32 /* weights in a sub-block */

/* Vector i has weight i of each lane's sub-block. */
struct lanes {
	v8 x[LANES_MAX], w[LANES_MAX];
};

/* Partial sum l: the values of(l, ...), of(l + 8, ...), .. added in turn. */
#define LANES_PART(type, add, of, l, n_vec, ...)                                                   \
	__extension__({                                                                                \
		type part_ = of(l, __VA_ARGS__);                                                           \
		_Pragma("GCC unroll 4") for (int i_ = (l) + 8; i_ < 8 * (n_vec); i_ += 8) part_ =          \
			add(part_, of(i_, __VA_ARGS__));                                                       \
		part_;                                                                                     \
	})
#define LANES_PAIR(type, add, of, l, n_vec, ...)                                                   \
	add(LANES_PART(type, add, of, l, n_vec, __VA_ARGS__),                                          \
		LANES_PART(type, add, of, (l) + 4, n_vec, __VA_ARGS__))

/* The sum of the values of(i, ...) of all 8 n_vec weights. */
#define LANES_SUM(type, add, of, n_vec, ...)                                                       \
	add(add(LANES_PAIR(type, add, of, 0, n_vec, __VA_ARGS__),                                      \
			LANES_PAIR(type, add, of, 2, n_vec, __VA_ARGS__)),                                     \
		add(LANES_PAIR(type, add, of, 1, n_vec, __VA_ARGS__),                                      \
			LANES_PAIR(type, add, of, 3, n_vec, __VA_ARGS__)))

QUANT_INLINE v8 v8_add(v8 a, v8 b)
{
	return a + b;
}

/* 1 / a, or 0 for lanes without `mask`. */
QUANT_INLINE v8 v8_inverse(v8i mask, v8 a)
{
	return (v8)(mask & (v8i)(1 / a));
}

/* to[k][l] = from[l * stride][k] */
QUANT_INLINE void lanes_transpose(v8 *to, const v8 *from, int stride)
{
	v8 a[8], b[8];
	for (int i = 0; i < 4; i++) {
		const v8 p = from[2 * i * stride], q = from[(2 * i + 1) * stride];
		a[2 * i] = __builtin_shufflevector(p, q, 0, 8, 1, 9, 4, 12, 5, 13);
		a[2 * i + 1] = __builtin_shufflevector(p, q, 2, 10, 3, 11, 6, 14, 7, 15);
	}
	for (int i = 0; i < 8; i += 4)
		for (int k = 0; k < 2; k++) {
			const v8 p = a[i + k], q = a[i + k + 2];
			b[i + 2 * k] = __builtin_shufflevector(p, q, 0, 1, 8, 9, 4, 5, 12, 13);
			b[i + 2 * k + 1] = __builtin_shufflevector(p, q, 2, 3, 10, 11, 6, 7, 14, 15);
		}
	for (int k = 0; k < 4; k++) {
		to[k] = __builtin_shufflevector(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
		to[k + 4] = __builtin_shufflevector(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
	}
}

/* Eight sub-blocks of n_vec vectors each, one behind the other. */
QUANT_INLINE void lanes_load(struct lanes *lanes, const v8 *x, const v8 *w, int n_vec)
{
	for (int i = 0; i < n_vec; i++) {
		lanes_transpose(lanes->x + 8 * i, x + i, n_vec);
		lanes_transpose(lanes->w + 8 * i, w + i, n_vec);
	}
}

/* One sub-block in all lanes. */
QUANT_INLINE void lanes_spread(struct lanes *lanes, const v8 *x, const v8 *w, int n_vec)
{
	for (int i = 0; i < n_vec; i++)
		for (int l = 0; l < 8; l++) {
			lanes->x[8 * i + l] = v8_set(x[i][l]);
			lanes->w[8 * i + l] = v8_set(w[i][l]);
		}
}

/* Lane with the least error; ties go to the lowest. */
QUANT_INLINE int lanes_least(v8 error)
{
	int lane = 0;
	for (int l = 1; l < LANES; l++)
		lane = error[l] < error[lane] ? l : lane;
	return lane;
}

#endif
