/* SPDX-License-Identifier: MIT */
/* The folder of profiles: what a run adds is found by the next, others' additions are not lost, the
 * limits hold, and what cannot be read or written is a sentence. */
#include "cache/trace/profile_store.h"

#include "src/base/mem.h"

#include <fcntl.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
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

static bool holds_text(const char *path, const char *text)
{
	char got[200];
	FILE *f = fopen(path, "re");
	assert_non_null(f);
	got[fread(got, 1, sizeof got - 1, f)] = 0;
	fclose(f);
	return !strcmp(got, text);
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
				if (!rc) /* on a busy machine the others may hold the lock for longer than it waits
						  */
					do
						rc = profile_store_add(folder, &p, TOKEN, &e);
					while (rc == -EAGAIN);
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
		"# glmstream profile 1 0000000000000005 4 16\nlayer,expert,count\n",
		"# glmstream profile \n"};
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
	/* another kind of file, and the profile of a newer program, stay as they are */
	static const char *const foreign[] = {"my notes\n",
		"# glmstream profile 3 0000000000000005 4 16\nlayer,expert,count\n3,1,5\n",
		"# glmstream profile 99 of another form\n"};
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
		write_text(path, foreign[i]);
		e = (struct err){0};
		assert_int_equal(add(folder, counts_of(5, 0, 0, 1), &e), ERR_INPUT);
		assert_non_null(strstr(e.text, path));
		assert_true(holds_text(path, foreign[i]));
	}
	assert_non_null(strstr(e.text, "version 99"));
}

/* A profile whose text does not fit into memory is kept. */
static void test_no_memory(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	skip(); /* they take more memory than the limit */
#endif
	enum { LARGE = 48 << 20, LIMIT = 24 << 20 };
	struct err e = {0};
	const char *folder = temp_dir_path("no_memory");
	char path[400];
	struct stat st;
	snprintf(path, sizeof path, "%s/0000000000000005.profile", folder);
	assert_int_equal(add(folder, counts_of(5, 1, 2, 100), &e), 0);
	assert_int_equal(truncate(path, LARGE), 0);
	struct rlimit before, low;
	assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
	low = before;
	low.rlim_cur = LIMIT;
	assert_int_equal(setrlimit(RLIMIT_DATA, &low), 0);
	const int rc = add(folder, counts_of(5, 3, 3, 1), &e);
	assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
	assert_int_equal(rc, ERR_MEMORY);
	assert_int_equal(stat(path, &st), 0);
	assert_true(st.st_size == LARGE);
}

/* The file of --warm: a run that has counted nothing leaves the counts as they are. */
static void test_named_profile(void **state)
{
	(void)state;
	struct err e = {0};
	bool is_trace;
	const char *path = temp_dir_path("named");
	struct profile run = counts_of(5, 1, 2, 0), earlier = counts_of(5, 1, 2, 100),
				   read = counts_of(5, 0, 0, 0);
	assert_int_equal(profile_write(&run, &earlier, path, &e), 0);
	assert_int_equal(profile_read(&read, path, &is_trace, &e), 0);
	assert_true(read.count[EXPERTS + 2] == 100);
	run.count[0] = 3;
	assert_int_equal(profile_write(&run, &earlier, path, &e), 0);
	read.count[EXPERTS + 2] = 0;
	assert_int_equal(profile_read(&read, path, &is_trace, &e), 0);
	assert_true(read.count[EXPERTS + 2] == 50 && read.count[0] == 3);
	profile_fini(&run);
	profile_fini(&earlier);
	profile_fini(&read);
}

static void test_limits(void **state)
{
	(void)state;
	struct err e = {0};
	uint64_t bytes;
	const char *folder = temp_dir_path("limits");
	char path[400];
	for (uint64_t i = 0; i < PROFILE_STORE_FILES + 5; i++) {
		const struct timespec written[2] = {
			{.tv_sec = 1000 + (time_t)i}, {.tv_sec = 1000 + (time_t)i}};
		assert_int_equal(add(folder, counts_of(i, 0, 0, 1), &e), 0);
		/* files of the same tick of the clock have no order */
		snprintf(path, sizeof path, "%s/%016llx.profile", folder, (unsigned long long)i);
		assert_int_equal(utimensat(AT_FDCWD, path, written, 0), 0);
	}
	assert_int_equal(count_files(folder, &bytes), PROFILE_STORE_FILES);
	assert_true(stored(folder, 0, 0, 0) == 0); /* the oldest are gone */
	assert_true(stored(folder, 4, 0, 0) == 0);
	assert_true(stored(folder, 5, 0, 0) == 1);
	/* a use makes a profile the latest; the limit of bytes holds too */
	assert_int_equal(add(folder, counts_of(5, 0, 0, 1), &e), 0);
	snprintf(path, sizeof path, "%s/%016x.profile", folder, 60);
	write_text(path, "# glmstream profile 2 ");
	assert_int_equal(truncate(path, PROFILE_STORE_BYTES - 200), 0);
	assert_int_equal(add(folder, counts_of(70, 0, 0, 1), &e), 0);
	assert_true(count_files(folder, &bytes) < PROFILE_STORE_FILES);
	assert_true(bytes <= PROFILE_STORE_BYTES);
	assert_true(stored(folder, 70, 0, 0) == 1);
	/* other files count for nothing and stay, whatever their names are */
	static const char *const names[] = {"notes", "00000000000000aa.profile"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, names[i]);
		write_text(path, "mine");
	}
	char newer[400];
	snprintf(newer, sizeof newer, "%s/00000000000000bb.profile", folder);
	write_text(newer, "# glmstream profile 3\n");
	for (uint64_t i = 0; i < PROFILE_STORE_FILES + 5; i++)
		assert_int_equal(add(folder, counts_of(i, 0, 0, 1), &e), 0);
	assert_true(holds_text(path, "mine"));
	assert_true(holds_text(newer, "# glmstream profile 3\n"));
	assert_int_equal(count_files(folder, &bytes), PROFILE_STORE_FILES);
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
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_named_profile),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_key_limit),
		cmocka_unit_test(test_folder_in_the_way),
		cmocka_unit_test(test_place),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
