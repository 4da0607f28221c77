/* SPDX-License-Identifier: MIT */
/*
 * Which tokens may come next in an answer of a chat: output.c feeds it, the sampler asks it
 * (sampler_filter). All on the compute thread.
 *
 * Calls:
 * - Their tags come in calls only, so that no text holds one.
 * - Without tools, or with tool_choice none, no call opens: the model answers in text. With
 *   tool_choice required a call opens as soon as the reasoning ends.
 * - A call names one of the tools. Its keys are those of the tool's schema, each once; it can close
 *   when all required ones are there. If the schema names no keys, they are free, but none comes
 *   twice; with empty properties, or none and additionalProperties false, there are none.
 * - The values of strict arguments follow their schemas, other values are free.
 *
 * Answers with a schema: the reasoning is free, then the text follows the schema, unless the model
 * opens a call instead. Behind a call only another one or the end of the turn may come: the client
 * answers calls first, and the schema applies to the text of a later turn. The turn can end when
 * the text is complete.
 *
 * The turn cannot end before a required call or an answer with a schema is complete; only a limit
 * of tokens can cut it.
 *
 * Use: constraint_init; for each token draw one, and if constraint_allows refuses it,
 * constraint_mask the logits and draw again; constraint_token with the token that came;
 * constraint_fini. By a schema, constraint_allows costs microseconds, the first mask of a state
 * some milliseconds, and each later one up to some tens of microseconds.
 */
#ifndef GLM_SERVE_CONSTRAINT_H
#define GLM_SERVE_CONSTRAINT_H

#include "src/base/buf.h"
#include "src/text/schema/grammar_run.h"
#include "src/text/schema/schema.h"
#include "src/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The keys of a tool with more properties than this are free, and none is required: the names are
 * searched for every token of a mask. */
#define CONSTRAINT_KEYS_MAX 256

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED };

/* The value of an argument of a strict tool. Strings and schema are owned. */
struct constraint_argument {
	char *tool, *key;
	struct schema *schema; /* of SCHEMA_ARGUMENT */
};

/* Zero-initialise. */
struct constraint_options {
	bool in_reasoning; /* the answer begins inside the reasoning */
	enum tool_choice choice;
	const json_t *tools;             /* borrowed; NULL: none */
	const char *choice_name;         /* borrowed; TOOL_CHOICE_REQUIRED: this tool; NULL: any */
	struct schema *answer;           /* borrowed; NULL: any text */
	const struct token_trie *tokens; /* borrowed; needed with schemas */
	const atomic_bool *cancel;       /* borrowed; ends a mask early; NULL: nothing does */
	const struct constraint_argument *strict; /* [n_strict] borrowed */
	size_t n_strict;
};

/* All fields private. */
struct constraint {
	struct constraint_options options;
	enum tool_choice choice;
	int state, behind_think;
	const struct tokenizer *tokenizer;
	const json_t *tools;
	const char *name; /* the tool that must be called; NULL: any */
	const char *tool; /* the tool that is being called, once its name is complete */
	bool reasoning;
	int32_t end_think, call, end_call, key, end_key, value, end_value;
	/* [n_names] sorted; may be written now: tools, or unused keys of the chosen one */
	const char **names;
	size_t n_names;
	const json_t *properties, *required; /* of the chosen tool; NULL: any keys */
	struct buf so_far;                   /* of a name or key */
	struct buf used;                     /* free keys of the call, each between zero bytes */
	bool empty;                          /* nothing of a free key or of the answer is written yet */
	struct grammar_run *run;             /* of the answer or a value; NULL: no schema now */
};

/* Everything in o is borrowed until constraint_fini. A zeroed struct allows every token, and
 * constraint_fini of one is fine. */
void constraint_init(
	struct constraint *f, const struct tokenizer *t, const struct constraint_options *o);
void constraint_fini(struct constraint *f);

bool constraint_allows(struct constraint *f, int32_t id); /* may this token come next? */
/* logits [n_valid]: -infinity for what must not come, the others stay. */
void constraint_mask(struct constraint *f, float *logits, int32_t n_valid);
/* The token that came. False: the grammar of the schema does not take it, so the answer cannot
 * become valid. That happens where no token that may be drawn continues the answer within its
 * schema. True in any case once *cancel is true. */
bool constraint_token(struct constraint *f, int32_t id);
#define CONSTRAINT_BROKEN "no token that may be drawn continues the answer within its schema"
/* The answer is a whole value of its schema and nothing may follow. */
bool constraint_complete(const struct constraint *f);

#endif
