/* SPDX-License-Identifier: MIT */
#include "cache/trace/profile_store.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME_DIGITS  16
#define NAME_END     ".profile"
#define LOCK_WAIT_NS 2000000000u
#define LOCK_NAP_NS  5000000

char *profile_store_folder(void)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	if (cache && cache[0] == '/')
		return mem_printf("%s/glmstream/profiles", cache);
	return home && home[0] == '/' ? mem_printf("%s/.cache/glmstream/profiles", home) : NULL;
}

void profile_store_make_folder(const char *folder)
{
	char *path = mem_strdup(folder);
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		(void)mkdir(path, 0700);
		*slash = '/';
	}
	(void)mkdir(path, 0700);
	free(path);
}

static char *profile_path(const char *folder, uint64_t fingerprint)
{
	return mem_printf("%s/%016llx" NAME_END, folder, (unsigned long long)fingerprint);
}

int profile_store_read(const char *folder, struct profile *p, struct err *e)
{
	char *path = profile_path(folder, p->fingerprint);
	bool is_trace, none = access(path, F_OK) && errno == ENOENT;
	int rc = none ? 0 : profile_read(p, path, &is_trace, e);
	free(path);
	return rc;
}

/* The descriptor that holds the lock, or a negative code. */
static int lock_folder(const char *folder, struct err *e)
{
	char *path = mem_printf("%s/lock", folder);
	const uint64_t start = clock_ns();
	int fd = TEMP_FAILURE_RETRY(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)),
		rc = 0;
	if (fd < 0)
		rc = err_errno(e, errno, "%s", path);
	while (!rc && flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			rc = err_errno(e, errno, "%s", path);
		else if (clock_ns() - start > LOCK_WAIT_NS)
			rc = err_set(e, -EAGAIN, "%s: held by another process for two seconds", path);
		else
			nanosleep(&(struct timespec){.tv_nsec = LOCK_NAP_NS}, NULL);
	}
	free(path);
	if (rc && fd >= 0)
		close(fd);
	return rc ? rc : fd;
}

/* --- the limits --- */

struct stored_profile {
	char name[NAME_DIGITS + sizeof NAME_END];
	struct timespec written;
	uint64_t bytes;
};

/* Whether this program may remove the file; a name proves nothing. */
static bool is_own_profile(const char *folder, const char *name)
{
	char *path = mem_printf("%s/%s", folder, name);
	const bool own = profile_may_replace(path);
	free(path);
	return own;
}

static bool is_profile_name(const char *name)
{
	return strspn(name, "0123456789abcdef") == NAME_DIGITS && !strcmp(name + NAME_DIGITS, NAME_END);
}

static int written_last_first(const void *a, const void *b)
{
	const struct stored_profile *x = a, *y = b;
	if (x->written.tv_sec != y->written.tv_sec)
		return x->written.tv_sec > y->written.tv_sec ? -1 : 1;
	if (x->written.tv_nsec != y->written.tv_nsec)
		return x->written.tv_nsec > y->written.tv_nsec ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Removes the profiles that were written longest ago until the limits hold; never `keep`. */
static void trim_folder(const char *folder, uint64_t keep)
{
	struct stored_profile *list = NULL;
	size_t n = 0, kept = 0;
	uint64_t bytes = 0;
	char kept_name[sizeof list->name];
	snprintf(kept_name, sizeof kept_name, "%016llx" NAME_END, (unsigned long long)keep);
	DIR *dir = opendir(folder);
	for (struct dirent *d; dir && (d = readdir(dir));) {
		struct stat st;
		if (!is_profile_name(d->d_name) ||
			fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode) ||
			!is_own_profile(folder, d->d_name))
			continue;
		if (!strcmp(d->d_name, kept_name)) {
			kept = 1;
			bytes = (uint64_t)st.st_size;
			continue;
		}
		list = mem_grow(list, n + 1, sizeof *list);
		list[n] = (struct stored_profile){.written = st.st_mtim, .bytes = (uint64_t)st.st_size};
		memcpy(list[n++].name, d->d_name, sizeof list->name);
	}
	if (n)
		qsort(list, n, sizeof *list, written_last_first);
	bool full = false;
	for (size_t i = 0; i < n; i++) {
		full |= kept == PROFILE_STORE_FILES || bytes + list[i].bytes > PROFILE_STORE_BYTES;
		if (full) {
			(void)unlinkat(dirfd(dir), list[i].name, 0);
		} else {
			kept++;
			bytes += list[i].bytes;
		}
	}
	free(list);
	if (dir)
		closedir(dir);
}

/* Forgets all but the most used experts. */
static void limit_keys(struct profile *p)
{
	struct profile_key *keys;
	size_t n;
	profile_order(p, &keys, &n);
	for (size_t i = PROFILE_STORE_KEYS; i < n; i++)
		p->count[(size_t)keys[i].layer * p->n_experts + (size_t)keys[i].expert] = 0;
	free(keys);
}

/* --- adding --- */

/* As profile_store_read, but a profile that this program may replace counts as none. */
static int read_stored(const char *folder, const char *path, struct profile *sum, struct err *e)
{
	struct err why = {0};
	const int rc = profile_store_read(folder, sum, &why);
	if (!rc || (rc == ERR_INPUT && profile_may_replace(path)))
		return 0;
	if (e)
		*e = why;
	return rc;
}

int profile_store_add(
	const char *folder, const struct profile *p, double token_accesses, struct err *e)
{
	struct profile sum;
	const size_t n = (size_t)p->n_layers * p->n_experts;
	double accesses = 0;
	profile_store_make_folder(folder);
	int lock = lock_folder(folder, e);
	if (lock < 0)
		return lock;
	char *path = profile_path(folder, p->fingerprint);
	int rc = profile_init(&sum, p->fingerprint, p->n_layers, p->n_experts);
	if (rc) {
		err_set(e, rc, "%s: no memory for the profile", path);
		goto out;
	}
	if ((rc = read_stored(folder, path, &sum, e)))
		goto fini;
	for (size_t i = 0; i < n; i++)
		accesses += p->count[i];
	const double keep = exp2(-accesses / (token_accesses * PROFILE_STORE_HALF_TOKENS));
	for (size_t i = 0; i < n; i++)
		sum.count[i] = sum.count[i] * keep + p->count[i];
	limit_keys(&sum);
	rc = profile_write(&sum, NULL, path, e);
	if (!rc)
		trim_folder(folder, p->fingerprint);
fini:
	profile_fini(&sum);
out:
	free(path);
	close(lock);
	return rc;
}
