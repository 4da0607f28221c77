/* SPDX-License-Identifier: MIT */
/*
 * Runs a job on several threads. The caller's thread waits; about ten times a second it calls
 * `tick`, which shows progress and writes journals.
 */
#ifndef GLM_TOOLS_WORKERS_H
#define GLM_TOOLS_WORKERS_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define WORKERS_MAX 1024

/* Threads for work that is limited by the processor: its cores, 1 to WORKERS_MAX. */
uint32_t workers_cores(void);

struct workers_job {
	/* Runs once on every thread, until nothing is left. A code other than 0 asks all to stop. */
	int (*work)(void *user, struct err *e);
	/* Called by workers_run about ten times a second, and once more when all threads have ended
	 * (`over`). A code other than 0 asks all to stop. */
	int (*tick)(void *user, bool over, struct err *e);
	/* Asks the work to stop at the next opportunity. Any thread, more than once. */
	void (*stop)(void *user);
	void *user;
	uint32_t n_threads; /* fewer are started when the system refuses some */
};

/* Returns when all threads have ended: 0, or the first failure. */
int workers_run(const struct workers_job *job, struct err *e);

#endif
