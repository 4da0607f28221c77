/* SPDX-License-Identifier: MIT */
#include "tests/support/reader_sim.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHANNELS_MAX 4096

/* Reads in the order in which they come back: of one drive, since the bus serves them in order. */
struct sim_queue {
	struct reader_op *head, *tail; /* engine_word: when it is complete */
	uint64_t bus_free_ns;
	uint64_t channel_free_ns[CHANNELS_MAX];
};

struct drive_sim {
	void *owner;
	struct reader_sim model;
	unsigned n_drives;
	struct sim_queue *queues;
	uint64_t now_ns;
	struct rng rng;
};

double sim_drive_most(const struct sim_drive *d, double slice)
{
	return slice / (1e-9 * (double)d->command_ns + slice / d->bytes_s);
}

static int sim_open(const struct reader_setup *s, void **state, char *why, size_t why_bytes)
{
	(void)why;
	(void)why_bytes;
	struct drive_sim *sim = NEW(struct drive_sim);
	sim->owner = s->owner;
	sim->model = *(const struct reader_sim *)s->custom_options;
	sim->n_drives = s->n_drives;
	sim->queues = NEW_ARRAY(struct sim_queue, s->n_drives);
	sim->now_ns = 1;
	sim->rng.state = sim->model.seed;
	*state = sim;
	return 0;
}

/* x, up to the part `jitter` more or less */
static uint64_t vary(struct drive_sim *sim, double x, double jitter)
{
	const double u = (double)rng_below(&sim->rng, 1u << 20) / (double)(1u << 20);
	return (uint64_t)(x * (1 + jitter * (2 * u - 1)));
}

static void sim_start(void *state, struct reader_op *op)
{
	struct drive_sim *sim = state;
	const struct sim_drive *d = &sim->model.drives[op->drive];
	struct sim_queue *q = &sim->queues[op->drive];
	unsigned channel = 0;
	for (unsigned i = 1; i < d->channels; i++)
		if (q->channel_free_ns[i] < q->channel_free_ns[channel])
			channel = i;
	const uint64_t begins = MAX(sim->now_ns, q->channel_free_ns[channel]);
	const uint64_t found = begins + vary(sim, (double)d->latency_ns, d->jitter);
	const double bus_ns = (double)d->command_ns + 1e9 * (double)op->bytes / d->bytes_s;
	q->bus_free_ns = MAX(found, q->bus_free_ns) + vary(sim, bus_ns, d->jitter);
	q->channel_free_ns[channel] = q->bus_free_ns;
	op->engine_word = q->bus_free_ns;
	op->link = NULL;
	*(q->tail ? &q->tail->link : &q->head) = op;
	q->tail = op;
}

static void sim_flush(void *state)
{
	(void)state;
}

/* The drive whose first read is complete first; NULL: nothing is in flight. */
static struct sim_queue *first_due(const struct drive_sim *sim)
{
	struct sim_queue *first = NULL;
	for (unsigned i = 0; i < sim->n_drives; i++)
		if (sim->queues[i].head &&
			(!first || sim->queues[i].head->engine_word < first->head->engine_word))
			first = &sim->queues[i];
	return first;
}

static void sim_poll(void *state, int64_t wait_ns)
{
	struct drive_sim *sim = state;
	struct sim_queue *q = first_due(sim);
	if (wait_ns && q && q->head->engine_word > sim->now_ns) {
		const uint64_t due = q->head->engine_word;
		sim->now_ns = wait_ns < 0 ? due : MIN(due, sim->now_ns + (uint64_t)wait_ns);
	} else if (wait_ns > 0 && !q) {
		sim->now_ns += (uint64_t)wait_ns;
	}
	while ((q = first_due(sim)) && q->head->engine_word <= sim->now_ns) {
		struct reader_op *op = q->head;
		if (!(q->head = op->link))
			q->tail = NULL;
		reader_op_done(
			sim->owner, op, sim->model.refuses_direct && op->direct ? -EINVAL : (int)op->bytes);
	}
}

static void sim_cancel(void *state, struct reader_op *op)
{
	(void)state;
	(void)op; /* comes back in its time */
}

static void sim_wake(void *state)
{
	(void)state;
}

static uint64_t sim_now(void *state)
{
	return ((struct drive_sim *)state)->now_ns;
}

static void sim_describe(void *state, char *text, size_t bytes)
{
	(void)state;
	snprintf(text, bytes, "simulated drives");
}

static void sim_close(void *state)
{
	struct drive_sim *sim = state;
	free(sim->queues);
	free(sim);
}

const struct reader_engine_ops reader_sim_engine = {
	.name = "simulated",
	.open = sim_open,
	.start = sim_start,
	.flush = sim_flush,
	.poll = sim_poll,
	.cancel = sim_cancel,
	.wake = sim_wake,
	.now = sim_now,
	.describe = sim_describe,
	.close = sim_close,
};
