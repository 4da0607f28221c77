/* SPDX-License-Identifier: MIT */
/*
 * Reading importance matrices.
 *
 * GGUF: tensors NAME.in_sum2 F32 {cols, slabs} (sums of squared inputs) and NAME.counts F32 {1,
 * slabs} (tokens seen). .dat, little-endian: i32 n_entries; n_entries x { i32 length, name, i32
 * calls, i32 n_values, f32 values[n_values] }; then optional trailing fields that do not matter
 * here. An entry of a stack holds cols x slabs values.
 *
 * Quantisers only compare weights within one matrix, so the common factor (calls) need not be
 * divided out.
 */
#include "tools/imatrix/imatrix_file.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct imatrix_entry {
	char *name;
	const uint8_t *values; /* f32[n], unaligned */
	uint64_t n;
};

struct imatrix_file {
	char *path;
	struct gguf *gguf;   /* or */
	struct file_map map; /* of a .dat */
	struct imatrix_entry *entries;
	size_t n_entries;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct imatrix_entry *)a)->name, ((const struct imatrix_entry *)b)->name);
}

static void add_entry(
	struct imatrix_file *m, const char *name, size_t len, const uint8_t *values, uint64_t n)
{
	m->entries = mem_grow(m->entries, m->n_entries + 1, sizeof *m->entries);
	m->entries[m->n_entries++] = (struct imatrix_entry){mem_strndup(name, len), values, n};
}

static int read_gguf(struct imatrix_file *m, struct err *e)
{
	static const char suffix[] = ".in_sum2";
	for (size_t i = 0; i < m->gguf->n_tensors; i++) {
		const struct gguf_tensor *t = &m->gguf->tensors[i];
		size_t n = strlen(t->name), k = sizeof suffix - 1;
		if (n <= k || strcmp(t->name + n - k, suffix))
			continue;
		if (t->type != DTYPE_F32)
			return err_set(e, ERR_INPUT, "%s: tensor %s has type %s, F32 expected", m->path,
				t->name, dtype_name(t->type));
		add_entry(m, t->name, n - k, t->data, t->bytes / 4);
	}
	return 0;
}

static int read_dat(struct imatrix_file *m, struct err *e)
{
	const uint8_t *p = m->map.data;
	uint64_t left = m->map.size;
	uint32_t n_entries = left >= 4 ? load_u32(p) : 0;
	/* an entry takes at least 13 bytes */
	if (left < 4 || !n_entries || n_entries > left / 13)
		return err_set(e, ERR_INPUT, "%s: is neither a GGUF nor a .dat importance matrix", m->path);
	p += 4, left -= 4;
	for (uint32_t i = 0; i < n_entries; i++) {
		uint32_t len = left >= 4 ? load_u32(p) : 0;
		if (!len || len > GGUF_NAME_MAX || left < 12 + (uint64_t)len)
			return err_set(e, ERR_INPUT, "%s: entry %u of %u is damaged", m->path, i, n_entries);
		const char *name = (const char *)p + 4;
		uint32_t n = load_u32(p + 4 + len + 4);
		p += 12 + len, left -= 12 + len;
		if (!n || n > left / 4 || memchr(name, 0, len))
			return err_set(e, ERR_INPUT,
				"%s: entry %u of %u is damaged: %u values announced, %" PRIu64 " bytes left",
				m->path, i, n_entries, n, left);
		add_entry(m, name, len, p, n);
		p += 4 * (uint64_t)n, left -= 4 * (uint64_t)n;
	}
	return 0;
}

int imatrix_file_open(const char *path, struct imatrix_file **out, struct err *e)
{
	*out = NULL;
	struct imatrix_file *m = NEW(struct imatrix_file);
	m->path = mem_strdup(path);
	int code = file_map_open(&m->map, path, e);
	if (!code && m->map.size >= 4 && !memcmp(m->map.data, "GGUF", 4)) {
		file_map_close(&m->map);
		code = gguf_open(path, &m->gguf, e);
		if (!code)
			code = read_gguf(m, e);
	} else if (!code) {
		code = read_dat(m, e);
	}
	if (!code && !m->n_entries)
		code = err_set(e, ERR_INPUT, "%s: holds no importance data (tensors *.in_sum2)", path);
	if (!code) {
		qsort(m->entries, m->n_entries, sizeof *m->entries, by_name);
		*out = m;
	} else {
		imatrix_file_close(m);
	}
	return code;
}

void imatrix_file_close(struct imatrix_file *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->n_entries; i++)
		free(m->entries[i].name);
	free(m->entries);
	gguf_close(m->gguf);
	file_map_close(&m->map);
	free(m->path);
	free(m);
}

size_t imatrix_file_count(const struct imatrix_file *m)
{
	return m->n_entries;
}

static const struct imatrix_entry *find_entry(const struct imatrix_file *m, const char *name)
{
	struct imatrix_entry key = {.name = (char *)(uintptr_t)name};
	return bsearch(&key, m->entries, m->n_entries, sizeof *m->entries, by_name);
}

int imatrix_file_check(const struct imatrix_file *m, const char *name, uint64_t cols,
	uint64_t n_slabs, bool *found, struct err *e)
{
	const struct imatrix_entry *x = find_entry(m, name);
	*found = x != NULL;
	if (x && x->n != cols * n_slabs)
		return err_set(e, ERR_INPUT,
			"%s: %s has %" PRIu64 " values, but the tensor has %" PRIu64 " x %" PRIu64, m->path,
			name, x->n, n_slabs, cols);
	return 0;
}

bool imatrix_file_get(
	const struct imatrix_file *m, const char *name, uint64_t slab, uint64_t cols, float *out)
{
	const struct imatrix_entry *x = find_entry(m, name);
	bool driven = false;
	if (!x)
		return false;
	for (uint64_t c = 0; c < cols; c++) {
		float v = load_f32(x->values + 4 * (slab * cols + c));
		out[c] = v >= 0 && v < 1e30f ? v : 0; /* also NaN */
		driven = driven || out[c] > 0;
	}
	return driven;
}
