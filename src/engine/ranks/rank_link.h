/* SPDX-License-Identifier: MIT */
/* The link to a stage of another rank (stage_link.h). A message is a struct rank_answer and what is
 * handed over; if the step failed, an error in its place, which every later rank passes on. */
#ifndef GLM_ENGINE_RANK_LINK_H
#define GLM_ENGINE_RANK_LINK_H

#include "src/forward/stage_link.h"
#include "src/ranks/ranks.h"

/* One end of the link between this rank and `other`. layer: the first one of the later stage;
 * max_rows: of a step. Release with ops->close. ERR_MEMORY; ERR_USAGE: steps are too long. */
int rank_link_open(struct ranks *r, uint32_t other, const struct model_config *c, uint32_t layer,
	uint32_t max_rows, struct stage_link **out, struct err *e);

/* As `receive` of the link, but into host memory, which is reserved for them. */
int rank_link_receive_rows(struct stage_link *l, const struct model *to, uint32_t n,
	struct stage_rows *out, struct err *e);

/* Did an error come in place of the rows of the last step? NULL: no. */
bool rank_link_received_error(const struct stage_link *l);

/* Sends an error in place of the rows of a step. is_named: it begins with the name of its rank;
 * else that of this one is put before it. */
int rank_link_send_error(struct stage_link *l, const struct err *why, bool is_named, struct err *e);

#endif
