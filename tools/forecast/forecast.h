/* SPDX-License-Identifier: MIT */
/*
 * Hits and tokens per second that a trace's routing would give with a cache of a given size: the
 * one model of speed in the tree, for `plan`, `tune`, `inspect --trace` and `trace simulate`. The
 * counts are the simulator's, which runs the code of the live cache.
 *
 * Times of a token, from bytes a token and rates:
 *
 *   on the CPU   computing + missed bytes / demand rate + bytes between tiers / copy rate
 *                + the time of prefetch reads that computing does not hide.
 *                The demand rate depends on how many experts a layer misses at once.
 *   on a card    with lookahead: the longest of computing, drive and link, and FORECAST_EXPOSED of
 *                the two others; without it the sum of the three. Drive bytes are those of a run
 *                without lookahead, since predicted experts are read only while the drive is idle.
 *                The link carries them and what a run with lookahead promotes. Where the
 *                processor computes experts (--cpu-experts), the misses of a layer that lie in host
 *                memory are split as a run splits them (stream/miss_split.h); their number is taken
 *                as binomially distributed.
 *
 * FORECAST_EXPOSED is fitted to three runs on an H200 whose experts all lay in host memory. For the
 * nine runs of tests/bench/RESULTS.md the model says 12 % less to 17 % more tok/s than were
 * measured (tests/e2e/bench/plan.sh). In none of them did the processor compute experts.
 *
 * Order of use: forecast_open, forecast_measure or rates from elsewhere, forecast_run for each
 * setting, forecast_fini.
 */
#ifndef GLM_TOOLS_FORECAST_H
#define GLM_TOOLS_FORECAST_H

#include "cache/trace/sim.h"
#include "src/base/err.h"
#include "stream/loader/loader.h"
#include "tools/options/common_opts.h"

#define FORECAST_EXPOSED 0.48

struct forecast_machine {
	double one_bytes_s;   /* drive, one expert at a time. 0: unknown, no times */
	double layer_bytes_s; /* top_k at a time */
	double full_bytes_s;  /* always busy */
	double copy_bytes_s;  /* between the tiers; 0: infinitely fast */
	double compute_ms;    /* a token, everything cached */
	double host_bytes_s;  /* on a card: at which the processor computes experts; 0: it does not */
	bool card;            /* computes on a card, with captured graphs and copies beside them */
	bool direct;          /* the drive was read past the page cache */
};

/* A drive that reads at one rate. */
static inline struct forecast_machine forecast_machine_of(
	double drive_bytes_s, double copy_bytes_s, double compute_ms)
{
	return (struct forecast_machine){.one_bytes_s = drive_bytes_s,
		.layer_bytes_s = drive_bytes_s,
		.full_bytes_s = drive_bytes_s,
		.copy_bytes_s = copy_bytes_s,
		.compute_ms = compute_ms};
}

/* Measures the three rates of the drive, by reading experts of `file`, the model of c->model:
 * `repeats` times `seconds` for each rate, of which the median counts. Sets `direct` too. */
int forecast_measure(const struct common_opts *c, const struct gguf *file, uint32_t top_k,
	double seconds, int repeats, struct forecast_machine *m, struct err *e);

/* floor_bytes and everything_bytes of a model, for which no trace is needed. */
int forecast_plan(const struct loader_options *o, struct loader_plan *plan, struct err *e);

/* A trace as this model's cache sees it. Zero-initialise; forecast_fini releases. */
struct forecast {
	struct trace trace;       /* its expert_bytes are those of slots */
	double read_share;        /* bytes read for an expert / bytes of its slot */
	double top_k, moe_layers; /* layers of the model that decode steps use */
	/* Layers of the trace / layers of the model. A synthetic trace may have fewer: budgets are
	 * reduced and bytes a token enlarged by this. */
	double part;
	struct loader_plan plan; /* floor_bytes and everything_bytes of the model */
};

/* Reads the trace and fits it to the model: ERR_INPUT when it is of another one, or holds no decode
 * step. A synthetic trace (GLTR1) of as many experts and used ones serves any number of layers.
 * n_mtp: layers of o->n_layers that decode steps do not use. Opens the files of the model, reads no
 * weights. */
int forecast_open(struct forecast *f, const char *trace, const struct gguf *file,
	const struct loader_options *o, uint32_t n_mtp, struct err *e);
void forecast_fini(struct forecast *f);

/* The trace as so many streams at once: it is cut into as many runs of equal length, and the steps
 * are put in the order first of each run, second of each run, ... *out borrows all but its events
 * from f; forecast_free_streams releases those. ERR_INPUT when a run has less than two steps. */
int forecast_streams(
	const struct forecast *f, uint32_t streams, struct forecast *out, struct err *e);
void forecast_free_streams(struct forecast *out);

/* Distinct experts that a layer computes in a step of so many rows: the mean over the decode steps
 * of the trace, taken `rows` at a time. With forecast_streams each row is of another stream. */
double forecast_distinct(const struct forecast *f, uint32_t rows);

/* Tokens of the trace that a steady state does not count: they fill the tiers. */
uint64_t forecast_steady_skip(const struct forecast *f);

/* One setting and its result. Zero-initialise, fill the fields down to `window`; forecast_replay
 * fills those down to `alone`, forecast_times the others. */
struct forecast_point {
	uint64_t cache_bytes, ram_bytes;
	const char *policy;
	int lookahead;
	uint64_t skip;             /* tokens that are replayed but not counted */
	uint64_t window;           /* > 0: the cache is emptied after so many tokens: cold starts */
	double hits[2];            /* share of accesses found in each tier */
	double missed, prefetched; /* bytes a token from the drive: demanded; read ahead */
	double useful, wasted;     /* share of the prefetched experts */
	double misses, promoted;   /* a token: experts from the drive; bytes between the tiers */
	/* on a card: demanded bytes and experts a token of a run without lookahead */
	struct {
		double missed, misses;
	} alone;
	double ms, tok_s;         /* 0 when the machine is unknown */
	double drive_ms, link_ms; /* a token, on a card: how long each is busy */
};

/* Replays the trace with the setting of *p, for a machine that computes on a card or not. Errors of
 * sim_run. */
int forecast_replay(const struct forecast *f, bool card, struct forecast_point *p, struct err *e);
/* The times of what was replayed; m->card as there. */
void forecast_times(
	const struct forecast *f, const struct forecast_machine *m, struct forecast_point *p);
/* Both. */
int forecast_run(const struct forecast *f, const struct forecast_machine *m,
	struct forecast_point *p, struct err *e);

/* The time that the misses of a layer in host memory take when the processor computes some of them,
 * as a share (0 .. 1] of the time that all their copies would take. A layer uses n experts, each of
 * which is such a miss with probability `chance`. */
double forecast_host_part(int n, double chance, double link_bytes_s, double host_bytes_s);

/* What a step on a card takes of these times of its three parts. */
double forecast_card_ms(double compute_ms, double drive_ms, double link_ms, bool lookahead);

/* The least and the most that these counts can take: all three at once, one after the other.
 * Prefetched bytes count like demanded ones, whether used or not; demotions go the other way over
 * the link and are free. full_bytes_s and copy_bytes_s <= 0: infinitely fast. */
struct forecast_bounds {
	double drive_ms, link_ms; /* a token; the link carries what comes from both */
	double overlap_tok_s, serial_tok_s;
};
struct forecast_bounds forecast_bounds_of(
	const struct sim_result *r, const struct forecast_machine *m);

#endif
