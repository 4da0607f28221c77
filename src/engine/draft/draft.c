/* SPDX-License-Identifier: MIT */
/* The drafter: asks the sources for drafts, lets the gate choose, reports acceptance to it. */
#include "src/engine/draft/draft.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/draft/draft_lookup.h"

#include <stdlib.h>

struct drafter {
	struct draft_gate gate;
	struct draft_source source; /* propose NULL: none */
	bool no_lookup;
	uint64_t (*clock)(void);
	struct draft_stats stats;
};

/* Chances by grade, which is the length of the match (lookup_grade). */
static const struct draft_gate_source lookup_expects = {
	.chance = {0.15f, 0.25f, 0.35f, 0.5f, 0.6f, 0.7f, 0.8f, 0.85f},
	.first_chance = 0.5f,
};

/* Grade of a draft behind `length` tokens that occur earlier in the text. */
static uint8_t lookup_grade(uint32_t length)
{
	static const uint8_t least[DRAFT_GRADES] = {0, 3, 4, 6, 8, 12, 16, 24};
	uint8_t grade = DRAFT_GRADES - 1;
	while (length < least[grade])
		grade--;
	return grade;
}

struct drafter *drafter_new(const struct drafter_options *o)
{
	struct drafter *d = NEW(struct drafter);
	struct draft_gate_source expect[DRAFT_SOURCES] = {[DRAFT_LOOKUP] = lookup_expects};
	if (o->source) {
		d->source = *o->source;
		expect[DRAFT_COMPUTED] = o->source->expect;
	}
	d->no_lookup = o->no_lookup;
	d->clock = o->clock ? o->clock : clock_ns;
	draft_gate_init(&d->gate, o->limit, o->always, expect);
	return d;
}

void drafter_free(struct drafter *d)
{
	if (!d)
		return;
	if (d->source.close)
		d->source.close(d->source.user);
	free(d);
}

const struct draft_source *drafter_source(const struct drafter *d)
{
	return &d->source;
}

uint64_t drafter_clock(const struct drafter *d)
{
	return d->clock();
}

struct draft_stats drafter_stats(const struct drafter *d)
{
	return d->stats;
}

struct draft_stats draft_stats_between(struct draft_stats before, struct draft_stats after)
{
	after.steps -= before.steps;
	after.rows -= before.rows;
	for (uint32_t i = 0; i < DRAFT_MAX; i++) {
		after.tried[i] -= before.tried[i];
		after.accepted[i] -= before.accepted[i];
	}
	for (uint32_t i = 0; i < DRAFT_SOURCES; i++) {
		after.tried_by[i] -= before.tried_by[i];
		after.accepted_by[i] -= before.accepted_by[i];
	}
	after.drafting_ns -= before.drafting_ns;
	after.saved_ns -= before.saved_ns;
	return after;
}

struct draft_timeline *draft_timeline_new(struct drafter *d, struct session *session)
{
	struct draft_timeline *t = NEW(struct draft_timeline);
	t->drafter = d;
	t->session = session;
	t->most = DRAFT_MAX;
	if (!d->no_lookup)
		t->lookup = lookup_new();
	return t;
}

void draft_timeline_free(struct draft_timeline *t)
{
	if (!t)
		return;
	lookup_free(t->lookup);
	free(t);
}

static void drafts_forget(struct draft_timeline *t)
{
	for (uint32_t i = 0; i < DRAFT_SOURCES; i++)
		t->chains[i].n = 0;
	t->n = t->pushed = 0;
}

void drafts_begin(
	struct draft_timeline *t, const int32_t *tokens, uint32_t n, struct sampler *sampler)
{
	drafts_forget(t);
	t->sampler = sampler;
	t->length = n;
	t->most = DRAFT_MAX;
	if (t->lookup)
		lookup_sync(t->lookup, tokens, n);
}

void drafts_limit(struct draft_timeline *t, uint32_t most)
{
	t->most = MIN(most, DRAFT_MAX);
}

void drafts_push(struct draft_timeline *t, int32_t id)
{
	struct drafter *d = t->drafter;
	uint32_t at = t->pushed++;
	t->next = id;
	t->length++;
	if (t->lookup)
		lookup_push(t->lookup, id);
	for (uint32_t i = 0; i < DRAFT_SOURCES; i++) {
		const struct draft_chain *c = &t->chains[i];
		if (at >= c->n || !t->right[i])
			continue;
		t->right[i] = c->ids[at] == id;
		draft_gate_note_draft(&d->gate, &t->record, i, at, c->grades[at], t->right[i]);
		if (i != t->source || at >= t->n)
			continue;
		d->stats.tried[at]++;
		d->stats.tried_by[i]++;
		d->stats.accepted[at] += t->right[i];
		d->stats.accepted_by[i] += t->right[i];
	}
}

static void chain_look_up(struct draft_timeline *t)
{
	struct draft_chain *c = &t->chains[DRAFT_LOOKUP];
	uint32_t length;
	c->n = lookup_find(t->lookup, MIN(t->drafter->gate.limit, t->most), c->ids, &length);
	for (uint32_t k = 0; k < c->n; k++)
		c->grades[k] = lookup_grade(length + k);
}

/* Asks the source that computes, for the timelines where it promises more than prompt lookup. */
static int chains_compute(struct drafter *d, struct draft_timeline *const *t, uint32_t n,
	uint32_t rows_max, struct err *e)
{
	struct draft_gate *g = &d->gate;
	struct draft_proposal proposals[n];
	uint32_t n_proposals = 0, levels = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct draft_record *r = &t[i]->record;
		double computed,
			found = draft_gate_value(g, r, DRAFT_LOOKUP, &t[i]->chains[DRAFT_LOOKUP], n);
		uint32_t k =
			draft_gate_depth(g, r, DRAFT_COMPUTED, n, MIN(rows_max - n, t[i]->most), &computed);
		if (!k || (found > 0 && found >= computed)) {
			r->exploring = false;
			continue;
		}
		proposals[n_proposals++] = (struct draft_proposal){.session = t[i]->session,
			.sampler = t[i]->sampler,
			.next = t[i]->next,
			.position = t[i]->length,
			.k = k,
			.chain = &t[i]->chains[DRAFT_COMPUTED]};
		t[i]->source = DRAFT_COMPUTED;
		levels = MAX(levels, k);
	}
	if (!n_proposals)
		return 0;
	uint64_t start = d->clock();
	int rc = d->source.propose(d->source.user, proposals, n_proposals, e);
	double ns = (double)(d->clock() - start);
	d->stats.drafting_ns += ns;
	draft_gate_note_drafting(g, n_proposals, levels, ns);
	for (uint32_t i = 0; rc && i < n_proposals; i++)
		proposals[i].chain->n = 0; /* nobody knows how much of it was filled */
	return rc;
}

void drafts_drop(struct draft_timeline *t)
{
	t->n = 0;
}

int drafts_propose(struct drafter *d, struct draft_timeline *const *t, uint32_t n,
	uint32_t rows_max, struct err *e)
{
	const struct draft_gate *g = &d->gate;
	struct draft_offer offers[n];
	draft_gate_begin_step(&d->gate);
	for (uint32_t i = 0; i < n; i++) {
		drafts_forget(t[i]);
		t[i]->source = DRAFT_LOOKUP;
		if (t[i]->lookup)
			chain_look_up(t[i]);
	}
	int rc = 0;
	if (d->source.propose && rows_max > n)
		rc = chains_compute(d, t, n, rows_max, e);
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_chain *found = &t[i]->chains[DRAFT_LOOKUP],
								 *computed = &t[i]->chains[DRAFT_COMPUTED];
		struct draft_record *r = &t[i]->record;
		if (t[i]->source == DRAFT_COMPUTED && !r->exploring &&
			draft_gate_value(g, r, DRAFT_LOOKUP, found, n) >
				draft_gate_value(g, r, DRAFT_COMPUTED, computed, n))
			t[i]->source = DRAFT_LOOKUP;
		offers[i] = (struct draft_offer){
			.record = r, .chain = &t[i]->chains[t[i]->source], .source = t[i]->source};
	}
	if (!rc)
		draft_gate_choose(g, offers, n, rows_max);
	for (uint32_t i = 0; i < n; i++) {
		t[i]->n = rc ? 0 : offers[i].n;
		t[i]->ids = t[i]->chains[t[i]->source].ids;
		for (uint32_t k = 0; k < DRAFT_SOURCES; k++)
			t[i]->right[k] = true;
	}
	return rc;
}

void drafts_computed(struct drafter *d, struct draft_timeline *const *t, uint32_t n, uint64_t ns)
{
	uint32_t rows = n, tokens = 0;
	for (uint32_t i = 0; i < n; i++) {
		rows += t[i]->n;
		tokens += t[i]->pushed;
	}
	d->stats.steps += n;
	d->stats.rows += rows;
	d->stats.saved_ns += draft_gate_note_step(&d->gate, n, rows, tokens, (double)ns);
}
