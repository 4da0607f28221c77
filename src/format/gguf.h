/* SPDX-License-Identifier: MIT */
/*
 * GGUF version 3 files, for reading: metadata (key -> typed value) and the table of tensors.
 * Nothing is copied out of the file but names: values, strings and tensor data are views into the
 * bytes that were parsed, valid until gguf_close.
 *
 * Everything is checked before it is used: counts against the bytes that are left, names (1 .. 255
 * bytes of UTF-8, no control characters, no duplicates), shapes, block sizes, alignment, and that
 * no two tensors overlap (in a file with GGUF_SHARED_DATA_KEY two may be the same bytes). An open
 * struct gguf is consistent and constant: any number of threads may read it.
 *
 * A split set (NAME-00001-of-00005.gguf ...) is opened by naming its first part; the tensors of all
 * parts form one table. Keys are those of the first part.
 *
 * A folder with safetensors is presented in the same terms (src/checkpoint/checkpoint.h), so nobody
 * above needs to know the container. Its tensors may be in several runs, have scales, or have no
 * bytes in any file: gguf_make computes those when they are loaded.
 */
#ifndef GLM_FORMAT_GGUF_H
#define GLM_FORMAT_GGUF_H

#include "src/base/err.h"
#include "src/format/file_map.h"
#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ids of value types as stored. */
enum gguf_type {
	GGUF_U8 = 0,
	GGUF_I8 = 1,
	GGUF_U16 = 2,
	GGUF_I16 = 3,
	GGUF_U32 = 4,
	GGUF_I32 = 5,
	GGUF_F32 = 6,
	GGUF_BOOL = 7, /* one byte, 0 or 1 */
	GGUF_STRING = 8,
	GGUF_ARRAY = 9,
	GGUF_U64 = 10,
	GGUF_I64 = 11,
	GGUF_F64 = 12,
	GGUF_TYPE_LIMIT = 13,
};

/* A file with this key (of any value) may have several tensors of equal type and size at the same
 * offset: benchmark files, which would not fit on the disk otherwise. */
#define GGUF_SHARED_DATA_KEY "glmstream.synth.alias"

#define GGUF_NAME_MAX          255 /* bytes of a key or tensor name */
#define GGUF_DEFAULT_ALIGNMENT 32
#define GGUF_MAX_ALIGNMENT     (1u << 30)

/* A string of the file: any bytes, not terminated. */
struct gguf_str {
	const char *ptr;
	uint64_t len;
};

/* Elements of an array value, or the one element of a scalar. */
struct gguf_array {
	enum gguf_type type;            /* of the elements; never GGUF_ARRAY */
	uint64_t n;                     /* elements */
	const uint8_t *data;            /* packed little-endian elements, unaligned; NULL for strings */
	const struct gguf_str *strings; /* [n] when type is GGUF_STRING, else NULL */
};

struct gguf_kv {
	const char *key;
	enum gguf_type type;     /* GGUF_ARRAY for arrays */
	struct gguf_array value; /* value.n is 1 for a scalar */
};

/* Bytes of a file. */
struct gguf_run {
	uint32_t file;   /* index into gguf.files */
	uint64_t offset; /* of the first byte, from the start of that file */
	uint64_t bytes;
	const uint8_t *data; /* the same place in memory */
};

struct gguf_tensor {
	const char *name;
	enum dtype type;
	uint32_t n_dims; /* 1 .. 4 */
	uint64_t ne[4];  /* fastest first; 1 beyond n_dims; never 0 */
	uint32_t file;   /* index into gguf.files */
	uint64_t offset; /* of the first byte, from the start of that file */
	uint64_t bytes;  /* of all runs and scales; if made, what gguf_make writes */
	/* The byte at `offset` in memory; NULL if the tensor is in several runs, or made. */
	const uint8_t *data;
	/* NULL: the tensor is one run, at `offset`, without scales. In a GGUF it always is. Else its
	 * runs: one for the whole tensor, or one for each matrix of the stack. */
	const struct gguf_run *runs;   /* [n_runs] */
	const struct gguf_run *scales; /* [n_runs] of a type with block scales (dtype.h), or NULL */
	uint64_t n_runs;
	/* No file has the tensor's bytes: gguf_make computes them. runs and scales, one each, are then
	 * those of the tensor that it is computed from. */
	bool made;
};

struct gguf_file {
	char *path;
	uint64_t size;        /* bytes of the file */
	uint64_t data_offset; /* end of header and padding */
	uint32_t alignment;   /* of its tensors: general.alignment, or 32 if they only have that */
	struct file_map map;  /* zeroed when the bytes came from gguf_parse */
};

/* Read-only for callers. */
struct gguf {
	struct gguf_kv *kvs; /* [n_kvs] in file order */
	size_t n_kvs;
	struct gguf_tensor *tensors; /* [n_tensors] in the order of the tables, part after part */
	size_t n_tensors;
	struct gguf_file *files; /* [n_files], one per part */
	uint32_t n_files;
	struct gguf_copy *copies; /* [n_copies], private: gguf_watch_copy */
	uint32_t n_copies;
	uint64_t tensor_bytes;                    /* sum over tensors */
	struct gguf_index *index;                 /* private: names and sorted orders */
	const char *folder;                       /* of a checkpoint; NULL: a GGUF */
	const struct gguf_folder_ops *folder_ops; /* NULL: a GGUF */
	void *folder_data;                        /* private to these */
};

/* What a checkpoint's folder does in place of a GGUF. */
struct gguf_folder_ops {
	int (*make)(const struct gguf *g, const struct gguf_tensor *t, void *dst, struct err *e);
	void (*close)(struct gguf *g); /* frees folder, folder_data, runs and scales */
};

/* ---- open ---- */

/* Maps and parses a file, with all its parts when it is the first of a split set. On success *out
 * is the caller's, to be released with gguf_close. On failure *out is NULL. */
int gguf_open(const char *path, struct gguf **out, struct err *e);

/* path: of any part of a split model ("NAME-00001-of-00003.gguf"). Returns the path of its part
 * `no` (1 .. count), which the caller frees; NULL: `path` has no such name, or fewer parts. */
char *gguf_part_path(const char *path, unsigned no);

/* Parses the complete bytes of one file, lent until gguf_close. `name` stands for the file in
 * errors and files[0].path. A part of a split set is parsed as it stands, without the others. */
int gguf_parse(const void *bytes, size_t n, const char *name, struct gguf **out, struct err *e);

void gguf_close(struct gguf *g); /* accepts NULL */

/* For src/checkpoint, which parses keys alone (gguf_parse), then sets files and tensors:
 * - gguf_drop_files closes the files and frees `files`;
 * - gguf_index_tensors rebuilds the index of gguf_find_tensor. ERR_INPUT: a name twice. */
void gguf_drop_files(struct gguf *g);
int gguf_index_tensors(struct gguf *g, struct err *e);

/* What was opened, for people: the file (of a split set the first part), or the folder. */
static inline const char *gguf_path(const struct gguf *g)
{
	return g->folder ? g->folder : g->files[0].path;
}

/* Writes the t->bytes bytes of a tensor that is made to dst. ERR_MEMORY; other errors are those of
 * gguf_check_lost. */
int gguf_make(const struct gguf *g, const struct gguf_tensor *t, void *dst, struct err *e);

/* ERR_RUN when bytes of the mapped files, or of the copies given to gguf_watch_copy, have been lost
 * or changed since they were opened (file_map_check). Any thread. */
int gguf_check_lost(const struct gguf *g, struct err *e);

/* The same of all changes until now. For a caller that looks for the cause of a failure. */
int gguf_check_lost_now(const struct gguf *g, struct err *e);

/* Adds a copy of a model file (--replicas), which the reader reads by its name: gguf_check_lost and
 * gguf_check_names check it too. Errors of file_map_open. Before other threads use g. */
int gguf_watch_copy(struct gguf *g, const char *path, struct err *e);

/* ERR_RUN when a file or copy has been replaced under its name since it was opened here. For a
 * caller that has opened them a second time, by their names: it may have opened others. */
int gguf_check_names(const struct gguf *g, struct err *e);

/* ---- metadata ----
 * The getters answer 0 or ERR_INPUT with a sentence: key missing, or of another type than expected,
 * or out of range. A failed getter leaves *out alone. Integers of any width are taken for an
 * integer key, F64 for a float. The _or getters accept a missing key and answer `fallback` then; a
 * value of the wrong type is still an error. */

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); /* NULL: absent */

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e);
int gguf_get_u64(const struct gguf *g, const char *key, uint64_t *out, struct err *e);
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *e);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e);

int gguf_get_u32_or(
	const struct gguf *g, const char *key, uint32_t fallback, uint32_t *out, struct err *e);
int gguf_get_f32_or(
	const struct gguf *g, const char *key, float fallback, float *out, struct err *e);
int gguf_get_bool_or(
	const struct gguf *g, const char *key, bool fallback, bool *out, struct err *e);

/* Arrays: whole numbers or bools, strings. */
int gguf_get_ints(const struct gguf *g, const char *key, struct gguf_array *out, struct err *e);
int gguf_get_strs(const struct gguf *g, const char *key, struct gguf_array *out, struct err *e);

/* Element i < a->n of an array of numbers or bools. As an integer, floats are truncated, values out
 * of range are clamped, and NaN is INT64_MIN. */
int64_t gguf_array_i64(const struct gguf_array *a, uint64_t i);
double gguf_array_f64(const struct gguf_array *a, uint64_t i);

/* "u32", "array", ...; "type N" (thread-local) when unknown. */
const char *gguf_type_name(uint32_t type);

/* ---- tensors ---- */

/* Binary search; NULL: absent. */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* The same, with a sentence when it is missing (then NULL). */
const struct gguf_tensor *gguf_need_tensor(const struct gguf *g, const char *name, struct err *e);

/* "blk.<layer>.ffn_<part>_exps.weight": a matrix of every routed expert of a layer, one after the
 * other. False: another name, or a number of more than nine digits. */
enum gguf_expert_part { GGUF_EXPERT_GATE, GGUF_EXPERT_UP, GGUF_EXPERT_DOWN, GGUF_EXPERT_PARTS };
extern const char *const gguf_expert_part_names[GGUF_EXPERT_PARTS];
bool gguf_expert_name(const char *name, uint32_t *layer, enum gguf_expert_part *part);

/* Bytes of the values alone, without scales. */
static inline uint64_t gguf_values_bytes(const struct gguf_tensor *t)
{
	return t->scales && !t->made ? t->bytes - t->n_runs * t->scales->bytes : t->bytes;
}

/* Writes "{6144, 2048, 256}" into a buffer of GGUF_SHAPE_MAX bytes and returns it. */
#define GGUF_SHAPE_MAX 96
char *gguf_shape_text(const struct gguf_tensor *t, char *out);

#endif
