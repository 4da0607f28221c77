/* SPDX-License-Identifier: MIT */
/* glmstream trace record|show|simulate. Recording is a run with --trace; simulating is in
 * trace_simulate.c. */
#include "cache/trace/trace_stats.h"
#include "src/base/args.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/commands/commands.h"
#include "tools/options/pocket.h"
#include "tools/output/json_out.h"
#include "tools/output/report.h"
#include "tools/trace/trace_simulate.h"

#include <stdlib.h>
#include <string.h>

static json_t *show_json(const struct trace *t, const struct trace_stats *s)
{
	static const char *const tiers[TRACE_N_TIERS] = {"cache", "ram", "disk", "unknown"};
	const struct trace_model *m = &t->model;
	char fingerprint[20];
	json_t *o = json_object(), *found = json_object(), *look = json_array(), *top = json_array();
	json_out_str(o, "model", m->name);
	if (m->fingerprint) {
		snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)m->fingerprint);
		json_out_str(o, "fingerprint", fingerprint);
	}
	json_out_uint(o, "layers", s->n_moe_layers);
	json_out_uint(o, "experts", m->n_experts);
	json_out_uint(o, "top_k", m->top_k);
	json_object_set_new(o, "synthetic", json_boolean(t->synthetic));
	json_object_set_new(o, "complete", json_boolean(!t->ends_early));
	json_out_uint(o, "steps", t->n_steps);
	json_out_uint(o, "tokens", t->n_tokens);
	json_out_uint(o, "accesses", t->n_accesses);
	json_out_uint(o, "prefill_tokens", s->prefill_rows);
	json_out_uint(o, "prefill_accesses", s->prefill_accesses);
	json_out_uint(o, "distinct_experts", s->n_distinct);
	json_out_uint(o, "all_experts", s->n_experts);
	for (int i = 0; i < TRACE_N_TIERS; i++)
		json_out_uint(found, tiers[i], s->tiers[i]);
	json_object_set_new(o, "found_in", found);
	json_out_real(o, "wait_ms_per_token", trace_ratio(s->wait_ns, t->n_tokens) / 1e6);
	json_out_real(o, "repeated_from_last_token", s->repeated);
	for (int d = 1; d <= TRACE_STATS_DISTANCES; d++) {
		if (!s->predictions[d])
			continue;
		json_t *x = json_object();
		json_out_uint(x, "distance", (uint64_t)d);
		json_out_real(x, "recall", s->recall[d]);
		json_out_real(x, "precision", s->precision[d]);
		json_array_append_new(look, x);
	}
	json_object_set_new(o, "lookahead", look);
	for (int i = 0; i < TRACE_STATS_TOPS; i++) {
		json_t *x = json_object();
		json_out_uint(x, "experts", (uint64_t)s->top_n[i]);
		json_out_real(x, "routing", s->top_part[i]);
		json_array_append_new(top, x);
	}
	json_object_set_new(o, "hottest", top);
	return o;
}

static void show_text(const char *path, const struct trace *t, const struct trace_stats *s)
{
	const struct trace_model *m = &t->model;
	uint64_t least = UINT64_MAX, most = 0;
	for (uint32_t l = 0; l < m->n_layers; l++)
		if (m->expert_bytes[l]) {
			least = MIN(least, m->expert_bytes[l]);
			most = MAX(most, m->expert_bytes[l]);
		}
	printf("%s: %s\n", ERR_PLAIN(path), m->name[0] ? m->name : "of a model without a name");
	if (m->fingerprint)
		printf("  fingerprint        %016llx\n", (unsigned long long)m->fingerprint);
	printf("  shape              %llu layers with experts%s, top %u of %u\n",
		(unsigned long long)s->n_moe_layers,
		s->n_used_layers + 1 == s->n_moe_layers ? ", one of them not used: an MTP layer" : "",
		m->top_k, m->n_experts);
	if (t->bytes_known && least == most)
		printf("  expert             %llu bytes\n", (unsigned long long)most);
	else if (t->bytes_known)
		printf("  expert             %llu to %llu bytes\n", (unsigned long long)least,
			(unsigned long long)most);
	printf("  decode             %llu tokens, %llu accesses\n", (unsigned long long)t->n_tokens,
		(unsigned long long)t->n_accesses);
	if (s->prefill_steps)
		printf("  prefill            %llu tokens, %llu accesses\n",
			(unsigned long long)s->prefill_rows, (unsigned long long)s->prefill_accesses);
	printf("  experts used       %llu of %llu\n", (unsigned long long)s->n_distinct,
		(unsigned long long)s->n_experts);
	uint64_t known = s->tiers[TRACE_VRAM] + s->tiers[TRACE_RAM] + s->tiers[TRACE_DISK];
	if (known) {
		printf("  found in           cache %.2f %%, RAM %.2f %%, disk %.2f %%\n",
			100 * trace_ratio(s->tiers[TRACE_VRAM], known),
			100 * trace_ratio(s->tiers[TRACE_RAM], known),
			100 * trace_ratio(s->tiers[TRACE_DISK], known));
		printf(
			"  waited             %.3f ms a token\n", trace_ratio(s->wait_ns, t->n_tokens) / 1e6);
	}
	printf("  repeated           %.1f %% of the expert ids were those of the token before\n",
		100 * s->repeated);
	printf("  hottest experts    ");
	for (int i = 0; i < TRACE_STATS_TOPS; i++)
		printf("%s%d: %.1f %%", i ? ", " : "", s->top_n[i], 100 * s->top_part[i]);
	printf(" of a layer's routing\n");
	for (int d = 1; d <= TRACE_STATS_DISTANCES; d++)
		if (s->predictions[d])
			printf("  lookahead +%d       recall %.1f %%, precision %.1f %%\n", d,
				100 * s->recall[d], 100 * s->precision[d]);
}

static int show(int argc, char **argv, struct err *e)
{
	const char *path = "";
	bool json = false;
	const struct arg options[] = {
		{"json", 0, ARG_FLAG, .flag = &json, .help = "print one JSON object"},
	};
	const struct arg_group group = {NULL, options, ARRAY_LEN(options)};
	const struct arg positional[] = {{.kind = ARG_STRING,
		.string = &path,
		.file = ARG_READS,
		.words = pocket_trace_words,
		.value = "FILE",
		.required = true}};
	const struct args args = {.command = "glmstream trace show",
		.usage = "FILE [--json]",
		.about =
			"Says what a trace holds: model, tokens, where experts were found, how long "
			"layers waited, how concentrated and how repetitive the routing is, how good the "
			"lookahead's predictions were. FILE \"shipped\": the synthetic trace of GLM-5.2 that "
			"comes with the program.",
		.example = "glmstream trace show run.trace",
		.groups = &group,
		.n_groups = 1,
		.positional = positional,
		.n_positional = 1};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	struct trace t = {0};
	struct trace_stats s;
	if (!(path = pocket_trace_or(path, e)))
		return e->code;
	rc = trace_load(path, &t, e);
	if (!rc)
		rc = trace_stats_collect(&t, &s, e);
	if (!rc && json)
		json_out_line(stdout, show_json(&t, &s));
	else if (!rc)
		show_text(path, &t, &s);
	trace_fini(&t);
	return rc;
}

/* `trace record FILE ...` is `run --trace FILE ...`. */
static int record(int argc, char **argv, struct err *e)
{
	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
		char *help[] = {"run", "--help", NULL};
		if (!report_describing())
			printf("Usage: glmstream trace record FILE [options of run]\n\nThe same as glmstream "
				   "run --trace FILE ...\n\nExample:\n  glmstream trace record run.trace -p "
				   "'Define river.'\n\n");
		return cmd_run(2, help, e);
	}
	if (argc < 2 || argv[1][0] == '-') {
		err_set(e, ERR_USAGE, "trace record: the file to write is missing");
		return err_hint(e, "glmstream trace record FILE -m MODEL -p TEXT");
	}
	for (int i = 2; i < argc; i++)
		if (!strcmp(argv[i], "--trace") || !strncmp(argv[i], "--trace=", 8))
			return err_set(e, ERR_USAGE,
				"trace record: \"%.200s\" is the trace already, --trace names another", argv[1]);
	char **args = NEW_ARRAY(char *, (size_t)argc + 2);
	args[0] = "run";
	args[1] = "--trace";
	for (int i = 1; i < argc; i++)
		args[i + 1] = argv[i];
	int rc = cmd_run(argc + 1, args, e);
	free(args);
	return rc;
}

int cmd_trace(int argc, char **argv, struct err *e)
{
	static const struct {
		const char *name, *help;
		int (*run)(int argc, char **argv, struct err *e);
	} parts[] = {
		{"record", "run a model and write down which experts it used", record},
		{"show", "what a trace holds", show},
		{"simulate", "replay a trace against caches of other sizes and policies", trace_simulate},
	};
	const char *name = argc > 1 ? argv[1] : "";
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (!strcmp(parts[i].name, name))
			return parts[i].run(argc - 1, argv + 1, e);
	if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
		printf("Usage: glmstream trace record|show|simulate FILE [options]\n\n");
		for (size_t i = 0; i < ARRAY_LEN(parts); i++)
			printf("  %-10s %s\n", parts[i].name, parts[i].help);
		printf("\nExample:\n  glmstream trace simulate run.trace --cache-gb 40,80,120 --policy all "
			   "--svg hits.svg\n");
		return 0;
	}
	if (name[0])
		err_set(e, ERR_USAGE, "trace: unknown part \"%.60s\"", name);
	else
		err_set(e, ERR_USAGE, "trace: what should be done is missing");
	return err_hint(e, "glmstream trace record, show or simulate");
}
