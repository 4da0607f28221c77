/* SPDX-License-Identifier: MIT */
/* A row of GLM-5.2 has 620 KB: rows are computed in runs that fit a fixed buffer. */
#include "tools/token_rows.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/text_input.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_BYTES ((size_t)64 << 20) /* of the buffer, if a row is not larger */

int token_ids_read(const char *path, uint32_t n_vocab, struct token_ids *out, struct err *e)
{
	bool is_stdin = !strcmp(path, "-");
	const char *name = is_stdin ? "standard input" : path;
	char *text = NULL;
	size_t len;
	int rc;
	if ((rc = text_input_read(is_stdin ? NULL : path, &text, &len, e)) ||
		(rc = text_input_ids(text, len, name, out, e)))
		goto out;
	if (!out->n)
		rc = err_set(e, ERR_INPUT, "%.400s: holds no token ids", name);
	else if (out->n > UINT32_MAX)
		rc = err_set(e, ERR_INPUT, "%.400s: holds %zu token ids, more than any context", name, out->n);
	for (size_t i = 0; i < out->n && !rc; i++)
		if (out->data[i] < 0 || (uint32_t)out->data[i] >= n_vocab)
			rc = err_set(e, ERR_INPUT, "%.400s: id %d (number %zu) is outside the model's vocabulary of %u", name,
				out->data[i], i + 1, n_vocab);
out:
	free(text);
	return rc;
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
