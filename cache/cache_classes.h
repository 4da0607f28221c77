/* SPDX-License-Identifier: MIT */
/* Size classes of an expert cache; private to cache/. cache_classes.c also has the functions of
 * cache.h that compute budgets (cache_working_set_bytes and others). */
#ifndef GLM_CACHE_CACHE_CLASSES_H
#define GLM_CACHE_CACHE_CLASSES_H

#include "cache/cache.h"
#include "cache/slab.h"

/* 0, or ERR_USAGE with a sentence; afterwards every product of the numbers fits in 64 bits. */
int cache_config_check(const struct cache_config *cfg, struct err *e);

/* Sets *k to at most SLAB_MAX_CLASSES classes, largest first, that hold the aligned expert sizes of
 * all layers. A size joins the next larger class if it is close to it (CLASS_MERGE_PART); when too
 * many classes are left, the distance is doubled. */
void cache_classes_make(const struct cache_config *cfg, struct slab_classes *k);

/* The smallest class whose slots hold an expert of that size. */
int cache_classes_find(const struct slab_classes *k, uint64_t bytes);

/* Bytes of all prefill slots. */
uint64_t cache_prefill_bytes(const struct cache_config *cfg, const struct slab_classes *k);

#endif
