/* SPDX-License-Identifier: MIT */
/*
 * What mla_kernel (mla.cu) is made of: the two blocks of a cluster, and weights that are held
 * in registers.
 */
#ifndef GLM_KERNELS_CUDA_MLA_REGISTERS_CUH
#define GLM_KERNELS_CUDA_MLA_REGISTERS_CUH

#include "kernels/cuda/gemv/gemv_mma.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* Hands nothing over: a release would wait for all that the thread has on its way. */
static __device__ __forceinline__ void pair_arrive()
{
	asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void pair_wait()
{
	asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same place in the shared memory of the other block of the pair */
static __device__ __forceinline__ uint32_t remote_address(uint32_t at, int half)
{
	uint32_t other;
	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(at), "r"(half ^ 1));
	return other;
}

/* Stores there; the barrier there hears of the bytes. */
static __device__ __forceinline__ void store_remote(uint32_t to, uint2 v, uint32_t barrier)
{
	asm volatile(
		"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
			"r"(to),
		"r"(v.x), "r"(v.y), "r"(barrier)
		: "memory");
}

static __device__ __forceinline__ void store_remote(uint32_t to, float v, uint32_t barrier)
{
	asm volatile(
		"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
		"r"(__float_as_uint(v)), "r"(barrier)
		: "memory");
}

/* 64 PAIRS weights of rows r0 and r0 + 8 of 16 rows of Q8_0, as aligned words. A pair is two
 * blocks: scale, 32 bytes, scale, 32 bytes. Word 1 + c and 5 + c of the first go to lane c: values
 * 4 c + 2 on, 4 c + 18 on, of which the last two of lane 3 are 0 and 1; of the second 9 + c and 13
 * + c: values 4 c on and 4 c + 16 on. */
template <int PAIRS> struct held_rows {
	uint32_t word[2 * PAIRS][2][2]; /* [block][row][word] */
	float scale[2 * PAIRS][2];
};

template <int PAIRS>
static __device__ __forceinline__ void hold_rows(
	const uint8_t *rows, int row_bytes, struct held_rows<PAIRS> &h)
{
	int lane = threadIdx.x % 32, c = lane % 4;
#pragma unroll
	for (int j = 0; j < PAIRS; j++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t *w = (const uint32_t *)(rows + (lane / 4 + 8 * i) * row_bytes + 68 * j);
			uint32_t w0 = w[0], w8 = w[8], last = w[5 + c];
			h.word[2 * j][i][0] = w[1 + c];
			h.word[2 * j][i][1] = c == 3 ? __byte_perm(w8, w0, 0x7610) : last;
			h.word[2 * j + 1][i][0] = w[9 + c];
			h.word[2 * j + 1][i][1] = w[13 + c];
			h.scale[2 * j][i] = half_float(w0 & 0xffff);
			h.scale[2 * j + 1][i] = half_float(w8 >> 16);
		}
}

/* Eight of 64 PAIRS values of x in the order of held rows: lane 4 s + c has those of block s for
 * lane c; zeros behind the last. */
template <int PAIRS> static __device__ __forceinline__ void load_dealt(const float *x, float v[8])
{
	int lane = threadIdx.x % 32, s = lane / 4, c = lane % 4, at = 2 * c + (s % 2 == 0);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float2 two = make_float2(0, 0);
		if (s < 2 * PAIRS)
			two = *(const float2 *)(x + s * 32 + (at + i % 2 + i / 2 * 8) % 16 * 2);
		v[2 * i] = two.x, v[2 * i + 1] = two.y;
	}
}

/* Held rows times the limbs of one row of x, before the scale of x: the steps of super_block_mma.
 * Digit i is column 2 i: lane 4 r + i has it for rows r and r + 8. */
template <int PAIRS>
static __device__ __forceinline__ void held_product(
	const struct held_rows<PAIRS> &h, const uint2 *limbs, float sum[2])
{
	int lane = threadIdx.x % 32;
	const uint2 *column = limbs + lane / 8 * 4 + lane % 4;
	bool used = lane / 4 % 2 == 0 && lane < 24;
	uint2 b[2 * PAIRS];
#pragma unroll
	for (int s = 0; s < 2 * PAIRS; s++)
		b[s] = used ? column[s * 12] : make_uint2(0, 0);
	sum[0] = sum[1] = 0;
#pragma unroll
	for (int s = 0; s < 2 * PAIRS; s++) {
		uint32_t words[4] = {h.word[s][0][0], h.word[s][1][0], h.word[s][0][1], h.word[s][1][1]};
		int d[4];
		mma_16832(d, words, b[s], 0x4b400000);
#pragma unroll
		for (int i = 0; i < 2; i++)
			sum[i] =
				__fmaf_rn(h.scale[s][i], __fadd_rn(__int_as_float(d[2 * i]), -12582912.0f), sum[i]);
	}
}

/* What combine_limbs makes of them, in lanes 4 r */
static __device__ __forceinline__ float meet_digits(float v)
{
	float mid = __shfl_down_sync(0xffffffffu, v, 1), low = __shfl_down_sync(0xffffffffu, v, 2);
	return __fadd_rn(0.0f, __fmaf_rn(65536.0f, v, __fmaf_rn(256.0f, mid, low)));
}

#endif

#endif
