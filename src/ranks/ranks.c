/* SPDX-License-Identifier: MIT */
/* Start, messages, and the end of a process that is one of several. */
#include "src/ranks/ranks.h"

#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/host/signals.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/ranks/ranks_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LEAVE_NS     2000000000u   /* for the error of this rank to be delivered */
#define LOG_END_NS   9000000000u   /* of waiting for others to end, until it is logged */
#define START_NS     120000000000u /* for MPI to start: programs may come over a network */
#define FINALIZE_NS  9000000000u   /* for MPI to end */
#define AFTER_END_NS 500000000u    /* a message may still be under way from a rank that is done */

static struct ranks *here; /* set by ranks_open */

bool ranks_wanted(void)
{
	const char *n = getenv("OMPI_COMM_WORLD_SIZE");
	return n && strtoul(n, NULL, 10) > 1;
}

struct ranks *ranks_here(void)
{
	return here;
}

bool ranks_is_worker(void)
{
	return here && here->me;
}

uint32_t ranks_me(const struct ranks *r)
{
	return r->me;
}

uint32_t ranks_count(const struct ranks *r)
{
	return r->count;
}

uint32_t ranks_on_host(const struct ranks *r)
{
	return r->on_host;
}

const char *ranks_name(const struct ranks *r, uint32_t rank)
{
	return r->peers[rank].name;
}

/* ---- messages ---- */

static void sleep_ns(uint64_t ns)
{
	nanosleep(
		&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)},
		NULL);
}

/* How long to sleep before the next poll. Steps are alike: most of the time that the last messages
 * took is slept through, the rest is polled often. A long wait is for a person. */
static uint64_t next_sleep(const struct peer *p, uint64_t waited)
{
	const uint64_t likely = MIN(MIN(p->waited_ns[0], p->waited_ns[1]) / 4 * 3, 20000000u);
	if (waited < likely)
		return MIN(likely - waited, 5000000u);
	const uint64_t over = waited - likely;
	if (over < 1000000)
		return 10000;
	if (over < 20000000)
		return 50000;
	return over < 1000000000 ? 200000 : over < 10000000000 ? 1000000 : 5000000;
}

int ranks_check(const struct ranks *r, struct err *e)
{
	if (!atomic_load(&r->lost))
		return 0;
	if (e)
		*e = r->loss;
	return ERR_RUN;
}

bool ranks_error_is_known(const struct ranks *r, const struct err *e)
{
	return atomic_load(&r->lost) && r->heartbeat.rank < r->me && strstr(r->loss.text, e->text);
}

/* Waits for a message to or from a rank. */
static int wait_for_message(
	struct ranks *r, struct mpi_transfer *t, uint32_t rank, size_t *bytes, struct err *e)
{
	static _Thread_local bool precise;
	struct peer *p = &r->peers[rank];
	const uint64_t begin = clock_ns();
	uint64_t last = begin, done_ns = 0; /* waited for a rank that is done, by own running */
	if (!precise)                       /* sleeps end when they should, not 50 us later */
		prctl(PR_SET_TIMERSLACK, 1000);
	precise = true;
	for (;;) {
		struct err why = {0};
		int rc = ranks_check(r, e);
		if (rc)
			return rc;
		pthread_mutex_lock(&r->mpi);
		rc = mpi_test(t, bytes, &why);
		pthread_mutex_unlock(&r->mpi);
		const uint64_t now = clock_ns(), waited = now - begin;
		if (rc > 0) {
			if (bytes) { /* only messages that are received come at regular intervals */
				p->waited_ns[1] = p->waited_ns[0];
				p->waited_ns[0] = waited;
			}
			return 0;
		}
		if (rc < 0)
			return rank_lose(r, rank, why.text, e);
		if (atomic_load(&p->done)) {
			done_ns += MIN(now - last, 50000000u);
			if (done_ns > AFTER_END_NS)
				return rank_lose(r, rank, "has ended before this rank", e);
		}
		last = now;
		sleep_ns(bytes ? next_sleep(p, waited) : waited < 1000000 ? 10000 : 100000);
	}
}

static int begin_send(struct ranks *r, struct mpi_transfer *t, uint32_t to, const void *data,
	size_t bytes, struct err *e)
{
	if (bytes > INT_MAX)
		bug("a message of %zu bytes", bytes);
	int rc = ranks_check(r, e);
	if (rc)
		return rc;
	pthread_mutex_lock(&r->mpi);
	mpi_send(t, data, bytes, to, TAG_MESSAGE);
	pthread_mutex_unlock(&r->mpi);
	return 0;
}

int ranks_send(struct ranks *r, uint32_t to, const void *data, size_t bytes, struct err *e)
{
	struct mpi_transfer t;
	int rc = begin_send(r, &t, to, data, bytes, e);
	return rc ? rc : wait_for_message(r, &t, to, NULL, e);
}

struct ranks_posted {
	struct mpi_transfer transfer;
	uint32_t to;
};

int ranks_post(struct ranks *r, uint32_t to, const void *data, size_t bytes,
	struct ranks_posted **out, struct err *e)
{
	struct ranks_posted *posted = NEW(struct ranks_posted);
	posted->to = to;
	int rc = begin_send(r, &posted->transfer, to, data, bytes, e);
	*out = rc ? NULL : posted;
	if (rc)
		free(posted);
	return rc;
}

int ranks_posted_wait(struct ranks *r, struct ranks_posted *posted, struct err *e)
{
	int rc = wait_for_message(r, &posted->transfer, posted->to, NULL, e);
	free(posted);
	return rc;
}

int ranks_receive(
	struct ranks *r, uint32_t from, void *data, size_t capacity, size_t *bytes, struct err *e)
{
	struct mpi_transfer t;
	size_t n;
	int rc = ranks_check(r, e);
	if (rc)
		return rc;
	pthread_mutex_lock(&r->mpi);
	mpi_receive(&t, data, MIN(capacity, (size_t)INT_MAX), from, TAG_MESSAGE);
	pthread_mutex_unlock(&r->mpi);
	return wait_for_message(r, &t, from, bytes ? bytes : &n, e);
}

/* ---- calls that every rank makes ---- */

/* A message of a length that both sides know. It passes through memory that stays when a rank is
 * lost, so callers may give what lies on their stack. */
static int receive_exactly(struct ranks *r, uint32_t from, void *data, size_t bytes, struct err *e)
{
	uint8_t *buffer = NEW_ARRAY(uint8_t, bytes);
	size_t got = 0;
	int rc = ranks_receive(r, from, buffer, bytes, &got, e);
	if (!rc && got != bytes)
		return rank_lose(r, from, "runs another program: a message has another length", e);
	if (rc)
		return rc;
	memcpy(data, buffer, bytes);
	free(buffer);
	return 0;
}

/* ... sent to the ranks from first to end - 1. */
static int send_copy(
	struct ranks *r, uint32_t first, uint32_t end, const void *data, size_t bytes, struct err *e)
{
	uint8_t *buffer = NEW_ARRAY(uint8_t, bytes);
	int rc = 0;
	memcpy(buffer, data, bytes);
	for (uint32_t i = first; i < end && !rc; i++)
		rc = ranks_send(r, i, buffer, bytes, e);
	if (!rc)
		free(buffer);
	return rc;
}

int ranks_gather(struct ranks *r, const void *mine, size_t bytes, void *all, struct err *e)
{
	int rc = 0;
	if (r->me)
		return send_copy(r, 0, 1, mine, bytes, e);
	memcpy(all, mine, bytes);
	for (uint32_t i = 1; i < r->count && !rc; i++)
		rc = receive_exactly(r, i, (uint8_t *)all + i * bytes, bytes, e);
	return rc;
}

int ranks_broadcast(struct ranks *r, void *data, size_t bytes, struct err *e)
{
	return r->me ? receive_exactly(r, 0, data, bytes, e)
				 : send_copy(r, 1, r->count, data, bytes, e);
}

struct err ranks_received_error(const void *bytes)
{
	struct err e;
	memcpy(&e, bytes, sizeof e);
	e.text[sizeof e.text - 1] = 0;
	e.hint[sizeof e.hint - 1] = 0;
	err_plain(e.text);
	err_plain(e.hint);
	return e;
}

int ranks_agree(struct ranks *r, int rc, struct err *e)
{
	struct err mine = {0}, *all = NEW_ARRAY(struct err, r->count), verdict = {0};
	if (rc && e)
		mine = *e;
	mine.code = rc;
	int failed = ranks_gather(r, &mine, sizeof mine, all, e);
	for (uint32_t i = 0; i < r->count && !r->me && !verdict.code; i++)
		if (all[i].code) {
			verdict = ranks_received_error(&all[i]);
			err_prefix(&verdict, "%s", r->peers[i].name);
		}
	free(all);
	if (failed || (failed = ranks_broadcast(r, &verdict, sizeof verdict, e)))
		return failed;
	if (verdict.code) {
		verdict = ranks_received_error(&verdict);
		ranks_set_orderly(r);
		if (e)
			*e = verdict;
	}
	return verdict.code;
}

void ranks_set_orderly(struct ranks *r)
{
	r->orderly = true;
}

bool ranks_is_orderly(const struct ranks *r)
{
	return r->orderly;
}

/* ---- start and end ---- */

/* All names to all. */
static int exchange_names(struct ranks *r, struct err *e)
{
	char host[64] = "", *all = NEW_ARRAY(char, r->count * sizeof host);
	gethostname(host, sizeof host - 1);
	err_plain(host);
	int rc = ranks_gather(r, host, sizeof host, all, e);
	if (!rc)
		rc = ranks_broadcast(r, all, r->count * sizeof host, e);
	for (uint32_t i = 0; i < r->count && !rc; i++) {
		const char *name = all + i * sizeof host;
		snprintf(r->peers[i].name, sizeof r->peers->name, "rank %u (%.60s)", i, name);
		r->on_host += !strcmp(name, host);
	}
	free(all);
	return rc;
}

/* A time limit for a call of MPI. A thread, since SIGALRM belongs to the program. */
struct watchdog {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct timespec until;
	bool stop;
};

static void *watchdog_run(void *user)
{
	struct watchdog *w = user;
	int rc = 0;
	pthread_mutex_lock(&w->lock);
	while (!w->stop && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&w->wake, &w->lock, &w->until);
	if (!w->stop) {
		fprintf(stderr, "glmstream: MPI does not start or end: a rank hangs, or its host cannot be "
						"reached\n");
		_exit(1);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* MPI starts and ends together on all ranks, and there are no heartbeats yet, or none any more: the
 * process ends unless watchdog_stop is called in time. */
static void watchdog_start(struct watchdog *w, uint64_t ns)
{
	*w = (struct watchdog){.until = cond_deadline(ns)};
	cond_init(&w->wake);
	pthread_mutex_init(&w->lock, NULL);
	sigset_t before;
	signals_block(&before);
	w->stop = pthread_create(&w->thread, NULL, watchdog_run, w) != 0; /* then there is no limit */
	signals_restore(&before);
}

static void watchdog_stop(struct watchdog *w)
{
	pthread_mutex_lock(&w->lock);
	const bool runs = !w->stop;
	w->stop = true;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	if (runs)
		pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
}

int ranks_open(struct ranks **out, struct err *e)
{
	struct ranks *r = NEW(struct ranks);
	*out = NULL;
	struct watchdog watchdog;
	watchdog_start(&watchdog, START_NS);
	int rc = mpi_start(&r->me, &r->count, e);
	watchdog_stop(&watchdog);
	if (!rc && r->count > RANKS_MAX)
		rc = err_set(e, ERR_USAGE, "%u ranks, at most %d are possible", r->count, RANKS_MAX);
	if (rc) {
		free(r);
		return rc;
	}
	pthread_mutex_init(&r->mpi, NULL);
	r->peers = NEW_ARRAY(struct peer, r->count);
	for (uint32_t i = 0; i < r->count; i++)
		snprintf(r->peers[i].name, sizeof r->peers->name, "rank %u", i);
	if ((rc = heartbeats_start(r, e)))
		return rc; /* the process ends; what MPI may still write to stays */
	*out = here = r;
	return exchange_names(r, e);
}

static void log_waiting(const struct ranks *r)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (i != r->me && !atomic_load(&r->peers[i].done))
			log_info("waiting for %s to end", r->peers[i].name);
}

/* Waits until the others have received the state of this rank; all_done: and are done themselves.
 * A rank that closes a large model takes minutes, so there is no limit for that: one that hangs is
 * noticed by its silence. */
static bool wait_until_delivered(struct ranks *r, bool all_done)
{
	const uint64_t begin = clock_ns();
	bool logged = false;
	while (!heartbeats_delivered(r, all_done)) {
		const uint64_t waited = clock_ns() - begin;
		if (atomic_load(&r->lost) || (!all_done && waited > LEAVE_NS))
			return false;
		if (all_done && !logged && waited > LOG_END_NS) {
			log_waiting(r);
			logged = true;
		}
		sleep_ns(5000000);
	}
	return true;
}

/* A rank is lost: the others receive that, then this process ends. */
static int close_lost(struct ranks *r, int rc, struct err *e)
{
	if (atomic_exchange(&r->reported, true))
		for (;;) /* the thread writes the sentence and ends the process */
			pause();
	sleep_ns(AFTER_END_NS);
	if (!rc || rc == ERR_INTERRUPTED)
		*e = r->loss;
	return strstr(e->text, r->loss.text) ? r->loss.code : rc;
}

int ranks_close(struct ranks *r, int rc, bool *abrupt, struct err *e)
{
	*abrupt = false;
	if (!r)
		return rc;
	*abrupt = true;
	const bool in_order = !rc || r->orderly;
	if (!atomic_load(&r->lost)) {
		if (in_order)
			heartbeats_set_state(r, HEARTBEAT_DONE, 0, NULL);
		else
			heartbeats_set_state(r, HEARTBEAT_LEFT, rc, e->text);
		*abrupt = !wait_until_delivered(r, in_order) || !in_order;
	}
	if (atomic_load(&r->lost))
		return close_lost(r, rc, e);
	if (*abrupt) {
		/* mpirun ends the others as soon as this one has; a lower one may fail alike */
		sleep_ns(AFTER_END_NS);
		return rc;
	}
	heartbeats_stop(r);
	struct watchdog watchdog;
	watchdog_start(&watchdog, FINALIZE_NS);
	mpi_stop();
	watchdog_stop(&watchdog);
	for (uint32_t i = 0; i < r->count; i++) {
		free(r->peers[i].in_data);
		free(r->peers[i].out_data);
		free(r->peers[i].status);
	}
	free(r->peers);
	free(r);
	here = NULL;
	return rc;
}
