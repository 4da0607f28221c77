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

#define GLM_VERSION "0.1.0"

struct command {
	const char *name;
	int (*run)(int argc, char **argv, struct err *e); /* NULL: not part of this build */
	const char *help;                                 /* one line */
	const char
		*parts; /* "record show": what may follow, each with options of its own; NULL: nothing */
};

/* Weak, so that main can list a command before its file is there. */
#define COMMAND(function) int function(int argc, char **argv, struct err *e) __attribute__((weak))
COMMAND(cmd_run);
COMMAND(cmd_inspect);
COMMAND(cmd_convert);
COMMAND(cmd_tokenize);
COMMAND(cmd_render);
COMMAND(cmd_dump_logits);
COMMAND(cmd_compare);
COMMAND(cmd_perplexity);
COMMAND(cmd_trace);
COMMAND(cmd_tune);
COMMAND(cmd_bench);
COMMAND(cmd_synth);
COMMAND(cmd_serve);
#undef COMMAND

#endif
