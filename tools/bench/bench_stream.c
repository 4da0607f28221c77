/* SPDX-License-Identifier: MIT */
/*
 * Decoding with experts streamed from disk, held against what no program could beat on this
 * machine: a token takes at least as long as computing it does when everything is cached, and at
 * least as long as the drive needs for the bytes that the cache misses. Both are measured in the
 * same run, the second with the same reader on the same file in requests of the same size, but with
 * the drive always busy. The misses are those without lookahead: useless prefetches do not count
 * towards the bound.
 *
 * Other processes only ever slow a sample down. So all ways to run take turns, the bound is that of
 * the fastest samples, and the figures of a run are those of its fastest sample.
 */
#include "tools/bench/bench.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/checkpoint/checkpoint.h"
#include "src/model/config.h"
#include "tools/bench/measure.h"
#include "tools/options/pocket.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST_AHEAD 4

struct stream_row {
	int ahead;
	double ms[BENCH_MAX_REPEATS]; /* of a token, a sample each */
	struct measure_decode best;   /* the fastest sample */
};

struct stream_job {
	struct bench *b;
	struct common_opts c;
	int32_t *ids; /* [n] */
	uint32_t n, n_new;
	struct measure_disk disk, alone; /* as much as the reader takes; one expert at a time */
	struct stream_row cached;        /* everything cached: computing alone */
	bool no_cached;                  /* memory does not hold that */
	struct stream_row rows[MOST_AHEAD];
	int n_rows;
	double compute_ms, read_ms, bound_ms;
};

static void add_disk(struct bench *b, const struct measure_disk *d)
{
	bench_add(b, "stream", "GB/s", bench_scale(d->bytes_s, 1e-9), 0, NULL,
		"read experts of %.4g MB, %u at a time%s", d->expert_bytes * 1e-6, d->depth,
		d->direct ? "" : ", page cache");
}

/* Measures the drive; the prompt is that of the other figures: random, the same in every run. */
static int prepare_stream(struct stream_job *j, uint32_t n_prompt, struct err *e)
{
	struct gguf *file = NULL;
	struct model_config config;
	const char *model = pocket_or(j->c.model, e);
	if (!model)
		return e->code;
	int rc = model_file_open(model, &file, e);
	if (rc || (rc = config_read(file, &config, e)) ||
		(rc = measure_disk(&j->c, file, 0, j->b->seconds, j->b->repeats, &j->disk, e)) ||
		(rc = measure_disk(&j->c, file, 1, j->b->seconds, j->b->repeats, &j->alone, e)))
		goto out;
	add_disk(j->b, &j->disk);
	add_disk(j->b, &j->alone);
	j->n = n_prompt;
	j->ids = bench_random_ids(n_prompt, config.n_vocab);
out:
	gguf_close(file);
	return rc;
}

/* Takes sample i of a row: a decode with its lookahead after one unmeasured decode, which is the
 * cold start. The engine logs nothing: it has logged its plan before. ERR_RUN: the logits differ
 * from those of row 0. */
static int sample_decode(
	struct stream_job *j, int i, uint64_t cache_bytes, struct stream_row *row, struct err *e)
{
	struct common_opts c = j->c;
	struct measure_decode d;
	c.cache_bytes = cache_bytes;
	c.lookahead = row->ahead;
	c.lookahead_given = true;
	if (cache_bytes == MEASURE_EVERYTHING)
		c.ram_bytes = 0;
	int rc = measure_decode(&c, j->ids, j->n, j->n_new, 1, &d, e);
	if (rc)
		return rc;
	row->ms[i] = d.ms.median;
	if (!i || d.ms.median < row->best.ms.median)
		row->best = d;
	if (d.logits_hash != j->rows[0].best.logits_hash)
		return err_set(e, ERR_RUN,
			"the logits depend on the lookahead or the cache: this is a fault of the program");
	return 0;
}

/* Every way takes its turn. The first one is the streamed run without lookahead. */
static int take_stream_samples(struct stream_job *j, struct err *e)
{
	for (int i = 0; i < j->b->repeats; i++) {
		for (int k = 0; k < j->n_rows; k++) {
			int rc = sample_decode(j, i, j->c.cache_bytes, &j->rows[k], e);
			if (rc)
				return rc;
		}
		if (j->no_cached)
			continue;
		int rc = sample_decode(j, i, MEASURE_EVERYTHING, &j->cached, e);
		if (rc == ERR_MEMORY) {
			j->no_cached = true;
			log_info("bench: memory does not hold all experts: the computing time is that of the "
					 "streamed run less its waits");
		} else if (rc) {
			return rc;
		}
	}
	return 0;
}

static struct bench_spread tok_s(struct stream_row *r, int n)
{
	struct bench_spread ms = bench_spread_of(r->ms, n);
	return bench_rate(ms, 1e3);
}

static void add_row(struct stream_job *j, struct stream_row *row)
{
	struct bench *b = j->b;
	const struct measure_decode *d = &row->best;
	const int ahead = row->ahead;
	const double accesses = d->hits[0] + d->hits[1] + d->misses, ms = d->ms.median,
				 gap = ms - j->bound_ms;
	bench_add(b, "stream", "tok/s", tok_s(row, b->repeats), 1e3 / j->bound_ms, "bound",
		"lookahead %d", ahead);
	bench_add_value(
		b, "stream", "ratio", ms / j->bound_ms, "lookahead %d: least time / bound", ahead);
	bench_add_value(b, "stream", "%", 100 * d->hits[0] / accesses,
		"lookahead %d: experts in tier 0, or loading", ahead);
	if (j->c.ram_bytes)
		bench_add_value(b, "stream", "%", 100 * d->hits[1] / accesses,
			"lookahead %d: experts in tier 1", ahead);
	bench_add_value(
		b, "stream", "%", 100 * d->misses / accesses, "lookahead %d: experts missed", ahead);
	bench_add_value(b, "stream", "MB/tok", d->bytes * 1e-6, "lookahead %d: read", ahead);
	if (ahead) {
		bench_add_value(b, "stream", "/tok", d->useful, "lookahead %d: useful prefetches", ahead);
		bench_add_value(b, "stream", "/tok", d->wasted, "lookahead %d: useless prefetches", ahead);
	}
	bench_add_value(b, "stream", "ms/tok", d->wait_ms, "lookahead %d: waited for experts", ahead);
	if (d->checked > 0)
		bench_add_value(b, "stream", "ms/tok", d->check_ms,
			"lookahead %d: hashing %.3g experts for --verify, beside that", ahead, d->checked);
	if (b->format != BENCH_TEXT)
		return;
	printf("         lookahead %d: %.3g ms a token are %.2f times the bound of %.3g ms (computing "
		   "%.3g, reading %.3g). ",
		ahead, ms, ms / j->bound_ms, j->bound_ms, j->compute_ms, j->read_ms);
	if (gap <= 0)
		printf("Faster than its bound: the machine was busy while that was measured. Repeat on a "
			   "quiet machine, or with more --repeats.\n");
	else
		printf("Of the gap of %.3g ms, %.3g ms are waits not hidden and %.3g ms other work.\n", gap,
			MIN(d->wait_ms, gap), MAX(gap - d->wait_ms, 0.0));
}

static void report_stream(struct stream_job *j)
{
	struct bench *b = j->b;
	const struct measure_decode *first = &j->rows[0].best;
	j->compute_ms = j->no_cached ? first->ms.median - first->wait_ms : j->cached.best.ms.median;
	j->read_ms = first->bytes / j->disk.bytes_s.high * 1e3;
	j->bound_ms = MAX(j->compute_ms, j->read_ms);
	bench_add(b, "stream", "tok/s",
		j->no_cached ? bench_one(1e3 / j->compute_ms) : tok_s(&j->cached, b->repeats), 0, NULL,
		"computing alone (%s)", j->no_cached ? "streamed, less waits" : "everything cached");
	if (j->read_ms > 0)
		bench_add_value(b, "stream", "tok/s", 1e3 / j->read_ms,
			"reading alone: %.4g MB missed a token", first->bytes * 1e-6);
	for (int i = 0; i < j->n_rows; i++)
		add_row(j, &j->rows[i]);
}

int bench_stream(
	struct bench *b, const struct common_opts *c, uint32_t n_prompt, uint32_t n_new, struct err *e)
{
	struct stream_job *j = NEW(struct stream_job);
	j->b = b;
	j->c = *c;
	j->n_new = n_new;
	for (j->n_rows = 0; j->n_rows < 3; j->n_rows++)
		j->rows[j->n_rows].ahead = j->n_rows;
	if (c->lookahead > 2)
		j->rows[j->n_rows++].ahead = c->lookahead;
	int rc = prepare_stream(j, n_prompt, e);
	if (!rc)
		rc = take_stream_samples(j, e);
	if (!rc)
		report_stream(j);
	free(j->ids);
	free(j);
	return rc;
}
