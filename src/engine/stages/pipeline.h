/* SPDX-License-Identifier: MIT */
/*
 * Micro-batches in flight: rows of different answers, or consecutive chunks of a prompt, that
 * follow each other through the stages, so that all stages compute at the same time.
 *
 *      caller             thread of stage 0     thread of stage 1     caller: the last stage
 *      begin -- queue --> forward -- queue -->  forward -- queue -->  end: forward
 *
 * - Each stage but the last has a thread and a queue. The last stage, with logits, draws and
 *   drafts, is computed by the caller in pipeline_end. A queue has at most the micro-batches in
 *   flight.
 * - A micro-batch owns the host memory with its rows between two stages. It belongs to one thread
 *   at a time: the caller's, that of the stage whose queue it is in, the caller's again.
 * - That memory is kept for the next one. Of micro-batches with more than PIPELINE_FEW_ROWS rows
 *   there is as much as of the most that were in flight at a time; the caller keeps them to
 *   pipeline_depth, which is what the plan counts (plan_stages.h).
 * - A stage that fails gives the micro-batch its error; later stages pass it on. Other
 *   micro-batches go on.
 * - With ranks the queues are messages: pipeline_begin sends the command of the step, the workers
 *   execute commands in order, and pipeline_end receives the rows. The stages of one rank then
 *   compute one after the other.
 *
 * Whatever else uses the devices of the stages calls pipeline_settle first. Micro-batches then wait
 * in front of the last stage, and the caller's thread may use all devices.
 *
 * One thread calls these. Sessions with rows in flight are not touched until pipeline_end.
 */
#ifndef GLM_ENGINE_PIPELINE_H
#define GLM_ENGINE_PIPELINE_H

#include "src/engine/engine.h"
#include "src/forward/forward.h"

struct stage_pipeline;
struct micro_batch;

/* For a started engine; threads are started when they are needed. Free it before the stages. */
struct stage_pipeline *pipeline_new(struct engine *g);
void pipeline_free(struct stage_pipeline *p); /* nothing may be in flight; NULL is fine */

/* Stages that compute at the same time; 1: a step is computed as a whole. */
uint32_t pipeline_depth(const struct engine *g);

#define PIPELINE_FEW_ROWS 64

/* Host memory of a row between two stages. */
size_t pipeline_row_bytes(const struct model_config *c);

/* Sends rows into the first stage. What `rows` points to is lent until the end. It has no taps.
 * on_layer is called by pipeline_end alone, on_device_busy never. ERR_MEMORY, ERR_RUN: nothing is
 * in flight of them. */
int pipeline_begin(struct stage_pipeline *p, const struct forward_rows *rows,
	struct micro_batch **out, struct err *e);

/* The micro-batch that was begun first: waits for its rows and computes the last stage. Returns as
 * model_forward; *m is over in any case. */
int pipeline_end(
	struct stage_pipeline *p, struct micro_batch *m, uint32_t first_hidden, struct err *e);

/* The same for rows that nobody wants any more: the last stage does not compute them. */
void pipeline_drop(struct stage_pipeline *p, struct micro_batch *m);

/* The device of the last stage has done with the micro-batch that was ended last: for the figures.
 */
void pipeline_idle(struct stage_pipeline *p);

/* Waits until no stage computes and no message of a micro-batch is under way. NULL is fine. */
void pipeline_settle(struct stage_pipeline *p);

bool pipeline_in_flight(const struct stage_pipeline *p); /* any; NULL is fine */

/* Adds the figures of this process. */
void pipeline_overlap(struct stage_pipeline *p, struct engine_overlap *sum);

#endif
