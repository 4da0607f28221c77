/* SPDX-License-Identifier: MIT */
/* The table of element types. Block sizes come from the structs, so that table and layout cannot
 * disagree. */
#include "src/quant/dtype.h"

#include "src/base/num.h"
#include "src/quant/blocks.h"

#include <stdio.h>
#include <strings.h>

#define SMALL(lower) BLOCK_SMALL, sizeof(struct block_##lower)
#define BIG(lower)   BLOCK_BIG, sizeof(struct block_##lower)

static const struct dtype_info types[DTYPE_LIMIT] = {
	[DTYPE_F32] = {"F32", 1, 4},
	[DTYPE_F16] = {"F16", 1, 2},
	[DTYPE_BF16] = {"BF16", 1, 2},
	[DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1},
	[DTYPE_Q4_0] = {"Q4_0", SMALL(q4_0)},
	[DTYPE_Q4_1] = {"Q4_1", SMALL(q4_1)},
	[DTYPE_Q5_0] = {"Q5_0", SMALL(q5_0)},
	[DTYPE_Q5_1] = {"Q5_1", SMALL(q5_1)},
	[DTYPE_Q8_0] = {"Q8_0", SMALL(q8_0)},
	[DTYPE_Q2_K] = {"Q2_K", BIG(q2_k)},
	[DTYPE_Q3_K] = {"Q3_K", BIG(q3_k)},
	[DTYPE_Q4_K] = {"Q4_K", BIG(q4_k)},
	[DTYPE_Q5_K] = {"Q5_K", BIG(q5_k)},
	[DTYPE_Q6_K] = {"Q6_K", BIG(q6_k)},
	[DTYPE_IQ2_XXS] = {"IQ2_XXS", BIG(iq2_xxs)},
	[DTYPE_IQ2_XS] = {"IQ2_XS", BIG(iq2_xs)},
	[DTYPE_IQ2_S] = {"IQ2_S", BIG(iq2_s)},
	[DTYPE_IQ3_XXS] = {"IQ3_XXS", BIG(iq3_xxs)},
	[DTYPE_IQ3_S] = {"IQ3_S", BIG(iq3_s)},
	[DTYPE_IQ1_S] = {"IQ1_S", BIG(iq1_s)},
	[DTYPE_IQ1_M] = {"IQ1_M", BIG(iq1_m)},
	[DTYPE_IQ4_NL] = {"IQ4_NL", SMALL(iq4_nl)},
	[DTYPE_IQ4_XS] = {"IQ4_XS", BIG(iq4_xs)},
	[DTYPE_TQ1_0] = {"TQ1_0", BIG(tq1_0)},
	[DTYPE_TQ2_0] = {"TQ2_0", BIG(tq2_0)},
	[DTYPE_MXFP4] = {"MXFP4", SMALL(mxfp4)},
	[DTYPE_NVFP4] = {"NVFP4", 64, sizeof(struct block_nvfp4)},
	[DTYPE_Q1_0] = {"Q1_0", 128, sizeof(struct block_q1_0)},
	[DTYPE_Q2_0] = {"Q2_0", 64, sizeof(struct block_q2_0)},
};

const struct dtype_info *dtype_info(uint32_t id)
{
	return id < DTYPE_LIMIT && types[id].name ? &types[id] : NULL;
}

const struct dtype_info *dtype_gguf_info(uint32_t id)
{
	return id < DTYPE_GGUF_LIMIT ? dtype_info(id) : NULL;
}

const char *dtype_name(uint32_t id)
{
	static _Thread_local char unknown[24];
	const struct dtype_info *info = dtype_info(id);
	if (info)
		return info->name;
	snprintf(unknown, sizeof unknown, "type %u", id);
	return unknown;
}

bool dtype_from_name(const char *name, enum dtype *out)
{
	for (uint32_t id = 0; id < DTYPE_LIMIT; id++)
		if (types[id].name && strcasecmp(types[id].name, name) == 0) {
			*out = (enum dtype)id;
			return true;
		}
	return false;
}

bool dtype_row_bytes(enum dtype type, uint64_t n, uint64_t *bytes)
{
	const struct dtype_info *info = dtype_info(type);
	return info && n % info->block_values == 0 &&
		   num_mul(n / info->block_values, info->block_bytes, bytes);
}
