/* SPDX-License-Identifier: MIT */
/*
 * The host's part of an MoE layer: which experts its rows use, acquiring them, and giving them to
 * the device. The device's part: ffn.h.
 *
 * Order of use for one layer (forward.c, mtp.c; segment.h has the picture):
 *   1. ffn_forward enqueues the device's part. A dense layer is complete then.
 *   2. moe_experts_request reads the router's ids and starts what is ready.
 *   3. moe_experts_complete starts the rest as it comes, also while the processor computes those
 *   that are its own (host_experts.h).
 *   4. moe_combine adds everything to the stream; the first op of the next segment.
 *   After the last layer, or after any error: moe_drain.
 *
 * Pins. An expert is pinned from acquire until the device has computed with it. Steps 2 and 3 give
 * back the groups of their own layer whose fence is signaled; step 2 of the next layer, or
 * moe_drain, gives back the rest. At most 2 * source->max_pinned[use] experts are pinned at a time.
 *
 * The result does not depend on the order of arrival: every (token, rank) slot has a row of its own
 * in ws.expert_out, and moe_combine adds the rows in rank order.
 */
#ifndef GLM_FORWARD_MOE_H
#define GLM_FORWARD_MOE_H

#include "kernels/backend.h"
#include "src/model/config.h"
#include "stream/expert_source.h"

struct model;
struct host_experts;

/*
 * What a step does to the expert cache (moe_step_use).
 *
 * EXPERT_PREFILL, which evicts only what makes room for the prefill slots:
 * - steps of at least PREFILL_ROWS rows, since they use most experts of a layer once. Exception:
 *   the first item below;
 * - all steps of a prompt of at least LONG_PROMPT tokens, since its last one may be short and would
 *   evict what answers use. Exception: engines whose largest step is shorter than PREFILL_ROWS.
 *
 * EXPERT_DECODE:
 * - steps of at most ANSWER_ROWS rows that only continue answers (a token of each, with or without
 *   drafts to verify) or make drafts, since the next one uses mostly the same experts;
 * - all other steps.
 */
#define PREFILL_ROWS 32
#define ANSWER_ROWS  64
#define LONG_PROMPT  128

#define MOE_GROUPS 8 /* groups pinned at a time, at most */

/* Experts that were enqueued together. When the fence is signaled, the device has computed with all
 * of refs[0 .. end). */
struct moe_group {
	uint64_t fence;
	int end;
};

/* Which rows use which expert of the current layer, and what is pinned. Host memory, sized once;
 * private to moe.c, but for `ids`, which taps read, and the three members of the step. */
struct moe_plan {
	int32_t *ids;            /* [R][n_used] top-k expert ids of the layer */
	int32_t *first;          /* [n_experts + 1] prefix sums into token_slots */
	int32_t *token_slots;    /* [R * n_used] (token, rank) slots, grouped by expert */
	struct expert_ref *refs; /* [n_experts] the distinct experts */
	bool *enqueued;          /* [n_experts] parallel to refs */
	/* [n_experts] scratch of a call for the card; of one for the processor, during which there are
	 * calls for the card */
	struct expert_job *jobs, *host_jobs;
	int32_t *ahead; /* [n_experts] scratch of a read-ahead list */
	/* the step: set and cleared by model_forward and mtp_draft */
	bool long_prompt, answers; /* as in forward_rows */
	const bool *draft;         /* as in forward_rows */
	/* the layer */
	uint32_t layer;
	enum expert_use use;
	uint64_t fence; /* of its route */
	int n_refs;
	int group_size;    /* refs that are acquired at once */
	int pin_limit;     /* refs that may be pinned at once: twice source->max_pinned[use] at most */
	bool fence_groups; /* a fence behind each group, not only between groups */
	/* the group that was requested last: refs[group_first .. end_pinned) */
	int group_first;
	int n_missing; /* of its refs that are not ready */
	/* refs[first_pinned .. end_pinned) are pinned: the device may still compute with them */
	int first_pinned, end_pinned;
	/* groups of pinned refs that have a fence, oldest first: a ring */
	struct moe_group groups[MOE_GROUPS];
	int first_group, n_groups;
};

/* ERR_MEMORY without a sentence; moe_plan_fini is needed after that too. */
int moe_plan_init(struct moe_plan *p, const struct model_config *c, uint32_t max_rows);
void moe_plan_fini(struct moe_plan *p); /* accepts a zeroed struct */

/* How the experts of the current step, which has so many rows, are used. */
enum expert_use moe_step_use(const struct model *m, int rows);

/* ---- a layer ---- */

/* Waits for the expert ids behind `fence`, gives the pins of the layer before back, acquires the
 * first group of experts and enqueues those that are ready.
 * Errors: a lost device, a failed read, ERR_INTERRUPTED; call moe_drain then. */
int moe_experts_request(
	struct model *m, uint32_t layer, uint64_t fence, const struct batch *rows, struct err *e);

/* Enqueues the missing experts of the group as their reads complete, then acquires and enqueues the
 * remaining groups of the layer. Same errors. */
int moe_experts_complete(struct model *m, const struct batch *rows, struct err *e);

/* Waits for all ops, gives back every pin and drops predictions that were not passed on. For the
 * end of a step and for every error. Returns the failure of an op. */
int moe_drain(struct model *m, struct err *e);

/* ---- experts that the processor computes ---- */

/* Whether the processor can compute the experts of a layer (host_experts.h). */
bool moe_host_covers(const struct model *m, uint32_t layer);
/* host_experts_prepare for the experts of the MoE layers first_layer .. end_layer - 1. */
int moe_host_prepare(
	const struct model *m, struct host_experts *h, double link_bytes_s, struct err *e);

#endif
