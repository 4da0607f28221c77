/* SPDX-License-Identifier: MIT */
/* The page, health and metrics, the list of models, token counts, and responses that were kept.
 * Each answers its exchange once: exchange_reply takes the body. */
#if HAVE_HTTP
#include "src/serve/server_internal.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/serve/live.h"
#include "src/serve/page.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int64_t count_fn(
	const struct request_model *model, const char *body, size_t len, struct request_error *e);

/* Answers with how many tokens the body's text has; `head` stands before the number. */
static void answer_count(struct server *s, struct exchange *x, const struct api *error_api,
	count_fn *count, const char *head)
{
	size_t len;
	const char *text = exchange_body(x, &len);
	struct request_error e = {0};
	struct buf body = {0};
	struct request_model model = s->model;
	model.client = exchange_client(x);
	int64_t n = count(&model, text, len, &e);
	if (n < 0) {
		respond_refusal(x, error_api, &e);
		return;
	}
	buf_printf(&body, "{%s\"input_tokens\":%lld}", head, (long long)n);
	exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_count(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	answer_count(s, x, &api_messages, api_messages_count, "");
}

void handle_response_tokens(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	answer_count(
		s, x, &api_responses, api_responses_count, "\"object\":\"response.input_tokens\",");
}

/* ID or ID/input_items */
void handle_response_get(struct server *s, struct exchange *x, const char *rest)
{
	struct request_error e = {0};
	struct buf body = {0};
	struct request_model model = s->model;
	model.client = exchange_client(x);
	char id[ROUTE_PATH_MAX];
	size_t n = strcspn(rest, "/");
	const char *stream = exchange_query(x, "stream");
	memcpy(id, rest, n);
	id[n] = 0;
	int rc = 0;
	if (stream && !strcmp(stream, "true"))
		rc = request_refuse(&e, 400, "unsupported_parameter", "stream",
			"stream: a response that was kept is not streamed");
	else if (!strcmp(rest + n, "/input_items"))
		rc = api_responses_items(&model, id, exchange_query(x, "limit"), exchange_query(x, "order"),
			exchange_query(x, "after"), &body, &e);
	else if (rest[n])
		rc = request_refuse(&e, 404, "not_found", NULL, "%s", route_list());
	else
		rc = api_responses_get(&model, id, &body, &e);
	if (rc)
		respond_refusal(x, &api_responses, &e);
	else
		exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_response_delete(struct server *s, struct exchange *x, const char *rest)
{
	struct request_error e = {0};
	struct buf body = {0};
	if (api_responses_delete(&s->model, rest, &body, &e))
		respond_refusal(x, &api_responses, &e);
	else
		exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_models(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	struct buf body = {0};
	api_models_list(&s->model, exchange_header(x, "anthropic-version") != NULL, &body);
	exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_model(struct server *s, struct exchange *x, const char *rest)
{
	struct buf body = {0};
	struct request_error e = {0};
	bool anthropic = exchange_header(x, "anthropic-version") != NULL;
	if (api_models_one(&s->model, rest, anthropic, &body, &e))
		respond_refusal(x, route_error_api(x), &e);
	else
		exchange_reply(x, 200, JSON_TYPE, &body);
}

void handle_health(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
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

void handle_metrics(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	struct live_source live = live_of(s);
	struct metrics_gauges g;
	struct buf body = {0};
	live_gauges(&live, &g);
	struct response_store_stats kept = response_store_stats(s->model.responses);
	g.kept_responses = kept.responses;
	g.kept_bytes = kept.bytes;
	g.kept_forgotten = kept.forgotten;
	g.turn_bytes = turn_store_bytes(s->model.turns);
	g.turn_bytes_limit = g.kept_bytes_limit = s->options.remember_bytes / 2;
	g.request_bytes = atomic_load(&s->budget.held);
	g.request_bytes_peak = atomic_load(&s->budget.peak);
	g.request_bytes_limit = s->budget.limit;
	g.clients = http_clients(s->http);
	g.requests_over_budget = atomic_load(&s->budget.refused);
	metrics_text(s->metrics, &g, &body);
	exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static bool wants_map(const struct exchange *x)
{
	const char *map = exchange_query(x, "map");
	return !map || strcmp(map, "0") != 0;
}

void handle_state(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
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

void handle_events(struct server *s, struct exchange *x, const char *rest)
{
	(void)rest;
	const char *interval = exchange_query(x, "interval");
	struct watcher *w = NEW(struct watcher);
	if (!w) {
		exchange_reply(x, 503, NULL, &(struct buf){0});
		return;
	}
	long ms = interval ? strtol(interval, NULL, 10) : 500;
	*w = (struct watcher){
		.server = s, .map = wants_map(x), .interval_ms = (unsigned)MAX(MIN(ms, 10000), 100)};
	exchange_stream(x, "text/event-stream; charset=utf-8", next_state, free, w);
}

/* keep: the Cache-Control. */
static void reply_page_file(struct exchange *x, const struct page_file *f, const char *keep)
{
	struct buf body = {0};
	buf_append(&body, f->bytes, f->len);
	if (f->is_gzip)
		exchange_set_header(x, "Content-Encoding", "gzip");
	exchange_set_header(x, "Cache-Control", keep);
	exchange_reply(x, 200, f->type, &body);
}

void handle_icon(struct server *s, struct exchange *x, const char *rest)
{
	(void)s, (void)rest;
	reply_page_file(x, page_icon(), "max-age=86400");
}

void handle_page_file(struct server *s, struct exchange *x, const char *rest)
{
	(void)s;
	const struct page_file *f = page_find_file(rest);
	if (f) {
		reply_page_file(x, f, "public, max-age=31536000, immutable");
		return;
	}
	struct request_error e = {0};
	request_refuse(&e, 404, NULL, NULL, "the page has no such file; reload the page");
	respond_refusal(x, &api_chat, &e);
}

void handle_page(struct server *s, struct exchange *x, const char *rest)
{
	(void)s, (void)rest;
	struct buf body = {0};
	page_write(&body);
	exchange_set_header(x, "Content-Security-Policy", PAGE_POLICY);
	exchange_set_header(x, "Cache-Control", "no-store");
	exchange_reply(x, 200, "text/html; charset=utf-8", &body);
}

#endif
