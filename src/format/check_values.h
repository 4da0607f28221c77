/* SPDX-License-Identifier: MIT */
/*
 * Check values of the weights in a GGUF: XXH3 (64 bits, seed 0) of each range. A range is one
 * matrix (gate, up or down) of one routed expert, or the whole of any other tensor. Ranges are
 * numbered in the order of the tensor table, those of one tensor in the order of the experts. A
 * tensor with runs (gguf.h) has a range for each of these, then one for each of its scales.
 *
 * They detect bytes that a drive, a cable or memory has changed by accident. They are no signature:
 * whoever changes bytes on purpose can change the values too.
 *
 * They are stored in one of two places:
 *
 * 1. In the model, as the key CHECK_VALUES_KEY, which convert and synth write and other programs
 *    ignore: an array of u64, first the fingerprint of the tensor table, then one value for each
 *    range. A program that changes the tensors and copies all keys leaves a fingerprint that does
 *    not match: such values are not used, with a warning.
 * 2. In a file of their own, MODEL.gguf.xxh3 (of a split model: beside its first part), which
 *    `verify --write` makes for a model without the key. If it exists, the key is not read. For a
 *    checkpoint's folder it is model.safetensors.xxh3 in that folder. All numbers are
 *    little-endian:
 *
 *        "GLMXXH3\n"  u32 version (1)  u32 files  u64 ranges  u64 fingerprint of the tensor table
 *        for each file: u64 bytes, u64 XXH3 of its header with the padding
 *        for each range: u64 XXH3
 *        u64 XXH3 of all before
 *
 *    The sizes and header hashes bind this file to its model: beside any other model it is refused.
 */
#ifndef GLM_FORMAT_CHECK_VALUES_H
#define GLM_FORMAT_CHECK_VALUES_H

#include "src/format/gguf.h"

#define CHECK_VALUES_KEY    "glmstream.xxh3"
#define CHECK_VALUES_SUFFIX ".xxh3"

/* ---- ranges ---- */

/* How many ranges a tensor of a GGUF has: the number of its experts, or 1 if it has none. */
uint64_t check_ranges(const char *name, uint32_t n_dims, const uint64_t ne[4]);

/* The fingerprint of a tensor table: h is CHECK_TABLE_START for the first tensor, then the result
 * of the tensor before. */
#define CHECK_TABLE_START 0u
uint64_t check_table_add(uint64_t h, const char *name, enum dtype type, const uint64_t ne[4]);

/* The ranges of a model; constant. */
struct check_map {
	const struct gguf *file;
	uint64_t *first; /* [n_tensors + 1] number of each tensor's first range; last: of all ranges */
	uint64_t fingerprint;
};
void check_map_init(struct check_map *m, const struct gguf *g);
void check_map_fini(struct check_map *m); /* a zeroed one is fine */

struct check_range {
	const struct gguf_tensor *tensor;
	uint64_t expert;     /* 0 where the tensor is one range */
	bool scales;         /* the range holds its scales, not its values */
	struct gguf_run run; /* its bytes */
};
/* Range number i < check_map_n. */
struct check_range check_map_range(const struct check_map *m, uint64_t i);
static inline uint64_t check_map_n(const struct check_map *m)
{
	return m->first[m->file->n_tensors];
}

/* "blk.5.ffn_up_exps.weight, expert 12 (98304 bytes at offset 123456)" in a buffer of
 * CHECK_RANGE_TEXT bytes, which is returned. */
#define CHECK_RANGE_TEXT (GGUF_NAME_MAX + 120)
const char *check_range_text(const struct check_map *m, uint64_t i, char *out);

/* ---- values ---- */

struct check_values {
	struct check_map map;
	uint64_t *values; /* [check_map_n] */
	bool beside;      /* from the file beside the model; false: from the key */
};

/* The values of a model, freed by the caller; *out is NULL if it has none. The model must outlive
 * them. Errors: ERR_INPUT: the file beside the model is damaged or of another model, or the key is
 * damaged; ERR_MEMORY; or that of reading the file. */
int check_values_open(const struct gguf *g, struct check_values **out, struct err *e);
/* The same, but of the key alone: a file beside the model is not looked at. */
int check_values_open_key(const struct gguf *g, struct check_values **out, struct err *e);
void check_values_free(struct check_values *v); /* NULL is fine */

/* The value of range i of a tensor of the model, counted from its first: the expert, or 0. */
uint64_t check_value(const struct check_values *v, const struct gguf_tensor *t, uint64_t i);

/* Sets the error for range number i, whose bytes were wrong twice: when they were read, and when
 * they were read again (value: `found`). Returns ERR_RUN. */
int check_values_err(const struct check_values *v, uint64_t i, uint64_t found, struct err *e);

/* ---- the file beside the model ---- */

/* Its path; freed by the caller. */
char *check_values_path(const struct gguf *g);
/* The values in bytes[n], the content of such a file; errors mention `name`. As check_values_open,
 * but *out is never NULL without an error. */
int check_values_parse(const struct gguf *g, const void *bytes, size_t n, const char *name,
	struct check_values **out, struct err *e);
/* Writes values[check_map_n]. Errors and `force`: out_file.h. */
int check_values_write(
	const struct check_map *m, const uint64_t *values, const char *path, bool force, struct err *e);

#endif
