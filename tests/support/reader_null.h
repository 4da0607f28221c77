/* SPDX-License-Identifier: MIT */
/*
 * A reader engine for tests whose reads go wrong on demand: late, short, failing, hanging.
 *
 * Use: `struct reader_options o = {.custom = &reader_null_engine, .custom_options = &faults};`. The
 * faults are copied when the reader is opened; without them every read succeeds.
 */
#ifndef GLM_TESTS_READER_NULL_H
#define GLM_TESTS_READER_NULL_H

#include "stream/reader/reader_engine.h"

/* "Read" here is one slice handed to the engine. All zero: perfect reads. */
struct reader_faults {
	uint64_t seed;
	unsigned
		latency_min_us, /* uniform between the two, and one read in 64 takes eight times that; */
		latency_max_us; /* equal deadlines complete in random order */
	unsigned short_per_1024;  /* chance that a read returns only a part, 0..1024 */
	unsigned eagain_per_1024; /* chance of -EAGAIN or -EINTR (half each) */
	int fail_code;            /* code of the failing reads below; 0: -EIO */
	uint64_t fail_read;       /* the n-th read fails, counted from 1; 0: none */
	bool fail_range;          /* every read that touches byte fail_offset of file fail_file fails */
	uint32_t fail_file;
	uint64_t fail_offset;
	unsigned fail_times; /* how often fail_range strikes; 0: always */
	/* bit i: all reads of file i, as reader_open numbers them, fail; after gone_after of them */
	uint64_t gone;
	unsigned gone_after;
	bool flip; /* reads that bring byte flip_offset of file flip_file bring a wrong one */
	uint32_t flip_file;
	uint64_t flip_offset;
	uint64_t flip_also;  /* the same for another byte of that file; 0: none */
	unsigned flip_times; /* how often each; 0: always */
	uint64_t hang_read;  /* the n-th read hangs for hang_ms (0: until it is cancelled) */
	unsigned hang_ms;
	bool poison; /* destinations are filled with READER_POISON when a read starts */
	bool
		no_sleep; /* a virtual clock: latencies order the completions but nobody waits (hangs do) */
};

extern const struct reader_engine_ops reader_null_engine;

/* Known content for test files: bytes [offset, offset + n) of file `file`. Byte i is byte i % 8 of
 * a mix of i / 8 and the file's index, so any range can be checked without the rest. */
void reader_null_fill(uint32_t file, uint64_t offset, void *dst, size_t n);

#endif
