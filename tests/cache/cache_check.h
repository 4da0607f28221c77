/* SPDX-License-Identifier: MIT */
/* The invariants of the expert cache. */
#ifndef GLM_TESTS_CACHE_CHECK_H
#define GLM_TESTS_CACHE_CHECK_H

#include "cache/cache.h"

/* 0, or ERR_RUN with the first invariant that is broken. Slow. */
int cache_check(const struct cache *c, struct err *e);

#endif
