/* SPDX-License-Identifier: MIT */
/*
 * What the parts of `glmstream bench` share: repeating a piece of work, figures with their spread,
 * and the limits of this machine that figures are held against. Limits are measured in the same
 * run: a share of a data sheet says nothing.
 */
#ifndef GLM_TOOLS_BENCH_H
#define GLM_TOOLS_BENCH_H

#include "src/base/err.h"
#include "src/engine/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_MAX_REPEATS 99
#define BENCH_BACKEND_MAX 160

enum bench_format { BENCH_TEXT, BENCH_CSV, BENCH_JSON };

/* Median and extremes of the repeats. */
struct bench_spread {
	double median, low, high;
};

/* One line of the report: a rate, larger is better unless there is no limit (sizes). */
struct bench_figure {
	const char *section; /* "copy"; static text */
	char name[72];
	const char *unit; /* static text */
	struct bench_spread rate;
	double limit;           /* in the same unit; 0: none */
	const char *limit_name; /* "read", "FMA"; static text */
};

struct bench {
	enum bench_format format;
	int threads;        /* OpenMP threads in use */
	int repeats;        /* samples of each figure, odd is best */
	double seconds;     /* least length of one sample */
	uint64_t start_ns;  /* when the command began */
	size_t array_bytes; /* of bench_copy; 0: four last-level caches, at most 640 MiB */
	/* Limits, 0 until they are measured: */
	double read_bytes_s, mac_s;   /* of the processor, by bench_copy */
	double device_bytes_s;        /* read and written by a copy on the card, by bench_ops */
	double device_flop_s;         /* backend_library_flops, by bench_measure_flops or bench_ops */
	char card_limit[48];          /* the limit of a card that figures name, and the card's number */
	struct bench_figure *figures; /* [n_figures] */
	size_t n_figures;
};

/* Runs work(user) until a sample has lasted b->seconds, b->repeats times after one unmeasured run;
 * seconds per call. Returns early with ERR_INTERRUPTED after Ctrl+C, or with the first negative
 * code that `work` returned. */
int bench_time(const struct bench *b, int (*work)(void *user, struct err *e), void *user,
	struct bench_spread *seconds, struct err *e);

/* The rate of `amount` per call for a spread of seconds. */
struct bench_spread bench_rate(struct bench_spread seconds, double amount);

/* All of it times a factor: bytes to GB. */
static inline struct bench_spread bench_scale(struct bench_spread s, double factor)
{
	return (struct bench_spread){s.median * factor, s.low * factor, s.high * factor};
}

/* A single figure. */
static inline struct bench_spread bench_one(double v)
{
	return (struct bench_spread){v, v, v};
}

/* Median and extremes; sorts v. */
struct bench_spread bench_spread_of(double *v, int n);

/* n token ids below n_vocab: random, but the same in every run. The caller frees them. */
int32_t *bench_random_ids(uint32_t n, uint32_t n_vocab);

/* Adds a figure and, in text and CSV, prints it. */
void bench_add(struct bench *b, const char *section, const char *unit, struct bench_spread rate,
	double limit, const char *limit_name, const char *name, ...)
	__attribute__((format(printf, 7, 8)));

/* A single value without a limit. */
void bench_add_value(struct bench *b, const char *section, const char *unit, double value,
	const char *name, ...) __attribute__((format(printf, 5, 6)));

/* Head line before the first figure, JSON after the last. */
void bench_begin(const struct bench *b, const char *backend);
void bench_finish(struct bench *b, const char *backend);
void bench_fini(struct bench *b);

/* ---- parts ---- */

/* Memory bandwidth (read, copy, triad over arrays well above the last cache) and float32
 * multiply-adds on all threads. With `quiet` only the limits are measured. */
int bench_copy(struct bench *b, bool quiet, struct err *e);

struct backend;

/* Every op of the table at the shapes of the pocket model and of GLM-5.2. */
int bench_ops(struct bench *b, struct backend *backend, const char *only, struct err *e);

struct common_opts;

/* ERR_USAGE when a prompt and new tokens are more than the engine's context. */
int bench_check_context(const struct engine *g, uint64_t n_prompt, uint64_t n_new, struct err *e);

/* generate; ERR_INTERRUPTED when Ctrl+C ended it. */
struct session;
struct generate_options;
struct generate_result;
int bench_generate(struct session *s, const int32_t *ids, uint32_t n,
	const struct generate_options *o, struct generate_result *r, struct err *e);

/* Sets b->device_flop_s and b->card_limit from the first card of these options, unless they compute
 * on the processor or no card answers. It takes 512 MiB of the card: call it before an engine is
 * opened. */
void bench_measure_flops(struct bench *b, const struct common_opts *c);
/* Floating point operations that each token of a prompt of n >= 1 tokens takes, mean, from an empty
 * timeline: products with weights (without the head), scores of the indexer, attention. */
double bench_prompt_flops(const struct engine *g, uint64_t n);

int bench_prefill(struct bench *b, struct engine *g, uint32_t n_prompt, struct err *e);
/* n_fill: positions before the prompt that are filled with random rows (session_fill.h). */
int bench_decode(struct bench *b, struct engine *g, uint32_t n_fill, uint32_t n_prompt,
	uint32_t n_new, struct err *e);

/* Adds figures of a context with n positions filled: bytes on the card, in host memory, and over
 * the link a token. */
void bench_add_context(struct bench *b, const char *section, const struct engine *g, uint32_t n);

/* Prefill with streamed experts of each of these sizes, repeats times, for at most so many seconds
 * (0: all), against what the bytes that came must take. Opens its own engine; see bench_replay for
 * `backend`. */
int bench_prefill_stream(struct bench *b, const struct common_opts *c, const uint64_t *sizes,
	int n_sizes, float seconds, char *backend, struct err *e);

/* A reading of what each stage of an engine has done so far. */
struct bench_stages {
	uint32_t n;
	struct engine_stage stage[STAGES_MAX];
	struct engine_stage_usage usage[STAGES_MAX];
};
void bench_stages_read(struct bench_stages *s, struct engine *g);

/* Adds figures of what the cards did between two readings, for each of n tokens: of all together,
 * and how long the card of each stage was busy. engine_measure was on between them. */
void bench_usage(struct bench *b, const char *section, const struct bench_stages *from,
	const struct bench_stages *to, double n);
/* Adds figures of how many stages computed at the same time between two readings of engine_overlap.
 * Adds nothing if nothing was in flight. what: "64 rows in 2 micro-batches". */
void bench_overlap(struct bench *b, const char *section, const char *what,
	const struct engine_overlap *from, const struct engine_overlap *to, bool several_ranks);
/* Adds the computing_ns of each stage between two readings, for each of n tokens. Adds nothing for
 * a single stage. what: "a token". */
void bench_stages_time(struct bench *b, const char *section, const char *what,
	const struct bench_stages *from, const struct bench_stages *to, double n);

/* Decoding so many answers at once, for each of rows[n_rows] <= BENCH_ROWS_MAX, against what a step
 * must read. Tokens are drawn at `temperature`. Opens its own engine; prints the head line; see
 * bench_replay for `backend`. */
#define BENCH_ROWS_MAX 64
int bench_rows(struct bench *b, const struct common_opts *c, const uint64_t *rows, int n_rows,
	uint32_t n_prompt, uint32_t n_new, float temperature, char *backend, struct err *e);

/* Decoding with streamed experts (c->cache_bytes > 0), without lookahead and with 1, 2 and
 * c->lookahead layers, held against the time that computing alone or reading alone takes. Opens its
 * own engines, one after the other. */
int bench_stream(
	struct bench *b, const struct common_opts *c, uint32_t n_prompt, uint32_t n_new, struct err *e);

/* Answers to questions with drafts of the model's own acceptance, against the same answers without;
 * fails if one differs. Opens its own engines (two if experts are streamed); prints the head line;
 * see bench_replay for `backend`.
 */
struct bench_drafts_options {
	int mode;              /* DRAFT_AUTO, or most drafts in a step */
	const char *questions; /* file with one a line; NULL: dictionary questions */
	uint32_t n_new;        /* most tokens of an answer */
	float temperature;
};
int bench_drafts(struct bench *b, const struct common_opts *c, const struct bench_drafts_options *o,
	char *backend, struct err *e);

#define BENCH_DRAFTS_MAX 7

/* Decoding with the routing of a trace or confined to some experts: start-up, one long answer in
 * intervals, computing alone, and the bound of each interval. Opens its own engine, then prints the
 * head line. */
struct bench_replay_options {
	const char *routing;              /* trace whose experts are used; NULL: the router's */
	uint32_t confine;                 /* only the first so many experts of each layer; 0: all */
	uint32_t n_fill, n_prompt, n_new; /* as bench_decode */
	float seconds;                    /* decode at most so long; 0: until n_new */
	/* Drafts whose acceptance is assumed: accept[i] is the chance that draft i is right if those
	 * before it are; n_accept 0: no drafts. far: see replayed_routing_keep. */
	float accept[BENCH_DRAFTS_MAX];
	int n_accept;
	bool far;
	char *backend; /* [BENCH_BACKEND_MAX] out: where it was computed */
};
int bench_replay(struct bench *b, const struct common_opts *c, const struct bench_replay_options *o,
	struct err *e);

/* A session of n tokens (of a text file, or random ones) with 16-bit and float32 caches: prefill,
 * saving to a file in `folder` (NULL: here) and reading it back. Opens its own engines. */
int bench_session(struct bench *b, const struct common_opts *c, const char *text,
	const char *folder, uint32_t n, struct err *e);

#endif
