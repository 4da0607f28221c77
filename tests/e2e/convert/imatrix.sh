#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# glmstream imatrix: its sums against numpy's, the same bytes for every cache and after every
# interruption, merged files, the older format, what it refuses, and a conversion that uses it.
# shellcheck disable=SC2317 # called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
text=tools/pocket/LICENSE.wordnet

is() { # what, files
	python3 tests/e2e/convert/imatrix.py "$@"
}
collect() { # output, options
	run imatrix --backend cpu -m "$POCKET" -f "$text" -c 160 -o "$@"
}

collect "$work/f32.gguf" --kv-f32 --json
exits 0
check "the sums are numpy's" is reference "$work/f32.gguf"
check "the report names the rare experts" is rare "$work/f32.gguf" "$work/out"
check "what is left out is said" grep -q 'the last 76 of 716 tokens are left out' "$work/err"

# ---- storage and interruptions change nothing ----------------------------------------------------
collect "$work/whole.gguf" -q
exits 0
check "the cache in 16 bit changes the sums" [ "$(cmp -s "$work/whole.gguf" "$work/f32.gguf"; echo $?)" = 1 ]
collect "$work/streamed.gguf" -q --cache-gb 0.006 --ram-gb 0.003 --chunk 50 --save-every 1 -t 1
exits 0
check "the same sums with experts streamed" cmp -s "$work/whole.gguf" "$work/streamed.gguf"
collect "$work/parts.gguf" -q --chunks 1
exits 0
check "a shorter run is another file" [ "$(cmp -s "$work/whole.gguf" "$work/parts.gguf"; echo $?)" = 1 ]
collect "$work/parts.gguf"
exits 0
check "it goes on" grep -q 'going on behind chunk 1 of 4' "$work/err"
check "and ends with the same bytes" cmp -s "$work/whole.gguf" "$work/parts.gguf"
touch -d '2001-01-01' "$work/parts.gguf"
collect "$work/parts.gguf" -q
exits 0
check "a complete file is not written again" [ "$(date -r "$work/parts.gguf" +%Y)" = 2001 ]

stopped() { # signal: the program gets it when the first chunk has been saved
	local pid n=0
	rm -f "$work/stopped.gguf"
	"$GLMSTREAM" imatrix -m "$POCKET" -f "$text" -c 20 --save-every 1 -t 1 -q \
		-o "$work/stopped.gguf" >"$work/out" 2>"$work/err" &
	pid=$!
	while [ ! -s "$work/stopped.gguf" ] && [ $((n++)) -lt 3000 ]; do sleep 0.02; done
	kill -"$1" $pid
	wait $pid
	rc=$?
	said="imatrix, signal $1"
}
run imatrix -m "$POCKET" -f "$text" -c 20 -q -o "$work/short.gguf"
exits 0
for signal in KILL INT; do
	for try in 1 2 3 4 5 6 7 8; do # it may be done before
		stopped $signal
		[ $rc = 0 ] || break
	done
	check "it was stopped, try $try" [ "$signal $rc" = "KILL 137" -o "$signal $rc" = "INT 130" ]
	run imatrix -m "$POCKET" -f "$text" -c 20 -q -o "$work/stopped.gguf"
	exits 0
	check "resumed after $signal equals uninterrupted" cmp -s "$work/short.gguf" "$work/stopped.gguf"
done

# ---- merged files, the older format --------------------------------------------------------------
run imatrix --merge "$work/whole.gguf" "$work/whole.gguf" -o "$work/twice.gguf"
exits 0
check "files add up" is twice "$work/whole.gguf" "$work/twice.gguf"
run imatrix --merge "$work/whole.gguf" -o "$work/whole.dat" -q
exits 0
check "the older format has the means" is dat "$work/whole.gguf" "$work/whole.dat"
collect "$work/direct.dat" -q
exits 0
check "and is collected directly" cmp -s "$work/whole.dat" "$work/direct.dat"
run imatrix --merge "$work/whole.dat" "$work/whole.gguf" -o "$work/mixed.gguf"
exits 0
check "a file without counts is said" grep -q 'whole.dat: has no counts' "$work/err"

# ---- second moments ------------------------------------------------------------------------------
collect "$work/moments.gguf" -q --moments
exits 0
check "their diagonal are the squares" is moments "$work/whole.gguf" "$work/moments.gguf"
collect "$work/moments-parts.gguf" -q --moments --chunks 1 --cache-gb 0.006 --ram-gb 0.003 --chunk 50 -t 1
exits 0
collect "$work/moments-parts.gguf" -q --moments
exits 0
check "the same bytes, streamed and resumed" cmp -s "$work/moments.gguf" "$work/moments-parts.gguf"
run imatrix --merge "$work/moments.gguf" "$work/moments.gguf" -o "$work/moments-twice.gguf" -q
exits 0
check "they add up" is twice "$work/moments.gguf" "$work/moments-twice.gguf"
run imatrix --merge "$work/moments.gguf" -o "$work/moments.dat" -q
exits 0
check "the older format has none" cmp -s "$work/whole.dat" "$work/moments.dat"
cp "$work/whole.gguf" "$work/parts.gguf"

# ---- refusals: nothing is replaced ---------------------------------------------------------------
refused() { # exit status, pattern, arguments: parts.gguf stays
	run imatrix "${@:3}"
	error_is_one_sentence "$1" "$2"
	check "the file stays" cmp -s "$work/whole.gguf" "$work/parts.gguf"
}
echo 'Another text.' >"$work/tiny"
cp "$work/whole.gguf" "$work/begun.gguf"
echo mine >"$work/begun.gguf.partial"
refused 3 'begun.gguf.partial: exists and is not an unfinished model' -m "$POCKET" -f "$text" -c 160 -o "$work/begun.gguf"
check "another's file stays" [ "$(cat "$work/begun.gguf.partial")" = mine ]
sed 's/software/hardware/' $text >"$work/other"
refused 3 'was collected with another text' -m "$POCKET" -f "$work/other" -c 160 -o "$work/parts.gguf"
refused 3 'was collected with another size of chunks' -m "$POCKET" -f "$text" -c 80 -o "$work/parts.gguf"
refused 3 'was collected with another type of the cache' -m "$POCKET" -f "$text" -c 160 -o "$work/parts.gguf" --kv-f32
run inspect "$POCKET" --tensors # one weight in the middle of a norm becomes another
cp "$POCKET" "$work/tuned.gguf"
at=$(sed -n 's/^blk.0.attn_norm.weight .* 1024 *\([0-9]*\) .*/\1/p' "$work/out")
printf '\77' | dd of="$work/tuned.gguf" bs=1 seek=$((at + 514)) conv=notrunc status=none
check "another weight" [ "$(cmp -s "$POCKET" "$work/tuned.gguf"; echo $?)" = 1 ]
refused 3 'was collected with another model' -m "$work/tuned.gguf" -f "$text" -c 160 -o "$work/parts.gguf" --verify off
cp "$work/twice.gguf" "$work/merged.gguf"
refused 3 'merged.gguf: exists already' -m "$POCKET" -f "$text" -c 160 -o "$work/merged.gguf"
refused 3 'parts.gguf: exists already' --merge "$work/twice.gguf" -o "$work/parts.gguf"
refused 3 'holds .* tokens, a chunk has 160' -m "$POCKET" -f "$work/tiny" -c 160 -o "$work/new.gguf"
refused 3 'nothing.gguf: No such file' --merge "$work/nothing.gguf" -o "$work/new.gguf"
refused 3 'holds no importance data' --merge "$POCKET" -o "$work/new.gguf"
refused 2 'computes beside a card is not observed' -m "$POCKET" -f "$text" -o "$work/new.gguf" --cpu-experts auto
refused 3 'another choice of --moments' -m "$POCKET" -f "$text" -c 160 -o "$work/parts.gguf" --moments
refused 3 'another choice of --moments' -m "$POCKET" -f "$text" -c 160 -o "$work/moments.gguf"
refused 2 'a .dat cannot hold them' -m "$POCKET" -f "$text" -o "$work/new.dat" --moments
refused 2 '--moments has no place' --merge "$work/whole.gguf" -o "$work/new.gguf" --moments
refused 2 'option -f TEXT is missing' -m "$POCKET" -o "$work/new.gguf"
small_shape vocab_size=8192
run synth -o "$work/alias.gguf" --shape "$work/shape.json" --alias 2 --tokenizer "$POCKET" -q
exits 0
refused 3 'layers share their data' -m "$work/alias.gguf" -f "$text" -c 16 -o "$work/new.gguf"
refused 2 'unexpected argument' -f "$text" -o "$work/new.gguf" "$work/whole.gguf"
refused 2 'no file to read' --merge -o "$work/new.gguf"
refused 2 '-f has no place' --merge "$work/whole.gguf" -f "$text" -o "$work/new.gguf"
for option in "-m $POCKET" "-c 160" "--chunks 3" "--save-every 2" --special --kv-f32 "--cache-gb 1" "--backend cpu"; do
	# shellcheck disable=SC2086 # two words
	refused 2 "reads no text: ${option%% *} has no place" --merge "$work/whole.gguf" -o "$work/new.gguf" $option
done
check "nothing was begun" [ ! -e "$work/new.gguf" ]
mkdir "$work/drive" # of 512 KiB
# shellcheck disable=SC2016 # of the inner shell
small=(unshare -rm sh -c 'mount -t tmpfs -o size=512k none "$1" && shift && exec "$@"' sh "$work/drive")
if "${small[@]}" true 2>"$work/err"; then
	for name in full.gguf full.dat; do
		"${small[@]}" "$GLMSTREAM" imatrix -m "$POCKET" -f "$text" -c 160 -o "$work/drive/$name" >"$work/out" 2>"$work/err"
		rc=$? said="glmstream imatrix -o drive/$name"
		error_is_one_sentence 4 "$name: [0-9]+ bytes are needed, 524288 are free there"
		check "before the text is read" [ "$(grep -c collecting "$work/err")" = 0 ]
	done
else
	skip_part "a full drive: no mount in a namespace of users here"
fi
collect "$work/merged.gguf" -q --force
exits 0
check "--force replaces" cmp -s "$work/whole.gguf" "$work/merged.gguf"
collect "$work/forced.gguf" -q --chunks 2
collect "$work/forced.gguf" --force
exits 0
check "and goes on with what was interrupted" grep -q 'going on behind chunk 2 of 4' "$work/err"
check "to the same bytes" cmp -s "$work/whole.gguf" "$work/forced.gguf"
collect "$work/forced.gguf" --force --kv-f32
exits 0
check "other sums are replaced" cmp -s "$work/f32.gguf" "$work/forced.gguf"
finish
