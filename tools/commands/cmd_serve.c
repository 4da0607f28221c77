/* SPDX-License-Identifier: MIT */
/* glmstream serve: opens the engine, serves until a signal comes. */
#if HAVE_HTTP
#include "src/ranks/ranks.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/http/identity.h"
#include "src/serve/server.h"
#include "src/text/utf8.h"
#include "tools/commands/commands.h"
#include "tools/options/common_opts.h"
#include "tools/options/draft_opts.h"
#include "tools/options/sandbox_opts.h"
#include "tools/output/interrupt.h"
#include "tools/options/pocket.h"
#include "tools/output/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GRACE_MS 3500 /* what runs when SIGTERM comes may take so long: all ends within 5 s */

struct serve_opts {
	struct common_opts common;
	const char *host, *api_key, *allow_host, *cors, *name, *trusted_proxy;
	uint64_t remember_bytes;
	uint32_t port, sessions, queue, connections, max_body_mb, client_share;
	bool strict_model;
	struct prefix_opts prefix;
	struct profile_opts profile;
	struct draft_opts draft;
	struct sandbox_opts sandbox;
};

static int parse_serve_options(struct serve_opts *o, int argc, char **argv, struct err *e)
{
	const struct arg list[] = {
		{"host", 0, ARG_STRING, .string = &o->host, .value = "ADDRESS",
			.help = "where to listen; without --api-key everybody who reaches it may use it",
			.fallback = "127.0.0.1"},
		{"port", 0, ARG_UINT, .u32 = &o->port, .max = 65535, .value = "N",
			.help = "0: any that is free; the first line on stdout says which", .fallback = "8080"},
		{"api-key", 0, ARG_STRING, .string = &o->api_key, .value = "KEY",
			.help = "what clients must send (Authorization: Bearer KEY, or x-api-key); several, "
					"separated by commas: each is a client of its own for --client-share",
			.fallback = "the environment's GLMSTREAM_API_KEY, else none"},
		{"sessions", 0, ARG_UINT, .u32 = &o->sessions, .min = 1, .max = 64, .value = "N",
			.help = "timelines kept at the same time, which write in steps together; each has "
					"the whole context",
			.fallback = "4"},
		{"queue", 0, ARG_UINT, .u32 = &o->queue, .max = 100000, .value = "N",
			.help = "most answers that wait for a session; more are refused (429)",
			.fallback = "128"},
		{"model-name", 0, ARG_STRING, .string = &o->name, .value = "NAME",
			.help = "the model's name in the API", .fallback = "the file's name without .gguf"},
		{"strict-model", 0, ARG_FLAG, .flag = &o->strict_model,
			.help = "refuse requests that name another model (404); by default the model that is "
					"there answers them"},
		{"allow-host", 0, ARG_STRING, .string = &o->allow_host, .value = "NAME",
			.help = "another name that the Host header may have (behind a proxy)",
			.fallback = "on a loopback address only localhost and addresses of it"},
		{"cors", 0, ARG_STRING, .string = &o->cors, .value = "ORIGIN",
			.help = "let web pages of this origin (or *) use the API",
			.fallback = "only the server's own page"},
		{"max-connections", 0, ARG_UINT, .u32 = &o->connections, .min = 4, .max = 4096,
			.value = "N", .help = "open connections; more are refused (503)", .fallback = "512"},
		{"max-body-mb", 0, ARG_UINT, .u32 = &o->max_body_mb, .min = 1, .max = 1024, .value = "N",
			.help = "largest request, in 10^6 bytes", .fallback = "32"},
		{"remember-gb", 0, ARG_SIZE_GB, .u64 = &o->remember_bytes, .max = 1e6, .value = "G",
			.help = "most memory, in 10^9 bytes, for answers that clients may send back (their "
					"tokens are then not computed again) and for /v1/responses; half each, what "
					"was unused for longest goes first; 0: none",
			.fallback = "0.128"},
		{"client-share", 0, ARG_UINT, .u32 = &o->client_share, .min = 1, .max = 100, .value = "N",
			.help = "percent that one client (key or address) may hold of what the others leave of "
					"connections, queue and memory (429)",
			.fallback = "75; 100 when only this machine can connect and there are neither several "
						"keys nor a trusted proxy"},
		{"trusted-proxy", 0, ARG_STRING, .string = &o->trusted_proxy, .value = "ADDRESS",
			.help = "a reverse proxy: the last address in its X-Forwarded-For is the client",
			.fallback = "none: all that a proxy passes on is one client's"},
	};
	struct arg_group groups[] = {common_opts_group(&o->common), {"Server", list, ARRAY_LEN(list)},
		draft_opts_group(&o->draft), prefix_opts_group(&o->prefix), profile_opts_group(&o->profile),
		sandbox_opts_group(&o->sandbox)};
	const struct args args = {
		.command = "glmstream serve",
		.usage = "[-m MODEL] [options]",
		.about = "Serves the model over HTTP: OpenAI's /v1/chat/completions, /v1/completions, "
				 "/v1/responses and /v1/models, Anthropic's /v1/messages, ollama's /api/chat, "
				 "llama.cpp's /completion, /health, /metrics, and a page at /. \"glmstream help "
				 "clients\" has the lines for Claude Code, Codex, Open WebUI and others. SIGTERM "
				 "lets answers end for 3.5 seconds, then cuts them; a second one ends at once.",
		.see = "glmstream serve --help",
		.example =
			"glmstream serve -m glm52-iq2.gguf --cache-gb 100 --sessions 4 --port 8080\n"
			"curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' "
			"\\\n"
			"    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Define river.\"}]}'\n",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
	};
	return report_parse(&args, argc, argv, e);
}

/* "dir/glm52-iq2-00001-of-00003.gguf" -> "glm52-iq2", "GLM-5.2-FP8/" -> "GLM-5.2-FP8". The caller
 * frees it. */
static char *name_of(const char *path)
{
	size_t end = strlen(path);
	while (end > 1 && path[end - 1] == '/')
		end--;
	size_t from = end;
	while (from > 0 && path[from - 1] != '/')
		from--;
	size_t n = end - from;
	char *name = mem_strndup(path + from, n);
	if (n > 5 && !strcmp(name + n - 5, ".gguf"))
		name[n -= 5] = 0;
	if (n > 15 && name[n - 15] == '-' && !strncmp(name + n - 9, "-of-", 4) &&
		strspn(name + n - 14, "0123456789") == 5)
		name[n - 15] = 0;
	return name;
}

static void say_hello(const struct serve_opts *o, const struct server *s, const char *name)
{
	bool v6 = strchr(o->host, ':') != NULL;
	if (!server_is_loopback(s) && !o->api_key)
		log_warn("%s can be reached from other machines and there is no --api-key: anybody there "
				 "may use the model",
			o->host);
	log_info("model \"%s\", %u sessions, up to %u waiting; %s", name, o->sessions, o->queue,
		o->api_key ? "with an API key" : "no API key");
	printf(
		"listening on http://%s%s%s:%u\n", v6 ? "[" : "", o->host, v6 ? "]" : "", server_port(s));
	fflush(stdout);
}

/* Takes the key out of the arguments, which other users see with ps. The caller frees it. */
static char *take_key(int argc, char **argv, const char *key)
{
	char *own = mem_strdup(key);
	size_t length = strlen(key);
	for (int i = 1; i < argc; i++) {
		size_t n = strlen(argv[i]);
		if (n >= length && argv[i] + n - length == key)
			memset(argv[i] + n - length, '*', length);
	}
	return own;
}

/* "*", "null" or SCHEME://HOST[:PORT], as browsers send it: without a path or a slash at the end.
 */
static bool is_origin(const char *s)
{
	const char *host = strstr(s, "://");
	return !strcmp(s, "*") || !strcmp(s, "null") ||
		   (host && host > s && host[3] && !strpbrk(host + 3, "/, "));
}

/* What could never match a request is refused, and an empty key, which a script has when its
 * variable is not set. Takes a missing key from the environment. */
static int check_serve_options(struct serve_opts *o, struct err *e)
{
	const bool from_environment = !o->api_key;
	if (!o->api_key)
		o->api_key = getenv("GLMSTREAM_API_KEY");
	else if (!*o->api_key)
		return err_set(e, ERR_USAGE, "--api-key: the key is empty");
	if (o->api_key && !*o->api_key)
		o->api_key = NULL;
	if (o->api_key && !o->api_key[strspn(o->api_key, ",")])
		return err_set(e, ERR_USAGE, "%s: each of the keys is empty",
			from_environment ? "GLMSTREAM_API_KEY" : "--api-key");
	if (o->trusted_proxy && !identity_is_address(o->trusted_proxy))
		return err_set(
			e, ERR_USAGE, "--trusted-proxy %s: expected an address in digits", o->trusted_proxy);
	if (o->cors && !is_origin(o->cors))
		return err_set(e, ERR_USAGE,
			"--cors %.200s: expected * or an origin without a path, like https://chat.example.org",
			o->cors);
	if (o->allow_host &&
		(!*o->allow_host ||
			(o->allow_host[0] == '[' ? !strchr(o->allow_host, ']') || strchr(o->allow_host, ']')[1]
									 : !!strpbrk(o->allow_host, ":/, "))))
		return err_set(e, ERR_USAGE,
			"--allow-host %.200s: expected one name without a port, like llm.example.org",
			o->allow_host);
	if (o->name && !*o->name)
		return err_set(e, ERR_USAGE, "--model-name: the name is empty");
	return prefix_opts_check(&o->prefix, e);
}

int cmd_serve(int argc, char **argv, struct err *e)
{
	struct serve_opts o = {.host = "127.0.0.1",
		.port = 8080,
		.sessions = 4,
		.queue = 128,
		.connections = 512,
		.remember_bytes = 128000000,
		.max_body_mb = 32};
	int rc = parse_serve_options(&o, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if ((rc = check_serve_options(&o, e)) || /* the address before a large model is opened */
		(!ranks_is_worker() && (rc = http_check_address(o.host, (uint16_t)o.port, e))))
		return rc;
	const char *path = pocket_or(o.common.model, e);
	if (!path)
		return e->code;
	char *given_key = o.api_key ? take_key(argc, argv, o.api_key) : NULL;
	o.api_key = given_key;
	char *file_name = name_of(path);
	struct buf shown = {0}; /* JSON takes nothing but UTF-8, and clients must be able to say it */
	utf8_repair(o.name ? o.name : file_name, strlen(o.name ? o.name : file_name), &shown);
	const char *name = buf_str(&shown);
	struct engine *g = NULL;
	struct server *s = NULL;
	o.common.sessions = o.sessions;
	o.common.no_mtp = o.draft.mode == DRAFT_OFF;
	profile_opts_apply(&o.profile, &o.common);
	sandbox_opts_files(&o.sandbox, &o.common, &o.prefix, NULL, NULL, (int)o.port);
	if ((rc = common_opts_open(&o.common, &g, e)))
		goto out;
	const struct model_config *c = engine_config(g);
	const struct server_options options = {
		.http = {.host = o.host,
			.port = (uint16_t)o.port,
			.api_key = o.api_key,
			.client_share = o.client_share,
			.allow_host = o.allow_host,
			.cors = o.cors,
			.trusted_proxy = o.trusted_proxy,
			.max_connections = o.connections,
			.max_body_bytes = (size_t)o.max_body_mb * 1000000},
		.sessions = o.sessions,
		.queue = o.queue,
		.folder = o.prefix.folder,
		.folder_bytes = o.prefix.bytes,
		.remember_bytes = o.remember_bytes,
		.draft = o.draft.mode,
		.model_name = name,
		.strict_model = o.strict_model,
		.version = GLM_VERSION,
		.sampling = {.temperature = c->sampling_temperature, .top_p = c->sampling_top_p},
	};
	if ((rc = server_open(g, &options, &s, e)))
		goto out;
	sandbox_opts_calls(&o.sandbox, true);
	interrupt_catch(false);
	say_hello(&o, s, name);
	while (!atomic_load(interrupt_flag()))
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	log_info("ending: no new connections, answers under way have %.1f s", GRACE_MS / 1000.0);
	server_stop(s, GRACE_MS);
	if (!interrupt_ending()) /* Ctrl+C; SIGTERM is the ordinary end of a server */
		rc = err_set(e, ERR_INTERRUPTED, "%s", "");
out:
	server_close(s);
	free(file_name);
	free(given_key);
	buf_free(&shown);
	rc = common_opts_close(g, rc, e);
	free(o.profile.folder);
	return rc;
}

#endif
