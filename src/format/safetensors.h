/* SPDX-License-Identifier: MIT */
/*
 * Hugging Face checkpoints: one safetensors file or a directory of shards. Only headers are held in
 * memory. Data are read with pread into the caller's buffers, so memory use does not grow with the
 * model; a folder that is run as a model is mapped instead (src/checkpoint/checkpoint.h).
 *
 *   u64 N
 *   N bytes of JSON: { name: {dtype, shape, data_offsets: [b, e]}, "__metadata__": {...} }
 *   data
 *
 * As strict as the official library: no duplicate names, sizes agree with shape and dtype, tensors
 * cover the data without holes or overlap, and the file ends where the last tensor ends. A
 * checkpoint is constant once open: any thread may look up and read.
 */
#ifndef GLM_FORMAT_SAFETENSORS_H
#define GLM_FORMAT_SAFETENSORS_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum st_dtype {
	ST_F64,
	ST_F32,
	ST_F16,
	ST_BF16,
	ST_F8_E4M3,
	ST_F8_E5M2,
	ST_I64,
	ST_I32,
	ST_I16,
	ST_I8,
	ST_U64,
	ST_U32,
	ST_U16,
	ST_U8,
	ST_BOOL,
	ST_DTYPE_COUNT,
};

const char *st_dtype_name(enum st_dtype t); /* as stored: "BF16" */
uint32_t st_dtype_bytes(enum st_dtype t);

#define SAFETENSORS_MAX_DIMS         8
#define SAFETENSORS_MAX_HEADER_BYTES 100000000 /* the official library's limit */

struct safetensors_tensor {
	const char *name;
	enum st_dtype dtype;
	uint32_t n_dims;                      /* 0 (a scalar) .. 8 */
	uint64_t shape[SAFETENSORS_MAX_DIMS]; /* slowest first, as stored */
	uint32_t file;                        /* index into safetensors.files */
	uint64_t offset;                      /* of the first byte, from the start of that file */
	uint64_t bytes;
};

struct safetensors_file {
	char *path;
	uint64_t size;
	uint64_t header_bytes; /* of the JSON, behind the first 8 */
	uint64_t header_hash;  /* of these 8 + header_bytes bytes (hash.h) */
	int fd;                /* -1 when the bytes came from safetensors_parse */
	int direct_fd;         /* the same file with O_DIRECT (safetensors_open_direct), or -1 */
};

/* Read-only for callers. */
struct safetensors {
	struct safetensors_tensor *tensors; /* [n_tensors], sorted by name */
	size_t n_tensors;
	struct safetensors_file *files;
	uint32_t n_files;
	uint64_t tensor_bytes;
	char **names; /* private */
	size_t n_names;
};

/* Opens one .safetensors file, or a directory: the shards of its model.safetensors.index.json, else
 * its model.safetensors, else every *.safetensors in it. With an index only the tensors that it
 * lists exist; errors name missing shards and tensors. *out is the caller's. */
int safetensors_open(const char *path, struct safetensors **out, struct err *e);

/* Parses the first n bytes of a file of file_bytes bytes; they must include the whole header. There
 * is no file, so data cannot be read. */
int safetensors_parse(const void *bytes, size_t n, uint64_t file_bytes, const char *name,
	struct safetensors **out, struct err *e);

/* Closes the files: headers stay, data cannot be read any more. */
void safetensors_close_files(struct safetensors *st);

void safetensors_close(struct safetensors *st); /* accepts NULL */

/* NULL: absent. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);

/* "[2048, 6144]" into a buffer of SAFETENSORS_SHAPE_MAX bytes. */
#define SAFETENSORS_SHAPE_MAX 192
char *safetensors_shape_text(const struct safetensors_tensor *t, char *out);

/* Rows and columns of the matrix view: columns = last dimension, rows = product of the others. A
 * scalar is 1 x 1. */
uint64_t safetensors_rows(const struct safetensors_tensor *t);
uint64_t safetensors_cols(const struct safetensors_tensor *t);

/* Reads `bytes` raw bytes at `offset` bytes into the tensor. */
int safetensors_read(const struct safetensors *st, const struct safetensors_tensor *t,
	uint64_t offset, void *dst, size_t bytes, struct err *e);

/* Opens the files a second time with O_DIRECT, for safetensors_read_direct. Returns how many of
 * them: not every file system supports it. Before other threads use st. */
uint32_t safetensors_open_direct(struct safetensors *st);

/* As safetensors_read, but past the page cache where safetensors_open_direct opened the file and
 * the read succeeds, else through it.
 *   buffer  aligned to SAFETENSORS_DIRECT_UNIT, of `bytes` + SAFETENSORS_DIRECT_SLACK bytes; the
 *           bytes around the data are overwritten too
 *   *data   out: the first of the `bytes` bytes, within buffer, of any alignment */
#define SAFETENSORS_DIRECT_UNIT  4096
#define SAFETENSORS_DIRECT_SLACK 8192
int safetensors_read_direct(const struct safetensors *st, const struct safetensors_tensor *t,
	uint64_t offset, void *buffer, size_t bytes, const void **data, struct err *e);

/* Checks that `scale` has one value per 128 x 128 block of `t` ([..., ceil(rows/128),
 * ceil(cols/128)], F32 or BF16). */
int safetensors_check_scale(const struct safetensors *st, const struct safetensors_tensor *t,
	const struct safetensors_tensor *scale, struct err *e);

/* Reads rows [row0, row1) of the matrix view of an F32, F16, BF16 or F8_E4M3 tensor as float:
 * out[(row1 - row0) * cols]. With `scale` (may be NULL, see safetensors_check_scale) value(r, c) is
 * multiplied by scale(r / 128, c / 128), rounded once; r counts within each matrix of a stack
 * [E, rows, cols]. Thread-safe. */
int safetensors_read_f32(const struct safetensors *st, const struct safetensors_tensor *t,
	const struct safetensors_tensor *scale, uint64_t row0, uint64_t row1, float *out,
	struct err *e);

#endif
