/* SPDX-License-Identifier: MIT */
/* The table of paths. */
#if HAVE_HTTP
#include "src/serve/server_internal.h"

#include "src/base/num.h"
#include "src/serve/page.h"

#include <string.h>

/* ---- paths that are answered by a model ---- */

static void post_chat(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	server_respond(s, x, &api_chat);
}

static void post_completions(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	server_respond(s, x, &api_completions);
}

static void post_responses(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	server_respond(s, x, &api_responses);
}

static void post_messages(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	server_respond(s, x, &api_messages);
}

static void post_llamacpp(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	server_respond(s, x, &api_llamacpp);
}

#define NO_EMBEDDINGS                                                                              \
	"this model writes text and makes no embeddings; a server with an embedding model does"
#define NO_RERANK "this model writes text and scores no documents"
#define NO_INFILL                                                                                  \
	"this model was not trained to fill gaps in a text; /v1/chat/completions can be asked to"
#define NO_LIBRARY                                                                                 \
	"this server has one model, given to it when it was started (glmstream serve -m FILE)"

static const struct server_route routes[] = {
	{"POST", "/v1/chat/completions", ROUTE_EXACT, false, &api_chat, post_chat, NULL},
	{"POST", "/v1/completions", ROUTE_EXACT, false, &api_completions, post_completions, NULL},
	{"POST", "/v1/responses", ROUTE_EXACT, false, &api_responses, post_responses, NULL},
	{"POST", "/v1/responses/input_tokens", ROUTE_EXACT, false, &api_responses,
		handle_response_tokens, NULL},
	{"GET", "/v1/responses/", ROUTE_BELOW, false, &api_responses, handle_response_get, NULL},
	{"DELETE", "/v1/responses/", ROUTE_BELOW, false, &api_responses, handle_response_delete, NULL},
	{"POST", "/v1/responses/", ROUTE_BELOW, false, &api_responses, NULL,
		"responses are not computed in the background here, so there is nothing to cancel or "
		"compact"},
	{"POST", "/v1/messages", ROUTE_EXACT, false, &api_messages, post_messages, NULL},
	{"POST", "/v1/messages/count_tokens", ROUTE_EXACT, false, &api_messages, handle_count, NULL},
	{"GET", "/v1/models", ROUTE_EXACT, false, NULL, handle_models, NULL},
	{"GET", "/v1/models/", ROUTE_BELOW, false, NULL, handle_model, NULL},
	{"POST", "/v1/embeddings", ROUTE_EXACT, false, &api_chat, NULL, NO_EMBEDDINGS},
	{"POST", "/v1/rerank", ROUTE_EXACT, false, &api_chat, NULL, NO_RERANK},
	/* ollama */
	{"POST", "/api/chat", ROUTE_EXACT, false, &api_ollama_chat, handle_ollama_chat, NULL},
	{"POST", "/api/generate", ROUTE_EXACT, false, &api_ollama_chat, handle_ollama_generate, NULL},
	{"GET", "/api/tags", ROUTE_EXACT, false, &api_ollama_chat, handle_ollama_tags, NULL},
	{"GET", "/api/ps", ROUTE_EXACT, false, &api_ollama_chat, handle_ollama_ps, NULL},
	{"POST", "/api/show", ROUTE_EXACT, false, &api_ollama_chat, handle_ollama_show, NULL},
	{"GET", "/api/version", ROUTE_EXACT, false, &api_ollama_chat, handle_ollama_version, NULL},
	{"POST", "/api/embed", ROUTE_EXACT, false, &api_ollama_chat, NULL, NO_EMBEDDINGS},
	{"POST", "/api/embeddings", ROUTE_EXACT, false, &api_ollama_chat, NULL, NO_EMBEDDINGS},
	{"POST", "/api/pull", ROUTE_EXACT, false, &api_ollama_chat, NULL, NO_LIBRARY},
	{"POST", "/api/push", ROUTE_EXACT, false, &api_ollama_chat, NULL, NO_LIBRARY},
	{"POST", "/api/create", ROUTE_EXACT, false, &api_ollama_chat, NULL, NO_LIBRARY},
	{"POST", "/api/copy", ROUTE_EXACT, false, &api_ollama_chat, NULL, NO_LIBRARY},
	{"DELETE", "/api/delete", ROUTE_EXACT, false, &api_ollama_chat, NULL, NO_LIBRARY},
	/* llama.cpp */
	{"POST", "/completion", ROUTE_EXACT, false, &api_chat, post_llamacpp, NULL},
	{"POST", "/completions", ROUTE_EXACT, false, &api_chat, post_llamacpp, NULL},
	{"POST", "/tokenize", ROUTE_EXACT, false, &api_chat, handle_tokenize, NULL},
	{"POST", "/detokenize", ROUTE_EXACT, false, &api_chat, handle_detokenize, NULL},
	{"POST", "/apply-template", ROUTE_EXACT, false, &api_chat, handle_template, NULL},
	{"GET", "/props", ROUTE_EXACT, false, &api_chat, handle_props, NULL},
	{"GET", "/slots", ROUTE_EXACT, false, &api_chat, handle_slots, NULL},
	{"POST", "/infill", ROUTE_EXACT, false, &api_chat, NULL, NO_INFILL},
	{"POST", "/embedding", ROUTE_EXACT, false, &api_chat, NULL, NO_EMBEDDINGS},
	{"POST", "/rerank", ROUTE_EXACT, false, &api_chat, NULL, NO_RERANK},
	{"POST", "/reranking", ROUTE_EXACT, false, &api_chat, NULL, NO_RERANK},
	{"GET", "/health", ROUTE_EXACT, true, &api_chat, handle_health, NULL},
	{"GET", "/metrics", ROUTE_EXACT, false, &api_chat, handle_metrics, NULL},
	{"GET", "/v1/glmstream/state", ROUTE_EXACT, false, &api_chat, handle_state, NULL},
	{"GET", "/v1/glmstream/events", ROUTE_EXACT, false, &api_chat, handle_events, NULL},
	{"GET", "/favicon.ico", ROUTE_EXACT, true, &api_chat, handle_icon, NULL},
	{"GET", PAGE_FOLDER, ROUTE_BELOW, true, &api_chat, handle_page_file, NULL},
	{"GET", "/", ROUTE_EXACT, true, &api_chat, handle_page, NULL},
};

/* ---- finding ---- */

/* Without a "/" at the end or twice in a row. What is longer than `out` is no path of ours. */
static void path_simplify(const char *path, char out[ROUTE_PATH_MAX])
{
	size_t n = 0;
	for (; *path && n + 1 < ROUTE_PATH_MAX; path++)
		if (*path != '/' || !n || out[n - 1] != '/')
			out[n++] = *path;
	while (n > 1 && out[n - 1] == '/')
		n--;
	out[n] = 0;
}

/* The rest of `path` behind the route's path ("" when they are equal); NULL: no match. */
static const char *path_match(const struct server_route *r, const char *path)
{
	size_t n = strlen(r->path);
	if (r->kind == ROUTE_EXACT)
		return strcmp(path, r->path) ? NULL : "";
	return !strncmp(path, r->path, n) && path[n] ? path + n : NULL;
}

/* out: the path without superfluous "/"; with /v1 before it where only that is a route. */
static void path_resolve(const char *path, char out[ROUTE_PATH_MAX])
{
	path_simplify(path, out);
	char longer[ROUTE_PATH_MAX] = "/v1";
	for (size_t i = 0; i < ARRAY_LEN(routes); i++)
		if (path_match(&routes[i], out))
			return;
	strncat(longer, out, ROUTE_PATH_MAX - strlen(longer) - 1);
	for (size_t i = 0; i < ARRAY_LEN(routes); i++)
		if (path_match(&routes[i], longer)) {
			memcpy(out, longer, sizeof longer);
			return;
		}
}

const struct server_route *route_find(
	const char *method, const char *path, const char **allow, char *rest)
{
	static const char *const methods[] = {NULL, "GET, HEAD, OPTIONS", "POST, OPTIONS",
		"GET, HEAD, POST, OPTIONS", "DELETE, OPTIONS", "GET, HEAD, DELETE, OPTIONS",
		"POST, DELETE, OPTIONS", "GET, HEAD, POST, DELETE, OPTIONS"};
	char name[ROUTE_PATH_MAX];
	unsigned there = 0;
	*allow = NULL;
	path_resolve(path, name);
	if (!strcmp(method, "HEAD"))
		method = "GET";
	for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
		const struct server_route *r = &routes[i];
		const char *tail = path_match(r, name);
		if (tail && !strcmp(r->method, method)) {
			if (rest)
				memcpy(rest, tail, strlen(tail) + 1);
			return r;
		}
		if (tail) /* bits of `methods`: GET, POST, DELETE */
			there |= *r->method == 'G' ? 1 : *r->method == 'P' ? 2 : 4;
	}
	*allow = methods[there];
	return NULL;
}

const struct api *route_error_api(const struct exchange *x)
{
	char name[ROUTE_PATH_MAX];
	path_resolve(exchange_path(x), name);
	for (size_t i = 0; i < ARRAY_LEN(routes); i++)
		if (routes[i].error_api && path_match(&routes[i], name))
			return routes[i].error_api;
	if (!strncmp(name, "/api/", 5))
		return &api_ollama_chat;
	return exchange_header(x, "anthropic-version") ? &api_messages : &api_chat;
}

const char *route_list(void)
{
	return "there is nothing at this path. OpenAI: /v1/chat/completions, /v1/completions, "
		   "/v1/responses, /v1/responses/ID, /v1/models. Anthropic: /v1/messages, "
		   "/v1/messages/count_tokens. ollama: /api/chat, /api/generate, /api/tags, /api/show, "
		   "/api/ps, /api/version. llama.cpp: /completion, /tokenize, /detokenize, "
		   "/apply-template, /props, /slots. A page: /. For machines: /health, /metrics";
}

#endif
