/* SPDX-License-Identifier: MIT */
/* Doubly linked lists of dense keys in arrays; a key is in at most one list. */
#ifndef GLM_CACHE_KEY_LIST_H
#define GLM_CACHE_KEY_LIST_H

#include "src/base/mem.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct key_lists {
	int32_t *next, *prev; /* [n_keys], -1: end */
	int16_t *list_of;     /* [n_keys] which list, -1: none */
	int32_t *head, *tail; /* [n_lists], -1: empty */
};

static inline void key_lists_fini(struct key_lists *l)
{
	free(l->next);
	free(l->prev);
	free(l->list_of);
	free(l->head);
	free(l->tail);
	*l = (struct key_lists){0};
}

/* False: no memory. */
static inline bool key_lists_init(struct key_lists *l, int n_keys, int n_lists)
{
	l->next = mem_try_new((size_t)n_keys, sizeof *l->next);
	l->prev = mem_try_new((size_t)n_keys, sizeof *l->prev);
	l->list_of = mem_try_new((size_t)n_keys, sizeof *l->list_of);
	l->head = mem_try_new((size_t)n_lists, sizeof *l->head);
	l->tail = mem_try_new((size_t)n_lists, sizeof *l->tail);
	if (!l->next || !l->prev || !l->list_of || !l->head || !l->tail) {
		key_lists_fini(l);
		return false;
	}
	for (int i = 0; i < n_keys; i++)
		l->list_of[i] = -1;
	for (int i = 0; i < n_lists; i++)
		l->head[i] = l->tail[i] = -1;
	return true;
}

/* Puts a key that is in no list between two neighbours; -1: there is none on that side. */
static inline void key_list_link(
	struct key_lists *l, int list, int32_t key, int32_t before, int32_t after)
{
	l->prev[key] = before;
	l->next[key] = after;
	l->list_of[key] = (int16_t)list;
	*(before >= 0 ? &l->next[before] : &l->head[list]) = key;
	*(after >= 0 ? &l->prev[after] : &l->tail[list]) = key;
}

static inline void key_list_push(struct key_lists *l, int list, int32_t key)
{
	key_list_link(l, list, key, -1, l->head[list]);
}

static inline void key_list_push_tail(struct key_lists *l, int list, int32_t key)
{
	key_list_link(l, list, key, l->tail[list], -1);
}

static inline void key_list_drop(struct key_lists *l, int32_t key)
{
	int list = l->list_of[key];
	int32_t before = l->prev[key], after = l->next[key];
	l->list_of[key] = -1;
	*(before >= 0 ? &l->next[before] : &l->head[list]) = after;
	*(after >= 0 ? &l->prev[after] : &l->tail[list]) = before;
}

/* Of a key that is in a list. */
static inline void key_list_to_front(struct key_lists *l, int32_t key)
{
	int list = l->list_of[key];
	key_list_drop(l, key);
	key_list_push(l, list, key);
}

#endif
