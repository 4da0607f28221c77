/* SPDX-License-Identifier: MIT */
/*
 * Absorbed MLA over a list of cache rows (sparse attention). A task is one row of the step and a
 * block of its heads. All heads share the key, so a task reads the cache twice (scores, then
 * values), ROW_BLOCK rows at a time, converted to floats if it holds halves. Scores are dots
 * (cpu_dot.h). Softmax: the values are added in list order with weights e^(s - max) and divided by
 * the sum of the weights at the end. No result depends on how heads are blocked.
 */
#include "kernels/cpu/cpu_internal.h"

#include "src/base/num.h"

#include <string.h>

#define ROW_BLOCK 32 /* cache rows decoded together */
/* Scores of one task: bounds the block of heads for very long lists. */
#define SCORES_MAX_BYTES ((size_t)4 << 20)

/* row[t] = floats of cache row first + sel[t] for n <= ROW_BLOCK rows: converted into buffer
 * [ROW_BLOCK][width], or the cache row itself if it holds floats. */
static void cache_rows_gather(const struct cpu_isa *isa, const struct cache_view *cache,
	int64_t first, const int32_t *sel, int n, int n_values, float *buffer, const float **row)
{
	for (int t = 0; t < n; t++) {
		const uint8_t *src = cache_row_at(cache, first + sel[t]);
		if (cache->type == DTYPE_F32) {
			row[t] = (const float *)src;
		} else {
			isa->decode(cache->type, src, buffer + t * cache->width, (size_t)n_values);
			row[t] = buffer + t * cache->width;
		}
	}
}

/* s[h][t] for n <= ROW_BLOCK cache rows; s: stride floats between heads. q: [n_heads][width] */
static void cache_rows_score(const struct cpu_isa *isa, const float *const *row, int n,
	const float *q, int n_heads, int width, float *s, int64_t stride)
{
	float out[DOT_TILE_X * DOT_TILE_W];
	struct dot_tile tile = {.n = (size_t)width, .first = true, .last = true, .out = out};
	for (int t = 0; t < n; t += DOT_TILE_W) {
		int n_w = MIN(n - t, DOT_TILE_W);
		for (int c = 0; c < DOT_TILE_W; c++)
			tile.w[c] = row[t + MIN(c, n_w - 1)];
		for (int h = 0; h < n_heads; h += DOT_TILE_X) {
			tile.n_x = MIN(n_heads - h, DOT_TILE_X);
			for (int c = 0; c < tile.n_x; c++)
				tile.x[c] = q + (int64_t)(h + c) * width;
			isa->tile(&tile);
			for (int c = 0; c < tile.n_x; c++)
				memcpy(s + (h + c) * stride + t, out + c * DOT_TILE_W, (size_t)n_w * sizeof *s);
		}
	}
}

/* Heads [head, head + n_heads) of row r. scores: [n_heads][n_sel]; buffer: [ROW_BLOCK][width] */
static void attend_heads(const struct cpu_isa *isa, const struct attend *a, int64_t base, int r,
	int head, int n_heads, float *scores, float *buffer)
{
	int n_sel = a->n_sel[r], width = a->cache.width, n_value = a->n_value;
	const int32_t *sel = a->sel + (int64_t)r * a->sel_stride;
	const float *q = a->q + ((int64_t)r * a->n_heads + head) * width, *row[ROW_BLOCK];
	float *out = a->out + ((int64_t)r * a->n_heads + head) * n_value;

	for (int t = 0; t < n_sel; t += ROW_BLOCK) {
		int n = MIN(n_sel - t, ROW_BLOCK);
		cache_rows_gather(isa, &a->cache, base, sel + t, n, width, buffer, row);
		cache_rows_score(isa, row, n, q, n_heads, width, scores + t, n_sel);
	}
	memset(out, 0, (size_t)n_heads * (size_t)n_value * sizeof *out);
	float sum[n_heads];
	for (int h = 0; h < n_heads; h++)
		sum[h] = isa->softmax(scores + (int64_t)h * n_sel, a->scale, n_sel);
	for (int t = 0; t < n_sel; t += ROW_BLOCK) {
		int n = MIN(n_sel - t, ROW_BLOCK);
		if (n_sel > ROW_BLOCK) /* else the rows are still there */
			cache_rows_gather(isa, &a->cache, base, sel + t, n, n_value, buffer, row);
		isa->weighted_rows(row, n, scores + t, n_sel, n_heads, (size_t)n_value, out, n_value);
	}
	for (int h = 0; h < n_heads; h++)
#pragma omp simd
		for (int c = 0; c < n_value; c++)
			out[(int64_t)h * n_value + c] /= sum[h];
}

struct attend_job {
	const struct cpu_isa *isa;
	const struct batch *rows;
	const struct attend *a;
	int block, n_blocks;         /* heads of a task; tasks of a row */
	size_t values, score_values; /* floats of scratch: of a thread, of its scores */
	float *scratch;
};

static void attend_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct attend_job *j = context;
	float *mine = j->scratch + (size_t)thread * j->values;
	for (; first < last; first++) {
		int r = (int)(first / j->n_blocks), head = (int)(first % j->n_blocks) * j->block;
		attend_heads(j->isa, j->a, j->rows->base[r], r, head, MIN(j->block, j->a->n_heads - head),
			mine, mine + j->score_values);
	}
}

void cpu_attend(struct backend *base, const struct batch *rows, const struct attend *a)
{
	struct cpu_backend *b = cpu_of(base);
	if (b->base.failure.code || !rows->n)
		return;
	if (a->rotate)
		cpu_rope(base, &a->rope, a->rotate, a->rotate_stride, a->q + a->n_value, a->cache.width,
			rows->n, a->n_heads);
	size_t longest = 1;
	double total = 0;
	for (int r = 0; r < rows->n; r++) {
		longest = MAX(longest, (size_t)a->n_sel[r]);
		total += a->n_sel[r];
	}
	int threads = cpu_threads_for(b, total * a->n_heads * (a->cache.width + a->n_value));
	/* with fewer rows than threads, heads are divided too: blocks of 4 to 64 heads */
	int parts = (threads + rows->n - 1) / rows->n, block = (a->n_heads + parts - 1) / parts;
	block = MIN(MAX(block, MIN(a->n_heads, 4)), 64);
	block = (int)MIN((size_t)block, MAX(SCORES_MAX_BYTES / (longest * sizeof(float)), (size_t)1));
	int n_blocks = (a->n_heads + block - 1) / block;
	size_t score_values = (size_t)block * longest + 16,
		   values = score_values + (size_t)ROW_BLOCK * (size_t)a->cache.width;
	values = num_align_up(values, 16);
	float *scratch = cpu_scratch(b, (uint64_t)threads * values * sizeof(float), "attend");
	if (!scratch)
		return;
	struct attend_job job = {.isa = b->isa,
		.rows = rows,
		.a = a,
		.block = block,
		.n_blocks = n_blocks,
		.values = values,
		.score_values = score_values,
		.scratch = scratch};
	cpu_run(b, threads, (int64_t)rows->n * n_blocks, 1, attend_task, &job);
}

void cpu_mla(struct backend *b, const struct batch *rows, const struct mla *a)
{
	cpu_stacked_matmul(b, &a->absorb, rows->n);
	cpu_attend(b, rows, &a->attend);
	cpu_stacked_matmul(b, &a->expand, rows->n);
	if (a->out)
		cpu_matmul(b, a->out, 1, a->expand.y, rows->n);
}
