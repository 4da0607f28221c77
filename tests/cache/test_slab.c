/* SPDX-License-Identifier: MIT */
/* The choice of a slab size: against a search over every multiple of every slot size, and for sizes
 * that are so far apart that such a search would not end. */
#include "cache/slab.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static double loss_of(uint64_t bytes, const struct slab_classes *k, uint64_t slab)
{
	double wanted = 0, lost = 0;
	for (int i = 0; i < k->n; i++) {
		const double w = (double)k->bytes[i] * (double)k->n_objects[i];
		wanted += w;
		lost += w * (double)(slab % k->bytes[i]) / (double)slab;
	}
	return lost / wanted + (double)(bytes % slab) / (double)bytes +
		   0.5 * k->n * (double)slab / (double)bytes;
}

static void test_choice_is_the_best_of_all(void **state)
{
	struct rng rng = {11};
	(void)state;
	for (int round = 0; round < 300; round++) {
		struct slab_classes k = {.n = 2 + (int)rng_below(&rng, 4)};
		uint64_t largest = 0;
		for (int i = 0; i < k.n; i++) {
			k.bytes[i] = 100 + rng_below(&rng, 5000);
			k.n_objects[i] = 1 + rng_below(&rng, 1000);
			largest = MAX(largest, k.bytes[i]);
		}
		const uint64_t bytes = largest * (1 + rng_below(&rng, 3000)),
					   limit = MAX(largest, bytes / 16);
		double best = loss_of(bytes, &k, largest);
		for (int i = 0; i < k.n; i++)
			for (uint64_t s = k.bytes[i]; s <= limit; s += k.bytes[i])
				if (s >= largest)
					best = MIN(best, loss_of(bytes, &k, s));
		const uint64_t chosen = slab_choose_bytes(bytes, &k);
		assert_true(chosen >= largest && chosen <= limit);
		assert_true(loss_of(bytes, &k, chosen) <= best + 1e-12);
	}
}

static void test_sizes_far_apart(void **state)
{
	(void)state;
	const struct slab_classes k = {
		.n = 2, .bytes = {(uint64_t)1 << 44, 1}, .n_objects = {256, 256}};
	const uint64_t bytes = (uint64_t)1 << 60, chosen = slab_choose_bytes(bytes, &k);
	assert_true(chosen >= k.bytes[0] && chosen <= bytes / 16);
	assert_true(loss_of(bytes, &k, chosen) <= loss_of(bytes, &k, k.bytes[0]));
}

/* Classes whose sizes are more than 2^20 apart: every slot that is handed out has a number of its
 * own, below n_slots. */
static void test_numbers_of_sizes_far_apart(void **state)
{
	(void)state;
	static const uint64_t large[] = {2000000, 8388608, (uint64_t)1 << 44};
	for (size_t i = 0; i < ARRAY_LEN(large); i++) {
		struct slab_arena a;
		struct err e = {0};
		const struct slab_classes k = {.n = 2, .bytes = {large[i], 1}, .n_objects = {4, 4}};
		assert_int_equal(slab_init(&a, 3 * large[i], &k, &e), 0);
		uint8_t *taken = NEW_ARRAY(uint8_t, (size_t)a.n_slots);
		int n = 0;
		for (int32_t slot; (slot = slab_slot_alloc(&a, 1, UINT64_MAX)) >= 0; n++) {
			if (slot >= a.n_slots || taken[slot])
				fail_msg("slot %d of %d is handed out twice or does not exist", slot, a.n_slots);
			taken[slot] = 1;
		}
		assert_int_equal(n, a.n_slabs * slab_capacity(&a, 1));
		free(taken);
		slab_fini(&a);
	}
}

/* A free slot within the limit is found behind one beyond it, and no slab beyond is assigned. */
static void test_slots_within(void **state)
{
	(void)state;
	struct slab_arena a;
	struct err e = {0};
	const struct slab_classes k = {.n = 2, .bytes = {100, 40}, .n_objects = {10, 10}};
	assert_int_equal(slab_init(&a, 1000, &k, &e), 0);
	const uint64_t slab = a.slab_bytes;
	const int32_t first = slab_slot_alloc(&a, 0, slab), free_slabs = a.n_free_slabs;
	assert_int_equal(slab_offset(&a, first), 0);
	assert_int_equal(slab_slot_alloc(&a, 1, slab + 39), -1); /* one byte short */
	assert_int_equal(a.n_free_slabs, free_slabs);
	const int32_t second = slab_slot_alloc(&a, 1, slab + 40);
	assert_int_equal(slab_offset(&a, second), slab);
	int32_t beyond = second;
	while (slab_offset(&a, beyond) < 3 * slab)
		beyond = slab_slot_alloc(&a, 1, UINT64_MAX);
	slab_slot_free(&a, second);
	slab_slot_free(&a, beyond); /* the first of the list */
	assert_int_equal(slab_slot_alloc(&a, 1, 2 * slab), second);
	assert_int_equal(slab_slot_alloc(&a, 1, UINT64_MAX), beyond);
	slab_fini(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice_is_the_best_of_all),
		cmocka_unit_test(test_sizes_far_apart),
		cmocka_unit_test(test_numbers_of_sizes_far_apart),
		cmocka_unit_test(test_slots_within),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
