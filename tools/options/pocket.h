/* SPDX-License-Identifier: MIT */
/* The small model that ships with the program, used when no -m is given. */
#ifndef GLM_TOOLS_POCKET_H
#define GLM_TOOLS_POCKET_H

#include "src/base/err.h"

/* `model` itself when it is not NULL, else the path of the pocket model: $GLMSTREAM_POCKET, then
 * beside the program (in a build tree or an installation). NULL with a sentence in *e when there is
 * none. Static storage, or `model`. */
const char *pocket_or(const char *model, struct err *e);

/* For the option -m of every command. */
#define POCKET_MODEL_HELP "GGUF to open; of a split file the first part"
#define POCKET_FALLBACK   "the pocket model that ships with the program"

#endif
