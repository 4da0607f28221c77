/* SPDX-License-Identifier: MIT */
/*
 * The gemm from panels (gemm.cuh), the splitting of activations, and the prefill ops.
 *
 * split_rows_kernel: grid (x rows, 1 or 8 a block; matrices of a stack), block 256: finds a row's
 * largest value, then stores its halves, their sums and its scale.
 *
 * gemm_kernel: grid (tiles of 128 weight rows, tiles of BN x rows, matrices of a stack), block 256.
 * Steps of 32 weights are copied to shared memory by cp.async, STAGES - 1 ahead; one block barrier
 * a step. A warp multiplies 32 or 64 weight rows by 16 or 32 x rows with mma.m16n8k16; sums of a
 * group of 16 or 32 start from zero and are then scaled and added to the accumulators. Shared
 * memory of a stage (struct gemm_shape): q, x, factors, sums of x. Whole tiles are copied: panels
 * are padded.
 *
 * Bytes moved: the weight panel once per BN x rows and the x panel once per 128 weight rows, mostly
 * from the L2 cache; outputs once.
 */
#include "kernels/cuda/gemm/gemm.cuh"

#include "kernels/cuda/gemm/gemm_step.cuh"
#include "kernels/cuda/library/library_gemm.cuh"

#define X_MOST        ((size_t)128 << 20) /* of an x panel */
#define SPLIT_THREADS 256

/* ---- activations ---- */

template <enum split_from FROM>
static __device__ __forceinline__ float4 split_read(
	const struct split_args &a, const float *from, int k)
{
	float v[4];
	if (k + 4 <= a.to.n_in && !((uintptr_t)(from + k) & 15)) {
		float4 f = *(const float4 *)(from + k);
		v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
	} else
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = k + i < a.to.n_in ? from[k + i] : 0;
	if (FROM == FROM_GLU)
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = k + i < a.to.n_in ? swiglu_one(v[i], from[a.up + k + i]) : 0;
	return make_float4(v[0], v[1], v[2], v[3]);
}

/* Stores the halves of values k .. k + 3 of a pass, and the sums over the 32 values of a group of 8
 * lanes. */
static __device__ __forceinline__ void split_store(
	const struct split_args &a, int64_t row, int64_t pass, int k, uint2 h)
{
	const struct x_panel &to = a.to;
	int64_t at = (pass * to.steps + k / 32) * to.pad + row;
	if (a.order == X_PLAIN)
		*(uint2 *)(to.x + at * 32 + k % 32) = h;
	else {
		int in = k % 32, s = a.order == X_QUADS ? in / 16 : in / 4 % 2,
			c = a.order == X_QUADS ? in / 4 % 4 : in / 8;
		uint8_t *p = (uint8_t *)(to.x + at * 32) + 4 * c;
		int turn = (int)row / 2 & 3;
		*(uint32_t *)(p + ((2 * s ^ turn) << 4)) = h.x;
		*(uint32_t *)(p + ((2 * s + 1 ^ turn) << 4)) = h.y;
	}
	float2 low = __half22float2(*(__half2 *)&h.x), high = __half22float2(*(__half2 *)&h.y);
	float sum = __fadd_rn(__fadd_rn(low.x, low.y), __fadd_rn(high.x, high.y));
	unsigned mask = 0xffu << (threadIdx.x % 32 / 8 * 8); /* the lanes of these 32 values */
	sum += __shfl_xor_sync(mask, sum, 1);
	sum += __shfl_xor_sync(mask, sum, 2);
	float second = __shfl_xor_sync(mask, sum, 4);
	if (threadIdx.x % 8)
		return;
	if (a.order == X_PLAIN)
		to.sums[at] = make_float2(sum, second);
	else {
		int64_t line = (pass * to.steps + k / 32 / 8 * 8) / 8 * to.pad + row;
		uint8_t *p = (uint8_t *)to.sums + line * 64;
		int s = k / 32 % 8, turn = (int)row / 2 & 3;
		uint32_t hi, lo;
		split_pair(__fmul_rn(sum, 0x1p-5f), __fmul_rn(second, 0x1p-5f), hi, lo);
		*(uint32_t *)(p + ((s / 4 ^ turn) << 4) + s % 4 * 4) = hi;
		*(uint32_t *)(p + ((s / 4 + 2 ^ turn) << 4) + s % 4 * 4) = lo;
	}
}

/* THREADS (32 or 256) threads split a row. HOLD: float4 that a thread keeps in registers between
 * the two loops, so that rows of at most 4 THREADS HOLD values are read once; 0: rows of any
 * length, read twice. */
template <enum split_from FROM, int THREADS, int HOLD>
static __global__ void __launch_bounds__(SPLIT_THREADS)
	split_rows_kernel(const __grid_constant__ struct split_args a)
{
	__shared__ float warp_most[SPLIT_THREADS / 32];
	const struct x_panel &to = a.to;
	int thread = threadIdx.x % THREADS;
	int64_t row = (int64_t)blockIdx.x * (SPLIT_THREADS / THREADS) + threadIdx.x / THREADS,
			stack = blockIdx.y;
	if (row >= a.rows) /* whole warps; where a row has the block, never */
		return;
	int64_t from_row = FROM == FROM_SLOTS ? a.token_slots[row] / a.n_used : row;
	const float *from = a.x + from_row * a.x_row + stack * a.x_stack;
	float4 held[HOLD ? HOLD : 1];
	float most = 0;
#pragma unroll(HOLD ? HOLD : 1)
	for (int i = 0; HOLD ? i < HOLD : 4 * (thread + i * THREADS) < to.n_in; i++) {
		float4 v = split_read<FROM>(a, from, 4 * (thread + i * THREADS));
		most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
		if (HOLD)
			held[i] = v;
	}
#pragma unroll
	for (int step = 16; step; step /= 2)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	if (THREADS > 32) {
		if (threadIdx.x % 32 == 0)
			warp_most[threadIdx.x / 32] = most;
		__syncthreads();
#pragma unroll
		for (int i = 0; i < THREADS / 32; i++)
			most = fmaxf(most, warp_most[i]);
	}
	int e = half_exponent(most);
	float factor = power_of_two(e);
	if (!thread)
		to.unscale[stack * to.pad + row] = power_of_two(-e);
#pragma unroll(HOLD ? HOLD : 1)
	for (int i = 0; HOLD ? i < HOLD : 4 * (thread + i * THREADS) < to.steps * 32; i++) {
		int k = 4 * (thread + i * THREADS);
		if (HOLD && k >= to.steps * 32) /* whole groups of 8 lanes */
			break;
		float4 v = HOLD ? held[HOLD ? i : 0] : split_read<FROM>(a, from, k);
		v = make_float4(__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor),
			__fmul_rn(v.w, factor));
		uint2 hi, lo;
		split_pair(v.x, v.y, hi.x, lo.x);
		split_pair(v.z, v.w, hi.y, lo.y);
		split_store(a, row, stack * to.passes, k, hi);
		if (to.passes == 2)
			split_store(a, row, stack * to.passes + 1, k, lo);
	}
}

template <enum split_from FROM, int THREADS, int HOLD>
static void split_rows_as(struct cuda_backend *b, const struct split_args *a, int n_stack)
{
	constexpr int EACH = SPLIT_THREADS / THREADS;
	dim3 grid((unsigned)((a->rows + EACH - 1) / EACH), (unsigned)n_stack);
	split_rows_kernel<FROM, THREADS, HOLD><<<grid, SPLIT_THREADS, 0, b->stream>>>(*a);
	cuda_launched(b);
}

template <enum split_from FROM>
static void split_rows_from(struct cuda_backend *b, const struct split_args *a, int n_stack)
{
	if (a->to.n_in <= 4 * 32 * 4)
		split_rows_as<FROM, 32, 4>(b, a, n_stack);
	else if (a->to.n_in <= 4 * SPLIT_THREADS * 2)
		split_rows_as<FROM, SPLIT_THREADS, 2>(b, a, n_stack);
	else if (a->to.n_in <= 4 * SPLIT_THREADS * 6)
		split_rows_as<FROM, SPLIT_THREADS, 6>(b, a, n_stack);
	else
		split_rows_as<FROM, SPLIT_THREADS, 0>(b, a, n_stack);
}

void gemm_split_rows(
	struct cuda_backend *b, enum split_from from, const struct split_args *a, int n_stack)
{
	if (from == FROM_SLOTS)
		split_rows_from<FROM_SLOTS>(b, a, n_stack);
	else if (from == FROM_GLU)
		split_rows_from<FROM_GLU>(b, a, n_stack);
	else
		split_rows_from<FROM_ROWS>(b, a, n_stack);
}

static int x_passes(const struct cuda_backend *b)
{
	return b->exact_prompts ? 2 : 1;
}

size_t x_panel_bytes(const struct cuda_backend *b, int64_t pad, int64_t n_in)
{
	size_t steps = (size_t)x_passes(b) * (size_t)(up_to(n_in, 256) / 32);
	return (size_t)pad * (steps * (64 + 8) + 4);
}

struct x_panel x_panel_at(
	const struct cuda_backend *b, void *memory, int64_t pad, int64_t n_in, int64_t n_stack)
{
	struct x_panel p;
	p.pad = pad;
	p.n_in = (int)n_in;
	p.steps = (int)(up_to(n_in, 256) / 32);
	p.passes = x_passes(b);
	p.x = (__half *)memory;
	p.sums = (float2 *)(p.x + n_stack * p.passes * p.steps * pad * 32);
	p.unscale = (float *)(p.sums + n_stack * p.passes * p.steps * pad);
	return p;
}

/* ---- the product ---- */

template <bool OFFSET, int BN, int STAGES> struct gemm_shape {
	static constexpr int A = GEMM_M * 64, X = BN * 64, F = GEMM_M * (OFFSET ? 16 : 8),
						 S = OFFSET ? BN * 8 : 0;
	static constexpr int STAGE = A + X + F + S, BYTES = STAGES * STAGE;
};

template <enum panel_kind KIND, int BN, int STAGES, int MINB>
static __global__ void __launch_bounds__(GEMM_THREADS, MINB)
	gemm_kernel(const __grid_constant__ struct gemm_args g)
{
	constexpr bool OFFSET = KIND == PANEL_32_OFFSET || KIND == PANEL_16_OFFSET,
				   BY_16 = KIND == PANEL_16 || KIND == PANEL_16_OFFSET;
	typedef struct gemm_shape<OFFSET, BN, STAGES> shape;
	extern __shared__ __align__(128) uint8_t shared[];
	int m0 = blockIdx.x * GEMM_M, stack = blockIdx.z, of_pass = g.w.steps,
		steps = g.x.passes * of_pass, x_steps = g.x.passes * g.x.steps;
	int64_t w_first, x_first;
	int n_x;
	if (g.tiles) {
		struct gemm_tile t = g.tiles[blockIdx.y];
		w_first = t.w_first, x_first = t.x_first, n_x = t.n_x;
	} else {
		w_first = stack * g.stack_rows;
		x_first = (int64_t)blockIdx.y * BN;
		n_x = min(BN, g.n_x - (int)x_first);
	}
	const uint8_t *from_a = (const uint8_t *)(g.w.q + (w_first + m0) * 32),
				  *from_f = (const uint8_t *)g.w.factor + (w_first + m0) * (OFFSET ? 16 : 8),
				  *from_x = (const uint8_t *)(g.x.x + (stack * x_steps * g.x.pad + x_first) * 32),
				  *from_s = (const uint8_t *)(g.x.sums + stack * x_steps * g.x.pad + x_first);
	int64_t a_step = g.w.m_pad * 64, f_step = g.w.m_pad * (OFFSET ? 16 : 8), x_step = g.x.pad * 64,
			s_step = g.x.pad * 8;
	uint32_t base = shared_address(shared);
	auto fetch = [&](int step, int stage) {
		uint32_t to = base + stage * shape::STAGE;
		if (step < steps) {
			bool again = step >= of_pass;
			int w_step = again ? step - of_pass : step, x_at = again ? w_step + g.x.steps : step;
			auto line = [](int i) { return piece_at(i); };
			auto straight = [](int i) { return i * 16; };
			async_copy_all<shape::A / 16, GEMM_THREADS>(to, from_a + w_step * a_step, line);
			async_copy_all<shape::X / 16, GEMM_THREADS>(
				to + shape::A, from_x + x_at * x_step, line);
			async_copy_all<shape::F / 16, GEMM_THREADS>(
				to + shape::A + shape::X, from_f + w_step * f_step, straight);
			if (OFFSET) /* x_first is even */
				async_copy_all<shape::S / 16, GEMM_THREADS>(
					to + shape::A + shape::X + shape::F, from_s + x_at * s_step, straight);
		}
		async_commit();
	};
	struct gemm_block<OFFSET, BY_16, BN> block;
	block.begin();
#pragma unroll
	for (int s = 0; s < STAGES - 1; s++)
		fetch(s, s);
	for (int step = 0, stage = 0; step < steps; step++) {
		async_wait<STAGES - 2>();
		__syncthreads();
		fetch(step + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
		uint32_t at = base + stage * shape::STAGE;
		const uint8_t *f_at = shared + stage * shape::STAGE + shape::A + shape::X;
		block.step(at, at + shape::A, f_at, f_at + shape::F);
		stage = stage + 1 == STAGES ? 0 : stage + 1;
	}
	float *y = g.y + stack * g.y_stack + m0;
	block.store(n_x, g.n_out - m0, g.x.unscale + stack * g.x.pad + x_first, g.add, [&](int i) {
		int64_t row = x_first + i;
		return y + (g.y_map ? g.y_map[row] : row) * g.y_row;
	});
}

template <enum panel_kind KIND, int BN, int STAGES, int MINB>
static void gemm_as(struct cuda_backend *b, const struct gemm_args *g, int n_tiles, int n_stack)
{
	constexpr bool OFFSET = KIND == PANEL_32_OFFSET || KIND == PANEL_16_OFFSET;
	constexpr size_t bytes = gemm_shape<OFFSET, BN, STAGES>::BYTES;
	if (!cuda_allow_shared(b, (const void *)gemm_kernel<KIND, BN, STAGES, MINB>, bytes))
		return;
	dim3 grid((unsigned)((g->n_out + GEMM_M - 1) / GEMM_M), (unsigned)n_tiles, (unsigned)n_stack);
	gemm_kernel<KIND, BN, STAGES, MINB><<<grid, GEMM_THREADS, bytes, b->stream>>>(*g);
	cuda_launched(b);
}

template <int BN, int STAGES, int MINB>
static void gemm_kind(struct cuda_backend *b, const struct gemm_args *g, int n_tiles, int n_stack)
{
	switch (g->w.kind) {
	case PANEL_32:
		gemm_as<PANEL_32, BN, STAGES, MINB>(b, g, n_tiles, n_stack);
		break;
	case PANEL_32_OFFSET:
		gemm_as<PANEL_32_OFFSET, BN, STAGES, MINB>(b, g, n_tiles, n_stack);
		break;
	case PANEL_16:
		gemm_as<PANEL_16, BN, STAGES, MINB>(b, g, n_tiles, n_stack);
		break;
	case PANEL_16_OFFSET:
		gemm_as<PANEL_16_OFFSET, BN, STAGES, MINB>(b, g, n_tiles, n_stack);
		break;
	}
}

void gemm_enqueue(
	struct cuda_backend *b, const struct gemm_args *g, int bn, int n_tiles, int n_stack)
{
	if (bn == 32)
		gemm_kind<32, 6, 2>(b, g, n_tiles, n_stack);
	else if (bn == 64)
		gemm_kind<64, 5, 2>(b, g, n_tiles, n_stack);
	else if (b->max_shared < gemm_shape<true, 128, 6>::BYTES)
		gemm_kind<128, 3, 1>(b, g, n_tiles, n_stack);
	else
		gemm_kind<128, 6, 1>(b, g, n_tiles, n_stack);
}

/* ---- panels ---- */

enum panel_kind panel_kind_of(enum dtype type)
{
	switch (type) {
	case DTYPE_Q4_K:
	case DTYPE_Q5_K:
	case DTYPE_Q4_1:
	case DTYPE_Q5_1:
		return PANEL_32_OFFSET;
	case DTYPE_Q2_K:
		return PANEL_16_OFFSET;
	case DTYPE_Q3_K:
	case DTYPE_Q6_K:
	case DTYPE_IQ2_XS:
	case DTYPE_IQ2_S:
	case DTYPE_IQ1_M:
	case DTYPE_NVFP4:
		return PANEL_16;
	default:
		return PANEL_32;
	}
}

static size_t factor_bytes(enum panel_kind kind)
{
	return kind == PANEL_32_OFFSET || kind == PANEL_16_OFFSET ? 16 : 8;
}

size_t panel_bytes(enum panel_kind kind, int64_t m_pad, int64_t n_in)
{
	return (size_t)m_pad * (size_t)((n_in + 31) / 32) * (64 + factor_bytes(kind));
}

struct weight_panel panel_at(void *memory, enum panel_kind kind, int64_t m_pad, int64_t n_in)
{
	struct weight_panel p;
	p.q = (__half *)memory;
	p.m_pad = m_pad;
	p.n_in = (int)n_in;
	p.steps = (int)((n_in + 31) / 32);
	p.factor = (float *)(p.q + m_pad * p.steps * 32);
	p.kind = kind;
	return p;
}

/* ---- dense products ---- */

/* How many rows are split at a time, so that their panel has at most X_MOST bytes: a multiple of
 * 128, or all. *bytes: of the panel. */
static int64_t rows_at_once(
	const struct cuda_backend *b, int64_t rows, int64_t n_in, int64_t n_stack, size_t *bytes)
{
	int64_t each = n_stack * (int64_t)x_panel_bytes(b, 128, n_in), fit = (int64_t)X_MOST / each;
	fit = fit < 1 ? 128 : fit * 128;
	int64_t times = (rows + fit - 1) / fit,
			n = times > 1 ? up_to((rows + times - 1) / times, 128) : rows;
	*bytes = (size_t)n_stack * x_panel_bytes(b, up_to(n, 128) + 128, n_in);
	return n;
}

/* How many matrices of w, and how many rows of each, are unpacked at a time, so that their panel
 * has at most GEMM_W_MOST bytes (or one tile). *bytes: of the panel. */
static void weight_slice(const struct weight *w, int64_t *matrices, int64_t *n_out, size_t *bytes)
{
	enum panel_kind kind = panel_kind_of(w->type);
	size_t row = panel_bytes(kind, 1, w->n_in);
	int64_t fit = (int64_t)(GEMM_W_MOST / row) / GEMM_M * GEMM_M, each = up_to(w->n_out, GEMM_M);
	fit = fit < GEMM_M ? GEMM_M : fit;
	*matrices = fit / each < 1 ? 1 : fit / each > UNPACK_MOST ? UNPACK_MOST : fit / each;
	*matrices = *matrices < w->n_stack ? *matrices : w->n_stack;
	*n_out = each < fit ? w->n_out : fit;
	*bytes = panel_bytes(kind, *matrices * up_to(*n_out, GEMM_M), w->n_in);
}

/* The block scales of a weight from row o on, a multiple of DTYPE_SCALE_BLOCK; NULL: none. */
static const uint8_t *scales_from(const struct weight *w, int64_t o)
{
	static_assert(GEMM_M % DTYPE_SCALE_BLOCK == 0, "slices begin with a row of scales");
	int64_t across = (w->n_in + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK;
	return w->scales ? (const uint8_t *)w->scales + 4 * (o / DTYPE_SCALE_BLOCK * across) : NULL;
}

/* y[r][s] (+)= w_s x[r][s] for one weight, by gemm_kernel. x has been split; memory: for a weight
 * panel, as weight_slice says. */
static void gemm_from_panel(struct cuda_backend *b, const struct weight *w, struct x_panel x,
	void *memory, int rows, float *y, int64_t y_row, int64_t y_stack, bool add)
{
	int64_t matrices, slice;
	size_t bytes;
	weight_slice(w, &matrices, &slice, &bytes);
	int bn = rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
	for (int64_t s = 0; s < w->n_stack; s += matrices)
		for (int64_t o = 0; o < w->n_out; o += slice)
			for (int rest = 0; rest < (w->type == DTYPE_F32 ? 2 : 1); rest++) {
				struct unpack_args u = {};
				int64_t n_out = w->n_out - o < slice ? w->n_out - o : slice;
				u.n_matrices = (int)(w->n_stack - s < matrices ? w->n_stack - s : matrices);
				u.n_out = (int)n_out;
				int64_t each = up_to(n_out, GEMM_M);
				u.panel = panel_at(memory, panel_kind_of(w->type), u.n_matrices * each, w->n_in);
				for (int i = 0; i < u.n_matrices; i++) {
					u.w[i] = (const uint8_t *)w->data + (size_t)(s + i) * w->stack_bytes +
							 (size_t)o * w->row_bytes;
					u.scales[i] = scales_from(w, o);
					u.first[i] = (int32_t)(i * each);
				}
				u.tables = b->tables;
				u.row_bytes = (int64_t)w->row_bytes;
				u.rest = rest;
				gemm_unpack(b, w->type, &u);
				struct gemm_args g = {};
				g.w = u.panel;
				g.x = x;
				g.x.x += s * x.passes * x.steps * x.pad * 32;
				g.x.sums += s * x.passes * x.steps * x.pad;
				g.x.unscale += s * x.pad;
				g.n_out = (int)n_out;
				g.n_x = rows;
				g.stack_rows = each;
				g.y = y + s * y_stack + o;
				g.y_row = y_row;
				g.y_stack = y_stack;
				g.add = add || rest;
				gemm_enqueue(b, &g, bn, (rows + bn - 1) / bn, u.n_matrices);
			}
}

/* The same by the wgmma gemm. */
static void gemm_from_packed(struct cuda_backend *b, const struct weight *w, struct x_panel x,
	int rows, float *y, int64_t y_row, int64_t y_stack, bool add)
{
	/* The largest tiles that leave few multiprocessors idle. Where weight rows are short a block
	 * spends most of its time on its beginning and its end; of tiles of 64 x rows a multiprocessor
	 * holds two, unless the type has minima. */
	int64_t across = (w->n_out + GEMM_M - 1) / GEMM_M * w->n_stack;
	bool narrow = rows <= 64 || w->n_in <= 512 || across * ((rows + 127) / 128) < b->n_sm;
	int bn = rows <= 32 ? 32 : narrow ? 64 : 128;
	struct grouped_gemm_args a = {};
	a.tables = b->tables;
	a.x = x;
	a.row_bytes = (int64_t)w->row_bytes;
	a.n_tiles = (rows + bn - 1) / bn;
	a.n_out = (int)w->n_out;
	a.y = y;
	a.y_row = y_row;
	a.w = (const uint8_t *)w->data;
	a.stack_bytes = (int64_t)w->stack_bytes;
	a.y_stack = y_stack;
	a.n_x = rows;
	a.n_stack = (int)w->n_stack;
	a.add = add;
	wgmma_gemm_enqueue(b, w->type, &a, bn);
}

static void gemm_split_x(struct cuda_backend *b, enum x_order order, struct x_panel to,
	const float *x, int64_t x_row, int64_t x_stack, int rows, int n_stack)
{
	struct split_args a = {};
	a.to = to;
	a.x = x;
	a.x_row = x_row;
	a.x_stack = x_stack;
	a.order = order;
	a.rows = rows;
	gemm_split_rows(b, FROM_ROWS, &a, n_stack);
}

/* gemm_matmul without the library: by gemm_kernel and the wgmma gemm. */
static void gemm_matmul_own(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	int64_t n_in = parts[0].w.n_in, m, o;
	size_t most = 0, bytes, for_x;
	for (int i = 0; i < n_parts; i++) {
		weight_slice(&parts[i].w, &m, &o, &bytes);
		most = bytes > most && wgmma_gemm_x_order(b, &parts[i].w) == X_PLAIN ? bytes : most;
	}
	most = (size_t)up_to((int64_t)most, 256);
	int64_t group = rows_at_once(b, rows, n_in, 1, &for_x);
	uint8_t *scratch = (uint8_t *)cuda_scratch_reserve(b, &b->gemm_panels, most + for_x);
	if (!scratch)
		return;
	for (int64_t r = 0; r < rows && !b->base.failure.code; r += group) {
		int n = (int)(rows - r < group ? rows - r : group);
		struct x_panel panel = x_panel_at(b, scratch + most, up_to(n, 128) + 128, n_in, 1);
		for (int i = 0; i < n_parts; i++) {
			const struct matmul *p = &parts[i];
			enum x_order order = wgmma_gemm_x_order(b, &p->w);
			if (!i || order != wgmma_gemm_x_order(b, &parts[i - 1].w))
				gemm_split_x(b, order, panel, x + r * n_in, n_in, 0, n, 1);
			if (order == X_PLAIN)
				gemm_from_panel(
					b, &p->w, panel, scratch, n, p->y + r * p->w.n_out, p->w.n_out, 0, p->add);
			else
				gemm_from_packed(b, &p->w, panel, n, p->y + r * p->w.n_out, p->w.n_out, 0, p->add);
		}
	}
}

void gemm_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	for (int i = 0, j; i < n_parts; i = j) { /* consecutive parts of one implementation together */
		bool library = library_gemm_takes(b, &parts[i].w);
		for (j = i + 1; j < n_parts && library_gemm_takes(b, &parts[j].w) == library;)
			j++;
		if (library)
			library_matmul(b, parts + i, j - i, x, rows);
		else
			gemm_matmul_own(b, parts + i, j - i, x, rows);
	}
}

void gemm_stacked_matmul(struct cuda_backend *b, const struct stacked_matmul *a, int rows)
{
	int64_t m, o, n_in = a->w.n_in, n_stack = a->w.n_stack;
	size_t bytes, for_x;
	enum x_order order = wgmma_gemm_x_order(b, &a->w);
	weight_slice(&a->w, &m, &o, &bytes);
	bytes = order == X_PLAIN ? (size_t)up_to((int64_t)bytes, 256) : 0;
	int64_t group = rows_at_once(b, rows, n_in, n_stack, &for_x);
	uint8_t *scratch = (uint8_t *)cuda_scratch_reserve(b, &b->gemm_panels, bytes + for_x);
	if (!scratch)
		return;
	int64_t x_row = a->x_stride * n_stack, y_row = a->y_stride * n_stack;
	for (int64_t r = 0; r < rows && !b->base.failure.code; r += group) {
		int n = (int)(rows - r < group ? rows - r : group);
		struct x_panel panel = x_panel_at(b, scratch + bytes, up_to(n, 128) + 128, n_in, n_stack);
		gemm_split_x(b, order, panel, a->x + r * x_row, x_row, a->x_stride, n, (int)n_stack);
		if (order == X_PLAIN)
			gemm_from_panel(
				b, &a->w, panel, scratch, n, a->y + r * y_row, y_row, a->y_stride, false);
		else
			gemm_from_packed(b, &a->w, panel, n, a->y + r * y_row, y_row, a->y_stride, false);
	}
}
