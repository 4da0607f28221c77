/* SPDX-License-Identifier: MIT */
#include "stream/check/span_check.h"

#include "src/base/num.h"

bool span_check_open(struct span_check *c)
{
	*c = (struct span_check){.hash = xxh3_new()};
	return c->hash != NULL;
}

void span_check_close(struct span_check *c)
{
	xxh3_free(c->hash);
	*c = (struct span_check){0};
}

void span_check_begin(struct span_check *c, struct checked_span *spans, unsigned n)
{
	*c = (struct span_check){.hash = c->hash, .spans = spans, .n = n};
}

void span_check_add(struct span_check *c, uint64_t at, const uint8_t *p, uint64_t n)
{
	const uint64_t end = at + n;
	while (c->next < c->n && c->spans[c->next].begin < end) {
		struct checked_span *s = &c->spans[c->next];
		const uint64_t from = MAX(at, s->begin), to = MIN(end, s->end);
		if (from == s->begin)
			xxh3_begin(c->hash);
		xxh3_add(c->hash, p + (from - at), to - from);
		if (to < s->end)
			return;
		s->found = xxh3_value(c->hash);
		c->next++;
	}
}

const struct checked_span *span_check_next_wrong(const struct span_check *c, unsigned from)
{
	for (unsigned i = from; i < c->next; i++)
		if (c->spans[i].found != c->spans[i].expected)
			return &c->spans[i];
	return NULL;
}
