/* SPDX-License-Identifier: MIT */
/*
 * The open connections, each with a deadline that its phase sets (none while an answer is
 * computed), and a watchdog thread that shuts the socket of whoever is late. libmicrohttpd's own
 * timeout knows only silence, and closes connections whose answer takes long.
 */
#ifndef GLM_SERVE_CONNECTIONS_H
#define GLM_SERVE_CONNECTIONS_H

#include "src/base/err.h"
#include "src/serve/client_share.h"
#include "src/serve/http/framing.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct connections; /* any thread */

/* Borrowed until connections_free. */
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
	bool proxy;
	struct framing framing; /* of the thread that reads from fd */
	unsigned over; /* it is one too many: 503, of all, or 429, of its client; 0: it is not */
	/* guarded by the list's lock */
	bool fresh; /* waits for a request or its headers: the crowd rule applies */
	bool cut;
	uint64_t since_ns, deadline_ns; /* 0: none */
};

/* Starts the watchdog. *out is set in any case but want of memory; connections_free. */
int connections_open(const struct connections_options *o, struct connections **out, struct err *e);
void connections_free(struct connections *l); /* when all are closed; NULL is fine */

/* A new connection from this address, whose headers are due. NULL: out of memory. */
struct connection *connection_open(struct connections *l, int fd, const struct sockaddr *address);
void connection_close(struct connection *c); /* NULL is fine */

/* From now on: ns until what is waited for must be there; 0: as long as it takes. fresh: that is a
 * request or its headers, for which there is less time while three quarters of the connections are
 * taken. */
void connection_set_deadline(struct connection *c, uint64_t ns, bool fresh);
/* The same, counted from the last connection_set_deadline; not fresh. */
void connection_extend(struct connection *c, uint64_t ns);

uint32_t connections_count(struct connections *l);
/* Those that are not `over`. */
uint32_t connections_held(struct connections *l);
/* Whether there is room for one more, if only to refuse it. */
bool connections_have_room(struct connections *l);

/* How many may be refused at a time. */
#define CONNECTIONS_OVER 16

#endif
