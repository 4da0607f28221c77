/* SPDX-License-Identifier: MIT */
/* Names decide what belongs to an export, the journal decides whether it is an unfinished one of
 * this program. */
#include "tools/export/export_folder.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* How a shard is recognised as one that this program wrote. */
static const struct out_kind own_shard = {"", "", "\"glmstream.version\""};

#define JOURNAL_NAME "export.journal" /* convert_journal.h adds ".journal" to "export" */

static bool is_shard_name(const char *name, size_t len)
{
	unsigned no, of;
	int n = 0;
	return sscanf(name, "model-%5u-of-%5u.safetensors%n", &no, &of, &n) == 2 && (size_t)n == len;
}

/* ".PID.part", which out_file.h appends, where a run was killed. */
static bool is_temporary(const char *name)
{
	size_t n = strlen(name);
	return n > 5 && !strcmp(name + n - 5, ".part");
}

/* A name that an export may write; of a temporary file without what was appended. */
static bool is_own_name(const char *name)
{
	size_t len = strlen(name);
	if (is_temporary(name))
		for (int dots = 0; len && dots < 2;)
			dots += name[--len] == '.';
	if (is_shard_name(name, len) || !strcmp(name, JOURNAL_NAME))
		return true;
	for (size_t i = 0; export_text_names[i]; i++)
		if (strlen(export_text_names[i]) == len && !strncmp(name, export_text_names[i], len))
			return true;
	return false;
}

char *export_folder_file(const struct export_folder *f, const char *name)
{
	return mem_printf("%s/%s", f->path, name);
}

/* Calls `each` for all names but "." and ".."; a code other than 0 ends it. */
static int each_name(const struct export_folder *f,
	int (*each)(const struct export_folder *f, const char *name, void *user, struct err *e),
	void *user, struct err *e)
{
	DIR *d = opendir(f->path);
	if (!d)
		return err_errno(e, errno, "%s", f->path);
	int code = 0;
	for (struct dirent *at; !code && (at = readdir(d));)
		if (strcmp(at->d_name, ".") && strcmp(at->d_name, ".."))
			code = each(f, at->d_name, user, e);
	closedir(d);
	return code;
}

/* Files of these names are removed before others take their place. */
static int refuse_input(const struct export_folder *f, const char *name, void *user, struct err *e)
{
	(void)user;
	if (!is_own_name(name))
		return 0;
	char *path = export_folder_file(f, name);
	int code = out_file_may_replace(path, &out_data, true, e);
	free(path);
	return code;
}

/* *user: whether an export was interrupted here. */
static int refuse_name(const struct export_folder *f, const char *name, void *user, struct err *e)
{
	const bool *unfinished = user;
	if (*unfinished && is_own_name(name))
		return 0;
	err_set(e, ERR_INPUT, "%s: exists already and holds %s; nothing is replaced", f->path, name);
	err_hint(e, "--force replaces files of the names that it writes, and leaves all others");
	return ERR_INPUT;
}

/* May it be written? Makes it where it is not there. */
static int check_folder(struct export_folder *f, bool force, struct err *e)
{
	struct stat st;
	if (stat(f->path, &st)) {
		if (errno != ENOENT || mkdir(f->path, 0777))
			return err_errno(e, errno, "%s", f->path);
		f->made = true;
		return 0;
	}
	if (!S_ISDIR(st.st_mode))
		return err_set(e, ERR_INPUT, "%s: exists already and is not a folder", f->path);
	int code = each_name(f, refuse_input, NULL, e);
	if (code || force)
		return code;
	char *journal = export_folder_file(f, JOURNAL_NAME);
	bool unfinished =
		!stat(journal, &st) && !out_file_may_replace(journal, &out_journal, false, NULL);
	free(journal);
	return each_name(f, refuse_name, &unfinished, e);
}

/* A shard that the journal vouches for has to be there. */
static void check_done(struct export_folder *f, const struct export_plan *plan)
{
	struct stat st;
	for (uint32_t i = 0; i < plan->n_shards; i++) {
		char *path = export_folder_file(f, plan->shards[i].name);
		f->done[i] = f->done[i] && !stat(path, &st) && S_ISREG(st.st_mode) &&
					 (uint64_t)st.st_size == plan->shards[i].file_bytes;
		f->n_done += f->done[i];
		free(path);
	}
}

/* Before hours of work. What remove_old removes makes room. */
static int check_space(const struct export_folder *f, const struct export_plan *plan, struct err *e)
{
	struct statvfs fs;
	struct stat st;
	uint64_t need = 0, old = 0;
	if (statvfs(f->path, &fs))
		return err_errno(e, errno, "%s", f->path);
	for (uint32_t i = 0; i < plan->n_shards; i++) {
		char *path = export_folder_file(f, plan->shards[i].name);
		need += f->done[i] ? 0 : plan->shards[i].file_bytes;
		if (!f->done[i] && !lstat(path, &st) && S_ISREG(st.st_mode) && st.st_nlink == 1)
			old += (uint64_t)st.st_size;
		free(path);
	}
	uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (free_bytes + old < need)
		return err_set(e, ERR_MEMORY,
			"%s: %" PRIu64 " bytes are needed, %" PRIu64 " are free there", f->path, need,
			free_bytes);
	return 0;
}

/* Temporary files that a killed run has left where the file system knows no files without name. */
static int remove_temporary(
	const struct export_folder *f, const char *name, void *user, struct err *e)
{
	(void)user;
	(void)e;
	if (is_temporary(name) && is_own_name(name)) {
		char *path = export_folder_file(f, name);
		unlink(path);
		free(path);
	}
	return 0;
}

/* From now on the folder is no checkpoint. */
static int remove_marks(const struct export_folder *f, struct err *e)
{
	int code = 0;
	for (size_t i = 0; i < 2 && !code; i++) { /* the index and config.json */
		char *path = export_folder_file(f, export_text_names[i]);
		if (unlink(path) && errno != ENOENT)
			code = err_errno(e, errno, "%s", path);
		free(path);
	}
	return code;
}

/* Shards that are written anew: each appears beside its old file, so the drive would have to hold
 * both at a time. What a link names stays. */
static int remove_old(const struct export_folder *f, const struct export_plan *plan, struct err *e)
{
	int code = 0;
	for (uint32_t i = 0; i < plan->n_shards && !code; i++) {
		char *path = export_folder_file(f, plan->shards[i].name);
		if (!f->done[i] && unlink(path) && errno != ENOENT)
			code = err_errno(e, errno, "%s", path);
		free(path);
	}
	return code;
}

int export_folder_open(struct export_folder *f, const char *path, const struct export_plan *plan,
	uint64_t fingerprint, bool force, struct buf *notes, struct err *e)
{
	*f = (struct export_folder){
		.path = path, .journal.fd = -1, .done = NEW_ARRAY(uint64_t, plan->n_shards)};
	size_t n_done;
	int code = check_folder(f, force, e);
	if (code)
		return code;
	char *stem = export_folder_file(f, "export");
	code = convert_journal_open(&f->journal, stem, force, fingerprint, NULL, NULL, f->done,
		plan->n_shards, &n_done, notes, e);
	free(stem);
	if (code)
		return code;
	check_done(f, plan);
	if (!(code = check_space(f, plan, e)) &&
		!(code = f->n_done ? 0 : convert_journal_restart(&f->journal, e)) &&
		!(code = remove_marks(f, e)) && !(code = remove_old(f, plan, e)))
		code = each_name(f, remove_temporary, NULL, e);
	if (!code && f->n_done)
		buf_printf(notes, "going on with an earlier run: %u of %u shards are done\n", f->n_done,
			plan->n_shards);
	if (code && !f->n_done) { /* a journal that was there may be another export's */
		convert_journal_close(&f->journal, f->journal.is_new);
		if (f->made)
			rmdir(f->path);
	}
	return code;
}

int export_folder_add(struct export_folder *f, uint32_t shard, struct err *e)
{
	const struct journal_entry whole = {shard, 1};
	int code = convert_journal_add(&f->journal, &whole, 1, e);
	f->n_done += !code;
	return code;
}

static void unlink_own(const struct export_folder *f, const char *name)
{
	char *path = export_folder_file(f, name);
	if (!out_file_may_replace(path, &own_shard, false, NULL))
		unlink(path);
	free(path);
}

void export_folder_discard(struct export_folder *f, const struct export_plan *plan)
{
	for (uint32_t i = 0; i < plan->n_shards; i++)
		unlink_own(f, plan->shards[i].name);
	convert_journal_close(&f->journal, true);
	if (f->made)
		rmdir(f->path);
}

/* Shards of an earlier export into the same folder (--force) that had another number of them: no
 * index names them any more. Only files that carry this program's mark. */
static int remove_stale(const struct export_folder *f, const char *name, void *user, struct err *e)
{
	const struct export_plan *plan = user;
	(void)e;
	if (!is_shard_name(name, strlen(name)))
		return 0;
	for (uint32_t i = 0; i < plan->n_shards; i++)
		if (!strcmp(name, plan->shards[i].name))
			return 0;
	unlink_own(f, name);
	return 0;
}

static bool is_text_of(const struct export_texts *texts, const char *name)
{
	for (size_t i = 0; i < texts->n; i++)
		if (!strcmp(texts->file[i].name, name))
			return true;
	return false;
}

/* Texts of an earlier checkpoint that this one has not: its tokenizer is not this model's. */
static int remove_other_texts(
	const struct export_folder *f, const struct export_texts *texts, struct err *e)
{
	int code = 0;
	for (size_t i = 0; export_text_names[i] && !code; i++) {
		char *path = export_folder_file(f, export_text_names[i]);
		if (!is_text_of(texts, export_text_names[i]) && unlink(path) && errno != ENOENT)
			code = err_errno(e, errno, "%s", path);
		free(path);
	}
	return code;
}

int export_folder_finish(struct export_folder *f, const struct export_plan *plan,
	const struct export_texts *texts, struct err *e)
{
	int code = each_name(f, remove_stale, (void *)plan, e);
	if (!code)
		code = remove_other_texts(f, texts, e);
	for (size_t i = 0; i < texts->n && !code; i++) {
		const struct buf *text = &texts->file[i].text;
		char *path = export_folder_file(f, texts->file[i].name);
		struct out_file o;
		/* `force`: what stood in the folder was looked at before it was locked */
		if (!(code = out_file_open(&o, path, &out_data, true, e))) {
			fwrite(buf_str(text), 1, text->len, o.f);
			code = out_file_commit(&o, e);
		}
		free(path);
	}
	if (!code)
		convert_journal_close(&f->journal, true);
	return code;
}

void export_folder_close(struct export_folder *f)
{
	convert_journal_close(&f->journal, false);
	free(f->done);
	f->done = NULL;
}
