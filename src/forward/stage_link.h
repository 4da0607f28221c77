/* SPDX-License-Identifier: MIT */
/*
 * How the rows of a step get from a stage to the next. A stage is a model of consecutive layers
 * (model.h); the next one goes on with the layer behind. What is handed over, for each of n rows:
 *   - the residual stream x [n_embd];
 *   - the selection of the latest full layer, n_sel and sel [index_top_k], if the next stage begins
 *     with layers that share it. So a model can be cut anywhere.
 *
 * Order of use, for each step of n rows:
 *   1. model_forward of the earlier stage, with first_hidden n and forward_rows.hands_over: its
 *      device may still compute then;
 *   2. send, where that stage is;
 *   3. receive, where the next stage is;
 *   4. model_forward of the next stage, with the same rows;
 *   5. moe_drain of the earlier stage: its pins are given back, and a failure of its device shows.
 * A transport is a struct of these two calls. Its two ends may be in different processes.
 */
#ifndef GLM_FORWARD_STAGE_LINK_H
#define GLM_FORWARD_STAGE_LINK_H

#include "src/forward/model.h"

struct stage_link;

struct stage_link_ops {
	/* Takes the rows from the workspace of `from`. Returns its kept failure, or the transport's. */
	int (*send)(struct stage_link *l, const struct model *from, uint32_t n, struct err *e);
	/* Puts the rows into the workspace of `to`, enqueued. Waits for the sender, if it has to. */
	int (*receive)(struct stage_link *l, struct model *to, uint32_t n, struct err *e);
	void (*close)(struct stage_link *l);
};

struct stage_link {
	const struct stage_link_ops *ops;
};

/* A link within this process: the backends hand the rows over (hand_over.h), and the host
 * waits for neither. Release with ops->close. */
struct stage_link *stage_link_local(void);

/* Is a selection handed over to the stage that begins with this layer? */
bool stage_rows_have_selection(const struct model_config *c, uint32_t first_layer);

/* Memory of the host, pinned for a card, for what is handed over of one step while the next stage
 * still computes another one. Zeroed: none. */
struct stage_rows {
	struct backend *owner; /* whose memory it is; NULL: none */
	uint32_t max_rows;
	void *block;
	size_t block_bytes;
	float *x;             /* [max_rows][n_embd], in the block like the others */
	int32_t *n_sel, *sel; /* [max_rows], [max_rows][index_top_k] */
	/* the receiver, until stage_rows_given; NULL: nothing is on its way */
	struct backend *receiver;
	uint64_t before; /* its latest fence before that */
};

/* For at least max_rows rows, in memory of b; what was there before is undefined afterwards. c: of
 * any stage. ERR_MEMORY: empty. */
int stage_rows_reserve(struct stage_rows *r, const struct model_config *c, struct backend *b,
	uint32_t max_rows, struct err *e);
/* Nothing is on its way. Accepts a zeroed struct. */
void stage_rows_free(struct stage_rows *r);
/* From the workspace of `from`, instead of send: enqueued. They are there after moe_drain. */
void stage_rows_take(struct stage_rows *r, const struct model *from, uint32_t n);
/* Into the workspace of `to`, instead of receive: enqueued. */
void stage_rows_give(struct stage_rows *r, struct model *to, uint32_t n);
/* Returns when what was given has left the rows, which may then be taken again. After
 * model_forward of the receiver, or an error of it, that is so already. */
void stage_rows_given(struct stage_rows *r);

#endif
