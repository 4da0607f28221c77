/* SPDX-License-Identifier: MIT */
/*
 * Writing importance matrices in llama.cpp's two containers (imatrix_file.h). A name that ends in
 * .dat gets the older one. It holds mean squares and one number of calls for all experts, so counts
 * by expert, the origin and second moments are lost. As in llama.cpp an expert that no token went
 * to gets 1 in each column, and a tensor without tokens is left out.
 */
#ifndef GLM_TOOLS_IMATRIX_WRITE_H
#define GLM_TOOLS_IMATRIX_WRITE_H

#include "tools/imatrix/imatrix_set.h"

#include <sys/stat.h>

/* Where to write. Zero-initialise but for path and force. */
struct imatrix_output {
	const char *path;
	bool force;      /* any file is replaced */
	bool has_own;    /* private: */
	struct stat own; /* the file that imatrix_output_own has seen */
};

bool imatrix_is_dat(const char *path);

/* What stands at the path is of this run, which may replace it as long as nobody changes it. */
void imatrix_output_own(struct imatrix_output *o);

/* Whether a file can be written there at all, whatever stands there now. For before the model is
 * opened. ERR_INPUT: no folder, or no regular file. */
int imatrix_check_place(const struct imatrix_output *o, struct err *e);

/* Whether imatrix_write may write here: ERR_INPUT when another's file stands there, or beside it
 * under the name that ends in .partial, and `force` is not set. */
int imatrix_check_output(const struct imatrix_output *o, struct err *e);

/* ERR_MEMORY: the drive has no room for the data of the file of this set. What stands there now
 * stays until the new file is whole. */
int imatrix_check_space(const struct imatrix_set *s, const struct imatrix_output *o, struct err *e);

/* Replaces the file in one step; it is this run's then. ERR_INPUT: another's file is there by now.
 * A GGUF is then whole under its name with .partial, which the hint says. */
int imatrix_write(const struct imatrix_set *s, struct imatrix_output *o, struct err *e);

#endif
