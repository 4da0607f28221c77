/* SPDX-License-Identifier: MIT */
/* What ships with the program: the small model that is used without -m, and a routing trace. */
#ifndef GLM_TOOLS_POCKET_H
#define GLM_TOOLS_POCKET_H

#include "src/base/args.h"
#include "src/base/err.h"

/* `model` itself when it is not NULL, else the path of the pocket model: $GLMSTREAM_POCKET, then
 * beside the program (in a build tree or an installation). NULL with a sentence in *e when there is
 * none. Static storage, or `model`. */
const char *pocket_or(const char *model, struct err *e);

/* For the option -m of every command. */
#define POCKET_MODEL_HELP "GGUF to open, of a split file the first part; or a checkpoint's folder"
#define POCKET_FALLBACK   "the pocket model that ships with the program"

/* `trace` itself unless it is NULL or POCKET_TRACE, else the path of the shipped routing trace:
 * $GLMSTREAM_ROUTING, then beside the program. It has 12 of the 75 layers of a synthetic trace of
 * GLM-5.2's shape (tests/data/NOTICE.md). NULL with a sentence in *e when there is none. Static
 * storage, or `trace`. */
#define POCKET_TRACE "shipped"
const char *pocket_trace_or(const char *trace, struct err *e);

/* For options and arguments that pocket_trace_or takes: what names no file. */
extern const struct arg_word pocket_trace_words[];

#endif
