/* SPDX-License-Identifier: MIT */
/*
 * Check values of the weights in a GGUF: XXH3 (64 bits, seed 0) of each range. A range is a matrix
 * of one routed expert, as it is read from a drive, or the whole of another tensor. Ranges are
 * numbered in the order of the tensor table, those of one tensor in the order of the experts.
 *
 * They find bytes that a drive, a cable or a memory has changed. They are no signature: who changes
 * bytes on purpose changes the values too.
 *
 * convert and synth put them into the file, as the key CHECK_VALUES_KEY, which other programs
 * ignore: an array of u64, first the fingerprint of the tensor table, then a value for each range.
 * A program that rewrites the tensors and copies all keys leaves values of another table: these are
 * not used, with a warning.
 *
 * For a file without them they stand in another one beside it, MODEL.gguf.xxh3 (of a split set:
 * beside its first part), which goes before the key. All numbers are little-endian:
 *
 *     "GLMXXH3\n"  u32 version (1)  u32 files  u64 ranges  u64 fingerprint of the tensor table
 *     for each file: u64 bytes, u64 XXH3 of its header with the padding
 *     for each range: u64 XXH3
 *     u64 XXH3 of all before
 *
 * Sizes and headers bind it to its model: beside another one it is refused.
 */
#ifndef GLM_FORMAT_CHECK_VALUES_H
#define GLM_FORMAT_CHECK_VALUES_H

#include "src/format/gguf.h"

#define CHECK_VALUES_KEY    "glmstream.xxh3"
#define CHECK_VALUES_SUFFIX ".xxh3"

/* ---- ranges ---- */

/* How many ranges a tensor has: its experts, or 1. */
uint64_t check_ranges(const char *name, uint32_t n_dims, const uint64_t ne[4]);

/* The fingerprint of a tensor table: begin with CHECK_TABLE_START, add each tensor in order. */
#define CHECK_TABLE_START 0u
uint64_t check_table_add(uint64_t h, const char *name, enum dtype type, const uint64_t ne[4]);

/* The ranges of a model; constant. */
struct check_map {
	const struct gguf *file;
	uint64_t *first; /* [n_tensors + 1] number of a tensor's first range; last: of all */
	uint64_t fingerprint;
};
void check_map_init(struct check_map *m, const struct gguf *g);
void check_map_fini(struct check_map *m); /* a zeroed one is fine */

struct check_range {
	const struct gguf_tensor *tensor;
	uint64_t expert;        /* 0 where the tensor is one range */
	uint64_t offset, bytes; /* in the tensor's file */
};
struct check_range check_map_range(const struct check_map *m, uint64_t i);
static inline uint64_t check_map_n(const struct check_map *m)
{
	return m->first[m->file->n_tensors];
}

/* "blk.5.ffn_up_exps.weight, expert 12 (98304 bytes at offset 123456)" in a buffer of
 * CHECK_RANGE_TEXT bytes, which is returned. */
#define CHECK_RANGE_TEXT (GGUF_NAME_MAX + 100)
const char *check_range_text(const struct check_map *m, uint64_t i, char *out);

/* ---- values ---- */

struct check_values {
	struct check_map map;
	uint64_t *values; /* [check_map_n] */
	bool beside;      /* from the file beside the model; false: from the key */
};

/* The values of a model. *out is NULL when it has none. ERR_INPUT: a file beside it that is damaged
 * or of another model, a key that is damaged. The model must outlive them. */
int check_values_open(const struct gguf *g, struct check_values **out, struct err *e);
/* The same, but of the key alone: a file beside the model is not looked at. */
int check_values_open_key(const struct gguf *g, struct check_values **out, struct err *e);
void check_values_free(struct check_values *v); /* NULL is fine */

/* The value of range i of this tensor of the model. */
uint64_t check_value(const struct check_values *v, const struct gguf_tensor *t, uint64_t i);

/* The sentence and hint of a range that was read twice, the second time with the value `found`.
 * ERR_RUN. */
int check_values_err(const struct check_values *v, uint64_t i, uint64_t found, struct err *e);

/* The file beside the model: its path, freed by the caller; the bytes of one as if it had been
 * read from `name`; writing one (out_file.h). */
char *check_values_path(const struct gguf *g);
int check_values_parse(const struct gguf *g, const void *bytes, size_t n, const char *name,
	struct check_values **out, struct err *e);
int check_values_write(
	const struct check_map *m, const uint64_t *values, const char *path, bool force, struct err *e);

#endif
