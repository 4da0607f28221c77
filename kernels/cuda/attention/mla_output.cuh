/* SPDX-License-Identifier: MIT */
/*
 * The output projection behind mla in the same launch (mla.cu), for ROWS rows of 64 heads of 256
 * values and Q8_0. Arithmetic and order of additions are gemv_aligned_kernel's (gemv_aligned.cuh),
 * so the bits are the same. Its weights begin to arrive while the heads' values are still being
 * computed.
 *
 * An item is 16 weight rows. A block has a contiguous range of items and two sides of OUT_SPLIT
 * warps. Warp p of a side has super-block 8 k + p (256 weights of each row, a head) of step k = 0
 * .. 7 of an item. Each side has half of the items. Of one left over, side 0 does the first four
 * steps, before all else, and side 1 continues from its accumulators, behind all else.
 *
 * A producer warp loads a ring of stages: a stage is one step of a side, 16 rows of 2176 bytes,
 * each a bulk copy. The sides have equally many steps and use the stages in turns. Every warp waits
 * for and releases every stage, those of the other side too, because the parity of an mbarrier
 * distinguishes two consecutive uses of a stage, not three. A block has at least two items: with
 * half an item a side would wait for the other one's sums before it releases any stage.
 *
 * Bytes moved: every packed row once.
 */
#ifndef GLM_KERNELS_CUDA_MLA_OUTPUT_CUH
#define GLM_KERNELS_CUDA_MLA_OUTPUT_CUH

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/gemv/gemv_pipeline.cuh"

#define OUT_ROWS         2  /* rows of the step, at most */
#define OUT_SUPER_BLOCKS 64 /* of 256 values: a head's each */
#define OUT_SPLIT        8
#define OUT_STEPS        (OUT_SUPER_BLOCKS / OUT_SPLIT)
#define OUT_SB_BYTES     (256 / 32 * 34)
#define OUT_ROW          (OUT_SUPER_BLOCKS * OUT_SB_BYTES)
#define OUT_PIECE        (OUT_SPLIT * OUT_SB_BYTES) /* bytes of a row in a step */
#define OUT_STRIDE       (OUT_PIECE + 16)           /* in shared memory: no bank conflicts */
#define OUT_STAGE        (MMA_ROWS * OUT_STRIDE)
/* Named barriers: OUT_NAMES + part for warp `part` of both sides; OUT_NAMES + OUT_SPLIT + side for
 * a side */
#define OUT_NAMES 2

/* Bytes of shared memory: the ring, limbs and scales of the values, partial sums, what side 0
 * hands to side 1 */
template <int ROWS> struct out_form {
	static constexpr int STAGES = ROWS == 1 ? 4 : 3;
	static constexpr int RING = STAGES * OUT_STAGE;
	static constexpr int LIMBS = ROWS * OUT_SUPER_BLOCKS * SUPER_BLOCK_LIMBS * 8;
	static constexpr int SCALES = ROWS * OUT_SUPER_BLOCKS * 4;
	static constexpr int PARTIALS = 2 * 2 * OUT_SPLIT * ROWS * MMA_ROWS * 4;
	static constexpr int HANDED = OUT_SPLIT * 32 * 16;
};

struct out_args {
	const uint8_t *w;
	float *y; /* [rows][16 n_items] */
	int n_items;
	bool add;
};

/* mbarriers of each stage. full: its bytes have arrived; empty: all warps have used it */
template <int ROWS> struct out_barriers {
	uint64_t full[out_form<ROWS>::STAGES], empty[out_form<ROWS>::STAGES];
};

/* Steps k .. end of an item, which is the whole of it or half */
struct out_unit {
	int item, k, end;
};

/* The block's items */
struct out_share {
	int first, n;
};

static __device__ __forceinline__ struct out_share out_share_of(const struct out_args &a)
{
	unsigned n = (unsigned)a.n_items, first = n * blockIdx.x / gridDim.x,
			 end = n * (blockIdx.x + 1) / gridDim.x;
	return {(int)first, (int)(end - first)};
}

static __device__ __forceinline__ int out_units(struct out_share s)
{
	return (s.n + 1) / 2;
}

static __device__ __forceinline__ struct out_unit out_unit_of(struct out_share s, int side, int u)
{
	bool odd = s.n % 2, half = odd && u == (side ? s.n / 2 : 0);
	if (half)
		return {s.first + s.n - 1, side * (OUT_STEPS / 2), (side + 1) * (OUT_STEPS / 2)};
	return {s.first + side * (s.n / 2) + u - (odd && !side), 0, OUT_STEPS};
}

/* By one thread, before a barrier of the block */
template <int ROWS> static __device__ __forceinline__ void out_init(struct out_barriers<ROWS> *b)
{
	for (int i = 0; i < out_form<ROWS>::STAGES; i++) {
		mbarrier_init(shared_address(&b->full[i]), 1);
		mbarrier_init(shared_address(&b->empty[i]), 2 * OUT_SPLIT);
	}
}

/* Where a warp is in the ring */
template <int ROWS> struct out_place {
	int stage;
	uint32_t parity; /* of the stage's current use */

	__device__ __forceinline__ void next()
	{
		if (++stage == out_form<ROWS>::STAGES) {
			stage = 0;
			parity ^= 1;
		}
	}
};

/* The producer warp: 16 of its lanes load a stage, a row each. slow: each of the first stages is
 * loaded only when the one before has arrived, so that other loads of the block are not delayed. */
template <int ROWS>
static __device__ __forceinline__ void out_produce(
	const struct out_args &a, uint8_t *ring, struct out_barriers<ROWS> *b, int lane, bool slow)
{
	struct out_share s = out_share_of(a);
	struct out_place<ROWS> place = {
		0, 0
	};
	int row = lane % 16, stages = 0;
	uint32_t to = shared_address(ring) + row * OUT_STRIDE;
	struct out_unit unit[2] = {out_unit_of(s, 0, 0), out_unit_of(s, 1, 0)};
	int u[2] = {0, 0};
	while (u[0] < out_units(s) || u[1] < out_units(s))
#pragma unroll
		for (int side = 0; side < 2; side++) {
			struct out_unit &t = unit[side];
			uint32_t full = shared_address(&b->full[place.stage]);
			if (stages >= out_form<ROWS>::STAGES)
				mbarrier_wait(shared_address(&b->empty[place.stage]), place.parity ^ 1);
			else if (slow && stages) /* when the stage before has arrived */
				mbarrier_wait(shared_address(&b->full[place.stage - 1]), 0);
			if (!lane)
				mbarrier_expect(full, MMA_ROWS * OUT_PIECE);
			if (lane / 16 == side)
				bulk_copy(to + place.stage * OUT_STAGE,
					a.w + ((int64_t)t.item * MMA_ROWS + row) * OUT_ROW + t.k * OUT_PIECE, OUT_PIECE,
					full);
			place.next();
			stages++;
			if (++t.k == t.end)
				t = out_unit_of(s, side, ++u[side]);
		}
}

/* The products of warp `part` of a side, when limbs and scales of its super-blocks have arrived.
 * limbs, scales: [ROWS][OUT_SUPER_BLOCKS] */
template <int ROWS>
static __device__ __forceinline__ void out_products(const struct out_args &a, int side, int part,
	int lane, const uint8_t *ring, struct out_barriers<ROWS> *b, const uint2 *limbs,
	const float *scales, float *partials, float4 *handed)
{
	struct out_share s = out_share_of(a);
	struct out_place<ROWS> place = {
		0, 0
	};
	constexpr int SUMS = ROWS * MMA_ROWS; /* of an item */
	int r0 = lane / 4, c = lane % 4, n_out = a.n_items * MMA_ROWS;
	const uint2 *column =
		r0 < 3 * ROWS
			? limbs + (r0 / 3 * OUT_SUPER_BLOCKS + part) * SUPER_BLOCK_LIMBS + r0 % 3 * 4 + c
			: NULL;
	const float *scale[2]; /* of the accumulators' columns */
#pragma unroll
	for (int e = 0; e < 2; e++)
		scale[e] = scales + min((2 * c + e) / 3, ROWS - 1) * OUT_SUPER_BLOCKS + part;
	const uint8_t *rows = ring + r0 * OUT_STRIDE + part * OUT_SB_BYTES;
	auto wait = [&]() { mbarrier_wait(shared_address(&b->full[place.stage]), place.parity); };
	auto release = [&]() {
		__syncwarp();
		if (!lane)
			mbarrier_arrive(shared_address(&b->empty[place.stage]));
		place.next();
	};
#pragma unroll 1
	for (int u = 0; u < out_units(s); u++) {
		struct out_unit t = out_unit_of(s, side, u);
		bool last = t.end == OUT_STEPS, adds = last && part == t.item % OUT_SPLIT && lane < SUMS;
		float *y = a.y + lane / MMA_ROWS * n_out + t.item * MMA_ROWS + lane % MMA_ROWS, old = 0;
		if (adds && a.add)
			old = *y;
		float acc[1][4] = {{0, 0, 0, 0}};
		if (t.k) {
			named_barrier_sync(OUT_NAMES + part, 64);
			float4 v = handed[part * 32 + lane];
			acc[0][0] = v.x, acc[0][1] = v.y, acc[0][2] = v.z, acc[0][3] = v.w;
		}
#pragma unroll 1
		for (int k = t.k; k < t.end; k++) {
			if (side) { /* a stage of side 0 */
				wait();
				release();
			}
			wait();
			const uint8_t *row = rows + place.stage * OUT_STAGE;
			const uint2 *const at_sb[1] = {
				column ? column + k * (OUT_SPLIT * SUPER_BLOCK_LIMBS) : NULL};
			const float x_scale[1][2] = {{scale[0][k * OUT_SPLIT], scale[1][k * OUT_SPLIT]}};
			super_block_mma<DTYPE_Q8_0, 1>(row, row + 8 * OUT_STRIDE, 0, 256, c, NULL,
				lane_tables{ring, 0}, at_sb, x_scale, acc);
			release();
			if (!side) {
				wait();
				release();
			}
		}
		if (!last) {
			handed[part * 32 + lane] = make_float4(acc[0][0], acc[0][1], acc[0][2], acc[0][3]);
			named_barrier_arrive(OUT_NAMES + part, 64);
			continue;
		}
		/* two buffers: before one is written again the side has passed the barrier behind its reads
		 */
		float *here = partials + (u % 2 * 2 + side) * (OUT_SPLIT * SUMS);
		store_partials<ROWS>(acc[0], here, part, lane);
		named_barrier_sync(OUT_NAMES + OUT_SPLIT + side, OUT_SPLIT * 32);
		if (!adds)
			continue;
		float sum = 0;
#pragma unroll
		for (int q = 0; q < OUT_SPLIT; q++)
			sum = __fadd_rn(sum, here[q * SUMS + lane]);
		*y = a.add ? __fadd_rn(old, sum) : sum;
	}
}

#endif
