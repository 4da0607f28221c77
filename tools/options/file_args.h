/* SPDX-License-Identifier: MIT */
/* The files that a command line names (struct arg, `file`), taken together. */
#ifndef GLM_TOOLS_FILE_ARGS_H
#define GLM_TOOLS_FILE_ARGS_H

#include "src/base/args.h"
#include "src/base/err.h"

/* Call once, when the command line has been parsed and before anything is opened. Declares all
 * inputs to out_file.h: of a split GGUF every part, of a folder what belongs to a checkpoint, with
 * ARG_READS_MODEL the file of check values too.
 * ERR_USAGE: two outputs are one file, or "-" names one that cannot go to stdout. */
int file_args_check(const struct args *a, struct err *e);

#endif
