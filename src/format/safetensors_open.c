/* SPDX-License-Identifier: MIT */
/*
 * Opening checkpoints: a directory with an index, a directory of shards without one, or one file.
 * The index is not trusted: its file names may not leave the directory, every shard must exist, and
 * every tensor must be in the shard that the index names.
 */
#include "src/format/safetensors_parse.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/format/file_map.h"
#include "src/format/json_parse.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME      "model.safetensors.index.json"
#define INDEX_MAX_BYTES (256u << 20)

/* Opens one shard, reads and parses its header. */
static int add_shard(struct safetensors *st, const char *path, struct err *e)
{
	struct stat s;
	uint8_t first[8];
	uint64_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return err_errno(e, errno, "%s", path);
	uint32_t file = safetensors_add_file(st, path, 0);
	st->files[file].fd = fd; /* closed by safetensors_close from here on */
	if (fstat(fd, &s) < 0)
		return err_errno(e, errno, "%s", path);
	if (!S_ISREG(s.st_mode))
		return err_set(e, ERR_INPUT, "%s: is not a regular file", path);
	uint64_t size = st->files[file].size = (uint64_t)s.st_size;
	if (size < 8)
		return err_set(e, ERR_INPUT,
			"%s: has only %" PRIu64 " bytes, too few for a safetensors file", path, size);
	if (pread(fd, first, 8, 0) != 8)
		return err_errno(e, errno ? errno : EIO, "%s: cannot read its header", path);
	if (safetensors_header_bytes(first, size, path, &n, e))
		return ERR_INPUT;
	char *json = mem_try_new(n, 1);
	if (!json)
		return err_set(e, ERR_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", path, n);
	int code = 0;
	for (uint64_t got = 0; got < n && !code;) {
		ssize_t k = pread(fd, json + got, n - got, (off_t)(8 + got));
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			code = err_errno(e, k < 0 ? errno : EIO, "%s: cannot read its header", path);
		else
			got += (uint64_t)k;
	}
	if (!code) {
		st->files[file].header_bytes = n;
		st->files[file].header_hash = hash_bytes(hash_bytes(HASH_START, first, 8), json, n);
		code = safetensors_parse_header(st, file, json, n, e);
	}
	free(json);
	return code;
}

static int compare_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
}

/* All missing shards in one sentence. */
static int check_shards_exist(const char *dir, char **names, size_t n, struct err *e)
{
	char list[600] = "";
	size_t len = 0, missing = 0;
	for (size_t i = 0; i < n; i++) {
		char *path = mem_printf("%s/%s", dir, names[i]);
		bool there = access(path, R_OK) == 0;
		free(path);
		if (there)
			continue;
		missing++;
		if (len + strlen(names[i]) + 8 < sizeof list)
			len += (size_t)sprintf(list + len, "%s%s", len ? ", " : "", names[i]);
		else if (len + 6 < sizeof list && (!len || list[len - 1] != '.'))
			len += (size_t)sprintf(list + len, ", ...");
	}
	if (missing)
		return err_set(e, ERR_INPUT, "%s: %zu of the %zu files in %s %s missing: %s", dir, missing,
			n, INDEX_NAME, missing == 1 ? "is" : "are", list);
	return 0;
}

/* The distinct shard names of the weight map, sorted. */
static int shard_names(const char *path, json_t *map, char ***out, size_t *n_out, struct err *e)
{
	const char *key;
	json_t *v;
	size_t n = 0;
	char **names = NEW_ARRAY(char *, json_object_size(map) + 1);
	json_object_foreach(map, key, v)
	{
		const char *s = json_string_value(v);
		if (!s || !*s || strchr(s, '/') || s[0] == '.') {
			free_names(names, n);
			return err_set(e, ERR_INPUT,
				"%s: %.200s: \"%.200s\" is not the name of a file beside the index", path, key,
				s ? s : "(not a string)");
		}
		names[n++] = mem_strdup(s);
	}
	qsort(names, n, sizeof *names, compare_text);
	size_t kept = 0;
	for (size_t i = 0; i < n; i++) {
		if (kept && !strcmp(names[kept - 1], names[i]))
			free(names[i]);
		else
			names[kept++] = names[i];
	}
	*out = names;
	*n_out = kept;
	return 0;
}

/* Keeps the tensors that the index assigns to the shard they are in; counts must come out even. */
static int apply_index(struct safetensors *st, const char *path, json_t *map, struct err *e)
{
	size_t kept = 0;
	for (size_t i = 0; i < st->n_tensors; i++) {
		const struct safetensors_tensor *t = &st->tensors[i];
		const char *want = json_string_value(json_object_get(map, t->name));
		const char *slash = strrchr(st->files[t->file].path, '/');
		if (want && !strcmp(want, slash ? slash + 1 : st->files[t->file].path))
			st->tensors[kept++] = *t;
		else
			st->tensor_bytes -= t->bytes;
	}
	st->n_tensors = kept;
	if (kept == json_object_size(map))
		return 0;
	/* name the first that is not there */
	int code = safetensors_finish(st, e);
	const char *key;
	json_t *v;
	json_object_foreach(map, key, v) if (!code && !safetensors_find(st, key)) return err_set(
		e, ERR_INPUT, "%s: tensor %.200s is not in %.200s", path, key, json_string_value(v));
	return code;
}

static int open_index(struct safetensors *st, const char *dir, const char *path, struct err *e)
{
	struct file_map map;
	char **names = NULL;
	size_t n = 0;
	int code = file_map_open(&map, path, e);
	if (code)
		return code;
	json_t *root = NULL;
	if (map.size > INDEX_MAX_BYTES)
		code = err_set(e, ERR_INPUT, "%s: has %" PRIu64 " bytes, at most %u expected", path,
			map.size, INDEX_MAX_BYTES);
	else
		code = json_parse_part(
			path, "", (const char *)map.data, map.size, JSON_REJECT_DUPLICATES, &root, e);
	file_map_close(&map);
	if (code)
		return code;
	json_t *weights = json_object_get(root, "weight_map");
	if (!json_is_object(weights) || !json_object_size(weights)) {
		code = err_set(e, ERR_INPUT, "%s: has no weight_map", path);
		goto out;
	}
	if ((code = shard_names(path, weights, &names, &n, e)) ||
		(code = check_shards_exist(dir, names, n, e)))
		goto out;
	for (size_t i = 0; i < n && !code; i++) {
		char *shard = mem_printf("%s/%s", dir, names[i]);
		code = add_shard(st, shard, e);
		free(shard);
	}
	if (!code)
		code = apply_index(st, path, weights, e);
out:
	free_names(names, n);
	json_decref(root);
	return code;
}

static int open_all(struct safetensors *st, const char *dir, struct err *e)
{
	char **names = NULL;
	size_t n = 0;
	int code = 0;
	DIR *d = opendir(dir);
	if (!d)
		return err_errno(e, errno, "%s", dir);
	for (struct dirent *x; (x = readdir(d));) {
		size_t len = strlen(x->d_name);
		if (len <= 12 || strcmp(x->d_name + len - 12, ".safetensors") || x->d_name[0] == '.')
			continue;
		names = mem_grow(names, n + 1, sizeof *names);
		names[n++] = mem_strdup(x->d_name);
	}
	closedir(d);
	if (!n)
		code = err_set(e, ERR_INPUT, "%s: holds no *.safetensors file", dir);
	else
		qsort(names, n, sizeof *names, compare_text);
	for (size_t i = 0; i < n && !code; i++) {
		char *path = mem_printf("%s/%s", dir, names[i]);
		code = add_shard(st, path, e);
		free(path);
	}
	free_names(names, n);
	return code;
}

int safetensors_open(const char *path, struct safetensors **out, struct err *e)
{
	struct stat s;
	*out = NULL;
	if (stat(path, &s) < 0)
		return err_errno(e, errno, "%s", path);
	struct safetensors *st = NEW(struct safetensors);
	int code;
	if (S_ISDIR(s.st_mode)) {
		char *index = mem_printf("%s/%s", path, INDEX_NAME),
			 *single = mem_printf("%s/model.safetensors", path);
		if (access(index, F_OK) == 0)
			code = open_index(st, path, index, e);
		else if (access(single, F_OK) == 0)
			code = add_shard(st, single, e);
		else
			code = open_all(st, path, e);
		free(index);
		free(single);
	} else {
		code = add_shard(st, path, e);
	}
	if (!code)
		code = safetensors_finish(st, e);
	if (code)
		safetensors_close(st);
	else
		*out = st;
	return code;
}

void safetensors_close_files(struct safetensors *st)
{
	for (uint32_t i = 0; i < st->n_files; i++) {
		if (st->files[i].fd >= 0)
			close(st->files[i].fd);
		if (st->files[i].direct_fd >= 0)
			close(st->files[i].direct_fd);
		st->files[i].fd = st->files[i].direct_fd = -1;
	}
}

void safetensors_close(struct safetensors *st)
{
	if (!st)
		return;
	safetensors_close_files(st);
	for (uint32_t i = 0; i < st->n_files; i++)
		free(st->files[i].path);
	for (size_t i = 0; i < st->n_names; i++)
		free(st->names[i]);
	free(st->names);
	free(st->files);
	free(st->tensors);
	free(st);
}
