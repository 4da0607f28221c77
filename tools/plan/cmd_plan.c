/* SPDX-License-Identifier: MIT */
/* `glmstream plan`: what a machine would make of GLM-5.2, before anything is downloaded. */
#include "src/base/args.h"
#include "src/base/host/memory_left.h"
#include "src/base/num.h"
#include "src/checkpoint/convert_map.h"
#include "tools/commands/commands.h"
#include "tools/options/common_opts.h"
#include "tools/options/pocket.h"
#include "tools/output/json_out.h"
#include "tools/output/report.h"
#include "tools/output/workers.h"
#include "tools/plan/machine_plan.h"
#include "tools/trace/trace_simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECIPE_DEFAULT  "iq2-s"
#define CONTEXT_DEFAULT 32768
#define DRIVE_DEFAULT   3.5f

struct plan_options {
	const char *card, *recipe, *trace, *model, *tiers;
	float vram_gb, ram_gb, disk_gb_s, card_gb_s, pcie_gb_s, cpu_gb_s;
	uint32_t context, jobs, sessions;
	bool vram_given, ram_given, disk_given, card_gb_s_given, pcie_given, cpu_given, measure,
		jobs_given;
	bool recipe_given, context_given, sessions_given, no_mtp;
	bool json, table;
};

static double gb(double bytes)
{
	return bytes * 1e-9;
}

/* ---- the machine ---- */

/* The card of this machine: its name in name[0..n), its free bytes, and its entry in the table.
 * NULL with *free_bytes as it was: none answers; with *free_bytes set: the table lacks it. */
static const struct card *find_local_card(uint64_t *free_bytes, char *name, size_t n)
{
	struct backend *b = NULL;
	struct err e = {0};
	const struct backend_options o = {.name = "cuda"};
	if (backend_open(&o, &b, &e))
		return NULL;
	snprintf(name, n, "%s", backend_describe(b));
	*free_bytes = b->ops->free_bytes(b);
	b->ops->close(b);
	return card_find(name);
}

/* Sets the card, its free memory, and name[0..n) for the output. */
static int resolve_card(
	const struct plan_options *o, struct machine *m, char *name, size_t n, struct err *e)
{
	const struct card *known = NULL;
	const double bandwidth = o->card_gb_s_given ? (double)o->card_gb_s : 0;
	uint64_t free_bytes = 0;
	if (o->card && card_find_named(o->card, &known, e))
		return e->code;
	if (!o->card && !o->vram_given) {
		known = find_local_card(&free_bytes, name, n);
		if (!known && !free_bytes) {
			err_set(e, ERR_USAGE, "no graphics card found");
			return err_hint(e, "say which one to plan for: --card \"RTX 4090\", or --vram-gb 24");
		}
	}
	m->card = known           ? *known
			  : o->vram_given ? card_of_size((double)o->vram_gb, bandwidth)
							  : card_unknown(bandwidth);
	if (o->vram_given)
		m->card.sold_gb = (double)o->vram_gb;
	if (o->card_gb_s_given)
		m->card.memory_gb_s = bandwidth;
	if (o->vram_given || !free_bytes)
		free_bytes = card_free_bytes(m->card.sold_gb);
	if (o->card || o->vram_given)
		card_print_name(&m->card, name, n);
	if (o->pcie_given)
		m->card.link_gb_s = (double)o->pcie_gb_s;
	m->memory.card_bytes = free_bytes;
	return 0;
}

/* After the memory plan: which model fits needs no bandwidth. */
static int check_rates(const struct machine *m, struct err *e)
{
	return card_check_rates(
		&m->card, m->card.sold_gb > 0 ? m->card.sold_gb : gb((double)m->memory.card_bytes), e);
}

static int resolve_drive(const struct plan_options *o, const struct model_headers *model,
	struct machine *m, struct err *e)
{
	m->drive_gb_s = (double)o->disk_gb_s;
	if (!o->measure)
		return 0;
	struct forecast_machine rates = {0};
	const struct common_opts c = {.model = o->model};
	int rc = forecast_measure(&c, model->file, model->config.n_used, 0.5, 3, &rates, e);
	m->drive_gb_s = gb(rates.layer_bytes_s);
	return rc;
}

/* ---- output ---- */

/* The commands that lead to a run by this plan. */
static void print_command(
	const struct plan_options *o, const struct machine *m, const struct machine_plan *p)
{
	const char *file = o->model;
	char own[64], sessions[32] = "";
	if (!file) {
		snprintf(own, sizeof own, "glm52-%s.gguf", o->recipe);
		file = own;
		printf("  convert    glmstream convert GLM-5.2-FP8/ -o %s --recipe %s\n", file, o->recipe);
	}
	if (o->sessions_given)
		snprintf(sessions, sizeof sessions, " --sessions %u", o->sessions);
	printf("  run        glmstream%s -m %s ", o->sessions_given ? " serve" : "", file);
	if (o->tiers)
		printf("--cache-gb %g --ram-gb %g", gb((double)m->tier_bytes[0]),
			gb((double)m->tier_bytes[1]));
	else
		printf("--cache-gb auto --ram-gb auto");
	printf(" -c %u%s%s%s\n", p->plan.context, sessions, o->no_mtp ? " --draft off" : "",
		m->cpu_gb_s > 0 ? " --cpu-experts auto" : "");
}

static const char *hours_text(double hours, char text[32])
{
	if (hours < 1)
		snprintf(text, 32, "%.0f min", ceil(60 * hours));
	else
		snprintf(text, 32, "%.1f h", hours);
	return text;
}

static void print_plan_text(const struct plan_options *o, const struct machine *m, const char *card,
	const struct machine_plan *p)
{
	const struct plan *plan = &p->plan;
	const struct loader_plan *t = &plan->tiers;
	printf("%s%s on %s: %.1f GB free of its memory, %.0f GB/s; link %.3g GB/s\n",
		o->model ? "" : "GLM-5.2, recipe ", o->model ? o->model : o->recipe, card,
		gb((double)m->memory.card_bytes), m->card.memory_gb_s, m->card.link_gb_s);
	printf("host memory %.1f GB free, drive %.3g GB/s%s", gb((double)m->memory.host_bytes),
		m->drive_gb_s,
		o->measure      ? " (measured)"
		: o->disk_given ? ""
						: " (assumed: --disk-gb-s, or --measure with -m)");
	if (m->cpu_gb_s > 0)
		printf(", the processor computes experts at %.3g GB/s", m->cpu_gb_s);
	printf("\n\n");
	char sessions[32] = "";
	if (plan->sessions > 1)
		snprintf(sessions, sizeof sessions, "%u sessions of ", plan->sessions);
	printf("  card       %.2f GB weights, %.2f caches of %s%u tokens, %.2f workspace, %.2f left "
		   "free\n",
		gb((double)plan->resident), gb((double)plan->kv), sessions, plan->context,
		gb((double)(plan->workspace + t->device_staging_bytes)),
		gb((double)(m->memory.card_bytes - plan->resident - plan->kv - plan->workspace -
					t->device_staging_bytes - t->tier_bytes[0])));
	printf("             %.2f GB for experts: %d of %d fit (%.1f %%)\n",
		gb((double)t->tier_bytes[0]), t->n_fit[0], t->n_experts,
		100.0 * t->n_fit[0] / MAX(t->n_experts, 1));
	printf("  RAM        %.2f GB for experts: %d fit\n", gb((double)t->tier_bytes[1]), t->n_fit[1]);
	if (plan->kv_host)
		printf("             %.2f GB for latents of the context (--kv-ram)\n",
			gb((double)plan->kv_host));
	printf("  disk       %.0f GB for the model", gb((double)p->file_bytes));
	if (!o->model) {
		char with[32], alone[32];
		printf(
			", and %.0f GB for the FP8 checkpoint while it is converted: about %s with the card, "
			"%s on %u core%s alone",
			gb((double)p->source_bytes), hours_text(p->convert_hours, with),
			hours_text(p->convert_cpu_hours, alone), m->cores, m->cores == 1 ? "" : "s");
	}
	printf("\n");
	printf("  decode     %.2f tok/s when both tiers are full; %.2f over the first %d tokens\n",
		p->steady.tok_s, p->cold.tok_s, MACHINE_PLAN_COLD);
	printf(
		"             of %.0f ms: computing %.1f, drive %.1f, link %.1f; %.1f %% of experts on the "
		"card, %.1f %% in RAM\n",
		p->steady.ms, p->compute_ms, p->steady.drive_ms, p->steady.link_ms, 100 * p->steady.hits[0],
		100 * p->steady.hits[1]);
	printf("  prompt     %.0f tok/s with a cold cache: %u tokens in %.0f s, longer ones in such "
		   "steps\n",
		p->prompt_tok_s, plan->chunk, p->prompt_seconds);
	print_command(o, m, p);
	printf(
		"\nModelled from the routing of %s, not measured.\nFor nine runs on an H200 the model says "
		"12 %% less to 17 %% more tok/s than were measured\n(tests/bench/RESULTS.md).\n",
		o->trace ? o->trace : "a synthetic trace");
}

static void print_plan_json(const struct plan_options *o, const struct machine *m, const char *card,
	const struct machine_plan *p)
{
	const struct loader_plan *t = &p->plan.tiers;
	json_t *j = json_object();
	json_out_str(j, "card", card);
	json_out_str(j, "recipe", o->model ? "" : o->recipe);
	json_object_set_new(j, "modelled", json_true());
	json_out_uint(j, "card_bytes", m->memory.card_bytes);
	json_out_uint(j, "host_bytes", m->memory.host_bytes);
	json_out_real(j, "card_gb_s", m->card.memory_gb_s);
	json_out_real(j, "pcie_gb_s", m->card.link_gb_s);
	json_out_real(j, "disk_gb_s", m->drive_gb_s);
	json_out_real(j, "cpu_gb_s", m->cpu_gb_s);
	json_out_uint(j, "context", p->plan.context);
	json_out_uint(j, "sessions", p->plan.sessions);
	json_object_set_new(j, "mtp", json_boolean(p->plan.mtp));
	json_out_uint(j, "resident_bytes", p->plan.resident);
	json_out_uint(j, "kv_bytes", p->plan.kv);
	json_out_uint(j, "kv_host_bytes", p->plan.kv_host);
	json_out_uint(j, "workspace_bytes", p->plan.workspace);
	json_out_uint(j, "cache_bytes", t->tier_bytes[0]);
	json_out_uint(j, "ram_bytes", t->tier_bytes[1]);
	json_out_uint(j, "experts", (uint64_t)t->n_experts);
	json_out_uint(j, "experts_on_card", (uint64_t)t->n_fit[0]);
	json_out_uint(j, "experts_in_ram", (uint64_t)t->n_fit[1]);
	json_out_real(j, "compute_ms", p->compute_ms);
	json_out_real(j, "tok_s", p->steady.tok_s);
	json_out_real(j, "tok_s_cold", p->cold.tok_s);
	json_out_real(j, "hit_rate", p->steady.hits[0]);
	json_out_real(j, "hit_rate_ram", p->steady.hits[1]);
	json_out_uint(j, "prompt_tokens", p->plan.chunk);
	json_out_real(j, "prompt_tok_s", p->prompt_tok_s);
	json_out_uint(j, "file_bytes", p->file_bytes);
	if (!o->model) {
		json_out_uint(j, "source_bytes", p->source_bytes);
		json_out_real(j, "convert_hours", p->convert_hours);
		json_out_real(j, "convert_cpu_hours", p->convert_cpu_hours);
	}
	json_out_line(stdout, j);
}

/* ---- --table: the table of the README ---- */

static const double table_ram_gb[] = {32, 64, 128, 256}, table_drives[] = {3, 7, 14};

struct table_row {
	const char *card, *recipe;
	uint32_t context;
	double sold_gb; /* without a card of the table: its size */
};

/* Prints tok/s with this much host memory, one for each drive, or one if they hardly differ. */
static int print_cell(const struct model_headers *model, const struct forecast *f,
	const struct card *card, const struct table_row *row, double ram_gb, struct err *e)
{
	double tok_s[ARRAY_LEN(table_drives)];
	struct machine_plan p;
	struct machine m = {.card = *card,
		.memory = {card_free_bytes(card->sold_gb), machine_host_bytes(ram_gb)},
		.drive_gb_s = table_drives[0],
		.cores = 1,
		.tier_bytes = {ENGINE_CACHE_AUTO, ENGINE_CACHE_AUTO}};
	int rc = machine_plan_memory(model, &m, row->context, &p, e);
	if (rc || (rc = machine_plan_speed(model, &m, f, false, &p, e)))
		return rc;
	for (size_t i = 0; i < ARRAY_LEN(table_drives); i++) {
		m.drive_gb_s = table_drives[i];
		machine_plan_times(model, &m, f, &p);
		tok_s[i] = p.steady.tok_s;
	}
	printf(" |");
	if (tok_s[2] < tok_s[0] * 1.05) {
		printf(" %.2g", tok_s[1]);
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(table_drives); i++)
		printf("%s%.2g", i ? ", " : " ", tok_s[i]);
	return 0;
}

/* The row of a memory size that is too small for the model: prints the size that is needed.
 * ERR_RUN: the model fits. */
static int print_too_small(
	const struct model_headers *model, const struct table_row *row, struct err *e)
{
	struct machine_plan p;
	struct err why = {0};
	const struct machine m = {
		.memory = {card_free_bytes(row->sold_gb), machine_host_bytes(table_ram_gb[0])},
		.tier_bytes = {ENGINE_CACHE_AUTO, ENGINE_CACHE_AUTO}};
	const int rc = machine_plan_memory(model, &m, row->context, &p, &why);
	if (rc != ERR_MEMORY || !p.plan.least)
		return err_set(e, ERR_RUN, "a card of %g GB has no row that fits it", row->sold_gb);
	printf("| %g GB, %s, %u | does not fit: needs %.1f GiB", row->sold_gb, row->recipe,
		row->context, ceil(10 * (double)p.plan.least / (double)card_free_bytes(1)) / 10);
	for (size_t r = 1; r < ARRAY_LEN(table_ram_gb); r++)
		printf(" | -");
	printf(" |\n");
	return 0;
}

/* The row of a card of the table. */
static int print_row(const struct model_headers *model, const struct table_row *row,
	const char *trace, struct err *e)
{
	const struct card *card = card_find(row->card);
	struct forecast f = {0};
	int rc = machine_plan_forecast(model, trace, &f, e);
	if (!rc)
		printf("| %g GB (%s), %s, %u", card->sold_gb, card->name, row->recipe, row->context);
	for (size_t r = 0; r < ARRAY_LEN(table_ram_gb) && !rc; r++)
		rc = print_cell(model, &f, card, row, table_ram_gb[r], e);
	if (!rc)
		printf(" |\n");
	forecast_fini(&f);
	return rc;
}

static int print_table(const char *trace, struct err *e)
{
	/* 1024: the shortest context that a plan chooses */
	static const struct table_row rows[] = {{NULL, "iq2-t", 1024, 8},
		{"RTX 4070", "iq2-t", 4096, 0}, {"RTX 4080", "iq2-s", 8192, 0}, {"RTX 4090", "iq2-s", 0, 0},
		{"RTX 5090", "iq2-s", 0, 0}, {"L40S", "iq2", 0, 0}, {"H100", "iq2", 0, 0},
		{"RTX PRO 6000", "iq2", 0, 0}, {"H200", "iq2", 0, 0}};
	printf(
		"| card, recipe, context | 32 GB RAM | 64 GB | 128 GB | 256 GB |\n|---|---|---|---|---|\n");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct table_row row = rows[i];
		row.context = row.context ? row.context : CONTEXT_DEFAULT;
		struct model_headers model;
		int rc = model_headers_make(&model, row.recipe, e);
		if (!rc)
			rc = row.card ? print_row(&model, &row, trace, e) : print_too_small(&model, &row, e);
		fflush(stdout);
		model_headers_close(&model);
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- the command ---- */

/* Sizes on the card and in host memory; only the latter may be 0. */
static int parse_tiers(const char *text, uint64_t tier_bytes[2], struct err *e)
{
	const struct arg size = {.kind = ARG_SIZE_GB, .max = 1e6};
	uint64_t v[TRACE_LIST_MAX];
	int n = 0, rc = trace_list_parse(text, &size, "--tiers", v, &n, e);
	if (!rc && (n != 2 || !v[0]))
		rc = err_set(
			e, ERR_USAGE, "--tiers: \"%.60s\" found, expected two sizes in GB: 120,64", text);
	for (int i = 0; i < 2 && !rc; i++)
		tier_bytes[i] = v[i];
	return rc;
}

/* All but --table: the plan of one machine, printed. */
static int make_one(const struct plan_options *o, const char *trace, struct err *e)
{
	struct model_headers model = {.fd = -1};
	struct forecast f = {0};
	struct machine_plan p;
	struct machine m = {.cores = o->jobs,
		.cpu_gb_s = (double)o->cpu_gb_s,
		.sessions = o->sessions,
		.tier_bytes = {ENGINE_CACHE_AUTO, ENGINE_CACHE_AUTO},
		.memory = {0, o->ram_given ? machine_host_bytes((double)o->ram_gb) : memory_left()}};
	char card[128] = "";
	int rc = resolve_card(o, &m, card, sizeof card, e);
	if (rc || (o->tiers && (rc = parse_tiers(o->tiers, m.tier_bytes, e))))
		return rc;
	rc = o->model ? model_headers_open(&model, o->model, e)
				  : model_headers_make(&model, o->recipe, e);
	if (!rc && o->no_mtp)
		rc = model_headers_leave_mtp(&model, e);
	const uint32_t context =
		rc || o->context_given ? o->context : MIN(o->context, model.config.n_context);
	if (rc || (rc = resolve_drive(o, &model, &m, e)) ||
		(rc = machine_plan_memory(&model, &m, context, &p, e)) || (rc = check_rates(&m, e)))
		goto out;
	rc = machine_plan_forecast(&model, trace, &f, e);
	if (rc == ERR_INPUT && o->model && !o->trace)
		err_hint(e, "--trace FILE: a run of this model with --trace FILE writes one");
	if (rc || (rc = machine_plan_speed(&model, &m, &f, true, &p, e)))
		goto out;
	if (o->json)
		print_plan_json(o, &m, card, &p);
	else
		print_plan_text(o, &m, card, &p);
out:
	forecast_fini(&f);
	model_headers_close(&model);
	return rc;
}

int cmd_plan(int argc, char **argv, struct err *e)
{
	struct plan_options o = {.recipe = RECIPE_DEFAULT,
		.context = CONTEXT_DEFAULT,
		.sessions = 1,
		.disk_gb_s = DRIVE_DEFAULT,
		.jobs = workers_cores()};
	const struct arg machine[] = {
		{"card", 0, ARG_STRING, .string = &o.card, .value = "NAME",
			.help = "a card of the table: \"RTX 4090\"", .fallback = "the card of this machine"},
		{"vram-gb", 0, ARG_FLOAT, .f32 = &o.vram_gb, .given = &o.vram_given, .max = 1e4,
			.above_min = true, .value = "G", .help = "its memory as it is sold: 16, 24, 80 GiB",
			.fallback = "what is free on the card of this machine"},
		{"card-gb-s", 0, ARG_FLOAT, .f32 = &o.card_gb_s, .given = &o.card_gb_s_given, .max = 1e6,
			.above_min = true, .value = "G", .help = "bandwidth of its memory",
			.fallback = "from the table, by name or size"},
		{"pcie-gb-s", 0, ARG_FLOAT, .f32 = &o.pcie_gb_s, .given = &o.pcie_given, .max = 1e6,
			.above_min = true, .value = "G", .help = "bandwidth from host memory to the card",
			.fallback = "from the table"},
		{"cpu-gb-s", 0, ARG_FLOAT, .f32 = &o.cpu_gb_s, .given = &o.cpu_given, .max = 1e6,
			.value = "G",
			.help = "weights of experts that the processor computes beside the link (a run with "
					"experts on the processor says it; bench ops, limb_expert_ffn)",
			.fallback = "0, the card computes all"},
		{"ram-gb", 0, ARG_FLOAT, .f32 = &o.ram_gb, .given = &o.ram_given, .min = 2, .max = 1e6,
			.value = "G", .help = "host memory as it is sold, in GiB",
			.fallback = "what is free here"},
		{"disk-gb-s", 0, ARG_FLOAT, .f32 = &o.disk_gb_s, .given = &o.disk_given, .max = 1e6,
			.above_min = true, .value = "G", .help = "read bandwidth of the drive (bench read)",
			.fallback = "3.5"},
		{"measure", 0, ARG_FLAG, .flag = &o.measure,
			.help = "measure the drive by reading experts of the model that -m names"},
		{"jobs", 'j', ARG_UINT, .u32 = &o.jobs, .min = 1, .max = WORKERS_MAX, .value = "N",
			.given = &o.jobs_given, .help = "cores that convert without the card",
			.fallback = "all of this machine"},
	};
	const struct arg run[] = {
		{"recipe", 0, ARG_STRING, .string = &o.recipe, .value = "NAME",
			.words = convert_recipe_words(), .given = &o.recipe_given,
			.help = "types as in glmstream convert: " CONVERT_RECIPES, .fallback = RECIPE_DEFAULT},
		{"model", 'm', ARG_STRING, .string = &o.model, .file = ARG_READS, .value = "FILE",
			.help = "plan for this file in place of a recipe; only its headers are read"},
		{"ctx", 'c', ARG_UINT, .u32 = &o.context, .min = 1, .max = INT32_MAX, .value = "N",
			.given = &o.context_given, .help = "context in tokens, of each session",
			.fallback = "32768, at most the model's"},
		{"sessions", 0, ARG_UINT, .u32 = &o.sessions, .given = &o.sessions_given, .min = 1,
			.max = 64, .value = "N", .help = "plan for glmstream serve with so many sessions",
			.fallback = "1, as in a chat; serve has 4"},
		{"no-mtp", 0, ARG_FLAG, .flag = &o.no_mtp,
			.help = "leave out the MTP layer, as run and serve do with --draft off"},
		{"tiers", 0, ARG_STRING, .string = &o.tiers, .value = "C,R",
			.help = "GB of the expert cache on the card and in host memory, as --cache-gb and "
					"--ram-gb of a run",
			.fallback = "what memory leaves"},
		{"trace", 0, ARG_STRING, .string = &o.trace, .file = ARG_READS, .words = pocket_trace_words,
			.value = "FILE", .help = "routing to replay",
			.fallback = "the synthetic one that ships"},
	};
	const struct arg output[] = {
		{"table", 0, ARG_FLAG, .flag = &o.table,
			.help =
				"tokens per second of cards of 8 to 141 GB, four sizes of host memory and drives "
				"of 3, 7 and 14 GB/s, as Markdown; takes some seconds"},
		{"json", 0, ARG_FLAG, .flag = &o.json, .help = "print one JSON object"},
	};
	const struct arg_group groups[] = {{"Machine", machine, ARRAY_LEN(machine)},
		{"Model", run, ARRAY_LEN(run)}, {"Output", output, ARRAY_LEN(output)}};
	const struct args args = {.command = "glmstream plan",
		.usage = "[--vram-gb G --ram-gb G --disk-gb-s G] [options]",
		.about =
			"What a machine would make of GLM-5.2, before anything is downloaded: what fits, "
			"tokens per second, disk, time to convert, the commands. The memory plan is that of "
			"a run; speeds are modelled from a routing trace and from what ops reach on an "
			"H200. It is of one card: glmstream inspect --cards N --card NAME forecasts several.",
		.example = "glmstream plan --vram-gb 24 --ram-gb 64 --disk-gb-s 7 --recipe iq2-s\n"
				   "glmstream plan --card H200 --ram-gb 128 --recipe iq2 --json",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups)};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	const bool one_machine = o.card || o.vram_given || o.card_gb_s_given || o.pcie_given ||
							 o.cpu_given || o.ram_given || o.disk_given || o.measure ||
							 o.jobs_given;
	if (o.table && (o.json || one_machine || o.model || o.recipe_given || o.context_given ||
					   o.tiers || o.sessions_given || o.no_mtp))
		return err_set(e, ERR_USAGE,
			"--table lists machines and models of its own: only --trace goes with it");
	if (o.model && o.jobs_given)
		return err_set(e, ERR_USAGE, "--jobs: the file that -m names is converted already");
	if (o.model && o.recipe_given)
		return err_set(e, ERR_USAGE, "-m names a file and --recipe a conversion: one of them");
	if (o.measure && (!o.model || o.disk_given))
		return err_set(e, ERR_USAGE, "--measure needs -m FILE, and no --disk-gb-s");
	const char *trace = pocket_trace_or(o.trace, e);
	if (!trace)
		return e->code;
	return o.table ? print_table(trace, e) : make_one(&o, trace, e);
}
