/* SPDX-License-Identifier: MIT */
/*
 * A timeline on disk: tokens and cache rows. A session that is read back computes nothing again but
 * its last token, and goes on with the same bits as if it had never stopped (on the same backend).
 *
 *   head   256 bytes: magic, version, fingerprint of the model, type and widths of the caches,
 *          number of tokens, range of rows, names of model and backend, check value
 *   body   blocks (session_blocks.h) of at most 1 MiB, or one cache row if that is more:
 *          the tokens, the caller's note, then layer by layer the latents and, on full layers, the
 *          index keys
 *
 * - All numbers are little-endian.
 * - The MTP layer's rows follow those of the trunk, if the session has all of them. Its row of a
 *   position needs the next token, so the rows end before the last position. A session with MTP
 *   takes a file without them, and makes these rows from the tokens alone (session_can_draft).
 * - A file of a prefix store holds the rows [first, n) only, and all tokens [0, n), on which these
 *   rows depend.
 * - Rows move between device and file block by block: the host holds no copy of the caches.
 */
#ifndef GLM_ENGINE_SESSION_FILE_H
#define GLM_ENGINE_SESSION_FILE_H

#include "src/base/buf.h"
#include "src/engine/session/session.h"

#include <stdio.h>

#define SESSION_FILE_VERSION   2u /* 1: check values of another function */
#define SESSION_FILE_HEAD      256u
#define SESSION_FILE_NOTE_MAX  (64u << 20) /* bytes */
#define SESSION_FILE_HEAD_ENDS 248u /* the head's check value stands here, over all before it */

/* Equal for two engines whose cache rows are interchangeable: a hash over engine_fingerprint, the
 * configuration, and some bytes of every tensor, so that two trainings of one shape differ. The
 * first call reads these bytes. */
uint64_t session_fingerprint(struct engine *g);

/* What was read or written. */
struct session_file_info {
	uint32_t first, n;  /* tokens [0, n), rows [first, n) */
	uint64_t bytes;     /* of the file */
	uint64_t raw_bytes; /* of its blocks before compression */
	char model[128];    /* general.name */
	char backend[16];   /* session_rows_maker: "cpu", "cuda", "cuda exact", ... */
};

/* Bytes of a file of n tokens of this session with a note, at most. */
uint64_t session_file_bytes(const struct session *s, uint32_t n, size_t note_bytes);

/* Writes the first n tokens of the timeline (n <= length) and the caller's note (at most
 * SESSION_FILE_NOTE_MAX bytes) to a file that only its owner may read.
 * - Nothing of later tokens is in the file.
 * - It is written beside `path` and renamed when all of it is on the disk: after a failure, or when
 *   the program is killed, the old file is unchanged.
 * - A file that is no session is replaced only with force, else ERR_INPUT (out_file.h).
 * - Other errors: ERR_MEMORY; ERR_RUN or -errno when the file cannot be written; a failure of the
 *   backend.
 * - *info may be NULL. */
int session_file_save(struct session *s, uint32_t n, const char *path, bool force, const void *note,
	size_t note_bytes, struct session_file_info *info, struct err *e);

/* Makes the timeline that of the file, without logits: session_sync computes the last token again.
 * - Replaces *note (may be NULL).
 * - ERR_INPUT names what was found and expected when the file is of another model, version or cache
 *   type, longer than the context, or damaged anywhere: the session is unchanged.
 * - Rows that differ in the last bits are accepted with a warning: those of another backend, of the
 *   other setting of exact_prompts or fast_prompts, of another version of cublasLt (library.h), or
 *   of a program version with other arithmetic.
 * - After any other error the session is empty or unchanged. */
int session_file_load(struct session *s, const char *path, struct buf *note,
	struct session_file_info *info, struct err *e);

/* The same from an open, seekable stream; `name` stands for it in errors. */
int session_file_read(struct session *s, FILE *f, const char *name, struct buf *note,
	struct session_file_info *info, struct err *e);

/* ---- rows of a part of the timeline (prefix_store.c) ---- */

/* Writes the rows [first, n) of the timeline, n <= length, without a note. Does not wait for the
 * disk: a power cut may leave a damaged file, which is refused when it is read. */
int session_rows_save(struct session *s, uint32_t first, uint32_t n, const char *path,
	struct session_file_info *info, struct err *e);

/* Appends the rows [first, n) of a file whose tokens must be tokens[0..n).
 * - Before: the session holds at least tokens[0..first).
 * - After: it holds tokens[0..n), and no logits.
 * - After an error: the session is unchanged, or it holds tokens[0..first) without logits.
 * - A file that is missing, or that this user may not read, is -ENOENT, without a sentence. */
int session_rows_load(struct session *s, uint32_t first, const int32_t *tokens, uint32_t n,
	const char *path, struct err *e);

#endif
