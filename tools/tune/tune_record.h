/* SPDX-License-Identifier: MIT */
/* The part of `glmstream tune` that runs the model: prompts, their trace, and what the machine has
 * left for experts. */
#ifndef GLM_TOOLS_TUNE_RECORD_H
#define GLM_TOOLS_TUNE_RECORD_H

#include "src/text/tokenizer.h"
#include "tools/options/common_opts.h"

/* Zero-initialise; tune_facts_fini releases. */
struct tune_facts {
	struct token_ids *prompts; /* [n_prompts] rendered by the chat template */
	size_t n_prompts;
	bool cpu; /* backend */
	char backend[32];
	uint64_t left_bytes; /* memory of the backend beside resident weights, caches and workspace */
};

/* Opens the model once. prompts: path of a file with a question on each line; NULL: a few that come
 * with the program. ERR_USAGE: the longest prompt and n_new tokens do not fit the context. */
int tune_facts_find(struct tune_facts *f, const struct common_opts *c, const char *prompts,
	uint32_t n_new, struct err *e);

/* The longest prompt: what is measured should not be a short context only. After tune_facts_find.
 */
const struct token_ids *tune_longest(const struct tune_facts *f);
void tune_facts_fini(struct tune_facts *f);

/* Answers every prompt with at most n_new tokens and records the trace in `path`, with predictions
 * for `lookahead` layers. */
int tune_record(const struct common_opts *c, const struct tune_facts *f, uint32_t n_new,
	int lookahead, const char *path, struct err *e);

#endif
