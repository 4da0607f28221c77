/* SPDX-License-Identifier: MIT */
/*
 * The card's quantisers (kernels/cuda/quant), compiled for the CPU, against src/quant: the same
 * bytes for every type, from BF16, F16, F32 and scaled FP8, with and without importance.
 * tests/quant/test_quantize_cuda.c runs them on a card.
 */
#include "kernels/cuda/quant/affine_quant.cuh"
#include "kernels/cuda/quant/feedback_quant.cuh"
#include "kernels/cuda/quant/iq2_quant.cuh"
#include "kernels/cuda/quant/sym_quant.cuh"
#include "src/base/num.h"
#include "src/quant/iq_grids.h"
#include "src/quant/quantize.h"
#include "tests/quant/quant_inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 20, COLS = 1024 };

static const struct quant_team alone = {0, 1, 1};

/* One block of `type`, by the card's code. */
static void encode_block(enum dtype type, const struct raw_matrix *m, uint64_t row, uint64_t col,
	const float *importance, struct plain_fit *fit, void *out)
{
	static struct quant_state s;
	static struct iq2_state iq2;
	const float *w = importance ? importance + col : NULL;
	switch (type) {
	case DTYPE_Q2_K:
		team_encode_q2_k(&s, alone, m, row, col, w, fit, out);
		break;
	case DTYPE_Q3_K:
		team_encode_q3_k(&s, alone, m, row, col, w, fit, out);
		break;
	case DTYPE_Q4_K:
		team_encode_q4_k(&s, alone, m, row, col, w, fit, out);
		break;
	case DTYPE_Q5_K:
		team_encode_q5_k(&s, alone, m, row, col, w, fit, out);
		break;
	case DTYPE_Q6_K:
		team_encode_q6_k(&s, alone, m, row, col, w, fit, out);
		break;
	case DTYPE_Q8_0:
		encode_small_q8_0(m, row, col, w, out);
		break;
	case DTYPE_Q4_0:
		encode_small_q4_0(m, row, col, w, out);
		break;
	case DTYPE_IQ2_XXS:
		team_encode_iq2_xxs(&iq2, alone, true, 0, iq2xxs_grid, m, row, col, w, fit, out);
		break;
	default:
		fail();
	}
}

/* The same with error feedback: plain, then over its bytes. */
static void feed_block(enum dtype type, const struct raw_matrix *m, uint64_t row, uint64_t col,
	const float *importance, const struct quant_feedback *f, void *out)
{
	static struct feedback_state st;
	struct plain_fit fit;
	encode_block(type, m, row, col, importance, &fit, out);
	if (!fit.any || !f->correlated)
		return;
	switch (type) {
	case DTYPE_Q2_K:
		team_feedback_q2_k(&st, alone, m, row, col, f, &fit, out);
		break;
	case DTYPE_Q3_K:
		team_feedback_q3_k(&st, alone, m, row, col, f, &fit, out);
		break;
	case DTYPE_Q4_K:
		team_feedback_q4_k(&st, alone, m, row, col, f, &fit, out);
		break;
	case DTYPE_Q5_K:
		team_feedback_q5_k(&st, alone, m, row, col, f, &fit, out);
		break;
	case DTYPE_Q6_K:
		team_feedback_q6_k(&st, alone, m, row, col, f, &fit, out);
		break;
	case DTYPE_IQ2_XXS:
		team_feedback_iq2_xxs(&st, alone, m, row, col, f, &fit, iq2xxs_grid, out);
		break;
	default:
		fail();
	}
}

static void compare_type(enum dtype type, enum quant_input input, enum dtype from, bool weighted)
{
	static float row[COLS];
	struct quant_matrix q;
	uint64_t bytes;
	quant_matrix_init(&q, from, ROWS, COLS, input, 7 * (uint64_t)type + (uint64_t)input);
	const uint32_t step = dtype_info(type)->block_values, size = dtype_info(type)->block_bytes;
	const float *importance = weighted ? q.importance : NULL;
	assert_true(dtype_row_bytes(type, COLS, &bytes));
	uint8_t *want = malloc(bytes), *got = malloc(bytes);
	for (uint64_t r = 0; r < ROWS; r++) {
		raw_matrix_rows(&q.m, r, r + 1, row);
		quantize_row(type, row, want, COLS, importance);
		memset(got, 0xa5, bytes);
		for (uint64_t c = 0; c < COLS; c += step)
			encode_block(type, &q.m, r, c, importance, NULL, got + c / step * size);
		for (uint64_t i = 0; i < bytes; i++)
			if (want[i] != got[i])
				fail_msg("%s of %s, input %s%s, row %d, block %d: byte %d is %02x, %02x expected",
					dtype_name(type), dtype_name(from), quant_input_name(input),
					weighted ? ", weighted" : "", (int)r, (int)(i / size), (int)(i % size), got[i],
					want[i]);
	}
	free(want);
	free(got);
	quant_matrix_fini(&q);
}

static void test_same_bytes(void **state)
{
	(void)state;
	for (size_t t = 0; t < QUANT_CARD_TYPES; t++)
		for (int input = 0; input < QUANT_INPUTS; input++)
			for (int weighted = 0; weighted < 2; weighted++)
				compare_type(
					quant_card_types[t], (enum quant_input)input, DTYPE_F32, weighted != 0);
}

static void test_feedback(void **state)
{
	(void)state;
	static float row[COLS], importance[COLS];
	static const enum quant_input inputs[] = {QUANT_GAUSS, QUANT_HEAVY, QUANT_SPARSE};
	for (size_t k = 0; k < ARRAY_LEN(inputs); k++) {
		struct quant_matrix q;
		quant_matrix_init(&q, DTYPE_BF16, ROWS, COLS, inputs[k], 5);
		struct quant_feedback *f =
			quant_inputs_feedback(COLS, k == 1 ? q.importance : NULL, importance);
		for (size_t t = 0; t < QUANT_CARD_TYPES; t++) {
			const enum dtype type = quant_card_types[t];
			uint64_t bytes;
			assert_true(dtype_row_bytes(type, COLS, &bytes));
			uint8_t *want = malloc(bytes), *got = malloc(bytes);
			const size_t size = dtype_info(type)->block_bytes;
			for (uint64_t r = 0; r < ROWS && quantize_feedback_supported(type); r++) {
				raw_matrix_rows(&q.m, r, r + 1, row);
				quantize_row_feedback(type, row, want, COLS, importance, f);
				for (uint64_t c = 0; c < COLS; c += 256)
					feed_block(type, &q.m, r, c, importance, f + c / 256, got + c / 256 * size);
				for (uint64_t i = 0; i < bytes; i++)
					if (want[i] != got[i])
						fail_msg("%s, %s, row %d: byte %d is %02x, %02x expected", dtype_name(type),
							quant_input_name(inputs[k]), (int)r, (int)i, got[i], want[i]);
			}
			free(want);
			free(got);
		}
		free(f);
		quant_matrix_fini(&q);
	}
}

static void test_sources(void **state)
{
	(void)state;
	static const enum dtype from[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3};
	for (size_t i = 0; i < ARRAY_LEN(from); i++) {
		compare_type(DTYPE_Q2_K, QUANT_GAUSS, from[i], false);
		compare_type(DTYPE_Q8_0, QUANT_HEAVY, from[i], true);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bytes),
		cmocka_unit_test(test_sources),
		cmocka_unit_test(test_feedback),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
