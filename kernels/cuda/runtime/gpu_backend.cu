/* SPDX-License-Identifier: MIT */
/*
 * The CUDA backend: its table, device, memory, copies and failures.
 *
 * Uploads by size:
 *   - at most PAYLOAD bytes (token ids, positions): as arguments of payload_kernel; grid 1, block
 *     256;
 *   - at most PULL_MOST bytes (lists of a prompt's experts): pull_kernel reads them from a staging
 *     buffer in pinned memory; grid: a block for 4,096 bytes, block 256;
 *   - more (weights), or to an address that is no multiple of 16: by a copy engine from the ring of
 *     staging buffers.
 * A copy engine takes its copies in order, and while experts are streamed it has megabytes to copy
 * first: an op that needs a list would wait for them.
 */
#include "kernels/cuda/library/cublas.cuh"
#include "kernels/cuda/runtime/timeline.cuh"
extern "C" {
#include "src/base/host/pages.h"
#include "src/base/log.h"
}

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD     1024
#define PULL_MOST   ((size_t)512 << 10)
#define CUDA_QUEUES 8 /* hardware queues, unless the environment asks for fewer */
/* From this size on it pays to ask the driver whether the destination of a download is pinned. */
#define CUDA_DIRECT_BYTES ((size_t)16 << 10)

struct payload {
	uint8_t byte[PAYLOAD];
};

static __global__ void payload_kernel(const __grid_constant__ struct payload p, uint8_t *dst, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		dst[i] = p.byte[i];
}

/* The addresses are multiples of 16; from: pinned memory, which unified addressing maps. Reads up
 * to 15 bytes past `bytes`: staging buffers are a multiple of 256 long. */
static __global__ void __launch_bounds__(256)
	pull_kernel(const uint4 *from, uint8_t *dst, uint32_t bytes)
{
	uint32_t i = blockIdx.x * 256 + threadIdx.x;
	if (16 * i >= bytes)
		return;
	uint4 v = from[i];
	if (16 * i + 16 <= bytes)
		((uint4 *)dst)[i] = v;
	else
		memcpy(dst + 16 * i, &v, bytes - 16 * i);
}

cudaError_t cuda_select(int device)
{
	static thread_local int selected = -1;
	if (selected == device)
		return cudaSuccess;
	cudaError_t rc = cudaSetDevice(device);
	if (rc == cudaSuccess)
		selected = device;
	return rc;
}

/* The kernel that reached its poll limit, POLL_NONE if none has. */
static uint32_t poll_stalled(const struct cuda_backend *b)
{
	return b->stalled ? __atomic_load_n(b->stalled, __ATOMIC_RELAXED) : (uint32_t)POLL_NONE;
}

bool cuda_check(struct cuda_backend *b, cudaError_t rc)
{
	if (rc == cudaSuccess)
		return true;
	if (poll_stalled(b)) /* any call returns the error of the trap */
		cuda_device_fault(b, rc);
	if (!b->base.failure.code)
		err_set(&b->base.failure, rc == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_RUN,
			"cuda: %s: %s", b->op, cudaGetErrorString(rc));
	return false;
}

int cuda_memory_code(cudaError_t rc)
{
	switch (rc) {
	case cudaErrorMemoryAllocation:
	case cudaErrorInvalidValue:
	case cudaErrorHostMemoryAlreadyRegistered:
	case cudaErrorOperatingSystem:
	case cudaErrorNotPermitted:
	case cudaErrorNotSupported:
		return ERR_MEMORY;
	default:
		return ERR_RUN;
	}
}

/* Names of enum poll_kernel. */
static const char *poll_kernel_name(uint32_t kernel)
{
	static const char *const names[] = {
		"", "gemv_chain", "route", "experts", "deferred experts", "ffn", "mla"};
	static_assert(sizeof names / sizeof *names == POLL_KERNELS, "one name for each kernel");
	return kernel < POLL_KERNELS ? names[kernel] : "unknown";
}

void cuda_device_fault(struct cuda_backend *b, cudaError_t rc)
{
	if (b->base.failure.code)
		return;
	uint32_t stalled = poll_stalled(b);
	if (stalled)
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s or an op before it: the %s kernel reached its poll limit (%s)", b->op,
			poll_kernel_name(stalled), cudaGetErrorString(rc));
	else
		err_set(&b->base.failure, ERR_RUN, "cuda: %s or an op before it: %s", b->op,
			cudaGetErrorString(rc));
}

void cuda_scratch_free(struct scratch_buffer *buffer)
{
	cudaFree(buffer->data);
	buffer->data = NULL;
	buffer->bytes = 0;
}

void *cuda_scratch_reserve(struct cuda_backend *b, struct scratch_buffer *buffer, uint64_t bytes)
{
	if (bytes <= buffer->bytes)
		return buffer->data;
	if (b->capturing) { /* the same calls ran once before they are captured, and needed less */
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s: more working memory is needed while capturing", b->op);
		return NULL;
	}
	b->generation++;
	cuda_deferred_drain(b);
	if (!cuda_check(b, cudaStreamSynchronize(b->stream)))
		return NULL;
	cuda_scratch_free(buffer);
	size_t rounded = (bytes + ((size_t)1 << 20) - 1) >> 20 << 20;
	cudaError_t rc = cudaMalloc(&buffer->data, rounded);
	if (rc != cudaSuccess) {
		cudaGetLastError();
		buffer->data = NULL;
		err_set(&b->base.failure, ERR_MEMORY,
			"%s: %.1f MiB of working memory on the card are not available (%s)", b->op,
			(double)bytes / 1048576.0, cudaGetErrorString(rc));
		return NULL;
	}
	if (!cuda_check(b, cudaMemsetAsync(buffer->data, 0, rounded, b->stream)) ||
		!cuda_check(b, cudaStreamSynchronize(b->stream))) {
		cuda_scratch_free(buffer);
		return NULL;
	}
	buffer->bytes = rounded;
	return buffer->data;
}

/* The kernel's entry, a free one if it has none; NULL: the table is full. */
static struct kernel_shared *kernel_shared_find(struct cuda_backend *b, const void *kernel)
{
	uint64_t at = ((uintptr_t)kernel * 0x9e3779b97f4a7c15ull) >> 32;
	for (int i = 0; i < CUDA_KERNELS; i++) {
		struct kernel_shared *k = &b->kernel_shared[(at + (uint64_t)i) % CUDA_KERNELS];
		if (!k->kernel || k->kernel == kernel)
			return k;
	}
	return NULL;
}

/* The attribute belongs to the card in this process, not to a backend. It must never be lowered:
 * another backend of the card may need the larger value. */
static cudaError_t raise_shared(const void *kernel, size_t bytes)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct cudaFuncAttributes now;
	pthread_mutex_lock(&lock);
	cudaError_t rc = cudaFuncGetAttributes(&now, kernel);
	if (rc == cudaSuccess && now.maxDynamicSharedSizeBytes < (int)bytes)
		rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
	pthread_mutex_unlock(&lock);
	return rc;
}

bool cuda_allow_shared(struct cuda_backend *b, const void *kernel, size_t bytes)
{
	/* With the static arrays of the kernels that call this, which are under 8 KiB, it is within the
	 * 48 KiB that need no attribute. */
	if (bytes <= 40 << 10)
		return true;
	struct kernel_shared *k = kernel_shared_find(b, kernel);
	if (k && k->kernel && bytes <= k->bytes)
		return true;
	if (bytes > b->max_shared) {
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s: needs %zu bytes of shared memory, this card gives %zu", b->op, bytes,
			b->max_shared);
		return false;
	}
	if (!cuda_check(b, raise_shared(kernel, bytes)))
		return false;
	if (k)
		*k = {kernel, bytes};
	return true;
}

/* ---- memory ---- */

static size_t cuda_free_bytes(struct backend *b)
{
	size_t left = 0, all = 0;
	cuda_select(cuda_of(b)->device);
	if (cudaMemGetInfo(&left, &all) != cudaSuccess)
		cudaGetLastError();
	return left;
}

/* Memory that every card reads at the host's address. Its pages are populated before the driver
 * registers it: registering then takes 20 ms a GiB (H200), else the driver faults them in one by
 * one. */
static cudaError_t alloc_host(size_t bytes, void **out)
{
	void *p = pages_try_map(bytes), *device = NULL;
	if (!p)
		return cudaErrorMemoryAllocation;
	pages_populate(p, bytes);
	cudaError_t rc = cudaHostRegister(p, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
	if (rc == cudaSuccess) {
		rc = cudaHostGetDevicePointer(&device, p, 0);
		if (rc == cudaSuccess && device != p)
			rc = cudaErrorNotSupported;
		if (rc != cudaSuccess)
			cudaHostUnregister(p);
	}
	if (rc != cudaSuccess)
		pages_unmap(p, bytes);
	else
		*out = p;
	return rc;
}

/* Memory is rounded up to 256 bytes (MEM_HOST to pages): kernels read whole 16-byte lines, which
 * may begin before and end after what they use. */
static int cuda_alloc(
	struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e)
{
	size_t rounded = bytes > SIZE_MAX - 256 ? bytes : (bytes + 256) / 256 * 256;
	*out = NULL;
	cuda_select(cuda_of(b)->device);
	cuda_deferred_drain(cuda_of(b));
	cudaError_t rc = kind == MEM_HOST     ? alloc_host(bytes, out)
					 : kind == MEM_SHARED ? cudaHostAlloc(out, rounded, cudaHostAllocMapped)
										  : cudaMalloc(out, rounded);
	if (rc == cudaSuccess)
		return 0;
	cudaGetLastError(); /* reported here, not by the next op */
	*out = NULL;
	return err_set(e, cuda_memory_code(rc),
		"%.1f MiB of %s requested, %.1f MiB of the card free (%s)", (double)bytes / 1048576.0,
		kind == MEM_DEVICE ? "the card's memory" : "pinned memory",
		(double)cuda_free_bytes(b) / 1048576.0, cudaGetErrorString(rc));
}

static void cuda_free(struct backend *b, enum mem_kind kind, void *p, size_t bytes)
{
	if (!p)
		return;
	cuda_of(b)->op = "free";
	cuda_select(cuda_of(b)->device);
	cuda_deferred_drain(cuda_of(b));
	cuda_check(cuda_of(b), cudaStreamSynchronize(cuda_of(b)->stream));
	if (kind == MEM_HOST) {
		cudaHostUnregister(p);
		pages_unmap(p, bytes);
	} else if (kind == MEM_SHARED) {
		cudaFreeHost(p);
	} else {
		cudaFree(p);
	}
}

/* ---- copies ---- */

static void cuda_upload(struct backend *base, void *dst, const void *src, size_t bytes)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "upload") || !bytes)
		return;
	if (bytes <= PAYLOAD) {
		struct payload p;
		memcpy(p.byte, src, bytes);
		payload_kernel<<<1, 256, 0, b->stream>>>(p, (uint8_t *)dst, (int)bytes);
		cuda_launched(b);
		b->next_serialized = true; /* it may be weights */
		return;
	}
	b->next_serialized = true;
	cuda_deferred_drain(b); /* the host may have to wait for a staging buffer below */
	for (size_t at = 0; at < bytes;) {
		if (b->staging_used == CUDA_STAGING_BYTES) {
			if (!cuda_check(b, cudaEventRecord(b->sent[b->staging_buffer], b->stream)))
				return;
			b->staging_buffer = (b->staging_buffer + 1) % CUDA_STAGING_BUFFERS;
			b->staging_used = 0;
			if (!cuda_check(b, cudaEventSynchronize(b->sent[b->staging_buffer])))
				return;
		}
		size_t room = CUDA_STAGING_BYTES - b->staging_used,
			   n = bytes - at < room ? bytes - at : room;
		uint8_t *from =
			b->staging + (size_t)b->staging_buffer * CUDA_STAGING_BYTES + b->staging_used;
		memcpy(from, (const uint8_t *)src + at, n);
		uint8_t *to = (uint8_t *)dst + at;
		if (bytes <= PULL_MOST && (uintptr_t)to % 16 == 0) {
			pull_kernel<<<(unsigned)((n + 4095) / 4096), 256, 0, b->stream>>>(
				(const uint4 *)from, to, (uint32_t)n);
			cuda_launched(b);
		} else if (!cuda_check(b, cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, b->stream))) {
			return;
		}
		at += n;
		b->staging_used += (n + 255) / 256 * 256 < room ? (n + 255) / 256 * 256 : room;
	}
}

static void cuda_copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
	cuda_of(b)->next_serialized = true;
	if (cuda_begin(b, "copy") && bytes)
		cuda_check(
			cuda_of(b), cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda_of(b)->stream));
}

static int cuda_wait(struct backend *b, struct err *e)
{
	cuda_select(cuda_of(b)->device);
	cuda_profile_end(cuda_of(b));
	cuda_deferred_drain(cuda_of(b));
	cuda_of(b)->deferred_lost = false;
	cudaError_t rc = cudaStreamSynchronize(cuda_of(b)->stream);
	if (rc != cudaSuccess)
		cuda_device_fault(cuda_of(b), rc);
	cuda_check_aborted(cuda_of(b));
	cuda_profile_drained(cuda_of(b));
	if (b->failure.code && e)
		*e = b->failure;
	return b->failure.code;
}

static bool is_pinned(const void *p)
{
	struct cudaPointerAttributes a;
	return cudaPointerGetAttributes(&a, p) == cudaSuccess && a.type == cudaMemoryTypeHost;
}

/* A copy to a large pinned destination, or a small one through download_buffer, is enqueued in the
 * stream, with one wait behind it. Any other copy waits before it too, since the driver stages it
 * in the call. */
static int cuda_download(
	struct backend *base, void *dst, const void *src, size_t bytes, struct err *e)
{
	struct cuda_backend *b = cuda_of(base);
	bool direct = bytes >= CUDA_DIRECT_BYTES && is_pinned(dst),
		 through_buffer = !direct && bytes <= CUDA_DOWNLOAD_BYTES;
	int rc = direct || through_buffer ? 0 : cuda_wait(base, e);
	if (rc)
		return rc;
	if (cuda_begin(base, "download") && bytes)
		cuda_check(b, cudaMemcpyAsync(through_buffer ? b->download_buffer : dst, src, bytes,
						  cudaMemcpyDefault, b->stream));
	rc = cuda_wait(base, e);
	if (!rc && through_buffer && bytes)
		memcpy(dst, b->download_buffer, bytes);
	return rc;
}

static const char *cuda_describe(struct backend *b)
{
	return cuda_of(b)->text;
}

static void cuda_close(struct backend *base)
{
	if (!base)
		return;
	struct cuda_backend *b = cuda_of(base);
	cuda_select(b->device);
	cuda_deferred_drain(b);
	if (b->stream)
		cudaStreamSynchronize(b->stream);
	cuda_deferred_close(b);
	cuda_timeline_close(b);
	cublas_close(cublas_of(b));
	if (b->stream)
		cudaStreamDestroy(b->stream);
	for (int i = 0; i < CUDA_STAGING_BUFFERS; i++)
		if (b->sent[i])
			cudaEventDestroy(b->sent[i]);
	cudaFree(b->scratch.data);
	cudaFree(b->limbs.data);
	cudaFree(b->gemv_partials.data);
	cudaFree(b->index_counts.data);
	cudaFree(b->expert_progress.data);
	cudaFree(b->mla_flags.data);
	cudaFree(b->route_flags.data);
	cudaFree(b->ffn_flags.data);
	cudaFree(b->chain);
	cudaFree(b->gemm_panels.data);
	cudaFree(b->tables);
	cudaFreeHost(b->stalled);
	cudaFreeHost(b->staging);
	cudaFreeHost(b->download_buffer);
	free(b->observed);
	cudaGetLastError();
	free(b);
}

/* ---- opening ---- */

/* Ops after the failure did nothing, so counters of host and device differ: sets them to agree.
 * index_counts is zero between calls, but not after an op whose second launch was refused. */
static void cuda_recover(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	if (base->failure.code != ERR_MEMORY)
		return;
	cuda_select(b->device);
	cuda_profile_end(b);
	cuda_deferred_drain(b);
	b->deferred_lost = false;
	cuda_segments_drop(base); /* the scratch buffers that they use may be gone */
	base->failure = {};
	b->op = "recover";
	b->capture_pause = CUDA_CAPTURE_PAUSE;
	memset(b->progress_expected, 0, sizeof b->progress_expected);
	const struct scratch_buffer *counters[] = {&b->expert_progress, &b->index_counts};
	bool well =
		cuda_check(b, cudaStreamSynchronize(b->stream)) && cuda_check(b, cuda_fences_catch_up(b));
	for (int i = 0; i < 2 && well; i++)
		if (counters[i]->data)
			well = cuda_check(b, cudaMemset(counters[i]->data, 0, counters[i]->bytes));
	cuda_check(b, cudaStreamSynchronize(NULL)); /* b->stream does not wait for it */
	cudaGetLastError();                         /* the call that failed has been reported */
}

static const struct backend_ops cuda_ops = {
	.name = "cuda",
	.describe = cuda_describe,
	.close = cuda_close,
	.async = true,
	.decode_rows = DECODE_MAX_ROWS,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.free_bytes = cuda_free_bytes,
	.matmul_scratch = NULL,
	.expert_scratch = NULL,
	.populate = NULL,
	.upload = cuda_upload,
	.copy = cuda_copy,
	.download = cuda_download,
	.wait = cuda_wait,
	.copier_open = cuda_copier_open,
	.fence = cuda_fence,
	.fence_wait = cuda_fence_wait,
	.fence_signaled = cuda_fence_signaled,
	.segment_begin = cuda_segment_begin,
	.segment_end = cuda_segment_end,
	.segments_drop = cuda_segments_drop,
	.usage = cuda_usage,
	.measure = cuda_measure,
	.set_cancel = NULL,
	.recover = cuda_recover,
	.embed = cuda_embed,
	.rms_norm = cuda_rms_norm,
	.matmul = cuda_matmul,
	.stacked_matmul = cuda_stacked_matmul,
	.ffn = cuda_ffn,
	.swiglu = cuda_swiglu,
	.rope_angles = cuda_rope_angles,
	.rope = cuda_rope,
	.latents = cuda_latents,
	.index_select = cuda_index_select,
	.store_rows = cuda_store_rows,
	.fetch_rows = cuda_fetch_rows,
	.attend = cuda_attend,
	.mla = cuda_mla,
	.route = cuda_route,
	.wait_expert_ids = cuda_wait_expert_ids,
	.expert_ffn = cuda_expert_ffn,
	.expert_results = cuda_expert_results,
	.can_defer_experts = cuda_can_defer_experts,
	.experts_deferred = cuda_experts_deferred,
	.moe_combine = cuda_moe_combine,
	.draw = cuda_draw,
};

static void fill_tables(struct cuda_tables *t)
{
	for (int i = 0; i < 1024; i++)
		for (int j = 0; j < 2; j++) {
			if (i < 256)
				t->iq2xxs[2 * i + j] = (uint32_t)(iq2xxs_grid[i] >> 32 * j);
			if (i < 512)
				t->iq2xs[2 * i + j] = (uint32_t)(iq2xs_grid[i] >> 32 * j);
			t->iq2s[2 * i + j] = (uint32_t)(iq2s_grid[i] >> 32 * j);
		}
	memcpy(t->iq3xxs, iq3xxs_grid, sizeof t->iq3xxs);
	memcpy(t->iq3s, iq3s_grid, sizeof t->iq3s);
	memcpy(t->iq1s, iq1s_grid, sizeof t->iq1s);
	memcpy(t->signs, iq_signs, sizeof t->signs);
	memcpy(t->iq4nl, iq4nl_values, sizeof t->iq4nl);
	for (int i = 0; i < 256; i++)
		for (int j = 0; j < 8; j++) {
			uint32_t v = (uint32_t)(iq2xxs_grid[i] >> 8 * j) & 255;
			t->iq2xxs_nibbles[i] |= (v == 8 ? 0u : v == 25 ? 1u : 2u) << 4 * j;
		}
	for (int i = 0; i < 128; i++)
		for (int j = 0; j < 8; j++)
			t->sign_nibbles[i] |= (uint32_t)(iq_signs[i] >> j & 1) << (4 * j + 2);
}

static cudaError_t open_device(struct cuda_backend *b)
{
	cudaError_t rc;
	struct cuda_tables tables = {};
	int shared = 0;
	if ((rc = cuda_select(b->device)) ||
		(rc = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking)) ||
		(rc = cudaDeviceGetAttribute(&b->n_sm, cudaDevAttrMultiProcessorCount, b->device)) ||
		(rc = cudaDeviceGetAttribute(
			 &shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, b->device)) ||
		(rc = cudaHostAlloc((void **)&b->staging, CUDA_STAGING_BUFFERS * CUDA_STAGING_BYTES,
			 cudaHostAllocDefault)) ||
		(rc = cudaHostAlloc(
			 (void **)&b->download_buffer, CUDA_DOWNLOAD_BYTES, cudaHostAllocDefault)) ||
		(rc = cudaHostAlloc((void **)&b->stalled, sizeof *b->stalled, cudaHostAllocMapped)) ||
		(rc = cuda_timeline_open(b)) || (rc = cudaMalloc((void **)&b->tables, sizeof tables)) ||
		(rc = gemv_chain_open(b)))
		return rc;
	*b->stalled = POLL_NONE;
	b->max_shared = (size_t)shared - 6144; /* static arrays of the kernels come out of the same */
	for (int i = 0; i < CUDA_STAGING_BUFFERS; i++)
		if ((rc = cudaEventCreateWithFlags(&b->sent[i], cudaEventDisableTiming)))
			return rc;
	fill_tables(&tables);
	if ((rc = cudaMemcpy(b->tables, &tables, sizeof tables, cudaMemcpyHostToDevice)))
		return rc;
	return cudaStreamSynchronize(
		NULL); /* small copies and settings may return before they are done */
}

uint32_t cuda_count_cards(void)
{
	int n = 0;
	if (cudaGetDeviceCount(&n) != cudaSuccess) {
		cudaGetLastError();
		return 0;
	}
	return (uint32_t)n;
}

/* Bytes a second: two transfers a clock (double data rate). 0: the driver does not know. */
static uint64_t memory_bandwidth(int device)
{
	int khz = 0, bits = 0;
	if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device) != cudaSuccess ||
		cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device) != cudaSuccess) {
		cudaGetLastError();
		return 0;
	}
	return (uint64_t)khz * 1000 * 2 * (uint64_t)bits / 8;
}

int cuda_backend_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	*out = NULL;
	int n = 0, driver = 0;
	cudaError_t rc = cudaGetDeviceCount(&n);
	if (rc != cudaSuccess || !n) {
		cudaGetLastError();
		return err_set(e, ERR_RUN, "backend cuda: no device answers: %s",
			rc ? cudaGetErrorString(rc) : "the driver lists none");
	}
	if (options->card >= (uint32_t)n)
		return err_set(e, ERR_USAGE,
			"backend cuda: there is no card %u; this machine has %d, from 0", options->card, n);
	struct cudaDeviceProp prop;
	struct cuda_backend *b = (struct cuda_backend *)calloc(1, sizeof(struct cuda_with_library));
	if (!b)
		return err_set(e, ERR_MEMORY, "backend cuda: no memory for its state");
	b->base.ops = &cuda_ops;
	b->base.scratch_bytes = CUDA_SCRATCH_MOST;
	b->no_graphs = b->no_deferred = options->no_graphs;
	b->exact_prompts = options->exact_prompts;
	if (options->fast_prompts)
		log_info("backend cuda: --fast-prompts has no effect, it is for the CPU");
	b->op = "open";
	b->device = (int)options->card;
	b->base.bytes_s = memory_bandwidth(b->device);
	if ((rc = cudaGetDeviceProperties(&prop, b->device)) == cudaSuccess && prop.major < 8) {
		cuda_close(&b->base);
		return err_set(e, ERR_RUN,
			"backend cuda: %s has compute capability %d.%d; 8.0 or newer is needed", prop.name,
			prop.major, prop.minor);
	}
	static_assert(sizeof prop.uuid == sizeof b->base.uuid, "a UUID of CUDA has another length");
	if (rc == cudaSuccess)
		memcpy(b->base.uuid, &prop.uuid, sizeof b->base.uuid);
	b->has_pdl = rc == cudaSuccess && prop.major >= 9;
	/* Deferred kernels wait for the host. They would not end where the driver limits the time of a
	 * kernel (the host may be stopped), or a launch waits for its kernel, or copies that the host
	 * waits for share a hardware queue with them. */
	int limited = 0;
	const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	if (cudaDeviceGetAttribute(&limited, cudaDevAttrKernelExecTimeout, b->device) != cudaSuccess ||
		limited || getenv("CUDA_LAUNCH_BLOCKING") || (queues && atoi(queues) < CUDA_QUEUES))
		b->no_deferred = true;
	b->has_wgmma = HAVE_SM90A && rc == cudaSuccess && prop.major == 9 && prop.minor == 0;
	if (rc == cudaSuccess)
		rc = open_device(b);
	if (rc != cudaSuccess) {
		cuda_close(&b->base);
		return err_set(e, rc == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_RUN,
			"backend cuda: the device cannot be used: %s", cudaGetErrorString(rc));
	}
	if (!b->exact_prompts) {
		struct err why = {};
		struct cublas *c = ((struct cuda_with_library *)b)->cublas = cublas_open(&why);
		if (c)
			log_verbose("cublasLt %u multiplies prompts", cublas_version(c));
		else
			log_info("prompts are multiplied without cublasLt: %s", why.text);
	}
	cudaDriverGetVersion(&driver);
	snprintf(b->text, sizeof b->text, "%s, %.1f GB, %d multiprocessors, CUDA driver %d.%d",
		prop.name, (double)prop.totalGlobalMem / 1e9, b->n_sm, driver / 1000, driver % 1000 / 10);
	*out = &b->base;
	return 0;
}
