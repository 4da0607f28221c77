/* SPDX-License-Identifier: MIT */
/* Jobs, events, and the mailbox between the two threads. */
#include "src/serve/compute/job.h"

#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct mailbox {
	atomic_int holders;
	pthread_mutex_t lock; /* guards the list; no other lock is taken under it */
	pthread_cond_t more;
	struct job_event *first, **last;
};

void job_event_free(struct job_event *v)
{
	if (!v)
		return;
	buf_free(&v->text);
	free(v->rows);
	token_ids_free(&v->ids);
	free(v->err);
	free(v);
}

struct mailbox *mailbox_new(void)
{
	struct mailbox *m = NEW(struct mailbox);
	if (!m)
		return NULL;
	atomic_init(&m->holders, 1);
	pthread_mutex_init(&m->lock, NULL);
	cond_init(&m->more);
	m->last = &m->first;
	return m;
}

void mailbox_hold(struct mailbox *m)
{
	atomic_fetch_add(&m->holders, 1);
}

void mailbox_drop(struct mailbox *m)
{
	if (!m || atomic_fetch_sub(&m->holders, 1) != 1)
		return;
	while (m->first) {
		struct job_event *v = m->first;
		m->first = v->next;
		job_event_free(v);
	}
	pthread_cond_destroy(&m->more);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

static void ids_append(struct token_ids *to, const int32_t *ids, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (token_ids_push(to, ids[i])) {
			mem_scope_fail();
			return;
		}
}

/* Appends v to the last event that waits, if both are pieces of the same text: a client that reads
 * slowly finds one long piece instead of a thousand short ones. */
static bool events_join(struct job_event *old, struct job_event *v)
{
	if (old->kind != v->kind || old->index != v->index || old->n_rows || v->n_rows)
		return false;
	if (v->kind == JOB_PROGRESS) {
		old->done = v->done;
		old->total = v->total;
		old->cached = v->cached;
		old->reading_ns = v->reading_ns;
		return true;
	}
	if (v->kind != JOB_TEXT && v->kind != JOB_REASONING && v->kind != JOB_ARGUMENTS)
		return false;
	buf_append(&old->text, v->text.data, v->text.len);
	ids_append(&old->ids, v->ids.data, v->ids.n);
	return true;
}

void mailbox_put(struct mailbox *m, struct job_event *v)
{
	pthread_mutex_lock(&m->lock);
	struct job_event *tail =
		m->first ? (struct job_event *)((char *)m->last - offsetof(struct job_event, next)) : NULL;
	bool joined = tail && events_join(tail, v);
	if (!joined) {
		*m->last = v;
		m->last = &v->next;
		pthread_cond_signal(&m->more);
	}
	pthread_mutex_unlock(&m->lock);
	if (joined)
		job_event_free(v);
}

struct job_event *mailbox_take(struct mailbox *m, int timeout_ms)
{
	struct timespec until = cond_deadline((uint64_t)timeout_ms * 1000000);
	pthread_mutex_lock(&m->lock);
	while (!m->first && pthread_cond_timedwait(&m->more, &m->lock, &until) != ETIMEDOUT)
		;
	struct job_event *v = m->first;
	if (v) {
		m->first = v->next;
		if (!m->first)
			m->last = &m->first;
		v->next = NULL;
	}
	pthread_mutex_unlock(&m->lock);
	return v;
}

struct job *job_new(struct mailbox *mail, uint32_t index)
{
	struct job *j = NEW(struct job);
	if (!j || !(j->last = NEW(struct job_event)) || !(j->last->err = NEW(struct err))) {
		if (j)
			job_event_free(j->last);
		free(j);
		return NULL;
	}
	atomic_init(&j->holders, 1);
	j->last->index = index;
	j->last->stop = -1;
	j->mail = mail;
	mailbox_hold(mail);
	j->index = index;
	return j;
}

struct job_shared *job_shared_new(void)
{
	struct job_shared *s = NEW(struct job_shared);
	if (s)
		atomic_init(&s->holders, 1);
	return s;
}

void job_shared_drop(struct job_shared *s)
{
	if (!s || atomic_fetch_sub(&s->holders, 1) != 1)
		return;
	job_shared_fini(s);
	free(s);
}

void job_shared_fini(struct job_shared *s)
{
	output_options_fini(&s->output);
	for (size_t i = 0; i < s->n_prompts; i++)
		token_ids_free(&s->prompts[i]);
	free(s->prompts);
	budget_release(&s->part);
}

void job_share(struct job *j, struct job_shared *shared, size_t prompt)
{
	atomic_fetch_add(&shared->holders, 1);
	j->shared = shared;
	j->prompt = shared->prompts[prompt];
	j->options = shared->output;
	j->client = shared->part.client;
}

void job_hold(struct job *j)
{
	atomic_fetch_add(&j->holders, 1);
}

void job_drop(struct job *j)
{
	if (!j || atomic_fetch_sub(&j->holders, 1) != 1)
		return;
	job_event_free(j->last);
	output_free(j->output);
	sampler_fini(&j->sampler);
	if (!j->shared) {
		output_options_fini(&j->options);
		token_ids_free(&j->prompt);
	}
	job_shared_drop(j->shared);
	token_ids_free(&j->generated);
	mailbox_drop(j->mail);
	free(j);
}

/* NULL: memory is exhausted. */
static struct job_event *event_new(const struct job *j, enum job_event_kind kind)
{
	struct job_event *v = NEW(struct job_event);
	if (!v)
		return NULL;
	v->kind = kind;
	v->index = j->index;
	v->stop = -1;
	return v;
}

static void on_output(void *user, enum output_kind kind, struct text_span text,
	const struct output_token *rows, size_t n_rows)
{
	static const enum job_event_kind kinds[] = {[OUTPUT_REASONING] = JOB_REASONING,
		[OUTPUT_TEXT] = JOB_TEXT,
		[OUTPUT_CALL] = JOB_CALL,
		[OUTPUT_ARGUMENTS] = JOB_ARGUMENTS,
		[OUTPUT_CALL_END] = JOB_CALL_END};
	struct job *j = user;
	if (mem_scope_failed()) /* nothing follows a piece that is missing */
		return;
	struct job_event *v = event_new(j, kinds[kind]);
	if (!v)
		return;
	buf_append(&v->text, text.data, text.len);
	if (n_rows && (v->rows = NEW_ARRAY(struct output_token, n_rows))) {
		memcpy(v->rows, rows, n_rows * sizeof *rows);
		v->n_rows = n_rows;
	}
	if (kind == OUTPUT_TEXT && j->options.token_ids) {
		ids_append(&v->ids, j->generated.data + j->n_ids_sent, j->generated.n - j->n_ids_sent);
		j->n_ids_sent = j->generated.n;
	}
	if (mem_scope_failed())
		job_event_free(v);
	else
		mailbox_put(j->mail, v);
}

void job_begin(struct job *j, const struct tokenizer *t)
{
	j->output = output_new(&j->options, t, &j->cancel, on_output, j);
	sampler_init(&j->sampler, &j->sampling);
	for (size_t i = 0; i < j->prompt.n && sampler_adjusts(&j->sampler); i++)
		sampler_note(&j->sampler, j->prompt.data[i], true);
}

void job_progress(struct job *j, uint32_t done, uint32_t total)
{
	struct mem_scope scope; /* who sees no progress loses nothing */
	mem_scope_begin(&scope);
	struct job_event *v = event_new(j, JOB_PROGRESS);
	mem_scope_end(&scope);
	if (!v)
		return;
	v->done = done;
	v->total = total;
	v->cached = j->cached;
	v->reading_ns = clock_ns() - j->reading_ns;
	mailbox_put(j->mail, v);
}

void job_end(struct job *j, enum job_finish finish)
{
	j->ended_ns = clock_ns();
	if (j->output) {
		j->cut_in_call = output_in_call(j->output);
		output_finish(j->output, finish == JOB_STOP_TOKEN);
	}
	if (mem_scope_failed()) {
		struct err e = {0};
		err_set(&e, ERR_MEMORY, JOB_NO_MEMORY);
		job_fail(j, &e);
		return;
	}
	struct job_event *v = j->last;
	j->last = NULL;
	v->kind = JOB_END;
	free(v->err);
	v->err = NULL;
	v->finish = finish;
	if (j->output)
		v->stop = output_stop_index(j->output);
	if (v->stop >= 0) /* it may have come with the very last text */
		v->finish = JOB_STOP_STRING;
	mailbox_put(j->mail, v);
}

void job_fail(struct job *j, const struct err *e)
{
	struct job_event *v = j->last;
	j->last = NULL;
	v->kind = JOB_ERROR;
	*v->err = *e;
	mailbox_put(j->mail, v);
}
