/* SPDX-License-Identifier: MIT */
/*
 * Graph segments: ops that are called again and again are replayed as one launch.
 *
 * The first use of a key runs its ops one by one, so that scratch buffers get their size and
 * kernels their attributes. The second use captures them; from then on a use is one graph launch.
 * Deferred expert kernels (deferred_experts.cu) may be among the nodes. A graph holds addresses of
 * scratch buffers: when one of these grows, all captured segments are void and captured again. When
 * the table is full all are forgotten.
 */
#include "kernels/cuda/runtime/timeline.cuh"

extern "C" {
#include "src/base/host/clock.h"
#include "src/base/log.h"
}

#include <stdlib.h>

#define SEGMENT_SLOTS 4096
#define SEGMENTS_MAX  2048

cudaError_t cuda_timeline_open(struct cuda_backend *b)
{
	struct cuda_timeline *t = (struct cuda_timeline *)calloc(1, sizeof *t);
	b->timeline = t;
	if (!t || !(t->segments = (struct cuda_segment *)calloc(SEGMENT_SLOTS, sizeof *t->segments)))
		return cudaErrorMemoryAllocation;
	cudaError_t rc;
	if ((rc = cudaHostAlloc((void **)&t->signaled, sizeof *t->signaled, cudaHostAllocMapped)) ||
		(rc = cudaMalloc((void **)&t->count, sizeof *t->count)) ||
		(rc = cudaMalloc((void **)&t->profile, sizeof *t->profile)) ||
		(rc = cudaMemset(t->profile, 0, sizeof *t->profile)))
		return rc;
	if ((rc = cudaEventCreateWithFlags(&t->handed, cudaEventDisableTiming)))
		return rc;
	*t->signaled = 0;
	return cudaMemset(t->count, 0, sizeof *t->count);
}

/* Makes the segment void; its key stays. Precondition: no deferred kernel of it waits for messages.
 */
static void segment_clear(struct cuda_segment *s)
{
	if (s->exec)
		cudaGraphExecDestroy(s->exec);
	free(s->deferred);
	uint64_t key = s->key;
	*s = (struct cuda_segment){};
	s->key = key;
}

static void segments_forget(struct cuda_backend *b)
{
	struct cuda_timeline *t = b->timeline;
	cuda_deferred_drain(b);
	for (int i = 0; i < SEGMENT_SLOTS; i++) {
		segment_clear(&t->segments[i]);
		t->segments[i].key = 0;
	}
	t->n_segments = 0;
}

void cuda_timeline_close(struct cuda_backend *b)
{
	struct cuda_timeline *t = b->timeline;
	if (!t)
		return;
	if (t->segments)
		segments_forget(b);
	if (t->handed)
		cudaEventDestroy(t->handed);
	cudaFreeHost(t->signaled);
	cudaFree(t->count);
	cudaFree(t->profile);
	cudaFree(t->ring);
	free(t->events);
	free(t->kind);
	free(t->segments);
	free(t);
	b->timeline = NULL;
}

/* The key's entry; a free one if the key is new. */
static struct cuda_segment *segment_find(struct cuda_backend *b, uint64_t key)
{
	struct cuda_timeline *t = b->timeline;
	if (t->n_segments == SEGMENTS_MAX)
		segments_forget(b);
	uint64_t at = (key * 0x9e3779b97f4a7c15ull) >> 32;
	while (t->segments[at % SEGMENT_SLOTS].key && t->segments[at % SEGMENT_SLOTS].key != key + 1)
		at++;
	struct cuda_segment *s = &t->segments[at % SEGMENT_SLOTS];
	t->n_segments += !s->key;
	return s;
}

/* fence: backend.fence_value before the segment */
static void segment_launch(struct cuda_backend *b, struct cuda_segment *s, uint64_t fence)
{
	cuda_profile_end(b);
	cuda_profile_begin(b, USAGE_GRAPH);
	if (!cuda_check(b, cudaGraphLaunch(s->exec, b->stream)))
		return;
	b->used.launches += s->n_nodes;
	b->used.graph_launches++;
	b->deferred = s->deferred;
	b->n_deferred = s->n_deferred;
	b->deferred_fence = fence;
	b->posted_ranks = 0;
	for (int i = 0; i < s->n_deferred && b->in_interval; i++) {
		cuda_profile_enqueued(b, USAGE_EXPERTS);
		if (s->deferred[i].has_successor)
			cuda_profile_enqueued(b, USAGE_GRAPH);
	}
	cuda_profile_end(b);
}

static void capture_begin(struct cuda_backend *b, struct cuda_segment *s)
{
	struct cuda_timeline *t = b->timeline;
	segment_clear(s);
	t->capture_began_ns = clock_ns();
	if (!cuda_check(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal)))
		return;
	t->capturing = s;
	t->capture_fence = b->base.fence_value;
	b->capturing = true;
}

/* Returns the captured segment; NULL: there is none, or the capture failed. */
static struct cuda_segment *capture_end(struct cuda_backend *b)
{
	struct cuda_timeline *t = b->timeline;
	struct cuda_segment *s = t->capturing;
	cudaGraph_t graph = NULL;
	if (!s)
		return NULL;
	t->capturing = NULL;
	b->capturing = false;
	b->op = "capturing a graph";
	cudaError_t rc = cudaStreamEndCapture(b->stream, &graph);
	if (!b->base.failure.code && cuda_check(b, rc) &&
		cuda_check(b, cudaGraphGetNodes(graph, NULL, &s->n_nodes)) &&
		cuda_check(b, cudaGraphInstantiate(&s->exec, graph, 0))) {
		s->generation = b->generation;
		s->n_fences = b->base.fence_value - t->capture_fence;
	}
	if (graph)
		cudaGraphDestroy(graph);
	b->used.graphs_captured++;
	b->used.capture_ns += clock_ns() - t->capture_began_ns;
	return b->base.failure.code ? NULL : s;
}

enum segment_mode cuda_segment_begin(struct backend *base, uint64_t key)
{
	struct cuda_backend *b = cuda_of(base);
	b->op = "graph";
	cuda_select(b->device);
	if (base->failure.code || b->no_graphs)
		return SEGMENT_EAGER;
	cuda_deferred_drain(b);
	b->deferred_lost = false;
	struct cuda_segment *s = segment_find(b, key);
	if (s->exec && s->generation == b->generation) {
		segment_launch(b, s, base->fence_value);
		base->fence_value += s->n_fences;
		return SEGMENT_REPLAYED;
	}
	if (!s->key) {
		s->key = key + 1;
		return SEGMENT_EAGER;
	}
	if (b->capture_pause) {
		b->capture_pause--;
		return SEGMENT_EAGER;
	}
	cuda_profile_end(b);
	capture_begin(b, s);
	return SEGMENT_CAPTURE;
}

void cuda_segment_end(struct backend *base)
{
	struct cuda_segment *s = capture_end(cuda_of(base));
	if (s)
		segment_launch(cuda_of(base), s, base->fence_value - s->n_fences);
}

bool cuda_segment_add_deferred(struct cuda_backend *b, const struct deferred_experts *d)
{
	struct cuda_timeline *t = b->timeline;
	struct cuda_segment *s = t->capturing;
	if (!b->capturing || !s)
		return false;
	uint64_t n_fences = b->base.fence_value - t->capture_fence;
	void *grown = realloc(s->deferred, ((size_t)s->n_deferred + 1) * sizeof *s->deferred);
	if (n_fences == (s->n_deferred ? s->deferred[s->n_deferred - 1].n_fences : 0))
		err_set(&b->base.failure, ERR_RUN, "cuda: experts_deferred: no fence before it");
	else if (!grown)
		err_set(&b->base.failure, ERR_MEMORY, "cuda: experts_deferred: no memory");
	s->deferred = grown ? (struct deferred_experts *)grown : s->deferred;
	if (b->base.failure.code)
		return false;
	s->deferred[s->n_deferred] = *d;
	s->deferred[s->n_deferred++].n_fences = n_fences;
	return true;
}

struct cuda_profile *cuda_deferred_successor(struct cuda_backend *b)
{
	struct cuda_segment *s = b->timeline->capturing;
	if (!b->capturing || !s || !s->n_deferred || s->deferred[s->n_deferred - 1].has_successor)
		return NULL;
	s->deferred[s->n_deferred - 1].has_successor = true;
	return b->timeline->profile;
}

void cuda_segments_drop(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	if (!b->timeline->n_segments)
		return;
	cuda_select(b->device);
	cuda_deferred_drain(b);
	b->deferred_lost = false;
	cudaStreamSynchronize(b->stream);
	log_verbose("cuda: %llu graphs captured in %.1f ms, %llu replays",
		(unsigned long long)b->used.graphs_captured, (double)b->used.capture_ns * 1e-6,
		(unsigned long long)b->used.graph_launches);
	segments_forget(b);
}
