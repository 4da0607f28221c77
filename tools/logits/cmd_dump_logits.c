/* SPDX-License-Identifier: MIT */
/* Logits of a given sequence of ids, for comparison with other implementations: the last position,
 * every position, or the MTP layer's; and what happened inside (taps). Rows go to the file as they
 * are computed. */
#include "src/ranks/ranks.h"
#include "src/base/args.h"
#include "src/base/buf.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/generate.h"
#include "tools/commands/commands.h"
#include "tools/options/common_opts.h"
#include "tools/output/interrupt.h"
#include "tools/output/json_out.h"
#include "src/base/out_file.h"
#include "tools/output/report.h"
#include "tools/logits/token_rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Where rows go. */
struct rows_out {
	FILE *f;
	const char *path;
	uint32_t vocab, rows;
	uint64_t hash;
};

static int write_row(void *user, uint32_t at, const float *row, struct err *e)
{
	(void)at;
	struct rows_out *o = user;
	o->hash = generate_hash(o->hash, row, o->vocab);
	o->rows++;
	const bool lost = fwrite(row, sizeof *row, o->vocab, o->f) != o->vocab;
	if (lost && o->f == stdout && report_reader_gone())
		return err_set(e, ERR_RUN, "%s", "");
	if (lost)
		return err_errno(e, errno, "%.400s: row %u cannot be written", o->path, o->rows - 1);
	return 0;
}

/* ---- taps ---- */

struct taps_tensor {
	char name[48];
	const char *dtype; /* "F32", "U8", "U16", "I32" */
	uint64_t shape[3];
	int n_dims;
	const void *data;
	size_t bytes;
};

/* A safetensors file: u64 length, JSON header padded with blanks to a multiple of 8, data. */
static void write_tensors(FILE *f, const struct taps_tensor *tensors, size_t n)
{
	struct buf header = {0};
	uint64_t at = 0;
	buf_putc(&header, '{');
	for (size_t i = 0; i < n; i++) {
		const struct taps_tensor *t = &tensors[i];
		buf_printf(
			&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name, t->dtype);
		for (int d = 0; d < t->n_dims; d++)
			buf_printf(&header, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
		uint64_t end = at + t->bytes;
		buf_printf(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			(unsigned long long)end);
		at = end;
	}
	buf_putc(&header, '}');
	while (header.len % 8)
		buf_putc(&header, ' ');
	uint64_t len = header.len;
	fwrite(&len, sizeof len, 1, f); /* little-endian machines only: num.h */
	fwrite(header.data, 1, header.len, f);
	for (size_t i = 0; i < n; i++)
		fwrite(tensors[i].data, 1, tensors[i].bytes, f);
	buf_free(&header);
}

static int new_taps(
	struct session_taps *t, const struct model_config *c, uint32_t n_tokens, struct err *e)
{
	t->router_rows = n_tokens;
	t->resid_last = mem_try_new((size_t)c->n_layers * c->n_embd, sizeof *t->resid_last);
	t->router = mem_try_new((size_t)n_tokens * config_n_moe(c), c->n_used * sizeof *t->router);
	t->index_last = mem_try_new((size_t)c->n_layers * c->index_top_k, sizeof *t->index_last);
	t->n_index_last = mem_try_new(c->n_layers, sizeof *t->n_index_last);
	if (!t->resid_last || !t->router || !t->index_last || !t->n_index_last)
		return err_set(e, ERR_MEMORY, "no memory for the taps of %u tokens", n_tokens);
	return 0;
}

static void free_taps(struct session_taps *t)
{
	free(t->resid_last);
	free(t->router);
	free(t->index_last);
	free(t->n_index_last);
}

static void write_taps(
	FILE *f, const struct session_taps *t, const struct model_config *c, uint32_t n_tokens)
{
	struct taps_tensor *list = NEW_ARRAY(struct taps_tensor, c->n_layers + 2);
	size_t n = 0, n_ids = (size_t)n_tokens * config_n_moe(c) * c->n_used;
	list[n++] = (struct taps_tensor){.name = "resid_last",
		.dtype = "F32",
		.shape = {c->n_layers, c->n_embd},
		.n_dims = 2,
		.data = t->resid_last,
		.bytes = (size_t)c->n_layers * c->n_embd * sizeof(float)};
	bool small = c->n_experts <= 256;
	uint8_t *bytes = NULL;
	if (small) {
		bytes = NEW_ARRAY(uint8_t, n_ids);
		for (size_t i = 0; i < n_ids; i++)
			bytes[i] = (uint8_t)t->router[i];
	}
	list[n++] = (struct taps_tensor){.name = "router",
		.dtype = small ? "U8" : "U16",
		.shape = {n_tokens, config_n_moe(c), c->n_used},
		.n_dims = 3,
		.data = small ? (void *)bytes : (void *)t->router,
		.bytes = n_ids * (small ? 1 : sizeof(uint16_t))};
	for (uint32_t l = 0; l < c->n_layers; l++) {
		if (!t->n_index_last[l])
			continue;
		struct taps_tensor *x = &list[n++];
		*x = (struct taps_tensor){.dtype = "I32",
			.shape = {(uint64_t)t->n_index_last[l]},
			.n_dims = 1,
			.data = t->index_last + (size_t)l * c->index_top_k,
			.bytes = (size_t)t->n_index_last[l] * sizeof(int32_t)};
		snprintf(x->name, sizeof x->name, "index_topk_last.%u", l);
	}
	write_tensors(f, list, n);
	free(bytes);
	free(list);
}

/* ---- the command ---- */

/* What --mtp-steps adds to the output. */
struct dumped_drafts {
	uint32_t steps;
	int32_t next, ids[SESSION_DRAFTS_MAX];
};

static int dump_drafts(struct session *s, const int32_t *ids, uint32_t n,
	const struct session_watch *watch, struct rows_out *o, struct dumped_drafts *d, struct err *e)
{
	const struct engine *g = session_engine(s);
	int rc = session_sync(s, ids, n, watch, NULL, e);
	if (rc)
		return rc;
	const float *logits = session_logits(s);
	for (int32_t i = 1; i < engine_n_valid(g); i++)
		if (logits[i] > logits[d->next])
			d->next = i;
	float *rows = mem_try_new(d->steps, o->vocab * sizeof *rows);
	if (!rows)
		return err_set(e, ERR_MEMORY, "no memory for %u rows of %u logits", d->steps, o->vocab);
	rc = session_mtp_draft(s, d->next, d->steps, d->ids, rows, e);
	for (uint32_t i = 0; i < d->steps && !rc; i++)
		rc = write_row(o, i, rows + (size_t)i * o->vocab, e);
	free(rows);
	return rc;
}

static void print_logits_summary(
	FILE *f, const struct rows_out *rows, const struct dumped_drafts *d)
{
	json_t *o = json_object();
	char hash[17];
	snprintf(hash, sizeof hash, "%016llx", (unsigned long long)rows->hash);
	json_out_uint(o, "rows", rows->rows);
	json_out_uint(o, "vocab", rows->vocab);
	json_out_str(o, "logits_hash", hash);
	if (d->steps) {
		json_t *list = json_array();
		for (uint32_t i = 0; i < d->steps; i++)
			json_array_append_new(list, json_integer(d->ids[i]));
		json_object_set_new(o, "next_id", json_integer(d->next));
		json_object_set_new(o, "draft_ids", list);
	}
	json_out_line(f, o);
}

/* What can be refused before the model is opened, which takes long. taps: NULL for none. */
static int check_outputs(const char *out, const char *taps, bool force, struct err *e)
{
	int rc = out_file_check(out, &out_data, force, e);
	return rc || !taps ? rc : out_file_check(taps, &out_data, force, e);
}

int cmd_dump_logits(int argc, char **argv, struct err *e)
{
	struct common_opts common = {0};
	const char *ids_path = "", *out_path = "", *taps_path = NULL;
	bool all = false;
	struct dumped_drafts drafts = {0};
	const struct arg own[] = {
		{"ids", 0, ARG_STRING, .string = &ids_path, .file = ARG_READS, .value = "FILE",
			.required = true, .help = "whitespace-separated token ids (- is stdin)"},
		{"output", 'o', ARG_STRING, .string = &out_path, .file = ARG_WRITES_OR_STDOUT,
			.value = "OUT.f32", .required = true,
			.help = "little-endian float32 rows of all logits (- is stdout)"},
		{"all", 0, ARG_FLAG, .flag = &all, .help = "a row for every position, not only the last"},
		{"mtp-steps", 0, ARG_UINT, .u32 = &drafts.steps, .min = 1, .max = SESSION_DRAFTS_MAX,
			.value = "N",
			.help = "instead the logits of N drafts by the MTP layer, behind the likeliest next "
					"token; each step takes the draft of the one before"},
		{"taps", 0, ARG_STRING, .string = &taps_path, .file = ARG_WRITES_OR_STDOUT, .value = "FILE",
			.help = "also write intermediate results: safetensors with resid_last, router, "
					"index_topk_last.L"},
		{"kv-f32", 0, ARG_FLAG, .flag = &common.kv_f32,
			.help = "keep the cache in float32 instead of 16 bit"},
	};
	const struct arg_group groups[] = {{NULL, own, ARRAY_LEN(own)}, common_opts_group(&common)};
	const struct args args = {.command = "glmstream dump-logits",
		.usage = "-m MODEL --ids FILE -o OUT.f32 [options]",
		.about = "Computes a sequence of token ids and writes logits. Prints {\"rows\", \"vocab\", "
				 "\"logits_hash\"} on stdout (with -o - or --taps - on stderr), with --mtp-steps "
				 "also "
				 "{\"next_id\", \"draft_ids\"}.",
		.example = "glmstream tokenize -m MODEL < text.txt | glmstream dump-logits -m MODEL --ids "
				   "- --all -o logits.f32",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups)};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (all && drafts.steps)
		return err_set(e, ERR_USAGE,
			"--all and --mtp-steps exclude each other: drafts begin behind the last position");

	common.no_mtp = !drafts.steps && !common.trace; /* a trace has the sizes of all layers */
	if (taps_path && ranks_here())
		return err_set(e, ERR_USAGE, "--taps looks into all layers: it takes one process");

	struct engine *g = NULL;
	struct session *s = NULL;
	struct token_ids ids = {0};
	struct session_taps taps = {0};
	struct out_file out = {0}, taps_out = {0};
	interrupt_catch(false);
	const struct session_watch watch = {.cancel = interrupt_flag()};
	if ((!ranks_is_worker() && ((rc = token_ids_read(ids_path, &ids, e)) ||
								   (rc = check_outputs(out_path, taps_path, common.force, e)))) ||
		(rc = common_opts_open(&common, &g, e)))
		goto out;
	const struct model_config *c = engine_config(g);
	struct rows_out rows = {.vocab = c->n_vocab, .hash = GENERATE_HASH_START};
	if ((rc = token_ids_check(&ids, ids_path, c->n_vocab, engine_context(g), e)))
		goto out;
	uint32_t n = (uint32_t)ids.n;
	if ((rc = session_new(g, &s, e)) || (drafts.steps && (rc = session_enable_mtp(s, e))) ||
		(taps_path && (rc = new_taps(&taps, c, n, e))) ||
		(rc = out_file_open(&out, out_path, &out_data, common.force, e)) ||
		(taps_path && (rc = out_file_open(&taps_out, taps_path, &out_data, common.force, e))))
		goto out;
	rows.f = out.f;
	rows.path = out.path;
	if (taps_path)
		session_set_taps(s, &taps);
	if (drafts.steps) {
		rc = dump_drafts(s, ids.data, n, &watch, &rows, &drafts, e);
	} else if (all) {
		rc = token_rows_walk(s, ids.data, n, &watch, write_row, &rows, e);
	} else {
		rc = session_sync(s, ids.data, n, &watch, NULL, e);
		if (!rc)
			rc = write_row(&rows, n - 1, session_logits(s), e);
	}
	if (rc)
		goto out;
	if (taps_path) {
		write_taps(taps_out.f, &taps, c, n);
		if ((rc = out_file_commit(&taps_out, e)))
			goto out;
	}
	if ((rc = out_file_commit(&out, e))) {
		if (!strcmp(out_path, "-") && report_reader_gone())
			err_set(e, rc, "%s", "");
		goto out;
	}
	const bool to_stdout = !strcmp(out_path, "-") || (taps_path && !strcmp(taps_path, "-"));
	print_logits_summary(to_stdout ? stderr : stdout, &rows, &drafts);
out:
	out_file_abort(&out);
	out_file_abort(&taps_out);
	session_free(s);
	rc = common_opts_close(g, rc, e);
	free_taps(&taps);
	token_ids_free(&ids);
	return rc;
}
