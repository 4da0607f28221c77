/* SPDX-License-Identifier: MIT */
/*
 * A stage: consecutive layers of the model with everything that computes them. An engine has one
 * stage, or several, on one card or on several. They compute one after the other or, with different
 * micro-batches, at the same time; on graphics cards only if no two share a card (pipeline.h).
 *
 * Order of use (engine.c): stages_new, stages_bind, stages_plan, stage_open for each in order,
 * stage_start for each. stages_free releases everything, at any point.
 */
#ifndef GLM_ENGINE_STAGE_H
#define GLM_ENGINE_STAGE_H

#include "src/engine/engine.h"
#include "src/engine/plan.h"
#include "src/forward/forward.h"
#include "src/forward/model.h"
#include "src/forward/stage_link.h"

struct stage_capacity;

struct stage {
	struct model_config config; /* names its layers */
	uint32_t card;
	struct backend *backend;
	struct expert_source *source; /* what the model asks: `experts`, or a wrapper around it */
	struct expert_source *experts;
	bool streaming; /* `experts` is a loader, else mapped memory or a copy on the card */
	struct plan plan;
	struct model_weights weights; /* from stages_bind on; stage_start gives them to the model */
	size_t resident_bytes;        /* of them */
	struct model model;
	struct kv_cache kv;        /* of these layers; all sessions */
	struct host_experts *host; /* NULL: the card computes all experts */
	struct stage_link *link;   /* to the next stage; NULL: this is the last one */
	/* Written by the thread that computes the stage: struct engine_stage_usage. */
	uint64_t n_steps, computing_ns;
	uint64_t began_ns; /* start of a step whose results are not there yet; 0: there is none */
};

/* Opens a backend for each card that the options name (none: card 0) and returns stages without
 * layers. ERR_USAGE: a card that does not exist, more stages than layers, an option that takes one
 * stage only; else as backend_open. *stages is to be freed after an error too. */
int stages_new(const struct engine_options *o, const struct model_config *c, struct stage **stages,
	uint32_t *n, struct err *e);

/* Decides which layers lie where, together with the other ranks, and binds their weights. `whole`:
 * those of the whole model, bound; a stage that has all layers takes them. ERR_USAGE: cuts of the
 * options that do not ascend, or that lie outside the model. */
int stages_bind(struct engine *g, const struct engine_options *o, struct model_weights *whole,
	size_t whole_bytes, struct err *e);

/* stage_cuts_balance for the layers of a model: where stages_bind cuts when no cuts are asked for.
 * `w`: all weights, bound, with the MTP layer's if mtp. */
void stages_balance(const struct model_config *c, bool mtp, const struct model_weights *w,
	const struct stage_capacity *stages, uint32_t n, uint32_t *first);

/* Plans the memory of all stages into stage.plan (plan_stages.h), with the least context and chunk
 * of all ranks. */
int stages_plan(struct engine *g, const struct engine_options *o, struct err *e);

/* What opening needs besides the stage. */
struct stage_setup {
	const struct engine_options *options;
	const struct gguf *file;
	const struct check_values *check_values; /* NULL: none */
	const struct weights_watch *watch;
};

/* Takes the memory of the plan, loads the weights, opens s->experts. Errors: ERR_MEMORY, or those
 * of reading the file. stages_free releases what a failed call has taken. */
int stage_open(struct stage *s, const struct stage_setup *setup, struct err *e);
/* Makes the model, which asks s->source; the caller has set that. is_last: there is no next stage.
 */
int stage_start(struct stage *s, const struct engine_options *o, bool is_last, struct err *e);

/* model_forward of a stage whose rows are in its workspace. Counts the step and its computing_ns.
 * With first_hidden < rows->n the count of time ends in engine_last_stage_done. */
int stage_forward(
	struct stage *s, const struct forward_rows *rows, uint32_t first_hidden, struct err *e);

/* stage_forward through the stages from `s` on. */
int stages_forward(
	struct stage *s, const struct forward_rows *rows, uint32_t first_hidden, struct err *e);

/* In two parts: the sources record until they are closed, and what they record is written while
 * the rest still stands. Both accept what was not opened. */
void stages_stop(struct stage *stages, uint32_t n);
void stages_free(struct stage *stages, uint32_t n);

#endif
