/* SPDX-License-Identifier: MIT */
/* The GGUF writer against the reader: every kind of value, alignment, split sets, threads,
 * temporary names, resumption. */
#include "src/format/gguf_write.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <signal.h>

#include <cmocka.h>

static bool exists(const char *name)
{
	return access(temp_dir_path(name), F_OK) == 0;
}

static void expect_ok(int code, const struct err *e)
{
	if (code)
		fail_msg("code %d: %s", code, e->text);
}

static void declare_all(struct gguf_writer *w)
{
	gguf_writer_set_str(w, "general.architecture", "glm-dsa");
	gguf_writer_set_u32(w, "k.u32", 4000000000u);
	gguf_writer_set_u64(w, "k.u64", 1ull << 40);
	gguf_writer_set_f32(w, "k.f32", 1e-5f);
	gguf_writer_set_bool(w, "k.bool", true);
	gguf_writer_set_bytes(w, "k.bytes", "a\0b", 3);
	gguf_writer_set_u32s(w, "k.u32s", (uint32_t[]){1, 2, 3}, 3);
	gguf_writer_set_i32s(w, "k.i32s", (int32_t[]){-1, 2}, 2);
	gguf_writer_set_bools(w, "k.bools", (bool[]){true, false, true}, 3);
	gguf_writer_set_strs(w, "k.strs", (struct gguf_str[]){{"", 0}, {"\xc4\xa0x", 3}}, 2);
}

/* Byte k of tensor i. */
static uint8_t content(size_t i, uint64_t k)
{
	return (uint8_t)(i * 37 + k * 11 + (k >> 8));
}

static void write_tensor(struct gguf_writer *w, size_t id)
{
	uint64_t bytes;
	struct err e = {0};
	gguf_writer_place(w, id, NULL, NULL, &bytes);
	uint8_t *data = malloc(bytes);
	for (uint64_t k = 0; k < bytes; k++)
		data[k] = content(id, k);
	uint64_t half = bytes / 2; /* two pieces, the second first */
	expect_ok(gguf_writer_write(w, id, half, data + half, bytes - half, &e), &e);
	expect_ok(gguf_writer_write(w, id, 0, data, half, &e), &e);
	free(data);
}

static void check_tensors(const struct gguf *g, size_t n, uint64_t alignment)
{
	assert_int_equal(g->n_tensors, n);
	for (size_t i = 0; i < n; i++) {
		const struct gguf_tensor *t = &g->tensors[i];
		assert_true(t->offset % alignment == 0);
		for (uint64_t k = 0; k < t->bytes; k++)
			if (t->data[k] != content(i, k))
				fail_msg("tensor %zu differs at byte %llu", i, (unsigned long long)k);
	}
	for (uint32_t f = 0; f < g->n_files; f++)
		assert_true(g->files[f].size % alignment == 0 && g->files[f].alignment == alignment);
}

static void test_round_trip(void **state)
{
	(void)state;
	struct err e = {0};
	struct gguf_writer *w = gguf_writer_new(NULL);
	size_t id = 99;
	declare_all(w);
	expect_ok(gguf_writer_add_tensor(w, "a", DTYPE_F32, 1, (uint64_t[]){5}, &id, &e), &e);
	assert_int_equal(id, 0);
	expect_ok(gguf_writer_add_tensor(w, "b", DTYPE_Q2_K, 3, (uint64_t[]){512, 7, 11}, &id, &e), &e);
	expect_ok(gguf_writer_add_tensor(w, "c", DTYPE_Q8_0, 2, (uint64_t[]){192, 3}, &id, &e), &e);
	expect_ok(gguf_writer_add_tensor(w, "d", DTYPE_BF16, 4, (uint64_t[]){2, 3, 5, 7}, &id, &e), &e);
	assert_int_equal(id, 3);
	expect_ok(gguf_writer_plan(w, &e), &e);
	assert_int_equal(gguf_writer_n_parts(w), 1);
	struct gguf_write_part plan = gguf_writer_part(w, 0);
	assert_true(plan.n_tensors == 4 && plan.tensor_bytes == 20 + 84 * 2 * 77 + 34 * 6 * 3 + 420);
	assert_false(exists("x.gguf.partial"));
	expect_ok(gguf_writer_create(w, temp_dir_path("x.gguf"), false, &e), &e);
	assert_true(exists("x.gguf.partial") && !exists("x.gguf"));
	for (size_t i = 4; i-- > 0;)
		write_tensor(w, i);
	assert_false(exists("x.gguf"));
	expect_ok(gguf_writer_commit(w, &e), &e);
	assert_true(exists("x.gguf") && !exists("x.gguf.partial"));
	gguf_writer_discard(w);
	gguf_writer_free(w);
	assert_true(exists("x.gguf"));

	struct gguf *g;
	expect_ok(gguf_open(temp_dir_path("x.gguf"), &g, &e), &e);
	assert_true(
		g->files[0].size == plan.file_bytes && g->files[0].data_offset == plan.header_bytes);
	assert_true(g->tensor_bytes == plan.tensor_bytes);
	check_tensors(g, 4, 4096);
	uint32_t u;
	uint64_t u64;
	float f;
	bool t;
	struct gguf_str s;
	struct gguf_array a;
	assert_int_equal(gguf_get_u32(g, "k.u32", &u, &e), 0), assert_int_equal(u, 4000000000u);
	assert_int_equal(gguf_get_u64(g, "k.u64", &u64, &e), 0), assert_true(u64 == 1ull << 40);
	assert_int_equal(gguf_get_f32(g, "k.f32", &f, &e), 0), assert_true(f == 1e-5f);
	assert_int_equal(gguf_get_bool(g, "k.bool", &t, &e), 0), assert_true(t);
	assert_int_equal(gguf_get_str(g, "k.bytes", &s, &e), 0),
		assert_true(s.len == 3 && !memcmp(s.ptr, "a\0b", 3));
	assert_int_equal(gguf_get_ints(g, "k.u32s", &a, &e), 0),
		assert_true(a.n == 3 && gguf_array_i64(&a, 2) == 3);
	assert_int_equal(gguf_get_ints(g, "k.i32s", &a, &e), 0),
		assert_true(a.n == 2 && gguf_array_i64(&a, 0) == -1);
	assert_int_equal(gguf_get_ints(g, "k.bools", &a, &e), 0);
	assert_true(a.type == GGUF_BOOL && gguf_array_i64(&a, 0) == 1 && gguf_array_i64(&a, 1) == 0);
	assert_int_equal(gguf_get_strs(g, "k.strs", &a, &e), 0);
	assert_true(a.n == 2 && a.strings[1].len == 3 && !memcmp(a.strings[1].ptr, "\xc4\xa0x", 3));
	const struct gguf_tensor *d = gguf_find_tensor(g, "d");
	assert_true(d->n_dims == 4 && d->ne[0] == 2 && d->ne[3] == 7 && d->type == DTYPE_BF16);
	gguf_close(g);
}

static void test_gguf_write_refused(void **state)
{
	(void)state;
	struct err e = {0};
	struct gguf_writer *w = gguf_writer_new(NULL);
	char name[300];
	memset(name, 'n', sizeof name);
	name[299] = 0;
	assert_int_equal(
		gguf_writer_add_tensor(w, name, DTYPE_F32, 1, (uint64_t[]){1}, NULL, &e), ERR_INPUT);
	assert_int_equal(
		gguf_writer_add_tensor(w, "", DTYPE_F32, 1, (uint64_t[]){1}, NULL, &e), ERR_INPUT);
	assert_int_equal(
		gguf_writer_add_tensor(w, "t", DTYPE_F32, 0, (uint64_t[]){1}, NULL, &e), ERR_INPUT);
	assert_int_equal(
		gguf_writer_add_tensor(w, "t", DTYPE_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}, NULL, &e),
		ERR_INPUT);
	assert_int_equal(
		gguf_writer_add_tensor(w, "t", DTYPE_Q4_K, 1, (uint64_t[]){192}, NULL, &e), ERR_INPUT);
	assert_string_equal(
		e.text, "tensor t: rows of 192 values cannot be stored as Q4_K (blocks of 256)");
	assert_int_equal(
		gguf_writer_add_tensor(w, "t", DTYPE_F32, 2, (uint64_t[]){1, 0}, NULL, &e), ERR_INPUT);
	assert_int_equal(
		gguf_writer_add_tensor(w, "t", DTYPE_F32, 2, (uint64_t[]){1ull << 61, 2}, NULL, &e),
		ERR_INPUT);
	assert_int_equal(gguf_writer_add_tensor(w, "t", DTYPE_F32, 1, (uint64_t[]){1}, NULL, &e), 0);
	assert_int_equal(
		gguf_writer_add_tensor(w, "t", DTYPE_F32, 1, (uint64_t[]){1}, NULL, &e), ERR_INPUT);
	assert_string_equal(e.text, "tensor t: is declared twice");
	expect_ok(gguf_writer_plan(w, &e), &e);
	assert_int_equal(
		gguf_writer_create(w, temp_dir_path("no/such/dir.gguf"), false, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "dir.gguf.partial: cannot be written: No such file"));
	gguf_writer_free(w);
	gguf_writer_free(NULL);
}

enum { MANY = 40 };

static struct gguf_writer *many(uint64_t split_bytes)
{
	struct err e = {0};
	struct gguf_writer *w =
		gguf_writer_new(&(struct gguf_write_options){.alignment = 256, .split_bytes = split_bytes});
	declare_all(w);
	for (size_t i = 0; i < MANY; i++) {
		char name[32];
		snprintf(name, sizeof name, "blk.%zu.w", i);
		expect_ok(
			gguf_writer_add_tensor(w, name, DTYPE_F32, 2, (uint64_t[]){100, 1 + i % 7}, NULL, &e),
			&e);
	}
	expect_ok(gguf_writer_plan(w, &e), &e);
	return w;
}

struct write_job {
	struct gguf_writer *w;
	size_t first;
};

static void *write_quarter(void *p)
{
	struct write_job *j = p;
	for (size_t i = j->first; i < MANY; i += 4)
		write_tensor(j->w, i);
	return NULL;
}

static void test_split_by_threads(void **state)
{
	(void)state;
	struct err e = {0};
	struct gguf_writer *w = many(12000);
	size_t n_parts = gguf_writer_n_parts(w);
	assert_true(n_parts > 3);
	uint64_t total = 0;
	for (size_t i = 0; i < n_parts; i++) {
		struct gguf_write_part p = gguf_writer_part(w, i);
		assert_true(p.file_bytes <= 12000 && p.n_tensors > 0 && p.first_tensor == total);
		total += p.n_tensors;
	}
	assert_int_equal(total, MANY);
	expect_ok(gguf_writer_create(w, temp_dir_path("s.gguf"), false, &e), &e);
	pthread_t threads[4];
	struct write_job jobs[4];
	for (size_t i = 0; i < 4; i++) {
		jobs[i] = (struct write_job){w, i};
		assert_int_equal(pthread_create(&threads[i], NULL, write_quarter, &jobs[i]), 0);
	}
	for (size_t i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	char *first = gguf_writer_part_path(w, temp_dir_path("s.gguf"), 0),
		 *second = gguf_writer_part_path(w, temp_dir_path("s.gguf"), 1);
	expect_ok(gguf_writer_sync(w, &e), &e);
	expect_ok(gguf_writer_commit(w, &e), &e);
	gguf_writer_free(w);
	struct gguf *g;
	expect_ok(gguf_open(first, &g, &e), &e);
	assert_int_equal(g->n_files, n_parts);
	assert_string_equal(g->files[1].path, second);
	check_tensors(g, MANY, 256);
	uint32_t count;
	assert_int_equal(gguf_get_u32(g, "split.count", &count, &e), 0);
	assert_true(count == n_parts && gguf_find(g, "split.count")->type == GGUF_U16);
	assert_true(gguf_find(g, "split.no")->type == GGUF_U16 &&
				gguf_find(g, "split.tensors.count")->type == GGUF_I32);
	gguf_close(g);
	free(first);
	free(second);

	/* a limit that nothing reaches: one plain file; a limit below every tensor: one part each */
	w = many(1u << 30);
	assert_int_equal(gguf_writer_n_parts(w), 1);
	gguf_writer_free(w);
	w = many(1);
	assert_int_equal(gguf_writer_n_parts(w), MANY);
	gguf_writer_free(w);
}

static void test_resume(void **state)
{
	(void)state;
	struct err e = {0};
	struct gguf_writer *w = many(0);
	assert_int_equal(gguf_writer_create(w, temp_dir_path("r.gguf"), true, &e),
		ERR_INPUT); /* nothing to resume */
	gguf_writer_free(w);
	w = many(0);
	expect_ok(gguf_writer_create(w, temp_dir_path("r.gguf"), false, &e), &e);
	for (size_t i = 0; i < MANY / 2; i++)
		write_tensor(w, i);
	gguf_writer_free(w); /* as if killed: the partial file stays */
	assert_true(exists("r.gguf.partial") && !exists("r.gguf"));
	w = many(0);
	expect_ok(gguf_writer_create(w, temp_dir_path("r.gguf"), true, &e), &e);
	for (size_t i = MANY / 2; i < MANY; i++)
		write_tensor(w, i);
	expect_ok(gguf_writer_commit(w, &e), &e);
	gguf_writer_free(w);
	struct gguf *g;
	expect_ok(gguf_open(temp_dir_path("r.gguf"), &g, &e), &e);
	check_tensors(g, MANY, 256);
	gguf_close(g);

	/* a file that appears before the end stays, and so does the model, for another try */
	w = many(0);
	expect_ok(gguf_writer_check_output(w, temp_dir_path("n.gguf"), false, &e), &e);
	expect_ok(gguf_writer_create(w, temp_dir_path("n.gguf"), false, &e), &e);
	FILE *f = fopen(temp_dir_path("n.gguf"), "w");
	fputs("my notes", f);
	fclose(f);
	assert_int_equal(gguf_writer_commit(w, &e), ERR_INPUT);
	assert_true(exists("n.gguf.partial"));
	/* nor is a file replaced that another process is writing */
	struct gguf_writer *second = many(0);
	assert_int_equal(gguf_writer_create(second, temp_dir_path("n.gguf"), false, &e), ERR_RUN);
	gguf_writer_discard(second);
	gguf_writer_free(second);
	assert_true(exists("n.gguf.partial"));
	expect_ok(gguf_writer_check_output(w, temp_dir_path("n.gguf"), true, &e), &e);
	expect_ok(gguf_writer_commit(w, &e), &e);
	gguf_writer_free(w);
	expect_ok(gguf_open(temp_dir_path("n.gguf"), &g, &e), &e);
	gguf_close(g);

	/* another plan must not take the file up */
	w = many(0);
	expect_ok(gguf_writer_create(w, temp_dir_path("q.gguf"), false, &e), &e);
	gguf_writer_free(w);
	w = gguf_writer_new(NULL);
	expect_ok(gguf_writer_add_tensor(w, "other", DTYPE_F32, 1, (uint64_t[]){1}, NULL, &e), &e);
	expect_ok(gguf_writer_plan(w, &e), &e);
	assert_int_equal(gguf_writer_create(w, temp_dir_path("q.gguf"), true, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "bytes, "));
	gguf_writer_discard(w);
	gguf_writer_free(w);
	assert_false(exists("q.gguf.partial"));
}

/* A file that may not grow stands in for a full disk. */
/* Tensors that share their data: one place, no bytes of their own; only a file that says so is
 * taken. */
static void test_shared(void **state)
{
	(void)state;
	for (int says = 0; says < 2; says++) {
		struct err e = {0};
		struct gguf_writer *w = gguf_writer_new(NULL);
		if (says)
			gguf_writer_set_u32(w, GGUF_SHARED_DATA_KEY, 1);
		for (int i = 0; i < 3; i++)
			expect_ok(gguf_writer_add_tensor(w, (char[]){(char)('a' + i), 0}, DTYPE_F32, 1,
						  (uint64_t[]){2000}, NULL, &e),
				&e);
		gguf_writer_share_tensor(w, 2, 0);
		expect_ok(gguf_writer_plan(w, &e), &e);
		struct gguf_write_part plan = gguf_writer_part(w, 0);
		assert_true(plan.tensor_bytes == 16000 && plan.file_bytes == plan.header_bytes + 16384);
		expect_ok(gguf_writer_create(w, temp_dir_path("s.gguf"), false, &e), &e);
		write_tensor(w, 0);
		write_tensor(w, 1);
		expect_ok(gguf_writer_commit(w, &e), &e);
		gguf_writer_free(w);
		struct gguf *g;
		int code = gguf_open(temp_dir_path("s.gguf"), &g, &e);
		if (!says) {
			assert_int_equal(code, ERR_INPUT);
			assert_non_null(strstr(e.text, "overlap"));
			continue;
		}
		expect_ok(code, &e);
		assert_true(g->tensors[2].offset == g->tensors[0].offset &&
					g->tensors[1].offset != g->tensors[0].offset);
		assert_memory_equal(g->tensors[2].data, g->tensors[0].data, 8000);
		gguf_close(g);
	}
}

static void test_no_space(void **state)
{
	(void)state;
	struct err e = {0};
	struct rlimit old, tight;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	tight = old;
	tight.rlim_cur = 8192;
	signal(SIGXFSZ, SIG_IGN);
	struct gguf_writer *w = many(0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
	int code = gguf_writer_create(w, temp_dir_path("full.gguf"), false, &e);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_true(code < 0);
	assert_non_null(strstr(e.text, "full.gguf.partial: cannot reserve"));
	gguf_writer_discard(w);
	gguf_writer_free(w);
	assert_false(exists("full.gguf.partial"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_gguf_write_refused),
		cmocka_unit_test(test_split_by_threads),
		cmocka_unit_test(test_resume),
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_no_space),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
