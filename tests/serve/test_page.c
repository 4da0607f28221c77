/* SPDX-License-Identifier: MIT */
/* The page as it is sent: whole, every file that it names is there and small enough, and its policy
 * lets nothing in from elsewhere. */
#include "src/serve/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MOST_BYTES 400000 /* of all files that a browser fetches */

/* The folder of this build, as the document has it behind "page/": "HASH/". */
static void find_folder(const struct buf *page, char folder[64])
{
	const char *at = strstr(buf_str(page), "src=\"page/");
	assert_non_null(at);
	assert_int_equal(sscanf(at, "src=\"page/%63[^\"]", folder), 1);
	*(strrchr(folder, '/') + 1) = 0;
}

static const struct page_file *find_in(const char *folder, const char *name)
{
	char path[128];
	snprintf(path, sizeof path, "%s%s", folder, name);
	return page_find_file(path);
}

static void test_document(void **state)
{
	(void)state;
	struct buf page = {0}, again = {0};
	page_write(&page);
	page_write(&again);
	assert_string_equal(buf_str(&page), buf_str(&again));
	assert_int_equal(strlen(buf_str(&page)), page.len);
	assert_int_equal(strncmp(buf_str(&page), "<!DOCTYPE html>", 15), 0);
	assert_string_equal(buf_str(&page) + page.len - 8, "</html>\n");
	assert_null(strchr(buf_str(&page), '@'));
	/* scripts and styles only as files of the server, nothing from another origin */
	assert_null(strstr(buf_str(&page), "<style"));
	assert_null(strstr(buf_str(&page), "<script>"));
	assert_null(strstr(buf_str(&page), "=\"http"));
	assert_null(strstr(buf_str(&page), "=\"//"));
	assert_null(strstr(PAGE_POLICY, "unsafe"));
	assert_null(strstr(PAGE_POLICY, "http"));
	assert_int_equal(strncmp(PAGE_POLICY, "default-src 'none'; ", 20), 0);
	buf_free(&page);
	buf_free(&again);
}

static void test_files(void **state)
{
	(void)state;
	static const char *const own[] = {"app.js", "app.css", "theme.js"};
	static const char *const libraries[] = {"lib.js", "lib.css", "KaTeX_Main-Regular.woff2",
		"KaTeX_Main-Bold.woff2", "KaTeX_Main-Italic.woff2", "KaTeX_Math-Italic.woff2",
		"KaTeX_AMS-Regular.woff2", "KaTeX_Size1-Regular.woff2", "KaTeX_Size2-Regular.woff2",
		"KaTeX_Size3-Regular.woff2", "KaTeX_Size4-Regular.woff2", "KaTeX_Caligraphic-Regular.woff2",
		"KaTeX_Script-Regular.woff2", "KaTeX_Fraktur-Regular.woff2",
		"KaTeX_SansSerif-Regular.woff2", "KaTeX_Typewriter-Regular.woff2"};
	char folder[64];
	struct buf page = {0};
	page_write(&page);
	find_folder(&page, folder);
	size_t sum = page.len;
	for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
		const struct page_file *f = find_in(folder, own[i]);
		assert_non_null(f);
		assert_non_null(strstr(buf_str(&page), own[i]));
		assert_true(f->is_gzip && f->len > 100 && f->bytes[0] == 0x1f && f->bytes[1] == 0x8b);
		assert_int_equal(f->bytes[4] | f->bytes[5] | f->bytes[6] | f->bytes[7], 0); /* no time */
		sum += f->len;
	}
	assert_int_equal(strstr(buf_str(&page), "lib.js") != NULL, page_has_libraries());
	for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
		const struct page_file *f = find_in(folder, libraries[i]);
		assert_int_equal(f != NULL, page_has_libraries());
		if (f && strstr(f->name, ".woff2"))
			assert_int_equal(memcmp(f->bytes, "wOF2", 4), 0);
		sum += f ? f->len : 0;
	}
	printf("the page has %zu bytes\n", sum);
	assert_in_range(sum, 20000, MOST_BYTES);
	if (page_has_libraries())
		assert_non_null(find_in(folder, "licences.txt"));
	const struct page_file *icon = page_icon();
	assert_non_null(icon);
	assert_int_equal(memcmp(icon->bytes, "\0\0\1\0", 4), 0);
	buf_free(&page);
}

static void test_no_other_paths(void **state)
{
	(void)state;
	static const char *const paths[] = {
		"", "/", "app.js", "/app.js", "0000000000000000/app.js", "../app.js", "favicon.ico"};
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
		assert_null(page_find_file(paths[i]));
	char folder[64];
	struct buf page = {0};
	page_write(&page);
	find_folder(&page, folder);
	assert_null(find_in(folder, ""));
	assert_null(find_in(folder, "app.js/"));
	assert_null(find_in(folder, "../app.js"));
	buf_free(&page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_document),
		cmocka_unit_test(test_files), cmocka_unit_test(test_no_other_paths)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
