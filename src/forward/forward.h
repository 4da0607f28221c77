/* SPDX-License-Identifier: MIT */
/*
 * The forward pass: rows of tokens -> hidden states and logits (specification section 2). This is
 * where the model is written down: forward.c is the frame, attention.c is MLA with its indexer,
 * moe.c the router and the experts, mtp.c the next-token-prediction layer. Each is a list of ops.
 *
 * A `model` is the loaded weights with everything a step needs besides a cache: backend, expert
 * source, workspace. One thread computes with it.
 */
#ifndef GLM_MODEL_FORWARD_H
#define GLM_MODEL_FORWARD_H

#include "kernels/backend.h"
#include "src/model/config.h"
#include "src/model/kv_cache.h"
#include "src/model/weights.h"
#include "stream/expert_source.h"

#include <stdatomic.h>

/* Activations of one step of up to max_rows rows (R); device memory unless marked shared. Cut from
 * two allocations. */
struct workspace {
	uint32_t max_rows;
	int32_t *step; /* [3 * R] tokens, positions and first cache rows of the step, as step_begin
					  puts them */
	int32_t *tokens, *pos, *base; /* [rows of the step] each, in `step` */
	float *cos_sin;               /* [R][head_rope / 2][2] */
	float *x;                     /* [R][n_embd] residual stream */
	float *h;                     /* [R][n_embd] normed input of a stage */
	float *q_latent;              /* [R][q_rank] */
	float *kv;                    /* [R][kv_rank + head_rope] */
	float *q;                     /* [R][n_heads][head_nope + head_rope] */
	float *q_abs;                 /* [R][n_heads][kv_rank + head_rope] absorbed query */
	float *z;                     /* [R][n_heads][kv_rank] attended latents */
	float *o;                     /* [R][n_heads][head_value], in the place of q */
	float *index_q;               /* [R][index_heads][index_dim] */
	float *index_k;               /* [R][index_dim] */
	float *index_w;               /* [R][index_heads] */
	int32_t *sel;                 /* [R][index_top_k] selection of the latest full layer */
	int32_t *n_sel;               /* [R] */
	float *gate, *up;             /* [R][max(ff_dense, ff_shared)], in the place of q and on */
	float *router;                /* [R][n_experts] */
	uint64_t *expert_ids;         /* [R][n_used] shared */
	float *route_weights;         /* [R][n_used] */
	float *expert_out;            /* [R][n_used][n_embd], behind up */
	float *shared_out;            /* [R][n_embd] of the shared expert */
	float *predicted_h; /* [LOOKAHEAD_MAX][D][n_embd] lookahead: the stream normed for coming layers
						   ... */
	float *predicted_logits; /* [LOOKAHEAD_MAX][D][n_experts] ... D: most rows of a decode step */
	uint64_t *predicted_ids; /* [2][LOOKAHEAD_MAX][D][n_used] shared, of even and odd layers */
	float *hidden;           /* [R][n_embd] after the final norm */
	float *mtp_in;           /* [R][2 * n_embd]; NULL without MTP */
	float *logits;           /* [logit_rows][n_vocab] */
	uint32_t logit_rows;
	void *device, *shared; /* the two allocations */
	size_t device_bytes, shared_bytes;
};

/* Some experts of a layer that were enqueued together: the device has passed refs[.. end) when the
 * mark is reached. */
struct moe_group {
	uint64_t mark;
	int end;
};

#define MOE_GROUPS 8 /* pinned at a time, at most */

/* Host memory of moe.c: which rows use which expert of the layer in hand. Sized once. */
struct moe_plan {
	int32_t *first;          /* [n_experts + 1] prefix sums into places */
	int32_t *token_slots;    /* [R * n_used] grouped by expert */
	struct expert_ref *refs; /* [n_experts] the distinct experts of the layer */
	struct expert_job *jobs; /* [n_experts] */
	bool *done;              /* [n_experts] parallel to refs: computed */
	int32_t *read_ahead;     /* [n_experts] */
	int32_t *ids;            /* [R][n_used] of the layer in hand */
	/* refs[first_pinned .. end_pinned) of layer pinned_layer are pinned: the device may still be
	 * computing with them */
	int first_pinned, end_pinned;
	uint32_t pinned_layer;
	/* those of them that have been marked, oldest first: a ring */
	struct moe_group groups[MOE_GROUPS];
	int first_group, n_groups;
};

/* A guess whose ids have not been passed on yet. */
struct prediction {
	uint64_t ticket; /* of its mark; 0: none */
	uint32_t layer;
	int rows;
};

struct model {
	struct model_config config;
	struct model_weights weights;
	struct backend *backend;      /* borrowed */
	struct expert_source *source; /* borrowed */
	bool has_mtp;
	float *inv_freq;         /* [head_rope / 2] device */
	int32_t *step_host;      /* [3 * R] what step_begin uploads */
	bool capture;            /* the stretches of the step in hand are recorded */
	const void *captured_kv; /* the cache that recorded stretches write to */
	struct workspace ws;
	struct moe_plan plan;
	struct prediction predictions[2]; /* of the latest even and odd layer */
	uint64_t expert_uses;             /* (row, rank) products asked of the source so far */
};

/* What a step may be asked to show; see struct session_taps. Host memory, all optional. */
struct forward_taps {
	float *resid_last;     /* [n_layers][n_embd] */
	uint16_t *router;      /* [n rows of the step][n_moe][n_used], sorted */
	int32_t *index_last;   /* [n_layers][index_top_k] */
	int32_t *n_index_last; /* [n_layers] */
};

/* One step. Host memory; n <= max_rows. */
struct forward_rows {
	uint32_t n;
	const int32_t *tokens; /* [n] */
	const int32_t
		*pos; /* [n]: position in the row's own sequence; rows of one sequence ascend by one */
	const int32_t *base; /* [n]: first cache row of the row's sequence */
	struct forward_taps *taps;
	atomic_bool *cancel; /* looked at before each layer; NULL: never */
	void (*on_device_busy)(
		void *user); /* called when the first layers have been given to the device; NULL: nothing */
	void *user;      /* its argument */
};

/* Takes config, weights (ownership), backend, source (borrowed). max_rows: the largest step. */
int model_init(struct model *m, const struct model_config *c, struct model_weights *w,
	bool with_mtp, struct backend *b, struct expert_source *source, uint32_t max_rows,
	struct err *e);
void model_fini(struct model *m); /* accepts a zeroed struct */

/* Device and shared bytes of the workspace for max_rows. */
size_t model_workspace_bytes(const struct model_config *c, bool with_mtp, uint32_t max_rows);

/* Computes all rows through the trunk and leaves the hidden states of the rows from `first_hidden`
 * on, after the final norm, in ws.hidden + r * n_embd. Writes the caches of all trunk layers. With
 * first_hidden < n the last ops may still be running on return (model_logits waits for them and
 * reports their failure). Errors: a failed op or expert read, ERR_INTERRUPTED; nothing is running
 * then. After an error the cache rows of this step are garbage. */
int model_forward(struct model *m, struct kv_cache *kv, const struct forward_rows *rows,
	uint32_t first_hidden, struct err *e);

/* Logits of hidden rows [first, first + n) of the last model_forward -> host out [n][n_vocab]. */
int model_logits(struct model *m, const float *hidden, uint32_t n, float *out, struct err *e);

/* ---- stages, for the files of this module ----
 *
 * A step is cut into stretches that the device runs without the host: from the experts of one layer
 * to the router of the next, and the shared expert. At its mark the host reads the router's picks
 * and says which experts to compute while the device is still busy with the rest of the stretch,
 * those at hand at once and late ones as they come.
 *
 *   device   combine  attention  routers  shared expert  experts | combine ...
 *   host     (passes on guesses) ... picks -> acquire, tell or enqueue experts
 *
 * Steps of few rows are recorded: a launch is a list of ops. With several rows experts are ops of
 * their own, so a launch is a stretch. With a single row an op waits to be told which they are
 * (experts_await), so a launch goes on through many stretches, and nothing is launched between
 * them; the host serves one layer after the other of what it has launched.
 */

/* Puts tokens, positions and first cache rows (host, [n] each) where the ops find them. max_pos of
 * the result is rounded up so that a recorded stretch serves many positions. */
struct batch step_begin(
	struct model *m, int n, const int32_t *tokens, const int32_t *pos, const int32_t *base);

/* Steps of at most so many rows are recorded. */
#define GRAPH_ROWS 8

/* See graph_begin of the backend. `first`: the layer that the stretches in hand begin with,
 * n_layers for the end of the step, n_layers + 1 for a draft; `what` (below 16) tells apart those
 * that begin alike. */
enum graph_calls segment_begin(
	struct model *m, struct kv_cache *kv, uint32_t first, const struct batch *rows, uint32_t what);

/* ws.h = the norm of x that the attention of a layer begins with. */
struct norm attention_input_norm(const struct model *m, uint32_t layer);

/* x += attention(x) of one layer; a full layer renews ws.sel, a shared layer reads it. normed: ws.h
 * is there. */
void attention_forward(
	struct model *m, struct kv_cache *kv, uint32_t layer, const struct batch *rows, bool normed);

/* Only the cache rows of a layer (latent and, on full layers, index key) from ws.x; nothing else
 * changes but scratch. What the MTP layer needs of tokens that are already known. */
void attention_append(
	struct model *m, struct kv_cache *kv, uint32_t layer, const struct batch *rows);

/* The feed-forward part of a stretch: the whole dense network of a dense layer (x += network(x))
 * and what it guesses; of an MoE layer the router with its guesses and their mark, where ops are
 * deferred shared_expert_run, and where moe_deferred the experts. */
void ffn_forward(struct model *m, uint32_t layer, const struct batch *rows);

/* What is computed beside the host's work on the experts of a layer: the shared expert. */
void shared_expert_run(struct model *m, uint32_t layer, const struct batch *rows);

/* Whether the experts of an MoE layer are told to an op that waits for them; then the ops behind
 * them can be enqueued with it. */
bool moe_deferred(const struct model *m, uint32_t layer, int rows);

/* After the stretch of an MoE layer: reads the picks, whose mark has the ticket `routed`, acquires
 * the experts and tells or enqueues them. Pins stay until the device has passed them: the next
 * call, or moe_drain, gives them back. Waits for experts that must be read. */
int moe_run_experts(
	struct model *m, uint32_t layer, uint64_t routed, const struct batch *rows, struct err *e);

/* x += the experts and the shared expert of the MoE layer in hand, then a norm of x (NULL: none).
 * The first op of the next stretch. */
void moe_combine(struct model *m, const struct batch *rows, const struct norm *next);

/* Waits for all ops, gives back every pin and forgets what was not passed on. After success and
 * after errors alike. */
int moe_drain(struct model *m, struct err *e);

/* A step of so many rows is a prefill chunk: it touches most experts of a layer once. Else it is
 * decoding. */
#define PREFILL_ROWS 32
static inline enum expert_use moe_use(int rows)
{
	return rows >= PREFILL_ROWS ? EXPERT_PREFILL : EXPERT_DECODE;
}

/* Lookahead (lookahead.c): guesses the experts of the coming source->lookahead layers by their
 * routers, run beside that of `layer` on the same stream; in decode steps, in MoE layers and the
 * dense one before them. */
#define LOOKAHEAD_MAX (NORMS_MAX - 1)
/* Rows of the guesses' buffers, which come in pairs: for even and for odd layers. */
static inline size_t lookahead_rows(const struct workspace *ws)
{
	return ws->max_rows < PREFILL_ROWS ? ws->max_rows : PREFILL_ROWS - 1;
}

/* How many layers behind `layer` a step of so many rows guesses; 0: none */
uint32_t lookahead_reach(const struct model *m, uint32_t layer, int rows);
/* [rows][n_used] of the guess made in `layer` for `distance` layers further */
uint64_t *lookahead_expert_ids(const struct model *m, uint32_t layer, uint32_t distance);
/* What guesses in `layer` has been enqueued; ticket: of its mark. */
void lookahead_enqueued(struct model *m, uint32_t layer, uint64_t ticket, int rows);
/* Waits for the guess made in `layer`, if there is one, and tells the source: when the device will
 * get there without the host. */
int lookahead_prefetch(struct model *m, uint32_t layer, struct err *e);

int moe_plan_init(struct moe_plan *p, const struct model_config *c, uint32_t max_rows);
void moe_plan_fini(struct moe_plan *p);

/* ---- MTP (mtp.c) ----
 * A pair (H_i, t_{i+1}) stands at position i: H_i is the hidden state after the final norm.
 * `before` is H of the position before the step in hand, [n_embd] device memory of the session. */

/* After model_forward over rows of ONE sequence with first_hidden 0: writes the MTP cache rows of
 * all pairs that are complete now: (before, first token) unless the first row is position 0 or
 * `before` is NULL (the pair stands in the cache), and (H_r, token_{r+1}) inside the step. */
void mtp_append(
	struct model *m, struct kv_cache *kv, const struct forward_rows *rows, const float *before);

/* Draft logits of the token after `next`, for the pair (before, next) at position pos -> host out
 * [n_vocab]. Writes that pair's cache row; ws.hidden row 0 is the layer's output. */
int mtp_draft(struct model *m, struct kv_cache *kv, const float *before, int32_t next, int32_t pos,
	int32_t base, float *out, struct err *e);

#endif
