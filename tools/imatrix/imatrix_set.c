/* SPDX-License-Identifier: MIT */
#include "tools/imatrix/imatrix_set.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/imatrix/imatrix_keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
	return strcmp(
		((const struct imatrix_tensor *)a)->name, ((const struct imatrix_tensor *)b)->name);
}

void imatrix_set_add_tensor(struct imatrix_set *s, const char *name, uint64_t n_values,
	uint64_t n_counts, float *sum2, float *counts, bool owned)
{
	s->tensors = mem_grow(s->tensors, s->n + 1, sizeof *s->tensors);
	s->tensors[s->n++] =
		(struct imatrix_tensor){mem_strdup(name), n_values, n_counts, sum2, counts, owned};
}

void imatrix_set_sort(struct imatrix_set *s)
{
	if (s->n)
		qsort(s->tensors, s->n, sizeof *s->tensors, by_name);
}

void imatrix_set_add_dataset(struct imatrix_set *s, const char *name, size_t len)
{
	s->datasets = mem_grow(s->datasets, s->n_datasets + 1, sizeof *s->datasets);
	s->datasets[s->n_datasets++] = mem_strndup(name, len);
}

const struct imatrix_tensor *imatrix_set_find(const struct imatrix_set *s, const char *name)
{
	struct imatrix_tensor key = {.name = (char *)(uintptr_t)name};
	return s->n ? bsearch(&key, s->tensors, s->n, sizeof *s->tensors, by_name) : NULL;
}

bool imatrix_is_moments(const char *name)
{
	const size_t n = strlen(name), k = strlen(IMATRIX_MOMENTS);
	return n > k && !strcmp(name + n - k, IMATRIX_MOMENTS);
}

static void tensor_fini(struct imatrix_tensor *t)
{
	free(t->name);
	if (t->owned) {
		free(t->sum2);
		free(t->counts);
	}
	*t = (struct imatrix_tensor){0};
}

void imatrix_set_fini(struct imatrix_set *s)
{
	for (size_t i = 0; i < s->n; i++)
		tensor_fini(&s->tensors[i]);
	for (size_t i = 0; i < s->n_datasets; i++)
		free(s->datasets[i]);
	free(s->tensors);
	free(s->datasets);
	*s = (struct imatrix_set){0};
}

/* ---- loading ---- */

/* The keys that say where the sums come from; a file may lack each of them. */
static int load_keys(struct imatrix_set *s, const struct gguf *g, struct err *e)
{
	int rc;
	struct gguf_array names;
	if ((rc = gguf_get_u32_or(g, IMATRIX_CHUNK_COUNT, 0, &s->chunk_count, e)) ||
		(rc = gguf_get_u32_or(g, IMATRIX_CHUNK_SIZE, s->chunk_size, &s->chunk_size, e)))
		return rc;
	if (!s->chunk_size || s->chunk_size > INT32_MAX)
		return err_set(e, ERR_INPUT, "%s: %s is %u, expected 1 to %d", g->files[0].path,
			IMATRIX_CHUNK_SIZE, s->chunk_size, INT32_MAX);
	if (gguf_find(g, IMATRIX_DATASETS)) {
		if ((rc = gguf_get_strs(g, IMATRIX_DATASETS, &names, e)))
			return rc;
		for (uint64_t i = 0; i < names.n; i++)
			imatrix_set_add_dataset(s, names.strings[i].ptr, names.strings[i].len);
	}
	if (!gguf_find(g, IMATRIX_MODEL))
		return 0;
	s->has_origin = true;
	if ((rc = gguf_get_u64(g, IMATRIX_MODEL, &s->origin.model, e)) ||
		(rc = gguf_get_u64(g, IMATRIX_TEXT, &s->origin.text, e)))
		return rc;
	return gguf_get_u64(g, IMATRIX_TOKENS, &s->origin.tokens, e);
}

static int load_tensor(
	struct imatrix_set *s, const struct imatrix_entry *x, const char *path, struct err *e)
{
	const uint64_t n_counts = x->counts ? x->n_counts : 1;
	const bool moments = imatrix_is_moments(x->name);
	const float tokens = (float)((double)x->calls * IMATRIX_DAT_CHUNK),
				factor = x->counts ? 1 : IMATRIX_DAT_CHUNK;
	float *sum2 = mem_try_new(x->n, sizeof *sum2), *counts = mem_try_new(n_counts, sizeof *counts);
	if (!sum2 || !counts) {
		free(sum2);
		free(counts);
		return err_set(e, ERR_MEMORY, "%s: no memory for %" PRIu64 " values", path, x->n);
	}
	imatrix_set_add_tensor(s, x->name, x->n, n_counts, sum2, counts, true);
	for (uint64_t i = 0; i < n_counts; i++)
		counts[i] = x->counts ? load_f32(x->counts + 4 * i) : tokens;
	for (uint64_t i = 0; i < x->n; i++) {
		sum2[i] = factor * load_f32(x->values + 4 * i);
		if (!((moments ? fabsf(sum2[i]) : sum2[i]) < IMATRIX_SUM_LIMIT) ||
			(!moments && sum2[i] < 0))
			return err_set(e, ERR_INPUT,
				"%s: value %" PRIu64 " of %s is %g, a sum of squares expected", path, i, x->name,
				(double)sum2[i]);
	}
	return 0;
}

int imatrix_set_load(struct imatrix_set *s, const char *path, bool *estimated, struct err *e)
{
	struct imatrix_file *f = NULL;
	int rc = imatrix_file_open(path, &f, e);
	s->chunk_size = IMATRIX_DAT_CHUNK;
	if (!rc && imatrix_file_gguf(f))
		rc = load_keys(s, imatrix_file_gguf(f), e);
	for (size_t i = 0; !rc && i < imatrix_file_count(f); i++) {
		const struct imatrix_entry *x = imatrix_file_entry(f, i);
		if (!x->counts && imatrix_file_gguf(f))
			rc = err_set(e, ERR_INPUT, "%s: %s has no counts", path, x->name);
		else
			rc = load_tensor(s, x, path, e);
		if (!x->counts)
			s->chunk_count = MAX(s->chunk_count, x->calls);
	}
	struct err lost = {0};
	if (f && imatrix_file_check_lost(f, &lost)) {
		rc = lost.code;
		if (e)
			*e = lost;
	}
	if (estimated)
		*estimated = f && !imatrix_file_gguf(f);
	imatrix_file_close(f);
	imatrix_set_sort(s);
	return rc;
}

/* ---- merging ---- */

static bool is_dataset(const struct imatrix_set *s, const char *name)
{
	for (size_t i = 0; i < s->n_datasets; i++)
		if (!strcmp(s->datasets[i], name))
			return true;
	return false;
}

/* A single count, of a .dat, stands for every expert but those that no token went to, which have a
 * mean square of exactly 1 in each column. */
static void expand_counts(struct imatrix_tensor *t, uint64_t n)
{
	if (t->n_counts == n || t->n_counts != 1 || t->n_values % n)
		return;
	const uint64_t cols = t->n_values / n;
	const float all = t->counts[0];
	t->counts = mem_grow(t->counts, n, sizeof *t->counts);
	for (uint64_t i = 0; i < n; i++) {
		float *sum2 = t->sum2 + i * cols;
		uint64_t c = 0;
		while (c < cols && !(sum2[c] < all) && !(sum2[c] > all))
			c++;
		t->counts[i] = c < cols ? all : 0;
		if (c == cols)
			memset(sum2, 0, cols * sizeof *sum2);
	}
	t->n_counts = n;
}

static int merge_tensor(
	struct imatrix_tensor *t, struct imatrix_tensor *from, const char *path, struct err *e)
{
	const uint64_t n_counts = MAX(t->n_counts, from->n_counts);
	if (t->n_values == from->n_values) {
		expand_counts(t, n_counts);
		expand_counts(from, n_counts);
	}
	if (t->n_values != from->n_values || t->n_counts != from->n_counts) {
		err_set(e, ERR_INPUT,
			"%s: %s has %" PRIu64 " values and %" PRIu64 " counts, the files before have %" PRIu64
			" and %" PRIu64,
			path, t->name, from->n_values, from->n_counts, t->n_values, t->n_counts);
		return err_hint(e, "files of one model can be merged");
	}
	for (uint64_t i = 0; i < t->n_values; i++)
		t->sum2[i] += from->sum2[i];
	for (uint64_t i = 0; i < t->n_counts; i++)
		t->counts[i] += from->counts[i];
	return 0;
}

int imatrix_set_merge(
	struct imatrix_set *s, struct imatrix_set *from, const char *path, struct err *e)
{
	const size_t n = s->n;
	for (size_t i = 0; i < from->n; i++) {
		struct imatrix_tensor *x = &from->tensors[i];
		struct imatrix_tensor key = {.name = x->name},
							  *t = n ? bsearch(&key, s->tensors, n, sizeof key, by_name) : NULL;
		int rc = t ? merge_tensor(t, x, path, e) : 0;
		if (rc)
			return rc;
		if (t)
			continue;
		imatrix_set_add_tensor(s, x->name, x->n_values, x->n_counts, x->sum2, x->counts, true);
		x->owned = false;
	}
	imatrix_set_sort(s);
	for (size_t i = 0; i < from->n_datasets; i++)
		if (!is_dataset(s, from->datasets[i]))
			imatrix_set_add_dataset(s, from->datasets[i], strlen(from->datasets[i]));
	/* in chunks of the first file's size */
	const uint64_t tokens = (uint64_t)from->chunk_count * from->chunk_size;
	if (!n)
		s->chunk_size = from->chunk_size;
	const uint64_t chunks = s->chunk_count + (tokens + s->chunk_size - 1) / s->chunk_size;
	s->chunk_count = (uint32_t)MIN(chunks, (uint64_t)INT32_MAX);
	s->has_origin = false;
	return 0;
}
