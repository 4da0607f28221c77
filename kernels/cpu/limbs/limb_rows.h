/* SPDX-License-Identifier: MIT */
/*
 * Products of packed weight rows and rows of x with the bits of the card's decode kernels. The
 * arithmetic is defined in kernels/expert_arithmetic.h; every instruction set gives the same bits.
 *
 *     isa = limb_isa_available(0);
 *     struct limb_block *b = ...;                 limb_x_blocks(n_in) of them, 64-byte aligned
 *     isa->split(type, x, n_in, b);               once per row of x and type
 *     if (isa->gather) isa->gather(&task, panel); once per choice of rows of x
 *     isa->multiply(&task);                       weight rows by up to most_x rows of x
 *
 * Threads: all functions may run at once on different outputs.
 */
#ifndef GLM_KERNELS_LIMB_ROWS_H
#define GLM_KERNELS_LIMB_ROWS_H

#include "kernels/expert_arithmetic.h"

#include <stddef.h>

#define LIMB_ROWS      16 /* weight rows that are multiplied together */
#define LIMB_X         8  /* most rows of x of a task, ... */
#define LIMB_X_PROMPTS 64 /* ... of limb_isa.prompts; a multiple of 16 */
#define LIMB_STEPS     8  /* blocks of Q8_0 in a super-block */

/* A super-block of x. The order of its limbs is limb_place's. */
struct limb_block {
	int8_t limb[EXPERT_LIMBS][256]; /* high, middle, low */
	float scale;
	int16_t sum[EXPERT_LIMBS][16]; /* of 16 neighbouring limbs each, in the order of x */
	uint8_t unused[28];
	/* IQ2_XXS and IQ2_XS, for limb_rows_vnni.c. start[j][k][i]: what the sum of dword i and limb k
	 * starts at, to take off the offset of 64 that the weights carry: -64 times the limbs that the
	 * dword multiplies. IQ2_XS: of octets 0 and 1 in j = 0, of octets 2 and 3 in j = 1. IQ2_XXS: of
	 * all four in j = 0, and j = 1 is 0. */
	int32_t start[2][EXPERT_LIMBS][16];
};
_Static_assert(sizeof(struct limb_block) == 1280, "whole lines");

/* Where value `value` (0 .. 255) of a super-block lies among its limbs. Limbs lie as the packed
 * weights do, so that 64 weights come out of one load by one shift:
 *
 *   Q6_K, Q8_0        in order
 *   Q2_K, Q3_K        value 128 h + 32 g + l             place 64 g + 32 h + l
 *                     half h 0 .. 1, l 0 .. 31; g 0 .. 3: the byte is shifted by 2 g bits
 *   Q4_K              value 128 p + 64 a + 32 n + l      place 128 p + 64 n + 32 a + l
 *                     p, a 0 .. 1, l 0 .. 31; n 0 .. 1: the nibble of the byte
 *   IQ2_XXS, IQ2_XS   value 32 g + 8 j + b               place 64 j + 8 g + b
 *                     octet j 0 .. 3 of group g 0 .. 7, b 0 .. 7 */
static inline int limb_place(enum dtype type, int value)
{
	int l = value % 32;
	switch (type) {
	case DTYPE_Q2_K:
	case DTYPE_Q3_K:
		return value / 32 % 4 * 64 + value / 128 * 32 + l;
	case DTYPE_Q4_K:
		return value / 128 * 128 + value / 32 % 2 * 64 + value / 64 % 2 * 32 + l;
	case DTYPE_IQ2_XXS:
	case DTYPE_IQ2_XS:
		return l / 8 * 64 + value / 32 * 8 + l % 8;
	default:
		return value;
	}
}

static inline int64_t limb_x_blocks(int64_t n_in)
{
	return (n_in + 255) / 256;
}

/* Weight rows times rows of x: out[i * out_stride + r] for rows i of x and weight rows r. */
struct limb_task {
	enum dtype type;  /* of expert_arithmetic_covers: not checked */
	const uint8_t *w; /* n_rows rows, any alignment, row_bytes apart */
	size_t row_bytes;
	int64_t n_rows, n_in;
	int n_x;                                    /* at most limb_isa.most_x */
	int n_parts;                                /* of a weight row: expert_split */
	const struct limb_block *x[LIMB_X_PROMPTS]; /* [n_x], split with the same type and n_in */
	const int8_t *panel;                        /* where there is limb_isa.gather: what it wrote */
	float *out;
	int64_t out_stride;
};

struct limb_isa {
	const char *name; /* "AVX-512 VNNI" */
	/* Splits a row of n values into limb_x_blocks(n) blocks. `start` is written for IQ2_XXS and
	 * IQ2_XS only. Any values, infinities and NaN too. Blocks are independent: a row may be split
	 * in parts of whole super-blocks. */
	void (*split)(enum dtype type, const float *x, int64_t n, struct limb_block *out);
	void (*multiply)(const struct limb_task *t);
	/* NULL, or what copies the limbs of the rows of x of a task to the order in which multiply
	 * reads them. It looks at type, n_in, n_x and x alone: one panel serves all weight rows.
	 * panel: limb_panel_bytes, 64-byte aligned. */
	void (*gather)(const struct limb_task *t, int8_t *panel);
	int most_x; /* rows of x of a task: LIMB_X or LIMB_X_PROMPTS */
	/* NULL, or the same for prompts: decodes weights once for LIMB_X_PROMPTS rows of x and does not
	 * read the low limbs of x, which limb_round has cleared. So an infinite scale of a weight block
	 * may give an infinity where the others give NaN; else the bits are the same. */
	const struct limb_isa *prompts;
};

/* For prompts: clears the low limbs of a row of n values that limb_isa.split has written. The upper
 * two limbs are x rounded to nearest: x then has 16 bits, the sign included. */
void limb_round(struct limb_block *blocks, int64_t n);

static inline const struct limb_isa *limb_isa_of_prompts(const struct limb_isa *isa)
{
	return isa->prompts ? isa->prompts : isa;
}

/* Bytes of a panel of n_x rows of x. A panel of limb_isa.prompts is panels of 16 rows, one after
 * the other: these may be gathered by a task each. */
static inline size_t limb_panel_bytes(int n_x, int64_t n_in)
{
	const int limbs = n_x > LIMB_X ? (n_x + 15) / 16 * 16 * (EXPERT_LIMBS - 1) : n_x * EXPERT_LIMBS;
	return (size_t)limbs * (size_t)limb_x_blocks(n_in) * 256;
}

/* NULL where the program was compiled without it. limb_isa_available asks whether the machine has
 * it. */
extern const struct limb_isa *const limb_isa_c, *const limb_isa_avx2, *const limb_isa_vnni,
																		  *const limb_isa_amx;

/* limb_prompts_amx.c: for limb_isa_amx */
extern const struct limb_isa limb_prompts_amx;

/* Asks the kernel for the tiles of AMX, for all threads of the process; false: it has none to give,
 * or the processor has none. */
bool limb_amx_enable(void);

/* Instruction sets of this machine, best first: `level` counts from 0; NULL past the last, which is
 * plain C. */
const struct limb_isa *limb_isa_available(int level);

#endif
