/* SPDX-License-Identifier: MIT */
/* The part of `glmstream inspect` that forecasts from a trace. Reads no weights, except to measure
 * the drive. */
#include "tools/trace/inspect_forecast.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/engine.h"
#include "tools/options/pocket.h"
#include "tools/output/json_out.h"
#include "tools/trace/trace_simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEASURE_SECONDS 0.5

struct arg_group inspect_forecast_group(struct inspect_forecast *f)
{
	f->policy = POLICY_DEFAULT;
	f->lookahead = ENGINE_LOOKAHEAD_AUTO;
	const struct arg list[] = {
		{"trace", 0, ARG_STRING, .string = &f->trace, .file = ARG_READS,
			.words = pocket_trace_words, .value = "FILE",
			.help = "a trace of this model, as a run with --trace FILE writes it; \"shipped\": the "
					"synthetic one of GLM-5.2 that comes with the program; of a cluster also "
					"\"random\""},
		{"cache-gb", 0, ARG_STRING, .string = &f->cache_gb, .value = "G,...",
			.help = "budgets of the first tier in GB; of a cluster the one of each card",
			.fallback = "a row from the smallest that works to all experts; of a cluster what "
						"memory leaves"},
		{"ram-gb", 0, ARG_SIZE_GB, .u64 = &f->ram_bytes, .max = 1e6, .value = "G",
			.help = "second tier, of a cluster that of each host", .fallback = "none"},
		{"policy", 0, ARG_STRING, .string = &f->policy, .value = "NAME",
			.help = "lru, lfu or sieve", .fallback = POLICY_DEFAULT},
		{"lookahead", 0, ARG_INT, .i32 = &f->lookahead, .max = 64, .value = "N",
			.help = "prefetch by the trace's predictions up to N layers ahead",
			.fallback = "0; of a cluster as a run decides"},
		{"disk-gb-s", 0, ARG_FLOAT, .f32 = &f->disk_gb_s, .max = 1e6, .above_min = true,
			.value = "G",
			.help =
				"read bandwidth of the drive, for modelled tokens per second; of a cluster that "
				"of each host",
			.fallback = "of a cluster 3.5"},
		{"measure", 0, ARG_FLAG, .flag = &f->measure,
			.help = "measure that bandwidth by reading experts of the model; with --pcie-gb-s and "
					"--ram-gb also how fast the processor computes experts of its types"},
		{"pcie-gb-s", 0, ARG_FLOAT, .f32 = &f->pcie_gb_s, .max = 1e6, .above_min = true,
			.value = "G", .help = "bandwidth of the link to a card",
			.fallback = "not a limit; of a cluster from the table of cards"},
		{"cpu-gb-s", 0, ARG_FLOAT, .f32 = &f->cpu_gb_s, .max = 1e6, .above_min = true, .value = "G",
			.help = "weights of experts in --ram-gb that the processor computes beside the link, "
					"as with --cpu-experts auto; needs --pcie-gb-s and --ram-gb",
			.fallback = "measured with --measure, else the card computes all"},
		{"gpu-ms", 0, ARG_FLOAT, .f32 = &f->gpu_ms, .given = &f->gpu_given, .max = 1e6,
			.value = "MS", .help = "computing time of a token, on one card",
			.fallback = "0; of a cluster from what an H200 reaches"},
	};
	_Static_assert(sizeof list == sizeof f->args, "args");
	memcpy(f->args, list, sizeof list);
	for (size_t i = 0; i < ARRAY_LEN(list); i++)
		if (!f->args[i].given)
			f->args[i].given = &f->given[i];
	return (struct arg_group){"Forecast from a trace", f->args, ARRAY_LEN(list)};
}

/* The budgets asked for, or a row of shares; none above everything, none twice. */
static int find_budgets(struct inspect_forecast *f, struct err *e)
{
	static const double shares[] = {0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1};
	const struct loader_plan *plan = &f->forecast.plan;
	const struct arg size = {.kind = ARG_SIZE_GB, .max = 1e6, .above_min = true};
	uint64_t budgets[TRACE_LIST_MAX];
	int n = 0, rc = 0;
	if (f->cache_gb)
		rc = trace_list_parse(f->cache_gb, &size, "--cache-gb", budgets, &n, e);
	for (size_t i = 0; !f->cache_gb && i < ARRAY_LEN(shares); i++) {
		uint64_t v = (uint64_t)(shares[i] * (double)plan->everything_bytes);
		v = MAX(v, plan->floor_bytes);
		if (!n || budgets[n - 1] != v)
			budgets[n++] = v;
	}
	f->points = NEW_ARRAY(struct forecast_point, (size_t)n + 1);
	for (int i = 0; i < n && !rc; i++) {
		if (budgets[i] < plan->floor_bytes)
			rc = loader_refuse_budget(budgets[i], plan->floor_bytes, e);
		f->points[f->n_points++] =
			(struct forecast_point){.cache_bytes = MIN(budgets[i], plan->everything_bytes),
				.ram_bytes = f->ram_bytes,
				.policy = f->policy,
				.lookahead = f->lookahead};
	}
	return rc;
}

/* Measures how fast the processor computes experts, unless --cpu-gb-s says it. Nothing is copied to
 * a card meanwhile: copies would take some of the memory's bandwidth. */
static int measure_processor(struct inspect_forecast *f, const struct gguf *file, struct err *e)
{
	if (f->cpu_gb_s > 0)
		return 0;
	int rc = measure_host(NULL, file, 0, MEASURE_SECONDS, 3, &f->host, e);
	if (!rc && f->host.there)
		f->machine.host_bytes_s = f->host.alone_bytes_s.median;
	return rc;
}

int inspect_forecast_run(struct inspect_forecast *f, const char *model, const struct gguf *file,
	const struct model_config *c, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(f->args) && !f->trace; i++)
		if (*f->args[i].given)
			return err_set(e, ERR_USAGE, "--%s needs --trace FILE", f->args[i].name);
	if (!f->trace)
		return 0;
	if (f->measure && f->disk_gb_s > 0)
		return err_set(e, ERR_USAGE, "--measure and --disk-gb-s exclude each other");
	const char *of_times = f->gpu_given       ? "--gpu-ms"
						   : f->cpu_gb_s > 0  ? "--cpu-gb-s"
						   : f->pcie_gb_s > 0 ? "--pcie-gb-s"
											  : NULL;
	if (of_times && !f->measure && !(f->disk_gb_s > 0))
		return err_set(e, ERR_USAGE, "%s is of use only with --disk-gb-s G or --measure", of_times);
	if (f->cpu_gb_s > 0 && (!(f->pcie_gb_s > 0) || !f->ram_bytes))
		return err_set(e, ERR_USAGE, "--cpu-gb-s is of use only with --pcie-gb-s G and --ram-gb G");
	if (!(f->trace = pocket_trace_or(f->trace, e)))
		return e->code;
	if (f->lookahead == ENGINE_LOOKAHEAD_AUTO)
		f->lookahead = 0;
	const struct policy_ops *policy = policy_find(f->policy);
	if (!policy || policy->needs_future)
		return err_set(
			e, ERR_USAGE, "there is no policy \"%.60s\", expected lru, lfu or sieve", f->policy);
	const struct common_opts common = {.model = model};
	const struct loader_options o = {
		.file = file, .n_layers = (int)(c->n_layers + c->n_mtp), .n_used = (int)c->n_used};
	int rc = forecast_open(&f->forecast, f->trace, file, &o, c->n_mtp, e);
	if (rc)
		return rc;
	f->machine = forecast_machine_of(
		(double)f->disk_gb_s * 1e9, (double)f->pcie_gb_s * 1e9, (double)f->gpu_ms);
	f->machine.card = f->pcie_gb_s > 0;
	f->machine.host_bytes_s = (double)f->cpu_gb_s * 1e9;
	if (f->measure)
		rc = forecast_measure(&common, file, c->n_used, MEASURE_SECONDS, 3, &f->machine, e);
	if (!rc && f->measure && f->machine.card && f->ram_bytes)
		rc = measure_processor(f, file, e);
	if (!rc)
		rc = find_budgets(f, e);
	for (int i = 0; i < f->n_points && !rc; i++)
		rc = forecast_run(&f->forecast, &f->machine, &f->points[i], e);
	return rc;
}

void inspect_forecast_print(const struct inspect_forecast *f)
{
	const struct forecast_machine *m = &f->machine;
	const bool timed = m->one_bytes_s > 0;
	printf("\nforecast from %s: %llu tokens, policy %s, lookahead %d; modelled, not measured\n",
		ERR_PLAIN(f->trace), (unsigned long long)f->forecast.trace.n_tokens, f->policy,
		f->lookahead);
	if (f->measure)
		printf("  drive measured  %.2f GB/s one expert at a time, %.2f %u at a time, %.2f busy%s\n",
			m->one_bytes_s * 1e-9, m->layer_bytes_s * 1e-9, (unsigned)f->forecast.top_k,
			m->full_bytes_s * 1e-9, m->direct ? "" : " (through the page cache)");
	else if (timed)
		printf("  drive           %g GB/s, as given\n", (double)f->disk_gb_s);
	if (f->host.there)
		printf("  processor       measured, the link at rest: %s\n",
			measure_shapes_text(&f->host, (char[MEASURE_SHAPES_TEXT]){0}));
	else if (f->machine.card && f->measure && f->ram_bytes && !(f->cpu_gb_s > 0))
		printf("  processor       can compute none of these experts\n");
	if (m->host_bytes_s > 0)
		printf("  experts in RAM  %.3g GB/s by the processor%s, %.3g over the link\n",
			m->host_bytes_s * 1e-9, f->cpu_gb_s > 0 ? ", as given" : "", m->copy_bytes_s * 1e-9);
	if (timed)
		printf("  computing       %g ms a token%s\n", m->compute_ms,
			f->gpu_given ? ", as given" : ": not given, so speeds are those of the drive alone");
	printf("  %9s %7s %8s", "cache GB", "of all", "hits %");
	if (f->ram_bytes)
		printf(" %8s", "ram %");
	printf(" %12s%s\n", "read MB/tok", timed ? "    tok/s" : "");
	for (int i = 0; i < f->n_points; i++) {
		const struct forecast_point *p = &f->points[i];
		printf("  %9.4g %6.1f%% %8.2f", (double)p->cache_bytes / 1e9,
			100 * (double)p->cache_bytes / (double)f->forecast.plan.everything_bytes,
			100 * p->hits[0]);
		if (f->ram_bytes)
			printf(" %8.2f", 100 * p->hits[1]);
		printf(" %12.3f", (p->missed + p->prefetched) / 1e6);
		if (timed && p->tok_s > 0)
			printf(" %8.2f", p->tok_s);
		printf("\n");
	}
	if (!timed)
		printf("  for tokens per second add --disk-gb-s G (or --measure) and --gpu-ms MS\n");
}

static json_t *shapes_json(const struct measure_host *m)
{
	json_t *list = json_array();
	for (int i = 0; i < m->n_shapes; i++) {
		const struct measure_shape *s = &m->shapes[i];
		json_t *o = json_object();
		json_out_str(o, "gate", dtype_name(s->gate));
		json_out_str(o, "up", dtype_name(s->up));
		json_out_str(o, "down", dtype_name(s->down));
		json_out_uint(o, "layers", (uint64_t)s->layers);
		json_out_real(o, "cpu_gb_s", s->bytes_s * 1e-9);
		json_array_append_new(list, o);
	}
	return list;
}

json_t *inspect_forecast_json(const struct inspect_forecast *f)
{
	const struct forecast_machine *m = &f->machine;
	json_t *o = json_object(), *list = json_array();
	json_out_str(o, "trace", f->trace);
	json_object_set_new(o, "modelled", json_true());
	json_out_uint(o, "tokens", f->forecast.trace.n_tokens);
	json_out_str(o, "policy", f->policy);
	json_out_uint(o, "lookahead", (uint64_t)f->lookahead);
	if (m->one_bytes_s > 0) {
		json_out_str(o, "disk", f->measure ? "measured" : "given");
		json_out_real(o, "disk_gb_s_one", m->one_bytes_s * 1e-9);
		json_out_real(o, "disk_gb_s_layer", m->layer_bytes_s * 1e-9);
		json_out_real(o, "disk_gb_s", m->full_bytes_s * 1e-9);
		json_out_real(o, "gpu_ms", m->compute_ms);
	}
	if (m->host_bytes_s > 0) {
		json_out_str(o, "cpu", f->cpu_gb_s > 0 ? "given" : "measured");
		json_out_real(o, "cpu_gb_s", m->host_bytes_s * 1e-9);
		json_out_real(o, "pcie_gb_s", m->copy_bytes_s * 1e-9);
	}
	if (f->host.there)
		json_object_set_new(o, "cpu_shapes", shapes_json(&f->host));
	for (int i = 0; i < f->n_points; i++) {
		const struct forecast_point *p = &f->points[i];
		json_t *x = json_object();
		json_out_real(x, "cache_gb", (double)p->cache_bytes / 1e9);
		json_out_real(x, "ram_gb", (double)p->ram_bytes / 1e9);
		json_out_real(x, "hit_rate", p->hits[0]);
		json_out_real(x, "hit_rate_ram", p->hits[1]);
		json_out_real(x, "bytes_read_per_token", p->missed + p->prefetched);
		if (p->tok_s > 0)
			json_out_real(x, "tok_s", p->tok_s);
		json_array_append_new(list, x);
	}
	json_object_set_new(o, "budgets", list);
	return o;
}

void inspect_forecast_fini(struct inspect_forecast *f)
{
	forecast_fini(&f->forecast);
	free(f->points);
}
