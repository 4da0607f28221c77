#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Beside llama.cpp: what its quantiser makes of the pocket model opens here, in every type, and is as
# near to the source as its size lets expect; what convert and synth write opens there, in every
# recipe, and both engines compute the same logits in float32. It takes minutes, and a folder that
# get_llamacpp.sh fills from PyPI: LLAMACPP names it, as the step llamacpp of .ci/run does; else the
# test skips.
# shellcheck disable=SC2317,SC2016 # called through check; expanded by the inner shell
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

llamacpp=${LLAMACPP:-}
[ -n "$llamacpp" ] || skip "LLAMACPP is not set: .ci/run llamacpp runs this"
[ -f "$llamacpp/libpeer.so" ] || cannot_test "no llama.cpp in $llamacpp (get_llamacpp.sh fetches it)"
need_pocket
RUN_LIMIT=300 # a conversion to IQ2_XXS
for n in 60 96 400; do
	tr '\n' ' ' <tests/data/pocket_ids.txt | cut -d' ' -f1-$n >"$work/ids.$n"
done

peer() {
	timeout -k 5 300 "$llamacpp/venv/bin/python" tests/e2e/logits/peer.py "$@" >>"$work/peer.log" 2>&1
}

ids=$work/ids.96

logits() { # model, output, options: of $ids
	rm -f "$2"
	run dump-logits -m "$1" --ids "$ids" -o "$2" --backend cpu "${@:3}"
	exits 0
}

compared() { # file, file, values in a row, key of compare's JSON
	"$GLMSTREAM" compare "$1" "$2" --vocab "$3" --json | python3 -c '
import json, sys
print(json.load(sys.stdin)[sys.argv[1]])' "$4"
}

below() { # number, limit
	python3 -c 'import sys; sys.exit(not float(sys.argv[1]) <= float(sys.argv[2]))' "$1" "$2"
}

# ---- the released pocket checkpoint where there is one, else random weights ----------------------
checkpoint=${POCKET_CHECKPOINT:-$PWD/../shared/pocket2}
if [ -f "$checkpoint/config.json" ]; then
	n_ids=400 # attention reads 128 positions of them
	source=$work/bf16.gguf
	run convert "$checkpoint" -o "$source" --recipe bf16 -q
	exits 0
else
	echo "no checkpoint of the pocket model: its GGUF is quantised again, random weights are converted"
	source=$POCKET checkpoint=$work/tiny
	n_ids=60 # no more than attention reads: random indexers have near ties
	python3 tests/e2e/convert/gen_checkpoint.py "$checkpoint" \
		--tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" ||
		wrong "the generator failed"
fi

# ---- every type of llama-quantize ----------------------------------------------------------------
# Left out unless PRESETS=all: mixes of types that other presets hold side by side too. A reader takes
# the type of each tensor by itself.
mixes=' IQ2_M IQ3_XS IQ3_M Q2_K_S Q3_K_S Q3_K_L Q4_K_S Q5_K_S '
[ "${PRESETS:-}" != all ] || mixes=
logits "$source" "$work/source.f32" --all
declare -A seen
while read -r name number; do
	[ -z "${seen[$number]:-}" ] || continue # an alias
	[[ $mixes != *" $name "* ]] || continue
	seen[$number]=1
	said="llama-quantize $name"
	if ! peer quantize "$source" "$work/q.gguf" "$number"; then
		# it knows nothing to put a row of 192 into (attn_k_b) in place of blocks of 128
		check "llama-quantize makes $name" [ "$name" = Q1_0 ]
		continue
	fi
	logits "$work/q.gguf" "$work/q.f32" --all
	kl=$(compared "$work/source.f32" "$work/q.f32" 8192 kl)
	echo "$name $(stat -c %s "$work/q.gguf") $kl" | tee -a "$work/presets"
	run -m "$work/q.gguf" -p 'Define river.' --temp 0 -n 40 --think off --backend cpu
	exits 0
	check "$name answers" [ -s "$work/out" ]
	if [ "$number" = 15 ]; then # Q4_K_M
		check "$name knows what a river is" grep -q '^river (noun): ' "$work/out"
		cp "$work/q.gguf" "$work/q4_k_m.gguf"
	fi
	rm -f "$work/q.gguf"
done <"$llamacpp/presets"

# A file that is 1.3 times as large is nearer to the source. Not with ternary and two-bit weights
# of one scale, which are for models trained that way.
ordered() {
	python3 - "$work/presets" <<'END'
import math, sys
rows = [line.split() for line in open(sys.argv[1])]
rows = [(name, int(size), float(kl)) for name, size, kl in rows]
assert len(rows) >= 25 and all(math.isfinite(kl) and kl < 10 for _, _, kl in rows), rows
rows = [row for row in rows if row[0] not in ("TQ1_0", "TQ2_0", "Q2_0")]
for name, size, kl in rows:
    for other, larger, other_kl in rows:
        if larger > 1.3 * size and other_kl > 1.2 * kl + 1e-6:
            sys.exit(f"{other}: {larger} bytes, KL {other_kl}; {name}: {size} bytes, KL {kl}")
END
}
check "a larger file is nearer to its source" ordered

# ---- the same experts, quantised by both with the same importance --------------------------------
# Equal bytes. KL to bf16 on tokens that the importance has not seen: of each half of the text, with
# the importance of the other half. The twentieth of the rows with the largest KL is left out: most
# of the mean of all rows comes from those, and roundings move it. Ours divided by llama-quantize's
# differs between the halves of 1,024 rows (Q5_K 0.83 and 1.11), so both count together: 0.97 at
# most (tests/bench/results/convert.md).
MOST=1.05 # of llama-quantize's KL

add_kl() { # logits of the source, of a quantised file; appends the rows' KL to the third
	"$GLMSTREAM" compare "$1" "$2" --vocab 8192 --json | python3 -c '
import json, sys
print(*(row["kl"] for row in json.load(sys.stdin)["per_row"]), sep="\n")' >>"$3"
}

usual_mean() { # file of numbers
	python3 -c '
import sys
rows = sorted(float(line) for line in open(sys.argv[1]))
rows = rows[:len(rows) * 19 // 20]
print("%.4g" % (sum(rows) / len(rows)))' "$1"
}

convert_experts() { # type, layers, output, importance, options...
	run convert "$checkpoint" -o "$3" --recipe bf16 --imatrix "$4" \
		--types "blk.$2.ffn_*_exps.weight=$1" --force -q "${@:5}"
	exits 0
}

# Q4_K also with error feedback, by the moments of the other half's inputs.
beside_llama_quantize() { # type, ggml's number of it, layers, halves...
	local half file ours theirs files=(ours theirs)
	[ "$1" != Q4_K ] || files+=(feedback)
	rm -f "$work"/kl.*
	for half in "${@:4}"; do
		convert_experts "$1" "$3" "$work/ours.gguf" "$work/imatrix.$half.dat"
		[ "$1" != Q4_K ] || convert_experts "$1" "$3" "$work/feedback.gguf" \
			"$work/moments.$half.gguf" --feedback
		said="llama-quantize of experts to $1"
		check "llama-quantize takes the importance" peer experts "$source" "$work/theirs.gguf" \
			"$work/imatrix.$half.dat" "blk\\.$3\\.ffn_(gate|up|down)_exps\\.weight" "$2"
		ids=$work/ids.heldout.$half
		for file in "${files[@]}"; do
			logits "$work/$file.gguf" "$work/q.f32" --all
			add_kl "$work/heldout.$half.f32" "$work/q.f32" "$work/kl.$file"
		done
	done
	theirs=$(usual_mean "$work/kl.theirs")
	for file in "${files[@]}"; do
		[ "$file" != theirs ] || continue
		ours=$(usual_mean "$work/kl.$file")
		said="experts as $1 ($file)"
		echo "$said: KL $ours, llama-quantize's $theirs"
		check "$1 is as good as llama-quantize's" python3 -c '
import sys
ours, theirs, most = map(float, sys.argv[1:])
sys.exit(not 0 < ours <= most * theirs)' "$ours" "$theirs" $MOST
	done
	rm -f "$work/ours.gguf" "$work/theirs.gguf" "$work/feedback.gguf"
}

if [ "$source" != "$POCKET" ]; then
	tr '\n' ' ' <tests/data/pocket_ids.txt | cut -d' ' -f1-1024 >"$work/ids.heldout.2"
	tr '\n' ' ' <tests/data/pocket_ids.txt | cut -d' ' -f1025-2048 >"$work/ids.heldout.1"
	for half in 1 2; do
		python3 tests/e2e/lib/detokenize.py "$checkpoint/tokenizer.json" \
			<"$work/ids.heldout.$((3 - half))" >"$work/calibration"
		run imatrix -m "$source" -f "$work/calibration" --special -c 512 \
			-o "$work/imatrix.$half.dat" -q
		exits 0
		run imatrix -m "$source" -f "$work/calibration" --special -c 512 --moments \
			-o "$work/moments.$half.gguf" -q
		exits 0
		ids=$work/ids.heldout.$half
		logits "$source" "$work/heldout.$half.f32" --all
	done
	beside_llama_quantize IQ2_XXS 16 4 1
	while read -r type number; do
		beside_llama_quantize "$type" "$number" '[1-6]' 1 2
	done <<<'Q2_K 10
Q3_K 11
Q4_K 12
Q5_K 13
Q6_K 14
Q8_0 8'
	ids=$work/ids.96
else
	skip_part "experts beside llama-quantize: no checkpoint"
fi

# Tensors at multiples of 32 stream past the page cache like those at multiples of 4096.
logits "$work/q4_k_m.gguf" "$work/a.f32"
for io in uring threads; do
	logits "$work/q4_k_m.gguf" "$work/b.f32" --cache-gb 0.012 --io $io
	check "the same logits with experts streamed ($io)" cmp -s "$work/a.f32" "$work/b.f32"
done

# Of a file with an alignment of 4096 llama-quantize makes one that contradicts itself.
said="llama-quantize of a file of alignment 4096"
check "llama-quantize takes the pocket model" peer quantize "$POCKET" "$work/q.gguf" 7
logits "$POCKET" "$work/a.f32"
logits "$work/q.gguf" "$work/b.f32"
check "one warning" [ "$(grep -c 'warning: .*alignment is 4096, but its tensors lie' "$work/err")" = 1 ]
check "and the weights are right" below "$(compared "$work/a.f32" "$work/b.f32" 8192 kl)" 0.01

# ---- every recipe, there -------------------------------------------------------------------------
# The engines differ by rounding alone in float32; with packed weights llama.cpp rounds activations
# to eight bits.
agree() { # model, recipe, token ids
	ids=$work/ids.$3
	logits "$1" "$work/a.f32" --kv-f32
	local n=$(($(stat -c %s "$work/a.f32") / 4))
	said="llama.cpp $1 ($2)"
	check "llama.cpp loads $2" peer logits "$1" "$ids" "$work/b.f32" $n
	local difference cosine
	difference=$(compared "$work/a.f32" "$work/b.f32" $n max_abs_diff)
	cosine=$(compared "$work/a.f32" "$work/b.f32" $n cosine)
	echo "$(basename "$1") as $2: max abs diff $difference, cosine $cosine"
	if [ "$2" = f32 ]; then
		check "logits agree within 5e-4" below "$difference" 5e-4
	else
		check "logits of $2 are near" below 0.9 "$cosine" # random routers have near ties
	fi
	rm -f "$1" "$work/b.f32"
}

run convert "$checkpoint" --recipe none --dry-run
recipes=$(sed -n 's/.*found, \(.*\) or \(.*\) expected.*/\1 \2/p' "$work/err" | tr -d ,)
check "recipes are known" [ "$(wc -w <<<"$recipes")" -ge 6 ]
small_shape index_topk=128
for recipe in $recipes; do
	run convert "$checkpoint" -o "$work/convert.gguf" --recipe "$recipe" --force -q
	exits 0
	agree "$work/convert.gguf" "$recipe" $n_ids
	run synth -o "$work/synth.gguf" --shape "$work/shape.json" --recipe "$recipe" --force -q
	exits 0
	agree "$work/synth.gguf" "$recipe" 60
done
finish
