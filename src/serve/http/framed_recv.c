/* SPDX-License-Identifier: MIT */
#include "src/serve/http/framed_recv.h"

#include "src/base/num.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define DESCRIPTORS (64u << 10) /* the server's own limit of connections is far below */
#define LOOK_BYTES  8192
#define DRAIN_BYTES (1u << 20)

static struct framing *_Atomic framings[DESCRIPTORS];

/* The name in the program's symbol table is recv. Here it has another one, since the headers may
 * define recv as an inline function. */
ssize_t framed_recv(int fd, void *buf, size_t n, int flags) __asm__("recv");

void framed_recv_attach(int fd, struct framing *f)
{
	if (fd >= 0 && (unsigned)fd < DESCRIPTORS)
		atomic_store(&framings[fd], f);
}

/* Removes up to n bytes that are in the socket; does not wait. If unread bytes are left when a
 * socket is closed, the kernel resets the connection and the client may lose the response. */
static void drop_bytes(int fd, char *scratch, size_t n)
{
	while (n) {
		ssize_t got = recvfrom(fd, scratch, MIN(n, (size_t)LOOK_BYTES), MSG_DONTWAIT, NULL, NULL);
		if (got <= 0)
			return;
		n -= (size_t)got;
	}
}

void framed_recv_detach(int fd)
{
	if (fd < 0 || (unsigned)fd >= DESCRIPTORS)
		return;
	const struct framing *f = atomic_exchange(&framings[fd], NULL);
	char scratch[LOOK_BYTES];
	if (f && framing_is_over(f))
		drop_bytes(fd, scratch, DRAIN_BYTES);
}

ssize_t framed_recv(int fd, void *buf, size_t n, int flags)
{
	bool known = fd >= 0 && (unsigned)fd < DESCRIPTORS && !(flags & MSG_PEEK);
	struct framing *f = known ? atomic_load(&framings[fd]) : NULL;
	if (!f || !n)
		return recvfrom(fd, buf, n, flags, NULL, NULL);
	for (;;) {
		uint64_t plain = framing_plain_bytes(f);
		if (plain) {
			ssize_t got = recvfrom(fd, buf, (size_t)MIN(plain, (uint64_t)n), flags, NULL, NULL);
			if (got > 0)
				framing_pass(f, (uint64_t)got);
			return got;
		}
		char in[LOOK_BYTES];
		ssize_t seen = recvfrom(fd, in, sizeof in, flags | MSG_PEEK, NULL, NULL);
		if (seen <= 0)
			return seen;
		size_t used, made = framing_feed(f, in, (size_t)seen, &used, buf, n);
		drop_bytes(fd, in, used);
		if (framing_is_over(f))
			drop_bytes(fd, in, DRAIN_BYTES);
		if (made)
			return (ssize_t)made;
		if (framing_is_over(f)) {
			errno = ECONNRESET;
			return -1;
		}
	}
}
