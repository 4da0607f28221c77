/* SPDX-License-Identifier: MIT */
/* The model's shape: the IndexShare schedule in all its forms, every key and tensor that may be
 * missing or wrong, and files of other writers with indexer tensors where none belong. */
#include "src/base/log.h"
#include "src/base/num.h"
#include "tests/support/engine_help.h"
#include "tests/support/mutate_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define MODEL "tools/pocket/pocket.gguf"
#define COPY  "build/test_config.gguf"

static struct gguf *pocket;

static int config_setup(void **state)
{
	(void)state;
	struct err e = {0};
	log_set_level(LOG_QUIET);
	return gguf_open(MODEL, &pocket, &e);
}

static int config_teardown(void **state)
{
	(void)state;
	gguf_close(pocket);
	unlink(COPY);
	return 0;
}

static void test_schedule(void **state)
{
	(void)state;
	static const int full[] = {
		0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74};
	size_t at = 0;
	for (int i = 0; i < 78; i++) {
		bool is_full = at < ARRAY_LEN(full) && full[at] == i;
		at += is_full;
		assert_int_equal(config_index_full((uint32_t)i, 4, 3), is_full);
	}
	assert_true(config_index_full(78, 4, 3)); /* the MTP layer */
	for (uint32_t i = 0; i < 100; i++)
		assert_true(
			config_index_full(i, 1, 2) && config_index_full(i, 0, 0)); /* GLM-5: every layer */
}

/* Reads the configuration of a mutated copy. */
static int read_copy(const struct mutation *m, struct model_config *c, struct err *e)
{
	struct gguf *g;
	mutate_model(pocket, m, COPY);
	if (gguf_open(COPY, &g, e))
		fail_msg("%s", e->text);
	int rc = config_read(g, c, e);
	gguf_close(g);
	return rc;
}

static void expect_schedule(const struct mutation *m, const char *want)
{
	struct model_config c;
	struct err e = {0};
	if (read_copy(m, &c, &e))
		fail_msg("%s", e.text);
	for (uint32_t i = 0; i < c.n_layers; i++)
		if (c.index_full[i] != (want[i] == 'F'))
			fail_msg("layer %u is %s, schedule %s expected", i, c.index_full[i] ? "full" : "shared",
				want);
	assert_true(c.index_full[c.n_layers]);
}

static void test_schedule_sources(void **state)
{
	(void)state;
	static const bool odd[7] = {true, false, true, false, true, false, true};
	expect_schedule(&(struct mutation){0}, "FFFSSSF"); /* the file's own */
	expect_schedule(
		&(struct mutation){
			.bools_key = "glm-dsa.attention.indexer.types", .bools = odd, .n_bools = 7},
		"FSFSFSF");
	/* none stored: by context length, as the specification says */
	expect_schedule(&(struct mutation){.drop_key = "glm-dsa.attention.indexer.types"}, "FFFFFFF");
	expect_schedule(&(struct mutation){.drop_key = "glm-dsa.attention.indexer.types",
						.u32_key = "glm-dsa.context_length",
						.u32 = 1048576},
		"FFFSSSF");
	struct mutation m = {.drop_key = "glm-dsa.attention.indexer.types",
		.u32_key = "glm-dsa.attention.indexer.top_k_frequency",
		.u32 = 3,
		.u32_key_2 = "glm-dsa.attention.indexer.skip_top_k_offset",
		.u32_2 = 2};
	expect_schedule(&m, "FFSSFSS");
	m.u32_key_2 = NULL;
	struct model_config c;
	struct err e = {0};
	assert_int_equal(read_copy(&m, &c, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "glm-dsa.attention.indexer.skip_top_k_offset"));
	m.u32 = 1; /* every layer, whatever the offset */
	expect_schedule(&m, "FFFFFFF");
}

static void test_bad_keys(void **state)
{
	(void)state;
	static const char *const required[] = {"general.architecture", "glm-dsa.block_count",
		"glm-dsa.context_length", "glm-dsa.embedding_length", "glm-dsa.attention.head_count",
		"glm-dsa.attention.q_lora_rank", "glm-dsa.attention.kv_lora_rank",
		"glm-dsa.rope.dimension_count", "glm-dsa.attention.key_length_mla",
		"glm-dsa.attention.value_length_mla", "glm-dsa.attention.indexer.head_count",
		"glm-dsa.attention.indexer.key_length", "glm-dsa.attention.indexer.top_k",
		"glm-dsa.rope.freq_base", "glm-dsa.attention.layer_norm_rms_epsilon",
		"glm-dsa.leading_dense_block_count", "glm-dsa.expert_count", "glm-dsa.expert_used_count",
		"glm-dsa.expert_feed_forward_length", "glm-dsa.feed_forward_length",
		"glm-dsa.expert_weights_scale"};
	struct model_config c;
	for (size_t i = 0; i < ARRAY_LEN(required); i++) {
		struct err e = {0};
		assert_int_equal(read_copy(&(struct mutation){.drop_key = required[i]}, &c, &e), ERR_INPUT);
		assert_non_null(strstr(e.text, required[i]));
	}
	static const struct {
		const char *key;
		uint32_t value;
	} wrong[] = {
		{"glm-dsa.block_count", 0},
		{"glm-dsa.block_count", 1000000},
		{"glm-dsa.nextn_predict_layers", 2},
		{"glm-dsa.nextn_predict_layers", 8},
		{"glm-dsa.embedding_length", 0},
		{"glm-dsa.vocab_size", 8191},
		{"glm-dsa.rope.dimension_count", 63},
		{"glm-dsa.rope.dimension_count", 256},
		{"glm-dsa.attention.key_length", 256},
		{"glm-dsa.attention.value_length", 256},
		{"glm-dsa.attention.head_count_kv", 4},
		{"glm-dsa.attention.indexer.key_length", 32},
		{"glm-dsa.attention.indexer.top_k", 0},
		{"glm-dsa.expert_used_count", 33},
		{"glm-dsa.expert_used_count", 0},
		{"glm-dsa.expert_count", 0xffffffff},
		{"glm-dsa.expert_gating_func", 1},
		{"glm-dsa.expert_group_count", 5},
		{"glm-dsa.expert_group_used_count", 2},
		{"glm-dsa.leading_dense_block_count", 9},
	};
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		struct err e = {0};
		if (read_copy(&(struct mutation){.u32_key = wrong[i].key, .u32 = wrong[i].value}, &c, &e) !=
			ERR_INPUT)
			fail_msg("%s = %u is accepted", wrong[i].key, wrong[i].value);
		assert_true(strlen(e.text) > 20);
	}
	struct err e = {0};
	static const bool shared_first[7] = {false, true, true, true, true, true, true};
	static const float bad[] = {0.0f, -1.0f, 1.0f / 0.0f};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(
			read_copy(
				&(struct mutation){.f32_key = "glm-dsa.rope.freq_base", .f32 = bad[i]}, &c, &e),
			ERR_INPUT);
	assert_int_equal(
		read_copy(&(struct mutation){.str_key = "general.architecture", .str = "llama"}, &c, &e),
		ERR_INPUT);
	assert_non_null(strstr(e.text, "llama"));
	for (size_t n = 6; n <= 7; n++) /* too few types; a first layer that shares */
		assert_int_equal(
			read_copy(&(struct mutation){.bools_key = "glm-dsa.attention.indexer.types",
						  .bools = shared_first,
						  .n_bools = n},
				&c, &e),
			ERR_INPUT);
}

/* Opens a mutated copy as an engine; returns its code. */
static int open_copy(const struct mutation *m, struct engine **g, struct err *e)
{
	mutate_model(pocket, m, COPY);
	struct engine_options o = {.model_path = COPY, .backend = "cpu", .context = 512};
	return engine_open(&o, g, e);
}

static void test_bad_tensors(void **state)
{
	(void)state;
	static const char *const names[] = {"token_embd.weight", "output.weight", "output_norm.weight",
		"blk.0.attn_norm.weight", "blk.6.indexer.attn_q_b.weight", "blk.3.attn_k_b.weight",
		"blk.0.ffn_down.weight", "blk.1.ffn_gate_inp.weight", "blk.6.ffn_up_exps.weight",
		"blk.5.exp_probs_b.bias", "blk.7.nextn.eh_proj.weight", "blk.7.ffn_down_exps.weight"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct err e = {0};
		struct engine *g;
		assert_int_equal(open_copy(&(struct mutation){.drop_tensor = names[i]}, &g, &e), ERR_INPUT);
		assert_non_null(strstr(e.text, names[i]));
		const struct gguf_tensor *t = gguf_find_tensor(pocket, names[i]);
		if (t->n_dims < 2)
			continue;
		assert_int_equal(open_copy(&(struct mutation){.flat_tensor = names[i]}, &g, &e), ERR_INPUT);
	}
}

static uint64_t hash_of(struct engine *g)
{
	int32_t ids[300];
	for (int i = 0; i < 300; i++)
		ids[i] = (i * 37) % 8000;
	struct err e = {0};
	struct session *s = session_of(g, false);
	if (session_sync(s, ids, 300, NULL, NULL, &e))
		fail_msg("%s", e.text);
	uint64_t h = logits_hash(s);
	session_free(s);
	engine_close(g, NULL);
	return h;
}

/* Public files carry indexer tensors on every layer; those of shared layers mean nothing and must
 * not be looked at. */
static void test_redundant_indexers(void **state)
{
	(void)state;
	struct err e = {0};
	struct engine *plain, *foreign;
	struct mutation m = {.garbage_indexers = true,
		.drop_key = "glm-dsa.attention.indexer.types",
		.u32_key = "glm-dsa.context_length",
		.u32 = 1048576};
	struct engine_options o = {.model_path = MODEL, .backend = "cpu", .context = 512};
	assert_int_equal(engine_open(&o, &plain, &e), 0);
	uint64_t want = hash_of(plain);
	if (open_copy(&m, &foreign, &e))
		fail_msg("%s", e.text);
	assert_true(hash_of(foreign) == want);
	/* the garbage is not harmless: where it is selected the logits change */
	static const bool all[7] = {true, true, true, true, true, true, true};
	struct mutation wrong = {.garbage_indexers = true,
		.bools_key = "glm-dsa.attention.indexer.types",
		.bools = all,
		.n_bools = 7};
	if (open_copy(&wrong, &foreign, &e))
		fail_msg("%s", e.text);
	assert_true(hash_of(foreign) != want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_schedule),
		cmocka_unit_test(test_schedule_sources),
		cmocka_unit_test(test_bad_keys),
		cmocka_unit_test(test_bad_tensors),
		cmocka_unit_test(test_redundant_indexers),
	};
	return cmocka_run_group_tests(tests, config_setup, config_teardown);
}
