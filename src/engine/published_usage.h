/* SPDX-License-Identifier: MIT */
/*
 * Which experts of GLM-5.2 are used most, as others measured and published it: what the first start
 * with the model seeds its cache with, before it has a profile of its own.
 */
#ifndef GLM_ENGINE_PUBLISHED_USAGE_H
#define GLM_ENGINE_PUBLISHED_USAGE_H

#include "cache/trace/expert_profile.h"
#include "src/model/config.h"

/* The model has GLM-5.2's shape. */
bool published_usage_fits(const struct model_config *c);

/* *keys: most used first, distinct; the caller frees it. Returns their number. */
size_t published_usage_keys(struct profile_key **keys);

#endif
