/* SPDX-License-Identifier: MIT */
/*
 * Per-client limits on shared resources: connections, places in the queue, memory. A client is an
 * API key if the server has several, else an address (http/identity.h).
 *
 * The rule: a client may hold at most `percent` of (limit - what other clients hold), rounded up. A
 * client that is alone gets that percentage of the limit. Greedy clients converge to equal shares,
 * and a client that arrives later finds room. Nothing is taken away: a client above its share gets
 * no more until it is below. A client that holds nothing can always take one free unit.
 *
 * In order of use: client_find, once for each connection or request; client_take before a resource
 * is used and client_give after; client_drop. Any thread.
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
	CLIENT_BODIES, /* bytes of request bodies */
	CLIENT_N_HOLDINGS
};

struct client_shares; /* all clients */
struct client;        /* reference-counted */

/* percent: 1 to 100; 100 bounds nothing. NULL: out of memory. */
struct client_shares *client_shares_new(unsigned percent);
void client_shares_free(struct client_shares *s); /* when no client is held; NULL is fine */

#define CLIENT_ID_MAX 24

/* The client with the id id[n], n <= CLIENT_ID_MAX; created if there is none. The caller owns a
 * reference (client_drop). NULL: out of memory. All functions on a client accept NULL, and then
 * enforce no limit. */
struct client *client_find(struct client_shares *s, const void *id, size_t n);
struct client *client_hold(struct client *c); /* one more reference; returns c */
void client_drop(struct client *c);           /* after client_give of all that it took */

/* Adds `more` to what the client holds, if the rule allows it. held, limit: what all clients hold
 * now, and may hold; in units of `what`. False: refused, and counted in client_stats. Whether
 * held + more exceeds the limit is for the caller to check. */
bool client_take(
	struct client *c, enum client_holding what, size_t more, size_t held, size_t limit);
/* Returns, and counts, the same as client_take without adding anything. */
bool client_may_take(
	struct client *c, enum client_holding what, size_t more, size_t held, size_t limit);
void client_give(struct client *c, enum client_holding what, size_t n);
/* client_take without the rule. */
void client_count(struct client *c, enum client_holding what, size_t n);
size_t client_held(struct client *c, enum client_holding what);

/* The order in which clients get sessions: the lowest rank is next.
 * - Fewer running answers rank lower; among equals the client whose latest answer began earlier.
 * - A new client ranks as if its latest answer had begun just before the latest one of all. So it
 *   comes before the client of that one, but passes no client whose latest answer began earlier. A
 *   client that leaves and comes back is new as well; so it can pass a waiting client only once.
 * - serial: grows with each answer of any client, below 2^CLIENT_SERIAL_BITS; the rank's bits
 *   above it are the running answers. */
#define CLIENT_SERIAL_BITS 48
void client_begin_answer(struct client *c, uint64_t serial);
void client_end_answer(struct client *c);
uint64_t client_rank(struct client *c); /* of NULL: 0 */

struct client_stats {
	uint32_t clients; /* that exist now */
	uint64_t refused[CLIENT_N_HOLDINGS];
};
struct client_stats client_shares_stats(struct client_shares *s);
unsigned client_percent(const struct client *c); /* of the rule; 100 for NULL */

#endif
