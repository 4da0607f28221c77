/* SPDX-License-Identifier: MIT */
/*
 * Polling on the device, with a limit. A kernel polls for a flag, a count or a message of another
 * block or of the host. At the limit the kernel stores its id in pinned memory and traps: the
 * launch fails, and the backend's failure names the kernel.
 *
 * mbarrier_wait has no limit. It waits for bulk copies that the block or its cluster has issued, or
 * for warps of the same block. Those copies always end, and a warp that polls has a limit of its
 * own. A limit in the mbarrier waits of experts_kernel cost 2 % of a token (9.45 against 9.25 ms).
 *
 *      struct poll_report report = ...;   in the kernel's arguments, by cuda_poll_report
 *      poll_until(a.report, [&]() { return flag_load(p) != FLAG_EMPTY; });
 *
 * The limit costs a counter. The arguments are read only when it is reached.
 */
#ifndef GLM_KERNELS_CUDA_POLL_CUH
#define GLM_KERNELS_CUDA_POLL_CUH

#include <stdint.h>

#define POLL_BUSY     (1u << 20) /* polls without a pause; then POLL_PAUSE_NS between two */
#define POLL_PAUSE_NS 2000
/* Polls: about half a minute with the pauses. */
#define POLL_LIMIT (1u << 24)
/* About half an hour: waits of a deferred kernel, except for its mailbox (MAILBOX_POLL_LIMIT) */
#define POLL_LIMIT_DEFERRED (1u << 30)

/* The kernels that poll; poll_kernel_name (gpu_backend.cu) has their names. */
enum poll_kernel {
	POLL_NONE,
	POLL_GEMV_CHAIN,
	POLL_ROUTE,
	POLL_EXPERTS,
	POLL_EXPERTS_DEFERRED,
	POLL_FFN,
	POLL_MLA,
	POLL_KERNELS
};

/* An argument of a kernel that polls. */
struct poll_report {
	uint32_t *stalled; /* pinned: the poll_kernel that gave up */
	uint32_t kernel;   /* enum poll_kernel */
};

static __device__ __forceinline__ void poll_fail(const struct poll_report &report)
{
	*(volatile uint32_t *)report.stalled = report.kernel;
	__threadfence_system();
	__trap();
}

/* Called after a poll that found nothing: pauses, or gives up. polls: how many such polls were
 * before it. */
template <unsigned LIMIT = POLL_LIMIT, unsigned BUSY = POLL_BUSY, unsigned PAUSE_NS = POLL_PAUSE_NS>
static __device__ __forceinline__ void poll_again(const struct poll_report &report, unsigned polls)
{
	if (polls < BUSY)
		return;
	if (polls == LIMIT)
		poll_fail(report);
	__nanosleep(PAUSE_NS);
}

/* Returns when ready() is true. */
template <unsigned LIMIT = POLL_LIMIT, unsigned BUSY = POLL_BUSY, unsigned PAUSE_NS = POLL_PAUSE_NS,
	typename F>
static __device__ __forceinline__ void poll_until(const struct poll_report &report, F ready)
{
	for (unsigned polls = 0; !ready(); polls++)
		poll_again<LIMIT, BUSY, PAUSE_NS>(report, polls);
}

#endif
