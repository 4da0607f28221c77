/* SPDX-License-Identifier: MIT */
/* A CPU backend whose expert_ffn is limb_expert_ffn, so that the cases of op_cases.h run on it. */
#ifndef GLM_TESTS_LIMB_BACKEND_H
#define GLM_TESTS_LIMB_BACKEND_H

#include "tests/kernels/op_cases.h"

/* level: of limb_isa_available. NULL: this machine has no such level. Closed as any backend. */
struct backend *limb_backend_open(int level, int threads);

/* Whether limb_expert_ffn computes the experts of this case: an expert_ffn of its types. */
bool limb_backend_covers(const struct op_case *c);

#endif
