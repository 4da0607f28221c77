/* SPDX-License-Identifier: MIT */
/* Least recently used: each list in order of last use or insertion, newest at the head. Keys that
 * cannot leave (pinned, being filled) stay where they are and are stepped over; there are only a
 * few dozen of them at a time. */
#include "cache/policy/policy.h"

#include "cache/policy/key_list.h"
#include "src/base/err.h"

static void lru_fini(struct policy *p)
{
	if (p->state)
		key_lists_fini(p->state);
	free(p->state);
	p->state = NULL;
}

static int lru_init(struct policy *p)
{
	p->state = NEW(struct key_lists);
	if (key_lists_init(p->state, p->env.n_keys, p->env.n_lists))
		return 0;
	lru_fini(p);
	return ERR_MEMORY;
}

static void lru_insert(struct policy *p, int list, int32_t key)
{
	key_list_push(p->state, list, key);
}

static void lru_remove(struct policy *p, int list, int32_t key)
{
	(void)list;
	key_list_drop(p->state, key);
}

static void lru_access(struct policy *p, int32_t key)
{
	struct key_lists *lists = p->state;
	if (lists->list_of[key] >= 0)
		key_list_to_front(lists, key);
}

static int32_t lru_victim(struct policy *p, int list, uint64_t used_before)
{
	const struct key_lists *lists = p->state;
	for (int32_t key = lists->tail[list]; key >= 0; key = lists->prev[key]) {
		if (p->env.last_use[key] >= used_before)
			return -1; /* nearer to the head, only keys that changed their tier may be older */
		if (p->env.evictable(p->env.ctx, key))
			return key;
	}
	return -1;
}

const struct policy_ops policy_lru = {
	.name = "lru",
	.summary = "least recently used",
	.init = lru_init,
	.fini = lru_fini,
	.access = lru_access,
	.predicted = lru_access, /* even if this prediction is wrong, it is likely to be used soon */
	.insert = lru_insert,
	.remove = lru_remove,
	.victim = lru_victim,
};
