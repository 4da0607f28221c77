/* SPDX-License-Identifier: MIT */
/* What people type who come from llama.cpp and ollama, and what to type here. */
#ifndef GLM_TOOLS_HABITS_H
#define GLM_TOOLS_HABITS_H

#include "src/base/args.h"

/* Options, for struct args. */
extern const struct arg_habit habit_options[];

/* The hint for a word in the place of a command ("pull"); NULL: none. */
const char *habit_command(const char *word);

/* Is this word meant as the name of a model file? It ends in .gguf, or is a file. */
bool habit_is_model(const char *word);

#endif
