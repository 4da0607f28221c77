/* SPDX-License-Identifier: MIT */
/*
 * Threads: n_workers workers, and the caller, who shows progress. `lock` guards the cursor, the
 * counter, the journal and `broken`. The GGUF is mapped: before a shard is committed, and before
 * anything is said against the file, its worker asks whether bytes of the mapping were lost.
 */
#include "tools/export/export_run.h"

#include "src/base/half.h"
#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/quant/dequant.h"
#include "stream/check/mapped_check.h"
#include "tools/output/interrupt.h"
#include "tools/output/progress.h"
#include "tools/output/report.h"
#include "tools/output/workers.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK_VALUES (1u << 20) /* values of a block, unless one row has more */
#define FILL_BYTES   (1u << 22) /* of a block that `fill` makes */

struct export_state {
	const struct export_job *job;
	pthread_mutex_t lock; /* guards what follows up to the caller's part */
	uint32_t next;        /* shard */
	bool stop, broken;
	uint64_t bytes_done; /* of tensors */
	/* the caller's */
	uint64_t total;
	struct progress progress;
};

/* What a worker owns. */
struct shard_buffers {
	float *values, *turned; /* of a block; of a slab that is stored transposed */
	uint8_t *stored;        /* the block as the shard has it */
};

/* A shard that is being written. */
struct shard_writer {
	struct export_state *s;
	const struct export_tensor *tensor;
	struct shard_buffers *b;
	struct out_file out;
	bool not_finite; /* a value of the tensor */
};

/* Values as the shard has them: float, or BF16 rounded to nearest even. */
static void store_values(enum st_dtype dtype, const float *v, uint64_t n, uint8_t *out)
{
	if (dtype == ST_F32) {
		memcpy(out, v, n * sizeof *v);
		return;
	}
	uint16_t *half = (uint16_t *)out;
	for (uint64_t i = 0; i < n; i++)
		half[i] = f32_to_bf16(v[i]);
}

/* The index of the first value that is NaN or infinite; n: there is none. */
static uint64_t find_not_finite(enum st_dtype dtype, const uint8_t *stored, uint64_t n)
{
	const uint16_t *half = (const uint16_t *)stored;
	const uint32_t *full = (const uint32_t *)stored;
	uint64_t i = 0;
	if (dtype == ST_F32)
		while (i < n && (full[i] & 0x7f800000) != 0x7f800000)
			i++;
	else
		while (i < n && (half[i] & 0x7f80) != 0x7f80)
			i++;
	return i;
}

/* Counts and asks whether to go on. */
static int after_write(struct shard_writer *w, uint64_t bytes, struct err *e)
{
	const struct export_job *job = w->s->job;
	pthread_mutex_lock(&w->s->lock);
	w->s->bytes_done += bytes;
	bool stop = w->s->stop;
	pthread_mutex_unlock(&w->s->lock);
	if (stop || (job->cancel && *job->cancel))
		return err_set(e, ERR_INTERRUPTED, "interrupted");
	return 0;
}

static int write_bytes(struct shard_writer *w, uint64_t bytes, struct err *e)
{
	errno = 0;
	if (fwrite(w->b->stored, 1, bytes, w->out.f) != bytes)
		return err_errno(e, errno ? errno : EIO, "%s: cannot be written", w->out.path);
	return after_write(w, bytes, e);
}

/* A tensor without pieces. */
static int write_filled(struct shard_writer *w, struct err *e)
{
	const struct export_job *job = w->s->job;
	const struct export_tensor *t = w->tensor;
	int code = 0;
	for (uint64_t at = 0, n; at < t->bytes && !code; at += n) {
		n = MIN(t->bytes - at, FILL_BYTES);
		job->fill(job->fill_user, (uint32_t)(t - job->plan->tensors), at, w->b->stored, n);
		code = write_bytes(w, n, e);
	}
	return code;
}

/* Writes b->stored: rows [row0, row0 + n) of the tensor. */
static int write_block(struct shard_writer *w, const struct export_piece *piece, uint64_t row0,
	uint64_t n, struct err *e)
{
	const struct export_tensor *t = w->tensor;
	const struct export_job *job = w->s->job;
	uint64_t values = n * t->cols, bad = find_not_finite(t->dtype, w->b->stored, values);
	size_t bytes = values * st_dtype_bytes(t->dtype);
	w->not_finite = bad < values;
	if (w->not_finite)
		return err_set(e, ERR_INPUT,
			"%s: tensor %s: the value for row %" PRIu64 ", column %" PRIu64
			" of %s is not a finite %s",
			job->file->files[piece->from->file].path, piece->from->name, row0 + bad / t->cols,
			bad % t->cols, t->name, st_dtype_name(t->dtype));
	return write_bytes(w, bytes, e);
}

/* A slab [cols][rows] becomes rows of `cols` values. */
static int write_turned(struct shard_writer *w, const struct export_piece *piece, struct err *e)
{
	uint64_t rows = piece->rows, cols = w->tensor->cols, row_bytes = 0;
	dtype_row_bytes(piece->from->type, rows, &row_bytes);
	for (uint64_t c = 0; c < cols; c++)
		dequant_row(piece->from->type, piece->data + c * row_bytes, w->b->turned + c * rows, rows);
	for (uint64_t r = 0; r < rows; r++)
		for (uint64_t c = 0; c < cols; c++)
			w->b->values[r * cols + c] = w->b->turned[c * rows + r];
	store_values(w->tensor->dtype, w->b->values, rows * cols, w->b->stored);
	return write_block(w, piece, piece->row0, rows, e);
}

/* Mapped pages count as memory of this process until they are given back; they stay in the
 * page cache. */
static void release_pages(const uint8_t *data, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
	uint64_t from = num_align_up(at, page), to = num_align_down(at + bytes, page);
	if (from < to)
		madvise((void *)(uintptr_t)from, to - from, MADV_DONTNEED);
}

static uint64_t block_rows(uint64_t cols)
{
	return MAX(1, BLOCK_VALUES / cols);
}

static int write_plain(struct shard_writer *w, const struct export_piece *piece, struct err *e)
{
	enum dtype type = piece->from->type;
	enum st_dtype to = w->tensor->dtype;
	uint64_t cols = w->tensor->cols, row_bytes = 0;
	bool same = (type == DTYPE_F32 && to == ST_F32) || (type == DTYPE_BF16 && to == ST_BF16);
	int code = 0;
	dtype_row_bytes(type, cols, &row_bytes);
	for (uint64_t row = 0, n; row < piece->rows && !code; row += n) {
		const uint8_t *src = piece->data + row * row_bytes;
		n = MIN(piece->rows - row, block_rows(cols));
		if (row + n < piece->rows)
			pages_read_ahead(
				src + n * row_bytes, MIN(piece->rows - row - n, block_rows(cols)) * row_bytes);
		if (same) {
			memcpy(w->b->stored, src, n * row_bytes);
		} else {
			for (uint64_t r = 0; r < n; r++)
				dequant_row(type, src + r * row_bytes, w->b->values + r * cols, cols);
			store_values(to, w->b->values, n * cols, w->b->stored);
		}
		code = write_block(w, piece, piece->row0 + row, n, e);
		release_pages(src, n * row_bytes);
	}
	return code;
}

/* Compares a slab with its check value, as far as it begins a range: each expert is one, other
 * tensors are as a whole. The pages are used right after. */
static int check_piece(
	const struct export_job *job, const struct export_piece *piece, uint64_t slab, struct err *e)
{
	const struct gguf_tensor *from = piece->from;
	const uint64_t i = (uint64_t)(piece->data - from->data) / slab;
	const bool experts = check_ranges(from->name, from->n_dims, from->ne) > 1;
	bool reread = false;
	if (!job->values || (i && !experts))
		return 0;
	pages_read_ahead(piece->data, experts ? slab : from->bytes);
	if (mapped_check_range(job->values, from, i, &reread, e)) {
		e->code = ERR_INPUT; /* of the file, and for good */
		return ERR_INPUT;
	}
	if (reread)
		log_warn("%s: %s was read wrong, and right when it was read again",
			ERR_PLAIN(job->file->files[from->file].path), from->name);
	return 0;
}

static int write_tensor(struct shard_writer *w, struct err *e)
{
	const struct export_tensor *t = w->tensor;
	int code = t->n_pieces ? 0 : write_filled(w, e);
	for (uint64_t i = 0; i < t->n_pieces && !code; i++) {
		const struct export_piece *piece = &t->pieces[i];
		uint64_t slab = 0;
		dtype_row_bytes(piece->from->type, piece->rows * t->cols, &slab);
		code = check_piece(w->s->job, piece, slab, e);
		if (!code)
			code = piece->transposed ? write_turned(w, piece, e) : write_plain(w, piece, e);
		release_pages(piece->data, slab);
	}
	return code;
}

static int write_shard(
	struct export_state *s, uint32_t shard, struct shard_buffers *b, struct err *e)
{
	const struct export_job *job = s->job;
	const struct export_shard *h = &job->plan->shards[shard];
	struct shard_writer w = {.s = s, .b = b};
	struct err why = {0};
	struct buf header = {0};
	char *path = export_folder_file(job->folder, h->name);
	/* `force`: what stood in the folder was looked at before it was locked */
	int code = out_file_open(&w.out, path, &out_data, true, e);
	if (code)
		goto out;
	export_plan_header(job->plan, shard, &header);
	fwrite(header.data, 1, header.len, w.out.f);
	for (uint32_t i = 0; i < h->n_tensors && !code; i++) {
		w.tensor = &job->plan->tensors[h->tensors[i]];
		code = write_tensor(&w, e);
	}
	const bool lost =
		job->file && gguf_check_lost(job->file, &why); /* then the rest means nothing */
	if (lost) {
		code = why.code;
		if (e)
			*e = why;
	}
	if (!code)
		code = out_file_commit(&w.out, e);
	else
		out_file_abort(&w.out);
	pthread_mutex_lock(&s->lock);
	s->broken = s->broken || (w.not_finite && !lost);
	if (!code)
		code = export_folder_add(job->folder, shard, e);
	pthread_mutex_unlock(&s->lock);
out:
	buf_free(&header);
	free(path);
	return code;
}

/* The largest buffers that any block needs. */
static int shard_buffers_init(const struct export_plan *p, struct shard_buffers *b, struct err *e)
{
	uint64_t values = 0, turned = 0;
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct export_tensor *t = &p->tensors[i];
		values = MAX(values, t->cols * MIN(block_rows(t->cols), t->bytes / t->cols));
		for (uint64_t k = 0; k < t->n_pieces; k++)
			if (t->pieces[k].transposed)
				turned = MAX(turned, t->pieces[k].rows * t->cols);
	}
	values = MAX(values, turned);
	b->values = mem_try_new(values, sizeof *b->values);
	b->turned = mem_try_new(turned, sizeof *b->turned);
	b->stored = mem_try_new(MAX(values, FILL_BYTES / sizeof(float)) + 2, sizeof(float));
	if (!b->values || !b->turned || !b->stored)
		return err_set(e, ERR_MEMORY, "no memory for blocks of %" PRIu64 " values", values);
	return 0;
}

/* The next shard; false when there is none. */
static bool take_shard(struct export_state *s, uint32_t *shard)
{
	pthread_mutex_lock(&s->lock);
	while (s->next < s->job->plan->n_shards && s->job->folder->done[s->next])
		s->next++;
	bool taken = !s->stop && s->next < s->job->plan->n_shards;
	if (taken)
		*shard = s->next++;
	pthread_mutex_unlock(&s->lock);
	return taken;
}

static int export_worker(void *user, struct err *e)
{
	struct export_state *s = user;
	struct shard_buffers b = {0};
	uint32_t shard;
	int code = shard_buffers_init(s->job->plan, &b, e);
	while (!code && take_shard(s, &shard))
		code = write_shard(s, shard, &b, e);
	free(b.values);
	free(b.turned);
	free(b.stored);
	return code;
}

static void stop_export(void *user)
{
	struct export_state *s = user;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_mutex_unlock(&s->lock);
}

static int show_export(void *user, bool over, struct err *e)
{
	struct export_state *s = user;
	(void)over;
	(void)e;
	pthread_mutex_lock(&s->lock);
	uint64_t bytes = s->bytes_done;
	pthread_mutex_unlock(&s->lock);
	if (s->job->progress)
		progress_update(&s->progress, bytes, s->total);
	return 0;
}

int export_run(struct export_job *job, struct err *e)
{
	struct export_state s = {
		.job = job, .lock = PTHREAD_MUTEX_INITIALIZER, .total = job->plan->tensor_bytes};
	for (uint32_t i = 0; i < job->plan->n_shards; i++)
		if (job->folder->done[i])
			s.bytes_done += job->plan->shards[i].data_bytes;
	if (job->progress)
		progress_begin_lines(&s.progress, "exporting", NULL, s.bytes_done, s.total);
	const struct workers_job work = {
		export_worker, show_export, stop_export, &s, MIN(job->n_workers, job->plan->n_shards)};
	int code = workers_run(&work, e);
	progress_end(&s.progress);
	job->broken = s.broken;
	return code;
}

int export_write(struct export_job *job, const char *out, uint64_t fingerprint,
	const struct export_texts *texts, bool force, struct err *e)
{
	char took[32];
	struct buf notes = {0};
	uint64_t start = clock_ns();
	int code = export_folder_open(job->folder, out, job->plan, fingerprint, force, &notes, e);
	report_notes(&notes);
	buf_free(&notes);
	if (code)
		return code;
	interrupt_catch(false);
	job->cancel = interrupt_flag();
	if ((code = export_run(job, e)) ||
		(code = export_folder_finish(job->folder, job->plan, texts, e))) {
		if (job->broken || (code == ERR_INPUT && !job->folder->n_done))
			export_folder_discard(job->folder, job->plan);
		else if (!e->hint[0])
			err_hint(e, "the same command goes on from here");
		return code;
	}
	if (job->progress)
		fprintf(stderr, "%s: %" PRIu64 " bytes in %s\n", ERR_PLAIN(out), job->plan->file_bytes,
			progress_time_text((double)(clock_ns() - start) * 1e-9, took));
	return 0;
}
