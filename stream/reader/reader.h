/* SPDX-License-Identifier: MIT */
/*
 * Asynchronous reads from files into memory. A request names a byte range of one file and its
 * destination. The reader cuts requests into slices and keeps a number of slices, the depth, in
 * flight on every drive. Requests complete in any order.
 *
 * In order of use: reader_open, reader_register, then reader_submit and reader_reap (or
 * reader_wait) in turns, reader_drain by the owner, reader_close.
 *
 * Engines: io_uring and a pool of pread threads. reader_open chooses between them, and between
 * O_DIRECT and the page cache; it logs one line with the reasons. A test may pass an engine of its
 * own (stream/reader/reader_engine.h).
 *
 * Errors: short reads, EINTR and EAGAIN are handled inside. A file that refuses O_DIRECT, or a
 * request that is not aligned for it, is read through the page cache. If a read of a file with
 * replicas fails (EIO, the file has become shorter), the reader repeats it on the next replica. It
 * warns once for each file, and reads the other copies for a minute. Other errors are those of one
 * request and come in its completion: EIO, end of file, cancelled.
 *
 * Threads: one thread owns a reader: the first that submits or reaps. Another thread may open it
 * and register memory before. Any thread may call reader_wake.
 *
 * Memory: a destination belongs to the reader from reader_submit until reader_reap returns its
 * completion, or reader_drain or reader_close returns.
 */
#ifndef GLM_STREAM_READER_H
#define GLM_STREAM_READER_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reader_engine { READER_AUTO, READER_URING, READER_THREADS };

#define READER_DEPTH_DEFAULT    32u
#define READER_DEPTH_MAX        1024u
#define READER_THREADS_DEFAULT  32u
#define READER_REQUESTS_DEFAULT 256u
#define READER_COPY_REST_MS     60000u
#define READER_REQUESTS_MAX     65536u
#define READER_SLICE_DEFAULT    (1u << 20)
#define READER_SLICE_MIN        4096u
#define READER_SLICE_MAX        (1u << 28)
#define READER_FILES_MAX        4096u
/* The depth of a drive with files that are read through the page cache. A read is a copy by the
 * processor there, if the bytes are in memory. Twelve or sixteen take all that memory gives on 16
 * cores; 32 are slower. */
#define READER_CACHED_DEPTH 16u
/* Slices of a staging request there: several threads read into its buffer, which one large copy
 * empties. */
#define READER_CACHED_SLICES 3u
/* Limits of the depth and slices of a drive that adapts (stream/reader/queue_control.h); STAGED: if
 * reader_options.staged. */
#define READER_ADAPT_DEPTH_MAX  128u
#define READER_STAGED_DEPTH_MAX 16u
#define READER_ADAPT_SLICE_MIN  (256u << 10)
#define READER_ADAPT_SLICE_MAX  (4u << 20)

struct reader_file {
	const char *path;
	unsigned drive; /* files with the same number are on one drive; 0: st_dev tells the drive */
	/* 0: no replica; else 1 + index of an earlier file with the same content (the size is checked).
	 * Requests name that earlier file. Each slice is read from the copy whose drive is expected to
	 * complete it first */
	unsigned replica_of;
};

/* Test builds write this byte to destinations before they are read into. */
#define READER_POISON 0xdb

struct reader_engine_ops;

struct reader_options {        /* all zero: the defaults */
	enum reader_engine engine; /* READER_AUTO: io_uring, else threads. READER_URING: reader_open
								  fails without io_uring */
	bool buffered; /* through the page cache; false: O_DIRECT where the filesystem takes it */
	/* Slices in flight per drive. 0: adapted per drive while reading; the start is
	 * READER_DEPTH_DEFAULT, staged READER_USEFUL_DEPTH. The length of slices is adapted too, unless
	 * slice_bytes is given. A drive with a file that is read through the page cache does not adapt
	 * and has READER_CACHED_DEPTH */
	unsigned depth;
	/* the caller's requests have reader_staging_bytes, into a few staging buffers that it uses
	 * again and again */
	bool staged;
	unsigned requests; /* most requests accepted and not yet reaped; 0: READER_REQUESTS_DEFAULT */
	/* READER_THREADS: threads per drive, at most as many as a drive may have slices in flight; 0:
	 * READER_THREADS_DEFAULT */
	unsigned threads;
	size_t slice_bytes; /* of a read, about: a request is cut into equal parts of at most 1.5 times
						   that; 0: READER_SLICE_DEFAULT, adapted like the depth */
	unsigned copy_rest_ms; /* a copy that could not be read is left out for so long; 0:
							  READER_COPY_REST_MS */
	const struct reader_engine_ops *custom; /* not NULL: this engine instead, `engine` is ignored */
	const void *custom_options;             /* handed to its `open` */
};

struct reader_request {
	uint32_t file;
	uint64_t offset;
	uint64_t bytes; /* > 0 */
	uint64_t need;  /* the file may end behind so many bytes of the request (tail of an O_DIRECT
					   read); 0: all of `bytes` are needed */
	void *dst;      /* room for `bytes` */
	uint64_t tag;   /* returned as it is; need not be unique */
	bool urgent;    /* starts before requests that are not urgent */
};

#define READER_EOF (-ENODATA) /* the file ends inside the request */

struct reader_completion {
	uint64_t tag;
	int code;             /* 0; READER_EOF; -ECANCELED; or another -errno of the read */
	uint32_t file;        /* file, offset, requested: of the request */
	uint32_t failed_file; /* after an error: the file, or the copy of it that was read last */
	uint64_t offset;
	uint64_t requested; /* bytes */
	uint64_t bytes;     /* valid bytes from the start of dst: at least `need`; after an error those
						   before the fault */
};

struct reader_stats {
	uint64_t requests, completed, failed, cancelled, busy;
	uint64_t bytes;                    /* that arrived in destinations */
	uint64_t reads;                    /* given to the engine, repeats included */
	uint64_t fixed;                    /* of reads: into registered memory */
	uint64_t page_cache;               /* of reads: without O_DIRECT */
	uint64_t short_reads, retries;     /* continued after a part; after EAGAIN or EINTR */
	unsigned in_flight, in_flight_max; /* reads, all drives together */
};

struct reader;

/* Opens files[0..n). Refuses with a sentence: a file that cannot be opened or is no regular file,
 * replicas of unequal size, options out of range, READER_URING without a ring. Nothing of `files`
 * or `o` is kept. `o` may be NULL. */
int reader_open(struct reader **out, const struct reader_file *files, unsigned n_files,
	const struct reader_options *o, struct err *e);

/* reader_drain, then frees. Called by the owner, or by any thread after the owner's reader_drain.
 * NULL is fine. */
void reader_close(struct reader *r);

/* Cancels the reads that can be cancelled, waits for the others (a read in flight on a drive ends
 * only when the drive answers), and drops all completions: nothing is pending afterwards. An owner
 * thread that ends before the reader is closed must call it, because with io_uring no other thread
 * can wait for its reads. */
void reader_drain(struct reader *r);

/* Registers memory with the engine, so that reads into it need not pin its pages. Earlier ranges
 * stay registered.
 * - Preconditions: nothing is in flight (else -EBUSY); the range is not empty and overlaps no
 *   earlier one (else -EINVAL); the memory stays mapped until reader_close.
 * - 0: registered. 1: the engine has no use for it, or the system refused (logged); reads into it
 *   work all the same. */
int reader_register(struct reader *r, void *base, size_t bytes);

/* Queues a request; its reads start at the next reader_flush, reader_reap or reader_wait. 0;
 * READER_BUSY: reader_options.requests are not reaped yet: reap and try again; -EINVAL: no bytes,
 * no such file, no destination, need > bytes, or offset + bytes above INT64_MAX. */
#define READER_BUSY 1
int reader_submit(struct reader *r, const struct reader_request *q);

/* Makes the requests urgent whose tag fulfils match(ctx, tag). Their parts that have not started
 * then start before requests that are not urgent. */
void reader_boost(struct reader *r, bool (*match)(const void *ctx, uint64_t tag), const void *ctx);

/* Starts what is queued as far as the depth allows, and returns without waiting. */
void reader_flush(struct reader *r);

/* Writes up to `max` completions to out and returns their number. First it waits, and starts queued
 * reads meanwhile, until one of these is true:
 * - `min` completions are there, or all requests have completed;
 * - timeout_ms have passed (negative: no limit, 0: never waits);
 * - reader_wake was called.
 * Signals do not end the wait. */
int reader_reap(
	struct reader *r, struct reader_completion *out, unsigned min, unsigned max, int timeout_ms);

/* Waits like reader_reap for one completion, but also when nothing is pending: a thread that serves
 * others sleeps here until reader_wake. Returns how many completions can be reaped. */
unsigned reader_wait(struct reader *r, int timeout_ms);

/* Ends the present wait in reader_reap or reader_wait, or else the next one. Any thread. What the
 * caller wrote before is visible to the owner when that wait returns. */
void reader_wake(struct reader *r);

/* Requests submitted and not yet returned by reap. */
unsigned reader_pending(const struct reader *r);

/* "uring", "threads", or the name of the custom engine. */
const char *reader_engine_name(const struct reader *r);
struct reader_stats reader_stats(const struct reader *r);
/* The depth at the start, of the drive with the deepest queue. reader_setting has the present one.
 */
unsigned reader_start_depth(const struct reader *r);
size_t reader_slice(const struct reader *r); /* bytes of a slice at the start */
unsigned reader_n_drives(const struct reader *r);
/* Bytes of a request, about, of a caller with few staging buffers: a slice; in a reader that is
 * `staged`, was given no slice_bytes and reads through the page cache only, READER_CACHED_SLICES of
 * them. */
size_t reader_staging_bytes(const struct reader *r);
/* How many such requests, on all drives together, the caller should keep in flight.
 * - A drive that adapts: the present depth in a reader that is `staged`, so call it before each
 *   read; else at most READER_USEFUL_DEPTH.
 * - A drive that does not adapt: its depth divided by the slices of a request, rounded up.
 * Few are best because the bytes are then still in the processor's cache when the buffer is used
 * again: four of 1 MiB were best on drives of 2 to 3 GB/s (tests/bench/RESULTS.md). */
#define READER_USEFUL_DEPTH 4u
unsigned reader_useful_depth(const struct reader *r);
unsigned reader_useful_depth_max(const struct reader *r); /* the most that it ever returns */
/* How many staging buffers such a caller needs: some are emptied while others are read into. */
unsigned reader_staging_buffers(const struct reader *r);

/* The present depth and slices, and the measured rate. */
struct reader_setting {
	unsigned depth;            /* reads in flight, all drives together */
	size_t slice_bytes;        /* of the first drive, about */
	unsigned n_adapt, n_found; /* drives that adapt; of them those whose first search has ended */
	double bytes_s;            /* moving average, all drives together; 0: nothing was read */
};
struct reader_setting reader_setting(const struct reader *r);
/* How long a thread that feeds a card polls its reads before it sleeps. A thread that slept went on
 * 32 to 146 us after its bytes had arrived. */
#define READER_POLL_NS 20000000u
uint64_t reader_file_size(const struct reader *r, uint32_t file); /* when it was opened */

/* Alignment of reads that go past the page cache: of offset and length (reader_file_align) and of
 * the destination (reader_file_memory_align). Powers of two up to 4096; 1 and 1 for a file that is
 * read through the page cache. Of a file with replicas: the largest among the copies. */
uint32_t reader_file_align(const struct reader *r, uint32_t file);
uint32_t reader_file_memory_align(const struct reader *r, uint32_t file);

/* Asks the system to drop these bytes of the file and its replicas from the page cache, so that the
 * next read comes from the drive. Reads with O_DIRECT do not need it. */
void reader_drop_cached(const struct reader *r, uint32_t file, uint64_t offset, uint64_t bytes);

/* Writes the sentence for a completion with code != 0: file, offset, bytes, what happened. Returns
 * its code (READER_EOF becomes ERR_INPUT). */
int reader_completion_err(const struct reader *r, const struct reader_completion *c, struct err *e);

/* Length of the slices that `bytes` are cut into: equal multiples of 4096 of about `slice` bytes
 * (2/3 to 3/2 of it), the last one shorter. */
uint64_t reader_slice_step(uint64_t bytes, uint64_t slice);

#endif
