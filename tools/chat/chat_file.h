/* SPDX-License-Identifier: MIT */
/*
 * A chat in a session file: its timeline (src/engine/session/session_file.h) and, as the file's
 * note, what the chat knows besides: the messages with the place where each turn begins, how much
 * the model is to reason, how many answers there were and with which seed. So /undo, the next
 * prompt and the next answer are those of a chat that never stopped.
 *
 *   {"glmstream_chat": 1, "raw": false, "think": "max", "turns": 2, "seed": 7,
 *    "messages": [{"role", "content", "reasoning_content", "tool_calls"}],
 *    "raw_ids": [], "marks": [0, 2]}
 */
#ifndef GLM_TOOLS_CHAT_FILE_H
#define GLM_TOOLS_CHAT_FILE_H

#include "tools/chat/answer.h"

/* Writes the chat to a file, reads it from one; says on stderr what was done (not with -q). After
 * an error of reading the conversation is unchanged. The session may then hold the file's tokens or
 * none: the next answer computes the chat's rows again, and nothing of the file is saved. path
 * NULL: to the file it came from, unless another program has written there meanwhile (ERR_RUN).
 * What was taken back (/undo, /reset, an old system message) is not in the file. A file that is no
 * session is replaced only with force. */
int chat_file_save(struct answer *a, const char *path, bool force, struct err *e);
int chat_file_load(struct answer *a, const char *path, struct err *e);

/* Whether a session that does not exist yet can be written there; 0 if a file exists, whatever it
 * holds. ERR_INPUT: a folder or a write-protected file is there. For before a large model is
 * opened. */
int chat_file_check(const char *path, struct err *e);

/* --session, after the engine is open: reads the file if it exists, else chat_file_check. */
int chat_file_open(struct answer *a, const char *path, struct err *e);

/* After an answer: saves to a->session_path when that is wanted and cheap: a small file always, a
 * large one when the answers since the last save took ten times as long as saving does. What fails
 * is a warning: the last save is still there. */
void chat_file_autosave(struct answer *a);

/* The note alone: the text that is in the file. Reading replaces what it names in *a, or changes
 * nothing; of *a only opts and talk are needed. Ids must be below n_vocab. `name` stands for the
 * text in errors. */
int chat_note_write(const struct answer *a, struct buf *out, struct err *e);
int chat_note_read(struct answer *a, uint32_t n_vocab, const char *text, size_t len,
	const char *name, struct err *e);

#endif
