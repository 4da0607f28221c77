/* SPDX-License-Identifier: MIT */
/* What is read is checked like any foreign text: the marks must point at user messages, ids must be
 * in the vocabulary. */
#include "tools/chat/chat_file.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/engine/session/session_file.h"
#include "src/text/chat_json.h"
#include "src/text/json_text.h"
#include "tools/output/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SMALL_BYTES  64000000u  /* such a file is saved after every answer */
#define SAVE_BYTES_S 500000000u /* how fast saving is thought to be before the first one */
#define PATIENCE     10         /* a large file may cost this part of the time that answers took */

/* ---- the note ---- */

static void add_text(json_t *o, const char *key, const struct chat_text *t, bool *bad)
{
	if (t->data && json_object_set_new(o, key, json_stringn(t->data, t->len)))
		*bad = true; /* not UTF-8 */
}

/* Takes `value`, NULL included; *lost: it could not be made or added. */
static void set_member(json_t *o, const char *key, json_t *value, bool *lost)
{
	*lost |= json_object_set_new(o, key, value) != 0;
}

static void append_item(json_t *list, json_t *value, bool *lost)
{
	*lost |= json_array_append_new(list, value) != 0;
}

static json_t *call_json(const struct chat_call *c, bool *bad, bool *lost)
{
	json_t *o = json_object();
	add_text(o, "name", &c->name, bad);
	if (c->arguments)
		set_member(o, "arguments", json_incref(c->arguments), lost);
	return o;
}

static json_t *message_json(const struct chat_message *m, bool *bad, bool *lost)
{
	static const char *const roles[] = {"system", "user", "assistant", "tool"};
	json_t *o = json_object();
	set_member(o, "role", json_string(roles[m->role]), lost);
	add_text(o, "content", &m->content, bad);
	add_text(o, "reasoning_content", &m->reasoning, bad);
	if (m->n_calls) {
		json_t *calls = json_array();
		for (size_t i = 0; i < m->n_calls; i++)
			append_item(calls, call_json(&m->calls[i], bad, lost), lost);
		set_member(o, "tool_calls", calls, lost);
	}
	return o;
}

int chat_note_write(const struct answer *a, struct buf *out, struct err *e)
{
	const struct conversation *c = &a->talk;
	bool bad = false, lost = false;
	json_t *o = json_object(), *messages = json_array(), *marks = json_array(), *ids = json_array();
	set_member(o, "glmstream_chat", json_integer(1), &lost);
	set_member(o, "raw", json_boolean(c->raw), &lost);
	set_member(o, "think", json_string(think_mode_name(a->opts->think)), &lost);
	set_member(o, "turns", json_integer((json_int_t)a->turns), &lost);
	set_member(o, "seed", json_integer((json_int_t)a->opts->seed), &lost);
	for (size_t i = 0; i < c->chat.n_messages; i++)
		append_item(messages, message_json(&c->chat.messages[i], &bad, &lost), &lost);
	for (size_t i = 0; i < c->n_turns; i++)
		append_item(marks, json_integer((json_int_t)c->marks[i]), &lost);
	for (size_t i = 0; i < c->raw_ids.n; i++)
		append_item(ids, json_integer(c->raw_ids.data[i]), &lost);
	set_member(o, "messages", messages, &lost);
	set_member(o, "raw_ids", ids, &lost);
	set_member(o, "marks", marks, &lost);
	if (!lost)
		json_text_dump(o, out);
	json_decref(o);
	if (lost)
		return err_set(e, ERR_MEMORY, "no memory to write down the conversation");
	return bad ? err_set(e, ERR_RUN,
					 "the conversation holds text that is not UTF-8 and cannot be saved")
			   : 0;
}

/* Whole numbers from 0 to `most` of an array; false when it is none, or holds something else. */
static bool get_numbers(const json_t *list, json_int_t most, size_t **out, size_t *n)
{
	size_t i;
	json_t *v;
	if (!json_is_array(list))
		return false;
	*out = NEW_ARRAY(size_t, json_array_size(list) + 1);
	*n = json_array_size(list);
	json_array_foreach(list, i, v)
	{
		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > most)
			return false;
		(*out)[i] = (size_t)json_integer_value(v);
	}
	return true;
}

static bool marks_fit(const struct conversation *c)
{
	for (size_t i = 0; i < c->n_turns; i++) {
		size_t m = c->marks[i];
		if ((i && m <= c->marks[i - 1]) || m >= (c->raw ? c->raw_ids.n : c->chat.n_messages))
			return false;
		if (!c->raw && (c->chat.messages[m].role != CHAT_USER || !c->chat.messages[m].content.data))
			return false;
	}
	return true;
}

/* *c is zeroed. */
static int parse_talk(
	struct conversation *c, const json_t *o, uint32_t n_vocab, const char *name, struct err *e)
{
	size_t *ids = NULL, n_ids = 0;
	c->raw = json_is_true(json_object_get(o, "raw"));
	int rc = chat_json_messages(&c->chat, json_object_get(o, "messages"), e);
	if (rc) {
		err_prefix(e, "%.300s", name);
		return rc;
	}
	if (!get_numbers(json_object_get(o, "raw_ids"), (json_int_t)n_vocab - 1, &ids, &n_ids))
		rc = err_set(
			e, ERR_INPUT, "%.400s: raw_ids: expected a list of token ids below %u", name, n_vocab);
	for (size_t i = 0; i < n_ids && !rc; i++)
		if (token_ids_push(&c->raw_ids, (int32_t)ids[i]))
			rc = err_set(e, ERR_MEMORY, "%.400s: no memory for %zu token ids", name, n_ids);
	free(ids);
	if (!rc && (!get_numbers(json_object_get(o, "marks"), INT32_MAX, &c->marks, &c->n_turns) ||
				   !marks_fit(c)))
		rc = err_set(
			e, ERR_INPUT, "%.400s: marks: expected where the turns begin, in rising order", name);
	return rc;
}

int chat_note_read(struct answer *a, uint32_t n_vocab, const char *text, size_t len,
	const char *name, struct err *e)
{
	struct conversation c = {0};
	int think = 0;
	json_t *o;
	int rc = json_parse(text, len, JSON_TEXT_FLAGS, &o, e);
	if (rc) {
		err_prefix(e, rc == ERR_INPUT ? "%.300s: holds no chat" : "%.300s", name);
		return rc;
	}
	const json_t *version = json_object_get(o, "glmstream_chat"),
				 *mode = json_object_get(o, "think"), *turns = json_object_get(o, "turns"),
				 *seed = json_object_get(o, "seed");
	if (json_integer_value(version) != 1 || !json_is_string(mode) ||
		!think_mode_parse(json_string_value(mode), &think) || !json_is_integer(turns) ||
		!json_is_integer(seed))
		rc = err_set(e, ERR_INPUT, "%.400s: holds no chat of a kind that this program knows", name);
	if (!rc)
		rc = parse_talk(&c, o, n_vocab, name, e);
	if (!rc) {
		conversation_fini(&a->talk);
		a->talk = c;
		c = (struct conversation){0};
		a->turns = (uint64_t)json_integer_value(turns);
		if (!a->opts->seed_given)
			a->opts->seed = (uint64_t)json_integer_value(seed);
		a->opts->think = think;
		conversation_set_think(&a->talk, think);
	}
	conversation_fini(&c);
	json_decref(o);
	return rc;
}

/* ---- files ---- */

/* Zeros when there is none. */
static void read_stat(const char *path, struct stat *st)
{
	if (stat(path, st))
		*st = (struct stat){0};
}

/* Has another program written the chat's file since this one read or wrote it? A file that is gone
 * is nobody's work. */
static bool is_anothers(const struct answer *a)
{
	struct stat now;
	read_stat(a->session_path, &now);
	return now.st_nlink &&
		   (now.st_ino != a->session_seen.st_ino || now.st_size != a->session_seen.st_size ||
			   now.st_mtim.tv_sec != a->session_seen.st_mtim.tv_sec ||
			   now.st_mtim.tv_nsec != a->session_seen.st_mtim.tv_nsec);
}

static void set_path(struct answer *a, const char *path)
{
	char *own = mem_strdup(path); /* may be a->session_path */
	free(a->session_path);
	a->session_path = own;
}

static void say_done(const struct answer *a, const char *path, const char *done,
	const struct session_file_info *i, uint64_t ns)
{
	if (!a->opts->common.quiet)
		fprintf(stderr, "%s: %zu turn%s, %u tokens %s (%.1f MB, %.2f s)\n", ERR_PLAIN(path),
			a->talk.n_turns, a->talk.n_turns == 1 ? "" : "s", i->n, done, (double)i->bytes / 1e6,
			(double)ns * 1e-9);
}

/* How many tokens of the timeline are the conversation's: what was taken back is behind them. */
static int count_own_tokens(struct answer *a, uint32_t *n, struct err *e)
{
	*n = session_length(a->session);
	if (!a->timeline_longer)
		return 0;
	int rc = conversation_prompt(&a->talk, engine_tokenizer(a->engine), &a->prompt, e);
	if (!rc)
		*n = session_common_prefix(a->session, a->prompt.data, (uint32_t)a->prompt.n);
	return rc;
}

/* path NULL: the chat's own file. */
static int save_chat(struct answer *a, const char *path, bool force, bool quiet, struct err *e)
{
	struct buf note = {0};
	struct session_file_info info;
	uint32_t n = 0;
	uint64_t start = clock_ns();
	if (!path && is_anothers(a)) {
		err_set(e, ERR_RUN,
			"%.400s: another program has written this session meanwhile, so this chat is not saved "
			"there",
			a->session_path);
		return err_hint(e, "in the chat, /save FILE goes on in another file");
	}
	path = path ? path : a->session_path;
	int rc = chat_note_write(a, &note, e);
	if (!rc && !(rc = count_own_tokens(a, &n, e)))
		rc = session_file_save(a->session, n, path, force, note.data, note.len, &info, e);
	uint64_t ns = clock_ns() - start;
	buf_free(&note);
	if (rc)
		return rc;
	if (!a->session_path || (strcmp(path, a->session_path) && is_anothers(a)))
		set_path(a, path); /* it goes on there */
	if (!strcmp(path, a->session_path)) {
		read_stat(path, &a->session_seen);
		a->unsaved = false;
		a->save_ns = ns;
		a->saved_at_ns = a->total_ns;
	}
	if (!quiet)
		say_done(a, path, "saved", &info, ns);
	return 0;
}

int chat_file_save(struct answer *a, const char *path, bool force, struct err *e)
{
	return save_chat(
		a, path, force, !path && a->opts->json, e); /* the object stays the last line */
}

int chat_file_load(struct answer *a, const char *path, struct err *e)
{
	struct buf note = {0};
	struct session_file_info info;
	uint64_t start = clock_ns();
	struct stat seen;
	read_stat(path, &seen);
	int rc = session_file_load(a->session, path, &note, &info, e);
	if (!rc && (rc = chat_note_read(
					a, engine_config(a->engine)->n_vocab, buf_str(&note), note.len, path, e)))
		a->timeline_longer = true; /* the session has the tokens of the file, the chat has not */
	buf_free(&note);
	if (rc)
		return rc;
	set_path(a, path);
	a->session_seen = seen;
	a->unsaved = a->timeline_longer = false;
	a->save_ns = 0;
	a->saved_at_ns = a->total_ns;
	say_done(a, path, "read", &info, clock_ns() - start);
	return 0;
}

int chat_file_check(const char *path, struct err *e)
{
	struct out_file probe;
	struct stat st;
	if (!stat(path, &st)) {
		if (S_ISDIR(st.st_mode))
			return err_set(e, ERR_INPUT, "%.400s: is a directory, expected a session file", path);
		return out_file_is_protected(path)
				   ? err_set(e, ERR_INPUT,
						 "%.400s: is write-protected, and the chat is saved there", path)
				   : 0;
	}
	if (errno != ENOENT)
		return err_errno(e, errno, "%.400s", path);
	int rc = out_file_open_private(&probe, path, &out_session, false, e);
	out_file_abort(&probe);
	return rc;
}

int chat_file_open(struct answer *a, const char *path, struct err *e)
{
	const struct run_opts *o = a->opts;
	int rc, think = o->think;
	bool raw = o->raw;
	a->autosave = true;
	if (access(path, F_OK) && errno == ENOENT) {
		if ((rc = chat_file_check(path, e)))
			return rc;
		set_path(a, path);
		log_info("session: %s does not exist yet, this chat is saved there", path);
		return 0;
	}
	if ((rc = chat_file_load(a, path, e)))
		return rc;
	if (raw && !a->talk.raw)
		return err_set(e, ERR_INPUT,
			"%.400s: holds a chat with the model's template, expected a --raw one", path);
	const char *of_template = o->system        ? "--system"
							  : o->think_given ? "--think"
							  : o->json_schema ? "--json-schema"
											   : NULL;
	if (of_template && a->talk.raw)
		return err_set(e, ERR_INPUT, "%.400s: holds a --raw chat, which has no place for %s", path,
			of_template);
	if (o->think_given) {
		a->opts->think = think;
		conversation_set_think(&a->talk, think);
	}
	a->timeline_longer = o->system != NULL; /* by the old system message */
	return o->system ? conversation_set_system(&a->talk, o->system, e) : 0;
}

void chat_file_autosave(struct answer *a)
{
	if (!a->autosave || !a->unsaved)
		return;
	uint64_t bytes = session_file_bytes(a->session, session_length(a->session), 0);
	uint64_t cost = a->save_ns ? a->save_ns : bytes * (1000000000u / SAVE_BYTES_S);
	if (bytes > SMALL_BYTES && a->total_ns - a->saved_at_ns < PATIENCE * cost)
		return;
	struct err e = {0};
	if (save_chat(a, NULL, false, true, &e))
		log_warn("not saved: %s", e.text);
}
