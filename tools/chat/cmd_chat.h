/* SPDX-License-Identifier: MIT */
/* The chat on a terminal: lines, commands that begin with '/', answers. */
#ifndef GLM_TOOLS_CMD_CHAT_H
#define GLM_TOOLS_CMD_CHAT_H

#include "tools/chat/answer.h"

/* Until the person leaves. 0, or a code when going on makes no sense. */
int chat_loop(struct answer *a, struct err *e);

/* Is this line, up to blanks behind it, a command with or without an argument? Of a longer line
 * only commands that take one. */
bool chat_is_command(const char *line);

/* Command i of the chat, for the manual: name, placeholder of its argument ("" without one), what
 * it does. False behind the last. */
bool chat_command(size_t i, const char *text[3]);

#endif
