/* SPDX-License-Identifier: MIT */
/*
 * Clients, and what each of them may hold of what all share: connections, places in the queue,
 * memory. A client is an API key where there are several, else an address (http/identity.h).
 *
 * The rule: a client may hold `percent` of what the others leave. Alone it gets that part of
 * everything; what others hold makes its part smaller, so that clients who want as much as they can
 * get come to hold the same, and somebody who comes later finds room. Nothing is taken away: a
 * client above its part gets no more until it is below. One place, connection or byte that is free
 * may always be taken by a client that holds none.
 */
#ifndef GLM_SERVE_CLIENT_SHARE_H
#define GLM_SERVE_CLIENT_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum client_holding {
	CLIENT_CONNECTIONS,
	CLIENT_PLACES, /* in the queue */
	CLIENT_MEMORY, /* bytes, budget.h */
	CLIENT_BODIES, /* bytes of bodies */
	CLIENT_N_HOLDINGS
};

struct client_shares; /* all clients; any thread */
struct client;        /* exists while somebody holds it */

/* percent: 1 to 100; 100 bounds nothing. NULL: out of memory. */
struct client_shares *client_shares_new(unsigned percent);
void client_shares_free(struct client_shares *s); /* when no client is held; NULL is fine */

#define CLIENT_ID_MAX 24

/* The client of this id [n <= CLIENT_ID_MAX], new or known, held for the caller. NULL: out of
 * memory; everything below takes NULL for a client without bounds. */
struct client *client_find(struct client_shares *s, const void *id, size_t n);
struct client *client_hold(struct client *c); /* returns c */
void client_drop(struct client *c);

/* Counts `more` for the client, unless the rule is against it: all clients together hold `held` of
 * `limit` now. False is counted as a refusal. */
bool client_take(
	struct client *c, enum client_holding what, size_t more, size_t held, size_t limit);
/* What client_take would say. */
bool client_may_take(
	struct client *c, enum client_holding what, size_t more, size_t held, size_t limit);
void client_give(struct client *c, enum client_holding what, size_t n);
void client_count(struct client *c, enum client_holding what, size_t n); /* without the rule */
size_t client_held(struct client *c, enum client_holding what);

/* Answers get sessions in turn: the client with the lowest rank is next. It has the fewest answers
 * running, and of several such clients it is the one that got a session the longest time ago.
 * turn: counts all answers. */
void client_begin_answer(struct client *c, uint64_t turn);
void client_end_answer(struct client *c);
uint64_t client_rank(struct client *c); /* of NULL and of a client that is new: 0 */

struct client_stats {
	uint32_t clients;
	uint64_t refused[CLIENT_N_HOLDINGS];
};
struct client_stats client_shares_stats(struct client_shares *s);
unsigned client_percent(const struct client *c);

#endif
