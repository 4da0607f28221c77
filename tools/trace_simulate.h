/* SPDX-License-Identifier: MIT */
/* `glmstream trace simulate`: argv[0] is "simulate". */
#ifndef GLM_TOOLS_TRACE_SIMULATE_H
#define GLM_TOOLS_TRACE_SIMULATE_H

#include "cache/trace.h"

int trace_simulate(int argc, char **argv, struct err *e);

/* trace_open, and a warning on stderr when the trace ends early. */
int trace_load(const char *path, struct trace *t, struct err *e);

#endif
