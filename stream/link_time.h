/* SPDX-License-Identifier: MIT */
/* Measures the bandwidth of the link to a card in a few milliseconds, when a stage opens: the first
 * misses are split between card and processor by it (miss_split.h), before anything was streamed.
 */
#ifndef GLM_STREAM_LINK_TIME_H
#define GLM_STREAM_LINK_TIME_H

#include "kernels/copier.h"

/* *bytes_s: bytes a second from pinned host memory to the card; 0 after an error. Needs 16 MiB of
 * each while it runs, attaches the calling thread to the copier, and polls until its copies are
 * complete. Errors: ERR_MEMORY, those of a copy (copier.h). */
int link_time(struct copier *c, double *bytes_s, struct err *e);

#endif
