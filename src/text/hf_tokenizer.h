/* SPDX-License-Identifier: MIT */
/*
 * Hugging Face's tokenizer.json -> plain arrays, ready to be written into a GGUF
 * (tokenizer.ggml.tokens, .token_type, .merges) or to build a struct tokenizer. Supported is what
 * GLM's files are: byte-level BPE without normaliser, one split pattern, added tokens that match
 * verbatim anywhere. Anything else is refused with a sentence that names it; nothing is silently
 * ignored except run-time settings (truncation, padding).
 */
#ifndef GLM_TEXT_HF_TOKENIZER_H
#define GLM_TEXT_HF_TOKENIZER_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hf_tokenizer {
	/* highest id + 1; a model may have more rows: pad with "[PAD<id>]", TOKEN_UNUSED */
	uint32_t n_tokens;
	/* [n_tokens] as GGUF spells them: GPT-2 spelling, added tokens plain; each also ends in a 0 */
	struct text_span *tokens;
	/* [n_tokens] enum token_type: 1 normal, 3 control, 4 user-defined, 5 hole in the ids */
	uint8_t *types;
	uint32_t n_merges;
	/* [n_merges] "left right" in GPT-2 spelling, in rank order; each also ends in a 0 */
	struct text_span *merges;
	char *pattern;      /* the split pattern, as the file has it */
	bool ignore_merges; /* a piece that is a token is taken whole */
	/* value for tokenizer.ggml.pre ("glm4") when pattern and ignore_merges are GLM's, else NULL:
	 * such a tokenizer has no name in GGUF and a converter must refuse it */
	const char *pre;
	char *storage; /* owns all texts */
};

/* Parses the bytes of a tokenizer.json. On error `t` is empty. */
int hf_tokenizer_parse(struct hf_tokenizer *t, const char *json, size_t len, struct err *e);

/* The same from a file; sentences begin with its path. */
int hf_tokenizer_open(struct hf_tokenizer *t, const char *path, struct err *e);

void hf_tokenizer_fini(struct hf_tokenizer *t); /* a zeroed struct is fine */

#endif
