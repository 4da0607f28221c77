/* SPDX-License-Identifier: MIT */
/*
 * IQ2_XXS for the card: the search of src/quant/search/quantize_iq2.h, which explains the algorithm
 * and defines P and B. Functions are named as there.
 *
 * A thread block of eight warps quantises a block of 256 weights. A warp has a group of 32 weights,
 * a lane 8 of the 256 rows of the codebook. P and B of these rows, for the four parts of the group,
 * are in registers; the error at a scale is a minimum over the warp.
 *
 * Compiled by gcc (tests/quant/test_quant_search.c), one thread has all groups and all rows.
 */
#ifndef GLM_KERNELS_CUDA_IQ2_QUANT_CUH
#define GLM_KERNELS_CUDA_IQ2_QUANT_CUH

#include "kernels/cuda/quant/quant_team.cuh"

#ifdef __CUDACC__
#define IQ2_LANES         32
#define IQ2_GROUPS        1 /* of a warp */
#define iq2_sync()        __syncthreads()
#define iq2_from(v, lane) __shfl_sync(0xffffffffu, v, lane)
#else
#define IQ2_LANES         1
#define IQ2_GROUPS        8
#define iq2_sync()        ((void)0)
#define iq2_from(v, lane) (v)
#endif

#define IQ2_ROWS       (256 / IQ2_LANES) /* rows of a lane: lane, lane + IQ2_LANES, ... */
#define IQ2_POINTS     12
#define IQ2_CANDIDATES 6
#define IQ2_RADIUS     1
#define IQ2_ROUNDS     4
#define IQ2_GROWTH     0.08f

/* In shared memory, one for each thread block. */
struct iq2_state {
	struct quant_state block;
	int exponent; /* of the block */
	bool any;     /* it is not all zeros */
	float growth;
	float dl[8]; /* real scales of the groups */
	/* of each group: for a candidate of d the best s and its error; P and B of the chosen rows */
	float error[IQ2_CANDIDATES][8], p[8], b[8];
	uint8_t s[IQ2_CANDIDATES][8];
};

/* P and B of a group's rows, for each of its parts of eight weights; a lane's share of them. */
struct iq2_rows {
	float p[4][IQ2_ROWS], b[4][IQ2_ROWS];
};

/* A row that was chosen: equal on all lanes. */
struct iq2_choice {
	int row;
	float p, b;
};

/* x, w: of the group. grid: the lane's rows of the codebook. */
QUANT_FN void iq2_load(struct iq2_rows *r, const uint64_t *grid, const float *x, const float *w)
{
	float penalty[4], wx[4][8];
	QUANT_UNROLL
	for (int j = 0; j < 4; j++) {
		int minus = 0;
		QUANT_UNROLL
		for (int i = 0; i < 8; i++) {
			wx[j][i] = w[8 * j + i] * fabsf(x[8 * j + i]);
			minus += x[8 * j + i] < 0;
		}
		penalty[j] = minus & 1 ? 2 : 0;
	}
	QUANT_UNROLL
	for (int k = 0; k < IQ2_ROWS; k++) {
		float g[8];
		QUANT_UNROLL
		for (int i = 0; i < 8; i++)
			g[i] = (float)(uint8_t)(grid[k] >> 8 * i);
		QUANT_UNROLL
		for (int j = 0; j < 4; j++) {
			float p = g[0] * wx[j][0], b = g[0] * g[0] * w[8 * j], least = p;
			QUANT_UNROLL
			for (int i = 1; i < 8; i++) {
				const float t = g[i] * wx[j][i];
				p += t;
				b += g[i] * g[i] * w[8 * j + i];
				least = least < t ? least : t;
			}
			r->p[j][k] = p - least * penalty[j];
			r->b[j][k] = b;
		}
	}
}

/* Least of the warp's values; every lane gets it. */
QUANT_FN float iq2_least(float v)
{
#ifdef __CUDACC__
	/* integers in the order of the floats: one instruction finds the least of a warp */
	const int bits = __float_as_int(v), key = bits ^ (int)((unsigned)(bits >> 31) >> 1),
			  least = __reduce_min_sync(0xffffffffu, key);
	return __int_as_float(least ^ (int)((unsigned)(least >> 31) >> 1));
#else
	return v;
#endif
}

QUANT_FN float iq2_group_error(const struct iq2_rows *r, float dl)
{
	const float twice = 2 * dl, square = dl * dl;
	float least[4];
	QUANT_UNROLL
	for (int j = 0; j < 4; j++) {
		float best = r->b[j][0] * square - r->p[j][0] * twice;
		QUANT_UNROLL
		for (int k = 1; k < IQ2_ROWS; k++) {
			const float e = r->b[j][k] * square - r->p[j][k] * twice;
			best = best < e ? best : e;
		}
		least[j] = iq2_least(best);
	}
	return (least[0] + least[1]) + (least[2] + least[3]);
}

/* Order among rows of equal error, the CPU's: it has eight SIMD lanes, of which lane l has rows l,
 * l + 8, ...; the lowest lane wins, then the lowest row. */
QUANT_FN int iq2_rank(int row)
{
	return row % 8 * 32 + row / 8;
}

/* The best row of part j. */
QUANT_FN struct iq2_choice iq2_part_row(const struct iq2_rows *r, int lane, int j, float dl)
{
	const float twice = 2 * dl, square = dl * dl;
	struct iq2_choice c = {lane, r->p[j][0], r->b[j][0]};
	float best = c.b * square - c.p * twice;
	QUANT_UNROLL
	for (int k = 1; k < IQ2_ROWS; k++) {
		const int row = k * IQ2_LANES + lane;
		const float e = r->b[j][k] * square - r->p[j][k] * twice;
		if (e < best || (e == best && iq2_rank(row) < iq2_rank(c.row))) {
			best = e;
			c.row = row;
			c.p = r->p[j][k];
			c.b = r->b[j][k];
		}
	}
#ifdef __CUDACC__
	const float least = iq2_least(best);
	const unsigned rank =
		__reduce_min_sync(0xffffffffu, best == least ? (unsigned)iq2_rank(c.row) : 0xffffffffu);
	const int row = (int)(rank % 32 * 8 + rank / 32);
	c.row = row;
	c.p = iq2_from(c.p, row % IQ2_LANES);
	c.b = iq2_from(c.b, row % IQ2_LANES);
#endif
	return c;
}

QUANT_FN void iq2_group_sums(const struct iq2_rows *r, int lane, float dl, float *p, float *b)
{
	*p = *b = 0;
	QUANT_UNROLL
	for (int j = 0; j < 4; j++) {
		const struct iq2_choice c = iq2_part_row(r, lane, j, dl);
		*p += c.p;
		*b += c.b;
	}
}

QUANT_FN float iq2_group_scale(const struct iq2_rows *r, int lane, const float *x, const float *w)
{
	float xx[8] = {0}, ww[8] = {0}, best = 0, best_dl = 0, p, b;
	QUANT_UNROLL
	for (int i = 0; i < 32; i++) {
		xx[i % 8] += w[i] * x[i] * x[i];
		ww[i % 8] += w[i];
	}
	const float size = sqrtf(lanes_sum(xx) / lanes_sum(ww)) / 22;
	for (int i = 0; i < IQ2_POINTS; i++) {
		const float dl = size * (0.55f + 0.9f / IQ2_POINTS * (float)i), e = iq2_group_error(r, dl);
		if (e < best) {
			best = e;
			best_dl = dl;
		}
	}
	iq2_group_sums(r, lane, best_dl, &p, &b);
	return p > 0 ? p / b : best_dl;
}

/* The best s of a group for d, and its error. */
QUANT_FN float iq2_fit_group(const struct iq2_rows *r, float dl, float d, uint8_t *s_out)
{
	const float ratio = d > 0 ? 4 * dl / d : 0;
	const int center = ratio < 15 ? (int)ratio : 15;
	float least = INFINITY;
	for (int s = center - IQ2_RADIUS; s <= center + IQ2_RADIUS; s++) {
		if (s < 0 || s > 15)
			continue;
		const float e = iq2_group_error(r, d * (0.5f + (float)s) * 0.25f);
		if (e < least) {
			least = e;
			*s_out = (uint8_t)s;
		}
	}
	return least;
}

QUANT_FN float iq2_sum8(const float *v)
{
	float sum = 0;
	for (int k = 0; k < 8; k++)
		sum += v[k];
	return sum;
}

/* The seven sign bits of eight weights x as they are stored, for a row of the codebook. */
QUANT_FN uint32_t iq2_signs(const float *x, const float *w, uint64_t row)
{
	uint32_t minus = 0;
	int cheapest = 0, odd = 0;
	float least = INFINITY;
	for (int i = 0; i < 8; i++) {
		minus |= (uint32_t)(x[i] < 0) << i;
		odd ^= x[i] < 0;
		const float cost = w[i] * fabsf(x[i]) * (float)(uint8_t)(row >> 8 * i);
		if (cost < least) {
			least = cost;
			cheapest = i;
		}
	}
	return (odd ? minus ^ 1u << cheapest : minus) & 127;
}

/* Searches d and the s of all groups; every thread gets the same d (returned), its bits and
 * best_s[8]. first: the warp's first group. All threads of the thread block call it: it has
 * barriers. */
QUANT_FN float iq2_block_search(struct iq2_state *st, const struct iq2_rows *rows, int first,
	int lane, uint8_t *best_s, uint16_t *best_bits)
{
	float top = 0, best_error = INFINITY, best_d = 0;
	for (int g = 0; g < IQ2_GROUPS; g++) {
		const int k = first + g;
		st->dl[k] = iq2_group_scale(&rows[g], lane, st->block.x + 32 * k, st->block.w + 32 * k);
	}
	iq2_sync();
	for (int k = 0; k < 8; k++)
		top = st->dl[k] > top ? st->dl[k] : top;
	for (int g = 0; g < IQ2_GROUPS; g++)
		for (int i = 0; i < IQ2_CANDIDATES; i++) {
			const int k = first + g;
			uint16_t bits;
			const float d = quant_scale(st->exponent, 4 * top / (15.5f - 0.75f * (float)i), &bits);
			st->error[i][k] = iq2_fit_group(&rows[g], st->dl[k], d, &st->s[i][k]);
		}
	iq2_sync();
	*best_bits = 0;
	for (int k = 0; k < 8; k++)
		best_s[k] = 0;
	for (int i = 0; i < IQ2_CANDIDATES; i++) {
		const float error = iq2_sum8(st->error[i]);
		if (error < best_error) {
			best_error = error;
			best_d = quant_scale(st->exponent, 4 * top / (15.5f - 0.75f * (float)i), best_bits);
			for (int k = 0; k < 8; k++)
				best_s[k] = st->s[i][k];
		}
	}
	for (int round = 0; round < IQ2_ROUNDS; round++) {
		float sp = 0, sb = 0;
		iq2_sync();
		for (int g = 0; g < IQ2_GROUPS; g++) {
			const int k = first + g;
			const float unit = (0.5f + (float)best_s[k]) * 0.25f;
			float p, b;
			iq2_group_sums(&rows[g], lane, best_d * unit, &p, &b);
			st->p[k] = unit * p;
			st->b[k] = unit * unit * b;
		}
		iq2_sync();
		sp = iq2_sum8(st->p);
		sb = iq2_sum8(st->b);
		uint16_t bits;
		const float d = quant_scale(st->exponent, sp > 0 ? sp / sb : best_d, &bits);
		for (int g = 0; g < IQ2_GROUPS; g++) {
			const int k = first + g;
			st->error[0][k] = iq2_fit_group(&rows[g], st->dl[k], d, &st->s[0][k]);
		}
		iq2_sync();
		const float error = iq2_sum8(st->error[0]);
		if (!(error < best_error))
			break;
		best_error = error;
		best_d = d;
		*best_bits = bits;
		for (int k = 0; k < 8; k++)
			best_s[k] = st->s[0][k];
	}
	return best_d;
}

/* Encodes the block at (row, col). All threads of the thread block call it. codebook: the 256 rows;
 * t: the warp; loader: whether the thread is of the warp that loads the block (the first one);
 * first: the warp's first group. */
QUANT_FN void team_encode_iq2_xxs(struct iq2_state *st, struct quant_team t, bool loader, int first,
	const uint64_t *codebook, const struct raw_matrix *m, uint64_t row, uint64_t col,
	const float *importance, struct plain_fit *fit, struct block_iq2_xxs *out)
{
	struct iq2_rows rows[IQ2_GROUPS];
	uint64_t grid[IQ2_ROWS];
	uint8_t s[8];
	uint16_t bits;
	const int lane = t.lane;
	if (loader) {
		int exponent = 0;
		const bool any = quant_load(&st->block, t, m, row, col, importance, TEAM_EVEN, &exponent);
		st->any = any;
		st->exponent = exponent;
	}
	QUANT_UNROLL
	for (int k = 0; k < IQ2_ROWS; k++)
		grid[k] = codebook[k * IQ2_LANES + lane];
	iq2_sync();
	if (!st->any) {
		for (int g = 0; g < IQ2_GROUPS && !lane; g++)
			for (int i = 0; i < 4; i++)
				out->q[4 * (first + g) + i] = 0;
		if (!first) {
			store_no_fit(t, fit);
			if (!lane)
				out->d = 0;
		}
		return;
	}
	for (int g = 0; g < IQ2_GROUPS; g++)
		iq2_load(&rows[g], grid, st->block.x + 32 * (first + g), st->block.w + 32 * (first + g));
	const float d = iq2_block_search(st, rows, first, lane, s, &bits);
	iq2_sync();
	for (int g = 0; g < IQ2_GROUPS; g++) {
		const int k = first + g;
		const float dl = d * (0.5f + (float)s[k]) * 0.25f;
		uint32_t chosen = 0, signs = 0;
		float p = 0;
		for (int j = 0; j < 4; j++) {
			const struct iq2_choice c = iq2_part_row(&rows[g], lane, j, dl);
			const int at = 32 * k + 8 * j;
			p += c.p;
			chosen |= (uint32_t)c.row << 8 * j;
			signs |= iq2_signs(st->block.x + at, st->block.w + at, codebook[c.row]) << 7 * j;
		}
		signs |= (uint32_t)s[k] << 28;
		st->p[k] = dl * p;
		if (!lane) {
			out->q[4 * k] = (uint16_t)chosen;
			out->q[4 * k + 1] = (uint16_t)(chosen >> 16);
			out->q[4 * k + 2] = (uint16_t)signs;
			out->q[4 * k + 3] = (uint16_t)(signs >> 16);
		}
	}
	iq2_sync();
	if (fit && loader && !lane) {
		fit->d = d;
		fit->exponent = st->exponent;
		fit->any = 1;
		for (int k = 0; k < 8; k++)
			fit->s[k] = (int8_t)s[k];
	}
	if (loader) {
		const float growth = team_growth(&st->block, t, iq2_sum8(st->p), IQ2_GROWTH);
		quant_scale(st->exponent, d * growth, &bits);
		if (!lane)
			out->d = bits;
	}
}

#endif
