/* SPDX-License-Identifier: MIT */
/* Opens the parts of the server in the order of their use, closes them in the reverse order, and
 * gives http.h what it calls. */
#if HAVE_HTTP
#include "src/serve/server_internal.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUDGET_FACTOR 8 /* memory of all requests, in largest bodies */
#define ARENAS_MAX    4 /* of the allocator; connections' threads share them */

static unsigned on_lookup(void *user, const char *method, const char *path, bool *open,
	const char **name, const char **allow)
{
	(void)user;
	const struct server_route *r = route_find(method, path, allow, NULL);
	if (!r)
		return *allow ? 405 : 404;
	*open = r->open;
	*name = r->path;
	return 0;
}

void server_respond(struct server *s, struct exchange *x, const struct api *api)
{
	respond(x, api, &s->model, s->scheduler, s->metrics, s->log);
}

static void on_handle(void *user, struct exchange *x)
{
	const char *allow;
	char rest[ROUTE_PATH_MAX];
	const struct server_route *r = route_find(exchange_method(x), exchange_path(x), &allow, rest);
	if (!r->refusal) {
		r->handle(user, x, rest);
		return;
	}
	struct request_error e = {0};
	request_refuse(&e, 400, "unsupported_endpoint", NULL, "%s", r->refusal);
	respond_refusal(x, r->error_api, &e);
}

static void on_refuse(
	void *user, const struct exchange *x, const struct http_refusal *why, struct buf *out)
{
	(void)user;
	struct request_error e = {0};
	request_refuse(&e, (int)why->status, why->code, NULL, "%s",
		why->status == 404 ? route_list() : why->message);
	route_error_api(x)->error(&e, out);
}

static void on_sent(void *user, const char *route, unsigned status)
{
	struct server *s = user;
	metrics_response(s->metrics, route, status);
}

static void on_done(void *user, const struct exchange *x, const struct http_done *d)
{
	struct server *s = user;
	request_log_done(s->log, x, d);
}

static void on_cut(void *user)
{
	struct server *s = user;
	metrics_add(s->metrics, METRICS_CUT_CONNECTIONS, 1);
}

static void on_tick(void *user)
{
	struct server *s = user;
	struct engine_cache cache = {0};
	engine_cache_snapshot(s->engine, &cache, NULL);
	metrics_tick(s->metrics, clock_ns(), cache.stats.bytes_read);
}

/* ---- open and close ---- */

int server_open(
	struct engine *g, const struct server_options *o, struct server **out, struct err *e)
{
	struct server *s = NEW(struct server);
	*out = NULL;
	s->engine = g;
	s->options = *o;
	s->started_ns = clock_ns();
	s->metrics = metrics_new();
	s->log = request_log_new();
	s->budget.limit = o->http.max_body_bytes * BUDGET_FACTOR;
#ifdef __GLIBC__
	mallopt(M_ARENA_MAX, ARENAS_MAX); /* each keeps what a burst of requests took */
#endif
	s->model = (struct request_model){.tokenizer = engine_tokenizer(g),
		.name = o->model_name,
		.strict_name = o->strict_model,
		.context = engine_context(g),
		.created = (int64_t)time(NULL),
		.sampling = o->sampling,
		.turns = turn_store_new(o->remember_bytes / 2),
		.tokens = token_trie_new(engine_tokenizer(g)),
		.budget = &s->budget};
	snprintf(s->model.fingerprint, sizeof s->model.fingerprint, "fp_%016llx",
		(unsigned long long)engine_fingerprint(g));
	for (uint32_t i = 0; i < tokenizer_n_tokens(s->model.tokenizer); i++)
		s->model.longest =
			MAX(s->model.longest, (uint32_t)tokenizer_token(s->model.tokenizer, (int32_t)i).len);
	engine_populate(g); /* a step that is wider than all before it takes no more memory */
	int rc = scheduler_open(g,
		&(struct scheduler_options){.n_sessions = o->sessions,
			.queue_limit = o->queue,
			.folder = o->folder,
			.folder_bytes = o->folder_bytes,
			.draft = o->draft},
		s->metrics, &s->scheduler, e);
	const struct http_calls calls = {.user = s,
		.lookup = on_lookup,
		.handle = on_handle,
		.refuse = on_refuse,
		.sent = on_sent,
		.done = on_done,
		.cut = on_cut,
		.tick = on_tick};
	if (!rc)
		rc = response_store_open(o->folder, o->remember_bytes / 2, &s->model.responses, e);
	struct http_options http = o->http;
	http.budget = &s->budget;
	if (!rc)
		rc = http_open(&http, &calls, &s->http, e);
	if (rc) {
		server_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

uint16_t server_port(const struct server *s)
{
	return http_port(s->http);
}

bool server_is_loopback(const struct server *s)
{
	return http_is_loopback(s->http);
}

void server_stop(struct server *s, unsigned grace_ms)
{
	http_quiesce(s->http, 0);
	scheduler_stop(s->scheduler, grace_ms);
	http_quiesce(s->http, 1000); /* the last bytes of what has ended */
}

void server_close(struct server *s)
{
	if (!s)
		return;
	/* connections use the scheduler, the scheduler's jobs end connections: first no more jobs, then
	 * no more connections */
	if (s->scheduler)
		scheduler_stop(s->scheduler, 0);
	http_close(s->http);
	scheduler_close(s->scheduler);
	turn_store_free(s->model.turns);
	token_trie_free((struct token_trie *)s->model.tokens);
	response_store_close(s->model.responses);
	metrics_free(s->metrics);
	request_log_free(s->log);
	free(s);
}

#endif
