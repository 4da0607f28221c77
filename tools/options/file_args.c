/* SPDX-License-Identifier: MIT */
#include "tools/options/file_args.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/format/check_values.h"
#include "src/format/gguf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- inputs ---- */

static bool is_of_checkpoint(const char *name, bool check_values)
{
	static const char *const endings[] = {".safetensors", ".json", ".jinja"};
	const char *dot = strrchr(name, '.');
	for (size_t i = 0; dot && i < ARRAY_LEN(endings); i++)
		if (!strcmp(dot, endings[i]))
			return true;
	return dot && check_values && !strcmp(dot, CHECK_VALUES_SUFFIX);
}

static void add_input(const char *path, bool check_values)
{
	DIR *folder = opendir(path);
	for (struct dirent *d; folder && (d = readdir(folder));) {
		char *file = mem_printf("%s/%s", path, d->d_name);
		if (is_of_checkpoint(d->d_name, check_values))
			out_file_add_input(file);
		free(file);
	}
	if (folder) {
		closedir(folder);
		return;
	}
	out_file_add_input(path);
	char *beside = check_values ? mem_printf("%s" CHECK_VALUES_SUFFIX, path) : NULL, *part;
	if (beside)
		out_file_add_input(beside);
	free(beside);
	for (unsigned no = 1; (part = gguf_part_path(path, no)); no++) {
		out_file_add_input(part);
		free(part);
	}
}

/* "A,B" of --replicas; a name may hold a comma as well. */
static void add_inputs(const char *text, bool check_values)
{
	add_input(text, check_values);
	char *list = strchr(text, ',') ? mem_strdup(text) : NULL, *rest = list;
	for (char *path; (path = strsep(&rest, ","));)
		add_input(path, check_values);
	free(list);
}

/* ---- outputs ---- */

/* The file that the option names; NULL: none. */
static const char *file_of(const struct arg *a)
{
	if (a->file == ARG_NO_FILE || !*a->string || !**a->string)
		return NULL;
	for (const struct arg_word *w = a->words; w && w->word; w++)
		if (!strcmp(w->word, *a->string))
			return NULL;
	return *a->string;
}

static bool is_input(const struct arg *a)
{
	return (a->file == ARG_READS || a->file == ARG_READS_MODEL) && file_of(a);
}

static bool is_output(const struct arg *a)
{
	return a->file >= ARG_WRITES && file_of(a);
}

/* "-o" or "--trace" */
static const char *label_of(const struct arg *a, char *out, size_t n)
{
	if (a->letter)
		snprintf(out, n, "-%c", a->letter);
	else
		snprintf(out, n, "--%s", a->name);
	return out;
}

static int refuse_stdout(const struct arg *a, struct err *e)
{
	char label[64];
	if (a->file == ARG_WRITES_OR_STDOUT || strcmp(file_of(a), "-") != 0)
		return 0;
	return err_set(e, ERR_USAGE,
		"%s: this output cannot go to stdout: a name is expected, \"-\" found",
		label_of(a, label, sizeof label));
}

static int refuse_same(const struct arg *a, const struct arg *b, struct err *e)
{
	char of_a[64], of_b[64];
	if (!out_file_is_same(file_of(a), file_of(b)))
		return 0;
	return err_set(e, ERR_USAGE, "%s and %s name the same file, \"%.300s\"",
		label_of(a, of_a, sizeof of_a), label_of(b, of_b, sizeof of_b), file_of(b));
}

/* The i-th option of all groups together; NULL behind the last. */
static const struct arg *option_at(const struct args *a, size_t i)
{
	for (size_t g = 0; g < a->n_groups; i -= a->groups[g++].n)
		if (i < a->groups[g].n)
			return &a->groups[g].args[i];
	return NULL;
}

int file_args_check(const struct args *a, struct err *e)
{
	const struct arg *x, *y;
	for (size_t i = 0; (x = option_at(a, i)); i++) {
		if (is_input(x) && strcmp(file_of(x), "-") != 0)
			add_inputs(file_of(x), x->file == ARG_READS_MODEL);
		if (is_output(x) && refuse_stdout(x, e))
			return ERR_USAGE;
		for (size_t k = 0; k < i && is_output(x); k++)
			if (is_output(y = option_at(a, k)) && refuse_same(y, x, e))
				return ERR_USAGE;
	}
	for (size_t i = 0; i < a->n_positional; i++)
		if (is_input(x = &a->positional[i]))
			add_inputs(file_of(x), x->file == ARG_READS_MODEL);
	return 0;
}
