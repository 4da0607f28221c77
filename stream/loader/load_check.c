/* SPDX-License-Identifier: MIT */
#include "stream/loader/load_check.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

static void load_check_free(struct load_check *k)
{
	for (size_t i = 0; i < ARRAY_LEN(k->reads); i++)
		span_check_close(&k->reads[i].run);
	free(k);
}

static struct load_check *load_check_new(void)
{
	struct load_check *k = mem_try_new(1, sizeof *k);
	for (size_t i = 0; k && i < ARRAY_LEN(k->reads); i++)
		if (!span_check_open(&k->reads[i].run)) {
			load_check_free(k);
			return NULL;
		}
	return k;
}

struct load_check *load_check_acquire(struct load_check_pool *p, struct check_pool *threads,
	const struct expert_check *c, const struct extent_plan *plan, int layer, int expert)
{
	struct load_check *k = p->free;
	if (k)
		p->free = k->next_free;
	else if (!(k = load_check_new()))
		return NULL;
	/* spans and reads are both in the order of their offsets in the slot */
	const unsigned n_spans = expert_check_spans(c, plan, layer, expert, k->spans);
	unsigned first = 0;
	for (unsigned i = 0; i < plan->n_reads; i++) {
		struct read_check *r = &k->reads[i];
		const uint64_t end = plan->reads[i].dst_offset + plan->reads[i].bytes;
		unsigned n = 0;
		while (first + n < n_spans && k->spans[first + n].begin < end)
			n++;
		span_check_begin(&r->run, k->spans + first, n);
		r->thread = check_pool_next_thread(threads);
		r->next_chunk = 0;
		first += n;
	}
	for (unsigned i = plan->n_reads; i < ARRAY_LEN(k->reads); i++)
		span_check_begin(&k->reads[i].run, NULL, 0);
	return k;
}

const struct checked_span *load_check_wrong(const struct load_check *k)
{
	const struct checked_span *wrong = NULL;
	for (size_t i = 0; i < ARRAY_LEN(k->reads) && !wrong; i++)
		wrong = span_check_next_wrong(&k->reads[i].run, 0);
	return wrong;
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
		load_check_free(k);
	}
}
