#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `glmstream synth`: the size it announces is the size it writes, seeds decide the bytes, the model
# computes sane numbers at any depth and type, experts that share their bytes are cached each for
# itself, and nothing is overwritten unasked.
# shellcheck disable=SC2317,SC2086 # functions called through check; $small is several words
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

need_pocket # its tokenizer

small_shape num_hidden_layers=40 n_routed_experts=16
echo 1 5 99 300 1000 2000 3000 17 23 >"$work/ids"
small="--shape $work/shape.json -q"

# finite, neither constant nor huge, and not the same for different tokens
sane_logits() { # file
	python3 - "$1" 8500 <<'END'
import array, math, sys
v, n = array.array('f'), int(sys.argv[2])
v.frombytes(open(sys.argv[1], 'rb').read())
assert len(v) == 9 * n, len(v)
rows = [v[i:i + n] for i in range(0, len(v), n)]
best = set()
for r in rows:
    mean = sum(r) / n
    deviation = math.sqrt(sum((x - mean) ** 2 for x in r) / n)
    assert all(map(math.isfinite, r)) and 0.5 < deviation < 2, deviation
    best.add(r.index(max(r)))
assert len(best) > 3, best
END
}

logits() { # model, options: $work/logits and $hash
	run dump-logits -m "$@" --ids "$work/ids" --all -o "$work/logits" --force --backend cpu
	exits 0
	hash=$(grep -o '"logits_hash": "[0-9a-f]*"' "$work/out")
}

announced() {
	"$GLMSTREAM" synth $small "$@" --dry-run | sed -n 's/^total *\([0-9]*\) bytes$/\1/p'
}

# the whole depth, experts of 3 layers for 38
run synth -o "$work/a.gguf" $small --alias 3
exits 0
check "size as announced" [ "$(stat -c %s "$work/a.gguf")" = "$(announced --alias 3)" ]
check "less than without alias" [ "$(announced --alias 3)" -lt "$(announced)" ]
logits "$work/a.gguf"
check "sane logits" sane_logits "$work/logits"
all=$hash
logits "$work/a.gguf" --cache-gb 0.02 --no-direct
check "the same with experts streamed" [ "$hash" = "$all" ]
run inspect "$work/a.gguf"
check "inspect says what it is" grep -q '^synthetic: random weights of seed 1.*experts of 3 layers' "$work/out"
run inspect "$work/a.gguf" --json
check "and in JSON" python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["synthetic"] == {"seed": 1, "alias": 3}' "$work/out"

# bytes by seed, whatever the threads
run synth -o "$work/b.gguf" $small --alias 3 -j 1
check "same seed, same bytes" cmp -s "$work/a.gguf" "$work/b.gguf"
run synth -o "$work/b.gguf" $small --alias 3 --seed 2 --force
exits 0
check "another seed, other bytes" [ "$(cmp "$work/a.gguf" "$work/b.gguf" | wc -l)" = 1 ]

# every expert has bytes of its own without alias: other logits
run synth -o "$work/b.gguf" $small --force
exits 0
logits "$work/b.gguf"
check "sane logits" sane_logits "$work/logits"
check "layers differ" [ "$hash" != "$all" ]

# types, fewer layers and experts
for type in IQ2_XXS Q4_K IQ3_S IQ1_M BF16; do
	run synth -o "$work/b.gguf" $small --experts $type --layers 8 --expert-count 8 --no-mtp --force
	exits 0
	logits "$work/b.gguf"
	check "sane logits with $type" sane_logits "$work/logits"
done
run synth -o "$work/b.gguf" $small --recipe bf16 --layers 5 --force
logits "$work/b.gguf"
check "sane logits in bf16" sane_logits "$work/logits"

# GLM-5.2: 753,329,940,480 parameters (specification, section 1)
run synth --dry-run --recipe bf16
f32=$(sed -n 's/^F32 .* \([0-9]*\) bytes$/\1/p' "$work/out") bf16=$(sed -n 's/^BF16 .* \([0-9]*\) bytes$/\1/p' "$work/out")
check "the released number of parameters" [ $((f32 / 4 + bf16 / 2)) = 753329940480 ]

# checkpoints: the released tensors to the byte, and small ones that convert takes
run synth --dry-run --format hf
for line in 'F32 +76 tensors, 77824 bytes' 'BF16 +59509 tensors, 1506659842048 bytes'; do
	check "the BF16 checkpoint: $line" grep -qxE -- "$line" "$work/out"
done
run synth --dry-run --format hf-fp8
for line in 'F32 +59120 tensors, 183490240 bytes' 'BF16 +465 tensors, 4207458304 bytes' \
	'F8_E4M3 +59044 tensors, 751226191872 bytes' 'tensors +118629 tensors, 755617140416 bytes'; do
	check "the FP8 checkpoint: $line" grep -qxE -- "$line" "$work/out"
done
for format in hf hf-fp8; do
	run synth -o "$work/$format" $small --format $format --layers 5
	exits 0
	run convert "$work/$format" -o "$work/$format.gguf" --recipe bf16 -q
	exits 0
	logits "$work/$format.gguf"
	check "sane logits of $format" sane_logits "$work/logits"
done
run synth -o "$work/hf.1" $small --format hf-fp8 --layers 5 -j 1
check "the same bytes with one thread" diff -r "$work/hf-fp8" "$work/hf.1"
run synth -o "$work/hf" $small --format hf --layers 5
error_is_one_sentence 3 'hf: exists already'
run synth -o "$work/c" $small --format hf --recipe q2
error_is_one_sentence 2 'format hf has none of them'
check "nothing is written" [ ! -e "$work/c" ]

# refusals
run synth -o "$work/b.gguf" $small
error_is_one_sentence 3 'b.gguf: exists already'
run synth -o "$work/missing/b.gguf" $small
error_is_one_sentence 3 'missing'
run synth $small
error_is_one_sentence 2 '-o OUT is missing'
run synth -o "$work/c.gguf" $small --experts Q9
error_is_one_sentence 2 'Q9.*IQ2_XXS'
run synth -o "$work/c.gguf" $small --layers 100
error_is_one_sentence 2 'the shape has 40'
run synth -o "$work/c.gguf" $small --expert-count 3
error_is_one_sentence 2 'a token uses 4'
run synth -o "$work/c.gguf" $small --tokenizer "$work/shape.json"
error_is_one_sentence 3 'not a GGUF file'
sed 's/8500/100/' "$work/shape.json" >"$work/tiny.json"
run synth -o "$work/c.gguf" --shape "$work/tiny.json" -q
error_is_one_sentence 3 'the shape 100'
run synth -o "$work/c.gguf" --shape "$work/ids" -q
error_is_one_sentence 3 'not valid JSON'
room=$(df -B1 --output=avail "$work" | tail -n 1)
if [ "$room" -lt 1500000000000 ]; then
	run synth -o "$work/c.gguf" --recipe bf16 -q
	error_is_one_sentence 4 'bytes are needed'
else
	skip_part "a full drive: there is room for 1.5 TB"
fi
check "nothing is left behind" [ "$(find "$work" -name 'c.gguf*' -o -name '*.partial' | wc -l)" = 0 ]

# a file with shared data that does not say so is refused
python3 - "$work/a.gguf" <<'END'
import sys
d = open(sys.argv[1], 'r+b')
head = d.read(1 << 20)
at = head.index(b'glmstream.synth.alias')
d.seek(at)
d.write(b'glmstream.synth.alibi')
END
run inspect "$work/a.gguf"
error_is_one_sentence 3 'overlap'

finish
