/* SPDX-License-Identifier: MIT */
#include "src/serve/http/framed_recv.h"

#include "src/base/host/clock.h"
#include "src/base/num.h"

#include <errno.h>
#include <sys/socket.h>

#define DESCRIPTORS (64u << 10) /* the server's own limit of connections is far below */
#define LOOK_BYTES  8192
#define DRAIN_BYTES (1u << 20)

static struct framed *_Atomic framed[DESCRIPTORS];

/* The name in the program's symbol table is recv. Here it has another one, since the headers may
 * define recv as an inline function. */
ssize_t framed_recv(int fd, void *buf, size_t n, int flags) __asm__("recv");

void framed_recv_attach(int fd, struct framed *f)
{
	if (fd >= 0 && (unsigned)fd < DESCRIPTORS)
		atomic_store(&framed[fd], f);
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
	const struct framed *f = atomic_exchange(&framed[fd], NULL);
	char scratch[LOOK_BYTES];
	if (f && framing_is_over(&f->framing))
		drop_bytes(fd, scratch, DRAIN_BYTES);
}

/* After bytes of a request were read. */
static void note_head(struct framed *f)
{
	bool incomplete = !framing_has_head(&f->framing) && !framing_fault(&f->framing).status;
	if (incomplete != (atomic_load(&f->head_ns) != 0))
		atomic_store(&f->head_ns, incomplete ? clock_ns() : 0);
}

ssize_t framed_recv(int fd, void *buf, size_t n, int flags)
{
	bool known = fd >= 0 && (unsigned)fd < DESCRIPTORS && !(flags & MSG_PEEK);
	struct framed *socket = known ? atomic_load(&framed[fd]) : NULL;
	if (!socket || !n)
		return recvfrom(fd, buf, n, flags, NULL, NULL);
	struct framing *f = &socket->framing;
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
		note_head(socket);
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
