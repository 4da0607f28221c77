/* SPDX-License-Identifier: MIT */
/*
 * Text, one line per event, each line with its own check value:
 *
 *     glmstream-convert 2 <fingerprint>
 *     <tensor> <check of fingerprint and tensor>
 *
 * A last line without line feed is what a crash leaves and is ignored. Any other flaw makes the
 * whole journal worthless.
 */
#include "tools/convert/convert_journal.h"

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_BYTES (64u << 20)
#define MAGIC     "glmstream-convert "
#define VERSION   "2 " /* 1: check values of another function */

static uint64_t check_value(uint64_t fingerprint, uint32_t id)
{
	return hash_bytes(hash_bytes(HASH_START, &fingerprint, 8), &id, 4);
}

static void head_line(char out[80], uint64_t fingerprint)
{
	snprintf(out, 80, MAGIC VERSION "%016" PRIx64 "\n", fingerprint);
}

/* Takes over what a text vouches for; false when it is of another conversion or damaged. */
static bool read_text(
	const char *text, uint64_t fingerprint, bool *done, size_t n, size_t *n_done, const char **why)
{
	char head[80], line[80];
	head_line(head, fingerprint);
	*why = "is damaged";
	if (strncmp(text, MAGIC VERSION, strlen(MAGIC VERSION))) {
		if (!strncmp(text, MAGIC, strlen(MAGIC)))
			*why = "is of another version of this program";
		return false;
	}
	if (strncmp(text, head, strlen(head))) {
		*why = "belongs to another source, recipe or version";
		return false;
	}
	for (const char *p = text + strlen(head), *end; (end = strchr(p, '\n')); p = end + 1) {
		char *rest;
		unsigned long id = strtoul(p, &rest, 10);
		if (id >= n)
			return false;
		int len = snprintf(
			line, sizeof line, "%lu %016" PRIx64 "\n", id, check_value(fingerprint, (uint32_t)id));
		if (len != end + 1 - p || memcmp(p, line, (size_t)len))
			return false;
		*n_done += !done[id];
		done[id] = true;
	}
	*why = NULL;
	return true;
}

/* What a crash left of a last line must not run into the next one. */
static int drop_torn_line(const struct convert_journal *j, const char *text, struct err *e)
{
	const char *end = strrchr(text, '\n');
	if (end[1] && TEMP_FAILURE_RETRY(ftruncate(j->fd, (off_t)(end + 1 - text))) < 0)
		return err_errno(e, errno, "%s", j->path);
	return 0;
}

/* Opens and locks the file that has the name: the holder of the lock may just have removed the one
 * that was opened. */
static int open_locked(struct convert_journal *j, const char *out, struct stat *st, struct err *e)
{
	for (;;) {
		struct stat named;
		j->fd = TEMP_FAILURE_RETRY(open(j->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
		if (j->fd < 0)
			return err_errno(e, errno, "%s", j->path);
		if (flock(j->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
			return err_set(e, ERR_RUN, "%s: another conversion is writing this output", out);
		if (fstat(j->fd, st) < 0 || !S_ISREG(st->st_mode))
			return err_set(e, ERR_INPUT, "%s: is not a regular file", j->path);
		if (!stat(j->path, &named) && named.st_dev == st->st_dev && named.st_ino == st->st_ino)
			return 0;
		close(j->fd);
	}
}

int convert_journal_open(struct convert_journal *j, const char *out, bool force,
	uint64_t fingerprint, bool *done, size_t n, size_t *n_done, struct buf *notes, struct err *e)
{
	struct stat st;
	const char *why = NULL;
	int code = 0;
	*n_done = 0;
	memset(done, 0, n * sizeof *done);
	j->path = mem_printf("%s.journal", out);
	j->fingerprint = fingerprint;
	if ((code = out_file_may_replace(j->path, &out_journal, force, e)))
		goto fail;
	if ((code = open_locked(j, out, &st, e)))
		goto fail;
	j->is_new = !st.st_size;
	if (st.st_size > 0 && (uint64_t)st.st_size <= MAX_BYTES) {
		char *text = mem_new((size_t)st.st_size + 1, 1);
		ssize_t got = pread(j->fd, text, (size_t)st.st_size, 0);
		if (got != st.st_size || memchr(text, 0, (size_t)got))
			why = "is damaged";
		else if (read_text(text, fingerprint, done, n, n_done, &why))
			code = drop_torn_line(j, text, e);
		free(text);
		if (code)
			goto fail;
	} else if (st.st_size) {
		why = "is damaged";
	}
	if (why) {
		buf_printf(notes, "%s %s: starting over\n", j->path, why);
		memset(done, 0, n * sizeof *done);
		*n_done = 0;
	}
	return 0;
fail:
	convert_journal_close(j, false);
	return code;
}

static int append(struct convert_journal *j, const char *text, size_t n, struct err *e)
{
	while (n) {
		ssize_t k = write(j->fd, text, n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return err_errno(e, k < 0 ? errno : ENOSPC, "%s", j->path);
		text += k, n -= (size_t)k;
	}
	return TEMP_FAILURE_RETRY(fdatasync(j->fd)) < 0 ? err_errno(e, errno, "%s", j->path) : 0;
}

int convert_journal_restart(struct convert_journal *j, struct err *e)
{
	char head[80];
	head_line(head, j->fingerprint);
	if (TEMP_FAILURE_RETRY(ftruncate(j->fd, 0)) < 0)
		return err_errno(e, errno, "%s", j->path);
	return append(j, head, strlen(head), e);
}

int convert_journal_add(struct convert_journal *j, const uint32_t *ids, size_t n, struct err *e)
{
	struct buf b = {0};
	for (size_t i = 0; i < n; i++)
		buf_printf(&b, "%u %016" PRIx64 "\n", ids[i], check_value(j->fingerprint, ids[i]));
	int code = n ? append(j, b.data, b.len, e) : 0;
	buf_free(&b);
	return code;
}

void convert_journal_close(struct convert_journal *j, bool remove)
{
	if (j->fd >= 0) {
		if (remove && unlink(j->path)) /* still locked: nobody else has begun with it */
			log_warn("%s: cannot be removed (%m); it is of no use any more", j->path);
		close(j->fd);
	}
	free(j->path);
	*j = (struct convert_journal){.fd = -1};
}
