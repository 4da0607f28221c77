/* SPDX-License-Identifier: MIT */
/*
 * glm-dsa keys -> struct model_config. Files of other writers lack some keys. A missing key is
 * derived where the specification says how (IndexShare schedule), has a default where all files
 * agree, and is an error otherwise.
 */
#include "src/model/config.h"

#include "src/base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define KEY(name) "glm-dsa." name

/* GLM-5.2's schedule, for files whose writers did not store one. */
#define DEFAULT_INDEX_FREQ   4
#define DEFAULT_INDEX_OFFSET 3

/* The longest context of a GLM-5.2 file; GLM-5 and 5.1 share the architecture name but not the
 * schedule. */
#define GLM52_CONTEXT 1048576

bool config_index_full(uint32_t layer, uint32_t freq, uint32_t offset)
{
	uint32_t shifted = layer + 1 > offset ? layer + 1 - offset : 0;
	return freq <= 1 || shifted % freq == 0;
}

static int key_error(
	const struct gguf *f, struct err *e, const char *key, uint64_t found, const char *expected)
{
	return err_set(e, ERR_INPUT, "%s: key %s is %llu, expected %s", gguf_path(f), key,
		(unsigned long long)found, expected);
}

/* A number in [1, limit]. */
static int read_count(
	const struct gguf *f, const char *key, uint32_t limit, uint32_t *out, struct err *e)
{
	int rc = gguf_get_u32(f, key, out, e);
	if (rc)
		return rc;
	if (*out < 1 || *out > limit) {
		char range[64];
		snprintf(range, sizeof range, "1 to %u", limit);
		return key_error(f, e, key, *out, range);
	}
	return 0;
}

/* A positive, finite number. */
static int check_positive(const struct gguf *f, const char *key, float v, struct err *e)
{
	if (isfinite(v) && v > 0)
		return 0;
	return err_set(
		e, ERR_INPUT, "%s: key %s is %g, expected a positive number", gguf_path(f), key, (double)v);
}

static int read_attention(const struct gguf *f, struct model_config *c, struct err *e)
{
	const char *path = gguf_path(f);
	uint32_t key_mla, value_mla, key_len, value_len, kv_heads;
	int rc;
	if ((rc = read_count(f, KEY("attention.head_count"), 4096, &c->n_heads, e)) ||
		(rc = read_count(f, KEY("attention.q_lora_rank"), 1 << 20, &c->q_rank, e)) ||
		(rc = read_count(f, KEY("attention.kv_lora_rank"), 1 << 16, &c->kv_rank, e)) ||
		(rc = read_count(f, KEY("rope.dimension_count"), 1 << 12, &c->head_rope, e)) ||
		(rc = read_count(f, KEY("attention.key_length_mla"), 1 << 16, &key_mla, e)) ||
		(rc = read_count(f, KEY("attention.value_length_mla"), 1 << 16, &value_mla, e)) ||
		(rc = gguf_get_u32_or(
			 f, KEY("attention.key_length"), c->kv_rank + c->head_rope, &key_len, e)) ||
		(rc = gguf_get_u32_or(f, KEY("attention.value_length"), c->kv_rank, &value_len, e)) ||
		(rc = gguf_get_u32_or(f, KEY("attention.head_count_kv"), 1, &kv_heads, e)))
		return rc;
	if (c->head_rope % 2)
		return key_error(f, e, KEY("rope.dimension_count"), c->head_rope, "an even number");
	if (key_mla <= c->head_rope)
		return err_set(e, ERR_INPUT, "%s: key %s is %u, expected more than the rotary part of %u",
			path, KEY("attention.key_length_mla"), key_mla, c->head_rope);
	if (key_len != c->kv_rank + c->head_rope || value_len != c->kv_rank || kv_heads != 1)
		return err_set(e, ERR_INPUT,
			"%s: attention.key_length, value_length, head_count_kv are %u, %u, %u, expected %u, "
			"%u, 1 (absorbed MLA)",
			path, key_len, value_len, kv_heads, c->kv_rank + c->head_rope, c->kv_rank);
	c->head_nope = key_mla - c->head_rope;
	c->head_value = value_mla;
	if ((rc = read_count(f, KEY("attention.indexer.head_count"), 4096, &c->index_heads, e)) ||
		(rc = read_count(f, KEY("attention.indexer.key_length"), 1 << 16, &c->index_dim, e)) ||
		(rc = read_count(f, KEY("attention.indexer.top_k"), 1 << 20, &c->index_top_k, e)))
		return rc;
	if (c->index_dim < c->head_rope)
		return err_set(e, ERR_INPUT, "%s: key %s is %u, expected at least the rotary part of %u",
			path, KEY("attention.indexer.key_length"), c->index_dim, c->head_rope);
	if ((rc = gguf_get_f32(f, KEY("rope.freq_base"), &c->rope_base, e)) ||
		(rc = gguf_get_f32(f, KEY("attention.layer_norm_rms_epsilon"), &c->rms_eps, e)) ||
		(rc = gguf_get_f32_or(
			 f, KEY("attention.latent_layer_norm_rms_epsilon"), 1e-5f, &c->latent_eps, e)) ||
		(rc = check_positive(f, KEY("rope.freq_base"), c->rope_base, e)) ||
		(rc = check_positive(f, KEY("attention.layer_norm_rms_epsilon"), c->rms_eps, e)) ||
		(rc = check_positive(f, KEY("attention.latent_layer_norm_rms_epsilon"), c->latent_eps, e)))
		return rc;
	c->index_eps = 1e-6f;
	return 0;
}

/* The schedule: stored types first, then stored frequency and offset, then what the context length
 * says. Presence of indexer tensors decides nothing: public files carry meaningless copies on
 * shared layers. */
static int read_index_types(const struct gguf *f, struct model_config *c, struct err *e)
{
	const char *key = KEY("attention.indexer.types");
	uint32_t freq, offset = 0;
	int rc;
	if (gguf_find(f, key)) {
		struct gguf_array a;
		if ((rc = gguf_get_ints(f, key, &a, e)))
			return rc;
		if (a.n != c->n_layers && a.n != c->n_layers + c->n_mtp)
			return err_set(e, ERR_INPUT, "%s: key %s has %llu entries, expected %u (one per layer)",
				gguf_path(f), key, (unsigned long long)a.n, c->n_layers);
		for (uint32_t i = 0; i < c->n_layers; i++)
			c->index_full[i] = gguf_array_i64(&a, i) != 0;
		c->index_types_from = "indexer.types of the file";
	} else {
		/* The offset has no default: transformers takes 2, GLM-5.2 is stored with 3, and another
		 * one gives other answers without an error. */
		if ((rc = gguf_get_u32_or(f, KEY("attention.indexer.top_k_frequency"), 0, &freq, e)) ||
			(freq > 1 &&
				(rc = gguf_get_u32(f, KEY("attention.indexer.skip_top_k_offset"), &offset, e))))
			return rc;
		if (freq) {
			c->index_types_from = "frequency and offset of the file";
		} else if (c->n_context >= GLM52_CONTEXT) {
			freq = DEFAULT_INDEX_FREQ;
			offset = DEFAULT_INDEX_OFFSET;
			c->index_types_from = "GLM-5.2's schedule (the file stores none)";
		} else {
			freq = 1;
			c->index_types_from =
				"every layer (the file stores none, and its context is shorter than GLM-5.2's)";
		}
		for (uint32_t i = 0; i < c->n_layers; i++)
			c->index_full[i] = config_index_full(i, freq, offset);
	}
	if (!c->index_full[0])
		return err_set(e, ERR_INPUT,
			"%s: layer 0 shares an indexer selection, but no layer stands below it", gguf_path(f));
	for (uint32_t i = 0; i < c->n_mtp; i++)
		c->index_full[c->n_layers + i] = true;
	return 0;
}

static int read_experts(const struct gguf *f, struct model_config *c, struct err *e)
{
	const char *path = gguf_path(f);
	uint32_t gating, n_shared;
	int rc;
	if ((rc = gguf_get_u32(f, KEY("leading_dense_block_count"), &c->n_dense, e)) ||
		(rc = read_count(f, KEY("expert_count"), CONFIG_MAX_EXPERTS, &c->n_experts, e)) ||
		(rc = read_count(f, KEY("expert_used_count"), CONFIG_MAX_USED, &c->n_used, e)) ||
		(rc = read_count(f, KEY("expert_shared_count"), 64, &n_shared, e)) ||
		(rc = read_count(f, KEY("expert_feed_forward_length"), 1 << 20, &c->ff_expert, e)) ||
		(rc = gguf_get_u32_or(f, KEY("expert_group_count"), 1, &c->n_group, e)) ||
		(rc = gguf_get_u32_or(f, KEY("expert_group_used_count"), 1, &c->n_group_used, e)) ||
		(rc = gguf_get_u32_or(f, KEY("expert_gating_func"), 2, &gating, e)) ||
		(rc = gguf_get_bool_or(f, KEY("expert_weights_norm"), true, &c->norm_weights, e)) ||
		(rc = gguf_get_f32(f, KEY("expert_weights_scale"), &c->weights_scale, e)) ||
		(rc = check_positive(f, KEY("expert_weights_scale"), c->weights_scale, e)))
		return rc;
	if (c->n_dense > c->n_layers)
		return err_set(e, ERR_INPUT, "%s: key %s is %u, expected at most the %u layers", path,
			KEY("leading_dense_block_count"), c->n_dense, c->n_layers);
	if (c->n_dense && (rc = read_count(f, KEY("feed_forward_length"), 1 << 24, &c->ff_dense, e)))
		return rc;
	if (c->n_used > c->n_experts)
		return err_set(e, ERR_INPUT, "%s: key %s is %u, expected at most the %u experts", path,
			KEY("expert_used_count"), c->n_used, c->n_experts);
	if (gating != 2)
		return key_error(f, e, KEY("expert_gating_func"), gating, "2 (sigmoid)");
	if (c->n_group < 1 || c->n_experts % c->n_group || c->n_group_used < 1 ||
		c->n_group_used > c->n_group || (c->n_group > 1 && c->n_experts / c->n_group < 2) ||
		(uint64_t)c->n_experts / c->n_group * c->n_group_used < c->n_used)
		return err_set(e, ERR_INPUT, "%s: %u of %u expert groups do not fit %u of %u experts", path,
			c->n_group_used, c->n_group, c->n_used, c->n_experts);
	c->ff_shared = c->ff_expert * n_shared;
	return 0;
}

int config_read(const struct gguf *f, struct model_config *c, struct err *e)
{
	const char *path = gguf_path(f);
	*c = (struct model_config){0};
	struct gguf_str s;
	uint32_t blocks;
	int rc;
	if ((rc = gguf_get_str(f, "general.architecture", &s, e)))
		return rc;
	if (s.len != strlen("glm-dsa") || memcmp(s.ptr, "glm-dsa", s.len))
		return err_set(e, ERR_INPUT, "%s: architecture is \"%.*s\", expected \"glm-dsa\"", path,
			(int)MIN(s.len, 64), s.ptr);
	if (gguf_find(f, "general.name") && !gguf_get_str(f, "general.name", &s, NULL))
		snprintf(c->name, sizeof c->name, "%.*s", (int)MIN(s.len, sizeof c->name - 1), s.ptr);
	err_plain(c->name); /* it is shown to people */

	if ((rc = read_count(f, KEY("block_count"), CONFIG_MAX_LAYERS, &blocks, e)) ||
		(rc = gguf_get_u32_or(f, KEY("nextn_predict_layers"), 0, &c->n_mtp, e)) ||
		(rc = read_count(f, KEY("embedding_length"), 1 << 20, &c->n_embd, e)) ||
		(rc = read_count(f, KEY("context_length"), 1 << 30, &c->n_context, e)))
		return rc;
	if (c->n_mtp > 1 || c->n_mtp >= blocks)
		return key_error(
			f, e, KEY("nextn_predict_layers"), c->n_mtp, "0 or 1, and fewer than block_count");
	c->n_layers = c->end_layer = blocks - c->n_mtp;

	const struct gguf_tensor *embed = gguf_need_tensor(f, "token_embd.weight", e);
	if (!embed)
		return e ? e->code : ERR_INPUT;
	if (embed->ne[1] < 1 || embed->ne[1] > INT32_MAX)
		return err_set(e, ERR_INPUT, "%s: token_embd.weight has %llu rows", path,
			(unsigned long long)embed->ne[1]);
	if ((rc = gguf_get_u32_or(f, KEY("vocab_size"), (uint32_t)embed->ne[1], &c->n_vocab, e)))
		return rc;
	if (c->n_vocab != embed->ne[1])
		return err_set(e, ERR_INPUT, "%s: key %s is %u, but token_embd.weight has %llu rows", path,
			KEY("vocab_size"), c->n_vocab, (unsigned long long)embed->ne[1]);

	if ((rc = read_attention(f, c, e)) || (rc = read_experts(f, c, e)) ||
		(rc = read_index_types(f, c, e)))
		return rc;
	if ((rc = gguf_get_f32_or(f, "general.sampling.temp", 1.0f, &c->sampling_temperature, e)) ||
		(rc = gguf_get_f32_or(f, "general.sampling.top_p", 0.95f, &c->sampling_top_p, e)))
		return rc;
	if (!isfinite(c->sampling_temperature) || c->sampling_temperature < 0)
		c->sampling_temperature = 1.0f;
	if (!(c->sampling_top_p > 0 && c->sampling_top_p <= 1))
		c->sampling_top_p = 0.95f;
	return 0;
}
