/* SPDX-License-Identifier: MIT */
/* How a conversion is cut into units, and the memory that it takes: at GLM-5.2's shape, with
 * sources of the widest type, by headers alone. */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/convert/convert_pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EMBEDDING, HEAD_ROWS, KEYS, EXPERTS, OUTPUT, N_TENSORS };

static struct safetensors_tensor source = {.name = "source", .dtype = ST_F32};
static struct convert_plan plan;
static bool feedback[N_TENSORS], has_importance[N_TENSORS];
static const struct convert_choices choices = {&plan, feedback, NULL, has_importance};
static struct gguf_writer *writer;

static void add(const char *name, enum dtype type, uint64_t rows, uint64_t cols, uint64_t slabs,
	bool transposed)
{
	struct convert_tensor *t = &plan.tensors[plan.n_tensors++];
	struct err e;
	*t = (struct convert_tensor){.name = mem_strdup(name),
		.type = type,
		.n_dims = slabs > 1 ? 3 : 2,
		.ne = {transposed ? rows : cols, transposed ? cols : rows, slabs, 1},
		.slabs = NEW_ARRAY(struct convert_slab, slabs),
		.n_slabs = slabs,
		.src_rows = rows,
		.src_cols = cols,
		.transposed = transposed};
	for (uint64_t i = 0; i < slabs; i++)
		t->slabs[i].src = &source;
	assert_int_equal(gguf_writer_add_tensor(writer, name, type, t->n_dims, t->ne, NULL, &e), 0);
}

static int make_full_plan(void **state)
{
	(void)state;
	struct err e;
	writer = gguf_writer_new(NULL);
	plan.tensors = NEW_ARRAY(struct convert_tensor, N_TENSORS);
	add("token_embd.weight", DTYPE_IQ2_XXS, 154880, 6144, 1, false);
	add("blk.3.attn_output.weight", DTYPE_Q8_0, 6144, 16384, 1, false);
	add("blk.3.attn_k_b.weight", DTYPE_Q8_0, 192, 512, 64, true);
	add("blk.3.ffn_up_exps.weight", DTYPE_Q2_K, 2048, 6144, 256, false);
	add("output.weight", DTYPE_Q8_0, 154880, 6144, 1, false);
	gguf_writer_add_check_values(writer);
	return gguf_writer_plan(writer, &e);
}

static int free_full_plan(void **state)
{
	(void)state;
	gguf_writer_free(writer);
	convert_plan_fini(&plan);
	return 0;
}

/* Every byte of the output exactly once and in order, behind what is done. */
static void walk(const uint64_t *done, const uint64_t *first_byte)
{
	struct convert_units units;
	struct convert_unit u;
	uint64_t at[N_TENSORS];
	uint32_t last = 0;
	memcpy(at, first_byte, sizeof at);
	convert_units_init(&units, &choices);
	while (convert_units_next(&units, writer, done, &u)) {
		assert_true(u.tensor >= last);
		last = u.tensor;
		assert_int_equal(convert_unit_offset(&plan, &u), at[u.tensor]);
		at[u.tensor] += convert_unit_packed_bytes(&plan, &u);
		const uint64_t values = (u.row1 - u.row0) * plan.tensors[u.tensor].src_cols;
		assert_int_equal(convert_unit_source_bytes(&plan, &u), 4 * values);
		assert_true(values <= CONVERT_UNIT_VALUES || u.tensor == EMBEDDING);
	}
	for (size_t i = 0; i < N_TENSORS; i++) {
		uint64_t bytes;
		gguf_writer_place(writer, i, NULL, NULL, &bytes);
		assert_int_equal(at[i], bytes);
	}
	convert_units_fini(&units);
}

static void test_units(void **state)
{
	(void)state;
	static const uint64_t none[N_TENSORS];
	uint64_t done[N_TENSORS] = {1, 0, 1, 100, 0}, from[N_TENSORS], bytes;
	walk(none, none);
	assert_int_equal(convert_pieces(&plan, writer, EXPERTS), 256);
	assert_int_equal(convert_pieces(&plan, writer, KEYS), 1);
	for (size_t i = 0; i < N_TENSORS; i++) {
		gguf_writer_place(writer, i, NULL, NULL, &bytes);
		from[i] = bytes * done[i] / convert_pieces(&plan, writer, i);
	}
	walk(done, from);
}

static void test_memory(void **state)
{
	(void)state;
	static const uint32_t workers[] = {1, 2, 16, 128, 512, 1024};
	for (int with = 0; with < 2; with++) {
		feedback[EXPERTS] = with;
		for (size_t i = 0; i < ARRAY_LEN(workers); i++)
			for (int card = 0; card < 2; card++) {
				uint32_t n;
				const uint64_t bytes = convert_memory(&choices, workers[i], card, &n);
				assert_true(n >= 2);
				if (workers[i] <= 128)
					assert_true(n >= MIN(workers[i], 16));
				if (!with || workers[i] <= 128)
					assert_in_range(bytes, 1, 8000000000u);
			}
	}
	feedback[EXPERTS] = false;
}

/* Slabs of a tensor whose sources have other types: slots hold the widest, wherever it is. */
static void test_memory_of_mixed_types(void **state)
{
	(void)state;
	static struct safetensors_tensor narrow = {.name = "narrow", .dtype = ST_BF16};
	struct convert_slab *experts = plan.tensors[EXPERTS].slabs;
	uint32_t n, n_wide;
	for (size_t i = 0; i < N_TENSORS; i++)
		for (uint64_t k = 0; k < plan.tensors[i].n_slabs; k++)
			plan.tensors[i].slabs[k].src = &narrow;
	const uint64_t bytes = convert_memory(&choices, 2, false, &n);
	experts[255].src = &source;
	const uint64_t wide = convert_memory(&choices, 2, false, &n_wide);
	assert_int_equal(n, n_wide);
	/* the widest unit was one of CONVERT_UNIT_VALUES values of two bytes; an expert has 3/4 of
	 * them, of four bytes now */
	assert_int_equal(CONVERT_UNIT_VALUES / 4 * 3, 2048 * 6144);
	assert_int_equal(wide - bytes, n * (uint64_t)CONVERT_UNIT_VALUES);
	for (size_t i = 0; i < N_TENSORS; i++)
		for (uint64_t k = 0; k < plan.tensors[i].n_slabs; k++)
			plan.tensors[i].slabs[k].src = &source;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_units),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_memory_of_mixed_types),
	};
	return cmocka_run_group_tests(tests, make_full_plan, free_full_plan);
}
