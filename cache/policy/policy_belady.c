/* SPDX-License-Identifier: MIT */
/* Belady's policy (1966): the victim is the key whose next use is farthest. No policy that caches
 * every miss has fewer misses for keys of equal size in one pool; the variant that may bypass the
 * cache has fewer still. It needs the future, so only the simulator can run it. With several size
 * classes or two tiers it is a good guide, not a bound. */
#include "cache/policy/policy.h"

#include "cache/policy/key_heap.h"
#include "src/base/err.h"
#include "src/base/mem.h"

#include <stdlib.h>

struct belady {
	const struct policy_env *env;
	struct key_heaps heaps;
	uint64_t *next_use;   /* [n_keys] as of the key's last access or insertion */
	uint64_t used_before; /* of the search under way */
};

static bool belady_leaves_before(const void *ctx, int32_t a, int32_t b)
{
	const struct belady *s = ctx;
	if (s->next_use[a] != s->next_use[b])
		return s->next_use[a] > s->next_use[b];
	return a < b;
}

static void belady_fini(struct policy *p)
{
	struct belady *s = p->state;
	if (!s)
		return;
	key_heap_fini(&s->heaps);
	free(s->next_use);
	free(s);
	p->state = NULL;
}

static int belady_init(struct policy *p)
{
	struct belady *s = p->state = NEW(struct belady);
	s->env = &p->env;
	s->next_use = mem_try_new((size_t)p->env.n_keys, sizeof *s->next_use);
	if (!s->next_use || key_heap_init(&s->heaps, p->env.n_keys, p->env.n_lists, p->env.list_keys,
							belady_leaves_before, s)) {
		belady_fini(p);
		return ERR_MEMORY;
	}
	return 0;
}

static void belady_access(struct policy *p, int32_t key)
{
	struct belady *s = p->state;
	s->next_use[key] = s->env->next_use[key];
	key_heap_moved(&s->heaps, key);
}

static void belady_insert(struct policy *p, int list, int32_t key)
{
	struct belady *s = p->state;
	s->next_use[key] = s->env->next_use[key];
	key_heap_insert(&s->heaps, list, key);
}

static void belady_remove(struct policy *p, int list, int32_t key)
{
	struct belady *s = p->state;
	key_heap_remove(&s->heaps, list, key);
}

static bool belady_acceptable(const void *ctx, int32_t key)
{
	const struct belady *s = ctx;
	return s->env->last_use[key] < s->used_before && s->env->evictable(s->env->ctx, key);
}

static int32_t belady_victim(struct policy *p, int list, uint64_t used_before)
{
	struct belady *s = p->state;
	s->used_before = used_before;
	return key_heap_first(&s->heaps, list, 0, belady_acceptable, s);
}

static bool belady_admit(struct policy *p, int32_t key, int32_t victim)
{
	const struct belady *s = p->state;
	return s->next_use[key] < s->next_use[victim];
}

const struct policy_ops policy_belady = {
	.name = "belady",
	.summary = "farthest next use (a bound: needs the future)",
	.needs_future = true,
	.init = belady_init,
	.fini = belady_fini,
	.access = belady_access,
	.insert = belady_insert,
	.remove = belady_remove,
	.victim = belady_victim,
};

const struct policy_ops policy_belady_bypass = {
	.name = "belady-bypass",
	.summary = "the same, and what is wanted later than everything cached is not cached at all",
	.needs_future = true,
	.init = belady_init,
	.fini = belady_fini,
	.access = belady_access,
	.insert = belady_insert,
	.remove = belady_remove,
	.victim = belady_victim,
	.admit = belady_admit,
};
