/* SPDX-License-Identifier: MIT */
/*
 * Adds up the squares of what goes into a model's matrices (src/forward/observe.h).
 *
 * Order of use: open, engine_observe with the observer; for each chunk of text compute it, then
 * keep, or drop it after an error; fill gives the sums to write.
 *
 * The same bits, however the steps were cut, whatever was cached and wherever a run was resumed:
 * - within a chunk the squares are added in double precision, in the order of the tokens;
 * - keep rounds sum + chunk to float32. So the float32 sums of the file are the whole state between
 *   two chunks. The rounding errors of n chunks are below n * 2^-24 of a sum.
 */
#ifndef GLM_TOOLS_IMATRIX_COLLECT_H
#define GLM_TOOLS_IMATRIX_COLLECT_H

#include "src/engine/engine.h"
#include "tools/imatrix/imatrix_set.h"

struct imatrix_collect;

/* moments: collects second moments for routed experts too (IMATRIX_MOMENTS), which takes 8 bytes
 * for each of (columns / 256) * FEEDBACK_MOMENTS sums of each expert's down and of each layer.
 * ERR_MEMORY: the sums, else 12 bytes for each column of each matrix, are not to be had. ERR_INPUT:
 * layers share their data (GGUF_SHARED_DATA_KEY); moments: the columns of experts are no multiple
 * of 256, or the model has none. */
int imatrix_collect_open(
	const struct engine *g, bool moments, struct imatrix_collect **out, struct err *e);
void imatrix_collect_close(struct imatrix_collect *c); /* accepts NULL */

const struct model_observer *imatrix_collect_observer(const struct imatrix_collect *c);

/* The chunk is complete: it becomes part of the sums. ERR_RUN: an activation was not finite; the
 * sums are then undefined. */
int imatrix_collect_keep(struct imatrix_collect *c, struct err *e);
/* Forgets what was added since the last call of keep. */
void imatrix_collect_drop(struct imatrix_collect *c);

/* Adds the tensors to an empty set; they are views of the collector's sums. */
void imatrix_collect_fill(const struct imatrix_collect *c, struct imatrix_set *s);

/* The sums become those of `from`, which fill made. ERR_INPUT: a tensor is missing or has another
 * shape; `path` names the file. */
int imatrix_collect_restore(
	struct imatrix_collect *c, const struct imatrix_set *from, const char *path, struct err *e);

#endif
