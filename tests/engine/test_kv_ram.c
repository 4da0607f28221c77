/* SPDX-License-Identifier: MIT */
/*
 * Latents in host memory change no bit: prompts in chunks, long answers, drafts, several sessions
 * in a pool, copies, images, timelines that nothing computed. On the CPU, and on a card when one
 * answers. test_stream_logits has it beside the tiers, test_session_file has files.
 */
#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/batch.h"
#include "src/engine/session/session_fill.h"
#include "src/engine/session/session_image.h"
#include "src/engine/session/session_internal.h"
#include "tests/support/engine_help.h"
#include "tests/stream/loader_help.h"
#include "tests/support/slow_build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define POCKET   "tools/pocket/pocket.gguf"
#define N_TOKENS 210 /* more than index_topk 128: attention reads a selection */
#define N_FILL   400
#define N_AFTER  24

static const char *backend_name = "cpu"; /* of this round */
static int32_t text[N_FILL + N_AFTER];

static bool kv_f8; /* of the engines to come */

static struct engine *open_with(enum engine_kv_ram kv_ram, uint32_t chunk)
{
	const struct engine_options o = {.model_path = POCKET,
		.backend = backend_name,
		.context = 512,
		.sessions = 3,
		.chunk = chunk,
		.kv_f8 = kv_f8,
		.kv_ram = kv_ram};
	return engine_of(&o);
}

static void succeeds(int rc, const struct err *e)
{
	if (rc)
		fail_msg("%s", e->text);
}

/* Hashes of what the functions of a timeline lead to, with the latents in one place. */
struct timeline_hashes {
	uint64_t prompt, drafts, beside, copied, restored, filled;
};

static uint64_t extended(struct session *s)
{
	struct err e = {0};
	for (int i = 0; i < 4; i++)
		succeeds(session_extend(s, text + i, 1, NULL, NULL, &e), &e);
	return logits_hash(s);
}

static struct timeline_hashes hashes_of(enum engine_kv_ram kv_ram, uint32_t chunk)
{
	struct err e = {0};
	struct engine *g = open_with(kv_ram, chunk);
	const struct engine_sizes sizes = engine_sizes(g);
	assert_true((kv_ram == ENGINE_KV_RAM_ON) == (sizes.kv_host_bytes > 0));
	struct session *s = session_of(g, true), *other = session_of(g, true),
				   *third = session_of(g, false);
	struct timeline_hashes p = {0};
	succeeds(session_sync(s, text, N_TOKENS, NULL, NULL, &e), &e);
	p.prompt = logits_hash(s);
	p.drafts = drafts_hash(s, text + N_TOKENS, 8, 0);
	succeeds(session_sync(other, text + 50, N_TOKENS, NULL, NULL, &e), &e);
	p.beside = extended(other);
	struct session_image *image;
	succeeds(session_image_take(other, &image, &e), &e);
	succeeds(batch_copy_prefix(third, s, N_TOKENS - 20, &e), &e);
	p.copied = extended(third);
	succeeds(session_image_restore(third, image, &e), &e);
	session_image_free(image);
	p.restored = extended(third);
	succeeds(session_fill_random(s, text, N_FILL, NULL, &e), &e);
	assert_int_equal(session_length(s), N_FILL);
	assert_null(session_logits(s));
	p.filled = extended(s);
	session_free(s);
	session_free(other);
	session_free(third);
	assert_int_equal(engine_close(g, &e), 0);
	return p;
}

/* Fails unless latents in host memory and on the device lead to the same bits, for each chunk size.
 * Returns the hashes of the last chunk size. */
static struct timeline_hashes check_bits(void)
{
	/* latents of 8 bits leave out chunks of one row: drafts and answers compute single rows too */
	static const uint32_t chunks[] = {0, 40, 1};
	struct timeline_hashes want = {0};
	for (size_t i = IF_SLOW_BUILD(kv_f8, 0);
		 i < IF_SLOW_BUILD(kv_f8 + 1u, ARRAY_LEN(chunks) - kv_f8); i++) {
		const struct timeline_hashes got = hashes_of(ENGINE_KV_RAM_ON, chunks[i]);
		want = hashes_of(ENGINE_KV_RAM_OFF, chunks[i]);
		assert_true(want.prompt == got.prompt);
		assert_true(want.drafts == got.drafts);
		assert_true(want.beside == got.beside);
		assert_true(want.copied == got.copied);
		assert_true(want.restored == got.restored);
		assert_true(want.filled == got.filled);
		assert_true(want.filled != want.restored);
	}
	return want;
}

static void test_bits(void **state)
{
	(void)state;
	check_bits();
}

/* The first layer's latents of all of the text's positions, [N_TOKENS][*row_bytes]. The caller
 * frees them. */
static uint8_t *first_latents(bool f8, size_t *row_bytes, uint32_t *kv_rank)
{
	struct err e = {0};
	kv_f8 = f8;
	struct engine *g = open_with(ENGINE_KV_RAM_OFF, 40);
	struct session *s = session_of(g, false);
	kv_f8 = false;
	succeeds(session_sync(s, text, N_TOKENS, NULL, NULL, &e), &e);
	*row_bytes = engine_row_bytes(g, 0, false);
	*kv_rank = engine_config(g)->kv_rank;
	uint8_t *rows = mem_new(N_TOKENS, *row_bytes);
	succeeds(engine_read_rows(g, 0, false, (uint32_t)s->base, N_TOKENS, rows, &e), &e);
	session_free(s);
	engine_close(g, NULL);
	return rows;
}

/* The first layer has the same input whatever the type of the latents. Its latents of 8 bits equal
 * those of 16 bits within the rounding of E4M3: half a step is at most 1/16 of a value, and steps
 * are at least 2^-9 of the scale. The part of a row that stays in 16 bits is equal. */
static void test_8_bits_are_rounded(void **state)
{
	(void)state;
	uint32_t n_value;
	size_t wide_bytes, narrow_bytes;
	uint8_t *wide = first_latents(false, &wide_bytes, &n_value),
			*narrow = first_latents(true, &narrow_bytes, &n_value);
	assert_int_equal(narrow_bytes, cache_f8_row_bytes((int)(wide_bytes / 2), (int)n_value));
	for (size_t i = 0; i < N_TOKENS; i++) {
		const uint8_t *w = wide + i * wide_bytes, *q = narrow + i * narrow_bytes;
		for (uint32_t k = 0; k < n_value; k++) {
			const float v = f16_to_f32(load_u16(w + 2 * k)),
						scale = f32_from_bits(load_u32(q + n_value + k / CACHE_F8_BLOCK * 4)),
						got = f8_e4m3_to_f32(q[k]) * scale;
			if (!(fabsf(got - v) <= fabsf(v) / 16 + scale / 512) || !(scale > 0))
				fail_msg("position %zu, value %u: %g in place of %g", i, k, (double)got, (double)v);
		}
		const size_t rest = wide_bytes - 2 * (size_t)n_value;
		assert_memory_equal(w + 2 * n_value, q + narrow_bytes - rest, rest);
	}
	free(wide);
	free(narrow);
}

/* Latents of 8 bits: other numbers, and the same ones wherever they lie. */
static void test_8_bits(void **state)
{
	(void)state;
	const struct timeline_hashes wide = hashes_of(ENGINE_KV_RAM_OFF, 40);
	kv_f8 = true;
	const struct timeline_hashes narrow = check_bits(); /* of chunks of 40 rows */
	assert_true(wide.prompt != narrow.prompt && wide.filled != narrow.filled);
	kv_f8 = false;
	struct err e = {0};
	struct engine *g;
	struct engine_options o = {
		.model_path = POCKET, .backend = backend_name, .kv_f8 = true, .kv_f32 = true};
	assert_int_equal(engine_open(&o, &g, &e), ERR_USAGE);
}

/* Of a layer's rows: no two index keys are the same, values have mean 0 and variance 1. */
static void test_fill(void **state)
{
	(void)state;
	struct err e = {0};
	const struct engine_options o = {
		.model_path = POCKET, .backend = backend_name, .context = 512, .kv_f32 = true};
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, false);
	const size_t dim = engine_config(g)->index_dim;
	float *keys = mem_new(N_FILL * dim, sizeof *keys);
	double sum = 0, squares = 0;
	succeeds(session_fill_random(s, text, N_FILL, NULL, &e), &e);
	succeeds(engine_read_rows(g, 0, true, 0, N_FILL, keys, &e), &e);
	for (size_t i = 0; i < N_FILL * dim; i++) {
		sum += (double)keys[i];
		squares += (double)keys[i] * (double)keys[i];
	}
	const double n = (double)(N_FILL * dim);
	assert_true(sum / n > -0.05 && sum / n < 0.05 && squares / n > 0.95 && squares / n < 1.05);
	for (size_t i = 1; i < N_FILL; i++)
		assert_memory_not_equal(keys + (i - 1) * dim, keys + i * dim, dim * sizeof *keys);
	free(keys);

	/* refusals leave the timeline as it was */
	text[3] += 1 << 30;
	assert_int_equal(session_fill_random(s, text, 10, NULL, &e), ERR_INPUT);
	text[3] -= 1 << 30;
	assert_int_equal(session_fill_random(s, text, 0, NULL, &e), ERR_INPUT);
	int32_t many[513] = {0};
	assert_int_equal(session_fill_random(s, many, 513, NULL, &e), ERR_INPUT);
	assert_int_equal(session_length(s), N_FILL);
	atomic_bool cancel = true;
	assert_int_equal(session_fill_random(s, text, N_FILL, &cancel, &e), ERR_INTERRUPTED);
	assert_int_equal(session_length(s), 0);
	session_free(s);
	engine_close(g, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_8_bits),
		cmocka_unit_test(test_8_bits_are_rounded), cmocka_unit_test(test_fill)};
	struct rng r = {19};
	for (size_t i = 0; i < ARRAY_LEN(text); i++)
		text[i] = (int32_t)rng_below(&r, 8000);
	int failed = cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
	if (!card_answers())
		return failed;
	backend_name = "cuda";
	return failed + cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
