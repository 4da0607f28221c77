/* SPDX-License-Identifier: MIT */
#include "tools/imatrix/imatrix_collect.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/forward/observe.h"
#include "src/quant/feedback.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/imatrix/imatrix_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOMENT_ROWS 64 /* rows passed on at once */

struct input_sums {
	uint32_t n_matrices, n_in; /* n_in 0: the layer has no such input */
	uint32_t n_counts;         /* 1, or one for each expert */
	double *chunk;             /* [n_matrices][n_in] of the chunk that is computed */
	uint32_t *chunk_rows;      /* [n_matrices] */
	float *sum2, *counts;      /* [n_matrices][n_in], [n_counts] of the chunks that were kept */
};

/* Of one input of a layer with experts; n_matrices 0: not collected. */
struct moment_sums {
	uint32_t n_matrices, n_in;
	float *chunk, *sums;  /* [n_matrices][n_in / 256][FEEDBACK_MOMENTS] */
	uint32_t *chunk_rows; /* [n_matrices] */
	float *counts;        /* [n_matrices] */
};

struct imatrix_collect {
	const struct gguf *file;
	const struct model_config *config;
	struct model_observer observer;
	struct input_sums (*layers)[OBSERVED_INPUTS]; /* [n_layers] */
	struct moment_sums (*moments)[2]; /* [n_layers]: of the experts' input, of down's; or NULL */
};

static size_t moments_of(const struct moment_sums *m) /* one matrix */
{
	return (size_t)m->n_in / FEEDBACK_COLUMNS * FEEDBACK_MOMENTS;
}

/* The input that a layer's sums are of. The shared expert reads what the routed ones read, and of
 * every token once. */
static enum observed_input moments_input(int i)
{
	return i ? OBSERVED_EXPERT_DOWN : OBSERVED_FFN;
}

static const float *observed_row(const struct observed_rows *r, int i)
{
	return r->x + (r->index ? r->index[i] / r->divisor : i) * r->stride;
}

static void add_moments(struct moment_sums *m, const struct observed_rows *r)
{
	const float *row[MOMENT_ROWS];
	float *sums = m->chunk + r->matrix * moments_of(m);
	for (int i = 0, n; i < r->n; i += n) {
		n = MIN(r->n - i, MOMENT_ROWS);
		for (int k = 0; k < n; k++)
			row[k] = observed_row(r, i + k);
		for (uint32_t b = 0; b < m->n_in / FEEDBACK_COLUMNS; b++)
			quant_feedback_add_rows(
				sums + (size_t)b * FEEDBACK_MOMENTS, row, (size_t)n, (size_t)b * FEEDBACK_COLUMNS);
	}
	m->chunk_rows[r->matrix] += (uint32_t)r->n;
}

static void add_rows(void *user, const struct observed_rows *r)
{
	struct imatrix_collect *c = user;
	for (int i = 0; c->moments && i < 2; i++)
		if (r->input == moments_input(i) && c->moments[r->layer][i].n_matrices)
			add_moments(&c->moments[r->layer][i], r);
	struct input_sums *s = &c->layers[r->layer][r->input];
	double *restrict sum = s->chunk + (size_t)r->matrix * s->n_in;
	for (int i = 0; i < r->n; i++) {
		const float *restrict x = observed_row(r, i);
		for (uint32_t k = 0; k < s->n_in; k++)
			sum[k] += (double)x[k] * (double)x[k];
	}
	s->chunk_rows[r->matrix] += (uint32_t)r->n;
}

static int sums_init(struct input_sums *s, struct err *e)
{
	const size_t n = (size_t)s->n_matrices * s->n_in;
	s->chunk = mem_try_new(n, sizeof *s->chunk);
	s->chunk_rows = mem_try_new(s->n_matrices, sizeof *s->chunk_rows);
	s->sum2 = mem_try_new(n, sizeof *s->sum2);
	s->counts = mem_try_new(s->n_counts, sizeof *s->counts);
	return s->chunk && s->chunk_rows && s->sum2 && s->counts
			   ? 0
			   : err_set(e, ERR_MEMORY, "no memory for the sums of %u x %u columns", s->n_matrices,
					 s->n_in);
}

static int moments_init(struct imatrix_collect *c, struct err *e)
{
	bool any = false;
	c->moments = mem_new(c->config->n_layers, sizeof *c->moments);
	for (uint32_t layer = 0; layer < c->config->n_layers; layer++)
		for (int i = 0; i < 2 && config_is_moe(c->config, layer); i++) {
			struct moment_sums *m = &c->moments[layer][i];
			uint32_t n;
			observed_shape(c->config, layer, moments_input(i), &n, &m->n_in);
			if (!n || m->n_in % FEEDBACK_COLUMNS)
				return err_set(e, ERR_INPUT,
					"--moments: experts of layer %u have %u columns, a multiple of %d expected",
					layer, m->n_in, FEEDBACK_COLUMNS);
			const size_t values = n * moments_of(m);
			any = true;
			m->n_matrices = n;
			m->chunk = mem_try_new(values, sizeof *m->chunk);
			m->sums = mem_try_new(values, sizeof *m->sums);
			m->chunk_rows = mem_try_new(n, sizeof *m->chunk_rows);
			m->counts = mem_try_new(n, sizeof *m->counts);
			if (!m->chunk || !m->sums || !m->chunk_rows || !m->counts)
				return err_set(e, ERR_MEMORY,
					"no memory for the second moments of layer %u: %zu values", layer, 2 * values);
		}
	return any ? 0 : err_set(e, ERR_INPUT, "--moments: the model has no routed experts");
}

int imatrix_collect_open(
	const struct engine *g, bool moments, struct imatrix_collect **out, struct err *e)
{
	*out = NULL;
	if (gguf_find(engine_gguf(g), GGUF_SHARED_DATA_KEY)) /* a product is known by its weight */
		return err_set(e, ERR_INPUT,
			"%s: layers share their data (synth --alias), so their inputs cannot be kept apart",
			gguf_path(engine_gguf(g)));
	struct imatrix_collect *c = NEW(struct imatrix_collect);
	int rc = 0;
	c->file = engine_gguf(g);
	c->config = engine_config(g);
	c->observer = (struct model_observer){add_rows, c};
	c->layers = mem_new(c->config->n_layers, sizeof *c->layers);
	for (uint32_t layer = 0; layer < c->config->n_layers; layer++)
		for (int i = 0; i < OBSERVED_INPUTS && !rc; i++) {
			struct input_sums *s = &c->layers[layer][i];
			observed_shape(c->config, layer, (enum observed_input)i, &s->n_matrices, &s->n_in);
			const bool experts = i == OBSERVED_EXPERT || i == OBSERVED_EXPERT_DOWN;
			s->n_counts = experts ? s->n_matrices : 1; /* every head sees every token */
			rc = s->n_in ? sums_init(s, e) : 0;
		}
	if (!rc && moments)
		rc = moments_init(c, e);
	if (rc) {
		imatrix_collect_close(c);
		c = NULL;
	}
	*out = c;
	return rc;
}

void imatrix_collect_close(struct imatrix_collect *c)
{
	if (!c)
		return;
	for (uint32_t layer = 0; layer < c->config->n_layers; layer++)
		for (int i = 0; i < OBSERVED_INPUTS; i++) {
			struct input_sums *s = &c->layers[layer][i];
			free(s->chunk);
			free(s->chunk_rows);
			free(s->sum2);
			free(s->counts);
		}
	for (uint32_t layer = 0; c->moments && layer < c->config->n_layers; layer++)
		for (int i = 0; i < 2; i++) {
			struct moment_sums *m = &c->moments[layer][i];
			free(m->chunk);
			free(m->sums);
			free(m->chunk_rows);
			free(m->counts);
		}
	free(c->moments);
	free(c->layers);
	free(c);
}

const struct model_observer *imatrix_collect_observer(const struct imatrix_collect *c)
{
	return &c->observer;
}

/* ---- chunks ---- */

/* keep: adds the chunk to the sums. Both ways it is empty afterwards. False: a sum is not finite.
 */
static bool end_chunk(struct input_sums *s, bool keep)
{
	bool finite = true;
	for (uint32_t m = 0; m < s->n_matrices; m++) {
		double *chunk = s->chunk + (size_t)m * s->n_in;
		float *sum2 = s->sum2 + (size_t)m * s->n_in;
		if (!s->chunk_rows[m])
			continue;
		for (uint32_t k = 0; keep && k < s->n_in; k++) {
			sum2[k] = (float)((double)sum2[k] + chunk[k]);
			finite = finite && sum2[k] < IMATRIX_SUM_LIMIT; /* false for NaN */
		}
		if (keep && m < s->n_counts)
			s->counts[m] += (float)s->chunk_rows[m];
		memset(chunk, 0, s->n_in * sizeof *chunk);
		s->chunk_rows[m] = 0;
	}
	return finite;
}

/* The same for moments. Sums that are not finite come from inputs whose squares are not. */
static void end_chunk_moments(struct moment_sums *m, bool keep)
{
	const size_t n = moments_of(m);
	for (uint32_t i = 0; i < m->n_matrices; i++) {
		if (!m->chunk_rows[i])
			continue;
		for (size_t k = 0; keep && k < n; k++)
			m->sums[i * n + k] += m->chunk[i * n + k];
		if (keep)
			m->counts[i] += (float)m->chunk_rows[i];
		memset(m->chunk + i * n, 0, n * sizeof *m->chunk);
		m->chunk_rows[i] = 0;
	}
}

static void tensor_name(
	char *out, size_t size, uint32_t layer, enum observed_input input, const char *name)
{
	if (input == OBSERVED_HEAD)
		snprintf(out, size, "%s.weight", name);
	else
		snprintf(out, size, "blk.%u.%s.weight", layer, name);
}

static void end_all_moments(struct imatrix_collect *c, bool keep)
{
	for (uint32_t layer = 0; c->moments && layer < c->config->n_layers; layer++)
		for (int i = 0; i < 2; i++)
			end_chunk_moments(&c->moments[layer][i], keep);
}

int imatrix_collect_keep(struct imatrix_collect *c, struct err *e)
{
	int rc = 0;
	end_all_moments(c, true);
	for (uint32_t layer = 0; layer < c->config->n_layers; layer++)
		for (int i = 0; i < OBSERVED_INPUTS; i++) {
			if (end_chunk(&c->layers[layer][i], true) || rc)
				continue;
			char name[96];
			enum observed_input input = (enum observed_input)i;
			tensor_name(name, sizeof name, layer, input,
				observed_tensors(input, config_is_moe(c->config, layer))[0]);
			rc = err_set(e, ERR_RUN, "an activation that goes into %s is not finite", name);
		}
	return rc;
}

void imatrix_collect_drop(struct imatrix_collect *c)
{
	end_all_moments(c, false);
	for (uint32_t layer = 0; layer < c->config->n_layers; layer++)
		for (int i = 0; i < OBSERVED_INPUTS; i++)
			end_chunk(&c->layers[layer][i], false);
}

/* ---- sets ---- */

/* Calls `each` for every tensor of the file that has an input. */
static int walk_tensors(const struct imatrix_collect *c,
	int (*each)(void *user, const char *name, struct input_sums *s), void *user)
{
	int rc = 0;
	for (uint32_t layer = 0; layer < c->config->n_layers; layer++)
		for (int i = 0; i < OBSERVED_INPUTS; i++) {
			struct input_sums *s = &c->layers[layer][i];
			enum observed_input input = (enum observed_input)i;
			const char *const *names = observed_tensors(input, config_is_moe(c->config, layer));
			for (; s->n_in && *names && !rc; names++) {
				char name[96];
				tensor_name(name, sizeof name, layer, input, *names);
				if (gguf_find_tensor(c->file, name))
					rc = each(user, name, s);
			}
		}
	return rc;
}

static int fill_tensor(void *user, const char *name, struct input_sums *s)
{
	imatrix_set_add_tensor(
		user, name, (uint64_t)s->n_matrices * s->n_in, s->n_counts, s->sum2, s->counts, false);
	return 0;
}

/* Calls `each` for the moments of every layer that has them. */
static int walk_moments(const struct imatrix_collect *c,
	int (*each)(void *user, const char *name, struct moment_sums *m), void *user)
{
	int rc = 0;
	for (uint32_t layer = 0; c->moments && layer < c->config->n_layers; layer++)
		for (int i = 0; i < 2 && !rc; i++) {
			char tensor[96], name[IMATRIX_MOMENTS_NAME];
			tensor_name(tensor, sizeof tensor, layer, OBSERVED_EXPERT,
				i ? "ffn_down_exps" : "ffn_gate_exps");
			if (c->moments[layer][i].n_matrices && imatrix_moments_name(tensor, name))
				rc = each(user, name, &c->moments[layer][i]);
		}
	return rc;
}

static int fill_moments(void *user, const char *name, struct moment_sums *m)
{
	imatrix_set_add_tensor(
		user, name, m->n_matrices * moments_of(m), m->n_matrices, m->sums, m->counts, false);
	return 0;
}

void imatrix_collect_fill(const struct imatrix_collect *c, struct imatrix_set *s)
{
	walk_tensors(c, fill_tensor, s);
	walk_moments(c, fill_moments, s);
	imatrix_set_sort(s);
}

struct restoring {
	const struct imatrix_set *from;
	const char *path;
	struct err *e;
};

static int check_entry(struct restoring *r, const char *name, uint64_t n_values, uint64_t n_counts)
{
	const struct imatrix_tensor *t = imatrix_set_find(r->from, name);
	if (!t || t->n_values != n_values || t->n_counts != n_counts)
		return err_set(
			r->e, ERR_INPUT, "%.400s: %s is missing or has another shape", r->path, name);
	return 0;
}

static int check_moments(void *user, const char *name, struct moment_sums *m)
{
	return check_entry(user, name, m->n_matrices * moments_of(m), m->n_matrices);
}

static int restore_moments(void *user, const char *name, struct moment_sums *m)
{
	const struct restoring *r = user;
	const struct imatrix_tensor *t = imatrix_set_find(r->from, name);
	memcpy(m->sums, t->sum2, t->n_values * sizeof *m->sums);
	memcpy(m->counts, t->counts, t->n_counts * sizeof *m->counts);
	return 0;
}

static int check_restored(void *user, const char *name, struct input_sums *s)
{
	return check_entry(user, name, (uint64_t)s->n_matrices * s->n_in, s->n_counts);
}

static int restore_tensor(void *user, const char *name, struct input_sums *s)
{
	const struct restoring *r = user;
	const struct imatrix_tensor *t = imatrix_set_find(r->from, name);
	memcpy(s->sum2, t->sum2, (size_t)s->n_matrices * s->n_in * sizeof *s->sum2);
	memcpy(s->counts, t->counts, s->n_counts * sizeof *s->counts);
	return 0;
}

int imatrix_collect_restore(
	struct imatrix_collect *c, const struct imatrix_set *from, const char *path, struct err *e)
{
	struct restoring r = {from, path, e};
	int rc = walk_tensors(c, check_restored, &r);
	if (!rc)
		rc = walk_moments(c, check_moments, &r);
	if (!rc)
		rc = walk_tensors(c, restore_tensor, &r);
	return rc ? rc : walk_moments(c, restore_moments, &r);
}
