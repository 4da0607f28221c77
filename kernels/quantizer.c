/* SPDX-License-Identifier: MIT */
/* A card's quantizer, or why there is none. */
#include "kernels/quantizer.h"

#include "kernels/backend_kinds.h"
#include "kernels/quantizer_kinds.h"

#ifndef HAVE_CUDA
#define HAVE_CUDA 0
#endif

int quantizer_card_open(struct quantizer **out, struct err *e)
{
	*out = NULL;
#if HAVE_CUDA
	const int rc = quantizer_cuda_open(out, e);
	if (rc)
		backend_explain_no_card("/dev", rc, e);
	return rc;
#else
	err_set(e, ERR_RUN, "backend cuda: this program was built without CUDA");
	return err_hint(e, "use the CPU, or build where nvcc is installed");
#endif
}
