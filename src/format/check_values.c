/* SPDX-License-Identifier: MIT */
/* The lengths of the key and of the file follow from the tensor table. Sizes that are stored there
 * are only compared with them. */
#include "src/format/check_values.h"

#include "src/base/buf.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/base/xxh3/xxh3.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC      "GLMXXH3\n" /* as out_check_values says */
#define VERSION    1
#define HEAD_BYTES 32

/* ---- ranges ---- */

uint64_t check_ranges(const char *name, uint32_t n_dims, const uint64_t ne[4])
{
	uint32_t layer;
	enum gguf_expert_part part;
	return n_dims == 3 && gguf_expert_name(name, &layer, &part) ? ne[2] : 1;
}

uint64_t check_table_add(uint64_t h, const char *name, enum dtype type, const uint64_t ne[4])
{
	const uint64_t numbers[] = {type, ne[0], ne[1], ne[2], ne[3]};
	return hash_bytes(hash_bytes(h, name, strlen(name)), numbers, sizeof numbers);
}

void check_map_init(struct check_map *m, const struct gguf *g)
{
	*m = (struct check_map){.file = g, .fingerprint = CHECK_TABLE_START};
	m->first = NEW_ARRAY(uint64_t, g->n_tensors + 1);
	for (size_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *t = &g->tensors[i];
		const uint64_t n =
			t->runs ? t->n_runs * (t->scales ? 2 : 1) : check_ranges(t->name, t->n_dims, t->ne);
		m->first[i + 1] = m->first[i] + n;
		m->fingerprint = check_table_add(m->fingerprint, t->name, t->type, t->ne);
	}
}

void check_map_fini(struct check_map *m)
{
	free(m->first);
	*m = (struct check_map){0};
}

struct check_range check_map_range(const struct check_map *m, uint64_t i)
{
	const size_t k = num_interval_of(m->first, m->file->n_tensors, i);
	const struct gguf_tensor *t = &m->file->tensors[k];
	const uint64_t n = m->first[k + 1] - m->first[k], at = i - m->first[k];
	if (t->runs) {
		const bool scales = at >= t->n_runs;
		const uint64_t expert = at % t->n_runs;
		return (struct check_range){
			t, expert, scales, scales ? t->scales[expert] : t->runs[expert]};
	}
	const uint64_t bytes = t->bytes / n, from = at * bytes;
	return (struct check_range){
		t, at, false, {t->file, t->offset + from, bytes, t->data ? t->data + from : NULL}};
}

const char *check_range_text(const struct check_map *m, uint64_t i, char *out)
{
	const struct check_range r = check_map_range(m, i);
	char expert[40] = "";
	if (r.tensor->runs ? r.tensor->n_runs > 1 : r.run.bytes != r.tensor->bytes)
		snprintf(expert, sizeof expert, ", expert %" PRIu64, r.expert);
	snprintf(out, CHECK_RANGE_TEXT, "%s%s%s (%" PRIu64 " bytes at offset %" PRIu64 ")",
		r.tensor->name, expert, r.scales ? ", scales" : "", r.run.bytes, r.run.offset);
	return out;
}

/* ---- values ---- */

static struct check_values *values_new(const struct gguf *g, struct err *e)
{
	struct check_values *v = NEW(struct check_values);
	check_map_init(&v->map, g);
	v->values = mem_try_new(check_map_n(&v->map), sizeof *v->values);
	if (v->values)
		return v;
	err_set(e, ERR_MEMORY, "%s: no memory for %" PRIu64 " check values", g->files[0].path,
		check_map_n(&v->map));
	check_values_free(v);
	return NULL;
}

void check_values_free(struct check_values *v)
{
	if (!v)
		return;
	check_map_fini(&v->map);
	free(v->values);
	free(v);
}

uint64_t check_value(const struct check_values *v, const struct gguf_tensor *t, uint64_t i)
{
	return v->values[v->map.first[t - v->map.file->tensors] + i];
}

int check_values_err(const struct check_values *v, uint64_t i, uint64_t found, struct err *e)
{
	char text[CHECK_RANGE_TEXT];
	err_set(e, ERR_RUN,
		"%s: %s is not what was written, also when it is read again: XXH3 %016" PRIx64
		", %016" PRIx64 " expected",
		v->map.file->files[check_map_range(&v->map, i).run.file].path,
		check_range_text(&v->map, i, text), found, v->values[i]);
	err_hint(e, "glmstream verify -m FILE compares all of it; --verify off uses it as it is");
	return ERR_RUN;
}

/* ---- the key ---- */

int check_values_open_key(const struct gguf *g, struct check_values **out, struct err *e)
{
	*out = NULL;
	const struct gguf_kv *kv = gguf_find(g, CHECK_VALUES_KEY);
	if (!kv)
		return 0;
	const struct gguf_array *a = &kv->value;
	if (kv->type != GGUF_ARRAY || a->type != GGUF_U64 || !a->n)
		return err_set(e, ERR_INPUT, "%s: key %s is no array of u64", g->files[0].path, kv->key);
	struct check_values *v = values_new(g, e);
	if (!v)
		return ERR_MEMORY;
	if (load_u64(a->data) != v->map.fingerprint) {
		log_warn("%s: its check values are of other tensors: a program has rewritten the file and "
				 "kept them. They are not used",
			ERR_PLAIN(g->files[0].path));
		check_values_free(v);
		return 0;
	}
	if (a->n - 1 != check_map_n(&v->map)) {
		err_set(e, ERR_INPUT,
			"%s: key %s has %" PRIu64 " check values, %" PRIu64 " expected for its tensors",
			g->files[0].path, kv->key, a->n - 1, check_map_n(&v->map));
		check_values_free(v);
		return ERR_INPUT;
	}
	memcpy(v->values, a->data + 8, (a->n - 1) * 8);
	*out = v;
	return 0;
}

/* ---- the file beside the model ---- */

char *check_values_path(const struct gguf *g)
{
	if (g->folder)
		return mem_printf("%s/model.safetensors" CHECK_VALUES_SUFFIX, g->folder);
	return mem_printf("%s" CHECK_VALUES_SUFFIX, g->files[0].path);
}

static uint64_t file_bytes(const struct check_map *m)
{
	return HEAD_BYTES + 16 * (uint64_t)m->file->n_files + 8 * check_map_n(m) + 8;
}

static void put_u32(struct buf *b, uint32_t v)
{
	buf_append(b, &v, sizeof v);
}

static void put_u64(struct buf *b, uint64_t v)
{
	buf_append(b, &v, sizeof v);
}

/* What stands before the values. */
static void put_head(struct buf *b, const struct check_map *m)
{
	buf_append(b, MAGIC, 8);
	put_u32(b, VERSION);
	put_u32(b, m->file->n_files);
	put_u64(b, check_map_n(m));
	put_u64(b, m->fingerprint);
	for (uint32_t i = 0; i < m->file->n_files; i++) {
		const struct gguf_file *f = &m->file->files[i];
		put_u64(b, f->size);
		put_u64(b, f->map.data ? xxh3_of(f->map.data, f->data_offset) : 0);
	}
}

static int refuse_file(const char *name, const char *why, struct err *e)
{
	err_set(e, ERR_INPUT, "%s: %s", name, why);
	return err_hint(e, "--verify off opens the model without it; glmstream verify -m MODEL --write "
					   "makes another");
}

int check_values_parse(const struct gguf *g, const void *bytes, size_t n, const char *name,
	struct check_values **out, struct err *e)
{
	const uint8_t *p = bytes;
	*out = NULL;
	if (n < HEAD_BYTES || memcmp(p, MAGIC, 8))
		return refuse_file(name, "is no file of check values", e);
	if (load_u32(p + 8) != VERSION)
		return refuse_file(name, "is of another version of this program", e);
	struct check_values *v = values_new(g, e);
	if (!v)
		return ERR_MEMORY;
	struct buf head = {0};
	const char *why = NULL;
	put_head(&head, &v->map);
	if (n < head.len || memcmp(p, head.data, head.len))
		why = "its check values are of another model";
	else if (n != file_bytes(&v->map) || load_u64(p + n - 8) != xxh3_of(p, n - 8))
		why = "is damaged";
	else
		memcpy(v->values, p + head.len, 8 * check_map_n(&v->map));
	buf_free(&head);
	if (why) {
		check_values_free(v);
		return refuse_file(name, why, e);
	}
	v->beside = true;
	*out = v;
	return 0;
}

/* check_values_open of the file beside the model alone; without such a file *out is not set. */
static int open_beside(const struct gguf *g, struct check_values **out, struct err *e)
{
	char *path = check_values_path(g);
	FILE *f = fopen(path, "re");
	int rc = 0;
	if (!f && errno != ENOENT && errno != ENOTDIR)
		rc = err_errno(e, errno, "%s", path);
	if (f) {
		struct check_map map;
		check_map_init(&map, g);
		const size_t most = (size_t)file_bytes(&map) + 1; /* a longer one is refused as well */
		uint8_t *bytes = mem_try_new(most, 1);
		size_t n = bytes ? fread(bytes, 1, most, f) : 0;
		if (!bytes)
			rc = err_set(e, ERR_MEMORY, "%s: no memory to read it", path);
		else if (ferror(f))
			rc = err_errno(e, errno, "%s", path);
		else
			rc = check_values_parse(g, bytes, n, path, out, e);
		free(bytes);
		check_map_fini(&map);
		fclose(f);
	}
	free(path);
	return rc;
}

int check_values_open(const struct gguf *g, struct check_values **out, struct err *e)
{
	*out = NULL;
	int rc = open_beside(g, out, e);
	return rc || *out ? rc : check_values_open_key(g, out, e);
}

int check_values_write(
	const struct check_map *m, const uint64_t *values, const char *path, bool force, struct err *e)
{
	struct out_file out;
	struct buf b = {0};
	int rc = out_file_open(&out, path, &out_check_values, force, e);
	if (rc)
		return rc;
	put_head(&b, m);
	buf_append(&b, values, 8 * check_map_n(m));
	put_u64(&b, xxh3_of(b.data, b.len));
	fwrite(b.data, 1, b.len, out.f);
	buf_free(&b);
	return out_file_commit(&out, e);
}
