/* SPDX-License-Identifier: MIT */
/* Operands of `bench ops` in the memory of a backend: what one op takes is released together. */
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
};

/* All return 0 or the backend's failure; *out belongs to the pool. */
int bench_pool_get(
	struct bench_pool *p, enum mem_kind kind, size_t bytes, void *out, struct err *e);

/* n ordinary values */
int bench_pool_floats(struct bench_pool *p, size_t n, float **out, struct err *e);

int bench_pool_ints(
	struct bench_pool *p, const int32_t *host, size_t n, int32_t **out, struct err *e);

/* `copies` matrices of n_in x n_out x n_stack, *stride bytes apart: 64 random rows, quantised,
 * repeated over everything. *w: the first. */
int bench_pool_weight(struct bench_pool *p, enum dtype type, int64_t n_in, int64_t n_out,
	int64_t n_stack, int copies, struct weight *w, size_t *stride, struct err *e);

void bench_pool_release(struct bench_pool *p);

#endif
