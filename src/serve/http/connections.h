/* SPDX-License-Identifier: MIT */
/*
 * The open connections. Each has a deadline that depends on its phase, none while an answer is
 * computed. A watchdog thread shuts down the sockets of those that are late. The timeout of
 * libmicrohttpd is not used: it measures silence only, and would close connections whose answer
 * takes long to compute.
 */
#ifndef GLM_SERVE_CONNECTIONS_H
#define GLM_SERVE_CONNECTIONS_H

#include "src/base/err.h"
#include "src/serve/client_share.h"
#include "src/serve/http/framed_recv.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct connections; /* any thread */

/* Copied; what it points to is borrowed until connections_free. */
struct connections_options {
	uint32_t max;
	const char *trusted_proxy;    /* NULL: none */
	struct client_shares *shares; /* NULL: clients are not distinguished */
	void *user;
	void (*cut)(void *user);  /* a connection was ended for being late */
	void (*tick)(void *user); /* four times a second, from the watchdog's thread */
};

struct connection {
	struct connection *next, **at; /* in the list */
	struct connections *list;      /* constant from here on */
	int fd;
	struct client *client; /* of the address; held; NULL: unknown, or the trusted proxy */
	bool proxy;            /* it is the trusted proxy's */
	struct framed framed;
	/* Accepted only to be refused, with this status. 503: too many connections; 429: too many of
	 * this client; 0: not refused */
	unsigned over;
	/* guarded by the list's lock */
	bool fresh; /* waits for a request or its headers: see connection_set_deadline */
	bool cut;   /* was late, and its socket is shut down */
	uint64_t since_ns, deadline_ns; /* clock_ns: of connection_set_deadline; 0: none */
	/* of connection_set_sending; least 0: no response is sent */
	uint64_t period_ns, least, acked; /* acked: bytes when the period began */
};

/* Starts the watchdog. Errors:
 * - no memory: *out is NULL;
 * - the thread does not start: *out must be freed (connections_free) all the same. */
int connections_open(const struct connections_options *o, struct connections **out, struct err *e);
void connections_free(struct connections *l); /* when all are closed; NULL is fine */

/* Adds a connection, and puts the strict framing before fd. The headers of its first request must
 * be complete after 15 s, those of a later one 15 s after its first byte. Check `over` afterwards.
 * NULL: out of memory. */
struct connection *connection_open(struct connections *l, int fd, const struct sockaddr *address);
void connection_close(struct connection *c); /* before fd is closed; NULL is fine */

/* The client must have sent or taken what is waited for within ns from now; 0: no deadline. fresh:
 * it is a request or its headers, which must be there within 3 s while three quarters of the
 * connections are in use, or if the connection is `over`. */
void connection_set_deadline(struct connection *c, uint64_t ns, bool fresh);
/* The same, counted from the last connection_set_deadline; not fresh. */
void connection_extend(struct connection *c, uint64_t ns);
/* A response is sent: in each period of ns from now on the client must take at least so many bytes.
 * After the response the caller sets the next deadline. Taken is what the client's
 * system has acknowledged: bytes in this system's buffers do not count. */
void connection_set_sending(struct connection *c, uint64_t ns, uint64_t bytes);

uint32_t connections_count(struct connections *l); /* all */
uint32_t connections_held(struct connections *l);  /* those that are not `over` */

/* How many connections may be `over` at a time. */
#define CONNECTIONS_OVER 16
/* Whether a connection from this address may be opened, if only to be refused. False: it would be
 * `over`, and there are CONNECTIONS_OVER already: it is closed without a response. */
bool connections_have_room(struct connections *l, const struct sockaddr *address);

#endif
