/* SPDX-License-Identifier: MIT */
/* The keys of an importance matrix in a GGUF, and the limit of its values. */
#ifndef GLM_TOOLS_IMATRIX_KEYS_H
#define GLM_TOOLS_IMATRIX_KEYS_H

/* llama.cpp's */
#define IMATRIX_TYPE        "general.type" /* the string "imatrix" */
#define IMATRIX_DATASETS    "imatrix.datasets"
#define IMATRIX_CHUNK_COUNT "imatrix.chunk_count"
#define IMATRIX_CHUNK_SIZE  "imatrix.chunk_size"

/* struct imatrix_origin */
#define IMATRIX_MODEL  "glmstream.imatrix.model"
#define IMATRIX_TEXT   "glmstream.imatrix.text"
#define IMATRIX_TOKENS "glmstream.imatrix.tokens"

#define IMATRIX_SUM_LIMIT 1e30f /* sums are below it */

#endif
