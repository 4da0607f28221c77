/* SPDX-License-Identifier: MIT */
/*
 * The answers to a request while they come: the jobs in the scheduler's hands, and what has arrived
 * of each. An API's writer (api.h) reads it; the connection's thread owns it.
 */
#ifndef GLM_SERVE_REPLY_H
#define GLM_SERVE_REPLY_H

#include "src/serve/compute/job.h"
#include "src/serve/api/request.h"
#include "src/serve/compute/scheduler.h"

struct reply_call {
	char id[40];                /* made by us; how a client names the call when it answers */
	struct buf name, arguments; /* arguments: the beginning of a JSON object until it is complete */
	bool complete;
	size_t text_at, rows_at; /* text and rows that came before it */
};

/* Appends the arguments as a whole JSON object: of a call that was cut off those that were
 * complete. */
void reply_call_object(const struct reply_call *c, struct buf *out);

struct reply_answer {
	uint32_t index;
	struct job *job; /* held */
	struct buf reasoning, text;
	struct reply_call *calls; /* [n_calls] */
	size_t n_calls;
	struct output_token *rows; /* [n_rows] of the text, if logprobs were asked for */
	size_t n_rows;
	bool ended;
	enum job_finish finish;
	const char *stop;                      /* the stop string that came, or NULL */
	uint32_t prompt_tokens, cached_tokens; /* since the first progress */
	uint32_t new_tokens, reasoning_tokens; /* once it has ended */
	/* for the writer of a stream */
	int open;         /* what it has begun and not ended; 0: nothing */
	uint32_t n_items; /* begun so far */
	size_t segment;   /* which one is open */
	size_t text_sent, rows_sent;
	size_t characters; /* of the text sent (completions) */
};

struct reply {
	struct request *request; /* borrowed */
	struct mailbox *mail;
	struct reply_answer *answers; /* [n_answers] prompt by prompt */
	uint32_t n_answers, n_ended;
	uint64_t sequence;            /* of the writer's events */
	const char *call_prefix;      /* of the ids of calls: "call_" */
	size_t held;                  /* what the answers count for so far */
	size_t before;                /* and the request without them */
	struct request_error refusal; /* status 0: none; else they need more than there is */
	/* the latest JOB_PROGRESS of any answer; total 0: nothing has begun */
	uint32_t progress_done, progress_total, progress_cached;
	uint64_t progress_ns;
};

/* Seconds until the prompt of the latest progress is read: the rate of the tokens computed so far.
 * 0: it is not known yet. */
double reply_prompt_left(const struct reply *r);

/* Whether one more answer to this client would be taken now: asked before a body is parsed. 0, or
 * -1 as reply_begin. */
int reply_possible(struct scheduler *s, struct client *client, struct request_error *e);

/* Makes the jobs and submits them. On a refusal (queue full: 429, ending: 503) -1 with *e; the
 * reply must be ended all the same. */
int reply_begin(struct reply *r, struct request *request, struct scheduler *s,
	const char *call_prefix, struct request_error *e);

/* The next event, already entered into its answer (*answer), or NULL after timeout_ms. In a scope
 * (mem.h) that runs out of memory the answer lacks what did not fit. The caller frees it. The call
 * that JOB_CALL, JOB_ARGUMENTS and JOB_CALL_END speak of is the answer's last.
 */
struct job_event *reply_next(struct reply *r, int timeout_ms, struct reply_answer **answer);

/* When the answers come to need more memory than requests may hold (budget.h), reply_next sets
 * r->refusal, and the caller ends the reply. */

/* Nanoseconds of an answer that has ended: waiting for a session, reading, writing, all. */
struct reply_times {
	uint64_t wait_ns, prompt_ns, answer_ns, total_ns;
};
struct reply_times reply_times(const struct reply_answer *a);

/* Text between calls, in order: segment k stands before call k, the last behind all calls. Blank
 * ones do not count when there are calls. False: there is nothing to show. */
struct reply_segment {
	const char *text;
	size_t len;
	const struct output_token *rows;
	size_t n_rows;
};
bool reply_segment(const struct reply_answer *a, size_t k, struct reply_segment *out);

/* Nobody waits any more: cancels what has not ended, releases everything. A zeroed struct is fine.
 */
void reply_end(struct reply *r);

#endif
