/* SPDX-License-Identifier: MIT */
/*
 * Decoding with drafts, whose acceptance is the model's own, against decoding without. Questions
 * are answered one after the other, each without and with drafts. Which comes first alternates, so
 * that a disturbance of the machine meets both. The limit is the rate without drafts.
 *
 * With streamed experts each side has an engine, and so a cache, of its own: one that both filled
 * would hide what drafts load. The sides then take the memory of two.
 */
#include "tools/bench/bench.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/draft/draft_mtp.h"
#include "src/engine/generate.h"
#include "src/text/chat.h"
#include "tools/options/common_opts.h"
#include "tools/options/text_input.h"
#include "tools/output/interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char default_questions[] = "Define river.\nDefine mountain.\nDefine justice.\n"
										"Define apple.\nDefine music.\nDefine window.\n"
										"Define freedom.\nDefine doctor.\n";

enum { PLAIN, DRAFTED, SIDES };

struct drafts_bench {
	struct bench *b;
	struct engine *engines[SIDES]; /* the same where nothing is streamed */
	struct engine *g;              /* the first of them */
	struct bench_drafts_options o;
	struct session *sessions[SIDES]; /* the plain one has no rows of the MTP layer */
	struct token_ids *prompts;       /* [n_prompts] */
	uint32_t n_prompts;
	struct draft_timeline *timeline; /* of this sample */
	/* sums over a sample */
	double seconds[SIDES], thread_seconds[SIDES];
	uint64_t tokens;
	struct draft_stats stats; /* of all samples */
};

static int prompt_add(struct drafts_bench *d, const char *line, size_t len, struct err *e)
{
	struct chat chat = {.options.add_generation_prompt = true};
	d->prompts = mem_grow(d->prompts, d->n_prompts + 1, sizeof *d->prompts);
	struct token_ids *ids = &d->prompts[d->n_prompts++];
	*ids = (struct token_ids){0};
	chat_add(&chat, CHAT_USER, line, len);
	int rc = chat_render_ids(&chat, engine_tokenizer(d->g), ids, e);
	chat_fini(&chat);
	return rc ? rc : bench_check_context(d->g, ids->n, d->o.n_new, e);
}

/* A prompt for each line that is not blank; lines may end with CRLF. */
static int prompts_read(struct drafts_bench *d, struct err *e)
{
	char *file = NULL;
	size_t size = sizeof default_questions - 1;
	int rc = d->o.questions ? text_input_read(d->o.questions, &file, &size, e) : 0;
	const char *text = file ? file : default_questions;
	for (size_t at = 0, end; at < size && !rc; at = end + 1) {
		for (end = at; end < size && text[end] != '\n';)
			end++;
		size_t len = end - at;
		len -= len && text[end - 1] == '\r';
		if (strspn(text + at, " \t\r") < len)
			rc = prompt_add(d, text + at, len, e);
	}
	if (!rc && !d->n_prompts)
		rc = err_set(e, ERR_INPUT, "%.400s: holds no questions", d->o.questions);
	free(file);
	return rc;
}

static void stats_add(struct draft_stats *sum, const struct draft_stats *s)
{
	sum->steps += s->steps;
	sum->rows += s->rows;
	for (int i = 0; i < DRAFT_MAX; i++) {
		sum->tried[i] += s->tried[i];
		sum->accepted[i] += s->accepted[i];
	}
	for (int i = 0; i < DRAFT_SOURCES; i++) {
		sum->tried_by[i] += s->tried_by[i];
		sum->accepted_by[i] += s->accepted_by[i];
	}
	sum->drafting_ns += s->drafting_ns;
}

/* Answers a prompt on both sides; they must be equal. */
static int answer_both(struct drafts_bench *d, uint32_t prompt, uint32_t first, struct err *e)
{
	const struct token_ids *ids = &d->prompts[prompt];
	struct generate_result r[SIDES];
	for (uint32_t i = 0; i < SIDES; i++) {
		uint32_t side = (first + i) % SIDES;
		struct generate_options o = {.max_new = d->o.n_new,
			.sampler = {.temperature = d->o.temperature, .top_p = 1, .seed = prompt + 1},
			.watch = {.cancel = interrupt_flag()},
			.drafts = side == DRAFTED ? d->timeline : NULL};
		/* the prompt is computed before, so that the thread's time is that of decoding */
		int rc = session_sync(d->sessions[side], ids->data, (uint32_t)ids->n, &o.watch, NULL, e);
		uint64_t start = clock_thread_ns();
		if (!rc)
			rc = bench_generate(d->sessions[side], ids->data, (uint32_t)ids->n, &o, &r[side], e);
		if (rc)
			return rc;
		d->thread_seconds[side] += (double)(clock_thread_ns() - start) * 1e-9;
		d->seconds[side] += (double)r[side].decode_ns * 1e-9;
	}
	if (r[PLAIN].logits_hash != r[DRAFTED].logits_hash ||
		r[PLAIN].new_tokens != r[DRAFTED].new_tokens)
		return err_set(e, ERR_RUN,
			"drafts changed the answer to question %u: this is a fault of the program", prompt + 1);
	d->tokens += r[PLAIN].new_tokens;
	stats_add(&d->stats, &r[DRAFTED].drafts);
	return 0;
}

/* All questions, with a drafter that knows nothing of them yet. */
static int run_sample(struct drafts_bench *d, uint32_t sample, struct err *e)
{
	struct drafter *drafter = drafter_open(d->engines[DRAFTED], d->o.mode);
	int rc = 0;
	d->timeline = draft_timeline_open(drafter, d->sessions[DRAFTED]);
	d->tokens = 0;
	for (int side = 0; side < SIDES; side++)
		d->seconds[side] = d->thread_seconds[side] = 0;
	for (uint32_t i = 0; i < d->n_prompts && !rc; i++)
		rc = answer_both(d, i, sample + i, e);
	draft_timeline_free(d->timeline);
	drafter_free(drafter);
	if (!rc && !d->tokens)
		rc = err_set(e, ERR_RUN, "every answer is empty");
	return rc;
}

static double percent(uint64_t part, uint64_t all)
{
	return all ? 100.0 * (double)part / (double)all : 0;
}

static void report_acceptance(struct drafts_bench *d)
{
	static const char *const source[DRAFT_SOURCES] = {
		[DRAFT_LOOKUP] = "prompt lookup", [DRAFT_COMPUTED] = "the MTP layer"};
	const struct draft_stats *s = &d->stats;
	const double steps = (double)MAX(s->steps, 1);
	uint64_t accepted = 0;
	for (int i = 0; i < DRAFT_MAX; i++)
		accepted += s->accepted[i];
	bench_add_value(d->b, "drafts", "tok/step", 1 + (double)accepted / steps, "accept length");
	bench_add_value(d->b, "drafts", "/step", (double)s->rows / steps, "rows");
	for (int i = 0; i < DRAFT_MAX && s->tried[i]; i++)
		bench_add_value(d->b, "drafts", "%", percent(s->accepted[i], s->tried[i]),
			"right at position %d, of %llu compared", i + 1, (unsigned long long)s->tried[i]);
	for (int i = 0; i < DRAFT_SOURCES; i++)
		if (s->tried_by[i])
			bench_add_value(d->b, "drafts", "%", percent(s->accepted_by[i], s->tried_by[i]),
				"right by %s, of %llu", source[i], (unsigned long long)s->tried_by[i]);
	bench_add_value(
		d->b, "drafts", "ms/step", s->drafting_ns * 1e-6 / steps, "of it computing drafts");
}

static void report(struct drafts_bench *d, double seconds[SIDES][BENCH_MAX_REPEATS],
	double threads[SIDES][BENCH_MAX_REPEATS])
{
	struct bench *b = d->b;
	const bool one_cpu_thread = b->threads == 1 && !strcmp(engine_backend_name(d->g), "cpu");
	double ratio[BENCH_MAX_REPEATS], thread_ratio[BENCH_MAX_REPEATS];
	for (int i = 0; i < b->repeats; i++) {
		ratio[i] = seconds[PLAIN][i] / seconds[DRAFTED][i];
		thread_ratio[i] = threads[PLAIN][i] / threads[DRAFTED][i];
	}
	const double n = (double)d->tokens; /* the same in all samples */
	const struct bench_spread plain = bench_rate(bench_spread_of(seconds[PLAIN], b->repeats), n);
	char mode[16] = "auto";
	if (d->o.mode != DRAFT_AUTO)
		snprintf(mode, sizeof mode, "%d", d->o.mode);
	bench_add(b, "drafts", "tok/s", plain, 0, NULL, "without, %u questions, %.0f tokens",
		d->n_prompts, n);
	bench_add(b, "drafts", "tok/s", bench_rate(bench_spread_of(seconds[DRAFTED], b->repeats), n),
		plain.median, "without", "--draft %s", mode);
	bench_add(b, "drafts", "x", bench_spread_of(ratio, b->repeats), 0, NULL,
		"rate with drafts / without, median of samples");
	if (one_cpu_thread)
		bench_add(b, "drafts", "x", bench_spread_of(thread_ratio, b->repeats), 0, NULL,
			"the same by processor time");
	report_acceptance(d);
}

static int open_sides(struct drafts_bench *d, struct common_opts *options, struct err *e)
{
	const bool apart = options->cache_bytes != 0;
	options->sessions = apart ? 1 : SIDES;
	int rc = common_opts_open(options, &d->g, e);
	d->engines[PLAIN] = d->engines[DRAFTED] = d->g;
	if (!rc && apart) {
		d->engines[DRAFTED] = NULL;
		rc = common_opts_open(options, &d->engines[DRAFTED], e);
	}
	return rc;
}

int bench_drafts(struct bench *b, const struct common_opts *c, const struct bench_drafts_options *o,
	char *backend, struct err *e)
{
	struct drafts_bench *d = NEW(struct drafts_bench);
	struct common_opts options = *c;
	double seconds[SIDES][BENCH_MAX_REPEATS], threads[SIDES][BENCH_MAX_REPEATS];
	*d = (struct drafts_bench){.b = b, .o = *o};
	int rc = open_sides(d, &options, e);
	if (!rc)
		rc = prompts_read(d, e);
	for (int side = 0; side < SIDES && !rc; side++)
		rc = session_new(d->engines[side], &d->sessions[side], e);
	if (!rc) {
		snprintf(backend, BENCH_BACKEND_MAX, "%s", engine_backend_name(d->g));
		bench_begin(b, backend);
	}
	for (int i = -1; i < b->repeats && !rc; i++) { /* the first sample is not measured */
		if (i == 0)
			d->stats = (struct draft_stats){0};
		rc = run_sample(d, (uint32_t)(i + 1), e);
		for (int side = 0; side < SIDES && i >= 0; side++) {
			seconds[side][i] = d->seconds[side];
			threads[side][i] = d->thread_seconds[side];
		}
	}
	if (!rc)
		report(d, seconds, threads);
	for (int side = 0; side < SIDES; side++)
		session_free(d->sessions[side]);
	for (uint32_t i = 0; i < d->n_prompts; i++)
		token_ids_free(&d->prompts[i]);
	free(d->prompts);
	if (d->engines[DRAFTED] != d->g)
		rc = common_opts_close(d->engines[DRAFTED], rc, e);
	rc = common_opts_close(d->g, rc, e);
	free(d);
	return rc;
}
