/* SPDX-License-Identifier: MIT */
/* The registry of backends: a name, or "auto", to an open backend. The only place that knows which
 * ones exist. */
#include "kernels/backend.h"

#include "kernels/backend_kinds.h"
#include "src/base/log.h"

#include <string.h>
#include <unistd.h>

#ifndef HAVE_CUDA
#define HAVE_CUDA 0
#endif

#if HAVE_CUDA
/* Is a card there, as far as its device files tell? They may be missing before the first use of a
 * card that works, so this explains a failure only. The last is of Windows' subsystem for Linux. */
static bool card_is_there(void)
{
	return !access("/dev/nvidiactl", F_OK) || !access("/dev/nvidia0", F_OK) ||
		   !access("/dev/dxg", F_OK);
}

/* Without card and driver CUDA says that the driver is too old, which is misleading. */
static int cuda_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	int rc = cuda_backend_open(options, out, e);
	return rc && !card_is_there() ? err_set(e, rc, "backend cuda: no graphics card found") : rc;
}
#else
static bool card_is_there(void)
{
	return false; /* none that this program could use */
}

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
		if (!rc && card_is_there())
			log_warn("the graphics card is not used: %s", why.text);
		else if (!rc)
			log_verbose("backend: cpu (%s): %s", backend_describe(*out), why.text);
		return rc;
	}
	log_verbose("backend: cuda (%s)", backend_describe(*out));
	return 0;
}

const char *backend_describe(struct backend *b)
{
	return b->ops->describe(b);
}
