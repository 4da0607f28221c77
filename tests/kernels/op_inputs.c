/* SPDX-License-Identifier: MIT */
/* See op_inputs.h. */
#include "tests/kernels/op_inputs.h"

#include "src/base/half.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/blocks.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct rng rng_of(uint64_t seed, int tag)
{
	struct rng r = {seed * 1000003 + (uint64_t)tag};
	rng_u64(&r);
	return r;
}

/* Four uniform numbers of 16 bits added up: near enough to a normal distribution, and quick. */
static float normal(struct rng *r)
{
	uint64_t u = rng_u64(r);
	int sum =
		(int)(u & 0xffff) + (int)(u >> 16 & 0xffff) + (int)(u >> 32 & 0xffff) + (int)(u >> 48);
	return (float)(sum - 131070) * 2.6429e-5f;
}

void op_random(uint64_t seed, int tag, float *out, size_t n)
{
	struct rng r = rng_of(seed, tag);
	for (size_t i = 0; i < n; i++)
		out[i] = normal(&r) * (rng_below(&r, 200) ? 1.0f : 30.0f);
}

/* Where a block keeps its halves; IQ1_M has its one spread over four nibbles. */
static int half_fields(enum dtype type, size_t at[2])
{
	switch (type) {
		/* clang-format off */
#define ONE(t, s) case DTYPE_##t: at[0] = offsetof(struct block_##s, d); return 1;
#define TWO(t, s) case DTYPE_##t: at[0] = offsetof(struct block_##s, d); \
		at[1] = offsetof(struct block_##s, dmin); return 2;
	ONE(Q4_0, q4_0) ONE(Q8_0, q8_0) TWO(Q2_K, q2_k) ONE(Q3_K, q3_k) TWO(Q4_K, q4_k) TWO(Q5_K, q5_k)
	ONE(Q6_K, q6_k) ONE(IQ2_XXS, iq2_xxs) ONE(IQ2_XS, iq2_xs) ONE(IQ2_S, iq2_s)
	ONE(IQ3_XXS, iq3_xxs) ONE(IQ3_S, iq3_s) ONE(IQ1_S, iq1_s) ONE(IQ4_NL, iq4_nl)
	ONE(IQ4_XS, iq4_xs) ONE(Q5_0, q5_0) ONE(TQ1_0, tq1_0) ONE(TQ2_0, tq2_0) ONE(Q1_0, q1_0)
	ONE(Q2_0, q2_0)
#define WITH_MIN(t, s) case DTYPE_##t: at[0] = offsetof(struct block_##s, d); \
		at[1] = offsetof(struct block_##s, m); return 2;
	WITH_MIN(Q4_1, q4_1) WITH_MIN(Q5_1, q5_1)
#undef WITH_MIN
		/* clang-format on */
#undef ONE
#undef TWO
								default : return 0;
	}
}

void op_random_blocks(uint64_t seed, int tag, enum dtype type, void *out, size_t bytes)
{
	struct rng r = rng_of(seed, tag);
	uint8_t *p = out, *end = p + bytes;
	size_t at[2], step = dtype_info(type)->block_bytes;
	int n = half_fields(type, at);
	if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16) {
		for (; p < end; p += step) {
			float v = normal(&r) * (rng_below(&r, 200) ? 0.1f : 3.0f);
			if (type == DTYPE_F32)
				memcpy(p, &v, sizeof v);
			else
				store_u16(p, type == DTYPE_F16 ? f32_to_f16(v) : f32_to_bf16(v));
		}
		return;
	}
	for (; p < end; p += step) {
		for (size_t i = 0; i < step; i++)
			p[i] = (uint8_t)(rng_u64(&r) >> 56);
		if (type == DTYPE_F8_E4M3 && (*p & 0x7f) == 0x7f) /* no number */
			*p = 0;
		for (int i = 0; i < n;
			 i++) /* a block in 16 has a tenfold scale, one in 64 a subnormal half */
			store_u16(p + at[i],
				f32_to_f16(
					normal(&r) * (rng_below(&r, 64) ? rng_below(&r, 16) ? 0.002f : 0.02f : 1e-6f)));
		if (type == DTYPE_MXFP4) /* 2^-10 .. 2^-3 */
			p[offsetof(struct block_mxfp4, e)] = (uint8_t)(118 + rng_below(&r, 8));
		if (type == DTYPE_IQ1_M) {
			uint16_t d = f32_to_f16(normal(&r) * 0.02f);
			for (int i = 0; i < 4; i++) {
				uint8_t *word = p + offsetof(struct block_iq1_m, sc) + 2 * i;
				store_u16(word, (uint16_t)((load_u16(word) & 0xfff) | (d >> 4 * i & 15) << 12));
			}
		}
	}
}

void *op_host_new(struct op_pool *p, size_t bytes)
{
	if (p->n_host == ARRAY_LEN(p->host))
		bug("more than %d buffers in a case", p->n_host);
	return p->host[p->n_host++] = mem_new(bytes ? bytes : 1, 1);
}

float *op_floats(struct op_pool *p, int tag, size_t n)
{
	float *v = op_host_new(p, n * sizeof *v);
	op_random(p->seed, tag, v, n);
	return v;
}

uint64_t op_seed_of(const struct op_case *c)
{
	uint64_t seed = (uint64_t)c->op * 64 + (uint64_t)c->type;
	for (const char *p = c->name; *p; p++)
		seed = seed * 31 + (unsigned char)*p;
	return seed * 7919 + (uint64_t)(c->n_in + c->n_out + c->far);
}

struct weight op_weight_new(
	struct op_pool *p, int tag, enum dtype type, int64_t n_in, int64_t n_out, int64_t n_stack)
{
	uint64_t row = 0;
	dtype_row_bytes(type, (uint64_t)n_in, &row);
	size_t bytes = row * (size_t)(n_out * n_stack);
	void *data = op_host_new(p, bytes);
	op_random_blocks(p->seed, tag, type, data, bytes);
	struct weight w = {data, type, n_in, n_out, n_stack, row, row * (size_t)n_out, NULL};
	if (type == DTYPE_F8_E4M3) { /* values reach 448 */
		const size_t n = op_scales_bytes(&w) / sizeof(float);
		float *scales = op_floats(p, tag + 1000, n);
		for (size_t i = 0; i < n; i++)
			scales[i] *= 0.001f;
		w.scales = scales;
	}
	return w;
}

size_t op_scales_bytes(const struct weight *w)
{
	const int64_t block = DTYPE_SCALE_BLOCK;
	const int64_t n = (w->n_out + block - 1) / block * ((w->n_in + block - 1) / block);
	return w->type == DTYPE_F8_E4M3 ? (size_t)n * sizeof(float) : 0;
}

const uint8_t *op_weight_row(const struct weight *w, int64_t stack, int64_t row)
{
	return (const uint8_t *)w->data + (size_t)stack * w->stack_bytes + (size_t)row * w->row_bytes;
}

void op_make_rows(const struct op_case *c, bool append, int32_t *pos, int32_t *base)
{
	struct rng r = rng_of(op_seed_of(c), 90);
	for (int i = 0; i < c->rows; i++) {
		pos[i] = append ? i / OP_SEQUENCES + 3 : (int32_t)rng_below(&r, (uint32_t)c->far + 1);
		if (i == c->rows - 1 && !append)
			pos[i] = c->far;
		base[i] = i % OP_SEQUENCES * (c->far + 1);
	}
}

size_t op_cache_rows(const struct op_case *c)
{
	return (size_t)MIN(c->rows, OP_SEQUENCES) * (size_t)(c->far + 1);
}

float *op_cache_new(struct op_pool *p, const struct op_case *c, int width)
{
	size_t n = op_cache_rows(c) * (size_t)width;
	float *v = op_floats(p, 91, n);
	struct rng r = rng_of(p->seed, 92);
	for (size_t i = 0; i < n; i++) {
		if (c->whole)
			v[i] = (float)rng_below(&r, 5) - 2;
		if (c->type == DTYPE_F16)
			v[i] = f16_to_f32(f32_to_f16(v[i]));
	}
	/* doubles, so that equal scores occur: every 17th row repeats the one 5 before it */
	for (size_t row = 17; row < op_cache_rows(c); row += 17)
		memcpy(v + row * (size_t)width, v + (row - 5) * (size_t)width, (size_t)width * sizeof *v);
	return v;
}

float *op_rope_new(struct op_pool *p, const struct op_case *c)
{
	float *v = op_floats(p, 93, (size_t)c->rows * (size_t)c->dim);
	for (int i = 0; i < c->rows * c->dim / 2; i++) {
		double angle = v[2 * i];
		v[2 * i] = (float)cos(angle);
		v[2 * i + 1] = (float)sin(angle);
	}
	return v;
}

void op_embed_ids(const struct op_case *c, int32_t *ids)
{
	for (int i = 0; i < c->rows; i++)
		ids[i] = (i * 17 + c->n_out - 1) % c->n_out;
}

float *op_inverse_frequencies(struct op_pool *p, const struct op_case *c)
{
	float *v = op_host_new(p, (size_t)c->dim * 2);
	for (int i = 0; i < c->dim / 2; i++)
		v[i] = (float)pow(8000000.0, -2.0 * i / c->dim);
	return v;
}

void op_index_inputs(struct op_pool *p, const struct op_case *c, float **q, float **weight)
{
	size_t n = (size_t)c->rows * (size_t)c->heads;
	*q = op_floats(p, 1, n * (size_t)c->dim);
	*weight = op_floats(p, 2, n);
	struct rng r = rng_of(p->seed, 3);
	for (size_t i = 0; c->whole && i < n * (size_t)c->dim; i++)
		(*q)[i] = (float)rng_below(&r, 5) - 2;
	for (size_t i = 0; c->whole && i < n; i++)
		(*weight)[i] = (float)rng_below(&r, 7) - 3;
}

void op_attend_lists(const struct op_case *c, int32_t *sel, int32_t *n_sel)
{
	int32_t pos[c->rows], base[c->rows];
	struct rng rng = rng_of(op_seed_of(c), 7);
	op_make_rows(c, false, pos, base);
	for (int r = 0; r < c->rows; r++) {
		int most = MIN(pos[r] + 1, c->top_k), want = 1 + (int)rng_below(&rng, (uint32_t)most),
			have = 0;
		want = r == 0 ? 1 : r == c->rows - 1 ? most : want;
		for (int t = 0; t <= pos[r] && have < want;
			 t++) /* each with the chance that brings `want` of them */
			if ((int)rng_below(&rng, (uint32_t)(pos[r] + 1 - t)) < want - have)
				sel[r * c->top_k + have++] = t;
		n_sel[r] = have;
	}
}

/* Which expert's logits expert e has: one before it, or its own. With the biases of set_router_bias
 * experts 4 i + 1 and 4 i + 2 tie, and expert 4 i + 3 of one half with that of the other (a lane of
 * a warp has eight neighbours). */
static int same_expert(int e, int n_experts)
{
	int half = n_experts / 8 * 4;
	if (e % 4 == 3)
		return e >= half ? e - half : e;
	return e / 4 * 4;
}

/* Equal only where experts tie: else rounding would decide between scores that are close. */
static void set_router_bias(float *bias, int n_experts)
{
	for (int e = 0; e < n_experts; e++) {
		int same = same_expert(e, n_experts);
		if (e % 4 == 3 && same != e)
			bias[e] = bias[same];
		else
			bias[e] = e % 4 == 2 ? bias[e - 1] : 0.1f * bias[e];
	}
}

void op_route_inputs(struct op_pool *p, const struct op_case *c, float **logits, float **bias)
{
	*logits = op_floats(p, 1, (size_t)(c->rows * c->heads));
	*bias = op_floats(p, 2, (size_t)c->heads);
	set_router_bias(*bias, c->heads);
	for (int i = 0; i < c->rows * c->heads; i++) {
		int same = same_expert(i % c->heads, c->heads);
		(*logits)[i] = (*logits)[i - i % c->heads + same];
	}
}

struct weight op_router_new(struct op_pool *p, const struct op_case *c, int i, float **bias)
{
	size_t row = (size_t)c->n_in;
	float *w = op_floats(p, 10 + i, (size_t)c->heads * row);
	for (size_t k = 0; k < (size_t)c->heads * row; k++)
		w[k] *= 0.02f;
	*bias = op_floats(p, 12 + i, (size_t)c->heads);
	set_router_bias(*bias, c->heads);
	for (int e = 0; e < c->heads; e++) {
		int same = same_expert(e, c->heads);
		if (same != e)
			memcpy(w + (size_t)e * row, w + (size_t)same * row, row * sizeof *w);
	}
	return (struct weight){.data = w,
		.type = DTYPE_F32,
		.n_in = c->n_in,
		.n_out = c->heads,
		.n_stack = 1,
		.row_bytes = row * sizeof *w,
		.stack_bytes = (size_t)c->heads * row * sizeof *w};
}

int op_expert_of(const struct op_case *c, int place)
{
	struct rng r = rng_of(op_seed_of(c) + (uint64_t)place, 8);
	return rng_below(&r, 3) ? (int)rng_below(&r, (uint32_t)c->heads) : 0;
}

void op_expert_weights(struct op_pool *p, const struct op_case *c, int i, struct weight w[3])
{
	enum dtype type = i % 2 && c->odd_type ? c->odd_type : c->type,
			   down = type == DTYPE_Q4_K ? DTYPE_Q6_K : type;
	w[0] = op_weight_new(p, 10 + 3 * i, type, c->n_in, c->n_out, 1);
	w[1] = op_weight_new(p, 11 + 3 * i, c->up_type ? c->up_type : type, c->n_in, c->n_out, 1);
	w[2] = op_weight_new(
		p, 12 + 3 * i, down == DTYPE_Q6_K && c->n_out % 256 ? type : down, c->n_out, c->n_in, 1);
}

void op_pool_free(struct op_pool *p)
{
	for (int i = 0; i < p->n_device; i++)
		p->b->ops->free(p->b, MEM_DEVICE, p->device[i], p->device_bytes[i]);
	for (int i = 0; i < p->n_host; i++)
		free(p->host[i]);
}
