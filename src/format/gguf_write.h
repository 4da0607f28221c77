/* SPDX-License-Identifier: MIT */
/*
 * Writing GGUF version 3 in two passes: first declare all keys and tensors and plan (every size is
 * known then, nothing has been written), then create the files and fill in tensor data in any
 * order, from any number of threads.
 *
 *   new -> set_* / add_tensor -> plan -> [create -> write ... -> commit] -> free
 *
 * Data go to OUT.gguf.partial, renamed to OUT.gguf by commit after an fsync: a file under its final
 * name is complete. With split_bytes the output is OUT-00001-of-0000N.gguf ..., the first part
 * renamed last, so an openable set is complete.
 *
 * Every part: header, padding to `alignment`, then each tensor at a multiple of it; the end of the
 * file is padded too, so that reads widened to 4096 bytes stay inside the file. Gaps are zero.
 */
#ifndef GLM_FORMAT_GGUF_WRITE_H
#define GLM_FORMAT_GGUF_WRITE_H

#include "src/base/err.h"
#include "src/format/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_writer;

#define GGUF_WRITE_ALIGNMENT 4096 /* one page and one O_DIRECT unit */

struct gguf_write_options {
	uint32_t alignment; /* a power of two; 0: GGUF_WRITE_ALIGNMENT */
	/* largest file; a tensor that is larger gets a part of its own. 0: one file */
	uint64_t split_bytes;
};

struct gguf_writer *gguf_writer_new(const struct gguf_write_options *options); /* NULL: defaults */

/* Closes files; leaves .partial files where they are (see gguf_writer_discard). Accepts NULL. */
void gguf_writer_free(struct gguf_writer *w);

/* ---- declare: keys are copied, in the order given. A key given twice is a bug() ----
 * general.alignment, split.* and glmstream.version are written by the writer itself. */
void gguf_writer_set_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_set_u64(struct gguf_writer *w, const char *key, uint64_t v);
void gguf_writer_set_f32(struct gguf_writer *w, const char *key, float v);
void gguf_writer_set_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_writer_set_str(struct gguf_writer *w, const char *key, const char *v);
/* A string with any bytes. */
void gguf_writer_set_bytes(struct gguf_writer *w, const char *key, const void *v, size_t n);
void gguf_writer_set_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n);
void gguf_writer_set_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n);
void gguf_writer_set_bools(struct gguf_writer *w, const char *key, const bool *v, size_t n);
void gguf_writer_set_strs(
	struct gguf_writer *w, const char *key, const struct gguf_str *v, size_t n);

/* Declares the next tensor; *id (may be NULL) counts from 0. Refused: a bad or repeated name, a
 * shape the type cannot hold. */
int gguf_writer_add_tensor(struct gguf_writer *w, const char *name, enum dtype type,
	uint32_t n_dims, const uint64_t *ne, size_t *id, struct err *e);

/* Tensor `id` gets no data of its own but those of `of`, an earlier tensor of the same type and
 * size with data of its own. Readers refuse such a file unless it carries GGUF_SHARED_DATA_KEY. Not
 * with split_bytes (bug). */
void gguf_writer_share_tensor(struct gguf_writer *w, size_t id, size_t of);

/* The file gets check values (check_values.h): after its data have been written every tensor has to
 * be sealed, or each of its ranges gets its value by gguf_writer_set_check_value. */
void gguf_writer_add_check_values(struct gguf_writer *w);

/* ---- plan: after it nothing more can be declared ---- */
int gguf_writer_plan(struct gguf_writer *w, struct err *e);

struct gguf_write_part {
	uint64_t header_bytes; /* with padding: where tensor data begin */
	uint64_t tensor_bytes; /* sum over its tensors with data of their own, without padding */
	uint64_t file_bytes;
	size_t first_tensor, n_tensors;
};
size_t gguf_writer_n_parts(const struct gguf_writer *w);
struct gguf_write_part gguf_writer_part(const struct gguf_writer *w, size_t part);

/* Where a tensor stands: part, offset from the start of that file, bytes. Pointers may be NULL. */
void gguf_writer_place(
	const struct gguf_writer *w, size_t id, size_t *part, uint64_t *offset, uint64_t *bytes);

/* The header of a part, after plan, as create writes it; valid for the life of the writer. A file
 * of this header and a hole up to file_bytes can be opened, and memory planned for it. */
const void *gguf_writer_header(const struct gguf_writer *w, size_t part, size_t *bytes);

/* Final path of a part for output `path`; the caller frees it. */
char *gguf_writer_part_path(const struct gguf_writer *w, const char *path, size_t part);

/* ---- write ---- */

/* Whether create and commit may write here. To be called after plan and before create: these then
 * refuse the same files, while without this call they replace any file. ERR_INPUT:
 * - the final name of a part is taken, or its .partial exists and is no unfinished model of this
 *   program; not with force (out_file.h);
 * - the final name is that of a directory, a device or a pipe, or its folder takes no files. */
int gguf_writer_check_output(struct gguf_writer *w, const char *path, bool force, struct err *e);

/* Creates path.partial (of each part; beside what a link leads to), reserves the space on disk
 * where the file system can, writes headers. With `resume` the files must exist from an earlier run
 * with the same sizes and headers (check values may differ); their data and check values are kept.
 * May be called again after it has failed. */
int gguf_writer_create(struct gguf_writer *w, const char *path, bool resume, struct err *e);

/* After create: the file in which the part stands until commit. */
const char *gguf_writer_partial(const struct gguf_writer *w, size_t part);

/* Writes `bytes` of data of tensor `id` at `offset` bytes into that tensor. Thread-safe. */
int gguf_writer_write(struct gguf_writer *w, size_t id, uint64_t offset, const void *data,
	size_t bytes, struct err *e);

/* All data of tensor `id` have been written: reads them back and puts their check values into the
 * file. A tensor that shares the data of another is sealed after that one. Thread-safe. No effect
 * without gguf_writer_add_check_values. */
int gguf_writer_seal(struct gguf_writer *w, size_t id, struct err *e);

/* Puts the check value of one range of tensor `id` into the file: the XXH3 of its bytes, computed
 * by a caller who has them in memory. Thread-safe for different ranges. No effect without
 * gguf_writer_add_check_values. */
int gguf_writer_set_check_value(
	struct gguf_writer *w, size_t id, uint64_t range, uint64_t value, struct err *e);
/* How many ranges tensor `id` has (check_values.h); all are of one size. */
uint64_t gguf_writer_ranges(const struct gguf_writer *w, size_t id);

/* Hands what has been written of all parts to the disk (fdatasync). */
int gguf_writer_sync(struct gguf_writer *w, struct err *e);

/* Syncs, renames to the final names, syncs the directory. ERR_INPUT as of check_output, before any
 * name is taken: the .partial files are complete, and commit may be called again. */
int gguf_writer_commit(struct gguf_writer *w, struct err *e);

/* Removes the .partial files of this writer. */
void gguf_writer_discard(struct gguf_writer *w);

#endif
