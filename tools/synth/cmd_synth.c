/* SPDX-License-Identifier: MIT */
/*
 * glmstream synth: a GGUF of any shape with random weights, for measuring where no checkpoint is.
 * It is an ordinary file to the rest of the program; two keys say what it is (synth_model.h), and
 * inspect shows them.
 *
 * With --alias K the expert tensors of the MoE layers stand at K places only: layer i's are those
 * of layer i mod K. Experts are known to the cache by layer and number, so every one of them is
 * read and kept as its own; what is read in sum does not change, only how much of the disk is used.
 * A drive with a large cache of its own may answer such reads faster than real ones.
 */
#include "src/base/args.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/model/config.h"
#include "tools/commands/commands.h"
#include "src/checkpoint/convert_keys.h"
#include "tools/output/interrupt.h"
#include "tools/options/pocket.h"
#include "tools/output/report.h"
#include "tools/output/workers.h"
#include "tools/synth/synth_model.h"
#include "tools/synth/synth_hf.h"
#include "tools/synth/synth_write.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE_RELEASED "glm-5.2"

enum synth_format { SYNTH_GGUF, SYNTH_HF, SYNTH_HF_FP8 };

struct synth_options {
	const char *out, *shape, *recipe_name, *experts, *types_text, *tokenizer;
	struct convert_types types;
	uint32_t layers, expert_count, alias, jobs;
	uint64_t seed;
	int format;      /* enum synth_format */
	bool gguf_given; /* one of the options that only a GGUF has */
	bool no_mtp, force, dry_run, quiet;
};

struct synth_work {
	struct synth_options opt;
	struct convert_config cfg;
	struct convert_recipe recipe;
	struct convert_plan plan;
	size_t *shares; /* [n_tensors] id of the tensor whose data these are; its own: not shared */
	struct gguf_writer *writer;
	struct synth_piece *pieces;
	size_t n_pieces;
	uint64_t layer_bytes; /* of the largest layer of experts */
};

static uint32_t n_moe(const struct convert_config *c)
{
	return c->n_layers + c->n_nextn - c->n_dense;
}

static bool is_shared(const struct synth_work *w)
{
	return w->opt.alias && w->opt.alias < n_moe(&w->cfg);
}

static int read_shape(struct synth_work *w, struct err *e)
{
	struct convert_config *c = &w->cfg;
	const struct synth_options *o = &w->opt;
	int code = 0;
	if (!strcmp(o->shape, SHAPE_RELEASED))
		synth_model_glm52(c);
	else if ((code = convert_config_read_file(c, o->shape, e)))
		return code;
	if (o->layers > c->n_layers)
		return err_set(
			e, ERR_USAGE, "--layers: %u found, but the shape has %u", o->layers, c->n_layers);
	synth_model_cut(c, o->layers);
	if (o->no_mtp)
		c->n_nextn = 0;
	if (o->expert_count && o->expert_count < c->n_used)
		return err_set(e, ERR_USAGE, "--expert-count: %u found, but a token uses %u of them",
			o->expert_count, c->n_used);
	if (o->expert_count) {
		c->n_experts = o->expert_count;
		c->n_group = c->n_group_used = 1;
	}
	return 0;
}

/* The layer and the part of "blk.N.ffn_PART_exps.weight"; false: another tensor. */
static bool is_experts(const char *name, uint32_t *layer, const char **part)
{
	int n = 0;
	if (sscanf(name, "blk.%u.%n", layer, &n) != 1 || !n || !strstr(name, "_exps."))
		return false;
	*part = name + n;
	return true;
}

/* The tensor of this part in the layer K, 2 K ... before; its own id where there is none. */
static size_t shared_with(const struct synth_work *w, size_t id)
{
	uint32_t layer, other;
	const char *part, *other_part;
	const struct convert_tensor *t = &w->plan.tensors[id];
	if (!is_shared(w) || !is_experts(t->name, &layer, &part))
		return id;
	uint32_t first = w->cfg.n_dense + (layer - w->cfg.n_dense) % w->opt.alias;
	for (size_t i = 0; i < id; i++) {
		const struct convert_tensor *o = &w->plan.tensors[i];
		if (is_experts(o->name, &other, &other_part) && other == first && !strcmp(part, other_part))
			return o->type == t->type ? i : id; /* --types may tell layers apart */
	}
	return id;
}

static int declare_tensors(struct synth_work *w, struct err *e)
{
	int code = 0;
	uint64_t layer_bytes = 0;
	uint32_t layer, last = UINT32_MAX;
	const char *part;
	w->shares = NEW_ARRAY(size_t, w->plan.n_tensors);
	for (size_t i = 0; i < w->plan.n_tensors && !code; i++) {
		const struct convert_tensor *t = &w->plan.tensors[i];
		if ((code = gguf_writer_add_tensor(w->writer, t->name, t->type, t->n_dims, t->ne, NULL, e)))
			break;
		w->shares[i] = shared_with(w, i);
		if (w->shares[i] != i)
			gguf_writer_share_tensor(w->writer, i, w->shares[i]);
		if (!is_experts(t->name, &layer, &part))
			continue;
		uint64_t row;
		dtype_row_bytes(t->type, t->ne[0], &row);
		layer_bytes = row * t->ne[1] * t->ne[2] + (layer == last ? layer_bytes : 0);
		last = layer;
		w->layer_bytes = MAX(w->layer_bytes, layer_bytes);
	}
	return code;
}

static int declare_keys(struct synth_work *w, struct err *e)
{
	const struct synth_options *o = &w->opt;
	convert_keys_shape(w->writer, &w->cfg);
	gguf_writer_set_str(w->writer, "general.name",
		!strcmp(o->shape, SHAPE_RELEASED) ? "GLM-5.2 shape, random weights" : "random weights");
	gguf_writer_set_u64(w->writer, SYNTH_SEED_KEY, o->seed);
	if (is_shared(w))
		gguf_writer_set_u32(w->writer, SYNTH_ALIAS_KEY, o->alias);
	const char *tokenizer = pocket_or(o->tokenizer, e);
	if (!tokenizer)
		return err_hint(e, "the tokenizer is taken from there; --tokenizer names another GGUF");
	return synth_model_tokenizer(w->writer, &w->cfg, tokenizer, e);
}

static int make_plan(struct synth_work *w, struct err *e)
{
	int code = read_shape(w, e);
	if (code ||
		(code = convert_plan_make(&w->plan, &w->cfg, &w->recipe, &w->opt.types, NULL, NULL, e)))
		return code;
	for (size_t i = 0; i < w->plan.n_tensors; i++)
		if (!synth_fill_supported(w->plan.tensors[i].type))
			return err_set(e, ERR_USAGE, "%s: random weights cannot be made as %s",
				w->plan.tensors[i].name, dtype_name(w->plan.tensors[i].type));
	w->writer = gguf_writer_new(NULL);
	gguf_writer_add_check_values(w->writer);
	if ((code = declare_keys(w, e)) || (code = declare_tensors(w, e)) ||
		(code = gguf_writer_plan(w->writer, e)))
		return code;
	w->pieces = NEW_ARRAY(struct synth_piece, w->plan.n_tensors);
	for (size_t i = 0; i < w->plan.n_tensors; i++) {
		if (w->shares[i] != i)
			continue;
		struct synth_piece *p = &w->pieces[w->n_pieces++];
		synth_model_fill(&p->fill, &w->plan.tensors[i], w->opt.seed, i);
		gguf_writer_place(w->writer, i, NULL, &p->offset, &p->bytes);
	}
	return 0;
}

static void print_plan(const struct synth_work *w, FILE *f)
{
	const struct convert_config *c = &w->cfg;
	uint64_t shared = 0;
	for (size_t i = 0; i < w->plan.n_tensors; i++) {
		uint64_t n;
		gguf_writer_place(w->writer, i, NULL, NULL, &n);
		shared += w->shares[i] == i ? 0 : n;
	}
	fprintf(f,
		"model    random weights, seed %" PRIu64 ": %u + %u layers, %u of them dense, %u experts\n",
		w->opt.seed, c->n_layers, c->n_nextn, c->n_dense, c->n_experts);
	convert_plan_print_types(&w->plan, w->writer, f);
	if (shared)
		fprintf(f,
			"alias    %u layers of experts in the file stand for %u: %" PRIu64
			" bytes less. Every expert is read as its own, but a drive with a large cache may be "
			"faster here than with a real file\n",
			w->opt.alias, n_moe(c), shared);
	struct gguf_write_part p = gguf_writer_part(w->writer, 0);
	fprintf(f, "header   %" PRIu64 " bytes\n", p.header_bytes);
	fprintf(f, "total    %" PRIu64 " bytes\n", p.file_bytes);
}

/* Is there room where the output goes? The largest --alias that has room is the hint. */
static int check_free_space(const struct synth_work *w, struct err *e)
{
	const uint64_t need = gguf_writer_part(w->writer, 0).file_bytes;
	uint64_t room;
	int code = out_file_free_bytes(w->opt.out, &room, e);
	if (code || room >= need)
		return code;
	const uint32_t layers = is_shared(w) ? w->opt.alias : n_moe(&w->cfg);
	const uint64_t rest = need - MIN(need, w->layer_bytes * layers);
	err_set(e, ERR_MEMORY, "%s: %" PRIu64 " bytes are needed, %" PRIu64 " are free there",
		w->opt.out, need, room);
	if (w->layer_bytes && room > rest + w->layer_bytes)
		err_hint(e, "--alias %" PRIu64 " would fit", (room - rest) / w->layer_bytes);
	return ERR_MEMORY;
}

static void print_result(const struct synth_work *w, const struct synth_result *r)
{
	const double gb = (double)r->bytes * 1e-9, busy = r->fill_seconds + r->write_seconds;
	/* waiting for a core counts as making, so more threads than cores make no more */
	const double alone = gb / MAX(r->fill_seconds, 1e-9) * MIN(w->opt.jobs, workers_cores());
	printf("%s: %.2f GB in %.1f s, %.2f GB/s%s. ", ERR_PLAIN(w->opt.out), gb, r->seconds,
		gb / r->seconds,
		r->direct ? " with O_DIRECT" : " through the page cache (O_DIRECT refused)");
	if (r->write_seconds > r->fill_seconds)
		printf("The disk is the limit: %.0f %% of the threads' time went into writes; making the "
			   "bytes alone would run at %.1f GB/s\n",
			100 * r->write_seconds / MAX(busy, 1e-9), alone);
	else
		printf("Making the bytes is the limit: %.0f %% of the time of %u threads\n",
			100 * r->fill_seconds / MAX(busy, 1e-9), w->opt.jobs);
}

/* Tensors are sealed by several threads: each takes the next one. */
struct seal_state {
	const struct synth_work *w;
	atomic_size_t next;
	struct workers_bytes bytes;
};

static int seal_worker(void *user, struct err *e)
{
	struct seal_state *s = user;
	int code = 0;
	size_t i;
	while (!code && !atomic_load(&s->bytes.stop) &&
		   (i = atomic_fetch_add(&s->next, 1)) < s->w->plan.n_tensors) {
		uint64_t bytes;
		if (s->w->shares[i] != i)
			continue;
		code = gguf_writer_seal(s->w->writer, i, e);
		gguf_writer_place(s->w->writer, i, NULL, NULL, &bytes);
		atomic_fetch_add(&s->bytes.done, bytes);
	}
	return code;
}

/* Check values of what stands in the file. */
static int seal_model(const struct synth_work *w, struct err *e)
{
	struct seal_state s = {.w = w,
		.bytes = {.what = w->opt.quiet ? NULL : "reading back", .cancel = interrupt_flag()}};
	for (size_t i = 0; i < w->n_pieces; i++)
		s.bytes.total += w->pieces[i].bytes;
	int code = workers_run_bytes(&s.bytes, seal_worker, &s, w->opt.jobs, e);
	for (size_t i = 0; i < w->plan.n_tensors && !code; i++)
		if (w->shares[i] != i)
			code = gguf_writer_seal(w->writer, i, e);
	return code;
}

static int write_model(struct synth_work *w, struct err *e)
{
	struct synth_result r;
	const struct synth_options *o = &w->opt;
	int code = gguf_writer_check_output(w->writer, o->out, o->force, e);
	if (code || (code = check_free_space(w, e)))
		return code;
	interrupt_catch(false);
	if ((code = gguf_writer_create(w->writer, o->out, false, e)))
		goto out;
	const struct synth_job job = {.path = gguf_writer_partial(w->writer, 0),
		.pieces = w->pieces,
		.n_pieces = w->n_pieces,
		.n_threads = o->jobs,
		.progress = !o->quiet,
		.cancel = interrupt_flag()};
	if ((code = synth_write(&job, &r, e)) || (code = seal_model(w, e)) ||
		(code = gguf_writer_commit(w->writer, e)))
		goto out;
	if (!o->quiet)
		print_result(w, &r);
out:
	if (code)
		gguf_writer_discard(w->writer);
	return code;
}

static int write_checkpoint(struct synth_work *w, struct err *e)
{
	const struct synth_options *o = &w->opt;
	struct synth_hf_options hf = {.out = o->out,
		.tokenizer = pocket_or(o->tokenizer, e),
		.fp8 = o->format == SYNTH_HF_FP8,
		.seed = o->seed,
		.jobs = o->jobs,
		.force = o->force,
		.dry_run = o->dry_run,
		.quiet = o->quiet};
	if (!hf.tokenizer)
		return err_hint(e, "the tokenizer is taken from there; --tokenizer names another GGUF");
	int code = read_shape(w, e);
	return code ? code : synth_hf(&w->cfg, &hf, e);
}

static int parse_synth_options(int argc, char **argv, struct synth_work *w, struct err *e)
{
	struct synth_options *o = &w->opt;
	static const struct arg_word formats[] = {
		{"gguf", SYNTH_GGUF}, {"hf", SYNTH_HF}, {"hf-fp8", SYNTH_HF_FP8}, {NULL, 0}};
	static const struct arg_word shapes[] = {{SHAPE_RELEASED, 0}, {NULL, 0}};
	struct convert_type_words types;
	const struct arg options[] = {
		{"output", 'o', ARG_STRING, .string = &o->out, .file = ARG_WRITES, .value = "OUT",
			.help = "file to write, or folder of a checkpoint"},
		{"format", 0, ARG_CHOICE, .i32 = &o->format, .words = formats,
			.help = "hf: a Hugging Face checkpoint in BF16 with the released names and shards of "
					"5 GB; hf-fp8: the same in FP8 with block scales. Types, experts and alias are "
					"options of a GGUF",
			.fallback = "gguf"},
		{"shape", 0, ARG_STRING, .string = &o->shape, .file = ARG_READS, .words = shapes,
			.value = SHAPE_RELEASED "|FILE",
			.help = "the released model, or the shape that a config.json describes",
			.fallback = SHAPE_RELEASED},
		{"recipe", 0, ARG_STRING, .string = &o->recipe_name, .given = &o->gguf_given,
			.value = "NAME", .words = convert_recipe_words(),
			.help = "types as in glmstream convert: " CONVERT_RECIPES, .fallback = "q2"},
		{"experts", 0, ARG_STRING, .string = &o->experts, .given = &o->gguf_given, .value = "TYPE",
			.words = convert_type_words(&types, synth_fill_supported),
			.help = "type of the routed experts instead of the recipe's (Q2_K, IQ3_XXS, ...)"},
		{"types", 0, ARG_STRING, .string = &o->types_text, .given = &o->gguf_given,
			.value = "PATTERN=TYPE,...", .words = convert_type_words(&types, synth_fill_supported),
			.help = "exceptions, as in glmstream convert"},
		{"layers", 0, ARG_UINT, .u32 = &o->layers, .min = 1, .max = CONVERT_MAX_LAYERS,
			.value = "N", .help = "only the first N layers (and the MTP layer)"},
		{"no-mtp", 0, ARG_FLAG, .flag = &o->no_mtp,
			.help = "leave the next-token-prediction layer out"},
		{"expert-count", 0, ARG_UINT, .u32 = &o->expert_count, .min = 1, .max = CONFIG_MAX_EXPERTS,
			.value = "N", .help = "routed experts per layer instead of the shape's"},
		{"alias", 0, ARG_UINT, .u32 = &o->alias, .given = &o->gguf_given, .min = 1,
			.max = CONVERT_MAX_LAYERS, .value = "K",
			.help = "the file holds the expert data of K layers only, and the expert tensors of "
					"all others point at those bytes: it is smaller by as much. Every expert is "
					"still read and cached as its own. Programs that refuse tensors with shared "
					"bytes refuse the file",
			.fallback = "each layer has its own"},
		{"seed", 0, ARG_UINT64, .u64 = &o->seed, .value = "S", .help = "same seed, same bytes",
			.fallback = "1"},
		{"tokenizer", 0, ARG_STRING, .string = &o->tokenizer, .file = ARG_READS,
			.value = "FILE.gguf",
			.help = "take the tokenizer from there; tokens of the shape that it lacks are padding",
			.fallback = "the pocket model"},
		{"jobs", 'j', ARG_UINT, .u32 = &o->jobs, .min = 1, .max = WORKERS_MAX, .value = "N",
			.help = "threads, and writes under way", .fallback = "all cores, at least 4"},
		{"force", 0, ARG_FLAG, .flag = &o->force,
			.help = "replace OUT.gguf if it exists, or files of a checkpoint in the folder"},
		{"dry-run", 0, ARG_FLAG, .flag = &o->dry_run,
			.help = "print what would be written, to the byte, and stop"},
		{"quiet", 'q', ARG_FLAG, .flag = &o->quiet,
			.help = "neither plan, progress nor figures: notes and errors alone"},
	};
	const struct arg_group groups[] = {{NULL, options, ARRAY_LEN(options)}};
	const struct args args = {.command = "glmstream synth",
		.usage = "-o OUT [options]",
		.about = "Writes a model of the given shape with random weights, for measuring: it "
				 "computes as much and reads as much as a real one, and says nothing sensible. "
				 "Scaled so that activations stay finite through all layers. OUT.gguf appears only "
				 "when it is complete; a checkpoint is written as by export, and goes on where it "
				 "was interrupted.",
		.example = "glmstream synth -o synth.gguf --recipe iq2 --alias 12\n"
				   "glmstream synth -o small.gguf --layers 6 --expert-count 16\n"
				   "glmstream synth -o checkpoint --format hf-fp8 --layers 4\n"
				   "glmstream synth --dry-run --recipe q2",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups)};
	o->jobs = MAX(workers_cores(), 4);
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc;
	if ((rc = convert_recipe_parse(&w->recipe, o->recipe_name, e)) ||
		(o->experts && (rc = convert_type_parse(&w->recipe.expert, o->experts, synth_fill_supported,
							"--experts", e))) ||
		(o->types_text &&
			(rc = convert_types_parse(&o->types, o->types_text, synth_fill_supported, e))))
		return rc;
	if (!o->dry_run && !o->out)
		return err_set(e, ERR_USAGE, "-o OUT is missing");
	if (o->format != SYNTH_GGUF && o->gguf_given)
		return err_set(e, ERR_USAGE,
			"--recipe, --experts, --types and --alias are for a GGUF: --format %s has none of them",
			formats[o->format].word);
	return 0;
}

int cmd_synth(int argc, char **argv, struct err *e)
{
	struct synth_work w = {.opt = {.shape = SHAPE_RELEASED, .recipe_name = "q2", .seed = 1}};
	int rc = parse_synth_options(argc, argv, &w, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (w.opt.format != SYNTH_GGUF)
		return write_checkpoint(&w, e);
	rc = make_plan(&w, e);
	if (!rc && !w.opt.quiet)
		fputs(buf_str(&w.plan.notes), stderr);
	if (!rc && (w.opt.dry_run || !w.opt.quiet))
		print_plan(&w, w.opt.dry_run ? stdout : stderr);
	if (!rc && !w.opt.dry_run)
		rc = write_model(&w, e);
	gguf_writer_free(w.writer);
	convert_plan_fini(&w.plan);
	free(w.pieces);
	free(w.shares);
	return rc;
}
