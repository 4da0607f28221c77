/* SPDX-License-Identifier: MIT */
#include "stream/loader/load_check.h"

#include "src/base/mem.h"

#include <stdlib.h>

static struct load_check *load_check_new(void)
{
	struct load_check *k = mem_try_new(1, sizeof *k);
	if (k && !span_check_open(&k->run)) {
		free(k);
		return NULL;
	}
	return k;
}

struct load_check *load_check_acquire(struct load_check_pool *p, const struct expert_check *c,
	const struct extent_plan *plan, int layer, int expert)
{
	struct load_check *k = p->free;
	if (k)
		p->free = k->next_free;
	else if (!(k = load_check_new()))
		return NULL;
	span_check_begin(&k->run, k->spans, expert_check_spans(c, plan, layer, expert, k->spans));
	k->next_chunk = 0;
	return k;
}

void load_check_release(struct load_check_pool *p, struct load_check *k)
{
	if (!k)
		return;
	k->next_free = p->free;
	p->free = k;
}

void load_check_pool_fini(struct load_check_pool *p)
{
	for (struct load_check *k; (k = p->free);) {
		p->free = k->next_free;
		span_check_close(&k->run);
		free(k);
	}
}
