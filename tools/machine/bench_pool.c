/* SPDX-License-Identifier: MIT */
#include "tools/machine/bench_pool.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/quantize.h"

#include <stdlib.h>

void *bench_pool_get(struct bench_pool *p, enum mem_kind kind, size_t bytes)
{
	void *m = NULL;
	if (p->n == ARRAY_LEN(p->part))
		bug("bench: too many buffers in one op");
	if (p->code || (p->code = p->backend->ops->alloc(p->backend, kind, bytes, &m, &p->err)))
		return NULL;
	p->part[p->n].p = m;
	p->part[p->n].bytes = bytes;
	p->part[p->n++].kind = kind;
	return m;
}

void bench_pool_release(struct bench_pool *p)
{
	while (p->n--)
		p->backend->ops->free(p->backend, p->part[p->n].kind, p->part[p->n].p, p->part[p->n].bytes);
	p->n = 0;
}

void *bench_pool_pattern(
	struct bench_pool *p, size_t bytes, const void *pattern, size_t pattern_bytes)
{
	void *device = bench_pool_get(p, MEM_DEVICE, bytes);
	for (size_t at = 0; device && at < bytes; at += pattern_bytes)
		p->backend->ops->upload(
			p->backend, (uint8_t *)device + at, pattern, MIN(bytes - at, pattern_bytes));
	if (device)
		p->code = p->backend->ops->wait(p->backend, &p->err);
	return device;
}

/* Standard normal would do as well; the values only have to be ordinary. */
static void fill_floats(float *x, size_t n, uint64_t seed)
{
	struct rng r = {seed};
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(rng_unit(&r) * 2 - 1);
}

float *bench_pool_floats(struct bench_pool *p, size_t n)
{
	const size_t n_host = MIN(n, (size_t)1 << 16);
	float *host = NEW_ARRAY(float, n_host);
	fill_floats(host, n_host, n);
	float *device = bench_pool_pattern(p, n * sizeof(float), host, n_host * sizeof(float));
	free(host);
	return device;
}

int32_t *bench_pool_ints(struct bench_pool *p, const int32_t *host, size_t n)
{
	return bench_pool_pattern(p, n * sizeof(int32_t), host, n * sizeof(int32_t));
}

/* Blocks of random bits; the two bytes where a codebook type has its scale make an ordinary half.
 */
static void fill_blocks(enum dtype type, uint8_t *p, size_t bytes, uint64_t seed)
{
	struct rng r = {seed};
	for (size_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(rng_u64(&r) >> 56);
	for (size_t at = 0; at < bytes; at += dtype_info(type)->block_bytes)
		store_u16(p + at, 0x2800);
}

struct weight bench_pool_weight(struct bench_pool *p, enum dtype type, int64_t n_in, int64_t n_out,
	int64_t n_stack, int copies, size_t *stride)
{
	uint64_t row_bytes;
	if (!dtype_row_bytes(type, (uint64_t)n_in, &row_bytes))
		bug("bench: %lld values are no row of %s", (long long)n_in, dtype_name(type));
	struct weight w = {.type = type,
		.n_in = n_in,
		.n_out = n_out,
		.n_stack = n_stack,
		.row_bytes = row_bytes,
		.stack_bytes = (size_t)n_out * row_bytes};
	*stride = num_align_up((uint64_t)n_stack * w.stack_bytes, 4096);
	const size_t tile_rows = 64;
	float *row = NEW_ARRAY(float, n_in);
	uint8_t *tile = NEW_ARRAY(uint8_t, tile_rows * row_bytes);
	for (size_t i = 0; i < tile_rows; i++) {
		fill_floats(row, (size_t)n_in, i + 1);
		if (quantize_supported(type))
			quantize_row(type, row, tile + i * row_bytes, (size_t)n_in, NULL);
		else
			fill_blocks(type, tile + i * row_bytes, (size_t)row_bytes, i + 1);
	}
	w.data = bench_pool_pattern(p, *stride * (size_t)copies, tile, tile_rows * row_bytes);
	free(row);
	free(tile);
	return w;
}
