/* SPDX-License-Identifier: MIT */
/* Importance files: what is written is read, files add up, and routed experts get the prior of
 * imatrix_file.h, computed here from its formula. */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "tests/support/temp_dir.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/imatrix/imatrix_write.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { COLS = 4, EXPERTS = 3, K = 64 };

static const char experts[] = "blk.2.ffn_down_exps.weight", dense[] = "blk.0.ffn_down.weight",
				  heads[] = "blk.2.attn_v_b.weight";

/* The second expert has seen nothing, the third much more than the first. */
static float expert_sums[EXPERTS * COLS] = {8, 0, 2, 6, 0, 0, 0, 0, 3000, 9000, 0, 12000};
static float expert_counts[EXPERTS] = {2, 0, 3000};
static float dense_sums[COLS] = {1, 2, 0, 5}, one_count[1] = {10};

static void make_set(struct imatrix_set *s)
{
	*s = (struct imatrix_set){.chunk_count = 2,
		.chunk_size = 512,
		.has_origin = true,
		.origin = {.model = 7, .text = UINT64_MAX, .tokens = 1024}};
	imatrix_set_add_dataset(s, "some text", 9);
	imatrix_set_add_tensor(s, experts, EXPERTS * COLS, EXPERTS, expert_sums, expert_counts, false);
	imatrix_set_add_tensor(s, heads, EXPERTS * COLS, 1, expert_sums, one_count, false);
	imatrix_set_add_tensor(s, dense, COLS, 1, dense_sums, one_count, false);
	imatrix_set_sort(s);
}

static const char *write_set(const char *name)
{
	struct imatrix_set s;
	struct err e = {0};
	make_set(&s);
	const char *path = temp_dir_path(name);
	struct imatrix_output out = {.path = path};
	assert_int_equal(imatrix_check_output(&out, &e), 0);
	assert_int_equal(imatrix_write(&s, &out, &e), 0);
	imatrix_set_fini(&s);
	return path;
}

static void test_prior(void **state)
{
	(void)state;
	struct err e = {0};
	struct imatrix_file *f;
	float v[COLS];
	bool found = false;
	uint64_t n = 0, n_rare = 0;
	assert_int_equal(imatrix_file_open(write_set("prior.gguf"), &f, &e), 0);
	assert_int_equal(imatrix_file_check(f, experts, COLS, EXPERTS, &found, &e), 0);
	assert_true(found);
	double layer[COLS], strength = 0;
	for (int c = 0; c < COLS; c++) {
		layer[c] = ((double)expert_sums[c] + (double)expert_sums[2 * COLS + c]) / 3002;
		strength += layer[c];
	}
	for (int x = 0; x < EXPERTS; x++) {
		double tokens = expert_counts[x], own = 0;
		for (int c = 0; c < COLS; c++)
			own += expert_sums[x * COLS + c];
		double scale = tokens > 0 ? own / tokens / strength : 1;
		assert_true(imatrix_file_get(f, experts, (uint64_t)x, COLS, v));
		for (int c = 0; c < COLS; c++) {
			double want = (expert_sums[x * COLS + c] + K * scale * layer[c]) / (tokens + K);
			assert_true(fabs(v[c] - want) <= 1e-6 * want);
			assert_true(v[c] > 0 || layer[c] <= 0);
		}
	}
	/* the third hardly moves, the second has the ratios of the layer */
	assert_true(imatrix_file_get(f, experts, 2, COLS, v));
	assert_true(fabsf(v[1] / v[0] - 3) < 0.05f);
	assert_true(imatrix_file_get(f, experts, 1, COLS, v));
	assert_true(fabs((double)v[1] / (double)v[0] - layer[1] / layer[0]) < 1e-5);
	/* what every token passes stays as it is */
	assert_true(imatrix_file_get(f, dense, 0, COLS, v));
	assert_memory_equal(v, dense_sums, sizeof v);
	assert_true(imatrix_file_get(f, heads, 2, COLS, v));
	assert_memory_equal(v, expert_sums + 2 * COLS, sizeof v);
	assert_false(imatrix_file_get(f, heads, 1, COLS, v));
	assert_true(imatrix_file_rare(f, experts, K, &n, &n_rare));
	assert_true(n == EXPERTS && n_rare == 2);
	assert_false(imatrix_file_rare(f, heads, K, &n, &n_rare));
	imatrix_file_close(f);

	/* a .dat has no counts, so there is no prior */
	assert_int_equal(imatrix_file_open(write_set("prior.dat"), &f, &e), 0);
	assert_int_equal(imatrix_file_check(f, experts, COLS, EXPERTS, &found, &e), 0);
	assert_true(imatrix_file_get(f, experts, 0, COLS, v));
	assert_true(v[1] == 0 && fabsf(v[0] / v[2] - 4) < 1e-6f);
	assert_false(imatrix_file_rare(f, experts, K, &n, &n_rare));
	imatrix_file_close(f);
}

static void test_files(void **state)
{
	(void)state;
	struct err e = {0};
	struct imatrix_set a = {0}, b = {0}, all = {0};
	bool estimated;
	const char *path = write_set("a.gguf");
	assert_int_equal(imatrix_check_output(&(struct imatrix_output){.path = path}, &e), ERR_INPUT);
	assert_int_equal(
		imatrix_check_output(&(struct imatrix_output){.path = path, .force = true}, &e), 0);
	assert_int_equal(imatrix_set_load(&a, path, &estimated, &e), 0);
	assert_true(!estimated && a.n == 3 && a.chunk_count == 2 && a.chunk_size == 512);
	assert_true(a.has_origin && a.origin.model == 7 && a.origin.text == UINT64_MAX);
	assert_true(a.origin.tokens == 1024 && a.n_datasets == 1);
	assert_string_equal(a.datasets[0], "some text");
	const struct imatrix_tensor *t = imatrix_set_find(&a, experts);
	assert_memory_equal(t->sum2, expert_sums, sizeof expert_sums);
	assert_memory_equal(t->counts, expert_counts, sizeof expert_counts);

	/* the mean squares of a .dat count for calls * 512 tokens, of each expert */
	assert_int_equal(imatrix_set_load(&b, write_set("b.dat"), &estimated, &e), 0);
	assert_true(estimated && !b.has_origin && b.chunk_count == 6);
	t = imatrix_set_find(&b, experts);
	assert_true(t->n_counts == 1 && t->counts[0] == 6 * 512);
	assert_true(fabsf(t->sum2[0] - 4.0f * 6 * 512) < 0.01f);
	assert_true(t->sum2[COLS] == 6 * 512); /* never seen: 1 */

	assert_int_equal(imatrix_set_merge(&all, &a, "a.gguf", &e), 0);
	assert_int_equal(imatrix_set_merge(&all, &b, "b.dat", &e), 0);
	t = imatrix_set_find(&all, experts);
	assert_true(t->n_counts == EXPERTS && t->counts[0] == 2 + 6 * 512);
	assert_true(t->counts[1] == 0 && t->sum2[COLS] == 0); /* never seen in both */
	assert_true(fabsf(t->sum2[0] - (8 + 4.0f * 6 * 512)) < 0.01f);
	assert_true(!all.has_origin && all.chunk_count == 8 && all.n_datasets == 1);
	imatrix_set_fini(&b);

	/* another shape is refused */
	float more[2 * COLS] = {1};
	imatrix_set_add_tensor(&b, dense, 2 * COLS, 1, more, one_count, false);
	b.chunk_size = 512;
	assert_int_equal(imatrix_set_merge(&all, &b, "c.gguf", &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "c.gguf: blk.0.ffn_down.weight has 8 values"));
	imatrix_set_fini(&a);
	imatrix_set_fini(&b);
	imatrix_set_fini(&all);
}

/* A file that gets shorter while it is read: zeros, which must not pass for columns that nothing
 * drove. */
static void test_lost(void **state)
{
	(void)state;
	struct err e = {0};
	struct imatrix_file *f;
	float v[COLS];
	for (int dat = 0; dat < 2; dat++) {
		const char *path = write_set(dat ? "lost.dat" : "lost.gguf");
		assert_int_equal(imatrix_file_open(path, &f, &e), 0);
		assert_int_equal(imatrix_file_check_lost(f, &e), 0);
		assert_int_equal(truncate(path, 0), 0);
		assert_false(imatrix_file_get(f, dense, 0, COLS, v));
		assert_int_equal(imatrix_file_check_lost(f, &e), ERR_RUN);
		imatrix_file_close(f);
	}
}

/* A file of one tensor, written whatever is in it. */
static void assert_refused(
	const char *name, struct imatrix_tensor t, int times, const char *sentence)
{
	struct imatrix_set s = {.chunk_size = 512};
	struct imatrix_file *f;
	struct err e = {0};
	for (int i = 0; i < times; i++)
		imatrix_set_add_tensor(&s, t.name, t.n_values, t.n_counts, t.sum2, t.counts, false);
	struct imatrix_output out = {.path = temp_dir_path(name)};
	assert_int_equal(imatrix_write(&s, &out, &e), 0);
	assert_int_equal(imatrix_file_open(out.path, &f, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, sentence));
	imatrix_set_fini(&s);
}

static void test_refused(void **state)
{
	(void)state;
	struct err e = {0};
	struct imatrix_file *f;
	float half[1] = {0.5f}, none[1] = {NAN};
	bool found;
	struct imatrix_tensor t = {
		.name = (char *)(uintptr_t)dense, COLS, 1, dense_sums, one_count, false};
	assert_refused("twice.dat", t, 2, "has two entries for blk.0.ffn_down.weight");
	t.counts = half;
	assert_refused("half.gguf", t, 1, "count 0 of blk.0.ffn_down.weight is 0.5");
	t.counts = none;
	assert_refused("nan.gguf", t, 1, "count 0 of blk.0.ffn_down.weight is");

	/* as many values, but of another number of matrices */
	assert_int_equal(imatrix_file_open(write_set("slabs.gguf"), &f, &e), 0);
	assert_int_equal(imatrix_file_check(f, experts, 2 * COLS, EXPERTS, &found, &e), ERR_INPUT);
	assert_int_equal(imatrix_file_check(f, experts, 2 * EXPERTS, 2, &found, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "has 3 counts, but the tensor has 2 matrices"));
	assert_int_equal(imatrix_file_check(f, heads, 2 * EXPERTS, 2, &found, &e), 0);
	imatrix_file_close(f);
}

static void put_foreign(const char *path)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs("mine", f);
	fclose(f);
}

static void assert_foreign(const char *path)
{
	char text[8] = {0};
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	assert_int_equal(fread(text, 1, sizeof text, f), 4);
	assert_string_equal(text, "mine");
	fclose(f);
}

/* A run replaces what it wrote itself, and nothing that appears there meanwhile. */
static void test_foreign_files(void **state)
{
	(void)state;
	struct err e = {0};
	struct imatrix_set s, kept = {0};
	make_set(&s);
	for (int dat = 0; dat < 2; dat++) {
		struct imatrix_output out = {.path = temp_dir_path(dat ? "run.dat" : "run.gguf")};
		assert_int_equal(imatrix_write(&s, &out, &e), 0);
		assert_int_equal(imatrix_write(&s, &out, &e), 0);
		remove(out.path);
		put_foreign(out.path);
		assert_int_equal(imatrix_write(&s, &out, &e), ERR_INPUT);
		assert_foreign(out.path);
		if (dat)
			continue;
		assert_non_null(strstr(e.hint, "run.gguf.partial"));
		assert_int_equal(imatrix_set_load(&kept, temp_dir_path("run.gguf.partial"), NULL, &e), 0);
		assert_int_equal(kept.n, s.n);
		imatrix_set_fini(&kept);
	}
	struct imatrix_output out = {.path = temp_dir_path("next.gguf")};
	put_foreign(temp_dir_path("next.gguf.partial"));
	assert_int_equal(imatrix_check_output(&out, &e), ERR_INPUT);
	assert_int_equal(imatrix_write(&s, &out, &e), ERR_INPUT);
	assert_foreign(temp_dir_path("next.gguf.partial"));
	out.force = true;
	assert_int_equal(imatrix_write(&s, &out, &e), 0);
	imatrix_set_fini(&s);
}

/* The hint names the file that was collected, which stands beside the link's target. */
static void test_foreign_file_by_link(void **state)
{
	(void)state;
	struct err e = {0};
	struct imatrix_set s;
	make_set(&s);
	const char *target = temp_dir_path("target.gguf");
	struct imatrix_output out = {.path = temp_dir_path("link.gguf")};
	put_foreign(target);
	assert_int_equal(symlink("target.gguf", out.path), 0);
	assert_int_equal(imatrix_write(&s, &out, &e), ERR_INPUT);
	assert_foreign(target);
	assert_non_null(strstr(e.hint, "target.gguf.partial"));
	assert_int_equal(access(temp_dir_path("target.gguf.partial"), F_OK), 0);
	imatrix_set_fini(&s);
}

/* Products of columns, negative ones too, come back for the tensors whose input they are of. */
static void test_moments(void **state)
{
	(void)state;
	static float down[EXPERTS * FEEDBACK_MOMENTS], in[FEEDBACK_MOMENTS], got[FEEDBACK_MOMENTS];
	static float counts[EXPERTS] = {256, 0, 768}, all[1] = {1024};
	static const char gate[] = "blk.2.ffn_gate_exps.weight";
	for (int i = 0; i < EXPERTS * FEEDBACK_MOMENTS; i++)
		down[i] = (float)(i % 7 - 3);
	for (int i = 0; i < FEEDBACK_MOMENTS; i++)
		in[i] = (float)(i % 5 - 2);
	struct imatrix_set s = {.chunk_count = 1, .chunk_size = 512}, back = {0};
	struct err e = {0};
	imatrix_set_add_tensor(&s, experts, EXPERTS * COLS, EXPERTS, expert_sums, expert_counts, false);
	imatrix_set_add_tensor(
		&s, "blk.2.ffn_down_exps.moments", ARRAY_LEN(down), EXPERTS, down, counts, false);
	imatrix_set_add_tensor(&s, "blk.2.ffn_in.moments", ARRAY_LEN(in), 1, in, all, false);
	imatrix_set_sort(&s);
	const char *path = temp_dir_path("moments.gguf");
	struct imatrix_output out = {.path = path};
	assert_int_equal(imatrix_write(&s, &out, &e), 0);
	assert_int_equal(imatrix_set_load(&back, path, NULL, &e), 0);
	const struct imatrix_tensor *t = imatrix_set_find(&back, "blk.2.ffn_down_exps.moments");
	assert_memory_equal(t->sum2, down, sizeof down);
	imatrix_set_fini(&back);
	imatrix_set_fini(&s);

	struct imatrix_file *f;
	bool found = false;
	float trust = 0;
	assert_int_equal(imatrix_file_open(path, &f, &e), 0);
	assert_int_equal(imatrix_file_check_moments(f, experts, 256, EXPERTS, &found, &e), 0);
	assert_true(found && imatrix_file_moments(f, experts, 2, 256, got, &trust));
	assert_memory_equal(got, down + 2 * FEEDBACK_MOMENTS, sizeof got);
	assert_true(trust == 0.75f);
	assert_true(imatrix_file_moments(f, experts, 1, 256, got, &trust) && trust == 0);
	assert_int_equal(imatrix_file_check_moments(f, gate, 256, EXPERTS, &found, &e), 0);
	assert_true(found && imatrix_file_moments(f, gate, 1, 256, got, &trust));
	assert_memory_equal(got, in, sizeof got);
	assert_true(trust == 0.8f);
	assert_int_equal(imatrix_file_check_moments(f, dense, 256, 1, &found, &e), 0);
	assert_false(found || imatrix_file_moments(f, dense, 0, 256, got, &trust));
	assert_int_equal(imatrix_file_check_moments(f, gate, 512, EXPERTS, &found, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "do not fit"));
	assert_int_equal(imatrix_file_check_moments(f, gate, 300, EXPERTS, &found, &e), ERR_INPUT);
	assert_int_equal(imatrix_file_check_moments(f, experts, 256, 2, &found, &e), ERR_INPUT);
	imatrix_file_close(f);
}

int main(void)
{
	/* the first test that maps a file: its handler of SIGBUS takes the place of cmocka's */
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost), cmocka_unit_test(test_prior),
		cmocka_unit_test(test_files), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_foreign_files), cmocka_unit_test(test_foreign_file_by_link),
		cmocka_unit_test(test_moments)};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
