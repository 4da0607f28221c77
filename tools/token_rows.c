/* SPDX-License-Identifier: MIT */
/* A row of GLM-5.2 has 620 KB: rows are computed in runs that fit a fixed buffer. */
#include "tools/token_rows.h"

#include "src/base/buf.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/out_file.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES ((size_t)1 << 30)
#define ROWS_BYTES     ((size_t)64 << 20) /* of the buffer, if a row is not larger */

int token_ids_read(const char *path, uint32_t n_vocab, int32_t **ids, uint32_t *n, struct err *e)
{
	static const char blank[] = " \t\r\n\v\f";
	size_t len;
	char *text = in_file_read(path, MAX_FILE_BYTES, &len, e);
	if (!text)
		return e->code;
	const char *name = strcmp(path, "-") ? path : "standard input";
	struct buf b = {0};
	int rc = 0;
	size_t at = 0;
	for (;;) {
		at += strspn(text + at, blank);
		if (at >= len)
			break;
		size_t word = strcspn(text + at, blank);
		uint64_t v = 0;
		bool good = word > 0 && word <= 10;
		for (size_t i = 0; i < word && good; i++) {
			good = text[at + i] >= '0' && text[at + i] <= '9';
			v = v * 10 + (uint64_t)(text[at + i] - '0');
		}
		if (!good) {
			rc = err_set(e, ERR_INPUT, "%.400s: \"%.*s\" at byte %zu is not a token id", name, (int)MIN(word, (size_t)40),
				text + at, at);
			break;
		}
		if (v >= n_vocab) {
			rc = err_set(e, ERR_INPUT, "%.400s: id %llu at byte %zu is outside the model's vocabulary of %u", name,
				(unsigned long long)v, at, n_vocab);
			break;
		}
		int32_t id = (int32_t)v;
		buf_append(&b, &id, sizeof id);
		at += word;
	}
	if (!rc && !b.len)
		rc = err_set(e, ERR_INPUT, "%.400s: holds no token ids", name);
	free(text);
	if (rc) {
		buf_free(&b);
		return rc;
	}
	*n = (uint32_t)(b.len / sizeof(int32_t)); /* fits: the file has at most 2^30 bytes */
	*ids = (int32_t *)(void *)buf_take(&b);
	return 0;
}

int token_rows_walk(struct session *s, const int32_t *ids, uint32_t n, const struct session_watch *watch,
	token_row_fn *each, void *user, struct err *e)
{
	uint32_t vocab = engine_config(session_engine(s))->n_vocab;
	uint32_t most = (uint32_t)MIN(MAX(ROWS_BYTES / ((size_t)vocab * sizeof(float)), (size_t)1), (size_t)n);
	float *rows = mem_try_new((size_t)most * vocab, sizeof(float));
	if (!rows)
		return err_set(e, ERR_MEMORY, "no memory for %u rows of %u logits", most, vocab);
	int rc = 0;
	for (uint32_t at = 0; at < n && !rc; at += most) {
		uint32_t now = MIN(most, n - at);
		rc = session_extend(s, ids + at, now, rows, watch, e);
		for (uint32_t i = 0; i < now && !rc; i++)
			rc = each(user, at + i, rows + (size_t)i * vocab, e);
	}
	free(rows);
	return rc;
}
