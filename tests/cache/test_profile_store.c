/* SPDX-License-Identifier: MIT */
/* The folder of profiles: what a run adds is found by the next, others' additions are not lost, the
 * limits hold, and what cannot be read or written is a sentence. */
#include "cache/trace/profile_store.h"

#include "src/base/mem.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/temp_dir.h"

#define LAYERS  4
#define EXPERTS 16
#define TOKEN   8.0 /* accesses */

static struct profile counts_of(uint64_t fingerprint, int layer, int expert, double count)
{
	struct profile p;
	assert_int_equal(profile_init(&p, fingerprint, LAYERS, EXPERTS), 0);
	p.count[layer * EXPERTS + expert] = count;
	return p;
}

static int add(const char *folder, struct profile p, struct err *e)
{
	int rc = profile_store_add(folder, &p, TOKEN, e);
	profile_fini(&p);
	return rc;
}

static double stored(const char *folder, uint64_t fingerprint, int layer, int expert)
{
	struct err e = {0};
	struct profile p = counts_of(fingerprint, 0, 0, 0);
	if (profile_store_read(folder, &p, &e))
		fail_msg("%s", e.text);
	double count = p.count[layer * EXPERTS + expert];
	profile_fini(&p);
	return count;
}

static void write_text(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

/* In the folder: profiles, and bytes of them. */
static unsigned count_files(const char *folder, uint64_t *bytes)
{
	unsigned n = 0;
	*bytes = 0;
	for (uint64_t i = 0; i < 100; i++) {
		char path[400];
		struct stat st;
		snprintf(path, sizeof path, "%s/%016llx.profile", folder, (unsigned long long)i);
		if (stat(path, &st))
			continue;
		n++;
		*bytes += (uint64_t)st.st_size;
	}
	return n;
}

static void test_runs_add_up(void **state)
{
	(void)state;
	struct err e = {0};
	const char *folder = temp_dir_path("adds/deep/folder");
	const double half = TOKEN * PROFILE_STORE_HALF_TOKENS;
	assert_true(stored(folder, 5, 1, 2) == 0); /* no folder yet */
	assert_int_equal(add(folder, counts_of(5, 1, 2, 100), &e), 0);
	assert_true(stored(folder, 5, 1, 2) == 100);
	assert_true(stored(folder, 6, 1, 2) == 0); /* another model's */
	/* a short run leaves nearly all, a long one half */
	assert_int_equal(add(folder, counts_of(5, 3, 0, 80), &e), 0);
	assert_true(fabs(stored(folder, 5, 1, 2) - 100 * exp2(-80 / half)) < 1e-6);
	assert_int_equal(add(folder, counts_of(5, 3, 1, half), &e), 0);
	assert_true(fabs(stored(folder, 5, 1, 2) - 50 * exp2(-80 / half)) < 1e-6);
	assert_true(stored(folder, 5, 3, 1) == half);
	struct stat st;
	assert_int_equal(stat(folder, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
}

/* Processes that end at the same moment: each finds what the others have added. */
static void test_two_at_once(void **state)
{
	(void)state;
	enum { WRITERS = 8, ROUNDS = 5 };
	const char *folder = temp_dir_path("at_once");
	pid_t pid[WRITERS];
	for (int w = 0; w < WRITERS; w++)
		if (!(pid[w] = fork())) {
			struct err e = {0};
			int rc = 0;
			for (int i = 0; i < ROUNDS && !rc; i++) {
				struct profile p;
				rc = profile_init(&p, 5, LAYERS, EXPERTS);
				p.count[w] = 1;
				rc = rc ? rc : profile_store_add(folder, &p, TOKEN, &e);
				profile_fini(&p);
			}
			_exit(rc ? 1 : 0);
		}
	for (int w = 0; w < WRITERS; w++) {
		int status;
		assert_int_equal(waitpid(pid[w], &status, 0), pid[w]);
		assert_int_equal(status, 0);
	}
	/* one token's worth of accesses in all: nothing has faded by more than 0.1 % */
	for (int w = 0; w < WRITERS; w++)
		assert_true(fabs(stored(folder, 5, 0, w) - ROUNDS) < 0.01 * ROUNDS);
}

static void test_damaged_files(void **state)
{
	(void)state;
	struct err e = {0};
	const char *folder = temp_dir_path("damaged");
	char path[400];
	snprintf(path, sizeof path, "%s/0000000000000005.profile", folder);
	profile_store_make_folder(folder);
	/* a profile that is cut, or of another model: said, and replaced by the next run */
	static const char *const bad[] = {
		"# glmstream profile 2 0000000000000005 4 16\nlayer,expert,count\n3,1",
		"# glmstream profile 2 0000000000000005 4 99\nlayer,expert,count\n",
		"# glmstream profile 2 0000000000000006 4 16\nlayer,expert,count\n",
		"# glmstream profile 99 \n"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		write_text(path, bad[i]);
		struct profile p = counts_of(5, 0, 0, 7);
		e = (struct err){0};
		assert_int_equal(profile_store_read(folder, &p, &e), ERR_INPUT);
		assert_non_null(strstr(e.text, path));
		assert_true(p.count[0] == 7); /* unchanged */
		assert_int_equal(profile_store_add(folder, &p, TOKEN, &e), 0);
		profile_fini(&p);
		assert_true(stored(folder, 5, 0, 0) == 7);
	}
	/* somebody else's file is not touched */
	write_text(path, "my notes\n");
	assert_int_equal(add(folder, counts_of(5, 0, 0, 1), &e), ERR_INPUT);
	FILE *f = fopen(path, "re");
	char line[32];
	assert_non_null(f);
	assert_string_equal(fgets(line, sizeof line, f), "my notes\n");
	fclose(f);
}

static void test_limits(void **state)
{
	(void)state;
	struct err e = {0};
	uint64_t bytes;
	const char *folder = temp_dir_path("limits");
	for (uint64_t i = 0; i < PROFILE_STORE_FILES + 5; i++)
		assert_int_equal(add(folder, counts_of(i, 0, 0, 1), &e), 0);
	assert_int_equal(count_files(folder, &bytes), PROFILE_STORE_FILES);
	assert_true(stored(folder, 0, 0, 0) == 0); /* the oldest are gone */
	assert_true(stored(folder, 4, 0, 0) == 0);
	assert_true(stored(folder, 5, 0, 0) == 1);
	/* a use makes a profile the latest; the limit of bytes holds too */
	assert_int_equal(add(folder, counts_of(5, 0, 0, 1), &e), 0);
	char path[400];
	snprintf(path, sizeof path, "%s/%016x.profile", folder, 60);
	write_text(path, "x");
	assert_int_equal(truncate(path, PROFILE_STORE_BYTES - 200), 0);
	assert_int_equal(add(folder, counts_of(70, 0, 0, 1), &e), 0);
	assert_true(count_files(folder, &bytes) < PROFILE_STORE_FILES);
	assert_true(bytes <= PROFILE_STORE_BYTES);
	assert_true(stored(folder, 70, 0, 0) == 1);
	/* other files count for nothing and stay */
	snprintf(path, sizeof path, "%s/notes", folder);
	write_text(path, "mine");
	for (uint64_t i = 0; i < PROFILE_STORE_FILES + 5; i++)
		assert_int_equal(add(folder, counts_of(i, 0, 0, 1), &e), 0);
	assert_int_equal(access(path, F_OK), 0);
}

static void test_key_limit(void **state)
{
	(void)state;
	struct err e = {0};
	struct profile p, again;
	const char *folder = temp_dir_path("keys");
	const uint32_t layers = 40, experts = 1000;
	assert_int_equal(profile_init(&p, 5, layers, experts), 0);
	assert_int_equal(profile_init(&again, 5, layers, experts), 0);
	for (size_t i = 0; i < (size_t)layers * experts; i++)
		p.count[i] = (double)i + 1;
	assert_int_equal(profile_store_add(folder, &p, 1e9, &e), 0);
	assert_int_equal(profile_store_read(folder, &again, &e), 0);
	const size_t left_out = (size_t)layers * experts - PROFILE_STORE_KEYS;
	for (size_t i = 0; i < (size_t)layers * experts; i++)
		assert_true(again.count[i] == (i < left_out ? 0 : (double)i + 1));
	profile_fini(&p);
	profile_fini(&again);
}

static void test_folder_in_the_way(void **state)
{
	(void)state;
	struct err e = {0};
	char *file = mem_strdup(temp_dir_path("a_file")), *below = mem_printf("%s/profiles", file);
	write_text(file, "x");
	assert_true(add(below, counts_of(5, 0, 0, 1), &e) < 0);
	assert_non_null(strstr(e.text, below));
	/* a process that stopped while it held the lock is not waited for without end */
	const char *folder = temp_dir_path("locked");
	profile_store_make_folder(folder);
	char path[400];
	snprintf(path, sizeof path, "%s/lock", folder);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0 && !flock(fd, LOCK_EX));
	assert_true(add(folder, counts_of(5, 0, 0, 1), &e) < 0);
	assert_non_null(strstr(e.text, "another process"));
	close(fd);
	assert_int_equal(add(folder, counts_of(5, 0, 0, 1), &e), 0);
	free(file);
	free(below);
}

static void test_place(void **state)
{
	(void)state;
	setenv("HOME", "/home/x", 1);
	setenv("XDG_CACHE_HOME", "/cache", 1);
	char *folder = profile_store_folder();
	assert_string_equal(folder, "/cache/glmstream/profiles");
	free(folder);
	setenv("XDG_CACHE_HOME", "relative", 1); /* the specification: to be ignored */
	folder = profile_store_folder();
	assert_string_equal(folder, "/home/x/.cache/glmstream/profiles");
	free(folder);
	unsetenv("XDG_CACHE_HOME");
	unsetenv("HOME");
	assert_null(profile_store_folder());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_runs_add_up),
		cmocka_unit_test(test_two_at_once),
		cmocka_unit_test(test_damaged_files),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_key_limit),
		cmocka_unit_test(test_folder_in_the_way),
		cmocka_unit_test(test_place),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
