/* SPDX-License-Identifier: MIT */
#include "tests/kernels/limb_backend.h"

#include "kernels/cpu/limbs/limb_experts.h"

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
	struct expert_job job = {
		.gate.type = c->type, .up.type = c->up_type ? c->up_type : c->type, .down.type = c->type};
	struct expert_job odd = job;
	if (c->odd_type)
		odd.gate.type = odd.down.type = odd.up.type = c->odd_type;
	return c->op == OP_EXPERT_FFN && limb_experts_covers(&job) && limb_experts_covers(&odd);
}
