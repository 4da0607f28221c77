/* SPDX-License-Identifier: MIT */
/* The grammar of one call as a machine over its tag tokens; names and keys are matched byte by
 * byte. */
#include "src/serve/tool_force.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/chat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX                                                                                   \
	256 /* with more properties any keys are taken: each token is held against each key */

enum state {
	FREE,  /* text; a call may open if there are tools */
	THINK, /* still reasoning: the turn must not end here */
	OPEN,  /* <tool_call> is next */
	NAME,
	KEY,
	AFTER_KEY,
	VALUE,
	AFTER_VALUE,
};

static void set_names(struct tool_force *f, const char **names, size_t n)
{
	free(f->names);
	f->names = names;
	f->n_names = n;
	buf_clear(&f->so_far);
}

/* A call opens: its name is next. */
static void names_begin(struct tool_force *f)
{
	const char **names = NEW_ARRAY(const char *, json_array_size(f->tools) + 1);
	size_t n = 0, i;
	json_t *tool;
	if (f->name)
		names[n++] = f->name;
	else
		json_array_foreach(f->tools, i, tool)
		{
			names[n++] = json_string_value(json_object_get(chat_tool_function(tool), "name"));
		}
	f->properties = f->required = NULL;
	set_names(f, names, n);
}

void tool_force_init(struct tool_force *f, const struct tokenizer *t, enum tool_choice choice,
	const json_t *tools, const char *name, bool in_reasoning)
{
	*f = (struct tool_force){
		.choice = json_array_size(tools) ? choice : TOOL_CHOICE_NONE,
		.state = choice != TOOL_CHOICE_REQUIRED ? FREE
				 : in_reasoning                 ? THINK
												: OPEN,
		.tokenizer = t,
		.tools = tools,
		.name = name,
		.end_think = tokenizer_find_added(t, "</think>"),
		.call = tokenizer_find_added(t, "<tool_call>"),
		.end_call = tokenizer_find_added(t, "</tool_call>"),
		.key = tokenizer_find_added(t, "<arg_key>"),
		.end_key = tokenizer_find_added(t, "</arg_key>"),
		.value = tokenizer_find_added(t, "<arg_value>"),
		.end_value = tokenizer_find_added(t, "</arg_value>"),
		.reasoning = in_reasoning,
	};
}

void tool_force_fini(struct tool_force *f)
{
	free(f->names);
	buf_free(&f->so_far);
	*f = (struct tool_force){0};
}

bool tool_force_wants(const struct tool_force *f)
{
	return f->tokenizer != NULL;
}

/* ---- what may come ---- */

/* Whether so_far + text begins one of the names. */
static bool begins_name(const struct tool_force *f, const char *text, size_t n)
{
	for (size_t i = 0; i < f->n_names; i++) {
		size_t len = strlen(f->names[i]);
		if (len >= f->so_far.len + n && !memcmp(f->names[i], buf_str(&f->so_far), f->so_far.len) &&
			!memcmp(f->names[i] + f->so_far.len, text, n))
			return true;
	}
	return false;
}

static bool is_name(const struct tool_force *f)
{
	for (size_t i = 0; i < f->n_names; i++)
		if (strlen(f->names[i]) == f->so_far.len &&
			!memcmp(f->names[i], buf_str(&f->so_far), f->so_far.len))
			return true;
	return false;
}

static bool all_required(const struct tool_force *f)
{
	size_t i, k;
	json_t *r;
	json_array_foreach(f->required, i, r)
	{
		/* a key that is still among the names was not used */
		for (k = 0; k < f->n_names; k++)
			if (json_is_string(r) && !strcmp(f->names[k], json_string_value(r)))
				return false;
	}
	return true;
}

static const json_t *find_tool(const struct tool_force *f, const char *name)
{
	size_t i;
	json_t *tool;
	json_array_foreach(f->tools, i, tool)
	{
		const json_t *fn = chat_tool_function(tool);
		const char *s = json_string_value(json_object_get(fn, "name"));
		if (s && !strcmp(s, name))
			return fn;
	}
	return NULL;
}

/* Of the tool whose name is complete: a key may follow, or the end. Before any key is written,
 * n_names still holds the tools' names, so the schema is asked directly. */
static void call_chosen(const struct tool_force *f, bool *keys, bool *end)
{
	const json_t *p = json_object_get(find_tool(f, buf_str(&f->so_far)), "parameters");
	const json_t *properties = json_object_get(p, "properties");
	*keys = !json_is_object(properties) || json_object_size(properties);
	*end = !json_array_size(json_object_get(p, "required")) || !*keys;
}

static bool token_allowed(
	const struct tool_force *f, int32_t id, bool name_done, bool keys, bool end)
{
	const struct tokenizer *t = f->tokenizer;
	struct text_span s = tokenizer_token(t, id);
	bool added = tokenizer_is_added(t, id);
	switch (f->state) {
	case THINK:
		return !tokenizer_is_stop(t, id);
	case OPEN:
		return id == f->call;
	case NAME:
		if (added)
			return name_done && ((id == f->key && keys) || (id == f->end_call && end));
		return s.len && begins_name(f, s.data, s.len);
	case KEY:
		if (!f->properties)
			return added ? id == f->end_key && !f->empty : s.len > 0;
		return added ? id == f->end_key && name_done : s.len && begins_name(f, s.data, s.len);
	case AFTER_KEY:
		return id == f->value;
	case VALUE:
		return !added || id == f->end_value;
	case AFTER_VALUE:
		return (id == f->key && (!f->properties || f->n_names)) ||
			   (id == f->end_call && all_required(f));
	default:
		return true;
	}
}

void tool_force_mask(struct tool_force *f, float *logits, int32_t n_valid)
{
	const int32_t tags[] = {f->end_call, f->key, f->end_key, f->value, f->end_value, f->call};
	if (f->state == FREE || f->state == THINK) {
		/* in reasoning a call would be text */
		bool may_open = f->choice != TOOL_CHOICE_NONE && !f->reasoning;
		for (size_t i = 0; i < ARRAY_LEN(tags) - may_open; i++)
			if (tags[i] >= 0 && tags[i] < n_valid)
				logits[tags[i]] = -INFINITY;
	}
	if (f->state == FREE)
		return;
	bool name_done = is_name(f), keys = true, end = true;
	if (f->state == NAME && name_done)
		call_chosen(f, &keys, &end);
	for (int32_t id = 0; id < n_valid; id++)
		if (!token_allowed(f, id, name_done, keys, end))
			logits[id] = -INFINITY;
}

/* ---- what came ---- */

/* The tool is known: from now on the names are its keys. */
static void call_choose(struct tool_force *f)
{
	const json_t *p = json_object_get(find_tool(f, buf_str(&f->so_far)), "parameters");
	f->properties = json_object_get(p, "properties");
	f->required = json_object_get(p, "required");
	if (!json_is_object(f->properties) || !json_object_size(f->properties) ||
		json_object_size(f->properties) > KEYS_MAX)
		f->properties = f->required = NULL;
	const char **keys = NEW_ARRAY(const char *, json_object_size(f->properties) + 1);
	size_t n = 0;
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)f->properties, key, v)
	{
		if (*key)
			keys[n++] = key;
	}
	set_names(f, keys, n);
}

static void use_key(struct tool_force *f)
{
	for (size_t i = 0; i < f->n_names; i++)
		if (!strcmp(f->names[i], buf_str(&f->so_far))) {
			f->names[i] = f->names[--f->n_names];
			break;
		}
	buf_clear(&f->so_far);
}

void tool_force_token(struct tool_force *f, int32_t id)
{
	if (!f->tokenizer)
		return;
	struct text_span s = tokenizer_token(f->tokenizer, id);
	if (id == f->end_think)
		f->reasoning = false;
	switch (f->state) {
	case FREE:
		if (id == f->call && f->choice != TOOL_CHOICE_NONE && !f->reasoning) {
			names_begin(f);
			f->state = NAME;
		}
		break;
	case THINK:
		if (id == f->end_think)
			f->state = OPEN;
		break;
	case OPEN:
		names_begin(f);
		f->state = NAME;
		break;
	case NAME:
	case KEY:
		if (id == f->end_call) {
			f->state = FREE;
		} else if (id == f->key) {
			call_choose(f);
			f->state = KEY;
			f->empty = true;
		} else if (id == f->end_key) {
			use_key(f);
			f->state = AFTER_KEY;
		} else {
			buf_append(&f->so_far, s.data, s.len);
			f->empty = false;
		}
		break;
	case AFTER_KEY:
		f->state = VALUE;
		break;
	case VALUE:
		if (id == f->end_value)
			f->state = AFTER_VALUE;
		break;
	case AFTER_VALUE:
		f->state = id == f->key ? KEY : FREE;
		f->empty = true;
		buf_clear(&f->so_far);
		break;
	default:
		break;
	}
}
