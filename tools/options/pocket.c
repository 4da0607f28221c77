/* SPDX-License-Identifier: MIT */
/* Finds what ships with the program: the pocket model, the routing trace. */
#include "tools/options/pocket.h"

#include "src/base/out_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct shipped {
	const char *beside[2]; /* relative to the folder of the program: build tree, installation */
	const char *variable;  /* of the environment, names it instead */
};
static const struct shipped model_file = {
	{"../../tools/pocket/pocket.gguf", "../share/glmstream/pocket.gguf"}, "GLMSTREAM_POCKET"};
static const struct shipped trace_file = {
	{"../../tools/share/glm52-routing.gltr1", "../share/glmstream/glm52-routing.gltr1"},
	"GLMSTREAM_ROUTING"};

/* NULL: it is nowhere. */
static const char *find_shipped(const struct shipped *s, char *path, size_t n)
{
	const char *named = getenv(s->variable);
	if (named && *named)
		return named; /* if it is missing, opening it says so */
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	if (length <= 0)
		return NULL;
	self[length] = 0;
	char *slash = strrchr(self, '/');
	if (slash)
		*slash = 0;
	for (size_t i = 0; i < 2; i++) {
		char joined[PATH_MAX + 64];
		snprintf(joined, sizeof joined, "%s/%s", self, s->beside[i]);
		char *real = realpath(joined, NULL);
		if (!real)
			continue;
		snprintf(path, n, "%s", real);
		free(real);
		return path;
	}
	return NULL;
}

const char *pocket_or(const char *model, struct err *e)
{
	static char path[PATH_MAX + 64];
	if (model)
		return model;
	const char *found = find_shipped(&model_file, path, sizeof path);
	if (found) {
		out_file_add_input(found);
		return found;
	}
	err_set(e, ERR_INPUT,
		"no model given, and the pocket model is not beside the program (../share/glmstream)");
	err_hint(e, "name a model with -m MODEL.gguf, or set GLMSTREAM_POCKET");
	return NULL;
}

const struct arg_word pocket_trace_words[] = {{POCKET_TRACE, 0}, {NULL, 0}};

const char *pocket_trace_or(const char *trace, struct err *e)
{
	static char path[PATH_MAX + 64];
	if (trace && strcmp(trace, POCKET_TRACE) != 0)
		return trace;
	const char *found = find_shipped(&trace_file, path, sizeof path);
	if (found) {
		out_file_add_input(found);
		return found;
	}
	err_set(e, ERR_INPUT,
		"the shipped routing trace is not beside the program "
		"(../share/glmstream/glm52-routing.gltr1)");
	err_hint(e, "--trace FILE names another, GLMSTREAM_ROUTING says where it is");
	return NULL;
}
