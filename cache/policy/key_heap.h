/* SPDX-License-Identifier: MIT */
/*
 * Binary heaps of dense keys, one per list; a key is in at most one. The order comes from a
 * callback and must be total (ties broken by the key), so that the key found does not depend on the
 * history of the heap. A caller that changes the rank of a key calls key_heap_moved next.
 */
#ifndef GLM_CACHE_KEY_HEAP_H
#define GLM_CACHE_KEY_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct key_heaps {
	int n_lists;
	int32_t **keys;   /* [n_lists][list_keys] */
	int32_t *n;       /* [n_lists] */
	int32_t *at;      /* [n_keys] index in its heap, -1: in none */
	int16_t *list_of; /* [n_keys] which heap; meaningful while at >= 0 */
	bool (*before)(const void *ctx, int32_t a, int32_t b); /* a leaves before b */
	const void *ctx;
};

/* 0 or ERR_MEMORY. */
int key_heap_init(struct key_heaps *h, int n_keys, int n_lists, const int32_t *list_keys,
	bool (*before)(const void *ctx, int32_t a, int32_t b), const void *ctx);
void key_heap_fini(struct key_heaps *h);
void key_heap_insert(struct key_heaps *h, int list, int32_t key); /* the key is in no heap */
/* The rank of this key has changed. No effect on a key that is in no heap. */
void key_heap_moved(struct key_heaps *h, int32_t key);
void key_heap_remove(struct key_heaps *h, int list, int32_t key); /* the key is in this heap */
static inline bool key_heap_has(const struct key_heaps *h, int32_t key)
{
	return h->at[key] >= 0;
}
void key_heap_rebuild(struct key_heaps *h); /* the ranks of many keys have changed */

/* The first key in the order that `accept` takes, -1: none. Looks at no more than `budget` keys
 * (<= 0: all). */
int32_t key_heap_first(const struct key_heaps *h, int list, int budget,
	bool (*accept)(const void *ctx, int32_t key), const void *ctx);

#endif
