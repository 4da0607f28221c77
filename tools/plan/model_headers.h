/* SPDX-License-Identifier: MIT */
/*
 * A model of which only the headers are needed: of a file that exists, or those that `convert`
 * would write for the released shape and a recipe. The latter are a sparse file in memory, so that
 * a recipe is planned by the same code as a file.
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
	bool no_mtp;                  /* bound without the MTP layer, as a run with --draft off does */
	uint64_t values;              /* weights of all tensors */
	int fd;                       /* the file in memory, else -1 */
};

/* Both set *m, which model_headers_close releases, after an error too.
 * GLM-5.2 by a recipe of `convert`; ERR_USAGE: no such recipe. */
int model_headers_make(struct model_headers *m, const char *recipe, struct err *e);
/* The file at `path`; ERR_INPUT as of gguf_open, config_read and weights_bind. */
int model_headers_open(struct model_headers *m, const char *path, struct err *e);
/* After one of these: binds again without the MTP layer. A model that has none stays as it is. */
int model_headers_leave_mtp(struct model_headers *m, struct err *e);
/* Whether this program could open what a planned writer is going to write: ERR_INPUT as above. Of
 * several parts the first is looked at. */
struct gguf_writer;
int model_headers_check(const struct gguf_writer *w, struct err *e);
void model_headers_close(struct model_headers *m); /* accepts a zeroed struct */

#endif
