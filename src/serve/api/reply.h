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
	char id[40]; /* made by us; how a client names the call when it answers; empty: none */
	struct buf name, arguments; /* arguments: the beginning of a JSON object until it is complete */
	bool complete;
	size_t text_at, rows_at; /* text and rows that came before it */
};

/* Appends the arguments as a whole JSON object: of a call that was cut off, the complete ones. */
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
	/* Once it has ended: [n_ids] its tokens, of which n_ids_sent came in events (job_event.ids). Of
	 * the job. */
	const int32_t *ids;
	size_t n_ids, n_ids_sent;
	/* for the writer of a stream */
	int open;         /* kind of the item that is open, in the writer's numbers; 0: none */
	uint32_t n_items; /* closed so far: the index of the one that is open */
	size_t segment;   /* of the text that is open (reply_segment) */
	size_t text_sent, rows_sent; /* bytes of text, number of rows */
	/* characters: in the first n_counted bytes of text (completions) */
	size_t n_counted, characters;
};

struct reply {
	struct request *request; /* borrowed */
	struct mailbox *mail;
	struct reply_answer *answers; /* [n_answers] prompt by prompt */
	uint32_t n_answers, n_ended;
	uint64_t sequence;            /* of the writer's events */
	const char *call_prefix;      /* of the ids of calls: "call_"; NULL: calls have none */
	size_t held;                  /* bytes that the answers hold of the budget */
	size_t before;                /* bytes that the request held of it without them */
	struct request_error refusal; /* set by reply_next; status 0: none */
	/* of the latest JOB_PROGRESS of any answer: tokens, and its reading_ns; total 0: none came */
	uint32_t progress_done, progress_total, progress_cached;
	uint64_t progress_ns;
};

/* Seconds until the prompt of the latest progress is read, at the rate so far. 0: not known yet. */
double reply_prompt_left(const struct reply *r);

/* Whether one more answer to this client would be queued now; to be called before a body is parsed.
 * 0, or -1 with a refusal as of reply_begin. */
int reply_possible(struct scheduler *s, struct client *client, struct request_error *e);

/* Makes the jobs and submits them. 0, or -1 with *e:
 *   429  the queue, or the client's share of queue or memory, is full
 *   413  the request may not hold so much memory
 *   503  the server is ending, or memory is exhausted
 * reply_end in any case. */
int reply_begin(struct reply *r, struct request *request, struct scheduler *s,
	const char *call_prefix, struct request_error *e);

/* The next event, already entered into its answer (*answer), or NULL after timeout_ms. The caller
 * frees it (job_event_free).
 * - JOB_CALL, JOB_ARGUMENTS and JOB_CALL_END are about the last of the answer's calls.
 * - If memory runs out in the caller's scope (mem.h), the answer lacks what did not fit.
 * - If the answers need more memory than requests may hold (budget.h), r->refusal is set, and the
 *   caller ends the reply. */
struct job_event *reply_next(struct reply *r, int timeout_ms, struct reply_answer **answer);

/* Nanoseconds of an answer that has ended: until it had a session, from there to the first token,
 * from there to the end, all. Zeros if it never had a session. */
struct reply_times {
	uint64_t wait_ns, prompt_ns, answer_ns, total_ns;
};
struct reply_times reply_times(const struct reply_answer *a);

/* The text between calls: segment k stands before call k, segment n_calls behind all calls. *out is
 * set in any case. False: the segment is empty or blank, and is not shown. */
struct reply_segment {
	const char *text;
	size_t len;
	const struct output_token *rows;
	size_t n_rows;
};
bool reply_segment(const struct reply_answer *a, size_t k, struct reply_segment *out);

/* Cancels the jobs that have not ended and releases everything. A zeroed struct is fine. */
void reply_end(struct reply *r);

#endif
