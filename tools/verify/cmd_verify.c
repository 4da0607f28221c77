/* SPDX-License-Identifier: MIT */
/*
 * glmstream verify: are the weights of a file what they were? Values that are there are compared.
 * With --write those of a file without any are written beside it.
 *
 * --write trusts the bytes that it reads. So existing values are compared, and replaced only with
 * --force. Otherwise the same command, given again a year later, would accept damaged bytes.
 */
#include "src/base/args.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"
#include "src/checkpoint/checkpoint.h"
#include "tools/commands/commands.h"
#include "tools/options/pocket.h"
#include "tools/output/interrupt.h"
#include "tools/output/report.h"
#include "tools/output/workers.h"
#include "tools/verify/verify_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Each reads a range at a time: so many keep a drive busy. */
#define THREADS_USUAL 4
#define WRONG_SHOWN   20

struct verify_options {
	const char *model, *option_model;
	bool write, force, buffered, quiet;
	uint32_t jobs;
};

static int parse_verify_options(int argc, char **argv, struct verify_options *o, struct err *e)
{
	const struct arg options[] = {
		{"model", 'm', ARG_STRING, .string = &o->option_model, .file = ARG_READS, .value = "FILE",
			.help = "the same as MODEL"},
		{"write", 0, ARG_FLAG, .flag = &o->write,
			.help = "write the check values of a file that has none into MODEL.gguf.xxh3, where "
					"every command finds them. Values that are there are compared instead"},
		{"force", 0, ARG_FLAG, .flag = &o->force,
			.help = "with --write: do not look at values that are there, and replace any "
					"MODEL.gguf.xxh3"},
		{"no-direct", 0, ARG_FLAG, .flag = &o->buffered,
			.help = "read through the page cache, not past it"},
		{"jobs", 'j', ARG_UINT, .u32 = &o->jobs, .min = 1, .max = WORKERS_MAX, .value = "N",
			.help = "threads, each of which reads and hashes", .fallback = "4"},
		{"quiet", 'q', ARG_FLAG, .flag = &o->quiet, .help = "no progress, only errors"},
	};
	const struct arg_group groups[] = {{NULL, options, ARRAY_LEN(options)}};
	const struct arg positional = {
		.kind = ARG_STRING, .string = &o->model, .file = ARG_READS, .value = "MODEL"};
	const struct args args = {.command = "glmstream verify",
		.usage = "MODEL [--write] [options]",
		.about = "Reads all weights of a file from the drive and compares them with its check "
				 "values: an XXH3 of each matrix of an expert and of each other tensor. All of "
				 "the file is read; a difference is read again once, and then named. Exit status "
				 "3: something is wrong, or the file has no check values. Of a split file name "
				 "the first part.",
		.example = "glmstream verify glm52-iq2.gguf\n"
				   "glmstream verify -m GLM-5.2-UD-Q2_K_RoutedQ2K.gguf --write",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups),
		.positional = &positional,
		.n_positional = 1};
	o->jobs = THREADS_USUAL;
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc;
	if (o->model && o->option_model)
		return err_set(
			e, ERR_USAGE, "two models named, \"%.60s\" and \"%.60s\"", o->model, o->option_model);
	if (o->force && !o->write)
		return err_set(e, ERR_USAGE, "--force belongs to --write");
	return 0;
}

static int report_wrong(const struct check_map *map, const uint64_t *expected,
	const uint64_t *found, const struct verify_result *r, struct err *e)
{
	char text[CHECK_RANGE_TEXT];
	uint64_t shown = 0;
	for (uint64_t i = 0; i < r->ranges && shown < WRONG_SHOWN; i++)
		if (found[i] != expected[i]) {
			log_warn("%s: XXH3 %016" PRIx64 ", %016" PRIx64 " expected",
				check_range_text(map, i, text), found[i], expected[i]);
			shown++;
		}
	if (shown < r->wrong)
		log_warn("and %" PRIu64 " more", r->wrong - shown);
	const uint32_t file = check_map_range(map, r->first_wrong).run.file;
	err_set(e, ERR_INPUT,
		"%s: %" PRIu64 " of %" PRIu64 " check values are wrong; the first is of %s",
		map->file->files[file].path, r->wrong, r->ranges,
		check_range_text(map, r->first_wrong, text));
	return err_hint(e,
		"the bytes on the drive have changed, or were copied wrong: fetch or convert "
		"the file again");
}

static void print_result(const char *path, const char *what, const struct verify_result *r)
{
	printf("%s: %s: %" PRIu64 " check values, %.3f GB in %.1f s, %.2f GB/s%s\n", ERR_PLAIN(path),
		what, r->ranges, (double)r->bytes * 1e-9, r->seconds,
		(double)r->bytes * 1e-9 / MAX(r->seconds, 1e-9),
		r->direct ? "" : ", through the page cache");
}

static int compare_values(const struct verify_options *o, struct verify_job *job,
	const struct check_values *v, struct err *e)
{
	struct verify_result r;
	job->expected = v->values;
	int rc = verify_file(job, &r, e);
	if (rc)
		return rc;
	if (r.wrong)
		return report_wrong(job->map, v->values, job->values, &r, e);
	if (!o->quiet)
		print_result(gguf_path(job->map->file), "all right", &r);
	if (!o->quiet && o->write)
		printf("it has check values %s: none are written\n", v->beside ? "beside it" : "in it");
	return 0;
}

/* Writes what is read beside the model, unless it differs from `v`; NULL: there is nothing to
 * compare with. */
static int write_values(const struct verify_options *o, struct verify_job *job,
	const struct check_values *v, struct err *e)
{
	struct verify_result r;
	job->expected = v ? v->values : NULL;
	char *path = check_values_path(job->map->file);
	/* what cannot be written should be known before hours of reading */
	int rc = out_file_check(path, &out_check_values, o->force, e);
	if (!rc)
		rc = verify_file(job, &r, e);
	if (!rc && r.wrong)
		rc = report_wrong(job->map, v->values, job->values, &r, e);
	if (!rc)
		rc = check_values_write(job->map, job->values, path, o->force, e);
	if (!rc && !o->quiet)
		print_result(path, "written", &r);
	free(path);
	return rc;
}

/* The values to compare with; *v is NULL without any. *write: values are to be written.
 *
 * Check values beside the model that are damaged or of another model are no obstacle to --write:
 * they are replaced; any other file there is an error. The values of the key, which such a file
 * hides from every other command, are compared first. */
static int find_values(const struct verify_options *o, const struct gguf *g,
	struct check_values **v, bool *write, struct err *e)
{
	*v = NULL;
	*write = o->write;
	if (o->force)
		return 0;
	int rc = check_values_open(g, v, e);
	if (rc != ERR_INPUT || !o->write) {
		*write = o->write && !*v;
		return rc;
	}
	char *path = check_values_path(g);
	const bool beside = !access(path, F_OK);
	struct err other = {0};
	rc = out_file_check(path, &out_check_values, false, &other);
	free(path);
	if (rc) {
		*e = other;
		return rc;
	}
	log_warn(beside ? "%s: it is replaced" : "%s: values are written beside it", e->text);
	*e = (struct err){0};
	if (!beside)
		return 0;
	rc = check_values_open_key(g, v, e);
	if (rc != ERR_INPUT)
		return rc;
	log_warn("%s: it is not compared", e->text);
	*e = (struct err){0};
	return 0;
}

int cmd_verify(int argc, char **argv, struct err *e)
{
	struct verify_options o = {0};
	int rc = parse_verify_options(argc, argv, &o, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	const char *model = pocket_or(o.model ? o.model : o.option_model, e);
	if (!model)
		return e->code;
	struct gguf *g = NULL;
	struct check_values *v = NULL;
	struct check_map map = {0};
	uint64_t *found = NULL;
	bool write;
	if ((rc = model_file_open(model, &g, e)) || (rc = find_values(&o, g, &v, &write, e)))
		goto out;
	if (!v && !write) {
		rc = err_set(e, ERR_INPUT, "%s: has no check values", model);
		err_hint(e, "--write makes them of the file as it is now");
		goto out;
	}
	interrupt_catch(false);
	check_map_init(&map, g);
	found = mem_try_new(check_map_n(&map), sizeof *found);
	struct verify_job job = {.map = &map,
		.values = found,
		.n_threads = o.jobs,
		.buffered = o.buffered,
		.progress = !o.quiet,
		.cancel = interrupt_flag()};
	if (!found)
		rc = err_set(e, ERR_MEMORY, "no memory for %" PRIu64 " check values", check_map_n(&map));
	else
		rc = write ? write_values(&o, &job, v, e) : compare_values(&o, &job, v, e);
out:
	free(found);
	check_map_fini(&map);
	check_values_free(v);
	gguf_close(g);
	return rc;
}
