/* SPDX-License-Identifier: MIT */
/*
 * Runs a job on several threads. The caller's thread waits; about ten times a second it calls
 * `tick`, which shows progress and writes journals.
 */
#ifndef GLM_TOOLS_WORKERS_H
#define GLM_TOOLS_WORKERS_H

#include "src/base/err.h"
#include "tools/output/progress.h"

#include <stdatomic.h>
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

/* How far work on bytes has come. */
struct workers_bytes {
	const char *what;          /* "reading", of the line that says so; NULL: no line */
	const atomic_bool *cancel; /* NULL: never */
	uint64_t total;
	atomic_uint_fast64_t done; /* the work adds to it */
	atomic_bool stop;          /* the work ends at the next opportunity when it is set */
	struct progress progress;  /* private */
};

/* workers_run whose tick shows the progress, and fails with ERR_INTERRUPTED when `cancel` is set.
 */
int workers_run_bytes(struct workers_bytes *b, int (*work)(void *user, struct err *e), void *user,
	uint32_t n_threads, struct err *e);

#endif
