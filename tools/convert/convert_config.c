/* SPDX-License-Identifier: MIT */
/* config.json and generation_config.json -> struct convert_config. */
#include "tools/convert/convert_config.h"

#include "src/base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

/* A JSON object and where it came from, for sentences. */
struct json_source {
	const json_t *root;
	const char *path;
	struct err *e;
};

static int get_u32(
	const struct json_source *s, const char *key, uint32_t min, uint32_t max, uint32_t *out)
{
	const json_t *v = json_object_get(s->root, key);
	if (!v || json_is_null(v))
		return err_set(s->e, ERR_INPUT, "%s: key %s is missing", s->path, key);
	if (!json_is_integer(v))
		return err_set(s->e, ERR_INPUT, "%s: key %s is not a whole number", s->path, key);
	json_int_t n = json_integer_value(v);
	if (n < (json_int_t)min || n > (json_int_t)max)
		return err_set(s->e, ERR_INPUT, "%s: key %s is %" PRId64 ", %u to %u expected", s->path,
			key, (int64_t)n, min, max);
	*out = (uint32_t)n;
	return 0;
}

static bool present(const struct json_source *s, const char *key)
{
	const json_t *v = json_object_get(s->root, key);
	return v && !json_is_null(v);
}

static int get_u32_or(const struct json_source *s, const char *key, uint32_t min, uint32_t max,
	uint32_t fallback, uint32_t *out)
{
	if (present(s, key))
		return get_u32(s, key, min, max, out);
	*out = fallback;
	return 0;
}

static int get_f32(const struct json_source *s, const char *key, float *out)
{
	const json_t *v = json_object_get(s->root, key);
	if (!v)
		return err_set(s->e, ERR_INPUT, "%s: key %s is missing", s->path, key);
	double d = json_number_value(v);
	if (!json_is_number(v) || !(d > 0) || d > 1e30)
		return err_set(s->e, ERR_INPUT, "%s: key %s is not a positive number", s->path, key);
	*out = (float)d;
	return 0;
}

/* The key, when present, must hold this text. */
static int expect_str(const struct json_source *s, const char *key, const char *want, bool required)
{
	const json_t *v = json_object_get(s->root, key);
	if (!required && (!v || json_is_null(v)))
		return 0;
	const char *found = v ? json_string_value(v) : NULL;
	if (!v)
		return err_set(
			s->e, ERR_INPUT, "%s: key %s is missing, \"%s\" expected", s->path, key, want);
	if (!found || strcmp(found, want))
		return err_set(s->e, ERR_INPUT, "%s: key %s is \"%.60s\", only \"%s\" is supported",
			s->path, key, found ? found : "(not a string)", want);
	return 0;
}

/* The key, when present, must hold this bool. */
static int expect_bool(const struct json_source *s, const char *key, bool want)
{
	const json_t *v = json_object_get(s->root, key);
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_boolean(v) || json_is_true(v) != want)
		return err_set(s->e, ERR_INPUT, "%s: key %s must be %s, nothing else is supported", s->path,
			key, want ? "true" : "false");
	return 0;
}

static json_t *load_json(const char *path, struct err *e)
{
	json_error_t why;
	if (access(path, R_OK)) {
		err_set(e, ERR_INPUT, "%s: is missing or cannot be read", path);
		return NULL;
	}
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
	if (!root)
		err_set(e, ERR_INPUT, "%s: is not valid JSON: %s (line %d)", path, why.text, why.line);
	else if (!json_is_object(root)) {
		err_set(e, ERR_INPUT, "%s: is not a JSON object", path);
		json_decref(root);
		root = NULL;
	}
	return root;
}

/* rope_parameters.rope_theta, or rope_theta at the top level where older files have it. */
static int read_rope(struct convert_config *c, const struct json_source *s)
{
	const json_t *nested = json_object_get(s->root, "rope_parameters");
	int code = 0;
	if (json_is_object(nested)) {
		char *place = mem_printf("%s: rope_parameters", s->path);
		struct json_source in = {nested, place, s->e};
		code = expect_str(&in, "rope_type", "default", false);
		if (!code)
			code = get_f32(&in, "rope_theta", &c->rope_theta);
		free(place);
		if (code)
			return code;
	} else if ((code = get_f32(s, "rope_theta", &c->rope_theta))) {
		return err_set(s->e, ERR_INPUT,
			"%s: neither rope_parameters.rope_theta nor rope_theta is there", s->path);
	}
	const json_t *scaling = json_object_get(s->root, "rope_scaling");
	if (scaling && !json_is_null(scaling)) {
		const char *type = json_string_value(json_object_get(scaling, "rope_type"));
		if (!type || strcmp(type, "default"))
			return err_set(
				s->e, ERR_INPUT, "%s: key rope_scaling is set, which is not supported", s->path);
	}
	if ((code = expect_bool(s, "rope_interleave", true)))
		return code;
	return expect_bool(s, "indexer_rope_interleave", true);
}

/* "full"/"shared" per layer from a list of words or a string of letters F and S. */
static int read_types(struct convert_config *c, const struct json_source *s, const char *key)
{
	const json_t *v = json_object_get(s->root, key);
	const char *letters = json_string_value(v);
	size_t n = json_is_array(v) ? json_array_size(v) : letters ? strlen(letters) : 0;
	if (n != c->n_layers)
		return err_set(s->e, ERR_INPUT, "%s: key %s describes %zu layers, %u expected", s->path,
			key, n, c->n_layers);
	for (uint32_t il = 0; il < c->n_layers; il++) {
		const char *word = letters ? (letters[il] == 'F'      ? "full"
										 : letters[il] == 'S' ? "shared"
															  : NULL)
								   : json_string_value(json_array_get(v, il));
		if (!word || (strcmp(word, "full") && strcmp(word, "shared")))
			return err_set(
				s->e, ERR_INPUT, "%s: %s[%u] is neither \"full\" nor \"shared\"", s->path, key, il);
		c->full[il] = !strcmp(word, "full");
	}
	return 0;
}

/* indexer_types wins; then the pattern; then freq and offset; none of them: every layer is full
 * (GLM-5, GLM-5.1). */
static int read_schedule(struct convert_config *c, const struct json_source *s)
{
	int code = 0;
	if (present(s, "indexer_types")) {
		code = read_types(c, s, "indexer_types");
	} else if (present(s, "index_topk_pattern")) {
		code = read_types(c, s, "index_topk_pattern");
	} else {
		uint32_t freq, offset = 0;
		if ((code = get_u32_or(s, "index_topk_freq", 1, CONVERT_MAX_LAYERS, 1, &freq)))
			return code;
		if (freq > 1 &&
			(code = get_u32(s, "index_skip_topk_offset", 0, CONVERT_MAX_LAYERS, &offset)))
			return code;
		for (uint32_t il = 0; il < c->n_layers; il++)
			c->full[il] = il + 1 <= offset || (il + 1 - offset) % freq == 0;
	}
	if (!code && !c->full[0])
		code = err_set(s->e, ERR_INPUT,
			"%s: layer 0 shares an indexer, but there is no layer before it", s->path);
	return code;
}

static int read_moe(struct convert_config *c, const struct json_source *s)
{
	int code;
	uint32_t freq;
	if ((code = get_u32(s, "first_k_dense_replace", 0, c->n_layers, &c->n_dense)) ||
		(code = get_u32(s, "intermediate_size", 1, 1u << 24, &c->dense_width)) ||
		(code = get_u32(s, "moe_intermediate_size", 1, 1u << 24, &c->moe_width)) ||
		(code = get_u32(s, "n_routed_experts", 1, 65536, &c->n_experts)) ||
		(code = get_u32(s, "num_experts_per_tok", 1, c->n_experts, &c->n_used)) ||
		(code = get_u32(s, "n_shared_experts", 1, 64, &c->n_shared)) ||
		(code = get_u32_or(s, "n_group", 1, c->n_experts, 1, &c->n_group)) ||
		(code = get_u32_or(s, "topk_group", 1, c->n_group, 1, &c->n_group_used)) ||
		(code = get_f32(s, "routed_scaling_factor", &c->routed_scale)) ||
		(code = get_u32_or(s, "moe_layer_freq", 1, 1, 1, &freq)) ||
		(code = expect_str(s, "scoring_func", "sigmoid", false)) ||
		(code = expect_str(s, "topk_method", "noaux_tc", false)))
		return code;
	const json_t *norm = json_object_get(s->root, "norm_topk_prob");
	if (!json_is_boolean(norm))
		return err_set(s->e, ERR_INPUT, "%s: key norm_topk_prob is missing or not a bool", s->path);
	c->norm_topk = json_is_true(norm);
	const json_t *types = json_object_get(s->root, "mlp_layer_types");
	for (size_t il = 0; il < json_array_size(types) && il < c->n_layers; il++) {
		const char *word = json_string_value(json_array_get(types, il));
		if (!word || strcmp(word, il < c->n_dense ? "dense" : "sparse"))
			return err_set(s->e, ERR_INPUT,
				"%s: mlp_layer_types[%zu] contradicts first_k_dense_replace = %u", s->path, il,
				c->n_dense);
	}
	return 0;
}

static int read_model(struct convert_config *c, const struct json_source *s)
{
	int code;
	uint32_t width;
	if ((code = expect_str(s, "model_type", "glm_moe_dsa", true)) ||
		(code = expect_str(s, "hidden_act", "silu", true)) ||
		(code = get_u32(s, "num_hidden_layers", 1, CONVERT_MAX_LAYERS - 1, &c->n_layers)) ||
		(code = get_u32_or(s, "num_nextn_predict_layers", 0, 1, 0, &c->n_nextn)) ||
		(code = get_u32(s, "hidden_size", 1, 1u << 24, &c->hidden)) ||
		(code = get_u32(s, "vocab_size", 1, 1u << 28, &c->vocab)) ||
		(code = get_u32(s, "max_position_embeddings", 1, 1u << 30, &c->max_positions)) ||
		(code = get_u32(s, "num_attention_heads", 1, 65536, &c->n_heads)) ||
		(code = get_u32(s, "q_lora_rank", 1, 1u << 20, &c->q_lora)) ||
		(code = get_u32(s, "kv_lora_rank", 1, 1u << 16, &c->kv_lora)) ||
		(code = get_u32(s, "qk_nope_head_dim", 1, 1u << 14, &c->nope)) ||
		(code = get_u32(s, "qk_rope_head_dim", 2, 1u << 14, &c->rope)) ||
		(code = get_u32(s, "v_head_dim", 1, 1u << 14, &c->v_dim)) ||
		(code = get_u32_or(s, "qk_head_dim", 1, 1u << 15, c->nope + c->rope, &width)) ||
		(code = get_u32(s, "index_n_heads", 1, 65536, &c->index_heads)) ||
		(code = get_u32(s, "index_head_dim", 1, 1u << 16, &c->index_dim)) ||
		(code = get_u32(s, "index_topk", 1, 1u << 30, &c->index_topk)) ||
		(code = get_f32(s, "rms_norm_eps", &c->rms_eps)) ||
		(code = expect_bool(s, "attention_bias", false)) ||
		(code = expect_bool(s, "mlp_bias", false)) ||
		(code = expect_bool(s, "tie_word_embeddings", false)))
		return code;
	if (width != c->nope + c->rope)
		return err_set(s->e, ERR_INPUT,
			"%s: qk_head_dim is %u, but qk_nope_head_dim + qk_rope_head_dim is %u", s->path, width,
			c->nope + c->rope);
	c->has_latent_eps = present(s, "latent_rms_norm_eps");
	if (c->has_latent_eps && (code = get_f32(s, "latent_rms_norm_eps", &c->latent_eps)))
		return code;
	if ((code = read_rope(c, s)) || (code = read_schedule(c, s)))
		return code;
	return read_moe(c, s);
}

/* eos_token_id: a number or a list; pad_token_id. Present values replace what was there. */
static int read_tokens(struct convert_config *c, const struct json_source *s)
{
	const json_t *v = json_object_get(s->root, "eos_token_id");
	int code = 0;
	if (v && !json_is_null(v)) {
		size_t n = json_is_array(v) ? json_array_size(v) : 1;
		if (n > CONVERT_MAX_STOPS)
			return err_set(s->e, ERR_INPUT, "%s: eos_token_id has %zu entries, at most %d expected",
				s->path, n, CONVERT_MAX_STOPS);
		c->n_stops = 0;
		for (size_t i = 0; i < n; i++) {
			const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
			if (!json_is_integer(id) || json_integer_value(id) < 0 ||
				json_integer_value(id) >= (json_int_t)c->vocab)
				return err_set(s->e, ERR_INPUT, "%s: eos_token_id names a token outside 0 to %u",
					s->path, c->vocab - 1);
			c->stops[c->n_stops++] = (uint32_t)json_integer_value(id);
		}
	}
	if (present(s, "pad_token_id")) {
		code = get_u32(s, "pad_token_id", 0, c->vocab - 1, &c->pad);
		c->has_pad = true;
	}
	return code;
}

static int read_generation(struct convert_config *c, const struct json_source *s)
{
	int code = read_tokens(c, s);
	c->has_temp = present(s, "temperature");
	c->has_top_p = present(s, "top_p");
	if (!code && c->has_temp)
		code = get_f32(s, "temperature", &c->temp);
	if (!code && c->has_top_p)
		code = get_f32(s, "top_p", &c->top_p);
	return code;
}

int convert_config_read_file(struct convert_config *c, const char *path, struct err *e)
{
	memset(c, 0, sizeof *c);
	json_t *root = load_json(path, e);
	struct json_source s = {root, path, e};
	int code = root ? read_model(c, &s) : ERR_INPUT;
	if (!code)
		code = read_tokens(c, &s);
	json_decref(root);
	return code;
}

int convert_config_read(struct convert_config *c, const char *dir, struct err *e)
{
	char *path = mem_printf("%s/config.json", dir);
	int code = convert_config_read_file(c, path, e);
	free(path);
	if (code)
		return code;
	path = mem_printf("%s/generation_config.json", dir);
	if (access(path, F_OK) == 0) {
		json_t *root = load_json(path, e);
		struct json_source s = {root, path, e};
		code = root ? read_generation(c, &s) : ERR_INPUT;
		json_decref(root);
	}
	free(path);
	return code;
}
