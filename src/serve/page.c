/* SPDX-License-Identifier: MIT */
/* page.html with "@STYLE@" and "@SCRIPT@" replaced by the other files. */
#include "src/serve/page.h"

#include "src/base/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* name: a file below src/serve/page/ as a string; the Makefile says that page.o depends on them. */
#define FILE_TEXT(name, path)                                                                      \
	extern const char name[];                                                                      \
	__asm__(".pushsection .rodata\n.global " #name "\n" #name ":\n.incbin \"src/serve/page/" path  \
			"\"\n.byte 0\n.popsection\n")

FILE_TEXT(page_html, "page.html");
FILE_TEXT(page_css, "page.css");
FILE_TEXT(page_markdown_js, "markdown.js");
FILE_TEXT(page_expert_panel_js, "expert_panel.js");
FILE_TEXT(page_chat_js, "chat.js");

/* Appends what stands before `mark` in the rest of the page; returns what stands behind it. */
static const char *up_to(struct buf *out, const char *rest, const char *mark)
{
	const char *at = strstr(rest, mark);
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
		"default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
		"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		nonce, nonce);

	buf_clear(out);
	const char *rest = up_to(out, page_html, "@STYLE@");
	buf_printf(out, "<style nonce=\"%s\">\n", nonce);
	buf_puts(out, page_css);
	buf_puts(out, "</style>");
	rest = up_to(out, rest, "@SCRIPT@");
	buf_printf(out, "<script nonce=\"%s\">\n\"use strict\";\n", nonce);
	buf_puts(out, page_markdown_js);
	buf_puts(out, page_expert_panel_js);
	buf_puts(out, page_chat_js);
	buf_puts(out, "</script>");
	buf_puts(out, rest);
	return 0;
}
