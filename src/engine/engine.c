/* SPDX-License-Identifier: MIT */
/* Opens a model: parse, check, plan the memory, print the plan, refuse what does not fit, load. */
#include "src/engine/engine_internal.h"

#include "kernels/library.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/plan.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/stages/pipeline.h"
#include "src/forward/moe/host_experts.h"
#include "stream/access_recorder.h"
#include "stream/loader/loader.h"
#include "stream/source_mmap.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ids up to the last one that has a token. A vocabulary larger than the head is a fault of the
 * file. */
static int count_valid_ids(
	struct engine *g, const struct model_config *c, const char *path, struct err *e)
{
	uint32_t n = tokenizer_n_tokens(g->tokenizer);
	if (n > c->n_vocab)
		return err_set(e, ERR_INPUT, "%s: the tokenizer has %u tokens, the model %u rows", path, n,
			c->n_vocab);
	while (n && tokenizer_is_padding(g->tokenizer, (int32_t)n - 1))
		n--;
	if (!n)
		return err_set(e, ERR_INPUT, "%s: the tokenizer has no tokens", path);
	g->n_valid = (int32_t)n;
	return 0;
}

/* Two files are the same model if their tensor tables are equal. Weights are not read. */
uint64_t engine_fingerprint_of(const struct gguf *f)
{
	uint64_t h = HASH_START;
	for (size_t i = 0; i < f->n_tensors; i++) {
		const struct gguf_tensor *t = &f->tensors[i];
		uint64_t numbers[] = {t->type, t->ne[0], t->ne[1], t->ne[2], t->ne[3], t->file, t->offset};
		h = hash_bytes(h, t->name, strlen(t->name));
		h = hash_bytes(h, numbers, sizeof numbers);
	}
	return h ? h : 1;
}

static int open_trace(struct engine *g, const struct engine_options *o,
	const struct model_config *c, const struct model_weights *w, struct err *e)
{
	uint32_t n_layers = c->n_layers + c->n_mtp;
	uint64_t *bytes = NEW_ARRAY(uint64_t, n_layers);
	for (uint32_t i = 0; i < n_layers; i++)
		bytes[i] = weights_expert_bytes(w, i) / c->n_experts;
	struct trace_model m = {.fingerprint = g->fingerprint,
		.n_layers = n_layers,
		.n_experts = c->n_experts,
		.top_k = c->n_used,
		.name = c->name,
		.expert_bytes = bytes};
	g->trace = trace_writer_open(o->trace, o->force, &m, e);
	free(bytes);
	return g->trace ? 0 : e ? e->code : ERR_RUN;
}

/* s->source: the stage's experts, with what options put around them: an access recorder for a
 * profile or a trace, then the source of wrap_source. */
static int wrap_experts(
	struct engine *g, const struct engine_options *o, struct stage *s, struct err *e)
{
	s->source = s->experts;
	const bool counts = g->warm_path || g->profile_folder || g->counts_for_rank_0;
	if (counts || g->trace)
		s->source = access_recorder_open(s->experts, counts ? &g->profile : NULL, g->trace,
			g->config.n_experts, s->plan.loader.lookahead, s == g->stages);
	if (!o->wrap_source)
		return 0;
	struct expert_source *wrapped;
	int rc = o->wrap_source(o->wrap_user, &g->config, s->source, &wrapped, e);
	if (!rc)
		s->source = wrapped;
	return rc;
}

/* What of the cache does not change, over all stages here. */
static struct rank_figures describe_rank(const struct engine *g)
{
	const struct model_config *c = &g->config;
	struct rank_figures f = {.first_layer = g->stages->config.first_layer,
		.end_layer = engine_last(g)->config.end_layer,
		.n_stages = g->n_stages};
	for (uint32_t i = 0; i < g->n_stages; i++) {
		const struct stage *s = &g->stages[i];
		const struct plan *p = &s->plan;
		f.card[i] = s->card;
		f.expert_bytes += plan_expert_bytes(&s->weights, c->n_layers + c->n_mtp);
		for (uint32_t l = 0; l < c->n_layers + c->n_mtp; l++)
			f.n_experts += s->weights.experts[l].gate ? c->n_experts : 0;
		if (!p->streaming)
			continue;
		f.streaming = true;
		f.lookahead = MAX(f.lookahead, (uint32_t)MAX(p->loader.lookahead, 0));
		for (int tier = 0; tier < 2; tier++)
			f.tier_bytes[tier] += p->tiers.tier_bytes[tier];
		f.everything_bytes += p->tiers.everything_bytes;
	}
	return f;
}

static struct engine_cache make_engine_cache(const struct engine *g, const struct rank_figures *f)
{
	const struct model_config *c = &g->config;
	const char *given = g->stages->plan.loader.policy;
	/* its own name: the options' string is borrowed. NULL: opening will fail */
	const struct policy_ops *policy = policy_find(given ? given : POLICY_DEFAULT);
	return (struct engine_cache){.n_layers = c->n_layers + c->n_mtp,
		.n_experts = c->n_experts,
		.n_mtp = c->n_mtp,
		.streaming = g->streaming,
		.policy = g->streaming && policy ? policy->name : NULL,
		.lookahead = (int)f->lookahead,
		.tier_bytes = {f->tier_bytes[0], f->tier_bytes[1]},
		.everything_bytes = f->everything_bytes,
		.expert_bytes = f->streaming && f->n_experts ? f->expert_bytes / f->n_experts : 0};
}

/* Progress of the weights of one stage as part of all of them. */
struct stages_loading {
	const struct engine_options *o;
	uint64_t before, total; /* bytes of the stages before, of all */
};

static void on_stage_loading(void *user, uint64_t done, uint64_t total)
{
	const struct stages_loading *l = user;
	(void)total;
	l->o->loading(l->o->loading_user, l->before + done, l->total);
}

static int open_stages(struct engine *g, const struct engine_options *o, struct err *e)
{
	struct stages_loading loading = {.o = o};
	const struct weights_watch watch = {o->loading ? on_stage_loading : NULL, &loading};
	const struct stage_setup setup = {
		.options = o, .file = g->gguf, .check_values = g->check_values, .watch = &watch};
	int rc = 0;
	for (uint32_t i = 0; i < g->n_stages; i++)
		loading.total += g->stages[i].resident_bytes;
	for (uint32_t i = 0; i < g->n_stages && !rc; i++) {
		struct stage *s = &g->stages[i];
		rc = stage_open(s, &setup, e);
		loading.before += s->resident_bytes;
	}
	const bool is_worker = g->ranks && ranks_me(o->ranks);
	if (!rc && !is_worker)
		rc = engine_profile_open(g, o, &g->config, e);
	else if (!rc && g->ranks->counts)
		rc = engine_profile_count(g, &g->config, e);
	for (uint32_t i = 0; i < g->n_stages && !rc; i++) {
		struct stage *s = &g->stages[i];
		if (!(rc = wrap_experts(g, o, s, e)))
			rc = stage_start(s, o, s == engine_last(g), e);
	}
	return rc ? rc : gguf_check_names(g->gguf, e); /* readers have opened the files */
}

int engine_blame_file(const struct engine *g, int rc, struct err *e)
{
	const bool other = !rc || rc == ERR_INTERRUPTED || rc == ERR_MEMORY;
	return !other && gguf_check_lost_now(g->gguf, e) ? ERR_RUN : rc;
}

static int ready_ranks(struct engine *g, struct rank_figures *here, int rc, struct err *e)
{
	if (!rc) {
		here->sizes = engine_sizes(g);
		snprintf(here->io, sizeof here->io, "%s", engine_io_name(g));
	}
	return engine_ranks_ready(g, here, rc, e);
}

/* The file, backends for the stages, and how these compute prompts: what ranks compare. *whole: all
 * weights, bound. */
static int open_file(struct engine *g, const struct engine_options *o, struct model_weights *whole,
	size_t *whole_bytes, struct err *e)
{
	struct model_config *c = &g->config;
	int rc;
	if ((rc = model_file_open(o->model_path, &g->gguf, e)) || (rc = config_read(g->gguf, c, e)) ||
		(rc = tokenizer_from_gguf(g->gguf, &g->tokenizer, e)) ||
		(rc = count_valid_ids(g, c, o->model_path, e)) ||
		(rc = weights_bind(g->gguf, c, c->n_mtp && !o->no_mtp, whole, whole_bytes, e)) ||
		(rc = stages_new(o, c, &g->stages, &g->n_stages, e)))
		return rc;
	g->fingerprint = engine_fingerprint_of(g->gguf);
	g->library_version = backend_library_version(engine_last(g)->backend);
	const struct backend_ops *ops = engine_last(g)->backend->ops;
	const bool two_ways = ops->decode_rows < INT_MAX;
	g->exact_prompts = o->exact_prompts && two_ways && ops->async;
	g->fast_prompts = o->fast_prompts && two_ways && !ops->async;
	return 0;
}

/* keep: writes profile and trace; else their files stay as they are. */
static int close_engine(struct engine *g, bool keep, struct err *e)
{
	if (!g)
		return 0;
	int rc = 0;
	bool counted = true;
	pipeline_free(g->pipeline);
	g->pipeline = NULL;
	if (g->ranks)
		engine_ranks_stop(g->ranks); /* first: all ranks close their caches at once */
	stages_stop(g->stages, g->n_stages);
	if (g->ranks)
		counted = engine_ranks_take_counts(g);
	if (keep)
		rc = trace_writer_close(g->trace, e);
	else
		trace_writer_abort(g->trace);
	int failed = engine_profile_close(g, keep && counted, rc ? NULL : e);
	rc = rc ? rc : failed;
	engine_ranks_free(g->ranks);
	stages_free(g->stages, g->n_stages);
	tokenizer_free(g->tokenizer);
	check_values_free(g->check_values);
	gguf_close(g->gguf);
	free(g->taken);
	free(g);
	return rc;
}

int engine_open(const struct engine_options *options, struct engine **out, struct err *e)
{
	*out = NULL;
	struct engine *g = NEW(struct engine);
	struct engine_options given = *options;
	const struct engine_options *o = &given;
	if (o->nodes)
		g->nodes = *o->nodes;
	else
		numa_read_host(&g->nodes);
	given.nodes = &g->nodes;
	struct model_config *c = &g->config;
	struct model_weights whole = {0};
	size_t bytes;
	int rc = open_file(g, o, &whole, &bytes, e);
	if (o->ranks)
		rc = engine_ranks_handshake(g, o, rc, e);
	if (rc)
		goto out;
	if (o->verify != CHECK_OFF && (rc = check_values_open(g->gguf, &g->check_values, e)))
		goto out;
	for (unsigned i = 0; i < o->n_replicas; i++)
		if ((rc = gguf_watch_copy(g->gguf, o->replicas[i], e)))
			goto out;
	struct engine_options planned = *o;
	if (!g->check_values)
		planned.verify = CHECK_OFF;
	g->verify_off = o->verify == CHECK_OFF;
	if ((rc = stages_bind(g, o, &whole, bytes, e)) || (rc = stages_plan(g, &planned, e)))
		goto out;
	struct rank_figures here = describe_rank(g);
	g->streaming = here.streaming || (g->ranks && g->ranks->streaming);
	g->cache = make_engine_cache(g, &here);
	const struct plan *p = &g->stages->plan;
	g->context = p->context;
	g->chunk = p->chunk;
	g->n_sessions = p->sessions;
	g->taken = NEW_ARRAY(bool, p->sessions);
	const struct model_weights *w = whole.layers ? &whole : &g->stages->weights;
	if (o->trace)
		rc = open_trace(g, o, c, w, e);
	if (!rc)
		rc = open_stages(g, o, e);
	if (g->ranks)
		rc = ready_ranks(g, &here, rc, e);
	if (rc)
		goto out;
	weights_free(&whole, NULL);
	g->pipeline = pipeline_new(g);
	*out = g;
	return 0;
out:
	weights_free(&whole, NULL);
	close_engine(g, false, NULL); /* nothing was run */
	return rc;
}

int engine_close(struct engine *g, struct err *e)
{
	return close_engine(g, true, e);
}

uint64_t engine_fingerprint(const struct engine *g)
{
	return g->fingerprint;
}

const struct model_config *engine_config(const struct engine *g)
{
	return &g->config;
}

const struct tokenizer *engine_tokenizer(const struct engine *g)
{
	return g->tokenizer;
}

void engine_summary(const struct engine *g, char *out, size_t size)
{
	const struct model_config *c = &g->config;
	struct backend *b = g->stages->backend;
	const char *path = gguf_path(g->gguf), *slash = strrchr(path, '/');
	const uint64_t *tiers = g->cache.tier_bytes;
	char experts[96], stages[32] = "";
	if (g->ranks)
		snprintf(stages, sizeof stages, " on %u ranks", engine_n_ranks(g));
	else if (g->n_stages > 1)
		snprintf(stages, sizeof stages, " in %u stages", g->n_stages);
	if (g->streaming && tiers[1])
		snprintf(experts, sizeof experts, "streamed through a cache of %.4g GB + %.4g GB of RAM",
			(double)tiers[0] * 1e-9, (double)tiers[1] * 1e-9);
	else if (g->streaming)
		snprintf(experts, sizeof experts, "streamed through a cache of %.4g GB",
			(double)tiers[0] * 1e-9);
	else
		snprintf(experts, sizeof experts, "%s",
			strcmp(b->ops->name, "cpu") ? "all on the card" : "read where the file is mapped");
	snprintf(out, size,
		"%s: %u layers%s%s, %u experts (%u used), %s; %s (%s); context %u; bytes %s",
		c->name[0] ? c->name
		: slash    ? slash + 1
				   : path,
		c->n_layers, engine_has_mtp(g) ? " + MTP" : "", stages, c->n_experts, c->n_used, experts,
		b->ops->name, backend_describe(b), g->context,
		g->check_values ? "verified"
		: g->verify_off ? "not verified"
						: "not verified: the file has no check values");
}

const struct gguf *engine_gguf(const struct engine *g)
{
	return g->gguf;
}

uint32_t engine_context(const struct engine *g)
{
	return g->context;
}

bool engine_has_mtp(const struct engine *g)
{
	return engine_last(g)->model.has_mtp;
}

int32_t engine_n_valid(const struct engine *g)
{
	return g->n_valid;
}

const char *engine_backend_name(const struct engine *g)
{
	return engine_last(g)->backend->ops->name;
}

uint32_t engine_n_ranks(const struct engine *g)
{
	return g->ranks ? ranks_count(g->ranks->ranks) : 1;
}

bool engine_only_computes(const struct engine *g)
{
	return !g->ranks && !g->streaming && !strcmp(engine_backend_name(g), "cpu");
}

void engine_add_counters(uint64_t *sum, const uint64_t *part, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum[i] += part[i];
}

const char *engine_io_name(const struct engine *g)
{
	for (uint32_t i = 0; i < g->n_stages; i++)
		if (g->stages[i].streaming)
			return loader_reader_name(g->stages[i].experts);
	for (uint32_t i = 1; i < engine_n_ranks(g) && g->ranks->ready; i++)
		if (g->ranks->figures[i].streaming)
			return g->ranks->figures[i].io;
	return "mmap";
}

/* Counters, then how the drives are read: one stage reads at a time. */
void engine_add_expert_stats(struct expert_stats *sum, const struct expert_stats *part)
{
	engine_add_counters((uint64_t *)(void *)sum, (const uint64_t *)(const void *)part,
		offsetof(struct expert_stats, io_depth) / sizeof(uint64_t));
	sum->io_depth = MAX(sum->io_depth, part->io_depth);
	sum->io_slice_bytes = MAX(sum->io_slice_bytes, part->io_slice_bytes);
}

struct expert_stats engine_expert_stats(const struct engine *g)
{
	struct expert_stats sum = {0};
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++) {
		engine_add_expert_stats(&sum, &g->stages[i].experts->stats);
		host_experts_add_stats(g->stages[i].host, &sum);
	}
	if (g->ranks)
		engine_ranks_stats(g->ranks, &sum, NULL);
	return sum;
}

_Static_assert((int)ENGINE_NO_EXPERT == LOADER_NO_EXPERT && (int)ENGINE_ON_DISK == LOADER_ON_DISK &&
				   (int)ENGINE_IN_RAM == LOADER_IN_RAM && (int)ENGINE_LOADING == LOADER_LOADING &&
				   (int)ENGINE_IN_VRAM == LOADER_IN_VRAM,
	"places have the same numbers here and in the loader");

void engine_cache_warm(struct engine *g, const struct profile_key *keys, size_t n)
{
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++)
		if (g->stages[i].streaming)
			loader_warm(g->stages[i].experts, keys, n);
	if (g->ranks && !ranks_me(g->ranks->ranks))
		engine_ranks_warm(g->ranks, keys, n);
}

void engine_cache_snapshot(const struct engine *g, struct engine_cache *c, uint8_t *map)
{
	*c = g->cache;
	for (uint32_t i = 0; i < g->n_stages; i++) {
		const struct stage *s = &g->stages[i];
		struct expert_stats stats = {0};
		if (s->streaming)
			loader_residency_map(s->experts, map, &stats);
		else
			source_mmap_figures(s->experts, &stats);
		host_experts_add_stats(s->host, &stats);
		engine_add_expert_stats(&c->stats, &stats);
	}
	if (g->ranks)
		engine_ranks_snapshot(g, &c->stats, map);
	const uint32_t end = config_all_end(&engine_last(g)->config, true);
	for (uint32_t i = g->stages->config.first_layer; map && i < end; i++) {
		const struct stage *s = engine_stage_of(g, i);
		/* an MTP layer may be left out */
		bool loaded = s->model.weights.experts[i].gate != NULL;
		if (!loaded || !s->streaming)
			memset(map + (size_t)i * c->n_experts, loaded ? ENGINE_IN_VRAM : ENGINE_NO_EXPERT,
				c->n_experts);
	}
}

void engine_populate(struct engine *g)
{
	pipeline_settle(g->pipeline);
	for (uint32_t i = 0; i < g->n_stages; i++) {
		const struct stage *s = &g->stages[i];
		const struct workspace *ws = &s->model.ws;
		struct backend *b = s->backend;
		if (!b->ops->populate)
			continue;
		b->ops->populate(b, s->kv.arena, s->kv.bytes.device);
		b->ops->populate(b, s->kv.host, s->kv.bytes.host);
		b->ops->populate(b, ws->device, ws->device_bytes);
		b->ops->populate(b, ws->shared, ws->shared_bytes);
	}
	if (g->ranks)
		engine_ranks_command(g->ranks, &(struct rank_command){.code = RANK_POPULATE});
}

struct engine_sizes engine_sizes(const struct engine *g)
{
	const struct model_config *c = &g->config;
	struct engine_sizes sum = {0};
	for (uint32_t k = 0; k < g->n_stages; k++) {
		const struct stage *s = &g->stages[k];
		const struct model_weights *w = &s->model.weights;
		sum.resident_bytes += w->arena_bytes;
		sum.kv_bytes += s->kv.bytes.device;
		sum.kv_host_bytes += s->kv.bytes.host;
		sum.workspace_bytes += s->model.ws.device_bytes + s->model.ws.shared_bytes;
		sum.resident_per_token += w->head.stack_bytes;
		for (uint32_t i = s->config.first_layer; i < s->config.end_layer; i++) {
			uint64_t experts = weights_expert_bytes(w, i);
			sum.resident_per_token += weights_layer_bytes(w, i);
			sum.experts_bytes += experts;
			sum.experts_per_token += experts / c->n_experts * c->n_used;
		}
	}
	for (uint32_t i = 1; i < engine_n_ranks(g) && g->ranks->ready; i++)
		engine_add_counters((uint64_t *)(void *)&sum,
			(const uint64_t *)(const void *)&g->ranks->figures[i].sizes,
			sizeof sum / sizeof(uint64_t));
	return sum;
}
