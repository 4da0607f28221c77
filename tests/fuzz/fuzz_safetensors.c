/* SPDX-License-Identifier: MIT */
/* Any bytes through the safetensors header parser; what it accepts must tile the data exactly. */
#include "src/format/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct safetensors *st;
	struct err e = {0};
	/* as a whole file, and as the start of a longer one */
	for (int k = 0; k < 2; k++) {
		if (safetensors_parse(data, size, k ? (uint64_t)size + 4096 : size, "fuzz", &st, &e)) {
			if (!e.text[0] || st)
				abort();
			continue;
		}
		uint64_t sum = 0;
		for (size_t i = 0; i < st->n_tensors; i++) {
			const struct safetensors_tensor *t = &st->tensors[i];
			char text[SAFETENSORS_SHAPE_MAX];
			if (safetensors_find(st, t->name) != t || t->offset + t->bytes > st->files[0].size)
				abort();
			if (t->bytes &&
				safetensors_rows(t) * safetensors_cols(t) * st_dtype_bytes(t->dtype) != t->bytes)
				abort();
			safetensors_shape_text(t, text);
			sum += t->bytes;
			safetensors_check_scale(st, t, &st->tensors[0], &e);
		}
		if (sum != st->tensor_bytes)
			abort();
		safetensors_close(st);
	}
	return 0;
}
