/* SPDX-License-Identifier: MIT */
/*
 * The resident weights: what every token needs of the layers computed here (config.h), in one
 * arena of the backend's memory; the head only where the end of the model is computed. Routed
 * experts are not loaded; they are described, for an expert source. The token embedding is not
 * loaded either: a token needs one row of it. It stays where the file is mapped, and a step uploads
 * its rows to a card (segment.h).
 *
 * Order of use:
 *   1. weights_bind finds and checks every tensor, and says how much memory they need
 *   2. weights_load
 *   3. weights_free
 */
#ifndef GLM_MODEL_WEIGHTS_H
#define GLM_MODEL_WEIGHTS_H

#include "kernels/backend.h"
#include "src/format/check_values.h"
#include "src/format/gguf.h"
#include "src/model/config.h"
#include "stream/reader/reader.h"
#include "stream/source_mmap.h"

/* Float vectors are device memory of the length in the comment. */
struct layer_weights {
	const float *attn_norm;       /* [n_embd] */
	struct weight q_a;            /* n_embd -> q_rank */
	const float *q_a_norm;        /* [q_rank] */
	struct weight q_b;            /* q_rank -> n_heads * head_qk */
	struct weight kv_a;           /* n_embd -> kv_rank + head_rope */
	const float *kv_a_norm;       /* [kv_rank] */
	struct weight k_b;            /* n_heads x (head_nope -> kv_rank) */
	struct weight v_b;            /* n_heads x (kv_rank -> head_value) */
	struct weight attn_out;       /* n_heads * head_value -> n_embd */
	struct weight index_q;        /* full layers: q_rank -> index_heads * index_dim */
	struct weight index_k;        /* full layers: n_embd -> index_dim */
	struct weight index_proj;     /* full layers: n_embd -> index_heads */
	const float *index_k_gain;    /* [index_dim] */
	const float *index_k_bias;    /* [index_dim] */
	const float *ffn_norm;        /* [n_embd] */
	struct weight gate, up, down; /* dense layers: the network; MoE layers: the shared expert */
	struct weight router;         /* MoE layers: n_embd -> n_experts */
	const float *router_bias;     /* [n_experts] */
	bool experts_aligned; /* MoE layers: each lies at a multiple of DEFERRED_ALIGN in its file */
};

struct model_weights {
	struct weight embed;          /* [n_vocab][n_embd], host memory: where the file is mapped */
	struct weight head;           /* n_embd -> n_vocab; data NULL without the end of the model */
	const float *output_norm;     /* [n_embd] */
	struct layer_weights *layers; /* [n_layers + n_mtp]; zeros for layers of others */
	/* [n_layers + n_mtp] in the files, shapes as in GGUF: gate and up {n_embd, ff_expert,
	 * n_experts}, down {ff_expert, n_embd, n_experts}; NULL for layers without, or of others */
	struct expert_tensors *experts;
	struct weight eh_proj;                  /* MTP: 2 * n_embd -> n_embd; data NULL without MTP */
	const float *enorm, *hnorm, *head_norm; /* MTP: [n_embd] each */
	void *arena;                            /* backend memory behind all of the above */
	size_t arena_bytes;
};

/* Binds every tensor by name and checks its shape; no data is read. with_mtp false leaves the MTP
 * layer out. *resident_bytes: of the arena that weights_load will allocate. ERR_INPUT: a tensor
 * that is missing, or has a shape or type that does not fit; *w is zeroed. `file` and its mapping
 * outlive *w. */
int weights_bind(const struct gguf *file, const struct model_config *c, bool with_mtp,
	struct model_weights *w, size_t *resident_bytes, struct err *e);

/* Called at the start and after each tensor, with the bytes of the arena that are filled. */
struct weights_watch {
	void (*progress)(void *user, uint64_t done, uint64_t total);
	void *user;
};

/* Allocates the arena and loads the resident weights into it. Call once after weights_bind with the
 * same arguments. What is loaded, and the embedding, is compared with check values.
 * - watch: NULL for none.
 * - reader: how the files are read for a card (stream/tensor_load.h); a line says how fast it was.
 *   NULL: they are copied from where they are mapped.
 * - values: of the file; NULL: nothing is compared.
 * - Errors: ERR_MEMORY, a failed read, ERR_INPUT for bytes that are not those of the check values.
 *   weights_free is needed after an error too. */
int weights_load(const struct gguf *file, const struct model_config *c, bool with_mtp,
	struct backend *b, struct model_weights *w, const struct weights_watch *watch,
	const struct reader_options *reader, const struct check_values *values, struct err *e);

/* Bytes of the matrices of a bound layer that every token reads, routed experts excluded. */
uint64_t weights_layer_bytes(const struct model_weights *w, uint32_t layer);
/* Bytes of a layer's routed experts in the file; 0 for a layer without. */
uint64_t weights_expert_bytes(const struct model_weights *w, uint32_t layer);

/* Accepts a zeroed or bound-only struct. */
void weights_free(struct model_weights *w, struct backend *b);

#endif
