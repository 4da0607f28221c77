/* SPDX-License-Identifier: MIT */
/* The table of paths, and what holds the parts together. */
#if HAVE_HTTP
#include "src/serve/server.h"

#include "src/base/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/api.h"
#include "src/serve/api/json_write.h"
#include "src/serve/live.h"
#include "src/serve/metrics.h"
#include "src/serve/page.h"
#include "src/serve/respond.h"
#include "src/serve/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPLAY_BYTES (64u << 20)
#define JSON_TYPE    "application/json"

struct server {
	struct engine *engine;
	struct server_options options;
	struct request_model model;
	struct metrics *metrics;
	struct scheduler *scheduler;
	struct http *http; /* set by http_open before it starts threads */
	uint64_t started_ns;
};

static const struct api *words_of(const struct exchange *x);

/* ---- handlers ---- */

static void post_chat(struct server *s, struct exchange *x)
{
	respond(x, &api_chat, &s->model, s->scheduler, s->metrics);
}

static void post_completions(struct server *s, struct exchange *x)
{
	respond(x, &api_completions, &s->model, s->scheduler, s->metrics);
}

static void post_responses(struct server *s, struct exchange *x)
{
	respond(x, &api_responses, &s->model, s->scheduler, s->metrics);
}

static void post_messages(struct server *s, struct exchange *x)
{
	respond(x, &api_messages, &s->model, s->scheduler, s->metrics);
}

static void post_count(struct server *s, struct exchange *x)
{
	size_t len;
	const char *text = exchange_body(x, &len);
	struct request_error e = {0};
	struct buf body = {0};
	int64_t n = api_messages_count(&s->model, text, len, &e);
	if (n < 0) {
		respond_refusal(x, &api_messages, &e);
		return;
	}
	buf_printf(&body, "{\"input_tokens\":%lld}", (long long)n);
	exchange_reply(x, 200, JSON_TYPE, &body);
}

static void get_models(struct server *s, struct exchange *x)
{
	struct buf body = {0};
	api_models_list(&s->model, exchange_header(x, "anthropic-version") != NULL, &body);
	exchange_reply(x, 200, JSON_TYPE, &body);
}

static void get_model(struct server *s, struct exchange *x)
{
	struct buf body = {0};
	struct request_error e = {0};
	bool anthropic = exchange_header(x, "anthropic-version") != NULL;
	if (api_models_one(&s->model, exchange_path(x) + strlen("/v1/models/"), anthropic, &body, &e))
		respond_refusal(x, words_of(x), &e);
	else
		exchange_reply(x, 200, JSON_TYPE, &body);
}

static void get_health(struct server *s, struct exchange *x)
{
	struct scheduler_snapshot snapshot;
	scheduler_snapshot(s->scheduler, &snapshot);
	bool ending = http_is_ending(s->http);
	struct buf body = {0};
	struct json_write w = {.out = &body};
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "status", ending ? "ending" : snapshot.healthy ? "ok" : "failing");
	json_write_string(&w, "model", s->model.name);
	json_write_int(&w, "active", snapshot.active);
	json_write_int(&w, "waiting", snapshot.waiting);
	json_write_close(&w, '}');
	exchange_reply(x, ending || !snapshot.healthy ? 503 : 200, JSON_TYPE, &body);
}

static struct live_source live_of(struct server *s)
{
	return (struct live_source){.engine = s->engine,
		.scheduler = s->scheduler,
		.metrics = s->metrics,
		.version = s->options.version,
		.model = s->model.name,
		.started_ns = s->started_ns,
		.connections = http_connections(s->http)};
}

static void get_metrics(struct server *s, struct exchange *x)
{
	struct live_source live = live_of(s);
	struct metrics_gauges g;
	struct buf body = {0};
	live_gauges(&live, &g);
	metrics_text(s->metrics, &g, &body);
	exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static bool wants_map(const struct exchange *x)
{
	const char *map = exchange_query(x, "map");
	return !map || strcmp(map, "0") != 0;
}

static void get_state(struct server *s, struct exchange *x)
{
	struct live_source live = live_of(s);
	struct buf body = {0};
	live_write(&live, wants_map(x), &body);
	exchange_set_header(x, "Cache-Control", "no-store");
	exchange_reply(x, 200, JSON_TYPE, &body);
}

struct watcher {
	struct server *server;
	bool map;
	unsigned interval_ms;
	uint64_t next_ns;
};

static bool next_state(void *user, struct buf *out)
{
	struct watcher *w = user;
	uint64_t now = clock_ns();
	if (http_is_ending(w->server->http))
		return false;
	if (now < w->next_ns) {
		uint64_t wait = MIN(w->next_ns - now, 100000000u);
		nanosleep(&(struct timespec){.tv_nsec = (long)wait}, NULL);
		return true;
	}
	struct live_source live = live_of(w->server);
	buf_puts(out, "event: state\ndata: ");
	live_write(&live, w->map, out);
	buf_puts(out, "\n\n");
	w->next_ns = now + w->interval_ms * 1000000ull;
	return true;
}

static void get_events(struct server *s, struct exchange *x)
{
	const char *interval = exchange_query(x, "interval");
	struct watcher *w = NEW(struct watcher);
	long ms = interval ? strtol(interval, NULL, 10) : 500;
	*w = (struct watcher){
		.server = s, .map = wants_map(x), .interval_ms = (unsigned)MAX(MIN(ms, 10000), 100)};
	exchange_stream(x, "text/event-stream; charset=utf-8", next_state, free, w);
}

static void get_page(struct server *s, struct exchange *x)
{
	(void)s;
	struct buf body = {0};
	struct err err = {0};
	char policy[PAGE_POLICY_MAX];
	if (page_write(&body, policy, &err)) {
		struct request_error e = {0};
		buf_free(&body);
		request_refuse_err(&e, &err);
		respond_refusal(x, &api_chat, &e);
		return;
	}
	exchange_set_header(x, "Content-Security-Policy", policy);
	exchange_set_header(x, "Cache-Control", "no-store");
	exchange_reply(x, 200, "text/html; charset=utf-8", &body);
}

/* ---- paths ---- */

struct place {
	const char *method, *path;
	bool prefix;             /* the path goes on behind it */
	bool open;               /* no key is needed */
	const struct api *words; /* whose form refusals have; NULL: the client's */
	void (*handle)(struct server *s, struct exchange *x);
};

static const struct place places[] = {
	{"POST", "/v1/chat/completions", false, false, &api_chat, post_chat},
	{"POST", "/v1/completions", false, false, &api_completions, post_completions},
	{"POST", "/v1/responses", false, false, &api_responses, post_responses},
	{"POST", "/v1/messages", false, false, &api_messages, post_messages},
	{"POST", "/v1/messages/count_tokens", false, false, &api_messages, post_count},
	{"GET", "/v1/models", false, false, NULL, get_models},
	{"GET", "/v1/models/", true, false, NULL, get_model},
	{"GET", "/health", false, true, &api_chat, get_health},
	{"GET", "/metrics", false, false, &api_chat, get_metrics},
	{"GET", "/v1/glmstream/state", false, false, &api_chat, get_state},
	{"GET", "/v1/glmstream/events", false, false, &api_chat, get_events},
	{"GET", "/", false, true, &api_chat, get_page},
};

static bool at_path(const struct place *r, const char *path)
{
	size_t n = strlen(r->path);
	return r->prefix ? !strncmp(path, r->path, n) && path[n] : !strcmp(path, r->path);
}

/* NULL: none. *allow: the path is there for these methods only, else NULL. HEAD is GET without the
 * bytes. */
static const struct place *find_place(const char *method, const char *path, const char **allow)
{
	*allow = NULL;
	if (!strcmp(method, "HEAD"))
		method = "GET";
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		if (!at_path(&places[i], path))
			continue;
		if (!strcmp(places[i].method, method))
			return &places[i];
		*allow = *places[i].method == 'G' ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
	}
	return NULL;
}

/* The API in whose form a refusal is written: that of the path, and of the client where two share
 * it. */
static const struct api *words_of(const struct exchange *x)
{
	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		if (at_path(&places[i], exchange_path(x)) && places[i].words)
			return places[i].words;
	return exchange_header(x, "anthropic-version") ? &api_messages : &api_chat;
}

static unsigned on_lookup(void *user, const char *method, const char *path, bool *open,
	const char **name, const char **allow)
{
	(void)user;
	const struct place *r = find_place(method, path, allow);
	if (!r)
		return *allow ? 405 : 404;
	*open = r->open;
	*name = r->path;
	return 0;
}

static void on_handle(void *user, struct exchange *x)
{
	const char *allow;
	find_place(exchange_method(x), exchange_path(x), &allow)->handle(user, x);
}

static void on_refuse(
	void *user, const struct exchange *x, const struct http_refusal *why, struct buf *out)
{
	(void)user;
	struct request_error e = {0};
	request_refuse(&e, (int)why->status, why->code, NULL, "%s", why->message);
	words_of(x)->error(&e, out);
}

static void on_sent(void *user, const char *route, unsigned status)
{
	struct server *s = user;
	metrics_response(s->metrics, route, status);
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
	s->model = (struct request_model){.tokenizer = engine_tokenizer(g),
		.name = o->model_name,
		.any_name = o->any_model,
		.context = engine_context(g),
		.created = (int64_t)time(NULL),
		.sampling = o->sampling,
		.turns = turn_store_new(REPLAY_BYTES)};
	snprintf(s->model.fingerprint, sizeof s->model.fingerprint, "fp_%016llx",
		(unsigned long long)engine_fingerprint(g));
	for (uint32_t i = 0; i < tokenizer_n_tokens(s->model.tokenizer); i++)
		s->model.longest =
			MAX(s->model.longest, (uint32_t)tokenizer_token(s->model.tokenizer, (int32_t)i).len);
	json_object_seed(0); /* before there are threads that might do it at the same time */
	int rc = scheduler_open(g,
		&(struct scheduler_options){.n_sessions = o->sessions,
			.queue_limit = o->queue,
			.folder = o->folder,
			.folder_bytes = o->folder_bytes},
		s->metrics, &s->scheduler, e);
	const struct http_calls calls = {.user = s,
		.lookup = on_lookup,
		.handle = on_handle,
		.refuse = on_refuse,
		.sent = on_sent,
		.cut = on_cut,
		.tick = on_tick};
	if (!rc)
		rc = http_open(&o->http, &calls, &s->http, e);
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
	metrics_free(s->metrics);
	free(s);
}

#endif
