/* SPDX-License-Identifier: MIT */
/*
 * Cache rows of prompts on disk, shared by all sessions, runs and processes of one model: a prefix
 * that was computed once is read instead of computed again.
 *
 * Order of use: prefix_store_open; prefix_store_restore before a prompt is computed;
 * prefix_store_keep at the end of every turn, and after each chunk of a long prompt.
 *
 * - Blocks. Tokens are cut into blocks of PREFIX_BLOCK. A file holds the rows of one block and all
 *   tokens up to its end, on which the rows depend. Less than a block is never stored.
 * - Names. A file is named by a hash of these tokens and of what makes rows interchangeable (model,
 *   cache type, backend, MTP rows or not). Sessions with MTP and without take each other's blocks
 *   where there are none of their own kind; missing MTP rows: session_can_draft. Prompts with a
 *   common prefix share its files. A hash only finds a file: its tokens are compared one by one.
 * - Numbers. Rows from disk are those that were computed. The rest of the prompt is a step of its
 *   own: one that is short enough for the backend's decode way (backend.h: Numbers) has other bits
 *   than in one step with the prefix.
 * - Size. After prefix_store_keep all files of the folder, those of other models included, stay
 *   within the limit. The least recently used go first; of a chain, its end before its beginning.
 *   Where other users' files, which this one may not remove, leave no room, nothing is stored or
 *   removed.
 * - Sharing. Files appear whole (out_file.h), so processes may share a folder. A damaged file is
 *   removed with a warning, if this user may; its rows are computed. A file that this user may not
 *   read or replace ends the restored prefix before it, and is not stored again.
 * - Cost. A block is one write of PREFIX_BLOCK rows (49 MB for GLM-5.2 with 16-bit caches); to
 *   compute its tokens takes longer by orders of magnitude. A block that exists costs one lookup.
 *
 * Threads: the one that computes. The engine must outlive the store.
 */
#ifndef GLM_ENGINE_PREFIX_STORE_H
#define GLM_ENGINE_PREFIX_STORE_H

#include "src/engine/session/session.h"

#define PREFIX_BLOCK              512u
#define PREFIX_STORE_DEFAULT_SIZE 32000000000u /* bytes */

struct prefix_store;

/* Opens the folder; a new one is readable by its owner only. max_bytes 0:
 * PREFIX_STORE_DEFAULT_SIZE. ERR_USAGE when not even one block fits, ERR_INPUT or -errno when the
 * folder cannot be used. */
int prefix_store_open(const char *folder, uint64_t max_bytes, struct engine *g,
	struct prefix_store **out, struct err *e);
void prefix_store_close(struct prefix_store *p); /* NULL is fine; the files stay */

/* Makes the timeline of `s` the longest prefix of tokens[0..n) that the session and the store have;
 * session_length(s) says how long. Its logits are available only when nothing changed.
 * - *n_read (may be NULL): tokens that came from disk. To find none is no error.
 * - A block that is damaged or cannot be read ends the prefix before it, with a warning.
 * - ERR_INPUT for an id out of range or n beyond the context: nothing has changed.
 * - Errors of the backend: the session holds some prefix of tokens[0..n). */
int prefix_store_restore(struct prefix_store *p, struct session *s, const int32_t *tokens,
	uint32_t n, uint32_t *n_read, struct err *e);

#define PREFIX_STORE_PAUSE_MAX_S 64u

/* Stores the whole blocks among the first n tokens of `s` (n <= its length) that are not stored
 * yet.
 * - Errors: the folder takes no more, a failure of the backend, ERR_MEMORY. The session is
 *   unchanged, and stored blocks can still be read.
 * - After an error, ERR_MEMORY excepted, the store pauses: calls write nothing and return 0. The
 *   first pause takes a second; each error doubles it, up to PREFIX_STORE_PAUSE_MAX_S. */
int prefix_store_keep(struct prefix_store *p, struct session *s, uint32_t n, struct err *e);

struct prefix_store_stats {
	uint64_t bytes;       /* of the folder's files, when last looked at */
	uint64_t files;       /* the same */
	uint64_t tokens_read; /* by this store since it was opened, as are those below */
	uint64_t blocks_read, blocks_written, blocks_evicted, blocks_damaged;
};
struct prefix_store_stats prefix_store_stats(const struct prefix_store *p);

#endif
