/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the streaming source share: the pocket model and its plan, sources of it with
 * or without a card between, and uses of experts whose bytes are compared with the file's.
 */
#ifndef GLM_TESTS_LOADER_HELP_H
#define GLM_TESTS_LOADER_HELP_H

#include "src/base/rng.h"
#include "src/model/config.h"
#include "tests/support/copier_null.h"
#include "stream/loader/loader.h"

#define MODEL "tools/pocket/pocket.gguf"

/* Between disk and slots. Emulated: tests/support/copier_null.h, a card of its own for every
 * source. Set before the fixtures run. */
enum card_kind { CARD_NONE, CARD_EMULATED, CARD_REAL };
extern enum card_kind card_kind;

/* Fixtures of a group: these are there between them. */
int source_setup(void **state);
int source_teardown(void **state);
extern struct gguf *file; /* MODEL */
extern struct model_config config;
extern struct backend *backend;
extern struct loader_plan full; /* with an ample budget */

/* Whether CUDA finds a device; says so when it does not. */
bool card_answers(void);

/* A first tier of `share` between the floor and everything; options with such a one, and two layers
 * of lookahead. */
uint64_t budget(double share);
struct loader_options source_options(double share, uint64_t ram);

extern struct copier_faults
	card_faults;            /* of the emulated card of the next source, which clears them */
extern struct copier *card; /* the emulated one of the source opened last, or NULL */

/* loader_open with small chunks and buffers, and with a card of that kind. open_source fails the
 * test when it fails. */
int try_source(const struct loader_options *o, struct expert_source **s, struct err *e);
struct expert_source *open_source(const struct loader_options *o);
void close_source(struct expert_source *s);

/* Looks into a source: the cache's figures, calls that have returned included; the part of each
 * prefetch that is taken at present, 0.125 to 1; how many experts of a layer are in each tier. */
struct cache_stats source_cache_stats(struct expert_source *s);
double source_prefetch_share(struct expert_source *s);
void source_layer_resident(struct expert_source *s, int layer, int n[2]);
/* Whether the warm-up has nothing left to load. */
bool source_warm_ended(struct expert_source *s);
/* How many prefill slots are borrowed. */
int source_prefill_slots(struct expert_source *s);
/* Whether demotions leave a card without waiting for a gap. */
bool source_under_pressure(struct expert_source *s);
/* The expert whose slot of the second tier was reserved last and is being filled. False: none. */
bool source_last_loading(struct expert_source *s, int *layer, int *expert);
/* Holds the source's lock between the two. */
void source_lock(struct expert_source *s);
void source_unlock(struct expert_source *s);
/* On a card: waits until what was requested so far of the second tier is pinned. */
void source_wait_requested(struct expert_source *s);
/* On a card: waits until all of the second tier is pinned. */
int source_wait_pinned(struct expert_source *s, struct err *e);

/* Experts to ask for: n from `first` on, beginning again behind the last; n distinct ones, some of
 * them popular. */
void refs_from(struct expert_ref *refs, int first, int n);
void refs_random(struct expert_ref *refs, int n, struct rng *r);

/* Every expert, layer by layer. *n: their number. To be freed. */
struct profile_key *all_experts(size_t *n);

/* Fails the test unless the expert is called ready and holds the bytes of the file. */
void check_expert(int layer, const struct expert_ref *r);

/* One acquire .. release; every ref is checked as soon as it is called ready, and again at the end.
 * 0 or the error. */
int use_experts(struct expert_source *s, int layer, enum expert_use how, struct expert_ref *refs,
	int n, struct err *e);

/* A random run of decode tokens and prefill chunks. Returns the number of failed uses; `last`:
 * NULL, or the last one's error. */
int random_run(struct expert_source *s, struct rng *r, int n_tokens, struct err *last);

#endif
