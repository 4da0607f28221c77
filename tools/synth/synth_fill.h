/* SPDX-License-Identifier: MIT */
/*
 * Random weights of any type, as packed blocks: every byte of a block is random but the
 * half-precision scales, which are set so that the dequantised values have a wanted mean square.
 * Nothing is quantised, so it runs at memory speed.
 *
 * Counter-based: what stands at an offset depends on the seed, the number of the tensor and that
 * offset alone, so any thread may make any piece, in any order.
 */
#ifndef GLM_TOOLS_SYNTH_FILL_H
#define GLM_TOOLS_SYNTH_FILL_H

#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What one tensor is filled with; constant once made. */
struct synth_fill {
	enum dtype type;
	uint64_t stream;  /* from seed and tensor */
	float mean, rms;  /* plain types: uniform about the mean, with this deviation */
	uint16_t d, dmin; /* packed types: the scales as halves; the sign of both is random */
};

/* Can synth_fill_bytes make this type? Every type that dequant_row reads. */
bool synth_fill_supported(enum dtype type);

/* Values with deviation `rms`; packed types have mean 0 whatever is asked for. */
void synth_fill_init(
	struct synth_fill *f, enum dtype type, uint64_t seed, uint64_t tensor, float mean, float rms);

/* The bytes [offset, offset + bytes) of the tensor; offset is a multiple of 8 and of the block,
 * bytes of the block. dst has room for up to 7 bytes more, which are overwritten. */
void synth_fill_bytes(const struct synth_fill *f, uint64_t offset, void *dst, size_t bytes);

/* The random bytes themselves, under the same conditions. */
void synth_fill_random(const struct synth_fill *f, uint64_t offset, void *dst, size_t bytes);

#endif
