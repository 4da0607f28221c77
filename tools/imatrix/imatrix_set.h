/* SPDX-License-Identifier: MIT */
/*
 * An importance matrix in memory: for each tensor the sum over tokens of the squares of its input,
 * column by column, and how many tokens were added up; of a stack of experts for each of them.
 *
 * Where it comes from: imatrix_collect.h, or a file (imatrix_set_load). Where it goes:
 * imatrix_write.h. The files hold the plain sums of llama.cpp's format; nothing is smoothed before
 * `convert` reads them (imatrix_file.h). Sums of the inputs themselves and statistics, which newer
 * files of llama.cpp have too, are not kept.
 */
#ifndef GLM_TOOLS_IMATRIX_SET_H
#define GLM_TOOLS_IMATRIX_SET_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What of a model and a text has been collected. Only files of this program have it, and merged
 * ones have not: a run can go on only where it is known. */
struct imatrix_origin {
	uint64_t model;  /* hash over session_fingerprint and the type of the cache */
	uint64_t text;   /* hash over the first `tokens` ids of the text */
	uint64_t tokens; /* collected so far: chunk_count * chunk_size */
};

struct imatrix_tensor {
	char *name;        /* in a GGUF: "blk.3.ffn_up_exps.weight" */
	uint64_t n_values; /* columns x matrices of its stack */
	uint64_t n_counts; /* 1, or the experts of its stack; divides n_values */
	float *sum2;       /* [n_counts][n_values / n_counts] */
	float *counts;     /* [n_counts] tokens */
	bool owned;        /* sum2 and counts belong to this tensor */
};

/* Zero-initialise; release with imatrix_set_fini. */
struct imatrix_set {
	struct imatrix_tensor *tensors; /* [n] by name */
	size_t n;
	char **datasets; /* [n_datasets] what was read */
	size_t n_datasets;
	uint32_t chunk_count;
	uint32_t chunk_size; /* tokens; of a file that does not say: IMATRIX_DAT_CHUNK */
	bool has_origin;
	struct imatrix_origin origin;
};

/* A .dat has neither the size of its chunks nor counts by expert; llama.cpp's default. */
#define IMATRIX_DAT_CHUNK 512

/* Adds a tensor; name is copied, the arrays are owned as `owned` says. The set is to be sorted
 * afterwards. */
void imatrix_set_add_tensor(struct imatrix_set *s, const char *name, uint64_t n_values,
	uint64_t n_counts, float *sum2, float *counts, bool owned);
/* An entry of second moments (imatrix_file.h); its sums may be negative. */
bool imatrix_is_moments(const char *name);
void imatrix_set_sort(struct imatrix_set *s);
void imatrix_set_add_dataset(struct imatrix_set *s, const char *name, size_t len);
const struct imatrix_tensor *imatrix_set_find(const struct imatrix_set *s, const char *name);
void imatrix_set_fini(struct imatrix_set *s);

/* Reads a file of either format into memory; *s is zeroed, and to be released after an error too.
 * *estimated (may be NULL): the file has no counts; each tensor then counts as its calls times
 * IMATRIX_DAT_CHUNK tokens, as in llama.cpp, and so does each of its experts, however rare.
 * ERR_INPUT, ERR_MEMORY; ERR_RUN: bytes of the file were lost. */
int imatrix_set_load(struct imatrix_set *s, const char *path, bool *estimated, struct err *e);

/* Adds the sums of `from`, whose name is `path`, to *s. Tensors that one of them lacks are taken
 * from the other. Where one has counts by expert and the other, of a .dat, has not, each expert of
 * the latter counts for all tokens, or for none where its columns are what a .dat has of an expert
 * without tokens. The result has no origin. ERR_INPUT: a tensor has another shape there; *s is then
 * undefined. */
int imatrix_set_merge(
	struct imatrix_set *s, struct imatrix_set *from, const char *path, struct err *e);

#endif
