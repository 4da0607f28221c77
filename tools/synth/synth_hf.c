/* SPDX-License-Identifier: MIT */
/*
 * An export whose bytes are made, not read. FP8 values are random bytes without NaN: their mean
 * square is that of the format, and the scales bring it to what the tensor should have.
 */
#include "tools/synth/synth_hf.h"

#include "src/base/half.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/version.h"
#include "src/checkpoint/convert_map.h"
#include "tools/export/export_run.h"
#include "tools/output/report.h"
#include "tools/synth/synth_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* All that one checkpoint holds. */
struct synth_hf_work {
	struct export_plan plan;
	struct export_texts texts;
	struct export_folder folder;
	struct synth_fill *fills; /* [n_tensors] */
};

/* Root of the mean square of the finite values of FP8 E4M3. */
static float fp8_spread(void)
{
	double sum = 0;
	int n = 0;
	for (int b = 0; b < 256; b++) {
		float v = f8_e4m3_to_f32((uint8_t)b);
		if (isfinite(v)) {
			sum += (double)v * (double)v;
			n++;
		}
	}
	return (float)sqrt(sum / n);
}

/* How each tensor is filled: as the GGUF tensor that is made of it. */
static void make_fills(struct synth_hf_work *w, uint64_t seed)
{
	const struct export_plan *p = &w->plan;
	const struct convert_tensor **made =
		NEW_ARRAY(const struct convert_tensor *, p->table->n_sources);
	const float spread = fp8_spread();
	for (size_t i = 0; i < p->table->n_tensors; i++)
		for (uint64_t k = 0; k < p->table->tensors[i].n_slabs; k++)
			made[p->table->tensors[i].slabs[k].source] = &p->table->tensors[i];
	w->fills = NEW_ARRAY(struct synth_fill, p->n_tensors);
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct export_tensor *t = &p->tensors[i];
		struct convert_tensor like = *made[t->source];
		struct synth_fill *f = &w->fills[i];
		like.type = t->dtype == ST_BF16 ? DTYPE_BF16 : DTYPE_F32;
		synth_model_fill(f, &like, seed, i);
		if (t->scale_name) /* positive, and not all the same */
			synth_fill_init(f, DTYPE_F32, seed, i, f->rms / spread, f->rms / spread * 0.25f);
	}
	free(made);
}

static void fill_bytes(void *user, uint32_t i, uint64_t offset, void *dst, size_t bytes)
{
	const struct synth_hf_work *w = user;
	if (w->plan.tensors[i].dtype != ST_F8_E4M3) {
		synth_fill_bytes(&w->fills[i], offset, dst, bytes);
		return;
	}
	uint8_t *p = dst;
	synth_fill_random(&w->fills[i], offset, dst, bytes);
	for (size_t k = 0; k < bytes; k++)
		p[k] -= (p[k] & 0x7f) == 0x7f;
}

static uint64_t fingerprint(const struct synth_hf_work *w, uint64_t seed)
{
	uint64_t h = hash_bytes(HASH_START, "synth " GLM_VERSION, sizeof "synth " GLM_VERSION);
	return export_plan_hash(&w->plan, hash_u64(h, seed));
}

int synth_hf(struct convert_config *cfg, const struct synth_hf_options *o, struct err *e)
{
	struct synth_hf_work w = {.folder.journal.fd = -1};
	struct gguf *tokenizer = NULL;
	struct buf notes = {0};
	int code = export_plan_make_shape(&w.plan, cfg, o->fp8, EXPORT_SHARD_BYTES, e);
	if (code || (code = gguf_open(o->tokenizer, &tokenizer, e)) ||
		(code = export_texts_make(&w.texts, tokenizer, cfg, &w.plan, &notes, e)))
		goto out;
	report_notes(&notes);
	if (o->dry_run || !o->quiet) {
		FILE *f = o->dry_run ? stdout : stderr;
		fprintf(f,
			"model    random weights, seed %" PRIu64
			": %u + %u layers, %u of them dense, %u experts\n",
			o->seed, cfg->n_layers, cfg->n_nextn, cfg->n_dense, cfg->n_experts);
		export_plan_print(&w.plan, f);
	}
	if (o->dry_run)
		goto out;
	make_fills(&w, o->seed);
	struct export_job job = {.fill = fill_bytes,
		.fill_user = &w,
		.plan = &w.plan,
		.folder = &w.folder,
		.n_workers = o->jobs,
		.progress = !o->quiet};
	code = export_write(&job, o->out, fingerprint(&w, o->seed), &w.texts, o->force, e);
out:
	export_folder_close(&w.folder);
	export_texts_fini(&w.texts);
	export_plan_fini(&w.plan);
	gguf_close(tokenizer);
	buf_free(&notes);
	free(w.fills);
	return code;
}
