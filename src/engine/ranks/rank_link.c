/* SPDX-License-Identifier: MIT */
#include "src/engine/ranks/rank_link.h"

#include "kernels/nccl.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/ranks/rank_protocol.h"
#include "src/forward/moe/moe.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_PARTS 3

/* What one end tells the other while the link opens. */
struct link_offer {
	char why_not[160]; /* this end cannot use NCCL; empty: it can */
	uint8_t uuid[BACKEND_UUID_BYTES];
	uint8_t id[NCCL_ID_BYTES]; /* of the sender */
};

struct rank_link {
	struct stage_link base; /* first: the pointers are exchanged */
	struct ranks *ranks;
	uint32_t other;
	struct backend *backend;   /* of the stage here */
	struct nccl_channel *nccl; /* carries the rows, behind a message with their number; NULL: MPI */
	struct link_offer mine, theirs;
	bool shared;         /* the later stage takes the selection of a layer before it */
	bool received_error; /* in the last step, in place of its rows */
	uint8_t *message;    /* memory of the backend that the host reads too */
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

/* parts[LINK_PARTS]: the arrays x, n_sel and sel with their sizes in m. Returns how many of them
 * are handed over. */
static int list_parts(const struct rank_link *l, const struct rank_message *m, float *x,
	int32_t *n_sel, int32_t *sel, struct nccl_part *parts)
{
	parts[0] = (struct nccl_part){x, m->x_bytes};
	parts[1] = (struct nccl_part){n_sel, m->n_sel_bytes};
	parts[2] = (struct nccl_part){sel, m->sel_bytes};
	return l->shared ? LINK_PARTS : 1;
}

/* Where each part is in a message. */
static void *message_part(const struct rank_link *l, const struct rank_message *m, int i)
{
	return l->message + (i == 0 ? m->x : i == 1 ? m->n_sel : m->sel);
}

static int rank_link_send(
	struct stage_link *base, const struct model *from, uint32_t n, struct err *e)
{
	struct rank_link *l = (struct rank_link *)base;
	const struct rank_message m = message_layout(l, &from->config, n);
	const struct rank_answer head = {.n = n};
	const struct workspace *ws = &from->ws;
	struct backend *b = from->backend;
	struct nccl_part parts[LINK_PARTS];
	const int n_parts = list_parts(l, &m, ws->x, ws->n_sel, ws->sel, parts);
	int rc = ranks_check(l->ranks, e);
	if (rc)
		return rc;
	memcpy(l->message, &head, sizeof head);
	for (int i = 0; i < n_parts && !l->nccl; i++)
		b->ops->copy(b, message_part(l, &m, i), parts[i].data, parts[i].bytes);
	/* with NCCL too: a step that failed sends its error instead */
	if ((rc = b->ops->wait(b, e)) ||
		(rc = ranks_send(l->ranks, l->other, l->message, l->nccl ? sizeof head : m.all, e)))
		return rc;
	if (l->nccl)
		nccl_channel_send(l->nccl, parts, n_parts);
	return 0;
}

/* Afterwards the rows of a step are in l->message; with NCCL they have yet to be received. */
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
	const size_t expected = l->nccl ? sizeof head : m->all;
	if (got != expected || head.n != n)
		return err_set(e, ERR_RUN, "%s sent %u rows in %zu bytes, expected %u in %zu",
			ranks_name(l->ranks, l->other), head.n, got, n, expected);
	return 0;
}

int rank_link_receive_rows(struct stage_link *base, const struct model *to, uint32_t n,
	struct stage_rows *out, struct err *e)
{
	struct rank_link *l = (struct rank_link *)base;
	const struct model_config *c = &to->config;
	const struct rank_message m = message_layout(l, c, n);
	const struct workspace *ws = &to->ws;
	int rc = receive_message(l, &m, n, e);
	if (rc)
		return rc;
	struct nccl_part parts[LINK_PARTS];
	rc = stage_rows_reserve(out, c, to->backend, MAX(n, ANSWER_ROWS), e);
	/* Rows without memory go to the workspace: NCCL brings them before those of the next step. */
	const int n_parts = rc ? list_parts(l, &m, ws->x, ws->n_sel, ws->sel, parts)
						   : list_parts(l, &m, out->x, out->n_sel, out->sel, parts);
	if (l->nccl)
		nccl_channel_receive(l->nccl, parts, n_parts);
	for (int i = 0; i < n_parts && !l->nccl && !rc; i++)
		memcpy(parts[i].data, message_part(l, &m, i), parts[i].bytes);
	return rc;
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
	struct nccl_part parts[LINK_PARTS];
	const int n_parts = list_parts(l, &m, ws->x, ws->n_sel, ws->sel, parts);
	if (l->nccl)
		nccl_channel_receive(l->nccl, parts, n_parts);
	for (int i = 0; i < n_parts && !l->nccl; i++)
		b->ops->copy(b, parts[i].data, message_part(l, &m, i), parts[i].bytes);
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
	nccl_channel_close(l->nccl);
	l->backend->ops->free(l->backend, MEM_SHARED, l->message, l->capacity);
	free(l);
}

void rank_link_abort(struct stage_link *base, const char *why)
{
	if (base && ((struct rank_link *)base)->nccl)
		nccl_channel_abort(((struct rank_link *)base)->nccl, why);
}

static const struct stage_link_ops rank_link_ops = {
	.send = rank_link_send, .receive = rank_link_receive, .close = rank_link_close};

/* ---- opening ---- */

/* The sender speaks first. */
static int exchange_offers(struct rank_link *l, bool sends, struct err *e)
{
	size_t got = 0;
	int rc = 0;
	if (sends)
		rc = ranks_send(l->ranks, l->other, &l->mine, sizeof l->mine, e);
	if (!rc)
		rc = ranks_receive(l->ranks, l->other, &l->theirs, sizeof l->theirs, &got, e);
	if (!rc && got != sizeof l->theirs)
		rc = err_set(e, ERR_RUN, "%s sent %zu bytes, expected %zu: it runs another program",
			ranks_name(l->ranks, l->other), got, sizeof l->theirs);
	if (!rc && !sends)
		rc = ranks_send(l->ranks, l->other, &l->mine, sizeof l->mine, e);
	l->theirs.why_not[sizeof l->theirs.why_not - 1] = 0;
	err_plain(l->theirs.why_not);
	return rc;
}

static void decline_nccl(struct rank_link *l, const char *why)
{
	snprintf(l->mine.why_not, sizeof l->mine.why_not, "%s", why);
}

/* Both ends agree on what carries the rows. Without NCCL, or without a channel, it is MPI, and the
 * receiver says why. Fails only when a rank is lost. */
static int agree_on_carrier(struct rank_link *l, bool sends, struct err *e)
{
	struct err why = {0};
	const char *missing = nccl_missing(l->backend);
	memcpy(l->mine.uuid, l->backend->uuid, sizeof l->mine.uuid);
	if (missing)
		decline_nccl(l, missing);
	else if (sends && nccl_make_id(l->mine.id, &why))
		decline_nccl(l, why.text);
	int rc = exchange_offers(l, sends, e);
	if (rc)
		return rc;
	if (!memcmp(l->mine.uuid, l->theirs.uuid, sizeof l->mine.uuid) && !*l->mine.why_not)
		decline_nccl(l, "both ranks compute on one card");
	if (!*l->mine.why_not && !*l->theirs.why_not) {
		if (nccl_channel_open(l->backend, sends ? l->mine.id : l->theirs.id, sends, &l->nccl, &why))
			decline_nccl(l, why.text);
		if ((rc = exchange_offers(l, sends, e)))
			return rc;
	}
	if (*l->mine.why_not || *l->theirs.why_not) {
		nccl_channel_close(l->nccl);
		l->nccl = NULL;
	}
	if (!sends && l->nccl)
		log_info("rows of %s come by NCCL %s", ranks_name(l->ranks, l->other), nccl_version());
	else if (!sends)
		log_info("rows of %s come by MPI: %s", ranks_name(l->ranks, l->other),
			*l->mine.why_not ? l->mine.why_not : l->theirs.why_not);
	return 0;
}

int rank_link_open(
	struct ranks *r, const struct rank_link_ends *ends, struct stage_link **out, struct err *e)
{
	struct rank_link *l = NEW(struct rank_link);
	const struct model_config *c = ends->config;
	*out = NULL;
	*l = (struct rank_link){.base = {&rank_link_ops},
		.ranks = r,
		.other = ends->other,
		.backend = ends->backend,
		.shared = !c->index_full[ends->layer]};
	/* rows of the CPU backend always go by MPI; every rank has the backend of rank 0 */
	int rc = strcmp(l->backend->ops->name, "cpu") ? agree_on_carrier(l, ends->sends, e) : 0;
	if (rc)
		return rc; /* a rank is lost: MPI may still write to *l */
	l->capacity = MAX(
		message_layout(l, c, ends->max_rows).all, sizeof(struct rank_answer) + sizeof(struct err));
	if (l->capacity > INT_MAX)
		rc = err_set(e, ERR_USAGE, "steps of %u rows are too long for a message", ends->max_rows);
	else if ((rc = l->backend->ops->alloc(
				  l->backend, MEM_SHARED, l->capacity, (void **)&l->message, e)))
		err_prefix(e, "%u rows for another rank", ends->max_rows);
	if (rc) {
		rank_link_close(&l->base);
		return rc;
	}
	*out = &l->base;
	return 0;
}
