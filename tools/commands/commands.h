/* SPDX-License-Identifier: MIT */
/*
 * The commands of glmstream, one file cmd_NAME.c each. A command gets its own argv (argv[0] is its
 * name), and returns 0 or a negative code with the sentence in *e; main prints it and turns it into
 * the exit status. Answers go to stdout through stdio (main checks at the end that all of it was
 * written), everything else to stderr.
 *
 * The shape of a command:
 *     int cmd_thing(int argc, char **argv, struct err *e)
 *     {
 *         const struct arg options[] = { ... };
 *         const struct args args = { .command = "glmstream thing", ... };
 *         int rc = report_parse(&args, argc, argv, e);
 *         if (rc)
 *             return rc == ARGS_HELP ? 0 : rc;
 *         ...
 *     }
 */
#ifndef GLM_TOOLS_COMMANDS_H
#define GLM_TOOLS_COMMANDS_H

#include "src/base/err.h"
#include "src/base/version.h"

#include <stdbool.h>

struct command {
	const char *name;
	int (*run)(int argc, char **argv, struct err *e);
	const char *help;  /* one line */
	const char *parts; /* "record show": subcommands, each with its own options; NULL: none */
	bool ranks;        /* mpirun may start it in several processes */
};

/* All commands of this build, in the order of the help. Ends with name NULL. */
extern const struct command commands[];

int cmd_run(int argc, char **argv, struct err *e);
int cmd_plan(int argc, char **argv, struct err *e);
int cmd_inspect(int argc, char **argv, struct err *e);
int cmd_convert(int argc, char **argv, struct err *e);
int cmd_export(int argc, char **argv, struct err *e);
int cmd_verify(int argc, char **argv, struct err *e);
int cmd_tokenize(int argc, char **argv, struct err *e);
int cmd_render(int argc, char **argv, struct err *e);
int cmd_dump_logits(int argc, char **argv, struct err *e);
int cmd_compare(int argc, char **argv, struct err *e);
int cmd_imatrix(int argc, char **argv, struct err *e);
int cmd_perplexity(int argc, char **argv, struct err *e);
int cmd_trace(int argc, char **argv, struct err *e);
int cmd_tune(int argc, char **argv, struct err *e);
int cmd_bench(int argc, char **argv, struct err *e);
int cmd_synth(int argc, char **argv, struct err *e);
int cmd_serve(int argc, char **argv, struct err *e); /* with libmicrohttpd only */

#endif
