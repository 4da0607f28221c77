/* SPDX-License-Identifier: MIT */
/* The list of op_cases.h. Shapes: the pocket model's (hidden 256, 4 heads), GLM-5.2's row sizes
 * with few rows, odd ones. */
#include "tests/kernels/op_cases.h"

#include "src/base/num.h"

const char *const op_names[OP_LIMIT] = {"embed", "rms_norm", "matmul", "stacked_matmul", "ffn",
	"swiglu", "rope_angles", "rope", "latents", "query", "index_select", "attend", "mla", "route",
	"routers", "expert_ffn", "moe_combine"};

/* clang-format off */
#define ALL_TYPES(X)                                                                              \
	X(F32) X(F16) X(BF16) X(Q4_0) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ2_XXS)      \
	X(IQ2_XS) X(IQ2_S)                                                                            \
	X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M) X(IQ4_NL) X(IQ4_XS) X(Q4_1) X(Q5_0) X(Q5_1) X(MXFP4)    \
	X(NVFP4) X(Q1_0) X(Q2_0) X(TQ1_0) X(TQ2_0)

#define MATMUL(t)                                                                                 \
	{.name = "pocket " #t, .op = OP_MATMUL, .type = DTYPE_##t, .rows = 7, .n_in = 256,            \
		.n_out = 37},                                                                             \
	{.name = "wide " #t, .op = OP_MATMUL, .type = DTYPE_##t, .rows = 3, .n_in = 6144,             \
		.n_out = 9},                                                                              \
	{.name = "tall " #t, .op = OP_MATMUL, .type = DTYPE_##t, .rows = 1, .n_in = 512,              \
		.n_out = 301},                                                                            \
	{.name = "chunk " #t, .op = OP_MATMUL, .type = DTYPE_##t, .rows = 40, .n_in = 512,            \
		.n_out = 141},
#define EXPERT(t)                                                                                 \
	{.name = "pocket " #t, .op = OP_EXPERT_FFN, .type = DTYPE_##t, .rows = 11, .n_in = 256,       \
		.n_out = 256, .heads = 5, .n_used = 3},                                                   \
	{.name = "chunk " #t, .op = OP_EXPERT_FFN, .type = DTYPE_##t, .rows = 37, .n_in = 256,        \
		.n_out = 256, .heads = 5, .n_used = 3},
#define EMBED(t)                                                                                  \
	{.name = "table " #t, .op = OP_EMBED, .type = DTYPE_##t, .rows = 5, .n_in = 512, .n_out = 40},

const struct op_case op_cases[] = {
	ALL_TYPES(EMBED)
	{.name = "pocket", .op = OP_RMS_NORM, .rows = 7, .n_in = 256},
	{.name = "wide", .op = OP_RMS_NORM, .rows = 3, .n_in = 6144},
	{.name = "odd", .op = OP_RMS_NORM, .rows = 2, .n_in = 77},
	ALL_TYPES(MATMUL)
	/* eight warps to a weight row; cards with little shared memory take another tiling for 3 rows */
	{.name = "long Q2_K", .op = OP_MATMUL, .type = DTYPE_Q2_K, .rows = 3, .n_in = 16384,
		.n_out = 24},
	{.name = "long IQ2_S", .op = OP_MATMUL, .type = DTYPE_IQ2_S, .rows = 3, .n_in = 16384,
		.n_out = 24},
	{.name = "odd length F32", .op = OP_MATMUL, .type = DTYPE_F32, .rows = 5, .n_in = 1037,
		.n_out = 6},
	{.name = "odd length F16", .op = OP_MATMUL, .type = DTYPE_F16, .rows = 2, .n_in = 37,
		.n_out = 5},
	{.name = "odd length BF16", .op = OP_MATMUL, .type = DTYPE_BF16, .rows = 13, .n_in = 9,
		.n_out = 3},
	MATMUL(F8_E4M3)
	{.name = "odd length F8_E4M3", .op = OP_MATMUL, .type = DTYPE_F8_E4M3, .rows = 5, .n_in = 1037,
		.n_out = 131},
	{.name = "chunk, odd length F8_E4M3", .op = OP_MATMUL, .type = DTYPE_F8_E4M3, .rows = 70,
		.n_in = 301, .n_out = 131},
	{.name = "o_proj Q8_0", .op = OP_MATMUL, .type = DTYPE_Q8_0, .rows = 2, .n_in = 16384,
		.n_out = 10},
	{.name = "many rows Q8_0", .op = OP_MATMUL, .type = DTYPE_Q8_0, .rows = 211, .n_in = 1024,
		.n_out = 75},
	{.name = "many rows Q4_K", .op = OP_MATMUL, .type = DTYPE_Q4_K, .rows = 130, .n_in = 256,
		.n_out = 130},
	/* an odd number of super-blocks, of which Q4_K takes two at a time */
	{.name = "odd many Q4_K", .op = OP_MATMUL, .type = DTYPE_Q4_K, .rows = 40, .n_in = 2304,
		.n_out = 75},
	{.name = "router F32", .op = OP_MATMUL, .type = DTYPE_F32, .rows = 4, .n_in = 6144,
		.n_out = 64},
	{.name = "k_b Q8_0", .op = OP_STACKED_MATMUL, .type = DTYPE_Q8_0, .rows = 5, .n_in = 192,
		.n_out = 512, .heads = 4},
	{.name = "short k_b Q8_0", .op = OP_STACKED_MATMUL, .type = DTYPE_Q8_0, .rows = 9, .n_in = 64,
		.n_out = 48, .heads = 3},
	{.name = "odd k_b Q8_0", .op = OP_STACKED_MATMUL, .type = DTYPE_Q8_0, .rows = 5, .n_in = 256,
		.n_out = 37, .heads = 9},
	{.name = "v_b Q4_K", .op = OP_STACKED_MATMUL, .type = DTYPE_Q4_K, .rows = 5, .n_in = 512,
		.n_out = 37, .heads = 5},
	{.name = "odd v_b Q4_K", .op = OP_STACKED_MATMUL, .type = DTYPE_Q4_K, .rows = 12, .n_in = 768,
		.n_out = 37, .heads = 5},
	{.name = "v_b Q8_0", .op = OP_STACKED_MATMUL, .type = DTYPE_Q8_0, .rows = 1, .n_in = 512,
		.n_out = 256, .heads = 5},
	{.name = "k_b BF16", .op = OP_STACKED_MATMUL, .type = DTYPE_BF16, .rows = 3, .n_in = 192,
		.n_out = 65, .heads = 7},
	{.name = "k_b Q5_0", .op = OP_STACKED_MATMUL, .type = DTYPE_Q5_0, .rows = 3, .n_in = 192,
		.n_out = 65, .heads = 7},
	{.name = "chunk k_b Q5_1", .op = OP_STACKED_MATMUL, .type = DTYPE_Q5_1, .rows = 21,
		.n_in = 192, .n_out = 140, .heads = 5},
	{.name = "odd addresses MXFP4", .op = OP_STACKED_MATMUL, .type = DTYPE_MXFP4, .rows = 5,
		.n_in = 96, .n_out = 65, .heads = 3},
	{.name = "chunk, odd addresses MXFP4", .op = OP_STACKED_MATMUL, .type = DTYPE_MXFP4,
		.rows = 19, .n_in = 96, .n_out = 65, .heads = 3},
	{.name = "v_b NVFP4", .op = OP_STACKED_MATMUL, .type = DTYPE_NVFP4, .rows = 1, .n_in = 192,
		.n_out = 65, .heads = 3},
	{.name = "chunk F32", .op = OP_STACKED_MATMUL, .type = DTYPE_F32, .rows = 19, .n_in = 50,
		.n_out = 31, .heads = 3},
	{.name = "chunk Q8_0", .op = OP_STACKED_MATMUL, .type = DTYPE_Q8_0, .rows = 21, .n_in = 192,
		.n_out = 140, .heads = 7},
	{.name = "odd F32", .op = OP_STACKED_MATMUL, .type = DTYPE_F32, .rows = 9, .n_in = 50,
		.n_out = 31, .heads = 3},
	{.name = "wide", .op = OP_FFN, .type = DTYPE_Q8_0, .rows = 3, .n_in = 6144, .n_out = 256,
		.plain = true},
	{.name = "odd", .op = OP_FFN, .type = DTYPE_Q8_0, .rows = 2, .n_in = 96, .n_out = 224},
	{.name = "K", .op = OP_FFN, .type = DTYPE_Q4_K, .rows = 8, .n_in = 768, .n_out = 256,
		.plain = true},
	{.name = "other", .op = OP_FFN, .type = DTYPE_Q5_K, .rows = 3, .n_in = 256, .n_out = 256},
	{.name = "minima Q5_1", .op = OP_FFN, .type = DTYPE_Q5_1, .rows = 3, .n_in = 768, .n_out = 288},
	{.name = "one row MXFP4", .op = OP_FFN, .type = DTYPE_MXFP4, .rows = 1, .n_in = 2048,
		.n_out = 160, .plain = true},
	{.name = "chunk Q4_1", .op = OP_FFN, .type = DTYPE_Q4_1, .rows = 33, .n_in = 288, .n_out = 96},
	{.name = "floats", .op = OP_FFN, .type = DTYPE_BF16, .rows = 2, .n_in = 320, .n_out = 33},
	{.name = "block scales", .op = OP_FFN, .type = DTYPE_F8_E4M3, .rows = 3, .n_in = 384,
		.n_out = 272, .plain = true},
	{.name = "chunk, block scales", .op = OP_FFN, .type = DTYPE_F8_E4M3, .rows = 41, .n_in = 272,
		.n_out = 384},
	{.name = "wide", .op = OP_SWIGLU, .rows = 2, .n_in = 12288},
	{.name = "odd", .op = OP_SWIGLU, .rows = 3, .n_in = 333},
	{.name = "near", .op = OP_ROPE_ANGLES, .rows = 9, .dim = 64, .far = 5000},
	{.name = "far", .op = OP_ROPE_ANGLES, .rows = 9, .dim = 64, .far = 1048575},
	{.name = "one head", .op = OP_ROPE, .rows = 5, .dim = 64, .heads = 1, .n_in = 64, .n_out = 64,
		.far = 300},
	{.name = "query", .op = OP_ROPE, .rows = 3, .dim = 64, .heads = 64, .n_in = 256, .n_out = 576,
		.far = 90000},
	{.name = "F32", .op = OP_LATENTS, .type = DTYPE_F32, .rows = 8, .n_out = 2048, .n_value = 512,
		.n_in = 128, .dim = 64, .far = 40},
	{.name = "F16", .op = OP_LATENTS, .type = DTYPE_F16, .rows = 8, .n_out = 2048, .n_value = 512,
		.n_in = 128, .dim = 64, .far = 40},
	{.name = "shared layer F16", .op = OP_LATENTS, .type = DTYPE_F16, .rows = 3, .n_out = 256,
		.n_value = 512, .dim = 64, .far = 40},
	{.name = "pairs F16", .op = OP_LATENTS, .type = DTYPE_F16, .rows = 40, .n_value = 512,
		.n_in = 128, .dim = 64, .far = 40},
	{.name = "odd F32", .op = OP_LATENTS, .type = DTYPE_F32, .rows = 5, .n_out = 9001,
		.n_value = 27, .n_in = 301, .dim = 6, .far = 40},
	{.name = "key F32", .op = OP_LATENTS, .type = DTYPE_F32, .rows = 5, .n_in = 64, .dim = 64,
		.far = 40},
	{.name = "pocket Q8_0", .op = OP_QUERY, .type = DTYPE_Q8_0, .rows = 3, .n_in = 256,
		.n_out = 256, .n_value = 512, .dim = 64, .heads = 128, .top_k = 1024, .n_used = 44,
		.far = 40},
	{.name = "pocket Q4_K", .op = OP_QUERY, .type = DTYPE_Q4_K, .rows = 3, .n_in = 256,
		.n_out = 256, .n_value = 512, .dim = 64, .heads = 128, .top_k = 1024, .n_used = 44,
		.plain = true, .far = 40},
	{.name = "shared layer", .op = OP_QUERY, .type = DTYPE_Q8_0, .rows = 3, .n_in = 768,
		.n_out = 512, .n_value = 256, .dim = 32, .top_k = 301, .far = 40},
	{.name = "few Q4_K", .op = OP_QUERY, .type = DTYPE_Q4_K, .rows = 3, .n_in = 1280, .n_out = 2048,
		.n_value = 27, .dim = 6, .heads = 29, .top_k = 19, .n_used = 5, .far = 40},
	{.name = "odd", .op = OP_QUERY, .type = DTYPE_Q8_0, .rows = 2, .n_in = 96, .n_out = 160,
		.n_value = 27, .dim = 6, .heads = 29, .top_k = 77, .n_used = 3, .far = 40},
	{.name = "long", .op = OP_QUERY, .type = DTYPE_Q8_0, .rows = 2, .n_in = 256, .n_out = 4608,
		.n_value = 64, .dim = 6, .top_k = 77, .far = 40},
	{.name = "floats", .op = OP_QUERY, .type = DTYPE_BF16, .rows = 3, .n_in = 320, .n_out = 256,
		.n_value = 64, .dim = 32, .heads = 64, .top_k = 99, .n_used = 8, .far = 40},
	{.name = "Q5_0", .op = OP_QUERY, .type = DTYPE_Q5_0, .rows = 3, .n_in = 320, .n_out = 256,
		.n_value = 64, .dim = 32, .heads = 64, .top_k = 99, .n_used = 8, .far = 40},
	{.name = "chunk", .op = OP_QUERY, .type = DTYPE_Q8_0, .rows = 20, .n_in = 256, .n_out = 256,
		.n_value = 512, .dim = 64, .heads = 128, .top_k = 256, .n_used = 8, .far = 40},
	{.name = "pocket F32", .op = OP_INDEX_SELECT, .type = DTYPE_F32, .rows = 9, .heads = 4,
		.dim = 128, .top_k = 128, .far = 700},
	{.name = "pocket F16", .op = OP_INDEX_SELECT, .type = DTYPE_F16, .rows = 9, .heads = 4,
		.dim = 128, .top_k = 128, .far = 700},
	{.name = "full F16", .op = OP_INDEX_SELECT, .type = DTYPE_F16, .rows = 3, .heads = 32,
		.dim = 128, .top_k = 2048, .far = 4999},
	{.name = "short", .op = OP_INDEX_SELECT, .type = DTYPE_F32, .rows = 5, .heads = 4, .dim = 128,
		.top_k = 128, .far = 127},
	{.name = "chunk F16", .op = OP_INDEX_SELECT, .type = DTYPE_F16, .rows = 30, .heads = 4,
		.dim = 128, .top_k = 128, .far = 700},
	{.name = "chunk ties F16", .op = OP_INDEX_SELECT, .type = DTYPE_F16, .rows = 21, .heads = 16,
		.dim = 64, .top_k = 100, .far = 5000, .whole = true},
	{.name = "ties F32", .op = OP_INDEX_SELECT, .type = DTYPE_F32, .rows = 12, .heads = 4,
		.dim = 64, .top_k = 50, .far = 900, .whole = true},
	{.name = "ties F16", .op = OP_INDEX_SELECT, .type = DTYPE_F16, .rows = 12, .heads = 16,
		.dim = 64, .top_k = 7, .far = 333, .whole = true},
	{.name = "pocket F32", .op = OP_ATTEND, .type = DTYPE_F32, .rows = 5, .heads = 4, .dim = 64,
		.n_value = 512, .top_k = 128, .far = 600},
	{.name = "pocket F16", .op = OP_ATTEND, .type = DTYPE_F16, .rows = 5, .heads = 4, .dim = 64,
		.n_value = 512, .top_k = 128, .far = 600},
	{.name = "full F16", .op = OP_ATTEND, .type = DTYPE_F16, .rows = 2, .heads = 64, .dim = 64,
		.n_value = 512, .top_k = 300, .far = 999},
	{.name = "chunk F16", .op = OP_ATTEND, .type = DTYPE_F16, .rows = 40, .heads = 4, .dim = 64,
		.n_value = 512, .top_k = 128, .far = 600},
	{.name = "chunk F32", .op = OP_ATTEND, .type = DTYPE_F32, .rows = 18, .heads = 4, .dim = 64,
		.n_value = 512, .top_k = 128, .far = 600},
	{.name = "rotated F32", .op = OP_ATTEND, .type = DTYPE_F32, .rows = 5, .heads = 4, .dim = 64,
		.n_value = 512, .top_k = 128, .far = 600, .rotate = true},
	{.name = "rotated F16", .op = OP_ATTEND, .type = DTYPE_F16, .rows = 3, .heads = 64, .dim = 64,
		.n_value = 512, .top_k = 300, .far = 999, .rotate = true},
	{.name = "chunk rotated F16", .op = OP_ATTEND, .type = DTYPE_F16, .rows = 40, .heads = 4,
		.dim = 64, .n_value = 512, .top_k = 128, .far = 600, .rotate = true},
	{.name = "odd F32", .op = OP_ATTEND, .type = DTYPE_F32, .rows = 6, .heads = 7, .dim = 6,
		.n_value = 29, .top_k = 33, .far = 70},
	{.name = "pocket F16", .op = OP_MLA, .type = DTYPE_F16, .rows = 5, .n_in = 192, .n_out = 256,
		.heads = 4, .dim = 64, .n_value = 512, .top_k = 128, .n_used = 48, .far = 600},
	{.name = "pocket F32", .op = OP_MLA, .type = DTYPE_F32, .rows = 3, .n_in = 192, .n_out = 256,
		.heads = 4, .dim = 64, .n_value = 512, .top_k = 65, .far = 600},
	{.name = "small F32", .op = OP_MLA, .type = DTYPE_F32, .rows = 18, .n_in = 32, .n_out = 20,
		.heads = 3, .dim = 8, .n_value = 64, .top_k = 20, .far = 70},
	{.name = "pocket", .op = OP_ROUTE, .rows = 40, .heads = 32, .n_used = 4},
	{.name = "full", .op = OP_ROUTE, .rows = 9, .heads = 256, .n_used = 8},
	{.name = "groups", .op = OP_ROUTE, .rows = 20, .heads = 64, .n_used = 6, .n_group = 8,
		.n_group_used = 3, .plain = true},
	{.name = "full", .op = OP_ROUTERS, .rows = 3, .n_in = 6144, .heads = 256, .n_used = 8},
	{.name = "many", .op = OP_ROUTERS, .rows = 29, .n_in = 6144, .heads = 256, .n_used = 8},
	{.name = "narrow", .op = OP_ROUTERS, .rows = 5, .n_in = 4608, .heads = 36, .n_used = 9,
		.plain = true},
	{.name = "pocket", .op = OP_ROUTERS, .rows = 18, .n_in = 256, .heads = 32, .n_used = 4},
	{.name = "groups", .op = OP_ROUTERS, .rows = 2, .n_in = 4096, .heads = 64, .n_used = 6,
		.n_group = 8, .n_group_used = 3},
	{.name = "odd", .op = OP_ROUTERS, .rows = 2, .n_in = 5001, .heads = 45, .n_used = 3},
	ALL_TYPES(EXPERT)
	EXPERT(F8_E4M3)
	{.name = "odd F8_E4M3", .op = OP_EXPERT_FFN, .type = DTYPE_F8_E4M3, .rows = 3, .n_in = 301,
		.n_out = 147, .heads = 4, .n_used = 2},
	{.name = "chunk, odd F8_E4M3", .op = OP_EXPERT_FFN, .type = DTYPE_F8_E4M3, .rows = 90,
		.n_in = 301, .n_out = 147, .heads = 4, .n_used = 2},
	{.name = "full Q4_K", .op = OP_EXPERT_FFN, .type = DTYPE_Q4_K, .rows = 1, .n_in = 6144,
		.n_out = 256, .heads = 8, .n_used = 2},
	/* one call of both types: the card needs limbs of x in device memory for the first, and the
	 * second's kernel makes its own, in another order */
	{.name = "IQ2_XXS and Q8_0", .op = OP_EXPERT_FFN, .type = DTYPE_IQ2_XXS, .odd_type = DTYPE_Q8_0,
		.rows = 2, .n_in = 8192, .n_out = 256, .heads = 8, .n_used = 4},
	{.name = "crowd Q8_0", .op = OP_EXPERT_FFN, .type = DTYPE_Q8_0, .rows = 150, .n_in = 256,
		.n_out = 64, .heads = 2, .n_used = 1},
	{.name = "wide", .op = OP_MOE_COMBINE, .rows = 3, .n_in = 6144, .n_used = 8},
	{.name = "odd", .op = OP_MOE_COMBINE, .rows = 5, .n_in = 77, .n_used = 3},
	{.name = "long", .op = OP_MOE_COMBINE, .rows = 2, .n_in = 8196, .n_used = 9},
	{.name = "pocket", .op = OP_MOE_COMBINE, .rows = 18, .n_in = 256, .n_used = 4},
};
/* clang-format on */
const int op_cases_n = ARRAY_LEN(op_cases);

int op_case_width(const struct op_case *c)
{
	switch (c->op) {
	case OP_MATMUL:
		return c->n_out + 2 * (c->n_out / 2 + 1);
	case OP_STACKED_MATMUL:
	case OP_MLA:
		return c->heads * c->n_out;
	case OP_ROPE_ANGLES:
		return c->dim;
	case OP_ROPE:
		return c->heads * c->dim;
	case OP_LATENTS:
		return c->n_out + (c->n_value ? c->n_value + c->dim : 0) + c->n_in;
	case OP_QUERY:
		return c->top_k + c->n_value + c->dim + (c->heads ? c->heads + 2 * c->n_used : 0);
	case OP_MOE_COMBINE:
		return 2 * c->n_in;
	case OP_INDEX_SELECT:
		return c->top_k + 1;
	case OP_ATTEND:
		return c->heads * c->n_value;
	case OP_ROUTE:
		return 2 * c->n_used;
	case OP_ROUTERS:
		return c->n_in + 3 * c->n_used;
	case OP_EXPERT_FFN:
		return c->n_used * c->n_in;
	default:
		return c->n_in;
	}
}
