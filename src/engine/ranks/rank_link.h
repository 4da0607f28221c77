/* SPDX-License-Identifier: MIT */
/*
 * The link to a stage of another rank (stage_link.h). For each step the sender sends one message by
 * MPI: a struct rank_answer and the rows or, if the step failed, a struct rank_answer and the
 * error. Every later rank passes an error on.
 *
 * Between two different cards NCCL carries the rows, if both ends can load it (nccl.h): they come
 * after the message, which is then the struct rank_answer alone. Both ends agree on the carrier
 * when the link opens, and the receiver logs it.
 */
#ifndef GLM_ENGINE_RANK_LINK_H
#define GLM_ENGINE_RANK_LINK_H

#include "src/forward/stage_link.h"
#include "src/ranks/ranks.h"

struct rank_link_ends {
	uint32_t other;                    /* the rank at the other end */
	bool sends;                        /* this end sends rows, the other one receives them */
	struct backend *backend;           /* of the stage at this end; outlives the link */
	const struct model_config *config; /* of any stage */
	uint32_t layer;                    /* first layer of the receiving stage */
	uint32_t max_rows;                 /* of a step */
};

/* Opens one end of a link; waits for the other rank, which opens its end. Release with ops->close.
 * ERR_MEMORY; ERR_USAGE: a message of max_rows rows is too long for MPI; ERR_RUN: a rank is lost.
 */
int rank_link_open(
	struct ranks *r, const struct rank_link_ends *ends, struct stage_link **out, struct err *e);

/* Call when a rank is lost: waits for rows by NCCL end, and later waits of the backend fail with
 * the sentence `why`, which must stay valid. Any thread. NULL is fine. */
void rank_link_abort(struct stage_link *l, const char *why);

/* `receive` of the link into *out, in which it makes room for n rows. to: the receiving model,
 * which computes no step meanwhile. ERR_MEMORY: the rows were received and dropped; the next call
 * receives those of the next step. */
int rank_link_receive_rows(struct stage_link *l, const struct model *to, uint32_t n,
	struct stage_rows *out, struct err *e);

/* Was the last message an error? l NULL: no. */
bool rank_link_received_error(const struct stage_link *l);

/* Sends an error in place of the rows of a step. is_named: it begins with the name of its rank;
 * else that of this one is put before it. */
int rank_link_send_error(struct stage_link *l, const struct err *why, bool is_named, struct err *e);

#endif
