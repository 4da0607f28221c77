/* SPDX-License-Identifier: MIT */
/*
 * Loads tensors that stay on a card: byte ranges of the model's files are read past the page cache
 * into pinned staging buffers and copied to the card from there. One call of tensor_load does all
 * of it, in the calling thread, and returns when the last copy is complete.
 *
 * The number of reads in flight adapts to the drive (reader_options.staged): 4 slices at first, at
 * most READER_STAGED_DEPTH_MAX. This hides the latency of a local drive. A drive behind a network
 * may need more bytes in flight: it reaches its throughput only if reader.depth says how many.
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
	/* The tensor that the bytes are compared as: all of its bytes, or if it has runs those of run
	 * number `range` of the tensor. NULL: they are not compared. */
	const struct gguf_tensor *tensor;
	uint64_t range;
};

struct tensor_load_options {
	const struct gguf *file;
	struct backend *backend;
	struct copier *copier; /* lent; no other thread uses it meanwhile; NULL: the backend's, opened
							* for the time of the call */
	struct reader_options reader;
	/* With these the spans of tensors are compared; a range that is wrong is read again once, past
	 * the page cache. NULL: nothing is compared. */
	const struct check_values *check_values;
	int check_threads; /* that compare, see check_pool_threads_for */
	/* Called with bytes every 64 MiB and at the end, by the calling thread; NULL: not. */
	void (*progress)(void *user, uint64_t done, uint64_t total);
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

/* Whether tensor_load can load to this backend's memory: the backend has a copier. */
bool tensor_load_serves(const struct backend *b);

/* Sorts spans[0..n) by file and offset and loads them; empty ones are fine. Errors: those of
 * opening (reader.h, copier.h, pinned.h); the first read or copy that failed; ERR_INPUT: bytes were
 * wrong twice. After an error nothing is in flight into the card's memory. */
int tensor_load(const struct tensor_load_options *o, struct tensor_span *spans, size_t n,
	struct tensor_load_result *result, struct err *e);

#endif
