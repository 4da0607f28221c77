/* SPDX-License-Identifier: MIT */
/* Copies from memory of one backend to memory of another: two of one card, of two cards, or of the
 * CPU. */
#ifndef GLM_KERNELS_HAND_OVER_H
#define GLM_KERNELS_HAND_OVER_H

#include "kernels/backend.h"

#define HANDED_PARTS_MAX 4

struct handed_part {
	void *dst;       /* memory of the receiver */
	const void *src; /* memory of the sender */
	size_t bytes;
};

/*
 * Enqueues n copies from memory of `from` to memory of `to`; the host does not wait.
 * - Preconditions: both backends have the same name; n <= HANDED_PARTS_MAX; dst and src are
 *   multiples of 16 bytes, `bytes` is one of 4 and may be 0. `parts` is read before the return.
 * - Order: the copies come behind all ops that either backend has enqueued; later ops of either
 *   come behind the copies.
 * - Threads: the calling thread is the one that may call both backends.
 * - Errors: nothing is copied after a failure of either backend. A refused copy becomes the failure
 *   of `from` or of `to`. A fault of `from` that shows after the return is not passed on to `to`:
 *   the reader of the results waits for both backends.
 */
void backend_hand_over(
	struct backend *from, struct backend *to, const struct handed_part *parts, int n);

/* Private to kernels/: between two backends of CUDA. Only in programs built with HAVE_CUDA. */
void cuda_hand_over(
	struct backend *from, struct backend *to, const struct handed_part *parts, int n);

#endif
