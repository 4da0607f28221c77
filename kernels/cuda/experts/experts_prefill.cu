/* SPDX-License-Identifier: MIT */
/*
 * expert_ffn for many rows (prefill; kernels: grouped_gemm.cuh, wgmma_gemm.cuh, gemm.cu). Jobs are
 * taken in batches of at most SLOTS_MOST (token, rank) slots, so that the buffers stay within
 * CUDA_SCRATCH_MOST. The limit is halved with two passes (gemm.cuh), whose x panels are twice as
 * large; and halved where weights are unpacked, whose panel takes up to GEMM_W_MOST bytes. A batch:
 *   1. the rows of the slots are gathered and rounded to halves (gemm.cuh);
 *   2. gate and up give [slots][gate, up];
 *   3. SwiGLU of those is split in the same way;
 *   4. down writes the slots.
 * Weights are read from their packed blocks where a kernel takes the type, else by way of unpacked
 * panels; both give the same bits.
 */
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/runtime/gpu_observe.cuh"

#include <string.h>

#define SLOTS_MOST 8192
#define JOBS_MOST  256
/* The narrowest tile has 32 rows, and a job has one tile at most that is not full. */
#define TILES_MOST (SLOTS_MOST / 32 + JOBS_MOST)
#define WIDTHS     3

/* What a batch needs on the device. `packed` and `panel` are filled from their beginning, without
 * holes between matrices. About 90 KB, on the stack, because several backends may compute at the
 * same time; batch_upload takes as much again. */
struct batch_list {
	int32_t token_slot[SLOTS_MOST + 7 * JOBS_MOST];
	struct grouped_gemm_tile packed[3 * TILES_MOST]; /* by width; each gate, up, down */
	struct gemm_tile panel[2 * TILES_MOST];          /* gate and up, down: n_tiles each */
};

struct expert_batch {
	const struct expert_job *jobs; /* [n], of the same types and shapes */
	int n, n_tiles, n_x;           /* n_x: rows of x: slots, and padding up to batch_unit */
	int most;                      /* slots of a batch, at most */
	/* Widths of tiles, in x rows, descending, and the number of tiles of each. A job's slots fill
	 * tiles of the first; what is left of them takes the least width that has room for it. */
	int n_widths, width[WIDTHS], n_of[WIDTHS];
	bool packed;
	enum x_order order, down_order; /* X_PLAIN: not for wgmma_gemm_enqueue */
	int64_t n_embd, n_ff, ff_pad, embd_pad;
	/* device */
	const int32_t *token_slot;
	const struct grouped_gemm_tile *tiles;
	const struct gemm_tile *panel_tiles;
	struct x_panel x, h;
	float *gu; /* [n_x][2 ff_pad] */
	void *panel;
};

static bool grouped_gemm_enqueue(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn)
{
	return grouped_gemm_group<1>(b, type, a, bn) || grouped_gemm_group<2>(b, type, a, bn) ||
		   grouped_gemm_group<3>(b, type, a, bn) || grouped_gemm_group<4>(b, type, a, bn);
}

static bool jobs_same_shape(const struct expert_job *a, const struct expert_job *b)
{
	return a->gate.type == b->gate.type && a->up.type == b->up.type &&
		   a->down.type == b->down.type && a->gate.n_in == b->gate.n_in &&
		   a->gate.n_out == b->gate.n_out;
}

/* Panel bytes of one job: the larger of gate with up, and down. */
static size_t job_panel(const struct expert_batch *r)
{
	const struct expert_job *j = r->jobs;
	size_t gate = panel_bytes(panel_kind_of(j->gate.type), 2 * r->ff_pad, r->n_embd),
		   up = panel_bytes(panel_kind_of(j->up.type), 2 * r->ff_pad, r->n_embd),
		   down = panel_bytes(panel_kind_of(j->down.type), r->embd_pad, r->n_ff);
	size_t most = gate > up ? gate : up;
	return most > down ? most : down;
}

/* ---- by way of panels ---- */

/* Unpacks one matrix of each job, `first` rows into each job's part of the panel. */
static void unpack_jobs(struct cuda_backend *b, const struct expert_batch *r,
	const struct weight_panel *panel, int which, int64_t each, int64_t first, int rest)
{
	struct unpack_args u = {};
	const struct weight *w = NULL;
	for (int i = 0; i < r->n; i++) {
		w = which == 0 ? &r->jobs[i].gate : which == 1 ? &r->jobs[i].up : &r->jobs[i].down;
		u.w[i] = (const uint8_t *)w->data;
		u.scales[i] = (const uint8_t *)w->scales;
		u.first[i] = (int32_t)(i * each + first);
	}
	u.panel = *panel;
	u.tables = b->tables;
	u.row_bytes = (int64_t)w->row_bytes;
	u.n_matrices = r->n;
	u.n_out = (int)w->n_out;
	u.rest = rest;
	gemm_unpack(b, w->type, &u);
}

/* Batches of panels have one width. */
static void panel_gate_and_up(struct cuda_backend *b, const struct expert_batch *r)
{
	enum dtype gate = r->jobs->gate.type, up = r->jobs->up.type;
	bool together =
		panel_kind_of(gate) == panel_kind_of(up) && gate != DTYPE_F32 && up != DTYPE_F32;
	struct gemm_args g = {};
	g.x = r->x;
	g.tiles = r->panel_tiles;
	g.y_row = 2 * r->ff_pad;
	for (int which = 0; which < 2; which++) {
		enum dtype type = which ? up : gate;
		for (int rest = 0; rest < (type == DTYPE_F32 ? 2 : 1); rest++) {
			g.w = panel_at(r->panel, panel_kind_of(type), r->n * 2 * r->ff_pad, r->n_embd);
			unpack_jobs(b, r, &g.w, which, 2 * r->ff_pad, together && which ? r->ff_pad : 0, rest);
			if (together && !which)
				continue;
			g.n_out = (int)(together ? 2 * r->ff_pad : r->ff_pad);
			g.y = r->gu + (together || !which ? 0 : r->ff_pad);
			g.add = rest;
			gemm_enqueue(b, &g, r->width[0], r->n_tiles, 1);
		}
	}
}

static void panel_down(struct cuda_backend *b, const struct expert_batch *r, float *out)
{
	enum dtype type = r->jobs->down.type;
	struct gemm_args g = {};
	g.x = r->h;
	g.tiles = r->panel_tiles + r->n_tiles;
	g.n_out = (int)r->n_embd;
	g.y = out;
	g.y_row = r->n_embd;
	g.y_map = r->token_slot;
	for (int rest = 0; rest < (type == DTYPE_F32 ? 2 : 1); rest++) {
		g.w = panel_at(r->panel, panel_kind_of(type), r->n * r->embd_pad, r->n_ff);
		unpack_jobs(b, r, &g.w, 2, r->embd_pad, 0, rest);
		g.add = rest;
		gemm_enqueue(b, &g, r->width[0], r->n_tiles, 1);
	}
}

/* ---- from packed blocks ---- */

static void packed_gemm_enqueue(struct cuda_backend *b, enum x_order order, enum dtype type,
	const struct grouped_gemm_args *a, int width)
{
	if (order == X_PLAIN)
		grouped_gemm_enqueue(b, type, a, width);
	else
		wgmma_gemm_enqueue(b, type, a, width);
}

/* The launches of two widths do not depend on each other. */
static void packed_gate_and_up(struct cuda_backend *b, const struct expert_batch *r)
{
	const struct weight *gate = &r->jobs->gate, *up = &r->jobs->up;
	struct grouped_gemm_args a = {};
	a.tables = b->tables;
	a.x = r->x;
	a.n_out = (int)r->n_ff;
	a.y = r->gu;
	a.y_row = 2 * r->ff_pad;
	const struct grouped_gemm_tile *tiles = r->tiles;
	for (int k = 0; k < r->n_widths; tiles += 3 * r->n_of[k++]) {
		if (!r->n_of[k])
			continue;
		a.tiles = tiles;
		a.row_bytes = (int64_t)gate->row_bytes;
		a.n_tiles = gate->type == up->type ? 2 * r->n_of[k] : r->n_of[k];
		packed_gemm_enqueue(b, r->order, gate->type, &a, r->width[k]);
		a.beside = !b->base.failure.code;
		if (gate->type == up->type)
			continue;
		a.tiles += r->n_of[k];
		a.row_bytes = (int64_t)up->row_bytes;
		packed_gemm_enqueue(b, r->order, up->type, &a, r->width[k]);
	}
}

static void packed_down(struct cuda_backend *b, const struct expert_batch *r, float *out)
{
	struct grouped_gemm_args a = {};
	a.tables = b->tables;
	a.x = r->h;
	a.n_out = (int)r->n_embd;
	a.y = out;
	a.y_row = r->n_embd;
	a.y_map = r->token_slot;
	a.row_bytes = (int64_t)r->jobs->down.row_bytes;
	const struct grouped_gemm_tile *tiles = r->tiles;
	for (int k = 0; k < r->n_widths; tiles += 3 * r->n_of[k++]) {
		if (!r->n_of[k])
			continue;
		a.tiles = tiles + 2 * r->n_of[k];
		a.n_tiles = r->n_of[k];
		packed_gemm_enqueue(b, r->down_order, r->jobs->down.type, &a, r->width[k]);
		a.beside = !b->base.failure.code;
	}
}

/* ---- batches ---- */

/* How many of the jobs [0, n_jobs) make a batch, and how many slots of them; of the first one
 * slots from `at` on are left. */
static int batch_jobs(const struct expert_batch *r, int n_jobs, int at, int *n_token_slots)
{
	const struct expert_job *first = r->jobs;
	size_t each = job_panel(r);
	int n = 0, most = r->packed ? JOBS_MOST : UNPACK_MOST;
	*n_token_slots = 0;
	for (; n < n_jobs && n < most; n++) {
		int token_slots = first[n].n_token_slots - (n ? 0 : at);
		if (n && (!jobs_same_shape(first, &first[n]) || *n_token_slots + token_slots > r->most ||
					 (!r->packed && (size_t)(n + 1) * each > GEMM_W_MOST)))
			break;
		*n_token_slots += token_slots < r->most ? token_slots : r->most;
	}
	return n;
}

static struct grouped_gemm_tile packed_tile_of(
	const struct weight *w, int x_first, int n_x, int64_t y_first)
{
	struct grouped_gemm_tile t;
	t.w = (const uint8_t *)w->data;
	t.x_first = x_first;
	t.n_x = n_x;
	t.y_first = y_first;
	return t;
}

/* The slots of a job begin at a multiple of so many rows. */
static int batch_unit(const struct expert_batch *r)
{
	return r->order == X_PLAIN && r->down_order == X_PLAIN ? 2 : 8;
}

/* Which of the batch's widths the tile has that begins with the first of `left` slots of a job. */
static int width_for(const struct expert_batch *r, int left)
{
	int k = 0;
	while (k + 1 < r->n_widths && left <= r->width[k + 1])
		k++;
	return k;
}

/* Slots of job i that the batch takes, if it begins with slot `at` of the first job and `left`
 * slots remain to it. */
static int slots_taken(const struct expert_batch *r, int i, int at, int left)
{
	int rest = r->jobs[i].n_token_slots - (i ? 0 : at);
	return rest < left ? rest : left;
}

/* Fills slots and tiles of a batch, of which n_x, n_tiles and n_of are 0. Returns the index of the
 * last job's first slot that is left for the next batch. */
static int batch_fill(struct expert_batch *r, struct batch_list *list, int at, int n_token_slots)
{
	struct gemm_tile panel[2][TILES_MOST];
	struct grouped_gemm_tile *to[WIDTHS]; /* the next tile of gate */
	int end = at, left = n_token_slots;
	for (int i = 0; i < r->n; i++) {
		int take = slots_taken(r, i, at, left);
		for (int p = 0, k; p < take; p += r->width[k])
			r->n_of[k = width_for(r, take - p)]++;
		left -= take;
	}
	for (int k = 0; k < r->n_widths; k++) {
		to[k] = list->packed + 3 * r->n_tiles;
		r->n_tiles += r->n_of[k];
	}
	left = n_token_slots;
	for (int i = 0, n = 0; i < r->n; i++) {
		const struct expert_job *j = r->jobs + i;
		int from = i ? 0 : at, take = slots_taken(r, i, at, left);
		for (int p = 0; p < take; p++)
			list->token_slot[r->n_x + p] = j->token_slots[from + p];
		for (int p = 0, k; p < take; p += r->width[k], n++) {
			k = width_for(r, take - p);
			int n_x = take - p < r->width[k] ? take - p : r->width[k], x = r->n_x + p;
			to[k][0] = packed_tile_of(&j->gate, x, n_x, 0);
			to[k][r->n_of[k]] = packed_tile_of(&j->up, x, n_x, r->ff_pad);
			to[k][2 * r->n_of[k]] = packed_tile_of(&j->down, x, n_x, 0);
			to[k]++;
			panel[0][n].w_first = (int32_t)(i * 2 * r->ff_pad);
			panel[1][n].w_first = (int32_t)(i * r->embd_pad);
			panel[0][n].x_first = panel[1][n].x_first = x;
			panel[0][n].n_x = panel[1][n].n_x = n_x;
		}
		r->n_x += take;
		/* the next job begins at a multiple of batch_unit; padding repeats a row that is not used
		 */
		for (; r->n_x % batch_unit(r); r->n_x++)
			list->token_slot[r->n_x] = list->token_slot[r->n_x - 1];
		left -= take;
		end = from + take;
	}
	for (int i = 0; i < 2; i++)
		memcpy(list->panel + i * r->n_tiles, panel[i], (size_t)r->n_tiles * sizeof panel[i][0]);
	return end;
}

/* Memory for the batch, and its list on the device: slots, then tiles. */
static bool batch_upload(
	struct cuda_backend *b, struct expert_batch *r, const struct batch_list *list)
{
	int64_t pad = up_to(r->n_x, 128) + 128;
	size_t for_w = r->packed ? 0 : (size_t)up_to((int64_t)((size_t)r->n * job_panel(r)), 256),
		   for_x = (size_t)up_to((int64_t)x_panel_bytes(b, pad, r->n_embd), 256),
		   for_h = (size_t)up_to((int64_t)x_panel_bytes(b, pad, r->n_ff), 256),
		   for_gu = (size_t)(pad * 2 * r->ff_pad) * sizeof(float);
	size_t token_slots = (size_t)up_to(r->n_x, 64) * sizeof(int32_t),
		   tiles = (size_t)r->n_tiles * (r->packed ? 3 * sizeof(struct grouped_gemm_tile)
												   : 2 * sizeof(struct gemm_tile));
	uint8_t *scratch = (uint8_t *)cuda_scratch_reserve(
		b, &b->gemm_panels, for_w + for_x + for_h + for_gu + token_slots + tiles);
	if (!scratch)
		return false;
	r->panel = scratch;
	r->x = x_panel_at(b, scratch + for_w, pad, r->n_embd, 1);
	r->h = x_panel_at(b, scratch + for_w + for_x, pad, r->n_ff, 1);
	r->gu = (float *)(scratch + for_w + for_x + for_h);
	uint8_t *at = scratch + for_w + for_x + for_h + for_gu;
	uint8_t packet[sizeof *list]; /* copied by upload */
	memcpy(packet, list->token_slot, (size_t)r->n_x * sizeof(int32_t));
	memcpy(packet + token_slots, r->packed ? (const void *)list->packed : (const void *)list->panel,
		tiles);
	const char *op = b->op;
	b->base.ops->upload(&b->base, at, packet, token_slots + tiles);
	b->op = op;
	r->token_slot = (const int32_t *)at;
	r->tiles = (const struct grouped_gemm_tile *)(at + token_slots);
	r->panel_tiles = (const struct gemm_tile *)(at + token_slots);
	return !b->base.failure.code;
}

/* The kernels other than the wgmma gemm have one width for all tiles. */
static void set_widths(struct expert_batch *r, int n_token_slots)
{
	static const int all[WIDTHS] = {128, 64, 32};
	if (r->order == X_PLAIN || r->down_order == X_PLAIN) {
		r->n_widths = 1;
		r->width[0] = n_token_slots <= 40 * r->n ? 32 : 64;
	} else {
		r->n_widths = WIDTHS;
		memcpy(r->width, all, sizeof all);
	}
}

/* The slots that the batch has of each job, as batch_fill numbered them; `at`: the first job's
 * first slot, `end`: the end of the last job's. */
static void observe_batch(struct cuda_backend *b, const struct expert_batch *r, int at, int end)
{
	int64_t row = 0;
	int unit = batch_unit(r);
	for (int i = 0; i < r->n; i++) {
		const struct expert_job *j = r->jobs + i;
		int n = (i == r->n - 1 ? end : j->n_token_slots) - (i ? 0 : at);
		cuda_observe_down(b, j, r->gu + row * 2 * r->ff_pad, 2 * r->ff_pad, r->ff_pad, n);
		row = up_to(row + n, unit);
	}
}

void gemm_expert_ffn(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int n_used, float *out)
{
	struct batch_list list;
	for (int j = 0, at = 0; j < n_jobs && !b->base.failure.code;) {
		struct expert_batch r = {};
		int n_token_slots;
		r.jobs = jobs + j;
		r.n_embd = r.jobs->gate.n_in;
		r.n_ff = r.jobs->gate.n_out;
		r.ff_pad = up_to(r.n_ff, GEMM_M);
		r.embd_pad = up_to(r.n_embd, GEMM_M);
		r.packed = grouped_gemm_enqueue(b, r.jobs->gate.type, NULL, 0) &&
				   grouped_gemm_enqueue(b, r.jobs->up.type, NULL, 0) &&
				   grouped_gemm_enqueue(b, r.jobs->down.type, NULL, 0);
		r.most = SLOTS_MOST / (b->exact_prompts ? 2 : 1) / (r.packed ? 1 : 2);
		if (r.packed) {
			r.order = wgmma_gemm_x_order(b, &r.jobs->gate);
			r.order = r.order == wgmma_gemm_x_order(b, &r.jobs->up) ? r.order : X_PLAIN;
			r.down_order = wgmma_gemm_x_order(b, &r.jobs->down);
		}
		r.n = batch_jobs(&r, n_jobs - j, at, &n_token_slots);
		if (!n_token_slots) {
			j += r.n;
			continue;
		}
		set_widths(&r, n_token_slots);
		int end = batch_fill(&r, &list, at, n_token_slots);
		if (!batch_upload(b, &r, &list))
			return;
		struct split_args s = {};
		s.to = r.x;
		s.x = x;
		s.x_row = r.n_embd;
		s.token_slots = r.token_slot;
		s.n_used = n_used;
		s.order = r.order;
		s.rows = r.n_x;
		gemm_split_rows(b, FROM_SLOTS, &s, 1);
		if (r.packed)
			packed_gate_and_up(b, &r);
		else
			panel_gate_and_up(b, &r);
		if (b->base.observer)
			observe_batch(b, &r, at, end);
		s.to = r.h;
		s.x = r.gu;
		s.x_row = 2 * r.ff_pad;
		s.up = r.ff_pad;
		s.order = r.down_order;
		gemm_split_rows(b, FROM_GLU, &s, 1);
		if (r.packed)
			packed_down(b, &r, out);
		else
			panel_down(b, &r, out);
		bool whole = end == r.jobs[r.n - 1].n_token_slots;
		j += whole ? r.n : r.n - 1;
		at = whole ? 0 : end;
	}
}
