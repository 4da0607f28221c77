/* SPDX-License-Identifier: MIT */
/* Private to kernels/cuda/runtime: the state of fence.cu, graph.cu, profile.cu and
 * hand_over.cu. */
#ifndef GLM_KERNELS_CUDA_TIMELINE_CUH
#define GLM_KERNELS_CUDA_TIMELINE_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"
#include "kernels/cuda/runtime/signals.cuh"

#define CUDA_PEERS 64 /* cards whose access to each other is known */

enum peer_access { PEER_UNKNOWN, PEER_ACCESS, PEER_NO_ACCESS };

/* A captured segment: an entry of the hash table by key. */
struct cuda_segment {
	uint64_t key; /* + 1; 0: free */
	cudaGraphExec_t exec;
	uint64_t generation; /* of the scratch buffers */
	size_t n_nodes;
	uint64_t n_fences;
	struct deferred_experts *deferred;
	int n_deferred;
};

struct cuda_timeline {
	/* Fences (fence.cu) */
	uint64_t *signaled;        /* pinned: the value of the latest fence */
	unsigned long long *count; /* device: the same */

	/* Segments (graph.cu) */
	struct cuda_segment *segments; /* [SEGMENT_SLOTS] */
	int n_segments;
	struct cuda_segment *capturing; /* NULL: none */
	uint64_t capture_fence, capture_began_ns;

	/* Hand-overs (hand_over.cu) */
	cudaEvent_t handed;              /* recorded in this backend's stream by the latest one */
	uint8_t peer_access[CUDA_PEERS]; /* enum peer_access: of this card to the others' memory */

	/* The reason why results of the device are invalid; NULL: they are valid. Atomic: another
	 * thread sets it (nccl_channel_abort). Each wait of the host then fails with it. */
	const char *aborted;

	/* Profiling (profile.cu) */
	struct cuda_profile *profile; /* device */
	unsigned long long *ring;     /* device [PROFILE_EVENTS]; NULL until `measure` is first on */
	unsigned long long *events;   /* host copy of ring */
	uint8_t *kind;                /* [PROFILE_EVENTS / 2] of each interval: enum usage_kind */
	uint64_t n_events, n_read;    /* enqueued; of these added to the counters */
	uint64_t last_end;            /* timestamp; 0: none */
	uint64_t waited;              /* of profile->waited, added to the counters */
};

/* graph.cu */
cudaError_t cuda_timeline_open(struct cuda_backend *b);
void cuda_timeline_close(struct cuda_backend *b);

/* fence.cu: makes `aborted`, if set, the backend's failure. Called after each wait of the host. */
void cuda_check_aborted(struct cuda_backend *b);

/* profile.cu */
/* Kernels that are in the stream end an interval and begin one of this kind. */
void cuda_profile_enqueued(struct cuda_backend *b, enum usage_kind kind);

#endif
