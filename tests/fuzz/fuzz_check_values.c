/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as the file of check values beside the pocket model: refused with a sentence, or taken
 * with a value for each range. Behind the letter R head and last value are first made right, so
 * that what they protect is reached.
 */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/xxh3/xxh3.h"
#include "src/format/check_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MODEL "tools/pocket/pocket.gguf"
#define HEAD  48 /* of a model in one file */

static struct gguf *model;
static uint8_t head[HEAD];

/* The head that a writer would have put there. */
static void open_once(void)
{
	struct err e = {0};
	struct check_map map;
	log_set_level(LOG_QUIET);
	if (model)
		return;
	if (gguf_open(MODEL, &model, &e))
		bug("%s", e.text);
	check_map_init(&map, model);
	memcpy(head, "GLMXXH3\n", 8);
	store_u32(head + 8, 1);
	store_u32(head + 12, model->n_files);
	store_u64(head + 16, check_map_n(&map));
	store_u64(head + 24, map.fingerprint);
	store_u64(head + 32, model->files[0].size);
	store_u64(head + 40, xxh3_of(model->files[0].map.data, model->files[0].data_offset));
	check_map_fini(&map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	open_once();
	const bool sealed = size && data[0] == 'R';
	const size_t n = size - sealed;
	uint8_t *copy = NEW_ARRAY(uint8_t, n + 1);
	if (n)
		memcpy(copy, data + sealed, n);
	if (sealed && n >= HEAD + 8) {
		memcpy(copy, head, HEAD);
		store_u64(copy + n - 8, xxh3_of(copy, n - 8));
	}
	struct err e = {0};
	struct check_values *v;
	int rc = check_values_parse(model, copy, n, "fuzz", &v, &e);
	if (rc && (rc >= 0 || !e.text[0] || v))
		bug("refused without a sentence, or left something behind");
	if (!rc) {
		const uint64_t ranges = check_map_n(&v->map);
		if (!v->beside || n != HEAD + 8 * ranges + 8)
			bug("took %zu bytes for %llu values", n, (unsigned long long)ranges);
		for (uint64_t i = 0; i < ranges; i++) {
			const struct check_range r = check_map_range(&v->map, i);
			if (check_value(v, r.tensor, r.expert) != load_u64(copy + HEAD + 8 * i) ||
				r.run.offset + r.run.bytes > model->files[0].size)
				bug("range %llu is wrong", (unsigned long long)i);
		}
	}
	check_values_free(v);
	free(copy);
	return 0;
}
