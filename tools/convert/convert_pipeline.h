/* SPDX-License-Identifier: MIT */
/*
 * Carrying out a conversion plan: units (convert_units.h) pass through a ring of slots in memory.
 *
 *      read (O_DIRECT, CONVERT_READERS at once) -> quantise (n_workers on the CPU, CONVERT_LANES on
 *      the card), with the check value -> write, in file order
 *
 * The stages overlap. What they hold does not depend on the model's size (convert_memory). The
 * bytes written do not depend on the backend, on the number of workers, nor on how often the work
 * was interrupted.
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

#define CONVERT_READERS        8
#define CONVERT_LANES          3
#define CONVERT_FEEDBACK_LANES 16
#define CONVERT_RING_BYTES     ((uint64_t)3 << 30) /* most of its slots, but for large units */
#define CONVERT_MOST_MEMORY    7500000000u         /* of the host, for matrices; convert_memory */

struct convert_job {
	const struct convert_choices *choices;
	struct safetensors *st;
	struct gguf_writer *writer;      /* created; tensor i of the plan is its tensor i */
	struct convert_journal *journal; /* open */
	const uint64_t *done;            /* [n_tensors] pieces finished by an earlier run */
	bool *damaged; /* [st->n_files] set for files of which input was refused (ERR_INPUT) */
	/* Of a card, taken over by convert_run; or NULL: the CPU quantises everything. */
	struct quantizer *card;
	uint32_t n_workers;
	bool progress;             /* say how far it is on stderr */
	const atomic_bool *cancel; /* looked at between blocks of rows; may be NULL */
};

/* Bytes that a stage has handled, and the time during which it was at work. */
struct convert_stage {
	uint64_t bytes, busy_ns;
};

/* What a run says about its work, also when it failed. */
struct convert_result {
	struct feedback_counts feedback; /* of matrices that this run has begun with error feedback */
	struct convert_stage read, quantise, write; /* source, source, result */
	uint64_t card_bytes;                        /* most of the card's memory; 0: no card */
	uint64_t card_units, units;
	bool direct; /* all files were read with O_DIRECT */
};

/* Converts every tensor that is not done. Finished tensors are in the journal also when this fails
 * or is cancelled (ERR_INTERRUPTED). *result: always set. */
int convert_run(const struct convert_job *job, struct convert_result *result, struct err *e);

/* Host memory for matrices in flight, computed from the plan: slots of the ring, at most one large
 * unit, and what quantising takes. At most CONVERT_MOST_MEMORY, unless two slots and a large unit
 * take more. */
uint64_t convert_memory(
	const struct convert_choices *c, uint32_t n_workers, bool card, uint32_t *n_slots);

#endif
