/* SPDX-License-Identifier: MIT */
/*
 * A long prompt must not push out of the expert cache what answers use: all its steps borrow the
 * prefill slots only, also the short one at its end.
 */
#include "src/base/rng.h"
#include "tests/support/engine_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { CHUNK = 64, MAP = 16 * 64, SLOTS_LOST = 5 };

static uint32_t n_map;

static uint32_t resident(struct engine *g, uint8_t *map)
{
	struct engine_cache c;
	uint32_t n = 0;
	engine_cache_snapshot(g, &c, NULL);
	assert_true(c.streaming);
	n_map = c.n_layers * c.n_experts;
	assert_true(n_map <= MAP);
	engine_cache_snapshot(g, &c, map);
	for (uint32_t i = 0; i < n_map; i++)
		n += map[i] == ENGINE_IN_VRAM;
	return n;
}

static void test_residency(void **state)
{
	(void)state;
	struct rng r = {3};
	struct err e = {0};
	int32_t text[700];
	for (int i = 0; i < 700; i++)
		text[i] = (int32_t)rng_below(&r, 8000);
	static const uint32_t lengths[] = {128, 2 * CHUNK + 1, 3 * CHUNK + 5, 4 * CHUNK + 31, 200, 511};
	struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.context = 1024,
		.chunk = CHUNK,
		.cache_bytes = 6000000,
		.no_mtp = true};
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, false);
	for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
		uint8_t before[MAP], after[MAP];
		session_rewind(s, 0);
		for (int i = 0; i < 60; i++) /* an answer */
			assert_int_equal(session_extend(s, text + 600 + i, 1, NULL, NULL, &e), 0);
		uint32_t n = resident(g, before), kept = 0;
		session_rewind(s, 0);
		assert_int_equal(session_sync(s, text, lengths[k], NULL, NULL, &e), 0);
		resident(g, after);
		for (uint32_t i = 0; i < n_map; i++)
			kept += before[i] == ENGINE_IN_VRAM && after[i] == ENGINE_IN_VRAM;
		printf("%u tokens: %u of %u experts stay\n", lengths[k], kept, n);
		assert_true(n > 50);
		assert_true(kept + SLOTS_LOST >= n);
	}
	session_free(s);
	engine_close(g, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_residency)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
