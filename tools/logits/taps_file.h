/* SPDX-License-Identifier: MIT */
/* A small safetensors file from arrays in memory: what dump-logits --taps writes. */
#ifndef GLM_TOOLS_TAPS_FILE_H
#define GLM_TOOLS_TAPS_FILE_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct taps_tensor {
	char name[48];
	const char *dtype; /* "F32", "U8", "U16", "I32" */
	uint64_t shape[3];
	int n_dims;
	const void *data;
	size_t bytes;
};

/* Writes header and data; write errors are left to the caller's check of `f`. */
void taps_file_write(FILE *f, const struct taps_tensor *tensors, size_t n);

#endif
