/* SPDX-License-Identifier: MIT */
/* Arenas, laid out layer by layer. One function serves sizing and layout. */
#include "src/model/kv_cache.h"

#include "src/base/num.h"

#include <string.h>

static size_t row_bytes(const struct kv_cache_shape *s, uint32_t width)
{
	return width * (s->type == DTYPE_F32 ? sizeof(float) : 2);
}

size_t kv_cache_latent_bytes(const struct model_config *c, const struct kv_cache_shape *s)
{
	const uint32_t width = config_cache_width(c);
	return s->latents_f8 ? cache_f8_row_bytes((int)width, (int)c->kv_rank) : row_bytes(s, width);
}

/* A view of n rows of `row` bytes at arena + *used, which is advanced behind them. arena NULL: the
 * view has no data. */
static struct cache_view place_rows(
	uint8_t *arena, size_t *used, enum dtype type, uint32_t width, size_t row, uint32_t n)
{
	const struct cache_view v = {
		.data = arena ? arena + *used : NULL, .type = type, .width = (int)width};
	*used = num_align_up(*used + n * row, 256);
	return v;
}

static struct kv_cache_bytes kv_cache_layout(struct kv_cache *kv, const struct model_config *c,
	const struct kv_cache_shape *s, uint32_t capacity)
{
	struct kv_cache_bytes used = {0};
	uint8_t *device = kv ? kv->arena : NULL, *host = kv ? kv->host : NULL;
	struct kv_cache unused;
	struct kv_cache *to = kv ? kv : &unused;
	const uint32_t width = config_cache_width(c);
	const size_t latent = kv_cache_latent_bytes(c, s);
	uint8_t *to_latents = s->latents_on_host ? host : device;
	size_t *latents_used = s->latents_on_host ? &used.host : &used.device;
	for (uint32_t i = c->first_layer; i < config_all_end(c, s->with_mtp); i++) {
		to->latent[i] = place_rows(to_latents, latents_used,
			s->latents_f8 ? DTYPE_F8_E4M3 : s->type, width, latent, capacity);
		if (c->index_full[i])
			to->index_key[i] = place_rows(
				device, &used.device, s->type, c->index_dim, row_bytes(s, c->index_dim), capacity);
	}
	if (s->latents_on_host || s->latents_f8)
		to->fetched =
			place_rows(device, &used.device, s->type, width, row_bytes(s, width), capacity);
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
