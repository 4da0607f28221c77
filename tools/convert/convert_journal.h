/* SPDX-License-Identifier: MIT */
/*
 * The journal of a conversion: OUT.gguf.journal lists the tensors whose data are
 * complete in the .partial files, so that a run that was killed can be continued.
 *
 * - A tensor may have several pieces (the matrices of routed experts, convert_units.h). The journal
 *   holds how many of them are complete, counted from the first.
 * - A journal belongs to one fingerprint (program version, recipe, options). With another one, or
 *   when the file is damaged, it is not used, and the conversion starts over.
 * - A tensor is listed with its source, the identity of the files that it was made from. A tensor
 *   that is listed with another source is made again, the others are kept.
 * - It may hold the types that --target-gb has chosen by measurement. They are stored under a key,
 *   the hash of what the choice depends on. A later run with the same key takes them and measures
 *   nothing.
 * - The file is locked while it is open: one conversion per output. A file system without locks is
 *   accepted with a note.
 *
 * In order of use:
 *   0. convert_journal_find_types, where types are chosen; needs no open journal
 *   1. convert_journal_open
 *   2. convert_journal_restart, unless the data that it lists are kept: a new or unusable file has
 *      no header before
 *   3. convert_journal_add, after the caller has synced the data of these pieces; and
 *      convert_journal_drop, before the caller writes over data that are listed;
 *      convert_journal_add_types, after a restart and when types were chosen anew
 *   4. convert_journal_close
 *
 * Every change is on the disk when the call returns (fdatasync).
 * Errors: those of err_errno; ERR_RUN when another conversion holds the lock, ERR_INPUT when
 * something else has the file's name.
 * Threads: one at a time.
 */
#ifndef GLM_TOOLS_CONVERT_JOURNAL_H
#define GLM_TOOLS_CONVERT_JOURNAL_H

#include "src/base/buf.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct convert_journal {
	char *path;
	int fd;      /* -1: closed */
	bool is_new; /* there was none, or an empty one, before it was opened */
	uint64_t fingerprint;
	size_t n;                /* tensors */
	const uint64_t *sources; /* [n], the caller's; or NULL */
	const uint64_t *pieces;  /* [n], the caller's; or NULL */
	uint64_t *listed;        /* [n] source with which the file lists it; 0: it does not */
	uint64_t *finished;      /* [n] so many pieces of it */
	size_t n_other;          /* tensors that it listed with another source when it was opened */
};

/* Reads the n types that an earlier run has stored last in the journal of output `out`. False, and
 * types[n] is of no use: there is no journal of this version, or its last types have another key or
 * number. Other damage of the journal does not matter: a line of types has a check value of its
 * own. Takes no lock: another conversion may be writing. */
bool convert_journal_find_types(const char *out, uint64_t key, uint8_t *types, size_t n);

/* Opens or creates the journal of output `out`, of n tensors.
 *   sources: [n], not 0; NULL: all tensors have one source. Lent as long as the journal is open.
 *   pieces:  [n], how many a tensor has; NULL: one each. Lent as long as the journal is open.
 *   done:    out, [n]: how many pieces of a tensor are listed as complete.
 *   n_done:  out: tensors of which all are.
 *   notes:   gets a line when there is a journal that cannot be used; it counts as empty, and
 *            convert_journal_restart replaces it. Another line when the file system has no locks.
 * Tensors of another source are dropped at once and counted in n_other. A file of that name that is
 * no journal is replaced only with force, else ERR_INPUT. */
int convert_journal_open(struct convert_journal *j, const char *out, bool force,
	uint64_t fingerprint, const uint64_t *sources, const uint64_t *pieces, uint64_t *done, size_t n,
	size_t *n_done, struct buf *notes, struct err *e);

/* Stores types[n], to be found under `key`; those stored before no longer count. */
int convert_journal_add_types(
	struct convert_journal *j, uint64_t key, const uint8_t *types, size_t n, struct err *e);

/* Empties it: no tensor is listed, and no types are stored. */
int convert_journal_restart(struct convert_journal *j, struct err *e);

/* Lists n tensors with the number of their pieces that are complete. */
struct journal_entry {
	uint32_t id;
	uint64_t pieces; /* the first so many, at least 1 */
};
int convert_journal_add(
	struct convert_journal *j, const struct journal_entry *entries, size_t n, struct err *e);

/* Removes tensors ids[n]; *n_dropped (may be NULL) counts those that were listed. */
int convert_journal_drop(
	struct convert_journal *j, const uint32_t *ids, size_t n, size_t *n_dropped, struct err *e);

/* Closes; with `remove` deletes the file: the output is complete, or nothing of it is left. No
 * effect on a journal that is closed. */
void convert_journal_close(struct convert_journal *j, bool remove);

#endif
