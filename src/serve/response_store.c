/* SPDX-License-Identifier: MIT */
/*
 * A list by last use, and files. A file is a line that names its kind, the number of bytes of the
 * response, the response, and the items. The time of last use of a file is its mtime.
 */
#include "src/serve/response_store.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX   ".response"
#define KIND     "glmstream response 1\n"
#define NAME_LEN (RESPONSE_ID_LEN + sizeof SUFFIX - 1)
/* Most bytes of a file before the response. */
#define FILE_BYTES_MORE (sizeof KIND + 24)

struct kept_response {
	struct kept_response *newer, *older; /* by use */
	char id[RESPONSE_ID_LEN + 1];
	size_t n_response, n_items;
	char bytes[]; /* [n_response] the response, [n_items] behind it the items */
};

struct response_store {
	pthread_mutex_t lock; /* guards everything, files too */
	struct kept_response *newest, *oldest;
	uint64_t limit; /* bytes in memory; constant */
	struct response_store_stats stats;
	char *folder; /* NULL: none */
	int fd;
};

static bool is_id(const char *id)
{
	return strlen(id) == RESPONSE_ID_LEN && !strncmp(id, "resp_", 5) &&
		   strspn(id + 5, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") ==
			   RESPONSE_ID_LEN - 5;
}

/* ---- memory ---- */

static size_t kept_size(size_t n_response, size_t n_items)
{
	return sizeof(struct kept_response) + n_response + n_items;
}

static size_t kept_bytes(const struct kept_response *k)
{
	return mem_block_bytes(kept_size(k->n_response, k->n_items));
}

static void kept_unlink(struct response_store *s, struct kept_response *k)
{
	*(k->newer ? &k->newer->older : &s->newest) = k->older;
	*(k->older ? &k->older->newer : &s->oldest) = k->newer;
	s->stats.responses--;
	s->stats.bytes -= kept_bytes(k);
}

static void kept_link(struct response_store *s, struct kept_response *k)
{
	k->newer = NULL;
	k->older = s->newest;
	*(s->newest ? &s->newest->newer : &s->oldest) = k;
	s->newest = k;
	s->stats.responses++;
	s->stats.bytes += kept_bytes(k);
}

static struct kept_response *kept_find(struct response_store *s, const char *id)
{
	for (struct kept_response *k = s->newest; k; k = k->older)
		if (!strcmp(k->id, id))
			return k;
	return NULL;
}

static bool is_full(const struct response_store *s)
{
	return s->stats.responses > RESPONSE_STORE_MAX || s->stats.bytes > s->limit;
}

/* A block for a response that is not in the store yet; its bytes are to be filled in. NULL: memory
 * is exhausted; the scope is marked. */
static struct kept_response *kept_new(const char *id, size_t n_response, size_t n_items)
{
	struct kept_response *k = mem_try_new(kept_size(n_response, n_items), 1);
	if (!k) {
		mem_scope_fail();
		return NULL;
	}
	memcpy(k->id, id, RESPONSE_ID_LEN);
	k->n_response = n_response;
	k->n_items = n_items;
	return k;
}

/* Forgets responses until the bounds hold, but not this one. */
static void kept_add(struct response_store *s, struct kept_response *k)
{
	kept_link(s, k);
	for (struct kept_response *old = s->oldest, *newer; old != k && is_full(s); old = newer) {
		newer = old->newer;
		kept_unlink(s, old);
		free(old);
		s->stats.forgotten++;
	}
}

/* ---- files ---- */

static void file_name(const char *id, char out[NAME_LEN + 1])
{
	snprintf(out, NAME_LEN + 1, "%s" SUFFIX, id);
}

/* An open file of ours, behind its first line. NULL: there is none of this name, or memory is
 * exhausted, which marks the scope. */
static FILE *file_open(const struct response_store *s, const char *name)
{
	char kind[sizeof KIND] = "";
	struct stat st;
	FILE *f = NULL;
	int fd = openat(s->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && !(f = fdopen(fd, "r")))
		mem_scope_fail();
	if (!f && fd >= 0)
		close(fd);
	if (f && (fread(kind, 1, sizeof KIND - 1, f) != sizeof KIND - 1 || strcmp(kind, KIND) != 0)) {
		fclose(f);
		f = NULL;
	}
	return f;
}

static bool file_remove(const struct response_store *s, const char *name)
{
	FILE *f = file_open(s, name);
	if (!f)
		return false;
	fclose(f);
	return !unlinkat(s->fd, name, 0);
}

/* Reads a response from its file. It joins the list only if it is within the bound of memory; else
 * the caller frees it. NULL: no file, a damaged one, or memory is exhausted, which marks the scope.
 */
static struct kept_response *file_load(struct response_store *s, const char *id)
{
	char name[NAME_LEN + 1], line[64], *end;
	struct stat st;
	struct kept_response *k = NULL;
	file_name(id, name);
	bool damaged = true;
	FILE *f = s->folder ? file_open(s, name) : NULL;
	if (!f)
		return NULL;
	if (fgets(line, sizeof line, f) && !fstat(fileno(f), &st)) {
		unsigned long long n_response = strtoull(line, &end, 10);
		long at = ftell(f);
		uint64_t rest = at >= 0 && st.st_size > at ? (uint64_t)(st.st_size - at) : 0;
		if (rest && rest <= RESPONSE_FOLDER_BYTES && n_response <= rest && *end == '\n') {
			k = kept_new(id, n_response, rest - n_response);
			damaged = k;
		}
		if (k && fread(k->bytes, 1, rest, f) != rest) {
			free(k);
			k = NULL;
		}
		if (k && kept_bytes(k) <= s->limit)
			kept_add(s, k);
	}
	if (k)
		futimens(fileno(f), NULL);
	else if (damaged)
		log_warn("%s/%s is damaged", s->folder, name);
	else
		log_warn("no memory to read %s/%s", s->folder, name);
	fclose(f);
	return k;
}

struct response_entry {
	char name[NAME_LEN + 1];
	uint64_t bytes;
	struct timespec used;
};

static int compare_use(const void *a, const void *b)
{
	const struct response_entry *x = a, *y = b;
	if (x->used.tv_sec != y->used.tv_sec)
		return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
	return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

/* Removes the files that were used longest ago until the bounds hold. A file above the bound of
 * bytes, which is never read, goes first: no other has to go for it. */
static void files_bound(struct response_store *s)
{
	struct response_entry *list = NULL;
	size_t n = 0, gone = 0;
	uint64_t bytes = 0;
	DIR *d = opendir(s->folder);
	if (!d)
		return;
	for (const struct dirent *x; (x = readdir(d));) {
		struct stat st;
		if (strlen(x->d_name) != NAME_LEN || strcmp(x->d_name + RESPONSE_ID_LEN, SUFFIX) != 0 ||
			fstatat(s->fd, x->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			continue;
		if ((uint64_t)st.st_size > RESPONSE_FOLDER_BYTES) {
			file_remove(s, x->d_name);
			continue;
		}
		if (!mem_grow_array(&list, n + 1, sizeof *list))
			break; /* next time */
		memcpy(list[n].name, x->d_name, sizeof list[n].name);
		list[n].bytes = (uint64_t)st.st_size;
		list[n].used = st.st_mtim;
		bytes += list[n++].bytes;
	}
	closedir(d);
	if (n > RESPONSE_STORE_MAX || bytes > RESPONSE_FOLDER_BYTES)
		qsort(list, n, sizeof *list, compare_use);
	for (; gone < n && (n - gone > RESPONSE_STORE_MAX || bytes > RESPONSE_FOLDER_BYTES); gone++) {
		file_remove(s, list[gone].name);
		bytes -= list[gone].bytes;
	}
	free(list);
}

static void file_write(
	struct response_store *s, const char *id, const struct buf *response, const struct buf *items)
{
	char name[NAME_LEN + 1];
	struct err e = {0};
	struct out_file o = {0};
	static const struct out_kind kind = {.name = "a response", .begins = KIND};
	file_name(id, name);
	char *path = mem_printf("%s/%s", s->folder, name);
	int rc = path ? out_file_open_private(&o, path, &kind, false, &e)
				  : err_set(&e, ERR_MEMORY, "no memory for its name");
	if (!rc) {
		o.no_sync = 1; /* a power cut may lose it, as it loses what runs */
		fprintf(o.f, KIND "%zu\n", response->len);
		fwrite(buf_str(response), 1, response->len, o.f);
		fwrite(buf_str(items), 1, items->len, o.f);
		rc = out_file_commit(&o, &e);
	}
	if (rc)
		log_warn("a response is not stored in a file: %s", e.text);
	free(path);
}

/* ---- public ---- */

int response_store_open(
	const char *folder, uint64_t limit_bytes, struct response_store **out, struct err *e)
{
	struct response_store *s = NEW(struct response_store);
	pthread_mutex_init(&s->lock, NULL);
	s->fd = -1;
	s->limit = limit_bytes;
	*out = s;
	if (!folder)
		return 0;
	s->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->fd < 0) {
		int failed = errno;
		response_store_close(s);
		*out = NULL;
		return err_errno(e, failed, "%.400s", folder);
	}
	s->folder = mem_strdup(folder);
	files_bound(s);
	return 0;
}

void response_store_close(struct response_store *s)
{
	if (!s)
		return;
	for (struct kept_response *k = s->oldest, *newer; k; k = newer) {
		newer = k->newer;
		free(k);
	}
	if (s->fd >= 0)
		close(s->fd);
	pthread_mutex_destroy(&s->lock);
	free(s->folder);
	free(s);
}

void response_store_put(
	struct response_store *s, const char *id, const struct buf *response, const struct buf *items)
{
	if (!is_id(id) || mem_scope_failed())
		return;
	struct kept_response *k = NULL;
	if (mem_block_bytes(kept_size(response->len, items->len)) <= s->limit)
		k = kept_new(id, response->len, items->len);
	if (k) {
		memcpy(k->bytes, buf_str(response), response->len);
		memcpy(k->bytes + response->len, buf_str(items), items->len);
	}
	pthread_mutex_lock(&s->lock);
	if (k)
		kept_add(s, k);
	if (s->folder && FILE_BYTES_MORE + response->len + items->len <= RESPONSE_FOLDER_BYTES) {
		file_write(s, id, response, items);
		files_bound(s);
	}
	pthread_mutex_unlock(&s->lock);
}

size_t response_store_bytes(struct response_store *s, const char *id, bool response, bool items)
{
	char name[NAME_LEN + 1];
	struct stat st;
	size_t bytes = 0;
	if (!is_id(id))
		return 0;
	file_name(id, name);
	pthread_mutex_lock(&s->lock);
	const struct kept_response *k = kept_find(s, id);
	if (k)
		bytes = (response ? k->n_response : 0) + (items ? k->n_items : 0);
	else if (s->folder && !fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
		bytes = (size_t)st.st_size;
	pthread_mutex_unlock(&s->lock);
	return bytes;
}

bool response_store_get(
	struct response_store *s, const char *id, struct buf *response, struct buf *items)
{
	if (!is_id(id))
		return false;
	pthread_mutex_lock(&s->lock);
	struct kept_response *k = kept_find(s, id);
	if (k) { /* used now */
		kept_unlink(s, k);
		kept_link(s, k);
	} else {
		k = file_load(s, id);
	}
	if (k && response)
		buf_append(response, k->bytes, k->n_response);
	if (k && items)
		buf_append(items, k->bytes + k->n_response, k->n_items);
	bool found = k != NULL;
	if (k && kept_bytes(k) > s->limit) /* of a file, and not in the list */
		free(k);
	pthread_mutex_unlock(&s->lock);
	return found;
}

bool response_store_delete(struct response_store *s, const char *id)
{
	char name[NAME_LEN + 1];
	if (!is_id(id))
		return false;
	file_name(id, name);
	pthread_mutex_lock(&s->lock);
	struct kept_response *k = kept_find(s, id);
	bool found = k;
	if (k) {
		kept_unlink(s, k);
		free(k);
	}
	found |= s->folder && file_remove(s, name);
	pthread_mutex_unlock(&s->lock);
	return found;
}

struct response_store_stats response_store_stats(struct response_store *s)
{
	pthread_mutex_lock(&s->lock);
	struct response_store_stats stats = s->stats;
	pthread_mutex_unlock(&s->lock);
	return stats;
}
