/* SPDX-License-Identifier: MIT */
/*
 * The thread that sends heartbeats and counts how long each other rank has been silent. Silence is
 * counted in this process's own running: one that was stopped itself, and goes on, blames nobody.
 */
#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/host/signals.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/ranks/ranks_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_NS     100000000u  /* between two polls */
#define END_TICK_NS 5000000u    /* ... while this rank ends and the others wait */
#define PERIOD_NS   400000000u  /* between two heartbeats */
#define LOST_NS     7000000000u /* of silence: lost. mpirun takes 2 s to end the rest: 10 s in all */
#define GRACE_NS    1000000000u /* in which the process may end by itself */

/* The code of a loss, from the code of the rank that left. A number from another process need not
 * be a code. */
static int code_of_end(int code)
{
	return code == ERR_USAGE || code == ERR_INPUT || code == ERR_MEMORY ? code : ERR_RUN;
}

static void lose(struct ranks *r, uint32_t rank, int code, const char *why, struct err *e)
{
	pthread_mutex_lock(&r->lock);
	if (!atomic_load(&r->lost)) {
		err_set(&r->loss, code_of_end(code), "%s %s", r->peers[rank].name, why);
		r->state = HEARTBEAT_LOST;
		r->heartbeat.rank = rank;
		r->heartbeat.code = r->loss.code;
		snprintf(r->heartbeat.text, sizeof r->heartbeat.text, "%s", r->loss.text);
		atomic_store(&r->lost, true);
	}
	if (e)
		*e = r->loss;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
}

int rank_lose(struct ranks *r, uint32_t rank, const char *why, struct err *e)
{
	lose(r, rank, ERR_RUN, why, e);
	return ERR_RUN;
}

/* Another rank reports that one is lost: the report is passed on unchanged. */
static void lose_as_reported(struct ranks *r, const struct heartbeat *b)
{
	pthread_mutex_lock(&r->lock);
	if (!atomic_load(&r->lost)) {
		err_set(&r->loss, code_of_end(b->code), "%s", b->text);
		r->state = HEARTBEAT_LOST;
		r->heartbeat = *b;
		atomic_store(&r->lost, true);
	}
	pthread_mutex_unlock(&r->lock);
}

static void keep_status(struct ranks *r, struct peer *p, size_t bytes)
{
	pthread_mutex_lock(&r->lock);
	if (p->status_bytes != bytes) {
		free(p->status);
		p->status = mem_try_new(bytes, 1);
		p->status_bytes = p->status ? bytes : 0;
	}
	if (p->status_bytes)
		memcpy(p->status, p->in_data + sizeof(struct heartbeat), bytes);
	pthread_mutex_unlock(&r->lock);
}

static void take_heartbeat(struct ranks *r, uint32_t rank, size_t bytes)
{
	struct peer *p = &r->peers[rank];
	struct heartbeat b;
	if (bytes < sizeof b)
		return;
	memcpy(&b, p->in_data, sizeof b);
	b.text[sizeof b.text - 1] = 0;
	p->silent_ns = 0;
	if (bytes > sizeof b)
		keep_status(r, p, bytes - sizeof b);
	if (b.state == HEARTBEAT_DONE)
		atomic_store(&p->done, true);
	if (b.state == HEARTBEAT_LEFT) {
		char why[sizeof b.text + 16];
		snprintf(why, sizeof why, "has ended: %s", b.text);
		lose(r, rank, b.code, why, NULL);
	}
	if (b.state == HEARTBEAT_LOST)
		lose_as_reported(r, &b);
}

static void receive_heartbeats(struct ranks *r, uint32_t rank)
{
	struct peer *p = &r->peers[rank];
	struct err e = {0};
	size_t bytes = 0;
	int rc;
	for (;;) {
		pthread_mutex_lock(&r->mpi);
		if (!p->in.request && !p->in.failed)
			mpi_receive(&p->in, p->in_data, sizeof(struct heartbeat) + RANKS_STATUS_BYTES, rank,
				TAG_HEARTBEAT);
		rc = mpi_test(&p->in, &bytes, &e);
		pthread_mutex_unlock(&r->mpi);
		if (rc <= 0)
			break;
		take_heartbeat(r, rank, bytes);
	}
	if (rc < 0 && !atomic_load(&p->done))
		rank_lose(r, rank, e.text, NULL);
}

/* Sends a heartbeat unless the one before is still under way. */
static void send_heartbeat(struct ranks *r, uint32_t rank, bool due)
{
	struct peer *p = &r->peers[rank];
	struct err e = {0};
	pthread_mutex_lock(&r->mpi);
	int rc = p->out.request || p->out.failed ? mpi_test(&p->out, NULL, &e) : 1;
	pthread_mutex_unlock(&r->mpi);
	if (rc < 0 && !atomic_load(&p->done))
		rank_lose(r, rank, e.text, NULL);
	if (rc <= 0 && !(rc < 0 && atomic_load(&p->done))) /* one that is done needs no more */
		return;
	pthread_mutex_lock(&r->lock);
	p->delivered_state = p->sent_state;
	if (!due && r->state == p->delivered_state) {
		pthread_mutex_unlock(&r->lock);
		return;
	}
	const size_t status = rank == 0 && r->publish ? r->publish_bytes : 0;
	const size_t bytes = sizeof(struct heartbeat) + status;
	if (bytes > p->out_capacity) {
		p->out_data = mem_grow(p->out_data, bytes, 1);
		p->out_capacity = bytes;
	}
	struct heartbeat b = r->heartbeat;
	b.state = p->sent_state = r->state;
	memcpy(p->out_data, &b, sizeof b);
	if (status)
		r->publish(r->publish_user, p->out_data + sizeof b);
	pthread_mutex_unlock(&r->lock);
	pthread_mutex_lock(&r->mpi);
	mpi_send(&p->out, p->out_data, bytes, rank, TAG_HEARTBEAT);
	pthread_mutex_unlock(&r->mpi);
}

static void count_silence(struct ranks *r, uint32_t rank, uint64_t passed_ns)
{
	struct peer *p = &r->peers[rank];
	char why[96];
	p->silent_ns += MIN(passed_ns, 2 * TICK_NS);
	if (p->silent_ns < LOST_NS || atomic_load(&p->done))
		return;
	snprintf(why, sizeof why, "has not answered for %.0f s: it hangs, or cannot be reached",
		(double)p->silent_ns / 1e9);
	rank_lose(r, rank, why, NULL);
}

static void call_on_loss(struct ranks *r)
{
	pthread_mutex_lock(&r->lock);
	if (r->on_loss)
		r->on_loss(r->on_loss_user, r->loss.text);
	r->on_loss = NULL;
	pthread_mutex_unlock(&r->lock);
}

void ranks_on_loss(struct ranks *r, void (*lost)(void *user, const char *sentence), void *user)
{
	pthread_mutex_lock(&r->lock);
	r->on_loss = lost;
	r->on_loss_user = user;
	pthread_mutex_unlock(&r->lock);
}

/* The process had its time to end by itself. */
static void end_process(struct ranks *r)
{
	if (!atomic_exchange(&r->reported, true)) {
		fprintf(stderr, "glmstream: %s: %s\n", r->peers[r->me].name, r->loss.text);
		_exit(err_exit_status(r->loss.code));
	}
	sleep(1); /* the thread that prints the loss is about to end it */
	_exit(err_exit_status(r->loss.code));
}

static void *heartbeats_run(void *user)
{
	struct ranks *r = user;
	uint64_t last = clock_ns(), sent = 0, lost_at = 0;
	for (;;) {
		uint64_t now = clock_ns(), passed = now - last;
		const bool due = now - sent >= PERIOD_NS;
		last = now;
		if (due)
			sent = now;
		for (uint32_t i = 0; i < r->count; i++) {
			if (i == r->me)
				continue;
			receive_heartbeats(r, i);
			send_heartbeat(r, i, due);
			if (!atomic_load(&r->lost))
				count_silence(r, i, passed);
		}
		if (atomic_load(&r->lost)) {
			lost_at = lost_at ? lost_at : now;
			call_on_loss(r);
			if (now - lost_at >= GRACE_NS)
				end_process(r);
		}
		pthread_mutex_lock(&r->lock);
		const struct timespec until =
			cond_deadline(r->state == HEARTBEAT_ALIVE ? TICK_NS : END_TICK_NS);
		if (!r->stop)
			pthread_cond_timedwait(&r->wake, &r->lock, &until);
		const bool stop = r->stop;
		pthread_mutex_unlock(&r->lock);
		if (stop)
			return NULL;
	}
}

int heartbeats_start(struct ranks *r, struct err *e)
{
	cond_init(&r->wake);
	pthread_mutex_init(&r->lock, NULL);
	for (uint32_t i = 0; i < r->count; i++)
		if (i != r->me &&
			!(r->peers[i].in_data = mem_try_new(sizeof(struct heartbeat) + RANKS_STATUS_BYTES, 1)))
			return err_set(e, ERR_MEMORY, "no memory for the status of other ranks");
	sigset_t before;
	signals_block(&before);
	int rc = pthread_create(&r->thread, NULL, heartbeats_run, r);
	signals_restore(&before);
	return rc ? err_errno(e, rc, "no thread for the heartbeats of the ranks") : 0;
}

void heartbeats_set_state(struct ranks *r, enum heartbeat_state state, int code, const char *text)
{
	pthread_mutex_lock(&r->lock);
	if (!atomic_load(&r->lost)) { /* nothing is more important */
		r->state = state;
		r->heartbeat.rank = r->me;
		r->heartbeat.code = code;
		snprintf(r->heartbeat.text, sizeof r->heartbeat.text, "%s", text ? text : "");
	}
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
}

bool heartbeats_delivered(struct ranks *r, bool all_done)
{
	bool delivered = true;
	pthread_mutex_lock(&r->lock);
	for (uint32_t i = 0; i < r->count; i++)
		if (i != r->me)
			delivered &= r->peers[i].delivered_state == r->state &&
						 (!all_done || atomic_load(&r->peers[i].done));
	if (!delivered)
		pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
	return delivered;
}

void heartbeats_stop(struct ranks *r)
{
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_signal(&r->wake);
	pthread_mutex_unlock(&r->lock);
	pthread_join(r->thread, NULL);
	for (uint32_t i = 0; i < r->count; i++)
		mpi_cancel(&r->peers[i].in);
}

/* ---- a status for rank 0 ---- */

void ranks_publish(struct ranks *r, size_t bytes, void (*fill)(void *user, void *out), void *user)
{
	if (bytes > RANKS_STATUS_BYTES)
		bug("a status of %zu bytes", bytes);
	pthread_mutex_lock(&r->lock);
	r->publish = fill;
	r->publish_bytes = bytes;
	r->publish_user = user;
	pthread_mutex_unlock(&r->lock);
}

bool ranks_status(struct ranks *r, uint32_t rank, void *out, size_t bytes)
{
	struct peer *p = &r->peers[rank];
	pthread_mutex_lock(&r->lock);
	const bool there = bytes && p->status_bytes == bytes;
	if (there)
		memcpy(out, p->status, bytes);
	pthread_mutex_unlock(&r->lock);
	return there;
}
