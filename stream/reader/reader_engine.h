/* SPDX-License-Identifier: MIT */
/*
 * The interface between the reader and an engine. An engine starts single reads (struct reader_op)
 * and reports the system's results, nothing else. reader_run.c does the rest for every engine:
 * slices, short reads, retries, end of file, cancelled requests and the depth of each drive.
 *
 * All functions are called by the thread that owns the reader, except wake.
 */
#ifndef GLM_STREAM_READER_ENGINE_H
#define GLM_STREAM_READER_ENGINE_H

#include "stream/reader/reader.h"

#include <sys/types.h>

/* One read. Fields above the line are set by reader_run.c before start and constant until
 * reader_op_done; `link` and `engine_word` belong to the engine between the two. */
struct reader_op {
	int fd;       /* for the plain calls */
	int fd_index; /* the same file in the list that open got */
	uint32_t drive;
	uint32_t bytes;  /* still to read */
	uint64_t offset; /* where in the file */
	unsigned char *dst;
	uint32_t file; /* index of the file as the caller knows it */
	bool fixed;    /* set by the engine: registered memory was used */
	/* ---- */
	struct reader_op *link;
	uint64_t engine_word;

	/* reader_run.c only */
	struct queued_request *rq;
	uint64_t at;           /* offset of the slice inside its request */
	uint32_t done;         /* bytes of the slice that have arrived */
	uint32_t slice;        /* bytes of the slice */
	uint32_t handle;       /* which copy of the file, */
	uint32_t first_handle; /* ... and which one was tried first */
	uint64_t tried;        /* bit i: the i-th copy of the ring, from first_handle on */
	bool direct;
	unsigned tries;
	uint64_t not_before_ns;
	uint64_t started_ns;
	uint64_t bytes_at_start; /* in flight on the drive when it was started, its own included */
};

struct reader_memory {
	unsigned char *base;
	size_t bytes;
};

struct reader_setup {
	unsigned n_drives, depth, threads; /* depth: most ops in flight per drive */
	const int *fds;                    /* n_fds descriptors; -1: unused entry */
	unsigned n_fds;
	const void *custom_options; /* of struct reader_options */
	void *owner;                /* first argument of reader_op_done */
};

struct reader_engine_ops {
	const char *name;
	/* 0 and the state, or a negative code and the reason in why[why_bytes]. */
	int (*open)(const struct reader_setup *s, void **state, char *why, size_t why_bytes);
	/* Takes the op; never fails: a refused read is reported as a completion. */
	void (*start)(void *state, struct reader_op *op);
	/* Submits started ops to the system. */
	void (*flush)(void *state);
	/* flush, then calls reader_op_done for each completed op. Waits up to wait_ns for at least one
	 * completion or a wake (< 0: no limit, 0: no wait). May return earlier. */
	void (*poll)(void *state, int64_t wait_ns);
	/* Tries to end an op early. poll reports the op in any case. */
	void (*cancel)(void *state, struct reader_op *op);
	/* Registers these ranges, sorted by base, in place of those before; nothing is in flight. 0, or
	 * a negative code and the reason: none is registered. NULL: the engine has no use for it. */
	int (*memory)(
		void *state, const struct reader_memory *m, unsigned n, char *why, size_t why_bytes);
	void (*wake)(void *state);    /* any thread */
	uint64_t (*now)(void *state); /* for engines with a clock of their own; NULL: clock_ns */
	void (*describe)(void *state, char *text, size_t bytes);
	void (*close)(void *state); /* nothing is in flight */
};

/* res: bytes read, 0 at the end of the file, or -errno. */
void reader_op_done(void *owner, struct reader_op *op, int res);

/* Also without liburing: open then says so. */
extern const struct reader_engine_ops reader_uring_engine;
extern const struct reader_engine_ops reader_threads_engine;

#endif
