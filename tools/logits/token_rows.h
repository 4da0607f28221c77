/* SPDX-License-Identifier: MIT */
/* Token ids from files, and logits of every position without holding them all: for dump-logits and
 * perplexity. */
#ifndef GLM_TOOLS_TOKEN_ROWS_H
#define GLM_TOOLS_TOKEN_ROWS_H

#include "src/engine/session/session.h"

/* Appends whitespace-separated decimal ids from a file, "-" is stdin. At least one, or ERR_INPUT.
 */
int token_ids_read(const char *path, struct token_ids *out, struct err *e);

/* Are all of them in [0, n_vocab), and no more than a context holds? ERR_INPUT with the place;
 * `path` names them. */
int token_ids_check(const struct token_ids *ids, const char *path, uint32_t n_vocab,
	uint32_t context, struct err *e);

/* Called for every position in order: row [vocab] are the logits after ids[at]. Nonzero ends the
 * walk with that code. */
typedef int token_row_fn(void *user, uint32_t at, const float *row, struct err *e);

/* Appends ids[0..n) to the session, some at a time, and hands out every row. */
int token_rows_walk(struct session *s, const int32_t *ids, uint32_t n,
	const struct session_watch *watch, token_row_fn *each, void *user, struct err *e);

#endif
