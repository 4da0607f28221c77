/* SPDX-License-Identifier: MIT */
#include "tools/imatrix/imatrix_write.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/format/gguf_write.h"
#include "tools/imatrix/imatrix_keys.h"

#include <stdlib.h>
#include <string.h>

bool imatrix_is_dat(const char *path)
{
	size_t n = strlen(path);
	return n > 4 && !strcmp(path + n - 4, ".dat");
}

void imatrix_output_own(struct imatrix_output *o)
{
	o->has_own = !stat(o->path, &o->own);
}

static bool is_own(const struct imatrix_output *o)
{
	struct stat now;
	return o->has_own && !stat(o->path, &now) && now.st_dev == o->own.st_dev &&
		   now.st_ino == o->own.st_ino && now.st_size == o->own.st_size &&
		   now.st_mtim.tv_sec == o->own.st_mtim.tv_sec &&
		   now.st_mtim.tv_nsec == o->own.st_mtim.tv_nsec;
}

static int check_target(const struct imatrix_output *o, struct err *e)
{
	return out_file_may_replace(o->path, &out_data, o->force || is_own(o), e);
}

static int check_partial(const struct imatrix_output *o, struct err *e)
{
	char *partial;
	int rc = out_file_target(o->path, NULL, &partial, e);
	if (rc)
		return rc;
	rc = out_file_may_replace(partial, &out_unfinished_model, o->force, e);
	free(partial);
	return rc;
}

int imatrix_check_place(const struct imatrix_output *o, struct err *e)
{
	struct stat now;
	if (!imatrix_is_dat(o->path) && !stat(o->path, &now) && !S_ISREG(now.st_mode))
		return err_set(e, ERR_INPUT, "%.400s: exists and is not a regular file", o->path);
	return out_file_check(o->path, &out_data, true, e);
}

int imatrix_check_output(const struct imatrix_output *o, struct err *e)
{
	int rc = imatrix_check_place(o, e);
	if (!rc)
		rc = check_target(o, e);
	return rc || imatrix_is_dat(o->path) ? rc : check_partial(o, e);
}

int imatrix_check_space(const struct imatrix_set *s, const struct imatrix_output *o, struct err *e)
{
	const bool dat = imatrix_is_dat(o->path);
	uint64_t need = 0, room;
	for (size_t i = 0; i < s->n; i++)
		if (!dat || !imatrix_is_moments(s->tensors[i].name))
			need += (s->tensors[i].n_values + s->tensors[i].n_counts) * sizeof(float);
	struct stat st;
	if (!stat(o->path, &st) && !S_ISREG(st.st_mode)) /* a pipe, a device */
		return 0;
	char *partial;
	int rc = out_file_free_bytes(o->path, &room, e);
	if (rc || (rc = out_file_target(o->path, NULL, &partial, e)))
		return rc;
	if (!dat && !stat(partial, &st)) /* of a run that was stopped: it is overwritten */
		room += (uint64_t)st.st_blocks * 512;
	free(partial);
	if (room >= need)
		return 0;
	return err_set(e, ERR_MEMORY, "%.400s: %llu bytes are needed, %llu are free there", o->path,
		(unsigned long long)need, (unsigned long long)room);
}

/* ---- GGUF ---- */

static void set_keys(struct gguf_writer *w, const struct imatrix_set *s)
{
	struct gguf_str *names = NEW_ARRAY(struct gguf_str, s->n_datasets + 1);
	for (size_t i = 0; i < s->n_datasets; i++)
		names[i] = (struct gguf_str){s->datasets[i], strlen(s->datasets[i])};
	gguf_writer_set_str(w, IMATRIX_TYPE, "imatrix");
	gguf_writer_set_strs(w, IMATRIX_DATASETS, names, s->n_datasets);
	gguf_writer_set_u32(w, IMATRIX_CHUNK_COUNT, s->chunk_count);
	gguf_writer_set_u32(w, IMATRIX_CHUNK_SIZE, s->chunk_size);
	free(names);
	if (!s->has_origin)
		return;
	gguf_writer_set_u64(w, IMATRIX_MODEL, s->origin.model);
	gguf_writer_set_u64(w, IMATRIX_TEXT, s->origin.text);
	gguf_writer_set_u64(w, IMATRIX_TOKENS, s->origin.tokens);
}

static int add_tensor(struct gguf_writer *w, const char *name, const char *suffix, uint64_t cols,
	uint64_t rows, struct err *e)
{
	char *full = mem_printf("%s.%s", name, suffix);
	int rc = gguf_writer_add_tensor(w, full, DTYPE_F32, 2, (uint64_t[]){cols, rows, 1, 1}, NULL, e);
	free(full);
	return rc;
}

/* The writer is not asked what it may replace: it would refuse this run's own file too. */
static int write_gguf(const struct imatrix_set *s, struct imatrix_output *o, struct err *e)
{
	int rc = 0;
	struct gguf_writer *w =
		gguf_writer_new(&(struct gguf_write_options){.alignment = GGUF_DEFAULT_ALIGNMENT});
	set_keys(w, s);
	for (size_t i = 0; i < s->n && !rc; i++) {
		const struct imatrix_tensor *t = &s->tensors[i];
		if (!(rc = add_tensor(w, t->name, "in_sum2", t->n_values / t->n_counts, t->n_counts, e)))
			rc = add_tensor(w, t->name, "counts", 1, t->n_counts, e);
	}
	if (rc || (rc = gguf_writer_plan(w, e)) || (rc = check_partial(o, e)))
		goto out;
	rc = gguf_writer_create(w, o->path, false, e);
	for (size_t i = 0; i < s->n && !rc; i++) {
		const struct imatrix_tensor *t = &s->tensors[i];
		if (!(rc = gguf_writer_write(w, 2 * i, 0, t->sum2, t->n_values * sizeof(float), e)))
			rc = gguf_writer_write(w, 2 * i + 1, 0, t->counts, t->n_counts * sizeof(float), e);
	}
	if (!rc && (rc = check_target(o, e))) { /* after hours: the sums are worth keeping */
		err_hint(e, "what was collected stands in %.400s", gguf_writer_partial(w, 0));
		goto out;
	}
	if (!rc)
		rc = gguf_writer_commit(w, e);
	if (rc)
		gguf_writer_discard(w);
	else
		imatrix_output_own(o);
out:
	gguf_writer_free(w);
	return rc;
}

/* ---- .dat ---- */

/* stdio keeps a failed write; out_file_commit reports it */
static void put_i32(FILE *f, uint64_t v)
{
	const int32_t word = (int32_t)MIN(v, (uint64_t)INT32_MAX);
	fwrite(&word, sizeof word, 1, f);
}

static float most_tokens(const struct imatrix_tensor *t)
{
	float most = 0;
	for (uint64_t i = 0; i < t->n_counts; i++)
		most = MAX(most, t->counts[i]);
	return most;
}

static bool in_dat(const struct imatrix_tensor *t)
{
	return most_tokens(t) > 0 && !imatrix_is_moments(t->name);
}

static void put_entry(FILE *f, const struct imatrix_tensor *t, uint32_t chunk_size)
{
	const uint64_t cols = t->n_values / t->n_counts,
				   calls = ((uint64_t)most_tokens(t) + chunk_size - 1) / chunk_size;
	put_i32(f, strlen(t->name));
	fputs(t->name, f);
	put_i32(f, calls);
	put_i32(f, t->n_values);
	for (uint64_t i = 0; i < t->n_values; i++) {
		const float n = t->counts[i / cols], mean = n > 0 ? t->sum2[i] / n : 1,
					value = mean * (float)calls;
		fwrite(&value, sizeof value, 1, f);
	}
}

static int write_dat(const struct imatrix_set *s, struct imatrix_output *to, struct err *e)
{
	struct out_file o;
	const char *path = to->path;
	const char *dataset = s->n_datasets ? s->datasets[s->n_datasets - 1] : "";
	size_t n = 0;
	for (size_t i = 0; i < s->n; i++) {
		if (in_dat(&s->tensors[i]) && s->tensors[i].n_values > INT32_MAX)
			return err_set(e, ERR_INPUT, "%s: %s has more values than a .dat can hold", path,
				s->tensors[i].name);
		n += in_dat(&s->tensors[i]);
	}
	int rc = out_file_open(&o, path, &out_data, to->force || is_own(to), e);
	if (rc)
		return rc;
	put_i32(o.f, n);
	for (size_t i = 0; i < s->n; i++)
		if (in_dat(&s->tensors[i]))
			put_entry(o.f, &s->tensors[i], s->chunk_size);
	put_i32(o.f, s->chunk_count);
	put_i32(o.f, strlen(dataset));
	fputs(dataset, o.f);
	if (!(rc = out_file_commit(&o, e)))
		imatrix_output_own(to);
	return rc;
}

int imatrix_write(const struct imatrix_set *s, struct imatrix_output *o, struct err *e)
{
	return imatrix_is_dat(o->path) ? write_dat(s, o, e) : write_gguf(s, o, e);
}
