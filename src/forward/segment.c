/* SPDX-License-Identifier: MIT */
/* The upload that begins a step, and the keys of captured graphs. */
#include "src/forward/segment.h"

#include "src/base/log.h"
#include "src/base/num.h"

#include <string.h>

/* The least power of two above max_pos, less one. Grids and scratch are sized by it, and a captured
 * segment serves until the next power of two; each op reads pos[r] for the work there is. */
static int32_t round_up_max_pos(int32_t max_pos)
{
	int32_t limit = 255;
	while (limit < max_pos && limit < INT32_MAX / 2)
		limit = 2 * limit + 1;
	return MAX(limit, max_pos);
}

/* Copies the rows of the mapped embedding that the tokens name into the upload of the step;
 * ws.embed becomes the table that holds these rows on the device. */
static void gather_embedding(struct model *m, int n, const int32_t *tokens)
{
	struct workspace *ws = &m->ws;
	const uint8_t *table = m->weights.embed.data;
	size_t at = workspace_step_embed((uint32_t)n), row = ws->embed_row_bytes;
	for (int r = 0; r < n; r++)
		memcpy(m->step_host + at + (size_t)r * row, table + (size_t)tokens[r] * row, row);
	ws->embed.data = ws->step + at;
	ws->embed.n_out = n;
	ws->embed.stack_bytes = (size_t)n * row;
}

struct batch step_begin(
	struct model *m, int n, const int32_t *tokens, const int32_t *pos, const int32_t *base)
{
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	if (n < 1 || (uint32_t)n > ws->max_rows)
		bug("a step of %d rows, the workspace has %u", n, ws->max_rows);
	size_t bytes = (size_t)n * sizeof(int32_t);
	int32_t *host = (int32_t *)(void *)m->step_host;
	ws->tokens = (int32_t *)(void *)ws->step;
	ws->pos = ws->tokens + n;
	ws->base = ws->pos + n;
	memcpy(host, tokens, bytes);
	memcpy(host + n, pos, bytes);
	memcpy(host + 2 * n, base, bytes);
	ws->embed = m->weights.embed;
	if (ws->embed_row_bytes) {
		gather_embedding(m, n, tokens);
		for (int r = 0; r < n; r++)
			host[r] = r;
	}
	b->ops->upload(b, ws->step, m->step_host, workspace_step_bytes(ws, (uint32_t)n));
	struct batch batch = {.n = n, .pos = ws->pos, .base = ws->base};
	for (int r = 0; r < n; r++)
		batch.max_pos = MAX(batch.max_pos, pos[r]);
	if (m->capture)
		batch.max_pos = round_up_max_pos(batch.max_pos);
	return batch;
}

_Static_assert(GRAPH_ROWS < 128, "seven bits of a key");

enum segment_mode segment_begin(struct model *m, struct kv_cache *kv, uint32_t first,
	const struct batch *rows, uint32_t variant)
{
	struct backend *b = m->backend;
	if (!m->capture || m->observation) /* a replayed graph shows an observer nothing */
		return SEGMENT_EAGER;
	if (m->captured_kv != kv->arena) /* the graphs hold its addresses */
		b->ops->segments_drop(b);
	m->captured_kv = kv->arena;
	uint64_t key = (uint64_t)first << 46 | (uint64_t)rows->n << 39 | (uint64_t)variant << 32 |
				   (uint32_t)rows->max_pos;
	return b->ops->segment_begin(b, key);
}
