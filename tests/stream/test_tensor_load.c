/* SPDX-License-Identifier: MIT */
/* Spans of a real file, in every alignment, go through pinned buffers to an emulated card and
 * arrive as they are in the file; reads and copies that fail end the load with a sentence. */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/base/xxh3/xxh3.h"
#include "tests/support/check_threads.h"
#include "tests/support/copier_null.h"
#include "tests/support/reader_null.h"
#include "tests/support/reader_sim.h"
#include "tests/support/slow_build.h"
#include "stream/tensor_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MODEL   "tools/pocket/pocket.gguf"
#define N_SPANS 200
#define GUARD   64 /* bytes between spans that must stay what they are */

static struct gguf *file;

static int tensor_load_setup(void **state)
{
	(void)state;
	struct err e = {0};
	log_set_level(LOG_QUIET);
	return gguf_open(MODEL, &file, &e);
}

static int tensor_load_teardown(void **state)
{
	(void)state;
	gguf_close(file);
	return 0;
}

/* Random spans, the end of the file among them, with the places for them on the card. Returns their
 * number. */
static size_t make_spans(struct rng *r, struct tensor_span *s, uint64_t *room)
{
	uint64_t size = file->files[0].size;
	size_t n = 1 + rng_below(r, N_SPANS);
	*room = GUARD;
	for (size_t i = 0; i < n; i++) {
		s[i].file = 0;
		s[i].bytes = rng_below(r, 8) ? rng_below(r, 70000) : rng_below(r, 3000000);
		s[i].offset = rng_below(r, (uint32_t)(size - s[i].bytes));
		if (!i)
			s[i].offset = size - s[i].bytes;
		s[i].dst = (void *)(uintptr_t)*room;
		*room += s[i].bytes + GUARD;
	}
	return n;
}

static int load(
	struct rng *r, const struct reader_options *ro, const struct copier_faults *f, struct err *e)
{
	struct tensor_span s[N_SPANS], was[N_SPANS];
	uint64_t room;
	size_t n = make_spans(r, s, &room);
	struct copier *c;
	void *card;
	assert_int_equal(copier_null_open(f, &c, e), 0);
	assert_int_equal(c->ops->alloc(c, room, &card, e), 0);
	for (size_t i = 0; i < n; i++)
		s[i].dst = (uint8_t *)card + (uintptr_t)s[i].dst;
	memcpy(was, s, sizeof was);
	struct tensor_load_options o = {.file = file, .copier = c, .reader = *ro};
	struct tensor_load_result result;
	int rc = tensor_load(&o, s, n, &result, e);
	uint64_t bytes = 0;
	static const uint8_t zero[GUARD];
	for (size_t i = 0; i < n && !rc; i++) {
		const uint8_t *got = copier_null_peek(c, was[i].dst);
		const uint8_t *want = (const uint8_t *)file->files[0].map.data + was[i].offset;
		assert_memory_equal(got, want, was[i].bytes);
		assert_memory_equal(got - GUARD, zero, GUARD);
		assert_memory_equal(got + was[i].bytes, zero, GUARD);
		bytes += was[i].bytes;
	}
	if (!rc)
		assert_true(result.bytes == bytes);
	c->ops->free(c, card, room);
	c->ops->close(c);
	return rc;
}

static void test_spans(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= IF_SANITIZER(15, 40); seed++) {
		struct rng r = {seed};
		struct reader_faults null = {.seed = seed,
			.latency_min_us = 1,
			.latency_max_us = 200,
			.short_per_1024 = 100,
			.eagain_per_1024 = 100,
			.poison = true,
			.no_sleep = true};
		struct reader_options ro = {.engine = seed % 3 == 1 ? READER_THREADS : READER_AUTO,
			.custom = seed % 3 == 0 ? &reader_null_engine : NULL,
			.custom_options = &null,
			.buffered = seed % 2,
			.depth = 1 + rng_below(&r, 40),
			.slice_bytes = 4096u << rng_below(&r, 8)};
		struct copier_faults f = {.seed = seed};
		struct err e = {0};
		if (load(&r, &ro, &f, &e))
			fail_msg("seed %llu: %s", (unsigned long long)seed, e.text);
	}
}

/* The engine of simulated drives, observed. */
static struct observed_reads {
	uint64_t n, bytes_in_flight_most;
} observed;

static void start_observed(void *state, struct reader_op *op)
{
	observed.n++;
	observed.bytes_in_flight_most = MAX(observed.bytes_in_flight_most, op->bytes_at_start);
	reader_sim_engine.start(state, op);
}

/* Copies take no virtual time: the load is never given a buffer late because the copying thread
 * had no processor, which would count as a slow drive. */
static const struct copier_ops *copier_ops_of_null;

static uint64_t fence_complete(struct copier *c, enum copy_stream stream)
{
	const uint64_t fence = copier_ops_of_null->fence(c, stream);
	copier_ops_of_null->drain(c);
	return fence;
}

/* The load polls without waiting: some virtual time passes all the same. */
static void poll_observed(void *state, int64_t wait_ns)
{
	reader_sim_engine.poll(state, wait_ns ? wait_ns : 20000);
}

/* On a drive of high latency more is read at a time than at the start, on a fast one no more. */
static void test_depth_adapts(void **state)
{
	(void)state;
	static const struct {
		struct sim_drive drive;
		uint64_t least, most; /* slices */
	} table[] = {
		{{14e9, 5000000, 0.1, 1024, 2000}, READER_STAGED_DEPTH_MAX, READER_STAGED_DEPTH_MAX},
		{{3e9, 100000, 0.1, 64, 5000}, 4, 8},
	};
	struct reader_engine_ops engine = reader_sim_engine;
	engine.start = start_observed;
	engine.poll = poll_observed;
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		const struct reader_sim model = {.drives = &table[i].drive, .seed = 3};
		struct tensor_span s[600];
		struct copier *c;
		struct err e = {0};
		void *card;
		const uint64_t bytes = file->files[0].size & ~(uint64_t)4095;
		const size_t n = MIN(ARRAY_LEN(s), ((uint64_t)1 << 30) / bytes + 1);
		assert_int_equal(copier_null_open(NULL, &c, &e), 0);
		struct copier_ops at_once = *(copier_ops_of_null = c->ops);
		at_once.fence = fence_complete;
		c->ops = &at_once;
		assert_int_equal(c->ops->alloc(c, bytes, &card, &e), 0);
		for (size_t k = 0; k < n; k++)
			s[k] = (struct tensor_span){.bytes = bytes, .dst = card};
		const struct tensor_load_options o = {
			.file = file, .copier = c, .reader = {.custom = &engine, .custom_options = &model}};
		struct tensor_load_result result;
		observed = (struct observed_reads){0};
		if (tensor_load(&o, s, n, &result, &e))
			fail_msg("%s", e.text);
		const double slices = (double)observed.bytes_in_flight_most / (double)READER_SLICE_DEFAULT;
		print_message(
			"at most %.2f slices in flight, %llu reads\n", slices, (unsigned long long)observed.n);
		c->ops->free(c, card, bytes);
		c->ops->close(c);
		if (slices > 20) {
			print_message("skipped: no O_DIRECT here\n");
			skip();
		}
		assert_true(slices > (double)table[i].least - 1 && slices <= (double)table[i].most);
	}
}

static void test_failures(void **state)
{
	(void)state;
	for (uint64_t nth = 1; nth < 40; nth += 6) {
		struct rng r = {nth};
		struct err e = {0};
		struct reader_faults null = {
			.seed = nth, .fail_read = nth, .latency_min_us = 1, .latency_max_us = 20};
		struct reader_options bad = {.custom = &reader_null_engine,
								  .custom_options = &null,
								  .slice_bytes = 8192},
							  good = {.slice_bytes = 8192};
		assert_true(load(&r, &bad, NULL, &e) < 0);
		assert_non_null(strstr(e.text, MODEL));
		e = (struct err){0};
		struct copier_faults f = {.fail_copy = nth, .fail_all = nth % 2};
		assert_int_equal(load(&r, &good, &f, &e), ERR_RUN);
		assert_true(e.text[0]);
	}
	struct rng r = {3};
	struct err e = {0};
	struct reader_options ro = {0};
	struct copier_faults f = {.refuse_pin = 1};
	assert_int_equal(load(&r, &ro, &f, &e), ERR_MEMORY);
}

/* A read that the reader refuses ends the load with an error: nothing was read. */
static void test_refused_read(void **state)
{
	(void)state;
	struct err e = {0};
	struct copier *c;
	void *there;
	assert_int_equal(copier_null_open(NULL, &c, &e), 0);
	assert_int_equal(c->ops->alloc(c, 8192, &there, &e), 0);
	struct tensor_span s = {.offset = INT64_MAX - 4096, .bytes = 4096, .dst = there};
	struct tensor_load_options o = {.file = file, .copier = c};
	struct tensor_load_result result;
	assert_true(tensor_load(&o, &s, 1, &result, &e) < 0);
	assert_non_null(strstr(e.text, MODEL));
	assert_int_equal(result.bytes, 0);
	c->ops->free(c, there, 8192);
	c->ops->close(c);
}

/* ---- check values ---- */

/* At the end of a load: threads of this process that compare. */
struct counted_threads {
	int expected, found;
};

static void count_threads(void *user, uint64_t done, uint64_t total)
{
	struct counted_threads *n = user;
	if (done == total)
		n->found = check_threads_wait_for(n->expected);
}

/* Loads all tensors, compared with these values. *bytes_right: what came to the card is the file.
 */
static int load_checked(const struct check_values *v, const struct reader_faults *f, bool buffered,
	int check_threads, struct tensor_load_result *result, bool *bytes_right, struct err *e)
{
	struct copier *c;
	void *card;
	const size_t n = file->n_tensors;
	struct tensor_span *s = NEW_ARRAY(struct tensor_span, n),
					   *was = NEW_ARRAY(struct tensor_span, n);
	uint64_t at = 0;
	assert_int_equal(copier_null_open(NULL, &c, e), 0);
	assert_int_equal(c->ops->alloc(c, file->tensor_bytes, &card, e), 0);
	for (size_t i = 0; i < n; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		s[i] = (struct tensor_span){t->file, t->offset, t->bytes, (uint8_t *)card + at, t, 0};
		at += t->bytes;
	}
	memcpy(was, s, n * sizeof *s);
	struct counted_threads threads = {v ? MAX(check_threads, 0) : 0, -1};
	struct tensor_load_options o = {.file = file,
		.copier = c,
		.check_values = v,
		.check_threads = check_threads,
		.progress = count_threads,
		.user = &threads,
		.reader = {.custom = &reader_null_engine,
			.custom_options = f,
			.buffered = buffered,
			.slice_bytes = 65536}};
	int rc = tensor_load(&o, s, n, result, e);
	if (!rc)
		assert_int_equal(threads.found, threads.expected);
	*bytes_right = true;
	for (size_t i = 0; i < n; i++)
		*bytes_right &=
			!memcmp(copier_null_peek(c, was[i].dst), file->tensors[i].data, was[i].bytes);
	c->ops->free(c, card, file->tensor_bytes);
	c->ops->close(c);
	free(s);
	free(was);
	return rc;
}

static void test_checked(void **state)
{
	(void)state;
	struct check_values v;
	struct tensor_load_result r;
	bool right;
	check_map_init(&v.map, file);
	v.values = NEW_ARRAY(uint64_t, check_map_n(&v.map));
	for (uint64_t i = 0; i < check_map_n(&v.map); i++) {
		const struct check_range x = check_map_range(&v.map, i);
		v.values[i] = xxh3_of(x.run.data, x.run.bytes);
	}
	const struct gguf_tensor *experts = gguf_find_tensor(file, "blk.4.ffn_up_exps.weight"),
							 *norm = gguf_find_tensor(file, "output_norm.weight");
	for (uint64_t seed = 1; seed <= IF_SANITIZER(4, 8); seed++) {
		struct err e = {0};
		struct reader_faults f = {
			.seed = seed, .latency_min_us = 1, .latency_max_us = 3000, .no_sleep = true};
		const bool buffered = seed % 2;
		const int threads = seed % 4 ? (int)(seed % 4) : -1;
		if (load_checked(&v, &f, buffered, threads, &r, &right, &e))
			fail_msg("%s", e.text);
		assert_true(right && r.bytes == file->tensor_bytes);
		assert_int_equal(r.checks.checked, check_map_n(&v.map));
		assert_int_equal(r.checks.reread + r.checks.wrong, 0);
		/* once */
		f.flip = true;
		f.flip_times = 1;
		f.flip_offset = experts->offset + experts->bytes / 3;
		if (load_checked(&v, &f, buffered, threads, &r, &right, &e))
			fail_msg("%s", e.text);
		assert_true(right && r.checks.reread == 1 && !r.checks.wrong);
		assert_int_equal(r.checks.checked, check_map_n(&v.map));
		assert_true(r.bytes == file->tensor_bytes);
		/* two ranges of one tensor count as two, and the first is named */
		f.flip_also = experts->offset + 7;
		if (load_checked(&v, &f, buffered, threads, &r, &right, &e))
			fail_msg("%s", e.text);
		assert_true(right && r.checks.reread == 2 && !r.checks.wrong);
		f.flip_times = 0;
		assert_int_equal(load_checked(&v, &f, buffered, threads, &r, &right, &e), ERR_INPUT);
		assert_int_equal(r.checks.wrong, 2);
		assert_non_null(strstr(e.text, "blk.4.ffn_up_exps.weight, expert 0 ("));
		/* for good */
		f.flip_also = 0;
		assert_int_equal(load_checked(&v, &f, buffered, threads, &r, &right, &e), ERR_INPUT);
		assert_int_equal(e.code, ERR_INPUT);
		char name[80];
		snprintf(name, sizeof name, MODEL ": blk.4.ffn_up_exps.weight, expert %u (",
			(unsigned)(experts->ne[2] / 3));
		assert_non_null(strstr(e.text, name));
		f.flip_offset = norm->offset + norm->bytes - 1;
		assert_int_equal(load_checked(&v, &f, buffered, threads, &r, &right, &e), ERR_INPUT);
		assert_non_null(strstr(e.text, MODEL ": output_norm.weight ("));
		/* without values nobody sees it */
		if (load_checked(NULL, &f, buffered, threads, &r, &right, &e))
			fail_msg("%s", e.text);
		assert_true(!right && !r.checks.checked);
		/* a read that fails beside checks */
		f = (struct reader_faults){.seed = seed,
			.latency_min_us = 1,
			.latency_max_us = 500,
			.fail_read = 20 + seed,
			.no_sleep = true};
		assert_true(load_checked(&v, &f, buffered, threads, &r, &right, &e) < 0);
	}
	check_map_fini(&v.map);
	free(v.values);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spans),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_depth_adapts),
		cmocka_unit_test(test_refused_read),
		cmocka_unit_test(test_checked),
	};
	return cmocka_run_group_tests(tests, tensor_load_setup, tensor_load_teardown);
}
