/* SPDX-License-Identifier: MIT */
/*
 * Reading importance matrices.
 *
 * GGUF: tensors NAME.in_sum2 F32 {cols, slabs} (sums of squared inputs) and NAME.counts F32 {1,
 * slabs} (tokens seen); of matrices that all tokens pass, heads included, one count. .dat,
 * little-endian: i32 n_entries; n_entries x { i32 length, name, i32 calls, i32 n_values, f32
 * values[n_values] }; then optional trailing fields that do not matter here. An entry of a stack
 * holds cols x slabs values.
 *
 * Quantisers only compare weights within one matrix, so a common factor (calls, tokens) need not be
 * divided out.
 */
#include "tools/imatrix/imatrix_file.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "tools/imatrix/imatrix_keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct read_entry {
	struct imatrix_entry e; /* first: entries are found by its name */
	/* Of routed experts with counts, else NULL: the mean square of each column over the tokens of
	 * all experts, and the sum of them. */
	float *layer;
	double layer_sum;
};

struct imatrix_file {
	char *path;
	struct gguf *gguf;   /* or */
	struct file_map map; /* of a .dat */
	struct read_entry *entries;
	size_t n_entries;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct read_entry *)a)->e.name, ((const struct read_entry *)b)->e.name);
}

static struct imatrix_entry *add_entry(
	struct imatrix_file *m, const char *name, size_t len, const uint8_t *values, uint64_t n)
{
	m->entries = mem_grow(m->entries, m->n_entries + 1, sizeof *m->entries);
	struct read_entry *x = &m->entries[m->n_entries++];
	*x = (struct read_entry){.e = {.name = mem_strndup(name, len), .values = values, .n = n}};
	return &x->e;
}

/* NaN, negative and absurd values count as nothing. */
static float load_value(const uint8_t *values, uint64_t i)
{
	float v = load_f32(values + 4 * i);
	return v >= 0 && v < IMATRIX_SUM_LIMIT ? v : 0;
}

/* NAME.counts of an entry, if it is there. */
static int read_counts(struct imatrix_file *m, struct imatrix_entry *x, struct err *e)
{
	char *name = mem_printf("%s.counts", x->name);
	const struct gguf_tensor *t = gguf_find_tensor(m->gguf, name);
	free(name);
	if (!t)
		return 0;
	if (t->type != DTYPE_F32)
		return err_set(e, ERR_INPUT, "%s: tensor %s has type %s, F32 expected", m->path, t->name,
			dtype_name(t->type));
	x->n_counts = t->bytes / 4;
	x->counts = t->data;
	if (x->n % x->n_counts)
		return err_set(e, ERR_INPUT,
			"%s: %s has %" PRIu64 " values and %" PRIu64 " counts, which do not divide them",
			m->path, x->name, x->n, x->n_counts);
	for (uint64_t i = 0; i < x->n_counts; i++) {
		float v = load_f32(x->counts + 4 * i);
		if (!(v == 0 || (v >= 1 && v < IMATRIX_SUM_LIMIT)))
			return err_set(e, ERR_INPUT,
				"%s: count %" PRIu64 " of %s is %g, a number of tokens "
				"expected",
				m->path, i, x->name, (double)v);
	}
	return 0;
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
		int code = read_counts(m, add_entry(m, t->name, n - k, t->data, t->bytes / 4), e);
		if (code)
			return code;
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
		uint32_t calls = load_u32(p + 4 + len), n = load_u32(p + 4 + len + 4);
		p += 12 + len, left -= 12 + len;
		if (!n || n > left / 4 || memchr(name, 0, len))
			return err_set(e, ERR_INPUT,
				"%s: entry %u of %u is damaged: %u values announced, %" PRIu64 " bytes left",
				m->path, i, n_entries, n, left);
		add_entry(m, name, len, p, n)->calls = calls;
		p += 4 * (uint64_t)n, left -= 4 * (uint64_t)n;
	}
	return 0;
}

/* The layer's columns, for the prior of its experts. */
static int make_layer(const struct imatrix_file *m, struct read_entry *x, struct err *e)
{
	uint32_t layer;
	enum gguf_expert_part part;
	if (!x->e.counts || !gguf_expert_name(x->e.name, &layer, &part))
		return 0;
	uint64_t cols = x->e.n / x->e.n_counts;
	double *sum = mem_try_new(cols, sizeof *sum), tokens = 0;
	x->layer = mem_try_new(cols, sizeof *x->layer);
	if (!sum || !x->layer) {
		free(sum);
		return err_set(e, ERR_MEMORY, "%s: no memory for %" PRIu64 " columns", m->path, cols);
	}
	for (uint64_t s = 0; s < x->e.n_counts; s++) {
		double n = load_f32(x->e.counts + 4 * s);
		tokens += n;
		for (uint64_t c = 0; n > 0 && c < cols; c++)
			sum[c] += load_value(x->e.values, s * cols + c);
	}
	for (uint64_t c = 0; tokens > 0 && c < cols; c++) {
		x->layer[c] = (float)(sum[c] / tokens);
		x->layer_sum += x->layer[c];
	}
	free(sum);
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
	for (size_t i = 0; i < m->n_entries && !code; i++)
		code = make_layer(m, &m->entries[i], e);
	if (!code) {
		qsort(m->entries, m->n_entries, sizeof *m->entries, by_name);
		for (size_t i = 1; i < m->n_entries && !code; i++)
			if (!by_name(&m->entries[i - 1], &m->entries[i]))
				code =
					err_set(e, ERR_INPUT, "%s: has two entries for %s", path, m->entries[i].e.name);
	}
	struct err lost = {0};
	if (imatrix_file_check_lost(m, &lost)) { /* whatever was found says nothing */
		code = lost.code;
		if (e)
			*e = lost;
	}
	if (!code)
		*out = m;
	else
		imatrix_file_close(m);
	return code;
}

int imatrix_file_check_lost(const struct imatrix_file *m, struct err *e)
{
	return m->gguf ? gguf_check_lost(m->gguf, e) : file_map_check(&m->map, m->path, e);
}

void imatrix_file_close(struct imatrix_file *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->n_entries; i++) {
		free(m->entries[i].e.name);
		free(m->entries[i].layer);
	}
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

const struct imatrix_entry *imatrix_file_entry(const struct imatrix_file *m, size_t i)
{
	return &m->entries[i].e;
}

const struct gguf *imatrix_file_gguf(const struct imatrix_file *m)
{
	return m->gguf;
}

static const struct read_entry *find_entry(const struct imatrix_file *m, const char *name)
{
	struct read_entry key = {.e = {.name = (char *)(uintptr_t)name}};
	return bsearch(&key, m->entries, m->n_entries, sizeof *m->entries, by_name);
}

int imatrix_file_check(const struct imatrix_file *m, const char *name, uint64_t cols,
	uint64_t n_slabs, bool *found, struct err *e)
{
	const struct read_entry *x = find_entry(m, name);
	*found = x != NULL;
	if (x && x->e.n != cols * n_slabs)
		return err_set(e, ERR_INPUT,
			"%s: %s has %" PRIu64 " values, but the tensor has %" PRIu64 " x %" PRIu64, m->path,
			name, x->e.n, n_slabs, cols);
	if (x && x->e.n_counts > 1 && x->e.n_counts != n_slabs)
		return err_set(e, ERR_INPUT,
			"%s: %s has %" PRIu64 " counts, but the tensor has %" PRIu64 " matrices", m->path, name,
			x->e.n_counts, n_slabs);
	return 0;
}

bool imatrix_file_get(
	const struct imatrix_file *m, const char *name, uint64_t slab, uint64_t cols, float *out)
{
	const struct read_entry *x = find_entry(m, name);
	bool driven = false;
	double n = 0, own = 0, prior = 0;
	if (!x)
		return false;
	for (uint64_t c = 0; c < cols; c++) {
		out[c] = load_value(x->e.values, slab * cols + c);
		own += out[c];
	}
	if (x->layer && x->e.n == cols * x->e.n_counts) {
		n = load_f32(x->e.counts + 4 * slab);
		const double scale = n > 0 && own > 0 && x->layer_sum > 0 ? own / n / x->layer_sum : 1;
		prior = IMATRIX_PRIOR_TOKENS * scale;
	}
	for (uint64_t c = 0; c < cols; c++) {
		if (prior > 0) {
			double v = ((n > 0 ? (double)out[c] : 0) + prior * (double)x->layer[c]) /
					   (n + IMATRIX_PRIOR_TOKENS);
			out[c] = v < (double)IMATRIX_SUM_LIMIT ? (float)v : 0;
		}
		driven = driven || out[c] > 0;
	}
	return driven;
}

bool imatrix_file_rare(const struct imatrix_file *m, const char *name, float rare,
	uint64_t *n_experts, uint64_t *n_rare)
{
	const struct read_entry *x = find_entry(m, name);
	if (!x || !x->layer)
		return false;
	*n_experts = x->e.n_counts;
	*n_rare = 0;
	for (uint64_t i = 0; i < x->e.n_counts; i++)
		*n_rare += load_f32(x->e.counts + 4 * i) < rare;
	return true;
}

/* ---- moments ---- */

bool imatrix_moments_name(const char *tensor, char *out)
{
	uint32_t layer;
	enum gguf_expert_part part;
	if (!gguf_expert_name(tensor, &layer, &part))
		return false;
	const bool down = part == GGUF_EXPERT_DOWN;
	snprintf(out, IMATRIX_MOMENTS_NAME, "blk.%u.%s" IMATRIX_MOMENTS, layer,
		down ? "ffn_down_exps" : "ffn_in");
	return true;
}

int imatrix_file_check_moments(const struct imatrix_file *m, const char *tensor, uint64_t cols,
	uint64_t n_slabs, bool *found, struct err *e)
{
	char name[IMATRIX_MOMENTS_NAME];
	const struct read_entry *x = imatrix_moments_name(tensor, name) ? find_entry(m, name) : NULL;
	*found = x != NULL;
	if (x && (cols % FEEDBACK_COLUMNS || (x->e.n_counts != 1 && x->e.n_counts != n_slabs) ||
				 x->e.n != x->e.n_counts * (cols / FEEDBACK_COLUMNS) * FEEDBACK_MOMENTS))
		return err_set(e, ERR_INPUT,
			"%s: %s has %" PRIu64 " values and %" PRIu64 " counts, which do not fit %s of %" PRIu64
			" x %" PRIu64 " columns",
			m->path, name, x->e.n, x->e.n_counts, tensor, n_slabs, cols);
	return 0;
}

bool imatrix_file_moments(const struct imatrix_file *m, const char *tensor, uint64_t slab,
	uint64_t cols, float *out, float *trust)
{
	char name[IMATRIX_MOMENTS_NAME];
	const struct read_entry *x = imatrix_moments_name(tensor, name) ? find_entry(m, name) : NULL;
	if (!x || !x->e.n_counts)
		return false;
	const uint64_t n = cols / FEEDBACK_COLUMNS * FEEDBACK_MOMENTS, i = x->e.n_counts > 1 ? slab : 0;
	const float tokens = load_f32(x->e.counts + 4 * i);
	for (uint64_t k = 0; k < n; k++) {
		float v = load_f32(x->e.values + 4 * (i * n + k));
		out[k] = fabsf(v) < IMATRIX_SUM_LIMIT ? v : 0;
	}
	*trust = tokens / (tokens + FEEDBACK_COLUMNS);
	return true;
}
