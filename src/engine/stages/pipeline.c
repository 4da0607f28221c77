/* SPDX-License-Identifier: MIT */
#include "src/engine/stages/pipeline.h"

#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/host/signals.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/engine_internal.h"
#include "src/engine/ranks/engine_ranks.h"
#include "src/engine/ranks/rank_link.h"
#include "src/forward/moe/moe.h"

#include <pthread.h>
#include <stdlib.h>

#define LAYERS_NS 100000000u /* between two calls of on_layer while the caller waits */

struct micro_batch {
	struct forward_rows rows;
	atomic_uint layers;       /* done by the stages so far */
	struct stage_rows handed; /* the rows behind the latest stage; allocated by the first stage */
	int rc;                   /* of the stages so far */
	struct err why;
	bool arrived;               /* all stages but the last have ended. Under `lock` */
	struct rank_posted *sent;   /* its command, with ranks; NULL: none was sent yet */
	struct micro_batch *queued; /* the next one in the queue. Under `lock` */
	struct micro_batch *next;   /* in the list `first` or `unused`; the caller's */
};

struct stage_thread {
	struct stage_pipeline *pipeline;
	struct stage *stage;
	pthread_t thread;
	pthread_cond_t filled;
	struct micro_batch *first, **last; /* the queue. Under `lock` */
};

struct stage_pipeline {
	struct engine *g;
	struct stage_thread *threads; /* [n_threads] of the stages but the last; started together */
	uint32_t n_threads;
	pthread_mutex_t lock;
	pthread_cond_t arrived;
	bool stop;
	/* the caller's */
	struct micro_batch *unused[2];     /* [1]: with room for more than ANSWER_ROWS rows */
	struct micro_batch *first, **last; /* in flight, in order */
	bool ends;                         /* the last stage counts as computing */
	/* lock: figures */
	uint32_t computing; /* stages, now */
	uint64_t since_ns;  /* of the latest change of that; 0: nothing is in flight */
	struct engine_overlap overlap;
};

/* ---- figures; under `lock` ---- */

static void note_time(struct stage_pipeline *p)
{
	const uint64_t now = clock_ns();
	if (p->since_ns) {
		p->overlap.flight_ns += now - p->since_ns;
		p->overlap.computing_ns += p->computing * (now - p->since_ns);
		p->overlap.at_once_ns[p->computing] += now - p->since_ns;
	}
	p->since_ns = now;
}

static void note_computing(struct stage_pipeline *p, bool begins)
{
	note_time(p);
	p->computing += begins ? 1u : -1u;
}

void pipeline_idle(struct stage_pipeline *p)
{
	pthread_mutex_lock(&p->lock);
	if (p->ends)
		note_computing(p, false);
	p->ends = false;
	if (!p->first)
		p->since_ns = 0;
	pthread_mutex_unlock(&p->lock);
}

void pipeline_overlap(struct stage_pipeline *p, struct engine_overlap *sum)
{
	const struct engine_overlap *part = &p->overlap;
	pthread_mutex_lock(&p->lock);
	sum->micro_batches += part->micro_batches;
	sum->flight_ns += part->flight_ns;
	sum->computing_ns += part->computing_ns;
	for (uint32_t k = 0; k <= STAGES_MAX; k++)
		sum->at_once_ns[k] += part->at_once_ns[k];
	pthread_mutex_unlock(&p->lock);
}

/* ---- the threads of the stages ---- */

static void queue_push(struct stage_thread *t, struct micro_batch *m)
{
	m->queued = NULL;
	*t->last = m;
	t->last = &m->queued;
	pthread_cond_signal(&t->filled);
}

static void count_layer(void *user, uint32_t done, uint32_t n_layers)
{
	struct micro_batch *m = user;
	(void)n_layers;
	atomic_store_explicit(&m->layers, done, memory_order_relaxed);
}

static void compute_stage(const struct stage_thread *t, struct micro_batch *m)
{
	struct stage *s = t->stage;
	struct forward_rows rows = m->rows;
	s->backend->ops->recover(s->backend); /* an earlier micro-batch may have lacked memory */
	rows.hands_over = true;
	rows.on_layer = count_layer;
	rows.user = m;
	if (t == t->pipeline->threads)
		m->rc = stage_rows_reserve(
			&m->handed, &s->config, s->backend, MAX(rows.n, ANSWER_ROWS), &m->why);
	else
		stage_rows_give(&m->handed, &s->model, rows.n);
	if (!m->rc)
		m->rc = stage_forward(s, &rows, rows.n, &m->why);
	stage_rows_given(&m->handed);
	if (m->rc)
		return;
	stage_rows_take(&m->handed, &s->model, rows.n);
	m->rc = moe_drain(&s->model, &m->why);
}

static void *stage_main(void *user)
{
	struct stage_thread *t = user;
	struct stage_pipeline *p = t->pipeline;
	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (!t->first && !p->stop)
			pthread_cond_wait(&t->filled, &p->lock);
		struct micro_batch *m = t->first;
		if (!m)
			break;
		t->first = m->queued;
		if (!t->first)
			t->last = &t->first;
		if (!m->rc) {
			note_computing(p, true);
			pthread_mutex_unlock(&p->lock);
			compute_stage(t, m);
			pthread_mutex_lock(&p->lock);
			note_computing(p, false);
		}
		if (t + 1 < p->threads + p->n_threads) {
			queue_push(t + 1, m);
		} else {
			m->arrived = true;
			pthread_cond_broadcast(&p->arrived);
		}
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void stop_threads(struct stage_pipeline *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	for (uint32_t i = 0; i < p->n_threads; i++)
		pthread_cond_signal(&p->threads[i].filled);
	pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; i < p->n_threads; i++) {
		pthread_join(p->threads[i].thread, NULL);
		pthread_cond_destroy(&p->threads[i].filled);
	}
	free(p->threads);
	p->threads = NULL;
	p->n_threads = 0;
	p->stop = false;
}

static int start_threads(struct stage_pipeline *p, struct err *e)
{
	const uint32_t n = p->g->n_stages - 1;
	struct stage_thread *threads = mem_try_new(n, sizeof *threads);
	sigset_t before;
	int failed = 0;
	if (!threads)
		return err_set(e, ERR_MEMORY, "no memory for the threads of %u stages", n);
	p->threads = threads;
	signals_block(&before);
	while (p->n_threads < n && !failed) {
		struct stage_thread *t = &threads[p->n_threads];
		*t = (struct stage_thread){.pipeline = p, .stage = &p->g->stages[p->n_threads]};
		t->last = &t->first;
		pthread_cond_init(&t->filled, NULL);
		failed = pthread_create(&t->thread, NULL, stage_main, t);
		if (failed)
			pthread_cond_destroy(&t->filled);
		else
			p->n_threads++;
	}
	signals_restore(&before);
	if (!failed)
		return 0;
	stop_threads(p);
	return err_errno(e, failed, "the threads of %u stages", n);
}

/* ---- the caller ---- */

struct stage_pipeline *pipeline_new(struct engine *g)
{
	struct stage_pipeline *p = NEW(struct stage_pipeline);
	p->g = g;
	p->last = &p->first;
	pthread_mutex_init(&p->lock, NULL);
	cond_init(&p->arrived);
	return p;
}

void pipeline_free(struct stage_pipeline *p)
{
	if (!p)
		return;
	if (p->first)
		bug("micro-batches are in flight at the end");
	stop_threads(p);
	for (int many = 0; many < 2; many++)
		for (struct micro_batch *m = p->unused[many], *next; m; m = next) {
			next = m->next;
			stage_rows_free(&m->handed);
			engine_ranks_posted_free(p->g->ranks, m->sent);
			free(m);
		}
	pthread_cond_destroy(&p->arrived);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static bool stages_share_card(const struct engine *g)
{
	for (uint32_t i = 0; i < g->n_stages; i++)
		for (uint32_t k = 0; k < i; k++)
			if (g->stages[i].card == g->stages[k].card && g->stages[i].backend->ops->copier_open)
				return true;
	return false;
}

uint32_t pipeline_depth(const struct engine *g)
{
	if (g->trace) /* steps and accesses stand in it one after the other */
		return 1;
	if (g->ranks) /* the stages of a rank compute one after the other */
		return ranks_count(g->ranks->ranks);
	/* Blocks of a kernel may wait for each other (mla.cu). Two such kernels at the same time could
	 * each hold the multiprocessors that the other one waits for. */
	return stages_share_card(g) ? 1 : g->n_stages;
}

bool pipeline_in_flight(const struct stage_pipeline *p)
{
	return p && p->first;
}

size_t pipeline_row_bytes(const struct model_config *c)
{
	return c->n_embd * sizeof(float) + (1 + (size_t)c->index_top_k) * sizeof(int32_t);
}

/* NULL: no memory for a new one. */
static struct micro_batch *take_unused(struct stage_pipeline *p, uint32_t n)
{
	struct micro_batch **list = &p->unused[n > ANSWER_ROWS], *m = *list;
	if (!m)
		return mem_try_new(1, sizeof *m);
	*list = m->next;
	return m;
}

static void give_unused(struct stage_pipeline *p, struct micro_batch *m)
{
	struct micro_batch **list = &p->unused[m->handed.max_rows > ANSWER_ROWS];
	m->next = *list;
	*list = m;
}

/* Sends *m into the first stage. */
static int send_micro_batch(struct stage_pipeline *p, struct micro_batch *m, struct err *e)
{
	struct engine *g = p->g;
	if (g->ranks)
		return engine_ranks_post_step(g->ranks, &m->rows, &m->sent, e);
	if (!p->n_threads) {
		int rc = start_threads(p, e);
		if (rc)
			return rc;
	}
	pthread_mutex_lock(&p->lock);
	queue_push(p->threads, m);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

int pipeline_begin(struct stage_pipeline *p, const struct forward_rows *rows,
	struct micro_batch **out, struct err *e)
{
	struct micro_batch *m = take_unused(p, rows->n);
	*out = NULL;
	if (!m)
		return err_set(e, ERR_MEMORY, "no memory for a micro-batch of %u rows", rows->n);
	m->rows = *rows;
	m->rows.on_device_busy = NULL;
	atomic_store_explicit(&m->layers, 0, memory_order_relaxed);
	m->rc = 0;
	m->arrived = false;
	m->next = NULL;
	int rc = send_micro_batch(p, m, e);
	if (rc) {
		give_unused(p, m);
		return rc;
	}
	pthread_mutex_lock(&p->lock);
	if (!p->first)
		note_time(p);
	pthread_mutex_unlock(&p->lock);
	*p->last = m;
	p->last = &m->next;
	*out = m;
	return 0;
}

/* Waits until all stages but the last have ended; with ranks, those of the other ranks. */
static void wait_arrived(struct stage_pipeline *p, struct micro_batch *m)
{
	const struct engine *g = p->g;
	if (g->ranks) {
		if (m->arrived)
			return;
		m->arrived = true;
		m->rc =
			rank_link_receive_rows(g->ranks->in, &g->stages->model, m->rows.n, &m->handed, &m->why);
		int rc = engine_ranks_posted_end(g->ranks, m->sent, m->rc ? NULL : &m->why);
		m->rc = m->rc ? m->rc : rc;
		return;
	}
	pthread_mutex_lock(&p->lock);
	while (!m->arrived)
		pthread_cond_wait(&p->arrived, &p->lock);
	pthread_mutex_unlock(&p->lock);
}

/* The same, and calls on_layer meanwhile. */
static void wait_and_report(struct stage_pipeline *p, struct micro_batch *m)
{
	const struct engine *g = p->g;
	bool arrived = g->ranks || !m->rows.on_layer;
	while (!arrived) {
		const struct timespec until = cond_deadline(LAYERS_NS);
		pthread_mutex_lock(&p->lock);
		int rc = 0;
		while (!m->arrived && !rc)
			rc = pthread_cond_timedwait(&p->arrived, &p->lock, &until);
		arrived = m->arrived;
		pthread_mutex_unlock(&p->lock);
		const uint32_t layers = atomic_load_explicit(&m->layers, memory_order_relaxed);
		if (layers)
			m->rows.on_layer(m->rows.user, layers, g->config.n_layers);
	}
	wait_arrived(p, m);
}

/* Computes the last stage; with ranks, all stages of this one. */
static int compute_end(struct stage_pipeline *p, struct micro_batch *m, uint32_t first_hidden)
{
	struct engine *g = p->g;
	struct stage *s = g->ranks ? g->stages : engine_last(g);
	stage_rows_give(&m->handed, &s->model, m->rows.n);
	const int rc = stages_forward(s, &m->rows, first_hidden, &m->why);
	stage_rows_given(&m->handed);
	return rc;
}

static void leave_flight(struct stage_pipeline *p, struct micro_batch *m)
{
	if (m != p->first)
		bug("micro-batches end in the order in which they were begun");
	p->first = m->next;
	if (!p->first)
		p->last = &p->first;
	give_unused(p, m);
}

int pipeline_end(
	struct stage_pipeline *p, struct micro_batch *m, uint32_t first_hidden, struct err *e)
{
	wait_and_report(p, m);
	pthread_mutex_lock(&p->lock);
	p->ends = !m->rc;
	if (p->ends)
		note_computing(p, true);
	p->overlap.micro_batches += !m->rc;
	pthread_mutex_unlock(&p->lock);
	if (!m->rc)
		m->rc = compute_end(p, m, first_hidden);
	const int rc = m->rc;
	if (rc && e)
		*e = m->why;
	leave_flight(p, m);
	return rc;
}

void pipeline_drop(struct stage_pipeline *p, struct micro_batch *m)
{
	wait_arrived(p, m);
	leave_flight(p, m);
}

void pipeline_settle(struct stage_pipeline *p)
{
	for (struct micro_batch *m = p ? p->first : NULL; m; m = m->next)
		wait_arrived(p, m);
}
