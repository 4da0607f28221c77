/* SPDX-License-Identifier: MIT */
/* Compares weights with their check values where their file is mapped. What differs is looked at
 * again after its pages were dropped from the page cache, so that it comes from the drive. */
#ifndef GLM_STREAM_MAPPED_CHECK_H
#define GLM_STREAM_MAPPED_CHECK_H

#include "src/base/err.h"
#include "src/format/check_values.h"

#include <stdbool.h>

/* Range i of a tensor of the values' model. *reread: whether it was wrong at first. 0, or ERR_RUN
 * with the sentence. */
int mapped_check_range(const struct check_values *v, const struct gguf_tensor *t, uint64_t i,
	bool *reread, struct err *e);

/* All ranges of a tensor; a warning says that one was right only when it was read again. 0, or
 * ERR_INPUT with the sentence. */
int mapped_check_tensor(const struct check_values *v, const struct gguf_tensor *t, struct err *e);

#endif
