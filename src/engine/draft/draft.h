/* SPDX-License-Identifier: MIT */
/*
 * Drafts: tokens that may follow, which one step of the model verifies together. The text is the
 * same with and without them (generate.h); only its speed differs.
 *
 * A drafter serves all timelines of an engine. It asks its sources for drafts: prompt lookup
 * (draft_lookup.h), which is built in, and one that computes (the MTP layer). The gate
 * (draft_gate.h) decides how many are verified.
 *
 * Order of use, for each timeline:
 *   drafts_begin(t, prompt, n, sampler)      the text so far
 *   drafts_push(t, id)                       a token was drawn
 *   drafts_propose(d, &t, 1, rows, e)        chooses t->n drafts t->ids to follow it
 *   ... the step computes 1 + t->n rows; drafts_push each token that was drawn from them ...
 *   drafts_computed(d, &t, 1, ns)            what the step took; then drafts_propose again
 * Threads: the one that computes.
 */
#ifndef GLM_ENGINE_DRAFT_H
#define GLM_ENGINE_DRAFT_H

#include "src/base/err.h"
#include "src/engine/draft/draft_gate.h"

struct sampler;
struct session;

/* What a source is asked for one timeline. */
struct draft_request {
	struct session *session;   /* holds all tokens before `next` */
	struct sampler *sampler;   /* draws the tokens that drafts are compared with; NULL: unknown */
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
	/* Fills the chains of n distinct timelines; shorter chains than asked for are fine. Drafts need
	 * not be the same in every run: they decide nothing but speed. */
	int (*propose)(void *user, struct draft_request *requests, uint32_t n, struct err *e);
	void (*close)(void *user); /* when the drafter is freed; NULL: nothing */
};

enum draft_source_id { DRAFT_LOOKUP, DRAFT_COMPUTED };

/* Cumulative. Subtract two for an interval. */
struct draft_stats {
	uint64_t steps; /* of single timelines: a step for three counts three */
	uint64_t rows;  /* the first tokens included */
	uint64_t tried[DRAFT_MAX], accepted[DRAFT_MAX]; /* verified drafts by position */
	uint64_t tried_by[DRAFT_SOURCES], accepted_by[DRAFT_SOURCES];
	double drafting_ns; /* in the source that computes */
	double saved_ns;    /* against no drafts, by measured costs of steps; negative: lost */
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
	struct draft_chain chains[DRAFT_SOURCES]; /* of the step in hand */
	bool right[DRAFT_SOURCES];                /* all drafts met by tokens so far were right */
	uint32_t pushed;                          /* tokens since the proposal */
	uint32_t most;                            /* drafts that the next step may have */
	uint32_t source;                          /* whose drafts are verified */
	uint32_t n;                               /* how many */
	struct sampler *sampler;                  /* borrowed; NULL: unknown */
	uint32_t length;                          /* tokens of the text */
	int32_t next;                             /* the last of them */
	const int32_t *ids;                       /* [n] */
};

/* session: handed to the source; may be NULL without one. */
struct draft_timeline *draft_timeline_new(struct drafter *d, struct session *session);
void draft_timeline_free(struct draft_timeline *t); /* NULL is fine */

/* The text is tokens[0..n): a prompt. sampler: draws what follows, lives until the next
 * drafts_begin; a source may draw its drafts with it, which makes them right more often. */
void drafts_begin(
	struct draft_timeline *t, const int32_t *tokens, uint32_t n, struct sampler *sampler);

/* The steps from now on have at most so many drafts of this timeline: as many tokens as the answer
 * may still have. drafts_begin sets DRAFT_MAX. */
void drafts_limit(struct draft_timeline *t, uint32_t most);

/* A token was drawn and follows the text. */
void drafts_push(struct draft_timeline *t, int32_t id);

/* Chooses the drafts of the next step, which is for these n timelines together and has at most
 * rows_max rows. Their latest tokens are pushed and not computed. Fails as the source does; no
 * drafts are chosen then. */
int drafts_propose(struct drafter *d, struct draft_timeline *const *t, uint32_t n,
	uint32_t rows_max, struct err *e);

/* The source that computes; its propose is NULL when there is none. */
const struct draft_source *drafter_source(const struct drafter *d);

/* Now, by the clock that steps are to be measured with. */
uint64_t drafter_clock(const struct drafter *d);

/* The next step has no drafts of this timeline after all. */
void drafts_drop(struct draft_timeline *t);

/* The step for these timelines is done, and what was drawn from its rows is pushed. ns: the time it
 * took by drafter_clock, without drafts_propose. */
void drafts_computed(struct drafter *d, struct draft_timeline *const *t, uint32_t n, uint64_t ns);

#endif
