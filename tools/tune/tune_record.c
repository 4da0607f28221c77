/* SPDX-License-Identifier: MIT */
/* Prompts are rendered as a chat would, and answered by sampling with the model's own defaults and
 * fixed seeds: greedy answers fall into loops, which use fewer experts than real ones. */
#include "tools/tune/tune_record.h"

#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/generate.h"
#include "tools/bench/bench.h"
#include "tools/chat/conversation.h"
#include "tools/output/interrupt.h"
#include "tools/options/text_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usual_prompts[] = "Define river.\n"
									"What is 12 + 30?\n"
									"Tell me a short story about a sailor and a lighthouse.\n"
									"What is the capital of France?\n"
									"Write a C function that reverses a string in place.\n"
									"Why is the sky blue?\n"
									"Define patience.\n"
									"List three uses of copper.\n";

/* Without a budget of the user's: on the CPU where the file is mapped, else most of the card. */
static uint64_t recording_cache(const struct common_opts *c, bool cpu)
{
	return c->cache_bytes ? c->cache_bytes : cpu ? 0 : ENGINE_CACHE_AUTO;
}

static int add_prompt(
	struct tune_facts *f, const struct tokenizer *t, const char *text, size_t len, struct err *e)
{
	struct conversation talk = {0};
	char what[40];
	snprintf(what, sizeof what, "prompt %zu", f->n_prompts + 1);
	f->prompts = mem_grow(f->prompts, f->n_prompts + 1, sizeof *f->prompts);
	f->prompts[f->n_prompts] = (struct token_ids){0};
	int rc = conversation_add_user(&talk, t, text, len, what, e);
	if (!rc)
		rc = conversation_prompt(&talk, t, &f->prompts[f->n_prompts], e);
	f->n_prompts++;
	conversation_fini(&talk);
	return rc;
}

static int add_lines(
	struct tune_facts *f, const struct tokenizer *t, const char *text, size_t len, struct err *e)
{
	int rc = 0;
	for (size_t at = 0; at < len && !rc;) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = end ? (size_t)(end - (text + at)) : len - at;
		size_t bare = n && text[at + n - 1] == '\r' ? n - 1 : n;
		if (bare)
			rc = add_prompt(f, t, text + at, bare, e);
		at += n + 1;
	}
	return rc;
}

static int ask_backend(
	const struct common_opts *c, struct tune_facts *f, uint64_t *bytes, struct err *e)
{
	const struct backend_options o = {.name = common_opts_backend(c), .threads = c->threads};
	struct backend *b = NULL;
	const enum log_level before = log_lower(LOG_WARN); /* the engine says it in a moment */
	int rc = backend_open(&o, &b, e);
	log_set_level(before);
	if (rc)
		return rc;
	*bytes = b->ops->free_bytes(b);
	snprintf(f->backend, sizeof f->backend, "%s", b->ops->name);
	f->cpu = !strcmp(b->ops->name, "cpu");
	b->ops->close(b);
	if (!*bytes)
		return err_set(e, ERR_RUN, "the free memory of backend %s is not known", f->backend);
	return 0;
}

const struct token_ids *tune_longest(const struct tune_facts *f)
{
	const struct token_ids *best = &f->prompts[0];
	for (size_t i = 1; i < f->n_prompts; i++)
		if (f->prompts[i].n > best->n)
			best = &f->prompts[i];
	return best;
}

int tune_facts_find(struct tune_facts *f, const struct common_opts *c, const char *prompts,
	uint32_t n_new, struct err *e)
{
	char *text = NULL;
	size_t len = 0;
	struct tokenizer *t = NULL;
	struct engine *g = NULL;
	struct common_opts mine = *c;
	uint64_t available = 0;
	int rc = prompts ? text_input_read(prompts, &text, &len, e) : 0;
	if (!rc && prompts && !len)
		rc = err_set(e, ERR_INPUT, "%.400s: holds no prompts", prompts);
	if (rc || (rc = text_input_tokenizer(c->model, &t, e)) ||
		(rc = add_lines(
			 f, t, text ? text : usual_prompts, text ? len : sizeof usual_prompts - 1, e)))
		goto out;
	if (!f->n_prompts) {
		rc = err_set(e, ERR_INPUT, "%.400s: holds no prompts", prompts);
		goto out;
	}
	if ((rc = ask_backend(c, f, &available, e)))
		goto out;
	mine.trace = mine.warm = mine.replicas = NULL;
	mine.cache_bytes = f->cpu ? 0 : ENGINE_CACHE_AUTO;
	mine.ram_bytes = 0;
	mine.cache_given = false;
	mine.lookahead = 0;
	mine.lookahead_given = mine.streams_later = true;
	if ((rc = common_opts_open(&mine, &g, e)) ||
		(rc = bench_check_context(g, tune_longest(f)->n, n_new, e)))
		goto out;
	const struct engine_sizes s = engine_sizes(g);
	const uint64_t fixed = s.resident_bytes + s.kv_bytes + s.workspace_bytes;
	f->left_bytes = available > fixed ? available - fixed : 0;
out:
	rc = common_opts_close(g, rc, e);
	tokenizer_free(t);
	free(text);
	return rc;
}

void tune_facts_fini(struct tune_facts *f)
{
	for (size_t i = 0; i < f->n_prompts; i++)
		token_ids_free(&f->prompts[i]);
	free(f->prompts);
}

static int answer_all(struct engine *g, const struct tune_facts *f, uint32_t n_new, struct err *e)
{
	const struct model_config *c = engine_config(g);
	struct session *s = NULL;
	uint64_t tokens = 0;
	int rc = session_new(g, &s, e);
	for (size_t i = 0; i < f->n_prompts && !rc; i++) {
		struct generate_options o = {.max_new = n_new, .watch = {.cancel = interrupt_flag()}};
		o.sampler.temperature = c->sampling_temperature > 0 ? c->sampling_temperature : 1;
		o.sampler.top_p = c->sampling_top_p > 0 ? c->sampling_top_p : 0.95f;
		o.sampler.seed = i + 1;
		struct generate_result r;
		rc = bench_generate(s, f->prompts[i].data, (uint32_t)f->prompts[i].n, &o, &r, e);
		tokens += rc ? 0 : r.new_tokens;
	}
	if (!rc)
		log_info("tune: %zu prompts answered with %llu tokens", f->n_prompts,
			(unsigned long long)tokens);
	session_free(s);
	return rc;
}

int tune_record(const struct common_opts *c, const struct tune_facts *f, uint32_t n_new,
	int lookahead, const char *path, struct err *e)
{
	struct common_opts mine = *c;
	struct engine *g = NULL;
	enum log_level level = log_level();
	mine.cache_bytes = recording_cache(c, f->cpu);
	mine.trace = path;
	mine.warm = NULL;
	mine.lookahead = lookahead;
	mine.lookahead_given = true;
	mine.quiet = true;
	mine.verbose = false;
	if (!mine.cache_bytes) {
		mine.replicas = NULL;
		mine.ram_bytes = 0;
	}
	int rc = common_opts_open(&mine, &g, e);
	log_set_level(level);
	if (!rc)
		rc = answer_all(g, f, n_new, e);
	return common_opts_close(g, rc, e);
}
