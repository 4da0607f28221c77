#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# glmstream convert on generated checkpoints: the values against an independent computation, the
# real model's sizes to the byte, the same bytes for any number of threads, for a killed and resumed
# run, whole or split, and refusals.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"

RUN_LIMIT=170

gen() {
	python3 tests/e2e/convert/gen_checkpoint.py "$@" >"$work/gen" || wrong "the generator failed: $*"
}

# a sanitizer has nothing to say about the values, and computing them takes long; what is converted
# again and again takes a recipe there that searches less
values=yes again=iq2
case $GLMSTREAM in */san-*) values='' again=q4 && skip_part "values: a sanitizer build takes too long" ;; esac

agrees() { # source, output, recipe
	[ "$values" ] || return 0
	python3 tests/e2e/convert/check_convert.py "$@" >>"$work/err" 2>&1
}

convert_and_check() { # source, recipe, options...
	local src=$1 recipe=$2
	shift 2
	run convert "$work/$src" -o "$work/$src-$recipe.gguf" --recipe "$recipe" -q "$@"
	exits 0
	check "$src as $recipe agrees with the independent computation" agrees "$work/$src" "$work/$src-$recipe.gguf" "$recipe"
	check "no temporary file is left" [ ! -e "$work/$src-$recipe.gguf.partial" ]
	check "no journal is left" [ ! -e "$work/$src-$recipe.gguf.journal" ]
}

stdout_has() {
	check "the plan should say: $1" grep -qxE -- "$1" "$work/out"
}

# ---- values: dtypes x fused or separate x recipes ------------------------------------------------

gen "$work/tiny" --tokenizer tests/data/tokenizer/pocket-tokenizer.json
convert_and_check tiny f32
convert_and_check tiny q4
convert_and_check tiny q2
convert_and_check tiny iq2 --jobs 3
gen "$work/ragged" --shape ragged --dtype fp8 --shards 5
convert_and_check ragged f32
convert_and_check ragged q2
check "a row that fits no block is said" grep -q 'blk.0.ffn_down.weight: rows of 417 values do not fit Q8_0, stored as BF16' "$work/err"
gen "$work/fused" --shape ragged --dtype fp8 --fused
convert_and_check fused f32
gen "$work/half" --shape ragged --dtype f16 --fused --no-mtp
convert_and_check half bf16
check "a missing MTP layer is said" grep -q 'lacks layer 5 (MTP)' "$work/err"
gen "$work/full" --shape ragged --dtype f32 --shards 1
convert_and_check full q8
gen "$work/mixed" --dtype fp8 --vocab 64 --no-mtp --last-expert-f32
convert_and_check mixed f32

# ---- the indexer schedule: types, pattern, freq and offset, none ---------------------------------

schedule_of() { # of an output: as many marks as layers
	python3 - "$1" <<-'END'
	import importlib.util, sys
	spec = importlib.util.spec_from_file_location("c", "tests/e2e/convert/check_convert.py")
	c = importlib.util.module_from_spec(spec)
	spec.loader.exec_module(c)
	print("".join("FS"[not t] for t in c.Model(sys.argv[1]).keys["glm-dsa.attention.indexer.types"]))
	END
}

for how in indexer_types=null 'indexer_types=null index_topk_pattern="FFFSS"' 'index_topk_freq=1'; do
	words=()
	for word in $how; do words+=(--set "$word"); done
	gen "$work/sched" --shape ragged "${words[@]}"
	run convert "$work/sched" -o "$work/sched.gguf" --recipe q8 -q --force
	exits 0
	check "schedule by $how" [ "$(schedule_of "$work/sched.gguf")" = FFFSS ]
done
gen "$work/sched" --shape ragged --set indexer_types=null --set index_topk_freq=null --set index_skip_topk_offset=null
run convert "$work/sched" -o "$work/x.gguf" --recipe q8 # all full: layers 3 and 4 lack their indexers
error_is_one_sentence 3 'model.layers.3.self_attn.indexer.*is missing'
gen "$work/sched" --shape ragged --set 'rope_parameters=null' --set rope_theta=8000000
convert_and_check sched q8

# ---- the real model, to the byte (from headers; the shards are sparse) ---------------------------

gen "$work/real" --shape glm-5.2 --headers-only --shards 282
check "the BF16 repository" grep -qx '59585 tensors 1506659919872 bytes' "$work/gen"
run convert "$work/real" --recipe q2 --dry-run
exits 0
stdout_has 'source   59585 tensors in 282 files, 1506659919872 bytes: F32 77824, BF16 1506659842048'
stdout_has 'model    78 \+ 1 layers, 22 of them with an indexer, 256 experts'
stdout_has 'F32      538 tensors, 500342784 bytes'
stdout_has 'Q8_0     758 tensors, 19938287616 bytes'
stdout_has 'Q2_K     228 tensors, 240987930624 bytes' # 76 layers x 3,170,893,824
stdout_has 'tensors  1524 tensors, 261426561024 bytes'
if [ "$values" ]; then # what sizes the other recipes give, of the same headers
	run convert "$work/real" --recipe iq2 --dry-run --split-gb 50
	stdout_has 'IQ2_XXS  228 tensors, 189347659776 bytes' # 76 x 2,491,416,576
	stdout_has 'tensors  1524 tensors, 209786290176 bytes'
	# shellcheck disable=SC2016 # awk's own
	check "no part is larger than asked for" awk '/^part/ && $5 > 50e9 { bad = 1 } END { exit bad }' "$work/out"
	run convert "$work/real" --recipe iq2-s --dry-run
	stdout_has 'IQ2_XXS  228 tensors, 189347659776 bytes'
	check "no type of iq2-s is a makeshift" [ "$(grep -c 'do not fit' "$work/out" "$work/err" | awk -F: '{n += $2} END {print n}')" = 0 ]
	# what stands on a card: all but the experts and the embedding, 154,880 rows of Q8_0
	# shellcheck disable=SC2016 # awk's own
	check "iq2-s keeps at most 11 GB resident" awk '/^[A-Z0-9_]+ +[0-9]+ tensors/ && !/^IQ2/ { n += $4 }
		END { n -= 154880 * 6528; print n; exit !(n > 9e9 && n < 11e9) }' "$work/out"
	run convert "$work/real" --recipe iq2-t --dry-run
	check "no type of iq2-t is a makeshift" [ "$(grep -c 'do not fit' "$work/out" "$work/err" | awk -F: '{n += $2} END {print n}')" = 0 ]
	# shellcheck disable=SC2016 # awk's own
	check "iq2-t keeps at most 8 GB resident" awk '/^[A-Z0-9_]+ +[0-9]+ tensors/ && !/^IQ2/ { n += $4 }
		END { n -= 154880 * 6528; print n; exit !(n > 7e9 && n < 8e9) }' "$work/out"
	run convert "$work/real" --recipe q2-s --dry-run
	stdout_has 'Q2_K     228 tensors, 240987930624 bytes'
	run convert "$work/real" --recipe q4 --dry-run
	stdout_has 'Q4_K     228 tensors, 413122166784 bytes' # 76 x 5,435,817,984
	run convert "$work/real" --recipe bf16 --dry-run
	stdout_has 'BF16     986 tensors, 1506409709568 bytes'
fi
rm -r "$work/real"
gen "$work/real" --shape glm-5.2 --dtype fp8 --headers-only --shards 141
check "the FP8 repository" grep -qx '118629 tensors 755617140416 bytes' "$work/gen"
run convert "$work/real" --recipe q2 --dry-run
stdout_has 'source   118629 tensors in 141 files, 755617140416 bytes: F32 183490240, BF16 4207458304, F8_E4M3 751226191872'
stdout_has 'tensors  1524 tensors, 261426561024 bytes'
check "a dry run writes nothing" [ -z "$(find "$work" -name '*.partial' -o -name '*.journal')" ]
rm -r "$work/real"

# ---- the same bytes whatever happens -------------------------------------------------------------

# A small model: each conversion is repeated or interrupted often.
gen "$work/small" --layers 2 --vocab 256
for recipe in $(printf '%s\n' "$again" q2 iq2 | sort -u); do
	run convert "$work/small" -o "$work/small-$recipe.gguf" --recipe "$recipe" -q
	exits 0
done
for jobs in 1 2 7; do
	run convert "$work/small" -o "$work/again.gguf" --recipe "$again" -q --jobs $jobs
	check "the same bytes with --jobs $jobs" cmp -s "$work/small-$again.gguf" "$work/again.gguf"
done

run convert "$work/tiny" -o "$work/parts.gguf" --recipe q2 -q --split-gb 0.003
exits 0
first=$(echo "$work"/parts-00001-of-*.gguf)
check "a split output" agrees "$work/tiny" "$first" q2
run verify "$first" -q
exits 0
check "a split output has several parts" [ "$(find "$work" -name 'parts-*.gguf' | wc -l)" -gt 3 ]

# Starts a conversion as $pid and waits until its journal lists a tensor. On the CPU: a card could have finished by then.
start() { # output, options...
	"$GLMSTREAM" convert "$work/small" -o "$1" --recipe "$again" --backend cpu --jobs 1 "${@:2}" >"$work/out" 2>"$work/err" &
	pid=$!
	local lines=()
	while [ ${#lines[@]} -le 2 ] && kill -0 $pid 2>/dev/null; do # the time limit of the unit ends it if no line comes
		sleep 0.01
		[ ! -e "$1.journal" ] || mapfile -t lines <"$1.journal"
	done
}
# The same, and kills it then; once more where it was done before. $killed tells whether that came about.
start_and_kill() { # output, signal, options...
	local try
	killed=no
	for try in 1 2 3 4 5 6 7 8; do
		rm -f "$1" "$1.partial" "$1.journal"
		start "$1" "${@:3}"
		kill -"$2" $pid 2>/dev/null
		wait $pid 2>/dev/null
		rc=$?
		[ ! -e "$1.partial" ] || { killed=yes && return; }
	done
}

start_and_kill "$work/killed.gguf" KILL
check "the conversion was killed halfway" [ "$killed" = yes ]
check "a killed conversion leaves no output" [ ! -e "$work/killed.gguf" ]
run convert "$work/small" -o "$work/killed.gguf" --recipe "$again" --jobs 2
exits 0
check "it goes on where it stood" grep -qE 'going on with an earlier run: [0-9]+ of 71 tensors are done' "$work/err"
check "resumed equals uninterrupted" cmp -s "$work/small-$again.gguf" "$work/killed.gguf"

# ---- an input that gets the output's name meanwhile -------------------------------------------------
inputs=("$work"/small/*.safetensors)
for try in 1 2 3 4 5 6 7 8; do # the conversion may be done before
	rm -f "$work"/late.gguf*
	start "$work/late.gguf"
	ln "${inputs[0]}" "$work/late.gguf" 2>/dev/null
	wait $pid
	rc=$? said="convert, and an input is linked to its output's name, try $try"
	[ $rc = 0 ] || break
done
exits 2
check "the input is named" grep -q '^glmstream: .*late.gguf: is an input of this command' "$work/err"
check "the hint is another name" grep -q '^hint: give the output another name' "$work/err"
rm "$work"/late.gguf*

# ---- a link and the file that it leads to are one output ------------------------------------------
# With a journal each, the one would list tensors of a .partial that the other has emptied.
mkdir "$work/disk"
start_and_kill "$work/disk/named.gguf" KILL
ln -s disk/named.gguf "$work/link.gguf"
run convert "$work/small" -o "$work/link.gguf" --recipe "$again"
exits 0
check "the link goes on with the file's run" grep -q 'going on with an earlier run' "$work/err"
check "and the file is whole" cmp -s "$work/small-$again.gguf" "$work/disk/named.gguf"
check "nothing is left beside either" [ "$(ls "$work/disk")" = named.gguf -a ! -e "$work/link.gguf.journal" ]
run convert "$work/small" -o "$work/link.gguf" --recipe q2 -q --split-gb 0.001
exits 0
check "parts stand where the link leads" [ -e "$(echo "$work"/disk/named-00001-of-*.gguf)" ]

# ---- a run that ends among the matrices of an expert tensor ---------------------------------------
c_tool fail_write
begun=0
# the writing calls before number 86 are of other tensors
for ((n = 86; n < 180 && !begun; n += 5)); do
	rm -f "$work"/begun-experts.gguf* "$work"/begun-copy.gguf*
	timeout 300 "$work/fail_write" $n EIO "$GLMSTREAM" convert "$work/small" -o "$work/begun-experts.gguf" \
		--recipe "$again" -j 1 -q >"$work/out" 2>"$work/err" </dev/null
	rc=$?
	[ $rc != 77 ] || break
	[ $rc != 0 ] || continue
	cp "$work/begun-experts.gguf.partial" "$work/begun-copy.gguf.partial"
	cp "$work/begun-experts.gguf.journal" "$work/begun-copy.gguf.journal"
	run convert "$work/small" -o "$work/begun-copy.gguf" --recipe "$again" -j 2
	exits 0
	grep -qE 'tensors are done, and [1-9][0-9]* matrices of experts$' "$work/err" && begun=1
done
if [ $rc = 77 ]; then
	skip_part "system calls cannot be traced here"
else
	check "finished matrices of an unfinished tensor are kept" [ $begun = 1 ]
	check "and the bytes are those of one run" cmp -s "$work/small-$again.gguf" "$work/begun-copy.gguf"
fi

# ---- locks ----------------------------------------------------------------------------------------
# The first lock is the journal's, the second one the output's.
traced() { # NUMBER HOW OUTPUT
	timeout 300 "$work/fail_write" "$1" "$2" "$GLMSTREAM" convert "$work/small" -o "$3" --recipe "$again" \
		>"$work/out" 2>"$work/err" </dev/null
	rc=$? said="lock $1: $2"
}

traced 0 EIO "$work/locks.gguf"
if [ $rc = 77 ]; then
	skip_part "locks that fail: system calls cannot be traced here"
else
	locks=$(sed -n 's/^ENOLCK 2: //p' "$work/err")
	check "two locks are taken" [ "$(wc -w <<<"$locks")" = 2 ]
	for how in ENOLCK ENOTSUP; do
		rm -f "$work/locks.gguf"
		traced 1 $how "$work/locks.gguf"
		exits 0
		check "a file system without locks is named" \
			grep -q 'locks.gguf.journal: the file system cannot lock it (.*); the conversion goes on, but nothing stops a second one' "$work/err"
		check "and does not matter else" cmp -s "$work/small-$again.gguf" "$work/locks.gguf"
	done
	rm -f "$work/locks.gguf"
	traced 2 ENOLCK "$work/locks.gguf"
	exits 0
	# an interrupted lock is taken in a second call, and not given up
	rm -f "$work"/locks.gguf*
	touch "$work/locks.gguf.journal" "$work/locks.gguf.partial"
	python3 - "$work/locks.gguf" "$work/held" <<'END' &
import fcntl, sys, time
held = [open(sys.argv[1] + end) for end in (".journal", ".partial")]
for f in held:
    fcntl.flock(f, fcntl.LOCK_EX)
open(sys.argv[2], "w").close()
time.sleep(600)
END
	holder=$!
	for ((i = 0; i < 2400; i++)); do
		[ ! -e "$work/held" ] || break
		sleep 0.05
	done
	traced "${locks%% *}" EINTR "$work/locks.gguf"
	kill $holder
	wait $holder 2>/dev/null
	error_is_one_sentence 1 'another conversion is writing this output'
	rm -f "$work/held"
fi

# ---- where to quantise ----------------------------------------------------------------------------
run convert "$work/small" -o "$work/card.gguf" --recipe "$again" --backend cuda
if [ "$rc" = 0 ]; then
	check "a card writes the same bytes" cmp -s "$work/small-$again.gguf" "$work/card.gguf"
else
	check "no card is an error" [ "$rc" = 1 ]
	check "of one sentence" grep -q '^glmstream: backend cuda: ' "$work/err"
	check "before anything is written" [ ! -e "$work/card.gguf.partial" -a ! -e "$work/card.gguf.journal" ]
	run convert "$work/small" -o "$work/card.gguf" --recipe "$again"
	exits 0
	check "auto says why the CPU quantises" grep -qE '^backend  cpu \(backend cuda: ' "$work/err"
	check "the same bytes" cmp -s "$work/small-$again.gguf" "$work/card.gguf"
fi
check "the rates of the stages are said" grep -qE '^read [0-9.]+ GB at .* GB/s (with|through) .*, quantised at .* GB/s \(.* units on the card\), wrote' "$work/err"
check "and the memory" grep -qE '^most memory: [0-9.]+ GB of the host, [0-9.]+ GB of the card$' "$work/err"
run verify "$work/killed.gguf" -q
exits 0

start_and_kill "$work/stopped.gguf" INT
check "Ctrl+C ends with 130 and a hint" test $rc = 130 -a -n "$(grep '^hint: the same command goes on' "$work/err")"
sed -i '2s/^[0-9]*/99/' "$work/stopped.gguf.journal"
run convert "$work/small" -o "$work/stopped.gguf" --recipe "$again" -q
exits 0
check "a damaged journal is said" grep -q 'journal is damaged: starting over' "$work/err"
check "starting over equals uninterrupted" cmp -s "$work/small-$again.gguf" "$work/stopped.gguf"

start_and_kill "$work/other.gguf" KILL
run convert "$work/small" -o "$work/other.gguf" --recipe q2 -q
exits 0
check "another recipe starts over" grep -q 'belongs to another source, recipe or version: starting over' "$work/err"
check "and is right" cmp -s "$work/small-q2.gguf" "$work/other.gguf"

# ---- importance ----------------------------------------------------------------------------------

make_dat() { # file, number of values
	python3 - "$1" "$2" <<-'END'
	import struct, sys
	name, n = b"blk.1.ffn_gate_exps.weight", int(sys.argv[2])
	values = [1.0 + (i % 256 == 3) * 1000 for i in range(n)]
	values[256:512] = [0.0] * 256  # an expert that was never used
	open(sys.argv[1], "wb").write(struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 9, n) + struct.pack("<%df" % n, *values))
	END
}
make_dat "$work/im.dat" $((256 * 4))
for recipe in iq2 q2; do
	run convert "$work/small" -o "$work/im-$recipe.gguf" --recipe $recipe -q --imatrix "$work/im.dat"
	exits 0
	check "importance still gives a sound $recipe" agrees "$work/small" "$work/im-$recipe.gguf" $recipe
	check "importance changes $recipe" test "$(cmp "$work/im-$recipe.gguf" "$work/small-$recipe.gguf" >/dev/null; echo $?)" = 1
done
# The same numbers in llama.cpp's newer container give the same bytes; with counts by expert, which
# the older one cannot have, the expert that was never used leans on the others of its layer.
make_gguf() { # .dat, GGUF, "counts" or nothing
	python3 - "$@" <<'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
n_name, = struct.unpack_from("<i", data, 4)
name, values = data[8 : 8 + n_name], data[8 + n_name + 8 :]
def text(b):
    return struct.pack("<Q", len(b)) + b
def tensor(name, ne, offset):
    return text(name) + struct.pack("<I%dQIQ" % len(ne), len(ne), *ne, 0, offset)
counts = len(sys.argv) > 3
out = b"GGUF" + struct.pack("<IQQ", 3, 1 + counts, 1) + text(b"general.type") + struct.pack("<I", 8) + text(b"imatrix")
out += tensor(name + b".in_sum2", [256, 4], 0)
if counts:
    out += tensor(name + b".counts", [1, 4], len(values))
out += bytes(-len(out) % 32) + values + struct.pack("<4f", 9, 0, 9, 9) * counts
open(sys.argv[2], "wb").write(out)
END
}
make_gguf "$work/im.dat" "$work/im.gguf"
run convert "$work/small" -o "$work/im-gguf.gguf" --recipe iq2 -q --imatrix "$work/im.gguf"
exits 0
check "both containers of importance give the same bytes" cmp -s "$work/im-iq2.gguf" "$work/im-gguf.gguf"
make_gguf "$work/im.dat" "$work/im.gguf" counts
run convert "$work/small" -o "$work/im-prior.gguf" --recipe q2 --imatrix "$work/im.gguf"
exits 0
check "rare experts are said" grep -q 'im.gguf: 4 of 4 experts saw fewer than 64 tokens' "$work/err"
check "and get another importance" test "$(cmp -s "$work/im-q2.gguf" "$work/im-prior.gguf"; echo $?)" = 1
make_dat "$work/im.dat" 1000
run convert "$work/small" -o "$work/x.gguf" --recipe iq2 -q --imatrix "$work/im.dat"
error_is_one_sentence 3 'im.dat: blk.1.ffn_gate_exps.weight has 1000 values'
head -c 400 "$work/im.dat" >"$work/cut.dat"
run convert "$work/small" -o "$work/x.gguf" --recipe iq2 -q --imatrix "$work/cut.dat"
error_is_one_sentence 3 'cut.dat: entry 0 of 1 is damaged'

# ---- error feedback ------------------------------------------------------------------------------

differ() {
	cmp -s "$1" "$2"
	[ $? = 1 ]
}
run convert "$work/small" -o "$work/feedback.gguf" --recipe "$again" --feedback -j 1
exits 0
check "it is said" grep -q 'error feedback for .* tensors of routed experts, by .* inputs for 0, else' "$work/err"
check "it changes the experts" differ "$work/small-$again.gguf" "$work/feedback.gguf"
start_and_kill "$work/begun.gguf" KILL --feedback
check "it was killed halfway" [ "$killed" = yes ]
cp "$work/begun.gguf.partial" "$work/without.gguf.partial"
cp "$work/begun.gguf.journal" "$work/without.gguf.journal"
run convert "$work/small" -o "$work/begun.gguf" --recipe "$again" --feedback -j 2
exits 0
check "it goes on where it stood" grep -qE 'going on with an earlier run: [0-9]+ of 71 tensors are done' "$work/err"
check "to the same bytes, with two workers" cmp -s "$work/feedback.gguf" "$work/begun.gguf"
run convert "$work/small" -o "$work/without.gguf" --recipe "$again" -q
exits 0
check "without it, the same starts over" grep -q 'belongs to another source, recipe or version: starting over' "$work/err"
check "to the bytes of plain quantising" cmp -s "$work/small-$again.gguf" "$work/without.gguf"
run imatrix -m "$work/tiny-q4.gguf" -f tools/pocket/LICENSE.wordnet -c 64 --chunks 2 --moments -o "$work/moments.gguf" -q
exits 0
run convert "$work/tiny" -o "$work/moments-q2.gguf" --recipe q2 --feedback --imatrix "$work/moments.gguf"
exits 0
check "moments are used" grep -qE 'error feedback for ([0-9]+) tensors of routed experts, by .* inputs for [1-9]' "$work/err"
check "and change the file" differ "$work/tiny-q2.gguf" "$work/moments-q2.gguf"
# down of experts that no token reached has no correlations
without=$(sed -nE 's/^error feedback: in this run ([0-9]+) of 48 blocks of columns did without it.*/\1/p' "$work/err")
check "the number of blocks without it is said" [ -n "$without" ]
check "of these none is unusable" grep -qE "did without it(: the correlations of 0 are not positive definite, $without have none)?\$" "$work/err"
run verify "$work/moments-q2.gguf" -q
exits 0
# correlations above 1 in what goes into gate and up of the 4 experts of a layer
python3 - "$work/moments.gguf" "$work/broken.gguf" <<'END'
import struct, sys
from imatrix_files import read_gguf
data = bytearray(open(sys.argv[1], "rb").read())
values = struct.pack("<257f", *read_gguf(sys.argv[1])[1]["blk.1.ffn_in.moments.in_sum2"][1][:257])
at = data.index(values)
diagonal, = struct.unpack_from("<f", data, at)
struct.pack_into("<255f", data, at + 4, *[1e4 * diagonal] * 255)
open(sys.argv[2], "wb").write(data)
END
run convert "$work/tiny" -o "$work/broken-q2.gguf" --recipe q2 --feedback --imatrix "$work/broken.gguf" -q
exits 0
check "blocks without usable correlations are said" grep -qx \
	"error feedback: in this run $((without + 8)) of 48 blocks of columns did without it: the correlations of 8 are not positive definite, $without have none" "$work/err"
run verify "$work/broken-q2.gguf" -q
exits 0
run convert "$work/small" -o "$work/x.gguf" --recipe q8 --feedback
error_is_one_sentence 2 '--feedback: no routed expert gets a type that it applies to'
check "nothing was begun" [ -z "$(find "$work" -name 'x.gguf*')" ]

# ---- refusals ------------------------------------------------------------------------------------

refused() { # pattern: the source $work/bad is bad input
	run convert "$work/bad" -o "$work/x.gguf" --recipe q2 -q
	error_is_one_sentence 3 "$1"
	check "nothing is written" [ -z "$(find "$work" -name 'x.gguf*')" ]
}
fresh() { # what is refused, is by its headers
	rm -rf "$work/bad"
	gen "$work/bad" --shape ragged --headers-only "$@"
}

run convert "$work/tiny" --recipe q2
error_is_one_sentence 2 'OUT.gguf is missing'
run convert "$work/tiny" -o "$work/x.gguf" --recipe q3
error_is_one_sentence 2 'recipe: "q3" found'
run convert "$work/none" -o "$work/x.gguf" --recipe q2
error_is_one_sentence 3 'No such file'
run convert "$work/tiny/config.json" -o "$work/x.gguf" --recipe q2
error_is_one_sentence 3 'is not a directory'
run convert "$work/tiny" --recipe q2 --split-gb 0.0001 --dry-run
exits 0
largest=$(sed -n 's/^part .* tensors, \([0-9]*\) bytes/\1/p' "$work/out" | sort -n | tail -n 1)
check "a file above --split-gb is said" \
	grep -qxF -- "--split-gb: a file has a whole tensor and its header, so the largest has $largest bytes" "$work/err"
run convert "$work/tiny" -o "$work/no/such/x.gguf" --recipe q2 -q
error_is_one_sentence 3 'No such file'
run convert "$work/tiny" -o "$work/tiny" --recipe q2 -q
error_is_one_sentence 3 'is a directory, expected the name of a file'
check "nothing is left beside it" [ ! -e "$work/tiny.journal" ]

# the files that are read, under whatever name; the place of split files, before anything is written
cp -r "$work/tiny" "$work/source"
ln "$work/source/model-00002-of-00003.safetensors" "$work/linked.gguf"
ln -s source/tokenizer.json "$work/partial.gguf.partial"
(cd "$work/source" && sha256sum ./*) >"$work/sums"
for out in source/model-00001-of-00003.safetensors source/config.json linked.gguf partial.gguf; do
	run convert "$work/source" -o "$work/$out" --recipe q2 -q --force
	error_is_one_sentence 2 "${out##*/}.*: is an input of this command; it is not replaced"
done
# shellcheck disable=SC2016 # the inner shell expands it
check "the source is as it was" sh -c 'cd "$0/source" && sha256sum -c --quiet ../sums' "$work"
check "no journal of what was refused" \
	[ -z "$(find "$work/source" "$work"/linked* "$work"/partial* -name '*.journal')" ]
mkdir "$work/place.gguf-part" "$work/taken"
run convert "$work/tiny" -o "$work/place.gguf" --recipe q2 -q --split-gb 0.0002
exits 0
for ((i = 1; i < 100; i++)); do
	mkdir -p "$(printf "$work/taken/x-00002-of-%05d.gguf" $i)"
done
run convert "$work/tiny" -o "$work/taken/x.gguf" --recipe q2 -q --split-gb 0.0002 --force
error_is_one_sentence 3 'x-00002-of-000[0-9]*.gguf: is a directory'
check "no file is left of it" [ -z "$(find "$work/taken" -type f)" ]

fresh
rm "$work/bad/model-00002-of-00003.safetensors"
refused '1 of the 3 files in model.safetensors.index.json is missing: model-00002-of-00003.safetensors'
fresh
truncate -s -1 "$work/bad/model-00003-of-00003.safetensors"
refused 'model-00003-of-00003.safetensors: has [0-9]+ bytes, but its header describes [0-9]+: the file is incomplete'
fresh
truncate -s 20 "$work/bad/model-00001-of-00003.safetensors"
refused 'model-00001-of-00003.safetensors: announces a header'
fresh
rm "$work/bad/config.json"
refused 'config.json: is missing'
fresh
echo '{"model_type":' >"$work/bad/config.json"
refused 'config.json: is not valid JSON'
fresh --set 'model_type="llama"'
refused 'model_type is "llama"'
fresh --set hidden_size=null
refused 'key hidden_size is missing'
fresh --set hidden_size=-1
refused 'key hidden_size is -1'
fresh --set hidden_size=256
refused 'has shape .*, but config.json asks for'
fresh --set index_topk=2097152 # more than this program reads: said before hours of work
refused 'attention.indexer.top_k is 2097152, expected 1 to 1048576'
fresh --set num_hidden_layers=6
refused 'indexer_types describes 5 layers, 6 expected'
fresh --set first_k_dense_replace=1
refused 'mlp_layer_types'
fresh --set 'rope_parameters={"rope_theta":8000000,"rope_type":"yarn"}'
refused 'rope_type is "yarn"'
fresh --set 'rope_parameters={"rope_theta":8000000,"type":"yarn"}'
refused 'rope_parameters: key type is "yarn", only "default" is supported'
fresh --set 'rope_scaling={"type":"default","rope_theta":10000}'
refused 'rope_theta is (1e\+04|10000), but another rope_theta in this file is 8e\+06'
fresh --set num_key_value_heads=1
refused 'num_key_value_heads is 1, but num_attention_heads is 3'
fresh --set num_experts=8
refused 'num_experts is 8, but n_routed_experts is 5'
fresh --set 'per_layer_config={"2":{"num_experts_per_tok":1}}'
refused 'key num_experts_per_tok of layer 2 is 1'
fresh --set 'rope_parameters=null'
refused 'rope_theta'
fresh --set rope_interleave=false
refused 'rope_interleave'
fresh --set attention_bias=true
refused 'attention_bias'
fresh --dtype fp8
sed -i 's/kv_b_proj.weight_scale_inv/kv_b_proj.weight_scale_off/g' "$work"/bad/model*
refused 'kv_b_proj.weight has dtype F8_E4M3 and lacks its scales'
fresh
sed -i 's/self_attn.o_proj/self_attn.x_proj/g' "$work"/bad/model*
refused 'self_attn.o_proj.weight is missing'
rm -rf "$work/bad"
gen "$work/bad" --shape ragged --shards 1
python3 - "$work/bad/model-00001-of-00001.safetensors" <<'END'
import json, struct, sys
f = open(sys.argv[1], "r+b")
n, = struct.unpack("<Q", f.read(8))
at = json.loads(f.read(n))["model.norm.weight"]["data_offsets"][0]
f.seek(8 + n + at + 10)
f.write(b"\xc0\x7f")  # value 5 becomes a NaN
END
run convert "$work/bad" -o "$work/nan.gguf" --recipe q2 -q
error_is_one_sentence 3 'model.norm.weight: the value in row 0, column 5 is not a number'
check "no output of a broken source" [ ! -e "$work/nan.gguf" ]
check "what is finished is kept (mended.sh)" [ -e "$work/nan.gguf.partial" -a -e "$work/nan.gguf.journal" ]

finish
