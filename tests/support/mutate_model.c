/* SPDX-License-Identifier: MIT */
/* A copy through our own writer, key by key and tensor by tensor. */
#include "tests/support/mutate_model.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/format/gguf_write.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static bool is(const char *a, const char *b)
{
	return a && b && !strcmp(a, b);
}

static void copy_array(struct gguf_writer *w, const char *key, const struct gguf_array *a)
{
	size_t n = a->n;
	if (a->type == GGUF_STRING) {
		gguf_writer_set_strs(w, key, a->strings, n);
	} else if (a->type == GGUF_BOOL) {
		bool *v = NEW_ARRAY(bool, n);
		for (size_t i = 0; i < n; i++)
			v[i] = gguf_array_i64(a, i) != 0;
		gguf_writer_set_bools(w, key, v, n);
		free(v);
	} else {
		int32_t *v = NEW_ARRAY(int32_t, n);
		for (size_t i = 0; i < n; i++)
			v[i] = (int32_t)gguf_array_i64(a, i);
		gguf_writer_set_i32s(w, key, v, n);
		free(v);
	}
}

static void copy_key(struct gguf_writer *w, const struct gguf_kv *kv)
{
	const struct gguf_array *a = &kv->value;
	switch (kv->type) {
	case GGUF_STRING:
		gguf_writer_set_bytes(w, kv->key, a->strings[0].ptr, a->strings[0].len);
		break;
	case GGUF_BOOL:
		gguf_writer_set_bool(w, kv->key, gguf_array_i64(a, 0) != 0);
		break;
	case GGUF_F32:
		gguf_writer_set_f32(w, kv->key, (float)gguf_array_f64(a, 0));
		break;
	case GGUF_ARRAY:
		copy_array(w, kv->key, a);
		break;
	default:
		gguf_writer_set_u32(w, kv->key, (uint32_t)gguf_array_i64(a, 0));
	}
}

static void put_keys(struct gguf_writer *w, const struct gguf *from, const struct mutation *m)
{
	for (size_t i = 0; i < from->n_kvs; i++) {
		const char *key = from->kvs[i].key;
		if (is(m->drop_key, key) || is(m->u32_key, key) || is(m->u32_key_2, key) ||
			is(m->f32_key, key) || is(m->str_key, key) || is(m->bools_key, key) ||
			is("general.alignment", key) || is("glmstream.version", key)) /* the writer's */
			continue;
		copy_key(w, &from->kvs[i]);
	}
	if (m->u32_key)
		gguf_writer_set_u32(w, m->u32_key, m->u32);
	if (m->u32_key_2)
		gguf_writer_set_u32(w, m->u32_key_2, m->u32_2);
	if (m->f32_key)
		gguf_writer_set_f32(w, m->f32_key, m->f32);
	if (m->str_key)
		gguf_writer_set_str(w, m->str_key, m->str);
	if (m->bools_key)
		gguf_writer_set_bools(w, m->bools_key, m->bools, m->n_bools);
}

/* The indexer tensors that layer 0 has and this layer lacks, as F32. */
static const char *const indexer[] = {
	"attn_q_b.weight", "attn_k.weight", "proj.weight", "k_norm.weight", "k_norm.bias"};

static void put_garbage(
	struct gguf_writer *w, const struct gguf *from, bool declare, size_t *id, struct err *e)
{
	struct rng r = {1};
	for (int layer = 0; layer < 512; layer++) {
		char name[96];
		snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layer);
		if (!gguf_find_tensor(from, name))
			return;
		for (size_t k = 0; k < ARRAY_LEN(indexer); k++) {
			snprintf(name, sizeof name, "blk.0.indexer.%s", indexer[k]);
			const struct gguf_tensor *like = gguf_need_tensor(from, name, e);
			assert_non_null(like);
			snprintf(name, sizeof name, "blk.%d.indexer.%s", layer, indexer[k]);
			if (gguf_find_tensor(from, name))
				continue;
			if (declare) {
				assert_int_equal(
					gguf_writer_add_tensor(w, name, DTYPE_F32, like->n_dims, like->ne, NULL, e), 0);
				continue;
			}
			uint64_t n = like->ne[0] * like->ne[1];
			float *noise = NEW_ARRAY(float, n);
			for (uint64_t i = 0; i < n; i++)
				noise[i] = (float)rng_unit(&r) * 100;
			assert_int_equal(gguf_writer_write(w, (*id)++, 0, noise, n * sizeof *noise, e), 0);
			free(noise);
		}
	}
}

/* The name of a tensor in the copy: with the layer's new number. NULL: it is left out. */
static const char *new_name(const struct mutation *m, const char *name, char renamed[96])
{
	unsigned layer;
	int n = 0;
	if (is(m->drop_tensor, name))
		return NULL;
	if (!m->layers || sscanf(name, "blk.%u%n", &layer, &n) != 1)
		return name;
	for (uint32_t i = 0; i < m->n_layers; i++)
		if (m->layers[i] == layer) {
			snprintf(renamed, 96, "blk.%u%.80s", i, name + n);
			return renamed;
		}
	return NULL;
}

void mutate_model(const struct gguf *from, const struct mutation *m, const char *path)
{
	struct err e = {0};
	struct gguf_writer *w =
		gguf_writer_new(&(struct gguf_write_options){.alignment = m->alignment});
	size_t id = 0;
	char renamed[96];
	put_keys(w, from, m);
	for (size_t i = 0; i < from->n_tensors; i++) {
		const struct gguf_tensor *t = &from->tensors[i];
		const char *name = new_name(m, t->name, renamed);
		if (!name)
			continue;
		uint32_t n_dims = t->n_dims - is(m->flat_tensor, t->name);
		assert_int_equal(gguf_writer_add_tensor(w, name, t->type, n_dims, t->ne, NULL, &e), 0);
	}
	if (m->garbage_indexers)
		put_garbage(w, from, true, NULL, &e);
	if (gguf_writer_plan(w, &e) || gguf_writer_create(w, path, false, &e))
		fail_msg("%s", e.text);
	for (size_t i = 0; i < from->n_tensors; i++) {
		const struct gguf_tensor *t = &from->tensors[i];
		if (!new_name(m, t->name, renamed))
			continue;
		uint64_t bytes = is(m->flat_tensor, t->name) ? t->bytes / t->ne[t->n_dims - 1] : t->bytes;
		assert_int_equal(gguf_writer_write(w, id++, 0, t->data, bytes, &e), 0);
	}
	if (m->garbage_indexers)
		put_garbage(w, from, false, &id, &e);
	if (gguf_writer_commit(w, &e))
		fail_msg("%s", e.text);
	gguf_writer_free(w);
}

const char *small_model(void)
{
	static const uint32_t layers[] = {0, 2, 3, 7};
	static const bool full[] = {true, true, false};
	static char path[256];
	struct err e = {0};
	struct gguf *file;
	snprintf(path, sizeof path, "%s/small.gguf", temp_dir());
	if (!access(path, F_OK))
		return path;
	if (gguf_open("tools/pocket/pocket.gguf", &file, &e))
		fail_msg("%s", e.text);
	mutate_model(file,
		&(struct mutation){.layers = layers,
			.n_layers = ARRAY_LEN(layers),
			.u32_key = "glm-dsa.block_count",
			.u32 = ARRAY_LEN(layers),
			.bools_key = "glm-dsa.attention.indexer.types",
			.bools = full,
			.n_bools = ARRAY_LEN(full)},
		path);
	gguf_close(file);
	return path;
}
