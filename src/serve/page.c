/* SPDX-License-Identifier: MIT */
/* page.html with "@STYLE@" and "@SCRIPT@" replaced by the other files. */
#include "src/serve/page.h"

#include "src/base/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* name[], name_end: the bytes of a file below src/serve/page/; the Makefile says that page.o depends on them. */
#define FILE_BYTES(name, path)                                                                               \
	extern const char name[], name##_end[];                                                                  \
	__asm__(".pushsection .rodata\n"                                                                         \
			".global " #name ", " #name "_end\n" #name ":\n.incbin \"src/serve/page/" path "\"\n" #name      \
			"_end:\n.byte 0\n.popsection\n")

FILE_BYTES(page_html, "page.html");
FILE_BYTES(page_css, "page.css");
FILE_BYTES(page_markdown_js, "markdown.js");
FILE_BYTES(page_room_js, "room.js");
FILE_BYTES(page_chat_js, "chat.js");

/* Appends what stands before `mark` in the rest of the page; returns what stands behind it. */
static const char *up_to(struct buf *out, const char *rest, const char *mark)
{
	const char *at = memmem(rest, (size_t)(page_html_end - rest), mark, strlen(mark));
	if (!at)
		bug("page.html has no %s", mark);
	buf_append(out, rest, (size_t)(at - rest));
	return at + strlen(mark);
}

int page_write(struct buf *out, char policy[PAGE_POLICY_MAX], struct err *e)
{
	unsigned char random[16];
	char nonce[2 * sizeof random + 1];
	if (getrandom(random, sizeof random, 0) != sizeof random)
		return err_set(e, ERR_RUN, "the system gives no random bytes");
	for (size_t i = 0; i < sizeof random; i++)
		snprintf(nonce + 2 * i, 3, "%02x", random[i]);
	snprintf(policy, PAGE_POLICY_MAX,
		"default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; img-src data:; "
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		nonce, nonce);

	buf_clear(out);
	const char *rest = up_to(out, page_html, "@STYLE@");
	buf_printf(out, "<style nonce=\"%s\">\n", nonce);
	buf_append(out, page_css, (size_t)(page_css_end - page_css));
	buf_puts(out, "</style>");
	rest = up_to(out, rest, "@SCRIPT@");
	buf_printf(out, "<script nonce=\"%s\">\n\"use strict\";\n", nonce);
	buf_append(out, page_markdown_js, (size_t)(page_markdown_js_end - page_markdown_js));
	buf_append(out, page_room_js, (size_t)(page_room_js_end - page_room_js));
	buf_append(out, page_chat_js, (size_t)(page_chat_js_end - page_chat_js));
	buf_puts(out, "</script>");
	buf_append(out, rest, (size_t)(page_html_end - rest));
	return 0;
}
