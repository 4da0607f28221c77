/* SPDX-License-Identifier: MIT */
/*
 * Opening GGUF files by path, split sets included. A set is recognised by the key split.count of
 * the file that was named; the names of the other parts follow from its name. Every part must exist
 * and agree on the number of parts, its own number and the number of tensors of the whole, else the
 * set is refused as a whole.
 */
#include "src/format/gguf_read.h"

#include "src/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_PARTS 99999

/* "-00001-of-00005.gguf" */
#define SUFFIX_LEN (1 + 5 + 4 + 5 + 5)

/* Splits a path of the form BASE-%05u-of-%05u.gguf; *base_len counts the bytes of BASE. */
static bool parse_split_name(const char *path, size_t *base_len, unsigned *no, unsigned *count)
{
	size_t n = strlen(path);
	if (n <= SUFFIX_LEN)
		return false;
	const char *s = path + n - SUFFIX_LEN;
	for (int i = 0; i < 5; i++)
		if (s[1 + i] < '0' || s[1 + i] > '9' || s[10 + i] < '0' || s[10 + i] > '9')
			return false;
	if (s[0] != '-' || memcmp(s + 6, "-of-", 4) || strcmp(s + 15, ".gguf"))
		return false;
	*no = (unsigned)strtoul(s + 1, NULL, 10);
	*count = (unsigned)strtoul(s + 10, NULL, 10);
	*base_len = n - SUFFIX_LEN;
	return true;
}

static char *split_part_path(const char *path, size_t base_len, unsigned no, unsigned count)
{
	return mem_printf("%.*s-%05u-of-%05u.gguf", (int)base_len, path, no, count);
}

char *gguf_part_path(const char *path, unsigned no)
{
	size_t base_len;
	unsigned own, count;
	return parse_split_name(path, &base_len, &own, &count) && no <= count
			   ? split_part_path(path, base_len, no, count)
			   : NULL;
}

static int read_path(struct gguf *g, const char *path, struct gguf_split *split, struct err *e)
{
	struct file_map map;
	int code = file_map_open(&map, path, e);
	if (code)
		return code;
	return gguf_read_file(g, path, map.data, map.size, &map, split, e);
}

/* Names the parts that cannot be reached: all of them at once, so that a user fetches them in one
 * go. */
static int check_parts_exist(const char *path, size_t base_len, unsigned count, struct err *e)
{
	char list[600] = "";
	size_t len = 0;
	unsigned missing = 0;
	for (unsigned no = 2; no <= count; no++) {
		char *p = split_part_path(path, base_len, no, count);
		if (access(p, R_OK)) {
			const char *slash = strrchr(p, '/'), *name = slash ? slash + 1 : p;
			missing++;
			if (len + strlen(name) + 8 < sizeof list)
				len += (size_t)sprintf(list + len, "%s%s", len ? ", " : "", name);
			else if (len + 5 < sizeof list && list[len - 1] != '.')
				len += (size_t)sprintf(list + len, ", ...");
		}
		free(p);
	}
	if (missing)
		return err_set(e, ERR_INPUT, "%s: %u of its %u parts %s missing: %s", path, missing, count,
			missing == 1 ? "is" : "are", list);
	return 0;
}

static int read_rest(
	struct gguf *g, const char *path, const struct gguf_split *first, struct err *e)
{
	size_t base_len = 0;
	unsigned name_no = 0, name_count = 0;
	bool named = parse_split_name(path, &base_len, &name_no, &name_count);
	int code = 0;

	if (first->count > MAX_PARTS)
		return err_set(e, ERR_INPUT, "%s: split.count is %" PRIu64 ", at most %d expected", path,
			first->count, MAX_PARTS);
	unsigned count = (unsigned)first->count;
	if (first->no) {
		err_set(e, ERR_INPUT,
			"%s: is part %" PRIu64 " of %u of a split model, the first part is expected", path,
			first->no + 1, count);
		if (named) {
			char *p = split_part_path(path, base_len, 1, count);
			err_hint(e, "open %s", p);
			free(p);
		}
		return ERR_INPUT;
	}
	if (!named || name_no != 1 || name_count != count)
		return err_set(e, ERR_INPUT,
			"%s: is the first of %u parts, so its name must end in -00001-of-%05u.gguf", path,
			count, count);
	if ((code = check_parts_exist(path, base_len, count, e)))
		return code;
	for (unsigned no = 2; no <= count && !code; no++) {
		struct gguf_split s;
		char *p = split_part_path(path, base_len, no, count);
		code = read_path(g, p, &s, e);
		if (!code && (!s.present || s.count != count || s.no != no - 1))
			code = err_set(e, ERR_INPUT,
				"%s: its keys say part %" PRIu64 " of %" PRIu64
				", part %u of %u is expected from its name",
				p, s.present ? s.no + 1 : 1, s.present ? s.count : 1, no, count);
		if (!code && s.has_n_tensors && first->has_n_tensors && s.n_tensors != first->n_tensors)
			code = err_set(e, ERR_INPUT,
				"%s: split.tensors.count is %" PRIu64 ", but %" PRIu64
				" in the first part: the parts do not belong together",
				p, s.n_tensors, first->n_tensors);
		free(p);
	}
	return code;
}

/* Users may name the checkpoint that they have downloaded. */
static void hint_at_convert(const char *path, struct err *e)
{
	const char *end = strrchr(path, '.');
	struct stat s;
	if ((end && !strcmp(end, ".safetensors")) || (stat(path, &s) == 0 && S_ISDIR(s.st_mode)))
		err_hint(e, "glmstream convert FOLDER -o model.gguf makes a GGUF file of a folder with "
					"safetensors");
}

int gguf_open(const char *path, struct gguf **out, struct err *e)
{
	struct gguf_split split;
	*out = NULL;
	struct gguf *g = gguf_read_new();
	int code = read_path(g, path, &split, e);
	if (code)
		hint_at_convert(path, e);
	if (!code && split.present && (split.count > 1 || split.no))
		code = read_rest(g, path, &split, e);
	if (!code && split.present && split.has_n_tensors && split.n_tensors != g->n_tensors)
		code = err_set(e, ERR_INPUT,
			"%s: split.tensors.count is %" PRIu64 ", but the parts hold %zu tensors", path,
			split.n_tensors, g->n_tensors);
	if (!code)
		code = gguf_read_finish(g, e);
	struct err lost = {0};
	if (gguf_check_lost(g, &lost)) { /* zeros were parsed: whatever was found says nothing */
		code = lost.code;
		if (e)
			*e = lost;
	}
	if (code)
		gguf_close(g);
	else
		*out = g;
	return code;
}

int gguf_make(const struct gguf *g, const struct gguf_tensor *t, void *dst, struct err *e)
{
	int rc = g->folder_ops->make(g, t, dst, e);
	return rc ? rc : gguf_check_lost(g, e);
}

int gguf_check_lost(const struct gguf *g, struct err *e)
{
	int rc = 0;
	for (uint32_t i = 0; i < g->n_files && !rc; i++)
		rc = file_map_check(&g->files[i].map, g->files[i].path, e);
	for (uint32_t i = 0; i < g->n_copies && !rc; i++)
		rc = file_map_check(&g->copies[i].map, g->copies[i].path, e);
	return rc;
}

int gguf_check_lost_now(const struct gguf *g, struct err *e)
{
	for (uint32_t i = 0; i < g->n_files; i++)
		file_map_look(&g->files[i].map);
	for (uint32_t i = 0; i < g->n_copies; i++)
		file_map_look(&g->copies[i].map);
	return gguf_check_lost(g, e);
}

int gguf_watch_copy(struct gguf *g, const char *path, struct err *e)
{
	struct file_map map;
	int rc = file_map_open(&map, path, e);
	if (rc)
		return rc;
	g->copies = mem_grow(g->copies, g->n_copies + 1, sizeof *g->copies);
	g->copies[g->n_copies++] = (struct gguf_copy){.path = mem_strdup(path), .map = map};
	return 0;
}

int gguf_check_names(const struct gguf *g, struct err *e)
{
	int rc = 0;
	for (uint32_t i = 0; i < g->n_files && !rc; i++)
		rc = file_map_check_path(&g->files[i].map, g->files[i].path, e);
	for (uint32_t i = 0; i < g->n_copies && !rc; i++)
		rc = file_map_check_path(&g->copies[i].map, g->copies[i].path, e);
	return rc;
}
