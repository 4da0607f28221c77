/* SPDX-License-Identifier: MIT */
/* The tables come from the commands themselves: each is run with --help while report_describe makes
 * report_parse hand its table over instead of printing it. */
#include "tools/commands/manual.h"

#include "src/base/num.h"
#include "tools/chat/cmd_chat.h"
#include "tools/options/common_opts.h"
#include "tools/output/report.h"

#include <stdio.h>
#include <string.h>

/* ---- visiting ---- */

struct visit {
	const struct manual_visitor *v;
	const struct command *c;
	const char *name;
	bool met;
};

static void on_table(void *user, const struct args *a)
{
	struct visit *visit = user;
	visit->met = true;
	visit->v->each(visit->v->user, visit->name, visit->c, a);
}

static int visit_one(struct visit *visit, const char *part, struct err *e)
{
	char name[64], part_copy[32], help[] = "--help";
	snprintf(name, sizeof name, "%s%s%s", visit->c->name, *part ? " " : "", part);
	snprintf(part_copy, sizeof part_copy, "%s", part);
	char own[32];
	snprintf(own, sizeof own, "%s", visit->c->name);
	char *argv[] = {own, *part ? part_copy : help, help, NULL};
	int argc = *part ? 3 : 2;
	argv[argc] = NULL;
	visit->name = name;
	visit->met = false;
	report_describe(on_table, visit);
	int rc = visit->c->run(argc, argv, e);
	report_describe(NULL, NULL);
	if (!rc && !visit->met)
		rc = err_set(e, ERR_RUN, "%s has no table of options", name);
	return rc;
}

int manual_visit(const struct manual_visitor *v, struct err *e)
{
	for (const struct command *c = commands; c->name; c++) {
		struct visit visit = {.v = v, .c = c};
		const char *part = c->parts ? c->parts : "";
		do {
			char word[32];
			size_t len = strcspn(part, " ");
			snprintf(word, sizeof word, "%.*s", (int)MIN(len, sizeof word - 1), part);
			part += len + (part[len] == ' ');
			int rc = visit_one(&visit, word, e);
			if (rc)
				return rc;
		} while (*part);
	}
	return 0;
}

/* ---- the manual page ---- */

void manual_put_text(const char *text)
{
	bool at_line = true;
	for (const char *p = text; *p; p++) {
		if (at_line && (*p == '.' || *p == '\''))
			fputs("\\&", stdout);
		at_line = *p == '\n';
		if (*p == '\\')
			fputs("\\e", stdout);
		else if (*p == '-')
			fputs("\\-", stdout);
		else
			putchar(*p);
	}
}

void manual_print_wrapped(const char *text)
{
	size_t column = 0;
	while (*text) {
		size_t n = strcspn(text, " ");
		if (column && column + 1 + n > 80) {
			putchar('\n');
			column = 0;
		}
		printf("%s%.*s", column ? " " : "", (int)n, text);
		column += n + (column > 0);
		text += n + strspn(text + n, " ");
	}
	putchar('\n');
}

void manual_print_indented(const char *lines)
{
	while (*lines) {
		size_t n = strcspn(lines, "\n");
		printf("    %.*s\n", (int)n, lines);
		lines += n + 1;
	}
}

static void put_option(const struct arg *a)
{
	printf(".TP\n");
	if (a->letter)
		printf("\\fB\\-%c\\fR%s", a->letter, a->name ? ", " : "");
	if (a->name) {
		fputs("\\fB", stdout);
		manual_put_text("--");
		manual_put_text(a->name);
		fputs("\\fR", stdout);
	}
	if (a->kind == ARG_CHOICE && !a->value) {
		for (const struct arg_word *w = a->words; w->word; w++) {
			fputs(w == a->words ? " " : "|", stdout);
			manual_put_text(w->word);
		}
	} else if (a->kind != ARG_FLAG) {
		fputs(" \\fI", stdout);
		manual_put_text(a->value ? a->value : "N");
		fputs("\\fR", stdout);
	}
	putchar('\n');
	manual_put_text(a->help);
	if (a->fallback) {
		fputs(" (default: ", stdout);
		manual_put_text(a->fallback);
		putchar(')');
	}
	fputs(".\n", stdout);
}

static void put_example(const char *text)
{
	fputs(".PP\n.EX\n", stdout);
	manual_put_text(text);
	fputs("\n.EE\n", stdout);
}

/* The group that most commands share is described once. */
static bool is_common(const struct arg_group *g)
{
	return g->title && !strcmp(g->title, COMMON_OPTS_TITLE);
}

static void put_groups(const struct args *a, bool common)
{
	for (size_t g = 0; g < a->n_groups; g++) {
		if (is_common(&a->groups[g]) != common)
			continue;
		for (size_t i = 0; i < a->groups[g].n; i++)
			if (a->groups[g].args[i].help)
				put_option(&a->groups[g].args[i]);
	}
}

static void put_command(void *user, const char *name, const struct command *c, const struct args *a)
{
	(void)user;
	fputs(".SS ", stdout);
	manual_put_text(name);
	putchar('\n');
	if (!strcmp(name, "trace record")) {
		manual_put_text("The same as glmstream run --trace FILE, with the options of run.\n");
		put_example("glmstream trace record run.trace -p 'Define river.'");
		return;
	}
	fputs(".B ", stdout);
	manual_put_text(a->command);
	fputs("\n", stdout);
	manual_put_text(a->usage ? a->usage : "");
	fputs("\n.PP\n", stdout);
	manual_put_text(a->about ? a->about : c->help);
	putchar('\n');
	put_groups(a, false);
	for (size_t g = 0; g < a->n_groups; g++)
		if (is_common(&a->groups[g]))
			fputs(".PP\nAnd the common options that make sense here.\n", stdout);
	if (a->example)
		put_example(a->example);
}

/* Of the first command that has them all: run. */
static void put_common(void *user, const char *name, const struct command *c, const struct args *a)
{
	(void)user;
	(void)c;
	if (!strcmp(name, "run"))
		put_groups(a, true);
}

static const char head[] =
	".TH GLMSTREAM 1 \"\" \"glmstream " GLM_VERSION "\" \"User Commands\"\n"
	".SH NAME\nglmstream \\- run GLM\\-5.2 on one graphics card by streaming its experts\n"
	".SH SYNOPSIS\n"
	".B glmstream\n[\\fB\\-m\\fR \\fIMODEL.gguf\\fR] [\\fIoptions\\fR]\n.br\n"
	".B glmstream\n[\\fB\\-m\\fR \\fIMODEL.gguf\\fR] \\fB\\-p\\fR \\fITEXT\\fR "
	"[\\fIoptions\\fR]\n.br\n"
	".B glmstream\n\\fICOMMAND\\fR ...\n"
	".SH DESCRIPTION\n"
	"Without a command: a chat on a terminal; one answer with \\fB\\-p\\fR or \\fB\\-f\\fR; lines "
	"of a pipe are turns of one conversation. Answers go to standard output, everything else to "
	"standard error. Without \\fB\\-m\\fR the small model that ships with the program is used. "
	"Every command prints its options with \\fB\\-\\-help\\fR. Sizes are in GB of 10^9 bytes, "
	"decimals allowed.\n"
	".SH COMMANDS\n";

static void put_chat(void)
{
	const char *text[3];
	fputs(".SH IN THE CHAT\n"
		  "Ctrl+C stops an answer and keeps the chat, Ctrl+D leaves. A backslash at the end of a "
		  "line continues it on the next; several pasted lines are one message.\n",
		stdout);
	for (size_t i = 0; chat_command(i, text); i++) {
		printf(".TP\n\\fB");
		manual_put_text(text[0]);
		fputs("\\fR", stdout);
		if (*text[1]) {
			fputs(" \\fI", stdout);
			manual_put_text(text[1]);
			fputs("\\fR", stdout);
		}
		putchar('\n');
		manual_put_text(text[2]);
		fputs(".\n", stdout);
	}
}

/* What no single option says. */
static const char topics[] =
	".SH MODELS\n"
	"GGUF files with llama.cpp's tensor and key names of \\fBglm\\-dsa\\fR, from \\fBconvert\\fR "
	"or other programs.\n"
	"Of a split file the first part is named.\n"
	"A folder with a Hugging Face checkpoint (\\fB\\-m\\fR \\fIGLM\\-5.2\\-FP8/\\fR) runs as it "
	"is: BF16, F16, F32,\n"
	"or FP8 with block scales. Experts are read from its shards. On the CPU logits have the bits "
	"of the GGUF\n"
	"that \\fBconvert\\fR makes of it with recipe \\fBbf16\\fR, of FP8 with \\fBf32\\fR. The "
	"folder "
	"is\n"
	"a reference for \\fBcompare\\fR and \\fBperplexity\\fR. "
	"\\fBverify \\-\\-write\\fR keeps check\n"
	"values in the folder, in model.safetensors.xxh3.\n"
	"Recipes \\fBiq2\\fR and \\fBq2\\fR of \\fBconvert\\fR keep 19.4 GB of GLM\\-5.2 on the card,\n"
	"\\fBiq2\\-s\\fR and \\fBq2\\-s\\fR 10.8 GB: for cards of 16 GB (contexts of 8,192) and 24 GB\n"
	"(32,768), \\fBiq2\\-t\\fR 7.9 GB: for cards of 12 GB. Cards of 8 GB are too small for "
	"GLM\\-5.2.\n"
	"\\fBplan\\fR says before a\n"
	"download what a machine would make of each, and which card a refused one needs.\n"
	"Weights may have any type that llama.cpp's \\fBllama\\-quantize\\fR writes. On a card one\n"
	"general kernel computes those of type Q4_1, Q5_0, Q5_1, MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0 and\n"
	"Q2_0; each of the other types has kernels of its own.\n"
	"\\fBllama\\-quantize\\fR takes the f32 and bf16 files of \\fBconvert\\fR. Of a file that is\n"
	"aligned to more than 32 bytes it makes one that contradicts itself; that opens here with a\n"
	"warning.\n"
	".PP\n"
	"\\fBimatrix\\fR runs a text through a model and writes how strongly each column of each "
	"matrix\n"
	"is driven: sums of squares by tensor and expert, which \\fBconvert \\-\\-imatrix\\fR and "
	"\\fBllama\\-quantize\\fR\n"
	"weigh errors by. On one backend the bytes do not depend on the cache, on \\fB\\-\\-chunk\\fR "
	"or on "
	"interruptions. With\n"
	"\\fB\\-\\-cache\\-gb\\fR experts are streamed. A long \\fB\\-c\\fR, and a "
	"\\fB\\-\\-chunk\\fR as large, read the experts\n"
	"less often. The sums take 12 bytes for each column of each expert, 1.9 GB for GLM\\-5.2. "
	"Embedding and MTP layer are not observed. The file holds plain sums. \\fBconvert\\fR mixes\n"
	"the columns of a routed expert with those of all experts of its layer, as 64 more tokens\n"
	"of its own strength, so that an expert which the text hardly reached is not judged by a few\n"
	"tokens. The 64 was measured on the pocket model alone, of 32 experts a layer. The prior "
	"needs counts by expert, which files in the older format (.dat) lack.\n"
	".PP\n"
	"\\fBconvert \\-\\-feedback\\fR quantises routed experts with error feedback: what "
	"rounding a column\n"
	"has got wrong is made up for by the columns behind it, within blocks of 256 columns, as far "
	"as\n"
	"the inputs of the two go together. How far, \\fBimatrix \\-\\-moments\\fR collects: for the "
	"input of a\n"
	"layer's experts, and for down of each expert (20 GB in the file for GLM\\-5.2, 41 GB of "
	"memory\n"
	"while it collects). After n tokens these correlations count by n / (n + 256). Without them "
	"the\n"
	"correlations of the expert's own columns stand in, times 0.3. The size of the file stays the "
	"same,\n"
	"and so do its bytes for any \\fB\\-j\\fR. A block whose correlations are not positive "
	"definite, or\n"
	"that has none, is quantised without error feedback; the end says how many these are. It was "
	"measured on the pocket model alone, whose rows are\n"
	"one block of 256 columns long.\n"
	".PP\n"
	"\\fBconvert \\-\\-target\\-gb\\fR \\fIG\\fR chooses the types itself, so that the output, all "
	"parts together, takes\n"
	"at most G * 10^9 bytes. It quantises 64 rows of each matrix in each type from IQ2_XXS (Q3_K "
	"for\n"
	"matrices other than routed experts) to Q8_0 and BF16, and weighs the relative squared errors "
	"by\n"
	"\\fB\\-\\-imatrix\\fR, if given, and by what errors in a matrix of this kind cost in KL "
	"divergence. The\n"
	"bytes go to where they save most of that. What they cost was measured on the pocket model "
	"alone.\n"
	"Gate and up of a layer's experts get one type, and so do q_a and q_b of its attention. "
	"Indexers\n"
	"stay Q8_0, norms and routers F32, and \\fB\\-\\-types\\fR keeps its say. The lines "
	"\\fBmix\\fR "
	"of the plan\n"
	"show how many layers got which type. The same source, importance and target give the same "
	"types.\n"
	".PP\n"
	"\\fBconvert\\fR and \\fBsynth\\fR write check values into the file: the XXH3 of each matrix "
	"of an\n"
	"expert and of each other tensor. For files of other programs\n"
	"\\fBverify\\fR \\fIMODEL\\fR \\fB\\-\\-write\\fR keeps them beside it, in "
	"\\fIMODEL.gguf.xxh3\\fR, which belongs to that\n"
	"file alone. They find what a drive or a copy has changed; they are no signature.\n"
	"By default a run compares each expert when it is first read (where the file is mapped: first\n"
	"used), and all other weights when they are loaded. What is wrong is read again, past the "
	"page\n"
	"cache; if it is wrong again, the error names it, and the answer ends. \\fB\\-\\-verify "
	"always\\fR\n"
	"compares each time an expert is read from a drive. A run says whether bytes are verified, "
	"and\n"
	"\\fB\\-\\-json\\fR, /stats and /metrics count experts compared, read again and wrong.\n"
	".PP\n"
	"\\fBexport\\fR goes the way back: a folder that transformers loads, with config.json,\n"
	"generation_config.json, tokenizer, chat template, index and shards of at most 5 GB, the MTP\n"
	"layer included. What was BF16 or F32 keeps every bit, so that \\fBconvert\\fR makes the same "
	"file\n"
	"of it; packed types are dequantised. config.json is made from the keys of the file; values "
	"that\n"
	"no GGUF holds are GLM\\-5.2's or left out (transformers_version, bos_token_id). What is\n"
	"read is compared with the check values of the file. The folder has to be new or empty, or one "
	"whose\n"
	"export was interrupted: the same command then goes on with the shards that were not complete, "
	"and\n"
	"what is there has neither config.json nor an index before all shards are.\n"
	".PP\n"
	"Numbers do not depend on storage: for one backend the logits are the same bits for every "
	"cache\n"
	"size, tier, policy and reader.\n"
	".PP\n"
	"\\fB\\-\\-exact\\-prompts\\fR makes prompts on a card more exact. By default steps of more "
	"than 64 rows,\n"
	"which are those of prompts, round activations and weights to 11 bits, in attention also "
	"queries.\n"
	"With the option activations have 22 bits and are multiplied in two passes: a prompt takes "
	"two to\n"
	"three times as long. The default is off. Steps of up to 64 rows, which write answers, compute "
	"the same with and\n"
	"without it, but read the caches that the prompt left, so an answer may differ. Within each "
	"setting\n"
	"the logits are the same bits for every cache size, tier, policy, reader and every\n"
	"\\fB\\-\\-chunk\\fR from 129 on. The CPU ignores the option. "
	"Use it to\n"
	"compare with a reference (\\fBcompare\\fR, \\fBperplexity\\fR). A session file of the other "
	"setting\n"
	"loads with a warning; prompts that \\fB\\-\\-session\\-dir\\fR keeps serve one setting only.\n"
	".PP\n"
	"\\fB\\-\\-fast\\-prompts\\fR makes prompts on the CPU faster, where it has AMX (Intel Xeon "
	"since Sapphire\n"
	"Rapids). Steps of more than 64 rows then round what they multiply with matrices of the types "
	"Q8_0,\n"
	"Q6_K, Q4_K, Q3_K, Q2_K, IQ2_XS and IQ2_XXS to 16 bits with a scale for 256 values. Matrices "
	"of\n"
	"other types, and attention, stay in float32. The default is off. What is said above of "
	"smaller steps,\n"
	"equal bits and session files holds here too.\n"
	".SH MEMORY\n"
	"What every token needs stays on the card. The routed experts stay in the file and pass "
	"through\n"
	"a cache of two tiers. The first (\\fB\\-\\-cache\\-gb\\fR) is memory of the card, the second\n"
	"(\\fB\\-\\-ram\\-gb\\fR) pinned host memory. On the CPU backend both are host memory.\n"
	"The second tier grows while the program runs. Where the system refuses to pin more of it, a\n"
	"warning says so and the program goes on with what it has; \\fB\\-\\-json\\fR, /stats and\n"
	"/metrics have the rest as ram_refused_bytes.\n"
	"The caches of the context, 97 KB a token of GLM\\-5.2, lie on the card. With\n"
	"\\fB\\-\\-kv\\-ram on\\fR their latents (91 KB) lie in pinned host memory; the card keeps\n"
	"the index keys, and before a layer's attention it fetches the 2,048 positions that the\n"
	"layer reads. The answers are the same. \\fBauto\\fR, the default, does so where a\n"
	"\\fB\\-c\\fR above 131072 (of all sessions together) does not fit the card.\n"
	"\\fB\\-c 1048576\\fR then takes 7.1 GB of the card and 95 of the host.\n"
	"\\fB\\-\\-kv\\-type fp8\\fR keeps latents in 656 bytes in place of 1,152: in FP8 (E4M3),\n"
	"scaled by blocks of 128 values, and the rotated part in 16 bits. Answers differ a little\n"
	"from those of \\fBf16\\fR, and are the same wherever the latents lie. A session file holds\n"
	"one of the types.\n"
	"The token embedding stays in the file: a row of it goes to the card with each token.\n"
	"The first tier holds a quarter of a token's experts at least (1.5 GB).\n"
	".PP\n"
	"With \\fB\\-\\-cards 0,1\\fR the layers lie on several cards: each has consecutive layers, a "
	"stage,\n"
	"with a cache of its own. One answer passes through them in turn. Of several answers the rows "
	"are\n"
	"cut into micro-batches, as many as there are stages, which follow each other: all stages\n"
	"compute, each other answers. The chunks of a long prompt follow each other in the same way.\n"
	"\\fBbench decode \\-\\-rows\\fR prints for what share of the time,\n"
	"and the time of each stage; with \\fB\\-\\-routing\\fR also alone, without misses.\n"
	"The cuts balance the bytes that a stage holds, in relation to its card's memory, and those "
	"that a\n"
	"token reads of it, in relation to the card's bandwidth: cards may be unlike. A line for each\n"
	"stage says what lies where, and its part of a token's time. On the CPU backend \\fB\\-t\\fR "
	"holds for each stage.\n"
	"\\fB\\-\\-cache\\-gb\\fR with a number holds for each card, \\fB\\-\\-ram\\-gb\\fR "
	"for the host.\n"
	"Rows go from card to card directly where the cards reach each other's memory, else through "
	"the\n"
	"host's; the program waits for neither. The answers are those of one card of that kind, bit by "
	"bit. A card may be named twice: its stages compute\n"
	"one after the other. The CPU backend has card 0 only, and its stages compute at the same "
	"time.\n"
	".PP\n"
	"\\fB\\-\\-cache\\-gb auto\\fR takes what is left of the card less 2 GB. Without the option "
	"all\n"
	"experts go to the card, if they fit there.\n"
	".PP\n"
	"\\fB\\-\\-ram\\-gb auto\\fR takes what the other experts need, and a sixth of the first tier "
	"for\n"
	"copies of promoted experts, which can then be demoted without copying. It takes at most what\n"
	"the host has less 8 GB, or less a tenth if that is more.\n"
	".PP\n"
	"\\fB\\-\\-cpu\\-experts auto\\fR lets the processor compute experts of the second tier where "
	"they lie,\n"
	"while the card computes the others. With \\fBoff\\fR, the default, each such expert is copied "
	"to the\n"
	"card. At the start the program times the link, and the processor with each type of the "
	"model's experts.\n"
	"A line says both; types below a quarter of the link's rate are left to the card. Then it "
	"gives the\n"
	"processor those experts of a layer with which the layer is done sooner, and copies those to "
	"the card\n"
	"that were used before more than what leaves for them. It does so in steps of at most 16 rows, "
	"which write\n"
	"answers; long prompts are computed by the card alone. The processor has the card's arithmetic "
	"to the\n"
	"last bit, so logits and answers are the same with \\fBauto\\fR and \\fBoff\\fR. It needs a "
	"card, one\n"
	"stage, \\fB\\-\\-ram\\-gb\\fR and experts of type IQ2_XXS, IQ2_XS, Q2_K, Q3_K, Q4_K, Q6_K or "
	"Q8_0;\n"
	"else a line says why the card computes alone. Try it where the link is slow beside the "
	"processor's\n"
	"memory and cores are free. On an H200, whose link copies faster\n"
	"than the processor computes, answers were slower with it;\n"
	"\\fBbench decode\\fR with either setting tells of this machine.\n"
	".PP\n"
	"On a host with several NUMA nodes the memory of tiers that it reaches is divided among the "
	"nodes by\n"
	"what each has free, every expert on one node, and the threads by their processors. An expert "
	"is computed\n"
	"by the threads of its node, and the program times each node. Lines say how much memory and "
	"how many\n"
	"threads a node has. Where the kernel refuses, as in a container that may not call mbind, a "
	"line says so\n"
	"and memory lies where it is written first. Answers are the same. Nodes where the process may "
	"use no processor\n"
	"or no memory do not count.\n"
	".PP\n"
	"A chat, an answer and the server that stream experts keep a profile: how often each expert "
	"was used.\n"
	"The next start with the same model loads the experts used most into free places of the first\n"
	"tier, then of the second, in the background and after everything that is waited for. A first "
	"start with GLM\\-5.2\n"
	"does so from published figures. The profile of a model stands in\n"
	"\\fI~/.cache/glmstream/profiles\\fR under the model's fingerprint. It holds numbers of layers "
	"and\n"
	"experts and no text. The folder holds at most 32 profiles and 16 MB; the oldest go first. It "
	"may\n"
	"be deleted. \\fB\\-\\-no\\-profile\\fR neither reads nor writes one; with "
	"\\fB\\-\\-warm\\fR \\fIFILE\\fR that file\n"
	"takes its place. A prompt leaves the experts of the profile in free places of the first "
	"tier.\n"
	"A profile changes no logits. A damaged one is replaced, one of a newer "
	"program stays. Where it cannot be read or written the program runs without it, and "
	"\\fB\\-v\\fR says why.\n"
	".PP\n"
	"Each drive has the fewest bytes in flight at which it reaches its throughput, since a read "
	"that is waited for comes after those in flight. Number and length of the reads are found "
	"while the drive is read, and searched again when its throughput changes. Copies of the model\n"
	"(\\fB\\-\\-replicas\\fR) share the reads by the measured speed of their drives; a drive that "
	"is left out because it was slow is measured again from time to time. Where experts cannot be "
	"read from the model or a copy, the next copy is read; a warning names the file, which is "
	"then left out for a minute, unless its copies fail too. "
	"\\fB\\-v\\fR says what was\n"
	"found, \\fB\\-\\-json\\fR has it as io_depth and io_slice_bytes. "
	"\\fB\\-\\-io\\-depth\\fR \\fIN\\fR keeps N reads of\n"
	"about 1 MiB in flight instead.\n"
	".SH FORECASTS\n"
	"\\fBplan\\fR forecasts one machine, \\fBinspect \\-\\-trace\\fR caches of other sizes, "
	"\\fBtune\\fR the budgets of this machine, \\fBinspect \\-\\-hosts\\fR \\fIN\\fR "
	"\\fB\\-\\-cards\\fR \\fIM\\fR a cluster. All replay a routing trace through the cache's code "
	"and add times from rates. None of the four measures a token.\n"
	".PP\n"
	"In a cluster each card gets consecutive layers, cut as \\fB\\-\\-cards\\fR of a run cuts "
	"them, with the memory plan of a run. One stream passes through all cards in turn. Many "
	"streams are divided into micro\\-batches that follow each other; the slowest card then sets "
	"the pace. Steps of several rows read each distinct expert once and take longer by row. What "
	"the cards do not hold comes from the host's second tier or its drive. The forecast lists "
	"every figure that it is made of, where that is from (measured, a data sheet, assumed), and "
	"the option that replaces it. It ends with the same model beside steps that were measured. "
	"Cards that cannot hold a model are refused with the least number that can.\n"
	".SH SEVERAL HOSTS\n"
	"\\fBmpirun\\fR of Open MPI starts \\fBrun\\fR, \\fBserve\\fR, \\fBbench decode\\fR,\n"
	"\\fBbench prefill\\fR, \\fBdump\\-logits\\fR and \\fBperplexity\\fR as several processes, "
	"the ranks, which\n"
	"have consecutive layers each. Rank 0 has the last layers and everything that the command\n"
	"does; ranks 1, 2, ... have the layers before, in that order. A line for each rank says "
	"which.\n"
	"Each rank reads its own layers only, from its own drive, into its own cache: "
	"\\fB\\-\\-cache\\-gb\\fR and\n"
	"\\fB\\-\\-ram\\-gb\\fR hold for each rank. Answers and files are those of one process, "
	"bit by bit.\n"
	".PP\n"
	".nf\n"
	"    mpirun \\-np 2 \\-\\-host a,b \\-\\-bind\\-to none glmstream serve \\-m model.gguf\n"
	".fi\n"
	".PP\n"
	"All ranks take the same options. Where hosts differ, each gets its own after a colon:\n"
	".PP\n"
	".nf\n"
	"    mpirun \\-np 1 \\-\\-host a glmstream serve \\-m /fast/model.gguf \\-\\-cache\\-gb 100 : "
	"\\e\n"
	"           \\-np 1 \\-\\-host b glmstream serve \\-m /data/model.gguf \\-\\-cache\\-gb 60\n"
	".fi\n"
	".PP\n"
	"With Slurm, in a file for \\fBsbatch\\fR:\n"
	".PP\n"
	".nf\n"
	"    #!/bin/bash\n"
	"    #SBATCH \\-\\-nodes=2 \\-\\-ntasks\\-per\\-node=1 \\-\\-cpus\\-per\\-task=32 "
	"\\-\\-gres=gpu:1\n"
	"    export GLMSTREAM_API_KEY=$(cat $HOME/glmstream.key) # ps shows options\n"
	"    mpirun \\-x GLMSTREAM_API_KEY \\-\\-bind\\-to none \\e\n"
	"        glmstream serve \\-m /local/model.gguf \\-\\-host 0.0.0.0\n"
	".fi\n"
	".PP\n"
	"Ranks compute different answers at the same time, as stages do; the stages of one rank then\n"
	"compute one after the other. So for one answer one rank with \\fB\\-\\-cards auto\\fR is "
	"best on a\n"
	"host with several cards, for many answers on several hosts a rank for each card. Each rank\n"
	"takes card 0 of its host unless \\fB\\-\\-cards\\fR names others, and plans with all free "
	"memory of\n"
	"its cards. So two ranks on one card are refused. Give each rank its own after a colon:\n"
	".PP\n"
	".nf\n"
	"    mpirun \\-\\-bind\\-to none \\-np 1 glmstream serve \\-\\-cards 0 : \\-np 1 glmstream "
	"serve \\-\\-cards 1\n"
	".fi\n"
	".PP\n"
	"Ranks share a card if all of them name it: \\fBmpirun \\-np 2 glmstream \\-\\-cards 0\\fR. "
	"\\fB\\-\\-cards auto\\fR\n"
	"names none. Each of them then needs a \\fB\\-\\-cache\\-gb\\fR that leaves memory to the "
	"others.\n"
	".PP\n"
	"\\fB\\-\\-bind\\-to none\\fR matters: of up to two ranks mpirun binds each to a single "
	"core. As\n"
	"root it asks for \\fB\\-\\-allow\\-run\\-as\\-root\\fR, for more ranks than cores for\n"
	"\\fB\\-\\-oversubscribe\\fR. Ranks of one host share its memory evenly.\n"
	".PP\n"
	"Between cards the rows go from rank to rank by NCCL if both can load\n"
	"\\fIlibnccl.so.2\\fR (NVIDIA packages it; PyTorch brings it, in\n"
	"\\fInvidia/nccl/lib\\fR: name that folder in \\fBLD_LIBRARY_PATH\\fR, and pass it on with\n"
	"\\fBmpirun \\-x LD_LIBRARY_PATH\\fR). Else, and for ranks that share a card, they go by MPI\n"
	"through host memory. The rank that receives them says which it is, and why. Everything else "
	"is\n"
	"MPI's. \\fBbench copy \\-\\-cards 0,1\\fR measures what lies between two cards.\n"
	".PP\n"
	"The lines that mpirun passes to rank 0 are turns of a conversation. Ctrl+C ends all ranks, "
	"and so\n"
	"does SIGTERM to mpirun, which leaves them a few seconds. SIGTERM to rank 0 alone ends all in\n"
	"order. A\n"
	"client that goes away, or SIGINT to rank 0, stops an answer when the other ranks have ended "
	"the\n"
	"step. \\fB\\-\\-trace\\fR and replayed routing take one process. The sandbox is off, since "
	"MPI makes\n"
	"connections whenever it needs them: ranks belong on a network of their own.\n"
	".PP\n"
	"A rank that has another model file or other options is named, and all end with status 1.\n"
	"Ranks that share a card by accident are named, and all end with status 2.\n"
	"A rank that has not answered for 7 seconds is named by the others, and all end with status "
	"1;\n"
	"one that hangs while MPI starts cannot be named, and all end after 120 seconds.\n"
	"When a rank is killed, mpirun notices first, names it and ends the others; mpirun's own "
	"status is\n"
	"then 128 and the signal's number (137), not 1, and with its option for recovery 0. Session "
	"files\n"
	"stay whole.\n"
	".SH DRAFTS\n"
	"A step of the model can compute several tokens of an answer: the one that was drawn, and "
	"drafts of those behind it. Each further token is drawn from the model's own logits with the "
	"random numbers of its position, and a draft is used if it is that token. So text, logits and "
	"log\\-probabilities are those of \\fB\\-\\-draft off\\fR, at every temperature.\n"
	".PP\n"
	"Drafts come from the model's MTP layer, which is loaded unless drafts are off, or from the "
	"text: what followed where its last tokens stood before. With \\fB\\-\\-draft auto\\fR each "
	"step has as many as pay, by what was right so far and by the time that steps of so many rows "
	"took; where they gain nothing they are tried rarely. On the CPU without "
	"\\fB\\-\\-cache\\-gb\\fR it uses the text alone, because the MTP layer's drafts take longer "
	"there than they save. A number has so many computed at each step, whatever they cost. "
	"\\fBglmstream bench decode \\-\\-draft auto\\fR measures what drafts gain on a machine: "
	"answers with them beside the same answers without, and how often the draft at each position "
	"was right.\n"
	".SH FILES THAT ARE WRITTEN\n"
	"A file that exists is replaced only if it is empty, or this program wrote it and it is of "
	"the\n"
	"same kind: a\n"
	"session over a session, a trace over a trace, a plot over a plot; and only if it is not "
	"write-protected (\\fB\\-\\-warm\\fR then only reads it). Finished models and files\n"
	"without a mark (logits) are not replaced; an importance matrix only by the run that goes on "
	"with\n"
	"it. \\fB\\-\\-force\\fR replaces any file but one that the command reads; in the chat\n"
	"\\fB/save!\\fR does. A link stays, and the file that it names is written (with\n"
	"\\fB\\-\\-split\\-gb\\fR the parts, beside that name). In the folder of a checkpoint\n"
	"(\\fBexport\\fR, \\fBsynth \\-\\-format hf\\fR) \\fB\\-\\-force\\fR first removes old\n"
	"shards, the index and config.json: a link among them is removed, and the file that it names\n"
	"stays. A file that "
	"is read first (\\fB\\-\\-session\\fR, \\fB\\-\\-warm\\fR) "
	"has to\n"
	"be of its kind. Files appear whole: until one is complete the older one stays as it is.\n"
	".SH SERVER\n"
	"\\fBserve\\fR answers on http://127.0.0.1:8080. Only this machine can connect by default;\n"
	"\\fB\\-\\-host\\fR, \\fB\\-\\-api\\-key\\fR, \\fB\\-\\-cors\\fR and "
	"\\fB\\-\\-allow\\-host\\fR open it further.\n"
	".TP\n.B /v1/chat/completions, /v1/completions, /v1/responses, /v1/models\n"
	"OpenAI's API: streams, stop strings, logprobs, seeds, tools (\\fItool_choice\\fR is enforced "
	"token\n"
	"by token), \\fIreasoning_content\\fR, \\fIreasoning_effort\\fR, \\fIchat_template_kwargs\\fR\n"
	".TP\n.B /v1/responses/ID, /v1/responses/ID/input_items, /v1/responses/input_tokens\n"
	"responses that were kept (unless \\fIstore\\fR is false), for \\fIprevious_response_id\\fR "
	"and\n"
	"input items of the type \\fIitem_reference\\fR: the 1000 used last,\n"
	"each with its whole conversation; in memory at most half of\n"
	"\\fB\\-\\-remember\\-gb\\fR, and with \\fB\\-\\-session\\-dir\\fR also in files "
	"there, at most 64 MiB\n"
	".TP\n.B /v1/messages, /v1/messages/count_tokens\n"
	"Anthropic's API: blocks, thinking, tools, streams\n"
	".TP\n.B /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version\n"
	"ollama's API; a \\fIseed\\fR of \\-1 is a random one\n"
	".TP\n.B /completion, /tokenize, /detokenize, /apply-template, /props, /slots\n"
	"llama.cpp's own paths; \\fItokens\\fR (with \\fIreturn_tokens\\fR, and in streams) are all "
	"tokens\n"
	"of the answer but the one that ended it, so those of a stop string too; a \\fIseed\\fR of\n"
	"\\-1 is a random one\n"
	".TP\n.B /\n"
	"a page: chats that the browser keeps, with formulas, code and text files, and a map of the\n"
	"expert cache at work; it loads nothing from elsewhere\n"
	".TP\n.B /health, /metrics, /v1/glmstream/state, /v1/glmstream/events\n"
	"for machines: state, Prometheus counters, the data of the page\n"
	".PP\n"
	"Paths work without /v1 and with a slash at the end; only /completions without /v1 is "
	"another\n"
	"path, llama.cpp's. Any name of a model is answered by the model that is there;\n"
	"\\fB\\-\\-strict\\-model\\fR refuses others. What cannot be done (embeddings, ranking, tools "
	"that\n"
	"a server runs) is refused with a reason, not ignored.\n"
	".PP\n"
	"While a long prompt is read, event streams carry a comment line each second: how many of its\n"
	"tokens are read, how many of them were known, how many seconds are left. With\n"
	"\\fIreturn_progress\\fR, streams of chat and text completions and of llama.cpp's path also\n"
	"have events with \\fIprompt_progress\\fR: \\fItotal\\fR, \\fIcache\\fR (known tokens),\n"
	"\\fIprocessed\\fR (those included), \\fItime_ms\\fR. A client that leaves stops its prompt "
	"or\n"
	"answer. Closing only the sending side has the same effect, as with nginx; the response is\n"
	"499. The next prompt with the same beginning goes on behind the last step that was finished.\n"
	".PP\n"
	"The model reads text only. On OpenAI's and Anthropic's paths an image, video or sound in a\n"
	"message becomes the sentence that GLM's own template has for it: that the model cannot see\n"
	"it. Files other than plain text, and images on ollama's paths, are refused.\n"
	".PP\n"
	"Answers follow a JSON schema token by token: \\fIresponse_format\\fR (chat),\n"
	"\\fItext.format\\fR (responses), \\fIoutput_config.format\\fR (messages), \\fIformat\\fR "
	"(ollama), and\n"
	"\\fB\\-\\-json\\-schema\\fR FILE without a server; arguments of tools with "
	"\\fIstrict\\fR do as well. Thinking\n"
	"is free. Properties come in the order of the schema. A keyword that is not supported is "
	"refused\n"
	"by name (not, if, uniqueItems, look-ahead in patterns, ...), and so is every outer member of\n"
	"a request that nothing here reads. Of oneOf the alternatives have to exclude each other by "
	"type or\n"
	"by a constant property; anyOf needs nothing. multipleOf holds for the decimal that\n"
	"is written: 0.07 is a multiple of 0.01, though validators that divide doubles refuse it.\n"
	".PP\n"
	"Calls are returned only of tools that the request offers; their arguments are streamed as "
	"they\n"
	"are written. A call that the limit of tokens cuts off is returned as far as it goes, with\n"
	"\\fIfinish_reason\\fR length, \\fIstop_reason\\fR max_tokens or \\fIstatus\\fR incomplete. "
	"When the last\n"
	"message is the assistant's, the answer goes on from it, without thinking.\n"
	".PP\n"
	"Each request writes one line to stderr when it is over: time, method, path, status, tokens "
	"of\n"
	"prompt and answer, milliseconds; never what was said. \\fB\\-q\\fR turns this off. Lines of\n"
	"/health, /metrics and the page's data need \\fB\\-v\\fR.\n"
	".PP\n"
	"Answers are computed in steps together, on the CPU all, on a card up to sixteen, each the\n"
	"same as if it were alone. Long prompts are read in slices between these steps, so that the\n"
	"others' answers keep half of their speed. A token depends on the seed, its position and the\n"
	"text before it, not on what else was drawn. A conversation\n"
	"that goes on finds its beginning computed: answers that a client sends back are recognised "
	"and\n"
	"their own tokens used, tool calls included. \\fB\\-\\-session\\-dir\\fR keeps long prompts "
	"for the\n"
	"next start.\n"
	".PP\n"
	"One client can't keep the others out: it may hold \\fB\\-\\-client\\-share\\fR percent of "
	"what the\n"
	"others leave of connections, places in the queue and memory; more is refused (429). Sessions\n"
	"that become free go to the clients in turn; a client with several gives one to another that\n"
	"waits, and its answer goes on later (with one rank, up to 256 MiB of cached rows an answer "
	"and\n"
	"1 GiB of all that are paused). A client is an address (an IPv6 one by its first\n"
	"64 bits), or a key where \\fB\\-\\-api\\-key\\fR has several, separated by commas. Behind a "
	"reverse\n"
	"proxy all come from one address: give each user a key, or name the proxy with\n"
	"\\fB\\-\\-trusted\\-proxy\\fR, whose X-Forwarded-For then says who asks. Of that header only "
	"the last\n"
	"address is believed, which the proxy has to append (nginx: proxy_set_header X-Forwarded-For\n"
	"$proxy_add_x_forwarded_for; Caddy does so by itself).\n";

static const char tail[] =
	".SH EXIT STATUS\n"
	".TP\n.B 0\ndone\n"
	".TP\n.B 1\nfailed while running\n"
	".TP\n.B 2\nbad usage\n"
	".TP\n.B 3\nbad input: a file that is missing, malformed or of an unsupported kind\n"
	".TP\n.B 4\nout of memory, or a budget that cannot be met\n"
	".TP\n.B 130\ninterrupted\n"
	".SH ENVIRONMENT\n"
	".TP\n.B GLMSTREAM_POCKET\nthe model that is used without \\fB\\-m\\fR\n"
	".TP\n.B GLMSTREAM_ROUTING\nthe routing trace that \\fBshipped\\fR stands for\n"
	".TP\n.B GLMSTREAM_API_KEY\nwhat clients of \\fBserve\\fR must send when there is no "
	"\\fB\\-\\-api\\-key\\fR\n"
	".TP\n.B NO_COLOR\nif it is set and not empty, no colours\n"
	".TP\n.B XDG_CACHE_HOME\nwhere profiles of expert use are kept (\\fI~/.cache\\fR), in "
	"\\fIglmstream/profiles\\fR\n"
	".TP\n.B XDG_STATE_HOME\nwhere the history of the chat is kept (\\fI~/.local/state\\fR), in "
	"\\fIglmstream/history\\fR\n"
	".TP\n.B TMPDIR\nwhere \\fBtune\\fR keeps the trace it records (\\fI/tmp\\fR)\n";

int manual_print(struct err *e)
{
	const struct manual_visitor each = {.each = put_command}, common = {.each = put_common};
	fputs(head, stdout);
	int rc = manual_visit(&each, e);
	if (rc)
		return rc;
	fputs(".SH COMMON OPTIONS\n", stdout);
	rc = manual_visit(&common, e);
	put_chat();
	fputs(topics, stdout);
	proxies_print_man();
	threats_print_man();
	clients_print_man();
	fputs(tail, stdout);
	return rc;
}
