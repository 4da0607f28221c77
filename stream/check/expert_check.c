/* SPDX-License-Identifier: MIT */
#include "stream/check/expert_check.h"

#include "src/base/log.h"
#include "src/base/mem.h"

#include <stdlib.h>

void expert_check_init(struct expert_check *c, const struct check_values *values,
	enum check_mode mode, int n_layers, int n_experts)
{
	*c = (struct expert_check){
		.values = values, .mode = mode, .n_layers = n_layers, .n_experts = n_experts};
	if (mode == CHECK_OFF)
		c->values = NULL;
	if (!c->values)
		return;
	const struct gguf *g = values->map.file;
	c->passed = NEW_ARRAY(bool, (size_t)n_layers *(size_t)n_experts);
	c->first = mem_new((size_t)n_layers, sizeof *c->first);
	for (size_t i = 0; i < g->n_tensors; i++) {
		uint32_t layer;
		enum gguf_expert_part part;
		if (!gguf_expert_name(g->tensors[i].name, &layer, &part) || layer >= (uint32_t)n_layers)
			continue;
		c->first[layer][part] = values->map.first[i];
		c->first[layer][part + EXTENT_MATRICES] = values->map.first[i] + g->tensors[i].n_runs;
	}
}

void expert_check_fini(struct expert_check *c)
{
	free(c->first);
	free(c->passed);
	*c = (struct expert_check){0};
}

static size_t index_of(const struct expert_check *c, int layer, int expert)
{
	return (size_t)layer * (size_t)c->n_experts + (size_t)expert;
}

bool expert_check_due(const struct expert_check *c, int layer, int expert)
{
	return c->values && (c->mode == CHECK_ALWAYS || !c->passed[index_of(c, layer, expert)]);
}

void expert_check_passed(struct expert_check *c, int layer, int expert)
{
	c->passed[index_of(c, layer, expert)] = true;
}

uint64_t expert_check_range(
	const struct expert_check *c, int layer, enum extent_part part, int expert)
{
	return c->first[layer][part] + (uint64_t)expert;
}

/* Parts in the order in which they lie in a slot. Returns their number. */
static unsigned slot_order(const struct extent_plan *plan, enum extent_part order[EXTENT_PARTS])
{
	unsigned n = 0;
	for (unsigned p = 0; p < EXTENT_PARTS; p++) {
		if (!plan->parts[p].bytes)
			continue;
		unsigned k = n++;
		for (; k && plan->parts[order[k - 1]].dst_offset > plan->parts[p].dst_offset; k--)
			order[k] = order[k - 1];
		order[k] = (enum extent_part)p;
	}
	return n;
}

unsigned expert_check_spans(const struct expert_check *c, const struct extent_plan *plan, int layer,
	int expert, struct checked_span out[EXTENT_PARTS])
{
	enum extent_part order[EXTENT_PARTS];
	const unsigned n = slot_order(plan, order);
	for (unsigned i = 0; i < n; i++) {
		const uint64_t begin = plan->parts[order[i]].dst_offset;
		out[i] = (struct checked_span){.begin = begin,
			.end = begin + plan->parts[order[i]].bytes,
			.expected = c->values->values[expert_check_range(c, layer, order[i], expert)]};
	}
	return n;
}

int expert_check_err(const struct expert_check *c, const struct extent_plan *plan, int layer,
	int expert, unsigned span, uint64_t found, struct err *e)
{
	enum extent_part order[EXTENT_PARTS];
	if (span >= slot_order(plan, order))
		bug("an expert has no span %u", span);
	check_values_err(c->values, expert_check_range(c, layer, order[span], expert), found, e);
	if (c->has_copies)
		err_hint(e, "the wrong bytes may be those of a copy (--replicas): glmstream verify -m FILE "
					"compares each file, with FILE.gguf.xxh3 beside it if it has no check values "
					"in it");
	return ERR_RUN;
}
