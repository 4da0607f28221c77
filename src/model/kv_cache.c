/* SPDX-License-Identifier: MIT */
/* One arena, laid out layer by layer. One function serves sizing and layout. */
#include "src/model/kv_cache.h"

#include "src/base/num.h"

#include <string.h>

static size_t kv_cache_layout(struct kv_cache *kv, const struct model_config *c, bool with_mtp,
	enum dtype type, uint32_t capacity, uint8_t *arena)
{
	size_t used = 0, value = type == DTYPE_F32 ? 4 : 2;
	for (uint32_t i = c->first_layer; i < config_all_end(c, with_mtp); i++) {
		uint32_t widths[2] = {config_cache_width(c), c->index_full[i] ? c->index_dim : 0};
		for (int k = 0; k < 2; k++) {
			if (kv && widths[k]) {
				struct cache_view *v = k ? &kv->index_key[i] : &kv->latent[i];
				*v = (struct cache_view){
					.data = arena + used, .type = type, .width = (int)widths[k]};
			}
			used = num_align_up(used + (size_t)capacity * widths[k] * value, 256);
		}
	}
	return used;
}

size_t kv_cache_bytes(
	const struct model_config *c, bool with_mtp, enum dtype type, uint32_t capacity)
{
	return kv_cache_layout(NULL, c, with_mtp, type, capacity, NULL);
}

int kv_cache_init(struct kv_cache *kv, const struct model_config *c, bool with_mtp, enum dtype type,
	uint32_t capacity, struct backend *b, struct err *e)
{
	memset(kv, 0, sizeof *kv);
	size_t bytes = kv_cache_bytes(c, with_mtp, type, capacity);
	int rc = b->ops->alloc(b, MEM_DEVICE, bytes, &kv->arena, e);
	if (rc) {
		err_prefix(e, "KV cache of %u positions", capacity);
		err_hint(e, "a smaller -c needs less memory");
		return rc;
	}
	kv->arena_bytes = bytes;
	kv->capacity = capacity;
	kv_cache_layout(kv, c, with_mtp, type, capacity, kv->arena);
	return 0;
}

void kv_cache_fini(struct kv_cache *kv, struct backend *b)
{
	if (kv->arena)
		b->ops->free(b, MEM_DEVICE, kv->arena, kv->arena_bytes);
	memset(kv, 0, sizeof *kv);
}
