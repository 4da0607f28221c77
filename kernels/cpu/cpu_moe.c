/* SPDX-License-Identifier: MIT */
/*
 * Mixture of experts: the router, the experts' feed forward, the weighted sum.
 *
 * expert_ffn takes its jobs in two parallel loops, over (job, run of weight rows, run of places): first gate
 * and up, fused with SwiGLU, into a hidden row for each place; then down, straight to the places of the
 * output.
 */
#include "kernels/cpu/cpu_internal.h"

#include "src/base/num.h"

#include <string.h>

/* ---- router --------------------------------------------------------------------------------------------- */

/* Puts the ids of the n_best largest keys into best, larger first, then the lower id; skip (may be NULL)
 * excludes ids. */
static void best_ids(const uint32_t *key, const bool *skip, int n, int32_t *best, int n_best)
{
	int have = 0;
	for (int id = 0; id < n; id++) {
		if ((skip && skip[id]) || (have == n_best && key[id] <= key[best[have - 1]]))
			continue;
		int at = have < n_best ? have++ : have - 1;
		for (; at && key[best[at - 1]] < key[id]; at--)
			best[at] = best[at - 1];
		best[at] = id;
	}
}

/* Marks the experts of all groups but the n_group_used ones with the largest sum of their two best keys'
 * values. */
static void skip_groups(const struct route *a, const float *choice, const uint32_t *key, bool *skip)
{
	int size = a->n_experts / a->n_group;
	uint32_t group_key[a->n_group];
	int32_t kept[a->n_group_used], top[2];
	for (int g = 0; g < a->n_group; g++) {
		int first = g * size, n_top = MIN(size, 2);
		best_ids(key + first, NULL, size, top, n_top);
		float sum = choice[first + top[0]];
		if (n_top > 1)
			sum += choice[first + top[1]];
		group_key[g] = cpu_order_key(sum);
	}
	best_ids(group_key, NULL, a->n_group, kept, a->n_group_used);
	memset(skip, 1, (size_t)a->n_experts * sizeof *skip);
	for (int i = 0; i < a->n_group_used; i++)
		memset(skip + kept[i] * size, 0, (size_t)size * sizeof *skip);
}

void cpu_route(struct backend *base, const struct route *a, int rows)
{
	struct cpu_backend *b = cpu_of(base);
	if (b->base.failure.code)
		return;
	int n = a->n_experts, threads = cpu_threads_for(b, 20.0 * rows * n);
	size_t values = num_align_up((uint64_t)n * 4, 16); /* a row's scores, choices, keys and marks */
	float *scratch = cpu_scratch(b, (uint64_t)threads * values * sizeof(float), "route");
	if (!scratch)
		return;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
	for (int r = 0; r < rows; r++) {
		float *score = scratch + (size_t)cpu_thread() * values, *choice = score + n, sum = 0;
		uint32_t *key = (uint32_t *)(void *)(choice + n);
		bool *skip = (bool *)(key + n);
		int32_t *ids = a->ids + (int64_t)r * a->n_used;
		float *weights = a->weights + (int64_t)r * a->n_used;
		b->isa->sigmoid(a->logits + (int64_t)r * n, (size_t)n, score);
		for (int i = 0; i < n; i++) {
			choice[i] = score[i] + a->bias[i];
			key[i] = cpu_order_key(choice[i]);
		}
		if (a->n_group > 1)
			skip_groups(a, choice, key, skip);
		best_ids(key, a->n_group > 1 ? skip : NULL, n, ids, a->n_used);
		for (int k = 0; k < a->n_used; k++)
			sum += score[ids[k]];
		for (int k = 0; k < a->n_used; k++)
			weights[k] = a->normalise ? score[ids[k]] / (sum + 1e-20f) * a->scale : score[ids[k]] * a->scale;
	}
}

/* ---- experts -------------------------------------------------------------------------------------------- */

/* One of the two loops: jobs have different numbers of places, so a job's tasks are counted with the
 * largest number and the superfluous ones return at once. */
struct expert_tasks {
	struct cpu_cut cut;
	int64_t w_parts;
	int x_parts;
};

static struct expert_tasks cut_experts(
	const struct cpu_backend *b, int64_t n_in, int64_t n_out, int n_jobs, int64_t places, int most_places)
{
	struct expert_tasks t;
	t.cut = cpu_cut_product(b, (double)n_in * (double)n_out * (double)places, n_out * n_jobs, most_places);
	t.cut.w_rows = MIN(t.cut.w_rows, n_out);
	t.w_parts = (n_out + t.cut.w_rows - 1) / t.cut.w_rows;
	t.x_parts = (most_places + t.cut.x_rows - 1) / t.cut.x_rows;
	return t;
}

void cpu_expert_ffn(struct backend *base, const float *x, const struct expert_job *jobs, int n_jobs, int rows,
	int n_used, float *out)
{
	struct cpu_backend *b = cpu_of(base);
	(void)rows;
	int64_t places = 0, n_ff = 0, n_embd = 0;
	int most = 0;
	for (int j = 0; j < n_jobs; j++) {
		places += jobs[j].n_places;
		most = MAX(most, jobs[j].n_places);
		n_ff = MAX(n_ff, jobs[j].gate.n_out);
		n_embd = MAX(n_embd, jobs[j].down.n_out);
	}
	if (b->base.failure.code || !places)
		return;
	struct expert_tasks up = cut_experts(b, n_embd, n_ff, n_jobs, places, most);
	struct expert_tasks down = cut_experts(b, n_ff, n_embd, n_jobs, places, most);
	int threads = MAX(up.cut.threads, down.cut.threads);
	/* scratch: the hidden rows of all places, then what each thread needs */
	size_t product = cpu_product_scratch() / sizeof(float),
		   pair = (size_t)up.cut.w_rows * (size_t)up.cut.x_rows;
	size_t each = num_align_up(product + pair, 16),
		   hidden_values = num_align_up((uint64_t)places * (uint64_t)n_ff, 16);
	float *hidden = cpu_scratch(b,
		((uint64_t)hidden_values + (uint64_t)threads * each) * sizeof(float) +
			(uint64_t)n_jobs * sizeof(int64_t),
		"expert_ffn");
	if (!hidden)
		return;
	int64_t *first_place = (int64_t *)(void *)(hidden + hidden_values + (size_t)threads * each);
	for (int64_t j = 0, first = 0; j < n_jobs; first += jobs[j++].n_places)
		first_place[j] = first;

#pragma omp parallel num_threads(threads) if (threads > 1)
	{
		float *mine = hidden + hidden_values + (size_t)cpu_thread() * each, *ups = mine + product;
#pragma omp for schedule(dynamic)
		for (int64_t i = 0; i < n_jobs * up.w_parts * up.x_parts; i++) {
			const struct expert_job *job = &jobs[i / (up.w_parts * up.x_parts)];
			int64_t first = i / up.x_parts % up.w_parts * up.cut.w_rows;
			int place = (int)(i % up.x_parts) * up.cut.x_rows,
				n_x = MIN(up.cut.x_rows, job->n_places - place);
			int64_t n_w = MIN(up.cut.w_rows, job->gate.n_out - first);
			if (n_x <= 0 || n_w <= 0)
				continue;
			struct row_set in = {(float *)x, job->gate.n_in, job->places + place, n_used};
			struct row_set gates = {hidden + (first_place[job - jobs] + place) * n_ff + first, n_ff, NULL, 1};
			struct row_set other = {ups, n_w, NULL, 1};
			cpu_product(b, &job->gate, 0, first, n_w, &in, &gates, n_x, false, mine);
			cpu_product(b, &job->up, 0, first, n_w, &in, &other, n_x, false, mine);
			for (int p = 0; p < n_x; p++)
				b->isa->swiglu(row_at(&gates, p), row_at(&other, p), (size_t)n_w, row_at(&gates, p));
		}
#pragma omp for schedule(dynamic)
		for (int64_t i = 0; i < n_jobs * down.w_parts * down.x_parts; i++) {
			const struct expert_job *job = &jobs[i / (down.w_parts * down.x_parts)];
			int64_t first = i / down.x_parts % down.w_parts * down.cut.w_rows;
			int place = (int)(i % down.x_parts) * down.cut.x_rows,
				n_x = MIN(down.cut.x_rows, job->n_places - place);
			int64_t n_w = MIN(down.cut.w_rows, job->down.n_out - first);
			if (n_x <= 0 || n_w <= 0)
				continue;
			struct row_set in = {hidden + (first_place[job - jobs] + place) * n_ff, n_ff, NULL, 1};
			struct row_set y = {out + first, job->down.n_out, job->places + place, 1};
			cpu_product(b, &job->down, 0, first, n_w, &in, &y, n_x, false, mine);
		}
	}
}

void cpu_moe_combine(struct backend *b, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x)
{
	if (b->failure.code)
		return;
	int piece = 1024, pieces = (n + piece - 1) / piece;
	int threads = cpu_threads_for(cpu_of(b), 2.0 * rows * n * n_used);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
	for (int64_t i = 0; i < (int64_t)rows * pieces; i++) {
		int64_t r = i / pieces, first = i % pieces * piece;
		int count = (int)MIN(piece, n - first);
		float sum[1024] = {0}, *dst = x + r * n + first;
		for (int k = 0; k < n_used; k++) {
			const float *row = out + (r * n_used + k) * n + first, w = weights[r * n_used + k];
#pragma omp simd
			for (int c = 0; c < count; c++)
				sum[c] += w * row[c];
		}
		const float *add = shared + r * n + first;
#pragma omp simd
		for (int c = 0; c < count; c++)
			dst[c] += sum[c] + add[c];
	}
}
