/* SPDX-License-Identifier: MIT */
/*
 * How the host follows the device, and how lists of ops become one launch.
 *
 * Marks: a counter on the device, raised by a kernel of one thread that writes the new count to pinned memory. Counts in
 * stream order are tickets, also when the kernel is a node of a replayed graph. The host spins on the pinned word, and now and then
 * asks the driver whether the device is still there.
 *
 * Graphs: the first use of a key runs its ops as they come, so that scratch has its size and kernels their settings; the second
 * records them; from then on they are one launch. Recordings hold addresses of scratch memory: when that grows they are void and
 * made again. When the table is full all are forgotten.
 *
 * Timing: kernels of one thread note the device's clock where a stretch of ops begins and ends, in turns, into a ring.
 */
#include "kernels/cuda/cuda_common.cuh"

extern "C" {
#include "src/base/clock.h"
#include "src/base/log.h"
}

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SPINS        4096 /* looks at the mark before the driver is asked; about 0.1 ms */
#define SILENCE_NS   120000000000ull
#define PATIENCE_NS  2000000 /* then the processor is offered to others between looks */
#define GRAPH_SLOTS  4096
#define GRAPHS_MAX   2048
#define NOTES        65536
#define CALIBRATIONS 64

struct graph {
	uint64_t key; /* + 1; 0: free */
	cudaGraphExec_t exec;
	uint64_t generation;
	size_t n_nodes;
	uint64_t n_marks;
};

/* What ops use while they are enqueued elsewhere than in the main line; exchanged with what stands in the backend. */
struct line {
	cudaStream_t stream;
	struct cuda_room scratch, columns;
};

enum { MARKS, ASIDES, NOTES_MADE, COUNTS };

struct cuda_pipe {
	uint64_t *reached;         /* pinned: [0] the latest mark, [1] the latest aside */
	unsigned long long *count; /* device: [COUNTS] */
	struct graph *graphs;      /* [GRAPH_SLOTS] */
	struct graph *now;         /* being recorded */
	int n_graphs;
	uint64_t now_marks, now_ns;
	struct line side, aside; /* branches of a recording; what runs beside all */
	cudaEvent_t forked, ended, passed;
	bool aside_running;        /* since it was waited for last */
	bool replayed, streams;    /* the aside in hand: it was; its ops go to a stream of their own */
	uint64_t in_main;          /* the latest aside that ran in the main line */
	unsigned long long *notes; /* device [NOTES]: begin, end, begin, ... ; NULL until wanted */
	uint8_t *kind;             /* [NOTES / 2] of each begin: enum usage_kind */
	uint64_t n_notes, n_read;
	uint64_t last_end; /* 0: none */
};

static __global__ void mark_kernel(unsigned long long *count, volatile unsigned long long *reached)
{
	unsigned long long n = *count + 1;
	*count = n;
	__threadfence_system();
	*reached = n;
}

static __global__ void note_kernel(unsigned long long *count, unsigned long long *notes)
{
	unsigned long long t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	notes[*count % NOTES] = t;
	++*count;
}

cudaError_t cuda_pipe_open(struct cuda_backend *b)
{
	struct cuda_pipe *p = (struct cuda_pipe *)calloc(1, sizeof *p);
	b->pipe = p;
	if (!p || !(p->graphs = (struct graph *)calloc(GRAPH_SLOTS, sizeof *p->graphs)))
		return cudaErrorMemoryAllocation;
	cudaError_t rc;
	int least, most;
	if ((rc = cudaHostAlloc((void **)&p->reached, 2 * sizeof *p->reached, cudaHostAllocMapped)) ||
		(rc = cudaMalloc((void **)&p->count, COUNTS * sizeof *p->count)) ||
		(rc = cudaDeviceGetStreamPriorityRange(&least, &most)))
		return rc;
	p->reached[MARKS] = p->reached[ASIDES] = 0;
	if ((rc = cudaStreamCreateWithFlags(&p->side.stream, cudaStreamNonBlocking)) ||
		(rc = cudaStreamCreateWithPriority(&p->aside.stream, cudaStreamNonBlocking, most)) ||
		(rc = cudaEventCreateWithFlags(&p->passed, cudaEventDisableTiming)) ||
		(rc = cudaEventCreateWithFlags(&p->forked, cudaEventDisableTiming)) ||
		(rc = cudaEventCreateWithFlags(&p->ended, cudaEventDisableTiming)))
		return rc;
	return cudaMemset(p->count, 0, COUNTS * sizeof *p->count);
}

static void forget_graphs(struct cuda_pipe *p)
{
	for (int i = 0; i < GRAPH_SLOTS; i++)
		if (p->graphs[i].exec)
			cudaGraphExecDestroy(p->graphs[i].exec);
	memset(p->graphs, 0, GRAPH_SLOTS * sizeof *p->graphs);
	p->n_graphs = 0;
}

static void close_line(struct line *l)
{
	if (l->stream)
		cudaStreamDestroy(l->stream);
	cudaFree(l->scratch.data);
	cudaFree(l->columns.data);
}

void cuda_pipe_close(struct cuda_backend *b)
{
	struct cuda_pipe *p = b->pipe;
	if (!p)
		return;
	if (p->graphs)
		forget_graphs(p);
	if (p->aside.stream)
		cudaStreamSynchronize(p->aside.stream);
	close_line(&p->side);
	close_line(&p->aside);
	cudaEvent_t *const events[] = {&p->forked, &p->ended, &p->passed};
	for (int i = 0; i < 3; i++)
		if (*events[i])
			cudaEventDestroy(*events[i]);
	cudaFreeHost(p->reached);
	cudaFree(p->count);
	cudaFree(p->notes);
	free(p->kind);
	free(p->graphs);
	free(p);
	b->pipe = NULL;
}

/* ---- marks ------------------------------------------------------------------------------------------------ */

/* In the line that ops are enqueued in now. */
static void put_mark(struct cuda_backend *b, int which)
{
	if (!cuda_begin(&b->base, "mark"))
		return;
	mark_kernel<<<1, 1, 0, b->stream>>>(
		b->pipe->count + which, (unsigned long long *)b->pipe->reached + which);
	cuda_launched(b);
}

static bool has_reached(struct cuda_backend *b, int which, uint64_t ticket)
{
	return __atomic_load_n(b->pipe->reached + which, __ATOMIC_ACQUIRE) >= ticket;
}

/* The driver's word on a device that has not reached a mark; `since`: when the wait began. False: there is no use in waiting. */
static bool still_there(
	struct cuda_backend *b, cudaStream_t stream, int which, uint64_t ticket, uint64_t since)
{
	cudaError_t rc = cudaStreamQuery(stream);
	if (rc == cudaErrorNotReady) {
		cudaGetLastError(); /* not a failure */
		if (clock_ns() - since < SILENCE_NS)
			return true;
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s or an op before it: the device has not answered for %llu s", b->op,
			(unsigned long long)(SILENCE_NS / 1000000000));
		return false;
	}
	if (rc != cudaSuccess)
		err_set(&b->base.failure, ERR_RUN, "cuda: %s or an op before it: %s", b->op, cudaGetErrorString(rc));
	else if (!has_reached(b, which, ticket))
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: mark %llu has not come, the last was %llu", b->op,
			(unsigned long long)ticket, (unsigned long long)b->pipe->reached[which]);
	return !b->base.failure.code;
}

static int wait_reached(
	struct cuda_backend *b, cudaStream_t stream, int which, uint64_t ticket, struct err *e)
{
	uint64_t since = 0;
	for (unsigned spins = 1; !b->base.failure.code && !has_reached(b, which, ticket); spins++) {
		if (spins % SPINS) {
#if defined(__x86_64__)
			__builtin_ia32_pause();
#endif
			continue;
		}
		since = since ? since : clock_ns();
		if (!still_there(b, stream, which, ticket, since))
			break;
		if (clock_ns() - since > PATIENCE_NS)
			sched_yield();
	}
	if (b->base.failure.code && e)
		*e = b->base.failure;
	return b->base.failure.code;
}

uint64_t cuda_mark(struct backend *base)
{
	put_mark(cuda_of(base), MARKS);
	return ++base->marks;
}

bool cuda_reached(struct backend *b, uint64_t ticket)
{
	return has_reached(cuda_of(b), MARKS, ticket);
}

int cuda_wait_mark(struct backend *b, uint64_t ticket, struct err *e)
{
	cuda_note_end(cuda_of(b));
	return wait_reached(cuda_of(b), cuda_of(b)->stream, MARKS, ticket, e);
}

/* ---- graphs ----------------------------------------------------------------------------------------------- */

/* The key's entry, made if there is none. */
static struct graph *find(struct cuda_pipe *p, uint64_t key)
{
	if (p->n_graphs == GRAPHS_MAX)
		forget_graphs(p);
	uint64_t at = (key * 0x9e3779b97f4a7c15ull) >> 32;
	while (p->graphs[at % GRAPH_SLOTS].key && p->graphs[at % GRAPH_SLOTS].key != key + 1)
		at++;
	struct graph *g = &p->graphs[at % GRAPH_SLOTS];
	p->n_graphs += !g->key;
	return g;
}

static void launch(struct cuda_backend *b, struct graph *g, cudaStream_t stream)
{
	cuda_check(b, cudaGraphLaunch(g->exec, stream));
	b->used.launches += g->n_nodes;
	b->used.graph_launches++;
}

static void launch_main(struct cuda_backend *b, struct graph *g)
{
	cuda_note_end(b);
	cuda_note_begin(b, USAGE_GRAPH);
	launch(b, g, b->stream);
	cuda_note_end(b);
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
	struct cuda_pipe *p = b->pipe;
	if (g->exec)
		cudaGraphExecDestroy(g->exec);
	g->exec = NULL;
	p->now_ns = clock_ns();
	if (!cuda_check(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal)))
		return;
	p->now = g;
	p->now_marks = b->base.marks;
	b->capturing = true;
}

/* Returns what was recorded, NULL when nothing was or it failed. */
static struct graph *end_recording(struct cuda_backend *b)
{
	struct cuda_pipe *p = b->pipe;
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
		g->n_marks = b->base.marks - p->now_marks;
	}
	if (graph)
		cudaGraphDestroy(graph);
	b->used.graphs_recorded++;
	b->used.record_ns += clock_ns() - p->now_ns;
	return b->base.failure.code ? NULL : g;
}

bool cuda_graph_begin(struct backend *base, uint64_t key)
{
	struct cuda_backend *b = cuda_of(base);
	b->op = "graph";
	if (base->failure.code || b->no_graphs)
		return true;
	struct graph *g = find(b->pipe, key);
	if (is_valid(b, g)) {
		launch_main(b, g);
		base->marks += g->n_marks;
		return false;
	}
	if (is_new(g, key))
		return true;
	cuda_note_end(b);
	begin_recording(b, g);
	return true;
}

void cuda_graph_end(struct backend *base)
{
	struct graph *g = end_recording(cuda_of(base));
	if (g)
		launch_main(cuda_of(base), g);
}

void cuda_graph_drop(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	if (!b->pipe->n_graphs)
		return;
	cudaStreamSynchronize(b->stream);
	cudaStreamSynchronize(b->pipe->aside.stream);
	log_verbose("cuda: %llu graphs recorded in %.1f ms, %llu replays",
		(unsigned long long)b->used.graphs_recorded, (double)b->used.record_ns * 1e-6,
		(unsigned long long)b->used.graph_launches);
	forget_graphs(b->pipe);
}

/* ---- sides and asides ------------------------------------------------------------------------------------- */

/* Ops use the scratch of this line from now on, and its stream if they are not to run in the main one. */
static void exchange(struct cuda_backend *b, struct line *l, bool streams)
{
	b->next_waits = true;
	struct line mine = {b->stream, b->scratch, b->columns};
	b->scratch = l->scratch;
	b->columns = l->columns;
	l->scratch = mine.scratch;
	l->columns = mine.columns;
	if (!streams)
		return;
	b->stream = l->stream;
	l->stream = mine.stream;
}

void cuda_side_begin(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	struct cuda_pipe *p = b->pipe;
	if (b->capturing && cuda_check(b, cudaEventRecord(p->forked, b->stream)))
		cuda_check(b, cudaStreamWaitEvent(p->side.stream, p->forked, 0));
	exchange(b, &p->side, b->capturing);
}

void cuda_side_end(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	if (b->capturing)
		cuda_check(b, cudaEventRecord(b->pipe->ended, b->stream));
	exchange(b, &b->pipe->side, b->capturing);
}

void cuda_side_join(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	if (b->capturing)
		cuda_check(b, cudaStreamWaitEvent(b->stream, b->pipe->ended, 0));
	b->next_waits = true;
}

/* What `to` gets from now on waits for what `from` has got. */
static void follow(struct cuda_backend *b, cudaStream_t to, cudaStream_t from)
{
	b->next_waits = true;
	if (cuda_check(b, cudaEventRecord(b->pipe->passed, from)))
		cuda_check(b, cudaStreamWaitEvent(to, b->pipe->passed, 0));
}

static void launch_aside(struct cuda_backend *b, struct graph *g)
{
	struct cuda_pipe *p = b->pipe;
	follow(b, p->aside.stream, b->stream);
	launch(b, g, p->aside.stream);
	p->aside_running = true;
}

/* What is not recorded runs in the main line. */
bool cuda_aside_begin(struct backend *base, uint64_t key)
{
	struct cuda_backend *b = cuda_of(base);
	struct cuda_pipe *p = b->pipe;
	b->op = "aside";
	struct graph *g = key && !b->no_graphs && !base->failure.code ? find(p, key) : NULL;
	p->replayed = g && is_valid(b, g);
	if (p->replayed) {
		launch_aside(b, g);
		return false;
	}
	p->streams = g && !is_new(g, key);
	exchange(b, &p->aside, p->streams);
	if (p->streams)
		begin_recording(b, g);
	else if (p->aside_running)
		follow(b, b->stream, p->aside.stream);
	return true;
}

uint64_t cuda_aside_end(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	struct cuda_pipe *p = b->pipe;
	uint64_t ticket = ++base->asides;
	if (p->replayed)
		return ticket;
	put_mark(b, ASIDES);
	struct graph *g = end_recording(b);
	exchange(b, &p->aside, p->streams);
	if (!p->streams)
		p->in_main = ticket;
	else if (g)
		launch_aside(b, g);
	return ticket;
}

/* An aside in the main line has waited for those before it in the other stream: the main stream answers for all up to it. */
int cuda_wait_aside(struct backend *base, uint64_t ticket, struct err *e)
{
	struct cuda_backend *b = cuda_of(base);
	return wait_reached(b, ticket <= b->pipe->in_main ? b->stream : b->pipe->aside.stream, ASIDES, ticket, e);
}

/* ---- usage ------------------------------------------------------------------------------------------------ */

static void note(struct cuda_backend *b)
{
	struct cuda_pipe *p = b->pipe;
	note_kernel<<<1, 1, 0, b->stream>>>(p->count + NOTES_MADE, p->notes);
	cuda_check(b, cudaGetLastError());
	p->n_notes++;
	b->in_stretch = p->n_notes % 2;
}

void cuda_note_begin(struct cuda_backend *b, enum usage_kind kind)
{
	if (!b->timing || b->in_stretch || b->capturing || b->base.failure.code)
		return;
	b->pipe->kind[b->pipe->n_notes % NOTES / 2] = (uint8_t)kind;
	note(b);
}

void cuda_note_end(struct cuda_backend *b)
{
	if (b->timing && b->in_stretch && !b->capturing && !b->base.failure.code)
		note(b);
}

/* The notes not read yet, into busy and idle time. The stream has been waited for, the last stretch has ended. */
static void read_notes(struct cuda_backend *b)
{
	struct cuda_pipe *p = b->pipe;
	static unsigned long long notes[NOTES]; /* one thread computes */
	if (p->n_notes == p->n_read || b->base.failure.code ||
		!cuda_check(b, cudaMemcpy(notes, p->notes, sizeof notes, cudaMemcpyDeviceToHost)))
		return;
	for (; p->n_read < p->n_notes; p->n_read += 2) {
		uint64_t begin = notes[p->n_read % NOTES], end = notes[p->n_read % NOTES + 1];
		enum usage_kind kind = (enum usage_kind)p->kind[p->n_read % NOTES / 2];
		b->used.n_stretches[kind]++;
		b->used.busy_ns[kind] += end - begin;
		if (p->last_end)
			b->used.idle_ns[kind] += begin - p->last_end;
		p->last_end = end;
	}
}

void cuda_pipe_drained(struct cuda_backend *b)
{
	if (b->pipe->aside_running)
		cuda_check(b, cudaStreamSynchronize(b->pipe->aside.stream));
	b->pipe->aside_running = false;
	if (b->timing && !b->in_stretch && b->pipe->n_notes - b->pipe->n_read > NOTES / 2)
		read_notes(b);
}

void cuda_usage(struct backend *base, struct backend_usage *out)
{
	struct cuda_backend *b = cuda_of(base);
	if (b->timing) {
		base->ops->wait(base, NULL);
		read_notes(b);
	}
	*out = b->used;
}

void cuda_measure(struct backend *base, bool on)
{
	struct cuda_backend *b = cuda_of(base);
	struct cuda_pipe *p = b->pipe;
	base->ops->wait(base, NULL);
	b->op = "measure";
	if (on && !p->notes) {
		p->kind = (uint8_t *)calloc(NOTES / 2, 1);
		if (!p->kind || !cuda_check(b, cudaMalloc((void **)&p->notes, NOTES * sizeof *p->notes)))
			return;
	}
	if (on && !b->timing) {
		/* stretches that are empty, to see what the notes themselves take; the first one is cold */
		struct backend_usage before = b->used;
		b->timing = true;
		p->last_end = 0;
		for (int i = 0; i < CALIBRATIONS; i++) {
			cuda_note_begin(b, USAGE_OTHER);
			cuda_note_end(b);
		}
		base->ops->wait(base, NULL);
		read_notes(b);
		double gap =
			(double)(b->used.idle_ns[USAGE_OTHER] - before.idle_ns[USAGE_OTHER]) / (CALIBRATIONS - 1);
		b->used = before;
		b->used.gap_ns = gap;
		p->last_end = 0;
	}
	b->timing = on;
}
