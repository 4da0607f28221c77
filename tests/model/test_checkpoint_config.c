/* SPDX-License-Identifier: MIT */
/* A checkpoint's configuration as an untrusted file: what is no regular file is refused without
 * waiting for it, and numbers that memory depends on have limits. A setting that contradicts what
 * the program computes is refused with its key and value; one that repeats it is accepted. */
#include "src/base/num.h"
#include "src/checkpoint/convert_config.h"
#include "src/text/vocab.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static void refused(const char *says)
{
	struct convert_config c;
	struct err e = {0};
	assert_int_equal(convert_config_read(&c, temp_dir(), &e), ERR_INPUT);
	if (!strstr(e.text, says))
		fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void test_pipe(void **state)
{
	(void)state;
	const char *path = temp_dir_path("config.json");
	assert_int_equal(mkfifo(path, 0600), 0);
	refused("config.json: is not a regular file");
	assert_int_equal(unlink(path), 0);
}

static void test_vocabulary(void **state)
{
	(void)state;
	FILE *f = fopen(temp_dir_path("config.json"), "w");
	assert_non_null(f);
	fprintf(f,
		"{\"model_type\": \"glm_moe_dsa\", \"hidden_act\": \"silu\", \"num_hidden_layers\": 2,"
		" \"hidden_size\": 1, \"vocab_size\": %u}",
		VOCAB_TOKENS_MAX + 1);
	assert_int_equal(fclose(f), 0);
	refused("vocab_size");
}

/* Two layers, where the library's default of dense layers is three. */
static const char base[] =
	"{'model_type': 'glm_moe_dsa', 'hidden_act': 'silu', 'num_hidden_layers': 2,"
	" 'num_nextn_predict_layers': 1, 'hidden_size': 256, 'vocab_size': 64,"
	" 'max_position_embeddings': 4096, 'num_attention_heads': 4, 'q_lora_rank': 64,"
	" 'kv_lora_rank': 64, 'qk_nope_head_dim': 32, 'qk_rope_head_dim': 32, 'v_head_dim': 32,"
	" 'index_n_heads': 2, 'index_head_dim': 64, 'index_topk': 64, 'first_k_dense_replace': 1,"
	" 'intermediate_size': 64, 'moe_intermediate_size': 64, 'n_routed_experts': 8,"
	" 'num_experts_per_tok': 2, 'n_shared_experts': 1, 'norm_topk_prob': true,"
	" 'rms_norm_eps': 1e-5, 'routed_scaling_factor': 2.5,"
	" 'rope_parameters': {'rope_theta': 10000, 'rope_type': 'default'}}";

/* JSON in which ' stands for a quotation mark. */
static json_t *parse(const char *text)
{
	char copy[2048];
	assert_true(strlen(text) < sizeof copy);
	strcpy(copy, text);
	for (char *p = copy; (p = strchr(p, '\''));)
		*p = '"';
	json_t *root = json_loads(copy, 0, NULL);
	assert_non_null(root);
	return root;
}

/* config.json: the base with these keys added or replaced. */
static void write_config(const char *changes)
{
	json_t *root = parse(base), *more = parse(changes);
	assert_int_equal(json_object_update(root, more), 0);
	assert_int_equal(json_dump_file(root, temp_dir_path("config.json"), 0), 0);
	json_decref(more);
	json_decref(root);
}

static void accepted(struct convert_config *c, const char *changes)
{
	struct err e = {0};
	write_config(changes);
	if (convert_config_read(c, temp_dir(), &e))
		fail_msg("%s: %s", changes, e.text);
}

static void test_contradictions(void **state)
{
	static const struct {
		const char *changes, *says;
	} cases[] = {
		{"{'rope_parameters': {'rope_theta': 1e4, 'type': 'yarn'}}",
			"config.json: rope_parameters: key type is \"yarn\", only \"default\" is supported"},
		{"{'rope_parameters': {'rope_theta': 1e4, 'rope_type': 'default', 'type': 'linear'}}",
			"rope_parameters: key type is \"linear\""},
		{"{'rope_parameters': {'rope_theta': 1e4, 'rope_type': 'yarn'}}",
			"rope_parameters: key rope_type is \"yarn\""},
		{"{'rope_parameters': {'rope_theta': 1e4, 'factor': 4}}", "key factor is 4, only 1"},
		{"{'rope_parameters': {'rope_theta': 1e4, 'partial_rotary_factor': 0.5}}",
			"key partial_rotary_factor is 0.5, only 1"},
		{"{'rope_parameters': {'rope_theta': 1e4, 'mscale': 2}}",
			"rope_parameters: key mscale is 2, which is not supported"},
		{"{'rope_parameters': {'indexed_attention': {'rope_theta': 1e4}}}",
			"key indexed_attention is {\"rope_theta\":10000.0}, which is not supported"},
		{"{'rope_parameters': [1], 'rope_theta': 1e4}", "key rope_parameters is [1], an object"},
		{"{'rope_parameters': null}", "neither rope_parameters.rope_theta nor rope_theta"},
		{"{'rope_scaling': {'type': 'yarn', 'factor': 4}}", "rope_scaling: key type is \"yarn\""},
		{"{'rope_scaling': {'rope_type': 'llama3'}}", "rope_scaling: key rope_type is \"llama3\""},
		{"{'rope_scaling': 'yarn'}", "key rope_scaling is \"yarn\", an object expected"},
		{"{'rope_scaling': {'rope_type': 'default', 'rope_theta': 5e5}}",
			"key rope_theta is 500000, but another rope_theta in this file is 10000"},
		{"{'rope_theta': 5e5}", "key rope_theta is 500000, but another"},
		{"{'partial_rotary_factor': 0.5}", "key partial_rotary_factor is 0.5"},
		{"{'num_key_value_heads': 1}",
			"key num_key_value_heads is 1, but num_attention_heads is 4"},
		{"{'num_experts': 16}", "key num_experts is 16, but n_routed_experts is 8"},
		{"{'num_local_experts': '8'}", "key num_local_experts is \"8\", but n_routed_experts is 8"},
		{"{'mlp_layer_types': ['dense', 'dense']}",
			"mlp_layer_types[1] is \"dense\", which contradicts first_k_dense_replace = 1"},
		{"{'mlp_layer_types': ['dense']}", "key mlp_layer_types describes 1 layers, 2 expected"},
		{"{'mlp_layer_types': ['dense', 'sparse', 'sparse']}", "describes 3 layers, 2 expected"},
		{"{'mlp_layer_types': 'dense'}", "describes 0 layers, 2 expected"},
		{"{'layer_types': ['indexed_attention', 'sliding_attention']}",
			"layer_types[1] is \"sliding_attention\", which contradicts attention with an indexer"},
		{"{'layer_types': ['indexed_attention']}", "key layer_types describes 1 layers"},
		{"{'per_layer_config': {'1': {'num_experts_per_tok': 1}}}",
			"per_layer_config: key num_experts_per_tok of layer 1 is 1"},
		{"{'per_layer_config': {'0': {'skip': true}}}", "key skip of layer 0 is true"},
		{"{'per_layer_config': [4]}", "key per_layer_config is [4], an object expected"},
		{"{'moe_router_dtype': 'bfloat16'}", "key moe_router_dtype is \"bfloat16\""},
		{"{'quantization_config': {'quant_method': 'awq'}}",
			"quantization_config: key quant_method is \"awq\", only \"fp8\" is supported"},
		{"{'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [64, 64]}}",
			"key weight_block_size is [64,64], only [128,128] is supported"},
		{"{'quantization_config': {'quant_method': 'fp8', 'fmt': 'e5m2'}}",
			"quantization_config: key fmt is \"e5m2\""},
		{"{'quantization_config': true}", "quantization_config: key quant_method is missing"},
		{"{'hidden_act': 'gelu'}", "key hidden_act is \"gelu\""},
		{"{'index_kpool': 4}", "key index_kpool is 4: this setting is not known"},
		{"{'swiglu_limit': 7.0}", "key swiglu_limit is 7.0: this setting is not known"},
		{"{'mhc_streams': [1]}", "key mhc_streams is [1]: this setting is not known"},
		{"{'scoring_func': 'softmax'}", "key scoring_func is \"softmax\""},
		{"{'topk_method': 'greedy'}", "key topk_method is \"greedy\""},
		{"{'attention_bias': true}", "key attention_bias must be false"},
		{"{'rope_interleave': false}", "key rope_interleave must be true"},
		{"{'indexer_rope_interleave': false}", "key indexer_rope_interleave must be true"},
		{"{'index_share_for_mtp_iteration': false}",
			"key index_share_for_mtp_iteration must be true"},
		{"{'moe_layer_freq': 2}", "key moe_layer_freq is 2"},
		{"{'qk_head_dim': 80}", "qk_head_dim is 80"},
		{"{'num_nextn_predict_layers': 2}", "key num_nextn_predict_layers is 2"},
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		write_config(cases[i].changes);
		refused(cases[i].says);
	}
}

static void test_repetitions(void **state)
{
	static const char *const cases[] = {
		"{}",
		"{'rope_parameters': {'rope_theta': 1e4, 'type': 'default'}}",
		"{'rope_parameters': {'rope_theta': 1e4, 'partial_rotary_factor': 1.0, 'factor': 1}}",
		"{'rope_parameters': {'rope_type': 'default'}, 'rope_theta': 1e4}",
		"{'rope_parameters': null, 'rope_theta': 1e4, 'rope_scaling': {}}",
		"{'rope_parameters': null, 'rope_scaling': {'type': 'default', 'rope_theta': 1e4}}",
		"{'rope_theta': 10000, 'rope_scaling': {'rope_theta': 10000.0}}",
		"{'partial_rotary_factor': 1}",
		"{'index_share_for_mtp_iteration': true}",
		"{'index_share_for_mtp_iteration': false, 'num_nextn_predict_layers': 0}",
		"{'num_key_value_heads': 4, 'num_experts': 8, 'num_local_experts': 8}",
		"{'num_key_value_heads': null, 'layer_types': null, 'mlp_layer_types': null}",
		"{'mlp_layer_types': ['dense', 'sparse']}",
		"{'layer_types': ['indexed_attention', 'deepseek_sparse_attention']}",
		"{'per_layer_config': {}}",
		"{'per_layer_config': {'1': {'n_routed_experts': 8}}}",
		"{'moe_router_dtype': 'float32', 'head_dim': 192}",
		"{'index_kpool': 0, 'swiglu_limit': null, 'use_qk_norm': false, 'rope_extra': {}, 'a': 1}",
		"{'quantization_config': {'quant_method': 'fp8', 'fmt': 'e4m3', 'activation_scheme':"
		" 'dynamic', 'weight_block_size': [128, 128], 'modules_to_not_convert': ['lm_head']}}",
	};
	struct convert_config c;
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		accepted(&c, cases[i]);
		assert_true(c.rope_theta == 10000);
		assert_int_equal(c.n_experts, 8);
	}
}

/* A cut model: the trunk may have fewer layers than were dense. */
static void test_few_layers(void **state)
{
	struct convert_config c;
	(void)state;
	accepted(&c, "{'first_k_dense_replace': 3}");
	assert_int_equal(c.n_dense, 2);
	accepted(&c, "{'first_k_dense_replace': 3, 'mlp_layer_types': ['dense', 'dense']}");
	assert_int_equal(c.n_dense, 2);
	accepted(&c, "{'num_hidden_layers': 1}");
	assert_int_equal(c.n_dense, 1);
	write_config("{'first_k_dense_replace': 3, 'mlp_layer_types': ['dense', 'sparse']}");
	refused("mlp_layer_types[1] is \"sparse\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pipe),
		cmocka_unit_test(test_vocabulary),
		cmocka_unit_test(test_contradictions),
		cmocka_unit_test(test_repetitions),
		cmocka_unit_test(test_few_layers),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
