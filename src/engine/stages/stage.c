/* SPDX-License-Identifier: MIT */
/* Stages of an engine: which there are, how each opens, and a step through all of them. */
#include "src/engine/stages/stage.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/engine_internal.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/stages/pipeline.h"
#include "src/engine/stages/plan_stages.h"
#include "src/engine/stages/stage_cuts.h"
#include "src/forward/moe/moe.h"
#include "src/forward/observe.h"
#include "stream/link_time.h"
#include "stream/loader/loader.h"
#include "stream/source_mmap.h"

#include <stdlib.h>
#include <string.h>

/* Options that name what only one stage can have. */
static int check_stage_options(
	const struct engine_options *o, const struct model_config *c, uint32_t n, struct err *e)
{
	if (n > c->n_layers)
		return err_set(
			e, ERR_USAGE, "%u stages were asked for, the model has %u layers", n, c->n_layers);
	if (n > STAGES_MAX)
		return err_set(
			e, ERR_USAGE, "%u stages were asked for, at most %d are possible", n, STAGES_MAX);
	if (n > 1 && o->copier)
		return err_set(e, ERR_USAGE, "one copier serves one stage, not %u", n);
	return 0;
}

int stages_new(const struct engine_options *o, const struct model_config *c, struct stage **stages,
	uint32_t *n, struct err *e)
{
	const bool all = o->n_cards == ENGINE_CARDS_AUTO;
	uint32_t wanted = all ? backend_count_cards(o->backend) : MAX(o->n_cards, 1u);
	if (all)
		wanted = MIN(wanted, c->n_layers);
	int rc = check_stage_options(o, c, wanted, e);
	*n = rc ? 0 : wanted;
	*stages = NEW_ARRAY(struct stage, wanted);
	for (uint32_t i = 0; i < *n && !rc; i++) {
		struct stage *s = &(*stages)[i];
		s->config = *c;
		s->card = all ? i : o->n_cards ? o->cards[i] : 0;
		const struct backend *first = (*stages)[0].backend;
		struct backend_options bo = {.name = i            ? first->ops->name
											 : o->backend ? o->backend
														  : "auto",
			.threads = o->threads,
			.no_graphs = o->no_graphs,
			.exact_prompts = o->exact_prompts,
			.fast_prompts = o->fast_prompts,
			.card = s->card,
			.nodes = o->nodes};
		rc = backend_open(&bo, &s->backend, e);
	}
	return rc;
}

/* ---- which layers lie where ---- */

static void stages_describe(const struct stage *stages, uint32_t n, struct plan_stage *out)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = (struct plan_stage){.c = &stages[i].config,
			.w = &stages[i].weights,
			.resident = stages[i].resident_bytes,
			.backend = stages[i].backend,
			.bytes_s = stages[i].backend->bytes_s,
			.card = stages[i].card};
}

void stages_balance(const struct model_config *c, bool mtp, const struct model_weights *w,
	const struct stage_capacity *stages, uint32_t n, uint32_t *first)
{
	struct layer_cost *layers = NEW_ARRAY(struct layer_cost, c->n_layers);
	for (uint32_t i = 0; i < c->n_layers; i++) {
		const uint64_t resident = weights_layer_bytes(w, i), experts = weights_expert_bytes(w, i);
		layers[i] = (struct layer_cost){.held = resident + experts,
			.read = resident + experts / c->n_experts * c->n_used,
			.shares = !c->index_full[i]};
	}
	struct layer_cost *last = &layers[c->n_layers - 1];
	last->held += w->head.stack_bytes;
	last->read += w->head.stack_bytes;
	if (mtp)
		last->held += weights_layer_bytes(w, c->n_layers) + weights_expert_bytes(w, c->n_layers);
	stage_cuts_balance(layers, c->n_layers, stages, n, first);
	free(layers);
}

/* first [n + 1]: of the stages here, and one past their last layer. */
static int balance_stages(struct engine *g, const struct engine_options *o, bool mtp,
	const struct model_weights *whole, uint32_t *first, struct err *e)
{
	const uint32_t n = g->n_stages;
	struct plan_stage parts[STAGES_MAX];
	struct rank_room room = {.n_stages = n};
	stages_describe(g->stages, n, parts);
	for (uint32_t i = 0; i < n; i++)
		room.stages[i] = (struct stage_capacity){
			plan_stage_room(parts, n, i, o->ranks ? ranks_on_host(o->ranks) : 1),
			g->stages[i].backend->bytes_s};
	if (!g->ranks) {
		stages_balance(&g->config, mtp, whole, room.stages, n, first);
		first[n] = g->config.n_layers;
		return 0;
	}
	int rc = engine_ranks_cut(g, &room, mtp, whole, e);
	const struct rank_cuts *cuts = &g->ranks->cuts;
	const uint32_t at = cuts->first_stage[rank_place(o->ranks, ranks_me(o->ranks))];
	for (uint32_t i = 0; i <= n && !rc; i++)
		first[i] = cuts->first[at + i];
	return rc;
}

static int take_cuts(const struct engine_options *o, const struct model_config *c, uint32_t n,
	uint32_t *first, struct err *e)
{
	for (uint32_t i = 1; i < n; i++) {
		first[i] = o->cuts[i - 1];
		if (first[i] <= first[i - 1] || first[i] >= c->n_layers)
			return err_set(e, ERR_USAGE,
				"stage %u cannot begin with layer %u: stages begin with ascending layers from 1 to "
				"%u",
				i, first[i], c->n_layers - 1);
	}
	return 0;
}

int stages_bind(struct engine *g, const struct engine_options *o, struct model_weights *whole,
	size_t whole_bytes, struct err *e)
{
	const struct model_config *c = &g->config;
	const uint32_t n = g->n_stages;
	const bool mtp = c->n_mtp && !o->no_mtp;
	uint32_t first[STAGES_MAX + 1] = {0};
	int rc = 0;
	if (n == 1 && !g->ranks) {
		g->stages->weights = *whole;
		g->stages->resident_bytes = whole_bytes;
		*whole = (struct model_weights){0};
		return 0;
	}
	first[n] = c->n_layers;
	if (o->cuts)
		rc = take_cuts(o, c, n, first, e);
	else
		rc = balance_stages(g, o, mtp, whole, first, e);
	for (uint32_t i = 0; i < n && !rc; i++) {
		struct stage *s = &g->stages[i];
		s->config.first_layer = first[i];
		s->config.end_layer = first[i + 1];
		rc = weights_bind(g->gguf, &s->config, mtp, &s->weights, &s->resident_bytes, e);
	}
	return rc;
}

static int plan_here(struct engine *g, const struct engine_options *o, struct err *e)
{
	const uint32_t n = g->n_stages;
	struct plan_stage parts[STAGES_MAX];
	struct plan *plans = NEW_ARRAY(struct plan, n);
	stages_describe(g->stages, n, parts);
	int rc = plan_stages(parts, n, o, g->gguf, plans, e);
	for (uint32_t i = 0; i < n; i++)
		g->stages[i].plan = plans[i];
	free(plans);
	return rc;
}

/* Of the stages as they are planned now. */
static struct rank_limits limits_of(const struct engine *g)
{
	struct rank_limits limits = {
		.context = g->stages->plan.context, .chunk = g->stages->plan.chunk};
	for (uint32_t i = 0; i < g->n_stages; i++)
		limits.streaming |= g->stages[i].plan.streaming;
	return limits;
}

int stages_plan(struct engine *g, const struct engine_options *o, struct err *e)
{
	if (!g->ranks)
		return plan_here(g, o, e);
	struct engine_options agreed = *o;
	const enum log_level before = log_lower(LOG_WARN); /* the second time prints */
	int rc = plan_here(g, o, e);
	log_set_level(before);
	struct ranks *ranks = g->ranks->ranks;
	struct rank_limits limits = limits_of(g);
	if ((rc = ranks_agree(ranks, rc, e)) || (rc = engine_ranks_limits(g->ranks, &limits, e)))
		return rc;
	agreed.context = limits.context;
	agreed.chunk = limits.chunk;
	/* planning measures free memory: no rank of this host may allocate before all have planned */
	if ((rc = ranks_agree(ranks, plan_here(g, &agreed, e), e)))
		return rc;
	/* with less context and a smaller chunk all experts of a rank may fit that did not before */
	limits = limits_of(g);
	return engine_ranks_limits(g->ranks, &limits, e);
}

/* ---- opening and closing ---- */

static int open_experts(struct stage *s, const struct stage_setup *u, struct err *e)
{
	const struct engine_options *o = u->options;
	const int n_layers = (int)(s->config.n_layers + s->config.n_mtp);
	if (s->plan.on_card)
		return source_device_open(s->weights.experts, n_layers,
			&(struct tensor_load_options){.file = u->file,
				.backend = s->backend,
				.reader = o->reader,
				.check_values = u->check_values,
				.progress = o->loading,
				.user = o->loading_user},
			&s->experts, e);
	s->experts = source_mmap_open(s->weights.experts, n_layers);
	source_mmap_check(s->experts, u->check_values, o->verify);
	return 0;
}

int stage_open(struct stage *s, const struct stage_setup *u, struct err *e)
{
	const struct model_config *c = &s->config;
	struct plan *p = &s->plan;
	const uint32_t rows = p->context * p->sessions;
	int rc;
	p->loader.check_values = u->check_values;
	s->streaming = p->streaming;
	if (p->streaming && (rc = loader_open(&p->loader, &s->experts, e)))
		return rc;
	if ((rc = weights_load(u->file, c, p->mtp, s->backend, &s->weights, u->watch,
			 &u->options->reader, u->check_values, e)) ||
		(rc = kv_cache_init(&s->kv, c, &p->kv_shape, rows, s->backend, e)) ||
		(!p->streaming && (rc = open_experts(s, u, e))))
		return rc;
	if (p->streaming)
		loader_pin_in_background(s->experts); /* the weights had the drive to themselves */
	return 0;
}

/* Why the processor cannot compute experts for the card; NULL: it can. */
static const char *no_host_experts(const struct stage *s)
{
	if (!s->backend->ops->copier_open && !s->plan.loader.copier)
		return "there is no card";
	if (!s->streaming || !s->plan.tiers.tier_bytes[1])
		return "no experts lie in a second tier";
	for (uint32_t i = s->config.first_layer; i < s->config.end_layer; i++)
		if (moe_host_covers(&s->model, i))
			return NULL;
	return "their types are not among those that it computes with the card's bits";
}

/* Bytes a second that the link to the card carries, measured; 0: unknown, or the options say not to
 * measure it. A copier of the options (a test's) belongs to the loader and is not timed. */
static double link_rate(const struct stage *s, const struct engine_options *o)
{
	struct copier *copier;
	double bytes_s = 0;
	struct err e;
	if (o->copier || o->cpu_experts_slow || !s->backend->ops->copier_open ||
		s->backend->ops->copier_open(s->backend, &copier, &e))
		return 0;
	if (link_time(copier, &bytes_s, &e))
		log_verbose("the link to the card was not timed: %s", e.text);
	copier->ops->close(copier);
	return bytes_s;
}

static int open_host_experts(struct stage *s, const struct engine_options *o, struct err *e)
{
	struct host_experts *h;
	const bool has_all_layers = !s->config.first_layer && config_has_end(&s->config);
	const char *why = has_all_layers ? no_host_experts(s) : "there are several stages";
	if (why) {
		log_info("experts on the processor: none, %s", why);
		return 0;
	}
	int rc = host_experts_open(&s->config, s->backend, o->threads, o->nodes, s->plan.chunk, &h, e);
	if (rc)
		return rc;
	rc = moe_host_prepare(&s->model, h, link_rate(s, o), e);
	if (rc || !host_experts_any(h)) {
		host_experts_close(h);
		return rc;
	}
	s->model.host = s->host = h;
	return 0;
}

int stage_start(struct stage *s, const struct engine_options *o, bool is_last, struct err *e)
{
	const struct model_config *c = &s->config;
	const struct plan *p = &s->plan;
	int rc = model_init(&s->model, c, &s->weights, p->mtp ? p->sessions : 0, s->backend, s->source,
		p->embed_row, p->chunk, e);
	if (!rc && o->cpu_experts)
		rc = open_host_experts(s, o, e);
	s->link = rc || is_last ? NULL : stage_link_local();
	return rc;
}

void stages_stop(struct stage *stages, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct stage *s = &stages[i];
		struct expert_source *source = s->source ? s->source : s->experts;
		model_fini(&s->model);
		host_experts_close(s->host);
		s->host = NULL;
		if (source)
			source->ops->close(source); /* a wrapper closes what it wraps */
		s->source = s->experts = NULL;
	}
}

void stages_free(struct stage *stages, uint32_t n)
{
	stages_stop(stages, n);
	for (uint32_t i = 0; i < n; i++) {
		struct stage *s = &stages[i];
		if (s->link)
			s->link->ops->close(s->link);
		weights_free(&s->weights, s->backend);
		if (!s->backend)
			continue;
		kv_cache_fini(&s->kv, s->backend);
		s->backend->ops->close(s->backend);
	}
	free(stages);
}

/* ---- all stages ---- */

struct stage *engine_stage_of(const struct engine *g, uint32_t layer)
{
	struct stage *s = g->stages;
	while (s < engine_last(g) && layer >= s->config.end_layer)
		s++;
	return s;
}

/* The rows of the rank before, if there is one. */
static int receive_rows(struct engine *g, struct forward_rows *rows, struct err *e)
{
	struct stage_link *in = g->ranks->in;
	int rc = 0;
	if (!ranks_me(g->ranks->ranks))
		rc = engine_ranks_step(g->ranks, rows, e);
	if (!rc && in && rows->on_device_busy) {
		rows->on_device_busy(rows->user);
		rows->on_device_busy = NULL;
	}
	return rc || !in ? rc : in->ops->receive(in, &g->stages->model, rows->n, e);
}

int stage_forward(
	struct stage *s, const struct forward_rows *rows, uint32_t first_hidden, struct err *e)
{
	s->began_ns = clock_ns();
	int rc = model_forward(&s->model, &s->kv, rows, first_hidden, e);
	if (rc || first_hidden >= rows->n) {
		s->computing_ns += rc ? 0 : clock_ns() - s->began_ns;
		s->began_ns = 0;
	}
	s->n_steps += !rc;
	return rc;
}

/* A stage computes the rows and enqueues their copies to the next one. */
static int forward_and_send(struct stage *s, const struct forward_rows *rows, struct err *e)
{
	struct stage_link *l = s->link;
	int rc = stage_forward(s, rows, rows->n, e);
	if (rc || (rc = l->ops->send(l, &s->model, rows->n, e)))
		return rc;
	return l->ops->receive(l, &s[1].model, rows->n, e);
}

int stages_forward(
	struct stage *s, const struct forward_rows *rows, uint32_t first_hidden, struct err *e)
{
	struct forward_rows mine = *rows;
	struct stage *at = s;
	int rc = 0, late = 0;
	mine.hands_over = true;
	for (; at->link && !(rc = forward_and_send(at, &mine, e)); at++)
		mine.on_device_busy = NULL; /* was called */
	mine.hands_over = rows->hands_over;
	if (!rc)
		rc = stage_forward(at, &mine, first_hidden, e);
	/* The last stage has computed its expert ids, so the devices before it are idle or nearly so.
	 * A failure that one of them shows only now is a failure of the step. */
	for (struct stage *before = s; before < at; before++)
		late = late ? late : moe_drain(&before->model, rc ? NULL : e);
	if (rc || late)
		moe_drain(&at->model, NULL);
	return rc ? rc : late;
}

int engine_forward(
	struct engine *g, const struct forward_rows *rows, uint32_t first_hidden, struct err *e)
{
	struct forward_rows mine = *rows;
	engine_recover(g);
	if (!g->ranks)
		return engine_blame_file(g, stages_forward(g->stages, rows, first_hidden, e), e);
	int rc = receive_rows(g, &mine, e);
	const uint64_t start = clock_ns();
	if (!rc)
		rc = engine_blame_file(g, stages_forward(g->stages, &mine, first_hidden, e), e);
	if (rc || !g->ranks->out)
		return rc;
	if (g->ranks->counts_time)
		g->ranks->computing_ns += clock_ns() - start;
	struct stage_link *out = g->ranks->out;
	rc = gguf_check_lost(g->gguf, e);
	return rc ? rc : out->ops->send(out, &engine_last(g)->model, rows->n, e);
}

void engine_observe(struct engine *g, const struct model_observer *observer)
{
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++)
		model_observe(&g->stages[i].model, observer);
}

int engine_wait(const struct engine *g, struct err *e)
{
	int rc = 0;
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages && !rc; i++)
		rc = g->stages[i].backend->ops->wait(g->stages[i].backend, e);
	return rc;
}

void engine_recover(struct engine *g)
{
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++)
		g->stages[i].backend->ops->recover(g->stages[i].backend);
}

void engine_leave_out_drafts(struct engine *g, const struct err *why)
{
	struct backend *b = engine_last(g)->backend;
	if (!g->drafts_left_out)
		log_warn(
			"no memory for drafts (%s): some are left out, which changes no answer", why->text);
	g->drafts_left_out = true;
	b->ops->recover(b);
}

bool engine_drafts_lack_memory(struct engine *g)
{
	const struct err why = engine_last(g)->backend->failure;
	if (why.code != ERR_MEMORY)
		return false;
	engine_leave_out_drafts(g, &why);
	return true;
}

bool engine_has_failed(const struct engine *g)
{
	bool failed = false;
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++)
		failed |= g->stages[i].backend->failure.code != 0;
	return failed || (g->ranks && ranks_check(g->ranks->ranks, NULL));
}

void engine_keep_rows(struct engine *g, uint32_t first, uint32_t n)
{
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++) {
		struct expert_source *source = g->stages[i].source;
		if (source->ops->keep_rows)
			source->ops->keep_rows(source, (int)first, (int)n);
	}
	if (g->ranks)
		engine_ranks_command(
			g->ranks, &(struct rank_command){.code = RANK_KEEP_ROWS, .row = first, .n = n});
}
