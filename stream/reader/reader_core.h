/* SPDX-License-Identifier: MIT */
/* Shared by reader.c (opening and questions) and reader_run.c (moving requests), nothing else. */
#ifndef GLM_STREAM_READER_CORE_H
#define GLM_STREAM_READER_CORE_H

#include "stream/reader/queue_control.h"
#include "stream/reader/reader_engine.h"
#include "stream/reader/reader_files.h"

#include <stdatomic.h>

struct queued_request {
	struct reader_request q;
	uint64_t step;    /* length of a slice */
	uint64_t next;    /* first byte not handed out yet */
	uint64_t end_at;  /* offset at which the file ended, at or behind `need`; UINT64_MAX: none */
	uint64_t fail_at; /* lowest offset of a fault */
	int code;         /* of that fault; 0: none */
	uint32_t failed;  /* the file or copy that had it */
	unsigned in_flight;
	bool queued; /* in urgent or normal */
	bool live;   /* submitted, not finished */
	bool cancelled;
	struct queued_request *before, *after; /* in a queue; `after` also in free and done lists */
};

struct request_queue {
	struct queued_request *head, *tail;
};

enum op_state { OP_FREE, OP_IN_FLIGHT, OP_RETRY };

struct drive_queue {
	unsigned in_flight; /* ops, those that wait for a retry included */
	uint64_t bytes_in_flight;
	uint64_t bytes; /* read so far */
	bool direct;    /* all files on it were opened with O_DIRECT */
	bool adapts;    /* depth and slices are those of `control` */
	struct queue_control control;
	unsigned depth;      /* while it does not adapt */
	unsigned depth_max;  /* ops that it may ever have in flight */
	unsigned useful_max; /* its part of reader_useful_depth_max */
	/* Bytes a second: moving average over n_rates reads of (bytes in flight when the read starts,
	 * its own included) / (time until it completes). 0: unknown */
	double rate;
	unsigned n_rates;
	uint64_t measured_ns; /* end of the last read */
};

/* Everything but `woken` and the engine's wake belongs to the owner. */
struct reader {
	const struct reader_engine_ops *engine;
	void *state;
	struct reader_files files;
	struct drive_queue *drives;
	unsigned n_requests;
	unsigned start_depth; /* of the drive with the deepest queue at the start */
	size_t slice;
	unsigned staging_slices; /* of reader_staging_bytes */

	struct queued_request *requests, *free_requests;
	struct request_queue urgent, normal, done;
	uint64_t urgent_bytes,
		normal_bytes; /* of those queues: bytes that no read has been started for */
	unsigned n_live, n_done;

	struct reader_op *ops, *free_ops, *retry;
	enum op_state *op_state;
	unsigned n_ops, n_in_flight, n_retry;

	struct reader_memory *memory;
	unsigned n_memory;

	uint64_t copy_rest_ns; /* of a copy that could not be read */
	struct reader_stats stats;
	atomic_bool woken;
	char summary[768];
};

/* The time by the engine's clock. */
uint64_t reader_now(const struct reader *r);
/* How many reads the drive may have in flight now. */
unsigned drive_depth(const struct drive_queue *drive);

/* Cancels all requests. Each still gives exactly one completion: -ECANCELED, or its own if it has
 * completed before. Requests without reads in flight complete at once. Returns how many were
 * cancelled. */
unsigned reader_cancel_all(struct reader *r);

#endif
