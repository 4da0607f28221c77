/* SPDX-License-Identifier: MIT */
/* What the files of the server share: server.c opens and closes, routes/routes.c says which path
 * is whose, routes/handlers*.c answer. */
#ifndef GLM_SERVE_SERVER_INTERNAL_H
#define GLM_SERVE_SERVER_INTERNAL_H

#include "src/serve/api/api.h"
#include "src/serve/metrics.h"
#include "src/serve/http/request_log.h"
#include "src/serve/http/respond.h"
#include "src/serve/compute/scheduler.h"
#include "src/serve/server.h"

#define JSON_TYPE "application/json"

struct server {
	struct engine *engine;
	struct server_options options;
	struct request_model model;
	struct request_log *log;
	struct metrics *metrics;
	struct budget budget;
	struct scheduler *scheduler;
	struct http *http; /* set by http_open before it starts threads */
	uint64_t started_ns;
};

/* What a path holds for a method. */
struct server_route {
	const char *method, *path;              /* the path as /metrics counts it */
	enum { ROUTE_EXACT, ROUTE_BELOW } kind; /* BELOW: the path, and more behind it */
	bool open;                              /* no key is needed */
	const struct api *error_api;            /* writes refusals; NULL: by the client's headers */
	/* rest: what follows `path` in the path of a ROUTE_BELOW request, else "" */
	void (*handle)(struct server *s, struct exchange *x, const char *rest);
	const char *refusal; /* instead of handle: why this is not done here */
};

#define ROUTE_PATH_MAX 512

/* The route of a path and a method; NULL: there is none.
 * - path: a "/" at the end or twice in a row is ignored; "/v1" may be left out. HEAD is looked up
 * as GET.
 * - *allow: NULL, or after NULL the methods of this path if it has others.
 * - rest: out [ROUTE_PATH_MAX], as for `handle`; may be NULL. */
const struct server_route *route_find(
	const char *method, const char *path, const char **allow, char *rest);
/* The API in whose form a refusal is written: that of the path, and of the client where two share
 * it. */
const struct api *route_error_api(const struct exchange *x);
/* The sentence for a path that does not exist: it lists those that do. */
const char *route_list(void);

/* Answers by the rules of `api`; for the paths that a model answers. */
void server_respond(struct server *s, struct exchange *x, const struct api *api);

/* handlers.c: of this server itself, and the models. */
void handle_page(struct server *s, struct exchange *x, const char *rest);
void handle_page_file(struct server *s, struct exchange *x, const char *rest);
void handle_icon(struct server *s, struct exchange *x, const char *rest);
void handle_health(struct server *s, struct exchange *x, const char *rest);
void handle_metrics(struct server *s, struct exchange *x, const char *rest);
void handle_state(struct server *s, struct exchange *x, const char *rest);
void handle_events(struct server *s, struct exchange *x, const char *rest);
void handle_models(struct server *s, struct exchange *x, const char *rest);
void handle_model(struct server *s, struct exchange *x, const char *rest);
void handle_count(struct server *s, struct exchange *x, const char *rest);
void handle_response_tokens(struct server *s, struct exchange *x, const char *rest);
void handle_response_get(struct server *s, struct exchange *x, const char *rest);
void handle_response_delete(struct server *s, struct exchange *x, const char *rest);

/* handlers_clients.c: what ollama's and llama.cpp's clients ask about the server. */
void handle_ollama_chat(struct server *s, struct exchange *x, const char *rest);
void handle_ollama_generate(struct server *s, struct exchange *x, const char *rest);
void handle_ollama_tags(struct server *s, struct exchange *x, const char *rest);
void handle_ollama_ps(struct server *s, struct exchange *x, const char *rest);
void handle_ollama_show(struct server *s, struct exchange *x, const char *rest);
void handle_ollama_version(struct server *s, struct exchange *x, const char *rest);
void handle_tokenize(struct server *s, struct exchange *x, const char *rest);
void handle_detokenize(struct server *s, struct exchange *x, const char *rest);
void handle_template(struct server *s, struct exchange *x, const char *rest);
void handle_props(struct server *s, struct exchange *x, const char *rest);
void handle_slots(struct server *s, struct exchange *x, const char *rest);

#endif
