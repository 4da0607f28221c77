/* SPDX-License-Identifier: MIT */
#include "tools/machine/bench_pool.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/quantize.h"

#include <stdlib.h>
#include <string.h>

int bench_pool_get(struct bench_pool *p, enum mem_kind kind, size_t bytes, void *out, struct err *e)
{
	void *m = NULL;
	if (p->n == ARRAY_LEN(p->part))
		bug("bench: too many buffers in one op");
	int rc = p->backend->ops->alloc(p->backend, kind, bytes, &m, e);
	if (rc)
		return rc;
	p->part[p->n].p = m;
	p->part[p->n].bytes = bytes;
	p->part[p->n++].kind = kind;
	memcpy(out, &m, sizeof m);
	return 0;
}

void bench_pool_release(struct bench_pool *p)
{
	while (p->n--)
		p->backend->ops->free(p->backend, p->part[p->n].kind, p->part[p->n].p, p->part[p->n].bytes);
	p->n = 0;
}

/* Standard normal would do as well; the values only have to be ordinary. */
static void fill_floats(float *x, size_t n, uint64_t seed)
{
	struct rng r = {seed};
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(rng_unit(&r) * 2 - 1);
}

int bench_pool_floats(struct bench_pool *p, size_t n, float **out, struct err *e)
{
	int rc = bench_pool_get(p, MEM_DEVICE, n * sizeof(float), out, e);
	if (rc)
		return rc;
	float *host = NEW_ARRAY(float, MIN(n, (size_t)1 << 16));
	fill_floats(host, MIN(n, (size_t)1 << 16), n);
	for (size_t at = 0; at < n; at += (size_t)1 << 16)
		p->backend->ops->upload(
			p->backend, *out + at, host, MIN(n - at, (size_t)1 << 16) * sizeof(float));
	rc = p->backend->ops->wait(p->backend, e);
	free(host);
	return rc;
}

int bench_pool_ints(
	struct bench_pool *p, const int32_t *host, size_t n, int32_t **out, struct err *e)
{
	int rc = bench_pool_get(p, MEM_DEVICE, n * sizeof(int32_t), out, e);
	if (rc)
		return rc;
	p->backend->ops->upload(p->backend, *out, host, n * sizeof(int32_t));
	return p->backend->ops->wait(p->backend, e);
}

int bench_pool_weight(struct bench_pool *p, enum dtype type, int64_t n_in, int64_t n_out,
	int64_t n_stack, int copies, struct weight *w, size_t *stride, struct err *e)
{
	uint64_t row_bytes;
	if (!dtype_row_bytes(type, (uint64_t)n_in, &row_bytes))
		bug("bench: %lld values are no row of %s", (long long)n_in, dtype_name(type));
	size_t stack_bytes = (size_t)n_out * row_bytes,
		   bytes = num_align_up((uint64_t)n_stack * stack_bytes, 4096);
	uint8_t *device;
	int rc = bench_pool_get(p, MEM_DEVICE, bytes * (size_t)copies, &device, e);
	if (rc)
		return rc;
	const size_t tile_rows = 64;
	float *row = NEW_ARRAY(float, n_in);
	uint8_t *tile = NEW_ARRAY(uint8_t, tile_rows * row_bytes);
	for (size_t i = 0; i < tile_rows; i++) {
		fill_floats(row, (size_t)n_in, i + 1);
		quantize_row(type, row, tile + i * row_bytes, (size_t)n_in, NULL);
	}
	size_t total = bytes * (size_t)copies, tile_bytes = tile_rows * row_bytes;
	for (size_t at = 0; at < total; at += tile_bytes)
		p->backend->ops->upload(p->backend, device + at, tile, MIN(tile_bytes, total - at));
	rc = p->backend->ops->wait(p->backend, e);
	free(row);
	free(tile);
	*w = (struct weight){.data = device,
		.type = type,
		.n_in = n_in,
		.n_out = n_out,
		.n_stack = n_stack,
		.row_bytes = row_bytes,
		.stack_bytes = stack_bytes};
	*stride = bytes;
	return rc;
}
