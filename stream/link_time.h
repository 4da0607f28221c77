/* SPDX-License-Identifier: MIT */
/* Measures the bandwidth of the link to a card, in a few milliseconds. Used when a stage opens, to
 * split the first misses between card and processor (miss_split.h). */
#ifndef GLM_STREAM_LINK_TIME_H
#define GLM_STREAM_LINK_TIME_H

#include "kernels/copier.h"

/* *bytes_s: bytes a second from pinned host memory to the card; 0 after an error. Takes 16 MiB of
 * host memory and 16 MiB of the card while it runs. Attaches the calling thread to the copier and
 * polls until its copies are complete. Errors: ERR_MEMORY, those of copier.h. */
int link_time(struct copier *c, double *bytes_s, struct err *e);

#endif
