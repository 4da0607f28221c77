/* SPDX-License-Identifier: MIT */
#include "stream/link_time.h"

#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/num.h"

#include <string.h>

#define LINK_TIME_BYTES ((size_t)16 << 20)
#define LINK_TIME_RUNS  4 /* the first wakes the card; the fastest of them counts */

static int time_one(struct copier *c, void *card, const void *host, uint64_t *ns, struct err *e)
{
	const uint64_t start = clock_ns();
	int rc;
	c->ops->copy(c, COPY_IN, card, host, LINK_TIME_BYTES);
	const uint64_t fence = c->ops->fence(c, COPY_IN);
	while (!(rc = c->ops->fence_status(c, fence, e)))
		;
	*ns = MAX(clock_ns() - start, 1u);
	return MIN(rc, 0);
}

int link_time(struct copier *c, double *bytes_s, struct err *e)
{
	void *card = NULL, *host = pages_try_map(LINK_TIME_BYTES);
	uint64_t best = UINT64_MAX, ns;
	if (!host)
		return err_set(e, ERR_MEMORY, "no memory for an array of %zu bytes", LINK_TIME_BYTES);
	memset(host, 1, LINK_TIME_BYTES);
	int rc = c->ops->alloc(c, LINK_TIME_BYTES, &card, e);
	if (!rc && !(rc = c->ops->pin(c, host, LINK_TIME_BYTES, e))) {
		c->ops->attach(c);
		for (int i = 0; i < LINK_TIME_RUNS && !rc; i++) {
			rc = time_one(c, card, host, &ns, e);
			best = MIN(best, ns);
		}
		c->ops->drain(c);
		c->ops->unpin(c, host, LINK_TIME_BYTES);
	}
	c->ops->free(c, card, LINK_TIME_BYTES);
	pages_unmap(host, LINK_TIME_BYTES);
	*bytes_s = rc ? 0 : (double)LINK_TIME_BYTES * 1e9 / (double)best;
	return rc;
}
