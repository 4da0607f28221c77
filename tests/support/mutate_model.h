/* SPDX-License-Identifier: MIT */
/* Writes a changed copy of a GGUF: keys replaced or dropped, tensors dropped or added. For tests
 * that need a model which is wrong, or foreign, in one point. */
#ifndef GLM_TESTS_MUTATE_MODEL_H
#define GLM_TESTS_MUTATE_MODEL_H

#include "src/format/gguf.h"

#include <stdbool.h>

struct mutation {
	const char *drop_key; /* NULL: none */
	const char *u32_key;  /* replaced by u32 (added when absent); NULL: none */
	uint32_t u32;
	const char *u32_key_2; /* another one */
	uint32_t u32_2;
	const char *f32_key;
	float f32;
	const char *str_key;
	const char *str;
	const char *bools_key; /* replaced by bools[n_bools] */
	const bool *bools;
	size_t n_bools;
	const char *drop_tensor; /* NULL: none */
	const char *flat_tensor; /* loses its last dimension (all but the first slice); NULL: none */
	uint32_t alignment;      /* of the tensors; 0: the writer's */
	const uint32_t *layers;  /* [n_layers] layers to keep, renumbered from 0; an MTP layer is the
							  * last of them; NULL: all */
	uint32_t n_layers;
	bool garbage_indexers; /* every layer that lacks indexer tensors gets some, full of noise */
};

/* Returns 0, or fails the running test. */
void mutate_model(const struct gguf *from, const struct mutation *m, const char *path);

/* The path of a copy of the pocket model with one layer of each kind: dense, experts, experts that
 * reuse the selection of the layer before, MTP. It computes a row in about half the time; its text
 * has no meaning. The first call writes it below temp_dir(). The path stays valid. */
const char *small_model(void);

#endif
