/* SPDX-License-Identifier: MIT */
/*
 * Nats per token of a text: the mean of -ln p(token | the tokens before it in its chunk). The text
 * is cut into chunks of a context; each starts afresh, so its first token has nothing before it and
 * is not scored. The standard error is that of a mean of independent values, which tokens are not
 * quite: it says how many digits to believe, no more.
 */
#include "src/base/args.h"
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/sampler.h"
#include "src/ranks/ranks.h"
#include "tools/commands/commands.h"
#include "tools/logits/token_rows.h"
#include "tools/options/common_opts.h"
#include "tools/options/text_input.h"
#include "tools/output/interrupt.h"
#include "tools/output/json_out.h"
#include "tools/output/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_CHUNK 2048

/* Running mean and sum of squared deviations (Welford). */
struct score {
	const int32_t *ids; /* of the chunk */
	uint32_t n;
	int32_t n_valid;
	uint64_t count;
	double mean, square;
};

static int score_row(void *user, uint32_t at, const float *row, struct err *e)
{
	struct score *s = user;
	if (at + 1 >= s->n)
		return 0;
	int32_t next = s->ids[at + 1];
	double v = -sampler_logprob(row, s->n_valid, next);
	if (!isfinite(v))
		return err_set(e, ERR_RUN,
			"the logits after token %u of a chunk give id %d no finite probability", at, next);
	s->count++;
	double d = v - s->mean;
	s->mean += d / (double)s->count;
	s->square += d * (v - s->mean);
	return 0;
}

static double standard_error(const struct score *s)
{
	return s->count > 1 ? sqrt(s->square / (double)(s->count - 1) / (double)s->count) : 0;
}

int cmd_perplexity(int argc, char **argv, struct err *e)
{
	struct common_opts common = {0};
	const char *path = "";
	bool json = false, special = false;
	uint32_t max_chunks = 0;
	const struct arg own[] = {
		{"file", 'f', ARG_STRING, .string = &path, .file = ARG_READS, .value = "TEXT",
			.required = true, .help = "UTF-8 text to score (- is stdin)"},
		{"chunks", 0, ARG_UINT, .u32 = &max_chunks, .min = 1, .max = INT32_MAX, .value = "N",
			.help = "stop after N chunks", .fallback = "all"},
		{"special", 0, ARG_FLAG, .flag = &special,
			.help = "added tokens in the text are tokens, not text"},
		{"kv-f32", 0, ARG_FLAG, .flag = &common.kv_f32,
			.help = "keep the cache in float32 instead of 16 bit"},
		{"json", 0, ARG_FLAG, .flag = &json, .help = "print one JSON object"},
	};
	const struct arg_group groups[] = {{NULL, own, ARRAY_LEN(own)}, common_opts_group(&common)};
	const struct args args = {.command = "glmstream perplexity",
		.usage = "-m MODEL -f TEXT [-c N] [options]",
		.about = "Nats per token over a text: the mean of -ln p(token), with its standard error. "
				 "The text is cut into chunks of the context (-c, here 2048 by default); the first "
				 "token of each is not scored.",
		.example = "glmstream perplexity -m MODEL -f wiki.txt -c 512",
		.groups = groups,
		.n_groups = ARRAY_LEN(groups)};
	int rc = report_parse(&args, argc, argv, e);
	if (rc)
		return rc == ARGS_HELP ? 0 : rc;
	if (common.context == 1)
		return err_set(
			e, ERR_USAGE, "-c: a chunk of one token leaves nothing to score, expected at least 2");

	struct engine *g = NULL;
	struct session *s = NULL;
	struct token_ids ids = {0};
	size_t len = 0;
	char *text = NULL;
	if (!ranks_is_worker() &&
		(rc = text_input_read(strcmp(path, "-") ? path : NULL, &text, &len, e)))
		return rc;
	common.no_mtp = !common.trace; /* a trace has the sizes of all layers */
	interrupt_catch(false);
	const struct session_watch watch = {.cancel = interrupt_flag()};
	uint32_t wanted = common.context;
	if (!common.context)
		common.context = DEFAULT_CHUNK;
	if ((rc = common_opts_open(&common, &g, e)) || (rc = session_new(g, &s, e)))
		goto out;
	if ((rc = tokenizer_encode(
			 engine_tokenizer(g), text, len, special ? TOKENIZER_PARSE_ADDED : 0, &ids, e))) {
		err_prefix(e, "%.400s", path);
		goto out;
	}
	if (ids.n < 2) {
		rc = err_set(e, ERR_INPUT, "%.400s: holds %zu token%s, expected at least 2", path, ids.n,
			ids.n == 1 ? "" : "s");
		goto out;
	}
	uint32_t chunk = MIN(engine_context(g), wanted ? wanted : DEFAULT_CHUNK);
	struct score score = {.n_valid = engine_n_valid(g)};
	uint64_t start = clock_ns(), n_chunks = 0, n_tokens = 0;
	bool live = isatty(STDERR_FILENO) && !common.quiet;
	for (size_t at = 0; at + 1 < ids.n && (!max_chunks || n_chunks < max_chunks); at += chunk) {
		score.ids = ids.data + at;
		score.n = (uint32_t)MIN(ids.n - at, (size_t)chunk);
		session_rewind(s, 0);
		if ((rc = token_rows_walk(s, score.ids, score.n, &watch, score_row, &score, e)))
			break;
		n_chunks++;
		n_tokens += score.n;
		if (live)
			fprintf(stderr, "\r%zu of %zu tokens, %.4f +- %.4f nats per token ",
				MIN(at + chunk, ids.n), ids.n, score.mean, standard_error(&score));
	}
	if (live)
		fprintf(stderr, "\r\033[K");
	if (rc)
		goto out;
	double seconds = (double)(clock_ns() - start) * 1e-9;
	if (json) {
		json_t *o = json_object();
		json_out_real(o, "nats_per_token", score.mean);
		json_out_real(o, "standard_error", standard_error(&score));
		json_out_real(o, "perplexity", exp(score.mean));
		json_out_uint(o, "tokens", n_tokens);
		json_out_uint(o, "scored", score.count);
		json_out_uint(o, "chunks", n_chunks);
		json_out_uint(o, "context", chunk);
		json_out_real(o, "tok_s", (double)n_tokens / seconds);
		json_out_str(o, "backend", engine_backend_name(g));
		json_out_line(stdout, o);
	} else {
		printf("%.6f +- %.6f nats per token (perplexity %.4f) over %llu tokens in %llu chunk%s of "
			   "%u; %.1f tok/s, %s\n",
			score.mean, standard_error(&score), exp(score.mean), (unsigned long long)score.count,
			(unsigned long long)n_chunks, n_chunks == 1 ? "" : "s", chunk,
			(double)n_tokens / seconds, engine_backend_name(g));
	}
out:
	session_free(s);
	rc = common_opts_close(g, rc, e);
	token_ids_free(&ids);
	free(text);
	return rc;
}
