/* SPDX-License-Identifier: MIT */
/* What a backend hands over to another one: of the same card, of another card, or of the CPU. */
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
 * Up to HANDED_PARTS_MAX copies from memory of one backend to memory of another one of the same
 * name, enqueued; the host does not wait.
 * - Order: behind all ops of both; later ops of both come behind the copies.
 * - dst and src at multiples of 16 bytes, bytes a multiple of 4.
 * - Threads: the caller makes calls of both backends.
 * - Errors: after a failure of either nothing is copied. A copy that is refused becomes the failure
 *   of `from` or of `to`. A fault of `from` that shows later does not become that of `to`: whoever
 *   uses results of `to` waits for both.
 */
void backend_hand_over(
	struct backend *from, struct backend *to, const struct handed_part *parts, int n);

/* Private to kernels/: between two backends of CUDA. Only in programs built with HAVE_CUDA. */
void cuda_hand_over(
	struct backend *from, struct backend *to, const struct handed_part *parts, int n);

#endif
