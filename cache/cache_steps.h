/* SPDX-License-Identifier: MIT */
/* The single steps of cache_acquire, for the loader until it calls cache_acquire itself; then this
 * file goes. Not to be mixed with cache_acquire on one cache. */
#ifndef GLM_CACHE_CACHE_STEPS_H
#define GLM_CACHE_CACHE_STEPS_H

#include "cache/cache.h"

#define cache_plan           cache_step_plan
#define cache_demotion       cache_transfer
#define cache_begin_step     cache_step_begin
#define cache_note_predicted cache_step_note_predicted
#define cache_keep_free      cache_step_keep_free
#define cache_unpin          cache_step_unpin

struct cache_plan {
	int32_t slot, source;
	int n_demotions;
	const struct cache_transfer *demotions;
};

int32_t cache_access(struct cache *c, int layer, int expert, enum cache_use use);
enum cache_result cache_reserve(
	struct cache *c, int layer, int expert, enum cache_use use, struct cache_plan *plan);
void cache_begin_step(struct cache *c, enum cache_use use, struct cache_plan *plan);
void cache_note_predicted(struct cache *c, int layer, int expert);
void cache_keep_free(struct cache *c, int layer, struct cache_plan *plan);
void cache_pin(struct cache *c, int32_t slot);
void cache_unpin(struct cache *c, int32_t slot);
bool cache_is_ready(const struct cache *c, int32_t slot);
int32_t cache_staging_slot(const struct cache *c, int i);

#endif
