/* SPDX-License-Identifier: MIT */
/*
 * How the rows of a step get from a stage to the next. A stage is a model of consecutive layers
 * (model.h); the next one goes on with the layer behind. What is handed over, for each of n rows:
 *   - the residual stream x [n_embd];
 *   - the selection of the latest full layer, n_sel and sel [index_top_k], if the next stage begins
 *     with layers that share it. So a model can be cut anywhere.
 *
 * Order of use, for each step of n rows:
 *   1. model_forward of the earlier stage, with first_hidden n: its device is idle then;
 *   2. send, where that stage is;
 *   3. receive, where the next stage is;
 *   4. model_forward of the next stage, with the same rows.
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

/* Host memory for what is handed over of one step. Zeroed: none. */
struct stage_rows {
	uint32_t max_rows;
	float *x;             /* [max_rows][n_embd] */
	int32_t *n_sel, *sel; /* [max_rows], [max_rows][index_top_k] */
};

/* For at least max_rows rows; what was there before is undefined afterwards. c: of any stage;
 * selection: with room for one. ERR_MEMORY: empty. */
int stage_rows_reserve(struct stage_rows *r, const struct model_config *c, bool selection,
	uint32_t max_rows, struct err *e);
void stage_rows_free(struct stage_rows *r);
/* Is a selection handed over to the stage that begins with this layer? */
bool stage_rows_have_selection(const struct model_config *c, uint32_t first_layer);
/* From the workspace of `from`, as send; into that of `to`, as receive. */
int stage_rows_take(struct stage_rows *r, const struct model *from, uint32_t n, struct err *e);
void stage_rows_give(const struct stage_rows *r, struct model *to, uint32_t n);

/* A link within this process: the rows wait in host memory. c: the configuration of the earlier
 * stage; max_rows: of a step. Release with ops->close. ERR_MEMORY. */
int stage_link_host(
	const struct model_config *c, uint32_t max_rows, struct stage_link **out, struct err *e);

#endif
