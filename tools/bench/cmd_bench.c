/* SPDX-License-Identifier: MIT */
/* Measures this machine and this program on it. Every figure is the median of several samples and
 * stands beside the limit that binds it, measured in the same run. */
#include "kernels/backend.h"
#include "src/base/args.h"
#include "src/base/host/clock.h"
#include "src/base/num.h"
#include "src/engine/draft/draft_mtp.h"
#include "src/ranks/ranks.h"
#include "tools/bench/bench.h"
#include "tools/commands/commands.h"
#include "tools/machine/bench_read.h"
#include "tools/machine/measure_peers.h"
#include "tools/options/common_opts.h"
#include "tools/options/pocket.h"
#include "tools/output/interrupt.h"
#include "tools/output/report.h"
#include "tools/trace/trace_simulate.h"

#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum part {
	PART_COPY = 1,
	PART_OPS = 2,
	PART_PREFILL = 4,
	PART_DECODE = 8,
	PART_READ = 16,
	PART_ALL = 31,
	PART_SESSION = 32,
	PARTS_WITH_MODEL = PART_PREFILL | PART_DECODE | PART_SESSION
};

static const struct arg_word parts[] = {{"read", PART_READ}, {"copy", PART_COPY}, {"ops", PART_OPS},
	{"prefill", PART_PREFILL}, {"decode", PART_DECODE}, {"session", PART_SESSION},
	{"all", PART_ALL}, {0}};

struct bench_opts {
	struct common_opts common;
	int parts;
	const char *only;
	const char *prompts;
	uint64_t sizes[TRACE_LIST_MAX]; /* [n_sizes] of --prompt */
	int n_sizes;
	const char *rows;
	uint64_t row_counts[TRACE_LIST_MAX]; /* [n_row_counts] of --rows */
	int n_row_counts;
	uint32_t peers[2], n_peers; /* bench copy: the cards */
	uint32_t n_fill, n_prompt, n_new, repeats;
	float seconds, most_seconds;
	bool csv, json, new_given, slice_given, seconds_given;
	struct bench_read_options read;
	uint32_t slice_kib, mb;
	const char *routing; /* NULL: the model's own */
	uint32_t confine;    /* 0: all experts */
	const char *accept;  /* NULL: no assumed drafts */
	int draft;           /* DRAFT_OFF: no drafts, else as bench_drafts_options.mode */
	float temperature;
	bool temperature_given;
	bool far;
};

static const struct arg_word draft_modes[] = {{"auto", DRAFT_AUTO}, {"off", DRAFT_OFF}, {0}};

static int threads_in_use(int wanted)
{
#ifdef _OPENMP
	if (wanted > 0)
		omp_set_num_threads(wanted);
	return omp_get_max_threads();
#else
	(void)wanted;
	return 1;
#endif
}

static int parse_accept(const struct bench_opts *o, struct bench_replay_options *r, struct err *e)
{
	const struct arg one = {.kind = ARG_FLOAT, .max = 1};
	uint64_t bits[TRACE_LIST_MAX];
	int rc = o->accept ? trace_list_parse(o->accept, &one, "--accept", bits, &r->n_accept, e) : 0;
	if (!rc && r->n_accept > BENCH_DRAFTS_MAX)
		rc = err_set(e, ERR_USAGE, "--accept: more than %d drafts", BENCH_DRAFTS_MAX);
	for (int i = 0; i < r->n_accept && !rc; i++)
		memcpy(&r->accept[i], &bits[i], sizeof r->accept[i]); /* the list holds floats */
	return rc;
}

/* ERR_USAGE under mpirun, unless the part opens one engine, once, on all ranks. */
static int check_ranks(const struct bench_opts *o, struct err *e)
{
	const bool once = (o->parts == PART_PREFILL && !o->common.cache_bytes) ||
					  (o->parts == PART_DECODE && !o->routing && !o->confine &&
						  !(o->draft && o->common.cache_bytes));
	if (ranks_here() && !once)
		return err_set(e, ERR_USAGE,
			"of bench mpirun can start only prefill without --cache-gb, and decode without "
			"--routing and --resident; with --draft also without --cache-gb");
	return 0;
}

static int run_parts(struct bench *b, const struct bench_opts *o, struct err *e)
{
	struct backend *backend = NULL;
	struct engine *g = NULL;
	char what[BENCH_BACKEND_MAX] = "CPU";
	int rc = 0;
	const bool replay = o->parts == PART_DECODE && (o->routing || o->confine);
	const bool streamed = o->parts == PART_PREFILL && o->common.cache_bytes;
	if (!replay && !streamed && !o->rows && !o->draft &&
		(o->parts & PART_PREFILL || o->parts & PART_DECODE)) {
		if (o->parts & PART_PREFILL)
			bench_measure_flops(b, &o->common);
		if ((rc = common_opts_open(&o->common, &g, e)))
			return rc;
		snprintf(what, sizeof what, "%s", engine_backend_name(g));
	}
	if (o->parts & PART_OPS) {
		const struct backend_options options = {.name = common_opts_backend(&o->common),
			.threads = o->common.threads,
			.exact_prompts = o->common.exact_prompts,
			.fast_prompts = o->common.fast_prompts};
		if ((rc = backend_open(&options, &backend, e)))
			goto out;
		snprintf(what, sizeof what, "%s", backend_describe(backend));
	}
	if (replay) {
		struct bench_replay_options r = {.routing = o->routing,
			.confine = o->confine,
			.n_fill = o->n_fill,
			.n_prompt = o->n_prompt,
			.n_new = o->n_new,
			.seconds = o->most_seconds,
			.far = o->far,
			.backend = what};
		if (!(rc = parse_accept(o, &r, e)))
			rc = bench_replay(b, &o->common, &r, e);
		goto done;
	}
	if (o->rows) {
		rc = bench_rows(b, &o->common, o->row_counts, o->n_row_counts, o->n_prompt, o->n_new,
			o->temperature, what, e);
		goto done;
	}
	if (o->draft) {
		const struct bench_drafts_options d = {.mode = o->draft,
			.questions = o->read.path,
			.n_new = o->n_new,
			.temperature = o->temperature};
		rc = bench_drafts(b, &o->common, &d, what, e);
		goto done;
	}
	if (streamed) {
		rc = bench_prefill_stream(b, &o->common, o->sizes, o->n_sizes, o->most_seconds, what, e);
		goto done;
	}
	bench_begin(b, what);
	if (o->parts == PART_SESSION) {
		rc = bench_session(b, &o->common, o->read.path, o->read.dir, o->n_prompt, e);
		goto done;
	}
	if (o->parts & PART_READ)
		rc = bench_read(b, &o->read, e);
	const bool on_cpu = (g && !strcmp(engine_backend_name(g), "cpu")) ||
						(backend && !strcmp(backend->ops->name, "cpu"));
	if (!rc && (o->parts & PART_COPY || on_cpu)) /* its limits are this processor's */
		rc = bench_copy(b, !(o->parts & PART_COPY), e);
	if (!rc && o->n_peers)
		rc = bench_peers(b, o->peers[0], o->peers[1], e);
	if (!rc && o->parts & PART_OPS)
		rc = bench_ops(b, backend, o->only, e);
	for (int i = 0; o->parts & PART_PREFILL && i < o->n_sizes && !rc; i++)
		rc = bench_prefill(b, g, (uint32_t)o->sizes[i], e);
	if (!rc && o->parts & PART_DECODE)
		rc = bench_decode(b, g, o->n_fill, o->n_prompt, o->n_new, e);
	if (!rc && o->parts & PART_DECODE && o->common.cache_bytes && !o->n_fill &&
		!ranks_here()) { /* engines of its own: this one's memory goes first */
		rc = common_opts_close(g, rc, e);
		g = NULL;
		if (!rc)
			rc = bench_stream(b, &o->common, o->n_prompt, o->n_new, e);
	}
done:
	if (!rc)
		bench_finish(b, what);
out:
	if (backend)
		backend->ops->close(backend);
	rc = common_opts_close(g, rc, e);
	return rc;
}

/* ERR_USAGE for an option that none of the parts reads. */
static int check_parts(const struct bench_opts *o, struct err *e)
{
	static const char read[] = "bench read", model[] = "bench prefill, decode and session",
					  ops[] = "bench ops, prefill, decode and session",
					  samples[] = "bench copy, ops, prefill and decode without --draft";
	const int computes = PARTS_WITH_MODEL | PART_OPS;
	const struct common_opts *c = &o->common;
	const int file = PART_READ | PART_SESSION | (o->draft ? PART_DECODE : 0);
	const int sampled = PART_COPY | PART_OPS | PART_PREFILL | (o->draft ? 0 : PART_DECODE);
	const struct {
		const char *name;
		bool given;
		int parts; /* that read it */
		const char *where;
	} options[] = {{"--gb", o->read.bytes, PART_READ, read},
		{"--slice-kb", o->slice_given, PART_READ, read},
		{"--depth", o->read.depth, PART_READ, read}, {"--no-fio", o->read.no_fio, PART_READ, read},
		{"--dir", o->read.dir, PART_READ | PART_SESSION, "bench read and session"},
		{"--file", o->read.path, file, "bench read, bench session and bench decode with --draft"},
		{"--seconds", o->seconds_given, sampled, samples}, {"--mb", o->mb, sampled, samples},
		{"--only", o->only, PART_OPS, "bench ops"},
		{"-n", o->new_given, PART_DECODE, "bench decode"},
		{"--prompt", o->prompts, PARTS_WITH_MODEL, model},
		{"--threads", c->threads, computes | PART_COPY,
			"bench copy, ops, prefill, decode and session"},
		{"--backend", c->backend, computes, ops},
		{"--exact-prompts", c->exact_prompts, computes, ops},
		{"--fast-prompts", c->fast_prompts, computes, ops},
		{"--model", c->model, PARTS_WITH_MODEL, model},
		{"--verify", c->verify, PARTS_WITH_MODEL, model},
		{"--ctx", c->context, PARTS_WITH_MODEL, model},
		{"--cache-gb", c->cache_given, PARTS_WITH_MODEL, model},
		{"--ram-gb", c->ram_bytes, PARTS_WITH_MODEL, model},
		{"--cpu-experts", c->cpu_experts, PARTS_WITH_MODEL, model},
		{"--kv-ram", c->kv_ram, PARTS_WITH_MODEL, model},
		{"--kv-type", c->kv_f8, PARTS_WITH_MODEL, model},
		{"--policy", c->policy_given, PARTS_WITH_MODEL, model},
		{"--lookahead", c->lookahead_given, PARTS_WITH_MODEL, model},
		{"--io", c->io_given, PARTS_WITH_MODEL, model},
		{"--io-depth", c->io_depth, PARTS_WITH_MODEL, model},
		{"--no-direct", c->no_direct, PARTS_WITH_MODEL, model},
		{"--replicas", c->replicas, PARTS_WITH_MODEL, model},
		{"--chunk", c->chunk, PARTS_WITH_MODEL, model},
		{"--trace", c->trace, PARTS_WITH_MODEL, model},
		{"--warm", c->warm, PARTS_WITH_MODEL, model},
		{"--force", c->force, PARTS_WITH_MODEL, model}};
	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		if (!options[i].given || o->parts & options[i].parts)
			continue;
		err_set(e, ERR_USAGE, "%s belongs to %s", options[i].name, options[i].where);
		if (c->model && o->parts == PART_READ)
			err_hint(e, "-f FILE names the file that bench read reads");
		return ERR_USAGE;
	}
	if (o->parts == PART_READ && o->read.path && o->read.dir)
		return err_set(e, ERR_USAGE, "--dir: with -f no file is made");
	if (o->parts == PART_SESSION && c->kv_f8)
		return err_set(e, ERR_USAGE,
			"bench session measures latents of 16 bits and of float32: not with --kv-type fp8");
	return 0;
}

static int parse_prompts(struct bench_opts *o, struct err *e)
{
	const struct arg one = {.kind = ARG_UINT64, .min = 1, .max = INT32_MAX};
	o->sizes[0] = o->n_prompt;
	o->n_sizes = 1;
	int rc =
		o->prompts ? trace_list_parse(o->prompts, &one, "--prompt", o->sizes, &o->n_sizes, e) : 0;
	if (!rc && o->n_sizes > 1 && o->parts != PART_PREFILL)
		rc = err_set(e, ERR_USAGE, "--prompt: only bench prefill takes a list");
	o->n_prompt = (uint32_t)o->sizes[0];
	return rc;
}

static int parse_rows(struct bench_opts *o, struct err *e)
{
	const struct arg one = {.kind = ARG_UINT64, .min = 1, .max = BENCH_ROWS_MAX};
	if (!o->rows)
		return 0;
	if (o->parts != PART_DECODE || o->routing || o->confine)
		return err_set(
			e, ERR_USAGE, "--rows belongs to bench decode without --routing and --resident");
	return trace_list_parse(o->rows, &one, "--rows", o->row_counts, &o->n_row_counts, e);
}

/* Of bench copy; the parts that open a model leave them to the engine. */
static int parse_cards(struct bench_opts *o, struct err *e)
{
	struct common_cards cards = {0};
	if (!o->common.cards)
		return 0;
	if (o->parts & ~(PARTS_WITH_MODEL | PART_COPY) || o->parts == PART_ALL)
		return err_set(e, ERR_USAGE,
			"--cards belongs to bench prefill, decode and session, which open a model, and to "
			"copy");
	int rc = o->parts == PART_COPY ? common_opts_cards(&o->common, &cards, e) : 0;
	if (rc || o->parts != PART_COPY)
		return rc;
	if (cards.n != 2)
		return err_set(e, ERR_USAGE, "--cards: bench copy takes two numbers, like 0,1");
	o->n_peers = 2;
	o->peers[0] = cards.card[0];
	o->peers[1] = cards.card[1];
	return 0;
}

static int check_draft(struct bench_opts *o, struct err *e)
{
	if (o->temperature_given && !o->draft && !o->rows)
		return err_set(e, ERR_USAGE, "--temp belongs to bench decode with --draft or --rows");
	if (!o->draft)
		return 0;
	if (o->parts != PART_DECODE || o->routing || o->confine || o->rows || o->prompts)
		return err_set(e, ERR_USAGE,
			"--draft belongs to bench decode without --routing, --resident, --rows and --prompt");
	if (o->common.cache_bytes == ENGINE_CACHE_AUTO || o->common.ram_bytes == ENGINE_CACHE_AUTO)
		return err_set(e, ERR_USAGE,
			"--draft compares two caches: --cache-gb and --ram-gb need the size of each, not auto");
	o->n_new = o->new_given ? o->n_new : 64;
	return 0;
}

static int check_replay(const struct bench_opts *o, struct err *e)
{
	if (o->n_fill && (o->parts != PART_DECODE || o->rows || o->draft))
		return err_set(e, ERR_USAGE, "--fill belongs to bench decode without --rows and --draft");
	if ((o->routing || o->confine) && o->parts != PART_DECODE)
		return err_set(e, ERR_USAGE, "--routing and --resident belong to bench decode");
	if ((o->accept && !o->routing && !o->confine) || (o->far && !o->accept))
		return err_set(e, ERR_USAGE,
			"--accept belongs to bench decode with --routing or --resident, --far to --accept");
	if (o->most_seconds > 0 && !o->routing && !o->confine &&
		!(o->parts == PART_PREFILL && o->common.cache_bytes))
		return err_set(e, ERR_USAGE,
			"--most-seconds belongs to bench decode with --routing or --resident and to bench "
			"prefill with --cache-gb");
	return 0;
}

int cmd_bench(int argc, char **argv, struct err *e)
{
	const uint64_t start_ns = clock_ns();
	struct bench_opts o = {
		.n_prompt = 256, .n_new = 32, .repeats = 5, .seconds = 0.1f, .slice_kib = 1024};
	const struct arg own[] = {
		{"repeats", 0, ARG_UINT, .u32 = &o.repeats, .min = 1, .max = BENCH_MAX_REPEATS,
			.value = "N", .help = "samples of each figure", .fallback = "5"},
		{"seconds", 0, ARG_FLOAT, .f32 = &o.seconds, .given = &o.seconds_given, .max = 3600,
			.value = "S", .help = "least length of a sample", .fallback = "0.1"},
		{"mb", 0, ARG_UINT, .u32 = &o.mb, .min = 1, .max = 1 << 20, .value = "N",
			.help = "MiB of each array whose bandwidth is measured",
			.fallback = "four last-level caches, at most 640"},
		{"only", 0, ARG_STRING, .string = &o.only, .value = "TEXT",
			.help = "ops whose shape, name or type holds this text: \"pocket\", \"expert_ffn\", "
					"\"glm-5.2 matmul q_a Q4_K\""},
		{"prompt", 'p', ARG_STRING, .string = &o.prompts, .value = "N",
			.help =
				"tokens of the prompt in prefill and decode; prefill takes a list (512,2048,8192)",
			.fallback = "256, with --routing 1"},
		{"fill", 0, ARG_UINT, .u32 = &o.n_fill, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "decode after N positions more, whose cache rows are random: what a long "
					"context costs, without computing it",
			.fallback = "none"},
		{NULL, 'n', ARG_UINT, .u32 = &o.n_new, .given = &o.new_given, .min = 1, .max = INT32_MAX,
			.value = "N", .help = "tokens decoded",
			.fallback = "32, with --routing 768; with --draft at most 64 an answer"},
		{"rows", 0, ARG_STRING, .string = &o.rows, .value = "LIST",
			.help = "decode: so many answers at once, 1 to 64 each (1,2,4,8)",
			.fallback = "one answer"},
		{"file", 'f', ARG_STRING, .string = &o.read.path, .file = ARG_READS, .value = "FILE",
			.help = "file that bench read reads, text that bench session computes, questions of "
					"--draft, one a line",
			.fallback = "random bytes made for it, in --dir; random tokens; words to define"},
		{"dir", 0, ARG_STRING, .string = &o.read.dir, .value = "DIR",
			.help = "where that file is made, or the session file", .fallback = "here"},
		{"gb", 0, ARG_SIZE_GB, .u64 = &o.read.bytes, .max = 1000, .above_min = true, .value = "G",
			.help = "read so much per sample", .fallback = "4, in bench all 1"},
		{"slice-kb", 0, ARG_UINT, .u32 = &o.slice_kib, .given = &o.slice_given, .min = 4,
			.max = 262144, .value = "K", .help = "KiB of one read, a multiple of 4",
			.fallback = "1024"},
		{"depth", 0, ARG_UINT, .u32 = &o.read.depth, .min = 1, .max = READER_DEPTH_MAX,
			.value = "N", .help = "queue depth: reads at a time",
			.fallback = "1, 4, 16, 32 and 64, one after the other"},
		{"routing", 0, ARG_STRING, .string = &o.routing, .file = ARG_READS,
			.words = pocket_trace_words, .value = "TRACE",
			.help = "decode uses the experts that this trace names, and its predictions for "
					"lookahead, in place of the router's choice; \"shipped\": the trace that comes "
					"with the program",
			.fallback = "the model's own routing"},
		{"resident", 0, ARG_UINT, .u32 = &o.confine, .min = 1, .max = CONFIG_MAX_EXPERTS,
			.value = "N",
			.help = "decode uses only the first N experts of each layer, loaded before the first "
					"token; if the cache holds them all, this is the time of computing alone"},
		{"draft", 0, ARG_INT, .i32 = &o.draft, .max = DRAFT_MAX, .words = draft_modes,
			.value = "N|auto|off",
			.help = "decode: answers to questions with up to N drafts a step, and the same answers "
					"without; the drafts are right as often as this model's are",
			.fallback = "off"},
		{"temp", 0, ARG_FLOAT, .f32 = &o.temperature, .given = &o.temperature_given, .max = 1000,
			.value = "T", .help = "temperature, also with --rows", .fallback = "0"},
		{"accept", 0, ARG_STRING, .string = &o.accept, .value = "LIST",
			.help = "decode with --routing or --resident: each step verifies one draft of the MTP "
					"layer for each of these chances that it is right if those before it are "
					"(0.72,0.60,0.50); drawn from a fixed seed",
			.fallback = "no drafts"},
		{"far", 0, ARG_FLAG, .flag = &o.far,
			.help = "with --accept: rows that are dropped use experts of tokens half a trace "
					"further, so that they read nothing for the next step",
			.fallback = "those of the next tokens"},
		{"most-seconds", 0, ARG_FLOAT, .f32 = &o.most_seconds, .max = 86400, .value = "S",
			.help = "decode with --routing or --resident, or prefill with --cache-gb, for at most "
					"so long and report what is there",
			.fallback = "until all is done"},
		{"no-fio", 0, ARG_FLAG, .flag = &o.read.no_fio,
			.help = "do not run fio beside our readers"},
		{"csv", 0, ARG_FLAG, .flag = &o.csv, .help = "comma-separated values"},
		{"json", 0, ARG_FLAG, .flag = &o.json, .help = "one JSON object after the last figure"},
	};
	const struct arg_group groups[] = {{NULL, own, ARRAY_LEN(own)}, common_opts_group(&o.common)};
	const struct arg positional = {.kind = ARG_CHOICE,
		.i32 = &o.parts,
		.words = parts,
		.value = "WHAT",
		.required = true,
		.given = &(bool){false}};
	const struct args args = {.command = "glmstream bench",
		.usage = "read|copy|ops|prefill|decode|session|all [options]",
		.about =
			"read: the disk through our readers, beside fio if it is installed. copy: memory "
			"bandwidth and multiply-adds of this machine's processor; with --cards 0,1 also copies "
			"and hand-overs between two cards, which may be the same. ops: every operation alone, "
			"at the shapes of the pocket model and of GLM-5.2. prefill, decode: a whole model; "
			"decode with --cache-gb also with lookahead 0, 1 and 2, against the time that "
			"computing alone or reading alone takes; with --routing one long answer of a single "
			"engine, from the command to the steady state. session: saving and reading a prompt of "
			"-p tokens against computing it. One line per figure: median, spread, share of the "
			"limit measured in the same run.",
		.example =
			"glmstream bench all\nglmstream bench ops --only 'glm-5.2 expert_ffn' --json\n"
			"glmstream bench decode -m MODEL.gguf --cache-gb 60 -n 128\n"
			"glmstream bench session -p 4096 -f TEXT\n"
			"glmstream bench decode --draft auto -t 1\n"
			"glmstream bench decode -m SYNTH.gguf -c 1048576 --fill 1000000 --resident 8\n"
			"glmstream bench decode -m SYNTH.gguf --cache-gb 60 --lookahead 1 --routing TRACE",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
		.positional = &positional,
		.n_positional = 1};
	char *help[] = {argv[0], (char[]){"--help"}, NULL};
	int rc = argc > 1 ? report_parse(&args, argc, argv, e) : report_parse(&args, 2, help, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (o.csv && o.json)
		return err_set(e, ERR_USAGE, "--csv and --json exclude each other");
	if (o.slice_kib % 4)
		return err_set(e, ERR_USAGE, "--slice-kb: %u is no multiple of 4", o.slice_kib);
	if ((rc = check_parts(&o, e)) || (rc = parse_prompts(&o, e)) || (rc = parse_cards(&o, e)) ||
		(rc = parse_rows(&o, e)) || (rc = check_draft(&o, e)) || (rc = check_replay(&o, e)))
		return rc;
	if (o.routing || o.confine) {
		o.n_prompt = o.prompts ? o.n_prompt : 1; /* the first token finds a cold cache */
		o.n_new = o.new_given ? o.n_new : 768;
	}
	if (o.routing && !(o.routing = pocket_trace_or(o.routing, e)))
		return e->code;
	if ((rc = check_ranks(&o, e)))
		return rc;
	if ((rc = common_opts_log(&o.common, e)))
		return rc;
	interrupt_catch(false);
	o.read.slice_bytes = (size_t)o.slice_kib << 10;
	if (!o.read.bytes)
		o.read.bytes = o.parts == PART_ALL ? 1000000000 : 4000000000; /* one part of many */
	struct bench b = {.format = o.csv    ? BENCH_CSV
								: o.json ? BENCH_JSON
										 : BENCH_TEXT,
		.repeats = (int)o.repeats,
		.start_ns = start_ns,
		.seconds = (double)o.seconds,
		.threads = threads_in_use(o.common.threads),
		.array_bytes = (size_t)o.mb << 20};
	rc = run_parts(&b, &o, e);
	bench_fini(&b);
	return rc;
}
