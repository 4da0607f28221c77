/* SPDX-License-Identifier: MIT */
/* From a model's expert sizes to a few slot sizes, and how much memory a set of experts needs in
 * slabs of them. */
#include "cache/cache_classes.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

/* A size that is less than the largest of a class by at most 1 / CLASS_MERGE_PART of it joins the
 * class: less is lost by rounding up than by one more class. */
#define CLASS_MERGE_PART 64

/* Prefill slots, with `fits` the experts that fit in tier 0:
 *     max(min(fits / PREFILL_FEW_PART, PREFILL_FEW), min(fits / PREFILL_MANY_PART, n_experts / 2))
 * With so many, the loads of a layer's experts are hidden by what a long prompt computes in the
 * layers before. */
#define PREFILL_FEW       32
#define PREFILL_FEW_PART  16
#define PREFILL_MANY_PART 64

static int compare_sizes_falling(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? 1 : x > y ? -1 : 0;
}

void cache_classes_make(const struct cache_config *cfg, struct slab_classes *k)
{
	uint64_t *sizes = NEW_ARRAY(uint64_t, (size_t)cfg->n_layers);
	uint64_t align = cfg->align ? cfg->align : 1;
	for (uint64_t part = CLASS_MERGE_PART;; part /= 2) {
		for (int l = 0; l < cfg->n_layers; l++)
			sizes[l] = num_align_up(cfg->expert_bytes[l], align);
		qsort(sizes, (size_t)cfg->n_layers, sizeof *sizes, compare_sizes_falling);
		*k = (struct slab_classes){0};
		int l = 0;
		for (; l < cfg->n_layers && sizes[l]; l++) {
			bool joins =
				k->n && (part < 1 || k->bytes[k->n - 1] - sizes[l] <= k->bytes[k->n - 1] / part);
			if (!joins) {
				if (k->n == SLAB_MAX_CLASSES)
					break;
				k->bytes[k->n++] = sizes[l];
			}
			k->n_objects[k->n - 1] += (uint64_t)cfg->n_experts;
		}
		if (l == cfg->n_layers || !sizes[l])
			break;
	}
	free(sizes);
}

int cache_classes_find(const struct slab_classes *k, uint64_t bytes)
{
	int i = k->n - 1; /* the smallest that fits */
	while (i > 0 && k->bytes[i] < bytes)
		i--;
	return i;
}

int cache_config_check(const struct cache_config *cfg, struct err *e)
{
	uint64_t align = cfg->align ? cfg->align : 1, total = 0, sum;
	if (cfg->n_layers < 1 || cfg->n_layers > 4096 || cfg->n_experts < 1 || cfg->n_experts > 65536)
		return err_set(e, ERR_USAGE,
			"expert cache: %d layers of %d experts (expected 1 to 4096 of 1 to 65536)",
			cfg->n_layers, cfg->n_experts);
	if (!num_is_pow2(align) || align > (uint64_t)1 << 30)
		return err_set(e, ERR_USAGE,
			"expert cache: alignment %llu is not a power of two up to 2^30",
			(unsigned long long)align);
	if (cfg->n_prefill_slots < 0 || cfg->n_prefill_slots > CACHE_PREFILL_SLOTS_MAX)
		return err_set(e, ERR_USAGE, "expert cache: %d prefill slots (expected 0 to %d)",
			cfg->n_prefill_slots, CACHE_PREFILL_SLOTS_MAX);
	for (int l = 0; l < cfg->n_layers; l++) {
		uint64_t b = cfg->expert_bytes[l];
		if (b > (uint64_t)1 << 44 ||
			!num_mul(num_align_up(b, align), (uint64_t)cfg->n_experts, &sum) ||
			!num_add(total, sum, &total) || total > (uint64_t)1 << 62)
			return err_set(e, ERR_USAGE,
				"expert cache: %d experts of %llu bytes in layer %d are too large", cfg->n_experts,
				(unsigned long long)b, l);
	}
	if (!total)
		return err_set(e, ERR_USAGE, "expert cache: no layer has experts");
	return 0;
}

uint64_t cache_prefill_bytes(const struct cache_config *cfg, const struct slab_classes *k)
{
	return (uint64_t)cfg->n_prefill_slots * k->bytes[0];
}

/* Whether an arena of `bytes` has the slabs that `n_each` experts of every layer and the prefill
 * slots need. */
static bool arena_holds(
	const struct cache_config *cfg, const struct slab_classes *k, uint64_t bytes, uint64_t n_each)
{
	uint64_t slab = slab_choose_bytes(bytes, k), need = 0;
	for (int i = 0; i < k->n; i++) {
		uint64_t n = k->n_objects[i] / (uint64_t)cfg->n_experts * n_each, per = slab / k->bytes[i];
		n += i ? 0 : (uint64_t)cfg->n_prefill_slots;
		need += (n + per - 1) / per;
	}
	return need <= bytes / slab;
}

/* The smallest tier 0 with room for n_each experts of every layer beside the prefill slots. */
static uint64_t bytes_for(const struct cache_config *cfg, uint64_t n_each)
{
	if (cache_config_check(cfg, NULL))
		return 0;
	struct slab_classes k;
	cache_classes_make(cfg, &k);
	uint64_t need = cache_prefill_bytes(cfg, &k);
	for (int i = 0; i < k.n; i++)
		need += k.n_objects[i] / (uint64_t)cfg->n_experts * n_each * k.bytes[i];
	/* A larger arena may choose a larger slab, so this is a search, not a formula; it ends because
	 * the part that slabs can lose falls with the size of the arena. */
	uint64_t step = MAX(k.bytes[k.n - 1], need / 512);
	while (!arena_holds(cfg, &k, need, n_each))
		need += step;
	return need;
}

uint64_t cache_working_set_bytes(const struct cache_config *cfg, int top_k)
{
	return bytes_for(cfg, (uint64_t)MAX(1, MIN(top_k, cfg->n_experts)));
}

uint64_t cache_floor_bytes(const struct cache_config *cfg, int top_k)
{
	uint64_t n_moe = 0;
	for (int l = 0; l < cfg->n_layers; l++)
		n_moe += cfg->expert_bytes[l] > 0;
	uint64_t k = (uint64_t)MAX(1, MIN(top_k, cfg->n_experts));
	/* of each layer; slots are shared by the layers */
	uint64_t each = MAX(k / CACHE_FLOOR_PART, n_moe ? (2 * k + n_moe - 1) / n_moe : 1);
	return bytes_for(cfg, MIN(MAX(each, (uint64_t)1), k));
}

uint64_t cache_everything_bytes(const struct cache_config *cfg)
{
	return bytes_for(cfg, (uint64_t)MAX(1, cfg->n_experts));
}

int cache_choose_prefill_slots(const struct cache_config *cfg, int top_k)
{
	struct cache_config c = *cfg;
	uint64_t largest = 1;
	for (int l = 0; l < c.n_layers; l++)
		largest = MAX(largest, c.expert_bytes[l]);
	uint64_t fits = c.tier_bytes[0] / largest;
	uint64_t few = MIN(fits / PREFILL_FEW_PART, (uint64_t)PREFILL_FEW),
			 many = MIN(fits / PREFILL_MANY_PART, (uint64_t)c.n_experts / 2);
	int most = (int)MAX(
		MIN(MAX(few, many), (uint64_t)CACHE_PREFILL_SLOTS_MAX), (uint64_t)CACHE_PREFILL_SLOTS_MIN);
	c.n_prefill_slots = CACHE_PREFILL_SLOTS_MIN;
	uint64_t (*needed)(const struct cache_config *, int) =
		cache_working_set_bytes(&c, top_k) <= c.tier_bytes[0] ? cache_working_set_bytes
															  : cache_floor_bytes;
	/* bisection: `least` slots are taken when no larger number fits */
	int least = CACHE_PREFILL_SLOTS_MIN;
	while (least < most) {
		c.n_prefill_slots = least + (most - least + 1) / 2;
		if (needed(&c, top_k) <= c.tier_bytes[0])
			least = c.n_prefill_slots;
		else
			most = c.n_prefill_slots - 1;
	}
	return least;
}
