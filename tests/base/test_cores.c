/* SPDX-License-Identifier: MIT */
/* The order in which threads are pinned, read from folders like the kernel's. */
#include "src/base/host/cores.h"

#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#define CPUS 8

/* Writes a line into system/name, with %d for the number n. */
static void write_line(const char *system, const char *name, int n, const char *line)
{
	char path[512], part[512];
	int at = snprintf(path, sizeof path, "%s/", system);
	snprintf(path + at, sizeof path - (size_t)at, name, n);
	for (const char *end = strchr(path + 1, '/'); end; end = strchr(end + 1, '/')) {
		snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
		mkdir(part, 0700);
	}
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "%s\n", line);
	assert_int_equal(fclose(f), 0);
}

/* The nodes of a machine are 0 and this one. */
#define SECOND_NODE 1023

/* Lists of siblings of each processor and of the processors of each node; NULL ends them. */
static const char *machine(const char *name, const char *const *siblings, const char *const *nodes)
{
	const char *system = temp_dir_path(name);
	for (int i = 0; siblings && siblings[i]; i++)
		write_line(system, "cpu/cpu%d/topology/thread_siblings_list", i, siblings[i]);
	for (int i = 0; nodes && nodes[i]; i++)
		write_line(system, "node/node%d/cpulist", i * SECOND_NODE, nodes[i]);
	if (nodes)
		write_line(system, "node/online", 0, nodes[1] ? "0,1023" : "0");
	return system;
}

static void check_order(const char *system, int near, const int *cpus, int n, const int *want)
{
	int order[CPUS];
	memcpy(order, cpus, (size_t)n * sizeof *order);
	cores_pin_order(system, near, order, n);
	for (int i = 0; i < n; i++)
		if (order[i] != want[i])
			fail_msg("place %d has processor %d, not %d", i, order[i], want[i]);
}

static const int all[CPUS] = {0, 1, 2, 3, 4, 5, 6, 7};
static const char *const neighbours[] = {
	"0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7", NULL};
static const char *const halves[] = {"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7", NULL};
static const char *const two_nodes[] = {"0-1,4-5", "2-3,6-7", NULL};

static void test_nothing_known(void **state)
{
	(void)state;
	check_order(temp_dir_path("nothing"), 3, all, CPUS, all);
	cores_pin_order(CORES_SYSTEM, 0, NULL, 0);
}

static void test_siblings_last(void **state)
{
	(void)state;
	check_order(
		machine("neighbours", neighbours, NULL), 0, all, CPUS, (int[]){0, 2, 4, 6, 1, 3, 5, 7});
	const char *system = machine("halves", halves, NULL);
	check_order(system, -1, all, CPUS, all);
	/* a core is no sibling of one that may not be used */
	check_order(system, -1, (int[]){1, 4, 5, 6}, 4, (int[]){1, 4, 6, 5});
}

static void test_near_node_first(void **state)
{
	(void)state;
	const char *system = machine("nodes", NULL, two_nodes);
	check_order(system, 5, all, CPUS, (int[]){0, 1, 4, 5, 2, 3, 6, 7});
	check_order(system, 2, all, CPUS, (int[]){2, 3, 6, 7, 0, 1, 4, 5});
	check_order(system, -1, all, CPUS, all);
	/* a sibling of the near node comes before a core of another */
	system = machine("both", halves, two_nodes);
	check_order(system, 3, all, CPUS, (int[]){2, 3, 6, 7, 0, 1, 4, 5});
}

/* Files that are not what they should be change nothing, and nothing is read past their end. */
static void test_nonsense(void **state)
{
	(void)state;
	static const char *const nonsense[] = {
		"", "x", "0-", "-", "1,,2", "99999999999999999999", NULL};
	static const char *const node[] = {"x-y", NULL};
	int order[CPUS];
	memcpy(order, all, sizeof order);
	cores_pin_order(machine("nonsense", nonsense, node), 0, order, CPUS);
	bool seen[CPUS] = {false};
	for (int i = 0; i < CPUS; i++) {
		assert_in_range(order[i], 0, CPUS - 1);
		assert_false(seen[order[i]]);
		seen[order[i]] = true;
	}
}

static void test_of_this_process(void **state)
{
	(void)state;
	int cpus[1024], n = cores_list(cpus, 1024);
	assert_int_equal(n, cores_allowed());
	for (int i = 1; i < n; i++)
		assert_true(cpus[i] > cpus[i - 1]);
	assert_int_equal(cores_list(cpus, 1), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_known),
		cmocka_unit_test(test_siblings_last),
		cmocka_unit_test(test_near_node_first),
		cmocka_unit_test(test_nonsense),
		cmocka_unit_test(test_of_this_process),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
