/* SPDX-License-Identifier: MIT */
/*
 * What the steps of the scheduler consist of, one by one: no thread runs, and steps are measured
 * with a clock that counts their rows.
 */
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/engine_internal.h"
#include "src/engine/session/session_image.h"
#include "src/serve/compute/scheduler_internal.h"
#include "tests/support/engine_help.h"
#include "tests/support/mutate_model.h"
#include "tests/support/slow_build.h"
#include "tests/support/temp_dir.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#define MS       1000000ull
#define JOBS_MAX 40

static struct engine *g;
static struct metrics *metrics;
static uint64_t ns_step, ns_row; /* what a step costs by the clock */

/* Rows that are copied from the device while jobs get sessions. */
static struct {
	const struct backend_ops *real;
	struct backend_ops ops;
	bool counts, fails;
	uint32_t n;
	uint64_t ns; /* what one costs by the clock */
} copies;

static int counted_download(
	struct backend *b, void *dst, const void *src, size_t bytes, struct err *e)
{
	copies.n += copies.counts;
	if (copies.counts && copies.fails)
		return err_set(e, ERR_RUN, "the device has failed");
	return copies.real->download(b, dst, src, bytes, e);
}

static uint64_t counted_clock(void)
{
	return ns_step * metrics_get(metrics, METRICS_STEPS) +
		   ns_row * metrics_get(metrics, METRICS_ROWS) + copies.ns * copies.n;
}

struct fixture {
	struct scheduler *s;
	struct mailbox *mail;
	struct job *jobs[JOBS_MAX];
	uint32_t n_jobs;
	struct client *client; /* of the jobs to come */
};

static bool kv_f32;           /* of the engines to come */
static uint32_t n_stages = 1; /* ... all on card 0 */
static bool whole_model;      /* ... for stages; else a small one */

static struct fixture fixture_open(
	uint32_t sessions, uint32_t chunk, uint32_t context, uint64_t step, uint64_t row)
{
	static const uint32_t cards[4];
	struct engine_options o = {
		.model_path = whole_model ? "tools/pocket/pocket.gguf" : small_model(),
		.backend = "cpu",
		.cards = cards,
		.n_cards = n_stages,
		.context = context,
		.chunk = chunk,
		.sessions = sessions,
		.kv_f32 = kv_f32,
		.no_mtp = true};
	struct fixture f = {.s = NEW(struct scheduler), .mail = mailbox_new()};
	g = engine_of(&o);
	metrics = metrics_new();
	ns_step = step;
	ns_row = row;
	f.s->engine = g;
	f.s->metrics = metrics;
	f.s->clock = counted_clock;
	f.s->queue_limit = JOBS_MAX;
	scheduler_init_preemption(f.s);
	f.s->slots = NEW_ARRAY(struct slot, sessions);
	f.s->last = &f.s->first;
	f.s->finished = true; /* there is no thread */
	pthread_mutex_init(&f.s->lock, NULL);
	pthread_cond_init(&f.s->wake, NULL);
	pthread_cond_init(&f.s->ended, NULL);
	for (; f.s->n_slots < sessions; f.s->n_slots++)
		f.s->slots[f.s->n_slots].session = session_of(g, false);
	scheduler_reserve_steps(f.s);
	return f;
}

static void fixture_close(struct fixture *f)
{
	for (uint32_t i = 0; i < f->n_jobs; i++)
		atomic_store(&f->jobs[i]->cancel, true);
	slots_drop_cancelled(f->s);
	for (uint32_t i = 0; i < f->n_jobs; i++)
		job_drop(f->jobs[i]);
	scheduler_close(f->s);
	mailbox_drop(f->mail);
	metrics_free(metrics);
	assert_int_equal(engine_close(g, NULL), 0);
}

/* A job that reads n random tokens and writes max_new. */
static struct job *submit(struct fixture *f, uint32_t n, uint32_t max_new)
{
	struct job *j = job_new(f->mail, f->n_jobs);
	struct rng r = {100 + f->n_jobs};
	unsigned retry;
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(token_ids_push(&j->prompt, (int32_t)rng_below(&r, 8000)), 0);
	j->max_new = j->options.min_new = max_new;
	j->sampling = (struct sampler_options){.temperature = 1, .top_p = 1, .seed = n};
	j->client = f->client;
	f->jobs[f->n_jobs++] = j;
	assert_int_equal(scheduler_submit(f->s, &j, 1, &retry), SCHEDULER_TAKEN);
	return j;
}

/* One step, after which nobody rests. Returns its rows; *reads: out, whether it read. */
static uint32_t step(struct fixture *f, bool *reads)
{
	uint64_t rows = metrics_get(metrics, METRICS_ROWS),
			 read = metrics_get(metrics, METRICS_PREFILL_TOKENS);
	slots_drop_cancelled(f->s);
	copies.counts = true;
	slots_fill(f->s);
	copies.counts = false;
	scheduler_step(f->s);
	for (uint32_t i = 0; i < f->s->n_slots; i++)
		f->s->slots[i].rest_ns = 0;
	*reads = metrics_get(metrics, METRICS_PREFILL_TOKENS) > read;
	return (uint32_t)(metrics_get(metrics, METRICS_ROWS) - rows);
}

/* An answer that rests after each token still has prompts read in slices, and goes on as soon as it
 * has rested. */
static void test_rest_keeps_slices(void **state)
{
	(void)state;
	struct fixture f = fixture_open(2, 512, 1600, 2 * MS, MS);
	struct job *writer = submit(&f, 20, 1000);
	bool reads;
	while (writer->generated.n < 3)
		step(&f, &reads);
	struct job *reader = submit(&f, 1400, 1);
	slots_fill(f.s);
	struct slot *slot = &f.s->slots[f.s->slots[0].job == writer ? 0 : 1];
	const int64_t rest = 60 * MS;
	uint32_t whole = 0, slices = 0;
	size_t before = writer->generated.n;
	while (!reader->generated.n) {
		int64_t left = slot->rest_ns;
		size_t written = writer->generated.n;
		uint64_t start = counted_clock();
		uint32_t rows = step(&f, &reads);
		left -= MIN(left, (int64_t)(counted_clock() - start));
		slot->rest_ns = writer->generated.n > written ? rest : left;
		whole += reads && rows > 64;
		slices += reads;
	}
	assert_true(whole <= 3); /* until the costs are known */
	assert_true(slices > 20);
	/* a token for each rest, of which a slice may take up to a third more */
	assert_true(writer->generated.n - before >= slices / 5);
	fixture_close(&f);
}

/* With more answers than a step writes, each is left out in its turn, also when prompts are read
 * between the steps. */
static void test_writers_take_turns(void **state)
{
	(void)state;
	enum { WRITERS = 17 };
	struct fixture f = fixture_open(WRITERS + 1, 16, 400, MS, 0);
	bool reads;
	for (uint32_t i = 0; i < WRITERS; i++)
		submit(&f, 5, 300);
	for (uint32_t n = 0; n < WRITERS;) {
		step(&f, &reads);
		n = 0;
		for (uint32_t i = 0; i < WRITERS; i++)
			n += f.jobs[i]->generated.n > 0;
	}
	const struct job *reader = submit(&f, 390, 1);
	size_t before[WRITERS], least = SIZE_MAX, most = 0;
	for (uint32_t i = 0; i < WRITERS; i++)
		before[i] = f.jobs[i]->generated.n;
	while (!reader->generated.n)
		step(&f, &reads);
	for (uint32_t i = 0; i < WRITERS; i++) {
		size_t n = f.jobs[i]->generated.n - before[i];
		least = MIN(least, n);
		most = MAX(most, n);
	}
	assert_true(most >= 15);
	assert_true(most - least <= 1);
	fixture_close(&f);
}

/* On a device that computes few rows in another way, all rows of a prompt are computed in the one
 * way in which they are computed when it is alone. */
static void test_one_way(void **state)
{
	(void)state;
	enum { FEW = 16, JOBS = IF_SLOW_BUILD(16, 32) };
	struct fixture f = fixture_open(6, 64, 300, 0, MS);
	struct backend *b = engine_last(g)->backend;
	const struct backend_ops *global = b->ops;
	struct backend_ops ops = *b->ops;
	struct rng r = {11};
	ops.decode_rows = FEW;
	b->ops = &ops;
	uint32_t few_steps = 0, many_steps = 0, running = 1;
	while (running || f.n_jobs < JOBS) {
		if (f.n_jobs < JOBS && !rng_below(&r, 3))
			submit(&f, 1 + rng_below(&r, f.n_jobs % 2 ? 250 : 40), 1 + rng_below(&r, 40));
		uint32_t length[6], computed[6] = {0};
		const struct job *job[6];
		slots_fill(f.s);
		for (uint32_t i = 0; i < 6; i++) {
			const struct slot *slot = &f.s->slots[i];
			job[i] = slot->job && slot->state == SCHEDULER_READING ? slot->job : NULL;
			length[i] = session_length(slot->session);
		}
		bool reads;
		uint32_t rows = step(&f, &reads);
		running = 0;
		for (uint32_t i = 0; i < 6; i++) {
			const struct slot *slot = &f.s->slots[i];
			running += slot->job != NULL;
			computed[i] = session_length(slot->session) - length[i];
			if (!reads || !job[i] || !computed[i])
				continue;
			bool is_few = job[i]->prompt.n - job[i]->cached <= FEW;
			assert_int_equal(rows <= FEW, is_few);
			few_steps += is_few;
			many_steps += !is_few;
		}
	}
	assert_in_range(few_steps, IF_SLOW_BUILD(2, 5), 50);
	assert_in_range(many_steps, IF_SLOW_BUILD(15, 50), 1000);
	b->ops = global;
	fixture_close(&f);
}

/* A short prompt that comes while a long one is read gets its first token from the next step, which
 * is no longer than a slice. The long one is not left out twice. */
static void test_short_beside_long(void **state)
{
	(void)state;
	struct fixture f = fixture_open(4, 512, 1600, 2 * MS, MS);
	bool reads;
	submit(&f, 300, 1); /* so that the costs are known */
	step(&f, &reads);
	submit(&f, 100, 1);
	step(&f, &reads);
	const struct job *the_long = submit(&f, 1100, 1);
	assert_int_equal(step(&f, &reads), 512);
	const struct job *the_short = submit(&f, 40, 1), *second;
	assert_int_equal(step(&f, &reads), 40);
	assert_int_equal(the_short->generated.n, 1);
	second = submit(&f, 50, 1);
	assert_int_equal(step(&f, &reads), 100);
	assert_int_equal(second->generated.n, 1);
	assert_int_equal(step(&f, &reads), 512);
	while (!the_long->generated.n)
		step(&f, &reads);
	fixture_close(&f);
}

static bool has_ended(const struct job *j)
{
	return j->generated.n == j->max_new;
}

/* Two answers of one client, of which the second has a prompt of n tokens, and a short one of
 * another. ids: out, the tokens of all. preempts: there is a session for two of them only. */
static void answer_two_clients(
	uint32_t n, bool preempts, bool drafts, struct token_ids ids[3], uint64_t *preempted)
{
	struct fixture f = fixture_open(preempts ? 2 : 3, 64, 450, MS, 0);
	struct client_shares *shares = client_shares_new(75);
	struct client *clients[2] = {client_find(shares, "a", 1), client_find(shares, "b", 1)};
	bool reads;
	if (drafts)
		f.s->drafter = drafter_open(g, 3);
	for (uint32_t i = 0; i < f.s->n_slots && drafts; i++)
		f.s->slots[i].drafts = draft_timeline_open(f.s->drafter, f.s->slots[i].session);
	f.client = clients[0];
	struct job *a = submit(&f, 80, 60), *b = submit(&f, n, 60);
	while (a->generated.n < 3)
		step(&f, &reads);
	f.client = clients[1];
	struct job *c = submit(&f, 20, 10);
	c->submitted_ns -= MIN(c->submitted_ns, 1000 * MS); /* has waited */
	while (!has_ended(c)) {
		step(&f, &reads);
		assert_false(has_ended(a) && has_ended(b));
	}
	while (!has_ended(a) || !has_ended(b))
		step(&f, &reads);
	for (uint32_t i = 0; i < 3; i++)
		for (size_t k = 0; k < f.jobs[i]->generated.n; k++)
			assert_int_equal(token_ids_push(&ids[i], f.jobs[i]->generated.data[k]), 0);
	*preempted = metrics_get(metrics, METRICS_PREEMPTED);
	assert_int_equal(f.s->images_bytes, 0);
	fixture_close(&f);
	client_drop(clients[0]);
	client_drop(clients[1]);
	assert_int_equal(client_shares_stats(shares).clients, 0);
	client_shares_free(shares);
}

/* A client that has all sessions gives one to another that waits; its answer goes on later with the
 * tokens that it has when nobody interrupts it, whether it was being written or read. */
static void test_preemption(void **state)
{
	(void)state;
	static const uint32_t lengths[] = {5, 350};
	for (uint32_t i = 0; i < 2; i++)
		for (int drafts = IF_SLOW_BUILD((int)i, 0); drafts < 2; drafts++) {
			struct token_ids alone[3] = {0}, got[3] = {0};
			uint64_t preempted;
			kv_f32 = i != (uint32_t)drafts;
			answer_two_clients(lengths[i], false, drafts, alone, &preempted);
			assert_int_equal(preempted, 0);
			answer_two_clients(lengths[i], true, drafts, got, &preempted);
			assert_int_equal(preempted, 1);
			for (uint32_t k = 0; k < 3; k++) {
				assert_int_equal(got[k].n, alone[k].n);
				assert_memory_equal(got[k].data, alone[k].data, got[k].n * sizeof *got[k].data);
				token_ids_free(&alone[k]);
				token_ids_free(&got[k]);
			}
			kv_f32 = false;
		}
}

/* The client of a preempted answer leaves: the answer ends at once, and its rows are given back. */
static void test_preempted_leaves(void **state)
{
	(void)state;
	struct fixture f = fixture_open(2, 64, 450, MS, 0);
	struct client_shares *shares = client_shares_new(75);
	struct client *clients[2] = {client_find(shares, "a", 1), client_find(shares, "b", 1)};
	bool reads;
	f.client = clients[0];
	for (int i = 0; i < 2; i++)
		submit(&f, 10, 200);
	while (!f.jobs[0]->generated.n || !f.jobs[1]->generated.n)
		step(&f, &reads);
	f.client = clients[1];
	struct job *c = submit(&f, 10, 200);
	c->submitted_ns -= MIN(c->submitted_ns, 1000 * MS);
	step(&f, &reads);
	assert_int_equal(f.s->waiting, 1);
	struct job *gone = f.s->first;
	assert_true(gone != c && gone->swapped);
	atomic_store(&gone->cancel, true);
	step(&f, &reads);
	assert_int_equal(f.s->waiting, 0);
	assert_int_equal(metrics_get(metrics, METRICS_CANCELLED), 1);
	assert_int_equal(f.s->images_bytes, 0); /* although its connection holds the job */
	assert_null(gone->swapped);
	bool ended = false;
	for (struct job_event *v; (v = mailbox_take(f.mail, 0)); job_event_free(v))
		ended =
			ended || (v->kind == JOB_END && v->finish == JOB_CANCELLED && f.jobs[v->index] == gone);
	assert_true(ended);
	fixture_close(&f);
	client_drop(clients[0]);
	client_drop(clients[1]);
	assert_int_equal(client_shares_stats(shares).clients, 0);
	client_shares_free(shares);
}

/* Clients a, b, c of a server on which a has an answer in each session. */
struct crowd {
	struct fixture f;
	struct client_shares *shares;
	struct client *clients[3];
};

static struct crowd crowd_open(uint32_t sessions)
{
	struct crowd c = {
		.f = fixture_open(sessions, 64, 1600, MS, 0), .shares = client_shares_new(75)};
	for (size_t i = 0; i < 3; i++)
		c.clients[i] = client_find(c.shares, &"abc"[i], 1);
	copies.n = 0;
	copies.ns = 0;
	copies.fails = false;
	copies.real = engine_last(g)->backend->ops;
	copies.ops = *copies.real;
	copies.ops.download = counted_download;
	engine_last(g)->backend->ops = &copies.ops;
	bool reads;
	c.f.client = c.clients[0];
	for (uint32_t i = 0; i < sessions; i++)
		submit(&c.f, 10 + 20 * i, 1500);
	for (uint32_t n = 0; n < sessions;) {
		step(&c.f, &reads);
		n = 0;
		for (uint32_t i = 0; i < sessions; i++)
			n += c.f.jobs[i]->generated.n > 0;
	}
	return c;
}

/* Ends all answers; nothing is left of those that wait. */
static void crowd_close(struct crowd *c)
{
	for (uint32_t i = 0; i < c->f.n_jobs; i++)
		atomic_store(&c->f.jobs[i]->cancel, true);
	slots_drop_cancelled(c->f.s);
	slots_fill(c->f.s);
	assert_null(c->f.s->first);
	assert_int_equal(c->f.s->waiting + c->f.s->n_swapped, 0);
	assert_int_equal(c->f.s->images_bytes, 0);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(client_held(c->clients[i], CLIENT_PLACES), 0);
	engine_last(g)->backend->ops = copies.real;
	fixture_close(&c->f);
	copies.n = 0;
	copies.ns = 0;
	for (size_t i = 0; i < 3; i++)
		client_drop(c->clients[i]);
	assert_int_equal(client_shares_stats(c->shares).clients, 0);
	client_shares_free(c->shares);
}

/* An answer of client number i, which has waited for a second. */
static struct job *submit_late(struct crowd *c, uint32_t i, uint32_t max_new)
{
	c->f.client = c->clients[i];
	struct job *j = submit(&c->f, 10, max_new);
	j->submitted_ns -= MIN(j->submitted_ns, 1000 * MS);
	return j;
}

static uint32_t n_preempted(void)
{
	return (uint32_t)metrics_get(metrics, METRICS_PREEMPTED);
}

/* Steps until so many answers have been preempted; returns how many it took, `most` if that did not
 * happen. */
static uint32_t steps_until(struct crowd *c, uint32_t preempted, uint32_t most)
{
	bool reads;
	uint32_t n = 0;
	for (; n < most && n_preempted() < preempted; n++)
		step(&c->f, &reads);
	return n;
}

/* Until the answer has ended and the one that it preempted has been in a step again. */
static void finish(struct crowd *c, const struct job *j)
{
	bool reads;
	while (!has_ended(j))
		step(&c->f, &reads);
	step(&c->f, &reads);
	assert_null(c->f.s->first);
}

/* An answer that has resumed is computed in 64 steps before it is preempted again; until then it is
 * the turn of others. */
static void test_resumed_is_safe(void **state)
{
	(void)state;
	struct crowd c = crowd_open(2);
	struct job *small = c.f.jobs[0], *large = c.f.jobs[1];
	struct job *j = submit_late(&c, 1, 3);
	assert_int_equal(steps_until(&c, 1, 10), 1);
	assert_ptr_equal(c.f.s->first, small);
	finish(&c, j);
	const size_t resumed = small->generated.n - 1;
	j = submit_late(&c, 1, 3);
	assert_true(steps_until(&c, 2, 60) < 60);
	assert_ptr_equal(c.f.s->first, large);
	finish(&c, j);
	j = submit_late(&c, 1, 3);
	assert_true(steps_until(&c, 3, 100) < 100);
	assert_ptr_equal(c.f.s->first, small);
	assert_in_range(small->generated.n - resumed, 64, 66);
	finish(&c, j);
	crowd_close(&c);
}

/* An image has a limit, all images together have one, and none are taken where the limit is 0. */
static void test_image_limits(void **state)
{
	(void)state;
	struct crowd c = crowd_open(3);
	struct scheduler *s = c.f.s;
	bool reads;
	submit_late(&c, 1, 1000);
	s->image_limit = session_image_bytes(s->slots[0].session) / 2;
	assert_int_equal(steps_until(&c, 1, 10), 10);
	s->image_limit = 0;
	assert_int_equal(steps_until(&c, 1, 10), 10);
	scheduler_init_preemption(s);
	assert_int_equal(steps_until(&c, 1, 10), 1);
	const struct job *gone = s->first;
	assert_int_equal(gone->swapped_bytes, s->images_bytes);
	assert_true(s->images_bytes > 0);
	s->images_limit = s->images_bytes * 3 / 2;
	submit_late(&c, 2, 1000);
	assert_int_equal(steps_until(&c, 2, 10), 10);
	atomic_store(&c.f.jobs[gone->index]->cancel, true);
	step(&c.f, &reads);
	assert_null(gone->swapped);
	s->images_limit *= 2; /* the others have got longer */
	assert_true(steps_until(&c, 2, 10) < 10);
	crowd_close(&c);
}

/* A device that fails is not asked at each step, and preemption works again when it does. */
static void test_failure_pauses(void **state)
{
	(void)state;
	struct crowd c = crowd_open(2);
	copies.fails = true;
	submit_late(&c, 1, 1000);
	assert_int_equal(steps_until(&c, 1, 220), 220);
	assert_int_equal(copies.n, 3); /* at once, after 64 steps and after 128 more */
	assert_null(c.f.s->first->swapped);
	copies.fails = false;
	assert_true(steps_until(&c, 1, 300) < 300);
	assert_int_equal(c.f.s->preempt_pause, 0);
	crowd_close(&c);
}

/* The client that is let in pays for copying, there and back, in both kinds of work; until it has,
 * it is let in no more. */
static void test_swap_is_charged(void **state)
{
	(void)state;
	struct crowd c = crowd_open(3);
	struct scheduler *s = c.f.s;
	const struct job *j = submit_late(&c, 1, 1);
	copies.ns = 100 * MS;
	copies.counts = true;
	slots_fill(s);
	copies.counts = false;
	assert_int_equal(n_preempted(), 1);
	assert_true(copies.n > 2);
	const uint64_t cost = 2 * copies.ns * copies.n;
	const struct client_time *b = client_time_find(&s->times, c.clients[1]);
	assert_non_null(b);
	for (int w = 0; w < CLIENT_N_WORKS; w++)
		assert_true(b->used_ns[w] >= s->times.least_ns[w] + cost);
	for (uint32_t i = 0; i < s->n_slots; i++)
		assert_int_equal(s->slots[i].swap_ns, 0);
	finish(&c, j);
	submit_late(&c, 1, 1);
	assert_int_equal(steps_until(&c, 2, 5), 5);
	for (uint32_t i = 0; i < s->n_slots; i++)
		client_time_charge(s->slots[i].time, CLIENT_WRITES, cost / 2);
	assert_in_range(steps_until(&c, 2, 5), 1, 4);
	crowd_close(&c);
}

/* A preempted job takes no place in the queue, neither of all nor of its client; and it is next
 * when its client has no session left. */
static void test_preempted_keeps_none_out(void **state)
{
	(void)state;
	struct crowd c = crowd_open(2);
	struct scheduler *s = c.f.s;
	bool reads;
	unsigned retry;
	submit_late(&c, 1, 1000);
	assert_int_equal(steps_until(&c, 1, 10), 1);
	struct job *gone = s->first;
	assert_int_equal(s->waiting, 1);
	assert_int_equal(client_held(c.clients[0], CLIENT_PLACES), 0);
	s->queue_limit = 1;
	s->snapshot.active = 2;
	assert_int_equal(scheduler_check_room(s, c.clients[0], &retry), SCHEDULER_TAKEN);
	c.f.client = c.clients[2];
	const struct job *new = submit(&c.f, 10, 1000);
	assert_int_equal(scheduler_check_room(s, c.clients[2], &retry), SCHEDULER_FULL);
	atomic_store(&c.f.jobs[gone == c.f.jobs[0]]->cancel, true); /* the other one of its client */
	step(&c.f, &reads);
	assert_null(gone->swapped);
	assert_ptr_equal(s->first, new);
	crowd_close(&c);
}

/* ---- several stages ---- */

static bool is_busy(const struct scheduler *s)
{
	bool busy = s->first != NULL;
	for (uint32_t i = 0; i < s->n_slots; i++)
		busy |= s->slots[i].job != NULL;
	return busy;
}

static uint32_t slots_in_flight(const struct scheduler *s)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_slots; i++)
		n += s->slots[i].in_flight;
	return n;
}

enum { STAGED = 9, CANCELLED = 1 };

/* Answers that end at different times, one that is cancelled while its step is in flight, and
 * prompts that come later: a hash of what each has written. Returns how many answers were in flight
 * behind a step at most. */
static uint32_t answers_of_stages(uint32_t stages, uint64_t *hashes)
{
	n_stages = stages;
	struct fixture f = fixture_open(6, 64, 200, MS, MS);
	uint32_t most = 0;
	bool reads;
	for (uint32_t i = 0; i < STAGED - 2; i++)
		submit(&f, 5 + 3 * i, i == CANCELLED ? 150 : 4 + 5 * (i % 4));
	for (uint32_t k = 0; is_busy(f.s); k++) {
		assert_true(k < 2000);
		step(&f, &reads);
		most = MAX(most, slots_in_flight(f.s));
		if (f.jobs[CANCELLED]->generated.n == 9)
			atomic_store(&f.jobs[CANCELLED]->cancel, true);
		if (k == 10)
			while (f.n_jobs < STAGED)
				submit(&f, 40, 12);
	}
	assert_null(f.s->steps);
	for (uint32_t i = 0; i < STAGED; i++) {
		const struct job *j = f.jobs[i];
		assert_true(i == CANCELLED ? j->generated.n < 20 : j->generated.n == j->max_new);
		hashes[i] = hash_bytes(
			HASH_START, j->generated.data, (i == CANCELLED ? 9 : j->max_new) * sizeof(int32_t));
	}
	fixture_close(&f);
	n_stages = 1;
	return most;
}

/* With several stages several steps are in flight, and every answer is that of one stage. */
static void test_answers_of_stages(void **state)
{
	(void)state;
	uint64_t one[STAGED], more[STAGED];
	whole_model = true;
	assert_int_equal(answers_of_stages(1, one), 0);
	for (uint32_t n = IF_SLOW_BUILD(3, 2); n < 4; n++) {
		assert_in_range(answers_of_stages(n, more), 2, 5);
		assert_memory_equal(one, more, sizeof one);
	}
	whole_model = false;
}

/* The server stops, or the device of a stage fails, while steps are in flight: every answer ends,
 * and nothing waits for anything. */
static void test_stages_end(void **state)
{
	(void)state;
	whole_model = true;
	for (int i = 0; i < 4; i++) {
		const bool fails = i % 2, reading = i / 2; /* the steps in flight read prompts */
		n_stages = 3;
		struct fixture f = fixture_open(6, 64, 200, MS, MS);
		bool reads;
		for (uint32_t k = 0; k < 6; k++)
			submit(&f, reading ? 190 : 5, 100);
		for (uint32_t k = 0; slots_in_flight(f.s) < 4; k++) {
			assert_true(k < 100);
			step(&f, &reads);
		}
		struct backend *b = g->stages[1].backend;
		assert_true(reading ? f.s->reads && !f.s->steps : f.s->steps && !f.s->reads);
		assert_false(engine_has_failed(g)); /* waits: no stage computes */
		if (fails)
			err_set(&b->failure, ERR_RUN, "failed on purpose");
		else
			scheduler_stop(f.s, 0);
		for (uint32_t k = 0; is_busy(f.s); k++) {
			assert_true(k < 20);
			step(&f, &reads);
		}
		assert_true(!f.s->steps && !f.s->reads);
		assert_int_equal(metrics_get(metrics, METRICS_FAILED), 6);
		b->failure = (struct err){0};
		fixture_close(&f);
	}
	n_stages = 1;
	whole_model = false;
}

/* Products until one finds no memory; 0: all find some. */
static struct {
	const struct backend_ops *real;
	struct backend_ops ops;
	uint32_t left;
} short_of_memory;

static void scarce_matmul(
	struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	if (short_of_memory.left && !--short_of_memory.left)
		err_set(&b->failure, ERR_MEMORY, "matmul: no memory");
	else if (!b->failure.code)
		short_of_memory.real->matmul(b, parts, n_parts, x, rows);
}

/* Three answers one after the other, and the tokens of the last; the second finds no memory at its
 * n-th product. */
static struct token_ids answer_without_memory(uint32_t n)
{
	struct fixture f = fixture_open(1, 64, 450, MS, 0);
	struct backend *b = engine_last(g)->backend;
	const struct backend_ops *real = b->ops;
	struct token_ids ids = {0};
	bool reads;
	short_of_memory.real = real;
	short_of_memory.ops = *real;
	short_of_memory.ops.matmul = scarce_matmul;
	b->ops = &short_of_memory.ops;
	for (uint32_t i = 0; i < 3; i++) {
		const struct job *j = submit(&f, 40, 5);
		short_of_memory.left = i == 1 ? n : 0;
		do
			step(&f, &reads);
		while (f.s->slots[0].job);
		assert_true(has_ended(j) == (i != 1 || !n));
		for (size_t k = 0; i == 2 && k < j->generated.n; k++)
			assert_int_equal(token_ids_push(&ids, j->generated.data[k]), 0);
	}
	assert_int_equal(metrics_get(metrics, METRICS_FAILED), n != 0);
	assert_true(f.s->snapshot.healthy);
	b->ops = real;
	fixture_close(&f);
	return ids;
}

/* A step that finds no memory costs its own answers; those that follow are right. */
static void test_step_without_memory(void **state)
{
	(void)state;
	struct token_ids right = answer_without_memory(0);
	static const uint32_t at[] = {2, 8}; /* while it reads, while it writes */
	for (uint32_t i = 0; i < ARRAY_LEN(at); i++) {
		struct token_ids got = answer_without_memory(at[i]);
		assert_int_equal(got.n, right.n);
		assert_memory_equal(got.data, right.data, right.n * sizeof *right.data);
		token_ids_free(&got);
	}
	token_ids_free(&right);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rest_keeps_slices),
		cmocka_unit_test(test_writers_take_turns),
		cmocka_unit_test(test_one_way),
		cmocka_unit_test(test_short_beside_long),
		cmocka_unit_test(test_preemption),
		cmocka_unit_test(test_preempted_leaves),
		cmocka_unit_test(test_resumed_is_safe),
		cmocka_unit_test(test_image_limits),
		cmocka_unit_test(test_failure_pauses),
		cmocka_unit_test(test_swap_is_charged),
		cmocka_unit_test(test_preempted_keeps_none_out),
		cmocka_unit_test(test_answers_of_stages),
		cmocka_unit_test(test_stages_end),
		cmocka_unit_test(test_step_without_memory),
	};
#ifdef __SANITIZE_THREAD__ /* the others have one thread, and those of kernels */
	cmocka_set_test_filter("*stages*");
#endif
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
