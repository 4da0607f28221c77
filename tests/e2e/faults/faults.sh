#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fails single allocations, and single system calls that change files and folders, of: saving a
# session, storing a prompt, keeping a profile, opening a model, a conversion, running a checkpoint's
# folder. Whatever fails, the program ends with a status and a sentence, no file that was there is
# lost, and the next run is right. An interrupted call is made again. fault_requests.sh fails
# allocations of a server.
# Of allocations those are tried that are the first by their path of callers (fail_alloc.c); of system
# calls first those that are the first of their kind on their file (fail_write.c).
# FAULT_POINTS: how many places of each run are tried (0: every one; of allocations: every path).
# FAULT_KINDS: alloc, write. FAULT_RUNS: session, store, profile, open, convert, folder.
# FAULT_HOW: ENOSPC, EIO, EINTR, storm, short. All without them.
# shellcheck disable=SC2317 # functions called through check
# shellcheck source=tests/e2e/lib/lib.sh
. "$(dirname "$0")/../lib/lib.sh"
need_pocket
RUN_LIMIT=200
points=${FAULT_POINTS:-12}
need_fail_alloc
c_tool fail_write

# of these words every n-th, at most $points
some_of() {
	local i step=1
	[ "$points" = 0 ] || step=$((($# + points - 1) / points))
	for ((i = 1; i <= $#; i += step)); do
		echo "${!i}"
	done
}

# calls_of TURN TOTAL KIND...: of the kinds and the numbers up to TOTAL three quarters of $points (five
# ways to fail are many runs): kinds, at each TURN others, and if these are few then numbers too
calls_of() {
	local turn=$1 total=$2 points=$((points * 3 / 4))
	shift 2
	if [ "$points" = 0 ]; then
		echo "$@"
		seq "$total"
		return
	fi
	local step=$((($# + points - 1) / points))
	# shellcheck disable=SC2046 # words
	{
		some_of "${@:1 + (step ? turn % step : 0)}"
		some_of $(seq "$total")
	} | head -n "$points"
}

goes_on() {
	[ "$rc" = 0 ] && ! grep -q '^warning: ' "$work/err"
}

has_sentence() {
	[ "$rc" = 0 ] || grep -q '^glmstream: \|error while loading' "$work/err"
}

# every_failure NAME PREPARE CHECK ARGS...: PREPARE before each run, CHECK behind it
every_failure() {
	local name=$1 prepare=$2 look=$3 paths='' total='' n how turn out=0 failed=0 warned=0 runs=0
	[[ ${FAULT_RUNS:-$name} = *$name* ]] || return 0
	shift 3
	[[ ${FAULT_KINDS:-alloc} = *alloc* ]] || total=0
	$prepare
	timeout $RUN_LIMIT env FAIL_COUNT=1 LD_PRELOAD="$work/fail_alloc.so" \
		"$GLMSTREAM" "$@" >"$work/out" 2>"$work/err" </dev/null
	rc=$? said="glmstream $* (counted)"
	exits 0
	[ "$total" = 0 ] || total=$(sed -n 's/^allocations //p' "$work/err")
	[ "$total" = 0 ] || paths=$(sed -n 's/^paths //p' "$work/err" | tr ' ' '\n' | sort -n)
	# shellcheck disable=SC2086 # words
	for n in $(some_of $paths); do
		$prepare
		timeout $RUN_LIMIT env FAIL_ALLOC="$n" LD_PRELOAD="$work/fail_alloc.so" \
			"$GLMSTREAM" "$@" >"$work/out" 2>"$work/err" </dev/null
		rc=$? said="$name: allocation $n of $total" runs=$((runs + 1))
		[ $rc != 4 ] || out=$((out + 1))
		[ $rc = 0 ] || failed=$((failed + 1))
		check "the program ends in order" [ $rc -le 4 ]
		check "and says why" has_sentence
		$look
	done
	echo "$name: $runs of $(wc -w <<<"$paths") paths to $total allocations: $failed failed, $out of them with status 4"
	$prepare
	timeout $RUN_LIMIT "$work/fail_write" 0 EIO "$GLMSTREAM" "$@" >"$work/out" 2>"$work/err" </dev/null
	rc=$?
	[ $rc != 77 ] || {
		skip_part "$name: system calls cannot be traced here"
		return
	}
	exits 0
	cp "$work/err" "$work/counts"
	runs=0 failed=0 warned=0 turn=0
	[[ ${FAULT_KINDS:-write} = *write* ]] || return
	for how in ${FAULT_HOW:-ENOSPC EIO EINTR storm short}; do
		total=$(sed -n "s/^$how \([0-9]*\):.*/\1/p" "$work/counts")
		# shellcheck disable=SC2046 # words
		for n in $(calls_of $turn "${total:-0}" $(sed -n "s/^$how [0-9]*://p" "$work/counts")); do
			$prepare
			timeout $RUN_LIMIT "$work/fail_write" "$n" "$how" "$GLMSTREAM" "$@" \
				>"$work/out" 2>"$work/err" </dev/null
			rc=$? said="$name: call $n of $total: $how" runs=$((runs + 1))
			[ $rc = 0 ] || failed=$((failed + 1))
			! grep -q '^warning: ' "$work/err" || warned=$((warned + 1))
			check "the program ends in order" [ $rc -le 4 ]
			check "and says why" has_sentence
			case $how in
			short) check "a short write is gone on with" [ $rc = 0 ] ;;
			EINTR | storm) check "an interrupted call is made again" goes_on ;;
			esac
			$look
		done
		turn=$((turn + 1))
	done
	total=$(sed -n 's/^calls //p' "$work/counts")
	echo "$name: $runs failures in $total calls that write: $failed ended the program, $warned were warned of"
}

short=(-n 2 --temp 0 --think off -q -t 1 -c 900)

# ---- a session ----
run "${short[@]}" -p 'Define river.' --session "$work/good"
exits 0
old_session() { cp "$work/good" "$work/s"; }
session_is_whole() {
	local was=$rc said_was=$said
	run "${short[@]}" -p 'Define cat.' --session "$work/s"
	said="$said_was, and the run behind it"
	exits 0
	rc=$was
}
every_failure session old_session session_is_whole "${short[@]}" -p 'Define dog.' --session "$work/s"

# ---- a stored prompt, of 512 rows or more ----
small_model
stored=("${short[@]}" -m "$work/small.gguf" -f "$work/long")
for i in $(seq 60); do echo "The river number $i runs to the sea."; done >"$work/long"
run "${stored[@]}"
exits 0
cp "$work/out" "$work/long.answer"
no_store() { rm -rf "$work/store"; }
store_is_right() {
	local said_was=$said
	run "${stored[@]}" --session-dir "$work/store"
	said="$said_was, and the run behind it"
	exits 0
	check "the answer is the same" cmp -s "$work/out" "$work/long.answer"
}
points=$(((points + 1) / 2)) # longer runs
every_failure store no_store store_is_right "${stored[@]}" --session-dir "$work/store"
points=${FAULT_POINTS:-12}

# ---- the profile that a run keeps ----
profiles_differ() { ! diff -r "$work/old.profiles" "$work/new.profiles" >"$work/diff"; }
profiles=$work/.cache/glmstream/profiles
streamed=(-p 'Define river.' "${short[@]}" --cache-gb 0.006)
for when in old new; do
	run "${streamed[@]}"
	exits 0
	cp -r "$profiles" "$work/$when.profiles"
done
check "a run changes it" profiles_differ
old_profile() { rm -rf "$profiles" && cp -r "$work/old.profiles" "$profiles"; }
profile_is_whole() {
	local was=$rc said_was=$said
	is_old_or_new && return
	# a run that fails between two tokens adds what it used until then
	check "the profile is the old or the new one" [ "$was" != 0 ]
	run "${streamed[@]}"
	said="$said_was, and the run behind it"
	exits 0
	check "the next run takes the profile" [ ! -s "$work/err" ]
	rc=$was
}
is_old_or_new() {
	diff -r "$profiles" "$work/old.profiles" >"$work/diff" || diff -r "$profiles" "$work/new.profiles" >"$work/diff"
}
points=$(((points + 1) / 2))
every_failure profile old_profile profile_is_whole "${streamed[@]}"
points=${FAULT_POINTS:-12}

# ---- opening ----
nothing() { :; }
every_failure open nothing nothing inspect "$POCKET" --tensors

# ---- a conversion ----
python3 tests/e2e/convert/gen_checkpoint.py "$work/tiny" \
	--tokenizer tests/data/tokenizer/pocket-tokenizer.json >"$work/gen" || wrong "the generator failed"
convert=(convert "$work/tiny" --recipe bf16 -q -j 1)
run "${convert[@]}" -o "$work/good.gguf"
exits 0
journal_is_known() {
	[ ! -e "$work/m.gguf.journal" ] || grep -q '^warning: .*m.gguf.journal' "$work/err"
}
no_model() { rm -f "$work"/m.gguf*; }
model_is_whole() {
	local said_was=$said
	if [ -e "$work/m.gguf" ]; then
		check "a journal that stays is named" journal_is_known
		check "what is there is whole" cmp -s "$work/m.gguf" "$work/good.gguf"
		return
	fi
	run "${convert[@]}" -o "$work/m.gguf"
	said="$said_was, and the same command again"
	exits 0
	check "the same bytes" cmp -s "$work/m.gguf" "$work/good.gguf"
}
points=${FAULT_POINTS:-20} # short runs: every kind of call
every_failure convert no_model model_is_whole "${convert[@]}" -o "$work/m.gguf"

# ---- a checkpoint's folder, as it is: JSON of others, with a key and a value that make buffers grow ----
python3 - "$work/tiny/config.json" <<'EOS' || wrong "no long keys"
import json, sys
config = json.load(open(sys.argv[1]))
config["note_" + "n" * 3000] = "t" * 70000
json.dump(config, open(sys.argv[1], "w"))
EOS
run -m "$work/tiny" -p x "${short[@]}"
exits 0
cp "$work/out" "$work/folder.answer"
folder_is_good() {
	check "no file is bad because an allocation fails" [ "$rc" != 3 ]
	[ "$rc" != 0 ] || check "the answer is the same" cmp -s "$work/out" "$work/folder.answer"
}
points=${FAULT_POINTS:-40} # short runs: a seventh of the paths lead to JSON
every_failure folder nothing folder_is_good -m "$work/tiny" -p x "${short[@]}"

finish
