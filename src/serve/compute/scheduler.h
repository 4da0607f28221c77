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
 * that take about as long as a few tokens. A step in which some prompts end and others do not is
 * kept short, so that the first tokens of the former do not wait for the latter (slices.h). Within
 * both, clients that compute get the same time, however many answers each has (client_time.h).
 *
 * An answer's tokens do not depend on who else is served, with one exception. A device may compute
 * steps of few rows in another way, which differs in the last bits (kernels/backend.h: Numbers).
 * All rows of a prompt are computed in one way, chosen by how many of them are not cached. The
 * exception are the rows of an earlier answer: a session that still holds them has the bits of
 * decoding; if another job took that session, they are computed anew as part of the prompt.
 *
 * A session keeps its timeline when its job ends. A new job gets the idle session whose
 * conversation it continues; else the one that was idle longest, into which the longest common
 * prefix of any session is copied. A common prefix of several jobs is computed once: the other jobs
 * wait for it. With a folder, cache rows are stored there when a prompt has been read and when its
 * answer has ended. They are restored when no session has as many.
 *
 * With drafts (draft/draft.h) a step that writes computes several rows of an answer, and draws a
 * token from each row up to the first wrong draft. One gate (draft/draft_gate.h) serves all
 * answers. The more of them share a step, the fewer drafts each has. The tokens drawn are the same
 * as without drafts.
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

/* Queues all of n >= 1 jobs, of one client, or none; holds each that it takes. *retry_s: out with
 * FULL and SHARE, seconds after which there may be room (an estimate, 1 to 60). */
enum scheduler_answer scheduler_submit(
	struct scheduler *s, struct job *const *jobs, uint32_t n, unsigned *retry_s);

/* What scheduler_submit would return now for one job of this client. A refusal is counted in the
 * metrics as one of scheduler_submit is. */
enum scheduler_answer scheduler_check_room(
	struct scheduler *s, struct client *client, unsigned *retry_s);

/* Takes no new jobs. Jobs that wait or are preempted fail. Those that run may go on for grace_ms,
 * then they fail too. Returns when every job has got its last event; at once if it was called
 * before. */
void scheduler_stop(struct scheduler *s, unsigned grace_ms);
/* NULL is fine. Calls scheduler_stop with 0 if nobody has. */
void scheduler_close(struct scheduler *s);

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
	uint64_t preempted_bytes, preempted_bytes_limit;   /* limit 0: nothing is preempted */
	bool healthy;                                      /* the last step did not fail */
	struct prefix_store_stats store;                   /* zeros without a folder */
	struct draft_stats drafts;                         /* zeros without drafts */
	struct scheduler_session sessions[SCHEDULER_SESSIONS_MAX];
};
void scheduler_snapshot(struct scheduler *s, struct scheduler_snapshot *snapshot);

#endif
