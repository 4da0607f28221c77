/* SPDX-License-Identifier: MIT */
/*
 * Private to kernels/cuda: the state of the backend, and what every op uses to launch its kernels.
 *
 * An op on the host, in order:
 *   1. cuda_begin(base, "name"): false after a failure: the op does nothing;
 *   2. cuda_scratch, cuda_allow_shared: what its kernels need; on failure the op returns;
 *   3. cuda_launch.
 *
 * One stream; every op enqueues and returns. A launch that is refused becomes the backend's failure
 * under the op's name. A fault on the device shows at the next wait, launch or copy, under the name
 * of the op that was enqueued last; a kernel that reached its poll limit (poll.cuh) is named too.
 */
#ifndef GLM_KERNELS_CUDA_GPU_BACKEND_CUH
#define GLM_KERNELS_CUDA_GPU_BACKEND_CUH

extern "C" {
#include "kernels/backend.h"
#include "kernels/backend_kinds.h"
}
#include "kernels/cuda/common/device_math.cuh"
#include "kernels/cuda/common/poll.cuh"
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
#define DECODE_MAX_ROWS      64  /* rows of a step for decode kernels; prefill's have more */
#define CUDA_KERNELS         512 /* with more than 40 KiB of shared memory; a power of two */

/* The most that the scratch buffers of struct cuda_backend take, computed for rows of up to 6144
 * values and experts of 2048. In MB:
 *   gemm_panels    the largest of: dense products 412 (GEMM_W_MOST, X_MOST and a tile of x);
 *                  experts from packed blocks 352 (in two passes 320); experts with unpacked
 *                  weights 403 (252 of them weights; in two passes 374)
 *   scratch        134 (attend.cu)
 *   gemv_partials  17
 *   mla_flags      23
 *   limbs          7 (64 rows of 64 heads of 512)
 * These are 593; flags, hidden rows and other buffers of 1 MiB take the rest. */
#define CUDA_SCRATCH_MOST ((size_t)600000000)

/* A captured graph takes memory of the card. After a failure for want of memory so many segments
 * (some hundred steps) are not captured. */
#define CUDA_CAPTURE_PAUSE 4096

/* Device memory of one use. It grows when an op needs more than any before it, and never shrinks.
 * Ops run in order: an op's scratch memory is free when the next op writes. */
struct scratch_buffer {
	void *data;
	size_t bytes;
};

/* A deferred expert kernel in a captured segment. */
struct deferred_experts {
	const float *x;
	float *out;
	int n_used;
	struct expert_job shape;
	uint64_t n_fences;  /* of the segment, before it */
	bool has_successor; /* the segment has ops behind it */
};

/* The dynamic shared memory that a kernel has been allowed. */
struct kernel_shared {
	const void *kernel; /* NULL: free */
	size_t bytes;
};

struct cuda_timeline;
struct cuda_profile;
struct cuda_fence;
struct mailbox_state;
struct chain_state;

/* All fields belong to the thread that computes. */
struct cuda_backend {
	struct backend base;

	/* The device; constant */
	int device;
	int n_sm;
	size_t max_shared; /* dynamic shared memory that a block may use */
	bool has_wgmma;    /* wgmma_gemm.cuh, attend_wgmma.cu */
	bool has_pdl;      /* programmatic dependent launch; compute capability 9.0 and newer */
	bool no_graphs;
	bool no_deferred;
	bool exact_prompts; /* two passes (gemm.cuh) */
	char text[512];
	struct cuda_tables *tables; /* device */
	uint32_t *stalled;          /* pinned: enum poll_kernel of a kernel that gave up, or 0 */
	struct kernel_shared kernel_shared[CUDA_KERNELS]; /* hash table by kernel */
	bool merge_carveout_set;                          /* attend_mma.cu */
	/* Whether a kernel fits the device: 0 not known yet, 1 yes, 2 no. mla: [with the output
	 * projection][rows - 1]; chain: all forms */
	int mla_supported[2][5], ffn_supported, chain_supported;

	/* The stream */
	cudaStream_t stream;
	const char *op;       /* the op enqueued last */
	bool next_serialized; /* the next kernel must not start early: what precedes it in the stream is
							 no kernel, or writes weights */
	bool capturing;       /* ops are being captured, not run */
	uint32_t capture_pause; /* so many segments are not captured: the card had no memory */
	uint64_t generation; /* of the scratch buffers: segments captured with an older one are void */

	/* Scratch memory */
	struct scratch_buffer scratch;         /* cuda_scratch */
	struct scratch_buffer limbs;           /* activations as int8 limbs (gemv_mma.cuh) */
	struct scratch_buffer gemv_partials;   /* gemv_many.cuh */
	struct scratch_buffer gemm_panels;     /* gemm.cu, experts_prefill.cu */
	struct scratch_buffer deferred_hidden; /* hidden rows of deferred experts: scratch may still be
											  in use by the op before */
	/* Device memory by which the blocks of one launch synchronise. Kernels leave it as they found
	 * it: zero, or FLAG_EMPTY (mla_flags, ffn_flags). */
	struct scratch_buffer index_counts; /* indexer_mma.cu */
	struct scratch_buffer mla_flags;    /* mla.cu */
	struct scratch_buffer ffn_flags;    /* ffn_fused.cu */
	struct scratch_buffer route_flags;  /* route.cu */
	struct chain_state *chain;          /* gemv_chain.cuh */

	/* Progress counters of experts_kernel (experts_fused.cu): they only grow. progress_expected:
	 * their values when all that was enqueued has run. */
	struct scratch_buffer expert_progress;
	uint32_t progress_expected[64];

	/* Deferred experts (deferred_experts.cu) */
	struct mailbox_state *mailbox_state;     /* device */
	unsigned long long *mailbox;             /* pinned [MAILBOX_WORDS] */
	const struct deferred_experts *deferred; /* of the latest segment: those that still wait for
												messages ... */
	int n_deferred;                          /* ... and their number */
	uint64_t deferred_sequence;              /* sequence number of the first of them */
	uint64_t deferred_fence;                 /* backend.fence_value before the segment */
	unsigned posted_ranks;                   /* of the first of them */
	bool deferred_lost; /* some were given up before ops that read their output; until wait,
						   segment_begin or segments_drop */

	/* Uploads and small downloads pass through pinned memory. The staging buffers form a ring; each
	 * is filled front to back. */
	uint8_t *staging;                       /* [CUDA_STAGING_BUFFERS][CUDA_STAGING_BYTES] */
	cudaEvent_t sent[CUDA_STAGING_BUFFERS]; /* recorded when the buffer is full */
	int staging_buffer;                     /* number of the buffer in use ... */
	size_t staging_used;                    /* ... and its bytes in use */
	uint8_t *download_buffer;               /* [CUDA_DOWNLOAD_BYTES] */
	float *observed;                        /* host copies of observed rows (gpu_observe.cu) ... */
	int64_t observed_floats;                /* ... and their space */

	/* Fences, graph segments, profiling (timeline.cuh) */
	struct cuda_timeline *timeline;
	bool profiling, in_interval; /* measure is on; the latest profile event began an interval */
	struct backend_usage used;
};

static inline struct cuda_backend *cuda_of(struct backend *b)
{
	return (struct cuda_backend *)b;
}

/* Makes a device the calling thread's current one, on which CUDA launches and allocates. All of the
 * program selects devices by this function, which remembers the last one. */
cudaError_t cuda_select(int device);

/* ---- failures ---- */

/* Keeps a refused launch, copy or setting as the failure. Returns whether all is well. */
bool cuda_check(struct cuda_backend *b, cudaError_t rc);

/* Of a failed allocation or pinning. ERR_MEMORY: the system does not give the memory or does not
 * pin it. ERR_RUN: the call returned a fault of the device. */
int cuda_memory_code(cudaError_t rc);

/* Keeps a fault of the device; names the kernel that reached its poll limit, if one has. */
void cuda_device_fault(struct cuda_backend *b, cudaError_t rc);

/* ---- profiling: no effect unless `measure` is on ---- */

/* An interval begins, unless one has begun already. */
void cuda_profile_begin(struct cuda_backend *b, enum usage_kind kind);
/* All that was enqueued is to be waited for: the interval ends. */
void cuda_profile_end(struct cuda_backend *b);

/* ---- launches ---- */

/* Remembers the op's name. False when an earlier op failed: the op must do nothing. */
static inline bool cuda_begin(struct backend *b, const char *op)
{
	cuda_of(b)->op = op;
	cuda_select(cuda_of(b)->device);
	if (cuda_of(b)->profiling && !b->failure.code)
		cuda_profile_begin(cuda_of(b), USAGE_OTHER);
	return !b->failure.code;
}

/* After a launch with <<<>>>. */
static inline void cuda_launched(struct cuda_backend *b)
{
	cuda_check(b, cudaGetLastError());
	b->used.launches += !b->capturing;
}

/* Programmatic dependent launch, on the device. A kernel that cuda_launch enqueues may start while
 * the kernel before it still runs. */

/* Lets the next kernel of the stream start, once all blocks have called it or ended. */
static __device__ __forceinline__ void launch_dependents()
{
#if __CUDA_ARCH__ >= 900
	cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* Waits until all kernels before this one have ended. What they wrote can be read from here on. */
static __device__ __forceinline__ void grid_dependency_wait()
{
#if __CUDA_ARCH__ >= 900
	cudaGridDependencySynchronize();
#endif
}

/* attrs: space for one more than the caller adds */
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

/* Enqueues a kernel that may start while the op before it still runs. Precondition: before it reads
 * or writes anything but weights the kernel calls grid_dependency_wait. Only uploads write weights,
 * and they set next_serialized. Exception: wgmma_gemm_kernel (grouped_gemm_args.beside). */
template <typename... P, typename... A>
static void cuda_launch(struct cuda_backend *b, void (*kernel)(P...), dim3 grid, unsigned block,
	size_t shared, A... args)
{
	cudaLaunchAttribute early;
	cudaLaunchConfig_t c = cuda_launch_config(b, grid, block, shared, &early);
	cuda_check(b, cudaLaunchKernelEx(&c, kernel, P(args)...));
	b->used.launches += !b->capturing;
}

/* The same in clusters of `size` blocks (compute capability 9.0 and newer). */
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

/* Lets a kernel use `bytes` of dynamic shared memory. False: the failure is kept. */
bool cuda_allow_shared(struct cuda_backend *b, const void *kernel, size_t bytes);

/* Frees a buffer whose first contents could not be set, so that no op uses it after `recover`. The
 * next cuda_scratch_reserve allocates it again. */
void cuda_scratch_free(struct scratch_buffer *buffer);

/* `bytes` of device memory, 256-byte aligned. NULL: the failure is kept. The address stays the same
 * unless a call needs more than any before it; then all of it is zero, and the stream is empty.
 * (Tiles of gemm.cuh read rows of a panel behind the last one, whose products are not stored.) */
void *cuda_scratch_reserve(struct cuda_backend *b, struct scratch_buffer *buffer, uint64_t bytes);

/* For the running op; what the op before had is gone. One call for each op. */
static inline void *cuda_scratch(struct cuda_backend *b, uint64_t bytes)
{
	return cuda_scratch_reserve(b, &b->scratch, bytes);
}

/* The argument of a kernel that polls (poll.cuh). */
static inline struct poll_report cuda_poll_report(
	const struct cuda_backend *b, enum poll_kernel kernel)
{
	return {b->stalled, (uint32_t)kernel};
}

/* ---- fences, graph segments, profiling ---- */

/* Fences (fence.cu). A kernel that ends with a fence: pass it cuda_fence_next, which counts it, and
 * enqueue it next; it calls fence_signal (signals.cuh). cuda_fence_enqueue: a kernel that does only
 * that. */
struct cuda_fence cuda_fence_next(struct cuda_backend *b);
void cuda_fence_enqueue(struct cuda_backend *b, struct cuda_fence next);
uint64_t cuda_fence(struct backend *b);
int cuda_fence_wait(struct backend *b, uint64_t fence, struct err *e);
bool cuda_fence_signaled(struct backend *b, uint64_t fence);
int cuda_wait_expert_ids(struct backend *b, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e);
/* Polls until the fence is signaled, also after the failure of an op; or until the
 * wait has failed; the failure is kept. */
void cuda_fence_poll(struct cuda_backend *b, uint64_t fence);

/* Counts ops that were left out as run: every fence so far is signaled. The stream is idle. */
cudaError_t cuda_fences_catch_up(struct cuda_backend *b);

/* Graph segments (graph.cu) */
enum segment_mode cuda_segment_begin(struct backend *b, uint64_t key);
void cuda_segment_end(struct backend *b);
void cuda_segments_drop(struct backend *b);
/* Adds a deferred kernel to the segment being captured. False: none is, or a failure is kept. */
bool cuda_segment_add_deferred(struct cuda_backend *b, const struct deferred_experts *d);
/* By the first op behind a deferred kernel: its kernel calls profile_next_interval with the result.
 * NULL: the op is not the first behind a deferred kernel. */
struct cuda_profile *cuda_deferred_successor(struct cuda_backend *b);

/* Profiling (profile.cu) */
void cuda_usage(struct backend *b, struct backend_usage *out);
void cuda_measure(struct backend *b, bool on);
struct cuda_profile *cuda_profile_events(struct cuda_backend *b); /* device */
void cuda_profile_drained(struct cuda_backend *b); /* the stream has been waited for */

/* ---- deferred experts (deferred_experts.cu) ---- */

bool cuda_can_defer_experts(struct backend *b, const struct expert_job *shape, int n_used);
void cuda_experts_deferred(
	struct backend *b, const float *x, const struct expert_job *shape, int n_used, float *out);
void cuda_deferred_close(struct cuda_backend *b);
void cuda_expert_results(struct backend *b, const float *x, const float *results,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, int n_embd, float *out);
/* Posts these jobs to the first deferred kernel that still waits. Returns whether that kernel
 * computes them. If there is such a kernel but the jobs are not for it, or it cannot compute them,
 * MAILBOX_SKIP is posted for its remaining ranks. When false, the caller launches the jobs, but not
 * if deferred_lost. */
bool cuda_deferred_post(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, const float *out);
/* Before the host waits for the device: posts MAILBOX_SKIP for all remaining ranks of all deferred
 * kernels. */
void cuda_deferred_drain_all(struct cuda_backend *b);
static inline void cuda_deferred_drain(struct cuda_backend *b)
{
	if (b->n_deferred)
		cuda_deferred_drain_all(b);
}

/* ---- ops ---- */

int cuda_copier_open(struct backend *b, struct copier **out, struct err *e);
void cuda_embed(struct backend *b, struct weight table, const int32_t *ids, int rows, float *out);
void cuda_rms_norm(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms,
	int n_norms, float eps, int rows, int n, int64_t out_stride);
void cuda_swiglu(struct backend *b, const float *gate, const float *up, int64_t n, float *out);
void cuda_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin);
void cuda_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
	float *y, int64_t y_stride, int rows, int n_heads);
/* latents without its products: one kernel for each part */
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
void cuda_store_rows(struct backend *b, const struct batch *rows, const struct cache_view *from,
	const struct cache_view *to, int n_value);
void cuda_fetch_rows(struct backend *b, const struct batch *rows, const struct fetch_rows *a);
void cuda_attend(struct backend *b, const struct batch *rows, const struct attend *a);
void cuda_mla(struct backend *b, const struct batch *rows, const struct mla *a);
void cuda_route(struct backend *b, const struct route *a, int n, int rows);
void cuda_expert_ffn(struct backend *b, const float *x, const struct expert_job *jobs, int n_jobs,
	int rows, int n_used, float *out);
void cuda_moe_combine(struct backend *b, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x, const struct norm *next, float eps);
void cuda_draw(struct backend *b, const float *logits, int64_t stride, int32_t n,
	const struct draw_request *requests, int rows, struct draw_result *out);

#endif
