/* SPDX-License-Identifier: MIT */
/*
 * The vocabulary: token id <-> bytes, what kind of token each id is, fast lookup of byte strings.
 *
 * Tokens with a text are of two kinds, looked up apart: *normal* tokens, which byte pair merging
 * produces (vocab_find), and *added* tokens (control and user-defined: "<|user|>", "<think>"),
 * which are cut out of a text before merging (vocab_match_added). Other rows (padding, unknown)
 * have an id and no text: no text is encoded to them, and they decode to nothing.
 *
 * Token texts come in two spellings: the bytes themselves, or GPT-2's printable spelling used by
 * tokenizer.json and GGUF, in which every byte is one character (a blank is U+0120). Added tokens
 * are always plain UTF-8.
 *
 * A struct vocab is constant after init: any thread may read it.
 */
#ifndef GLM_TEXT_VOCAB_H
#define GLM_TEXT_VOCAB_H

#include "src/base/buf.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed bytes; not a C string. */
struct text_span {
	const char *data;
	size_t len;
};

/* The numbers are those of tokenizer.ggml.token_type. */
enum token_type {
	TOKEN_NORMAL = 1,
	TOKEN_UNKNOWN = 2,
	TOKEN_CONTROL = 3, /* added, special: dropped by decoders that skip specials */
	TOKEN_USER = 4,    /* added, not special */
	TOKEN_UNUSED = 5,  /* padding row */
	TOKEN_BYTE = 6,    /* SentencePiece only: refused */
};

enum vocab_spelling { VOCAB_RAW, VOCAB_GPT2 };

#define VOCAB_TOKENS_MAX (1u << 24)

struct vocab {
	uint32_t n_tokens; /* ids 0 .. n_tokens - 1, padding rows included */
	char *bytes;       /* all token bytes, in id order; empty for rows that decode to nothing */
	uint32_t *start;   /* [n_tokens + 1] offsets into bytes */
	uint8_t *type;     /* [n_tokens] enum token_type */
	/* open addressing, normal tokens: hash in the high half, id + 1 in the low half; 0 empty */
	uint64_t *slots;
	uint32_t slot_mask;
	int32_t byte_id[256]; /* id of each single byte; all present */
	uint32_t n_added;
	int32_t *added;        /* [n_added] ids of control and user tokens, sorted by their bytes */
	bool added_first[256]; /* whether an added token starts with this byte */
};

/* Builds from n tokens: texts[i] is token i, types[i] its enum token_type (types NULL: all normal).
 * Normal tokens are in `spelling`. The spans are copied. Refused with ERR_INPUT: no token for some
 * byte, a normal token twice or empty, an added token empty, twice, or not UTF-8, an unknown type.
 */
int vocab_init(struct vocab *v, const struct text_span *texts, const uint8_t *types, uint32_t n,
	enum vocab_spelling spelling, struct err *e);

void vocab_fini(struct vocab *v); /* a zeroed struct is fine */

/* Id of the normal token with exactly these bytes, or -1. */
int32_t vocab_find(const struct vocab *v, const char *p, size_t n);

/* Id of the added token with exactly this text, or -1. */
int32_t vocab_find_added(const struct vocab *v, const char *text);

/* The longest added token that p[0..n) starts with: its id, its length in *len; -1: none. */
int32_t vocab_match_added(const struct vocab *v, const char *p, size_t n, size_t *len);

/* Bytes of a token; id must be in range. */
static inline struct text_span vocab_text(const struct vocab *v, int32_t id)
{
	return (struct text_span){v->bytes + v->start[id], v->start[id + 1] - v->start[id]};
}

static inline bool vocab_is_added(const struct vocab *v, int32_t id)
{
	return v->type[id] == TOKEN_CONTROL || v->type[id] == TOKEN_USER;
}

/* GPT-2 spelling -> bytes, appended to `out`. Returns 0, or -1 when a character stands for no byte
 * (out is then unspecified beyond its old length). */
int vocab_unspell(const char *text, size_t n, struct buf *out);

/* Bytes -> GPT-2 spelling, appended to `out`. */
void vocab_spell(const char *bytes, size_t n, struct buf *out);

/* A growing list of token ids. Zero-initialise. */
struct token_ids {
	int32_t *data;
	size_t n, cap;
};
int token_ids_push(struct token_ids *l, int32_t id); /* 0 or ERR_MEMORY */
void token_ids_free(struct token_ids *l);

#endif
