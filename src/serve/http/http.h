/* SPDX-License-Identifier: MIT */
/*
 * HTTP/1.1 over libmicrohttpd, one thread for each connection. This module decides which requests
 * reach the handlers:
 *
 * - Access. The API key is compared in constant time. The Host header must name this machine if
 *   the server listens on a loopback address or has no key; otherwise a page of another site could
 *   reach it through a name that resolves to it. On other addresses the Host may also be an
 *   address in digits. A request with an Origin is refused unless the origin is the server's own
 *   or allowed, and only allowed origins get CORS headers.
 * - Framing. What framing.h does not accept is refused and the connection closed, since a proxy in
 *   front may read it in another way.
 * - Amounts. Limited are connections, header bytes (32 KiB), body bytes of one request and of all
 *   together, and a client's share of these (client_share.h). A connection counts for its address.
 *   A request of another client (known by one of several keys, or behind a trusted proxy) counts
 *   as a connection of that client.
 * - Time. Headers must be complete 15 s after a connection or a request begins, 3 s while three
 *   quarters of the connections are in use. A body must be complete after 60 s and 1 s more for
 *   each 64 KiB, or after 5 s if the request is refused. An idle connection is kept for 60 s. A
 *   client that does not read what is sent to it for 60 s is cut off.
 *
 * The responses are the caller's: struct http_calls, called by the connections' threads.
 */
#ifndef GLM_SERVE_HTTP_H
#define GLM_SERVE_HTTP_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/serve/client_share.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Strings are borrowed until http_close. */
struct http_options {
	const char *host;
	uint16_t port;             /* 0: any that is free; see http_port */
	const char *api_key;       /* one or, separated by commas, several; NULL: none */
	const char *trusted_proxy; /* says in X-Forwarded-For who asks; an address; NULL: none */
	uint32_t client_share;     /* percent, client_share.h; 0: 75, or 100 where all are one client */
	const char *allow_host;    /* another name that the Host header may have; NULL: none */
	const char *cors; /* an origin that may use the API from its pages, or "*"; NULL: none */
	uint32_t max_connections;
	size_t max_body_bytes;
};

struct http;
struct exchange; /* a request and its response */

/* Why a request is refused; the caller writes the body. */
struct http_refusal {
	unsigned status;
	const char *code;    /* "invalid_api_key", ...; may be NULL */
	const char *message; /* a sentence */
};

/* A request that is over. */
struct http_done {
	unsigned status; /* 0: none was sent */
	bool gone;       /* the client did not take the whole response */
	uint64_t ns;     /* since its headers */
	uint64_t prompt_tokens, new_tokens;
	const char *note; /* of a refusal: the member at fault; never NULL */
};

struct http_calls {
	void *user;
	/* Returns 0: the path takes this method; 404; or 405, with *allow set to the methods that it
	 * takes. *open: no key is needed. *route: a static name for counting. */
	unsigned (*lookup)(void *user, const char *method, const char *path, bool *open,
		const char **route, const char **allow);
	void (*handle)(void *user,
		struct exchange *x); /* the whole body is there: exchange_reply or exchange_stream */
	void (*refuse)(
		void *user, const struct exchange *x, const struct http_refusal *why, struct buf *out);
	void (*sent)(void *user, const char *route, unsigned status); /* for counting */
	void (*done)(void *user, const struct exchange *x, const struct http_done *d);
	void (*cut)(void *user);  /* a connection was ended for being slow; for counting */
	void (*tick)(void *user); /* four times a second, from the watchdog's thread */
};

/* *out is set before the first call comes. */
int http_open(
	const struct http_options *o, const struct http_calls *calls, struct http **out, struct err *e);
uint16_t http_port(const struct http *h);
bool http_is_loopback(const struct http *h);
uint32_t http_connections(struct http *h);
struct client_stats http_clients(struct http *h);

/* Takes no new connections; waits until no exchange is under way, at most wait_ms. */
void http_quiesce(struct http *h, unsigned wait_ms);
bool http_is_ending(const struct http *h); /* http_quiesce was called */
void http_close(struct http *h);           /* cuts what is left; NULL is fine */

/* ---- an exchange, in handle ---- */

const char *exchange_method(const struct exchange *x);
const char *exchange_path(const struct exchange *x);
const char *exchange_body(const struct exchange *x, size_t *len);
const char *exchange_query(const struct exchange *x, const char *name);  /* NULL: absent */
const char *exchange_header(const struct exchange *x, const char *name); /* NULL: absent */
/* Who asks; borrowed until the exchange is over. */
struct client *exchange_client(const struct exchange *x);
/* Whether the client has closed the connection. A half-closed connection counts as closed. */
bool exchange_gone(const struct exchange *x);

/* A header for the response; name and value are copied. Before exchange_reply or exchange_stream.
 */
void exchange_set_header(struct exchange *x, const char *name, const char *value);

/* For http_calls.done. Until the end of the exchange; note is copied, and cut to 60 bytes. */
void exchange_set_tokens(struct exchange *x, uint64_t prompt_tokens, uint64_t new_tokens);
void exchange_set_note(struct exchange *x, const char *note);

/* Takes the bytes of `body`. Every handled exchange needs exactly one of the two. handle, next and
 * end are called in a scope (mem.h): when an allocation has failed in it, body is not used, and the
 * client gets 503. */
void exchange_reply(struct exchange *x, unsigned status, const char *type, struct buf *body);

/* A response that comes piece by piece. When `next` returns and an allocation has failed in its
 * scope, the connection is cut. next appends what there is to `out`, waiting at most about
 * 200 ms for it; false: that was the last. It is asked again until then, or until the client has
 * gone. `end` is called once, whatever happens. */
typedef bool exchange_next_fn(void *user, struct buf *out);
typedef void exchange_end_fn(void *user);
void exchange_stream(
	struct exchange *x, const char *type, exchange_next_fn *next, exchange_end_fn *end, void *user);

#endif
