/* SPDX-License-Identifier: MIT */
/* Planning, opening and closing of the streaming source. */
#include "stream/loader/card_transfer.h"
#include "stream/loader/host_transfer.h"
#include "stream/loader/loader_internal.h"

#include "src/base/host/cond.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Forecasts have no backend. */
static bool streams_to_card(const struct loader_options *o)
{
	return o->copier || (o->backend && o->backend->ops->copier_open);
}

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
	struct reader_options reader = o->reader;
	reader.staged |= streams_to_card(o);
	int rc = reader_open(out, files, n + o->n_replicas, &reader, e);
	free(files);
	return rc;
}

static struct card_memory_plan plan_card(
	const struct loader_options *o, const struct extent_table *t, const struct reader *r)
{
	unsigned requests = o->reader.requests ? o->reader.requests : READER_REQUESTS_DEFAULT;
	return card_memory_plan(t, r, requests, o->tier_bytes[1] > 0, o->check_mode != CHECK_OFF);
}

static int no_memory_for_tables(const struct loader *l, struct err *e)
{
	return err_set(e, ERR_MEMORY, "no memory for the tables of %d cache slots", l->n_slots);
}

int loader_refuse_budget(uint64_t bytes, uint64_t floor_bytes, struct err *e)
{
	return err_set(e, ERR_MEMORY,
		"a cache of %.4f GB is too small for two layers' experts and a quarter of a token's: the "
		"smallest that works is %.4f GB",
		(double)bytes / 1e9, (double)((floor_bytes + 99999) / 100000) * 1e-4);
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
	};
	if (!c->policy || c->policy->needs_future)
		return err_set(
			e, ERR_USAGE, "there is no policy \"%s\", expected lru, lfu or sieve", o->policy);
	uint64_t floor_bytes = cache_floor_bytes(c, o->n_used);
	if (o->tier_bytes[0] < floor_bytes)
		return loader_refuse_budget(o->tier_bytes[0], floor_bytes, e);
	c->n_prefill_slots = cache_choose_prefill_slots(c, o->n_used);
	return 0;
}

static int loader_end_layer(const struct loader_options *o)
{
	return o->end_layer ? o->end_layer : o->n_layers;
}

/* The table of the layers that are streamed. */
static int open_extents(const struct loader_options *o, const struct reader *r,
	struct extent_table **out, struct err *e)
{
	int rc = extent_table_from_gguf(out, o->file, r, e);
	if (!rc)
		extent_table_confine(*out, (uint32_t)o->first_layer, (uint32_t)loader_end_layer(o));
	return rc;
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
	if (rc || (rc = open_extents(o, r, &t, e)) || (rc = configure(o, t, &c, &bytes, e)))
		goto out;
	if (!(cache = cache_new(&c, e))) {
		rc = e ? e->code : ERR_MEMORY;
		goto out;
	}
	struct cache_config least = c;
	least.n_prefill_slots = CACHE_PREFILL_SLOTS_MIN;
	*plan = (struct loader_plan){
		.tier_bytes = {cache_memory_bytes(cache, 0), cache_memory_bytes(cache, 1)},
		.floor_bytes = cache_floor_bytes(&least, o->n_used),
		.working_set_bytes = cache_working_set_bytes(&least, o->n_used),
		.everything_bytes = cache_everything_bytes(&c),
		.n_prefill_slots = c.n_prefill_slots,
		.n_slots = cache_n_slots(cache),
	};
	uint64_t sum = 0;
	for (int i = 0; i < c.n_layers; i++) {
		plan->n_experts += bytes[i] ? c.n_experts : 0;
		sum += bytes[i] * (uint64_t)c.n_experts;
	}
	const double mean = (double)sum / MAX(plan->n_experts, 1);
	for (int tier = 0; tier < 2; tier++)
		plan->n_fit[tier] =
			MIN((int)((double)plan->tier_bytes[tier] / MAX(mean, 1.0)), plan->n_experts);
	plan->on_card = streams_to_card(o);
	if (plan->on_card) {
		struct card_memory_plan m = plan_card(o, t, r);
		plan->device_staging_bytes = plan->tier_bytes[1] ? m.device_staging_bytes : 0;
		plan->host_staging_bytes = m.host_staging_bytes;
	}
out:
	cache_free(cache);
	free(bytes);
	extent_table_free(t);
	reader_close(r);
	return rc;
}

static void notify_loader(void *loader)
{
	loader_wake(loader);
}

/* Tiers that the host reaches: reads land in them. */
static int take_host_memory(struct loader *l, struct err *e)
{
	for (int tier = 0; tier < 2; tier++) {
		size_t bytes = l->tier_memory_bytes[tier];
		if (!bytes)
			continue;
		if (tier == 0) {
			int rc = l->backend->ops->alloc(
				l->backend, MEM_DEVICE, bytes, (void **)&l->tier_memory[0], e);
			if (rc) {
				err_prefix(e, "expert cache");
				return rc;
			}
		} else if (!(l->tier_memory[1] = pages_try_map(bytes))) {
			return err_set(
				e, ERR_MEMORY, "no memory for a second tier of %.3f GB", (double)bytes / 1e9);
		}
		numa_place(&l->division[tier], l->tier_memory[tier], bytes);
		reader_register(l->reader, l->tier_memory[tier], bytes);
	}
	return 0;
}

static int take_card_memory(struct loader *l, const struct loader_options *o, struct err *e)
{
	struct card_memory_options m = {
		.backend = o->backend,
		.copier = o->copier,
		.tier_bytes = {l->tier_memory_bytes[0], l->tier_memory_bytes[1]},
		.pin_step_bytes = o->pin_step_bytes,
		.division = &l->division[1],
		.notify = notify_loader,
		.arg = l,
	};
	struct card_memory_plan plan = plan_card(o, l->table, l->reader);
	int rc = card_memory_open(&l->card, &m, &plan, e);
	if (rc)
		return rc;
	l->tier_memory[0] = l->card->tier0;
	l->tier_memory[1] = l->card->tier1.base;
	return 0;
}

/* Which slots will lie on which NUMA node. */
static void divide_memory(struct loader *l, const struct loader_options *o)
{
	for (int tier = streams_to_card(o); tier < 2 && o->nodes; tier++)
		l->division[tier] = numa_divide(
			o->nodes, l->tier_memory_bytes[tier], cache_slab_bytes(l->shared.cache, tier));
}

static void log_division(const struct loader *l, const struct loader_options *o)
{
	static const char *const names[] = {"first", "second"};
	for (int tier = 0; tier < 2; tier++) {
		char text[NUMA_NODES_MAX * 48] = "";
		const struct numa_division *d = &l->division[tier];
		int at = 0;
		for (int k = 1; d->n && k <= o->nodes->n; k++)
			at += snprintf(text + at, sizeof text - (size_t)at, "%snode %d %.3f GB",
				k > 1 ? ", " : "", d->id[k],
				(double)numa_bytes_on(d, l->tier_memory_bytes[tier], k) / 1e9);
		if (at)
			log_info("memory by NUMA node: %s tier: %s", names[tier], text);
	}
}

static int open_check_pool(struct loader *l, const struct loader_options *o, struct err *e)
{
	const unsigned n = l->check.values ? check_pool_threads_for(o->check_threads) : 0;
	return check_pool_open(&l->check_pool, n, notify_loader, l, e);
}

static int open_transfer(struct loader *l, const struct loader_options *o, struct err *e)
{
	struct transfer_config config = {
		.reader = l->reader,
		.table = l->table,
		.check = &l->check,
		.check_pool = l->check_pool,
		.n_slots = l->n_slots,
		.done = loader_transfer_done,
		.arg = l,
	};
	divide_memory(l, o);
	int rc = streams_to_card(o) ? take_card_memory(l, o, e) : take_host_memory(l, e);
	if (rc)
		return rc;
	log_division(l, o);
	l->transfer = l->card ? card_transfer_open(&config, l->card, o->demotion_chunk_bytes)
						  : host_transfer_open(&config);
	return l->transfer ? 0 : no_memory_for_tables(l, e);
}

static int smallest_capacity(const struct loader *l)
{
	int least = INT32_MAX;
	for (int i = 0; i < l->n_layers; i++)
		if (extent_has_layer(l->table, (uint32_t)i))
			least = MIN(least, cache_capacity(l->shared.cache, 0, i));
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
		for (int k = 0; k < EXTENT_MATRICES; k++) {
			const struct extent_tensor *t = extent_tensor(l->table, layer, (enum extent_part)k);
			if (t)
				v->w[k] =
					expert_shape(t->type, t->n_in, t->n_out, (uint64_t)l->n_experts, t->bytes);
			v->scaled[k] =
				extent_tensor(l->table, layer, (enum extent_part)(k + EXTENT_MATRICES)) != NULL;
		}
	}
}

static void init_shared(struct loader_shared *s)
{
	pthread_mutexattr_t mutex;
	/* It is held for microseconds: who finds it taken spins before it sleeps, since waking up takes
	 * longer. */
	pthread_mutexattr_init(&mutex);
	pthread_mutexattr_settype(&mutex, PTHREAD_MUTEX_ADAPTIVE_NP);
	pthread_mutex_init(&s->lock, &mutex);
	pthread_mutexattr_destroy(&mutex);
	cond_init(&s->completed);
	s->prefetch_share = 1;
	s->layer = -1;
}

/* The cache and what is sized by it. */
static int open_tables(struct loader *l, const struct loader_options *o, struct err *e)
{
	struct cache_config c;
	uint64_t *bytes = NULL;
	int rc = configure(o, l->table, &c, &bytes, e);
	if (!rc && !(l->shared.cache = cache_new(&c, e)))
		rc = e ? e->code : ERR_MEMORY;
	free(bytes);
	if (rc)
		return rc;
	l->n_experts = c.n_experts;
	l->n_slots = cache_n_slots(l->shared.cache);
	l->prefetches_max = 2 * (unsigned)o->n_used;
	for (int tier = 0; tier < 2; tier++)
		l->tier_memory_bytes[tier] = cache_memory_bytes(l->shared.cache, tier);
	l->base.max_pinned[EXPERT_DECODE] = MAX(smallest_capacity(l) / 2, 1);
	l->base.max_pinned[EXPERT_PREFILL] = c.n_prefill_slots / 2;
	l->refs = NEW_ARRAY(struct cache_ref, (size_t)l->n_experts);
	l->misses = NEW_ARRAY(struct miss, (size_t)l->n_experts);
	make_views(l);
	expert_check_init(&l->check, o->check_values, o->check_mode, l->n_layers, l->n_experts);
	l->check.has_copies = o->n_replicas > 0;
	l->shared.slot_work = mem_try_new((size_t)l->n_slots, sizeof *l->shared.slot_work);
	return loader_queue_init(l) || !l->shared.slot_work ? no_memory_for_tables(l, e) : 0;
}

int loader_open(const struct loader_options *o, struct expert_source **out, struct err *e)
{
	*out = NULL;
	struct loader *l = NEW(struct loader);
	int rc;
	l->base.ops = &loader_ops;
	l->base.lookahead = o->lookahead;
	l->backend = o->backend;
	l->n_layers = o->n_layers;
	l->first_layer = o->first_layer;
	l->end_layer = loader_end_layer(o);
	init_shared(&l->shared);
	if ((rc = loader_open_reader(o, &l->reader, e)) ||
		(rc = open_extents(o, l->reader, &l->table, e)) || (rc = open_tables(l, o, e)) ||
		(rc = open_check_pool(l, o, e)) || (rc = open_transfer(l, o, e)))
		goto fail;
	loader_limit_tier1(l);
	if ((rc = pthread_create(&l->thread, NULL, loader_io_main, l))) {
		rc = err_errno(e, rc, "the I/O thread does not start");
		goto fail;
	}
	l->thread_started = true;
	*out = &l->base;
	return 0;
fail:
	loader_close(&l->base);
	return rc;
}

static void free_host_memory(struct loader *l)
{
	if (l->tier_memory[0])
		l->backend->ops->free(l->backend, MEM_DEVICE, l->tier_memory[0], l->tier_memory_bytes[0]);
	if (l->tier_memory[1])
		pages_unmap(l->tier_memory[1], l->tier_memory_bytes[1]);
}

void loader_close(struct expert_source *source)
{
	struct loader *l = loader_of(source);
	struct loader_shared *s = &l->shared;
	if (l->thread_started) {
		pthread_mutex_lock(&s->lock);
		s->quit = true;
		pthread_mutex_unlock(&s->lock);
		loader_wake(l);
		pthread_join(l->thread, NULL); /* nothing is in flight any more */
	}
	if (l->card)
		pinned_stop(&l->card->tier1); /* it wakes the reader, */
	check_pool_close(l->check_pool);  /* ... and so does this */
	reader_close(l->reader);
	if (l->transfer)
		l->transfer->ops->close(l->transfer);
	if (l->card)
		card_memory_close(l->card);
	else
		free_host_memory(l);
	for (int tier = 0; tier < 2; tier++)
		numa_division_free(&l->division[tier]);
	cache_free(s->cache);
	expert_check_fini(&l->check);
	extent_table_free(l->table);
	loader_queue_free(l);
	free(s->slot_work);
	free(s->draft_uses);
	free(l->views);
	free(l->refs);
	free(l->misses);
	pthread_cond_destroy(&s->completed);
	pthread_mutex_destroy(&s->lock);
	free(l);
}

void loader_pin_in_background(struct expert_source *source)
{
	struct loader *l = loader_of(source);
	if (l->card)
		pinned_continue(&l->card->tier1);
}

const char *loader_reader_name(const struct expert_source *source)
{
	return reader_engine_name(((const struct loader *)source)->reader);
}

void loader_residency_map(struct expert_source *source, uint8_t *map, struct expert_stats *stats)
{
	struct loader *l = loader_of(source);
	for (int i = l->first_layer; map && i < l->end_layer; i++)
		memset(map + (size_t)i * (size_t)l->n_experts,
			extent_has_layer(l->table, (uint32_t)i) ? LOADER_ON_DISK : LOADER_NO_EXPERT,
			(size_t)l->n_experts);
	pthread_mutex_lock(&l->shared.lock);
	if (loader_flush_accesses(l))
		loader_wake(l);
	for (int i = 0; map && i < l->n_slots; i++) {
		struct cache_slot slot = cache_slot_get(l->shared.cache, i);
		if (slot.state == CACHE_FREE)
			continue;
		uint8_t *at = map + (size_t)slot.layer * (size_t)l->n_experts + slot.expert;
		uint8_t residency = slot.tier == 1              ? LOADER_IN_RAM
							: slot.state == CACHE_READY ? LOADER_IN_VRAM
														: LOADER_LOADING;
		*at = MAX(*at, residency);
	}
	if (stats) {
		*stats = source->stats;                                 /* written under the lock */
		stats->ram_refused_bytes = loader_ram_refused_bytes(l); /* may have changed meanwhile */
	}
	pthread_mutex_unlock(&l->shared.lock);
}

void loader_warm(struct expert_source *source, const struct profile_key *keys, size_t n)
{
	struct loader *l = loader_of(source);
	struct work_queue *q = &l->shared.queue;
	struct profile_key *copy = NEW_ARRAY(struct profile_key, n);
	size_t kept = 0;
	for (size_t i = 0; i < n; i++) {
		const struct profile_key *k = &keys[i];
		if (k->layer >= 0 && k->layer < l->n_layers && k->expert >= 0 && k->expert < l->n_experts &&
			extent_has_layer(l->table, (uint32_t)k->layer))
			copy[kept++] = *k;
	}
	pthread_mutex_lock(&l->shared.lock);
	free(q->warm);
	q->warm = copy;
	q->n_warm = kept;
	q->next_warm = 0;
	for (size_t i = 0; i < kept && cache_set_hot(l->shared.cache, copy[i].layer, copy[i].expert);
		 i++)
		;
	pthread_mutex_unlock(&l->shared.lock);
	loader_wake(l);
}
