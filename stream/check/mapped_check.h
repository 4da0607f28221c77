/* SPDX-License-Identifier: MIT */
/* Compares weights in a mapped file with their check values. A range that differs is hashed a
 * second time after its pages were dropped from the page cache: the drive is read again. */
#ifndef GLM_STREAM_MAPPED_CHECK_H
#define GLM_STREAM_MAPPED_CHECK_H

#include "src/base/err.h"
#include "src/format/check_values.h"

#include <stdbool.h>

/* One range of a tensor of the values' model. i: the expert, or 0. *reread: set to whether the
 * first value was wrong. 0, or ERR_RUN: both were wrong. */
int mapped_check_range(const struct check_values *v, const struct gguf_tensor *t, uint64_t i,
	bool *reread, struct err *e);

/* All ranges of a tensor. Warns of a range that was right only when it was read again. 0, or
 * ERR_INPUT: a range was wrong twice. */
int mapped_check_tensor(const struct check_values *v, const struct gguf_tensor *t, struct err *e);

#endif
