/* SPDX-License-Identifier: MIT */
/* O_TMPFILE first: then not even a killed program leaves rubbish. A nameless file cannot replace a
 * name in one step, so it gets a temporary name for the moment between linkat and rename. */
#include "src/base/out_file.h"

#include "src/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

const struct out_kind out_session = {"a session", "GLMSESS", NULL},
					  out_trace = {"a trace", "GLMTRACE", NULL},
					  out_profile = {"a profile", "# glmstream profile ", NULL},
					  out_plot = {"a plot", OUT_PLOT_HEAD, NULL},
					  out_journal = {"the journal of a conversion", "glmstream-convert ", NULL},
					  out_history = {"a history of lines", "_HiStOrY_V2_", NULL},
					  out_check_values = {"a file of check values", "GLMXXH3\n", NULL},
					  out_unfinished_model = {"an unfinished model", "GGUF", OUT_MODEL_KEY},
					  out_data = {NULL, NULL, NULL};

/* Does the file begin as files of the kind do? */
static bool is_of_kind(int fd, const struct out_kind *kind)
{
	char head[OUT_KIND_HEAD];
	size_t n = 0, begins = kind->begins ? strlen(kind->begins) : 0;
	ssize_t got = 1;
	while (kind->begins && n < sizeof head && got) {
		got = pread(fd, head + n, sizeof head - n, (off_t)n);
		if (got < 0 && errno != EINTR)
			break;
		n += got > 0 ? (size_t)got : 0;
	}
	return kind->begins && n >= begins && !memcmp(head, kind->begins, begins) &&
		   (!kind->mark || memmem(head, n, kind->mark, strlen(kind->mark)));
}

/* ---- inputs ---- */

static char **inputs; /* paths: inode numbers are reused once a file is removed */
static size_t n_inputs;

void out_file_add_input(const char *path)
{
	struct stat st;
	if (stat(path, &st) || !S_ISREG(st.st_mode))
		return;
	inputs = mem_grow(inputs, n_inputs + 1, sizeof *inputs);
	inputs[n_inputs++] = mem_strdup(path);
}

static bool is_one_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Not even force replaces what the process reads, or the file that a standard stream goes to: what
 * is printed later would be lost. `now`: of what stands at `path`. */
static int refuse_input(const char *path, const struct stat *now, struct err *e)
{
	static const char *const streams[] = {"standard input", "standard output", "standard error"};
	struct stat st;
	const char *what = NULL;
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && !what; fd++)
		if (!fstat(fd, &st) && is_one_file(&st, now))
			what = streams[fd];
	for (size_t i = 0; i < n_inputs && !what; i++)
		if (!stat(inputs[i], &st) && is_one_file(&st, now))
			what = "an input";
	if (!what)
		return 0;
	err_set(e, ERR_USAGE, "%.400s: is %s of this command; it is not replaced", path, what);
	return err_hint(e, "give the output another name");
}

/* ---- what may be replaced ---- */

bool out_file_is_protected(const char *path)
{
	return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) && errno == EACCES;
}

static int refuse_to_replace(const char *path, const struct out_kind *kind, struct err *e)
{
	if (out_file_is_protected(path))
		err_set(e, ERR_INPUT, "%.400s: is write-protected; it is not replaced", path);
	else if (kind->name)
		err_set(e, ERR_INPUT, "%.400s: exists and is not %s of this program; it is not replaced",
			path, kind->name);
	else
		err_set(e, ERR_INPUT, "%.400s: exists already; it is not replaced", path);
	err_hint(e, "--force replaces it");
	return ERR_INPUT;
}

int out_file_may_replace(const char *path, const struct out_kind *kind, bool force, struct err *e)
{
	struct stat st;
	if (!strcmp(path, "-"))
		return 0;
	if (stat(path, &st))
		return errno == ENOENT ? 0 : err_errno(e, errno, "%.400s: cannot be written", path);
	if (!S_ISREG(st.st_mode))
		return 0;
	int rc = refuse_input(path, &st, e);
	if (rc || force)
		return rc;
	if (out_file_is_protected(path))
		return refuse_to_replace(path, kind, e);
	if (!st.st_size)
		return 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool own = fd >= 0 && is_of_kind(fd, kind);
	if (fd >= 0)
		close(fd);
	return own ? 0 : refuse_to_replace(path, kind, e);
}

/* umask can only be read by setting it; the command line has one thread while files are opened. */
static mode_t new_file_mode(void)
{
	mode_t mask = umask(0);
	umask(mask);
	return 0666 & ~mask;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static char *temp_name(const char *path)
{
	return mem_printf("%.200s.%ld.part", base_name(path), (long)getpid());
}

static int failed_open(struct out_file *o, int fd, const char *path, struct err *e)
{
	int errnum = errno;
	if (fd >= 0)
		close(fd);
	out_file_abort(o);
	return err_errno(e, errnum, "%.400s: cannot be written", path);
}

/* ---- the stream: as of fdopen, but a call that a signal interrupts is made again ---- */

static int fd_of_cookie(void *cookie)
{
	return (int)(intptr_t)cookie;
}

static ssize_t cookie_write(void *cookie, const char *data, size_t n)
{
	size_t done = 0;
	while (done < n) {
		ssize_t got = TEMP_FAILURE_RETRY(write(fd_of_cookie(cookie), data + done, n - done));
		if (got <= 0)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done; /* fewer than n: an error, of errno */
}

static int cookie_close(void *cookie)
{
	return close(fd_of_cookie(cookie));
}

/* NULL: no memory. The stream owns fd. */
static FILE *open_stream(struct out_file *o, int fd)
{
	const cookie_io_functions_t calls = {.write = cookie_write, .close = cookie_close};
	o->f = fopencookie((void *)(intptr_t)fd, "w", calls);
	o->fd = fd;
	return o->f;
}

/* ---- links ---- */

#define LINKS_MOST 40 /* as in the kernel */

/* Where the link at `path` leads, which the caller frees. NULL: it is no link. */
static char *read_link(const char *path)
{
	char name[PATH_MAX];
	const ssize_t n = readlink(path, name, sizeof name - 1);
	if (n <= 0)
		return NULL;
	name[n] = 0;
	const int folder = name[0] == '/' ? 0 : (int)(base_name(path) - path);
	return mem_printf("%.*s%s", folder, path, name);
}

int out_file_target(const char *path, char **target, char **partial, struct err *e)
{
	struct stat st;
	const bool there = !stat(path, &st);
	/* first, since readlink asks for no permission (fs.protected_symlinks) */
	if (!there && errno != ENOENT)
		return err_errno(e, errno, "%.400s: cannot be written", path);
	/* a link to a pipe in /dev/fd leads to no name */
	const bool follow = !there || S_ISREG(st.st_mode);
	char *at = mem_strdup(path), *next;
	for (int links = 0; follow && at && (next = read_link(at)); links++) {
		free(at);
		at = next;
		if (links == LINKS_MOST) {
			free(at);
			return err_errno(e, ELOOP, "%.400s: cannot be written", path);
		}
	}
	char *beside = at && partial ? mem_printf("%s.partial", at) : NULL;
	if (!at || (partial && !beside)) {
		free(at);
		return err_errno(e, ENOMEM, "%.400s: cannot be written", path);
	}
	if (partial)
		*partial = beside;
	if (target)
		*target = at;
	else
		free(at);
	return 0;
}

void out_file_keep_mode(int fd, const char *path)
{
	struct stat st;
	if (!stat(path, &st))
		(void)!fchmod(fd, st.st_mode & 0777); /* a file system may have none */
}

/* ---- opening ---- */

/* The file beside the target; `mode` is of a new one. */
static int open_beside(struct out_file *o, const char *path, mode_t mode, struct err *e)
{
	int rc = out_file_target(path, &o->path, NULL, e);
	if (rc)
		return rc;
	char *dir = mem_strdup(o->path);
	if (!dir) {
		errno = ENOMEM;
		return failed_open(o, -1, path, e);
	}
	char *slash = strrchr(dir, '/');
	if (slash)
		slash[slash == dir] = 0;
	o->directory = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	free(dir);
	if (o->directory < 0)
		return failed_open(o, -1, path, e);
	int fd = TEMP_FAILURE_RETRY(openat(o->directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
	if (fd < 0) {
		o->temp = temp_name(o->path);
		if (o->temp)
			unlinkat(o->directory, o->temp, 0); /* of an earlier process with this number */
		else
			errno = ENOMEM;
		if (o->temp)
			fd = TEMP_FAILURE_RETRY(
				openat(o->directory, o->temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode));
	}
	if (fd < 0) {
		free(o->temp); /* not ours to remove */
		o->temp = NULL;
		return failed_open(o, -1, path, e);
	}
	return open_stream(o, fd) ? 0 : failed_open(o, fd, path, e);
}

static int is_directory(const char *path, struct err *e)
{
	return err_set(
		e, ERR_INPUT, "%.400s: is a directory, expected the name of a file to write", path);
}

int out_file_open(
	struct out_file *o, const char *path, const struct out_kind *kind, bool force, struct err *e)
{
	*o = (struct out_file){.directory = -1, .kind = kind, .force = force};
	if (!strcmp(path, "-")) {
		o->f = stdout;
		o->path = mem_strdup("standard output");
		o->direct = 1;
		return 0;
	}
	struct stat st;
	bool there = !stat(path, &st);
	if (there && S_ISDIR(st.st_mode))
		return is_directory(path, e);
	if (there && !S_ISREG(st.st_mode)) { /* /dev/null, a pipe */
		o->path = mem_strdup(path);
		o->direct = 1;
		int fd = open(path, O_WRONLY | O_CLOEXEC);
		if (fd < 0 && errno == EINTR) { /* a signal, while no reader came */
			out_file_abort(o);
			return err_set(e, ERR_INTERRUPTED, "interrupted");
		}
		if (fd < 0)
			return failed_open(o, -1, path, e);
		return open_stream(o, fd) ? 0 : failed_open(o, fd, path, e);
	}
	int rc = out_file_may_replace(path, kind, force, e);
	return rc ? rc : open_beside(o, path, there ? st.st_mode & 0777 : new_file_mode(), e);
}

int out_file_check(const char *path, const struct out_kind *kind, bool force, struct err *e)
{
	struct out_file o;
	struct stat st;
	if (!stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return 0;
	int rc = out_file_open(&o, path, kind, force, e);
	out_file_abort(&o);
	return rc;
}

int out_file_check_folder(const char *path, struct err *e)
{
	struct out_file o = {.directory = -1};
	int rc = open_beside(&o, path, 0600, e);
	out_file_abort(&o);
	return rc;
}

bool out_file_is_same(const char *a, const char *b)
{
	struct stat x, y;
	if (!stat(a, &x) && !stat(b, &y))
		return S_ISREG(x.st_mode) && is_one_file(&x, &y);
	char *p = NULL, *q = NULL;
	bool same = !out_file_target(a, &p, NULL, NULL) && !out_file_target(b, &q, NULL, NULL) &&
				!strcmp(base_name(p), base_name(q)) && !stat(dirname(p), &x) &&
				!stat(dirname(q), &y) && is_one_file(&x, &y); /* dirname cuts the path */
	free(p);
	free(q);
	return same;
}

int out_file_free_bytes(const char *path, uint64_t *bytes, struct err *e)
{
	struct statvfs fs;
	char *name;
	*bytes = 0;
	int rc = out_file_target(path, &name, NULL, e);
	if (rc)
		return rc;
	const char *slash = strrchr(name, '/');
	char *dir = !slash          ? mem_strdup(".")
				: slash == name ? mem_strdup("/")
								: mem_strndup(name, (size_t)(slash - name));
	rc = statvfs(dir, &fs) ? err_errno(e, errno, "%.400s", dir) : 0;
	*bytes = rc ? 0 : (uint64_t)fs.f_bavail * fs.f_frsize;
	free(dir);
	free(name);
	return rc;
}

int out_file_open_private(
	struct out_file *o, const char *path, const struct out_kind *kind, bool force, struct err *e)
{
	*o = (struct out_file){.directory = -1, .kind = kind, .force = force};
	struct stat st;
	bool there = !stat(path, &st);
	if (!strcmp(path, "-"))
		return err_set(e, ERR_INPUT, "-: is standard output, expected the name of a file to write");
	if (there && S_ISDIR(st.st_mode))
		return is_directory(path, e);
	if (there && !S_ISREG(st.st_mode))
		return err_set(e, ERR_INPUT,
			"%.400s: is a device or a pipe, expected the name of a file to write", path);
	int rc = out_file_may_replace(path, kind, force, e);
	return rc ? rc : open_beside(o, path, there ? (st.st_mode & 0700) | 0600 : 0600, e);
}

int out_file_commit(struct out_file *o, struct err *e)
{
	bool lost = ferror(o->f);
	/* again: another file may have appeared there since open */
	int rc = o->direct ? 0 : out_file_may_replace(o->path, o->kind, o->force, e);
	if (rc) {
		out_file_abort(o);
		return rc;
	}
	errno = 0;
	rc = fflush(o->f) || lost ? -1 : 0;
	const char *what = "write";
	if (!rc && !o->direct) {
		if (!o->no_sync && TEMP_FAILURE_RETRY(fsync(o->fd)) && errno != EINVAL)
			rc = -1;
		if (!rc && !o->temp) {
			char self[64];
			snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
			char *name = temp_name(o->path);
			if (name)
				unlinkat(o->directory, name, 0); /* of an earlier process with this number */
			else
				errno = ENOMEM;
			if (!name || linkat(AT_FDCWD, self, o->directory, name, AT_SYMLINK_FOLLOW)) {
				what = "name";
				rc = -1;
				free(name);
			} else {
				o->temp = name;
			}
		}
		if (!rc && renameat(o->directory, o->temp, o->directory, base_name(o->path))) {
			what = "rename";
			rc = -1;
		}
		if (!rc) {
			free(o->temp);
			o->temp = NULL;
			if (!o->no_sync) /* if this one fails a power cut may bring back the old file, which is
								whole */
				(void)TEMP_FAILURE_RETRY(fsync(o->directory));
		}
	}
	if (rc) {
		err_set(e, ERR_RUN, "%.400s: %s failed: %s", o->path, what,
			errno ? strerror(errno) : "not everything could be written; is the disk full?");
	}
	out_file_abort(o); /* now only releases */
	return rc ? ERR_RUN : 0;
}

void out_file_abort(struct out_file *o)
{
	if (!o->path)
		return;
	if (o->f && o->f != stdout)
		fclose(o->f);
	if (o->temp && o->directory >= 0)
		unlinkat(o->directory, o->temp, 0);
	if (o->directory >= 0)
		close(o->directory);
	free(o->temp);
	free(o->path);
	*o = (struct out_file){.directory = -1};
}

enum out_lock out_file_lock(int fd)
{
	if (!TEMP_FAILURE_RETRY(flock(fd, LOCK_EX | LOCK_NB)))
		return OUT_LOCKED;
	if (errno == EWOULDBLOCK)
		return OUT_LOCKED_BY_OTHER;
	return errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS ? OUT_NO_LOCKS
																	 : OUT_LOCK_FAILED;
}

/* Locks what is open at `path`: 0, or 1 if the holder of the lock has just given the file another
 * name, or a negative code. A file system without locks is accepted. */
static int lock_partial(int fd, const char *path, struct err *e)
{
	struct stat open_file, named;
	const enum out_lock lock = out_file_lock(fd);
	if (lock == OUT_LOCKED_BY_OTHER)
		return err_set(e, ERR_RUN, "%.400s: another process is writing this file", path);
	if (lock == OUT_LOCK_FAILED)
		return err_errno(e, errno, "%.400s: cannot be locked", path);
	if (fstat(fd, &open_file))
		return err_errno(e, errno, "%.400s: cannot be written", path);
	if (stat(path, &named))
		return errno == ENOENT ? 1 : err_errno(e, errno, "%.400s: cannot be written", path);
	if (!S_ISREG(open_file.st_mode))
		return err_set(e, ERR_INPUT, "%.400s: is not a regular file", path);
	return !is_one_file(&open_file, &named);
}

int out_file_open_partial(
	const char *path, const struct out_kind *kind, bool force, bool resume, struct err *e)
{
	for (;;) {
		int fd = TEMP_FAILURE_RETRY(open(path, O_RDWR | O_CLOEXEC | (resume ? 0 : O_CREAT), 0666));
		struct stat st;
		if (fd < 0)
			return err_errno(e, errno, "%.400s: cannot be written", path);
		int rc = lock_partial(fd, path, e);
		if (!rc && !fstat(fd, &st))
			rc = refuse_input(path, &st, e);
		if (!rc && !resume && !force && !fstat(fd, &st) && st.st_size && !is_of_kind(fd, kind))
			rc = refuse_to_replace(path, kind, e);
		if (!rc && !resume && TEMP_FAILURE_RETRY(ftruncate(fd, 0)))
			rc = err_errno(e, errno, "%.400s: cannot be written", path);
		if (!rc)
			return fd;
		close(fd);
		if (rc < 0)
			return rc;
	}
}
