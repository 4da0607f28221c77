/* SPDX-License-Identifier: MIT */
/* One table serves the command line and /set. */
#include "tools/options/run_opts.h"

#include "src/base/host/clock.h"
#include "src/base/num.h"
#include "tools/options/habits.h"
#include "tools/output/report.h"

#include <string.h>
#include <sys/random.h>

static const struct arg_word think_words[] = {
	{"max", THINK_MAX}, {"high", THINK_HIGH}, {"off", THINK_OFF}, {0}};

const char *think_mode_name(int mode)
{
	return think_words[mode].word;
}

bool think_mode_parse(const char *text, int *mode)
{
	for (const struct arg_word *w = think_words; w->word; w++)
		if (!strcmp(w->word, text)) {
			*mode = (int)w->value;
			return true;
		}
	return false;
}

static struct arg_group own_group(struct run_opts *o)
{
	const struct arg list[] = {
		{"prompt", 'p', ARG_STRING, .string = &o->prompt, .value = "TEXT",
			.help = "answer this and exit"},
		{"file", 'f', ARG_STRING, .string = &o->file, .file = ARG_READS, .value = "FILE",
			.help = "answer the text of a file and exit (- is stdin)"},
		{"system", 0, ARG_STRING, .string = &o->system, .value = "TEXT", .help = "system message"},
		{"think", 0, ARG_CHOICE, .i32 = &o->think, .given = &o->think_given, .words = think_words,
			.help = "how much the model reasons before it answers", .fallback = "max"},
		{"raw", 0, ARG_FLAG, .flag = &o->raw,
			.help = "no chat template: the prompt is rendered text, added tokens in it are tokens"},
		{"session", 0, ARG_STRING, .string = &o->session, .file = ARG_UPDATES, .value = "FILE",
			.help =
				"go on with the chat in this file, and keep it there after answers and at the end",
			.fallback = "none"},
		{"json-schema", 0, ARG_STRING, .string = &o->json_schema, .file = ARG_READS,
			.value = "FILE",
			.help = "every answer is JSON that is valid by the JSON schema in this file"},
		{"json", 0, ARG_FLAG, .flag = &o->json,
			.help = "statistics of each answer as a JSON object on stderr"},
	};
	_Static_assert(sizeof list <= sizeof o->args, "args");
	memcpy(o->args, list, sizeof list);
	return (struct arg_group){NULL, o->args, ARRAY_LEN(list)};
}

static struct arg_group sampling_group(struct run_opts *o)
{
	const struct arg list[] = {
		{"predict", 'n', ARG_UINT, .u32 = &o->max_new, .max = INT32_MAX, .value = "N",
			.help = "most new tokens of an answer", .fallback = "until the model stops"},
		{"temp", 0, ARG_FLOAT, .f32 = &o->temp, .max = 1000, .given = &o->temp_given, .value = "T",
			.help = "temperature; 0 always takes the likeliest token",
			.fallback = "the file's, else 1.0"},
		{"top-p", 0, ARG_FLOAT, .f32 = &o->top_p, .max = 1, .above_min = true,
			.given = &o->top_p_given, .value = "P",
			.help = "sample from the likeliest tokens that together have probability P",
			.fallback = "the file's, else 0.95"},
		{"top-k", 0, ARG_INT, .i32 = &o->top_k, .max = INT32_MAX, .value = "K",
			.help = "sample from the K likeliest tokens; 0: from all", .fallback = "0"},
		{"min-p", 0, ARG_FLOAT, .f32 = &o->min_p, .max = 1, .value = "P",
			.help = "drop tokens less likely than P times the likeliest", .fallback = "0"},
		{"repeat-penalty", 0, ARG_FLOAT, .f32 = &o->repeat_penalty, .max = 10, .above_min = true,
			.value = "R", .help = "make tokens of the prompt and the answer less likely; 1: off",
			.fallback = "1"},
		{"presence-penalty", 0, ARG_FLOAT, .f32 = &o->presence_penalty, .max = 2, .value = "X",
			.help = "take X off the logits of tokens that the answer has", .fallback = "0"},
		{"frequency-penalty", 0, ARG_FLOAT, .f32 = &o->frequency_penalty, .max = 2, .value = "X",
			.help = "take X off for each time that the answer has the token", .fallback = "0"},
		{"seed", 0, ARG_UINT64, .u64 = &o->seed, .given = &o->seed_given, .value = "N",
			.help = "start of the random numbers; same seed, same answer",
			.fallback = "a new one each time"},
	};
	_Static_assert(sizeof list <= sizeof o->sampling, "sampling");
	memcpy(o->sampling, list, sizeof list);
	return (struct arg_group){"Sampling", o->sampling, ARRAY_LEN(list)};
}

/* A word without an option: the model. What people give as a prompt or as a model's name elsewhere
 * gets a hint. */
static int take_named(struct run_opts *o, const char *word, struct err *e)
{
	if (habit_is_model(word) && o->common.model)
		return err_set(
			e, ERR_USAGE, "-m %.200s and %.200s both name a model", o->common.model, word);
	if (habit_is_model(word)) {
		o->common.model = word;
		return 0;
	}
	err_set(e, ERR_USAGE, "unexpected argument \"%.60s\"", word);
	return strchr(word, ' ')
			   ? err_hint(e, "a prompt is given with -p: glmstream -p '%.200s'", word)
			   : err_hint(e, "a model is a file: -m FILE.gguf; a prompt is given with -p TEXT");
}

int run_opts_parse(struct run_opts *o, int argc, char **argv, struct err *e)
{
	*o = (struct run_opts){.max_new = UINT32_MAX, .temp = 1, .top_p = 1, .repeat_penalty = 1};
	const struct arg_group groups[] = {own_group(o), sampling_group(o), draft_opts_group(&o->draft),
		prefix_opts_group(&o->prefix), profile_opts_group(&o->profile),
		sandbox_opts_group(&o->sandbox), common_opts_group(&o->common)};
	const char *named = NULL;
	const struct arg positional[] = {{.kind = ARG_STRING,
		.string = &named,
		.file = ARG_READS,
		.value = "MODEL.gguf",
		.help = "the same as -m MODEL.gguf"}};
	const struct args args = {
		.command = argc && !strcmp(argv[0], "run") ? "glmstream run" : "glmstream",
		.usage = "[-m MODEL] [-p TEXT | -f FILE] [options]",
		.see = "glmstream run --help",
		.about = "With -p or -f: one answer on stdout, then exit. Otherwise a chat: on a terminal "
				 "with line editing and commands (/help lists them); from a pipe every line is one "
				 "turn of the same conversation. Answers go to stdout, everything else to stderr.",
		.example = "glmstream -p 'Define river.' --think off --temp 0\nglmstream -m "
				   "glm-5.2-q2.gguf -c 32768",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
		.positional = positional,
		.n_positional = ARRAY_LEN(positional)};
	int rc = report_parse(&args, argc, argv, e);
	if (rc || (named && (rc = take_named(o, named, e))))
		return rc;
	if (o->prompt && o->file)
		return err_set(e, ERR_USAGE, "-p and -f exclude each other: both name the prompt");
	if (o->raw && (o->system || o->think_given))
		return err_set(e, ERR_USAGE,
			"--raw leaves no place for %s: there is no template to put it in",
			o->system ? "--system" : "--think");
	if (o->raw && o->json_schema)
		return err_set(e, ERR_USAGE, "--raw and --json-schema exclude each other");
	if ((rc = prefix_opts_check(&o->prefix, e)))
		return rc;
	o->common.no_mtp = o->draft.mode == DRAFT_OFF;
	if (!o->seed_given && getrandom(&o->seed, sizeof o->seed, 0) != sizeof o->seed)
		o->seed = clock_ns();
	if (!o->seed_given)
		o->seed >>= 33; /* short enough to be typed again */
	return 0;
}

void run_opts_defaults(struct run_opts *o, const struct model_config *c)
{
	if (!o->temp_given)
		o->temp = c->sampling_temperature;
	if (!o->top_p_given)
		o->top_p = c->sampling_top_p;
}

struct sampler_options run_opts_sampler(const struct run_opts *o, uint64_t turn)
{
	return (struct sampler_options){
		.temperature = o->temp,
		.top_p = o->top_p,
		.min_p = MIN(o->min_p, 0.9999999f), /* 1 means: the likeliest only */
		.top_k = o->top_k,
		.repetition = o->repeat_penalty,
		.presence = o->presence_penalty,
		.frequency = o->frequency_penalty,
		.seed = o->seed + turn,
	};
}

int run_opts_set(struct run_opts *o, const char *name, const char *value, struct err *e)
{
	const struct arg_group g = sampling_group(o);
	name += strspn(name, "-");
	for (size_t i = 0; i < g.n; i++) {
		const struct arg *a = &g.args[i];
		if (strcmp(a->name, name) && !(name[0] && name[0] == a->letter && !name[1]))
			continue;
		int rc = args_set(a, name, value, e);
		if (!rc && a->given)
			*a->given = true;
		return rc;
	}
	return err_set(e, ERR_USAGE,
		"/set knows no \"%.40s\"; it knows temp, top-p, top-k, min-p, repeat-penalty, "
		"presence-penalty, frequency-penalty, seed, n",
		name);
}

const char *run_opts_set_name(size_t i)
{
	static struct run_opts any;
	const struct arg_group g = sampling_group(&any);
	return i < g.n ? g.args[i].name : NULL;
}

void run_opts_show(const struct run_opts *o, struct buf *out)
{
	buf_printf(out, "temp %.6g, top-p %.6g, top-k %d, min-p %.6g, ", (double)o->temp,
		(double)o->top_p, o->top_k, (double)o->min_p);
	buf_printf(out, "repeat-penalty %.6g, presence-penalty %.6g, frequency-penalty %.6g, ",
		(double)o->repeat_penalty, (double)o->presence_penalty, (double)o->frequency_penalty);
	buf_printf(out, "seed %llu, n ", (unsigned long long)o->seed);
	if (o->max_new == UINT32_MAX)
		buf_puts(out, "until the model stops");
	else
		buf_printf(out, "%u", o->max_new);
}
