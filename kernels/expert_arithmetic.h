/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of a routed expert in a decode step, down to the last bit. The CUDA kernels define
 * it (kernels/cuda/gemv/gemv_mma.cuh, kernels/cuda/experts/experts_fused.cu); kernels/cpu/limbs
 * computes the same bits on the processor. A change on one side must be made on both.
 * tests/card/test_expert_bits.c compares card and processor, test_expert_limbs.c the
 * processor's instruction sets.
 *
 * Scope: expert_ffn with at most 64 rows (DECODE_MAX_ROWS, gpu_backend.cuh), matrices of the types
 * of expert_arithmetic_covers. With more rows the card computes otherwise (cuda_expert_ffn). The
 * processor computes beside a card in steps of at most HOST_EXPERT_ROWS rows (host_experts.h).
 *
 * An output of a matrix is a function of one packed weight row, one row of x and `split` (point 4),
 * which follows from the type, n_in, n_out and the experts of a token. No other row, task or thread
 * takes part. fl(a op b) is one rounding to nearest even; fma(a, b, c) is one too. Subnormal floats
 * are kept on both sides (nvcc's default; the program never sets FTZ).
 *
 * How an output is summed: a weight row is cut into chunks of one to four super-blocks, which are
 * given to `split` parts in turn. A part sums its super-blocks, one sum for each of the three limbs
 * of x. The output is the sum of the parts. (A chunk here is gemv_tiling's CHUNK, which has nothing
 * to do with the chunks of a transfer or of a prompt.)
 *
 * 1. Limbs of x. write_limbs (gemv_mma.cuh), write_two_limbs (experts_fused_types.cuh)
 *    - x is cut into super-blocks of 256 values, zeros past n_in (gemv_mma.cuh).
 *    - most = the largest magnitude of the super-block, compared as bits, so that an infinity or a
 *      NaN is the largest.
 *    - scale = fl(most / 8323072), inv = fl(8323072 / most); both 0 where most < 2^-100.
 *    - n = fl(x * inv) rounded to the nearest integer, ties to even. |n| <= 127 * 65536.
 *    - n = 65536 high + 256 middle + low: the bytes of n + 0x808080, each less 128. high is -127 ..
 *      127, middle and low are -128 .. 127.
 *    - Where most is infinite or NaN all limbs are 0; the scale is infinite or NaN and every output
 *      of the row becomes NaN. The payload and the sign of a NaN are not defined.
 *
 * 2. A super-block has two sums per limb. int32 holds them exactly, so their order does not matter.
 *        whole = sum over weights of scale * byte * limb
 *        least = sum over weights of least * limb                 (Q2_K and Q4_K)
 *    - The names are block_bytes.cuh's: weight = unit * scale * byte - minimum * least.
 *    - super_block_mma (gemv_mma.cuh) sums 32 weights at a time (SCALE_STEP, SCALE_FLOAT), 16
 *      (SCALE_HALF: IQ2_XS, Q3_K, Q6_K) or 256 (SCALE_NONE: Q2_K). In experts_fused_types.cuh
 *      super_block_pair sums groups of 32; one_super_block (Q2_K) sums 4^j times the 2-bit weights
 *      that lie at bit 2 j of their bytes, and divides the total of 64 times `whole` exactly.
 *    - Scales are whole numbers: IQ2_XXS and IQ2_XS 2 n + 1, Q3_K -32 .. 31, Q6_K -128 .. 127,
 *      Q2_K 0 .. 15, Q4_K 0 .. 63.
 *
 * 3. Each limb's integers become a float v (super_block_mma).
 *    - v = fl(unit * fl(whole)). unit is the block's d; IQ2_XXS and IQ2_XS: fl(d * 0.125), which
 *      is exact. fl(whole) rounds: whole may exceed 2^24.
 *    - Types with minima: v = fma(-dmin, fl(least), v).
 *    - Q8_0 has a float scale for every 32 weights: v = +0, then v = fma(d_s, fl(sum_s), v) for the
 *      steps s = 0 .. 7 in order, sum_s being the sum of 32 weights times limbs, below 2^22
 *      (super_block_mma). Steps past the end of the row have d_s = 0.
 *
 * 4. Sums over super-blocks. Each limb of each part has a sum that starts at +0:
 *    sum = fma(scale of x, v, sum), super-blocks ascending. super_block_mma,
 *    finish_stage (experts_fused.cu)
 *    - The row is cut into chunks of expert_chunk super-blocks (gemv_tiling, gemv_mma.cuh).
 *      Part p of `split` has the chunks p, p + split, ...; split = expert_split (gemv_mma_k_split,
 *      gemv_mma.cuh), which depends on the matrix and on the experts of a token.
 *    - Limbs: part = fma(65536, high, fma(256, middle, low)). combine_limbs (gemv_mma.cuh)
 *    - Parts: y = +0, then y = fl(y + part) in order. add_warp_partials (gemv_mma.cuh)
 *
 * 5. SwiGLU. swiglu_one (device_math.cuh): fl(fl(gate / fl(1 + e)) * up), e = exp_exact(-gate)
 *    (device_math.cuh), which is lanes_exp (kernels/cpu/cpu_lanes.h) step by step. Gate and up
 *    of different types take cuda_swiglu (elementwise.cu), the same function.
 *
 * 6. Down takes the hidden row through 1 to 4. The output is not scaled; moe_combine does that.
 *
 * Not on every card: gemv_mma_kernel for IQ2_XXS needs 188 KiB of shared memory a block for one or
 * two rows of x and 208 KiB for more. Where a block may have less, gemv_mma_launch_as
 * (gemv_mma.cuh) launches it with 4 warps, which caps `split` at 4. The last bits of an output
 * then differ where expert_split is 8:
 *    - n_in above 7168, if n_out times the experts of a token is below 4096;
 *    - n_in above 15360, whatever n_out is.
 * A block has up to 227 KiB on sm_90 and sm_100, at most 163 KiB on sm_80 to sm_89 and on sm_120.
 * gemv_k_split does not say so: it answers 8 on both kinds of card. So a processor must not share
 * the work of a card of the second kind for a model with such matrices. GLM-5.2 has none.
 */
#ifndef GLM_KERNELS_EXPERT_ARITHMETIC_H
#define GLM_KERNELS_EXPERT_ARITHMETIC_H

#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#define EXPERT_LIMBS     3
#define EXPERT_LIMB_MOST 8323072.0f /* 127 * 65536 */
#define EXPERT_X_TINY    0x1p-100f
#define EXPERT_SPLIT_MAX 8 /* GEMV_WARPS */

/* Whether kernels/cpu/limbs computes matrices of this type. */
static inline bool expert_arithmetic_covers(enum dtype type)
{
	return type == DTYPE_IQ2_XXS || type == DTYPE_IQ2_XS || type == DTYPE_Q2_K ||
		   type == DTYPE_Q3_K || type == DTYPE_Q4_K || type == DTYPE_Q6_K || type == DTYPE_Q8_0;
}

/* Super-blocks of a chunk: CHUNK of gemv_tiling. */
static inline int expert_chunk(enum dtype type)
{
	const struct dtype_info *info = dtype_info(type);
	int bytes = (int)(256 / info->block_values * info->block_bytes);
	return bytes >= 150 ? 1 : bytes >= 98 ? 2 : 4;
}

/* `split`: the parts of a row. rows: n_out of the matrix times the experts of a token
 * (experts.cu). */
static inline int expert_split(enum dtype type, int64_t n_in, int64_t rows)
{
	int chunk = expert_chunk(type), split = 1;
	int64_t chunks = (n_in + 256 * chunk - 1) / (256 * chunk);
	while (2 * split <= EXPERT_SPLIT_MAX &&
		   (chunks >= 4 * split ||
			   (chunks >= 2 * split && rows * split < 16 * 128 * EXPERT_SPLIT_MAX)))
		split *= 2;
	return split;
}

#endif
