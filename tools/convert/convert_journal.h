/* SPDX-License-Identifier: MIT */
/*
 * The diary of a conversion: OUT.gguf.journal lists the tensors whose data are in the .partial
 * files, so that a run that was killed goes on where it stood. A tensor may be listed in pieces
 * (the matrices of routed experts): the first so many of them are done. The journal belongs to one
 * fingerprint (recipe, header); with any other, or when it is damaged, it is worthless and the
 * conversion starts over. Each tensor is listed with its source (the identity of the files it was
 * made from): a tensor of another source is made again, the others are kept.
 *
 * The caller syncs the data before it adds a tensor, and drops a tensor before it writes over data
 * that the journal vouches for. The file is locked: one conversion per output.
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

/* Opens or creates the journal of output `out`. done[i] becomes the number of pieces of tensor i <
 * n that it vouches for; *n_done counts the tensors of which all are done. sources: [n], not 0;
 * NULL: all tensors have one source. pieces: [n], how many a tensor has; NULL: one each. Both are
 * lent as long as the journal is open. Tensors of another source are dropped at once and counted in
 * n_other. A journal that cannot be used is said in a line of `notes` and emptied by the next
 * convert_journal_restart. A file of that name that is no journal is replaced only with force, else
 * ERR_INPUT. */
int convert_journal_open(struct convert_journal *j, const char *out, bool force,
	uint64_t fingerprint, const uint64_t *sources, const uint64_t *pieces, uint64_t *done, size_t n,
	size_t *n_done, struct buf *notes, struct err *e);

/* Empties it: nothing is done yet. */
int convert_journal_restart(struct convert_journal *j, struct err *e);

/* Vouches for the first `pieces` pieces, at least one, of each of n tensors. */
struct journal_entry {
	uint32_t id;
	uint64_t pieces;
};
int convert_journal_add(
	struct convert_journal *j, const struct journal_entry *entries, size_t n, struct err *e);

/* Takes back what was said of tensors ids[n]; *n_dropped (may be NULL) counts those that it listed.
 */
int convert_journal_drop(
	struct convert_journal *j, const uint32_t *ids, size_t n, size_t *n_dropped, struct err *e);

/* Closes; with `remove` deletes the file: the output is complete or nothing of it is left.
 */
void convert_journal_close(struct convert_journal *j, bool remove);

#endif
