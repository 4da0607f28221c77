/* SPDX-License-Identifier: MIT */
/* A table: clients with answers, and those that left ahead of the others. */
#include "src/serve/compute/client_time.h"

#include "src/base/num.h"

#include <string.h>

static bool has_answers(const struct client_time *c)
{
	return c->answers[CLIENT_READS] || c->answers[CLIENT_WRITES];
}

/* How far the client is ahead of the least-served one. */
static uint64_t lead_ns(const struct client_times *t, const struct client_time *c)
{
	uint64_t lead = 0;
	for (int w = 0; w < CLIENT_N_WORKS; w++)
		lead += c->used_ns[w] - MIN(c->used_ns[w], t->least_ns[w]);
	return lead;
}

static void entry_release(struct client_time *c)
{
	client_drop(c->client);
	*c = (struct client_time){0};
}

/* Frees the entries that say no more than a new one would. */
static void entries_forget(struct client_times *t)
{
	bool active = false;
	for (uint32_t i = 0; i < CLIENT_TIMES_MAX; i++)
		active = active || has_answers(&t->of[i]);
	for (uint32_t i = 0; i < CLIENT_TIMES_MAX; i++) {
		struct client_time *c = &t->of[i];
		if (c->client && !has_answers(c) && (!active || !lead_ns(t, c)))
			entry_release(c);
	}
}

/* The client's entry; else a free one; else that of the client without answers that is ahead by
 * least. */
static struct client_time *entry_find(struct client_times *t, const struct client *client)
{
	struct client_time *best = NULL;
	uint64_t least = UINT64_MAX;
	for (uint32_t i = 0; i < CLIENT_TIMES_MAX; i++) {
		struct client_time *c = &t->of[i];
		uint64_t lead = c->client ? lead_ns(t, c) : 0;
		if (c->client == client)
			return c;
		if (!has_answers(c) && lead < least) {
			best = c;
			least = lead;
		}
	}
	return best;
}

struct client_time *client_time_join(
	struct client_times *t, struct client *client, enum client_work work)
{
	if (!client)
		return NULL;
	struct client_time *c = entry_find(t, client);
	if (c->client != client) {
		if (c->client)
			entry_release(c);
		c->client = client_hold(client);
	}
	if (!c->answers[work]++)
		c->used_ns[work] = MAX(c->used_ns[work], t->least_ns[work]);
	return c;
}

void client_time_leave(struct client_times *t, struct client_time *c, enum client_work work)
{
	if (!c)
		return;
	c->answers[work]--;
	if (!has_answers(c))
		entries_forget(t);
}

const struct client_time *client_time_find(
	const struct client_times *t, const struct client *client)
{
	for (uint32_t i = 0; client && i < CLIENT_TIMES_MAX; i++)
		if (t->of[i].client == client)
			return &t->of[i];
	return NULL;
}

void client_times_fini(struct client_times *t)
{
	entries_forget(t);
}

void client_time_least(
	struct client_times *t, struct client_time *const *of, uint32_t n, enum client_work work)
{
	uint64_t least = UINT64_MAX;
	for (uint32_t i = 0; i < n; i++) {
		if (!of[i])
			continue;
		of[i]->used_ns[work] = MAX(of[i]->used_ns[work], t->least_ns[work]);
		least = MIN(least, of[i]->used_ns[work]);
	}
	if (least != UINT64_MAX)
		t->least_ns[work] = MAX(t->least_ns[work], least);
}

bool client_time_may(const struct client_times *t, const struct client_time *c,
	enum client_work work, uint64_t tolerance_ns)
{
	return !c || c->used_ns[work] <= t->least_ns[work] + tolerance_ns;
}

void client_time_charge(struct client_time *c, enum client_work work, uint64_t ns)
{
	if (c)
		c->used_ns[work] += ns;
}
