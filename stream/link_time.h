/* SPDX-License-Identifier: MIT */
/* The rate of the link to a card, measured in a few milliseconds: before anything is streamed, for
 * what must be decided at the start. */
#ifndef GLM_STREAM_LINK_TIME_H
#define GLM_STREAM_LINK_TIME_H

#include "kernels/copier.h"

/* Bytes a second from pinned host memory to the card. Takes 16 MiB of both meanwhile, and is the
 * thread that uses the copier. Errors: ERR_MEMORY, a failed copy. */
int link_time(struct copier *c, double *bytes_s, struct err *e);

#endif
