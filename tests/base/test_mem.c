/* SPDX-License-Identifier: MIT */
/* pages_try_map: where mappings begin and end, that they are zero and can be written to, and that
 * nothing of them stays. Scopes: what fails in them is remembered, and nothing ends. */
#include "src/base/buf.h"
#include "src/base/host/memory_left.h"
#include "src/base/host/pages.h"
#include "src/base/mem.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#define KIB  ((size_t)1 << 10)
#define MIB  ((size_t)1 << 20)
#define HUGE (2 * MIB)

/* Bytes mapped within [from, end), by the system's own list. */
static size_t mapped_within(uintptr_t from, uintptr_t end)
{
	FILE *f = fopen("/proc/self/maps", "re");
	assert_non_null(f);
	char line[600];
	size_t sum = 0;
	while (fgets(line, sizeof line, f)) {
		unsigned long long a, b;
		if (sscanf(line, "%llx-%llx ", &a, &b) != 2)
			continue; /* the rest of a long line */
		uintptr_t low = a > from ? (uintptr_t)a : from, high = b < end ? (uintptr_t)b : end;
		sum += low < high ? high - low : 0;
	}
	fclose(f);
	return sum;
}

static void test_map(void **state)
{
	(void)state;
	static const size_t sizes[] = {0, 1, 4 * KIB, 4 * KIB + 1, HUGE - 1, HUGE, HUGE + 1, 3 * MIB,
		4 * MIB, 24 * (1540 * KIB), 64 * MIB, 64 * MIB + 4 * KIB};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		size_t n = sizes[i], last = n ? n - 1 : 0;
		unsigned char *p = pages_try_map(n);
		assert_non_null(p);
		assert_int_equal((uintptr_t)p % (n >= HUGE ? HUGE : 4 * KIB), 0);
		uintptr_t end = (uintptr_t)p + (n >= HUGE ? (n + HUGE - 1) / HUGE * HUGE : last + 1);
		assert_int_equal(mapped_within((uintptr_t)p, end), end - (uintptr_t)p);
		assert_int_equal(p[0] | p[n / 2] | p[last], 0);
		p[0] = p[n / 2] = p[last] = 0xa5;
		assert_int_equal(p[0] & p[n / 2] & p[last], 0xa5);
		pages_unmap(p, n);
	}
	assert_null(pages_try_map(SIZE_MAX));
	assert_null(pages_try_map(SIZE_MAX - 3 * MIB));
	assert_null(pages_try_map((size_t)1 << 62));
	pages_unmap(NULL, 5);
}

/* Mapping, leaving some and giving them back in another order leaves the process as large as it
 * was: what is cut off for the alignment is given back as well. */
static void test_nothing_stays(void **state)
{
	(void)state;
	enum { N = 32 };
	unsigned char *p[N];
	size_t before = 0;
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = 0; i < N; i++)
			assert_non_null(p[i] = pages_try_map(HUGE + i * 500 * KIB));
		for (unsigned i = 0; i < N; i++)
			pages_unmap(p[i * 7 % N], HUGE + (i * 7 % N) * 500 * KIB);
		size_t now = mapped_within(0, UINTPTR_MAX);
		if (round)
			assert_true(now <= before + 256 * KIB); /* the list's own reading may take a little */
		else
			before = now;
	}
}

/* Populated: all of it is resident, and holds what it held. */
static void test_populate(void **state)
{
	(void)state;
	static const size_t sizes[] = {0, 1, 5 * KIB, 4 * MIB + 4 * KIB, 200 * MIB + 4 * KIB};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		size_t n = sizes[i], pages = (n + 4 * KIB - 1) / (4 * KIB), resident = 0;
		unsigned char *p = pages_try_map(n), there[65536];
		assert_non_null(p);
		assert_true(pages <= sizeof there);
		if (n)
			p[n / 2] = 0xa5;
		pages_populate(p, n);
		assert_true(!n || p[n / 2] == 0xa5);
		assert_int_equal(mincore(p, n, there), 0);
		for (size_t k = 0; k < pages; k++)
			resident += there[k] & 1;
		assert_int_equal(resident, pages);
		pages_unmap(p, n);
	}
}

/* Counted for a block are its bytes, a header, and at most the alignment. */
static void test_block_bytes(void **state)
{
	(void)state;
	for (size_t n = 0; n < 5000; n += 1 + n / 50) {
		assert_true(mem_block_bytes(n) >= n + sizeof(size_t));
		assert_true(mem_block_bytes(n) <= n + 32);
	}
}

/* More than there can be. */
#define TOO_MUCH (SIZE_MAX / 2)

static void test_scopes(void **state)
{
	(void)state;
	struct mem_scope outer, inner;
	assert_false(mem_scope_failed());
	mem_scope_fail(); /* without a scope: nothing */
	mem_scope_begin(&outer);
	char *p = mem_strdup("kept"), *q = p;
	assert_false(mem_scope_failed());
	mem_scope_begin(&inner);
	assert_null(mem_new(TOO_MUCH, 1));
	assert_true(mem_scope_failed());
	mem_scope_clear();
	assert_false(mem_scope_failed());
	assert_false(mem_grow_array(&p, TOO_MUCH, 2)); /* overflows */
	assert_ptr_equal(p, q);
	assert_string_equal(p, "kept");
	assert_true(mem_scope_end(&inner));
	assert_false(mem_scope_failed()); /* the outer one goes on */
	struct buf b = {0};
	buf_puts(&b, "text");
	assert_false(buf_reserve(&b, TOO_MUCH));
	assert_true(mem_scope_failed());
	mem_scope_clear();
	assert_null(mem_alloc(TOO_MUCH));
	assert_true(mem_scope_failed());
	buf_puts(&b, ", and more");
	assert_string_equal(buf_str(&b), "text, and more");
	assert_true(mem_grow_array(&p, 100, 1));
	assert_string_equal(p, "kept");
	free(p);
	buf_free(&b);
	assert_true(mem_scope_end(&outer));
	assert_false(mem_scope_failed());
}

static void put(const char *name, const char *text)
{
	FILE *f = fopen(temp_dir_path(name), "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static size_t left_of(const char *list)
{
	return memory_left_by_groups(temp_dir_path(list), temp_dir());
}

/* The files of a group; version 1 keeps them below "memory". */
static void put_group(int version, const char *group, const char *limit, const char *use)
{
	static const char *const names[3][2] = {
		[1] = {"memory.limit_in_bytes", "memory.usage_in_bytes"},
		[2] = {"memory.max", "memory.current"}};
	char name[80];
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "%s/%s", group, names[version][i]);
		put(name, i ? use : limit);
	}
}

/* A limit of an ancestor binds. In a container the list names a group of the host, and the folder
 * has the own group at its top. */
static void test_cgroups(void **state)
{
	(void)state;
	static const char *const folders[] = {"memory", "memory/a", "memory/a/b", "a", "a/b"};
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		assert_int_equal(mkdir(temp_dir_path(folders[i]), 0700), 0);
	assert_true(left_of("no list") == SIZE_MAX);
	put("v1", "5:cpu:/a\n4:memory:/a/b\n");
	put("v2", "0::/a/b\n");
	assert_true(left_of("v1") == SIZE_MAX);
	put_group(1, "memory/a/b", "9223372036854771712", "300000");
	put_group(1, "memory/a", "5000000", "400000");
	put_group(1, "memory", "9223372036854771712", "600000");
	put_group(2, "a/b", "max", "300000");
	put_group(2, "a", "7000000", "400000");
	assert_int_equal(left_of("v1"), 4600000);
	assert_int_equal(left_of("v2"), 6600000);
	put("memory/a/memory.stat", "inactive_file 5\ntotal_inactive_file 100000\n");
	assert_int_equal(left_of("v1"), 4700000);
	put_group(1, "memory/a/b", "2000000", "1990000"); /* the innermost */
	assert_int_equal(left_of("v1"), 10000);
	put("v1", "4:memory:/docker/0123\n");
	put_group(1, "memory", "3000000", "600000");
	assert_int_equal(left_of("v1"), 2400000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_map),
		cmocka_unit_test(test_nothing_stays),
		cmocka_unit_test(test_populate),
		cmocka_unit_test(test_block_bytes),
		cmocka_unit_test(test_scopes),
		cmocka_unit_test_setup_teardown(test_cgroups, temp_dir_make, temp_dir_drop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
