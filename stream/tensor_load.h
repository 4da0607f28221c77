/* SPDX-License-Identifier: MIT */
/*
 * Loads tensors that stay on a card for good: byte ranges of the model's files are read past the
 * page cache into pinned staging buffers and copied on from there.
 *
 * The number of reads in flight adapts to the drive (reader_options.staged): 4 slices at first, at
 * most READER_STAGED_DEPTH_MAX. This hides the latency of a local drive. A drive behind a network
 * that needs more bytes in flight than that does not reach its throughput, unless reader.depth says
 * how many.
 *
 * One call of tensor_load does all of it, in the calling thread, and returns when the bytes stand
 * on the card.
 */
#ifndef GLM_STREAM_TENSOR_LOAD_H
#define GLM_STREAM_TENSOR_LOAD_H

#include "kernels/backend.h"
#include "src/format/check_values.h"
#include "src/format/gguf.h"
#include "stream/check/expert_check.h"
#include "stream/reader/reader.h"

struct tensor_span {
	uint32_t file; /* index in gguf.files */
	uint64_t offset, bytes;
	void *dst; /* the card's memory */
	/* Whose bytes these are, for a check: all of them, or where it has runs those of its range
	 * number `range` (check_values.h). NULL: they are not compared. */
	const struct gguf_tensor *tensor;
	uint64_t range;
};

struct tensor_load_options {
	const struct gguf *file;
	struct backend *backend;
	struct copier *copier; /* lent, used by nobody else meanwhile; NULL: the backend's, opened for
							* the time of the call */
	struct reader_options reader;
	/* With these the spans of tensors are compared; a range that is wrong is read again once, past
	 * the page cache. NULL: nothing is compared. */
	const struct check_values *check_values;
	int check_threads; /* that compare, see check_pool_threads_for */
	void (*progress)(void *user, uint64_t done,
		uint64_t total); /* called now and then, and at the end; NULL: not */
	void *user;
	/* Called for each range (its number in check_values) before it is read again; NULL: not. */
	void (*reread)(void *reread_user, uint64_t range);
	void *reread_user;
};

struct tensor_load_result {
	uint64_t bytes;              /* of the spans */
	double seconds;              /* from the first read to the last copy's end */
	struct check_figures checks; /* of ranges, not of experts */
};

/* Whether this backend is loaded so: it has a copier. */
bool tensor_load_serves(const struct backend *b);

/* Sorts spans[0..n) in the order of the files and loads them; empty ones are fine. 0, or the code
 * and sentence of the first read or copy that failed; the memory may then be freed. ERR_INPUT for
 * bytes that were wrong twice. */
int tensor_load(const struct tensor_load_options *o, struct tensor_span *spans, size_t n,
	struct tensor_load_result *result, struct err *e);

#endif
