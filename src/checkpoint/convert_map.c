/* SPDX-License-Identifier: MIT */
/*
 * Names, shapes and types: Hugging Face's layout to GGUF's glm-dsa. The builder below walks the
 * model in file order and declares tensor after tensor; its first error sticks and makes all
 * further calls do nothing, so the walk reads as the list that it is.
 */
#include "src/checkpoint/convert_map.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/gguf_write.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 256

/* The exceptions of the recipes for small cards, whose resident matrices are Q4_K otherwise. Chosen
 * by what each alone costs in KL divergence (tests/bench/results/convert.md):
 * - the projection to the latents and the head need more bits than the rest;
 * - attn_k_b does not, but its rows of 192 values are no super-blocks;
 * - indexers keep Q8_0: they are small, and the short texts of that test do not use them;
 * - so does the embedding, which takes no memory of the card. */
static const struct convert_types small_exceptions = {
	5, {{"token_embd.weight", DTYPE_Q8_0}, {"output.weight", DTYPE_Q5_K},
		   {"blk.*.attn_kv_a_mqa.weight", DTYPE_Q6_K}, {"blk.*.attn_k_b.weight", DTYPE_Q4_0},
		   {"blk.*.indexer.*", DTYPE_Q8_0}}};

/* Those of the recipe for cards of 12 GB, whose resident matrices are Q3_K otherwise. The outputs
 * of attention are two fifths of their bytes. What q_a and kv_a lose costs more than what all
 * others do. */
static const struct convert_types tiny_exceptions = {
	7, {{"token_embd.weight", DTYPE_Q8_0}, {"output.weight", DTYPE_Q4_K},
		   {"blk.*.attn_q_a.weight", DTYPE_Q4_K}, {"blk.*.attn_kv_a_mqa.weight", DTYPE_Q6_K},
		   {"blk.*.attn_k_b.weight", DTYPE_Q4_0}, {"blk.*.attn_output.weight", DTYPE_Q2_K},
		   {"blk.*.indexer.*", DTYPE_Q8_0}}};

static const struct convert_recipe recipes[] = {
	{"f32", DTYPE_F32, DTYPE_F32, NULL},
	{"bf16", DTYPE_BF16, DTYPE_BF16, NULL},
	{"q8", DTYPE_Q8_0, DTYPE_Q8_0, NULL},
	{"q4", DTYPE_Q4_K, DTYPE_Q8_0, NULL},
	{"q2", DTYPE_Q2_K, DTYPE_Q8_0, NULL},
	{"iq2", DTYPE_IQ2_XXS, DTYPE_Q8_0, NULL},
	{"q2-s", DTYPE_Q2_K, DTYPE_Q4_K, &small_exceptions},
	{"iq2-s", DTYPE_IQ2_XXS, DTYPE_Q4_K, &small_exceptions},
	{"iq2-t", DTYPE_IQ2_XXS, DTYPE_Q3_K, &tiny_exceptions},
};

int convert_recipe_parse(struct convert_recipe *out, const char *name, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(recipes); i++)
		if (!strcmp(recipes[i].name, name)) {
			*out = recipes[i];
			return 0;
		}
	return err_set(e, ERR_USAGE, "--recipe: \"%.60s\" found, " CONVERT_RECIPES " expected", name);
}

const struct arg_word *convert_recipe_words(void)
{
	static struct arg_word words[ARRAY_LEN(recipes) + 1];
	for (size_t i = 0; i < ARRAY_LEN(recipes); i++)
		words[i].word = recipes[i].name;
	return words;
}

const struct arg_word *convert_type_words(
	struct convert_type_words *w, bool (*can)(enum dtype type))
{
	size_t n = 0;
	*w = (struct convert_type_words){0};
	for (uint32_t i = 0; i < DTYPE_LIMIT; i++)
		if (dtype_info(i) && can((enum dtype)i))
			w->word[n++].word = dtype_name(i);
	return w->word;
}

struct plan_builder {
	struct convert_plan *plan;
	const struct convert_config *cfg;
	const struct convert_recipe *recipe;
	const struct convert_types *types; /* NULL: none */
	const struct safetensors *st;
	const char *dir;
	struct err *e;
	int code; /* the first error */
	uint64_t fallbacks;
};

/* `want` if rows of n values are whole blocks of it (K, IQ: 256 values), or Q8_0 (32), or BF16. */
static enum dtype fitting_type(enum dtype want, uint64_t n)
{
	if (n % dtype_info(want)->block_values == 0)
		return want;
	return n % 32 == 0 ? DTYPE_Q8_0 : DTYPE_BF16;
}

/* Matrices that no recipe quantises. */
static bool recipe_is_exempt(const char *name)
{
	return strstr(name, "ffn_gate_inp.") || strstr(name, "indexer.proj.");
}

/* Names of the types that `can` takes. */
static const char *type_list(bool (*can)(enum dtype type), char *out, size_t n)
{
	size_t len = 0;
	out[0] = 0;
	for (uint32_t i = 0; i < DTYPE_LIMIT && len < n; i++)
		if (dtype_info(i) && can((enum dtype)i))
			len += (size_t)snprintf(out + len, n - len, "%s%s", len ? " " : "", dtype_name(i));
	return out;
}

int convert_type_parse(enum dtype *out, const char *name, bool (*can)(enum dtype type),
	const char *option, struct err *e)
{
	if (dtype_from_name(name, out) && can(*out))
		return 0;
	return err_set(e, ERR_USAGE, "%s: \"%.40s\" is no type that can be written (%s)", option, name,
		type_list(can, (char[256]){0}, 256));
}

int convert_types_parse(
	struct convert_types *t, const char *text, bool (*can)(enum dtype type), struct err *e)
{
	memset(t, 0, sizeof *t);
	while (*text) {
		size_t len = strcspn(text, ",");
		const char *equals = memchr(text, '=', len);
		if (!equals || equals == text)
			return err_set(e, ERR_USAGE, "--types: \"%.*s\" is not PATTERN=TYPE", (int)len, text);
		if (t->n == CONVERT_TYPES_MAX || (size_t)(equals - text) >= sizeof t->rule[0].pattern)
			return err_set(e, ERR_USAGE,
				"--types: more than %d rules, or a pattern of more than %zu bytes",
				CONVERT_TYPES_MAX, sizeof t->rule[0].pattern - 1);
		char name[16];
		snprintf(name, sizeof name, "%.*s", (int)(text + len - equals - 1), equals + 1);
		memcpy(t->rule[t->n].pattern, text, (size_t)(equals - text));
		int code = convert_type_parse(&t->rule[t->n].type, name, can, "--types", e);
		if (code)
			return code;
		t->n++;
		text += len + (text[len] == ',');
	}
	return 0;
}

/* The first rule that matches; -1: none does. */
static int find_rule(const struct convert_types *t, const char *name)
{
	for (int i = 0; t && i < t->n; i++)
		if (!fnmatch(t->rule[i].pattern, name, 0))
			return i;
	return -1;
}

bool convert_types_match(const struct convert_types *t, const char *name, enum dtype *type)
{
	const int rule = find_rule(t, name);
	if (rule >= 0)
		*type = t->rule[rule].type;
	return rule >= 0;
}

/* Whether --types and the recipe decide the type of such a tensor. */
static bool has_free_type(const char *name, uint32_t n_dims)
{
	return n_dims >= 2 && !recipe_is_exempt(name);
}

/* Notes the rules by which no tensor got its type: a pattern may be misspelt. */
static void note_unused_rules(struct convert_plan *p, const struct convert_types *types)
{
	bool used[CONVERT_TYPES_MAX] = {0};
	for (size_t i = 0; types && i < p->n_tensors; i++) {
		const struct convert_tensor *t = &p->tensors[i];
		const int rule = has_free_type(t->name, t->n_dims) ? find_rule(types, t->name) : -1;
		if (rule >= 0)
			used[rule] = true;
	}
	for (int i = 0; types && i < types->n; i++)
		if (!used[i])
			buf_printf(
				&p->notes, "--types: no matrix has its type by \"%s\"\n", types->rule[i].pattern);
}

/* The type of the first rule that matches the tensor, --types before the exceptions of the recipe,
 * else `recipe`. */
static enum dtype wanted_type(
	const struct plan_builder *b, const char *name, enum dtype recipe, uint32_t n_dims)
{
	enum dtype type = recipe;
	if (has_free_type(name, n_dims) && !convert_types_match(b->types, name, &type))
		convert_types_match(b->recipe->exceptions, name, &type);
	return type;
}

static struct convert_tensor *add_tensor(struct plan_builder *b, const char *name, enum dtype want,
	uint32_t n_dims, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
	struct convert_plan *p = b->plan;
	if (p->n_tensors == p->cap) {
		p->cap = p->cap ? 2 * p->cap : 256;
		p->tensors = mem_grow(p->tensors, p->cap, sizeof *p->tensors);
	}
	struct convert_tensor *t = &p->tensors[p->n_tensors++];
	*t = (struct convert_tensor){
		.name = mem_strdup(name), .n_dims = n_dims, .ne = {ne0, ne1, ne2, 1}};
	want = wanted_type(b, name, want, n_dims);
	t->type = fitting_type(want, ne0);
	if (t->type != want && b->fallbacks++ < 8)
		buf_printf(&p->notes, "%s: rows of %" PRIu64 " values do not fit %s, stored as %s\n", name,
			ne0, dtype_name(want), dtype_name(t->type));
	t->n_slabs = n_dims == 3 ? ne2 : 1;
	t->slabs = NEW_ARRAY(struct convert_slab, t->n_slabs);
	t->src_rows = ne1;
	t->src_cols = ne0;
	return t;
}

static uint32_t add_source(
	struct convert_plan *p, const char *name, uint32_t n_dims, const uint64_t *dims)
{
	if (p->n_sources == p->cap_sources) {
		p->cap_sources = p->cap_sources ? 2 * p->cap_sources : 256;
		p->sources = mem_grow(p->sources, p->cap_sources, sizeof *p->sources);
	}
	struct convert_source *s = &p->sources[p->n_sources];
	*s = (struct convert_source){.name = mem_strdup(name), .n_dims = n_dims};
	memcpy(s->shape, dims, n_dims * sizeof *dims);
	return (uint32_t)p->n_sources++;
}

/* Adds a source tensor, and finds it and its scales in the checkpoint, where it checks the shape.
 * `dims` slowest first. */
static struct convert_slab find_source(
	struct plan_builder *b, const char *name, uint32_t n_dims, const uint64_t *dims)
{
	struct convert_slab s = {.source = add_source(b->plan, name, n_dims, dims)};
	char text[SAFETENSORS_SHAPE_MAX], want_text[SAFETENSORS_SHAPE_MAX];
	if (b->code || !b->st)
		return s;
	s.src = safetensors_find(b->st, name);
	if (!s.src) {
		b->code = err_set(b->e, ERR_INPUT, "%s: tensor %s is missing", b->dir, name);
		return s;
	}
	b->plan->used[s.src - b->st->tensors] = true;
	struct safetensors_tensor want = {.n_dims = n_dims};
	bool same = s.src->n_dims == n_dims;
	for (uint32_t d = 0; d < n_dims; d++) {
		want.shape[d] = dims[d];
		same = same && s.src->shape[d] == dims[d];
	}
	if (!same) {
		b->code =
			err_set(b->e, ERR_INPUT, "%s: tensor %s has shape %s, but config.json asks for %s",
				b->st->files[s.src->file].path, name, safetensors_shape_text(s.src, text),
				safetensors_shape_text(&want, want_text));
		return s;
	}
	enum st_dtype type = s.src->dtype;
	if (type != ST_F32 && type != ST_F16 && type != ST_BF16 && type != ST_F8_E4M3) {
		b->code = err_set(b->e, ERR_INPUT,
			"%s: tensor %s has dtype %s; F32, F16, BF16 or F8_E4M3 expected",
			b->st->files[s.src->file].path, name, st_dtype_name(type));
		return s;
	}
	char scale_name[NAME_BYTES + 16];
	snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
	s.scale = safetensors_find(b->st, scale_name);
	if (s.scale) {
		b->plan->used[s.scale - b->st->tensors] = true;
		b->code = safetensors_check_scale(b->st, s.src, s.scale, b->e);
	}
	if (!b->code && (type == ST_F8_E4M3) != (s.scale != NULL))
		b->code = err_set(b->e, ERR_INPUT, "%s: tensor %s has dtype %s and %s scales %s_scale_inv",
			b->st->files[s.src->file].path, name, st_dtype_name(type),
			s.scale ? "has, against expectation," : "lacks its", name);
	return s;
}

__attribute__((format(printf, 2, 3))) static char *name_text(
	char out[NAME_BYTES], const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(out, NAME_BYTES, fmt, ap);
	va_end(ap);
	return out;
}

static void add_vector(struct plan_builder *b, const char *gguf, const char *hf, uint64_t n)
{
	if (b->code)
		return;
	struct convert_tensor *t = add_tensor(b, gguf, DTYPE_F32, 1, n, 1, 1);
	t->slabs[0] = find_source(b, hf, 1, (uint64_t[]){n});
}

static void add_matrix(struct plan_builder *b, const char *gguf, const char *hf, enum dtype type,
	uint64_t rows, uint64_t cols)
{
	if (b->code)
		return;
	struct convert_tensor *t = add_tensor(b, gguf, type, 2, cols, rows, 1);
	t->slabs[0] = find_source(b, hf, 2, (uint64_t[]){rows, cols});
}

/* Short forms for a layer's tensors. */
struct layer {
	struct plan_builder *b;
	uint32_t il;
};

static void layer_vector(struct layer l, const char *gguf, const char *hf, uint64_t n)
{
	char g[NAME_BYTES], h[NAME_BYTES];
	add_vector(l.b, name_text(g, "blk.%u.%s", l.il, gguf),
		name_text(h, "model.layers.%u.%s", l.il, hf), n);
}

static void layer_matrix(
	struct layer l, const char *gguf, const char *hf, enum dtype type, uint64_t rows, uint64_t cols)
{
	char g[NAME_BYTES], h[NAME_BYTES];
	add_matrix(l.b, name_text(g, "blk.%u.%s.weight", l.il, gguf),
		name_text(h, "model.layers.%u.%s.weight", l.il, hf), type, rows, cols);
}

/* kv_b_proj [heads * (nope + v), kv_lora] -> per head the transposed key part and the value part.
 */
static void kv_b(struct layer l)
{
	const struct convert_config *c = l.b->cfg;
	char name[NAME_BYTES];
	uint64_t rows = (uint64_t)c->nope + c->v_dim;
	if (l.b->code)
		return;
	struct convert_slab s =
		find_source(l.b, name_text(name, "model.layers.%u.self_attn.kv_b_proj.weight", l.il), 2,
			(uint64_t[]){c->n_heads * rows, c->kv_lora});
	struct convert_tensor *k = add_tensor(l.b, name_text(name, "blk.%u.attn_k_b.weight", l.il),
		l.b->recipe->dense, 3, c->nope, c->kv_lora, c->n_heads);
	k->transposed = true;
	k->src_rows = c->nope;
	k->src_cols = c->kv_lora;
	for (uint64_t n = 0; n < c->n_heads; n++)
		k->slabs[n] = (struct convert_slab){s.source, s.src, s.scale, n * rows};
	struct convert_tensor *v = add_tensor(l.b, name_text(name, "blk.%u.attn_v_b.weight", l.il),
		l.b->recipe->dense, 3, c->kv_lora, c->v_dim, c->n_heads);
	for (uint64_t n = 0; n < c->n_heads; n++)
		v->slabs[n] = (struct convert_slab){s.source, s.src, s.scale, n * rows + c->nope};
}

static void add_attention(struct layer l)
{
	const struct convert_config *c = l.b->cfg;
	enum dtype dense = l.b->recipe->dense;
	layer_vector(l, "attn_norm.weight", "input_layernorm.weight", c->hidden);
	layer_matrix(l, "attn_q_a", "self_attn.q_a_proj", dense, c->q_lora, c->hidden);
	layer_vector(l, "attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", c->q_lora);
	layer_matrix(l, "attn_q_b", "self_attn.q_b_proj", dense,
		(uint64_t)c->n_heads * (c->nope + c->rope), c->q_lora);
	layer_matrix(
		l, "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", dense, c->kv_lora + c->rope, c->hidden);
	layer_vector(l, "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", c->kv_lora);
	kv_b(l);
	layer_matrix(
		l, "attn_output", "self_attn.o_proj", dense, c->hidden, (uint64_t)c->n_heads * c->v_dim);
	if (!convert_layer_full(c, l.il))
		return;
	layer_matrix(l, "indexer.attn_q_b", "self_attn.indexer.wq_b", dense,
		(uint64_t)c->index_heads * c->index_dim, c->q_lora);
	layer_matrix(l, "indexer.attn_k", "self_attn.indexer.wk", dense, c->index_dim, c->hidden);
	layer_vector(l, "indexer.k_norm.weight", "self_attn.indexer.k_norm.weight", c->index_dim);
	layer_vector(l, "indexer.k_norm.bias", "self_attn.indexer.k_norm.bias", c->index_dim);
	layer_matrix(
		l, "indexer.proj", "self_attn.indexer.weights_proj", DTYPE_F32, c->index_heads, c->hidden);
}

/* One of gate, up, down for all experts of a layer; separate tensors, or rows [part * rows ...) of
 * a fused one. */
static void add_experts(struct layer l, const char *which, const char *fused, uint64_t part,
	uint64_t parts, uint64_t rows, uint64_t cols)
{
	const struct convert_config *c = l.b->cfg;
	char name[NAME_BYTES];
	if (l.b->code)
		return;
	struct convert_tensor *t =
		add_tensor(l.b, name_text(name, "blk.%u.ffn_%s_exps.weight", l.il, which),
			l.b->recipe->expert, 3, cols, rows, c->n_experts);
	if (l.b->st &&
		safetensors_find(l.b->st, name_text(name, "model.layers.%u.mlp.experts.%s", l.il, fused))) {
		struct convert_slab s =
			find_source(l.b, name, 3, (uint64_t[]){c->n_experts, parts * rows, cols});
		for (uint64_t x = 0; x < c->n_experts; x++)
			t->slabs[x] =
				(struct convert_slab){s.source, s.src, s.scale, (x * parts + part) * rows};
		return;
	}
	for (uint64_t x = 0; x < c->n_experts; x++)
		t->slabs[x] = find_source(l.b,
			name_text(
				name, "model.layers.%u.mlp.experts.%" PRIu64 ".%s_proj.weight", l.il, x, which),
			2, (uint64_t[]){rows, cols});
}

static void add_feed_forward(struct layer l)
{
	const struct convert_config *c = l.b->cfg;
	enum dtype dense = l.b->recipe->dense;
	layer_vector(l, "ffn_norm.weight", "post_attention_layernorm.weight", c->hidden);
	if (l.il < c->n_dense) {
		layer_matrix(l, "ffn_gate", "mlp.gate_proj", dense, c->dense_width, c->hidden);
		layer_matrix(l, "ffn_up", "mlp.up_proj", dense, c->dense_width, c->hidden);
		layer_matrix(l, "ffn_down", "mlp.down_proj", dense, c->hidden, c->dense_width);
		return;
	}
	uint64_t shared = (uint64_t)c->n_shared * c->moe_width;
	layer_matrix(l, "ffn_gate_inp", "mlp.gate", DTYPE_F32, c->n_experts, c->hidden);
	layer_vector(l, "exp_probs_b.bias", "mlp.gate.e_score_correction_bias", c->n_experts);
	add_experts(l, "gate", "gate_up_proj", 0, 2, c->moe_width, c->hidden);
	add_experts(l, "up", "gate_up_proj", 1, 2, c->moe_width, c->hidden);
	add_experts(l, "down", "down_proj", 0, 1, c->hidden, c->moe_width);
	layer_matrix(l, "ffn_gate_shexp", "mlp.shared_experts.gate_proj", dense, shared, c->hidden);
	layer_matrix(l, "ffn_up_shexp", "mlp.shared_experts.up_proj", dense, shared, c->hidden);
	layer_matrix(l, "ffn_down_shexp", "mlp.shared_experts.down_proj", dense, c->hidden, shared);
}

static void add_nextn(struct layer l)
{
	const struct convert_config *c = l.b->cfg;
	layer_matrix(
		l, "nextn.eh_proj", "eh_proj", l.b->recipe->dense, c->hidden, 2 * (uint64_t)c->hidden);
	layer_vector(l, "nextn.enorm.weight", "enorm.weight", c->hidden);
	layer_vector(l, "nextn.hnorm.weight", "hnorm.weight", c->hidden);
	layer_vector(l, "nextn.shared_head_norm.weight", "shared_head.norm.weight", c->hidden);
}

/* Tensors that a checkpoint may carry and a GGUF does not: copies of embedding and head in the MTP
 * layer, indexers of layers that share another's, everything of an MTP layer that the configuration
 * does not announce. */
static const char *known_extra(const struct convert_config *c, const char *name)
{
	unsigned il;
	int n = 0;
	if (c->tied && !strcmp(name, "lm_head.weight"))
		return "a head, although tie_word_embeddings makes the embedding the head";
	if (sscanf(name, "model.layers.%u.%n", &il, &n) != 1 || !n)
		return NULL;
	const char *rest = name + n;
	if (il >= c->n_layers + c->n_nextn)
		return "layers beyond those that config.json announces";
	if (il >= c->n_layers &&
		(!strncmp(rest, "embed_tokens.", 13) || !strncmp(rest, "shared_head.head.", 17)))
		return "copies of embedding or head in the MTP layer";
	if (!convert_layer_full(c, il) && !strncmp(rest, "self_attn.indexer.", 18))
		return "indexers of layers that share another layer's selection";
	if (strstr(rest, "rotary_emb.inv_freq"))
		return "stored rope frequencies";
	return NULL;
}

void left_out_add(struct left_out *l, const char *reason)
{
	size_t k = 0;
	while (k + 1 < ARRAY_LEN(l->reasons) && l->reasons[k] && strcmp(l->reasons[k], reason))
		k++;
	l->reasons[k] = reason;
	l->counts[k]++;
}

void left_out_print(const struct left_out *l, struct buf *notes)
{
	for (size_t k = 0; k < ARRAY_LEN(l->reasons) && l->reasons[k]; k++)
		buf_printf(notes, "%" PRIu64 " tensors left out: %s\n", l->counts[k], l->reasons[k]);
}

/* Checks that every tensor of the checkpoint is used or a known extra; a note says how many are
 * left out, and why. */
static int check_rest(struct plan_builder *b)
{
	struct left_out others = {0};
	for (size_t i = 0; i < b->st->n_tensors; i++) {
		const struct safetensors_tensor *t = &b->st->tensors[i];
		if (b->plan->used[i])
			continue;
		const char *why = known_extra(b->cfg, t->name);
		if (!why)
			return err_set(b->e, ERR_INPUT, "%s: tensor %s belongs to nothing in this architecture",
				b->st->files[t->file].path, t->name);
		left_out_add(&others, why);
	}
	left_out_print(&others, &b->plan->notes);
	return 0;
}

/* Sets n_nextn to 0 if the checkpoint lacks the MTP layer that it announces: a library may have
 * saved it so. */
static void check_nextn(
	struct convert_plan *p, struct convert_config *cfg, const struct safetensors *st)
{
	char name[NAME_BYTES];
	if (!cfg->n_nextn)
		return;
	name_text(name, "model.layers.%u.eh_proj.weight", cfg->n_layers);
	if (safetensors_find(st, name))
		return;
	name_text(name, "model.layers.%u.", cfg->n_layers);
	for (size_t i = 0; i < st->n_tensors; i++)
		if (!strncmp(st->tensors[i].name, name, strlen(name)))
			return; /* part of it is there: the missing rest is an error */
	cfg->n_nextn = 0;
	buf_printf(&p->notes,
		"the checkpoint lacks layer %u (MTP): the model will have no drafts of its own\n",
		cfg->n_layers);
}

int convert_plan_make(struct convert_plan *p, struct convert_config *cfg,
	const struct convert_recipe *recipe, const struct convert_types *types,
	const struct safetensors *st, const char *dir, struct err *e)
{
	struct plan_builder b = {p, cfg, recipe, types, st, dir, e, 0, 0};
	p->used = NEW_ARRAY(bool, st ? st->n_tensors + 1 : 1);
	if (st)
		check_nextn(p, cfg, st);
	add_matrix(&b, "token_embd.weight", "model.embed_tokens.weight", recipe->dense, cfg->vocab,
		cfg->hidden);
	for (uint32_t il = 0; il < cfg->n_layers + cfg->n_nextn; il++) {
		struct layer l = {&b, il};
		add_attention(l);
		add_feed_forward(l);
		if (il >= cfg->n_layers)
			add_nextn(l);
	}
	add_vector(&b, "output_norm.weight", "model.norm.weight", cfg->hidden);
	add_matrix(&b, "output.weight", cfg->tied ? "model.embed_tokens.weight" : "lm_head.weight",
		recipe->dense, cfg->vocab, cfg->hidden);
	if (b.fallbacks > 8)
		buf_printf(
			&p->notes, "and %" PRIu64 " more tensors whose rows do not fit\n", b.fallbacks - 8);
	note_unused_rules(p, types);
	return b.code || !st ? b.code : check_rest(&b);
}

void convert_plan_fini(struct convert_plan *p)
{
	for (size_t i = 0; i < p->n_tensors; i++) {
		free(p->tensors[i].name);
		free(p->tensors[i].slabs);
	}
	for (size_t i = 0; i < p->n_sources; i++)
		free(p->sources[i].name);
	free(p->sources);
	free(p->tensors);
	free(p->used);
	buf_free(&p->notes);
	memset(p, 0, sizeof *p);
}

uint64_t convert_plan_print_types(
	const struct convert_plan *p, const struct gguf_writer *w, FILE *f)
{
	uint64_t bytes[DTYPE_LIMIT] = {0}, total = 0;
	size_t count[DTYPE_LIMIT] = {0};
	for (size_t i = 0; i < p->n_tensors; i++) {
		uint64_t n;
		gguf_writer_place(w, i, NULL, NULL, &n);
		bytes[p->tensors[i].type] += n;
		count[p->tensors[i].type]++;
		total += n;
	}
	for (uint32_t t = 0; t < DTYPE_LIMIT; t++)
		if (count[t])
			fprintf(f, "%-8s %zu tensors, %" PRIu64 " bytes\n", dtype_name(t), count[t], bytes[t]);
	return total;
}
