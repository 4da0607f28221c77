/* SPDX-License-Identifier: MIT */
/*
 * The activations of one step, up to max_rows rows (R). Taken once per model, in two allocations.
 * Device memory, unless a comment says shared: then the host reads it too.
 *
 * Buffers of the attention and of the feed-forward network overlap: q, q_abs and z are dead when
 * gate, up and expert_out are written, and the other way round.
 */
#ifndef GLM_FORWARD_WORKSPACE_H
#define GLM_FORWARD_WORKSPACE_H

#include "kernels/backend.h"
#include "src/model/config.h"

#define VERIFY_ROWS 8                 /* rows of a sequence whose hidden states are kept, at most */
#define DRAFTS_MAX  (VERIFY_ROWS - 1) /* drafts of a sequence at a time */

struct workspace {
	uint32_t max_rows;
	uint32_t mtp_sessions; /* S, sequences that may have drafts; 0: without the MTP layer */
	/* the rows of the step, filled by step_begin */
	uint8_t *step;                /* one upload: the three below, then embedding rows, if any */
	int32_t *tokens, *pos, *base; /* [rows of the step] each; tokens: rows of `embed` */
	struct weight embed;          /* the uploaded rows, or all of the mapped token embedding */
	size_t embed_row_bytes;       /* constant; of a row that is uploaded, 0: none are */
	float *cos_sin;               /* [R][head_rope / 2][2] */
	/* the stream */
	float *x; /* [R][n_embd] residual stream */
	float *h; /* [R][n_embd] normed input of attention, or of the network */
	/* attention */
	float *q_latent; /* [R][q_rank] */
	float *kv;       /* [R][kv_rank + head_rope] */
	float *q;        /* [R][n_heads][head_nope + head_rope] */
	float *q_abs;    /* [R][n_heads][kv_rank + head_rope] absorbed query */
	float *z;        /* [R][n_heads][kv_rank] attended latents */
	float *o;        /* [R][n_heads][head_value], in the place of q */
	float *index_q;  /* [R][index_heads][index_dim] */
	float *index_k;  /* [R][index_dim] */
	float *index_w;  /* [R][index_heads] */
	int32_t *sel;    /* [R][index_top_k] selection of the latest full layer */
	int32_t *n_sel;  /* [R] */
	/* feed-forward network */
	float *gate, *up;     /* [R][max(ff_dense, ff_shared)] */
	float *router;        /* [R][n_experts] */
	uint64_t *expert_ids; /* [R][n_used] shared: top-k expert ids, see `route` of the backend */
	float *route_weights; /* [R][n_used] */
	float *expert_out;    /* [R][n_used][n_embd], one row per (token, rank) slot */
	float *shared_out;    /* [R][n_embd] of the shared expert */
	/* lookahead; D: lookahead_max_rows */
	float *predicted_h;      /* [LOOKAHEAD_MAX][D][n_embd] the stream, normed for layers ahead */
	float *predicted_logits; /* [LOOKAHEAD_MAX][D][n_experts] */
	uint64_t *predicted_ids; /* [2][LOOKAHEAD_MAX][D][n_used] shared; of even and odd layers */
	/* the end of the model; NULL where it is not computed (config_has_end) */
	/* [R][n_embd] after the final norm. With MTP follow [S][VERIFY_ROWS] rows that outlive the
	 * step, the hidden states that drafts begin with (mtp_keep_states), and one row of zeros. */
	float *hidden;
	float *logits; /* [logit_rows][n_vocab] */
	uint32_t logit_rows;
	struct draw_result *drawn; /* [logit_rows] shared: what was drawn from them */
	uint64_t logits_serial;    /* counts how often `logits` was overwritten; never 0 after that */
	/* drafts, NULL without MTP; M: draft_rows */
	uint32_t draft_rows;  /* sequences that draft together, at most */
	float *mtp_in;        /* [R][2 * n_embd] */
	int32_t *draft_sel;   /* [M][draft_sel_stride] selection of steps 1 and later of a round */
	int32_t *draft_n_sel; /* [M] positions in it */
	int draft_sel_stride;
	float *draft_logits; /* [n_vocab] shared: a row that a chooser of drafts wants */

	void *device, *shared; /* the two allocations */
	size_t device_bytes, shared_bytes;
};

/* Device and shared bytes of a workspace for max_rows. mtp_sessions: sequences that may have
 * drafts, 0 without the MTP layer. embed_row_bytes: of a row of the token embedding, 0 where the
 * backend reads the mapped table itself. */
size_t workspace_bytes(
	const struct model_config *c, uint32_t mtp_sessions, size_t embed_row_bytes, uint32_t max_rows);

/* Rows of ws.hidden: of state `row` of sequence `session`, and of the zeros. */
uint32_t workspace_state_row(const struct workspace *ws, uint32_t session, uint32_t row);
uint32_t workspace_zero_row(const struct workspace *ws);

/* The byte of ws.step at which the embedding rows of a step of n rows begin. */
size_t workspace_step_embed(uint32_t n);
/* Bytes that a step of n rows uploads to ws.step, which is as large as max_rows needs. */
size_t workspace_step_bytes(const struct workspace *ws, uint32_t n);

/* Arguments as in workspace_bytes. ERR_MEMORY: the backend lacks the memory; workspace_fini is
 * needed then too. */
int workspace_init(struct workspace *ws, const struct model_config *c, uint32_t mtp_sessions,
	size_t embed_row_bytes, uint32_t max_rows, struct backend *b, struct err *e);
void workspace_fini(struct workspace *ws, struct backend *b); /* accepts a zeroed struct */

#endif
