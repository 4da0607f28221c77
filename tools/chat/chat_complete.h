/* SPDX-License-Identifier: MIT */
/* What Tab offers in the chat: commands at the beginning of a line, then what their argument may
 * be: words, names of settings, files. */
#ifndef GLM_TOOLS_CHAT_COMPLETE_H
#define GLM_TOOLS_CHAT_COMPLETE_H

#include "tools/chat/line_edit.h"

/* For line_edit_completes_with. Offers nothing for a message, that is, a line without a slash at
 * its beginning. */
void chat_complete(const char *before, size_t *start, struct buf *words);

#endif
