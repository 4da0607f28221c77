/* SPDX-License-Identifier: MIT */
/*
 * The APIs: each is a parser of request bodies and a writer of answers, in the folder of who
 * defined it (openai/, anthropic/, ollama/, llamacpp/). They know JSON and event formats; not
 * sockets, not the scheduler. All run on the connection's thread.
 *
 * Writers append to `out`.
 * - A stream is begin, any number of event and ping, then end, or broken in place of end. An API
 *   with a stream_type gets ping before begin too. event gets what is in the answer already
 *   (reply_next): JOB_END, JOB_PROGRESS only if the request has return_progress, never JOB_ERROR.
 * - A response without a stream is one call of whole, when all answers have ended.
 */
#ifndef GLM_SERVE_API_H
#define GLM_SERVE_API_H

#include "src/base/buf.h"
#include "src/serve/api/reply.h"
#include "src/serve/api/request.h"

#include <time.h>

struct api {
	const char *name;        /* its path */
	const char *call_prefix; /* of the ids of calls: "call_"; NULL: its calls have none */
	const char *stream_type; /* Content-Type of a stream; NULL: text/event-stream */
	/* Fills in the request from r->model and r->body. 0, or -1 with a refusal. */
	int (*parse)(struct request *r, struct request_error *e);
	void (*begin)(struct reply *r, struct buf *out);
	void (*event)(
		struct reply *r, struct reply_answer *a, const struct job_event *v, struct buf *out);
	void (*end)(struct reply *r, struct buf *out);
	void (*broken)(struct reply *r, const struct request_error *e, struct buf *out);
	void (*ping)(struct reply *r, struct buf *out);
	void (*whole)(struct reply *r, struct buf *out);
	void (*error)(const struct request_error *e, struct buf *out); /* the body of a refusal */
};

extern const struct api api_chat, api_completions, api_responses, api_messages, api_ollama_chat,
	api_ollama_generate, api_llamacpp;

/* What JSON text takes at most as a tree, and its strings in a conversation. */
size_t api_json_bytes(const char *text, size_t len);

/* Parses a body for an API: JSON, then the API's members. *r is overwritten. 0, or -1 with a
 * refusal; the caller calls request_fini in any case. */
int api_parse(const struct api *api, const struct request_model *model, const char *body,
	size_t len, struct request *r, struct request_error *e);

/* Anthropic's /v1/messages/count_tokens: the number of tokens of the prompt; -1 with a refusal. */
int64_t api_messages_count(
	const struct request_model *model, const char *body, size_t len, struct request_error *e);

/* OpenAI's /v1/responses/input_tokens: the number of tokens of the prompt; -1 with a refusal. */
int64_t api_responses_count(
	const struct request_model *model, const char *body, size_t len, struct request_error *e);
/* A response that was kept (response_store.h): appends the object; appends the list of the items it
 * answered (limit, order and after as in the query, each may be NULL); deletes it and appends the
 * confirmation. 0, or -1 with a refusal. */
int api_responses_get(
	const struct request_model *m, const char *id, struct buf *out, struct request_error *e);
int api_responses_items(const struct request_model *m, const char *id, const char *limit,
	const char *order, const char *after, struct buf *out, struct request_error *e);
int api_responses_delete(
	const struct request_model *m, const char *id, struct buf *out, struct request_error *e);

/* llama.cpp's /tokenize, /detokenize and /apply-template: append the answer to `body`. 0, or -1
 * with a refusal. */
int api_tokenize(const struct request_model *model, const char *body, size_t len, struct buf *out,
	struct request_error *e);
int api_detokenize(const struct request_model *model, const char *body, size_t len, struct buf *out,
	struct request_error *e);
int api_apply_template(const struct request_model *model, const char *body, size_t len,
	struct buf *out, struct request_error *e);

/* ---- pieces that APIs share ---- */

struct json_write;
void api_openai_error(const struct request_error *e, struct buf *out);
void api_openai_broken(struct reply *r, const struct request_error *e, struct buf *out);
/* A comment of an event stream (SSE) that says what the server does: ": reading the prompt, 2512 of
 * 3000 tokens, 2000 of them cached, 7 s left". */
void api_comment_ping(struct reply *r, struct buf *out);
void api_sse_data(struct buf *out, const struct buf *json); /* "data: {...}\n\n" */
/* Closes the object and sends it as "event: TYPE\ndata: {...}\n\n"; frees it. */
void api_sse_event(struct json_write *w, const char *type, struct buf *out);
/* "tool_choice": "auto", "none", "required" or an object that names a function, in either of
 * OpenAI's forms; and "parallel_tool_calls". */
int api_openai_choice(struct request *r, struct request_error *e);
/* "2026-01-31T12:00:00Z" */
void api_time_text(time_t t, char out[40]);
/* Tokens with their log probabilities and those of their rivals: an array. ids: with their ids. */
void api_write_tokens(struct json_write *w, const char *key, const struct tokenizer *t,
	const struct output_token *rows, size_t n, bool ids);
/* Chat and text completions: what the answer and each chunk begin with, "usage", and the end of a
 * stream. */
void api_completion_head(struct json_write *w, const struct request *q, const char *object);
void api_completion_usage(struct json_write *w, const struct reply *r);
void api_completion_end(const struct reply *r, const char *object, struct buf *out);

/* llama.cpp's "prompt_progress" if v is JOB_PROGRESS; else nothing. */
void api_write_progress(struct json_write *w, const struct job_event *v);

/* The list of models, and one of them: 0, or -1 with a refusal. */
void api_models_list(const struct request_model *m, bool anthropic, struct buf *out);
int api_models_one(const struct request_model *m, const char *name, bool anthropic, struct buf *out,
	struct request_error *e);

#endif
