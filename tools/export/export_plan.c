/* SPDX-License-Identifier: MIT */
/*
 * The table of `convert` lists GGUF tensors and says for each slab which rows of which source it
 * is. Sorted by source and row the same slabs are the pieces of each source.
 */
#include "tools/export/export_plan.h"

#include "src/base/half.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/version.h"
#include "src/quant/dequant.h"
#include "src/checkpoint/convert_keys.h"
#include "src/checkpoint/convert_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void export_plan_config(
	struct convert_config *out, const struct model_config *c, const struct gguf *file)
{
	*out = (struct convert_config){
		.n_layers = c->n_layers,
		.n_nextn = c->n_mtp,
		.hidden = c->n_embd,
		.vocab = c->n_vocab,
		.max_positions = c->n_context,
		.n_heads = c->n_heads,
		.q_lora = c->q_rank,
		.kv_lora = c->kv_rank,
		.nope = c->head_nope,
		.rope = c->head_rope,
		.v_dim = c->head_value,
		.index_heads = c->index_heads,
		.index_dim = c->index_dim,
		.index_topk = c->index_top_k,
		.n_dense = c->n_dense,
		.dense_width = c->ff_expert, /* of no layer, where none is dense: the key has to be there */
		.moe_width = c->ff_expert,
		.n_experts = c->n_experts,
		.n_used = c->n_used,
		.n_shared = c->ff_shared / c->ff_expert,
		.n_group = c->n_group,
		.n_group_used = c->n_group_used,
		.norm_topk = c->norm_weights,
		.routed_scale = c->weights_scale,
		.rms_eps = c->rms_eps,
		.rope_theta = c->rope_base,
		.has_latent_eps =
			gguf_find(file, "glm-dsa.attention.latent_layer_norm_rms_epsilon") != NULL,
		.latent_eps = c->latent_eps,
		.has_temp = gguf_find(file, "general.sampling.temp") != NULL,
		.temp = c->sampling_temperature,
		.has_top_p = gguf_find(file, "general.sampling.top_p") != NULL,
		.top_p = c->sampling_top_p,
	};
	memcpy(out->full, c->index_full, c->n_layers * sizeof *out->full);
	(void)gguf_get_u32(file, "glm-dsa.feed_forward_length", &out->dense_width, NULL);
	(void)gguf_get_bool(file, CONVERT_TIED_KEY, &out->tied, NULL);
}

/* ---- pieces ---- */

static int piece_order(const void *a, const void *b)
{
	const struct export_piece *x = a, *y = b;
	if (x->source != y->source)
		return x->source < y->source ? -1 : 1;
	return (x->row0 > y->row0) - (x->row0 < y->row0);
}

/* Which tensors of the file the table knows. */
static void collect_pieces(struct export_plan *p, const struct gguf *file, bool *used)
{
	const struct convert_plan *table = p->table;
	for (size_t i = 0; i < table->n_tensors; i++)
		p->n_pieces += table->tensors[i].n_slabs;
	p->pieces = NEW_ARRAY(struct export_piece, p->n_pieces);
	size_t n = 0;
	for (size_t i = 0; i < table->n_tensors; i++) {
		const struct convert_tensor *t = &table->tensors[i];
		const struct gguf_tensor *from = gguf_find_tensor(file, t->name);
		used[from - file->tensors] = true;
		for (uint64_t k = 0; k < t->n_slabs; k++)
			p->pieces[n++] = (struct export_piece){.from = from,
				.data = from->data + from->bytes / t->n_slabs * k,
				.source = t->slabs[k].source,
				.row0 = t->slabs[k].row0,
				.rows = t->src_rows,
				.transposed = t->transposed};
	}
	qsort(p->pieces, n, sizeof *p->pieces, piece_order);
}

/* Tensors that a GGUF may carry and a released checkpoint does not. NULL: none of them. */
static const char *known_extra(const struct convert_config *c, const char *name)
{
	unsigned il;
	int n = 0;
	if (!strcmp(name, "rope_freqs.weight"))
		return "stored rope frequencies";
	if (sscanf(name, "blk.%u.%n", &il, &n) != 1 || !n)
		return NULL;
	const char *rest = name + n;
	if (il >= c->n_layers + c->n_nextn)
		return "layers beyond those that the keys announce";
	if (il >= c->n_layers && (!strncmp(rest, "nextn.embed_tokens.", 19) ||
								 !strncmp(rest, "nextn.shared_head_head.", 23)))
		return "copies of embedding or head in the MTP layer";
	if (!convert_layer_full(c, il) && !strncmp(rest, "indexer.", 8))
		return "indexers of layers that share another layer's selection";
	return NULL;
}

static int check_rest(struct export_plan *p, const struct gguf *file,
	const struct convert_config *cfg, const bool *used, struct err *e)
{
	struct left_out others = {0};
	for (size_t i = 0; i < file->n_tensors; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		if (used[i])
			continue;
		const char *why = known_extra(cfg, t->name);
		if (!why)
			return err_set(e, ERR_INPUT, "%s: tensor %s is not part of this architecture",
				file->files[t->file].path, t->name);
		left_out_add(&others, why);
	}
	left_out_print(&others, &p->notes);
	return 0;
}

/* ---- dtypes ---- */

/* Norms, routers, biases: what the table has as F32 in a BF16 recipe. */
static bool is_kept_f32(const struct convert_tensor *t)
{
	return t->type == DTYPE_F32;
}

static enum export_dtype choose_dtype(const struct export_plan *p, const struct gguf *file)
{
	for (size_t i = 0; i < p->table->n_tensors; i++) {
		const struct convert_tensor *t = &p->table->tensors[i];
		if (!is_kept_f32(t) && gguf_find_tensor(file, t->name)->type != DTYPE_F32)
			return EXPORT_BF16;
	}
	return EXPORT_F32;
}

static bool all_are_bf16(const struct gguf_tensor *t)
{
	uint64_t row_bytes = 0;
	dtype_row_bytes(t->type, t->ne[0], &row_bytes);
	float *row = mem_new(t->ne[0], sizeof *row);
	bool all = true;
	for (uint64_t r = 0; r < t->bytes / row_bytes && all; r++) {
		dequant_row(t->type, t->data + r * row_bytes, row, t->ne[0]);
		for (uint64_t c = 0; c < t->ne[0] && all; c++)
			all = !(f32_bits(row[c]) & 0xffff);
	}
	free(row);
	return all;
}

static bool is_router_bias(const char *name)
{
	static const char end[] = ".e_score_correction_bias";
	size_t n = strlen(name), k = sizeof end - 1;
	return n > k && !strcmp(name + n - k, end);
}

static enum st_dtype dtype_of(
	const struct export_plan *p, const char *name, const struct export_piece *piece, bool kept_f32)
{
	if (p->dtype == EXPORT_F32 || is_router_bias(name))
		return ST_F32;
	/* a packed type has been rounded before */
	return kept_f32 && dtype_info(piece->from->type)->block_values == 1 &&
				   !all_are_bf16(piece->from)
			   ? ST_F32
			   : ST_BF16;
}

/* A tensor without pieces. */
static void set_tensor(
	struct export_plan *p, struct export_tensor *t, uint32_t source, enum st_dtype dtype)
{
	const struct convert_source *s = &p->table->sources[source];
	uint64_t values = 1;
	*t = (struct export_tensor){
		.name = s->name, .n_dims = s->n_dims, .source = source, .dtype = dtype};
	for (uint32_t d = 0; d < s->n_dims; d++)
		values *= t->shape[d] = s->shape[d];
	t->cols = s->shape[s->n_dims - 1];
	t->bytes = values * st_dtype_bytes(dtype);
}

static void add_tensors(struct export_plan *p, bool tied)
{
	const struct convert_plan *table = p->table;
	bool *kept_f32 = NEW_ARRAY(bool, table->n_sources);
	uint64_t n_rounded = 0, n_kept = 0;
	for (size_t i = 0; i < table->n_tensors; i++)
		kept_f32[table->tensors[i].slabs[0].source] = is_kept_f32(&table->tensors[i]);
	p->n_tensors = (uint32_t)table->n_sources - tied;
	p->tensors = NEW_ARRAY(struct export_tensor, p->n_tensors);
	const struct export_piece *piece = p->pieces, *end = p->pieces + p->n_pieces;
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		struct export_tensor *t = &p->tensors[i];
		const struct export_piece *first = piece;
		while (piece < end && piece->source == i)
			piece++;
		set_tensor(p, t, i, dtype_of(p, table->sources[i].name, first, kept_f32[i]));
		t->pieces = first;
		t->n_pieces = (uint64_t)(piece - first);
		p->tensor_bytes += t->bytes;
		n_kept += kept_f32[i] && p->dtype == EXPORT_BF16 && t->dtype == ST_F32 &&
				  !is_router_bias(t->name);
		enum dtype from = t->pieces->from->type;
		n_rounded +=
			t->dtype == ST_BF16 && !kept_f32[i] && (from == DTYPE_F32 || from == DTYPE_F16);
	}
	if (n_rounded)
		buf_printf(&p->notes,
			"%" PRIu64 " tensors of type F32 or F16 are rounded to BF16 (--dtype f32 keeps them)\n",
			n_rounded);
	if (n_kept)
		buf_printf(&p->notes,
			"%" PRIu64 " norms, routers and biases stay F32: BF16 would round them\n", n_kept);
	free(kept_f32);
}

/* Kept in BF16 by the released FP8 checkpoint, besides what every recipe keeps. */
static bool is_kept_bf16(const char *name)
{
	return !strcmp(name, "model.embed_tokens.weight") || !strcmp(name, "lm_head.weight") ||
		   strstr(name, ".eh_proj.");
}

static void add_shape(struct export_plan *p, bool tied)
{
	const struct convert_plan *table = p->table;
	uint32_t n_sources = (uint32_t)table->n_sources - tied;
	bool *kept_f32 = NEW_ARRAY(bool, table->n_sources);
	for (size_t i = 0; i < table->n_tensors; i++)
		for (uint64_t k = 0; k < table->tensors[i].n_slabs; k++)
			kept_f32[table->tensors[i].slabs[k].source] = is_kept_f32(&table->tensors[i]);
	p->tensors = NEW_ARRAY(struct export_tensor, 2 * (size_t)n_sources);
	for (uint32_t i = 0; i < n_sources; i++) {
		const char *name = table->sources[i].name;
		struct export_tensor *t = &p->tensors[p->n_tensors++];
		bool fp8 = p->dtype == EXPORT_FP8 && !kept_f32[i] && !is_kept_bf16(name);
		set_tensor(p, t, i, is_router_bias(name) ? ST_F32 : fp8 ? ST_F8_E4M3 : ST_BF16);
		p->tensor_bytes += t->bytes;
		if (!fp8)
			continue;
		struct export_tensor *s = &p->tensors[p->n_tensors++];
		*s = *t;
		s->name = s->scale_name = mem_printf("%s_scale_inv", name);
		s->dtype = ST_F32;
		s->bytes = sizeof(float);
		for (uint32_t d = 0; d < s->n_dims; d++) {
			s->shape[d] = dtype_scales(t->shape[d]);
			s->bytes *= s->shape[d];
		}
		s->cols = s->shape[s->n_dims - 1];
		p->tensor_bytes += s->bytes;
	}
	free(kept_f32);
}

/* ---- shards ---- */

static int file_order(const void *a, const void *b, void *user)
{
	const struct export_plan *p = user;
	uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
	const struct export_tensor *x = &p->tensors[i], *y = &p->tensors[k];
	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	uint32_t xb = st_dtype_bytes(x->dtype), yb = st_dtype_bytes(y->dtype);
	if (xb != yb)
		return xb > yb ? -1 : 1;
	return i < k ? -1 : 1;
}

static void cut_shards(struct export_plan *p, uint64_t shard_bytes)
{
	uint64_t filled = 0;
	uint32_t n = 0;
	p->order = NEW_ARRAY(uint32_t, p->n_tensors);
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		struct export_tensor *t = &p->tensors[i];
		if (i && filled + t->bytes > shard_bytes) {
			n++;
			filled = 0;
		}
		t->shard = n;
		filled += t->bytes;
		p->order[i] = i;
	}
	qsort_r(p->order, p->n_tensors, sizeof *p->order, file_order, p);
	p->n_shards = n + 1;
	p->shards = NEW_ARRAY(struct export_shard, p->n_shards);
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct export_tensor *t = &p->tensors[p->order[i]];
		struct export_shard *s = &p->shards[t->shard];
		if (!s->n_tensors++)
			s->tensors = &p->order[i];
		s->data_bytes += t->bytes;
	}
	for (uint32_t i = 0; i < p->n_shards; i++) {
		struct export_shard *s = &p->shards[i];
		struct buf header = {0};
		snprintf(s->name, sizeof s->name, "model-%05u-of-%05u.safetensors", i + 1, p->n_shards);
		export_plan_header(p, i, &header);
		s->file_bytes = header.len + s->data_bytes;
		p->file_bytes += s->file_bytes;
		buf_free(&header);
	}
}

void export_plan_header(const struct export_plan *p, uint32_t shard, struct buf *out)
{
	const struct export_shard *s = &p->shards[shard];
	struct buf json = {0};
	uint64_t at = 0;
	buf_puts(
		&json, "{\"__metadata__\":{\"format\":\"pt\",\"glmstream.version\":\"" GLM_VERSION "\"}");
	for (uint32_t i = 0; i < s->n_tensors; i++) {
		const struct export_tensor *t = &p->tensors[s->tensors[i]];
		buf_printf(
			&json, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, st_dtype_name(t->dtype));
		for (uint32_t d = 0; d < t->n_dims; d++)
			buf_printf(&json, "%s%" PRIu64, d ? "," : "", t->shape[d]);
		buf_printf(&json, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
		at += t->bytes;
	}
	buf_putc(&json, '}');
	while (json.len % 8)
		buf_putc(&json, ' ');
	uint8_t length[8];
	for (int i = 0; i < 8; i++)
		length[i] = (uint8_t)((uint64_t)json.len >> 8 * i);
	buf_append(out, length, sizeof length);
	buf_append(out, json.data, json.len);
	buf_free(&json);
}

uint64_t export_plan_hash(const struct export_plan *p, uint64_t h)
{
	for (uint32_t i = 0; i < p->n_shards; i++) {
		struct buf header = {0};
		export_plan_header(p, i, &header);
		h = hash_bytes(h, header.data, header.len);
		buf_free(&header);
	}
	return h;
}

void export_plan_index(const struct export_plan *p, struct buf *out)
{
	buf_printf(out,
		"{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {\n",
		p->tensor_bytes);
	for (uint32_t i = 0; i < p->n_tensors; i++)
		buf_printf(out, "    \"%s\": \"%s\"%s\n", p->tensors[i].name,
			p->shards[p->tensors[i].shard].name, i + 1 < p->n_tensors ? "," : "");
	buf_puts(out, "  }\n}\n");
}

void export_plan_print(const struct export_plan *p, FILE *f)
{
	uint64_t bytes[ST_DTYPE_COUNT] = {0};
	size_t count[ST_DTYPE_COUNT] = {0};
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		bytes[p->tensors[i].dtype] += p->tensors[i].bytes;
		count[p->tensors[i].dtype]++;
	}
	for (int t = 0; t < ST_DTYPE_COUNT; t++)
		if (count[t])
			fprintf(f, "%-8s %zu tensors, %" PRIu64 " bytes\n", st_dtype_name((enum st_dtype)t),
				count[t], bytes[t]);
	fprintf(f, "tensors  %u tensors, %" PRIu64 " bytes\n", p->n_tensors, p->tensor_bytes);
	fprintf(f, "total    %" PRIu64 " bytes in %u shard%s\n", p->file_bytes, p->n_shards,
		p->n_shards == 1 ? "" : "s");
}

/* ---- all of it ---- */

/* The checkpoint gets one tensor for both. The GGUF may have them in different types. */
static void note_other_head(struct export_plan *p, const struct gguf *file)
{
	const struct gguf_tensor *embedding = gguf_find_tensor(file, "token_embd.weight"),
							 *head = gguf_find_tensor(file, "output.weight");
	if (!embedding || !head)
		return;
	const bool same = embedding->type == head->type && embedding->bytes == head->bytes &&
					  !memcmp(embedding->data, head->data, head->bytes);
	if (!same)
		buf_printf(&p->notes,
			"output.weight (%s) is left out: the checkpoint's head is its embedding, which is "
			"made of token_embd.weight (%s) and has other values\n",
			dtype_name(head->type), dtype_name(embedding->type));
}

static int make_table(struct export_plan *p, struct convert_config *cfg, struct err *e)
{
	struct convert_recipe recipe;
	p->table = NEW(struct convert_plan);
	int code = convert_recipe_parse(&recipe, "bf16", e);
	return code ? code : convert_plan_make(p->table, cfg, &recipe, NULL, NULL, NULL, e);
}

int export_plan_make_shape(struct export_plan *p, struct convert_config *cfg, bool fp8,
	uint64_t shard_bytes, struct err *e)
{
	int code = make_table(p, cfg, e);
	if (code)
		return code;
	p->dtype = fp8 ? EXPORT_FP8 : EXPORT_BF16;
	add_shape(p, cfg->tied);
	cut_shards(p, shard_bytes);
	return 0;
}

int export_plan_make(struct export_plan *p, const struct gguf *file, struct convert_config *cfg,
	enum export_dtype dtype, uint64_t shard_bytes, struct err *e)
{
	bool *used = NEW_ARRAY(bool, file->n_tensors);
	int code = make_table(p, cfg, e);
	if (code)
		goto out;
	collect_pieces(p, file, used);
	if ((code = check_rest(p, file, cfg, used, e)))
		goto out;
	p->dtype = dtype == EXPORT_AUTO ? choose_dtype(p, file) : dtype;
	add_tensors(p, cfg->tied);
	if (cfg->tied)
		note_other_head(p, file);
	cut_shards(p, shard_bytes);
	code = gguf_check_lost(file, e); /* the values of small tensors have been looked at */
out:
	free(used);
	return code;
}

void export_plan_fini(struct export_plan *p)
{
	if (p->table)
		convert_plan_fini(p->table);
	free(p->table);
	free(p->pieces);
	for (uint32_t i = 0; i < p->n_tensors; i++)
		free(p->tensors[i].scale_name);
	free(p->tensors);
	free(p->shards);
	free(p->order);
	buf_free(&p->notes);
	*p = (struct export_plan){0};
}
