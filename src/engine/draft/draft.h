/* SPDX-License-Identifier: MIT */
/*
 * Drafts: tokens that may follow, which one step of the model verifies together. The text is the
 * same with and without them (generate.h); only its speed differs.
 *
 * A drafter serves all timelines of an engine. It asks its sources for drafts: prompt lookup
 * (draft_lookup.h), which is built in and costs next to nothing, and one source that computes (the
 * MTP layer: draft_mtp.h). The gate (draft_gate.h) decides how many drafts are verified.
 *
 * Order of use, for each timeline:
 *   1. drafts_begin(t, prompt, n, sampler)   the text so far
 *   2. drafts_push(t, id)                    the first token was drawn and follows the text
 *   3. drafts_propose(d, &t, 1, rows, e)     chooses t->n drafts t->ids to follow it
 *   4. The caller verifies: one step computes that token and the drafts, 1 + t->n rows.
 *   5. drafts_push(t, id)                    for each token drawn from these rows
 *   6. drafts_computed(d, &t, 1, ns)         what the step took; then 3 again
 * Threads: the one that computes.
 */
#ifndef GLM_ENGINE_DRAFT_H
#define GLM_ENGINE_DRAFT_H

#include "src/base/err.h"
#include "src/engine/draft/draft_gate.h"

struct sampler;
struct session;

/* What a source is asked for one timeline. */
struct draft_proposal {
	struct session *session;   /* holds all tokens before `next` */
	struct sampler *sampler;   /* the one of drafts_begin; may be NULL */
	int32_t next;              /* the latest token; not computed yet */
	uint32_t position;         /* of the first draft: behind `next` */
	uint32_t k;                /* most drafts wanted, >= 1 */
	struct draft_chain *chain; /* out */
};

/* A source whose drafts take time. */
struct draft_source {
	const char *name;
	void *user;
	struct draft_gate_source expect; /* costs is set */
	/* Fills the chains of n distinct timelines, which come empty; a shorter chain than asked for is
	 * fine. Returns 0 or an error code with *e; the chains are then ignored. Drafts need not be the
	 * same in every run: they affect only speed. */
	int (*propose)(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e);
	void (*close)(void *user); /* when the drafter is freed; NULL: nothing */
};

enum draft_source_id { DRAFT_LOOKUP, DRAFT_COMPUTED };

/* Cumulative. Subtract two for an interval. */
struct draft_stats {
	uint64_t steps; /* one for each timeline of a step */
	uint64_t rows;  /* verified drafts, and one row for each of `steps` */
	/* Verified drafts that a drawn token was compared with, by position behind the first row: the
	 * drafts behind a wrong one are in `rows` only. */
	uint64_t tried[DRAFT_MAX], accepted[DRAFT_MAX];
	uint64_t tried_by[DRAFT_SOURCES], accepted_by[DRAFT_SOURCES]; /* the same by source */
	double drafting_ns;                                           /* in the source that computes */
	double saved_ns; /* time saved by drafts (draft_gate_note_step); negative: lost */
};
struct draft_stats draft_stats_between(struct draft_stats before, struct draft_stats after);

struct drafter_options {
	uint32_t limit; /* most drafts of a timeline in a step, 1 to DRAFT_MAX */
	bool always;    /* verify as many as there are, whatever it costs */
	bool no_lookup;
	const struct draft_source *source; /* copied; NULL: prompt lookup only */
	uint64_t (*clock)(void);           /* what costs are measured with; NULL: clock_ns */
};

struct drafter;
struct drafter *drafter_new(const struct drafter_options *o);
void drafter_free(struct drafter *d); /* after its timelines; NULL is fine */
struct draft_stats drafter_stats(const struct drafter *d);

/* The drafts of one timeline. Fields are read-only for callers. */
struct draft_timeline {
	struct drafter *drafter;
	struct session *session;
	struct draft_lookup *lookup;
	struct draft_record record;
	struct draft_chain chains[DRAFT_SOURCES]; /* of the latest drafts_propose */
	bool right[DRAFT_SOURCES];                /* all drafts compared so far were right */
	uint32_t pushed;                          /* tokens since drafts_propose */
	uint32_t most;                            /* of drafts_limit */
	uint32_t source;                          /* enum draft_source_id: whose drafts are verified */
	uint32_t n;                               /* drafts to verify */
	struct sampler *sampler;                  /* borrowed; NULL: unknown */
	uint32_t length;                          /* tokens of the text, `next` included */
	int32_t next;                             /* the last token pushed */
	const int32_t *ids;                       /* [n] drafts to verify, until drafts_propose */
};

/* session: borrowed, for the source; may be NULL without one. */
struct draft_timeline *draft_timeline_new(struct drafter *d, struct session *session);
void draft_timeline_free(struct draft_timeline *t); /* NULL is fine */

/* The text becomes tokens[0..n), the prompt; no token of it is pushed. sampler: the one that draws
 * what follows, used by drafts_propose only; with it a source can draw its drafts as the tokens
 * will be drawn, which makes more of them right. NULL: unknown. */
void drafts_begin(
	struct draft_timeline *t, const int32_t *tokens, uint32_t n, struct sampler *sampler);

/* From now on drafts_propose chooses at most `most` drafts for this timeline, until drafts_begin,
 * which sets DRAFT_MAX. More drafts than the answer may still have tokens are wasted. */
void drafts_limit(struct draft_timeline *t, uint32_t most);

/* A token was drawn and follows the text. */
void drafts_push(struct draft_timeline *t, int32_t id);

/* Chooses the drafts of the next step, which has at most rows_max rows in all and one row for the
 * latest token of each of these n timelines.
 * - Precondition: the latest token of each timeline is pushed and not yet computed; 1 <= n <=
 *   rows_max.
 * - Sets n and ids of all timelines. Fails as the source does; n is then 0 everywhere. */
int drafts_propose(struct drafter *d, struct draft_timeline *const *t, uint32_t n,
	uint32_t rows_max, struct err *e);

/* The source that computes; its propose is NULL when there is none. */
const struct draft_source *drafter_source(const struct drafter *d);

/* The time now in ns, by the clock for drafts_computed. */
uint64_t drafter_clock(const struct drafter *d);

/* The caller does not verify the drafts of this timeline after all: sets n to 0. */
void drafts_drop(struct draft_timeline *t);

/* The step for these timelines is done, and the tokens drawn from its rows are pushed. The
 * timelines are those of drafts_propose. ns: the time of the step by drafter_clock, without
 * drafts_propose. */
void drafts_computed(struct drafter *d, struct draft_timeline *const *t, uint32_t n, uint64_t ns);

#endif
