/* SPDX-License-Identifier: MIT */
#include "src/engine/stages/micro_batches.h"

#include "src/base/num.h"

uint32_t micro_batches_count(uint32_t answers, uint32_t rows, uint32_t n_stages, uint32_t most)
{
	const uint32_t least = rows / most + (rows % most != 0);
	return MIN(MAX(n_stages, least), answers);
}

uint32_t micro_batches_take(
	const uint32_t *rows, uint32_t n, uint32_t all_rows, uint32_t count, uint32_t most)
{
	const uint32_t wanted = MIN(most, (all_rows + count - 1) / count);
	uint32_t taken = 1, sum = rows[0];
	while (taken < n && sum + rows[taken] <= wanted)
		sum += rows[taken++];
	return taken;
}
