/* SPDX-License-Identifier: MIT */
/* Size classes of an expert cache; inside of cache/. What cache.h says of budgets
 * (cache_working_set_bytes, cache_everything_bytes, cache_choose_prefill_slots) is in
 * cache_classes.c too. */
#ifndef GLM_CACHE_CACHE_CLASSES_H
#define GLM_CACHE_CACHE_CLASSES_H

#include "cache/cache.h"
#include "cache/slab.h"

/* 0, or ERR_USAGE with a sentence; afterwards every product of the numbers fits in 64 bits. */
int cache_config_check(const struct cache_config *cfg, struct err *e);

/* Rounded sizes of all layers -> at most SLAB_MAX_CLASSES classes, largest first. Sizes close to
 * the one above join it; when too many are left, "close" is widened. */
void cache_classes_make(const struct cache_config *cfg, struct slab_classes *k);

/* The class of an expert of that size. */
int cache_classes_find(const struct slab_classes *k, uint64_t bytes);

/* Bytes of all prefill slots. */
uint64_t cache_prefill_bytes(const struct cache_config *cfg, const struct slab_classes *k);

#endif
