/* SPDX-License-Identifier: MIT */
/*
 * model.safetensors.index.json in a folder with two shards. Checked: a refusal has a sentence; of
 * what is accepted every tensor is one of a shard of this folder that the index names, and can be
 * read.
 */
#include "src/base/log.h"
#include "src/format/safetensors.h"
#include "tests/fuzz/fixture.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_shard(const char *name, const char *first, const char *second)
{
	char file[512];
	int n = snprintf(file + 8, sizeof file - 8,
		"{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
		"\"%s\":{\"dtype\":\"U8\",\"shape\":[3,1],\"data_offsets\":[8,11]}}",
		first, second);
	uint64_t bytes = (uint64_t)n;
	memcpy(file, &bytes, 8);
	memset(file + 8 + n, 7, 11);
	fixture_write(name, file, (size_t)n + 19);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool written;
	struct safetensors *st;
	struct err e = {0};
	char folder[256];
	if (!written) {
		write_shard("a.safetensors", "x", "y");
		write_shard("b.safetensors", "y2", "z");
		written = true;
	}
	snprintf(folder, sizeof folder, "%s/", fixture_folder());
	fixture_write("model.safetensors.index.json", data, size);
	if (safetensors_open(fixture_folder(), &st, &e)) {
		if (!e.text[0] || st)
			bug("refused without a sentence");
		return 0;
	}
	uint64_t sum = 0;
	for (size_t i = 0; i < st->n_tensors; i++) {
		const struct safetensors_tensor *t = &st->tensors[i];
		uint8_t bytes[8];
		if (safetensors_find(st, t->name) != t || !memmem(data, size, t->name, 1))
			bug("tensor %s is not in the index", t->name);
		if (safetensors_read(st, t, 0, bytes, t->bytes, &e))
			bug("%s", e.text);
		sum += t->bytes;
	}
	for (uint32_t i = 0; i < st->n_files; i++)
		if (strncmp(st->files[i].path, folder, strlen(folder)) != 0 ||
			strchr(st->files[i].path + strlen(folder), '/'))
			bug("%s is outside the folder", st->files[i].path);
	if (!st->n_tensors || sum != st->tensor_bytes)
		bug("%zu tensors of %llu bytes", st->n_tensors, (unsigned long long)st->tensor_bytes);
	safetensors_close(st);
	return 0;
}
