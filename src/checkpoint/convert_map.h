/* SPDX-License-Identifier: MIT */
/*
 * The plan of a conversion: every tensor of the GGUF with its type, shape and the pieces of the
 * checkpoint it is made of. Pure bookkeeping over headers; no weight is read.
 *
 * A tensor is a stack of slabs of one shape: one for a plain matrix, one per expert, one per head
 * for attn_k_b and attn_v_b. Each slab comes from consecutive rows of one source tensor. A source
 * tensor may hold several slabs (fused experts, kv_b_proj).
 */
#ifndef GLM_CHECKPOINT_CONVERT_MAP_H
#define GLM_CHECKPOINT_CONVERT_MAP_H

#include "src/base/args.h"
#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/format/safetensors.h"
#include "src/quant/dtype.h"
#include "src/checkpoint/convert_config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A tensor of the checkpoint that the plan uses, by the name and shape of the released layout. */
struct convert_source {
	char *name;
	uint32_t n_dims;
	uint64_t shape[3]; /* slowest first */
};

struct convert_slab {
	uint32_t source; /* index into convert_plan.sources; `src` is that tensor in a file */
	const struct safetensors_tensor *src;
	const struct safetensors_tensor *scale; /* FP8 block scales, or NULL */
	uint64_t row0;                          /* first row in the matrix view of src */
};

struct convert_tensor {
	char *name;
	enum dtype type;
	uint32_t n_dims;
	uint64_t ne[4];
	struct convert_slab *slabs; /* [n_slabs] */
	uint64_t n_slabs;
	uint64_t src_rows, src_cols; /* of one slab in the source */
	bool transposed;             /* the slab is stored as [src_cols][src_rows] (attn_k_b) */
};

/* Exceptions to a recipe: tensors whose GGUF name matches a shell pattern get another type. Norms,
 * routers, biases and indexer.proj stay F32 whatever matches them. */
#define CONVERT_TYPES_MAX 64
struct convert_types {
	int n;
	struct {
		char pattern[96];
		enum dtype type;
	} rule[CONVERT_TYPES_MAX]; /* the first match counts */
};

struct convert_recipe {
	const char *name;
	enum dtype expert; /* routed experts */
	enum dtype dense;  /* other matrices; norms, router, biases and indexer.proj are always F32 */
	const struct convert_types *exceptions; /* to both, after those of --types; static, or NULL */
};

#define CONVERT_RECIPES "f32, bf16, q8, q4, q2, iq2, q2-s, iq2-s or iq2-t"
/* One of CONVERT_RECIPES; ERR_USAGE for other names. */
int convert_recipe_parse(struct convert_recipe *out, const char *name, struct err *e);

/* Words of a struct arg: the names of the recipes (static), and of the types for which `can` is
 * true (stored in *w, which the struct arg borrows). */
const struct arg_word *convert_recipe_words(void);
struct convert_type_words {
	struct arg_word word[DTYPE_LIMIT + 1];
};
const struct arg_word *convert_type_words(
	struct convert_type_words *w, bool (*can)(enum dtype type));

/* "PATTERN=TYPE,PATTERN=TYPE,...": ERR_USAGE names what is wrong: no '=', an unknown type, or one
 * that `can` refuses. */
int convert_types_parse(
	struct convert_types *t, const char *text, bool (*can)(enum dtype type), struct err *e);

/* The type of the first rule that matches the tensor's name; false: none does. `t` may be NULL. */
bool convert_types_match(const struct convert_types *t, const char *name, enum dtype *type);

/* The value of an option that names one type. */
int convert_type_parse(enum dtype *out, const char *name, bool (*can)(enum dtype type),
	const char *option, struct err *e);

/* Tensors that are left out, by the reason. Zero-initialise. */
struct left_out {
	const char *reasons[8]; /* static texts; the eighth is the latest of all others */
	uint64_t counts[8];
};
void left_out_add(struct left_out *l, const char *reason);
void left_out_print(const struct left_out *l, struct buf *notes); /* a line for each reason */

struct convert_plan {
	struct convert_tensor *tensors; /* [n_tensors] in file order: embedding, layers, norm, head */
	size_t n_tensors, cap;
	struct convert_source *sources; /* [n_sources] in the order of the walk */
	size_t n_sources, cap_sources;
	bool *used;       /* private: per source tensor */
	struct buf notes; /* lines for people: fallbacks, things left out, unused --types */
};

/* Fills a zeroed plan; `types` may be NULL; cfg->n_nextn becomes 0 when the checkpoint lacks the
 * MTP layer. Refused: tensors missing, of other shapes, or that belong to nothing. Slabs point into
 * `st`. Without `st` (NULL) only names, types and shapes are planned, and `dir` is not looked at:
 * the table by which `export` goes the other way. */
int convert_plan_make(struct convert_plan *p, struct convert_config *cfg,
	const struct convert_recipe *recipe, const struct convert_types *types,
	const struct safetensors *st, const char *dir, struct err *e);

void convert_plan_fini(struct convert_plan *p);

/* A line for each type in use: tensors and bytes. `w` is planned, tensor i of the plan is its
 * tensor i. Returns the bytes of all. */
struct gguf_writer;
uint64_t convert_plan_print_types(
	const struct convert_plan *p, const struct gguf_writer *w, FILE *f);

#endif
