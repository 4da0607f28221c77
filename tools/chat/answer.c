/* SPDX-License-Identifier: MIT */
/* The order of things on the two streams: reasoning, answer, line feed, then the statistics. */
#include "src/ranks/ranks.h"
#include "tools/chat/answer.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "tools/chat/chat_file.h"
#include "tools/options/text_input.h"
#include "tools/output/interrupt.h"
#include "tools/output/json_out.h"
#include "tools/output/report.h"
#include "tools/output/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Compiles the schema in a file. */
static int read_schema(const char *path, struct schema **out, struct err *e)
{
	char *text = NULL;
	size_t n = 0;
	int rc = text_input_read(path, &text, &n, e);
	json_t *v = rc ? NULL : json_text_parse(text, n, true, e);
	if (!rc && (!v || schema_compile(v, v, SCHEMA_JSON, out, e)))
		rc = err_prefix(e, "%s", path);
	json_decref(v);
	free(text);
	return rc;
}

int answer_open(struct answer *a, struct run_opts *opts, struct err *e)
{
	int rc;
	*a = (struct answer){.opts = opts};
	a->talk.raw = opts->raw;
	conversation_set_think(&a->talk, opts->think);
	chat_view_init(&a->view, !opts->common.quiet);
	if (!ranks_is_worker() && /* these two before the model is opened, which may take long */
		((opts->json_schema && (rc = read_schema(opts->json_schema, &a->schema, e))) ||
			(opts->session && (rc = chat_file_check(opts->session, e)))))
		return rc;
	if ((rc = conversation_set_system(&a->talk, opts->system, e)) ||
		(rc = common_opts_open(&opts->common, &a->engine, e)) ||
		(rc = session_new(a->engine, &a->session, e)) ||
		(rc = prefix_opts_open(&opts->prefix, a->engine, &a->store, e)))
		return rc;
	if (opts->draft.mode != DRAFT_OFF)
		a->drafter = drafter_open(a->engine, opts->draft.mode);
	a->drafts = draft_timeline_open(a->drafter, a->session);
	run_opts_defaults(opts, engine_config(a->engine));
	if (a->schema)
		a->tokens = token_trie_new(engine_tokenizer(a->engine));
	if (opts->session && (rc = chat_file_open(a, opts->session, e)))
		return rc;
	log_verbose("sampling temp %g, top-p %g, seed %llu", (double)opts->temp, (double)opts->top_p,
		(unsigned long long)opts->seed);
	return 0;
}

int answer_close(struct answer *a, int rc, struct err *e)
{
	struct err late = {0};
	int failed = a->autosave && a->unsaved ? chat_file_save(a, NULL, false, &late) : 0;
	if (failed && rc)
		report_error(&late);
	else if (failed)
		*e = late;
	rc = rc ? rc : failed;
	chat_view_fini(&a->view);
	conversation_fini(&a->talk);
	token_ids_free(&a->prompt);
	schema_free(a->schema);
	token_trie_free(a->tokens);
	prefix_store_close(a->store);
	free(a->session_path);
	draft_timeline_free(a->drafts);
	drafter_free(a->drafter);
	session_free(a->session);
	rc = common_opts_close(a->engine, rc, e);
	*a = (struct answer){0};
	return rc;
}

/* ---- while it runs ---- */

/* What generate calls back. */
struct run {
	struct answer *a;
	struct progress progress;
	struct stats *stats;
	uint8_t *cached; /* stats_residency when the prompt began */
	bool broken;     /* a token came that the schema does not allow */
};

static void on_prompt(void *user, uint32_t done, uint32_t total)
{
	struct run *r = user;
	if (done < total) {
		progress_update(&r->progress, done, total);
		return;
	}
	progress_end(&r->progress);
	stats_count_kept(r->a->engine, r->cached, &r->stats->cached_before, &r->stats->cached_kept);
}

static bool on_token(void *user, int32_t id)
{
	struct run *r = user;
	progress_end(&r->progress);
	if (!constraint_token(&r->a->constraint, id)) {
		r->broken = true;
		return false;
	}
	return chat_view_token(&r->a->view, id);
}

static bool is_complete(void *user)
{
	return constraint_complete(&((struct run *)user)->a->constraint);
}

static bool token_allowed(void *user, int32_t id)
{
	return constraint_allows(user, id);
}

static void mask_tokens(void *user, float *logits, int32_t n_valid)
{
	constraint_mask(user, logits, n_valid);
}

/* With --raw the answer becomes part of the one run of tokens, the stop token too: the next text
 * follows it. */
static int keep_raw(struct answer *a, struct err *e)
{
	const int32_t *tokens = session_tokens(a->session);
	uint32_t n = session_length(a->session);
	for (size_t i = a->talk.raw_ids.n; i < n; i++)
		if (token_ids_push(&a->talk.raw_ids, tokens[i]))
			return err_set(e, ERR_MEMORY, "no memory for %u token ids", n);
	return 0;
}

static void show_stats(struct answer *a)
{
	fflush(stdout);
	if (a->opts->json)
		json_out_line(stderr, stats_json(&a->stats));
	else if (!a->opts->common.quiet)
		stats_print(stderr, &a->stats, a->view.err_colours, a->opts->common.verbose);
}

/* Reads the longest beginning of the prompt that the prefix store has into the session; generate
 * then reuses it as it reuses an earlier turn. */
static int restore_prefix(struct answer *a, struct err *e)
{
	uint32_t n;
	if (!a->store)
		return 0;
	int rc =
		prefix_store_restore(a->store, a->session, a->prompt.data, (uint32_t)a->prompt.n, &n, e);
	if (!rc && n)
		log_verbose("prefix store: %u tokens of %zu read", n, a->prompt.n);
	return rc;
}

static void keep_prefix(struct answer *a)
{
	struct err e = {0};
	if (a->store && prefix_store_keep(a->store, a->session, session_length(a->session), &e))
		log_warn("the prompt is not stored: %s", e.text);
}

/* Ends a turn that has an answer: the conversation, the stores, the statistics. Errors as of
 * answer_turn. */
static int keep_answer(struct answer *a, const struct stats *stats, bool cancelled, struct err *e)
{
	int rc;
	a->turns++;
	a->unsaved = true;
	a->timeline_longer = false;
	a->stats = *stats;
	a->has_stats = true;
	a->total_prompt += stats->result.prompt_tokens - stats->result.reused_tokens;
	a->total_new += stats->result.new_tokens;
	a->total_ns += stats->result.prefill_ns + stats->result.decode_ns;
	if (a->view.no_memory)
		return err_set(e, ERR_MEMORY, "there is no memory for the arguments of a tool call");
	if (!a->talk.raw)
		chat_view_message(&a->view, &a->talk.chat);
	else if ((rc = keep_raw(a, e)))
		return rc;
	if (!cancelled && !a->view.lost && stats->result.stop == GENERATE_CONTEXT_FULL)
		log_warn("the answer was cut off: the context of %u tokens is full%s",
			engine_context(a->engine), a->in_chat ? "; /undo and /reset make room" : "");
	keep_prefix(a);
	chat_file_autosave(a);
	show_stats(a); /* behind all warnings: with --json the object is the last line */
	if (a->view.lost)
		return report_reader_gone()
				   ? err_set(e, ERR_RUN, "%s", "")
				   : err_set(e, ERR_RUN, "standard output takes no more: the answer was stopped");
	if (cancelled)
		return err_set(e, ERR_INTERRUPTED, "%s", "");
	return 0;
}

int answer_turn(struct answer *a, const char *text, size_t len, const char *what, struct err *e)
{
	const struct tokenizer *t = engine_tokenizer(a->engine);
	const struct run_opts *o = a->opts;
	a->prompt.n = 0; /* of an earlier turn */
	int rc = conversation_add_user(&a->talk, t, text, len, what, e);
	if (rc)
		return rc;
	if ((rc = conversation_prompt(&a->talk, t, &a->prompt, e)) || (rc = restore_prefix(a, e))) {
		conversation_undo(&a->talk);
		a->timeline_longer = true;
		return rc;
	}
	struct run run = {.a = a};
	const struct sampler_filter filter = {
		.user = &a->constraint, .allows = token_allowed, .mask = mask_tokens};
	const struct generate_options options = {
		.filter = a->schema ? &filter : NULL,
		.complete = is_complete,
		.max_new = o->max_new,
		.drafts = a->drafts,
		.sampler = run_opts_sampler(o, a->turns),
		.on_token = on_token,
		.user = &run,
		.watch = {.progress = on_prompt,
			.partial = on_prompt,
			.user = &run,
			.cancel = interrupt_flag()},
	};
	struct stats stats = {.backend = engine_backend_name(a->engine),
		.io = engine_io_name(a->engine),
		.ranks = engine_n_ranks(a->engine),
		.seed = options.sampler.seed,
		.max_new = o->max_new,
		.drafts = a->drafts != NULL};
	if (a->schema)
		constraint_init(&a->constraint, t,
			&(struct constraint_options){.in_reasoning = chat_starts_in_reasoning(&a->talk.chat),
				.choice = TOOL_CHOICE_NONE,
				.answer = a->schema,
				.tokens = a->tokens});
	struct engine_cache cache;
	engine_cache_snapshot(a->engine, &cache, NULL);
	stats.streaming = cache.streaming;
	struct expert_stats before = engine_expert_stats(a->engine);
	chat_view_begin(&a->view, t, a->talk.raw, chat_starts_in_reasoning(&a->talk.chat));
	if (!o->common.quiet)
		progress_begin_patient(&run.progress, "reading the prompt", "tok");
	run.stats = &stats;
	run.cached = stats_residency(a->engine);
	rc = generate(a->session, a->prompt.data, (uint32_t)a->prompt.n, &options, &stats.result, e);
	if (!rc && run.broken)
		rc = err_set(e, ERR_RUN, CONSTRAINT_BROKEN);
	progress_end(&run.progress);
	free(run.cached);
	bool cancelled = rc == ERR_INTERRUPTED || (!rc && stats.result.stop == GENERATE_CANCELLED);
	constraint_fini(&a->constraint);
	chat_view_end(&a->view, !rc && stats.result.stop == GENERATE_STOP_TOKEN);
	if ((rc && rc != ERR_INTERRUPTED) || (cancelled && !stats.result.new_tokens)) {
		conversation_undo(&a->talk);
		a->timeline_longer = true;
		if (!cancelled)
			return rc;
		keep_prefix(a); /* what was computed of the prompt serves the next one */
		return err_set(e, ERR_INTERRUPTED, "%s", "");
	}
	stats.experts = stats_between(before, engine_expert_stats(a->engine));
	return keep_answer(a, &stats, cancelled, e);
}
