/* SPDX-License-Identifier: MIT */
/* Doubly linked lists of dense keys in two arrays; a key is in at most one list. Used by the
 * policies. */
#ifndef GLM_CACHE_KEY_LIST_H
#define GLM_CACHE_KEY_LIST_H

#include "src/base/mem.h"

#include <stdint.h>
#include <stdlib.h>

struct key_lists {
	int32_t *next, *prev; /* [n_keys], -1: end */
	int32_t *head, *tail; /* [n_lists], -1: empty */
};

static inline void key_lists_fini(struct key_lists *l)
{
	free(l->next);
	free(l->prev);
	free(l->head);
	free(l->tail);
	*l = (struct key_lists){0};
}

/* False when memory is exhausted. */
static inline int key_lists_init(struct key_lists *l, int n_keys, int n_lists)
{
	l->next = mem_try_new((size_t)n_keys, sizeof *l->next);
	l->prev = mem_try_new((size_t)n_keys, sizeof *l->prev);
	l->head = mem_try_new((size_t)n_lists, sizeof *l->head);
	l->tail = mem_try_new((size_t)n_lists, sizeof *l->tail);
	if (!l->next || !l->prev || !l->head || !l->tail) {
		key_lists_fini(l);
		return 0;
	}
	for (int i = 0; i < n_lists; i++)
		l->head[i] = l->tail[i] = -1;
	return 1;
}

static inline void key_list_push(struct key_lists *l, int list, int32_t key)
{
	l->prev[key] = -1;
	l->next[key] = l->head[list];
	if (l->head[list] >= 0)
		l->prev[l->head[list]] = key;
	else
		l->tail[list] = key;
	l->head[list] = key;
}

static inline void key_list_push_tail(struct key_lists *l, int list, int32_t key)
{
	l->next[key] = -1;
	l->prev[key] = l->tail[list];
	if (l->tail[list] >= 0)
		l->next[l->tail[list]] = key;
	else
		l->head[list] = key;
	l->tail[list] = key;
}

static inline void key_list_drop(struct key_lists *l, int list, int32_t key)
{
	if (l->prev[key] >= 0)
		l->next[l->prev[key]] = l->next[key];
	else
		l->head[list] = l->next[key];
	if (l->next[key] >= 0)
		l->prev[l->next[key]] = l->prev[key];
	else
		l->tail[list] = l->prev[key];
}

#endif
