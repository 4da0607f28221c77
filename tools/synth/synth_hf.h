/* SPDX-License-Identifier: MIT */
/*
 * Random weights as a Hugging Face checkpoint: the released names, in BF16 or in FP8 with a scale
 * for 128 x 128 values, for measuring `convert` without 1.5 TB to download. Tokenizer and template
 * come from a GGUF.
 */
#ifndef GLM_TOOLS_SYNTH_HF_H
#define GLM_TOOLS_SYNTH_HF_H

#include "src/base/err.h"
#include "src/checkpoint/convert_config.h"

#include <stdbool.h>
#include <stdint.h>

struct synth_hf_options {
	const char *out;       /* folder, as of `export` */
	const char *tokenizer; /* GGUF */
	bool fp8;
	uint64_t seed;
	uint32_t jobs;
	bool force, dry_run, quiet;
};

/* Writes the checkpoint; with dry_run says on stdout what it would write. An interrupted one goes
 * on with the next shard. `cfg` gets the stop ids of the tokenizer. */
int synth_hf(struct convert_config *cfg, const struct synth_hf_options *o, struct err *e);

#endif
