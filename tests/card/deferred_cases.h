/* SPDX-License-Identifier: MIT */
/*
 * Experts whose jobs are posted late (can_defer_experts, experts_deferred of
 * kernels/backend.h): one in a list, and several of which each computes with what the one before it
 * gave; posted at once, late and in part, interrupted, given up midway. All bits are held against
 * calls that are launched. By cmocka's assertions.
 */
#ifndef GLM_TESTS_DEFERRED_CASES_H
#define GLM_TESTS_DEFERRED_CASES_H

#include "kernels/backend.h"

/* Experts of n_embd > n_ff > n_embd, of a backend that defers. brief: fewer steps and lists. */
void deferred_case(struct backend *backend, enum dtype type, int n_embd, int n_ff, bool brief);

/* A list that is given up by what does not say so: experts that come then are a failure, which
 * stays. */
void deferred_lost_case(struct backend *backend);

#endif
