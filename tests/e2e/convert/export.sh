#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# glmstream export: BF16 and F32 checkpoints come back with every bit, and so does their GGUF;
# packed types are dequantised; the released sizes to the byte; the same bytes for any number of
# threads and after an interruption at any writing call; what is refused, and what is left then.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

here=tests/e2e/convert
gen() {
	python3 "$here/gen_checkpoint.py" "$@" >"$work/gen" || wrong "the generator failed: $*"
}
looked_at() { # what, arguments
	python3 "$here/check_export.py" "$@" >>"$work/err" 2>&1
}
same_json() { # a, b
	python3 -c 'import json, sys; a, b = (json.load(open(n)) for n in sys.argv[1:]); sys.exit(a != b)' "$@"
}

small_shards() { # most bytes of tensors, folder
	python3 - "$@" <<-'END'
	import glob, json, sys
	most, several = int(sys.argv[1]), 0
	for name in glob.glob(sys.argv[2] + "/*.safetensors"):
	    with open(name, "rb") as f:
	        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
	    sizes = [b - a for a, b in (t["data_offsets"] for k, t in head.items() if k != "__metadata__")]
	    several += len(sizes) > 1
	    if len(sizes) > 1 and sum(sizes) > most:
	        sys.exit(f"{name}: {len(sizes)} tensors of {sum(sizes)} bytes")
	sys.exit(not several)
	END
}

# ---- there and back ------------------------------------------------------------------------------

gen "$work/tiny" --tokenizer tests/data/tokenizer/pocket-tokenizer.json --set latent_rms_norm_eps=1e-06
printf 'a template {{ x }}\nwith "quotes", \303\251 and two lines\n' >"$work/tiny/chat_template.jinja"
gen "$work/ragged" --shape ragged --dtype f32 --shards 1
for which in tiny:bf16 ragged:f32; do
	src=$work/${which%:*} recipe=${which#*:}
	run convert "$src" -o "$src.gguf" --recipe "$recipe" -q
	run export -m "$src.gguf" -o "$src.back" --shard-gb 0.003 -q
	exits 0
	check "$recipe: every tensor has its bits" looked_at same "$src" "$src.back"
	check "$recipe: no shard of several tensors is larger than asked for" small_shards 3000000 "$src.back"
	check "$recipe: no journal is left" [ ! -e "$src.back/export.journal" ]
	run convert "$src.back" -o "$src.again.gguf" --recipe "$recipe" -q
	check "$recipe: the same GGUF" cmp -s "$src.gguf" "$src.again.gguf"
done
check "the tokenizer is the same" same_json "$work/tiny/tokenizer.json" "$work/tiny.back/tokenizer.json"
check "the template is the same" cmp -s "$work/tiny/chat_template.jinja" "$work/tiny.back/chat_template.jinja"
for text in config.json generation_config.json tokenizer.json tokenizer_config.json; do
	check "$text is JSON" python3 -m json.tool "$work/tiny.back/$text" /dev/null
done
run export -m "$work/tiny.gguf" -o "$work/jobs" --shard-gb 0.003 -q --jobs 7
check "the same bytes with 7 threads" diff -r "$work/tiny.back" "$work/jobs"

# the embedding is the head too: one tensor in the checkpoint, two in the GGUF
gen "$work/tied" --shape ragged --tied --shards 1
check "a checkpoint with its head twice" looked_at untied "$work/tied" "$work/twice"
for which in tied twice; do
	run convert "$work/$which" -o "$work/$which.gguf" --recipe bf16 -q
	exits 0
done
check "a tied head is the embedding" looked_at tensors "$work/tied.gguf" "$work/twice.gguf"
run export -m "$work/tied.gguf" -o "$work/tied.back"
exits 0
check "both are the same, so there is nothing to say" [ "$(grep -c 'output.weight' "$work/err")" = 0 ]
run convert "$work/tied" -o "$work/tied.q8.gguf" --recipe bf16 --types output.weight=q8_0 -q
exits 0
run export -m "$work/tied.q8.gguf" --dry-run
exits 0
check "a head of other values is said" grep -q '^output.weight (Q8_0) is left out' "$work/err"
check "the head is no tensor, as before" looked_at same "$work/tied" "$work/tied.back"

# ---- types -------------------------------------------------------------------------------------

run convert "$work/tiny" -o "$work/q2.gguf" --recipe q2 -q
run export -m "$work/q2.gguf" -o "$work/q2.f32" --dtype f32 -q
exits 0
run export -m "$work/q2.gguf" -o "$work/q2.bf16" -q
exits 0
case $GLMSTREAM in
*/san-*) skip_part "values: a sanitizer build has nothing to say about them" ;;
*)
	check "packed types are dequantised" looked_at decoded "$work/q2.gguf" "$work/q2.f32"
	check "and rounded to BF16" looked_at rounded "$work/q2.f32" "$work/q2.bf16"
	;;
esac
run export -m "$work/ragged.gguf" -o "$work/narrow" --dtype bf16
exits 0
check "it is said that BF16 rounds" grep -qE '^[0-9]+ tensors of type F32 or F16 are rounded to BF16' "$work/err"
check "it is said what stays F32" grep -qE '^[0-9]+ norms, routers and biases stay F32' "$work/err"

# the indexer of layer 1 becomes a copy that nothing uses, as public files have it
python3 - "$work/tiny.gguf" "$work/copies.gguf" <<'END'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
key = b"glm-dsa.attention.indexer.types"
at = data.index(key) + len(key) + 4 + 4 + 8 + 1
assert data[at] == 1
data[at] = 0
open(sys.argv[2], "wb").write(data)
END
run export -m "$work/copies.gguf" -o "$work/copies"
exits 0
check "copies are left out, and it is said" grep -q '^5 tensors left out: indexers of layers that share' "$work/err"
check "the shared layer has no indexer" \
	[ "$(grep -c 'layers.1.self_attn.indexer' "$work/copies/model.safetensors.index.json")" = 0 ]

# ---- the released shape, to the byte (the file is sparse) -----------------------------------------

case $GLMSTREAM in
*/san-*) skip_part "the released shape: too much address space for a sanitizer" ;;
*)
	python3 "$here/check_export.py" sparse "$work/real.gguf" || wrong "the sparse file failed"
	full=4 dry=()
	if [ "$(df -B1 --output=avail "$work" | tail -n 1)" -gt 1500000000000 ]; then
		skip_part "a full drive: there is room for 1.5 TB"
		full=0 dry=(--dry-run)
	fi
	run export -m "$work/real.gguf" -o "$work/full" "${dry[@]}"
	exits $full
	for line in 'F32 +76 tensors, 77824 bytes' 'BF16 +59509 tensors, 1506659842048 bytes' \
		'tensors +59585 tensors, 1506659919872 bytes' 'total +[0-9]+ bytes in 303 shards'; do
		check "the plan should say: $line" grep -qxE -- "$line" "$work/out" "$work/err"
	done
	[ $full = 0 ] || check "a full drive is said" \
		grep -qE '^glmstream: .*full: 1506667[0-9]+ bytes are needed, [0-9]+ are free there' "$work/err"
	check "a drive without room is left as it was" [ ! -e "$work/full" ]
	if [ $full != 0 ]; then # shards of another export are there
		mkdir "$work/full"
		printf 'glmstream-convert 5 %016x\n' 1 >"$work/full/export.journal"
		cp "$work/full/export.journal" "$work/journal"
		run export -m "$work/real.gguf" -o "$work/full" -q
		exits 4
		check "another export's journal stays" cmp -s "$work/journal" "$work/full/export.journal"
	fi
	rm "$work/real.gguf"
	;;
esac

# ---- interrupted, or the disk is full: at any writing call ------------------------------------------

fails=$work/fail_write
make=(export -m "$work/ragged.gguf" -o "$work/cut" --dtype bf16 --shard-gb 0.003 -q -j 1)
if [[ $GLMSTREAM = */san-* ]]; then
	skip_part "interruptions: leaks cannot be looked for in a traced program"
elif ! ${CC:-cc} -O1 -o "$fails" tests/e2e/lib/fail_write.c; then
	wrong "fail_write does not compile"
elif "$fails" 0 EIO true 2>"$work/err"; [ $? = 77 ]; then
	skip_part "interruptions: system calls cannot be traced here"
else
	run "${make[@]/cut/whole}"
	exits 0
	check "several shards" [ "$(find "$work/whole" -name '*.safetensors' | wc -l)" -gt 2 ]
	"$fails" 0 EIO "$GLMSTREAM" "${make[@]}" 2>"$work/err"
	total=$(sed -n 's/^calls //p' "$work/err")
	check "the writing calls were counted" [ "${total:-0}" -gt 20 ]
	went_on=0
	for how in KILL ENOSPC; do
		for n in $(seq 1 190 "${total:-0}") $(seq $((total - 12)) 4 "$total"); do
			rm -rf "$work/cut"
			said="export, writing call $n of $total: $how"
			"$fails" "$n" $how "$GLMSTREAM" "${make[@]}" >"$work/out" 2>"$work/err"
			rc=$?
			if [ $how = ENOSPC ] && [ $rc != 0 ]; then
				check "a full disk is said" grep -q '^glmstream: .*No space left' "$work/err"
			fi
			[ ! -e "$work/cut/model.safetensors.index.json" ] ||
				check "with an index all is there" diff -r -x export.journal "$work/whole" "$work/cut"
			if [ $rc != 0 ] || [ -e "$work/cut/export.journal" ]; then
				run "${make[@]}"
			fi
			exits 0
			! grep -q 'going on' "$work/err" || went_on=$((went_on + 1))
			check "the same bytes after all" diff -r "$work/whole" "$work/cut"
		done
	done
	check "finished shards are kept" [ $went_on -gt 2 ]
fi

# ---- refusals --------------------------------------------------------------------------------------

refused() { # status, pattern, arguments: no folder $work/new comes of it
	local status=$1 pattern=$2
	shift 2
	run export "$@"
	error_is_one_sentence "$status" "$pattern"
	check "nothing is written" [ ! -e "$work/new" ]
}
tiny=(-m "$work/tiny.gguf" -q)
refused 2 '-o FOLDER is missing' "${tiny[@]}"
refused 2 '-m FILE.gguf is missing' -o "$work/new"
refused 2 'dtype' "${tiny[@]}" -o "$work/new" --dtype f16
refused 3 'no.gguf: ' -m "$work/no.gguf" -o "$work/new"
refused 3 'config.json' -m "$work/tiny/config.json" -o "$work/new"
refused 3 'No such file' "${tiny[@]}" -o "$work/no/such"
refused 3 'gen: exists already and is not a folder' "${tiny[@]}" -o "$work/gen"
refused 3 'tiny: exists already and holds .*; nothing is replaced' "${tiny[@]}" -o "$work/tiny"
check "a hint at --force" grep -q '^hint: --force replaces' "$work/err"
refused 3 'tiny.back: exists already' "${tiny[@]}" -o "$work/tiny.back"
patched() { # offset from the end or name of a tensor, bytes in hex: $work/bad.gguf
	python3 - "$work/tiny.gguf" "$work/bad.gguf" "$@" <<-'END'
	import sys
	data, at, new = bytearray(open(sys.argv[1], "rb").read()), sys.argv[3], bytes.fromhex(sys.argv[4])
	# of a tensor: its type, behind the name and three dimensions
	at = int(at) if at[0] == "-" else data.index(at.encode()) + len(at) + 4 + 3 * 8
	data[at : at + len(new) if at + len(new) else None] = new
	open(sys.argv[2], "wb").write(data)
	END
}
patched blk.2.ffn_up_exps.weight 04000000
refused 3 'tensor blk.2.ffn_up_exps.weight: type 4 is not supported' -m "$work/bad.gguf" -o "$work/new" -q
patched -2 807f
refused 3 'output.weight' -m "$work/bad.gguf" -o "$work/new" -q
check "a hint at verify" grep -q '^hint: glmstream verify' "$work/err"
refused 3 'tensor output.weight: the value for row 8191, column 255 of lm_head.weight is not a finite BF16' \
	-m "$work/bad.gguf" -o "$work/new" -q --verify off
python3 - "$here" "$work/tiny.gguf" "$work/bad.gguf" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import check_convert
data = bytearray(open(sys.argv[2], "rb").read())
tensor = check_convert.Model(sys.argv[2]).tensors["blk.2.ffn_up_exps.weight"][2]
data[data.index(tensor) + len(tensor) // 2 + 100] ^= 1 # of four experts the third
open(sys.argv[3], "wb").write(data)
END
refused 3 'blk.2.ffn_up_exps.weight, expert 2' -m "$work/bad.gguf" -o "$work/new" -q

# bytes of the source that are lost on the way, as of a network drive, are no damage of the file
lost() { # its exit status; a fast run may be done before
	local pid
	rm -rf "$work/lost"
	cp -p "$work/tiny.gguf" "$work/lost.gguf"
	"$GLMSTREAM" export -m "$work/lost.gguf" -o "$work/lost" --shard-gb 0.0003 -q -j 1 >"$work/out" 2>"$work/err" &
	pid=$!
	until [ -n "$(sed -n 3p "$work/lost/export.journal" 2>/dev/null)" ] || ! kill -0 $pid 2>/dev/null; do
		sleep 0.01
	done
	truncate -s 4096 "$work/lost.gguf"
	wait $pid
	rc=$? said="export, the source gets shorter"
}
for try in 1 2 3 4 5 6 7 8; do
	lost
	[ $rc = 0 ] || break
done
check "lost bytes are said, try $try" [ $rc = 1 ]
check "and not that the file is damaged" grep -qE '^glmstream: .*lost.gguf: ' "$work/err"
cp -p "$work/tiny.gguf" "$work/lost.gguf"
run export -m "$work/lost.gguf" -o "$work/lost" --shard-gb 0.0003 -q -j 1
exits 0
check "finished shards are gone on with" grep -qE 'going on with an earlier run: [1-9]' "$work/err"

# what is complete is kept: behind bytes that are wrong, and where a text cannot be written
damaged=(export -m "$work/bad.gguf" -o "$work/kept" --shard-gb 0.0003 -q -j 1)
run "${damaged[@]}"
error_is_one_sentence 3 'blk.2.ffn_up_exps.weight, expert 2'
mkdir "$work/kept/tokenizer.json"
run "${damaged[@]}" --verify off --force
exits 3
check "finished shards are gone on with" grep -qE 'going on with an earlier run: [1-9]' "$work/err"
check "a folder is in the way" grep -q '^glmstream: .*tokenizer.json: is a directory' "$work/err"
rmdir "$work/kept/tokenizer.json"
run "${damaged[@]}" --verify off
exits 0
check "all shards are kept" grep -qE 'earlier run: ([0-9]+) of \1 shards' "$work/err"

# --force: files of a checkpoint's names are replaced, others stay; shards of an earlier export with
# another number of them go, and only this program's
mkdir "$work/force"
echo mine >"$work/force/README.md"
echo mine >"$work/force/config.json"
echo mine >"$work/force/model-00001-of-00099.safetensors"
run export "${tiny[@]}" -o "$work/force" --force --shard-gb 0.003
exits 0
echo mine >"$work/blob"
ln -s "$work/blob" "$work/force/model-00001-of-00001.safetensors"
run export "${tiny[@]}" -o "$work/force" --force
exits 0
check "what a link in a shard's place names stays" [ "$(cat "$work/blob")" = mine ]
check "others stay" [ "$(cat "$work/force/README.md" "$work/force/model-00001-of-00099.safetensors")" = "mine
mine" ]
rm "$work/force/model-00001-of-00099.safetensors" "$work/force/README.md"
check "the rest is one export" looked_at same "$work/tiny" "$work/force"
check "in one shard" [ "$(find "$work/force" -name '*.safetensors' | wc -l)" = 1 ]
run export -m "$work/ragged.gguf" -o "$work/force" --force -q
exits 0
check "a model without tokenizer does not keep another's" [ ! -e "$work/force/tokenizer.json" ]
check "only its own files are there" looked_at same "$work/ragged" "$work/force"

finish
