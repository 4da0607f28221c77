/* SPDX-License-Identifier: MIT */
/*
 * One walk over the tensor names (walk_*) serves binding and loading. The first pass checks shapes
 * and adds up sizes; the second one copies into the arena. Norms, biases and small vectors are F32
 * in memory; F16 and BF16 ones of foreign files are converted while they are copied.
 */
#include "src/model/weights.h"

#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/dequant.h"
#include "stream/check/mapped_check.h"
#include "stream/tensor_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGN 256 /* every tensor starts on this boundary of the arena */
/* Large tensors are copied in steps, with a progress report each. */
#define UPLOAD_STEP ((uint64_t)64 << 20)

struct tensor_walk {
	const struct gguf *file;
	const struct model_config *c;
	struct backend *backend; /* NULL: check only */
	uint8_t *arena;
	size_t used; /* bytes of the arena so far */
	struct err *e;
	const struct weights_watch *watch; /* NULL: nobody */
	const struct check_values *values; /* NULL: nothing is compared */
	/* true: tensors that need no conversion are listed in spans, for tensor_load; false: they are
	 * copied at once. */
	bool lists_spans;
	struct tensor_span *spans;
	size_t n_spans, cap_spans;
	size_t total; /* bytes of the arena when all is done */
};

/* Of the `used` bytes of the arena all but the last `missing` are filled. */
static void report_progress(const struct tensor_walk *k, uint64_t missing)
{
	if (k->watch && k->watch->progress)
		k->watch->progress(k->watch->user, k->used - missing, k->total);
}

static const struct gguf_tensor *find_shaped_tensor(
	struct tensor_walk *k, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
	const struct gguf_tensor *t = gguf_need_tensor(k->file, name, k->e);
	if (!t)
		return NULL;
	if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2 || t->ne[3] != 1) {
		char found[GGUF_SHAPE_MAX];
		err_set(k->e, ERR_INPUT, "%s: %s has shape %s, expected {%llu, %llu, %llu}",
			k->file->files[t->file].path, name, gguf_shape_text(t, found), (unsigned long long)ne0,
			(unsigned long long)ne1, (unsigned long long)ne2);
		return NULL;
	}
	return t;
}

/* Takes the next buffer of the arena; NULL in the first pass. */
static uint8_t *arena_take(struct tensor_walk *k, size_t bytes)
{
	size_t at = k->used;
	k->used = num_align_up(at + bytes, ARENA_ALIGN);
	return k->backend ? k->arena + at : NULL;
}

/* Compares a tensor that is copied from where it is mapped. */
static int check_mapped(struct tensor_walk *k, const struct gguf_tensor *t)
{
	return k->values ? mapped_check_tensor(k->values, t, k->e) : 0;
}

static void copy_run(struct tensor_walk *k, const struct gguf_run *r, uint8_t *data)
{
	for (uint64_t at = 0; at < r->bytes; at += UPLOAD_STEP) {
		uint64_t n = MIN(r->bytes - at, UPLOAD_STEP);
		k->backend->ops->upload(k->backend, data + at, r->data + at, n);
		report_progress(k, r->bytes - at - n);
	}
}

/* Copies a run of a tensor unchanged, or lists it. range: as in tensor_span. */
static void load_run(struct tensor_walk *k, const struct gguf_tensor *t, const struct gguf_run *r,
	uint64_t range, uint8_t *data)
{
	if (!k->lists_spans) {
		copy_run(k, r, data);
		return;
	}
	if (k->n_spans == k->cap_spans) {
		k->cap_spans = 2 * k->cap_spans + 64;
		k->spans = mem_grow(k->spans, k->cap_spans, sizeof *k->spans);
	}
	k->spans[k->n_spans++] = (struct tensor_span){.file = r->file,
		.offset = r->offset,
		.bytes = r->bytes,
		.dst = data,
		.tensor = t,
		.range = range};
}

/* A tensor that is computed from another one of the file. */
static int copy_made(struct tensor_walk *k, const struct gguf_tensor *t, uint8_t *data)
{
	int rc = check_mapped(k, t);
	if (rc)
		return rc;
	uint8_t *made = mem_try_new(t->bytes, 1);
	if (!made)
		return err_set(k->e, ERR_MEMORY, "%s: no memory for its %llu bytes", t->name,
			(unsigned long long)t->bytes);
	if (!(rc = gguf_make(k->file, t, made, k->e))) {
		k->backend->ops->upload(k->backend, data, made, t->bytes);
		report_progress(k, 0);
	}
	free(made);
	return rc;
}

/* Copies or lists the values of a tensor, to `data` one matrix after another, and its scales, to
 * `scales`. */
static int load_tensor(
	struct tensor_walk *k, const struct gguf_tensor *t, uint8_t *data, uint8_t *scales)
{
	if (t->made)
		return copy_made(k, t, data);
	int rc = k->lists_spans ? 0 : check_mapped(k, t); /* tensor_load checks what is listed */
	if (rc)
		return rc;
	if (!t->runs) {
		const struct gguf_run whole = {t->file, t->offset, t->bytes, t->data};
		load_run(k, t, &whole, 0, data);
		return 0;
	}
	for (uint64_t i = 0; i < t->n_runs; i++) {
		load_run(k, t, &t->runs[i], i, data);
		data += t->runs[i].bytes;
		if (!t->scales)
			continue;
		load_run(k, t, &t->scales[i], t->n_runs + i, scales);
		scales += t->scales[i].bytes;
	}
	return 0;
}

/* *out: the matrix where the file is mapped. */
static int bind_mapped(struct tensor_walk *k, const char *name, uint64_t n_in, uint64_t n_out,
	uint64_t n_stack, const struct gguf_tensor **tensor, struct weight *out)
{
	const struct gguf_tensor *t = find_shaped_tensor(k, name, n_in, n_out, n_stack);
	if (!t)
		return ERR_INPUT;
	uint64_t row;
	if (!dtype_row_bytes(t->type, n_in, &row))
		return err_set(k->e, ERR_INPUT, "%s: %s: rows of %llu values do not fit type %s",
			k->file->files[t->file].path, name, (unsigned long long)n_in, dtype_name(t->type));
	*tensor = t;
	*out = (struct weight){.data = t->data,
		.type = t->type,
		.n_in = (int64_t)n_in,
		.n_out = (int64_t)n_out,
		.n_stack = (int64_t)n_stack,
		.row_bytes = row,
		.stack_bytes = row * n_out};
	return 0;
}

static int bind_matrix(struct tensor_walk *k, const char *name, uint64_t n_in, uint64_t n_out,
	uint64_t n_stack, struct weight *out)
{
	const struct gguf_tensor *t;
	int rc = bind_mapped(k, name, n_in, n_out, n_stack, &t, out);
	if (rc)
		return rc;
	const uint64_t values = gguf_values_bytes(t);
	uint8_t *data = arena_take(k, values);
	uint8_t *scales = values < t->bytes ? arena_take(k, t->bytes - values) : NULL;
	out->data = data;
	out->scales = scales;
	return data ? load_tensor(k, t, data, scales) : 0;
}

static int bind_vector(struct tensor_walk *k, const char *name, uint64_t n, const float **out)
{
	const struct gguf_tensor *t = find_shaped_tensor(k, name, n, 1, 1);
	if (!t)
		return ERR_INPUT;
	if (t->type != DTYPE_F32 && t->type != DTYPE_F16 && t->type != DTYPE_BF16)
		return err_set(k->e, ERR_INPUT, "%s: %s is %s, expected F32, F16 or BF16",
			k->file->files[t->file].path, name, dtype_name(t->type));
	uint8_t *data = arena_take(k, n * sizeof(float));
	int rc;
	if (data && t->type == DTYPE_F32) {
		if ((rc = load_tensor(k, t, data, NULL)))
			return rc;
	} else if (data) {
		if ((rc = check_mapped(k, t)))
			return rc;
		float *v = mem_new(n, sizeof *v);
		dequant_row(t->type, t->data, v, n);
		k->backend->ops->upload(k->backend, data, v, n * sizeof *v);
		free(v);
	}
	*out = (const float *)data;
	return 0;
}

/* "blk.<layer>.<name>", in a buffer of the caller's. */
struct tensor_name {
	char text[96];
};

static const char *layer_tensor_name(struct tensor_name *n, uint32_t layer, const char *name)
{
	snprintf(n->text, sizeof n->text, "blk.%u.%s", layer, name);
	return n->text;
}

/* These two return from the walk_* function on an error. */
#define MATRIX(name, n_in, n_out, n_stack, field)                                                  \
	do {                                                                                           \
		struct tensor_name n_;                                                                     \
		int rc_ = bind_matrix(                                                                     \
			k, layer_tensor_name(&n_, layer, name ".weight"), n_in, n_out, n_stack, &w->field);    \
		if (rc_)                                                                                   \
			return rc_;                                                                            \
	} while (0)

#define VECTOR(name, n, field)                                                                     \
	do {                                                                                           \
		struct tensor_name n_;                                                                     \
		int rc_ = bind_vector(k, layer_tensor_name(&n_, layer, name), n, &w->field);               \
		if (rc_)                                                                                   \
			return rc_;                                                                            \
	} while (0)

static int walk_attention(struct tensor_walk *k, uint32_t layer, struct layer_weights *w)
{
	const struct model_config *c = k->c;
	VECTOR("attn_norm.weight", c->n_embd, attn_norm);
	MATRIX("attn_q_a", c->n_embd, c->q_rank, 1, q_a);
	VECTOR("attn_q_a_norm.weight", c->q_rank, q_a_norm);
	MATRIX("attn_q_b", c->q_rank, (uint64_t)c->n_heads * config_head_qk(c), 1, q_b);
	MATRIX("attn_kv_a_mqa", c->n_embd, config_cache_width(c), 1, kv_a);
	VECTOR("attn_kv_a_norm.weight", c->kv_rank, kv_a_norm);
	MATRIX("attn_k_b", c->head_nope, c->kv_rank, c->n_heads, k_b);
	MATRIX("attn_v_b", c->kv_rank, c->head_value, c->n_heads, v_b);
	MATRIX("attn_output", (uint64_t)c->n_heads * c->head_value, c->n_embd, 1, attn_out);
	if (!c->index_full[layer])
		return 0;
	MATRIX("indexer.attn_q_b", c->q_rank, (uint64_t)c->index_heads * c->index_dim, 1, index_q);
	MATRIX("indexer.attn_k", c->n_embd, c->index_dim, 1, index_k);
	MATRIX("indexer.proj", c->n_embd, c->index_heads, 1, index_proj);
	VECTOR("indexer.k_norm.weight", c->index_dim, index_k_gain);
	VECTOR("indexer.k_norm.bias", c->index_dim, index_k_bias);
	return 0;
}

static int walk_ffn(struct tensor_walk *k, uint32_t layer, struct layer_weights *w)
{
	const struct model_config *c = k->c;
	VECTOR("ffn_norm.weight", c->n_embd, ffn_norm);
	if (!config_is_moe(c, layer)) {
		MATRIX("ffn_gate", c->n_embd, c->ff_dense, 1, gate);
		MATRIX("ffn_up", c->n_embd, c->ff_dense, 1, up);
		MATRIX("ffn_down", c->ff_dense, c->n_embd, 1, down);
		return 0;
	}
	MATRIX("ffn_gate_shexp", c->n_embd, c->ff_shared, 1, gate);
	MATRIX("ffn_up_shexp", c->n_embd, c->ff_shared, 1, up);
	MATRIX("ffn_down_shexp", c->ff_shared, c->n_embd, 1, down);
	MATRIX("ffn_gate_inp", c->n_embd, c->n_experts, 1, router);
	VECTOR("exp_probs_b.bias", c->n_experts, router_bias);
	return 0;
}

static int walk_mtp(struct tensor_walk *k, uint32_t layer, struct model_weights *w)
{
	const struct model_config *c = k->c;
	MATRIX("nextn.eh_proj", 2 * (uint64_t)c->n_embd, c->n_embd, 1, eh_proj);
	VECTOR("nextn.enorm.weight", c->n_embd, enorm);
	VECTOR("nextn.hnorm.weight", c->n_embd, hnorm);
	VECTOR("nextn.shared_head_norm.weight", c->n_embd, head_norm);
	return 0;
}

static int walk_weights(struct tensor_walk *k, bool with_mtp, struct model_weights *w)
{
	const struct model_config *c = k->c;
	const struct gguf_tensor *embed;
	int rc;
	if ((rc = bind_mapped(k, "token_embd.weight", c->n_embd, c->n_vocab, 1, &embed, &w->embed)))
		return rc;
	if (config_has_end(c) &&
		((rc = bind_matrix(k, "output.weight", c->n_embd, c->n_vocab, 1, &w->head)) ||
			(rc = bind_vector(k, "output_norm.weight", c->n_embd, &w->output_norm))))
		return rc;
	for (uint32_t i = c->first_layer; i < config_all_end(c, with_mtp); i++)
		if ((rc = walk_attention(k, i, &w->layers[i])) || (rc = walk_ffn(k, i, &w->layers[i])))
			return rc;
	if (config_all_end(c, with_mtp) > c->n_layers)
		return walk_mtp(k, c->n_layers, w);
	return 0;
}

static int bind_experts(struct tensor_walk *k, uint32_t layer, struct expert_tensors *x)
{
	const struct model_config *c = k->c;
	struct tensor_name n;
	x->gate = find_shaped_tensor(k, layer_tensor_name(&n, layer, "ffn_gate_exps.weight"), c->n_embd,
		c->ff_expert, c->n_experts);
	x->up = x->gate ? find_shaped_tensor(k, layer_tensor_name(&n, layer, "ffn_up_exps.weight"),
						  c->n_embd, c->ff_expert, c->n_experts)
					: NULL;
	x->down = x->up ? find_shaped_tensor(k, layer_tensor_name(&n, layer, "ffn_down_exps.weight"),
						  c->ff_expert, c->n_embd, c->n_experts)
					: NULL;
	return x->down ? 0 : ERR_INPUT;
}

/* Whether every expert of a stack begins at a multiple of the alignment that deferred kernels need.
 * A cache slot keeps an expert's offset modulo that alignment (stream/extent.h). */
static bool stack_is_aligned(const struct gguf_tensor *t)
{
	uint64_t all = t->runs ? 0 : t->offset | t->bytes / t->ne[2];
	for (uint64_t i = 0; t->runs && i < t->n_runs; i++)
		all |= t->runs[i].offset;
	return !(all % DEFERRED_ALIGN);
}

int weights_bind(const struct gguf *file, const struct model_config *c, bool with_mtp,
	struct model_weights *w, size_t *resident_bytes, struct err *e)
{
	*w = (struct model_weights){0};
	uint32_t n = c->n_layers + c->n_mtp;
	w->layers = NEW_ARRAY(struct layer_weights, n);
	w->experts = NEW_ARRAY(struct expert_tensors, n);
	struct tensor_walk k = {.file = file, .c = c, .e = e};
	int rc = walk_weights(&k, with_mtp, w);
	for (uint32_t i = MAX(c->n_dense, c->first_layer); !rc && i < config_all_end(c, with_mtp);
		 i++) {
		struct expert_tensors *x = &w->experts[i];
		rc = bind_experts(&k, i, x);
		w->layers[i].experts_aligned = !rc && stack_is_aligned(x->gate) &&
									   stack_is_aligned(x->up) && stack_is_aligned(x->down);
	}
	if (rc) {
		weights_free(w, NULL);
		return rc;
	}
	*resident_bytes = k.used;
	return 0;
}

int weights_load(const struct gguf *file, const struct model_config *c, bool with_mtp,
	struct backend *b, struct model_weights *w, const struct weights_watch *watch,
	const struct reader_options *reader, const struct check_values *values, struct err *e)
{
	struct tensor_walk count = {.file = file, .c = c, .e = e};
	int rc = walk_weights(&count, with_mtp, w);
	if (rc)
		return rc;
	if ((rc = b->ops->alloc(b, MEM_DEVICE, count.used, &w->arena, e))) {
		err_prefix(e, "resident weights");
		return rc;
	}
	w->arena_bytes = count.used;
	if (!c->first_layer)
		pages_read_ahead(w->embed.data, w->embed.stack_bytes);
	struct tensor_walk k = {.file = file,
		.c = c,
		.backend = b,
		.arena = w->arena,
		.e = e,
		.watch = watch,
		.values = values,
		.total = count.used,
		.lists_spans = reader && tensor_load_serves(b)};
	report_progress(&k, 0);
	rc = walk_weights(&k, with_mtp, w);
	if (!rc && k.lists_spans) {
		struct tensor_load_result r;
		struct tensor_load_options lo = {
			.file = file, .backend = b, .reader = *reader, .check_values = values};
		if (watch) {
			lo.progress = watch->progress;
			lo.user = watch->user;
		}
		if (!(rc = tensor_load(&lo, k.spans, k.n_spans, &r, e)))
			log_verbose("weights: %.3f GB loaded in %.2f s, %.2f GB/s", (double)r.bytes / 1e9,
				r.seconds, (double)r.bytes / 1e9 / r.seconds);
	}
	free(k.spans);
	if (!rc && !c->first_layer) /* by now it has been read ahead */
		rc = check_mapped(&k, gguf_find_tensor(file, "token_embd.weight"));
	return rc ? rc : b->ops->wait(b, e);
}

uint64_t weights_layer_bytes(const struct model_weights *w, uint32_t layer)
{
	const struct layer_weights *l = &w->layers[layer];
	const struct weight *all[] = {&l->q_a, &l->q_b, &l->kv_a, &l->k_b, &l->v_b, &l->attn_out,
		&l->index_q, &l->index_k, &l->index_proj, &l->gate, &l->up, &l->down, &l->router};
	uint64_t sum = 0;
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		sum += (uint64_t)all[i]->n_stack * all[i]->stack_bytes;
	return sum;
}

uint64_t weights_expert_bytes(const struct model_weights *w, uint32_t layer)
{
	const struct expert_tensors *x = &w->experts[layer];
	return x->gate ? x->gate->bytes + x->up->bytes + x->down->bytes : 0;
}

void weights_free(struct model_weights *w, struct backend *b)
{
	if (w->arena)
		b->ops->free(b, MEM_DEVICE, w->arena, w->arena_bytes);
	free(w->layers);
	free(w->experts);
	*w = (struct model_weights){0};
}
