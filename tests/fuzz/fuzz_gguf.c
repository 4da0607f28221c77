/* SPDX-License-Identifier: MIT */
/* Any bytes through the GGUF parser; of what it accepts, every value is read and every block
 * decoded. */
#include "src/format/gguf.h"

#include "src/base/log.h"
#include "src/quant/dequant.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gguf *g;
	struct err e = {0};
	log_set_level(LOG_QUIET);
	if (gguf_parse(data, size, "fuzz", &g, &e)) {
		if (!e.text[0] || g)
			abort();
		return 0;
	}
	uint64_t sum = 0;
	for (size_t i = 0; i < g->n_kvs; i++) {
		const struct gguf_kv *kv = &g->kvs[i];
		uint32_t u;
		float f;
		bool b;
		struct gguf_str s;
		if (gguf_find(g, kv->key) != kv)
			abort();
		gguf_get_u32(g, kv->key, &u, &e);
		gguf_get_f32(g, kv->key, &f, &e);
		gguf_get_bool(g, kv->key, &b, &e);
		gguf_get_str(g, kv->key, &s, &e);
		for (uint64_t k = 0; k < kv->value.n; k++) {
			if (kv->value.type != GGUF_STRING)
				sum += (uint64_t)gguf_array_i64(&kv->value, k);
			else if (kv->value.strings[k].len)
				sum += (uint8_t)kv->value.strings[k].ptr[kv->value.strings[k].len - 1];
		}
	}
	for (size_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *t = &g->tensors[i];
		if (gguf_find_tensor(g, t->name) != t)
			abort();
		const struct dtype_info *info = dtype_info(t->type);
		for (uint64_t at = 0; at < t->bytes; at += info->block_bytes) {
			float block[256];
			dequant_row(t->type, t->data + at, block, info->block_values);
			for (uint32_t k = 0; k < info->block_values; k++)
				sum += block[k] > 0;
		}
	}
	sink = sum;
	gguf_close(g);
	return 0;
}
