/* SPDX-License-Identifier: MIT */
/* Between the parser (gguf_read.c), split sets (gguf_open.c) and getters (gguf_kv.c). Everybody
 * else includes gguf.h. */
#ifndef GLM_FORMAT_GGUF_READ_H
#define GLM_FORMAT_GGUF_READ_H

#include "src/format/gguf.h"

struct gguf_index {
	uint32_t *kv_order;     /* [n_kvs] indices of kvs, sorted by key */
	uint32_t *tensor_order; /* [n_tensors] indices of tensors, sorted by name */
	char **names;           /* blocks of terminated names */
	size_t n_names;
	struct gguf_str **strings; /* the views of string arrays */
	size_t n_strings;
};

/* A copy of a model file that gguf_check_lost watches. */
struct gguf_copy {
	char *path;
	struct file_map map;
};

/* An empty struct gguf; gguf_close releases it at any stage. */
struct gguf *gguf_read_new(void);

/* Parses one more file into `g`. Its tensors are appended. The keys of the first file are kept;
 * those of later files are only checked, and *split tells those of them that gguf_open needs. `map`
 * (may be NULL) belongs to `g` afterwards, also after an error. */
struct gguf_split {
	bool present;       /* split.count exists */
	uint64_t no, count; /* split.no, split.count */
	bool has_n_tensors; /* split.tensors.count exists */
	uint64_t n_tensors;
};
int gguf_read_file(struct gguf *g, const char *path, const uint8_t *bytes, uint64_t size,
	struct file_map *map, struct gguf_split *split, struct err *e);

/* After the last file: sorts names, finds duplicates over all parts. */
int gguf_read_finish(struct gguf *g, struct err *e);

#endif
