/* SPDX-License-Identifier: MIT */
/* A build without CUDA has no cards to measure; gpu_peer.cu has these functions otherwise. */
#include "kernels/peer.h"

#ifndef HAVE_CUDA
#define HAVE_CUDA 0
#endif

#if !HAVE_CUDA

int peer_pair_open(uint32_t first, uint32_t second, struct peer_pair **out, struct err *e)
{
	(void)first;
	(void)second;
	*out = NULL;
	err_set(e, ERR_RUN, "this program was built without CUDA");
	return err_hint(e, "build where nvcc is installed");
}

void peer_pair_close(struct peer_pair *p)
{
	(void)p;
}

const char *peer_pair_card(const struct peer_pair *p, int which)
{
	(void)p;
	(void)which;
	return "none";
}

bool peer_pair_access(const struct peer_pair *p, int which)
{
	(void)p;
	(void)which;
	return false;
}

const char *peer_pair_lacks(struct peer_pair *p, enum peer_kind kind)
{
	(void)p;
	(void)kind;
	return "this program was built without CUDA";
}

int peer_pair_run(struct peer_pair *p, enum peer_kind kind, struct err *e)
{
	return err_set(e, ERR_RUN, "%s", peer_pair_lacks(p, kind));
}

#endif
