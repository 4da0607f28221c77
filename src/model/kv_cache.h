/* SPDX-License-Identifier: MIT */
/*
 * The KV caches of the layers computed here: one latent row (normalised KV latent and rotated key)
 * per layer and position, one index key per full layer and position. One pool holds the positions
 * of all sessions. A session owns a contiguous range of cache rows, so rows of several sessions can
 * be computed in one batch (batch.base).
 *
 *   latent[layer]    [capacity][kv_rank + head_rope]
 *   index_key[layer] [capacity][index_dim]            full layers only
 *   fetched          [capacity][kv_rank + head_rope]  only if the latents lie in host memory or
 *                                                     have 8 bits
 *
 * Latents of long contexts may lie in host memory (MEM_HOST): 91 KB a position of GLM-5.2 in 16
 * bits, of which attention reads those of 2,048 positions. Index keys, of which every one is read,
 * stay on the device. New rows are written through the link. Before a layer's attention the rows
 * that it has selected are copied to the same rows of `fetched` (op fetch_rows), and attention
 * reads these. `fetched` serves one layer after the other: what a layer left there is stale for the
 * next.
 *
 * Latents of 8 bits (backend.h: F8_E4M3): a step writes its rows to `fetched` and stores them from
 * there (op store_rows). Attention reads what fetch_rows decodes, of the step's own rows too: so no
 * number depends on how a prompt is cut.
 *
 * Rows at or beyond a session's length are undefined and never read: attention reads positions
 * 0..pos only.
 */
#ifndef GLM_MODEL_KV_CACHE_H
#define GLM_MODEL_KV_CACHE_H

#include "kernels/backend.h"
#include "src/model/config.h"

struct kv_cache_shape {
	enum dtype type; /* F16 or F32 */
	bool with_mtp;
	bool latents_on_host;
	bool latents_f8; /* type F16, and kv_rank a multiple of CACHE_F8_BLOCK */
};

struct kv_cache_bytes {
	size_t device, host; /* MEM_DEVICE, MEM_HOST */
};

struct kv_cache {
	struct cache_view latent[CONFIG_MAX_LAYERS];    /* incl. MTP when loaded; else data is NULL */
	struct cache_view index_key[CONFIG_MAX_LAYERS]; /* data NULL on shared layers */
	struct cache_view fetched;                      /* data NULL: attention reads `latent` itself */
	uint32_t capacity;                              /* positions */
	void *arena, *host;                             /* host: NULL if nothing lies there */
	struct kv_cache_bytes bytes;
};

/* Bytes of a row of a layer's latents. */
size_t kv_cache_latent_bytes(const struct model_config *c, const struct kv_cache_shape *s);

/* Bytes of `capacity` positions. */
struct kv_cache_bytes kv_cache_bytes(
	const struct model_config *c, const struct kv_cache_shape *s, uint32_t capacity);

/* Takes the memory of `capacity` positions; contents are undefined. ERR_MEMORY: *kv is zeroed. */
int kv_cache_init(struct kv_cache *kv, const struct model_config *c, const struct kv_cache_shape *s,
	uint32_t capacity, struct backend *b, struct err *e);
void kv_cache_fini(struct kv_cache *kv, struct backend *b); /* accepts a zeroed struct */

#endif
