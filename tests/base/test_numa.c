/* SPDX-License-Identifier: MIT */
/* NUMA nodes as read from folders like the kernel's, and memory divided among them. Placement on
 * two nodes needs a host that has them: here the kernel is given its one node twice, or a node that
 * it must refuse. */
#include "src/base/host/numa.h"

#include "src/base/host/cores.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#define NO_SUCH_NODE 1000
#define MIB          ((uint64_t)1 << 20)

static const int cpus[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static void write_node_file(const char *system, const char *name, const char *text)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", system, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static const char *host(const char *name, const char *online)
{
	char path[512];
	const char *system = temp_dir_path(name);
	assert_int_equal(mkdir(system, 0700), 0);
	snprintf(path, sizeof path, "%s/node", system);
	assert_int_equal(mkdir(path, 0700), 0);
	write_node_file(system, "node/online", online);
	return system;
}

/* cpulist NULL, free_kb 0: the file is missing. */
static void add_node(const char *system, int id, const char *cpulist, unsigned long long free_kb)
{
	char path[512], name[64], text[512];
	snprintf(path, sizeof path, "%s/node/node%d", system, id);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(name, sizeof name, "node/node%d/cpulist", id);
	if (cpulist)
		write_node_file(system, name, cpulist);
	snprintf(name, sizeof name, "node/node%d/meminfo", id);
	snprintf(text, sizeof text,
		"Node %d MemTotal:       99999999 kB\nNode %d MemFree:  %llu kB\n"
		"Node %d Active(file):  1 kB\nNode %d Inactive(file):  2 kB\nNode %d FilePages: 77 kB\n",
		id, id, free_kb - 3, id, id, id);
	if (free_kb)
		write_node_file(system, name, text);
}

static const char *two_nodes(const char *name)
{
	const char *system = host(name, "0-1\n");
	add_node(system, 0, "0-1,4-5\n", 3000);
	add_node(system, 1, "2-3,6-7\n", 1000);
	return system;
}

static void test_two_nodes(void **state)
{
	(void)state;
	struct numa_nodes nodes;
	numa_read(two_nodes("two"), cpus, 8, "0-1", &nodes);
	assert_int_equal(nodes.n, 2);
	for (int k = 0; k < 2; k++) {
		assert_int_equal(nodes.node[k].id, k);
		assert_int_equal(CPU_COUNT(&nodes.node[k].cpus), 4);
	}
	assert_int_equal(nodes.node[0].free_bytes, 3000 << 10);
	assert_int_equal(nodes.node[1].free_bytes, 1000 << 10);
	static const int want[8] = {1, 1, 2, 2, 1, 1, 2, 2};
	for (int i = 0; i < 8; i++)
		assert_int_equal(numa_node_of_cpu(&nodes, i), want[i]);
	assert_int_equal(numa_node_of_cpu(&nodes, 8), 0);
	assert_int_equal(numa_node_of_cpu(&nodes, -1), 0);
	assert_int_equal(numa_node_of_cpu(&nodes, CPU_SETSIZE), 0);
}

/* What the process may not use does not count. */
static void test_confined(void **state)
{
	(void)state;
	struct numa_nodes nodes;
	const char *system = two_nodes("confined");
	numa_read(system, cpus, 8, "1", &nodes); /* memory of one node */
	assert_int_equal(nodes.n, 1);
	assert_int_equal(nodes.node[0].id, 1);
	numa_read(system, (int[]){0, 4}, 2, "0-1", &nodes); /* processors of one node */
	assert_int_equal(nodes.n, 1);
	assert_int_equal(nodes.node[0].id, 0);
	numa_read(system, (int[]){1, 7}, 2, "", &nodes); /* one of each; any memory */
	assert_int_equal(nodes.n, 2);
	assert_int_equal(CPU_COUNT(&nodes.node[1].cpus), 1);
	assert_int_equal(numa_node_of_cpu(&nodes, 2), 0);
	numa_read(system, cpus, 0, "0-1", &nodes); /* the system does not say which processors */
	assert_int_equal(nodes.n, 0);
}

/* Nodes without memory, without processors, offline, with offline processors; numbers with gaps. */
static void test_odd_nodes(void **state)
{
	(void)state;
	struct numa_nodes nodes;
	const char *system = host("odd", "0,2-5,9\n");
	add_node(system, 0, "\n", 500);    /* memory alone, as of an expander */
	add_node(system, 1, "0", 500);     /* not online */
	add_node(system, 2, "0,1", 500);   /* processor 6 of it is offline */
	add_node(system, 3, "2-3", 0);     /* no memory */
	add_node(system, 4, NULL, 500);    /* nothing said of processors */
	add_node(system, 9, "4-5,7", 500); /* */
	numa_read(system, cpus, 8, "0-9", &nodes);
	assert_int_equal(nodes.n, 2);
	assert_int_equal(nodes.node[0].id, 2);
	assert_int_equal(nodes.node[1].id, 9);
	assert_int_equal(CPU_COUNT(&nodes.node[1].cpus), 3);
	assert_int_equal(numa_node_of_cpu(&nodes, 6), 0);

	numa_read(temp_dir_path("nothing"), cpus, 8, "0", &nodes);
	assert_int_equal(nodes.n, 0);
	system = host("nonsense", "x-,,3-\n");
	add_node(system, 3, "-", 1000);
	numa_read(system, cpus, 8, "-,", &nodes);
	assert_int_equal(nodes.n, 0);

	system = host("many", "0-15,1000-1023\n"); /* the numbers may be as large as the kernel's */
	for (int i = 0; i < 15; i++)
		add_node(system, i, "0-7", 1000);
	add_node(system, 15, NULL, 1000);
	add_node(system, 1023, "0-7", 1000);
	log_set_level(LOG_QUIET);
	numa_read(system, cpus, 8, "", &nodes);
	assert_int_equal(nodes.n, NUMA_NODES_MAX);
	assert_int_equal(nodes.node[15].id, 1023);
}

static void test_this_host(void **state)
{
	(void)state;
	struct numa_nodes nodes;
	numa_read_host(&nodes);
	assert_in_range(nodes.n, 0, NUMA_NODES_MAX);
	for (int k = 0; k < nodes.n; k++)
		assert_true(nodes.node[k].free_bytes && CPU_COUNT(&nodes.node[k].cpus));
}

/* Nodes with so much free memory each, all of which the kernel knows by this number. */
static struct numa_nodes nodes_of(int n, const uint64_t *free_bytes, int id)
{
	struct numa_nodes nodes = {.n = n};
	for (int k = 0; k < n; k++) {
		nodes.node[k] = (struct numa_node){.id = id, .free_bytes = free_bytes[k]};
		CPU_SET(k, &nodes.node[k].cpus);
	}
	return nodes;
}

static void test_division(void **state)
{
	(void)state;
	const uint64_t free_bytes[3] = {600 * MIB, 300 * MIB, 100 * MIB};
	const struct numa_nodes nodes = nodes_of(3, free_bytes, 0);
	static const uint64_t units[] = {4096, 99 * 1024, 12345, 10 * MIB};
	for (size_t u = 0; u < ARRAY_LEN(units); u++)
		for (uint64_t n = 1; n < 40000; n = n * 3 + 1) {
			const uint64_t bytes = n * units[u] + units[u] / 3;
			struct numa_division d = numa_divide(&nodes, bytes, units[u]);
			uint64_t sum = 0, on[4] = {0}, piece = d.piece_bytes;
			assert_in_range(d.n, 1, 1024);
			assert_int_equal(piece % units[u], 0); /* a slot is in one piece */
			for (int i = 0; i < d.n; i++) {
				on[d.node[i]]++;
				for (int k = 1; k <= 3; k++) { /* every run from the front has its shares */
					const double share = (double)(i + 1) * (double)free_bytes[k - 1] / (1000 * MIB);
					assert_true((double)on[k] > share - 2 && (double)on[k] < share + 2);
				}
			}
			assert_int_equal(on[0], 0);
			for (int k = 1; k <= 3; k++)
				sum += numa_bytes_on(&d, bytes, k);
			assert_int_equal(sum, bytes);
			assert_int_equal(numa_node_at(&d, 0), d.node[0]);
			assert_int_equal(numa_node_at(&d, bytes - 1), d.node[d.n - 1]);
			if (d.n > 1) {
				assert_int_equal(numa_node_at(&d, piece - 1), d.node[0]);
				assert_int_equal(numa_node_at(&d, piece), d.node[1]);
			}
			numa_division_free(&d);
			assert_int_equal(numa_node_at(&d, 0), 0);
		}
}

/* One node, no memory, slots larger than the memory: nothing is divided. */
static void test_not_divided(void **state)
{
	(void)state;
	const uint64_t free_bytes[2] = {MIB, MIB};
	struct numa_nodes nodes = nodes_of(2, free_bytes, 0);
	assert_int_equal(numa_divide(&nodes, 0, 4096).n, 0);
	assert_int_equal(numa_divide(&nodes, 0, 0).n, 0);
	assert_int_equal(numa_divide(&nodes, 4095, 4096).n, 0);
	nodes.n = 1;
	struct numa_division d = numa_divide(&nodes, MIB, 4096);
	assert_int_equal(d.n, 0);
	numa_place(&d, NULL, MIB); /* does nothing */
	assert_int_equal(numa_bytes_on(&d, MIB, 1), 0);
}

static void check_writable(uint8_t *p, size_t bytes)
{
	memset(p, 7, bytes);
	for (size_t i = 0; i < bytes; i += 4096)
		assert_int_equal(p[i], 7);
}

static void test_placed(void **state)
{
	(void)state;
	const uint64_t free_bytes[2] = {2 * MIB, MIB}, bytes = 9 * MIB + 100, unit = 300 * 1000;
	uint8_t *p = pages_try_map(bytes);
	assert_non_null(p);
	if (numa_prefer(p, bytes, 0)) { /* not allowed here */
		pages_unmap(p, bytes);
		skip();
	}
	const struct numa_nodes nodes = nodes_of(2, free_bytes, 0);
	struct numa_division d = numa_divide(&nodes, bytes, unit);
	numa_place(&d, p, bytes);
	assert_int_equal(d.n, 31);
	check_writable(p, bytes);
	numa_settle(p, bytes);
	check_writable(p, bytes);
	numa_division_free(&d);
	pages_unmap(p, bytes);
}

/* A node that the kernel does not have: nothing has a node, and the memory is there all the same.
 */
static void test_refused(void **state)
{
	(void)state;
	const uint64_t free_bytes[2] = {MIB, MIB}, bytes = 3 * MIB;
	struct numa_nodes nodes = nodes_of(2, free_bytes, 0);
	nodes.node[1].id = NO_SUCH_NODE;
	uint8_t *p = pages_try_map(bytes);
	assert_non_null(p);
	assert_true(numa_prefer(p, bytes, NO_SUCH_NODE) > 0);
	struct numa_division d = numa_divide(&nodes, bytes, 4096);
	assert_true(d.n > 1);
	const enum log_level before = log_lower(LOG_QUIET);
	numa_place(&d, p, bytes);
	log_set_level(before);
	assert_int_equal(d.n, 0);
	assert_int_equal(numa_node_at(&d, 5 * 4096), 0);
	check_writable(p, bytes);
	pages_unmap(p, bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_nodes),
		cmocka_unit_test(test_confined),
		cmocka_unit_test(test_odd_nodes),
		cmocka_unit_test(test_this_host),
		cmocka_unit_test(test_division),
		cmocka_unit_test(test_not_divided),
		cmocka_unit_test(test_placed),
		cmocka_unit_test(test_refused),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
