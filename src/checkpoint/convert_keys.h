/* SPDX-License-Identifier: MIT */
/* The metadata of a converted model: shape, indexer schedule, sampling defaults, tokenizer, chat
 * template. */
#ifndef GLM_CHECKPOINT_CONVERT_KEYS_H
#define GLM_CHECKPOINT_CONVERT_KEYS_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/format/gguf_write.h"
#include "src/checkpoint/convert_config.h"

/* True: the checkpoint's head is its embedding; output.weight is a second copy of it. */
#define CONVERT_TIED_KEY "glmstream.tie_word_embeddings"

/* Declares all keys in `w`. DIR/tokenizer.json and DIR/chat_template.jinja are used when they are
 * there; what is missing is said in a line of `notes`. */
int convert_keys_set(struct gguf_writer *w, const struct convert_config *c, const char *dir,
	struct buf *notes, struct err *e);

/* tokenizer.ggml.tokens: n tokens, then "[PADn]" up to n_vocab, which are no text. */
void convert_keys_tokens(
	struct gguf_writer *w, const struct gguf_str *tokens, uint32_t n, uint32_t n_vocab);

/* Declares only the keys of shape, schedule and sampling. */
void convert_keys_shape(struct gguf_writer *w, const struct convert_config *c);

#endif
