/* SPDX-License-Identifier: MIT */
/*
 * The shape of a model, read from the `glm-dsa.*` keys of a GGUF (specification sections 1, 2.6
 * and 4.2). When config_read succeeds, every relation between the numbers that the forward pass
 * relies on holds.
 */
#ifndef GLM_MODEL_CONFIG_H
#define GLM_MODEL_CONFIG_H

#include "src/base/err.h"
#include "src/format/gguf.h"

#include <stdbool.h>
#include <stdint.h>

#define CONFIG_MAX_LAYERS  512
#define CONFIG_MAX_EXPERTS 4096
#define CONFIG_MAX_USED    64

struct model_config {
	char name[128];    /* general.name, or "" */
	uint32_t n_layers; /* trunk layers, without MTP */
	uint32_t n_mtp;    /* MTP layers stored after the trunk: 0 or 1 */
	/* Trunk layers [first_layer, end_layer): the ones that whoever has this copy of the
	 * configuration loads and computes. config_read sets all of them; a stage has fewer. */
	uint32_t first_layer, end_layer;
	uint32_t n_embd;     /* hidden size */
	uint32_t n_vocab;    /* rows of embedding and head, padding included */
	uint32_t n_context;  /* positions the model was made for */
	uint32_t n_heads;    /* attention heads */
	uint32_t q_rank;     /* q latent */
	uint32_t kv_rank;    /* KV latent */
	uint32_t head_nope;  /* part of a query head without position */
	uint32_t head_rope;  /* rotary part, also of the cached key */
	uint32_t head_value; /* width of a value head */
	uint32_t n_dense;    /* leading layers with a dense feed-forward network */
	uint32_t ff_dense;   /* its width */
	uint32_t n_experts;  /* routed experts per layer */
	uint32_t n_used;     /* of which a token uses this many */
	uint32_t ff_expert;  /* width of a routed expert */
	uint32_t ff_shared;  /* width of the shared expert (all shared experts together) */
	uint32_t n_group, n_group_used;
	bool norm_weights;   /* routing weights are normalised */
	float weights_scale; /* routed scaling factor */
	uint32_t index_heads, index_dim, index_top_k;
	float rope_base;
	float rms_eps;    /* every RMS norm but the two latent ones */
	float latent_eps; /* q_a_norm and kv_a_norm */
	float index_eps;  /* the indexer's layer norm: 1e-6 */
	/* per layer incl. MTP: it runs its own indexer; else it shares the selection of the one below
	 */
	bool index_full[CONFIG_MAX_LAYERS];
	const char *index_types_from; /* where that schedule comes from, for messages; static text */
	float sampling_temperature, sampling_top_p; /* general.sampling.*, 1.0 and 0.95 when absent */
};

/* Derived widths. */
static inline uint32_t config_head_qk(const struct model_config *c)
{
	return c->head_nope + c->head_rope;
}
static inline uint32_t config_cache_width(const struct model_config *c)
{
	return c->kv_rank + c->head_rope;
}
static inline uint32_t config_n_moe(const struct model_config *c)
{
	return c->n_layers - c->n_dense;
} /* trunk */
static inline bool config_is_moe(const struct model_config *c, uint32_t layer)
{
	return layer >= c->n_dense;
}

/* Whether the end of the model is computed here: final norm, head, MTP layer. */
static inline bool config_has_end(const struct model_config *c)
{
	return c->end_layer == c->n_layers;
}
/* One past the last layer computed here, the MTP layer included if the end is. */
static inline uint32_t config_all_end(const struct model_config *c, bool with_mtp)
{
	return c->end_layer + (with_mtp && config_has_end(c) ? c->n_mtp : 0);
}

/* Reads and checks. ERR_INPUT with the key, what was found and what was expected. */
int config_read(const struct gguf *file, struct model_config *out, struct err *e);

/* The IndexShare schedule by frequency and offset (specification 2.6): layer i is full iff
 * max(i - offset + 1, 0) mod freq == 0. Frequency 4 and offset 3 are GLM-5.2's. */
bool config_index_full(uint32_t layer, uint32_t freq, uint32_t offset);

#endif
