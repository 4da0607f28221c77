/* SPDX-License-Identifier: MIT */
/*
 * glmstream convert: a Hugging Face checkpoint becomes a GGUF. Here are options, messages, the card
 * or the CPU, and what is kept of an earlier run. The plan is made in convert_map.c and carried out
 * by convert_pipeline.c. Whatever can be refused from headers alone, or from the samples
 * that --target-gb takes, is refused before the first byte of output.
 */
#include "src/base/args.h"
#include "src/base/hash.h"
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/convert_keys.h"
#include "src/quant/feedback.h"
#include "src/quant/quantize.h"
#include "tools/commands/commands.h"
#include "tools/convert/convert_losses.h"
#include "tools/convert/convert_pipeline.h"
#include "tools/output/interrupt.h"
#include "tools/output/progress.h"
#include "tools/output/report.h"
#include "tools/output/workers.h"
#include "tools/plan/model_headers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

struct convert_options {
	const char *src, *out, *imatrix, *recipe_name;
	struct convert_recipe recipe;
	const char *types_text;
	struct convert_types types;
	uint64_t split_bytes;
	uint64_t target_bytes; /* 0: by recipe */
	uint32_t jobs;
	int32_t backend; /* enum convert_backend */
	bool feedback, dry_run, force, quiet;
};

/* With a target: for the tensors of which the type is not chosen. */
#define TARGET_RECIPE "q8"

enum convert_backend { BACKEND_AUTO, BACKEND_CUDA, BACKEND_CPU };
static const struct arg_word convert_backends[] = {
	{"auto", BACKEND_AUTO}, {"cuda", BACKEND_CUDA}, {"cpu", BACKEND_CPU}, {0}};

/* All that one conversion holds. */
struct convert_work {
	struct convert_options opt;
	struct convert_config cfg;
	struct safetensors *st;
	struct convert_plan plan;
	struct convert_losses losses; /* with a target: what its types were chosen by */
	uint8_t *chosen;              /* [losses.n_groups] the types chosen by them */
	uint64_t choice_key;          /* what the journal stores them under */
	bool choice_kept;             /* the journal has them already */
	char *target;                 /* what opt.out names then: the output, its links followed */
	struct imatrix_file *imatrix;
	bool *has_importance;           /* [n_tensors] */
	bool *feedback;                 /* [n_tensors] */
	struct convert_choices choices; /* the plan and the three above */
	struct quantizer *card;         /* or NULL */
	struct gguf_writer *writer;
	struct convert_journal journal;
	uint64_t *done;    /* [n_tensors] pieces */
	uint64_t *pieces;  /* [n_tensors] */
	uint64_t *sources; /* [n_tensors] identity of the files that a tensor is made from */
	bool *damaged;     /* [st->n_files] */
};

/* Source, types, parts: exact bytes, one line each. */
static void print_plan(const struct convert_work *w, FILE *f)
{
	uint64_t src_bytes[ST_DTYPE_COUNT] = {0}, file_bytes = 0, header = 0;
	for (size_t i = 0; i < w->st->n_tensors; i++)
		src_bytes[w->st->tensors[i].dtype] += w->st->tensors[i].bytes;
	fprintf(f, "source   %zu tensors in %u files, %" PRIu64 " bytes", w->st->n_tensors,
		w->st->n_files, w->st->tensor_bytes);
	const char *between = ": ";
	for (int t = 0; t < ST_DTYPE_COUNT; t++)
		if (src_bytes[t]) {
			fprintf(f, "%s%s %" PRIu64, between, st_dtype_name((enum st_dtype)t), src_bytes[t]);
			between = ", ";
		}
	uint32_t n_full = 0;
	for (uint32_t il = 0; il < w->cfg.n_layers + w->cfg.n_nextn; il++)
		n_full += convert_layer_full(&w->cfg, il);
	fprintf(f, "\nmodel    %u + %u layers, %u of them with an indexer, %u experts\n",
		w->cfg.n_layers, w->cfg.n_nextn, n_full, w->cfg.n_experts);
	uint64_t total = convert_plan_print_types(&w->plan, w->writer, f);
	convert_losses_print(&w->losses, f);
	size_t n_parts = gguf_writer_n_parts(w->writer);
	for (size_t i = 0; i < n_parts; i++) {
		struct gguf_write_part p = gguf_writer_part(w->writer, i);
		header += p.header_bytes;
		file_bytes += p.file_bytes;
		if (n_parts > 1)
			fprintf(
				f, "part %-3zu %zu tensors, %" PRIu64 " bytes\n", i + 1, p.n_tensors, p.file_bytes);
	}
	fprintf(f, "tensors  %zu tensors, %" PRIu64 " bytes\n", w->plan.n_tensors, total);
	fprintf(f, "header   %" PRIu64 " bytes\n", header);
	fprintf(f, "total    %" PRIu64 " bytes in %zu file%s\n", file_bytes, n_parts,
		n_parts == 1 ? "" : "s");
}

/* No tensor is quantised: the file may be given to llama-quantize. That program copies
 * general.alignment and pads to 32 whatever it says, so the key has to say 32 if others are to read
 * the output. */
static bool plan_is_plain(const struct convert_plan *plan)
{
	for (size_t i = 0; i < plan->n_tensors; i++)
		if (dtype_info(plan->tensors[i].type)->block_values > 1)
			return false;
	return true;
}

/* Adds up experts by their gate; up and down saw the same tokens. */
static void count_rare_experts(
	const struct imatrix_file *m, const char *name, uint64_t *n_experts, uint64_t *n_rare)
{
	uint32_t layer;
	enum gguf_expert_part part;
	uint64_t all, rare;
	if (gguf_expert_name(name, &layer, &part) && part == GGUF_EXPERT_GATE &&
		imatrix_file_rare(m, name, IMATRIX_PRIOR_TOKENS, &all, &rare)) {
		*n_experts += all;
		*n_rare += rare;
	}
}

/* Sets has_importance: the importance matrix has the tensor, and the type makes use of it. */
static int match_imatrix(struct convert_work *w, struct err *e)
{
	size_t n_found = 0;
	uint64_t n_experts = 0, n_rare = 0;
	int code = 0;
	w->has_importance = NEW_ARRAY(bool, w->plan.n_tensors);
	if (!w->imatrix)
		return 0;
	for (size_t i = 0; i < w->plan.n_tensors && !code; i++) {
		const struct convert_tensor *t = &w->plan.tensors[i];
		/* Q8_0 and plain types take no notice of importance */
		if (dtype_info(t->type)->block_values < 256 || t->transposed)
			continue;
		code = imatrix_file_check(
			w->imatrix, t->name, t->src_cols, t->n_slabs, &w->has_importance[i], e);
		n_found += w->has_importance[i];
		if (w->has_importance[i])
			count_rare_experts(w->imatrix, t->name, &n_experts, &n_rare);
	}
	buf_printf(&w->plan.notes, "%s: %zu matrices, used for %zu tensors\n", w->opt.imatrix,
		imatrix_file_count(w->imatrix), n_found);
	if (n_rare)
		buf_printf(&w->plan.notes,
			"%s: %" PRIu64 " of %" PRIu64
			" experts saw fewer than %d tokens; their layers' columns count for them too\n",
			w->opt.imatrix, n_rare, n_experts, IMATRIX_PRIOR_TOKENS);
	return code;
}

/* Which tensors --feedback is for. */
static int match_feedback(struct convert_work *w, struct err *e)
{
	size_t n = 0, n_moments = 0;
	w->feedback = NEW_ARRAY(bool, w->plan.n_tensors);
	for (size_t i = 0; w->opt.feedback && i < w->plan.n_tensors; i++) {
		const struct convert_tensor *t = &w->plan.tensors[i];
		uint32_t layer;
		enum gguf_expert_part part;
		w->feedback[i] = !t->transposed && gguf_expert_name(t->name, &layer, &part) &&
						 quantize_feedback_supported(t->type);
		n += w->feedback[i];
		bool found = false;
		int code = w->feedback[i] && w->has_importance[i]
					   ? imatrix_file_check_moments(
							 w->imatrix, t->name, t->src_cols, t->n_slabs, &found, e)
					   : 0;
		if (code)
			return code;
		n_moments += found;
	}
	if (w->opt.feedback && !n) {
		err_set(e, ERR_USAGE, "--feedback: no routed expert gets a type that it applies to");
		return err_hint(
			e, "it is for Q2_K to Q6_K and IQ2_XXS: recipes q4, q2, iq2, q2-s, iq2-s, iq2-t");
	}
	if (n)
		buf_printf(&w->plan.notes,
			"error feedback for %zu tensors of routed experts, by the moments of their inputs for "
			"%zu, else by those of their own columns\n",
			n, n_moments);
	return 0;
}

/* A writer for the plan with all sizes known. Adds to `notes`. */
static int plan_writer(struct convert_work *w, struct buf *notes, struct err *e)
{
	gguf_writer_free(w->writer);
	w->writer = gguf_writer_new(&(struct gguf_write_options){
		.alignment = plan_is_plain(&w->plan) ? GGUF_DEFAULT_ALIGNMENT : 0,
		.split_bytes = w->opt.split_bytes});
	int code = convert_keys_set(w->writer, &w->cfg, w->opt.src, notes, e);
	for (size_t i = 0; i < w->plan.n_tensors && !code; i++) {
		const struct convert_tensor *t = &w->plan.tensors[i];
		code = gguf_writer_add_tensor(w->writer, t->name, t->type, t->n_dims, t->ne, NULL, e);
	}
	gguf_writer_add_check_values(w->writer);
	return code ? code : gguf_writer_plan(w->writer, e);
}

/* Bytes of the output, all parts. */
static uint64_t output_bytes(const struct gguf_writer *writer)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < gguf_writer_n_parts(writer); i++)
		bytes += gguf_writer_part(writer, i).file_bytes;
	return bytes;
}

/* A file has one tensor at least, and the header. */
static void note_large_parts(const struct convert_work *w, struct buf *notes)
{
	uint64_t largest = 0;
	for (size_t i = 0; i < gguf_writer_n_parts(w->writer); i++)
		largest = MAX(largest, gguf_writer_part(w->writer, i).file_bytes);
	if (w->opt.split_bytes && largest > w->opt.split_bytes)
		buf_printf(notes,
			"--split-gb: a file has a whole tensor and its header, so the largest has %" PRIu64
			" bytes\n",
			largest);
}

/* Applies l->choice; *bytes: what the output then takes. */
static int plan_choice(struct convert_work *w, uint64_t *bytes, struct err *e)
{
	struct buf notes = {0};
	convert_losses_apply(&w->losses, &w->plan);
	int code = plan_writer(w, &notes, e);
	if (!code)
		*bytes = output_bytes(w->writer);
	buf_free(&notes);
	return code;
}

/* fd: of the file as it was opened, since another may have its name by now; -1: by name. */
static uint64_t hash_file(uint64_t h, const char *path, int fd)
{
	struct stat s;
	uint64_t v[3] = {0};
	if ((fd < 0 ? stat(path, &s) : fstat(fd, &s)) == 0) {
		v[0] = (uint64_t)s.st_size;
		v[1] = (uint64_t)s.st_mtim.tv_sec;
		v[2] = (uint64_t)s.st_mtim.tv_nsec;
	}
	const char *slash = strrchr(path, '/');
	h = hash_bytes(h, slash ? slash + 1 : path, strlen(slash ? slash + 1 : path) + 1);
	return hash_bytes(h, v, sizeof v);
}

static uint64_t hash_shard(const struct safetensors_file *f)
{
	return hash_file(hash_u64(HASH_START, f->header_hash), f->path, f->fd);
}

static uint64_t hash_imatrix(const struct convert_options *o)
{
	return o->imatrix ? hash_file(HASH_START, o->imatrix, -1) : 0;
}

/* The hash of what the choice of types depends on. What else the header holds may change how many
 * bytes are left for the choice: choose_types checks the size of the output. */
static uint64_t choice_key(const struct convert_work *w)
{
	uint64_t h = hash_bytes(HASH_START, GLM_VERSION, sizeof GLM_VERSION);
	h = hash_u64(hash_u64(h, w->opt.target_bytes), w->opt.split_bytes);
	if (w->opt.types_text)
		h = hash_bytes(h, w->opt.types_text, strlen(w->opt.types_text) + 1);
	h = hash_u64(h, hash_imatrix(&w->opt));
	for (uint32_t i = 0; i < w->st->n_files; i++)
		h = hash_u64(h, hash_shard(&w->st->files[i]));
	return h;
}

/* Types by the losses, which must have been measured. What the file takes besides the groups is
 * known once a choice has been planned; with --split-gb it depends on the choice, so the budget is
 * lowered by what was too much. */
static int choose_by_losses(struct convert_work *w, struct err *e)
{
	const uint64_t target = w->opt.target_bytes;
	struct convert_losses *l = &w->losses;
	uint64_t chosen, bytes = 0, budget;
	int code;
	convert_target_choose(l->groups, l->n_groups, 0, l->choice, &chosen);
	if ((code = plan_choice(w, &bytes, e)))
		return code;
	if (bytes > target)
		return err_set(e, ERR_USAGE,
			"--target-gb: this model takes at least %" PRIu64 ".%03" PRIu64 " GB",
			(bytes + 999999) / 1000000 / 1000, (bytes + 999999) / 1000000 % 1000);
	budget = target - (bytes - chosen);
	do {
		convert_target_choose(l->groups, l->n_groups, budget, l->choice, &chosen);
		if ((code = plan_choice(w, &bytes, e)))
			return code;
		budget -= bytes > target ? MIN(budget, bytes - target) : 0;
	} while (bytes > target);
	return 0;
}

/* Types for --target-gb: those that an interrupted run has left in its journal, else by a sample of
 * every matrix. */
static int choose_types(struct convert_work *w, struct err *e)
{
	const struct losses_source source = {&w->plan, &w->cfg, w->st,
		w->opt.types_text ? &w->opt.types : NULL, w->imatrix, w->opt.jobs};
	struct convert_losses *l = &w->losses;
	uint64_t bytes = 0;
	int code = 0;
	convert_losses_list(l, &source);
	w->chosen = NEW_ARRAY(uint8_t, l->n_groups);
	w->choice_key = choice_key(w);
	if (!w->opt.dry_run &&
		convert_journal_find_types(w->opt.out, w->choice_key, w->chosen, l->n_groups) &&
		convert_losses_choose(l, w->chosen)) {
		code = plan_choice(w, &bytes, e);
		w->choice_kept = !code && bytes <= w->opt.target_bytes;
	}
	if (w->choice_kept)
		buf_printf(
			&w->plan.notes, "%s.journal: types as an earlier run has chosen them\n", w->opt.out);
	else if (!code && !(code = convert_losses_measure(l, &source, e)))
		code = choose_by_losses(w, e);
	convert_losses_types(l, w->chosen);
	return code;
}

/* What can be refused before the samples of --target-gb are measured. How many files --split-gb
 * makes is not known yet: of their place only the folder is checked. */
static int check_place(const struct convert_work *w, struct err *e)
{
	const struct convert_options *o = &w->opt;
	return o->split_bytes ? out_file_check_folder(o->out, e)
						  : out_file_check(o->out, &out_data, o->force, e);
}

/* Every file that will be written: may it be? */
static int check_output(const struct convert_work *w, struct err *e)
{
	char *journal = mem_printf("%s.journal", w->opt.out);
	int rc = out_file_may_replace(journal, &out_journal, w->opt.force, e);
	free(journal);
	return rc ? rc : gguf_writer_check_output(w->writer, w->opt.out, w->opt.force, e);
}

/* From headers, and with a target from samples of the matrices, to a plan with all sizes known. */
static int make_plan(struct convert_work *w, struct err *e)
{
	struct stat s;
	struct buf notes = {0};
	int code;
	if (stat(w->opt.src, &s) < 0)
		return err_errno(e, errno, "%s", w->opt.src);
	if (!S_ISDIR(s.st_mode))
		return err_set(e, ERR_INPUT,
			"%s: is not a directory; the directory of a checkpoint is expected", w->opt.src);
	checkpoint_raise_file_limit();
	if ((code = convert_config_read(&w->cfg, w->opt.src, e)) ||
		(code = safetensors_open(w->opt.src, &w->st, e)) ||
		(code = convert_plan_make(
			 &w->plan, &w->cfg, &w->opt.recipe, &w->opt.types, w->st, w->opt.src, e)))
		return code;
	if (w->opt.imatrix && (code = imatrix_file_open(w->opt.imatrix, &w->imatrix, e)))
		return code;
	if (w->opt.target_bytes && !w->opt.dry_run && (code = check_place(w, e)))
		return code;
	if ((w->opt.target_bytes && (code = choose_types(w, e))) || (code = match_imatrix(w, e)) ||
		(code = match_feedback(w, e)))
		return code;
	w->choices = (struct convert_choices){&w->plan, w->feedback, w->imatrix, w->has_importance};
	code = plan_writer(w, &notes, e);
	if (!code) /* now, and not when hours of work are done */
		code = model_headers_check(w->writer, e);
	if (!code && !w->opt.dry_run)
		code = check_output(w, e);
	if (!code) {
		note_large_parts(w, &notes);
		report_notes(&w->plan.notes);
		report_notes(&notes);
	}
	buf_free(&notes);
	return code;
}

/* What all data of the output depend on. (The header is compared byte by byte when a run is taken
 * up.) */
static uint64_t fingerprint(const struct convert_work *w)
{
	uint64_t h = hash_bytes(HASH_START, GLM_VERSION, sizeof GLM_VERSION);
	h = hash_bytes(h, w->opt.recipe.name, strlen(w->opt.recipe.name) + 1);
	if (w->opt.types_text)
		h = hash_bytes(h, w->opt.types_text, strlen(w->opt.types_text) + 1);
	for (size_t i = 0; w->opt.target_bytes && i < w->plan.n_tensors; i++)
		h = hash_u64(h, w->plan.tensors[i].type);
	return hash_u64(h, w->opt.feedback);
}

/* What the data of single tensors depend on: a shard that was replaced is no other source for the
 * tensors of other shards. */
static void identify_sources(struct convert_work *w)
{
	const size_t n = w->plan.n_tensors;
	uint64_t *files = NEW_ARRAY(uint64_t, w->st->n_files);
	for (uint32_t i = 0; i < w->st->n_files; i++)
		files[i] = hash_shard(&w->st->files[i]);
	const uint64_t imatrix = hash_imatrix(&w->opt);
	w->sources = NEW_ARRAY(uint64_t, n);
	for (size_t i = 0; i < n; i++) {
		const struct convert_tensor *t = &w->plan.tensors[i];
		uint64_t h = hash_u64(HASH_START, w->has_importance[i] ? imatrix : 0);
		for (uint64_t k = 0; k < t->n_slabs; k++) {
			h = hash_u64(h, files[t->slabs[k].src->file]);
			if (t->slabs[k].scale)
				h = hash_u64(h, files[t->slabs[k].scale->file]);
		}
		w->sources[i] = h ? h : 1;
	}
	free(files);
}

static bool is_from_damaged(const struct convert_work *w, const struct convert_tensor *t)
{
	for (uint64_t k = 0; k < t->n_slabs; k++)
		if (w->damaged[t->slabs[k].src->file] ||
			(t->slabs[k].scale && w->damaged[t->slabs[k].scale->file]))
			return true;
	return false;
}

/* After an input error: what was made from a damaged shard is not kept, even if the mended one has
 * its size and time (as wget and rsync set it). Returns the code of the error. */
static int keep_sound_tensors(struct convert_work *w, struct err *e)
{
	struct buf note = {0};
	struct err why = {0};
	uint32_t *ids = NEW_ARRAY(uint32_t, w->plan.n_tensors);
	size_t n = 0, n_dropped;
	for (uint32_t i = 0; i < w->plan.n_tensors; i++)
		if (is_from_damaged(w, &w->plan.tensors[i]))
			ids[n++] = i;
	if (convert_journal_drop(&w->journal, ids, n, &n_dropped, &why))
		buf_printf(&note, "%s\n", why.text);
	else if (n_dropped)
		buf_printf(
			&note, "%zu finished tensors of the damaged file will be made again\n", n_dropped);
	report_notes(&note);
	buf_free(&note);
	free(ids);
	return err_hint(
		e, "what is finished is kept: with that file mended, the same command goes on from here");
}

/* Opens the output: takes up an earlier run's when its journal and files allow it, else begins a
 * new one. */
static int open_output(struct convert_work *w, struct err *e)
{
	struct buf notes = {0};
	struct err why = {0};
	size_t n = w->plan.n_tensors, n_done = 0;
	uint64_t n_begun = 0;
	w->done = NEW_ARRAY(uint64_t, n);
	w->pieces = NEW_ARRAY(uint64_t, n);
	for (size_t i = 0; i < n; i++)
		w->pieces[i] = convert_pieces(&w->plan, w->writer, i);
	w->damaged = NEW_ARRAY(bool, w->st->n_files);
	identify_sources(w);
	int code = convert_journal_open(&w->journal, w->opt.out, w->opt.force, fingerprint(w),
		w->sources, w->pieces, w->done, n, &n_done, &notes, e);
	if (code)
		goto out;
	for (size_t i = 0; i < n; i++)
		n_begun += w->done[i] < w->pieces[i] ? w->done[i] : 0;
	if (w->journal.n_other)
		buf_printf(&notes, "%zu finished tensors are made again: their source has changed\n",
			w->journal.n_other);
	if ((n_done || n_begun) && gguf_writer_create(w->writer, w->opt.out, true, &why) == 0) {
		buf_printf(&notes, "going on with an earlier run: %zu of %zu tensors are done", n_done, n);
		if (n_begun)
			buf_printf(&notes, ", and %" PRIu64 " matrices of experts", n_begun);
		buf_printf(&notes, "\n");
		goto out;
	}
	if (n_done || n_begun)
		buf_printf(&notes, "%s: starting over\n", why.text);
	memset(w->done, 0, n * sizeof *w->done);
	w->choice_kept = false;
	/* the journal first: it must never list data that are discarded */
	if ((code = convert_journal_restart(&w->journal, e)) ||
		(code = gguf_writer_create(w->writer, w->opt.out, false, e))) {
		gguf_writer_discard(w->writer);
		convert_journal_close(&w->journal, true);
	}
out:
	if (!code && w->opt.target_bytes && !w->choice_kept)
		code =
			convert_journal_add_types(&w->journal, w->choice_key, w->chosen, w->losses.n_groups, e);
	report_notes(&notes);
	buf_free(&notes);
	return code;
}

/* After the run, however it ended. Blocks that an earlier run has quantised are not counted. */
static void report_feedback(const struct convert_work *w, const struct convert_result *r)
{
	struct buf text = {0};
	const struct feedback_counts *f = &r->feedback;
	const uint64_t without = f->not_definite + f->uncorrelated;
	if (!f->blocks || (w->opt.quiet && !without))
		return;
	buf_printf(&text,
		"error feedback: in this run %" PRIu64 " of %" PRIu64 " blocks of columns did without it",
		without, f->blocks);
	if (without)
		buf_printf(&text,
			": the correlations of %" PRIu64 " are not positive definite, %" PRIu64 " have none",
			f->not_definite, f->uncorrelated);
	buf_printf(&text, "\n");
	report_notes(&text);
	buf_free(&text);
}

static double stage_gb_s(const struct convert_stage *s)
{
	return s->busy_ns ? (double)s->bytes / (double)s->busy_ns : 0;
}

/* Rates of the stages, each over the time in which it was busy: the lowest one is the bottleneck.
 */
static void report_stages(const struct convert_result *r)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	fprintf(stderr,
		"read %.2f GB at %.2f GB/s%s, quantised at %.2f GB/s (%" PRIu64 " of %" PRIu64
		" units on the card), wrote %.2f GB at %.2f GB/s\n",
		(double)r->read.bytes * 1e-9, stage_gb_s(&r->read),
		r->direct ? " with O_DIRECT" : " through the page cache", stage_gb_s(&r->quantise),
		r->card_units, r->units, (double)r->write.bytes * 1e-9, stage_gb_s(&r->write));
	fprintf(stderr, "most memory: %.2f GB of the host, %.2f GB of the card\n",
		(double)usage.ru_maxrss * 1024e-9, (double)r->card_bytes * 1e-9);
}

/* Opens w->card unless --backend cpu; with auto it stays NULL without a card, and the CPU
 * quantises. Says which, and the memory that matrices take. */
static int open_card(struct convert_work *w, struct err *e)
{
	struct err why = {0};
	uint32_t n_slots;
	if (w->opt.backend != BACKEND_CPU) {
		int code = quantizer_card_open(&w->card, &why);
		if (code && w->opt.backend == BACKEND_CUDA) {
			*e = why;
			return code;
		}
	}
	const uint64_t bytes = convert_memory(&w->choices, w->opt.jobs, w->card != NULL, &n_slots);
	if (!w->opt.quiet)
		fprintf(stderr,
			"backend  %s%s%s%s; up to %u matrices in memory, at most %.2f GB for them\n",
			w->card ? "cuda" : "cpu", why.code ? " (" : "", why.code ? ERR_PLAIN(why.text) : "",
			why.code ? ")" : "", n_slots, (double)bytes * 1e-9);
	return 0;
}

static int convert(struct convert_work *w, struct err *e)
{
	char took[32];
	uint64_t start = clock_ns();
	int code = open_card(w, e);
	if (code || (code = open_output(w, e)))
		return code;
	interrupt_catch(false);
	const struct convert_job job = {.choices = &w->choices,
		.st = w->st,
		.writer = w->writer,
		.journal = &w->journal,
		.done = w->done,
		.damaged = w->damaged,
		.card = w->card,
		.n_workers = w->opt.jobs,
		.progress = !w->opt.quiet,
		.cancel = interrupt_flag()};
	struct convert_result result;
	w->card = NULL;
	code = convert_run(&job, &result, e);
	report_feedback(w, &result);
	if (code == ERR_INPUT)
		return keep_sound_tensors(w, e);
	if (!code && (code = gguf_writer_commit(w->writer, e)) == ERR_INPUT) {
		err_hint(e, "the same command with --force replaces it, and goes on from here");
		return code;
	}
	if (code == ERR_USAGE) /* an input has the output's name by now */
		return code;
	if (code) {
		err_hint(e, "the same command goes on from here");
		return code;
	}
	convert_journal_close(&w->journal, true);
	if (!w->opt.quiet)
		report_stages(&result);
	if (!w->opt.quiet)
		fprintf(stderr, "%s: %" PRIu64 " bytes in %s\n", ERR_PLAIN(w->opt.out),
			output_bytes(w->writer), progress_time_text((double)(clock_ns() - start) * 1e-9, took));
	return 0;
}

static int parse_convert_options(int argc, char **argv, struct convert_options *o, struct err *e)
{
	struct convert_type_words types;
	const struct arg options[] = {
		{"output", 'o', ARG_STRING, .string = &o->out, .file = ARG_WRITES, .value = "OUT.gguf",
			.help = "file to write; with --split-gb OUT-00001-of-0000N.gguf"},
		{"recipe", 0, ARG_STRING, .string = &o->recipe_name, .value = "NAME",
			.words = convert_recipe_words(),
			.help = "f32, bf16: every matrix in that type; q8, q4, q2, iq2: experts as Q8_0, Q4_K, "
					"Q2_K, IQ2_XXS and other matrices as Q8_0; q2-s, iq2-s: the same experts, and "
					"other matrices as Q4_K, for cards of 16 and 24 GB; iq2-t: experts as IQ2_XXS, "
					"other matrices as Q3_K and Q2_K, for cards of 12 GB"},
		{"target-gb", 0, ARG_SIZE_GB, .u64 = &o->target_bytes, .min = 0, .max = 1e9,
			.above_min = true, .value = "G",
			.help = "in place of a recipe: types by layer and matrix, chosen by measured errors "
					"and sensitivities so that the output takes at most G * 10^9 bytes"},
		{"types", 0, ARG_STRING, .string = &o->types_text, .value = "PATTERN=TYPE,...",
			.words = convert_type_words(&types, quantize_supported),
			.help = "exceptions to recipe and target: matrices whose GGUF name matches the shell "
					"pattern get that type; the first match counts. Routers and indexer.proj stay "
					"F32"},
		{"dry-run", 0, ARG_FLAG, .flag = &o->dry_run,
			.help = "print what would be written, to the byte, and stop"},
		{"imatrix", 0, ARG_STRING, .string = &o->imatrix, .file = ARG_READS, .value = "FILE",
			.help = "importance matrix of `glmstream imatrix` or llama.cpp (GGUF or .dat) for q4, "
					"q2, iq2, q2-s, iq2-s, iq2-t and --target-gb",
			.fallback =
				"for IQ2_XXS the sum of squares of each column, else the type's own weights"},
		{"feedback", 0, ARG_FLAG, .flag = &o->feedback,
			.help =
				"quantise routed experts with error feedback: columns make up for errors of the "
				"columns before, by the moments that --imatrix may hold, else by those of the "
				"expert's own columns. Same size, better; takes 2 to 4 times as long. The end says "
				"how many blocks of 256 columns did without it"},
		{"backend", 0, ARG_CHOICE, .i32 = &o->backend, .words = convert_backends,
			.help = "where Q8_0, Q4_0, Q2_K to Q6_K and IQ2_XXS are quantised; the bytes are the "
					"same",
			.fallback = "auto: the graphics card if one answers"},
		{"jobs", 'j', ARG_UINT, .u32 = &o->jobs, .min = 1, .max = WORKERS_MAX, .value = "N",
			.help = "threads that quantise on the CPU", .fallback = "all cores"},
		{"split-gb", 0, ARG_SIZE_GB, .u64 = &o->split_bytes, .min = 0, .max = 1e9,
			.above_min = true, .value = "G",
			.help = "largest file of a split output, in 10^9 bytes", .fallback = "one file"},
		{"force", 0, ARG_FLAG, .flag = &o->force,
			.help =
				"replace OUT.gguf if it exists, and a .partial or .journal beside it that is not "
				"this program's"},
		{"quiet", 'q', ARG_FLAG, .flag = &o->quiet,
			.help = "neither plan, progress nor figures: notes and errors alone"},
	};
	const struct arg positional[] = {
		{.kind = ARG_STRING,
			.string = &o->src,
			.file = ARG_READS,
			.value = "SRC_DIR",
			.required = true,
			.help = "directory with config.json and *.safetensors"},
	};
	const struct arg_group groups[] = {{NULL, options, ARRAY_LEN(options)}};
	const struct args args = {.command = "glmstream convert",
		.usage = "SRC_DIR -o OUT.gguf --recipe NAME|--target-gb G [options]",
		.about =
			"Hugging Face safetensors (BF16, F16, F32, or FP8 with 128 x 128 block scales) to "
			"GGUF. Memory use does not grow with the model. A conversion that was interrupted "
			"goes on where it stood when the same command is given again, and so does one that "
			"a damaged shard has ended: after the shard has been replaced, only the tensors "
			"that are made from it and the unfinished ones are converted. OUT.gguf appears "
			"only when it is complete. f32 and bf16 files are aligned to 32 bytes, so that "
			"llama-quantize can take them.",
		.example = "glmstream convert GLM-5.2-FP8 -o glm52-q2.gguf --recipe q2\n"
				   "glmstream convert GLM-5.2 --recipe iq2 --dry-run\n"
				   "glmstream convert GLM-5.2 -o glm52.gguf --target-gb 205 --imatrix imp.gguf",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
		.positional = positional,
		.n_positional = ARRAY_LEN(positional)};
	o->jobs = workers_cores();
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc;
	if (o->recipe_name && o->target_bytes)
		return err_set(e, ERR_USAGE, "--recipe and --target-gb exclude each other");
	if (!o->recipe_name && !o->target_bytes)
		return err_set(e, ERR_USAGE, "one of --recipe NAME and --target-gb G is expected");
	if ((rc = convert_recipe_parse(
			 &o->recipe, o->recipe_name ? o->recipe_name : TARGET_RECIPE, e)) ||
		(o->types_text &&
			(rc = convert_types_parse(&o->types, o->types_text, quantize_supported, e))))
		return rc;
	if (!o->dry_run && !o->out)
		return err_set(e, ERR_USAGE, "-o OUT.gguf is missing");
	return 0;
}

/* -o may be a link. Its target gives all names: of the output, its parts and the journal. So a link
 * and the file that it leads to never have two journals for one .partial. */
static int follow_output(struct convert_work *w, struct err *e)
{
	if (w->opt.dry_run)
		return 0;
	const int rc = out_file_target(w->opt.out, &w->target, NULL, e);
	w->opt.out = w->target;
	return rc;
}

/* The source cannot be used, and an earlier run has left its work. */
static void hint_unfinished(const struct convert_options *o, struct err *e)
{
	char *journal = o->out && !o->dry_run ? mem_printf("%s.journal", o->out) : NULL;
	struct stat st;
	if (journal && e && !e->hint[0] && !stat(journal, &st) && st.st_size)
		err_hint(e, "with that mended, the same command goes on with the earlier run's work");
	free(journal);
}

int cmd_convert(int argc, char **argv, struct err *e)
{
	struct convert_work w = {.journal.fd = -1};
	int rc = parse_convert_options(argc, argv, &w.opt, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if ((rc = follow_output(&w, e)))
		return rc;
	if ((rc = make_plan(&w, e)) == ERR_INPUT)
		hint_unfinished(&w.opt, e);
	if (!rc && (w.opt.dry_run || !w.opt.quiet))
		print_plan(&w, w.opt.dry_run ? stdout : stderr);
	if (!rc && !w.opt.dry_run)
		rc = convert(&w, e);
	convert_journal_close(&w.journal, false);
	if (w.card)
		w.card->ops->close(w.card);
	gguf_writer_free(w.writer);
	imatrix_file_close(w.imatrix);
	convert_losses_fini(&w.losses);
	free(w.chosen);
	convert_plan_fini(&w.plan);
	safetensors_close(w.st);
	free(w.done);
	free(w.pieces);
	free(w.sources);
	free(w.damaged);
	free(w.has_importance);
	free(w.feedback);
	free(w.target);
	return rc;
}
