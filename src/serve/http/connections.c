/* SPDX-License-Identifier: MIT */
/* A socket is shut down with the list locked, and a connection leaves the list before its
 * descriptor is closed: the watchdog never touches a descriptor that was reused. */
#include "src/serve/http/connections.h"

#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/http/identity.h"

#include <linux/tcp.h> /* the C library's struct tcp_info lacks tcpi_bytes_acked */
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#define SECOND          1000000000ull
#define HEADER_NS       (15 * SECOND)
#define HEADER_CROWD_NS (3 * SECOND)

struct connections {
	struct connections_options options; /* constant */
	pthread_t watchdog;
	bool watching;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake;
	struct connection *first;
	uint32_t n, n_over; /* of them `over` */
	bool stop;
};

/* *bytes: that the client's system has acknowledged since the connection was opened. False: this
 * system does not say. */
static bool bytes_acked(int fd, uint64_t *bytes)
{
	struct tcp_info info = {0};
	socklen_t n = sizeof info;
	const size_t end = offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked;
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) || n < end)
		return false;
	*bytes = info.tcpi_bytes_acked;
	return true;
}

/* Lock held. At the end of a period of sending: begins the next one if the client took enough. */
static bool renew_send_period(struct connection *c, uint64_t now)
{
	uint64_t acked;
	if (!c->least || !bytes_acked(c->fd, &acked) || acked - c->acked < c->least)
		return false;
	c->acked = acked;
	c->deadline_ns = now + c->period_ns;
	return true;
}

/* Lock held. 0: none. */
static uint64_t deadline_of(const struct connection *c, bool crowded)
{
	uint64_t deadline = c->deadline_ns, since = c->since_ns,
			 head = c->fresh ? atomic_load(&c->framed.head_ns) : 0;
	if (head) {
		since = head;
		deadline = head + HEADER_NS;
	}
	if ((crowded || c->over) && c->fresh && deadline)
		deadline = MIN(deadline, since + HEADER_CROWD_NS);
	return deadline;
}

/* Lock held. */
static unsigned cut_late(struct connections *l)
{
	uint64_t now = clock_ns();
	bool crowded = l->n >= l->options.max - l->options.max / 4;
	unsigned n = 0;
	for (struct connection *c = l->first; c; c = c->next) {
		uint64_t deadline = deadline_of(c, crowded);
		if (c->cut || !deadline || now < deadline || renew_send_period(c, now))
			continue;
		shutdown(c->fd, SHUT_RDWR);
		c->cut = true;
		n++;
	}
	return n;
}

static void *watchdog_main(void *arg)
{
	struct connections *l = arg;
	pthread_mutex_lock(&l->lock);
	while (!l->stop) {
		struct timespec until = cond_deadline(250000000);
		pthread_cond_timedwait(&l->wake, &l->lock, &until);
		unsigned n = cut_late(l);
		pthread_mutex_unlock(&l->lock);
		while (n--)
			l->options.cut(l->options.user);
		l->options.tick(l->options.user);
		pthread_mutex_lock(&l->lock);
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

int connections_open(const struct connections_options *o, struct connections **out, struct err *e)
{
	struct connections *l = *out = mem_try_new(1, sizeof *l);
	if (!l)
		return err_set(e, ERR_MEMORY, "no memory for the list of connections");
	l->options = *o;
	pthread_mutex_init(&l->lock, NULL);
	cond_init(&l->wake);
	int failed = pthread_create(&l->watchdog, NULL, watchdog_main, l);
	l->watching = !failed;
	return failed ? err_errno(e, failed, "the watchdog thread") : 0;
}

void connections_free(struct connections *l)
{
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->stop = true;
	pthread_cond_signal(&l->wake);
	pthread_mutex_unlock(&l->lock);
	if (l->watching)
		pthread_join(l->watchdog, NULL);
	pthread_cond_destroy(&l->wake);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

/* Held; NULL: unknown, or the trusted proxy. */
static struct client *client_of_address(
	const struct connections_options *o, const struct sockaddr *address)
{
	struct identity who = identity_of_address(address);
	if (!who.n || identity_is(address, o->trusted_proxy))
		return NULL;
	return client_find(o->shares, who.id, who.n);
}

struct connection *connection_open(struct connections *l, int fd, const struct sockaddr *address)
{
	const struct connections_options *o = &l->options;
	struct connection *c = mem_try_new(1, sizeof *c);
	if (!c)
		return NULL;
	int on = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	*c = (struct connection){.list = l,
		.fd = fd,
		.proxy = identity_is(address, o->trusted_proxy),
		.fresh = true,
		.since_ns = clock_ns()};
	atomic_store(&c->framed.head_ns, c->since_ns); /* the first header's clock starts here */
	framed_recv_attach(fd, &c->framed);
	c->client = client_of_address(o, address);
	pthread_mutex_lock(&l->lock);
	uint32_t held = l->n - l->n_over;
	c->over = held >= o->max                                                ? 503
			  : client_take(c->client, CLIENT_CONNECTIONS, 1, held, o->max) ? 0
																			: 429;
	l->n++;
	l->n_over += c->over != 0;
	c->next = l->first;
	c->at = &l->first;
	if (c->next)
		c->next->at = &c->next;
	l->first = c;
	pthread_mutex_unlock(&l->lock);
	return c;
}

void connection_close(struct connection *c)
{
	if (!c)
		return;
	struct connections *l = c->list;
	framed_recv_detach(c->fd);
	pthread_mutex_lock(&l->lock);
	*c->at = c->next;
	if (c->next)
		c->next->at = c->at;
	l->n--;
	l->n_over -= c->over != 0;
	pthread_mutex_unlock(&l->lock);
	if (!c->over)
		client_give(c->client, CLIENT_CONNECTIONS, 1);
	client_drop(c->client);
	free(c);
}

void connection_set_deadline(struct connection *c, uint64_t ns, bool fresh)
{
	pthread_mutex_lock(&c->list->lock);
	c->since_ns = clock_ns();
	c->deadline_ns = ns ? c->since_ns + ns : 0;
	c->fresh = fresh;
	c->least = 0;
	pthread_mutex_unlock(&c->list->lock);
}

void connection_extend(struct connection *c, uint64_t ns)
{
	pthread_mutex_lock(&c->list->lock);
	c->deadline_ns = c->since_ns + ns;
	c->fresh = false;
	pthread_mutex_unlock(&c->list->lock);
}

void connection_set_sending(struct connection *c, uint64_t ns, uint64_t bytes)
{
	uint64_t acked = 0;
	(void)bytes_acked(c->fd, &acked);
	pthread_mutex_lock(&c->list->lock);
	c->since_ns = clock_ns();
	c->deadline_ns = c->since_ns + ns;
	c->fresh = false;
	c->period_ns = ns;
	c->least = bytes;
	c->acked = acked;
	pthread_mutex_unlock(&c->list->lock);
}

uint32_t connections_count(struct connections *l)
{
	pthread_mutex_lock(&l->lock);
	uint32_t n = l->n;
	pthread_mutex_unlock(&l->lock);
	return n;
}

uint32_t connections_held(struct connections *l)
{
	pthread_mutex_lock(&l->lock);
	uint32_t n = l->n - l->n_over;
	pthread_mutex_unlock(&l->lock);
	return n;
}

bool connections_have_room(struct connections *l, const struct sockaddr *address)
{
	const uint32_t max = l->options.max;
	pthread_mutex_lock(&l->lock);
	uint32_t held = l->n - l->n_over;
	bool may_refuse = l->n_over < CONNECTIONS_OVER;
	pthread_mutex_unlock(&l->lock);
	if (may_refuse || held >= max)
		return may_refuse;
	/* one client's refused connections must not keep others out */
	struct client *c = client_of_address(&l->options, address);
	bool room = client_may_take(c, CLIENT_CONNECTIONS, 1, held, max);
	client_drop(c);
	return room;
}
