/* SPDX-License-Identifier: MIT */
/*
 * A model file without data: the headers that `convert` would write for the released shape and a
 * recipe, as a sparse file in memory. What plans from headers plans from it as from the real one.
 */
#ifndef GLM_TOOLS_MODEL_HEADERS_H
#define GLM_TOOLS_MODEL_HEADERS_H

#include "src/base/err.h"
#include "src/format/gguf.h"
#include "src/model/config.h"
#include "src/model/weights.h"

struct model_headers {
	struct gguf *file;
	struct model_config config;
	struct model_weights weights; /* bound */
	size_t resident;              /* bytes that weights_load would take */
	uint64_t values;              /* weights of all tensors */
	int fd;
};

/* Of GLM-5.2 by a recipe of `convert`. ERR_USAGE: no such recipe. */
int model_headers_make(struct model_headers *m, const char *recipe, struct err *e);
/* Of a file that exists. */
int model_headers_open(struct model_headers *m, const char *path, struct err *e);
void model_headers_close(struct model_headers *m); /* accepts a zeroed struct */

#endif
