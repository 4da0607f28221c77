/* SPDX-License-Identifier: MIT */
/* Which files a writer may replace, and what stands at the target after a failure. */
#include "src/base/out_file.h"

#include "tests/support/temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

static void file_put(const char *path, const void *data, size_t n)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void assert_holds(const char *path, const char *want)
{
	char text[64] = "";
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = 0;
	assert_string_equal(text, want);
}

/* What every kind begins with, written here once more: files of earlier versions must be known. */
static const struct {
	const struct out_kind *kind;
	const char *head;
	size_t n;
} own[] = {
	{&out_session, "GLMSESS\0rest", 12},
	{&out_trace, "GLMTRACErest", 12},
	{&out_profile, "# glmstream profile 2 0 1 1\n", 28},
	{&out_plot, "<!-- drawn by glmstream -->\n<svg", 32},
	{&out_journal, "glmstream-convert 5 0", 21},
	{&out_history, "_HiStOrY_V2_\n", 13},
	{&out_unfinished_model, "GGUF\3\0\0\0........glmstream.version", 33},
};
#define N_OWN (sizeof own / sizeof *own)

static void test_kinds(void **state)
{
	(void)state;
	const char *path = temp_dir_path("kind");
	struct err e;
	for (size_t i = 0; i < N_OWN; i++)
		for (size_t k = 0; k < N_OWN; k++) {
			e = (struct err){0};
			file_put(path, own[i].head, own[i].n);
			assert_int_equal(
				out_file_may_replace(path, own[k].kind, false, &e), i == k ? 0 : ERR_INPUT);
			assert_true(i == k || (strstr(e.text, own[k].kind->name) && strstr(e.hint, "--force")));
			assert_int_equal(out_file_may_replace(path, own[k].kind, true, &e), 0);
		}
	for (size_t k = 0; k < N_OWN; k++) {
		file_put(path, "my notes", 8);
		assert_int_equal(out_file_may_replace(path, own[k].kind, false, &e), ERR_INPUT);
		file_put(path, own[k].head, 3); /* shorter than a mark */
		assert_int_equal(out_file_may_replace(path, own[k].kind, false, &e), ERR_INPUT);
		file_put(path, "", 0);
		assert_int_equal(out_file_may_replace(path, own[k].kind, false, &e), 0);
	}
	/* a model of another program, and a mark beyond the head */
	static char far[OUT_KIND_HEAD + 64] = "GGUF";
	memcpy(far + OUT_KIND_HEAD, OUT_MODEL_KEY, sizeof OUT_MODEL_KEY);
	file_put(path, far, sizeof far);
	assert_int_equal(out_file_may_replace(path, &out_unfinished_model, false, &e), ERR_INPUT);
	/* without a mark nothing is known */
	assert_int_equal(out_file_may_replace(path, &out_data, false, &e), ERR_INPUT);
	assert_int_equal(out_file_may_replace(path, &out_data, true, &e), 0);
	unlink(path);
	assert_int_equal(out_file_may_replace(path, &out_data, false, &e), 0);
	assert_int_equal(out_file_may_replace("-", &out_data, false, &e), 0);
	assert_int_equal(out_file_may_replace("/dev/null", &out_data, false, &e), 0);
}

static void test_open_and_commit(void **state)
{
	(void)state;
	const char *path = temp_dir_path("out");
	struct out_file o;
	struct err e = {0};
	file_put(path, "my notes", 8);
	assert_int_equal(out_file_open(&o, path, &out_plot, false, &e), ERR_INPUT);
	assert_int_equal(out_file_open_private(&o, path, &out_session, false, &e), ERR_INPUT);
	assert_holds(path, "my notes");
	assert_int_equal(out_file_open_private(&o, "-", &out_session, true, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "standard output"));
	/* with force, and not before commit */
	assert_int_equal(out_file_open(&o, path, &out_plot, true, &e), 0);
	fputs("new", o.f);
	assert_holds(path, "my notes");
	out_file_abort(&o);
	assert_holds(path, "my notes");
	assert_int_equal(out_file_open(&o, path, &out_plot, true, &e), 0);
	fputs("new", o.f);
	assert_int_equal(out_file_commit(&o, &e), 0);
	assert_holds(path, "new");
	/* another program's file that appears in between */
	unlink(path);
	assert_int_equal(out_file_open(&o, path, &out_data, false, &e), 0);
	fputs("new", o.f);
	file_put(path, "my notes", 8);
	assert_int_equal(out_file_commit(&o, &e), ERR_INPUT);
	assert_holds(path, "my notes");
}

static void test_check(void **state)
{
	(void)state;
	struct err e = {0};
	char missing[512];
	const char *path = temp_dir_path("check");
	snprintf(missing, sizeof missing, "%s.folder/file", path);
	assert_int_equal(out_file_check(missing, &out_data, true, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "cannot be written"));
	assert_int_equal(out_file_check("/", &out_data, true, &e), ERR_INPUT);
	assert_int_equal(out_file_check(path, &out_data, false, &e), 0);
	assert_int_equal(access(path, F_OK), -1);
	file_put(path, "my notes", 8);
	assert_int_equal(out_file_check(path, &out_data, false, &e), ERR_INPUT);
	assert_int_equal(out_file_check(path, &out_data, true, &e), 0);
	assert_holds(path, "my notes");
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(out_file_check(path, &out_data, true, &e), 0); /* without a reader */
	unlink(path);
	assert_int_equal(out_file_check("-", &out_data, false, &e), 0);
}

static void test_failed_write(void **state)
{
	(void)state;
	const char *path = temp_dir_path("full");
	struct out_file o;
	struct err e = {0};
	file_put(path, "GLMSESS", 7);
	assert_int_equal(out_file_open(&o, path, &out_session, false, &e), 0);
	int full = open("/dev/full", O_WRONLY);
	if (full < 0)
		skip();
	assert_true(dup2(full, o.fd) >= 0);
	close(full);
	fputs("new", o.f);
	assert_int_equal(out_file_commit(&o, &e), ERR_RUN);
	assert_holds(path, "GLMSESS");
}

static void test_partial(void **state)
{
	(void)state;
	const char *path = temp_dir_path("x.partial"), *done = temp_dir_path("x");
	struct err e = {0};
	assert_true(out_file_open_partial(path, &out_trace, false, true, &e) < 0); /* not there */
	file_put(path, "my notes", 8);
	assert_int_equal(out_file_open_partial(path, &out_trace, false, false, &e), ERR_INPUT);
	assert_holds(path, "my notes");
	int fd = out_file_open_partial(path, &out_trace, true, false, &e);
	assert_true(fd >= 0);
	assert_holds(path, "");
	assert_int_equal(write(fd, "GLMTRACE one", 12), 12);
	/* a second writer, with force or without, leaves the first one's bytes */
	for (int mode = 0; mode < 3; mode++) {
		e = (struct err){0};
		assert_int_equal(
			out_file_open_partial(path, &out_trace, mode == 1, mode == 2, &e), ERR_RUN);
		assert_non_null(strstr(e.text, "another process is writing"));
	}
	assert_holds(path, "GLMTRACE one");
	assert_int_equal(rename(path, done), 0);
	int other = out_file_open_partial(path, &out_trace, false, false, &e);
	assert_true(other >= 0);
	close(fd);
	close(other);
	assert_holds(done, "GLMTRACE one");
	/* what a killed process left: taken up, or begun again */
	assert_int_equal(rename(done, path), 0);
	fd = out_file_open_partial(path, &out_trace, false, true, &e);
	assert_true(fd >= 0);
	close(fd);
	assert_holds(path, "GLMTRACE one");
	fd = out_file_open_partial(path, &out_trace, false, false, &e);
	assert_true(fd >= 0);
	close(fd);
	assert_holds(path, "");
	assert_int_equal(mkfifo(temp_dir_path("pipe"), 0600), 0);
	assert_int_equal(
		out_file_open_partial(temp_dir_path("pipe"), &out_trace, true, false, &e), ERR_INPUT);
}

static void test_links(void **state)
{
	(void)state;
	const char *path = temp_dir_path("link"), *mid = temp_dir_path("link.mid"),
			   *end = temp_dir_path("link.end");
	struct out_file o;
	struct stat st;
	struct err e = {0};
	assert_int_equal(symlink("link.mid", path), 0);
	assert_int_equal(symlink(end, mid), 0);
	for (int i = 0; i < 2; i++) { /* to nothing, and to a file */
		assert_int_equal(out_file_open(&o, path, &out_data, i == 1, &e), 0);
		fputs("new", o.f);
		assert_int_equal(out_file_commit(&o, &e), 0);
		assert_holds(end, "new");
		assert_true(!lstat(path, &st) && S_ISLNK(st.st_mode));
		assert_true(!lstat(mid, &st) && S_ISLNK(st.st_mode));
	}
	char *target, *partial;
	assert_int_equal(out_file_target(path, &target, &partial, &e), 0);
	assert_string_equal(target, end);
	assert_string_equal(partial + strlen(target), ".partial");
	free(target);
	free(partial);
	unlink(end);
	assert_true(out_file_is_same(path, end));
	assert_false(out_file_is_same(path, temp_dir_path("other")));
	/* a circle */
	unlink(mid);
	assert_int_equal(symlink("link", mid), 0);
	assert_int_equal(out_file_open(&o, path, &out_data, true, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "symbolic links"));
	assert_true(!lstat(path, &st) && S_ISLNK(st.st_mode));
}

/* Its own name is written, which for a pipe in /dev/fd is the only one. */
static void test_link_to_device(void **state)
{
	(void)state;
	const char *device = temp_dir_path("link.device");
	char *target;
	struct err e = {0};
	assert_int_equal(symlink("/dev/null", device), 0);
	assert_int_equal(out_file_target(device, &target, NULL, &e), 0);
	assert_string_equal(target, device);
	free(target);
}

/* Where the kernel does not say what is there, nothing is taken to be there. */
static void test_no_answer(void **state)
{
	(void)state;
	char name[512], *target = NULL;
	struct err e = {0};
	snprintf(name, sizeof name, "%s/below", temp_dir_path("no_folder"));
	file_put(temp_dir_path("no_folder"), "x", 1);
	assert_int_equal(out_file_may_replace(name, &out_data, true, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "cannot be written: Not a directory"));
	assert_int_equal(out_file_target(name, &target, NULL, &e), ERR_INPUT);
	assert_null(target);
}

/* In a folder as /tmp the kernel follows no link of another user (fs.protected_symlinks): such a
 * link does not choose where a file is made. */
static void test_foreign_link(void **state)
{
	(void)state;
	const char *folder = temp_dir_path("sticky");
	char name[512], end[512], *target = NULL;
	struct out_file o;
	struct err e = {0};
	snprintf(name, sizeof name, "%s/link", folder);
	snprintf(end, sizeof end, "%s.end", folder);
	assert_int_equal(mkdir(folder, 0700), 0);
	assert_int_equal(chmod(folder, 01777), 0);
	assert_int_equal(symlink(end, name), 0);
	if (lchown(name, 65534, 65534) || open(name, O_RDONLY) >= 0 || errno != EACCES)
		skip(); /* not root, or a kernel that follows it */
	assert_int_equal(out_file_target(name, &target, NULL, &e), ERR_INPUT);
	assert_null(target);
	assert_int_equal(out_file_may_replace(name, &out_data, true, &e), ERR_INPUT);
	assert_int_equal(out_file_check(name, &out_data, true, &e), ERR_INPUT);
	assert_int_equal(out_file_open(&o, name, &out_data, true, &e), ERR_INPUT);
	assert_int_equal(out_file_open_private(&o, name, &out_data, true, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "Permission denied"));
	assert_int_equal(access(end, F_OK), -1);
}

static void assert_is_input(const char *path)
{
	struct err e = {0};
	struct out_file o;
	assert_int_equal(out_file_may_replace(path, &out_trace, true, &e), ERR_USAGE);
	assert_string_equal(e.hint, "give the output another name");
	assert_int_equal(out_file_check(path, &out_trace, true, &e), ERR_USAGE);
	assert_int_equal(out_file_open(&o, path, &out_trace, true, &e), ERR_USAGE);
	assert_int_equal(out_file_open_private(&o, path, &out_trace, true, &e), ERR_USAGE);
	assert_int_equal(out_file_open_partial(path, &out_trace, true, false, &e), ERR_USAGE);
	assert_int_equal(out_file_open_partial(path, &out_trace, true, true, &e), ERR_USAGE);
	assert_holds(path, "GLMTRACE");
}

static void test_inputs(void **state)
{
	(void)state;
	const char *path = temp_dir_path("input"), *hard = temp_dir_path("input.hard"),
			   *by_link = temp_dir_path("input.link"), *other = temp_dir_path("input.other");
	struct out_file o;
	struct err e = {0};
	file_put(path, "GLMTRACE", 8);
	assert_int_equal(link(path, hard), 0);
	assert_int_equal(symlink("input", by_link), 0);
	out_file_add_input("/nonexistent/file");
	out_file_add_input("/dev/null");
	out_file_add_input("/");
	assert_int_equal(out_file_check("/dev/null", &out_trace, false, &e), 0);
	out_file_add_input(by_link);
	assert_is_input(path);
	assert_is_input(hard);
	assert_is_input(by_link);
	/* a file that becomes an input while it is written */
	assert_int_equal(out_file_open(&o, other, &out_trace, true, &e), 0);
	fputs("new", o.f);
	unlink(other);
	assert_int_equal(link(path, other), 0);
	assert_int_equal(out_file_commit(&o, &e), ERR_USAGE);
	assert_holds(other, "GLMTRACE");
	/* where a standard stream goes */
	unlink(other);
	file_put(other, "GLMTRACE", 8);
	const int fd = open(other, O_RDONLY), saved = dup(STDIN_FILENO);
	assert_true(fd >= 0 && dup2(fd, STDIN_FILENO) >= 0);
	assert_is_input(other);
	dup2(saved, STDIN_FILENO);
	close(saved);
	close(fd);
	assert_int_equal(out_file_check(other, &out_trace, false, &e), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_open_and_commit),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_failed_write),
		cmocka_unit_test(test_partial),
		cmocka_unit_test(test_links),
		cmocka_unit_test(test_link_to_device),
		cmocka_unit_test(test_no_answer),
		cmocka_unit_test(test_foreign_link),
		cmocka_unit_test(test_inputs),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
