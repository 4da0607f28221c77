/* SPDX-License-Identifier: MIT */
/*
 * A timeline on disk: tokens and cache rows, so that it goes on where it stopped without computing
 * anything again but its last token, with the same bits as if it had never stopped (on the same
 * backend).
 *
 *   head   256 bytes: magic, version, fingerprint of the model, type and widths of the caches, how
 *          many tokens, which rows, names of model and backend, check value
 *   body   blocks (session_blocks.h) of at most 1 MiB, or one cache row if that is more: the
 *          tokens, the caller's note, then layer by layer the latents and, on full layers, the
 *          index keys
 *
 * All numbers are little-endian. The MTP layer's rows follow those of the trunk when the session
 * keeps them; its row of a position belongs to the next token, so the rows kept are those before
 * the last position. A file may hold the rows [first, n) only (prefix_store.h); it names the tokens
 * [0, n) all the same, on which these rows depend.
 *
 * Rows travel between device and file in pieces of at most 1 MiB; there is no copy of the caches in
 * host memory.
 */
#ifndef GLM_ENGINE_SESSION_FILE_H
#define GLM_ENGINE_SESSION_FILE_H

#include "src/base/buf.h"
#include "src/engine/session.h"

#include <stdio.h>

#define SESSION_FILE_VERSION   2u /* 1: check values of another function */
#define SESSION_FILE_HEAD      256u
#define SESSION_FILE_NOTE_MAX  (64u << 20) /* bytes */
#define SESSION_FILE_HEAD_ENDS 248u /* the head's check value stands here, over all before it */

/* What makes cache rows of two engines interchangeable: engine_fingerprint, the numbers of the
 * configuration that change results, and samples of every tensor's bytes, so that two trainings of
 * one shape differ. The first call reads these. */
uint64_t session_fingerprint(struct engine *g);

/* What was read or written. */
struct session_file_info {
	uint32_t first, n;  /* tokens [0, n), rows [first, n) */
	uint64_t bytes;     /* of the file */
	uint64_t raw_bytes; /* of its blocks before compression */
	char model[128];    /* general.name */
	char backend[16];   /* that computed the rows */
};

/* Bytes of a file of n tokens of this session with a note, at most. */
uint64_t session_file_bytes(const struct session *s, uint32_t n, size_t note_bytes);

/* Writes the whole timeline and the caller's note (at most SESSION_FILE_NOTE_MAX bytes) to a file
 * that only its owner may read: beside `path`, then in its place when all of it is on the disk.
 * When this fails, or the program is killed, the file of before stays as it was. *info may be NULL.
 */
int session_file_save(struct session *s, const char *path, const void *note, size_t note_bytes,
	struct session_file_info *info, struct err *e);

/* Makes the timeline that of the file; its logits are not at hand (session_sync computes the last
 * token anew). Replaces *note (may be NULL). ERR_INPUT names what was found and expected when the
 * file is of another model, version, cache type or longer than the context, or damaged anywhere;
 * the session is unchanged then. Rows of another backend are taken with a warning: they differ in
 * the last bits. After any other error the session is empty or unchanged. */
int session_file_load(struct session *s, const char *path, struct buf *note,
	struct session_file_info *info, struct err *e);

/* The same from an open, seekable stream; `name` stands for it in errors. */
int session_file_read(struct session *s, FILE *f, const char *name, struct buf *note,
	struct session_file_info *info, struct err *e);

/* ---- rows of a part of the timeline (prefix_store.c) ---- */

/* Writes the rows [first, n) of the timeline, n <= length, as above, without a note and without
 * waiting for the disk: a power cut may leave a file that is refused. */
int session_rows_save(struct session *s, uint32_t first, uint32_t n, const char *path,
	struct session_file_info *info, struct err *e);

/* Appends the rows [first, n) of a file whose tokens must be tokens[0..n), to a session that holds
 * at least tokens[0..first); whatever else it held is forgotten. Afterwards it has n tokens and no
 * logits. After an error it holds tokens[0..first) if rows had been written already, else it is
 * unchanged. ENOENT is -ENOENT, without a sentence. */
int session_rows_load(struct session *s, uint32_t first, const int32_t *tokens, uint32_t n,
	const char *path, struct err *e);

#endif
