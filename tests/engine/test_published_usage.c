/* SPDX-License-Identifier: MIT */
/* The published use of experts: for models of GLM-5.2's shape alone, each expert once, all of them
 * there. */
#include "src/engine/published_usage.h"

#include "src/base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void test_keys(void **state)
{
	(void)state;
	static bool seen[78][256];
	struct profile_key *keys;
	const size_t n = published_usage_keys(&keys);
	unsigned in_layer[78] = {0};
	assert_int_equal(n, 6501);
	assert_true(keys[0].layer == 50 && keys[0].expert == 118);
	assert_true(keys[n - 1].layer == 12 && keys[n - 1].expert == 18);
	for (size_t i = 0; i < n; i++) {
		assert_in_range(keys[i].layer, 3, 77);
		assert_in_range(keys[i].expert, 0, 255);
		assert_false(seen[keys[i].layer][keys[i].expert]);
		seen[keys[i].layer][keys[i].expert] = true;
		in_layer[keys[i].layer]++;
	}
	for (int l = 3; l < 78; l++) /* no layer is left out */
		assert_in_range(in_layer[l], 20, 256);
	free(keys);
}

static void test_shape(void **state)
{
	(void)state;
	const struct model_config glm52 = {.n_layers = 78,
		.n_dense = 3,
		.n_experts = 256,
		.n_used = 8,
		.n_embd = 6144,
		.ff_expert = 2048,
		.n_vocab = 154880};
	assert_true(published_usage_fits(&glm52));
	struct model_config other = glm52;
	other.n_layers = 11; /* a model that was cut */
	assert_false(published_usage_fits(&other));
	other = glm52;
	other.n_experts = 128;
	assert_false(published_usage_fits(&other));
	other = glm52;
	other.n_vocab = 8192;
	assert_false(published_usage_fits(&other));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_shape),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
