/* SPDX-License-Identifier: MIT */
/* Lists the stages of an engine, of this process and of other ranks, and what each has done. */
#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/engine/engine_internal.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/stages/pipeline.h"

uint32_t engine_n_stages(const struct engine *g)
{
	return g->ranks ? g->ranks->cuts.first_stage[ranks_count(g->ranks->ranks)] : g->n_stages;
}

struct engine_stage engine_stage(const struct engine *g, uint32_t i)
{
	const uint32_t n = engine_n_stages(g);
	struct engine_stage s = {.has_mtp = i + 1 == n && engine_has_mtp(g)};
	if (i >= n)
		bug("there is no stage %u of %u", i, n);
	if (!g->ranks) {
		s.first_layer = g->stages[i].config.first_layer;
		s.end_layer = g->stages[i].config.end_layer;
		s.card = g->stages[i].card;
		return s;
	}
	const struct rank_cuts *cuts = &g->ranks->cuts;
	uint32_t place = 0;
	while (i >= cuts->first_stage[place + 1])
		place++;
	s.first_layer = cuts->first[i];
	s.end_layer = cuts->first[i + 1];
	s.rank = rank_at(g->ranks->ranks, place);
	s.card = g->ranks->figures[s.rank].card[i - cuts->first_stage[place]];
	return s;
}

/* ---- what they have done ---- */

void engine_last_stage_done(struct engine *g)
{
	struct stage *last = engine_last(g);
	if (last->began_ns)
		last->computing_ns += clock_ns() - last->began_ns;
	last->began_ns = 0;
}

void engine_stages_here(struct engine *g, struct engine_stage_usage *out)
{
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++) {
		const struct stage *s = &g->stages[i];
		out[i] = (struct engine_stage_usage){.steps = s->n_steps, .computing_ns = s->computing_ns};
		s->backend->ops->usage(s->backend, &out[i].device);
	}
}

void engine_stages_usage(struct engine *g, struct engine_stage_usage *out)
{
	engine_stages_here(g, out + engine_n_stages(g) - g->n_stages);
	if (g->ranks)
		engine_ranks_stats(g->ranks, NULL, out);
}

void engine_measure(struct engine *g, bool on)
{
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++)
		g->stages[i].backend->ops->measure(g->stages[i].backend, on);
	if (g->ranks)
		engine_ranks_command(g->ranks, &(struct rank_command){.code = RANK_MEASURE, .on = on});
}

void engine_overlap(struct engine *g, struct engine_overlap *out)
{
	pipeline_settle(g->pipeline); /* answers of ranks come in the order of commands */
	*out = (struct engine_overlap){.n_stages = pipeline_depth(g)};
	pipeline_overlap(g->pipeline, out);
	if (g->ranks)
		out->computing_ns += engine_ranks_computing_ns(g->ranks);
}
