/* SPDX-License-Identifier: MIT */
/* The REPL. An error ends a turn, not the chat. Everything but answers goes to stderr. */
#include "tools/chat/cmd_chat.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"
#include "tools/chat/chat_complete.h"
#include "tools/chat/chat_file.h"
#include "tools/chat/cache_view.h"
#include "tools/output/interrupt.h"
#include "tools/chat/line_edit.h"
#include "tools/output/report.h"
#include "tools/output/terminal.h"
#include "tools/options/text_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* What a command tells the loop. */
enum outcome { GO_ON, LEAVE };

struct repl_command {
	const char *name, *argument, *help;
	enum outcome (*run)(struct answer *a, const char *argument);
};

/* Says a turn and reports how it ended. */
static void turn(struct answer *a, const char *text, size_t len, const char *what)
{
	struct err e = {0};
	interrupt_taken(); /* a Ctrl+C of before is not meant for this answer */
	int rc = answer_turn(a, text, len, what, &e);
	if (rc == ERR_INTERRUPTED)
		fprintf(stderr, a->view.wrote || a->view.reasoning.len
							? "(stopped)\n"
							: "(stopped before the answer; the message is taken back)\n");
	else if (rc &&
			 !gguf_check_lost_now(engine_gguf(a->engine), NULL)) { /* else chat_loop reports it */
		if (a->prompt.n > engine_context(a->engine))
			err_hint(&e, "/undo takes back the last message and its answer, /reset begins a new "
						 "conversation; -c at the start makes the context larger");
		report_error(&e);
	}
	clearerr(stdout);
}

static enum outcome do_help(struct answer *a, const char *argument);

static enum outcome do_stats(struct answer *a, const char *argument)
{
	(void)argument;
	if (!a->has_stats) {
		fprintf(stderr, "no answer yet\n");
		return GO_ON;
	}
	stats_print(stderr, &a->stats, false, true);
	fprintf(stderr, "in all: %llu prompt and %llu new tokens in %.1f s; context %u of %u\n",
		(unsigned long long)a->total_prompt, (unsigned long long)a->total_new,
		(double)a->total_ns * 1e-9, session_length(a->session), engine_context(a->engine));
	stats_print_experts(stderr, engine_expert_stats(a->engine));
	if (a->drafter) {
		const struct draft_stats drafts = drafter_stats(a->drafter);
		fprintf(stderr, drafts.steps ? "drafts in all: " : "drafts in all: none");
		stats_print_drafts(stderr, &drafts);
		fprintf(stderr, "\n");
	}
	struct engine_sizes z = engine_sizes(a->engine);
	fprintf(stderr,
		"memory: %.3f GB resident weights, %.3f GB caches, %.3f GB workspace; a token uses %.3f GB "
		"of them and %.3f GB of experts\n",
		(double)z.resident_bytes * 1e-9, (double)z.kv_bytes * 1e-9,
		(double)z.workspace_bytes * 1e-9, (double)z.resident_per_token * 1e-9,
		(double)z.experts_per_token * 1e-9);
	struct buf b = {0};
	run_opts_show(a->opts, &b);
	fprintf(stderr, "sampling: %s; backend %s, experts by %s\n", buf_str(&b),
		engine_backend_name(a->engine), engine_io_name(a->engine));
	buf_free(&b);
	return GO_ON;
}

static enum outcome do_cache(struct answer *a, const char *argument)
{
	(void)argument;
	cache_view_print(stderr, a->engine, terminal_columns(STDERR_FILENO), a->view.err_colours);
	return GO_ON;
}

static enum outcome do_reset(struct answer *a, const char *argument)
{
	(void)argument;
	a->unsaved |= a->talk.n_turns > 0;
	conversation_reset(&a->talk);
	a->timeline_longer = true;
	fprintf(stderr, "a new conversation%s\n",
		conversation_system(&a->talk) ? "; the system message stays" : "");
	return GO_ON;
}

static enum outcome do_undo(struct answer *a, const char *argument)
{
	(void)argument;
	const char *last = conversation_last_user(&a->talk);
	size_t len = last ? strlen(last) : 0, shown = len > 60 ? utf8_valid_prefix(last, 60) : len;
	if (last) {
		char text[64], *rest = text;
		snprintf(text, sizeof text, "%.*s", (int)shown, last);
		fprintf(stderr, "taken back: ");
		for (char *line; (line = strsep(&rest, "\n"));)
			fprintf(stderr, "%s%s", ERR_PLAIN(line), rest ? "\n" : shown < len ? "...\n" : "\n");
	}
	if (!conversation_undo(&a->talk)) {
		fprintf(stderr, "there is nothing to take back\n");
		return GO_ON;
	}
	a->unsaved = a->timeline_longer = true;
	if (!last)
		fprintf(stderr, "taken back\n");
	return GO_ON;
}

/* path "": the file that the chat came from. */
static void save(struct answer *a, const char *path, bool force)
{
	struct err e = {0};
	if (!*path && !a->session_path) {
		fprintf(stderr, "usage: /save FILE\n");
	} else if (chat_file_save(a, *path ? path : NULL, force, &e)) {
		if (strstr(e.hint, "--force"))
			err_hint(&e, "/save! %.400s replaces it", *path ? path : a->session_path);
		report_error(&e);
	}
}

/* Also takes --force, before or after FILE. */
static enum outcome do_save(struct answer *a, const char *argument)
{
	static const char force[] = "--force";
	const size_t len = strlen(argument), n = strlen(force);
	const bool before = !strncmp(argument, force, n) && strchr(" \t", argument[n]);
	const bool behind =
		len > n && !strcmp(argument + len - n, force) && strchr(" \t", argument[len - n - 1]);
	const char *from = before ? argument + n + strspn(argument + n, " \t") : argument;
	size_t end = len - (size_t)(from - argument) - (behind ? n : 0);
	while (end && strchr(" \t", from[end - 1]))
		end--;
	char *path = mem_strndup(from, end);
	save(a, path, before || behind);
	free(path);
	return GO_ON;
}

static enum outcome do_save_over(struct answer *a, const char *argument)
{
	save(a, argument, true);
	return GO_ON;
}

/* The last message and its answer, so that one knows where a chat that was read stands. */
static void show_last_turn(struct answer *a)
{
	const struct chat *c = &a->talk.chat;
	const char *user = conversation_last_user(&a->talk);
	if (!user)
		return;
	fputs("> ", stderr);
	chat_view_quote(&a->view, user, strlen(user));
	fputc('\n', stderr);
	for (size_t i = a->talk.marks[a->talk.n_turns - 1] + 1; i < c->n_messages; i++) {
		const struct chat_message *m = &c->messages[i];
		if (m->content.len) {
			chat_view_quote(&a->view, m->content.data, m->content.len);
			fputc('\n', stderr);
		}
		for (size_t k = 0; k < m->n_calls; k++) {
			struct buf arguments = {0};
			json_text_dump(m->calls[k].arguments, &arguments);
			fprintf(stderr, "call ");
			chat_view_quote(&a->view, m->calls[k].name.data, m->calls[k].name.len);
			fputc(' ', stderr);
			chat_view_quote(&a->view, buf_str(&arguments), arguments.len);
			fputc('\n', stderr);
			buf_free(&arguments);
		}
	}
}

static enum outcome do_load(struct answer *a, const char *argument)
{
	struct err e = {0};
	if (!*argument)
		fprintf(stderr, "usage: /load FILE\n");
	else if ((a->autosave && a->unsaved && chat_file_save(a, NULL, false, &e)) ||
			 chat_file_load(a, argument, &e))
		report_error(&e);
	else if (!a->opts->common.quiet)
		show_last_turn(a);
	return GO_ON;
}

static enum outcome do_system(struct answer *a, const char *argument)
{
	struct err e = {0};
	const char *now = conversation_system(&a->talk);
	bool clear = !strcmp(argument, "clear");
	if (a->talk.raw) {
		fprintf(stderr, "--raw has no system message\n");
	} else if (!*argument) {
		fprintf(stderr, now ? "system message: " : "no system message");
		if (now)
			chat_view_quote(&a->view, now, strlen(now));
		fputc('\n', stderr);
	} else if (conversation_set_system(&a->talk, clear ? NULL : argument, &e)) {
		report_error(&e);
	} else {
		fprintf(stderr, clear ? "system message removed\n" : "system message set\n");
		a->unsaved |= a->talk.n_turns > 0;
		a->timeline_longer = true; /* by the old message */
	}
	return GO_ON;
}

static enum outcome do_think(struct answer *a, const char *argument)
{
	int mode = a->opts->think;
	if (a->talk.raw)
		fprintf(stderr, "--raw knows no reasoning\n");
	else if (*argument && !think_mode_parse(argument, &mode))
		fprintf(stderr, "/think takes max, high or off\n");
	else {
		a->opts->think = mode;
		conversation_set_think(&a->talk, mode);
		a->unsaved |= a->talk.n_turns > 0;
		fprintf(stderr, "reasoning: %s\n", think_mode_name(mode));
	}
	return GO_ON;
}

static enum outcome do_set(struct answer *a, const char *argument)
{
	struct err e = {0};
	char name[32];
	size_t n = strcspn(argument, " \t=");
	const char *value = argument + n + strspn(argument + n, " \t=");
	snprintf(name, sizeof name, "%.*s", (int)MIN(n, sizeof name - 1), argument);
	if (n && !*value)
		fprintf(stderr, "usage: /set NAME VALUE\n");
	else if (n && run_opts_set(a->opts, name, value, &e))
		report_error(&e);
	struct buf b = {0};
	run_opts_show(a->opts, &b);
	fprintf(stderr, "%s\n", buf_str(&b));
	buf_free(&b);
	return GO_ON;
}

static enum outcome do_read(struct answer *a, const char *argument)
{
	struct err e = {0};
	size_t n;
	if (!*argument) {
		fprintf(stderr, "usage: /read FILE\n");
		return GO_ON;
	}
	char *text;
	if (text_input_read(argument, &text, &n, &e)) {
		report_error(&e);
		return GO_ON;
	}
	n -= n && text[n - 1] == '\n';
	fprintf(stderr, "%s: %zu bytes\n", ERR_PLAIN(argument), n);
	turn(a, text, n, argument);
	free(text);
	return GO_ON;
}

static enum outcome do_quit(struct answer *a, const char *argument)
{
	(void)a;
	(void)argument;
	return LEAVE;
}

static const struct repl_command repl_commands[] = {
	{"/help", "", "this list", do_help},
	{"/stats", "", "figures of the last answer and of all", do_stats},
	{"/cache", "", "where the experts are now, layer by layer", do_cache},
	{"/reset", "", "begin a new conversation", do_reset},
	{"/undo", "", "forget the last message and its answer", do_undo},
	{"/system", "TEXT|clear", "set or remove the system message; alone it shows it", do_system},
	{"/think", "max|high|off", "how much the model reasons", do_think},
	{"/save", "FILE", "write the chat to a file; without FILE to the one it came from", do_save},
	{"/save!", "FILE",
		"the same, and replaces a file that is no session; so does /save --force FILE",
		do_save_over},
	{"/load", "FILE", "go on with the chat in a file", do_load},
	{"/set", "NAME VALUE", "set temp, seed, n or another option of sampling; alone it shows all",
		do_set},
	{"/read", "FILE", "send the text of a file", do_read},
	{"/quit", "", "leave; so do /exit and Ctrl+D", do_quit},
};

static enum outcome do_help(struct answer *a, const char *argument)
{
	(void)a;
	(void)argument;
	for (size_t i = 0; i < ARRAY_LEN(repl_commands); i++) {
		char left[40];
		snprintf(left, sizeof left, "%s %s", repl_commands[i].name, repl_commands[i].argument);
		fprintf(stderr, "  %-22s %s\n", left, repl_commands[i].help);
	}
	fprintf(stderr, "  Ctrl+C stops an answer; \\ at the end of a line continues it on the next\n");
	return GO_ON;
}

static enum outcome command(struct answer *a, char *line)
{
	size_t end = strlen(line);
	while (end && (line[end - 1] == ' ' || line[end - 1] == '\t'))
		line[--end] = 0;
	size_t n = strcspn(line, " \t");
	const char *argument = line + n + strspn(line + n, " \t");
	const char *best = NULL;
	int best_distance = 1 << 30;
	for (size_t i = 0; i < ARRAY_LEN(repl_commands); i++) {
		const struct repl_command *c = &repl_commands[i];
		if (strlen(c->name) == n && !strncmp(c->name, line, n)) {
			if (*argument && !*c->argument) {
				fprintf(stderr, "%s takes no argument\n", c->name);
				return GO_ON;
			}
			return c->run(a, argument);
		}
		char word[64];
		snprintf(word, sizeof word, "%.*s", (int)MIN(n, sizeof word - 1), line);
		int d = args_distance(word, c->name);
		if (d >= 0 && d < best_distance) {
			best_distance = d;
			best = c->name;
		}
	}
	if (n == 5 && !strncasecmp(line, "/exit", 5)) {
		if (!*argument)
			return LEAVE;
		fprintf(stderr, "/exit takes no argument\n");
		return GO_ON;
	}
	fprintf(stderr, "unknown command %.*s; %s%s\n", (int)MIN(n, (size_t)40), line,
		best ? "did you mean " : "/help lists them", best ? best : "");
	if (strchr(line + 1, '/'))
		fprintf(stderr, "a message that begins with / is sent with a blank before it\n");
	return GO_ON;
}

/* Three lines: what this is, what to type, how to go on from there. */
static void say_hello(const struct answer *a)
{
	char summary[512];
	engine_summary(a->engine, summary, sizeof summary);
	if (a->opts->common.model)
		fprintf(stderr, "%s\n", summary);
	else
		fprintf(stderr, "The small model that comes with glmstream: it defines words, tells short "
						"stories and calls tools.\n");
	fprintf(stderr, "Type a message and press Return. For example: Define river.\n"
					"/help lists the commands, Ctrl+C stops an answer, Ctrl+D leaves.\n");
}

int chat_loop(struct answer *a, struct err *e)
{
	char *history = line_edit_history_path();
	struct line_edit *editor = line_edit_new(history);
	struct buf line = {0};
	free(history);
	int rc = 0;
	line_edit_completes_with(editor, chat_complete);
	a->in_chat = true;
	if (!a->opts->common.quiet) {
		say_hello(a);
		show_last_turn(a);
	}
	for (;;) {
		interrupt_taken();
		enum line_edit_result r = line_edit_read(editor, "> ", &line);
		if (r == LINE_EDIT_END || interrupt_ending())
			break;
		if (r == LINE_EDIT_INTERRUPTED || !line.len)
			continue;
		const char *text = buf_str(&line);
		if (!text[strspn(text, " \t\n")])
			continue;
		line_edit_hide_typing(editor, true);
		enum outcome outcome = GO_ON;
		if (text[0] == '/')
			outcome = command(a, line.data);
		else
			turn(a, text, line.len, "the message");
		line_edit_hide_typing(editor, false);
		/* with a part of the model gone no later turn can be right */
		if (outcome == LEAVE || (rc = gguf_check_lost_now(engine_gguf(a->engine), e)))
			break;
	}
	buf_free(&line);
	line_edit_free(editor);
	return rc;
}

bool chat_is_command(const char *line)
{
	size_t n = strcspn(line, " \t");
	bool alone = !line[n + strspn(line + n, " \t")];
	for (size_t i = 0; i < ARRAY_LEN(repl_commands); i++)
		if (strlen(repl_commands[i].name) == n && !strncmp(repl_commands[i].name, line, n) &&
			(alone || *repl_commands[i].argument))
			return true;
	return alone && n == 5 && !strncasecmp(line, "/exit", 5);
}

bool chat_command(size_t i, const char *text[3])
{
	if (i >= ARRAY_LEN(repl_commands))
		return false;
	text[0] = repl_commands[i].name;
	text[1] = repl_commands[i].argument;
	text[2] = repl_commands[i].help;
	return true;
}
