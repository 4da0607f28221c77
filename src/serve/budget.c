/* SPDX-License-Identifier: MIT */
/* Counting. After a large request malloc_trim returns free memory to the system: the allocator
 * would otherwise keep what a burst of requests took. */
#include "src/serve/budget.h"

#include <stdbool.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define TRIM_BYTES ((size_t)16 << 20)

size_t budget_most(const struct budget *b)
{
	return b->limit / 2;
}

static void note_peak(struct budget *b, size_t held)
{
	size_t peak = atomic_load(&b->peak);
	while (peak < held && !atomic_compare_exchange_weak(&b->peak, &peak, held))
		;
}

/* bytes <= p->bytes */
static void shrink(struct budget_part *p, size_t bytes)
{
	atomic_fetch_sub(&p->budget->held, p->bytes - bytes);
	client_give(p->client, CLIENT_MEMORY, p->bytes - bytes);
	p->bytes = bytes;
}

/* held may be above the limit: budget_count. */
static bool has_room(const struct budget *b, size_t held, size_t more)
{
	return held <= b->limit && more <= b->limit - held;
}

enum budget_answer budget_hold(struct budget_part *p, size_t bytes)
{
	struct budget *b = p->budget;
	if (!b)
		return BUDGET_TAKEN;
	if (bytes <= p->bytes) {
		shrink(p, bytes);
		return BUDGET_TAKEN;
	}
	size_t more = bytes - p->bytes, held = atomic_load(&b->held);
	if (bytes > budget_most(b)) {
		atomic_fetch_add(&b->refused, 1);
		return BUDGET_TOO_LARGE;
	}
	if (!has_room(b, held, more)) {
		atomic_fetch_add(&b->refused, 1);
		return BUDGET_FULL;
	}
	if (!client_take(p->client, CLIENT_MEMORY, more, held, b->limit))
		return BUDGET_SHARE;
	while (!atomic_compare_exchange_weak(&b->held, &held, held + more))
		if (!has_room(b, held, more)) {
			client_give(p->client, CLIENT_MEMORY, more);
			atomic_fetch_add(&b->refused, 1);
			return BUDGET_FULL;
		}
	p->bytes = bytes;
	note_peak(b, held + more);
	return BUDGET_TAKEN;
}

void budget_count(struct budget_part *p, size_t bytes)
{
	if (!p->budget)
		return;
	if (bytes <= p->bytes) {
		shrink(p, bytes);
		return;
	}
	size_t more = bytes - p->bytes;
	client_count(p->client, CLIENT_MEMORY, more);
	note_peak(p->budget, atomic_fetch_add(&p->budget->held, more) + more);
	p->bytes = bytes;
}

void budget_release(struct budget_part *p)
{
	client_give(p->client, CLIENT_MEMORY, p->bytes);
	client_drop(p->client);
	p->client = NULL;
	if (!p->budget)
		return;
	atomic_fetch_sub(&p->budget->held, p->bytes);
#ifdef __GLIBC__
	if (p->bytes >= TRIM_BYTES)
		malloc_trim(0);
#endif
	p->bytes = 0;
}
