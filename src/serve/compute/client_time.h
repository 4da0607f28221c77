/* SPDX-License-Identifier: MIT */
/*
 * Fair queuing of the compute thread's time by client. Each client has a virtual time: what steps
 * and draws of its answers took. A client that is ahead of the least-served one by more than a
 * tolerance takes no part in the next step; so a client with sixteen answers gets as much time as
 * a client with one, and a step that costs no more with many rows is shared by all.
 *
 * Reading prompts and writing answers are accounted separately: between these two the scheduler
 * divides the time (scheduler.h).
 *
 * In order of use: client_time_join when an answer begins to read or write; before each step
 * client_time_least over the answers that could be computed, then client_time_may for each;
 * client_time_charge; client_time_leave when the answer ends, is preempted, or passes from reading
 * to writing. The compute thread only.
 *
 * A client that joins, or has waited for other reasons than its lead, goes on at the virtual time
 * of the least-served one: idle time earns nothing.
 * A client that leaves while it is ahead is remembered, and held, until the others have caught up:
 * many short answers are charged like a long one. Answers of nobody (client NULL) are not limited.
 */
#ifndef GLM_SERVE_CLIENT_TIME_H
#define GLM_SERVE_CLIENT_TIME_H

#include "src/serve/client_share.h"

#include <stdbool.h>
#include <stdint.h>

enum client_work { CLIENT_READS, CLIENT_WRITES, CLIENT_N_WORKS };

struct client_time {
	struct client *client; /* held; NULL: the entry is free */
	uint64_t used_ns[CLIENT_N_WORKS];
	uint32_t answers[CLIENT_N_WORKS];
};

#define CLIENT_TIMES_MAX 128 /* more than sessions: the others are remembered */

/* Zero-initialise; client_times_fini when no answer runs. */
struct client_times {
	struct client_time of[CLIENT_TIMES_MAX];
	uint64_t least_ns[CLIENT_N_WORKS]; /* of the least-served client; never decreases */
};

void client_times_fini(struct client_times *t);

/* One more answer of the client reads or writes; fewer than CLIENT_TIMES_MAX answers do so
 * already. The entry is valid until the matching client_time_leave. NULL for client NULL; all
 * functions accept that. */
struct client_time *client_time_join(
	struct client_times *t, struct client *client, enum client_work work);
void client_time_leave(struct client_times *t, struct client_time *c, enum client_work work);
/* The client's entry, of answers that run or because it is remembered; NULL: there is none. */
const struct client_time *client_time_find(
	const struct client_times *t, const struct client *client);

/* Sets the virtual time that client_time_may compares with: the least of these n clients, which are
 * all that could be computed. of: entries, in which a client may occur several times, or NULL. */
void client_time_least(
	struct client_times *t, struct client_time *const *of, uint32_t n, enum client_work work);
/* Whether the client is at most tolerance_ns ahead of it. */
bool client_time_may(const struct client_times *t, const struct client_time *c,
	enum client_work work, uint64_t tolerance_ns);

void client_time_charge(struct client_time *c, enum client_work work, uint64_t ns);

#endif
