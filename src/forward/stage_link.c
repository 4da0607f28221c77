/* SPDX-License-Identifier: MIT */
#include "src/forward/stage_link.h"

#include "kernels/hand_over.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

#define PART_ALIGN 256 /* of each part of a block */

bool stage_rows_have_selection(const struct model_config *c, uint32_t first_layer)
{
	return !c->index_full[first_layer];
}

/* ---- rows in host memory ---- */

void stage_rows_free(struct stage_rows *r)
{
	if (r->owner)
		r->owner->ops->free(r->owner, MEM_SHARED, r->block, r->block_bytes);
	*r = (struct stage_rows){0};
}

int stage_rows_reserve(struct stage_rows *r, const struct model_config *c, struct backend *b,
	uint32_t max_rows, struct err *e)
{
	if (max_rows <= r->max_rows)
		return 0;
	stage_rows_free(r);
	const size_t x = num_align_up((size_t)max_rows * c->n_embd * sizeof *r->x, PART_ALIGN);
	const size_t n_sel = num_align_up(max_rows * sizeof *r->n_sel, PART_ALIGN);
	const size_t sel = (size_t)max_rows * c->index_top_k * sizeof *r->sel;
	int rc = b->ops->alloc(b, MEM_SHARED, x + n_sel + sel, &r->block, e);
	if (rc) {
		err_prefix(e, "%u rows for the next stage", max_rows);
		return rc;
	}
	uint8_t *block = r->block;
	r->owner = b;
	r->block_bytes = x + n_sel + sel;
	r->x = r->block;
	r->n_sel = (int32_t *)(void *)(block + x);
	r->sel = (int32_t *)(void *)(block + x + n_sel);
	r->max_rows = max_rows;
	return 0;
}

/* bytes[3]: sizes of x, n_sel and sel of n rows. Returns how many of these are handed over to the
 * stage that begins with this layer. */
static int list_parts(const struct model_config *c, uint32_t layer, uint32_t n, size_t *bytes)
{
	bytes[0] = (size_t)n * c->n_embd * sizeof(float);
	bytes[1] = n * sizeof(int32_t);
	bytes[2] = (size_t)n * c->index_top_k * sizeof(int32_t);
	return stage_rows_have_selection(c, layer) ? 3 : 1;
}

void stage_rows_take(struct stage_rows *r, const struct model *from, uint32_t n)
{
	const struct workspace *ws = &from->ws;
	void *dst[3] = {r->x, r->n_sel, r->sel};
	const void *src[3] = {ws->x, ws->n_sel, ws->sel};
	struct backend *b = from->backend;
	size_t bytes[3];
	for (int i = 0, parts = list_parts(&from->config, from->config.end_layer, n, bytes); i < parts;
		 i++)
		b->ops->copy(b, dst[i], src[i], bytes[i]);
}

void stage_rows_give(struct stage_rows *r, struct model *to, uint32_t n)
{
	const struct workspace *ws = &to->ws;
	void *dst[3] = {ws->x, ws->n_sel, ws->sel};
	const void *src[3] = {r->x, r->n_sel, r->sel};
	struct backend *b = to->backend;
	size_t bytes[3];
	r->receiver = b;
	r->before = b->fence_value;
	for (int i = 0, parts = list_parts(&to->config, to->config.first_layer, n, bytes); i < parts;
		 i++)
		b->ops->copy(b, dst[i], src[i], bytes[i]);
}

void stage_rows_given(struct stage_rows *r)
{
	struct backend *b = r->receiver;
	r->receiver = NULL;
	if (!b)
		return;
	if (b->fence_value > r->before) /* the first fence behind the copies */
		b->ops->fence_wait(b, r->before + 1, NULL);
	else
		b->ops->wait(b, NULL);
}

/* ---- the link ---- */

struct local_link {
	struct stage_link base;   /* first: the pointers are exchanged */
	const struct model *from; /* of the latest send */
};

static int local_link_send(
	struct stage_link *base, const struct model *from, uint32_t n, struct err *e)
{
	(void)n;
	((struct local_link *)base)->from = from;
	const struct err *failure = &from->backend->failure;
	if (failure->code && e)
		*e = *failure;
	return failure->code;
}

static int local_link_receive(struct stage_link *base, struct model *to, uint32_t n, struct err *e)
{
	const struct model *from = ((struct local_link *)base)->from;
	const struct workspace *in = &to->ws, *out = &from->ws;
	struct backend *b = from->backend;
	size_t bytes[3];
	const int parts = list_parts(&to->config, to->config.first_layer, n, bytes);
	(void)e; /* a failure is kept: model_forward returns it, or moe_drain of the sender */
	backend_hand_over(b, to->backend,
		(const struct handed_part[]){{in->x, out->x, bytes[0]}, {in->n_sel, out->n_sel, bytes[1]},
			{in->sel, out->sel, bytes[2]}},
		parts);
	return 0;
}

static void local_link_close(struct stage_link *base)
{
	free(base);
}

static const struct stage_link_ops local_link_ops = {
	.send = local_link_send, .receive = local_link_receive, .close = local_link_close};

struct stage_link *stage_link_local(void)
{
	struct local_link *l = NEW(struct local_link);
	l->base.ops = &local_link_ops;
	return &l->base;
}
