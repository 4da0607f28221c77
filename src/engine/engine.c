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
	for (uint32_t i = 0; i < n_layers; i++) {
		const struct expert_tensors *x = &w->experts[i];
		if (x->gate)
			bytes[i] = (x->gate->bytes + x->up->bytes + x->down->bytes) / c->n_experts;
	}
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

/* g->source: the experts, with what options put around them: an access recorder for a profile or a
 * trace, then the source of wrap_source. */
static int wrap_experts(struct engine *g, const struct engine_options *o, const struct plan *p,
	const struct model_config *c, const struct model_weights *w, struct err *e)
{
	int rc;
	g->source = g->experts;
	if ((rc = engine_profile_open(g, o, c, e)) || (o->trace && (rc = open_trace(g, o, c, w, e))))
		return rc;
	const bool counts = g->warm_path || g->profile_folder;
	if (counts || o->trace)
		g->source = access_recorder_open(
			g->experts, counts ? &g->profile : NULL, g->trace, p->loader.lookahead);
	if (!o->wrap_source)
		return 0;
	struct expert_source *wrapped;
	if (!(rc = o->wrap_source(o->wrap_user, c, g->source, &wrapped, e)))
		g->source = wrapped;
	return rc;
}

static struct engine_cache make_engine_cache(
	const struct model_config *c, const struct model_weights *w, const struct plan *p)
{
	struct engine_cache k = {
		.n_layers = c->n_layers + c->n_mtp, .n_experts = c->n_experts, .n_mtp = c->n_mtp};
	uint64_t n_moe = 0;
	for (uint32_t i = 0; i < k.n_layers; i++)
		n_moe += w->experts[i].gate != NULL;
	if (!p->streaming)
		return k;
	k.streaming = true;
	k.policy = p->loader.policy ? p->loader.policy : POLICY_DEFAULT;
	k.lookahead = p->loader.lookahead;
	memcpy(k.tier_bytes, p->tiers.tier_bytes, sizeof k.tier_bytes);
	k.everything_bytes = p->tiers.everything_bytes;
	k.expert_bytes = n_moe ? plan_expert_bytes(w, k.n_layers) / (n_moe * c->n_experts) : 0;
	return k;
}

int engine_open(const struct engine_options *o, struct engine **out, struct err *e)
{
	*out = NULL;
	struct engine *g = NEW(struct engine);
	struct model_config config;
	struct model_weights weights = {0};
	struct plan p;
	size_t resident;
	bool mtp;
	int rc;

	if ((rc = gguf_open(o->model_path, &g->gguf, e)) || (rc = config_read(g->gguf, &config, e)) ||
		(rc = tokenizer_from_gguf(g->gguf, &g->tokenizer, e)) ||
		(rc = count_valid_ids(g, &config, o->model_path, e)))
		goto out;
	mtp = config.n_mtp && !o->no_mtp;
	if ((rc = weights_bind(g->gguf, &config, mtp, &weights, &resident, e)))
		goto out;
	const struct weights_watch loading = {o->loading, o->loading_user};
	struct backend_options bo = {
		.name = o->backend ? o->backend : "auto", .threads = o->threads, .no_graphs = o->no_graphs};
	if ((rc = backend_open(&bo, &g->backend, e)))
		goto out;
	struct engine_options planned = *o;
	if (o->verify != CHECK_OFF && (rc = check_values_open(g->gguf, &g->check_values, e)))
		goto out;
	if (!g->check_values)
		planned.verify = CHECK_OFF;
	if ((rc = plan_make(&config, &planned, g->gguf, &weights, resident, g->backend, &p, e)))
		goto out;
	p.loader.check_values = g->check_values;
	if (p.streaming && (rc = loader_open(&p.loader, &g->experts, e)))
		goto out;
	if ((rc = weights_load(g->gguf, &config, mtp, g->backend, &weights, &loading, &o->reader,
			 g->check_values, e)) ||
		(rc = kv_cache_init(
			 &g->kv, &config, mtp, p.kv_type, p.context * p.sessions, g->backend, e)))
		goto out;
	int n_layers = (int)(config.n_layers + config.n_mtp);
	if (!p.streaming && p.on_card)
		rc = source_device_open(weights.experts, n_layers,
			&(struct tensor_load_options){.file = g->gguf,
				.backend = g->backend,
				.reader = o->reader,
				.check_values = g->check_values,
				.progress = o->loading,
				.user = o->loading_user},
			&g->experts, e);
	else if (!p.streaming) {
		g->experts = source_mmap_open(weights.experts, n_layers);
		source_mmap_check(g->experts, g->check_values, o->verify);
	}
	if (rc)
		goto out;
	if (p.streaming)
		loader_pin_in_background(g->experts); /* the weights had the drive to themselves */
	g->streaming = p.streaming;
	g->verify_off = o->verify == CHECK_OFF;
	g->cache = make_engine_cache(&config, &weights, &p);
	g->fingerprint = engine_fingerprint_of(g->gguf);
	if ((rc = wrap_experts(g, o, &p, &config, &weights, e)) ||
		(rc = model_init(&g->model, &config, &weights, mtp ? p.sessions : 0, g->backend, g->source,
			 p.embed_row, p.chunk, e)))
		goto out;
	g->context = p.context;
	g->chunk = p.chunk;
	g->n_sessions = p.sessions;
	g->taken = NEW_ARRAY(bool, p.sessions);
	*out = g;
	return 0;
out:
	weights_free(&weights, g->backend);
	engine_profile_close(g, false, NULL); /* nothing was run: the profile stays as it is */
	engine_close(g, NULL);
	return rc;
}

int engine_close(struct engine *g, struct err *e)
{
	if (!g)
		return 0;
	int rc = 0;
	model_fini(&g->model);
	if (g->source || g->experts) {
		struct expert_source *s = g->source ? g->source : g->experts;
		s->ops->close(s); /* a wrapper closes what it wraps */
	}
	if (g->trace)
		rc = trace_writer_close(g->trace, e);
	int failed = engine_profile_close(g, true, rc ? NULL : e);
	rc = rc ? rc : failed;
	if (g->backend) {
		kv_cache_fini(&g->kv, g->backend);
		g->backend->ops->close(g->backend);
	}
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
	return &g->model.config;
}

const struct tokenizer *engine_tokenizer(const struct engine *g)
{
	return g->tokenizer;
}

void engine_summary(const struct engine *g, char *out, size_t size)
{
	const struct model_config *c = &g->model.config;
	const char *path = g->gguf->files[0].path, *slash = strrchr(path, '/');
	const uint64_t *tiers = g->cache.tier_bytes;
	char experts[96];
	if (g->streaming && tiers[1])
		snprintf(experts, sizeof experts, "streamed through a cache of %.4g GB + %.4g GB of RAM",
			(double)tiers[0] * 1e-9, (double)tiers[1] * 1e-9);
	else if (g->streaming)
		snprintf(experts, sizeof experts, "streamed through a cache of %.4g GB",
			(double)tiers[0] * 1e-9);
	else
		snprintf(experts, sizeof experts, "%s",
			strcmp(g->backend->ops->name, "cpu") ? "all on the card"
												 : "read where the file is mapped");
	snprintf(out, size, "%s: %u layers%s, %u experts (%u used), %s; %s (%s); context %u; bytes %s",
		c->name[0] ? c->name
		: slash    ? slash + 1
				   : path,
		c->n_layers, g->model.has_mtp ? " + MTP" : "", c->n_experts, c->n_used, experts,
		g->backend->ops->name, backend_describe(g->backend), g->context,
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
	return g->model.has_mtp;
}

int32_t engine_n_valid(const struct engine *g)
{
	return g->n_valid;
}

const char *engine_backend_name(const struct engine *g)
{
	return g->backend->ops->name;
}

bool engine_only_computes(const struct engine *g)
{
	struct engine_cache cache;
	engine_cache_snapshot(g, &cache, NULL);
	return !cache.streaming && !strcmp(engine_backend_name(g), "cpu");
}

void engine_usage(struct engine *g, struct backend_usage *out)
{
	g->backend->ops->usage(g->backend, out);
}

void engine_measure(struct engine *g, bool on)
{
	g->backend->ops->measure(g->backend, on);
}

const char *engine_io_name(const struct engine *g)
{
	return g->streaming ? loader_reader_name(g->experts) : "mmap";
}

struct expert_stats engine_expert_stats(const struct engine *g)
{
	return g->experts->stats;
}

_Static_assert((int)ENGINE_NO_EXPERT == LOADER_NO_EXPERT && (int)ENGINE_ON_DISK == LOADER_ON_DISK &&
				   (int)ENGINE_IN_RAM == LOADER_IN_RAM && (int)ENGINE_LOADING == LOADER_LOADING &&
				   (int)ENGINE_IN_VRAM == LOADER_IN_VRAM,
	"places have the same numbers here and in the loader");

void engine_cache_warm(struct engine *g, const struct profile_key *keys, size_t n)
{
	if (g->streaming)
		loader_warm(g->experts, keys, n);
}

void engine_cache_snapshot(const struct engine *g, struct engine_cache *c, uint8_t *map)
{
	*c = g->cache;
	if (g->streaming)
		loader_residency_map(g->experts, map, &c->stats);
	else
		source_mmap_figures(g->experts, &c->stats);
	for (uint32_t i = 0; map && i < c->n_layers; i++) {
		bool loaded = g->model.weights.experts[i].gate != NULL; /* an MTP layer may be left out */
		if (!loaded || !g->streaming)
			memset(map + (size_t)i * c->n_experts, loaded ? ENGINE_IN_VRAM : ENGINE_NO_EXPERT,
				c->n_experts);
	}
}

void engine_populate(struct engine *g)
{
	struct backend *b = g->backend;
	const struct workspace *ws = &g->model.ws;
	if (!b->ops->populate)
		return;
	b->ops->populate(b, g->kv.arena, g->kv.arena_bytes);
	b->ops->populate(b, ws->device, ws->device_bytes);
	b->ops->populate(b, ws->shared, ws->shared_bytes);
}

struct engine_sizes engine_sizes(const struct engine *g)
{
	const struct model_config *c = &g->model.config;
	const struct model_weights *w = &g->model.weights;
	struct engine_sizes s = {
		.resident_bytes = w->arena_bytes,
		.kv_bytes = g->kv.arena_bytes,
		.workspace_bytes = g->model.ws.device_bytes + g->model.ws.shared_bytes,
		.resident_per_token = w->head.stack_bytes,
	};
	for (uint32_t i = 0; i < c->n_layers; i++) {
		const struct layer_weights *l = &w->layers[i];
		const struct weight *all[] = {&l->q_a, &l->q_b, &l->kv_a, &l->k_b, &l->v_b, &l->attn_out,
			&l->index_q, &l->index_k, &l->index_proj, &l->gate, &l->up, &l->down, &l->router};
		for (size_t k = 0; k < ARRAY_LEN(all); k++)
			s.resident_per_token += (uint64_t)all[k]->n_stack * all[k]->stack_bytes;
		if (!config_is_moe(c, i))
			continue;
		const struct expert_tensors *x = &w->experts[i];
		uint64_t layer = x->gate->bytes + x->up->bytes + x->down->bytes;
		s.experts_bytes += layer;
		s.experts_per_token += layer / c->n_experts * c->n_used;
	}
	return s;
}
