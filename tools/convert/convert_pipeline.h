/* SPDX-License-Identifier: MIT */
/*
 * Carrying out a conversion plan: worker threads take blocks of rows, each reads them as float,
 * quantises, writes. What a worker holds does not depend on the model's size: a block of rows
 * (about 4 MiB as float) and its packed form. The bytes written do not depend on the number of
 * workers, nor on how often the work was interrupted.
 */
#ifndef GLM_TOOLS_CONVERT_PIPELINE_H
#define GLM_TOOLS_CONVERT_PIPELINE_H

#include "src/base/err.h"
#include "src/format/gguf_write.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/convert/convert_journal.h"
#include "src/checkpoint/convert_map.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct convert_job {
	const struct convert_plan *plan;
	const struct safetensors *st;
	const bool *feedback; /* [n_tensors] quantised with error feedback (src/quant/feedback.h) */
	const struct imatrix_file *imatrix; /* or NULL */
	const bool
		*has_importance; /* [n_tensors] the imatrix knows it and its type makes use of that */
	struct gguf_writer *writer;      /* created; tensor i of the plan is its tensor i */
	struct convert_journal *journal; /* open */
	const bool *done;                /* [n_tensors] finished by an earlier run */
	bool *damaged; /* [st->n_files] set for files of which input was refused (ERR_INPUT) */
	uint32_t n_workers;
	bool progress;             /* say how far it is on stderr */
	const atomic_bool *cancel; /* looked at between blocks; may be NULL */
};

/* What a run says about its work, also when it failed. */
struct convert_result {
	/* Blocks of FEEDBACK_COLUMNS columns of matrices that this run has begun with error feedback.
	 */
	uint64_t feedback_blocks;
	uint64_t not_definite; /* those that did without it: their correlations cannot be factored */
	uint64_t uncorrelated; /* those that did without it: no two columns are correlated */
};

/* Converts every tensor that is not done. Finished tensors are in the journal also when this fails
 * or is cancelled (ERR_INTERRUPTED). *result: always set. */
int convert_run(const struct convert_job *job, struct convert_result *result, struct err *e);

#endif
