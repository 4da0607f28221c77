/* SPDX-License-Identifier: MIT */
/* Rows of the KV caches, wherever a layer lies: on a stage of this process or on another rank. */
#include "src/base/num.h"
#include "src/engine/engine_internal.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/session/session_blocks.h"
#include "src/engine/stages/pipeline.h"

#include <string.h>

static bool is_remote(const struct engine *g, uint32_t layer)
{
	return g->ranks && engine_ranks_has(g->ranks, layer);
}

static const struct cache_view *view_of(const struct stage *s, uint32_t layer, bool index_key)
{
	return index_key ? &s->kv.index_key[layer] : &s->kv.latent[layer];
}

size_t engine_row_bytes(const struct engine *g, uint32_t layer, bool index_key)
{
	const struct model_config *c = &g->config;
	const size_t value = g->stages->plan.kv_shape.type == DTYPE_F32 ? 4 : 2;
	if (!is_remote(g, layer) && !view_of(engine_stage_of(g, layer), layer, index_key)->data)
		return 0;
	if (!index_key)
		return kv_cache_latent_bytes(c, &g->stages->plan.kv_shape);
	return c->index_full[layer] ? c->index_dim * value : 0;
}

size_t engine_most_row_bytes(const struct engine *g)
{
	const size_t row = config_cache_width(&g->config) * sizeof(float);
	return MAX(MAX(row, g->config.index_dim * sizeof(float)), BLOCK_MAX_BYTES);
}

/* Of a row of a layer here. */
static uint8_t *row_address(
	const struct engine *g, const struct stage *s, uint32_t layer, bool index_key, uint32_t row)
{
	return (uint8_t *)view_of(s, layer, index_key)->data +
		   (size_t)row * engine_row_bytes(g, layer, index_key);
}

/* Of a layer of another rank, in messages of engine_most_row_bytes: one of the two pointers. */
static int remote_rows(
	struct engine *g, struct rank_command which, void *out, const void *data, struct err *e)
{
	const size_t bytes = engine_row_bytes(g, which.layer, which.is_index_key);
	const uint32_t most = (uint32_t)(engine_most_row_bytes(g) / bytes), n = which.n;
	int rc = 0;
	for (uint32_t done = 0; done < n && !rc; done += which.n, which.row += which.n) {
		which.n = MIN(n - done, most);
		if (out)
			rc = engine_ranks_read_rows(g->ranks, &which, bytes, (uint8_t *)out + done * bytes, e);
		else if (data)
			rc = engine_ranks_write_rows(
				g->ranks, &which, bytes, (const uint8_t *)data + done * bytes, e);
	}
	return rc;
}

int engine_read_rows(struct engine *g, uint32_t layer, bool index_key, uint32_t row, uint32_t n,
	void *out, struct err *e)
{
	const struct rank_command which = {
		.layer = layer, .is_index_key = index_key, .row = row, .n = n};
	pipeline_settle(g->pipeline);
	if (is_remote(g, layer))
		return remote_rows(g, which, out, NULL, e);
	struct stage *s = engine_stage_of(g, layer);
	return s->backend->ops->download(s->backend, out, row_address(g, s, layer, index_key, row),
		n * engine_row_bytes(g, layer, index_key), e);
}

int engine_write_rows(struct engine *g, uint32_t layer, bool index_key, uint32_t row, uint32_t n,
	const void *data, struct err *e)
{
	const struct rank_command which = {
		.layer = layer, .is_index_key = index_key, .row = row, .n = n};
	pipeline_settle(g->pipeline);
	if (is_remote(g, layer))
		return remote_rows(g, which, NULL, data, e);
	struct stage *s = engine_stage_of(g, layer);
	uint8_t *to = row_address(g, s, layer, index_key, row);
	const size_t bytes = n * engine_row_bytes(g, layer, index_key);
	if (!s->kv.host || index_key) {
		s->backend->ops->upload(s->backend, to, data, bytes);
		return 0;
	}
	int rc = s->backend->ops->wait(s->backend, e); /* MEM_HOST: the host writes it itself */
	if (!rc)
		memcpy(to, data, bytes);
	return rc;
}

int engine_copy_rows(
	struct engine *g, uint32_t to, uint32_t from, uint32_t n, uint32_t n_mtp, struct err *e)
{
	const uint32_t trunk = g->config.n_layers;
	pipeline_settle(g->pipeline);
	if (g->ranks && n)
		engine_ranks_command(g->ranks,
			&(struct rank_command){.code = RANK_COPY_ROWS, .row = to, .from = from, .n = n});
	for (uint32_t layer = g->stages->config.first_layer; layer <= trunk; layer++) {
		struct stage *s = engine_stage_of(g, layer);
		const uint32_t rows = layer < trunk ? n : n_mtp;
		for (int index_key = 0; index_key < 2 && rows; index_key++) {
			const size_t bytes = engine_row_bytes(g, layer, index_key);
			if (bytes)
				s->backend->ops->copy(s->backend, row_address(g, s, layer, index_key, to),
					row_address(g, s, layer, index_key, from), rows * bytes);
		}
	}
	return engine_wait(g, e);
}
