/* SPDX-License-Identifier: MIT */
/*
 * The diary of a conversion: OUT.gguf.journal lists the tensors whose data are in the .partial
 * files, so that a run that was killed goes on where it stood. It belongs to one fingerprint
 * (source, recipe, header); with any other, or when it is damaged, it is worthless and the
 * conversion starts over.
 *
 * The caller syncs the data before it adds a tensor. The file is locked: one conversion per output.
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
};

/* Opens or creates the journal of output `out` and sets done[i] for every tensor i < n it vouches
 * for; *n_done counts them. A journal that cannot be used is said in a line of `notes` and emptied
 * by the next convert_journal_restart. A file of that name that is no journal is replaced only with
 * force, else ERR_INPUT. */
int convert_journal_open(struct convert_journal *j, const char *out, bool force,
	uint64_t fingerprint, bool *done, size_t n, size_t *n_done, struct buf *notes, struct err *e);

/* Empties it: nothing is done yet. */
int convert_journal_restart(struct convert_journal *j, struct err *e);

/* Vouches for tensors ids[n]. */
int convert_journal_add(struct convert_journal *j, const uint32_t *ids, size_t n, struct err *e);

/* Closes; with `remove` deletes the file: the output is complete or nothing of it is left. */
void convert_journal_close(struct convert_journal *j, bool remove);

#endif
