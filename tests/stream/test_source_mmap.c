/* SPDX-License-Identifier: MIT */
/*
 * Experts that are all copied to a device: the views of them against the bytes of the runs, for
 * tensors of one run, of a run for each expert, and with block scales. The device is the CPU
 * backend, which uploads at once.
 */
#include "stream/source_mmap.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXPERTS 3
#define N_IN    256
#define N_OUT   130 /* scales: two rows of blocks of 128 */

struct synthetic_tensor {
	struct gguf_tensor t;
	struct gguf_run runs[EXPERTS], scales[EXPERTS];
};

/* Bytes that nothing else has; the caller frees. */
static uint8_t *some_bytes(uint64_t n)
{
	static uint8_t next;
	uint8_t *b = NEW_ARRAY(uint8_t, n);
	for (uint64_t i = 0; i < n; i++)
		b[i] = (uint8_t)(next + i * 7 + i / 256);
	next = (uint8_t)(next + 53);
	return b;
}

static void make(struct synthetic_tensor *m, enum dtype type, bool runs, uint64_t scales)
{
	uint64_t row;
	assert_true(dtype_row_bytes(type, N_IN, &row));
	const uint64_t matrix = row * N_OUT;
	m->t = (struct gguf_tensor){.name = "blk.0.ffn_up_exps.weight",
		.type = type,
		.ne = {N_IN, N_OUT, EXPERTS, 1},
		.bytes = EXPERTS * (matrix + scales)};
	if (!runs) {
		m->t.data = some_bytes(EXPERTS * matrix);
		return;
	}
	m->t.runs = m->runs;
	m->t.n_runs = EXPERTS;
	m->t.scales = scales ? m->scales : NULL;
	for (int i = 0; i < EXPERTS; i++) {
		m->runs[i] = (struct gguf_run){.bytes = matrix, .data = some_bytes(matrix)};
		m->scales[i] = (struct gguf_run){.bytes = scales, .data = some_bytes(scales)};
	}
}

static void drop(struct synthetic_tensor *m)
{
	free((void *)m->t.data);
	for (int i = 0; i < EXPERTS; i++) {
		free((void *)m->runs[i].data);
		free((void *)m->scales[i].data);
	}
}

static void check_view(const struct weight *w, const struct synthetic_tensor *m, int expert)
{
	const struct gguf_tensor *t = &m->t;
	const uint64_t matrix = gguf_values_bytes(t) / EXPERTS;
	const uint8_t *want = t->runs ? m->runs[expert].data : t->data + (uint64_t)expert * matrix;
	assert_ptr_not_equal(w->data, want);
	assert_memory_equal(w->data, want, matrix);
	if (!t->scales) {
		assert_null(w->scales);
		return;
	}
	assert_ptr_not_equal(w->scales, m->scales[expert].data);
	assert_memory_equal(w->scales, m->scales[expert].data, m->scales[expert].bytes);
}

static void test_copies(void **state)
{
	(void)state;
	static struct synthetic_tensor gate, up, down;
	const struct expert_tensors layers[] = {{NULL, NULL, NULL}, {&gate.t, &up.t, &down.t}};
	struct backend_options options = {.name = "cpu"};
	struct tensor_load_options lo = {0};
	struct expert_source *s;
	struct err e = {0};
	make(&gate, DTYPE_F8_E4M3, true, 16);
	make(&up, DTYPE_Q8_0, false, 0);
	make(&down, DTYPE_BF16, true, 0);
	assert_int_equal(backend_open(&options, &lo.backend, &e), 0);
	assert_int_equal(source_device_open(layers, (int)ARRAY_LEN(layers), &lo, &s, &e), 0);
	struct expert_ref refs[EXPERTS] = {{.id = 2}, {.id = 0}, {.id = 1}};
	assert_int_equal(s->ops->acquire(s, 1, EXPERT_DECODE, refs, EXPERTS, &e), 0);
	for (int i = 0; i < EXPERTS; i++) {
		assert_true(refs[i].ready);
		check_view(&refs[i].gate, &gate, refs[i].id);
		check_view(&refs[i].up, &up, refs[i].id);
		check_view(&refs[i].down, &down, refs[i].id);
	}
	s->ops->close(s);
	lo.backend->ops->close(lo.backend);
	drop(&gate);
	drop(&up);
	drop(&down);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_copies)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
