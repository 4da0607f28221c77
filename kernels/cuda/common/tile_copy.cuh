/* SPDX-License-Identifier: MIT */
/*
 * Copies of tiles of matrices from global to shared memory by the copy engine (TMA; compute
 * capability 9.0 and newer): one lane starts what a warp does with many cp.async.
 *
 *   1. On the host, tile_map_make: a map says where the matrices lie and how large a tile is.
 *   2. The kernel gets it as part of a parameter (__grid_constant__).
 *   3. One thread: mbarrier_expect with the bytes of all tiles of the phase, then tile_copy.
 *
 * What lies past the last row or past the end of a row is copied as zeros, and counts as bytes of
 * the tile.
 */
#ifndef GLM_KERNELS_CUDA_TILE_COPY_CUH
#define GLM_KERNELS_CUDA_TILE_COPY_CUH

#include "kernels/cuda/common/mbarrier.cuh"

#include <cuda.h>

struct cuda_backend;

/* A stack of matrices (count 1: one), and the size of a tile. Data, row_bytes, stack_bytes and
 * tile_bytes are multiples of 16. */
struct tiled_matrices {
	const void *data;
	int64_t row_bytes, n_rows;
	int64_t stack_bytes; /* from a matrix to the next */
	int count;
	int tile_bytes, tile_rows; /* at most 1024 bytes of at most 256 rows */
};

/* False: the failure is kept. */
bool tile_map_make(struct cuda_backend *b, CUtensorMap *map, const struct tiled_matrices *m);

/* Copies the tile whose first element is word `word`, of four bytes, of row `row` of a matrix. The
 * copied rows lie densely from `to` on, a shared address that is a multiple of 128. Completes on
 * the barrier. */
static __device__ __forceinline__ void tile_copy(
	uint32_t to, const CUtensorMap *map, int word, int row, int matrix, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
				 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
				 "l"(map), "r"(word), "r"(row), "r"(matrix), "r"(barrier)
				 : "memory");
}

#endif
