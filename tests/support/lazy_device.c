/* SPDX-License-Identifier: MIT */
/* Ops are kept with all their arguments, enqueued or in a segment; the host's waits run them, on
 * the CPU. */
#include "tests/support/lazy_device.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/draw/draw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SMALL        1024 /* uploads of so many bytes wait for nothing (runtime/gpu_backend.cu) */
#define MAX_SEGMENTS 256
#define MAX_DEFERRED 64

struct op {
	enum {
		COPY,
		UPLOAD,
		FENCE,
		EMBED,
		RMS_NORM,
		MATMUL,
		FFN,
		ROPE_ANGLES,
		ROPE,
		LATENTS,
		INDEX_SELECT,
		STORE_ROWS,
		FETCH_ROWS,
		MLA,
		ROUTE,
		EXPERTS,
		RESULTS,
		DEFERRED,
		COMBINE,
		DRAW
	} kind;
	void *to;
	const void *from, *more, *last;
	void *held; /* freed when the op has run */
	int64_t n[6];
	float f;
	struct weight table;
	struct batch batch;
	struct rope rope;
	struct norm norms[NORMS_MAX];
	struct matmul parts[8];
	struct ffn ffn;
	struct latents latents;
	struct index_select select;
	struct fetch_rows fetch; /* store_rows: its two caches and n_value */
	struct mla mla;
	struct route routes[ROUTES_MAX];
	struct expert_job shape;
};

struct ops {
	struct op *at;
	size_t n, cap;
};

struct segment {
	uint64_t key;
	bool recorded;
	struct ops ops;
	uint64_t n_fences; /* b->fence_value when its recording began, then how many it has */
};

static struct device {
	struct backend_ops ops;
	const struct backend_ops *inner;
	struct rng rng;
	bool can_defer;
	struct ops stream; /* enqueued */
	size_t next;       /* of them has not run */
	uint64_t signaled; /* fences that have run */
	struct segment segments[MAX_SEGMENTS];
	int n_segments;
	struct segment *capturing;
	/* deferred kernels, in the order of the stream */
	struct deferred {
		uint64_t n_fences; /* before it */
		struct op op;
		unsigned ranks;
		bool complete;
		struct expert_job jobs[8];
		int32_t token_slots[8];
		int n_jobs;
		struct expert_job results[8]; /* slots that the caller has computed */
		int n_results;
		const float *rows; /* those */
	} deferred[MAX_DEFERRED];
	int n_deferred;
	int first_open;    /* the first without all its jobs */
	int first_pending; /* the first that has not run */
	bool lost;
} d;

static atomic_bool stopped;

void lazy_device_stop(void)
{
	atomic_store(&stopped, true);
}

/* A wait notices that the device has stopped: whether it has failed. */
static bool has_failed(struct backend *b)
{
	if (atomic_load(&stopped) && !b->failure.code)
		err_set(&b->failure, ERR_RUN, "the card does not answer");
	return b->failure.code == ERR_RUN;
}

/* The error of a wait. */
static int failure_of(const struct backend *b, struct err *e)
{
	if (b->failure.code && e)
		*e = b->failure;
	return b->failure.code;
}

struct lazy_counts lazy_counts;

static struct op *ops_push(struct ops *o, int kind)
{
	if (o->n == o->cap) {
		o->cap = 2 * o->cap + 64;
		o->at = mem_grow(o->at, o->cap, sizeof *o->at);
	}
	struct op *p = &o->at[o->n++];
	memset(p, 0, sizeof *p);
	p->kind = kind;
	return p;
}

static struct op *op_add(int kind)
{
	struct ops *o = d.capturing ? &d.capturing->ops : &d.stream;
	/* the first op behind a deferred kernel is moe_combine */
	assert_true(!d.capturing || !o->n || o->at[o->n - 1].kind != DEFERRED || kind == COMBINE);
	return ops_push(o, kind);
}

static void lazy_device_run(struct backend *b, struct op *p)
{
	const struct backend_ops *x = d.inner, *mine = b->ops;
	uint64_t n_fences = b->fence_value;
	for (int r = 0; r < p->batch.n; r++) /* scratch and grids are made for it */
		assert_true(p->batch.pos[r] <= p->batch.max_pos);
	b->ops = x; /* what an op calls itself is part of it */
	b->fence_value = d.signaled;
	switch (p->kind) {
	case COPY:
	case UPLOAD:
		memcpy(p->to, p->held ? p->held : p->from, (size_t)p->n[0]);
		break;
	case FENCE:
		b->fence_value++;
		break;
	case EMBED:
		x->embed(b, p->table, p->from, (int)p->n[0], p->to);
		break;
	case RMS_NORM:
		x->rms_norm(
			b, p->from, p->n[0], p->norms, (int)p->n[1], p->f, (int)p->n[2], (int)p->n[3], p->n[4]);
		break;
	case MATMUL:
		x->matmul(b, p->parts, (int)p->n[0], p->from, (int)p->n[1]);
		break;
	case FFN:
		x->ffn(b, &p->ffn, (int)p->n[0]);
		break;
	case ROPE_ANGLES:
		x->rope_angles(b, &p->batch, p->from, (int)p->n[0], p->to);
		break;
	case ROPE:
		x->rope(b, &p->rope, p->from, p->n[0], p->to, p->n[1], (int)p->n[2], (int)p->n[3]);
		break;
	case LATENTS:
		p->latents.in = p->parts;
		p->latents.out = p->parts + 4;
		x->latents(b, &p->batch, &p->rope, &p->latents);
		break;
	case INDEX_SELECT:
		x->index_select(b, &p->batch, &p->select);
		break;
	case STORE_ROWS:
		x->store_rows(b, &p->batch, &p->fetch.from, &p->fetch.to, p->fetch.n_value);
		break;
	case FETCH_ROWS:
		x->fetch_rows(b, &p->batch, &p->fetch);
		break;
	case MLA:
		p->mla.out = p->n[0] ? p->parts : NULL;
		x->mla(b, &p->batch, &p->mla);
		break;
	case ROUTE:
		x->route(b, p->routes, (int)p->n[0], (int)p->n[1]);
		break;
	case EXPERTS:
		x->expert_ffn(b, p->from, p->held, (int)p->n[0], (int)p->n[1], (int)p->n[2], p->to);
		break;
	case RESULTS:
		x->expert_results(b, p->more, p->from, p->held, (int)p->n[0], (int)p->n[1], (int)p->n[2],
			(int)p->n[3], p->to);
		break;
	case COMBINE:
		x->moe_combine(b, p->from, p->more, (int)p->n[0], p->last, (int)p->n[1], (int)p->n[2],
			p->to, p->n[3] ? p->norms : NULL, p->f);
		break;
	case DRAW:
		x->draw(b, p->from, p->n[0], (int32_t)p->n[1], p->held, (int)p->n[2], p->to);
		break;
	case DEFERRED:
		break;
	}
	d.signaled = b->fence_value;
	b->fence_value = n_fences;
	b->ops = mine;
}

/* Runs the next op. False: there is none, or it is a deferred kernel that lacks jobs. */
static bool device_step(struct backend *b)
{
	if (d.next == d.stream.n)
		return false;
	struct op *p = &d.stream.at[d.next];
	if (b->failure.code == ERR_RUN) { /* ops behind a failure do nothing; no fence is signaled */
		d.first_pending += p->kind == DEFERRED;
	} else if (p->kind == DEFERRED) {
		struct deferred *t = &d.deferred[d.first_pending];
		if (!t->complete)
			return false;
		assert_true(d.first_pending < d.n_deferred && t->op.to == p->to);
		/* a slot of out is undefined until its job has been posted */
		memset(p->to, 0xff, (size_t)p->n[2] * (size_t)p->shape.down.n_out * sizeof(float));
		d.inner->expert_ffn(b, p->from, t->jobs, t->n_jobs, 1, (int)p->n[2], p->to);
		d.inner->expert_results(b, p->from, t->rows, t->results, t->n_results, 1, (int)p->n[2],
			(int)p->shape.down.n_out, p->to);
		d.first_pending++;
	} else {
		lazy_device_run(b, p);
	}
	free(p->held);
	d.next++;
	if (d.next == d.stream.n)
		d.next = d.stream.n = 0;
	if (d.first_pending == d.n_deferred)
		d.first_pending = d.first_open = d.n_deferred = 0;
	return true;
}

/* The device runs until the fence, or by chance further. */
static void run_until(struct backend *b, uint64_t fence)
{
	while (d.signaled < fence && !has_failed(b))
		if (!device_step(b))
			fail_msg("fence %llu is never signaled: a deferred kernel lacks jobs",
				(unsigned long long)fence);
	for (uint32_t n = rng_below(&d.rng, 4) ? 0 : rng_below(&d.rng, 12); n && device_step(b); n--)
		;
}

/* A host that waits for work behind a deferred kernel gives up what it has not posted. */
static void abandon_open(void)
{
	for (; d.first_open < d.n_deferred; d.first_open++) {
		d.deferred[d.first_open].complete = true;
		lazy_counts.given_up++;
		d.lost = true;
	}
}

static int device_drain(struct backend *b)
{
	assert_null(d.capturing);
	abandon_open();
	while (has_failed(b), device_step(b))
		;
	assert_int_equal(d.next, d.stream.n);
	d.lost = false;
	return b->failure.code;
}

/* ---- its table ---- */

static int dev_wait(struct backend *b, struct err *e)
{
	device_drain(b);
	return failure_of(b, e);
}

static uint64_t dev_fence(struct backend *b)
{
	op_add(FENCE);
	return ++b->fence_value;
}

static void before_wait(uint64_t fence)
{
	if (d.first_open < d.n_deferred && fence > d.deferred[d.first_open].n_fences)
		abandon_open();
}

static int dev_fence_wait(struct backend *b, uint64_t fence, struct err *e)
{
	assert_true(!d.capturing && fence && fence <= b->fence_value);
	before_wait(fence);
	run_until(b, fence);
	return failure_of(b, e);
}

static int dev_wait_expert_ids(struct backend *b, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e)
{
	int rc = dev_fence_wait(b, fence, e);
	for (int i = 0; i < n && !rc; i++) {
		assert_int_equal(expert_ids[i] >> 32, (uint32_t)fence);
		ids[i] = (int32_t)(uint32_t)expert_ids[i];
	}
	return rc;
}

static bool dev_fence_signaled(struct backend *b, uint64_t fence)
{
	if (!rng_below(&d.rng, 3))
		device_step(b);
	return fence <= d.signaled;
}

static int dev_download(struct backend *b, void *dst, const void *src, size_t bytes, struct err *e)
{
	device_drain(b);
	return d.inner->download(b, dst, src, bytes, e);
}

static void dev_upload(struct backend *b, void *dst, const void *src, size_t bytes)
{
	(void)b;
	assert_null(d.capturing);
	if (bytes > SMALL)
		abandon_open();
	struct op *p = op_add(UPLOAD);
	p->to = dst;
	p->held = NEW_ARRAY(uint8_t, bytes);
	p->n[0] = (int64_t)bytes;
	memcpy(p->held, src, bytes);
}

static void dev_copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
	(void)b;
	struct op *p = op_add(COPY);
	p->to = dst;
	p->from = src;
	p->n[0] = (int64_t)bytes;
}

static int dev_alloc(struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e)
{
	device_drain(b);
	return d.inner->alloc(b, kind, bytes, out, e);
}

static void dev_free(struct backend *b, enum mem_kind kind, void *p, size_t bytes)
{
	device_drain(b);
	d.inner->free(b, kind, p, bytes);
}

static void segments_free(void)
{
	for (int i = 0; i < d.n_segments; i++)
		free(d.segments[i].ops.at);
	d.n_segments = 0;
}

static void dev_close(struct backend *b)
{
	const struct backend_ops *inner = d.inner;
	device_drain(b);
	segments_free();
	free(d.stream.at);
	b->ops = inner;
	inner->close(b);
}

static void segment_launch(struct segment *l, uint64_t n_fences)
{
	for (size_t i = 0; i < l->ops.n; i++) {
		const struct op *o = &l->ops.at[i];
		struct op *p = ops_push(&d.stream, o->kind);
		*p = *o;
		if (o->kind == DEFERRED) {
			assert_true(d.n_deferred < MAX_DEFERRED);
			d.deferred[d.n_deferred++] = (struct deferred){.n_fences = n_fences, .op = *o};
		}
		n_fences += o->kind == FENCE || o->kind == ROUTE;
	}
}

static enum segment_mode dev_segment_begin(struct backend *b, uint64_t key)
{
	assert_null(d.capturing);
	assert_int_equal(d.first_open, d.n_deferred); /* no deferred kernel lacks jobs */
	int i = 0;
	while (i < d.n_segments && d.segments[i].key != key)
		i++;
	struct segment *l = &d.segments[i];
	if (i == d.n_segments) {
		assert_true(d.n_segments < MAX_SEGMENTS);
		*l = (struct segment){.key = key};
		d.n_segments++;
		return SEGMENT_EAGER;
	}
	if (!l->recorded) {
		l->n_fences = b->fence_value;
		d.capturing = l;
		return SEGMENT_CAPTURE;
	}
	segment_launch(l, b->fence_value);
	b->fence_value += l->n_fences;
	lazy_counts.replays++;
	return SEGMENT_REPLAYED;
}

static void dev_segment_end(struct backend *b)
{
	struct segment *l = d.capturing;
	assert_non_null(l);
	d.capturing = NULL;
	l->recorded = true;
	segment_launch(l, l->n_fences);
	l->n_fences = b->fence_value - l->n_fences;
}

static void dev_segments_drop(struct backend *b)
{
	device_drain(b);
	segments_free();
}

static void dev_embed(
	struct backend *b, struct weight table, const int32_t *ids, int rows, float *out)
{
	(void)b;
	struct op *p = op_add(EMBED);
	p->table = table;
	p->from = ids;
	p->n[0] = rows;
	p->to = out;
}

static void dev_rms_norm(struct backend *b, const float *x, int64_t x_stride,
	const struct norm *norms, int n_norms, float eps, int rows, int n, int64_t out_stride)
{
	(void)b;
	struct op *p = op_add(RMS_NORM);
	p->from = x;
	p->n[0] = x_stride, p->n[1] = n_norms, p->n[2] = rows, p->n[3] = n, p->n[4] = out_stride;
	p->f = eps;
	memcpy(p->norms, norms, (size_t)n_norms * sizeof *norms);
}

static void dev_matmul(
	struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	(void)b;
	struct op *p = op_add(MATMUL);
	assert_true(n_parts <= (int)ARRAY_LEN(p->parts));
	memcpy(p->parts, parts, (size_t)n_parts * sizeof *parts);
	p->from = x;
	p->n[0] = n_parts, p->n[1] = rows;
}

static void dev_ffn(struct backend *b, const struct ffn *a, int rows)
{
	(void)b;
	struct op *p = op_add(FFN);
	p->ffn = *a;
	p->n[0] = rows;
}

static void dev_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin)
{
	(void)b;
	struct op *p = op_add(ROPE_ANGLES);
	p->batch = *rows;
	p->from = inv_freq;
	p->n[0] = dim;
	p->to = cos_sin;
}

static void dev_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
	float *y, int64_t y_stride, int rows, int n_heads)
{
	(void)b;
	struct op *p = op_add(ROPE);
	p->rope = *rope;
	p->from = x;
	p->to = y;
	p->n[0] = x_stride, p->n[1] = y_stride, p->n[2] = rows, p->n[3] = n_heads;
}

static void dev_latents(
	struct backend *b, const struct batch *rows, const struct rope *rope, const struct latents *a)
{
	(void)b;
	struct op *p = op_add(LATENTS);
	assert_true(a->n_in <= 4 && a->n_out <= 4);
	p->batch = *rows;
	p->rope = *rope;
	p->latents = *a;
	memcpy(p->parts, a->in, (size_t)a->n_in * sizeof *a->in);
	memcpy(p->parts + 4, a->out, (size_t)a->n_out * sizeof *a->out);
}

static void dev_index_select(
	struct backend *b, const struct batch *rows, const struct index_select *a)
{
	(void)b;
	struct op *p = op_add(INDEX_SELECT);
	p->batch = *rows;
	p->select = *a;
}

static void dev_store_rows(struct backend *b, const struct batch *rows,
	const struct cache_view *from, const struct cache_view *to, int n_value)
{
	(void)b;
	struct op *p = op_add(STORE_ROWS);
	p->batch = *rows;
	p->fetch = (struct fetch_rows){.from = *from, .to = *to, .n_value = n_value};
}

static void dev_fetch_rows(struct backend *b, const struct batch *rows, const struct fetch_rows *a)
{
	(void)b;
	struct op *p = op_add(FETCH_ROWS);
	p->batch = *rows;
	p->fetch = *a;
}

static void dev_mla(struct backend *b, const struct batch *rows, const struct mla *a)
{
	(void)b;
	struct op *p = op_add(MLA);
	p->batch = *rows;
	p->mla = *a;
	p->n[0] = a->out != NULL;
	if (a->out)
		p->parts[0] = *a->out;
}

static void dev_route(struct backend *b, const struct route *a, int n, int rows)
{
	struct op *p = op_add(ROUTE);
	memcpy(p->routes, a, (size_t)n * sizeof *a);
	p->n[0] = n, p->n[1] = rows;
	b->fence_value++;
}

static void dev_moe_combine(struct backend *b, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x, const struct norm *next, float eps)
{
	(void)b;
	struct op *p = op_add(COMBINE);
	p->from = out, p->more = weights, p->last = shared;
	p->to = x;
	p->n[0] = n_used, p->n[1] = rows, p->n[2] = n, p->n[3] = next != NULL;
	p->f = eps;
	if (next)
		p->norms[0] = *next;
}

static void dev_draw(struct backend *b, const float *logits, int64_t stride, int32_t n,
	const struct draw_request *requests, int rows, struct draw_result *out)
{
	(void)b;
	assert_in_range(rows, 1, DRAW_ROWS_MAX);
	struct op *p = op_add(DRAW);
	p->from = logits;
	p->to = out;
	p->n[0] = stride, p->n[1] = n, p->n[2] = rows;
	p->held = NEW_ARRAY(struct draw_request, (size_t)rows);
	memcpy(p->held, requests, (size_t)rows * sizeof *requests);
	memset(out, 0xff, (size_t)rows * sizeof *out);
}

/* ---- experts ---- */

static bool dev_can_defer_experts(struct backend *b, const struct expert_job *shape, int n_used)
{
	(void)b;
	return d.can_defer && shape->gate.n_in && n_used <= 8;
}

static void dev_experts_deferred(
	struct backend *b, const float *x, const struct expert_job *shape, int n_used, float *out)
{
	(void)b;
	assert_true(d.can_defer);
	if (!d.capturing)
		return;
	struct op *p = op_add(DEFERRED);
	p->from = x;
	p->to = out;
	p->shape = *shape;
	p->n[2] = n_used;
}

static void assert_same_shape(const struct weight *a, const struct weight *b)
{
	assert_true(a->type == b->type && a->n_in == b->n_in && a->n_out == b->n_out &&
				a->row_bytes == b->row_bytes && a->stack_bytes == b->stack_bytes);
	assert_int_equal((uintptr_t)b->data % DEFERRED_ALIGN, 0);
}

/* Posts jobs to the first deferred kernel that lacks some. results: they have been computed. */
static void post_jobs(struct backend *b, const float *x, const float *results,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, const float *out)
{
	struct deferred *t = &d.deferred[d.first_open];
	assert_true(x == t->op.from && out == t->op.to && rows == 1 && n_used == (int)t->op.n[2]);
	run_until(b, t->n_fences); /* the host has seen the fence before it */
	*(t->ranks ? &lazy_counts.posted_late : &lazy_counts.posted_first) += 1;
	for (int i = 0; i < n_jobs; i++) {
		const struct expert_job *j = &jobs[i];
		if (!results) {
			assert_same_shape(&t->op.shape.gate, &j->gate);
			assert_same_shape(&t->op.shape.up, &j->up);
			assert_same_shape(&t->op.shape.down, &j->down);
		}
		assert_true(j->n_token_slots == 1 && j->token_slots[0] < n_used &&
					!(t->ranks >> j->token_slots[0] & 1));
		t->ranks |= 1u << j->token_slots[0];
		int at = t->n_jobs + t->n_results;
		struct expert_job *own = results ? &t->results[t->n_results++] : &t->jobs[t->n_jobs++];
		t->token_slots[at] = j->token_slots[0];
		*own = *j;
		own->token_slots = &t->token_slots[at];
	}
	t->rows = results ? results : t->rows;
	t->complete = t->ranks == (1u << n_used) - 1;
	d.first_open += t->complete;
}

/* Jobs with copies of their slots, for p->held. */
static struct expert_job *copy_jobs(const struct expert_job *jobs, int n_jobs)
{
	size_t token_slots = 0;
	for (int i = 0; i < n_jobs; i++)
		token_slots += (size_t)jobs[i].n_token_slots;
	struct expert_job *own =
		mem_new(1, (size_t)n_jobs * sizeof *own + token_slots * sizeof(int32_t));
	int32_t *at = (int32_t *)(own + n_jobs);
	for (int i = 0; i < n_jobs; at += jobs[i++].n_token_slots) {
		own[i] = jobs[i];
		own[i].token_slots =
			memcpy(at, jobs[i].token_slots, (size_t)jobs[i].n_token_slots * sizeof *at);
	}
	return own;
}

static void dev_expert_ffn(struct backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out)
{
	assert_null(d.capturing); /* (token, rank) slots differ from step to step */
	if (d.first_open < d.n_deferred) {
		post_jobs(b, x, NULL, jobs, n_jobs, rows, n_used, out);
		return;
	}
	assert_false(d.lost);
	struct op *p = op_add(EXPERTS);
	p->held = copy_jobs(jobs, n_jobs);
	p->from = x;
	p->to = out;
	p->n[0] = n_jobs, p->n[1] = rows, p->n[2] = n_used;
}

static void dev_expert_results(struct backend *b, const float *x, const float *results,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, int n_embd, float *out)
{
	assert_null(d.capturing);
	if (d.first_open < d.n_deferred) {
		post_jobs(b, x, results, jobs, n_jobs, rows, n_used, out);
		return;
	}
	assert_false(d.lost);
	struct op *p = op_add(RESULTS);
	p->held = copy_jobs(jobs, n_jobs);
	p->from = results;
	p->more = x;
	p->to = out;
	p->n[0] = n_jobs, p->n[1] = rows, p->n[2] = n_used, p->n[3] = n_embd;
}

void lazy_device_start(struct backend *b, bool can_defer, uint64_t seed)
{
	lazy_counts = (struct lazy_counts){0};
	atomic_store(&stopped, false);
	d = (struct device){.ops = *b->ops,
		.inner = b->ops,
		.rng = {seed},
		.can_defer = can_defer,
		.signaled = b->fence_value};
	struct backend_ops *o = &d.ops;
	o->close = dev_close;
	o->alloc = dev_alloc;
	o->free = dev_free;
	o->upload = dev_upload;
	o->copy = dev_copy;
	o->download = dev_download;
	o->wait = dev_wait;
	o->fence = dev_fence;
	o->fence_wait = dev_fence_wait;
	o->fence_signaled = dev_fence_signaled;
	o->async = true;
	o->segment_begin = dev_segment_begin;
	o->segment_end = dev_segment_end;
	o->segments_drop = dev_segments_drop;
	o->embed = dev_embed;
	o->rms_norm = dev_rms_norm;
	o->matmul = dev_matmul;
	o->stacked_matmul = NULL; /* the model calls none of these */
	o->swiglu = NULL;
	o->attend = NULL;
	o->ffn = dev_ffn;
	o->rope_angles = dev_rope_angles;
	o->rope = dev_rope;
	o->latents = dev_latents;
	o->index_select = dev_index_select;
	o->store_rows = dev_store_rows;
	o->fetch_rows = dev_fetch_rows;
	o->mla = dev_mla;
	o->route = dev_route;
	o->wait_expert_ids = dev_wait_expert_ids;
	o->can_defer_experts = dev_can_defer_experts;
	o->experts_deferred = dev_experts_deferred;
	o->expert_ffn = dev_expert_ffn;
	o->expert_results = dev_expert_results;
	o->moe_combine = dev_moe_combine;
	o->draw = dev_draw;
	b->ops = o;
}
