/* SPDX-License-Identifier: MIT */
/*
 * The mailbox of a deferred expert kernel: how the blocks of experts_kernel learn which experts to
 * compute. The host's side is deferred_experts.cu.
 *
 * The mailbox is pinned memory: MESSAGE_WORDS words of 64 bits for each rank, which are where gate,
 * up and down of the rank's expert lie, and MAILBOX_SKIP. A word has a sequence number in its upper
 * 16 bits and the address in the others: it is its own flag, and the order in which words become
 * visible does not matter. An address of 0: not posted yet; MAILBOX_SKIP: nothing to compute. With
 * MAILBOX_SKIP for gate and an address for down, the host has computed the expert: there lies its
 * row of out, in pinned memory.
 *
 * Sequence numbers count deferred kernels: the host by itself, the device by the arrivals of its
 * blocks, because a captured launch has the same arguments every time. The first post of the host
 * to a kernel writes all words, so no word of an old sequence number is left.
 *
 * The kernel works in rounds. A round is the experts that were posted since the round before. Only
 * block 0 polls the host's memory; the others poll its copies in device memory, one set for each
 * round. Polls of several SMs in the host's memory would be served one after the other,
 * 1.2 us each.
 */
#ifndef GLM_KERNELS_CUDA_MAILBOX_CUH
#define GLM_KERNELS_CUDA_MAILBOX_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"
#include "kernels/cuda/runtime/signals.cuh"

#include <cuda/ptx>

#define MESSAGE_WORDS     4
#define MAILBOX_RANKS     8
#define MAILBOX_WORDS     (MESSAGE_WORDS * MAILBOX_RANKS)
#define MAILBOX_SEQUENCES 65534 /* then numbers repeat; even */
#define MAILBOX_SKIP      1     /* as an address */

/* Polls without a pause; then pauses, because copies need the same memory. It may take long. */
#define MAILBOX_BUSY     32
#define MAILBOX_PAUSE_NS 200
/* Of block 0, about 45 minutes by estimate: the host may be stopped. */
#define MAILBOX_POLL_LIMIT (1u << 31)

/* On the device. [2]: of launches with even and odd sequence numbers. A launch zeroes the other
 * half for the next one. */
struct mailbox_state {
	unsigned long long copy[2][MAILBOX_RANKS][MAILBOX_WORDS]; /* by round; to 16 bytes */
	uint32_t counts[2][MAILBOX_RANKS]; /* of each rank: stages of gate and up that are done */
	uint32_t arrivals;                 /* of blocks of deferred kernels; for sequence numbers */
};

struct mailbox_args {
	struct mailbox_state *state;       /* device */
	const unsigned long long *mailbox; /* pinned [MAILBOX_WORDS] */
	struct cuda_profile *profile;      /* device */
};

/* The work of a round, in shared memory */
struct work_list {
	const uint8_t *gate[MAILBOX_RANKS], *up[MAILBOX_RANKS], *down[MAILBOX_RANKS];
	uint32_t *counts; /* [MAILBOX_RANKS] */
	uint16_t n_tasks;
	uint16_t more;               /* another round follows */
	uint8_t rank[MAILBOX_RANKS]; /* also of the rows below */
	uint16_t n_rows;             /* behind the tasks: down is a row of out that the host computed */
};

/* A block's progress, in its fetching warp */
struct mailbox_reader {
	uint32_t sequence; /* from 0 */
	unsigned posted;   /* ranks of the rounds so far: bit 2 r */
	int round;
};

static __device__ __forceinline__ ulonglong2 mailbox_load(const unsigned long long *p)
{
	ulonglong2 v;
	asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];"
				 : "=l"(v.x), "=l"(v.y)
				 : "l"(p)
				 : "memory");
	return v;
}

static __device__ __forceinline__ void mailbox_store(
	unsigned long long *p, unsigned long long x, unsigned long long y)
{
	asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(x), "l"(y) : "memory");
}

/* By a warp of each block, once in a launch. */
static __device__ __forceinline__ void mailbox_open(
	const struct mailbox_args &a, struct mailbox_reader &reader)
{
	uint32_t number =
		threadIdx.x % 32 ? 0 : atomicInc(&a.state->arrivals, gridDim.x * MAILBOX_SEQUENCES - 1);
	reader.sequence = __shfl_sync(0xffffffffu, number, 0) / gridDim.x;
	reader.posted = 0;
	reader.round = 0;
}

/* What was written before the words that this thread has polled is visible behind it. .sys: the
 * processor wrote it. */
static __device__ __forceinline__ void mailbox_acquire()
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Polls the mailbox until a message with this launch's sequence number arrives for another rank;
 * then decodes the messages into the work list of the round. By the same warp: lanes 2 r and 2 r +
 * 1 have two words each of rank r.
 * - Weights were written before the words, by the copy engine, and bulk copies read them: they need
 *   only the fence between the words and those copies, at the end.
 * - Rows of out were written by the processor, and generic loads read them. The words were stored
 *   with release; block 0 acquires before it forwards them, the reader before its first load
 *   (mailbox_acquire). Rounds without such rows have neither. */
static __device__ __forceinline__ void mailbox_poll(const struct mailbox_args &a,
	const struct poll_report &report, struct work_list *work, struct mailbox_reader &reader)
{
	constexpr unsigned long long ADDRESS = 0xffffffffffffull;
	constexpr unsigned EVEN = 0x5555; /* one bit of two for each rank */
	struct mailbox_state *s = a.state;
	int lane = threadIdx.x % 32, pair = lane % (MAILBOX_WORDS / 2);
	unsigned long long *copy = s->copy[reader.sequence & 1][reader.round] + 2 * pair,
					   tag = reader.sequence + 1;
	const unsigned long long *from = blockIdx.x ? copy : a.mailbox + 2 * pair;
	/* by the last block, which starts when the op before ends and makes room */
	struct cuda_profile *profile = blockIdx.x + 1 < gridDim.x || lane ? NULL : a.profile;
	unsigned long long *ring = profile ? profile->ring : NULL, since = ring ? device_clock() : 0;
	ulonglong2 two;
	unsigned posted, fresh;
	auto arrived = [&]() {
		two = mailbox_load(from);
		posted = __ballot_sync(0xffffffffu, two.x << 16 && two.y << 16);
		posted &= posted >> 1 & EVEN;
		fresh = posted & ~reader.posted;
		return __all_sync(0xffffffffu, two.x >> 48 == tag && two.y >> 48 == tag) && fresh;
	};
	/* Only block 0 has a limit. Its polls of host memory are the slowest, and its trap ends the
	 * other blocks too: the process may be stopped as long as those polls last. */
	for (unsigned polls = 0; !arrived(); polls++)
		if (!blockIdx.x)
			poll_again<MAILBOX_POLL_LIMIT, MAILBOX_BUSY, MAILBOX_PAUSE_NS>(report, polls);
		else if (polls >= MAILBOX_BUSY)
			__nanosleep(MAILBOX_PAUSE_NS);
	if (ring) {
		unsigned long long now = device_clock();
		if (reader.round) {
			profile->waited += now - since;
		} else {
			ring[profile->n++ % PROFILE_EVENTS] = since;
			ring[profile->n++ % PROFILE_EVENTS] = now;
		}
	}
	unsigned addresses = __ballot_sync(0xffffffffu, (two.x & ADDRESS) > MAILBOX_SKIP),
			 tasks = addresses & fresh, rows = addresses >> 1 & fresh & ~tasks;
	if (!blockIdx.x && rows)
		mailbox_acquire();
	if (!blockIdx.x && lane < MAILBOX_WORDS / 2) {
		bool mine = posted >> (pair & ~1) & 1;
		mailbox_store(copy, mine ? two.x : tag << 48, mine ? two.y : tag << 48);
	}
	int task = __popc(tasks & ((1u << (lane & ~1)) - 1));
	if (tasks >> (lane & ~1) & 1 && lane < MAILBOX_WORDS / 2) {
		const uint8_t *at = (const uint8_t *)(two.x & ADDRESS);
		if (lane & 1) {
			work->down[task] = at;
		} else {
			work->gate[task] = at;
			work->up[task] = (const uint8_t *)(two.y & ADDRESS);
			work->rank[task] = (uint8_t)(lane / 2);
		}
	}
	int row = __popc(tasks) + __popc(rows & ((1u << (lane & ~1)) - 1));
	if (lane & 1 && rows >> (lane & ~1) & 1 && lane < MAILBOX_WORDS / 2) {
		work->down[row] = (const uint8_t *)(two.x & ADDRESS);
		work->rank[row] = (uint8_t)(lane / 2);
	}
	if (!lane) {
		work->n_tasks = (uint16_t)__popc(tasks);
		work->n_rows = (uint16_t)__popc(rows);
		work->more = posted != EVEN;
		work->counts = s->counts[reader.sequence & 1];
	}
	if (!blockIdx.x && !reader.round) { /* for the next launch */
		if (lane < MAILBOX_RANKS)
			s->counts[~reader.sequence & 1][lane] = 0;
		unsigned long long *next = &s->copy[~reader.sequence & 1][0][0];
		for (int i = lane; i < MAILBOX_RANKS * MAILBOX_WORDS; i += 32)
			next[i] = 0;
	}
	reader.posted = posted;
	reader.round++;
	__syncwarp();
	cuda::ptx::fence_proxy_async();
}

#endif
