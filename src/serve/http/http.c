/* SPDX-License-Identifier: MIT */
/* The callbacks of libmicrohttpd, and the responses that it gets. Its own timeout is off:
 * connections.h. */
#if HAVE_HTTP
#include "src/serve/http/http.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/http/connections.h"
#include "src/serve/http/identity.h"
#include "src/text/utf8.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND       1000000000ull
#define IDLE_NS      (60 * SECOND)
#define BODY_NS      (60 * SECOND)
#define BODY_BYTES_S (64u << 10)   /* a second more for each so many bytes */
#define REFUSED_NS   (5 * SECOND)  /* for the whole body of a refused request */
#define SEND_NS      (60 * SECOND) /* in which a client takes SEND_BYTES of a response */
#define SEND_BYTES   STREAM_BLOCK
#define HEADER_BYTES (32u << 10)
/* A body up to so many times too long is read and dropped: then its sender can read the refusal. */
#define DRAIN_FACTOR  4
#define BODIES_FACTOR 8  /* all bodies together, in largest bodies */
#define SHARE         75 /* percent */
#define NO_MEMORY     "the server has no memory for this request; try again in 2 s"
#define STREAM_BLOCK  (16u << 10)
#define THREAD_STACK  ((size_t)2 << 20)

struct http {
	struct http_options options; /* constant */
	struct http_calls calls;     /* constant */
	struct MHD_Daemon *daemon;
	uint16_t port;                /* constant */
	bool loopback;                /* constant */
	struct client_shares *shares; /* constant */
	atomic_bool ending;
	atomic_uint exchanges;    /* under way */
	atomic_size_t body_bytes; /* held by all exchanges */
	struct connections *connections;
};

struct exchange {
	struct http *http;
	struct MHD_Connection *mhd;
	struct connection *connection;
	char *method, *path;
	const char *route, *allow;
	struct buf body;
	size_t received;
	struct budget_part response; /* of exchange_reply, until it was sent */
	struct http_refusal refusal; /* status 0: none */
	bool drop;                   /* the body is read and not kept */
	bool close;                  /* the connection ends with the response */
	struct client *client;       /* held; NULL: unknown */
	bool counted;                /* as a connection of this client, which is not the connection's */
	struct {
		char *name, *value;
	} headers[4];
	unsigned n_headers, status;
	uint64_t began_ns, prompt_tokens, new_tokens;
	char note[61];
	/* stream */
	exchange_next_fn *next;
	exchange_end_fn *end;
	void *user;
	struct buf pending;
	size_t sent; /* of pending */
	bool finished;
};

/* ---- connections ---- */

static void on_connection(void *cls, struct MHD_Connection *mhd, void **socket_context,
	enum MHD_ConnectionNotificationCode code)
{
	struct http *h = cls;
	if (code != MHD_CONNECTION_NOTIFY_STARTED) {
		connection_close(*socket_context);
		*socket_context = NULL;
		return;
	}
	int fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
	*socket_context = connection_open(h->connections, fd,
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
}

/* NULL: there was no memory for it. */
static struct connection *connection_of(struct MHD_Connection *mhd)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	return info->socket_context;
}

/* ---- who may ask ---- */

/* -1: no key of ours. */
static int key_of(const struct exchange *x)
{
	return identity_find_key(x->http->options.api_key, exchange_header(x, "Authorization"),
		exchange_header(x, "x-api-key"));
}

static bool same_word(const char *s, size_t n, const char *word)
{
	return word && strlen(word) == n && !strncasecmp(s, word, n);
}

/* An address in digits: no name server can make it another machine's. */
static bool is_address(const char *s, size_t n)
{
	char text[64];
	struct in6_addr a;
	bool six = *s == '[' && n > 2;
	if (n >= sizeof text)
		return false;
	snprintf(text, sizeof text, "%.*s", (int)(six ? n - 2 : n), six ? s + 1 : s);
	return inet_pton(six ? AF_INET6 : AF_INET, text, &a) == 1;
}

/* Whether "name:port" names this machine. */
static bool is_own_host(const struct http *h, const char *s)
{
	size_t n = *s == '[' ? strcspn(s, "]") + 1 : strcspn(s, ":");
	n = MIN(n, strlen(s));
	if (s[n] && s[n] != ':')
		return false;
	if (!h->loopback && is_address(s, n))
		return true;
	return same_word(s, n, "localhost") || same_word(s, n, "127.0.0.1") ||
		   same_word(s, n, "[::1]") || same_word(s, n, h->options.host) ||
		   same_word(s, n, h->options.allow_host);
}

static bool origin_allowed(const struct exchange *x, const char *origin)
{
	const char *cors = x->http->options.cors, *host = exchange_header(x, "Host");
	if (cors && (!strcmp(cors, "*") || !strcasecmp(cors, origin)))
		return true;
	const char *name = strstr(origin, "://");
	return host && name && !strcasecmp(name + 3, host); /* our own page */
}

static void exchange_refuse(
	struct exchange *x, unsigned status, const char *code, const char *message)
{
	if (!x->refusal.status)
		x->refusal = (struct http_refusal){status, code, message};
	x->drop = true;
}

/* The head must have passed the strict framing, and is right. After a fault the connection ends:
 * what follows on it means nothing. */
static bool framing_refuses(struct exchange *x)
{
	const struct framing *f = &x->connection->framed.framing;
	const struct framing_fault fault = framing_fault(f);
	if (!fault.status && framing_has_head(f))
		return false;
	if (fault.status)
		exchange_refuse(x, fault.status, "bad_request", fault.message);
	else
		exchange_refuse(x, 500, "internal", "the framing of the request was not checked");
	x->close = true;
	return true;
}

static void exchange_check(struct exchange *x)
{
	const struct http *h = x->http;
	const char *host = exchange_header(x, "Host"), *origin = exchange_header(x, "Origin");
	bool open = false;
	unsigned status =
		h->calls.lookup(h->calls.user, x->method, x->path, &open, &x->route, &x->allow);
	if ((h->loopback || !h->options.api_key) && host && !is_own_host(h, host))
		exchange_refuse(x, 403, "host_not_allowed",
			"the Host header does not name this machine; --allow-host NAME allows another name");
	else if (origin && !origin_allowed(x, origin))
		exchange_refuse(x, 403, "origin_not_allowed",
			"web pages of this origin may not use this server; --cors ORIGIN allows one");
	else if (!strcmp(x->method, "OPTIONS") && status != 404)
		exchange_refuse(x, 204, NULL, ""); /* a preflight of CORS */
	else if (h->options.api_key && !open && key_of(x) < 0)
		exchange_refuse(x, 401, "invalid_api_key", "the API key is missing or wrong");
	else if (status == 404)
		exchange_refuse(x, 404, "not_found", "there is nothing at this path");
	else if (status)
		exchange_refuse(x, status, "method_not_allowed", "this path does not take this method");
}

/* ---- whose request ---- */

/* A header may come in several lines: the last is the proxy's. */
static enum MHD_Result find_forwarded(
	void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
	(void)kind;
	if (!strcasecmp(name, "X-Forwarded-For"))
		*(struct identity *)cls = identity_of_forwarded(value ? value : "");
	return MHD_YES;
}

static void exchange_find_client(struct exchange *x)
{
	struct http *h = x->http;
	struct identity who = {{0}, 0};
	int key = identity_has_several(h->options.api_key) ? key_of(x) : -1;
	if (key >= 0)
		who = identity_of_key(key);
	else if (x->connection->proxy)
		MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, find_forwarded, &who);
	if (!who.n && x->connection->proxy) /* it names no client: all its requests count as one's */
		who = identity_of_forwarded(h->options.trusted_proxy);
	if (!who.n) {
		x->client = client_hold(x->connection->client);
		return;
	}
	x->client = client_find(h->shares, who.id, who.n);
	x->counted = client_take(x->client, CLIENT_CONNECTIONS, 1, connections_held(h->connections),
		h->options.max_connections);
	if (!x->counted)
		exchange_refuse(x, 429, "client_share",
			"this client has too many requests open at the same time; try again in 2 s");
}

/* ---- bodies ---- */

static void let_body_go(struct exchange *x)
{
	atomic_fetch_sub(&x->http->body_bytes, x->body.cap);
	client_give(x->client, CLIENT_BODIES, x->body.cap);
	buf_free(&x->body);
}

static void take_body(struct exchange *x, const char *data, size_t n)
{
	struct http *h = x->http;
	x->received += n;
	if (x->drop)
		return;
	if (x->received > h->options.max_body_bytes) {
		exchange_refuse(x, 413, "request_too_large", "the body of the request is too large");
		let_body_go(x);
		return;
	}
	size_t before = x->body.cap;
	buf_append(&x->body, data, n);
	if (mem_scope_failed()) {
		exchange_refuse(x, 503, "out_of_memory", NO_MEMORY);
		atomic_fetch_add(&h->body_bytes, x->body.cap - before);
		client_count(x->client, CLIENT_BODIES, x->body.cap - before);
		let_body_go(x);
		return;
	}
	size_t more = x->body.cap - before, most = h->options.max_body_bytes * BODIES_FACTOR,
		   held = atomic_fetch_add(&h->body_bytes, more);
	bool share = client_take(x->client, CLIENT_BODIES, more, held, most);
	if (!share) { /* the bytes are counted until let_body_go */
		client_count(x->client, CLIENT_BODIES, more);
		exchange_refuse(x, 429, "client_share",
			"this client sends too many large requests at the same time; try again in 2 s");
		let_body_go(x);
	} else if (held + more > most) {
		exchange_refuse(x, 503, "overloaded", "too many large requests at the same time");
		let_body_go(x);
	}
}

/* ---- responses ---- */

static void exchange_drop_headers(struct exchange *x)
{
	for (unsigned i = 0; i < x->n_headers; i++) {
		free(x->headers[i].name);
		free(x->headers[i].value);
	}
	x->n_headers = 0;
}

static enum MHD_Result response_queue(
	struct exchange *x, struct MHD_Response *response, unsigned status, const char *type)
{
	struct http *h = x->http;
	const char *origin = exchange_header(x, "Origin");
	if (type)
		MHD_add_response_header(response, "Content-Type", type);
	MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
	for (unsigned i = 0; i < x->n_headers; i++)
		MHD_add_response_header(response, x->headers[i].name, x->headers[i].value);
	if (h->options.cors && origin && origin_allowed(x, origin)) {
		MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
		MHD_add_response_header(response, "Vary", "Origin");
		if (status == 204) {
			const char *wanted = exchange_header(x, "Access-Control-Request-Headers");
			MHD_add_response_header(
				response, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
			MHD_add_response_header(
				response, "Access-Control-Allow-Headers", wanted ? wanted : "*");
			MHD_add_response_header(response, "Access-Control-Max-Age", "600");
		}
	}
	if (x->close)
		MHD_add_response_header(response, "Connection", "close");
	x->status = status;
	enum MHD_Result rc = MHD_queue_response(x->mhd, status, response);
	MHD_destroy_response(response);
	connection_set_sending(x->connection, SEND_NS, SEND_BYTES);
	h->calls.sent(h->calls.user, x->route ? x->route : "other", status);
	return rc;
}

/* Takes the bytes. NULL: memory is exhausted. */
static struct MHD_Response *response_of(struct buf *body)
{
	size_t n = body->len;
	char *data = n ? buf_take(body) : NULL;
	struct MHD_Response *response = MHD_create_response_from_buffer(
		n, data ? data : (char *)"", data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
	if (!response)
		free(data);
	buf_free(body);
	return response;
}

static enum MHD_Result answer_refusal(struct exchange *x)
{
	struct buf body = {0};
	mem_scope_clear();
	if (x->refusal.status != 204)
		x->http->calls.refuse(x->http->calls.user, x, &x->refusal, &body);
	if (mem_scope_failed()) { /* the response has no body */
		buf_free(&body);
		mem_scope_clear();
	}
	size_t n = body.len;
	struct MHD_Response *response = response_of(&body);
	if (!response)
		return MHD_NO;
	if (x->refusal.status == 401)
		MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
	if (x->allow)
		MHD_add_response_header(response, "Allow", x->allow);
	if (x->refusal.status == 503 || x->refusal.status == 429)
		MHD_add_response_header(response, "Retry-After", "2");
	return response_queue(x, response, x->refusal.status, n ? "application/json" : NULL);
}

static ssize_t read_stream(void *cls, uint64_t pos, char *out, size_t max)
{
	struct exchange *x = cls;
	struct mem_scope scope;
	(void)pos;
	connection_set_deadline(x->connection, 0, false);
	while (x->sent == x->pending.len) {
		buf_clear(&x->pending);
		x->sent = 0;
		if (x->finished)
			return MHD_CONTENT_READER_END_OF_STREAM;
		mem_scope_begin(&scope);
		x->finished = !x->next(x->user, &x->pending);
		if (mem_scope_end(&scope) || (!x->finished && exchange_gone(x)))
			return MHD_CONTENT_READER_END_WITH_ERROR;
	}
	size_t n = MIN(max, x->pending.len - x->sent);
	memcpy(out, x->pending.data + x->sent, n);
	x->sent += n;
	connection_set_sending(x->connection, SEND_NS, SEND_BYTES);
	return (ssize_t)n;
}

/* ---- the library's calls ---- */

/* on_call, in a scope. */
static enum MHD_Result take_call(void *cls, struct MHD_Connection *mhd, const char *url,
	const char *method, const char *version, const char *upload, size_t *upload_size,
	void **con_cls)
{
	struct http *h = cls;
	struct exchange *x = *con_cls;
	(void)version; /* framing.h has looked at it */
	if (!connection_of(mhd))
		return MHD_NO;
	if (!x) {
		char *own_method = mem_strdup(method), *own_path = mem_strdup(url);
		x = NEW(struct exchange);
		if (!own_method || !own_path || !x) {
			free(own_method);
			free(own_path);
			free(x);
			return MHD_NO;
		}
		*con_cls = x;
		*x = (struct exchange){
			.http = h, .mhd = mhd, .connection = connection_of(mhd), .began_ns = clock_ns()};
		x->method = own_method;
		x->path = own_path;
		atomic_fetch_add(&h->exchanges, 1);
		if (framing_refuses(x))
			return answer_refusal(x);
		exchange_check(x);
		if (x->connection->over) {
			exchange_refuse(x, x->connection->over,
				x->connection->over == 429 ? "client_share" : "overloaded",
				x->connection->over == 429
					? "this client has too many connections; try again in 2 s"
					: "there are too many connections; try again in 2 s");
			x->close = true;
		} else if (!x->refusal.status) {
			exchange_find_client(x);
		}
		const char *length = exchange_header(x, "Content-Length");
		unsigned long long n = length ? strtoull(length, NULL, 10) : 0;
		if (n > h->options.max_body_bytes)
			exchange_refuse(x, 413, "request_too_large", "the body of the request is too large");
		/* nobody waits for the end of a body that is far too long, or that was not sent yet */
		if (x->refusal.status &&
			(n > (unsigned long long)h->options.max_body_bytes * DRAIN_FACTOR ||
				exchange_header(x, "Expect")))
			return answer_refusal(x);
		connection_set_deadline(x->connection, x->refusal.status ? REFUSED_NS : BODY_NS, true);
		return MHD_YES;
	}
	if (*upload_size) {
		take_body(x, upload, *upload_size);
		*upload_size = 0;
		if (x->received > h->options.max_body_bytes * DRAIN_FACTOR)
			return MHD_NO;
		if (x->refusal.status) /* its deadline stays, and the shorter one of a crowd applies */
			return MHD_YES;
		connection_extend(x->connection, BODY_NS + x->received / BODY_BYTES_S * SECOND);
		return MHD_YES;
	}
	if (framing_refuses(x) || x->refusal.status)
		return answer_refusal(x);
	if (x->status)
		return MHD_YES;
	connection_set_deadline(x->connection, 0, false);
	h->calls.handle(h->calls.user, x);
	return x->status ? MHD_YES : MHD_NO;
}

static enum MHD_Result on_call(void *cls, struct MHD_Connection *mhd, const char *url,
	const char *method, const char *version, const char *upload, size_t *upload_size,
	void **con_cls)
{
	struct mem_scope scope;
	mem_scope_begin(&scope);
	enum MHD_Result rc = take_call(cls, mhd, url, method, version, upload, upload_size, con_cls);
	mem_scope_end(&scope);
	return rc;
}

static void on_completed(
	void *cls, struct MHD_Connection *mhd, void **con_cls, enum MHD_RequestTerminationCode code)
{
	struct http *h = cls;
	(void)mhd;
	struct exchange *x = *con_cls;
	struct mem_scope scope;
	if (!x)
		return;
	*con_cls = NULL;
	mem_scope_begin(&scope);
	if (x->end)
		x->end(x->user);
	h->calls.done(h->calls.user, x,
		&(struct http_done){.status = x->status,
			.gone = code != MHD_REQUEST_TERMINATED_COMPLETED_OK,
			.ns = clock_ns() - x->began_ns,
			.prompt_tokens = x->prompt_tokens,
			.new_tokens = x->new_tokens,
			.note = x->note});
	let_body_go(x);
	budget_release(&x->response);
	buf_free(&x->pending);
	exchange_drop_headers(x);
	free(x->method);
	free(x->path);
	if (x->counted)
		client_give(x->client, CLIENT_CONNECTIONS, 1);
	client_drop(x->client);
	connection_set_deadline(x->connection, IDLE_NS, true);
	free(x);
	mem_scope_end(&scope);
	atomic_fetch_sub(&h->exchanges, 1);
}

static void on_log(void *cls, const char *fmt, va_list ap)
{
	(void)cls;
	char line[512];
	vsnprintf(line, sizeof line, fmt, ap);
	line[strcspn(line, "\n")] = 0;
	log_verbose("http: %s", line);
}

/* A connection beyond the limit is closed at once if it cannot even get a refusal. */
static enum MHD_Result on_accept(void *cls, const struct sockaddr *address, socklen_t length)
{
	struct http *h = cls;
	(void)length;
	return connections_have_room(h->connections, address) ? MHD_YES : MHD_NO;
}

/* ---- open and close ---- */

static bool is_loopback(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
	if (a->sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
	return false;
}

static int open_socket(struct http *h, int *out, struct err *e)
{
	const struct http_options *o = &h->options;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
					*list = NULL;
	char port[8];
	snprintf(port, sizeof port, "%u", o->port);
	int rc = getaddrinfo(o->host, port, &hints, &list), failed = 0, fd = -1;
	if (rc)
		return err_set(e, ERR_USAGE, "--host %s: %s", o->host, gai_strerror(rc));
	for (struct addrinfo *a = list; a; a = a->ai_next) {
		int on = 1;
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd >= 0) {
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
			if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 128)) {
				h->loopback = is_loopback(a->ai_addr);
				break;
			}
		}
		failed = errno;
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	if (fd < 0) {
		err_set(e, ERR_RUN, "%s port %s: %s", o->host, port, strerror(failed));
		if (failed == EADDRINUSE)
			err_hint(e, "--port N takes another port, 0 any that is free");
		return ERR_RUN;
	}
	struct sockaddr_storage name;
	socklen_t len = sizeof name;
	if (!getsockname(fd, (struct sockaddr *)&name, &len))
		h->port =
			ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&name)->sin6_port
											 : ((struct sockaddr_in *)(void *)&name)->sin_port);
	*out = fd;
	return 0;
}

int http_check_address(const char *host, uint16_t port, struct err *e)
{
	struct http h = {.options = {.host = host, .port = port}};
	int fd, rc = open_socket(&h, &fd, e);
	if (!rc)
		close(fd);
	return rc;
}

int http_open(
	const struct http_options *o, const struct http_calls *calls, struct http **out, struct err *e)
{
	struct http *h = NEW(struct http);
	int fd = -1;
	*out = NULL;
	h->options = *o;
	h->calls = *calls;
	int rc = open_socket(h, &fd, e);
	if (!rc) {
		bool all_one = h->loopback && !identity_has_several(o->api_key) && !o->trusted_proxy;
		h->shares = client_shares_new(o->client_share ? o->client_share : all_one ? 100 : SHARE);
		if (!h->shares)
			rc = err_set(e, ERR_MEMORY, "no memory for the clients' shares");
	}
	if (!rc)
		rc = connections_open(&(struct connections_options){.max = o->max_connections,
								  .trusted_proxy = o->trusted_proxy,
								  .shares = h->shares,
								  .user = calls->user,
								  .cut = calls->cut,
								  .tick = calls->tick},
			&h->connections, e);
	if (!rc) {
		*out = h; /* before there are threads that use what the caller keeps here */
		unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
						 MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
		h->daemon = MHD_start_daemon(flags, 0, on_accept, h, on_call, h, MHD_OPTION_EXTERNAL_LOGGER,
			on_log, NULL, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd, MHD_OPTION_CONNECTION_LIMIT,
			(unsigned)o->max_connections + CONNECTIONS_OVER, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
			(size_t)HEADER_BYTES, MHD_OPTION_THREAD_STACK_SIZE, THREAD_STACK,
			MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
			MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
			MHD_OPTION_END);
		if (!h->daemon)
			rc = err_set(e, ERR_RUN, "libmicrohttpd does not start");
	}
	if (rc) {
		if (fd >= 0)
			close(fd);
		http_close(h);
		*out = NULL;
	}
	return rc;
}

uint16_t http_port(const struct http *h)
{
	return h->port;
}

bool http_is_loopback(const struct http *h)
{
	return h->loopback;
}

uint32_t http_connections(struct http *h)
{
	return connections_count(h->connections);
}

struct client_stats http_clients(struct http *h)
{
	return client_shares_stats(h->shares);
}

void http_quiesce(struct http *h, unsigned wait_ms)
{
	if (!atomic_exchange(&h->ending, true)) {
		MHD_socket fd = MHD_quiesce_daemon(h->daemon);
		if (fd != MHD_INVALID_SOCKET)
			close(fd);
	}
	uint64_t until = clock_ns() + wait_ms * 1000000ull;
	while (atomic_load(&h->exchanges) && clock_ns() < until)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

bool http_is_ending(const struct http *h)
{
	return atomic_load(&h->ending);
}

void http_close(struct http *h)
{
	if (!h)
		return;
	atomic_store(&h->ending, true);
	if (h->daemon)
		MHD_stop_daemon(h->daemon);
	connections_free(h->connections);
	client_shares_free(h->shares);
	free(h);
}

/* ---- exchanges ---- */

const char *exchange_method(const struct exchange *x)
{
	return x->method;
}

const char *exchange_path(const struct exchange *x)
{
	return x->path;
}

const char *exchange_body(const struct exchange *x, size_t *len)
{
	*len = x->body.len;
	return buf_str(&x->body);
}

const char *exchange_query(const struct exchange *x, const char *name)
{
	return MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, name);
}

const char *exchange_header(const struct exchange *x, const char *name)
{
	return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

struct client *exchange_client(const struct exchange *x)
{
	return x->client;
}

bool exchange_gone(const struct exchange *x)
{
	/* not recv: bytes of a next request may lie before the end */
	struct pollfd p = {.fd = x->connection->fd, .events = POLLRDHUP};
	return poll(&p, 1, 0) > 0;
}

void exchange_set_header(struct exchange *x, const char *name, const char *value)
{
	if (x->n_headers == ARRAY_LEN(x->headers))
		bug("more than %zu headers", ARRAY_LEN(x->headers));
	char *own_name = mem_strdup(name), *own_value = mem_strdup(value);
	if (!own_name || !own_value) {
		free(own_name);
		free(own_value);
		return;
	}
	x->headers[x->n_headers].name = own_name;
	x->headers[x->n_headers++].value = own_value;
}

void exchange_set_tokens(struct exchange *x, uint64_t prompt_tokens, uint64_t new_tokens)
{
	x->prompt_tokens = prompt_tokens;
	x->new_tokens = new_tokens;
}

void exchange_set_note(struct exchange *x, const char *note)
{
	snprintf(x->note, sizeof x->note, "%s", note);
}

void exchange_reply(struct exchange *x, unsigned status, const char *type, struct buf *body)
{
	x->response =
		(struct budget_part){.budget = x->http->options.budget, .client = client_hold(x->client)};
	budget_count(&x->response, body->cap);
	struct MHD_Response *response = mem_scope_failed() ? NULL : response_of(body);
	if (response) {
		response_queue(x, response, status, type);
		return;
	}
	buf_free(body);
	budget_release(&x->response);
	exchange_drop_headers(x);
	exchange_set_note(x, "out_of_memory");
	x->refusal = (struct http_refusal){503, "out_of_memory", NO_MEMORY};
	answer_refusal(x);
}

void exchange_stream(
	struct exchange *x, const char *type, exchange_next_fn *next, exchange_end_fn *end, void *user)
{
	x->next = next;
	x->end = end;
	x->user = user;
	exchange_set_header(x, "Cache-Control", "no-cache");
	exchange_set_header(x, "X-Accel-Buffering", "no");
	struct MHD_Response *response = mem_scope_failed()
										? NULL
										: MHD_create_response_from_callback(
											  MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
	if (response)
		response_queue(x, response, 200, type);
	else
		exchange_reply(x, 503, NULL, &(struct buf){0});
}

#endif
