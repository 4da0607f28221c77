/* SPDX-License-Identifier: MIT */
/*
 * The page at "/": chat and expert cache, with nothing from anywhere else. The document is small
 * and names its style, scripts and fonts, which are separate responses below PAGE_FOLDER. They are
 * put together by tools/scripts/build_page.sh and are part of the program. Any thread may call.
 *
 * The files' path holds a hash of their bytes, so browsers may keep them for ever; the document
 * must be asked for each time.
 */
#ifndef GLM_SERVE_PAGE_H
#define GLM_SERVE_PAGE_H

#include "src/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

#define PAGE_FOLDER "/page/"

/* The value of the document's Content-Security-Policy header. */
#define PAGE_POLICY                                                                                \
	"default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "                   \
	"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "                     \
	"frame-ancestors 'none'"

struct page_file {
	const char *name; /* "app.js" */
	const char *type; /* of its content, for the header */
	bool is_gzip;     /* the bytes are compressed; every browser accepts that */
	const unsigned char *bytes;
	size_t len;
};

/* Replaces *out by the document: text/html in UTF-8. */
void page_write(struct buf *out);

/* The file that `path`, what a request has behind PAGE_FOLDER ("HASH/app.js"), names; NULL: none,
 * also when the hash is that of another build. Static. */
const struct page_file *page_find_file(const char *path);

const struct page_file *page_icon(void); /* of /favicon.ico */

/* Whether the parts that typeset Markdown and formulas were there when the program was built. */
bool page_has_libraries(void);

#endif
