/* SPDX-License-Identifier: MIT */
/*
 * Experts of the second tier that the processor computes in place of the card, while the card
 * computes the others. The results have the card's bits (kernels/expert_arithmetic.h), so numbers
 * do not depend on who computed what.
 *
 *   card        route: h as words to the host  | experts of the first tier, then those that come
 *   processor   ...... reads h ................ | experts where they lie, results to the card
 *
 * The source of the experts decides which ones (expert_ref.on_host): it compares host_experts_ns
 * with the time that a copy over the link takes.
 *
 * Order of use:
 *   1. host_experts_open
 *   2. host_experts_prepare with the shape of each layer's experts; if host_experts_any is false, 4
 *   3. in each layer host_experts_ns, then any number of host_experts_compute
 *   4. host_experts_close
 * Threads: the one that computes, but for host_experts_add_stats.
 */
#ifndef GLM_FORWARD_HOST_EXPERTS_H
#define GLM_FORWARD_HOST_EXPERTS_H

#include "kernels/backend.h"
#include "src/model/config.h"
#include "stream/expert_source.h"

/* Most rows of a step with such experts. The bits are the card's up to 64 rows
 * (expert_arithmetic.h), but steps of more than 16 were not measured. */
#define HOST_EXPERT_ROWS 16

struct host_experts;

/* Options for the backend that computes on the processor. threads 0: one a core, less one core for
 * the thread that reads. nodes: lent; those that the second tier is divided among; NULL: none. */
struct backend_options host_experts_backend(int threads, const struct numa_nodes *nodes);

/* card: lent; the backend of the model, which outlives it. threads, nodes: as in
 * host_experts_backend. max_rows: of the largest step; those of more than HOST_EXPERT_ROWS rows
 * have no experts here. Errors: ERR_MEMORY, and those of backend_open; *out is NULL then. */
int host_experts_open(const struct model_config *c, struct backend *card, int threads,
	const struct numa_nodes *nodes, uint32_t max_rows, struct host_experts **out, struct err *e);
void host_experts_close(struct host_experts *h); /* after the last step; NULL is fine */

/* [rows][n_embd], flag-in-data words (backend.h: route.h_words): where `route` leaves h for a step
 * of so many rows; NULL: such steps have no experts here. h NULL: NULL. */
uint64_t *host_experts_words(const struct host_experts *h, int rows);

/* Bytes of the weights of one expert. */
double host_experts_bytes(const struct expert_job *shape);

/* Whether the processor computes such experts with the card's bits. */
bool host_experts_covers(const struct expert_job *shape);

/* The processor takes part if its rate is at least this share of the link's. Below it a layer needs
 * more than four misses before computing one of them ends sooner than copying all. */
#define HOST_EXPERTS_LEAST 0.25
/* ns_per_byte: time of the processor for a byte of weights. link_bytes_s: bytes a second of the
 * link; 0: unknown, then nothing is too slow. */
bool host_experts_too_slow(double ns_per_byte, double link_bytes_s);

/* Times experts of these three types in a few milliseconds and logs whether the processor will
 * compute them. Does nothing for types that were timed before. link_bytes_s: as above. ERR_MEMORY.
 */
int host_experts_prepare(
	struct host_experts *h, const struct expert_job *shape, double link_bytes_s, struct err *e);
bool host_experts_any(const struct host_experts *h); /* will it compute any that were prepared? */

/* Time in which the processor computes an expert of this shape (its data is not read) for n_slots
 * (token, rank) slots, as measured so far; 0: the card computes it. */
uint32_t host_experts_ns(struct host_experts *h, const struct expert_job *shape, int n_slots);
/* For a shape that the processor computes: expert_ref.node_ns, changed by the next call for so many
 * slots. NULL: the threads are not divided among nodes (backend_options.nodes); host_experts_ns is
 * then the time on every node. */
const uint32_t *host_experts_node_ns(
	struct host_experts *h, const struct expert_job *shape, int n_slots);

/* A progress callback of host_experts_compute, called on the caller's thread after each portion of
 * its own and at each spin of the final wait. It must return within microseconds and may enqueue
 * ops on the card. */
struct host_progress {
	void (*fn)(void *user);
	void *user;
};

/* Computes the jobs, all of one layer, and gives the results to the card. Their weights are host
 * memory. fence: of the layer's route; x, out: device memory, as in expert_ffn. progress: lent for
 * the call; NULL: none. Waits for the words behind the fence at its first call in a layer.
 * Errors: a lost device; ERR_MEMORY, after which a later call may succeed. */
int host_experts_compute(struct host_experts *h, uint64_t fence, const float *x,
	const struct expert_job *jobs, int n_jobs, int rows, float *out,
	const struct host_progress *progress, struct err *e);

/* Adds bytes and time of all experts computed since host_experts_open to host_bytes and host_ns.
 * Any thread. h NULL: adds nothing. */
void host_experts_add_stats(const struct host_experts *h, struct expert_stats *sum);

#endif
