/* SPDX-License-Identifier: MIT */
/* What a model with random weights says of itself: its shape, its tokenizer, the keys by which it
 * is known as such. */
#ifndef GLM_TOOLS_SYNTH_MODEL_H
#define GLM_TOOLS_SYNTH_MODEL_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/format/gguf_write.h"
#include "src/checkpoint/convert_config.h"
#include "src/checkpoint/convert_map.h"
#include "tools/synth/synth_fill.h"

#define SYNTH_SEED_KEY "glmstream.synth.seed"
#define SYNTH_ALIAS_KEY                                                                            \
	GGUF_SHARED_DATA_KEY /* layers of expert data in the file, when they are shared */

/* The released GLM-5.2. */
void synth_model_glm52(struct convert_config *c);

/* Keeps the first n trunk layers (0: all). */
void synth_model_cut(struct convert_config *c, uint32_t n_layers);

/* Declares the tokenizer of a GGUF, its vocabulary padded to that of the shape; stop ids and
 * padding with it. ERR_INPUT: none in that file, or larger than the shape's. */
int synth_model_tokenizer(
	struct gguf_writer *w, const struct convert_config *c, const char *path, struct err *e);

/* How a tensor is filled so that activations stay sane: matrices keep the mean square of what they
 * are given, so that a layer adds about as much to the residual stream as the embedding has put
 * there; gains lie about 1; routers spread. `tensor` is its number in the file, or that of the
 * tensor whose data it shares. */
void synth_model_fill(
	struct synth_fill *f, const struct convert_tensor *t, uint64_t seed, uint64_t tensor);

#endif
