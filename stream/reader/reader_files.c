/* SPDX-License-Identifier: MIT */
/*
 * Opens the files of a reader. Every file is opened twice where O_DIRECT works: aligned reads go
 * past the page cache, the others (unaligned requests, the bytes after a short read) through it.
 * Systems differ in where they refuse O_DIRECT, so there are three tests: statx (kernel 6.1 and
 * later), open (tmpfs before 6.6, some network filesystems), and one small read (filesystems that
 * accept the flag and refuse the read).
 */
#include "stream/reader/reader_files.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN_USUAL 4096u /* also the most that is accepted: slices are cut in multiples of it */

/* Alignment of offsets and of memory for O_DIRECT as the kernel states it, 4096 when it says
 * nothing. False: it says that O_DIRECT is not possible, or needs more than a page. */
static bool direct_alignment(int fd, uint32_t *offset_align, uint32_t *memory_align)
{
	*offset_align = *memory_align = ALIGN_USUAL;
#ifdef STATX_DIOALIGN
	struct statx sx;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 && (sx.stx_mask & STATX_DIOALIGN)) {
		if (!sx.stx_dio_offset_align || !sx.stx_dio_mem_align)
			return false;
		if (!num_is_pow2(sx.stx_dio_offset_align) || sx.stx_dio_offset_align > ALIGN_USUAL ||
			!num_is_pow2(sx.stx_dio_mem_align) || sx.stx_dio_mem_align > ALIGN_USUAL)
			return false;
		*offset_align = sx.stx_dio_offset_align;
		/* Drivers that claim 4 copy or split when a run does not start on a sector: ask for 512 at
		 * least. */
		*memory_align = MAX(sx.stx_dio_mem_align, 512u);
	}
#else
	(void)fd;
#endif
	return true;
}

/* Reads the first unit of the file. 0, or the errno. */
static int try_direct(int fd, uint32_t unit)
{
	void *p = NULL;
	if (posix_memalign(&p, MAX(unit, ALIGN_USUAL), unit))
		return ENOMEM;
	ssize_t n;
	do
		n = pread(fd, p, unit, 0);
	while (n < 0 && errno == EINTR);
	int code = n < 0 ? errno : 0;
	free(p);
	return code;
}

/* Tries to get a second descriptor with O_DIRECT; leaves fd_direct at -1 and says why when it
 * cannot be. */
static void open_direct(struct reader_handle *h, char *why, size_t why_bytes)
{
	uint32_t offset_align, memory_align;
	if (!direct_alignment(h->fd, &offset_align, &memory_align)) {
		snprintf(why, why_bytes, "its filesystem has no usable O_DIRECT");
		return;
	}
	int fd = open(h->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (fd < 0) {
		snprintf(why, why_bytes, "its filesystem refuses O_DIRECT (open: %s)", err_name(-errno));
		return;
	}
	struct stat a, b;
	if (fstat(fd, &a) || fstat(h->fd, &b) || a.st_ino != b.st_ino || a.st_dev != b.st_dev) {
		snprintf(why, why_bytes, "it was replaced while being opened");
		close(fd);
		return;
	}
	int code = try_direct(fd, offset_align);
	if (code == EINVAL && offset_align < ALIGN_USUAL) {
		offset_align = ALIGN_USUAL;
		code = try_direct(fd, offset_align);
	}
	if (code) {
		snprintf(why, why_bytes, "its filesystem refuses O_DIRECT (read: %s)", err_name(-code));
		close(fd);
		return;
	}
	h->fd_direct = fd;
	h->offset_align = offset_align;
	h->memory_align = memory_align;
}

static int file_open(
	struct reader_files *t, struct reader_handle *h, bool direct, dev_t *dev, struct err *e)
{
	h->fd = open(h->path, O_RDONLY | O_CLOEXEC);
	if (h->fd < 0)
		return err_errno(e, errno, "%s", h->path);
	struct stat st;
	if (fstat(h->fd, &st))
		return err_errno(e, errno, "%s", h->path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, ERR_INPUT, "%s: not a regular file", h->path);
	h->size = (uint64_t)st.st_size;
	*dev = st.st_dev;
	/* Experts are read in no order: read-ahead beyond the request would be thrown away. */
	posix_fadvise(h->fd, 0, 0, POSIX_FADV_RANDOM);
	if (direct) {
		char why[160] = "";
		open_direct(h, why, sizeof why);
		if (h->fd_direct >= 0)
			t->n_direct++;
		else if (!t->why_buffered[0])
			snprintf(t->why_buffered, sizeof t->why_buffered, "%s: %s", h->path, why);
	}
	return 0;
}

/* Numbers the drives in order of appearance: by the caller's number, else by st_dev. */
static void assign_drives(struct reader_files *t, const struct reader_file *files, const dev_t *dev)
{
	for (unsigned i = 0; i < t->n; i++) {
		unsigned k = 0;
		while (k < i && (files[k].drive != files[i].drive || (!files[i].drive && dev[k] != dev[i])))
			k++;
		t->h[i].drive = k < i ? t->h[k].drive : t->n_drives++;
	}
}

int reader_files_open(
	struct reader_files *t, const struct reader_file *files, unsigned n, bool direct, struct err *e)
{
	*t = (struct reader_files){.n = n};
	if (!n || n > READER_FILES_MAX)
		return err_set(e, ERR_USAGE, "reader: %u files, expected 1 to %u", n, READER_FILES_MAX);
	t->h = NEW_ARRAY(struct reader_handle, n);
	dev_t *dev = NEW_ARRAY(dev_t, n);
	for (unsigned i = 0; i < n; i++) {
		t->h[i] =
			(struct reader_handle){.fd = -1, .fd_direct = -1, .offset_align = 1, .memory_align = 1};
		t->h[i].next_replica = i;
	}
	int code = 0;
	for (unsigned i = 0; i < n && !code; i++) {
		struct reader_handle *h = &t->h[i];
		h->path = mem_strdup(files[i].path);
		code = file_open(t, h, direct, &dev[i], e);
		if (!code && files[i].replica_of) {
			unsigned first = files[i].replica_of - 1;
			if (first >= i || files[first].replica_of)
				code = err_set(e, ERR_USAGE,
					"%s: a copy must name an earlier file that is no copy itself", h->path);
			else if (t->h[first].size != h->size)
				code = err_set(e, ERR_INPUT, "%s: %llu bytes, but its copy %s has %llu", h->path,
					(unsigned long long)h->size, t->h[first].path,
					(unsigned long long)t->h[first].size);
			else {
				h->next_replica = t->h[first].next_replica;
				t->h[first].next_replica = i;
			}
		}
	}
	if (!code)
		assign_drives(t, files, dev);
	free(dev);
	if (code)
		reader_files_close(t);
	return code;
}

void reader_files_close(struct reader_files *t)
{
	for (unsigned i = 0; t->h && i < t->n; i++) {
		if (t->h[i].fd >= 0)
			close(t->h[i].fd);
		if (t->h[i].fd_direct >= 0)
			close(t->h[i].fd_direct);
		free(t->h[i].path);
	}
	free(t->h);
	*t = (struct reader_files){0};
}
