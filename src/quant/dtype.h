/* SPDX-License-Identifier: MIT */
/*
 * The element types of GGUF tensors: name, values per block, bytes per block. A block never crosses
 * a row (dimension ne[0]). Layouts of the packed blocks: blocks.h; meaning: dequant.h.
 *
 * F8_E4M3 is no type of GGUF. A matrix of it has block scales beside its values, one float32 for
 * each 128 x 128 of them: [ceil(rows / 128)][ceil(columns / 128)]. A weight is its value times the
 * scale of its block, rounded once.
 */
#ifndef GLM_QUANT_DTYPE_H
#define GLM_QUANT_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* The numbers below DTYPE_GGUF_LIMIT are GGUF's type ids. */
enum dtype {
	DTYPE_F32 = 0,
	DTYPE_F16 = 1,
	DTYPE_Q4_0 = 2,
	DTYPE_Q4_1 = 3,
	DTYPE_Q5_0 = 6,
	DTYPE_Q5_1 = 7,
	DTYPE_Q8_0 = 8,
	DTYPE_Q2_K = 10,
	DTYPE_Q3_K = 11,
	DTYPE_Q4_K = 12,
	DTYPE_Q5_K = 13,
	DTYPE_Q6_K = 14,
	DTYPE_IQ2_XXS = 16,
	DTYPE_IQ2_XS = 17,
	DTYPE_IQ3_XXS = 18,
	DTYPE_IQ1_S = 19,
	DTYPE_IQ4_NL = 20,
	DTYPE_IQ3_S = 21,
	DTYPE_IQ2_S = 22,
	DTYPE_IQ4_XS = 23,
	DTYPE_IQ1_M = 29,
	DTYPE_BF16 = 30,
	DTYPE_TQ1_0 = 34,
	DTYPE_TQ2_0 = 35,
	DTYPE_MXFP4 = 39,
	DTYPE_NVFP4 = 40,
	DTYPE_Q1_0 = 41,
	DTYPE_Q2_0 = 42,
	DTYPE_GGUF_LIMIT = 43, /* one past the largest id of GGUF */
	DTYPE_F8_E4M3 = 64,
	DTYPE_LIMIT = 65, /* one past the largest id */
};

#define DTYPE_SCALE_BLOCK 128 /* values in a row or a column that share a scale of F8_E4M3 */

/* Scales of a row or a column of n values. */
static inline uint64_t dtype_scales(uint64_t n)
{
	return n / DTYPE_SCALE_BLOCK + (n % DTYPE_SCALE_BLOCK != 0);
}

struct dtype_info {
	const char *name;      /* "Q4_K"; NULL in a hole of the id range */
	uint32_t block_values; /* weights per block: 1, 32, 64, 128 or 256 */
	uint32_t block_bytes;
};

/* NULL for an id that this program does not know. Static storage. */
const struct dtype_info *dtype_info(uint32_t id);

/* dtype_info of a type that a GGUF can have; NULL for others. */
const struct dtype_info *dtype_gguf_info(uint32_t id);

/* Name or "type <id>"; static or thread-local storage. */
const char *dtype_name(uint32_t id);

/* Finds a type by name, letter case ignored; false if there is none. */
bool dtype_from_name(const char *name, enum dtype *out);

/* Bytes of one row of n values; false when n is not a multiple of the block or the size overflows.
 */
bool dtype_row_bytes(enum dtype type, uint64_t n, uint64_t *bytes);

#endif
