/* SPDX-License-Identifier: MIT */
#include "tests/stream/loader_help.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "stream/loader/loader_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum card_kind card_kind;
struct gguf *file;
struct model_config config;
struct backend *backend;
struct loader_plan full;
struct copier_faults card_faults;
struct copier *card;

int source_setup(void **state)
{
	(void)state;
	struct err e = {0};
	struct backend_options bo = {.name = card_kind == CARD_REAL ? "cuda" : "cpu", .threads = 1};
	log_set_level(LOG_QUIET);
	if (gguf_open(MODEL, &file, &e) || config_read(file, &config, &e) ||
		backend_open(&bo, &backend, &e)) {
		print_error("%s\n", e.text);
		return -1;
	}
	struct loader_options o = source_options(0, 0);
	o.tier_bytes[0] = (uint64_t)1 << 33;
	return loader_plan(&o, &full, &e);
}

int source_teardown(void **state)
{
	(void)state;
	backend->ops->close(backend);
	gguf_close(file);
	return 0;
}

bool card_answers(void)
{
	struct err e = {0};
	struct backend_options bo = {.name = "cuda"};
	struct backend *b;
	if (backend_open(&bo, &b, &e)) {
		print_message("the round on a real card is skipped: %s\n", e.text);
		return false;
	}
	b->ops->close(b);
	return true;
}

uint64_t budget(double share)
{
	return full.floor_bytes +
		   (uint64_t)(share * (double)(full.everything_bytes - full.floor_bytes));
}

struct loader_options source_options(double share, uint64_t ram)
{
	return (struct loader_options){
		.file = file,
		.backend = backend,
		.n_layers = (int)(config.n_layers + config.n_mtp),
		.n_used = (int)config.n_used,
		.tier_bytes = {budget(share), ram},
		.lookahead = 2,
	};
}

int try_source(const struct loader_options *o, struct expert_source **s, struct err *e)
{
	struct loader_options mine = *o;
	const struct copier_faults faults = card_faults;
	card_faults = (struct copier_faults){0};
	card = NULL;
	if (card_kind != CARD_NONE && !mine.reader.slice_bytes)
		mine.reader.slice_bytes =
			65536; /* small staging buffers: they are touched at every opening */
	mine.pin_step_bytes =
		num_align_up(mine.tier_bytes[1] / 20, 4096); /* borders that slots lie across */
	mine.demotion_chunk_bytes = 4096 + mine.tier_bytes[1] / 1000; /* several of an expert */
	if (card_kind == CARD_EMULATED) {
		assert_int_equal(copier_null_open(&faults, &card, e), 0);
		mine.copier = card;
	}
	int rc = loader_open(&mine, s, e);
	if (rc && card)
		card->ops->close(card);
	return rc;
}

struct expert_source *open_source(const struct loader_options *o)
{
	struct err e = {0};
	struct expert_source *s;
	if (try_source(o, &s, &e))
		fail_msg("%s", e.text);
	return s;
}

void close_source(struct expert_source *s)
{
	s->ops->close(s);
	if (card)
		card->ops->close(card);
}

struct cache_stats source_cache_stats(struct expert_source *s)
{
	loader_residency_map(s, NULL, NULL); /* flushes */
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->shared.lock);
	struct cache_stats c = *cache_stats(l->shared.cache);
	pthread_mutex_unlock(&l->shared.lock);
	return c;
}

double source_prefetch_share(struct expert_source *s)
{
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->shared.lock);
	double share = l->shared.prefetch_share;
	pthread_mutex_unlock(&l->shared.lock);
	return share;
}

bool source_warm_ended(struct expert_source *s)
{
	const struct loader *l = loader_of(s);
	source_lock(s);
	const bool ended =
		l->shared.queue.next_warm == l->shared.queue.n_warm && !l->shared.n_in_flight;
	source_unlock(s);
	return ended;
}

int source_prefill_slots(struct expert_source *s)
{
	const struct loader *l = loader_of(s);
	int n = 0;
	source_lock(s);
	for (int i = 0; i < l->n_slots; i++)
		n += cache_slot_get(l->shared.cache, i).prefill;
	source_unlock(s);
	return n;
}

bool source_under_pressure(struct expert_source *s)
{
	return atomic_load(&loader_of(s)->transfer->under_pressure);
}

void source_layer_resident(struct expert_source *s, int layer, int n[2])
{
	struct loader *l = loader_of(s);
	pthread_mutex_lock(&l->shared.lock);
	cache_layer_resident(l->shared.cache, layer, n);
	pthread_mutex_unlock(&l->shared.lock);
}

void source_lock(struct expert_source *s)
{
	pthread_mutex_lock(&loader_of(s)->shared.lock);
}

void source_unlock(struct expert_source *s)
{
	pthread_mutex_unlock(&loader_of(s)->shared.lock);
}

bool source_last_loading(struct expert_source *s, int *layer, int *expert)
{
	const struct loader *l = loader_of(s);
	uint64_t last = 0;
	source_lock(s);
	for (int i = 0; i < l->n_slots; i++) {
		const struct cache_slot slot = cache_slot_get(l->shared.cache, i);
		if (slot.tier == 0 || slot.state != CACHE_FILLING || slot.load_id < last)
			continue;
		last = slot.load_id;
		*layer = slot.layer;
		*expert = slot.expert;
	}
	source_unlock(s);
	return last > 0;
}

void source_wait_requested(struct expert_source *s)
{
	struct pinned *p = &loader_of(s)->card->tier1;
	for (bool done = false; !done; usleep(1000)) {
		pthread_mutex_lock(&p->lock);
		done = atomic_load(&p->ready) >= MIN(p->requested, p->bytes);
		pthread_mutex_unlock(&p->lock);
	}
}

int source_wait_pinned(struct expert_source *s, struct err *e)
{
	return pinned_wait(&loader_of(s)->card->tier1, e);
}

struct profile_key *all_experts(size_t *n)
{
	const int n_experts = (int)config.n_experts;
	*n = (size_t)(config.n_layers - config.n_dense) * config.n_experts;
	struct profile_key *keys = NEW_ARRAY(struct profile_key, *n);
	for (size_t i = 0; i < *n; i++)
		keys[i] = (struct profile_key){
			(int32_t)config.n_dense + (int32_t)i / n_experts, (int32_t)i % n_experts};
	return keys;
}

void refs_from(struct expert_ref *refs, int first, int n)
{
	for (int i = 0; i < n; i++)
		refs[i] = (struct expert_ref){.id = (first + i) % (int)config.n_experts};
}

void refs_random(struct expert_ref *refs, int n, struct rng *r)
{
	bool used[CONFIG_MAX_EXPERTS] = {0};
	for (int i = 0; i < n;) {
		int id = (int)rng_below(r, config.n_experts);
		if (rng_below(r, 3)) /* some experts are popular */
			id /= 4;
		if (used[id])
			continue;
		used[id] = true;
		refs[i++] = (struct expert_ref){.id = id};
	}
}

static void check_matrix(int layer, int expert, const char *name, const struct weight *w)
{
	char full_name[64];
	snprintf(full_name, sizeof full_name, "blk.%d.ffn_%s_exps.weight", layer, name);
	const struct gguf_tensor *t = gguf_find_tensor(file, full_name);
	uint64_t bytes = t->bytes / t->ne[2];
	assert_int_equal(w->stack_bytes, bytes);
	assert_int_equal(w->type, t->type);
	const void *data = card ? copier_null_peek(card, w->data) : w->data;
	static uint8_t bytes_there[1 << 20];
	if (card_kind == CARD_REAL) {
		struct err e = {0};
		assert_true(bytes <= sizeof bytes_there);
		assert_int_equal(backend->ops->download(backend, bytes_there, w->data, bytes, &e), 0);
		data = bytes_there;
	}
	assert_non_null(data);
	if (memcmp(data, t->data + (uint64_t)expert * bytes, bytes))
		fail_msg("layer %d, expert %d: %s holds other bytes than the file", layer, expert, name);
}

void check_expert(int layer, const struct expert_ref *r)
{
	assert_true(r->ready);
	check_matrix(layer, r->id, "gate", &r->gate);
	check_matrix(layer, r->id, "up", &r->up);
	check_matrix(layer, r->id, "down", &r->down);
}

int use_experts(struct expert_source *s, int layer, enum expert_use how, struct expert_ref *refs,
	int n, struct err *e)
{
	int missing = s->ops->acquire(s, layer, how, refs, n, e);
	if (missing < 0)
		return missing;
	while (missing > 0) {
		missing = s->ops->wait_ready(s, layer, refs, n, e);
		for (int i = 0; i < n; i++)
			if (refs[i].ready)
				check_expert(layer, &refs[i]);
	}
	for (int i = 0; i < n && !missing; i++)
		check_expert(layer, &refs[i]);
	s->ops->release(s, layer, refs, n);
	return missing;
}

int random_run(struct expert_source *s, struct rng *r, int n_tokens, struct err *last)
{
	int first = (int)config.n_dense, n_layers = (int)config.n_layers, failed = 0;
	struct expert_ref *refs = NEW_ARRAY(struct expert_ref, config.n_experts);
	int32_t *ids = NEW_ARRAY(int32_t, config.n_experts);
	for (int t = 0; t < n_tokens; t++) {
		bool prefill = rng_below(r, 4) == 0;
		enum expert_use how = prefill ? EXPERT_PREFILL : EXPERT_DECODE;
		s->ops->step(s, how, prefill ? 64 : 1, t);
		for (int layer = first; layer < n_layers; layer++) {
			int n = prefill ? 4 + (int)rng_below(r, config.n_experts / 2) : (int)config.n_used;
			refs_random(refs, n, r);
			if (prefill && rng_below(r, 4)) {
				for (int i = 0; i < n; i++)
					ids[i] = refs[i].id;
				s->ops->read_ahead(s, layer, ids, n);
				if (layer + 1 < n_layers && rng_below(r, 2)) {
					for (int i = 0; i < (int)config.n_experts; i++)
						ids[i] = i;
					s->ops->read_ahead(s, layer + 1, ids, (int)config.n_experts);
				}
			}
			int group;
			for (int i = 0; i < n; i += group) {
				group = MIN(n - i, s->max_pinned[how]);
				struct err e = {0};
				if (use_experts(s, layer, how, refs + i, group, &e) < 0) {
					failed++;
					if (last)
						*last = e;
				}
			}
			for (int d = 1; !prefill && d <= 2 && layer + d < n_layers; d++) {
				for (uint32_t i = 0; i < config.n_used; i++)
					ids[i] = (int32_t)rng_below(r, config.n_experts);
				s->ops->prefetch(s, layer + d, ids, (int)config.n_used, d);
			}
		}
	}
	free(refs);
	free(ids);
	return failed;
}
