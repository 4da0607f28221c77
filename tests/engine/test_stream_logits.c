/* SPDX-License-Identifier: MIT */
/*
 * The promise that numbers never depend on storage: the hash of the logits of every step is the
 * same whether experts are mapped or streamed, for every budget, tier, policy, engine, lookahead,
 * chunk size, place of the latents, and with a disk that delays and reorders. Three rounds: on the
 * CPU; on the CPU with an emulated card between disk and memory (tests/support/copier_null.h); on
 * CUDA, when a device answers.
 */
#include "cache/trace/profile_store.h"
#include "src/base/num.h"
#include "src/engine/generate.h"
#include "tests/support/engine_help.h"
#include "tests/stream/loader_help.h"
#include "tests/support/reader_null.h"
#include "tests/support/slow_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#ifdef __SANITIZE_THREAD__ /* without OpenMP, too */
#define N_PROMPT 40
#else
#define N_PROMPT 150 /* a prefill chunk, and more than index_topk */
#endif
#define LONG_RUN   IF_SLOW_BUILD(8, 128)
#define N_NEW      IF_SLOW_BUILD(2, 12)
#define N_SETTINGS IF_SLOW_BUILD(8, 24)
#define N_SEEDS    IF_SLOW_BUILD(2, 21)
#define CARD_SEEDS IF_SLOW_BUILD(2, 8)

#define FEW_ROWS 64 /* cuda_ops.decode_rows */

static int32_t prompt[N_PROMPT];
static uint64_t card_seed;

static const char *backend_name = "cpu"; /* of this round */
static bool with_card;

static struct engine_options base_options(void)
{
	return (struct engine_options){.model_path = MODEL, .backend = backend_name, .context = 512};
}

static uint64_t stream_logits_run(
	const struct engine_options *o, uint32_t n_new, struct expert_stats *stats)
{
	struct err e = {0};
	struct engine_options mine = *o;
	if (with_card &&
		o->cache_bytes) { /* late copies in an order of their own; small staging buffers */
		struct copier_faults f = {
			.seed = ++card_seed, .readable = true, .latency_max_us = card_seed % 3 ? 0 : 30};
		assert_int_equal(copier_null_open(&f, &mine.copier, &e), 0);
		if (!mine.reader.slice_bytes)
			mine.reader.slice_bytes = 32768;
	}
	struct engine *g = engine_of(&mine);
	struct session *s = session_of(g, false);
	struct generate_options go = {.max_new = n_new, .ignore_stop = true};
	struct generate_result r;
	if (generate(s, prompt, N_PROMPT, &go, &r, &e))
		fail_msg("%s", e.text);
	assert_int_equal(r.new_tokens, n_new);
	if (stats)
		*stats = engine_expert_stats(g);
	session_free(s);
	assert_int_equal(engine_close(g, &e), 0);
	if (mine.copier)
		mine.copier->ops->close(mine.copier);
	return r.logits_hash;
}

/* Of experts that are mapped: computed once for each length. */
static uint64_t mapped_hash(uint32_t n_new)
{
	static uint64_t known[LONG_RUN + 16];
	static const char *known_of;
	if (known_of != backend_name)
		memset(known, 0, sizeof known);
	known_of = backend_name;
	if (!known[n_new]) {
		const struct engine_options o = base_options();
		known[n_new] = stream_logits_run(&o, n_new, NULL);
	}
	return known[n_new];
}

static int stream_logits_setup(void **state)
{
	struct rng r = {77};
	for (int i = 0; i < N_PROMPT; i++)
		prompt[i] = (int32_t)rng_below(&r, 8000);
	return source_setup(state);
}

/* Greedy tokens (LONG_RUN): mapped, and streamed at the floor, in the middle and with
 * everything cached. */
static void test_long_runs(void **state)
{
	(void)state;
	struct engine_options o = base_options();
	const uint64_t want = mapped_hash(LONG_RUN);
	static const double shares[] = {0, 0.4, 1};
	for (size_t i = 0; i < ARRAY_LEN(shares); i++) {
		struct expert_stats stats;
		o.cache_bytes = budget(shares[i]);
		o.lookahead = (int)i;
		o.ram_bytes = i == 1 ? full.floor_bytes : 0;
		assert_true(stream_logits_run(&o, LONG_RUN, &stats) == want);
		print_message(
			"share %.1f: %llu hits, %llu in RAM, %llu read, %llu prefetches useful, %llu wasted\n",
			shares[i], (unsigned long long)stats.hit_vram, (unsigned long long)stats.hit_ram,
			(unsigned long long)stats.miss, (unsigned long long)stats.prefetch_useful,
			(unsigned long long)stats.prefetch_wasted);
		assert_true(stats.miss > 0 && stats.bytes_read > 0);
		assert_true(shares[i] > 0 || stats.hit_vram < stats.miss * 20);
	}
}

static void test_every_setting(void **state)
{
	(void)state;
	struct engine_options o = base_options();
	const uint32_t n_new = N_NEW;
	const uint64_t want = mapped_hash(n_new);
	uint64_t want_single = want;
	/* on a card few rows go another way, with bits of its own (kernels/backend.h) */
	if (strcmp(backend_name, "cpu")) {
		o.chunk = 1;
		want_single = stream_logits_run(&o, n_new, NULL);
	}
	static const char *const policies[] = {"lru", "lfu", "sieve"};
	static const enum reader_engine engines[] = {READER_URING, READER_THREADS};
	static const uint32_t chunks[] = {512, FEW_ROWS / 2, 2 * FEW_ROWS + 1, 1};
	bool no_ring = false; /* on this machine */
	size_t n_settings = with_card ? N_SETTINGS / 2 : N_SETTINGS;
	for (size_t i = 0; i < n_settings;
		 i++) { /* settings that differ from one to the next in nearly everything */
		o = base_options();
		o.cache_bytes = budget((double)(i % 5) / 4);
		o.ram_bytes = i % 3 ? 0 : budget(0.3);
		o.policy = policies[i % 3];
		o.lookahead = (int)(i % 4);
		o.chunk = chunks[i / 6 % 4];
		o.kv_ram = i % 4 == 1 ? ENGINE_KV_RAM_ON : ENGINE_KV_RAM_OFF;
		o.reader.engine = engines[i % 2];
		o.reader.buffered = i / 2 % 2;
		struct err e = {0};
		struct engine *g;
		if (!i) { /* of engines[0] */
			no_ring = engine_open(&o, &g, &e);
			engine_close(g, NULL);
		}
		if (no_ring && o.reader.engine == READER_URING)
			o.reader.engine = READER_AUTO;
		if (stream_logits_run(&o, n_new, NULL) != (o.chunk <= FEW_ROWS ? want_single : want))
			fail_msg("setting %zu gives other logits", i);
	}
}

/* Latents in host memory: the same logits in long answers, where attention reads a selection. */
static void test_latents_on_host(void **state)
{
	(void)state;
	struct engine_options o = base_options();
	const uint64_t want = mapped_hash(LONG_RUN);
	o.kv_ram = ENGINE_KV_RAM_ON;
	struct engine *g = engine_of(&o);
	assert_true(engine_sizes(g).kv_host_bytes > engine_sizes(g).kv_bytes / 2);
	assert_int_equal(engine_close(g, NULL), 0);
	assert_true(stream_logits_run(&o, LONG_RUN, NULL) == want);
	o.cache_bytes = budget(0.4);
	assert_true(stream_logits_run(&o, LONG_RUN, NULL) == want);
}

/* Delays and reorderings from many seeds: the first tokens after a prompt. */
static void test_seeds(void **state)
{
	(void)state;
	struct engine_options o = base_options();
	const uint32_t n_new = 2;
	const uint64_t want = mapped_hash(n_new);
	for (uint64_t seed = 1; seed <= (with_card ? CARD_SEEDS : N_SEEDS); seed++) {
		struct reader_faults f = {.seed = seed,
			.latency_min_us = 1,
			.latency_max_us = 400,
			.short_per_1024 = 100,
			.eagain_per_1024 = 100,
			.poison = true,
			.no_sleep = true};
		o.reader = (struct reader_options){
			.custom = &reader_null_engine, .custom_options = &f, .slice_bytes = 4096};
		o.cache_bytes = budget((double)(seed % 7) / 8);
		o.ram_bytes = seed % 2 ? full.floor_bytes : 0;
		o.lookahead = (int)(seed % 3);
		if (stream_logits_run(&o, n_new, NULL) != want)
			fail_msg("seed %llu gives other logits", (unsigned long long)seed);
	}
}

/* Recording, profiles and seeding change nothing but the speed. */
static void test_trace_and_warm(void **state)
{
	(void)state;
	char trace[] = "build/test_stream_trace_XXXXXX", warm[] = "build/test_stream_warm_XXXXXX";
	char partial[sizeof trace + 8];
	close(mkstemp(trace));
	close(mkstemp(warm));
	unlink(warm); /* the first run makes it */
	struct engine_options o = base_options();
	const uint64_t want = mapped_hash(16);
	o.cache_bytes = budget(0.5);
	o.lookahead = 1;
	o.trace = trace;
	o.warm = warm;
	struct expert_stats cold, seeded;
	assert_true(stream_logits_run(&o, 16, &cold) == want);
	assert_true(stream_logits_run(&o, 16, &seeded) == want);
	struct trace t = {0};
	struct err e = {0};
	if (trace_open(trace, &t, &e))
		fail_msg("%s", e.text);
	assert_false(t.ends_early);
	assert_true(t.n_accesses > 0);
	trace_fini(&t);
	assert_true(access(warm, R_OK) == 0);
	/* a trace seeds as well, and is still one behind that */
	o.trace = NULL;
	o.warm = trace;
	assert_true(stream_logits_run(&o, 16, &seeded) == want);
	assert_int_equal(trace_open(trace, &t, &e), 0);
	trace_fini(&t);
	o.warm = "/nonexistent/profile";
	struct engine *g;
	o.trace = trace;
	assert_int_equal(engine_open(&o, &g, &e), ERR_INPUT); /* not first when the run is over */
	assert_int_equal(trace_open(trace, &t, &e), 0);
	assert_true(t.n_accesses > 0); /* a start that fails leaves the older trace */
	trace_fini(&t);
	snprintf(partial, sizeof partial, "%s.partial", trace);
	assert_int_equal(access(partial, F_OK), -1);
	unlink(trace);
	unlink(warm);
}

static struct engine_cache engine_cache_of(const struct engine *g)
{
	struct engine_cache k;
	engine_cache_snapshot(g, &k, NULL);
	return k;
}

/* The snapshot names the policy after the caller's options are gone. */
static void test_policy_name(void **state)
{
	(void)state;
	char policy[] = "sieve";
	struct engine_options o = base_options();
	o.cache_bytes = budget(0.5);
	o.policy = policy;
	struct engine *g = engine_of(&o);
	memset(policy, 'x', strlen(policy));
	assert_string_equal(engine_cache_of(g).policy, "sieve");
	assert_int_equal(engine_close(g, NULL), 0);
}

/* Waits until so many experts are in the first tier. */
static void wait_for_residents(struct engine *g, unsigned wanted)
{
	struct engine_cache k = engine_cache_of(g);
	const size_t n = (size_t)k.n_layers * k.n_experts;
	uint8_t *map = malloc(n);
	unsigned found = 0;
	for (int i = 0; i < 2000 && found < wanted; i++) {
		found = 0;
		engine_cache_snapshot(g, &k, map);
		for (size_t j = 0; j < n; j++)
			found += map[j] == ENGINE_IN_VRAM;
		if (found < wanted)
			usleep(5000);
	}
	free(map);
	if (found < wanted)
		fail_msg("%u experts are resident, expected %u", found, wanted);
}

/* A second start has what the first one used before anybody asks, and computes the same. */
static void test_kept_profile(void **state)
{
	(void)state;
	struct err e = {0};
	char folder[] = "build/test_stream_profiles_XXXXXX", path[80];
	assert_non_null(mkdtemp(folder));
	struct engine_options o = base_options();
	const uint64_t want = mapped_hash(4);
	o.cache_bytes = full.everything_bytes;
	o.lookahead = 0;
	o.profile_folder = folder;
	struct expert_stats cold;
	assert_true(stream_logits_run(&o, 4, &cold) == want);
	assert_true(cold.miss > 0);

	struct engine_options mine = o; /* as stream_logits_run does */
	struct copier_faults f = {.seed = 1, .readable = true};
	if (with_card) {
		assert_int_equal(copier_null_open(&f, &mine.copier, &e), 0);
		mine.reader.slice_bytes = 32768;
	}
	struct engine *g = engine_of(&mine);
	snprintf(
		path, sizeof path, "%s/%016llx.profile", folder, (unsigned long long)engine_fingerprint(g));
	assert_int_equal(access(path, R_OK), 0);
	struct profile p;
	struct profile_key *keys;
	size_t n_keys;
	const struct engine_cache k = engine_cache_of(g);
	assert_int_equal(profile_init(&p, engine_fingerprint(g), k.n_layers, k.n_experts), 0);
	assert_int_equal(profile_store_read(folder, &p, &e), 0);
	profile_order(&p, &keys, &n_keys);
	assert_true(n_keys > 0 && n_keys <= cold.miss);
	profile_fini(&p);
	free(keys);
	wait_for_residents(g, (unsigned)n_keys);
	struct session *s = session_of(g, false);
	struct generate_options go = {.max_new = 4, .ignore_stop = true};
	struct generate_result r;
	if (generate(s, prompt, N_PROMPT, &go, &r, &e))
		fail_msg("%s", e.text);
	assert_true(r.logits_hash == want);
	assert_int_equal(engine_expert_stats(g).miss, 0);
	session_free(s);
	assert_int_equal(engine_close(g, &e), 0);
	if (mine.copier)
		mine.copier->ops->close(mine.copier);

	/* a folder that cannot be: the run is as without */
	o.profile_folder = "/proc/none";
	assert_true(stream_logits_run(&o, 4, NULL) == want);
	unlink(path);
	snprintf(path, sizeof path, "%s/lock", folder);
	unlink(path);
	assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
}

/* A copy that fails in the middle of a run ends it with a sentence. */
static void test_copy_fails(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine_options o = base_options();
	struct copier_faults f = {.readable = true, .fail_copy = 900, .fail_all = true};
	struct generate_options go = {.max_new = 64, .ignore_stop = true};
	struct generate_result r;
	o.cache_bytes = budget(0.1);
	o.ram_bytes = full.floor_bytes;
	o.reader.slice_bytes = 32768;
	assert_int_equal(copier_null_open(&f, &o.copier, &e), 0);
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, false);
	assert_int_equal(generate(s, prompt, N_PROMPT, &go, &r, &e), ERR_RUN);
	assert_non_null(strstr(e.text, "expert"));
	session_free(s);
	engine_close(g, NULL);
	o.copier->ops->close(o.copier);
}

/* With an argument only the round on CUDA. */
int main(int argc, char **argv)
{
	(void)argv;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_long_runs),
		cmocka_unit_test(test_every_setting),
		cmocka_unit_test(test_latents_on_host),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_trace_and_warm),
		cmocka_unit_test(test_policy_name),
		cmocka_unit_test(test_kept_profile),
	};
	const struct CMUnitTest card_tests[] = {
		cmocka_unit_test(test_every_setting),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_trace_and_warm),
		cmocka_unit_test(test_kept_profile),
		cmocka_unit_test(test_copy_fails),
	};
	int failed = 0;
	if (argc == 1) {
		failed = cmocka_run_group_tests_name("cpu", tests, stream_logits_setup, source_teardown);
		with_card = true;
		failed += cmocka_run_group_tests_name(
			"emulated card", card_tests, stream_logits_setup, source_teardown);
		with_card = false;
	}
	backend_name = "cuda";
	return card_answers() ? failed + cmocka_run_group_tests_name(
										 "cuda", tests, stream_logits_setup, source_teardown)
						  : failed;
}
