/* SPDX-License-Identifier: MIT */
/* A list of the clients that hold something: at most as many as connections and answers. */
#include "src/serve/client_share.h"

#include "src/base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct client {
	struct client *next, **at;
	struct client_shares *shares;
	size_t held[CLIENT_N_HOLDINGS];
	uint64_t latest_serial; /* of its answers; of a client that is new: client_rank */
	uint32_t holders, running;
	size_t n; /* of id */
	unsigned char id[CLIENT_ID_MAX];
};

struct client_shares {
	pthread_mutex_t lock; /* guards all but `percent`; no other lock is taken under it */
	unsigned percent;     /* constant */
	struct client *first;
	uint64_t latest_serial; /* of all answers */
	struct client_stats stats;
};

struct client_shares *client_shares_new(unsigned percent)
{
	struct client_shares *s = mem_try_new(1, sizeof *s);
	if (!s)
		return NULL;
	s->percent = percent;
	pthread_mutex_init(&s->lock, NULL);
	return s;
}

void client_shares_free(struct client_shares *s)
{
	if (!s)
		return;
	pthread_mutex_destroy(&s->lock);
	free(s);
}

struct client *client_find(struct client_shares *s, const void *id, size_t n)
{
	if (!s || n > CLIENT_ID_MAX)
		return NULL;
	pthread_mutex_lock(&s->lock);
	struct client *c = s->first;
	while (c && (c->n != n || memcmp(c->id, id, n) != 0))
		c = c->next;
	if (!c && (c = mem_try_new(1, sizeof *c))) {
		c->shares = s;
		c->n = n;
		memcpy(c->id, id, n);
		c->latest_serial = s->latest_serial ? s->latest_serial - 1 : 0;
		c->next = s->first;
		c->at = &s->first;
		if (c->next)
			c->next->at = &c->next;
		s->first = c;
		s->stats.clients++;
	}
	if (c)
		c->holders++;
	pthread_mutex_unlock(&s->lock);
	return c;
}

struct client *client_hold(struct client *c)
{
	if (!c)
		return NULL;
	pthread_mutex_lock(&c->shares->lock);
	c->holders++;
	pthread_mutex_unlock(&c->shares->lock);
	return c;
}

void client_drop(struct client *c)
{
	if (!c)
		return;
	struct client_shares *s = c->shares;
	pthread_mutex_lock(&s->lock);
	bool last = !--c->holders;
	if (last) {
		*c->at = c->next;
		if (c->next)
			c->next->at = c->at;
		s->stats.clients--;
	}
	pthread_mutex_unlock(&s->lock);
	if (last)
		free(c);
}

/* Lock held. */
static bool rule_allows(
	const struct client *c, enum client_holding what, size_t more, size_t held, size_t limit)
{
	size_t own = c->held[what], others = held > own ? held - own : 0;
	size_t left = limit > others ? limit - others : 0;
	size_t most = left / 100 * c->shares->percent + (left % 100 * c->shares->percent + 99) / 100;
	return own <= most && more <= most - own;
}

static bool take(
	struct client *c, enum client_holding what, size_t more, size_t held, size_t limit, bool count)
{
	if (!c)
		return true;
	struct client_shares *s = c->shares;
	pthread_mutex_lock(&s->lock);
	bool may = s->percent >= 100 || rule_allows(c, what, more, held, limit);
	if (may && count)
		c->held[what] += more;
	if (!may)
		s->stats.refused[what]++;
	pthread_mutex_unlock(&s->lock);
	return may;
}

bool client_take(struct client *c, enum client_holding what, size_t more, size_t held, size_t limit)
{
	return take(c, what, more, held, limit, true);
}

bool client_may_take(
	struct client *c, enum client_holding what, size_t more, size_t held, size_t limit)
{
	return take(c, what, more, held, limit, false);
}

void client_count(struct client *c, enum client_holding what, size_t n)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->shares->lock);
	c->held[what] += n;
	pthread_mutex_unlock(&c->shares->lock);
}

void client_give(struct client *c, enum client_holding what, size_t n)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->shares->lock);
	c->held[what] -= n < c->held[what] ? n : c->held[what];
	pthread_mutex_unlock(&c->shares->lock);
}

size_t client_held(struct client *c, enum client_holding what)
{
	if (!c)
		return 0;
	pthread_mutex_lock(&c->shares->lock);
	size_t n = c->held[what];
	pthread_mutex_unlock(&c->shares->lock);
	return n;
}

void client_begin_answer(struct client *c, uint64_t serial)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->shares->lock);
	c->running++;
	c->latest_serial = serial;
	c->shares->latest_serial = serial;
	pthread_mutex_unlock(&c->shares->lock);
}

void client_end_answer(struct client *c)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->shares->lock);
	c->running--;
	pthread_mutex_unlock(&c->shares->lock);
}

uint64_t client_rank(struct client *c)
{
	if (!c)
		return 0;
	pthread_mutex_lock(&c->shares->lock);
	uint64_t rank = (uint64_t)c->running << CLIENT_SERIAL_BITS | c->latest_serial;
	pthread_mutex_unlock(&c->shares->lock);
	return rank;
}

struct client_stats client_shares_stats(struct client_shares *s)
{
	pthread_mutex_lock(&s->lock);
	struct client_stats stats = s->stats;
	pthread_mutex_unlock(&s->lock);
	return stats;
}

unsigned client_percent(const struct client *c)
{
	return c ? c->shares->percent : 100;
}
