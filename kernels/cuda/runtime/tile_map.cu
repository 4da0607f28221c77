/* SPDX-License-Identifier: MIT */
/* The host's part of tile_copy.cuh. */
#include "kernels/cuda/common/tile_copy.cuh"
#include "kernels/cuda/runtime/gpu_backend.cuh"

typedef CUresult map_encoder(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
	const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
	CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's cuTensorMapEncodeTiled, which the runtime library does not offer; NULL: not found */
static map_encoder *find_encoder(void)
{
	void *found = NULL;
	cudaDriverEntryPointQueryResult result;
	cudaError_t rc = cudaGetDriverEntryPointByVersion(
		"cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
	return rc == cudaSuccess && result == cudaDriverEntryPointSuccess ? (map_encoder *)found : NULL;
}

bool tile_map_make(struct cuda_backend *b, CUtensorMap *map, const struct tiled_matrices *m)
{
	static map_encoder *const encode = find_encoder();
	cuuint64_t size[3] = {
		(cuuint64_t)m->row_bytes / 4, (cuuint64_t)m->n_rows, (cuuint64_t)m->count};
	cuuint64_t stride[2] = {(cuuint64_t)m->row_bytes,
		(cuuint64_t)(m->count > 1 ? m->stack_bytes : m->row_bytes * m->n_rows)};
	cuuint32_t tile[3] = {(cuuint32_t)m->tile_bytes / 4, (cuuint32_t)m->tile_rows, 1},
			   step[3] = {1, 1, 1};
	if (!encode)
		return cuda_check(b, cudaErrorCallRequiresNewerDriver);
	CUresult rc = encode(map, CU_TENSOR_MAP_DATA_TYPE_INT32, 3, (void *)m->data, size, stride, tile,
		step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
		CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (rc != CUDA_SUCCESS && !b->base.failure.code)
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s: the driver makes no map of %lld rows of %lld bytes: error %d", b->op,
			(long long)m->n_rows, (long long)m->row_bytes, (int)rc);
	return rc == CUDA_SUCCESS;
}
