/* SPDX-License-Identifier: MIT */
/*
 * glmstream export: a GGUF becomes a Hugging Face checkpoint, the other direction of convert. This
 * file parses options, makes the plan and prints. Everything that can be refused is refused before
 * the first byte of output.
 */
#include "src/base/args.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/commands/commands.h"
#include "tools/export/export_run.h"
#include "tools/output/report.h"
#include "tools/output/workers.h"
#include "tools/plan/model_headers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct export_options {
	const char *model, *out;
	int dtype;  /* enum export_dtype */
	int verify; /* 0: off */
	uint64_t shard_bytes;
	uint32_t jobs;
	bool dry_run, force, quiet;
};

/* All that one export holds. */
struct export_work {
	struct export_options opt;
	struct model_headers model;
	struct convert_config cfg;
	struct export_plan plan;
	struct export_texts texts;
	struct export_folder folder;
	struct check_values *values;
};

static void print_plan(const struct export_work *w, FILE *f)
{
	fprintf(f, "source   %zu tensors in %u file%s, %" PRIu64 " bytes\n", w->model.file->n_tensors,
		w->model.file->n_files, w->model.file->n_files == 1 ? "" : "s",
		w->model.file->tensor_bytes);
	fprintf(f, "model    %u + %u layers, %u experts\n", w->cfg.n_layers, w->cfg.n_nextn,
		w->cfg.n_experts);
	export_plan_print(&w->plan, f);
}

static int make_plan(struct export_work *w, struct err *e)
{
	struct buf notes = {0};
	int code = model_headers_open(&w->model, w->opt.model, e);
	if (!code && w->model.file->folder)
		return err_set(e, ERR_INPUT, "%s: is a checkpoint already, a GGUF is expected",
			gguf_path(w->model.file));
	if (!code) {
		export_plan_config(&w->cfg, &w->model.config, w->model.file);
		code = export_plan_make(&w->plan, w->model.file, &w->cfg, (enum export_dtype)w->opt.dtype,
			w->opt.shard_bytes, e);
	}
	if (!code)
		code = export_texts_make(&w->texts, w->model.file, &w->cfg, &w->plan, &notes, e);
	struct err lost = {0};
	if (w->model.file && gguf_check_lost(w->model.file, &lost)) { /* zeros were read */
		code = lost.code;
		if (e)
			*e = lost;
	}
	if (!code) {
		report_notes(&w->plan.notes);
		report_notes(&notes);
	}
	buf_free(&notes);
	return code;
}

/* What the shards depend on: the parts of the model as files, and the plan. */
static uint64_t fingerprint(const struct export_work *w)
{
	uint64_t h = hash_bytes(HASH_START, "export " GLM_VERSION, sizeof "export " GLM_VERSION);
	for (uint32_t i = 0; i < w->model.file->n_files; i++) {
		struct stat st;
		if (stat(w->model.file->files[i].path, &st))
			continue;
		h = hash_u64(h, (uint64_t)st.st_size);
		h = hash_u64(h, (uint64_t)st.st_mtim.tv_sec);
		h = hash_u64(h, (uint64_t)st.st_mtim.tv_nsec);
	}
	return export_plan_hash(&w->plan, h);
}

static int export_model(struct export_work *w, struct err *e)
{
	int code = w->opt.verify ? check_values_open(w->model.file, &w->values, e) : 0;
	if (code)
		return code;
	if (w->opt.verify && !w->values && !w->opt.quiet)
		fprintf(
			stderr, "%s: no check values: what is read is not compared\n", ERR_PLAIN(w->opt.model));
	struct export_job job = {.file = w->model.file,
		.values = w->values,
		.plan = &w->plan,
		.folder = &w->folder,
		.n_workers = w->opt.jobs,
		.progress = !w->opt.quiet};
	return export_write(&job, w->opt.out, fingerprint(w), &w->texts, w->opt.force, e);
}

static int parse_export_options(int argc, char **argv, struct export_options *o, struct err *e)
{
	static const struct arg_word dtypes[] = {
		{"auto", EXPORT_AUTO}, {"bf16", EXPORT_BF16}, {"f32", EXPORT_F32}, {NULL, 0}};
	static const struct arg_word verify_modes[] = {{"first", 1}, {"off", 0}, {NULL, 0}};
	const struct arg options[] = {
		{"model", 'm', ARG_STRING, .string = &o->model, .file = ARG_READS_MODEL,
			.value = "FILE.gguf", .required = true,
			.help = "the model; of a split one the first part"},
		{"output", 'o', ARG_STRING, .string = &o->out, .file = ARG_WRITES, .value = "FOLDER",
			.help = "folder to write: a new or empty one, or that of an interrupted export"},
		{"dtype", 0, ARG_CHOICE, .i32 = &o->dtype, .words = dtypes,
			.help = "what matrices become. Norms, routers and biases lose nothing: with bf16 they "
					"stay F32 where BF16 would round them",
			.fallback = "auto: f32 if all matrices are F32, else bf16"},
		{"shard-gb", 0, ARG_SIZE_GB, .u64 = &o->shard_bytes, .min = 0, .max = 1e9,
			.above_min = true, .value = "G",
			.help = "most bytes of tensors in a shard, in 10^9 bytes", .fallback = "5"},
		{"verify", 0, ARG_CHOICE, .i32 = &o->verify, .words = verify_modes,
			.help = "compare what is read with the check values of the file; what is wrong is read "
					"again once",
			.fallback = "first"},
		{"dry-run", 0, ARG_FLAG, .flag = &o->dry_run,
			.help = "print what would be written, to the byte, and stop"},
		{"jobs", 'j', ARG_UINT, .u32 = &o->jobs, .min = 1, .max = WORKERS_MAX, .value = "N",
			.help = "worker threads, each of which writes a shard", .fallback = "all cores"},
		{"force", 0, ARG_FLAG, .flag = &o->force,
			.help = "write into a folder that holds other files: those with the names of a "
					"checkpoint's are replaced, or removed where this one lacks them; all others "
					"stay"},
		{"quiet", 'q', ARG_FLAG, .flag = &o->quiet,
			.help = "neither plan, progress nor figures: notes and errors alone"},
	};
	const struct arg_group groups[] = {{NULL, options, ARRAY_LEN(options)}};
	const struct args args = {.command = "glmstream export",
		.usage = "-m FILE.gguf -o FOLDER [options]",
		.about = "GGUF to a Hugging Face checkpoint that transformers loads: config.json, "
				 "generation_config.json, tokenizer, chat template, index and shards, the MTP "
				 "layer included. BF16 and F32 tensors keep every bit; quantised ones are "
				 "dequantised. Memory use does not grow with the model. An export that was "
				 "interrupted goes on when the same command is given again; shards that were begun "
				 "are started anew. config.json and the index appear only "
				 "when all shards are complete.",
		.example = "glmstream export -m glm52-q2.gguf -o GLM-5.2-q2-bf16\n"
				   "glmstream export -m tuned.gguf --dry-run",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups)};
	o->jobs = workers_cores();
	o->verify = 1;
	o->shard_bytes = EXPORT_SHARD_BYTES;
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc;
	if (!o->dry_run && !o->out)
		return err_set(e, ERR_USAGE, "-o FOLDER is missing");
	return 0;
}

int cmd_export(int argc, char **argv, struct err *e)
{
	struct export_work w = {.model.fd = -1, .folder.journal.fd = -1};
	int rc = parse_export_options(argc, argv, &w.opt, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	rc = make_plan(&w, e);
	if (!rc && (w.opt.dry_run || !w.opt.quiet))
		print_plan(&w, w.opt.dry_run ? stdout : stderr);
	if (!rc && !w.opt.dry_run)
		rc = export_model(&w, e);
	export_folder_close(&w.folder);
	check_values_free(w.values);
	export_texts_fini(&w.texts);
	export_plan_fini(&w.plan);
	model_headers_close(&w.model);
	return rc;
}
