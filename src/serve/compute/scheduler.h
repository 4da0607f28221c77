/* SPDX-License-Identifier: MIT */
/*
 * The one thread that computes. Jobs wait in a bounded queue until a session is free: clients get
 * them in turn (client_rank), the jobs of one client in their order. When a client waits for its
 * first session, an answer of one that has several may be preempted, and resumes later: the rules
 * are in scheduler_preempt.c.
 *
 * The jobs that have a session take turns: a step either reads prompts (rows shared by all sessions
 * that still read) or writes (the next token, and drafts, of up to SCHEDULER_ROWS sessions).
 * Reading and writing get the same time while both want it, and prompts are then read in slices
 * that take about as long as a few tokens. A step in which some prompts end has their rows, or
 * those of a slice if that is more: their first tokens do not wait for the prompts that go on.
 * Within both, clients that compute get the same time, however many answers each has
 * (client_time.h).
 *
 * An answer's tokens do not depend on who else is served. Where a device computes few rows in
 * another way (kernels/backend.h: Numbers), how many rows of a prompt are to be computed decides on
 * the way for all of them. One dependence is left there: rows of an earlier answer that a session
 * still holds have the bits of decoding; when others took the session they are computed as a
 * prompt.
 *
 * A session keeps its timeline when its job ends. A new job gets the idle session whose
 * conversation it goes on with; else the one that was idle longest, into which the longest common
 * prefix of any session is copied. What several jobs have in common is read once: the others wait
 * for it. With a folder, rows of prompts are kept on disk when a prompt has been read and when its
 * answer has ended, and are looked for there when no session has as many.
 *
 * With drafts (draft/draft.h) a step that writes computes several rows of an answer, and draws a
 * token from each row up to the first wrong draft. One gate serves all answers; the more of them
 * share a step, the fewer drafts each has. The tokens drawn are those without drafts.
 *
 * The scheduler knows nothing of requests and formats; it sees jobs (job.h).
 */
#ifndef GLM_SERVE_SCHEDULER_H
#define GLM_SERVE_SCHEDULER_H

#include "src/base/err.h"
#include "src/engine/draft/draft_mtp.h"
#include "src/engine/engine.h"
#include "src/engine/prefix_store.h"
#include "src/serve/compute/job.h"
#include "src/serve/metrics.h"

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULER_ROWS         64 /* most rows, and so sessions, in a step that writes */
#define SCHEDULER_SESSIONS_MAX 64

struct scheduler;

struct scheduler_options {
	uint32_t n_sessions, queue_limit;
	const char *folder;    /* store prompts' cache rows here (prefix_store.h); NULL: nowhere */
	uint64_t folder_bytes; /* at most; 0: the store's own limit */
	int draft;             /* DRAFT_OFF, DRAFT_AUTO or most drafts of an answer in a step */
};

/* Takes the engine for itself until scheduler_close: no other thread may compute with it. The
 * engine was opened for at least n_sessions. metrics is borrowed. */
int scheduler_open(struct engine *g, const struct scheduler_options *o, struct metrics *metrics,
	struct scheduler **out, struct err *e);

/* SHARE: there is room, but not for one more of this client (client_share.h). */
enum scheduler_answer { SCHEDULER_TAKEN, SCHEDULER_FULL, SCHEDULER_SHARE, SCHEDULER_ENDING };

/* Queues all n jobs, of one client, or none; holds each it takes. *retry_s (FULL, SHARE): an
 * estimate after how many seconds to come again. */
enum scheduler_answer scheduler_submit(
	struct scheduler *s, struct job *const *jobs, uint32_t n, unsigned *retry_s);

/* What scheduler_submit would say to one job of this client now; a refusal counts as one. */
enum scheduler_answer scheduler_ask(struct scheduler *s, struct client *client, unsigned *retry_s);

/* No new jobs from now on; what waits or is preempted is refused; what runs may go on for grace_ms,
 * then it is cut. Returns when nothing runs any more; every job has got its last event. May be
 * called once, before scheduler_close. */
void scheduler_stop(struct scheduler *s, unsigned grace_ms);
void scheduler_close(struct scheduler *s); /* NULL is fine; stops at once if that was not done */

/* The state of queue and sessions, from any thread. */
enum scheduler_state { SCHEDULER_IDLE, SCHEDULER_READING, SCHEDULER_WRITING };
struct scheduler_session {
	enum scheduler_state state;
	uint32_t tokens; /* on the timeline */
	uint32_t prompt; /* of the job */
	uint32_t done;   /* of the prompt */
	uint32_t new_tokens;
};
struct scheduler_snapshot {
	uint32_t n_sessions, active, waiting, queue_limit; /* waiting: with the preempted */
	uint32_t preempted;                                /* answers that are paused */
	uint64_t preempted_bytes, preempted_bytes_limit;   /* of them; limit 0: there is none */
	bool healthy;                                      /* the last step did not fail */
	struct prefix_store_stats store;                   /* zeros without a folder */
	struct draft_stats drafts;                         /* zeros without drafts */
	struct scheduler_session sessions[SCHEDULER_SESSIONS_MAX];
};
void scheduler_snapshot(struct scheduler *s, struct scheduler_snapshot *snapshot);

#endif
