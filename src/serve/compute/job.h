/* SPDX-License-Identifier: MIT */
/*
 * A job: one answer to be generated. A connection makes it, the scheduler computes it, and what
 * happens travels back as events through the mailbox of the request (a request that asks for
 * several answers has several jobs and one mailbox).
 *
 * Threads: fields marked "constant" are set before the job is submitted; those marked "compute"
 * belong to the compute thread, and may be read by the connection once it has taken the job's last
 * event. A job lives as long as somebody holds it: job_hold, job_drop.
 */
#ifndef GLM_SERVE_JOB_H
#define GLM_SERVE_JOB_H

#include "src/base/err.h"
#include "src/engine/sampler.h"
#include "src/serve/budget.h"
#include "src/serve/compute/output.h"
#include "src/text/vocab.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum job_finish {
	JOB_STOP_TOKEN,  /* the model ended its turn */
	JOB_STOP_STRING, /* a stop string came; see job_event.stop */
	JOB_ONE_CALL,    /* the one tool call that was asked for is complete */
	JOB_LENGTH,      /* max_new reached, or the context is full */
	JOB_CANCELLED,   /* the client left, or the server ends */
};

enum job_event_kind {
	JOB_PROGRESS, /* done of total prompt tokens are computed */
	JOB_REASONING,
	JOB_TEXT,
	JOB_CALL,      /* a call begins */
	JOB_ARGUMENTS, /* of the latest call */
	JOB_CALL_END,  /* the latest call is complete */
	JOB_END,       /* the last event of a job */
	JOB_ERROR,     /* the last event of a job */
};

struct job_event {
	struct job_event *next;
	enum job_event_kind kind;
	uint32_t index;  /* which job of the request */
	struct buf text; /* REASONING, TEXT, ARGUMENTS: the next piece; CALL: the name */
	/* TEXT: [n_rows] the tokens of this piece, if logprobs were asked for */
	struct output_token *rows;
	size_t n_rows;
	/* TEXT: the tokens since the event before, if token_ids were asked for: those of this piece,
	 * and those that wrote no text of their own */
	struct token_ids ids;
	/* PROGRESS: */
	uint32_t done, total;   /* of the prompt's tokens; inside a step estimated by layers */
	uint32_t cached;        /* of done: tokens that were not computed */
	uint64_t reading_ns;    /* time since the computing of the other done - cached began */
	enum job_finish finish; /* END */
	int stop;               /* END by JOB_STOP_STRING: which one; else -1 */
	struct err *err;        /* ERROR */
};

void job_event_free(struct job_event *v); /* NULL is fine */

/* Events of one request on their way from the compute thread to the connection; any thread. It has
 * no limit of its own: pieces of text are joined, and max_new bounds the rest. */
struct mailbox;

struct mailbox *mailbox_new(void); /* held once by the caller; NULL in a scope only (mem.h) */
void mailbox_hold(struct mailbox *m);
void mailbox_drop(struct mailbox *m);
/* Takes v. A piece of text is appended to the last waiting event, if that is of the same text. */
void mailbox_put(struct mailbox *m, struct job_event *v);
/* The next event, or NULL after `timeout_ms`. The caller frees it. */
struct job_event *mailbox_take(struct mailbox *m, int timeout_ms);

/* What the answers to one request share: trees of tools and long prompts are not copied for each.
 * Constant once a job was submitted, but for `part`, which the connection changes. */
struct job_shared {
	atomic_int holders;
	struct output_options output;
	struct token_ids *prompts; /* [n_prompts] */
	size_t n_prompts;
	struct budget_part part; /* the memory of the whole request */
};

struct job_shared *job_shared_new(void);    /* the caller holds it; NULL in a scope only */
void job_shared_drop(struct job_shared *s); /* NULL is fine */
void job_shared_fini(struct job_shared *s); /* frees what s owns, but not s; nobody else holds it */

struct job {
	atomic_int holders;
	/* constant */
	struct mailbox *mail;
	uint32_t index;
	struct job_shared *shared; /* held; owns what prompt and options point to; NULL: the job does */
	struct token_ids prompt;
	uint32_t max_new; /* 0: compute the prompt only */
	struct sampler_options sampling;
	struct output_options options;
	uint64_t submitted_ns;
	struct client *client; /* whose it is; `shared` holds it; NULL: nobody's */
	/* set by the connection when nobody waits for the answer any more */
	atomic_bool cancel;
	/* compute */
	struct job *next; /* in the scheduler's queue, guarded by its lock */
	/* Of a preempted job, while it is in the queue: its timeline and what that takes; NULL: it is
	 * not preempted. The scheduler frees it. */
	struct session_image *swapped;
	size_t swapped_bytes;
	struct job_event *last; /* made with the job, so that it can always end; NULL: given out */
	struct output *output;
	struct sampler sampler;
	struct token_ids generated;                    /* everything sampled but the stop token */
	size_t n_ids_sent;                             /* of them, in events */
	uint32_t cached;                               /* prompt tokens that were not computed */
	bool cut_in_call;                              /* it ended inside a call */
	uint64_t started_ns, first_token_ns, ended_ns; /* clock_ns(); 0: not yet */
	uint64_t reading_ns; /* clock_ns() when its own rows of the prompt began to be computed */
};

/* The compute thread calls these in a scope (mem.h). Once an allocation has failed in it, the job
 * lacks something, and job_fail with ERR_MEMORY is next: job_end does that by itself. */

/* Makes output and sampler. What the output gives out goes to the mailbox from now on. */
void job_begin(struct job *j, const struct tokenizer *t);
void job_progress(struct job *j, uint32_t done, uint32_t total);
/* One of these two is called, once, and sends the last event. job_end gives out what was held back
 * before that. Then only job_drop may follow. */
void job_end(struct job *j, enum job_finish finish);
void job_fail(struct job *j, const struct err *e);
#define JOB_NO_MEMORY "there is no memory for the answer; try again in a few seconds"

/* A job without prompt and options, held by the caller; it holds `mail`. NULL in a scope only. */
struct job *job_new(struct mailbox *mail, uint32_t index);
/* The job gets prompt number `prompt`, options and client of `shared`, and holds it. */
void job_share(struct job *j, struct job_shared *shared, size_t prompt);
void job_hold(struct job *j);
void job_drop(struct job *j); /* NULL is fine */

#endif
