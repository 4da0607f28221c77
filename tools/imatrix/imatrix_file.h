/* SPDX-License-Identifier: MIT */
/*
 * Importance matrices as llama.cpp writes them: how strongly each input column of a matrix was
 * driven while real text ran through the model. Two containers: a GGUF with NAME.in_sum2 and
 * NAME.counts, and the older .dat. The file stays mapped; only what is asked for is read.
 */
#ifndef GLM_TOOLS_IMATRIX_FILE_H
#define GLM_TOOLS_IMATRIX_FILE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct imatrix_file;

int imatrix_file_open(const char *path, struct imatrix_file **out, struct err *e);
void imatrix_file_close(struct imatrix_file *m); /* accepts NULL */

size_t imatrix_file_count(const struct imatrix_file *m); /* matrices it knows */

/* Is there an entry for this GGUF tensor of n_slabs matrices with `cols` columns? Wrong sizes are
 * an error. */
int imatrix_file_check(const struct imatrix_file *m, const char *name, uint64_t cols,
	uint64_t n_slabs, bool *found, struct err *e);

/* The importance of each column of one matrix: out[cols], non-negative. False when there is no
 * entry, or an expert was never driven (all zero). Thread-safe. Only after imatrix_file_check
 * has found it. */
bool imatrix_file_get(
	const struct imatrix_file *m, const char *name, uint64_t slab, uint64_t cols, float *out);

#endif
