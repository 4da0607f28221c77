/* SPDX-License-Identifier: MIT */
/* A cluster described by options; its forecast as text and JSON. Every figure that goes in is
 * listed with its source and the option that replaces it. */
#include "tools/trace/inspect_cluster.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/checkpoint/convert_map.h"
#include "tools/options/pocket.h"
#include "tools/output/json_out.h"
#include "tools/plan/machine_plan.h"
#include "tools/trace/trace_simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECIPE_DEFAULT  "iq2"
#define CONTEXT_DEFAULT 4096
#define STREAMS_DEFAULT 64
#define DRIVE_DEFAULT   3.5
#define RESULTS         "tests/bench/RESULTS.md"
#define RANDOM          "random"

/* What a cut between two H200s costs a token, measured. Literals: --help has them too. */
#define HOP_US 36
/* Not measured by this project. */
#define NET_US   20   /* a message of 32 KB with MPI between two hosts, and its wake */
#define NET_GB_S 12.5 /* 100 Gbit/s */

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

struct arg_group inspect_cluster_group(struct inspect_cluster *c)
{
	c->hosts = c->cards = 1;
	c->streams = STREAMS_DEFAULT;
	c->step_rows = CARD_STEP_ROWS;
	c->row_part = (float)CARD_ROW_PART;
	c->hop_us = HOP_US;
	c->net_us = NET_US;
	c->net_gb_s = (float)NET_GB_S;
	const struct arg list[] = {
		{"hosts", 0, ARG_UINT, .u32 = &c->hosts, .given = &c->on, .min = 1, .max = 1024,
			.value = "N", .help = "hosts of the cluster, all alike", .fallback = "1"},
		{"cards", 0, ARG_UINT, .u32 = &c->cards, .given = &c->on, .min = 1, .max = 1024,
			.value = "M", .help = "cards of each host, all alike", .fallback = "1"},
		{"card", 0, ARG_STRING, .string = &c->card, .given = &c->card_given, .value = "NAME",
			.help = "a card of the table: H200, \"RTX 4090\"; or --vram-gb"},
		{"card-gb-s", 0, ARG_FLOAT, .f32 = &c->card_gb_s, .given = &c->card_gb_s_given, .max = 1e6,
			.above_min = true, .value = "G", .help = "bandwidth of its memory",
			.fallback = "from the table"},
		{"recipe", 0, ARG_STRING, .string = &c->recipe, .given = &c->recipe_given, .value = "NAME",
			.words = convert_recipe_words(),
			.help = "without MODEL: GLM-5.2 as glmstream convert makes it",
			.fallback = RECIPE_DEFAULT},
		{"streams", 0, ARG_UINT, .u32 = &c->streams, .given = &c->streams_given, .min = 1,
			.max = 4096, .value = "N",
			.help = "answers at a time, of --ctx tokens each; and one alone", .fallback = "64"},
		{"step-rows", 0, ARG_UINT, .u32 = &c->step_rows, .given = &c->rows_given, .min = 1,
			.max = 4096, .value = "N", .help = "most rows of a step",
			.fallback = TEXT(CARD_STEP_ROWS)},
		{"row-part", 0, ARG_FLOAT, .f32 = &c->row_part, .given = &c->part_given, .max = 1000,
			.value = "P",
			.help = "what each further row of a step adds to the products with resident weights, "
					"in parts of the first row's time on an H200; other cards by their arithmetic",
			.fallback = TEXT(CARD_ROW_PART)},
		{"hop-us", 0, ARG_FLOAT, .f32 = &c->hop_us, .given = &c->hop_given, .max = 1e6,
			.value = "US", .help = "latency of a hand-over to the next card",
			.fallback = TEXT(HOP_US)},
		{"net-us", 0, ARG_FLOAT, .f32 = &c->net_us, .given = &c->net_given, .max = 1e6,
			.value = "US", .help = "... added between hosts", .fallback = TEXT(NET_US)},
		{"net-gb-s", 0, ARG_FLOAT, .f32 = &c->net_gb_s, .given = &c->net_gb_s_given, .max = 1e6,
			.above_min = true, .value = "G", .help = "bandwidth between hosts",
			.fallback = TEXT(NET_GB_S)},
	};
	_Static_assert(sizeof list == sizeof c->args, "args");
	memcpy(c->args, list, sizeof list);
	return (struct arg_group){
		"Forecast of a cluster (with --hosts or --cards)", c->args, ARRAY_LEN(list)};
}

const char *inspect_cluster_option(const struct inspect_cluster *c)
{
	for (size_t i = 0; i < ARRAY_LEN(c->args); i++)
		if (*c->args[i].given && c->args[i].given != &c->on)
			return c->args[i].name;
	return NULL;
}

/* ---- the cluster ---- */

/* What is printed. */
struct result {
	const struct inspect_cluster *options;
	const struct inspect_shared *shared;
	struct model_headers model;
	struct cluster cluster;
	struct cluster_plan plan;
	struct forecast forecast;
	const char *routing; /* path of the trace; NULL: at random */
	struct cluster_speed speeds[2];
	int n_speeds;
	const struct card_step *steps;
	int n_steps;
};

static int describe_card(const struct inspect_cluster *c, const struct inspect_shared *s,
	struct card *out, struct err *e)
{
	const struct card *known = NULL;
	if (c->card && card_find_named(c->card, &known, e))
		return e->code;
	if (!known && !(s->vram_gb > 0)) {
		err_set(e, ERR_USAGE, "the cards of the cluster are not named");
		return err_hint(e, "--card H200, or --vram-gb 24");
	}
	const double bandwidth = c->card_gb_s_given ? (double)c->card_gb_s : 0;
	*out = known ? *known : card_of_size(s->vram_gb, bandwidth);
	if (s->vram_gb > 0)
		out->sold_gb = s->vram_gb;
	if (c->card_gb_s_given)
		out->memory_gb_s = bandwidth;
	if (s->forecast->pcie_gb_s > 0)
		out->link_gb_s = (double)s->forecast->pcie_gb_s;
	return card_check_rates(out, out->sold_gb, e);
}

static int describe_cluster(const struct inspect_cluster *c, const struct inspect_shared *s,
	struct cluster *k, struct err *e)
{
	const struct inspect_forecast *f = s->forecast;
	const struct arg size = {.kind = ARG_SIZE_GB, .max = 1e6, .above_min = true};
	uint64_t cache[TRACE_LIST_MAX] = {ENGINE_CACHE_AUTO};
	int n = 1;
	if (f->measure)
		return err_set(e, ERR_USAGE,
			"--measure reads from this machine's drive; of a cluster's say --disk-gb-s");
	if (s->model && c->recipe_given)
		return err_set(e, ERR_USAGE, "MODEL names a file and --recipe a conversion: one of them");
	if (f->gpu_given && !(f->gpu_ms > 0))
		return err_set(
			e, ERR_USAGE, "--gpu-ms: 0 found, computing on a cluster's cards takes longer");
	const struct policy_ops *policy = policy_find(f->policy);
	if (!policy || policy->needs_future)
		return err_set(
			e, ERR_USAGE, "there is no policy \"%.60s\", expected lru, lfu or sieve", f->policy);
	if (f->cache_gb && trace_list_parse(f->cache_gb, &size, "--cache-gb", cache, &n, e))
		return e->code;
	if (n != 1)
		return err_set(
			e, ERR_USAGE, "--cache-gb: %d sizes found, a cluster's cards have one size each", n);
	*k = (struct cluster){.hosts = c->hosts,
		.cards = c->cards,
		.drive_gb_s = f->disk_gb_s > 0 ? (double)f->disk_gb_s : DRIVE_DEFAULT,
		.hop_us = (double)c->hop_us,
		.net_us = (double)c->net_us,
		.net_gb_s = (double)c->net_gb_s,
		.token_ms = f->gpu_given ? (double)f->gpu_ms : -1,
		.row_part = (double)c->row_part,
		.step_rows = c->step_rows,
		.streams = c->streams,
		.context = s->context ? s->context : CONTEXT_DEFAULT,
		.cache_bytes = cache[0],
		.ram_bytes = f->ram_bytes,
		.policy = f->policy,
		.lookahead = f->lookahead};
	return describe_card(c, s, &k->card, e);
}

/* Without --trace: the shipped trace if it is of such a model, else experts at random, which say
 * nothing of misses. */
static int choose_routing(struct result *r, struct err *e)
{
	const char *wanted = r->shared->forecast->trace;
	struct err other = {0};
	if (wanted && !strcmp(wanted, RANDOM))
		goto random;
	r->routing = pocket_trace_or(wanted, e);
	if (!r->routing)
		return e->code;
	int rc = machine_plan_forecast(&r->model, r->routing, &r->forecast, wanted ? e : &other);
	if (!rc || wanted)
		return rc;
	forecast_fini(&r->forecast);
	r->forecast = (struct forecast){0};
	if (other.code != ERR_INPUT) {
		*e = other;
		return e->code;
	}
random:
	r->routing = NULL;
	if (r->plan.everything)
		return 0;
	err_set(e, ERR_INPUT,
		"the cards do not hold all experts: what they miss depends on the routing of a trace");
	return err_hint(e, "--trace FILE: a run of this model with --trace FILE writes one");
}

static int make_forecast(struct result *r, struct err *e)
{
	const struct forecast *f = NULL;
	int rc = r->shared->model ? model_headers_open(&r->model, r->shared->model, e)
							  : model_headers_make(&r->model, r->options->recipe, e);
	if (rc || (rc = cluster_plan_memory(&r->model, &r->cluster, &r->plan, e)) ||
		(rc = choose_routing(r, e)))
		return rc;
	if (r->routing)
		f = &r->forecast;
	const uint32_t streams[] = {1, r->cluster.streams};
	for (int i = 0; i < (streams[1] > 1 ? 2 : 1) && !rc; i++)
		rc = cluster_plan_speed(
			&r->model, &r->cluster, f, streams[i], &r->plan, &r->speeds[r->n_speeds++], e);
	return rc ? rc : card_check_steps(&r->steps, &r->n_steps, e);
}

/* ---- assumptions ---- */

#define ASSUMPTIONS_MAX 48

struct assumption {
	char name[64], source[200];
	double value;
	const char *unit, *option; /* option: the one that replaces it; NULL: none */
	const char *row;           /* of RESULTS.md; NULL: not from there */
};

#define MEASURED "measured on one H200: " RESULTS ", "
#define COPY_ROW "Per cent of a copy on the card in the same run"

struct assumptions {
	struct assumption of[ASSUMPTIONS_MAX];
	int n;
};

/* given: by the option. */
static struct assumption *assume(struct assumptions *a, const char *name, double value,
	const char *unit, const char *source, const char *option, bool given)
{
	if (a->n == ASSUMPTIONS_MAX)
		bug("more than %d assumptions", ASSUMPTIONS_MAX);
	struct assumption *x = &a->of[a->n++];
	*x = (struct assumption){.value = value, .unit = unit, .option = option};
	snprintf(x->name, sizeof x->name, "%s", name);
	snprintf(x->source, sizeof x->source, "%s", given ? "as given" : source);
	return x;
}

/* What ops of this model's types reach; a name and type once. */
static void assume_op_rates(struct assumptions *a, const struct result *r)
{
	const int first = a->n;
	for (size_t i = 0; i < r->model.file->n_tensors && a->n < ASSUMPTIONS_MAX - 16; i++) {
		const struct gguf_tensor *t = &r->model.file->tensors[i];
		const struct card_op_rate *rate = card_op_rate_of(&r->model.config, t);
		char name[64], source[200];
		if (!rate)
			continue;
		snprintf(name, sizeof name, "%s, %s", rate->name, dtype_name(t->type));
		int k = first;
		while (k < a->n && strcmp(a->of[k].name, name))
			k++;
		if (k < a->n)
			continue;
		if (rate->row)
			snprintf(source, sizeof source, MEASURED "%s", rate->row);
		else
			snprintf(source, sizeof source, "%s", rate->why);
		if (rate->type != (enum dtype)t->type)
			snprintf(source + strlen(source), sizeof source - strlen(source), "; assumed: as %s",
				dtype_name((uint32_t)rate->type));
		assume(a, name, rate->percent, "% of a copy", source, "--gpu-ms", false)->row = rate->row;
	}
}

static void list_assumptions(const struct result *r, struct assumptions *a)
{
	const struct inspect_cluster *c = r->options;
	const struct inspect_forecast *f = r->shared->forecast;
	const struct cluster *k = &r->cluster;
	char sheet[120];
	snprintf(sheet, sizeof sheet, "data sheet: %s", k->card.sheet ? k->card.sheet : "none");
	a->n = 0;
	assume(
		a, "memory of a card", k->card.sold_gb, "GiB", sheet, "--vram-gb", r->shared->vram_gb > 0);
	assume(a, "left to the program", 97, "% of it", "assumed: driver and context take the rest",
		NULL, false);
	assume(a, "bandwidth of its memory", k->card.memory_gb_s, "GB/s", sheet, "--card-gb-s",
		c->card_gb_s_given);
	assume(a, "its arithmetic", k->card.matrix_tflops, "TFLOPS",
		k->card.sheet ? sheet : "assumed: an H200's for its bandwidth", "--row-part", false);
	assume(a, "link to a card", k->card.link_gb_s, "GB/s",
		"measured on one H200 (PCIe 5.0 x16: 55.4 GB/s), others in proportion", "--pcie-gb-s",
		f->pcie_gb_s > 0);
	assume(a, "drive of a host", k->drive_gb_s, "GB/s", "assumed: one NVMe drive", "--disk-gb-s",
		f->disk_gb_s > 0);
	if (f->gpu_given) {
		assume(a, "computing of a token, one card", k->token_ms, "ms", "", "--gpu-ms", true);
	} else {
		assume(a, "a copy on an H200 of 4800 GB/s", CARD_COPY_GB_S, "GB/s; others alike",
			MEASURED COPY_ROW, "--gpu-ms", false)
			->row = COPY_ROW;
		assume_op_rates(a, r);
		assume(a, "the rest of a token", CARD_OTHER_MS, "ms",
			"fitted to the runs below; " RESULTS " has 0.29 with the head", "--gpu-ms", false);
	}
	if (!r->plan.everything)
		assume(a, "of the shorter transfers exposed", FORECAST_EXPOSED, "of their time",
			"fitted to three runs on an H200; all of it without lookahead", NULL, false);
	assume(a, "positions that attention reads", r->model.config.index_top_k, "",
		"the most that it selects; choosing them in a long context is left out (after 32,768 "
		"tokens a token took 9 % longer)",
		NULL, false);
	if (k->streams > 1) {
		assume(a, "a further row of a step adds", (double)c->row_part,
			"of its resident weights' time",
			"fitted to the runs below, in proportion to the arithmetic of an H200", "--row-part",
			c->part_given);
		assume(a, "... and to the rest of a token", CARD_OTHER_ROW_MS, "ms",
			MEASURED "a step of 8 has 0.52 ms of rest", NULL, false);
		assume(a, "rows of a step, at most", c->step_rows, "",
			"what a further row adds is fitted to steps of up to so many", "--step-rows",
			c->rows_given);
		assume(a, "gaps between micro-batches", 0, "ms",
			"assumed: they follow each other without a pause; on two H200s both stages computed "
			"for 95 % of the time",
			NULL, false);
	}
	assume(a, "hand-over, latency", k->hop_us, "us",
		"measured on two H200s: " RESULTS ", what a cut costs a token", "--hop-us", c->hop_given);
	assume(a, "hand-over, a row", r->plan.row_bytes / 1e3, "kB",
		"arithmetic: of the residual stream, twice over the link; where the next layer shares a "
		"selection, that too",
		NULL, false);
	if (k->hosts > 1) {
		assume(a, "between hosts, latency", k->net_us, "us",
			"assumed: MPI over a fast network; once more for the command of a step", "--net-us",
			c->net_given);
		assume(a, "between hosts", k->net_gb_s, "GB/s", "assumed: 100 Gbit/s", "--net-gb-s",
			c->net_gb_s_given);
	}
}

/* ---- what others say ---- */

/* Of GLM-5.x with 744 billion parameters, as published; other weights, prompts and drafts. */
static const struct published {
	const char *system, *cards, *weights;
	uint32_t streams;
	double least, most; /* tok/s of all streams */
} published[] = {
	{"ds4", "2 H200", "2 bit, resident", 1, 16, 16},
	{"TensorSharp", "3 RTX PRO 6000", "IQ2_XXS", 1, 43.9, 43.9},
	{"pegainfer", "4 GB300", "FP8", 1, 107, 107},
	{"SGLang", "8 H200", "FP8, drafts", 16, 723, 723},
	{"a cluster", "32 RTX 4090", "FP8", 1, 24, 24},
	{"a cluster", "32 RTX 4090", "FP8", 64, 656, 725},
};

static void print_published(void)
{
	printf("\npublished by others, not measured here; weights, prompts and drafts differ\n"
		   "  %-12s %-16s %-16s %8s %10s\n",
		"system", "cards", "weights", "streams", "tok/s");
	for (size_t i = 0; i < ARRAY_LEN(published); i++) {
		const struct published *p = &published[i];
		char rate[24];
		snprintf(rate, sizeof rate, p->most > p->least ? "%g..%g" : "%g", p->least, p->most);
		printf("  %-12s %-16s %-16s %8u %10s\n", p->system, p->cards, p->weights, p->streams, rate);
	}
}

static json_t *published_json(void)
{
	json_t *list = json_array();
	for (size_t i = 0; i < ARRAY_LEN(published); i++) {
		const struct published *p = &published[i];
		json_t *o = json_object();
		json_out_str(o, "system", p->system);
		json_out_str(o, "cards", p->cards);
		json_out_str(o, "weights", p->weights);
		json_out_uint(o, "streams", p->streams);
		json_out_real(o, "tok_s_least", p->least);
		json_out_real(o, "tok_s_most", p->most);
		json_array_append_new(list, o);
	}
	return list;
}

/* ---- output ---- */

static void print_rate(const char *before, double tok_s)
{
	printf("%s%.*f tok/s", before, tok_s >= 100 ? 0 : tok_s >= 10 ? 1 : 2, tok_s);
}

static void print_speed(const struct cluster_speed *s, uint32_t n_stages)
{
	if (s->streams == 1) {
		print_rate("\n  one stream      ", s->tok_s);
		printf(", %.4g ms a token", s->round_ms);
	} else {
		printf("\n  %-4u streams", s->streams);
		print_rate("    ", s->tok_s);
		print_rate(" in all, ", s->tok_s / s->streams);
		printf(
			" each: %u micro-batch%s of %u row%s, a round of all takes %.4g ms\n"
			"                  slowest is stage %u, %.4g ms a micro-batch; stages work %.0f %% of "
			"the time\n                  a micro-batch takes %.4g ms",
			s->micro_batches, s->micro_batches == 1 ? "" : "es", s->rows, s->rows == 1 ? "" : "s",
			s->round_ms, s->slowest, s->slowest_ms, 100 * s->busy,
			s->compute_ms + s->waits_ms + s->hops_ms);
	}
	printf(": computing %.4g, waits for experts %.4g", s->compute_ms, s->waits_ms);
	if (n_stages > 1)
		printf(", hand-overs %.3g", s->hops_ms);
	printf("; %.3g distinct experts of a layer\n", s->distinct);
	if (s->streams > 1 && n_stages > 1) {
		print_rate("                  one micro-batch at a time: ", s->serial_tok_s);
		printf("\n");
	}
}

static void print_stages(const struct result *r)
{
	const struct cluster_plan *p = &r->plan;
	printf("  %5s %4s %10s %10s %10s %7s %8s %14s\n", "stage", "host", "layers", "weights GB",
		"experts GB", "held", "caches", "compute ms/tok");
	for (uint32_t i = 0; i < p->n; i++) {
		const struct cluster_stage *s = &p->stages[i];
		char layers[24];
		snprintf(layers, sizeof layers, "%u to %u", s->first_layer, s->end_layer - 1);
		printf("  %5u %4u %10s %10.2f %10.2f %6.1f%% %8.2f %14.3f\n", i, s->host, layers,
			(double)s->plan.resident * 1e-9, (double)s->experts_bytes * 1e-9, 100 * s->experts_part,
			(double)s->plan.kv * 1e-9,
			s->cost.fixed_ms + r->model.config.n_used * s->cost.expert_ms);
	}
}

static void print_result(const struct result *r)
{
	const struct inspect_cluster *c = r->options;
	const struct cluster *k = &r->cluster;
	struct assumptions a;
	list_assumptions(r, &a);
	printf("forecast, not measured: %s%s on %u host%s of %u card%s: %s of %g GiB\n",
		r->shared->model ? "" : "GLM-5.2, recipe ",
		r->shared->model ? ERR_PLAIN(r->shared->model) : c->recipe, k->hosts,
		k->hosts == 1 ? "" : "s", k->cards, k->cards == 1 ? "" : "s",
		k->card.name ? k->card.name : "a card", k->card.sold_gb);
	printf("caches for %u stream%s of %u tokens, no drafts; routing: %s%s\n\n", k->streams,
		k->streams == 1 ? "" : "s", k->context,
		r->routing ? ERR_PLAIN(r->routing) : "each token chooses its experts at random",
		r->routing && k->streams > 1 ? ", of which each stream is a part" : "");
	print_stages(r);
	for (int i = 0; i < r->n_speeds; i++)
		print_speed(&r->speeds[i], r->plan.n);
	printf("\n  loading         %.2g s from the drives, experts included\n\nassumptions\n",
		r->plan.load_seconds);
	for (int i = 0; i < a.n; i++) {
		const struct assumption *x = &a.of[i];
		printf("  %-32s %8.5g %-18s %s%s%s%s\n", x->name, x->value, x->unit, x->source,
			x->option ? " [" : "", x->option ? x->option : "", x->option ? "]" : "");
	}
	printf("\nthe model beside steps that were measured on one H200 (" RESULTS
		   "), random routing, all experts in its memory\n  %-8s %7s %5s %12s %10s %8s\n",
		"recipe", "layers", "rows", "measured ms", "model ms", "off");
	for (int i = 0; i < r->n_steps; i++) {
		const struct card_step *s = &r->steps[i];
		printf("  %-8s %7u %5u %12.2f %10.2f %+7.1f%%\n", s->recipe, s->layers, s->rows,
			s->measured_ms, s->model_ms, 100 * (s->model_ms / s->measured_ms - 1));
	}
	print_published();
}

static json_t *speed_json(const struct cluster_speed *s)
{
	json_t *o = json_object();
	json_out_uint(o, "streams", s->streams);
	json_out_real(o, "tok_s", s->tok_s);
	json_out_real(o, "round_ms", s->round_ms);
	json_out_real(o, "tok_s_one_micro_batch", s->serial_tok_s);
	json_out_uint(o, "micro_batches", s->micro_batches);
	json_out_uint(o, "rows", s->rows);
	json_out_real(o, "distinct_experts", s->distinct);
	json_out_real(o, "compute_ms", s->compute_ms);
	json_out_real(o, "waits_ms", s->waits_ms);
	json_out_real(o, "hand_overs_ms", s->hops_ms);
	json_out_uint(o, "slowest_stage", s->slowest);
	json_out_real(o, "slowest_ms", s->slowest_ms);
	json_out_real(o, "busy", s->busy);
	return o;
}

static json_t *stages_json(const struct cluster_plan *p, const struct model_config *c)
{
	json_t *list = json_array();
	for (uint32_t i = 0; i < p->n; i++) {
		const struct cluster_stage *s = &p->stages[i];
		json_t *o = json_object();
		json_out_uint(o, "host", s->host);
		json_out_uint(o, "first_layer", s->first_layer);
		json_out_uint(o, "end_layer", s->end_layer);
		json_out_uint(o, "resident_bytes", s->plan.resident);
		json_out_uint(o, "experts_bytes", s->experts_bytes);
		json_out_uint(o, "cache_bytes", s->plan.tiers.tier_bytes[0]);
		json_out_uint(o, "ram_bytes", s->plan.tiers.tier_bytes[1]);
		json_out_uint(o, "kv_bytes", s->plan.kv);
		json_out_real(o, "experts_share", s->experts_part);
		json_out_real(o, "compute_ms", s->cost.fixed_ms + c->n_used * s->cost.expert_ms);
		json_array_append_new(list, o);
	}
	return list;
}

static void print_result_json(const struct result *r)
{
	struct assumptions a;
	json_t *o = json_object(), *speeds = json_array(), *list = json_array(), *steps = json_array();
	list_assumptions(r, &a);
	json_object_set_new(o, "modelled", json_true());
	json_out_str(o, "model", r->shared->model ? r->shared->model : "GLM-5.2");
	if (!r->shared->model)
		json_out_str(o, "recipe", r->options->recipe);
	json_out_uint(o, "hosts", r->cluster.hosts);
	json_out_uint(o, "cards", r->cluster.cards);
	json_out_str(o, "card", r->cluster.card.name ? r->cluster.card.name : "");
	json_out_uint(o, "context", r->cluster.context);
	json_out_str(o, "routing", r->routing ? r->routing : RANDOM);
	json_object_set_new(o, "everything_fits", json_boolean(r->plan.everything));
	json_object_set_new(o, "stages", stages_json(&r->plan, &r->model.config));
	for (int i = 0; i < r->n_speeds; i++)
		json_array_append_new(speeds, speed_json(&r->speeds[i]));
	json_object_set_new(o, "speeds", speeds);
	json_out_real(o, "load_seconds", r->plan.load_seconds);
	for (int i = 0; i < a.n; i++) {
		json_t *x = json_object();
		json_out_str(x, "name", a.of[i].name);
		json_out_real(x, "value", a.of[i].value);
		json_out_str(x, "unit", a.of[i].unit);
		json_out_str(x, "source", a.of[i].source);
		if (a.of[i].row)
			json_out_str(x, "results_row", a.of[i].row);
		if (a.of[i].option)
			json_out_str(x, "option", a.of[i].option);
		json_array_append_new(list, x);
	}
	json_object_set_new(o, "assumptions", list);
	for (int i = 0; i < r->n_steps; i++) {
		json_t *x = json_object();
		json_out_str(x, "recipe", r->steps[i].recipe);
		json_out_uint(x, "layers", r->steps[i].layers);
		json_out_uint(x, "rows", r->steps[i].rows);
		json_out_real(x, "measured_ms", r->steps[i].measured_ms);
		json_out_real(x, "model_ms", r->steps[i].model_ms);
		json_array_append_new(steps, x);
	}
	json_object_set_new(o, "measured_steps", steps);
	json_object_set_new(o, "published", published_json());
	json_out_tree(stdout, o);
}

int inspect_cluster_run(
	const struct inspect_cluster *c, const struct inspect_shared *shared, struct err *e)
{
	struct result *r = NEW(struct result);
	struct inspect_cluster options = *c;
	if (!options.recipe)
		options.recipe = RECIPE_DEFAULT;
	*r = (struct result){.options = &options, .shared = shared, .model = {.fd = -1}};
	int rc = describe_cluster(&options, shared, &r->cluster, e);
	if (!rc && !(rc = make_forecast(r, e))) {
		if (shared->json)
			print_result_json(r);
		else
			print_result(r);
	}
	forecast_fini(&r->forecast);
	model_headers_close(&r->model);
	free(r);
	return rc;
}
