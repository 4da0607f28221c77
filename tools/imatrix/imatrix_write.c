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

int imatrix_check_output(const char *path, bool force, struct err *e)
{
	int rc = out_file_may_replace(path, &out_data, force, e);
	if (rc || imatrix_is_dat(path))
		return rc;
	char *partial = mem_printf("%s.partial", path);
	rc = out_file_may_replace(partial, &out_unfinished_model, force, e);
	free(partial);
	return rc;
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

static int write_gguf(const struct imatrix_set *s, const char *path, struct err *e)
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
	if (rc || (rc = gguf_writer_plan(w, e)))
		goto out;
	rc = gguf_writer_create(w, path, false, e);
	for (size_t i = 0; i < s->n && !rc; i++) {
		const struct imatrix_tensor *t = &s->tensors[i];
		if (!(rc = gguf_writer_write(w, 2 * i, 0, t->sum2, t->n_values * sizeof(float), e)))
			rc = gguf_writer_write(w, 2 * i + 1, 0, t->counts, t->n_counts * sizeof(float), e);
	}
	if (!rc)
		rc = gguf_writer_commit(w, e);
	if (rc)
		gguf_writer_discard(w);
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

static int write_dat(const struct imatrix_set *s, const char *path, struct err *e)
{
	struct out_file o;
	const char *dataset = s->n_datasets ? s->datasets[s->n_datasets - 1] : "";
	size_t n = 0;
	for (size_t i = 0; i < s->n; i++) {
		if (s->tensors[i].n_values > INT32_MAX)
			return err_set(e, ERR_INPUT, "%s: %s has more values than a .dat can hold", path,
				s->tensors[i].name);
		n += most_tokens(&s->tensors[i]) > 0;
	}
	int rc = out_file_open(&o, path, &out_data, true, e);
	if (rc)
		return rc;
	put_i32(o.f, n);
	for (size_t i = 0; i < s->n; i++)
		if (most_tokens(&s->tensors[i]) > 0)
			put_entry(o.f, &s->tensors[i], s->chunk_size);
	put_i32(o.f, s->chunk_count);
	put_i32(o.f, strlen(dataset));
	fputs(dataset, o.f);
	return out_file_commit(&o, e);
}

int imatrix_write(const struct imatrix_set *s, const char *path, struct err *e)
{
	return imatrix_is_dat(path) ? write_dat(s, path, e) : write_gguf(s, path, e);
}
