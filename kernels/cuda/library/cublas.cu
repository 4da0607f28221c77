/* SPDX-License-Identifier: MIT */
/*
 * Loads cublasLt and calls it. The library counts in columns: w is its A, transposed [n_in][n_out];
 * x is B [n_in][rows]; d is D [n_out][rows].
 */
#include "kernels/cuda/library/cublas.cuh"

extern "C" {
#include "kernels/library.h"
}

#include <stdlib.h>

#if defined(__has_include)
#if __has_include(<cublasLt.h>)
#define HAVE_CUBLAS 1
#endif
#endif

#ifdef HAVE_CUBLAS

#include <cublasLt.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>

#define SHAPES_MOST 64
#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)
#define LIBRARY     "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

#define CUBLAS_CALLS(X)                                                                            \
	X(Create)                                                                                      \
	X(Destroy)                                                                                     \
	X(GetVersion)                                                                                  \
	X(GetStatusName)                                                                               \
	X(MatmulDescCreate)                                                                            \
	X(MatmulDescDestroy)                                                                           \
	X(MatmulDescSetAttribute)                                                                      \
	X(MatrixLayoutCreate)                                                                          \
	X(MatrixLayoutDestroy)                                                                         \
	X(MatmulPreferenceCreate)                                                                      \
	X(MatmulPreferenceDestroy)                                                                     \
	X(MatmulPreferenceSetAttribute)                                                                \
	X(MatmulAlgoGetHeuristic)                                                                      \
	X(MatmulAlgoConfigGetAttribute)                                                                \
	X(Matmul)

/* The one algorithm of a shape. */
struct cublas_shape {
	int64_t n_in, n_out;
	bool found;
	cublasLtMatmulAlgo_t algorithm;
};

struct cublas {
#define X(name) decltype(&cublasLt##name) name; /* cublasLtNAME */
	CUBLAS_CALLS(X)
#undef X
	cublasLtHandle_t handle;
	cublasLtMatmulDesc_t product;
	cublasLtMatmulPreference_t limits;
	struct cublas_shape shapes[SHAPES_MOST];
	int n_shapes;
};

/* Where toolkits and the packages of Python put the library, behind the loader's own folders. */
static const char *const folders[] = {
	"/usr/local/cuda/lib64",
	"/usr/local/cuda-[0-9]*/lib64",
	"/usr/local/cuda-[0-9]*/targets/*/lib",
	"/usr/local/lib/python3*/*-packages/nvidia/cu[0-9]*/lib",
	"/usr/local/lib/python3*/*-packages/nvidia/cublas/lib",
};

static void *load_from(const char *pattern)
{
	char path[512];
	void *library = NULL;
	glob_t found;
	snprintf(path, sizeof path, "%s/" LIBRARY, pattern);
	if (glob(path, 0, NULL, &found))
		return NULL;
	for (size_t i = 0; i < found.gl_pathc && !library; i++)
		library = dlopen(found.gl_pathv[i], RTLD_LAZY | RTLD_LOCAL);
	globfree(&found);
	return library;
}

static void *load_library(struct err *why)
{
	void *library = dlopen(LIBRARY, RTLD_LAZY | RTLD_LOCAL);
	const char *home = getenv("CUDA_HOME");
	char first[256] = "", path[512];
	if (!library)
		snprintf(first, sizeof first, "%s", dlerror());
	if (!library && home && *home) {
		snprintf(path, sizeof path, "%s/lib64/" LIBRARY, home);
		library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	}
	for (size_t i = 0; !library && i < sizeof folders / sizeof *folders; i++)
		library = load_from(folders[i]);
	if (!library)
		err_set(why, ERR_RUN, "%s", first);
	return library;
}

static bool describe_products(struct cublas *c, struct err *why)
{
	/* 0 and 0: no workspace, no reduction between blocks */
	const uint64_t workspace = 0;
	const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE, aligned = 256;
	const cublasOperation_t turned = CUBLAS_OP_T;
	cublasStatus_t rc = c->Create(&c->handle);
	rc = rc ? rc : c->MatmulDescCreate(&c->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	rc = rc ? rc
			: c->MatmulDescSetAttribute(
				  c->product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
	rc = rc ? rc : c->MatmulPreferenceCreate(&c->limits);
	rc = rc ? rc
			: c->MatmulPreferenceSetAttribute(c->limits, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
				  &workspace, sizeof workspace);
	rc = rc ? rc
			: c->MatmulPreferenceSetAttribute(c->limits, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
				  &reduction, sizeof reduction);
	static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	for (int i = 0; i < 4 && !rc; i++)
		rc = c->MatmulPreferenceSetAttribute(c->limits, alignments[i], &aligned, sizeof aligned);
	if (rc)
		err_set(why, ERR_RUN, LIBRARY " does not start: %s", c->GetStatusName(rc));
	return !rc;
}

struct cublas *cublas_open(struct err *why)
{
	void *library = load_library(why); /* it stays loaded: closing it would not free its memory */
	if (!library)
		return NULL;
	struct cublas *c = (struct cublas *)calloc(1, sizeof *c);
	const char *missing = NULL;
	if (!c) {
		err_set(why, ERR_MEMORY, "no memory for the state of " LIBRARY);
		return NULL;
	}
#define X(name)                                                                                    \
	*(void **)(void *)&c->name = dlsym(library, "cublasLt" #name);                                 \
	missing = c->name ? missing : "cublasLt" #name;
	CUBLAS_CALLS(X)
#undef X
	if (missing) {
		err_set(why, ERR_RUN, LIBRARY " has no %s", missing);
		free(c);
		return NULL;
	}
	if (!describe_products(c, why)) {
		cublas_close(c);
		return NULL;
	}
	return c;
}

void cublas_close(struct cublas *c)
{
	if (!c)
		return;
	if (c->limits)
		c->MatmulPreferenceDestroy(c->limits);
	if (c->product)
		c->MatmulDescDestroy(c->product);
	if (c->handle)
		c->Destroy(c->handle);
	free(c);
}

uint32_t cublas_version(const struct cublas *c)
{
	return (uint32_t)c->GetVersion();
}

/* The layouts of w, x and d. */
struct cublas_layouts {
	cublasLtMatrixLayout_t w, x, d;
};

static cublasStatus_t layouts_open(
	struct cublas *c, const struct cublas_product *p, struct cublas_layouts *l)
{
	const uint64_t n_in = (uint64_t)p->n_in, n_out = (uint64_t)p->n_out, rows = (uint64_t)p->rows;
	cublasStatus_t rc = c->MatrixLayoutCreate(&l->w, CUDA_R_16F, n_in, n_out, p->w_row);
	rc = rc ? rc : c->MatrixLayoutCreate(&l->x, CUDA_R_16F, n_in, rows, p->x_row);
	return rc ? rc : c->MatrixLayoutCreate(&l->d, CUDA_R_32F, n_out, rows, p->n_out);
}

static void layouts_close(struct cublas *c, struct cublas_layouts *l)
{
	if (l->w)
		c->MatrixLayoutDestroy(l->w);
	if (l->x)
		c->MatrixLayoutDestroy(l->x);
	if (l->d)
		c->MatrixLayoutDestroy(l->d);
}

/* Asks the library once. Algorithms that split the inner dimension all the same are left out. */
static void find_algorithm(struct cublas *c, struct cublas_shape *s)
{
	cublasLtMatmulHeuristicResult_t results[8];
	struct cublas_product canonical = {};
	struct cublas_layouts l = {};
	int n = 0;
	canonical.n_in = canonical.w_row = canonical.x_row = s->n_in;
	canonical.n_out = s->n_out;
	canonical.rows = CUBLAS_CANONICAL_ROWS;
	if (layouts_open(c, &canonical, &l) || c->MatmulAlgoGetHeuristic(c->handle, c->product, l.w,
											   l.x, l.d, l.d, c->limits, 8, results, &n))
		n = 0;
	layouts_close(c, &l);
	for (int i = 0; i < n && !s->found; i++) {
		int32_t split = 0;
		uint32_t reduction = 0;
		size_t written;
		const cublasLtMatmulAlgo_t *a = &results[i].algo;
		if (results[i].state || results[i].workspaceSize ||
			c->MatmulAlgoConfigGetAttribute(
				a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written) ||
			c->MatmulAlgoConfigGetAttribute(
				a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction, &written) ||
			split > 1 || reduction)
			continue;
		s->algorithm = *a;
		s->found = true;
	}
}

static const struct cublas_shape *shape_of(struct cublas *c, int64_t n_in, int64_t n_out)
{
	for (int i = 0; i < c->n_shapes; i++)
		if (c->shapes[i].n_in == n_in && c->shapes[i].n_out == n_out)
			return &c->shapes[i];
	if (c->n_shapes == SHAPES_MOST)
		return NULL;
	struct cublas_shape *s = &c->shapes[c->n_shapes++];
	s->n_in = n_in;
	s->n_out = n_out;
	find_algorithm(c, s);
	return s;
}

bool cublas_takes(struct cublas *c, int64_t n_in, int64_t n_out)
{
	const struct cublas_shape *s = shape_of(c, n_in, n_out);
	return s && s->found;
}

void cublas_multiply(struct cuda_backend *b, const struct cublas_product *p)
{
	struct cublas *c = cublas_of(b);
	const float one = 1, zero = 0;
	struct cublas_layouts l = {};
	cublasStatus_t rc = layouts_open(c, p, &l);
	if (!rc)
		rc = c->Matmul(c->handle, c->product, &one, p->w, l.w, p->x, l.x, &zero, p->d, l.d, p->d,
			l.d, &shape_of(c, p->n_in, p->n_out)->algorithm, NULL, 0, b->stream);
	layouts_close(c, &l);
	if (rc && !b->base.failure.code)
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: cublasLtMatmul of %d rows: %s", b->op,
			p->rows, c->GetStatusName(rc));
	b->used.launches += !b->capturing;
}

#define PEAK_SIZE     8192
#define PEAK_LAUNCHES 8

uint32_t cuda_library_version(struct backend *b)
{
	return cublas_of(cuda_of(b)) ? cublas_version(cublas_of(cuda_of(b))) : 0;
}

/* Halves from -1 to 1 that follow no pattern: equal ones would need less power, and be multiplied
 * faster, than a model's. */
static __global__ void fill_kernel(__half *to, uint32_t n)
{
	uint32_t i = blockIdx.x * 256 + threadIdx.x, v = (i + 1) * 2654435761u;
	v = (v ^ v >> 15) * 2246822519u;
	v ^= v >> 13;
	if (i < n)
		to[i] = __float2half_rn(__fmul_rn((float)(int32_t)v, 0x1p-31f));
}

double cuda_library_flops(struct backend *base)
{
	struct cuda_backend *b = cuda_of(base);
	const size_t n = PEAK_SIZE, halves = 2 * n * n, floats = 4 * n * n;
	uint8_t *memory = NULL;
	cudaEvent_t begin = NULL, end = NULL;
	float best = 0;
	if (!cuda_begin(base, "peak_flops") || !cublas_of(b) || !cublas_takes(cublas_of(b), n, n))
		return 0;
	cudaStreamSynchronize(b->stream);
	bool ready = cudaMalloc((void **)&memory, 2 * halves + floats) == cudaSuccess &&
				 cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess;
	if (ready) {
		fill_kernel<<<(unsigned)(halves / 256), 256, 0, b->stream>>>(
			(__half *)memory, (uint32_t)halves);
		cuda_launched(b);
	}
	struct cublas_product p = {(const __half *)memory, (const __half *)(memory + halves), (int)n,
		(int)n, (float *)(memory + 2 * halves), (int)n, (int)n, (int)n};
	for (int i = 0; i <= PEAK_LAUNCHES && ready; i++) { /* the first one warms up */
		float ms = 0;
		cudaEventRecord(begin, b->stream);
		cublas_multiply(b, &p);
		cudaEventRecord(end, b->stream);
		ready = cudaEventSynchronize(end) == cudaSuccess &&
				cudaEventElapsedTime(&ms, begin, end) == cudaSuccess && ms > 0;
		if (i && ready && (best == 0 || ms < best))
			best = ms;
	}
	cudaEventDestroy(begin);
	cudaEventDestroy(end);
	cudaFree(memory);
	cudaGetLastError();
	return best > 0 ? 2.0 * n * n * n / (best * 1e-3) : 0;
}

#else

struct cublas *cublas_open(struct err *why)
{
	err_set(why, ERR_RUN, "this program was built without cublasLt.h");
	return NULL;
}

void cublas_close(struct cublas *c)
{
	(void)c;
}

uint32_t cublas_version(const struct cublas *c)
{
	(void)c;
	return 0;
}

bool cublas_takes(struct cublas *c, int64_t n_in, int64_t n_out)
{
	(void)c, (void)n_in, (void)n_out;
	return false;
}

void cublas_multiply(struct cuda_backend *b, const struct cublas_product *p)
{
	(void)b, (void)p;
}

uint32_t cuda_library_version(struct backend *b)
{
	(void)b;
	return 0;
}

double cuda_library_flops(struct backend *base)
{
	(void)base;
	return 0;
}

#endif
