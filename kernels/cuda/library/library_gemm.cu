/* SPDX-License-Identifier: MIT */
/*
 * Large products of prompts in one pass by cublasLt (cublas.cuh), float32 sums:
 *
 *   1. w: a row of weights becomes halves, scaled by the power of two that brings its largest value
 *      to [2^14, 2^15) (unpack_rows.cu): each is off by at most 2^-11 of itself, or 2^-39
 *      of the row's largest;
 *   2. x: the same for rows of activations;
 *   3. d = x w by the library, into scratch memory;
 *   4. store_kernel: y (+)= d times the two scales of its row and column.
 *
 * round_rows_kernel: grid (rows), block 256: a row is read twice, for its largest value and to be
 * rounded. Bytes moved: x once in (and once from the L1 or L2 cache), halves once out.
 *
 * store_kernel: grid (1024 columns, a row), block 256. Bytes moved: d once in (mostly from the L2
 * cache), y once out, with `add` also in.
 *
 * Which products: those with at least LIBRARY_LEAST weights (q_a, q_b, o, the shared expert, dense
 * networks, the head of GLM-5.2). Unpacking w takes a time that does not depend on the rows; the
 * library has made up for it at about 300 to 540 rows of the largest, at 750 of q_a and the shared
 * expert. Shorter prompts wait for experts to be loaded, not for these. The number of rows does not
 * matter, because a row's bits must not depend on it. F32 never goes
 * there, since halves do not hold it, nor F8_E4M3: gemm.cu keeps its scales in float32.
 */
#include "kernels/cuda/library/cublas.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/library/library_gemm.cuh"

#define LIBRARY_LEAST ((int64_t)3 << 22)
/* Bytes of x rows, and of d rows, at a time. */
#define LIBRARY_ROWS_MOST ((size_t)64 << 20)

struct round_args {
	const float *x; /* [rows][n_in] */
	__half *to;     /* [rows][n_in] */
	float *unscale; /* [rows] */
	int n_in;       /* a multiple of 8 */
};

static __global__ void __launch_bounds__(256)
	round_rows_kernel(const __grid_constant__ struct round_args a)
{
	__shared__ float warp_most[8];
	const float *from = a.x + (int64_t)blockIdx.x * a.n_in;
	float most = 0;
	for (int k = 4 * threadIdx.x; k < a.n_in; k += 1024) {
		float4 v = *(const float4 *)(from + k);
		most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
	}
	most = library_block_most(most, warp_most);
	int e = half_exponent(most);
	float by = power_of_two(e);
	if (!threadIdx.x)
		a.unscale[blockIdx.x] = power_of_two(-e);
	for (int k = 4 * threadIdx.x; k < a.n_in; k += 1024) {
		float4 v = *(const float4 *)(from + k);
		library_store_halves(a.to + (int64_t)blockIdx.x * a.n_in + k, v, by);
	}
}

struct store_args {
	const float *d, *x_unscale, *w_unscale;
	float *y;
	int64_t d_row, y_row;
	int n_out;
	bool add;
};

static __global__ void __launch_bounds__(256)
	store_kernel(const __grid_constant__ struct store_args a)
{
	int64_t row = blockIdx.y;
	int o = 4 * (blockIdx.x * 256 + threadIdx.x);
	if (o >= a.n_out)
		return;
	float by = a.x_unscale[row];
	float4 d = *(const float4 *)(a.d + row * a.d_row + o), w = *(const float4 *)(a.w_unscale + o),
		   *y = (float4 *)(a.y + row * a.y_row + o);
	d.x = __fmul_rn(__fmul_rn(d.x, by), w.x);
	d.y = __fmul_rn(__fmul_rn(d.y, by), w.y);
	d.z = __fmul_rn(__fmul_rn(d.z, by), w.z);
	d.w = __fmul_rn(__fmul_rn(d.w, by), w.w);
	if (a.add) {
		float4 old = *y;
		d.x = __fadd_rn(old.x, d.x);
		d.y = __fadd_rn(old.y, d.y);
		d.z = __fadd_rn(old.z, d.z);
		d.w = __fadd_rn(old.w, d.w);
	}
	*y = d;
}

/* Rows of w that are unpacked at a time. */
static int64_t slice_rows(const struct weight *w)
{
	int64_t fit = (int64_t)(GEMM_W_MOST / (2 * (size_t)w->n_in)) / GEMM_M * GEMM_M;
	return w->n_out < fit ? w->n_out : fit;
}

bool library_gemm_takes(struct cuda_backend *b, const struct weight *w)
{
	if (!cublas_of(b) || w->type == DTYPE_F32 || w->type == DTYPE_F8_E4M3 ||
		w->n_in * w->n_out < LIBRARY_LEAST || w->n_in % 8 || w->n_out % 8)
		return false;
	int64_t slice = slice_rows(w), rest = w->n_out % slice;
	return cublas_takes(cublas_of(b), w->n_in, slice) &&
		   (!rest || cublas_takes(cublas_of(b), w->n_in, rest));
}

/* Scratch memory of a call. */
struct library_scratch {
	__half *x; /* [rows at a time][n_in] */
	float *x_unscale, *d, *w_unscale;
	__half *w; /* [slice][n_in] */
};

/* Rows of x at a time for slices of so many weight rows: all, or a multiple of the unit. */
static int64_t group_rows(int64_t rows, int64_t n_in, int64_t slice)
{
	size_t row = 2 * (size_t)n_in, d_row = 4 * (size_t)slice;
	int64_t fit = (int64_t)(LIBRARY_ROWS_MOST / (row > d_row ? row : d_row)) / CUBLAS_ROWS_UNIT;
	fit = fit < 1 ? CUBLAS_ROWS_UNIT : fit * CUBLAS_ROWS_UNIT;
	int64_t times = (rows + fit - 1) / fit;
	return up_to((rows + times - 1) / times, CUBLAS_ROWS_UNIT);
}

static bool scratch_reserve(struct cuda_backend *b, const struct matmul *parts, int n_parts,
	int rows, struct library_scratch *s)
{
	int64_t n_in = parts[0].w.n_in, most_slice = 0, most_rows = 0;
	size_t for_d = 0;
	for (int i = 0; i < n_parts; i++) {
		int64_t slice = slice_rows(&parts[i].w), group = group_rows(rows, n_in, slice);
		size_t bytes = 4 * (size_t)(group * slice);
		most_slice = slice > most_slice ? slice : most_slice;
		most_rows = group > most_rows ? group : most_rows;
		for_d = bytes > for_d ? bytes : for_d;
	}
	size_t for_x = (size_t)up_to(2 * most_rows * n_in, 256),
		   for_x_scales = (size_t)up_to(4 * most_rows, 256),
		   for_w_scales = (size_t)up_to(4 * most_slice, 256);
	for_d = (size_t)up_to((int64_t)for_d, 256);
	uint8_t *at = (uint8_t *)cuda_scratch_reserve(b, &b->gemm_panels,
		for_x + for_d + for_x_scales + for_w_scales + 2 * (size_t)(most_slice * n_in));
	if (!at)
		return false;
	s->x = (__half *)at;
	s->d = (float *)(at += for_x);
	s->x_unscale = (float *)(at += for_d);
	s->w_unscale = (float *)(at += for_x_scales);
	s->w = (__half *)(at += for_w_scales);
	return true;
}

/* Columns `first` to first + n_out of y. *x_is: whether all rows of x lie in s->x. */
static void multiply_slice(struct cuda_backend *b, const struct library_scratch *s,
	const struct matmul *part, int64_t first, int64_t n_out, const float *x, int rows, bool *x_is)
{
	const struct weight *w = &part->w;
	struct unpack_rows_args u = {};
	u.w = (const uint8_t *)w->data + (size_t)first * w->row_bytes;
	u.tables = b->tables;
	u.row_bytes = (int64_t)w->row_bytes;
	u.n_in = (int)w->n_in;
	u.n_out = (int)n_out;
	u.to = s->w;
	u.unscale = s->w_unscale;
	gemm_unpack_rows(b, w->type, &u);
	int64_t group = group_rows(rows, w->n_in, slice_rows(w));
	for (int64_t r = 0; r < rows && !b->base.failure.code; r += group) {
		int n = (int)(rows - r < group ? rows - r : group);
		if (!*x_is || n < rows) {
			struct round_args rounded = {x + r * w->n_in, s->x, s->x_unscale, (int)w->n_in};
			round_rows_kernel<<<(unsigned)n, 256, 0, b->stream>>>(rounded);
			cuda_launched(b);
			*x_is = n == rows;
		}
		struct cublas_product p = {
			s->w, s->x, w->n_in, w->n_in, s->d, w->n_in, n_out, (int)up_to(n, CUBLAS_ROWS_UNIT)};
		cublas_multiply(b, &p);
		struct store_args a = {s->d, s->x_unscale, s->w_unscale, part->y + r * w->n_out + first,
			n_out, w->n_out, (int)n_out, part->add};
		store_kernel<<<dim3((unsigned)((n_out + 1023) / 1024), (unsigned)n), 256, 0, b->stream>>>(
			a);
		cuda_launched(b);
	}
}

void library_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	struct library_scratch s;
	bool x_is = false; /* all rows of x lie in s.x */
	if (!scratch_reserve(b, parts, n_parts, rows, &s))
		return;
	for (int i = 0; i < n_parts; i++) {
		int64_t n_out = parts[i].w.n_out, slice = slice_rows(&parts[i].w);
		for (int64_t o = 0; o < n_out && !b->base.failure.code; o += slice)
			multiply_slice(
				b, &s, &parts[i], o, n_out - o < slice ? n_out - o : slice, x, rows, &x_is);
	}
}
