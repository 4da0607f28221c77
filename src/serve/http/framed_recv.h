/* SPDX-License-Identifier: MIT */
/*
 * Puts the strict framing (framing.h) between a socket and libmicrohttpd.
 *
 * The library reads with recv() and has no hook before its parser. The program therefore defines
 * recv() itself: the dynamic linker gives the program's own symbol to the library, the static one
 * does too. Sockets without a framing are read as always. The server refuses requests whose head
 * did not pass here (http.c), so a build in which this does not work answers nothing.
 *
 * Bytes are first read with MSG_PEEK and removed from the socket up to the end of one request. A
 * following request stays in the socket until the library asks for it.
 *
 * attach and detach may be called by any thread while nobody reads from fd; reads of one socket
 * come from one thread at a time.
 */
#ifndef GLM_SERVE_FRAMED_RECV_H
#define GLM_SERVE_FRAMED_RECV_H

#include "src/serve/http/framing.h"

#include <stdatomic.h>

/* A socket that is read. Zero-initialise. */
struct framed {
	struct framing framing; /* of the thread that reads */
	/* clock_ns() when the first byte of a head came; 0: no head is incomplete. Written by the
	 * thread that reads, and by the owner before attach. */
	atomic_ullong head_ns;
};

/* f is borrowed until detach. A descriptor from 65536 on gets no framing: its requests are refused.
 */
void framed_recv_attach(int fd, struct framed *f);
/* Before the socket is closed. After a fault it also reads away up to 1 MiB that the client has
 * sent. */
void framed_recv_detach(int fd);

#endif
