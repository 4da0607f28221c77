/* SPDX-License-Identifier: MIT */
/*
 * What each type would cost each matrix of a plan, in bytes and in expected loss, for --target-gb:
 *
 *     convert_losses_list(&l, &source);              groups, types, bytes: from headers alone
 *     convert_losses_measure(&l, &source, &e);       losses: quantises a sample of every matrix
 *     convert_target_choose(l.groups, l.n_groups, budget, l.choice, &bytes);
 *                                                    or, in place of these two,
 *     convert_losses_choose(&l, types);              takes types that an earlier run has chosen
 *     convert_losses_apply(&l, &plan);               may be repeated with another choice
 *     convert_losses_print(&l, f);
 *     convert_losses_fini(&l);                       also after a failure; a zeroed one is fine
 *
 * - Expected loss = relative squared error of the type on the sample, weighted by the importance
 *   file, times the sensitivity of the matrix's class (a table in convert_losses.c).
 * - A group is what gets one type: the matrices of a layer that are multiplied by the same input
 *   in one launch (gate and up; q_a and q_b), else a matrix.
 * - A type is chosen only for the classes of that table. All other tensors, and those that a rule
 *   of --types matches, keep the type of the plan.
 * - The sample and the errors depend on the checkpoint and the importance file alone, not on the
 *   number of threads.
 */
#ifndef GLM_TOOLS_CONVERT_LOSSES_H
#define GLM_TOOLS_CONVERT_LOSSES_H

#include "src/base/err.h"
#include "src/checkpoint/convert_map.h"
#include "tools/convert/convert_target.h"
#include "tools/imatrix/imatrix_file.h"

#include <stdint.h>
#include <stdio.h>

/* All borrowed. */
struct losses_source {
	const struct convert_plan *plan; /* in types that all rows fit, such as Q8_0's recipe */
	const struct convert_config *cfg;
	const struct safetensors *st;
	const struct convert_types *fixed;  /* --types, or NULL */
	const struct imatrix_file *imatrix; /* or NULL */
	uint32_t n_threads;
};

struct convert_losses {
	struct target_group *groups; /* [n_groups] */
	size_t n_groups;
	uint32_t *choice;                        /* [n_groups] the caller's, for apply and print */
	size_t *group_of;                        /* [n_tensors] SIZE_MAX: keeps its type */
	uint32_t *class;                         /* private: [n_tensors] row of the table */
	uint32_t *kind;                          /* private: [n_groups] row of the table */
	enum dtype (*types)[TARGET_OPTIONS_MAX]; /* private: [n_groups] types of the options */
};

/* Fills *l, whatever it held: the groups with their types and bytes, all losses 0. */
void convert_losses_list(struct convert_losses *l, const struct losses_source *source);

/* Adds the losses; once. The source must be that of convert_losses_list. ERR_INPUT: a shard cannot
 * be read, a value is infinite or not a number, the importance file has other shapes. */
int convert_losses_measure(
	struct convert_losses *l, const struct losses_source *source, struct err *e);

/* Writes the chosen type (enum dtype) of each group to types[n_groups], for another run. */
void convert_losses_types(const struct convert_losses *l, uint8_t *types);

/* Sets l->choice from types[n_groups]; needs no losses. False: a group has no such type, and
 * l->choice is of no use. */
bool convert_losses_choose(struct convert_losses *l, const uint8_t *types);

/* Gives the tensors of the plan the types of l->choice. */
void convert_losses_apply(const struct convert_losses *l, struct convert_plan *plan);

/* A line for each class: how many groups got which type. */
void convert_losses_print(const struct convert_losses *l, FILE *f);

void convert_losses_fini(struct convert_losses *l);

#endif
