/* SPDX-License-Identifier: MIT */
/*
 * The list of shapes on which every op of kernels/backend.h is tried, with inputs made from a seed
 * (outliers included) and formulas in double precision. test_backend_cpu holds the CPU backend
 * against the formulas; a test of another backend holds that one against the CPU over the same
 * list.
 */
#ifndef GLM_TESTS_OP_CASES_H
#define GLM_TESTS_OP_CASES_H

#include "kernels/backend.h"

enum op_kind {
	OP_EMBED,
	OP_RMS_NORM,
	OP_MATMUL, /* three parts: the second one adds, the third one has its own input */
	OP_STACKED_MATMUL,
	OP_FFN,
	OP_SWIGLU,
	OP_ROPE_ANGLES,
	OP_ROPE,
	OP_LATENTS,
	OP_QUERY, /* latents with its products */
	OP_INDEX_SELECT,
	OP_ATTEND,
	OP_MLA, /* of the bits of the three ops that it is */
	OP_ROUTE,
	OP_ROUTERS, /* two of them, with the norms and products before: of the bits of the ops that it
				   is */
	OP_EXPERT_FFN,
	OP_MOE_COMBINE,
	OP_LIMIT,
};

/* Fields that an op does not have stay 0. */
struct op_case {
	const char *name;
	enum op_kind op;
	enum dtype type; /* of the weights or of the cache; mla: of the cache, its weights are Q8_0 */
	enum dtype up_type;  /* expert_ffn: of the up matrix; 0: as gate */
	enum dtype odd_type; /* expert_ffn: of experts with odd numbers; 0: as the others */
	int rows;
	int n_in, n_out; /* ffn, expert_ffn: n_embd and n_ff; norms, swiglu, moe_combine: n_in values a
						row; mla: of a head; query: of h, of its latent */
	int heads; /* heads, or matrices of a stack, or experts; query: width of the key, 0: no indexer
				*/
	int dim;   /* rope.dim; index: head_dim */
	int n_value; /* attend, mla; latents: n_kv (n_out: n_q, n_in: width of the key) */
	int top_k;   /* index; attend, mla: the longest list; query: length of the query */
	int n_used; /* query: length of the indexer's weights and query; mla: rows of the product behind
				   it */
	int n_group, n_group_used;
	int far;     /* the largest position */
	bool whole;  /* index: small whole numbers, so scores are exact and full of ties */
	bool plain;  /* route, routers: not normalised; ffn: y is not added to; query: weights_proj is
					F32 */
	bool rotate; /* attend: the rest of the query comes unrotated */
};

extern const struct op_case op_cases[];
extern const int op_cases_n;

extern const char *const op_names[OP_LIMIT];

/* Output values of one row. index_select: sel and then n_sel (unused places are -1); route: ids,
 * then weights; routers: the normed x, ids and weights of the first, ids of the second. */
int op_case_width(const struct op_case *c);

/* Runs rows [first, first + n) of the case as one call of the op: [n][width], freed by the caller;
 * values that were not written are NaN. A failure of the backend fails the test. */
float *op_case_run(struct backend *b, const struct op_case *c, int first, int n);

/* Fails the test where a and b differ. `what` says how b was computed. */
void op_case_same_bits(
	const struct op_case *c, const char *what, const float *a, const float *b, size_t n);

/* The formula: value and the magnitude that its rounding errors are proportional to, both
 * [rows][width]; a float result should lie within a few times 2^-24 * scale. Not for index_select.
 */
void op_case_reference(const struct op_case *c, double *value, double *scale);

/* index_select: score and error magnitude of positions [0, pos] of row r; returns pos + 1. */
int op_case_scores(const struct op_case *c, int r, double *score, double *scale);

/* Fails the test unless both selections have the same counts, ascend, and whoever is in one only
 * has a score that rounding may move past the other's: tolerance in units of 2^-24 of a score's
 * magnitude. Where scores are exact (`whole`; heads and dim are powers of four) they are equal. */
void op_case_check_selection(
	const struct op_case *c, const float *want, const float *got, double tolerance);

/* ---- inputs, for tests that go below the ops ---- */

/* n floats of one buffer of a case: normal numbers, now and then one 30 times as large. `tag` tells
 * buffers apart. */
void op_random(uint64_t seed, int tag, float *out, size_t n);

/* Packed rows with every bit pattern the type allows, scales finite and moderate. bytes: whole
 * blocks. */
void op_random_blocks(uint64_t seed, int tag, enum dtype type, void *out, size_t bytes);

#endif
