/* SPDX-License-Identifier: MIT */
#include "src/engine/session/session_image.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/session/session_internal.h"

#include <stdlib.h>
#include <string.h>

struct session_image {
	uint32_t length, mtp_rows, mtp_filled;
	int32_t *tokens; /* [length] */
	uint8_t *rows;   /* cache rows, in the order of session_next_rows */
};

/* The last position's MTP row is made with a token that may not follow: batch_copy_prefix. */
static uint32_t kept_mtp_rows(const struct session *s)
{
	return s->length && s->mtp ? MIN(s->mtp_rows, s->length - 1) : 0;
}

static size_t rows_bytes(const struct session *s)
{
	struct cache_rows r;
	size_t sum = 0;
	for (uint32_t at = 0; session_next_rows(s, 0, s->length, kept_mtp_rows(s), &at, &r);)
		sum += r.n * r.row_bytes;
	return sum;
}

size_t session_image_bytes(const struct session *s)
{
	return sizeof(struct session_image) + s->length * sizeof *s->tokens + rows_bytes(s);
}

int session_image_take(const struct session *s, struct session_image **out, struct err *e)
{
	struct session_image *m = mem_try_new(1, sizeof *m);
	*out = NULL;
	if (m) {
		*m = (struct session_image){.length = s->length,
			.mtp_rows = kept_mtp_rows(s),
			.mtp_filled = MIN(s->mtp_filled, kept_mtp_rows(s)),
			.tokens = mem_try_new(MAX(s->length, 1), sizeof *m->tokens),
			.rows = mem_try_new(MAX(rows_bytes(s), 1), 1)};
	}
	if (!m || !m->tokens || !m->rows) {
		session_image_free(m);
		return err_set(e, ERR_MEMORY, "there is no memory for an image of %u tokens", s->length);
	}
	memcpy(m->tokens, s->tokens, s->length * sizeof *m->tokens);
	struct cache_rows r;
	uint8_t *to = m->rows;
	int rc = 0;
	for (uint32_t at = 0; !rc && session_next_rows(s, 0, m->length, m->mtp_rows, &at, &r);
		 to += r.n * r.row_bytes)
		rc = session_read_rows(s, &r, 0, r.n, to, e);
	if (rc)
		session_image_free(m);
	else
		*out = m;
	return rc;
}

int session_image_restore(struct session *s, const struct session_image *m, struct err *e)
{
	struct cache_rows r;
	const uint8_t *from = m->rows;
	session_rewind(s, 0);
	session_drop_logits(s);
	int rc = 0;
	for (uint32_t at = 0; !rc && session_next_rows(s, 0, m->length, m->mtp_rows, &at, &r);
		 from += r.n * r.row_bytes)
		rc = session_write_rows(s, &r, 0, r.n, from, e);
	memcpy(s->tokens, m->tokens, m->length * sizeof *s->tokens);
	if (rc || (rc = engine_wait(s->g, e)))
		return rc;
	s->length = m->length;
	s->mtp_rows = s->mtp ? m->mtp_rows : 0;
	s->mtp_filled = s->mtp ? m->mtp_filled : 0;
	return 0;
}

void session_image_free(struct session_image *m)
{
	if (!m)
		return;
	free(m->tokens);
	free(m->rows);
	free(m);
}
