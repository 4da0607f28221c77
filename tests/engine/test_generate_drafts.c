/* SPDX-License-Identifier: MIT */
/*
 * Answers with drafts against answers without, on the pocket model: the same tokens, the same bits
 * of logits, the same timeline, however the answer ends and whatever the drafts are. And the tokens
 * that the device draws are those that the host draws from the logits.
 *
 * GLM_BACKEND=cuda runs the same on a card.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/draft/draft_mtp.h"
#include "src/engine/engine_internal.h"
#include "src/engine/generate.h"
#include "src/text/vocab.h"
#include "tests/support/engine_help.h"
#include "tests/support/slow_build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TOKENS_MAX 200

/* A chat whose last answer repeats an earlier one, so that prompt lookup finds much, and one that
 * does not. */
static const char *const prompt_texts[] = {
	"[gMASK]<sop><|user|>Define river.<|assistant|><think></think>river (noun): a large natural "
	"stream of water (larger than a creek).<|user|>Define river.<|assistant|><think></think>",
	"[gMASK]<sop><|user|>Tell me a story.<|assistant|><think></think>",
};

/* What comes when, of callbacks and of the generation. */
struct generated {
	int32_t ids[TOKENS_MAX];
	uint32_t n;
	uint32_t stop_at, complete_at, cancel_at; /* tokens; 0: never */
	atomic_bool cancel;
	struct generate_result result;
	int32_t timeline[2 * TOKENS_MAX];
	uint32_t length;
	uint64_t next_hash; /* of the logits behind the timeline and one more token */
	int rc;
};

static bool token_given(void *user, int32_t id)
{
	struct generated *l = user;
	assert_in_range(l->n, 0, TOKENS_MAX - 1);
	l->ids[l->n++] = id;
	if (l->n == l->cancel_at)
		atomic_store(&l->cancel, true);
	return l->n != l->stop_at;
}

static bool is_complete(void *user)
{
	const struct generated *l = user;
	return l->n == l->complete_at;
}

/* A filter with a state: what it forbids depends on the tokens so far. */
static bool allows_some(void *user, int32_t id)
{
	const struct generated *l = user;
	return (id + (int32_t)l->n) % 3 != 0;
}

static void mask_some(void *user, float *logits, int32_t n_valid)
{
	for (int32_t i = 0; i < n_valid; i++)
		if (!allows_some(user, i))
			logits[i] = -INFINITY;
}

static struct token_ids encode(struct engine *g, const char *text)
{
	struct token_ids ids = {0};
	struct err e = {0};
	assert_int_equal(
		tokenizer_encode(engine_tokenizer(g), text, strlen(text), TOKENIZER_PARSE_ADDED, &ids, &e),
		0);
	return ids;
}

/* Which drafts an answer has. */
struct draft_case {
	int mode;
	bool no_lookup, no_mtp;
	const struct draft_source *source; /* instead of the MTP layer; NULL: that */
};

static struct draft_stats all_drafts; /* of all answers so far */

static struct generated answer(struct engine *g, const struct token_ids *prompt,
	const struct draft_case *c, struct generate_options o, struct generated l)
{
	struct err e = {0};
	struct session *s = session_of(g, false);
	struct drafter *d = NULL;
	if (c->mode != DRAFT_OFF) {
		struct drafter_options dopts = {
			.limit = c->mode == DRAFT_AUTO ? DRAFT_MAX : (uint32_t)c->mode,
			.always = c->mode != DRAFT_AUTO,
			.no_lookup = c->no_lookup};
		struct draft_source mtp;
		if (c->source)
			dopts.source = c->source;
		else if (!c->no_mtp) {
			mtp = draft_mtp_source(g);
			dopts.source = &mtp;
		}
		d = drafter_new(&dopts);
	}
	struct draft_timeline *t = draft_timeline_open(d, s);
	struct sampler_filter filter = {.user = &l, .allows = allows_some, .mask = mask_some};
	o.on_token = token_given;
	o.complete = is_complete;
	o.user = &l;
	o.watch.cancel = &l.cancel;
	o.drafts = t;
	if (o.filter)
		o.filter = &filter;
	l.rc = generate(s, prompt->data, (uint32_t)prompt->n, &o, &l.result, &e);
	l.length = session_length(s);
	memcpy(l.timeline, session_tokens(s), l.length * sizeof *l.timeline);
	assert_non_null(session_logits(s));
	if (l.length < engine_context(g)) { /* the caches are those without drafts */
		const int32_t next = 100;
		assert_int_equal(session_extend(s, &next, 1, NULL, NULL, &e), 0);
		l.next_hash = logits_hash(s);
	}
	struct draft_stats r = l.result.drafts;
	for (uint32_t i = 0; i < DRAFT_SOURCES; i++) {
		all_drafts.tried_by[i] += r.tried_by[i];
		all_drafts.accepted_by[i] += r.accepted_by[i];
	}
	draft_timeline_free(t);
	drafter_free(d);
	session_free(s);
	return l;
}

static void assert_same(const struct generated *a, const struct generated *b, const char *what)
{
	bool same = a->rc == b->rc && a->n == b->n && !memcmp(a->ids, b->ids, a->n * sizeof *a->ids) &&
				a->result.stop == b->result.stop && a->result.stop_token == b->result.stop_token &&
				a->result.new_tokens == b->result.new_tokens &&
				a->result.logits_hash == b->result.logits_hash && a->length == b->length &&
				!memcmp(a->timeline, b->timeline, a->length * sizeof *a->timeline) &&
				a->next_hash == b->next_hash;
	if (!same)
		fail_msg("%s: %u tokens, end %d, timeline %u, hash %016llx; without drafts %u, %d, %u, "
				 "%016llx",
			what, b->n, (int)b->result.stop, b->length, (unsigned long long)b->result.logits_hash,
			a->n, (int)a->result.stop, a->length, (unsigned long long)a->result.logits_hash);
}

/* Where experts are: bytes of both tiers, 0 and 0: nothing is streamed. */
struct tiers {
	uint64_t cache_bytes, ram_bytes;
	int lookahead;
};

static struct engine *open_pocket(uint32_t context, struct tiers t, bool no_mtp)
{
	struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = getenv("GLM_BACKEND") ? getenv("GLM_BACKEND") : "cpu",
		.context = context,
		.cache_bytes = t.cache_bytes,
		.ram_bytes = t.ram_bytes,
		.lookahead = t.lookahead,
		.no_mtp = no_mtp};
	return engine_of(&o);
}

static const struct tiers mapped;

static const struct draft_case off = {.mode = DRAFT_OFF};

static void test_no_mtp_layer(void **state)
{
	(void)state;
	struct err e = {0};
	struct session *s;
	struct engine *g = open_pocket(64, mapped, true);
	assert_int_equal(session_new(g, &s, &e), 0);
	assert_int_equal(session_enable_mtp(s, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "no MTP layer"));
	session_free(s);
	assert_int_equal(engine_close(g, &e), 0);
}

static void test_text_is_the_same(void **state)
{
	(void)state;
	static const float temperatures[] = {0, 1, 0.7f, 1.5f};
	static const struct draft_case cases[] = {{.mode = DRAFT_AUTO}, {.mode = 1}, {.mode = 3},
		{.mode = 7}, {.mode = 5, .no_mtp = true}, {.mode = 4, .no_lookup = true}};
	struct engine *g = open_pocket(512, mapped, false);
	memset(&all_drafts, 0, sizeof all_drafts);
	for (uint32_t p = 0; p < ARRAY_LEN(prompt_texts); p++) {
		struct token_ids prompt = encode(g, prompt_texts[p]);
		for (uint32_t i = 0; i < IF_SLOW_BUILD(2, ARRAY_LEN(temperatures)); i++)
			for (uint64_t seed = 1; seed <= (i == 1 ? IF_SLOW_BUILD(1, 2) : 1); seed++)
				for (uint32_t kind = p; kind < (p ? 2 : 3); kind++) {
					struct generate_options o = {.max_new = 30,
						.ignore_stop = kind == 1,
						.sampler = {.temperature = temperatures[i],
							.top_p = kind ? 1 : 0.95f,
							.seed = seed}};
					if (kind == 2) { /* penalties, a bias and a filter with a state */
						o.sampler.repetition = 1.1f;
						o.sampler.frequency = 0.2f;
						o.sampler.bias[0] = (struct sampler_bias){.id = 300, .add = 2};
						o.sampler.n_bias = 1;
						o.filter = &(struct sampler_filter){0};
					}
					struct generated plain = answer(g, &prompt, &off, o, (struct generated){0});
					for (uint32_t k = IF_SLOW_BUILD((i + kind) % 2, 0); k < ARRAY_LEN(cases);
						 k += IF_SLOW_BUILD(2, 1)) {
						char what[100];
						struct generated l =
							answer(g, &prompt, &cases[k], o, (struct generated){0});
						snprintf(what, sizeof what, "prompt %u, T %.1f, seed %u, kind %u, case %u",
							p, (double)temperatures[i], (unsigned)seed, kind, k);
						assert_same(&plain, &l, what);
					}
				}
		token_ids_free(&prompt);
	}
	/* this was no comparison of nothing */
	for (uint32_t i = 0; i < DRAFT_SOURCES; i++) {
		assert_true(all_drafts.accepted_by[i] > IF_SLOW_BUILD(5, 50));
		assert_true(all_drafts.accepted_by[i] < all_drafts.tried_by[i]);
	}
	engine_close(g, NULL);
}

/* Both tiers with and without lookahead, greedy and sampled with several seeds. */
static void test_text_is_the_same_when_streamed(void **state)
{
	(void)state;
	static const struct draft_case cases[] = {{.mode = DRAFT_AUTO}, {.mode = 2}, {.mode = 7}};
	static const struct tiers tiers[] = {{.cache_bytes = 3000000},
		{.cache_bytes = 7000000, .lookahead = 1}, {.cache_bytes = 3000000, .ram_bytes = 4000000},
		{.cache_bytes = 3000000, .ram_bytes = 4000000, .lookahead = 1}};
	enum { SEEDS = IF_SLOW_BUILD(2, 4) };
	struct generated plain[SEEDS];
	struct generate_options o[SEEDS];
	struct token_ids prompt = {0};
	for (uint32_t i = 0; i <= ARRAY_LEN(tiers); i++) { /* first without streaming and drafts */
		struct engine *g = open_pocket(512, i ? tiers[i - 1] : mapped, false);
		if (!i)
			prompt = encode(g, prompt_texts[0]);
		for (uint32_t seed = 0; seed < SEEDS; seed++) {
			o[seed] = (struct generate_options){.max_new = 24,
				.ignore_stop = true,
				.sampler = {.temperature = seed ? 1 : 0, .top_p = 0.95f, .seed = seed}};
			const struct draft_case *c = i ? &cases[(i + seed) % ARRAY_LEN(cases)] : &off;
			struct generated l = answer(g, &prompt, c, o[seed], (struct generated){0});
			char what[60];
			snprintf(what, sizeof what, "tiers %u, seed %u", i, seed);
			if (!i)
				plain[seed] = l;
			assert_same(&plain[seed], &l, what);
		}
		engine_close(g, NULL);
	}
	token_ids_free(&prompt);
}

/* ---- who draws ---- */

static const struct backend_ops *real_ops;
static uint32_t rows_drawn;

static void count_draw(struct backend *b, const float *logits, int64_t stride, int32_t n,
	const struct draw_request *requests, int rows, struct draw_result *out)
{
	rows_drawn += (uint32_t)rows;
	real_ops->draw(b, logits, stride, n, requests, rows, out);
}

/* The answer's tokens, drawn by the host from logits that are computed one token at a time. */
static void assert_host_draws_same(struct engine *g, const struct token_ids *prompt,
	struct generate_options o, struct generated *l)
{
	struct err e = {0};
	struct session *s = session_of(g, false);
	struct sampler sampler;
	struct generated past = {.n = 0};
	const struct sampler_filter filter = {.user = &past, .allows = allows_some, .mask = mask_some};
	sampler_init(&sampler, &o.sampler);
	for (uint32_t i = 0; i < prompt->n; i++)
		sampler_note(&sampler, prompt->data[i], true);
	assert_int_equal(session_sync(s, prompt->data, (uint32_t)prompt->n, NULL, NULL, &e), 0);
	for (; past.n < l->n; past.n++) {
		int32_t id = sampler_draw(&sampler, session_logits(s), engine_n_valid(g),
			o.filter ? &filter : NULL, session_length(s));
		assert_int_equal(id, l->ids[past.n]);
		sampler_note(&sampler, id, false);
		assert_int_equal(session_extend(s, &id, 1, NULL, NULL, &e), 0);
	}
	sampler_fini(&sampler);
	session_free(s);
}

static void test_the_device_draws(void **state)
{
	(void)state;
	static const struct draft_case drafted = {.mode = 3};
	struct engine *g = open_pocket(512, mapped, false);
	struct backend *b = engine_last(g)->backend;
	struct token_ids prompt = encode(g, prompt_texts[1]);
	struct backend_ops counted = *b->ops;
	counted.draw = count_draw;
	real_ops = b->ops;
	b->ops = &counted;
	static const struct sampler_options samplers[] = {{.temperature = 0, .top_p = 1},
		{.temperature = 1, .top_p = 1}, {.temperature = 1.3f, .top_p = 0.8f},
		{.temperature = 1.3f, .top_p = 1, .top_k = 3},
		{.temperature = 1, .top_p = 0.9f, .top_k = 40},
		{.temperature = 1, .top_p = 1, .repetition = 1.3f}};
	struct sampler_filter no_filter = {0};
	for (uint32_t i = IF_SLOW_BUILD(1, 0); i < 2 * ARRAY_LEN(samplers); i += IF_SLOW_BUILD(3, 1)) {
		struct generate_options o = {.max_new = 12,
			.ignore_stop = true,
			.sampler = samplers[i / 2],
			.filter = i % 2 ? &no_filter : NULL};
		const bool on_host = i / 2 == ARRAY_LEN(samplers) - 1; /* penalties */
		o.sampler.seed = 3;
		rows_drawn = 0;
		struct generated plain = answer(g, &prompt, &off, o, (struct generated){0});
		assert_int_equal(plain.n, 12);
		assert_int_equal(
			rows_drawn, on_host ? 0 : 12); /* the first token is of the prompt's step */
		assert_host_draws_same(g, &prompt, o, &plain);
		rows_drawn = 0;
		answer(g, &prompt, &drafted, o, (struct generated){0});
		assert_true(rows_drawn > (on_host ? 0 : 12)); /* drafts are drawn too */
	}
	b->ops = real_ops;
	token_ids_free(&prompt);
	engine_close(g, NULL);
}

/* A source that knows what comes: `wrong` of every so many drafts are not it. */
struct oracle {
	const struct generated *knows;
	uint32_t prompt;
	uint32_t wrong; /* every so many-th draft; 0: none */
	uint32_t asked, drafts;
};

static int oracle_propose(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e)
{
	struct oracle *o = user;
	(void)e;
	assert_int_equal(n, 1);
	struct draft_proposal *r = &proposals[0];
	uint32_t at = r->position - o->prompt;
	assert_int_equal(session_length(r->session) + 1, r->position);
	assert_int_equal(r->next, o->knows->ids[at - 1]);
	r->chain->n = 0;
	for (uint32_t k = 0; k < r->k && at + k < o->knows->n; k++) {
		bool wrong = o->wrong && o->drafts++ % o->wrong == 0;
		r->chain->ids[k] = wrong ? (o->knows->ids[at + k] + 7) % 8000 : o->knows->ids[at + k];
		r->chain->grades[k] = DRAFT_GRADES - 1;
		r->chain->n++;
	}
	o->asked++;
	return 0;
}

static void test_right_and_wrong_drafts(void **state)
{
	(void)state;
	struct engine *g = open_pocket(512, mapped, true);
	struct token_ids prompt = encode(g, prompt_texts[1]);
	const struct generate_options o = {
		.max_new = 64, .ignore_stop = true, .sampler = {.temperature = 1, .top_p = 1, .seed = 11}};
	struct generated plain = answer(g, &prompt, &off, o, (struct generated){0});
	assert_int_equal(plain.n, 64);
	for (uint32_t wrong = 0; wrong < 4; wrong++) {
		struct oracle x = {.knows = &plain, .prompt = (uint32_t)prompt.n, .wrong = wrong};
		const struct draft_source source = {.name = "oracle",
			.user = &x,
			.expect = {.first_chance = 0.9f, .costs = true},
			.propose = oracle_propose};
		const struct draft_case c = {.mode = 3, .no_lookup = true, .source = &source};
		struct generated l = answer(g, &prompt, &c, o, (struct generated){0});
		assert_same(&plain, &l, "oracle");
		const struct draft_stats *d = &l.result.drafts;
		uint64_t tried = 0, accepted = 0;
		for (uint32_t i = 0; i < DRAFT_MAX; i++) {
			tried += d->tried[i];
			accepted += d->accepted[i];
			assert_true(d->accepted[i] <= d->tried[i]);
		}
		if (!wrong) { /* the first token is of the prompt's step, each other step gives 4 */
			assert_int_equal(d->steps, 16);
			assert_int_equal(d->rows, 64);
			assert_int_equal(accepted, 48);
			assert_int_equal(tried, 48);
		} else if (wrong == 1) {
			assert_int_equal(accepted, 0);
			assert_int_equal(d->steps, 63);
		} else {
			assert_true(accepted > 0 && accepted < tried);
		}
	}
	token_ids_free(&prompt);
	engine_close(g, NULL);
}

/* ---- no memory for drafts ---- */

static const struct backend_ops *real_ops;
static const void *pair_weights; /* of the product that each row of the MTP layer begins with */
static int products_left;        /* of them; the one behind these fails */

static void failing_matmul(
	struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	if (parts->w.data == pair_weights && !products_left--)
		err_set(&b->failure, ERR_MEMORY, "failed on purpose");
	if (!b->failure.code)
		real_ops->matmul(b, parts, n_parts, x, rows);
	else if (!b->ops->async) /* y is host memory: nobody may use what it holds now */
		memset(parts->y, 0xff, (size_t)rows * (size_t)parts->w.n_out * sizeof(float));
}

/* Whichever product of the MTP layer lacks memory, the answer is the same, and so is what follows.
 */
static void test_no_memory_for_drafts(void **state)
{
	(void)state;
	struct engine *g = open_pocket(512, mapped, false);
	struct token_ids prompt = encode(g, prompt_texts[1]);
	struct backend *b = g->stages->backend;
	const struct generate_options o = {.max_new = 12, .ignore_stop = true};
	const struct draft_case drafts = {.mode = 3, .no_lookup = true};
	struct generated plain = answer(g, &prompt, &off, o, (struct generated){0});
	real_ops = b->ops;
	struct backend_ops failing = *real_ops;
	failing.matmul = failing_matmul;
	b->ops = &failing;
	pair_weights = engine_last(g)->model.weights.eh_proj.data;
	int at = 0;
	do {
		products_left = at++;
		struct generated l = answer(g, &prompt, &drafts, o, (struct generated){0});
		assert_same(&plain, &l, "no memory for drafts");
		assert_true(l.result.drafts.rows > l.result.drafts.steps); /* there were others */
	} while (products_left < 0);
	assert_true(at > 10);
	b->ops = real_ops;
	token_ids_free(&prompt);
	engine_close(g, NULL);
}

/* A caller that does not know the sampler gets the likeliest tokens as drafts. */
static void test_drafts_without_a_sampler(void **state)
{
	(void)state;
	struct engine *g = open_pocket(512, mapped, false);
	struct token_ids prompt = encode(g, prompt_texts[1]);
	uint32_t n = (uint32_t)prompt.n - 1;
	struct err e;
	struct session *s = session_of(g, false);
	const struct draft_source mtp = draft_mtp_source(g);
	struct drafter *d = drafter_new(
		&(struct drafter_options){.limit = 3, .always = true, .no_lookup = true, .source = &mtp});
	struct draft_timeline *t = draft_timeline_open(d, s);
	assert_int_equal(session_sync(s, prompt.data, n, NULL, NULL, &e), 0);
	drafts_begin(t, prompt.data, n, NULL);
	drafts_push(t, prompt.data[n]);
	assert_int_equal(drafts_propose(d, &t, 1, SESSION_ROWS_MAX, &e), 0);
	assert_int_equal(t->n, 3);
	int32_t likeliest[3];
	assert_int_equal(session_mtp_draft(s, prompt.data[n], 3, likeliest, NULL, &e), 0);
	assert_memory_equal(t->ids, likeliest, sizeof likeliest);
	draft_timeline_free(t);
	drafter_free(d);
	session_free(s);
	token_ids_free(&prompt);
	engine_close(g, NULL);
}

/* The answer ends at every token in every way, also behind drafts that were right. */
static void test_every_end(void **state)
{
	(void)state;
	struct engine *g = open_pocket(512, mapped, true);
	struct token_ids prompt = encode(g, prompt_texts[0]);
	struct generate_options o = {.max_new = 60};
	struct generated whole = answer(g, &prompt, &off, o, (struct generated){0});
	assert_int_equal(whole.result.stop, GENERATE_STOP_TOKEN);
	struct generated known = whole;
	known.ids[known.n++] = whole.result.stop_token;
	for (uint32_t n = 1; n <= whole.n + 1; n += IF_SLOW_BUILD(11, 1))
		for (uint32_t kind = 0; kind < (n % 4 ? 4 : 5); kind++) {
			struct oracle x = {.knows = &known, .prompt = (uint32_t)prompt.n, .wrong = n % 3 * 5};
			const struct draft_source source = {.name = "oracle",
				.user = &x,
				.expect = {.first_chance = 0.9f, .costs = true},
				.propose = oracle_propose};
			const struct draft_case c = {
				.mode = (int)(n % DRAFT_MAX) + 1, .no_lookup = true, .source = &source};
			struct engine *here = kind == 4 ? open_pocket((uint32_t)prompt.n + n, mapped, true) : g;
			struct generated l = {.stop_at = kind == 1 ? n : 0,
				.complete_at = kind == 2 ? n : 0,
				.cancel_at = kind == 3 ? n : 0};
			o.max_new = kind == 0 ? n : 60;
			struct generated plain = answer(here, &prompt, &off, o, l);
			struct generated drafted = answer(here, &prompt, &c, o, l);
			char what[60];
			snprintf(what, sizeof what, "end %u at %u", kind, n);
			assert_same(&plain, &drafted, what);
			if (here != g)
				engine_close(here, NULL);
		}
	token_ids_free(&prompt);
	engine_close(g, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_mtp_layer),
		cmocka_unit_test(test_text_is_the_same),
		cmocka_unit_test(test_text_is_the_same_when_streamed),
		cmocka_unit_test(test_the_device_draws),
		cmocka_unit_test(test_right_and_wrong_drafts),
		cmocka_unit_test(test_no_memory_for_drafts),
		cmocka_unit_test(test_drafts_without_a_sampler),
		cmocka_unit_test(test_every_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
