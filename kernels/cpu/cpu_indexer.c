/* SPDX-License-Identifier: MIT */
/*
 * The DSA lightning indexer: scores every earlier position and selects the top_k.
 *
 * A scoring task is KEY_BLOCK keys of one row, so a long context is divided among threads. Rows of
 * a step are processed in groups whose scores fit a bounded scratch. The selection is a radix
 * select of the top_k-th largest key (three passes of 11, 11 and 10 bits), then one ascending pass
 * that takes every key above it and the first of those equal to it. It takes linear time, ties go
 * to the lower position, and positions come out in ascending order.
 */
#include "kernels/cpu/cpu_internal.h"

#include "src/base/num.h"

#include <math.h>
#include <string.h>

#define KEY_BLOCK 128 /* keys scored together */
/* Scores of one group of rows, unless a single row needs more. */
#define SCORES_MAX_BYTES ((size_t)32 << 20)

/* score[0..n) of keys [first, first + n) of a sequence for row r. scratch: [KEY_BLOCK][head_dim] +
 * [n_heads][KEY_BLOCK] + [n_heads] */
static void score_keys(const struct cpu_isa *isa, const struct index_select *a, int64_t base, int r,
	int first, int n, float *scratch, float *score)
{
	int dim = a->head_dim, n_heads = a->n_heads;
	float *key = scratch, *dot = key + (size_t)KEY_BLOCK * (size_t)dim,
		  *weight = dot + (size_t)KEY_BLOCK * (size_t)n_heads;
	float out[DOT_TILE_X * DOT_TILE_W];
	const uint8_t *src = cache_row_at(&a->keys, base + first);
	const float *row = key;
	if (a->keys.type == DTYPE_F32)
		row = (const float *)src;
	else
		isa->decode(a->keys.type, src, key, (size_t)n * (size_t)dim);

	struct dot_tile tile = {.n = (size_t)dim, .first = true, .last = true, .out = out};
	for (int h = 0; h < n_heads; h += DOT_TILE_X) {
		tile.n_x = MIN(n_heads - h, DOT_TILE_X);
		for (int c = 0; c < tile.n_x; c++)
			tile.x[c] = a->q + ((int64_t)r * n_heads + h + c) * dim;
		for (int t = 0; t < n; t += DOT_TILE_W) {
			int n_w = MIN(n - t, DOT_TILE_W);
			for (int c = 0; c < DOT_TILE_W; c++)
				tile.w[c] = row + (int64_t)(t + MIN(c, n_w - 1)) * dim;
			isa->tile(&tile);
			for (int c = 0; c < tile.n_x; c++)
				memcpy(dot + (size_t)(h + c) * KEY_BLOCK + t, out + c * DOT_TILE_W,
					(size_t)n_w * sizeof *dot);
		}
	}
	float head_scale = (float)(1.0 / sqrt(n_heads)), dim_scale = (float)(1.0 / sqrt(dim));
	for (int h = 0; h < n_heads; h++)
		weight[h] = a->weight[(int64_t)r * n_heads + h] * head_scale;
	isa->index_score(dot, weight, KEY_BLOCK, dim_scale, n, n_heads, score);
}

/* One pass of the radix select: the bin (`bits` bits at `shift`) that holds the rank-th largest of
 * the keys whose higher bits equal `prefix`. *rank becomes the rank within that bin. */
static uint32_t radix_select_pass(
	const uint32_t *key, int n, uint32_t prefix, int shift, int bits, uint32_t *rank)
{
	uint32_t count[2048] = {0}, bins = 1u << bits, bin = bins - 1;
	uint32_t above = shift + bits < 32 ? ~0u << (shift + bits) : 0;
	for (int t = 0; t < n; t++)
		if (!((key[t] ^ prefix) & above))
			count[(key[t] >> shift) & (bins - 1)]++;
	while (*rank > count[bin])
		*rank -= count[bin--];
	return bin << shift;
}

/* sel = positions of the k largest of score[0..n), k < n, ascending. Overwrites score with its sort
 * keys. */
static void select_top_k(float *score, int n, int k, int32_t *sel)
{
	uint32_t *key = (uint32_t *)(void *)score, rank = (uint32_t)k, threshold = 0;
	for (int t = 0; t < n; t++) {
		float v;
		memcpy(&v, score + t, sizeof v);
		uint32_t u = cpu_order_key(v);
		memcpy(score + t, &u, sizeof u);
	}
	threshold |= radix_select_pass(key, n, threshold, 21, 11, &rank);
	threshold |= radix_select_pass(key, n, threshold, 10, 11, &rank);
	threshold |= radix_select_pass(key, n, threshold, 0, 10, &rank);
	/* rank: how many of the keys equal to the threshold are selected */
	for (int t = 0, out = 0; out < k; t++) {
		bool equal = key[t] == threshold;
		if (key[t] > threshold || (equal && rank)) {
			rank -= equal;
			sel[out++] = t;
		}
	}
}

/* One group of rows, from row `group` on */
struct select_job {
	const struct cpu_isa *isa;
	const struct batch *rows;
	const struct index_select *a;
	int group, n_blocks;           /* blocks of keys of a row */
	size_t stride, scratch_values; /* floats: of a row's scores, of a thread's scratch */
	float *scores, *scratch;
};

static void score_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct select_job *j = context;
	for (; first < last; first++) {
		int r = (int)(first / j->n_blocks), row = j->group + r,
			key = (int)(first % j->n_blocks) * KEY_BLOCK;
		int n = j->rows->pos[row] + 1;
		if (n > j->a->top_k && key < n)
			score_keys(j->isa, j->a, j->rows->base[row], row, key, MIN(KEY_BLOCK, n - key),
				j->scratch + (size_t)thread * j->scratch_values,
				j->scores + (size_t)r * j->stride + key);
	}
}

static void select_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct select_job *j = context;
	(void)thread;
	for (; first < last; first++) {
		int64_t row = j->group + first;
		int n = j->rows->pos[row] + 1, top_k = j->a->top_k;
		int32_t *sel = j->a->sel + row * top_k;
		j->a->n_sel[row] = MIN(n, top_k);
		if (n > top_k) {
			select_top_k(j->scores + (size_t)first * j->stride, n, top_k, sel);
			continue;
		}
		for (int t = 0; t < n; t++)
			sel[t] = t;
	}
}

void cpu_index_select(struct backend *base, const struct batch *rows, const struct index_select *a)
{
	struct cpu_backend *b = cpu_of(base);
	if (b->base.failure.code || !rows->n)
		return;
	int longest = 0;
	for (int r = 0; r < rows->n; r++)
		longest = MAX(longest, rows->pos[r] + 1);
	bool scored = longest > a->top_k;
	double macs = scored ? (double)rows->n * longest * a->n_heads * a->head_dim : 0;
	int threads = cpu_threads_for(b, macs);
	struct select_job job = {
		.isa = b->isa, .rows = rows, .a = a, .n_blocks = (longest + KEY_BLOCK - 1) / KEY_BLOCK};
	job.stride = num_align_up((uint64_t)longest, 16);
	job.scratch_values = num_align_up(
		(size_t)KEY_BLOCK * (size_t)(a->head_dim + a->n_heads) + (size_t)a->n_heads, 16);
	size_t fit = MAX(SCORES_MAX_BYTES / (job.stride * sizeof(float)), (size_t)1);
	int group = (int)MIN((size_t)rows->n, fit);
	if (scored) {
		uint64_t values = (uint64_t)group * job.stride + (uint64_t)threads * job.scratch_values;
		job.scores = cpu_scratch(b, values * sizeof(float), "index_select");
		if (!job.scores)
			return;
		job.scratch = job.scores + (size_t)group * job.stride;
	}
	for (; job.group < rows->n; job.group += group) {
		int n = MIN(group, rows->n - job.group);
		if (scored)
			cpu_run(b, threads, (int64_t)n * job.n_blocks, 1, score_task, &job);
		cpu_run(b, threads, n, 1, select_task, &job);
	}
}
