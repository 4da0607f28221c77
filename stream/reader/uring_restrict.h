/* SPDX-License-Identifier: MIT */
/*
 * What a ring of the reader may do from the time it is enabled: read, into registered memory too,
 * cancel that, and wait for a descriptor; and register memory anew. All else fails with EACCES.
 */
#ifndef GLM_STREAM_URING_RESTRICT_H
#define GLM_STREAM_URING_RESTRICT_H

/* For a ring that was made disabled, after its files and eventfd were registered. 0, or a negative
 * errno: the ring may do anything. */
int uring_restrict(int ring_fd);

#endif
