/* SPDX-License-Identifier: MIT */
/*
 * What a model writes -> what a client gets: reasoning, text and tool calls in pieces, cut at stop
 * strings, with the probabilities of the tokens. One output belongs to one answer; the compute
 * thread feeds it token by token. It knows nothing of the APIs.
 */
#ifndef GLM_SERVE_OUTPUT_H
#define GLM_SERVE_OUTPUT_H

#include "src/serve/compute/constraint.h"
#include "src/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUTPUT_TOP_MAX 20

/* A token and the likeliest ones at its place, most probable first, with natural logarithms of the
 * model's own probabilities (temperature 1, no cuts). */
struct output_token {
	int32_t id;
	float logprob;
	size_t at; /* bytes of text before it; in part of a character: before the character */
	uint32_t n_top;
	struct {
		int32_t id;
		float logprob;
	} top[OUTPUT_TOP_MAX];
};

/* Zero-initialise. Owned by whoever fills it in; output_options_fini. */
struct output_options {
	bool chat;         /* reasoning and calls are separated; else everything is text */
	bool show_control; /* not chat: control tokens give their names as text, else nothing */
	bool in_reasoning; /* the prompt ends inside the reasoning */
	json_t *tools;     /* for the types of arguments; NULL: none */
	enum tool_choice choice;
	char *choice_name;                  /* TOOL_CHOICE_REQUIRED: this tool; NULL: any */
	bool one_call;                      /* the answer ends with its first call */
	struct schema *answer;              /* owned; the answer follows it; NULL: any text */
	struct constraint_argument *strict; /* [n_strict] owned; arguments that follow schemas */
	size_t n_strict;
	const struct token_trie *tokens; /* borrowed; with answer or strict */
	/* ends of the answer beside the model's own */
	int32_t *stop_ids; /* [n_stop_ids] owned; end it as the model's stop tokens do */
	size_t n_stop_ids;
	uint32_t min_new; /* stop_ids and the model's stop tokens are banned before so many tokens */
	char **stops;     /* [n_stops] stop strings, none empty; owned */
	size_t n_stops;
	bool token_ids; /* the connection gets the ids of the tokens (job_event.ids) */
	bool logprobs;
	uint32_t n_top; /* rivals of each token, at most OUTPUT_TOP_MAX */
};
void output_options_fini(struct output_options *o);

/* A call is OUTPUT_CALL, any number of OUTPUT_ARGUMENTS, OUTPUT_CALL_END; without the last it was
 * cut off. */
enum output_kind {
	OUTPUT_REASONING,
	OUTPUT_TEXT,
	OUTPUT_CALL,      /* text: the name */
	OUTPUT_ARGUMENTS, /* text: the next piece of a JSON object */
	OUTPUT_CALL_END,
};

/* text: the piece. rows: [n_rows] with logprobs, the tokens whose text begins in this piece of
 * OUTPUT_TEXT. All are valid only during the call. */
typedef void output_fn(void *user, enum output_kind kind, struct text_span text,
	const struct output_token *rows, size_t n_rows);

/* COMPLETE: the text is a whole value of its schema, nothing may follow. INVALID: the schema does
 * not allow the token; it is not given out, and the answer fails. */
enum output_next {
	OUTPUT_GO_ON,
	OUTPUT_STOP_STRING,
	OUTPUT_ONE_CALL,
	OUTPUT_COMPLETE,
	OUTPUT_INVALID,
};

struct output;

/* Options, tokenizer and cancel are borrowed until output_free. *cancel ends a mask early once it
 * is true; cancel may be NULL. Returns NULL in a scope only (mem.h). An allocation that fails in a
 * later call leaves pieces out. */
struct output *output_new(const struct output_options *o, const struct tokenizer *t,
	const atomic_bool *cancel, output_fn *emit, void *user);
void output_free(struct output *o); /* NULL is fine */

/* Whether the token may come next; output_mask makes the logits of all others -infinity. */
bool output_allows(struct output *o, int32_t id);
void output_mask(struct output *o, float *logits, int32_t n_valid);

/* The next token (not one that ends the turn) and the logits it was drawn from, unmasked; they may
 * be NULL without `logprobs`. */
enum output_next output_push(struct output *o, int32_t id, const float *logits, int32_t n_valid);

/* The end: gives out what was held back. ended: the model ended its turn. */
void output_finish(struct output *o, bool ended);

int output_stop_index(const struct output *o);            /* which stop string came, or -1 */
uint32_t output_reasoning_tokens(const struct output *o); /* so far; the closing tag counts */
bool output_reasoning_open(const struct output *o);       /* the reasoning has not ended */
bool output_in_call(const struct output *o);              /* a call has begun and not ended */

#endif
