/* SPDX-License-Identifier: MIT */
/* `glmstream trace simulate`: argv[0] is "simulate". */
#ifndef GLM_TOOLS_TRACE_SIMULATE_H
#define GLM_TOOLS_TRACE_SIMULATE_H

#include "cache/trace/trace.h"
#include "src/base/args.h"

int trace_simulate(int argc, char **argv, struct err *e);

/* trace_open, and a warning on stderr when the trace ends early. */
int trace_load(const char *path, struct trace *t, struct err *e);

static inline double trace_ratio(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : 0;
}

/* "A,B,C" by the rules of one option; out [TRACE_LIST_MAX]. `label` names the option in errors. */
#define TRACE_LIST_MAX 64
int trace_list_parse(const char *text, const struct arg *one, const char *label, uint64_t *out,
	int *n, struct err *e);

#endif
