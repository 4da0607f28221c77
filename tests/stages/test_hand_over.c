/* SPDX-License-Identifier: MIT */
/*
 * What one backend hands over to another one: every size, the order with the ops of both sides, and
 * what a failure leaves. Two CPU backends, or two of the backend that GLM_BACKEND names; GLM_CARDS
 * names their cards (engine_help.h).
 */
#include "kernels/backend.h"
#include "kernels/hand_over.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/support/engine_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MARGIN 256 /* bytes around what is handed over */

static struct backend *side[2];

static int open_sides(void **state)
{
	(void)state;
	const char *name = getenv("GLM_BACKEND");
	struct err e = {0};
	for (int i = 0; i < 2; i++) {
		const struct backend_options o = {
			.name = name ? name : "cpu", .threads = 1, .card = stage_cards(2)[i]};
		if (backend_open(&o, &side[i], &e)) {
			print_error("%s\n", e.text);
			return -1;
		}
	}
	return 0;
}

static int close_sides(void **state)
{
	(void)state;
	side[0]->ops->close(side[0]);
	side[1]->ops->close(side[1]);
	return 0;
}

static void *memory_of(struct backend *b, size_t bytes)
{
	void *p;
	struct err e = {0};
	if (b->ops->alloc(b, MEM_DEVICE, bytes, &p, &e))
		fail_msg("%s", e.text);
	return p;
}

static void read_back(struct backend *b, void *dst, const void *src, size_t bytes)
{
	struct err e = {0};
	if (b->ops->download(b, dst, src, bytes, &e))
		fail_msg("%s", e.text);
}

/* Parts of these lengths arrive, and nothing else. From side `from` to the other one. */
static void check_parts(int from, const size_t *bytes, int n)
{
	struct backend *a = side[from], *b = side[!from];
	struct handed_part parts[HANDED_PARTS_MAX];
	size_t at[HANDED_PARTS_MAX], all = MARGIN;
	struct rng r = {bytes[0]};
	for (int i = 0; i < n; i++) {
		at[i] = all;
		all += num_align_up(bytes[i], 16) + MARGIN;
	}
	uint8_t *sent = NEW_ARRAY(uint8_t, all), *got = NEW_ARRAY(uint8_t, all);
	uint8_t *src = memory_of(a, all), *dst = memory_of(b, all);
	for (size_t i = 0; i < all; i++)
		sent[i] = (uint8_t)rng_below(&r, 256);
	memset(got, 0xa5, all);
	b->ops->upload(b, dst, got, all);
	a->ops->upload(a, src, sent, all);
	for (int i = 0; i < n; i++)
		parts[i] = (struct handed_part){dst + at[i], src + at[i], bytes[i]};
	backend_hand_over(a, b, parts, n);
	read_back(b, got, dst, all);
	for (size_t i = 0; i < all; i++) {
		bool inside = false;
		for (int k = 0; k < n; k++)
			inside |= i >= at[k] && i < at[k] + bytes[k];
		if (got[i] != (inside ? sent[i] : 0xa5))
			fail_msg("%zu bytes first: byte %zu is %u", bytes[0], i, got[i]);
	}
	a->ops->free(a, MEM_DEVICE, src, all);
	b->ops->free(b, MEM_DEVICE, dst, all);
	free(sent);
	free(got);
}

static void test_sizes(void **state)
{
	(void)state;
	static const size_t sizes[][3] = {{24576, 4, 8192}, {4, 0, 0}, {12, 16, 20}, {0, 4, 4},
		{4100, 24576, 65540}, {(size_t)64 * 24576, 256, 64 * 8192}, {(5 << 20) + 4, 20, 3 << 20}};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (int from = 0; from < 2; from++)
			for (int n = 1; n <= 3; n++)
				check_parts(from, sizes[i], n);
}

/* Rounds without a wait of the host. The sender writes a number all over a row and hands it over;
 * the receiver keeps the row, and is slow: it copies much in between. A hand-over that did not wait
 * for the ops of either side would leave another round's number somewhere. */
static void test_order(void **state)
{
	(void)state;
	enum { ROUNDS = 60, ROW = 24576, SLOW = 1 << 22 };
	struct backend *a = side[0], *b = side[1];
	uint8_t *row = memory_of(a, ROW), *taken = memory_of(b, ROW);
	uint8_t *kept = memory_of(b, (size_t)ROUNDS * ROW), *slow = memory_of(b, 2 * (size_t)SLOW);
	uint8_t *host = NEW_ARRAY(uint8_t, (size_t)ROUNDS * ROW);
	for (int round = 0; round < ROUNDS; round++) {
		memset(host, round + 1, ROW);
		a->ops->upload(a, row, host, ROW);
		backend_hand_over(a, b, &(struct handed_part){taken, row, ROW}, 1);
		for (int i = 0; i < 8; i++)
			b->ops->copy(b, slow, slow + SLOW, SLOW);
		b->ops->copy(b, kept + (size_t)round * ROW, taken, ROW);
	}
	read_back(b, host, kept, (size_t)ROUNDS * ROW);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < ROW; i++)
			if (host[(size_t)round * ROW + (size_t)i] != round + 1)
				fail_msg("round %d has a byte of round %d", round,
					host[(size_t)round * ROW + (size_t)i] - 1);
	a->ops->free(a, MEM_DEVICE, row, ROW);
	b->ops->free(b, MEM_DEVICE, taken, ROW);
	b->ops->free(b, MEM_DEVICE, kept, (size_t)ROUNDS * ROW);
	b->ops->free(b, MEM_DEVICE, slow, 2 * (size_t)SLOW);
	free(host);
}

/* After a failure of either side nothing is copied, and the other side has none. */
static void test_failures(void **state)
{
	(void)state;
	uint8_t host[64], *src = memory_of(side[0], 64), *dst = memory_of(side[1], 64);
	for (int failed = 0; failed < 2; failed++) {
		struct backend *b = side[failed];
		memset(host, 1, sizeof host);
		side[0]->ops->upload(side[0], src, host, sizeof host);
		memset(host, 2, sizeof host);
		side[1]->ops->upload(side[1], dst, host, sizeof host);
		err_set(&b->failure, ERR_MEMORY, "failed on purpose");
		backend_hand_over(side[0], side[1], &(struct handed_part){dst, src, 64}, 1);
		assert_int_equal(side[!failed]->failure.code, 0);
		b->ops->recover(b);
		assert_int_equal(b->failure.code, 0);
		read_back(side[1], host, dst, sizeof host);
		for (size_t i = 0; i < sizeof host; i++)
			assert_int_equal(host[i], 2);
	}
	backend_hand_over(side[0], side[1], &(struct handed_part){dst, src, 64}, 1);
	read_back(side[1], host, dst, sizeof host);
	assert_int_equal(host[63], 1);
	side[0]->ops->free(side[0], MEM_DEVICE, src, 64);
	side[1]->ops->free(side[1], MEM_DEVICE, dst, 64);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_failures),
	};
	return cmocka_run_group_tests(tests, open_sides, close_sides);
}
