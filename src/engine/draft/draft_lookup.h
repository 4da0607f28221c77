/* SPDX-License-Identifier: MIT */
/*
 * Prompt lookup, an n-gram drafter: a long suffix of the text is searched earlier in the text, and
 * the tokens that followed it there are the drafts. It works well where answers repeat what was
 * read, as those of coding agents do.
 *
 * An index of runs of 2, 4, 8 and 16 tokens holds the latest position of each. A token costs four
 * hash lookups, whatever the length of the text.
 *
 * Order of use: lookup_sync with the prompt, lookup_push for every token that follows, lookup_find
 * whenever drafts are wanted. When memory is exhausted, nothing is found until the next
 * lookup_sync.
 */
#ifndef GLM_ENGINE_DRAFT_LOOKUP_H
#define GLM_ENGINE_DRAFT_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

struct draft_lookup;

struct draft_lookup *lookup_new(void);
void lookup_free(struct draft_lookup *l); /* NULL is fine */

/* Makes the text tokens[0..n). If it begins with all of the indexed text, only the rest is indexed.
 */
void lookup_sync(struct draft_lookup *l, const int32_t *tokens, uint32_t n);

/* Appends a token. */
void lookup_push(struct draft_lookup *l, int32_t id);

/* ids [k_max]: out, the tokens that may follow the text. Returns k_max, or 0 if the last two tokens
 * of the text do not occur earlier in it. *length: tokens of the suffix that was found, at most
 * LOOKUP_MATCH_MAX; 0 if none. The text may end before k_max tokens have followed the earlier
 * place; the drafts themselves are then repeated, which continues a periodic text. */
#define LOOKUP_MATCH_MAX 32
uint32_t lookup_find(const struct draft_lookup *l, uint32_t k_max, int32_t *ids, uint32_t *length);

#endif
