/* SPDX-License-Identifier: MIT */
#include "src/engine/ranks/rank_link.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/ranks/rank_protocol.h"
#include "src/forward/moe.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct rank_link {
	struct stage_link base; /* first: the pointers are exchanged */
	struct ranks *ranks;
	uint32_t other;
	bool shared;         /* the later stage takes the selection of a layer before it */
	bool received_error; /* in the last step, in place of its rows */
	uint8_t *message;
	size_t capacity;
};

/* Where the parts of a message of n rows are; all: its length. */
struct rank_message {
	size_t x, x_bytes, n_sel, n_sel_bytes, sel, sel_bytes, all;
};

static struct rank_message message_layout(
	const struct rank_link *l, const struct model_config *c, size_t n)
{
	struct rank_message m = {.x = sizeof(struct rank_answer),
		.x_bytes = n * c->n_embd * sizeof(float),
		.n_sel_bytes = l->shared ? n * sizeof(int32_t) : 0,
		.sel_bytes = l->shared ? n * c->index_top_k * sizeof(int32_t) : 0};
	m.n_sel = m.x + m.x_bytes;
	m.sel = m.n_sel + m.n_sel_bytes;
	m.all = m.sel + m.sel_bytes;
	return m;
}

static int rank_link_send(
	struct stage_link *base, const struct model *from, uint32_t n, struct err *e)
{
	struct rank_link *l = (struct rank_link *)base;
	const struct rank_message m = message_layout(l, &from->config, n);
	const struct rank_answer head = {.n = n};
	const struct workspace *ws = &from->ws;
	struct backend *b = from->backend;
	int rc = ranks_check(l->ranks, e);
	if (rc)
		return rc;
	memcpy(l->message, &head, sizeof head);
	if ((rc = b->ops->download(b, l->message + m.x, ws->x, m.x_bytes, e)) ||
		(l->shared &&
			((rc = b->ops->download(b, l->message + m.n_sel, ws->n_sel, m.n_sel_bytes, e)) ||
				(rc = b->ops->download(b, l->message + m.sel, ws->sel, m.sel_bytes, e)))))
		return rc;
	return ranks_send(l->ranks, l->other, l->message, m.all, e);
}

/* The rows of a step lie in l->message then. */
static int receive_message(
	struct rank_link *l, const struct rank_message *m, uint32_t n, struct err *e)
{
	struct rank_answer head;
	size_t got = 0;
	l->received_error = false;
	int rc = ranks_receive(l->ranks, l->other, l->message, l->capacity, &got, e);
	if (rc)
		return rc;
	memcpy(&head, l->message, sizeof head);
	if (got == sizeof head + sizeof(struct err) && head.code) {
		l->received_error = true;
		if (e)
			*e = ranks_received_error(l->message + sizeof head);
		return head.code;
	}
	if (got != m->all || head.n != n)
		return err_set(e, ERR_RUN, "%s sent %u rows in %zu bytes, expected %u in %zu",
			ranks_name(l->ranks, l->other), head.n, got, n, m->all);
	return 0;
}

int rank_link_receive_rows(struct stage_link *base, const struct model *to, uint32_t n,
	struct stage_rows *out, struct err *e)
{
	struct rank_link *l = (struct rank_link *)base;
	const struct model_config *c = &to->config;
	const struct rank_message m = message_layout(l, c, n);
	int rc = receive_message(l, &m, n, e);
	if (rc || (rc = stage_rows_reserve(out, c, to->backend, MAX(n, ANSWER_ROWS), e)))
		return rc;
	memcpy(out->x, l->message + m.x, m.x_bytes);
	if (l->shared) {
		memcpy(out->n_sel, l->message + m.n_sel, m.n_sel_bytes);
		memcpy(out->sel, l->message + m.sel, m.sel_bytes);
	}
	return 0;
}

static int rank_link_receive(struct stage_link *base, struct model *to, uint32_t n, struct err *e)
{
	struct rank_link *l = (struct rank_link *)base;
	const struct rank_message m = message_layout(l, &to->config, n);
	const struct workspace *ws = &to->ws;
	struct backend *b = to->backend;
	int rc = receive_message(l, &m, n, e);
	if (rc)
		return rc;
	b->ops->upload(b, ws->x, l->message + m.x, m.x_bytes);
	if (l->shared) {
		b->ops->upload(b, ws->n_sel, l->message + m.n_sel, m.n_sel_bytes);
		b->ops->upload(b, ws->sel, l->message + m.sel, m.sel_bytes);
	}
	return 0;
}

bool rank_link_received_error(const struct stage_link *base)
{
	return base && ((const struct rank_link *)base)->received_error;
}

int rank_link_send_error(
	struct stage_link *base, const struct err *why, bool is_named, struct err *e)
{
	struct rank_link *l = (struct rank_link *)base;
	const struct rank_answer head = {.code = why->code};
	struct err named = *why;
	if (!is_named)
		err_prefix(&named, "%s", ranks_name(l->ranks, ranks_me(l->ranks)));
	memcpy(l->message, &head, sizeof head);
	memcpy(l->message + sizeof head, &named, sizeof named);
	return ranks_send(l->ranks, l->other, l->message, sizeof head + sizeof named, e);
}

static void rank_link_close(struct stage_link *base)
{
	struct rank_link *l = (struct rank_link *)base;
	free(l->message);
	free(l);
}

static const struct stage_link_ops rank_link_ops = {
	.send = rank_link_send, .receive = rank_link_receive, .close = rank_link_close};

int rank_link_open(struct ranks *r, uint32_t other, const struct model_config *c, uint32_t layer,
	uint32_t max_rows, struct stage_link **out, struct err *e)
{
	struct rank_link *l = NEW(struct rank_link);
	*out = NULL;
	*l = (struct rank_link){
		.base = {&rank_link_ops}, .ranks = r, .other = other, .shared = !c->index_full[layer]};
	l->capacity =
		MAX(message_layout(l, c, max_rows).all, sizeof(struct rank_answer) + sizeof(struct err));
	int rc = 0;
	if (l->capacity > INT_MAX)
		rc = err_set(e, ERR_USAGE, "steps of %u rows are too long for a message", max_rows);
	else if (!(l->message = mem_try_new(l->capacity, 1)))
		rc = err_set(e, ERR_MEMORY, "no memory to hand %u rows over to another rank", max_rows);
	if (rc) {
		rank_link_close(&l->base);
		return rc;
	}
	*out = &l->base;
	return 0;
}
