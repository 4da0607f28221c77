/* SPDX-License-Identifier: MIT */
#include "src/forward/host_experts.h"

#include "kernels/expert_arithmetic.h"
#include "src/base/clock.h"
#include "src/base/cores.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

/* A time that was measured long ago may be wrong by now, and one that is too long is never measured
 * again: so a mean shrinks a little whenever it is asked for. At 600 experts a token it is half as
 * long after 20 tokens without a measurement. One measurement moves it by MEAN_SHARE, and counts as
 * MEAN_OUTLIER times the mean at most: threads may have had to wake up. */
#define FIRST_NS_PER_BYTE 0.01
#define MEAN_SHARE        0.125
#define MEAN_OUTLIER      2.0
#define MEAN_SHRINKS      (1 - 1.0 / 16384)
#define SLOTS_TIMED       8 /* times of experts with 1 .. SLOTS_TIMED slots are kept apart */

struct host_experts {
	struct backend *card, *processor;
	uint32_t max_rows, n_embd, n_used;
	/* one allocation of the card's backend, MEM_SHARED */
	uint64_t *words; /* [max_rows][n_embd] */
	float *results;  /* [max_rows * n_used][n_embd] */
	size_t shared_bytes;
	float *x;       /* [max_rows][n_embd] h of the layer */
	uint64_t fence; /* of the layer whose h is in x */
	/* by type of gate: means of time per byte of weights */
	double ns_per_byte[DTYPE_LIMIT][SLOTS_TIMED];
	uint64_t n_experts, words_ns; /* in all: computed, waited for words */
	_Atomic uint64_t bytes, ns;   /* of n_experts: weights, time */
};

struct backend_options host_experts_backend(int threads)
{
	return (struct backend_options){.name = "cpu",
		.threads = threads ? threads : MAX(cores_allowed() - 1, 1),
		.for_card = true};
}

int host_experts_open(const struct model_config *c, struct backend *card, int threads,
	uint32_t max_rows, struct host_experts **out, struct err *e)
{
	const struct backend_options options = host_experts_backend(threads);
	struct host_experts *h = NEW(struct host_experts);
	h->card = card;
	h->max_rows = MIN(max_rows, HOST_EXPERT_ROWS);
	h->n_embd = c->n_embd;
	h->n_used = c->n_used;
	for (int t = 0; t < DTYPE_LIMIT; t++)
		for (int i = 0; i < SLOTS_TIMED; i++)
			h->ns_per_byte[t][i] = FIRST_NS_PER_BYTE;
	const size_t values = (size_t)h->max_rows * h->n_embd,
				 words_bytes = num_align_up(values * sizeof *h->words, 256);
	h->shared_bytes = words_bytes + values * h->n_used * sizeof *h->results;
	h->x = mem_try_new(values, sizeof *h->x);
	int rc = h->x ? card->ops->alloc(card, MEM_SHARED, h->shared_bytes, (void **)&h->words, e)
				  : err_set(e, ERR_MEMORY, "no memory for experts on the processor");
	if (!rc) {
		memset(h->words, 0, h->shared_bytes);
		h->results = (float *)(void *)((uint8_t *)h->words + words_bytes);
		rc = backend_open(&options, &h->processor, e);
	}
	if (rc)
		host_experts_close(h);
	*out = rc ? NULL : h;
	return rc;
}

void host_experts_close(struct host_experts *h)
{
	if (!h)
		return;
	if (h->n_experts)
		log_verbose(
			"experts on the processor: %llu, %.1f us each, %.1f GB/s; waited %.1f us each for "
			"their input",
			(unsigned long long)h->n_experts, (double)h->ns * 1e-3 / (double)h->n_experts,
			(double)h->bytes / (double)h->ns, (double)h->words_ns * 1e-3 / (double)h->n_experts);
	if (h->processor)
		h->processor->ops->close(h->processor);
	if (h->words)
		h->card->ops->free(h->card, MEM_SHARED, h->words, h->shared_bytes);
	free(h->x);
	free(h);
}

uint64_t *host_experts_words(const struct host_experts *h, int rows)
{
	return h && (uint32_t)rows <= h->max_rows ? h->words : NULL;
}

void host_experts_add_stats(const struct host_experts *h, struct expert_stats *sum)
{
	if (!h)
		return;
	sum->host_bytes += h->bytes;
	sum->host_ns += h->ns;
}

/* ---- times ---- */

static double job_bytes(const struct expert_job *j)
{
	return (double)(j->gate.stack_bytes + j->up.stack_bytes + j->down.stack_bytes);
}

static int timed_slots(int n_slots)
{
	return MIN(n_slots, SLOTS_TIMED) - 1;
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

uint32_t host_experts_ns(struct host_experts *h, const struct expert_job *shape, int n_slots)
{
	if (!host_experts_covers(shape))
		return 0;
	double *mean = &h->ns_per_byte[shape->gate.type][timed_slots(n_slots)];
	double ns = job_bytes(shape) * *mean;
	*mean *= MEAN_SHRINKS;
	return (uint32_t)MIN(MAX(ns, 1), 1e9);
}

/* `ns` were spent on the jobs. */
static void note_time(
	struct host_experts *h, const struct expert_job *jobs, int n_jobs, uint64_t ns)
{
	double bytes = 0;
	for (int i = 0; i < n_jobs; i++)
		bytes += job_bytes(&jobs[i]);
	h->n_experts += (uint64_t)n_jobs;
	h->ns += ns;
	h->bytes += (uint64_t)bytes;
	for (int i = 0; i < n_jobs; i++) {
		double *mean = &h->ns_per_byte[jobs[i].gate.type][timed_slots(jobs[i].n_token_slots)],
			   now = (double)ns / bytes;
		*mean += MEAN_SHARE * (MIN(now, MEAN_OUTLIER * *mean) - *mean);
	}
}

/* ---- the work ---- */

int host_experts_compute(struct host_experts *h, uint64_t fence, const float *x,
	const struct expert_job *jobs, int n_jobs, int rows, float *out, struct err *e)
{
	struct backend *p = h->processor;
	uint64_t start = clock_ns();
	if (h->fence != fence) {
		/* the bits of floats in place of ids */
		int rc = h->card->ops->wait_expert_ids(
			h->card, fence, h->words, rows * (int)h->n_embd, (int32_t *)(void *)h->x, e);
		if (rc)
			return rc;
		h->fence = fence;
		uint64_t now = clock_ns();
		h->words_ns += now - start;
		start = now;
	}
	p->ops->expert_ffn(p, h->x, jobs, n_jobs, rows, (int)h->n_used, h->results);
	int rc = p->ops->wait(p, e);
	if (rc)
		return rc;
	h->card->ops->expert_results(
		h->card, x, h->results, jobs, n_jobs, rows, (int)h->n_used, (int)h->n_embd, out);
	note_time(h, jobs, n_jobs, clock_ns() - start);
	return 0;
}
