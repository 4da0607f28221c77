/* SPDX-License-Identifier: MIT */
/* Shares the machine and the budgets out, then plans twice: the first time each stage for itself,
 * quietly; the second time with the least context and chunk of all. */
#include "src/engine/stages/plan_stages.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/ranks/ranks.h"
#include "stream/loader/loader.h"

#include <stdlib.h>

static bool same_card(const struct plan_stage *stages, uint32_t i, uint32_t k)
{
	return stages[i].card == stages[k].card;
}

size_t plan_stage_room(const struct plan_stage *stages, uint32_t n, uint32_t i, uint32_t processes)
{
	const bool on_card = stages[i].backend->ops->copier_open != NULL;
	uint32_t beside = 1;
	for (uint32_t k = 0; k < n; k++)
		beside += k != i && same_card(stages, i, k);
	return stages[i].backend->ops->free_bytes(stages[i].backend) /
		   (beside * (on_card ? 1 : processes));
}

/* What one stage plans with. */
struct stage_share {
	struct engine_options options;
	struct plan_machine machine;
	uint64_t floor_bytes, everything_bytes; /* of its experts as a cache holds them; 0: none */
};

/* part * a / b without overflow of the product; b > 0. */
static uint64_t share_of(uint64_t part, uint64_t a, uint64_t b)
{
	return (uint64_t)((unsigned __int128)part * a / b);
}

/* How small and how large the cache of each stage with experts may be. */
static int measure_experts(const struct plan_stage *stages, uint32_t n,
	const struct engine_options *o, const struct gguf *file, struct stage_share *shares,
	struct err *e)
{
	int rc = 0;
	for (uint32_t i = 0; i < n && !rc; i++) {
		const struct plan_stage *s = &stages[i];
		struct loader_plan tiers;
		if (!plan_expert_bytes(s->w, s->c->n_layers + s->c->n_mtp))
			continue;
		struct loader_options lo = plan_loader_options(s->c, o, file, s->backend);
		lo.tier_bytes[0] = (uint64_t)1 << 50;
		lo.tier_bytes[1] = 0;
		if ((rc = loader_plan(&lo, &tiers, e)))
			continue;
		shares[i].floor_bytes = tiers.floor_bytes;
		shares[i].everything_bytes = MAX(tiers.everything_bytes, tiers.floor_bytes);
	}
	return rc;
}

/* --cache-gb with a number: stage i's part of its card's budget. */
static int share_card_budget(const struct plan_stage *stages, uint32_t n, uint32_t i,
	const struct engine_options *o, struct stage_share *shares, struct err *e)
{
	uint64_t least = 0, most = 0;
	for (uint32_t k = 0; k < n; k++)
		if (same_card(stages, i, k)) {
			least += shares[k].floor_bytes;
			most += shares[k].everything_bytes;
		}
	if (o->cache_bytes < least) {
		int rc = loader_refuse_budget(o->cache_bytes, least, e);
		err_prefix(e, "the stages on card %u", stages[i].card);
		return rc;
	}
	struct stage_share *s = &shares[i];
	uint64_t rest = o->cache_bytes - least;
	s->options.cache_bytes =
		s->floor_bytes +
		(most > least ? share_of(rest, s->everything_bytes - s->floor_bytes, most - least) : 0);
	return 0;
}

/* A stage without experts has no cache; the others get their parts of the budgets. */
static int share_budgets(const struct plan_stage *stages, uint32_t n,
	const struct engine_options *o, const struct gguf *file, struct stage_share *shares,
	struct err *e)
{
	int rc = measure_experts(stages, n, o, file, shares, e);
	const uint32_t processes = o->ranks ? ranks_on_host(o->ranks) : 1;
	size_t host = mem_available_bytes() / processes;
	size_t reserve = o->ram_bytes == ENGINE_CACHE_AUTO ? MIN(plan_host_reserve(host), host) : 0;
	uint64_t all = 0;
	for (uint32_t i = 0; i < n; i++)
		all += shares[i].everything_bytes;
	for (uint32_t i = 0; i < n && !rc; i++) {
		struct stage_share *s = &shares[i];
		s->options = *o;
		s->machine.part = true;
		s->machine.card_bytes = plan_stage_room(stages, n, i, processes);
		if (!s->everything_bytes) {
			s->options.cache_bytes = s->options.ram_bytes = 0;
			continue;
		}
		/* the reserve is taken off again for each stage */
		s->machine.host_bytes = reserve + share_of(host - reserve, s->everything_bytes, all);
		if (o->ram_bytes != ENGINE_CACHE_AUTO)
			s->options.ram_bytes = share_of(o->ram_bytes, s->everything_bytes, all);
		if (o->cache_bytes && o->cache_bytes != ENGINE_CACHE_AUTO)
			rc = share_card_budget(stages, n, i, o, shares, e);
	}
	return rc;
}

static int plan_one(const struct plan_stage *s, const struct stage_share *share, uint32_t i,
	const struct gguf *file, struct plan *p, struct err *e)
{
	int rc = plan_on_machine(
		s->c, &share->options, file, s->w, s->resident, s->backend, &share->machine, p, e);
	if (rc)
		err_prefix(e, "stage %u (layers %u to %u, card %u)", i, s->c->first_layer,
			s->c->end_layer - 1, s->card);
	return rc;
}

static void log_stage(const struct plan_stage *s, uint32_t i)
{
	const uint32_t end = s->c->n_layers + s->c->n_mtp;
	log_info("stage %u: layers %u to %u%s on card %u, %.3f GB of weights and %.3f GB of experts", i,
		s->c->first_layer, s->c->end_layer - 1,
		end > s->c->end_layer && config_has_end(s->c) && s->w->eh_proj.n_in ? " and MTP" : "",
		s->card, (double)s->resident / 1e9, (double)plan_expert_bytes(s->w, end) / 1e9);
}

int plan_stages(const struct plan_stage *stages, uint32_t n, const struct engine_options *o,
	const struct gguf *file, struct plan *plans, struct err *e)
{
	if (n == 1 && o->ranks) {
		const uint32_t processes = ranks_on_host(o->ranks);
		const struct plan_machine machine = {.card_bytes = plan_stage_room(stages, 1, 0, processes),
			.host_bytes = mem_available_bytes() / processes,
			.part = true};
		return plan_on_machine(
			stages->c, o, file, stages->w, stages->resident, stages->backend, &machine, plans, e);
	}
	if (n == 1)
		return plan_make(
			stages->c, o, file, stages->w, stages->resident, stages->backend, plans, e);
	struct stage_share *shares = NEW_ARRAY(struct stage_share, n);
	uint32_t context = UINT32_MAX, chunk = UINT32_MAX;
	int rc = share_budgets(stages, n, o, file, shares, e);
	enum log_level level = log_level();
	log_set_level(LOG_QUIET); /* the second time prints */
	for (uint32_t i = 0; i < n && !rc; i++) {
		rc = plan_one(&stages[i], &shares[i], i, file, &plans[i], e);
		context = MIN(context, plans[i].context);
		chunk = MIN(chunk, plans[i].chunk);
	}
	log_set_level(level);
	for (uint32_t i = 0; i < n && !rc; i++) {
		shares[i].options.context = context;
		shares[i].options.chunk = chunk;
		log_stage(&stages[i], i);
		rc = plan_one(&stages[i], &shares[i], i, file, &plans[i], e);
	}
	free(shares);
	return rc;
}
