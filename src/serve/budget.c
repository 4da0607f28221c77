/* SPDX-License-Identifier: MIT */
/* Counting. After a large request malloc_trim returns free memory to the system: the allocator
 * would otherwise keep what a burst of requests took. */
#include "src/serve/budget.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define TRIM_BYTES ((size_t)16 << 20)

size_t budget_most(const struct budget *b)
{
	return b->limit / 2;
}

enum budget_answer budget_hold(struct budget_part *p, size_t bytes)
{
	struct budget *b = p->budget;
	if (!b)
		return BUDGET_TAKEN;
	if (bytes <= p->bytes) {
		atomic_fetch_sub(&b->held, p->bytes - bytes);
		client_give(p->client, CLIENT_MEMORY, p->bytes - bytes);
		p->bytes = bytes;
		return BUDGET_TAKEN;
	}
	size_t more = bytes - p->bytes, held = atomic_load(&b->held);
	if (bytes > budget_most(b)) {
		atomic_fetch_add(&b->refused, 1);
		return BUDGET_TOO_LARGE;
	}
	if (more > b->limit - held) {
		atomic_fetch_add(&b->refused, 1);
		return BUDGET_FULL;
	}
	if (!client_take(p->client, CLIENT_MEMORY, more, held, b->limit))
		return BUDGET_SHARE;
	while (!atomic_compare_exchange_weak(&b->held, &held, held + more))
		if (more > b->limit - held) {
			client_give(p->client, CLIENT_MEMORY, more);
			atomic_fetch_add(&b->refused, 1);
			return BUDGET_FULL;
		}
	p->bytes = bytes;
	size_t peak = atomic_load(&b->peak);
	while (peak < held + more && !atomic_compare_exchange_weak(&b->peak, &peak, held + more))
		;
	return BUDGET_TAKEN;
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
