/* SPDX-License-Identifier: MIT */
/*
 * Writing importance matrices in llama.cpp's two containers (imatrix_file.h). A name that ends in
 * .dat gets the older one. It holds mean squares and one number of calls for all experts, so counts
 * by expert and the origin are lost. As in llama.cpp an expert that no token went to gets 1 in each
 * column, and a tensor without tokens is left out.
 */
#ifndef GLM_TOOLS_IMATRIX_WRITE_H
#define GLM_TOOLS_IMATRIX_WRITE_H

#include "tools/imatrix/imatrix_set.h"

bool imatrix_is_dat(const char *path);

/* Whether imatrix_write may write here. With `force` always; else ERR_INPUT when a file stands
 * there. */
int imatrix_check_output(const char *path, bool force, struct err *e);

/* Replaces the file at `path` in one step. The caller has asked imatrix_check_output. */
int imatrix_write(const struct imatrix_set *s, const char *path, struct err *e);

#endif
