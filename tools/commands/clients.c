/* SPDX-License-Identifier: MIT */
/* `glmstream help clients`, and the manual's section with the same text. */
#include "src/base/num.h"
#include "tools/commands/manual.h"

#include <stdio.h>

static const struct {
	const char *name, *lines; /* where the lines go, the lines */
} clients[] = {
	{"Claude Code, in the shell (the address without /v1)",
		"export ANTHROPIC_BASE_URL=http://127.0.0.1:8080\n"
		"export ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_API_KEY=\n"
		"claude\n"},
	{"Codex, in ~/.codex/config.toml (it offers a web search otherwise, which no server here runs)",
		"model = \"glm\"\n"
		"model_provider = \"glmstream\"\n"
		"web_search = \"disabled\"\n"
		"[model_providers.glmstream]\n"
		"name = \"glmstream\"\n"
		"base_url = \"http://127.0.0.1:8080/v1\"\n"
		"wire_api = \"responses\"\n"},
	{"OpenCode, in opencode.json",
		"{\"model\": \"glmstream/glm\", \"provider\": {\"glmstream\": {\n"
		"  \"npm\": \"@ai-sdk/openai-compatible\",\n"
		"  \"options\": {\"baseURL\": \"http://127.0.0.1:8080/v1\", \"apiKey\": \"none\"},\n"
		"  \"models\": {\"glm\": {\"limit\": {\"context\": 131072, \"output\": 16384}}}}}}\n"},
	{"Cline, in its settings", "API Provider  OpenAI Compatible\n"
							   "Base URL      http://127.0.0.1:8080/v1\n"
							   "API Key       none\n"
							   "Model ID      glm\n"},
	{"Continue, in ~/.continue/config.yaml", "name: glmstream\n"
											 "version: 0.0.1\n"
											 "schema: v1\n"
											 "models:\n"
											 "  - name: glm\n"
											 "    provider: openai\n"
											 "    model: glm\n"
											 "    apiBase: http://127.0.0.1:8080/v1\n"
											 "    apiKey: none\n"
											 "    roles: [chat, edit, apply]\n"},
	{"Open WebUI, its environment (from a container the server needs --host and --api-key, see "
	 "below)",
		"OPENAI_API_BASE_URL=http://127.0.0.1:8080/v1\n"
		"OPENAI_API_KEY=none\n"},
	{"aider, in the shell", "export OPENAI_API_BASE=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none\n"
							"aider --model openai/glm\n"},
	{"programs for ollama", "export OLLAMA_HOST=http://127.0.0.1:8080\n"},
	{"OpenAI's and Anthropic's libraries",
		"OpenAI(base_url=\"http://127.0.0.1:8080/v1\", api_key=\"none\")\n"
		"Anthropic(base_url=\"http://127.0.0.1:8080\", api_key=\"none\")\n"},
};

static const char intro[] =
	"What to set so that a program uses the model of \"glmstream serve\". Any name of a model is "
	"answered by the model that is there. With --api-key KEY write KEY in place of none.";

static const char *const notes[] = {
	"Agents begin with long prompts: start the server with a large context (-c), the one that is "
	"set in the program, and with --session-dir DIR, which keeps what was read for the next start.",
	"For programs in containers or on other machines: --host 0.0.0.0 --api-key KEY, and the "
	"address of this machine in place of 127.0.0.1.",
	"When a program does not work, the server's lines on stderr say what it asked for and what was "
	"refused.",
};

int clients_print(struct err *e)
{
	(void)e;
	manual_print_wrapped(intro);
	for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
		printf("\n%s:\n", clients[i].name);
		manual_print_indented(clients[i].lines);
	}
	for (size_t i = 0; i < ARRAY_LEN(notes); i++) {
		putchar('\n');
		manual_print_wrapped(notes[i]);
	}
	return 0;
}

void clients_print_man(void)
{
	fputs(".SH CLIENTS\n", stdout);
	manual_put_text(intro);
	putchar('\n');
	for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
		fputs(".PP\n", stdout);
		manual_put_text(clients[i].name);
		fputs(":\n.RS 4\n.nf\n", stdout);
		manual_put_text(clients[i].lines);
		fputs(".fi\n.RE\n", stdout);
	}
	for (size_t i = 0; i < ARRAY_LEN(notes); i++) {
		fputs(".PP\n", stdout);
		manual_put_text(notes[i]);
		putchar('\n');
	}
}
