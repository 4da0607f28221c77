/* SPDX-License-Identifier: MIT */
/*
 * The op `draw` of each backend that answers here against draw_row: equal to the last bit.
 *
 *   test_backend_draw           all backends
 *   test_backend_draw cuda      fails where no card answers
 */
#include "kernels/backend.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/draw/draw.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct backend *backends[2];
static int n_backends;

/* Rows of every kind that decides something: flat, normal, peaked, few values, holes, damage. */
static void fill_row(float *x, int32_t n, int kind, struct rng *r)
{
	for (int32_t i = 0; i < n; i++) {
		double u = rng_unit(r), normal = sqrt(-2 * log(1 - u)) * cos(6.283185307 * rng_unit(r));
		x[i] = kind == 0   ? 0.25f
			   : kind == 1 ? (float)(2 * normal)
			   : kind == 2 ? (float)normal - 14
						   : (float)rng_below(r, 6) - 2;
	}
	if (kind == 2)
		x[rng_below(r, (uint32_t)n)] = 3;
	for (int32_t i = 0; kind == 4 && i < n; i++)
		if (rng_below(r, 4))
			x[i] = rng_below(r, 2) ? NAN : -INFINITY;
	for (int32_t i = 0; kind == 5 && i < n; i++)
		x[i] = NAN;
	if (kind == 6)
		x[rng_below(r, (uint32_t)n)] = INFINITY;
}

static void check_rows(struct backend *b, int32_t n, int64_t stride, int rows, struct rng *r)
{
	static const double temperatures[] = {1, 0.6, 1.7, 0.05, 1e-6, 0};
	struct err e = {0};
	size_t bytes = (size_t)rows * (size_t)stride * sizeof(float);
	float *host = NEW_ARRAY(float, (size_t)rows *(size_t)stride), *logits,
		  *maxima = NEW_ARRAY(float, draw_blocks(n));
	struct draw_request requests[DRAW_ROWS_MAX], copy[DRAW_ROWS_MAX];
	struct draw_result *out, want;
	for (int i = 0; i < rows; i++) {
		for (int64_t k = n; k < stride; k++)
			host[i * stride + k] = INFINITY; /* padding: not to be looked at */
		fill_row(host + i * stride, n, (int)rng_below(r, 7), r);
		double t = temperatures[rng_below(r, ARRAY_LEN(temperatures))];
		requests[i] = (struct draw_request){
			.noise = {rng_u64(r), (uint32_t)rng_u64(r)}, .inv_t = t > 0 ? 1 / t : 0};
		requests[i].sums = requests[i].inv_t > 0 && rng_below(r, 3);
		requests[i].mass = !rng_below(r, 3);
	}
	assert_int_equal(b->ops->alloc(b, MEM_DEVICE, bytes, (void **)&logits, &e), 0);
	assert_int_equal(
		b->ops->alloc(b, MEM_SHARED, (size_t)rows * sizeof *out, (void **)&out, &e), 0);
	b->ops->upload(b, logits, host, bytes);
	memcpy(copy, requests, sizeof copy);
	b->ops->draw(b, logits, stride, n, copy, rows, out);
	memset(copy, 0xff, sizeof copy); /* it has been read */
	assert_int_equal(b->ops->wait(b, &e), 0);
	for (int i = 0; i < rows; i++) {
		draw_row(host + i * stride, n, &requests[i], maxima, &want);
		bool same_logit = isnan(want.logit) ? isnan(out[i].logit) : out[i].logit == want.logit;
		if (!same_logit || out[i].id != want.id || out[i].best != want.best ||
			out[i].top != want.top || out[i].finite != want.finite ||
			out[i].n_before != want.n_before || out[i].mass_before != want.mass_before ||
			out[i].mass != want.mass)
			fail_msg("%s: row %d of %d, n %d, temperature %g: id %d best %d before %u "
					 "%llu of %llu; expected %d %d %u %llu of %llu",
				b->ops->name, i, rows, n, 1 / requests[i].inv_t, out[i].id, out[i].best,
				out[i].n_before, (unsigned long long)out[i].mass_before,
				(unsigned long long)out[i].mass, want.id, want.best, want.n_before,
				(unsigned long long)want.mass_before, (unsigned long long)want.mass);
	}
	b->ops->free(b, MEM_DEVICE, logits, bytes);
	b->ops->free(b, MEM_SHARED, out, (size_t)rows * sizeof *out);
	free(host);
	free(maxima);
}

static void test_draw(void **state)
{
	(void)state;
	static const int32_t lengths[] = {1, 5, 127, 128, 129, 255, 1023, 1024, 1025, 8040, 154856};
	for (int k = 0; k < n_backends; k++) {
		struct rng r = {77};
		for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
			for (int round = 0; round < (lengths[i] < 100000 ? 20 : 4); round++) {
				int rows = round == 1 ? DRAW_ROWS_MAX : 1 + (int)rng_below(&r, 9);
				if (lengths[i] > 100000)
					rows = MIN(rows, 9);
				check_rows(backends[k], lengths[i], lengths[i] + rng_below(&r, 30), rows, &r);
			}
	}
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"cpu", "cuda"};
	bool must = argc > 1 && !strcmp(argv[1], "cuda");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct err e = {0};
		const struct backend_options options = {.name = names[i]};
		if (!backend_open(&options, &backends[n_backends], &e))
			print_message("%s\n", backend_describe(backends[n_backends++]));
		else if (!i || must)
			return fprintf(stderr, "%s\n", e.text), 1;
	}
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_draw)};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	for (int i = 0; i < n_backends; i++)
		backends[i]->ops->close(backends[i]);
	return rc;
}
