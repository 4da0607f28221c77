/* SPDX-License-Identifier: MIT */
/*
 * Reading tensor data, raw or as float. Floats go through a 64 KiB buffer on the stack: no
 * allocation, and what is resident is what the caller handed in. (A mapping would count every page
 * touched against the process.)
 */
#include "src/format/safetensors.h"

#include "src/base/half.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/quant/dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define CHUNK_BYTES 65536

int safetensors_read(const struct safetensors *st, const struct safetensors_tensor *t,
	uint64_t offset, void *dst, size_t bytes, struct err *e)
{
	const struct safetensors_file *f = &st->files[t->file];
	char *p = dst;
	if (offset > t->bytes || bytes > t->bytes - offset)
		bug("%s: %zu bytes at %" PRIu64 " of %" PRIu64, t->name, bytes, offset, t->bytes);
	uint64_t at = t->offset + offset;
	while (bytes) {
		ssize_t n = pread(f->fd, p, MIN(bytes, (size_t)1 << 30), (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_errno(e, errno, "%s: %s: cannot read %zu bytes at offset %" PRIu64, f->path,
				t->name, bytes, at);
		if (n == 0)
			return err_set(e, ERR_INPUT,
				"%s: %s: the file ends at offset %" PRIu64 ", it has become shorter", f->path,
				t->name, at);
		p += n, at += (uint64_t)n, bytes -= (size_t)n;
	}
	return 0;
}

uint32_t safetensors_open_direct(struct safetensors *st)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < st->n_files; i++) {
		struct safetensors_file *f = &st->files[i];
		char name[40]; /* the file that was opened, whatever file has its name now */
		snprintf(name, sizeof name, "/proc/self/fd/%d", f->fd);
		if (f->fd >= 0 && f->direct_fd < 0)
			f->direct_fd = open(name, O_RDONLY | O_CLOEXEC | O_DIRECT);
		n += f->direct_fd >= 0;
	}
	return n;
}

int safetensors_read_direct(const struct safetensors *st, const struct safetensors_tensor *t,
	uint64_t offset, void *buffer, size_t bytes, const void **data, struct err *e)
{
	const struct safetensors_file *f = &st->files[t->file];
	const uint64_t first = t->offset + offset,
				   begin = first / SAFETENSORS_DIRECT_UNIT * SAFETENSORS_DIRECT_UNIT;
	const size_t need = (size_t)(first - begin) + bytes,
				 all = (size_t)num_align_up(need, SAFETENSORS_DIRECT_UNIT);
	if (offset > t->bytes || bytes > t->bytes - offset)
		bug("%s: %zu bytes at %" PRIu64 " of %" PRIu64, t->name, bytes, offset, t->bytes);
	*data = (char *)buffer + (first - begin);
	for (size_t got = 0; f->direct_fd >= 0;) {
		const ssize_t n = pread(f->direct_fd, (char *)buffer + got, MIN(all - got, (size_t)1 << 30),
			(off_t)(begin + got));
		if (n < 0 && errno == EINTR)
			continue;
		got += n > 0 ? (size_t)n : 0;
		if (got >= need)
			return 0;
		/* the buffered read below tries again, or sets the error */
		if (n <= 0 || got % SAFETENSORS_DIRECT_UNIT)
			break;
	}
	return safetensors_read(st, t, offset, (char *)buffer + (first - begin), bytes, e);
}

int safetensors_check_scale(const struct safetensors *st, const struct safetensors_tensor *t,
	const struct safetensors_tensor *scale, struct err *e)
{
	char found[SAFETENSORS_SHAPE_MAX], want_text[SAFETENSORS_SHAPE_MAX];
	struct safetensors_tensor want = *t;
	if (t->n_dims < 2 || t->n_dims > 3)
		return err_set(e, ERR_INPUT, "%s: %s: a tensor of %u dimensions cannot have block scales",
			st->files[t->file].path, t->name, t->n_dims);
	want.shape[t->n_dims - 1] = dtype_scales(want.shape[t->n_dims - 1]);
	want.shape[t->n_dims - 2] = dtype_scales(want.shape[t->n_dims - 2]);
	bool same = scale->n_dims == want.n_dims;
	for (uint32_t d = 0; d < want.n_dims && same; d++)
		same = scale->shape[d] == want.shape[d];
	if (!same)
		return err_set(e, ERR_INPUT,
			"%s: %s: its shape is %s, but %s is expected for 128 x 128 blocks",
			st->files[scale->file].path, scale->name, safetensors_shape_text(scale, found),
			safetensors_shape_text(&want, want_text));
	if (scale->dtype != ST_F32 && scale->dtype != ST_BF16)
		return err_set(e, ERR_INPUT, "%s: %s: its dtype is %s, F32 or BF16 expected",
			st->files[scale->file].path, scale->name, st_dtype_name(scale->dtype));
	return 0;
}

/* n raw values -> float. */
static void to_float(enum st_dtype type, const uint8_t *raw, size_t n, float *out)
{
	switch (type) {
	case ST_F32:
		memcpy(out, raw, n * 4);
		break;
	case ST_BF16:
		for (size_t i = 0; i < n; i++)
			out[i] = bf16_to_f32(load_u16(raw + 2 * i));
		break;
	case ST_F16:
		for (size_t i = 0; i < n; i++)
			out[i] = f16_to_f32(load_u16(raw + 2 * i));
		break;
	case ST_F8_E4M3:
		for (size_t i = 0; i < n; i++)
			out[i] = f8_e4m3_to_f32(raw[i]);
		break;
	default:
		bug("dtype %s reached to_float", st_dtype_name(type));
	}
}

/* `n` values from element `first` of the tensor on. */
static int read_values(const struct safetensors *st, const struct safetensors_tensor *t,
	uint64_t first, uint64_t n, float *out, struct err *e)
{
	uint8_t raw[CHUNK_BYTES];
	uint32_t each = st_dtype_bytes(t->dtype);
	while (n) {
		size_t k = (size_t)MIN(n, CHUNK_BYTES / each);
		int code = safetensors_read(st, t, first * each, raw, k * each, e);
		if (code)
			return code;
		to_float(t->dtype, raw, k, out);
		out += k, first += k, n -= k;
	}
	return 0;
}

/* Multiplies rows [row0, row1) in place by their block scales, one row of scales at a time. */
static int apply_scale(const struct safetensors *st, const struct safetensors_tensor *t,
	const struct safetensors_tensor *scale, uint64_t row0, uint64_t row1, float *out, struct err *e)
{
	enum { HELD = 512 }; /* scales held at once: columns up to 65,536 in one go */
	float held[HELD];
	uint64_t cols = safetensors_cols(t), in_matrix = t->shape[t->n_dims - 2];
	uint64_t scale_cols = dtype_scales(cols), scale_rows = dtype_scales(in_matrix);
	for (uint64_t row = row0; row < row1;) {
		/* rows that share one row of scales */
		uint64_t matrix = row / in_matrix, r = row % in_matrix, band = r / DTYPE_SCALE_BLOCK;
		uint64_t band_end = MIN((band + 1) * DTYPE_SCALE_BLOCK, in_matrix);
		uint64_t end = MIN(row1, row + (band_end - r));
		for (uint64_t b0 = 0; b0 < scale_cols; b0 += HELD) {
			uint64_t b1 = MIN(b0 + HELD, scale_cols);
			int code = read_values(
				st, scale, (matrix * scale_rows + band) * scale_cols + b0, b1 - b0, held, e);
			if (code)
				return code;
			for (uint64_t i = row; i < end; i++) {
				float *y = out + (i - row0) * cols;
				for (uint64_t b = b0; b < b1; b++) {
					uint64_t stop = MIN((b + 1) * DTYPE_SCALE_BLOCK, cols);
					for (uint64_t c = b * DTYPE_SCALE_BLOCK; c < stop; c++)
						y[c] *= held[b - b0];
				}
			}
		}
		row = end;
	}
	return 0;
}

int safetensors_read_f32(const struct safetensors *st, const struct safetensors_tensor *t,
	const struct safetensors_tensor *scale, uint64_t row0, uint64_t row1, float *out, struct err *e)
{
	uint64_t cols = safetensors_cols(t), rows = safetensors_rows(t);
	if (row0 > row1 || row1 > rows)
		bug("%s: rows %" PRIu64 " to %" PRIu64 " of %" PRIu64, t->name, row0, row1, rows);
	if (t->dtype != ST_F32 && t->dtype != ST_F16 && t->dtype != ST_BF16 && t->dtype != ST_F8_E4M3)
		return err_set(e, ERR_INPUT,
			"%s: %s: dtype %s cannot be read as float (F32, F16, BF16 or F8_E4M3 expected)",
			st->files[t->file].path, t->name, st_dtype_name(t->dtype));
	int code = scale ? safetensors_check_scale(st, t, scale, e) : 0;
	if (!code)
		code = read_values(st, t, row0 * cols, (row1 - row0) * cols, out, e);
	if (!code && scale && cols)
		code = apply_scale(st, t, scale, row0, row1, out, e);
	return code;
}
