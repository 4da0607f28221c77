/* SPDX-License-Identifier: MIT */
/*
 * Router lookahead: the residual stream changes slowly from layer to layer, so the router of layer L + d, applied to the
 * stream as far as it is known in layer L, names most of the experts that layer L + d will want. The guess is made when the routed
 * experts of L are still missing from the stream, so that reading for the coming layers begins while those are awaited
 * and computed: on the pocket model the best four named for L + 1, L + 2, L + 3 hold 74, 62 and 53 % of the true four; with the
 * experts of L they would hold 81, 66 and 56 %, an expert phase too late. The last dense layer guesses too, so that the first
 * experts of a token are not a surprise. The real router always decides; a guess only moves bytes.
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
	const float *x = ws->x;
	if (config_is_moe(c, layer)) { /* attention has been added, the shared expert is known */
		b->ops->copy(b, ws->guess, ws->x, (size_t)rows->n * c->n_embd * sizeof(float));
		b->ops->moe_combine(b, NULL, NULL, 0, ws->shared_out, rows->n, n, ws->guess);
		x = ws->guess;
	}
	for (uint32_t d = 1; d <= reach(m) && layer + d < c->n_layers; d++) {
		const struct layer_weights *w = &m->weights.layers[layer + d];
		b->ops->rms_norm(b, x, n, w->ffn_norm, c->rms_eps, rows->n, n, ws->guess_h, n);
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
