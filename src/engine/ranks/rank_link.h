/* SPDX-License-Identifier: MIT */
/*
 * The link to a stage of another rank (stage_link.h). A message is a struct rank_answer and what is
 * handed over; if the step failed, an error in its place, which every later rank passes on.
 *
 * Between two cards the rows follow the message by NCCL, where both ends can load it (nccl.h);
 * else, and on one card, they are part of it. Both ends agree on that when the link opens, and the
 * receiver says which it is. Errors and everything else stay with MPI.
 */
#ifndef GLM_ENGINE_RANK_LINK_H
#define GLM_ENGINE_RANK_LINK_H

#include "src/forward/stage_link.h"
#include "src/ranks/ranks.h"

struct rank_link_ends {
	uint32_t other;          /* the rank at the other end */
	bool sends;              /* this end sends rows */
	struct backend *backend; /* of the stage here; outlives the link */
	const struct model_config *config;
	uint32_t layer;    /* the first one of the later stage */
	uint32_t max_rows; /* of a step */
};

/* One end of a link; the other rank opens its end at the same time. Release with ops->close.
 * ERR_MEMORY; ERR_USAGE: steps are too long; ERR_RUN: a rank is lost. */
int rank_link_open(
	struct ranks *r, const struct rank_link_ends *ends, struct stage_link **out, struct err *e);

/* A rank is lost, which `why` says for good: nobody waits for rows any more. Any thread; NULL is
 * fine. */
void rank_link_abort(struct stage_link *l, const char *why);

/* As `receive` of the link, but into host memory, which is reserved for them. */
int rank_link_receive_rows(struct stage_link *l, const struct model *to, uint32_t n,
	struct stage_rows *out, struct err *e);

/* Did an error come in place of the rows of the last step? NULL: no. */
bool rank_link_received_error(const struct stage_link *l);

/* Sends an error in place of the rows of a step. is_named: it begins with the name of its rank;
 * else that of this one is put before it. */
int rank_link_send_error(struct stage_link *l, const struct err *why, bool is_named, struct err *e);

#endif
