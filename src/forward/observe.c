/* SPDX-License-Identifier: MIT */
/* The backend reports the weight of a product. A resident one is found by the address of its data
 * in a sorted table; the job of an expert names layer and expert. */
#include "src/forward/observe.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/forward/model.h"

#include <stdlib.h>

const char *const *observed_tensors(enum observed_input input, bool moe)
{
	static const char *const names[OBSERVED_INPUTS][2][5] = {
		[OBSERVED_ATTENTION] = {{"attn_q_a", "attn_kv_a_mqa", "indexer.attn_k", "indexer.proj"}},
		[OBSERVED_QUERY_LATENT] = {{"attn_q_b", "indexer.attn_q_b"}},
		[OBSERVED_QUERY] = {{"attn_k_b"}},
		[OBSERVED_ATTENDED] = {{"attn_v_b"}},
		[OBSERVED_HEADS] = {{"attn_output"}},
		[OBSERVED_FFN] = {{"ffn_gate", "ffn_up"},
			{"ffn_gate_shexp", "ffn_up_shexp", "ffn_gate_inp"}},
		[OBSERVED_FFN_DOWN] = {{"ffn_down"}, {"ffn_down_shexp"}},
		[OBSERVED_EXPERT] = {{NULL}, {"ffn_gate_exps", "ffn_up_exps"}},
		[OBSERVED_EXPERT_DOWN] = {{NULL}, {"ffn_down_exps"}},
		[OBSERVED_HEAD] = {{"output"}},
	};
	return names[input][moe && input >= OBSERVED_FFN && input != OBSERVED_HEAD];
}

void observed_shape(const struct model_config *c, uint32_t layer, enum observed_input input,
	uint32_t *n_matrices, uint32_t *n_in)
{
	const bool moe = config_is_moe(c, layer);
	const uint32_t width[OBSERVED_INPUTS] = {
		[OBSERVED_ATTENTION] = c->n_embd,
		[OBSERVED_QUERY_LATENT] = c->q_rank,
		[OBSERVED_QUERY] = c->head_nope,
		[OBSERVED_ATTENDED] = c->kv_rank,
		[OBSERVED_HEADS] = c->n_heads * c->head_value,
		[OBSERVED_FFN] = c->n_embd,
		[OBSERVED_FFN_DOWN] = moe ? c->ff_shared : c->ff_dense,
		[OBSERVED_EXPERT] = moe ? c->n_embd : 0,
		[OBSERVED_EXPERT_DOWN] = moe ? c->ff_expert : 0,
		[OBSERVED_HEAD] = layer ? 0 : c->n_embd,
	};
	const bool heads = input == OBSERVED_QUERY || input == OBSERVED_ATTENDED,
			   experts = input == OBSERVED_EXPERT || input == OBSERVED_EXPERT_DOWN;
	*n_in = width[input];
	*n_matrices = !*n_in ? 0 : heads ? c->n_heads : experts ? c->n_experts : 1;
}

/* ---- which input a resident weight has ---- */

struct observed_weight {
	uintptr_t data;
	uint32_t layer;
	enum observed_input input;
};

struct model_observation {
	const struct model_observer *observer;
	struct product_observer product; /* of the backend */
	struct observed_weight *weights; /* [n] by data */
	size_t n;
};

static int compare_weights(const void *a, const void *b)
{
	const uintptr_t p = ((const struct observed_weight *)a)->data,
					q = ((const struct observed_weight *)b)->data;
	return (p > q) - (p < q);
}

/* One weight for each input of the layers computed here; others with that input are skipped. */
static void list_weights(const struct model *m, struct model_observation *o)
{
	const struct model_config *c = &m->config;
	o->weights = NEW_ARRAY(struct observed_weight, (size_t)7 * (c->end_layer - c->first_layer));
	for (uint32_t layer = c->first_layer; layer < c->end_layer; layer++) {
		const struct layer_weights *w = &m->weights.layers[layer];
		const struct weight *of[] = {[OBSERVED_ATTENTION] = &w->q_a,
			[OBSERVED_QUERY_LATENT] = &w->q_b,
			[OBSERVED_QUERY] = &w->k_b,
			[OBSERVED_ATTENDED] = &w->v_b,
			[OBSERVED_HEADS] = &w->attn_out,
			[OBSERVED_FFN] = &w->gate,
			[OBSERVED_FFN_DOWN] = &w->down};
		for (size_t i = 0; i < ARRAY_LEN(of); i++)
			o->weights[o->n++] =
				(struct observed_weight){(uintptr_t)of[i]->data, layer, (enum observed_input)i};
	}
	qsort(o->weights, o->n, sizeof *o->weights, compare_weights);
}

static void on_product(void *user, const struct product_input *in)
{
	const struct model_observation *o = user;
	struct observed_rows rows = {.n_in = (uint32_t)in->w->n_in,
		.stride = in->stride,
		.index = in->index,
		.divisor = in->divisor,
		.n = in->n};
	int64_t n_matrices = 1;
	if (in->expert) {
		if (in->w == &in->expert->up)
			return;
		rows.input = in->w == &in->expert->down ? OBSERVED_EXPERT_DOWN : OBSERVED_EXPERT;
		rows.layer = in->expert->layer;
		rows.matrix = in->expert->expert;
	} else {
		const struct observed_weight key = {.data = (uintptr_t)in->w->data},
									 *found = bsearch(
										 &key, o->weights, o->n, sizeof key, compare_weights);
		if (!found)
			return;
		rows.input = found->input;
		rows.layer = found->layer;
		n_matrices = in->w->n_stack;
	}
	for (int64_t s = 0; s < n_matrices; s++) {
		rows.x = in->x + s * in->stack_step;
		o->observer->rows(o->observer->user, &rows);
		rows.matrix++;
	}
}

void model_observe(struct model *m, const struct model_observer *observer)
{
	struct backend *b = m->backend;
	b->observer = NULL;
	if (m->observation)
		free(m->observation->weights);
	free(m->observation);
	m->observation = NULL;
	if (!observer)
		return;
	struct model_observation *o = m->observation = NEW(struct model_observation);
	o->observer = observer;
	o->product = (struct product_observer){on_product, o};
	list_weights(m, o);
	b->observer = &o->product;
}

int model_observe_hidden(const struct model *m, uint32_t n, struct err *e)
{
	const struct model_observer *o = m->observation->observer;
	struct backend *b = m->backend;
	const size_t values = (size_t)n * m->config.n_embd;
	float *hidden = mem_try_new(values, sizeof *hidden);
	if (!hidden)
		return err_set(e, ERR_MEMORY, "no memory to observe %zu values", values);
	const int rc = b->ops->download(b, hidden, m->ws.hidden, values * sizeof *hidden, e);
	if (!rc)
		o->rows(o->user, &(struct observed_rows){.input = OBSERVED_HEAD,
							 .n_in = m->config.n_embd,
							 .x = hidden,
							 .stride = m->config.n_embd,
							 .n = (int)n});
	free(hidden);
	return rc;
}
