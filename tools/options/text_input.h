/* SPDX-License-Identifier: MIT */
/* Whole inputs of the text commands, and the tokenizer of a model. */
#ifndef GLM_TOOLS_TEXT_INPUT_H
#define GLM_TOOLS_TEXT_INPUT_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* More is no text that anybody wants computed: /dev/zero, or a file named by mistake. */
#define TEXT_INPUT_MOST (1u << 30)

/* The lines of stdin. Zero-initialise; text_lines_fini releases. Nothing else may read stdin. */
struct text_lines {
	struct buf ahead; /* what was read; the next line begins at `from` */
	size_t from;
	uint64_t number; /* of the line that was given last, from 1 */
	bool ended;
};

/* One line without its line feed into `line`. 1: a line, 0: the end, else a code with a sentence; a
 * signal ends the reading as an error of errno EINTR. */
int text_lines_next(struct text_lines *t, struct buf *line, struct err *e);

/* Counts and discards the lines that have arrived and are not blank. Never waits. Stops after about
 * 4 MiB: the count is then a lower bound. *all: the input has ended, so these are all. */
uint64_t text_lines_rest(struct text_lines *t, bool *all);
void text_lines_fini(struct text_lines *t);

/* All bytes of a file, or of stdin when path is NULL. *out is the caller's (free), with a 0 behind
 * the last byte. */
int text_input_read(const char *path, char **out, size_t *len, struct err *e);

/* The tokenizer of a GGUF, or of a tokenizer.json when the name ends in .json; NULL: of the pocket
 * model. */
int text_input_tokenizer(const char *model, struct tokenizer **out, struct err *e);

/* Whitespace-separated decimal token ids; ERR_INPUT names the first word that is none. Appends. */
int text_input_ids(
	const char *text, size_t len, const char *name, struct token_ids *out, struct err *e);

/* The ids on one line of stdout. */
void text_output_ids(const struct token_ids *ids);

#endif
