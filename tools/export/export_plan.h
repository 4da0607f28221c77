/* SPDX-License-Identifier: MIT */
/*
 * The plan of an export: every tensor of the checkpoint with its dtype, its shard and the pieces of
 * the GGUF it is made of. Names, shapes and pieces come from the table of `convert`
 * (convert_map.h), read the other way round.
 *
 * A tensor has consecutive rows of one piece after another: one piece for a plain matrix or an
 * expert, two a head for kv_b_proj (attn_k_b, stored transposed, and attn_v_b).
 */
#ifndef GLM_TOOLS_EXPORT_PLAN_H
#define GLM_TOOLS_EXPORT_PLAN_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/format/gguf.h"
#include "src/format/safetensors.h"
#include "src/model/config.h"
#include "src/checkpoint/convert_config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What matrices become. AUTO: F32 where the GGUF has all of them in F32, else BF16. FP8 is for
 * export_plan_make_shape alone. */
enum export_dtype { EXPORT_AUTO, EXPORT_BF16, EXPORT_F32, EXPORT_FP8 };

#define EXPORT_SHARD_BYTES 5000000000u /* unless the user asks for others */

struct export_piece {
	const struct gguf_tensor *from;
	const uint8_t *data; /* of the slab */
	uint32_t source;     /* private: the tensor it belongs to */
	uint64_t row0, rows; /* of the tensor */
	bool transposed;     /* the slab is [cols][rows] */
};

struct export_tensor {
	const char *name;
	uint32_t n_dims;
	uint64_t shape[3];   /* slowest first */
	enum st_dtype dtype; /* ST_BF16, ST_F32 or ST_F8_E4M3 */
	uint32_t source;     /* index into the sources of the table */
	char *scale_name;    /* NULL, or the name: these are the scales of `source` */
	uint64_t cols, bytes;
	const struct export_piece *pieces; /* [n_pieces] by row, without holes */
	uint64_t n_pieces;
	uint32_t shard;
};

struct export_shard {
	const uint32_t *tensors; /* [n_tensors] in the order of the file: F32 before BF16, so that each
								begins at a multiple of its element */
	uint32_t n_tensors;
	uint64_t data_bytes, file_bytes;
	char name[40]; /* "model-00001-of-00003.safetensors" */
};

struct export_plan {
	struct export_tensor *tensors; /* [n_tensors] in the order of the layers */
	uint32_t n_tensors;            /* a tied head, the last of the table, is none */
	struct export_shard *shards;   /* [n_shards] */
	uint32_t n_shards;
	uint64_t tensor_bytes, file_bytes;
	enum export_dtype dtype;     /* not AUTO */
	struct buf notes;            /* lines for people: what is left out or rounded */
	struct convert_plan *table;  /* of `convert`, for a BF16 recipe */
	struct export_piece *pieces; /* [n_pieces] private, as what follows */
	size_t n_pieces;
	uint32_t *order; /* [n_tensors] */
};

/* The shape of a GGUF as convert_config.h has it; what only a tokenizer knows stays zero. */
void export_plan_config(
	struct convert_config *out, const struct model_config *c, const struct gguf *file);

/* Fills a zeroed plan. `file` has been bound (model_headers.h), so its tensors are there and have
 * the shapes of `cfg`; it stays open as long as the plan. Shards have at most `shard_bytes` bytes
 * of tensors, unless one tensor has more.
 * Norms, routers and biases, which every recipe keeps in F32, lose nothing: they are BF16 in a BF16
 * checkpoint where all their values are BF16 numbers, else F32; e_score_correction_bias, F32 in the
 * released checkpoints, is so here.
 * ERR_INPUT: a tensor of the file that belongs to nothing. */
int export_plan_make(struct export_plan *p, const struct gguf *file, struct convert_config *cfg,
	enum export_dtype dtype, uint64_t shard_bytes, struct err *e);

/* The same for a shape without weights: tensors have no pieces. `fp8`: the matrices that the
 * released FP8 checkpoint has in FP8 are so, each with its scales, one for 128 x 128 values. */
int export_plan_make_shape(struct export_plan *p, struct convert_config *cfg, bool fp8,
	uint64_t shard_bytes, struct err *e);

void export_plan_fini(struct export_plan *p);

/* Appends the header of a shard: length and JSON. */
void export_plan_header(const struct export_plan *p, uint32_t shard, struct buf *out);

/* The hash h (hash.h) carried on over the headers of all shards: equal for plans that write the
 * same tensors to the same places. */
uint64_t export_plan_hash(const struct export_plan *p, uint64_t h);

/* Dtypes, tensors, shards: exact bytes, one line each. */
void export_plan_print(const struct export_plan *p, FILE *f);

/* Appends model.safetensors.index.json. */
void export_plan_index(const struct export_plan *p, struct buf *out);

#endif
