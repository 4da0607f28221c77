# SPDX-License-Identifier: MIT
# Sourced after lib.sh by tests of `bench decode`: a model with random weights that is small enough
# for a test, and conditions on the figures of a run with --json.
# shellcheck shell=bash disable=SC2154 # work: lib.sh

need_pocket # its tokenizer

cat >"$work/shape.json" <<'END'
{"model_type": "glm_moe_dsa", "hidden_act": "silu", "num_hidden_layers": 7, "num_nextn_predict_layers": 1, "hidden_size": 256,
"vocab_size": 8192, "max_position_embeddings": 8192, "num_attention_heads": 4, "q_lora_rank": 256, "kv_lora_rank": 256,
"qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 64, "index_n_heads": 4, "index_head_dim": 64, "index_topk": 64,
"rms_norm_eps": 1e-5, "rope_theta": 8000000, "index_topk_freq": 4, "index_skip_topk_offset": 3, "first_k_dense_replace": 1,
"intermediate_size": 512, "moe_intermediate_size": 256, "n_routed_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 1,
"routed_scaling_factor": 2.5, "norm_topk_prob": true}
END
run synth -o "$work/m.gguf" --shape "$work/shape.json" --alias 2 -q
exits 0

# A condition in Python over f (name -> median), section (name -> section) and named (a name, or a
# part of one figure's name -> median).
figures() {
	python3 - "$work/out" "$1" <<'END'
import json, sys
o = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
f = {x["name"]: x["median"] for x in o["figures"]}
section = {x["name"]: x["section"] for x in o["figures"]}
def named(part):
    found = [v for k, v in f.items() if part in k]
    exact = [v for k, v in f.items() if part == k] or found
    assert len(exact) == 1, (part, list(f))
    return exact[0]
assert eval("(" + sys.argv[2] + ")"), f
END
}
