/* SPDX-License-Identifier: MIT */
/*
 * One layout function serves sizing and cutting: the first pass runs on a NULL base and only adds
 * up, the second one sets the pointers.
 */
#include "src/forward/workspace.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/draw/draw.h"
#include "src/forward/moe/lookahead.h"

#include <stdlib.h>
#include <string.h>

#define LOGIT_ROWS      64 /* rows of logits at once: bounds the workspace for large vocabularies */
#define WORKSPACE_ALIGN 256 /* of every buffer */

_Static_assert(LOGIT_ROWS <= DRAW_ROWS_MAX, "one call draws from all rows of logits");

/* Consecutive buffers of one allocation; base NULL: only their size. */
struct arena {
	uint8_t *base;
	size_t used;
};

static void *arena_alloc(struct arena *a, size_t n, size_t size)
{
	void *p = a->base ? a->base + a->used : NULL;
	a->used = num_align_up(a->used + n * size, WORKSPACE_ALIGN);
	return p;
}

size_t workspace_step_embed(uint32_t n)
{
	return num_align_up(3 * (size_t)n * sizeof(int32_t), WORKSPACE_ALIGN);
}

size_t workspace_step_bytes(const struct workspace *ws, uint32_t n)
{
	return workspace_step_embed(n) + n * ws->embed_row_bytes;
}

uint32_t workspace_state_row(const struct workspace *ws, uint32_t session, uint32_t row)
{
	return ws->max_rows + session * VERIFY_ROWS + row;
}

uint32_t workspace_zero_row(const struct workspace *ws)
{
	return workspace_state_row(ws, ws->mtp_sessions, 0);
}

static void draft_layout(
	struct workspace *ws, const struct model_config *c, struct arena *device, struct arena *shared)
{
	ws->draft_rows = MIN(ws->mtp_sessions, ws->max_rows);
	ws->draft_sel_stride = (int)c->index_top_k + DRAFTS_MAX;
	ws->mtp_in = arena_alloc(device, (size_t)ws->max_rows * 2 * c->n_embd, sizeof(float));
	ws->draft_sel =
		arena_alloc(device, (size_t)ws->draft_rows * (size_t)ws->draft_sel_stride, sizeof(int32_t));
	ws->draft_n_sel = arena_alloc(device, ws->draft_rows, sizeof(int32_t));
	ws->draft_logits = arena_alloc(shared, c->n_vocab, sizeof(float));
}

static void workspace_layout(
	struct workspace *ws, const struct model_config *c, struct arena *device, struct arena *shared)
{
	const size_t r = ws->max_rows, f = sizeof(float), i = sizeof(int32_t);
	size_t width = config_cache_width(c), ff = MAX(c->n_dense ? c->ff_dense : 0, c->ff_shared);
	size_t ahead = LOOKAHEAD_MAX * lookahead_max_rows(ws->max_rows);
	ws->logit_rows = MIN(ws->max_rows, LOGIT_ROWS);
	ws->drawn = arena_alloc(shared, ws->logit_rows, sizeof *ws->drawn);
	ws->expert_ids = arena_alloc(shared, r * c->n_used, sizeof(uint64_t));
	ws->predicted_ids = arena_alloc(shared, 2 * ahead * c->n_used, sizeof(uint64_t));
	ws->step = arena_alloc(device, workspace_step_bytes(ws, ws->max_rows), 1);
	ws->cos_sin = arena_alloc(device, r * c->head_rope, f);
	ws->x = arena_alloc(device, r * c->n_embd, f);
	ws->h = arena_alloc(device, r * c->n_embd, f);
	ws->q_latent = arena_alloc(device, r * c->q_rank, f);
	ws->kv = arena_alloc(device, r * width, f);
	ws->index_q = arena_alloc(device, r * c->index_heads * c->index_dim, f);
	ws->index_k = arena_alloc(device, r * c->index_dim, f);
	ws->index_w = arena_alloc(device, r * c->index_heads, f);
	ws->sel = arena_alloc(device, r * c->index_top_k, i);
	ws->n_sel = arena_alloc(device, r, i);
	ws->router = arena_alloc(device, r * c->n_experts, f);
	ws->route_weights = arena_alloc(device, r * c->n_used, f);
	ws->shared_out = arena_alloc(device, r * c->n_embd, f);
	ws->predicted_h = arena_alloc(device, ahead * c->n_embd, f);
	ws->predicted_logits = arena_alloc(device, ahead * c->n_experts, f);
	size_t states = ws->mtp_sessions ? workspace_zero_row(ws) + 1 - ws->max_rows : 0;
	if (config_has_end(c)) {
		ws->hidden = arena_alloc(device, (r + states) * c->n_embd, f);
		ws->logits = arena_alloc(device, (size_t)ws->logit_rows * c->n_vocab, f);
	}
	if (ws->mtp_sessions)
		draft_layout(ws, c, device, shared);
	/* attention and network take turns, and so do the heads' queries and their results */
	struct arena network = *device;
	ws->q = ws->o = arena_alloc(device, r * c->n_heads * MAX(config_head_qk(c), c->head_value), f);
	ws->q_abs = arena_alloc(device, r * c->n_heads * width, f);
	ws->z = arena_alloc(device, r * c->n_heads * c->kv_rank, f);
	ws->gate = arena_alloc(&network, r * ff, f);
	ws->up = arena_alloc(&network, r * ff, f);
	ws->expert_out = arena_alloc(&network, r * c->n_used * c->n_embd, f);
	device->used = MAX(device->used, network.used);
}

size_t workspace_bytes(
	const struct model_config *c, uint32_t mtp_sessions, size_t embed_row_bytes, uint32_t max_rows)
{
	struct workspace ws = {
		.max_rows = max_rows, .mtp_sessions = mtp_sessions, .embed_row_bytes = embed_row_bytes};
	struct arena device = {0}, shared = {0};
	workspace_layout(&ws, c, &device, &shared);
	return device.used + shared.used;
}

static void upload_zero_row(struct workspace *ws, const struct model_config *c, struct backend *b)
{
	float *zeros = NEW_ARRAY(float, c->n_embd);
	b->ops->upload(b, ws->hidden + (size_t)workspace_zero_row(ws) * c->n_embd, zeros,
		c->n_embd * sizeof *zeros);
	free(zeros);
}

int workspace_init(struct workspace *ws, const struct model_config *c, uint32_t mtp_sessions,
	size_t embed_row_bytes, uint32_t max_rows, struct backend *b, struct err *e)
{
	*ws = (struct workspace){
		.max_rows = max_rows, .mtp_sessions = mtp_sessions, .embed_row_bytes = embed_row_bytes};
	struct arena device = {0}, shared = {0};
	workspace_layout(ws, c, &device, &shared);
	ws->device_bytes = device.used;
	ws->shared_bytes = shared.used;
	int rc;
	if ((rc = b->ops->alloc(b, MEM_DEVICE, device.used, &ws->device, e)) ||
		(rc = b->ops->alloc(b, MEM_SHARED, shared.used, &ws->shared, e))) {
		err_prefix(e, "workspace of %u rows", max_rows);
		return rc;
	}
	device = (struct arena){.base = ws->device};
	shared = (struct arena){.base = ws->shared};
	memset(ws->shared, 0, ws->shared_bytes);
	workspace_layout(ws, c, &device, &shared);
	if (mtp_sessions)
		upload_zero_row(ws, c, b);
	return 0;
}

void workspace_fini(struct workspace *ws, struct backend *b)
{
	b->ops->free(b, MEM_DEVICE, ws->device, ws->device_bytes);
	b->ops->free(b, MEM_SHARED, ws->shared, ws->shared_bytes);
	*ws = (struct workspace){0};
}
