/* SPDX-License-Identifier: MIT */
/*
 * The grouped gemm: products (gemm.cuh) of packed blocks, for experts. An expert has few x rows, so
 * a panel of its weights in memory would cost more than the product.
 *
 * grouped_gemm_kernel: grid (tiles of 128 weight rows, tiles of at most BN x rows of one expert),
 * block 256. Super-blocks of the 128 rows are copied to shared memory as stored, one super-block
 * ahead; x panels XS - 1 steps of 32 ahead (cp.async). While the tensor cores multiply a step, the
 * threads unpack the next one: thread 2 r + h weights 16 h .. 16 h + 15 of row r, to q and factors.
 * One block barrier a step: behind it, all copies and stores of the step are visible, and the
 * buffers of the step before are free.
 *
 * Shared memory (struct grouped_gemm_shape): packed super-blocks [2][128 rows], x [XS], sums of x
 * [XS], q [2], factors [2], codebook.
 *
 * Bounds: weights are copied in whole lines, 16 bytes at a multiple of 16, because rows of most
 * types begin at any multiple of 2. The first line of a row may begin up to 14 bytes before it, the
 * last one end up to 14 bytes behind it: of the last row of a tensor whose bytes are no multiple of
 * 16 (say, Q2_K with an odd number of super-blocks), behind the tensor. These bytes are not used.
 * They lie in the allocation: its address and its size are multiples of 256, and it is larger than
 * what was asked for (cuda_alloc, gpu_copier.cu).
 *
 * Bytes moved: the packed weights once per tile of x rows, x once per 128 weight rows (L2 cache),
 * outputs once.
 */
#ifndef GLM_KERNELS_CUDA_GROUPED_GEMM_CUH
#define GLM_KERNELS_CUDA_GROUPED_GEMM_CUH

#include "kernels/cuda/common/block_dot.cuh"
#include "kernels/cuda/gemm/gemm_step.cuh"

/* Where in struct cuda_tables the codebook lies that packed<T>::get reads, if it is a single one:
 * it is copied to shared memory. BYTES 0: none is. */
template <int T> struct grouped_gemm_table {
	static constexpr size_t AT = 0, BYTES = 0;
};
#define GROUPED_GEMM_TABLE(T, field)                                                               \
	template <> struct grouped_gemm_table<DTYPE_##T> {                                             \
		static constexpr size_t AT = offsetof(struct cuda_tables, field),                          \
								BYTES = sizeof(((struct cuda_tables *)0)->field);                  \
	}
GROUPED_GEMM_TABLE(IQ2_XXS, iq2xxs);
GROUPED_GEMM_TABLE(IQ2_S, iq2s);
GROUPED_GEMM_TABLE(IQ3_S, iq3s);
GROUPED_GEMM_TABLE(IQ1_S, iq1s);
GROUPED_GEMM_TABLE(IQ1_M, iq1s);
GROUPED_GEMM_TABLE(IQ4_NL, iq4nl);
GROUPED_GEMM_TABLE(IQ4_XS, iq4nl);

/* Whether 16 weights share a scale; else 32 or more do. */
constexpr bool scales_by_16(int type)
{
	return type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K || type == DTYPE_IQ2_XS ||
		   type == DTYPE_IQ2_S || type == DTYPE_IQ1_M;
}

template <int T, int BN> struct grouped_gemm_shape {
	static constexpr bool OFFSET = packed<T>::OFFSET, BY_16 = scales_by_16(T);
	static constexpr int XS = 4, SB_BYTES = packed<T>::SUPER_BLOCK_BYTES;
	static constexpr int LINES = (SB_BYTES + 14 + 15) / 16, STRIDE = (LINES | 1) * 16;
	static constexpr int PACKED = GEMM_M * STRIDE, X = BN * 64, S = OFFSET ? BN * 8 : 0,
						 Q = GEMM_M * 64, F = GEMM_M * (OFFSET ? 16 : 8);
	static constexpr int AT_X = 2 * PACKED, AT_S = AT_X + XS * X, AT_Q = AT_S + XS * S,
						 AT_F = AT_Q + 2 * Q, AT_TABLE = AT_F + 2 * F,
						 BYTES = AT_TABLE + (int)grouped_gemm_table<T>::BYTES;
};

template <int T, int BN>
static __global__ void __launch_bounds__(GEMM_THREADS, 2)
	grouped_gemm_kernel(const __grid_constant__ struct grouped_gemm_args g)
{
	typedef struct grouped_gemm_shape<T, BN> shape;
	constexpr int XS = shape::XS, SB_BYTES = shape::SB_BYTES, LINES = shape::LINES,
				  STRIDE = shape::STRIDE;
	extern __shared__ __align__(128) uint8_t shared[];
	const struct grouped_gemm_tile tile = g.tiles[blockIdx.y];
	int tid = threadIdx.x, m0 = blockIdx.x * GEMM_M, steps = (g.x.n_in + 31) / 32;
	const struct cuda_tables *tables = g.tables;
	if (grouped_gemm_table<T>::BYTES) {
		const uint32_t *from =
			(const uint32_t *)((const uint8_t *)g.tables + grouped_gemm_table<T>::AT);
		for (int i = tid; i < (int)grouped_gemm_table<T>::BYTES / 4; i += GEMM_THREADS)
			((uint32_t *)(shared + shape::AT_TABLE))[i] = from[i];
		tables = (const struct cuda_tables *)(shared + shape::AT_TABLE - grouped_gemm_table<T>::AT);
	}
	uint32_t base = shared_address(shared);
	const uint8_t *from_x = (const uint8_t *)(g.x.x + (int64_t)tile.x_first * 32),
				  *from_s = (const uint8_t *)(g.x.sums + tile.x_first);
	auto fetch_x = [&](int step, int stage) {
		if (step >= steps)
			return;
		const uint8_t *x = from_x + step * g.x.pad * 64;
		async_copy_all<shape::X / 16, GEMM_THREADS>(
			base + shape::AT_X + stage * shape::X, x, [](int i) { return piece_at(i); });
		if (shape::OFFSET)
			async_copy_all<shape::S / 16, GEMM_THREADS>(base + shape::AT_S + stage * shape::S,
				from_s + step * g.x.pad * 8, [](int i) { return i * 16; });
	};
	uintptr_t first_row = (uintptr_t)tile.w + (size_t)m0 * (size_t)g.row_bytes;
	int last_row = g.n_out - 1 - m0;
	auto fetch_super_block = [&](int sb) {
		int bytes = (int)min((int64_t)SB_BYTES, g.row_bytes - (int64_t)sb * SB_BYTES);
		if (bytes <= 0)
			return;
#pragma unroll
		for (int j = 0; j < (GEMM_M * LINES + GEMM_THREADS - 1) / GEMM_THREADS; j++) {
			int i = tid + j * GEMM_THREADS, row = i / LINES, line = i % LINES * 16;
			uintptr_t at = first_row + (uint32_t)min(row, last_row) * (uint64_t)g.row_bytes +
						   (uint32_t)(sb * SB_BYTES);
			if (row < GEMM_M && line < bytes + (int)(at & 15))
				async_copy(base + (sb & 1) * shape::PACKED + row * STRIDE + line,
					(const void *)((at & ~(uintptr_t)15) + line));
		}
	};
	/* 16 weights of row `mine`, four at a time, in an order with few bank conflicts. low: the lower
	 * bits of the row's address, for the bytes before its first weight in a line */
	int mine = tid / 2, half = tid % 2;
	uint32_t low =
		(uint32_t)(uintptr_t)tile.w + (uint32_t)min(m0 + mine, g.n_out - 1) * (uint32_t)g.row_bytes;
	uint2 q_bits[4];
	float factor = 0, offset = 0;
	auto unpack = [&](int step) {
		int sb = step / 8, v0 = step % 8 * 32 + half * 16;
		const uint8_t *p = shared + (sb & 1) * shape::PACKED + mine * STRIDE +
						   ((low + (uint32_t)sb * SB_BYTES) & 15);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float q[4];
			packed<T>::get(p, v0 + 4 * ((i + tid / 8) % 4), tables, q, factor, offset);
			__half2 h[2] = {__floats2half2_rn(q[0], q[1]), __floats2half2_rn(q[2], q[3])};
			q_bits[i] = *(uint2 *)h;
		}
	};
	auto store_unpacked = [&](int step) {
		uint8_t *to = shared + shape::AT_Q + (step & 1) * shape::Q;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int part = (i + tid / 8) % 4;
			*(uint2 *)(to + piece_at(mine * 4 + half * 2 + part / 2) + part % 2 * 8) = q_bits[i];
		}
		float *f = (float *)(shared + shape::AT_F + (step & 1) * shape::F +
							 mine * (shape::OFFSET ? 16 : 8));
		f[half] = factor;
		if (shape::OFFSET)
			f[2 + half] = offset;
	};
	struct gemm_block<shape::OFFSET, shape::BY_16, BN> block;
	block.begin();
	for (int pass = 0; pass < g.x.passes; pass++) {
		if (pass) { /* shared memory is free */
			__syncthreads();
			from_x += g.x.steps * g.x.pad * 64;
			from_s += g.x.steps * g.x.pad * 8;
		}
		fetch_super_block(0);
#pragma unroll
		for (int s = 0; s < XS - 1; s++) {
			fetch_x(s, s);
			async_commit();
		}
		async_wait<XS - 2>();
		__syncthreads();
		unpack(0);
		store_unpacked(0);
		for (int step = 0; step < steps; step++) {
			async_wait<XS - 2>();
			__syncthreads();
			fetch_x(step + XS - 1, (step + XS - 1) % XS);
			if (step % 8 == 0)
				fetch_super_block(
					step / 8 + 1); /* arrives before step + 7 unpacks its first step: XS <= 8 */
			async_commit();
			if (step + 1 < steps)
				unpack(step + 1); /* overlaps the products; stored after them */
			block.step(base + shape::AT_Q + (step & 1) * shape::Q,
				base + shape::AT_X + step % XS * shape::X,
				shared + shape::AT_F + (step & 1) * shape::F,
				shared + shape::AT_S + step % XS * shape::S);
			if (step + 1 < steps)
				store_unpacked(step + 1);
		}
	}
	float *y = g.y + tile.y_first + m0;
	block.store(tile.n_x, g.n_out - m0, g.x.unscale + tile.x_first, false, [&](int i) {
		int64_t row = tile.x_first + i;
		return y + (g.y_map ? g.y_map[row] : row) * g.y_row;
	});
}

template <int T, int BN>
static void grouped_gemm_launch_as(struct cuda_backend *b, const struct grouped_gemm_args *a)
{
	constexpr size_t bytes = grouped_gemm_shape<T, BN>::BYTES;
	if (!cuda_allow_shared(b, (const void *)grouped_gemm_kernel<T, BN>, bytes))
		return;
	grouped_gemm_kernel<T, BN>
		<<<dim3((unsigned)((a->n_out + GEMM_M - 1) / GEMM_M), (unsigned)a->n_tiles), GEMM_THREADS,
			bytes, b->stream>>>(*a);
	cuda_launched(b);
}

template <int T>
static bool grouped_gemm_launch(struct cuda_backend *b, const struct grouped_gemm_args *a, int bn)
{
	if ((size_t)grouped_gemm_shape<T, 64>::BYTES > b->max_shared)
		return false;
	if (!a) /* query */
		return true;
	if (bn == 32)
		grouped_gemm_launch_as<T, 32>(b, a);
	else
		grouped_gemm_launch_as<T, 64>(b, a);
	return true;
}

#endif
