/* SPDX-License-Identifier: MIT */
/*
 * Unit number n of the run is in slot n % n_slots from its read to its write. Units are read in
 * order, quantised in any order and written in order, so the slots form a ring that holds units
 * [write_next, read_next).
 *
 * Threads. All worker threads run convert_worker: a thread writes if it can, else quantises, else
 * reads, else sleeps. So any number of threads makes progress. The caller's thread shows progress
 * and writes the journal.
 *
 * `lock` guards all fields of struct pipeline that are not marked otherwise; no thread reads,
 * computes or writes while it holds the lock. A slot in state READING or QUANTISING belongs to the
 * thread that has set this state, and while `writing` is set the first slot to the writer.
 *
 * After a failure no unit is read or quantised any more, but quantised units are still written, as
 * far as the order allows: a run that meets the same failure again ends with the same journal.
 *
 * A large unit has more than CONVERT_UNIT_VALUES values. One at a time is in the ring; its buffers
 * are freed when it has been written.
 */
#include "tools/convert/convert_pipeline.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/xxh3/xxh3.h"
#include "tools/output/progress.h"
#include "tools/output/workers.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ns between entries: short at first, so that a short run can be resumed too, then doubling */
#define JOURNAL_FIRST 100000000u
#define JOURNAL_EVERY 1600000000u

enum slot_state { SLOT_FREE, SLOT_READING, SLOT_READ, SLOT_QUANTISING, SLOT_PACKED, SLOT_FAILED };

struct convert_slot {
	enum slot_state state;
	struct convert_unit unit;
	uint8_t *raw, *packed;
	size_t raw_bytes, packed_bytes; /* allocated */
	float *scales;
	uint64_t n_scales; /* allocated */
	struct raw_matrix source;
	uint64_t check_value; /* of a unit that is a whole range of check values (check_values.h) */
};

struct stage_clock {
	uint32_t active; /* threads in the stage */
	uint64_t since;  /* clock_ns when the first of them entered it */
	struct convert_stage sum;
};

struct pipeline {
	/* constant */
	const struct convert_job *job;
	const struct convert_plan *plan;
	uint64_t raw_most,
		packed_most; /* bytes of the buffers of slots, for units that are not large */
	uint32_t n_slots;
	/* lock */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct convert_slot *slots;     /* [n_slots] */
	uint64_t read_next, write_next; /* numbers of units */
	struct convert_units units;
	struct convert_unit ahead; /* the next to be read */
	bool has_ahead;
	uint32_t n_large; /* units in the ring of more than CONVERT_UNIT_VALUES */
	bool writing;     /* a thread is in the stage that writes */
	bool stop;        /* no unit is read or quantised any more */
	bool broken;      /* a write has failed: no unit is written any more */
	int code;         /* the first failure */
	struct err err;
	struct convert_context *cpu, *card; /* those that are idle come first */
	uint32_t n_cpu, n_card, n_cpu_idle, n_card_idle;
	struct convert_context **cpu_idle, **card_idle;
	struct stage_clock read, quantise, write;
	struct xxh3 *hash;  /* of a range that is written in several units; the writing thread's */
	uint64_t *finished; /* [n_tensors] pieces that are written */
	uint64_t bytes_done;
	uint64_t card_units, units_done;
	/* the caller's thread */
	uint64_t *journaled; /* [n_tensors] pieces in the journal */
	struct journal_entry *entries;
	size_t journal_from; /* tensors before it are in the journal */
	uint64_t total, journal_ns, journal_every;
	struct progress progress;
};

/* ---- memory ---- */

static uint64_t unit_values(const struct convert_plan *p, const struct convert_unit *u)
{
	return (u->row1 - u->row0) * p->tensors[u->tensor].src_cols;
}

static bool is_large(const struct convert_plan *p, const struct convert_unit *u)
{
	return unit_values(p, u) > CONVERT_UNIT_VALUES;
}

static uint64_t raw_need(const struct convert_plan *p, const struct convert_unit *u)
{
	return convert_unit_source_bytes(p, u) + SAFETENSORS_DIRECT_SLACK;
}

/* Most bytes of a unit. raw, packed: of the units that are not large; large: raw and packed bytes
 * of a large one. */
struct unit_most {
	uint64_t raw, packed, large;
};

static void measure_unit(
	const struct convert_plan *p, const struct convert_unit *u, struct unit_most *most)
{
	const uint64_t raw = raw_need(p, u), packed = convert_unit_packed_bytes(p, u);
	if (is_large(p, u)) {
		most->large = MAX(most->large, raw + packed);
		return;
	}
	most->raw = MAX(most->raw, raw);
	most->packed = MAX(most->packed, packed);
}

/* The first unit of a slab is its largest. Slabs of a tensor may have sources of other types. */
static struct unit_most measure_units(const struct convert_choices *c)
{
	struct unit_most most = {0};
	struct convert_units units;
	convert_units_init(&units, c);
	for (uint32_t i = 0; i < c->plan->n_tensors; i++) {
		const struct convert_tensor *t = &c->plan->tensors[i];
		const uint64_t rows = units.whole[i]
								  ? t->src_rows
								  : MIN(t->src_rows, MAX(1, CONVERT_UNIT_VALUES / t->src_cols));
		for (uint64_t k = 0; k < t->n_slabs; k++)
			measure_unit(c->plan, &(const struct convert_unit){i, k, 0, rows}, &most);
	}
	convert_units_fini(&units);
	return most;
}

/* Quantizers on a card. The factors of error feedback are computed on the host, by the thread that
 * then waits for the card: with feedback there are as many as the CPU has workers. */
static uint32_t count_lanes(const struct convert_choices *c, uint32_t n_workers)
{
	for (size_t i = 0; i < c->plan->n_tensors; i++)
		if (c->feedback[i])
			return MAX(CONVERT_LANES, MIN(n_workers, CONVERT_FEEDBACK_LANES));
	return CONVERT_LANES;
}

/* Slots for so many workers: what fits beside the workers and a large unit, at least two. */
static uint32_t count_slots(
	const struct convert_choices *c, const struct unit_most *m, uint32_t n_workers, bool card)
{
	const uint32_t lanes = card ? count_lanes(c, n_workers) : 0;
	const uint64_t wanted = n_workers + lanes + 2 * CONVERT_READERS,
				   other = m->large + (n_workers + lanes) * convert_context_bytes(c),
				   left = other < CONVERT_MOST_MEMORY ? CONVERT_MOST_MEMORY - other : 0,
				   fit = MIN(CONVERT_RING_BYTES, left) / MAX(1, m->raw + m->packed);
	return (uint32_t)MAX(2, MIN(wanted, fit));
}

uint64_t convert_memory(
	const struct convert_choices *c, uint32_t n_workers, bool card, uint32_t *n_slots)
{
	const struct unit_most m = measure_units(c);
	*n_slots = count_slots(c, &m, n_workers, card);
	n_workers += card ? count_lanes(c, n_workers) : 0;
	return *n_slots * (m.raw + m.packed) + m.large + n_workers * convert_context_bytes(c);
}

static struct quantizer *slot_allocator(const struct pipeline *s)
{
	return s->n_card ? s->card->quantizer : s->cpu->quantizer;
}

static int buffer_reserve(
	const struct pipeline *s, uint8_t **p, size_t *bytes, uint64_t need, struct err *e)
{
	struct quantizer *q = slot_allocator(s);
	if (*bytes >= need)
		return 0;
	q->ops->host_free(q, *p, *bytes);
	*p = q->ops->host_alloc(q, need);
	*bytes = *p ? need : 0;
	return *p ? 0 : err_set(e, ERR_MEMORY, "no memory for a matrix of %" PRIu64 " bytes", need);
}

static void buffer_drop(const struct pipeline *s, uint8_t **p, size_t *bytes)
{
	struct quantizer *q = slot_allocator(s);
	q->ops->host_free(q, *p, *bytes);
	*p = NULL;
	*bytes = 0;
}

/* ---- stages: called with the lock held, which they release while they work ---- */

static void stage_enter(struct pipeline *s, struct stage_clock *c)
{
	if (!c->active++)
		c->since = clock_ns();
	pthread_mutex_unlock(&s->lock);
}

static void stage_leave(struct pipeline *s, struct stage_clock *c, uint64_t bytes)
{
	pthread_mutex_lock(&s->lock);
	c->sum.bytes += bytes;
	if (!--c->active)
		c->sum.busy_ns += clock_ns() - c->since;
	pthread_cond_broadcast(&s->changed);
}

/* Marks the files of a unit as damaged: its values or their scales were refused. Under the lock. */
static void mark_damaged(struct pipeline *s, const struct convert_unit *u)
{
	const struct convert_slab *x = &s->plan->tensors[u->tensor].slabs[u->slab];
	s->job->damaged[x->src->file] = true;
	if (x->scale)
		s->job->damaged[x->scale->file] = true;
}

/* The block scales of a unit's rows as float. A slab is within one matrix of its source. */
static int read_scales(struct pipeline *s, struct convert_slot *slot, const struct convert_slab *x,
	uint64_t first, struct err *e)
{
	const uint64_t in_matrix = x->src->shape[x->src->n_dims - 2],
				   bands = (in_matrix + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK,
				   cols = (slot->source.cols + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK,
				   row = first % in_matrix, band = row / DTYPE_SCALE_BLOCK,
				   end = (row + slot->source.rows + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK,
				   at = first / in_matrix * bands + band, n = (end - band) * cols;
	if (row + slot->source.rows > in_matrix)
		bug("%s: rows of two matrices in one unit", x->src->name);
	if (n > slot->n_scales) {
		free(slot->scales);
		slot->scales = mem_try_new(n, sizeof *slot->scales);
		slot->n_scales = slot->scales ? n : 0;
		if (!slot->scales)
			return err_set(e, ERR_MEMORY, "no memory for %" PRIu64 " scales", n);
	}
	slot->source.scales = slot->scales;
	slot->source.first_row = (uint32_t)(row % DTYPE_SCALE_BLOCK);
	return safetensors_read_f32(s->job->st, x->scale, NULL, at, at + (end - band), slot->scales, e);
}

static int read_unit(struct pipeline *s, struct convert_slot *slot, struct err *e)
{
	const struct convert_unit *u = &slot->unit;
	const struct convert_tensor *t = &s->plan->tensors[u->tensor];
	const struct convert_slab *x = &t->slabs[u->slab];
	const uint64_t row_bytes = t->src_cols * st_dtype_bytes(x->src->dtype),
				   first = x->row0 + u->row0, rows = u->row1 - u->row0;
	const bool large = is_large(s->plan, u);
	const uint64_t raw = raw_need(s->plan, u), packed = convert_unit_packed_bytes(s->plan, u);
	int code = buffer_reserve(s, &slot->raw, &slot->raw_bytes, large ? raw : s->raw_most, e);
	if (code || (code = buffer_reserve(
					 s, &slot->packed, &slot->packed_bytes, large ? packed : s->packed_most, e)))
		return code;
	slot->source = (struct raw_matrix){.rows = rows, .cols = t->src_cols};
	if (!convert_source_type(x->src, &slot->source.type))
		return err_set(e, ERR_INPUT, "%s: %s: dtype %s cannot be converted",
			s->job->st->files[x->src->file].path, x->src->name, st_dtype_name(x->src->dtype));
	if ((code = safetensors_read_direct(s->job->st, x->src, first * row_bytes, slot->raw,
			 rows * row_bytes, &slot->source.values, e)))
		return code;
	return x->scale ? read_scales(s, slot, x, first, e) : 0;
}

/* code != 0: stops the run; the first failure is kept as the run's. Under the lock. */
static void fail_run(struct pipeline *s, int code, const struct err *e)
{
	if (code && !s->code) {
		s->code = code;
		s->err = *e;
	}
	s->stop = s->stop || code;
}

static void read_stage(struct pipeline *s)
{
	struct convert_slot *slot = &s->slots[s->read_next++ % s->n_slots];
	struct err e = {0};
	slot->unit = s->ahead;
	slot->state = SLOT_READING;
	s->n_large += is_large(s->plan, &slot->unit);
	s->has_ahead = convert_units_next(&s->units, s->job->writer, s->job->done, &s->ahead);
	stage_enter(s, &s->read);
	const int code = read_unit(s, slot, &e);
	stage_leave(s, &s->read, convert_unit_source_bytes(s->plan, &slot->unit));
	slot->state = code ? SLOT_FAILED : SLOT_READ;
	if (code == ERR_INPUT)
		mark_damaged(s, &slot->unit);
	fail_run(s, code, &e);
}

static bool is_interrupted(const struct pipeline *s)
{
	return s->job->cancel && *s->job->cancel;
}

static bool quantise_cancelled(void *user)
{
	return is_interrupted(user);
}

static int say_not_finite(
	const struct pipeline *s, const struct convert_slot *slot, uint64_t at, struct err *e)
{
	const struct convert_tensor *t = &s->plan->tensors[slot->unit.tensor];
	const struct convert_slab *x = &t->slabs[slot->unit.slab];
	const uint64_t row = at / t->src_cols, col = at % t->src_cols;
	float *values = NEW_ARRAY(float, t->src_cols);
	raw_matrix_rows(&slot->source, row, row + 1, values);
	const bool nan = isnan(values[col]);
	free(values);
	return err_set(e, ERR_INPUT, "%s: %s: the value in row %" PRIu64 ", column %" PRIu64 " is %s",
		s->job->st->files[x->src->file].path, x->src->name, x->row0 + slot->unit.row0 + row, col,
		nan ? "not a number" : "infinite");
}

/* Bytes of each range of a tensor. */
static uint64_t range_bytes(const struct pipeline *s, uint32_t tensor)
{
	uint64_t bytes;
	gguf_writer_place(s->job->writer, tensor, NULL, NULL, &bytes);
	return bytes / gguf_writer_ranges(s->job->writer, tensor);
}

static void quantise_stage(struct pipeline *s, struct convert_slot *slot, bool on_card)
{
	struct convert_context *c =
		on_card ? s->card_idle[--s->n_card_idle] : s->cpu_idle[--s->n_cpu_idle];
	struct err e = {0};
	uint64_t bad = QUANTIZE_ALL_FINITE;
	slot->state = SLOT_QUANTISING;
	stage_enter(s, &s->quantise);
	int code = convert_quantise(
		c, &slot->unit, &slot->source, slot->packed, quantise_cancelled, s, &bad, &e);
	if (!code && bad != QUANTIZE_ALL_FINITE)
		code = say_not_finite(s, slot, bad, &e);
	const uint64_t packed = convert_unit_packed_bytes(s->plan, &slot->unit);
	if (!code && packed == range_bytes(s, slot->unit.tensor))
		slot->check_value = xxh3_of(slot->packed, packed);
	stage_leave(s, &s->quantise, convert_unit_source_bytes(s->plan, &slot->unit));
	slot->state = code ? SLOT_FAILED : SLOT_PACKED;
	s->card_units += on_card;
	if (on_card)
		s->card_idle[s->n_card_idle++] = c;
	else
		s->cpu_idle[s->n_cpu_idle++] = c;
	if (code == ERR_INPUT)
		mark_damaged(s, &slot->unit);
	fail_run(s, code, &e);
}

/* Data of a unit, then the check value of the range that ends with it. */
static int write_unit(struct pipeline *s, const struct convert_slot *slot, struct err *e)
{
	const uint32_t i = slot->unit.tensor;
	const uint64_t at = convert_unit_offset(s->plan, &slot->unit), each = range_bytes(s, i),
				   bytes = convert_unit_packed_bytes(s->plan, &slot->unit);
	uint64_t value = slot->check_value;
	int code = gguf_writer_write(s->job->writer, i, at, slot->packed, bytes, e);
	if (code)
		return code;
	if (bytes != each) {
		if (at % each == 0)
			xxh3_begin(s->hash);
		xxh3_add(s->hash, slot->packed, bytes);
		value = xxh3_value(s->hash);
	}
	return (at + bytes) % each
			   ? 0
			   : gguf_writer_set_check_value(s->job->writer, i, at / each, value, e);
}

/* Counts what the unit finishes. Under the lock. */
static void count_unit(struct pipeline *s, const struct convert_unit *u)
{
	const struct convert_tensor *t = &s->plan->tensors[u->tensor];
	const uint64_t pieces = convert_pieces(s->plan, s->job->writer, u->tensor);
	s->bytes_done += convert_unit_source_bytes(s->plan, u);
	s->units_done++;
	if (u->row1 < t->src_rows)
		return;
	if (pieces > 1)
		s->finished[u->tensor] = u->slab + 1;
	else if (u->slab + 1 == t->n_slabs)
		s->finished[u->tensor] = 1;
}

static void write_stage(struct pipeline *s)
{
	struct convert_slot *slot = &s->slots[s->write_next % s->n_slots];
	const struct convert_unit u = slot->unit;
	struct err e = {0};
	s->writing = true;
	stage_enter(s, &s->write);
	const int code = write_unit(s, slot, &e);
	if (is_large(s->plan, &u)) {
		buffer_drop(s, &slot->raw, &slot->raw_bytes);
		buffer_drop(s, &slot->packed, &slot->packed_bytes);
	}
	stage_leave(s, &s->write, convert_unit_packed_bytes(s->plan, &u));
	s->writing = false;
	s->broken = s->broken || code;
	fail_run(s, code, &e);
	if (code)
		return;
	count_unit(s, &u);
	s->n_large -= is_large(s->plan, &u);
	slot->state = SLOT_FREE;
	s->write_next++;
}

/* ---- what to do next; under the lock ---- */

static bool can_write(const struct pipeline *s)
{
	return !s->broken && !s->writing && s->write_next < s->read_next &&
		   s->slots[s->write_next % s->n_slots].state == SLOT_PACKED;
}

static bool can_read(const struct pipeline *s)
{
	return !s->stop && s->has_ahead && s->read.active < CONVERT_READERS &&
		   s->read_next - s->write_next < s->n_slots &&
		   !(s->n_large && is_large(s->plan, &s->ahead));
}

/* The first unit that is read and has a quantizer that is idle. */
static struct convert_slot *find_quantisable(const struct pipeline *s, bool *on_card)
{
	for (uint64_t n = s->write_next; !s->stop && n < s->read_next; n++) {
		struct convert_slot *slot = &s->slots[n % s->n_slots];
		if (slot->state != SLOT_READ)
			continue;
		*on_card =
			s->n_card && convert_can_quantise(s->job->choices, s->card->quantizer, &slot->unit);
		if (*on_card ? s->n_card_idle : s->n_cpu_idle)
			return slot;
	}
	return NULL;
}

/* No thread is in a stage: if this one has nothing to do, no other will have. */
static bool is_at_rest(const struct pipeline *s)
{
	return !s->read.active && !s->quantise.active && !s->writing;
}

static int convert_worker(void *user, struct err *e)
{
	struct pipeline *s = user;
	bool on_card;
	pthread_mutex_lock(&s->lock);
	for (struct convert_slot *slot;;) {
		if (is_interrupted(s) && !s->stop) {
			struct err why = {0};
			fail_run(s, err_set(&why, ERR_INTERRUPTED, "interrupted"), &why);
		}
		if (can_write(s))
			write_stage(s);
		else if ((slot = find_quantisable(s, &on_card)))
			quantise_stage(s, slot, on_card);
		else if (can_read(s))
			read_stage(s);
		else if (is_at_rest(s))
			break;
		else
			pthread_cond_wait(&s->changed, &s->lock);
	}
	pthread_cond_broadcast(&s->changed);
	const int code = s->code;
	if (code)
		*e = s->err;
	pthread_mutex_unlock(&s->lock);
	return code;
}

static void stop_pipeline(void *user)
{
	struct pipeline *s = user;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* ---- the caller's thread ---- */

/* Hands finished pieces to the journal, after their data. Called without the lock. */
static int write_journal(struct pipeline *s, struct err *e)
{
	size_t n = 0;
	pthread_mutex_lock(&s->lock);
	for (size_t i = s->journal_from; i < s->plan->n_tensors; i++) {
		const bool whole = s->finished[i] == convert_pieces(s->plan, s->job->writer, i);
		if (s->finished[i] != s->journaled[i])
			s->entries[n++] = (struct journal_entry){(uint32_t)i, s->finished[i]};
		s->journaled[i] = s->finished[i];
		if (!whole)
			break;
		s->journal_from = i + 1;
	}
	pthread_mutex_unlock(&s->lock);
	if (!n)
		return 0;
	int code = gguf_writer_sync(s->job->writer, e);
	return code ? code : convert_journal_add(s->job->journal, s->entries, n, e);
}

static double stage_rate(const struct stage_clock *c)
{
	const uint64_t ns = c->sum.busy_ns + (c->active ? clock_ns() - c->since : 0);
	return ns ? (double)c->sum.bytes / (double)ns : 0;
}

static void show_progress(struct pipeline *s)
{
	char rates[PROGRESS_DETAIL];
	pthread_mutex_lock(&s->lock);
	const uint64_t bytes = s->bytes_done;
	snprintf(rates, sizeof rates, "read %.2f, quantise %.2f, write %.2f GB/s", stage_rate(&s->read),
		stage_rate(&s->quantise), stage_rate(&s->write));
	pthread_mutex_unlock(&s->lock);
	progress_detail(&s->progress, rates);
	progress_update(&s->progress, bytes, s->total);
}

static int on_tick(void *user, bool over, struct err *e)
{
	struct pipeline *s = user;
	if (s->job->progress)
		show_progress(s);
	if (!over && clock_ns() - s->journal_ns <= s->journal_every)
		return 0;
	int code = write_journal(s, e);
	s->journal_ns = clock_ns();
	s->journal_every = MIN(2 * s->journal_every, JOURNAL_EVERY);
	return code;
}

/* Source bytes of all tensors, and of what is done. */
static void count_bytes(struct pipeline *s)
{
	for (size_t i = 0; i < s->plan->n_tensors; i++) {
		const struct convert_tensor *t = &s->plan->tensors[i];
		const uint64_t pieces = convert_pieces(s->plan, s->job->writer, i),
					   slabs_done = t->n_slabs / pieces * s->job->done[i];
		for (uint64_t k = 0; k < t->n_slabs; k++) {
			const struct convert_unit slab = {(uint32_t)i, k, 0, t->src_rows};
			const uint64_t bytes = convert_unit_source_bytes(s->plan, &slab);
			s->total += bytes;
			s->bytes_done += k < slabs_done ? bytes : 0;
		}
		s->finished[i] = s->journaled[i] = s->job->done[i];
	}
}

static int open_contexts(struct pipeline *s, struct err *e)
{
	struct quantizer *q;
	int code = 0;
	const uint32_t lanes = s->job->card ? count_lanes(s->job->choices, s->job->n_workers) : 0;
	s->cpu = NEW_ARRAY(struct convert_context, s->job->n_workers);
	s->cpu_idle = NEW_ARRAY(struct convert_context *, s->job->n_workers);
	s->card = NEW_ARRAY(struct convert_context, lanes);
	s->card_idle = NEW_ARRAY(struct convert_context *, lanes);
	for (uint32_t i = 0; i < s->job->n_workers && !code; i++) {
		if ((code = quantizer_cpu_open(&q, e)) ||
			(code = convert_context_init(&s->cpu[s->n_cpu++], s->job->choices, q, e)))
			break;
		s->cpu_idle[s->n_cpu_idle++] = &s->cpu[i];
	}
	for (uint32_t i = 0; i < lanes && !code; i++) {
		q = s->job->card;
		if ((i && (code = quantizer_card_open(&q, e))) ||
			(code = convert_context_init(&s->card[s->n_card++], s->job->choices, q, e)))
			break;
		s->card_idle[s->n_card_idle++] = &s->card[i];
	}
	if (lanes && !s->n_card)
		s->job->card->ops->close(s->job->card);
	return code;
}

static void add_counts(struct feedback_counts *sum, const struct feedback_counts *f)
{
	sum->blocks += f->blocks;
	sum->not_definite += f->not_definite;
	sum->uncorrelated += f->uncorrelated;
}

/* Collects the results and frees everything. */
static void close_contexts(struct pipeline *s, struct convert_result *r)
{
	for (uint32_t i = 0; i < s->n_slots && s->slots; i++) {
		if (s->slots[i].raw)
			buffer_drop(s, &s->slots[i].raw, &s->slots[i].raw_bytes);
		if (s->slots[i].packed)
			buffer_drop(s, &s->slots[i].packed, &s->slots[i].packed_bytes);
		free(s->slots[i].scales);
	}
	for (uint32_t i = 0; i < s->n_cpu; i++) {
		add_counts(&r->feedback, &s->cpu[i].counts);
		convert_context_fini(&s->cpu[i]);
	}
	for (uint32_t i = 0; i < s->n_card; i++) {
		add_counts(&r->feedback, &s->card[i].counts);
		r->card_bytes += s->card[i].quantizer->ops->card_bytes(s->card[i].quantizer);
		convert_context_fini(&s->card[i]);
	}
	r->read = s->read.sum;
	r->quantise = s->quantise.sum;
	r->write = s->write.sum;
	r->card_units = s->card_units;
	r->units = s->units_done;
	free(s->slots);
	free(s->cpu);
	free(s->cpu_idle);
	free(s->card);
	free(s->card_idle);
	xxh3_free(s->hash);
}

int convert_run(const struct convert_job *job, struct convert_result *result, struct err *e)
{
	const size_t n = job->choices->plan->n_tensors;
	const struct unit_most most = measure_units(job->choices);
	*result =
		(struct convert_result){.direct = safetensors_open_direct(job->st) == job->st->n_files};
	struct pipeline s = {.job = job,
		.plan = job->choices->plan,
		.raw_most = most.raw,
		.packed_most = most.packed,
		.n_slots = count_slots(job->choices, &most, job->n_workers, job->card != NULL),
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
		.hash = xxh3_new(),
		.finished = NEW_ARRAY(uint64_t, n),
		.journaled = NEW_ARRAY(uint64_t, n),
		.entries = NEW_ARRAY(struct journal_entry, n),
		.journal_ns = clock_ns(),
		.journal_every = JOURNAL_FIRST};
	s.slots = NEW_ARRAY(struct convert_slot, s.n_slots);
	count_bytes(&s);
	convert_units_init(&s.units, job->choices);
	s.has_ahead = convert_units_next(&s.units, job->writer, job->done, &s.ahead);
	int code = open_contexts(&s, e);
	if (!code && !s.hash)
		code = err_set(e, ERR_MEMORY, "no memory for check values");
	if (job->progress && !code)
		progress_begin_lines(&s.progress, "converting", NULL, s.bytes_done, s.total);
	const uint32_t n_threads = s.n_cpu + s.n_card + CONVERT_READERS + 1;
	const struct workers_job work = {convert_worker, on_tick, stop_pipeline, &s, n_threads};
	if (!code)
		code = workers_run(&work, e);
	progress_end(&s.progress);
	close_contexts(&s, result);
	convert_units_fini(&s.units);
	free(s.finished);
	free(s.journaled);
	free(s.entries);
	return code;
}
