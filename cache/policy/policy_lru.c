/* SPDX-License-Identifier: MIT */
/* Least recently used: each list in order of last use, newest at the head. Keys that cannot leave
 * (pinned, being filled) stay where they are and are stepped over; there are only a few dozen of
 * them at a time. */
#include "cache/policy/policy.h"

#include "cache/policy/key_list.h"
#include "src/base/err.h"

struct lru {
	struct key_lists lists;
	int16_t *list_of; /* [n_keys], -1: not resident */
};

static void lru_fini(struct policy *p)
{
	struct lru *s = p->state;
	if (!s)
		return;
	key_lists_fini(&s->lists);
	free(s->list_of);
	free(s);
	p->state = NULL;
}

static int lru_init(struct policy *p)
{
	struct lru *s = p->state = NEW(struct lru);
	s->list_of = mem_try_new((size_t)p->env.n_keys, sizeof *s->list_of);
	if (!s->list_of || !key_lists_init(&s->lists, p->env.n_keys, p->env.n_lists)) {
		lru_fini(p);
		return ERR_MEMORY;
	}
	for (int i = 0; i < p->env.n_keys; i++)
		s->list_of[i] = -1;
	return 0;
}

static void lru_insert(struct policy *p, int list, int32_t key)
{
	struct lru *s = p->state;
	key_list_push(&s->lists, list, key);
	s->list_of[key] = (int16_t)list;
}

static void lru_remove(struct policy *p, int list, int32_t key)
{
	struct lru *s = p->state;
	key_list_drop(&s->lists, list, key);
	s->list_of[key] = -1;
}

static void lru_access(struct policy *p, int32_t key)
{
	struct lru *s = p->state;
	int list = s->list_of[key];
	if (list < 0)
		return;
	key_list_drop(&s->lists, list, key);
	key_list_push(&s->lists, list, key);
}

static int32_t lru_victim(struct policy *p, int list, uint64_t used_before)
{
	struct lru *s = p->state;
	for (int32_t key = s->lists.tail[list]; key >= 0; key = s->lists.prev[key]) {
		if (p->env.last_use[key] >= used_before)
			return -1; /* everything nearer to the head was used later */
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
