/* SPDX-License-Identifier: MIT */
/* Planning, opening and closing of the streaming source. */
#include "stream/loader/loader_internal.h"

#include "src/base/cond.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

/* A prefetch may evict what was not used in this many tokens. */
#define COLD_TOKENS 2

int loader_open_reader(const struct loader_options *o, struct reader **out, struct err *e)
{
	unsigned n = o->file->n_files;
	if (o->n_replicas && n != 1)
		return err_set(e, ERR_USAGE,
			"copies of a model can be named for a single file, this one has %u parts", n);
	struct reader_file *files = NEW_ARRAY(struct reader_file, n + o->n_replicas);
	for (unsigned i = 0; i < n; i++)
		files[i].path = o->file->files[i].path;
	for (unsigned i = 0; i < o->n_replicas; i++)
		files[n + i] = (struct reader_file){.path = o->replicas[i], .replica_of = 1};
	int rc = reader_open(out, files, n + o->n_replicas, &o->reader, e);
	free(files);
	return rc;
}

/* The cache's configuration for these budgets; *bytes is its expert_bytes, to be freed by the
 * caller. */
static int configure(const struct loader_options *o, const struct extent_table *t,
	struct cache_config *c, uint64_t **bytes, struct err *e)
{
	int n_moe = 0;
	*bytes = NEW_ARRAY(uint64_t, (size_t)o->n_layers);
	for (int i = 0; i < o->n_layers && i < (int)extent_n_layers(t); i++) {
		(*bytes)[i] = extent_slot_bytes(t, (uint32_t)i);
		n_moe += (*bytes)[i] > 0;
	}
	*c = (struct cache_config){
		.n_layers = o->n_layers,
		.n_experts = (int)extent_n_experts(t),
		.expert_bytes = *bytes,
		.tier_bytes = {o->tier_bytes[0], o->tier_bytes[1]},
		.align = extent_slot_align(t),
		.n_prefill_slots = CACHE_PREFILL_SLOTS_MIN,
		.policy = policy_find(o->policy ? o->policy : POLICY_DEFAULT),
		.token_accesses = (uint64_t)n_moe * (uint64_t)o->n_used,
		.prefetch_cold = (uint64_t)COLD_TOKENS * (uint64_t)n_moe * (uint64_t)o->n_used,
	};
	if (!c->policy || c->policy->needs_future)
		return err_set(
			e, ERR_USAGE, "there is no policy \"%s\", expected lru, lfu or sieve", o->policy);
	uint64_t floor_bytes = cache_working_set_bytes(c, o->n_used);
	if (o->tier_bytes[0] < floor_bytes)
		return err_set(e, ERR_MEMORY,
			"a cache of %.4f GB is less than one token's working set, the smallest that works is "
			"%.4f GB",
			(double)o->tier_bytes[0] / 1e9, (double)(floor_bytes + 99999) / 1e5 * 1e-4);
	c->n_prefill_slots = cache_choose_prefill_slots(c, o->n_used);
	return 0;
}

int loader_plan(const struct loader_options *o, struct loader_plan *plan, struct err *e)
{
	struct reader *r = NULL;
	struct extent_table *t = NULL;
	struct cache *cache = NULL;
	struct cache_config c;
	uint64_t *bytes = NULL;
	int rc;
	enum log_level level = log_level();
	log_set_level(LOG_QUIET); /* loader_open says it */
	rc = loader_open_reader(o, &r, e);
	log_set_level(level);
	if (rc || (rc = extent_table_from_gguf(&t, o->file, r, e)) ||
		(rc = configure(o, t, &c, &bytes, e)))
		goto out;
	if (!(cache = cache_new(&c, e))) {
		rc = e ? e->code : ERR_MEMORY;
		goto out;
	}
	struct cache_config least = c;
	least.n_prefill_slots = CACHE_PREFILL_SLOTS_MIN;
	*plan = (struct loader_plan){
		.tier_bytes = {cache_memory_bytes(cache, 0), cache_memory_bytes(cache, 1)},
		.floor_bytes = cache_working_set_bytes(&least, o->n_used),
		.everything_bytes = cache_everything_bytes(&c),
		.n_staging = c.n_prefill_slots,
		.n_slots = cache_n_slots(cache),
	};
	struct loader_geometry g;
	plan->on_card = loader_geometry(o, t, r, &g);
	plan->device_staging_bytes = plan->tier_bytes[1] ? g.device_staging_bytes : 0;
	plan->host_staging_bytes = g.host_staging_bytes;
out:
	cache_free(cache);
	free(bytes);
	extent_table_free(t);
	reader_close(r);
	return rc;
}

static int take_memory(struct loader *l, struct err *e)
{
	for (int tier = 0; tier < 2; tier++) {
		l->arena_bytes[tier] = cache_memory_bytes(l->cache, tier);
		if (!l->arena_bytes[tier])
			continue;
		if (tier == 0) {
			int rc = l->backend->ops->alloc(
				l->backend, MEM_DEVICE, l->arena_bytes[0], (void **)&l->arena[0], e);
			if (rc) {
				err_prefix(e, "expert cache");
				return rc;
			}
		} else if (!(l->arena[1] = mem_try_map(l->arena_bytes[1]))) {
			return err_set(e, ERR_MEMORY, "no memory for a second tier of %.3f GB",
				(double)l->arena_bytes[1] / 1e9);
		}
		reader_register(l->reader, l->arena[tier], l->arena_bytes[tier]);
	}
	return 0;
}

static int smallest_capacity(const struct loader *l)
{
	int least = INT32_MAX;
	for (int i = 0; i < l->n_layers; i++)
		if (extent_has_layer(l->table, (uint32_t)i))
			least = MIN(least, cache_capacity(l->cache, 0, i));
	return least;
}

/* Experts whose bytes are a multiple of what the file is read in stand in their slots alike. */
static void make_views(struct loader *l)
{
	l->views = NEW_ARRAY(struct layer_views, (size_t)l->n_layers);
	for (uint32_t layer = 0; layer < (uint32_t)l->n_layers; layer++) {
		struct layer_views *v = &l->views[layer];
		struct extent_plan p;
		for (uint32_t i = 0; i < (uint32_t)l->n_experts && !extent_plan(l->table, layer, i, &p);
			 i++) {
			v->same = true;
			for (int k = 0; k < EXTENT_PARTS; k++) {
				v->same = v->same && (!i || v->offset[k] == p.parts[k].dst_offset);
				v->offset[k] = p.parts[k].dst_offset;
			}
			if (!v->same)
				break;
		}
		for (int k = 0; k < EXTENT_PARTS; k++) {
			const struct extent_tensor *t = extent_tensor(l->table, layer, (enum extent_part)k);
			if (t)
				v->w[k] =
					expert_shape(t->type, t->n_in, t->n_out, (uint64_t)l->n_experts, t->bytes);
		}
	}
}

int loader_open(const struct loader_options *o, struct expert_source **out, struct err *e)
{
	*out = NULL;
	struct loader *l = NEW(struct loader);
	struct cache_config c;
	uint64_t *bytes = NULL;
	pthread_mutexattr_t mutex;
	int rc;

	l->base.ops = &loader_ops;
	l->base.lookahead = o->lookahead;
	l->backend = o->backend;
	l->n_layers = o->n_layers;
	l->hint_share = 1;
	l->ahead[0].layer = l->ahead[1].layer = -1;
	/* it is held for microseconds: who finds it taken looks again before it sleeps, for waking up
	 * takes longer */
	pthread_mutexattr_init(&mutex);
	pthread_mutexattr_settype(&mutex, PTHREAD_MUTEX_ADAPTIVE_NP);
	pthread_mutex_init(&l->lock, &mutex);
	pthread_mutexattr_destroy(&mutex);
	cond_init(&l->landed);

	if ((rc = loader_open_reader(o, &l->reader, e)) ||
		(rc = extent_table_from_gguf(&l->table, o->file, l->reader, e)) ||
		(rc = configure(o, l->table, &c, &bytes, e)))
		goto fail;
	if (!(l->cache = cache_new(&c, e))) {
		rc = e ? e->code : ERR_MEMORY;
		goto fail;
	}
	l->n_experts = c.n_experts;
	l->n_staging = c.n_prefill_slots;
	l->n_slots = cache_n_slots(l->cache);
	l->most_prefetch = 2 * (unsigned)o->n_used;
	l->base.max_pinned[EXPERT_DECODE] = MAX(smallest_capacity(l) / 2, 1);
	l->base.max_pinned[EXPERT_PREFILL] = l->n_staging / 2;
	l->fills = mem_try_new((size_t)l->n_slots, sizeof *l->fills);
	l->cap_commands =
		3 * (size_t)l->n_slots + 8; /* a move or filling, and an urge, of every slot */
	l->commands = mem_try_new(l->cap_commands, sizeof *l->commands);
	for (int i = 0; i < 2; i++)
		l->ahead[i].ids = NEW_ARRAY(int32_t, (size_t)l->n_experts);
	l->cap_owed = 2 * (size_t)l->n_experts + LOADER_WANTS_MAX;
	l->owed = NEW_ARRAY(struct owed, l->cap_owed);
	make_views(l);
	if (!l->fills || !l->commands) {
		rc = err_set(e, ERR_MEMORY, "no memory for the tables of %d cache slots", l->n_slots);
		goto fail;
	}
	struct loader_geometry g;
	if (loader_geometry(o, l->table, l->reader, &g))
		rc = loader_card_open(l, o, &g, e);
	else
		rc = take_memory(l, e);
	if (rc)
		goto fail;
	rc = pthread_create(&l->thread, NULL, loader_io_main, l);
	if (rc) {
		rc = err_errno(e, rc, "the I/O thread does not start");
		goto fail;
	}
	l->thread_started = true;
	free(bytes);
	*out = &l->base;
	return 0;
fail:
	free(bytes);
	loader_close(&l->base);
	return rc;
}

void loader_close(struct expert_source *s)
{
	struct loader *l = loader_of(s);
	if (l->thread_started) {
		pthread_mutex_lock(&l->lock);
		l->quit = true;
		pthread_mutex_unlock(&l->lock);
		loader_poke(l);
		pthread_join(
			l->thread, NULL); /* it left nothing in flight: nobody writes to the arenas any more */
	}
	if (l->card)
		loader_card_stop(l);
	reader_close(l->reader);
	loader_card_close(l);
	cache_free(l->cache);
	extent_table_free(l->table);
	if (l->arena[0])
		l->backend->ops->free(l->backend, MEM_DEVICE, l->arena[0], l->arena_bytes[0]);
	if (l->arena[1])
		mem_unmap(l->arena[1], l->arena_bytes[1]);
	for (int i = 0; i < 2; i++)
		free(l->ahead[i].ids);
	free(l->owed);
	free(l->views);
	free(l->fills);
	free(l->commands);
	free(l->warm);
	pthread_cond_destroy(&l->landed);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

void loader_pin_in_background(struct expert_source *s)
{
	struct loader *l = loader_of(s);
	if (l->card)
		loader_card_go_on(l);
}

int loader_wait_pinned(struct expert_source *s, struct err *e)
{
	struct loader *l = loader_of(s);
	return l->card ? loader_card_settle(l, e) : 0;
}

const char *loader_reader_name(const struct expert_source *s)
{
	return reader_engine_name(((const struct loader *)s)->reader);
}

struct cache_stats loader_cache_stats(struct expert_source *s)
{
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->lock);
	loader_account(l);
	struct cache_stats c = *cache_stats(l->cache);
	pthread_mutex_unlock(&l->lock);
	return c;
}

double loader_prefetch_share(struct expert_source *s)
{
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->lock);
	double share = l->hint_share;
	pthread_mutex_unlock(&l->lock);
	return share;
}

void loader_layer_resident(struct expert_source *s, int layer, int n[2])
{
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->lock);
	cache_layer_resident(l->cache, layer, n);
	pthread_mutex_unlock(&l->lock);
}

void loader_residency_map(struct expert_source *s, uint8_t *map, struct expert_stats *stats)
{
	struct loader *l = loader_of(s);
	for (int i = 0; map && i < l->n_layers; i++)
		memset(map + (size_t)i * (size_t)l->n_experts,
			extent_has_layer(l->table, (uint32_t)i) ? LOADER_ON_DISK : LOADER_NO_EXPERT,
			(size_t)l->n_experts);
	pthread_mutex_lock(&l->lock);
	loader_account(l);
	for (int i = 0; map && i < l->n_slots; i++) {
		struct cache_slot slot = cache_slot_get(l->cache, i);
		if (slot.state == CACHE_FREE)
			continue;
		uint8_t *at = map + (size_t)slot.layer * (size_t)l->n_experts + slot.expert;
		uint8_t place = slot.tier == 1              ? LOADER_IN_RAM
						: slot.state == CACHE_READY ? LOADER_IN_VRAM
													: LOADER_LOADING;
		*at = MAX(*at, place);
	}
	if (stats)
		*stats = s->stats; /* written under the lock */
	pthread_mutex_unlock(&l->lock);
}

void loader_warm(struct expert_source *s, const struct profile_key *keys, size_t n)
{
	struct loader *l = loader_of(s);
	struct profile_key *copy = NEW_ARRAY(struct profile_key, n);
	size_t kept = 0;
	for (size_t i = 0; i < n; i++) {
		const struct profile_key *k = &keys[i];
		if (k->layer >= 0 && k->layer < l->n_layers && k->expert >= 0 && k->expert < l->n_experts &&
			extent_has_layer(l->table, (uint32_t)k->layer))
			copy[kept++] = *k;
	}
	pthread_mutex_lock(&l->lock);
	free(l->warm);
	l->warm = copy;
	l->n_warm = kept;
	l->next_warm = 0;
	pthread_mutex_unlock(&l->lock);
	loader_poke(l);
}
