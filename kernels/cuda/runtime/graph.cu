/* SPDX-License-Identifier: MIT */
/*
 * How the host follows the device, and how lists of ops become one launch.
 *
 * Fences: a counter on the device, raised by one thread that writes the new count to pinned memory:
 * at the end of gate_kernel or pick_kernel (route.cu) or in a kernel of its own. Counts in
 * stream order are fence values, also when the kernel is a node of a replayed graph. The host spins
 * on the pinned word, and now and then asks the driver whether the device is still there.
 *
 * Graphs: the first use of a key runs its ops as they come, so that scratch has its size and
 * kernels their settings; the second records them; from then on they are one launch, in which
 * deferred kernels (deferred_experts.cu) may stand. Recordings hold addresses of scratch memory:
 * when that grows they are void and made again. When the table is full all are forgotten.
 *
 * Timing: the device's clock is noted where a stretch of ops begins and ends, in turns, into a
 * ring: by kernels of one thread, within a graph by those of experts and, behind them, of
 * moe_combine.
 */
#include "kernels/cuda/runtime/gpu_backend.cuh"

extern "C" {
#include "src/base/clock.h"
#include "src/base/log.h"
}

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SPINS       4096 /* looks at the fence before the driver is asked; about 0.1 ms */
#define SILENCE_NS  120000000000ull
#define PATIENCE_NS 2000000 /* then the processor is offered to others between looks */
#define STOPPED_NS                                                                                 \
	1000000000 /* and more between two looks: it was the process that stood still                  \
				*/
#define GRAPH_SLOTS  4096
#define GRAPHS_MAX   2048
#define CALIBRATIONS 64

struct graph {
	uint64_t key; /* + 1; 0: free */
	cudaGraphExec_t exec;
	uint64_t generation;
	size_t n_nodes;
	uint64_t n_fences;
	struct deferred_experts *deferred;
	int n_deferred;
};

struct cuda_timeline {
	uint64_t *reached;         /* pinned: the latest fence */
	unsigned long long *count; /* device: fences */
	struct graph *graphs;      /* [GRAPH_SLOTS] */
	struct graph *now;         /* being recorded */
	int n_graphs;
	uint64_t now_fences, now_ns;
	struct cuda_profile *profile; /* device */
	unsigned long long
		*ring;     /* device [PROFILE_EVENTS]: begin, end, begin, ... ; NULL until wanted */
	uint8_t *kind; /* [PROFILE_EVENTS / 2] of each begin: enum usage_kind */
	uint64_t n_events, n_read;
	uint64_t last_end; /* 0: none */
	uint64_t waited;   /* of notes->waited, read so far */
};

static __global__ void fence_kernel(struct cuda_fence m)
{
	launch_dependents();
	grid_dependency_wait();
	fence_signal(m, fence_next_value(m));
}

static __global__ void timestamp_kernel(struct cuda_profile *profile)
{
	profile->ring[profile->n++ % PROFILE_EVENTS] = device_clock();
}

cudaError_t cuda_timeline_open(struct cuda_backend *b)
{
	struct cuda_timeline *p = (struct cuda_timeline *)calloc(1, sizeof *p);
	b->timeline = p;
	if (!p || !(p->graphs = (struct graph *)calloc(GRAPH_SLOTS, sizeof *p->graphs)))
		return cudaErrorMemoryAllocation;
	cudaError_t rc;
	if ((rc = cudaHostAlloc((void **)&p->reached, sizeof *p->reached, cudaHostAllocMapped)) ||
		(rc = cudaMalloc((void **)&p->count, sizeof *p->count)) ||
		(rc = cudaMalloc((void **)&p->profile, sizeof *p->profile)) ||
		(rc = cudaMemset(p->profile, 0, sizeof *p->profile)))
		return rc;
	*p->reached = 0;
	return cudaMemset(p->count, 0, sizeof *p->count);
}

/* What was recorded is void. Its deferred kernels have been settled. */
static void clear_graph(struct graph *g)
{
	if (g->exec)
		cudaGraphExecDestroy(g->exec);
	free(g->deferred);
	uint64_t key = g->key;
	*g = (struct graph){};
	g->key = key;
}

static void forget_graphs(struct cuda_backend *b)
{
	struct cuda_timeline *p = b->timeline;
	cuda_deferred_drain(b);
	for (int i = 0; i < GRAPH_SLOTS; i++) {
		clear_graph(&p->graphs[i]);
		p->graphs[i].key = 0;
	}
	p->n_graphs = 0;
}

void cuda_timeline_close(struct cuda_backend *b)
{
	struct cuda_timeline *p = b->timeline;
	if (!p)
		return;
	if (p->graphs)
		forget_graphs(b);
	cudaFreeHost(p->reached);
	cudaFree(p->count);
	cudaFree(p->profile);
	cudaFree(p->ring);
	free(p->kind);
	free(p->graphs);
	free(p);
	b->timeline = NULL;
}

/* ---- fences
 * ------------------------------------------------------------------------------------------------
 */

static bool has_reached(struct cuda_backend *b, uint64_t fence)
{
	return __atomic_load_n(b->timeline->reached, __ATOMIC_ACQUIRE) >= fence;
}

/* The driver's word on a device that has not reached a fence for so long. False: there is no use in
 * waiting. */
static bool still_there(struct cuda_backend *b, uint64_t fence, uint64_t waited)
{
	cudaError_t rc = cudaStreamQuery(b->stream);
	bool done =
		has_reached(b, fence); /* and yet something is missing that came with it: on its way */
	if (rc == cudaErrorNotReady || (rc == cudaSuccess && done)) {
		cudaGetLastError(); /* not a failure */
		if (waited < SILENCE_NS)
			return true;
	}
	if (b->base.failure.code)
		return false;
	if (rc == cudaErrorNotReady) {
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s or an op before it: the device has not answered for %llu s", b->op,
			(unsigned long long)(SILENCE_NS / 1000000000));
		/* whoever is told waits for the device first, before memory can be freed: that may never
		 * end */
		log_warn("%s; nothing can be freed before it does", b->base.failure.text);
		return false;
	}
	if (rc != cudaSuccess)
		err_set(&b->base.failure, ERR_RUN, "cuda: %s or an op before it: %s", b->op,
			cudaGetErrorString(rc));
	else
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: fence %llu has not come, the last was %llu",
			b->op, (unsigned long long)fence, (unsigned long long)*b->timeline->reached);
	return false;
}

struct cuda_fence cuda_fence_next(struct cuda_backend *b)
{
	b->base.fence_value++;
	return (struct cuda_fence){b->timeline->count, (unsigned long long *)b->timeline->reached};
}

void cuda_fence_enqueue(struct cuda_backend *b, struct cuda_fence next)
{
	cuda_launch(b, fence_kernel, 1, 1, 0, next);
}

uint64_t cuda_fence(struct backend *base)
{
	struct cuda_fence next = cuda_fence_next(cuda_of(base));
	if (cuda_begin(base, "fence"))
		cuda_fence_enqueue(cuda_of(base), next);
	return base->fence_value;
}

bool cuda_fence_signaled(struct backend *b, uint64_t fence)
{
	return has_reached(cuda_of(b), fence);
}

/* A wait for a fence, or for what comes with it */
struct patience {
	unsigned spins;
	uint64_t asked, waited;
};

/* Between two looks. Failures of the device become the backend's. False: there is no use in
 * waiting. */
static bool wait_a_little(struct cuda_backend *b, uint64_t fence, struct patience *p)
{
	if (++p->spins % SPINS) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		return true;
	}
	uint64_t now = clock_ns(), since = p->asked ? now - p->asked : 0;
	p->asked = now;
	p->waited += since < STOPPED_NS ? since : STOPPED_NS;
	if (!still_there(b, fence, p->waited))
		return false;
	if (p->waited > PATIENCE_NS)
		sched_yield();
	return true;
}

void cuda_fence_spin(struct cuda_backend *b, uint64_t fence)
{
	struct patience p = {};
	while (!has_reached(b, fence) && wait_a_little(b, fence, &p))
		;
}

/* Before the host waits for a fence */
static void begin_wait(struct cuda_backend *b, uint64_t fence)
{
	cuda_profile_end(b);
	if (b->n_deferred && fence > b->deferred_fence + b->deferred->n_fences)
		cuda_deferred_drain(b);
}

static int waited(struct cuda_backend *b, struct err *e)
{
	if (b->base.failure.code && e)
		*e = b->base.failure;
	return b->base.failure.code;
}

int cuda_fence_wait(struct backend *base, uint64_t fence, struct err *e)
{
	struct cuda_backend *b = cuda_of(base);
	begin_wait(b, fence);
	if (!base->failure.code)
		cuda_fence_spin(b, fence);
	return waited(b, e);
}

int cuda_wait_expert_ids(struct backend *base, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e)
{
	struct cuda_backend *b = cuda_of(base);
	struct patience p = {};
	begin_wait(b, fence);
	for (int i = 0; i < n && !base->failure.code;) {
		uint64_t pick = __atomic_load_n(expert_ids + i, __ATOMIC_ACQUIRE);
		if ((uint32_t)(pick >> 32) == (uint32_t)fence)
			ids[i++] = (int32_t)(uint32_t)pick;
		else
			wait_a_little(b, fence, &p);
	}
	return waited(b, e);
}

/* ---- graphs
 * -----------------------------------------------------------------------------------------------
 */

/* The key's entry, made if there is none. */
static struct graph *find(struct cuda_backend *b, uint64_t key)
{
	struct cuda_timeline *p = b->timeline;
	if (p->n_graphs == GRAPHS_MAX)
		forget_graphs(b);
	uint64_t at = (key * 0x9e3779b97f4a7c15ull) >> 32;
	while (p->graphs[at % GRAPH_SLOTS].key && p->graphs[at % GRAPH_SLOTS].key != key + 1)
		at++;
	struct graph *g = &p->graphs[at % GRAPH_SLOTS];
	p->n_graphs += !g->key;
	return g;
}

/* Kernels that were enqueued note the end of a stretch and the begin of the next one. */
static void next_interval(struct cuda_backend *b, enum usage_kind kind)
{
	b->timeline->n_events += 2;
	b->timeline->kind[b->timeline->n_events % PROFILE_EVENTS / 2] = (uint8_t)kind;
}

/* fences: made before it */
static void launch(struct cuda_backend *b, struct graph *g, uint64_t n_fences)
{
	cuda_profile_end(b);
	cuda_profile_begin(b, USAGE_GRAPH);
	cuda_check(b, cudaGraphLaunch(g->exec, b->stream));
	b->used.launches += g->n_nodes;
	b->used.graph_launches++;
	b->deferred = g->deferred;
	b->n_deferred = g->n_deferred;
	b->deferred_fence = n_fences;
	b->posted_ranks = 0;
	for (int i = 0; i < g->n_deferred && b->in_interval; i++) {
		next_interval(b, USAGE_EXPERTS);
		if (g->deferred[i].has_successor)
			next_interval(b, USAGE_GRAPH);
	}
	cuda_profile_end(b);
}

static bool is_valid(const struct cuda_backend *b, const struct graph *g)
{
	return g->exec && g->generation == b->generation;
}

/* A key that is met for the first time: its ops run as they come. */
static bool is_new(struct graph *g, uint64_t key)
{
	if (g->key)
		return false;
	g->key = key + 1;
	return true;
}

/* Ops are recorded from the stream in use on. */
static void begin_recording(struct cuda_backend *b, struct graph *g)
{
	struct cuda_timeline *p = b->timeline;
	clear_graph(g);
	p->now_ns = clock_ns();
	if (!cuda_check(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal)))
		return;
	p->now = g;
	p->now_fences = b->base.fence_value;
	b->capturing = true;
}

/* Returns what was recorded, NULL when nothing was or it failed. */
static struct graph *end_recording(struct cuda_backend *b)
{
	struct cuda_timeline *p = b->timeline;
	struct graph *g = p->now;
	cudaGraph_t graph = NULL;
	if (!g)
		return NULL; /* nothing is being recorded */
	p->now = NULL;
	b->capturing = false;
	b->op = "recording a graph";
	cudaError_t rc = cudaStreamEndCapture(b->stream, &graph);
	if (!b->base.failure.code && cuda_check(b, rc) &&
		cuda_check(b, cudaGraphGetNodes(graph, NULL, &g->n_nodes)) &&
		cuda_check(b, cudaGraphInstantiate(&g->exec, graph, 0))) {
		g->generation = b->generation;
		g->n_fences = b->base.fence_value - p->now_fences;
	}
	if (graph)
		cudaGraphDestroy(graph);
	b->used.graphs_captured++;
	b->used.capture_ns += clock_ns() - p->now_ns;
	return b->base.failure.code ? NULL : g;
}

enum segment_mode cuda_segment_begin(struct backend *base, uint64_t key)
{
	struct cuda_backend *b = cuda_of(base);
	b->op = "graph";
	if (base->failure.code || b->no_graphs)
		return SEGMENT_EAGER;
	cuda_deferred_drain(b);
	b->deferred_lost = false;
	struct graph *g = find(b, key);
	if (is_valid(b, g)) {
		launch(b, g, base->fence_value);
		base->fence_value += g->n_fences;
		return SEGMENT_REPLAYED;
	}
	if (is_new(g, key))
		return SEGMENT_EAGER;
	cuda_profile_end(b);
	begin_recording(b, g);
	return SEGMENT_CAPTURE;
}

void cuda_segment_end(struct backend *base)
{
	struct graph *g = end_recording(cuda_of(base));
	if (g)
		launch(cuda_of(base), g, base->fence_value - g->n_fences);
}

bool cuda_segment_add_deferred(struct cuda_backend *b, const struct deferred_experts *w)
{
	struct cuda_timeline *p = b->timeline;
	struct graph *g = p->now;
	if (!b->capturing || !g)
		return false;
	uint64_t n_fences = b->base.fence_value - p->now_fences;
	void *grown = realloc(g->deferred, ((size_t)g->n_deferred + 1) * sizeof *g->deferred);
	if (n_fences == (g->n_deferred ? g->deferred[g->n_deferred - 1].n_fences : 0))
		err_set(&b->base.failure, ERR_RUN, "cuda: experts_deferred: no fence before it");
	else if (!grown)
		err_set(&b->base.failure, ERR_MEMORY, "cuda: experts_deferred: no memory");
	g->deferred = grown ? (struct deferred_experts *)grown : g->deferred;
	if (b->base.failure.code)
		return false;
	g->deferred[g->n_deferred] = *w;
	g->deferred[g->n_deferred++].n_fences = n_fences;
	return true;
}

struct cuda_profile *cuda_deferred_successor(struct cuda_backend *b)
{
	struct graph *g = b->timeline->now;
	if (!b->capturing || !g || !g->n_deferred || g->deferred[g->n_deferred - 1].has_successor)
		return NULL;
	g->deferred[g->n_deferred - 1].has_successor = true;
	return b->timeline->profile;
}

void cuda_segments_drop(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	if (!b->timeline->n_graphs)
		return;
	cuda_deferred_drain(b);
	b->deferred_lost = false;
	cudaStreamSynchronize(b->stream);
	log_verbose("cuda: %llu graphs recorded in %.1f ms, %llu replays",
		(unsigned long long)b->used.graphs_captured, (double)b->used.capture_ns * 1e-6,
		(unsigned long long)b->used.graph_launches);
	forget_graphs(b);
}

/* ---- usage
 * ------------------------------------------------------------------------------------------------
 */

struct cuda_profile *cuda_profile_events(struct cuda_backend *b)
{
	return b->timeline->profile;
}

static void timestamp_enqueue(struct cuda_backend *b)
{
	struct cuda_timeline *p = b->timeline;
	timestamp_kernel<<<1, 1, 0, b->stream>>>(p->profile);
	cuda_check(b, cudaGetLastError());
	p->n_events++;
	b->in_interval = p->n_events % 2;
}

void cuda_profile_begin(struct cuda_backend *b, enum usage_kind kind)
{
	if (!b->profiling || b->in_interval || b->capturing || b->base.failure.code)
		return;
	b->timeline->kind[b->timeline->n_events % PROFILE_EVENTS / 2] = (uint8_t)kind;
	timestamp_enqueue(b);
}

void cuda_profile_end(struct cuda_backend *b)
{
	if (b->profiling && b->in_interval && !b->capturing && !b->base.failure.code)
		timestamp_enqueue(b);
}

/* The notes not read yet, into busy and idle time. The stream has been waited for, the last stretch
 * has ended. */
static void read_events(struct cuda_backend *b)
{
	struct cuda_timeline *p = b->timeline;
	static unsigned long long events[PROFILE_EVENTS]; /* one thread computes */
	if (p->n_events == p->n_read || b->base.failure.code ||
		!cuda_check(b, cudaMemcpy(events, p->ring, sizeof events, cudaMemcpyDeviceToHost)))
		return;
	for (; p->n_read < p->n_events; p->n_read += 2) {
		uint64_t begin = events[p->n_read % PROFILE_EVENTS],
				 end = events[p->n_read % PROFILE_EVENTS + 1];
		enum usage_kind kind = (enum usage_kind)p->kind[p->n_read % PROFILE_EVENTS / 2];
		b->used.n_intervals[kind]++;
		b->used.busy_ns[kind] += end - begin;
		if (p->last_end)
			b->used.idle_ns[kind] += begin - p->last_end;
		p->last_end = end;
	}
	unsigned long long waited = 0;
	if (cuda_check(
			b, cudaMemcpy(&waited, &p->profile->waited, sizeof waited, cudaMemcpyDeviceToHost))) {
		b->used.busy_ns[USAGE_EXPERTS] -= waited - p->waited;
		b->used.idle_ns[USAGE_EXPERTS] += waited - p->waited;
		p->waited = waited;
	}
}

void cuda_profile_drained(struct cuda_backend *b)
{
	if (b->profiling && !b->in_interval &&
		b->timeline->n_events - b->timeline->n_read > PROFILE_EVENTS / 2)
		read_events(b);
}

void cuda_usage(struct backend *base, struct backend_usage *out)
{
	struct cuda_backend *b = cuda_of(base);
	if (b->profiling) {
		base->ops->wait(base, NULL);
		read_events(b);
	}
	*out = b->used;
}

void cuda_measure(struct backend *base, bool on)
{
	struct cuda_backend *b = cuda_of(base);
	struct cuda_timeline *p = b->timeline;
	base->ops->wait(base, NULL);
	b->op = "measure";
	if (on && !p->ring) {
		p->kind = (uint8_t *)calloc(PROFILE_EVENTS / 2, 1);
		if (!p->kind ||
			!cuda_check(b, cudaMalloc((void **)&p->ring, PROFILE_EVENTS * sizeof *p->ring)))
			return;
	}
	unsigned long long *ring = on ? p->ring : NULL;
	if (!cuda_check(b, cudaMemcpy(&p->profile->ring, &ring, sizeof ring, cudaMemcpyHostToDevice)) ||
		!cuda_check(
			b, cudaStreamSynchronize(NULL))) /* the stream does not wait for the default one */
		return;
	if (on && !b->profiling) {
		/* stretches that are empty, to see what the notes themselves take; the first one is cold */
		struct backend_usage before = b->used;
		b->profiling = true;
		p->last_end = 0;
		for (int i = 0; i < CALIBRATIONS; i++) {
			cuda_profile_begin(b, USAGE_OTHER);
			cuda_profile_end(b);
		}
		base->ops->wait(base, NULL);
		read_events(b);
		double gap = (double)(b->used.idle_ns[USAGE_OTHER] - before.idle_ns[USAGE_OTHER]) /
					 (CALIBRATIONS - 1);
		b->used = before;
		b->used.event_gap_ns = gap;
		p->last_end = 0;
	}
	b->profiling = on;
}
