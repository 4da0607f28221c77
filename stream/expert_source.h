/* SPDX-License-Identifier: MIT */
/*
 * Where the model gets its routed experts from. The model knows nothing else of storage: the bytes
 * may be mapped, cached, or still on a disk.
 *
 * In order of use, by the compute thread only:
 *   1. step           before the first layer of a forward pass of the trunk
 *   2. read_ahead     prefill: which experts of a layer will be acquired, in which order
 *   3. acquire        pins a group of experts of a layer; some of them are ready
 *   4. prefetch       decode: which experts of later layers are predicted
 *   5. wait_ready     until all are; an expert's views may be used as soon as it is ready
 *   6. release        once for each acquired expert, when the ops that used it have run
 *   7. keep_rows      after a step with rows that may be dropped: which are kept
 */
#ifndef GLM_STREAM_EXPERT_SOURCE_H
#define GLM_STREAM_EXPERT_SOURCE_H

#include "kernels/backend.h"
#include "src/base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Where an expert was when it was acquired. */
enum expert_tier { EXPERT_VRAM, EXPERT_RAM, EXPERT_DISK };

/* One expert of one layer, as the model requests it and gets it. */
struct expert_ref {
	int32_t id; /* in: expert id */
	/* in, EXPERT_DECODE: bit r is set if row r of the step uses the expert. Not 0 only if all rows
	 * that use it may be dropped: it then counts as used when keep_rows keeps one of them. 0: it
	 * counts as used now */
	uint64_t draft_rows;
	/* in, EXPERT_DECODE: time in which the processor would compute it; 0: it must not */
	uint32_t host_ns;
	/* in, with host_ns: the same by the NUMA node that it lies on, > 0, by number (numa.h); NULL:
	 * host_ns on every node. Lent for the call of acquire. */
	const uint32_t *node_ns;
	bool ready; /* out: all bytes of the views below have arrived */
	/* out: the processor is to compute it, since that is faster than copying it to the card. It is
	 * ready, and the views are host memory. Only if host_ns is not 0 */
	bool on_host;
	uint8_t tier;                 /* out: enum expert_tier */
	int node;                     /* out: as expert_job.node */
	int32_t handle;               /* the source's own */
	uint64_t serial;              /* the source's own */
	struct weight gate, up, down; /* out: device memory unless on_host, valid until release */
};

/* One expert's matrix of a tensor of `bytes` that holds n_experts of them; data is NULL. */
static inline struct weight expert_shape(
	enum dtype type, uint64_t n_in, uint64_t n_out, uint64_t n_experts, uint64_t bytes)
{
	return (struct weight){
		.type = type,
		.n_in = (int64_t)n_in,
		.n_out = (int64_t)n_out,
		.n_stack = 1,
		.row_bytes = bytes / n_experts / n_out,
		.stack_bytes = bytes / n_experts,
	};
}

/* How the experts of a step are used. */
enum expert_use {
	EXPERT_DECODE,  /* a few rows: experts that are read stay in the cache for later tokens */
	EXPERT_PREFILL, /* many rows, layer after layer: experts that are read pass through prefill
					   slots; only what makes room for these slots is evicted */
};

struct expert_source;

struct expert_source_ops {
	const char *name;
	void (*close)(struct expert_source *s);
	/* A forward pass over `rows` rows begins, the first at `position`. A round of drafts is none:
	 * an acquire with EXPERT_DECODE ends what a step of EXPERT_PREFILL holds for its prompt. May be
	 * NULL. */
	void (*step)(struct expert_source *s, enum expert_use use, int rows, int position);
	/* Pins refs[0..n) (distinct ids, n <= max_pinned[use]) of a layer and starts what must be read.
	 * On return some refs are ready. Returns how many are not, or a negative code with the sentence
	 * in *e; then nothing stays pinned. */
	int (*acquire)(struct expert_source *s, int layer, enum expert_use use, struct expert_ref *refs,
		int n, struct err *e);
	/* Waits until at least one more of the acquired refs is ready. Returns how many still are not,
	 * or a negative code (a failed read: file, offset, layer and expert are in *e; ERR_INTERRUPTED
	 * when *cancel was set); the caller then releases all of them. */
	int (*wait_ready)(
		struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e);
	/* As wait_ready, but never waits: takes the refs that have become ready until now. */
	int (*poll_ready)(
		struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e);
	/* Unpins the refs. The caller has waited for the ops that used them. */
	void (*release)(struct expert_source *s, int layer, const struct expert_ref *refs, int n);
	/* These experts of a layer `distance` layers ahead are predicted, best first. Never waits. May
	 * be NULL. */
	void (*prefetch)(struct expert_source *s, int layer, const int32_t *ids, int n, int distance);
	/* Rows [first, first + n) of the last step are kept, of those that could be dropped: experts
	 * with one of these in draft_rows count as used. Experts of dropped rows only never count, so
	 * that they are evicted earlier. May be NULL. */
	void (*keep_rows)(struct expert_source *s, int first, int n);
	/* Prefill: these experts of a layer will be acquired in this order; if the layer is not routed
	 * yet, they are a prediction. Replaces an earlier list of that layer. Never waits. May be NULL.
	 */
	void (*read_ahead)(struct expert_source *s, int layer, const int32_t *ids, int n);
};

/* Cumulative since open; the compute thread reads it between calls. */
struct expert_stats {
	uint64_t hit_vram;   /* distinct experts acquired that were in the first tier or in flight to
							it, or are simply mapped */
	uint64_t hit_ram;    /* ... in the second tier */
	uint64_t miss;       /* ... that had to be read */
	uint64_t on_host;    /* of hit_ram: experts that the processor computed */
	uint64_t host_bytes; /* ... bytes of their weights */
	uint64_t host_ns;    /* ... time in which it computed them */
	uint64_t bytes_read; /* from storage */
	uint64_t prefetch_useful;   /* experts prefetched and then used */
	uint64_t prefetch_wasted;   /* ... and never used */
	uint64_t bytes_read_wasted; /* of bytes_read: of the latter */
	uint64_t wait_ns;           /* spent waiting: in acquire (for a slot) and in wait_ready */
	/* The part of wait_ready in which every ref without draft_rows was ready. */
	uint64_t wait_draft_ns;
	/* As of the last load or demotion that completed. Busy: time with at least one in flight. */
	uint64_t disk_busy_ns;
	uint64_t bytes_in, in_busy_ns; /* to the card */
	uint64_t bytes_promoted; /* of bytes_in: promotions of experts that the processor computed */
	uint64_t bytes_out, out_busy_ns; /* from the card */
	uint64_t checked;  /* experts compared with their check values when they were read */
	uint64_t reread;   /* ... wrong, and read again */
	uint64_t wrong;    /* ... and wrong again */
	uint64_t check_ns; /* time spent hashing, summed over all threads */
	/* not cumulative: bytes of the second tier that the system has refused to pin, so unused */
	uint64_t ram_refused_bytes;
	/* how the drives are read now (reader_setting); 0: nothing is read from drives */
	uint32_t io_depth, io_slice_bytes; /* reads in flight, all drives together; bytes of a read */
};

struct expert_source {
	const struct expert_source_ops *ops;
	/* By enum expert_use: most refs of one acquire, >= 1; constant. The source must be able to keep
	 * twice as many experts of one layer pinned. */
	int max_pinned[2];
	int lookahead; /* for how many layers ahead prefetch is called; constant */
	struct expert_stats stats;
	/* Set by model_forward while it runs. When *cancel is true, acquire and wait_ready fail with
	 * ERR_INTERRUPTED instead of waiting. NULL: never */
	atomic_bool *cancel;
};

#endif
