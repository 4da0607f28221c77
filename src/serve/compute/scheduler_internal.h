/* SPDX-License-Identifier: MIT */
/*
 * Private to the scheduler: its state, and what its files do for each other.
 * - scheduler.c: the thread, the queue, the published snapshot.
 * - scheduler_slots.c: which session gets a job, where its beginning comes from, how it ends.
 * - scheduler_preempt.c: which answer is preempted for another client, and how it resumes.
 * - scheduler_steps.c: which rows are computed next, and what becomes of their logits.
 * - scheduler_prompts.c: which prompts are read, and how their steps follow each other.
 *
 * The lock guards the queue, the flags and the published snapshot; it is never held while
 * computing. Fields marked "compute" belong to the compute thread.
 */
#ifndef GLM_SERVE_SCHEDULER_INTERNAL_H
#define GLM_SERVE_SCHEDULER_INTERNAL_H

#include "src/engine/batch.h"
#include "src/serve/compute/client_time.h"
#include "src/serve/compute/scheduler.h"
#include "src/serve/compute/slices.h"

#include <pthread.h>

/* Owned by the compute thread. */
struct slot {
	struct session *session;
	struct draft_timeline *drafts; /* NULL: none are made */
	struct job *job;               /* NULL: idle */
	struct client_time *time;      /* of the job's client; NULL: nobody's */
	enum scheduler_state state;
	int32_t next;        /* WRITING: the token drawn last, computed by the next step */
	uint32_t prompt;     /* tokens of the prompt of the last job */
	struct slot *leader; /* reads `common` tokens that this job begins with too; NULL: none */
	uint32_t common;
	uint64_t serial;        /* of the job: scheduler.n_jobs when it got the session */
	uint64_t leader_serial; /* of the leader's job when this one began to wait */
	uint64_t last_used;     /* scheduler.n_ended when it became idle; 0: never used */
	int64_t rest_ns;        /* > 0: the job rests while steps take so long: scheduler_steps.c */
	uint32_t safe_steps;    /* of the job, before it may be preempted: scheduler_preempt.c */
	uint64_t swap_ns;       /* what freeing the session cost; not charged to a client yet */
	uint32_t in_flight; /* steps in flight with it; > 0: job and session must stay as they are */
	uint32_t ahead;     /* tokens of the prompt in these steps */
};

struct answer_step; /* scheduler_steps.c */
struct prompt_step; /* scheduler_prompts.c */

struct scheduler {
	struct engine *engine;      /* constant */
	struct prefix_store *store; /* compute; NULL: none */
	struct metrics *metrics;    /* constant */
	struct drafter *drafter;    /* compute; NULL: no drafts */
	uint32_t n_slots;           /* constant */
	uint32_t queue_limit;       /* constant */
	uint64_t (*clock)(void);    /* constant: what steps are measured with, in ns */
	pthread_t thread;
	struct slot *slots;        /* [n_slots] compute */
	uint32_t next_read_slot;   /* compute: the slot that is first in the next step that reads */
	uint32_t next_write_slot;  /* compute: ... that writes */
	bool read_few;             /* compute: the latest step that read was of few rows (few_rows) */
	bool read_ends;            /* compute: ... had only prompts that ended, while others waited */
	uint64_t n_jobs;           /* compute: begun or resumed */
	uint64_t n_ended;          /* compute: ended or preempted */
	int64_t writing_ns;        /* compute: answers are written so long before the next slice */
	uint64_t decode_ns;        /* compute: time of a step that writes, smoothed; 0: none yet */
	uint64_t prefill_ns;       /* compute: of the latest step that read */
	uint64_t model_ns;         /* compute: of batch_step in steps that write, smoothed */
	struct client_times times; /* compute */
	struct slice_costs slices; /* compute */
	uint64_t cpu_ns;           /* compute: clock_thread_ns when the metrics were last updated */
	uint64_t step_ns;          /* compute: processor time of steps since then */
	atomic_bool abandon;       /* cancels the step of several jobs that parts_compute computes */
	struct answer_step *steps; /* compute: in flight, oldest first */
	struct answer_step *unused_steps; /* compute */
	struct prompt_step *reads; /* compute: in flight, oldest first; empty if `steps` is not */
	struct prompt_step *unused_reads; /* compute */
	atomic_bool ends;                 /* cancels the steps in flight; set by scheduler_stop */
	/* of preemption: scheduler_preempt.c */
	uint64_t image_limit;   /* constant: bytes of one image at most; 0: nothing is preempted */
	uint64_t images_limit;  /* constant: of all */
	uint64_t images_bytes;  /* compute: of the preempted jobs in the queue */
	uint64_t preempt_from;  /* compute: value of METRICS_STEPS at which it is tried again */
	uint32_t preempt_pause; /* compute: the latest pause, in steps; 0: the latest one succeeded */
	pthread_mutex_t lock;
	pthread_cond_t wake, ended;
	struct job *first, **last;         /* lock: the queue */
	uint32_t waiting;                  /* lock */
	uint32_t running;                  /* lock: jobs that have a session, or get it now */
	uint32_t n_swapped;                /* lock: of the waiting ones, preempted */
	bool stopping, stop_now, finished; /* lock */
	struct job *alone;  /* lock: the only job of the step being computed; NULL: none or several */
	double job_seconds; /* lock: duration of an answer, smoothed */
	struct scheduler_snapshot snapshot; /* lock */
};

/* ---- scheduler.c ---- */

/* Takes the job whose client is next (client_rank), with cancelled_only the first one that was
 * cancelled while it waited. NULL: there is none. Lock held. */
struct job *queue_pop(struct scheduler *s, bool cancelled_only);

/* ---- scheduler_slots.c ---- */

uint32_t slots_count(const struct scheduler *s, enum scheduler_state state);

/* Gives idle slots the jobs of the queue. Jobs of the queue that were cancelled end. */
void slots_fill(struct scheduler *s);
/* Ends the cancelled jobs of slots that are not in flight; once stop_now is set, all jobs. */
void slots_drop_cancelled(struct scheduler *s);

/* Whether this slot still waits for its leader. The wait is over when the leader has read the
 * common tokens or its job has ended: then what it has of their rows is copied. */
bool slot_follows(struct scheduler *s, struct slot *slot);

/* Stores the rows of the slot's timeline in the folder, if there is one. A failure is a warning:
 * answers do not depend on it. */
void slot_keep_prefix(struct scheduler *s, struct slot *slot);

/* Sends the job its last event and makes the slot idle. */
void slot_finish(struct scheduler *s, struct slot *slot, enum job_finish how);
void slot_fail(struct scheduler *s, struct slot *slot, const struct err *e);
void slot_fail_memory(struct scheduler *s, struct slot *slot);

/* ---- scheduler_preempt.c ---- */

/* Sets the limits, which are 0 before: nothing is preempted. */
void scheduler_init_preemption(struct scheduler *s);
/* Called when no session is idle: preempts an answer if another client has waited for long. Returns
 * whether it did. */
bool slots_preempt(struct scheduler *s);
/* Charges slot->swap_ns to the client of its new job, for which client_time_join was called. */
void slot_charge_swap(struct scheduler *s, struct slot *slot);
/* Frees the image of a job that has left the queue; without effect if it has none. */
void scheduler_free_image(struct scheduler *s, struct job *j);
/* Resumes a preempted job, which has left the queue, in this idle slot. */
void slot_resume_job(struct scheduler *s, struct slot *slot, struct job *j);

/* ---- scheduler_steps.c ---- */

/* One step of the sessions that read or of those that write; nothing when there are none. If the
 * model has several stages, steps may be in flight afterwards (batch.h). */
void scheduler_step(struct scheduler *s);
/* Before the first step. Allocates the structs of all steps that may be in flight, since a failed
 * allocation in the compute thread would end the server. */
void scheduler_reserve_steps(struct scheduler *s);
void scheduler_free_steps(struct scheduler *s);

/* What a step has taken of the compute thread's time. Not in it: what stages before the last one
 * compute while this thread does something else. */
struct step_times {
	uint64_t clock;   /* ns of s->clock */
	uint64_t cpu;     /* ns of processor time of the thread */
	uint64_t drafter; /* ns that the drafter has counted */
};
struct step_times times_now(const struct scheduler *s);
/* Adds the time since `from`, a value of times_now. */
void times_add(const struct scheduler *s, struct step_times *sum, struct step_times from);

/* What reading_layer knows of a step that reads prompts; all lent until the step has ended. */
struct reading_step {
	struct scheduler *s;
	const struct batch_part *parts;
	struct slot *const *at; /* [n] */
	uint32_t n;
	uint64_t reported_ns; /* clock_ns when progress was last reported */
	atomic_bool *cancel;  /* true ends the step */
};
/* A batch_watch.on_layer: reports progress, and ends the step when all its clients have left. user:
 * a struct reading_step. */
void reading_layer(void *user, uint32_t done, uint32_t n_layers);

/* Requests in *part the logits of the rows that tokens are drawn from (the last row, or all rows if
 * the part has drafts), and their draws if the device may do them. before: tokens of the timeline
 * before the part. requests, drawn: [these rows], lent until the step has ended. */
void part_draws(struct batch_part *part, uint32_t before, const struct job *j,
	struct draw_request *requests, struct draw_result *drawn);
/* Computes a step of n parts, part i of slot at[i], and ends it with parts_finish, whose result it
 * returns. Waits until the step is computed. */
bool parts_compute(
	struct scheduler *s, const struct batch_part *parts, struct slot *const *at, uint32_t n);
/* Ends a step of n parts that was computed with the result rc and error *e (of rc 0 it may be
 * NULL): charges the time to the clients. An error other than ERR_INTERRUPTED fails all jobs; a
 * step that has left a session with an empty timeline fails this job (its logits were not finite).
 * A job that failed has left its slot. Returns whether rc is 0. */
bool parts_finish(struct scheduler *s, const struct batch_part *parts, struct slot *const *at,
	uint32_t n, const struct step_times *times, int rc, struct err *e);
/* at[n]: all slots that could be computed now. Keeps those whose clients have not had more time
 * than others by more than a step; returns how many. */
uint32_t slots_take_turns(struct scheduler *s, struct slot **at, uint32_t n, enum client_work work);
/* After the rows of a slot have been computed: draws and gives out tokens, from the first row and
 * from each next row whose draft is right. When the answer has ended, the slot has no job any more.
 */
void slot_continue(struct scheduler *s, struct slot *slot, const struct batch_part *part);

/* ---- scheduler_prompts.c ---- */

/* Begins and ends steps of about `room` rows. The sessions that still read their prompts and whose
 * clients have a turn share the rows evenly. With one stage, or while answers are written, one step
 * is computed as a whole. Else steps are begun until as many are in flight as there are stages, and
 * the oldest is ended. */
void prefill_step(struct scheduler *s, uint32_t room);
void prompt_steps_reserve(struct scheduler *s, uint32_t n); /* n may be in flight */
void prompt_steps_free(struct scheduler *s);                /* none may be */

#endif
