/* SPDX-License-Identifier: MIT */
/*
 * Eviction policies. A policy is a table of functions that orders keys and names victims; it owns
 * no slots and moves nothing. The cache and the simulator call the same tables.
 *
 * Keys are dense numbers (layer * n_experts + expert). Resident keys are in exactly one list: one
 * list per tier and size class, so that a victim always frees a slot that fits. A key is in a list
 * from `insert` (when its slot is reserved, not when its bytes arrive: the order must not depend on
 * the timing of reads) until `remove`.
 */
#ifndef GLM_CACHE_POLICY_H
#define GLM_CACHE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define POLICY_ANY_AGE UINT64_MAX

/* What the cache lends to a policy for the policy's whole life. */
struct policy_env {
	int n_keys, n_lists;
	const int32_t *list_keys; /* [n_lists] how many keys can ever be in the list */
	const uint64_t *last_use; /* [n_keys] clock of the last demand access, prediction or insertion
							   * without a demand */
	bool (*evictable)(const void *ctx, int32_t key); /* READY and not pinned */
	const void *ctx;
	double half_life; /* in accesses; frequency policies */
	/* lfu, sieve: keys used within the last recency_window accesses become victims only when there
	 * are no others; 0: no such rule */
	uint64_t recency_window;
	/* Belady only, kept by the simulator: [n_keys] number of the next demand access, UINT64_MAX:
	 * never. Read when the key is accessed or inserted, so all of a layer may be set before. */
	const uint64_t *next_use;
};

struct policy {
	const struct policy_ops *ops;
	struct policy_env env;
	void *state; /* the policy's own */
};

struct policy_ops {
	const char *name, *summary;
	bool needs_future;
	/* 0 or ERR_MEMORY. fini accepts a state of NULL. */
	int (*init)(struct policy *p);
	void (*fini)(struct policy *p);
	/* A demand access, resident or not; called before the insert that may follow. */
	void (*access)(struct policy *p, int32_t key);
	/* A prediction of the key, resident or not; its last_use has been set to now. NULL: the policy
	 * ignores predictions, and they do not change last_use. */
	void (*predicted)(struct policy *p, int32_t key);
	void (*insert)(struct policy *p, int list, int32_t key);
	void (*remove)(struct policy *p, int list, int32_t key);
	/* The key that should leave next among those that are evictable and were last used before clock
	 * `used_before` (POLICY_ANY_AGE: any); -1: none was found. With an age limit the search may
	 * give up early. The key stays in its list until `remove`. */
	int32_t (*victim)(struct policy *p, int list, uint64_t used_before);
	/* Whether a key that was accessed last was worth more than the victim chosen for it even
	 * without this access. NULL: always. */
	bool (*worth_more)(struct policy *p, int32_t key, int32_t victim);
	/* May be NULL. Whether a demanded key is worth more than the victim chosen for it; false: it is
	 * not cached. Only for simulation: a real demand always needs a slot. */
	bool (*admit)(struct policy *p, int32_t key, int32_t victim);
};

extern const struct policy_ops policy_lru, policy_lfu, policy_sieve, policy_belady,
	policy_belady_bypass;

/* The policy of a run that names none. Bytes copied into tier 0, against lru: 3 to 8 % fewer in
 * traces of GLM-5.2's shape with room for 10 to 77 % of the experts; 3 to 16 % fewer in those of
 * the pocket model (with predictions and a cache of 30 %: 3 % more, for a third fewer misses). */
#define POLICY_DEFAULT "lfu"

/* "lru", "lfu", "sieve", "belady", "belady-bypass"; NULL for any other name. */
const struct policy_ops *policy_find(const char *name);
/* The i-th policy that a live cache can use, NULL past the end. */
const struct policy_ops *policy_list(int i);

#endif
