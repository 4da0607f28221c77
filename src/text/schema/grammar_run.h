/* SPDX-License-Identifier: MIT */
/*
 * A walk through a grammar, byte by byte, and which tokens may come next.
 *
 * The set of places where the walk may be is made deterministic as it goes: each set met so far is
 * a state with a table of its successors, so that most bytes cost one load. Masks over the
 * vocabulary are made by walking the sorted tokens, those with a common beginning once, and are
 * kept per state.
 *
 * A run belongs to one answer and one thread; grammar and tokens are shared and constant. Memory of
 * a run is bounded (about 40 MB at the very most; some kB to a few MB in practice).
 */
#ifndef GLM_TEXT_GRAMMAR_RUN_H
#define GLM_TEXT_GRAMMAR_RUN_H

#include "src/text/schema/grammar.h"
#include "src/text/tokenizer.h"

/* The vocabulary in the order of its bytes. */
struct token_trie;

/* All tokens with text but added ones. The tokenizer is borrowed. About 0.1 s for 154,880 tokens.
 */
struct token_trie *token_trie_new(const struct tokenizer *t);
void token_trie_free(struct token_trie *x); /* NULL is fine */

struct grammar_run;

/* Borrows both until grammar_run_free. */
struct grammar_run *grammar_run_new(const struct grammar *g, const struct token_trie *tokens);
void grammar_run_free(struct grammar_run *r); /* NULL is fine */
void grammar_run_restart(struct grammar_run *r);

/* Takes the bytes if the grammar allows them; else changes nothing and returns false. */
bool grammar_run_push(struct grammar_run *r, const char *bytes, size_t n);
bool grammar_run_allows(struct grammar_run *r, const char *bytes, size_t n);
bool grammar_run_may_end(const struct grammar_run *r);  /* what came is a whole text */
bool grammar_run_must_end(const struct grammar_run *r); /* and nothing may follow */

/* Bit id % 64 of word id / 64: the token may come next. [(n_tokens + 63) / 64] words, valid until
 * the next call. Added tokens and padding have 0. */
const uint64_t *grammar_run_mask(struct grammar_run *r);

#endif
