/* SPDX-License-Identifier: MIT */
/*
 * The folder of an exported checkpoint. Without --force it has to be new, empty, or that of an
 * export that was interrupted, which is what a journal (convert_journal.h) without foreign files
 * says. The journal lists the shards that are complete; it is locked, so that one export at a time
 * writes the folder.
 *
 * Until all shards are complete the folder has neither config.json nor an index, so that nothing
 * takes it for a checkpoint. Order of use: open, write shards and export_folder_add each, then
 * export_folder_finish, then close.
 */
#ifndef GLM_TOOLS_EXPORT_FOLDER_H
#define GLM_TOOLS_EXPORT_FOLDER_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "tools/convert/convert_journal.h"
#include "tools/export/export_plan.h"
#include "tools/export/export_texts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct export_folder {
	const char *path; /* the caller's */
	struct convert_journal journal;
	uint64_t *done;  /* [n_shards] 1: complete since an earlier run */
	uint32_t n_done; /* those, and what export_folder_add has added */
	bool made;       /* by this run */
};

/* Checks and makes the folder, takes up an earlier run of the same fingerprint. With `force` files
 * of an export's names are replaced, old shards removed at once, and all others stay. Lines for
 * people go to `notes`. ERR_INPUT: the folder may not be written. ERR_MEMORY: the drive has no room
 * for the rest. */
int export_folder_open(struct export_folder *f, const char *path, const struct export_plan *plan,
	uint64_t fingerprint, bool force, struct buf *notes, struct err *e);

/* "FOLDER/NAME"; the caller frees it. */
char *export_folder_file(const struct export_folder *f, const char *name);

/* The shard has been committed. */
int export_folder_add(struct export_folder *f, uint32_t shard, struct err *e);

/* Writes the texts, removes shards of an earlier export of another size and the texts that this
 * checkpoint lacks, then the journal. */
int export_folder_finish(struct export_folder *f, const struct export_plan *plan,
	const struct export_texts *texts, struct err *e);

/* Removes the shards that this program has written there, the journal, and the folder if this run
 * made it: nothing of it is of use. */
void export_folder_discard(struct export_folder *f, const struct export_plan *plan);

/* Releases; what is written stays. Safe on a struct of zeros but for journal.fd = -1. */
void export_folder_close(struct export_folder *f);

#endif
