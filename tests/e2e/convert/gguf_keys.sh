#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every key that convert and synth write has the type that llama.cpp asks for, and files of older
# versions are still read. The gguf package reads the files: python3 -m venv build/gguf &&
# build/gguf/bin/pip install gguf (.ci/run does that).
# shellcheck disable=SC2016,SC2317 # expanded by eval; called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

python=$PWD/build/gguf/bin/python
"$python" -c 'import gguf' 2>/dev/null || skip "no gguf package in build/gguf (PyPI)"
need_pocket # its tokenizer

typed() {
	"$python" tests/e2e/convert/gguf_keys.py "$@" >>"$work/err" 2>&1
}

python3 tests/e2e/convert/gen_checkpoint.py "$work/tiny" --tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" ||
	wrong "the generator failed"
echo '{{ messages }}' >"$work/tiny/chat_template.jinja"
run convert "$work/tiny" -o "$work/whole.gguf" --recipe q2 -q
exits 0
check "convert" typed "$work/whole.gguf"
run convert "$work/tiny" -o "$work/split.gguf" --recipe q8 --split-gb 0.004 -q
exits 0
check "convert into parts" typed "$work"/split-0*.gguf

cat >"$work/shape.json" <<'END'
{"model_type": "glm_moe_dsa", "hidden_act": "silu", "num_hidden_layers": 6, "num_nextn_predict_layers": 1, "hidden_size": 256,
"vocab_size": 8500, "max_position_embeddings": 4096, "num_attention_heads": 4, "q_lora_rank": 256, "kv_lora_rank": 256,
"qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 64, "index_n_heads": 4, "index_head_dim": 64, "index_topk": 64,
"rms_norm_eps": 1e-5, "rope_theta": 8000000, "index_topk_freq": 4, "index_skip_topk_offset": 3, "first_k_dense_replace": 3,
"intermediate_size": 512, "moe_intermediate_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 4, "n_shared_experts": 1,
"routed_scaling_factor": 2.5, "norm_topk_prob": true}
END
run synth -o "$work/synth.gguf" --shape "$work/shape.json" --alias 2 -q
exits 0
check "synth" typed "$work/synth.gguf"

# token ids as INT32: still a model, and no model for the types of a new file
check "an old file" "$python" tests/e2e/convert/gguf_keys.py --as-int32 "$work/synth.gguf" "$work/old.gguf"
check "the table knows the difference" eval '! typed "$work/old.gguf"'
echo 'What is 12 + 30?' >"$work/text"
run tokenize -m "$work/synth.gguf" --special <"$work/text"
exits 0
mv "$work/out" "$work/ids"
run tokenize -m "$work/old.gguf" --special <"$work/text"
exits 0
check "the same tokens" cmp -s "$work/ids" "$work/out"
echo 1 5 99 >"$work/numbers"
run dump-logits -m "$work/old.gguf" --ids "$work/numbers" -o "$work/logits" --backend cpu
exits 0
run synth -o "$work/again.gguf" --shape "$work/shape.json" --alias 2 --tokenizer "$work/old.gguf" -q
exits 0
check "a tokenizer of an old file" typed "$work/again.gguf"
check "the same file as from a new one" cmp -s "$work/synth.gguf" "$work/again.gguf"

finish
