/* SPDX-License-Identifier: MIT */
/*
 * Operands of `bench ops` in the memory of a backend: what one op takes is released together.
 *
 * The first failure is kept in `code` and `err`. Every later call does nothing and returns NULL. So
 * an op allocates all of its operands and then checks `code` once.
 */
#ifndef GLM_TOOLS_BENCH_POOL_H
#define GLM_TOOLS_BENCH_POOL_H

#include "kernels/backend.h"

struct bench_pool {
	struct backend *backend;
	struct {
		void *p;
		size_t bytes;
		enum mem_kind kind;
	} part[24];
	size_t n;
	int code; /* the first failure */
	struct err err;
};

void *bench_pool_get(struct bench_pool *p, enum mem_kind kind, size_t bytes);
/* Device memory that holds the pattern over and over. */
void *bench_pool_pattern(
	struct bench_pool *p, size_t bytes, const void *pattern, size_t pattern_bytes);
float *bench_pool_floats(struct bench_pool *p, size_t n); /* ordinary values */
int32_t *bench_pool_ints(struct bench_pool *p, const int32_t *host, size_t n);

/* `copies` matrices of n_in x n_out x n_stack, *stride bytes apart: 64 random rows, quantised
 * (where we cannot quantise: blocks of random bits), repeated over everything. Returns the first.
 */
struct weight bench_pool_weight(struct bench_pool *p, enum dtype type, int64_t n_in, int64_t n_out,
	int64_t n_stack, int copies, size_t *stride);

void bench_pool_release(struct bench_pool *p);

#endif
