/* SPDX-License-Identifier: MIT */
/* The registry of backends: a name, or "auto", to an open backend. The only place that knows which
 * ones exist. */
#include "kernels/backend.h"

#include "kernels/backend_kinds.h"
#include "kernels/hand_over.h"
#include "src/base/log.h"
#include "src/base/num.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef HAVE_CUDA
#define HAVE_CUDA 0
#endif

/* One of them is there where a card and its driver are, the last in Windows' subsystem for Linux. A
 * card that works may lack them before its first use, so this explains failures only. */
static const char *const card_files[] = {"nvidiactl", "nvidia0", "dxg"};

static bool card_is_there(const char *devices)
{
	for (size_t i = 0; i < ARRAY_LEN(card_files); i++) {
		char path[512];
		snprintf(path, sizeof path, "%s/%s", devices, card_files[i]);
		if (!access(path, F_OK))
			return true;
	}
	return false;
}

bool backend_explain_no_card(const char *devices, int rc, struct err *e)
{
	if (card_is_there(devices))
		return true;
	err_set(e, rc, "backend cuda: no graphics card found");
	return false;
}

#if HAVE_CUDA
#define cuda_open  cuda_backend_open
#define cuda_cards cuda_count_cards
#define hand_over  cuda_hand_over
#else
static int cuda_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	(void)options;
	*out = NULL;
	err_set(e, ERR_RUN, "backend cuda: this program was built without CUDA");
	return err_hint(e, "use the CPU, or build where nvcc is installed");
}

static uint32_t cuda_cards(void)
{
	return 0;
}

static void hand_over(
	struct backend *from, struct backend *to, const struct handed_part *parts, int n)
{
	(void)from;
	(void)to;
	(void)parts;
	(void)n;
}
#endif

int backend_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	const char *name = options->name ? options->name : "auto";
	*out = NULL;
	if (!strcmp(name, "cpu"))
		return cpu_backend_open(options, out, e);
	if (!strcmp(name, "cuda")) {
		int rc = cuda_open(options, out, e);
		if (rc && HAVE_CUDA)
			backend_explain_no_card("/dev", rc, e);
		return rc;
	}
	if (strcmp(name, "auto"))
		return err_set(
			e, ERR_USAGE, "backend '%s' is not known; there are auto, cpu and cuda", name);
	struct err why = {0};
	int rc = cuda_open(options, out, &why);
	if (rc == ERR_USAGE) { /* there are cards, but not this one */
		if (e)
			*e = why;
	} else if (rc) {
		bool there = HAVE_CUDA && backend_explain_no_card("/dev", rc, &why);
		rc = cpu_backend_open(options, out, e);
		if (!rc && there)
			log_warn("the graphics card is not used: %s", why.text);
		else if (!rc)
			log_verbose("backend: cpu (%s): %s", backend_describe(*out), why.text);
	} else {
		log_verbose("backend: cuda (%s)", backend_describe(*out));
	}
	return rc;
}

uint32_t backend_count_cards(const char *name)
{
	uint32_t n = name && !strcmp(name, "cpu") ? 0 : cuda_cards();
	return MAX(n, 1u);
}

void backend_hand_over(
	struct backend *from, struct backend *to, const struct handed_part *parts, int n)
{
	if (strcmp(from->ops->name, to->ops->name) != 0)
		bug("a hand-over from a backend %s to a backend %s", from->ops->name, to->ops->name);
	if (!strcmp(from->ops->name, "cuda")) {
		hand_over(from, to, parts, n);
		return;
	}
	/* the host reaches all memory, and ops have run when they return */
	for (int i = 0; i < n && !to->failure.code; i++)
		from->ops->copy(from, parts[i].dst, parts[i].src, parts[i].bytes);
}

const char *backend_describe(struct backend *b)
{
	return b->ops->describe(b);
}
