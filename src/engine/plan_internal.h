/* SPDX-License-Identifier: MIT */
/* The inside of planning: plan.c decides, plan_refuse.c says why a plan does not fit and what
 * would.
 */
#ifndef GLM_ENGINE_PLAN_INTERNAL_H
#define GLM_ENGINE_PLAN_INTERNAL_H

#include "src/engine/plan.h"

#define CONTEXT_STEP 1024
/* Left free on a card, for captured graphs, the driver and other programs. */
#define CARD_RESERVE ((size_t)1400000000)
/* Left free on the host by a number of --ram-gb, by all stages together. */
#define HOST_RESERVE ((size_t)1000000000)

static inline double gigabytes(size_t bytes)
{
	return (double)bytes / 1e9;
}

static inline size_t bytes_left(size_t a, size_t b)
{
	return a > b ? a - b : 0;
}

/* ---- plan.c ---- */

/* Of the caches of all sessions. On the CPU all memory is the backend's. */
struct kv_cache_bytes plan_kv_bytes(
	const struct model_config *c, const struct plan *p, uint32_t context);
/* The longest context whose caches fit in `budget`, in steps; at least one step. */
uint32_t plan_fitting_context(const struct model_config *c, const struct plan *p, size_t budget);
/* What this run may take of the backend's memory. */
size_t plan_usable_bytes(const struct plan *p);
/* plan_on_machine without the size of card in a refusal's hint. */
int plan_once(const struct plan_inputs *in, const struct plan_machine *machine, struct plan *p,
	struct err *e);

/* ---- plan_refuse.c ---- */

/* Does the finished plan fit the memory of the machine? ERR_MEMORY with a hint. */
int plan_check(const struct plan_inputs *in, const struct plan *p, struct err *e);
/* ERR_MEMORY with a hint: `left` bytes of the card are too few for the first tier. */
int plan_refuse_first_tier(
	const struct plan_inputs *in, const struct plan *p, size_t left, struct err *e);
/* Adds to the hint of a refusal on which card the options as they are would fit. A first tier that
 * is too small for any card is taken as auto. Returns what that card has to have free; 0: no such
 * card is known. */
size_t plan_hint_card(const struct plan_inputs *in, const struct plan_machine *m, struct err *e);

#endif
