/* SPDX-License-Identifier: MIT */
/* A build without CUDA; gpu_nccl.cu has these functions otherwise. */
#include "kernels/nccl.h"

#ifndef HAVE_CUDA
#define HAVE_CUDA 0
#endif

#if !HAVE_CUDA

const char *nccl_missing(const struct backend *b)
{
	(void)b;
	return "the rows are not on a card";
}

const char *nccl_version(void)
{
	return "";
}

int nccl_make_id(uint8_t id[NCCL_ID_BYTES], struct err *e)
{
	(void)id;
	return err_set(e, ERR_RUN, "built without CUDA");
}

int nccl_channel_open(struct backend *b, const uint8_t id[NCCL_ID_BYTES], bool sends,
	struct nccl_channel **out, struct err *e)
{
	(void)b;
	(void)id;
	(void)sends;
	*out = NULL;
	return err_set(e, ERR_RUN, "built without CUDA");
}

void nccl_channel_send(struct nccl_channel *c, const struct nccl_part *parts, int n)
{
	(void)c;
	(void)parts;
	(void)n;
}

void nccl_channel_receive(struct nccl_channel *c, const struct nccl_part *parts, int n)
{
	nccl_channel_send(c, parts, n);
}

void nccl_channel_abort(struct nccl_channel *c, const char *why)
{
	(void)c;
	(void)why;
}

void nccl_channel_close(struct nccl_channel *c)
{
	(void)c;
}

#endif
