/* SPDX-License-Identifier: MIT */
/* Opens a model: parse, check, plan the memory, print the plan, refuse what does not fit, load. */
#include "src/engine/engine_internal.h"

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/plan.h"
#include "stream/loader/loader.h"
#include "stream/access_recorder.h"
#include "stream/source_mmap.h"

#include <math.h>
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
	const bool counts = g->warm_path || g->profile_folder;
	if (counts || g->trace)
		s->source = access_recorder_open(s->experts, counts ? &g->profile : NULL, g->trace,
			s->plan.loader.lookahead, s == g->stages);
	if (!o->wrap_source)
		return 0;
	struct expert_source *wrapped;
	int rc = o->wrap_source(o->wrap_user, &g->config, s->source, &wrapped, e);
	if (!rc)
		s->source = wrapped;
	return rc;
}

/* What of the cache does not change, over all stages. */
static struct engine_cache make_engine_cache(const struct engine *g)
{
	const struct model_config *c = &g->config;
	struct engine_cache k = {
		.n_layers = c->n_layers + c->n_mtp, .n_experts = c->n_experts, .n_mtp = c->n_mtp};
	uint64_t n_experts = 0, bytes = 0;
	for (uint32_t i = 0; i < g->n_stages; i++) {
		const struct stage *s = &g->stages[i];
		const struct plan *p = &s->plan;
		if (!p->streaming)
			continue;
		k.streaming = true;
		k.policy = p->loader.policy ? p->loader.policy : POLICY_DEFAULT;
		k.lookahead = MAX(k.lookahead, p->loader.lookahead);
		for (int tier = 0; tier < 2; tier++)
			k.tier_bytes[tier] += p->tiers.tier_bytes[tier];
		k.everything_bytes += p->tiers.everything_bytes;
		bytes += plan_expert_bytes(&s->weights, k.n_layers);
		for (uint32_t l = 0; l < k.n_layers; l++)
			n_experts += s->weights.experts[l].gate ? c->n_experts : 0;
	}
	k.expert_bytes = n_experts ? bytes / n_experts : 0;
	return k;
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
	if (!rc)
		rc = engine_profile_open(g, o, &g->config, e);
	for (uint32_t i = 0; i < g->n_stages && !rc; i++) {
		struct stage *s = &g->stages[i];
		if (!(rc = wrap_experts(g, o, s, e)))
			rc = stage_start(s, s == engine_last(g), e);
	}
	return rc;
}

int engine_open(const struct engine_options *o, struct engine **out, struct err *e)
{
	*out = NULL;
	struct engine *g = NEW(struct engine);
	struct model_config *c = &g->config;
	struct model_weights whole = {0};
	size_t bytes;
	int rc;

	if ((rc = gguf_open(o->model_path, &g->gguf, e)) || (rc = config_read(g->gguf, c, e)) ||
		(rc = tokenizer_from_gguf(g->gguf, &g->tokenizer, e)) ||
		(rc = count_valid_ids(g, c, o->model_path, e)) ||
		(rc = weights_bind(g->gguf, c, c->n_mtp && !o->no_mtp, &whole, &bytes, e)) ||
		(rc = stages_new(o, c, &g->stages, &g->n_stages, e)))
		goto out;
	g->fingerprint = engine_fingerprint_of(g->gguf);
	if (o->verify != CHECK_OFF && (rc = check_values_open(g->gguf, &g->check_values, e)))
		goto out;
	struct engine_options planned = *o;
	if (!g->check_values)
		planned.verify = CHECK_OFF;
	g->verify_off = o->verify == CHECK_OFF;
	if ((rc = stages_bind(g->stages, g->n_stages, o, g->gguf, c, &whole, bytes, e)) ||
		(rc = stages_plan(g->stages, g->n_stages, &planned, g->gguf, e)))
		goto out;
	g->cache = make_engine_cache(g);
	g->streaming = g->cache.streaming;
	const struct model_weights *w = g->n_stages == 1 ? &g->stages->weights : &whole;
	if ((o->trace && (rc = open_trace(g, o, c, w, e))) || (rc = open_stages(g, o, e)))
		goto out;
	const struct plan *p = &g->stages->plan;
	g->context = p->context;
	g->chunk = p->chunk;
	g->n_sessions = p->sessions;
	g->taken = NEW_ARRAY(bool, p->sessions);
	weights_free(&whole, NULL);
	*out = g;
	return 0;
out:
	weights_free(&whole, NULL);
	engine_profile_close(g, false, NULL); /* nothing was run: the profile stays as it is */
	engine_close(g, NULL);
	return rc;
}

int engine_close(struct engine *g, struct err *e)
{
	if (!g)
		return 0;
	int rc = 0;
	stages_stop(g->stages, g->n_stages);
	if (g->trace)
		rc = trace_writer_close(g->trace, e);
	int failed = engine_profile_close(g, true, rc ? NULL : e);
	rc = rc ? rc : failed;
	stages_free(g->stages, g->n_stages);
	tokenizer_free(g->tokenizer);
	check_values_free(g->check_values);
	gguf_close(g->gguf);
	free(g->taken);
	free(g);
	return rc;
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
	const char *path = g->gguf->files[0].path, *slash = strrchr(path, '/');
	const uint64_t *tiers = g->cache.tier_bytes;
	char experts[96], stages[32] = "";
	if (g->n_stages > 1)
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

bool engine_only_computes(const struct engine *g)
{
	struct engine_cache cache;
	engine_cache_snapshot(g, &cache, NULL);
	return !cache.streaming && !strcmp(engine_backend_name(g), "cpu");
}

/* sum += part, n counters each. */
static void add_counters(uint64_t *sum, const uint64_t *part, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sum[i] += part[i];
}

_Static_assert(
	offsetof(struct backend_usage, event_gap_ns) + sizeof(double) == sizeof(struct backend_usage),
	"counters, then the gap");
#define USAGE_COUNTERS (offsetof(struct backend_usage, event_gap_ns) / sizeof(uint64_t))

void engine_usage(struct engine *g, struct backend_usage *out)
{
	*out = (struct backend_usage){0};
	for (uint32_t i = 0; i < g->n_stages; i++) {
		struct backend *b = g->stages[i].backend;
		struct backend_usage part = {0};
		b->ops->usage(b, &part);
		add_counters((uint64_t *)(void *)out, (const uint64_t *)(void *)&part, USAGE_COUNTERS);
		out->event_gap_ns = fmax(out->event_gap_ns, part.event_gap_ns);
	}
}

void engine_measure(struct engine *g, bool on)
{
	for (uint32_t i = 0; i < g->n_stages; i++)
		g->stages[i].backend->ops->measure(g->stages[i].backend, on);
}

const char *engine_io_name(const struct engine *g)
{
	for (uint32_t i = 0; i < g->n_stages; i++)
		if (g->stages[i].streaming)
			return loader_reader_name(g->stages[i].experts);
	return "mmap";
}

/* Counters, then how the drives are read: one stage reads at a time. */
static void add_expert_stats(struct expert_stats *sum, const struct expert_stats *part)
{
	add_counters((uint64_t *)(void *)sum, (const uint64_t *)(const void *)part,
		offsetof(struct expert_stats, io_depth) / sizeof(uint64_t));
	sum->io_depth = MAX(sum->io_depth, part->io_depth);
	sum->io_slice_bytes = MAX(sum->io_slice_bytes, part->io_slice_bytes);
}

struct expert_stats engine_expert_stats(const struct engine *g)
{
	struct expert_stats sum = {0};
	for (uint32_t i = 0; i < g->n_stages; i++)
		add_expert_stats(&sum, &g->stages[i].experts->stats);
	return sum;
}

_Static_assert((int)ENGINE_NO_EXPERT == LOADER_NO_EXPERT && (int)ENGINE_ON_DISK == LOADER_ON_DISK &&
				   (int)ENGINE_IN_RAM == LOADER_IN_RAM && (int)ENGINE_LOADING == LOADER_LOADING &&
				   (int)ENGINE_IN_VRAM == LOADER_IN_VRAM,
	"places have the same numbers here and in the loader");

void engine_cache_warm(struct engine *g, const struct profile_key *keys, size_t n)
{
	for (uint32_t i = 0; i < g->n_stages; i++)
		if (g->stages[i].streaming)
			loader_warm(g->stages[i].experts, keys, n);
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
		add_expert_stats(&c->stats, &stats);
	}
	for (uint32_t i = 0; map && i < c->n_layers; i++) {
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
	for (uint32_t i = 0; i < g->n_stages; i++) {
		const struct stage *s = &g->stages[i];
		const struct workspace *ws = &s->model.ws;
		struct backend *b = s->backend;
		if (!b->ops->populate)
			continue;
		b->ops->populate(b, s->kv.arena, s->kv.arena_bytes);
		b->ops->populate(b, ws->device, ws->device_bytes);
		b->ops->populate(b, ws->shared, ws->shared_bytes);
	}
}

struct engine_sizes engine_sizes(const struct engine *g)
{
	const struct model_config *c = &g->config;
	struct engine_sizes sum = {0};
	for (uint32_t k = 0; k < g->n_stages; k++) {
		const struct stage *s = &g->stages[k];
		const struct model_weights *w = &s->model.weights;
		sum.resident_bytes += w->arena_bytes;
		sum.kv_bytes += s->kv.arena_bytes;
		sum.workspace_bytes += s->model.ws.device_bytes + s->model.ws.shared_bytes;
		sum.resident_per_token += w->head.stack_bytes;
		for (uint32_t i = s->config.first_layer; i < s->config.end_layer; i++) {
			uint64_t experts = weights_expert_bytes(w, i);
			sum.resident_per_token += weights_layer_bytes(w, i);
			sum.experts_bytes += experts;
			sum.experts_per_token += experts / c->n_experts * c->n_used;
		}
	}
	return sum;
}
