/* SPDX-License-Identifier: MIT */
/*
 * Carrying out an export plan: each worker writes one shard at a time, block by block. What a
 * worker holds does not depend on the model's size: a block of rows (about 4 MiB as float, or a
 * head of attn_k_b) and its form in the shard; and while a tensor is compared with its
 * check value, its pages of the mapped file, which the kernel may take back. The bytes written do
 * not depend on the number of workers, nor on how often the work was interrupted.
 */
#ifndef GLM_TOOLS_EXPORT_RUN_H
#define GLM_TOOLS_EXPORT_RUN_H

#include "src/base/err.h"
#include "src/format/check_values.h"
#include "src/format/gguf.h"
#include "tools/export/export_folder.h"
#include "tools/export/export_plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct export_job {
	const struct gguf *file;           /* NULL with `fill` */
	const struct check_values *values; /* of `file`, compared with what is read; NULL: none */
	/* Makes bytes [offset, offset + bytes) of tensor `i` of the plan, where it has no pieces;
	 * offset is a multiple of 8. dst has room for up to 7 bytes more. Any thread. */
	void (*fill)(void *user, uint32_t i, uint64_t offset, void *dst, size_t bytes);
	void *fill_user;
	const struct export_plan *plan;
	struct export_folder *folder; /* export_run: open */
	uint32_t n_workers;
	bool progress;             /* say how far it is on stderr */
	const atomic_bool *cancel; /* looked at between blocks; may be NULL */
	bool broken;               /* set by export_run: a value of the file is not finite */
};

/* Writes every shard that is not done. Those that are complete are in the journal also when this
 * fails or is cancelled (ERR_INTERRUPTED). ERR_INPUT: a value that is not finite, bytes that are
 * not what their check values say, or a shard that cannot be created. ERR_RUN: bytes of the mapped
 * file were lost. */
int export_run(struct export_job *job, struct err *e);

/* All of it: opens the folder, writes shards and texts, and says with `progress` how long it took.
 * A signal cancels. What is complete is kept after an error, and the same command goes on from
 * there, which the hint says. Nothing is kept when the file is broken for good, or bad input shows
 * before the first shard is complete. The caller closes job->folder. */
int export_write(struct export_job *job, const char *out, uint64_t fingerprint,
	const struct export_texts *texts, bool force, struct err *e);

#endif
