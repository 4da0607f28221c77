/* SPDX-License-Identifier: MIT */
/* Measuring: the drive with the loader's own reader and the loader's own requests, decoding with
 * the engine itself. */
#include "tools/bench/measure.h"

#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "stream/extent.h"
#include "stream/loader/loader.h"
#include "tools/output/interrupt.h"
#include "tools/output/stats.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_MOST 256000000u
#define SLOTS_MOST  1024u
#define COPY_BYTES  256000000u
#define REAP_MOST   32

/* ---- the drive ---- */

/* The place in the list that reading by slices has come to. */
struct slice_cursor {
	struct extent_plan plan;
	unsigned read; /* of the plan; n_reads: the next expert comes */
	uint64_t at;   /* of that read */
};

struct measure_drive {
	struct reader *reader;
	struct extent_table *table;
	uint32_t *order; /* [n] layer * n_experts + expert, shuffled */
	uint32_t n, next;
	uint8_t *memory; /* [n_slots][slot] */
	size_t slot, memory_bytes;
	unsigned n_slots;
	unsigned *left; /* [n_slots] reads into this slot that have not completed */
	unsigned *idle; /* [n_slots] slots that nothing is read into, of read_for */
	struct slice_cursor at;
	bool polls; /* does not sleep while it reads */
	/* Starts the next reads into a slot, those of an expert or a slice; returns the bytes of them.
	 */
	uint64_t (*start)(struct measure_drive *j, unsigned slot);
};

static int list_experts(struct measure_drive *j, struct measure_disk *out, struct err *e)
{
	uint32_t n_layers = extent_n_layers(j->table), n_experts = extent_n_experts(j->table);
	uint64_t slots = 0, bytes = 0, requests = 0;
	j->order = mem_try_new((size_t)n_layers * n_experts, sizeof *j->order);
	if (!j->order)
		return err_set(
			e, ERR_MEMORY, "no memory for a list of %u x %u experts", n_layers, n_experts);
	struct rng r = {7};
	for (uint32_t l = 0; l < n_layers; l++)
		for (uint32_t x = 0; x < n_experts && extent_has_layer(j->table, l); x++) {
			struct extent_plan p;
			if (extent_plan(j->table, l, x, &p))
				bug("no extents for expert %u of layer %u", x, l);
			uint64_t slot = num_align_up(extent_slot_bytes(j->table, l), 4096);
			j->slot = MAX(j->slot, (size_t)slot);
			slots += num_align_up(extent_slot_bytes(j->table, l), extent_slot_align(j->table));
			bytes += p.read_bytes;
			requests += p.n_reads;
			uint32_t at = rng_below(&r, j->n + 1); /* a random permutation, built inside out */
			j->order[j->n] = j->order[at];
			j->order[at] = l * n_experts + x;
			j->n++;
		}
	if (!j->n)
		return err_set(e, ERR_INPUT, "the model has no routed experts to read");
	out->slot_bytes = (double)slots / j->n;
	out->expert_bytes = (double)bytes / j->n;
	out->requests = (double)requests / j->n;
	return 0;
}

/* j->n_slots slots of j->slot bytes */
static int map_slots(struct measure_drive *j, const char *what, struct err *e)
{
	j->memory_bytes = j->n_slots * j->slot;
	j->memory = pages_try_map(j->memory_bytes);
	if (!j->memory)
		return err_set(
			e, ERR_MEMORY, "no memory for %u %s of %zu bytes", j->n_slots, what, j->slot);
	j->left = NEW_ARRAY(unsigned, j->n_slots);
	j->idle = NEW_ARRAY(unsigned, j->n_slots);
	reader_register(j->reader, j->memory, j->memory_bytes);
	return 0;
}

static int take_memory(
	struct measure_drive *j, unsigned depth, const struct measure_disk *m, struct err *e)
{
	uint64_t slices = (uint64_t)(m->expert_bytes / (double)reader_slice(j->reader) + m->requests);
	uint64_t want =
		depth ? depth
			  : 2 * reader_start_depth(j->reader) * reader_n_drives(j->reader) / MAX(slices, 1u);
	j->n_slots = (unsigned)MIN(MAX(want, depth ? 1u : 2u), MIN(SLOTS_MOST, j->n));
	if (!depth && (uint64_t)j->n_slots * j->slot > MEMORY_MOST)
		j->n_slots = MAX((unsigned)(MEMORY_MOST / j->slot), 2u);
	return map_slots(j, "experts", e);
}

static uint64_t start_expert(struct measure_drive *j, unsigned slot)
{
	uint32_t key = j->order[j->next++ % j->n], n_experts = extent_n_experts(j->table);
	struct extent_plan p;
	if (extent_plan(j->table, key / n_experts, key % n_experts, &p))
		bug("no extents for expert %u", key);
	j->left[slot] = p.n_reads;
	for (unsigned i = 0; i < p.n_reads; i++) {
		const struct extent_read *x = &p.reads[i];
		const struct reader_request q = {.file = x->file,
			.offset = x->offset,
			.bytes = x->bytes,
			.need = x->need,
			.dst = j->memory + slot * j->slot + x->dst_offset,
			.tag = slot};
		int rc = reader_submit(j->reader, &q);
		if (rc)
			bug("the reader refused expert %u: code %d", key, rc);
	}
	return p.read_bytes;
}

/* One buffer for each request under way. */
static int take_buffers(struct measure_drive *j, struct err *e)
{
	uint64_t slice = reader_staging_bytes(j->reader);
	j->n_slots = reader_useful_depth_max(j->reader);
	j->slot = (size_t)num_align_up(slice + slice / 2 + READER_SLICE_MIN, READER_SLICE_MIN);
	return map_slots(j, "buffers", e);
}

static uint64_t start_slice(struct measure_drive *j, unsigned slot)
{
	struct slice_cursor *k = &j->at;
	if (k->read == k->plan.n_reads) {
		uint32_t key = j->order[j->next++ % j->n], n_experts = extent_n_experts(j->table);
		if (extent_plan(j->table, key / n_experts, key % n_experts, &k->plan))
			bug("no extents for expert %u", key);
		k->read = 0;
	}
	const struct extent_read *x = &k->plan.reads[k->read];
	uint64_t step = reader_slice_step(x->bytes, reader_staging_bytes(j->reader)),
			 n = MIN(step, x->bytes - k->at);
	const struct reader_request q = {.file = x->file,
		.offset = x->offset + k->at,
		.bytes = n,
		.need = MIN(n, x->need - k->at),
		.dst = j->memory + slot * j->slot,
		.tag = slot};
	j->left[slot] = 1;
	int rc = reader_submit(j->reader, &q);
	if (rc)
		bug("the reader refused a request: code %d", rc);
	k->at += step;
	if (k->at >= x->need) {
		k->at = 0;
		k->read++;
	}
	return n;
}

/* Reads for at least so long. */
static int read_for(struct measure_drive *j, double seconds, double *bytes_s, struct err *e)
{
	uint64_t start = clock_ns(), bytes = 0;
	unsigned n_idle = 0;
	bool more = true;
	j->at = (struct slice_cursor){0};
	for (unsigned i = j->n_slots; i-- > 0;)
		j->idle[n_idle++] = i;
	while (more || n_idle < j->n_slots) {
		/* the reader finds how many slices are best; the buffer that came back last goes first */
		const unsigned most =
			j->polls ? MIN(j->n_slots, reader_useful_depth(j->reader)) : j->n_slots;
		while (more && n_idle && j->n_slots - n_idle < most)
			bytes += j->start(j, j->idle[--n_idle]);
		struct reader_completion done[REAP_MOST];
		int n = reader_reap(j->reader, done, !j->polls, REAP_MOST, j->polls ? 0 : -1);
		more = (double)(clock_ns() - start) < seconds * 1e9;
		if (atomic_load(interrupt_flag()))
			return err_set(e, ERR_INTERRUPTED, "interrupted");
		if (!n)
			sched_yield();
		for (int i = 0; i < n; i++) {
			unsigned slot = (unsigned)done[i].tag;
			if (done[i].code)
				return reader_completion_err(j->reader, &done[i], e);
			if (!--j->left[slot])
				j->idle[n_idle++] = slot;
		}
	}
	*bytes_s = (double)bytes * 1e9 / (double)(clock_ns() - start);
	return 0;
}

static void drive_fini(struct measure_drive *j)
{
	reader_close(j->reader); /* waits for what is under way, so the memory goes after it */
	if (j->memory)
		pages_unmap(j->memory, j->memory_bytes);
	extent_table_free(j->table);
	free(j->order);
	free(j->left);
	free(j->idle);
}

/* slices: measure_disk_slices; else depth experts at a time. *j is to be given to drive_fini
 * whatever comes back. */
static int drive_init(struct measure_drive *j, const struct common_opts *c, const struct gguf *file,
	bool slices, unsigned depth, struct measure_disk *out, struct err *e)
{
	struct common_replicas replicas;
	*j = (struct measure_drive){.start = slices ? start_slice : start_expert, .polls = slices};
	*out = (struct measure_disk){0};
	int rc = common_opts_replicas(c, &replicas, e);
	const struct loader_options o = {.file = file,
		.reader = {.engine = (enum reader_engine)c->io,
			.buffered = c->no_direct,
			.depth = c->io_depth,
			.staged = slices,
			.requests = 4 * SLOTS_MOST},
		.replicas = replicas.path,
		.n_replicas = replicas.n};
	const enum log_level before = log_lower(LOG_WARN); /* a run says how it reads */
	if (!rc)
		rc = loader_open_reader(&o, &j->reader, e);
	log_set_level(before);
	free(replicas.text);
	if (rc || (rc = extent_table_from_gguf(&j->table, file, j->reader, e)) ||
		(rc = list_experts(j, out, e)) ||
		(rc = slices ? take_buffers(j, e) : take_memory(j, depth, out, e)))
		return rc;
	out->depth = j->n_slots;
	out->slices = slices;
	out->direct = true;
	for (uint32_t i = 0; i < file->n_files; i++)
		out->direct &= reader_file_align(j->reader, i) > 1;
	return 0;
}

static int measure_reads(const struct common_opts *c, const struct gguf *file, bool slices,
	unsigned depth, double seconds, int repeats, struct measure_disk *out, struct err *e)
{
	struct measure_drive j;
	double samples[BENCH_MAX_REPEATS];
	int rc = drive_init(&j, c, file, slices, depth, out, e);
	for (int i = -1; i < repeats && !rc; i++) { /* the first touches the memory */
		double bytes_s = 0, length = i < 0 ? seconds / 4 : seconds;
		rc = read_for(&j, length, &bytes_s, e);
		samples[MAX(i, 0)] = bytes_s;
	}
	if (!rc) {
		out->bytes_s = bench_spread_of(samples, repeats);
		out->direct = !reader_stats(j.reader).page_cache;
		out->depth = slices ? reader_useful_depth(j.reader) : out->depth;
	}
	drive_fini(&j);
	return rc;
}

int measure_disk(const struct common_opts *c, const struct gguf *file, unsigned depth,
	double seconds, int repeats, struct measure_disk *out, struct err *e)
{
	return measure_reads(c, file, false, depth, seconds, repeats, out, e);
}

int measure_disk_slices(const struct common_opts *c, const struct gguf *file, double seconds,
	int repeats, struct measure_disk *out, struct err *e)
{
	return measure_reads(c, file, true, 0, seconds, repeats, out, e);
}

int measure_drive_open(struct measure_drive **d, const struct common_opts *c,
	const struct gguf *file, const struct measure_disk *like, struct err *e)
{
	struct measure_disk what;
	*d = NEW(struct measure_drive);
	int rc = drive_init(*d, c, file, like->slices, like->slices ? 0 : like->depth, &what, e);
	if (rc || !what.direct) {
		measure_drive_close(*d);
		*d = NULL;
	}
	return rc;
}

int measure_drive_sample(struct measure_drive *d, double seconds, double *bytes_s, struct err *e)
{
	return read_for(d, seconds, bytes_s, e);
}

void measure_drive_close(struct measure_drive *d)
{
	if (d)
		drive_fini(d);
	free(d);
}

/* ---- memory ---- */

int measure_copy(int repeats, struct bench_spread *bytes_s, struct err *e)
{
	double samples[BENCH_MAX_REPEATS];
	uint8_t *from = pages_try_map(COPY_BYTES), *to = pages_try_map(COPY_BYTES);
	int rc =
		from && to ? 0 : err_set(e, ERR_MEMORY, "no memory for two arrays of %u bytes", COPY_BYTES);
	if (!rc)
		memset(from, 1, COPY_BYTES);
	for (int i = -1; i < repeats && !rc; i++) {
		uint64_t start = clock_ns();
		memcpy(to, from, COPY_BYTES);
		__asm__ volatile("" : : "r"(to) : "memory"); /* the copy is wanted */
		samples[MAX(i, 0)] = COPY_BYTES * 1e9 / (double)(clock_ns() - start);
		if (atomic_load(interrupt_flag()))
			rc = err_set(e, ERR_INTERRUPTED, "interrupted");
	}
	if (!rc)
		*bytes_s = bench_spread_of(samples, repeats);
	if (from)
		pages_unmap(from, COPY_BYTES);
	if (to)
		pages_unmap(to, COPY_BYTES);
	return rc;
}

/* ---- decoding ---- */

static int decode_repeats(struct session *s, const int32_t *ids, uint32_t n, uint32_t n_new,
	int repeats, struct measure_decode *out, struct err *e)
{
	const struct engine *g = session_engine(s);
	double ms[BENCH_MAX_REPEATS];
	struct expert_stats sum = {0};
	struct generate_options o = {
		.max_new = n_new, .ignore_stop = true, .watch = {.cancel = interrupt_flag()}};
	o.sampler.top_p = 1; /* temperature 0: greedy */
	for (int i = -1; i < repeats; i++) {
		struct generate_result r;
		int rc = session_sync(s, ids, n, &o.watch, NULL, e);
		struct expert_stats before = engine_expert_stats(g);
		if (!rc)
			rc = bench_generate(s, ids, n, &o, &r, e); /* the prompt stands already */
		if (rc)
			return rc;
		if (i < 0)
			continue;
		struct expert_stats d = stats_between(before, engine_expert_stats(g));
		ms[i] = (double)r.decode_ns * 1e-6 / MAX(r.new_tokens, 1u);
		sum.wait_ns += d.wait_ns;
		sum.bytes_read += d.bytes_read;
		sum.hit_vram += d.hit_vram;
		sum.hit_ram += d.hit_ram;
		sum.miss += d.miss;
		sum.prefetch_useful += d.prefetch_useful;
		sum.prefetch_wasted += d.prefetch_wasted;
		sum.checked += d.checked;
		sum.check_ns += d.check_ns;
		out->tokens += r.new_tokens;
		out->logits_hash = r.logits_hash;
	}
	const double tokens = (double)MAX(out->tokens, 1u);
	out->ms = bench_spread_of(ms, repeats);
	out->wait_ms = (double)sum.wait_ns * 1e-6 / tokens;
	out->bytes = (double)sum.bytes_read / tokens;
	out->hits[0] = (double)sum.hit_vram / tokens;
	out->hits[1] = (double)sum.hit_ram / tokens;
	out->misses = (double)sum.miss / tokens;
	out->useful = (double)sum.prefetch_useful / tokens;
	out->wasted = (double)sum.prefetch_wasted / tokens;
	out->checked = (double)sum.checked / tokens;
	out->check_ms = (double)sum.check_ns * 1e-6 / tokens;
	return 0;
}

int measure_decode(const struct common_opts *c, const int32_t *ids, uint32_t n, uint32_t n_new,
	int repeats, struct measure_decode *out, struct err *e)
{
	struct common_opts mine = *c;
	struct engine *g = NULL;
	struct session *s = NULL;
	*out = (struct measure_decode){0};
	mine.trace = mine.warm = NULL;
	mine.quiet = true;
	mine.verbose = false;
	const enum log_level before = log_level();
	int rc = common_opts_open(&mine, &g, e); /* sets the threshold of the log */
	if (!rc)
		rc = bench_check_context(g, n, n_new, e);
	if (!rc)
		rc = session_new(g, &s, e);
	if (!rc)
		rc = decode_repeats(s, ids, n, n_new, repeats, out, e);
	session_free(s);
	rc = common_opts_close(g, rc, e);
	log_set_level(before);
	return rc;
}
