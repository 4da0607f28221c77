/* SPDX-License-Identifier: MIT */
/* Private to tests/kernels: the inputs of each case, on the host, the same for runs and formulas.
 */
#ifndef GLM_TESTS_OP_INPUTS_H
#define GLM_TESTS_OP_INPUTS_H

#include "tests/kernels/op_cases.h"

#define OP_SEQUENCES    3 /* mixed in one batch */
#define OP_ATTEND_SCALE 0.0625f

/* What one run or formula allocates: released together. */
struct op_pool {
	struct backend *b; /* NULL: host memory only */
	void *host[128];
	void *device[128];
	size_t device_bytes[128];
	int n_host, n_device;
	int rc;
	struct err *e;
	uint64_t seed;
};

void op_pool_free(struct op_pool *p);

/* Zeroed; released with the pool. */
void *op_host_new(struct op_pool *p, size_t bytes);

/* op_random with the pool's seed */
float *op_floats(struct op_pool *p, int tag, size_t n);

uint64_t op_seed_of(const struct op_case *c);

/* A view whose data is host memory, with block scales where the type has such. */
struct weight op_weight_new(
	struct op_pool *p, int tag, enum dtype type, int64_t n_in, int64_t n_out, int64_t n_stack);

/* 0: a type without block scales. */
size_t op_scales_bytes(const struct weight *w);

const uint8_t *op_weight_row(const struct weight *w, int64_t stack, int64_t row);

/* Positions and bases of all rows: three sequences of far + 1 positions each; rows r, r + 3, ...
 * belong to one and take every position once when `append`, else any, the last one being far. */
void op_make_rows(const struct op_case *c, bool append, int32_t *pos, int32_t *base);

size_t op_cache_rows(const struct op_case *c);

/* Contents of a cache as floats that its type can hold. `whole`: -2 .. 2. */
float *op_cache_new(struct op_pool *p, const struct op_case *c, int width);

/* Angles of all rows, [rows][dim / 2] pairs; here simply a unit vector of a random direction. */
float *op_rope_new(struct op_pool *p, const struct op_case *c);

void op_embed_ids(const struct op_case *c, int32_t *ids);

float *op_inverse_frequencies(struct op_pool *p, const struct op_case *c);

/* q [rows][heads][dim] and the heads' weights [rows][heads] */
void op_index_inputs(struct op_pool *p, const struct op_case *c, float **q, float **weight);

/* Lists of all rows: ascending, of at most top_k positions up to pos; the first row has one, the
 * last top_k. */
void op_attend_lists(const struct op_case *c, int32_t *sel, int32_t *n_sel);

/* Logits and bias of which some are equal, so that choices tie. */
void op_route_inputs(struct op_pool *p, const struct op_case *c, float **logits, float **bias);
/* routers: weights of router i, with rows that are equal, and its biases */
struct weight op_router_new(struct op_pool *p, const struct op_case *c, int i, float **bias);

/* Which expert computes a place: expert 0 gets a large share. */
int op_expert_of(const struct op_case *c, int place);

/* Weights of expert i: gate, up, down; the down matrix is of another type. */
void op_expert_weights(struct op_pool *p, const struct op_case *c, int i, struct weight w[3]);

#endif
