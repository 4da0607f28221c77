/* SPDX-License-Identifier: MIT */
/*
 * The ids of even and odd layers have buffers of their own: the device may write those of layer
 * L + 1 while the host still reads those of L. It cannot get to L + 2 before the host has served
 * L + 1.
 *
 * The stream is taken before the layer's own network has been added. On the pocket model the shared
 * expert's output adds about 1 % to the hits (tests/golden/lookahead_ref.py). The output of all
 * experts added 7 % on an earlier one, but it comes an expert phase too late.
 */
#include "src/forward/moe/lookahead.h"

#include "src/base/num.h"
#include "src/forward/ffn.h"
#include "src/forward/model.h"

uint32_t lookahead_max_rows(uint32_t max_rows)
{
	return MIN(max_rows, PREFILL_ROWS - 1);
}

uint32_t lookahead_reach(const struct model *m, uint32_t layer, int rows)
{
	const struct model_config *c = &m->config;
	if (m->source->lookahead <= 0 || !m->source->ops->prefetch ||
		moe_step_use(m, rows) != EXPERT_DECODE || rows > (int)lookahead_max_rows(m->ws.max_rows) ||
		layer + 1 < c->n_dense ||
		layer + 1 >= c->end_layer) /* so all layers ahead are MoE layers */
		return 0;
	uint32_t left = c->end_layer - 1 - layer,
			 reach = (uint32_t)MIN(m->source->lookahead, LOOKAHEAD_MAX);
	return MIN(left, reach);
}

/* [rows][n_used]: what was predicted in `layer` for `distance` layers further. */
static uint64_t *predicted_ids(const struct model *m, uint32_t layer, uint32_t distance)
{
	size_t at = (layer % 2) * LOOKAHEAD_MAX + distance - 1;
	return m->ws.predicted_ids + at * lookahead_max_rows(m->ws.max_rows) * m->config.n_used;
}

int lookahead_routes(const struct model *m, uint32_t layer, int rows, struct route *routes)
{
	const struct model_config *c = &m->config;
	size_t max_rows = lookahead_max_rows(m->ws.max_rows);
	uint32_t reach = lookahead_reach(m, layer, rows);
	for (uint32_t d = 1; d <= reach; d++) {
		struct route *r = &routes[d - 1];
		*r = moe_route(m, layer + d);
		r->h = m->ws.predicted_h + (d - 1) * max_rows * c->n_embd;
		r->logits = m->ws.predicted_logits + (d - 1) * max_rows * c->n_experts;
		r->expert_ids = predicted_ids(m, layer, d);
	}
	return (int)reach;
}

void lookahead_enqueued(struct model *m, uint32_t layer, uint64_t fence, int rows)
{
	if (lookahead_reach(m, layer, rows))
		m->prediction = (struct prediction){.fence = fence, .layer = layer, .rows = rows};
}

int lookahead_prefetch(struct model *m, struct err *e)
{
	struct prediction *p = &m->prediction;
	if (!p->fence)
		return 0;
	struct backend *b = m->backend;
	struct expert_source *s = m->source;
	uint32_t reach = lookahead_reach(m, p->layer, p->rows);
	int n_used = (int)m->config.n_used, n = p->rows * n_used, rc = 0;
	int32_t ids[n];
	for (uint32_t d = 1; d <= reach && !rc; d++) {
		rc = b->ops->wait_expert_ids(b, p->fence, predicted_ids(m, p->layer, d), n, ids, e);
		for (int draft = 0; draft < 2; draft++) /* rows that may be dropped come last */
			for (int r = 0; r < p->rows && !rc; r++)
				if (draft == (m->plan.draft && m->plan.draft[r]))
					s->ops->prefetch(s, (int)(p->layer + d), ids + r * n_used, n_used, (int)d);
	}
	p->fence = 0;
	return rc;
}
