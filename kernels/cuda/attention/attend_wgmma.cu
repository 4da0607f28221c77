/* SPDX-License-Identifier: MIT */
/*
 * Absorbed MLA of prefill on the tensor cores of compute capability 9.0 (wgmma.cuh), for half
 * caches of the released shape. One pass: queries and attention weights are one half each, sums are
 * float32. attend_mma.cu has the exact form.
 *
 * attend_wgmma_kernel: grid (rows, groups of 64 heads), block 512. The chosen cache rows come to
 * shared memory in blocks of BLOCK positions, KEY_SLOTS of them; they are key and value from there.
 * A warpgroup each:
 *
 *      scores    S = Q K^T [64 x BLOCK], online softmax, attention weights as halves
 *      values    two: O += P V [64 x 256], each for half of the columns
 *      gather    brings the cache rows (cp.async)
 *
 *      query     scaled by a power of two per head (mma.cuh). The first QUERY_REGISTER_CHUNKS
 *                chunks of 64 columns stay in registers of the scores warpgroup, the others in
 *                shared memory
 *      key slot  [9][BLOCK][128 bytes]: 64 columns of a position in a line, its piece i at
 *                i ^ (position % 8)
 *      weights   [BLOCK / 16][128][16 bytes]: the A operand of a values warpgroup; thread i of
 *                the scores warpgroup writes what thread i of each values warpgroup reads
 *
 * The running maximum of a head is raised only when a block exceeds it by more than RAISE (as a
 * power of two): most blocks then need no rescaling of O. Weights are at most
 * 2^(WEIGHT_SHIFT + RAISE), which a half can hold.
 *
 * The values of a block are added when the scores of the next one are done, beside its softmax:
 * the tensor cores would otherwise serve both at once and then idle during that softmax.
 *
 * A row's results depend on its query, its list and the order of the list alone.
 *
 * Bytes moved: every chosen cache row once per 64 heads (mostly from the L2 cache), queries and
 * outputs once.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/registers.cuh"
#include "kernels/cuda/common/wgmma.cuh"

#define WIDTH                 576
#define VALUE                 512
#define HEADS                 64
#define BLOCK                 48
#define KEY_SLOTS             3
#define CHUNKS                (WIDTH / 64) /* of 64 columns: lines of 128 bytes */
#define QUERY_REGISTER_CHUNKS 4
#define WEIGHT_SLOTS          2
#define WEIGHT_SHIFT          7.0f
#define RAISE                 8.0f

#define GROUP_THREADS 128
#define THREADS       (4 * GROUP_THREADS)
enum role { SCORES, VALUES_LOW, VALUES_HIGH, GATHER };

#define QUERY_CHUNK_BYTES (HEADS * 128)
#define KEY_CHUNK_BYTES   (BLOCK * 128)
#define KEY_BYTES         (CHUNKS * KEY_CHUNK_BYTES)
#define WEIGHT_BYTES      (BLOCK / 16 * GROUP_THREADS * 16)

/* Shared memory, from a multiple of 1024 on */
#define AT_QUERY    (KEY_SLOTS * KEY_BYTES)
#define AT_WEIGHTS  (AT_QUERY + (CHUNKS - QUERY_REGISTER_CHUNKS) * QUERY_CHUNK_BYTES)
#define AT_RESCALE  (AT_WEIGHTS + WEIGHT_SLOTS * WEIGHT_BYTES) /* [WEIGHT_SLOTS][HEADS] floats */
#define AT_UNSCALE  (AT_RESCALE + WEIGHT_SLOTS * HEADS * 4)    /* [HEADS] floats */
#define AT_SUM      (AT_UNSCALE + HEADS * 4)                   /* [HEADS] floats */
#define AT_BARRIERS (AT_SUM + HEADS * 4)
#define N_BARRIERS  (2 * KEY_SLOTS + 3 * WEIGHT_SLOTS + 1)
/* The chunks of the query that go to registers pass through the last key slot. */
#define AT_QUERY_STAGING ((KEY_SLOTS - 1) * KEY_BYTES)
#define SHARED_BYTES     (1024 + AT_BARRIERS + N_BARRIERS * 8)

static_assert(
	QUERY_REGISTER_CHUNKS * QUERY_CHUNK_BYTES <= KEY_BYTES, "the last key slot holds the chunks");
static_assert(SHARED_BYTES <= 232448, "shared memory of a block on compute capability 9.0");

/* Named barriers */
#define QUERY_READY 1
#define SUM_READY   2

struct attend_wgmma_args {
	struct attend a;
	const int32_t *base;
	int n_rows;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Arrives for this thread when its copies so far are complete. */
static __device__ __forceinline__ void mbarrier_arrive_copied(uint32_t at)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}

static __device__ __forceinline__ float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

static __device__ __forceinline__ void store_shared(uint32_t at, const uint32_t (&v)[4])
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]),
				 "r"(v[2]), "r"(v[3])
				 : "memory");
}

static __device__ __forceinline__ void load_shared(uint32_t (&v)[4], uint32_t at)
{
	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
				 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
				 : "r"(at)
				 : "memory");
}

/* The part of a query that a lane reads: columns 4 lane + 128 i to 4 lane + 128 i + 3. */
struct query_part {
	float4 q[5];
};

static __device__ __forceinline__ void read_query(
	const struct attend &a, int64_t r, int head, int lane, struct query_part &p)
{
	bool present = head < a.n_heads;
	int64_t at = r * a.n_heads + head;
	const float *from = a.q + at * WIDTH + 4 * lane;
#pragma unroll
	for (int i = 0; i < 5; i++)
		p.q[i] = present && (i < 4 || (lane < 16 && !a.rotate)) ? *(const float4 *)(from + 128 * i)
																: make_float4(0, 0, 0, 0);
	if (present && a.rotate && lane < 16) {
		const float2 *rest = (const float2 *)(a.rotate + at * a.rotate_stride) + 2 * lane;
		p.q[4] = make_float4(rest[0].x, rest[0].y, rest[1].x, rest[1].y);
	}
}

/* Scales a query and stores its halves, and the factor that turns its scores into exponents of two.
 * h: head of the block; angle: cosine and sine of this lane's two pairs, read where rotate is set.
 */
static __device__ __forceinline__ void store_query(
	struct query_part &p, int h, int lane, float scale, bool rotate, float4 angle, uint8_t *shared)
{
	if (rotate) {
		float2 low = rotated(make_float2(angle.x, angle.y), make_float2(p.q[4].x, p.q[4].y)),
			   high = rotated(make_float2(angle.z, angle.w), make_float2(p.q[4].z, p.q[4].w));
		p.q[4] = make_float4(low.x, low.y, high.x, high.y);
	}
	float most = 0;
#pragma unroll
	for (int i = 0; i < 5; i++)
		most = fmaxf(most, fmaxf(fmaxf(fabsf(p.q[i].x), fabsf(p.q[i].y)),
							   fmaxf(fabsf(p.q[i].z), fabsf(p.q[i].w))));
#pragma unroll
	for (int step = 16; step; step /= 2)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	int e = half_exponent(most);
	float factor = power_of_two(e);
	if (!lane)
		((float *)(shared + AT_UNSCALE))[h] =
			__fmul_rn(__fmul_rn(power_of_two(-e), scale), 0x1.715476p+0f);
#pragma unroll
	for (int i = 0; i < 5; i++) {
		if (i == 4 && lane >= 16)
			break;
		int chunk = 2 * i + lane / 16, piece = lane % 16 / 2;
		__half2 low = __floats2half2_rn(__fmul_rn(p.q[i].x, factor), __fmul_rn(p.q[i].y, factor)),
				high = __floats2half2_rn(__fmul_rn(p.q[i].z, factor), __fmul_rn(p.q[i].w, factor));
		uint32_t to = chunk < QUERY_REGISTER_CHUNKS
						  ? AT_QUERY_STAGING + chunk * QUERY_CHUNK_BYTES
						  : AT_QUERY + (chunk - QUERY_REGISTER_CHUNKS) * QUERY_CHUNK_BYTES;
		*(uint2 *)(shared + to + h * 128 + (piece ^ (h & 7)) * 16 + lane % 2 * 8) =
			make_uint2(*(uint32_t *)&low, *(uint32_t *)&high);
	}
}

/* The queries of the block's heads, by the warps of the scores and values warpgroups. A warp reads
 * HEADS_AT_ONCE heads before it uses the first, so that their latencies overlap. */
static __device__ __forceinline__ void load_queries(
	const struct attend &a, int64_t r, int head, uint8_t *shared)
{
	constexpr int WARPS = 3 * GROUP_THREADS / 32, HEADS_AT_ONCE = 3;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	float4 angle = make_float4(1, 0, 1, 0);
	if (a.rotate && lane < 16) {
		const float2 *from = (const float2 *)(a.rope.cos_sin + r * a.rope.dim) + 2 * lane;
		angle = make_float4(from[0].x, from[0].y, from[1].x, from[1].y);
	}
	for (int h = warp; h < HEADS; h += HEADS_AT_ONCE * WARPS) {
		struct query_part p[HEADS_AT_ONCE];
#pragma unroll
		for (int i = 0; i < HEADS_AT_ONCE; i++)
			if (h + i * WARPS < HEADS)
				read_query(a, r, head + h + i * WARPS, lane, p[i]);
#pragma unroll
		for (int i = 0; i < HEADS_AT_ONCE; i++)
			if (h + i * WARPS < HEADS)
				store_query(p[i], h + i * WARPS, lane, a.scale, a.rotate, angle, shared);
	}
}

struct attend_barriers {
	uint32_t key_full, key_empty, weights_full, weights_empty, scored, query_taken;
};

/* The gather warpgroup: copies the cache rows of the list, block by block. Behind
 * the end of the list its last row is repeated, with weights of 0. */
static __device__ __forceinline__ void gather_keys(const struct attend_wgmma_args &g, int64_t r,
	int n_sel, int n_blocks, uint32_t base, const struct attend_barriers &bars)
{
	const int tid = threadIdx.x % GROUP_THREADS, piece = tid % 8, line = tid / 8;
	constexpr int EACH = BLOCK / (GROUP_THREADS / 8);
	const int32_t *sel = g.a.sel + r * g.a.sel_stride;
	const __half *cache = (const __half *)g.a.cache.data + (int64_t)g.base[r] * WIDTH + piece * 8;
	uint32_t own = base + line * 128 + (piece ^ (line & 7)) * 16;
	int next[EACH];
#pragma unroll
	for (int i = 0; i < EACH; i++)
		next[i] = sel[min(line + 16 * i, n_sel - 1)];
	int slot = 0, round = 0;
	for (int j = 0; j < n_blocks; j++) {
		const __half *from[EACH];
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			from[i] = cache + (int64_t)next[i] * WIDTH;
			next[i] = sel[min((j + 1) * BLOCK + line + 16 * i, n_sel - 1)];
		}
		if (round)
			mbarrier_wait(bars.key_empty + 8 * slot, (round & 1) ^ 1);
		else if (slot == KEY_SLOTS - 1)
			mbarrier_wait(bars.query_taken, 0);
		uint32_t to = own + slot * KEY_BYTES;
#pragma unroll
		for (int i = 0; i < EACH; i++)
#pragma unroll
			for (int chunk = 0; chunk < CHUNKS; chunk++)
				async_copy(to + i * 16 * 128 + chunk * KEY_CHUNK_BYTES, from[i] + chunk * 64);
		mbarrier_arrive_copied(bars.key_full + 8 * slot);
		slot = slot + 1 == KEY_SLOTS ? 0 : slot + 1;
		round += !slot;
	}
	async_commit();
	async_wait<0>();
}

/* The scores warpgroup */
static __device__ __forceinline__ void score_blocks(
	int n_sel, int n_blocks, uint32_t base, uint8_t *shared, const struct attend_barriers &bars)
{
	const int tid = threadIdx.x % GROUP_THREADS, warp = tid / 32, lane = tid % 32, c = lane % 4,
			  row = warp * 16 + lane / 4;
	named_barrier_sync(QUERY_READY, 3 * GROUP_THREADS);
	uint32_t q[QUERY_REGISTER_CHUNKS * 4][4];
#pragma unroll
	for (int s = 0; s < QUERY_REGISTER_CHUNKS * 4; s++) {
		int h = warp * 16 + lane % 16, piece = s % 4 * 2 + lane / 16;
		load_matrices(q[s],
			base + AT_QUERY_STAGING + s / 4 * QUERY_CHUNK_BYTES + h * 128 + (piece ^ (h & 7)) * 16);
	}
	float unscale[2] = {((const float *)(shared + AT_UNSCALE))[row],
		((const float *)(shared + AT_UNSCALE))[row + 8]};
	mbarrier_arrive_warp(bars.query_taken, lane);

	float running_max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
	uint64_t query = wgmma_desc_128(base + AT_QUERY);
	int slot = 0, round = 0;
	for (int j = 0; j < n_blocks; j++) {
		float s[BLOCK / 2];
		mbarrier_wait(bars.key_full + 8 * slot, round & 1);
		wgmma_fence_shared();
		wgmma_fence();
		uint64_t keys = wgmma_desc_128(base + slot * KEY_BYTES);
#pragma unroll
		for (int k = 0; k < QUERY_REGISTER_CHUNKS * 4; k++)
			wgmma_f16(s, q[k], keys + k / 4 * (KEY_CHUNK_BYTES >> 4) + k % 4 * 2, k > 0);
#pragma unroll
		for (int k = 0; k < (CHUNKS - QUERY_REGISTER_CHUNKS) * 4; k++)
			wgmma_f16(s, query + k / 4 * (QUERY_CHUNK_BYTES >> 4) + k % 4 * 2,
				keys + (QUERY_REGISTER_CHUNKS + k / 4) * (KEY_CHUNK_BYTES >> 4) + k % 4 * 2, 1);
		wgmma_commit();
		wgmma_wait<0>();
		wgmma_keep_registers(s);
		mbarrier_arrive_warp(bars.scored + 8 * (j % WEIGHT_SLOTS), lane);
		slot = slot + 1 == KEY_SLOTS ? 0 : slot + 1;
		round += !slot;

		if ((j + 1) * BLOCK > n_sel)
#pragma unroll
			for (int i = 0; i < BLOCK / 2; i++)
				if (j * BLOCK + i / 4 * 8 + 2 * c + i % 2 >= n_sel)
					s[i] = -INFINITY;
		float rescale[2], offset[2];
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float block_max = -INFINITY;
#pragma unroll
			for (int n = 0; n < BLOCK / 8; n++)
				block_max = fmaxf(block_max, fmaxf(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]));
			block_max = fmaxf(block_max, __shfl_xor_sync(0xffffffffu, block_max, 1));
			block_max = fmaxf(block_max, __shfl_xor_sync(0xffffffffu, block_max, 2));
			block_max = __fmul_rn(block_max, unscale[i]);
			rescale[i] = 1;
			if (block_max > running_max[i] + RAISE) {
				rescale[i] = exp2_fast(running_max[i] - block_max);
				running_max[i] = block_max;
			}
			offset[i] = WEIGHT_SHIFT - running_max[i];
		}
		uint32_t p[BLOCK / 16][4];
		float total[2] = {0, 0};
#pragma unroll
		for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				__half2 w =
					__floats2half2_rn(exp2_fast(__fmaf_rn(s[4 * n + 2 * i], unscale[i], offset[i])),
						exp2_fast(__fmaf_rn(s[4 * n + 2 * i + 1], unscale[i], offset[i])));
				float2 rounded = __half22float2(w);
				total[i] = __fadd_rn(total[i], __fadd_rn(rounded.x, rounded.y));
				p[n / 2][n % 2 * 2 + i] = *(uint32_t *)&w;
			}
#pragma unroll
		for (int i = 0; i < 2; i++)
			sum[i] = __fmaf_rn(sum[i], rescale[i], total[i]);
		int to = j % WEIGHT_SLOTS;
		if (j >= WEIGHT_SLOTS)
			mbarrier_wait(bars.weights_empty + 8 * to, (j / WEIGHT_SLOTS & 1) ^ 1);
#pragma unroll
		for (int k = 0; k < BLOCK / 16; k++)
			store_shared(
				base + AT_WEIGHTS + to * WEIGHT_BYTES + (k * GROUP_THREADS + tid) * 16, p[k]);
		if (!c)
#pragma unroll
			for (int i = 0; i < 2; i++)
				((float *)(shared + AT_RESCALE))[to * HEADS + row + 8 * i] = rescale[i];
		mbarrier_arrive_warp(bars.weights_full + 8 * to, lane);
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 1));
		sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 2));
		if (!c)
			((float *)(shared + AT_SUM))[row + 8 * i] = sum[i];
	}
	named_barrier_arrive(SUM_READY, 3 * GROUP_THREADS);
}

/* A values warpgroup: 256 columns from `half` * 256 on. out: of the first head. */
static __device__ __forceinline__ void add_values(int n_blocks, int half, int heads, float *out,
	uint32_t base, uint8_t *shared, const struct attend_barriers &bars)
{
	const int tid = threadIdx.x % GROUP_THREADS, warp = tid / 32, lane = tid % 32, c = lane % 4,
			  row = warp * 16 + lane / 4;
	named_barrier_arrive(QUERY_READY, 3 * GROUP_THREADS);
	float acc[2][64]; /* of 128 columns each */
	int slot = 0, round = 0;
	for (int j = 0; j < n_blocks; j++) {
		int from = j % WEIGHT_SLOTS;
		mbarrier_wait(bars.weights_full + 8 * from, j / WEIGHT_SLOTS & 1);
		uint32_t p[BLOCK / 16][4];
#pragma unroll
		for (int k = 0; k < BLOCK / 16; k++)
			load_shared(
				p[k], base + AT_WEIGHTS + from * WEIGHT_BYTES + (k * GROUP_THREADS + tid) * 16);
		const float *factors = (const float *)(shared + AT_RESCALE) + from * HEADS + row;
		float rescale[2] = {factors[0], factors[8]};
		/* not at the same time as the scores of the next block (top of the file) */
		if (j + 1 < n_blocks)
			mbarrier_wait(bars.scored + 8 * ((j + 1) % WEIGHT_SLOTS), (j + 1) / WEIGHT_SLOTS & 1);
		mbarrier_arrive_warp(bars.weights_empty + 8 * from, lane);
		if (j && __any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
#pragma unroll
			for (int i = 0; i < 128; i++)
				acc[i / 64][i % 64] = __fmul_rn(acc[i / 64][i % 64], rescale[i / 2 % 2]);
		/* returns at once, because the scores warpgroup has waited for this block; it orders the
		 * copies before this thread's reads */
		mbarrier_wait(bars.key_full + 8 * slot, round & 1);
		wgmma_fence_shared();
		wgmma_keep_registers(acc[0]);
		wgmma_keep_registers(acc[1]);
		wgmma_fence();
		uint32_t values = base + slot * KEY_BYTES + half * 4 * KEY_CHUNK_BYTES;
#pragma unroll
		for (int k = 0; k < BLOCK / 16; k++)
#pragma unroll
			for (int m = 0; m < 2; m++)
				wgmma_f16_transposed(acc[m], p[k],
					wgmma_desc_transposed(
						values + m * 2 * KEY_CHUNK_BYTES + k * 16 * 128, KEY_CHUNK_BYTES),
					j > 0 || k > 0);
		wgmma_commit();
		wgmma_wait<0>();
		wgmma_keep_registers(acc[0]);
		wgmma_keep_registers(acc[1]);
		mbarrier_arrive_warp(bars.key_empty + 8 * slot, lane);
		slot = slot + 1 == KEY_SLOTS ? 0 : slot + 1;
		round += !slot;
	}
	named_barrier_sync(SUM_READY, 3 * GROUP_THREADS);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int h = row + 8 * i;
		if (h >= heads)
			continue;
		float by = __fdiv_rn(1.0f, ((const float *)(shared + AT_SUM))[h]);
		float *to = out + h * VALUE + half * 256 + 2 * c;
#pragma unroll
		for (int n = 0; n < 32; n++)
			*(float2 *)(to + n * 8) = make_float2(__fmul_rn(acc[n / 16][n % 16 * 4 + 2 * i], by),
				__fmul_rn(acc[n / 16][n % 16 * 4 + 2 * i + 1], by));
	}
}

#endif

static __global__ void __launch_bounds__(THREADS, 1)
	attend_wgmma_kernel(const __grid_constant__ struct attend_wgmma_args g)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	extern __shared__ uint8_t shared_begin[];
	uint32_t begin = shared_address(shared_begin), base = (begin + 1023) & ~1023u;
	uint8_t *shared = shared_begin + (base - begin);
	const int tid = threadIdx.x, role = __shfl_sync(0xffffffffu, tid / GROUP_THREADS, 0),
			  head = blockIdx.y * HEADS;
	struct attend_barriers bars;
	bars.key_full = base + AT_BARRIERS;
	bars.key_empty = bars.key_full + 8 * KEY_SLOTS;
	bars.weights_full = bars.key_empty + 8 * KEY_SLOTS;
	bars.weights_empty = bars.weights_full + 8 * WEIGHT_SLOTS;
	bars.scored = bars.weights_empty + 8 * WEIGHT_SLOTS;
	bars.query_taken = bars.scored + 8 * WEIGHT_SLOTS;
	if (!tid) {
		for (int i = 0; i < KEY_SLOTS; i++) {
			mbarrier_init(bars.key_full + 8 * i, GROUP_THREADS);
			mbarrier_init(bars.key_empty + 8 * i, 8 * WARP_ARRIVES);
		}
		for (int i = 0; i < WEIGHT_SLOTS; i++) {
			mbarrier_init(bars.weights_full + 8 * i, 4 * WARP_ARRIVES);
			mbarrier_init(bars.weights_empty + 8 * i, 8 * WARP_ARRIVES);
			mbarrier_init(bars.scored + 8 * i, 4 * WARP_ARRIVES);
		}
		mbarrier_init(bars.query_taken, 4 * WARP_ARRIVES);
		mbarrier_init_fence();
	}
	__syncthreads();
	grid_dependency_wait();
	/* later rows have longer lists: they start first */
	int64_t r = g.n_rows - 1 - (int)blockIdx.x;
	int n_sel = g.a.n_sel[r], n_blocks = (n_sel + BLOCK - 1) / BLOCK;
	if (n_sel <= 0)
		return;
	if (role != GATHER) {
		load_queries(g.a, r, head, shared);
		wgmma_fence_shared();
	}
	if (role == GATHER) {
		registers_fewer<32>();
		gather_keys(g, r, n_sel, n_blocks, base, bars);
	} else if (role == SCORES) {
		registers_more<144>();
		score_blocks(n_sel, n_blocks, base, shared, bars);
	} else {
		registers_more<168>();
		add_values(n_blocks, role - VALUES_LOW, min(HEADS, g.a.n_heads - head),
			g.a.out + (r * g.a.n_heads + head) * VALUE, base, shared, bars);
	}
#endif
}

bool attend_wgmma(struct cuda_backend *b, const struct batch *rows, const struct attend *a)
{
	if (!b->has_wgmma || b->exact_prompts || rows->n <= DECODE_MAX_ROWS || !(a->scale > 0))
		return false;
	struct attend_wgmma_args g = {*a, rows->base, rows->n};
	if (!cuda_allow_shared(b, (const void *)attend_wgmma_kernel, SHARED_BYTES))
		return true;
	cuda_launch(b, attend_wgmma_kernel,
		dim3((unsigned)rows->n, (unsigned)((a->n_heads + HEADS - 1) / HEADS)), THREADS,
		SHARED_BYTES, g);
	return true;
}
