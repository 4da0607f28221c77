/* SPDX-License-Identifier: MIT */
/*
 * Router lookahead: the residual stream changes slowly from layer to layer, so the router of layer L + d, applied to the
 * stream as far as it is known when the experts of layer L begin, names most of the experts that layer L + d will want. The guess is
 * made beside everything else, from a copy of the stream: reading for the coming layers begins while the experts of this one are
 * awaited or computed, and a card does not pause for it. On the pocket model the best four named for L + 1, L + 2, L + 3 hold 75, 63
 * and 53 % of the true four; without the shared expert of L 74, 62 and 53 %, with all experts of L 81, 66 and 56 %, an expert
 * phase too late. The last dense layer guesses too, so that the first experts of a token are no surprise. The real router always
 * decides; a guess only moves bytes.
 */
#include "src/model/forward.h"

#include "src/base/num.h"

static uint32_t reach(const struct model *m)
{
	return (uint32_t)MIN(m->source->lookahead, LOOKAHEAD_MAX);
}

/* Rows of the buffers, which come in pairs: for even and for odd layers. */
static size_t most_rows(const struct model *m)
{
	return MIN(m->ws.max_rows, PREFILL_ROWS - 1);
}

/* [rows][n_used] for the guess made in `layer` for `distance` layers further */
static int32_t *ids_at(const struct model *m, uint32_t layer, uint32_t distance)
{
	return m->ws.guess_ids + ((layer % 2) * LOOKAHEAD_MAX + distance - 1) * most_rows(m) * m->config.n_used;
}

static float *stream_at(const struct model *m, uint32_t layer)
{
	return m->ws.guess + layer % 2 * most_rows(m) * m->config.n_embd;
}

bool lookahead_wanted(const struct model *m, uint32_t layer, int rows)
{
	const struct model_config *c = &m->config;
	return m->source->lookahead > 0 && m->source->ops->hint && moe_use(rows) == EXPERT_DECODE &&
		   layer + 1 >= c->n_dense && layer + 1 < c->n_layers; /* so all layers ahead are MoE layers */
}

void lookahead_keep(struct model *m, uint32_t layer, const struct batch *rows)
{
	if (lookahead_wanted(m, layer, rows->n))
		m->backend->ops->copy(
			m->backend, stream_at(m, layer), m->ws.x, (size_t)rows->n * m->config.n_embd * sizeof(float));
}

static void guess(struct model *m, uint32_t layer, const struct batch *rows)
{
	const struct model_config *c = &m->config;
	struct workspace *ws = &m->ws;
	struct backend *b = m->backend;
	int n = (int)c->n_embd;
	float *x = stream_at(m, layer);
	if (config_is_moe(c, layer))
		b->ops->moe_combine(b, NULL, NULL, 0, moe_shared_out(m, layer, rows->n), rows->n, n, x);
	for (uint32_t d = 1; d <= reach(m) && layer + d < c->n_layers; d++) {
		const struct layer_weights *w = &m->weights.layers[layer + d];
		b->ops->rms_norm(b, x, n, w->ffn_norm, c->rms_eps, rows->n, n, ws->guess_h, n);
		moe_route(m, w, rows, ws->guess_h, ws->guess_router, ids_at(m, layer, d), ws->guess_weights);
	}
}

void lookahead_begin(struct model *m, uint32_t layer, const struct batch *rows)
{
	struct backend *b = m->backend;
	if (!lookahead_wanted(m, layer, rows->n))
		return;
	uint64_t key = (uint64_t)1 << 63 | (uint64_t)layer << 40 | (uint64_t)rows->n << 36;
	if (b->ops->aside_begin(b, m->record ? key : 0))
		guess(m, layer, rows);
	m->guesses[layer % 2] = (struct guess){.ticket = b->ops->aside_end(b), .layer = layer, .rows = rows->n};
}

int lookahead_pass(struct model *m, uint32_t layer, struct err *e)
{
	struct guess *g = &m->guesses[layer % 2];
	if (!g->ticket || g->layer != layer)
		return 0;
	int rc = m->backend->ops->wait_aside(m->backend, g->ticket, e);
	g->ticket = 0;
	const struct model_config *c = &m->config;
	struct expert_source *s = m->source;
	for (uint32_t d = 1; !rc && d <= reach(m) && layer + d < c->n_layers; d++)
		for (int r = 0; r < g->rows; r++)
			s->ops->hint(
				s, (int)(layer + d), ids_at(m, layer, d) + (size_t)r * c->n_used, (int)c->n_used, (int)d);
	return rc;
}
