/* SPDX-License-Identifier: MIT */
/*
 * Private to kernels/cuda: the backend's state, failures, scratch, and the small device functions
 * that all kernels share.
 *
 * One stream; every op enqueues and returns. A launch that is refused is kept as the backend's
 * failure under the op's name; a fault on the device shows at the next wait, under the name of the
 * op that was enqueued last.
 *
 * The exponential is the CPU backend's, step by step (kernels/cpu/cpu_lanes.h), so that router
 * scores are the same bits.
 */
#ifndef GLM_KERNELS_CUDA_GPU_BACKEND_CUH
#define GLM_KERNELS_CUDA_GPU_BACKEND_CUH

extern "C" {
#include "kernels/backend.h"
#include "kernels/backend_kinds.h"
}
#include "src/quant/iq_grids.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* The codebooks of the IQ types as one block of device memory, rows in 32-bit words. */
struct cuda_tables {
	uint32_t iq2xxs[512], iq2xs[1024], iq2s[2048], iq3xxs[256], iq3s[512];
	uint16_t iq1s[2048];
	uint8_t signs[128];
	int8_t iq4nl[16];
	uint32_t iq2xxs_nibbles[256]; /* which of 8, 25, 43 each weight of a row is, four bits each */
	uint32_t sign_nibbles[128];   /* 4 where the weight is negative */
};

#define CUDA_STAGING_BUFFERS 4
#define CUDA_STAGING_BYTES   ((size_t)4 << 20)
#define CUDA_DOWNLOAD_BYTES  ((size_t)1 << 20)
#define CUDA_CHAIN_VALUES    32768 /* between two steps of gemv_chain_kernel, at most */

/* What the rooms of struct cuda_backend come to at most, for rows of up to 6144 values into panels
 * (gemm.cuh) or experts of 2048 (experts_prefill.cu) and the scores of the longest context.
 */
#define CUDA_SCRATCH_MOST ((size_t)600000000)

/* Experts of a deferred kernel at most, their words (deferred_experts.cu), after how many deferred
 * kernels fence values begin again (even), and where an expert is that is not for the deferred
 * kernel. */
#define MAILBOX_RANKS     8
#define MAILBOX_WORDS     (4 * MAILBOX_RANKS)
#define MAILBOX_SEQUENCES 65534
#define MAILBOX_SKIP      1

/* On the device: block 0's copies of the words, of each round of a deferred kernel, and stages of
 * gate and up of each rank that are done; of this launch or the next, where they are zero until
 * then. And how many blocks of deferred kernels there were. */
struct mailbox_state {
	unsigned long long copy[2][MAILBOX_RANKS][MAILBOX_WORDS]; /* to 16 bytes */
	uint32_t counts[2][MAILBOX_RANKS];
	uint32_t arrived;
};

/* a deferred kernel: what the call asked for, how many fences its recording has before it, and
 * whether it has more ops behind it. */
struct deferred_experts {
	const float *x;
	float *out;
	int n_used;
	struct expert_job like;
	uint64_t n_fences;
	bool has_successor;
};

/* On the device: clocks where stretches begin and end, in turns; ring: [PROFILE_EVENTS], NULL while
 * nothing is measured. */
#define PROFILE_EVENTS 65536
struct cuda_profile {
	unsigned long long n;
	unsigned long long *ring;
	unsigned long long
		waited; /* for the host between experts of one deferred kernel, in stretches of experts */
};

struct scratch_buffer {
	void *data;
	size_t bytes;
};

struct cuda_backend {
	struct backend base;
	int device;
	int n_sm;
	size_t max_shared;    /* dynamic shared memory that a block may ask for */
	bool has_wgmma;       /* products of many rows may go through wgmma_gemm.cuh */
	bool has_pdl;         /* kernels may start before the one before them has ended, see cuda_launch
								  ... */
	bool next_serialized; /* ... but not the next: what stands before it is no kernel, or not alone
						   */
	cudaStream_t stream;
	const char *op; /* the op enqueued last */
	char text[512];
	struct cuda_tables *tables; /* device */
	/* Device memory of the running op: grown when an op needs more than any before it, never
	 * shrunk. Ops run in order, so one op's scratch is free when the next one writes. */
	struct scratch_buffer scratch; /* cuda_scratch */
	struct scratch_buffer
		index_counts; /* counts of index_select, zero between ops (indexer_mma.cu) */
	struct scratch_buffer gemm_panels; /* products of many rows (gemm.cu) */
	struct scratch_buffer
		mla_flags; /* where the blocks of mla_kernel meet, empty between ops (mla.cu) */
	struct scratch_buffer
		route_flags; /* where those of gate_kernel do, zero between ops (route.cu) */
	struct scratch_buffer ffn_flags; /* where those of ffn_kernel do (ffn_fused.cu) */
	struct scratch_buffer limbs;     /* activations as the matrix units want them (gemv_mma.cuh) */
	/* Progress of experts_kernel (experts_fused.cu) in the stream counts_of, never set back;
	 * expert_counts: what it is when all that was enqueued has run. */
	struct scratch_buffer expert_progress;
	cudaStream_t progress_stream;
	uint32_t progress_expected[64];
	/* Experts that wait for words (deferred_experts.cu). deferred kernels: those of the latest
	 * launch that have not been told everything, the first one of the fence value
	 * deferred_sequence; deferred_fence: fences before the launch; posted_ranks: ranks that the
	 * first one has been told. deferred_lost: they were given up, and nobody has waited since. */
	struct mailbox_state *mailbox_state;
	struct scratch_buffer deferred_hidden;   /* hidden rows: the op before, which may still run, has
												the scratch memory */
	unsigned long long *mailbox;             /* pinned [MAILBOX_WORDS] */
	const struct deferred_experts *deferred; /* of its recording */
	int n_deferred;
	uint64_t deferred_sequence, deferred_fence;
	unsigned posted_ranks;
	bool deferred_lost;
	bool no_deferred;          /* constant */
	struct chain_state *chain; /* device (gemv_chain.cuh) */
	/* Uploads pass through pinned memory: a ring of stages, filled front to back; `sent` is
	 * recorded when one is full. */
	uint8_t *staging; /* [CUDA_STAGING_BUFFERS][CUDA_STAGING_BYTES] */
	cudaEvent_t sent[CUDA_STAGING_BUFFERS];
	int stage;
	size_t stage_used;
	uint8_t *download_buffer; /* [CUDA_DOWNLOAD_BYTES] pinned: small downloads pass through it */
	struct cuda_timeline *timeline; /* fences, graphs, timing: graph.cu */
	bool no_graphs;                 /* constant */
	bool capturing;                 /* ops are being recorded, not run */
	bool profiling, in_interval;    /* see cuda_note */
	uint64_t generation;            /* of the scratch memory: recordings of an older one are void */
	struct backend_usage used;
};

static inline struct cuda_backend *cuda_of(struct backend *b)
{
	return (struct cuda_backend *)b;
}

/* While measuring: a stretch of ops begins (unless one has begun already), or all that was enqueued
 * is to be waited for, so that the stretch ends. Notes the device's clock. */
void cuda_profile_begin(struct cuda_backend *b, enum usage_kind kind);
void cuda_profile_end(struct cuda_backend *b);

/* False when an earlier op failed: the op must do nothing. Remembers the op's name. */
static inline bool cuda_begin(struct backend *b, const char *op)
{
	cuda_of(b)->op = op;
	if (cuda_of(b)->profiling && !b->failure.code)
		cuda_profile_begin(cuda_of(b), USAGE_OTHER);
	return !b->failure.code;
}

/* Keeps a refused launch, copy or setting. Returns whether all is well. */
bool cuda_check(struct cuda_backend *b, cudaError_t rc);

/* After a launch. */
static inline void cuda_launched(struct cuda_backend *b)
{
	cuda_check(b, cudaGetLastError());
	b->used.launches += !b->capturing;
}

/* Lets the next kernel of the stream begin to start. */
static __device__ __forceinline__ void launch_dependents()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Everything before this kernel in the stream is done from here on, and what it wrote can be read.
 */
static __device__ __forceinline__ void grid_dependency_wait()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Where fences are counted (device) and shown to the host (pinned). */
struct cuda_fence {
	unsigned long long *count;
	volatile unsigned long long *reached;
};

/* By one thread, when everything before its kernel has been waited for; then again, with what the
 * first call gave, when the block has met after writing what the host is to read. */
static __device__ __forceinline__ unsigned long long fence_next_value(const struct cuda_fence &m)
{
	return *m.count + 1;
}

static __device__ __forceinline__ void fence_signal(
	const struct cuda_fence &m, unsigned long long n)
{
	__threadfence_system(); /* for all that the thread knows of, the writes of the block included */
	*m.reached = n;
	*m.count = n;
}

/* The same where the kernel has written nothing for the host but expert ids, which say of
 * themselves that they have come: the fence takes 1 to 3 us. */
static __device__ __forceinline__ void fence_signal_relaxed(
	const struct cuda_fence &m, unsigned long long n)
{
	*m.reached = n;
	*m.count = n;
}

/* attrs: room for one */
static inline cudaLaunchConfig_t cuda_launch_config(
	struct cuda_backend *b, dim3 grid, unsigned block, size_t shared, cudaLaunchAttribute *attrs)
{
	cudaLaunchConfig_t c = {};
	attrs->id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attrs->val.programmaticStreamSerializationAllowed = 1;
	c.gridDim = grid;
	c.blockDim = dim3(block);
	c.dynamicSmemBytes = shared;
	c.stream = b->stream;
	c.attrs = attrs;
	c.numAttrs = b->has_pdl && !b->next_serialized;
	b->next_serialized = false;
	return c;
}

/* Enqueues a kernel that may start while the op before it still runs (compute capability 9 and
 * newer): before it reads or writes anything but weights it calls grid_dependency_wait. Weights are
 * never written by kernels. */
template <typename... P, typename... A>
static void cuda_launch(struct cuda_backend *b, void (*kernel)(P...), dim3 grid, unsigned block,
	size_t shared, A... args)
{
	cudaLaunchAttribute early;
	cudaLaunchConfig_t c = cuda_launch_config(b, grid, block, shared, &early);
	cuda_check(b, cudaLaunchKernelEx(&c, kernel, P(args)...));
	b->used.launches += !b->capturing;
}

/* The same in clusters of `size` blocks (compute capability 9 and newer). */
template <typename... P, typename... A>
static void cuda_launch_clusters(struct cuda_backend *b, void (*kernel)(P...), unsigned clusters,
	unsigned size, unsigned block, A... args)
{
	cudaLaunchAttribute attrs[2] = {};
	cudaLaunchConfig_t c = cuda_launch_config(b, clusters * size, block, 0, attrs);
	attrs[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
	attrs[c.numAttrs].val.clusterDim.x = size;
	attrs[c.numAttrs].val.clusterDim.y = attrs[c.numAttrs].val.clusterDim.z = 1;
	c.numAttrs++;
	cuda_check(b, cudaLaunchKernelEx(&c, kernel, P(args)...));
	b->used.launches += !b->capturing;
}

/* 256-byte aligned device memory for the running op, contents undefined; NULL: the failure is kept.
 */
void *cuda_scratch_reserve(struct cuda_backend *b, struct scratch_buffer *room, uint64_t bytes);

static inline void *cuda_scratch(struct cuda_backend *b, uint64_t bytes)
{
	return cuda_scratch_reserve(b, &b->scratch, bytes);
}

/* Lets a kernel use `bytes` of dynamic shared memory. *allowed: what it may use already, one static
 * variable per kernel (one thread computes). False: the failure is kept. */
bool cuda_allow_shared(struct cuda_backend *b, const void *kernel, size_t bytes, size_t *allowed);

/* ---- ops, by file
 * --------------------------------------------------------------------------------------- */

/* Fences, graphs and usage (graph.cu). */
cudaError_t cuda_timeline_open(struct cuda_backend *b);
void cuda_timeline_close(struct cuda_backend *b);
void cuda_profile_drained(struct cuda_backend *b); /* the stream has been waited for */
/* For a kernel that ends with a fence (fence_signal), enqueued next; counted by the call. */
struct cuda_fence cuda_fence_next(struct cuda_backend *b);
void cuda_fence_enqueue(
	struct cuda_backend *b, struct cuda_fence next); /* enqueues a kernel for it */
uint64_t cuda_fence(struct backend *b);
int cuda_fence_wait(struct backend *b, uint64_t fence, struct err *e);
int cuda_wait_expert_ids(struct backend *b, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e);
bool cuda_fence_signaled(struct backend *b, uint64_t fence);
enum segment_mode cuda_segment_begin(struct backend *b, uint64_t key);
void cuda_segment_end(struct backend *b);
void cuda_segments_drop(struct backend *b);
void cuda_usage(struct backend *b, struct backend_usage *out);
void cuda_measure(struct backend *b, bool on);

/* Spins until a fence has come, also when an op failed before, or there is no use in waiting: a
 * failure is kept then. */
void cuda_fence_spin(struct cuda_backend *b, uint64_t fence);
/* If ops are being recorded: the recording has this deferred kernel from now on. False: they are
 * not, or a failure is kept. */
bool cuda_segment_add_deferred(struct cuda_backend *b, const struct deferred_experts *w);
struct cuda_profile *cuda_profile_events(struct cuda_backend *b);
/* For the first op behind a deferred kernel: NULL if that is not what the op in hand is; else its
 * kernel calls profile_next_interval. */
struct cuda_profile *cuda_deferred_successor(struct cuda_backend *b);

/* Deferred kernels (deferred_experts.cu). */
bool cuda_can_defer_experts(struct backend *b, const struct expert_job *like, int n_used);
void cuda_experts_deferred(
	struct backend *b, const float *x, const struct expert_job *like, int n_used, float *out);
void cuda_deferred_close(struct cuda_backend *b);
/* Tells the deferred kernel in hand, if there is one, of these jobs; if they are not for it or it
 * cannot compute them, that there is nothing more to compute. Returns whether it computes them.
 * Else the caller launches them, but not if deferred_lost. */
bool cuda_deferred_post(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, const float *out);
/* Before the host waits for the device: there is nothing more to compute, for all deferred kernels.
 */
void cuda_deferred_drain_all(struct cuda_backend *b);
static inline void cuda_deferred_drain(struct cuda_backend *b)
{
	if (b->n_deferred)
		cuda_deferred_drain_all(b);
}

int cuda_copier_open(struct backend *b, struct copier **out, struct err *e); /* gpu_copier.cu */

void cuda_embed(struct backend *b, struct weight table, const int32_t *ids, int rows, float *out);
void cuda_rms_norm(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms,
	int n_norms, float eps, int rows, int n, int64_t out_stride);
void cuda_swiglu(struct backend *b, const float *gate, const float *up, int64_t n, float *out);
void cuda_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin);
void cuda_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
	float *y, int64_t y_stride, int rows, int n_heads);
/* latents without its products */
void cuda_latents_unfused(
	struct backend *b, const struct batch *rows, const struct rope *rope, const struct latents *a);
void cuda_latents(
	struct backend *b, const struct batch *rows, const struct rope *rope, const struct latents *a);
void cuda_matmul(
	struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);
cudaError_t gemv_chain_open(struct cuda_backend *b); /* gemv_chain.cu */
/* ffn up to the hidden values */
void cuda_matmul_glu(struct backend *b, const struct ffn *a, int rows);
void cuda_ffn(struct backend *b, const struct ffn *a, int rows);
void cuda_stacked_matmul(struct backend *b, const struct stacked_matmul *a, int rows);
void cuda_index_select(struct backend *b, const struct batch *rows, const struct index_select *a);
void cuda_attend(struct backend *b, const struct batch *rows, const struct attend *a);
void cuda_mla(struct backend *b, const struct batch *rows, const struct mla *a);
void cuda_route(struct backend *b, const struct route *a, int n, int rows);
void cuda_expert_ffn(struct backend *b, const float *x, const struct expert_job *jobs, int n_jobs,
	int rows, int n_used, float *out);
void cuda_moe_combine(struct backend *b, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x, const struct norm *next, float eps);

/* ---- device functions
 * ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ unsigned long long device_clock()
{
	unsigned long long t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
	return t;
}

/* By one thread, when everything before its kernel has been waited for; ring: asked for before. */
static __device__ __forceinline__ void profile_next_interval(
	struct cuda_profile *profile, unsigned long long *ring)
{
	unsigned long long now = device_clock();
	ring[profile->n++ % PROFILE_EVENTS] = now;
	ring[profile->n++ % PROFILE_EVENTS] = now;
}

/* Sums over the warp by a butterfly: every lane gets the same bits. */
template <typename T> static __device__ __forceinline__ T warp_sum(T v)
{
#pragma unroll
	for (int step = 16; step; step /= 2)
		v += __shfl_xor_sync(0xffffffffu, v, step);
	return v;
}

/* Sum over a block of whole warps, at most 32: the warps by a butterfly too; every thread gets it.
 * `scratch`: shared, 32 values; free again after the next barrier. */
template <typename T> static __device__ __forceinline__ T block_sum(T v, T *scratch)
{
	int lane = threadIdx.x % 32;
	v = warp_sum(v);
	__syncthreads();
	if (!lane)
		scratch[threadIdx.x / 32] = v;
	__syncthreads();
	return warp_sum(lane < (int)blockDim.x / 32 ? scratch[lane] : (T)0);
}

/* e^x within 1 unit in the last place; the steps of lanes_exp. */
static __device__ __forceinline__ float exp_exact(float x)
{
	x = x < -104.0f ? -104.0f : x;
	x = x > 89.0f ? 89.0f : x;
	float shifted = __fmaf_rn(x, 0x1.715476p+0f, 0x1.8p+23f), n = __fadd_rn(shifted, -0x1.8p+23f);
	float r = __fmaf_rn(n, -0x1.62e4p-1f, x);
	r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
	float q = 0x1.a01a02p-13f;
	q = __fmaf_rn(q, r, 0x1.6c16c2p-10f);
	q = __fmaf_rn(q, r, 0x1.111112p-7f);
	q = __fmaf_rn(q, r, 0x1.555556p-5f);
	q = __fmaf_rn(q, r, 0x1.555556p-3f);
	q = __fmaf_rn(q, r, 0.5f);
	float y = __fadd_rn(__fmaf_rn(__fmul_rn(q, r), r, r), 1.0f);
	int whole = __float_as_int(shifted) - 0x4b400000, half = whole >> 1;
	return __fmul_rn(__fmul_rn(y, __int_as_float((half + 127) << 23)),
		__int_as_float((whole - half + 127) << 23));
}

static __device__ __forceinline__ float sigmoid_exact(float x)
{
	return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_exact(-x)));
}

static __device__ __forceinline__ float swiglu_one(float gate, float up)
{
	return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, exp_exact(-gate))), up);
}

/* Unsigned keys in the order of the floats they stand for; -0 equals +0 and NaN is below
 * everything. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
	uint32_t u = __float_as_uint(__fadd_rn(v, 0.0f));
	return v != v ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* v turned by an angle given as (cosine, sine) */
static __device__ __forceinline__ float2 rotated(float2 angle, float2 v)
{
	float c = angle.x, s = angle.y;
	return make_float2(__fsub_rn(__fmul_rn(v.x, c), __fmul_rn(v.y, s)),
		__fadd_rn(__fmul_rn(v.x, s), __fmul_rn(v.y, c)));
}

/* Value i of a cache row, or of any run of F32 or F16. */
static __device__ __forceinline__ float cache_load(const void *data, bool is_half, int64_t i)
{
	return is_half ? __half2float(((const __half *)data)[i]) : ((const float *)data)[i];
}

#endif
