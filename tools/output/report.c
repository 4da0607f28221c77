/* SPDX-License-Identifier: MIT */
/* The only place that prints errors. */
#include "tools/output/report.h"

#include "src/ranks/ranks.h"
#include "tools/options/file_args.h"
#include "tools/options/habits.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void report_error(const struct err *e)
{
	fflush(stdout); /* the answer so far comes first */
	if (e->text[0])
		fprintf(stderr, "glmstream: %s\n", e->text);
	if (e->text[0] && e->hint[0])
		fprintf(stderr, "hint: %s\n", e->hint);
}

void report_notes(struct buf *notes)
{
	for (char *at = notes->data; notes->len && *at;) {
		char *end = strchrnul(at, '\n'), *next = end + (*end != 0);
		*end = 0;
		err_plain(at);
		fprintf(stderr, "%s\n", at);
		at = next;
	}
	buf_clear(notes);
}

static void (*describe)(void *user, const struct args *a); /* the main thread's */
static void *describe_user;

void report_describe(void (*sink)(void *user, const struct args *a), void *user)
{
	describe = sink;
	describe_user = user;
}

bool report_describing(void)
{
	return describe != NULL;
}

int report_parse(const struct args *a, int argc, char **argv, struct err *e)
{
	struct args with_habits = *a;
	with_habits.habits = habit_options;
	int rc = args_parse(&with_habits, argc, argv, e);
	if (rc == ARGS_HELP && describe) {
		describe(describe_user, a);
	} else if (rc == ARGS_HELP) {
		struct buf text = {0};
		args_help(a, &text);
		fwrite(text.data, 1, text.len, stdout);
		buf_free(&text);
	}
	return rc ? rc : file_args_check(a, e);
}

bool report_reader_gone(void)
{
	struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
	return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

int report_stdout(struct err *e)
{
	errno = 0;
	bool lost = ferror(stdout);
	if (fflush(stdout) || lost) {
		if (report_reader_gone())
			return err_set(e, ERR_RUN, "%s", "");
		/* An earlier failed write has left no errno behind; say at least that it happened. */
		if (errno)
			err_set(e, ERR_RUN, "standard output: %s", strerror(errno));
		else
			err_set(e, ERR_RUN, "standard output: not everything could be written");
		return ERR_RUN;
	}
	return 0;
}

int report_end(int rc, struct err *e)
{
	struct err lost = {0};
	struct ranks *r = ranks_here();
	const bool is_worker = ranks_is_worker();
	bool abrupt = false;
	int out = report_stdout(&lost);
	if (!rc && out) {
		*e = lost;
		rc = out;
	}
	/* Before the ranks end: when the first one has exited, mpirun may end rank 0. A loss is printed
	 * below, since the thread of the heartbeats may be about to print it. */
	const bool printed = r && rc && rc != ERR_INTERRUPTED && !is_worker && !ranks_check(r, NULL);
	if (printed)
		report_error(e);
	rc = ranks_close(r, rc, &abrupt, e);
	struct err loss = {0};
	/* An error that the ranks agreed on is printed by rank 0. One that ends this rank alone is
	 * printed here: rank 0 may be loading, and mpirun ends it before it could print anything. */
	const bool is_loss = abrupt && ranks_check(r, &loss) && !strcmp(loss.text, e->text);
	const bool prints =
		!is_worker || is_loss || (abrupt && !ranks_is_orderly(r) && !ranks_error_is_known(r, e));
	if (is_worker && prints)
		err_prefix(e, "%s", ranks_name(r, ranks_me(r)));
	if (rc && prints && !printed)
		report_error(e);
	if (abrupt) {
		fflush(NULL);
		_exit(err_exit_status(rc));
	}
	return err_exit_status(rc);
}
