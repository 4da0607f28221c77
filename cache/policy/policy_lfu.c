/* SPDX-License-Identifier: MIT */
/*
 * Decayed frequency: the score of a key is the sum over its uses of 2^(-age / half_life), kept for
 * keys that are not resident too. The key of least score is evicted; among equal ones the one
 * unused for longest.
 *
 * Layers are visited in a cycle, so a key cannot be used again before a whole token has passed, and
 * a new key always has a small score: alone, the rule above evicts what was inserted last. So keys
 * used within the last token (env.recency_window accesses) are not compared. They are in a list in
 * order of last use or insertion, and enter the heap of scores when they are older. If nothing in
 * the heap can be evicted, the oldest of the list is. (On synthetic GLM-5.2 routing with room for
 * 10 % of the experts: 52 % hits, 48 % without this rule, 50 % for LRU.)
 *
 * Instead of decaying 20,000 scores at every access, the weight of a new use grows by a constant
 * factor and only the ratio of scores matters. When the weight gets large all are scaled down by an
 * exact power of two. Only + and * on binary64 occur, so another program can repeat every decision
 * exactly.
 */
#include "cache/policy/policy.h"

#include "cache/policy/key_heap.h"
#include "cache/policy/key_list.h"
#include "src/base/err.h"

#define LFU_LN2             0.6931471805599453
#define LFU_WEIGHT_LIMIT    0x1p500
#define LFU_PREDICTED_WORTH 0.5 /* what a prediction is worth, in uses */
#define LFU_COLD_LIMIT      256 /* keys looked at when there is an age limit (prefetch) */

struct lfu {
	const struct policy_env *env;
	struct key_heaps heaps;  /* resident keys that are old enough to be compared */
	struct key_lists recent; /* the other resident keys, newest at the head */
	double *score;           /* [n_keys] */
	double weight, growth;
	uint64_t now;         /* accesses so far */
	uint64_t used_before; /* of the search under way */
};

static bool lfu_leaves_before(const void *ctx, int32_t a, int32_t b)
{
	const struct lfu *s = ctx;
	if (s->score[a] != s->score[b])
		return s->score[a] < s->score[b];
	if (s->env->last_use[a] != s->env->last_use[b])
		return s->env->last_use[a] < s->env->last_use[b];
	return a < b;
}

static void lfu_fini(struct policy *p)
{
	struct lfu *s = p->state;
	if (!s)
		return;
	key_heap_fini(&s->heaps);
	key_lists_fini(&s->recent);
	free(s->score);
	free(s);
	p->state = NULL;
}

static int lfu_init(struct policy *p)
{
	struct lfu *s = p->state = NEW(struct lfu);
	s->env = &p->env;
	s->weight = 1;
	s->growth = 1 + LFU_LN2 / (p->env.half_life > 1 ? p->env.half_life : 1);
	s->score = mem_try_new((size_t)p->env.n_keys, sizeof *s->score);
	if (!s->score || !key_lists_init(&s->recent, p->env.n_keys, p->env.n_lists) ||
		key_heap_init(
			&s->heaps, p->env.n_keys, p->env.n_lists, p->env.list_keys, lfu_leaves_before, s)) {
		lfu_fini(p);
		return ERR_MEMORY;
	}
	return 0;
}

/* Adds to the score. A resident key moves to the head of the recent ones. */
static void score_use(struct policy *p, int32_t key, double worth)
{
	struct lfu *s = p->state;
	s->score[key] += worth;
	if (s->recent.list_of[key] >= 0) {
		key_list_to_front(&s->recent, key);
	} else if (key_heap_has(&s->heaps, key)) {
		int list = s->heaps.list_of[key];
		key_heap_remove(&s->heaps, list, key);
		key_list_push(&s->recent, list, key);
	}
}

static void lfu_access(struct policy *p, int32_t key)
{
	struct lfu *s = p->state;
	s->now++;
	s->weight *= s->growth;
	if (s->weight > LFU_WEIGHT_LIMIT) {
		for (int i = 0; i < p->env.n_keys; i++)
			s->score[i] *= 1 / LFU_WEIGHT_LIMIT;
		s->weight *= 1 / LFU_WEIGHT_LIMIT;
		key_heap_rebuild(&s->heaps); /* the smallest scores may have become equal */
	}
	score_use(p, key, s->weight);
}

static void lfu_predicted(struct policy *p, int32_t key)
{
	struct lfu *s = p->state;
	score_use(p, key, LFU_PREDICTED_WORTH * s->weight);
}

static void lfu_insert(struct policy *p, int list, int32_t key)
{
	struct lfu *s = p->state;
	key_list_push(&s->recent, list, key);
}

static void lfu_remove(struct policy *p, int list, int32_t key)
{
	struct lfu *s = p->state;
	if (s->recent.list_of[key] >= 0)
		key_list_drop(&s->recent, key);
	else
		key_heap_remove(&s->heaps, list, key);
}

static bool lfu_acceptable(const void *ctx, int32_t key)
{
	const struct lfu *s = ctx;
	return s->env->last_use[key] < s->used_before && s->env->evictable(s->env->ctx, key);
}

static int32_t lfu_victim(struct policy *p, int list, uint64_t used_before)
{
	struct lfu *s = p->state;
	for (int32_t key; (key = s->recent.tail[list]) >= 0;) {
		if (p->env.last_use[key] + p->env.recency_window > s->now)
			break;
		key_list_drop(&s->recent, key);
		key_heap_insert(&s->heaps, list, key);
	}
	s->used_before = used_before;
	int32_t key = key_heap_first(
		&s->heaps, list, used_before == POLICY_ANY_AGE ? 0 : LFU_COLD_LIMIT, lfu_acceptable, s);
	for (int32_t at = s->recent.tail[list]; key < 0 && at >= 0; at = s->recent.prev[at]) {
		if (p->env.last_use[at] >= used_before)
			break;
		if (p->env.evictable(p->env.ctx, at))
			key = at;
	}
	return key;
}

/* The latest access, and the prediction before it, are taken off the key's score. */
static bool lfu_worth_more(struct policy *p, int32_t key, int32_t victim)
{
	const struct lfu *s = p->state;
	return s->score[key] - (1 + LFU_PREDICTED_WORTH) * s->weight > s->score[victim];
}

const struct policy_ops policy_lfu = {
	.name = "lfu",
	.summary = "least frequently used, old uses counting less",
	.init = lfu_init,
	.fini = lfu_fini,
	.access = lfu_access,
	.predicted = lfu_predicted,
	.insert = lfu_insert,
	.remove = lfu_remove,
	.victim = lfu_victim,
	.worth_more = lfu_worth_more,
};
