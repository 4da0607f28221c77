# SPDX-License-Identifier: MIT
# Sourced after lib.sh by tests of `bench decode`: a model with random weights that is small enough
# for a test, and conditions on the figures of a run with --json.
# shellcheck shell=bash disable=SC2154 # work: lib.sh

need_pocket # its tokenizer

small_shape num_hidden_layers=7 vocab_size=8192 max_position_embeddings=8192 first_k_dense_replace=1 n_routed_experts=32
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
