/* SPDX-License-Identifier: MIT */
/*
 * Keeps a thread that uses a communicator of NCCL and a thread that aborts it apart: ncclCommAbort
 * frees the communicator.
 *
 * The thread that uses it:                    the thread that aborts it:
 *     if (nccl_gate_enter(&gate)) {               if (nccl_gate_close(&gate)) {
 *         ... calls of NCCL ...                       nccl_gate_wait(&gate, ms);
 *         nccl_gate_leave(&gate);                     ncclCommAbort(...);
 *     }                                           }
 *
 * - A zeroed gate is open. Once closed it stays closed.
 * - One thread enters at a time; any thread closes, and may do so at the same time.
 * - nccl_gate_leave happens before the return of the nccl_gate_wait that it ends.
 * - C and C++; the fields are private.
 */
#ifndef GLM_KERNELS_NCCL_GATE_H
#define GLM_KERNELS_NCCL_GATE_H

#include <stdbool.h>
#include <time.h>

enum { NCCL_GATE_ENTERED = 1, NCCL_GATE_CLOSED = 2 };

struct nccl_gate {
	int state; /* atomic; bits of the enum */
};

/* False: the gate is closed (or, against the order of use, another thread is inside): the
 * communicator must not be used. */
static inline bool nccl_gate_enter(struct nccl_gate *g)
{
	int open = 0;
	return __atomic_compare_exchange_n(
		&g->state, &open, NCCL_GATE_ENTERED, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* After a successful nccl_gate_enter, by the same thread. */
static inline void nccl_gate_leave(struct nccl_gate *g)
{
	__atomic_and_fetch(&g->state, ~NCCL_GATE_ENTERED, __ATOMIC_RELEASE);
}

/* From now on nobody enters. True for the first caller only. */
static inline bool nccl_gate_close(struct nccl_gate *g)
{
	return !(__atomic_fetch_or(&g->state, NCCL_GATE_CLOSED, __ATOMIC_ACQ_REL) & NCCL_GATE_CLOSED);
}

static inline bool nccl_gate_is_closed(const struct nccl_gate *g)
{
	return __atomic_load_n(&g->state, __ATOMIC_ACQUIRE) & NCCL_GATE_CLOSED;
}

/* After nccl_gate_close. Returns when nobody is inside, or after so many milliseconds; false: a
 * thread still is. */
static inline bool nccl_gate_wait(const struct nccl_gate *g, int ms)
{
	const struct timespec step = {0, 1000000};
	for (; __atomic_load_n(&g->state, __ATOMIC_ACQUIRE) & NCCL_GATE_ENTERED; ms--) {
		if (ms <= 0)
			return false;
		nanosleep(&step, NULL);
	}
	return true;
}

#endif
