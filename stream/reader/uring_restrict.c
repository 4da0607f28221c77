/* SPDX-License-Identifier: MIT */
/* By system call: the shared library of liburing 2.3 does not export the wrapper. */
#include "stream/reader/uring_restrict.h"

#include "src/base/num.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __has_include(<liburing.h>)
#include <liburing.h>

int uring_restrict(int ring_fd)
{
	static const struct io_uring_restriction allowed[] = {
		{.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ},
		{.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ_FIXED},
		{.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_ASYNC_CANCEL},
		{.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_POLL_ADD},
		{.opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED,
			.sqe_flags = IOSQE_FIXED_FILE | IOSQE_ASYNC},
		{.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_BUFFERS},
		{.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_UNREGISTER_BUFFERS},
	};
	return syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_RESTRICTIONS, allowed,
			   ARRAY_LEN(allowed)) < 0
			   ? -errno
			   : 0;
}

#else

int uring_restrict(int ring_fd)
{
	(void)ring_fd;
	return -ENOSYS;
}

#endif
