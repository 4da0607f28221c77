/* SPDX-License-Identifier: MIT */
/* A row of GLM-5.2 has 620 KB: rows are computed in runs that fit a fixed buffer. */
#include "tools/logits/token_rows.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/options/text_input.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_BYTES ((size_t)64 << 20) /* of the buffer, if a row is not larger */

static const char *name_of(const char *path)
{
	return strcmp(path, "-") ? path : "standard input";
}

int token_ids_read(const char *path, struct token_ids *out, struct err *e)
{
	char *text = NULL;
	size_t len;
	int rc = text_input_read(strcmp(path, "-") ? path : NULL, &text, &len, e);
	if (!rc)
		rc = text_input_ids(text, len, name_of(path), out, e);
	if (!rc && !out->n)
		rc = err_set(e, ERR_INPUT, "%.400s: holds no token ids", name_of(path));
	free(text);
	return rc;
}

int token_ids_check(const struct token_ids *ids, const char *path, uint32_t n_vocab,
	uint32_t context, struct err *e)
{
	if (ids->n > context)
		return err_set(e, ERR_INPUT, "%.400s: %zu tokens do not fit the context of %u",
			name_of(path), ids->n, context);
	for (size_t i = 0; i < ids->n; i++)
		if (ids->data[i] < 0 || (uint32_t)ids->data[i] >= n_vocab)
			return err_set(e, ERR_INPUT,
				"%.400s: id %d (number %zu) is outside the model's vocabulary of %u", name_of(path),
				ids->data[i], i + 1, n_vocab);
	return 0;
}

int token_rows_walk(struct session *s, const int32_t *ids, uint32_t n,
	const struct session_watch *watch, token_row_fn *each, void *user, struct err *e)
{
	uint32_t vocab = engine_config(session_engine(s))->n_vocab;
	uint32_t most =
		(uint32_t)MIN(MAX(ROWS_BYTES / ((size_t)vocab * sizeof(float)), (size_t)1), (size_t)n);
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
