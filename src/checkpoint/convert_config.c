/* SPDX-License-Identifier: MIT */
/* config.json and generation_config.json -> struct convert_config, and back. What both directions
 * need stands in tables: numbers, and settings of which only one value is supported. */
#include "src/checkpoint/convert_config.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/file_map.h"
#include "src/format/json_parse.h"
#include "src/format/safetensors.h"
#include "src/model/config.h"
#include "src/quant/dtype.h"
#include "src/text/vocab.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whole numbers, read in this order. */
#define AT(field)      offsetof(struct convert_config, field)
#define NO_LIMIT       SIZE_MAX
#define JSON_MAX_BYTES (64u << 20)
static const struct number_key {
	const char *key;
	size_t at; /* of the uint32_t in struct convert_config */
	uint32_t min, max;
	size_t limit;  /* of another number that it must not exceed, read before; NO_LIMIT: none */
	bool optional; /* `fallback` where it is absent */
	uint32_t fallback;
} number_keys[] = {
	{"num_hidden_layers", AT(n_layers), 1, CONVERT_MAX_LAYERS - 1, NO_LIMIT, false, 0},
	{"num_nextn_predict_layers", AT(n_nextn), 0, 1, NO_LIMIT, true, 0},
	{"hidden_size", AT(hidden), 1, 1u << 24, NO_LIMIT, false, 0},
	{"vocab_size", AT(vocab), 1, VOCAB_TOKENS_MAX, NO_LIMIT, false, 0},
	{"max_position_embeddings", AT(max_positions), 1, 1u << 30, NO_LIMIT, false, 0},
	{"num_attention_heads", AT(n_heads), 1, 65536, NO_LIMIT, false, 0},
	{"q_lora_rank", AT(q_lora), 1, 1u << 20, NO_LIMIT, false, 0},
	{"kv_lora_rank", AT(kv_lora), 1, 1u << 16, NO_LIMIT, false, 0},
	{"qk_nope_head_dim", AT(nope), 1, 1u << 14, NO_LIMIT, false, 0},
	{"qk_rope_head_dim", AT(rope), 2, 1u << 14, NO_LIMIT, false, 0},
	{"v_head_dim", AT(v_dim), 1, 1u << 14, NO_LIMIT, false, 0},
	{"index_n_heads", AT(index_heads), 1, 65536, NO_LIMIT, false, 0},
	{"index_head_dim", AT(index_dim), 1, 1u << 16, NO_LIMIT, false, 0},
	{"index_topk", AT(index_topk), 1, 1u << 30, NO_LIMIT, false, 0},
	{"first_k_dense_replace", AT(n_dense), 0, UINT32_MAX, NO_LIMIT, false, 0},
	{"intermediate_size", AT(dense_width), 1, 1u << 24, NO_LIMIT, false, 0},
	{"moe_intermediate_size", AT(moe_width), 1, 1u << 24, NO_LIMIT, false, 0},
	{"n_routed_experts", AT(n_experts), 1, 65536, NO_LIMIT, false, 0},
	{"num_experts_per_tok", AT(n_used), 1, UINT32_MAX, AT(n_experts), false, 0},
	{"n_shared_experts", AT(n_shared), 1, 64, NO_LIMIT, false, 0},
	{"n_group", AT(n_group), 1, UINT32_MAX, AT(n_experts), true, 1},
	{"topk_group", AT(n_group_used), 1, UINT32_MAX, AT(n_group), true, 1},
};

static const struct real_key {
	const char *key;
	size_t at; /* of the float */
} real_keys[] = {
	{"rms_norm_eps", AT(rms_eps)},
	{"routed_scaling_factor", AT(routed_scale)},
};

/* Settings of which nothing else is supported. */
static const struct fixed_word {
	const char *key, *word;
	bool required;
} fixed_words[] = {
	{"model_type", "glm_moe_dsa", true},
	{"hidden_act", "silu", true},
	{"scoring_func", "sigmoid", false},
	{"topk_method", "noaux_tc", false},
};

/* Inside quantization_config, where there is one. */
static const struct fixed_word quant_words[] = {
	{"quant_method", "fp8", true},
	{"fmt", "e4m3", false},
	{"activation_scheme", "dynamic", false},
};

/* Numbers that must equal one above. transformers lets num_experts replace n_routed_experts. */
static const struct alias_key {
	const char *key, *of;
	size_t at; /* of the uint32_t in struct convert_config */
} alias_keys[] = {
	{"num_key_value_heads", "num_attention_heads", AT(n_heads)},
	{"num_local_experts", "n_routed_experts", AT(n_experts)},
	{"num_experts", "n_routed_experts", AT(n_experts)},
};

static const struct fixed_bool {
	const char *key;
	bool value;
} fixed_bools[] = {
	{"attention_bias", false},
	{"mlp_bias", false},
	{"rope_interleave", true},
	{"indexer_rope_interleave", true},
};

/* Prefixes of settings that change what a model computes, in this architecture and in those close
 * to it. */
static const char *const setting_prefixes[] = {"attention_", "attn_", "compress_", "engram_",
	"expert_", "final_logit_", "hc_", "index_", "indexer_", "kv_", "latent_", "logit", "mhc_",
	"mlp_", "moe_", "n_", "num_", "partial_", "q_", "qk_", "rope_", "router_", "scale_", "sliding_",
	"swiglu_", "use_", "v_"};

/* Keys with such a prefix that are in none of the tables above, and are either read below or change
 * nothing that is computed here. */
static const char *const other_keys[] = {"attention_dropout", "index_share_for_mtp_iteration",
	"index_skip_topk_offset", "index_topk_freq", "index_topk_pattern", "indexer_types",
	"latent_rms_norm_eps", "mlp_layer_types", "moe_layer_freq", "moe_router_dtype",
	"num_beam_groups", "num_beams", "num_return_sequences", "partial_rotary_factor", "qk_head_dim",
	"rope_parameters", "rope_scaling", "rope_theta", "router_aux_loss_coef", "router_jitter_noise",
	"router_z_loss_coef", "use_bfloat16", "use_cache"};

/* A JSON object and where it came from, for sentences. */
struct json_source {
	json_t *root;
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
	if (!json_is_number(v) || !((float)d > 0) || d > 1e30)
		return err_set(s->e, ERR_INPUT, "%s: key %s is not a positive number", s->path, key);
	*out = (float)d;
	return 0;
}

enum { VALUE_BYTES = 64 };

/* A value as JSON, for sentences: its beginning. */
static const char *value_text(const json_t *v, char out[VALUE_BYTES])
{
	char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
	snprintf(out, VALUE_BYTES, "%s", text ? text : "(not valid)");
	free(text);
	return out;
}

/* The key, when present, must hold this text. */
static int expect_str(const struct json_source *s, const char *key, const char *want, bool required)
{
	const json_t *v = json_object_get(s->root, key);
	if (!required && (!v || json_is_null(v)))
		return 0;
	const char *found = v ? json_string_value(v) : NULL;
	char text[VALUE_BYTES];
	if (!v)
		return err_set(
			s->e, ERR_INPUT, "%s: key %s is missing, \"%s\" expected", s->path, key, want);
	if (!found || strcmp(found, want))
		return err_set(s->e, ERR_INPUT, "%s: key %s is %s, only \"%s\" is supported", s->path, key,
			value_text(v, text), want);
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

int convert_json_load(const char *path, json_t **root, struct err *e)
{
	struct file_map map;
	*root = NULL;
	if (access(path, R_OK))
		return err_set(e, ERR_INPUT, "%s: is missing or cannot be read", path);
	int code = file_map_open(&map, path, e);
	if (code)
		return code;
	if (map.size > JSON_MAX_BYTES)
		code = err_set(e, ERR_INPUT, "%s: has %" PRIu64 " bytes, at most %u expected", path,
			map.size, JSON_MAX_BYTES);
	else
		code = json_parse_part(
			path, "", (const char *)map.data, map.size, JSON_REJECT_DUPLICATES, root, e);
	if (!code && !json_is_object(*root)) {
		code = err_set(e, ERR_INPUT, "%s: is not a JSON object", path);
		json_decref(*root);
		*root = NULL;
	}
	file_map_close(&map);
	return code;
}

/* The key, when present, must hold this number. */
static int expect_number(const struct json_source *s, const char *key, double want)
{
	const json_t *v = json_object_get(s->root, key);
	if (!v || json_is_null(v) || (json_is_number(v) && json_number_value(v) == want))
		return 0;
	char text[VALUE_BYTES];
	return err_set(s->e, ERR_INPUT, "%s: key %s is %s, only %g is supported", s->path, key,
		value_text(v, text), want);
}

/* rope_theta of one object. All in the file must agree, since libraries differ in which they use.
 * *found: 0 before the first. */
static int read_theta(const struct json_source *s, float *found)
{
	float theta;
	int code;
	if (!present(s, "rope_theta"))
		return 0;
	if ((code = get_f32(s, "rope_theta", &theta)))
		return code;
	if (*found > 0 && *found != theta)
		return err_set(s->e, ERR_INPUT,
			"%s: key rope_theta is %g, but another rope_theta in this file is %g", s->path,
			(double)theta, (double)*found);
	*found = theta;
	return 0;
}

/* The object `key` of rope settings: rope_parameters, or rope_scaling in older files. */
static int read_rope_object(const struct json_source *s, const char *key, float *theta)
{
	enum { N_FACTORS = 3 }; /* the first ones of: */
	static const char *const known[] = {
		"partial_rotary_factor", "factor", "attention_factor", "rope_theta", "rope_type", "type"};
	json_t *v = json_object_get(s->root, key), *each;
	const char *name;
	char text[VALUE_BYTES];
	int code;
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_object(v))
		return err_set(s->e, ERR_INPUT, "%s: key %s is %s, an object expected", s->path, key,
			value_text(v, text));
	char *place = mem_printf("%s: %s", s->path, key);
	struct json_source in = {v, place, s->e};
	code = expect_str(&in, "rope_type", "default", false);
	if (!code)
		code = expect_str(&in, "type", "default", false);
	for (size_t i = 0; i < N_FACTORS && !code; i++)
		code = expect_number(&in, known[i], 1);
	json_object_foreach(v, name, each)
	{
		size_t i = 0;
		while (i < ARRAY_LEN(known) && strcmp(known[i], name))
			i++;
		if (!code && i == ARRAY_LEN(known) && !json_is_null(each))
			code = err_set(s->e, ERR_INPUT, "%s: key %.60s is %s, which is not supported", place,
				name, value_text(each, text));
	}
	if (!code)
		code = read_theta(&in, theta);
	free(place);
	return code;
}

/* rope_theta stands in rope_parameters, in rope_scaling, or at the top level. No scaling, and the
 * whole of qk_rope_head_dim is rotated. */
static int read_rope(struct convert_config *c, const struct json_source *s)
{
	int code;
	if ((code = read_rope_object(s, "rope_parameters", &c->rope_theta)) ||
		(code = read_rope_object(s, "rope_scaling", &c->rope_theta)) ||
		(code = read_theta(s, &c->rope_theta)) ||
		(code = expect_number(s, "partial_rotary_factor", 1)))
		return code;
	if (!(c->rope_theta > 0))
		return err_set(s->e, ERR_INPUT,
			"%s: neither rope_parameters.rope_theta nor rope_theta is there", s->path);
	return 0;
}

/* Which layers are full, from a list of "full" and "shared" or a string of letters F and S. */
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

/* The word of layer `il` in a list that says what this program does anyhow. */
typedef bool layer_word_ok(const struct convert_config *c, uint32_t il, const char *word);

static bool mlp_word_ok(const struct convert_config *c, uint32_t il, const char *word)
{
	return !strcmp(word, il < c->n_dense ? "dense" : "sparse");
}

/* The old and the new name of attention to what an indexer selects. */
static bool attention_word_ok(const struct convert_config *c, uint32_t il, const char *word)
{
	(void)c;
	(void)il;
	return !strcmp(word, "indexed_attention") || !strcmp(word, "deepseek_sparse_attention");
}

static int check_words(const struct convert_config *c, const struct json_source *s, const char *key,
	layer_word_ok *ok, const char *want)
{
	const json_t *v = json_object_get(s->root, key);
	char text[VALUE_BYTES];
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_array(v) || json_array_size(v) != c->n_layers)
		return err_set(s->e, ERR_INPUT, "%s: key %s describes %zu layers, %u expected", s->path,
			key, json_array_size(v), c->n_layers);
	for (uint32_t il = 0; il < c->n_layers; il++) {
		const json_t *each = json_array_get(v, il);
		const char *word = json_string_value(each);
		if (!word || !ok(c, il, word))
			return err_set(s->e, ERR_INPUT, "%s: %s[%u] is %s, which contradicts %s", s->path, key,
				il, value_text(each, text), want);
	}
	return 0;
}

/* per_layer_config: settings of single layers, {"LAYER": {"KEY": VALUE}}. Only those that repeat
 * the setting of all layers are supported. */
static int check_per_layer(const struct json_source *s)
{
	json_t *v = json_object_get(s->root, "per_layer_config");
	const char *layer, *key;
	json_t *settings, *each;
	char text[VALUE_BYTES];
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_object(v))
		return err_set(s->e, ERR_INPUT, "%s: key per_layer_config is %s, an object expected",
			s->path, value_text(v, text));
	json_object_foreach(v, layer, settings)
	{
		if (!json_is_object(settings))
			return err_set(s->e, ERR_INPUT,
				"%s: per_layer_config: layer %.20s is %s, an object expected", s->path, layer,
				value_text(settings, text));
		json_object_foreach(settings, key, each)
		{
			if (!json_equal(each, json_object_get(s->root, key)))
				return err_set(s->e, ERR_INPUT,
					"%s: per_layer_config: key %.60s of layer %.20s is %s: a setting of one layer"
					" is not supported",
					s->path, key, layer, value_text(each, text));
		}
	}
	return 0;
}

static int check_layers(const struct convert_config *c, const struct json_source *s)
{
	char dense[64];
	int code;
	snprintf(dense, sizeof dense, "first_k_dense_replace = %u", c->n_dense);
	if ((code = check_words(c, s, "mlp_layer_types", mlp_word_ok, dense)) ||
		(code = check_words(c, s, "layer_types", attention_word_ok, "attention with an indexer")))
		return code;
	return check_per_layer(s);
}

/* quantization_config: what is stored must be FP8 with a scale for each 128 x 128 block. */
static int check_quantization(const struct json_source *s)
{
	json_t *v = json_object_get(s->root, "quantization_config");
	char text[VALUE_BYTES];
	int code = 0;
	if (!v || json_is_null(v))
		return 0;
	char *place = mem_printf("%s: quantization_config", s->path);
	struct json_source in = {v, place, s->e};
	for (size_t i = 0; i < ARRAY_LEN(quant_words) && !code; i++)
		code = expect_str(&in, quant_words[i].key, quant_words[i].word, quant_words[i].required);
	const json_t *block = json_object_get(v, "weight_block_size");
	json_t *want = json_pack("[i,i]", DTYPE_SCALE_BLOCK, DTYPE_SCALE_BLOCK);
	if (!code && block && !json_is_null(block) && !json_equal(block, want))
		code =
			err_set(s->e, ERR_INPUT, "%s: key weight_block_size is %s, only [%d,%d] is supported",
				place, value_text(block, text), DTYPE_SCALE_BLOCK, DTYPE_SCALE_BLOCK);
	json_decref(want);
	free(place);
	return code;
}

static int check_aliases(const struct convert_config *c, const struct json_source *s)
{
	for (size_t i = 0; i < ARRAY_LEN(alias_keys); i++) {
		const struct alias_key *k = &alias_keys[i];
		const uint32_t want = *(const uint32_t *)((const char *)c + k->at);
		const json_t *v = json_object_get(s->root, k->key);
		char text[VALUE_BYTES];
		if (v && !json_is_null(v) && (!json_is_integer(v) || json_integer_value(v) != want))
			return err_set(s->e, ERR_INPUT, "%s: key %s is %s, but %s is %u", s->path, k->key,
				value_text(v, text), k->of, want);
	}
	return 0;
}

static int read_moe(struct convert_config *c, const struct json_source *s)
{
	int code;
	uint32_t freq;
	if ((code = get_u32_or(s, "moe_layer_freq", 1, 1, 1, &freq)))
		return code;
	const json_t *norm = json_object_get(s->root, "norm_topk_prob");
	if (!json_is_boolean(norm))
		return err_set(s->e, ERR_INPUT, "%s: key norm_topk_prob is missing or not a bool", s->path);
	c->norm_topk = json_is_true(norm);
	const json_t *tied = json_object_get(s->root, "tie_word_embeddings");
	if (tied && !json_is_null(tied) && !json_is_boolean(tied))
		return err_set(s->e, ERR_INPUT, "%s: key tie_word_embeddings is not a bool", s->path);
	c->tied = json_is_true(tied);
	return check_layers(c, s);
}

static int read_numbers(struct convert_config *c, const struct json_source *s)
{
	int code = 0;
	for (size_t i = 0; i < ARRAY_LEN(number_keys) && !code; i++) {
		const struct number_key *k = &number_keys[i];
		uint32_t max = k->limit == NO_LIMIT ? k->max : *(uint32_t *)((char *)c + k->limit);
		uint32_t *out = (uint32_t *)((char *)c + k->at);
		code = k->optional ? get_u32_or(s, k->key, k->min, max, k->fallback, out)
						   : get_u32(s, k->key, k->min, max, out);
	}
	for (size_t i = 0; i < ARRAY_LEN(real_keys) && !code; i++)
		code = get_f32(s, real_keys[i].key, (float *)((char *)c + real_keys[i].at));
	/* as transformers has it: a model may be cut to fewer layers than were dense */
	c->n_dense = MIN(c->n_dense, c->n_layers);
	return code ? code : check_aliases(c, s);
}

#define IS_KEY_OF(table, name)                                                                     \
	is_key_of((const char *)(table), sizeof *(table), ARRAY_LEN(table), name)

/* Whether `name` is the first member of one of n structs of `step` bytes. */
static bool is_key_of(const char *table, size_t step, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(*(const char *const *)(const void *)(table + i * step), name))
			return true;
	return false;
}

static bool is_known(const char *name)
{
	return IS_KEY_OF(number_keys, name) || IS_KEY_OF(real_keys, name) ||
		   IS_KEY_OF(fixed_words, name) || IS_KEY_OF(alias_keys, name) ||
		   IS_KEY_OF(fixed_bools, name) || IS_KEY_OF(other_keys, name);
}

/* Null, false, 0, "", [] and {}: the setting is off. */
static bool is_off(const json_t *v)
{
	const char *text = json_string_value(v);
	return json_is_null(v) || json_is_false(v) ||
		   (json_is_number(v) && json_number_value(v) == 0) || (text && !*text) ||
		   (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

/* A setting that this program does not know, by its name, would be computed wrongly in silence. */
static int check_unknown(const struct json_source *s)
{
	const char *name;
	json_t *v;
	char text[VALUE_BYTES];
	json_object_foreach(s->root, name, v)
	{
		for (size_t i = 0; i < ARRAY_LEN(setting_prefixes); i++)
			if (!strncmp(name, setting_prefixes[i], strlen(setting_prefixes[i])) && !is_off(v) &&
				!is_known(name))
				return err_set(s->e, ERR_INPUT,
					"%s: key %.60s is %s: this setting is not known here, so what it changes would"
					" not be computed",
					s->path, name, value_text(v, text));
	}
	return 0;
}

static int read_model(struct convert_config *c, const struct json_source *s)
{
	int code = 0;
	uint32_t width;
	for (size_t i = 0; i < ARRAY_LEN(fixed_words) && !code; i++)
		code = expect_str(s, fixed_words[i].key, fixed_words[i].word, fixed_words[i].required);
	for (size_t i = 0; i < ARRAY_LEN(fixed_bools) && !code; i++)
		code = expect_bool(s, fixed_bools[i].key, fixed_bools[i].value);
	if (code || (code = expect_str(s, "moe_router_dtype", "float32", false)) ||
		(code = check_quantization(s)) || (code = read_numbers(c, s)) ||
		(code = get_u32_or(s, "qk_head_dim", 1, 1u << 15, c->nope + c->rope, &width)))
		return code;
	if (width != c->nope + c->rope)
		return err_set(s->e, ERR_INPUT,
			"%s: qk_head_dim is %u, but qk_nope_head_dim + qk_rope_head_dim is %u", s->path, width,
			c->nope + c->rope);
	c->has_latent_eps = present(s, "latent_rms_norm_eps");
	if (c->has_latent_eps && (code = get_f32(s, "latent_rms_norm_eps", &c->latent_eps)))
		return code;
	/* drafts after the first of a step use its selection (src/forward/mtp.c) */
	if (c->n_nextn && (code = expect_bool(s, "index_share_for_mtp_iteration", true)))
		return code;
	if ((code = read_rope(c, s)) || (code = read_schedule(c, s)) || (code = read_moe(c, s)))
		return code;
	return check_unknown(s);
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
	json_t *root;
	int code = convert_json_load(path, &root, e);
	struct json_source s = {root, path, e};
	if (!code)
		code = read_model(c, &s);
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
		json_t *root;
		code = convert_json_load(path, &root, e);
		struct json_source s = {root, path, e};
		if (!code)
			code = read_generation(c, &s);
		json_decref(root);
	}
	free(path);
	return code;
}

/* ---- writing ---- */

/* The shortest decimal number that is this float. */
static json_t *json_float(float v)
{
	char text[32];
	for (int digits = 6; digits <= 9; digits++) {
		snprintf(text, sizeof text, "%.*g", digits, (double)v);
		if ((float)strtod(text, NULL) == v) /* as get_f32 reads it */
			break;
	}
	return json_real(strtod(text, NULL));
}

static bool is_schedule(const struct convert_config *c, uint32_t freq, uint32_t offset)
{
	uint32_t il = 0;
	while (il < c->n_layers && c->full[il] == config_index_full(il, freq, offset))
		il++;
	return il == c->n_layers;
}

/* The schedule of indexers as a list, and as frequency and offset where there are such: GLM-5.2's,
 * or else the smallest. */
static void write_schedule(const struct convert_config *c, json_t *root)
{
	uint32_t freq = 4, offset = 3;
	json_t *types = json_array();
	for (uint32_t il = 0; il < c->n_layers; il++)
		json_array_append_new(types, json_string(c->full[il] ? "full" : "shared"));
	json_object_set_new(root, "indexer_types", types);
	if (!is_schedule(c, freq, offset))
		for (freq = 1, offset = 0; freq <= 8 && !is_schedule(c, freq, offset);)
			if (freq == 1 || ++offset > 8)
				freq++, offset = 0;
	if (freq > 8)
		return;
	json_object_set_new(root, "index_topk_freq", json_integer(freq));
	json_object_set_new(root, "index_skip_topk_offset", json_integer(offset));
}

static void write_tokens(const struct convert_config *c, json_t *root)
{
	json_t *stops = json_array();
	for (uint32_t i = 0; i < c->n_stops; i++)
		json_array_append_new(stops, json_integer(c->stops[i]));
	if (c->n_stops)
		json_object_set(root, "eos_token_id", stops);
	json_decref(stops);
	if (c->has_pad)
		json_object_set_new(root, "pad_token_id", json_integer(c->pad));
}

json_t *convert_config_json(const struct convert_config *c, const char *dtype)
{
	json_t *root = json_object(), *mlp = json_array();
	json_object_set_new(root, "architectures", json_pack("[s]", "GlmMoeDsaForCausalLM"));
	for (size_t i = 0; i < ARRAY_LEN(fixed_words); i++)
		json_object_set_new(root, fixed_words[i].key, json_string(fixed_words[i].word));
	json_object_set_new(root, "dtype", json_string(dtype));
	for (size_t i = 0; i < ARRAY_LEN(number_keys); i++)
		json_object_set_new(root, number_keys[i].key,
			json_integer(*(const uint32_t *)((const char *)c + number_keys[i].at)));
	for (size_t i = 0; i < ARRAY_LEN(real_keys); i++)
		json_object_set_new(root, real_keys[i].key,
			json_float(*(const float *)((const char *)c + real_keys[i].at)));
	if (c->has_latent_eps)
		json_object_set_new(root, "latent_rms_norm_eps", json_float(c->latent_eps));
	for (size_t i = 0; i < ARRAY_LEN(fixed_bools); i++)
		json_object_set_new(root, fixed_bools[i].key, json_boolean(fixed_bools[i].value));
	json_object_set_new(root, "norm_topk_prob", json_boolean(c->norm_topk));
	json_object_set_new(root, "tie_word_embeddings", json_boolean(c->tied));
	json_object_set_new(root, "num_key_value_heads", json_integer(c->n_heads));
	json_object_set_new(root, "qk_head_dim", json_integer(c->nope + c->rope));
	json_object_set_new(root, "head_dim", json_integer(c->nope));
	json_object_set_new(root, "moe_layer_freq", json_integer(1));
	json_object_set_new(root, "rope_parameters",
		json_pack("{s:o,s:s}", "rope_theta", json_float(c->rope_theta), "rope_type", "default"));
	write_schedule(c, root);
	for (uint32_t il = 0; il < c->n_layers; il++)
		json_array_append_new(mlp, json_string(il < c->n_dense ? "dense" : "sparse"));
	json_object_set_new(root, "mlp_layer_types", mlp);
	if (c->n_nextn)
		json_object_set_new(root, "index_share_for_mtp_iteration", json_true());
	json_object_set_new(root, "attention_dropout", json_real(0));
	json_object_set_new(root, "initializer_range", json_real(0.02));
	json_object_set_new(root, "use_cache", json_true());
	json_object_set_new(root, "ep_size", json_integer(1));
	write_tokens(c, root);
	return root;
}

json_t *convert_config_generation_json(const struct convert_config *c)
{
	json_t *root = json_object();
	write_tokens(c, root);
	if (c->has_temp || c->has_top_p)
		json_object_set_new(root, "do_sample", json_true());
	if (c->has_temp)
		json_object_set_new(root, "temperature", json_float(c->temp));
	if (c->has_top_p)
		json_object_set_new(root, "top_p", json_float(c->top_p));
	return root;
}
