/* SPDX-License-Identifier: MIT */
/* The registry of backends: a name, or "auto", to an open backend. The only place that knows which
 * ones exist. */
#include "kernels/backend.h"

#include "kernels/backend_kinds.h"
#include "src/base/log.h"

#include <string.h>

#ifndef HAVE_CUDA
#define HAVE_CUDA 0
#endif

#if HAVE_CUDA
#define cuda_open cuda_backend_open
#else
static int cuda_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	(void)options;
	*out = NULL;
	err_set(e, ERR_RUN, "backend cuda: this program was built without CUDA");
	return err_hint(e, "use the CPU, or build where nvcc is installed");
}
#endif

int backend_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	const char *name = options->name ? options->name : "auto";
	*out = NULL;
	if (!strcmp(name, "cpu"))
		return cpu_backend_open(options, out, e);
	if (!strcmp(name, "cuda"))
		return cuda_open(options, out, e);
	if (strcmp(name, "auto"))
		return err_set(
			e, ERR_USAGE, "backend '%s' is not known; there are auto, cpu and cuda", name);
	struct err why = {0};
	int rc = cuda_open(options, out, &why);
	if (rc) {
		rc = cpu_backend_open(options, out, e);
		if (!rc)
			log_info("backend: cpu (%s); not cuda: %s", backend_describe(*out), why.text);
		return rc;
	}
	log_info("backend: cuda (%s)", backend_describe(*out));
	return 0;
}

const char *backend_describe(struct backend *b)
{
	return b->ops->describe(b);
}
