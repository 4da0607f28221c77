/* SPDX-License-Identifier: MIT */
/*
 * Cache rows of prompts on disk, shared by all sessions, runs and processes of one model: a prompt
 * whose beginning was ever computed is read instead of computed again.
 *
 * Tokens are cut into blocks of PREFIX_BLOCK. A file holds the rows of one block and names all
 * tokens up to its end (rows depend on them); it is called by a hash of these tokens, and by what
 * makes rows interchangeable (model, cache type, backend, MTP rows or not). So prompts with a
 * common beginning share its files, a conversation that grows adds only new blocks, and a prefix
 * ends at any block. A hash only finds a file: its tokens are compared one by one.
 *
 * When it pays: a block costs one write of PREFIX_BLOCK rows (49 MB for GLM-5.2 with 16-bit caches)
 * and is worth the computation of PREFIX_BLOCK tokens, which takes longer by orders of magnitude.
 * So keep at the end of every turn and, where others wait meanwhile, after every chunk of a long
 * prompt: what is there already costs a look. Less than one block is never stored.
 *
 * Size: after keep, all files of the folder together stay within the limit (files of other models
 * count as well): those unused for longest go first, of a chain its end before its beginning. Files
 * appear whole (out_file.h), so processes may share a folder. A file that is damaged is removed
 * with a warning, and its rows are computed.
 *
 * Not thread-safe: call from the thread that computes with the engine, which must outlive the
 * store.
 */
#ifndef GLM_ENGINE_PREFIX_STORE_H
#define GLM_ENGINE_PREFIX_STORE_H

#include "src/engine/session.h"

#define PREFIX_BLOCK              512u
#define PREFIX_STORE_DEFAULT_SIZE 32000000000u /* bytes */

struct prefix_store;

/* Opens (or makes, for its owner only) the folder. max_bytes 0: PREFIX_STORE_DEFAULT_SIZE.
 * ERR_USAGE when that has no room for one block, ERR_INPUT or -errno when the folder cannot be
 * used. */
int prefix_store_open(const char *folder, uint64_t max_bytes, struct engine *g,
	struct prefix_store **out, struct err *e);
void prefix_store_close(struct prefix_store *p); /* NULL is fine; the files stay */

/* Makes `s` hold as long a prefix of tokens[0..n) as it and the store know, and no other tokens:
 * session_length(s) afterwards counts them (its logits are at hand only when nothing changed).
 * *n_read (may be NULL): how many of them came from disk. Nothing found is no error. Errors: the
 * backend's; the session then holds what it had in common with the tokens, or less. ERR_INPUT for
 * an id out of range or n beyond the context: nothing changed. */
int prefix_store_restore(struct prefix_store *p, struct session *s, const int32_t *tokens,
	uint32_t n, uint32_t *n_read, struct err *e);

/* Stores the whole blocks among the first n tokens of `s` (n <= its length) that are not stored
 * yet. Errors: a folder that takes no more, a backend's failure; the session is unchanged. */
int prefix_store_keep(struct prefix_store *p, struct session *s, uint32_t n, struct err *e);

struct prefix_store_stats {
	uint64_t bytes;       /* of the folder's files, when last looked at */
	uint64_t files;       /* the same */
	uint64_t tokens_read; /* by this store since it was opened, as are those below */
	uint64_t blocks_read, blocks_written, blocks_evicted, blocks_damaged;
};
struct prefix_store_stats prefix_store_stats(const struct prefix_store *p);

#endif
