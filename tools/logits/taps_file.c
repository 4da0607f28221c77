/* SPDX-License-Identifier: MIT */
/* safetensors: u64 length, JSON header padded with blanks to a multiple of 8, data (specification
 * section 3). */
#include "tools/logits/taps_file.h"

#include "src/base/buf.h"

void taps_file_write(FILE *f, const struct taps_tensor *tensors, size_t n)
{
	struct buf header = {0};
	uint64_t at = 0;
	buf_putc(&header, '{');
	for (size_t i = 0; i < n; i++) {
		const struct taps_tensor *t = &tensors[i];
		buf_printf(
			&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name, t->dtype);
		for (int d = 0; d < t->n_dims; d++)
			buf_printf(&header, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
		uint64_t end = at + t->bytes;
		buf_printf(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			(unsigned long long)end);
		at = end;
	}
	buf_putc(&header, '}');
	while (header.len % 8)
		buf_putc(&header, ' ');
	uint64_t len = header.len;
	fwrite(&len, sizeof len, 1, f); /* little-endian machines only: num.h */
	fwrite(header.data, 1, header.len, f);
	for (size_t i = 0; i < n; i++)
		fwrite(tensors[i].data, 1, tensors[i].bytes, f);
	buf_free(&header);
}
