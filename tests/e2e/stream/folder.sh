#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A checkpoint's folder runs as it is: the logits have the bits of the GGUF that convert makes of it
# without loss, for every type, size of cache and way of reading, on the CPU (on a card:
# card_folder.sh); check values are made beside the shards and found wrong when a byte of values or
# scales changes; what cannot be run is refused.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

gen() { # folder, arguments
	python3 tests/e2e/convert/gen_checkpoint.py "$work/$1" --tokenizer tests/data/tokenizer/pocket-tokenizer.json \
		"${@:2}" >"$work/gen" || wrong "the generator failed: $*"
}
python3 -c 'import random; r = random.Random(5); print(*[r.randrange(500) for _ in range(40)])' >"$work/ids"
logits() { # what, model, arguments: $hash, of 40 rows
	run dump-logits --backend cpu -m "$work/$2" --ids "$work/ids" --all -o /dev/null "${@:3}"
	exits 0
	hash=$(sed -n 's/.*"logits_hash": "\([0-9a-f]*\)".*/\1/p' "$work/out")
	check "a hash of $1" [ "${#hash}" = 16 ]
}
flip() { # folder, "weight" or "weight_scale_inv": a bit in each up_proj of layer 3's experts
	python3 - "$@" <<-'END'
	import json, sys
	folder, part = sys.argv[1:]
	where = json.load(open(folder + "/model.safetensors.index.json"))["weight_map"]
	for expert in range(4):
	    name = f"model.layers.3.mlp.experts.{expert}.up_proj.{part}"
	    f = open(f"{folder}/{where[name]}", "r+b")
	    n = int.from_bytes(f.read(8), "little")
	    a, b = json.loads(f.read(n))[name]["data_offsets"]
	    f.seek(8 + n + (a + b) // 2)
	    byte = f.read(1)
	    f.seek(8 + n + (a + b) // 2)
	    f.write(bytes([byte[0] ^ 1]))
	END
}

# ---- the same bits as a GGUF of the same numbers -------------------------------------------------

# 0.2 MB, and 0.4, 0.8 MB an expert: caches of some of the experts
for which in "tiny fp8 f32 0.0016" "tiny bf16 bf16 0.0032" "ragged fp8 f32 0.0016" "ragged f16 f32 0.0032"; do
	read -r shape dtype recipe cache <<<"$which"
	name=$shape-$dtype
	gen "$name" --dtype "$dtype" --shape "$shape" --vocab 8192
	run convert "$work/$name" -o "$work/$name.gguf" --recipe "$recipe" -q
	exits 0
	logits "$name, converted" "$name.gguf"
	want=$hash
	logits "$name" "$name/" # the name of a folder may end so
	check "$name has the bits of its GGUF" [ "$hash" = "$want" ]
	for how in "--io threads" "--io uring --ram-gb 0.001" "--no-direct --policy lru" "--chunk 8 --lookahead 2"; do
		# shellcheck disable=SC2086 # words
		logits "$name $how" "$name" --cache-gb "$cache" $how
		check "$name, streamed with $how, has the bits of its GGUF" [ "$hash" = "$want" ]
	done
	run dump-logits --backend cpu -m "$work/$name" --ids "$work/ids" --mtp-steps 2 -o "$work/a.f32" --force
	run dump-logits --backend cpu -m "$work/$name.gguf" --ids "$work/ids" --mtp-steps 2 -o "$work/b.f32" --force
	check "$name: drafts too" cmp "$work/a.f32" "$work/b.f32"
	rm "$work/$name.gguf"
done
gen fused --fused --no-mtp --dtype bf16 --shards 1
run convert "$work/fused" -o "$work/fused.gguf" --recipe bf16 -q
logits "fused experts, converted" fused.gguf
want=$hash
logits "fused experts" fused --cache-gb 0.0032
check "experts that are one tensor" [ "$hash" = "$want" ]
gen tied --tied --shape ragged --vocab 8192 --dtype f32 --shards 1
run convert "$work/tied" -o "$work/tied.gguf" --recipe f32 -q
logits "a tied head, converted" tied.gguf
want=$hash
logits "a tied head" tied
check "a tied head" [ "$hash" = "$want" ]

# a cut model: fewer layers than were dense, and an MTP layer that only config.json knows
for cut in "1" "1 --no-mtp" "2" "2 --no-mtp" "4 --no-mtp"; do
	read -r layers no_mtp <<<"$cut"
	name=cut$layers$no_mtp
	gen "$name" --shape ragged --layers "$layers" --vocab 8192 --dtype f32 --shards 1 ${no_mtp:+"$no_mtp"}
	[ "$layers" -gt 2 ] || sed -i 's/"first_k_dense_replace": 2/"first_k_dense_replace": 3/' "$work/$name/config.json"
	run convert "$work/$name" -o "$work/$name.gguf" --recipe f32
	exits 0
	logits "$name, converted" "$name.gguf"
	want=$hash
	logits "$name" "$name"
	check "$name has the bits of its GGUF" [ "$hash" = "$want" ]
	run run -m "$work/$name" -p 'Define river.' --temp 0 -n 4 --draft 2 -v
	exits 0
	if [ -n "$no_mtp" ]; then
		check "$name: -v says what is missing" grep -q "lacks layer $layers (MTP)" "$work/err"
		run dump-logits --backend cpu -m "$work/$name" --ids "$work/ids" --mtp-steps 2 -o /dev/null
		error_is_one_sentence 3 'the model has no MTP layer'
	fi
done

# ---- check values --------------------------------------------------------------------------------

run verify -m "$work/tiny-fp8"
error_is_one_sentence 3 'tiny-fp8: has no check values'
run verify -m "$work/tiny-fp8" --write
exits 0
check "they stand in the folder" [ -s "$work/tiny-fp8/model.safetensors.xxh3" ]
logits "with check values" tiny-fp8 --cache-gb 0.0016 --verify always
check "it is said" grep -q 'bytes verified' "$work/err"
for part in weight weight_scale_inv; do
	flip "$work/tiny-fp8" "$part"
	run verify -m "$work/tiny-fp8"
	error_is_one_sentence 3 'model-0000[1-3]-of-00003.safetensors: 4 of [0-9]+ .*; the first is of blk.3.ffn_up_exps.weight, expert 0'
	for how in "" "--cache-gb 0.0016"; do
		# shellcheck disable=SC2086 # words
		run dump-logits -m "$work/tiny-fp8" --ids "$work/ids" --all -o /dev/null $how
		error_is_one_sentence 1 'expert [0-3] of layer 3: .*-of-00003.safetensors: blk.3.ffn_up_exps.weight, expert [0-3]'
	done
	flip "$work/tiny-fp8" "$part"
done
run verify -m "$work/tiny-fp8" -q
exits 0

# ---- the commands that take a model --------------------------------------------------------------

run inspect "$work/tiny-fp8"
exits 0
check "inspect names types" grep -qE '^routed experts +9 .*F8_E4M3 x 9' "$work/out"
mkdir -p "$work/links/model" # as a download keeps it
ln -s "$work/tiny-fp8/"* "$work/links/model"
run run -m "$work/links/model/" -p 'Define river.' --temp 0 -n 4 --cache-gb 0.0016 -v
exits 0
check "the sandbox is on" grep -q 'files of the model and the options (landlock\|any file (landlock' "$work/err"
check "the folder gives the name" grep -q '^model: 4 layers' "$work/err"
if has_command serve; then
	"$GLMSTREAM" serve -m "$work/links/model//" --port 0 --sessions 1 >"$work/out" 2>"$work/err" &
	for _ in $(seq 600); do
		grep -q '^model "' "$work/err" && break
		sleep 0.1
	done
	kill $!
	wait $!
	check "and the name in the API" grep -q '^model "model", 1 sessions' "$work/err"
fi
printf 'A river is a large natural stream of water.\n' >"$work/text"
run perplexity -m "$work/tiny-fp8" -f "$work/text"
exits 0
run tokenize -m "$work/tiny-fp8" <"$work/text"
exits 0
run bench decode -m "$work/tiny-fp8" -p 8 -n 4 --mb 8 --repeats 2 --seconds 0.02
exits 0
run export -m "$work/tiny-fp8" -o "$work/new"
error_is_one_sentence 3 'tiny-fp8: is a checkpoint already'

# ---- refusals ------------------------------------------------------------------------------------

gen bad --fused --shape ragged --dtype fp8 --vocab 8192 --shards 1
run dump-logits -m "$work/bad" --ids "$work/ids" -o /dev/null
error_is_one_sentence 3 'bad: blk.2.ffn_up_exps.weight .*block scales do not begin where it does'
check "a hint at convert" grep -q '^hint: glmstream convert .*/bad' "$work/err"
rm "$work/tiny-bf16/model-00002-of-00003.safetensors"
run inspect "$work/tiny-bf16"
error_is_one_sentence 3 '1 of the 3 files .* is missing: model-00002-of-00003.safetensors'
truncate -s -1 "$work/ragged-f16/model-00003-of-00003.safetensors"
run dump-logits -m "$work/ragged-f16" --ids "$work/ids" -o /dev/null
error_is_one_sentence 3 'model-00003-of-00003.safetensors'
mkdir "$work/empty"
run inspect "$work/empty"
error_is_one_sentence 3 'empty/config.json: is missing'
run dump-logits -m "$work/tiny-fp8" --ids "$work/ids" -o /dev/null --cache-gb 0.0016 --replicas "$work/fused.gguf"
error_is_one_sentence 2 'copies of a model can be named for a single file'
finish
