/* SPDX-License-Identifier: MIT */
/* Read-only file mappings. The descriptor stays open to see whether the file changes. Readers that
 * want O_DIRECT open the file by themselves. */
#include "src/format/file_map.h"

#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lost bytes ---- */

#define NOTHING_LOST UINT64_MAX
#define DROP_ALIGN   ((uint64_t)2 << 20) /* as pages_drop_cached */

/* The next fstat of a file comes this many times the duration of the last one later, at the
 * earliest: callers spend at most 1 / LOOK_SHARE of their time in it. But no later than
 * LOOK_MOST_NS: a call that took long may only have waited for a processor. */
#define LOOK_SHARE   100
#define LOOK_MOST_NS 20000000u

/* A mapped file. The handler knows its address range. Watches are never freed, so that the handler
 * may walk the list at any time; those of closed mappings are used again. */
struct file_map_watch {
	struct file_map_watch *next; /* constant once in the list */
	atomic_uintptr_t begin;      /* 0: not in use */
	atomic_size_t size;
	atomic_uint_fast64_t lost_from; /* offset; NOTHING_LOST */
	atomic_uint_fast64_t look_ns;   /* clock_ns from which on the next fstat is due */
	atomic_bool changed;            /* the file has been written to since open */
	int fd;                         /* constant while in use */
	struct stat as;                 /* constant while in use: the file's state at open */
};

static _Atomic(struct file_map_watch *) watches;
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER; /* guards use and reuse */
static struct sigaction earlier;                               /* constant once installed */
static uintptr_t page_bytes;                                   /* constant once installed */

static void note_lost(struct file_map_watch *w, uint64_t offset)
{
	uint_fast64_t known = atomic_load(&w->lost_from);
	while (offset < known && !atomic_compare_exchange_weak(&w->lost_from, &known, offset))
		;
}

/* If the address lies in a mapping of ours, makes the mapping read as zeros from its page on, notes
 * the offset, and returns true. */
static bool replace_lost(uintptr_t at)
{
	for (struct file_map_watch *w = atomic_load(&watches); w; w = w->next) {
		uintptr_t begin = atomic_load(&w->begin), offset = at - begin;
		size_t size = atomic_load(&w->size);
		if (!begin || at < begin || offset >= size)
			continue;
		offset &= ~(page_bytes - 1);
		note_lost(w, offset);
		/* MAP_NORESERVE: the lost part may be larger than memory */
		return mmap((void *)(begin + offset), size - offset, PROT_READ,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
	}
	return false;
}

/* Calls only what may be called in a signal handler: mmap, sigaction, raise, and atomics. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
	int saved = errno;
	if (info->si_code > 0 && replace_lost((uintptr_t)info->si_addr)) {
		errno = saved;
		return;
	}
	if (earlier.sa_flags & SA_SIGINFO)
		earlier.sa_sigaction(number, info, context);
	else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN)
		earlier.sa_handler(number);
	else if (info->si_code > 0)
		sigaction(SIGBUS, &earlier, NULL);    /* the access is tried again, and ends the program */
	else if (earlier.sa_handler == SIG_DFL) { /* kill: sent again, it ends the program */
		sigaction(SIGBUS, &earlier, NULL);
		raise(number);
	}
	errno = saved;
}

static void install_handler(void)
{
	struct sigaction a = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	sigemptyset(&a.sa_mask);
	sigaction(SIGBUS, &a, &earlier);
}

static struct file_map_watch *watch_begin(const void *data, int fd, const struct stat *st)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, install_handler);
	pthread_mutex_lock(&watch_lock);
	struct file_map_watch *w = atomic_load(&watches);
	while (w && atomic_load(&w->begin))
		w = w->next;
	bool is_new = !w;
	if (is_new) {
		w = NEW(struct file_map_watch);
		w->next = atomic_load(&watches);
	}
	w->fd = fd;
	w->as = *st;
	atomic_store(&w->look_ns, 0);
	atomic_store(&w->changed, false);
	atomic_store(&w->lost_from, NOTHING_LOST);
	atomic_store(&w->size, (size_t)st->st_size);
	atomic_store(&w->begin, (uintptr_t)data);
	if (is_new)
		atomic_store(&watches, w);
	pthread_mutex_unlock(&watch_lock);
	return w;
}

static void watch_end(struct file_map_watch *w)
{
	close(w->fd);
	pthread_mutex_lock(&watch_lock);
	atomic_store(&w->begin, 0);
	pthread_mutex_unlock(&watch_lock);
}

/* Compares the file's size and time of modification with those at open. */
static void look_at_file(struct file_map_watch *w, uint64_t now)
{
	struct stat st;
	if (!fstat(w->fd, &st)) {
		if (st.st_size < w->as.st_size)
			note_lost(w, (uint64_t)st.st_size);
		else if (st.st_size > w->as.st_size || st.st_mtim.tv_sec != w->as.st_mtim.tv_sec ||
				 st.st_mtim.tv_nsec != w->as.st_mtim.tv_nsec)
			atomic_store(&w->changed, true);
	}
	const uint64_t end = clock_ns();
	atomic_store_explicit(
		&w->look_ns, end + MIN(LOOK_SHARE * (end - now), LOOK_MOST_NS), memory_order_relaxed);
}

void file_map_look(const struct file_map *m)
{
	if (m->watch)
		look_at_file(m->watch, clock_ns());
}

int file_map_check(const struct file_map *m, const char *path, struct err *e)
{
	struct file_map_watch *w = m->watch;
	if (!w)
		return 0;
	const uint64_t now = clock_ns();
	if (now >= atomic_load_explicit(&w->look_ns, memory_order_relaxed))
		look_at_file(w, now);
	const uint64_t at = atomic_load_explicit(&w->lost_from, memory_order_relaxed);
	if (at != NOTHING_LOST)
		return err_set(e, ERR_RUN,
			"%s: what lies behind byte %llu is lost: the file became shorter while it was in use, "
			"or its drive failed",
			path, (unsigned long long)at);
	if (atomic_load_explicit(&w->changed, memory_order_relaxed))
		return err_set(e, ERR_RUN,
			"%s: was changed while in use: another program has written into the file", path);
	return 0;
}

int file_map_check_path(const struct file_map *m, const char *path, struct err *e)
{
	struct stat st;
	if (!m->watch || stat(path, &st) ||
		(st.st_dev == m->watch->as.st_dev && st.st_ino == m->watch->as.st_ino))
		return 0;
	return err_set(e, ERR_RUN, "%s: was replaced while it was opened", path);
}

/* ---- open and close ---- */

int file_map_open(struct file_map *m, const char *path, struct err *e)
{
	int code = 0;
	*m = (struct file_map){0};
	/* O_NONBLOCK: opening a pipe by mistake must not hang */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return err_errno(e, errno, "%s", path);
	struct stat st;
	if (fstat(fd, &st) < 0) {
		code = err_errno(e, errno, "%s", path);
		goto out;
	}
	if (S_ISDIR(st.st_mode)) {
		code = err_set(e, ERR_INPUT, "%s: is a directory, a file is expected", path);
		goto out;
	}
	if (!S_ISREG(st.st_mode)) {
		code = err_set(e, ERR_INPUT, "%s: is not a regular file", path);
		goto out;
	}
	if (st.st_size == 0) {
		code = err_set(e, ERR_INPUT, "%s: the file is empty", path);
		goto out;
	}
	void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		code = err_errno(e, errno, "%s: cannot map %lld bytes", path, (long long)st.st_size);
		goto out;
	}
	m->data = p;
	m->size = (uint64_t)st.st_size;
	m->watch = watch_begin(p, fd, &st);
	return 0;
out:
	close(fd);
	return code;
}

void file_map_close(struct file_map *m)
{
	if (m->watch)
		watch_end(m->watch);
	if (m->data)
		munmap((void *)(uintptr_t)m->data, (size_t)m->size);
	*m = (struct file_map){0};
}

void file_map_drop_cached(const struct file_map *m, uint64_t offset, uint64_t bytes)
{
	if (!m->data)
		return;
	/* first out of this process: the page cache keeps what is mapped */
	const uint64_t from = num_align_down(offset, DROP_ALIGN),
				   to = MIN(num_align_up(offset + bytes, DROP_ALIGN), m->size);
	madvise((void *)(uintptr_t)(m->data + from), (size_t)(to - from), MADV_DONTNEED);
	pages_drop_cached(m->watch->fd, offset, bytes);
}
