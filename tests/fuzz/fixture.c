/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/fixture.h"

#include "src/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_PATHS 4

static char folder[128], paths[N_PATHS][256];

static void remove_all(void)
{
	DIR *d = opendir(folder);
	for (struct dirent *f; d && (f = readdir(d));)
		if (f->d_name[0] != '.' || (f->d_name[1] && f->d_name[1] != '.'))
			unlink(fixture_path(f->d_name));
	if (d)
		closedir(d);
	rmdir(folder);
}

const char *fixture_folder(void)
{
	const char *above = getenv("TMPDIR");
	if (folder[0])
		return folder;
	snprintf(
		folder, sizeof folder, "%.90s/glmstream-fuzz-XXXXXX", above && *above ? above : "/tmp");
	if (!mkdtemp(folder))
		bug("no folder in %s: %s", above ? above : "/tmp", strerror(errno));
	atexit(remove_all);
	return folder;
}

const char *fixture_path(const char *name)
{
	static unsigned next;
	char *path = paths[next++ % N_PATHS];
	snprintf(path, sizeof paths[0], "%s/%.120s", fixture_folder(), name);
	return path;
}

const char *fixture_write(const char *name, const void *data, size_t n)
{
	const char *path = fixture_path(name);
	FILE *f = fopen(path, "wb");
	if (!f || (n && fwrite(data, 1, n, f) != n) || fclose(f))
		bug("%s: %s", path, strerror(errno));
	return path;
}

const struct gguf *fixture_pocket(void)
{
	static struct gguf *file;
	struct err e = {0};
	if (!file && gguf_open("tools/pocket/pocket.gguf", &file, &e))
		bug("%s", e.text);
	return file;
}

const struct tokenizer *fixture_tokenizer(void)
{
	static struct tokenizer *t;
	struct err e = {0};
	if (!t && tokenizer_from_gguf(fixture_pocket(), &t, &e))
		bug("%s", e.text);
	return t;
}
