/* SPDX-License-Identifier: MIT */
/*
 * A server whose device stops in the middle of an answer (lazy_device.h): the answer ends with an
 * error, later ones are refused with 500 and without a word of why, /health fails, and the server
 * ends in order.
 */
#include "src/base/log.h"
#include "src/engine/engine_internal.h"
#include "src/serve/server.h"
#include "tests/support/copier_null.h"
#include "tests/support/engine_help.h"
#include "tests/support/lazy_device.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#if HAVE_HTTP

#define PATIENCE_S 300
#define LONG_ANSWER                                                                                \
	"{\"prompt\": \"The river\", \"max_tokens\": 100000, \"ignore_eos\": true, \"stream\": true}"
#define SHORT_ANSWER "{\"prompt\": \"The river\", \"max_tokens\": 3}"

static struct copier *copier; /* of a card whose memory the host can read */
static struct engine *g;
static struct server *server;

static int stopped_device_setup(void **state)
{
	(void)state;
	struct err e = {0};
	alarm(PATIENCE_S); /* nothing may hang */
	log_set_level(LOG_QUIET);
	if (copier_null_open(&(struct copier_faults){.readable = true}, &copier, &e))
		return -1;
	const struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.context = 4096,
		.sessions = 2,
		.no_mtp = true,
		.copier = copier};
	g = engine_of(&o);
	lazy_device_start(g->stages->backend, false, 1);
	const struct server_options so = {
		.http = {.host = "127.0.0.1", .max_connections = 16, .max_body_bytes = 1 << 20},
		.sessions = 2,
		.queue = 4,
		.model_name = "pocket",
		.version = "test",
		.sampling = {.temperature = 1, .top_p = 1}};
	if (server_open(g, &so, &server, &e))
		fail_msg("%s", e.text);
	return 0;
}

/* A request on a connection of its own; its response is appended to out[size) until it ends.
 * *length: how much of it there is so far. Returns the status. */
static int request(const char *method, const char *path, const char *body, char *out, size_t size,
	atomic_size_t *length)
{
	char head[512];
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons(server_port(server)),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	int n = snprintf(head, sizeof head,
		"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
		"application/json\r\nContent-Length: %zu\r\n\r\n%s",
		method, path, strlen(body), body);
	assert_int_equal(send(fd, head, (size_t)n, MSG_NOSIGNAL), n);
	size_t got = 0;
	for (ssize_t more; got + 1 < size && (more = recv(fd, out + got, size - 1 - got, 0)) > 0;) {
		got += (size_t)more;
		out[got] = 0;
		if (length)
			atomic_store(length, got);
	}
	close(fd);
	return !strncmp(out, "HTTP/1.1 ", 9) ? atoi(out + 9) : 0;
}

static int ask(const char *method, const char *path, const char *body, char out[4096])
{
	*out = 0;
	return request(method, path, body, out, 4096, NULL);
}

static char streamed[1 << 22];
static atomic_size_t n_streamed;

static void *stream_main(void *arg)
{
	*(int *)arg =
		request("POST", "/v1/completions", LONG_ANSWER, streamed, sizeof streamed, &n_streamed);
	return NULL;
}

static void test_stopped_device(void **state)
{
	(void)state;
	char text[4096];
	pthread_t client;
	int status = 0;
	assert_int_equal(ask("GET", "/health", "", text), 200);
	assert_int_equal(ask("POST", "/v1/completions", SHORT_ANSWER, text), 200);
	assert_int_equal(pthread_create(&client, NULL, stream_main, &status), 0);
	while (atomic_load(&n_streamed) < 2000) /* in the middle */
		usleep(1000);
	lazy_device_stop();
	assert_int_equal(pthread_join(client, NULL), 0);
	assert_int_equal(status, 200); /* was sent before */
	assert_non_null(strstr(streamed, "could not be computed"));
	assert_null(strstr(streamed, "[DONE]"));
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ask("POST", "/v1/completions", SHORT_ANSWER, text), 500);
		assert_non_null(strstr(text, "could not be computed"));
		assert_null(strstr(text, "card"));
		assert_int_equal(ask("GET", "/health", "", text), 503);
		assert_non_null(strstr(text, "failing"));
	}
	assert_int_equal(ask("GET", "/metrics", "", text), 200);
}

/* The ordered end, too, must not wait for the device. */
static int stopped_device_teardown(void **state)
{
	(void)state;
	struct err e = {0};
	server_stop(server, 500);
	server_close(server);
	int rc = engine_close(g, &e);
	copier->ops->close(copier);
	return rc;
}

#else

static int stopped_device_setup(void **state)
{
	(void)state;
	return 0;
}

#define stopped_device_teardown stopped_device_setup

static void test_stopped_device(void **state)
{
	(void)state;
	skip(); /* built without the server */
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_stopped_device)};
	return cmocka_run_group_tests(tests, stopped_device_setup, stopped_device_teardown);
}
