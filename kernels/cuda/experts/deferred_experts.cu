/* SPDX-License-Identifier: MIT */
/*
 * The host's side of deferred experts. A deferred kernel is a node of a captured graph:
 * experts_kernel (experts_fused.cu), which learns from a mailbox (mailbox.cuh) which experts to
 * compute. It starts while the ops before it still run, so its tables and barriers are ready when
 * the last of them ends. Experts that arrive late need no launch, and neither do the layers behind
 * them.
 *
 * - The host's first post to a kernel waits for the fence before that kernel. Then the previous
 *   deferred kernel has ended, and the words of its messages may be overwritten.
 * - No deadlock between host and kernel: before the host waits for the device it drains the mailbox
 *   (cuda_deferred_drain). Otherwise it waits only for copies while the kernel runs. Copies inside
 *   the card may be kernels of the driver: the deferred kernel, whose blocks take a whole SM each,
 *   leaves some SMs free for them, and no other kernel of the stream starts there. Callers keep
 *   kernels that wait of other backends on the same card apart (backend.h: Threads).
 */
#include "kernels/cuda/experts/experts.cuh"
#include "kernels/cuda/experts/mailbox.cuh"

#include <string.h>

#define ALL_RANKS ((1u << MAILBOX_RANKS) - 1)

static bool mailbox_allocate(struct cuda_backend *b)
{
	void *words = NULL, *state = NULL;
	if (b->mailbox_state)
		return true;
	if (!b->mailbox) {
		if (!cuda_check(
				b, cudaHostAlloc(&words, MAILBOX_WORDS * sizeof *b->mailbox, cudaHostAllocMapped)))
			return false;
		b->mailbox = (unsigned long long *)words;
		memset(words, 0, MAILBOX_WORDS * sizeof *b->mailbox);
	}
	if (!cuda_check(b, cudaMalloc(&state, sizeof *b->mailbox_state)))
		return false;
	/* in the default stream; b->stream does not wait for that one */
	if (!cuda_check(b, cudaMemset(state, 0, sizeof *b->mailbox_state)) ||
		!cuda_check(b, cudaStreamSynchronize(NULL))) {
		cudaFree(state); /* it may not be zero, and must not be used after `recover` */
		return false;
	}
	b->mailbox_state = (struct mailbox_state *)state;
	return true;
}

void cuda_deferred_close(struct cuda_backend *b)
{
	cudaFreeHost(b->mailbox);
	cudaFree(b->mailbox_state);
	cudaFree(b->deferred_hidden.data);
	b->mailbox = NULL;
	b->mailbox_state = NULL;
}

/* A job of one slot for an expert of this shape, without data. */
static struct expert_job shape_template(const struct expert_job *shape)
{
	struct expert_job j = *shape;
	j.gate.data = j.up.data = j.down.data = NULL;
	j.n_token_slots = 1;
	return j;
}

void cuda_experts_deferred(
	struct backend *base, const float *x, const struct expert_job *shape, int n_used, float *out)
{
	struct cuda_backend *b = cuda_of(base);
	struct deferred_experts d = {x, out, n_used, shape_template(shape), 0, false};
	if (base->failure.code)
		return;
	b->op = "experts_deferred";
	cuda_select(b->device);
	if (b->capturing ? b->mailbox_state != NULL : mailbox_allocate(b))
		cuda_experts_deferred_launch(b, &d);
}

bool cuda_can_defer_experts(struct backend *base, const struct expert_job *shape, int n_used)
{
	struct cuda_backend *b = cuda_of(base);
	struct expert_job job = shape_template(shape);
	return !b->no_deferred && n_used >= 1 && n_used <= MAILBOX_RANKS &&
		   cuda_experts_deferrable(b, &job);
}

/* Whether q has the shape of p and an address that fits in a word of the mailbox. */
static bool weight_matches(const struct weight *p, const struct weight *q)
{
	return p->type == q->type && p->n_in == q->n_in && p->n_out == q->n_out &&
		   p->row_bytes == q->row_bytes && !((uintptr_t)q->data % DEFERRED_ALIGN) &&
		   !((uint64_t)(uintptr_t)q->data >> 48) && q->data;
}

/* Whether the job has one slot, whose rank has not been posted and is not in *ranks; adds it. */
static bool slot_matches(const struct cuda_backend *b, const struct expert_job *j, unsigned *ranks)
{
	if (j->n_token_slots != 1 || (b->posted_ranks | *ranks) >> j->token_slots[0] & 1)
		return false;
	*ranks |= 1u << j->token_slots[0];
	return true;
}

static bool job_matches(const struct cuda_backend *b, const struct expert_job *j, unsigned *ranks)
{
	const struct expert_job *shape = &b->deferred->shape;
	return slot_matches(b, j, ranks) && weight_matches(&shape->gate, &j->gate) &&
		   weight_matches(&shape->up, &j->up) && weight_matches(&shape->down, &j->down);
}

/* Writes the messages of these ranks, and MAILBOX_SKIP for ranks that no more jobs come for: those
 * from n_used on, or all others. */
static void post_messages(
	struct cuda_backend *b, uint64_t address[MAILBOX_WORDS], unsigned ranks, bool all)
{
	const struct deferred_experts *d = b->deferred;
	uint64_t tag = (b->deferred_sequence % MAILBOX_SEQUENCES + 1) << 48;
	unsigned before = b->posted_ranks, now = before | ranks;
	for (int i = 0; i < MAILBOX_WORDS; i++) {
		int rank = i / MESSAGE_WORDS;
		if (!(now >> rank & 1) && (all || rank >= d->n_used))
			address[i] = MAILBOX_SKIP;
	}
	now |= all ? ALL_RANKS : ALL_RANKS & ~((1u << d->n_used) - 1);
	if (!before)
		cuda_fence_poll(b, b->deferred_fence + d->n_fences);
	for (int i = 0; i < MAILBOX_WORDS; i++)
		if (!(before >> i / MESSAGE_WORDS & 1))
			__atomic_store_n(&b->mailbox[i], tag | address[i], __ATOMIC_RELEASE);
	b->posted_ranks = now;
	if (now == ALL_RANKS) {
		b->deferred++;
		b->n_deferred--;
		b->deferred_sequence++;
		b->posted_ranks = 0;
	}
	b->deferred_lost |= all && d->has_successor;
}

/* Whether the first deferred kernel that waits belongs to this call. */
static bool call_matches(
	const struct cuda_backend *b, const float *x, int rows, int n_used, const float *out)
{
	const struct deferred_experts *d = b->deferred;
	return x == d->x && out == d->out && rows == 1 && n_used == d->n_used && !b->base.failure.code;
}

bool cuda_deferred_post(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, const float *out)
{
	if (!b->n_deferred)
		return false;
	bool matches = call_matches(b, x, rows, n_used, out);
	uint64_t address[MAILBOX_WORDS] = {0};
	unsigned ranks = 0;
	for (int i = 0; matches && i < n_jobs; i++)
		matches = job_matches(b, &jobs[i], &ranks);
	if (matches && !n_jobs)
		return true;
	for (int i = 0; matches && i < n_jobs; i++) {
		uint64_t *message = &address[MESSAGE_WORDS * jobs[i].token_slots[0]];
		message[0] = (uintptr_t)jobs[i].gate.data;
		message[1] = (uintptr_t)jobs[i].up.data;
		message[2] = (uintptr_t)jobs[i].down.data;
		message[3] = MAILBOX_SKIP;
	}
	post_messages(b, address, matches ? ranks : 0, !matches);
	return matches;
}

/* Posts rows of out that the host has computed, as cuda_deferred_post posts experts. */
static bool post_results(struct cuda_backend *b, const float *x, const float *results,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, int n_embd, const float *out)
{
	if (!b->n_deferred)
		return false;
	bool matches = call_matches(b, x, rows, n_used, out) && n_embd == b->deferred->shape.gate.n_in;
	uint64_t address[MAILBOX_WORDS] = {0};
	unsigned ranks = 0;
	for (int i = 0; matches && i < n_jobs; i++) {
		matches = slot_matches(b, &jobs[i], &ranks);
		if (!matches)
			break;
		int rank = jobs[i].token_slots[0];
		uint64_t at = (uintptr_t)(results + (int64_t)rank * n_embd);
		uint64_t *message = &address[MESSAGE_WORDS * rank];
		matches = !(at % DEFERRED_ALIGN) && !(at >> 48);
		message[0] = message[1] = message[3] = MAILBOX_SKIP;
		message[2] = at;
	}
	if (!matches) {
		memset(address, 0, sizeof address);
		ranks = 0;
	}
	post_messages(b, address, ranks, !matches);
	return matches;
}

#define RESULT_SLOTS 128 /* of a launch */

struct result_slots {
	int32_t slot[RESULT_SLOTS];
};

/* Grid: (slots, parts of a row); block 256, four values a thread. */
static __global__ void results_kernel(
	const __grid_constant__ struct result_slots s, const float *results, int n_embd, float *out)
{
	launch_dependents();
	grid_dependency_wait();
	int i = 4 * (int)(blockIdx.y * blockDim.x + threadIdx.x);
	int64_t at = (int64_t)s.slot[blockIdx.x] * n_embd + i;
	if (i >= n_embd)
		return;
	float4 v;
	asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
				 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
				 : "l"(results + at)
				 : "memory");
	*(float4 *)(out + at) = v;
}

void cuda_expert_results(struct backend *base, const float *x, const float *results,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, int n_embd, float *out)
{
	struct cuda_backend *b = cuda_of(base);
	if (!n_jobs || post_results(b, x, results, jobs, n_jobs, rows, n_used, n_embd, out))
		return;
	if (b->deferred_lost && !base->failure.code)
		err_set(&base->failure, ERR_RUN,
			"cuda: expert_results: the ops that rely on these experts have run without them");
	if (!cuda_begin(base, "expert_results"))
		return;
	struct result_slots s;
	int n = 0;
	auto launch = [&]() {
		dim3 grid((unsigned)n, (unsigned)(n_embd + 1023) / 1024);
		if (n)
			cuda_launch(b, results_kernel, grid, 256, 0, s, results, n_embd, out);
		n = 0;
	};
	for (int j = 0; j < n_jobs; j++)
		for (int i = 0; i < jobs[j].n_token_slots; i++) {
			if (n == RESULT_SLOTS)
				launch();
			s.slot[n++] = jobs[j].token_slots[i];
		}
	launch();
}

void cuda_deferred_drain_all(struct cuda_backend *b)
{
	while (b->n_deferred)
		cuda_deferred_post(b, NULL, NULL, 0, 0, 0, NULL);
}
