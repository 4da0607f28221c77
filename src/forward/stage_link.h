/* SPDX-License-Identifier: MIT */
/*
 * How the rows of a step get from a stage to the next. A stage is a model of consecutive layers
 * (model.h); the next one goes on with the layer behind. What is handed over, for each of n rows:
 *   - the residual stream x [n_embd];
 *   - the selection of the latest full layer, n_sel and sel [index_top_k], if the next stage begins
 *     with layers that share it. So a model can be cut anywhere.
 *
 * Order of use, for each step of n rows:
 *   1. model_forward of the earlier stage, with first_hidden n and forward_rows.hands_over; its
 *      device may still compute on return
 *   2. send, in the process of that stage
 *   3. receive, in the process of the next stage
 *   4. model_forward of the next stage, with the same rows
 *   5. moe_drain of the earlier stage: releases its pinned experts and returns a failure of its
 *      device
 * A transport implements struct stage_link_ops. Its two ends may be in different processes.
 *
 * While the next stage computes another step, the rows wait in a struct stage_rows:
 *   1. as above
 *   2. stage_rows_take, then moe_drain of the earlier stage, in its thread
 *   3. stage_rows_give, in the thread of the next stage
 *   4. as above
 *   5. stage_rows_given, before the struct is used again
 */
#ifndef GLM_FORWARD_STAGE_LINK_H
#define GLM_FORWARD_STAGE_LINK_H

#include "src/forward/model.h"

struct stage_link;

struct stage_link_ops {
	/* Takes the rows from the workspace of `from`. Returns a kept failure of its backend, or an
	 * error of the transport. */
	int (*send)(struct stage_link *l, const struct model *from, uint32_t n, struct err *e);
	/* Enqueues copies of the rows into the workspace of `to`. A transport between processes waits
	 * for the message of the sender. */
	int (*receive)(struct stage_link *l, struct model *to, uint32_t n, struct err *e);
	void (*close)(struct stage_link *l);
};

struct stage_link {
	const struct stage_link_ops *ops;
};

/* A link within this process: the rows are copied from backend to backend (hand_over.h), and the
 * host waits for neither. Release with ops->close. */
struct stage_link *stage_link_local(void);

/* Is a selection handed over to the stage that begins with this layer? */
bool stage_rows_have_selection(const struct model_config *c, uint32_t first_layer);

/* Host memory for what is handed over of one step. Zero-initialise; no memory is held then. */
struct stage_rows {
	struct backend *owner; /* allocated `block`, MEM_SHARED; NULL: there is none */
	uint32_t max_rows;
	void *block;
	size_t block_bytes;
	float *x;             /* [max_rows][n_embd], in the block like the others */
	int32_t *n_sel, *sel; /* [max_rows], [max_rows][index_top_k] */
	/* From stage_rows_give to stage_rows_given: the backend that reads the block, and the value of
	 * its latest fence before the copies. NULL: no copy is pending. */
	struct backend *receiver;
	uint64_t before;
};

/* Makes room for at least max_rows rows, allocated by b, which outlives it. The contents are
 * undefined afterwards. c: of any stage. ERR_MEMORY: there is no memory then. */
int stage_rows_reserve(struct stage_rows *r, const struct model_config *c, struct backend *b,
	uint32_t max_rows, struct err *e);
/* No copy may be pending. Accepts a zeroed struct. */
void stage_rows_free(struct stage_rows *r);
/* Enqueues copies of n rows from the workspace of `from` into r. They have ended after moe_drain of
 * `from`. */
void stage_rows_take(struct stage_rows *r, const struct model *from, uint32_t n);
/* Enqueues copies of n rows from r into the workspace of `to`; stage_rows_given follows. */
void stage_rows_give(struct stage_rows *r, struct model *to, uint32_t n);
/* Waits until the copies of stage_rows_give have read r, which may then be used again. After
 * model_forward of the receiver, or an error of it, this does not wait. */
void stage_rows_given(struct stage_rows *r);

#endif
