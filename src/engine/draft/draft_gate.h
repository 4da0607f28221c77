/* SPDX-License-Identifier: MIT */
/*
 * The gate decides how many drafts each step verifies: as many as give most tokens a second, by the
 * acceptance and the costs that were measured. It has no clock and no model. The caller says what
 * steps took and which drafts were right.
 *
 * Order of use in a step of n timelines:
 *   draft_gate_begin_step     a step before that was not computed is forgotten
 *   draft_gate_depth          for each timeline: how many drafts to compute
 *   draft_gate_note_drafting  what computing them took
 *   draft_gate_choose         how many drafts of each timeline are verified
 *   draft_gate_note_draft     for each draft that a drawn token was compared with
 *   draft_gate_note_step      what the step took
 *
 * Unit of time, "step": a plain step, that is, one row of each of the same timelines and no drafts.
 * The time of a step with drafts comes from draft_cost.h. The tokens that it gives come from the
 * measured acceptance, by timeline, by source and by grade (how sure the source is of a draft).
 *
 * Losses are bounded by a balance. It begins with DRAFT_GATE_START steps. Each step adds the plain
 * steps that its tokens would have taken, DRAFT_GATE_EARN of that on top, and subtracts the time
 * that it took. A step with drafts is made only if its risk is within the balance. The risk of a
 * computed draft is its whole time; the risk of a looked-up draft is its time multiplied by the
 * chance that it is wrong. Hence the drafts of any text cost at most DRAFT_GATE_EARN of the time,
 * DRAFT_GATE_START steps, and what one step exceeded its risk by.
 *
 * The gate learns of a source that costs nothing without verifying it: its first draft is always
 * compared with the token drawn. A source that costs and has failed is tried again after a number
 * of steps that doubles each time.
 */
#ifndef GLM_ENGINE_DRAFT_GATE_H
#define GLM_ENGINE_DRAFT_GATE_H

#include "src/engine/draft/draft_cost.h"

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_MAX     7 /* most drafts of one timeline in a step */
#define DRAFT_GRADES  8
#define DRAFT_SOURCES 2

#define DRAFT_GATE_START 0.5   /* balance at the beginning, in steps */
#define DRAFT_GATE_EARN  0.006 /* part of the time that drafts may lose for good */

/* What a source proposes to follow the text, first to last. */
struct draft_chain {
	uint32_t n;
	int32_t ids[DRAFT_MAX];
	uint8_t grades[DRAFT_MAX]; /* below DRAFT_GRADES; a higher one should be right more often */
};

/* Counts of drafts that were compared with the token drawn, because all drafts before them were
 * right. A new draft takes weight off the older ones (RECORD_FADE, SHARED_FADE). */
struct draft_chances {
	float tried[DRAFT_GRADES], accepted[DRAFT_GRADES];
	float tried_at[DRAFT_MAX], accepted_at[DRAFT_MAX]; /* the same by position in the chain */
};

/* What the gate knows of one timeline. Zero-initialise. */
struct draft_record {
	struct draft_chances chances[DRAFT_SOURCES];
	uint32_t idle;     /* steps since the source that costs was asked */
	uint32_t patience; /* that source is tried again after so many; 0: PATIENCE_LEAST */
	bool exploring;    /* this step tries that source again although it promises no gain */
};

struct draft_gate_source {
	float chance[DRAFT_GRADES]; /* of acceptance, before anything is measured */
	float first_chance;         /* of the first draft, whatever its grade */
	bool costs;                 /* proposing takes time */
};

struct draft_gate {
	uint32_t limit; /* most drafts of a timeline in a step */
	bool always;    /* verify all that is proposed, up to the limit */
	struct draft_gate_source sources[DRAFT_SOURCES];
	struct draft_cost steps;    /* of the model, by rows */
	struct draft_cost drafting; /* of one draft by the source that costs, by timelines */
	struct draft_chances seen[DRAFT_SOURCES]; /* of all timelines: the prior of a new one */
	double balance;                           /* in steps */
	double time, tokens;      /* decaying sums over steps: time in steps, tokens of a timeline */
	double drafting_ns;       /* spent for the step that is not computed yet */
	uint32_t since_plain;     /* steps with drafts since the last plain one */
	uint32_t plain_timelines; /* timelines in that plain step */
};

/* sources: [DRAFT_SOURCES]. */
void draft_gate_init(
	struct draft_gate *g, uint32_t limit, bool always, const struct draft_gate_source *sources);

/* What verifying the best prefix of a chain gains, in steps; 0: nothing. Assumes that the other
 * timelines of the step (n_timelines in all) verify as many drafts. */
double draft_gate_value(const struct draft_gate *g, const struct draft_record *r, uint32_t source,
	const struct draft_chain *chain, uint32_t n_timelines);

/* What drafting took for a step that was given up is not charged to the next one. */
void draft_gate_begin_step(struct draft_gate *g);

/* How many drafts, at most k_max, to ask the source that costs for; *value: what verifying them
 * gains, in steps. 0: none. Called once a step for each timeline: it counts r->idle. */
uint32_t draft_gate_depth(struct draft_gate *g, struct draft_record *r, uint32_t source,
	uint32_t n_timelines, uint32_t k_max, double *value);

/* The source that costs took ns for n_timelines timelines. levels: the most drafts of one of them,
 * computed one after another. */
void draft_gate_note_drafting(
	struct draft_gate *g, uint32_t n_timelines, uint32_t levels, double ns);

/* One timeline's part in a step. */
struct draft_offer {
	const struct draft_record *record;
	const struct draft_chain *chain; /* may be empty */
	uint32_t source;
	uint32_t n; /* out: how many of its drafts are verified */
};

/* Sets n of all offers. rows_max: most rows of the step, the first row of each offer included. */
void draft_gate_choose(
	const struct draft_gate *g, struct draft_offer *offers, uint32_t n_offers, uint32_t rows_max);

/* The draft at index `position` of a chain was compared with the token drawn; those before it were
 * right. */
void draft_gate_note_draft(struct draft_gate *g, struct draft_record *r, uint32_t source,
	uint32_t position, uint32_t grade, bool accepted);

/* A step for n_timelines timelines computed `rows` rows in ns and gave n_tokens in all. Returns how
 * many ns less it took, drafting included, than plain steps for these tokens by the measured costs;
 * negative: more. */
double draft_gate_note_step(
	struct draft_gate *g, uint32_t n_timelines, uint32_t rows, uint32_t n_tokens, double ns);

#endif
