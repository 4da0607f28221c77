/* SPDX-License-Identifier: MIT */
/*
 * Router lookahead: the residual stream changes slowly from layer to layer, so the router of layer L + d, applied to the
 * stream after the attention of layer L, names most of the experts that layer L + d will want. The guess is made beside the
 * shared expert, so that reading for the coming layers begins while the experts of this one are awaited and computed. On the
 * pocket model the best four named for L + 1, L + 2, L + 3 hold 74, 62 and 53 % of the true four; with the shared expert of L in the
 * stream it would be 75, 63 and 53 %, but a card would have to do it after the shared expert instead of beside it; with all experts of
 * L 81, 66 and 56 %, an expert phase too late. The last dense layer guesses too, from its whole output, so that the first experts
 * of a token are no surprise. The real router always decides; a guess only moves bytes.
 */
#include "src/model/forward.h"

#include "src/base/num.h"

static uint32_t reach(const struct model *m)
{
	return (uint32_t)MIN(m->source->lookahead, LOOKAHEAD_MAX);
}

/* [rows][n_used] for the guess made in `layer` for `distance` layers further */
static int32_t *ids_at(const struct model *m, uint32_t layer, uint32_t distance)
{
	size_t most = MIN(m->ws.max_rows, PREFILL_ROWS - 1);
	return m->ws.guess_ids + ((layer % 2) * LOOKAHEAD_MAX + distance - 1) * most * m->config.n_used;
}

bool lookahead_wanted(const struct model *m, uint32_t layer, int rows)
{
	const struct model_config *c = &m->config;
	return m->source->lookahead > 0 && m->source->ops->hint && moe_use(rows) == EXPERT_DECODE &&
		   layer + 1 >= c->n_dense && layer + 1 < c->n_layers; /* so all layers ahead are MoE layers */
}

void lookahead_step(struct model *m, uint32_t layer, const struct batch *rows)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	int n = (int)c->n_embd;
	for (uint32_t d = 1; d <= reach(m) && layer + d < c->n_layers; d++) {
		const struct layer_weights *w = &m->weights.layers[layer + d];
		b->ops->rms_norm(b, ws->x, n, w->ffn_norm, c->rms_eps, rows->n, n, ws->guess_h, n);
		moe_route(m, w, rows, ws->guess_h, ws->guess_router, ids_at(m, layer, d), ws->guess_weights);
	}
}

void lookahead_pass(struct model *m, uint32_t layer, int rows)
{
	const struct model_config *c = &m->config;
	struct expert_source *s = m->source;
	for (uint32_t d = 1; d <= reach(m) && layer + d < c->n_layers; d++)
		for (int r = 0; r < rows; r++)
			s->ops->hint(
				s, (int)(layer + d), ids_at(m, layer, d) + (size_t)r * c->n_used, (int)c->n_used, (int)d);
}
