/* SPDX-License-Identifier: MIT */
/* The summary of an importance matrix: how much text it is of, and which experts saw few tokens. */
#ifndef GLM_TOOLS_IMATRIX_REPORT_H
#define GLM_TOOLS_IMATRIX_REPORT_H

#include "tools/imatrix/imatrix_set.h"

/* Prints to stdout. Experts of fewer than `rare` tokens are named. json: one object. */
void imatrix_report_print(const struct imatrix_set *s, const char *path, uint32_t rare, bool json);

#endif
