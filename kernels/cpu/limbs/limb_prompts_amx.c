/* SPDX-License-Identifier: MIT */
/*
 * Exact sums with AMX for many rows of x (limb_isa.prompts). The planes of weights are those of
 * limb_rows_amx.c. There a tile has all limbs of a few rows of x; here it has one limb of
 * X_TILE_ROWS rows. The low limb of x is 0 (limb_round) and takes no part.
 *
 * Tiles:
 *
 *      limbs (A)    row i: 64 limbs k of row i of x, from the panel (prompts_gather)
 *      plane (B)    row p: 4 bytes, places 4 p .. 4 p + 3 of limb_place, of each of 16 weight rows
 *      sums (C)     row i: a dword for each of 16 weight rows
 *
 * Loops, outermost first: PROMPTS_GROUPS groups of 16 weight rows; super-blocks; X_TILE_ROWS rows
 * of x; one group. A super-block of a group is decoded once for all rows of x. While the tile unit
 * computes the sums of one product_tile, the vector units add those of the one before to the
 * floats.
 *
 * Each call of multiply configures the tiles of its thread and releases them. Compiles to nothing
 * on other targets.
 */
#include "kernels/cpu/limbs/limb_rows.h"

#if defined(__AMX_INT8__) && defined(__AVX512VBMI__) && defined(__GFNI__)

#include "kernels/cpu/limbs/limb_amx.h"

#define X_TILE_ROWS    16 /* rows of x of a tile */
#define TILE_BYTES     1024
#define PROMPTS_GROUPS 4 /* groups of LIMB_ROWS weight rows that are decoded together */
#define PROMPTS_LIMBS  (EXPERT_LIMBS - 1)
/* The panel is tiles of limbs: [X_TILE_ROWS rows of x][super-blocks][limb][quarter of the places].
 * Rows past the last one of x are zero. */
#define PANEL_BLOCK_TILES (PROMPTS_LIMBS * 4)

/* A super-block is decoded before its products begin. */
ALWAYS_INLINE void products_step(const struct tile_products *p, int step)
{
	(void)p;
	(void)step;
}

/* Tiles 0 and 1: sums of high and middle limbs times the low plane; 2 and 3: times the high plane;
 * 4 and 5: high and middle limbs; 6 and 7: low and high plane. steps (Q8_0): limbs and low plane of
 * one step, half of a quarter. */
static void prompts_configure(bool steps)
{
	_Alignas(64) struct tile_config c = {.palette = 1};
	for (int i = 0; i < 8; i++) {
		c.row_bytes[i] = steps && (i == 4 || i == 5) ? 32 : 64;
		c.rows[i] = steps && i >= 6 ? 8 : 16;
	}
	_tile_loadconfig(&c);
}

/* Sums of X_TILE_ROWS rows of x and a group of weight rows, of planes low and high or of half of
 * the steps */
struct prompts_sums {
	_Alignas(64) int32_t plane[LIMB_STEPS / 2][PROMPTS_LIMBS][X_TILE_ROWS][LIMB_ROWS];
};

/* Adds the products of quarter z of the places to tiles 0 .. 3; z = 0 clears them before. */
ALWAYS_INLINE void prompts_planes(
	const struct decoded_block *w, const int8_t *limbs, bool two_planes, int z)
{
	if (z == 0) {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	_tile_loadd(6, w->low[16 * z], 64);
	_tile_loadd(4, limbs + z * TILE_BYTES, 64);
	_tile_dpbssd(0, 4, 6);
	_tile_loadd(5, limbs + (4 + z) * TILE_BYTES, 64);
	_tile_dpbssd(1, 5, 6);
	if (two_planes) {
		_tile_loadd(7, w->high[16 * z], 64);
		_tile_dpbssd(2, 4, 7);
		_tile_dpbssd(3, 5, 7);
	}
}

ALWAYS_INLINE void prompts_planes_store(struct prompts_sums *s, bool two_planes)
{
	_tile_stored(0, s->plane[0][0], 64);
	_tile_stored(1, s->plane[0][1], 64);
	if (two_planes) {
		_tile_stored(2, s->plane[1][0], 64);
		_tile_stored(3, s->plane[1][1], 64);
	}
}

/* The sums of one step, for s; nothing for a step past the end of the row */
ALWAYS_INLINE void prompts_step(
	const struct decoded_block *w, const int8_t *limbs, int step, struct prompts_sums *s)
{
	const int8_t *a = limbs + step / 2 * TILE_BYTES + step % 2 * 32;
	const int at = step % (LIMB_STEPS / 2);
	if (step >= w->steps)
		return;
	_tile_zero(0);
	_tile_zero(1);
	_tile_loadd(6, w->low[8 * step], 64);
	_tile_loadd(4, a, 64);
	_tile_dpbssd(0, 4, 6);
	_tile_loadd(5, a + 4 * TILE_BYTES, 64);
	_tile_dpbssd(1, 5, 6);
	_tile_stored(0, s->plane[at][0], 64);
	_tile_stored(1, s->plane[at][1], 64);
}

typedef __m512 prompts_floats[PROMPTS_LIMBS];

/* One super-block of up to PROMPTS_GROUPS groups of weight rows. All of them are multiplied by the
 * limbs of X_TILE_ROWS rows of x before the next rows: the panel is read from the L2 cache once for
 * all groups. */
struct prompts_block {
	struct decoded_block w[PROMPTS_GROUPS];
	struct block_scales scales[PROMPTS_GROUPS];
	struct prompts_sums sums[2]; /* of the tile that is multiplied and of the one that is added */
	prompts_floats half[X_TILE_ROWS]; /* Q8_0: values of the first half of the steps */
	int n_groups;                     /* 1 .. PROMPTS_GROUPS */
};

/* Floats of all rows of x for a group of weight rows */
typedef prompts_floats prompts_rows[LIMB_X_PROMPTS];

/* A tile of a super-block's products: X_TILE_ROWS rows of x from row X_TILE_ROWS * x on, group g of
 * weight rows, and of Q8_0 one half of the steps (else half is 0). */
struct product_tile {
	int x, g, half;
};

ALWAYS_INLINE struct product_tile tile_after(struct product_tile p, bool steps, int n_groups)
{
	if (steps && !p.half) {
		p.half = 1;
		return p;
	}
	p.half = 0;
	if (++p.g == n_groups) {
		p.g = 0;
		p.x++;
	}
	return p;
}

/* Adds the sums s of tile p to the floats of its rows [first, end) of x. x, sum: those of the
 * tile's row 0. Of Q8_0, half 0 only fills w->half. */
ALWAYS_INLINE void prompts_add(const struct plane_format *format, struct prompts_block *w,
	struct product_tile p, const struct prompts_sums *s, const struct limb_block *const *x,
	int first, int end, int64_t block, prompts_floats *sum)
{
	const struct decoded_block *d = &w->w[p.g];
	const struct block_scales *scales = &w->scales[p.g];
	const int at = LIMB_STEPS / 2 * p.half;
	for (int i = first; i < end; i++) {
		const struct limb_block *b = x[i] + block;
		__m512 v[PROMPTS_LIMBS];
		if (format->steps) {
			UNROLLED_FOR (k, PROMPTS_LIMBS)
				v[k] = p.half ? w->half[i][k] : _mm512_setzero_ps();
			UNROLLED_FOR (step, LIMB_STEPS / 2)
				if (at + step < d->steps)
					UNROLLED_FOR (k, PROMPTS_LIMBS)
						v[k] = _mm512_fmadd_ps(scales->unit[at + step],
							_mm512_cvtepi32_ps(_mm512_load_si512(s->plane[step][k][i])), v[k]);
			if (!p.half) {
				UNROLLED_FOR (k, PROMPTS_LIMBS)
					w->half[i][k] = v[k];
				continue;
			}
		} else {
			UNROLLED_FOR (k, PROMPTS_LIMBS)
				v[k] = planes_value(format, d, scales, _mm512_load_si512(s->plane[0][k][i]),
					_mm512_load_si512(s->plane[1][k][i]), b, k);
		}
		const __m512 x_scale = _mm512_set1_ps(b->scale);
		UNROLLED_FOR (k, PROMPTS_LIMBS)
			sum[i][k] = _mm512_fmadd_ps(x_scale, v[k], sum[i][k]);
	}
}

/* Multiplies super-block `block` of the weight rows of w by all rows of x and adds to sum[group].
 * The sums of a tile are computed while those of the tile before are added, a quarter at a time. */
ALWAYS_INLINE void prompts_super_block(const struct limb_task *t, const struct plane_format format,
	struct prompts_block *w, int64_t block, prompts_rows *sum)
{
	const int64_t n_blocks = limb_x_blocks(t->n_in);
	const int n_tiles =
		(t->n_x + X_TILE_ROWS - 1) / X_TILE_ROWS * w->n_groups * (format.steps ? 2 : 1);
	const bool two_planes = format.shift != 0;
	struct product_tile tile = {0, 0, 0}, before = tile;
	for (int g = 0; g < w->n_groups; g++)
		block_scales_of(&format, &w->w[g], &w->scales[g]);
	for (int n = 0; n <= n_tiles; n++) {
		const int8_t *limbs =
			t->panel + (size_t)((tile.x * n_blocks + block) * PANEL_BLOCK_TILES) * TILE_BYTES;
		const int first = before.x * X_TILE_ROWS, rows = MIN(t->n_x - first, X_TILE_ROWS);
		for (int z = 0; z < 4; z++) {
			if (n < n_tiles && format.steps)
				prompts_step(&w->w[tile.g], limbs, 4 * tile.half + z, &w->sums[n % 2]);
			else if (n < n_tiles)
				prompts_planes(&w->w[tile.g], limbs, two_planes, z);
			if (n)
				prompts_add(&format, w, before, &w->sums[(n - 1) % 2], t->x + first, 4 * z,
					MIN(4 * z + 4, rows), block, sum[before.g] + first);
		}
		if (n < n_tiles && !format.steps)
			prompts_planes_store(&w->sums[n % 2], two_planes);
		before = tile;
		tile = tile_after(tile, format.steps, w->n_groups);
	}
}

/* A copy of the loops for each format, whose fields are constants in it. */
#define PROMPTS_FORMAT(name, type)                                                                 \
	static __attribute__((noinline)) void prompts_##name(                                          \
		const struct limb_task *t, struct prompts_block *w, int64_t block, prompts_rows *sum)      \
	{                                                                                              \
		prompts_super_block(t, plane_format_of(type), w, block, sum);                              \
	}
PROMPTS_FORMAT(codebook, DTYPE_IQ2_XXS)
PROMPTS_FORMAT(q2_k, DTYPE_Q2_K)
PROMPTS_FORMAT(q3_k, DTYPE_Q3_K)
PROMPTS_FORMAT(q4_k, DTYPE_Q4_K)
PROMPTS_FORMAT(q6_k, DTYPE_Q6_K)
PROMPTS_FORMAT(q8_0, DTYPE_Q8_0)

typedef void prompts_fn(
	const struct limb_task *t, struct prompts_block *w, int64_t block, prompts_rows *sum);

static prompts_fn *prompts_fn_of(enum dtype type)
{
	switch (type) {
	case DTYPE_Q2_K:
		return prompts_q2_k;
	case DTYPE_Q3_K:
		return prompts_q3_k;
	case DTYPE_Q4_K:
		return prompts_q4_k;
	case DTYPE_Q6_K:
		return prompts_q6_k;
	case DTYPE_Q8_0:
		return prompts_q8_0;
	default:
		return prompts_codebook;
	}
}

/* Writes the outputs of the group of weight rows from `first` on. Its floats of part p of
 * t->n_parts are part[p * PROMPTS_GROUPS]. */
static void prompts_finish(const struct limb_task *t, const prompts_rows *part, int64_t first)
{
	const __mmask16 rows = (__mmask16)((1u << MIN(t->n_rows - first, LIMB_ROWS)) - 1);
	for (int i = 0; i < t->n_x; i++) {
		__m512 y = _mm512_setzero_ps();
		for (int p = 0; p < t->n_parts; p++) {
			const __m512 *s = part[p * PROMPTS_GROUPS][i];
			y = _mm512_add_ps(y, _mm512_fmadd_ps(_mm512_set1_ps(65536.0f), s[0],
									 _mm512_mul_ps(_mm512_set1_ps(256.0f), s[1])));
		}
		_mm512_mask_storeu_ps(t->out + i * t->out_stride + first, rows, y);
	}
}

/* Weight rows [first, first + PROMPTS_GROUPS * LIMB_ROWS), as many as there are. Takes about 300
 * KiB of stack. */
static void prompts_multiply_rows(const struct limb_task *t, int64_t first)
{
	const struct dtype_info *info = dtype_info(t->type);
	const int64_t n_blocks = limb_x_blocks(t->n_in);
	const int chunk = expert_chunk(t->type);
	const size_t super_block_bytes = 256 / info->block_values * info->block_bytes;
	prompts_fn *const multiply = prompts_fn_of(t->type);
	prompts_rows sum[EXPERT_SPLIT_MAX][PROMPTS_GROUPS];
	struct prompts_block w;
	struct packed_group p[PROMPTS_GROUPS];
	w.n_groups = (int)MIN((t->n_rows - first + LIMB_ROWS - 1) / LIMB_ROWS, PROMPTS_GROUPS);
	for (int g = 0; g < w.n_groups; g++) {
		p[g] = packed_rows(t, first + g * LIMB_ROWS);
		p[g].group.ahead = 0;   /* these rows are read super-block by super-block, ... */
		p[g].group.cold = true; /* ... so a later one of the same row is prefetched */
		for (int part = 0; part < t->n_parts; part++)
			memset(sum[part][g], 0, (size_t)t->n_x * sizeof sum[part][g][0]);
	}
	for (int64_t b = 0; b < n_blocks; b++) {
		for (int g = 0; g < w.n_groups; g++) {
			w.w[g].steps = (int)MIN((t->n_in - 256 * b) / 32, LIMB_STEPS);
			decode(t->type, &p[g], &w.w[g], NULL);
			if (b + 1 < n_blocks) /* no pointer past the matrix */
				p[g].p += super_block_bytes;
		}
		multiply(t, &w, b, sum[b / chunk % t->n_parts]);
	}
	for (int g = 0; g < w.n_groups; g++)
		prompts_finish(t, &sum[0][g], first + g * LIMB_ROWS);
}

static void prompts_multiply(const struct limb_task *t)
{
	pthread_once(&tables_once, tables_fill);
	prompts_configure(t->type == DTYPE_Q8_0);
	for (int64_t first = 0; first < t->n_rows; first += PROMPTS_GROUPS * LIMB_ROWS)
		prompts_multiply_rows(t, first);
	_tile_release();
}

static void prompts_gather(const struct limb_task *t, int8_t *panel)
{
	for (int first = 0; first < t->n_x; first += X_TILE_ROWS)
		for (int64_t b = 0; b < limb_x_blocks(t->n_in); b++)
			for (int k = 0; k < PROMPTS_LIMBS; k++)
				for (int z = 0; z < 4; z++)
					for (int i = first; i < first + X_TILE_ROWS; i++, panel += 64) {
						if (i < t->n_x)
							memcpy(panel, t->x[i][b].limb[k] + 64 * z, 64);
						else
							memset(panel, 0, 64);
					}
}

static void prompts_split(enum dtype type, const float *x, int64_t n, struct limb_block *out)
{
	limb_isa_vnni->split(type, x, n, out);
}

const struct limb_isa limb_prompts_amx = {
	"AMX", prompts_split, prompts_multiply, prompts_gather, LIMB_X_PROMPTS, NULL};

#endif
