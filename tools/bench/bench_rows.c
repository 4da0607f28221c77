/* SPDX-License-Identifier: MIT */
/*
 * Decoding several answers at once: steps of 1 to 64 rows, a session each. The bound of a step is
 * what it must read at the rate of a copy on the card: the resident weights once, and once each
 * distinct expert that its rows use. Answers have different random prompts.
 */
#include "tools/bench/bench.h"

#include "src/base/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "kernels/backend.h"
#include "src/engine/batch.h"
#include "src/engine/sampler.h"
#include "tools/machine/measure_card.h"
#include "tools/options/common_opts.h"
#include "tools/output/interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_STEPS 3 /* of each sample, not measured: they capture graphs */

struct rows_bench {
	struct bench *b;
	struct engine *g;
	struct session *sessions[BENCH_ROWS_MAX];
	uint32_t n_sessions;
	int32_t *ids; /* [n_prompt + BENCH_ROWS_MAX]; session i has those from i on */
	uint32_t n_prompt, n_new;
};

/* What was measured of steps of n rows. */
struct rows_figures {
	uint32_t n;
	struct bench_spread step_ms;
	double draw_ms, bytes, experts; /* of a step, mean */
	struct backend_usage from, to;
};

static int step_once(struct rows_bench *r, uint32_t n, uint64_t *draw_ns, struct err *e)
{
	struct batch_part parts[BENCH_ROWS_MAX];
	int32_t next[BENCH_ROWS_MAX];
	const uint64_t start = clock_ns();
	for (uint32_t i = 0; i < n; i++) {
		const float *logits = session_logits(r->sessions[i]);
		if (!logits)
			return err_set(e, ERR_RUN, "the logits of answer %u are not finite", i);
		int32_t best = 0;
		for (int32_t k = 1; k < engine_n_valid(r->g); k++)
			best = logits[k] > logits[best] ? k : best;
		next[i] = best;
		parts[i] = (struct batch_part){
			.session = r->sessions[i], .tokens = &next[i], .n = 1, .logits = true};
	}
	*draw_ns += clock_ns() - start;
	return batch_step(parts, n, &(struct batch_watch){.cancel = interrupt_flag()}, e);
}

/* One sample: n_new steps of n rows behind the prompts. */
static int sample_steps(
	struct rows_bench *r, struct rows_figures *f, double *step_ms, bool measured, struct err *e)
{
	const struct session_watch watch = {.cancel = interrupt_flag()};
	uint64_t draw_ns = 0;
	int rc = 0;
	for (uint32_t i = 0; i < f->n && !rc; i++)
		rc = session_sync(r->sessions[i], r->ids + i, r->n_prompt, &watch, NULL, e);
	for (int i = 0; i < WARM_STEPS && !rc; i++)
		rc = step_once(r, f->n, &draw_ns, e);
	if (rc)
		return rc;
	draw_ns = 0;
	const struct expert_stats before = engine_expert_stats(r->g);
	if (measured) {
		engine_measure(r->g, true);
		engine_usage(r->g, &f->from);
	}
	const uint64_t start = clock_ns();
	for (uint32_t i = 0; i < r->n_new && !rc; i++)
		rc = step_once(r, f->n, &draw_ns, e);
	*step_ms = (double)(clock_ns() - start) * 1e-6 / r->n_new;
	if (measured) {
		engine_usage(r->g, &f->to);
		engine_measure(r->g, false);
	}
	const struct expert_stats after = engine_expert_stats(r->g);
	f->experts = (double)(after.hit_vram + after.hit_ram + after.miss - before.hit_vram -
						  before.hit_ram - before.miss) /
				 r->n_new;
	f->draw_ms = (double)draw_ns * 1e-6 / r->n_new;
	return rc;
}

static int measure_rows(struct rows_bench *r, struct rows_figures *f, struct err *e)
{
	const struct engine_sizes sizes = engine_sizes(r->g);
	struct engine_cache cache;
	double ms[BENCH_MAX_REPEATS], unused;
	int rc = 0;
	for (int i = 0; i < r->b->repeats && !rc; i++)
		rc = sample_steps(r, f, &ms[i], false, e);
	if (rc)
		return rc;
	f->step_ms = bench_spread_of(ms, r->b->repeats);
	engine_cache_snapshot(r->g, &cache, NULL);
	const struct model_config *c = engine_config(r->g);
	f->bytes = (double)sizes.resident_per_token +
			   f->experts * (double)sizes.experts_per_token / (config_n_moe(c) * c->n_used);
	const double draw_ms = f->draw_ms;
	if (strcmp(engine_backend_name(r->g), "cpu"))
		rc = sample_steps(r, f, &unused, true, e);
	f->draw_ms = draw_ms;
	return rc;
}

static void report_rows(
	const struct rows_bench *r, const struct rows_figures *f, double bytes_s, const char *limit)
{
	struct bench *b = r->b;
	struct bench_spread rate = bench_rate(f->step_ms, 1e3 * f->n);
	bench_add(b, "rows", "tok/s", rate, bytes_s / f->bytes * f->n, limit,
		"%u answer%s, %u tokens after %u", f->n, f->n == 1 ? "" : "s", r->n_new, r->n_prompt);
	bench_add_value(b, "rows", "ms", f->step_ms.median, "a step of %u", f->n);
	bench_add_value(b, "rows", "ms", f->draw_ms, "of it drawing, %u", f->n);
	bench_add_value(b, "rows", "/step", f->experts, "distinct experts of all layers, %u", f->n);
	if (f->to.launches > f->from.launches)
		bench_usage(b, "rows", &f->from, &f->to, r->n_new);
}

static int open_rows(
	struct rows_bench *r, struct common_opts c, const uint64_t *rows, int n_rows, struct err *e)
{
	uint32_t most = 0;
	for (int i = 0; i < n_rows; i++)
		most = MAX(most, (uint32_t)rows[i]);
	c.sessions = most;
	if (!c.context)
		c.context = r->n_prompt + r->n_new + WARM_STEPS + 1;
	int rc = common_opts_open(&c, &r->g, e);
	if (rc || (rc = bench_check_context(r->g, r->n_prompt, r->n_new + WARM_STEPS + 1, e)))
		return rc;
	r->ids = bench_random_ids(r->n_prompt + most, (uint32_t)engine_n_valid(r->g));
	for (; r->n_sessions < most && !rc; r->n_sessions += !rc)
		rc = session_new(r->g, &r->sessions[r->n_sessions], e);
	return rc;
}

int bench_rows(struct bench *b, const struct common_opts *c, const uint64_t *rows, int n_rows,
	uint32_t n_prompt, uint32_t n_new, char *backend, struct err *e)
{
	struct rows_bench *r = NEW(struct rows_bench);
	struct rows_figures *f = NEW_ARRAY(struct rows_figures, n_rows);
	struct measure_card card = {0};
	*r = (struct rows_bench){.b = b, .n_prompt = n_prompt, .n_new = n_new};
	int rc = open_rows(r, *c, rows, n_rows, e);
	if (!rc)
		snprintf(backend, BENCH_BACKEND_MAX, "%s", engine_backend_name(r->g));
	for (int i = 0; i < n_rows && !rc; i++) {
		f[i].n = (uint32_t)rows[i];
		rc = measure_rows(r, &f[i], e);
	}
	for (uint32_t i = 0; i < r->n_sessions; i++)
		session_free(r->sessions[i]);
	rc = common_opts_close(r->g, rc, e);
	if (rc)
		goto out;
	/* the limits, with the engine's memory given back */
	bench_begin(b, backend);
	if (!strcmp(backend, "cpu"))
		rc = bench_copy(b, true, e);
	else
		rc = measure_card(backend, MIN(b->repeats, 5), &card, e);
	for (int i = 0; i < n_rows && !rc; i++)
		report_rows(r, &f[i], card.there ? card.copy_bytes_s.median : b->read_bytes_s,
			card.there ? "copy" : "read");
out:
	free(r->ids);
	free(r);
	free(f);
	return rc;
}
