/* SPDX-License-Identifier: MIT */
/*
 * Carries out a conversion plan. The units of the plan (convert_units.h) pass through a ring of
 * slots in memory, in three stages that overlap:
 *
 *      read       with O_DIRECT where the file system takes it, CONVERT_READERS units at a time
 *      quantise   n_workers units at a time on the CPU, CONVERT_LANES on the card; computes the
 *                 check values too
 *      write      one unit at a time, in file order; the journal follows
 *
 * - Memory is bounded and does not grow with the model: convert_memory.
 * - The bytes written do not depend on the backend, on the number of workers, nor on how often the
 *   work was interrupted.
 * - convert_run starts its threads, and has ended them when it returns.
 */
#ifndef GLM_TOOLS_CONVERT_PIPELINE_H
#define GLM_TOOLS_CONVERT_PIPELINE_H

#include "src/base/err.h"
#include "src/format/gguf_write.h"
#include "tools/convert/convert_journal.h"
#include "tools/convert/convert_quantise.h"
#include "tools/convert/convert_units.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONVERT_READERS        8  /* units that are read at a time, at most */
#define CONVERT_LANES          3  /* quantizers, and so CUDA streams, on the card */
#define CONVERT_FEEDBACK_LANES 16 /* the same with error feedback, at most */
#define CONVERT_RING_BYTES     ((uint64_t)3 << 30) /* most bytes of slots, without large units */
#define CONVERT_MOST_MEMORY    7500000000u         /* most bytes of the host: convert_memory */

/* Everything is lent, but for `card`. */
struct convert_job {
	const struct convert_choices *choices;
	struct safetensors *st;          /* convert_run opens its files with O_DIRECT too */
	struct gguf_writer *writer;      /* created; tensor i of the plan is its tensor i */
	struct convert_journal *journal; /* open */
	const uint64_t *done;            /* [n_tensors] pieces (convert_pieces) of earlier runs */
	bool *damaged; /* out, [st->n_files]: true where input was refused (ERR_INPUT) */
	/* An open quantizer of a card, which convert_run closes; NULL: the CPU quantises everything. */
	struct quantizer *card;
	uint32_t n_workers;        /* units that the CPU quantises at a time, > 0 */
	bool progress;             /* show progress on stderr */
	const atomic_bool *cancel; /* true ends the run: checked between blocks of rows; may be NULL */
};

/* busy_ns: time during which at least one thread was in the stage. */
struct convert_stage {
	uint64_t bytes, busy_ns;
};

/* Of this run alone, not of the runs that it continues. */
struct convert_result {
	struct feedback_counts feedback;
	struct convert_stage read, quantise; /* bytes of the source */
	struct convert_stage write;          /* bytes of the result */
	uint64_t card_bytes;                 /* of the card's memory that was used; 0: no card */
	uint64_t card_units;                 /* units that the card has quantised */
	uint64_t units;                      /* units written */
	bool direct;                         /* all files were opened with O_DIRECT */
};

/* Converts every tensor that is not done. Pieces that are finished are in the journal also when it
 * fails. *result is always set.
 *   ERR_INTERRUPTED   job->cancel became true
 *   ERR_INPUT         a value is infinite or not a number, or a file became shorter; job->damaged
 *   others            of reading, of quantizer.h, of gguf_write.h and of the journal */
int convert_run(const struct convert_job *job, struct convert_result *result, struct err *e);

/* Host memory in bytes that convert_run takes for matrices, computed from the plan: the slots, at
 * most one large unit, and the contexts of the workers. At most CONVERT_MOST_MEMORY, unless two
 * slots, a large unit and the contexts take more. *n_slots: slots of the ring, at least 2. */
uint64_t convert_memory(
	const struct convert_choices *c, uint32_t n_workers, bool card, uint32_t *n_slots);

#endif
