/* SPDX-License-Identifier: MIT */
/*
 * A folder with a Hugging Face checkpoint (BF16, F16, F32 or FP8 with 128 x 128 block scales) as a
 * model that can be run as it is. It is presented as a struct gguf (src/format/gguf.h):
 *
 * - keys: those that `convert` would write, from config.json, generation_config.json,
 *   tokenizer.json and the chat template;
 * - files: the shards, mapped;
 * - tensors: GGUF's names and shapes, with the types of the checkpoint. Their bytes are those of
 *   the shards: an expert is read from its shard as it stands there, scales included.
 *
 * Some tensors are computed when they are loaded (gguf_make):
 * - attn_k_b, whose heads GGUF has transposed;
 * - of tensors with block scales: attn_v_b, a part of another tensor, and those with BF16 scales.
 * Those with scales become F32, so their values are exact. So every weight is the number that
 * `convert --recipe f32` would store. Experts and the embedding are never computed: where they
 * would have to be, the folder is refused.
 */
#ifndef GLM_CHECKPOINT_CHECKPOINT_H
#define GLM_CHECKPOINT_CHECKPOINT_H

#include "src/format/gguf.h"

/* Opens a model: a folder, or a GGUF (gguf_open). On success *out is the caller's, to be released
 * with gguf_close. ERR_INPUT for what is missing, damaged, or of another architecture. */
int model_file_open(const char *path, struct gguf **out, struct err *e);

/* Opens a folder. */
int checkpoint_open(const char *folder, struct gguf **out, struct err *e);

/* Raises the process's limit of open files as far as it may: a large checkpoint has many shards. */
void checkpoint_raise_file_limit(void);

#endif
