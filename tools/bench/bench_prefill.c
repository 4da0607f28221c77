/* SPDX-License-Identifier: MIT */
/*
 * Prompts through a streaming engine, held against the time that the drive, or the link to the
 * card, needs for what they had to move, or the card for its products, whichever is longest. A long
 * prompt asks for nearly every expert once; what stands in the cache when it begins need not come,
 * so the bound is that of the bytes that really came, at the rate measured in the same run.
 */
#include "tools/bench/bench.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/generate.h"
#include "tools/bench/limits.h"
#include "tools/options/common_opts.h"
#include "tools/output/interrupt.h"
#include "tools/output/stats.h"

#include <stdlib.h>

struct prefill_sample {
	uint32_t tokens; /* computed; fewer than asked for when time was up */
	double seconds;
	double flops; /* of a token, for limits of a card */
	struct expert_stats d;
	uint32_t cached, cached_kept; /* experts in the first tier before; of these afterwards too */
};

struct prefill_job {
	struct bench *b;
	const uint64_t *sizes; /* [n_sizes] tokens */
	int n_sizes;
	struct prefill_sample *samples; /* [n_sizes][repeats], of which n_samples are taken */
	int n_samples;
	uint64_t stop_ns; /* when prompts end, 0: never */
	atomic_bool stop; /* for what computes: time is up, or Ctrl+C */
};

static void on_chunk(void *user, uint32_t done, uint32_t total)
{
	struct prefill_job *j = user;
	(void)done, (void)total;
	if ((j->stop_ns && clock_ns() > j->stop_ns) || atomic_load(interrupt_flag()))
		atomic_store(&j->stop, true);
}

/* Every size `repeats` times, each from an empty timeline; the expert cache is what the runs before
 * have left. */
static int take_prefill_samples(struct prefill_job *j, struct engine *g, struct err *e)
{
	const struct session_watch watch = {.progress = on_chunk, .user = j, .cancel = &j->stop};
	struct session *s = NULL;
	uint64_t most = 0;
	for (int i = 0; i < j->n_sizes; i++)
		most = MAX(most, j->sizes[i]);
	int rc = bench_check_context(g, most, 0, e);
	if (rc)
		return rc;
	int32_t *ids = bench_random_ids((uint32_t)most, (uint32_t)engine_n_valid(g));
	rc = session_new(g, &s, e);
	for (int i = 0; i < j->n_sizes * j->b->repeats && !rc && !atomic_load(&j->stop); i++) {
		const struct expert_stats before = engine_expert_stats(g);
		uint8_t *cached = stats_residency(g);
		const uint64_t start = clock_ns();
		session_rewind(s, 0);
		rc = session_sync(s, ids, (uint32_t)j->sizes[i / j->b->repeats], &watch, NULL, e);
		if (atomic_load(interrupt_flag()))
			rc = err_set(e, ERR_INTERRUPTED, "interrupted");
		else if (rc == ERR_INTERRUPTED)
			rc = 0; /* time is up: what is there counts */
		const struct expert_stats d = stats_between(before, engine_expert_stats(g));
		j->samples[i] = (struct prefill_sample){.tokens = session_length(s),
			.seconds = (double)(clock_ns() - start) * 1e-9,
			.flops = bench_prompt_flops(g, MAX(session_length(s), 1u)),
			.d = d};
		stats_count_kept(g, cached, &j->samples[i].cached, &j->samples[i].cached_kept);
		free(cached);
		if (!rc && j->samples[i].tokens)
			j->n_samples = i + 1;
	}
	session_free(s);
	free(ids);
	return rc;
}

/* The first sample of a size stands alone: it found another cache than the others. */
static void add_prefill_samples(struct prefill_job *j, const struct limits *l)
{
	struct bench *b = j->b;
	for (int i = 0; i < j->n_samples; i++) {
		const struct prefill_sample *s = &j->samples[i];
		const double tokens = s->tokens,
					 accesses = (double)(s->d.hit_vram + s->d.hit_ram + s->d.miss);
		const double disk = (double)s->d.bytes_read / l->disk.bytes_s.median;
		const double link = l->card.there ? (double)s->d.bytes_in / l->card.in_bytes_s.median : 0;
		const double products = b->device_flop_s > 0 ? tokens * s->flops / b->device_flop_s : 0;
		const double bound = MAX(MAX(disk, link), products);
		char name[64], cut[24] = "";
		if (s->tokens < j->sizes[i / b->repeats])
			snprintf(cut, sizeof cut, ", of which %u", s->tokens);
		snprintf(name, sizeof name, "%llu tokens%s, run %d",
			(unsigned long long)j->sizes[i / b->repeats], cut, i % b->repeats + 1);
		bench_add(b, "prefill", "tok/s", bench_one(tokens / s->seconds),
			bound > 0 ? tokens / bound : 0,
			bound == products ? b->card_limit
			: link > disk     ? "link"
							  : "drive",
			"%s", name);
		bench_add_value(b, "prefill", "GB", (double)s->d.bytes_read * 1e-9, "%s: read", name);
		if (s->d.bytes_in)
			bench_add_value(
				b, "prefill", "GB", (double)s->d.bytes_in * 1e-9, "%s: host to card", name);
		bench_add_value(b, "prefill", "%", 100 * (double)s->d.miss / MAX(accesses, 1.0),
			"%s: experts missed", name);
		bench_add_value(b, "prefill", "experts", s->cached_kept,
			"%s: cached before and after, of %u before", name, s->cached);
		bench_add_value(
			b, "prefill", "s", (double)s->d.wait_ns * 1e-9, "%s: waited for experts", name);
	}
}

int bench_prefill_stream(struct bench *b, const struct common_opts *c, const uint64_t *sizes,
	int n_sizes, float seconds, char *backend, struct err *e)
{
	struct prefill_job j = {.b = b, .sizes = sizes, .n_sizes = n_sizes};
	struct limits limits = {0};
	struct engine *g = NULL;
	bench_measure_flops(b, c);
	j.samples = mem_new((size_t)n_sizes * (size_t)b->repeats, sizeof *j.samples);
	int rc = common_opts_open(c, &g, e);
	if (seconds > 0)
		j.stop_ns = clock_ns() + (uint64_t)((double)seconds * 1e9);
	if (!rc) {
		snprintf(backend, BENCH_BACKEND_MAX, "%s", engine_backend_name(g));
		rc = take_prefill_samples(&j, g, e);
	}
	rc = common_opts_close(g, rc, e);
	if (!rc) {
		bench_begin(b, backend);
		rc = limits_measure(b, c, "prefill", backend, &limits, e);
	}
	if (!rc)
		add_prefill_samples(&j, &limits);
	free(j.samples);
	return rc;
}
