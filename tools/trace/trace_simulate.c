/* SPDX-License-Identifier: MIT */
/* Replays a trace for lists of budgets and policies: a table, a JSON object, a plot. */
#include "tools/trace/trace_simulate.h"

#include "cache/trace/sim.h"
#include "src/base/args.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "tools/forecast/forecast.h"
#include "tools/options/pocket.h"
#include "tools/output/json_out.h"
#include "tools/output/report.h"
#include "tools/tune/svg_plot.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LIST     TRACE_LIST_MAX
#define MAX_POLICIES 8

enum { ORDER_AUTO = -1 };

struct simulate_options {
	const char *path, *cache_gb, *ram_gb, *experts, *policies, *svg;
	uint64_t expert_bytes, skip, window, prefetch_cold;
	int order, lookahead;
	float half_life, disk_gb_s, pcie_gb_s, gpu_ms;
	bool modelled, half_life_given, per_layer, json, force;
};

struct simulation {
	struct simulate_options o;
	struct trace t;
	struct sim_setup setup;                     /* what all runs share */
	uint64_t budgets[MAX_LIST], rams[MAX_LIST]; /* slots or bytes */
	int n_budgets, n_rams, n_policies;
	const struct policy_ops *policies[MAX_POLICIES];
	bool in_slots;
	struct sim_result *results; /* [n_budgets][n_rams][n_policies] */
};

int trace_load(const char *path, struct trace *t, struct err *e)
{
	int rc = trace_open(path, t, e);
	if (!rc && t->ends_early)
		log_warn("%s: %s", path, t->note);
	return rc;
}

int trace_list_parse(const char *text, const struct arg *one, const char *label, uint64_t *out,
	int *n, struct err *e)
{
	char *copy = mem_strdup(text), *at = copy;
	int rc = 0;
	*n = 0;
	for (bool more = true; more && !rc; (*n)++) {
		char *comma = strchr(at, ',');
		more = comma != NULL;
		if (comma)
			*comma = 0;
		if (*n == MAX_LIST)
			rc = err_set(e, ERR_USAGE, "%s: more than %d values", label, MAX_LIST);
		struct arg arg = *one;
		uint64_t v = 0;
		arg.u64 = &v;
		if (!rc)
			rc = args_set(&arg, label, at, e);
		if (!rc)
			out[*n] = v;
		at = comma ? comma + 1 : at;
	}
	free(copy);
	return rc;
}

static int add_policy(struct simulation *j, const struct policy_ops *p, struct err *e)
{
	for (int i = 0; i < j->n_policies; i++)
		if (j->policies[i] == p)
			return 0;
	if (j->n_policies == MAX_POLICIES)
		return err_set(e, ERR_USAGE, "--policy: more than %d policies", MAX_POLICIES);
	j->policies[j->n_policies++] = p;
	return 0;
}

/* The policies, and whether options of some have a use. */
static int parse_policies(struct simulation *j, struct err *e)
{
	char *copy = mem_strdup(j->o.policies), *save = NULL;
	int rc = 0;
	for (char *name = strtok_r(copy, ",", &save); name && !rc; name = strtok_r(NULL, ",", &save)) {
		if (!strcmp(name, "all")) {
			for (int i = 0; !rc && policy_list(i); i++)
				rc = add_policy(j, policy_list(i), e);
			if (!rc)
				rc = add_policy(j, &policy_belady, e);
			continue;
		}
		const struct policy_ops *p = policy_find(name);
		if (p) {
			rc = add_policy(j, p, e);
		} else {
			rc = err_set(e, ERR_USAGE, "--policy: unknown policy \"%.60s\"", name);
			err_hint(e, "all, or a list of lru, lfu, sieve, belady and belady-bypass");
		}
	}
	free(copy);
	if (!rc && !j->n_policies)
		rc = err_set(e, ERR_USAGE, "--policy: names no policy");
	bool lfu = false;
	for (int i = 0; i < j->n_policies; i++)
		lfu |= !strcmp(j->policies[i]->name, "lfu");
	if (!rc && j->o.half_life_given && !lfu)
		rc =
			err_set(e, ERR_USAGE, "--half-life is of the policy lfu, which --policy does not name");
	if (!rc && j->o.prefetch_cold && !j->o.lookahead)
		rc = err_set(e, ERR_USAGE, "--prefetch-cold limits prefetches: give --lookahead as well");
	return rc;
}

/* Experts of all layers, and the bytes of them by the sizes in use. */
static void totals(const struct simulation *j, uint64_t *n, uint64_t *bytes)
{
	const struct trace_model *m = &j->t.model;
	*n = *bytes = 0;
	for (uint32_t l = 0; l < m->n_layers; l++) {
		if (!m->expert_bytes[l])
			continue;
		*n += m->n_experts;
		*bytes +=
			(j->o.expert_bytes ? j->o.expert_bytes : m->expert_bytes[l]) * (uint64_t)m->n_experts;
	}
}

/* The budgets of the command line, or a default row of shares of all experts; none above
 * everything. */
static int find_budgets(struct simulation *j, struct err *e)
{
	static const double shares[] = {
		0.04, 0.06, 0.08, 0.10, 0.15, 0.20, 0.27, 0.35, 0.50, 0.64, 0.75, 0.90};
	const struct simulate_options *o = &j->o;
	const struct arg count = {.kind = ARG_UINT64, .min = 1, .max = 1e9};
	const struct arg size = {.kind = ARG_SIZE_GB, .min = 0, .max = 1e6, .above_min = true};
	const struct arg size0 = {.kind = ARG_SIZE_GB, .min = 0, .max = 1e6};
	uint64_t all, all_bytes;
	int rc = 0;
	totals(j, &all, &all_bytes);
	if (o->per_layer)
		all = j->t.model.n_experts;
	if (o->experts && o->cache_gb)
		return err_set(
			e, ERR_USAGE, "--experts and --cache-gb both give the capacity: one of them is enough");
	if ((o->cache_gb || o->ram_gb) && !j->t.bytes_known && !o->expert_bytes) {
		err_set(e, ERR_USAGE, "%.400s: the trace has no sizes of experts", o->path);
		return err_hint(e, "add --expert-bytes N, or give the capacity as --experts N");
	}
	j->in_slots = !o->cache_gb;
	if (o->ram_gb && j->in_slots)
		return err_set(
			e, ERR_USAGE, "--ram-gb needs the capacity as --cache-gb, not as a number of experts");
	if (o->experts)
		rc = trace_list_parse(o->experts, &count, "--experts", j->budgets, &j->n_budgets, e);
	else if (o->cache_gb)
		rc = trace_list_parse(o->cache_gb, &size, "--cache-gb", j->budgets, &j->n_budgets, e);
	for (size_t i = 0; j->in_slots && !o->experts && i < ARRAY_LEN(shares); i++)
		j->budgets[j->n_budgets++] = MAX(1, (uint64_t)(shares[i] * (double)all + 0.5));
	j->n_rams = 1;
	if (!rc && o->ram_gb)
		rc = trace_list_parse(o->ram_gb, &size0, "--ram-gb", j->rams, &j->n_rams, e);
	for (int i = 0; !rc && i < j->n_budgets; i++) {
		uint64_t most = j->in_slots ? all : all_bytes;
		if (j->budgets[i] <= most)
			continue;
		if (j->in_slots)
			log_info("%llu experts: there are only %llu", (unsigned long long)j->budgets[i],
				(unsigned long long)most);
		else
			log_info("%g GB: all experts need only %g GB", (double)j->budgets[i] / 1e9,
				(double)most / 1e9);
		j->budgets[i] = most;
	}
	return rc;
}

static struct sim_result *result(const struct simulation *j, int budget, int ram, int policy)
{
	return &j->results[(budget * j->n_rams + ram) * j->n_policies + policy];
}

static int run_all(struct simulation *j, struct err *e)
{
	j->results = NEW_ARRAY(struct sim_result, (size_t)(j->n_budgets * j->n_rams * j->n_policies));
	for (int b = 0; b < j->n_budgets; b++)
		for (int r = 0; r < j->n_rams; r++)
			for (int p = 0; p < j->n_policies; p++) {
				struct sim_setup u = j->setup;
				u.policy = j->policies[p];
				if (j->in_slots) {
					u.n_slots = j->budgets[b];
				} else {
					u.tier_bytes[0] = j->budgets[b];
					u.tier_bytes[1] = j->rams[r];
				}
				struct sim_result *out = result(j, b, r, p);
				int rc = sim_run(&j->t, &u, out, e);
				if (rc)
					return rc;
				if (!out->stats.accesses)
					return err_set(e, ERR_INPUT, "%.400s: holds no decode step to count%s",
						j->o.path, j->o.skip ? " behind those of --skip" : "");
			}
	return 0;
}

/* Bytes that an unknown expert size would make meaningless. */
static bool bytes_known(const struct simulation *j)
{
	return !j->in_slots || j->o.expert_bytes || j->t.bytes_known;
}

/* With slots of size 1 the counts of bytes are counts of experts. Mean size of an expert, 1 when
 * bytes are real. */
static double byte_scale(const struct simulation *j)
{
	uint64_t n, bytes;
	totals(j, &n, &bytes);
	return j->in_slots ? trace_ratio(bytes, n) : 1;
}

static struct forecast_bounds speed(const struct simulation *j, const struct sim_result *r)
{
	const double rate = 1e9 / byte_scale(j);
	const struct forecast_machine m = forecast_machine_of(
		(double)j->o.disk_gb_s * rate, (double)j->o.pcie_gb_s * rate, (double)j->o.gpu_ms);
	return forecast_bounds_of(r, &m);
}

/* "5 GB/s", or that there is none */
static const char *rate_text(float gb_s, char *out, size_t n)
{
	if (gb_s > 0)
		snprintf(out, n, "%g GB/s", (double)gb_s);
	else
		snprintf(out, n, "no limit");
	return out;
}

/* ---- output ---- */

static json_t *policy_json(
	const struct simulation *j, const struct policy_ops *p, const struct sim_result *r)
{
	const struct cache_stats *s = &r->stats;
	double scale = byte_scale(j);
	json_t *o = json_object();
	json_out_str(o, "policy", p->name);
	json_out_uint(o, "hits", s->hits[0]);
	json_out_real(o, "hit_rate", trace_ratio(s->hits[0], s->accesses));
	json_out_uint(o, "hits_ram", s->hits[1]);
	json_out_uint(o, "misses", s->misses);
	json_out_uint(o, "bypassed", r->n_bypassed);
	if (bytes_known(j)) {
		json_out_real(o, "bytes_read", (double)(s->bytes_missed + s->prefetch_bytes) * scale);
		json_out_real(o, "bytes_promoted", (double)s->bytes_promoted * scale);
		json_out_real(o, "bytes_demoted", (double)s->bytes_demoted * scale);
	}
	json_out_uint(o, "prefetch_inserted", s->prefetch_inserted);
	json_out_uint(o, "prefetch_useful", s->prefetch_used);
	json_out_uint(o, "prefetch_wasted", s->prefetch_wasted);
	if (j->o.modelled) {
		struct forecast_bounds v = speed(j, r);
		json_out_real(o, "disk_ms_per_token", v.drive_ms);
		json_out_real(o, "pcie_ms_per_token", v.link_ms);
		json_out_real(o, "tok_s_overlap", v.overlap_tok_s);
		json_out_real(o, "tok_s_serial", v.serial_tok_s);
	}
	return o;
}

static json_t *budget_json(const struct simulation *j, int b, int r)
{
	const struct sim_result *first = result(j, b, r, 0);
	json_t *o = json_object(), *list = json_array();
	json_out_uint(o, "slots", first->n_slots);
	json_out_uint(o, "accesses", first->stats.accesses);
	for (int p = 0; p < j->n_policies; p++)
		json_array_append_new(list, policy_json(j, j->policies[p], result(j, b, r, p)));
	json_object_set_new(o, "results", list);
	if (!j->in_slots) {
		json_out_real(o, "cache_gb", (double)j->budgets[b] / 1e9);
		json_out_real(o, "ram_gb", (double)j->rams[r] / 1e9);
		json_out_uint(o, "ram_slots", first->n_ram_slots);
	}
	json_out_uint(o, "tokens", first->n_tokens);
	return o;
}

/* One budget: its object. Several: the object of the first, and all of them as "budgets". */
static void print_json(const struct simulation *j)
{
	json_t *top = budget_json(j, 0, 0);
	json_out_str(top, "order", j->setup.order == SIM_BY_RANK ? "rank" : "layer");
	if (j->n_budgets * j->n_rams > 1) {
		json_t *list = json_array();
		for (int b = 0; b < j->n_budgets; b++)
			for (int r = 0; r < j->n_rams; r++)
				json_array_append_new(list, budget_json(j, b, r));
		json_object_set_new(top, "budgets", list);
	}
	json_out_line(stdout, top);
}

static void print_table(const struct simulation *j)
{
	const struct simulate_options *o = &j->o;
	uint64_t all, all_bytes;
	bool ram = o->ram_gb != NULL, ahead = o->lookahead > 0;
	totals(j, &all, &all_bytes);
	if (o->per_layer)
		all = j->t.model.n_experts;
	printf("%llu tokens, %llu accesses, %s; %s\n", (unsigned long long)j->results->n_tokens,
		(unsigned long long)j->results->stats.accesses,
		o->per_layer ? "one pool per layer" : "one pool",
		j->setup.order == SIM_BY_RANK ? "expert after expert" : "layer by layer, as a run does it");
	if (o->modelled)
		printf("bounds: drive %s, PCIe %s, computing %g ms a token; overlap = the longest of the "
			   "three, serial = their sum\n",
			rate_text(o->disk_gb_s, (char[32]){0}, 32), rate_text(o->pcie_gb_s, (char[32]){0}, 32),
			(double)o->gpu_ms);
	printf("\n%8s %6s", "slots", "share");
	if (!j->in_slots)
		printf(" %9s", "cache GB");
	if (ram)
		printf(" %8s", "ram GB");
	printf("  %-13s %8s", "policy", "hits %");
	if (ram)
		printf(" %8s", "ram %");
	printf(" %12s", bytes_known(j) ? "read MB/tok" : "missed/tok");
	if (ahead)
		printf(" %9s %9s", "useful %", "wasted %");
	if (o->modelled)
		printf(" %13s %12s", "overlap tok/s", "serial tok/s");
	printf("\n");
	for (int b = 0; b < j->n_budgets; b++)
		for (int r = 0; r < j->n_rams; r++)
			for (int p = 0; p < j->n_policies; p++) {
				const struct sim_result *x = result(j, b, r, p);
				const struct cache_stats *s = &x->stats;
				printf("%8llu %5.1f%%", (unsigned long long)x->n_slots,
					100 * trace_ratio(x->n_slots, all));
				if (!j->in_slots)
					printf(" %9.3g", (double)j->budgets[b] / 1e9);
				if (ram)
					printf(" %8.3g", (double)j->rams[r] / 1e9);
				printf("  %-13s %8.2f", j->policies[p]->name,
					100 * trace_ratio(s->hits[0], s->accesses));
				if (ram)
					printf(" %8.2f", 100 * trace_ratio(s->hits[1], s->accesses));
				if (bytes_known(j))
					printf(
						" %12.1f", trace_ratio(s->bytes_missed + s->prefetch_bytes, x->n_tokens) *
									   byte_scale(j) / 1e6);
				else
					printf(" %12.1f", trace_ratio(s->misses + s->prefetch_inserted, x->n_tokens));
				if (ahead)
					printf(" %9.1f %9.1f",
						100 * trace_ratio(s->prefetch_used, s->prefetch_inserted),
						100 * trace_ratio(s->prefetch_wasted, s->prefetch_inserted));
				if (o->modelled) {
					struct forecast_bounds v = speed(j, x);
					printf(" %13.2f %12.2f", v.overlap_tok_s, v.serial_tok_s);
				}
				printf("\n");
			}
}

/* Budgets are drawn in rising order, with the first RAM size. */
static int draw_hit_rates(const struct simulation *j, struct err *e)
{
	int order[MAX_LIST];
	for (int i = 0; i < j->n_budgets; i++) {
		int k = i;
		for (; k > 0 && j->budgets[order[k - 1]] > j->budgets[i]; k--)
			order[k] = order[k - 1];
		order[k] = i;
	}
	double *xy = NEW_ARRAY(double, (size_t)(j->n_policies + 1) * MAX_LIST);
	char subtitle[400];
	uint64_t all, all_bytes;
	totals(j, &all, &all_bytes);
	if (j->o.per_layer)
		all = j->t.model.n_experts;
	const char *file = strrchr(j->o.path, '/');
	snprintf(subtitle, sizeof subtitle, "%.100s: %llu tokens%s%s%s", file ? file + 1 : j->o.path,
		(unsigned long long)j->results->n_tokens, j->t.synthetic ? ", synthetic" : "",
		j->o.per_layer ? ", one pool per layer" : ", one pool",
		j->o.lookahead ? ", with lookahead" : "");
	struct svg_plot plot = {.title = "Hit rate of the expert cache",
		.subtitle = subtitle,
		.x_label = j->in_slots ? "experts that fit, % of all" : "cache, GB",
		.y_label = "hits, % of accesses",
		.x_from_zero = true,
		.y_from_zero = true,
		.n_series = j->n_policies};
	for (int i = 0; i < j->n_budgets; i++)
		xy[i] = j->in_slots ? 100 * trace_ratio(j->budgets[order[i]], all)
							: (double)j->budgets[order[i]] / 1e9;
	for (int p = 0; p < j->n_policies; p++) {
		double *y = xy + (size_t)(p + 1) * MAX_LIST;
		for (int i = 0; i < j->n_budgets; i++) {
			const struct cache_stats *s = &result(j, order[i], 0, p)->stats;
			y[i] = 100 * trace_ratio(s->hits[0], s->accesses);
		}
		plot.series[p] = (struct svg_series){.name = j->policies[p]->name,
			.x = xy,
			.y = y,
			.n = j->n_budgets,
			.dashed = j->policies[p]->needs_future,
			.colour = svg_policy_colour(j->policies[p]->name)};
	}
	int rc = svg_plot_save(&plot, j->o.svg, j->o.force, e);
	free(xy);
	return rc;
}

static int parse_options(struct simulate_options *o, int argc, char **argv, struct err *e)
{
	static const struct arg_word orders[] = {
		{"auto", ORDER_AUTO}, {"rank", SIM_BY_RANK}, {"layer", SIM_BY_LAYER}, {NULL, 0}};
	bool disk = false, gpu = false, pcie = false;
	const struct arg budget[] = {
		{"experts", 0, ARG_STRING, .string = &o->experts, .value = "N,...",
			.help = "capacities as numbers of experts, whatever their size",
			.fallback = "a row of shares from 4 to 90 % of all experts"},
		{"cache-gb", 0, ARG_STRING, .string = &o->cache_gb, .value = "G,...",
			.help = "capacities in GB (10^9 bytes)"},
		{"ram-gb", 0, ARG_STRING, .string = &o->ram_gb, .value = "G,...",
			.help = "second tier, exclusive: takes what leaves the first", .fallback = "none"},
		{"expert-bytes", 0, ARG_UINT64, .u64 = &o->expert_bytes, .min = 1, .max = 1e12,
			.value = "N", .help = "size of every expert", .fallback = "what the trace says"},
		{"per-layer", 0, ARG_FLAG, .flag = &o->per_layer,
			.help = "a pool of its own for every layer; --experts is then the slots of a layer"},
	};
	const struct arg how[] = {
		{"policy", 0, ARG_STRING, .string = &o->policies, .value = "NAME,...",
			.help = "lru, lfu, sieve; belady and belady-bypass know the future and bound them; all",
			.fallback = "all"},
		{"order", 0, ARG_CHOICE, .i32 = &o->order, .words = orders,
			.help = "rank: each expert is looked up and placed before the next, as textbooks do; "
					"layer: all experts of a layer are looked up first, as a run does",
			.fallback = "rank for synthetic traces, layer for recorded ones"},
		{"lookahead", 0, ARG_INT, .i32 = &o->lookahead, .min = 0, .max = 64, .value = "N",
			.help =
				"replay the recorded predictions up to N layers ahead as prefetches that arrive in "
				"time",
			.fallback = "0"},
		{"prefetch-cold", 0, ARG_UINT64, .u64 = &o->prefetch_cold, .min = 1, .max = 1e12,
			.value = "N", .help = "prefetches only evict what was not used in N accesses",
			.fallback = "those of two tokens"},
		{"half-life", 0, ARG_FLOAT, .f32 = &o->half_life, .given = &o->half_life_given, .min = 0,
			.max = 1e9, .above_min = true, .value = "TOKENS",
			.help = "lfu: after how long a use counts half",
			.fallback = "from the size of the cache"},
		{"skip", 0, ARG_UINT64, .u64 = &o->skip, .max = 1e12, .value = "N",
			.help = "do not count the first N tokens", .fallback = "0"},
		{"window", 0, ARG_UINT64, .u64 = &o->window, .max = 1e12, .value = "N",
			.help = "empty the cache after every N tokens", .fallback = "never"},
	};
	const struct arg model[] = {
		{"disk-gb-s", 0, ARG_FLOAT, .f32 = &o->disk_gb_s, .given = &disk, .min = 0, .max = 1e6,
			.above_min = true, .value = "G",
			.help = "read bandwidth, for modelled tokens per second", .fallback = "not a limit"},
		{"pcie-gb-s", 0, ARG_FLOAT, .f32 = &o->pcie_gb_s, .given = &pcie, .min = 0, .max = 1e6,
			.above_min = true, .value = "G", .help = "host to device bandwidth",
			.fallback = "not a limit"},
		{"gpu-ms", 0, ARG_FLOAT, .f32 = &o->gpu_ms, .given = &gpu, .min = 0, .max = 1e6,
			.value = "MS", .help = "computing time of a token", .fallback = "0"},
	};
	const struct arg output[] = {
		{"svg", 0, ARG_STRING, .string = &o->svg, .file = ARG_WRITES, .value = "FILE",
			.help = "draw the hit rates"},
		{"json", 0, ARG_FLAG, .flag = &o->json, .help = "print one JSON object"},
		{"force", 0, ARG_FLAG, .flag = &o->force,
			.help = "replace FILE though it is no plot of this program"},
	};
	const struct arg_group groups[] = {{"Capacity", budget, ARRAY_LEN(budget)},
		{"Replay", how, ARRAY_LEN(how)}, {"Speed model", model, ARRAY_LEN(model)},
		{"Output", output, ARRAY_LEN(output)}};
	const struct arg positional[] = {{.kind = ARG_STRING,
		.string = &o->path,
		.file = ARG_READS,
		.words = pocket_trace_words,
		.value = "FILE",
		.required = true}};
	const struct args args = {.command = "glmstream trace simulate",
		.usage = "FILE [options]",
		.about =
			"Replays the routing of a trace against caches of the given capacities, with the code "
			"of the live cache. Every access of a decode step counts, first touches are misses.",
		.example = "glmstream trace simulate run.trace --cache-gb 40,80,120 --ram-gb 64 --policy "
				   "lru,belady",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
		.positional = positional,
		.n_positional = 1};
	int rc = report_parse(&args, argc, argv, e);
	o->modelled = disk || gpu || pcie;
	return rc;
}

int trace_simulate(int argc, char **argv, struct err *e)
{
	struct simulation j = {.o = {.policies = "all", .order = ORDER_AUTO}};
	struct simulate_options *o = &j.o;
	int rc = parse_options(o, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (!(o->path = pocket_trace_or(o->path, e)))
		return e->code;
	if ((o->svg && (rc = out_file_check(o->svg, &out_plot, o->force, e))) ||
		(rc = parse_policies(&j, e)) || (rc = trace_load(o->path, &j.t, e)) ||
		(rc = find_budgets(&j, e)))
		goto out;
	if (o->modelled && !bytes_known(&j)) {
		rc = err_set(e, ERR_USAGE, "%.400s: the trace has no sizes of experts", o->path);
		err_hint(e, "add --expert-bytes N to model speeds");
		goto out;
	}
	if (o->lookahead && !j.t.max_distance)
		log_warn("%s: the trace holds no predictions: --lookahead changes nothing", o->path);
	j.setup = (struct sim_setup){.order = o->order != ORDER_AUTO ? (enum sim_order)o->order
										  : j.t.synthetic        ? SIM_BY_RANK
																 : SIM_BY_LAYER,
		.expert_bytes = o->expert_bytes,
		.per_layer = o->per_layer,
		.skip_tokens = o->skip,
		.window_tokens = o->window,
		.lookahead = o->lookahead,
		.prefetch_cold = o->prefetch_cold,
		.half_life = o->half_life};
	if ((rc = run_all(&j, e)))
		goto out;
	if (o->json)
		print_json(&j);
	else
		print_table(&j);
	if (o->svg)
		rc = draw_hit_rates(&j, e);
out:
	free(j.results);
	trace_fini(&j.t);
	return rc;
}
