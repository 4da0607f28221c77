/* SPDX-License-Identifier: MIT */
/*
 * glmstream imatrix: runs a text through a model and writes how strongly each column of each matrix
 * was driven, for `convert --imatrix`; or adds up such files.
 *
 * The file is replaced by a larger one every few chunks. It names model, type of the cache, text
 * and position, so the same command goes on where it stands; a file of anything else is not
 * replaced without --force.
 */
#include "src/base/args.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/session/session.h"
#include "src/engine/session/session_file.h"
#include "tools/commands/commands.h"
#include "tools/imatrix/imatrix_collect.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/imatrix/imatrix_report.h"
#include "tools/imatrix/imatrix_write.h"
#include "tools/options/common_opts.h"
#include "tools/options/text_input.h"
#include "tools/output/interrupt.h"
#include "tools/output/progress.h"
#include "tools/output/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_CHUNK 2048
#define DEFAULT_SAVE  10
#define MERGE_MOST    16 /* files; the help says so */

struct imatrix_options {
	struct common_opts common;
	const char *text, *out;
	uint32_t max_chunks, save_every, rare;
	bool special, json, merge, moments;
	const char *files[MERGE_MOST]; /* of --merge; the first that are not NULL */
};

/* ---- collecting ---- */

struct imatrix_run {
	const struct imatrix_options *o;
	struct imatrix_output out;
	struct engine *g;
	struct session *s;
	struct imatrix_collect *sums;
	struct token_ids ids;
	uint32_t chunk;         /* tokens */
	uint64_t n_chunks;      /* wanted */
	uint64_t done, written; /* chunks in the sums; in the file */
	struct progress progress;
};

/* What the sums of a text depend on: the model with its weights, and the type of the cache. */
static uint64_t model_hash(const struct imatrix_run *r, bool kv_f32)
{
	return hash_u64(session_fingerprint(r->g), kv_f32);
}

static struct imatrix_origin origin_at(const struct imatrix_run *r, uint64_t chunks)
{
	const uint64_t tokens = chunks * r->chunk;
	return (struct imatrix_origin){.model = model_hash(r, r->o->common.kv_f32),
		.text = hash_bytes(HASH_START, r->ids.data, tokens * sizeof *r->ids.data),
		.tokens = tokens};
}

/* A view of the sums as they are now; release with imatrix_set_fini. */
static void make_set(const struct imatrix_run *r, struct imatrix_set *s)
{
	*s = (struct imatrix_set){.chunk_count = (uint32_t)r->done,
		.chunk_size = r->chunk,
		.has_origin = true,
		.origin = origin_at(r, r->done)};
	const char *slash = strrchr(r->o->text, '/'), *name = slash ? slash + 1 : r->o->text;
	imatrix_set_add_dataset(s, name, strlen(name));
	imatrix_collect_fill(r->sums, s);
}

static int write_sums(struct imatrix_run *r, struct err *e)
{
	struct imatrix_set s;
	make_set(r, &s);
	int rc = imatrix_write(&s, &r->out, e);
	imatrix_set_fini(&s);
	if (!rc)
		r->written = r->done;
	return rc;
}

/* The sums go on from those of a file that an earlier run wrote. ERR_INPUT: it is of another. */
static int take_up(struct imatrix_run *r, const struct imatrix_set *old, struct err *e)
{
	const char *path = r->o->out;
	const uint64_t chunks = old->origin.tokens / r->chunk, all = r->ids.n / r->chunk;
	const struct imatrix_origin now = origin_at(r, MIN(chunks, all));
	bool has_moments = false;
	for (size_t i = 0; i < old->n; i++)
		has_moments = has_moments || imatrix_is_moments(old->tensors[i].name);
	const bool other_cache = old->origin.model == model_hash(r, !r->o->common.kv_f32);
	const char *other = other_cache                      ? "type of the cache (--kv-f32)"
						: old->origin.model != now.model ? "model"
						: has_moments != r->o->moments   ? "choice of --moments"
						: old->chunk_size != r->chunk    ? "size of chunks"
						: old->origin.tokens != now.tokens || old->origin.text != now.text ||
								old->chunk_count != chunks
							? "text"
							: NULL;
	if (other) {
		err_set(
			e, ERR_INPUT, "%.400s: was collected with another %s; it is not replaced", path, other);
		err_hint(e, "--force starts over and replaces it");
		return ERR_INPUT;
	}
	int rc = imatrix_collect_restore(r->sums, old, path, e);
	if (!rc)
		r->done = r->written = chunks;
	return rc;
}

/* Looks at what stands at -o. A file that no run of this command wrote is left to
 * imatrix_check_output. With --force what was interrupted goes on too, and any other file is
 * replaced. */
static int resume(struct imatrix_run *r, struct err *e)
{
	const char *path = r->o->out;
	struct imatrix_set old = {0};
	struct err why = {0};
	if (imatrix_is_dat(path) || access(path, F_OK))
		return 0;
	imatrix_output_own(&r->out); /* before it is read */
	int rc = imatrix_set_load(&old, path, NULL, &why);
	if (!rc && old.has_origin)
		rc = take_up(r, &old, &why);
	else if (rc == ERR_INPUT)
		rc = 0;
	imatrix_set_fini(&old);
	if (!r->done)
		r->out.has_own = false;
	if (rc == ERR_INPUT && r->o->common.force)
		return 0;
	if (rc && e)
		*e = why;
	return rc;
}

static int check_space(const struct imatrix_run *r, struct err *e)
{
	struct imatrix_set s;
	make_set(r, &s);
	int rc = imatrix_check_space(&s, &r->out, e);
	imatrix_set_fini(&s);
	return rc;
}

static int collect_chunk(struct imatrix_run *r, struct err *e)
{
	const struct session_watch watch = {.cancel = interrupt_flag()};
	session_rewind(r->s, 0);
	int rc = session_extend(r->s, r->ids.data + r->done * r->chunk, r->chunk, NULL, &watch, e);
	if (rc) {
		imatrix_collect_drop(r->sums);
		return rc;
	}
	if (!(rc = imatrix_collect_keep(r->sums, e)))
		r->done++;
	return rc;
}

/* What was computed so far is in the file. */
static int interrupted_after(const struct imatrix_run *r, struct err *e)
{
	err_set(e, ERR_INTERRUPTED, "interrupted");
	return err_hint(e, "%" PRIu64 " of %" PRIu64 " chunks are done; the same command goes on",
		r->written, r->n_chunks);
}

static int collect(struct imatrix_run *r, struct err *e)
{
	const bool dat = imatrix_is_dat(r->o->out);
	int rc = 0;
	if (!r->o->common.quiet)
		progress_begin_lines(
			&r->progress, "collecting", "tok", r->done * r->chunk, r->n_chunks * r->chunk);
	while (r->done < r->n_chunks && !(rc = collect_chunk(r, e))) {
		progress_update(&r->progress, r->done * r->chunk, r->n_chunks * r->chunk);
		if (r->done - r->written >= r->o->save_every && r->done < r->n_chunks && !dat &&
			(rc = write_sums(r, e)))
			break;
	}
	progress_end(&r->progress);
	if (rc == ERR_INTERRUPTED && dat)
		err_hint(e, "a .dat is written at its end only; a run into a GGUF can go on");
	else if (rc == ERR_INTERRUPTED && (r->done == r->written || !(rc = write_sums(r, e))))
		rc = interrupted_after(r, e);
	return rc || r->done == r->written ? rc : write_sums(r, e);
}

/* Cuts the text into chunks. */
static int plan_chunks(struct imatrix_run *r, struct err *e)
{
	const struct imatrix_options *o = r->o;
	const bool given = o->common.context != 0;
	r->chunk = MIN(engine_context(r->g), given ? o->common.context : DEFAULT_CHUNK);
	if (!given)
		r->chunk = (uint32_t)MIN(r->chunk, MAX(r->ids.n, (size_t)1));
	const uint64_t all = r->ids.n / r->chunk;
	if (!all) {
		err_set(
			e, ERR_INPUT, "%.400s: holds %zu tokens, a chunk has %u", o->text, r->ids.n, r->chunk);
		return err_hint(e, r->ids.n ? "a smaller -c makes smaller chunks" : "expected a text");
	}
	r->n_chunks = o->max_chunks ? MIN(o->max_chunks, all) : all;
	if (r->n_chunks > INT32_MAX)
		return err_set(e, ERR_INPUT, "%.400s: gives %" PRIu64 " chunks of %u tokens, at most %d",
			o->text, r->n_chunks, r->chunk, INT32_MAX);
	if (r->n_chunks == all && r->ids.n % r->chunk && !o->common.quiet)
		log_info("the last %" PRIu64 " of %zu tokens are left out: less than a chunk of %u",
			(uint64_t)(r->ids.n % r->chunk), r->ids.n, r->chunk);
	return 0;
}

static int run_text(struct imatrix_run *r, struct err *e)
{
	const struct imatrix_options *o = r->o;
	char *text = NULL;
	size_t len = 0;
	int rc = imatrix_check_place(&r->out, e);
	if (!rc)
		rc = text_input_read(strcmp(o->text, "-") ? o->text : NULL, &text, &len, e);
	struct common_opts common = o->common;
	if (!common.context)
		common.context = DEFAULT_CHUNK;
	common.no_mtp = true;
	if (!rc)
		rc = common_opts_open(&common, &r->g, e);
	if (!rc)
		rc = session_new(r->g, &r->s, e);
	if (!rc && (rc = tokenizer_encode(engine_tokenizer(r->g), text, len,
					o->special ? TOKENIZER_PARSE_ADDED : 0, &r->ids, e)))
		err_prefix(e, "%.400s", o->text);
	free(text);
	if (rc || (rc = plan_chunks(r, e)) ||
		(rc = imatrix_collect_open(r->g, o->moments, &r->sums, e)) || (rc = resume(r, e)) ||
		(rc = imatrix_check_output(&r->out, e)) ||
		(r->done < r->n_chunks && (rc = check_space(r, e))))
		return rc;
	if (r->done && !o->common.quiet)
		log_info("%s: going on behind chunk %" PRIu64 " of %" PRIu64, o->out, r->done,
			MAX(r->done, r->n_chunks));
	interrupt_catch(false);
	engine_observe(r->g, imatrix_collect_observer(r->sums));
	rc = collect(r, e);
	engine_observe(r->g, NULL);
	if (rc)
		return rc;
	struct imatrix_set s;
	make_set(r, &s);
	imatrix_report_print(&s, o->out, o->rare, o->json);
	imatrix_set_fini(&s);
	return 0;
}

static int collect_text(const struct imatrix_options *o, struct err *e)
{
	struct imatrix_run r = {.o = o, .out = {.path = o->out, .force = o->common.force}};
	int rc = run_text(&r, e);
	session_free(r.s);
	imatrix_collect_close(r.sums);
	rc = common_opts_close(r.g, rc, e);
	token_ids_free(&r.ids);
	return rc;
}

/* ---- merging ---- */

static int merge_files(const struct imatrix_options *o, struct err *e)
{
	struct imatrix_set all = {0};
	struct imatrix_output out = {.path = o->out, .force = o->common.force};
	int rc = imatrix_check_output(&out, e);
	for (int i = 0; i < MERGE_MOST && o->files[i] && !rc; i++) {
		struct imatrix_set one = {0};
		bool estimated = false;
		rc = imatrix_set_load(&one, o->files[i], &estimated, e);
		if (!rc && estimated && !o->common.quiet)
			log_warn(
				"%s: has no counts; each of its calls is taken for %d tokens, whatever -c was, "
				"and its rare experts count as the others",
				o->files[i], IMATRIX_DAT_CHUNK);
		if (!rc)
			rc = imatrix_set_merge(&all, &one, o->files[i], e);
		imatrix_set_fini(&one);
	}
	if (!rc && !(rc = imatrix_write(&all, &out, e)))
		imatrix_report_print(&all, o->out, o->rare, o->json);
	imatrix_set_fini(&all);
	return rc;
}

/* ---- options ---- */

/* Whether --merge uses the option. */
static bool is_for_merging(const char *name)
{
	static const char *const names[] = {
		"output", "merge", "rare", "json", "force", "quiet", "verbose"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}

/* Lets the parser note which of the options of a run over text are given. given [n] */
static void note_given(struct arg *args, size_t n, bool *given)
{
	for (size_t i = 0; i < n; i++)
		if (!args[i].given)
			args[i].given = &given[i];
}

static int refuse_given(const struct arg *args, size_t n, struct err *e)
{
	for (size_t i = 0; i < n; i++) {
		const char letter[] = {args[i].letter, 0};
		if (*args[i].given && !is_for_merging(args[i].name))
			return err_set(e, ERR_USAGE,
				"--merge adds files up and reads no text: %s%s has no place",
				letter[0] ? "-" : "--", letter[0] ? letter : args[i].name);
	}
	return 0;
}

static int check_options(const struct imatrix_options *o, struct err *e)
{
	const bool text = o->text && *o->text;
	if (!o->merge && o->files[0]) {
		err_set(e, ERR_USAGE, "unexpected argument \"%.60s\"", o->files[0]);
		return err_hint(e, "-f TEXT collects; --merge FILE... adds files up");
	}
	if (o->merge && !o->files[0])
		return err_set(e, ERR_USAGE, "--merge: no file to read");
	if (!o->merge && !text)
		return err_set(e, ERR_USAGE, "option -f TEXT is missing");
	if (o->moments && imatrix_is_dat(o->out))
		return err_set(e, ERR_USAGE, "--moments: a .dat cannot hold them; -o FILE.gguf can");
	if (!o->merge && o->common.cpu_experts)
		return err_set(e, ERR_USAGE,
			"--cpu-experts: what the processor computes beside a card is "
			"not observed");
	return 0;
}

int cmd_imatrix(int argc, char **argv, struct err *e)
{
	struct imatrix_options o = {.save_every = DEFAULT_SAVE, .rare = IMATRIX_PRIOR_TOKENS};
	struct arg own[] = {
		{"file", 'f', ARG_STRING, .string = &o.text, .file = ARG_READS, .value = "TEXT",
			.help = "UTF-8 text to run through the model (- is stdin)"},
		{"output", 'o', ARG_STRING, .string = &o.out, .file = ARG_WRITES, .value = "FILE",
			.required = true,
			.help = "importance matrix to write: a GGUF, or llama.cpp's older format when the name "
					"ends in .dat"},
		{"chunks", 0, ARG_UINT, .u32 = &o.max_chunks, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "stop after N chunks of -c tokens", .fallback = "all"},
		{"save-every", 0, ARG_UINT, .u32 = &o.save_every, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "write the file after every N chunks", .fallback = "10"},
		{"merge", 0, ARG_FLAG, .flag = &o.merge,
			.help = "add up the files that follow, 16 at most and of either format, instead of "
					"reading a text"},
		{"rare", 0, ARG_UINT, .u32 = &o.rare, .min = 0, .max = INT32_MAX, .value = "N",
			.help = "name the experts that fewer than N tokens went to", .fallback = "64"},
		{"moments", 0, ARG_FLAG, .flag = &o.moments,
			.help = "second moments of the experts' inputs too, in blocks of 256 columns, for "
					"convert --feedback: 20 GB in the file, 41 GB of memory for GLM-5.2"},
		{"special", 0, ARG_FLAG, .flag = &o.special,
			.help = "added tokens in the text are tokens, not text"},
		{"kv-f32", 0, ARG_FLAG, .flag = &o.common.kv_f32,
			.help = "keep the cache in float32 instead of 16 bit"},
		{"json", 0, ARG_FLAG, .flag = &o.json, .help = "print one JSON object"},
	};
	struct arg positional[MERGE_MOST];
	for (int i = 0; i < MERGE_MOST; i++)
		positional[i] = (struct arg){
			.kind = ARG_STRING, .string = &o.files[i], .file = ARG_READS, .value = "FILE"};
	const struct arg_group common = common_opts_group(&o.common);
	const struct arg_group groups[] = {{NULL, own, ARRAY_LEN(own)}, common};
	bool given[ARRAY_LEN(own) + COMMON_OPTS_MAX] = {0};
	note_given(own, ARRAY_LEN(own), given);
	note_given(o.common.args, common.n, given + ARRAY_LEN(own));
	const struct args args = {.command = "glmstream imatrix",
		.usage = "-m MODEL -f TEXT -o FILE [options], or --merge FILE... -o FILE",
		.about = "Runs a text through a model and writes how strongly each column of each matrix "
				 "is driven: the importance matrix that convert and llama-quantize take. Sums of "
				 "squares by tensor and expert, in llama.cpp's format. The text is cut into chunks "
				 "of -c tokens (here 2048 by default). A run that was interrupted goes on when the "
				 "same command is given again; .dat files are written at the end only.",
		.example = "glmstream imatrix -m glm52-q8.gguf -f calibration.txt -o imatrix.gguf\n"
				   "glmstream imatrix --merge a.gguf b.gguf -o both.gguf\n"
				   "glmstream convert GLM-5.2 -o glm52.gguf --recipe iq2 --imatrix both.gguf",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
		.positional = positional,
		.n_positional = MERGE_MOST};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (o.merge && ((rc = refuse_given(own, ARRAY_LEN(own), e)) ||
					   (rc = refuse_given(o.common.args, common.n, e))))
		return rc;
	if ((rc = check_options(&o, e)))
		return rc;
	if (!o.merge)
		return collect_text(&o, e);
	log_set_level(o.common.verbose ? LOG_VERBOSE : o.common.quiet ? LOG_WARN : LOG_INFO);
	return merge_files(&o, e);
}
