/* SPDX-License-Identifier: MIT */
/* `glmstream` without a command: one answer (-p, -f), one answer per line of a pipe, or a chat. */
#include "tools/answer.h"
#include "tools/cmd_chat.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/text_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int run_file(struct answer *a, const char *path, struct err *e)
{
	size_t n;
	char *text;
	int rc = text_input_read(strcmp(path, "-") ? path : NULL, &text, &n, e);
	if (rc)
		return rc;
	n -= n && text[n - 1] == '\n'; /* the line feed that editors add */
	rc = answer_turn(a, text, n, strcmp(path, "-") ? path : "standard input", e);
	free(text);
	return rc;
}

/* Every line that is not blank is a turn of one conversation. */
static int run_lines(struct answer *a, struct err *e)
{
	char *line = NULL;
	size_t cap = 0;
	uint64_t number = 0;
	int rc = 0;
	while (!rc) {
		errno = 0;
		ssize_t got = getline(&line, &cap, stdin);
		if (got < 0) {
			if (atomic_load(interrupt_flag()))
				rc = err_set(e, ERR_INTERRUPTED, "%s", "");
			else if (ferror(stdin))
				rc = err_errno(e, errno, "standard input");
			break;
		}
		number++;
		size_t n = (size_t)got;
		while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
			n--;
		size_t blanks = 0;
		while (blanks < n && (line[blanks] == ' ' || line[blanks] == '\t'))
			blanks++;
		if (blanks == n)
			continue;
		char what[64];
		snprintf(what, sizeof what, "standard input, line %llu", (unsigned long long)number);
		rc = answer_turn(a, line, n, what, e);
	}
	free(line);
	return rc;
}

int cmd_run(int argc, char **argv, struct err *e)
{
	struct run_opts opts;
	struct answer a = {0};
	int rc = run_opts_parse(&opts, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	bool chat = !opts.prompt && !opts.file && isatty(STDIN_FILENO);
	rc = answer_open(&a, &opts, e);
	if (!rc) {
		interrupt_catch(chat); /* not before: Ctrl+C while a large model loads ends the program */
		if (opts.prompt)
			rc = answer_turn(&a, opts.prompt, strlen(opts.prompt), "-p", e);
		else if (opts.file)
			rc = run_file(&a, opts.file, e);
		else if (chat)
			rc = chat_loop(&a, e);
		else
			rc = run_lines(&a, e);
	}
	return answer_close(&a, rc, e);
}
