/* SPDX-License-Identifier: MIT */
/* Op latents: its gemv steps, norm and cache rows as one launch of the fused gemv chain
 * (gemv_chain.cuh: grid, block, bytes moved). Where the chain does not apply, the ops that it is
 * made of run one after the other. */
#include "kernels/cuda/gemv/gemv_chain.cuh"

/* Sets a step: the products of n matrices with the same x. All go to y; chain_set_target changes
 * that. rows_per_unit: gemv_chain.cuh. False: the chain does not apply. */
static bool chain_step_set(
	struct chain_step *s, const struct matmul *parts, int n, const float *x, int rows_per_unit)
{
	const struct weight *w = &parts->w;
	int split = gemv_k_split(w->type, w->n_in, w->n_out);
	uintptr_t all = (uintptr_t)x | (uintptr_t)w->row_bytes;
	*s = (struct chain_step){};
	s->x = x;
	s->row_bytes = (int)w->row_bytes;
	s->n_in = (int)w->n_in;
	if (n > CHAIN_PARTS || w->type != DTYPE_Q8_0 || w->n_in % 2048 || w->row_bytes > INT_MAX / 16)
		return false;
	for (int i = 0; i < n; i++) {
		const struct matmul *m = &parts[i];
		if (m->w.type != w->type || m->w.n_in != w->n_in || m->add || m->x ||
			m->w.n_out > INT_MAX / 4 || m->w.n_out % rows_per_unit ||
			gemv_k_split(w->type, w->n_in, m->w.n_out) != split)
			return false;
		all |= (uintptr_t)m->w.data;
		s->n_items += (int)(m->w.n_out / MMA_ROWS);
		s->part[s->n_parts++] = {
			(const uint8_t *)m->w.data, m->y, (int)m->w.n_out, s->n_items, CHAIN_TO_Y};
	}
	while (1 << s->log_split < split)
		s->log_split++;
	return all % 16 == 0;
}

/* The kernel for 1 .. CHAIN_ROWS rows, at [rows - 1], and its shared memory */
static void (*const chain_kernels[CHAIN_ROWS])(struct chain_args) = {
	gemv_chain_kernel<1>, gemv_chain_kernel<2>, gemv_chain_kernel<3>, gemv_chain_kernel<4>};
static int (*const chain_bytes[CHAIN_ROWS])(int super_blocks) = {
	chain_form<1>::bytes, chain_form<2>::bytes, chain_form<3>::bytes, chain_form<4>::bytes};

/* Whether the kernel, whose shapes are constants, is made for these two steps. */
static bool chain_fits(const struct cuda_backend *b, const struct chain_args *a)
{
	const struct chain_step *first = &a->step[0], *second = &a->step[1];
	int most = INT_MAX / (b->n_sm + 1); /* shares are 32-bit products */
	return b->n_sm > 1 && first->n_items <= most && second->n_items <= most &&
		   first->log_split == 3 && first->n_in <= CHAIN_SUPER_BLOCKS * 256 &&
		   second->log_split == 2 && second->n_in == CHAIN_VALUES;
}

/* Sets the destination of part i of the first step. */
static void chain_set_target(struct chain_args *a, int i, enum chain_target to)
{
	struct chain_step *s = &a->step[0];
	uint32_t items = (uint32_t)(s->part[i].item_end - (i ? s->part[i - 1].item_end : 0));
	s->part[i].to = to;
	if (to == CHAIN_TO_NEXT_STEP)
		a->n_handoff_items += items;
	else
		a->n_append_items += items;
}

/* Whether the device gives the kernels their shared memory. That is more than max_shared, which
 * leaves more for static arrays than these kernels have. Queried once: b->chain_supported is 0
 * before, then 1 for yes, 2 for no. */
static bool chain_supported(struct cuda_backend *b)
{
	int *known = &b->chain_supported;
	if (*known)
		return *known == 1;
	*known = b->has_pdl ? 1 : 2;
	for (int i = 0; i < CHAIN_ROWS && *known == 1; i++) {
		int bytes = chain_bytes[i](CHAIN_SUPER_BLOCKS), blocks = 0;
		if (cudaFuncSetAttribute(chain_kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
				bytes) != cudaSuccess ||
			cudaOccupancyMaxActiveBlocksPerMultiprocessor(
				&blocks, chain_kernels[i], CHAIN_THREADS, (size_t)bytes) != cudaSuccess ||
			!blocks)
			*known = 2;
	}
	if (*known == 2)
		cudaGetLastError();
	return *known == 1;
}

/* The chain_state of a backend; b->chain is freed when the backend closes. */
cudaError_t gemv_chain_open(struct cuda_backend *b)
{
	uint32_t first_tag = 1;
	cudaError_t rc = cudaMalloc((void **)&b->chain, sizeof *b->chain);
	if (rc || (rc = cudaMemset(b->chain, 0, sizeof *b->chain)))
		return rc;
	return cudaMemcpy(&b->chain->tag, &first_tag, sizeof first_tag, cudaMemcpyHostToDevice);
}

static void chain_launch(struct cuda_backend *b, struct chain_args *a)
{
	int appends = a->latents.kv || a->latents.key, most = b->n_sm - appends,
		items = a->step[0].n_items > a->step[1].n_items ? a->step[0].n_items : a->step[1].n_items;
	a->state = b->chain;
	a->n_blocks = items < most ? items : most;
	a->report = cuda_poll_report(b, POLL_GEMV_CHAIN);
	int form = a->rows.n - 1, bytes = chain_bytes[form](a->step[0].n_in / 256);
	cuda_launch(b, chain_kernels[form], dim3((unsigned)(a->n_blocks + appends)), CHAIN_THREADS,
		(size_t)bytes, *a);
}

/* Products, norm and cache rows in one launch. Products of l->in that have another type, and that
 * neither the second step nor the caches read, are enqueued before it. False: the chain does not
 * apply, nothing was enqueued. */
static bool chain_latents(struct cuda_backend *b, const struct batch *rows, const struct rope *rope,
	const struct latents *l)
{
	if (rows->n > CHAIN_ROWS || !l->n_in || !l->n_out || !l->q || l->n_in > CHAIN_PARTS ||
		l->n_q != CHAIN_VALUES || (uintptr_t)l->q_gain % 16 ||
		(l->kv && norm_threads(l->n_kv) > CHAIN_THREADS))
		return false;
	enum dtype type = l->out->w.type;
	struct matmul in[CHAIN_PARTS], before[CHAIN_PARTS];
	int n_in = 0, n_before = 0, n_q = 0;
	for (int i = 0; i < l->n_in; i++) {
		const struct matmul *m = &l->in[i];
		bool wanted = m->y == l->q || m->y == l->kv || m->y == l->key;
		n_q += m->y == l->q && m->w.n_out == l->n_q;
		if (wanted || m->w.type == type)
			in[n_in++] = *m;
		else
			before[n_before++] = *m;
	}
	struct chain_args a = {};
	if (n_q != 1 || l->out->w.n_in != l->n_q || in[0].w.type != type ||
		!chain_step_set(&a.step[0], in, n_in, l->x, MMA_ROWS) ||
		!chain_step_set(&a.step[1], l->out, l->n_out, l->q, 2 * MMA_ROWS) || !chain_fits(b, &a) ||
		!chain_supported(b))
		return false;
	a.step[1].gain = l->q_gain;
	a.eps = l->eps;
	a.rows = *rows;
	a.rope = *rope;
	a.latents = *l;
	for (int i = 0; i < n_in; i++)
		if (in[i].y == l->q)
			chain_set_target(&a, i, CHAIN_TO_NEXT_STEP);
		else if (in[i].y == l->kv || in[i].y == l->key)
			chain_set_target(&a, i, CHAIN_TO_CACHE_BLOCK);
	cuda_matmul(&b->base, before, n_before, l->x, rows->n);
	chain_launch(b, &a);
	return true;
}

void cuda_latents(struct backend *base, const struct batch *rows, const struct rope *rope,
	const struct latents *a)
{
	if (!cuda_begin(base, "latents") || !rows->n ||
		(!base->observer && chain_latents(cuda_of(base), rows, rope, a)))
		return;
	cuda_matmul(base, a->in, a->n_in, a->x, rows->n);
	cuda_latents_unfused(base, rows, rope, a);
	cuda_matmul(base, a->out, a->n_out, a->q, rows->n);
}
