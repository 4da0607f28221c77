/* SPDX-License-Identifier: MIT */
/* Private to kernels/: the quantizer behind quantizer_card_open. Only with HAVE_CUDA. */
#ifndef GLM_KERNELS_QUANTIZER_KINDS_H
#define GLM_KERNELS_QUANTIZER_KINDS_H

#include "kernels/quantizer.h"

int quantizer_cuda_open(struct quantizer **out, struct err *e);

#endif
