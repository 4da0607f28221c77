/* SPDX-License-Identifier: MIT */
/* The profile of expert use that a run starts from and leaves behind. */
#include "cache/trace/profile_store.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/out_file.h"
#include "src/engine/engine_internal.h"
#include "src/engine/published_usage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int init_profiles(struct engine *g, const struct model_config *c, struct err *e)
{
	const uint32_t n_layers = c->n_layers + c->n_mtp;
	if (profile_init(&g->profile, g->fingerprint, n_layers, c->n_experts) ||
		profile_init(&g->earlier, g->fingerprint, n_layers, c->n_experts))
		return err_set(e, ERR_MEMORY, "no memory for the profile");
	return 0;
}

int engine_profile_count(struct engine *g, const struct model_config *c, struct err *e)
{
	g->counts_for_rank_0 = true;
	return init_profiles(g, c, e);
}

/* --warm: a file that was named is read, or made, or it is an error. */
static int open_named_profile(
	struct engine *g, const struct engine_options *o, const struct model_config *c, struct err *e)
{
	int rc = init_profiles(g, c, e);
	if (rc)
		return rc;
	bool is_trace = false, exists = access(o->warm, F_OK) == 0 || errno != ENOENT;
	if (exists && (rc = profile_read(&g->earlier, o->warm, &is_trace, e)))
		return rc;
	const bool stays = is_trace || (!o->force && out_file_is_protected(o->warm));
	if (!stays) {
		struct out_file probe; /* a file that cannot be written fails now, not at the end */
		if ((rc = out_file_open(&probe, o->warm, &out_profile, o->force, e)))
			return rc;
		out_file_abort(&probe);
		g->warm_path = mem_strdup(o->warm);
	}
	struct profile_key *keys;
	size_t n;
	profile_order(&g->earlier, &keys, &n);
	log_info("warm: %s names %zu experts%s%s", o->warm, n,
		g->streaming ? "" : " (nothing to seed: no expert cache)",
		is_trace ? "; a trace, which stays as it is"
		: stays  ? "; write-protected, it stays as it is"
				 : "");
	engine_cache_warm(g, keys, n);
	free(keys);
	return 0;
}

/* The keys, and behind them those of `more` that are not among them. Both were allocated, and are
 * taken. */
static struct profile_key *join_keys(const struct profile *p, struct profile_key *keys, size_t *n,
	struct profile_key *more, size_t n_more)
{
	keys = mem_grow(keys, *n + n_more, sizeof *keys);
	for (size_t i = 0; i < n_more; i++)
		if (!(p->count[(size_t)more[i].layer * p->n_experts + (size_t)more[i].expert] > 0))
			keys[(*n)++] = more[i];
	free(more);
	return keys;
}

/* The profile that is kept without being asked for. Nothing fails because of it. */
static void open_kept_profile(
	struct engine *g, const struct engine_options *o, const struct model_config *c)
{
	struct err e = {0};
	struct profile_key *keys, *published;
	size_t n, n_own;
	if (init_profiles(g, c, &e) || profile_store_read(o->profile_folder, &g->earlier, &e))
		log_verbose("profile: %s", e.text);
	if (!g->profile.count || !g->earlier.count)
		return;
	g->profile_folder = mem_strdup(o->profile_folder);
	g->token_accesses = (double)(c->n_layers - c->n_dense) * c->n_used;
	profile_order(&g->earlier, &keys, &n_own);
	n = n_own;
	if (published_usage_fits(c)) {
		const size_t n_published = published_usage_keys(&published);
		keys = join_keys(&g->earlier, keys, &n, published, n_published);
	}
	log_verbose("profile: %zu experts of earlier runs and %zu of published use load first (%s)",
		n_own, n - n_own, o->profile_folder);
	engine_cache_warm(g, keys, n);
	free(keys);
}

int engine_profile_open(
	struct engine *g, const struct engine_options *o, const struct model_config *c, struct err *e)
{
	if (o->warm)
		return open_named_profile(g, o, c, e);
	if (o->profile_folder && g->streaming)
		open_kept_profile(g, o, c);
	return 0;
}

static bool anything_counted(const struct profile *p)
{
	for (size_t i = 0; i < (size_t)p->n_layers * p->n_experts; i++)
		if (p->count[i] > 0)
			return true;
	return false;
}

int engine_profile_close(struct engine *g, bool keep, struct err *e)
{
	int rc = 0;
	struct err ignored = {0};
	if (keep && g->warm_path)
		rc = profile_write(&g->profile, &g->earlier, g->warm_path, e);
	if (keep && g->profile_folder && anything_counted(&g->profile) &&
		profile_store_add(g->profile_folder, &g->profile, g->token_accesses, &ignored))
		log_verbose("profile: not changed, this run's counts are lost: %s", ignored.text);
	profile_fini(&g->profile);
	profile_fini(&g->earlier);
	free(g->warm_path);
	free(g->profile_folder);
	g->warm_path = g->profile_folder = NULL;
	return rc;
}
