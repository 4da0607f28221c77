/* SPDX-License-Identifier: MIT */
/* Fills the tensors of a GGUF that has been created with random weights, with several threads, past
 * the page cache. */
#ifndef GLM_TOOLS_SYNTH_WRITE_H
#define GLM_TOOLS_SYNTH_WRITE_H

#include "src/base/err.h"
#include "tools/synth/synth_fill.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One tensor that has data of its own. */
struct synth_piece {
	struct synth_fill fill;
	uint64_t offset; /* in the file, a multiple of 4096; the file reaches to the next such multiple
						after the data */
	uint64_t bytes;
};

struct synth_job {
	const char *path; /* of the file as it stands, written in place */
	const struct synth_piece *pieces;
	size_t n_pieces;
	uint32_t n_threads;
	bool progress;             /* say how far it is on stderr */
	const atomic_bool *cancel; /* looked at between chunks; may be NULL */
};

struct synth_result {
	bool direct; /* O_DIRECT worked */
	uint64_t bytes;
	double seconds;                     /* from the first byte to the last, and fdatasync */
	double fill_seconds, write_seconds; /* sums over threads: making bytes, writing them */
};

/* Gaps are left alone but for the one behind each tensor, up to the next multiple of 4096, which
 * becomes zero. ERR_INTERRUPTED, or what a failed write says. */
int synth_write(const struct synth_job *job, struct synth_result *r, struct err *e);

#endif
