/* SPDX-License-Identifier: MIT */
/* Indexed binary heaps. */
#include "cache/policy/key_heap.h"

#include "src/base/err.h"
#include "src/base/mem.h"

#include <limits.h>
#include <stdlib.h>

void key_heap_fini(struct key_heaps *h)
{
	for (int i = 0; h->keys && i < h->n_lists; i++)
		free(h->keys[i]);
	free(h->keys);
	free(h->n);
	free(h->at);
	free(h->list_of);
	*h = (struct key_heaps){0};
}

int key_heap_init(struct key_heaps *h, int n_keys, int n_lists, const int32_t *list_keys,
	bool (*before)(const void *ctx, int32_t a, int32_t b), const void *ctx)
{
	*h = (struct key_heaps){.n_lists = n_lists, .before = before, .ctx = ctx};
	h->keys = mem_try_new((size_t)n_lists, sizeof *h->keys);
	h->n = mem_try_new((size_t)n_lists, sizeof *h->n);
	h->at = mem_try_new((size_t)n_keys, sizeof *h->at);
	h->list_of = mem_try_new((size_t)n_keys, sizeof *h->list_of);
	bool ok = h->keys && h->n && h->at && h->list_of;
	for (int i = 0; ok && i < n_lists; i++)
		ok = (h->keys[i] = mem_try_new((size_t)list_keys[i], sizeof **h->keys)) != NULL;
	if (!ok) {
		key_heap_fini(h);
		return ERR_MEMORY;
	}
	for (int i = 0; i < n_keys; i++)
		h->at[i] = -1;
	return 0;
}

static void heap_place(struct key_heaps *h, int32_t *keys, int i, int32_t key)
{
	keys[i] = key;
	h->at[key] = i;
}

static void sift_up(struct key_heaps *h, int32_t *keys, int i)
{
	int32_t key = keys[i];
	while (i > 0 && h->before(h->ctx, key, keys[(i - 1) / 2])) {
		heap_place(h, keys, i, keys[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_place(h, keys, i, key);
}

static void sift_down(struct key_heaps *h, int32_t *keys, int n, int i)
{
	int32_t key = keys[i];
	for (;;) {
		int child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && h->before(h->ctx, keys[child + 1], keys[child]))
			child++;
		if (!h->before(h->ctx, keys[child], key))
			break;
		heap_place(h, keys, i, keys[child]);
		i = child;
	}
	heap_place(h, keys, i, key);
}

void key_heap_insert(struct key_heaps *h, int list, int32_t key)
{
	int i = h->n[list]++;
	h->keys[list][i] = key;
	h->list_of[key] = (int16_t)list;
	sift_up(h, h->keys[list], i);
}

void key_heap_moved(struct key_heaps *h, int32_t key)
{
	if (h->at[key] < 0)
		return;
	int list = h->list_of[key];
	sift_up(h, h->keys[list], h->at[key]);
	sift_down(h, h->keys[list], h->n[list], h->at[key]);
}

void key_heap_remove(struct key_heaps *h, int list, int32_t key)
{
	int32_t *keys = h->keys[list];
	int i = h->at[key], last = --h->n[list];
	h->at[key] = -1;
	if (i == last)
		return;
	heap_place(h, keys, i, keys[last]);
	key_heap_moved(h, keys[i]);
}

void key_heap_rebuild(struct key_heaps *h)
{
	for (int list = 0; list < h->n_lists; list++)
		for (int i = h->n[list] / 2 - 1; i >= 0; i--)
			sift_down(h, h->keys[list], h->n[list], i);
}

/* A key below an accepted one can only come later in the order, so only refused keys are opened:
 * the cost is the number of refused keys near the top. */
static int32_t first_below(const struct key_heaps *h, const int32_t *keys, int n, int i,
	int *budget, bool (*accept)(const void *ctx, int32_t key), const void *ctx)
{
	if (i >= n || (*budget)-- <= 0)
		return -1;
	if (accept(ctx, keys[i]))
		return keys[i];
	int32_t left = first_below(h, keys, n, 2 * i + 1, budget, accept, ctx);
	int32_t right = first_below(h, keys, n, 2 * i + 2, budget, accept, ctx);
	if (left < 0 || right < 0)
		return left < 0 ? right : left;
	return h->before(h->ctx, left, right) ? left : right;
}

int32_t key_heap_first(const struct key_heaps *h, int list, int budget,
	bool (*accept)(const void *ctx, int32_t key), const void *ctx)
{
	int left = budget > 0 ? budget : INT_MAX;
	return first_below(h, h->keys[list], h->n[list], 0, &left, accept, ctx);
}
