#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# glmstream convert --target-gb: never above the target and close to it, the same types for every
# number of threads and after an interruption, what stays fixed, and refusals.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

RUN_LIMIT=170

python3 tests/e2e/convert/gen_checkpoint.py "$work/tiny" \
	--tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" || wrong "no checkpoint"

total() { # of the last dry run
	sed -nE 's/^total +([0-9]+) bytes in .*/\1/p' "$work/out"
}
gb() { # bytes
	printf '0.%09d\n' "$1" # of less than 1 GB
}
plan() { # bytes, options...
	run convert "$work/tiny" --target-gb "$(gb "$1")" --dry-run "${@:2}"
	exits 0
}

# ---- the size ------------------------------------------------------------------------------------

run convert "$work/tiny" --target-gb 0.000001 --dry-run
error_is_one_sentence 2 '--target-gb: this model takes at least 0\.[0-9]{3} GB'
least=$(sed -nE 's/.* at least ([0-9.]+) GB.*/\1/p' "$work/err" | head -1)
run convert "$work/tiny" --target-gb "$least" --dry-run
exits 0
smallest=$(total)
check "the size that is named will do" [ "$smallest" -le "$(python3 -c "print(round($least * 1e9))")" ]
run convert "$work/tiny" --recipe bf16 --dry-run
largest=$(total)
before=0
for percent in 2 20 60; do
	target=$((smallest + (largest - smallest) * percent / 100))
	plan $target
	bytes=$(total)
	check "$bytes bytes are not above $target" [ "$bytes" -le $target ]
	check "$bytes bytes are within 5 % of $target" [ "$bytes" -ge $((target * 95 / 100)) ]
	check "a larger target gives no smaller file" [ "$bytes" -ge "$before" ]
	before=$bytes
done
check "the mix is said" grep -qE '^mix +experts gate, up +([A-Z0-9_]+ [0-9]+ ?)+$' "$work/out"

# ---- the file ------------------------------------------------------------------------------------

target=$((smallest + (largest - smallest) / 10))
plan $target
planned=$(total)
grep '^mix' "$work/out" >"$work/mix"
plan $target -j 1
check "one thread chooses the same" diff -q <(grep '^mix' "$work/out") "$work/mix"
options=(--target-gb "$(gb $target)")
run convert "$work/tiny" -o "$work/whole.gguf" "${options[@]}"
exits 0
check "as the dry run said" diff -q <(grep '^mix' "$work/err") "$work/mix"
check "to the byte" [ "$(stat -c %s "$work/whole.gguf")" = "$planned" ]
run verify "$work/whole.gguf" -q
exits 0
echo 1 2 3 >"$work/ids"
run dump-logits -m "$work/whole.gguf" --ids "$work/ids" --all -o "$work/whole.f32"
exits 0
run convert "$work/tiny" -o "$work/parts.gguf" "${options[@]}" --split-gb 0.001 -q
exits 0
check "all parts together keep to the target" \
	[ "$(cat "$work"/parts-*.gguf | wc -c)" -le $target ]

# ---- importance ----------------------------------------------------------------------------------

run imatrix -m "$work/whole.gguf" -f tools/pocket/LICENSE.wordnet -c 64 --chunks 2 \
	-o "$work/im.gguf" -q
exits 0
plan $target --imatrix "$work/im.gguf"
check "importance keeps to the target" [ "$(total)" -le $target ]
check "and is used" grep -qE 'im.gguf: [0-9]+ matrices, used for [1-9]' "$work/err"
head -c 400 "$work/im.gguf" >"$work/cut.gguf"
run convert "$work/tiny" --target-gb 1 --dry-run --imatrix "$work/cut.gguf"
error_is_one_sentence 3 'cut.gguf'

# ---- an interruption -----------------------------------------------------------------------------

c_tool fail_write
# Makes the first value of the embedding NaN in its shard, which keeps its size and time, and prints
# the shard's path. $work/sound is a copy of the shard before.
poison() {
	python3 - "$work/tiny" "$work/sound" <<'END'
import glob, json, os, shutil, struct, sys
for path in glob.glob(sys.argv[1] + "/*.safetensors"):
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        tensor = json.loads(f.read(n)).get("model.embed_tokens.weight")
    if tensor:
        shutil.copy2(path, sys.argv[2])
        was = os.stat(path)
        with open(path, "r+b") as f:
            f.seek(8 + n + tensor["data_offsets"][0])
            f.write(struct.pack("<H", 0x7FC0))
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        print(path)
END
}
begun=no
for ((n = 60; n < 180; n += 20)); do
	rm -f "$work"/begun.gguf*
	timeout 300 "$work/fail_write" $n EIO "$GLMSTREAM" convert "$work/tiny" -o "$work/begun.gguf" \
		"${options[@]}" -j 1 -q >"$work/out" 2>"$work/err" </dev/null
	rc=$?
	[ $rc != 77 ] || break
	[ -e "$work/begun.gguf.journal" ] && [ "$(wc -l <"$work/begun.gguf.journal")" -gt 2 ] &&
		begun=yes && break
done
if [ $rc = 77 ]; then
	skip_part "system calls cannot be traced here"
else
	check "a run was interrupted" [ $begun = yes ]
	earlier='journal: types as an earlier run has chosen them'
	for name in other touched flaw no_partial poisoned; do
		cp "$work/begun.gguf.partial" "$work/$name.gguf.partial"
		cp "$work/begun.gguf.journal" "$work/$name.gguf.journal"
	done
	run convert "$work/tiny" -o "$work/begun.gguf" "${options[@]}"
	exits 0
	check "it goes on" grep -q 'going on with an earlier run' "$work/err"
	check "with the types of the earlier run" grep -q "$earlier" "$work/err"
	check "and prints the same mix" diff -q <(grep '^mix' "$work/err") "$work/mix"
	check "to the same bytes" cmp -s "$work/whole.gguf" "$work/begun.gguf"

	# The embedding has been converted when its source is made NaN. A sample of it would be refused; a
	# run that goes on with the types of the journal takes none.
	shard=$(poison)
	run convert "$work/tiny" -o "$work/fresh.gguf" "${options[@]}"
	error_is_one_sentence 3 'embed_tokens.weight: a value is not a number'
	run convert "$work/tiny" -o "$work/poisoned.gguf" "${options[@]}"
	exits 0
	check "no sample is taken" cmp -s "$work/whole.gguf" "$work/poisoned.gguf"
	cp -p "$work/sound" "$shard"

	rm "$work/no_partial.gguf.partial"
	run convert "$work/tiny" -o "$work/no_partial.gguf" "${options[@]}" -j 1
	exits 0
	check "data that are gone are made anew in the same types" grep -q "$earlier" "$work/err"
	check "and are the same" cmp -s "$work/whole.gguf" "$work/no_partial.gguf"
	sed -i '/^types/s/0/1/' "$work/flaw.gguf.journal"
	run convert "$work/tiny" -o "$work/flaw.gguf" "${options[@]}"
	exits 0
	check "damaged types are of no use" grep -q 'journal is damaged: starting over' "$work/err"
	check "and are chosen again" [ "$(grep -c "$earlier" "$work/err")" = 0 ]
	check "to the same file" cmp -s "$work/whole.gguf" "$work/flaw.gguf"
	touch "$(find "$work/tiny" -name '*.safetensors' | sort | tail -n 1)"
	run convert "$work/tiny" -o "$work/touched.gguf" "${options[@]}"
	exits 0
	check "with another shard types are chosen again" [ "$(grep -c "$earlier" "$work/err")" = 0 ]
	check "and being the same keep the rest" grep -q 'going on with an earlier run' "$work/err"
	check "for the same file" cmp -s "$work/whole.gguf" "$work/touched.gguf"
	run convert "$work/tiny" -o "$work/other.gguf" --target-gb "$(gb $((2 * target)))"
	exits 0
	check "another target chooses anew" [ "$(grep -c "$earlier" "$work/err")" = 0 ]
	check "another target starts over" grep -q 'another source, recipe or version: starting over' "$work/err"
fi

# ---- what stays fixed, and refusals --------------------------------------------------------------

plan $target --types 'blk.*.ffn_down_exps.weight=Q6_K'
check "--types comes first" [ "$(grep -c '^mix      experts down' "$work/out")" = 0 ]
check "and is planned" grep -q '^Q6_K ' "$work/out"
check "within the target" [ "$(total)" -le $target ]
run convert "$work/tiny" --dry-run
error_is_one_sentence 2 'one of --recipe NAME and --target-gb G is expected'
run convert "$work/tiny" --dry-run --recipe q2 --target-gb 1
error_is_one_sentence 2 '--recipe and --target-gb exclude each other'
run convert "$work/tiny" -o - --recipe q2
error_is_one_sentence 2 '^glmstream: -o: '
run convert "$work/tiny" -o "$work/no/such.gguf" "${options[@]}" --split-gb 0.001 -q
error_is_one_sentence 3 'no/such.gguf: cannot be written: No such file'
run convert "$work/tiny" -o "$work/tiny/config.json" "${options[@]}" -q --force
error_is_one_sentence 2 'config.json: is an input of this command; it is not replaced'
run convert "$work/tiny" -o "$work/im.gguf" "${options[@]}" --imatrix "$work/im.gguf" -q --force
error_is_one_sentence 2 'im.gguf: is an input of this command; it is not replaced'
run convert "$work/tiny" --dry-run --recipe q2 --types '*ffn_dwn*=Q6_K,*ffn_down_exps*=Q3_K,*_norm.weight=Q8_0'
exits 0
check "rules of --types without effect are named" [ "$(grep -c '^--types: no matrix has its type by "' "$work/err")" = 2 ]
check "the misspelt one is" grep -qF 'by "*ffn_dwn*"' "$work/err"
check "that of vectors is" grep -qF 'by "*_norm.weight"' "$work/err"
run convert "$work/tiny" --dry-run --target-gb 0
error_is_one_sentence 2 'target-gb'

finish
