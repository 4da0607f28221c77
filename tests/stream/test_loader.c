/* SPDX-License-Identifier: MIT */
/*
 * The streaming source at its own interface: whatever the model could ask for, in any order, under
 * any budget, policy, engine, fault and timing, an expert that is called ready holds exactly the
 * bytes of the file.
 *
 * All of it runs twice: with slots that reads land in directly, and with an emulated card between
 * (tests/support/copier_null.h), whose memory this program cannot touch. Where a real card answers,
 * a third round goes through that.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tests/stream/loader_help.h"
#include "tests/support/reader_null.h"
#include "tests/support/slow_build.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { N_SEEDS = IF_SANITIZER(80, IF_SLOW_BUILD(200, 300)) };
enum { N_CARD_SEEDS = IF_SANITIZER(30, IF_SLOW_BUILD(60, 80)) };

/* Runs with this engine under every budget, through the page cache and past it. */
static void check_engine(const struct reader_options *engine)
{
	static const char *const policies[] = {"lru", "lfu", "sieve"};
	static const double shares[] = {0, 0.2, 0.6, 1};
	struct rng r = {1};
	for (size_t b = 0; b < ARRAY_LEN(shares); b++)
		for (int buffered = 0; buffered < 2; buffered++) {
			struct loader_options o = source_options(shares[b], b % 2 ? full.floor_bytes / 2 : 0);
			o.policy = policies[b % ARRAY_LEN(policies)];
			o.reader = *engine;
			o.reader.buffered = buffered;
			struct err e = {0};
			struct expert_source *s;
			int rc = try_source(&o, &s, &e);
			if (rc && engine->engine == READER_URING) {
				print_message("skipped: %s\n", e.text);
				skip();
			}
			assert_int_equal(rc, 0);
			assert_int_equal(random_run(s, &r, 6, NULL), 0);
			struct cache_stats c = source_cache_stats(s);
			assert_int_equal(c.accesses, c.hits[0] + c.hits[1] + c.misses);
			assert_true(s->stats.bytes_read > 0);
			close_source(s);
		}
}

static void test_uring(void **state)
{
	(void)state;
	check_engine(&(struct reader_options){.engine = READER_URING});
}

static void test_threads(void **state)
{
	(void)state;
	check_engine(&(struct reader_options){.engine = READER_THREADS});
}

static void test_null_engine(void **state)
{
	(void)state;
	check_engine(&(struct reader_options){.custom = &reader_null_engine});
}

/* Delays, reorderings, short reads and retries from many seeds. */
static void test_seeds(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= (card_kind != CARD_NONE ? N_CARD_SEEDS : N_SEEDS); seed++) {
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
		};
		struct loader_options o =
			source_options(rng_unit(&r) * rng_unit(&r), rng_below(&r, 2) ? full.floor_bytes : 0);
		o.policy = (const char *const[]){"lru", "lfu", "sieve"}[rng_below(&r, 3)];
		o.reader = (struct reader_options){.custom = &reader_null_engine,
			.custom_options = &f,
			.slice_bytes = 4096u << rng_below(&r, 6),
			.depth = 1 + rng_below(&r, 40)};
		struct expert_source *s = open_source(&o);
		int failed = random_run(s, &r, 2, NULL);
		close_source(s);
		if (failed)
			fail_msg("seed %llu: %d uses failed", (unsigned long long)seed, failed);
	}
}

/* A source whose nth read fails. */
static struct expert_source *open_failing(struct reader_faults *f, uint64_t nth)
{
	*f = (struct reader_faults){
		.seed = nth, .fail_read = nth, .latency_max_us = 50, .latency_min_us = 1};
	struct loader_options o = source_options(0.1, 0);
	o.lookahead = 0;
	o.reader = (struct reader_options){.custom = &reader_null_engine, .custom_options = f};
	return open_source(&o);
}

static void check_read_error(const struct err *e)
{
	assert_int_equal(e->code, ERR_RUN);
	assert_non_null(strstr(e->text, MODEL));
	assert_non_null(strstr(e->text, "layer"));
	assert_non_null(strstr(e->text, "expert"));
	assert_non_null(strstr(e->text, "offset"));
}

/* A failed read of a demand is always reported, with file, offset, layer and expert; the source
 * goes on. */
static void test_demand_error(void **state)
{
	(void)state;
	const int layer = (int)config.n_dense, n = (int)config.n_used;
	for (uint64_t nth = 1; nth <= config.n_used; nth++) { /* every expert is one read at least */
		struct reader_faults f;
		struct expert_source *s = open_failing(&f, nth);
		struct expert_ref refs[CONFIG_MAX_USED];
		struct err e = {0};
		s->ops->step(s, EXPERT_DECODE, 1, 0);
		refs_from(refs, 0, n);
		assert_int_equal(use_experts(s, layer, EXPERT_DECODE, refs, n, &e), ERR_RUN);
		check_read_error(&e);
		refs_from(refs, 0, n);
		assert_int_equal(use_experts(s, layer, EXPERT_DECODE, refs, n, &e), 0);
		close_source(s);
	}
}

/* In a run a prefetch or read-ahead may meet the failed read: then it is reported to nobody. */
static void test_read_error(void **state)
{
	(void)state;
	int reported = 0;
	for (uint64_t nth = 1; nth < 60; nth += 7) {
		struct reader_faults f;
		struct expert_source *s = open_failing(&f, nth);
		struct rng r = {nth};
		struct err e = {0};
		int failed = random_run(s, &r, 3, &e);
		assert_in_range(failed, 0, 1);
		reported += failed;
		if (failed)
			check_read_error(&e);
		assert_int_equal(random_run(s, &r, 2, NULL), 0);
		close_source(s);
	}
	print_message("%d of 9 failed reads were reported\n", reported);
	assert_true(reported >= 3);
}

static void copy_model(const char *path)
{
	int to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(to >= 0);
	const struct gguf_file *f = &file->files[0];
	for (uint64_t at = 0; at < f->size;) {
		ssize_t n = write(to, (const uint8_t *)f->map.data + at, f->size - at);
		assert_true(n > 0);
		at += (uint64_t)n;
	}
	close(to);
}

static void test_truncated_while_running(void **state)
{
	(void)state;
	char path[] = "build/test_loader_XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	copy_model(path);
	struct err e = {0};
	struct gguf *g;
	assert_int_equal(gguf_open(path, &g, &e), 0);
	struct loader_options o = source_options(0.1, 0);
	o.file = g;
	struct expert_source *s = open_source(&o);
	struct rng r = {5};
	assert_int_equal(random_run(s, &r, 1, NULL), 0);
	/* cut inside the experts of the last layers: what lies before can still be read */
	const struct gguf_tensor *t = gguf_find_tensor(g, "blk.2.ffn_up_exps.weight");
	assert_int_equal(truncate(path, (off_t)t->offset), 0);
	int failed = random_run(s, &r, 3, &e);
	assert_true(failed > 0);
	assert_int_equal(e.code, ERR_RUN);
	assert_non_null(strstr(e.text, path));
	close_source(s);
	gguf_close(g);
	unlink(path);
}

/* Waits for one read that answers late. The refs from `first_draft` on are of draft rows alone. */
static struct expert_stats wait_for_late_read(uint32_t hang_read, int first_draft)
{
	struct expert_ref refs[CONFIG_MAX_USED];
	struct err e = {0};
	const int n = (int)config.n_used;
	struct reader_faults slow = {.hang_read = hang_read, .hang_ms = 400};
	struct loader_options o = source_options(0.1, 0);
	o.reader = (struct reader_options){.custom = &reader_null_engine, .custom_options = &slow};
	struct expert_source *s = open_source(&o);
	refs_from(refs, 0, n);
	for (int i = first_draft; i < n; i++)
		refs[i].draft_rows = 2;
	assert_int_equal(use_experts(s, (int)config.n_dense, EXPERT_DECODE, refs, n, &e), 0);
	const struct expert_stats stats = s->stats;
	close_source(s);
	return stats;
}

#define LATE_NS 300000000 /* of the 400 ms of a read that hangs */

/* The same; again where this thread came late itself. drafts: whether it is to wait for them. */
static struct expert_stats wait_for_late(uint32_t hang_read, int first_draft, bool drafts)
{
	struct expert_stats s = wait_for_late_read(hang_read, first_draft);
	for (int i = 0; i < 20 && !(s.wait_ns > LATE_NS && (s.wait_draft_ns > LATE_NS) == drafts); i++)
		s = wait_for_late_read(hang_read, first_draft);
	return s;
}

static void test_wait_for_drafts(void **state)
{
	(void)state;
	struct expert_stats none = wait_for_late(2, (int)config.n_used, false),
						first = wait_for_late(2, 1, false), /* of the ref that row 0 needs */
		last = wait_for_late(EXTENT_MATRICES + 2, 1, true), all = wait_for_late(2, 0, true);
	assert_true(none.wait_ns > LATE_NS && none.wait_draft_ns == 0);
	assert_true(first.wait_ns > LATE_NS && first.wait_draft_ns < LATE_NS);
	assert_true(last.wait_draft_ns > LATE_NS && last.wait_draft_ns <= last.wait_ns);
	assert_true(all.wait_draft_ns > LATE_NS && all.wait_draft_ns == all.wait_ns);
}

/* A demand for an expert that the warm-up is reading into the second tier waits before it has a
 * slot. That time counts as waiting too. */
static void test_wait_for_slot(void **state)
{
	(void)state;
	struct reader_faults slow = {.latency_min_us = 200000, .latency_max_us = 200000};
	struct loader_options o = source_options(0, full.everything_bytes);
	o.reader = (struct reader_options){.custom = &reader_null_engine, .custom_options = &slow};
	struct expert_source *s = open_source(&o);
	size_t n;
	struct profile_key *keys = all_experts(&n);
	int layer, expert;
	struct err e = {0};
	loader_warm(s, keys, n);
	/* again where this thread comes so late that the read has nearly ended */
	for (int tries = 0; s->stats.wait_ns <= 50000000; tries++) {
		assert_true(tries < 50);
		while (!source_last_loading(s, &layer, &expert)) {
			assert_false(source_warm_ended(s));
			usleep(1000);
		}
		struct expert_ref ref = {.id = expert};
		s->ops->step(s, EXPERT_DECODE, 1, tries);
		assert_true(s->ops->acquire(s, layer, EXPERT_DECODE, &ref, 1, &e) >= 0);
		s->ops->release(s, layer, &ref, 1);
	}
	close_source(s);
	free(keys);
}

static void test_slow_disk_and_cancel(void **state)
{
	(void)state;
	struct expert_ref refs[CONFIG_MAX_USED];
	struct rng r = {9};
	struct err e = {0};
	int layer = (int)config.n_dense;
	/* a read that answers late is waited for */
	struct reader_faults slow = {.hang_read = 2, .hang_ms = 400};
	struct loader_options o = source_options(0.1, 0);
	o.reader = (struct reader_options){.custom = &reader_null_engine, .custom_options = &slow};
	struct expert_source *s;
	uint64_t waited = 0;
	for (int i = 0; i < 20 && waited <= LATE_NS; i++) { /* this thread may come late itself */
		s = open_source(&o);
		refs_random(refs, (int)config.n_used, &r);
		assert_int_equal(use_experts(s, layer, EXPERT_DECODE, refs, (int)config.n_used, &e), 0);
		waited = s->stats.wait_ns;
		close_source(s);
	}
	assert_true(waited > LATE_NS);
	/* one that never answers is left by Ctrl+C, and closing does not wait for it */
	struct reader_faults dead = {.hang_read = 2};
	o.reader.custom_options = &dead;
	s = open_source(&o);
	atomic_bool cancel = true;
	s->cancel = &cancel;
	refs_from(refs, 0, (int)config.n_used);
	assert_int_equal(
		use_experts(s, layer, EXPERT_DECODE, refs, (int)config.n_used, &e), ERR_INTERRUPTED);
	close_source(s);
}

/* Closing at any moment: no read may land in freed memory (the address sanitizer watches). */
static void test_close_in_flight(void **state)
{
	(void)state;
	for (int i = 0; i < IF_SANITIZER(60, 100); i++) {
		struct rng r = {(uint64_t)i + 1000};
		struct loader_options o = source_options(0.3, i % 2 ? full.floor_bytes : 0);
		card_faults =
			(struct copier_faults){.seed = (uint64_t)i, .latency_max_us = i % 4 < 2 ? 300 : 0};
		struct reader_faults f = {
			.seed = (uint64_t)i, .latency_min_us = 10, .latency_max_us = 3000};
		o.reader.engine = i % 3 == 1 ? READER_THREADS : READER_AUTO;
		o.reader.custom = i % 3 == 0 ? &reader_null_engine : NULL;
		o.reader.custom_options = &f;
		struct expert_source *s = open_source(&o);
		struct expert_ref refs[CONFIG_MAX_USED];
		struct err e = {0};
		int layer = (int)config.n_dense;
		refs_random(refs, (int)config.n_used, &r);
		if (rng_below(&r, 2)) {
			assert_true(
				s->ops->acquire(s, layer, EXPERT_DECODE, refs, (int)config.n_used, &e) >= 0);
			if (rng_below(&r, 2))
				usleep(rng_below(&r, 500));
			s->ops->release(s, layer, refs, (int)config.n_used);
		}
		int32_t ids[CONFIG_MAX_USED];
		for (uint32_t k = 0; k < config.n_used; k++)
			ids[k] = (int32_t)k;
		s->ops->prefetch(s, layer + 1, ids, (int)config.n_used, 1);
		if (rng_below(&r, 2))
			usleep(rng_below(&r, 500));
		close_source(s);
	}
}

/* Tokens whose experts are all new to the cache (a round trip over all of them), with hints that
 * are always right or always wrong. */
static void hinted_tokens(struct expert_source *s, int n_tokens, bool right)
{
	int first = (int)config.n_dense, n_layers = (int)config.n_layers, k = (int)config.n_used,
		n = (int)config.n_experts;
	struct expert_ref refs[CONFIG_MAX_USED];
	int32_t ids[CONFIG_MAX_USED];
	for (int t = 0; t < n_tokens; t++) {
		s->ops->step(s, EXPERT_DECODE, 1, t);
		for (int layer = first; layer < n_layers; layer++) {
			struct err e = {0};
			refs_from(refs, t * k, k);
			if (use_experts(s, layer, EXPERT_DECODE, refs, k, &e) < 0)
				fail_msg("%s", e.text);
			for (int i = 0; i < k; i++)
				ids[i] = (t * k + i + (right ? 0 : n / 2)) % n;
			if (layer + 1 < n_layers)
				s->ops->prefetch(s, layer + 1, ids, k, 1);
			usleep(300); /* time for the prefetch */
		}
	}
}

/* With a card: while demands come from the drive, prefetches do not; they do when it has read none
 * for a while. */
static void check_idle_drive(struct expert_source *s)
{
	hinted_tokens(s, 20, true);
	assert_int_equal(source_cache_stats(s).prefetch_inserted, 0);
	const int layer = (int)config.n_dense;
	const int32_t missing = (int32_t)(20 * config.n_used % config.n_experts);
	for (int rounds = 0; rounds < 100 && !source_cache_stats(s).prefetch_inserted; rounds++) {
		struct err e = {0};
		struct expert_ref ref = {.id = 0};
		s->ops->step(s, EXPERT_DECODE, 1, 20 + rounds);
		assert_int_equal(use_experts(s, layer, EXPERT_DECODE, &ref, 1, &e), 0);
		s->ops->prefetch(s, layer + 1, &missing, 1, 1);
		usleep(300);
		if (rounds < 7)
			assert_int_equal(source_cache_stats(s).prefetch_inserted, 0);
		/* the request stays until the next layer */
		for (int ms = 0; rounds >= 8 && ms < 1000 && !source_cache_stats(s).prefetch_inserted; ms++)
			usleep(1000);
	}
	assert_true(source_cache_stats(s).prefetch_inserted > 0);
}

static void test_throttle(void **state)
{
	(void)state;
	struct loader_options o = source_options(0.15, 0);
	struct expert_source *s = open_source(&o);
	if (card_kind != CARD_NONE) {
		check_idle_drive(s);
		close_source(s);
		return;
	}
	assert_true(source_prefetch_share(s) == 1);
	hinted_tokens(s, 120, false);
	struct cache_stats wrong = source_cache_stats(s);
	print_message("wrong hints: %llu prefetched, %llu used, share %.3f\n",
		(unsigned long long)wrong.prefetch_inserted, (unsigned long long)wrong.prefetch_used,
		source_prefetch_share(s));
	assert_true(wrong.prefetch_inserted > 0);
	assert_true(source_prefetch_share(s) < 0.5); /* it does not pay: less of each hint is taken */
	hinted_tokens(s, 200, true);
	struct cache_stats right = source_cache_stats(s);
	print_message("right hints: %llu prefetched, %llu used, share %.3f\n",
		(unsigned long long)(right.prefetch_inserted - wrong.prefetch_inserted),
		(unsigned long long)(right.prefetch_used - wrong.prefetch_used), source_prefetch_share(s));
	assert_true(source_prefetch_share(s) > 0.5); /* and more again when it does */
	close_source(s);
}

/* What the first group of a layer predicts for the next one is still to come when the second group
 * of the layer is acquired. */
static void test_prefetch_between_groups(void **state)
{
	(void)state;
	struct reader_faults slow = {.latency_min_us = 30000, .latency_max_us = 30000};
	struct loader_options o = source_options(0.5, 0);
	o.reader = (struct reader_options){.custom = &reader_null_engine, .custom_options = &slow};
	struct expert_source *s = open_source(&o);
	const int layer = (int)config.n_dense;
	const int32_t predicted[] = {0, 1};
	struct expert_ref groups[2][2];
	struct err e = {0};
	s->ops->step(s, EXPERT_DECODE, 1, 0);
	for (int g = 0; g < 2; g++) {
		refs_from(groups[g], 2 * g, 2);
		assert_int_equal(s->ops->acquire(s, layer, EXPERT_DECODE, groups[g], 2, &e), 2);
		if (!g) /* nothing is prefetched before the demands have come */
			s->ops->prefetch(s, layer + 1, predicted, 2, 1);
	}
	for (int g = 0; g < 2; g++) {
		while (s->ops->wait_ready(s, layer, groups[g], 2, &e) > 0)
			;
		s->ops->release(s, layer, groups[g], 2);
	}
	/* with a card the drive must have been idle for some layers */
	const uint64_t want = card_kind == CARD_NONE ? 2 : 0;
	for (int i = 0; i < 20 || (i < 30000 && source_cache_stats(s).prefetch_inserted < want); i++)
		usleep(1000);
	assert_int_equal(source_cache_stats(s).prefetch_inserted, want);
	close_source(s);
}

static void test_loader_refusals(void **state)
{
	(void)state;
	struct err e = {0};
	struct loader_plan plan;
	struct loader_options o = source_options(0, 0);
	o.tier_bytes[0] = full.floor_bytes - 1;
	assert_int_equal(loader_plan(&o, &plan, &e), ERR_MEMORY);
	assert_non_null(strstr(e.text, "too small"));
	/* the number that is named works: it is rounded up */
	assert_int_equal(loader_refuse_budget(0, 1340001, &e), ERR_MEMORY);
	assert_non_null(strstr(e.text, "0.0014 GB"));
	o.tier_bytes[0] = full.floor_bytes;
	assert_int_equal(loader_plan(&o, &plan, &e), 0);
	o.policy = "belady";
	assert_int_equal(loader_plan(&o, &plan, &e), ERR_USAGE);
	o.policy = "magic";
	assert_int_equal(loader_plan(&o, &plan, &e), ERR_USAGE);
}

/* Drafts behind a prompt: what the prompt's step holds ends with them. */
static void test_drafts_end_a_prompt(void **state)
{
	(void)state;
	struct loader_options o = source_options(0.5, 0);
	struct expert_source *s = open_source(&o);
	struct expert_ref refs[CONFIG_MAX_USED];
	struct err e = {0};
	s->ops->step(s, EXPERT_PREFILL, 64, 0);
	refs_from(refs, 0, 2);
	assert_int_equal(use_experts(s, (int)config.n_dense, EXPERT_PREFILL, refs, 2, &e), 0);
	assert_true(source_under_pressure(s));
	assert_true(source_prefill_slots(s) > 0);
	refs_from(refs, 0, (int)config.n_used);
	assert_int_equal(
		use_experts(s, (int)config.n_layers, EXPERT_DECODE, refs, (int)config.n_used, &e), 0);
	assert_false(source_under_pressure(s));
	assert_int_equal(source_prefill_slots(s), 0);
	close_source(s);
}

static void test_warm(void **state)
{
	(void)state;
	struct loader_options o = source_options(1, 0);
	struct expert_source *s = open_source(&o);
	struct profile_key keys[32];
	for (int i = 0; i < 32; i++)
		keys[i] = (struct profile_key){(int32_t)config.n_dense, i % (int)config.n_experts};
	loader_warm(s, keys, 32);
	int n[2] = {0};
	for (int tries = 0; tries < 6000 && n[0] < (int)MIN(32, config.n_experts); tries++) {
		usleep(10000);
		source_layer_resident(s, (int)config.n_dense, n);
	}
	assert_int_equal(n[0], MIN(32, config.n_experts));
	close_source(s);
}

static int resident_experts(struct expert_source *s)
{
	int sum = 0, n[2];
	for (uint32_t layer = config.n_dense; layer < config.n_layers; layer++) {
		source_layer_resident(s, (int)layer, n);
		sum += n[0];
	}
	return sum;
}

/* Waits for the end of the warm-up. Returns how many experts are in the first tier. */
static int wait_for_warm_end(struct expert_source *s)
{
	for (int tries = 0; !source_warm_ended(s) && tries < 6000; tries++)
		usleep(10000);
	assert_true(source_warm_ended(s));
	return resident_experts(s);
}

/* The last expert of a warm-up is demanded while the others are still being read: its reads
 * overtake theirs. */
static void test_demand_overtakes_warm(void **state)
{
	(void)state;
	struct reader_faults slow = {.latency_min_us = 100000, .latency_max_us = 100000};
	struct loader_options o = source_options(1, 0);
	o.reader =
		(struct reader_options){.custom = &reader_null_engine, .custom_options = &slow, .depth = 1};
	struct expert_source *s = open_source(&o);
	size_t n;
	struct profile_key *keys = all_experts(&n);
	const int n_keys = 2 * (int)config.n_used; /* that a warm-up has in flight at most */
	const struct profile_key last = keys[n_keys - 1];
	uint8_t *map = NEW_ARRAY(uint8_t, (size_t)o.n_layers * config.n_experts);
	struct expert_ref ref = {.id = last.expert};
	struct err e = {0};
	int in[2];
	loader_warm(s, keys, (size_t)n_keys);
	const uint8_t *seen = &map[(size_t)last.layer * config.n_experts + (size_t)last.expert];
	do {
		usleep(1000);
		loader_residency_map(s, map, NULL);
	} while (*seen != LOADER_LOADING && *seen != LOADER_IN_VRAM);
	usleep(5000); /* its reads are submitted */
	s->ops->step(s, EXPERT_DECODE, 1, 0);
	assert_int_equal(use_experts(s, last.layer, EXPERT_DECODE, &ref, 1, &e), 0);
	source_layer_resident(s, last.layer, in);
	assert_in_range(in[0], 1, n_keys / 2);
	close_source(s);
	free(map);
	free(keys);
}

/* A warm-up that finds no slot because a prompt has borrowed some goes on when they come back. */
static void test_warm_in_a_prompt(void **state)
{
	(void)state;
	size_t n;
	struct profile_key *keys = all_experts(&n);
	int resident[2];
	for (int prompt = 0; prompt < 2; prompt++) {
		struct loader_options o = source_options(0.6, 0);
		struct expert_source *s = open_source(&o);
		if (prompt)
			s->ops->step(s, EXPERT_PREFILL, 64, 0);
		loader_warm(s, keys, n);
		if (prompt) {
			const int fit = resident[0] - source_prefill_slots(s);
			for (int tries = 0; resident_experts(s) < fit && tries < 6000; tries++)
				usleep(10000);
			usleep(100000);
			assert_int_equal(resident_experts(s), fit);
			assert_false(source_warm_ended(s));
			s->ops->step(s, EXPERT_DECODE, 1, 64);
		}
		resident[prompt] = wait_for_warm_end(s);
		close_source(s);
	}
	assert_int_equal(resident[1], resident[0]);
	free(keys);
}

/* When experts of one size find no slot, those of another size may still. */
static void test_warm_of_two_sizes(void **state)
{
	(void)state;
	static const char *const parts[] = {"gate", "up", "down"};
	const int small = (int)config.n_layers - 1;
	struct gguf mixed = *file;
	mixed.tensors = NEW_ARRAY(struct gguf_tensor, file->n_tensors);
	memcpy(mixed.tensors, file->tensors, file->n_tensors * sizeof *mixed.tensors);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) { /* of the last layer: half as large */
		char name[64];
		snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", small, parts[i]);
		struct gguf_tensor *t = &mixed.tensors[gguf_find_tensor(file, name) - file->tensors];
		t->ne[1] /= 2;
		t->bytes /= 2;
	}
	size_t n;
	struct profile_key *keys = all_experts(&n), first = keys[n - config.n_experts];
	memmove(keys + 1, keys, (n - config.n_experts) * sizeof *keys);
	keys[0] = first; /* the others of its layer come last */
	struct loader_options o = source_options(0.4, 0);
	o.file = &mixed;
	struct expert_source *s = open_source(&o);
	loader_warm(s, keys, n);
	int in[2];
	wait_for_warm_end(s);
	source_layer_resident(s, small, in);
	assert_true(in[0] > 1);
	close_source(s);
	free(mixed.tensors);
	free(keys);
}

static void decode_experts(struct expert_source *s, int first, int n_tokens)
{
	struct expert_ref refs[CONFIG_MAX_USED];
	for (int t = 0; t < n_tokens; t++) {
		s->ops->step(s, EXPERT_DECODE, 1, t);
		for (uint32_t layer = config.n_dense; layer < config.n_layers; layer++) {
			struct err e = {0};
			refs_from(refs, first, (int)config.n_used);
			if (use_experts(s, (int)layer, EXPERT_DECODE, refs, (int)config.n_used, &e) < 0)
				fail_msg("%s", e.text);
		}
	}
}

/* A profile that names more than the first tier holds fills what is free and puts nobody out, not
 * even experts that are cold. It is no prefetch: the self-throttle does not see it. */
static void test_warm_evicts_nobody(void **state)
{
	(void)state;
	const int n_experts = (int)config.n_experts;
	size_t n;
	struct profile_key *keys = all_experts(&n);
	for (int with_ram = 0; with_ram < 2; with_ram++) {
		struct loader_options o = source_options(0.6, with_ram ? full.floor_bytes : 0);
		struct expert_source *s = open_source(&o);
		decode_experts(s, n_experts - (int)config.n_used, 1); /* are cold below */
		decode_experts(s, 0, 6);
		const int before = resident_experts(s);
		loader_warm(s, keys, n);
		int now = before; /* no end: on a card the warm-up waits for memory to be pinned */
		for (int quiet = 0, tries = 0; quiet < 10 && tries < 6000; tries++) {
			usleep(10000);
			int last = now;
			now = resident_experts(s);
			quiet = now == last && now > before ? quiet + 1 : 0;
		}
		assert_true(now > before);
		assert_true((size_t)now < n);
		decode_experts(s, 0, 6);
		struct cache_stats c = source_cache_stats(s);
		assert_int_equal(c.evictions + c.demotions, 0);
		assert_int_equal(c.prefetch_inserted + c.prefetch_wasted + c.prefetch_refused, 0);
		assert_true(source_prefetch_share(s) == 1);
		close_source(s);
	}
	free(keys);
}

/* Somebody who looks all the time, as a page in a browser does. */
struct looker {
	struct expert_source *source;
	uint8_t *map;
	size_t n;
	atomic_bool stop;
	atomic_uint_fast64_t looks;
	uint64_t bad;
};

static void *keep_looking(void *arg)
{
	struct looker *k = arg;
	struct expert_stats before = {0}, now;
	for (; !atomic_load(&k->stop); atomic_fetch_add(&k->looks, 1), before = now) {
		loader_residency_map(k->source, k->map, &now);
		k->bad += now.miss < before.miss || now.bytes_read < before.bytes_read;
		for (size_t i = 0; i < k->n; i++)
			k->bad += k->map[i] > LOADER_IN_VRAM ||
					  (k->map[i] == LOADER_NO_EXPERT) != (i / config.n_experts < config.n_dense);
	}
	return NULL;
}

/* The map says what the counts say, empty and after two tiers were filled; it may be looked at
 * meanwhile. */
static void test_map(void **state)
{
	(void)state;
	struct loader_options o = source_options(0.2, full.everything_bytes / 5);
	struct expert_source *s = open_source(&o);
	size_t n_map = (size_t)o.n_layers * config.n_experts;
	uint8_t *map = malloc(n_map);
	struct expert_stats stats;
	loader_residency_map(s, map, &stats);
	assert_int_equal(stats.miss, 0);
	for (size_t i = 0; i < n_map; i++)
		assert_int_equal(map[i],
			(int)(i / config.n_experts) < (int)config.n_dense ? LOADER_NO_EXPERT : LOADER_ON_DISK);
	struct looker looker = {.source = s, .map = malloc(n_map), .n = n_map};
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, keep_looking, &looker), 0);
	hinted_tokens(s, 40, true);
	while (!atomic_load(&looker.looks))
		usleep(1000);
	atomic_store(&looker.stop, true);
	pthread_join(thread, NULL);
	assert_int_equal(looker.bad, 0);
	free(looker.map);
	loader_residency_map(s, NULL, &stats);
	assert_true(stats.miss > 0 && stats.bytes_read > 0);
	int seen[LOADER_IN_VRAM + 1] = {0};
	bool same = false;
	for (int tries = 0; tries < 6000 && !same; tries++) { /* until nothing is under way */
		memset(seen, 0, sizeof seen);
		loader_residency_map(s, map, NULL);
		for (size_t i = 0; i < n_map; i++)
			seen[map[i]]++;
		same = !seen[LOADER_LOADING];
		for (int layer = (int)config.n_dense; layer < o.n_layers; layer++) {
			int n[2], in[2] = {0};
			source_layer_resident(s, layer, n);
			for (uint32_t x = 0; x < config.n_experts; x++) {
				uint8_t place = map[(size_t)layer * config.n_experts + x];
				in[0] += place == LOADER_IN_VRAM;
				in[1] += place == LOADER_IN_RAM;
			}
			same = same && in[0] == n[0] && in[1] == n[1];
		}
		usleep(10000);
	}
	assert_true(same);
	assert_true(seen[LOADER_IN_VRAM] > 0 && seen[LOADER_IN_RAM] > 0 && seen[LOADER_ON_DISK] > 0);
	free(map);
	close_source(s);
}

/* With an argument only the round on a real card. */
int main(int argc, char **argv)
{
	(void)argv;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_uring),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_null_engine),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_demand_error),
		cmocka_unit_test(test_read_error),
		cmocka_unit_test(test_truncated_while_running),
		cmocka_unit_test(test_wait_for_drafts),
		cmocka_unit_test(test_wait_for_slot),
		cmocka_unit_test(test_slow_disk_and_cancel),
		cmocka_unit_test(test_close_in_flight),
		cmocka_unit_test(test_throttle),
		cmocka_unit_test(test_prefetch_between_groups),
		cmocka_unit_test(test_loader_refusals),
		cmocka_unit_test(test_drafts_end_a_prompt),
		cmocka_unit_test(test_warm),
		cmocka_unit_test(test_demand_overtakes_warm),
		cmocka_unit_test(test_warm_in_a_prompt),
		cmocka_unit_test(test_warm_of_two_sizes),
		cmocka_unit_test(test_warm_evicts_nobody),
		cmocka_unit_test(test_map),
	};
	int failed = 0;
	if (argc == 1) {
		failed = cmocka_run_group_tests_name("direct", tests, source_setup, source_teardown);
		card_kind = CARD_EMULATED;
		failed +=
			cmocka_run_group_tests_name("emulated card", tests, source_setup, source_teardown);
	}
	card_kind = CARD_REAL;
	return card_answers()
			   ? failed + cmocka_run_group_tests_name("card", tests, source_setup, source_teardown)
			   : failed;
}
