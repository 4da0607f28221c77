/* SPDX-License-Identifier: MIT */
/*
 * The contract of kernels/expert_arithmetic.h in plain C, one output at a time: the reference for
 * the vector versions and the fallback on other machines. Also which versions this machine runs.
 */
#include "kernels/cpu/limbs/limb_rows.h"

#include "kernels/cpu/cpu_dot.h"
#include "kernels/cpu/limbs/limb_split.h"
#include "src/base/half.h"
#include "src/base/num.h"
#include "src/quant/blocks.h"
#include "src/quant/iq_grids.h"
#include "src/quant/k_scales.h"

#include <math.h>
#include <string.h>

/* ---- weights ---- */

/* A super-block of a weight row as whole numbers. Weight i is
 *     unit * scale[i / 16] * q[i] - minimum * least[i / 16]
 *     step_unit[i / 32] * q[i]                                 (Q8_0) */
struct super_block {
	int q[256], scale[16], least[16];
	float unit, minimum, step_unit[LIMB_STEPS];
};

static void codebook_octet(uint64_t row, unsigned signs, int *q)
{
	for (int i = 0; i < 8; i++) {
		int magnitude = (int)(row >> 8 * i & 255);
		q[i] = signs >> i & 1 ? -magnitude : magnitude;
	}
}

static void read_iq2_xxs(const uint8_t *p, struct super_block *s)
{
	s->unit = f16_to_f32(load_u16(p)) * 0.125f;
	for (int k = 0; k < 8; k++) {
		const uint8_t *group = p + 2 + 8 * k;
		uint32_t word = load_u32(group + 4);
		for (int j = 0; j < 4; j++)
			codebook_octet(
				iq2xxs_grid[group[j]], iq_signs[word >> 7 * j & 127], s->q + 32 * k + 8 * j);
		s->scale[2 * k] = s->scale[2 * k + 1] = (int)(2 * (word >> 28) + 1);
	}
}

static void read_iq2_xs(const uint8_t *p, struct super_block *s)
{
	s->unit = f16_to_f32(load_u16(p)) * 0.125f;
	for (int j = 0; j < 32; j++) {
		unsigned word = load_u16(p + 2 + 2 * j);
		codebook_octet(iq2xs_grid[word & 511], iq_signs[word >> 9], s->q + 8 * j);
	}
	for (int i = 0; i < 16; i++)
		s->scale[i] = 2 * (p[66 + i / 2] >> 4 * (i % 2) & 15) + 1;
}

static void read_q2_k(const uint8_t *p, struct super_block *s)
{
	s->unit = f16_to_f32(load_u16(p + 80));
	s->minimum = f16_to_f32(load_u16(p + 82));
	for (int i = 0; i < 256; i++)
		s->q[i] = p[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
	for (int i = 0; i < 16; i++) {
		s->scale[i] = p[i] & 15;
		s->least[i] = p[i] >> 4;
	}
}

static void read_q3_k(const uint8_t *p, struct super_block *s)
{
	s->unit = f16_to_f32(load_u16(p + 108));
	for (int i = 0; i < 256; i++)
		s->q[i] = (p[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) +
				  4 * (p[i % 32] >> i / 32 & 1) - 4;
	for (int i = 0; i < 16; i++)
		s->scale[i] = k_scale6_signed(p + 96, i);
}

static void read_q4_k(const uint8_t *p, struct super_block *s)
{
	s->unit = f16_to_f32(load_u16(p));
	s->minimum = f16_to_f32(load_u16(p + 2));
	for (int i = 0; i < 256; i++)
		s->q[i] = p[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
	for (int i = 0; i < 16; i++) {
		s->scale[i] = k_scale6(p + 4, i / 2);
		s->least[i] = k_min6(p + 4, i / 2);
	}
}

static void read_q6_k(const uint8_t *p, struct super_block *s)
{
	s->unit = f16_to_f32(load_u16(p + 208));
	for (int i = 0; i < 256; i++) {
		int h = i / 128, g = i % 128 / 32, l = i % 32;
		int low = p[64 * h + g % 2 * 32 + l] >> g / 2 * 4 & 15,
			high = p[128 + 32 * h + l] >> 2 * g & 3;
		s->q[i] = (low | high << 4) - 32;
	}
	for (int i = 0; i < 16; i++)
		s->scale[i] = (int8_t)p[192 + i];
}

static void read_q8_0(const uint8_t *p, int steps, struct super_block *s)
{
	memset(s, 0, sizeof *s);
	for (int k = 0; k < steps; k++, p += sizeof(struct block_q8_0)) {
		s->step_unit[k] = f16_to_f32(load_u16(p));
		for (int i = 0; i < 32; i++)
			s->q[32 * k + i] = (int8_t)p[2 + i];
	}
}

/* ---- products ---- */

/* steps: how many blocks of 32 values the row still has, at most 8 */
static void super_block_read(enum dtype type, const uint8_t *p, int steps, struct super_block *s)
{
	switch (type) {
	case DTYPE_IQ2_XXS:
		read_iq2_xxs(p, s);
		break;
	case DTYPE_IQ2_XS:
		read_iq2_xs(p, s);
		break;
	case DTYPE_Q2_K:
		read_q2_k(p, s);
		break;
	case DTYPE_Q3_K:
		read_q3_k(p, s);
		break;
	case DTYPE_Q4_K:
		read_q4_k(p, s);
		break;
	case DTYPE_Q6_K:
		read_q6_k(p, s);
		break;
	default:
		read_q8_0(p, steps, s);
	}
}

/* Point 3 of the contract. */
static float super_block_dot(
	enum dtype type, const struct super_block *s, const struct limb_block *x, int k)
{
	if (type == DTYPE_Q8_0) {
		float v = 0;
		for (int step = 0; step < LIMB_STEPS; step++) {
			int32_t sum = 0;
			for (int i = 32 * step; i < 32 * step + 32; i++)
				sum += s->q[i] * x->limb[k][i];
			v = fmaf(s->step_unit[step], (float)sum, v);
		}
		return v;
	}
	int32_t whole = 0, least = 0;
	for (int i = 0; i < 256; i++) {
		int limb = x->limb[k][limb_place(type, i)];
		whole += s->scale[i / 16] * s->q[i] * limb;
		least += s->least[i / 16] * limb;
	}
	float v = s->unit * (float)whole;
	return type == DTYPE_Q2_K || type == DTYPE_Q4_K ? fmaf(-s->minimum, (float)least, v) : v;
}

static void c_multiply(const struct limb_task *t)
{
	const struct dtype_info *info = dtype_info(t->type);
	size_t super_block_bytes = 256 / info->block_values * info->block_bytes;
	int64_t n_blocks = limb_x_blocks(t->n_in);
	int chunk = expert_chunk(t->type);
	struct super_block s = {0};
	for (int64_t r = 0; r < t->n_rows; r++) {
		float sum[LIMB_X][EXPERT_SPLIT_MAX][EXPERT_LIMBS] = {0};
		for (int64_t b = 0; b < n_blocks; b++) {
			super_block_read(t->type,
				t->w + (size_t)r * t->row_bytes + (size_t)b * super_block_bytes,
				(int)MIN((t->n_in - 256 * b) / 32, LIMB_STEPS), &s);
			for (int i = 0; i < t->n_x; i++) {
				const struct limb_block *x = t->x[i] + b;
				float *part = sum[i][b / chunk % t->n_parts];
				for (int k = 0; k < EXPERT_LIMBS; k++)
					part[k] = fmaf(x->scale, super_block_dot(t->type, &s, x, k), part[k]);
			}
		}
		for (int i = 0; i < t->n_x; i++) {
			float y = 0;
			for (int p = 0; p < t->n_parts; p++)
				y += fmaf(65536.0f, sum[i][p][0], fmaf(256.0f, sum[i][p][1], sum[i][p][2]));
			t->out[i * t->out_stride + r] = y;
		}
	}
}

void limb_round(struct limb_block *blocks, int64_t n)
{
	for (struct limb_block *b = blocks; b < blocks + limb_x_blocks(n); b++) {
		memset(b->limb[EXPERT_LIMBS - 1], 0, sizeof b->limb[0]);
		memset(b->sum[EXPERT_LIMBS - 1], 0, sizeof b->sum[0]);
		memset(b->start[0][EXPERT_LIMBS - 1], 0, sizeof b->start[0][0]);
		memset(b->start[1][EXPERT_LIMBS - 1], 0, sizeof b->start[1][0]);
	}
}

static const struct limb_isa isa_c = {"plain C", limbs_split, c_multiply, NULL, LIMB_X, NULL};
const struct limb_isa *const limb_isa_c = &isa_c;

const struct limb_isa *limb_isa_available(int level)
{
	const struct limb_isa *found[4];
	int n = 0;
#if defined(__x86_64__)
	__builtin_cpu_init();
	bool avx2 = cpu_has_avx2();
	if (limb_isa_vnni && avx2 && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
		__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni")) {
		if (limb_isa_amx && limb_amx_enable())
			found[n++] = limb_isa_amx;
		found[n++] = limb_isa_vnni;
	}
	if (limb_isa_avx2 && avx2)
		found[n++] = limb_isa_avx2;
#endif
	found[n++] = limb_isa_c;
	return level >= 0 && level < n ? found[level] : NULL;
}
