/* SPDX-License-Identifier: MIT */
/* GGUF keys of architecture glm-dsa from a checkpoint's configuration and tokenizer. */
#include "src/checkpoint/convert_keys.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/file_map.h"
#include "src/text/hf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#define ARCH "glm-dsa"

void convert_keys_shape(struct gguf_writer *w, const struct convert_config *c)
{
	const struct {
		const char *key;
		uint32_t value;
	} numbers[] = {
		{ARCH ".block_count", c->n_layers + c->n_nextn},
		{ARCH ".context_length", c->max_positions},
		{ARCH ".embedding_length", c->hidden},
		{ARCH ".vocab_size", c->vocab},
		{ARCH ".feed_forward_length", c->dense_width},
		{ARCH ".attention.head_count", c->n_heads},
		{ARCH ".attention.head_count_kv", 1},
		{ARCH ".attention.key_length", c->kv_lora + c->rope},
		{ARCH ".attention.value_length", c->kv_lora},
		{ARCH ".attention.key_length_mla", c->nope + c->rope},
		{ARCH ".attention.value_length_mla", c->v_dim},
		{ARCH ".attention.q_lora_rank", c->q_lora},
		{ARCH ".attention.kv_lora_rank", c->kv_lora},
		{ARCH ".attention.indexer.head_count", c->index_heads},
		{ARCH ".attention.indexer.key_length", c->index_dim},
		{ARCH ".attention.indexer.top_k", c->index_topk},
		{ARCH ".rope.dimension_count", c->rope},
		{ARCH ".leading_dense_block_count", c->n_dense},
		{ARCH ".expert_count", c->n_experts},
		{ARCH ".expert_used_count", c->n_used},
		{ARCH ".expert_shared_count", c->n_shared},
		{ARCH ".expert_feed_forward_length", c->moe_width},
		{ARCH ".expert_group_count", c->n_group},
		{ARCH ".expert_group_used_count", c->n_group_used},
		{ARCH ".expert_gating_func", 2}, /* sigmoid */
		{ARCH ".nextn_predict_layers", c->n_nextn},
	};
	gguf_writer_set_str(w, "general.architecture", ARCH);
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		gguf_writer_set_u32(w, numbers[i].key, numbers[i].value);
	gguf_writer_set_f32(w, ARCH ".attention.layer_norm_rms_epsilon", c->rms_eps);
	if (c->has_latent_eps)
		gguf_writer_set_f32(w, ARCH ".attention.latent_layer_norm_rms_epsilon", c->latent_eps);
	gguf_writer_set_f32(w, ARCH ".rope.freq_base", c->rope_theta);
	gguf_writer_set_bool(w, ARCH ".expert_weights_norm", c->norm_topk);
	gguf_writer_set_f32(w, ARCH ".expert_weights_scale", c->routed_scale);
	gguf_writer_set_bools(w, ARCH ".attention.indexer.types", c->full, c->n_layers);
	if (c->tied)
		gguf_writer_set_bool(w, CONVERT_TIED_KEY, true);
	if (c->has_temp)
		gguf_writer_set_f32(w, "general.sampling.temp", c->temp);
	if (c->has_top_p)
		gguf_writer_set_f32(w, "general.sampling.top_p", c->top_p);
}

/* The id of the added token with this text; -1: there is none. */
static int64_t find_token(const struct hf_tokenizer *t, const char *text)
{
	size_t n = strlen(text);
	for (uint32_t i = t->n_tokens; i-- > 0;)
		if (t->types[i] != TOKEN_NORMAL && t->tokens[i].len == n &&
			!memcmp(t->tokens[i].data, text, n))
			return i;
	return -1;
}

static void set_special(
	struct gguf_writer *w, const struct convert_config *c, const struct hf_tokenizer *t)
{
	static const struct {
		const char *key, *text;
	} special[] = {
		{"tokenizer.ggml.bos_token_id", "[gMASK]"},
		{"tokenizer.ggml.eos_token_id", "<|endoftext|>"},
		{"tokenizer.ggml.eot_token_id", "<|user|>"},
		{"tokenizer.ggml.eom_token_id", "<|observation|>"},
		{"tokenizer.ggml.unknown_token_id", "<|endoftext|>"},
	};
	for (size_t i = 0; i < ARRAY_LEN(special); i++) {
		int64_t id = find_token(t, special[i].text);
		if (id >= 0)
			gguf_writer_set_u32(w, special[i].key, (uint32_t)id);
	}
	int64_t pad = c->has_pad ? c->pad : find_token(t, "<|endoftext|>");
	if (pad >= 0)
		gguf_writer_set_u32(w, "tokenizer.ggml.padding_token_id", (uint32_t)pad);
	if (c->n_stops)
		gguf_writer_set_u32s(w, "tokenizer.ggml.eos_token_ids", c->stops, c->n_stops);
}

void convert_keys_tokens(
	struct gguf_writer *w, const struct gguf_str *tokens, uint32_t n, uint32_t n_vocab)
{
	enum { PAD_BYTES = 20 };
	struct gguf_str *strs = NEW_ARRAY(struct gguf_str, n_vocab);
	char *pads = mem_new((size_t)(n_vocab - n) + 1, PAD_BYTES);
	memcpy(strs, tokens, n * sizeof *strs);
	for (uint32_t i = n; i < n_vocab; i++) {
		char *pad = pads + (size_t)(i - n) * PAD_BYTES;
		strs[i] = (struct gguf_str){pad, (uint64_t)snprintf(pad, PAD_BYTES, "[PAD%u]", i)};
	}
	gguf_writer_set_strs(w, "tokenizer.ggml.tokens", strs, n_vocab);
	free(strs);
	free(pads);
}

static int set_tokenizer(
	struct gguf_writer *w, const struct convert_config *c, const char *path, struct err *e)
{
	struct hf_tokenizer t = {0};
	struct gguf_str *strs = NULL;
	int32_t *types = NULL;
	int code = hf_tokenizer_open(&t, path, e);
	if (code)
		return code;
	if (!t.pre) {
		code = err_set(e, ERR_INPUT,
			"%s: splits text in another way than GLM does, which GGUF has no name for here", path);
		goto out;
	}
	if (t.n_tokens > c->vocab) {
		code = err_set(e, ERR_INPUT, "%s: has %u tokens, but config.json says vocab_size %u", path,
			t.n_tokens, c->vocab);
		goto out;
	}
	gguf_writer_set_str(w, "tokenizer.ggml.model", "gpt2");
	gguf_writer_set_str(w, "tokenizer.ggml.pre", t.pre);
	strs = NEW_ARRAY(struct gguf_str, MAX(t.n_tokens, t.n_merges));
	types = NEW_ARRAY(int32_t, c->vocab);
	for (uint32_t i = 0; i < t.n_tokens; i++)
		strs[i] = (struct gguf_str){t.tokens[i].data, t.tokens[i].len};
	for (uint32_t i = 0; i < c->vocab; i++)
		types[i] = i < t.n_tokens ? t.types[i] : TOKEN_UNUSED;
	convert_keys_tokens(w, strs, t.n_tokens, c->vocab);
	gguf_writer_set_i32s(w, "tokenizer.ggml.token_type", types, c->vocab);
	for (uint32_t i = 0; i < t.n_merges; i++)
		strs[i] = (struct gguf_str){t.merges[i].data, t.merges[i].len};
	gguf_writer_set_strs(w, "tokenizer.ggml.merges", strs, t.n_merges);
	set_special(w, c, &t);
out:
	free(strs);
	free(types);
	hf_tokenizer_fini(&t);
	return code;
}

/* chat_template.jinja, else the string of that name in tokenizer_config.json. */
static int set_template(struct gguf_writer *w, const char *dir, struct buf *notes, struct err *e)
{
	char *path = mem_printf("%s/chat_template.jinja", dir);
	int code = 0;
	if (access(path, F_OK) == 0) {
		struct file_map m = {0};
		struct stat s;
		if (stat(path, &s) == 0 && !s.st_size)
			gguf_writer_set_bytes(w, "tokenizer.chat_template", "", 0);
		else if (!(code = file_map_open(&m, path, e)))
			gguf_writer_set_bytes(w, "tokenizer.chat_template", (const char *)m.data, m.size);
		if (!code && m.data)
			code = file_map_check(&m, path, e);
		file_map_close(&m);
		free(path);
		return code;
	}
	free(path);
	path = mem_printf("%s/tokenizer_config.json", dir);
	json_t *root = NULL;
	code = access(path, F_OK) == 0 ? convert_json_load(path, &root, e) : 0;
	if (code) {
		free(path);
		return code;
	}
	const char *text = json_string_value(json_object_get(root, "chat_template"));
	if (text)
		gguf_writer_set_str(w, "tokenizer.chat_template", text);
	else
		buf_printf(
			notes, "%s: no chat_template.jinja: the file will carry no chat template\n", dir);
	json_decref(root);
	free(path);
	return 0;
}

int convert_keys_set(struct gguf_writer *w, const struct convert_config *c, const char *dir,
	struct buf *notes, struct err *e)
{
	char *path = mem_printf("%s/tokenizer.json", dir);
	int code = 0;
	convert_keys_shape(w, c);
	if (access(path, F_OK) == 0)
		code = set_tokenizer(w, c, path, e);
	else
		buf_printf(notes, "%s: no tokenizer.json: the file will carry no tokenizer\n", dir);
	free(path);
	return code ? code : set_template(w, dir, notes, e);
}
