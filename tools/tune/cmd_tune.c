/* SPDX-License-Identifier: MIT */
/*
 * Finds the flags with which this machine streams a model fastest: measures drive, memory and
 * computing, replays a trace for many settings, models their speeds, and runs the two that matter
 * for real. What differs by less than 3 % is called equal, and then the simpler setting is
 * recommended: less lookahead first, then the default policy, lru, sieve.
 */
#include "src/base/args.h"
#include "src/base/host/clock.h"
#include "src/base/host/memory_left.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/plan.h"
#include "tools/bench/measure.h"
#include "tools/commands/commands.h"
#include "tools/forecast/forecast.h"
#include "tools/options/pocket.h"
#include "tools/output/interrupt.h"
#include "tools/output/json_out.h"
#include "tools/output/report.h"
#include "tools/tune/svg_plot.h"
#include "tools/tune/tune_record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EQUAL        1.03
#define POLICIES     3
#define AHEAD_MOST   3
#define BUDGETS_MOST 16
#define POINTS_MOST  (BUDGETS_MOST * POLICIES * (AHEAD_MOST + 1))
#define ROUNDS       5  /* at least */
#define ROUNDS_MOST  15 /* ... and as many as this within so many seconds */
#define ROUNDS_NS    8000000000u
#define DISK_SECONDS 0.5

struct confirmed {
	struct forecast_point *point;
	bool cpu_experts;
	struct measure_decode best; /* the fastest round */
};

struct tune {
	struct common_opts common;
	const char *prompts, *svg;
	uint32_t n_new;
	bool json;
	struct arg args[COMMON_OPTS_MAX];

	const char *model;
	struct gguf *file;
	struct model_config config;
	struct tune_facts facts;
	struct forecast forecast;
	struct forecast_machine machine;
	struct bench_spread copy;
	bool compute_guessed; /* not everything fits: a streamed run less its waits */
	bool recorded;        /* by this run; else --trace names an existing trace */
	uint64_t most;        /* the largest budget that memory or --cache-gb allows */
	int ahead_most;
	struct forecast_point points[POINTS_MOST];
	int n_points;
	uint64_t budgets[BUDGETS_MOST];
	int n_budgets;
	struct confirmed tried[3]; /* the third: the better of two with --cpu-experts auto */
	int n_tried;
	int rounds;
	const struct confirmed *best;
	bool equal;
};

/* Orders settings by simplicity, the simplest first: by lookahead, then by policy, the default
 * first.
 */
static int effort(const struct forecast_point *p)
{
	int policy = 0; /* the default one comes first */
	while (strcmp(common_opts_policy(policy), p->policy) != 0)
		policy++;
	return p->lookahead * POLICIES + policy;
}

/* ---- measuring ---- */

static int decode_with(struct tune *t, uint64_t cache, uint64_t ram, const char *policy, int ahead,
	bool cpu_experts, int repeats, struct measure_decode *out, struct err *e)
{
	struct common_opts c = t->common;
	c.cpu_experts = cpu_experts;
	const struct token_ids *prompt = tune_longest(&t->facts);
	c.cache_bytes = cache;
	c.ram_bytes = ram;
	c.lookahead = ahead;
	c.lookahead_given = true;
	for (c.policy = 0;
		 common_opts_policy(c.policy) && strcmp(common_opts_policy(c.policy), policy) != 0;)
		c.policy++;
	return measure_decode(&c, prompt->data, (uint32_t)prompt->n, t->n_new, repeats, out, e);
}

static int measure_compute(struct tune *t, struct err *e)
{
	struct measure_decode d;
	int rc = decode_with(t, MEASURE_EVERYTHING, 0, "lru", 0, false, ROUNDS, &d, e);
	if (rc == ERR_MEMORY) {
		*e = (struct err){0};
		t->compute_guessed = true;
		rc = decode_with(t, t->most, t->common.ram_bytes, "lru", 0, false, ROUNDS, &d, e);
	}
	t->machine.compute_ms = rc ? 0 : t->compute_guessed ? MAX(d.ms.low - d.wait_ms, 0.0) : d.ms.low;
	return rc;
}

static int measure_machine(struct tune *t, struct err *e)
{
	int rc =
		forecast_measure(&t->common, t->file, t->config.n_used, DISK_SECONDS, 3, &t->machine, e);
	if (!rc)
		rc = measure_copy(3, &t->copy, e);
	if (!rc)
		rc = measure_compute(t, e);
	t->machine.copy_bytes_s = t->copy.median;
	t->machine.card = !t->facts.cpu;
	return rc;
}

/* ---- the trace ---- */

/* The temporary trace has a temporary folder. Both are removed, after an error too. */
static int record_temporary(struct tune *t, const struct loader_options *o, struct err *e)
{
	const char *base = getenv("TMPDIR");
	char *folder = mem_printf("%s/glmstream-tune-XXXXXX", base && base[0] ? base : "/tmp");
	int rc = mkdtemp(folder) ? 0 : err_errno(e, errno, "%s", folder);
	if (!rc) {
		char *path = mem_printf("%s/trace", folder), *partial = mem_printf("%s.partial", path);
		rc = tune_record(&t->common, &t->facts, t->n_new, AHEAD_MOST, path, e);
		if (!rc)
			rc = forecast_open(&t->forecast, path, t->file, o, t->config.n_mtp, e);
		unlink(path);
		unlink(partial);
		rmdir(folder);
		free(partial);
		free(path);
	}
	free(folder);
	return rc;
}

static int open_trace(struct tune *t, const struct loader_options *o, struct err *e)
{
	const char *given = t->common.trace;
	if (given && access(given, F_OK) == 0)
		return forecast_open(&t->forecast, given, t->file, o, t->config.n_mtp, e);
	log_info("tune: recording a trace%s%s", given ? " in " : "", given ? given : "");
	t->recorded = true;
	if (!given)
		return record_temporary(t, o, e);
	int rc = tune_record(&t->common, &t->facts, t->n_new, AHEAD_MOST, given, e);
	return rc ? rc : forecast_open(&t->forecast, given, t->file, o, t->config.n_mtp, e);
}

/* ---- settings ---- */

static void list_budgets(struct tune *t)
{
	static const double shares[] = {0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9};
	const struct loader_plan *plan = &t->forecast.plan;
	t->budgets[t->n_budgets++] = plan->floor_bytes;
	for (size_t i = 0; i < ARRAY_LEN(shares); i++) {
		uint64_t v = (uint64_t)(shares[i] * (double)plan->everything_bytes);
		if (v > plan->floor_bytes / 10 * 11 && v < t->most / 100 * 97)
			t->budgets[t->n_budgets++] = v;
	}
	if (t->most > plan->floor_bytes)
		t->budgets[t->n_budgets++] = t->most;
}

static int model_all(struct tune *t, struct err *e)
{
	t->ahead_most = (int)MIN(t->forecast.trace.max_distance, (uint32_t)AHEAD_MOST);
	list_budgets(t);
	for (int b = 0; b < t->n_budgets; b++)
		for (int policy = 0; policy < POLICIES; policy++)
			for (int ahead = 0; ahead <= t->ahead_most; ahead++) {
				struct forecast_point *p = &t->points[t->n_points++];
				*p = (struct forecast_point){.cache_bytes = t->budgets[b],
					.ram_bytes = t->common.ram_bytes,
					.policy = common_opts_policy(policy),
					.lookahead = ahead};
				int rc = forecast_run(&t->forecast, &t->machine, p, e);
				if (!rc && atomic_load(interrupt_flag()))
					rc = err_set(e, ERR_INTERRUPTED, "interrupted");
				if (rc)
					return rc;
			}
	return 0;
}

/* The best setting of a budget; policy NULL: of all; `most` lookahead. */
static struct forecast_point *best_of(struct tune *t, uint64_t budget, const char *policy, int most)
{
	struct forecast_point *best = NULL;
	for (int i = 0; i < t->n_points; i++) {
		struct forecast_point *p = &t->points[i];
		if (p->cache_bytes == budget && p->lookahead <= most &&
			(!policy || !strcmp(policy, p->policy)) && (!best || p->tok_s > best->tok_s))
			best = p;
	}
	return best;
}

/* The best by the model, and beside it the simplest that the model calls equal, or else the second
 * best. */
static void choose_settings(struct tune *t)
{
	struct forecast_point *best = best_of(t, t->most, NULL, AHEAD_MOST), *simple = best,
						  *second = NULL;
	for (int i = 0; i < t->n_points; i++) {
		struct forecast_point *p = &t->points[i];
		if (p->cache_bytes != t->most || p == best)
			continue;
		if (p->tok_s * EQUAL >= best->tok_s && effort(p) < effort(simple))
			simple = p;
		if (!second || p->tok_s > second->tok_s)
			second = p;
	}
	t->tried[t->n_tried++].point = best;
	if (simple != best)
		second = simple;
	if (second)
		t->tried[t->n_tried++].point = second;
}

/* Runs a setting and keeps its fastest round. */
static int try_setting(struct tune *t, struct confirmed *x, bool first, struct err *e)
{
	const struct forecast_point *p = x->point;
	struct measure_decode d;
	int rc = decode_with(
		t, p->cache_bytes, p->ram_bytes, p->policy, p->lookahead, x->cpu_experts, 1, &d, e);
	if (!rc && (first || d.ms.low < x->best.ms.low))
		x->best = d;
	return rc;
}

/* Whether the processor should compute experts beside the card: the better setting with it, in as
 * many rounds. Less than 3 % is not worth its threads. */
static int try_processor(struct tune *t, struct err *e)
{
	if (t->facts.cpu || !t->best->point->ram_bytes)
		return 0;
	struct confirmed *x = &t->tried[t->n_tried++];
	*x = (struct confirmed){.point = t->best->point, .cpu_experts = true};
	for (int i = 0; i < t->rounds; i++) {
		int rc = try_setting(t, x, !i, e);
		if (rc)
			return rc;
	}
	if (x->best.ms.low * EQUAL < t->best->best.ms.low) {
		t->best = x;
		t->equal = false;
	}
	return 0;
}

/* Alternates the settings, so that other load disturbs both alike. The fastest round counts. */
static int confirm_settings(struct tune *t, struct err *e)
{
	const uint64_t start = clock_ns();
	for (; t->rounds < ROUNDS || (t->rounds < ROUNDS_MOST && clock_ns() - start < ROUNDS_NS);
		 t->rounds++)
		for (int i = 0; i < t->n_tried; i++) {
			int rc = try_setting(t, &t->tried[i], !t->rounds, e);
			if (rc)
				return rc;
		}
	t->best = &t->tried[0];
	if (t->n_tried < 2)
		return try_processor(t, e);
	const struct confirmed *a = &t->tried[0], *b = &t->tried[1];
	t->equal = MAX(a->best.ms.low, b->best.ms.low) < EQUAL * MIN(a->best.ms.low, b->best.ms.low);
	if (t->equal ? effort(b->point) < effort(a->point) : b->best.ms.low < a->best.ms.low)
		t->best = b;
	return try_processor(t, e);
}

/* The smallest budget that the model calls equal to the largest. */
static uint64_t enough_bytes(struct tune *t)
{
	const double most = best_of(t, t->most, NULL, AHEAD_MOST)->tok_s;
	for (int i = 0; i < t->n_budgets; i++)
		if (best_of(t, t->budgets[i], NULL, AHEAD_MOST)->tok_s * EQUAL >= most)
			return t->budgets[i];
	return t->most;
}

/* ---- output ---- */

static double gb(uint64_t bytes)
{
	return (double)bytes / 1e9;
}

static void flags_text(const struct confirmed *x, char *out, size_t n)
{
	const struct forecast_point *p = x->point;
	char ram[40] = "";
	if (p->ram_bytes)
		snprintf(ram, sizeof ram, " --ram-gb %.6g", gb(p->ram_bytes));
	snprintf(out, n, "--cache-gb %.6g%s --policy %s --lookahead %d%s", gb(p->cache_bytes), ram,
		p->policy, p->lookahead, x->cpu_experts ? " --cpu-experts auto" : "");
}

static void print_machine(const struct tune *t)
{
	const struct forecast_machine *m = &t->machine;
	printf("measured (%s)\n", t->facts.backend);
	printf("  drive       %.3f GB/s one expert at a time, %.3f %u at a time, %.3f kept busy%s\n",
		m->one_bytes_s * 1e-9, m->layer_bytes_s * 1e-9, t->config.n_used, m->full_bytes_s * 1e-9,
		m->direct ? "" : " (through the page cache: may be the speed of memory)");
	printf("  memory      %.2f GB/s copied\n", m->copy_bytes_s * 1e-9);
	printf("  computing   %.3f ms a token%s\n", m->compute_ms,
		t->compute_guessed
			? ": a streamed run less its waits, since memory does not hold all experts"
			: ", all experts cached");
}

static void print_curve(struct tune *t)
{
	const struct trace *tr = &t->forecast.trace;
	printf("\nmodelled from %s: %llu tokens, %llu accesses; the best lookahead of each policy%s\n",
		t->recorded ? "a trace of the prompts" : ERR_PLAIN(t->common.trace),
		(unsigned long long)tr->n_tokens, (unsigned long long)tr->n_accesses,
		t->ahead_most ? "" : " (the trace holds no predictions, so none)");
	printf("  %9s %7s  %-6s %9s %8s %12s %8s\n", "cache GB", "of all", "policy", "lookahead",
		"hits %", "read MB/tok", "tok/s");
	for (int b = 0; b < t->n_budgets; b++)
		for (int k = 0; k < POLICIES; k++) {
			const struct forecast_point *p =
				best_of(t, t->budgets[b], common_opts_policy(k), AHEAD_MOST);
			printf("  %9.4g %6.1f%%  %-6s %9d %8.2f %12.3f %8.2f\n", gb(p->cache_bytes),
				100 * gb(p->cache_bytes) / gb(t->forecast.plan.everything_bytes), p->policy,
				p->lookahead, 100 * p->hits[0], (p->missed + p->prefetched) / 1e6, p->tok_s);
		}
}

static void print_verdict(struct tune *t)
{
	char flags[160];
	printf("\nmeasured again (fastest of %d runs of %u tokens)\n", t->rounds, t->n_new);
	for (int i = 0; i < t->n_tried; i++) {
		const struct confirmed *x = &t->tried[i];
		flags_text(x, flags, sizeof flags);
		printf("  %-62s %8.2f tok/s (modelled %.2f), %.2f ms waited a token\n", flags,
			1e3 / x->best.ms.low, x->point->tok_s, x->best.wait_ms);
	}
	if (t->equal)
		printf("They differ by less than 3 %%, which is called equal: the simpler one is "
			   "recommended.\n");
	if (t->best->best.ms.low < t->machine.compute_ms)
		printf("That is faster than computing alone was: the machine was busy then, so repeat "
			   "this when it is quiet.\n");
	const uint64_t less = enough_bytes(t);
	if (less < t->most)
		printf("A cache of %.6g GB would do as well within 3 %%, by the model.\n", gb(less));
	flags_text(t->best, flags, sizeof flags);
	printf("\nrecommended: %s\n", flags);
}

static json_t *point_json(const struct forecast_point *p)
{
	json_t *o = json_object();
	json_out_real(o, "cache_gb", gb(p->cache_bytes));
	json_out_real(o, "ram_gb", gb(p->ram_bytes));
	json_out_str(o, "policy", p->policy);
	json_out_uint(o, "lookahead", (uint64_t)p->lookahead);
	json_out_real(o, "hit_rate", p->hits[0]);
	json_out_real(o, "hit_rate_ram", p->hits[1]);
	json_out_real(o, "bytes_read_per_token", p->missed + p->prefetched);
	json_out_real(o, "tok_s_modelled", p->tok_s);
	return o;
}

static json_t *machine_json(const struct tune *t)
{
	const struct forecast_machine *m = &t->machine;
	json_t *o = json_object();
	json_out_str(o, "backend", t->facts.backend);
	json_out_real(o, "disk_gb_s_one", m->one_bytes_s * 1e-9);
	json_out_real(o, "disk_gb_s_layer", m->layer_bytes_s * 1e-9);
	json_out_real(o, "disk_gb_s", m->full_bytes_s * 1e-9);
	json_object_set_new(o, "direct", json_boolean(m->direct));
	json_out_real(o, "copy_gb_s", m->copy_bytes_s * 1e-9);
	json_out_real(o, "compute_ms", m->compute_ms);
	json_object_set_new(o, "compute_guessed", json_boolean(t->compute_guessed));
	return o;
}

static void print_json(struct tune *t)
{
	json_t *o = json_object(), *points = json_array(), *tried = json_array();
	char flags[160];
	for (int i = 0; i < t->n_points; i++)
		json_array_append_new(points, point_json(&t->points[i]));
	for (int i = 0; i < t->n_tried; i++) {
		json_t *x = point_json(t->tried[i].point);
		json_out_real(x, "tok_s", 1e3 / t->tried[i].best.ms.low);
		json_object_set_new(x, "cpu_experts", json_boolean(t->tried[i].cpu_experts));
		json_out_real(x, "wait_ms_per_token", t->tried[i].best.wait_ms);
		json_array_append_new(tried, x);
	}
	flags_text(t->best, flags, sizeof flags);
	json_object_set_new(o, "nothing_to_tune", json_false());
	json_object_set_new(o, "machine", machine_json(t));
	json_out_uint(o, "trace_tokens", t->forecast.trace.n_tokens);
	json_object_set_new(o, "points", points);
	json_object_set_new(o, "measured", tried);
	json_out_uint(o, "rounds", (uint64_t)t->rounds);
	json_object_set_new(o, "equal", json_boolean(t->equal));
	json_out_real(o, "enough_cache_gb", gb(enough_bytes(t)));
	json_out_str(o, "recommended", flags);
	json_out_line(stdout, o);
}

static int draw_speeds(struct tune *t, struct err *e)
{
	double x[BUDGETS_MOST], y[POLICIES + 1][BUDGETS_MOST];
	struct svg_plot plot = {.title = "Modelled speed by cache size",
		.subtitle =
			"the best lookahead of each policy; dashed: " POLICY_DEFAULT " without lookahead",
		.x_label = "cache, GB",
		.y_label = "tokens per second",
		.x_from_zero = true,
		.y_from_zero = true,
		.n_series = POLICIES + 1};
	for (int k = 0; k <= POLICIES; k++) {
		const bool plain = k == POLICIES;
		const char *policy = common_opts_policy(plain ? 0 : k);
		for (int b = 0; b < t->n_budgets; b++) {
			x[b] = gb(t->budgets[b]);
			y[k][b] = best_of(t, t->budgets[b], policy, plain ? 0 : AHEAD_MOST)->tok_s;
		}
		plot.series[k] = (struct svg_series){.name = plain ? "no lookahead" : policy,
			.x = x,
			.y = y[k],
			.n = t->n_budgets,
			.dashed = plain,
			.colour = svg_policy_colour(policy)};
	}
	return svg_plot_save(&plot, t->svg, t->common.force, e);
}

/* ---- the command ---- */

/* Everything fits: what streaming could only make slower. */
static void say_nothing_to_tune(const struct tune *t, uint64_t everything, bool ceiling)
{
	const char *advice = t->facts.cpu ? "run without --cache-gb" : "run with --cache-gb auto";
	if (t->json) {
		json_t *o = json_object();
		json_object_set_new(o, "nothing_to_tune", json_true());
		json_out_real(o, "experts_gb", gb(everything));
		json_out_str(o, "backend", t->facts.backend);
		json_out_str(o, "recommended", t->facts.cpu ? "" : "--cache-gb auto");
		json_out_line(stdout, o);
		return;
	}
	printf("Nothing to tune: all experts (%.4g GB with room to read them) fit into %s: %s.\n",
		gb(everything), ceiling ? "that cache" : "the memory of this machine", advice);
	if (!ceiling)
		printf("To see what a smaller machine would do, give the most that may be used: --cache-gb "
			   "%.2g\n",
			gb(everything) / 3);
}

/* --ram-gb auto as a number: as a run takes it, so that all settings have the same. */
static void resolve_ram(struct tune *t, const struct loader_plan *plan)
{
	if (t->common.ram_bytes != ENGINE_CACHE_AUTO)
		return;
	const uint64_t left = memory_left(), reserve = plan_host_reserve(left),
				   beside = plan->everything_bytes - MIN(t->most, plan->everything_bytes);
	t->common.ram_bytes = t->facts.cpu ? 0 : MIN(left - MIN(left, reserve), beside);
}

static int find_most(struct tune *t, const struct loader_plan *plan, struct err *e)
{
	const bool given = t->common.cache_bytes && t->common.cache_bytes != ENGINE_CACHE_AUTO;
	t->most = given ? t->common.cache_bytes : t->facts.left_bytes / 10 * 9;
	if (t->most < plan->floor_bytes && given)
		return err_set(e, ERR_MEMORY, "--cache-gb: %.4f GB are too few, at least %.4f are needed",
			gb(t->most), gb(plan->floor_bytes));
	if (t->most < plan->floor_bytes)
		return err_set(e, ERR_MEMORY,
			"memory leaves %.4f GB for experts, and at least %.4f GB are needed: this machine "
			"cannot run the model",
			gb(t->most), gb(plan->floor_bytes));
	resolve_ram(t, plan);
	return 0;
}

static int tune(struct tune *t, struct err *e)
{
	struct loader_plan plan;
	struct common_replicas replicas = {0};
	int rc = common_opts_replicas(&t->common, &replicas, e);
	t->model = pocket_or(t->common.model, e);
	if (!rc && !t->model)
		rc = e->code;
	if (rc || (rc = model_file_open(t->model, &t->file, e)) ||
		(rc = config_read(t->file, &t->config, e)))
		goto out;
	t->common.model = t->model;
	const struct loader_options o = {.file = t->file,
		.n_layers = (int)(t->config.n_layers + t->config.n_mtp),
		.n_used = (int)t->config.n_used,
		.reader = {.engine = (enum reader_engine)t->common.io, .buffered = t->common.no_direct},
		.replicas = replicas.path,
		.n_replicas = replicas.n};
	if ((t->svg && (rc = out_file_check(t->svg, &out_plot, t->common.force, e))) ||
		(rc = tune_facts_find(&t->facts, &t->common, t->prompts, t->n_new, e)) ||
		(rc = forecast_plan(&o, &plan, e)) || (rc = find_most(t, &plan, e)))
		goto out;
	if (t->most >= plan.everything_bytes) {
		say_nothing_to_tune(t, plan.everything_bytes,
			t->common.cache_bytes && t->common.cache_bytes != ENGINE_CACHE_AUTO);
		goto out;
	}
	if ((rc = open_trace(t, &o, e)))
		goto out;
	log_info("tune: measuring the drive, memory and computing");
	if ((rc = measure_machine(t, e)) || (rc = model_all(t, e)))
		goto out;
	choose_settings(t);
	log_info("tune: running the two settings that matter");
	if ((rc = confirm_settings(t, e)))
		goto out;
	if (t->json) {
		print_json(t);
	} else {
		print_machine(t);
		print_curve(t);
		print_verdict(t);
	}
	if (t->svg) /* last: what was measured is not lost to a file that cannot be written */
		rc = draw_speeds(t, e);
out:
	forecast_fini(&t->forecast);
	tune_facts_fini(&t->facts);
	gguf_close(t->file);
	free(replicas.text);
	return rc;
}

/* The common options less those that are to be found, with the words of this command. */
static struct arg_group tune_group(struct tune *t)
{
	static const char *const found[] = {"policy", "lookahead", "cpu-experts", "warm", "cards"};
	const struct arg_group all = common_opts_group(&t->common);
	size_t n = 0;
	for (size_t i = 0; i < all.n; i++) {
		struct arg a = all.args[i];
		bool skip = false;
		for (size_t k = 0; k < ARRAY_LEN(found); k++)
			skip |= !strcmp(a.name, found[k]);
		if (skip)
			continue;
		if (!strcmp(a.name, "trace")) {
			a.help = "replay this trace of the model; if there is no such file, the recorded one "
					 "is written there";
			a.fallback = "a trace of the prompts";
		} else if (!strcmp(a.name, "cache-gb")) {
			a.help = "the most that the cache may take";
			a.fallback = "what memory leaves";
		} else if (!strcmp(a.name, "ram-gb")) {
			a.help = "second tier in host memory; auto: what the host has left, none on the CPU";
		}
		t->args[n++] = a;
	}
	return (struct arg_group){all.title, t->args, n};
}

int cmd_tune(int argc, char **argv, struct err *e)
{
	struct tune *t = NEW(struct tune);
	t->n_new = 128;
	const struct arg own[] = {
		{"prompts", 'f', ARG_STRING, .string = &t->prompts, .file = ARG_READS, .value = "FILE",
			.help = "what the model will be asked, a question on each line",
			.fallback = "eight general ones"},
		{NULL, 'n', ARG_UINT, .u32 = &t->n_new, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "most tokens of an answer, and tokens of a measured run", .fallback = "128"},
		{"svg", 0, ARG_STRING, .string = &t->svg, .file = ARG_WRITES, .value = "FILE",
			.help = "draw the modelled speeds"},
		{"json", 0, ARG_FLAG, .flag = &t->json, .help = "print one JSON object"},
	};
	const struct arg_group groups[] = {{NULL, own, ARRAY_LEN(own)}, tune_group(t)};
	const struct args args = {.command = "glmstream tune",
		.usage = "-m MODEL [-f PROMPTS] [--trace FILE] [options]",
		.about =
			"Measures drive, memory and computing, replays a trace of the model for budgets, "
			"policies and lookaheads, models their speeds, runs the two best settings for "
			"real, on a card with --ram-gb the better one with --cpu-experts auto too, and says "
			"which flags to use. Settings that differ by less than 3 % are called equal; then the "
			"simpler one is recommended. It tunes one card, since it simulates one cache, and each "
			"of several cards has its own: policy and lookahead hold for them too, and glmstream "
			"inspect --cards N forecasts their speed.",
		.example = "glmstream tune -m glm-5.2-q2.gguf -f questions.txt --svg speeds.svg\n"
				   "glmstream tune -m glm-5.2-q2.gguf --trace run.trace --cache-gb 80 --ram-gb 64",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups)};
	int rc = report_parse(&args, argc, argv, e);
	if (!rc && t->common.cache_given && !t->common.cache_bytes)
		rc = err_set(
			e, ERR_USAGE, "--cache-gb 0: experts cannot be streamed through a cache of 0 bytes");
	if (!rc) {
		interrupt_catch(false);
		rc = tune(t, e);
	}
	free(t);
	return rc == ARGS_HELP ? 0 : rc;
}
