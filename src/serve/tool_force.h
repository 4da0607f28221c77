/* SPDX-License-Identifier: MIT */
/*
 * Which tokens may come next so that calls are what the client can use, and tool_choice is true.
 *
 * The tags of calls come in calls only, so that no text holds one. Without tools, or with
 * tool_choice none, no call opens: the model answers in text. A call that opens names one of the
 * tools and goes on as a required one does. Required means: once the reasoning ends, the call
 * opens; its name is one of the tools' names; its keys are those of the tool's schema, each once,
 * the required ones all; only then may it close. What stands in the values is up to the model. The
 * turn cannot end before the call is complete (only a limit of tokens can cut it).
 */
#ifndef GLM_SERVE_TOOL_FORCE_H
#define GLM_SERVE_TOOL_FORCE_H

#include "src/base/buf.h"
#include "src/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED };

/* All fields private. */
struct tool_force {
	enum tool_choice choice;
	int state;
	const struct tokenizer *tokenizer;
	const json_t *tools;
	const char *name; /* the tool that is to be called; NULL: any */
	bool reasoning;
	int32_t end_think, call, end_call, key, end_key, value, end_value;
	const char *
		*names; /* [n_names] what may be written now: tools or keys of the one that was chosen */
	size_t n_names;
	const json_t *properties, *required; /* of the chosen tool; NULL: any keys */
	struct buf so_far;                   /* of a name or key */
	bool empty;                          /* nothing of a free key is written yet */
};

/* tools and name are borrowed; name NULL: any of the tools. A zeroed machine binds nothing. */
void tool_force_init(struct tool_force *f, const struct tokenizer *t, enum tool_choice choice,
	const json_t *tools, const char *name, bool in_reasoning);
void tool_force_fini(struct tool_force *f);

bool tool_force_wants(const struct tool_force *f); /* is the next token bound? */
void tool_force_mask(
	struct tool_force *f, float *logits, int32_t n_valid); /* -infinity for what must not come */
void tool_force_token(struct tool_force *f, int32_t id);   /* the token that came */

#endif
