/* SPDX-License-Identifier: MIT */
/* The plan of a conversion (convert_map.h) says of which rows of which tensors each tensor
 * consists. Here these rows become places in mapped files instead of being converted. */
#include "src/checkpoint/checkpoint.h"

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/checkpoint/convert_keys.h"
#include "src/checkpoint/convert_map.h"
#include "src/format/safetensors.h"
#include "src/quant/dequant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* What a struct gguf of a folder owns beside its usual fields. */
struct checkpoint {
	char *folder;
	struct convert_config config;
	struct convert_plan plan; /* tensor i of the plan is tensor i of the gguf */
	struct safetensors *st;   /* headers only */
	uint8_t *keys;            /* the bytes that keys point into */
	struct gguf_run **runs;   /* [plan.n_tensors] of each tensor: runs, then scales; or NULL */
};

void checkpoint_raise_file_limit(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
}

static void checkpoint_free(struct checkpoint *c)
{
	for (size_t i = 0; c->runs && i < c->plan.n_tensors; i++)
		free(c->runs[i]);
	free(c->runs);
	convert_plan_fini(&c->plan);
	safetensors_close(c->st);
	free(c->keys);
	free(c->folder);
	free(c);
}

static void close_folder(struct gguf *g)
{
	checkpoint_free(g->folder_data);
	g->folder_data = NULL;
}

/* ---- tensors that are made ---- */

/* Row r of the source, a single matrix, as floats with the scales applied. */
static void source_row(const struct gguf_tensor *t, enum dtype type, uint64_t r, uint64_t cols,
	const struct safetensors_tensor *scale, float *out)
{
	const size_t each = dtype_info(type)->block_bytes;
	const uint64_t blocks = dtype_scales(cols);
	dequant_row(type, t->runs->data + r * cols * each, out, cols);
	for (uint64_t k = 0; scale && k < cols; k++) {
		const uint64_t at = r / DTYPE_SCALE_BLOCK * blocks + k / DTYPE_SCALE_BLOCK;
		float s;
		dequant_row(scale->dtype == ST_F32 ? DTYPE_F32 : DTYPE_BF16,
			t->scales->data + at * st_dtype_bytes(scale->dtype), &s, 1);
		out[k] *= s;
	}
}

static enum dtype type_of(enum st_dtype t)
{
	switch (t) {
	case ST_F32:
		return DTYPE_F32;
	case ST_F16:
		return DTYPE_F16;
	case ST_BF16:
		return DTYPE_BF16;
	case ST_F8_E4M3:
		return DTYPE_F8_E4M3;
	default:
		bug("%s is no type of weights", st_dtype_name(t));
	}
}

static int make_tensor(const struct gguf *g, const struct gguf_tensor *t, void *dst, struct err *e)
{
	const struct checkpoint *c = g->folder_data;
	const struct convert_tensor *p = &c->plan.tensors[t - g->tensors];
	const struct convert_slab *first = p->slabs;
	const enum dtype from = type_of(first->src->dtype);
	const size_t each = dtype_info(t->type)->block_bytes;
	const uint64_t rows = p->src_rows, cols = p->src_cols;
	float *row = mem_try_new(cols, sizeof *row);
	if (!row)
		return err_set(e, ERR_MEMORY, "%s: no memory for a row", t->name);
	for (uint64_t s = 0; s < p->n_slabs; s++)
		for (uint64_t r = 0; r < rows; r++) {
			const uint64_t at = p->slabs[s].row0 + r;
			const uint8_t *values = (const uint8_t *)row;
			if (from == t->type) /* no conversion */
				values = t->runs->data + at * cols * each;
			else
				source_row(t, from, at, cols, first->scale, row);
			uint8_t *to = (uint8_t *)dst + s * rows * cols * each;
			for (uint64_t k = 0; p->transposed && k < cols; k++)
				memcpy(to + (k * rows + r) * each, values + k * each, each);
			if (!p->transposed)
				memcpy(to + r * cols * each, values, cols * each);
		}
	free(row);
	return 0;
}

static const struct gguf_folder_ops folder_ops = {.make = make_tensor, .close = close_folder};

/* ---- places ---- */

static struct gguf_run run_at(
	const struct gguf *g, const struct safetensors_tensor *t, uint64_t offset, uint64_t bytes)
{
	return (struct gguf_run){
		t->file, t->offset + offset, bytes, g->files[t->file].map.data + t->offset + offset};
}

/* Rows of one matrix of the source. */
static uint64_t matrix_rows(const struct safetensors_tensor *t)
{
	return t->n_dims > 1 ? t->shape[t->n_dims - 2] : 1;
}

static struct gguf_run slab_run(
	const struct gguf *g, const struct convert_tensor *p, const struct convert_slab *s)
{
	const uint64_t row = p->src_cols * st_dtype_bytes(s->src->dtype);
	return run_at(g, s->src, s->row0 * row, p->src_rows * row);
}

/* Precondition: the slab's first row begins a block. */
static struct gguf_run slab_scales(
	const struct gguf *g, const struct convert_tensor *p, const struct convert_slab *s)
{
	const uint64_t rows = matrix_rows(s->src), row = dtype_scales(p->src_cols) * sizeof(float);
	const uint64_t first = s->row0 / rows * dtype_scales(rows) + s->row0 % rows / DTYPE_SCALE_BLOCK;
	return run_at(g, s->scale, first * row, dtype_scales(p->src_rows) * row);
}

/* Whether the slab's bytes can be used as they are. */
static bool slab_is_plain(const struct convert_slab *s)
{
	return !s->scale ||
		   (s->scale->dtype == ST_F32 && s->row0 % matrix_rows(s->src) % DTYPE_SCALE_BLOCK == 0);
}

static bool all_are_plain(const struct convert_tensor *p)
{
	for (uint64_t s = 0; s < p->n_slabs; s++)
		if (!slab_is_plain(&p->slabs[s]))
			return false;
	return !p->transposed;
}

static int refuse_tensor(
	const struct gguf *g, const struct convert_tensor *p, const char *why, struct err *e)
{
	err_set(e, ERR_INPUT, "%s: %s (%s) cannot be read as it stands there: %s", g->folder, p->name,
		p->slabs->src->name, why);
	return err_hint(
		e, "glmstream convert %s -o FILE.gguf --recipe NAME makes a GGUF of it", g->folder);
}

/* Tensor number i of the plan. */
static int set_tensor(struct gguf *g, struct checkpoint *c, size_t i, struct err *e)
{
	const struct convert_tensor *p = &c->plan.tensors[i];
	const struct convert_slab *first = p->slabs;
	struct gguf_tensor *t = &g->tensors[i];
	uint32_t layer;
	enum gguf_expert_part part;
	const bool experts = gguf_expert_name(p->name, &layer, &part);
	*t = (struct gguf_tensor){.name = p->name, .n_dims = p->n_dims, .n_runs = p->n_slabs};
	memcpy(t->ne, p->ne, sizeof t->ne);
	t->type = type_of(first->src->dtype);
	for (uint64_t s = 1; s < p->n_slabs; s++)
		if (p->slabs[s].src->dtype != first->src->dtype)
			return refuse_tensor(g, p, "its parts are of several types", e);
	t->made = !all_are_plain(p) || (first->scale && p->n_slabs > 1 && !experts);
	if (t->made && (experts || !strcmp(p->name, "token_embd.weight")))
		return refuse_tensor(
			g, p, "its block scales do not begin where it does, or are not F32", e);
	if (!experts && !t->made && first->scale && !strcmp(p->name, "token_embd.weight"))
		return refuse_tensor(g, p, "an embedding with block scales", e);
	if (t->made)
		t->n_runs = 1;
	struct gguf_run *runs = c->runs[i] = NEW_ARRAY(struct gguf_run, 2 * t->n_runs);
	for (uint64_t s = 0; s < t->n_runs; s++) {
		const struct convert_slab *x = &p->slabs[s];
		runs[s] = t->made ? run_at(g, x->src, 0, x->src->bytes) : slab_run(g, p, x);
		t->bytes += runs[s].bytes;
		if (!x->scale)
			continue;
		struct gguf_run *scale = &runs[t->n_runs + s];
		*scale = t->made ? run_at(g, x->scale, 0, x->scale->bytes) : slab_scales(g, p, x);
		t->bytes += scale->bytes;
		t->scales = runs + t->n_runs;
	}
	t->file = runs->file;
	t->offset = runs->offset;
	t->runs = runs;
	if (t->made) {
		if (t->scales)
			t->type = DTYPE_F32;
		t->bytes = t->ne[0] * t->ne[1] * t->ne[2] * dtype_info(t->type)->block_bytes;
	} else if (t->n_runs == 1) {
		t->data = runs->data;
		t->runs = t->scales ? t->runs : NULL;
		t->n_runs = t->scales ? 1 : 0;
	}
	return 0;
}

/* ---- opening ---- */

/* Lines of notes, for -v. */
static void log_notes(const struct buf *notes)
{
	char *text = mem_strndup(notes->data ? notes->data : "", notes->len);
	for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		log_verbose("%s", ERR_PLAIN(line));
	free(text);
}

/* The keys as a GGUF without tensors. */
static int open_keys(struct checkpoint *c, struct gguf **out, struct err *e)
{
	struct buf notes = {0};
	struct gguf_writer *w = gguf_writer_new(NULL);
	int rc = convert_keys_set(w, &c->config, c->folder, &notes, e);
	if (!rc && !(rc = gguf_writer_plan(w, e))) {
		size_t n;
		const void *header = gguf_writer_header(w, 0, &n);
		c->keys = NEW_ARRAY(uint8_t, n);
		memcpy(c->keys, header, n);
		rc = gguf_parse(c->keys, n, c->folder, out, e);
	}
	gguf_writer_free(w);
	if (!rc)
		log_notes(&notes);
	buf_free(&notes);
	return rc;
}

/* Maps the shards. */
static int open_shards(struct gguf *g, const struct safetensors *st, struct err *e)
{
	int rc = 0;
	gguf_drop_files(g);
	g->files = NEW_ARRAY(struct gguf_file, st->n_files);
	for (; g->n_files < st->n_files && !rc; g->n_files++) {
		struct gguf_file *f = &g->files[g->n_files];
		const struct safetensors_file *from = &st->files[g->n_files];
		f->path = mem_strdup(from->path);
		f->alignment = 1;
		if ((rc = file_map_open(&f->map, f->path, e)))
			continue;
		f->size = f->map.size;
		if (f->size != from->size) {
			rc = err_set(e, ERR_INPUT,
				"%s: %" PRIu64 " bytes now, %" PRIu64 " when its header was read", f->path, f->size,
				from->size);
			continue;
		}
		/* by name again: it may be another file by now */
		f->data_offset = 8 + from->header_bytes;
		if (hash_bytes(hash_bytes(HASH_START, f->map.data, 8), f->map.data + 8,
				(size_t)from->header_bytes) != from->header_hash)
			rc = err_set(e, ERR_INPUT, "%s: was replaced while it was opened", f->path);
	}
	return rc;
}

int checkpoint_open(const char *folder, struct gguf **out, struct err *e)
{
	static const struct convert_recipe recipe = {"", DTYPE_F32, DTYPE_F32, NULL};
	struct gguf *g = NULL;
	struct checkpoint *c = NEW(struct checkpoint);
	*out = NULL;
	size_t n = strlen(folder);
	while (n > 1 && folder[n - 1] == '/')
		n--;
	c->folder = mem_strndup(folder, n);
	checkpoint_raise_file_limit();
	int rc = convert_config_read(&c->config, c->folder, e);
	if (rc || (rc = safetensors_open(c->folder, &c->st, e)) ||
		(rc = convert_plan_make(&c->plan, &c->config, &recipe, NULL, c->st, c->folder, e)) ||
		(rc = open_keys(c, &g, e))) {
		checkpoint_free(c);
		return rc;
	}
	log_notes(&c->plan.notes);
	g->folder = c->folder;
	g->folder_data = c;
	g->folder_ops = &folder_ops;
	c->runs = NEW_ARRAY(struct gguf_run *, c->plan.n_tensors);
	rc = open_shards(g, c->st, e);
	safetensors_close_files(c->st); /* they are mapped */
	g->n_tensors = c->plan.n_tensors;
	free(g->tensors);
	g->tensors = NEW_ARRAY(struct gguf_tensor, g->n_tensors);
	for (size_t i = 0; i < g->n_tensors && !rc; i++) {
		rc = set_tensor(g, c, i, e);
		g->tensor_bytes += g->tensors[i].bytes;
	}
	if (!rc)
		rc = gguf_index_tensors(g, e);
	struct err lost = {0};
	if (gguf_check_lost(g, &lost)) {
		rc = lost.code;
		if (e)
			*e = lost;
	}
	if (rc)
		gguf_close(g);
	else
		*out = g;
	return rc;
}

int model_file_open(const char *path, struct gguf **out, struct err *e)
{
	struct stat s;
	if (stat(path, &s) == 0 && S_ISDIR(s.st_mode))
		return checkpoint_open(path, out, e);
	return gguf_open(path, out, e);
}
