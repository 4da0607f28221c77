#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every command that writes a file: one that the program did not write stays as it is, byte for byte,
# and the error says how to replace it; --force does. (/save of the chat: repl.py.)
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
RUN_LIMIT=200
echo 'my notes, which nobody else has' >"$work/notes"

is_notes() {
	cmp -s "$work/notes" "$1"
}

# refuses FILE SAID COMMAND...: with the notes at FILE the command fails and leaves them
refuses() {
	local file=$1 words=$2
	shift 2
	cp "$work/notes" "$file"
	run "$@"
	error_is_one_sentence 3 "${file##*/}: exists $words"
	check "a hint at --force" grep -q '^hint: --force replaces it' "$work/err"
	check "${file##*/} is as it was" is_notes "$file"
}

# replaces FILE COMMAND...: what is at FILE now is replaced
replaces() {
	local file=$1
	shift
	touch -d '2001-01-01' "$file"
	run "$@"
	exits 0
	check "${file##*/} is replaced" [ "$file" -nt "$work/notes" ]
}

short=(-p 'Define river.' -n 2 --temp 0 --think off -q)

# a trace over a trace, and over nothing else
if "$GLMSTREAM" "${short[@]}" --trace "$work/trace" >"$work/out" 2>"$work/err"; then
	replaces "$work/trace" "${short[@]}" --trace "$work/trace"
	cp "$work/trace" "$work/good.trace"
	refuses "$work/trace" 'and is not a trace' "${short[@]}" --trace "$work/trace"
	replaces "$work/trace" "${short[@]}" --trace "$work/trace" --force
	refuses "$work/trace.partial" 'and is not a trace' "${short[@]}" --trace "$work/trace"
	rm "$work/trace.partial"
	refuses "$work/hits.svg" 'and is not a plot' trace simulate "$work/good.trace" --svg "$work/hits.svg"
	replaces "$work/hits.svg" trace simulate "$work/good.trace" --svg "$work/hits.svg" --force
	replaces "$work/hits.svg" trace simulate "$work/good.trace" --svg "$work/hits.svg"
	refuses "$work/speeds.svg" 'and is not a plot' tune --cache-gb 0.006 --svg "$work/speeds.svg"
else
	skip_part "traces and plots: this program was built without lz4"
fi

# a profile
run "${short[@]}" --cache-gb 0.006 --warm "$work/profile"
exits 0
replaces "$work/profile" "${short[@]}" --cache-gb 0.006 --warm "$work/profile"
cp "$work/notes" "$work/profile"
run "${short[@]}" --cache-gb 0.006 --warm "$work/profile"
error_is_one_sentence 3 'profile: neither a profile nor a trace'
check "the notes are as they were" is_notes "$work/profile"

# a session: what is there is read, so a file that is none is refused with or without --force
cp "$work/notes" "$work/session"
for force in '' --force; do
	run "${short[@]}" --session "$work/session" $force
	error_is_one_sentence 3 'session: '
	check "the notes are as they were" is_notes "$work/session"
done

# logits have no mark: nothing that exists is replaced unasked
echo 1 2 3 >"$work/ids"
refuses "$work/logits" 'already' dump-logits --ids "$work/ids" -o "$work/logits"
refuses "$work/taps" 'already' dump-logits --ids "$work/ids" -o "$work/logits.new" --taps "$work/taps"
check "nothing half done is left" [ ! -e "$work/logits.new" ]
replaces "$work/logits" dump-logits --ids "$work/ids" -o "$work/logits" --force
refuses "$work/logits" 'already' dump-logits --ids "$work/ids" -o "$work/logits"

# models: a finished one is hours of work, so not even the program's own is replaced unasked; one
# that was interrupted is
python3 tests/e2e/convert/gen_checkpoint.py "$work/tiny" --tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" ||
	wrong "the generator failed"
small_shape num_hidden_layers=5 n_routed_experts=16
for writer in convert synth; do
	model=$work/$writer.gguf
	case $writer in
	convert) make=(convert "$work/tiny" -o "$model" --recipe q8 -q) ;;
	synth) make=(synth --shape "$work/shape.json" -o "$model" -q) ;;
	esac
	refuses "$model.partial" 'and is not an unfinished model' "${make[@]}"
	cp "$POCKET" "$model.partial" # another program's
	run "${make[@]}"
	error_is_one_sentence 3 'gguf.partial: exists and is not an unfinished model'
	check "it is as it was" cmp -s "$POCKET" "$model.partial"
	rm "$model.partial"
	refuses "$model" 'already' "${make[@]}"
	check "nothing is left beside it" [ ! -e "$model.partial" -a ! -e "$model.journal" ]
	replaces "$model" "${make[@]}" --force
	cp "$model" "$work/finished"
	run "${make[@]}"
	error_is_one_sentence 3 'gguf: exists already'
	check "the finished model is as it was" cmp -s "$model" "$work/finished"
	mv "$model" "$model.partial" # as a killed run leaves it
	run "${make[@]}"
	exits 0
	check "what was interrupted is replaced" cmp -s "$model" "$work/finished"
done
refuses "$work/j.gguf.journal" 'and is not the journal' convert "$work/tiny" -o "$work/j.gguf" --recipe q8 -q
run convert "$work/tiny" -o "$work/s.gguf" --recipe q8 --split-gb 0.004 -q
exits 0
rm "$work"/s-00001-of-*.gguf
second=$(echo "$work"/s-00002-of-*.gguf)
refuses "$second" 'already' convert "$work/tiny" -o "$work/s.gguf" --recipe q8 --split-gb 0.004 -q

finish
