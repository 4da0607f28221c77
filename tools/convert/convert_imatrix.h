/* SPDX-License-Identifier: MIT */
/*
 * Importance matrices as llama.cpp writes them: how strongly each input column of a matrix was
 * driven while real text ran through the model. Two containers: a GGUF with NAME.in_sum2 and
 * NAME.counts, and the older .dat. The file stays mapped; only what is asked for is read.
 */
#ifndef GLM_TOOLS_CONVERT_IMATRIX_H
#define GLM_TOOLS_CONVERT_IMATRIX_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct convert_imatrix;

int convert_imatrix_open(const char *path, struct convert_imatrix **out, struct err *e);
void convert_imatrix_close(struct convert_imatrix *m); /* accepts NULL */

size_t convert_imatrix_count(const struct convert_imatrix *m); /* matrices it knows */

/* Is there an entry for this GGUF tensor of n_slabs matrices with `cols` columns? Wrong sizes are
 * an error. */
int convert_imatrix_check(const struct convert_imatrix *m, const char *name, uint64_t cols,
	uint64_t n_slabs, bool *found, struct err *e);

/* The importance of each column of one matrix: out[cols], non-negative. False when there is no
 * entry, or an expert was never driven (all zero). Thread-safe. Only after convert_imatrix_check
 * has found it. */
bool convert_imatrix_get(
	const struct convert_imatrix *m, const char *name, uint64_t slab, uint64_t cols, float *out);

#endif
