/* SPDX-License-Identifier: MIT */
/*
 * Matrix products (gemm) of packed weights for prefill: steps of more than DECODE_MAX_ROWS rows.
 *
 * Three implementations with the same contract:
 *   - the wgmma gemm (wgmma_gemm.cuh, sm_90a) multiplies packed blocks;
 *   - the grouped gemm (grouped_gemm.cuh), for experts, multiplies packed blocks;
 *   - gemm_kernel (gemm.cu) multiplies panels: weights unpacked to halves in scratch (unpack.cu).
 * Large dense products may go to cublasLt instead (library_gemm.cuh).
 *
 * A weight is factor * q + offset, q a small integer or a scaled half (exact for every type but
 * F32, which becomes two panels of halves). Of F8_E4M3 q is the value, and factor its block scale.
 *
 * A row of activations is scaled by the power of two that brings its largest value to [2^14, 2^15)
 * and rounded to halves (mma.cuh): the first pass. Factors and offsets are applied in float32 after
 * each group of 16, 32 or 256.
 *
 * Passes. One pass multiplies the rounded activations: each is off by at most 2^-11 of itself, or
 * 2^-39 of the row's largest. Two passes (backend_options.exact_prompts) multiply the rounding
 * errors as well, again rounded to halves, with the same weights: 22 bits of each activation, as
 * exact as float32 sums. To the kernels the second pass is a continuation of the inner dimension.
 *
 * A row's result depends on the weights and the row alone, not on the number of rows, tiles or
 * slices. It differs from decode's.
 *
 *      weight panel  q [n_in / 32][m_pad][32] halves; factor [n_in / 32][m_pad] of (f0, f1)
 *                    or (f0, f1, o0, o1): for the first and the second 16 of each 32
 *      x panel       [stack][pass][n_in / 32][x_pad][32] halves; sums of these halves
 *                    [stack][pass][n_in / 32][x_pad] of (s0, s1); unscale [stack][x_pad]
 *
 * so that a tile of any of them is contiguous. Rows past the last hold undefined bytes; their
 * results are not stored.
 */
#ifndef GLM_KERNELS_CUDA_GEMM_CUH
#define GLM_KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

#define GEMM_M      128                 /* weight rows of a tile */
#define GEMM_W_MOST ((size_t)256 << 20) /* bytes of a weight panel */

/* How a type is scaled. */
enum panel_kind { PANEL_32, PANEL_32_OFFSET, PANEL_16, PANEL_16_OFFSET };

struct weight_panel {
	__half *q;
	float *factor;
	int64_t m_pad;   /* rows of all its matrices, each padded to GEMM_M */
	int n_in, steps; /* steps: of 32 */
	enum panel_kind kind;
};

struct x_panel {
	__half *x;
	float2 *sums;
	float *unscale;
	int64_t pad; /* rows, and space for one tile behind the last */
	/* steps: of 32 values, of a pass; a multiple of 8, because the wgmma gemm takes whole
	 * super-blocks of 256. Values past n_in are zeros. */
	int n_in, steps;
	int passes;
};

/* Orders of the values in an x panel: as they are; the two of wgmma_gemm.cuh. */
enum x_order { X_PLAIN, X_EIGHTS, X_QUADS };

/* The source of the rows of an x panel: rows of x; rows of x by (token, rank) slots; SwiGLU of gate
 * and up. */
enum split_from { FROM_ROWS, FROM_SLOTS, FROM_GLU };

struct split_args {
	struct x_panel to;
	const float *x;
	int64_t x_row, x_stack;
	/* FROM_SLOTS: device: x row i is row token_slots[i] / n_used; else row i */
	const int32_t *token_slots;
	int n_used;
	int64_t up; /* FROM_GLU: floats from gate to up in a row */
	enum x_order order;
	int rows;
};

/* A tile of gemm_kernel: x rows that are multiplied by one matrix of a weight panel. */
struct gemm_tile {
	int32_t w_first;      /* panel row where the matrix begins */
	int32_t x_first, n_x; /* x_first is even */
};

struct gemm_args {
	struct weight_panel w;
	struct x_panel x;
	int n_out, n_x;
	int64_t stack_rows;            /* panel rows from one matrix of a stack to the next */
	const struct gemm_tile *tiles; /* device [n_tiles]; NULL: bn rows each, of one matrix */
	float *y;
	int64_t y_row, y_stack;
	const int32_t *y_map; /* device: output row of x row i; NULL: i */
	bool add;
};

#define UNPACK_MOST 32

/* Matrices of one type and shape that become one panel. */
struct unpack_args {
	const uint8_t *w[UNPACK_MOST];
	/* F8_E4M3: weight.scales from the row of scales on that covers the first row of w[i] */
	const uint8_t *scales[UNPACK_MOST];
	int32_t first[UNPACK_MOST]; /* panel row */
	struct weight_panel panel;
	const struct cuda_tables *tables;
	int64_t row_bytes;
	int n_matrices, n_out; /* rows of each */
	int rest;              /* F32: 1 for the second panel, of the rounding errors of the first */
};

enum panel_kind panel_kind_of(enum dtype type);
size_t panel_bytes(enum panel_kind kind, int64_t m_pad, int64_t n_in);

/* Bytes of the x panel of one matrix of a stack. */
size_t x_panel_bytes(const struct cuda_backend *b, int64_t pad, int64_t n_in);

/* Lay out a panel in `memory`, which has x_panel_bytes * n_stack or panel_bytes bytes. */
struct x_panel x_panel_at(
	const struct cuda_backend *b, void *memory, int64_t pad, int64_t n_in, int64_t n_stack);
struct weight_panel panel_at(void *memory, enum panel_kind kind, int64_t m_pad, int64_t n_in);

/* Enqueues the split of rows into an x panel. */
void gemm_split_rows(
	struct cuda_backend *b, enum split_from from, const struct split_args *a, int n_stack);

/* Enqueues gemm_kernel. bn (32, 64 or 128): most x rows of a tile. */
void gemm_enqueue(
	struct cuda_backend *b, const struct gemm_args *g, int bn, int n_tiles, int n_stack);

static constexpr int64_t up_to(int64_t n, int64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* unpack.cu */
void gemm_unpack(struct cuda_backend *b, enum dtype type, const struct unpack_args *a);

/* A tile of the grouped or the wgmma gemm: x rows that are multiplied by one matrix of packed
 * weights. */
struct grouped_gemm_tile {
	const uint8_t *w;
	int32_t x_first, n_x; /* x_first is even */
	int64_t y_first;      /* added to the index of an output in y */
};

struct grouped_gemm_args {
	const struct grouped_gemm_tile *tiles; /* device [n_tiles] */
	const struct cuda_tables *tables;
	struct x_panel x;
	int64_t row_bytes;
	int n_tiles, n_out;
	float *y;
	int64_t y_row;
	const int32_t *y_map; /* device: output row of x row i; NULL: i */
	/* wgmma_gemm_enqueue only: without tiles, n_tiles of bn x rows each for every matrix of a stack
	 */
	const uint8_t *w;
	int64_t stack_bytes, y_stack;
	int n_x, n_stack;
	bool add;
	/* wgmma_gemm_enqueue only: the kernel may start while the one before it still runs, which is
	 * another wgmma_gemm_kernel of the same x with other outputs. The first of such a group must
	 * not have it: it waits for what wrote x and the tiles. */
	bool beside;
};

/* Enqueues wgmma_gemm_kernel. bn (32, 64 or 128): most x rows of a tile; the x panel is in the
 * order of wgmma_gemm_x_order; x_first is a multiple of 8. False: it does not multiply this type. a
 * NULL: only answers. */
bool wgmma_gemm_enqueue(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);

/* The same for the types of one group (wgmma_gemm_types.cu). */
template <int GROUP>
bool wgmma_gemm_group(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool wgmma_gemm_group<1>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool wgmma_gemm_group<2>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool wgmma_gemm_group<3>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool wgmma_gemm_group<4>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);

/* The order of the x panel that wgmma_gemm_enqueue needs for this weight; X_PLAIN: it cannot
 * multiply this weight on this card. */
enum x_order wgmma_gemm_x_order(struct cuda_backend *b, const struct weight *w);

/* Enqueues grouped_gemm_kernel for the types of one group (grouped_gemm_types.cu). bn (32 or 64):
 * most x rows of a tile. False: another type, or the card has too little shared memory. a NULL:
 * only answers. */
template <int GROUP>
bool grouped_gemm_group(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool grouped_gemm_group<1>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool grouped_gemm_group<2>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool grouped_gemm_group<3>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);
template <>
bool grouped_gemm_group<4>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn);

/* The ops for more than DECODE_MAX_ROWS rows. */
void gemm_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);
void gemm_stacked_matmul(struct cuda_backend *b, const struct stacked_matmul *m, int rows);
void gemm_expert_ffn(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int n_used, float *out);

#endif
