/* SPDX-License-Identifier: MIT */
/*
 * The host's side of experts_deferred: experts_kernel (experts_fused.cu) as an op of a recorded
 * list, which computes what the host says by words in pinned memory while the ops before it still
 * run. So the kernel has started, and has its tables and barriers, when the op before it ends;
 * experts that come late need no launch; nor do the layers behind it.
 *
 * Words: four of 64 bits for each rank of the row, with a fence value at the top 16 bits: where
 * gate, up and down lie, and that they are known; 0: not known yet, MAILBOX_SKIP: not for this
 * kernel, which ends when all ranks are known. So each word says by itself that it is meant, and
 * the order in which words become visible does not matter. The first answer to a deferred kernel
 * writes all words, so no fence value of long ago is left. Tickets count the deferred kernels that
 * were enqueued: the host by itself, the device by its blocks' arrivals, for a recorded launch has
 * the same arguments every time.
 *
 * Answers begin when the fence before the deferred kernel has come, so the deferred kernel before,
 * whose words they overwrite, has ended by then. Whoever waits for the device tells it before that
 * there is nothing more, for all deferred kernels of the launch (cuda_deferred_drain), so it never
 * waits for a host that waits for it. What else the host waits for in the meantime are copies.
 * Those inside the card may be kernels of the driver's: a block of the deferred kernel takes a
 * whole multiprocessor, so some are left free, and no other kernel of the stream is started there.
 */
#include "kernels/cuda/experts/experts.cuh"

#include <string.h>

#define ALL_RANKS ((1u << MAILBOX_RANKS) - 1)

static bool open_mailbox(struct cuda_backend *b)
{
	void *words = NULL, *state = NULL;
	if (b->mailbox)
		return b->mailbox_state != NULL;
	if (!cuda_check(
			b, cudaHostAlloc(&words, MAILBOX_WORDS * sizeof *b->mailbox, cudaHostAllocMapped)))
		return false;
	b->mailbox = (unsigned long long *)words;
	memset(words, 0, MAILBOX_WORDS * sizeof *b->mailbox);
	if (!cuda_check(b, cudaMalloc(&state, sizeof *b->mailbox_state)))
		return false;
	b->mailbox_state = (struct mailbox_state *)state;
	/* the stream does not wait for the default one */
	return cuda_check(b, cudaMemset(state, 0, sizeof *b->mailbox_state)) &&
		   cuda_check(b, cudaStreamSynchronize(NULL));
}

void cuda_deferred_close(struct cuda_backend *b)
{
	cudaFreeHost(b->mailbox);
	cudaFree(b->mailbox_state);
	cudaFree(b->deferred_hidden.data);
	b->mailbox = NULL;
	b->mailbox_state = NULL;
}

/* One place of an expert like this, wherever it lies. */
static struct expert_job anywhere(const struct expert_job *like)
{
	struct expert_job j = *like;
	j.gate.data = j.up.data = j.down.data = NULL;
	j.n_token_slots = 1;
	return j;
}

void cuda_experts_deferred(
	struct backend *base, const float *x, const struct expert_job *like, int n_used, float *out)
{
	struct cuda_backend *b = cuda_of(base);
	struct deferred_experts w = {x, out, n_used, anywhere(like), 0, false};
	if (base->failure.code)
		return;
	b->op = "experts_deferred";
	if (b->capturing ? b->mailbox_state != NULL : open_mailbox(b))
		cuda_experts_deferred_launch(b, &w);
}

bool cuda_can_defer_experts(struct backend *base, const struct expert_job *like, int n_used)
{
	struct cuda_backend *b = cuda_of(base);
	struct expert_job job = anywhere(like);
	return !b->no_deferred && n_used >= 1 && n_used <= MAILBOX_RANKS &&
		   cuda_experts_deferrable(b, &job);
}

static bool is_like(const struct weight *p, const struct weight *q)
{
	return p->type == q->type && p->n_in == q->n_in && p->n_out == q->n_out &&
		   p->row_bytes == q->row_bytes && !((uintptr_t)q->data % 16) &&
		   !((uint64_t)(uintptr_t)q->data >> 48) && q->data;
}

static bool is_for(const struct cuda_backend *b, const struct expert_job *j)
{
	const struct expert_job *like = &b->deferred->like;
	return j->n_token_slots == 1 && !(b->posted_ranks >> j->token_slots[0] & 1) &&
		   is_like(&like->gate, &j->gate) && is_like(&like->up, &j->up) &&
		   is_like(&like->down, &j->down);
}

bool cuda_deferred_post(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, const float *out)
{
	const struct deferred_experts *w = b->deferred;
	if (!b->n_deferred)
		return false;
	bool takes =
		x == w->x && out == w->out && rows == 1 && n_used == w->n_used && !b->base.failure.code;
	for (int i = 0; takes && i < n_jobs; i++)
		takes = is_for(b, &jobs[i]);
	if (takes && !n_jobs)
		return true;
	uint64_t at[MAILBOX_WORDS] = {0}, sequence = (b->deferred_sequence % MAILBOX_SEQUENCES + 1)
												 << 48;
	unsigned before = b->posted_ranks, now = before;
	for (int i = 0; takes && i < n_jobs; i++) {
		int rank = jobs[i].token_slots[0];
		at[4 * rank] = (uintptr_t)jobs[i].gate.data;
		at[4 * rank + 1] = (uintptr_t)jobs[i].up.data;
		at[4 * rank + 2] = (uintptr_t)jobs[i].down.data;
		at[4 * rank + 3] = MAILBOX_SKIP;
		now |= 1u << rank;
	}
	for (int i = 0; i < 4 * MAILBOX_RANKS; i++)
		if (!(now >> i / 4 & 1) && (!takes || i / 4 >= n_used))
			at[i] = MAILBOX_SKIP;
	now |= takes ? ALL_RANKS & ~((1u << n_used) - 1) : ALL_RANKS;
	if (!before)
		cuda_fence_spin(b, b->deferred_fence + w->n_fences);
	for (int i = 0; i < MAILBOX_WORDS; i++)
		if (!(before >> i / 4 & 1))
			__atomic_store_n(&b->mailbox[i], sequence | at[i], __ATOMIC_RELAXED);
	b->posted_ranks = now;
	if (now == ALL_RANKS) {
		b->deferred++;
		b->n_deferred--;
		b->deferred_sequence++;
		b->posted_ranks = 0;
	}
	b->deferred_lost |= !takes && w->has_successor;
	return takes;
}

void cuda_deferred_drain_all(struct cuda_backend *b)
{
	while (b->n_deferred)
		cuda_deferred_post(b, NULL, NULL, 0, 0, 0, NULL);
}
