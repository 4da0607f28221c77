/* SPDX-License-Identifier: MIT */
/* The tables of hints. */
#include "tools/options/habits.h"

#include <string.h>
#include <sys/stat.h>

#define EXPERTS                                                                                    \
	"what every token needs stays on the card by itself; --cache-gb G is how much of it experts "  \
	"get, --ram-gb G how much of the host's memory"
#define CONTEXT  "-c N sets the context"
#define SESSIONS "glmstream serve --sessions N answers N conversations at a time"
#define LENGTH   "-n N limits the new tokens of an answer"
#define CHAT     "without -p and -f it is a chat"
#define FETCH    "models are files, nothing is downloaded: fetch a GGUF of GLM-5.2, then -m FILE.gguf"
#define MAPPED   "--cache-gb decides how experts are kept; there is no such choice besides"
#define KV       "--kv-type f16 or fp8 is how the context's cache is kept"
#define CARDS    "--cards 0,1 lays the layers on these cards, --cards auto on all; else card 0 is used"
#define SCHEMA   "--json-schema FILE makes every answer JSON that is valid by the schema"
#define SERVER   "glmstream serve is the server"
#define TEMPLATE "the model's own chat template is always used; --raw goes without"

const struct arg_habit habit_options[] = {
	{"ngl", EXPERTS},
	{"gpu-layers", EXPERTS},
	{"n-gpu-layers", EXPERTS},
	{"cmoe", EXPERTS},
	{"cpu-moe", EXPERTS},
	{"ncmoe", EXPERTS},
	{"n-cpu-moe", EXPERTS},
	{"ot", EXPERTS},
	{"override-tensor", EXPERTS},
	{"ctx-size", CONTEXT},
	{"num-ctx", CONTEXT},
	{"np", SESSIONS},
	{"parallel", SESSIONS},
	{"n-predict", LENGTH},
	{"num-predict", LENGTH},
	{"max-tokens", LENGTH},
	{"temperature", "--temp T sets the temperature"},
	{"top_p", "it is --top-p here"},
	{"top_k", "it is --top-k here"},
	{"min_p", "it is --min-p here"},
	{"sys", "--system TEXT sets the system message"},
	{"system-prompt", "--system TEXT sets the system message"},
	{"batch-size", "--chunk N is how many tokens of a prompt are computed at once"},
	{"ub", "--chunk N is how many tokens of a prompt are computed at once"},
	{"ubatch-size", "--chunk N is how many tokens of a prompt are computed at once"},
	{"cnv", CHAT},
	{"conversation", CHAT},
	{"interactive", CHAT},
	{"st", "-p TEXT answers once and ends"},
	{"single-turn", "-p TEXT answers once and ends"},
	{"hf", FETCH},
	{"hf-repo", FETCH},
	{"mu", FETCH},
	{"model-url", FETCH},
	{"fa", "attention has one implementation; leave it out"},
	{"flash-attn", "attention has one implementation; leave it out"},
	{"mlock", MAPPED},
	{"no-mmap", MAPPED},
	{"ctk", KV},
	{"ctv", KV},
	{"cache-type-k", KV},
	{"cache-type-v", KV},
	{"mg", CARDS},
	{"main-gpu", CARDS},
	{"sm", CARDS},
	{"split-mode", CARDS},
	{"ts", CARDS},
	{"tensor-split", CARDS},
	{"dev", CARDS},
	{"device", CARDS},
	{"jinja", TEMPLATE},
	{"chat-template", TEMPLATE},
	{"grammar", SCHEMA},
	{"grammar-file", SCHEMA},
	{"json-schema-file", SCHEMA},
	{"port", SERVER},
	{"host", SERVER},
	{"reasoning-budget", "--think max, high or off says how much the model reasons"},
	{0},
};

const char *habit_command(const char *word)
{
	static const struct arg_habit words[] = {
		{"pull", FETCH},
		{"push", "models are files: copy them as you copy files"},
		{"list", "models are files: ls *.gguf; glmstream inspect FILE.gguf says what is in one"},
		{"ls", "models are files: ls *.gguf; glmstream inspect FILE.gguf says what is in one"},
		{"ps", "a server says what it does at http://127.0.0.1:8080/health and /metrics"},
		{"show", "glmstream inspect FILE.gguf says what is in a model"},
		{"rm", "models are files: remove them as you remove files"},
		{"create", "glmstream convert makes a GGUF of a checkpoint"},
		{"quantize", "glmstream convert --recipe NAME quantises a checkpoint"},
		{"chat", CHAT},
		{"version", "glmstream --version"},
		{"cli", CHAT},
		{0},
	};
	for (const struct arg_habit *h = words; h->name; h++)
		if (!strcmp(h->name, word))
			return h->hint;
	return NULL;
}

bool habit_is_model(const char *word)
{
	static const char end[] = ".gguf";
	struct stat st;
	size_t n = strlen(word);
	return (n >= strlen(end) && !strcmp(word + n - strlen(end), end)) ||
		   (!stat(word, &st) && S_ISREG(st.st_mode));
}
