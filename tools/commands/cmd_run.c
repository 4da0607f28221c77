/* SPDX-License-Identifier: MIT */
/* `glmstream` without a command: one answer (-p, -f), one answer per line of a pipe, or a chat. */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/ranks/ranks.h"
#include "tools/chat/answer.h"
#include "tools/chat/cmd_chat.h"
#include "tools/commands/commands.h"
#include "tools/output/interrupt.h"
#include "tools/options/text_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The one prompt of -p or -f, read and checked before a large model is opened for it. */
struct given_prompt {
	char *text;
	size_t len;
	const char *what; /* for errors */
};

static int read_prompt(const struct run_opts *o, struct given_prompt *p, struct err *e)
{
	int rc = 0;
	if (o->prompt) {
		*p = (struct given_prompt){mem_strdup(o->prompt), strlen(o->prompt), "-p"};
	} else {
		bool is_stdin = !strcmp(o->file, "-");
		p->what = is_stdin ? "standard input" : o->file;
		if ((rc = text_input_read(is_stdin ? NULL : o->file, &p->text, &p->len, e)))
			return rc;
		p->len -= p->len && p->text[p->len - 1] == '\n'; /* the line feed that editors add */
	}
	return conversation_check(p->text, p->len, p->what, e);
}

/* What was not answered is said: else a pipe that ends early looks like one that was short. */
static void say_unanswered(struct text_lines *lines, struct err *e)
{
	bool all;
	uint64_t n = text_lines_rest(lines, &all);
	size_t len = strlen(e->text);
	if (n)
		snprintf(e->text + len, sizeof e->text - len, "; %s%llu more line%s not answered",
			all ? "" : "at least ", (unsigned long long)n, n == 1 ? " is" : "s are");
}

/* Every line that is not blank is a turn of one conversation. */
static int run_lines(struct answer *a, struct err *e)
{
	struct buf line = {0};
	struct text_lines lines = {0};
	bool warned = false;
	int rc;
	while ((rc = text_lines_next(&lines, &line, e)) > 0) {
		size_t n = line.len;
		while (n && line.data[n - 1] == '\r')
			n--;
		size_t blanks = 0;
		while (blanks < n && (line.data[blanks] == ' ' || line.data[blanks] == '\t'))
			blanks++;
		if (blanks == n)
			continue;
		line.data[n] = 0;
		char what[64];
		snprintf(what, sizeof what, "standard input, line %llu", (unsigned long long)lines.number);
		if (!warned && chat_is_command(line.data)) {
			log_warn(
				"%s: \"%.40s\" is sent to the model: commands work in a chat on a terminal only",
				what, line.data);
			warned = true;
		}
		if ((rc = answer_turn(a, line.data, n, what, e))) {
			if (rc != ERR_INTERRUPTED && e->text[0]) {
				if (strncmp(e->text, what, strlen(what)))
					err_prefix(e, "%s", what);
				say_unanswered(&lines, e);
			}
			break;
		}
	}
	if (rc == -EINTR && atomic_load(interrupt_flag()))
		rc = err_set(e, ERR_INTERRUPTED, "%s", "");
	text_lines_fini(&lines);
	buf_free(&line);
	return rc;
}

int cmd_run(int argc, char **argv, struct err *e)
{
	struct run_opts opts;
	struct answer a = {0};
	int rc = run_opts_parse(&opts, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	bool one = opts.prompt || opts.file, chat = !one && isatty(STDIN_FILENO);
	struct given_prompt prompt = {0};
	opts.common.no_summary = chat; /* which greets in its own words */
	if (one && !ranks_is_worker() && (rc = read_prompt(&opts, &prompt, e)))
		goto out;
	profile_opts_apply(&opts.profile, &opts.common);
	if (chat)
		sandbox_opts_any_file(&opts.sandbox, &opts.common);
	else
		sandbox_opts_files(
			&opts.sandbox, &opts.common, &opts.prefix, opts.session, opts.json_schema, -1);
	if ((rc = answer_open(&a, &opts, e)))
		goto out;
	sandbox_opts_calls(&opts.sandbox, false);
	interrupt_catch(chat); /* not before: Ctrl+C while a large model loads ends the program */
	if (one)
		rc = answer_turn(&a, prompt.text, prompt.len, prompt.what, e);
	else if (chat)
		rc = chat_loop(&a, e);
	else
		rc = run_lines(&a, e);
out:
	free(prompt.text);
	rc = answer_close(&a, rc, e);
	free(opts.profile.folder);
	return rc;
}
