/* SPDX-License-Identifier: MIT */
/*
 * tokenizer.json, then text. Input: the JSON, a zero byte, text. Without a zero byte all of it is
 * text for a small built-in vocabulary, so that encoding is reached without inventing JSON.
 * Checked: what encodes decodes to the same bytes, with added tokens parsed or not; ids are in
 * range; streaming equals repairing at once.
 */
#include "src/base/log.h"
#include "src/text/hf_tokenizer.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"
#include "tests/fuzz/fixture.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const struct tokenizer *t, const char *text, size_t n)
{
	bool valid = utf8_valid_prefix(text, n) == n;
	for (unsigned flags = 0; flags < 2; flags++) {
		struct token_ids ids = {0};
		struct buf out = {0};
		struct err e = {0};
		int rc = tokenizer_encode(t, text, n, flags, &ids, &e);
		if (rc && !e.text[0])
			bug("error without a sentence");
		if (!rc && !valid)
			bug("broken UTF-8 was encoded");
		if (!rc) {
			if (tokenizer_decode(t, ids.data, ids.n, &out, &e))
				bug("%s", e.text);
			if (out.len != n || (n && memcmp(out.data, text, n)))
				bug("decoding gives other bytes");
		}
		token_ids_free(&ids);
		buf_free(&out);
	}
	struct buf once = {0}, stepped = {0};
	struct utf8_stream s = {0};
	utf8_repair(text, n, &once);
	for (size_t i = 0; i < n;) {
		size_t step = 1 + (unsigned char)text[i] % 3;
		step = step < n - i ? step : n - i;
		utf8_stream_push(&s, text + i, step, &stepped);
		i += step;
	}
	utf8_stream_flush(&s, &stepped);
	if (once.len != stepped.len || memcmp(buf_str(&once), buf_str(&stepped), once.len))
		bug("streaming differs from repairing at once");
	if (utf8_valid_prefix(buf_str(&once), once.len) != once.len)
		bug("repaired text is not valid");
	buf_free(&once);
	buf_free(&stepped);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct tokenizer *small = fixture_small_tokenizer();
	const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
	if (!zero) {
		check_text(small, (const char *)data, size);
		return 0;
	}
	struct hf_tokenizer hf;
	struct err e = {0};
	if (hf_tokenizer_parse(&hf, (const char *)data, (size_t)(zero - data), &e)) {
		if (!e.text[0])
			bug("error without a sentence");
		check_text(small, (const char *)zero, size - (size_t)(zero - data));
		return 0;
	}
	struct tokenizer *t;
	if (!tokenizer_from_hf(&hf, &t, &e)) {
		check_text(t, (const char *)zero + 1, size - (size_t)(zero - data) - 1);
		tokenizer_free(t);
	}
	hf_tokenizer_fini(&hf);
	return 0;
}
