/* SPDX-License-Identifier: MIT */
/*
 * One step for several sessions of one engine. Rows of all of them go through the model together,
 * so an expert read for one serves all. Through several stages they go in micro-batches, so that
 * all stages compute. A row's numbers do not depend on what its neighbours are. On CUDA they depend
 * on whether the step has more than batch_decode_rows rows (kernels/backend.h: Numbers).
 */
#ifndef GLM_ENGINE_BATCH_H
#define GLM_ENGINE_BATCH_H

#include "src/draw/draw.h"
#include "src/engine/session/session.h"
#include "src/forward/mtp.h"

/* Tokens to append to one session. */
struct batch_part {
	struct session *session;
	const int32_t *tokens; /* [n], borrowed for the call */
	uint32_t n;            /* >= 1 */
	bool logits; /* compute the logits of the last token; else session_logits is NULL afterwards */
	uint32_t prompt; /* tokens of the prompt that these belong to, known ones not counted; 0: none.
					  * With many (moe.h: LONG_PROMPT) the step adds no experts to the cache */
	bool verify;     /* keep the logits of all n <= SESSION_ROWS_MAX rows, as session_verify does */
	/* Both or neither. The device draws a token from each row with logits (op `draw` of
	 * kernels/backend.h): draws[i] is the request for the i-th of them, drawn[i] the result. The
	 * logits may stay on the device; session_fetch_logits brings them. */
	const struct draw_request *draws;
	struct draw_result *drawn; /* out */
};

/* Callbacks of a step. Every field may be NULL. */
struct batch_watch {
	atomic_bool *cancel; /* as in session_watch */
	/* After each layer: so many of n_layers are done. */
	void (*on_layer)(void *user, uint32_t done, uint32_t n_layers);
	void *user;
};

/* Most rows of one step: those of all parts together. */
uint32_t batch_max_rows(const struct engine *g);
/* Most rows of a step that gives each row the bits that it has in a step of its own. */
uint32_t batch_decode_rows(const struct engine *g);

/* Appends and computes all parts.
 * - The sessions are distinct and of one engine, with MTP or without. The parts have at most
 *   batch_max_rows tokens in all.
 * - watch may be NULL. Once *cancel is set the step ends within a layer: ERR_INTERRUPTED.
 * - A part whose logits are not finite loses its timeline (length 0, no logits): weights or caches
 *   are damaged. The other parts are computed.
 * - ERR_INPUT when an id is out of range or a part does not fit its session's context, ERR_MEMORY
 *   when there is none for the logits of several rows: nothing has changed.
 * - After any other error no timeline has grown, and the logits of all parts are gone. */
int batch_step(const struct batch_part *parts, uint32_t n_parts, const struct batch_watch *watch,
	struct err *e);

/* ---- steps in flight: pipeline.h ----
 *
 * While the last stage computes some answers, the stages before compute others:
 *
 *      count = batch_micro_batches(...)            if 1: batch_step
 *      batch_begin for the first answers, ..., count times
 *      for ever: batch_end of the oldest; draw; batch_begin for these answers and their new tokens
 *
 * Between the calls of one thread everything is allowed, also batch_step, but for the sessions that
 * are in flight. The numbers are those of batch_step. */

/* How many steps of a prompt should be in flight: the number of stages that compute at the same
 * time. 1: none can be. */
uint32_t batch_depth(const struct engine *g);
/* How many of these steps are in flight at best, of so many answers with `rows` rows in all. */
uint32_t batch_micro_batches(const struct engine *g, uint32_t answers, uint32_t rows);
/* How many of n >= 1 answers with rows [n] make the next of `count` steps; all_rows: also of those
 * in flight. */
uint32_t batch_micro_batch_size(
	const struct engine *g, const uint32_t *rows, uint32_t n, uint32_t all_rows, uint32_t count);

struct batch_run;
/* Begins a step. Precondition: batch_depth(g) > 1.
 * - parts as of batch_step. Parts of answers have at most SESSION_ROWS_MAX tokens each, and
 *   batch_decode_rows together.
 * - A prompt may have several steps in flight, begun in its order. Once one of them fails, those
 *   behind it fail too, with all their parts.
 * - The arrays tokens, draws and drawn of the parts, and watch->cancel, are borrowed until
 *   batch_end. watch->on_layer is called by batch_end only.
 * - Errors as of batch_step. The step is not in flight then. */
int batch_begin(const struct batch_part *parts, uint32_t n_parts, const struct batch_watch *watch,
	struct batch_run **out, struct err *e);
/* Ends the step that was begun first; each must be ended. Returns as batch_step, and frees the run
 * in any case. Logits that stay on the device are valid until the next batch_end. */
int batch_end(struct batch_run *run, struct err *e);

/* ---- drafts and copies ---- */

#define BATCH_WANTS_LOGITS MTP_WANTS_LOGITS /* struct batch_draft */

/* Drafts for one session; see session_mtp_draft. */
struct batch_draft {
	struct session *session;
	int32_t next;  /* follows the last position */
	uint32_t k;    /* 1 to SESSION_DRAFTS_MAX */
	int32_t *ids;  /* out [k] */
	float *logits; /* out [k][vocab]; NULL: not wanted */
	/* [k] how the device draws each draft; NULL: the likeliest id */
	const struct draw_request *draws;
	/* Chooses draft `step` (0 .. k - 1); NULL: the drawn id is the draft. drawn: the result of
	 * draws[step]. The first call has logits NULL and returns an id of the model, drawn->id as a
	 * rule, or BATCH_WANTS_LOGITS. After that a second call has the logits [vocab], valid during
	 * the call, and returns an id. */
	int32_t (*choose)(
		void *user, const struct draw_result *drawn, const float *logits, uint32_t step);
	void *user;
};

/* Drafts for n distinct sessions of one engine: the MTP layer computes draft 0 of all sessions in
 * one pass, or in several of as many sessions as its workspace holds, then draft 1 of those that
 * want it, and so on. The k may differ. ERR_INPUT and ERR_RUN as session_mtp_draft, before anything
 * was computed; after another error the ids are undefined. */
int batch_mtp_draft(const struct batch_draft *drafts, uint32_t n, struct err *e);

/* Makes the timeline of `to` the first n tokens of `from`, by copying cache rows, those of the MTP
 * layer too if both have them.
 * - The sessions are different ones of one engine; n <= the length of `from`.
 * - `to` is not in flight. `from` may be: its length counts ended steps only, so no row that is
 *   being computed is copied.
 * - `to` has no logits afterwards. After an error, a failure of the backend, it is empty. */
int batch_copy_prefix(struct session *to, const struct session *from, uint32_t n, struct err *e);

#endif
