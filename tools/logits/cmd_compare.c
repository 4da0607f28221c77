/* SPDX-License-Identifier: MIT */
/* How far two files of logits are apart: raw little-endian float32 rows, as dump-logits writes
 * them. Everything is computed in double. Files are read row by row, so their size does not matter.
 */
#include "src/base/args.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/commands/commands.h"
#include "tools/output/json_out.h"
#include "tools/output/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

struct rows_file {
	const char *path;
	FILE *f;
	uint64_t bytes;
};

/* One pair of rows. */
struct row_figures {
	double max_abs; /* largest |a - b| */
	double rms;     /* root of the mean square difference */
	double cosine;  /* NaN when a row is zero */
	double kl;      /* sum p_a (ln p_a - ln p_b), p = softmax */
	uint32_t top_a, top_b;
};

static int open_rows(struct rows_file *r, const char *path, struct err *e)
{
	r->path = path;
	r->f = fopen(path, "re");
	struct stat st;
	if (!r->f || fstat(fileno(r->f), &st))
		return err_errno(e, errno, "%.400s", path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, ERR_INPUT, "%.400s: is not a regular file", path);
	r->bytes = (uint64_t)st.st_size;
	if (!r->bytes)
		return err_set(e, ERR_INPUT, "%.400s: is empty, expected rows of float32", path);
	return 0;
}

static int read_row(struct rows_file *r, uint64_t row, float *out, uint32_t vocab, struct err *e)
{
	if (fread(out, sizeof *out, vocab, r->f) != vocab)
		return ferror(r->f)
				   ? err_errno(e, errno, "%.400s: row %llu", r->path, (unsigned long long)row)
				   : err_set(e, ERR_INPUT, "%.400s: ends in row %llu", r->path,
						 (unsigned long long)row);
	for (uint32_t i = 0; i < vocab; i++)
		if (!isfinite(out[i]))
			return err_set(e, ERR_INPUT,
				"%.400s: row %llu, column %u is %f, expected finite logits", r->path,
				(unsigned long long)row, i, (double)out[i]);
	return 0;
}

static double log_sum_exp(const float *x, uint32_t n, uint32_t top)
{
	double sum = 1; /* of the largest itself */
	for (uint32_t i = 0; i < n; i++)
		if (i != top)
			sum += exp((double)x[i] - x[top]);
	return x[top] + log(sum);
}

static struct row_figures compare_rows(const float *a, const float *b, uint32_t n)
{
	struct row_figures r = {0};
	double square = 0, aa = 0, bb = 0, ab = 0;
	for (uint32_t i = 0; i < n; i++) {
		double d = fabs((double)a[i] - b[i]);
		r.max_abs = MAX(r.max_abs, d);
		square += d * d;
		aa += (double)a[i] * a[i];
		bb += (double)b[i] * b[i];
		ab += (double)a[i] * b[i];
		if (a[i] > a[r.top_a])
			r.top_a = i;
		if (b[i] > b[r.top_b])
			r.top_b = i;
	}
	r.rms = sqrt(square / n);
	r.cosine = aa > 0 && bb > 0 ? ab / (sqrt(aa) * sqrt(bb)) : NAN;
	double za = log_sum_exp(a, n, r.top_a), zb = log_sum_exp(b, n, r.top_b);
	for (uint32_t i = 0; i < n; i++) {
		double la = a[i] - za;
		r.kl += exp(la) * (la - (b[i] - zb));
	}
	r.kl = MAX(r.kl, 0); /* rounding */
	return r;
}

static json_t *row_json(uint64_t row, const struct row_figures *r)
{
	json_t *o = json_object();
	json_out_uint(o, "row", row);
	json_out_real(o, "max_abs_diff", r->max_abs);
	json_out_real(o, "rms_diff", r->rms);
	json_out_real(o, "cosine", r->cosine);
	json_object_set_new(o, "top1_equal", json_boolean(r->top_a == r->top_b));
	json_out_uint(o, "top1_a", r->top_a);
	json_out_uint(o, "top1_b", r->top_b);
	json_out_real(o, "kl", r->kl);
	return o;
}

int cmd_compare(int argc, char **argv, struct err *e)
{
	const char *path_a = "", *path_b = "";
	uint32_t vocab = 0;
	bool json = false;
	const struct arg options[] = {
		{"vocab", 0, ARG_UINT, .u32 = &vocab, .min = 1, .max = UINT32_MAX, .value = "N",
			.help = "values in a row", .fallback = "the whole file is one row"},
		{"json", 0, ARG_FLAG, .flag = &json, .help = "print one JSON object"},
	};
	const struct arg_group group = {NULL, options, ARRAY_LEN(options)};
	const struct arg positional[] = {
		{.kind = ARG_STRING,
			.string = &path_a,
			.file = ARG_READS,
			.value = "A.f32",
			.required = true},
		{.kind = ARG_STRING,
			.string = &path_b,
			.file = ARG_READS,
			.value = "B.f32",
			.required = true},
	};
	const struct args args = {.command = "glmstream compare",
		.usage = "A.f32 B.f32 [--vocab N] [--json]",
		.about = "Compares two files of logits row by row: largest absolute difference, root mean "
				 "square difference, cosine, whether both rank the same token first, and the "
				 "Kullback-Leibler divergence of B from A in nats; then the worst and the mean of "
				 "all rows.",
		.example = "glmstream compare gpu.f32 cpu.f32 --vocab 154880",
		.groups = &group,
		.n_groups = 1,
		.positional = positional,
		.n_positional = 2};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;

	struct rows_file a = {0}, b = {0};
	float *row_a = NULL, *row_b = NULL;
	json_t *list = NULL;
	if ((rc = open_rows(&a, path_a, e)) || (rc = open_rows(&b, path_b, e)))
		goto out;
	if (a.bytes != b.bytes) {
		rc = err_set(e, ERR_INPUT,
			"%.400s has %llu bytes and %.400s has %llu: expected the same number of rows", path_a,
			(unsigned long long)a.bytes, path_b, (unsigned long long)b.bytes);
		goto out;
	}
	if (!vocab && a.bytes / sizeof(float) <= UINT32_MAX && a.bytes % sizeof(float) == 0)
		vocab = (uint32_t)(a.bytes / sizeof(float));
	uint64_t row_bytes = (uint64_t)vocab * sizeof(float);
	if (!vocab || a.bytes % row_bytes) {
		rc = err_set(e, ERR_INPUT, "%.400s: %llu bytes are no whole number of rows of %llu float32",
			path_a, (unsigned long long)a.bytes, (unsigned long long)(vocab ? vocab : 1));
		goto out;
	}
	row_a = mem_try_new(vocab, sizeof(float));
	row_b = mem_try_new(vocab, sizeof(float));
	if (!row_a || !row_b) {
		rc = err_set(e, ERR_MEMORY, "no memory for two rows of %u float32", vocab);
		goto out;
	}
	uint64_t rows = a.bytes / row_bytes, equal = 0;
	double max_abs = 0, rms = 0, cosine = 0, cosine_min = NAN, kl = 0, kl_max = 0;
	if (json)
		list = json_array();
	else
		printf("%6s  %12s  %12s  %13s  %-17s  %s\n", "row", "max abs diff", "rms diff", "cosine",
			"top 1", "KL (nats)");
	for (uint64_t i = 0; i < rows; i++) {
		if ((rc = read_row(&a, i, row_a, vocab, e)) || (rc = read_row(&b, i, row_b, vocab, e)))
			goto out;
		struct row_figures r = compare_rows(row_a, row_b, vocab);
		max_abs = MAX(max_abs, r.max_abs);
		rms += r.rms;
		cosine += r.cosine;
		cosine_min = fmin(cosine_min, r.cosine); /* the one that is a number */
		kl += r.kl;
		kl_max = MAX(kl_max, r.kl);
		equal += r.top_a == r.top_b;
		char top[40];
		snprintf(top, sizeof top, r.top_a == r.top_b ? "same %u" : "%u / %u", r.top_a, r.top_b);
		if (json)
			json_array_append_new(list, row_json(i, &r));
		else
			printf("%6llu  %12.6g  %12.6g  %13.10f  %-17s  %.6g\n", (unsigned long long)i,
				r.max_abs, r.rms, r.cosine, top, r.kl);
	}
	double n = (double)rows;
	if (json) {
		json_t *o = json_object();
		json_out_uint(o, "rows", rows);
		json_out_uint(o, "vocab", vocab);
		json_out_real(o, "max_abs_diff", max_abs);
		json_out_real(o, "rms_diff", rms / n);
		json_out_real(o, "cosine", cosine / n);
		json_out_real(o, "cosine_min", cosine_min);
		json_out_real(o, "top1_agreement", (double)equal / n);
		json_out_real(o, "kl", kl / n);
		json_out_real(o, "kl_max", kl_max);
		json_object_set(o, "per_row", list);
		json_out_line(stdout, o);
	} else {
		printf("%llu row%s of %u: max abs diff %.6g, mean rms diff %.6g, cosine %.10f (worst "
			   "%.10f), top 1 agrees in %.2f %%, KL %.6g nats (worst %.6g)\n",
			(unsigned long long)rows, rows == 1 ? "" : "s", vocab, max_abs, rms / n, cosine / n,
			cosine_min, 100 * (double)equal / n, kl / n, kl_max);
	}
out:
	json_decref(list);
	free(row_a);
	free(row_b);
	if (a.f)
		fclose(a.f);
	if (b.f)
		fclose(b.f);
	return rc;
}
