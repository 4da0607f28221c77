/* SPDX-License-Identifier: MIT */
/* Rows are drawn and written block by block. Values are uniform instead of normal: the variance is
 * the same, and they are quick to make (95 GB take seconds). All blocks of a layer's latents are
 * equal. */
#include "src/engine/session/session_fill.h"

#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/session/session_internal.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)8 << 20)
#define RANGE       1.7320508f /* uniform in [-RANGE, RANGE] has variance 1 */
#define TABLE       4096       /* distinct values */
#define F8_MOST     448        /* the largest value of E4M3 */

struct fill_values {
	float f32[TABLE];
	uint16_t f16[TABLE];
	uint8_t f8[TABLE]; /* of the scale RANGE / F8_MOST */
};

/* n rows of F8_E4M3. */
static void draw_f8(struct rng *rng, const struct fill_values *table, const struct model_config *c,
	uint32_t n, uint8_t *to)
{
	const float scale = RANGE / F8_MOST;
	for (uint32_t r = 0; r < n; r++) {
		for (uint32_t i = 0; i < c->kv_rank; i++)
			*to++ = table->f8[rng_u64(rng) % TABLE];
		for (uint32_t i = 0; i < c->kv_rank / CACHE_F8_BLOCK; i++, to += sizeof scale)
			memcpy(to, &scale, sizeof scale);
		for (uint32_t i = 0; i < c->head_rope; i++, to += sizeof(uint16_t))
			memcpy(to, &table->f16[rng_u64(rng) % TABLE], sizeof(uint16_t));
	}
}

/* The rows of one cache, block by block through `block`. */
static int fill_rows(struct session *s, const struct cache_rows *r, const struct fill_values *table,
	uint8_t *block, atomic_bool *cancel, struct err *e)
{
	const struct kv_cache_shape *shape = &s->g->stages->plan.kv_shape;
	const bool f32 = shape->type == DTYPE_F32, f8 = shape->latents_f8 && !r->index_key;
	const size_t per_block = MAX(BLOCK_BYTES / r->row_bytes, 1);
	struct rng rng = {2 * r->layer + r->index_key};
	int rc = 0;
	for (uint32_t done = 0, n; done < r->n && !rc; done += n) {
		n = (uint32_t)MIN(per_block, r->n - done);
		const size_t values = n * r->row_bytes / (f32 ? 4 : 2);
		if (f8 && !done)
			draw_f8(&rng, table, &s->g->config, n, block);
		for (size_t i = 0; !f8 && (!done || r->index_key) && i < values;) {
			uint64_t bits = rng_u64(&rng);
			for (int k = 0; k < 5 && i < values; k++, i++, bits >>= 12) {
				if (f32)
					((float *)(void *)block)[i] = table->f32[bits % TABLE];
				else
					((uint16_t *)(void *)block)[i] = table->f16[bits % TABLE];
			}
		}
		rc = session_write_rows(s, r, done, n, block, e);
		if (!rc && cancel && atomic_load(cancel))
			rc = err_set(e, ERR_INTERRUPTED, "interrupted");
	}
	return rc;
}

int session_fill_random(
	struct session *s, const int32_t *tokens, uint32_t n, atomic_bool *cancel, struct err *e)
{
	int rc = n ? session_check(s, tokens, n, n, e) : err_set(e, ERR_INPUT, "no tokens to fill");
	struct fill_values table;
	struct cache_rows r;
	if (rc)
		return rc;
	for (int i = 0; i < TABLE; i++) {
		table.f32[i] = RANGE * (2 * ((float)i + 0.5f) / TABLE - 1);
		table.f16[i] = f32_to_f16(table.f32[i]);
		table.f8[i] = f32_to_f8_e4m3(table.f32[i] * (F8_MOST / RANGE));
	}
	uint8_t *block = mem_try_new(BLOCK_BYTES + engine_most_row_bytes(s->g), 1);
	if (!block)
		return err_set(e, ERR_MEMORY, "no memory for a block of cache rows");
	session_rewind(s, 0);
	session_drop_logits(s);
	for (uint32_t at = 0; !rc && session_next_rows(s, 0, n, s->mtp, &at, &r);)
		rc = fill_rows(s, &r, &table, block, cancel, e);
	free(block);
	if (rc || (rc = engine_wait(s->g, e)))
		return rc;
	memcpy(s->tokens, tokens, n * sizeof *tokens);
	s->length = n;
	s->mtp_rows = s->mtp_filled = s->mtp ? n - 1 : 0;
	return 0;
}
