/* SPDX-License-Identifier: MIT */
/* A worker: a rank other than 0. It executes the commands of rank 0 until STOP. */
#ifndef GLM_ENGINE_RANK_WORKER_H
#define GLM_ENGINE_RANK_WORKER_H

#include "src/engine/engine.h"

/* Precondition: g was opened with options.ranks, on another rank than 0. engine_close follows,
 * whatever this returns.
 * - A failure of STEP goes to the next rank in place of its rows, one of READ_ROWS to rank 0 in
 *   place of the answer. The worker goes on.
 * - A failure of WRITE_ROWS or COPY_ROWS, and a command that makes no sense, end the worker: it is
 *   returned, and the other ranks lose this one with its sentence.
 * - ERR_RUN: a rank is lost. ERR_MEMORY: there is no memory for the commands. */
int engine_run_worker(struct engine *g, struct err *e);

#endif
