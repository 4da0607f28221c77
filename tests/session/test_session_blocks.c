/* SPDX-License-Identifier: MIT */
/*
 * Blocks of a session file without memory to expand them: ERR_MEMORY, not a damaged file. This
 * program puts functions of its own before those of lz4, which fail when a case wants it.
 */
#include "src/engine/session/session_blocks.h"

#include "src/base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if HAVE_LZ4
#include <dlfcn.h>
#include <lz4frame.h>

static bool no_context, no_buffer;

LZ4F_errorCode_t LZ4F_createDecompressionContext(LZ4F_dctx **out, unsigned version)
{
	LZ4F_errorCode_t (*real)(LZ4F_dctx **, unsigned);
	*(void **)(void *)&real = dlsym(RTLD_NEXT, "LZ4F_createDecompressionContext");
	return no_context ? (LZ4F_errorCode_t)-9 : real(out, version); /* ERROR_allocation_failed */
}

size_t LZ4F_decompress(LZ4F_dctx *d, void *to, size_t *to_bytes, const void *from,
	size_t *from_bytes, const LZ4F_decompressOptions_t *o)
{
	size_t (*real)(
		LZ4F_dctx *, void *, size_t *, const void *, size_t *, const LZ4F_decompressOptions_t *);
	*(void **)(void *)&real = dlsym(RTLD_NEXT, "LZ4F_decompress");
	return no_buffer ? (size_t)-9 : real(d, to, to_bytes, from, from_bytes, o);
}

static uint8_t zeros[BLOCK_MAX_BYTES], got[BLOCK_MAX_BYTES];

static int read_again(FILE *f, struct err *e)
{
	struct block_stream b;
	rewind(f);
	assert_int_equal(block_stream_init(&b, f, "the file", 0, e), 0);
	memset(got, 1, sizeof got);
	int rc = block_read(&b, got, sizeof got, e);
	block_stream_fini(&b);
	return rc;
}

static void test_no_memory_to_expand(void **state)
{
	(void)state;
	struct block_stream b;
	struct err e = {0};
	FILE *f = tmpfile();
	assert_non_null(f);
	assert_int_equal(block_stream_init(&b, f, "the file", 0, &e), 0);
	assert_int_equal(block_write(&b, zeros, sizeof zeros, &e), 0);
	assert_true(b.stored_bytes < b.raw_bytes);
	block_stream_fini(&b);
	no_context = true;
	assert_int_equal(read_again(f, &e), ERR_MEMORY);
	no_context = false;
	no_buffer = true;
	assert_int_equal(read_again(f, &e), ERR_MEMORY);
	assert_non_null(strstr(e.text, "the file: no memory to expand block 0"));
	no_buffer = false;
	assert_int_equal(read_again(f, &e), 0);
	assert_memory_equal(got, zeros, sizeof got);
	fclose(f);
}
#else
static void test_no_memory_to_expand(void **state)
{
	(void)state;
	skip();
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory_to_expand)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
