/* SPDX-License-Identifier: MIT */
/* Stages of a cluster that is only described. */
#include "tools/plan/cluster_plan.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/stages/stage_cuts.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- memory ---- */

static int plan_stage(const struct model_headers *model, const struct cluster *k,
	struct cluster_stage *s, struct err *e)
{
	struct model_config c = model->config;
	struct model_weights w = {0};
	size_t resident = 0;
	c.first_layer = s->first_layer;
	c.end_layer = s->end_layer;
	int rc = weights_bind(model->file, &c, c.n_mtp > 0, &w, &resident, e);
	if (rc)
		return rc;
	s->experts_bytes = plan_expert_bytes(&w, c.n_layers + c.n_mtp);
	const struct engine_options o = {.context = k->context,
		.sessions = k->streams,
		.cache_bytes = s->experts_bytes ? k->cache_bytes : 0,
		.ram_bytes = s->experts_bytes ? k->ram_bytes / k->cards : 0,
		.policy = k->policy,
		.lookahead = k->lookahead};
	const struct plan_machine memory = {
		.card_bytes = card_free_bytes(k->card.sold_gb), .part = true};
	const struct plan_inputs in = {&c, &o, model->file, &w, resident, NULL};
	rc = plan_for_machine(&in, &memory, &s->plan, e);
	const struct loader_plan *t = &s->plan.tiers;
	s->experts_part = !t->n_experts || t->n_fit[0] >= t->n_experts
						  ? 1
						  : (double)t->n_fit[0] / (double)t->n_experts;
	weights_free(&w, NULL);
	return rc;
}

/* Of a cluster with n cards in all. */
static int plan_cards(const struct model_headers *model, const struct cluster *k, uint32_t n,
	struct cluster_plan *p, struct err *e)
{
	const struct model_config *c = &model->config;
	uint32_t first[STAGES_MAX + 1];
	struct stage_capacity stages[STAGES_MAX] = {0};
	int rc = 0;
	for (uint32_t i = 0; i < n; i++)
		stages[i].room = card_free_bytes(k->card.sold_gb);
	stages_balance(c, c->n_mtp > 0, &model->weights, stages, n, first);
	first[n] = c->n_layers;
	*p = (struct cluster_plan){.n = n, .everything = true};
	for (uint32_t i = 0; i < n && !rc; i++) {
		struct cluster_stage *s = &p->stages[i];
		*s = (struct cluster_stage){
			.first_layer = first[i], .end_layer = first[i + 1], .host = i / k->cards};
		rc = plan_stage(model, k, s, e);
		p->everything &= s->experts_part >= 1;
		if (rc)
			err_prefix(
				e, "card %u of %u, layers %u to %u", i + 1, n, s->first_layer, s->end_layer - 1);
	}
	return rc;
}

/* The least number of cards above n that works; 0: none does. */
static uint32_t find_least_cards(
	const struct model_headers *model, const struct cluster *k, uint32_t n, struct cluster_plan *p)
{
	const uint32_t most = MIN(model->config.n_layers, (uint32_t)STAGES_MAX);
	struct cluster flat = *k;
	struct err e;
	flat.cards = 1; /* the second tier matters little: it is not on the card */
	while (++n <= most) {
		e = (struct err){0};
		if (!plan_cards(model, &flat, n, p, &e))
			return n;
	}
	return 0;
}

/* What the cards of the slowest host read from its drive at first. */
static double load_seconds(const struct cluster *k, const struct cluster_plan *p)
{
	double slowest = 0, bytes = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		const struct cluster_stage *s = &p->stages[i];
		if (i && s->host != p->stages[i - 1].host)
			bytes = 0;
		bytes += (double)s->plan.resident + s->experts_part * (double)s->experts_bytes;
		slowest = MAX(slowest, bytes);
	}
	return slowest / (k->drive_gb_s * 1e9);
}

int cluster_plan_memory(const struct model_headers *model, const struct cluster *k,
	struct cluster_plan *p, struct err *e)
{
	const uint32_t n_layers = model->config.n_layers;
	const uint64_t n = (uint64_t)k->hosts * k->cards;
	if (n > MIN(n_layers, (uint32_t)STAGES_MAX)) {
		err_set(e, ERR_USAGE, "%u hosts of %u cards have %llu cards", k->hosts, k->cards,
			(unsigned long long)n);
		return err_hint(e,
			"each card gets one of the model's %u layers at least, and %d cards are the most",
			n_layers, STAGES_MAX);
	}
	int rc = plan_cards(model, k, (uint32_t)n, p, e);
	if (rc == ERR_MEMORY) {
		const uint32_t least = find_least_cards(model, k, (uint32_t)n, p);
		char other[ERR_HINT_MAX];
		snprintf(other, sizeof other, "%s%s", e->hint[0] ? "; or for this card: " : "", e->hint);
		if (least)
			err_hint(e, "%u such cards are the least that work%.300s", least, other);
	}
	if (rc)
		return rc;
	p->token_ms = card_token_ms(&k->card, model->file, &model->config);
	p->row_bytes = 4.0 * model->config.n_embd;
	p->load_seconds = load_seconds(k, p);
	return 0;
}

/* ---- speed ---- */

/* Computing and hand-over, from rates alone. */
static void set_rates(
	const struct model_headers *model, const struct cluster *k, struct cluster_plan *p)
{
	const struct model_config *c = &model->config;
	struct card_work *layers = NEW_ARRAY(struct card_work, c->n_layers), head;
	const double scale = k->token_ms >= 0 ? k->token_ms / p->token_ms : 1;
	card_work_of(model->file, c, layers, &head);
	for (uint32_t i = 0; i < p->n; i++) {
		struct cluster_stage *s = &p->stages[i];
		const bool last = i + 1 == p->n;
		struct card_work sum = last ? head : (struct card_work){0};
		for (uint32_t l = s->first_layer; l < s->end_layer; l++) {
			sum.dense += layers[l].dense;
			sum.expert += layers[l].expert;
		}
		const struct card_times t = card_times_of(&k->card, &sum, k->row_part);
		s->cost = (struct stage_cost){.fixed_ms = scale * (t.dense_ms + last * CARD_OTHER_MS),
			.row_ms = scale * (t.row_ms + last * CARD_OTHER_ROW_MS),
			.expert_ms = scale * t.expert_ms,
			.lookahead = s->plan.loader.lookahead > 0};
		double bytes = p->row_bytes;
		if (!last && !c->index_full[s->end_layer])
			bytes += 4.0 * (c->index_top_k + 1); /* the selection that the next layer shares */
		if (!last) {
			s->cost.hop_ms = 1e-3 * k->hop_us;
			s->cost.hop_row_ms = 2 * bytes / (k->card.link_gb_s * 1e9) * 1e3;
		}
		/* behind the last stage: the command of the next step, to the first layers' host */
		if (p->stages[last ? 0 : i + 1].host != s->host)
			s->cost.hop_ms += 1e-3 * k->net_us;
		if (!last && p->stages[i + 1].host != s->host)
			s->cost.hop_row_ms += bytes / (k->net_gb_s * 1e9) * 1e3;
	}
	free(layers);
}

/* Adds what the stage's cache misses: the replay of all layers with caches for all layers that hold
 * as large a part of the experts, and of its times those of the stage's layers. */
static int set_misses(const struct model_config *c, const struct cluster *k,
	const struct forecast *f, uint32_t streams, struct cluster_plan *p, uint32_t i, struct err *e)
{
	struct cluster_stage *s = &p->stages[i];
	const uint32_t n_moe = s->end_layer - MIN(MAX(s->first_layer, c->n_dense), s->end_layer);
	if (s->experts_part >= 1 || !n_moe)
		return 0;
	const double of_all =
		(double)f->plan.everything_bytes / MAX(s->plan.tiers.everything_bytes, 1u);
	const double busy_cards = streams > 1 ? k->cards : 1; /* that read from the host's drive */
	struct forecast_machine rates =
		forecast_machine_of(k->drive_gb_s / busy_cards * 1e9, k->card.link_gb_s * 1e9, 1);
	rates.card = true;
	struct forecast_point at = {
		.cache_bytes = (uint64_t)((double)s->plan.tiers.tier_bytes[0] * of_all),
		.ram_bytes = (uint64_t)((double)s->plan.tiers.tier_bytes[1] * of_all),
		.policy = k->policy,
		.lookahead = s->plan.loader.lookahead,
		.skip = forecast_steady_skip(f)};
	int rc = forecast_run(f, &rates, &at, e);
	s->cost.drive_ms = at.drive_ms * n_moe / config_n_moe(c);
	s->cost.link_ms = at.link_ms * n_moe / config_n_moe(c);
	return rc;
}

int cluster_plan_speed(const struct model_headers *model, const struct cluster *k,
	const struct forecast *f, uint32_t streams, struct cluster_plan *p, struct cluster_speed *out,
	struct err *e)
{
	const uint32_t most = MIN(k->step_rows, streams);
	double *distinct = NEW_ARRAY(double, most);
	struct stage_cost costs[STAGES_MAX];
	struct forecast many = {0};
	int rc = f ? forecast_streams(f, streams, &many, e) : 0;
	if (rc)
		goto out;
	set_rates(model, k, p);
	for (uint32_t i = 0; i < p->n && f && !rc; i++)
		rc = set_misses(&model->config, k, &many, streams, p, i, e);
	for (uint32_t r = 1; r <= most; r++)
		distinct[r - 1] =
			f ? forecast_distinct(&many, r) : card_distinct_experts(&model->config, r);
	for (uint32_t i = 0; i < p->n; i++)
		costs[i] = p->stages[i].cost;
	if (!rc)
		cluster_schedule(costs, p->n, streams, most, distinct, out);
out:
	forecast_free_streams(&many);
	free(distinct);
	return rc;
}
