/* SPDX-License-Identifier: MIT */
/*
 * Asynchronous reads from files into memory. A request names a byte range of one file and where it
 * goes. Requests are cut into slices, a given number of slices is kept in flight on every drive,
 * and requests come back as completions in any order.
 *
 * In order of use: reader_open, reader_register, then reader_submit and reader_reap (or
 * reader_wait) in turns, reader_drain by the owner, reader_close.
 *
 * Engines: io_uring and a pool of pread threads. reader_open is the one place that decides between
 * them, and between O_DIRECT and the page cache; it logs one line with the reasons. A test may hand
 * in an engine of its own (stream/reader/reader_engine.h).
 *
 * Errors: short reads, EINTR and EAGAIN are handled inside. A file that refuses O_DIRECT, or a
 * request that is not aligned for it, is read through the page cache. What remains is an error of
 * the one request: EIO, end of file, cancelled.
 *
 * Threads: one thread owns a reader, namely the first that submits or reaps (opening and
 * registering memory may be done by another one before). Only reader_wake may be called from
 * elsewhere.
 *
 * Memory: a destination belongs to the reader from reader_submit until its completion is returned
 * by reader_reap or reader_close returns, whichever comes first; also while it is drained.
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
#define READER_REQUESTS_MAX     65536u
#define READER_SLICE_DEFAULT    (1u << 20)
#define READER_SLICE_MIN        4096u
#define READER_SLICE_MAX        (1u << 28)
#define READER_FILES_MAX        4096u
/* Between these a drive's depth and slices are found (stream/reader/queue_control.h). */
#define READER_ADAPT_DEPTH_MAX  128u
#define READER_STAGED_DEPTH_MAX 16u
#define READER_ADAPT_SLICE_MIN  (256u << 10)
#define READER_ADAPT_SLICE_MAX  (4u << 20)

struct reader_file {
	const char *path;
	unsigned drive; /* 0: distinguished by st_dev; else any number that files on one drive share */
	unsigned replica_of; /* 0: no; else 1 + index of an earlier file with the same content (size is
						  * checked). Requests name that earlier file, and each slice goes to the
						  * drive that is expected to be done first */
};

/* Destinations that must not be looked at yet are filled with this byte by builds that test. */
#define READER_POISON 0xdb

struct reader_engine_ops;

struct reader_options {        /* all zero: the defaults */
	enum reader_engine engine; /* READER_AUTO: io_uring, else threads. READER_URING is a promise: no
								  ring, no reader */
	bool buffered; /* through the page cache; default is O_DIRECT where the filesystem takes it */
	/* Slices in flight per drive. 0: adapted per drive while reading; the start is
	 * READER_DEPTH_DEFAULT, staged READER_USEFUL_DEPTH. The length of slices is adapted too, unless
	 * slice_bytes is given. A drive with a file that is read through the page cache does not adapt
	 * and has READER_DEPTH_DEFAULT */
	unsigned depth;
	/* requests are for a slice each, and read into a few staging buffers again and again */
	bool staged;
	unsigned requests; /* requests accepted and not yet reaped; then submit answers busy */
	/* READER_THREADS: threads per drive, at most as many as a drive may have slices in flight; 0:
	 * READER_THREADS_DEFAULT */
	unsigned threads;
	size_t slice_bytes; /* about this much per read; a request is cut into equal parts of at
						   most 1.5 times it */
	const struct reader_engine_ops *custom; /* not NULL: this engine instead, `engine` is ignored */
	const void *custom_options;             /* handed to its `open` */
};

struct reader_request {
	uint32_t file;
	uint64_t offset;
	uint64_t bytes; /* > 0 */
	uint64_t need;  /* the file may end once this many bytes were read (O_DIRECT tails); 0: all of
					   `bytes` */
	void *dst;      /* room for `bytes` */
	uint64_t tag;   /* returned as it is; need not be unique */
	bool urgent; /* goes before everything that is not yet in flight, except earlier urgent requests
				  */
};

#define READER_EOF (-ENODATA) /* the file ends inside the request */

struct reader_completion {
	uint64_t tag;
	int code;      /* 0; READER_EOF; -ECANCELED; or another -errno of the read */
	uint32_t file; /* file, offset, requested: of the request */
	uint64_t offset;
	uint64_t requested; /* bytes */
	uint64_t bytes; /* valid bytes at dst, from its start: code 0: at least `need`; else what came
					   before the fault */
};

struct reader_stats {
	uint64_t requests, completed, failed, cancelled, busy;
	uint64_t bytes;                    /* that arrived in destinations */
	uint64_t reads;                    /* handed to the engine, repeats included */
	uint64_t fixed;                    /* of these into registered memory */
	uint64_t page_cache;               /* of these without O_DIRECT */
	uint64_t short_reads, retries;     /* continued after a part; after EAGAIN or EINTR */
	unsigned in_flight, in_flight_max; /* reads, all drives together */
};

struct reader;

/* Opens files[0..n). Refuses with a sentence: a file that cannot be opened or is no regular file,
 * replicas of unequal size, options out of range, READER_URING without a ring. Nothing of `files`
 * or `o` is kept. `o` may be NULL. */
int reader_open(struct reader **out, const struct reader_file *files, unsigned n_files,
	const struct reader_options *o, struct err *e);

/* Cancels what it can, waits for what it cannot (a read in flight on a drive comes back only when
 * the drive answers), frees. Completions not yet reaped are dropped. Called by the owner, or by any
 * thread when nothing is in flight, that is, after the owner's reader_drain. NULL is fine. */
void reader_close(struct reader *r);

/* The first half of reader_close: nothing is pending afterwards. An owner that ends before the
 * reader is closed must call it, because with io_uring nobody else can wait for its reads. */
void reader_drain(struct reader *r);

/* Hands memory to the engine so that reads into it skip the pinning of pages. Call when nothing is
 * in flight; earlier ranges stay, the new one must not overlap them; the memory must stay mapped
 * until reader_close. Returns 0 when it is registered, 1 when the engine has no use for it or the
 * system refused (logged; plain reads work as before), or -EINVAL (empty, overlapping), -EBUSY
 * (reads in flight). */
int reader_register(struct reader *r, void *base, size_t bytes);

/* 0: queued. READER_BUSY: too many requests not yet reaped; reap and try again. Negative: -EINVAL
 * (no bytes, no such file, no destination, need > bytes, offset + bytes above INT64_MAX). Reads
 * start at the next reader_flush or reader_reap. */
#define READER_BUSY 1
int reader_submit(struct reader *r, const struct reader_request *q);

/* Starts what is queued as far as the depth allows, and returns without waiting. */
void reader_flush(struct reader *r);

/* Writes up to `max` completions to out and returns their number. Waits until `min` are there, or
 * timeout_ms have passed (negative: no limit, 0: never waits), or reader_wake was called, or fewer
 * than `min` requests exist (then for those). Keeps the drives busy while it is at it. Signals do
 * not end the wait. */
int reader_reap(
	struct reader *r, struct reader_completion *out, unsigned min, unsigned max, int timeout_ms);

/* Waits until a completion can be reaped, or reader_wake was called, or the time has passed, also
 * when nothing is pending: the place for a thread that serves others to sleep. Returns how many
 * completions can be reaped. */
unsigned reader_wait(struct reader *r, int timeout_ms);

/* From any thread: makes a wait in reader_reap or reader_wait that is going on, or else the next
 * one, return early. Whatever the caller wrote before is visible to the owner afterwards. */
void reader_wake(struct reader *r);

/* Requests submitted and not yet returned by reap. */
unsigned reader_pending(const struct reader *r);

/* "uring", "threads", or the name of the custom engine. */
const char *reader_engine_name(const struct reader *r);
struct reader_stats reader_stats(const struct reader *r);
/* The depth at the start; of the drive with the deepest queue. reader_setting has the present one.
 */
unsigned reader_start_depth(const struct reader *r);
size_t reader_slice(const struct reader *r);
unsigned reader_n_drives(const struct reader *r);
/* How many reads, on all drives together, a caller with few staging buffers should keep in flight.
 * Of a reader that is `staged` it changes: ask before each read. Drives that do not adapt count
 * with their depth.
 *
 * Few are best because the bytes then meet the processor's cache in the buffers: four of 1 MiB were
 * best on drives of 2 to 3 GB/s (tests/bench/RESULTS.md). A staged reader begins with four and
 * adapts; another one answers four for each drive. */
#define READER_USEFUL_DEPTH 4u
unsigned reader_useful_depth(const struct reader *r);
unsigned reader_useful_depth_max(const struct reader *r); /* the most that it will ever answer */
/* How many staging buffers these reads need: some are emptied while others are read into. */
unsigned reader_staging_buffers(const struct reader *r);

/* What the reader has found so far. */
struct reader_setting {
	unsigned depth;            /* reads in flight, all drives together */
	size_t slice_bytes;        /* about so long, on the first drive */
	unsigned n_adapt, n_found; /* drives that adapt; of them those whose first search has ended */
	double bytes_s;            /* what the drives delivered lately, all together; 0: nothing read */
};
struct reader_setting reader_setting(const struct reader *r);
/* How long a thread that feeds a card polls its reads before it sleeps: after a sleep it went on 32
 * to 146 us after its bytes had arrived. */
#define READER_POLL_NS 20000000u
uint64_t reader_file_size(const struct reader *r, uint32_t file); /* when it was opened */

/* Offsets and lengths that are multiples of this go past the page cache; 1 when the file is read
 * buffered. Destinations must then be aligned to reader_file_memory_align (never more than the page
 * size). A power of two; the larger of the set's for a file with replicas. */
uint32_t reader_file_align(const struct reader *r, uint32_t file);
uint32_t reader_file_memory_align(const struct reader *r, uint32_t file);

/* Asks the system to drop these bytes from the page cache, so that the next read of them comes from
 * the drive; also of copies of the file. A range that is read past the page cache needs it not. */
void reader_drop_cached(const struct reader *r, uint32_t file, uint64_t offset, uint64_t bytes);

/* Writes the sentence for a completion with code != 0: file, offset, bytes, what happened. Returns
 * its code (READER_EOF becomes ERR_INPUT). */
int reader_completion_err(const struct reader *r, const struct reader_completion *c, struct err *e);

/* Length of the parts a run of bytes is cut into: equal, multiples of 4096, about `slice` each (2/3
 * to 3/2 of it), the last one shorter. */
uint64_t reader_slice_step(uint64_t bytes, uint64_t slice);

#endif
