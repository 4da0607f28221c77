/* SPDX-License-Identifier: MIT */
/*
 * Router lookahead: the residual stream changes slowly from layer to layer, so the router of layer
 * L + d, applied to the stream that the router of layer L sees, names most of the experts that
 * layer L + d will want. It runs in the same ops as that router and under the same mark, so a card
 * does next to nothing for it: reading for the coming layers begins while the experts of this one
 * are awaited or computed. On the pocket model the best four named for L + 1, L + 2, L + 3 hold 74,
 * 62 and 53 % of the true four; with the shared expert of L 75, 63 and 53 %, with all experts of L
 * 81, 66 and 56 %, an expert phase too late. The last dense layer guesses too, so that the first
 * experts of a token are no surprise. The real router always decides; a guess only moves bytes.
 */
#include "src/model/forward.h"

#include "src/base/num.h"

uint32_t lookahead_reach(const struct model *m, uint32_t layer, int rows)
{
	const struct model_config *c = &m->config;
	if (m->source->lookahead <= 0 || !m->source->ops->prefetch || moe_use(rows) != EXPERT_DECODE ||
		layer + 1 < c->n_dense || layer + 1 >= c->n_layers) /* so all layers ahead are MoE layers */
		return 0;
	uint32_t left = c->n_layers - 1 - layer,
			 reach = (uint32_t)MIN(m->source->lookahead, LOOKAHEAD_MAX);
	return MIN(left, reach);
}

uint64_t *lookahead_expert_ids(const struct model *m, uint32_t layer, uint32_t distance)
{
	return m->ws.predicted_ids +
		   ((layer % 2) * LOOKAHEAD_MAX + distance - 1) * lookahead_rows(&m->ws) * m->config.n_used;
}

void lookahead_enqueued(struct model *m, uint32_t layer, uint64_t ticket, int rows)
{
	if (lookahead_reach(m, layer, rows))
		m->predictions[layer % 2] =
			(struct prediction){.ticket = ticket, .layer = layer, .rows = rows};
}

int lookahead_prefetch(struct model *m, uint32_t layer, struct err *e)
{
	struct prediction *g = &m->predictions[layer % 2];
	if (!g->ticket || g->layer != layer)
		return 0;
	struct backend *b = m->backend;
	struct expert_source *s = m->source;
	uint32_t reach = lookahead_reach(m, layer, g->rows);
	int n_used = (int)m->config.n_used, n = g->rows * n_used, rc = 0;
	int32_t ids[n];
	for (uint32_t d = 1; d <= reach && !rc; d++) {
		rc = b->ops->wait_picks(b, g->ticket, lookahead_expert_ids(m, layer, d), n, ids, e);
		for (int r = 0; r < g->rows && !rc; r++)
			s->ops->prefetch(s, (int)(layer + d), ids + r * n_used, n_used, (int)d);
	}
	g->ticket = 0;
	return rc;
}
