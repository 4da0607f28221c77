/* SPDX-License-Identifier: MIT */
/* Any bytes as an importance matrix (.dat, or a GGUF): refused with a sentence, or matrices whose
 * values can be read wherever a check of their size has found them, none negative or infinite.
 * The same of sums that are merged. */
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "tests/fuzz/fixture.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/imatrix/imatrix_set.h"

#include <math.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define COLS_MAX 64

static void read_matrix(
	const struct imatrix_file *m, const char *name, uint64_t cols, uint64_t n_slabs)
{
	float out[COLS_MAX];
	struct err e = {0};
	bool found = false;
	if (imatrix_file_check(m, name, cols, n_slabs, &found, &e)) {
		if (!e.text[0])
			bug("refused without a sentence");
		return;
	}
	for (uint64_t slab = 0; found && slab < n_slabs; slab++) {
		bool driven = false;
		bool said = imatrix_file_get(m, name, slab, cols, out);
		for (uint64_t c = 0; c < cols; c++) {
			driven = driven || out[c] > 0;
			if (!(out[c] >= 0 && out[c] < 1e30f))
				bug("column %u has importance %g", (unsigned)c, (double)out[c]);
		}
		if (driven != said)
			bug("a matrix is said to be driven: %d", said);
	}
}

/* Moments of a tensor of experts: refused with a sentence, or numbers that can be factored. */
static void read_moments(const struct imatrix_file *m, const char *tensor, uint64_t n_slabs)
{
	static float out[FEEDBACK_MOMENTS];
	struct err e = {0};
	float trust = 0;
	bool found = false;
	if (imatrix_file_check_moments(m, tensor, FEEDBACK_COLUMNS, n_slabs, &found, &e)) {
		if (!e.text[0])
			bug("refused without a sentence");
		return;
	}
	for (uint64_t slab = 0; found && slab < n_slabs; slab++) {
		if (!imatrix_file_moments(m, tensor, slab, FEEDBACK_COLUMNS, out, &trust))
			bug("moments that were found are not there");
		if (!(trust >= 0 && trust <= 1))
			bug("moments are trusted by %g", (double)trust);
		for (int i = 0; i < FEEDBACK_MOMENTS; i++)
			if (!isfinite(out[i]))
				bug("moment %d is %g", i, (double)out[i]);
	}
}

/* As a file to be merged: refused with a sentence, or sums that are finite. */
static void merge_twice(const char *path)
{
	struct imatrix_set a = {0}, b = {0};
	struct err e = {0};
	if (imatrix_set_load(&a, path, NULL, &e) || imatrix_set_load(&b, path, NULL, &e) ||
		imatrix_set_merge(&a, &b, path, &e)) {
		if (!e.text[0])
			bug("refused without a sentence");
	} else {
		for (size_t i = 0; i < a.n; i++)
			for (uint64_t k = 0; k < a.tensors[i].n_values; k++)
				if (!(fabsf(a.tensors[i].sum2[k]) < 1e31f) ||
					(a.tensors[i].sum2[k] < 0 && !imatrix_is_moments(a.tensors[i].name)))
					bug("a sum is %g", (double)a.tensors[i].sum2[k]);
	}
	imatrix_set_fini(&a);
	imatrix_set_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = {"a", "b", "blk.0.ffn_up_exps.weight"};
	struct imatrix_file *m;
	struct err e = {0};
	log_set_level(LOG_QUIET);
	const char *path = fixture_write("matrix.dat", data, size);
	merge_twice(path);
	if (imatrix_file_open(path, &m, &e)) {
		if (!e.text[0] || m)
			bug("refused without a sentence");
		return 0;
	}
	if (!imatrix_file_count(m))
		bug("no matrix was accepted");
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		for (uint64_t cols = 1; cols <= 8; cols++)
			for (uint64_t n = 1; n <= 3; n++)
				read_matrix(m, names[i], cols, n);
	for (uint64_t n = 1; n <= 3; n++) {
		read_moments(m, "blk.0.ffn_up_exps.weight", n);
		read_moments(m, "blk.0.ffn_down_exps.weight", n);
	}
	imatrix_file_close(m);
	return 0;
}
