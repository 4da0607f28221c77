/* SPDX-License-Identifier: MIT */
#include "kernels/library.h"

#include <string.h>

#if defined HAVE_CUDA && HAVE_CUDA

uint32_t backend_library_version(struct backend *b)
{
	return strcmp(b->ops->name, "cuda") ? 0 : cuda_library_version(b);
}

double backend_library_flops(struct backend *b)
{
	return strcmp(b->ops->name, "cuda") ? 0 : cuda_library_flops(b);
}

#else

uint32_t backend_library_version(struct backend *b)
{
	(void)b;
	return 0;
}

double backend_library_flops(struct backend *b)
{
	(void)b;
	return 0;
}

#endif
