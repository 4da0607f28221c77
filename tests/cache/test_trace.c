/* SPDX-License-Identifier: MIT */
/* Traces: what is recorded is read back; what is damaged, cut or foreign is refused with a
 * sentence. */
#include "cache/trace/trace.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

static const uint64_t expert_bytes[5] = {0, 100, 100, 300, 77};
static const struct trace_model model = {.fingerprint = 0x1234567890abcdef,
	.n_layers = 5,
	.n_experts = 40,
	.top_k = 4,
	.name = "little",
	.expert_bytes = expert_bytes};

static char path[] = "/tmp/test_trace_XXXXXX";

static int trace_setup(void **state)
{
	(void)state;
	int fd = mkstemp(path);
	return fd < 0 ? -1 : close(fd);
}

static int trace_teardown(void **state)
{
	(void)state;
	return unlink(path);
}

static uint8_t *slurp(const char *file, size_t *n)
{
	FILE *f = fopen(file, "rb");
	assert_non_null(f);
	fseek(f, 0, SEEK_END);
	*n = (size_t)ftell(f);
	rewind(f);
	uint8_t *p = mem_new(*n + 1, 1);
	assert_int_equal(fread(p, 1, *n, f), *n);
	fclose(f);
	return p;
}

/* n distinct experts */
static void draw(struct rng *r, int32_t *ids, int n)
{
	for (int i = 0; i < n;) {
		ids[i] = (int32_t)rng_below(r, model.n_experts);
		int same = 0;
		for (int j = 0; j < i; j++)
			same += ids[j] == ids[i];
		i += !same;
	}
}

/* Random steps; the same seed gives the same records. */
static void record(struct trace_writer *w, uint64_t seed, int n_steps)
{
	struct rng r = {seed};
	int32_t ids[40];
	uint8_t tiers[40];
	for (int s = 0; s < n_steps; s++) {
		enum cache_use use = rng_below(&r, 5) ? CACHE_DECODE : CACHE_PREFILL;
		trace_write_step(w, use, 1 + (int)rng_below(&r, 3), s * 3);
		for (int l = 1; l < 5; l++) {
			int n = use == CACHE_PREFILL ? 20 : 4;
			draw(&r, ids, n);
			for (int i = 0; i < n; i++)
				tiers[i] = (uint8_t)rng_below(&r, TRACE_N_TIERS);
			trace_write_access(w, use, l, ids, l == 2 ? NULL : tiers, n);
			if (l < 4) {
				draw(&r, ids, 6);
				trace_write_prediction(w, l + 1, 1, ids, 6);
			}
			trace_write_wait(w, l, rng_u64(&r));
		}
	}
}

static void write_file(uint64_t seed, int n_steps)
{
	struct err e = {0};
	struct trace_writer *w = trace_writer_open(path, false, &model, &e);
	if (!w)
		fail_msg("%s", e.text);
	record(w, seed, n_steps);
	assert_int_equal(trace_writer_close(w, &e), 0);
}

/* Does the trace hold exactly the first n steps of record(seed)? */
static void check_content(const struct trace *t, uint64_t seed, int n_steps)
{
	struct rng r = {seed};
	int32_t ids[40];
	size_t at = 0;
	uint64_t tokens = 0;
	for (int s = 0; s < n_steps; s++) {
		enum cache_use use = rng_below(&r, 5) ? CACHE_DECODE : CACHE_PREFILL;
		uint32_t rows = 1 + rng_below(&r, 3);
		assert_true(at < t->n_events);
		const struct trace_event *ev = &t->events[at++];
		assert_int_equal(ev->kind, TRACE_STEP);
		assert_int_equal(ev->use, use);
		assert_int_equal(ev->n, rows);
		assert_int_equal(ev->value, s * 3);
		tokens += use == CACHE_DECODE ? rows : 0;
		for (int l = 1; l < 5; l++) {
			int n = use == CACHE_PREFILL ? 20 : 4;
			draw(&r, ids, n);
			ev = &t->events[at++];
			assert_int_equal(ev->kind, TRACE_ACCESS);
			assert_int_equal(ev->layer, l);
			assert_int_equal(ev->use, use);
			assert_int_equal(ev->n, n);
			for (int i = 0; i < n; i++) {
				uint32_t tier = rng_below(&r, TRACE_N_TIERS);
				assert_int_equal(t->ids[ev->value + i], ids[i]);
				assert_int_equal(t->tiers[ev->value + i], l == 2 ? TRACE_UNKNOWN : tier);
			}
			if (l < 4) {
				draw(&r, ids, 6);
				ev = &t->events[at++];
				assert_int_equal(ev->kind, TRACE_PREDICTION);
				assert_int_equal(ev->layer, l + 1);
				assert_int_equal(ev->distance, 1);
				for (int i = 0; i < 6; i++)
					assert_int_equal(t->ids[ev->value + i], ids[i]);
			}
			ev = &t->events[at++];
			assert_int_equal(ev->kind, TRACE_WAIT);
			assert_int_equal(ev->layer, l);
			assert_true(ev->value == rng_u64(&r));
		}
	}
	assert_int_equal(at, t->n_events);
	assert_int_equal(t->n_steps, n_steps);
	assert_int_equal(t->n_tokens, tokens);
}

static void test_round_trip(void **state)
{
	(void)state;
	const int sizes[] = {0, 1, 7, 900}; /* 900 steps are many frames */
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		write_file(i + 1, sizes[i]);
		struct trace t = {0};
		struct err e = {0};
		if (trace_open(path, &t, &e))
			fail_msg("%s", e.text);
		check_content(&t, i + 1, sizes[i]);
		assert_false(t.ends_early);
		assert_true(t.bytes_known);
		assert_false(t.synthetic);
		assert_int_equal(t.model.n_layers, 5);
		assert_int_equal(t.model.n_experts, 40);
		assert_int_equal(t.model.top_k, 4);
		assert_true(t.model.fingerprint == model.fingerprint);
		assert_string_equal(t.model.name, "little");
		assert_memory_equal(t.expert_bytes, expert_bytes, sizeof expert_bytes);
		trace_fini(&t);
	}
}

/* Every prefix of a file: whole steps up to some point and a note, or one sentence; never anything
 * else. */
static void test_cut_anywhere(void **state)
{
	(void)state;
	write_file(3, 400);
	size_t n;
	uint8_t *data = slurp(path, &n);
	size_t most = 0, cut_early = 0, refused = 0;
	for (size_t cut = 0; cut < n; cut += cut < 300 || n - cut < 300 ? 1 : 37) {
		uint8_t *part =
			mem_new(cut + 1, 1); /* exact size, so that a read past the end is seen by asan */
		memcpy(part, data, cut);
		struct trace t = {0};
		struct err e = {0};
		if (trace_parse(part, cut, "cut", &t, &e)) {
			refused++;
			assert_true(!strncmp(e.text, "cut: ", 5));
			assert_int_equal(t.n_events, 0);
		} else {
			cut_early++;
			assert_true(t.ends_early);
			assert_true(strstr(t.note, "ends early") != NULL);
			assert_true(t.n_events >= most); /* a longer file never gives less */
			most = t.n_events;
		}
		trace_fini(&t);
		free(part);
	}
	assert_true(most > 1000 && cut_early > 100 && refused > 16);
	free(data);
}

/* A process that is killed leaves what was written: whole frames. */
static void test_killed_run(void **state)
{
	(void)state;
	struct err e = {0};
	struct trace_writer *w = trace_writer_open(path, false, &model, &e);
	record(w, 9, 2000);
	size_t n;
	char partial[PATH_MAX];
	snprintf(partial, sizeof partial, "%s.partial", path);
	uint8_t *data = slurp(partial, &n); /* as it stands on disk now */
	struct trace t = {0};
	if (trace_parse(data, n, "killed", &t, &e))
		fail_msg("%s", e.text);
	assert_true(t.ends_early && t.n_steps > 100);
	/* the last step may not be whole */
	while (t.events[--t.n_events].kind != TRACE_STEP)
		;
	t.n_tokens -= t.events[t.n_events].use == CACHE_DECODE ? t.events[t.n_events].n : 0;
	check_content(&t, 9, (int)--t.n_steps);
	trace_fini(&t);
	free(data);
	assert_int_equal(trace_writer_close(w, &e), 0);
	assert_int_equal(access(partial, F_OK), -1);
}

/* Until it is complete a recording leaves the older trace as it is; at both names only traces are
 * replaced, with force any file. */
static void test_older_files(void **state)
{
	(void)state;
	struct err e = {0};
	char partial[PATH_MAX];
	size_t n_before, n_now;
	snprintf(partial, sizeof partial, "%s.partial", path);
	struct trace_writer *w = trace_writer_open(path, false, &model, &e);
	record(w, 3, 40);
	assert_int_equal(trace_writer_close(w, &e), 0);
	uint8_t *before = slurp(path, &n_before);
	w = trace_writer_open(path, false, &model, &e);
	record(w, 4, 400);
	uint8_t *now = slurp(path, &n_now);
	assert_true(n_now == n_before && !memcmp(now, before, n_now));
	free(now);
	assert_int_equal(trace_writer_close(w, &e), 0);
	now = slurp(path, &n_now);
	assert_true(n_now > n_before);
	free(now);
	free(before);

	FILE *f = fopen(partial, "w");
	fputs("my notes", f);
	fclose(f);
	assert_null(trace_writer_open(path, false, &model, &e));
	assert_non_null(strstr(e.text, ".partial: exists and is not a trace"));
	w = trace_writer_open(path, true, &model, &e);
	assert_non_null(w);
	assert_int_equal(trace_writer_close(w, &e), 0);
	assert_int_equal(access(partial, F_OK), -1);

	/* a second writer of the same trace is refused, and the first one's trace is whole */
	w = trace_writer_open(path, false, &model, &e);
	record(w, 6, 4000);
	assert_null(trace_writer_open(path, true, &model, &e));
	assert_non_null(strstr(e.text, "another process is writing"));
	assert_int_equal(trace_writer_close(w, &e), 0);
	struct trace t = {0};
	assert_int_equal(trace_open(path, &t, &e), 0);
	assert_false(t.ends_early);
	trace_fini(&t);

	/* another file appears while the trace is written: both stay, and the error names the trace */
	w = trace_writer_open(path, false, &model, &e);
	record(w, 5, 40);
	f = fopen(path, "w");
	fputs("my notes", f);
	fclose(f);
	assert_int_equal(trace_writer_close(w, &e), ERR_INPUT);
	assert_non_null(strstr(e.hint, partial));
	uint8_t *notes = slurp(path, &n_now);
	assert_true(n_now == 8 && !memcmp(notes, "my notes", 8));
	free(notes);
	assert_int_equal(trace_open(partial, &t, &e), 0);
	trace_fini(&t);
	unlink(path);
	unlink(partial);
}

/* Any flipped bit that changes the content is noticed: an error, or at least an end that comes too
 * early. */
static void test_flipped_bits(void **state)
{
	(void)state;
	write_file(5, 60);
	size_t n;
	uint8_t *data = slurp(path, &n);
	size_t errors = 0, early = 0, harmless = 0;
	for (size_t i = 0; i < n; i++) {
		data[i] ^= (uint8_t)(1 << (i % 8));
		struct trace t = {0};
		struct err e = {0};
		if (trace_parse(data, n, "flip", &t, &e)) {
			errors++;
			assert_true(e.text[0]);
		} else if (t.ends_early) {
			early++;
		} else { /* lz4 can say the same in two ways: then nothing has changed */
			harmless++;
			check_content(&t, 5, 60);
			assert_memory_equal(t.expert_bytes, expert_bytes, sizeof expert_bytes);
			assert_true(t.model.fingerprint == model.fingerprint && !strcmp(t.name, "little"));
		}
		trace_fini(&t);
		data[i] ^= (uint8_t)(1 << (i % 8));
	}
	print_message(
		"%zu flips: %zu refused, %zu end early, %zu change nothing\n", n, errors, early, harmless);
	assert_true(errors > 9 * n / 10 && harmless < n / 100);
	free(data);
}

static void expect(const void *data, size_t n, const char *words)
{
	struct trace t = {0};
	struct err e = {0};
	assert_int_equal(trace_parse(data, n, "x", &t, &e), ERR_INPUT);
	if (!strstr(e.text, words))
		fail_msg("'%s' does not say '%s'", e.text, words);
}

static void test_foreign(void **state)
{
	(void)state;
	uint8_t head[64] = "GLMTRACE";
	struct trace t = {0};
	struct err e = {0};
	store_u32(head + 8, TRACE_VERSION - 1);
	expect("", 0, "not a trace");
	expect("hello world, I am text", 22, "not a trace");
	expect(head, 10, "16 bytes");
	expect(head, 16, "version 1.0 (this program reads version 2.0)");
	store_u32(head + 8, TRACE_VERSION);
	expect(head, 16, "inside its header");
	expect(head, 64, "damaged at byte 16");
	assert_int_equal(trace_open("/nonexistent/trace", &t, &e), ERR_INPUT);
	assert_true(strstr(e.text, "/nonexistent/trace") != NULL);
	assert_true(trace_open("/tmp", &t, &e) < 0);
	assert_int_equal(trace_open("/dev/zero", &t, &e), ERR_INPUT);
	assert_true(strstr(e.text, "not a trace") != NULL);
	/* GLTR1 with impossible numbers */
	uint8_t g[24 + 64] = "GLTR1\0\0";
	store_u32(g + 8, 2), store_u32(g + 12, 2), store_u32(g + 16, 4), store_u32(g + 20, 3);
	expect(g, sizeof g, "top 4 of 3");
	store_u32(g + 20, 8);
	expect(g, 20, "24 bytes");
	expect(g, 24 + 32, "twice"); /* expert 0 four times */
	for (int i = 0; i < 32; i++)
		g[24 + i] = (uint8_t)(i % 4 + 5);
	expect(g, 24 + 32, "names expert 8");
}

static void test_gltr1(void **state)
{
	(void)state;
	struct trace t = {0};
	struct err e = {0};
	if (trace_open("tests/data/trace_small.gltr1", &t, &e))
		fail_msg("%s", e.text);
	assert_true(t.synthetic && !t.ends_early && !t.bytes_known);
	assert_int_equal(t.n_tokens, 160);
	assert_int_equal(t.model.n_layers, 12);
	assert_int_equal(t.n_accesses, 160 * 12 * 8);
	assert_int_equal(t.n_events, 160 * (1 + 2 * 12));
	size_t n;
	uint8_t *data = slurp("tests/data/trace_small.gltr1", &n);
	/* layer 3 of token 7 */
	const uint8_t *p = data + 24 + (7 * 12 + 3) * 16;
	const struct trace_event *ev = &t.events[7 * 25 + 1 + 2 * 3];
	assert_int_equal(ev->kind, TRACE_PREDICTION);
	assert_int_equal(ev[1].kind, TRACE_ACCESS);
	assert_int_equal(ev[1].layer, 3);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(t.ids[ev[1].value + (size_t)i], p[i]);
		assert_int_equal(t.ids[ev->value + (size_t)i], p[8 + i]);
	}
	trace_fini(&t);
	/* cut off after 10 tokens and a bit */
	if (trace_parse(data, 24 + 10 * 12 * 16 + 5, "cut", &t, &e))
		fail_msg("%s", e.text);
	assert_true(t.ends_early);
	assert_int_equal(t.n_tokens, 10);
	trace_fini(&t);
	uint8_t *longer = mem_new(n + 1, 1);
	memcpy(longer, data, n);
	expect(longer, n + 1, "expected 30744 for 160 tokens");
	free(longer);
	free(data);
}

static void test_other_model(void **state)
{
	(void)state;
	write_file(1, 3);
	struct trace t = {0};
	struct err e = {0};
	assert_int_equal(trace_open(path, &t, &e), 0);
	assert_int_equal(trace_check_model(&t, path, &model, &e), 0);
	struct trace_model other = model;
	other.fingerprint = 0;
	assert_int_equal(trace_check_model(&t, path, &other, &e), 0);
	other.fingerprint = 5;
	assert_int_equal(trace_check_model(&t, path, &other, &e), ERR_INPUT);
	assert_true(strstr(e.text, "another model") != NULL);
	other = model;
	other.n_experts = 41;
	assert_int_equal(trace_check_model(&t, path, &other, &e), ERR_INPUT);
	uint64_t sizes[5] = {0, 100, 100, 301, 77};
	other = model;
	other.expert_bytes = sizes;
	assert_int_equal(trace_check_model(&t, path, &other, &e), ERR_INPUT);
	assert_true(strstr(e.text, "layer 3") != NULL);
	trace_fini(&t);
}

static void test_write_errors(void **state)
{
	(void)state;
	struct err e = {0};
	assert_null(trace_writer_open("/nonexistent/trace", false, &model, &e));
	assert_true(strstr(e.text, "/nonexistent/trace") != NULL);
	/* a file that is no trace is not written over */
	char other[] = "build/test_trace_other_XXXXXX", text[32] = "";
	int fd = mkstemp(other);
	assert_int_equal(write(fd, "GGUF and more", 13), 13);
	assert_null(trace_writer_open(other, false, &model, &e));
	assert_non_null(strstr(e.text, "is not a trace"));
	assert_int_equal(pread(fd, text, sizeof text, 0), 13);
	assert_string_equal(text, "GGUF and more");
	close(fd);
	unlink(other);
	if (access("/dev/full", W_OK))
		skip();
	e = (struct err){0};
	assert_null(trace_writer_open("/dev/full", false, &model, &e)); /* the header already fails */
	assert_true(strstr(e.text, "/dev/full") != NULL);
	assert_int_equal(trace_writer_close(NULL, &e), 0);
}

/* /dev/fd/N, as a shell names >(COMMAND): a link that leads to no name. */
static void test_pipe(void **state)
{
	(void)state;
	struct err e = {0};
	int ends[2];
	char name[32], magic[8];
	assert_int_equal(pipe(ends), 0);
	snprintf(name, sizeof name, "/dev/fd/%d", ends[1]);
	if (access(name, F_OK))
		skip();
	struct trace_writer *w = trace_writer_open(name, false, &model, &e);
	if (!w)
		fail_msg("%s", e.text);
	record(w, 1, 1);
	assert_int_equal(trace_writer_close(w, &e), 0);
	assert_int_equal(read(ends[0], magic, sizeof magic), sizeof magic);
	assert_memory_equal(magic, "GLMTRACE", sizeof magic);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	if (!HAVE_LZ4) {
		puts("built without lz4");
		return 77;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_cut_anywhere),
		cmocka_unit_test(test_killed_run),
		cmocka_unit_test(test_older_files),
		cmocka_unit_test(test_flipped_bits),
		cmocka_unit_test(test_foreign),
		cmocka_unit_test(test_gltr1),
		cmocka_unit_test(test_other_model),
		cmocka_unit_test(test_write_errors),
		cmocka_unit_test(test_pipe),
	};
	return cmocka_run_group_tests(tests, trace_setup, trace_teardown);
}
