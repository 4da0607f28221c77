/* SPDX-License-Identifier: MIT */
/*
 * Experts that the processor computes in place of the card (src/forward/moe/host_experts.h): the
 * logits are the same whoever computes what. A source around the engine's own one draws by lot
 * which experts the processor is offered, and for what time, so that every split occurs. The module
 * alone: test_host_times.c.
 *
 * Without a card: the CPU with an emulated one between disk and memory
 * (tests/support/copier_null.h) and with late ops and deferred kernels (lazy_device.h); its op for
 * experts is the processor's version of a card's (limb_expert_ffn). With GLM_BACKEND=cuda: on a
 * card.
 */
#include "kernels/cpu/limbs/limb_experts.h"
#include "kernels/expert_arithmetic.h"
#include "src/base/host/numa.h"
#include "src/base/host/pages.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/engine_internal.h"
#include "src/engine/generate.h"
#include "stream/link_time.h"
#include "tests/stream/loader_help.h"
#include "tests/support/copier_null.h"
#include "tests/support/engine_help.h"
#include "tests/support/lazy_device.h"
#include "tests/support/numa_pair.h"
#include "tests/support/slow_build.h"
#include "tests/support/temp_dir.h"
#include "tools/commands/commands.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_PROMPT 16
#define N_NEW    IF_SLOW_BUILD(8, 12)
#define N_SEEDS  2

static bool on_cuda;

/* ---- a source that offers by lot ---- */

struct lots {
	struct expert_source base; /* first: the pointers are cast */
	struct expert_source *inner;
	struct rng rng;
	uint64_t offered; /* experts that the model offered */
	/* experts that the processor is to compute, by the NUMA node that they lie on */
	uint64_t on_node[NUMA_NODES_MAX + 1];
	int cancel_in; /* acquires from now on: the step is interrupted; 0: never */
};

static struct lots *lots_of(struct expert_source *s)
{
	return (struct lots *)s;
}

static void lots_close(struct expert_source *s)
{
	struct lots *l = lots_of(s);
	l->inner->ops->close(l->inner);
	free(l);
}

static void lots_step(struct expert_source *s, enum expert_use use, int rows, int position)
{
	lots_of(s)->inner->ops->step(lots_of(s)->inner, use, rows, position);
}

static int lots_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	static const uint32_t times[] = {0, 1, 1000000000};
	struct lots *l = lots_of(s);
	for (int i = 0; i < n; i++)
		if (refs[i].host_ns) {
			l->offered++;
			refs[i].host_ns = times[rng_below(&l->rng, 3)];
			refs[i].node_ns = NULL;
		}
	l->inner->cancel = s->cancel;
	if (l->cancel_in && !--l->cancel_in)
		atomic_store(s->cancel, true);
	int rc = l->inner->ops->acquire(l->inner, layer, use, refs, n, e);
	for (int i = 0; i < n && rc >= 0; i++)
		if (refs[i].on_host)
			l->on_node[refs[i].node]++;
	s->stats = l->inner->stats;
	return rc;
}

static int lots_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	return lots_of(s)->inner->ops->wait_ready(lots_of(s)->inner, layer, refs, n, e);
}

static int lots_poll_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	return lots_of(s)->inner->ops->poll_ready(lots_of(s)->inner, layer, refs, n, e);
}

static void lots_release(struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	lots_of(s)->inner->ops->release(lots_of(s)->inner, layer, refs, n);
}

static void lots_prefetch(
	struct expert_source *s, int layer, const int32_t *ids, int n, int distance)
{
	lots_of(s)->inner->ops->prefetch(lots_of(s)->inner, layer, ids, n, distance);
}

static const struct expert_source_ops lots_ops = {
	.name = "lots",
	.close = lots_close,
	.step = lots_step,
	.acquire = lots_acquire,
	.wait_ready = lots_wait_ready,
	.poll_ready = lots_poll_ready,
	.release = lots_release,
	.prefetch = lots_prefetch,
};

static struct lots *lots_now; /* of the engine that is open */

static int lots_open(void *user, const struct model_config *c, struct expert_source *inner,
	struct expert_source **out, struct err *e)
{
	(void)c;
	(void)e;
	struct lots *l = NEW(struct lots);
	l->base = (struct expert_source){.ops = &lots_ops,
		.max_pinned = {inner->max_pinned[0], inner->max_pinned[1]},
		.lookahead = inner->lookahead};
	l->inner = inner;
	l->rng = (struct rng){*(const uint64_t *)user};
	*out = &l->base;
	lots_now = l;
	return 0;
}

/* ---- runs ---- */

enum how { EMULATED, LATE_OPS, DEFERRED };

struct split_run {
	const char *model;   /* NULL: the pocket model */
	uint64_t everything; /* bytes of all its experts */
	enum how how;
	bool host;
	double share; /* of the first tier */
	uint32_t chunk;
	int lookahead;
	uint64_t seed;
	const struct numa_nodes *nodes; /* NULL: the host's */
	uint32_t n_cards;               /* of the options */
};

struct split_outcome {
	uint64_t hash, offered, on_node[NUMA_NODES_MAX + 1];
	struct expert_stats stats;
};

static const struct generate_options answer = {.max_new = N_NEW, .ignore_stop = true};
static int32_t prompt[N_PROMPT];

static struct engine *open_run(
	const struct split_run *r, const struct copier_faults *faults, struct copier **copier)
{
	static struct backend_ops ops;
	struct err e = {0};
	uint64_t seed = r->seed;
	struct engine_options o = {.model_path = r->model ? r->model : MODEL,
		.backend = on_cuda ? "cuda" : "cpu",
		.context = 256,
		.threads = r->how == EMULATED && !r->model ? 2 : 1,
		.cache_bytes = r->model ? (uint64_t)(r->share * (double)r->everything) : budget(r->share),
		.ram_bytes = r->model ? r->everything : full.everything_bytes,
		.cpu_experts = r->host,
		.nodes = r->nodes,
		.n_cards = r->n_cards,
		.cpu_experts_slow = true,
		.chunk = r->chunk,
		.lookahead = r->lookahead,
		.wrap_source = lots_open,
		.wrap_user = &seed};
	if (!on_cuda)
		assert_int_equal(copier_null_open(faults, &o.copier, &e), 0);
	*copier = o.copier;
	struct engine *g = engine_of(&o);
	struct backend *b = g->stages->backend;
	if (on_cuda)
		return g;
	ops = *b->ops;
	ops.expert_ffn = limb_expert_ffn;
	b->ops = &ops;
	if (r->how != EMULATED)
		lazy_device_start(b, r->how == DEFERRED, r->seed);
	return g;
}

static void close_run(struct engine *g, struct copier *copier)
{
	engine_close(g, NULL);
	if (copier)
		copier->ops->close(copier);
}

static uint64_t answer_hash(struct engine *g)
{
	struct err e = {0};
	struct generate_result result;
	struct session *s = session_of(g, false);
	if (generate(s, prompt, N_PROMPT, &answer, &result, &e))
		fail_msg("%s", e.text);
	session_free(s);
	return result.logits_hash;
}

static struct split_outcome run_of(const struct split_run *r)
{
	const struct copier_faults f = {.seed = r->seed, .readable = true, .latency_max_us = 30};
	struct copier *copier;
	struct engine *g = open_run(r, &f, &copier);
	struct split_outcome out = {.hash = answer_hash(g)};
	out.offered = lots_now->offered;
	memcpy(out.on_node, lots_now->on_node, sizeof out.on_node);
	out.stats = engine_expert_stats(g);
	close_run(g, copier);
	return out;
}

/* Weights of an expert: of the layer where they are smallest and where they are largest. */
static void expert_bytes(uint64_t *least, uint64_t *most)
{
	*least = UINT64_MAX;
	*most = 0;
	for (uint32_t layer = 0; layer < config.n_layers; layer++) {
		static const char *const names[] = {"gate", "up", "down"};
		uint64_t bytes = 0;
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			char name[64];
			snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, names[i]);
			const struct gguf_tensor *t = gguf_find_tensor(file, name);
			bytes += t ? gguf_values_bytes(t) / t->ne[2] : 0;
		}
		*least = bytes ? MIN(*least, bytes) : *least;
		*most = MAX(*most, bytes);
	}
}

static void check_splits(enum how how)
{
	uint64_t promoted = 0, least, most;
	expert_bytes(&least, &most);
	static const uint32_t chunks[] = {1, 6};
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		struct split_run r = {.how = how, .share = 0.2, .chunk = chunks[i]};
		const struct split_outcome want = run_of(&r);
		assert_int_equal(want.offered, 0);
		assert_int_equal(want.stats.on_host, 0);
		assert_int_equal(want.stats.host_bytes + want.stats.bytes_promoted, 0);
		r.host = true;
		for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
			r.seed = seed;
			r.share = (double)(seed % 3) / 5;
			r.lookahead = (int)(seed % 2);
			const struct split_outcome got = run_of(&r);
			if (got.hash != want.hash)
				fail_msg("seed %llu, %u rows: other logits", (unsigned long long)seed, r.chunk);
			assert_true(got.stats.on_host > 0 && got.stats.on_host < got.stats.hit_ram);
			assert_in_range(
				got.stats.host_bytes, got.stats.on_host * least, got.stats.on_host * most);
			assert_true(got.stats.host_ns > 0);
			assert_true(got.stats.bytes_promoted <= got.stats.bytes_in);
			promoted += got.stats.bytes_promoted;
			if (seed == 1)
				print_message("%u rows: %llu of %llu experts in RAM by the processor\n", r.chunk,
					(unsigned long long)got.stats.on_host, (unsigned long long)got.stats.hit_ram);
		}
	}
	assert_true(promoted > 0);
}

static void test_emulated_card(void **state)
{
	(void)state;
	check_splits(EMULATED);
}

static void test_late_ops(void **state)
{
	(void)state;
	check_splits(LATE_OPS);
}

static void test_deferred_kernels(void **state)
{
	(void)state;
	check_splits(DEFERRED);
	assert_true(lazy_counts.posted_late > 0);
	assert_int_equal(lazy_counts.given_up, 0);
}

/* ---- NUMA nodes ---- */

#define NO_SUCH_NODE 1000 /* the kernel refuses it */

/* The logits are those without nodes, placed or refused, in all splits; so they are where the CPU
 * computes all experts, each by its node's threads, or takes them where the file is mapped. */
static void test_two_nodes(void **state)
{
	(void)state;
	struct numa_nodes nodes;
	if (!numa_pair_of(&nodes, 0))
		skip();
	uint8_t *page = pages_try_map(4096);
	const bool allowed = !numa_prefer(page, 4096, 0); /* a container may forbid it */
	pages_unmap(page, 4096);
	uint64_t without[DEFERRED + 1], hash[2][2]; /* by how; by whether mapped and divided */
	for (int second = 0; second <= NO_SUCH_NODE; second += NO_SUCH_NODE) {
		for (enum how how = EMULATED; how <= DEFERRED; how += DEFERRED) {
			if (IF_SLOW_BUILD(second && how == DEFERRED, false))
				continue;
			struct split_run r = {.how = how, .share = 0.2, .chunk = 6};
			if (!second)
				without[how] = run_of(&r).hash;
			numa_pair_of(&nodes, second);
			r.nodes = &nodes;
			r.host = true;
			for (r.seed = 1; r.seed <= IF_SLOW_BUILD(1, N_SEEDS); r.seed++) {
				const struct split_outcome got = run_of(&r);
				assert_true(got.hash == without[how]);
				assert_true(got.stats.on_host > 0 && got.stats.on_host < got.stats.hit_ram);
				assert_int_equal(got.on_node[0], second || !allowed ? got.stats.on_host : 0);
				assert_true(second || !allowed || (got.on_node[1] && got.on_node[2]));
			}
		}
		for (int mapped = 0; mapped < 2; mapped++) {
			for (int divided = second > 0; divided < 2; divided++) {
				struct engine *g = engine_of(&(struct engine_options){.model_path = MODEL,
					.backend = "cpu",
					.context = 256,
					.threads = 2,
					.cache_bytes = mapped ? 0 : budget(0.3),
					.ram_bytes = mapped ? 0 : full.everything_bytes / 2,
					.nodes = divided ? &nodes : &(struct numa_nodes){0}});
				hash[mapped][divided] = answer_hash(g);
				close_run(g, NULL);
			}
			assert_true(hash[mapped][0] == hash[mapped][1]);
		}
	}
}

/* ---- every type ---- */

#define TYPE_LAYERS 7 /* of a model, one of them dense */

static const char type_shape[] =
	"{\"model_type\": \"glm_moe_dsa\", \"hidden_act\": \"silu\", \"num_hidden_layers\": 7,"
	"\"num_nextn_predict_layers\": 0, \"hidden_size\": 256, \"vocab_size\": 8192,"
	"\"max_position_embeddings\": 1024, \"num_attention_heads\": 4, \"q_lora_rank\": 256,"
	"\"kv_lora_rank\": 256, \"qk_nope_head_dim\": 96, \"qk_rope_head_dim\": 32, \"v_head_dim\": 64,"
	"\"index_n_heads\": 4, \"index_head_dim\": 64, \"index_topk\": 64, \"rms_norm_eps\": 1e-5,"
	"\"rope_theta\": 8000000, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 3,"
	"\"first_k_dense_replace\": 1, \"intermediate_size\": 512, \"moe_intermediate_size\": 256,"
	"\"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"n_shared_experts\": 1,"
	"\"routed_scaling_factor\": 2.5, \"norm_topk_prob\": true}";

/* A model with random experts of this type. */
static const char *model_of(enum dtype type)
{
	struct err e = {0};
	char name[32];
	char *shape = temp_dir_path("shape.json");
	FILE *f = fopen(shape, "w");
	assert_non_null(f);
	fputs(type_shape, f);
	assert_int_equal(fclose(f), 0);
	snprintf(name, sizeof name, "%s.gguf", dtype_name(type));
	char *path = temp_dir_path(name);
	char *arguments[] = {"synth", "-o", path, "--shape", shape, "--recipe", "q8", "--experts",
		(char *)(uintptr_t)dtype_name(type), "--tokenizer", (char *)(uintptr_t)MODEL, "--no-mtp",
		"-q", NULL};
	if (cmd_synth((int)ARRAY_LEN(arguments) - 1, arguments, &e))
		fail_msg("%s", e.text);
	return path;
}

static uint64_t everything_of(const char *path)
{
	struct engine_cache k;
	struct engine *g = engine_of(&(struct engine_options){
		.model_path = path, .backend = "cpu", .context = 64, .threads = 1, .cache_bytes = 1 << 30});
	engine_cache_snapshot(g, &k, NULL);
	engine_close(g, NULL);
	return k.everything_bytes;
}

/* Each type that the processor computes, with random splits. */
static void test_limb_types(void **state)
{
	(void)state;
	static const enum dtype types[] = {
		DTYPE_IQ2_XXS, DTYPE_IQ2_XS, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q8_0};
	uint64_t layers = 0;
	for (size_t t = 0; t < ARRAY_LEN(types); t += IF_SLOW_BUILD(6, 1)) {
		assert_true(expert_arithmetic_covers(types[t]));
		struct split_run r = {.model = model_of(types[t]), .share = 0.25, .chunk = 1};
		r.everything = everything_of(r.model);
		const struct split_outcome want = run_of(&r);
		assert_int_equal(want.stats.on_host, 0);
		r.host = true;
		uint64_t on_host = 0, hit_ram = 0;
		for (r.seed = 1; r.seed <= N_SEEDS; r.seed++) {
			const struct split_outcome got = run_of(&r);
			if (got.hash != want.hash)
				fail_msg("%s, seed %llu: other logits", dtype_name(types[t]),
					(unsigned long long)r.seed);
			on_host += got.stats.on_host;
			hit_ram += got.stats.hit_ram;
			layers += (N_PROMPT + N_NEW - 1) * (TYPE_LAYERS - 1);
		}
		/* of all seeds: what is in RAM in one run depends on when demotions end */
		if (!on_host || on_host >= hit_ram)
			fail_msg("%s: %llu of %llu experts in RAM by the processor", dtype_name(types[t]),
				(unsigned long long)on_host, (unsigned long long)hit_ram);
	}
	print_message("%llu layers with random splits\n", (unsigned long long)layers);
	assert_true(layers >= IF_SLOW_BUILD(500, 2000));
}

/* All cards (ENGINE_CARDS_AUTO) that are a single one: one stage, so the processor may compute. */
static void test_all_cards_are_one(void **state)
{
	(void)state;
	const struct copier_faults f = {.readable = true};
	const struct split_run r = {
		.share = 0.2, .chunk = 1, .host = true, .n_cards = ENGINE_CARDS_AUTO};
	struct copier *copier;
	struct engine *g = open_run(&r, &f, &copier);
	assert_int_equal(g->n_stages, 1);
	assert_non_null(g->stages->host);
	close_run(g, copier);
}

/* Interrupted between two layers, while experts are held in RAM: nothing stays held, and the next
 * answer is the same. */
static void test_cancelled(void **state)
{
	(void)state;
	const struct copier_faults f = {.readable = true};
	for (enum how how = EMULATED; how <= DEFERRED; how += DEFERRED) {
		struct split_run r = {.how = how, .share = 0.2, .chunk = 1, .host = true, .seed = 3};
		struct generate_result result;
		struct err e = {0};
		struct copier *copier;
		struct engine *g = open_run(&r, &f, &copier);
		const uint64_t want = answer_hash(g);
		for (int at = 20; at < 23; at++) {
			atomic_bool cancel = false;
			struct generate_options o = answer;
			o.watch.cancel = &cancel;
			lots_now->cancel_in = at;
			struct session *s = session_of(g, false);
			int rc = generate(s, prompt, N_PROMPT, &o, &result, &e);
			assert_true(rc == ERR_INTERRUPTED || (!rc && result.stop == GENERATE_CANCELLED));
			session_free(s);
			assert_true(answer_hash(g) == want);
		}
		close_run(g, copier);
	}
}

/* The card is lost in the middle: the answer ends with a sentence. */
static void test_copies_fail(void **state)
{
	(void)state;
	for (uint64_t at = 150; at < 250; at += 50) {
		const struct copier_faults f = {.readable = true, .fail_copy = at, .fail_all = true};
		struct split_run r = {.how = DEFERRED, .share = 0, .chunk = 1, .host = true, .seed = at};
		struct generate_result result;
		struct err e = {0};
		struct copier *copier;
		struct engine *g = open_run(&r, &f, &copier);
		struct session *s = session_of(g, false);
		assert_int_equal(generate(s, prompt, N_PROMPT, &answer, &result, &e), ERR_RUN);
		assert_non_null(strstr(e.text, "expert"));
		session_free(s);
		close_run(g, copier);
	}
}

static void test_link_time(void **state)
{
	(void)state;
	const struct copier_faults lost = {.fail_copy = 2, .fail_all = true},
							   refuses = {.refuse_pin = 1};
	const struct copier_faults *faults[] = {NULL, &lost, &refuses};
	for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
		struct copier *copier;
		struct err e = {0};
		double bytes_s;
		assert_int_equal(copier_null_open(faults[i], &copier, &e), 0);
		assert_int_equal(link_time(copier, &bytes_s, &e) != 0, i > 0);
		assert_true(i ? bytes_s == 0 && e.text[0] : bytes_s > 1e6);
		copier->ops->close(copier);
	}
}

static int files_setup(void **state)
{
	return temp_dir_make(state) || source_setup(state);
}

static int files_teardown(void **state)
{
	return source_teardown(state) + temp_dir_drop(state);
}

int main(void)
{
	struct rng rng = {77};
	for (int i = 0; i < N_PROMPT; i++)
		prompt[i] = (int32_t)rng_below(&rng, 8000);
	const char *name = getenv("GLM_BACKEND");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_emulated_card),
		cmocka_unit_test(test_late_ops),
		cmocka_unit_test(test_deferred_kernels),
		cmocka_unit_test(test_two_nodes),
		cmocka_unit_test(test_limb_types),
		cmocka_unit_test(test_all_cards_are_one),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_copies_fail),
		cmocka_unit_test(test_link_time),
	};
	const struct CMUnitTest cuda_tests[] = {
		cmocka_unit_test(test_emulated_card),
		cmocka_unit_test(test_limb_types),
	};
	on_cuda = name && !strcmp(name, "cuda");
#ifdef __SANITIZE_THREAD__
	/* other arithmetic, with the threads of the cases before it */
	cmocka_set_skip_filter("test_limb_types");
#endif
	return on_cuda ? cmocka_run_group_tests(cuda_tests, files_setup, files_teardown)
				   : cmocka_run_group_tests(tests, files_setup, files_teardown);
}
