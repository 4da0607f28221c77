/* SPDX-License-Identifier: MIT */
/*
 * Lines from a person. On a terminal, with libedit: editing keys, history (kept in a file), pasting
 * of several lines as one; everything is shown on stderr. Otherwise: plain lines. A `\` at the end
 * of a line continues it with the next.
 */
#ifndef GLM_TOOLS_LINE_EDIT_H
#define GLM_TOOLS_LINE_EDIT_H

#include "src/base/buf.h"

#include <stdbool.h>

struct line_edit;

enum line_edit_result {
	LINE_EDIT_LINE, /* *out holds the text, continuation lines joined by line feeds, no final one */
	LINE_EDIT_END,  /* Ctrl+D, end of file, or a signal asks the program to end */
	LINE_EDIT_INTERRUPTED, /* Ctrl+C: the line was thrown away */
};

/* `history_file` may be NULL: none is kept. Its folder is made. Reads stdin. */
struct line_edit *line_edit_new(const char *history_file);
void line_edit_free(struct line_edit *l); /* restores the terminal; NULL is fine */

/* Called when Tab is pressed, with the text before the cursor: sets *start to where its last word
 * begins, and appends to `words` the whole words that it may become, each with a 0 behind it. */
typedef void line_edit_complete(const char *before, size_t *start, struct buf *words);
void line_edit_completes_with(struct line_edit *l, line_edit_complete *complete);

/* Shows `prompt` (plain text without control sequences) when stdin is a terminal, and reads.
 * Replaces *out. */
enum line_edit_result line_edit_read(struct line_edit *l, const char *prompt, struct buf *out);

/* While an answer runs: what is typed is not shown among it, but kept for the next line. */
void line_edit_hide_typing(struct line_edit *l, bool hide);

/* $XDG_STATE_HOME/glmstream/history, else ~/.local/state/glmstream/history; NULL without a home.
 * The caller frees. */
char *line_edit_history_path(void);

#endif
