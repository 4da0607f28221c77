/* SPDX-License-Identifier: MIT */
/* Who is cut while a response is sent: clients of a TCP connection on this machine that read
 * steadily, stop, or read a byte now and then. */
#include "src/base/host/clock.h"
#include "src/base/num.h"
#include "src/serve/http/connections.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define MS        1000000ull
#define PERIOD_NS (1000 * MS) /* the first client reads 50 times in it, twice would do */
#define LEAST     (32u << 10)
#define RUN_NS    (2500 * MS) /* at least; the watchdog looks every 250 ms */
#define MOST_NS   (60000 * MS)

static void count_cut(void *user)
{
	atomic_fetch_add((atomic_uint *)user, 1);
}

static void no_tick(void *user)
{
	(void)user;
}

struct pair {
	int server, client;
};

/* Small segments: a receiver of large ones opens its window in large steps. */
static struct pair pair_open(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	int listener = socket(AF_INET, SOCK_STREAM, 0), segment = 1400;
	struct pair p = {.client = socket(AF_INET, SOCK_STREAM, 0)};
	setsockopt(p.client, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
	assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
	assert_int_equal(connect(p.client, (struct sockaddr *)&a, sizeof a), 0);
	p.server = accept(listener, NULL, NULL);
	assert_true(p.server >= 0);
	close(listener);
	fcntl(p.server, F_SETFL, O_NONBLOCK);
	fcntl(p.client, F_SETFL, O_NONBLOCK);
	return p;
}

/* Each client reads so many bytes every 20 ms, while the server keeps its buffers full. False: this
 * thread was held up so long that the client which reads was cut, as it should be then. */
static bool try_progress(void)
{
	static char block[64 << 10];
	static const size_t bytes[] = {16 << 10, 0, 1};
	enum { N = ARRAY_LEN(bytes) };
	struct connection *c[N];
	struct pair pairs[N];
	bool cut[N] = {false};
	atomic_uint n_cut = 0;
	struct err e = {0};
	struct connections *l;
	const struct connections_options o = {
		.max = 8, .user = &n_cut, .cut = count_cut, .tick = no_tick};
	const struct sockaddr_in who = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(connections_open(&o, &l, &e), 0);
	for (size_t i = 0; i < N; i++) {
		pairs[i] = pair_open();
		c[i] = connection_open(l, pairs[i].server, (const struct sockaddr *)&who);
		assert_non_null(c[i]);
		connection_set_sending(c[i], PERIOD_NS, LEAST);
	}
	uint64_t last = clock_ns();
	bool held_up = false;
	for (uint64_t began = last, now = began;
		 now < began + RUN_NS ||
		 (now < began + MOST_NS && !(cut[1] && cut[2] && atomic_load(&n_cut) >= 2));
		 last = now, now = clock_ns(), held_up |= now - last > PERIOD_NS / 4) {
		for (size_t i = 0; i < N; i++) {
			while (send(pairs[i].server, block, sizeof block, MSG_NOSIGNAL) > 0)
				;
			cut[i] = errno == EPIPE; /* its socket was shut down */
			if (bytes[i])
				(void)!read(pairs[i].client, block, bytes[i]);
		}
		nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
	}
	const bool is_void = cut[0] && held_up;
	if (!is_void) {
		assert_false(cut[0]);
		assert_true(cut[1]);
		assert_true(cut[2]);
		assert_int_equal(atomic_load(&n_cut), 2);
	}
	for (size_t i = 0; i < N; i++) {
		connection_close(c[i]);
		close(pairs[i].server);
		close(pairs[i].client);
	}
	connections_free(l);
	return !is_void;
}

static void test_progress(void **state)
{
	(void)state;
	for (int tries = 0; !try_progress(); tries++)
		assert_true(tries < 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_progress)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
