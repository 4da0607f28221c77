/* SPDX-License-Identifier: MIT */
/*
 * The goal is the largest ratio of tokens to time over many steps. As in Dinkelbach's method a
 * token is worth the time that it takes on average at present (gate_pace). A row is added if the
 * chance that its draft is accepted, times that, exceeds what the row takes. The best ratio of each
 * single step would be another choice: it takes too many rows in steps of low acceptance.
 */
#include "src/engine/draft/draft_gate.h"

#include "src/base/num.h"

#include <math.h>
#include <string.h>

#define BALANCE_MAX    6.0        /* steps: past gains cover later losses up to this */
#define MARGIN         0.02       /* steps: a smaller gain may be noise */
#define ROW_PRIOR      0.3        /* cost of a further row, in steps, before it is measured */
#define ROW_LEAST      0.04       /* least cost of a further row, whatever was measured */
#define LEVEL_PRIOR    0.15       /* cost of a computed draft, in steps, before it is measured */
#define PRIOR_WEIGHT   8.0        /* weight of a prior, in drafts */
#define SHARED_WEIGHT  4.0        /* weight of the other timelines' acceptance, in drafts */
#define RECORD_FADE    (1.0 / 32) /* weight that the older drafts lose with each new one */
#define SHARED_FADE    (1.0 / 256)
#define IDLE_FADE      (1.0 / 64) /* the same with each step that computes no draft */
#define PACE_FADE      (1.0 / 32) /* the same of steps in draft_gate.time and tokens */
#define DEPTH_FALL     0.95       /* prior: chance of a draft, of that of the draft before it */
#define PATIENCE_LEAST 16u
#define PATIENCE_MOST  256u
/* A plain step is measured after so many steps with drafts: PLAIN_LEAST where drafts gain nothing,
 * up to PLAIN_MOST where they save PLAIN_GAIN of the time. */
#define PLAIN_MOST   100
#define PLAIN_LEAST  10
#define PLAIN_GAIN   0.3
#define PLAIN_FIRST  4    /* as long as few plain steps were measured */
#define PLAIN_DRIFT  0.08 /* after PLAIN_LEAST, if speed has changed by this since the last one */
#define CHARGE_CLIP  2.0  /* the balance is charged at most this much of a step's expected time */
#define CHARGE_FIRST 1.5  /* the same for the first step of so many rows: it may capture graphs */

void draft_gate_init(
	struct draft_gate *g, uint32_t limit, bool always, const struct draft_gate_source *sources)
{
	*g = (struct draft_gate){
		.limit = MIN(limit, DRAFT_MAX),
		.always = always,
		.steps.row_prior = ROW_PRIOR,
		.drafting.row_prior = ROW_PRIOR,
		.balance = DRAFT_GATE_START,
	};
	memcpy(g->sources, sources, sizeof g->sources);
}

static double chance_blend(double accepted, double tried, double prior, double weight)
{
	return (accepted + weight * prior) / (tried + weight);
}

/* The probability that a draft of this grade is right if those before it are. */
static double chance_of_grade(
	const struct draft_gate *g, const struct draft_record *r, uint32_t source, uint32_t grade)
{
	const struct draft_chances *all = &g->seen[source], *own = &r->chances[source];
	double shared = chance_blend((double)all->accepted[grade], (double)all->tried[grade],
		(double)g->sources[source].chance[grade], PRIOR_WEIGHT);
	return chance_blend(
		(double)own->accepted[grade], (double)own->tried[grade], shared, SHARED_WEIGHT);
}

/* chance_of_grade by position instead of grade, for drafts that are not made yet. above: the
 * chance of the position before. */
static double chance_at(const struct draft_gate *g, const struct draft_record *r, uint32_t source,
	uint32_t position, double above)
{
	const struct draft_chances *all = &g->seen[source], *own = &r->chances[source];
	double prior = position ? DEPTH_FALL * above : (double)g->sources[source].first_chance;
	double shared = chance_blend(
		(double)all->accepted_at[position], (double)all->tried_at[position], prior, PRIOR_WEIGHT);
	return chance_blend(
		(double)own->accepted_at[position], (double)own->tried_at[position], shared, SHARED_WEIGHT);
}

/* ns of a plain step. While few were measured, at most that of a step with up to three more rows: a
 * plain step that was slow by accident would make drafts look cheap. */
static double plain_ns(const struct draft_gate *g, uint32_t n_timelines)
{
	double ns = draft_cost_of(&g->steps, n_timelines);
	if (draft_cost_is_vague(&g->steps, n_timelines))
		for (uint32_t rows = n_timelines + 1; rows <= MIN(n_timelines + 3, DRAFT_COST_ROWS); rows++)
			ns = MIN(ns, draft_cost_of(&g->steps, rows));
	return ns;
}

/* Time of a step of `rows` rows, in plain steps of n_timelines rows. */
static double step_time(const struct draft_gate *g, uint32_t n_timelines, uint32_t rows)
{
	double plain = plain_ns(g, n_timelines), all = draft_cost_of(&g->steps, rows);
	double least = 1 + ROW_LEAST * (rows - n_timelines) / n_timelines;
	return plain > 0 ? MAX(all / plain, least) : least;
}

/* Time in which one more draft is computed for each of n_timelines timelines, in steps. */
static double level_time(const struct draft_gate *g, uint32_t n_timelines)
{
	double plain = plain_ns(g, n_timelines);
	if (!g->drafting.n_samples)
		return LEVEL_PRIOR;
	return plain > 0 ? draft_cost_of(&g->drafting, n_timelines) / plain : 0;
}

/* Time of a token over recent steps, in steps; at most 1, the time without drafts. */
static double gate_pace(const struct draft_gate *g)
{
	return g->time < g->tokens ? g->time / g->tokens : 1;
}

/* Whether this step must be a plain one: nothing was measured yet, or the last plain step is too
 * long ago. */
static bool gate_measures(const struct draft_gate *g)
{
	if (g->always || !g->since_plain)
		return !g->always && !g->steps.n_samples;
	if (draft_cost_is_vague(&g->steps, g->plain_timelines))
		return g->since_plain >= PLAIN_FIRST;
	double drift = draft_cost_drift(&g->steps, g->plain_timelines);
	double gain = MIN(1, (1 - gate_pace(g)) / PLAIN_GAIN);
	return g->since_plain >= PLAIN_LEAST + (PLAIN_MOST - PLAIN_LEAST) * gain ||
		   (g->since_plain >= PLAIN_LEAST && fabs(drift - 1) > PLAIN_DRIFT);
}

/* Risk that the next step may have, in steps. */
static double gate_allowance(const struct draft_gate *g, uint32_t n_timelines)
{
	double plain = plain_ns(g, n_timelines);
	return g->balance - (plain > 0 ? g->drafting_ns / plain : 0);
}

double draft_gate_value(const struct draft_gate *g, const struct draft_record *r, uint32_t source,
	const struct draft_chain *chain, uint32_t n_timelines)
{
	double value = 0, best = 0, chance = 1, pace = gate_pace(g), before = 1;
	for (uint32_t k = 0; k < MIN(chain->n, g->limit); k++) {
		chance *= chance_of_grade(g, r, source, chain->grades[k]);
		double time = g->always ? 1 : step_time(g, n_timelines, n_timelines * (k + 2));
		value += pace * chance - (time - before);
		before = time;
		best = MAX(best, value);
	}
	return best;
}

static void chances_fade(struct draft_chances *c, double fade)
{
	float keep = (float)(1 - fade);
	for (uint32_t i = 0; i < DRAFT_GRADES; i++) {
		c->tried[i] *= keep;
		c->accepted[i] *= keep;
	}
	for (uint32_t i = 0; i < DRAFT_MAX; i++) {
		c->tried_at[i] *= keep;
		c->accepted_at[i] *= keep;
	}
}

uint32_t draft_gate_depth(struct draft_gate *g, struct draft_record *r, uint32_t source,
	uint32_t n_timelines, uint32_t k_max, double *value)
{
	double level = level_time(g, n_timelines), pace = gate_pace(g), chance = 1, above = 1;
	double sum = 0, before = 1, allowance = gate_allowance(g, n_timelines);
	uint32_t best = 0;
	*value = 0;
	r->exploring = false;
	k_max = MIN(k_max, g->limit);
	if (gate_measures(g))
		return 0;
	for (uint32_t k = 0; k < k_max; k++) {
		above = chance_at(g, r, source, k, above);
		chance *= above;
		double time = step_time(g, n_timelines, n_timelines * (k + 2));
		if (g->always)
			sum += chance;
		else if (time - 1 + level * (k + 1) > allowance)
			break;
		else
			sum += pace * chance - (time - before) - level;
		before = time;
		if (g->always || (sum > *value && sum > MARGIN)) {
			*value = sum;
			best = k + 1;
		}
	}
	if (best) {
		r->idle = 0;
		r->patience = PATIENCE_LEAST;
		return best;
	}
	chances_fade(&r->chances[source], IDLE_FADE);
	if (++r->idle < MAX(r->patience, PATIENCE_LEAST) || !k_max ||
		step_time(g, n_timelines, 2 * n_timelines) - 1 + level > allowance)
		return 0;
	r->idle = 0;
	r->patience = MIN(2 * MAX(r->patience, PATIENCE_LEAST), PATIENCE_MOST);
	r->exploring = true;
	return 1;
}

void draft_gate_begin_step(struct draft_gate *g)
{
	g->drafting_ns = 0;
}

void draft_gate_note_drafting(
	struct draft_gate *g, uint32_t n_timelines, uint32_t levels, double ns)
{
	g->drafting_ns += ns;
	if (levels)
		draft_cost_note(&g->drafting, n_timelines, ns / levels);
}

/* The offer whose next draft is likeliest to be accepted, *chance: that it and all before it are.
 * chances [n]: that all drafts taken so far of an offer are accepted. */
static struct draft_offer *offer_likeliest(const struct draft_gate *g, struct draft_offer *offers,
	uint32_t n, const double *chances, double *chance)
{
	struct draft_offer *best = NULL;
	*chance = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct draft_offer *o = &offers[i];
		if (o->n >= MIN(o->chain->n, g->limit))
			continue;
		double c = chances[i] * chance_of_grade(g, o->record, o->source, o->chain->grades[o->n]);
		if (!best || c > *chance) {
			best = &offers[i];
			*chance = c;
		}
	}
	return best;
}

void draft_gate_choose(
	const struct draft_gate *g, struct draft_offer *offers, uint32_t n_offers, uint32_t rows_max)
{
	double chances[DRAFT_COST_ROWS], chance, all = 0, at_risk = 0;
	double pace = gate_pace(g) / n_offers;
	double best = MARGIN, allowance = gate_allowance(g, n_offers);
	uint32_t taken[DRAFT_COST_ROWS], n_taken = 0, n_best = 0;
	rows_max = MIN(rows_max, DRAFT_COST_ROWS);
	for (uint32_t i = 0; i < n_offers; i++) {
		offers[i].n = 0;
		if (i < DRAFT_COST_ROWS)
			chances[i] = 1;
	}
	if (n_offers >= rows_max || gate_measures(g))
		return;
	/* likeliest first, so each number of rows has its best set of drafts */
	for (uint32_t rows = n_offers + 1; rows <= rows_max; rows++) {
		struct draft_offer *o = offer_likeliest(g, offers, n_offers, chances, &chance);
		if (!o)
			break;
		double time = step_time(g, n_offers, rows);
		all += chance;
		/* the measured chance of a source that costs nothing can be relied on: its drafts are
		 * compared in every step, also where they are not verified */
		at_risk += g->sources[o->source].costs ? 1 : 1 - chance;
		if (!g->always && (time - 1) * at_risk / (rows - n_offers) > allowance)
			break;
		chances[o - offers] = chance;
		o->n++;
		taken[n_taken++] = (uint32_t)(o - offers);
		double value = pace * all - (time - 1);
		bool explored = o->record->exploring && g->sources[o->source].costs;
		if (g->always || value > best || explored) {
			best = MAX(best, value);
			n_best = n_taken;
		}
	}
	while (n_taken > n_best)
		offers[taken[--n_taken]].n--;
}

void draft_gate_note_draft(struct draft_gate *g, struct draft_record *r, uint32_t source,
	uint32_t position, uint32_t grade, bool accepted)
{
	struct draft_chances *both[] = {&r->chances[source], &g->seen[source]};
	const double fades[] = {RECORD_FADE, SHARED_FADE};
	for (int i = 0; i < 2; i++) {
		struct draft_chances *c = both[i];
		float keep = (float)(1 - fades[i]), hit = accepted;
		c->tried[grade] = c->tried[grade] * keep + 1;
		c->accepted[grade] = c->accepted[grade] * keep + hit;
		c->tried_at[position] = c->tried_at[position] * keep + 1;
		c->accepted_at[position] = c->accepted_at[position] * keep + hit;
	}
}

double draft_gate_note_step(
	struct draft_gate *g, uint32_t n_timelines, uint32_t rows, uint32_t n_tokens, double ns)
{
	bool is_new = !g->steps.rows[MIN(rows, DRAFT_COST_ROWS)].sampled;
	draft_cost_note(&g->steps, rows, ns);
	double plain = plain_ns(g, n_timelines), tokens = (double)n_tokens / n_timelines;
	double time = step_time(g, n_timelines, rows), saved = 0;
	if (rows == n_timelines) {
		g->since_plain = 0;
		g->plain_timelines = n_timelines;
	} else {
		g->since_plain++;
		if (draft_cost_is_vague(&g->steps, rows))
			time = MIN(MAX(1, ns / plain), (is_new ? CHARGE_FIRST : CHARGE_CLIP) * time);
	}
	time += g->drafting_ns / plain;
	if (rows > n_timelines || g->drafting_ns > 0)
		saved = tokens * plain - ns - g->drafting_ns;
	g->balance = MIN(g->balance + DRAFT_GATE_EARN * tokens + tokens - time, BALANCE_MAX);
	g->time = (1 - PACE_FADE) * g->time + time;
	g->tokens = (1 - PACE_FADE) * g->tokens + tokens;
	g->drafting_ns = 0;
	return saved;
}
