/* SPDX-License-Identifier: MIT */
/*
 * The KV caches of the layers computed here: one latent row (normalised KV latent and rotated key)
 * per layer and position, one index key per full layer and position. One pool holds the positions
 * of all sessions. A session owns a contiguous range of cache rows, so rows of several sessions can
 * be computed in one batch (batch.base).
 *
 *   latent[layer]    [capacity][kv_rank + head_rope]
 *   index_key[layer] [capacity][index_dim]            full layers only
 *
 * Rows at or beyond a session's length are undefined and never read: attention reads positions
 * 0..pos only.
 */
#ifndef GLM_MODEL_KV_CACHE_H
#define GLM_MODEL_KV_CACHE_H

#include "kernels/backend.h"
#include "src/model/config.h"

struct kv_cache {
	struct cache_view latent[CONFIG_MAX_LAYERS];    /* incl. MTP when loaded; else data is NULL */
	struct cache_view index_key[CONFIG_MAX_LAYERS]; /* data NULL on shared layers */
	uint32_t capacity;                              /* positions */
	void *arena;
	size_t arena_bytes;
};

/* Bytes of `capacity` positions; type F16 or F32. */
size_t kv_cache_bytes(
	const struct model_config *c, bool with_mtp, enum dtype type, uint32_t capacity);

int kv_cache_init(struct kv_cache *kv, const struct model_config *c, bool with_mtp, enum dtype type,
	uint32_t capacity, struct backend *b, struct err *e);
void kv_cache_fini(struct kv_cache *kv, struct backend *b); /* accepts a zeroed struct */

#endif
