/* SPDX-License-Identifier: MIT */
/* The part of `glmstream inspect` that looks at a trace: modelled hit rates and speeds for a list
 * of budgets. */
#ifndef GLM_TOOLS_INSPECT_FORECAST_H
#define GLM_TOOLS_INSPECT_FORECAST_H

#include "src/base/args.h"
#include "src/model/config.h"
#include "tools/forecast/forecast.h"
#include "tools/machine/measure_host.h"

#include <jansson.h>

/* Zero-initialise; inspect_forecast_group, parse, inspect_forecast_run, print or json, fini. */
struct inspect_forecast {
	const char *trace, *cache_gb, *policy;
	uint64_t ram_bytes;
	int lookahead;
	float disk_gb_s, pcie_gb_s, cpu_gb_s, gpu_ms;
	bool measure, gpu_given;
	struct arg args[10];
	bool given[10]; /* of the args without a flag of their own */
	struct forecast forecast;
	struct forecast_machine machine;
	struct measure_host host;      /* of --measure with a card and a second tier */
	struct forecast_point *points; /* [n_points] */
	int n_points;
};

struct arg_group inspect_forecast_group(struct inspect_forecast *f);

/* Does nothing without --trace; ERR_USAGE for options that need it. `model` is the path of the
 * file.
 */
int inspect_forecast_run(struct inspect_forecast *f, const char *model, const struct gguf *file,
	const struct model_config *c, struct err *e);
void inspect_forecast_print(const struct inspect_forecast *f);
json_t *inspect_forecast_json(const struct inspect_forecast *f);
void inspect_forecast_fini(struct inspect_forecast *f);

#endif
