/* SPDX-License-Identifier: MIT */
/* glmstream: finds the command in the table, calls it, reports how it ended. Without a command:
 * run. */
#include "src/base/args.h"
#include "src/base/num.h"
#include "src/ranks/ranks.h"
#include "src/format/json_parse.h"
#include "tools/commands/commands.h"
#include "tools/commands/manual.h"
#include "tools/options/habits.h"
#include "tools/output/report.h"

#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const struct command commands[] = {
	{"run", cmd_run, "chat, or answer one prompt; the same as no command", NULL, true},
	{"inspect", cmd_inspect, "shape, types and sizes of a model file", NULL, false},
	{"plan", cmd_plan, "what a machine would make of GLM-5.2, before a download", NULL, false},
	{"convert", cmd_convert, "Hugging Face safetensors to GGUF", NULL, false},
	{"export", cmd_export, "GGUF to Hugging Face safetensors", NULL, false},
	{"imatrix", cmd_imatrix, "importance of columns over a text, for convert; merges files", NULL,
		false},
	{"verify", cmd_verify, "compare a model file with its check values, or make them", NULL, false},
	{"tokenize", cmd_tokenize, "text to token ids and back", NULL, false},
	{"render", cmd_render, "messages to the text or ids that the model sees", NULL, false},
	{"dump-logits", cmd_dump_logits, "write the model's logits to a file", NULL, true},
	{"compare", cmd_compare, "how far two logits files are apart", NULL, false},
	{"perplexity", cmd_perplexity, "nats per token over a text", NULL, true},
	{"trace", cmd_trace, "record, show and simulate expert traffic", "record show simulate", false},
	{"tune", cmd_tune, "measure this machine and find the best flags", NULL, false},
	{"bench", cmd_bench, "speed of memory, kernels and the whole model", NULL, true},
	{"synth", cmd_synth, "make a model of any shape with random weights", NULL, false},
#if HAVE_HTTP
	{"serve", cmd_serve, "HTTP server with OpenAI and Anthropic endpoints", NULL, true},
#endif
	{0}};

static void print_help(void)
{
	printf(
		"Usage: glmstream [-m MODEL.gguf] [options]          chat; lines of a pipe are user turns\n"
		"       glmstream [-m MODEL.gguf] -p TEXT [options]  one answer\n"
		"       glmstream MODEL.gguf ...                     the same as -m MODEL.gguf\n"
		"       glmstream COMMAND ...\n\n"
		"Runs GLM-5.2 on one graphics card by streaming its experts. Without -m the small model\n"
		"that ships with the program is used.\n\nCommands:\n");
	for (const struct command *c = commands; c->name; c++)
		printf("  %-12s %s\n", c->name, c->help);
	printf("\n  glmstream COMMAND --help   options of a command (of a chat: glmstream run --help)\n"
		   "  glmstream help clients     what to set in Claude Code, Codex, Open WebUI and others\n"
		   "  glmstream help proxy       serve with TLS, behind nginx or Caddy\n"
		   "  glmstream help --man | man -l -   the manual; help --bash, help --zsh: completion\n"
		   "  glmstream --version\n\n"
		   "Example:\n"
		   "  glmstream -p 'What is the capital of France?' --think off\n");
}

static const struct command *find_command(const char *name, struct err *e)
{
	const char *best = NULL;
	int best_distance = 1 << 30;
	for (const struct command *c = commands; c->name; c++) {
		if (!strcmp(c->name, name))
			return c;
		int d = args_distance(name, c->name);
		if (d >= 0 && d < best_distance) {
			best_distance = d;
			best = c->name;
		}
	}
	err_set(e, ERR_USAGE, "unknown command \"%.60s\"", name);
	const char *habit = habit_command(name);
	if (habit)
		err_hint(e, "%s", habit);
	else if (best)
		err_hint(e, "did you mean %s?", best);
	else
		err_hint(e, "glmstream --help lists the commands; a prompt is given with -p TEXT");
	return NULL;
}

/* `glmstream help ABOUT [PART]`: a text, or the options of a command. */
static int help_about(int argc, char **argv, const char *about, struct err *e)
{
	static const struct {
		const char *name;
		int (*print)(struct err *e);
	} texts[] = {{"--man", manual_print}, {"--bash", completion_print_bash},
		{"--zsh", completion_print_zsh}, {"clients", clients_print}, {"proxy", proxies_print}};
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (!strcmp(about, texts[i].name))
			return argc > 3 ? err_set(e, ERR_USAGE, "unexpected argument \"%.60s\"", argv[3])
							: texts[i].print(e);
	const struct command *c = find_command(about, e);
	const int words = c && c->parts ? 4 : 3;
	if (c && argc > words)
		return err_set(e, ERR_USAGE, "unexpected argument \"%.60s\"", argv[words]);
	char option[] = "--help", *help[] = {argv[2], argc > 3 ? argv[3] : option, option, NULL};
	return c ? c->run(argc > 3 ? 3 : 2, help, e) : ERR_USAGE;
}

static int dispatch(int argc, char **argv, struct err *e)
{
	const char *first = argc > 1 ? argv[1] : "";
	if (argc > 2 &&
		(!strcmp(first, "--version") || !strcmp(first, "--help") || !strcmp(first, "-h")))
		return err_set(e, ERR_USAGE, "unexpected argument \"%.60s\"", argv[2]);
	if (!strcmp(first, "--version")) {
		printf("glmstream %s\n", GLM_VERSION);
		return 0;
	}
	const char *about = !strcmp(first, "help") && argc > 2 ? argv[2] : "";
	if (!strcmp(first, "--help") || !strcmp(first, "-h") ||
		(!strcmp(first, "help") &&
			(!*about || !strcmp(about, "help") || !strcmp(about, "--help")))) {
		print_help();
		return 0;
	}
	if (argc < 2 || first[0] == '-')
		return cmd_run(argc, argv, e);
	if (*about)
		return help_about(argc, argv, about, e);
	struct err unknown = {0};
	const struct command *c = find_command(first, &unknown);
	if (!c && habit_is_model(first))
		return cmd_run(argc, argv, e);
	if (!c)
		*e = unknown;
	if (c && ranks_here() && !c->ranks)
		return err_set(
			e, ERR_USAGE, "%s works in one process, and mpirun has started several", c->name);
	return c ? c->run(argc - 1, argv + 1, e) : ERR_USAGE;
}

/* Of a standard stream that is closed the number would go to the first file that is opened, and
 * what is meant for the stream into that file. This one fails as the closed one does. */
static void keep_standard_numbers(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
	keep_standard_numbers();
	json_parse_setup();
	/* the line editor's idea of characters, UTF-8 in any case; numbers stay in the C locale */
	if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
		setlocale(LC_CTYPE, "C.UTF-8");
	/* a reader that went away and a file beyond the limit are write errors with a sentence */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	struct err e = {0};
	struct ranks *ranks;
	int rc = ranks_wanted() ? ranks_open(&ranks, &e) : 0;
	if (ranks_is_worker())
		(void)!freopen("/dev/null", "w", stdout);
	return report_end(rc ? rc : dispatch(argc, argv, &e), &e);
}
