/* SPDX-License-Identifier: MIT */
/* The part of `glmstream inspect` that forecasts a cluster (tools/plan/cluster_plan.h), with the
 * assumptions behind it. */
#ifndef GLM_TOOLS_INSPECT_CLUSTER_H
#define GLM_TOOLS_INSPECT_CLUSTER_H

#include "src/base/args.h"
#include "tools/plan/cluster_plan.h"
#include "tools/trace/inspect_forecast.h"

/* Zero-initialise; inspect_cluster_group, parse, inspect_cluster_run if `on`. */
struct inspect_cluster {
	bool on; /* --hosts or --cards */
	bool card_given, streams_given, recipe_given, card_gb_s_given, rows_given, part_given,
		hop_given, net_given, net_gb_s_given;
	const char *card, *recipe;
	uint32_t hosts, cards, streams, step_rows;
	float card_gb_s, row_part, hop_us, net_us, net_gb_s;
	struct arg args[11];
};

struct arg_group inspect_cluster_group(struct inspect_cluster *c);

/* The name of an option that was given and needs --hosts or --cards; NULL: there is none. */
const char *inspect_cluster_option(const struct inspect_cluster *c);

/* Options of the command that hold for the cluster too. */
struct inspect_shared {
	const char *model; /* NULL: GLM-5.2 by --recipe */
	const struct inspect_forecast *forecast;
	double vram_gb;   /* 0: of the card */
	uint32_t context; /* 0: 4096 */
	bool json;
};

/* Forecasts and prints. */
int inspect_cluster_run(
	const struct inspect_cluster *c, const struct inspect_shared *shared, struct err *e);

#endif
