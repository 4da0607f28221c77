/* SPDX-License-Identifier: MIT */
/* What fuzz targets share: a folder for files, and the pocket model. Made at the first call, kept
 * until the program ends; what fails ends the program. */
#ifndef GLM_TESTS_FUZZ_FIXTURE_H
#define GLM_TESTS_FUZZ_FIXTURE_H

#include "src/format/gguf.h"
#include "src/text/tokenizer.h"

/* A folder below TMPDIR, else /tmp; removed at exit with the files in it. */
const char *fixture_folder(void);

/* The path of a file in it; valid for three more calls. */
const char *fixture_path(const char *name);

/* Writes a file there and returns its path. */
const char *fixture_write(const char *name, const void *data, size_t n);

const struct gguf *fixture_pocket(void); /* tools/pocket/pocket.gguf, open */
const struct tokenizer *fixture_tokenizer(void);

/* A built-in one of single bytes, a few joins and two added tokens. */
const struct tokenizer *fixture_small_tokenizer(void);

#endif
