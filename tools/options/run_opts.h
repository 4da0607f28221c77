/* SPDX-License-Identifier: MIT */
/* The options of `glmstream` without a command: what to answer, how to sample, how to show it. */
#ifndef GLM_TOOLS_RUN_OPTS_H
#define GLM_TOOLS_RUN_OPTS_H

#include "src/engine/sampler.h"
#include "tools/options/common_opts.h"
#include "tools/options/draft_opts.h"
#include "tools/options/sandbox_opts.h"

enum think_mode { THINK_MAX, THINK_HIGH, THINK_OFF };

struct run_opts {
	struct common_opts common;
	struct prefix_opts prefix;
	struct profile_opts profile;
	struct sandbox_opts sandbox;
	struct draft_opts draft;
	const char *prompt, *file, *system;
	const char *session;     /* file of the chat; NULL: none */
	const char *json_schema; /* file that answers follow; NULL: none */
	bool raw, json;
	int think; /* enum think_mode */
	bool think_given;
	uint32_t max_new; /* UINT32_MAX: until the model stops */
	float temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
	int top_k;
	uint64_t seed;
	bool temp_given, top_p_given, seed_given;
	struct arg args[10], sampling[10];
};

/* Parses; returns 0, ARGS_HELP (done) or a code. Fills a seed when none was given. */
int run_opts_parse(struct run_opts *o, int argc, char **argv, struct err *e);

/* After the engine is open: what was not given comes from the file's own defaults. */
void run_opts_defaults(struct run_opts *o, const struct model_config *c);

/* For answer number `turn`; each draws its own random numbers. */
struct sampler_options run_opts_sampler(const struct run_opts *o, uint64_t turn);

/* /set NAME VALUE; NAME is one of the sampling options, without dashes. */
int run_opts_set(struct run_opts *o, const char *name, const char *value, struct err *e);

/* The names that NAME may be; NULL behind the last. */
const char *run_opts_set_name(size_t i);

/* All of them: "temp 0.7, top-p 0.95, ..., n 40". */
void run_opts_show(const struct run_opts *o, struct buf *out);

const char *think_mode_name(int mode);
bool think_mode_parse(const char *text, int *mode);

#endif
