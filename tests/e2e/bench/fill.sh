#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `glmstream bench decode --fill`: decodes behind a long context that nothing computed, says what
# that context takes, and refuses what it cannot be combined with. Not how fast.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

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
bench="bench decode -m $work/m.gguf --backend cpu --seconds 0.01 --repeats 1 --no-direct -c 8192"

figure() { # part of a name, condition in Python over v (its median)
	python3 - "$work/out" "$1" "$2" <<'END'
import json, sys
o = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
found = [x["median"] for x in o["figures"] if sys.argv[2] in x["name"]]
assert len(found) == 1, (sys.argv[2], [x["name"] for x in o["figures"]])
v = found[0]
assert eval(sys.argv[3]), (sys.argv[2], v)
END
}

run $bench --fill 7000 -p 16 -n 8 --json
exits 0
check "decodes behind the fill" figure '8 tokens after 7016' 'v > 0'
# 8 latents of 288 values and, in four layers and the draft's, index keys of 64 values
check "the context's size" figure 'context of 8192 positions, 7000 of them filled' 'abs(v * 1e9 - 8192 * 2 * (8 * 288 + 5 * 64)) < 4096'
check "nothing lies in host memory" [ "$(grep -c 'in host memory' "$work/out")" = 0 ]
run $bench --fill 7000 -p 16 -n 8 --kv-ram on --json
exits 0
check "latents in host memory" figure 'latents in host memory' 'abs(v * 1e9 - 8192 * 2 * 8 * 288) < 4096'
check "64 rows of each of seven layers" figure 'latents over the link' 'abs(v * 1e6 - 64 * 7 * 576) < 1'
run $bench --fill 5000 -n 20 --cache-gb 0.006 --resident 6 --kv-ram on --json
exits 0
check "with confined routing" figure 'latents over the link' 'v > 0'
check "of which nothing is missed" figure 'cold start: experts missed' 'v == 0'
run $bench --fill 300 -n 70 --cache-gb 0.006 --routing tests/data/trace_small.gltr1 --accept 0.5
exits 0
check "with drafts" grep -q 'accept length, assumed' "$work/out"

run $bench --fill 9000
exits 2
check "more than the context" grep -q 'do not fit the context of 8192' "$work/err"
run bench prefill -m "$work/m.gguf" --fill 100
exits 2
check "belongs to decode" grep -q -- '--fill belongs to bench decode' "$work/err"
run $bench --fill 100 --rows 1,2
exits 2
run $bench --fill 0
exits 2
run $bench --kv-ram maybe
exits 2
finish
