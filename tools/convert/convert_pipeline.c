/* SPDX-License-Identifier: MIT */
/*
 * The work is a list of units in file order: a block of rows of one slab of one tensor. Whole slabs
 * are units where a row cannot be quantised alone: attn_k_b (transposed); IQ2_XXS without an
 * importance matrix, which weighs each column by its energy over the whole matrix and so reads the
 * matrix twice; and with error feedback, whose factors are made once for the matrix.
 *
 * Threads: n_workers workers, and the caller, who shows progress and writes the journal. `lock`
 * guards the cursor, the counters and the list of finished tensors; nobody reads, computes or
 * writes files while holding it.
 */
#include "tools/convert/convert_pipeline.h"

#include "src/base/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "src/quant/quantize.h"
#include "tools/output/progress.h"
#include "tools/output/workers.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_VALUES (1u << 20) /* floats read at once, unless one row has more */
/* Of the correlations of a matrix's own columns, which stand in for its inputs'. Chosen by KL of
 * IQ2_XXS on the pocket model: 0.0120 with 0.3, 0.0131 with 0.5, 0.0132 with 0.7. */
#define OWN_COLUMNS_TRUST 0.3f
/* ns between entries: short at first, so that a short run can be resumed too, then doubling */
#define JOURNAL_FIRST 100000000u
#define JOURNAL_EVERY 1600000000u

struct unit {
	uint32_t tensor;
	uint64_t slab, row0, row1; /* rows of the slab in the source */
};

struct pipeline {
	const struct convert_job *job;
	pthread_mutex_t lock; /* guards what follows up to the caller's part */
	uint64_t *units_left; /* [n_tensors] */
	struct unit next;     /* cursor */
	bool stop;
	uint32_t *finished; /* [n_finished] tensors not yet in the journal */
	size_t n_finished;
	uint64_t bytes_done; /* of output */
	struct convert_result *result;
	/* the caller's */
	uint32_t *journaled; /* [n_tensors] scratch of write_journal */
	uint64_t total, journal_ns, journal_every;
	struct progress progress;
};

/* What a worker owns. */
struct row_buffers {
	float *rows, *turned, *importance;
	double *energy;
	uint8_t *packed;
	/* for error feedback, [cols / 256]; NULL without */
	float *moments;    /* [cols / 256][FEEDBACK_MOMENTS] */
	const float **row; /* [rows of a block] */
	struct quant_feedback *feedback;
	double *work; /* [256][256] */
	/* of the unit; convert_worker adds them to the result */
	uint64_t feedback_blocks, not_definite, uncorrelated;
};

static bool whole_slab(const struct pipeline *s, uint32_t i)
{
	const struct convert_tensor *t = &s->job->plan->tensors[i];
	return t->transposed || s->job->feedback[i] ||
		   (t->type == DTYPE_IQ2_XXS && !s->job->has_importance[i]);
}

static uint64_t block_rows(const struct convert_tensor *t)
{
	return MAX(1, BLOCK_VALUES / t->src_cols);
}

static uint64_t units_of(const struct pipeline *s, uint32_t i)
{
	const struct convert_tensor *t = &s->job->plan->tensors[i];
	if (whole_slab(s, i))
		return t->n_slabs;
	uint64_t rows = block_rows(t);
	return t->n_slabs * (t->src_rows / rows + (t->src_rows % rows != 0));
}

/* The next unit; false when there is none. Under the lock. */
static bool take_unit(struct pipeline *s, struct unit *out)
{
	const struct convert_plan *p = s->job->plan;
	struct unit *u = &s->next;
	while (u->tensor < p->n_tensors && s->job->done[u->tensor])
		*u = (struct unit){.tensor = u->tensor + 1};
	if (s->stop || u->tensor >= p->n_tensors)
		return false;
	const struct convert_tensor *t = &p->tensors[u->tensor];
	u->row1 = whole_slab(s, u->tensor) ? t->src_rows : MIN(t->src_rows, u->row0 + block_rows(t));
	*out = *u;
	u->row0 = u->row1;
	if (u->row0 == t->src_rows) {
		u->row0 = 0;
		u->slab++;
	}
	if (u->slab == t->n_slabs)
		*u = (struct unit){.tensor = u->tensor + 1};
	return true;
}

/* It may be the values or their scales. Called without the lock. */
static void mark_damaged(struct pipeline *s, const struct convert_slab *x)
{
	pthread_mutex_lock(&s->lock);
	s->job->damaged[x->src->file] = true;
	if (x->scale)
		s->job->damaged[x->scale->file] = true;
	pthread_mutex_unlock(&s->lock);
}

static int read_finite(const struct pipeline *s, const struct convert_tensor *t, uint64_t slab,
	uint64_t row0, uint64_t row1, float *out, struct err *e)
{
	const struct convert_slab *x = &t->slabs[slab];
	int code =
		safetensors_read_f32(s->job->st, x->src, x->scale, x->row0 + row0, x->row0 + row1, out, e);
	if (code)
		return code;
	uint64_t n = (row1 - row0) * t->src_cols;
	for (uint64_t i = 0; i < n; i++)
		if (!isfinite(out[i]))
			return err_set(e, ERR_INPUT,
				"%s: %s: the value in row %" PRIu64 ", column %" PRIu64 " is %s",
				s->job->st->files[x->src->file].path, x->src->name,
				x->row0 + row0 + i / t->src_cols, i % t->src_cols,
				isnan(out[i]) ? "not a number" : "infinite");
	return 0;
}

/* Rows [row0, row1) of the slab as float; values that are not finite are refused. */
static int read_rows(struct pipeline *s, const struct convert_tensor *t, uint64_t slab,
	uint64_t row0, uint64_t row1, float *out, struct err *e)
{
	int code = read_finite(s, t, slab, row0, row1, out, e);
	if (code == ERR_INPUT)
		mark_damaged(s, &t->slabs[slab]);
	return code;
}

/* Rows of the tensor as stored, quantised and written; first_row counts over the whole stack.
 * feedback: NULL, or of the slab. */
static int write_rows(const struct pipeline *s, uint32_t i, const float *rows, uint64_t first_row,
	uint64_t n, const float *importance, const struct quant_feedback *feedback, uint8_t *packed,
	struct err *e)
{
	const struct convert_tensor *t = &s->job->plan->tensors[i];
	uint64_t row_bytes;
	if (!dtype_row_bytes(t->type, t->ne[0], &row_bytes))
		return err_set(e, ERR_INPUT, "%s: rows do not fit its type", t->name);
	for (uint64_t r = 0; r < n; r++) {
		const float *row = rows + r * t->ne[0];
		uint8_t *out = packed + r * row_bytes;
		if (feedback)
			quantize_row_feedback(t->type, row, out, t->ne[0], importance, feedback);
		else
			quantize_row(t->type, row, out, t->ne[0], importance);
	}
	return gguf_writer_write(s->job->writer, i, first_row * row_bytes, packed, n * row_bytes, e);
}

/* attn_k_b: the slab's columns become rows. */
static int convert_turned(
	struct pipeline *s, const struct unit *u, struct row_buffers *b, struct err *e)
{
	const struct convert_tensor *t = &s->job->plan->tensors[u->tensor];
	uint64_t rows = t->src_rows, cols = t->src_cols;
	int code = read_rows(s, t, u->slab, 0, rows, b->rows, e);
	if (code)
		return code;
	for (uint64_t c = 0; c < cols; c++)
		for (uint64_t r = 0; r < rows; r++)
			b->turned[c * rows + r] = b->rows[r * cols + c];
	return write_rows(s, u->tensor, b->turned, u->slab * cols, cols, NULL, NULL, b->packed, e);
}

/* Mean square of each column of a slab. Rows are added in order, so the sum is the same in every
 * run. */
static int column_energy(struct pipeline *s, const struct convert_tensor *t, uint64_t slab,
	struct row_buffers *b, struct err *e)
{
	memset(b->energy, 0, t->src_cols * sizeof *b->energy);
	for (uint64_t row = 0, end; row < t->src_rows; row = end) {
		end = MIN(t->src_rows, row + block_rows(t));
		int code = read_rows(s, t, slab, row, end, b->rows, e);
		if (code)
			return code;
		for (uint64_t r = 0; r < end - row; r++)
			for (uint64_t c = 0; c < t->src_cols; c++) {
				double v = b->rows[r * t->src_cols + c];
				b->energy[c] += v * v;
			}
	}
	for (uint64_t c = 0; c < t->src_cols; c++)
		b->importance[c] = (float)(b->energy[c] / (double)t->src_rows);
	return 0;
}

/* Second moments of the slab's own columns. */
static int column_moments(struct pipeline *s, const struct convert_tensor *t, uint64_t slab,
	struct row_buffers *b, struct err *e)
{
	const uint64_t n = t->src_cols / FEEDBACK_COLUMNS;
	memset(b->moments, 0, n * FEEDBACK_MOMENTS * sizeof *b->moments);
	for (uint64_t row = 0, end; row < t->src_rows; row = end) {
		end = MIN(t->src_rows, row + block_rows(t));
		int code = read_rows(s, t, slab, row, end, b->rows, e);
		if (code)
			return code;
		for (uint64_t r = 0; r < end - row; r++)
			b->row[r] = b->rows + r * t->src_cols;
		for (uint64_t i = 0; i < n; i++)
			quant_feedback_add_rows(
				b->moments + i * FEEDBACK_MOMENTS, b->row, end - row, i * FEEDBACK_COLUMNS);
	}
	return 0;
}

/* Of columns without importance: their energy. */
static void moments_importance(const float *moments, uint64_t cols, float *importance)
{
	for (uint64_t i = 0; i < cols; i += FEEDBACK_COLUMNS)
		for (uint64_t c = 0; c < FEEDBACK_COLUMNS; moments += FEEDBACK_COLUMNS - c++)
			importance[i + c] = moments[0];
}

/* What is passed on between the columns of a slab: by the moments of its inputs where the imatrix
 * has them, else of its own columns. has_importance: b->importance is filled; else it becomes the
 * columns' energy. */
static int make_feedback(struct pipeline *s, const struct convert_tensor *t, uint64_t slab,
	bool has_importance, struct row_buffers *b, struct err *e)
{
	float trust = OWN_COLUMNS_TRUST;
	int code = 0;
	if (!has_importance || !s->job->imatrix ||
		!imatrix_file_moments(s->job->imatrix, t->name, slab, t->src_cols, b->moments, &trust))
		code = column_moments(s, t, slab, b, e);
	else
		code = imatrix_file_check_lost(s->job->imatrix, e);
	if (code)
		return code;
	if (!has_importance)
		moments_importance(b->moments, t->src_cols, b->importance);
	for (uint64_t i = 0; i < t->src_cols / FEEDBACK_COLUMNS; i++) {
		const bool definite =
			quant_feedback_make(&b->feedback[i], b->moments + i * FEEDBACK_MOMENTS,
				b->importance + i * FEEDBACK_COLUMNS, trust, b->work);
		b->feedback_blocks++;
		b->not_definite += !definite;
		b->uncorrelated += definite && !b->feedback[i].correlated;
	}
	return 0;
}

static int convert_unit(
	struct pipeline *s, const struct unit *u, struct row_buffers *b, struct err *e)
{
	const struct convert_tensor *t = &s->job->plan->tensors[u->tensor];
	const float *importance = NULL;
	int code = 0;
	if (t->transposed)
		return convert_turned(s, u, b, e);
	if (s->job->has_importance[u->tensor]) {
		if (imatrix_file_get(s->job->imatrix, t->name, u->slab, t->src_cols, b->importance))
			importance = b->importance;
		if ((code = imatrix_file_check_lost(s->job->imatrix, e)))
			return code;
	}
	const bool feedback = s->job->feedback[u->tensor];
	if (feedback) {
		if ((code = make_feedback(s, t, u->slab, importance != NULL, b, e)))
			return code;
		importance = b->importance;
	}
	if (!importance && t->type == DTYPE_IQ2_XXS) {
		/* the imatrix never saw this expert (then every unit of it comes here), or there is no
		 * imatrix */
		if ((code = column_energy(s, t, u->slab, b, e)))
			return code;
		importance = b->importance;
	}
	for (uint64_t row = u->row0, end; row < u->row1; row = end) {
		end = MIN(u->row1, row + block_rows(t));
		if ((code = read_rows(s, t, u->slab, row, end, b->rows, e)) ||
			(code = write_rows(s, u->tensor, b->rows, u->slab * t->src_rows + row, end - row,
				 importance, feedback ? b->feedback : NULL, b->packed, e)))
			return code;
	}
	return 0;
}

static uint64_t unit_bytes(const struct convert_tensor *t, const struct unit *u)
{
	uint64_t row = 0;
	dtype_row_bytes(t->type, t->ne[0], &row);
	return row * (t->transposed ? t->src_cols : u->row1 - u->row0);
}

/* The largest buffers any unit needs. */
static int row_buffers_init(const struct pipeline *s, struct row_buffers *b, struct err *e)
{
	uint64_t values = 0, turned = 0, cols = 0, packed = 0, blocks = 0, most_rows = 0;
	for (size_t i = 0; i < s->job->plan->n_tensors; i++) {
		const struct convert_tensor *t = &s->job->plan->tensors[i];
		uint64_t rows = t->transposed ? t->src_rows : MIN(t->src_rows, block_rows(t)),
				 row_bytes = 0;
		dtype_row_bytes(t->type, t->ne[0], &row_bytes);
		values = MAX(values, rows * t->src_cols);
		cols = MAX(cols, t->src_cols);
		packed = MAX(packed, row_bytes * (t->transposed ? t->src_cols : rows));
		most_rows = MAX(most_rows, rows);
		if (s->job->feedback[i])
			blocks = MAX(blocks, t->src_cols / FEEDBACK_COLUMNS);
		if (t->transposed)
			turned = MAX(turned, rows * t->src_cols);
	}
	b->rows = mem_try_new(values, sizeof *b->rows);
	b->turned = mem_try_new(turned, sizeof *b->turned);
	b->importance = mem_try_new(cols, sizeof *b->importance);
	b->energy = mem_try_new(cols, sizeof *b->energy);
	b->packed = mem_try_new(packed, 1);
	b->moments = mem_try_new(blocks, FEEDBACK_MOMENTS * sizeof *b->moments);
	b->row = mem_try_new(most_rows, sizeof *b->row);
	b->feedback = mem_try_new(blocks, sizeof *b->feedback);
	b->work = mem_try_new(FEEDBACK_COLUMNS * FEEDBACK_COLUMNS, sizeof *b->work);
	if (!b->moments || !b->row || !b->feedback || !b->work || !b->rows || !b->turned ||
		!b->importance || !b->energy || !b->packed)
		return err_set(e, ERR_MEMORY, "no memory for rows of %" PRIu64 " values", cols);
	return 0;
}

static void row_buffers_fini(struct row_buffers *b)
{
	free(b->rows);
	free(b->turned);
	free(b->importance);
	free(b->energy);
	free(b->packed);
	free(b->moments);
	free(b->row);
	free(b->feedback);
	free(b->work);
}

/* Under the lock. */
static void add_feedback_counts(struct convert_result *r, struct row_buffers *b)
{
	r->feedback_blocks += b->feedback_blocks;
	r->not_definite += b->not_definite;
	r->uncorrelated += b->uncorrelated;
	b->feedback_blocks = b->not_definite = b->uncorrelated = 0;
}

static int convert_worker(void *user, struct err *e)
{
	struct pipeline *s = user;
	struct row_buffers b = {0};
	struct unit u;
	int code = row_buffers_init(s, &b, e);

	pthread_mutex_lock(&s->lock);
	while (!code && take_unit(s, &u)) {
		pthread_mutex_unlock(&s->lock);
		if (s->job->cancel && *s->job->cancel)
			code = err_set(e, ERR_INTERRUPTED, "interrupted");
		else
			code = convert_unit(s, &u, &b, e);
		pthread_mutex_lock(&s->lock);
		add_feedback_counts(s->result, &b);
		if (code)
			break;
		s->bytes_done += unit_bytes(&s->job->plan->tensors[u.tensor], &u);
		if (--s->units_left[u.tensor])
			continue;
		pthread_mutex_unlock(&s->lock);
		code = gguf_writer_seal(s->job->writer, u.tensor, e);
		pthread_mutex_lock(&s->lock);
		if (!code)
			s->finished[s->n_finished++] = u.tensor;
	}
	pthread_mutex_unlock(&s->lock);
	row_buffers_fini(&b);
	return code;
}

static void stop_pipeline(void *user)
{
	struct pipeline *s = user;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_mutex_unlock(&s->lock);
}

/* Hands finished tensors to the journal, after their data. Called without the lock. */
static int write_journal(struct pipeline *s, struct err *e)
{
	pthread_mutex_lock(&s->lock);
	size_t n = s->n_finished;
	memcpy(s->journaled, s->finished, n * sizeof *s->finished);
	s->n_finished = 0;
	pthread_mutex_unlock(&s->lock);
	if (!n)
		return 0;
	int code = gguf_writer_sync(s->job->writer, e);
	return code ? code : convert_journal_add(s->job->journal, s->journaled, n, e);
}

/* The caller's part: shows progress and keeps the journal. */
static int on_tick(void *user, bool over, struct err *e)
{
	struct pipeline *s = user;
	pthread_mutex_lock(&s->lock);
	uint64_t bytes = s->bytes_done;
	pthread_mutex_unlock(&s->lock);
	if (s->job->progress)
		progress_update(&s->progress, bytes, s->total);
	if (!over && clock_ns() - s->journal_ns <= s->journal_every)
		return 0;
	int code = write_journal(s, e);
	s->journal_ns = clock_ns();
	s->journal_every = MIN(2 * s->journal_every, JOURNAL_EVERY);
	return code;
}

static void count_units(struct pipeline *s)
{
	for (uint32_t i = 0; i < s->job->plan->n_tensors; i++) {
		uint64_t bytes;
		gguf_writer_place(s->job->writer, i, NULL, NULL, &bytes);
		s->total += bytes;
		if (s->job->done[i])
			s->bytes_done += bytes;
		s->units_left[i] = units_of(s, i);
	}
}

int convert_run(const struct convert_job *job, struct convert_result *result, struct err *e)
{
	size_t n = job->plan->n_tensors;
	*result = (struct convert_result){0};
	struct pipeline s = {.job = job,
		.result = result,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.units_left = NEW_ARRAY(uint64_t, n),
		.finished = NEW_ARRAY(uint32_t, n),
		.journaled = NEW_ARRAY(uint32_t, n),
		.journal_ns = clock_ns(),
		.journal_every = JOURNAL_FIRST};
	count_units(&s);
	if (job->progress)
		progress_begin_lines(&s.progress, "converting", NULL, s.bytes_done, s.total);
	const struct workers_job work = {convert_worker, on_tick, stop_pipeline, &s, job->n_workers};
	int code = workers_run(&work, e);
	progress_end(&s.progress);
	free(s.units_left);
	free(s.finished);
	free(s.journaled);
	return code;
}
