/* SPDX-License-Identifier: MIT */
/*
 * splitmix64 as a counter: word i of a stream is mix(stream + i * odd constant), which is what
 * src/base/rng.h walks through one by one.
 *
 * Why the sign of the scale is random: in several types the mean of a random block is not quite
 * zero (int8 -0.5, six-bit scales -0.5 of 32). Over 78 layers even such a small common part would
 * add up in the residual stream; with a random sign it averages out. Types with a minimum (y = d s
 * q - dmin m) have both signs turned, and dmin = d * mean(q).
 */
#include "tools/synth/synth_fill.h"

#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/blocks.h"
#include "src/quant/dequant.h"

#include <math.h>
#include <stdlib.h>

/* Where the scales stand. */
static const struct layout {
	bool known;
	uint16_t d;       /* offset of the scale */
	uint16_t dmin;    /* offset of the second one; 0: there is none (no type has it at the start) */
	float dmin_ratio; /* dmin / d for a mean of 0 */
} layouts[DTYPE_LIMIT] = {
	[DTYPE_Q4_0] = {true, offsetof(struct block_q4_0, d), 0, 0},
	[DTYPE_Q8_0] = {true, offsetof(struct block_q8_0, d), 0, 0},
	[DTYPE_Q2_K] = {true, offsetof(struct block_q2_k, d), offsetof(struct block_q2_k, dmin), 1.5f},
	[DTYPE_Q3_K] = {true, offsetof(struct block_q3_k, d), 0, 0},
	[DTYPE_Q4_K] = {true, offsetof(struct block_q4_k, d), offsetof(struct block_q4_k, dmin), 7.5f},
	[DTYPE_Q5_K] = {true, offsetof(struct block_q5_k, d), offsetof(struct block_q5_k, dmin), 15.5f},
	[DTYPE_Q6_K] = {true, offsetof(struct block_q6_k, d), 0, 0},
	[DTYPE_IQ2_XXS] = {true, offsetof(struct block_iq2_xxs, d), 0, 0},
	[DTYPE_IQ2_XS] = {true, offsetof(struct block_iq2_xs, d), 0, 0},
	[DTYPE_IQ2_S] = {true, offsetof(struct block_iq2_s, d), 0, 0},
	[DTYPE_IQ3_XXS] = {true, offsetof(struct block_iq3_xxs, d), 0, 0},
	[DTYPE_IQ3_S] = {true, offsetof(struct block_iq3_s, d), 0, 0},
	[DTYPE_IQ1_S] = {true, offsetof(struct block_iq1_s, d), 0, 0},
	[DTYPE_IQ1_M] = {true, offsetof(struct block_iq1_m, sc), 0,
		0}, /* in the top nibbles of four words */
	[DTYPE_IQ4_NL] = {true, offsetof(struct block_iq4_nl, d), 0, 0},
	[DTYPE_IQ4_XS] = {true, offsetof(struct block_iq4_xs, d), 0, 0},
};

#define ODD        0x9e3779b97f4a7c15u
#define SIGN       0x8000u
#define HALF_ONE   0x3c00u
#define PROBE_ROWS 256 /* random blocks from which the spread of a type is taken */

static inline uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static bool is_plain(enum dtype type)
{
	return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

bool synth_fill_supported(enum dtype type)
{
	return is_plain(type) || ((uint32_t)type < DTYPE_LIMIT && layouts[type].known);
}

static void set_scales(const struct synth_fill *f, uint8_t *block)
{
	const struct layout *l = &layouts[f->type];
	uint8_t *at = block + l->d;
	if (f->type == DTYPE_IQ1_M) {
		uint16_t sign = load_u16(at + 6) & SIGN, d = f->d | sign;
		for (int i = 0; i < 4; i++)
			store_u16(
				at + 2 * i, (uint16_t)((load_u16(at + 2 * i) & 0x0fff) | (d >> 4 * i & 15) << 12));
		return;
	}
	uint16_t sign = load_u16(at) & SIGN;
	store_u16(at, f->d | sign);
	if (l->dmin)
		store_u16(block + l->dmin, f->dmin | sign);
}

/* Values of plain types are uniform: no table, no logarithm. */
static void make_plain(const struct synth_fill *f, uint8_t *p, size_t bytes)
{
	const float width = f->rms * 1.7320508f; /* uniform in [-w, w] has the deviation w / sqrt(3) */
	if (f->type == DTYPE_F32) {
		for (size_t i = 0; i + 4 <= bytes; i += 4) {
			float v = f->mean + width * (float)(int32_t)load_u32(p + i) * 0x1p-31f;
			store_u32(p + i, f32_bits(v));
		}
		return;
	}
	for (size_t i = 0; i + 2 <= bytes; i += 2) {
		float v = f->mean + width * ((float)(int16_t)load_u16(p + i) + 0.5f) * 0x1p-15f;
		store_u16(p + i, f->type == DTYPE_F16 ? f32_to_f16(v) : f32_to_bf16(v));
	}
}

void synth_fill_random(const struct synth_fill *f, uint64_t offset, void *dst, size_t bytes)
{
	uint8_t *p = dst;
	uint64_t z = f->stream + offset / 8 * ODD;
	for (size_t i = 0; i < bytes; i += 8, z += ODD)
		store_u64(p + i, mix(z));
}

void synth_fill_bytes(const struct synth_fill *f, uint64_t offset, void *dst, size_t bytes)
{
	uint8_t *p = dst;
	synth_fill_random(f, offset, dst, bytes);
	if (is_plain(f->type)) {
		make_plain(f, p, bytes);
		return;
	}
	size_t step = dtype_info(f->type)->block_bytes;
	for (size_t i = 0; i < bytes; i += step)
		set_scales(f, p + i);
}

/* Root of the mean square of random blocks of the type with a scale of 1. */
static double spread_of(const struct synth_fill *unit)
{
	const struct dtype_info *info = dtype_info(unit->type);
	const size_t bytes = (size_t)PROBE_ROWS * info->block_bytes,
				 n = (size_t)PROBE_ROWS * info->block_values;
	uint8_t *packed = mem_new(bytes + 8, 1);
	float *v = mem_new(n, sizeof *v);
	double sum = 0;
	synth_fill_bytes(unit, 0, packed, bytes);
	dequant_row(unit->type, packed, v, n);
	for (size_t i = 0; i < n; i++)
		sum += (double)v[i] * (double)v[i];
	free(packed);
	free(v);
	return sqrt(sum / (double)n);
}

void synth_fill_init(
	struct synth_fill *f, enum dtype type, uint64_t seed, uint64_t tensor, float mean, float rms)
{
	*f = (struct synth_fill){.type = type,
		.stream = mix(mix(seed + ODD) + (tensor + 1) * ODD),
		.mean = mean,
		.rms = rms};
	if (is_plain(type))
		return;
	const float ratio = layouts[type].dmin_ratio;
	struct synth_fill unit = {.type = type, .d = HALF_ONE, .dmin = f32_to_f16(ratio)};
	float d = (float)((double)rms / spread_of(&unit));
	f->d = f32_to_f16(d);
	f->dmin = f32_to_f16(f16_to_f32(f->d) * ratio);
}
