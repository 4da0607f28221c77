/* SPDX-License-Identifier: MIT */
/*
 * Output files that appear whole or not at all: bytes go to a file without a name (or, where the
 * file system has none, to a temporary name beside the target), which takes the place of the target
 * in out_file_commit. Interrupted programs leave the old file as it was. "-" is stdout; devices and
 * pipes are written directly.
 *
 * Every writer states the kind of its file (struct out_kind). What stands at the target is replaced
 * only if it is empty or of that kind, so that a mistyped name destroys nobody's work; `force`
 * (--force) replaces any file but an input of the command (out_file_add_input).
 *
 * A target that is a link is written where the link leads; the link stays.
 *
 * Order of use: out_file_add_input for every input, out_file_open, write to `f`, out_file_commit or
 * out_file_abort. Files that stay when they are unfinished: out_file_open_partial.
 */
#ifndef GLM_BASE_OUT_FILE_H
#define GLM_BASE_OUT_FILE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* How a file that this program wrote is recognised as one of a kind. */
struct out_kind {
	const char *name;   /* for errors: "a session" */
	const char *begins; /* the first bytes; NULL: no file is recognised as this kind */
	const char *mark;   /* must stand in the first OUT_KIND_HEAD bytes; NULL: nothing */
};
#define OUT_KIND_HEAD 4096

extern const struct out_kind out_session, out_trace, out_profile, out_plot, out_journal,
	out_history, out_check_values;
extern const struct out_kind out_unfinished_model; /* GGUF with the key OUT_MODEL_KEY */
extern const struct out_kind out_data; /* not recognised: what exists is replaced by force alone */

/* The first line of every plot. */
#define OUT_PLOT_HEAD "<!-- drawn by glmstream -->\n"

/* The key of every GGUF that this program writes; its value is the program's version. */
#define OUT_MODEL_KEY "glmstream.version"

/* Declares a file that the command reads. From then on no function of this header lets a caller
 * replace it, whatever name or link leads to it, and with `force` too (ERR_USAGE). The same holds
 * without a declaration for the files of stdin, stdout and stderr. What is no regular file by then
 * is ignored. Not thread-safe: for the time before a command starts. */
void out_file_add_input(const char *path);

/* A file is there that this user may not write. Its folder may allow to replace it all the same. */
bool out_file_is_protected(const char *path);

/* 0: `path` may be written: nothing is there, or a file that is not protected and empty or of the
 * kind, or any with `force`. A device, pipe or folder and "-" are 0 too: opening decides. Else
 * ERR_INPUT with a hint, ERR_USAGE for an input, or an error of stat other than ENOENT. */
int out_file_may_replace(const char *path, const struct out_kind *kind, bool force, struct err *e);

/* 0: out_file_open would succeed now. For a command to call before hours of work: a missing folder,
 * one without permission, and a file that may not be replaced are errors then. Leaves no file; does
 * not open a device or pipe, since that may wait for the reader. */
int out_file_check(const char *path, const struct out_kind *kind, bool force, struct err *e);

/* out_file_check for files beside `path`, whose names are not known yet: can they be made? */
int out_file_check_folder(const char *path, struct err *e);

/* Whether both are names of one regular file, which need not exist yet. */
bool out_file_is_same(const char *a, const char *b);

/* For callers that rename a file of their own.
 *   target:  out, the file that is written for `path`: where its links lead. Nothing need be there
 *            yet. Of a device, pipe or folder it is `path` itself.
 *   partial: out, the target with ".partial" behind it, where an unfinished output stands.
 * Either may be NULL; the caller frees both. ERR_INPUT: the links lead in a circle, or the kernel
 * does not follow them for this user. ERR_MEMORY; other errors of stat. */
int out_file_target(const char *path, char **target, char **partial, struct err *e);
/* Before the rename: gives the file of `fd` the permissions of the file at `path`, if there is one.
 */
void out_file_keep_mode(int fd, const char *path);

/* *bytes: free in the folder of `path` for this user. Errors of statvfs. */
int out_file_free_bytes(const char *path, uint64_t *bytes, struct err *e);

/* Zero-initialise. Write to `f` with stdio; errors may be left to commit. */
struct out_file {
	FILE *f;       /* without a descriptor of its own: fileno fails */
	int fd;        /* what it writes to; not of stdout */
	char *path;    /* the target, links resolved; for people: what the caller named */
	char *temp;    /* temporary name; NULL: a file without a name, or written directly */
	int directory; /* open directory of the target, -1 when written directly */
	int direct;    /* stdout, a device or a pipe */
	int no_sync;   /* may be set after opening: commit waits for no disk, a power cut may leave a
					  broken file */
	const struct out_kind *kind; /* static; commit asks again, for a target that is new by then */
	bool force;
};

/* A file that exists keeps its permissions, a new one gets what the umask leaves. ERR_INPUT and
 * ERR_USAGE as of out_file_may_replace. A pipe is waited for until it has a reader;
 * ERR_INTERRUPTED: a signal came first. */
int out_file_open(
	struct out_file *o, const char *path, const struct out_kind *kind, bool force, struct err *e);

/* The same for what only its owner may read, whatever an old file's permissions were; a target that
 * is no regular file, "-" included, is refused (ERR_INPUT). Does not touch the umask: any thread
 * may call it. */
int out_file_open_private(
	struct out_file *o, const char *path, const struct out_kind *kind, bool force, struct err *e);

/* Flushes to the disk (the folder too), checks every write, puts the file in its place and closes
 * it. On failure the target is untouched and everything is released. */
int out_file_commit(struct out_file *o, struct err *e);

/* Releases without touching the target. Safe on a zeroed or committed one. */
void out_file_abort(struct out_file *o);

enum out_lock {
	OUT_LOCKED,
	OUT_LOCKED_BY_OTHER, /* another open file description holds it */
	OUT_NO_LOCKS,        /* the file system has none (errno ENOLCK, EOPNOTSUPP, ENOSYS) */
	OUT_LOCK_FAILED      /* errno says why */
};

/* Takes the exclusive lock (flock) of an open file; does not wait for it. It is held until the
 * descriptor is closed. OUT_NO_LOCKS: nothing keeps another process from writing the file, and the
 * caller decides whether to go on. */
enum out_lock out_file_lock(int fd);

/* For outputs that are worth keeping unfinished: a file that the caller writes under a name of its
 * own and renames when it is whole. Returns its descriptor (read and write, emptied) or a negative
 * code. The descriptor holds a lock (flock), so that no two processes write one file: rename or
 * remove the file before it is closed. What stands at `path` is judged and emptied under the lock.
 * On a file system without locks it goes on without one.
 * With `resume` the file must exist and keeps its bytes, of whatever kind they are. ERR_RUN:
 * another process is writing it; ERR_INPUT and ERR_USAGE as of out_file_may_replace. */
int out_file_open_partial(
	const char *path, const struct out_kind *kind, bool force, bool resume, struct err *e);

#endif
