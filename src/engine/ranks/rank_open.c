/* SPDX-License-Identifier: MIT */
/* How the engines of several ranks open together: the list is in rank_protocol.h. */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/version.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/ranks/rank_cards.h"
#include "src/engine/ranks/rank_link.h"
#include "src/engine/session/session_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same everywhere ---- */

static struct rank_start describe_start(struct engine *g, const struct engine_options *o)
{
	struct rank_start s = {.fingerprint = g->fingerprint,
		.rows_fingerprint = session_fingerprint(g),
		.kv_f32 = o->kv_f32,
		.kv_f8 = o->kv_f8,
		.exact_prompts = o->exact_prompts,
		.library_version = g->library_version,
		.sessions = MAX(o->sessions, 1u),
		.counts = o->warm || o->profile_folder};
	snprintf(s.version, sizeof s.version, "%s", GLM_VERSION);
	snprintf(s.backend, sizeof s.backend, "%s%s", engine_backend_name(g),
		g->fast_prompts ? " fast" : "");
	return s;
}

/* "13.1.0", or "none"; out [LIBRARY_TEXT]. */
#define LIBRARY_TEXT 36
static const char *print_library(uint32_t version, char *out)
{
	snprintf(out, LIBRARY_TEXT, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
	return version ? out : "none";
}

/* Their products differ in the last bits (kernels/library.h): the same text would be computed in
 * another way on each rank. */
static int refuse_library(uint32_t mine, uint32_t first, struct err *e)
{
	char a[LIBRARY_TEXT], b[LIBRARY_TEXT];
	err_set(e, ERR_RUN, "cublasLt, which multiplies prompts, is %s, that of rank 0 is %s",
		print_library(mine, a), print_library(first, b));
	return err_hint(e, "the same version on all hosts, or --exact-prompts, which does without it");
}

static int compare_start(
	const struct rank_start *mine, const struct rank_start *first, struct err *e)
{
	if (strncmp(mine->version, first->version, sizeof mine->version) != 0)
		return err_set(e, ERR_RUN, "the program is version %.31s, that of rank 0 is %.31s",
			mine->version, first->version);
	if (mine->fingerprint != first->fingerprint ||
		mine->rows_fingerprint != first->rows_fingerprint)
		return err_set(e, ERR_RUN,
			"the model file is not that of rank 0: fingerprint %016llx, expected %016llx",
			(unsigned long long)(mine->fingerprint ^ mine->rows_fingerprint),
			(unsigned long long)(first->fingerprint ^ first->rows_fingerprint));
	if (strncmp(mine->backend, first->backend, sizeof mine->backend) != 0)
		return err_set(e, ERR_RUN, "the backend is %.15s, that of rank 0 is %.15s", mine->backend,
			first->backend);
	if (mine->kv_f32 != first->kv_f32)
		return err_set(e, ERR_RUN, "--kv-f32 is not given on all ranks");
	if (mine->kv_f8 != first->kv_f8)
		return err_set(e, ERR_RUN, "--kv-type is not the same on all ranks");
	if (mine->exact_prompts != first->exact_prompts)
		return err_set(e, ERR_RUN, "--exact-prompts is not given on all ranks");
	if (mine->library_version != first->library_version)
		return refuse_library(mine->library_version, first->library_version, e);
	if (mine->sessions != first->sessions)
		return err_set(e, ERR_RUN, "%u sessions were asked for, by rank 0 %u", mine->sessions,
			first->sessions);
	return 0;
}

static int check_options(const struct engine_options *o, struct err *e)
{
	if (o->trace)
		return err_set(
			e, ERR_USAGE, "--trace records the routing of all layers: it takes one rank");
	if (o->wrap_source || o->cuts || o->copier)
		return err_set(e, ERR_USAGE, "a replayed or observed routing takes one rank");
	return 0;
}

int engine_ranks_handshake(struct engine *g, const struct engine_options *o, int rc, struct err *e)
{
	struct engine_ranks *k = g->ranks = NEW(struct engine_ranks);
	k->ranks = o->ranks;
	if (!rc)
		rc = check_options(o, e);
	if ((rc = ranks_agree(k->ranks, rc, e)))
		return rc;
	const struct rank_start mine = describe_start(g, o);
	struct rank_start first = mine;
	if ((rc = ranks_broadcast(k->ranks, &first, sizeof first, e)))
		return rc;
	k->counts = first.counts;
	rc = compare_start(&mine, &first, e);
	if ((rc = ranks_agree(k->ranks, rc, e)))
		return rc;
	const bool named = o->n_cards && o->n_cards != ENGINE_CARDS_AUTO;
	const struct rank_cards cards = rank_cards_describe(g->stages, g->n_stages, named);
	return rank_cards_check(k->ranks, &cards, e);
}

/* ---- layers and memory ---- */

/* Rank 0: over the stages of all ranks. */
static int cut_all(struct engine *g, const struct rank_room *rooms, bool mtp,
	const struct model_weights *whole, struct err *e)
{
	struct engine_ranks *k = g->ranks;
	const uint32_t n_layers = g->config.n_layers;
	const uint32_t count = ranks_count(k->ranks);
	struct stage_capacity stages[STAGES_MAX];
	uint32_t n = 0;
	for (uint32_t place = 0; place < count; place++) {
		const struct rank_room *room = &rooms[rank_at(k->ranks, place)];
		if (!room->n_stages || room->n_stages > STAGES_MAX)
			return err_set(e, ERR_RUN, "%s has %u stages, expected 1 to %d",
				ranks_name(k->ranks, rank_at(k->ranks, place)), room->n_stages, STAGES_MAX);
		k->cuts.first_stage[place] = n;
		for (uint32_t i = 0; i < room->n_stages; i++, n++)
			if (n < STAGES_MAX)
				stages[n] = room->stages[i];
	}
	k->cuts.first_stage[count] = n;
	if (n > n_layers || n > STAGES_MAX)
		return err_set(e, ERR_USAGE,
			"%u ranks make %u stages, the model has %u layers and %d stages are possible", count, n,
			n_layers, STAGES_MAX);
	stages_balance(&g->config, mtp, whole, stages, n, k->cuts.first);
	k->cuts.first[n] = n_layers;
	return 0;
}

int engine_ranks_cut(struct engine *g, const struct rank_room *mine, bool mtp,
	const struct model_weights *whole, struct err *e)
{
	struct engine_ranks *k = g->ranks;
	struct rank_room *rooms = NEW_ARRAY(struct rank_room, ranks_count(k->ranks));
	int rc = ranks_gather(k->ranks, mine, sizeof *mine, rooms, e);
	if (!rc && !ranks_me(k->ranks))
		rc = cut_all(g, rooms, mtp, whole, e);
	free(rooms);
	rc = ranks_check(k->ranks, e) ? ERR_RUN : ranks_agree(k->ranks, rc, e);
	return rc ? rc : ranks_broadcast(k->ranks, &k->cuts, sizeof k->cuts, e);
}

int engine_ranks_limits(struct engine_ranks *k, struct rank_limits *limits, struct err *e)
{
	struct rank_limits *all = NEW_ARRAY(struct rank_limits, ranks_count(k->ranks));
	int rc = ranks_gather(k->ranks, limits, sizeof *limits, all, e);
	for (uint32_t i = 0; i < ranks_count(k->ranks) && !rc && !ranks_me(k->ranks); i++) {
		limits->context = MIN(limits->context, all[i].context);
		limits->chunk = MIN(limits->chunk, all[i].chunk);
		limits->streaming |= all[i].streaming;
	}
	free(all);
	if (!rc)
		rc = ranks_broadcast(k->ranks, limits, sizeof *limits, e);
	k->streaming = !rc && limits->streaming;
	return rc;
}

/* ---- ready ---- */

/* By the thread of the heartbeats. */
static void abort_links(void *user, const char *why)
{
	struct engine_ranks *k = user;
	rank_link_abort(k->in, why);
	rank_link_abort(k->out, why);
}

static int open_links(struct engine *g, struct err *e)
{
	struct engine_ranks *k = g->ranks;
	const uint32_t place = rank_place(k->ranks, ranks_me(k->ranks));
	struct rank_link_ends ends = {.config = &g->config, .max_rows = g->stages->plan.chunk};
	int rc = 0;
	if (place) {
		ends.other = rank_at(k->ranks, place - 1);
		ends.backend = g->stages->backend;
		ends.layer = g->stages->config.first_layer;
		rc = rank_link_open(k->ranks, &ends, &k->in, e);
	}
	if (ranks_me(k->ranks)) { /* after an error too: the other end waits */
		ends.other = rank_at(k->ranks, place + 1);
		ends.sends = true;
		ends.backend = engine_last(g)->backend;
		ends.layer = engine_last(g)->config.end_layer;
		int failed = rank_link_open(k->ranks, &ends, &k->out, rc ? NULL : e);
		rc = rc ? rc : failed;
	}
	ranks_on_loss(k->ranks, abort_links, k);
	return rc;
}

static void log_ranks(const struct engine *g)
{
	const struct engine_ranks *k = g->ranks;
	for (uint32_t place = 0; place < ranks_count(k->ranks); place++) {
		const uint32_t rank = rank_at(k->ranks, place);
		const struct rank_figures *f = &k->figures[rank];
		char stages[32] = "", cache[48] = "";
		if (f->n_stages > 1)
			snprintf(stages, sizeof stages, " in %u stages", f->n_stages);
		if (f->streaming)
			snprintf(cache, sizeof cache, ", cache of %.4g GB",
				(double)(f->tier_bytes[0] + f->tier_bytes[1]) / 1e9);
		log_info("%s: layers %u to %u%s%s, %.3f GB of weights and %.3f GB of experts%s",
			ranks_name(k->ranks, rank), f->first_layer, f->end_layer - 1,
			!rank && engine_has_mtp(g) ? " and MTP" : "", stages,
			(double)f->sizes.resident_bytes / 1e9, (double)f->expert_bytes / 1e9, cache);
	}
}

int engine_ranks_ready(struct engine *g, const struct rank_figures *mine, int rc, struct err *e)
{
	struct engine_ranks *k = g->ranks;
	/* both ends of a link exchange messages: a rank that did not load must not be waited for */
	if ((rc = ranks_agree(k->ranks, rc, e)))
		return rc;
	k->figures = NEW_ARRAY(struct rank_figures, ranks_count(k->ranks));
	rc = open_links(g, e);
	rc = rc ? rc : engine_ranks_reserve(g, e);
	if ((rc = ranks_agree(k->ranks, rc, e)) ||
		(rc = ranks_gather(k->ranks, mine, sizeof *mine, k->figures, e)) || ranks_me(k->ranks))
		return rc;
	struct engine_cache *cache = &g->cache;
	uint64_t bytes = 0, n = 0;
	for (uint32_t i = 0; i < ranks_count(k->ranks); i++) {
		const struct rank_figures *f = &k->figures[i];
		k->figures[i].io[sizeof f->io - 1] = 0;
		bytes += f->expert_bytes;
		n += f->n_experts;
		if (!i || !f->streaming)
			continue;
		cache->lookahead = MAX(cache->lookahead, (int)f->lookahead);
		cache->tier_bytes[0] += f->tier_bytes[0];
		cache->tier_bytes[1] += f->tier_bytes[1];
		cache->everything_bytes += f->everything_bytes;
	}
	cache->expert_bytes = cache->streaming && n ? bytes / n : 0;
	k->ready = true;
	engine_ranks_warm(k, k->warm, k->n_warm);
	log_ranks(g);
	return 0;
}

void engine_ranks_free(struct engine_ranks *k)
{
	if (!k)
		return;
	ranks_on_loss(k->ranks, NULL, NULL);
	if (ranks_check(k->ranks, NULL)) /* MPI may still use the messages of a lost rank */
		return;
	if (k->in)
		k->in->ops->close(k->in);
	if (k->out)
		k->out->ops->close(k->out);
	free(k->figures);
	free(k->warm);
	free(k->message);
	free(k);
}
