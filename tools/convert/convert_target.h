/* SPDX-License-Identifier: MIT */
/*
 * The choice of one option for each group, so that the bytes of all stay within a budget and the
 * sum of the losses is small: the Lagrangian relaxation of the multiple-choice knapsack. Plain
 * arithmetic; what bytes and losses mean is the caller's (convert_losses.h).
 *
 * Each group starts at its smallest option. The upgrades along the lower convex hulls of (bytes,
 * loss) are then taken in the order of loss saved per byte, until the next one does not fit.
 *
 * - No choice of at most *bytes bytes has a smaller loss.
 * - What is left of the budget is less than one upgrade.
 * - A larger budget never gives a group an option of fewer bytes or more loss.
 * - Deterministic: of equal upgrades the one of the earlier group comes first.
 */
#ifndef GLM_TOOLS_CONVERT_TARGET_H
#define GLM_TOOLS_CONVERT_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TARGET_OPTIONS_MAX 16

struct target_option {
	uint64_t bytes;
	double loss; /* finite */
};

struct target_group {
	uint32_t n; /* 1 .. TARGET_OPTIONS_MAX, in any order */
	struct target_option option[TARGET_OPTIONS_MAX];
};

/* choice[n]: an option of each group. *bytes: of the choice. False: the smallest options of all
 * groups take more than the budget; they are then the choice. */
bool convert_target_choose(const struct target_group *groups, size_t n, uint64_t budget,
	uint32_t *choice, uint64_t *bytes);

#endif
