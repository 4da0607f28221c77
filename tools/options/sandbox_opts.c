/* SPDX-License-Identifier: MIT */
/* The list of places: what the options name, and what libraries and a card's driver read. */
#include "tools/options/sandbox_opts.h"

#include "src/base/host/sandbox.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/format/check_values.h"
#include "src/format/gguf.h"
#include "src/ranks/ranks.h"
#include "tools/options/pocket.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct arg_group sandbox_opts_group(struct sandbox_opts *o)
{
	const struct arg list[] = {
		{"no-sandbox", 0, ARG_FLAG, .flag = &o->off,
			.help = "let the process open any file, start programs and make connections. By "
					"default it gives that up; a chat on a terminal may open files"},
	};
	_Static_assert(sizeof list == sizeof o->args, "args");
	memcpy(o->args, list, sizeof list);
	return (struct arg_group){"Confinement", o->args, ARRAY_LEN(list)};
}

struct place_list {
	struct sandbox_path *paths; /* [n], texts included */
	size_t n;
};

static void add_place(struct place_list *l, char *path, enum sandbox_right right)
{
	l->paths = mem_grow(l->paths, l->n + 1, sizeof *l->paths);
	l->paths[l->n++] = (struct sandbox_path){path, right};
}

/* The folder that `path` stands in. */
static char *folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return !slash ? mem_strdup(".") : mem_strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* The folder of a file that is written, also of the one that a link leads to: a file that is made
 * or replaced needs its folder. */
static void add_written(struct place_list *l, const char *file)
{
	char *target;
	if (!file)
		return;
	add_place(l, folder_of(file), SANDBOX_WRITE);
	if (out_file_target(file, &target, NULL, NULL)) /* said when the file is opened */
		return;
	add_place(l, folder_of(target), SANDBOX_WRITE);
	free(target);
}

/* A model's file, the other parts of its set, and its check values. */
static void add_parts(struct place_list *l, const char *file)
{
	add_place(l, mem_strdup(file), SANDBOX_READ);
	add_place(l, mem_printf("%s" CHECK_VALUES_SUFFIX, file), SANDBOX_READ);
	char *part;
	for (unsigned no = 1; (part = gguf_part_path(file, no)); no++)
		add_place(l, part, SANDBOX_READ);
}

/* Whether a checkpoint's file of this name is read. */
static bool checkpoint_reads(const char *name)
{
	static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
		"tokenizer_config.json", "chat_template.jinja", "model.safetensors.index.json",
		"model.safetensors.xxh3"};
	static const char shard[] = ".safetensors";
	const size_t n = strlen(name), k = sizeof shard - 1;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(name, names[i]))
			return true;
	return n > k && !strcmp(name + n - k, shard);
}

/* The names in a checkpoint's folder, and the files of names that are read; links too, since a
 * download keeps files elsewhere. A link must lead to a regular file: who made the folder chose it.
 */
static void add_checkpoint(struct place_list *l, const char *path)
{
	DIR *d = opendir(path);
	add_place(l, mem_strdup(path), SANDBOX_LIST);
	for (struct dirent *x; d && (x = readdir(d));) {
		if (!checkpoint_reads(x->d_name))
			continue;
		struct stat target;
		char *file = mem_printf("%s/%s", path, x->d_name);
		if (!stat(file, &target) && S_ISREG(target.st_mode))
			add_place(l, file, SANDBOX_READ);
		else
			free(file);
	}
	if (d)
		closedir(d);
}

static void add_model(struct place_list *l, const struct common_opts *c)
{
	struct common_replicas replicas;
	struct err ignored = {0}; /* said when the model is opened */
	const char *model = pocket_or(c->model, &ignored);
	struct stat s;
	if (model && stat(model, &s) == 0 && S_ISDIR(s.st_mode))
		add_checkpoint(l, model);
	else if (model)
		add_parts(l, model);
	if (!common_opts_replicas(c, &replicas, &ignored))
		for (unsigned i = 0; i < replicas.n; i++)
			add_place(l, mem_strdup(replicas.path[i]), SANDBOX_READ);
	free(replicas.text);
}

/* The driver's library starts a setuid program when the device files of a card are not there yet,
 * as after a boot. A confined process could not. */
static bool driver_needs_help(const struct common_opts *c)
{
	return HAVE_CUDA && strcmp(common_opts_backend(c), "cpu") != 0 &&
		   access("/dev/nvidia-uvm", F_OK) && !access("/usr/bin/nvidia-modprobe", X_OK);
}

static bool confines_files(struct sandbox_opts *o, const struct common_opts *c)
{
	if (ranks_here()) /* MPI opens files and makes connections whenever it needs them */
		o->off = true;
	if (!o->off && driver_needs_help(c))
		o->landlock = -ENODEV;
	return !o->off && !o->landlock;
}

void sandbox_opts_any_file(struct sandbox_opts *o, const struct common_opts *c)
{
	const struct sandbox_path all = {"/", SANDBOX_WRITE};
	o->any_file = true;
	if (confines_files(o, c))
		o->landlock = sandbox_files(&all, 1, -1);
}

void sandbox_opts_files(struct sandbox_opts *o, const struct common_opts *c,
	const struct prefix_opts *p, const char *session, const char *read_only, int port)
{
	static const char *const read[] = {
		"/usr", "/lib", "/lib64", "/etc", "/opt", "/nix", "/run", "/sys"};
	/* device files are opened for writing; a driver names its threads through /proc */
	static const char *const write[] = {"/dev", "/proc"};
	struct place_list l = {0};
	if (!confines_files(o, c))
		return;
	add_model(&l, c);
	add_written(&l, c->trace);
	add_written(&l, c->warm);
	if (c->profile_folder)
		add_place(&l, mem_strdup(c->profile_folder), SANDBOX_WRITE);
	add_written(&l, session);
	if (read_only)
		add_place(&l, mem_strdup(read_only), SANDBOX_READ);
	if (p && p->folder) {
		(void)mkdir(p->folder, 0700); /* a rule needs it; what is wrong is said by the store */
		add_place(&l, mem_strdup(p->folder), SANDBOX_WRITE);
	}
	for (size_t i = 0; i < ARRAY_LEN(read); i++)
		add_place(&l, mem_strdup(read[i]), SANDBOX_READ);
	for (size_t i = 0; i < ARRAY_LEN(write); i++)
		add_place(&l, mem_strdup(write[i]), SANDBOX_WRITE);
	const char *home = getenv("HOME");
	if (home && *home && strcmp(common_opts_backend(c), "cpu") != 0)
		add_place(
			&l, mem_printf("%s/.nv", home), SANDBOX_WRITE); /* the driver's cache of kernels */
		/* counts of a build for coverage are written at the end */
#ifdef COVERAGE_FOLDER
	add_place(&l, mem_strdup(COVERAGE_FOLDER), SANDBOX_WRITE);
#endif
	o->landlock = sandbox_files(l.paths, l.n, port);
	for (size_t i = 0; i < l.n; i++)
		free((char *)(uintptr_t)l.paths[i].path);
	free(l.paths);
}

void sandbox_opts_calls(const struct sandbox_opts *o, bool server)
{
	if (o->off || ranks_here()) {
		log_verbose("sandbox: off%s", ranks_here() ? " (MPI makes connections)" : "");
		return;
	}
	char files[96], calls[96] = "no programs, no new connections, no tracing (seccomp)";
	int rc = sandbox_calls();
	if (o->landlock == -ENODEV)
		snprintf(files, sizeof files,
			"any file, since the card's device files had to be made: not at the next start");
	else if (o->landlock < 0)
		snprintf(files, sizeof files, "any file (landlock: %s)", strerror(-o->landlock));
	else
		snprintf(files, sizeof files, "%s (landlock %d)",
			o->any_file ? "any file, for the commands of the chat"
						: "files of the model and the options",
			o->landlock);
	if (rc)
		snprintf(calls, sizeof calls, "any call (seccomp: %s)", strerror(-rc));
	const bool refused = o->landlock < 0 || rc;
	(refused && server      ? log_warn
		: refused || server ? log_info
							: log_verbose)("sandbox: %s; %s", files, calls);
}
