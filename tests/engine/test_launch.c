/* SPDX-License-Identifier: MIT */
/*
 * Launches of one layer and of many on a device that lags (lazy_device.h): numbers are those of the
 * CPU alone, whatever is recorded and wherever a step is given up.
 */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/batch.h"
#include "src/engine/engine_internal.h"
#include "src/engine/generate.h"
#include "stream/loader/loader.h"
#include "tests/support/copier_null.h"
#include "tests/support/engine_help.h"
#include "tests/support/lazy_device.h"
#include "tests/support/mutate_model.h"
#include "tests/support/slow_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define MODEL   "tools/pocket/pocket.gguf"
#define FOREIGN "build/test_launch_foreign.gguf"
#define N_TEXT  300

#define N_SEEDS IF_SLOW_BUILD(1, 3)
#define LONG    IF_SLOW_BUILD(24, 252) /* all: positions on both sides of 256 */

static int32_t text[3][N_TEXT];

static struct loader_plan full;
static struct copier *copier; /* of a card whose memory the host can read */

static int launch_setup(void **state)
{
	(void)state;
	log_set_level(LOG_QUIET);
	struct rng r = {78};
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < N_TEXT; k++)
			text[i][k] = (int32_t)rng_below(&r, 8000);
	struct err e = {0};
	struct engine_options o = {.model_path = MODEL, .backend = "cpu", .context = 64};
	struct engine *g;
	if (engine_open(&o, &g, &e))
		return -1;
	struct loader_options lo = {.file = g->gguf,
		.backend = g->stages->backend,
		.n_layers = (int)(g->config.n_layers + g->config.n_mtp),
		.n_used = (int)g->config.n_used,
		.tier_bytes = {(uint64_t)1 << 33, 0}};
	int rc = loader_plan(&lo, &full, &e);
	engine_close(g, NULL);
	return rc ? rc : copier_null_open(&(struct copier_faults){.readable = true}, &copier, &e);
}

static int launch_teardown(void **state)
{
	(void)state;
	if (copier)
		copier->ops->close(copier);
	return 0;
}

enum how { PLAIN, SEGMENTS_ONLY, DEFERRED };

static struct engine *launch_open_engine(
	const struct engine_options *o, enum how how, uint64_t seed)
{
	struct engine_options own = *o;
	if (how != PLAIN && !o->cache_bytes)
		own.copier = copier; /* a card: a step uploads the rows of the embedding */
	struct engine *g = engine_of(&own);
	if (how != PLAIN)
		lazy_device_start(g->stages->backend, how == DEFERRED, seed);
	return g;
}

/* One token after the other, sessions in turns and together, drafts: a hash of all logits. */
static uint64_t decode(const struct engine_options *o, enum how how, uint64_t seed)
{
	struct err e = {0};
	struct engine *g = launch_open_engine(o, how, seed);
	uint32_t n_vocab = engine_config(g)->n_vocab;
	struct session *s[3];
	uint64_t hash = GENERATE_HASH_START;
	for (int i = 0; i < 3; i++) {
		static const uint32_t length[] = {20, LONG, 30};
		s[i] = session_of(g, i == 2);
		if (session_sync(s[i], text[i], length[i], NULL, NULL, &e))
			fail_msg("%s", e.text);
	}
	for (uint32_t k = 0; k < 6; k++) {
		for (int i = 0; i < 3;
			 i++) { /* two rows: all are wanted of the last session, of the others one */
			if (session_extend(s[i], &text[i][260 + k], 1 + k % 2, NULL, NULL, &e))
				fail_msg("%s", e.text);
			hash = generate_hash(hash, session_logits(s[i]), n_vocab);
		}
		if (k % 2)
			continue;
		struct batch_part p[2];
		for (int i = 0; i < 2; i++)
			p[i] = (struct batch_part){.session = s[i],
				.tokens = text[i] + 270 + 2 * k,
				.n = 1 + (k == 4),
				.logits = true};
		if (batch_step(p, 2, NULL, &e))
			fail_msg("%s", e.text);
		for (int i = 0; i < 2; i++)
			hash = generate_hash(hash, session_logits(s[i]), n_vocab);
	}
	hash = drafts_hash(s[2], &text[2][290], 4, hash);
	for (int i = 0; i < 3; i++)
		session_free(s[i]);
	assert_int_equal(how != PLAIN ? lazy_counts.given_up : 0, 0);
	assert_int_equal(engine_close(g, NULL), 0);
	return hash;
}

static struct engine_options options(void)
{
	return (struct engine_options){
		.model_path = MODEL, .backend = "cpu", .context = 320, .sessions = 3, .chunk = 128};
}

static void test_same_bits(void **state)
{
	(void)state;
	struct engine_options o = options();
	uint64_t want = decode(&o, PLAIN, 0);
	for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
		o = options();
		o.cache_bytes = seed == 2 ? 0 : full.floor_bytes + full.everything_bytes / 24 * (seed - 1);
		o.ram_bytes = seed == 3 ? full.floor_bytes : 0;
		o.lookahead = (int)(seed % 3);
		enum how how = seed == 2 ? SEGMENTS_ONLY : DEFERRED;
		if (decode(&o, how, seed) != want)
			fail_msg("seed %llu: other logits", (unsigned long long)seed);
		print_message("seed %llu: %llu segments replayed; jobs posted to deferred kernels %llu "
					  "times at first, %llu times later\n",
			(unsigned long long)seed, (unsigned long long)lazy_counts.replays,
			(unsigned long long)lazy_counts.posted_first,
			(unsigned long long)lazy_counts.posted_late);
		assert_true(lazy_counts.replays > 20 &&
					(how == DEFERRED ? lazy_counts.posted_first > 60 : !lazy_counts.posted_first));
		assert_true(seed > 1 || lazy_counts.posted_late > 0);
	}
}

/* A step that is given up at any layer leaves nobody waiting, and the session goes on with the same
 * numbers. */
static atomic_bool cancel;
static int cancel_after;

static int cancelling_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e);

static struct cancelling {
	struct expert_source base;
	struct expert_source_ops ops;
	struct expert_source *inner;
} source;

static int cancelling_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	(void)s;
	if (cancel_after && !--cancel_after)
		atomic_store(&cancel, true);
	source.inner->cancel = source.base.cancel;
	return source.inner->ops->acquire(source.inner, layer, use, refs, n, e);
}

static int cancelling_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	(void)s;
	return source.inner->ops->wait_ready(source.inner, layer, refs, n, e);
}

static void cancelling_release(
	struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	(void)s;
	source.inner->ops->release(source.inner, layer, refs, n);
}

static void test_given_up(void **state)
{
	(void)state;
	struct engine_options o = options();
	o.cache_bytes = full.floor_bytes;
	struct err e = {0};
	struct engine *g = launch_open_engine(&o, DEFERRED, 9);
	struct session *s = session_of(g, false);
	source =
		(struct cancelling){.base = *g->stages->model.source, .inner = g->stages->model.source};
	source.ops = (struct expert_source_ops){.name = "cancelling",
		.acquire = cancelling_acquire,
		.wait_ready = cancelling_wait_ready,
		.release = cancelling_release};
	source.base.ops = &source.ops;
	g->stages->model.source = &source.base;
	struct session_watch watch = {.cancel = &cancel};
	uint32_t n_vocab = engine_config(g)->n_vocab;
	uint64_t want[8] = {0};
	int given_up = 0;
	for (int round = 0; round < 7;
		 round++) { /* of the six layers with experts, after the first, the second, ... */
		if (session_sync(s, text[0], 60, NULL, NULL, &e))
			fail_msg("%s", e.text);
		for (int k = 0; k < 5; k++) {
			cancel_after = round && k == 3 ? round : 0;
			int rc = session_extend(s, &text[0][60 + k], 1, NULL, &watch, &e);
			bool cut = rc == ERR_INTERRUPTED;
			assert_true(!rc || (cut && cancel_after == 0 && k == 3));
			given_up += cut;
			atomic_store(&cancel, false);
			if (cut && (session_sync(s, text[0], 60 + (uint32_t)k, NULL, NULL, &e) ||
						   session_extend(s, &text[0][60 + k], 1, NULL, &watch, &e)))
				fail_msg("%s", e.text);
			uint64_t hash = generate_hash(GENERATE_HASH_START, session_logits(s), n_vocab);
			want[k] = round ? want[k] : hash;
			assert_true(hash == want[k]);
		}
		session_rewind(s, 60);
	}
	assert_true(given_up >= 5 && lazy_counts.given_up > 0);
	session_free(s);
	g->stages->model.source = source.inner;
	assert_int_equal(engine_close(g, NULL), 0);
}

/* Experts whose bytes lie so that they cannot be posted to a deferred kernel: GGUF allows tensors
 * at multiples of eight bytes. */
static void test_foreign_places(void **state)
{
	(void)state;
	struct err e = {0};
	struct gguf *g;
	bool odd = false;
	for (int i = 0; i < 2 && !odd; i++) {
		assert_int_equal(gguf_open(MODEL, &g, &e), 0);
		struct mutation m = {.str_key = "test.pad", .str = i ? "12345678" : "", .alignment = 8};
		mutate_model(g, &m, FOREIGN);
		gguf_close(g);
		assert_int_equal(gguf_open(FOREIGN, &g, &e), 0);
		const struct gguf_tensor *t = gguf_need_tensor(g, "blk.1.ffn_gate_exps.weight", &e);
		assert_non_null(t);
		odd = t->offset % DEFERRED_ALIGN;
		gguf_close(g);
	}
	assert_true(odd);
	struct engine_options o = options();
	o.model_path = FOREIGN;
	uint64_t want = decode(&o, PLAIN, 0);
	o.cache_bytes = full.floor_bytes + full.everything_bytes / 4;
	assert_true(decode(&o, DEFERRED, 6) == want);
	unlink(FOREIGN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_given_up),
		cmocka_unit_test(test_foreign_places),
	};
	return cmocka_run_group_tests(tests, launch_setup, launch_teardown);
}
