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
 *   together, and a client's share of these (client_share.h). A response that is not a stream
 *   counts for the memory of its client (budget.h) until the kernel has taken its last byte. A
 * connection counts for its address. A request of another client (known by one of several keys, or
 * behind a trusted proxy) counts as a connection of that client.
 * - Time. Headers must be complete 15 s after the connection or the first byte of a later request,
 *   3 s while three quarters of the connections are in use. A body must be complete after 60 s and
 *   1 s more for each 64 KiB, or after 5 s if the request is refused. An idle connection is kept
 *   for 60 s. While bytes of a response wait for the client, it must take 16 KiB of them, or all,
 *   in each 60 s: a slow client gets its response, one that reads a byte now and then does not hold
 *   a connection for ever.
 *
 * The responses are the caller's: struct http_calls. The connections' threads call these functions
 * at the same time, the watchdog's thread calls `cut` and `tick`.
 */
#ifndef GLM_SERVE_HTTP_H
#define GLM_SERVE_HTTP_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/serve/budget.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Strings are borrowed until http_close. */
struct http_options {
	const char *host;
	uint16_t port;             /* 0: any that is free (http_port) */
	const char *api_key;       /* one or, separated by commas, several; NULL: none */
	const char *trusted_proxy; /* says in X-Forwarded-For who asks; an address; NULL: none */
	uint32_t client_share;     /* percent, client_share.h; 0: 75, or 100 where all are one client */
	const char *allow_host;    /* another name that the Host header may have; NULL: none */
	const char *cors; /* an origin that may use the API from its pages, or "*"; NULL: none */
	uint32_t max_connections;
	size_t max_body_bytes;
	struct budget *budget; /* counts responses until they were taken; NULL: nothing does */
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
	/* The whole body has come: calls exchange_reply or exchange_stream. */
	void (*handle)(void *user, struct exchange *x);
	/* Appends the JSON body of a refusal to `out`. */
	void (*refuse)(
		void *user, const struct exchange *x, const struct http_refusal *why, struct buf *out);
	void (*sent)(void *user, const char *route, unsigned status); /* a response was queued */
	void (*done)(void *user, const struct exchange *x, const struct http_done *d);
	void (*cut)(void *user);  /* a connection was ended for being slow */
	void (*tick)(void *user); /* four times a second */
};

/* 0: http_open could listen there now. For before a large model is opened. Errors as of http_open:
 * ERR_USAGE for a host that is none, ERR_RUN when the address is in use. */
int http_check_address(const char *host, uint16_t port, struct err *e);

/* *out is set before any of `calls` is called, since these may use it. */
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
/* Whether the client has left. A connection whose sending side is closed counts as closed: both
 * look alike here, and nginx and uvicorn do the same. */
bool exchange_gone(const struct exchange *x);

/* A header for the response; name and value are copied. Before exchange_reply, at most four;
 * before exchange_stream, which adds two, at most two. */
void exchange_set_header(struct exchange *x, const char *name, const char *value);

/* What http_calls.done gets; may be called until `end` has returned. note is copied, and cut to 60
 * bytes. */
void exchange_set_tokens(struct exchange *x, uint64_t prompt_tokens, uint64_t new_tokens);
void exchange_set_note(struct exchange *x, const char *note);

/* Every handled exchange needs exactly one call of exchange_reply or exchange_stream. `handle` and
 * the functions of a stream run in a scope (mem.h). If an allocation has failed in that of
 * `handle`, the client gets 503 instead.
 *
 * exchange_reply responds with `body`, which it takes in any case. */
void exchange_reply(struct exchange *x, unsigned status, const char *type, struct buf *body);

/* A response with status 200 that comes in parts.
 * - next appends the next bytes to `out`, none if there are none within about 200 ms. It is called
 *   again until it returns false (these were the last) or the client has gone. If an allocation has
 *   failed in its scope, the connection is cut.
 * - end is called once, whatever happens. */
typedef bool exchange_next_fn(void *user, struct buf *out);
typedef void exchange_end_fn(void *user);
void exchange_stream(
	struct exchange *x, const char *type, exchange_next_fn *next, exchange_end_fn *end, void *user);

#endif
