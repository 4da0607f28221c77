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

small_shape num_hidden_layers=6
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
