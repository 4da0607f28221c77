/* SPDX-License-Identifier: MIT */
/*
 * Importance matrices in files, for reading: how strongly each input column of a matrix was driven
 * while real text ran through the model. Two containers, both llama.cpp's: a GGUF with NAME.in_sum2
 * (sums of squares) and NAME.counts (tokens), and the older .dat. The file stays mapped; only what
 * is asked for is read.
 *
 * The prior of rare experts. A router sends few tokens of a calibration text to some experts. The
 * mean square of a column over n tokens has a relative error of about sqrt(2 / n), more with heavy
 * tails, and a column that those tokens did not drive would get weight 0. The sums of an expert are
 * therefore mixed with those of its whole layer, as IMATRIX_PRIOR_TOKENS further tokens:
 *
 *     v[c] = (sum2[c] + K * scale * layer[c]) / (n + K)
 *     layer[c] = sum over experts of sum2[c] / sum over experts of n
 *     scale = (mean over c of sum2[c] / n) / (mean over c of layer[c]);   1 where that is 0 or n is
 *
 * - The scale takes the prior to the expert's own strength. Only the ratio of columns matters to a
 *   quantiser, and an expert with small activations would otherwise be all prior.
 * - An expert without tokens gets the layer's columns, one with n >> K its own.
 * - K: see IMATRIX_PRIOR_TOKENS. There is no threshold, so there is no jump.
 * - Files keep the plain sums. The prior is applied when they are read, so merging stays exact.
 * - It needs counts by expert, so only a GGUF gets it, and only tensors of routed experts.
 */
#ifndef GLM_TOOLS_IMATRIX_FILE_H
#define GLM_TOOLS_IMATRIX_FILE_H

#include "src/base/err.h"
#include "src/format/gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Measured on the pocket model: sums over the first 128, 256, 512 and 1,024 tokens of a text, mixed
 * with K of 2, 4, 8 ... 512, predicted the columns of the next 1,024 tokens (likelihood of their
 * mean squares as gamma variates, gate and down apart). Best was K = 32 in five of the eight cases
 * and 64 in three; 64 loses less where it is not the best. K = 2 and K = 512 were worse in all. */
#define IMATRIX_PRIOR_TOKENS 64

struct imatrix_file;

int imatrix_file_open(const char *path, struct imatrix_file **out, struct err *e);
void imatrix_file_close(struct imatrix_file *m); /* accepts NULL */

size_t imatrix_file_count(const struct imatrix_file *m); /* matrices it knows */

/* One of them, ascending by name; views, unaligned. */
struct imatrix_entry {
	char *name;
	const uint8_t *values; /* f32[n]: sums of squares, of a .dat calls * mean squares */
	uint64_t n;
	const uint8_t *counts; /* f32[n_counts], each 0 or at least 1; NULL: none */
	uint64_t n_counts;     /* divides n */
	uint32_t calls;        /* of a .dat */
};
const struct imatrix_entry *imatrix_file_entry(const struct imatrix_file *m, size_t i);

/* Its keys; NULL: a .dat. */
const struct gguf *imatrix_file_gguf(const struct imatrix_file *m);

/* Is there an entry for this GGUF tensor of n_slabs matrices with `cols` columns? Wrong sizes are
 * an error. */
int imatrix_file_check(const struct imatrix_file *m, const char *name, uint64_t cols,
	uint64_t n_slabs, bool *found, struct err *e);

/* The importance of each column of one matrix: out[cols], non-negative; of a routed expert with the
 * prior. False when there is no entry, or nothing drove the matrix (all zero). Thread-safe. Only
 * after imatrix_file_check has found it. */
bool imatrix_file_get(
	const struct imatrix_file *m, const char *name, uint64_t slab, uint64_t cols, float *out);

/*
 * Second moments, in files of `imatrix --moments` only: for each 256 columns the sums of the
 * products of two of them (FEEDBACK_MOMENTS, src/quant/feedback.h). They are entries like others,
 * with names of their own:
 * - blk.N.ffn_in.moments: of the input of gate and up of all experts, over all tokens;
 * - blk.N.ffn_down_exps.moments: of the input of down, for each expert.
 * Programs that look for the names of tensors pass them over.
 */
#define IMATRIX_MOMENTS ".moments"

/* The entry's name for a tensor of routed experts; false for another tensor. */
#define IMATRIX_MOMENTS_NAME 64 /* bytes of out */
bool imatrix_moments_name(const char *tensor, char *out);

/* Is there such an entry for this tensor? Wrong sizes are an error. */
int imatrix_file_check_moments(const struct imatrix_file *m, const char *tensor, uint64_t cols,
	uint64_t n_slabs, bool *found, struct err *e);

/* The moments of one matrix: out[cols / 256][FEEDBACK_MOMENTS], and how far its correlations are to
 * be trusted, n / (n + 256) after n tokens: of 256 columns, fewer than 256 tokens leave most
 * directions unseen. False when there are none. Thread-safe. */
bool imatrix_file_moments(const struct imatrix_file *m, const char *tensor, uint64_t slab,
	uint64_t cols, float *out, float *trust);

/* ERR_RUN when bytes of the file were lost since it was opened (file_map.h): what was read means
 * nothing then. Thread-safe. */
int imatrix_file_check_lost(const struct imatrix_file *m, struct err *e);

/* Of a tensor of routed experts with counts: how many experts it has, and how many of them saw
 * fewer than `rare` tokens. False: another tensor. */
bool imatrix_file_rare(const struct imatrix_file *m, const char *name, float rare,
	uint64_t *n_experts, uint64_t *n_rare);

#endif
