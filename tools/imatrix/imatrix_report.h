/* SPDX-License-Identifier: MIT */
/* What a person should know of an importance matrix: how much text, and which experts hardly any
 * token went to. */
#ifndef GLM_TOOLS_IMATRIX_REPORT_H
#define GLM_TOOLS_IMATRIX_REPORT_H

#include "tools/imatrix/imatrix_set.h"

/* Prints to stdout. Experts of fewer than `rare` tokens are named. json: one object. */
void imatrix_report_print(const struct imatrix_set *s, const char *path, uint32_t rare, bool json);

#endif
