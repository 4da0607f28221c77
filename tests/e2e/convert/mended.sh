#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# glmstream convert with a shard that is damaged: what is finished is kept, and after the shard has
# been replaced only its tensors and the unfinished ones are converted, to the bytes of a conversion
# that nothing disturbed.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

RUN_LIMIT=170
python3 tests/e2e/convert/gen_checkpoint.py "$work/good" --shards 4 --vocab 256 >"$work/gen" || wrong "the generator failed"
src=$work/src
last=model-00004-of-00004.safetensors
second=model-00002-of-00004.safetensors

convert() { # output, options
	run convert "$src" -o "$work/$1.gguf" --recipe q8 -j 1 "${@:2}"
}
# set_value SHARD TENSOR VALUE: BF16 of its value 5, in place (the size stays)
set_value() {
	python3 - "$@" <<'END'
import json, struct, sys
f = open(sys.argv[1], "r+b")
n, = struct.unpack("<Q", f.read(8))
at = json.loads(f.read(n))[sys.argv[2]]["data_offsets"][0]
f.seek(8 + n + at + 10)
f.write(bytes.fromhex(sys.argv[3]))
END
}
# the last tensor but one to be converted has a value that is not a number
damage() {
	rm -rf "$src"
	cp -a "$work/good" "$src"
	set_value "$src/$last" model.norm.weight c07f
}
refused() {
	error_is_a_sentence 'model.norm.weight: the value in row 0, column 5 is not a number'
	check "the hint says how to go on" grep -q '^hint: what is finished is kept: with that file mended, the same command goes on from here' "$work/err"
}
error_is_a_sentence() { # with the plan and notes before it
	exits 3
	check "the error should match: $1" grep -qE "^glmstream: .*$1" "$work/err"
}
kept() { # output: the number of tensors that an unchanged source would find done
	python3 - "$work/$1.gguf.journal" <<'END'
import sys
last = {}
for line in open(sys.argv[1]).read().splitlines()[1:]:
    tensor, _, source, _ = line.split()
    last[tensor] = int(source, 16)
print(sum(v != 0 for v in last.values()))
END
}
goes_on() { # number
	check "it goes on with $1 tensors" grep -q "^going on with an earlier run: $1 of [0-9]* tensors are done" "$work/err"
}
is_undisturbed() { # output, expected
	exits 0
	check "$1 equals an undisturbed conversion" cmp -s "$work/$2.gguf" "$work/$1.gguf"
	check "nothing is left beside $1" [ ! -e "$work/$1.gguf.partial" -a ! -e "$work/$1.gguf.journal" ]
}
copy_unfinished() { # from, to
	cp "$work/$1.gguf.partial" "$work/$2.gguf.partial"
	cp "$work/$1.gguf.journal" "$work/$2.gguf.journal"
}

cp -a "$work/good" "$src"
convert whole -q
exits 0

# ---- damage that shows late ----------------------------------------------------------------------
damage
convert m
refused
done=$(kept m)
check "tensors of sound shards are kept" [ "$done" -gt 20 ]
check "those of the damaged one are not, which is said" grep -qE '^[1-9][0-9]* finished tensors of the damaged file will be made again' "$work/err"
check "no output" [ ! -e "$work/m.gguf" -a -e "$work/m.gguf.partial" ]
for name in marked changed same_time; do
	copy_unfinished m $name
done

convert m
refused
goes_on "$done"
check "as many are kept after the second try" [ "$(kept m)" = "$done" ]

truncate -s -1 "$src/$last"
convert m
error_is_a_sentence 'the file is incomplete'
check "the hint says that the earlier run is not lost" grep -q '^hint: with that mended, the same command goes on' "$work/err"
check "an incomplete shard costs nothing" [ "$(kept m)" = "$done" ]

cp "$work/good/$last" "$src/$last" # downloaded again
convert m
goes_on "$done"
is_undisturbed m whole
run verify "$work/m.gguf" -q
exits 0

# ---- finished tensors are not made again: what is changed in one of them stays -------------------
python3 - "$work/whole.gguf" "$work/marked.gguf.partial" >"$work/at" <<'END'
import importlib.util, sys
spec = importlib.util.spec_from_file_location("c", "tests/e2e/convert/check_convert.py")
c = importlib.util.module_from_spec(spec)
spec.loader.exec_module(c)
tensor = c.Model(sys.argv[1]).tensors["blk.0.attn_norm.weight"][2]
whole, data = open(sys.argv[1], "rb").read(), bytearray(open(sys.argv[2], "rb").read())
at = whole.index(tensor)
assert whole.count(tensor) == 1 and data[at:at + len(tensor)] == tensor
data[at + 1] ^= 1
open(sys.argv[2], "wb").write(data)
print(at + 2)
END
convert marked
exits 0
goes_on "$done"
check "the mark is all that differs" [ "$(cmp -l "$work/whole.gguf" "$work/marked.gguf" | awk '{print $1}')" = "$(cat "$work/at")" ]

# ---- another shard is replaced by one with other values ------------------------------------------
tensor=$(python3 -c 'import json, sys
print(next(k for k, v in sorted(json.load(open(sys.argv[1]))["weight_map"].items()) if v == sys.argv[2] and k.endswith("proj.weight")))' \
	"$src/model.safetensors.index.json" $second)
set_value "$src/$second" "$tensor" 803f # 1
convert other -q
exits 0
check "another value is another file" [ "$(cmp -s "$work/whole.gguf" "$work/other.gguf"; echo $?)" = 1 ]
convert changed
again=$(sed -n 's/^\([1-9][0-9]*\) finished tensors are made again: their source has changed$/\1/p' "$work/err")
check "its finished tensors are made again" [ -n "$again" ]
check "and no others" [ "${again:-0}" -lt "$done" ]
goes_on $((done - ${again:-0}))
is_undisturbed changed other

# ---- a mended shard with the size and time of the damaged one ------------------------------------
damage
tensor=$(python3 -c 'import json, sys
print(next(k for k, v in sorted(json.load(open(sys.argv[1]))["weight_map"].items()) if v == sys.argv[2] and k.endswith("proj.weight")))' \
	"$src/model.safetensors.index.json" $last)
set_value "$src/$last" "$tensor" 803f # damage that does not show
touch -r "$work/good/$last" "$src/$last"
rm "$work"/same_time.gguf.*
convert same_time
refused
cp -p "$work/good/$last" "$src/$last"
convert same_time
goes_on "$done"
is_undisturbed same_time whole

# ---- a journal of another version -----------------------------------------------------------------
damage
convert version
refused
cp "$work/good/$last" "$src/$last"
sed -i "1s/convert 5/convert 4/" "$work/version.gguf.journal"
convert version
check "it is said" grep -q "version.gguf.journal is of another version of this program: starting over" "$work/err"
is_undisturbed version whole

# ---- several workers, several files --------------------------------------------------------------
damage
run convert "$src" -o "$work/parts.gguf" --recipe q8 -j 3 --split-gb 0.002
error_is_a_sentence 'model.norm.weight: .* is not a number'
check "the parts are kept" [ "$(find "$work" -name 'parts-*.gguf.partial' | wc -l)" -gt 2 ]
cp "$work/good/$last" "$src/$last"
run convert "$src" -o "$work/parts.gguf" --recipe q8 -j 3 --split-gb 0.002
exits 0
check "it goes on" grep -qE '^going on with an earlier run: [1-9][0-9]* of ' "$work/err"
run convert "$work/good" -o "$work/good.gguf" --recipe q8 --split-gb 0.002 -q
exits 0
for part in "$work"/good-*.gguf; do
	check "${part##*/}: the same bytes" cmp -s "$part" "${part/good-/parts-}"
done

finish
