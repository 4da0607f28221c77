/* SPDX-License-Identifier: MIT */
#include "tools/convert/convert_losses.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/gguf_write.h"
#include "src/quant/dequant.h"
#include "src/quant/quantize.h"
#include "tools/output/workers.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE_ROWS  64 /* of a tensor */
#define SAMPLE_SLABS 8  /* that they are taken from */

/*
 * Sensitivity of a class: KL divergence with this class alone in a low type, over the relative
 * squared error of that type on it: Q2_K of routed experts, Q4_0 of attn_k_b, Q3_K of others. Both
 * were measured on the pocket model (tests/bench/results/convert.md, "Types for a target size").
 * `kl` is in units of what all routed experts in Q2_K cost, the mean of two texts. The dense
 * network was measured as one; its three matrices share that by their errors.
 *
 * KL grows about linearly with the squared error, so the quotient is taken for other types too. It
 * is that of all matrices of the class together; of n layers each has an n-th of it, and routed
 * experts more or less by depth.
 *
 * Classes of one label get one type; they stand together. No type is smaller than `least`: what
 * smaller ones cost was not measured.
 */
static const struct sensitivity {
	const char *suffix; /* of the GGUF name, behind "blk.N." */
	const char *label;
	double kl, error;
	enum dtype least;
} sensitivities[] = {
	{"ffn_gate_exps.weight", "experts gate, up", 0.3161, 0.0745, DTYPE_IQ2_XXS},
	{"ffn_up_exps.weight", "experts gate, up", 0.1613, 0.0730, DTYPE_IQ2_XXS},
	{"ffn_down_exps.weight", "experts down", 0.5226, 0.0754, DTYPE_IQ2_XXS},
	{"ffn_gate_shexp.weight", "shared gate, up", 0.0527, 0.0206, DTYPE_Q3_K},
	{"ffn_up_shexp.weight", "shared gate, up", 0.0370, 0.0206, DTYPE_Q3_K},
	{"ffn_down_shexp.weight", "shared down", 0.0528, 0.0212, DTYPE_Q3_K},
	{"ffn_gate.weight", "dense gate, up", 0.0134, 0.0196, DTYPE_Q3_K},
	{"ffn_up.weight", "dense gate, up", 0.0132, 0.0192, DTYPE_Q3_K},
	{"ffn_down.weight", "dense down", 0.0218, 0.0317, DTYPE_Q3_K},
	{"attn_q_a.weight", "attention q", 0.1415, 0.0194, DTYPE_Q3_K},
	{"attn_q_b.weight", "attention q", 0.1735, 0.0197, DTYPE_Q3_K},
	{"attn_kv_a_mqa.weight", "attention kv_a", 0.1061, 0.0207, DTYPE_Q3_K},
	{"attn_k_b.weight", "attention k_b", 0.0066, 0.0073, DTYPE_Q4_0},
	{"attn_v_b.weight", "attention v_b", 0.0193, 0.0242, DTYPE_Q3_K},
	{"attn_output.weight", "attention output", 0.0668, 0.0211, DTYPE_Q3_K},
	{"token_embd.weight", "embedding", 0.3126, 0.0222, DTYPE_Q3_K},
	{"output.weight", "head", 0.5959, 0.0271, DTYPE_Q3_K},
};
/* Routed experts of the six layers alone in Q2_K: KL over its mean; by depth, first to last. */
static const double depth_factor[] = {0.30, 0.21, 0.83, 1.24, 0.88, 2.54};
#define N_SENSITIVITIES ARRAY_LEN(sensitivities)
#define NO_CLASS        UINT32_MAX

/* Ascending in bits. */
static const enum dtype wide_types[] = {DTYPE_IQ2_XXS, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K,
	DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_Q8_0, DTYPE_BF16};
/* For rows that are no multiple of 256 values. */
static const enum dtype narrow_types[] = {DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_BF16};

/* Types for a tensor of the class; returns their number, 0: no choice. */
static uint32_t list_types(const struct convert_tensor *t, uint32_t class, enum dtype *out)
{
	const bool wide = t->ne[0] % 256 == 0;
	const enum dtype *types = wide ? wide_types : narrow_types;
	const size_t n = wide ? ARRAY_LEN(wide_types) : ARRAY_LEN(narrow_types);
	uint32_t n_out = 0;
	if (t->ne[0] % 32)
		return 0;
	bool reached = !wide;
	for (size_t i = 0; i < n; i++) {
		reached = reached || types[i] == sensitivities[class].least;
		if (reached)
			out[n_out++] = types[i];
	}
	return n_out;
}

/* Row of the table, NO_CLASS: none. *layer: UINT32_MAX for tensors of no layer. */
static uint32_t find_class(const char *name, uint32_t *layer)
{
	int n = 0;
	*layer = UINT32_MAX;
	if (sscanf(name, "blk.%" SCNu32 ".%n", layer, &n) != 1 || !n)
		n = 0;
	for (uint32_t i = 0; i < N_SENSITIVITIES; i++)
		if (!strcmp(name + n, sensitivities[i].suffix))
			return i;
	return NO_CLASS;
}

/* ---- a sample of one tensor ---- */

struct losses_job {
	const struct losses_source *source;
	const uint32_t *class;                /* [n_tensors] */
	double (*errors)[TARGET_OPTIONS_MAX]; /* [n_tensors] by type of list_types */
	atomic_size_t next;
	atomic_bool stop;
};

struct row_sample {
	uint64_t rows, cols; /* as written */
	float *values;       /* [rows][cols] */
	float *importance;   /* [SAMPLE_SLABS][cols], or NULL */
	float *energy;       /* [cols] mean squares of the sample */
};

static void sample_free(struct row_sample *s)
{
	free(s->values);
	free(s->importance);
	free(s->energy);
}

static int check_finite(const struct losses_job *job, const struct convert_slab *x,
	const float *values, uint64_t n, struct err *e)
{
	for (uint64_t i = 0; i < n; i++)
		if (!isfinite(values[i]))
			return err_set(e, ERR_INPUT, "%s: %s: a value is %s",
				job->source->st->files[x->src->file].path, x->src->name,
				isnan(values[i]) ? "not a number" : "infinite");
	return 0;
}

/* Rows [0, n) of the sample from one slab, evenly spread over it. */
static int read_slab(const struct losses_job *job, const struct convert_tensor *t, uint64_t slab,
	uint64_t n, float *out, struct err *e)
{
	const struct convert_slab *x = &t->slabs[slab];
	const struct safetensors *st = job->source->st;
	int code = 0;
	if (!t->transposed) {
		for (uint64_t i = 0; i < n && !code; i++) {
			const uint64_t row = x->row0 + i * t->src_rows / n;
			code =
				safetensors_read_f32(st, x->src, x->scale, row, row + 1, out + i * t->src_cols, e);
		}
		return code ? code : check_finite(job, x, out, n * t->src_cols, e);
	}
	float *all = mem_try_new(t->src_rows * t->src_cols, sizeof *all);
	if (!all)
		return err_set(e, ERR_MEMORY, "no memory for %s", t->name);
	code = safetensors_read_f32(st, x->src, x->scale, x->row0, x->row0 + t->src_rows, all, e);
	if (!code)
		code = check_finite(job, x, all, t->src_rows * t->src_cols, e);
	for (uint64_t i = 0; i < n && !code; i++)
		for (uint64_t r = 0; r < t->src_rows; r++)
			out[i * t->src_rows + r] = all[r * t->src_cols + i * t->src_cols / n];
	free(all);
	return code;
}

/* Importance of the columns for each slab of the sample; ones where the file says nothing. */
static int read_importance(const struct losses_job *job, const struct convert_tensor *t,
	uint64_t n_slabs, struct row_sample *s, struct err *e)
{
	const struct imatrix_file *m = job->source->imatrix;
	bool found = false;
	int code = m && !t->transposed
				   ? imatrix_file_check(m, t->name, t->src_cols, t->n_slabs, &found, e)
				   : 0;
	if (code || !found)
		return code;
	s->importance = NEW_ARRAY(float, n_slabs * s->cols);
	for (uint64_t k = 0; k < n_slabs; k++) {
		float *out = s->importance + k * s->cols;
		if (!imatrix_file_get(m, t->name, k * t->n_slabs / n_slabs, s->cols, out))
			for (uint64_t c = 0; c < s->cols; c++)
				out[c] = 1;
	}
	return imatrix_file_check_lost(m, e);
}

/* Adds one row's squared error and square. */
static void add_error(enum dtype type, const float *row, const float *weight, const float *hint,
	uint64_t cols, uint8_t *packed, float *back, double sum[2])
{
	quantize_row(type, row, packed, cols, dtype_info(type)->block_values == 256 ? hint : NULL);
	dequant_row(type, packed, back, cols);
	for (uint64_t c = 0; c < cols; c++) {
		const double w = weight ? weight[c] : 1, d = (double)row[c] - back[c];
		sum[0] += w * d * d;
		sum[1] += w * row[c] * row[c];
	}
}

static void measure_sample(const struct row_sample *s, uint64_t per_slab, const enum dtype *types,
	uint32_t n_types, double *errors)
{
	uint8_t *packed = NEW_ARRAY(uint8_t, 4 * s->cols);
	float *back = NEW_ARRAY(float, s->cols);
	for (uint32_t k = 0; k < n_types; k++) {
		double sum[2] = {0};
		for (uint64_t r = 0; r < s->rows; r++) {
			const float *weight = s->importance ? s->importance + r / per_slab * s->cols : NULL,
						*hint = weight                      ? weight
								: types[k] == DTYPE_IQ2_XXS ? s->energy
															: NULL;
			add_error(types[k], s->values + r * s->cols, weight, hint, s->cols, packed, back, sum);
		}
		errors[k] = sum[1] > 0 ? sum[0] / sum[1] : 0;
	}
	free(packed);
	free(back);
}

static int measure_tensor(const struct losses_job *job, size_t id, struct err *e)
{
	const struct convert_tensor *t = &job->source->plan->tensors[id];
	enum dtype types[TARGET_OPTIONS_MAX];
	const uint32_t n_types = list_types(t, job->class[id], types);
	const uint64_t n_slabs = MIN(t->n_slabs, SAMPLE_SLABS),
				   in_slab = t->transposed ? t->src_cols : t->src_rows,
				   per_slab = MIN(in_slab, SAMPLE_ROWS / n_slabs);
	struct row_sample s = {.rows = n_slabs * per_slab, .cols = t->ne[0]};
	s.values = NEW_ARRAY(float, s.rows *s.cols);
	s.energy = NEW_ARRAY(float, s.cols);
	int code = read_importance(job, t, n_slabs, &s, e);
	for (uint64_t k = 0; k < n_slabs && !code; k++)
		code = read_slab(
			job, t, k * t->n_slabs / n_slabs, per_slab, s.values + k * per_slab * s.cols, e);
	for (uint64_t c = 0; c < s.cols; c++) {
		double sum = 0;
		for (uint64_t r = 0; r < s.rows; r++)
			sum += (double)s.values[r * s.cols + c] * s.values[r * s.cols + c];
		s.energy[c] = (float)(sum / (double)s.rows);
	}
	if (!code)
		measure_sample(&s, per_slab, types, n_types, job->errors[id]);
	sample_free(&s);
	return code;
}

static int losses_worker(void *user, struct err *e)
{
	struct losses_job *job = user;
	int code = 0;
	while (!code && !job->stop) {
		const size_t i = job->next++;
		if (i >= job->source->plan->n_tensors)
			break;
		if (job->class[i] != NO_CLASS)
			code = measure_tensor(job, i, e);
	}
	return code;
}

static int losses_tick(void *user, bool over, struct err *e)
{
	(void)user, (void)over, (void)e;
	return 0;
}

static void losses_stop(void *user)
{
	((struct losses_job *)user)->stop = true;
}

/* ---- groups ---- */

/* Bytes that the tensor takes in the file, with padding. */
static uint64_t padded_bytes(const struct convert_tensor *t, enum dtype type)
{
	uint64_t row = 0;
	dtype_row_bytes(type, t->ne[0], &row);
	return num_align_up(row * t->ne[1] * t->ne[2], GGUF_WRITE_ALIGNMENT);
}

/* Tensors of a class that a run without drafts reads: those that the KL was measured with. */
static void count_classes(
	const struct losses_source *s, const uint32_t *class, uint64_t count[N_SENSITIVITIES])
{
	for (size_t i = 0; i < s->plan->n_tensors; i++) {
		uint32_t layer;
		find_class(s->plan->tensors[i].name, &layer);
		if (class[i] != NO_CLASS && (layer == UINT32_MAX || layer < s->cfg->n_layers))
			count[class[i]]++;
	}
}

/* Factor of a layer's routed experts: linear between the depths that were measured. The MTP layer
 * counts as the last. */
static double layer_factor(const struct convert_config *cfg, uint32_t layer)
{
	const uint32_t last = ARRAY_LEN(depth_factor) - 1, first = cfg->n_dense;
	if (cfg->n_layers < first + 2)
		return 1;
	const double at = (double)(MIN(layer, cfg->n_layers - 1) - first) /
					  (double)(cfg->n_layers - 1 - first) * last;
	const uint32_t i = MIN((uint32_t)at, last - 1);
	return depth_factor[i] + (at - i) * (depth_factor[i + 1] - depth_factor[i]);
}

static void make_groups(struct convert_losses *l, const struct convert_plan *p)
{
	size_t *last = NEW_ARRAY(size_t, N_SENSITIVITIES); /* group of the label's last tensor, + 1 */
	uint32_t *layer_of = NEW_ARRAY(uint32_t, p->n_tensors);
	for (size_t i = 0; i < p->n_tensors; i++) {
		uint32_t layer, head = l->class[i];
		l->group_of[i] = SIZE_MAX;
		find_class(p->tensors[i].name, &layer);
		if (head == NO_CLASS)
			continue;
		while (head && !strcmp(sensitivities[head - 1].label, sensitivities[head].label))
			head--;
		enum dtype types[TARGET_OPTIONS_MAX];
		const uint32_t n = list_types(&p->tensors[i], l->class[i], types);
		size_t g = last[head] - 1;
		if (!last[head] || layer_of[g] != layer || l->groups[g].n != n ||
			memcmp(l->types[g], types, n * sizeof *types)) {
			g = l->n_groups++;
			last[head] = g + 1;
			layer_of[g] = layer;
			l->kind[g] = head;
			l->groups[g].n = n;
			memcpy(l->types[g], types, n * sizeof *types);
		}
		l->group_of[i] = g;
		for (uint32_t k = 0; k < n; k++)
			l->groups[g].option[k].bytes += padded_bytes(&p->tensors[i], types[k]);
	}
	free(last);
	free(layer_of);
}

static void add_losses(struct convert_losses *l, const struct losses_job *job)
{
	const struct convert_plan *p = job->source->plan;
	uint64_t count[N_SENSITIVITIES] = {0};
	count_classes(job->source, l->class, count);
	for (size_t i = 0; i < p->n_tensors; i++) {
		const size_t g = l->group_of[i];
		uint32_t layer;
		if (g == SIZE_MAX)
			continue;
		find_class(p->tensors[i].name, &layer);
		const struct sensitivity *s = &sensitivities[l->class[i]];
		const double each = s->kl / s->error / (double)MAX(1, count[l->class[i]]) *
							(p->tensors[i].n_slabs > 1 && s->least == DTYPE_IQ2_XXS
									? layer_factor(job->source->cfg, layer)
									: 1);
		for (uint32_t k = 0; k < l->groups[g].n; k++)
			l->groups[g].option[k].loss += each * job->errors[i][k];
	}
}

void convert_losses_list(struct convert_losses *l, const struct losses_source *source)
{
	const size_t n = source->plan->n_tensors;
	*l = (struct convert_losses){.groups = NEW_ARRAY(struct target_group, n),
		.choice = NEW_ARRAY(uint32_t, n),
		.group_of = NEW_ARRAY(size_t, n),
		.class = NEW_ARRAY(uint32_t, n),
		.kind = NEW_ARRAY(uint32_t, n),
		.types = mem_new(n, sizeof *l->types)};
	for (size_t i = 0; i < n; i++) {
		uint32_t layer;
		enum dtype types[TARGET_OPTIONS_MAX];
		const struct convert_tensor *t = &source->plan->tensors[i];
		l->class[i] = find_class(t->name, &layer);
		if (l->class[i] != NO_CLASS && (convert_types_match(source->fixed, t->name, types) ||
										   !list_types(t, l->class[i], types)))
			l->class[i] = NO_CLASS;
	}
	make_groups(l, source->plan);
}

int convert_losses_measure(
	struct convert_losses *l, const struct losses_source *source, struct err *e)
{
	struct losses_job job = {.source = source, .class = l->class};
	job.errors = mem_new(source->plan->n_tensors, sizeof *job.errors);
	const struct workers_job work = {
		losses_worker, losses_tick, losses_stop, &job, source->n_threads};
	int code = workers_run(&work, e);
	if (!code)
		add_losses(l, &job);
	free(job.errors);
	return code;
}

void convert_losses_types(const struct convert_losses *l, uint8_t *types)
{
	for (size_t g = 0; g < l->n_groups; g++)
		types[g] = (uint8_t)l->types[g][l->choice[g]];
}

bool convert_losses_choose(struct convert_losses *l, const uint8_t *types)
{
	for (size_t g = 0; g < l->n_groups; g++) {
		uint32_t k = 0;
		while (k < l->groups[g].n && (uint8_t)l->types[g][k] != types[g])
			k++;
		if (k == l->groups[g].n)
			return false;
		l->choice[g] = k;
	}
	return true;
}

void convert_losses_apply(const struct convert_losses *l, struct convert_plan *plan)
{
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const size_t g = l->group_of[i];
		if (g != SIZE_MAX)
			plan->tensors[i].type = l->types[g][l->choice[g]];
	}
}

void convert_losses_print(const struct convert_losses *l, FILE *f)
{
	for (uint32_t s = 0; s < N_SENSITIVITIES; s++) {
		uint32_t count[DTYPE_LIMIT] = {0}, n = 0;
		for (size_t g = 0; g < l->n_groups; g++)
			if (l->kind[g] == s) {
				count[l->types[g][l->choice[g]]]++;
				n++;
			}
		if (!n)
			continue;
		fprintf(f, "mix      %-17s", sensitivities[s].label);
		for (uint32_t t = 0; t < DTYPE_LIMIT; t++)
			if (count[t])
				fprintf(f, " %s %u", dtype_name(t), count[t]);
		fprintf(f, "\n");
	}
}

void convert_losses_fini(struct convert_losses *l)
{
	free(l->groups);
	free(l->choice);
	free(l->group_of);
	free(l->class);
	free(l->kind);
	free(l->types);
	*l = (struct convert_losses){0};
}
