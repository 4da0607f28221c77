/* SPDX-License-Identifier: MIT */
/*
 * Text, one line per event, each line with its own check value:
 *
 *     glmstream-convert 5 <fingerprint>
 *     <tensor> <pieces> <source> <check of fingerprint, tensor, pieces and source>
 *     types <key> <two digits a type> <check of the line up to here>
 *
 * The last line of a tensor counts, and the last line of types. Source 0 and no pieces: the tensor
 * is not done. A last line without line feed is what a crash leaves and is ignored. Any other flaw
 * makes the whole journal worthless, except for whole lines of types (convert_journal_find_types).
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
#include <sys/stat.h>
#include <unistd.h>

#define MAX_BYTES (64u << 20)
#define MAGIC     "glmstream-convert "
/* 1: check values of another function; 2: no sources; 3: no pieces; 4: no types */
#define VERSION    "5 "
#define LINE_BYTES 96
#define TYPES      "types "
#define HEX_DIGITS 16

static uint64_t source_of(const struct convert_journal *j, uint32_t id)
{
	return j->sources ? j->sources[id] : 1;
}

static uint64_t pieces_of(const struct convert_journal *j, uint32_t id)
{
	return j->pieces ? j->pieces[id] : 1;
}

/* Returns its length. */
static int tensor_line(
	char out[LINE_BYTES], uint64_t fingerprint, uint32_t id, uint64_t pieces, uint64_t source)
{
	const uint64_t head = hash_bytes(hash_bytes(HASH_START, &fingerprint, 8), &id, 4),
				   check = hash_u64(hash_u64(head, pieces), source);
	return snprintf(out, LINE_BYTES, "%u %" PRIu64 " %016" PRIx64 " %016" PRIx64 "\n", id, pieces,
		source, check);
}

static void head_line(char out[80], uint64_t fingerprint)
{
	snprintf(out, 80, MAGIC VERSION "%016" PRIx64 "\n", fingerprint);
}

/* Appends to b the line of n types; its length depends on n alone. */
static void types_line(struct buf *b, uint64_t key, const uint8_t *types, size_t n)
{
	const size_t start = b->len;
	buf_printf(b, TYPES "%016" PRIx64 " ", key);
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "%02x", types[i]);
	buf_putc(b, ' ');
	buf_printf(b, "%016" PRIx64 "\n", hash_bytes(HASH_START, b->data + start, b->len - start));
}

/* Whether the line from p up to its line feed is a whole one of types. */
static bool is_types_line(const char *p, const char *end)
{
	const ptrdiff_t least = (ptrdiff_t)strlen(TYPES) + 2 * HEX_DIGITS + 2;
	if (strncmp(p, TYPES, strlen(TYPES)) || end - p < least)
		return false;
	char check[HEX_DIGITS + 1];
	const char *const digits = end - HEX_DIGITS;
	snprintf(check, sizeof check, "%016" PRIx64, hash_bytes(HASH_START, p, (size_t)(digits - p)));
	return !memcmp(check, digits, HEX_DIGITS);
}

/* Fills j->listed; false when the text is of another conversion or damaged. */
static bool read_text(const struct convert_journal *j, const char *text, const char **why)
{
	char head[80], line[LINE_BYTES];
	head_line(head, j->fingerprint);
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
		if (is_types_line(p, end))
			continue;
		unsigned long id = strtoul(p, &rest, 10);
		if (id >= j->n)
			return false;
		const uint64_t pieces = strtoull(rest, &rest, 10), source = strtoull(rest, NULL, 16);
		int len = tensor_line(line, j->fingerprint, (uint32_t)id, pieces, source);
		if (len != end + 1 - p || memcmp(p, line, (size_t)len) ||
			pieces > pieces_of(j, (uint32_t)id) || !pieces != !source)
			return false;
		j->listed[id] = source;
		j->finished[id] = pieces;
	}
	*why = NULL;
	return true;
}

/* Cuts off a last line without line feed, which a crash leaves: the next one must not continue it.
 */
static int drop_torn_line(const struct convert_journal *j, const char *text, struct err *e)
{
	const char *end = strrchr(text, '\n');
	if (end[1] && TEMP_FAILURE_RETRY(ftruncate(j->fd, (off_t)(end + 1 - text))) < 0)
		return err_errno(e, errno, "%s", j->path);
	return 0;
}

/* Opens and locks the journal. Tries again if the file was removed or replaced between the two: the
 * holder of its lock has ended. */
static int open_locked(
	struct convert_journal *j, const char *out, struct stat *st, struct buf *notes, struct err *e)
{
	for (;;) {
		struct stat named;
		char why[160];
		j->fd = TEMP_FAILURE_RETRY(open(j->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
		if (j->fd < 0)
			return err_errno(e, errno, "%s", j->path);
		const enum out_lock lock = out_file_lock(j->fd);
		if (lock == OUT_LOCKED_BY_OTHER)
			return err_set(e, ERR_RUN, "%s: another conversion is writing this output", out);
		if (lock == OUT_LOCK_FAILED)
			return err_errno(e, errno, "%s: cannot be locked", j->path);
		snprintf(why, sizeof why, "%s", lock == OUT_NO_LOCKS ? strerror(errno) : "");
		if (fstat(j->fd, st) < 0 || !S_ISREG(st->st_mode))
			return err_set(e, ERR_INPUT, "%s: is not a regular file", j->path);
		if (!stat(j->path, &named) && named.st_dev == st->st_dev && named.st_ino == st->st_ino) {
			if (lock == OUT_NO_LOCKS)
				buf_printf(notes,
					"%s: the file system cannot lock it (%s); the conversion goes on, but nothing "
					"stops a second one from writing the same output\n",
					j->path, why);
			return 0;
		}
		close(j->fd);
	}
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

int convert_journal_drop(
	struct convert_journal *j, const uint32_t *ids, size_t n, size_t *n_dropped, struct err *e)
{
	struct buf b = {0};
	char line[LINE_BYTES];
	size_t dropped = 0;
	for (size_t i = 0; i < n; i++)
		if (j->listed[ids[i]]) {
			j->listed[ids[i]] = j->finished[ids[i]] = 0;
			buf_append(&b, line, (size_t)tensor_line(line, j->fingerprint, ids[i], 0, 0));
			dropped++;
		}
	int code = dropped ? append(j, b.data, b.len, e) : 0;
	buf_free(&b);
	if (n_dropped)
		*n_dropped = dropped;
	return code;
}

/* Drops tensors that were made from a source that has changed: they will be converted again. */
static int drop_other(struct convert_journal *j, struct err *e)
{
	uint32_t *ids = NEW_ARRAY(uint32_t, j->n);
	size_t n = 0;
	for (uint32_t i = 0; i < j->n; i++)
		if (j->listed[i] && j->listed[i] != source_of(j, i))
			ids[n++] = i;
	int code = convert_journal_drop(j, ids, n, &j->n_other, e);
	free(ids);
	return code;
}

int convert_journal_open(struct convert_journal *j, const char *out, bool force,
	uint64_t fingerprint, const uint64_t *sources, const uint64_t *pieces, uint64_t *done, size_t n,
	size_t *n_done, struct buf *notes, struct err *e)
{
	struct stat st;
	const char *why = NULL;
	int code = 0;
	*n_done = 0;
	memset(done, 0, n * sizeof *done);
	j->path = mem_printf("%s.journal", out);
	j->fd = -1;
	j->fingerprint = fingerprint;
	j->n = n;
	j->sources = sources;
	j->pieces = pieces;
	j->n_other = 0;
	j->listed = NEW_ARRAY(uint64_t, n);
	j->finished = NEW_ARRAY(uint64_t, n);
	if ((code = out_file_may_replace(j->path, &out_journal, force, e)))
		goto fail;
	if ((code = open_locked(j, out, &st, notes, e)))
		goto fail;
	j->is_new = !st.st_size;
	if (st.st_size > 0 && (uint64_t)st.st_size <= MAX_BYTES) {
		char *text = mem_new((size_t)st.st_size + 1, 1);
		ssize_t got = pread(j->fd, text, (size_t)st.st_size, 0);
		if (got != st.st_size || memchr(text, 0, (size_t)got))
			why = "is damaged";
		else if (read_text(j, text, &why))
			code = drop_torn_line(j, text, e);
		free(text);
		if (code)
			goto fail;
	} else if (st.st_size) {
		why = "is damaged";
	}
	if (why) {
		buf_printf(notes, "%s %s: starting over\n", j->path, why);
		memset(j->listed, 0, n * sizeof *j->listed);
		memset(j->finished, 0, n * sizeof *j->finished);
	}
	for (uint32_t i = 0; i < n; i++) {
		done[i] = j->listed[i] == source_of(j, i) ? j->finished[i] : 0;
		*n_done += done[i] == pieces_of(j, i);
	}
	if (!(code = drop_other(j, e)))
		return 0;
fail:
	convert_journal_close(j, false);
	return code;
}

int convert_journal_restart(struct convert_journal *j, struct err *e)
{
	char head[80];
	head_line(head, j->fingerprint);
	if (TEMP_FAILURE_RETRY(ftruncate(j->fd, 0)) < 0)
		return err_errno(e, errno, "%s", j->path);
	memset(j->listed, 0, j->n * sizeof *j->listed);
	memset(j->finished, 0, j->n * sizeof *j->finished);
	return append(j, head, strlen(head), e);
}

int convert_journal_add(
	struct convert_journal *j, const struct journal_entry *entries, size_t n, struct err *e)
{
	struct buf b = {0};
	char line[LINE_BYTES];
	for (size_t i = 0; i < n; i++) {
		const uint32_t id = entries[i].id;
		j->listed[id] = source_of(j, id);
		j->finished[id] = entries[i].pieces;
		buf_append(&b, line,
			(size_t)tensor_line(line, j->fingerprint, id, entries[i].pieces, j->listed[id]));
	}
	int code = n ? append(j, b.data, b.len, e) : 0;
	buf_free(&b);
	return code;
}

/* The text of a journal of this version, which the caller frees; NULL: there is none. */
static char *read_journal(const char *out)
{
	char *path = mem_printf("%s.journal", out), *text = NULL;
	struct stat st;
	const int fd = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
	free(path);
	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size <= MAX_BYTES) {
		text = mem_new((size_t)st.st_size + 1, 1);
		const ssize_t got = TEMP_FAILURE_RETRY(pread(fd, text, (size_t)st.st_size, 0));
		if (got != st.st_size || memchr(text, 0, (size_t)got) ||
			strncmp(text, MAGIC VERSION, strlen(MAGIC VERSION)) != 0) {
			free(text);
			text = NULL;
		}
	}
	close(fd);
	return text;
}

bool convert_journal_find_types(const char *out, uint64_t key, uint8_t *types, size_t n)
{
	char *text = read_journal(out), *found = NULL;
	for (char *p = text, *end; p && (end = strchr(p, '\n')); p = end + 1) {
		*end = 0;
		if (is_types_line(p, end))
			found = p;
	}
	const size_t at = strlen(TYPES) + HEX_DIGITS + 1;
	bool same = found && strlen(found) == at + 2 * n + 1 + HEX_DIGITS;
	if (same) {
		for (size_t i = 0; i < n; i++) {
			const char digits[3] = {found[at + 2 * i], found[at + 2 * i + 1], 0};
			types[i] = (uint8_t)strtoul(digits, NULL, 16);
		}
		/* key and digits are right if they make the same line */
		struct buf line = {0};
		types_line(&line, key, types, n);
		same = !strncmp(found, line.data, line.len - 1);
		buf_free(&line);
	}
	free(text);
	return same;
}

int convert_journal_add_types(
	struct convert_journal *j, uint64_t key, const uint8_t *types, size_t n, struct err *e)
{
	struct buf line = {0};
	types_line(&line, key, types, n);
	const int code = append(j, line.data, line.len, e);
	buf_free(&line);
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
	free(j->listed);
	free(j->finished);
	*j = (struct convert_journal){.fd = -1};
}
