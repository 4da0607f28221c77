/* SPDX-License-Identifier: MIT */
/*
 * The gate decides how many drafts each step verifies: as many as give most tokens a second, by the
 * acceptance and the costs that were measured. No clock and no model is in here; the caller says
 * what steps took and which drafts were right.
 *
 * Unit of time: the step without drafts, of the same timelines. A step with drafts costs x of them
 * and gives the tokens of y of them. x comes from draft_cost.h, y from acceptance: of the timeline,
 * by source and by a grade that the source gives each draft (how sure it is).
 *
 * Losses are bounded by an account. It begins with START steps and earns EARN of each step; the
 * time of a step with drafts is taken off, its tokens are added. A step is made only if the account
 * covers its risk: the time of its drafts if none is accepted, and of drafts that cost nothing as
 * much of it as they are likely to be wrong. So drafts cost at most EARN of the time, START steps
 * and what the last step that went wrong was above its risk, whatever the text.
 *
 * A source that costs nothing is judged without being verified: its first draft is always compared
 * with the token that came. One that costs is tried again now and then after it has failed, at
 * distances that double.
 */
#ifndef GLM_ENGINE_DRAFT_GATE_H
#define GLM_ENGINE_DRAFT_GATE_H

#include "src/engine/draft/draft_cost.h"

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_MAX     7 /* most drafts of one timeline in a step */
#define DRAFT_GRADES  8
#define DRAFT_SOURCES 2

#define DRAFT_GATE_START 0.5   /* steps */
#define DRAFT_GATE_EARN  0.006 /* of a step */

/* What a source proposes to follow the text, first to last. */
struct draft_chain {
	uint32_t n;
	int32_t ids[DRAFT_MAX];
	uint8_t grades[DRAFT_MAX]; /* below DRAFT_GRADES; a higher one should be right more often */
};

/* Drafts that could be compared with the token that came, all before them being right. Counts fade
 * as others come. */
struct draft_chances {
	float tried[DRAFT_GRADES], accepted[DRAFT_GRADES];
	float tried_at[DRAFT_MAX], accepted_at[DRAFT_MAX]; /* the same by position in the chain */
};

/* Of one timeline. Zero-initialise. */
struct draft_record {
	struct draft_chances chances[DRAFT_SOURCES];
	uint32_t idle;     /* steps since the source that costs was asked */
	uint32_t patience; /* after so many it is tried again; 0: the least */
	bool exploring;    /* it is tried again in the step in hand */
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
	struct draft_chances seen[DRAFT_SOURCES]; /* by all timelines: what a new one expects */
	double balance;                           /* the account, in steps */
	double time, tokens;  /* of recent steps, in steps: how fast it goes with drafts */
	double drafting_ns;   /* in the step in hand */
	uint32_t since_plain; /* steps with drafts since the last one without */
	uint32_t plain_lines; /* timelines in that one */
};

/* sources: [DRAFT_SOURCES]. */
void draft_gate_init(
	struct draft_gate *g, uint32_t limit, bool always, const struct draft_gate_source *sources);

/* The probability that a draft of this grade is right if those before it are. */
double draft_gate_chance(
	const struct draft_gate *g, const struct draft_record *r, uint32_t source, uint32_t grade);

/* What verifying the best part of a chain gains, in steps, among n_lines timelines that do the
 * same; 0: nothing. */
double draft_gate_value(const struct draft_gate *g, const struct draft_record *r, uint32_t source,
	const struct draft_chain *chain, uint32_t n_lines);

/* How many drafts to ask for from the source that costs, and what that gains; 0: none. k_max: at
 * most. Once a step for each timeline that could use them. */
uint32_t draft_gate_depth(struct draft_gate *g, struct draft_record *r, uint32_t source,
	uint32_t n_lines, uint32_t k_max, double *value);

/* Drafts were proposed: `levels` one after another for n_lines timelines at once. */
void draft_gate_note_drafting(struct draft_gate *g, uint32_t n_lines, uint32_t levels, double ns);

/* One timeline's part in a step. */
struct draft_offer {
	const struct draft_record *record;
	const struct draft_chain *chain; /* may be empty */
	uint32_t source;
	uint32_t n; /* out: how many of its drafts are verified */
};

/* Sets n of all offers. rows_max: rows of the step, the n_offers first tokens included. */
void draft_gate_choose(
	const struct draft_gate *g, struct draft_offer *offers, uint32_t n_offers, uint32_t rows_max);

/* The draft at `position` of a chain met the token that came; those before it were right. */
void draft_gate_note_draft(struct draft_gate *g, struct draft_record *r, uint32_t source,
	uint32_t position, uint32_t grade, bool accepted);

/* A step for n_lines timelines computed `rows` rows in ns and gave n_tokens. Returns the ns saved
 * against making these tokens without drafts, by the measured costs. */
double draft_gate_note_step(
	struct draft_gate *g, uint32_t n_lines, uint32_t rows, uint32_t n_tokens, double ns);

#endif
