/* SPDX-License-Identifier: MIT */
/*
 * Exact sums with AMX. The weights of 16 rows are brought to bytes whose products with limbs need
 * no scale any more: weight times scale is a power of two times a byte of one plane plus a byte of
 * another (struct plane_format). The tile unit sums planes times limbs over a super-block, for all
 * rows of x and all limbs at once, so that the cost of decoding does not grow with the rows of x.
 *
 * Tiles, of at most 16 rows of 64 bytes:
 *
 *      limbs (A)    row 3 i + k: 64 limbs k of row i of x, from the panel (amx_gather)
 *      plane (B)    row p: 4 bytes, places 4 p .. 4 p + 3 of limb_place, of each of 16 weight rows
 *      sums (C)     row 3 i + k: a dword for each of 16 weight rows
 *
 * The weights are transposed while they are packed: 16 registers of 16 dwords, one register a row,
 * become 16 registers of one dword of each row. A scale is then a dword per weight row, too.
 *
 * Q8_0 has no whole scales: its plane is the weights, and the sums of a step of 32 values are
 * scaled as floats. Q6_K, and some types with one row of x, take limb_rows_vnni.c. Compiles to
 * nothing on other targets.
 */
#include "kernels/cpu/limbs/limb_rows.h"

#if !defined(__AMX_INT8__) || !defined(__AVX512VBMI__) || !defined(__GFNI__)

const struct limb_isa *const limb_isa_amx = NULL;

bool limb_amx_enable(void)
{
	return false;
}

#else

#include "kernels/cpu/limbs/limb_amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- tiles ---- */

/* Rows of x of a tile of limbs: with more, a second tile has those from row X_FIRST on. */
#define X_TILE  5
#define X_FIRST 4

/* Tiles 0 and 1: sums of low; 2 and 3: of high; 4 and 5: limbs; 6 and 7: low and high. Q8_0: of a
 * step, which has half of the places. */
static void tiles_configure(enum dtype type, int n_x)
{
	const int first = EXPERT_LIMBS * (n_x > X_TILE ? X_FIRST : n_x),
			  second = n_x > X_TILE ? EXPERT_LIMBS * n_x - first : 1,
			  half = type == DTYPE_Q8_0 ? 2 : 1;
	_Alignas(64) struct tile_config c = {.palette = 1};
	for (int i = 0; i < 8; i++) {
		c.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? 64 / half : 64);
		c.rows[i] = (uint8_t)(i >= 6 ? 16 / half : i % 2 ? second : first);
	}
	_tile_loadconfig(&c);
}

/* Dwords of tiles of sums: of row 3 i + k for each weight row. Planes: low and high, or steps. */
struct tile_sums {
	_Alignas(64) int32_t plane[LIMB_STEPS][LIMB_X * EXPERT_LIMBS][LIMB_ROWS];
};

/* Products of a super-block that has been decoded; w NULL: of none. They are made in four steps,
 * while the next super-block is decoded: the tile unit works beside the vector units, and reads
 * what was stored long before. */
struct tile_products {
	const struct decoded_block *w;
	const int8_t *limbs;
	struct tile_sums *sums;
	bool two_planes, steps; /* steps: Q8_0 */
	bool two_tiles;         /* of rows of x */
};

enum { SECOND_TILE = EXPERT_LIMBS * X_FIRST };

ALWAYS_INLINE void products_of_step(const struct tile_products *p, int step)
{
	_tile_zero(0);
	_tile_loadd(4, p->limbs + 32 * step, 256);
	_tile_loadd(6, p->w->low[8 * step], 64);
	_tile_dpbssd(0, 4, 6);
	_tile_stored(0, p->sums->plane[step], 64);
	if (!p->two_tiles)
		return;
	_tile_zero(1);
	_tile_loadd(5, p->limbs + X_FIRST * LIMBS_OF_ROW + 32 * step, 256);
	_tile_dpbssd(1, 5, 6);
	_tile_stored(1, p->sums->plane[step] + SECOND_TILE, 64);
}

ALWAYS_INLINE void products_of_planes(const struct tile_products *p, int z)
{
	if (z == 0) {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	_tile_loadd(4, p->limbs + 64 * z, 256);
	_tile_loadd(6, p->w->low[16 * z], 64);
	_tile_dpbssd(0, 4, 6);
	if (p->two_planes) {
		_tile_loadd(7, p->w->high[16 * z], 64);
		_tile_dpbssd(2, 4, 7);
	}
	if (!p->two_tiles)
		return;
	_tile_loadd(5, p->limbs + X_FIRST * LIMBS_OF_ROW + 64 * z, 256);
	_tile_dpbssd(1, 5, 6);
	if (p->two_planes)
		_tile_dpbssd(3, 5, 7);
}

ALWAYS_INLINE void planes_store(const struct tile_products *p)
{
	_tile_stored(0, p->sums->plane[0], 64);
	if (p->two_tiles)
		_tile_stored(1, p->sums->plane[0] + SECOND_TILE, 64);
	if (p->two_planes)
		_tile_stored(2, p->sums->plane[1], 64);
	if (p->two_planes && p->two_tiles)
		_tile_stored(3, p->sums->plane[1] + SECOND_TILE, 64);
}

/* Step z of 0 .. 3 */
ALWAYS_INLINE void products_step(const struct tile_products *p, int z)
{
	if (!p->w)
		return;
	if (!p->steps) {
		products_of_planes(p, z);
		return;
	}
	for (int step = 2 * z; step < MIN(2 * z + 2, p->w->steps); step++)
		products_of_step(p, step);
}

ALWAYS_INLINE __m512 steps_value(
	const struct block_scales *scales, const struct tile_sums *s, int steps, int n)
{
	__m512 v = _mm512_setzero_ps();
	for (int step = 0; step < steps; step++)
		v = _mm512_fmadd_ps(
			scales->unit[step], _mm512_cvtepi32_ps(_mm512_load_si512(s->plane[step][n])), v);
	return v;
}

/* Point 4: sum[x][limb] += super-block `block` */
static void add_sums(const struct limb_task *t, const struct plane_format *format,
	const struct decoded_block *w, const struct tile_sums *s, int64_t block,
	__m512 sum[][EXPERT_LIMBS])
{
	struct block_scales scales;
	block_scales_of(format, w, &scales);
	for (int i = 0; i < t->n_x; i++) {
		const struct limb_block *x = t->x[i] + block;
		const __m512 x_scale = _mm512_set1_ps(x->scale);
		UNROLLED_FOR (k, EXPERT_LIMBS) {
			const int n = EXPERT_LIMBS * i + k;
			const __m512 v =
				format->steps ? steps_value(&scales, s, w->steps, n)
							  : planes_value(format, w, &scales, _mm512_load_si512(s->plane[0][n]),
									_mm512_load_si512(s->plane[1][n]), x, k);
			sum[i][k] = _mm512_fmadd_ps(x_scale, v, sum[i][k]);
		}
	}
}

/* ---- the task ---- */

typedef __m512 limb_floats[LIMB_X][EXPERT_LIMBS];

static void sums_clear(const struct limb_task *t, limb_floats sum[EXPERT_SPLIT_MAX])
{
	for (int part = 0; part < t->n_parts; part++)
		memset(sum[part], 0, (size_t)t->n_x * sizeof sum[part][0]);
}

/* Writes the outputs of the group of rows that begins at `first`. */
static void sums_finish(const struct limb_task *t, limb_floats sum[EXPERT_SPLIT_MAX], int64_t first)
{
	const __mmask16 rows = (__mmask16)((1u << MIN(t->n_rows - first, LIMB_ROWS)) - 1);
	for (int i = 0; i < t->n_x; i++) {
		__m512 y = _mm512_setzero_ps();
		for (int part = 0; part < t->n_parts; part++)
			y = _mm512_add_ps(
				y, _mm512_fmadd_ps(_mm512_set1_ps(65536.0f), sum[part][i][0],
					   _mm512_fmadd_ps(_mm512_set1_ps(256.0f), sum[part][i][1], sum[part][i][2])));
		_mm512_mask_storeu_ps(t->out + i * t->out_stride + first, rows, y);
	}
}

/* Super-block n of the task, counted through all groups of rows, is decoded while the products of
 * the one before are made. */
static void multiply_tiles(const struct limb_task *t)
{
	const struct plane_format format = plane_format_of(t->type);
	const int64_t n_blocks = limb_x_blocks(t->n_in),
				  total = (t->n_rows + LIMB_ROWS - 1) / LIMB_ROWS * n_blocks;
	const int chunk = expert_chunk(t->type);
	const size_t super_block_bytes =
		256 / dtype_info(t->type)->block_values * dtype_info(t->type)->block_bytes;
	limb_floats sum[EXPERT_SPLIT_MAX];
	struct decoded_block decoded[2];
	struct tile_sums sums;
	struct packed_group p;
	struct tile_products products = {.sums = &sums,
		.two_planes = format.shift,
		.steps = format.steps,
		.two_tiles = t->n_x > X_TILE};
	int64_t block = 0, before = 0; /* of their rows: of super-blocks n and n - 1 */
	sums_clear(t, sum);
	for (int64_t n = 0; n <= total; n++) {
		struct decoded_block *next = &decoded[n % 2];
		if (block == 0 && n < total)
			p = packed_rows(t, n / n_blocks * LIMB_ROWS);
		next->steps = (int)MIN((t->n_in - 256 * block) / 32, LIMB_STEPS);
		if (n < total)
			decode(t->type, &p, next, &products);
		else
			UNROLLED_FOR (z, 4)
				products_step(&products, z);
		if (n) {
			if (!format.steps)
				planes_store(&products);
			add_sums(t, &format, products.w, &sums, before, sum[before / chunk % t->n_parts]);
		}
		if (n && block == 0) {
			sums_finish(t, sum, (n - 1) / n_blocks * LIMB_ROWS);
			sums_clear(t, sum);
		}
		products.w = next;
		products.limbs = t->panel + block * t->n_x * LIMBS_OF_ROW;
		if (n + 1 < total) /* no pointer past the matrix */
			p.p += super_block_bytes;
		before = block;
		block = block + 1 < n_blocks ? block + 1 : 0;
	}
}

/* For one row of x, decoding costs as much as all products together. */
static bool vnni_is_faster(const struct limb_task *t)
{
	const bool one = t->type == DTYPE_IQ2_XXS || t->type == DTYPE_Q4_K || t->type == DTYPE_Q8_0;
	return t->type == DTYPE_Q6_K || (one && t->n_x == 1);
}

static void amx_gather(const struct limb_task *t, int8_t *panel)
{
	if (vnni_is_faster(t)) /* it reads no panel */
		return;
	for (int64_t b = 0; b < limb_x_blocks(t->n_in); b++)
		for (int i = 0; i < t->n_x; i++, panel += LIMBS_OF_ROW)
			memcpy(panel, t->x[i][b].limb, LIMBS_OF_ROW);
}

static void amx_split(enum dtype type, const float *x, int64_t n, struct limb_block *out)
{
	limb_isa_vnni->split(type, x, n, out);
}

static void amx_multiply(const struct limb_task *t)
{
	if (vnni_is_faster(t)) {
		limb_isa_vnni->multiply(t);
		return;
	}
	pthread_once(&tables_once, tables_fill);
	tiles_configure(t->type, t->n_x);
	multiply_tiles(t);
	_tile_release();
}

/* The kernel gives a process the tiles when it asks for them: since Linux 5.16. Clang's
 * __builtin_cpu_supports does not know their names. */
bool limb_amx_enable(void)
{
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, TILE_AND_INT8 = 3 << 24 };
	unsigned a, b, c, d;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILE_AND_INT8) != TILE_AND_INT8)
		return false;
	return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

static const struct limb_isa isa_amx = {
	"AMX", amx_split, amx_multiply, amx_gather, LIMB_X, &limb_prompts_amx};
const struct limb_isa *const limb_isa_amx = &isa_amx;

#endif
