/* SPDX-License-Identifier: MIT */
/*
 * A model cut into stages computes the same bits as one stage: at every cut, in front of layers
 * that share a selection too, mapped and streamed. Sessions, their files, traces, profiles, drafts
 * and the map of the cache are those of one stage. All stages are on card 0 of the CPU backend, or
 * of the one that GLM_BACKEND names; GLM_CARDS names other cards, stage by stage.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/batch.h"
#include "src/engine/draft/draft.h"
#include "src/engine/draft/draft_mtp.h"
#include "src/engine/generate.h"
#include "src/engine/session/session_file.h"
#include "src/engine/session/session_image.h"
#include "src/engine/stages/stage_cuts.h"
#include "cache/trace/trace.h"
#include "tests/stream/loader_help.h"
#include "tests/support/engine_help.h"
#include "tests/support/slow_build.h"
#include "tools/bench/replayed_routing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define N_LAYERS 7   /* of the pocket model; layers 3 to 5 share the selection of layer 2 */
#define N_PROMPT 150 /* two chunks, and more than index_topk */
#define N_FIRST  96  /* computed in the way of prompts, on a card too */
#define CHUNK    96
#define N_NEW    IF_SLOW_BUILD(3, 10)
#ifdef __SANITIZE_THREAD__
#define CUT_STEP 3 /* streamed before layer 1, mapped before layer 4 */
#else
#define CUT_STEP 1
#endif

static int32_t prompt[N_PROMPT];

static int stages_setup(void **state)
{
	struct rng r = {77};
	for (int i = 0; i < N_PROMPT; i++)
		prompt[i] = (int32_t)rng_below(&r, 8000);
	return source_setup(state);
}

/* n stages, which begin with layer 0 and with those of `cuts` [n - 1]. */
static struct engine_options cut_options(uint32_t n, const uint32_t *cuts)
{
	return (struct engine_options){.model_path = MODEL,
		.backend = getenv("GLM_BACKEND") ? getenv("GLM_BACKEND") : "cpu",
		.context = 320,
		.sessions = 3,
		.chunk = CHUNK,
		.cards = stage_cards(n),
		.n_cards = n,
		.cuts = cuts};
}

/* The same model streamed. Several stages need more than one: two layers' experts each. */
static struct engine_options streamed(struct engine_options o, double share, int lookahead)
{
	o.cache_bytes = budget(share);
	o.ram_bytes = lookahead ? full.floor_bytes : 0;
	o.lookahead = lookahead;
	return o;
}

/* An answer with MTP drafts and lookup, as the command line makes it. */
static uint64_t answer_hash(struct engine *g, uint32_t limit)
{
	struct err e = {0};
	struct session *s = session_of(g, false);
	struct drafter *drafter = NULL;
	if (limit) {
		struct draft_source mtp = draft_mtp_source(g);
		drafter =
			drafter_new(&(struct drafter_options){.limit = limit, .always = true, .source = &mtp});
	}
	struct draft_timeline *t = draft_timeline_open(drafter, s);
	struct generate_options o = {.max_new = N_NEW, .ignore_stop = true, .drafts = t};
	struct generate_result r;
	if (generate(s, prompt, N_PROMPT, &o, &r, &e))
		fail_msg("%s", e.text);
	assert_int_equal(r.new_tokens, N_NEW);
	assert_true(!limit || r.drafts.rows > r.drafts.steps);
	draft_timeline_free(t);
	drafter_free(drafter);
	session_free(s);
	return r.logits_hash;
}

/* Steps over three timelines, one of them a copy of another's beginning, and a verification of
 * which only some rows are kept. */
static uint64_t sessions_hash(struct engine *g, uint64_t hash)
{
	struct err e = {0};
	uint32_t n_vocab = engine_config(g)->n_vocab;
	struct session *s[3];
	for (int i = 0; i < 3; i++)
		s[i] = session_of(g, i == 2);
	assert_int_equal(session_sync(s[0], prompt, 140, NULL, NULL, &e), 0);
	assert_int_equal(batch_copy_prefix(s[1], s[0], 133, &e), 0);
	struct session_image *image; /* goes on in the other session */
	assert_int_equal(session_image_take(s[0], &image, &e), 0);
	assert_int_equal(session_sync(s[0], prompt + 40, 60, NULL, NULL, &e), 0);
	assert_int_equal(batch_copy_prefix(s[0], s[1], 133, &e), 0);
	assert_int_equal(session_image_restore(s[1], image, &e), 0);
	session_image_free(image);
	assert_int_equal(session_sync(s[2], prompt + 20, 50, NULL, NULL, &e), 0);
	struct batch_part p[3];
	for (int i = 0; i < 3; i++)
		p[i] =
			(struct batch_part){.session = s[i], .tokens = prompt + 3 * i, .n = 2, .logits = true};
	if (batch_step(p, 3, NULL, &e))
		fail_msg("%s", e.text);
	for (int i = 0; i < 3; i++)
		hash = generate_hash(hash, session_logits(s[i]), n_vocab);
	assert_int_equal(session_verify(s[2], prompt, 4, NULL, NULL, &e), 0);
	session_keep_rows(s[2], 2);
	hash = drafts_hash(s[2], prompt + 30, 2, hash);
	for (int i = 0; i < 3; i++)
		session_free(s[i]);
	return hash;
}

static uint64_t run_hash(const struct engine_options *o)
{
	struct engine *g = engine_of(o);
	const uint64_t plain = answer_hash(g, 0), hash = sessions_hash(g, plain);
	assert_true(answer_hash(g, 3) == plain);
	assert_int_equal(engine_close(g, NULL), 0);
	return hash;
}

static uint64_t one_stage; /* run_hash of it */

static void test_every_cut(void **state)
{
	(void)state;
	struct engine_options o = cut_options(1, NULL);
	one_stage = run_hash(&o);
	for (uint32_t cut = 1; cut < N_LAYERS; cut += CUT_STEP) {
		/* this build maps what slow builds stream: the two have every cut both ways */
		const bool stream = cut % 2 == IF_SLOW_BUILD(1, 0);
		o = cut_options(2, &cut);
		o = stream ? streamed(o, 0.6, (int)(cut % 3)) : o;
		if (run_hash(&o) != one_stage)
			fail_msg(
				"a cut before layer %u, %s: other logits", cut, stream ? "streamed" : "mapped");
	}
}

static void test_many_stages(void **state)
{
	(void)state;
	uint32_t k = 0;
	for (uint32_t a = 1; a < N_LAYERS; a++)
		for (uint32_t b = a + 1; b < N_LAYERS; b++, k++) {
			struct engine_options o = cut_options(3, (uint32_t[]){a, b});
			if (k % 2)
				o = streamed(o, 0.8, (int)(k % 3));
			if (k % 5 == IF_SLOW_BUILD(0, 2) && run_hash(&o) != one_stage)
				fail_msg("cuts before layers %u and %u: other logits", a, b);
		}
	struct engine_options o = cut_options(N_LAYERS, (uint32_t[]){1, 2, 3, 4, 5, 6});
	assert_true(run_hash(&o) == one_stage);
	o = cut_options(3, NULL); /* where the balance puts them */
	assert_true(run_hash(&o) == one_stage);
	o.kv_f32 = true;
	struct engine_options single = cut_options(1, NULL);
	single.kv_f32 = true;
	assert_true(run_hash(&o) == run_hash(&single));
}

/* A session file of one cut goes on under another, MTP rows included; so do the rows of a part of a
 * timeline, of which a prefix store is made. */
static void test_session_files(void **state)
{
	(void)state;
	static const uint32_t two[] = {4}, three[] = {1, 5};
	const struct engine_options options[] = {
		cut_options(1, NULL), cut_options(2, two), cut_options(3, three)};
	char path[] = "build/test_stages_XXXXXX", part[] = "build/test_stages_part_XXXXXX";
	struct err e = {0};
	uint64_t want = 0;
	close(mkstemp(path));
	close(mkstemp(part));
	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		struct engine *g = engine_of(&options[i]);
		struct session *s = session_of(g, true);
		/* the last token alone, as after a file: a card's rows have equal bits in equal steps */
		assert_int_equal(session_sync(s, prompt, N_PROMPT - 1, NULL, NULL, &e), 0);
		assert_int_equal(session_extend(s, prompt + N_PROMPT - 1, 1, NULL, NULL, &e), 0);
		assert_int_equal(session_file_save(s, N_PROMPT, path, true, NULL, 0, NULL, &e), 0);
		unlink(part);
		assert_int_equal(session_rows_save(s, N_FIRST, N_PROMPT, part, NULL, &e), 0);
		uint64_t next = drafts_hash(s, prompt + 5, 3, GENERATE_HASH_START);
		want = i ? want : next;
		assert_true(next == want);
		session_free(s);
		assert_int_equal(engine_close(g, NULL), 0);

		g = engine_of(&options[(i + 1) % ARRAY_LEN(options)]);
		s = session_of(g, true);
		uint32_t reused;
		if (session_file_load(s, path, NULL, NULL, &e))
			fail_msg("%s", e.text);
		assert_int_equal(session_sync(s, prompt, N_PROMPT, NULL, &reused, &e), 0);
		assert_int_equal(reused, N_PROMPT - 1);
		assert_true(drafts_hash(s, prompt + 5, 3, GENERATE_HASH_START) == want);
		assert_int_equal(session_file_load(s, part, NULL, NULL, &e), ERR_INPUT); /* no session */
		assert_non_null(strstr(e.text, "a part of a prefix store"));
		session_rewind(s, 0);
		assert_int_equal(session_sync(s, prompt, N_FIRST, NULL, NULL, &e), 0);
		if (session_rows_load(s, N_FIRST, prompt, N_PROMPT, part, &e))
			fail_msg("%s", e.text);
		assert_int_equal(session_sync(s, prompt, N_PROMPT, NULL, &reused, &e), 0);
		assert_int_equal(reused, N_PROMPT - 1);
		assert_true(drafts_hash(s, prompt + 5, 3, GENERATE_HASH_START) == want);
		session_free(s);
		assert_int_equal(engine_close(g, NULL), 0);
	}
	unlink(path);
	unlink(part);
}

/* The events of a trace without the times of waits. */
static void check_same_trace(const char *a, const char *b)
{
	struct trace x = {0}, y = {0};
	struct err e = {0};
	if (trace_open(a, &x, &e) || trace_open(b, &y, &e))
		fail_msg("%s", e.text);
	assert_int_equal(x.n_events, y.n_events);
	assert_int_equal(x.n_steps, y.n_steps);
	assert_int_equal(x.n_ids, y.n_ids);
	print_message("%zu events of %llu steps\n", x.n_events, (unsigned long long)x.n_steps);
	assert_true(x.n_steps > N_NEW);
	for (size_t i = 0; i < x.n_events; i++) {
		const struct trace_event *p = &x.events[i], *q = &y.events[i];
		assert_true(p->kind == q->kind && p->use == q->use && p->layer == q->layer &&
					p->n == q->n && p->value == q->value);
	}
	assert_memory_equal(x.ids, y.ids, x.n_ids * sizeof *x.ids);
	assert_memory_equal(x.tiers, y.tiers, x.n_ids);
	trace_fini(&x);
	trace_fini(&y);
}

/* One trace and one profile over all stages; without experts that have to be waited for they are
 * those of one stage. */
static void test_traces(void **state)
{
	(void)state;
	char paths[4][40];
	for (int i = 0; i < 4; i++) {
		snprintf(paths[i], sizeof paths[i], "build/test_stages_XXXXXX");
		close(mkstemp(paths[i]));
		unlink(paths[i]);
	}
	for (int i = 0; i < 2; i++) {
		struct engine_options o = cut_options(i ? 3 : 1, (const uint32_t[]){2, 4});
		o.trace = paths[i];
		o.warm = paths[2 + i];
		struct engine *g = engine_of(&o);
		answer_hash(g, 0);
		answer_hash(g, 2);
		assert_int_equal(engine_close(g, NULL), 0);
	}
	check_same_trace(paths[0], paths[1]);
	struct profile_key *keys[2];
	size_t n[2];
	for (int i = 0; i < 2; i++) {
		struct profile p;
		struct err e = {0};
		bool is_trace;
		assert_int_equal(
			profile_init(&p, engine_fingerprint_of(file), N_LAYERS + 1, config.n_experts), 0);
		if (profile_read(&p, paths[2 + i], &is_trace, &e))
			fail_msg("%s", e.text);
		profile_order(&p, &keys[i], &n[i]);
		profile_fini(&p);
	}
	assert_int_equal(n[0], n[1]);
	assert_true(n[0] > 50);
	for (size_t i = 0; i < n[0]; i++)
		assert_true(keys[0][i].layer == keys[1][i].layer && keys[0][i].expert == keys[1][i].expert);
	free(keys[0]);
	free(keys[1]);
	for (int i = 0; i < 4; i++)
		unlink(paths[i]);
}

/* With room for everything the map and the counters are those of one stage. A profile seeds the
 * caches of all stages. */
/* Where the stages lie, and that each counts its steps and their time. */
static void test_stage_figures(void **state)
{
	(void)state;
	static const uint32_t cuts[] = {2, 4}, ends[] = {2, 4, N_LAYERS};
	struct engine_options o = cut_options(3, cuts);
	struct engine *g = engine_of(&o);
	struct engine_stage_usage from[3], to[3];
	assert_int_equal(engine_n_stages(g), 3);
	for (uint32_t i = 0; i < 3; i++) {
		const struct engine_stage s = engine_stage(g, i);
		assert_int_equal(s.first_layer, i ? cuts[i - 1] : 0);
		assert_int_equal(s.end_layer, ends[i]);
		assert_true(!s.rank && s.card == stage_cards(3)[i] && s.has_mtp == (i == 2));
	}
	answer_hash(g, 2);
	engine_stages_usage(g, from);
	answer_hash(g, 0);
	engine_stages_usage(g, to);
	for (uint32_t i = 0; i < 3; i++) { /* the prompt takes two steps */
		assert_int_equal(to[i].steps - from[i].steps, 2 + N_NEW);
		assert_true(to[i].computing_ns > from[i].computing_ns);
		assert_true(from[i].steps == from[0].steps && from[i].computing_ns > 0);
	}
	assert_int_equal(engine_close(g, NULL), 0);
}

static void test_cache_figures(void **state)
{
	(void)state;
	struct engine_cache c[2];
	struct engine_sizes z[2];
	uint8_t *map[2];
	for (int i = 0; i < 2; i++) {
		struct engine_options o = cut_options(i ? 3 : 1, (const uint32_t[]){3, 6});
		o.cache_bytes = 2 * full.everything_bytes;
		struct engine *g = engine_of(&o);
		const struct model_config *m = engine_config(g);
		map[i] = NEW_ARRAY(uint8_t, (m->n_layers + m->n_mtp) * m->n_experts);
		answer_hash(g, 1);
		engine_cache_snapshot(g, &c[i], map[i]);
		z[i] = engine_sizes(g);
		struct expert_stats stats = engine_expert_stats(g);
		assert_int_equal(stats.miss, c[i].stats.miss);
		assert_true(stats.miss > 0 && stats.bytes_read > 0);
		assert_int_equal(engine_close(g, NULL), 0);
	}
	size_t n = (size_t)c[0].n_layers * c[0].n_experts;
	assert_int_equal(c[1].n_layers, c[0].n_layers);
	assert_memory_equal(map[0], map[1], n);
	for (uint32_t l = 0; l < c[0].n_layers; l++) /* each MoE layer has something in it */
		assert_true((memchr(map[1] + (size_t)l * c[0].n_experts, ENGINE_IN_VRAM, c[0].n_experts) !=
						NULL) == (map[1][(size_t)l * c[0].n_experts] != ENGINE_NO_EXPERT));
	assert_int_equal(c[0].stats.miss, c[1].stats.miss);
	assert_int_equal(c[0].stats.hit_vram, c[1].stats.hit_vram);
	assert_int_equal(c[0].expert_bytes, c[1].expert_bytes);
	assert_int_equal(z[0].experts_bytes, z[1].experts_bytes);
	assert_int_equal(z[0].experts_per_token, z[1].experts_per_token);
	assert_int_equal(z[0].resident_per_token, z[1].resident_per_token);
	free(map[0]);
	free(map[1]);
}

static void set_cancel(void *user)
{
	atomic_store((atomic_bool *)user, true);
}

/* Cancelled behind the first MoE layer, which is the last layer of the first stage. */
static void test_cancel_between_stages(void **state)
{
	(void)state;
	const uint32_t cut = config.n_dense + 1;
	struct engine_options o = streamed(cut_options(2, &cut), 0.5, 1);
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, false);
	struct err e = {0};
	atomic_bool cancel = false;
	struct session_watch w = {.on_device_busy = set_cancel, .user = &cancel, .cancel = &cancel};
	assert_int_equal(session_sync(s, prompt, 80, NULL, NULL, &e), 0);
	assert_int_equal(session_extend(s, prompt + 80, 1, NULL, &w, &e), ERR_INTERRUPTED);
	assert_int_equal(session_length(s), 80);
	assert_int_equal(session_extend(s, prompt + 80, 1, NULL, NULL, &e), 0);
	uint64_t after = logits_hash(s);
	assert_int_equal(session_sync(s, prompt + 1, 1, NULL, NULL, &e), 0);
	assert_int_equal(session_sync(s, prompt, 80, NULL, NULL, &e), 0);
	assert_int_equal(session_extend(s, prompt + 80, 1, NULL, NULL, &e), 0);
	assert_true(logits_hash(s) == after);
	session_free(s);
	assert_int_equal(engine_close(g, NULL), 0);
}

static void refuse_stages(const struct engine_options *o, int code, const char *what)
{
	struct engine *g;
	struct err e = {0};
	assert_int_equal(engine_open(o, &g, &e), code);
	if (!strstr(e.text, what))
		fail_msg("\"%s\" does not say \"%s\"", e.text, what);
}

/* ---- one routing for all stages ---- */

struct wrapped {
	struct replayed_routing *routing;
	uint32_t n_stages;
};

static int wrap_stage(void *user, const struct model_config *c, struct expert_source *inner,
	struct expert_source **out, struct err *e)
{
	struct wrapped *w = user;
	const struct replayed_routing_options o = {.path = "tests/data/trace_small.gltr1",
		.n_layers = c->n_layers,
		.n_dense = c->n_dense,
		.n_experts = c->n_experts,
		.n_used = c->n_used};
	int rc = w->routing ? 0 : replayed_routing_new(&o, &w->routing, e);
	if (rc)
		return rc;
	w->n_stages++;
	*out = replayed_routing_wrap(w->routing, inner);
	return 0;
}

/* The experts of a trace in place of the routers': every stage has to be at the same token of it.
 */
static void test_replayed_stages(void **state)
{
	(void)state;
	static const uint32_t cuts[] = {2, 4};
	uint64_t hash[2][2];
	struct engine_options o = cut_options(1, NULL);
	struct engine *g = engine_of(&o);
	const uint64_t own = answer_hash(g, 0);
	assert_int_equal(engine_close(g, NULL), 0);
	for (int i = 0; i < 2; i++) {
		struct wrapped w = {0};
		o = streamed(cut_options(i ? 3 : 1, cuts), 0.5, i);
		o.wrap_source = wrap_stage;
		o.wrap_user = &w;
		g = engine_of(&o);
		assert_int_equal(w.n_stages, i ? 3 : 1);
		hash[i][0] = answer_hash(g, 0);
		hash[i][1] = answer_hash(g, 3);
		assert_int_equal(engine_close(g, NULL), 0);
		replayed_routing_free(w.routing);
	}
	assert_true(hash[0][0] != own);
	assert_true(hash[0][0] == hash[1][0] && hash[0][1] == hash[1][1]);
}

static void test_refusals(void **state)
{
	(void)state;
	static const uint32_t many[N_LAYERS + 1];
	struct engine_options o = cut_options(N_LAYERS + 1, NULL);
	o.cards = many;
	refuse_stages(&o, ERR_USAGE, "8 stages were asked for, the model has 7 layers");
	o = cut_options(2, NULL);
	const uint32_t n_cards = backend_count_cards(o.backend);
	char no_card[40];
	snprintf(no_card, sizeof no_card, "there is no card %u", n_cards);
	o.cards = (const uint32_t[]){0, n_cards};
	refuse_stages(&o, ERR_USAGE, no_card);
	o = cut_options(3, (const uint32_t[]){4, 4});
	refuse_stages(&o, ERR_USAGE, "cannot begin with layer 4");
	o = cut_options(2, (const uint32_t[]){7});
	refuse_stages(&o, ERR_USAGE, "cannot begin with layer 7");
	o = cut_options(2, NULL);
	o.copier = (struct copier *)(void *)&o; /* never used */
	refuse_stages(&o, ERR_USAGE, "one copier serves one stage");
	o = cut_options(2, NULL);
	o.cards = many;                   /* both on card 0 */
	o.cache_bytes = full.floor_bytes; /* of one stage */
	refuse_stages(&o, ERR_MEMORY, "the stages on card 0");
	o = cut_options(2, NULL);
	o.context = 1 << 30;
	refuse_stages(&o, ERR_USAGE, "a context of");
	o = cut_options(0, NULL);
	o.n_cards = ENGINE_CARDS_AUTO; /* a stage for each card */
	struct engine *g = engine_of(&o);
	char summary[512];
	engine_summary(g, summary, sizeof summary);
	assert_true((strstr(summary, "stages") != NULL) == (n_cards > 1));
	engine_close(g, NULL);
	o = cut_options(2, NULL);
	g = engine_of(&o);
	engine_summary(g, summary, sizeof summary);
	assert_non_null(strstr(summary, "in 2 stages"));
	engine_close(g, NULL);
}

static void test_balance(void **state)
{
	(void)state;
	struct layer_cost layers[8];
	struct stage_capacity even[8] = {{0}}, uneven[] = {{100, 0}, {300, 0}};
	uint32_t first[8];
	for (int i = 0; i < 8; i++)
		layers[i] = (struct layer_cost){10, 2, false};
	stage_cuts_balance(layers, 8, even, 1, first);
	assert_int_equal(first[0], 0);
	stage_cuts_balance(layers, 8, even, 2, first);
	assert_true(first[0] == 0 && first[1] == 4);
	stage_cuts_balance(layers, 8, even, 8, first);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(first[i], i);
	stage_cuts_balance(layers, 8, uneven, 2, first); /* 3 of 8: 0.75 + 0.375 each way */
	assert_int_equal(first[1], 3);
	layers[7] = (struct layer_cost){70, 14, false}; /* as heavy as all others */
	stage_cuts_balance(layers, 8, even, 2, first);
	assert_int_equal(first[1], 7);
	stage_cuts_balance(layers, 8, even, 3, first);
	assert_true(first[1] == 3 || first[1] == 4);
	assert_int_equal(first[2], 7);
	/* any cut of the first seven layers gives the same load: the one in front of no sharing layer
	 */
	for (uint32_t own = 1; own < 7; own++) {
		for (uint32_t i = 0; i < 7; i++)
			layers[i].shares = i && i != own;
		stage_cuts_balance(layers, 8, even, 3, first);
		assert_int_equal(first[1], own);
		assert_int_equal(first[2], 7);
	}
	/* but not at the cost of a larger load */
	for (uint32_t i = 0; i < 8; i++)
		layers[i] = (struct layer_cost){10, 2, i != 0 && i != 5};
	stage_cuts_balance(layers, 8, even, 2, first);
	assert_int_equal(first[1], 4);
}

/* Cards of unlike speed: layers that read as much as they hold lie where they are read faster. */
static void test_balance_of_unlike_cards(void **state)
{
	(void)state;
	struct layer_cost layers[16];
	uint32_t first[3];
	for (int i = 0; i < 16; i++)
		layers[i] = (struct layer_cost){10, 10, false};
	/* half of the room each, four fifths of the speed and one: 11 layers weigh 2.23, 5 weigh 2.19
	 */
	stage_cuts_balance(
		layers, 16, (const struct stage_capacity[]){{100, 4000}, {100, 1000}}, 2, first);
	assert_int_equal(first[1], 11);
	stage_cuts_balance(
		layers, 16, (const struct stage_capacity[]){{100, 1000}, {100, 4000}}, 2, first);
	assert_int_equal(first[1], 5);
	/* twice the room and the speed: twice the layers, in any order of the cards */
	stage_cuts_balance(layers, 16,
		(const struct stage_capacity[]){{100, 1000}, {200, 2000}, {100, 1000}}, 3, first);
	assert_true(first[1] == 4 && first[2] == 12);
	/* one that does not say how fast it is: as if they were alike */
	stage_cuts_balance(
		layers, 16, (const struct stage_capacity[]){{100, 0}, {100, 3000}}, 2, first);
	assert_int_equal(first[1], 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_balance),
		cmocka_unit_test(test_balance_of_unlike_cards),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_every_cut),
		cmocka_unit_test(test_many_stages),
		cmocka_unit_test(test_session_files),
		cmocka_unit_test(test_traces),
		cmocka_unit_test(test_replayed_stages),
		cmocka_unit_test(test_stage_figures),
		cmocka_unit_test(test_cache_figures),
		cmocka_unit_test(test_cancel_between_stages),
	};
	return cmocka_run_group_tests(tests, stages_setup, source_teardown);
}
