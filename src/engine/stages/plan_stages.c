/* SPDX-License-Identifier: MIT */
/*
 * Divides the machine's memory and the budgets among the stages, then plans each stage three times:
 *   1. quietly, to learn the length of a chunk;
 *   2. quietly, with the memory of the chunks in flight taken off, to learn context and chunk;
 *   3. with the least context and chunk of all stages. This plan is printed and used.
 */
#include "src/engine/stages/plan_stages.h"

#include "src/base/host/memory_left.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/plan_internal.h"
#include "src/engine/stages/pipeline.h"
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

/* part * a / b without overflow of the product; b > 0. */
static uint64_t share_of(uint64_t part, uint64_t a, uint64_t b)
{
	return (uint64_t)((unsigned __int128)part * a / b);
}

void plan_share_host(size_t host, uint64_t experts, uint64_t all, struct plan_machine *m)
{
	m->host_bytes = share_of(host, experts, all);
	m->host_reserve = share_of(plan_host_reserve(host), experts, all);
	m->host_margin = share_of(HOST_RESERVE, experts, all);
}

/* What one stage plans with. */
struct stage_share {
	struct engine_options options;
	struct plan_machine machine;
	uint64_t floor_bytes, everything_bytes; /* of its experts as a cache holds them; 0: none */
};

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
	size_t host = memory_left() / processes;
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
		plan_share_host(host, s->everything_bytes, all, &s->machine);
		if (o->ram_bytes != ENGINE_CACHE_AUTO)
			s->options.ram_bytes = share_of(o->ram_bytes, s->everything_bytes, all);
		if (o->cache_bytes && o->cache_bytes != ENGINE_CACHE_AUTO)
			rc = share_card_budget(stages, n, i, o, shares, e);
	}
	return rc;
}

static struct plan_inputs stage_inputs(
	const struct plan_stage *s, const struct engine_options *o, const struct gguf *file)
{
	return (struct plan_inputs){s->c, o, file, s->w, s->resident, s->backend};
}

static int plan_one(const struct plan_stage *s, const struct stage_share *share, uint32_t i,
	const struct gguf *file, struct plan *p, struct err *e)
{
	const struct plan_inputs in = stage_inputs(s, &share->options, file);
	int rc = plan_on_machine(&in, &share->machine, p, e);
	if (rc)
		err_prefix(e, "stage %u (layers %u to %u, card %u)", i, s->c->first_layer,
			s->c->end_layer - 1, s->card);
	return rc;
}

/* Per cent of a token's time that stage i takes, if the time is that of reading weights. */
static double token_part(const struct plan_stage *stages, uint32_t n, uint32_t i)
{
	double part = 0, all = 0;
	bool known = true;
	for (uint32_t k = 0; k < n; k++)
		known &= stages[k].bytes_s > 0;
	for (uint32_t k = 0; k < n; k++) {
		const struct plan_stage *s = &stages[k];
		double read = config_has_end(s->c) ? (double)s->w->head.stack_bytes : 0;
		for (uint32_t l = s->c->first_layer; l < s->c->end_layer; l++)
			read += (double)(weights_layer_bytes(s->w, l) +
							 weights_expert_bytes(s->w, l) / s->c->n_experts * s->c->n_used);
		read /= known ? (double)s->bytes_s : 1;
		all += read;
		part += k == i ? read : 0;
	}
	return all > 0 ? 100 * part / all : 0;
}

static void log_stage(const struct plan_stage *stages, uint32_t n, uint32_t i)
{
	const struct plan_stage *s = &stages[i];
	const uint32_t end = s->c->n_layers + s->c->n_mtp;
	log_info("stage %u: layers %u to %u%s on card %u, %.3f GB of weights and %.3f GB of experts, "
			 "%.0f %% of a token's time",
		i, s->c->first_layer, s->c->end_layer - 1,
		end > s->c->end_layer && config_has_end(s->c) && s->w->eh_proj.n_in ? " and MTP" : "",
		s->card, (double)s->resident / 1e9, (double)plan_expert_bytes(s->w, end) / 1e9,
		token_part(stages, n, i));
}

/* Host memory of this process for rows in flight, with chunks of so many rows. Of several ranks
 * only rank 0 keeps rows in host memory. */
static size_t flight_bytes(
	const struct plan_stage *stages, uint32_t n, const struct engine_options *o, uint32_t chunk)
{
	const uint32_t chunks = !o->ranks ? n : ranks_me(o->ranks) ? 0 : ranks_count(o->ranks);
	return chunks * (size_t)chunk * pipeline_row_bytes(stages->c);
}

/* Takes so much off the host memory that a plan may use. On the CPU that is the memory in which the
 * stage computes. */
static void take_host_bytes(struct plan_machine *m, const struct plan_stage *s, size_t bytes)
{
	const bool on_card = s->backend->ops->copier_open != NULL;
	size_t *from = on_card ? &m->host_bytes : &m->card_bytes;
	if (*from) /* 0: unknown */
		*from -= MIN(bytes, *from - 1);
}

static int plan_each_quietly(const struct plan_stage *stages, uint32_t n,
	const struct stage_share *shares, const struct gguf *file, struct plan *plans, struct err *e)
{
	const enum log_level before = log_lower(LOG_WARN);
	int rc = 0;
	for (uint32_t i = 0; i < n && !rc; i++)
		rc = plan_one(&stages[i], &shares[i], i, file, &plans[i], e);
	log_set_level(before);
	return rc;
}

static uint32_t least_chunk(const struct plan *plans, uint32_t n)
{
	uint32_t chunk = UINT32_MAX;
	for (uint32_t i = 0; i < n; i++)
		chunk = MIN(chunk, plans[i].chunk);
	return chunk;
}

/* Plans the only stage of this process, one of several ranks: quietly for the length of a chunk,
 * then without the memory of the chunks in flight. */
static int plan_alone(const struct plan_stage *s, const struct engine_options *o,
	const struct gguf *file, struct plan *p, struct err *e)
{
	const uint32_t processes = ranks_on_host(o->ranks);
	struct plan_machine machine = {.card_bytes = plan_stage_room(s, 1, 0, processes),
		.host_bytes = memory_left() / processes,
		.part = true};
	const struct plan_inputs in = stage_inputs(s, o, file);
	int rc = plan_quietly(&in, &machine, p, e);
	if (rc)
		return rc;
	take_host_bytes(&machine, s, flight_bytes(s, 1, o, p->chunk));
	return plan_on_machine(&in, &machine, p, e);
}

int plan_stages(const struct plan_stage *stages, uint32_t n, const struct engine_options *o,
	const struct gguf *file, struct plan *plans, struct err *e)
{
	if (n == 1 && o->ranks)
		return plan_alone(stages, o, file, plans, e);
	const struct plan_inputs whole = stage_inputs(stages, o, file);
	if (n == 1)
		return plan_make(&whole, plans, e);
	struct stage_share *shares = NEW_ARRAY(struct stage_share, n);
	uint32_t context = UINT32_MAX;
	size_t flight = 0;
	int rc = share_budgets(stages, n, o, file, shares, e);
	if (!rc)
		rc = plan_each_quietly(stages, n, shares, file, plans, e);
	if (!rc) {
		flight = flight_bytes(stages, n, o, least_chunk(plans, n));
		for (uint32_t i = 0; i < n; i++)
			take_host_bytes(&shares[i].machine, &stages[i], flight / n);
		rc = plan_each_quietly(stages, n, shares, file, plans, e);
	}
	const uint32_t chunk = least_chunk(plans, n);
	for (uint32_t i = 0; i < n; i++)
		context = MIN(context, plans[i].context);
	if (!rc)
		log_info("rows between stages: up to %.4g MB of host memory, chunks of %u",
			(double)flight / 1e6, chunk);
	for (uint32_t i = 0; i < n && !rc; i++) {
		shares[i].options.context = context;
		shares[i].options.chunk = chunk;
		log_stage(stages, n, i);
		rc = plan_one(&stages[i], &shares[i], i, file, &plans[i], e);
	}
	free(shares);
	return rc;
}
