/* SPDX-License-Identifier: MIT */
/* The link through host memory: a download by the sender, an upload by the receiver. */
#include "src/forward/stage_link.h"

#include "src/base/mem.h"

#include <stdlib.h>

struct host_link {
	struct stage_link base; /* first: the pointers are exchanged */
	float *x;               /* [max_rows][n_embd] */
	int32_t *n_sel, *sel;   /* [max_rows], [max_rows][index_top_k]; NULL: not handed over */
};

static int host_link_send(
	struct stage_link *base, const struct model *from, uint32_t n, struct err *e)
{
	struct host_link *l = (struct host_link *)base;
	const struct model_config *c = &from->config;
	const struct workspace *ws = &from->ws;
	struct backend *b = from->backend;
	int rc = b->ops->download(b, l->x, ws->x, (size_t)n * c->n_embd * sizeof *l->x, e);
	if (rc || !l->sel)
		return rc;
	if ((rc = b->ops->download(b, l->n_sel, ws->n_sel, n * sizeof *l->n_sel, e)))
		return rc;
	return b->ops->download(b, l->sel, ws->sel, (size_t)n * c->index_top_k * sizeof *l->sel, e);
}

static int host_link_receive(struct stage_link *base, struct model *to, uint32_t n, struct err *e)
{
	struct host_link *l = (struct host_link *)base;
	const struct model_config *c = &to->config;
	const struct workspace *ws = &to->ws;
	struct backend *b = to->backend;
	(void)e;
	b->ops->upload(b, ws->x, l->x, (size_t)n * c->n_embd * sizeof *l->x);
	if (l->sel) {
		b->ops->upload(b, ws->n_sel, l->n_sel, n * sizeof *l->n_sel);
		b->ops->upload(b, ws->sel, l->sel, (size_t)n * c->index_top_k * sizeof *l->sel);
	}
	return 0;
}

static void host_link_close(struct stage_link *base)
{
	struct host_link *l = (struct host_link *)base;
	free(l->x);
	free(l->n_sel);
	free(l->sel);
	free(l);
}

static const struct stage_link_ops host_link_ops = {
	.send = host_link_send, .receive = host_link_receive, .close = host_link_close};

int stage_link_host(
	const struct model_config *c, uint32_t max_rows, struct stage_link **out, struct err *e)
{
	struct host_link *l = NEW(struct host_link);
	bool shared = !c->index_full[c->end_layer];
	*out = NULL;
	l->base.ops = &host_link_ops;
	l->x = mem_try_new((size_t)max_rows * c->n_embd, sizeof *l->x);
	if (shared) {
		l->n_sel = mem_try_new(max_rows, sizeof *l->n_sel);
		l->sel = mem_try_new((size_t)max_rows * c->index_top_k, sizeof *l->sel);
	}
	if (!l->x || (shared && (!l->n_sel || !l->sel))) {
		host_link_close(&l->base);
		return err_set(e, ERR_MEMORY, "no memory to hand %u rows over to the next stage", max_rows);
	}
	*out = &l->base;
	return 0;
}
