/* SPDX-License-Identifier: MIT */
/*
 * Feeds saved inputs to a fuzz target, without clang or libFuzzer: replay_NAME FILE_OR_FOLDER ... A
 * folder means every file in it, in name order. Besides each file as it is, its prefixes are tried
 * (all of a short file, else about 200), so that a seed of a valid file also tests what its
 * truncation does. FILE.pack holds many inputs that a fuzzer found (fuzz.py): each is a length of
 * four bytes, little-endian, and that many bytes; they are fed as they are. A crash names the file
 * that was being fed.
 */
#include "src/base/num.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_PREFIXES = 200 };

static char current[4352]; /* what a crash message names */

/* Gives the target an exact-size heap copy, so that a sanitizer sees a read of one byte too many.
 */
static void feed(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);
	if (!copy)
		abort();
	if (size)
		memcpy(copy, data, size);
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
}

static size_t n_fed; /* inputs */

/* Every input of a pack; false when its lengths make no sense. */
static bool feed_pack(const char *path, const uint8_t *data, size_t size)
{
	size_t at = 0;
	for (unsigned number = 0; at < size; number++) {
		if (size - at < 4 || load_u32(data + at) > size - at - 4)
			return false;
		snprintf(current, sizeof current, "input %u of %s", number, path);
		feed(data + at + 4, load_u32(data + at));
		at += 4 + load_u32(data + at);
		n_fed++;
	}
	return true;
}

static bool is_pack(const char *path)
{
	size_t n = strlen(path);
	return n > 5 && !strcmp(path + n - 5, ".pack");
}

/* 0, or 1 after a message when the file cannot be read. */
static int feed_file(const char *path)
{
	snprintf(current, sizeof current, "%s", path);
	FILE *f = fopen(path, "rb");
	if (!f) {
		fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
		return 1;
	}
	size_t size = 0, cap = 1 << 16;
	uint8_t *data = malloc(cap);
	while (data) {
		size += fread(data + size, 1, cap - size, f);
		if (size < cap)
			break;
		cap *= 2;
		uint8_t *more = realloc(data, cap);
		if (!more)
			free(data);
		data = more;
	}
	int failed = !data || ferror(f);
	fclose(f);
	if (failed) {
		fprintf(stderr, "replay: %s: cannot be read\n", path);
		free(data);
		return 1;
	}
	if (is_pack(path)) {
		bool whole = feed_pack(path, data, size);
		free(data);
		if (!whole)
			fprintf(stderr, "replay: %s: is damaged\n", path);
		return !whole;
	}
	size_t step = size / N_PREFIXES + 1;
	for (size_t n = 0; n < size; n += step)
		feed(data, n);
	feed(data, size);
	free(data);
	n_fed++;
	return 0;
}

static int not_hidden(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

static void name_input(int sig)
{
	static const char head[] = "\nreplay: crashed on ";
	(void)!write(2, head, sizeof head - 1);
	(void)!write(2, current, strlen(current));
	(void)!write(2, "\n", 1);
	(void)sig; /* SA_RESETHAND: returning repeats the fault, which now ends the program */
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = name_input, .sa_flags = SA_RESETHAND};
	sigaction(SIGABRT, &act, NULL);
#ifndef __SANITIZE_ADDRESS__ /* which has better handlers of its own */
	sigaction(SIGSEGV, &act, NULL);
	sigaction(SIGBUS, &act, NULL);
	sigaction(SIGFPE, &act, NULL);
#endif
	for (int i = 1; i < argc; i++) {
		struct stat st;
		if (stat(argv[i], &st) == 0 && !S_ISDIR(st.st_mode)) {
			if (feed_file(argv[i]))
				return 1;
			continue;
		}
		struct dirent **list;
		int n = scandir(argv[i], &list, not_hidden, alphasort);
		if (n < 0) {
			fprintf(stderr, "replay: %s: %s\n", argv[i], strerror(errno));
			return 1;
		}
		for (int k = 0; k < n; k++) {
			char path[4096];
			snprintf(path, sizeof path, "%s/%s", argv[i], list[k]->d_name);
			if (feed_file(path))
				return 1;
			free(list[k]);
		}
		free(list);
	}
	if (!n_fed) {
		puts("no saved inputs");
		return 77;
	}
	printf("%zu inputs replayed\n", n_fed);
	return 0;
}
