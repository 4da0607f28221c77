/* SPDX-License-Identifier: MIT */
/*
 * How long the processor takes for an expert. Each kind is timed before the first step; from then
 * on every call of host_experts_compute is a measurement.
 */
#include "src/forward/moe/host_experts_internal.h"

#include "kernels/expert_arithmetic.h"
#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Moving means. One call is one measurement, however many experts it computes. It moves a mean by
 * MEAN_SHARE of the difference, and counts as MEAN_OUTLIER times the mean at most: threads may have
 * had to wake up. With a mean that is too long the processor would get no expert and the mean no
 * measurement. So it shrinks a little whenever it is requested, down to 1 ns an expert: at 600
 * experts a token to half after 76 tokens without a measurement. */
#define MEAN_SHARE   0.125
#define MEAN_OUTLIER 2.0
#define MEAN_SHRINKS (1 - 1.0 / 65536)

#define TIMING_BYTES ((size_t)64 << 20) /* of weights with which a kind is timed, about */
#define TIMING_RUNS  3

/* ---- kinds ---- */

double host_experts_bytes(const struct expert_job *j)
{
	return (double)(j->gate.stack_bytes + j->up.stack_bytes + j->down.stack_bytes);
}

/* Longer rows of IQ2_XXS have other bits on cards with little shared memory (the end of
 * expert_arithmetic.h). */
#define IQ2_XXS_LONGEST 7168

static bool covers_weight(const struct weight *w)
{
	return expert_arithmetic_covers(w->type) &&
		   (w->type != DTYPE_IQ2_XXS || w->n_in <= IQ2_XXS_LONGEST);
}

bool host_experts_covers(const struct expert_job *shape)
{
	return covers_weight(&shape->gate) && covers_weight(&shape->up) && covers_weight(&shape->down);
}

static struct host_kind *find_kind(struct host_experts *h, const struct expert_job *j)
{
	for (struct host_kind *k = h->kinds; k < h->kinds + h->n_kinds; k++)
		if (k->gate == j->gate.type && k->up == j->up.type && k->down == j->down.type)
			return k;
	return NULL;
}

/* Bits that no arithmetic prefers: the time of a product does not depend on the values. */
static void fill_random(uint8_t *p, size_t bytes)
{
	const size_t pattern = MIN(bytes, (size_t)1 << 20);
	struct rng r = {1};
	for (size_t i = 0; i < pattern; i++)
		p[i] = (uint8_t)(rng_u64(&r) >> 56);
	for (size_t at = pattern; at < bytes; at += pattern)
		memcpy(p + at, p, MIN(bytes - at, pattern));
}

/* ns per byte of experts with so many slots each: the least of a few runs, since another program
 * only makes it longer. */
static int time_slots(struct host_experts *h, struct expert_job *jobs, int n_jobs, int n_slots,
	double *ns_per_byte, struct err *e)
{
	struct backend *p = h->processor;
	*ns_per_byte = 1e9;
	for (int i = 0; i < n_jobs; i++)
		jobs[i].n_token_slots = n_slots;
	for (int run = 0; run < TIMING_RUNS; run++) {
		const uint64_t start = clock_ns();
		p->ops->expert_ffn(p, h->x, jobs, n_jobs, n_slots, (int)h->n_used, h->results);
		int rc = p->ops->wait(p, e);
		if (rc)
			return rc;
		*ns_per_byte =
			MIN(*ns_per_byte, (double)(clock_ns() - start) / n_jobs / host_experts_bytes(jobs));
	}
	return 0;
}

/* Times experts of one row and of as many as there may be, with weights of a NUMA node (0: of
 * none); between them the time is taken to grow evenly. */
static int time_kind(struct host_experts *h, const struct expert_job *shape, int node,
	struct host_kind *k, struct err *e)
{
	const size_t bytes = (size_t)host_experts_bytes(shape);
	const int most = (int)MIN(h->max_rows, (uint32_t)SLOTS_TIMED),
			  n_jobs = (int)MIN(MAX(TIMING_BYTES / bytes, 1), h->n_used);
	uint8_t *weights = pages_try_map(bytes * (size_t)n_jobs);
	struct expert_job *jobs = NEW_ARRAY(struct expert_job, n_jobs);
	int32_t *slots = NEW_ARRAY(int32_t, (size_t)most * h->n_used);
	double one = 0, all = 0;
	if (weights && node) /* a refusal was said when the second tier was opened */
		numa_prefer(weights, bytes * (size_t)n_jobs, h->nodes.node[node - 1].id);
	if (weights)
		fill_random(weights, bytes * (size_t)n_jobs);
	for (int i = 0; i < n_jobs; i++) {
		jobs[i] = *shape;
		jobs[i].node = node;
		jobs[i].gate.data = weights + bytes * (size_t)i;
		jobs[i].up.data = (const uint8_t *)jobs[i].gate.data + shape->gate.stack_bytes;
		jobs[i].down.data = (const uint8_t *)jobs[i].up.data + shape->up.stack_bytes;
		jobs[i].token_slots = slots + i * most;
		for (int row = 0; row < most; row++)
			slots[i * most + row] = row * (int)h->n_used + i;
	}
	int rc = weights ? 0 : err_set(e, ERR_MEMORY, "no memory to time experts on the processor");
	if (!rc && !(rc = time_slots(h, jobs, n_jobs, 1, &one, e)))
		rc = time_slots(h, jobs, n_jobs, most, &all, e);
	for (int i = 0; i < SLOTS_TIMED; i++)
		k->ns_per_byte[node][i] = one + MAX(all - one, 0) * i / MAX(most - 1, 1);
	pages_unmap(weights, bytes * (size_t)n_jobs);
	free(jobs);
	free(slots);
	return rc;
}

/* "IQ2_XXS", or "Q2_K/Q2_K/Q3_K" */
static const char *kind_name(const struct host_kind *k, char out[64])
{
	if (k->gate == k->up && k->gate == k->down)
		return dtype_name(k->gate);
	snprintf(out, 64, "%s/%s/%s", dtype_name(k->gate), dtype_name(k->up), dtype_name(k->down));
	return out;
}

bool host_experts_too_slow(double ns_per_byte, double link_bytes_s)
{
	return ns_per_byte * link_bytes_s > 1e9 / HOST_EXPERTS_LEAST;
}

int host_experts_prepare(
	struct host_experts *h, const struct expert_job *shape, double link_bytes_s, struct err *e)
{
	if (!host_experts_covers(shape) || find_kind(h, shape) || h->n_kinds == KINDS_MAX)
		return 0;
	struct host_kind *k = &h->kinds[h->n_kinds];
	char name[64], link[32] = "not measured", by_node[NUMA_NODES_MAX * 16 + 24] = "";
	*k = (struct host_kind){
		.gate = shape->gate.type, .up = shape->up.type, .down = shape->down.type};
	for (int node = 0, at = 0; node <= h->nodes.n; node++) {
		int rc = time_kind(h, shape, node, k, e);
		if (rc)
			return rc;
		if (node)
			at += snprintf(by_node + at, sizeof by_node - (size_t)at, "%s%.3g%s",
				node == 1 ? " (by NUMA node: " : "", 1 / k->ns_per_byte[node][0],
				node < h->nodes.n ? " + " : ")");
	}
	h->n_kinds++;
	k->slow = host_experts_too_slow(k->ns_per_byte[0][0], link_bytes_s);
	if (link_bytes_s > 0)
		snprintf(link, sizeof link, "%.3g GB/s", link_bytes_s * 1e-9);
	log_info("experts on the processor: %s: processor %.3g GB/s%s, link %s: %s", kind_name(k, name),
		1 / k->ns_per_byte[0][0], by_node, link,
		k->slow ? "the card computes them" : "both compute them");
	return 0;
}

bool host_experts_any(const struct host_experts *h)
{
	for (int i = 0; i < h->n_kinds; i++)
		if (!h->kinds[i].slow)
			return true;
	return false;
}

/* ---- times ---- */

static int timed_slots(int n_slots)
{
	return MIN(n_slots, SLOTS_TIMED) - 1;
}

static uint32_t mean_ns(const struct expert_job *shape, double *mean)
{
	double ns = host_experts_bytes(shape) * *mean;
	if (ns > 1) /* a mean of 0 would stay 0 */
		*mean *= MEAN_SHRINKS;
	return (uint32_t)MIN(MAX(ns, 1), 1e9);
}

uint32_t host_experts_ns(struct host_experts *h, const struct expert_job *shape, int n_slots)
{
	struct host_kind *k = host_experts_covers(shape) ? find_kind(h, shape) : NULL;
	if (!k || k->slow)
		return 0;
	return mean_ns(shape, &k->ns_per_byte[0][timed_slots(n_slots)]);
}

const uint32_t *host_experts_node_ns(
	struct host_experts *h, const struct expert_job *shape, int n_slots)
{
	struct host_kind *k = h->nodes.n ? find_kind(h, shape) : NULL;
	const int slots = timed_slots(n_slots);
	if (!k)
		return NULL;
	for (int node = 1; node <= h->nodes.n; node++)
		h->node_ns[slots][node] = mean_ns(shape, &k->ns_per_byte[node][slots]);
	return h->node_ns[slots];
}

/* The node whose time the job's is; 0: the threads are not divided. */
static int timed_node(const struct host_experts *h, const struct expert_job *j)
{
	return h->nodes.n ? j->node : 0;
}

static double *mean_of(struct host_experts *h, const struct expert_job *j)
{
	return &find_kind(h, j)->ns_per_byte[timed_node(h, j)][timed_slots(j->n_token_slots)];
}

/* The node that ends last by the means so far. */
static int last_node(struct host_experts *h, const struct expert_job *jobs, int n_jobs)
{
	double busy[NUMA_NODES_MAX + 1] = {0};
	int last = timed_node(h, &jobs[0]);
	for (int i = 0; i < n_jobs; i++)
		busy[timed_node(h, &jobs[i])] += host_experts_bytes(&jobs[i]) * *mean_of(h, &jobs[i]);
	for (int k = 0; k <= h->nodes.n; k++)
		if (busy[k] > busy[last])
			last = k;
	return last;
}

void host_experts_measured(
	struct host_experts *h, const struct expert_job *jobs, int n_jobs, uint64_t ns)
{
	const int node = last_node(h, jobs, n_jobs);
	double bytes = 0, node_bytes = 0;
	bool moved[SLOTS_TIMED] = {false};
	for (int i = 0; i < n_jobs; i++) {
		bytes += host_experts_bytes(&jobs[i]);
		node_bytes += timed_node(h, &jobs[i]) == node ? host_experts_bytes(&jobs[i]) : 0;
	}
	h->n_experts += (uint64_t)n_jobs;
	h->ns += ns;
	h->bytes += (uint64_t)bytes;
	for (int i = 0; i < n_jobs; i++) {
		const int slots = timed_slots(jobs[i].n_token_slots);
		if (timed_node(h, &jobs[i]) != node || moved[slots])
			continue;
		double *mean = mean_of(h, &jobs[i]), now = (double)ns / node_bytes;
		*mean += MEAN_SHARE * (MIN(now, MEAN_OUTLIER * *mean) - *mean);
		moved[slots] = true;
	}
}
