/* SPDX-License-Identifier: MIT */
/*
 * Text <-> token ids: vocabulary, split pattern and merges put together, plus the ids that end a
 * turn.
 *
 * Nothing is inserted (no BOS, no blank in front) and nothing is normalised, so decoding gives back
 * the encoded bytes. A struct tokenizer is constant once made: any thread may use it.
 */
#ifndef GLM_TEXT_TOKENIZER_H
#define GLM_TEXT_TOKENIZER_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/text/hf_tokenizer.h"
#include "src/text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;
struct tokenizer;

/* From the tokenizer.ggml.* keys of an open GGUF (tokens, token_type, merges; model gpt2, pre
 * glm4). The stop set is tokenizer.ggml.eos_token_ids (our own key, an array), else
 * "<|endoftext|>", "<|user|>", "<|observation|>" as far as they exist, plus the file's eos, eot and
 * eom ids. Without merges the vocabulary's own order ranks them. */
int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **out, struct err *e);

/* From a parsed tokenizer.json; the stop set by text as above. `hf` may be freed afterwards. */
int tokenizer_from_hf(const struct hf_tokenizer *hf, struct tokenizer **out, struct err *e);

void tokenizer_free(struct tokenizer *t); /* NULL is fine */

enum tokenizer_flags {
	/* Texts of added tokens ("<|user|>") in the input become those tokens, longest first, at any
	 * place: for rendered prompts. Without it they are text like any other: for what users write.
	 */
	TOKENIZER_PARSE_ADDED = 1,
};

/* Appends the ids of text[0..len). ERR_INPUT when the text is not valid UTF-8 (the sentence has the
 * byte offset). */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
	struct token_ids *out, struct err *e);

/* The memory that a call takes beside `out`: 32 bytes for each byte of the longest piece, such as a
 * run of letters. hold is asked before it grows to `bytes`, and may refuse. */
struct tokenizer_memory {
	bool (*hold)(void *user, size_t bytes);
	void *user;
};
/* tokenizer_encode; ERR_MEMORY also when `memory` refuses. NULL: never asked. */
int tokenizer_encode_within(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
	const struct tokenizer_memory *memory, struct token_ids *out, struct err *e);

/* Appends the exact bytes of the tokens; added tokens give their text, padding rows nothing. The
 * bytes need not be valid UTF-8: utf8_repair gives what Hugging Face decodes to, utf8_stream does
 * so piece by piece. ERR_INPUT names an id that is out of range. */
int tokenizer_decode(
	const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out, struct err *e);

/* Bytes of one token, borrowed; empty for padding rows and for ids out of range. */
struct text_span tokenizer_token(const struct tokenizer *t, int32_t id);

/* Ids are 0 .. n - 1, padding rows included. */
uint32_t tokenizer_n_tokens(const struct tokenizer *t);
/* The id has no text or is out of range: never sample it. */
bool tokenizer_is_padding(const struct tokenizer *t, int32_t id);
/* Like "<|user|>", unlike "<think>": no text for people. */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
bool tokenizer_is_added(const struct tokenizer *t, int32_t id); /* control or user-defined token */
/* The id of "<|user|>" or another added token, or -1. */
int32_t tokenizer_find_added(const struct tokenizer *t, const char *text);

/* The ids that end a turn. */
bool tokenizer_is_stop(const struct tokenizer *t, int32_t id);
const int32_t *tokenizer_stops(const struct tokenizer *t, size_t *n);

#endif
