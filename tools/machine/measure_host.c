/* SPDX-License-Identifier: MIT */
/* Two threads: this one computes on the processor's pool, the other copies to the card. */
#include "tools/machine/measure_host.h"

#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/forward/moe/host_experts.h"
#include "src/model/weights.h"
#include "tools/machine/bench_ops.h"
#include "tools/machine/bench_pool.h"
#include "tools/output/interrupt.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_BYTES  ((size_t)256 << 20) /* copied over and over */
#define CHUNK_BYTES ((size_t)8 << 20)   /* of one copy */
#define CHUNKS      4                   /* in flight */

/* The link: memory of both ends, and the thread that copies while `busy`. */
struct busy_link {
	struct copier *copier; /* NULL: none */
	uint8_t *host, *card;
	bool pinned, started;
	pthread_t thread;
	atomic_bool quit;
	_Atomic uint64_t bytes; /* copied so far */
	struct err failure;     /* written by the thread; read after it was joined */
};

/* Experts of one shape. */
struct shape_set {
	struct expert_job shape; /* of the first copy */
	size_t stride[3];
	int copies, next;
	int layers; /* of the model that have this shape */
	/* of the running sample: layers computed, and how long they took */
	int done;
	uint64_t ns;
};

struct host_job {
	struct backend *processor;
	struct bench_pool pool;
	struct shape_set sets[MEASURE_SHAPES];
	int n_sets, n_used;
	float *x, *y;
	int32_t *slots; /* [n_used] */
	struct expert_job *jobs;
	struct busy_link link;
};

/* ---- the link ---- */

static void *copy_to_card(void *link)
{
	struct busy_link *l = link;
	const struct copier_ops *ops = l->copier->ops;
	uint64_t fences[CHUNKS] = {0}, n = 0;
	int rc = 0;
	ops->attach(l->copier);
	for (; rc >= 0 && !atomic_load(&l->quit); n++) {
		const uint64_t oldest = fences[n % CHUNKS];
		while (oldest && !(rc = ops->fence_status(l->copier, oldest, &l->failure)))
			;
		if (rc > 0)
			l->bytes += CHUNK_BYTES;
		const size_t at = n * CHUNK_BYTES % LINK_BYTES;
		ops->copy(l->copier, COPY_IN, l->card + at, l->host + at, CHUNK_BYTES);
		fences[n % CHUNKS] = ops->fence(l->copier, COPY_IN);
	}
	ops->drain(l->copier);
	return NULL;
}

static int link_start(struct busy_link *l, struct err *e)
{
	if (!l->copier)
		return 0;
	const struct copier_ops *ops = l->copier->ops;
	int rc = ops->alloc(l->copier, LINK_BYTES, (void **)&l->card, e);
	if (rc)
		return rc;
	l->host = pages_try_map(LINK_BYTES);
	if (!l->host)
		return err_set(e, ERR_MEMORY, "no memory for an array of %zu bytes", LINK_BYTES);
	memset(l->host, 1, LINK_BYTES);
	if ((rc = ops->pin(l->copier, l->host, LINK_BYTES, e)))
		return rc;
	l->pinned = true;
	if (pthread_create(&l->thread, NULL, copy_to_card, l))
		return err_set(e, ERR_MEMORY, "no memory for a thread");
	l->started = true;
	return 0;
}

/* Returns what failed while copying. */
static int link_stop(struct busy_link *l, int rc, struct err *e)
{
	if (!l->copier)
		return rc;
	atomic_store(&l->quit, true);
	if (l->started)
		pthread_join(l->thread, NULL);
	if (l->pinned)
		l->copier->ops->unpin(l->copier, l->host, LINK_BYTES);
	if (l->host)
		pages_unmap(l->host, LINK_BYTES);
	l->copier->ops->free(l->copier, l->card, LINK_BYTES);
	if (!rc && l->failure.code) {
		*e = l->failure;
		rc = e->code;
	}
	return rc;
}

/* ---- the processor ---- */

static struct weight shape_of(const struct gguf_tensor *t)
{
	return expert_shape(t->type, t->ne[0], t->ne[1], t->ne[2], gguf_values_bytes(t));
}

static bool same_shape(const struct expert_job *a, const struct expert_job *b)
{
	return a->gate.type == b->gate.type && a->up.type == b->up.type &&
		   a->down.type == b->down.type && a->gate.n_out == b->gate.n_out;
}

/* The shapes of the trunk's experts that the processor computes. */
static void list_shapes(
	struct host_job *h, const struct model_config *c, const struct model_weights *w)
{
	for (uint32_t i = c->n_dense; i < c->n_layers; i++) {
		const struct expert_tensors *t = &w->experts[i];
		const struct expert_job shape = {
			.gate = shape_of(t->gate), .up = shape_of(t->up), .down = shape_of(t->down)};
		int at = 0;
		while (at < h->n_sets && !same_shape(&h->sets[at].shape, &shape))
			at++;
		if (at == MEASURE_SHAPES || !host_experts_covers(&shape))
			continue;
		h->sets[at].shape = shape;
		h->sets[at].layers++;
		h->n_sets = MAX(h->n_sets, at + 1);
	}
}

/* Weights of random values for all shapes, and one row. */
static int make_experts(struct host_job *h, const struct model_config *c, struct err *e)
{
	h->n_used = (int)c->n_used;
	for (int i = 0; i < h->n_sets; i++) {
		struct shape_set *s = &h->sets[i];
		struct weight *w[] = {&s->shape.gate, &s->shape.up, &s->shape.down};
		s->copies = MAX(bench_op_copies_in_memory(host_experts_bytes(&s->shape)), h->n_used);
		for (int k = 0; k < 3; k++)
			*w[k] = bench_pool_weight(
				&h->pool, w[k]->type, w[k]->n_in, w[k]->n_out, 1, s->copies, &s->stride[k]);
	}
	h->x = bench_pool_floats(&h->pool, c->n_embd);
	h->y = bench_pool_floats(&h->pool, (size_t)h->n_used * c->n_embd);
	h->slots = NEW_ARRAY(int32_t, h->n_used);
	h->jobs = NEW_ARRAY(struct expert_job, h->n_used);
	for (int i = 0; i < h->n_used; i++)
		h->slots[i] = i;
	if (h->pool.code)
		*e = h->pool.err;
	return h->pool.code;
}

/* Computes the experts of a token's layer. Returns the bytes of their weights. */
static double compute_layer(struct host_job *h, struct shape_set *s)
{
	for (int i = 0; i < h->n_used; i++, s->next = (s->next + 1) % s->copies) {
		struct expert_job *j = &h->jobs[i];
		*j = s->shape;
		struct weight *w[] = {&j->gate, &j->up, &j->down};
		for (int k = 0; k < 3; k++)
			w[k]->data = (const uint8_t *)w[k]->data + s->stride[k] * (size_t)s->next;
		j->token_slots = &h->slots[i];
		j->n_token_slots = 1;
	}
	h->processor->ops->expert_ffn(h->processor, h->x, h->jobs, h->n_used, 1, h->n_used, h->y);
	return h->n_used * host_experts_bytes(&s->shape);
}

/* Layers of all shapes, each as often as the model has it, for so long. */
static int sample(
	struct host_job *h, double seconds, double *host_bytes_s, double *link_bytes_s, struct err *e)
{
	const uint64_t came = h->link.bytes, start = clock_ns(), most = (uint64_t)(seconds * 1e9);
	double bytes = 0;
	uint64_t ns;
	for (int i = 0; i < h->n_sets; i++)
		h->sets[i].ns = 0, h->sets[i].done = 0;
	do {
		struct shape_set *next = h->sets; /* the shape that is furthest behind */
		for (struct shape_set *s = h->sets + 1; s < h->sets + h->n_sets; s++)
			if (s->done * next->layers < next->done * s->layers)
				next = s;
		const uint64_t began = clock_ns();
		bytes += compute_layer(h, next);
		int rc = h->processor->ops->wait(h->processor, e);
		next->ns += clock_ns() - began;
		next->done++;
		if (!rc && atomic_load(interrupt_flag()))
			rc = err_set(e, ERR_INTERRUPTED, "interrupted");
		if (rc)
			return rc;
		/* until each shape was computed */
	} while ((ns = clock_ns() - start) < most || !h->sets[h->n_sets - 1].done);
	*host_bytes_s = bytes / (double)ns * 1e9;
	*link_bytes_s = (double)(h->link.bytes - came) / (double)ns * 1e9;
	return 0;
}

/* In the sample that has just been taken */
static double shape_bytes_s(const struct host_job *h, const struct shape_set *s)
{
	return s->done * (h->n_used * host_experts_bytes(&s->shape)) / (double)s->ns * 1e9;
}

static int commonest_first(const void *a, const void *b)
{
	return ((const struct measure_shape *)b)->layers - ((const struct measure_shape *)a)->layers;
}

static void list_rates(const struct host_job *h, double rates[][BENCH_MAX_REPEATS], int repeats,
	struct measure_host *out)
{
	for (int k = 0; k < h->n_sets; k++) {
		const struct shape_set *s = &h->sets[k];
		out->shapes[k] = (struct measure_shape){.gate = s->shape.gate.type,
			.up = s->shape.up.type,
			.down = s->shape.down.type,
			.layers = s->layers,
			.bytes_s = bench_spread_of(rates[k], repeats).median};
	}
	out->n_shapes = h->n_sets;
	qsort(out->shapes, (size_t)out->n_shapes, sizeof out->shapes[0], commonest_first);
}

static int measure_samples(
	struct host_job *h, double seconds, int repeats, struct measure_host *out, struct err *e)
{
	double host[BENCH_MAX_REPEATS], link[BENCH_MAX_REPEATS], both[BENCH_MAX_REPEATS],
		rates[MEASURE_SHAPES][BENCH_MAX_REPEATS];
	int rc = 0;
	for (int i = -1; i < repeats && !rc; i++) { /* the first touches all memory */
		rc = sample(h, seconds, &host[MAX(i, 0)], &link[MAX(i, 0)], e);
		for (int k = 0; k < h->n_sets && !rc; k++)
			rates[k][MAX(i, 0)] = shape_bytes_s(h, &h->sets[k]);
	}
	if (rc)
		return rc;
	list_rates(h, rates, repeats, out);
	out->alone_bytes_s = bench_spread_of(host, repeats);
	if (!h->link.copier)
		return 0;
	rc = link_start(&h->link, e);
	for (int i = -1; i < repeats && !rc; i++) { /* the first wakes the card */
		rc = sample(h, seconds, &host[MAX(i, 0)], &link[MAX(i, 0)], e);
		both[MAX(i, 0)] = host[MAX(i, 0)] + link[MAX(i, 0)];
	}
	rc = link_stop(&h->link, rc, e);
	if (rc)
		return rc;
	out->host_bytes_s = bench_spread_of(host, repeats);
	out->link_bytes_s = bench_spread_of(link, repeats);
	out->both_bytes_s = bench_spread_of(both, repeats);
	return 0;
}

int measure_host(struct copier *copier, const struct gguf *file, int threads, double seconds,
	int repeats, struct measure_host *out, struct err *e)
{
	struct model_config c;
	struct model_weights w = {0};
	size_t resident;
	struct host_job h = {.link.copier = copier};
	*out = (struct measure_host){0};
	int rc = config_read(file, &c, e);
	if (!rc && !(rc = weights_bind(file, &c, false, &w, &resident, e)))
		list_shapes(&h, &c, &w);
	weights_free(&w, NULL);
	if (rc || !h.n_sets)
		return rc;
	const struct backend_options options = host_experts_backend(threads, NULL);
	if (!(rc = backend_open(&options, &h.processor, e))) {
		h.pool.backend = h.processor;
		rc = make_experts(&h, &c, e);
		if (!rc)
			rc = measure_samples(&h, seconds, repeats, out, e);
		out->there = !rc;
		bench_pool_release(&h.pool);
		h.processor->ops->close(h.processor);
	}
	free(h.slots);
	free(h.jobs);
	return rc;
}

/* "Q2_K", "IQ2_XXS / Q2_K", "IQ2_XXS, IQ2_XS / Q2_K": gate and up, where they differ; down */
static int types_text(const struct measure_shape *s, char *out, size_t n)
{
	int at = snprintf(out, n, "%s", dtype_name(s->gate));
	if (s->up != s->gate)
		at += snprintf(out + at, n - (size_t)at, ", %s", dtype_name(s->up));
	if (s->down != s->gate || s->down != s->up)
		at += snprintf(out + at, n - (size_t)at, " / %s", dtype_name(s->down));
	return at;
}

const char *measure_shapes_text(const struct measure_host *m, char text[MEASURE_SHAPES_TEXT])
{
	int at = 0;
	text[0] = 0;
	for (int i = 0; i < m->n_shapes; i++) {
		at += snprintf(text + at, MEASURE_SHAPES_TEXT - (size_t)at, "%s", i ? "; " : "");
		at += types_text(&m->shapes[i], text + at, MEASURE_SHAPES_TEXT - (size_t)at);
		at += snprintf(
			text + at, MEASURE_SHAPES_TEXT - (size_t)at, " %.3g GB/s", m->shapes[i].bytes_s * 1e-9);
	}
	return text;
}
