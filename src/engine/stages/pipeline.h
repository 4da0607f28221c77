/* SPDX-License-Identifier: MIT */
/*
 * Pipelined stages: micro-batches (rows of different answers, or consecutive chunks of a prompt)
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
 * - An ended micro-batch is kept with its memory and used again. Those with more than ANSWER_ROWS
 *   rows (moe.h) are kept apart. The caller has at most pipeline_depth of these in flight: the
 *   memory plan counts so many (plan_stages.h).
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

/* Stages that compute at the same time, with ranks the number of ranks; 1: a step is computed as a
 * whole, by one stage after the other. 1 with a trace and, in one process, if two stages share a
 * graphics card. */
uint32_t pipeline_depth(const struct engine *g);

/* Bytes of host memory that a row takes between two stages. */
size_t pipeline_row_bytes(const struct model_config *c);

/* Sends rows into the first stage as a micro-batch. Precondition: pipeline_depth > 1.
 * - rows: without taps. The struct is copied; what it points to is borrowed until pipeline_end or
 *   pipeline_drop. on_layer is called by pipeline_end only, on_device_busy never.
 * - Errors: ERR_RUN (a lost rank), ERR_MEMORY, or that of starting the threads. The micro-batch is
 *   not in flight then. */
int pipeline_begin(struct stage_pipeline *p, const struct forward_rows *rows,
	struct micro_batch **out, struct err *e);

/* The micro-batch that was begun first: waits for its rows and computes the last stage. Returns as
 * model_forward; *m is over in any case. */
int pipeline_end(
	struct stage_pipeline *p, struct micro_batch *m, uint32_t first_hidden, struct err *e);

/* Instead of pipeline_end, for rows that are no longer wanted: waits for the stages before the
 * last, which does not compute them. */
void pipeline_drop(struct stage_pipeline *p, struct micro_batch *m);

/* For pipeline_overlap: call when the device of the last stage is idle after a pipeline_end. */
void pipeline_idle(struct stage_pipeline *p);

/* Waits until no stage computes and no message of a micro-batch is under way. NULL is fine. */
void pipeline_settle(struct stage_pipeline *p);

bool pipeline_in_flight(const struct stage_pipeline *p); /* any; NULL is fine */

/* Adds the figures of this process. */
void pipeline_overlap(struct stage_pipeline *p, struct engine_overlap *sum);

#endif
