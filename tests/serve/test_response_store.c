/* SPDX-License-Identifier: MIT */
/* Stored responses: bounds by number and bytes, the order in which they are forgotten, and files,
 * of which only the store's own are touched. */
#include "src/base/mem.h"
#include "src/serve/api/api.h"
#include "src/serve/response_store.h"
#include "tests/support/temp_dir.h"

#include <stdarg.h>
#include <setjmp.h>
#include <dirent.h>
#include <stdio.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#define LIMIT ((size_t)64 << 20) /* bytes in memory */

/* "resp_" and a number in 24 digits. */
static const char *name_of(unsigned i)
{
	static char id[40];
	snprintf(id, sizeof id, "resp_%024u", i);
	return id;
}

static void keep(struct response_store *s, unsigned i, size_t n)
{
	struct buf response = {0}, items = {0};
	buf_printf(&response, "{\"n\":%u}", i);
	buf_reserve(&items, n);
	while (items.len < n)
		buf_putc(&items, ' ');
	response_store_put(s, name_of(i), &response, &items);
	buf_free(&response);
	buf_free(&items);
}

static bool has(struct response_store *s, unsigned i)
{
	struct buf response = {0}, want = {0};
	buf_printf(&want, "{\"n\":%u}", i);
	bool found = response_store_get(s, name_of(i), &response, NULL);
	if (found)
		assert_string_equal(buf_str(&response), buf_str(&want));
	buf_free(&response);
	buf_free(&want);
	return found;
}

static void test_number(void **state)
{
	(void)state;
	struct response_store *s;
	assert_int_equal(response_store_open(NULL, LIMIT, &s, NULL), 0);
	for (unsigned i = 0; i < RESPONSE_STORE_MAX; i++)
		keep(s, i, 2);
	assert_true(has(s, 0)); /* used: now 1 is the oldest */
	keep(s, RESPONSE_STORE_MAX, 2);
	assert_true(has(s, 0) && !has(s, 1) && has(s, 2) && has(s, RESPONSE_STORE_MAX));
	assert_int_equal(response_store_stats(s).responses, RESPONSE_STORE_MAX);
	assert_int_equal(response_store_stats(s).forgotten, 1);
	assert_true(response_store_delete(s, name_of(2)) && !response_store_delete(s, name_of(2)));
	assert_false(has(s, 2));
	response_store_close(s);
}

static void test_bytes(void **state)
{
	(void)state;
	struct response_store *s;
	assert_int_equal(response_store_open(NULL, LIMIT, &s, NULL), 0);
	for (unsigned i = 0; i < 5; i++)
		keep(s, i, LIMIT / 4);
	struct response_store_stats stats = response_store_stats(s);
	assert_true(stats.responses == 3 && stats.bytes <= LIMIT);
	assert_true(!has(s, 0) && !has(s, 1) && has(s, 2) && has(s, 4));
	keep(s, 9, LIMIT); /* larger than the store: nothing goes for it */
	assert_true(!has(s, 9) && has(s, 2));
	response_store_close(s);
}

static size_t count_files(void)
{
	size_t n = 0;
	DIR *d = opendir(temp_dir());
	for (const struct dirent *x; (x = readdir(d));)
		n += x->d_name[0] != '.';
	closedir(d);
	return n;
}

static void test_folder(void **state)
{
	(void)state;
	struct response_store *s;
	char *foreign = temp_dir_path("resp_000000000000000000000000.response");
	FILE *f = fopen(foreign, "w");
	fputs("mine", f);
	fclose(f);
	assert_int_equal(response_store_open(temp_dir(), LIMIT, &s, NULL), 0);
	keep(s, 0, 2); /* its name is taken by somebody else's file: in memory only */
	assert_true(has(s, 0));
	for (unsigned i = 1; i <= RESPONSE_STORE_MAX + 5; i++)
		keep(s, i, 2);
	assert_true(count_files() <= RESPONSE_STORE_MAX + 1);
	response_store_close(s);
	assert_int_equal(response_store_open(temp_dir(), LIMIT, &s, NULL), 0);
	assert_int_equal(response_store_stats(s).responses, 0); /* files are read when asked for */
	assert_true(!has(s, 0) && !has(s, 1) && has(s, RESPONSE_STORE_MAX + 5));
	assert_false(response_store_delete(s, name_of(0)));
	assert_true(response_store_delete(s, name_of(RESPONSE_STORE_MAX + 5)));
	assert_false(has(s, RESPONSE_STORE_MAX + 5));
	keep(s, 5000, 2000);
	response_store_close(s);
	/* what is larger than the bound in memory is read each time, and takes no other's place */
	assert_int_equal(response_store_open(temp_dir(), 1000, &s, NULL), 0);
	assert_true(has(s, RESPONSE_STORE_MAX) && has(s, 5000) && has(s, 5000));
	assert_int_equal(response_store_stats(s).responses, 1);
	static const char *const names[] = {"", "resp_", "../resp_000000000000000000000",
		"resp_00000000000000000000000/", "resp_0000000000000000000000001"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		assert_false(response_store_get(s, names[i], NULL, NULL));
	response_store_close(s);
	char text[8] = "";
	f = fopen(foreign, "r");
	assert_int_equal(fread(text, 1, 7, f), 4);
	fclose(f);
	assert_string_equal(text, "mine");
	struct err e = {0};
	assert_int_not_equal(response_store_open("/nowhere/at/all", LIMIT, &s, &e), 0);
	assert_null(s);
}

/* The bound of memory does not decide what is stored, and a file above the folder's bound costs no
 * other its place. */
static void test_bounds_apart(void **state)
{
	(void)state;
	struct response_store *s;
	assert_int_equal(response_store_open(temp_dir(), 0, &s, NULL), 0);
	keep(s, 6000, 2);
	assert_int_equal(response_store_stats(s).responses, 0);
	assert_true(has(s, 6000));
	response_store_close(s);
	assert_int_equal(response_store_open(temp_dir(), 2 * RESPONSE_FOLDER_BYTES, &s, NULL), 0);
	assert_true(has(s, 6000));
	keep(s, 6001, RESPONSE_FOLDER_BYTES); /* in memory only */
	assert_true(has(s, 6001));
	response_store_close(s);
	char *large = temp_dir_path("resp_000000000000000000006002.response");
	FILE *f = fopen(large, "w");
	fputs("glmstream response 1\n1\n{", f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(truncate(large, RESPONSE_FOLDER_BYTES + 1), 0);
	assert_int_equal(response_store_open(temp_dir(), LIMIT, &s, NULL), 0);
	assert_true(has(s, 6000) && !has(s, 6001));
	assert_int_not_equal(access(large, F_OK), 0);
	response_store_close(s);
}

static size_t mapped_bytes(void)
{
	size_t pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	assert_int_equal(fscanf(f, "%zu", &pages), 1);
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory that is exhausted is not a damaged file, nor an unknown response. */
static void test_no_memory(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__ /* whose allocator ends the program */
	skip();
#endif
	struct response_store *s;
	struct rlimit old;
	struct mem_scope scope;
	struct request_error e = {0};
	struct buf out = {0};
	assert_int_equal(response_store_open(temp_dir(), 0, &s, NULL), 0);
	keep(s, 7000, RESPONSE_FOLDER_BYTES / 2);
	struct request_model model = {.responses = s};
	assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
	malloc_trim(0); /* what was freed is still mapped, and would be room below the limit */
	const struct rlimit tight = {
		.rlim_cur = mapped_bytes() + RESPONSE_FOLDER_BYTES / 4, .rlim_max = old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
	mem_scope_begin(&scope);
	int rc = api_responses_get(&model, name_of(7000), &out, &e);
	bool failed = mem_scope_end(&scope);
	assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
	assert_true(rc && failed);
	assert_int_equal(e.status, 503);
	mem_scope_begin(&scope);
	assert_int_equal(api_responses_get(&model, name_of(7000), &out, &e), 0);
	assert_false(mem_scope_end(&scope));
	assert_string_equal(buf_str(&out), "{\"n\":7000}");
	assert_int_not_equal(api_responses_get(&model, name_of(7001), &out, &e), 0);
	assert_int_equal(e.status, 404);
	buf_free(&out);
	response_store_close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_number),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_folder),
		cmocka_unit_test(test_bounds_apart),
		cmocka_unit_test(test_no_memory),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
