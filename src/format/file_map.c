/* SPDX-License-Identifier: MIT */
/* Read-only file mappings. The descriptor is closed at once: readers that want O_DIRECT open the
 * file by themselves. */
#include "src/format/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
out:
	close(fd);
	return code;
}

void file_map_close(struct file_map *m)
{
	if (m->data)
		munmap((void *)(uintptr_t)m->data, (size_t)m->size);
	*m = (struct file_map){0};
}
