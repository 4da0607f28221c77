/* SPDX-License-Identifier: MIT */
/*
 * The part of reading that is the same for every engine. A request waits in one of two queues
 * (urgent, normal) and is cut into slices only as drives have room:
 *
 *     submit -> [urgent][normal] -> op in flight on a drive -> last slice back -> [done] -> reap
 *                                     ^ short read, EAGAIN, EINVAL of O_DIRECT: a retry
 *
 * A drive has at most drive_depth ops in flight, those that wait for a retry included, except ops
 * that were moved to it from a copy that failed. A request is finished when it has no more slices
 * to start and none in flight. After a fault or a cancel no more are started, so the memory of a
 * finished request is never written again. Slices are started from the front, so the bytes before
 * the lowest fault are all there.
 */
#include "stream/reader/reader_core.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/num.h"

#include <errno.h>

/* EAGAIN and EINTR in a row without a byte; with the pauses below about 1.3 s */
#define TRIES_MAX    40
#define PAUSE_MAX_NS 50000000u

/* Reads in the moving average drive_queue.rate. */
#define RATE_READS 16
/* The drive of a replica is measured again, by one read, when it has been idle for PROBE_NS and for
 * PROBE times the expected time of that read (PROBE_URGENT times if the read is urgent: its request
 * waits for it). */
#define PROBE_NS     1000000000u
#define PROBE        10
#define PROBE_URGENT 25

uint64_t reader_now(const struct reader *r)
{
	return r->engine->now ? r->engine->now(r->state) : clock_ns();
}

unsigned drive_depth(const struct drive_queue *drive)
{
	return drive->adapts ? queue_control_setting(&drive->control).depth : drive->depth;
}

/* --- queues --- */

static void queue_push(struct request_queue *q, struct queued_request *rq)
{
	rq->after = NULL;
	rq->before = q->tail;
	if (q->tail)
		q->tail->after = rq;
	else
		q->head = rq;
	q->tail = rq;
}

static void queue_remove(struct request_queue *q, struct queued_request *rq)
{
	if (rq->before)
		rq->before->after = rq->after;
	else
		q->head = rq->after;
	if (rq->after)
		rq->after->before = rq->before;
	else
		q->tail = rq->before;
	rq->before = rq->after = NULL;
}

static uint64_t *queued_bytes(struct reader *r, const struct queued_request *rq)
{
	return rq->q.urgent ? &r->urgent_bytes : &r->normal_bytes;
}

/* Takes a request out of its queue: no more slices of it are started. */
static void request_unqueue(struct reader *r, struct queued_request *rq)
{
	if (rq->queued) {
		queue_remove(rq->q.urgent ? &r->urgent : &r->normal, rq);
		*queued_bytes(r, rq) -= rq->q.bytes - rq->next;
	}
	rq->queued = false;
}

/* --- one request --- */

static void request_finish_if_idle(struct reader *r, struct queued_request *rq)
{
	if (!rq->live || rq->queued || rq->in_flight)
		return;
	rq->live = false;
	r->n_live--;
	r->n_done++;
	queue_push(&r->done, rq);
	if (rq->code == 0)
		r->stats.completed++;
	else if (rq->cancelled)
		r->stats.cancelled++;
	else
		r->stats.failed++;
}

static void request_fail(
	struct reader *r, struct queued_request *rq, uint64_t at, int code, uint32_t handle)
{
	if (rq->code == 0 || (!rq->cancelled && at < rq->fail_at)) {
		rq->code = code;
		rq->fail_at = at;
		rq->failed = handle;
	}
	request_unqueue(r, rq);
}

/* --- ops --- */

static void say_found(const struct reader *r, const struct reader_op *op)
{
	const struct queue_control *c = &r->drives[op->drive].control;
	log_verbose("reader: drive %u of %u: depth %u, slices of %u KiB (%.2f GB/s, %.2f ms a slice)",
		op->drive + 1, r->files.n_drives, c->best.depth, c->best.slice >> 10, c->rate * 1e-9,
		c->latency_ns * 1e-6);
}

/* Updates the rate of a drive from a read that has ended. */
static void op_measure(struct reader *r, const struct reader_op *op)
{
	struct drive_queue *drive = &r->drives[op->drive];
	const uint64_t now = reader_now(r), ns = MAX(now - op->started_ns, 1u);
	const double rate = (double)op->bytes_at_start * 1e9 / (double)ns;
	if (op->done == op->slice) {
		drive->n_rates = MIN(drive->n_rates + 1, RATE_READS);
		drive->rate += (rate - drive->rate) / drive->n_rates;
	}
	drive->measured_ns = now; /* also when it failed: not probed by every request */
	if (drive->adapts && queue_control_done(&drive->control, op->done, ns, now))
		say_found(r, op);
}

/* The op is one of those in flight on the drive of this copy. */
static void op_enter_drive(struct reader *r, struct reader_op *op, uint32_t handle)
{
	struct drive_queue *drive = &r->drives[r->files.h[handle].drive];
	op->handle = handle;
	op->drive = r->files.h[handle].drive;
	op->tries = 0;
	drive->in_flight++;
	drive->bytes_in_flight += op->slice;
	op->bytes_at_start = drive->bytes_in_flight;
	op->started_ns = reader_now(r);
	if (drive->adapts)
		queue_control_started(&drive->control, op->started_ns);
}

static void op_leave_drive(struct reader *r, struct reader_op *op)
{
	struct drive_queue *drive = &r->drives[op->drive];
	op_measure(r, op);
	drive->in_flight--;
	drive->bytes_in_flight -= op->slice;
}

static void op_release(struct reader *r, struct reader_op *op)
{
	op_leave_drive(r, op);
	op->rq->in_flight--;
	r->op_state[op - r->ops] = OP_FREE;
	op->rq = NULL;
	op->link = r->free_ops;
	r->free_ops = op;
}

/* Gives the rest of the op's slice to the engine, with O_DIRECT if offset, length and memory allow.
 */
static void op_start(struct reader *r, struct reader_op *op)
{
	struct reader_handle *h = &r->files.h[op->handle];
	op->offset = op->rq->q.offset + op->at + op->done;
	op->bytes = op->slice - op->done;
	op->dst = (unsigned char *)op->rq->q.dst + op->at + op->done;
	op->direct = h->fd_direct >= 0 && !h->refused &&
				 !((op->offset | op->bytes) & (h->offset_align - 1)) &&
				 !((uintptr_t)op->dst & (h->memory_align - 1));
	op->fd = op->direct ? h->fd_direct : h->fd;
	op->fd_index = (int)(2 * op->handle + op->direct);
	op->fixed = false;
	op->link = NULL;
	r->op_state[op - r->ops] = OP_IN_FLIGHT;
	r->n_in_flight++;
	r->stats.reads++;
	r->stats.page_cache += !op->direct;
	r->engine->start(r->state, op);
}

static void op_requeue(struct reader *r, struct reader_op *op, uint64_t not_before_ns)
{
	op->not_before_ns = not_before_ns;
	op->link = r->retry;
	r->retry = op;
	r->n_retry++;
	r->op_state[op - r->ops] = OP_RETRY;
}

/* The copy on which to repeat an op that failed: one that rests only if no other is left. False:
 * all have been tried. */
static bool copy_to_try(const struct reader *r, struct reader_op *op, uint32_t *handle)
{
	uint32_t i = op->first_handle;
	uint64_t found = 0;
	for (int at = 0; at < 64; at++) {
		const uint64_t bit = UINT64_C(1) << at;
		if (!(op->tried & bit) &&
			(!found || (r->files.h[*handle].failed && !r->files.h[i].failed))) {
			*handle = i;
			found = bit;
		}
		i = r->files.h[i].next_replica;
		if (i == op->first_handle)
			break;
	}
	op->tried |= found;
	return found;
}

/* The rest of a slice that could not be read goes to another copy of the file. It may exceed the
 * depth of that drive. False: the file has no copies, or all have been tried. */
static bool op_try_next_copy(struct reader *r, struct reader_op *op, int code)
{
	struct reader_handle *h = &r->files.h[op->handle];
	uint32_t next;
	if (h->next_replica == op->handle)
		return false;
	if (!h->warned)
		log_warn("reader: %s: a read at offset %llu failed (%s); its copies are read in its place",
			h->path, (unsigned long long)op->offset,
			code == READER_EOF ? "the file ends before it" : err_name(code));
	h->failed = h->warned = true;
	h->rests_until_ns = reader_now(r) + r->copy_rest_ns;
	if (!copy_to_try(r, op, &next))
		return false;
	op_leave_drive(r, op);
	op_enter_drive(r, op, next);
	op_requeue(r, op, 0);
	return true;
}

static void op_fail(struct reader *r, struct reader_op *op, int code)
{
	if (op_try_next_copy(r, op, code))
		return;
	request_fail(r, op->rq, op->at + op->done, code, op->handle);
	op_release(r, op);
}

/* EAGAIN, EINTR: at once first, then after doubling pauses. */
static void op_retry(struct reader *r, struct reader_op *op, int res)
{
	if (++op->tries > TRIES_MAX) {
		op_fail(r, op, res);
		return;
	}
	r->stats.retries++;
	uint64_t pause = op->tries <= 2 ? 0 : MIN(10000ull << MIN(op->tries - 3, 20u), PAUSE_MAX_NS);
	op_requeue(r, op, pause ? reader_now(r) + pause : 0);
}

/* Whether all bytes of the slice that the request needs have arrived. */
static bool slice_satisfied(const struct reader_op *op)
{
	return op->done == op->slice || op->at + op->done >= op->rq->q.need;
}

static void op_took_bytes(struct reader *r, struct reader_op *op, uint32_t n)
{
	struct queued_request *rq = op->rq;
	op->done += n;
	op->tries = 0;
	r->stats.bytes += n;
	r->drives[op->drive].bytes += n;
	if (slice_satisfied(op)) {
		if (op->done < op->slice)
			rq->end_at = MIN(rq->end_at, op->at + op->done);
		op_release(r, op);
	} else if (n == 0) {
		op_fail(r, op, READER_EOF);
	} else {
		r->stats.short_reads++;
		op_requeue(r, op, 0);
	}
}

/* A file of this drive is read through the page cache from now on, whose speed is not the drive's.
 */
static void drive_stop_adapting(struct drive_queue *drive)
{
	if (drive->adapts)
		drive->depth = MIN(READER_DEPTH_DEFAULT, drive->depth_max);
	drive->adapts = false;
}

void reader_op_done(void *owner, struct reader_op *op, int res)
{
	struct reader *r = owner;
	struct queued_request *rq = op->rq;
	if (!rq || r->op_state[op - r->ops] != OP_IN_FLIGHT)
		bug("reader: %s completed a read that is not in flight", r->engine->name);
	r->n_in_flight--;
	r->stats.fixed += op->fixed;
	struct reader_handle *h = &r->files.h[op->handle];
	if (rq->cancelled ||
		(rq->code && op->at > rq->fail_at)) /* its result does not matter any more */
		op_release(r, op);
	else if (res == -EAGAIN || res == -EINTR)
		op_retry(r, op, res);
	else if (res == -EINVAL && op->direct) {
		if (!h->refused)
			log_warn("reader: %s: O_DIRECT read refused at offset %llu (Invalid argument); reading "
					 "it through the page cache from here on",
				h->path, (unsigned long long)op->offset);
		h->refused = true;
		drive_stop_adapting(&r->drives[h->drive]);
		op_requeue(r, op, 0);
	} else if (res < 0 || (uint32_t)res > op->bytes)
		op_fail(r, op, res < 0 ? res : -EIO);
	else
		op_took_bytes(r, op, (uint32_t)res);
	request_finish_if_idle(r, rq);
}

/* --- starting reads --- */

/* Seconds until a read of so many bytes, started now, would be complete. */
static double seconds_to_read(const struct drive_queue *drive, uint64_t bytes)
{
	return (double)(drive->bytes_in_flight + bytes) / drive->rate;
}

/* Whether the drive has long been idle, so that its rate has to be measured again: a drive that was
 * slow for a moment would otherwise never be chosen again. */
static bool needs_probe(
	const struct reader *r, const struct drive_queue *drive, uint64_t slice, bool urgent)
{
	const double idle_ns = (double)(reader_now(r) - drive->measured_ns);
	return drive->rate > 0 && !drive->in_flight && idle_ns >= PROBE_NS &&
		   idle_ns >= (urgent ? PROBE_URGENT : PROBE) * 1e9 * seconds_to_read(drive, slice);
}

/* The copy behind this one, of those that have not failed. Itself: there is no other. */
static uint32_t next_copy(const struct reader *r, uint32_t handle)
{
	uint32_t i = r->files.h[handle].next_replica;
	while (i != handle && r->files.h[i].failed)
		i = r->files.h[i].next_replica;
	return i;
}

/* Copies that have rested long enough are read again. */
static void end_rests(struct reader *r, uint32_t file)
{
	const uint64_t now = reader_now(r);
	uint32_t i = file;
	do {
		struct reader_handle *h = &r->files.h[i];
		h->failed = h->failed && now < h->rests_until_ns;
		i = h->next_replica;
	} while (i != file);
}

/* The file, or if it has failed a copy that has not. */
static uint32_t first_copy(const struct reader *r, uint32_t file)
{
	return r->files.h[file].failed ? next_copy(r, file) : file;
}

/* A copy whose drive has to be measured by this slice. False: there is none. */
static bool choose_probe(
	struct reader *r, const struct queued_request *rq, uint64_t slice, uint32_t *handle)
{
	const uint32_t first = first_copy(r, rq->q.file);
	uint32_t i = first;
	do {
		struct drive_queue *drive = &r->drives[r->files.h[i].drive];
		if (needs_probe(r, drive, slice, rq->q.urgent)) {
			drive->n_rates = 1; /* earlier reads count as one */
			*handle = i;
			return true;
		}
		i = next_copy(r, i);
	} while (i != first);
	return false;
}

/*
 * Chooses the copy of the file (*handle) that the next slice is read from, among those that have
 * not failed, on drives with fewer reads in flight than their depth:
 * - the one whose drive would complete the slice first, by its measured rate;
 * - while the rate of some drive is unknown, the one with the fewest bytes in flight.
 * False: all drives are full; or full drives that are faster would read all queued bytes before
 * this one has read the slice, so it is left idle.
 */
static bool choose_replica(
	struct reader *r, const struct queued_request *rq, uint64_t slice, uint32_t *handle)
{
	if (r->files.h[rq->q.file].next_replica != rq->q.file)
		end_rests(r, rq->q.file);
	const uint32_t first = first_copy(r, rq->q.file);
	const bool alone = next_copy(r, first) == first;
	bool found = false, known = true;
	if (!alone && choose_probe(r, rq, slice, handle))
		return true;
	double least = 0;
	uint32_t i = first;
	do {
		known &= r->drives[r->files.h[i].drive].rate > 0;
		i = next_copy(r, i);
	} while (i != first);
	do {
		const struct drive_queue *drive = &r->drives[r->files.h[i].drive];
		const double cost = known ? seconds_to_read(drive, slice) : (double)drive->bytes_in_flight;
		if (drive->in_flight < drive_depth(drive) && (!found || cost < least)) {
			found = true;
			least = cost;
			*handle = i;
		}
		i = next_copy(r, i);
	} while (i != first);
	if (!found || !known || alone)
		return found;
	double bytes = (double)(r->urgent_bytes + (rq->q.urgent ? 0 : r->normal_bytes)), rate = 0;
	do {
		const struct drive_queue *drive = &r->drives[r->files.h[i].drive];
		if (drive->in_flight >= drive_depth(drive) && seconds_to_read(drive, slice) < least) {
			bytes += (double)drive->bytes_in_flight;
			rate += drive->rate;
		}
		i = next_copy(r, i);
	} while (i != first);
	return rate == 0 || bytes >= rate * least;
}

/* How much of the request a read from this drive takes. */
static uint64_t slice_of(const struct reader *r, const struct queued_request *rq, uint32_t handle)
{
	const struct drive_queue *drive = &r->drives[r->files.h[handle].drive];
	const uint64_t left = rq->q.bytes - rq->next;
	return drive->adapts
			   ? MIN(left, reader_slice_step(left, queue_control_setting(&drive->control).slice))
			   : MIN(left, rq->step);
}

/* Starts slices of the request while there is room. */
static void request_start_slices(struct reader *r, struct queued_request *rq)
{
	uint32_t handle = rq->q.file;
	while (
		rq->queued && r->free_ops && choose_replica(r, rq, slice_of(r, rq, rq->q.file), &handle)) {
		struct reader_op *op = r->free_ops;
		r->free_ops = op->link;
		op->rq = rq;
		op->first_handle = handle;
		op->tried = 1;
		op->file = rq->q.file;
		op->at = rq->next;
		op->slice = (uint32_t)slice_of(r, rq, handle);
		op->done = 0;
		rq->next += op->slice;
		*queued_bytes(r, rq) -= op->slice;
		rq->in_flight++;
		op_enter_drive(r, op, handle);
		if (rq->next == rq->q.bytes)
			request_unqueue(r, rq);
		op_start(r, op);
	}
}

/* False: every drive has as many reads in flight as its depth allows, so no request can start one
 * and the queues, hundreds of requests, need not be walked. */
static bool drives_have_room(const struct reader *r)
{
	for (unsigned i = 0; i < r->files.n_drives; i++)
		if (r->drives[i].in_flight < drive_depth(&r->drives[i]))
			return true;
	return false;
}

/* Starts ops whose pause has ended, then slices of urgent, then of normal requests. Returns the ns
 * until the next pause ends; -1: no op pauses. */
static int64_t reader_dispatch(struct reader *r)
{
	int64_t wait = -1;
	if (r->retry) {
		uint64_t now = reader_now(r);
		struct reader_op *list = r->retry;
		r->retry = NULL;
		r->n_retry = 0;
		while (list) {
			struct reader_op *op = list;
			list = op->link;
			if (op->not_before_ns <= now) {
				op_start(r, op);
				continue;
			}
			int64_t left = (int64_t)(op->not_before_ns - now);
			wait = wait < 0 ? left : MIN(wait, left);
			op_requeue(r, op, op->not_before_ns);
		}
	}
	struct request_queue *order[] = {&r->urgent, &r->normal};
	for (unsigned i = 0; i < 2; i++) {
		for (struct queued_request *rq = order[i]->head, *after;
			 rq && r->free_ops && drives_have_room(r); rq = after) {
			after = rq->after;
			request_start_slices(r, rq);
		}
	}
	unsigned in_flight = r->n_in_flight + r->n_retry;
	r->stats.in_flight_max = MAX(r->stats.in_flight_max, in_flight);
	return wait;
}

int reader_submit(struct reader *r, const struct reader_request *q)
{
	uint64_t end;
	if (!q->bytes || q->file >= r->files.n || !q->dst || q->need > q->bytes ||
		!num_add(q->offset, q->bytes, &end) || end > INT64_MAX ||
		(uintptr_t)q->dst + q->bytes < q->bytes)
		return -EINVAL;
	struct queued_request *rq = r->free_requests;
	if (!rq) {
		r->stats.busy++;
		return READER_BUSY;
	}
	r->free_requests = rq->after;
	*rq = (struct queued_request){.q = *q, .end_at = UINT64_MAX, .live = true, .queued = true};
	if (!rq->q.need)
		rq->q.need = q->bytes;
	rq->step = reader_slice_step(q->bytes, r->slice);
	r->n_live++;
	r->stats.requests++;
	queue_push(q->urgent ? &r->urgent : &r->normal, rq);
	*queued_bytes(r, rq) += q->bytes;
	return 0;
}

void reader_boost(struct reader *r, bool (*match)(const void *ctx, uint64_t tag), const void *ctx)
{
	for (struct queued_request *rq = r->normal.head, *after; rq; rq = after) {
		after = rq->after;
		if (!match(ctx, rq->q.tag))
			continue;
		queue_remove(&r->normal, rq);
		*queued_bytes(r, rq) -= rq->q.bytes - rq->next;
		rq->q.urgent = true;
		*queued_bytes(r, rq) += rq->q.bytes - rq->next;
		queue_push(&r->urgent, rq);
	}
}

void reader_flush(struct reader *r)
{
	reader_dispatch(r);
	r->engine->flush(r->state);
}

/* --- reaping --- */

static unsigned completions_pop(struct reader *r, struct reader_completion *out, unsigned max)
{
	unsigned n = 0;
	for (; n < max && r->done.head; n++) {
		struct queued_request *rq = r->done.head;
		queue_remove(&r->done, rq);
		r->n_done--;
		out[n] = (struct reader_completion){.tag = rq->q.tag,
			.code = rq->code,
			.file = rq->q.file,
			.failed_file = rq->failed,
			.offset = rq->q.offset,
			.requested = rq->q.bytes,
			.bytes = rq->code ? rq->fail_at : MIN(rq->q.bytes, rq->end_at)};
		rq->after = r->free_requests;
		r->free_requests = rq;
	}
	return n;
}

/* Starts reads and polls the engine until `min` completions are there, or no request is pending
 * (unless `idle`), or the time has passed, or reader_wake was called. */
static void reader_pump(struct reader *r, unsigned min, bool idle, int timeout_ms)
{
	uint64_t deadline = timeout_ms > 0 ? reader_now(r) + (uint64_t)timeout_ms * 1000000u : 0;
	for (bool more = true; more;) {
		int64_t wait_ns = reader_dispatch(r); /* pauses bound the wait */
		more = r->n_done < min && (idle || r->n_live) && timeout_ms != 0;
		if (more && timeout_ms > 0) {
			uint64_t now = reader_now(r);
			int64_t left = now < deadline ? (int64_t)(deadline - now) : 0;
			wait_ns = wait_ns < 0 ? left : MIN(wait_ns, left);
			more = left > 0;
		}
		if (more && atomic_exchange(&r->woken, false))
			more = false;
		r->engine->poll(r->state, more ? wait_ns : 0);
	}
	reader_flush(r); /* the last poll may have made space for further reads */
}

int reader_reap(
	struct reader *r, struct reader_completion *out, unsigned min, unsigned max, int timeout_ms)
{
	if (!max)
		return 0;
	reader_pump(r, MIN(min, max), false, timeout_ms);
	return (int)completions_pop(r, out, max);
}

unsigned reader_wait(struct reader *r, int timeout_ms)
{
	reader_pump(r, 1, true, timeout_ms);
	return r->n_done;
}

/* --- cancelling --- */

static void request_cancel(struct reader *r, struct queued_request *rq)
{
	rq->cancelled = true;
	rq->code = -ECANCELED;
	rq->fail_at = 0;
	rq->failed = rq->q.file;
	request_unqueue(r, rq);
}

/* Ends the ops of cancelled requests. */
static void cancel_ops(struct reader *r)
{
	struct reader_op *list = r->retry;
	r->retry = NULL;
	r->n_retry = 0;
	while (list) {
		struct reader_op *op = list;
		list = op->link;
		struct queued_request *rq = op->rq;
		if (rq->cancelled) {
			op_release(r, op);
			request_finish_if_idle(r, rq);
		} else
			op_requeue(r, op, op->not_before_ns);
	}
	for (unsigned i = 0; i < r->n_ops; i++) {
		if (r->op_state[i] == OP_IN_FLIGHT && r->ops[i].rq->cancelled)
			r->engine->cancel(r->state, &r->ops[i]);
	}
}

unsigned reader_cancel_all(struct reader *r)
{
	unsigned n = 0;
	for (unsigned i = 0; i < r->n_requests; i++) {
		struct queued_request *rq = &r->requests[i];
		if (rq->live && !rq->cancelled) {
			request_cancel(r, rq);
			n++;
		}
	}
	if (!n)
		return 0;
	cancel_ops(r);
	for (unsigned i = 0; i < r->n_requests; i++)
		request_finish_if_idle(r, &r->requests[i]);
	r->engine->flush(r->state);
	return n;
}

void reader_drain(struct reader *r)
{
	reader_cancel_all(r);
	while (r->n_in_flight)
		r->engine->poll(r->state, -1);
	if (r->n_live || r->n_retry)
		bug("reader: %u requests left after draining", r->n_live);
	struct reader_completion c;
	while (completions_pop(r, &c, 1))
		;
}

void reader_wake(struct reader *r)
{
	atomic_store(&r->woken, true);
	r->engine->wake(r->state);
}
