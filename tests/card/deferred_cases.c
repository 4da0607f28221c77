/* SPDX-License-Identifier: MIT */
#include "tests/card/deferred_cases.h"

#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/rng.h"
#include "tests/kernels/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct backend *cuda;

#define N_USED    8
#define N_EXPERTS 16
#define N_STEPS   48

struct deferred_case {
	struct weight w[N_EXPERTS][3];
	float *in, *x, *out, *want, *got; /* device; want, got: [steps][used][n_embd] */
	float *spare;                     /* [used][n_embd] */
	size_t x_bytes, out_bytes;
	int32_t token_slots[N_USED], ids[N_USED];
	int by_words, by_launch, replays; /* replays: since there was nothing recorded */
	bool can;                         /* be posted to the mailbox */
	/* of a list with several deferred kernels: sums, what is added to them, and a gain */
	float *sum, *weights, *shared, *gain;
};

static void *card_new(size_t bytes)
{
	void *p = NULL;
	struct err e = {0};
	if (cuda->ops->alloc(cuda, MEM_DEVICE, bytes, &p, &e))
		fail_msg("%s", e.text);
	return p;
}

static void deferred_case_open(struct deferred_case *a, enum dtype type, int n_embd, int n_ff)
{
	*a = (struct deferred_case){.x_bytes = (size_t)n_embd * sizeof(float)};
	a->out_bytes = N_USED * a->x_bytes;
	for (int k = 0; k < N_USED; k++)
		a->token_slots[k] = k;
	for (int i = 0; i < N_EXPERTS; i++)
		for (int k = 0; k < 3; k++) {
			uint64_t row = 0;
			assert_true(dtype_row_bytes(type, (uint64_t)(k == 2 ? n_ff : n_embd), &row));
			struct weight *w = &a->w[i][k];
			*w = (struct weight){.type = type,
				.n_in = k == 2 ? n_ff : n_embd,
				.n_out = k == 2 ? n_embd : n_ff,
				.n_stack = 1,
				.row_bytes = row};
			w->stack_bytes = row * (size_t)w->n_out;
			void *host = NEW_ARRAY(uint8_t, w->stack_bytes), *data = card_new(w->stack_bytes);
			op_random_blocks(5, i * 3 + k, type, host, w->stack_bytes);
			cuda->ops->upload(cuda, data, host, w->stack_bytes);
			w->data = data;
			free(host);
		}
	a->in = card_new(a->x_bytes);
	a->x = card_new(a->x_bytes);
	a->out = card_new(a->out_bytes);
	a->want = card_new(N_STEPS * a->out_bytes);
	a->got = card_new(N_STEPS * a->out_bytes);
	float **to[] = {&a->sum, &a->weights, &a->shared, &a->gain},
		  *host = NEW_ARRAY(float, (size_t)n_embd);
	for (int i = 0; i < 4; i++) {
		*to[i] = card_new(a->x_bytes);
		op_random(7, i, host, (size_t)n_embd);
		cuda->ops->upload(cuda, *to[i], host, a->x_bytes);
	}
	free(host);
}

static void deferred_case_close(struct deferred_case *a)
{
	for (int i = 0; i < N_EXPERTS; i++)
		for (int k = 0; k < 3; k++)
			cuda->ops->free(cuda, MEM_DEVICE, (void *)a->w[i][k].data, a->w[i][k].stack_bytes);
	cuda->ops->free(cuda, MEM_DEVICE, a->in, a->x_bytes);
	cuda->ops->free(cuda, MEM_DEVICE, a->x, a->x_bytes);
	cuda->ops->free(cuda, MEM_DEVICE, a->out, a->out_bytes);
	cuda->ops->free(cuda, MEM_DEVICE, a->want, N_STEPS * a->out_bytes);
	cuda->ops->free(cuda, MEM_DEVICE, a->got, N_STEPS * a->out_bytes);
	float *more[] = {a->sum, a->weights, a->shared, a->gain};
	for (int i = 0; i < 4; i++)
		cuda->ops->free(cuda, MEM_DEVICE, more[i], a->x_bytes);
}

/* Those ranks of the row's experts that are in the mask, in one call. Returns whether that launched
 * nothing. */
static bool call_ranks(struct deferred_case *a, unsigned ranks, const float *x, float *out)
{
	struct expert_job jobs[N_USED];
	struct backend_usage before, after;
	int n = 0;
	for (int k = 0; k < N_USED; k++)
		if (ranks >> k & 1) {
			const struct weight *w = a->w[a->ids[k]];
			jobs[n++] = (struct expert_job){.gate = w[0],
				.up = w[1],
				.down = w[2],
				.token_slots = &a->token_slots[k],
				.n_token_slots = 1};
		}
	cuda->ops->usage(cuda, &before);
	cuda->ops->expert_ffn(cuda, x, jobs, n, 1, N_USED, out);
	cuda->ops->usage(cuda, &after);
	return after.launches == before.launches;
}

static void deferred_here(struct deferred_case *a)
{
	const struct weight *w = a->w[0];
	struct expert_job like = {.gate = w[0], .up = w[1], .down = w[2]};
	like.gate.data = like.up.data = like.down.data = NULL;
	a->can = cuda->ops->can_defer_experts(cuda, &like, N_USED);
	if (a->can)
		cuda->ops->experts_deferred(cuda, a->x, &like, N_USED, a->out);
}

/* A graph segment as decode has it: its input, a fence, the experts. */
static void segment_of_deferred(struct deferred_case *a)
{
	enum segment_mode calls = cuda->ops->segment_begin(cuda, 77);
	if (calls != SEGMENT_REPLAYED) {
		cuda->ops->copy(cuda, a->x, a->in, a->x_bytes);
		cuda->ops->fence(cuda);
		deferred_here(a);
	}
	if (calls == SEGMENT_CAPTURE)
		cuda->ops->segment_end(cuda);
}

/* Other things than the call that a deferred kernel is for: it must not keep the device waiting. */
static void interrupt_deferred(struct deferred_case *a, int how)
{
	struct err e = {0};
	switch (how) {
	case 0:
		assert_int_equal(cuda->ops->wait(cuda, &e), 0);
		break;
	case 1:
		cuda->ops->free(cuda, MEM_DEVICE, card_new(100), 100);
		break;
	case 2: /* it is answered by the next one */
		segment_of_deferred(a);
		break;
	case 3: /* not for it: another output */
		call_ranks(a, 255, a->x, a->spare);
		break;
	case 4: {
		uint64_t behind = cuda->ops->fence(cuda);
		assert_int_equal(cuda->ops->fence_wait(cuda, behind, &e), 0);
		break;
	}
	case 5:
		cuda->ops->segments_drop(cuda);
		a->replays = -1;
		break;
	}
}

/* ---- several deferred kernels in one list: each part computes with what the part before it gave
 * ---- */

#define LIST_PARTS  5
#define LIST_STEPS  30
#define BRIEF_STEPS 14
#define BRIEF_LISTS 4

static void list_ids(struct deferred_case *a, int step, int part)
{
	for (int k = 0; k < N_USED; k++)
		a->ids[k] = (step * 5 + part * 7 + k * 3) % N_EXPERTS;
}

static void list_begin(struct deferred_case *a)
{
	cuda->ops->copy(cuda, a->sum, a->in, a->x_bytes);
	cuda->ops->copy(cuda, a->x, a->in, a->x_bytes);
}

static void list_combine(struct deferred_case *a, int n_embd, int part)
{
	struct norm next = {a->gain, a->x};
	cuda->ops->moe_combine(cuda, a->out, a->weights, N_USED, a->shared, 1, n_embd, a->sum,
		part + 1 < LIST_PARTS ? &next : NULL, 1e-5f);
}

/* All of it, part after part */
static void list_eagerly(struct deferred_case *a, int n_embd, int step, float *result)
{
	list_begin(a);
	for (int part = 0; part < LIST_PARTS; part++) {
		list_ids(a, step, part);
		call_ranks(a, 255, a->x, a->out);
		list_combine(a, n_embd, part);
	}
	cuda->ops->copy(cuda, result, a->sum, a->x_bytes);
}

/* As one list, given up in part `stop` when some of its experts have been posted */
static void list_by_words(
	struct deferred_case *a, int n_embd, int step, int stop, struct rng *r, float *result)
{
	struct err e = {0};
	uint64_t n_fences = cuda->fence_value;
	enum segment_mode calls = cuda->ops->segment_begin(cuda, 78);
	for (int part = 0; calls == SEGMENT_CAPTURE && part < LIST_PARTS; part++) {
		if (!part)
			list_begin(a);
		cuda->ops->fence(cuda);
		deferred_here(a);
		list_combine(a, n_embd, part);
	}
	if (calls == SEGMENT_CAPTURE)
		cuda->ops->segment_end(cuda);
	if (calls == SEGMENT_EAGER) { /* makes ready */
		deferred_here(a);
		list_eagerly(a, n_embd, step, result);
		return;
	}
	assert_int_equal(cuda->fence_value, n_fences + LIST_PARTS);
	for (int part = 0; part < LIST_PARTS; part++) {
		unsigned first = rng_below(r, 256);
		if (cuda->ops->fence_wait(cuda, n_fences + 1 + (uint64_t)part, &e))
			fail_msg("%s", e.text);
		assert_true(cuda->ops->fence_signaled(cuda, n_fences + 1 + (uint64_t)part));
		assert_false(part + 1 < LIST_PARTS &&
					 cuda->ops->fence_signaled(cuda, n_fences + 2 + (uint64_t)part));
		list_ids(a, step, part);
		if (part == stop && step / 2 % 2)
			return;
		assert_true(call_ranks(a, first, a->x, a->out));
		if (part == stop)
			return;
		if (step % 3)
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		assert_true(call_ranks(a, 255 & ~first, a->x, a->out));
	}
	cuda->ops->copy(cuda, result, a->sum, a->x_bytes);
}

static void run_lists(struct deferred_case *a, int n_embd, int steps, struct rng *r)
{
	struct err e = {0};
	size_t n = (size_t)n_embd;
	float *host = NEW_ARRAY(float, n), *want = NEW_ARRAY(float, n), *got = NEW_ARRAY(float, n);
	int given_up = 0;
	for (int step = 0; step < steps; step++) {
		op_random(8, step, host, n);
		cuda->ops->upload(cuda, a->in, host, a->x_bytes);
		list_eagerly(a, n_embd, step, a->want);
		if (step > 2 && step % 2) {
			given_up++;
			list_by_words(a, n_embd, step, (step / 2) % LIST_PARTS, r, a->got);
			if (step / 2 % 3 < 2) /* else the next list ends it */
				interrupt_deferred(a, step / 2 % 3);
		}
		list_by_words(a, n_embd, step, -1, r, a->got);
		assert_int_equal(cuda->ops->download(cuda, want, a->want, a->x_bytes, &e), 0);
		assert_int_equal(cuda->ops->download(cuda, got, a->got, a->x_bytes, &e), 0);
		for (size_t i = 0; i < n; i++)
			if (f32_bits(want[i]) != f32_bits(got[i]) || !isfinite(got[i]))
				fail_msg("a list of deferred kernels: step %d, value %zu is %.9g, by calls %.9g",
					step, i, (double)got[i], (double)want[i]);
	}
	print_message(
		"%d deferred kernels in a list: %d lists, %d given up\n", LIST_PARTS, steps, given_up);
	free(host);
	free(want);
	free(got);
}

void deferred_case(struct backend *backend, enum dtype type, int n_embd, int n_ff, bool brief)
{
	int steps = brief ? BRIEF_STEPS : N_STEPS;
	cuda = backend;
	struct err e = {0};
	struct rng r = {(uint64_t)n_embd + type};
	static struct deferred_case a;
	deferred_case_open(&a, type, n_embd, n_ff);
	float *x = NEW_ARRAY(float, (size_t)n_embd);
	for (int step = 0; step < steps; step++) {
		size_t at = (size_t)step * N_USED * (size_t)n_embd;
		a.spare = a.got + at;
		op_random(6, step, x, (size_t)n_embd);
		for (int k = 0; k < N_USED; k++)
			a.ids[k] = (step * 5 + k * 3) % N_EXPERTS;
		cuda->ops->upload(cuda, a.in, x, a.x_bytes);
		call_ranks(&a, 255, a.in, a.want + at);
		uint64_t n_fences = cuda->fence_value;
		segment_of_deferred(&a);
		assert_int_equal(cuda->ops->fence_wait(cuda, n_fences + 1, &e), 0);
		if (step % 3 == 2)
			interrupt_deferred(&a, step / 3 % 6);
		/* none, all, some; the rest in other calls, also when the kernel has long begun */
		unsigned first = step % 4 == 0   ? 255
						 : step % 4 == 1 ? 0
										 : rng_below(&r, 256),
				 some = rng_below(&r, 256);
		unsigned parts[3] = {first, 255 & ~first & some, 255 & ~first & ~some};
		bool counts = a.replays++ > 0 && step % 3 != 2 && step % 7 != 3;
		for (int i = 0; i < 3; i++) {
			if (i && step % 5 > 2)
				nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
			if (i && step % 7 == 3) /* what is left is launched */
				assert_int_equal(cuda->ops->wait(cuda, &e), 0);
			bool by_words = call_ranks(&a, parts[i], a.x, a.out);
			if (counts && parts[i])
				*(by_words ? &a.by_words : &a.by_launch) += 1;
		}
		cuda->ops->copy(cuda, a.got + at, a.out, a.out_bytes);
	}
	size_t n = (size_t)steps * a.out_bytes / sizeof(float);
	float *want = NEW_ARRAY(float, n), *got = NEW_ARRAY(float, n);
	assert_int_equal(cuda->ops->download(cuda, want, a.want, n * sizeof(float), &e), 0);
	assert_int_equal(cuda->ops->download(cuda, got, a.got, n * sizeof(float), &e), 0);
	for (size_t i = 0; i < n; i++)
		if (f32_bits(want[i]) != f32_bits(got[i]))
			fail_msg("experts_deferred %s: step %zu, value %zu is %.9g, that of a call %.9g",
				dtype_name(type), i / (n / (size_t)steps), i % (n / (size_t)steps), (double)got[i],
				(double)want[i]);
	print_message("experts_deferred %s %d > %d: %d calls by words, %d launched\n", dtype_name(type),
		n_embd, n_ff, a.by_words, a.by_launch);
	assert_true(a.can ? a.by_words && !a.by_launch : !a.by_words);
	if (a.can)
		run_lists(&a, n_embd, brief ? BRIEF_LISTS : LIST_STEPS, &r);
	segment_of_deferred(&a); /* segments_drop is to end it */
	cuda->ops->segments_drop(cuda);
	deferred_case_close(&a);
	free(x);
	free(want);
	free(got);
}

void deferred_lost_case(struct backend *backend)
{
	cuda = backend;
	struct err e = {0};
	struct rng r = {9};
	static struct deferred_case a;
	deferred_case_open(&a, DTYPE_IQ2_XXS, 2048, 2048);
	float *x = NEW_ARRAY(float, 2048);
	op_random(8, 0, x, 2048);
	cuda->ops->upload(cuda, a.in, x, a.x_bytes);
	free(x);
	list_by_words(&a, 2048, 0, -1, &r, a.got);
	if (a.can) {
		list_by_words(&a, 2048, 0, 1, &r, a.got);
		interrupt_deferred(&a, 1);
		call_ranks(&a, 255, a.x, a.out);
		assert_int_equal(cuda->ops->wait(cuda, &e), ERR_RUN);
		assert_non_null(strstr(e.text, "have run without them"));
	}
	deferred_case_close(&a);
}
