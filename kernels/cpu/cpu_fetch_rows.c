/* SPDX-License-Identifier: MIT */
/* fetch_rows and store_rows, by one thread: their time is small beside that of attention. */
#include "kernels/cpu/cpu_internal.h"

#include "src/base/half.h"

#include <math.h>
#include <string.h>

#define F8_MOST 448.0f /* the largest value of E4M3 */

static size_t row_bytes(const struct cache_view *v, int n_value)
{
	return v->type == DTYPE_F8_E4M3 ? cache_f8_row_bytes(v->width, n_value)
									: (size_t)v->width * (v->type == DTYPE_F16 ? 2 : 4);
}

static void pack_row(const uint16_t *from, uint8_t *to, int width, int n_value)
{
	uint8_t *scales = to + n_value;
	for (int at = 0; at < n_value; at += CACHE_F8_BLOCK) {
		float most = 0;
		for (int i = 0; i < CACHE_F8_BLOCK; i++)
			most = fmaxf(most, fabsf(f16_to_f32(from[at + i])));
		const float scale = most / F8_MOST;
		for (int i = 0; i < CACHE_F8_BLOCK; i++)
			to[at + i] = scale > 0 ? f32_to_f8_e4m3(f16_to_f32(from[at + i]) / scale) : 0;
		memcpy(scales + (size_t)(at / CACHE_F8_BLOCK) * sizeof scale, &scale, sizeof scale);
	}
	memcpy(scales + (size_t)(n_value / CACHE_F8_BLOCK) * sizeof(float), from + n_value,
		(size_t)(width - n_value) * sizeof *from);
}

static void unpack_row(const uint8_t *from, uint16_t *to, int width, int n_value)
{
	const uint8_t *scales = from + n_value;
	for (int at = 0; at < n_value; at += CACHE_F8_BLOCK) {
		float scale;
		memcpy(&scale, scales + (size_t)(at / CACHE_F8_BLOCK) * sizeof scale, sizeof scale);
		for (int i = 0; i < CACHE_F8_BLOCK; i++)
			to[at + i] = f32_to_f16(f8_e4m3_to_f32(from[at + i]) * scale);
	}
	memcpy(to + n_value, scales + (size_t)(n_value / CACHE_F8_BLOCK) * sizeof(float),
		(size_t)(width - n_value) * sizeof *to);
}

void cpu_store_rows(struct backend *b, const struct batch *rows, const struct cache_view *from,
	const struct cache_view *to, int n_value)
{
	for (int r = 0; r < rows->n && !b->failure.code; r++) {
		const size_t row = (size_t)(rows->base[r] + rows->pos[r]);
		pack_row((const uint16_t *)from->data + row * (size_t)from->width,
			(uint8_t *)to->data + row * row_bytes(to, n_value), to->width, n_value);
	}
}

void cpu_fetch_rows(struct backend *base, const struct batch *rows, const struct fetch_rows *a)
{
	struct cpu_backend *b = cpu_of(base);
	if (b->base.failure.code || !rows->n)
		return;
	const size_t words = ((size_t)a->capacity + 63) / 64, bytes = row_bytes(&a->from, a->n_value),
				 to_bytes = row_bytes(&a->to, a->n_value);
	uint64_t *copied = cpu_scratch(b, words * sizeof *copied, "fetch_rows");
	if (!copied)
		return;
	memset(copied, 0, words * sizeof *copied);
	for (int r = 0; r < rows->n; r++) {
		const int32_t *sel = a->sel + (int64_t)r * a->sel_stride;
		for (int i = 0; i < a->n_sel[r]; i++) {
			const size_t row = (size_t)(rows->base[r] + sel[i]);
			const uint8_t *from = (const uint8_t *)a->from.data + row * bytes;
			uint8_t *to = (uint8_t *)a->to.data + row * to_bytes;
			if (copied[row / 64] >> row % 64 & 1)
				continue;
			copied[row / 64] |= (uint64_t)1 << row % 64;
			if (a->from.type == DTYPE_F8_E4M3)
				unpack_row(from, (uint16_t *)(void *)to, a->to.width, a->n_value);
			else
				memcpy(to, from, bytes);
		}
	}
}
