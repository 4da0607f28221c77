/* SPDX-License-Identifier: MIT */
/*
 * What a cache of a given size would make of the routing in a trace, and how fast tokens would then
 * come. The counts are those of the simulator, which is the code of the live cache; the times are a
 * model:
 *
 *     token = computing + missed bytes / demand rate + bytes between tiers / copy rate
 *             + what prefetching reads beyond the time that computing leaves it
 *
 * that is, nobody computes while a layer waits for its own experts, and prefetches run while others
 * compute. The demand rate depends on how many experts a layer misses at once.
 */
#ifndef GLM_TOOLS_FORECAST_H
#define GLM_TOOLS_FORECAST_H

#include "cache/trace/sim.h"
#include "src/base/err.h"
#include "stream/loader/loader.h"
#include "tools/options/common_opts.h"

struct forecast_machine {
	double one_bytes_s;   /* drive, one expert at a time. 0: unknown, no times */
	double layer_bytes_s; /* top_k at a time */
	double full_bytes_s;  /* always busy */
	double copy_bytes_s;  /* between the tiers; 0: infinitely fast */
	double compute_ms;    /* a token, everything cached */
	bool direct;          /* the drive was read past the page cache */
};

/* Measures the three rates of the drive. */
int forecast_measure(const struct common_opts *c, const struct gguf *file, uint32_t top_k,
	double seconds, int repeats, struct forecast_machine *m, struct err *e);

/* A trace as this model's cache sees it. Zero-initialise; forecast_fini releases. */
struct forecast {
	struct trace trace;       /* its expert_bytes are those of slots */
	double read_share;        /* bytes read for an expert / bytes of its slot */
	double top_k, moe_layers; /* layers that the trace's decode steps use */
	struct loader_plan plan;  /* floor_bytes and everything_bytes of the model */
};

/* Reads the trace and fits it to the model: ERR_INPUT when it is of another one, or holds no decode
 * step. Opens the files of the model, reads no weights. */
int forecast_open(struct forecast *f, const char *trace, const struct gguf *file,
	const struct loader_options *o, struct err *e);
void forecast_fini(struct forecast *f);

/* One setting. Zero-initialise, fill the first line, forecast_run fills the rest. */
struct forecast_point {
	uint64_t cache_bytes, ram_bytes;
	const char *policy;
	int lookahead;
	double hits[2];            /* share of accesses found in each tier */
	double missed, prefetched; /* bytes a token from the drive: demanded; read ahead */
	double useful, wasted;     /* share of the prefetched experts */
	double ms, tok_s;          /* 0 when the machine is unknown */
};

/* Floor and everything of a model, before there is a trace. */
int forecast_plan(const struct loader_options *o, struct loader_plan *plan, struct err *e);

int forecast_run(const struct forecast *f, const struct forecast_machine *m,
	struct forecast_point *p, struct err *e);

#endif
