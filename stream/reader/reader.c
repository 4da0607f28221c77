/* SPDX-License-Identifier: MIT */
/*
 * Opening and closing readers: checks the options, opens the files, chooses between io_uring and
 * threads and between O_DIRECT and the page cache, and logs the reasons in one line. reader_run.c
 * moves the requests.
 */
#include "stream/reader/reader.h"

#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "stream/reader/reader_core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* --- opening: which engine, direct or buffered, and why --- */

static int check_options(const struct reader_options *o, struct err *e)
{
	if (o->engine > READER_THREADS)
		return err_set(e, ERR_USAGE, "reader: engine %d does not exist", (int)o->engine);
	if (o->depth > READER_DEPTH_MAX)
		return err_set(
			e, ERR_USAGE, "reader: depth %u, expected 1 to %u", o->depth, READER_DEPTH_MAX);
	if (o->requests > READER_REQUESTS_MAX)
		return err_set(e, ERR_USAGE, "reader: %u requests, expected 1 to %u", o->requests,
			READER_REQUESTS_MAX);
	if (o->threads > READER_DEPTH_MAX)
		return err_set(
			e, ERR_USAGE, "reader: %u threads, expected 1 to %u", o->threads, READER_DEPTH_MAX);
	if (o->slice_bytes && (o->slice_bytes < READER_SLICE_MIN || o->slice_bytes > READER_SLICE_MAX))
		return err_set(e, ERR_USAGE, "reader: slices of %zu bytes, expected %u to %u",
			o->slice_bytes, READER_SLICE_MIN, READER_SLICE_MAX);
	return 0;
}

/* Chooses between io_uring and threads and opens the engine. `why` becomes the reason in the
 * summary; empty: the engine is the preferred one. */
static int start_engine(struct reader *r, const struct reader_options *o,
	const struct reader_setup *setup, char *why, size_t why_bytes, struct err *e)
{
	char refused[256] = "";
	bool may_fall_back = !o->custom && o->engine == READER_AUTO;
	r->engine = o->custom                     ? o->custom
				: o->engine == READER_THREADS ? &reader_threads_engine
											  : &reader_uring_engine;
	int code = r->engine->open(setup, &r->state, refused, sizeof refused);
	if (code && may_fall_back) {
		snprintf(why, why_bytes, "no io_uring: %s", refused);
		r->engine = &reader_threads_engine;
		code = r->engine->open(setup, &r->state, refused, sizeof refused);
	}
	if (code) {
		err_set(e, code, "reader: %s engine: %s", r->engine->name, refused);
		if (r->engine == &reader_uring_engine)
			err_hint(e, "leave the engine at auto to read with threads instead");
	}
	return code;
}

static void write_summary(struct reader *r, const struct reader_options *o, const char *why)
{
	const struct reader_files *t = &r->files;
	char engine[128], path[400];
	r->engine->describe(r->state, engine, sizeof engine);
	uint32_t align = 1;
	for (unsigned i = 0; i < t->n; i++)
		align = MAX(align, t->h[i].offset_align);
	if (t->n_direct == t->n)
		snprintf(path, sizeof path, "O_DIRECT in units of %u", align);
	else if (o->buffered)
		snprintf(path, sizeof path, "page cache (asked for)");
	else if (t->n_direct)
		snprintf(path, sizeof path, "O_DIRECT for %u, page cache for %u (%s)", t->n_direct,
			t->n - t->n_direct, t->why_buffered);
	else
		snprintf(path, sizeof path, "page cache (%s)", t->why_buffered);
	unsigned n_adapt = 0;
	for (unsigned i = 0; i < t->n_drives; i++)
		n_adapt += r->drives[i].adapts;
	snprintf(r->summary, sizeof r->summary,
		"reader: %s%s%s%s, %u file%s on %u drive%s, %s, depth %u, slices of %zu KiB%s", engine,
		*why ? " (" : "", why, *why ? ")" : "", t->n, t->n > 1 ? "s" : "", t->n_drives,
		t->n_drives > 1 ? "s" : "", path, r->start_depth, r->slice >> 10,
		n_adapt ? " at first" : "");
}

/* How many requests of reader_staging_bytes have so many slices, rounded up. */
static unsigned requests_for(const struct reader *r, unsigned slices)
{
	return (slices + r->staging_slices - 1) / r->staging_slices;
}

/* Sets the depths of a drive; its `direct` is set. It adapts unless the depth was given, or some of
 * its files are read through the page cache, whose speed is not the drive's. */
static void drive_init(
	struct drive_queue *drive, const struct reader *r, const struct reader_options *o)
{
	const uint32_t slice = (uint32_t)r->slice;
	drive->adapts = drive->direct && !o->depth;
	drive->depth = o->depth         ? o->depth
				   : !drive->direct ? READER_CACHED_DEPTH
				   : o->staged      ? READER_USEFUL_DEPTH
									: READER_DEPTH_DEFAULT;
	drive->depth_max = !drive->adapts ? drive->depth
					   : o->staged    ? READER_STAGED_DEPTH_MAX
									  : READER_ADAPT_DEPTH_MAX;
	drive->useful_max = drive->adapts && !o->staged ? MIN(drive->depth, READER_USEFUL_DEPTH)
													: requests_for(r, drive->depth_max);
	queue_control_init(&drive->control, (struct queue_setting){drive->depth, slice},
		(struct queue_limits){
			.depth_max = drive->depth_max,
			.slice_min = o->slice_bytes ? slice : READER_ADAPT_SLICE_MIN,
			.slice_max = o->slice_bytes || o->staged ? slice : READER_ADAPT_SLICE_MAX,
		});
}

/* Returns the depth of the drive that may have the deepest queue. */
static unsigned open_drives(struct reader *r, const struct reader_options *o)
{
	const struct reader_files *t = &r->files;
	unsigned deepest = 0;
	r->drives = NEW_ARRAY(struct drive_queue, t->n_drives);
	for (unsigned i = 0; i < t->n_drives; i++)
		r->drives[i].direct = true;
	for (unsigned i = 0; i < t->n; i++)
		r->drives[t->h[i].drive].direct &= t->h[i].fd_direct >= 0;
	bool cached = true;
	for (unsigned i = 0; i < t->n_drives; i++)
		cached &= !r->drives[i].direct;
	r->staging_slices = cached && o->staged && !o->slice_bytes ? READER_CACHED_SLICES : 1;
	for (unsigned i = 0; i < t->n_drives; i++) {
		struct drive_queue *drive = &r->drives[i];
		drive_init(drive, r, o);
		r->start_depth = MAX(r->start_depth, drive->depth);
		r->n_ops += drive->depth_max;
		deepest = MAX(deepest, drive->depth_max);
	}
	return deepest;
}

int reader_open(struct reader **out, const struct reader_file *files, unsigned n_files,
	const struct reader_options *options, struct err *e)
{
	*out = NULL;
	struct reader_options o = options ? *options : (struct reader_options){0};
	int code = check_options(&o, e);
	if (code)
		return code;
	struct reader *r = NEW(struct reader);
	code = reader_files_open(&r->files, files, n_files, !o.buffered, e);
	if (code) {
		free(r);
		return code;
	}
	r->slice = (size_t)num_align_down(
		o.slice_bytes ? o.slice_bytes : READER_SLICE_DEFAULT, READER_SLICE_MIN);
	r->n_requests = o.requests ? o.requests : READER_REQUESTS_DEFAULT;
	r->copy_rest_ns = (uint64_t)(o.copy_rest_ms ? o.copy_rest_ms : READER_COPY_REST_MS) * 1000000;
	const unsigned deepest = open_drives(r, &o);
	int *fds = NEW_ARRAY(int, 2 * n_files);
	for (unsigned i = 0; i < n_files; i++) {
		fds[2 * i] = r->files.h[i].fd;
		fds[2 * i + 1] = r->files.h[i].fd_direct;
	}
	struct reader_setup setup = {.n_drives = r->files.n_drives,
		.depth = deepest,
		.threads = MIN(o.threads ? o.threads : READER_THREADS_DEFAULT, deepest),
		.fds = fds,
		.n_fds = 2 * n_files,
		.custom_options = o.custom_options,
		.owner = r};
	char why[320] = "";
	code = start_engine(r, &o, &setup, why, sizeof why, e);
	free(fds);
	if (code) {
		reader_files_close(&r->files);
		free(r->drives);
		free(r);
		return code;
	}
	r->requests = NEW_ARRAY(struct queued_request, r->n_requests);
	for (unsigned i = r->n_requests; i-- > 0;) {
		r->requests[i].after = r->free_requests;
		r->free_requests = &r->requests[i];
	}
	r->ops = NEW_ARRAY(struct reader_op, r->n_ops);
	r->op_state = NEW_ARRAY(enum op_state, r->n_ops);
	for (unsigned i = r->n_ops; i-- > 0;) {
		r->ops[i].link = r->free_ops;
		r->free_ops = &r->ops[i];
	}
	write_summary(r, &o, why);
	log_verbose("%s", r->summary);
	*out = r;
	return 0;
}

void reader_close(struct reader *r)
{
	if (!r)
		return;
	reader_drain(r);
	r->engine->close(r->state);
	reader_files_close(&r->files);
	free(r->drives);
	free(r->requests);
	free(r->ops);
	free(r->op_state);
	free(r->memory);
	free(r);
}

/* --- registered memory --- */

int reader_register(struct reader *r, void *base, size_t bytes)
{
	if (!base || !bytes || (uintptr_t)base + bytes < bytes)
		return -EINVAL;
	if (r->n_in_flight || r->n_retry)
		return -EBUSY;
	unsigned char *b = base;
	unsigned at = 0;
	while (at < r->n_memory && r->memory[at].base < b)
		at++;
	if ((at && r->memory[at - 1].base + r->memory[at - 1].bytes > b) ||
		(at < r->n_memory && b + bytes > r->memory[at].base))
		return -EINVAL;
	r->memory = mem_grow(r->memory, r->n_memory + 1, sizeof *r->memory);
	memmove(&r->memory[at + 1], &r->memory[at], (r->n_memory - at) * sizeof *r->memory);
	r->memory[at] = (struct reader_memory){b, bytes};
	r->n_memory++;
	if (!r->engine->memory)
		return 1;
	uint64_t total = 0;
	for (unsigned i = 0; i < r->n_memory; i++)
		total += r->memory[i].bytes;
	char why[256] = "";
	if (r->engine->memory(r->state, r->memory, r->n_memory, why, sizeof why)) {
		log_verbose("reader: plain reads into %.1f MiB that could not be registered (%s)",
			(double)bytes / 0x1p20, why);
		r->n_memory--;
		memmove(&r->memory[at], &r->memory[at + 1], (r->n_memory - at) * sizeof *r->memory);
		if (r->n_memory && r->engine->memory(r->state, r->memory, r->n_memory, why, sizeof why))
			log_verbose("reader: plain reads from here on: earlier memory could not be registered "
						"again (%s)",
				why);
		return 1;
	}
	log_verbose("reader: %.1f MiB registered with %s", (double)total / 0x1p20, r->engine->name);
	return 0;
}

/* --- questions --- */

unsigned reader_pending(const struct reader *r)
{
	return r->n_live + r->n_done;
}

const char *reader_engine_name(const struct reader *r)
{
	return r->engine->name;
}

struct reader_stats reader_stats(const struct reader *r)
{
	struct reader_stats s = r->stats;
	s.in_flight = r->n_in_flight + r->n_retry;
	return s;
}

unsigned reader_start_depth(const struct reader *r)
{
	return r->start_depth;
}

size_t reader_slice(const struct reader *r)
{
	return r->slice;
}

size_t reader_staging_bytes(const struct reader *r)
{
	return r->slice * r->staging_slices;
}

unsigned reader_n_drives(const struct reader *r)
{
	return r->files.n_drives;
}

unsigned reader_useful_depth(const struct reader *r)
{
	unsigned sum = 0;
	for (unsigned i = 0; i < r->files.n_drives; i++) {
		const struct drive_queue *drive = &r->drives[i];
		sum += MIN(requests_for(r, drive_depth(drive)), drive->useful_max);
	}
	return sum;
}

unsigned reader_useful_depth_max(const struct reader *r)
{
	unsigned sum = 0;
	for (unsigned i = 0; i < r->files.n_drives; i++)
		sum += r->drives[i].useful_max;
	return sum;
}

unsigned reader_staging_buffers(const struct reader *r)
{
	unsigned direct = 0, cached = 0;
	for (unsigned i = 0; i < r->files.n_drives; i++)
		*(r->drives[i].direct ? &direct : &cached) += r->drives[i].useful_max;
	return direct + direct / 2 + 3 * cached;
}

struct reader_setting reader_setting(const struct reader *r)
{
	struct reader_setting s = {.slice_bytes = r->slice};
	for (unsigned i = 0; i < r->files.n_drives; i++) {
		const struct drive_queue *drive = &r->drives[i];
		const struct queue_control *c = &drive->control;
		s.depth += drive->adapts ? c->best.depth : drive->depth;
		s.slice_bytes = i || !drive->adapts ? s.slice_bytes : c->best.slice;
		s.n_adapt += drive->adapts;
		s.n_found += drive->adapts && c->found;
		s.bytes_s += drive->rate;
	}
	return s;
}

static const struct reader_handle *handle_of(const struct reader *r, uint32_t file)
{
	if (file >= r->files.n)
		bug("reader: file %u of %u", file, r->files.n);
	return &r->files.h[file];
}

uint64_t reader_file_size(const struct reader *r, uint32_t file)
{
	return handle_of(r, file)->size;
}

uint32_t reader_file_align(const struct reader *r, uint32_t file)
{
	uint32_t i = file, align = 1;
	do {
		align = MAX(align, handle_of(r, i)->offset_align);
		i = r->files.h[i].next_replica;
	} while (i != file);
	return align;
}

uint32_t reader_file_memory_align(const struct reader *r, uint32_t file)
{
	uint32_t i = file, align = 1;
	do {
		align = MAX(align, handle_of(r, i)->memory_align);
		i = r->files.h[i].next_replica;
	} while (i != file);
	return align;
}

void reader_drop_cached(const struct reader *r, uint32_t file, uint64_t offset, uint64_t bytes)
{
	uint32_t i = file;
	do {
		pages_drop_cached(handle_of(r, i)->fd, offset, bytes);
		i = r->files.h[i].next_replica;
	} while (i != file);
}

int reader_completion_err(const struct reader *r, const struct reader_completion *c, struct err *e)
{
	const char *path = handle_of(r, c->failed_file)->path;
	unsigned long long requested = c->requested, offset = c->offset, bytes = c->bytes;
	if (c->code == READER_EOF)
		return err_set(e, ERR_INPUT,
			"%s: the file ends %llu bytes into a read of %llu bytes at offset %llu (it had %llu "
			"bytes when opened)",
			path, bytes, requested, offset,
			(unsigned long long)reader_file_size(r, c->failed_file));
	if (c->code == -ECANCELED)
		return err_set(
			e, c->code, "%s: read of %llu bytes at offset %llu cancelled", path, requested, offset);
	return err_set(e, c->code, "%s: read of %llu bytes at offset %llu failed after %llu bytes: %s",
		path, requested, offset, bytes, err_name(c->code));
}

uint64_t reader_slice_step(uint64_t bytes, uint64_t slice)
{
	slice = MAX(slice, READER_SLICE_MIN);
	if (bytes <= slice + slice / 2)
		return bytes;
	uint64_t n = bytes / slice + (bytes % slice > slice / 2);
	return num_align_up(bytes / n + (bytes % n != 0), READER_SLICE_MIN);
}
