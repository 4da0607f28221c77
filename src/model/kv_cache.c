/* SPDX-License-Identifier: MIT */
/* Arenas, laid out layer by layer. One function serves sizing and layout. */
#include "src/model/kv_cache.h"

#include "src/base/num.h"

#include <string.h>

/* Places n rows of `width` values at *used and moves it; NULL: counts only. */
static struct cache_view place(
	uint8_t *arena, size_t *used, const struct kv_cache_shape *s, uint32_t n, uint32_t width)
{
	const struct cache_view v = {
		.data = arena ? arena + *used : NULL, .type = s->type, .width = (int)width};
	*used = num_align_up(*used + (size_t)n * width * (s->type == DTYPE_F32 ? 4 : 2), 256);
	return v;
}

static struct kv_cache_bytes kv_cache_layout(struct kv_cache *kv, const struct model_config *c,
	const struct kv_cache_shape *s, uint32_t capacity)
{
	struct kv_cache_bytes used = {0};
	uint8_t *device = kv ? kv->arena : NULL, *host = kv ? kv->host : NULL;
	struct kv_cache unused;
	struct kv_cache *to = kv ? kv : &unused;
	for (uint32_t i = c->first_layer; i < config_all_end(c, s->with_mtp); i++) {
		to->latent[i] = place(s->latents_on_host ? host : device,
			s->latents_on_host ? &used.host : &used.device, s, capacity, config_cache_width(c));
		if (c->index_full[i])
			to->index_key[i] = place(device, &used.device, s, capacity, c->index_dim);
	}
	if (s->latents_on_host)
		to->fetched = place(device, &used.device, s, capacity, config_cache_width(c));
	return used;
}

struct kv_cache_bytes kv_cache_bytes(
	const struct model_config *c, const struct kv_cache_shape *s, uint32_t capacity)
{
	return kv_cache_layout(NULL, c, s, capacity);
}

int kv_cache_init(struct kv_cache *kv, const struct model_config *c, const struct kv_cache_shape *s,
	uint32_t capacity, struct backend *b, struct err *e)
{
	memset(kv, 0, sizeof *kv);
	kv->bytes = kv_cache_bytes(c, s, capacity);
	kv->capacity = capacity;
	int rc = b->ops->alloc(b, MEM_DEVICE, kv->bytes.device, &kv->arena, e);
	if (!rc && kv->bytes.host)
		rc = b->ops->alloc(b, MEM_HOST, kv->bytes.host, &kv->host, e);
	if (rc) {
		kv_cache_fini(kv, b);
		err_prefix(e, "KV cache of %u positions", capacity);
		err_hint(e, "a smaller -c needs less memory");
		return rc;
	}
	kv_cache_layout(kv, c, s, capacity);
	return 0;
}

void kv_cache_fini(struct kv_cache *kv, struct backend *b)
{
	if (kv->arena)
		b->ops->free(b, MEM_DEVICE, kv->arena, kv->bytes.device);
	if (kv->host)
		b->ops->free(b, MEM_HOST, kv->host, kv->bytes.host);
	memset(kv, 0, sizeof *kv);
}
