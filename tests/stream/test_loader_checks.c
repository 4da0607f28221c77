/* SPDX-License-Identifier: MIT */
/*
 * Check values in the streaming source: every expert is compared when it is read, a read that goes
 * wrong once does no harm, one that stays wrong is an error that names the expert, and whatever
 * else happens to reads and copies meanwhile, nothing hangs or gets lost.
 *
 * Twice, as test_loader.c: reads land in slots, and through staging buffers to an emulated card.
 * Each with the I/O thread hashing, with one thread for that, and with three.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/xxh3/xxh3.h"
#include "tests/stream/loader_help.h"
#include "tests/support/check_threads.h"
#include "tests/support/reader_null.h"
#include "stream/check/mapped_check.h"
#include "stream/loader/host_transfer.h"
#include "stream/loader/load_check.h"
#include "stream/source_mmap.h"
#include "tests/support/slow_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { N_SEEDS = IF_SANITIZER(8, IF_SLOW_BUILD(15, 24)) };

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

/* Allocations of one item of this size fail; 0: none. */
static atomic_size_t failing_size;
static atomic_uint n_refused;

extern void *__libc_calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size)
{
	if (n != 1 || !size || size != atomic_load(&failing_size))
		return __libc_calloc(n, size);
	atomic_fetch_add(&n_refused, 1);
	return NULL;
}

#endif

static struct check_values values;
static int check_threads; /* as in struct loader_options */

static int values_setup(void **state)
{
	int rc = source_setup(state);
	if (rc)
		return rc;
	check_map_init(&values.map, file);
	values.values = NEW_ARRAY(uint64_t, check_map_n(&values.map));
	for (uint64_t i = 0; i < check_map_n(&values.map); i++) {
		const struct check_range r = check_map_range(&values.map, i);
		values.values[i] = xxh3_of(r.run.data, r.run.bytes);
	}
	return 0;
}

static int values_teardown(void **state)
{
	check_map_fini(&values.map);
	free(values.values);
	return source_teardown(state);
}

static struct loader_options checked_options(
	double share, uint64_t ram, enum check_mode mode, const struct reader_faults *f)
{
	struct loader_options o = source_options(share, ram);
	o.check_values = &values;
	o.check_mode = mode;
	o.check_threads = check_threads;
	o.lookahead = 0;
	o.reader = (struct reader_options){
		.custom = &reader_null_engine, .custom_options = f, .slice_bytes = 8192};
	return o;
}

/* A byte in the middle of a part of an expert. */
static uint64_t offset_in(int layer, const char *part, int expert)
{
	char name[64];
	snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", layer, part);
	const struct gguf_tensor *t = gguf_find_tensor(file, name);
	const uint64_t bytes = t->bytes / t->ne[2];
	return t->offset + (uint64_t)expert * bytes + bytes / 2;
}

/* How many experts the source has read so far. */
static uint64_t experts_read(struct expert_source *s)
{
	return source_cache_stats(s).misses;
}

/* With CHECK_FIRST as many as there are different ones, with CHECK_ALWAYS as many as were read,
 * with CHECK_OFF none. */
static void test_modes(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense, k = (int)config.n_used;
	for (int mode = CHECK_FIRST; mode <= CHECK_OFF; mode++) {
		struct reader_faults f = {0};
		struct loader_options o = checked_options(0, 0, (enum check_mode)mode, &f);
		struct expert_source *s = open_source(&o);
		struct expert_ref refs[CONFIG_MAX_USED];
		uint64_t different = 0;
		for (int round = 0; round < 3; round++)
			for (int l = layer; l < (int)config.n_layers; l++) {
				struct err e = {0};
				s->ops->step(s, EXPERT_DECODE, 1, 0);
				refs_from(refs, 0, k);
				if (use_experts(s, l, EXPERT_DECODE, refs, k, &e))
					fail_msg("%s", e.text);
				different += round ? 0 : (uint64_t)k;
			}
		assert_true(experts_read(s) > different); /* the cache does not hold them */
		assert_int_equal(s->stats.checked, mode == CHECK_OFF     ? 0
										   : mode == CHECK_FIRST ? different
																 : experts_read(s));
		assert_int_equal(s->stats.reread + s->stats.wrong, 0);
		assert_true((s->stats.check_ns > 0) == (mode != CHECK_OFF));
		const int n = mode == CHECK_OFF ? 0 : MAX(check_threads, 0);
		assert_int_equal(check_threads_wait_for(n), n);
		close_source(s);
	}
}

/* The three matrices of one expert are hashed by as many threads as there are. */
static void test_side_by_side(void **state)
{
	(void)state;
	if (check_threads <= 0)
		return;
	struct reader_faults f = {0};
	struct loader_options o = checked_options(0.5, 0, CHECK_FIRST, &f);
	struct expert_source *s = open_source(&o);
	for (int id = 0; id < 8; id++) {
		long before[CHECK_THREADS_MAX], after[CHECK_THREADS_MAX];
		struct expert_ref ref = {.id = id};
		struct err e = {0};
		int n = 0;
		assert_true(check_threads_all_sleep(check_threads, before));
		s->ops->step(s, EXPERT_DECODE, 1, id);
		if (use_experts(s, (int)config.n_dense, EXPERT_DECODE, &ref, 1, &e))
			fail_msg("%s", e.text);
		assert_true(check_threads_all_sleep(check_threads, after));
		for (int i = 0; i < check_threads; i++)
			n += after[i] > before[i];
		assert_int_equal(n, MIN(check_threads, EXTENT_MATRICES));
		assert_int_equal(s->stats.checked, id + 1);
	}
	close_source(s);
}

/* A file without values, or nobody who wants them: nothing is compared. */
static void test_no_values(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense;
	struct reader_faults f = {
		.flip = true, .flip_offset = offset_in(layer, "up", 1), .flip_times = 0};
	struct loader_options o = checked_options(0.1, 0, CHECK_ALWAYS, &f);
	o.check_values = NULL;
	struct expert_source *s = open_source(&o);
	struct expert_ref ref = {.id = 1};
	struct err e = {0};
	s->ops->step(s, EXPERT_DECODE, 1, 0);
	int missing = s->ops->acquire(s, layer, EXPERT_DECODE, &ref, 1, &e);
	while (missing > 0)
		missing = s->ops->wait_ready(s, layer, &ref, 1, &e);
	assert_int_equal(missing, 0);
	s->ops->release(s, layer, &ref, 1);
	assert_int_equal(s->stats.checked, 0);
	close_source(s);
}

static const char *const parts[] = {"gate", "up", "down"};

/* Wrong once: read again, and right. */
static void test_transient(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense, k = (int)config.n_used;
	for (size_t p = 0; p < ARRAY_LEN(parts); p++)
		for (int buffered = 0; buffered < 2; buffered++) {
			struct reader_faults f = {.seed = p,
				.latency_min_us = 1,
				.latency_max_us = 300,
				.flip = true,
				.flip_offset = offset_in(layer, parts[p], 2),
				.flip_times = 1};
			struct loader_options o =
				checked_options(0.1, 0, buffered ? CHECK_ALWAYS : CHECK_FIRST, &f);
			o.reader.buffered = buffered;
			struct expert_source *s = open_source(&o);
			struct expert_ref refs[CONFIG_MAX_USED];
			struct err e = {0};
			s->ops->step(s, EXPERT_DECODE, 1, 0);
			refs_from(refs, 0, k);
			if (use_experts(s, layer, EXPERT_DECODE, refs, k, &e)) /* compares the bytes */
				fail_msg("%s", e.text);
			assert_int_equal(s->stats.checked, k);
			assert_int_equal(s->stats.reread, 1);
			assert_int_equal(s->stats.wrong, 0);
			close_source(s);
		}
}

/* Wrong for good: an error each time, which names what is wrong; others can be used. */
static void test_permanent(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense + 1, k = (int)config.n_used;
	for (size_t p = 0; p < ARRAY_LEN(parts); p++) {
		struct reader_faults f = {.flip = true, .flip_offset = offset_in(layer, parts[p], 2)};
		struct loader_options o = checked_options(0.3, full.floor_bytes, CHECK_FIRST, &f);
		struct expert_source *s = open_source(&o);
		struct expert_ref refs[CONFIG_MAX_USED];
		for (uint64_t tries = 1; tries <= 2; tries++) {
			struct err e = {0};
			char name[80], offset[40];
			s->ops->step(s, EXPERT_DECODE, 1, 0);
			refs_from(refs, 0, k);
			assert_int_equal(use_experts(s, layer, EXPERT_DECODE, refs, k, &e), ERR_RUN);
			snprintf(name, sizeof name,
				"expert 2 of layer %d: " MODEL ": blk.%d.ffn_%s_exps.weight", layer, layer,
				parts[p]);
			if (strncmp(e.text, name, strlen(name)))
				fail_msg("%s", e.text);
			const struct gguf_tensor *t = gguf_find_tensor(file, strstr(name, "blk."));
			snprintf(offset, sizeof offset, "at offset %llu)",
				(unsigned long long)(t->offset + 2 * (t->bytes / t->ne[2])));
			assert_non_null(strstr(e.text, offset));
			assert_non_null(strstr(e.hint, "verify"));
			assert_int_equal(s->stats.reread, tries);
			assert_int_equal(s->stats.wrong, tries);
		}
		struct err e = {0};
		refs_from(refs, 3, k);
		if (use_experts(s, layer, EXPERT_DECODE, refs, k, &e))
			fail_msg("%s", e.text);
		close_source(s);
	}
}

/* A warm-up of the second tier: what is read wrong once is read again, what stays wrong does not
 * stay there. */
static void test_second_tier(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense, n_experts = (int)config.n_experts,
			  k = (int)config.n_used;
	struct profile_key keys[256];
	for (size_t p = 0; p < ARRAY_LEN(parts); p++)
		for (unsigned times = 0; times < 2; times++) {
			struct reader_faults f = {.seed = p,
				.flip = true,
				.flip_offset = offset_in(layer + 1, parts[p], n_experts - 1),
				.flip_times = times};
			struct loader_options o = checked_options(0, full.everything_bytes, CHECK_FIRST, &f);
			struct expert_source *s = open_source(&o);
			size_t n = 0;
			int in[2] = {0};
			/* the first tier is full before the last expert of the list comes */
			for (int l = (int)config.n_layers - 1; l >= layer; l--)
				for (int x = 0; x < n_experts && n < ARRAY_LEN(keys); x++)
					if (l != layer + 1)
						keys[n++] = (struct profile_key){l, x};
			n = MIN(n, ARRAY_LEN(keys) - (size_t)n_experts);
			for (int x = 0; x < n_experts; x++)
				keys[n++] = (struct profile_key){layer + 1, x};
			loader_pin_in_background(s);
			loader_warm(s, keys, n);
			const int want = n_experts - !times;
			for (int tries = 0; tries < 6000 && in[0] + in[1] < want; tries++) {
				usleep(10000);
				source_layer_resident(s, layer + 1, in);
			}
			while (!source_warm_ended(s))
				usleep(1000);
			source_layer_resident(s, layer + 1, in);
			assert_int_equal(in[0] + in[1], want);
			assert_true(in[1] > 0);
			struct expert_ref refs[CONFIG_MAX_USED];
			struct err e = {0};
			refs_from(refs, n_experts - k, k);
			s->ops->step(s, EXPERT_DECODE, 1, 0);
			const int rc = use_experts(s, layer + 1, EXPERT_DECODE, refs, k, &e);
			assert_int_equal(rc, times ? 0 : ERR_RUN);
			assert_int_equal(s->stats.reread, times ? 1 : 2);
			assert_int_equal(s->stats.wrong, times ? 0 : 2);
			close_source(s);
		}
}

/* A prompt's read that also fills a slot of the second tier: wrong once, it is read again and stays
 * in both; wrong twice, the prompt fails and the expert is in neither. */
static void test_kept_read(void **state)
{
	(void)state;
	if (card_kind == CARD_NONE)
		return; /* nothing is kept */
	const int layer = (int)config.n_dense, wrong = (int)config.n_experts - 1;
	for (size_t p = 0; p < ARRAY_LEN(parts); p++)
		for (unsigned times = 0; times < 2; times++) {
			struct reader_faults f = {.seed = p,
				.flip = true,
				.flip_offset = offset_in(layer, parts[p], wrong),
				.flip_times = times};
			struct loader_options o = checked_options(0, full.everything_bytes, CHECK_FIRST, &f);
			struct expert_source *s = open_source(&o);
			struct expert_ref refs[2];
			struct err e = {0};
			int in[2];
			loader_pin_in_background(s);
			assert_int_equal(source_wait_pinned(s, &e), 0);
			s->ops->step(s, EXPERT_PREFILL, 512, 0);
			s->ops->read_ahead(s, layer, (const int32_t[]){wrong - 1, wrong}, 2);
			int rc = 0;
			for (int i = 0; i < 2 && !rc; i++) {
				refs_from(refs, wrong - 1 + i, 1);
				rc = use_experts(s, layer, EXPERT_PREFILL, refs, 1, &e);
			}
			assert_int_equal(rc, times ? 0 : ERR_RUN);
			source_layer_resident(s, layer, in);
			assert_int_equal(in[0], 0);
			assert_int_equal(in[1], 1 + !!times);
			/* it may have failed as a read-ahead, and again as a demand */
			assert_in_range(s->stats.reread, 1, times ? 1 : 2);
			assert_int_equal(s->stats.wrong, times ? 0 : s->stats.reread);
			refs_from(refs, wrong - 1, 1 + !!times);
			s->ops->step(s, EXPERT_DECODE, 1, 512);
			if (use_experts(s, layer, EXPERT_DECODE, refs, 1 + !!times, &e))
				fail_msg("%s", e.text);
			assert_int_equal(s->stats.hit_ram, 1 + !!times);
			close_source(s);
		}
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

/* Without memory for the error of a load, or for the state of its check, this load fails, and the
 * program goes on. */
static void test_no_memory(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense, k = (int)config.n_used;
	struct reader_faults f = {.flip = true, .flip_offset = offset_in(layer, "up", 2)};
	struct loader_options o = checked_options(0.3, 0, CHECK_FIRST, &f);
	struct expert_source *s = open_source(&o);
	struct expert_ref refs[CONFIG_MAX_USED];
	const size_t sizes[] = {sizeof(struct err), sizeof(struct load_check)};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		if (i) {
			close_source(s);
			s = open_source(&o);
		}
		struct err e = {0};
		atomic_store(&failing_size, sizes[i]);
		refs_from(refs, 2, 1);
		s->ops->step(s, EXPERT_DECODE, 1, 0);
		int rc = use_experts(s, layer, EXPERT_DECODE, refs, 1, &e);
		atomic_store(&failing_size, 0);
		assert_true(atomic_exchange(&n_refused, 0) > 0);
		assert_int_equal(rc, ERR_MEMORY);
		if (!strstr(e.text, "no memory"))
			fail_msg("%s", e.text);
		refs_from(refs, 3, k);
		if (use_experts(s, layer, EXPERT_DECODE, refs, k, &e))
			fail_msg("%s", e.text);
	}
	close_source(s);
}

#endif

static bool ended;

static void note_end(void *arg, int32_t slot, uint64_t bytes_read, const struct err *failure)
{
	(void)arg;
	(void)slot;
	if (failure)
		fail_msg("%s", failure->text);
	assert_true(bytes_read > 0);
	ended = true;
}

/* Slices that have come are hashed while later ones of the same matrix are being read: with one
 * read at a time, before a quarter of the expert has come; and behind the last slice little is left
 * to do. */
static void test_hashed_by_slice(void **state)
{
	(void)state;
	if (card_kind != CARD_NONE || check_threads >= 0)
		return; /* the card's chunks are no larger than a staging buffer; no threads: no races */
	const int layer = (int)config.n_dense;
	struct reader_faults f = {0};
	struct loader_options o = checked_options(0, 0, CHECK_FIRST, &f);
	struct err e = {0};
	struct reader *r;
	struct extent_table *table;
	struct extent_plan p;
	struct expert_check check = {0};
	struct check_pool *pool;
	o.reader.depth = 1;
	o.reader.slice_bytes = READER_SLICE_MIN;
	if (loader_open_reader(&o, &r, &e) || extent_table_from_gguf(&table, file, r, &e) ||
		check_pool_open(&pool, 0, NULL, NULL, &e))
		fail_msg("%s", e.text);
	assert_int_equal(extent_plan(table, (uint32_t)layer, 0, &p), 0);
	expert_check_init(
		&check, &values, CHECK_FIRST, (int)extent_n_layers(table), (int)extent_n_experts(table));
	struct transfer *t = host_transfer_open(&(struct transfer_config){.reader = r,
		.table = table,
		.check = &check,
		.check_pool = pool,
		.n_slots = 1,
		.done = note_end});
	assert_non_null(t);
	t->ops->attach(t);
	uint8_t *slot = aligned_alloc(4096, num_align_up(p.dst_bytes, 4096));
	const struct transfer_request q = {
		.layer = layer, .priority = TRANSFER_DEMAND, .dst = slot, .bytes = p.dst_bytes};
	ended = false;
	t->ops->load(t, &q);
	uint64_t hashed_from = 0;
	while (!ended) {
		transfer_reap(t, 1, 100);
		while (t->ops->run(t))
			;
		if (check.figures.ns && !hashed_from)
			hashed_from = reader_stats(r).bytes;
	}
	assert_int_equal(check.figures.checked, 1);
	assert_true(hashed_from > 0);
	if (hashed_from > p.read_bytes / 4)
		fail_msg("of %llu bytes %llu had come before the first was hashed",
			(unsigned long long)p.read_bytes, (unsigned long long)hashed_from);
	check_pool_close(pool);
	t->ops->close(t);
	expert_check_fini(&check);
	extent_table_free(table);
	reader_close(r);
	free(slot);
}

/* With a copy beside the file the error says that either may be wrong. */
static void test_copies(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense;
	struct reader_faults f = {.flip = true, .flip_offset = offset_in(layer, "up", 2)};
	struct loader_options o = checked_options(0.1, 0, CHECK_FIRST, &f);
	o.replicas = (const char *const[]){MODEL};
	o.n_replicas = 1;
	struct expert_source *s = open_source(&o);
	struct expert_ref ref = {.id = 2};
	struct err e = {0};
	s->ops->step(s, EXPERT_DECODE, 1, 0);
	assert_int_equal(use_experts(s, layer, EXPERT_DECODE, &ref, 1, &e), ERR_RUN);
	assert_non_null(strstr(e.hint, "may be those of a copy"));
	close_source(s);
}

/* Delays, reorderings, short reads and retries, and a read that is wrong a few times. */
static void test_check_seeds(void **state)
{
	(void)state;
	uint64_t rereads = 0, checked = 0;
	for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
		struct rng r = {seed};
		card_faults = (struct copier_faults){.seed = seed};
		struct reader_faults f = {
			.seed = seed,
			.latency_min_us = 1,
			.latency_max_us = 1 + rng_below(&r, 2000),
			.short_per_1024 = rng_below(&r, 300),
			.eagain_per_1024 = rng_below(&r, 300),
			.poison = true,
			.no_sleep = true,
			.flip = seed % 2,
			.flip_offset = offset_in(
				(int)config.n_dense, parts[seed % 3], (int)rng_below(&r, config.n_experts)),
			.flip_times = 1,
		};
		struct loader_options o = checked_options(rng_unit(&r) * rng_unit(&r),
			rng_below(&r, 2) ? full.floor_bytes : 0, seed % 3 ? CHECK_FIRST : CHECK_ALWAYS, &f);
		o.lookahead = 2;
		o.reader.slice_bytes = 4096u << rng_below(&r, 6);
		o.reader.depth = 1 + rng_below(&r, 40);
		struct expert_source *s = open_source(&o);
		int failed = random_run(s, &r, 2, NULL);
		rereads += s->stats.reread;
		checked += s->stats.checked;
		close_source(s);
		if (failed)
			fail_msg("seed %llu: %d uses failed", (unsigned long long)seed, failed);
	}
	print_message("%llu experts compared, %llu read again\n", (unsigned long long)checked,
		(unsigned long long)rereads);
	assert_true(checked > 160 && rereads > N_SEEDS / 8);
}

/* A read that fails in the middle of a checked load: what has come of it must not be waited for. So
 * many of them that a staging buffer lost each time would be missed. */
static void test_failed_reads(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense, k = (int)config.n_used;
	for (uint64_t seed = 1; seed <= IF_SANITIZER(2, 4); seed++) {
		struct reader_faults f = {.seed = seed,
			.latency_min_us = 1,
			.latency_max_us = 400,
			.fail_range = true,
			.fail_offset = offset_in(layer, parts[seed % 3], 0)};
		struct loader_options o = checked_options(0.1, 0, CHECK_ALWAYS, &f);
		o.reader.depth = 4;
		struct expert_source *s = open_source(&o);
		struct expert_ref refs[CONFIG_MAX_USED];
		for (int i = 0; i < 40; i++) {
			struct err e = {0};
			s->ops->step(s, EXPERT_DECODE, 1, i);
			refs_from(refs, 0, k);
			assert_int_equal(use_experts(s, layer, EXPERT_DECODE, refs, k, &e), ERR_RUN);
			assert_non_null(strstr(e.text, "failed after"));
			refs_from(refs, 1 + i % 8, k);
			if (use_experts(s, layer, EXPERT_DECODE, refs, k, &e))
				fail_msg("%s", e.text);
		}
		assert_int_equal(s->stats.reread, 0);
		close_source(s);
	}
}

/* Copies that fail beside checks, and closing at any moment. */
static void test_failed_copies_and_close(void **state)
{
	(void)state;
	for (uint64_t i = 1; i <= 20; i++) {
		struct rng r = {i};
		struct reader_faults f = {.seed = i, .latency_min_us = 10, .latency_max_us = 1000};
		card_faults = (struct copier_faults){
			.seed = i, .latency_max_us = i % 4 < 2 ? 300 : 0, .fail_copy = i % 2 ? 5 * i : 0};
		struct loader_options o =
			checked_options(0.2, i % 3 ? full.floor_bytes : 0, CHECK_ALWAYS, &f);
		struct expert_source *s = open_source(&o);
		struct expert_ref refs[CONFIG_MAX_USED];
		struct err e = {0};
		const int layer = (int)config.n_dense, k = (int)config.n_used;
		assert_in_range(random_run(s, &r, 1, NULL), 0, 1);
		refs_random(refs, k, &r);
		if (s->ops->acquire(s, layer, EXPERT_DECODE, refs, k, &e) >= 0) {
			if (rng_below(&r, 2))
				usleep(rng_below(&r, 1000));
			s->ops->release(s, layer, refs, k);
		}
		close_source(s);
	}
}

/* ---- where the file is mapped ---- */

static struct expert_tensors *expert_layers(void)
{
	struct expert_tensors *layers = NEW_ARRAY(struct expert_tensors, config.n_layers);
	for (uint32_t l = config.n_dense; l < config.n_layers; l++) {
		const struct gguf_tensor **t[] = {&layers[l].gate, &layers[l].up, &layers[l].down};
		for (size_t p = 0; p < ARRAY_LEN(parts); p++) {
			char name[64];
			snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", l, parts[p]);
			*t[p] = gguf_find_tensor(file, name);
		}
	}
	return layers;
}

static void test_mapped(void **state)
{
	(void)state;
	struct expert_tensors *layers = expert_layers();
	const int layer = (int)config.n_dense, k = (int)config.n_used;
	struct expert_ref refs[CONFIG_MAX_USED];
	for (int mode = CHECK_FIRST; mode <= CHECK_OFF; mode++) {
		struct err e = {0};
		struct expert_source *s = source_mmap_open(layers, (int)config.n_layers);
		source_mmap_check(s, &values, (enum check_mode)mode);
		for (int round = 0; round < 3; round++) {
			refs_from(refs, 0, k);
			refs[0].tier = EXPERT_DISK; /* outputs: acquire sets them */
			refs[0].on_host = true;
			assert_int_equal(s->ops->acquire(s, layer, EXPERT_DECODE, refs, k, &e), 0);
			assert_int_equal(refs[0].tier, EXPERT_VRAM);
			assert_false(refs[0].on_host);
			check_expert(layer, &refs[0]);
		}
		assert_int_equal(s->stats.checked, mode == CHECK_OFF ? 0 : mode == CHECK_FIRST ? k : 3 * k);
		/* another value: the bytes are wrong */
		const uint64_t i =
			values.map.first[layers[layer + 1].down - file->tensors] + (uint64_t)k - 1;
		values.values[i] ^= 1;
		refs_from(refs, 0, k);
		int rc = s->ops->acquire(s, layer + 1, EXPERT_DECODE, refs, k, &e);
		assert_int_equal(rc, mode == CHECK_OFF ? 0 : ERR_RUN);
		if (rc) {
			assert_non_null(strstr(e.text, "ffn_down_exps.weight, expert "));
			assert_true(s->stats.reread == 1 && s->stats.wrong == 1);
		}
		values.values[i] ^= 1;
		s->ops->close(s);
	}
	free(layers);
}

/* The emulated card as the memory of a backend. */
static struct copier *whole_card;

static int card_alloc(
	struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e)
{
	(void)b, (void)kind;
	return whole_card->ops->alloc(whole_card, bytes, out, e);
}

static void card_free(struct backend *b, enum mem_kind kind, void *p, size_t bytes)
{
	(void)b, (void)kind;
	whole_card->ops->free(whole_card, p, bytes);
}

static int card_copier_open(struct backend *b, struct copier **out, struct err *e)
{
	(void)b, (void)out;
	return err_set(e, ERR_RUN, "the copier is lent");
}

/* All experts are loaded to the card at once: wrong matrices of one expert count as one expert that
 * is read again. */
static void test_all_on_card(void **state)
{
	(void)state;
	struct expert_tensors *layers = expert_layers();
	struct backend_ops ops = *backend->ops;
	struct backend with_card = *backend;
	const int layer = (int)config.n_dense;
	const uint64_t also[] = {
		0, offset_in(layer, "down", 3), offset_in(layer, "up", 4), offset_in(layer + 1, "up", 3)};
	const unsigned rereads[] = {1, 1, 2, 2};
	ops.alloc = card_alloc;
	ops.free = card_free;
	ops.copier_open = card_copier_open;
	with_card.ops = &ops;
	for (size_t i = 0; i < ARRAY_LEN(also); i++) {
		struct err e = {0};
		struct expert_source *s;
		struct reader_faults f = {.flip = true,
			.flip_offset = offset_in(layer, "up", 3),
			.flip_also = also[i],
			.flip_times = 1};
		assert_int_equal(copier_null_open(NULL, &whole_card, &e), 0);
		struct tensor_load_options o = {.file = file,
			.backend = &with_card,
			.copier = whole_card,
			.reader = {.custom = &reader_null_engine, .custom_options = &f},
			.check_values = &values,
			.check_threads = (int)i - 1};
		if (source_device_open(layers, (int)config.n_layers, &o, &s, &e))
			fail_msg("%s", e.text);
		struct expert_stats figures;
		source_mmap_figures(s, &figures);
		assert_int_equal(figures.checked, (config.n_layers - config.n_dense) * config.n_experts);
		assert_int_equal(figures.reread, rereads[i]);
		assert_int_equal(s->stats.reread, rereads[i]);
		s->ops->close(s);
		whole_card->ops->close(whole_card);
	}
	free(layers);
}

/* A model of which the gate matrices of a layer lie apart and have scales, as in a checkpoint with
 * tensors of several types: its experts have four ranges, those of other layers three. */
struct mixed_model {
	struct gguf file;
	struct gguf_tensor *tensors;
	struct gguf_run *runs, *scales; /* [n_experts] */
	struct check_values values;
};

static void mixed_model_make(struct mixed_model *m, const struct gguf_tensor *gate)
{
	const uint64_t n = config.n_experts, matrix = gate->bytes / n;
	m->file = *file;
	m->tensors = NEW_ARRAY(struct gguf_tensor, file->n_tensors);
	memcpy(m->tensors, file->tensors, file->n_tensors * sizeof *m->tensors);
	m->file.tensors = m->tensors;
	m->runs = NEW_ARRAY(struct gguf_run, n);
	m->scales = NEW_ARRAY(struct gguf_run, n);
	for (uint64_t k = 0; k < n; k++) {
		m->runs[k] = (struct gguf_run){
			gate->file, gate->offset + k * matrix, matrix, gate->data + k * matrix};
		m->scales[k] = m->runs[k];
		m->scales[k].bytes = 64;
	}
	struct gguf_tensor *t = &m->tensors[gate - file->tensors];
	t->runs = m->runs;
	t->n_runs = n;
	t->scales = m->scales;
	t->bytes += n * m->scales[0].bytes;
	check_map_init(&m->values.map, &m->file);
	m->values.values = NEW_ARRAY(uint64_t, check_map_n(&m->values.map));
	for (uint64_t i = 0; i < check_map_n(&m->values.map); i++) {
		const struct gguf_run r = check_map_range(&m->values.map, i).run;
		m->values.values[i] = xxh3_of(r.data, r.bytes);
	}
}

static void test_experts_of_several_ranges(void **state)
{
	(void)state;
	struct expert_tensors *layers = expert_layers();
	struct backend_ops ops = *backend->ops;
	struct backend with_card = *backend;
	struct mixed_model m = {0};
	struct err e = {0};
	struct expert_source *s;
	mixed_model_make(&m, layers[config.n_dense].gate);
	for (uint32_t l = config.n_dense; l < config.n_layers; l++) {
		layers[l].gate = m.tensors + (layers[l].gate - file->tensors);
		layers[l].up = m.tensors + (layers[l].up - file->tensors);
		layers[l].down = m.tensors + (layers[l].down - file->tensors);
	}
	ops.alloc = card_alloc;
	ops.free = card_free;
	ops.copier_open = card_copier_open;
	with_card.ops = &ops;
	assert_int_equal(copier_null_open(NULL, &whole_card, &e), 0);
	const struct tensor_load_options o = {.file = file,
		.backend = &with_card,
		.copier = whole_card,
		.reader = {.custom = &reader_null_engine, .custom_options = &(struct reader_faults){0}},
		.check_values = &m.values};
	if (source_device_open(layers, (int)config.n_layers, &o, &s, &e))
		fail_msg("%s", e.text);
	assert_int_equal(s->stats.checked, (config.n_layers - config.n_dense) * config.n_experts);
	s->ops->close(s);
	whole_card->ops->close(whole_card);
	check_map_fini(&m.values.map);
	free(m.values.values);
	free(m.runs);
	free(m.scales);
	free(m.tensors);
	free(layers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_modes),
		cmocka_unit_test(test_no_values),
		cmocka_unit_test(test_transient),
		cmocka_unit_test(test_permanent),
		cmocka_unit_test(test_second_tier),
		cmocka_unit_test(test_kept_read),
		cmocka_unit_test(test_side_by_side),
		cmocka_unit_test(test_hashed_by_slice),
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
		cmocka_unit_test(test_no_memory),
#endif
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_check_seeds),
		cmocka_unit_test(test_failed_reads),
		cmocka_unit_test(test_failed_copies_and_close),
	};
	const struct CMUnitTest mapped[] = {cmocka_unit_test(test_mapped),
		cmocka_unit_test(test_all_on_card), cmocka_unit_test(test_experts_of_several_ranges)};
	int failed = cmocka_run_group_tests_name("mapped", mapped, values_setup, values_teardown);
	static const int pools[] = {-1, 1, 3};
	for (size_t i = 0; i < ARRAY_LEN(pools); i++) {
		check_threads = pools[i];
		card_kind = CARD_NONE;
		failed += cmocka_run_group_tests_name("direct", tests, values_setup, values_teardown);
		card_kind = CARD_EMULATED;
		failed +=
			cmocka_run_group_tests_name("emulated card", tests, values_setup, values_teardown);
	}
	return failed;
}
