/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint's config.json, as far as a GGUF needs it, checked. What this program cannot run
 * (another architecture, rope scaling, biases) is refused by name. So is a key that contradicts
 * what the program computes; one that repeats it is accepted:
 * - every rope_theta of the file is the same; every type of RoPE is "default";
 * - num_key_value_heads, num_experts, num_local_experts, mlp_layer_types, layer_types,
 *   per_layer_config, moe_router_dtype and quantization_config say nothing new;
 * - indexer_types wins over a pattern, a pattern over frequency and offset, as in transformers.
 * An unknown key is refused if its name has the prefix of a setting ("index_", "moe_", ...), unless
 * its value means "off" (null, false, 0, empty). Other unknown keys are taken for metadata.
 * Known traps: head_dim means nothing here; rope_theta sits in rope_parameters; class defaults of
 * the library differ from released values, so nothing that matters has a default.
 */
#ifndef GLM_CHECKPOINT_CONVERT_CONFIG_H
#define GLM_CHECKPOINT_CONVERT_CONFIG_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONVERT_MAX_LAYERS 1024
#define CONVERT_MAX_STOPS  32

struct convert_config {
	uint32_t n_layers; /* of the trunk */
	uint32_t n_nextn;  /* MTP layers stored behind them: 0 or 1 */
	uint32_t hidden, vocab, max_positions;
	uint32_t n_heads, q_lora, kv_lora, nope, rope, v_dim;
	uint32_t index_heads, index_dim, index_topk;
	bool full[CONVERT_MAX_LAYERS]; /* [n_layers] the layer has its own indexer */
	/* n_dense: at most n_layers, also where first_k_dense_replace is more */
	uint32_t n_dense, dense_width, moe_width, n_experts, n_used, n_shared, n_group, n_group_used;
	bool norm_topk;
	bool tied; /* the head is the embedding, and no tensor of its own */
	float routed_scale, rms_eps, rope_theta;
	bool has_latent_eps;
	float latent_eps;
	/* [n_stops] eos_token_id of generation_config.json, else of config.json */
	uint32_t stops[CONVERT_MAX_STOPS];
	uint32_t n_stops;
	bool has_pad;
	uint32_t pad;
	bool has_temp, has_top_p;
	float temp, top_p;
};

/* Reads DIR/config.json and, if there, DIR/generation_config.json. */
int convert_config_read(struct convert_config *c, const char *dir, struct err *e);

/* One config.json alone. */
int convert_config_read_file(struct convert_config *c, const char *path, struct err *e);

struct json_t;
/* Reads the JSON object in a regular file of at most 64 MiB. *root: the caller's reference, NULL on
 * error. ERR_INPUT: the file is missing, too large, no JSON or no object; else errors of
 * file_map_open and json_parse. */
int convert_json_load(const char *path, struct json_t **root, struct err *e);

/* The other direction, for transformers: the caller owns the reference. `dtype`: "bfloat16" or
 * "float32". Numbers as the struct has them. Derived, as the released file has them:
 * - architectures, head_dim, qk_head_dim, num_key_value_heads, moe_layer_freq, mlp_layer_types,
 *   index_share_for_mtp_iteration;
 * - index_topk_freq and index_skip_topk_offset, where the schedule has such;
 * - attention_dropout, initializer_range, use_cache, ep_size: constants that no computation here
 *   depends on.
 * Left out, since they depend on a library's version or repeat a default: transformers_version,
 * bos_token_id, index_topk_pattern, pretraining_tp. */
struct json_t *convert_config_json(const struct convert_config *c, const char *dtype);
/* generation_config.json: stop ids, padding, and sampling where the struct has it. */
struct json_t *convert_config_generation_json(const struct convert_config *c);

/* Is layer `il` (trunk or MTP) one with an indexer? MTP layers are. */
static inline bool convert_layer_full(const struct convert_config *c, uint32_t il)
{
	return il >= c->n_layers || c->full[il];
}

#endif
