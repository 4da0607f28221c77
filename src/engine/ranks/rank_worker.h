/* SPDX-License-Identifier: MIT */
/* A worker: a rank other than 0. It executes the commands of rank 0 until STOP. */
#ifndef GLM_ENGINE_RANK_WORKER_H
#define GLM_ENGINE_RANK_WORKER_H

#include "src/engine/engine.h"

/* Opened with options.ranks on another rank than 0; engine_close follows, whatever this returns.
 * What fails in a command goes to rank 0 as its answer. ERR_RUN: a rank is lost. */
int engine_run_worker(struct engine *g, struct err *e);

#endif
