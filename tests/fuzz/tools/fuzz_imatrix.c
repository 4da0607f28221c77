/* SPDX-License-Identifier: MIT */
/* Any bytes as an importance matrix (.dat, or a GGUF): refused with a sentence, or matrices whose
 * values can be read wherever a check of their size has found them, none negative or infinite. */
#include "src/base/log.h"
#include "src/base/num.h"
#include "tests/fuzz/fixture.h"
#include "tools/imatrix/imatrix_file.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = {"a", "b", "blk.0.ffn_up_exps.weight"};
	struct imatrix_file *m;
	struct err e = {0};
	log_set_level(LOG_QUIET);
	if (imatrix_file_open(fixture_write("matrix.dat", data, size), &m, &e)) {
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
	imatrix_file_close(m);
	return 0;
}
