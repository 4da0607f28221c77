/* SPDX-License-Identifier: MIT */
/*
 * What a machine would make of GLM-5.2: the memory plan of a run (src/engine/plan.h) and the
 * forecast of its speed (tools/forecast/forecast.h), both without the model and without the
 * machine.
 */
#ifndef GLM_TOOLS_MACHINE_PLAN_H
#define GLM_TOOLS_MACHINE_PLAN_H

#include "src/engine/plan.h"
#include "tools/forecast/forecast.h"
#include "tools/plan/cards.h"
#include "tools/plan/model_headers.h"

struct machine {
	struct card card;           /* sold_gb is not looked at */
	struct plan_machine memory; /* bytes that are free */
	double drive_gb_s;
	double cpu_gb_s;        /* weights of experts that the processor computes; 0: it does not */
	unsigned cores;         /* that convert without the card */
	uint64_t tier_bytes[2]; /* of the expert cache; ENGINE_CACHE_AUTO: what memory leaves */
	uint32_t sessions;      /* most at a time, as serve --sessions; 0: 1 */
};

struct machine_plan {
	struct plan plan;
	bool everything;                         /* all experts fit the card: nothing is streamed */
	double compute_ms;                       /* a token, all experts on the card */
	struct forecast_point steady, cold;      /* cold: the first MACHINE_PLAN_COLD tokens */
	double prompt_seconds, prompt_tok_s;     /* a prompt of one step, cold cache */
	double convert_hours, convert_cpu_hours; /* with the card; on the cores alone */
	uint64_t file_bytes, source_bytes; /* the model; the FP8 checkpoint that it is made from */
};

#define MACHINE_PLAN_COLD 64

/* Free bytes of a host that is sold with so many GiB of memory: the system takes some. */
uint64_t machine_host_bytes(double sold_gb);

/* Order of use: machine_plan_memory, machine_plan_forecast once for a model, machine_plan_speed.
 *
 * Sets *out to the memory plan alone. ERR_MEMORY with a hint when the model does not fit. context:
 * tokens of a session; 0: what memory allows. */
int machine_plan_memory(const struct model_headers *model, const struct machine *m,
	uint32_t context, struct machine_plan *out, struct err *e);

/* Adds all times to *out, after machine_plan_memory; with_cold: `cold` too. `f`: from
 * machine_plan_forecast. */
int machine_plan_speed(const struct model_headers *model, const struct machine *m,
	const struct forecast *f, bool with_cold, struct machine_plan *out, struct err *e);

/* The times again, after machine_plan_speed: *m may have another drive. */
void machine_plan_times(const struct model_headers *model, const struct machine *m,
	const struct forecast *f, struct machine_plan *out);

/* Opens *f, zero-initialised, for machine_plan_speed: the routing of the trace at this path, fitted
 * to the model. Errors as of forecast_open; the caller calls forecast_fini, after an error too. */
int machine_plan_forecast(
	const struct model_headers *model, const char *trace, struct forecast *f, struct err *e);

#endif
