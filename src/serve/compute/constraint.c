/* SPDX-License-Identifier: MIT */
/* A state machine over the tag tokens of calls. Names and keys are matched byte by byte, answers
 * and values with a schema by its grammar. */
#include "src/serve/compute/constraint.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/chat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum state {
	FREE,  /* text; a call may open if there are tools */
	THINK, /* still reasoning: the turn must not end here */
	OPEN,  /* <tool_call> is next */
	NAME,
	KEY,
	AFTER_KEY,
	VALUE,
	AFTER_VALUE,
	ANSWER, /* a text by the answer's schema; at its start a call may open as well */
	CALLED, /* behind a call in place of such a text: another call, or the end of the turn */
};

static int name_order(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What may be written next; takes the array (NULL: memory is exhausted), borrows the texts. */
static void set_names(struct constraint *f, const char **names, size_t n)
{
	n = names ? n : 0;
	if (n)
		qsort(names, n, sizeof *names, name_order);
	free(f->names);
	f->names = names;
	f->n_names = n;
	buf_clear(&f->so_far);
}

/* A call opens: its name is next. */
static void names_begin(struct constraint *f)
{
	const char **names = NEW_ARRAY(const char *, json_array_size(f->tools) + 1);
	size_t n = 0, i;
	json_t *tool;
	if (!names) {
		/* the answer fails */
	} else if (f->name) {
		names[n++] = f->name;
	} else {
		json_array_foreach(f->tools, i, tool)
		{
			names[n++] = json_string_value(json_object_get(chat_tool_function(tool), "name"));
		}
	}
	f->properties = f->required = NULL;
	set_names(f, names, n);
	buf_clear(&f->used);
	buf_putc(&f->used, 0);
}

/* The text that comes now follows the schema. */
static void run_begin(struct constraint *f, const struct schema *schema)
{
	f->run = grammar_run_new(schema_grammar(schema), f->options.tokens);
	if (f->run)
		grammar_run_set_cancel(f->run, f->options.cancel);
}

void constraint_init(
	struct constraint *f, const struct tokenizer *t, const struct constraint_options *o)
{
	bool required = o->choice == TOOL_CHOICE_REQUIRED;
	int behind = required ? OPEN : o->answer ? ANSWER : FREE;
	*f = (struct constraint){
		.options = *o,
		.choice = json_array_size(o->tools) ? o->choice : TOOL_CHOICE_NONE,
		.state = o->in_reasoning && behind != FREE ? THINK : behind,
		.behind_think = behind,
		.tokenizer = t,
		.tools = o->tools,
		.name = o->choice_name,
		.end_think = tokenizer_find_added(t, "</think>"),
		.call = tokenizer_find_added(t, "<tool_call>"),
		.end_call = tokenizer_find_added(t, "</tool_call>"),
		.key = tokenizer_find_added(t, "<arg_key>"),
		.end_key = tokenizer_find_added(t, "</arg_key>"),
		.value = tokenizer_find_added(t, "<arg_value>"),
		.end_value = tokenizer_find_added(t, "</arg_value>"),
		.reasoning = o->in_reasoning,
		.empty = true,
	};
	if (f->state == ANSWER)
		run_begin(f, o->answer);
}

void constraint_fini(struct constraint *f)
{
	free(f->names);
	buf_free(&f->so_far);
	buf_free(&f->used);
	grammar_run_free(f->run);
	*f = (struct constraint){0};
}

/* ---- what may come ---- */

/* names[from..to) begin with so_far. */
struct name_range {
	size_t from, to;
};

static struct name_range names_begun(const struct constraint *f)
{
	const char *so_far = buf_str(&f->so_far);
	struct name_range r = {0, f->n_names};
	for (size_t high = f->n_names; r.from < high;) {
		size_t mid = (r.from + high) / 2;
		if (strncmp(f->names[mid], so_far, f->so_far.len) < 0)
			r.from = mid + 1;
		else
			high = mid;
	}
	for (size_t low = r.from; low < r.to;) {
		size_t mid = (low + r.to) / 2;
		if (strncmp(f->names[mid], so_far, f->so_far.len) <= 0)
			low = mid + 1;
		else
			r.to = mid;
	}
	return r;
}

/* Whether so_far + text begins one of the names of the range. A mask calls this for every token of
 * the vocabulary, hence the binary search. */
static bool begins_name(const struct constraint *f, struct name_range r, const char *text, size_t n)
{
	while (r.from < r.to) {
		size_t mid = (r.from + r.to) / 2;
		int c = strncmp(f->names[mid] + f->so_far.len, text, n);
		if (!c)
			return !memchr(text, 0, n);
		*(c < 0 ? &r.from : &r.to) = c < 0 ? mid + 1 : mid;
	}
	return false;
}

static const char **find_name(const struct constraint *f, const char *name)
{
	return f->n_names ? bsearch(&name, f->names, f->n_names, sizeof *f->names, name_order) : NULL;
}

static bool is_name(const struct constraint *f)
{
	return find_name(f, buf_str(&f->so_far));
}

/* Every required key of the tool has been used. */
static bool all_required(const struct constraint *f)
{
	size_t i;
	json_t *r;
	json_array_foreach(f->required, i, r)
	{
		/* a key that is still among the names was not used */
		if (json_is_string(r) && find_name(f, json_string_value(r)))
			return false;
	}
	return true;
}

static const json_t *find_tool(const struct constraint *f, const char *name)
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
static void call_chosen(const struct constraint *f, bool *keys, bool *end)
{
	const json_t *p = json_object_get(find_tool(f, buf_str(&f->so_far)), "parameters");
	const json_t *properties = json_object_get(p, "properties");
	*keys = json_is_object(properties) ? json_object_size(properties)
									   : !json_is_false(json_object_get(p, "additionalProperties"));
	*end = !json_array_size(json_object_get(p, "required")) || !*keys;
}

/* Whether so_far is a free key of this call already. */
static bool is_used(const struct constraint *f)
{
	struct buf text = {0};
	buf_putc(&text, 0);
	buf_append(&text, f->so_far.data, f->so_far.len);
	buf_putc(&text, 0);
	bool used = f->used.len && memmem(f->used.data, f->used.len, text.data, text.len);
	buf_free(&text);
	return used;
}

/* What holds for all tokens in a state, computed once for a mask. */
struct state_facts {
	bool name_done; /* so_far is a whole name */
	bool keys, end; /* behind the name a key may come, the call may end */
	bool used;      /* so_far is a free key that came before */
	struct name_range begun;
};

static struct state_facts facts_of(const struct constraint *f)
{
	struct state_facts k = {.keys = true, .end = true};
	if (f->state != NAME && f->state != KEY)
		return k;
	k.name_done = is_name(f);
	k.begun = names_begun(f);
	k.used = f->state == KEY && !f->properties && is_used(f);
	if (f->state == NAME && k.name_done)
		call_chosen(f, &k.keys, &k.end);
	return k;
}

/* in reasoning a call would be text */
static bool call_may_open(const struct constraint *f)
{
	return f->choice != TOOL_CHOICE_NONE && !f->reasoning;
}

static bool is_call_tag(const struct constraint *f, int32_t id)
{
	return id >= 0 && (id == f->end_call || id == f->key || id == f->end_key || id == f->value ||
						  id == f->end_value || (id == f->call && !call_may_open(f)));
}

/* Tokens that are no text of the grammar: the end of the turn, of the value, or the call instead.
 */
static bool added_allowed(const struct constraint *f, int32_t id)
{
	if (f->state == VALUE)
		return id == f->end_value && grammar_run_may_end(f->run);
	return (tokenizer_is_stop(f->tokenizer, id) && grammar_run_may_end(f->run)) ||
		   (id == f->call && f->empty && call_may_open(f));
}

static bool token_allowed(const struct constraint *f, int32_t id, struct state_facts k)
{
	const struct tokenizer *t = f->tokenizer;
	struct text_span s = tokenizer_token(t, id);
	bool added = tokenizer_is_added(t, id);
	switch (f->state) {
	case FREE:
		return !is_call_tag(f, id);
	case THINK:
		return !tokenizer_is_stop(t, id) && !is_call_tag(f, id);
	case OPEN:
		return id == f->call;
	case CALLED:
		return id == f->call || tokenizer_is_stop(t, id);
	case NAME:
		if (added)
			return k.name_done && ((id == f->key && k.keys) || (id == f->end_call && k.end));
		return s.len && begins_name(f, k.begun, s.data, s.len);
	case KEY:
		if (!f->properties)
			return added ? id == f->end_key && !f->empty && !k.used : s.len > 0;
		return added ? id == f->end_key && k.name_done
					 : s.len && begins_name(f, k.begun, s.data, s.len);
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

/* The text that comes now follows a schema. */
static bool in_grammar(const struct constraint *f)
{
	return f->run && (f->state == ANSWER || f->state == VALUE);
}

bool constraint_allows(struct constraint *f, int32_t id)
{
	if (!f->tokenizer)
		return true;
	if (!in_grammar(f))
		return token_allowed(f, id, facts_of(f));
	if (tokenizer_is_added(f->tokenizer, id))
		return added_allowed(f, id);
	struct text_span s = tokenizer_token(f->tokenizer, id);
	return s.len && grammar_run_allows(f->run, s.data, s.len);
}

static void mask_by_grammar(struct constraint *f, float *logits, int32_t n_valid)
{
	const uint64_t *mask = grammar_run_mask(f->run);
	if (!mask) /* the answer fails */
		return;
	for (int32_t from = 0; from < n_valid; from += 64) {
		uint64_t bits = mask[from / 64];
		for (int32_t id = from; bits != UINT64_MAX && id < from + 64 && id < n_valid; id++)
			if (!(bits >> (id - from) & 1) &&
				!(tokenizer_is_added(f->tokenizer, id) && added_allowed(f, id)))
				logits[id] = -INFINITY;
	}
}

void constraint_mask(struct constraint *f, float *logits, int32_t n_valid)
{
	if (!f->tokenizer)
		return;
	if (in_grammar(f)) {
		mask_by_grammar(f, logits, n_valid);
		return;
	}
	struct state_facts k = facts_of(f);
	for (int32_t id = 0; id < n_valid; id++)
		if (!token_allowed(f, id, k))
			logits[id] = -INFINITY;
}

bool constraint_complete(const struct constraint *f)
{
	return f->state == ANSWER && f->run && grammar_run_must_end(f->run);
}

/* ---- what came ---- */

/* The tool is known: from now on the names are its keys. */
static void call_choose(struct constraint *f)
{
	const json_t *tool = find_tool(f, buf_str(&f->so_far));
	const json_t *p = json_object_get(tool, "parameters");
	f->tool = json_string_value(json_object_get(tool, "name"));
	f->properties = json_object_get(p, "properties");
	f->required = json_object_get(p, "required");
	if (!json_is_object(f->properties) || !json_object_size(f->properties) ||
		json_object_size(f->properties) > CONSTRAINT_KEYS_MAX)
		f->properties = f->required = NULL;
	const char **keys = NEW_ARRAY(const char *, json_object_size(f->properties) + 1);
	size_t n = 0;
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)f->properties, key, v)
	{
		if (*key && keys)
			keys[n++] = key;
	}
	set_names(f, keys, n);
}

/* The text by a schema is complete. */
static void run_end(struct constraint *f)
{
	grammar_run_free(f->run);
	f->run = NULL;
}

/* The key is complete: its value follows a schema if the tool is strict. */
static void argument_choose(struct constraint *f)
{
	for (size_t i = 0; i < f->options.n_strict; i++) {
		const struct constraint_argument *a = &f->options.strict[i];
		if (f->tool && !strcmp(f->tool, a->tool) && !strcmp(a->key, buf_str(&f->so_far)))
			run_begin(f, a->schema);
		if (f->run)
			return;
	}
}

/* The key in so_far cannot come again. */
static void use_key(struct constraint *f)
{
	const char **used = find_name(f, buf_str(&f->so_far));
	if (used) {
		f->n_names--;
		memmove(used, used + 1, (size_t)(f->names + f->n_names - used) * sizeof *used);
	}
	if (!f->properties) {
		buf_append(&f->used, f->so_far.data, f->so_far.len);
		buf_putc(&f->used, 0);
	}
	buf_clear(&f->so_far);
}

static int state_behind_call(const struct constraint *f)
{
	return f->options.answer ? CALLED : FREE;
}

/* Feeds the grammar. False: it does not take the token. */
static bool run_token(struct constraint *f, int32_t id)
{
	struct text_span s = tokenizer_token(f->tokenizer, id);
	if (f->options.cancel && atomic_load(f->options.cancel))
		return true; /* the mask was left unfinished */
	if (tokenizer_is_added(f->tokenizer, id))
		return added_allowed(f, id);
	return s.len && grammar_run_push(f->run, s.data, s.len);
}

bool constraint_token(struct constraint *f, int32_t id)
{
	if (!f->tokenizer)
		return true;
	if (in_grammar(f) && !run_token(f, id))
		return false;
	struct text_span s = tokenizer_token(f->tokenizer, id);
	if (id == f->end_think)
		f->reasoning = false;
	switch (f->state) {
	case ANSWER:
		if (id == f->call) {
			run_end(f);
			names_begin(f);
			f->state = NAME;
			break;
		}
		f->empty = false;
		break;
	case FREE:
		if (id == f->call && f->choice != TOOL_CHOICE_NONE && !f->reasoning) {
			names_begin(f);
			f->state = NAME;
		}
		break;
	case THINK:
		if (id != f->end_think)
			break;
		f->state = f->behind_think;
		f->empty = true;
		if (f->state == ANSWER)
			run_begin(f, f->options.answer);
		break;
	case OPEN:
		names_begin(f);
		f->state = NAME;
		break;
	case CALLED:
		if (id == f->call) {
			names_begin(f);
			f->state = NAME;
		}
		break;
	case NAME:
	case KEY:
		if (id == f->end_call) {
			f->state = state_behind_call(f);
		} else if (id == f->key) {
			call_choose(f);
			f->state = KEY;
			f->empty = true;
		} else if (id == f->end_key) {
			argument_choose(f);
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
		if (id == f->end_value) {
			run_end(f);
			f->state = AFTER_VALUE;
		}
		break;
	case AFTER_VALUE:
		f->state = id == f->key ? KEY : state_behind_call(f);
		f->empty = true;
		buf_clear(&f->so_far);
		break;
	default:
		break;
	}
	return true;
}
