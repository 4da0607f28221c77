// SPDX-License-Identifier: MIT
/*
 * The reader on simulated drives, in virtual time: how much of what a drive gives it takes, how
 * soon, with how much in flight, and never less than a fixed queue of the default depth. Replicas
 * on unlike drives share by speed.
 */
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/reader/reader_help.h"
#include "tests/support/reader_sim.h"
#include "tests/support/slow_build.h"

#define REQUEST       3407872u /* one matrix of an expert: 3.25 MiB */
#define OUTSTANDING   128u     /* requests: more than the deepest queue takes */
#define US            1000u
#define DRIVES_MAX    4
#define RANDOM_DRIVES IF_SLOW_BUILD(1, 24)

static struct reader *open_model(struct reader_sim model, unsigned n, struct reader_options o)
{
	struct reader_file files[DRIVES_MAX];
	for (unsigned i = 0; i < n; i++)
		files[i] = (struct reader_file){.path = help_a, .drive = 1 + i, .replica_of = i > 0};
	o.custom = &reader_sim_engine;
	o.custom_options = &model;
	struct reader *r;
	struct err e = {0};
	if (reader_open(&r, files, n, &o, &e))
		fail_msg("%s", e.text);
	if (reader_file_align(r, 0) == 1) {
		reader_close(r);
		print_message("skipped: no O_DIRECT in %s\n", help_dir);
		skip();
	}
	return r;
}

static struct reader *open_sim(
	const struct sim_drive *drives, unsigned n, uint64_t seed, struct reader_options o)
{
	return open_model((struct reader_sim){.drives = drives, .seed = seed}, n, o);
}

static double seconds_of(const struct reader *r)
{
	return 1e-9 * (double)reader_now(r);
}

static void submit(struct reader *r, uint64_t bytes, bool urgent)
{
	static uint64_t at;
	at = (at + 4096) % (1u << 30);
	const struct reader_request q = {.offset = at, .bytes = bytes, .dst = arena, .urgent = urgent};
	assert_int_equal(reader_submit(r, &q), 0);
}

struct figures {
	double bytes_s;  /* of the whole time */
	double late;     /* of its second half */
	double found_at; /* seconds; 0: not at all */
};

/* Reads for so many virtual seconds with `outstanding` requests in the reader at any time. */
static struct figures read_for(
	struct reader *r, double seconds, uint64_t request, unsigned outstanding)
{
	const double start = seconds_of(r);
	const uint64_t before = reader_stats(r).bytes;
	struct figures f = {0};
	double half_at = 0;
	uint64_t half = 0;
	while (seconds_of(r) - start < seconds) {
		while (reader_pending(r) < outstanding)
			submit(r, request, false);
		struct reader_completion c[16];
		assert_true(reader_reap(r, c, 1, ARRAY_LEN(c), -1) > 0);
		const struct reader_setting s = reader_setting(r);
		if (!f.found_at && s.n_adapt && s.n_found == s.n_adapt)
			f.found_at = seconds_of(r) - start;
		if (!half && seconds_of(r) - start > seconds / 2) {
			half_at = seconds_of(r);
			half = reader_stats(r).bytes;
		}
	}
	const uint64_t bytes = reader_stats(r).bytes;
	f.bytes_s = (double)(bytes - before) / (seconds_of(r) - start);
	f.late = (double)(bytes - half) / (seconds_of(r) - half_at);
	return f;
}

static double fixed_rate(const struct sim_drive *d, unsigned n, uint64_t seed, unsigned depth,
	bool staged, double seconds)
{
	struct reader *r = open_sim(d, n, seed, (struct reader_options){.depth = depth});
	const struct figures f =
		read_for(r, seconds, staged ? READER_SLICE_DEFAULT : REQUEST, OUTSTANDING);
	reader_close(r);
	return f.bytes_s;
}

/* What the drive gives with the best slices that the reader may use. */
static double model_most(const struct sim_drive *d, bool staged)
{
	return sim_drive_most(d, staged ? READER_SLICE_DEFAULT : REQUEST);
}

static const struct {
	const char *name;
	struct sim_drive drive;
	double in_flight_most; /* bytes that it may need in flight: the guard of the latency */
} table[] = {
	{"0.5 GB/s", {0.5e9, 150 * US, 0.1, 32, 5 * US}, 4.3e6},
	{"3 GB/s", {3e9, 100 * US, 0.1, 64, 5 * US}, 6.5e6},
	{"7 GB/s", {7e9, 90 * US, 0.1, 128, 3 * US}, 12e6},
	{"14 GB/s", {14e9, 80 * US, 0.1, 256, 2 * US}, 18e6},
	{"14 GB/s, noisy", {14e9, 80 * US, 0.5, 256, 2 * US}, 35e6},
	{"14 GB/s, late", {14e9, 500 * US, 0.1, 256, 2 * US}, 35e6},
	{"four of 14 GB/s as one", {56e9, 200 * US, 0.1, 1024, 1 * US}, 70e6},
	{"14 GB/s behind a network", {14e9, 5000 * US, 0.1, 1024, 2 * US}, 140e6},
	{"3 GB/s, few channels", {3e9, 1000 * US, 0.1, 8, 5 * US}, 35e6},
};

static void test_speeds(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(table); i += IF_SLOW_BUILD(2, 1)) {
		const struct sim_drive *d = &table[i].drive;
		struct reader *r = open_sim(d, 1, 7, (struct reader_options){0});
		const struct figures f = read_for(r, 6, REQUEST, OUTSTANDING);
		const struct reader_setting s = reader_setting(r);
		const double most = model_most(d, false);
		print_message("%-26s %6.2f of %6.2f GB/s (%.1f %%, later %.1f %%), found after %.2f s: "
					  "depth %u, %zu KiB\n",
			table[i].name, f.bytes_s * 1e-9, most * 1e-9, 100 * f.bytes_s / most,
			100 * f.late / most, f.found_at, s.depth, s.slice_bytes >> 10);
		assert_true(f.bytes_s >= 0.95 * most);
		assert_true(f.late >= 0.96 * most);
		assert_true(f.found_at > 0 && f.found_at < 1);
		assert_true((double)s.depth * (double)s.slice_bytes <= table[i].in_flight_most);
		assert_true(s.bytes_s > 0.8 * most && s.bytes_s < 1.2 * most);
		reader_close(r);
	}
}

/* Reads for so many virtual seconds as a card's loader does: requests of one slice, few buffers.
 * Returns bytes a second. */
static double read_staged(struct reader *r, double seconds, bool urgent)
{
	const double start = seconds_of(r);
	uint64_t bytes = 0;
	struct reader_completion c[16];
	while (seconds_of(r) - start < seconds) {
		while (reader_pending(r) < reader_useful_depth(r))
			submit(r, READER_SLICE_DEFAULT, urgent);
		bytes += (uint64_t)reader_reap(r, c, 1, ARRAY_LEN(c), -1) * READER_SLICE_DEFAULT;
	}
	return (double)bytes / (seconds_of(r) - start);
}

/* What the drive gives to the most slices that staging buffers let be in flight. */
static double staged_most(const struct sim_drive *d)
{
	const double slice = READER_SLICE_DEFAULT,
				 seconds = 1e-9 * (double)d->latency_ns * (1 + d->jitter) + slice / d->bytes_s;
	return MIN(model_most(d, true), READER_STAGED_DEPTH_MAX * slice / seconds);
}

static void test_staged(void **state)
{
	(void)state;
	for (size_t i = IF_SLOW_BUILD(1, 0); i < ARRAY_LEN(table); i += IF_SLOW_BUILD(2, 1)) {
		const struct sim_drive *d = &table[i].drive;
		struct reader *r = open_sim(d, 1, 7, (struct reader_options){.staged = true});
		assert_int_equal(reader_useful_depth(r), READER_USEFUL_DEPTH);
		assert_int_equal(reader_useful_depth_max(r), READER_STAGED_DEPTH_MAX);
		const double rate = read_staged(r, 6, true), most = staged_most(d);
		print_message("%-26s %6.2f of %6.2f GB/s (%.1f %%), depth %u\n", table[i].name, rate * 1e-9,
			most * 1e-9, 100 * rate / most, reader_useful_depth(r));
		assert_true(rate >= 0.95 * most);
		assert_true(reader_setting(r).slice_bytes <= READER_SLICE_DEFAULT);
		reader_close(r);
	}
}

/* The search included, never 1 % below the fixed queue of before, whatever the drive is. */
static void test_never_slower(void **state)
{
	(void)state;
	struct rng g = {11};
	double worst = 10, best = 0;
	for (unsigned i = 0; i < RANDOM_DRIVES; i++) {
		const struct sim_drive d = {.bytes_s = 1e9 * (0.3 + 15 * rng_unit(&g) * rng_unit(&g)),
			.latency_ns = 20 * US + rng_below(&g, 1u << (10 + i % 12)),
			.jitter = 0.4 * rng_unit(&g),
			.channels = 1u << rng_below(&g, 9),
			.command_ns = rng_below(&g, 20 * US)};
		struct reader *r = open_sim(&d, 1, i, (struct reader_options){0});
		const double found = read_for(r, 12, REQUEST, OUTSTANDING).bytes_s;
		const double before = fixed_rate(&d, 1, i, READER_DEPTH_DEFAULT, false, 12);
		const struct reader_setting s = reader_setting(r);
		if (found < 0.99 * before)
			fail_msg("drive %u: %.3f GB/s, %.3f with the default (depth %u, %zu KiB)", i,
				found * 1e-9, before * 1e-9, s.depth, s.slice_bytes >> 10);
		worst = MIN(worst, found / before);
		best = MAX(best, found / before);
		reader_close(r);
	}
	print_message("%.1f %% .. %.1f %% of the default queue\n", 100 * worst, 100 * best);
}

/* Copies of a file on several drives. */
static void test_replicas(void **state)
{
	(void)state;
	const struct sim_drive fast = table[3].drive, middle = table[1].drive, slow = table[0].drive;
	const struct sim_drive sets[][DRIVES_MAX] = {
		{fast, fast, fast, fast}, {fast, middle, slow, slow}, {slow, fast}};
	static const unsigned sizes[] = {4, 4, 2};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		double most = 0, fastest = 0;
		for (unsigned k = 0; k < sizes[i]; k++) {
			most += model_most(&sets[i][k], false);
			fastest = MAX(fastest, sets[i][k].bytes_s);
		}
		struct reader *r = open_sim(sets[i], sizes[i], 3, (struct reader_options){.requests = 512});
		const struct figures f = read_for(r, 4, REQUEST, 4 * OUTSTANDING);
		print_message("%u drives: %.2f of %.2f GB/s (%.1f %%), found after %.2f s\n", sizes[i],
			f.bytes_s * 1e-9, most * 1e-9, 100 * f.bytes_s / most, f.found_at);
		assert_true(f.bytes_s >= 0.95 * most);
		/* one expert alone: no slice of it waits for a slow drive */
		struct reader_completion c[64];
		while (reader_pending(r))
			reader_reap(r, c, 1, ARRAY_LEN(c), -1);
		const double start = seconds_of(r);
		for (unsigned k = 0; k < 3; k++)
			submit(r, REQUEST, true);
		while (reader_pending(r))
			reader_reap(r, c, 1, ARRAY_LEN(c), -1);
		const double took = seconds_of(r) - start, alone = 3 * REQUEST / fastest + 1e-4;
		print_message(
			"an expert alone: %.2f ms, %.2f ms by the fastest drive\n", took * 1e3, alone * 1e3);
		assert_true(took < 1.3 * alone);
		reader_close(r);
	}
}

/* The same in slices through staging buffers, as a card's loader reads. A slice of a much slower
 * drive would come long after the others of its expert: such drives are left out. */
static void test_staged_replicas(void **state)
{
	(void)state;
	const struct sim_drive fast = table[3].drive, middle = table[1].drive, slow = table[0].drive;
	const struct sim_drive sets[][DRIVES_MAX] = {
		{fast, fast, fast, fast}, {fast, middle, slow, slow}, {slow, fast}};
	static const unsigned sizes[] = {4, 4, 2};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		double most = 0;
		for (unsigned k = 0; k < sizes[i]; k++)
			most += sets[i][k].bytes_s < fast.bytes_s / 10 ? 0 : model_most(&sets[i][k], true);
		struct reader *r = open_sim(
			sets[i], sizes[i], 3, (struct reader_options){.requests = 512, .staged = true});
		const double rate = read_staged(r, 6, true);
		print_message("%u drives: %.2f of %.2f GB/s (%.1f %%), depth %u\n", sizes[i], rate * 1e-9,
			most * 1e-9, 100 * rate / most, reader_useful_depth(r));
		assert_true(rate >= 0.95 * most);
		reader_close(r);
	}
}

/* Copies on two equal drives, one of which takes half a second for its first reads. It is measured
 * again, and used as the other one. */
static void test_slow_first_read(void **state)
{
	(void)state;
	for (unsigned urgent = 0; urgent < 2; urgent++) {
		struct sim_drive drives[] = {table[1].drive, table[1].drive};
		drives[1].latency_ns = 500000 * US;
		struct reader *r = open_sim(drives, 2, 3, (struct reader_options){.staged = true});
		read_staged(r, 0.1, urgent);
		assert_true(r->drives[1].in_flight > 0);
		drives[1] = drives[0];
		const double first = read_staged(r, urgent ? 7 : 3, urgent);
		const double rate = read_staged(r, 3, urgent), most = 2 * model_most(&drives[0], true);
		print_message("%.2f, then %.2f of %.2f GB/s\n", first * 1e-9, rate * 1e-9, most * 1e-9);
		assert_true(rate >= 0.95 * most);
		reader_close(r);
	}
}

/* A copy on a drive that is slow for good is measured now and then, and costs next to nothing. */
static void test_slow_copy(void **state)
{
	(void)state;
	struct sim_drive drives[] = {table[1].drive, table[1].drive};
	drives[1].bytes_s = 5e6;
	struct reader *r = open_sim(drives, 2, 3, (struct reader_options){.staged = true});
	read_staged(r, 5, false);
	const uint64_t before = r->drives[1].bytes;
	const double rate = read_staged(r, 60, false), most = model_most(&drives[0], true);
	const uint64_t reads = (r->drives[1].bytes - before) / READER_SLICE_DEFAULT;
	print_message("%.2f of %.2f GB/s, %u reads of the slow copy\n", rate * 1e-9, most * 1e-9,
		(unsigned)reads);
	assert_true(rate >= 0.97 * most);
	assert_in_range(reads, 2, 60);
	reader_close(r);
}

/* A drive whose reads turn out to go through the page cache no longer adapts. */
static void test_refused_direct(void **state)
{
	(void)state;
	for (unsigned staged = 0; staged < 2; staged++) {
		const struct reader_sim model = {
			.drives = &table[3].drive, .seed = 5, .refuses_direct = true};
		struct reader *r = open_model(model, 1, (struct reader_options){.staged = staged});
		assert_int_equal(reader_setting(r).n_adapt, 1);
		read_for(r, 3, REQUEST, OUTSTANDING);
		const struct reader_setting s = reader_setting(r);
		assert_int_equal(s.n_adapt, 0);
		assert_int_equal(s.depth, staged ? READER_STAGED_DEPTH_MAX : READER_DEPTH_DEFAULT);
		assert_int_equal(s.slice_bytes, READER_SLICE_DEFAULT);
		assert_true(reader_useful_depth(r) <= reader_useful_depth_max(r));
		reader_close(r);
	}
}

/* A drive that becomes another one while it is read: it is searched again. */
static void test_drive_changes(void **state)
{
	(void)state;
	struct sim_drive d = table[1].drive;
	struct reader *r = open_sim(&d, 1, 5, (struct reader_options){0});
	read_for(r, 3, REQUEST, OUTSTANDING);
	const struct reader_setting before = reader_setting(r);
	d.bytes_s = 12e9;
	d.latency_ns = 4000 * US;
	d.channels = 1024;
	const struct figures f = read_for(r, 3, REQUEST, OUTSTANDING);
	const struct reader_setting after = reader_setting(r);
	print_message("depth %u, then %u: %.1f %%\n", before.depth, after.depth,
		100 * f.late / model_most(&d, false));
	assert_true(f.late >= 0.95 * model_most(&d, false));
	assert_true((double)before.depth * (double)before.slice_bytes < 35e6);
	assert_true((double)after.depth * (double)after.slice_bytes > 45e6);
	d = table[0].drive;
	read_for(r, 6, REQUEST, OUTSTANDING);
	const struct reader_setting last = reader_setting(r);
	print_message("then %u x %zu KiB\n", last.depth, last.slice_bytes >> 10);
	assert_true((double)last.depth * (double)last.slice_bytes <= table[0].in_flight_most);
	reader_close(r);
}

/* queue_control alone, with the queue always full. */
struct fed_queue {
	struct queue_control c;
	uint64_t now_ns;
	unsigned in_flight;
	unsigned reported; /* settings */
	unsigned searches; /* begun */
};

/* Completes one read by a drive of this throughput. */
static void feed(struct fed_queue *q, double bytes_s)
{
	const struct queue_setting s = queue_control_setting(&q->c);
	const uint64_t ns = (uint64_t)(1e9 * s.slice / bytes_s);
	for (; q->in_flight < s.depth; q->in_flight++)
		queue_control_started(&q->c, q->now_ns);
	q->now_ns += ns;
	q->in_flight--;
	const bool held = q->c.phase == QUEUE_HOLD;
	q->reported += queue_control_done(&q->c, s.slice, q->c.in_flight * ns, q->now_ns);
	q->searches += held && q->c.phase != QUEUE_HOLD;
}

static void feed_init(struct fed_queue *q)
{
	const struct queue_setting start = {READER_DEPTH_DEFAULT, READER_SLICE_DEFAULT};
	*q = (struct fed_queue){.now_ns = 1};
	queue_control_init(&q->c, start,
		(struct queue_limits){READER_ADAPT_DEPTH_MAX, READER_SLICE_DEFAULT, READER_SLICE_DEFAULT});
}

/* The drive changes while it is searched: what was found loses, and the start is taken back. The
 * throughput and latency that are reported are those of the start. */
static void test_step_back(void **state)
{
	(void)state;
	struct fed_queue q;
	feed_init(&q);
	while (q.c.phase != QUEUE_CONFIRM)
		feed(&q, 4e9);
	assert_true(q.c.best.depth < READER_DEPTH_DEFAULT);
	while (q.c.phase != QUEUE_HOLD)
		feed(&q, q.c.in_force.depth == READER_DEPTH_DEFAULT ? 4e9 : 3e9);
	assert_int_equal(q.c.best.depth, READER_DEPTH_DEFAULT);
	assert_int_equal(q.reported, 1);
	assert_true(q.c.rate > 3.9e9 && q.c.rate < 4.1e9);
	const double latency = READER_DEPTH_DEFAULT * 1e9 * READER_SLICE_DEFAULT / 4e9;
	assert_true(q.c.latency_ns > 0.9 * latency && q.c.latency_ns < 1.1 * latency);
}

/* A drive whose throughput is noisy and wavers, and is the same from a depth of 5 on: searches end
 * at several depths. They become rare, and few results are reported. */
static void test_wavering_drive(void **state)
{
	(void)state;
	const double seconds = 600;
	struct fed_queue q;
	struct rng g = {3};
	feed_init(&q);
	unsigned lowest = READER_ADAPT_DEPTH_MAX, highest = 0;
	double bytes_s = 5e9, noise = 1;
	while ((double)q.now_ns < 1e9 * seconds) {
		if (rng_below(&g, 10000) == 0)
			bytes_s = bytes_s < 6e9 ? 7e9 : 5e9;
		if (rng_below(&g, 30) == 0)
			noise = 0.9 + 0.2 * rng_unit(&g);
		feed(&q, noise * (q.c.in_force.depth < 5 ? 0.8 * bytes_s : bytes_s));
		if (q.c.phase == QUEUE_HOLD) {
			lowest = MIN(lowest, q.c.best.depth);
			highest = MAX(highest, q.c.best.depth);
		}
	}
	print_message("depth %u to %u: %u searches in %.0f s, %u reported\n", lowest, highest,
		q.searches, seconds, q.reported);
	assert_true(lowest < highest);
	assert_true(q.searches <= seconds / 10 && q.reported <= 2 * q.searches / 3);
}

/* Bursts that never fill the queue say nothing of the drive: nothing changes. */
static void test_light_load(void **state)
{
	(void)state;
	struct reader *r = open_sim(&table[3].drive, 1, 5, (struct reader_options){0});
	read_for(r, 2, REQUEST, 3);
	const struct reader_setting s = reader_setting(r);
	assert_int_equal(s.depth, READER_DEPTH_DEFAULT);
	assert_int_equal(s.n_found, 0);
	reader_close(r);
}

/* What was asked for stays as it is. */
static void test_explicit(void **state)
{
	(void)state;
	struct reader *r = open_sim(&table[0].drive, 1, 5, (struct reader_options){.depth = 20});
	read_for(r, 3, REQUEST, OUTSTANDING);
	struct reader_setting s = reader_setting(r);
	assert_int_equal(s.n_adapt, 0);
	assert_int_equal(s.depth, 20);
	assert_int_equal(s.slice_bytes, READER_SLICE_DEFAULT);
	assert_int_equal(reader_stats(r).in_flight_max, 20);
	reader_close(r);
	r = open_sim(&table[0].drive, 1, 5, (struct reader_options){.slice_bytes = 2 * MIB});
	read_for(r, 3, REQUEST, OUTSTANDING);
	s = reader_setting(r);
	assert_int_equal(s.n_adapt, 1);
	assert_int_equal(s.slice_bytes, 2 * MIB);
	reader_close(r);
	struct reader_file f = {.path = help_a};
	struct err e = {0};
	const struct reader_options cached = {.buffered = true, .engine = READER_THREADS};
	assert_int_equal(reader_open(&r, &f, 1, &cached, &e), 0);
	assert_int_equal(reader_setting(r).n_adapt, 0); /* the page cache is no drive */
	reader_close(r);
	const struct reader_options staged = {
		.buffered = true, .engine = READER_THREADS, .staged = true};
	assert_int_equal(reader_open(&r, &f, 1, &staged, &e), 0);
	/* requests of several slices, so many that all may be in flight */
	const unsigned depth = (READER_CACHED_DEPTH + READER_CACHED_SLICES - 1) / READER_CACHED_SLICES;
	assert_int_equal(reader_staging_bytes(r), READER_CACHED_SLICES * reader_slice(r));
	assert_int_equal(reader_useful_depth(r), depth);
	assert_int_equal(reader_useful_depth_max(r), depth);
	assert_int_equal(reader_staging_buffers(r), 3 * depth);
	reader_close(r);
	const struct reader_options sliced = {
		.buffered = true, .engine = READER_THREADS, .staged = true, .slice_bytes = 65536};
	assert_int_equal(reader_open(&r, &f, 1, &sliced, &e), 0);
	assert_int_equal(reader_staging_bytes(r), 65536);
	assert_int_equal(reader_useful_depth(r), READER_CACHED_DEPTH);
	reader_close(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_speeds),
		cmocka_unit_test(test_staged),
		cmocka_unit_test(test_never_slower),
		cmocka_unit_test(test_replicas),
		cmocka_unit_test(test_staged_replicas),
		cmocka_unit_test(test_slow_first_read),
		cmocka_unit_test(test_slow_copy),
		cmocka_unit_test(test_refused_direct),
		cmocka_unit_test(test_drive_changes),
		cmocka_unit_test(test_step_back),
		cmocka_unit_test(test_wavering_drive),
		cmocka_unit_test(test_light_load),
		cmocka_unit_test(test_explicit),
	};
	log_set_level(LOG_QUIET);
	help_setup();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	help_remove();
	return failed;
}
