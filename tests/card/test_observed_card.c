/* SPDX-License-Identifier: MIT */
/*
 * What a card tells an observer of its products against what the CPU tells: the same products with
 * the same rows, values within TOLERANCE of the largest of a row, over the cases of op_cases.h.
 * Exits with 77 where no card answers.
 */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tests/kernels/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PRODUCTS_MAX 256
#define TOLERANCE    1e-4f /* of prompts in two passes */

/* The input of a product. Of an expert's matrix: of all calls that name the job. */
struct seen_input {
	const void *job; /* its list of slots, which a case has once; NULL: a resident matrix */
	int which;       /* of a job: 0 gate, 1 up, 2 down */
	int64_t n_in, n_out, n_stack;
	float *values; /* [n][n_stack][n_in] */
	int n;
};

struct record {
	struct seen_input of[PRODUCTS_MAX];
	int n;
};

static struct backend *card, *processor;

static struct seen_input *seen_of(struct record *r, const struct product_input *in)
{
	const struct expert_job *job = in->expert;
	const int which = !job ? 0 : in->w == &job->up ? 1 : in->w == &job->down ? 2 : 0;
	for (int i = 0; job && i < r->n; i++)
		if (r->of[i].job == job->token_slots && r->of[i].which == which)
			return &r->of[i];
	if (r->n == PRODUCTS_MAX)
		bug("more than %d products", PRODUCTS_MAX);
	struct seen_input *s = &r->of[r->n++];
	*s = (struct seen_input){.job = job ? job->token_slots : NULL,
		.which = which,
		.n_in = in->w->n_in,
		.n_out = in->w->n_out,
		.n_stack = in->w->n_stack};
	return s;
}

static void keep(void *user, const struct product_input *in)
{
	struct seen_input *s = seen_of(user, in);
	const size_t row = (size_t)(s->n_stack * s->n_in);
	s->values = mem_grow(s->values, (size_t)(s->n + in->n) * row, sizeof(float));
	for (int i = 0; i < in->n; i++, s->n++)
		for (int64_t k = 0; k < s->n_stack; k++)
			memcpy(s->values + (size_t)s->n * row + (size_t)(k * s->n_in),
				in->x + k * in->stack_step +
					(in->index ? in->index[i] / in->divisor : i) * in->stride,
				(size_t)s->n_in * sizeof(float));
}

static void observe(struct backend *b, const struct op_case *c, struct record *r)
{
	const struct product_observer observer = {keep, r};
	b->observer = &observer;
	free(op_case_run(b, c, 0, c->rows));
	b->observer = NULL;
}

static int compare_order(const void *a, const void *b)
{
	const struct seen_input *x = a, *y = b;
	if ((x->job != NULL) != (y->job != NULL))
		return x->job ? 1 : -1;
	return x->which - y->which;
}

/* The order of gates, of ups and of downs is that of the jobs on both sides. */
static void by_matrix(struct record *r)
{
	for (int i = 1; i < r->n; i++) /* stable */
		for (int k = i; k && compare_order(&r->of[k - 1], &r->of[k]) > 0; k--) {
			const struct seen_input s = r->of[k];
			r->of[k] = r->of[k - 1];
			r->of[k - 1] = s;
		}
}

static void check_inputs(
	const struct op_case *c, const struct seen_input *want, const struct seen_input *got)
{
	if (want->n != got->n || want->n_in != got->n_in || want->n_out != got->n_out ||
		want->n_stack != got->n_stack || want->which != got->which)
		fail_msg("%s %s: %d rows of %lld values into %lld, on the card %d of %lld into %lld",
			op_names[c->op], c->name, want->n, (long long)want->n_in, (long long)want->n_out,
			got->n, (long long)got->n_in, (long long)got->n_out);
	for (int64_t r = 0; r < want->n * want->n_stack; r++) {
		const float *a = want->values + r * want->n_in, *b = got->values + r * want->n_in;
		float most = 0;
		for (int64_t k = 0; k < want->n_in; k++)
			most = fmaxf(most, fabsf(a[k]));
		for (int64_t k = 0; k < want->n_in; k++)
			if (!(fabsf(a[k] - b[k]) <= TOLERANCE * most))
				fail_msg("%s %s: value %lld of row %lld: %g, on the card %g", op_names[c->op],
					c->name, (long long)k, (long long)r, (double)a[k], (double)b[k]);
	}
}

static void free_record(struct record *r)
{
	for (int i = 0; i < r->n; i++)
		free(r->of[i].values);
}

static void test_every_case(void **state)
{
	(void)state;
	int n_seen = 0;
	for (int i = 0; i < op_cases_n; i++) {
		struct record want = {.n = 0}, got = {.n = 0};
		observe(processor, &op_cases[i], &want);
		observe(card, &op_cases[i], &got);
		by_matrix(&want);
		by_matrix(&got);
		if (want.n != got.n)
			fail_msg("%s %s: %d products, on the card %d", op_names[op_cases[i].op],
				op_cases[i].name, want.n, got.n);
		for (int k = 0; k < want.n; k++)
			check_inputs(&op_cases[i], &want.of[k], &got.of[k]);
		n_seen += want.n;
		free_record(&want);
		free_record(&got);
	}
	assert_true(n_seen > op_cases_n);
}

int main(void)
{
	struct err e = {0};
	struct backend_options options = {.name = "cuda", .exact_prompts = true};
	if (backend_open(&options, &card, &e)) {
		printf("skipped: %s\n", e.text);
		return 77;
	}
	options = (struct backend_options){.name = "cpu"};
	assert_int_equal(backend_open(&options, &processor, &e), 0);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_case)};
	const int rc = cmocka_run_group_tests(tests, NULL, NULL);
	card->ops->close(card);
	processor->ops->close(processor);
	return rc;
}
