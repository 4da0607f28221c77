/* SPDX-License-Identifier: MIT */
/*
 * experts_kernel: gate, up, SwiGLU and down of up to TASKS tasks, each an expert and one (token,
 * rank) slot, in one launch. Arithmetic and order of additions are gemv_mma_kernel's
 * (gemv_mma.cuh), so the bits are the same: x as three int8 limbs, exact integer sums over a
 * super-block of 256 weights.
 *
 * Grid: one block per SM; of a deferred kernel FREE_SMS less. There are four lists of stages, of
 * each of which a block has a contiguous share, one after the other: gate and up of the first half
 * of the tasks, gate and up of the other half, down of the first half, down of the other half. A
 * stage is one or more tiles of 16 whole rows (gate and up: 8 rows of each): tiles times
 * super-blocks of a row are SUPER_BLOCKS.
 *
 * Down of a task waits until all stages of its gate and up are done, in all blocks: progress
 * counters in global memory, which are increased with a release for each stage. With more than one
 * task they were done long before. A block may wait for one that has not started: that one waits
 * only until kernels of other streams leave an SM, and those never wait for this kernel.
 *
 * A deferred kernel (deferred_experts.cu) gets up to eight tasks from the mailbox, in rounds
 * (mailbox.cuh), and does all of the above in each round. Then it copies rows of out that the host
 * has computed.
 *   - It occupies all SMs but FREE_SMS for as long as it waits for the host; after
 *     MAILBOX_POLL_LIMIT polls the launch fails.
 *   - It does not wait for the ops before it. What it reads was written before the fence that the
 *     host has waited for, and it has hidden rows of its own.
 *   - It lets the next kernel start only when it ends. Until the last message the SMs
 *     that it leaves free must stay free; and moe_combine takes longer if it finds only those.
 *
 * Block, by warps:
 *   - WORKERS: each multiplies two super-blocks of 16 rows of every stage;
 *   - one warp fetches: bulk copies of whole stages into a ring, and of the next hidden row. Until
 *     the workers have loaded x, no more than two stages are in flight: x would queue behind them;
 *   - FINISHERS take the stages in turn: they add up the partial sums of a stage in
 *     gemv_mma_kernel's order and store the results.
 *
 * mbarriers, of each stage of the ring:
 *      full   the copy has arrived, and the partial sums that lay there have been read. Arrivals:
 *             the fetching warp, with the bytes of its copy, and the finisher. The workers wait.
 *      done   the stage has been read and its partial sums are stored. Arrivals: all workers. The
 *             fetching warp (to overwrite the stage) and the finisher wait.
 * and hidden_full, hidden_free (the hidden row has arrived, has been read), x_loaded.
 *
 * mma m16n8k32 is 16 weight rows by 32 weights; lane 4 r + c has rows r and r + 8. The three limbs
 * of one row of x fill three of eight columns. So one product takes two sets of weights, each with
 * three columns of its own: that of the lanes with c = 0, 1 and that of those with c = 2, 3 (which
 * sets: experts_fused_types.cuh). A warp keeps the columns of its super-blocks in registers.
 *
 * In shared memory: `limbs`, of each warp's two super-blocks as limbs_kernel leaves them;
 * `partials`, of each super-block of a stage and each row the sums of the three limbs and the scale
 * of x.
 *
 * Bytes moved: every packed row once; x and a task's hidden row once per block.
 */
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/registers.cuh"
#include "kernels/cuda/experts/experts.cuh"
#include "kernels/cuda/experts/experts_fused_types.cuh"
#include "kernels/cuda/experts/mailbox.cuh"

#define SUPER_BLOCKS 24 /* of a stage */
#define WORKERS      (SUPER_BLOCKS / 2)
#define FINISHERS    3
#define THREADS      ((WORKERS + 1 + FINISHERS) * 32)
#define TASKS        64
/* Most (token, rank) slots of a job: SLOTS_MOST in steps of fewer than STEP_MANY rows, else
 * SLOTS_MANY. Each slot is a task, so a job of several slots loads and decodes its expert once per
 * slot, though after the first time from the L2 cache. The two passes of experts.cu do so once, but
 * are three launches more for the layer. Experts of steps of 4, 8, 16 and 32 rows (one H200, 8
 * layers of them, IQ2_XXS, before 6547e8eb), in ms: with a limit of 1 1.15, 2.15, 3.84, 6.69; of
 * 2 1.01, 1.99, 3.72, 6.55; of 4 0.98, 1.86, 3.78, 7.12; of 8 0.98, 1.86, 3.65, 7.30. A step of 16
 * rows is 2 % faster with 8 than with 4. */
#define SLOTS_MOST  8
#define SLOTS_MANY  2
#define STEP_MANY   17
#define RING_STAGES 4 /* at most; more of them only let x and hidden rows wait */
#define BARRIERS    16
#define FREE_SMS    4 /* SMs that a deferred kernel leaves to copies */
#define IN_ORDER    4 /* super-blocks that gemv_mma_kernel takes at once */
/* In units of int4: four shares and a struct work_list, and as much more as makes the hidden row
 * behind them begin at a multiple of 128 bytes. Bulk copies to other addresses are slower. */
#define SHARES 18

struct expert_task {
	const uint8_t *gate, *up, *down;
	int32_t row, token_slot, hidden; /* rows: of x, of out, of the hidden rows */
	uint32_t ready;                  /* its count when gate and up are done */
};

static_assert(sizeof(((struct cuda_backend *)0)->progress_expected) == TASKS * sizeof(uint32_t),
	"a progress counter for each task");
static_assert(
	sizeof(struct work_list) + 4 * sizeof(int4) <= SHARES * sizeof(int4), "shared memory");

struct expert_args {
	struct expert_task task[TASKS];
	struct mailbox_args mailbox; /* deferred only; task, n_tasks, counts are not used then */
	const struct cuda_tables *tables;
	const float *x;
	float *hidden, *out;
	uint32_t *counts; /* [TASKS] stages of gate and up done since the backend was opened; wraps */
	int n_tasks, ring_stages, stage_bytes;
	bool x_aligned; /* to 16 bytes */
	/* in_: of gate and up; ff_: of down. Weights and bytes of a row, super-blocks of a row, tiles
	 * of a stage, stages of a task, gemv_k_split */
	int n_embd, in_bytes, in_super_blocks, in_tiles, in_stages, in_split;
	int n_ff, ff_bytes, ff_super_blocks, ff_tiles, ff_stages, ff_split;
	int stages_at; /* where the ring of stages begins in shared memory */
	struct poll_report report;
};

/* ---- synchronisation ---- */

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

static __device__ __forceinline__ void add_release(uint32_t *p)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

/* A round begins: mbarriers are initialised, the shares are known, tables are filled. The fetching
 * warp only arrives. */
static __device__ __forceinline__ void round_begin(bool wait)
{
	if (wait)
		named_barrier_sync(1, THREADS);
	else
		named_barrier_arrive(1, THREADS);
}

/* Moves registers from the other warps to the workers: of the 128 of each thread, workers get 24
 * more. By all four warps of a warpgroup. */
static __device__ __forceinline__ void set_max_registers(bool worker)
{
	static_assert(WORKERS % 4 == 0 && FINISHERS == 3 && 128 * (3 * 152 + 56) == 65536, "registers");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	if (worker)
		registers_more<152>();
	else
		registers_fewer<56>();
#endif
}

/* ---- the order of work ---- */

/* A block's stages: its share of gate and up of the first half of the tasks, of the other half, of
 * down of the first half, of the other half. */
struct cursor {
	int list, left, task, stage;
};

/* This block's share of a list: number of stages, first task, first stage of that task. Computed
 * once a round, because it divides. */
static __device__ __forceinline__ int4 share_of(const struct expert_args &a, int n_tasks, int list)
{
	int half = (n_tasks + 1) / 2, first = list & 1 ? half : 0, n = list & 1 ? n_tasks - half : half,
		n_stages = list >= 2 ? a.ff_stages : a.in_stages;
	int from = n * n_stages * (int)blockIdx.x / (int)gridDim.x,
		to = n * n_stages * ((int)blockIdx.x + 1) / (int)gridDim.x;
	return make_int4(to - from, first + from / n_stages, from % n_stages, 0);
}

/* If the current list has no stage left: goes to the next one that has. */
static __device__ __forceinline__ void cursor_find(const int4 *shares, struct cursor &c)
{
	while (!c.left && c.list < 4 && ++c.list < 4) {
		int4 s = shares[c.list];
		c.left = s.x;
		c.task = s.y;
		c.stage = s.z;
	}
}

static __device__ __forceinline__ void cursor_next(
	const struct expert_args &a, const int4 *shares, struct cursor &c)
{
	if (++c.stage == (c.list >= 2 ? a.ff_stages : a.in_stages)) {
		c.stage = 0;
		c.task++;
	}
	if (!--c.left)
		cursor_find(shares, c);
}

/* ---- tasks of a deferred kernel ---- */

template <bool DEFERRED>
static __device__ __forceinline__ struct expert_task task_of(
	const struct expert_args &a, const struct work_list *work, int i)
{
	if (!DEFERRED)
		return a.task[i];
	struct expert_task t = {work->gate[i], work->up[i], work->down[i], 0, work->rank[i],
		work->rank[i], (uint32_t)a.in_stages};
	return t;
}

template <bool DEFERRED>
static __device__ __forceinline__ uint32_t *count_of(
	const struct expert_args &a, const struct work_list *work, int i)
{
	return DEFERRED ? work->counts + work->rank[i] : a.counts + i;
}

/* Copies the rows of out that the host has computed, this block's part of them. By the fetching
 * warp. volatile: they lie in the host's memory, and earlier rows lay in the same place. */
static __device__ __forceinline__ void copy_host_rows(
	const struct expert_args &a, const struct work_list *work)
{
	if (work->n_rows)
		mailbox_acquire();
	for (int r = work->n_tasks; r < work->n_tasks + work->n_rows; r++) {
		const float *from = (const float *)work->down[r];
		float *to = a.out + (int64_t)work->rank[r] * a.n_embd;
		for (int i = 4 * (int)(32 * blockIdx.x + threadIdx.x % 32); i < a.n_embd;
			 i += 4 * 32 * (int)gridDim.x) {
			float4 v;
			asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
						 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
						 : "l"(from + i)
						 : "memory");
			to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
		}
	}
}

/* A round ends: the fetching warp may overwrite shares and work list. */
static __device__ __forceinline__ void round_end(bool wait)
{
	if (wait)
		named_barrier_sync(2, THREADS);
	else
		named_barrier_arrive(2, THREADS);
}

/* ---- the kernel ---- */

/* By a finisher, when the workers are done with a stage: adds its partial sums up, releases their
 * place (`full`), stores the results, and counts a stage of gate and up. sums: scratch of the warp.
 */
template <int PARTIALS, bool DEFERRED>
static __device__ __forceinline__ void finish_stage(const struct expert_args &a,
	const struct work_list *work, const struct cursor &at, const float4 *partials, float *sums,
	uint32_t full, int lane)
{
	bool down = at.list >= 2;
	int super_blocks = down ? a.ff_super_blocks : a.in_super_blocks,
		rows = 16 * (down ? a.ff_tiles : a.in_tiles), split = down ? a.ff_split : a.in_split,
		chunks = (super_blocks + IN_ORDER - 1) / IN_ORDER;
	for (int i = lane, row = lane, part = 0; i < rows * split; i += 32, row += 32) {
		for (; row >= rows; row -= rows)
			part++;
		const float4 *m =
			partials + row / 16 * super_blocks * PARTIALS + row % 8 + (row & 8 ? 10 : 0);
		float v[3] = {0, 0, 0};
		for (int chunk = part; chunk < chunks; chunk += split)
#pragma unroll
			for (int u = 0; u < IN_ORDER; u++) {
				int super_block = chunk * IN_ORDER + u;
				if (super_block < super_blocks) {
					float4 f = m[super_block * PARTIALS];
					v[0] = __fmaf_rn(f.w, f.x, v[0]);
					v[1] = __fmaf_rn(f.w, f.y, v[1]);
					v[2] = __fmaf_rn(f.w, f.z, v[2]);
				}
			}
		sums[i] = __fmaf_rn(65536.0f, v[0], __fmaf_rn(256.0f, v[1], v[2]));
	}
	mbarrier_arrive_warp(full, lane);
	const struct expert_task t = task_of<DEFERRED>(a, work, at.task);
	if (down) {
		for (int i = lane; i < rows; i += 32) {
			float v = 0;
			for (int p = 0; p < split; p++)
				v = __fadd_rn(v, sums[p * rows + i]);
			int o = at.stage * rows + i;
			if (o < a.n_embd)
				a.out[(int64_t)t.token_slot * a.n_embd + o] = v;
		}
	} else {
		for (int i = lane; i < rows / 2; i += 32) {
			float v[2] = {0, 0};
			for (int p = 0; p < split; p++)
				for (int k = 0; k < 2; k++)
					v[k] = __fadd_rn(v[k], sums[p * rows + i / 8 * 16 + k * 8 + i % 8]);
			int o = at.stage * (rows / 2) + i;
			if (o < a.n_ff)
				a.hidden[(int64_t)t.hidden * a.n_ff + o] = swiglu_one(v[0], v[1]);
		}
		__syncwarp();
		if (!lane)
			add_release(count_of<DEFERRED>(a, work, at.task));
	}
	__syncwarp();
}

/* This lane's eight values of a super-block. FAR: from the L2 cache, for x of a deferred kernel,
 * which has started before x was written. */
template <bool FAR>
static __device__ __forceinline__ void load_eight(const float *x, bool aligned, float v[8])
{
	if (aligned) {
		const float4 *p = (const float4 *)x;
		float4 f = FAR ? __ldcg(p) : p[0], g = FAR ? __ldcg(p + 1) : p[1];
		v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
		v[4] = g.x, v[5] = g.y, v[6] = g.z, v[7] = g.w;
	} else {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = FAR ? __ldcg(x + i) : x[i];
	}
}

template <int T, bool DEFERRED>
__global__ void __launch_bounds__(THREADS, 1)
	experts_kernel(const __grid_constant__ struct expert_args a)
{
#if __CUDA_ARCH__ >= 900
	typedef struct expert_type<T> type;
	constexpr unsigned limit = DEFERRED ? POLL_LIMIT_DEFERRED : POLL_LIMIT;
	constexpr int PARTIALS = type::PARTIALS,
				  PARTIALS_BYTES = SUPER_BLOCKS * PARTIALS * sizeof(float4);
	extern __shared__ __align__(128) uint8_t shared[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, ring_stages = a.ring_stages;
	if (type::TABLE_BYTES && (uint32_t)__cvta_generic_to_shared(shared) != TABLES_AT)
		__trap();
	uint8_t *tables = shared;
	uint2 *limbs = (uint2 *)(shared + type::TABLE_BYTES);
	float4 *partials = (float4 *)(limbs + SUPER_BLOCKS * SUPER_BLOCK_LIMBS);
	float *all_sums = (float *)(partials + ring_stages * SUPER_BLOCKS * PARTIALS),
		  *x_scales = all_sums + FINISHERS * 16 * SUPER_BLOCKS;
	uint64_t *barriers = (uint64_t *)(x_scales + SUPER_BLOCKS);
	int4 *shares = (int4 *)(barriers + BARRIERS);
	struct work_list *work = (struct work_list *)(shares + 4);
	float *hidden = (float *)(shares + SHARES); /* the row that is next */
	uint8_t *stages = (uint8_t *)(hidden + a.n_ff);
	uint32_t full = (uint32_t)__cvta_generic_to_shared(barriers), done = full + 8 * RING_STAGES,
			 hidden_full = done + 8 * RING_STAGES, hidden_free = hidden_full + 8,
			 x_loaded = hidden_free + 8, stages_to = (uint32_t)__cvta_generic_to_shared(stages);
	if (!DEFERRED)
		launch_dependents();
	struct cursor at = {-1, 0, 0, 0};
	if (warp >= WORKERS) {
		set_max_registers(false);
		if (warp == WORKERS) {
			if (!lane) {
				for (int i = 0; i < ring_stages; i++) {
					mbarrier_init(full + 8 * i, 1 + WARP_ARRIVES);
					mbarrier_init(done + 8 * i, WORKERS * WARP_ARRIVES);
					for (int k = 0; k < WARP_ARRIVES; k++)
						mbarrier_arrive(full + 8 * i); /* nothing is to be summed up there */
				}
				mbarrier_init(hidden_full, 1);
				mbarrier_init(hidden_free, WORKERS * WARP_ARRIVES);
				mbarrier_init(x_loaded, WORKERS * WARP_ARRIVES);
				mbarrier_init_fence();
			}
			__syncwarp();
			int ring_at = 0, had_task = -1;
			uint32_t parity = 1, hidden_parity = 1, x_parity = 0;
			auto fetch = [&]() {
				/* at once in the first pass of the ring */
				mbarrier_wait(done + 8 * ring_at, parity);
				if (!lane) {
					bool down = at.list >= 2;
					const struct expert_task t = task_of<DEFERRED>(a, work, at.task);
					int rows = 16 * (down ? a.ff_tiles : a.in_tiles),
						row_bytes = down ? a.ff_bytes : a.in_bytes;
					uint32_t to = stages_to + ring_at * a.stage_bytes, bar = full + 8 * ring_at;
					if (down) {
						int first = at.stage * rows, n = min(rows, a.n_embd - first);
						mbarrier_expect(bar, n * row_bytes);
						bulk_copy(to, t.down + (int64_t)first * row_bytes, n * row_bytes, bar);
						if (had_task != at.task) {
							mbarrier_wait(hidden_free, hidden_parity);
							hidden_parity ^= 1;
							poll_until<limit>(a.report, [&]() {
								uint32_t count = load_acquire(count_of<DEFERRED>(a, work, at.task));
								return (int32_t)(count - t.ready) >= 0;
							});
							/* others wrote it by stores */
							cuda::ptx::fence_proxy_async();
							mbarrier_expect(hidden_full, 4 * a.n_ff);
							bulk_copy((uint32_t)__cvta_generic_to_shared(hidden),
								a.hidden + (int64_t)t.hidden * a.n_ff, 4 * a.n_ff, hidden_full);
							had_task = at.task;
						}
					} else {
						int first = at.stage * (rows / 2), n = min(rows / 2, a.n_ff - first);
						mbarrier_expect(bar, 2 * n * row_bytes);
#pragma unroll 1
						for (int i = 0; i < n; i += 8)
#pragma unroll 1
							for (int k = 0; k < 2; k++)
								bulk_copy(to + (2 * i + 8 * k) * row_bytes,
									(k ? t.up : t.gate) + (int64_t)(first + i) * row_bytes,
									min(8, n - i) * row_bytes, bar);
					}
				}
				__syncwarp();
				cursor_next(a, shares, at);
				if (++ring_at == ring_stages) {
					ring_at = 0;
					parity ^= 1;
				}
			};
			struct mailbox_reader reader;
			if (DEFERRED)
				mailbox_open(a.mailbox, reader);
			for (;;) {
				if (DEFERRED)
					mailbox_poll(a.mailbox, a.report, work, reader);
				if (lane < 4)
					shares[lane] = share_of(a, DEFERRED ? work->n_tasks : a.n_tasks, lane);
				__syncwarp();
				round_begin(false);
				at = (struct cursor){-1, 0, 0, 0};
				cursor_find(shares, at);
				had_task = -1;
				bool loads_x = at.left && at.list < 2;
				for (int i = 0; i < ring_stages && at.left && at.list < 2; i++) {
					if (i >= 2)
						while (!__any_sync(0xffffffffu,
							mbarrier_test(x_loaded, x_parity) ||
								(ring_at >= 2
										? mbarrier_test(full + 8 * (ring_at - 2), parity ^ 1)
										: mbarrier_test(
											  full + 8 * (ring_at - 2 + ring_stages), parity))))
							;
					fetch();
				}
				if (!DEFERRED)
					grid_dependency_wait();
				while (at.left)
					fetch();
				if (DEFERRED)
					copy_host_rows(a, work);
				if (!DEFERRED || !work->more)
					break;
				x_parity ^= loads_x;
				round_end(true);
			}
			if (DEFERRED) /* whoever comes next may rely on it */
				grid_dependency_wait();
			return;
		}
		type::fill_tables(a.tables, tables, threadIdx.x - 32, THREADS - 32);
		float *sums = all_sums + (warp - WORKERS - 1) * 16 * SUPER_BLOCKS;
		int ring_at = 0, turn = 0;
		uint32_t parity = 0;
	finish_round:
		round_begin(true);
		if (!DEFERRED)
			grid_dependency_wait();
		at = (struct cursor){-1, 0, 0, 0};
		cursor_find(shares, at);
		while (at.left) {
			if (turn == warp - WORKERS - 1) {
				mbarrier_wait(done + 8 * ring_at, parity);
				finish_stage<PARTIALS, DEFERRED>(a, work, at,
					partials + ring_at * (SUPER_BLOCKS * PARTIALS), sums, full + 8 * ring_at, lane);
			}
			turn = turn + 1 == FINISHERS ? 0 : turn + 1;
			cursor_next(a, shares, at);
			if (++ring_at == ring_stages) {
				ring_at = 0;
				parity ^= 1;
			}
		}
		if (DEFERRED && work->more) {
			round_end(false);
			goto finish_round;
		}
	} else {
		set_max_registers(true);
		type::fill_tables(a.tables, tables, threadIdx.x, THREADS - 32);
		int had_row, first_super_block = type::first_super_block(warp);
		uint32_t parity = 0, hidden_parity = 0, ring_at = 0, last = (uint32_t)ring_stages - 1,
				 stage_bytes = (uint32_t)a.stage_bytes, barriers_at = full,
				 first_partials_at =
					 (uint32_t)((uint8_t *)(partials + first_super_block * PARTIALS) - shared);
		limbs += 2 * warp * SUPER_BLOCK_LIMBS;
		x_scales += 2 * warp;
		typename type::constants constants = type::constants_of(lane, first_super_block);
		typename type::columns columns;
	compute_round:
		round_begin(true);
		if (!DEFERRED)
			grid_dependency_wait();
		at = (struct cursor){-1, 0, 0, 0};
		cursor_find(shares, at);
		had_row = -1;
		while (at.left) {
			bool down = at.list >= 2;
			int super_blocks = down ? a.ff_super_blocks : a.in_super_blocks,
				n_stages = down ? a.ff_stages : a.in_stages;
			uint32_t row_bytes = down ? a.ff_bytes : a.in_bytes, stride8 = 8 * row_bytes;
			int super_block = first_super_block, tile = 0;
			for (; super_block >= super_blocks; super_block -= super_blocks)
				tile++;
			uint32_t mine = (uint32_t)a.stages_at + (tile * 16 + lane / 4) * row_bytes +
							super_block * type::SUPER_BLOCK_BYTES + type::lane_offset(lane);
			int left = at.left, stage = at.stage, task = at.task;
			while (left) {
				int n = min(left, n_stages - stage);
				if (down || had_row != task_of<DEFERRED>(a, work, task).row) {
					float v[2][8];
					if (down) {
						mbarrier_wait(hidden_full, hidden_parity);
						hidden_parity ^= 1;
#pragma unroll
						for (int u = 0; u < 2; u++)
							load_eight<false>(
								hidden + (super_block + u * type::APART) * 256 + 8 * lane, true,
								v[u]);
						mbarrier_arrive_warp(hidden_free, lane);
					} else {
						const float *x =
							a.x + (int64_t)task_of<DEFERRED>(a, work, task).row * a.n_embd;
#pragma unroll
						for (int u = 0; u < 2; u++)
							load_eight<DEFERRED>(
								x + (super_block + u * type::APART) * 256 + 8 * lane, a.x_aligned,
								v[u]);
						if (had_row < 0)
							mbarrier_arrive_warp(x_loaded, lane);
						had_row = task_of<DEFERRED>(a, work, task).row;
					}
					write_two_limbs(v, limbs, x_scales);
					__syncwarp();
					type::read_columns(limbs, x_scales, lane, columns);
					__syncwarp();
				}
				left -= n;
				stage = 0;
				task++;
				uint32_t here = mine + ring_at * stage_bytes,
						 partials_at = first_partials_at + ring_at * PARTIALS_BYTES;
				asm("" : "+r"(here), "+r"(partials_at));
#pragma unroll 1
				for (; n; n--) {
					mbarrier_wait(barriers_at + 8 * ring_at, parity);
					type::two_super_blocks(shared + here, first_super_block, stride8, lane,
						constants, columns, (float4 *)(shared + partials_at));
					here += stage_bytes;
					mbarrier_arrive_warp(barriers_at + 8 * RING_STAGES + 8 * ring_at, lane);
					partials_at += PARTIALS_BYTES;
					if (ring_at++ == last) {
						here -= stage_bytes * ring_at;
						partials_at -= PARTIALS_BYTES * ring_at;
						ring_at = 0;
						parity ^= 1;
					}
				}
			}
			at.left = 0;
			cursor_find(shares, at);
		}
		if (DEFERRED && work->more) {
			round_end(false);
			goto compute_round;
		}
	}
#endif
}

template <int T> static constexpr size_t fixed_bytes(int n_ff)
{
	return expert_type<T>::TABLE_BYTES + SUPER_BLOCKS * SUPER_BLOCK_LIMBS * sizeof(uint2) +
		   (FINISHERS * 16 + 1) * SUPER_BLOCKS * sizeof(float) + BARRIERS * sizeof(uint64_t) +
		   SHARES * sizeof(int4) + (size_t)n_ff * sizeof(float);
}

template <int T> static size_t bytes_of(const struct expert_args *a, size_t ring_stages)
{
	return fixed_bytes<T>(a->n_ff) +
		   ring_stages *
			   ((size_t)a->stage_bytes + SUPER_BLOCKS * expert_type<T>::PARTIALS * sizeof(float4));
}

template <int T, bool DEFERRED>
static bool experts_launch_as(struct cuda_backend *b, struct expert_args *a, bool now)
{
	static_assert(gemv_tiling<T, false>::CHUNK == IN_ORDER, "sums in another order");
	static_assert((fixed_bytes<T>(0)) % 128 == 0 &&
					  SUPER_BLOCKS * expert_type<T>::PARTIALS * sizeof(float4) % 128 == 0,
		"slow copies");
	static_assert(2 * RING_STAGES + 3 <= BARRIERS, "barriers");
	a->ring_stages = RING_STAGES;
	while (a->ring_stages > 3 && bytes_of<T>(a, (size_t)a->ring_stages) > b->max_shared)
		a->ring_stages--;
	size_t bytes = bytes_of<T>(a, (size_t)a->ring_stages);
	a->stages_at = (int)(bytes - (size_t)a->ring_stages * (size_t)a->stage_bytes);
	if (!cuda_allow_shared(b, (const void *)experts_kernel<T, DEFERRED>, bytes))
		return false;
	if (now)
		cuda_launch(b, experts_kernel<T, DEFERRED>,
			dim3((unsigned)(b->n_sm - (DEFERRED ? FREE_SMS : 0))), THREADS, bytes, *a);
	return !b->base.failure.code;
}

static bool experts_launch(struct cuda_backend *b, enum dtype type, struct expert_args *a)
{
	return type == DTYPE_Q2_K ? experts_launch_as<DTYPE_Q2_K, false>(b, a, true)
							  : experts_launch_as<DTYPE_IQ2_XXS, false>(b, a, true);
}

static void set_shape(struct expert_args *a, const struct expert_job *job, int n_used)
{
	a->in_split = gemv_k_split(job->gate.type, job->gate.n_in, job->gate.n_out * n_used);
	a->ff_split = gemv_k_split(job->down.type, job->down.n_in, job->down.n_out * n_used);
	a->n_embd = (int)job->gate.n_in;
	a->in_bytes = (int)job->gate.row_bytes;
	a->in_super_blocks = a->n_embd / 256;
	a->in_tiles = SUPER_BLOCKS / a->in_super_blocks;
	a->n_ff = (int)job->down.n_in;
	a->ff_bytes = (int)job->down.row_bytes;
	a->ff_super_blocks = a->n_ff / 256;
	a->ff_tiles = SUPER_BLOCKS / a->ff_super_blocks;
	a->in_stages = (a->n_ff + 8 * a->in_tiles - 1) / (8 * a->in_tiles);
	a->ff_stages = (a->n_embd + 16 * a->ff_tiles - 1) / (16 * a->ff_tiles);
	int in_stage = 16 * a->in_tiles * a->in_bytes, ff_stage = 16 * a->ff_tiles * a->ff_bytes;
	a->stage_bytes = ((in_stage > ff_stage ? in_stage : ff_stage) + 127) / 128 * 128;
}

/* Rows of whole lines have a multiple of 4 super-blocks (Q2_K) or of 8 (IQ2_XXS): the two of a warp
 * are in the same row. */
static bool weight_applies(const struct weight *w)
{
	return w->n_in % 512 == 0 && w->n_in <= SUPER_BLOCKS * 256 &&
		   SUPER_BLOCKS % (w->n_in / 256) == 0 && w->row_bytes % 16 == 0 &&
		   (uintptr_t)w->data % 16 == 0;
}

/* Whether the kernel computes experts of this shape here */
static bool shape_applies(const struct cuda_backend *b, const struct expert_job *job)
{
	const struct weight *g = &job->gate, *u = &job->up, *d = &job->down;
	if (!b->has_pdl)
		return false;
	if ((g->type != DTYPE_Q2_K && g->type != DTYPE_IQ2_XXS) || u->type != g->type ||
		d->type != g->type)
		return false;
	if (!weight_applies(g) || !weight_applies(u) || !weight_applies(d) ||
		(2 * g->n_out * (int64_t)g->row_bytes + d->n_out * (int64_t)d->row_bytes) >> 20 < 3)
		return false;
	struct expert_args a;
	set_shape(&a, job, 1);
	return (g->type == DTYPE_Q2_K ? bytes_of<DTYPE_Q2_K>(&a, 3) : bytes_of<DTYPE_IQ2_XXS>(&a, 3)) <=
		   b->max_shared;
}

bool cuda_experts_takes(const struct cuda_backend *b, const struct expert_job *job, int rows)
{
	/* A launch that is captured and replayed would have the same values of `ready` every time. */
	return !b->capturing && job->n_token_slots <= (rows < STEP_MANY ? SLOTS_MOST : SLOTS_MANY) &&
		   shape_applies(b, job);
}

/* Whether two jobs can share a launch */
static bool jobs_match(const struct expert_job *p, const struct expert_job *q)
{
	return p->gate.type == q->gate.type && p->gate.n_in == q->gate.n_in &&
		   p->down.n_in == q->down.n_in;
}

bool cuda_experts_few(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *hidden, float *out)
{
	if (!cuda_scratch_reserve(b, &b->expert_progress, TASKS * sizeof(uint32_t)))
		return false;
	struct expert_args a = {};
	a.tables = b->tables;
	a.x = x;
	a.x_aligned = (uintptr_t)x % 16 == 0;
	a.hidden = hidden;
	a.out = out;
	a.counts = (uint32_t *)b->expert_progress.data;
	a.report = cuda_poll_report(b, POLL_EXPERTS);
	const struct expert_job *now = NULL;
	int row = 0;
	for (int j = 0; j < n_jobs; row += jobs[j++].n_token_slots) {
		const struct expert_job *job = &jobs[j];
		if (!cuda_experts_takes(b, job, rows))
			continue;
		for (int i = 0; i < job->n_token_slots; i++) {
			if (a.n_tasks && (a.n_tasks == TASKS || !jobs_match(job, now))) {
				if (!experts_launch(b, now->gate.type, &a))
					return false;
				a.n_tasks = 0;
			}
			now = job;
			if (!a.n_tasks)
				set_shape(&a, job, n_used);
			struct expert_task *t = &a.task[a.n_tasks];
			t->gate = (const uint8_t *)job->gate.data;
			t->up = (const uint8_t *)job->up.data;
			t->down = (const uint8_t *)job->down.data;
			t->token_slot = job->token_slots[i];
			t->row = t->token_slot / n_used;
			t->hidden = row + i;
			t->ready = b->progress_expected[a.n_tasks++] += (uint32_t)a.in_stages;
		}
	}
	return !a.n_tasks || experts_launch(b, now->gate.type, &a);
}

bool cuda_experts_deferrable(const struct cuda_backend *b, const struct expert_job *shape)
{
	return b->n_sm >= 4 * FREE_SMS && shape->n_token_slots == 1 && shape_applies(b, shape);
}

void cuda_experts_deferred_launch(struct cuda_backend *b, const struct deferred_experts *d)
{
	const struct expert_job *shape = &d->shape;
	float *hidden = (float *)cuda_scratch_reserve(
		b, &b->deferred_hidden, (uint64_t)d->n_used * (uint64_t)shape->gate.n_out * sizeof(float));
	if (!hidden)
		return;
	struct expert_args a = {};
	a.mailbox = (struct mailbox_args){b->mailbox_state, b->mailbox, cuda_profile_events(b)};
	a.report = cuda_poll_report(b, POLL_EXPERTS_DEFERRED);
	a.tables = b->tables;
	a.x = d->x;
	a.x_aligned = (uintptr_t)d->x % 16 == 0;
	a.hidden = hidden;
	a.out = d->out;
	set_shape(&a, shape, d->n_used);
	bool now = cuda_segment_add_deferred(b, d);
	if (shape->gate.type == DTYPE_Q2_K)
		experts_launch_as<DTYPE_Q2_K, true>(b, &a, now);
	else
		experts_launch_as<DTYPE_IQ2_XXS, true>(b, &a, now);
}
