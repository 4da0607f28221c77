/* SPDX-License-Identifier: MIT */
/*
 * The card's quantizer against the CPU's: the same bytes for every type and input, with and without
 * importance, by the energy of the columns, with error feedback; and the place of a value that is
 * not finite. Exits with 77 where no card answers.
 *
 *   test_quantize_cuda            20,000 blocks a type
 *   test_quantize_cuda BLOCKS     so many, of blocks of 256
 */
#include "kernels/quantizer.h"
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "tests/quant/quant_inputs.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { COLS = 2048, PARTS = 16 };

static uint64_t n_blocks = 20000;
static struct quantizer *card, *cpu;

/* The CPU's bytes, by several threads. */
struct part {
	struct quantize_task task;
	pthread_t thread;
};

static void *run_part(void *arg)
{
	struct part *p = arg;
	struct quantizer *q;
	struct err e = {0};
	uint64_t bad;
	if (quantizer_cpu_open(&q, &e) || q->ops->run(q, &p->task, &bad, &e))
		fail_msg("%s", e.text);
	q->ops->close(q);
	return NULL;
}

static void run_cpu(const struct quantize_task *t)
{
	struct part parts[PARTS];
	uint64_t row_bytes = 0;
	const uint64_t each = (t->source.rows + PARTS - 1) / PARTS,
				   value = dtype_info(t->source.type)->block_bytes;
	assert_true(dtype_row_bytes(t->type, COLS, &row_bytes));
	if (t->energy || t->source.scales) { /* not by rows */
		parts[0].task = *t;
		run_part(&parts[0]);
		return;
	}
	for (uint64_t i = 0; i < PARTS; i++) {
		struct quantize_task *p = &parts[i].task;
		const uint64_t first = MIN(i * each, t->source.rows);
		*p = *t;
		p->source.rows = MIN(each, t->source.rows - first);
		p->source.values = (const uint8_t *)t->source.values + first * COLS * value;
		p->packed = (uint8_t *)t->packed + first * row_bytes;
		assert_int_equal(pthread_create(&parts[i].thread, NULL, run_part, &parts[i]), 0);
	}
	for (int i = 0; i < PARTS; i++)
		pthread_join(parts[i].thread, NULL);
}

/* The same bytes of both; returns how many weights a second the card did.
 * weighting: 0 none, 1 importance, 2 by the energy of the columns. */
static double compare_backends(enum dtype type, const struct quant_matrix *q,
	enum quant_input input, int weighting, const struct quant_feedback *feedback)
{
	struct err e = {0};
	uint64_t row_bytes = 0, bad = 0;
	assert_true(dtype_row_bytes(type, COLS, &row_bytes));
	const size_t bytes = q->m.rows * row_bytes;
	uint8_t *want = mem_new(bytes, 1), *got = mem_new(bytes, 1);
	struct quantize_task task = {.source = q->m,
		.type = type,
		.importance = weighting == 1 ? q->importance : NULL,
		.energy = weighting == 2,
		.feedback = feedback,
		.packed = got};
	assert_true(card->ops->supports(&task));
	const uint64_t start = clock_ns();
	if (card->ops->run(card, &task, &bad, &e))
		fail_msg("%s", e.text);
	const double seconds = (double)(clock_ns() - start) * 1e-9;
	assert_true(bad == QUANTIZE_ALL_FINITE);
	task.packed = want;
	run_cpu(&task);
	const uint32_t size = dtype_info(type)->block_bytes;
	uint64_t wrong = 0, first = 0;
	for (uint64_t i = bytes / size; i-- > 0;)
		if (memcmp(want + i * size, got + i * size, size) != 0) {
			wrong++;
			first = i;
		}
	if (wrong)
		fail_msg("%s of %s, %s, weighting %d: %llu of %llu blocks differ, the first is %llu",
			dtype_name(type), dtype_name(q->m.type), quant_input_name(input), weighting,
			(unsigned long long)wrong, (unsigned long long)(bytes / size),
			(unsigned long long)first);
	free(want);
	free(got);
	return (double)(q->m.rows * COLS) / seconds;
}

static void test_card_types(void **state)
{
	(void)state;
	const uint64_t rows = MAX(1, n_blocks * 256 / COLS / (2 * QUANT_INPUTS));
	double rate[QUANT_CARD_TYPES] = {0};
	for (int input = 0; input < QUANT_INPUTS; input++) {
		struct quant_matrix q;
		quant_matrix_init(&q, DTYPE_F32, rows, COLS, (enum quant_input)input, (uint64_t)input);
		for (size_t t = 0; t < QUANT_CARD_TYPES; t++)
			for (int weighting = 0; weighting < 2; weighting++) {
				const double r = compare_backends(
					quant_card_types[t], &q, (enum quant_input)input, weighting, NULL);
				rate[t] = MAX(rate[t], r);
			}
		quant_matrix_fini(&q);
	}
	for (size_t t = 0; t < QUANT_CARD_TYPES; t++)
		print_message("%-8s %llu blocks, the same bytes; up to %.2f 10^9 weights/s\n",
			dtype_name(quant_card_types[t]),
			(unsigned long long)(2 * QUANT_INPUTS * rows * COLS /
								 dtype_info(quant_card_types[t])->block_values),
			rate[t] * 1e-9);
}

static void test_card_sources(void **state)
{
	(void)state;
	static const enum dtype from[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3};
	for (size_t i = 0; i < ARRAY_LEN(from); i++) {
		struct quant_matrix q;
		quant_matrix_init(&q, from[i], 300, COLS, QUANT_HEAVY, 3);
		for (size_t t = 0; t < QUANT_CARD_TYPES; t++)
			compare_backends(quant_card_types[t], &q, QUANT_HEAVY, 1, NULL);
		compare_backends(DTYPE_IQ2_XXS, &q, QUANT_HEAVY, 2, NULL);
		compare_backends(DTYPE_Q2_K, &q, QUANT_HEAVY, 2, NULL);
		quant_matrix_fini(&q);
	}
}

static void test_card_feedback(void **state)
{
	(void)state;
	static const enum quant_input inputs[] = {QUANT_GAUSS, QUANT_HEAVY, QUANT_SPARSE};
	const uint64_t rows = MAX(1, n_blocks * 256 / COLS / 20);
	for (size_t i = 0; i < ARRAY_LEN(inputs); i++) {
		struct quant_matrix q;
		quant_matrix_init(&q, DTYPE_BF16, rows, COLS, inputs[i], 9);
		struct quant_feedback *f = quant_inputs_feedback(COLS, q.importance, q.importance);
		for (size_t t = 0; t < QUANT_CARD_TYPES; t++)
			if (quantize_feedback_supported(quant_card_types[t])) {
				const double rate = compare_backends(quant_card_types[t], &q, inputs[i], 1, f);
				if (!i)
					print_message("%-8s with feedback, %.2f 10^9 weights/s\n",
						dtype_name(quant_card_types[t]), rate * 1e-9);
			}
		free(f);
		quant_matrix_fini(&q);
	}
}

static void test_not_finite(void **state)
{
	(void)state;
	struct quant_matrix q;
	struct err e = {0};
	uint64_t bad = 0, row_bytes = 0;
	quant_matrix_init(&q, DTYPE_F32, 100, COLS, QUANT_GAUSS, 1);
	assert_true(dtype_row_bytes(DTYPE_Q2_K, COLS, &row_bytes));
	uint8_t *out = mem_new(100, row_bytes);
	float *values = q.values;
	values[70 * COLS + 5] = INFINITY;
	values[70 * COLS + 9] = NAN;
	values[99 * COLS] = NAN;
	struct quantize_task task = {.source = q.m, .type = DTYPE_Q2_K, .packed = out};
	struct quantizer *both[] = {card, cpu};
	for (size_t i = 0; i < ARRAY_LEN(both); i++) {
		assert_int_equal(both[i]->ops->run(both[i], &task, &bad, &e), 0);
		assert_true(bad == 70 * COLS + 5);
	}
	task.transposed = true;
	assert_false(card->ops->supports(&task));
	free(out);
	quant_matrix_fini(&q);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_card_types),
		cmocka_unit_test(test_card_sources),
		cmocka_unit_test(test_card_feedback),
		cmocka_unit_test(test_not_finite),
	};
	struct err e = {0};
	if (argc > 1)
		n_blocks = strtoull(argv[1], NULL, 10);
	if (quantizer_card_open(&card, &e)) {
		printf("skipped: %s\n", e.text);
		return 77;
	}
	if (quantizer_cpu_open(&cpu, &e)) {
		printf("%s\n", e.text);
		return 1;
	}
	const int rc = cmocka_run_group_tests(tests, NULL, NULL);
	card->ops->close(card);
	cpu->ops->close(cpu);
	return rc;
}
