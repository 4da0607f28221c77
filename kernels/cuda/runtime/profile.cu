/* SPDX-License-Identifier: MIT */
/*
 * Profiling: busy and idle time of the device by kind of work, while `measure` is on.
 *
 * A profile event is a timestamp of the device's clock. Events come in pairs, the begin and the end
 * of an interval of work, and go to a ring in device memory: by timestamp_kernel, and within a
 * graph by the deferred expert kernels and the moe_combine behind them. The host knows the kinds of
 * the intervals from the calls; it reads the ring when it has waited for the stream anyway.
 *
 * timestamp_kernel: grid 1, block 1. Bytes moved: none to speak of.
 */
#include "kernels/cuda/runtime/timeline.cuh"

#include <stdlib.h>

#define CALIBRATIONS 64

static __global__ void timestamp_kernel(struct cuda_profile *profile)
{
	profile->ring[profile->n++ % PROFILE_EVENTS] = device_clock();
}

struct cuda_profile *cuda_profile_events(struct cuda_backend *b)
{
	return b->timeline->profile;
}

static void timestamp_enqueue(struct cuda_backend *b)
{
	struct cuda_timeline *t = b->timeline;
	cuda_select(b->device); /* not every caller has, cuda_fence_wait for one */
	timestamp_kernel<<<1, 1, 0, b->stream>>>(t->profile);
	cuda_check(b, cudaGetLastError());
	t->n_events++;
	b->in_interval = t->n_events % 2;
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

void cuda_profile_enqueued(struct cuda_backend *b, enum usage_kind kind)
{
	b->timeline->n_events += 2;
	b->timeline->kind[b->timeline->n_events % PROFILE_EVENTS / 2] = (uint8_t)kind;
}

/* Adds the events that have not been read to the counters. The stream has been waited for, and the
 * last interval has ended. */
static void read_events(struct cuda_backend *b)
{
	struct cuda_timeline *t = b->timeline;
	if (t->n_events == t->n_read || b->base.failure.code ||
		!cuda_check(b, cudaMemcpy(t->events, t->ring, PROFILE_EVENTS * sizeof *t->events,
						   cudaMemcpyDeviceToHost)))
		return;
	for (; t->n_read < t->n_events; t->n_read += 2) {
		uint64_t at = t->n_read % PROFILE_EVENTS, begin = t->events[at], end = t->events[at + 1];
		enum usage_kind kind = (enum usage_kind)t->kind[at / 2];
		b->used.n_intervals[kind]++;
		b->used.busy_ns[kind] += end - begin;
		if (t->last_end)
			b->used.idle_ns[kind] += begin - t->last_end;
		t->last_end = end;
	}
	unsigned long long waited = 0;
	if (cuda_check(
			b, cudaMemcpy(&waited, &t->profile->waited, sizeof waited, cudaMemcpyDeviceToHost))) {
		b->used.busy_ns[USAGE_EXPERTS] -= waited - t->waited;
		b->used.idle_ns[USAGE_EXPERTS] += waited - t->waited;
		t->waited = waited;
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

static bool ring_open(struct cuda_backend *b)
{
	struct cuda_timeline *t = b->timeline;
	if (t->ring)
		return true;
	t->kind = t->kind ? t->kind : (uint8_t *)calloc(PROFILE_EVENTS / 2, 1);
	t->events =
		t->events ? t->events : (unsigned long long *)calloc(PROFILE_EVENTS, sizeof *t->events);
	if (!t->kind || !t->events)
		err_set(&b->base.failure, ERR_MEMORY, "cuda: measure: no memory for the profile events");
	return !b->base.failure.code &&
		   cuda_check(b, cudaMalloc((void **)&t->ring, PROFILE_EVENTS * sizeof *t->ring));
}

/* Empty intervals show what the events themselves take. The first one is cold. */
static void calibrate(struct cuda_backend *b)
{
	struct backend_usage before = b->used;
	b->profiling = true;
	b->timeline->last_end = 0;
	for (int i = 0; i < CALIBRATIONS; i++) {
		cuda_profile_begin(b, USAGE_OTHER);
		cuda_profile_end(b);
	}
	b->base.ops->wait(&b->base, NULL);
	read_events(b);
	double gap =
		(double)(b->used.idle_ns[USAGE_OTHER] - before.idle_ns[USAGE_OTHER]) / (CALIBRATIONS - 1);
	b->used = before;
	b->used.event_gap_ns = gap;
	b->timeline->last_end = 0;
}

void cuda_measure(struct backend *base, bool on)
{
	struct cuda_backend *b = cuda_of(base);
	struct cuda_timeline *t = b->timeline;
	base->ops->wait(base, NULL);
	cuda_select(b->device);
	b->op = "measure";
	if (on && !ring_open(b))
		return;
	unsigned long long *ring = on ? t->ring : NULL;
	/* a copy in the default stream; b->stream does not wait for that one */
	if (!cuda_check(b, cudaMemcpy(&t->profile->ring, &ring, sizeof ring, cudaMemcpyHostToDevice)) ||
		!cuda_check(b, cudaStreamSynchronize(NULL)))
		return;
	if (on && !b->profiling)
		calibrate(b);
	b->profiling = on;
}
