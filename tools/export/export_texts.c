/* SPDX-License-Identifier: MIT */
/* GGUF keys -> the JSON files of a checkpoint. The tokenizer is first opened as a chat opens it, so
 * that everything wrong with it is said by the same sentences. */
#include "tools/export/export_texts.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/dtype.h"
#include "src/text/pretok.h"
#include "src/text/tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define CONFIG_NAME     "config.json"
#define GENERATION_NAME "generation_config.json"
#define TOKENIZER_NAME  "tokenizer.json"
#define TOKENS_NAME     "tokenizer_config.json"
#define TEMPLATE_NAME   "chat_template.jinja"
#define INDEX_NAME      "model.safetensors.index.json"

const char *const export_text_names[] = {
	INDEX_NAME, CONFIG_NAME, GENERATION_NAME, TOKENIZER_NAME, TOKENS_NAME, TEMPLATE_NAME, NULL};

static struct buf *add_text(struct export_texts *t, const char *name)
{
	t->file[t->n].name = name;
	return &t->file[t->n++].text;
}

static int append_dump(const char *bytes, size_t n, void *user)
{
	buf_append(user, bytes, n);
	return 0;
}

/* Takes the reference. Nine digits tell every float from its neighbours. */
static void add_json(struct export_texts *t, const char *name, json_t *root)
{
	struct buf *text = add_text(t, name);
	json_dump_callback(root, append_dump, text, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	buf_putc(text, '\n');
	json_decref(root);
}

/* ---- the tokenizer ---- */

static int not_text(const struct gguf *file, const char *key, uint64_t i, struct err *e)
{
	return err_set(e, ERR_INPUT, "%s: %s[%" PRIu64 "] is not valid UTF-8, or contains a zero byte",
		file->files[0].path, key, i);
}

static json_t *added_token(uint64_t id, json_t *content, bool special)
{
	return json_pack("{s:I,s:o,s:b,s:b,s:b,s:b,s:b}", "id", (json_int_t)id, "content", content,
		"single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", special);
}

/* Tokens by their type: entries of `vocab`, or of `added`. */
static int put_tokens(const struct gguf *file, json_t *vocab, json_t *added, struct err *e)
{
	static const char key[] = "tokenizer.ggml.tokens";
	struct gguf_array tokens, types;
	int code = gguf_get_strs(file, key, &tokens, e);
	if (code || (code = gguf_get_ints(file, "tokenizer.ggml.token_type", &types, e)))
		return code;
	for (uint64_t i = 0; i < tokens.n; i++) {
		const struct gguf_str *s = &tokens.strings[i];
		int64_t type = gguf_array_i64(&types, i);
		if (type == TOKEN_NORMAL) {
			char *name = mem_strndup(s->ptr, s->len);
			int bad = strlen(name) != s->len || json_object_get(vocab, name) ||
					  json_object_set_new(vocab, name, json_integer((json_int_t)i));
			free(name);
			if (bad)
				return not_text(file, key, i, e);
		} else if (type == TOKEN_CONTROL || type == TOKEN_USER) {
			json_t *content = json_stringn(s->ptr, s->len);
			if (!content)
				return not_text(file, key, i, e);
			json_array_append_new(added, added_token(i, content, type == TOKEN_CONTROL));
		}
	}
	return 0;
}

/* Pairs, as libraries have written them since tokens may contain blanks. */
static int put_merges(const struct gguf *file, json_t *out, struct err *e)
{
	static const char key[] = "tokenizer.ggml.merges";
	struct gguf_array merges;
	int code = gguf_get_strs(file, key, &merges, e);
	for (uint64_t i = 0; !code && i < merges.n; i++) {
		const struct gguf_str *s = &merges.strings[i];
		const char *blank = memchr(s->ptr, ' ', s->len);
		if (!blank)
			return err_set(e, ERR_INPUT,
				"%s: %s[%" PRIu64 "] is not two tokens with a blank between", file->files[0].path,
				key, i);
		json_t *left = json_stringn(s->ptr, (size_t)(blank - s->ptr)),
			   *right = json_stringn(blank + 1, s->len - (size_t)(blank + 1 - s->ptr));
		if (!left || !right) {
			json_decref(left);
			json_decref(right);
			return not_text(file, key, i, e);
		}
		json_array_append_new(out, json_pack("[o,o]", left, right));
	}
	return code;
}

static int add_tokenizer(struct export_texts *t, const struct gguf *file, struct err *e)
{
	json_t *vocab = json_object(), *added = json_array(), *merges = json_array();
	int code = put_tokens(file, vocab, added, e);
	if (!code)
		code = put_merges(file, merges, e);
	if (code) {
		json_decref(vocab);
		json_decref(added);
		json_decref(merges);
		return code;
	}
	json_t *split = json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex",
			   PRETOK_GLM4, "behavior", "Isolated", "invert", 0),
		   *bytes = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
			   "trim_offsets", 1, "use_regex", 0),
		   *decoder = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 1,
			   "trim_offsets", 1, "use_regex", 1),
		   *model = json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:o}", "type", "BPE", "dropout",
			   "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
			   "byte_fallback", 0, "ignore_merges", 1, "vocab", vocab, "merges", merges);
	add_json(t, TOKENIZER_NAME,
		json_pack("{s:s,s:n,s:n,s:o,s:n,s:{s:s,s:[o,o]},s:n,s:o,s:o}", "version", "1.0",
			"truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer", "type",
			"Sequence", "pretokenizers", split, bytes, "post_processor", "decoder", decoder,
			"model", model));
	return 0;
}

static int read_stops(
	struct convert_config *cfg, const struct tokenizer *tok, const struct gguf *file, struct err *e)
{
	size_t n;
	const int32_t *stops = tokenizer_stops(tok, &n);
	if (n > CONVERT_MAX_STOPS)
		return err_set(e, ERR_INPUT, "%s: has %zu stop ids, at most %d expected",
			file->files[0].path, n, CONVERT_MAX_STOPS);
	for (cfg->n_stops = 0; cfg->n_stops < n; cfg->n_stops++)
		cfg->stops[cfg->n_stops] = (uint32_t)stops[cfg->n_stops];
	static const char key[] = "tokenizer.ggml.padding_token_id";
	cfg->has_pad = gguf_find(file, key) != NULL;
	int code = cfg->has_pad ? gguf_get_u32(file, key, &cfg->pad, e) : 0;
	if (!code && cfg->has_pad && cfg->pad >= cfg->vocab)
		code = err_set(e, ERR_INPUT, "%s: key %s is %u, but the vocabulary has %u tokens",
			file->files[0].path, key, cfg->pad, cfg->vocab);
	return code;
}

static void set_token(json_t *root, const char *key, const struct tokenizer *tok, uint32_t id)
{
	struct text_span s = tokenizer_token(tok, (int32_t)id);
	json_t *text = tokenizer_is_added(tok, (int32_t)id) ? json_stringn(s.data, s.len) : NULL;
	if (text)
		json_object_set_new(root, key, text);
}

static void add_tokenizer_config(
	struct export_texts *t, const struct convert_config *cfg, const struct tokenizer *tok)
{
	json_t *root = json_pack("{s:s}", "tokenizer_class", "PreTrainedTokenizerFast");
	if (cfg->n_stops)
		set_token(root, "eos_token", tok, cfg->stops[0]);
	if (cfg->has_pad)
		set_token(root, "pad_token", tok, cfg->pad);
	json_object_set_new(root, "model_max_length", json_integer(cfg->max_positions));
	json_object_set_new(root, "clean_up_tokenization_spaces", json_false());
	json_object_set_new(root, "padding_side", json_string("left"));
	add_json(t, TOKENS_NAME, root);
}

/* tokenizer.json and its companions, as far as the file has what they need. */
static int add_tokens(struct export_texts *t, const struct gguf *file, struct convert_config *cfg,
	struct buf *notes, struct err *e)
{
	const char *path = file->files[0].path;
	struct tokenizer *tok = NULL;
	struct gguf_str jinja;
	int code = 0;
	if (gguf_find(file, "tokenizer.chat_template")) {
		if ((code = gguf_get_str(file, "tokenizer.chat_template", &jinja, e)))
			return code;
		buf_append(add_text(t, TEMPLATE_NAME), jinja.ptr, jinja.len);
	} else {
		buf_printf(
			notes, "%s: no chat template: the folder will have no " TEMPLATE_NAME "\n", path);
	}
	if (!gguf_find(file, "tokenizer.ggml.tokens")) {
		buf_printf(notes, "%s: no tokenizer: the folder will have no " TOKENIZER_NAME "\n", path);
		return 0;
	}
	if ((code = tokenizer_from_gguf(file, &tok, e)))
		return code;
	if (tokenizer_n_tokens(tok) > cfg->vocab)
		code = err_set(e, ERR_INPUT, "%s: has %u tokens, but %u rows of the embedding", path,
			tokenizer_n_tokens(tok), cfg->vocab);
	if (code || (code = read_stops(cfg, tok, file, e)))
		goto out;
	if (gguf_find(file, "tokenizer.ggml.merges"))
		code = add_tokenizer(t, file, e);
	else
		buf_printf(notes,
			"%s: no tokenizer.ggml.merges: the folder will have no " TOKENIZER_NAME "\n", path);
	if (!code)
		add_tokenizer_config(t, cfg, tok);
out:
	tokenizer_free(tok);
	return code;
}

int export_texts_make(struct export_texts *t, const struct gguf *file, struct convert_config *cfg,
	const struct export_plan *plan, struct buf *notes, struct err *e)
{
	int code = add_tokens(t, file, cfg, notes, e);
	if (code)
		return code;
	add_json(t, GENERATION_NAME, convert_config_generation_json(cfg));
	json_t *config = convert_config_json(cfg, plan->dtype == EXPORT_F32 ? "float32" : "bfloat16");
	if (plan->dtype == EXPORT_FP8)
		json_object_set_new(config, "quantization_config",
			json_pack("{s:s,s:s,s:s,s:[i,i]}", "quant_method", "fp8", "fmt", "e4m3",
				"activation_scheme", "dynamic", "weight_block_size", DTYPE_SCALE_BLOCK,
				DTYPE_SCALE_BLOCK));
	add_json(t, CONFIG_NAME, config);
	export_plan_index(plan, add_text(t, INDEX_NAME));
	return 0;
}

void export_texts_fini(struct export_texts *t)
{
	for (size_t i = 0; i < t->n; i++)
		buf_free(&t->file[i].text);
	*t = (struct export_texts){0};
}
