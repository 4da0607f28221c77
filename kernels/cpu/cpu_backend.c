/* SPDX-License-Identifier: MIT */
/* The CPU backend's ops table, memory, and choice of instruction set and number of threads. The ops
 * are in the other files. */
#include "kernels/cpu/cpu_internal.h"

#include "kernels/backend_kinds.h"
#include "kernels/cpu/limbs/limb_experts.h"
#include "src/base/host/cores.h"
#include "src/base/host/memory_left.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Below this much work per thread, waking a thread costs more than it saves. Measured: 1 to 2 us to
 * start a thread that spins; a core does 15 multiply-adds per ns. */
#define MACS_PER_THREAD 40000.0

static size_t cpu_free_bytes(struct backend *b)
{
	(void)b;
	return memory_left();
}

static int cpu_alloc(struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e)
{
	(void)kind;
	size_t left = cpu_free_bytes(b);
	*out = left && bytes > left ? NULL : pages_try_map(bytes);
	if (*out)
		return 0;
	return err_set(e, ERR_MEMORY, "%.1f MiB of memory requested, %.1f MiB free",
		(double)bytes / 0x1p20, (double)left / 0x1p20);
}

static void cpu_free(struct backend *b, enum mem_kind kind, void *p, size_t bytes)
{
	(void)b;
	(void)kind;
	pages_unmap(p, bytes);
}

static void cpu_populate(struct backend *b, void *p, size_t bytes)
{
	(void)b;
	pages_populate(p, bytes);
}

static void cpu_upload(struct backend *b, void *dst, const void *src, size_t bytes)
{
	if (!b->failure.code && bytes)
		memcpy(dst, src, bytes);
}

static int cpu_wait(struct backend *b, struct err *e)
{
	if (b->failure.code && e)
		*e = b->failure;
	return b->failure.code;
}

/* Ops have run when they return: a fence is reached when it is made, and a graph is nothing but its
 * ops. */
static uint64_t cpu_fence(struct backend *b)
{
	return ++b->fence_value;
}

static int cpu_fence_wait(struct backend *b, uint64_t fence, struct err *e)
{
	(void)fence;
	return cpu_wait(b, e);
}

static bool cpu_fence_signaled(struct backend *b, uint64_t fence)
{
	(void)b;
	(void)fence;
	return true;
}

static enum segment_mode cpu_segment_begin(struct backend *b, uint64_t key)
{
	(void)b;
	(void)key;
	return SEGMENT_EAGER;
}

static void cpu_nothing(struct backend *b)
{
	(void)b;
}

static void cpu_usage(struct backend *b, struct backend_usage *out)
{
	(void)b;
	*out = (struct backend_usage){0};
}

static void cpu_measure(struct backend *b, bool on)
{
	(void)b;
	(void)on;
}

static int cpu_download(struct backend *b, void *dst, const void *src, size_t bytes, struct err *e)
{
	int rc = cpu_wait(b, e);
	if (!rc && bytes)
		memcpy(dst, src, bytes);
	return rc;
}

static const char *cpu_describe(struct backend *b)
{
	return cpu_of(b)->text;
}

static void cpu_close(struct backend *b)
{
	if (!b)
		return;
	cpu_pool_free(cpu_of(b)->pool);
	pages_unmap(cpu_of(b)->scratch, cpu_of(b)->scratch_bytes);
	free(b);
}

static void cpu_set_cancel(struct backend *b, const atomic_bool *cancel)
{
	cpu_pool_set_stop(cpu_of(b)->pool, cancel);
	if (b->failure.code == ERR_INTERRUPTED)
		b->failure = (struct err){0};
}

static void cpu_recover(struct backend *b)
{
	if (b->failure.code == ERR_MEMORY)
		b->failure = (struct err){0};
}

static const struct backend_ops cpu_ops = {
	.name = "cpu",
	.describe = cpu_describe,
	.close = cpu_close,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.free_bytes = cpu_free_bytes,
	.matmul_scratch = cpu_matmul_scratch,
	.expert_scratch = cpu_expert_scratch,
	.populate = cpu_populate,
	.upload = cpu_upload,
	.copy = cpu_upload,
	.download = cpu_download,
	.wait = cpu_wait,
	.fence = cpu_fence,
	.fence_wait = cpu_fence_wait,
	.fence_signaled = cpu_fence_signaled,
	.async = false,
	.decode_rows = INT_MAX,
	.segment_begin = cpu_segment_begin,
	.segment_end = cpu_nothing,
	.segments_drop = cpu_nothing,
	.usage = cpu_usage,
	.measure = cpu_measure,
	.set_cancel = cpu_set_cancel,
	.recover = cpu_recover,
	.embed = cpu_embed,
	.rms_norm = cpu_rms_norm,
	.matmul = cpu_matmul,
	.stacked_matmul = cpu_stacked_matmul,
	.ffn = cpu_ffn,
	.swiglu = cpu_swiglu,
	.rope_angles = cpu_rope_angles,
	.rope = cpu_rope,
	.latents = cpu_latents,
	.index_select = cpu_index_select,
	.store_rows = cpu_store_rows,
	.fetch_rows = cpu_fetch_rows,
	.attend = cpu_attend,
	.mla = cpu_mla,
	.route = cpu_route,
	.wait_expert_ids = cpu_wait_expert_ids,
	.expert_ffn = cpu_expert_ffn,
	.expert_results = cpu_expert_results,
	.moe_combine = cpu_moe_combine,
	.draw = cpu_draw,
};

#if defined(__x86_64__)
bool cpu_has_avx2(void)
{
	unsigned a, b, c = 0, d;
	__builtin_cpu_init();
	/* F16C by CPUID.1:ECX: clang 14's __builtin_cpu_supports does not know the name */
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		   __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const struct cpu_isa *cpu_isa_available(int level)
{
	const struct cpu_isa *found[3];
	int n = 0;
#if defined(__x86_64__)
	bool avx2 = cpu_has_avx2();
	if (cpu_isa_avx512 && avx2 && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
		__builtin_cpu_supports("avx512dq"))
		found[n++] = cpu_isa_avx512;
	if (cpu_isa_avx2 && avx2)
		found[n++] = cpu_isa_avx2;
#endif
	found[n++] = cpu_isa_c;
	return level >= 0 && level < n ? found[level] : NULL;
}

int cpu_threads_for(const struct cpu_backend *b, double macs)
{
	double n = macs / MACS_PER_THREAD;
	return n < 2 ? 1 : n < b->threads ? (int)n : b->threads;
}

void cpu_run(
	struct cpu_backend *b, int threads, int64_t n, int64_t grain, cpu_task_fn *fn, const void *job)
{
	if (!cpu_pool_run(b->pool, threads, n, grain, fn, job) && !b->base.failure.code)
		err_set(&b->base.failure, ERR_INTERRUPTED, "interrupted");
}

void cpu_run_rows(
	struct cpu_backend *b, int threads, int64_t rows, cpu_task_fn *fn, const void *job)
{
	int64_t portions = (int64_t)threads * 4;
	cpu_run(b, threads, rows, (rows + portions - 1) / portions, fn, job);
}

void cpu_order_jobs(struct cpu_backend *b, const struct expert_job *jobs, int n_jobs,
	int32_t *by_node, struct job_order *out)
{
	const int n_nodes = cpu_pool_nodes(b->pool);
	int known = 0, n = 0;
	*out = (struct job_order){.n_jobs = n_jobs};
	for (int j = 0; j < n_jobs; j++)
		known += jobs[j].node > 0 && jobs[j].node <= n_nodes;
	if (!known)
		return;
	for (int k = 0; k <= n_nodes; out->ends[k++] = n)
		for (int j = 0; j < n_jobs; j++)
			if ((jobs[j].node <= n_nodes ? jobs[j].node : 0) == k)
				by_node[n++] = j;
	out->by_node = by_node;
}

void cpu_run_jobs(struct cpu_backend *b, int threads, const struct job_order *order,
	int64_t tasks_of_job, cpu_task_fn *fn, const void *job)
{
	int64_t ends[NUMA_NODES_MAX + 1];
	if (!order->by_node) {
		cpu_run(b, threads, order->n_jobs * tasks_of_job, 1, fn, job);
		return;
	}
	for (int k = 0; k <= cpu_pool_nodes(b->pool); k++)
		ends[k] = order->ends[k] * tasks_of_job;
	if (!cpu_pool_run_nodes(b->pool, threads, ends, 1, fn, job) && !b->base.failure.code)
		err_set(&b->base.failure, ERR_INTERRUPTED, "interrupted");
}

void *cpu_scratch(struct cpu_backend *b, uint64_t bytes, const char *op)
{
	if (bytes <= b->scratch_bytes)
		return b->scratch;
	pages_unmap(b->scratch, b->scratch_bytes);
	b->scratch_bytes = 0;
	uint64_t rounded = bytes <= (uint64_t)1 << 60 ? num_align_up(bytes, (uint64_t)1 << 20) : 0;
	b->scratch = rounded ? pages_try_map(rounded) : NULL;
	if (b->scratch)
		b->scratch_bytes = rounded;
	else
		err_set(&b->base.failure, ERR_MEMORY, "%s: %.1f MiB of working memory are not to be had",
			op, (double)bytes / 0x1p20);
	return b->scratch;
}

void cpu_set_fast_prompts(struct cpu_backend *b)
{
	b->fast_prompts = true;
	b->ops.decode_rows = CPU_DECODE_ROWS;
}

static void describe(struct cpu_backend *b)
{
	const int n = cpu_pool_nodes(b->pool);
	int at = snprintf(b->text, sizeof b->text, "%s, %d thread%s", b->isa->name, b->threads,
		b->threads == 1 ? "" : "s");
	for (int k = 1; k <= n && at < (int)sizeof b->text; k++)
		at += snprintf(b->text + at, sizeof b->text - (size_t)at, "%s%d%s",
			k == 1 ? " (by NUMA node: " : "", cpu_pool_node_threads(b->pool, k),
			k < n ? " + " : ")");
}

int cpu_backend_open_level(
	const struct backend_options *options, int level, struct backend **out, struct err *e)
{
	const struct cpu_isa *isa = cpu_isa_available(level);
	*out = NULL;
	if (!isa)
		return err_set(
			e, ERR_RUN, "backend cpu: this machine has no instruction set of level %d", level);
	if (options->threads < 0 || options->threads > 1024)
		return err_set(e, ERR_USAGE,
			"backend cpu: %d threads requested; 0 (all) to 1024 are possible", options->threads);
	if (options->card)
		return err_set(e, ERR_USAGE, "backend cpu: there is no card %u, only card 0, the processor",
			options->card);
	struct cpu_backend *b = NEW(struct cpu_backend);
	b->ops = cpu_ops;
	if (options->for_card)
		b->ops.expert_ffn = limb_expert_ffn;
	b->base.ops = &b->ops;
	b->isa = isa;
	b->limbs = limb_isa_available(level);
	if (!b->limbs) /* they have another number of levels */
		b->limbs = limb_isa_c;
	if (options->fast_prompts && limb_isa_amx && b->limbs == limb_isa_amx)
		cpu_set_fast_prompts(b);
	else if (options->fast_prompts)
		log_info("backend cpu: this processor has no AMX; prompts are computed in float32");
	if (options->exact_prompts && !options->for_card)
		log_info("backend cpu: --exact-prompts has no effect, it is for a card");
	b->pool = cpu_pool_new(
		options->threads ? options->threads : cores_allowed(), options->for_card, options->nodes);
	if (!b->pool) {
		free(b);
		return err_set(e, ERR_MEMORY, "backend cpu: no memory for the thread pool");
	}
	cpu_pool_set_progress(b->pool, options->on_progress, options->progress_user);
	b->threads = cpu_pool_threads(b->pool);
	describe(b);
	*out = &b->base;
	return 0;
}

int cpu_backend_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	return cpu_backend_open_level(options, 0, out, e);
}
