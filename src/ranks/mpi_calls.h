/* SPDX-License-Identifier: MIT */
/*
 * The calls of MPI that ranks need, and the only place that makes them. The library is loaded by
 * mpi_start: a run that mpirun did not start does without it. A build without MPI has the same
 * functions, and mpi_start fails with a sentence.
 *
 * Threads: one call at a time (MPI_THREAD_SERIALIZED); the caller has a lock. After mpi_start any
 * thread may call.
 */
#ifndef GLM_RANKS_MPI_CALLS_H
#define GLM_RANKS_MPI_CALLS_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* A message under way. The bytes belong to MPI until it is done. */
struct mpi_transfer {
	void *request; /* MPI_Request; NULL: none is under way */
	int failed;    /* MPI's code if it could not be begun; 0: it was */
};

/* Loads the library and starts MPI. ERR_RUN: it is missing, or does not start. */
int mpi_start(uint32_t *rank, uint32_t *count, struct err *e);
/* Ends MPI; returns when every rank has called it. */
void mpi_stop(void);

/* Begin a message of bytes. Between two ranks messages of one tag arrive in order. */
void mpi_send(struct mpi_transfer *t, const void *data, size_t bytes, uint32_t to, int tag);
/* At most `capacity` bytes. */
void mpi_receive(struct mpi_transfer *t, void *data, size_t capacity, uint32_t from, int tag);
/* 1: done, *bytes (may be NULL) were received; 0: not yet; ERR_RUN with MPI's words. Never waits.
 */
int mpi_test(struct mpi_transfer *t, size_t *bytes, struct err *e);
/* Gives up a receive that nothing will arrive for. Nothing under way: no effect. */
void mpi_cancel(struct mpi_transfer *t);

#endif
