/* SPDX-License-Identifier: MIT */
/* The page at "/": chat and machine room in one HTML document that needs nothing from anywhere
 * else. Its parts are the files of src/serve/page/, which the assembler puts into the program as
 * they are. */
#ifndef GLM_SERVE_PAGE_H
#define GLM_SERVE_PAGE_H

#include "src/base/buf.h"
#include "src/base/err.h"

#define PAGE_POLICY_MAX 320

/* Replaces *out by the document and writes the value of its Content-Security-Policy header, which
 * lets only the style and the script of this very copy count: both carry a number drawn anew by
 * every call, so the document must not be stored. To be sent as text/html; charset=utf-8. 0, or
 * ERR_RUN when the system gives no random bytes. Any thread. */
int page_write(struct buf *out, char policy[PAGE_POLICY_MAX], struct err *e);

#endif
