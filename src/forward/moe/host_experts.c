/* SPDX-License-Identifier: MIT */
#include "src/forward/moe/host_experts_internal.h"

#include "src/base/host/clock.h"
#include "src/base/host/cores.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

struct backend_options host_experts_backend(int threads, const struct numa_nodes *nodes)
{
	return (struct backend_options){.name = "cpu",
		.threads = threads ? threads : MAX(cores_allowed() - 1, 1),
		.for_card = true,
		.nodes = nodes};
}

static void call_progress(void *host_experts)
{
	const struct host_progress *p = ((const struct host_experts *)host_experts)->progress;
	if (p)
		p->fn(p->user);
}

int host_experts_open(const struct model_config *c, struct backend *card, int threads,
	const struct numa_nodes *nodes, uint32_t max_rows, struct host_experts **out, struct err *e)
{
	struct backend_options options = host_experts_backend(threads, nodes);
	struct host_experts *h = NEW(struct host_experts);
	options.on_progress = call_progress;
	options.progress_user = h;
	h->card = card;
	if (nodes && nodes->n > 1 && options.threads > 1)
		h->nodes = *nodes;
	h->max_rows = MIN(max_rows, HOST_EXPERT_ROWS);
	h->n_embd = c->n_embd;
	h->n_used = c->n_used;
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
	else if (h->nodes.n)
		log_info("experts on the processor: %s", backend_describe(h->processor));
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

int host_experts_compute(struct host_experts *h, uint64_t fence, const float *x,
	const struct expert_job *jobs, int n_jobs, int rows, float *out,
	const struct host_progress *progress, struct err *e)
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
	h->progress = progress;
	p->ops->expert_ffn(p, h->x, jobs, n_jobs, rows, (int)h->n_used, h->results);
	h->progress = NULL;
	int rc = p->ops->wait(p, e);
	if (rc) {
		p->ops->recover(p); /* a later step may find the memory that this one lacked */
		return rc;
	}
	h->card->ops->expert_results(
		h->card, x, h->results, jobs, n_jobs, rows, (int)h->n_used, (int)h->n_embd, out);
	host_experts_measured(h, jobs, n_jobs, clock_ns() - start);
	return 0;
}
