/* SPDX-License-Identifier: MIT */
/*
 * The files of an exported checkpoint that are text: config.json, generation_config.json,
 * tokenizer.json, tokenizer_config.json, chat_template.jinja and the index of the shards.
 *
 * tokenizer.json has the same vocabulary, merges and added tokens, and so gives the same ids; its
 * stages around them are GLM's, which is what tokenizer.ggml.pre = glm4 says. An added token is
 * special when its type is CONTROL. Derived in tokenizer_config.json: the class, padding_side,
 * model_max_length (the context), eos_token and pad_token (the texts of the first stop id and of
 * the padding id).
 */
#ifndef GLM_TOOLS_EXPORT_TEXTS_H
#define GLM_TOOLS_EXPORT_TEXTS_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/format/gguf.h"
#include "src/checkpoint/convert_config.h"
#include "tools/export/export_plan.h"

#include <stddef.h>

#define EXPORT_TEXTS_MAX 6

struct export_texts {
	struct {
		const char *name; /* static */
		struct buf text;
	} file[EXPORT_TEXTS_MAX];
	size_t n; /* the index comes last: with it the folder is complete */
};

/* Names that any export may write, NULL behind the last. */
extern const char *const export_text_names[];

/* Makes all of them; stop ids and padding go from the tokenizer into *cfg. A GGUF without a
 * tokenizer or template gives a folder without: a line of `notes` says so. ERR_INPUT: a tokenizer
 * that this program could not use. */
int export_texts_make(struct export_texts *t, const struct gguf *file, struct convert_config *cfg,
	const struct export_plan *plan, struct buf *notes, struct err *e);

void export_texts_fini(struct export_texts *t);

#endif
