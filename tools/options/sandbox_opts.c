/* SPDX-License-Identifier: MIT */
/* The list of places: what the options name, and what libraries and a card's driver read. */
#include "tools/options/sandbox_opts.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/sandbox.h"
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
			.help = "let the process open any file, start programs and make connections; by "
					"default it gives that up when the model is open"},
	};
	_Static_assert(sizeof list == sizeof o->args, "args");
	memcpy(o->args, list, sizeof list);
	return (struct arg_group){"Confinement", o->args, ARRAY_LEN(list)};
}

struct place_list {
	struct sandbox_path *paths; /* [n], texts included */
	size_t n;
};

static void add_place(struct place_list *l, char *path, bool write)
{
	l->paths = mem_grow(l->paths, l->n + 1, sizeof *l->paths);
	l->paths[l->n++] = (struct sandbox_path){path, write};
}

/* The folder that `path` stands in. */
static char *folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return !slash ? mem_strdup(".") : mem_strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* The folder of a file, also of the one that a link leads to: parts of a split model stand beside
 * each other, and a file that is replaced needs its folder. */
static void add_folder(struct place_list *l, const char *file, bool write)
{
	if (!file)
		return;
	char *real = realpath(file, NULL);
	add_place(l, folder_of(file), write);
	if (real)
		add_place(l, folder_of(real), write);
	free(real);
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

/* A checkpoint's folder, and the files that links in it lead to: a download keeps them elsewhere.
 * Only files, and only of names that are read: who made the folder chose the links. */
static void add_checkpoint(struct place_list *l, const char *path)
{
	DIR *d = opendir(path);
	add_place(l, mem_strdup(path), false);
	for (struct dirent *x; d && (x = readdir(d));) {
		if (!checkpoint_reads(x->d_name))
			continue;
		struct stat link, target;
		char *file = mem_printf("%s/%s", path, x->d_name);
		/* not d_type, which some file systems leave open */
		char *real = !lstat(file, &link) && S_ISLNK(link.st_mode) ? realpath(file, NULL) : NULL;
		free(file);
		if (real && !lstat(real, &target) && S_ISREG(target.st_mode))
			add_place(l, real, false);
		else
			free(real);
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
	else
		add_folder(l, model, false);
	if (!common_opts_replicas(c, &replicas, &ignored))
		for (unsigned i = 0; i < replicas.n; i++)
			add_folder(l, replicas.path[i], false);
	free(replicas.text);
}

/* The driver's library starts a setuid program when the device files of a card are not there yet,
 * as after a boot. A confined process could not. */
static bool driver_needs_help(const struct common_opts *c)
{
	return HAVE_CUDA && strcmp(common_opts_backend(c), "cpu") != 0 &&
		   access("/dev/nvidia-uvm", F_OK) && !access("/usr/bin/nvidia-modprobe", X_OK);
}

void sandbox_opts_files(struct sandbox_opts *o, const struct common_opts *c,
	const struct prefix_opts *p, const char *session, const char *read_only, int port)
{
	static const char *const read[] = {
		"/usr", "/lib", "/lib64", "/etc", "/opt", "/nix", "/run", "/sys"};
	/* device files are opened for writing; a driver names its threads through /proc */
	static const char *const write[] = {"/dev", "/proc"};
	struct place_list l = {0};
	if (ranks_here()) /* MPI opens files and makes connections whenever it needs them */
		o->off = true;
	if (o->off)
		return;
	if (driver_needs_help(c)) {
		o->landlock = -ENODEV;
		return;
	}
	add_model(&l, c);
	add_folder(&l, c->trace, true);
	add_folder(&l, c->warm, true);
	if (c->profile_folder)
		add_place(&l, mem_strdup(c->profile_folder), true);
	add_folder(&l, session, true);
	if (read_only)
		add_place(&l, mem_strdup(read_only), false);
	if (p && p->folder) {
		(void)mkdir(p->folder, 0700); /* a rule needs it; what is wrong is said by the store */
		add_place(&l, mem_strdup(p->folder), true);
	}
	for (size_t i = 0; i < ARRAY_LEN(read); i++)
		add_place(&l, mem_strdup(read[i]), false);
	for (size_t i = 0; i < ARRAY_LEN(write); i++)
		add_place(&l, mem_strdup(write[i]), true);
	const char *home = getenv("HOME");
	if (home && *home && strcmp(common_opts_backend(c), "cpu") != 0)
		add_place(&l, mem_printf("%s/.nv", home), true); /* the driver's cache of kernels */
		/* counts of a build for coverage are written at the end */
#ifdef COVERAGE_FOLDER
	add_place(&l, mem_strdup(COVERAGE_FOLDER), true);
#endif
	o->landlock = sandbox_files(l.paths, l.n, port);
	for (size_t i = 0; i < l.n; i++)
		free((char *)(uintptr_t)l.paths[i].path);
	free(l.paths);
}

void sandbox_opts_calls(const struct sandbox_opts *o)
{
	if (o->off || ranks_here()) {
		log_verbose("sandbox: off%s", ranks_here() ? " (MPI makes connections)" : "");
		return;
	}
	char files[96], calls[96] = "no programs, no new connections, no tracing (seccomp)";
	int rc = sandbox_calls();
	if (o->landlock > 0)
		snprintf(
			files, sizeof files, "files of the model and the options (landlock %d)", o->landlock);
	else if (o->landlock)
		snprintf(files, sizeof files, "any file (landlock: %s)", strerror(-o->landlock));
	else
		snprintf(files, sizeof files, "any file, for the commands of the chat");
	if (rc)
		snprintf(calls, sizeof calls, "any call (seccomp: %s)", strerror(-rc));
	log_verbose("sandbox: %s; %s", files, calls);
}
