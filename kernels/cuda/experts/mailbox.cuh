/* SPDX-License-Identifier: MIT */
/*
 * The device's side of experts_deferred (deferred_experts.cu): how the blocks of experts_kernel
 * learn which experts to compute. In rounds: a round is the experts that the host has named since
 * the one before. By the block's warp that fetches.
 */
#ifndef GLM_KERNELS_CUDA_MAILBOX_CUH
#define GLM_KERNELS_CUDA_MAILBOX_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

#define MAILBOX_POLL_LIMIT (1u << 31) /* at the words, 1 us each; then the launch fails */
#define MAILBOX_BUSY_POLLS 32         /* of them, without a rest between */

struct mailbox_args {
	struct mailbox_state *state;       /* device */
	const unsigned long long *mailbox; /* pinned [MAILBOX_WORDS] */
	struct cuda_profile *profile;      /* device */
};

/* What the words of a deferred kernel came to, in a round. */
struct work_list {
	const uint8_t *gate[MAILBOX_RANKS], *up[MAILBOX_RANKS], *down[MAILBOX_RANKS];
	uint32_t *counts;       /* by rank */
	uint16_t n_tasks, more; /* more: rounds */
	uint8_t rank[MAILBOX_RANKS];
};

static __device__ __forceinline__ ulonglong2 load_message(const unsigned long long *p)
{
	ulonglong2 v;
	asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];"
				 : "=l"(v.x), "=l"(v.y)
				 : "l"(p)
				 : "memory");
	return v;
}

/* a deferred kernel as the warp that fetches sees it. */
struct mailbox_reader {
	uint32_t sequence;
	unsigned posted; /* ranks that have been told, two bits each of which one counts */
	int round;
};

static __device__ __forceinline__ void mailbox_open(
	const struct mailbox_args &a, struct mailbox_reader &h)
{
	uint32_t number =
		threadIdx.x % 32 ? 0 : atomicInc(&a.state->arrived, gridDim.x * MAILBOX_SEQUENCES - 1);
	h.sequence = __shfl_sync(0xffffffffu, number, 0) / gridDim.x;
	h.posted = 0;
	h.round = 0;
}

/* Looks at the words until they have this launch's fence value and tell of another rank, then says
 * what there is to do. By a warp whose lanes 2 r and 2 r + 1 have rank r. Only block 0 looks at the
 * host's, the others at its copies of them, one for each round: looks of different multiprocessors
 * at the host's memory come one after the other, 1.2 us each. What is there was written before the
 * words: the copies' engine writes to where bulk copies read, so it takes no fence but that between
 * words and copies. */
static __device__ __forceinline__ void mailbox_poll(
	const struct mailbox_args &a, struct work_list *work, struct mailbox_reader &h)
{
	struct mailbox_state *s = a.state;
	int lane = threadIdx.x % 32, pair = lane % (MAILBOX_WORDS / 2);
	unsigned long long *copy = s->copy[h.sequence & 1][h.round] + 2 * pair, tag = h.sequence + 1;
	const unsigned long long *from = blockIdx.x ? copy : a.mailbox + 2 * pair;
	/* the last block: it finds room when the op before ends */
	struct cuda_profile *profile = blockIdx.x + 1 < gridDim.x || lane ? NULL : a.profile;
	unsigned long long *ring = profile ? profile->ring : NULL, since = ring ? device_clock() : 0;
	ulonglong2 two;
	unsigned known, fresh;
	for (unsigned polls = 0;; polls++) {
		two = load_message(from);
		known = __ballot_sync(0xffffffffu, two.x << 16 && two.y << 16);
		known &= known >> 1 & 0x5555;
		fresh = known & ~h.posted;
		if (__all_sync(0xffffffffu, two.x >> 48 == tag && two.y >> 48 == tag) && fresh)
			break;
		if (polls == MAILBOX_POLL_LIMIT && !blockIdx.x)
			__trap();
		if (polls >= MAILBOX_BUSY_POLLS) /* it may take long: copies need the same memory */
			__nanosleep(200);
	}
	if (ring) { /* measuring: it waited for the host */
		unsigned long long now = device_clock();
		if (h.round) {
			profile->waited += now - since;
		} else {
			ring[profile->n++ % PROFILE_EVENTS] = since;
			ring[profile->n++ % PROFILE_EVENTS] = now;
		}
	}
	if (!blockIdx.x && lane < MAILBOX_WORDS / 2) {
		bool mine = known >> (pair & ~1) & 1;
		asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(copy),
					 "l"(mine ? two.x : tag << 48), "l"(mine ? two.y : tag << 48)
					 : "memory");
	}
	unsigned jobs = __ballot_sync(0xffffffffu, (two.x & 0xffffffffffffull) > MAILBOX_SKIP) & fresh;
	int task = __popc(jobs & ((1u << (lane & ~1)) - 1));
	if (jobs >> (lane & ~1) & 1 && lane < MAILBOX_WORDS / 2) {
		const uint8_t *at = (const uint8_t *)(two.x & 0xffffffffffffull);
		if (lane & 1) {
			work->down[task] = at;
		} else {
			work->gate[task] = at;
			work->up[task] = (const uint8_t *)(two.y & 0xffffffffffffull);
			work->rank[task] = (uint8_t)(lane / 2);
		}
	}
	if (!lane) {
		work->n_tasks = (uint16_t)__popc(jobs);
		work->more = known != 0x5555;
		work->counts = s->counts[h.sequence & 1];
	}
	if (!blockIdx.x && !h.round) { /* of the next launch */
		if (lane < MAILBOX_RANKS)
			s->counts[~h.sequence & 1][lane] = 0;
		unsigned long long *next = &s->copy[~h.sequence & 1][0][0];
		for (int i = lane; i < MAILBOX_RANKS * MAILBOX_WORDS; i += 32)
			next[i] = 0;
	}
	h.posted = known;
	h.round++;
	__syncwarp();
	asm volatile("fence.proxy.async;" ::: "memory");
}

#endif
