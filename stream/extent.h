/* SPDX-License-Identifier: MIT */
/*
 * Where experts lie on disk and how they are read. An expert of a layer is up to six runs of bytes:
 * gate, up, down, and the block scales of each if its type has them. In a GGUF the matrices of all
 * experts of a layer lie one after another; in a checkpoint's folder each may lie anywhere.
 *
 * O_DIRECT needs offsets and lengths in units of the file's alignment a. A run that is not aligned
 * is rounded outward, and runs that then touch or overlap are read as one:
 *
 *     file     |-------a-------|-------a-------|-------a-------|
 *     tensor          [ expert 6     ][ expert 7      ][ expert 8
 *     read            |<----------- expert 7 -------->|
 *     in the slot     |<-- head ---->|<-- payload -->|<- tail ->|
 *     part.dst_offset = read.dst_offset + head
 *
 * A table is filled by one thread and constant afterwards: any number of threads may read it.
 */
#ifndef GLM_STREAM_EXTENT_H
#define GLM_STREAM_EXTENT_H

#include "src/base/err.h"
#include "src/format/gguf.h"
#include "src/quant/dtype.h"
#include "stream/reader/reader.h"

#include <stdbool.h>
#include <stdint.h>

/* The first three have the numbers of enum gguf_expert_part. The scales of part p are part
 * p + EXTENT_MATRICES. */
enum extent_part {
	EXTENT_GATE,
	EXTENT_UP,
	EXTENT_DOWN,
	EXTENT_MATRICES,
	EXTENT_GATE_SCALES = EXTENT_MATRICES,
	EXTENT_UP_SCALES,
	EXTENT_DOWN_SCALES,
	EXTENT_PARTS
};

#define EXTENT_LAYERS_MAX  4096u
#define EXTENT_EXPERTS_MAX 65536u
/* Payloads of aligned files start at multiples of this in the slot, at least. */
#define EXTENT_DST_ALIGN 64u

/* A file as the table needs to know it. */
struct extent_file {
	uint64_t size;
	uint32_t align;        /* reader_file_align: 1 when read through the page cache */
	uint32_t memory_align; /* reader_file_memory_align */
};

/* One part of all experts of one layer. */
struct extent_tensor {
	uint32_t file;
	uint64_t offset; /* of expert 0 in that file */
	uint64_t bytes;  /* of all experts */
	enum dtype type; /* type and shape: for callers that build views; the table does not use them */
	uint64_t n_in, n_out;
	/* [n_experts] of equal size, lent: where each expert's lie. NULL: one after another. */
	const struct gguf_run *runs;
};

/* One read; dst_offset counts from the start of the slot. */
struct extent_read {
	uint32_t file;
	uint64_t offset, bytes;
	uint64_t
		need; /* the last payload ends after so many bytes of the read; the file may end there */
	uint64_t dst_offset;
};

struct extent_plan {
	struct extent_read reads[EXTENT_PARTS];
	unsigned n_reads;
	struct {
		uint64_t dst_offset; /* where the payload lands in the slot */
		uint64_t bytes;      /* 0: the layer has no such part */
	} parts[EXTENT_PARTS];
	uint64_t payload_bytes, read_bytes; /* sums */
	uint64_t dst_bytes;                 /* the slot's used length, <= extent_slot_bytes */
};

struct extent_table;

/* An empty table; files are copied. ERR_INPUT: no files, counts out of range, alignments that are
 * no power of two up to 4096. */
int extent_table_new(struct extent_table **out, uint32_t n_layers, uint32_t n_experts,
	const struct extent_file *files, uint32_t n_files, struct err *e);
void extent_table_free(struct extent_table *t); /* accepts NULL */

/* Enters a tensor. ERR_INPUT: no such layer, file or part; bytes zero or no multiple of n_experts;
 * runs of unequal size; the tensor does not lie inside its file. */
int extent_table_set(struct extent_table *t, uint32_t layer, enum extent_part part,
	const struct extent_tensor *x, struct err *e);

/* The blk.N.ffn_{gate,up,down}_exps.weight of a GGUF. The first g->n_files files of the reader
 * are those of g in order (copies may follow); sizes are compared. r NULL: no alignment.
 * ERR_INPUT: no expert tensors, one of three missing, unequal numbers of experts. */
int extent_table_from_gguf(
	struct extent_table **out, const struct gguf *g, const struct reader *r, struct err *e);

/* Forgets the tensors of all layers but [first, end): they have no experts then. */
void extent_table_confine(struct extent_table *t, uint32_t first, uint32_t end);

uint32_t extent_n_layers(const struct extent_table *t);
uint32_t extent_n_experts(const struct extent_table *t);
bool extent_has_layer(const struct extent_table *t, uint32_t layer); /* any part is set */
/* NULL when absent. */
const struct extent_tensor *extent_tensor(
	const struct extent_table *t, uint32_t layer, enum extent_part part);

/* The reads of one expert. 0, or -EINVAL: no such layer or expert, or the layer has no experts. */
int extent_plan(
	const struct extent_table *t, uint32_t layer, uint32_t expert, struct extent_plan *out);

/* Bytes of a slot that holds any expert of this layer, whatever its offset in the file; a multiple
 * of EXTENT_DST_ALIGN, 0 for a layer without experts. Equal for layers of equal types and shapes.
 * Slots start at multiples of extent_slot_align. Precondition: all tensors have been entered. */
uint64_t extent_slot_bytes(const struct extent_table *t, uint32_t layer);
uint32_t extent_slot_align(const struct extent_table *t);

#endif
