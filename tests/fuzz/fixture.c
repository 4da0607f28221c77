/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/fixture.h"

#include "src/base/log.h"
#include "src/text/hf_tokenizer.h"

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

/* The bytes in GPT-2 order of value, a few joins, two added tokens. */
static struct tokenizer *make_small_tokenizer(void)
{
	static const char *const joins[] = {
		"aa", "aaa", "ab", "ba", "he", "ll", "hell", "  ", "\n\n", " a", "\xc3\xa9", "12", "123"};
	static const char *const merges[] = {"a a", "aa a", "a b", "b a", "h e", "l l", "he ll",
		"\xc4\xa0 \xc4\xa0", "\xc4\x8a \xc4\x8a", "\xc4\xa0 a", "\xc3\x83 \xc2\xa9", "1 2", "12 3"};
	enum { N_JOINS = sizeof joins / sizeof *joins };
	struct buf text[256 + N_JOINS] = {{0}};
	struct text_span tokens[256 + N_JOINS + 2], merge[N_JOINS];
	uint8_t types[256 + N_JOINS + 2];
	memset(types, TOKEN_NORMAL, sizeof types);
	for (int i = 0; i < 256 + N_JOINS; i++) {
		char byte = (char)i;
		if (i < 256)
			vocab_spell(&byte, 1, &text[i]);
		else
			vocab_spell(joins[i - 256], strlen(joins[i - 256]), &text[i]);
		tokens[i] = (struct text_span){text[i].data, text[i].len};
	}
	for (int i = 0; i < N_JOINS; i++)
		merge[i] = (struct text_span){merges[i], strlen(merges[i])};
	tokens[256 + N_JOINS] = (struct text_span){"<|user|>", 8};
	tokens[257 + N_JOINS] = (struct text_span){"<|user", 6};
	types[256 + N_JOINS] = TOKEN_CONTROL;
	types[257 + N_JOINS] = TOKEN_USER;
	struct hf_tokenizer hf = {
		.n_tokens = 258 + N_JOINS,
		.tokens = tokens,
		.types = types,
		.n_merges = N_JOINS,
		.merges = merge,
		.pattern =
			(char *)"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
					"?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
					"\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
		.ignore_merges = false,
	};
	struct tokenizer *t;
	struct err e = {0};
	if (tokenizer_from_hf(&hf, &t, &e))
		bug("%s", e.text);
	for (int i = 0; i < 256 + N_JOINS; i++)
		buf_free(&text[i]);
	return t;
}

const struct tokenizer *fixture_small_tokenizer(void)
{
	static struct tokenizer *t;
	if (!t)
		t = make_small_tokenizer();
	return t;
}
