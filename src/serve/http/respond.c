/* SPDX-License-Identifier: MIT */
/* The connection's side of an answer: the events of its jobs become the bytes of a response. */
#if HAVE_HTTP
#include "src/serve/http/respond.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

#define WAIT_MS     100           /* how soon a client that left is noticed when no token comes */
#define PROGRESS_NS 1000000000ull /* between two signs of progress */
#define SILENCE_NS  2000000000ull /* the longest silence of a stream */

struct response_state {
	const struct api *api;
	struct exchange *exchange;
	struct request_model model; /* the server's, with the client */
	struct request request;
	struct reply reply;
	uint64_t last_ns; /* when something was written */
	bool begun, done;
};

void respond_refusal(struct exchange *x, const struct api *api, const struct request_error *e)
{
	struct buf body = {0};
	char seconds[16];
	api->error(e, &body);
	exchange_set_note(x, e->param[0] ? e->param : e->code ? e->code : "");
	if (e->retry_s) {
		snprintf(seconds, sizeof seconds, "%u", e->retry_s);
		exchange_set_header(x, "Retry-After", seconds);
	}
	exchange_reply(x, (unsigned)e->status, "application/json", &body);
}

static void response_state_free(void *user)
{
	struct response_state *t = user;
	uint64_t prompt = 0, written = 0;
	for (uint32_t i = 0; i < t->reply.n_answers; i++) {
		const struct reply_answer *a = &t->reply.answers[i];
		if (!a->ended) /* the client left */
			continue;
		prompt += i % t->request.n ? 0 : a->prompt_tokens;
		written += a->new_tokens;
	}
	exchange_set_tokens(t->exchange, prompt, written);
	reply_end(&t->reply);
	request_fini(&t->request);
	free(t);
}

/* ---- streams ---- */

static void write_event(
	struct response_state *t, struct reply_answer *a, const struct job_event *v, struct buf *out)
{
	struct request_error e = {0};
	if (v->kind == JOB_ERROR) {
		request_refuse_err(&e, v->err);
		t->api->broken(&t->reply, &e, out);
		t->done = true;
		return;
	}
	t->api->event(&t->reply, a, v, out);
	if (t->reply.n_ended == t->reply.n_answers) {
		t->api->end(&t->reply, out);
		t->done = true;
	}
}

/* Ends the stream with an error: memory is exhausted, or reply.refusal is set. What was written of
 * the latest event, out[from..), is removed. If there is no memory for the error either, the scope
 * has failed again, and the connection is cut. */
static void break_stream(struct response_state *t, size_t from, struct buf *out)
{
	struct request_error e = {0};
	if (out->len > from) {
		out->len = from;
		out->data[from] = 0;
	}
	mem_scope_clear();
	if (t->reply.refusal.status)
		e = t->reply.refusal;
	else
		request_refuse_memory(&e);
	t->api->broken(&t->reply, &e, out);
	t->done = true;
}

static bool stream_next(void *user, struct buf *out)
{
	struct response_state *t = user;
	struct reply_answer *a;
	size_t from = out->len;
	/* all events that wait go out together */
	struct job_event *v = reply_next(&t->reply, WAIT_MS, &a);
	uint64_t now = clock_ns();
	bool progress = false;
	if (v && !t->begun) {
		t->api->begin(&t->reply, out);
		t->begun = true;
	}
	for (; v; v = t->done || mem_scope_failed() ? NULL : reply_next(&t->reply, 0, &a)) {
		if (v->kind == JOB_PROGRESS)
			progress = t->reply.progress_done < t->reply.progress_total;
		bool wanted = v->kind != JOB_PROGRESS || t->request.return_progress;
		if (wanted && !mem_scope_failed()) /* else the answer lacks what the event says */
			write_event(t, a, v, out);
		job_event_free(v);
		if (!mem_scope_failed())
			from = out->len;
	}
	if (mem_scope_failed() || (t->reply.refusal.status && !t->done))
		break_stream(t, from, out);
	if (!out->len && now - t->last_ns > (progress ? PROGRESS_NS : SILENCE_NS))
		(t->begun || t->api->stream_type ? t->api->ping : api_comment_ping)(&t->reply, out);
	if (out->len)
		t->last_ns = now;
	return !t->done;
}

/* ---- whole answers ---- */

static void answer_whole(struct response_state *t)
{
	struct request_error e = {0};
	struct reply_answer *a;
	struct buf body = {0};
	while (t->reply.n_ended < t->reply.n_answers && !e.status && !mem_scope_failed()) {
		if (t->reply.refusal.status) {
			e = t->reply.refusal;
			break;
		}
		struct job_event *v = reply_next(&t->reply, WAIT_MS, &a);
		if (v && v->kind == JOB_ERROR)
			request_refuse_err(&e, v->err);
		job_event_free(v);
		bool goes_on = t->reply.n_ended < t->reply.n_answers && !e.status;
		if (goes_on && exchange_gone(t->exchange)) /* 499 is what proxies call this */
			request_refuse(&e, 499, NULL, NULL,
				"the client has left: the sending side of its connection is closed");
	}
	if (e.status) {
		respond_refusal(t->exchange, t->api, &e);
		return;
	}
	t->api->whole(&t->reply, &body);
	exchange_reply(t->exchange, 200, "application/json", &body);
}

void respond(struct exchange *x, const struct api *api, const struct request_model *model,
	struct scheduler *s, struct metrics *m, struct request_log *log)
{
	size_t len;
	const char *body = exchange_body(x, &len);
	struct request_error e = {0};
	struct response_state *t = NEW(struct response_state);
	if (!t) {
		exchange_reply(x, 503, NULL, &(struct buf){0});
		return;
	}
	t->api = api;
	t->exchange = x;
	t->model = *model;
	t->model.client = exchange_client(x);
	if (reply_possible(s, t->model.client, &e) ||
		api_parse(api, &t->model, body, len, &t->request, &e) ||
		reply_begin(&t->reply, &t->request, s, api->call_prefix, &e)) {
		respond_refusal(x, api, &e);
		response_state_free(t);
		return;
	}
	const char *name = json_string_value(json_object_get(t->request.body, "model"));
	if (name && !request_names_model(model, name))
		request_log_model(log, name, model->name);
	metrics_add(m, METRICS_REPLAYED, t->request.built.replayed);
	t->last_ns = clock_ns();
	if (t->request.stream) {
		exchange_stream(x, api->stream_type ? api->stream_type : "text/event-stream; charset=utf-8",
			stream_next, response_state_free, t);
		return;
	}
	answer_whole(t);
	response_state_free(t);
}

#endif
