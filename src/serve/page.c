/* SPDX-License-Identifier: MIT */
/* The document is page.html with "@FILES@" replaced by the folder of its files and "@LIBRARIES@" by
 * the tags of lib.js and lib.css, if the program has them. */
#include "src/serve/page.h"

#include "src/base/log.h"
#include "src/base/num.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A file's bytes as `symbol` and their number as `symbol`_len. The Makefile says that page.o
 * depends on the files. */
#define EMBED(symbol, path)                                                                        \
	extern const unsigned char symbol[];                                                           \
	extern const uint64_t symbol##_len;                                                            \
	__asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" path "\"\n" #symbol                   \
			"_end:\n.byte 0\n.balign 8\n" #symbol "_len:\n.8byte " #symbol "_end - " #symbol       \
			"\n.popsection\n")

EMBED(page_html, "src/serve/page/page.html");
#define FILE_BYTES(symbol, name, type, is_gzip, path) EMBED(page_##symbol, path);
#include <files.inc>
#undef FILE_BYTES

static struct page_file files[] = {
#define FILE_BYTES(symbol, name, type, is_gzip, path) {name, type, is_gzip, page_##symbol, 0},
#include <files.inc>
#undef FILE_BYTES
};

static char folder[20]; /* "HASH/" */

static void open_files(void)
{
	static const uint64_t *const lens[] = {
#define FILE_BYTES(symbol, name, type, is_gzip, path) &page_##symbol##_len,
#include <files.inc>
#undef FILE_BYTES
	};
	uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a: no defence against attacks is needed */
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		files[i].len = (size_t)*lens[i];
		for (size_t k = 0; k < files[i].len; k++)
			hash = (hash ^ files[i].bytes[k]) * 0x100000001b3u;
	}
	snprintf(folder, sizeof folder, "%016llx/", (unsigned long long)hash);
}

static void files_ready(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, open_files);
}

static const struct page_file *find_name(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(files); i++)
		if (!strcmp(files[i].name, name))
			return &files[i];
	return NULL;
}

const struct page_file *page_find_file(const char *path)
{
	files_ready();
	size_t n = strlen(folder);
	return strncmp(path, folder, n) ? NULL : find_name(path + n);
}

const struct page_file *page_icon(void)
{
	files_ready();
	return find_name("favicon.ico");
}

bool page_has_libraries(void)
{
	return find_name("lib.js") != NULL;
}

void page_write(struct buf *out)
{
	const char *base = &PAGE_FOLDER[1]; /* relative, for a proxy that has the page elsewhere */
	files_ready();
	buf_clear(out);
	const char *rest = (const char *)page_html, *end = rest + page_html_len;
	for (const char *at; (at = memchr(rest, '@', (size_t)(end - rest)));) {
		buf_append(out, rest, (size_t)(at - rest));
		if (!strncmp(at, "@FILES@", 7)) {
			buf_printf(out, "%s%s", base, folder);
			rest = at + 7;
		} else if (!strncmp(at, "@LIBRARIES@", 11)) {
			if (page_has_libraries())
				buf_printf(out,
					"<link rel=\"stylesheet\" href=\"%s%slib.css\">\n"
					"<script src=\"%s%slib.js\" defer></script>",
					base, folder, base, folder);
			rest = at + 11;
		} else {
			bug("page.html has an unknown mark: %.12s", at);
		}
	}
	buf_append(out, rest, (size_t)(end - rest));
}
