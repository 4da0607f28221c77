/* SPDX-License-Identifier: MIT */
/* What Tab offers in the chat: commands at the beginning of a line, then what their argument may
 * be: words, names of settings, files. */
#ifndef GLM_TOOLS_CHAT_COMPLETE_H
#define GLM_TOOLS_CHAT_COMPLETE_H

#include "tools/chat/line_edit.h"

/* As line_edit_complete says. A message is not completed. */
void chat_complete(const char *before, size_t *start, struct buf *words);

#endif
