/* SPDX-License-Identifier: MIT */
/*
 * `glmstream serve`: an engine behind HTTP. What is served where (routes/routes.c has the table):
 *
 *   POST /v1/chat/completions  /v1/completions  /v1/responses    OpenAI (api/openai/)
 *   GET, DELETE /v1/responses/ID                                 responses that were kept
 *   POST /v1/messages  /v1/messages/count_tokens                 Anthropic (api/anthropic/)
 *   POST /api/chat  /api/generate  /api/show                     ollama (api/ollama/)
 *   GET  /api/tags  /api/ps  /api/version                        ollama
 *   POST /completion  /tokenize  /detokenize  /apply-template    llama.cpp (api/llamacpp/)
 *   GET  /props  /slots                                          llama.cpp
 *   GET  /v1/models  /v1/models/NAME                             either; Anthropic's form with an
 *                                                                anthropic-version header
 *   GET  /health                                                 {"status": "ok" | "failing" |
 *                                                                "ending"}; 200 or 503
 *   GET  /metrics                                                Prometheus text (metrics.h)
 *   GET  /v1/glmstream/state  /v1/glmstream/events               what the page shows, once or as a
 *                                                                stream (live.h)
 *   GET  /                                                       the page (page.h)
 *
 * A "/" at the end of a path is ignored. "/v1" may be left out where that names no other path.
 *
 * With an API key, everything but /health and the page with its files needs it.
 *
 * Threads: one computes (scheduler.h), one per connection (http.h), one watchdog. The caller's
 * thread only opens and closes.
 */
#ifndef GLM_SERVE_SERVER_H
#define GLM_SERVE_SERVER_H

#include "src/base/err.h"
#include "src/engine/engine.h"
#include "src/engine/sampler.h"
#include "src/serve/http/http.h"

struct server;

struct server_options {
	struct http_options http;
	uint32_t sessions;     /* the engine was opened for as many */
	uint32_t queue;        /* most answers that wait for a session */
	const char *folder;    /* --session-dir; NULL: none; borrowed while opening */
	uint64_t folder_bytes; /* 0: the store's own limit */
	/* Most bytes of answers that are remembered for clients that send them back (turn_store.h), and
	 * of kept responses (response_store.h): half each */
	uint64_t remember_bytes;
	int draft;              /* as of scheduler_options */
	const char *model_name; /* borrowed until server_close */
	bool strict_model;      /* refuse requests that name another model */
	const char *version;
	struct sampler_options sampling; /* defaults of requests */
};

/* Takes the engine for itself until server_close. */
int server_open(
	struct engine *g, const struct server_options *o, struct server **out, struct err *e);
uint16_t server_port(const struct server *s);
bool server_is_loopback(const struct server *s);

/* Takes no new connections. Answers that run may end within grace_ms, then they are cut. Returns at
 * most about a second after that. */
void server_stop(struct server *s, unsigned grace_ms);
void server_close(struct server *s); /* NULL is fine */

#endif
