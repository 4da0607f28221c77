/* SPDX-License-Identifier: MIT */
/* Finds the pocket model. */
#include "tools/options/pocket.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Relative to the folder of the program: in a build tree, and in an installation. */
static const char *const beside[] = {
	"../../tools/pocket/pocket.gguf", "../share/glmstream/pocket.gguf"};

const char *pocket_or(const char *model, struct err *e)
{
	static char path[PATH_MAX + 64];
	if (model)
		return model;
	const char *named = getenv("GLMSTREAM_POCKET");
	if (named && *named)
		return named; /* if it is missing, opening it says so */
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n > 0) {
		self[n] = 0;
		char *slash = strrchr(self, '/');
		if (slash)
			*slash = 0;
		for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
			char joined[PATH_MAX + 64];
			snprintf(joined, sizeof joined, "%s/%s", self, beside[i]);
			char *real = realpath(joined, NULL);
			if (!real)
				continue;
			snprintf(path, sizeof path, "%s", real);
			free(real);
			return path;
		}
	}
	err_set(e, ERR_INPUT,
		"no model given, and the pocket model is not beside the program (../share/glmstream)");
	err_hint(e, "name a model with -m MODEL.gguf, or set GLMSTREAM_POCKET");
	return NULL;
}
