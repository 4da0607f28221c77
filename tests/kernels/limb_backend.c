/* SPDX-License-Identifier: MIT */
#include "tests/kernels/limb_backend.h"

#include "kernels/cpu/limbs/limb_experts.h"
#include "src/base/num.h"

struct backend *limb_backend_open(int level, int threads)
{
	static struct backend_ops ops;
	struct backend *b;
	struct err e = {0};
	struct backend_options options = {.name = "cpu", .threads = threads};
	if (!limb_isa_available(level))
		return NULL;
	/* the other ops may have fewer levels */
	for (int other = level; cpu_backend_open_level(&options, other, &b, &e); other--)
		if (!other)
			return NULL;
	cpu_of(b)->limbs = limb_isa_available(level);
	ops = *b->ops;
	ops.expert_ffn = limb_expert_ffn;
	b->ops = &ops;
	return b;
}

bool limb_backend_covers(const struct op_case *c)
{
	const enum dtype types[] = {
		c->type, c->up_type ? c->up_type : c->type, c->odd_type ? c->odd_type : c->type};
	bool covers = c->op == OP_EXPERT_FFN;
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		covers = covers && expert_arithmetic_covers(types[i]);
	return covers;
}
