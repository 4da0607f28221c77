/* SPDX-License-Identifier: MIT */
/*
 * A walk through a grammar, byte by byte, and which tokens may come next.
 *
 * Use: grammar_run_new at the start of a text; for each token grammar_run_allows, or
 * grammar_run_mask for all tokens at once, then grammar_run_push with the bytes of the token that
 * came; the text may end where grammar_run_may_end says so.
 *
 * The grammar is a pushdown automaton, walked as a lazy DFA: each set of positions is one state of
 * it, made when it is first reached, with a table of its successors, so that most bytes cost one
 * load. A mask comes from a walk over the trie of the vocabulary and is kept with its state.
 *
 * Where the grammar has unique_keys, a key of an object does not come again. The quote that would
 * complete a repeated key is refused while another byte may follow. If none may, the repetition is
 * allowed.
 *
 * A run belongs to one answer and one thread; grammar and tokens are shared and constant. Memory of
 * a run is bounded: some kB to a few MB in practice, about 70 MB for a schema made to cost much.
 * The time of a mask is bounded too (some 100 ms). Where a bound is reached, the run allows only a
 * part of what the grammar does.
 */
#ifndef GLM_TEXT_GRAMMAR_RUN_H
#define GLM_TEXT_GRAMMAR_RUN_H

#include "src/text/schema/grammar.h"
#include "src/text/tokenizer.h"

#include <stdatomic.h>

/* The texts of the vocabulary as a prefix tree. Constant: any thread may use it. */
struct token_trie;

/* All tokens with text but added ones. The tokenizer is borrowed for the call. About 0.1 s for
 * 154,880 tokens. */
struct token_trie *token_trie_new(const struct tokenizer *t);
void token_trie_free(struct token_trie *x); /* NULL is fine */

struct grammar_run;

/* Borrows both until grammar_run_free. tokens: needed for grammar_run_mask, else NULL. NULL when
 * memory is exhausted in a scope (mem.h). Bytes for which a later allocation fails count as not
 * allowed. */
struct grammar_run *grammar_run_new(const struct grammar *g, const struct token_trie *tokens);
void grammar_run_free(struct grammar_run *r); /* NULL is fine */
/* grammar_run_mask ends early once *cancel is true, with fewer tokens in the mask. Borrowed; NULL:
 * never. */
void grammar_run_set_cancel(struct grammar_run *r, const atomic_bool *cancel);
void grammar_run_restart(struct grammar_run *r); /* back to the start of the text */

/* Takes the bytes if the grammar allows them; else changes nothing and returns false. */
bool grammar_run_push(struct grammar_run *r, const char *bytes, size_t n);
bool grammar_run_allows(struct grammar_run *r, const char *bytes, size_t n);
bool grammar_run_may_end(const struct grammar_run *r);  /* what was pushed is a whole text */
bool grammar_run_must_end(const struct grammar_run *r); /* it is, and no byte may follow */

/* Bit id % 64 of word id / 64: the token may come next. [(n_tokens + 63) / 64] words, n_tokens of
 * the tokenizer, owned by r and valid until the next call. Added tokens and padding have 0. NULL
 * in a scope only. */
const uint64_t *grammar_run_mask(struct grammar_run *r);

#endif
