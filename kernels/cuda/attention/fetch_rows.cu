/* SPDX-License-Identifier: MIT */
/*
 * Selected rows of a cache in host memory, copied to the card by reads of mapped memory: the host
 * does not learn the selection, and a captured graph holds the copy.
 *
 * fetch_kernel: grid (groups of ENTRIES list entries) x rows of the step, block THREADS. The first
 * warp of a block lists the cache rows that the block copies; then all threads copy them, UNROLL
 * loads each before the first store. Of several rows of a step each cache row is copied by the
 * block that sets its bit in a map first.
 *
 * Bytes moved: every selected cache row once over the link, for one row of GLM-5.2's 2,048 x 1,152
 * bytes a layer; the lists.
 */
#include "kernels/cuda/attention/attention.cuh"

#define ENTRIES 32
#define THREADS 256
#define UNROLL  4

struct fetch_args {
	struct fetch_rows a;
	const int32_t *base;
	int groups, units; /* groups of a row of the step; units of a cache row */
	uint32_t *taken;   /* [capacity / 32 + 1], zero before; NULL: every list entry is copied */
};

/* U: what a thread loads at once */
template <typename U>
static __global__ void __launch_bounds__(THREADS)
	fetch_kernel(const __grid_constant__ struct fetch_args g)
{
	__shared__ int64_t mine[ENTRIES];
	__shared__ int n_mine;
	launch_dependents();
	grid_dependency_wait();
	int r = blockIdx.x / g.groups, first = blockIdx.x % g.groups * ENTRIES, n_sel = g.a.n_sel[r];
	if (first >= n_sel)
		return;
	if (threadIdx.x < 32) {
		int entry = first + (int)threadIdx.x;
		bool take = entry < n_sel;
		int64_t row = take ? g.base[r] + (int64_t)g.a.sel[(int64_t)r * g.a.sel_stride + entry] : 0;
		if (take && g.taken) {
			uint32_t *word = g.taken + row / 32, bit = 1u << row % 32;
			take = !(__ldcg(word) & bit) && !(atomicOr(word, bit) & bit);
		}
		unsigned all = __ballot_sync(0xffffffffu, take);
		if (take)
			mine[__popc(all & ((1u << threadIdx.x) - 1))] = row;
		if (!threadIdx.x)
			n_mine = __popc(all);
	}
	__syncthreads();
	const U *from = (const U *)g.a.from.data;
	U *to = (U *)g.a.to.data;
	int total = n_mine * g.units;
	for (int i = threadIdx.x; i < total; i += UNROLL * THREADS) {
		U v[UNROLL];
		int64_t at[UNROLL];
#pragma unroll
		for (int k = 0; k < UNROLL; k++) {
			int j = i + k * THREADS;
			at[k] = j < total ? mine[j / g.units] * g.units + j % g.units : -1;
			if (at[k] >= 0)
				v[k] = __ldcg(from + at[k]);
		}
#pragma unroll
		for (int k = 0; k < UNROLL; k++)
			if (at[k] >= 0)
				to[at[k]] = v[k];
	}
}

void cuda_fetch_rows(struct backend *base, const struct batch *rows, const struct fetch_rows *a)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "fetch_rows") || !rows->n)
		return;
	int longest = rows->max_pos < a->sel_stride ? rows->max_pos + 1 : a->sel_stride,
		row_bytes = a->from.width * (a->from.type == DTYPE_F16 ? 2 : 4);
	struct fetch_args g = {*a, rows->base, (longest + ENTRIES - 1) / ENTRIES, 0, NULL};
	if (rows->n > 1) {
		size_t bytes = ((size_t)a->capacity / 32 + 1) * sizeof *g.taken;
		g.taken = (uint32_t *)cuda_scratch(b, bytes);
		if (!g.taken || !cuda_check(b, cudaMemsetAsync(g.taken, 0, bytes, b->stream)))
			return;
		b->next_serialized = true;
	}
	dim3 grid((unsigned)g.groups * (unsigned)rows->n);
	bool wide = !(((uintptr_t)a->from.data | (uintptr_t)a->to.data | (unsigned)row_bytes) & 15);
	g.units = row_bytes / (wide ? 16 : 2);
	if (wide)
		cuda_launch(b, fetch_kernel<uint4>, grid, THREADS, 0, g);
	else
		cuda_launch(b, fetch_kernel<unsigned short>, grid, THREADS, 0, g);
}
