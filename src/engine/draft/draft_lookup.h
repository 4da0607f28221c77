/* SPDX-License-Identifier: MIT */
/*
 * Prompt lookup: drafts are what followed the longest suffix of the text where it stood earlier in
 * the text. Coding agents repeat what they have read.
 *
 * An index of runs of 2, 4, 8 and 16 tokens says where each stood last. A token costs four hash
 * lookups, whatever the length of the text. Order of use: lookup_sync with the prompt, lookup_push
 * of every token that follows, lookup_find whenever drafts are wanted.
 */
#ifndef GLM_ENGINE_DRAFT_LOOKUP_H
#define GLM_ENGINE_DRAFT_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

struct draft_lookup;

struct draft_lookup *lookup_new(void);
void lookup_free(struct draft_lookup *l); /* NULL is fine */

/* Makes the text tokens[0..n). A text that goes on from what is indexed costs the new tokens only.
 */
void lookup_sync(struct draft_lookup *l, const int32_t *tokens, uint32_t n);

/* Appends a token. */
void lookup_push(struct draft_lookup *l, int32_t id);

/* ids: up to k_max tokens that may follow the text; returns how many, 0 when its last two tokens
 * are new. *length: tokens of the suffix that was found, at most LOOKUP_MATCH_MAX. A continuation
 * that reaches the end of the text goes on with its own drafts, so a repetition is continued. */
#define LOOKUP_MATCH_MAX 32
uint32_t lookup_find(const struct draft_lookup *l, uint32_t k_max, int32_t *ids, uint32_t *length);

#endif
