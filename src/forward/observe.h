/* SPDX-License-Identifier: MIT */
/*
 * The activations that go into a model's matrices, for instruments (`glmstream imatrix`). Off, and
 * then free, until model_observe is called. The numbers of a step stay the same bits.
 *
 * Matrices with the same input share one enum observed_input. So the indexer's query matrix counts
 * every token, although short sequences skip its product.
 *
 * Not seen: the token embedding, which is a table, and the MTP layer, which no step of the trunk
 * computes.
 */
#ifndef GLM_FORWARD_OBSERVE_H
#define GLM_FORWARD_OBSERVE_H

#include "src/base/err.h"
#include "src/model/config.h"

#include <stdint.h>

struct model;

enum observed_input {
	OBSERVED_ATTENTION,    /* [n_embd] the normed stream before attention */
	OBSERVED_QUERY_LATENT, /* [q_rank], normed */
	OBSERVED_QUERY,        /* n_heads x [head_nope], into attn_k_b */
	OBSERVED_ATTENDED,     /* n_heads x [kv_rank], into attn_v_b */
	OBSERVED_HEADS,        /* [n_heads * head_value], into attn_output */
	OBSERVED_FFN,          /* [n_embd] into the dense network; of an MoE layer the shared expert */
	OBSERVED_FFN_DOWN,     /* [ff_dense or ff_shared] the SwiGLU product */
	OBSERVED_EXPERT,       /* n_experts x [n_embd], of the rows that the router sends there */
	OBSERVED_EXPERT_DOWN,  /* n_experts x [ff_expert] */
	OBSERVED_HEAD,         /* [n_embd] after the final norm, into output; layer 0 */
	OBSERVED_INPUTS
};

/* Rows of one input; valid during the call. Row i begins at
 * x + (index ? index[i] / divisor : i) * stride. */
struct observed_rows {
	enum observed_input input;
	uint32_t layer;
	uint32_t matrix; /* expert or head; 0 where there is one */
	uint32_t n_in;   /* values of a row */
	const float *x;
	int64_t stride;
	const int32_t *index;
	int32_t divisor;
	int n;
};

/* Called by the thread that computes. The rows of one matrix come in the order of the sequence. The
 * order of layers and experts depends on the cache. A step that fails may have passed some of its
 * rows. */
struct model_observer {
	void (*rows)(void *user, const struct observed_rows *rows);
	void *user;
};

/* The tensors that an input goes into, without "blk.N." and ".weight"; ends with NULL. Not every
 * layer has all of them. `moe`: the layer has experts. */
const char *const *observed_tensors(enum observed_input input, bool moe);

/* Which inputs a layer has: their matrices, and n_in of each; both are 0 if it has none. */
void observed_shape(const struct model_config *c, uint32_t layer, enum observed_input input,
	uint32_t *n_matrices, uint32_t *n_in);

/* From the next step on the observer sees every row; NULL: no longer. The struct is borrowed.
 * - What the processor computes of a card's experts (host_experts.h) is not seen.
 * - On a card steps of few rows use the kernels of prompts meanwhile, so their bits change. */
void model_observe(struct model *m, const struct model_observer *observer);

/* For model_forward, while there is an observer: passes it the n rows of ws.hidden as
 * OBSERVED_HEAD. Waits for the device. Errors: its failure, ERR_MEMORY; the observer saw none of
 * the rows then. */
int model_observe_hidden(const struct model *m, uint32_t n, struct err *e);

#endif
