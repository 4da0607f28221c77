/* SPDX-License-Identifier: MIT */
/*
 * Restricts an io_uring of the reader (IORING_REGISTER_RESTRICTIONS). Once enabled, the ring takes
 * reads, also into registered memory, cancellation of these, and polls of a descriptor; memory may
 * be registered and unregistered. Every other operation fails with EACCES.
 */
#ifndef GLM_STREAM_URING_RESTRICT_H
#define GLM_STREAM_URING_RESTRICT_H

/* ring_fd: of a ring created with IORING_SETUP_R_DISABLED, whose files and eventfd have been
 * registered. Returns 0, or a negative errno: the ring is not restricted. */
int uring_restrict(int ring_fd);

#endif
