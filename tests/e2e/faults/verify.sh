#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Check values: convert and synth write them, verify compares them, a changed bit of any kind of
# tensor is found and named, a file without values gets them beside it, and those of another file
# are refused.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket

# offset TENSOR [EXPERT]: of its middle byte in $model; EXPERT all: one in each, a line each
offset() {
	"$GLMSTREAM" inspect "$model" --tensors --json | python3 -c 'import json, sys
name, expert = sys.argv[1:]
t = next(t for t in json.load(sys.stdin)["tensors"] if t["name"] == name)
n = t["shape"][2] if "_exps." in name else 1
for i in range(n) if expert == "all" else [int(expert)]:
    print(t["offset"] + i * (t["bytes"] // n) + t["bytes"] // n // 2)' "$1" "${2:-0}"
}

flip() { # offsets in $model: changes a bit at each
	python3 - "$model" "$@" <<-'END'
	import sys
	f = open(sys.argv[1], "r+b")
	for at in map(int, sys.argv[2:]):
	    f.seek(at)
	    b = f.read(1)
	    f.seek(at)
	    f.write(bytes([b[0] ^ 16]))
	END
}

says() { # pattern on stdout
	check "stdout should match: $1" grep -qE -- "$1" "$work/out"
}

# ---- a file with values of its own ---------------------------------------------------------------

small_shape num_hidden_layers=6
for alias in "" "--alias 2"; do
	model=$work/synth.gguf
	# shellcheck disable=SC2086 # two words or none
	run synth -o "$model" --shape "$work/shape.json" -q --force $alias
	exits 0
	run verify "$model" -j 3
	exits 0
	says '^.*synth.gguf: all right: [0-9]+ check values, 0\.[0-9]+ GB'
done
run synth -o "$model" --shape "$work/shape.json" -q --force
run verify -m "$model" --no-direct
exits 0
says 'through the page cache$'

# one bit of an expert, of a norm, of the embedding; each alone, then all
at_expert=$(offset blk.4.ffn_up_exps.weight 5)
at_norm=$(offset blk.2.attn_norm.weight)
at_embedding=$(offset token_embd.weight)
while read -r at name; do
	flip "$at"
	run verify "$model" -q
	error_is_one_sentence 3 "1 of [0-9]+ check values are wrong; the first is of $name"
	flip "$at"
done <<END
$at_expert blk.4.ffn_up_exps.weight, expert 5 \([0-9]+ bytes at offset [0-9]+\)
$at_norm blk.2.attn_norm.weight \(1024 bytes
$at_embedding token_embd.weight
END
run verify "$model" -q
exits 0
check "-q says nothing" [ ! -s "$work/out" ]
flip "$at_expert" "$at_norm" "$at_embedding"
run verify "$model"
exits 3
check "all are named" [ "$(grep -c '^warning: .*XXH3 [0-9a-f]\{16\}, [0-9a-f]\{16\} expected' "$work/err")" = 3 ]
check "and counted, the first of the file first" grep -q '^glmstream: .*: 3 of [0-9]* check values are wrong; the first is of token_embd' "$work/err"
run verify "$model" --write
exits 3
check "what is wrong is not written down as right" [ ! -e "$model.xxh3" ]
flip "$at_norm" "$at_embedding"
# values of another model beside it do not hide its own from --write
cp "$POCKET" "$work/pocket.gguf"
run verify "$work/pocket.gguf" --write -q
exits 0
cp "$work/pocket.gguf.xxh3" "$model.xxh3"
run verify "$model" --write
exits 3
check "its own values are compared" grep -q ': 1 of [0-9]* check values are wrong' "$work/err"
check "the file beside it is left alone" cmp -s "$work/pocket.gguf.xxh3" "$model.xxh3"
flip "$at_expert"
run verify "$model" --write
exits 0
check "and said to be replaced" grep -q '^warning: .*of another model: it is replaced' "$work/err"
run verify "$model"
exits 0
rm "$model.xxh3" "$work/pocket.gguf" "$work/pocket.gguf.xxh3"

# the file stays one for programs that know nothing of this
run dump-logits -m "$model" --ids <(echo 1 2 3) -o "$work/l" --backend cpu
exits 0

# ---- a file without -----------------------------------------------------------------------------

model=$work/foreign.gguf
cp "$POCKET" "$model"
run verify "$model"
error_is_one_sentence 3 'has no check values'
run verify "$model" --write
exits 0
says 'foreign.gguf.xxh3: written: [0-9]+ check values'
run verify "$model"
exits 0
before=$(stat -c %i "$model.xxh3")
run verify "$model" --write
exits 0
says 'has check values beside it: none are written'
check "a second --write leaves the file alone" [ "$(stat -c %i "$model.xxh3")" = "$before" ]
at=$(offset blk.3.ffn_down_exps.weight 7)
flip "$at"
run verify "$model" --write
exits 3
check "rot is not blessed by --write" [ "$(stat -c %i "$model.xxh3")" = "$before" ]
run verify "$model" --write --force
exits 0
run verify "$model" # as it is now
exits 0
flip "$at"
run verify "$model"
exits 3

# beside another file: of the same size, or with another header
cp "$POCKET" "$work/other.gguf"
python3 - "$work/other.gguf" <<'END'
import sys
f = open(sys.argv[1], "r+b")
at = f.read(1 << 20).index(b"general.sampling.temp") + 21 + 4  # a float
f.seek(at)
f.write(b"X")
END
run inspect "$work/other.gguf"
exits 0
cp "$model.xxh3" "$work/other.gguf.xxh3"
run verify "$work/other.gguf"
error_is_one_sentence 3 'other.gguf.xxh3: its check values are of another model'
run verify "$work/other.gguf" --write
exits 0
check "and said to be replaced" grep -q '^warning: .*of another model: it is replaced' "$work/err"
run verify "$work/other.gguf"
exits 0
echo text >"$work/other.gguf.xxh3"
run verify "$work/other.gguf"
error_is_one_sentence 3 'is no file of check values'
run verify "$work/other.gguf" --write
exits 3
check "a text is not replaced" grep -q 'exists and is not a file of check values' "$work/err"
check "nor said to be" [ "$(grep -c 'is replaced' "$work/err")" = 0 ]
run verify "$work/other.gguf" --write --force
exits 0
head -c 500 "$work/other.gguf.xxh3" >"$work/cut" && mv "$work/cut" "$work/other.gguf.xxh3"
run verify "$work/other.gguf"
error_is_one_sentence 3 'other.gguf.xxh3: is damaged'

# ---- runs ---------------------------------------------------------------------------------------

model=$work/foreign.gguf
rm "$model.xxh3"
short=(-m "$model" -p 'Define river.' -n 6 --temp 0 --think off -c 400)
counted() { # key: its number in the JSON line
	tail -n 1 "$work/err" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}
run "${short[@]}" --json
exits 0
check "a file without values is not said to be verified" grep -q 'bytes not verified: the file has no check values$' "$work/err"
check "and nothing is counted" [ "$(counted experts_verified)" = 0 ]
cp "$work/out" "$work/answer"
run inspect "$model"
says 'check values +none; glmstream verify --write makes them'
run verify "$model" --write -q
exits 0
run inspect "$model"
says 'check values +822, in the file beside it \(\.xxh3\)'
run inspect "$model" --json
check "in JSON too" python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
assert (o["check_values"], o["n_check_values"]) == ("beside", 822)' "$work/out"
run inspect "$work/synth.gguf"
says 'check values +[0-9]+, in the file$'
for how in "" "--cache-gb 0.004" "--cache-gb 0.004 --ram-gb 0.004 --no-direct"; do
	# shellcheck disable=SC2086 # words
	run "${short[@]}" --json $how
	exits 0
	check "the run says so: $how" grep -q 'bytes verified$' "$work/err"
	check "the same answer: $how" cmp -s "$work/out" "$work/answer"
	check "experts are compared: $how" [ "$(counted experts_verified)" -gt 50 ]
	check "once: $how" [ "$(counted experts_verified)" -le $((7 * 32)) ]
	check "all right: $how" [ "$(counted experts_reread)" = 0 ]
done
run "${short[@]}" -n 20 --json --cache-gb 0.004 --verify always
exits 0
check "always: each time it is read" [ "$(counted experts_verified)" -ge "$(counted miss)" ]
check "which is more" [ "$(counted experts_verified)" -gt $((7 * 32)) ]
run "${short[@]}" --json --cache-gb 0.004 --verify off
exits 0
check "off" [ "$(counted experts_verified)" = 0 ]
check "off is said" grep -q 'bytes not verified$' "$work/err"
run "${short[@]}" --verify often
error_is_one_sentence 2 'first, always or off'

# one bit in each expert of a part of a layer
mapfile -t in_layer < <(offset blk.3.ffn_up_exps.weight all)
flip "${in_layer[@]}"
for how in "" "--cache-gb 0.004" "--cache-gb 0.004 --no-direct" "--cache-gb 0.004 --verify always"; do
	# shellcheck disable=SC2086 # words
	run "${short[@]}" $how -q
	error_is_one_sentence 1 '^glmstream: expert [0-9]+ of layer 3: .*foreign.gguf: blk.3.ffn_up_exps.weight, expert [0-9]+ \([0-9]+ bytes at offset [0-9]+\) is not what was written'
done
run "${short[@]}" --cache-gb 0.004 --verify off -q
exits 0
if has_command serve; then
	check "a server" python3 tests/e2e/faults/verify_serve.py "$model" 3
fi
flip "${in_layer[@]}"
for name in output_norm.weight token_embd.weight blk.0.attn_q_b.weight; do
	at=$(offset $name)
	flip "$at"
	run "${short[@]}" --cache-gb 0.004 -q
	error_is_one_sentence 3 "^glmstream: .*foreign.gguf: $name .* is not what was written"
	run "${short[@]}" --cache-gb 0.004 -q --verify off
	exits 0
	flip "$at"
done
run "${short[@]}" -q
exits 0
printf 'x' | dd of="$model.xxh3" bs=1 seek=100 conv=notrunc status=none
run "${short[@]}" -q
error_is_one_sentence 3 'foreign.gguf.xxh3: is damaged'
run "${short[@]}" -q --verify off
exits 0

rm "$model.xxh3" && mkdir "$model.xxh3"
run verify "$model" --write
error_is_one_sentence 3 'foreign.gguf.xxh3: is a directory'
check "and not said to be replaced" [ "$(grep -c 'is replaced' "$work/err")" = 0 ]
rmdir "$model.xxh3"

# the model that ships with the program
run verify "$POCKET"
exits 0
says 'pocket.gguf: all right: [0-9]+ check values'

run verify "$POCKET" --force
error_is_one_sentence 2 'belongs to --write'
mkdir "$work/readonly" && cp "$POCKET" "$work/readonly/m.gguf" && chmod a-w "$work/readonly"
if [ ! -w "$work/readonly" ]; then
	run verify "$work/readonly/m.gguf" --write
	check "a folder that cannot be written" [ $rc != 0 ]
fi

finish
