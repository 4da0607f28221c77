/* SPDX-License-Identifier: MIT */
/*
 * Decoding several answers at once: steps of 1 to 64 rows, a session each. The bound of a step is
 * what it must read at the rate of a copy on the card: the resident weights once, and once each
 * distinct expert that its rows use. Answers have different random prompts.
 *
 * The device draws the tokens as it does for a server: with the noise of each answer's own seed,
 * and without a truncation, so that its draw is always final.
 *
 * With several stages or ranks the rows are in flight in micro-batches, and a step is a round of
 * all of them; experts and resident weights are then those of every micro-batch. The bound stays
 * that of one card, so more than 100 % is possible.
 */
#include "tools/bench/bench.h"

#include "kernels/backend.h"
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/batch.h"
#include "src/engine/sampler.h"
#include "tools/machine/measure_card.h"
#include "tools/options/common_opts.h"
#include "tools/output/interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_STEPS 20 /* of each sample, not measured: they capture graphs (step_counts.h) */

struct rows_bench {
	struct bench *b;
	struct engine *g;
	struct session *sessions[BENCH_ROWS_MAX];
	uint32_t n_sessions;
	int32_t *ids; /* [n_prompt + BENCH_ROWS_MAX]; session i has those from i on */
	uint32_t n_prompt, n_new, n_ranks;
	struct batch_part parts[BENCH_ROWS_MAX]; /* of the next step of each answer */
	int32_t next[BENCH_ROWS_MAX];            /* its token */
	struct sampler samplers[BENCH_ROWS_MAX];
	struct draw_request requests[BENCH_ROWS_MAX];
	struct draw_result drawn[BENCH_ROWS_MAX]; /* by the device, behind the step before */
};

/* What was measured of steps of n rows. */
struct rows_figures {
	uint32_t n, micro_batches;
	struct engine_overlap flown_from, flown_to; /* of the last sample */
	struct bench_spread step_ms;
	double draw_ms, bytes, experts;         /* of a step, mean */
	struct bench_stages from, to;           /* of the last sample */
	struct bench_stages card_from, card_to; /* of one with profile events; n 0: there was none */
};

/* The next token of answers [first, first + n): what the device drew behind the step before; behind
 * a prompt the host draws. */
static int draw_answers(
	struct rows_bench *r, uint32_t first, uint32_t n, uint64_t *draw_ns, struct err *e)
{
	const uint64_t start = clock_ns();
	for (uint32_t i = first; i < first + n; i++) {
		const bool on_device = r->parts[i].drawn;
		const float *logits = on_device ? NULL : session_logits(r->sessions[i]);
		if (on_device ? !r->drawn[i].finite : !logits)
			return err_set(e, ERR_RUN, "the logits of answer %u are not finite", i);
		const uint32_t position = session_length(r->sessions[i]);
		r->next[i] =
			on_device ? r->drawn[i].id
					  : sampler_draw(&r->samplers[i], logits, engine_n_valid(r->g), NULL, position);
		r->requests[i] = sampler_request(&r->samplers[i], position + 1);
		r->parts[i] = (struct batch_part){.session = r->sessions[i],
			.tokens = &r->next[i],
			.n = 1,
			.logits = true,
			.draws = &r->requests[i],
			.drawn = &r->drawn[i]};
	}
	*draw_ns += clock_ns() - start;
	return 0;
}

static int steps_as_a_whole(
	struct rows_bench *r, uint32_t n, uint32_t n_steps, uint64_t *draw_ns, struct err *e)
{
	int rc = 0;
	for (uint32_t i = 0; i < n_steps && !rc; i++)
		if (!(rc = draw_answers(r, 0, n, draw_ns, e)))
			rc = batch_step(r->parts, n, &(struct batch_watch){.cancel = interrupt_flag()}, e);
	return rc;
}

/* n_steps of each of n answers, in `count` micro-batches. */
static int steps_in_flight(struct rows_bench *r, uint32_t n, uint32_t count, uint32_t n_steps,
	uint64_t *draw_ns, struct err *e)
{
	const struct batch_watch watch = {.cancel = interrupt_flag()};
	struct batch_run *runs[BENCH_ROWS_MAX] = {NULL};
	uint32_t first[BENCH_ROWS_MAX + 1] = {0}, rows[BENCH_ROWS_MAX], n_runs = 0;
	int rc = 0;
	for (uint32_t i = 0; i < n; i++)
		rows[i] = 1;
	for (; first[n_runs] < n; n_runs++)
		first[n_runs + 1] =
			first[n_runs] + batch_micro_batch_size(r->g, rows, n - first[n_runs], n, count);
	for (uint32_t step = 0; step <= n_steps; step++)
		for (uint32_t i = 0; i < n_runs; i++) { /* all that were begun are ended */
			int failed = runs[i] ? batch_end(runs[i], rc ? NULL : e) : 0;
			rc = rc ? rc : failed;
			runs[i] = NULL;
			const uint32_t size = first[i + 1] - first[i];
			if (!rc && step < n_steps && !(rc = draw_answers(r, first[i], size, draw_ns, e)))
				rc = batch_begin(&r->parts[first[i]], size, &watch, &runs[i], e);
		}
	return rc;
}

static int take_steps(struct rows_bench *r, const struct rows_figures *f, uint32_t n_steps,
	uint64_t *draw_ns, struct err *e)
{
	return f->micro_batches > 1 ? steps_in_flight(r, f->n, f->micro_batches, n_steps, draw_ns, e)
								: steps_as_a_whole(r, f->n, n_steps, draw_ns, e);
}

/* One sample: n_new steps of n rows behind the prompts. */
static int sample_steps(
	struct rows_bench *r, struct rows_figures *f, double *step_ms, bool measured, struct err *e)
{
	const struct session_watch watch = {.cancel = interrupt_flag()};
	uint64_t draw_ns = 0;
	int rc = 0;
	memset(r->parts, 0, sizeof r->parts);
	for (uint32_t i = 0; i < f->n && !rc; i++)
		rc = session_sync(r->sessions[i], r->ids + i, r->n_prompt, &watch, NULL, e);
	if (!rc)
		rc = take_steps(r, f, WARM_STEPS, &draw_ns, e);
	if (rc)
		return rc;
	draw_ns = 0;
	const struct expert_stats before = engine_expert_stats(r->g);
	if (measured)
		engine_measure(r->g, true);
	bench_stages_read(measured ? &f->card_from : &f->from, r->g);
	engine_overlap(r->g, &f->flown_from);
	const uint64_t start = clock_ns();
	rc = take_steps(r, f, r->n_new, &draw_ns, e);
	*step_ms = (double)(clock_ns() - start) * 1e-6 / r->n_new;
	engine_overlap(r->g, &f->flown_to);
	bench_stages_read(measured ? &f->card_to : &f->to, r->g);
	if (measured)
		engine_measure(r->g, false);
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
	f->micro_batches = batch_micro_batches(r->g, f->n, f->n);
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
	char what[32];
	snprintf(what, sizeof what, "a step of %u", f->n);
	bench_add_value(b, "rows", "ms", f->step_ms.median, "%s", what);
	bench_add_value(b, "rows", "ms", f->draw_ms, "of it drawing, %u", f->n);
	bench_add_value(b, "rows", "/step", f->experts, "distinct experts of all layers, %u", f->n);
	char flight[48];
	snprintf(flight, sizeof flight, "%u rows in %u micro-batches", f->n, f->micro_batches);
	bench_overlap(b, "rows", flight, &f->flown_from, &f->flown_to, r->n_ranks > 1);
	bench_stages_time(b, "rows", what, &f->from, &f->to, r->n_new);
	if (f->card_to.n)
		bench_usage(b, "rows", &f->card_from, &f->card_to, r->n_new);
}

static int open_rows(struct rows_bench *r, struct common_opts c, const uint64_t *rows, int n_rows,
	float temperature, struct err *e)
{
	uint32_t most = 0;
	for (int i = 0; i < n_rows; i++)
		most = MAX(most, (uint32_t)rows[i]);
	c.sessions = most;
	if (!c.context)
		c.context = MAX(most, r->n_prompt + r->n_new + WARM_STEPS + 1); /* a chunk has a step */
	int rc = common_opts_open(&c, &r->g, e);
	if (rc || (rc = bench_check_context(r->g, r->n_prompt, r->n_new + WARM_STEPS + 1, e)))
		return rc;
	r->ids = bench_random_ids(r->n_prompt + most, (uint32_t)engine_n_valid(r->g));
	r->n_ranks = engine_n_ranks(r->g);
	for (; r->n_sessions < most && !rc; r->n_sessions += !rc)
		rc = session_new(r->g, &r->sessions[r->n_sessions], e);
	for (uint32_t i = 0; i < most; i++)
		sampler_init(&r->samplers[i],
			&(struct sampler_options){.temperature = temperature, .top_p = 1, .seed = i + 1});
	return rc;
}

int bench_rows(struct bench *b, const struct common_opts *c, const uint64_t *rows, int n_rows,
	uint32_t n_prompt, uint32_t n_new, float temperature, char *backend, struct err *e)
{
	struct rows_bench *r = NEW(struct rows_bench);
	struct rows_figures *f = NEW_ARRAY(struct rows_figures, n_rows);
	struct measure_card card = {0};
	const uint32_t number = common_opts_first_card(c);
	*r = (struct rows_bench){.b = b, .n_prompt = n_prompt, .n_new = n_new};
	int rc = open_rows(r, *c, rows, n_rows, temperature, e);
	if (!rc)
		snprintf(backend, BENCH_BACKEND_MAX, "%s", engine_backend_name(r->g));
	for (int i = 0; i < n_rows && !rc; i++) {
		f[i].n = (uint32_t)rows[i];
		rc = measure_rows(r, &f[i], e);
	}
	for (uint32_t i = 0; i < r->n_sessions; i++)
		session_free(r->sessions[i]);
	for (uint32_t i = 0; i < BENCH_ROWS_MAX; i++)
		sampler_fini(&r->samplers[i]);
	rc = common_opts_close(r->g, rc, e);
	if (rc)
		goto out;
	/* the limits, with the engine's memory given back */
	bench_begin(b, backend);
	if (!strcmp(backend, "cpu"))
		rc = bench_copy(b, true, e);
	else
		rc = measure_card(backend, number, MIN(b->repeats, 5), &card, e);
	snprintf(b->card_limit, sizeof b->card_limit, "copy on card %u", number);
	for (int i = 0; i < n_rows && !rc; i++)
		report_rows(r, &f[i], card.there ? card.copy_bytes_s.median : b->read_bytes_s,
			card.there ? b->card_limit : "read");
out:
	free(r->ids);
	free(r);
	free(f);
	return rc;
}
