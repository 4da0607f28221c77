/* SPDX-License-Identifier: MIT */
/* Private to kernels/: how the registry (backend.c) opens each implementation. Same contract as
 * backend_open. */
#ifndef GLM_KERNELS_BACKEND_KINDS_H
#define GLM_KERNELS_BACKEND_KINDS_H

#include "kernels/backend.h"

int cpu_backend_open(const struct backend_options *options, struct backend **out, struct err *e);

/* Only in programs built with HAVE_CUDA. ERR_RUN when no usable device answers. */
int cuda_backend_open(const struct backend_options *options, struct backend **out, struct err *e);

/* Devices that the driver lists; 0 without a driver. Only with HAVE_CUDA. */
uint32_t cuda_count_cards(void);

/* After cuda_backend_open has failed with rc: without a card CUDA says that the driver is too old,
 * which misleads, so *e then says that there is no card. `devices`: the folder of device files.
 * Returns whether there is a card. */
bool backend_explain_no_card(const char *devices, int rc, struct err *e);

#endif
