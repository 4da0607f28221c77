/* SPDX-License-Identifier: MIT */
/*
 * Command lines from a table. A command states its options once (names, kind, range, help, where
 * the value goes) and gets a strict parser and its help text from that. Accepted: `--name value`,
 * `--name=value`, `-n value`, `-nvalue`, several flags behind one dash (`-qv`), `--` (only
 * positional arguments follow). The last of repeated options wins.
 *
 * Numbers are taken whole or refused: no blanks, no trailing text, no hexadecimal, no NaN or
 * infinity, nothing out of range. The name of a file may not be empty. Values are written to the
 * caller's variables in the order of the command line; what is in them before is the default. After
 * an error some may have been written. Strings are not copied: they live as long as argv.
 */
#ifndef GLM_BASE_ARGS_H
#define GLM_BASE_ARGS_H

#include "src/base/buf.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which member of the union in struct arg is meant. */
enum arg_kind {
	ARG_FLAG,    /* flag: set to true (false with .clears); takes no value */
	ARG_STRING,  /* string: any text, also empty */
	ARG_INT,     /* i32 */
	ARG_UINT,    /* u32 */
	ARG_UINT64,  /* u64 */
	ARG_FLOAT,   /* f32 */
	ARG_SIZE_GB, /* u64: bytes, given as a decimal number of 10^9 bytes */
	ARG_CHOICE,  /* i32: one of .words */
};

/* A word with a meaning: the values of ARG_CHOICE; for numbers a word taken besides them ("auto");
 * for ARG_STRING words that a shell offers, without a meaning to the parser; for ARG_READS words
 * that name no file. Ends with word NULL. */
struct arg_word {
	const char *word;
	int64_t value; /* stored in the variable (as its type) */
};

/* What the command does with the file that an ARG_STRING names. */
enum arg_file {
	ARG_NO_FILE,
	ARG_READS,            /* a file, a list of files with commas, or a folder */
	ARG_READS_MODEL,      /* the same of models, whose check values are read as well */
	ARG_WRITES,           /* a file that is made or replaced */
	ARG_WRITES_OR_STDOUT, /* the same; "-" is stdout */
	ARG_UPDATES           /* a file that is read and replaced */
};

struct arg {
	const char *name; /* long name without dashes; NULL when there is only a letter or for a
						 positional argument */
	char letter;      /* short name; 0: none */
	enum arg_kind kind;
	union {
		bool *flag;
		const char **string;
		int *i32;
		uint32_t *u32;
		uint64_t *u64;
		float *f32;
	};
	bool *given;                  /* may be NULL: set to true when the option occurs */
	const struct arg_word *words; /* may be NULL but for ARG_CHOICE */
	double min,
		max; /* inclusive range of a number (of GB for sizes); both 0: all that the type holds */
	enum arg_file file;   /* ARG_STRING only */
	bool above_min;       /* min itself is out of range */
	bool clears;          /* ARG_FLAG: the option sets false */
	bool required;        /* its absence is an error */
	const char *value;    /* placeholder in the help ("N"); for a positional argument its name */
	const char *help;     /* one sentence without full stop; NULL: not shown */
	const char *fallback; /* the default in words, shown in the help; NULL: none */
};

/* A titled part of the option list, so that commands share parts. */
struct arg_group {
	const char *title; /* "Sampling"; NULL: "Options" */
	const struct arg *args;
	size_t n;
};

/* An option of another program that people type here. Ends with name NULL. */
struct arg_habit {
	const char *name; /* without dashes: "ngl" matches -ngl and --ngl */
	const char *hint; /* what to do instead */
};

struct args {
	const char *command; /* "glmstream perplexity": begins usage and example lines */
	const char
		*usage; /* what follows the command in the usage line: "-m MODEL -f TEXT [options]" */
	const char *about;   /* what the command does, a few sentences; lines are filled, '\n' kept */
	const char *see;     /* the command that shows this help, for hints; NULL: "COMMAND --help" */
	const char *example; /* one or more lines, shown as they are; may be NULL */
	const struct arg_group *groups;
	size_t n_groups;
	const struct arg *positional; /* in order; kind, variable, value, required as above */
	size_t n_positional;
	const struct arg_habit *habits; /* hints for unknown options; NULL: none */
};

#define ARGS_HELP 1 /* args_parse: -h or --help was given */

/* Parses argv[1 .. argc). Returns 0, ARGS_HELP (nothing after it was read), or ERR_USAGE with a
 * sentence and, for a mistyped option or word, the nearest one as the hint. */
int args_parse(const struct args *a, int argc, char **argv, struct err *e);

/* Appends usage, description, every option with its help, and the example. */
void args_help(const struct args *a, struct buf *out);

/* One value by the rules of one option, as `/set NAME VALUE` needs it. `label` names the option in
 * errors. */
int args_set(const struct arg *arg, const char *label, const char *text, struct err *e);

/* Is `candidate` near enough to the mistyped `word` to be meant? Smaller is nearer; negative: no.
 */
int args_distance(const char *word, const char *candidate);

#endif
