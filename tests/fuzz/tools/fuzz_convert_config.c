/* SPDX-License-Identifier: MIT */
/*
 * config.json and generation_config.json of a checkpoint -> the keys and tensors of a GGUF. Input:
 * the one, a zero byte, the other; without a zero byte there is none. Checked: a refusal has a
 * sentence; what is accepted keeps the limits of convert_config.h, can be planned for every recipe
 * or is refused with a sentence, and the keys that are written give the same configuration back;
 * and the way back: what is written as config.json is read as the same configuration, and the plan
 * of an export has every row of every tensor once.
 */
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/format/gguf_write.h"
#include "src/model/config.h"
#include "tests/fuzz/fixture.h"
#include "src/checkpoint/convert_config.h"
#include "src/checkpoint/convert_keys.h"
#include "src/checkpoint/convert_map.h"
#include "tools/export/export_plan.h"

#include <jansson.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_shape(const struct convert_config *c)
{
	if (!c->n_layers || c->n_layers > CONVERT_MAX_LAYERS || c->n_nextn > 1 ||
		c->n_stops > CONVERT_MAX_STOPS || !c->hidden || !c->vocab || !c->n_used ||
		c->n_used > c->n_experts || c->n_dense > c->n_layers)
		bug("a configuration beyond the limits was accepted");
	for (uint32_t i = 0; i < c->n_stops; i++)
		if (c->stops[i] >= c->vocab)
			bug("stop token %u of a vocabulary of %u", c->stops[i], c->vocab);
}

static void write_json(const char *name, json_t *root)
{
	char *text = json_dumps(root, JSON_REAL_PRECISION(9));
	fixture_write(name, text, strlen(text));
	free(text);
	json_decref(root);
}

/* config.json and generation_config.json as export writes them. */
static void read_written(const struct convert_config *c)
{
	struct convert_config want = *c, got;
	struct err e = {0};
	write_json("config.json", convert_config_json(c, "bfloat16"));
	write_json("generation_config.json", convert_config_generation_json(c));
	/* beyond n_stops: those of config.json that generation_config.json replaced */
	memset(want.stops + want.n_stops, 0, (CONVERT_MAX_STOPS - want.n_stops) * sizeof *want.stops);
	if (convert_config_read(&got, fixture_folder(), &e))
		bug("a config.json that was just written is refused: %s", e.text);
	if (memcmp(&got, &want, sizeof got) != 0)
		bug("another configuration comes back from config.json");
}

/* The same model, exported. */
static void plan_export(
	const struct gguf *g, const struct model_config *m, const struct convert_config *c)
{
	struct export_plan p = {0};
	struct convert_config got;
	struct err e = {0};
	export_plan_config(&got, m, g);
	if (got.n_layers != c->n_layers || got.nope != c->nope || got.dense_width != c->dense_width ||
		got.n_shared != c->n_shared || got.tied != c->tied || got.rms_eps != c->rms_eps)
		bug("other numbers come back from the model");
	if (export_plan_make(&p, g, &got, EXPORT_AUTO, 1 << 16, &e))
		bug("a model that was just written cannot be exported: %s", e.text);
	for (uint32_t i = 0; i < p.n_tensors; i++) {
		const struct export_tensor *t = &p.tensors[i];
		uint64_t row = 0;
		for (uint64_t k = 0; k < t->n_pieces; row += t->pieces[k++].rows)
			if (t->pieces[k].row0 != row)
				bug("%s: a piece begins at another row than the last one ended", t->name);
		if (row * t->cols * st_dtype_bytes(t->dtype) != t->bytes)
			bug("%s: the pieces have other rows", t->name);
	}
	export_plan_fini(&p);
}

/* The keys of a small model, read as the engine reads them. */
static void read_back(const struct convert_config *c, const struct convert_plan *plan)
{
	struct gguf_writer *w = gguf_writer_new(NULL);
	struct model_config got;
	struct gguf *g;
	struct err e = {0};
	int rc = 0;
	size_t n;
	convert_keys_shape(w, c);
	for (size_t i = 0; i < plan->n_tensors && !rc; i++) {
		const struct convert_tensor *t = &plan->tensors[i];
		rc = gguf_writer_add_tensor(w, t->name, t->type, t->n_dims, t->ne, NULL, &e);
	}
	if (!rc)
		rc = gguf_writer_plan(w, &e);
	if (rc && !e.text[0])
		bug("the writer refuses without a sentence");
	if (!rc && gguf_writer_part(w, 0).file_bytes < 16 << 20) {
		const void *header = gguf_writer_header(w, 0, &n);
		uint8_t *file = calloc(1, gguf_writer_part(w, 0).file_bytes);
		memcpy(file, header, n);
		if (gguf_parse(file, gguf_writer_part(w, 0).file_bytes, "fuzz", &g, &e))
			bug("a header that was just written is refused: %s", e.text);
		if (!config_read(g, &got, &e) &&
			(got.n_layers != c->n_layers || got.n_mtp != c->n_nextn || got.n_embd != c->hidden ||
				got.n_heads != c->n_heads || got.n_experts != c->n_experts ||
				got.n_used != c->n_used || got.index_top_k != c->index_topk ||
				memcmp(got.index_full, c->full, c->n_layers * sizeof *c->full) != 0))
			bug("other numbers come back from the keys");
		if (!e.code)
			plan_export(g, &got, c);
		if (e.code && !e.text[0])
			bug("refused without a sentence");
		gguf_close(g);
		free(file);
	}
	gguf_writer_free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const recipes[] = {
		"f32", "bf16", "q8", "q4", "q2", "iq2", "q2-s", "iq2-s", "iq2-t"};
	const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
	size_t n = zero ? (size_t)(zero - data) : size;
	struct convert_config c;
	struct convert_recipe r;
	struct convert_plan plan = {0};
	struct err e = {0};
	fixture_write("config.json", data, n);
	unlink(fixture_path("generation_config.json"));
	if (zero)
		fixture_write("generation_config.json", zero + 1, size - n - 1);
	if (convert_config_read(&c, fixture_folder(), &e)) {
		if (!e.text[0])
			bug("refused without a sentence");
		return 0;
	}
	check_shape(&c);
	read_written(&c);
	if (convert_recipe_parse(&r, recipes[size % ARRAY_LEN(recipes)], &e))
		bug("%s", e.text);
	if (convert_plan_make(&plan, &c, &r, NULL, NULL, NULL, &e)) {
		if (!e.text[0])
			bug("no plan and no sentence");
	} else {
		read_back(&c, &plan);
	}
	convert_plan_fini(&plan);
	return 0;
}
