/* SPDX-License-Identifier: MIT */
/*
 * Carrying out an export plan: each worker writes one shard at a time, block by block. What a
 * worker holds does not depend on the model's size: a block of rows (about 4 MiB as float, or a
 * head of attn_k_b) and its form in the shard. The bytes written do not depend on the number of
 * workers, nor on how often the work was interrupted.
 */
#ifndef GLM_TOOLS_EXPORT_RUN_H
#define GLM_TOOLS_EXPORT_RUN_H

#include "src/base/err.h"
#include "src/format/gguf.h"
#include "tools/export/export_folder.h"
#include "tools/export/export_plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct export_job {
	const struct gguf *file;
	const struct export_plan *plan;
	struct export_folder *folder; /* open */
	uint32_t n_workers;
	bool progress;             /* say how far it is on stderr */
	const atomic_bool *cancel; /* looked at between blocks; may be NULL */
};

/* Writes every shard that is not done. Those that are complete are in the journal also when this
 * fails or is cancelled (ERR_INTERRUPTED). ERR_INPUT: a value that is not finite. */
int export_run(const struct export_job *job, struct err *e);

#endif
