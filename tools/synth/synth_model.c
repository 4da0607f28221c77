/* SPDX-License-Identifier: MIT */
/*
 * The shape of GLM-5.2 stands here as numbers, because a model for measuring is wanted where no
 * checkpoint is. Other shapes come from a config.json.
 */
#include "tools/synth/synth_model.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/gguf.h"
#include "src/model/config.h"
#include "src/text/hf_tokenizer.h"
#include "src/checkpoint/convert_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void synth_model_glm52(struct convert_config *c)
{
	*c = (struct convert_config){
		.n_layers = 78,
		.n_nextn = 1,
		.hidden = 6144,
		.vocab = 154880,
		.max_positions = 1048576,
		.n_heads = 64,
		.q_lora = 2048,
		.kv_lora = 512,
		.nope = 192,
		.rope = 64,
		.v_dim = 256,
		.index_heads = 32,
		.index_dim = 128,
		.index_topk = 2048,
		.n_dense = 3,
		.dense_width = 12288,
		.moe_width = 2048,
		.n_experts = 256,
		.n_used = 8,
		.n_shared = 1,
		.n_group = 1,
		.n_group_used = 1,
		.norm_topk = true,
		.routed_scale = 2.5f,
		.rms_eps = 1e-5f,
		.rope_theta = 8000000,
		.has_temp = true,
		.has_top_p = true,
		.temp = 1,
		.top_p = 0.95f,
	};
	for (uint32_t il = 0; il < c->n_layers; il++)
		c->full[il] = config_index_full(il, 4, 3);
}

void synth_model_cut(struct convert_config *c, uint32_t n_layers)
{
	if (!n_layers || n_layers >= c->n_layers)
		return;
	c->n_layers = n_layers;
	c->n_dense = MIN(c->n_dense, n_layers);
}

/* ---- tokenizer ---- */

static bool ends(const char *s, const char *with)
{
	size_t n = strlen(s), k = strlen(with);
	return n >= k && !strcmp(s + n - k, with);
}

static bool is_key(const struct gguf_kv *kv, const char *key)
{
	return !strcmp(kv->key, key);
}

/* Token ids are UINT32, alone and in lists, whatever they were in the source: llama.cpp refuses
 * other types, and older versions of this program wrote INT32. */
static bool is_token_id(const struct gguf_kv *kv)
{
	return ends(kv->key, "_token_id") || ends(kv->key, "_token_ids");
}

/* Token types; what lies behind the vocabulary is unused. */
static void set_types(
	struct gguf_writer *w, const char *key, const struct gguf_array *a, uint64_t n)
{
	int32_t *v = NEW_ARRAY(int32_t, MAX(n, 1));
	for (uint64_t i = 0; i < n; i++)
		v[i] = i < a->n ? (int32_t)gguf_array_i64(a, i) : TOKEN_UNUSED;
	gguf_writer_set_i32s(w, key, v, n);
	free(v);
}

static void copy_ids(struct gguf_writer *w, const struct gguf_kv *kv)
{
	const struct gguf_array *a = &kv->value;
	uint32_t *ids = NEW_ARRAY(uint32_t, MAX(a->n, 1));
	for (uint64_t i = 0; i < a->n; i++)
		ids[i] = (uint32_t)gguf_array_i64(a, i);
	if (kv->type == GGUF_ARRAY)
		gguf_writer_set_u32s(w, kv->key, ids, a->n);
	else
		gguf_writer_set_u32(w, kv->key, ids[0]);
	free(ids);
}

static void copy_key(struct gguf_writer *w, const struct gguf_kv *kv)
{
	const struct gguf_array *a = &kv->value;
	if (is_token_id(kv))
		copy_ids(w, kv);
	else if (kv->type == GGUF_STRING)
		gguf_writer_set_bytes(w, kv->key, a->strings[0].ptr, a->strings[0].len);
	else if (kv->type == GGUF_ARRAY && a->type == GGUF_STRING)
		gguf_writer_set_strs(w, kv->key, a->strings, a->n);
	else if (kv->type == GGUF_U32)
		gguf_writer_set_u32(w, kv->key, (uint32_t)gguf_array_i64(a, 0));
	else if (kv->type == GGUF_BOOL)
		gguf_writer_set_bool(w, kv->key, gguf_array_i64(a, 0) != 0);
	/* scores and the like mean nothing to a byte-level tokenizer with merges */
}

int synth_model_tokenizer(
	struct gguf_writer *w, const struct convert_config *c, const char *path, struct err *e)
{
	struct gguf *g = NULL;
	struct gguf_array tokens;
	int code = gguf_open(path, &g, e);
	if (!code)
		code = gguf_get_strs(g, "tokenizer.ggml.tokens", &tokens, e);
	if (!code && tokens.n > c->vocab)
		code = err_set(e, ERR_INPUT, "%s: its tokenizer has %llu tokens, the shape %u", path,
			(unsigned long long)tokens.n, c->vocab);
	for (size_t i = 0; !code && i < g->n_kvs; i++) {
		const struct gguf_kv *kv = &g->kvs[i];
		if (is_key(kv, "tokenizer.ggml.tokens"))
			convert_keys_tokens(w, tokens.strings, (uint32_t)tokens.n, c->vocab);
		else if (is_key(kv, "tokenizer.ggml.token_type"))
			set_types(w, kv->key, &kv->value, c->vocab);
		else if (!strncmp(kv->key, "tokenizer.", 10))
			copy_key(w, kv);
	}
	gguf_close(g);
	return code;
}

/* ---- weights ---- */

void synth_model_fill(
	struct synth_fill *f, const struct convert_tensor *t, uint64_t seed, uint64_t tensor)
{
	float mean = 0, rms;
	if (t->n_dims == 1) {
		bool gain = ends(t->name, "norm.weight");
		mean = gain ? 1 : 0;
		rms = gain ? 0.1f : 0.05f; /* router biases make some experts more popular */
	} else if (!strcmp(t->name, "token_embd.weight")) {
		rms = 1;
	} else {
		/* attn_k_b is stored per head as the transpose of what makes keys from latents */
		uint64_t n_in = ends(t->name, "attn_k_b.weight") ? t->ne[1] : t->ne[0];
		rms = (float)(1 / sqrt((double)n_in));
	}
	synth_fill_init(f, t->type, seed, tensor, mean, rms);
}
