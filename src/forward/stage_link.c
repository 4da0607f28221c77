/* SPDX-License-Identifier: MIT */
/* The link through host memory: a download by the sender, an upload by the receiver. */
#include "src/forward/stage_link.h"

#include "src/base/mem.h"

#include <stdlib.h>

/* ---- the rows ---- */

bool stage_rows_have_selection(const struct model_config *c, uint32_t first_layer)
{
	return !c->index_full[first_layer];
}

void stage_rows_free(struct stage_rows *r)
{
	free(r->x);
	free(r->n_sel);
	free(r->sel);
	*r = (struct stage_rows){0};
}

int stage_rows_reserve(struct stage_rows *r, const struct model_config *c, bool selection,
	uint32_t max_rows, struct err *e)
{
	if (max_rows <= r->max_rows && (r->sel || !selection))
		return 0;
	stage_rows_free(r);
	r->x = mem_try_new((size_t)max_rows * c->n_embd, sizeof *r->x);
	if (selection) {
		r->n_sel = mem_try_new(max_rows, sizeof *r->n_sel);
		r->sel = mem_try_new((size_t)max_rows * c->index_top_k, sizeof *r->sel);
	}
	if (!r->x || (selection && (!r->n_sel || !r->sel))) {
		stage_rows_free(r);
		return err_set(e, ERR_MEMORY, "no memory to hand %u rows over to the next stage", max_rows);
	}
	r->max_rows = max_rows;
	return 0;
}

int stage_rows_take(struct stage_rows *r, const struct model *from, uint32_t n, struct err *e)
{
	const struct model_config *c = &from->config;
	const struct workspace *ws = &from->ws;
	struct backend *b = from->backend;
	int rc = b->ops->download(b, r->x, ws->x, (size_t)n * c->n_embd * sizeof *r->x, e);
	if (rc || !stage_rows_have_selection(c, c->end_layer))
		return rc;
	if ((rc = b->ops->download(b, r->n_sel, ws->n_sel, n * sizeof *r->n_sel, e)))
		return rc;
	return b->ops->download(b, r->sel, ws->sel, (size_t)n * c->index_top_k * sizeof *r->sel, e);
}

void stage_rows_give(const struct stage_rows *r, struct model *to, uint32_t n)
{
	const struct model_config *c = &to->config;
	const struct workspace *ws = &to->ws;
	struct backend *b = to->backend;
	b->ops->upload(b, ws->x, r->x, (size_t)n * c->n_embd * sizeof *r->x);
	if (!stage_rows_have_selection(c, c->first_layer))
		return;
	b->ops->upload(b, ws->n_sel, r->n_sel, n * sizeof *r->n_sel);
	b->ops->upload(b, ws->sel, r->sel, (size_t)n * c->index_top_k * sizeof *r->sel);
}

/* ---- the link ---- */

struct host_link {
	struct stage_link base; /* first: the pointers are exchanged */
	struct stage_rows rows;
};

static int host_link_send(
	struct stage_link *base, const struct model *from, uint32_t n, struct err *e)
{
	return stage_rows_take(&((struct host_link *)base)->rows, from, n, e);
}

static int host_link_receive(struct stage_link *base, struct model *to, uint32_t n, struct err *e)
{
	(void)e;
	stage_rows_give(&((struct host_link *)base)->rows, to, n);
	return 0;
}

static void host_link_close(struct stage_link *base)
{
	struct host_link *l = (struct host_link *)base;
	stage_rows_free(&l->rows);
	free(l);
}

static const struct stage_link_ops host_link_ops = {
	.send = host_link_send, .receive = host_link_receive, .close = host_link_close};

int stage_link_host(
	const struct model_config *c, uint32_t max_rows, struct stage_link **out, struct err *e)
{
	struct host_link *l = NEW(struct host_link);
	l->base.ops = &host_link_ops;
	int rc =
		stage_rows_reserve(&l->rows, c, stage_rows_have_selection(c, c->end_layer), max_rows, e);
	*out = rc ? NULL : &l->base;
	if (rc)
		free(l);
	return rc;
}
