/* SPDX-License-Identifier: MIT */
/*
 * mla for one row of the released shape (64 heads of 192 > 512 > 256, Q8_0;
 * half caches of 576) in one launch: what stacked_matmul, attend and
 * stacked_matmul again do in four (gemv_mma.cuh, attend_mma.cu), the same sums
 * in the same order.
 *
 * mla_kernel: grid 128 blocks of 544 in pairs (clusters), one on a
 * multiprocessor. Block i of group g, which is 32 blocks and 16 heads: rows of
 * half i % 2 of head 16 g + i / 2 in both products, and segment i of the
 * positions for all heads of the group.
 *
 *      before the wait  its 256 rows of k_b come to shared memory and from
 * there to registers; weights are never written 1  Warp: 16 rows of k_b; the
 * queries go to flags. Its cache rows start 2  warp: a head's query, as two
 * halves, to shared memory; then its 128 rows of v_b start, whose bytes would
 * have held up the queries. Scores: 8 warps: a quarter of the width x 32
 * positions. Softmax: 8 lanes a head and tile of 32. Values: warp: 32 columns.
 * Maxima, sums and values go to flags 3  values of all segments of its half of
 * its head, joined in ascending order and made limbs, which the pair exchanges.
 * Warp: 16 rows and half the width of v_b 4  with an output product, whose
 * weights come to the place of v_b and cache rows from here on: what has come
 * of all heads is made limbs, half of them by each block of the pair for both,
 * and multiplied (mla_output.cuh)
 *
 * With that product the grid is as many blocks as there are multiprocessors (an
 * even number); those from 128 on have no head.
 *
 * Cells are how the blocks of a group hand on what they have without a barrier:
 * 32-bit words that are FLAG_EMPTY between launches. Who reads a cell reads
 * again until it is not, and makes it empty behind it: its only reader, or for
 * queries, which 32 blocks read, the block that wrote them when it has the
 * values of all segments, which were made from them. The end of the launch
 * orders that before the next one. Each word says of itself that it has come,
 * so no order between words is needed. What all blocks read for the output
 * product lies in two sets of flags that launches take in turns, each making
 * the other set empty.
 *
 * No deadlock: what a block waits for is written by blocks of the same launch
 * that do not wait for it in turn (queries need nothing, values need queries,
 * the output product needs values). So all that is needed is that every block
 * comes to sb. One multiprocessor holds one block, and the driver was asked
 * whether all pairs can sb at a time. What ran before ends without this launch,
 * and what comes behind in the stream starts when all blocks of this one have
 * come near their end. One thread computes, so there is no second launch in
 * another stream.
 *
 * Bytes moved: 15.6 MB of weights; every chosen cache row once for each of 4
 * groups (from the second-level cache after the first); 4 MB of values out and
 * in. With the output product its weights, and 32 KB to each block.
 */
#include "kernels/cuda/attention/mla_phases.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* The phases above, of one block. PRODUCT: a warp fetches what is ahead of it,
 * and what y would be goes to flags. */
template <bool PRODUCT>
static __device__ __forceinline__ void mla_heads(
	const struct mla_args &a, uint8_t *shared, int warp, uint32_t *parity)
{
	__shared__ __align__(8) uint64_t barriers[N_BARRIERS];
	__shared__ __align__(16) float weight_of[PARTS];
	__shared__ float limb_scale[3], unscale[GROUP], shrink[GROUP], tops[2][GROUP], sums[2][GROUP],
		by;
	float *quarter_scores = (float *)(shared + AT_SCORES), *join = (float *)(shared + AT_JOIN),
		  *z = (float *)(shared + AT_Z); /* quarter_scores [tile][quarter][GROUP][TILE],
											join [PARTS][HALF] */
	__half *weights = (__half *)(shared + AT_WEIGHTS); /* [tile][hi, lo][GROUP][P_STRIDE] */
	uint2 *limbs = (uint2 *)(shared + AT_LIMBS);       /* of the halves of z, of q */
	int tid = threadIdx.x, lane = tid % 32, r0 = lane / 4, c = lane % 4;
	int group = blockIdx.x / PARTS, part = blockIdx.x % PARTS, half = part % 2,
		head = group * GROUP + part / 2;
	struct mla_flags *flags = a.flags;
	uint32_t base = shared_address(shared);
	auto there = [&](int what) { return shared_address(barriers + what); };

	auto fetch_v = [&]() {
		mbarrier_expect(there(HAS_V), V_WARPS * V_TILE);
		bulk_copy(base + AT_V, a.v + (int64_t)(head * 2 + half) * (V_WARPS * V_TILE),
			V_WARPS * V_TILE, there(HAS_V));
	};
	if (!tid) {
		for (int i = 0; i < N_BARRIERS; i++)
			mbarrier_init(there(i), 1);
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
		mbarrier_expect(there(HAS_K), WARPS * K_TILE);
		bulk_copy(base + AT_K, a.k + (int64_t)(head * 2 + half) * (WARPS * K_TILE), WARPS * K_TILE,
			there(HAS_K));
		mbarrier_expect(there(HAS_OTHER), SUPER_BLOCK_LIMBS * sizeof(uint2) + sizeof(float));
	}
	__syncthreads(); /* barriers are set up */
	pair_arrive();
	struct q8_tile<NOPE / 64, false> k_rows;
	if (warp < WARPS) {
		mbarrier_wait(there(HAS_K), 0);
		q8_tile_load(shared + AT_K + warp * K_TILE, K_ROW, k_rows);
	}
	grid_dependency_wait();
	uint32_t begun = 0;
	if (PRODUCT && tid == 32 * WARPS - 1)
		begun = atomicInc(&flags->blocks, 2 * gridDim.x - 1);

	/* ---- 1 ---- */
	if (warp == WARPS) {
		float x[8];
		load_fragment_order<NOPE / 64>(a.q + head * a.q_stride, x);
		write_limbs(x, limbs + 2 * SUPER_BLOCK_LIMBS, limb_scale + 2);
		pair_wait();
		__syncthreads();
		return;
	}
	int n_sel = *a.n_sel, segment = part * SEGMENT, here = min(SEGMENT, n_sel - segment),
		mine = warp * 4 + lane % 4;
	int64_t cache_row = *a.base + a.sel[min(segment + mine, a.sel_stride - 1)];
	/* of head `warp` of the group: the pair of values that is rotated */
	float2 turn = *(const float2 *)(a.rotate + (group * GROUP + warp) * a.rotate_stride + 2 * lane),
		   angle = *(const float2 *)(a.cos_sin + 2 * lane);
	__syncthreads(); /* limbs are there */
	{
		float sum[2], scale = limb_scale[2];
		q8_tile_mma(k_rows, limbs + 2 * SUPER_BLOCK_LIMBS, sum);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float v = combine(__fmaf_rn(scale, sum[i], 0.0f));
			if (!c)
				flag_store(&flags->query[head][half * HALF + warp * 16 + r0 + 8 * i], flag_word(v));
		}
	}
	/* not before: who waits for where they lie holds up the queries */
	if (warp * 4 < (here > TILE ? 2 * TILE : here > 0 ? TILE : 0)) {
		/* rows behind the last weigh nothing, but must be numbers: the last one
		 * again */
		if (mine >= here)
			cache_row = *a.base + a.sel[n_sel - 1];
		if (lane < 4)
			bulk_copy(base + AT_CACHE + row_at(mine, 0), a.cache + cache_row * WIDTH, WIDTH * 2,
				there(HAS_CACHE));
	}
	if (!tid)
		mbarrier_expect(there(HAS_CACHE), (here > TILE ? 2 : here > 0) * TILE * WIDTH * 2);
	pair_wait();  /* the other block has set up its barriers too */
	heads_sync(); /* k_b has been used */

	/* ---- 2 ---- */
	int n_segments = (n_sel + SEGMENT - 1) / SEGMENT;
	if (here > 0) {
		bool two = here > TILE;
		mla_split_query(
			shared, flags->query[group * GROUP + warp], angle, turn, a.scale, warp, lane, unscale);
		mbarrier_wait(there(HAS_CACHE), 0);
		heads_sync();
		if (tid == 32 * WARPS - 1)
			fetch_v();
		if (warp < (two ? 8 : 4))
			mla_scores(base, quarter_scores, warp, lane);
		heads_sync();
		if (tid < (two ? 256 : 128))
			mla_softmax(quarter_scores, here, tid, weights, unscale, tops, sums, shrink);
		heads_sync();
		mla_values(flags->value + group * GROUP, part, two, base, weights, shrink, warp, lane);
		if (tid < 2 * GROUP) { /* for both halves */
			int h = tid / 2;
			float sum = two ? __fmaf_rn(sums[0][h], shrink[h], sums[1][h]) : sums[0][h];
			flag_store2(flags->meta[group * GROUP + h][tid % 2][part],
				make_uint2(flag_word(tops[two][h]), flag_word(sum)));
		}
	} else if (tid == 32 * WARPS - 1)
		fetch_v();

	/* ---- 3 ---- */
	struct q8_tile<VALUE / 2 / 64, false> v_rows; /* 16 rows, half of their width */
	mbarrier_wait(there(HAS_V), 0);
	q8_tile_load(
		shared + AT_V + warp % V_WARPS * V_TILE + warp / V_WARPS * (V_ROW / 2), V_ROW, v_rows);
	/* Nobody asks for flags while others still make some; and from here on copies
	 * may write where v_b and cache rows were. */
	if (PRODUCT) {
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		ring_sync();
	} else
		heads_sync();
	uint32_t *meta = flags->meta[head][half][lane],
			 *from = flags->value[head][half][tid / 64] + tid % 64 * 4;
	int n_mine = (n_segments - tid / 64 + 7) / 8;
	uint2 most_sum = make_uint2(0, 0);
	if (warp == WARPS - 1 && lane < n_segments)
		most_sum = flag_load2(meta);
	{
		uint4 v[4];
		flag_wait<4>(from, 8 * HALF, n_mine, v);
#pragma unroll
		for (int i = 0; i < 4; i++) /* zeros behind the last */
			*(uint4 *)(join + (tid / 64 + 8 * i) * HALF + tid % 64 * 4) = v[i];
	}
	if (warp == WARPS - 1)
		mla_segment_weights(meta, most_sum, n_segments, lane, weight_of, &by);
	if (PRODUCT && tid == 32 * WARPS - 1)
		*parity = begun >= gridDim.x;
	heads_sync();
	if (warp < 8) {
		float v = 0;
#pragma unroll 1
		for (int s = 0; s < n_segments; s += 16)
#pragma unroll
			for (int i = 0; i < 16; i++) /* what lies behind the last adds nothing */
				v = __fmaf_rn(join[(s + i) * HALF + tid], weight_of[s + i], v);
		z[column_of(tid)] = __fdiv_rn(v, by);
		named_barrier_sync(1, 256);
		if (!warp) {
			float d[8];
			uint2 *own = limbs + half * SUPER_BLOCK_LIMBS;
			load_fragment_order<4>(z, d);
			write_limbs(d, own, limb_scale + half);
			__syncwarp();
			if (!lane)
				mbarrier_arrive(there(HAS_OWN));
			uint32_t other = remote_address(shared_address(own), half),
					 hears = remote_address(there(HAS_OTHER), half);
#pragma unroll
			for (int i = 0; i < SUPER_BLOCK_LIMBS / 32; i++)
				store_remote(other + (lane + 32 * i) * sizeof(uint2), own[lane + 32 * i], hears);
			if (!lane)
				store_remote(remote_address(shared_address(limb_scale + half), half),
					limb_scale[half], hears);
		}
	} else { /* all is read; nobody reads the queries any more: what was made from
				them is here */
		const uint4 empty = make_uint4(FLAG_EMPTY, FLAG_EMPTY, FLAG_EMPTY, FLAG_EMPTY);
		int i = tid - 32 * V_WARPS;
		if (i < HALF / 4)
			flag_store4(&flags->query[head][half * HALF + 4 * i], empty);
		if (i < n_segments)
			flag_store2(flags->meta[head][half][i], make_uint2(FLAG_EMPTY, FLAG_EMPTY));
#pragma unroll 1
		for (int s = i / 64; s < n_segments; s += 4)
			flag_store4(flags->value[head][half][s] + i % 64 * 4, empty);
		if (PRODUCT && i < OUT / 2)
			flag_store(&flags->out[*parity ^ 1][head * OUT + half * (OUT / 2) + i], FLAG_EMPTY);
	}
	mbarrier_wait(there(warp / V_WARPS == half ? HAS_OWN : HAS_OTHER), 0);
	launch_dependents(); /* not before: there is no room for its blocks */
	float sum[2];
	q8_tile_mma(v_rows, limbs + warp / V_WARPS * SUPER_BLOCK_LIMBS, sum);
	float2 *halves = (float2 *)(shared + AT_HALVES); /* [V_WARPS][32]: of the second half of
														the width */
	if (warp >= V_WARPS) {
		halves[tid - 32 * V_WARPS] = make_float2(sum[0], sum[1]);
		named_barrier_sync(OUT_NAMES + warp - V_WARPS, 64); /* who only arrived could quarter_scores
															   itself there in the output product */
		if (PRODUCT) /* nobody reads any more what lies where limbs go */
			mbarrier_wait(there(HAS_OWN), 0);
		return;
	}
	named_barrier_sync(OUT_NAMES + warp, 64);
	mbarrier_wait(there(half ? HAS_OWN : HAS_OTHER), 0);
	float2 rest = halves[tid];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float v = combine(
			__fmaf_rn(limb_scale[1], i ? rest.y : rest.x, __fmaf_rn(limb_scale[0], sum[i], 0.0f)));
		if (!c) {
			int row = half * (OUT / 2) + warp * 16 + r0 + 8 * i;
			if (PRODUCT)
				flag_store(&flags->out[*parity][head * OUT + row], flag_word(v));
			else
				a.y[head * a.y_stride + row] = v;
		}
	}
}

/* Two n_sb of the values, `first` and 2 * OUT_SPLIT further on, as limbs and
 * scales in both blocks of the pair; the barriers hear of it. */
static __device__ __forceinline__ void receive_values(
	const uint32_t *flags, int first, int half, uint2 *limbs, float *scales, uint32_t barrier)
{
	constexpr int SUPER_BLOCKS = 2, STEP = 2 * OUT_SPLIT * OUT;
	int lane = threadIdx.x % 32, pending = (1 << SUPER_BLOCKS) - 1;
	const uint32_t *look = flags + first * OUT + lane / 16 * STEP + lane % 16 * 16,
				   *from = flags + first * OUT + lane / 4 * 32 + lane % 4 * 4;
	uint32_t hears = remote_address(barrier, half);
	/* Sixteen flags of each sb are looked at until they are full, and then all
	 * are asked for: to ask for all of them again and again would hold up those
	 * that are missing. */
	for (int polls = 0; pending; polls++) {
		uint32_t full = __ballot_sync(0xffffffffu, flag_load(look) != FLAG_EMPTY);
		uint4 v[SUPER_BLOCKS][2];
		int fresh = 0;
		if (polls == POLL_LIMIT)
			__trap();
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
			fresh |= ((full >> 16 * i & 65535) == 65535) << i;
		fresh &= pending;
		pending &= ~fresh;
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
			if (fresh >> i & 1) {
				v[i][0] = flag_load4(from + i * STEP);
				v[i][1] = flag_load4(from + i * STEP + 16);
			}
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
			if (fresh >> i & 1) {
				for (int again = 0;
					 !__all_sync(0xffffffffu, flag_ready(v[i][0]) && flag_ready(v[i][1]));
					 again++) {
					if (again == POLL_LIMIT)
						__trap();
					v[i][0] = flag_load4(from + i * STEP);
					v[i][1] = flag_load4(from + i * STEP + 16);
				}
				float f[8];
#pragma unroll
				for (int k = 0; k < 2; k++) {
					f[4 * k] = __uint_as_float(v[i][k].x),
						  f[4 * k + 1] = __uint_as_float(v[i][k].y);
					f[4 * k + 2] = __uint_as_float(v[i][k].z),
							  f[4 * k + 3] = __uint_as_float(v[i][k].w);
				}
				int sb = first + i * 2 * OUT_SPLIT;
				uint2 *own = limbs + sb * SUPER_BLOCK_LIMBS;
				write_limbs(f, own, scales + sb);
				__syncwarp();
				uint32_t other = remote_address(shared_address(own), half);
#pragma unroll
				for (int k = 0; k < SUPER_BLOCK_LIMBS / 32; k++)
					store_remote(
						other + (lane + 32 * k) * sizeof(uint2), own[lane + 32 * k], hears);
				if (!lane)
					store_remote(
						remote_address(shared_address(scales + sb), half), scales[sb], hears);
			}
	}
	if (!lane)
		mbarrier_arrive(barrier);
}
#endif

template <bool PRODUCT>
static __global__ void __launch_bounds__(THREADS, 1)
	mla_kernel(const __grid_constant__ struct mla_args a)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) uint8_t shared[];
	__shared__ uint32_t parity; /* which of flags.out this launch has */
	int tid = threadIdx.x, lane = tid % 32,
		warp = __shfl_sync(
			0xffffffffu, tid / 32, 0); /* so that it is known to be the same in all lanes */
	__shared__ __align__(8) struct out_barriers ring_barriers;
	uint8_t *ring = shared + AT_RING;
	__shared__ __align__(8) uint64_t has_values[OUT_SPLIT]; /* limbs that the warps `part` want */
	if (PRODUCT && !tid) {
		for (int i = 0; i < OUT_SPLIT;
			 i++) { /* two warps here, and half of the n_sb from the other block */
			mbarrier_init(shared_address(has_values + i), 3);
			mbarrier_expect(shared_address(has_values + i),
				OUT_STEPS / 2 * (SUPER_BLOCK_LIMBS * sizeof(uint2) + sizeof(float)));
		}
		out_init(&ring_barriers);
	}
	if (!PRODUCT || blockIdx.x < BLOCKS) {
		mla_heads<PRODUCT>(a, shared, warp, &parity);
		if (PRODUCT && warp == WARPS)
			ring_sync();
	} else { /* one that has no head */
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
		__syncthreads();
		if (warp < WARPS) {
			grid_dependency_wait();
			if (!tid)
				parity = atomicInc(&a.flags->blocks, 2 * gridDim.x - 1) >= gridDim.x;
			launch_dependents();
			heads_sync();
		}
	}
	if (!PRODUCT)
		return;
	if (warp == WARPS) {
		pair_arrive();
		out_produce(a.out, ring, &ring_barriers, lane, blockIdx.x < BLOCKS);
		__syncwarp();
		pair_wait();
		return;
	}

	uint2 *limbs = (uint2 *)(shared + AT_VALUES);
	float *scales = (float *)(shared + AT_SCALES);
	int side = warp / OUT_SPLIT, part = warp % OUT_SPLIT;
	int half = blockIdx.x % 2;
	uint32_t values = shared_address(has_values + part);
	heads_sync(); /* nobody asks before all of the block have handed on theirs */
	pair_arrive();
	pair_wait(); /* nor sends before the other block's have */
	receive_values(a.flags->out[parity], (side * (OUT_STEPS / 2) + half) * OUT_SPLIT + part, half,
		limbs, scales, values);
	mbarrier_wait(values, 0);
	out_products(a.out, side, part, lane, ring, &ring_barriers, limbs, scales,
		(float *)(shared + AT_PARTIALS), (float4 *)(shared + AT_HANDED));
#endif
}

static cudaLaunchConfig_t mla_launch_config(
	struct cuda_backend *b, int blocks, cudaLaunchAttribute attrs[2])
{
	cudaLaunchConfig_t c = cuda_launch_config(b, blocks, THREADS, BYTES, attrs);
	attrs[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
	attrs[c.numAttrs].val.clusterDim.x = 2;
	attrs[c.numAttrs].val.clusterDim.y = attrs[c.numAttrs].val.clusterDim.z = 1;
	c.numAttrs++;
	return c;
}

/* Whether the kernel may use the memory that it needs and all blocks, an even number, can run at
 * the same time. */
template <bool PRODUCT> static bool mla_fused_supported(struct cuda_backend *b, int blocks)
{
	int *known = &b->mla_supported[PRODUCT];
	if (*known)
		return *known == 1;
	bool next_serialized = b->next_serialized;
	int pairs = 0;
	*known = 2;
	if (!b->has_pdl || blocks < BLOCKS || BYTES > b->max_shared ||
		!cuda_allow_shared(b, (const void *)mla_kernel<PRODUCT>, BYTES))
		return false;
	cudaLaunchAttribute attrs[2] = {};
	cudaLaunchConfig_t c = mla_launch_config(b, blocks, attrs);
	b->next_serialized = next_serialized;
	if (cudaOccupancyMaxActiveClusters(&pairs, mla_kernel<PRODUCT>, &c) != cudaSuccess)
		cudaGetLastError();
	*known = pairs >= blocks / 2 ? 1 : 2;
	return *known == 1;
}

static bool mla_fused_applies(const struct batch *rows, const struct mla *m)
{
	const struct weight *k = &m->absorb.w, *v = &m->expand.w;
	const struct attend *t = &m->attend;
	uintptr_t lines = (uintptr_t)k->data | (uintptr_t)v->data | (uintptr_t)t->cache.data |
					  (uintptr_t)m->absorb.x | (uintptr_t)(4 * m->absorb.x_stride);
	uintptr_t pairs =
		(uintptr_t)t->rotate | (uintptr_t)(4 * t->rotate_stride) | (uintptr_t)t->rope.cos_sin;
	return rows->n == 1 && k->type == DTYPE_Q8_0 && k->n_in == NOPE && k->n_out == VALUE &&
		   k->n_stack == N_HEADS && k->row_bytes == K_ROW && k->stack_bytes == VALUE * K_ROW &&
		   v->type == DTYPE_Q8_0 && v->n_in == VALUE && v->n_out == OUT && v->n_stack == N_HEADS &&
		   v->row_bytes == V_ROW && v->stack_bytes == OUT * V_ROW && t->n_heads == N_HEADS &&
		   t->n_value == VALUE && t->cache.type == DTYPE_F16 && t->cache.width == WIDTH &&
		   t->rotate && t->rope.dim == WIDTH - VALUE && t->sel_stride <= PARTS * SEGMENT &&
		   lines % 16 == 0 && pairs % 8 == 0;
}

/* Whether the launch can end with this product. */
static bool mla_output_applies(const struct stacked_matmul *expand, const struct matmul *m)
{
	const struct weight *w = &m->w;
	return w->type == DTYPE_Q8_0 && w->n_in == N_HEADS * OUT && w->row_bytes == OUT_ROW &&
		   w->n_out % MMA_ROWS == 0 && w->n_out <= 1 << 20 && (uintptr_t)w->data % 16 == 0 &&
		   !m->x && expand->y_stride == OUT &&
		   gemv_k_split(w->type, w->n_in, w->n_out) == OUT_SPLIT;
}

void cuda_mla(struct backend *base, const struct batch *rows, const struct mla *m)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "mla") || !rows->n)
		return;
	int all = b->n_sm & ~1;
	bool here = mla_fused_applies(rows, m) && mla_fused_supported<false>(b, BLOCKS),
		 with = here && m->out && mla_output_applies(&m->expand, m->out) &&
				mla_fused_supported<true>(b, all);
	if (!here) {
		cuda_stacked_matmul(base, &m->absorb, rows->n);
		cuda_attend(base, rows, &m->attend);
		cuda_stacked_matmul(base, &m->expand, rows->n);
	} else {
		if (!b->mla_flags.data) {
			if (!cuda_scratch_reserve(b, &b->mla_flags, sizeof(struct mla_flags)))
				return;
			struct mla_flags *flags = (struct mla_flags *)b->mla_flags.data;
			if (!cuda_check(b, cudaMemsetAsync(flags, 0xff, sizeof *flags, b->stream)) ||
				!cuda_check(b, cudaMemsetAsync(&flags->blocks, 0, sizeof flags->blocks, b->stream)))
				return;
			b->next_serialized = true;
		}
		const struct attend *t = &m->attend;
		struct mla_args a = {(const uint8_t *)m->absorb.w.data, (const uint8_t *)m->expand.w.data,
			m->absorb.x, t->rotate, t->rope.cos_sin, m->absorb.x_stride, t->rotate_stride,
			(const __half *)t->cache.data, rows->base, t->sel, t->n_sel, t->sel_stride, t->scale,
			m->expand.y, m->expand.y_stride, (struct mla_flags *)b->mla_flags.data, {}};
		if (with)
			a.out = {(const uint8_t *)m->out->w.data, m->out->y, (int)(m->out->w.n_out / MMA_ROWS),
				m->out->add};
		cudaLaunchAttribute attrs[2] = {};
		cudaLaunchConfig_t c = mla_launch_config(b, with ? all : BLOCKS, attrs);
		cuda_check(b, cudaLaunchKernelEx(&c, with ? mla_kernel<true> : mla_kernel<false>, a));
		b->used.launches += !b->capturing;
	}
	if (m->out && !with)
		cuda_matmul(base, m->out, 1, m->expand.y, rows->n);
}
