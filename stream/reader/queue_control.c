/* SPDX-License-Identifier: MIT */
#include "stream/reader/queue_control.h"

#include "src/base/num.h"

/* A shorter time in which the queue is not full counts as full: the owner takes completions and
 * starts further reads. */
#define GAP_NS 200000u
/* Longer reads are tried while a read takes less than this: else the cost of a command is too small
 * beside it to matter. */
#define LONGER_BELOW_NS 1000000.0
#define PAIRS_GAIN      3 /* of windows, at most */
#define PAIRS_LOSS      8
#define PAIRS_SURE      3 /* the least for a variance of the ratios */
#define PAIRS_CONFIRM   16
#define CLEAR_GAIN      1.10 /* decided by the first pair */
#define CLEAR_LOSS      0.98
#define TOO_DEEP_NS     40000000.0 /* of a read: a ratio of 1 is then enough to go shallower */
#define NO_GAIN         1.01
#define SHALLOW_NS      500000.0 /* the latency of most drives is less */
#define MOVED_BY        0.2
#define MOVED_WINDOWS   4
#define SHRINK_STEP     2 /* eighths: a quarter, half, three quarters */
#define SHRINK_LAST     6

static bool same_setting(struct queue_setting a, struct queue_setting b)
{
	return a.depth == b.depth && a.slice == b.slice;
}

/* A queue three quarters full counts as full: reads come back several at a time. */
static unsigned full_from(const struct queue_control *c)
{
	return c->in_force.depth - c->in_force.depth / 4;
}

static void set_in_force(struct queue_control *c, struct queue_setting s)
{
	if (same_setting(s, c->in_force))
		return;
	const unsigned more = MAX(s.depth, c->in_force.depth), less = MIN(s.depth, c->in_force.depth);
	c->settle = s.slice == c->in_force.slice ? more - less + less / 2 + 1 : more + 1;
	c->in_force = s;
	c->full = c->in_flight >= full_from(c);
}

void queue_control_init(
	struct queue_control *c, struct queue_setting start, struct queue_limits limits)
{
	*c = (struct queue_control){.limits = limits,
		.start = start,
		.best = start,
		.in_force = start,
		.found_before = start,
		.settle = start.depth,
		.hold_for_ns = QUEUE_HOLD_NS};
}

static double window_rate(const struct queue_window *w)
{
	return w->ns ? (double)w->bytes * 1e9 / (double)w->ns : 0;
}

static void window_add(struct queue_window *a, const struct queue_window *b)
{
	a->bytes += b->bytes;
	a->ns += b->ns;
	a->reads += b->reads;
	a->latency_ns += b->latency_ns;
}

/* --- the search --- */

/* A depth that QUEUE_SHALLOWER tries; see queue_control.shrink. */
static unsigned shallower(const struct queue_control *c, unsigned shrink)
{
	const double read_ns = c->rate > 0 ? 1e9 * c->best.slice / c->rate : 0;
	const double first = QUEUE_DEPTH_MIN + (read_ns > 0 ? SHALLOW_NS / read_ns : 1024);
	return shrink         ? MAX(c->best.depth * shrink / 8, QUEUE_DEPTH_MIN)
		   : first < 1024 ? (unsigned)first
						  : c->best.depth;
}

/* The setting that this phase tries next; false: none that is allowed. */
static bool next_candidate(const struct queue_control *c, struct queue_setting *s)
{
	const struct queue_setting b = c->best;
	const double read_ns = c->rate > 0 ? 1e9 * b.slice / c->rate : 0;
	*s = b;
	switch (c->phase) {
	case QUEUE_DEEPER:
		s->depth = MIN(2 * b.depth, c->limits.depth_max);
		return s->depth > b.depth && c->latency_ns < QUEUE_LATENCY_DEEP_NS;
	case QUEUE_LONGER:
		s->slice = 2 * b.slice;
		s->depth = MAX(b.depth / 2, QUEUE_DEPTH_MIN);
		return s->slice <= c->limits.slice_max && read_ns < LONGER_BELOW_NS;
	case QUEUE_SHALLOWER:
		s->depth = shallower(c, c->shrink);
		return s->depth < b.depth &&
			   (!c->shrink || s->depth != shallower(c, c->shrink - SHRINK_STEP));
	case QUEUE_SHORTER:
		s->slice = b.slice / 2;
		return s->slice >= c->limits.slice_min && c->latency_ns > QUEUE_LATENCY_SHORT_NS;
	case QUEUE_CONFIRM:
		*s = c->start;
		return !same_setting(b, c->start);
	case QUEUE_FIRST:
	case QUEUE_HOLD:
		break;
	}
	return false;
}

static void enter_phase(struct queue_control *c, enum queue_phase phase)
{
	c->phase = phase;
	c->shrink = 0;
}

static bool near_setting(struct queue_setting a, struct queue_setting b)
{
	const unsigned more = MAX(a.depth, b.depth), less = MIN(a.depth, b.depth);
	return a.slice == b.slice && more - less <= MAX(more / QUEUE_NEAR, 1u);
}

/* True: the setting is to be reported. Where the throughput is flat, searches end at different
 * depths; these are no news. */
static bool begin_hold(struct queue_control *c)
{
	const bool news = !c->found || !near_setting(c->best, c->found_before);
	if (!news)
		c->hold_for_ns = MIN(2 * c->hold_for_ns, QUEUE_HOLD_MAX_NS);
	c->hold_ns = 0;
	c->found = true;
	c->moved = 0;
	if (news)
		c->found_before = c->best;
	return news;
}

/* Begins the next trial of this phase or a later one; when there is none the search has ended.
 * True: with a setting to report. */
static bool next_trial(struct queue_control *c)
{
	while (c->phase != QUEUE_HOLD && !next_candidate(c, &c->candidate)) {
		if (c->phase == QUEUE_SHALLOWER && c->shrink < SHRINK_LAST)
			c->shrink += SHRINK_STEP;
		else
			enter_phase(c, c->phase + 1);
	}
	c->reference = c->best;
	c->windows = 0;
	c->ratios = c->ratios_squared = 0;
	c->sums[0] = c->sums[1] = (struct queue_window){0};
	set_in_force(c, c->best);
	return c->phase == QUEUE_HOLD && begin_hold(c);
}

/* In QUEUE_CONFIRM the candidate is the start. It was faster: `best` goes one step towards it. */
static void step_back(struct queue_control *c)
{
	struct queue_setting *b = &c->best;
	if (b->slice < c->start.slice)
		b->slice *= 2;
	else if (b->depth < c->start.depth)
		b->depth = MIN(2 * b->depth, c->start.depth);
	else
		*b = c->start;
}

enum verdict { UNDECIDED, ACCEPTED, REJECTED };

/* The candidate is the start: accepted if it is faster. Undecided while the mean of the ratios is
 * within one standard error of the limit, which takes more pairs on a noisy drive. */
static enum verdict judge_start(const struct queue_control *c, unsigned pairs)
{
	if (pairs < PAIRS_SURE)
		return UNDECIDED;
	const double mean = c->ratios / pairs, above = mean - 1 / QUEUE_LOSS;
	const double variance = MAX(c->ratios_squared / pairs - mean * mean, 0.0) / (pairs - 1);
	if (pairs < PAIRS_CONFIRM && above * above < variance)
		return UNDECIDED;
	return above > 0 ? ACCEPTED : REJECTED;
}

/* The candidate has less in flight: accepted if it keeps QUEUE_LOSS of the throughput, by one
 * standard error or more. */
static enum verdict judge_loss(const struct queue_control *c, unsigned pairs)
{
	if (pairs < PAIRS_SURE)
		return UNDECIDED;
	const double mean = c->ratios / pairs, above = mean - QUEUE_LOSS;
	const double variance = MAX(c->ratios_squared / pairs - mean * mean, 0.0) / (pairs - 1);
	if (above > 0 && above * above > variance)
		return ACCEPTED;
	return above > 0 && pairs < PAIRS_LOSS ? UNDECIDED : REJECTED;
}

/* ratio: throughput of the candidate / that of the reference. */
static enum verdict judge(const struct queue_control *c, double ratio, unsigned pairs)
{
	switch (c->phase) {
	case QUEUE_DEEPER:
	case QUEUE_LONGER:
		if (ratio < NO_GAIN)
			return REJECTED;
		if (ratio >= CLEAR_GAIN || pairs == PAIRS_GAIN)
			return ratio >= QUEUE_GAIN ? ACCEPTED : REJECTED;
		return UNDECIDED;
	case QUEUE_SHALLOWER:
	case QUEUE_SHORTER:
		if (ratio < CLEAR_LOSS)
			return REJECTED;
		if (ratio >= 1 && c->latency_ns > TOO_DEEP_NS)
			return ACCEPTED;
		return judge_loss(c, pairs);
	default:
		return judge_start(c, pairs);
	}
}

static bool end_trial(struct queue_control *c, enum verdict verdict)
{
	/* After a step back only part of the way the next trial measures `best` again. */
	const struct queue_window *w = &c->sums[verdict == ACCEPTED];
	c->rate = window_rate(w);
	c->latency_ns = (double)w->latency_ns / (double)MAX(w->reads, 1u);
	if (c->phase == QUEUE_CONFIRM) {
		if (verdict == ACCEPTED)
			step_back(c);
		else
			enter_phase(c, QUEUE_HOLD);
	} else if (verdict == ACCEPTED) {
		c->best = c->candidate;
	} else if (c->phase == QUEUE_SHALLOWER && c->shrink < SHRINK_LAST) {
		c->shrink += SHRINK_STEP;
	} else {
		enter_phase(c, c->phase + 1);
	}
	return next_trial(c);
}

static bool begin_search(struct queue_control *c)
{
	c->rate = window_rate(&c->window);
	c->latency_ns = (double)c->window.latency_ns / (double)c->window.reads;
	enter_phase(c, QUEUE_DEEPER);
	return next_trial(c);
}

/* Whether it is time to search again. */
static bool hold_is_over(struct queue_control *c)
{
	const double rate = window_rate(&c->window);
	const bool alike = rate > (1 - MOVED_BY) * c->rate && rate < (1 + MOVED_BY) * c->rate;
	c->hold_ns += c->window.ns;
	c->moved = alike ? 0 : c->moved + 1;
	/* the eighth: a drive whose throughput wavers is not searched all the time */
	return c->hold_ns >= c->hold_for_ns ||
		   (c->moved >= MOVED_WINDOWS && c->hold_ns >= c->hold_for_ns / 8);
}

static bool window_end(struct queue_control *c)
{
	if (c->phase == QUEUE_FIRST || (c->phase == QUEUE_HOLD && hold_is_over(c)))
		return begin_search(c);
	if (c->phase == QUEUE_HOLD)
		return false;
	/* reference, candidate; candidate, reference; ... : one change of setting a pair */
	const unsigned side = (c->windows + 1) / 2 % 2;
	window_add(&c->sums[side], &c->window);
	c->windows++;
	c->rates[side] = window_rate(&c->window);
	if (c->windows % 2 == 0) {
		const double pair = c->rates[1] / c->rates[0];
		c->ratios += pair;
		c->ratios_squared += pair * pair;
		const double ratio = window_rate(&c->sums[1]) / window_rate(&c->sums[0]);
		const enum verdict verdict = judge(c, ratio, c->windows / 2);
		if (verdict != UNDECIDED)
			return end_trial(c, verdict);
	}
	set_in_force(c, (c->windows + 1) / 2 % 2 ? c->candidate : c->reference);
	return false;
}

/* --- what is measured --- */

void queue_control_started(struct queue_control *c, uint64_t now_ns)
{
	c->in_flight++;
	if (c->full || c->in_flight < full_from(c))
		return;
	c->full = true;
	if (now_ns - c->gap_since_ns <= GAP_NS)
		window_add(&c->window, &c->gap);
	else
		c->counted_to_ns = now_ns;
	c->gap = (struct queue_window){0};
}

bool queue_control_done(
	struct queue_control *c, uint64_t bytes, uint64_t latency_ns, uint64_t now_ns)
{
	const struct queue_window read = {.bytes = bytes, .reads = 1, .latency_ns = latency_ns};
	bool found = false;
	c->in_flight--;
	if (c->settle) {
		c->settle--;
		c->window = c->gap = (struct queue_window){0};
		c->counted_to_ns = now_ns;
	} else if (c->full) {
		window_add(&c->window, &read);
		c->window.ns += now_ns - c->counted_to_ns;
		c->counted_to_ns = now_ns;
		if (c->window.ns >=
			(c->window.reads >= QUEUE_WINDOW_READS ? QUEUE_WINDOW_NS : QUEUE_WINDOW_SLOW_NS)) {
			found = window_end(c);
			c->window = (struct queue_window){0};
		}
	} else {
		window_add(&c->gap, &read);
	}
	if (c->full && c->in_flight < full_from(c)) {
		c->full = false;
		c->gap_since_ns = now_ns;
		c->gap = (struct queue_window){0};
	}
	return found;
}
