/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint's folder that is opened as a model. Input: a byte of flags, then changes to the
 * tensors of a small valid checkpoint, four bytes each: which tensor, what, a number. Checked: a
 * refusal has a sentence; of what is accepted all runs and scales lie inside their files and have
 * the sizes of the shapes, made tensors can be made, and the experts' extents fit their slots.
 */
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/convert_config.h"
#include "src/checkpoint/convert_map.h"
#include "src/format/check_values.h"
#include "src/model/weights.h"
#include "stream/extent.h"
#include "tests/fuzz/fixture.h"

#include <jansson.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FLAG_FP8 = 1, FLAG_FUSED = 2, FLAG_MTP = 4, FLAG_BF16_SCALES = 8, FLAG_F16 = 16 };
enum { CHANGE_DROP, CHANGE_DTYPE, CHANGE_SHAPE, CHANGE_SCALE, CHANGE_SHARD, CHANGES };

#define TENSORS_MAX 256
#define SHARDS      2

struct folder_tensor {
	char name[128];
	enum st_dtype dtype;
	uint32_t n_dims;
	uint64_t shape[3];
	bool dropped;
	uint32_t shard;
};

struct made_checkpoint {
	struct folder_tensor tensors[TENSORS_MAX];
	size_t n;
};

static struct folder_tensor *add(struct made_checkpoint *m, const char *name, enum st_dtype dtype,
	uint32_t n_dims, const uint64_t *shape)
{
	if (m->n == TENSORS_MAX)
		bug("more tensors than expected");
	struct folder_tensor *t = &m->tensors[m->n];
	*t = (struct folder_tensor){.dtype = dtype, .n_dims = n_dims, .shard = (uint32_t)m->n % SHARDS};
	snprintf(t->name, sizeof t->name, "%s", name);
	memcpy(t->shape, shape, n_dims * sizeof *shape);
	m->n++;
	return t;
}

static bool is_packed(const char *name)
{
	return !strstr(name, "embed") && !strstr(name, "lm_head") && !strstr(name, "mlp.gate.") &&
		   !strstr(name, "weights_proj") && !strstr(name, "eh_proj");
}

/* A matrix or vector, with scales if it has such. */
static void add_with_scales(struct made_checkpoint *m, const char *name, uint32_t n_dims,
	const uint64_t *shape, uint8_t flags)
{
	const bool packed = flags & FLAG_FP8 && n_dims > 1 && is_packed(name);
	add(m, name, packed ? ST_F8_E4M3 : flags & FLAG_F16 ? ST_F16 : ST_BF16, n_dims, shape);
	if (!packed)
		return;
	char scale[128];
	uint64_t blocks[3];
	for (uint32_t d = 0; d < n_dims; d++)
		blocks[d] = d + 2 < n_dims ? shape[d] : (shape[d] + 127) / 128;
	snprintf(scale, sizeof scale, "%.100s_scale_inv", name);
	add(m, scale, flags & FLAG_BF16_SCALES ? ST_BF16 : ST_F32, n_dims, blocks);
}

static void add_all(struct made_checkpoint *m, const struct convert_plan *p,
	const struct convert_config *c, uint8_t flags)
{
	for (size_t i = 0; i < p->n_sources; i++) {
		const struct convert_source *s = &p->sources[i];
		const char *experts = strstr(s->name, ".mlp.experts.");
		if (!experts || !(flags & FLAG_FUSED)) {
			add_with_scales(m, s->name, s->n_dims, s->shape, flags);
			continue;
		}
		const bool gate = strstr(experts, ".0.gate_proj") != NULL;
		if (!gate && !strstr(experts, ".0.down_proj"))
			continue;
		char name[128];
		snprintf(name, sizeof name, "%.*s.mlp.experts.%s", (int)(experts - s->name), s->name,
			gate ? "gate_up_proj" : "down_proj");
		add_with_scales(m, name, 3,
			(uint64_t[]){c->n_experts, s->shape[0] * (gate ? 2 : 1), s->shape[1]}, flags);
	}
}

static void change(struct made_checkpoint *m, const uint8_t d[4])
{
	struct folder_tensor *t = &m->tensors[d[0] % m->n];
	switch (d[1] % CHANGES) {
	case CHANGE_DROP:
		t->dropped = true;
		break;
	case CHANGE_DTYPE:
		t->dtype = (enum st_dtype)(d[2] % ST_DTYPE_COUNT);
		break;
	case CHANGE_SHAPE:
		t->shape[d[3] % t->n_dims] = d[2];
		break;
	case CHANGE_SCALE: /* there is one, or one more */
		if (m->n < TENSORS_MAX && strlen(t->name) < 100) {
			char scale[128];
			snprintf(scale, sizeof scale, "%.100s_scale_inv", t->name);
			add(m, scale, ST_F32, 2, (uint64_t[]){d[2] % 4 + 1u, d[3] % 4 + 1u});
		}
		break;
	default:
		t->shard = d[2] % SHARDS;
	}
}

static void write_shard(const struct made_checkpoint *m, uint32_t shard)
{
	struct buf b = {0};
	uint64_t end = 0;
	char name[40];
	buf_append(&b, "12345678{", 9);
	for (size_t i = 0; i < m->n; i++) {
		const struct folder_tensor *t = &m->tensors[i];
		uint64_t bytes = st_dtype_bytes(t->dtype);
		if (t->dropped || t->shard != shard)
			continue;
		buf_printf(&b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", b.len > 9 ? "," : "", t->name,
			st_dtype_name(t->dtype));
		for (uint32_t d = 0; d < t->n_dims; d++) {
			buf_printf(&b, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
			bytes *= t->shape[d];
		}
		buf_printf(&b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)end,
			(unsigned long long)(end + bytes));
		end += bytes;
	}
	buf_append(&b, "}", 1);
	store_u64(b.data, b.len - 8);
	snprintf(name, sizeof name, "model-%u.safetensors", shard);
	const char *path = fixture_write(name, b.data, b.len);
	if (truncate(path, (off_t)(b.len + end)))
		bug("%s cannot be made longer", path);
	buf_free(&b);
}

static void check_run(const struct gguf *g, const struct gguf_run *r)
{
	if (r->file >= g->n_files || r->offset > g->files[r->file].size ||
		r->bytes > g->files[r->file].size - r->offset ||
		r->data != g->files[r->file].map.data + r->offset)
		bug("a run is not inside its file");
}

static void check_tensor(const struct gguf *g, const struct gguf_tensor *t)
{
	uint64_t row, bytes = 0;
	if (!dtype_row_bytes(t->type, t->ne[0], &row))
		bug("%s: rows do not fit its type", t->name);
	if (row * t->ne[1] * t->ne[2] != gguf_values_bytes(t))
		bug("%s: %llu bytes of values", t->name, (unsigned long long)gguf_values_bytes(t));
	const struct gguf_run whole = {t->file, t->offset, t->bytes, t->data};
	if (!t->runs)
		check_run(g, &whole);
	for (uint64_t i = 0; t->runs && i < t->n_runs; i++) {
		check_run(g, &t->runs[i]);
		if (t->scales)
			check_run(g, &t->scales[i]);
		bytes += t->runs[i].bytes;
	}
	if (t->runs && !t->made && bytes != gguf_values_bytes(t))
		bug("%s: its runs have other bytes", t->name);
	if (t->scales && !t->made &&
		t->scales->bytes != (t->ne[0] + 127) / 128 * ((t->ne[1] + 127) / 128) * sizeof(float))
		bug("%s: its scales have other bytes", t->name);
	if (!t->made)
		return;
	struct err e = {0};
	uint8_t *made = malloc(t->bytes); /* exact: a sanitizer sees any write past it */
	if (gguf_make(g, t, made, &e))
		bug("%s", e.text);
	free(made);
}

static void check_extents(const struct gguf *g, const struct model_config *c)
{
	struct extent_table *t;
	struct err e = {0};
	if (extent_table_from_gguf(&t, g, NULL, &e))
		bug("no extents: %s", e.text);
	for (uint32_t l = 0; l < extent_n_layers(t); l++)
		for (uint32_t x = 0; extent_has_layer(t, l) && x < c->n_experts; x++) {
			struct extent_plan p;
			if (extent_plan(t, l, x, &p) || p.dst_bytes > extent_slot_bytes(t, l))
				bug("expert %u of layer %u does not fit its slot", x, l);
		}
	extent_table_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t flags = size ? data[0] : 0;
	struct convert_config c = {.n_layers = 2,
		.n_nextn = flags & FLAG_MTP ? 1 : 0,
		.hidden = 160,
		.vocab = 40,
		.max_positions = 64,
		.n_heads = 3,
		.q_lora = 16,
		.kv_lora = 24,
		.nope = 12,
		.rope = 8,
		.v_dim = 10,
		.index_heads = 1,
		.index_dim = 8,
		.index_topk = 4,
		.full = {true, false},
		.n_dense = 1,
		.dense_width = 20,
		.moe_width = flags & 32 ? 128 : 130,
		.n_experts = 2,
		.n_used = 1,
		.n_shared = 1,
		.n_group = 1,
		.n_group_used = 1,
		.norm_topk = true,
		.routed_scale = 1,
		.rms_eps = 1e-5f,
		.rope_theta = 10000};
	struct made_checkpoint *m = NEW(struct made_checkpoint);
	struct convert_recipe recipe;
	struct convert_plan plan = {0};
	struct err e = {0};
	if (convert_recipe_parse(&recipe, "f32", &e) ||
		convert_plan_make(&plan, &c, &recipe, NULL, NULL, NULL, &e))
		bug("%s", e.text);
	add_all(m, &plan, &c, flags);
	for (size_t at = 1; at + 4 <= size; at += 4)
		change(m, data + at);
	for (uint32_t i = 0; i < SHARDS; i++)
		write_shard(m, i);
	json_t *root = convert_config_json(&c, "bfloat16");
	char *text = json_dumps(root, JSON_REAL_PRECISION(9));
	fixture_write("config.json", text, strlen(text));
	free(text);
	json_decref(root);
	struct gguf *g;
	if (model_file_open(fixture_folder(), &g, &e)) {
		if (!e.text[0] || g)
			bug("refused without a sentence, or left something behind");
		if (size < 2 && !(flags & FLAG_FP8))
			bug("an unchanged checkpoint is refused: %s", e.text);
	} else {
		struct model_config got;
		struct model_weights w = {0};
		struct check_map map;
		size_t resident;
		for (size_t i = 0; i < g->n_tensors; i++)
			check_tensor(g, &g->tensors[i]);
		check_map_init(&map, g);
		for (uint64_t i = 0; i < check_map_n(&map); i++) {
			const struct check_range r = check_map_range(&map, i);
			check_run(g, &r.run);
		}
		check_map_fini(&map);
		if (config_read(g, &got, &e) || weights_bind(g, &got, got.n_mtp > 0, &w, &resident, &e)) {
			if (!e.text[0])
				bug("refused without a sentence");
		} else {
			check_extents(g, &got);
		}
		weights_free(&w, NULL);
		gguf_close(g);
	}
	convert_plan_fini(&plan);
	free(m);
	return 0;
}
