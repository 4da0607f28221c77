/* SPDX-License-Identifier: MIT */
/*
 * Four hash tables with linear probing, one for each length of run. An entry is the position behind
 * the latest occurrence of a run; the run itself is compared in the text, so the tables hold no
 * keys.
 */
#include "src/engine/draft/draft_lookup.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

#define RUNS      4
#define FIRST_CAP 1024 /* tokens */

static const uint32_t run_lengths[RUNS] = {2, 4, 8, 16};

struct draft_lookup {
	int32_t *text; /* [n] of [cap] */
	uint32_t n, cap;
	bool lost;              /* memory was exhausted: nothing is found before the next text */
	uint32_t *tables[RUNS]; /* [2 * cap] position behind a run; 0: empty */
	/* position behind the earlier occurrence of the text's last run; 0: none */
	uint32_t match[RUNS];
};

struct draft_lookup *lookup_new(void)
{
	return NEW(struct draft_lookup);
}

void lookup_free(struct draft_lookup *l)
{
	if (!l)
		return;
	for (int r = 0; r < RUNS; r++)
		free(l->tables[r]);
	free(l->text);
	free(l);
}

/* The entry of the run that ends before `end`; an empty one if there is none yet. */
static uint32_t *run_entry(const struct draft_lookup *l, int r, uint32_t end)
{
	uint32_t length = run_lengths[r], mask = 2 * l->cap - 1;
	size_t bytes = length * sizeof *l->text;
	const int32_t *run = l->text + end - length;
	uint32_t at = (uint32_t)hash_bytes(HASH_START, run, bytes) & mask;
	while (l->tables[r][at] && memcmp(l->text + l->tables[r][at] - length, run, bytes) != 0)
		at = (at + 1) & mask;
	return &l->tables[r][at];
}

/* Indexes the runs that end before `end`; match: where they stood before. */
static void runs_index(struct draft_lookup *l, uint32_t end)
{
	for (int r = 0; r < RUNS; r++) {
		l->match[r] = 0;
		if (end < run_lengths[r])
			continue;
		uint32_t *entry = run_entry(l, r, end);
		l->match[r] = *entry;
		*entry = end;
	}
}

static void lookup_clear(struct draft_lookup *l)
{
	for (int r = 0; r < RUNS; r++)
		free(l->tables[r]);
	free(l->text);
	*l = (struct draft_lookup){.lost = true};
}

/* Room for n tokens. Growing doubles, so that a token costs the same on average. False without
 * memory. */
static bool lookup_reserve(struct draft_lookup *l, uint32_t n)
{
	if (n <= l->cap || l->lost)
		return !l->lost;
	uint32_t cap = l->cap ? l->cap : FIRST_CAP;
	while (cap < n)
		cap *= 2;
	int32_t *text = mem_try_new(cap, sizeof *text);
	bool all = text != NULL;
	if (all && l->n)
		memcpy(text, l->text, l->n * sizeof *text);
	free(l->text);
	l->text = text;
	l->cap = cap;
	for (int r = 0; r < RUNS; r++) {
		free(l->tables[r]);
		l->tables[r] = mem_try_new(2 * (size_t)cap, sizeof *l->tables[r]);
		all &= l->tables[r] != NULL;
	}
	if (!all) {
		lookup_clear(l);
		return false;
	}
	for (uint32_t end = 1; end <= l->n; end++)
		runs_index(l, end);
	return true;
}

void lookup_sync(struct draft_lookup *l, const int32_t *tokens, uint32_t n)
{
	l->lost = false;
	bool goes_on = l->n <= n && (!l->n || !memcmp(l->text, tokens, l->n * sizeof *tokens));
	if (!goes_on) {
		for (int r = 0; r < RUNS; r++)
			memset(l->tables[r], 0, 2 * (size_t)l->cap * sizeof *l->tables[r]);
		memset(l->match, 0, sizeof l->match);
		l->n = 0;
	}
	if (!lookup_reserve(l, n))
		return;
	for (uint32_t i = l->n; i < n; i++)
		lookup_push(l, tokens[i]);
}

void lookup_push(struct draft_lookup *l, int32_t id)
{
	if (!lookup_reserve(l, l->n + 1))
		return;
	l->text[l->n++] = id;
	runs_index(l, l->n);
}

uint32_t lookup_find(const struct draft_lookup *l, uint32_t k_max, int32_t *ids, uint32_t *length)
{
	uint32_t at = 0, n = 0;
	for (int r = RUNS - 1; r >= 0 && !at; r--) {
		at = l->match[r];
		n = run_lengths[r];
	}
	*length = 0;
	if (!at)
		return 0;
	while (n < LOOKUP_MATCH_MAX && n < at && l->text[at - n - 1] == l->text[l->n - n - 1])
		n++;
	*length = n;
	for (uint32_t k = 0; k < k_max; k++)
		ids[k] = at + k < l->n ? l->text[at + k] : ids[at + k - l->n];
	return k_max;
}
