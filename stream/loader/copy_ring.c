/* SPDX-License-Identifier: MIT */
#include "stream/loader/copy_ring.h"

#include "src/base/log.h"
#include "src/base/mem.h"

bool copy_ring_init(struct copy_ring *q, size_t cap)
{
	q->cap = (unsigned)cap;
	q->ring = mem_try_new(cap, sizeof *q->ring);
	return q->ring != NULL;
}

void copy_ring_push(struct copy_ring *q, struct copy c)
{
	if (q->n == q->cap)
		bug("more than %u copies are in flight", q->cap);
	q->ring[(q->first + q->n++) % q->cap] = c;
}

struct copy copy_ring_pop(struct copy_ring *q)
{
	struct copy c = q->ring[q->first];
	q->first = (q->first + 1) % q->cap;
	q->n--;
	return c;
}
