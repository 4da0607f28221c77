/* SPDX-License-Identifier: MIT */
/*
 * Finds how many reads to keep in flight on a drive, and how long they are: the fewest bytes in
 * flight at which the drive reaches its throughput. A demand waits behind what is in flight, so
 * more would only add latency.
 *
 * In order of use: queue_control_init; then queue_control_started and queue_control_done for every
 * read, and queue_control_setting before each that is started.
 *
 * Method: hill climbing on throughput. A candidate and the present setting take turns, each for a
 * window, so that a drift of the drive affects both. A window is QUEUE_WINDOW_NS long and at least
 * QUEUE_WINDOW_READS reads; with fewer reads it is QUEUE_WINDOW_SLOW_NS long. Only time in which
 * the queue is full counts: else the throughput is that of the requests, not of the drive.
 *   1. deeper, while that gains QUEUE_GAIN and a read takes less than QUEUE_LATENCY_DEEP_NS;
 *   2. longer reads where a read is short, while that gains as much;
 *   3. shallower, and shorter reads where a read takes more than QUEUE_LATENCY_SHORT_NS, while that
 *      loses less than QUEUE_LOSS;
 *   4. the start against the result, until the mean of the ratios of their windows is one standard
 *      error away from 1 / QUEUE_LOSS, at most 16 pairs of windows. If the start is faster by more
 *      than that, the result goes back towards it step by step.
 * The search begins again after QUEUE_HOLD_NS of full queue. This time doubles, up to
 * QUEUE_HOLD_MAX_NS, with each search that ends near the setting found before (QUEUE_NEAR). A
 * throughput that has moved by a fifth begins a search after an eighth of the time.
 *
 * A trial has no time limit. Under light load the queue is seldom full, and a candidate stays in
 * force: harmless, because then the depth limits nothing.
 *
 * No clock, no memory, no thread: the caller says what time it is.
 */
#ifndef GLM_STREAM_QUEUE_CONTROL_H
#define GLM_STREAM_QUEUE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#define QUEUE_WINDOW_READS     24
#define QUEUE_WINDOW_NS        8000000u
#define QUEUE_WINDOW_SLOW_NS   30000000u
#define QUEUE_GAIN             1.02
#define QUEUE_LOSS             0.995
#define QUEUE_LATENCY_DEEP_NS  20000000u
#define QUEUE_LATENCY_SHORT_NS 2000000u
#define QUEUE_HOLD_NS          10000000000u
#define QUEUE_HOLD_MAX_NS      160000000000u
#define QUEUE_NEAR             4 /* depths that differ by one, or by a quarter, are about equal */
/* A drive would do with fewer, but the owner is at times late in starting the next read. */
#define QUEUE_DEPTH_MIN 4u

struct queue_setting {
	unsigned depth; /* reads in flight */
	uint32_t slice; /* bytes of a read */
};

struct queue_limits {
	unsigned depth_max;
	uint32_t slice_min, slice_max; /* equal: reads stay as long as they are */
};

/* Sums over time in which the queue was full. */
struct queue_window {
	uint64_t bytes, ns, reads, latency_ns;
};

enum queue_phase {
	QUEUE_FIRST, /* one window, to know the drive */
	QUEUE_DEEPER,
	QUEUE_LONGER,
	QUEUE_SHALLOWER,
	QUEUE_SHORTER,
	QUEUE_CONFIRM,
	QUEUE_HOLD,
};

struct queue_control {
	struct queue_limits limits;
	struct queue_setting start, best, in_force;
	enum queue_phase phase;
	/* the trial: `in_force` is `best` and the candidate in turns */
	struct queue_setting reference, candidate;
	struct queue_window sums[2];   /* of reference, candidate */
	unsigned windows;              /* of both */
	double rates[2];               /* of the last windows of reference, candidate */
	double ratios, ratios_squared; /* sums over all pairs of windows: candidate / reference */
	/* next depth that QUEUE_SHALLOWER tries, in eighths of best.depth; 0: the depth that hides
	 * SHALLOW_NS */
	unsigned shrink;
	/* the present window */
	struct queue_window window, gap;
	unsigned in_flight;
	unsigned settle; /* completions to ignore after a change of setting */
	bool full;
	uint64_t counted_to_ns, gap_since_ns;
	/* what was found */
	bool found;
	struct queue_setting found_before; /* the last one that queue_control_done reported */
	uint64_t hold_ns, hold_for_ns;
	unsigned moved;    /* windows in a row whose throughput differs from `rate` by a fifth */
	double rate;       /* bytes a second with `best`; 0: unknown */
	double latency_ns; /* mean of a read with `best` */
};

void queue_control_init(
	struct queue_control *c, struct queue_setting start, struct queue_limits limits);

static inline struct queue_setting queue_control_setting(const struct queue_control *c)
{
	return c->in_force;
}

void queue_control_started(struct queue_control *c, uint64_t now_ns);
/* latency_ns: since the read was started. Returns true when a search has ended with a new setting,
 * in `best`: the first one, or one that is not near the last one reported. */
bool queue_control_done(
	struct queue_control *c, uint64_t bytes, uint64_t latency_ns, uint64_t now_ns);

#endif
