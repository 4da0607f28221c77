/* SPDX-License-Identifier: MIT */
/*
 * The memory plan of a model that lies on several stages (stage.h): one plan for each, with the
 * same context, sessions and chunk. Stages on one card have equal parts of its memory.
 *
 * - --cache-gb with a number holds for each card. Its stages share it: each gets the least that
 *   works, and of the rest a part by the size of its experts.
 * - --ram-gb with a number holds for the host, and the stages share it by the size of their
 *   experts; auto shares what the host has left in the same way.
 * - Host memory for chunks of a prompt in flight is taken off first: a chunk of rows for each stage
 *   (pipeline.h).
 */
#ifndef GLM_ENGINE_PLAN_STAGES_H
#define GLM_ENGINE_PLAN_STAGES_H

#include "src/engine/plan.h"

/* A stage that is to be planned. */
struct plan_stage {
	const struct model_config *c; /* names its layers */
	const struct model_weights *w;
	size_t resident; /* bytes of w */
	struct backend *backend;
	uint64_t bytes_s; /* bandwidth of its card's memory; 0: unknown. For a printed figure only */
	uint32_t card;
};

/* The memory of stage i's card that the stage may use, all of it together; 0: unknown. On the CPU
 * the processes that plan together on this host share its memory. */
size_t plan_stage_room(const struct plan_stage *stages, uint32_t n, uint32_t i, uint32_t processes);

/* Gives a stage with `experts` of `all` bytes of experts its share of the host's memory, and of the
 * reserves that --ram-gb leaves free: the shares of all stages leave one reserve. */
void plan_share_host(size_t host, uint64_t experts, uint64_t all, struct plan_machine *m);

/* Decides and prints the plans [n]. Of one stage: as plan_make. Errors as there; of several stages
 * they name the stage. */
int plan_stages(const struct plan_stage *stages, uint32_t n, const struct engine_options *o,
	const struct gguf *file, struct plan *plans, struct err *e);

#endif
